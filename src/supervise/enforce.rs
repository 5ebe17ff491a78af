//! From what canaries and read-backs saw to the enforcement report. Pure. `Got::Enforced` is made here alone,
//! and only from a confirmation.

use crate::base::{Enforcement, Gap, Got, Need, Protection};
use crate::plan::{CacheLayer, Containment, resolve::need};
use crate::sandbox::verify::{Canary, Seen};

/// A confirmation, or its failure, that does not come from a canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadBack {
    /// Of which protection.
    pub protection: Protection,
    /// What was read back.
    pub by: &'static str,
    /// Why it does not hold, or not wholly.
    pub gap: Option<Gap>,
    /// The main part holds in spite of the gap.
    pub partial: bool,
}

/// The report: one line per protection.
pub fn report(c: &Containment, seen: Option<Seen>, read_backs: &[ReadBack]) -> Vec<Enforcement> {
    Protection::ALL.iter().map(|p| line(c, *p, seen, read_backs)).collect()
}

fn line(c: &Containment, protection: Protection, seen: Option<Seen>, read_backs: &[ReadBack]) -> Enforcement {
    let asked = need(c, protection);
    let make = |got, by, gap| Enforcement { protection, asked, got, by, gap };
    if not_asked(c, protection) {
        return make(Got::NotAsked, Vec::new(), None);
    }
    if let Some(gap) = c.gaps.get(&protection) {
        return make(Got::Absent, Vec::new(), Some(gap.clone()));
    }
    let mut by = Vec::new();
    let mut failed = Vec::new();
    for canary in Canary::ALL.iter().filter(|k| k.protection() == protection) {
        match seen.and_then(|s| s.get(*canary)) {
            Some(true) => by.push(canary.name().to_owned()),
            Some(false) => failed.push(canary.name()),
            None => {}
        }
    }
    if !failed.is_empty() {
        let gap = Gap {
            what: format!("the canary {} found it not in force", failed.join(", ")),
            remedy: "report this with the output of `stockade doctor --json`".to_owned(),
        };
        return make(Got::Absent, by, Some(gap));
    }
    let mut gap = None;
    let mut partial = false;
    for back in read_backs.iter().filter(|b| b.protection == protection) {
        match &back.gap {
            None => by.push(back.by.to_owned()),
            Some(g) => {
                gap = Some(g.clone());
                partial |= back.partial;
            }
        }
    }
    match gap {
        Some(gap) if partial => make(Got::Partial, by, Some(gap)),
        Some(gap) => make(Got::Absent, by, Some(gap)),
        None if by.is_empty() => {
            let gap =
                Gap { what: "nothing confirmed it".to_owned(), remedy: "run with --verify live".to_owned() };
            make(Got::Absent, by, Some(gap))
        }
        None => make(Got::Enforced, by, None),
    }
}

/// What the profile does not want here has no line of its own to fail.
fn not_asked(c: &Containment, protection: Protection) -> bool {
    match protection {
        // Port rules would close the command's own loopback; the namespace is the boundary.
        Protection::LandlockNet => !c.landlock.deny_tcp && !c.gaps.contains_key(&Protection::LandlockNet),
        Protection::Network => !c.own_network,
        Protection::LimitMemory => c.limits.memory.is_none(),
        Protection::LimitProcesses => c.limits.processes.is_none(),
        Protection::LimitCpu => c.limits.cpu_percent.is_none(),
        Protection::LimitDisk => c.limits.disk.is_none(),
        Protection::Caches => {
            let layered = |layer| matches!(layer, CacheLayer::Kept | CacheLayer::Throwaway);
            !c.gaps.contains_key(&Protection::Caches) && !c.caches.iter().any(|cache| layered(cache.layer))
        }
        _ => false,
    }
}

/// Notes that a protection that was in force has a gap now.
pub fn weaken(report: &mut [Enforcement], protection: Protection, gap: &Gap) {
    for line in report.iter_mut().filter(|l| l.protection == protection && l.got == Got::Enforced) {
        line.got = Got::Partial;
        line.gap = Some(gap.clone());
    }
}

/// The first requirement that is not met.
pub fn unmet(report: &[Enforcement]) -> Option<&Enforcement> {
    report.iter().find(|e| e.asked == Need::Require && matches!(e.got, Got::Absent | Got::Partial))
}

/// Whether anything that was asked for is missing, or the host's network is shared.
pub fn reduced(report: &[Enforcement], own_network: bool) -> bool {
    !own_network || report.iter().any(|e| matches!(e.got, Got::Absent | Got::Partial))
}

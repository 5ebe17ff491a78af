//! `stockade doctor`: every feature as this user finds it, what is lost without it, and the least change that mends it.
//! The facts come from trying (`probe`), the verdict on each profile from planning it; nothing here looks at the host.

use super::args::Doctor;
use super::meant::{self, Caller};
use super::render::{self, list, safe};
use super::{args, exec, exit, fault, host, policy, print};
use crate::plan::{Fact, HostFacts, Mode};
use crate::policy::{Candidate, DEFAULT_PROFILE, EmbeddedOnly, embedded_names, load};
use crate::probe;
use crate::supervise::outcome::Fault;
use crate::supervise::recover::{self, Host};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

const NEWER: &str = "use a newer kernel";

/// One feature.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    works: bool,
    /// What it is good for; what is lost when it does not work.
    gives: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// Whether a built-in profile can run here.
#[derive(Debug, Serialize)]
struct Fits {
    name: &'static str,
    runs: bool,
    /// Preferred protections that it would run without.
    without: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<Fault>,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    schema: &'static str,
    kernel: &'a str,
    user: u32,
    mode: Mode,
    checks: Vec<Check>,
    profiles: Vec<Fits>,
    default_profile: &'static str,
    default_profile_runs: bool,
    /// Worth knowing; needed by no profile.
    notes: Vec<probe::doctor::Note>,
    /// What earlier runs left and nobody could clean.
    leftovers: Vec<String>,
    facts: &'a HostFacts,
}

/// Tries everything; the exit code.
///
/// # Errors
/// When this host cannot be probed at all.
pub fn run(args: &Doctor) -> Result<u8, Fault> {
    let caller = Caller::read();
    let path = host::state_path(args.state.state_dir.as_ref(), &caller);
    let notes = probe::doctor::notes(path.as_ref().ok().map(AsRef::as_ref));
    let opened = path.and_then(|path| host::open(&path));
    let store = opened.as_ref().ok().map(|(_, store, _)| store);
    let facts = probe::refresh(store, &probe::build_id()).map_err(|e| fault::probe(&e))?;
    let mut checks = checks(&facts);
    let mut leftovers = Vec::new();
    checks.push(match &opened {
        Ok((state, ..)) => {
            let boot = Host { boot_id: &facts.boot_id, proc: Path::new("/proc") };
            match recover::recover(state, boot) {
                Ok(recovered) => {
                    leftovers
                        .extend(recovered.kept.iter().map(|l| format!("{}: {}", l.name, list(&l.problems))));
                    check("state directory", STATE, None)
                }
                Err(e) => check("state directory", STATE, Some(of_fault(fault::live(&e)))),
            }
        }
        Err(fault) => check("state directory", STATE, Some(of_fault(fault.clone()))),
    });
    let state_works = checks.last().is_some_and(|c| c.works);
    let profiles: Vec<Fits> = embedded_names().iter().map(|name| fits(name, &facts, &caller)).collect();
    let default_profile_runs = state_works && profiles.iter().any(|p| p.name == DEFAULT_PROFILE && p.runs);
    let report = Report {
        schema: "stockade.doctor/1",
        kernel: &facts.kernel,
        user: facts.uid,
        mode: facts.mode,
        checks,
        profiles,
        default_profile: DEFAULT_PROFILE,
        default_profile_runs,
        notes,
        leftovers,
        facts: &facts,
    };
    let bytes = if args.json { policy::document(&report, true)? } else { text(&report).into_bytes() };
    print(&bytes)?;
    Ok(if default_profile_runs { exit::OK } else { exit::UNFIT })
}

const STATE: &str = "records of runs, so that what a crash leaves is cleaned up by the next start";

fn of_fault(fault: Fault) -> (String, String) {
    (fault.message, fault.hint.unwrap_or_default())
}

fn check(name: &'static str, gives: &'static str, missing: Option<(String, String)>) -> Check {
    let (why, remedy) = missing.unzip();
    Check { name, works: why.is_none(), gives, why, remedy: remedy.filter(|r| !r.is_empty()) }
}

fn checks(facts: &HostFacts) -> Vec<Check> {
    let of = |fact: &Fact| match fact {
        Fact::Works => None,
        Fact::Missing { why, remedy } => Some((why.clone(), remedy.clone())),
    };
    let abi = |needed: u32| {
        (facts.landlock_abi < needed).then(|| match facts.landlock_abi {
            0 => probe::doctor::landlock_absent(),
            has => (format!("Landlock ABI {needed} is needed, this kernel has {has}"), NEWER.to_owned()),
        })
    };
    let cgroup = &facts.cgroup;
    let v2_writable = cgroup.v2.as_ref().is_some_and(|d| d.writable);
    let controller = |name: &str| {
        let reached = cgroup.v1.get(name).is_some_and(|d| d.writable)
            || (v2_writable && cgroup.v2_controllers.iter().any(|c| c == name));
        let why = || match &cgroup.v2_hindrance {
            Some(why) if !cgroup.v1.contains_key(name) => {
                format!("there is no {name} controller for an executor: {why}")
            }
            _ => cgroup.unwritable(&format!("{name} controller")),
        };
        (!reached).then(|| (why(), cgroup.remedy().to_owned()))
    };
    let kill = match (v2_writable, cgroup.v2_kill) {
        (true, true) => None,
        (true, false) => Some(("this kernel has no cgroup.kill".to_owned(), NEWER.to_owned())),
        (false, _) => Some((cgroup.unwritable("cgroup2 directory"), cgroup.remedy().to_owned())),
    };
    let swap = || {
        let remedy = "boot with swapaccount=1, or without swap".to_owned();
        (!cgroup.swap_accounting).then(|| ("swap is not accounted".to_owned(), remedy))
    };
    vec![
        check("namespaces", "the boundary: without them nothing runs", of(&facts.namespaces)),
        check("mount API", "the built root: without it nothing runs", of(&facts.mount_api)),
        check("seccomp", "the system-call filter", of(&facts.seccomp)),
        check("landlock files", "the second lock on files", abi(2)),
        check("landlock ports", "the second lock on TCP, for profiles without internet sockets", abi(4)),
        check("landlock scopes", "the second lock on signals and abstract sockets", abi(6)),
        check("procfs", "/proc of its own; without it the command has none", of(&facts.proc_fresh)),
        check(
            "overlay",
            "throwaway workspaces (workspace.access = \"overlay\"), package caches",
            of(&facts.overlay),
        ),
        check(
            "time namespace",
            "clock offsets of its own (identity.time_namespace)",
            of(&facts.time_namespace),
        ),
        check("cgroup kill", "a second way to end the whole tree", kill),
        check("memory limit", "limits.memory over the whole tree", controller("memory").or_else(swap)),
        check("process limit", "limits.processes over the whole tree", controller("pids")),
        check("cpu limit", "limits.cpu over the whole tree", controller("cpu")),
    ]
}

/// Plans an empty command under a built-in profile.
fn fits(name: &'static str, facts: &HostFacts, caller: &Caller) -> Fits {
    let planned = (|| {
        // A built-in profile is there and loads: tests read them all.
        let root = Candidate::embedded(name).ok_or_else(|| fault::unknown_profile(name))?;
        let policy = load(root, &EmbeddedOnly, None, &[]).map_err(|e| fault::policy(&e))?;
        let here = meant::workspace(None).map_err(|e| fault::place(&e))?;
        let mut request = meant::bare(&args::Choice::default(), caller, here);
        request.workspace = None;
        exec::plan(&policy, &request, facts, caller, None, exec::Layers::new())
    })();
    match planned {
        Ok(plan) => {
            let without = plan.containment.gaps.keys().map(|p| p.key()).collect();
            Fits { name, runs: true, without, fault: None }
        }
        Err(fault) => Fits { name, runs: false, without: Vec::new(), fault: Some(fault) },
    }
}

fn text(report: &Report<'_>) -> String {
    let mut out = String::new();
    let how = match report.mode {
        Mode::Privileged => "privileged",
        Mode::Rootless => "rootless",
    };
    let _ = writeln!(out, "Linux {}, uid {}, {how}\n", safe(report.kernel), report.user);
    let width = report.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for c in &report.checks {
        let state = if c.works { "works" } else { "MISSING" };
        let what = if c.works { c.gives.to_owned() } else { format!("lost: {}", c.gives) };
        let _ = writeln!(out, "{:<width$}  {state:<7}  {what}", c.name);
        let indent = " ".repeat(width + 11);
        for (label, text) in [("why", &c.why), ("remedy", &c.remedy)] {
            if let Some(text) = text {
                let _ = writeln!(out, "{:<width$}  {label:>7}: {}", "", render::block(text, &indent));
            }
        }
    }
    out.push('\n');
    let width = report.profiles.iter().map(|p| p.name.len()).max().unwrap_or(0);
    for p in &report.profiles {
        let verdict = match (&p.fault, p.without.is_empty()) {
            (Some(fault), _) => format!("cannot run here: {}", safe(&fault.message)),
            (None, true) => "runs, with everything that it asks for".to_owned(),
            (None, false) => format!("runs, without {}", list(&p.without)),
        };
        let default = if p.name == report.default_profile { " (default)" } else { "" };
        let _ = writeln!(out, "profile {:<width$}  {verdict}{default}", p.name);
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {}: {}", note.name, safe(&note.says));
    }
    for left in &report.leftovers {
        let _ = writeln!(out, "left behind by run {}", safe(left));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CgroupFacts;

    fn poor() -> HostFacts {
        let missing = || Fact::Missing { why: "refused".into(), remedy: "permit it".into() };
        HostFacts {
            kernel: "5.15".into(),
            boot_id: "b".into(),
            uid: 1000,
            gid: 1000,
            mode: Mode::Rootless,
            namespaces: missing(),
            time_namespace: missing(),
            mount_api: missing(),
            proc_fresh: missing(),
            overlay: missing(),
            landlock_abi: 1,
            landlock_errata: 0,
            seccomp: missing(),
            cgroup: CgroupFacts::default(),
            memory_total: 1 << 30,
            cpus: 2,
            open_files_hard: 1024,
        }
    }

    #[test]
    fn everything_missing_has_a_reason_and_a_remedy() {
        let facts = poor();
        for c in checks(&facts) {
            assert!(!c.works && c.why.is_some() && c.remedy.is_some(), "{}", c.name);
        }
        let fits = fits(DEFAULT_PROFILE, &facts, &Caller::default());
        assert!(!fits.runs && fits.fault.unwrap().code == "protection_unmet");
    }

    #[test]
    fn preferred_protections_may_be_missing() {
        let works = || Fact::Works;
        let facts = HostFacts {
            namespaces: works(),
            mount_api: works(),
            seccomp: works(),
            landlock_abi: 3,
            ..poor()
        };
        let fits = fits(DEFAULT_PROFILE, &facts, &Caller::default());
        assert!(fits.runs, "{:?}", fits.fault);
        assert!(fits.without.contains(&"limit_memory") && fits.without.contains(&"proc"));
    }
}

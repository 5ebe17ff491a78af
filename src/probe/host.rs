//! Facts about the host, by trying each mechanism as this user.

use super::remedy::{self, Stage, Surroundings};
use super::trial::{self, Results, Step, Trial};
use super::{cgroups, proc};
use crate::plan::{Fact, HostFacts, Mode};
use crate::sys::landlock;
use rustix::thread::CapabilitySet;
use std::io;
use std::path::Path;

/// Why the host could not be probed at all. A mechanism that does not work is a [`Fact`], not an error.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A file of procfs that we cannot do without.
    #[error("/proc/{file} cannot be read")]
    Proc {
        /// Which, below `/proc`.
        file: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `/proc` is something else, or another PID namespace's.
    #[error("/proc is not a procfs of this process's own PID namespace; mount one there")]
    ForeignProc,
    /// The child of a threaded process may not allocate.
    #[error("the probe was started with more than one thread")]
    Threads,
    /// pipe(2).
    #[error("a pipe cannot be made")]
    Pipe(#[source] io::Error),
    /// clone3(2) without any namespace.
    #[error("a process cannot be made")]
    Clone(#[source] io::Error),
    /// wait4(2).
    #[error("a trial process cannot be waited for")]
    Wait(#[source] io::Error),
}

impl ProbeError {
    /// From rustix's error.
    pub(super) fn pipe(e: rustix::io::Errno) -> Self {
        Self::Pipe(e.into())
    }
}

/// What the privileged way needs in the initial user namespace.
const NEEDED: [(CapabilitySet, &str); 7] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (CapabilitySet::FOWNER, "CAP_FOWNER"),
    (CapabilitySet::KILL, "CAP_KILL"),
];

/// Which way is open to a process, or why neither is.
fn mode(euid: u32, effective: CapabilitySet, uid_map: &str) -> Result<Mode, Fact> {
    if euid != 0 {
        return Ok(Mode::Rootless);
    }
    // As root, the caller's own id in a user namespace would be uid 0 inside *and* outside.
    if !uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"]) {
        return Err(Fact::Missing {
            why: "this process is uid 0 of a user namespace that is not the initial one".to_owned(),
            remedy: "run stockade as an ordinary user of this container (`--user 1000`), or outside of it"
                .to_owned(),
        });
    }
    let lacking: Vec<&str> =
        NEEDED.iter().filter(|(c, _)| !effective.contains(*c)).map(|(_, n)| *n).collect();
    if lacking.is_empty() {
        return Ok(Mode::Privileged);
    }
    Err(Fact::Missing {
        why: format!("this process is uid 0 without {}", lacking.join(", ")),
        remedy: format!(
            "run stockade as an ordinary user (in a container: `--user 1000`), or grant {}",
            lacking
                .iter()
                .map(|c| format!("`--cap-add {}`", c.trim_start_matches("CAP_")))
                .collect::<Vec<_>>()
                .join(" ")
        ),
    })
}

/// Tries everything. Needs a process with one thread; takes some ten milliseconds.
///
/// # Errors
/// See [`ProbeError`].
pub fn probe() -> Result<HostFacts, ProbeError> {
    trial::check_proc()?;
    let proc_root = Path::new("/proc");
    let text = |file: &'static str| {
        proc::read(&proc_root.join(file))
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .map_err(|source| ProbeError::Proc { file, source })
    };
    let uid = rustix::process::geteuid().as_raw();
    let uid_map = text("self/uid_map")?;
    let way = mode(uid, effective(), &uid_map);
    let trials = match &way {
        Ok(mode) => judge(trial::run(*mode == Mode::Privileged)?),
        Err(missing) => Trials::nothing(missing),
    };
    let abi = landlock::abi().unwrap_or(0);
    let memory = rustix::system::sysinfo();
    Ok(HostFacts {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        boot_id: text("sys/kernel/random/boot_id")?.trim().to_owned(),
        uid,
        gid: rustix::process::getegid().as_raw(),
        mode: way.unwrap_or(Mode::Rootless),
        namespaces: trials.namespaces,
        time_namespace: trials.time_namespace,
        mount_api: trials.mount_api,
        proc_fresh: trials.proc_fresh,
        overlay: trials.overlay,
        landlock_abi: if trials.landlock { abi } else { 0 },
        landlock_errata: if trials.landlock { landlock::errata() } else { 0 },
        seccomp: trials.seccomp,
        cgroup: cgroups::probe(proc_root)?,
        memory_total: memory.totalram.saturating_mul(u64::from(memory.mem_unit)),
        cpus: online_cpus(),
        open_files_hard: open_files_hard(),
    })
}

/// The capabilities that this process has in effect; none when they cannot be read.
pub(super) fn effective() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// Hard limit of RLIMIT_NOFILE.
pub(super) fn open_files_hard() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// From ranges such as `0-3,5`.
fn online_cpus() -> u32 {
    let counted =
        proc::word(Path::new("/sys/devices/system/cpu/online")).map_or(0, |text| count_ranges(&text));
    match counted {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        n => n,
    }
}

fn count_ranges(text: &str) -> u32 {
    let number = |s: &str| s.parse::<u32>().ok();
    text.split(',')
        .filter_map(|range| match range.split_once('-') {
            Some((a, b)) => number(b)?.checked_sub(number(a)?)?.checked_add(1),
            None => number(range).map(|_| 1),
        })
        .fold(0, u32::saturating_add)
}

/// What the trial says, as facts.
struct Trials {
    namespaces: Fact,
    time_namespace: Fact,
    mount_api: Fact,
    proc_fresh: Fact,
    overlay: Fact,
    seccomp: Fact,
    landlock: bool,
}

impl Trials {
    fn nothing(why: &Fact) -> Self {
        let missing = || match why {
            Fact::Missing { why, remedy } => {
                Fact::Missing { why: format!("could not be tried: {why}"), remedy: remedy.clone() }
            }
            Fact::Works => Fact::Works,
        };
        Self {
            namespaces: why.clone(),
            time_namespace: missing(),
            mount_api: missing(),
            proc_fresh: missing(),
            overlay: missing(),
            seccomp: missing(),
            landlock: true,
        }
    }
}

fn judge(trial: Trial) -> Trials {
    let results = match trial {
        Trial::NoClone { errno, namespace } => {
            let around = Surroundings::look();
            return Trials::nothing(&remedy::namespaces(Stage::Clone(namespace), Some(errno), &around));
        }
        Trial::NoMap { errno } => {
            let around = Surroundings::look();
            return Trials::nothing(&remedy::namespaces(Stage::Map, Some(errno), &around));
        }
        Trial::Ran(results) => results,
    };
    let fact = |steps: &[Step], mend: fn(Step, Option<i32>, &Surroundings) -> Fact| match results
        .first_failure(steps)
    {
        None => Fact::Works,
        Some((step, errno)) => match died(&results, step, errno) {
            Some(fact) => fact,
            None => mend(step, errno, &Surroundings::look()),
        },
    };
    let mount_steps = [Step::Tmpfs, Step::Tree, Step::SetAttr, Step::Attach, Step::Devpts, Step::Pivot];
    let mount_api = fact(&mount_steps, remedy::mount_api);
    // Without a place to mount them these were not tried.
    let no_place = (results.get(Step::Tmpfs) != Some(0)).then(|| Trials::nothing(&mount_api));
    let (proc_fresh, overlay) = match no_place {
        Some(nothing) => (nothing.proc_fresh, nothing.overlay),
        None => (fact(&[Step::Proc], remedy::proc_fresh), fact(&[Step::Overlay], remedy::overlay)),
    };
    Trials {
        namespaces: fact(
            &[Step::Ids, Step::Private, Step::Hostname, Step::Loopback, Step::Second],
            |s, e, a| remedy::namespaces(Stage::Use(s.words()), e, a),
        ),
        time_namespace: fact(&[Step::Time], remedy::time),
        mount_api,
        proc_fresh,
        overlay,
        seccomp: fact(&[Step::Seccomp], remedy::seccomp),
        // Known only where the steps before it left the process alive.
        landlock: results.get(Step::Landlock).is_none_or(|e| e == 0),
    }
}

/// When the child died before `step` was over.
fn died(results: &Results, step: Step, errno: Option<i32>) -> Option<Fact> {
    if errno.is_some() {
        return None;
    }
    let signal = results.status & 0x7f;
    let remedy = if signal == libc::SIGSYS {
        "a system-call filter around this process (a container's) kills it; allow the calls that stockade's \
         documentation lists for containers"
    } else {
        "run `stockade doctor` again; when it happens again, look into the kernel log"
    };
    Some(Fact::Missing {
        why: format!("the trial process ended (signal {signal}) before or at: {}", step.words()),
        remedy: remedy.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_way_is_open() {
        let all = NEEDED.iter().fold(CapabilitySet::empty(), |a, (c, _)| a | *c);
        let full = "         0          0 4294967295\n";
        assert_eq!(mode(1000, CapabilitySet::empty(), full), Ok(Mode::Rootless));
        assert_eq!(mode(1000, all, "1000 1000 1\n"), Ok(Mode::Rootless));
        assert_eq!(mode(0, all, full), Ok(Mode::Privileged));
        for (cap, name) in NEEDED {
            let Err(Fact::Missing { why, remedy }) = mode(0, all - cap, full) else { panic!("{name}") };
            assert!(why.contains(name) && remedy.contains(&name[4..]), "{why} / {remedy}");
        }
        for map in ["0 100000 65536\n", "0 0 65536\n", "0 0 4294967294\n1 1 1\n", ""] {
            assert!(matches!(mode(0, all, map), Err(Fact::Missing { .. })), "{map}");
        }
    }

    #[test]
    fn cpu_ranges() {
        for (text, n) in [("0-3,5", 5), ("0", 1), ("", 0), ("x", 0), ("3-1", 0), ("0-4294967295", 0)] {
            assert_eq!(count_ranges(text), n, "{text}");
        }
        assert!(online_cpus() >= 1);
    }

    #[test]
    fn a_threaded_process_is_told_so() {
        assert!(matches!(probe(), Err(ProbeError::Threads)));
    }
}

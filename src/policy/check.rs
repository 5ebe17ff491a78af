//! What a value has to be beyond its type: names, patterns, ranges, and keys that must agree.

use super::caches::Word;
use super::error::Fault;
use super::order::env_covers;
use super::types::{Limits, NetworkPolicy, Posture};
use super::{STARS_MAX, SUMMARY_CHARS_MAX};
use crate::base::{ByteSize, Millis, RelPath, SandboxPath};
use std::fmt::Display;

/// Variables by which an environment chooses code that every dynamically linked program or shell loads.
const LOADERS: &[&str] = &[
    "LD_*",
    "GLIBC_TUNABLES",
    "BASH_ENV",
    "ENV",
    "BASH_FUNC_*",
    "SHELLOPTS",
    "BASHOPTS",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
];

/// Variables that name code or carry authority. A profile may pass one by its own name, not by a pattern
/// that happens to cover it.
pub(super) const SENSITIVE: &[&str] = &[
    "PATH",
    "HOME",
    "IFS",
    "PS4",
    "PROMPT_COMMAND",
    "PYTHONSTARTUP",
    "PYTHONPATH",
    "PYTHONHOME",
    "NODE_OPTIONS",
    "NODE_PATH",
    "RUBYOPT",
    "RUBYLIB",
    "PERL5OPT",
    "PERL5LIB",
    "PERLLIB",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "CLASSPATH",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
    "CARGO_REGISTRY_TOKEN",
    "MAKEFLAGS",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "SSH_AUTH_SOCK",
    "SSH_ASKPASS",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "GPG_AGENT_INFO",
    "XDG_RUNTIME_DIR",
    "DISPLAY",
    "XAUTHORITY",
    "WAYLAND_DISPLAY",
    "GIT_DIR",
    "GIT_SSH_COMMAND",
    "GIT_CONFIG_COUNT",
    "GIT_EXTERNAL_DIFF",
    "GIT_ASKPASS",
    "DOCKER_HOST",
    "KUBECONFIG",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_CLIENT_SECRET",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "GITLAB_TOKEN",
    "CI_JOB_TOKEN",
    "CI_REGISTRY_PASSWORD",
    "ACTIONS_RUNTIME_TOKEN",
    "NPM_TOKEN",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
];

/// A variable's name: anything but `=`, NUL and nothing.
pub(super) fn env_name(name: &str) -> Result<(), Fault> {
    let good = !name.is_empty() && name.len() <= 255 && !name.contains(['=', '\0', '*']);
    if good { Ok(()) } else { Err(Fault::EnvName { name: shown(name), pattern: false }) }
}

/// A name, or a prefix with `*` at its end.
pub(super) fn env_pattern(pattern: &str) -> Result<(), Fault> {
    let stem = pattern.strip_suffix('*').unwrap_or(pattern);
    if pattern == "*" || env_name(stem).is_ok() {
        Ok(())
    } else {
        Err(Fault::EnvName { name: shown(pattern), pattern: true })
    }
}

/// An entry of `env.pass`.
pub(super) fn env_pass(pattern: &str) -> Result<(), Fault> {
    env_pattern(pattern)?;
    // Either covers the other: `LD_*` covers LD_PRELOAD, and `L*` covers all of `LD_*`.
    if let Some(loader) = LOADERS.iter().find(|l| env_covers(l, pattern) || env_covers(pattern, l)) {
        let covers = if env_covers(loader, pattern) { pattern } else { loader };
        return Err(Fault::EnvLoader { name: shown(pattern), covers: shown(covers) });
    }
    if pattern.ends_with('*')
        && let Some(covers) = SENSITIVE.iter().find(|s| env_covers(pattern, s))
    {
        return Err(Fault::EnvTooBroad { name: shown(pattern), covers: (*covers).to_owned() });
    }
    Ok(())
}

/// A path below the workspace or /etc, with `*` within a component.
pub(super) fn pattern(path: &RelPath) -> Result<(), Fault> {
    let bytes = path.as_bytes();
    if bytes.windows(2).any(|w| w == b"**") {
        return Err(Fault::DoubleStar { pattern: path.to_string() });
    }
    if bytes.iter().filter(|b| **b == b'*').count() > STARS_MAX {
        return Err(Fault::TooManyStars { pattern: path.to_string() });
    }
    if bytes.split(|b| *b == b'/').next() == Some(b"*") {
        return Err(Fault::MatchesAll { pattern: path.to_string() });
    }
    Ok(())
}

/// RFC 1123 labels, as long as the kernel takes.
pub(super) fn hostname(name: &str) -> Result<(), Fault> {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    if name.len() <= 64 && name.split('.').all(label) {
        Ok(())
    } else {
        Err(Fault::Hostname { name: shown(name) })
    }
}

/// One line.
pub(super) fn summary(text: &str) -> Result<(), Fault> {
    let good =
        !text.is_empty() && text.chars().count() <= SUMMARY_CHARS_MAX && !text.chars().any(char::is_control);
    if good { Ok(()) } else { Err(Fault::Summary) }
}

/// The name of a seccomp set or call; whether it exists is the plan's question.
pub(super) fn seccomp_name(name: &str, what: &'static str) -> Result<(), Fault> {
    let good = (1..=64).contains(&name.len())
        && name.bytes().all(|c| {
            c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || (c == b'-' && what == "set")
        });
    if good { Ok(()) } else { Err(Fault::SeccompName { name: shown(name), what }) }
}

fn range<T: Ord + Display>(value: &T, min: &T, max: &T) -> Result<(), Fault> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(Fault::Limit { value: value.to_string(), min: min.to_string(), max: max.to_string() })
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
const HOUR: u64 = 3_600_000;

/// Below this not even the loader and the C library fit, whether it was written or is a share of a host's memory.
pub const MEMORY_MIN: ByteSize = ByteSize(4 * MIB);
/// init, the command, and what comes and goes before it: below this no executor can be built.
const PROCESSES_MIN: u64 = 4;

/// Three of the command's own, and those with which the executor starts it: up to 14, with a terminal.
const OPEN_FILES_MIN: u64 = 16;

/// The first limit that cannot have been meant on any host: the one place that says so. What a host adds (its memory, its
/// CPUs) is the plan's to say. Zero is refused where it would mean that nothing can run.
pub(super) fn limits(limits: &Limits) -> Result<(), (&'static str, Fault)> {
    let size = |key, value: Option<ByteSize>, min: u64, max: u64| match value {
        Some(value) => range(&value, &ByteSize(min), &ByteSize(max)).map_err(|f| (key, f)),
        None => Ok(()),
    };
    let count = |key, value: u64, min: u64, max: u64| range(&value, &min, &max).map_err(|f| (key, f));
    let time = |key, value: Millis, min: u64, max: u64| {
        range(&value, &Millis(min), &Millis(max)).map_err(|f| (key, f))
    };
    size("limits.memory", limits.memory.and_then(|m| m.parts().0), MEMORY_MIN.0, 1024 * TIB)?;
    count("limits.processes", limits.processes.unwrap_or(PROCESSES_MIN), PROCESSES_MIN, 1 << 22)?;
    // The parser keeps CpuShare within its own range.
    time("limits.wall", limits.wall.unwrap_or(Millis(1)), 1, 366 * 24 * HOUR)?;
    time("limits.grace", limits.grace, 0, HOUR)?;
    size("limits.output", limits.output, 1, 1024 * TIB)?;
    count("limits.open_files", limits.open_files, OPEN_FILES_MIN, 1 << 20)?;
    size("limits.file_size", limits.file_size, 1, 1024 * TIB)?;
    size("limits.locked_memory", Some(limits.locked_memory), 0, 1024 * TIB)?;
    // execve needs room for the arguments, which it takes from a quarter of the stack.
    size("limits.stack", Some(limits.stack), 128 * KIB, TIB)?;
    // The root's own files lie there too.
    size("limits.scratch", Some(limits.scratch), MIB, 1024 * TIB)?;
    count("limits.scratch_inodes", limits.scratch_inodes, 256, 1 << 32)?;
    size("limits.disk", limits.disk, 1, 1024 * TIB)?;
    Ok(())
}

/// The value that `name` stands for.
pub(super) fn named<T: Word>(name: &str) -> Result<T, Fault> {
    T::ALL.iter().copied().find(|t| t.name() == name).ok_or_else(|| Fault::UnknownWord {
        name: shown(name),
        what: T::WHAT,
        all: T::ALL.iter().map(|t| t.name()).collect(),
    })
}

/// A layer has to have room for what makes one.
pub(super) fn cache_size(size: ByteSize) -> Result<(), Fault> {
    range(&size, &ByteSize(MIB), &ByteSize(1024 * TIB))
}

/// The size of a tmpfs. Zero would mean half of the host's memory to the kernel.
///
/// # Errors
/// [`Fault::Limit`].
pub fn tmpfs_size(size: ByteSize) -> Result<(), Fault> {
    range(&size, &ByteSize(4 * KIB), &ByteSize(1024 * TIB))
}

/// Zero would mean no limit to the kernel.
pub(super) fn tmpfs_inodes(inodes: u64) -> Result<(), Fault> {
    range(&inodes, &1, &(1 << 32))
}

/// Keys of `[network]` that have to agree; the key is the one to look at first.
pub(super) fn network(network: NetworkPolicy) -> Result<(), (&'static str, Fault)> {
    match (network.posture, network.share_host, network.loopback) {
        (Posture::General, false, _) => Err(("network.posture", Fault::GeneralNeedsShareHost)),
        (Posture::General, true, false) => Err(("network.loopback", Fault::GeneralNeedsLoopback)),
        (Posture::Disabled, true, _) => Err(("network.share_host", Fault::ShareHostNeedsGeneral)),
        (Posture::General, true, true) | (Posture::Disabled, false, _) => Ok(()),
    }
}

/// Whether a place is the executor's own, what lies below it included: nothing is mounted there, by whomever. The one
/// place that says so.
pub fn reserved(target: &SandboxPath) -> bool {
    // Where the executor's root is built, with names of its own at its top.
    let building = target.as_bytes().starts_with(b"/.stockade");
    building
        || target.depth() == 0
        || ["/proc", "/dev", "/sys"].iter().any(|own| target.as_path().starts_with(own))
}

pub(super) fn shown(text: &str) -> String {
    crate::base::text::visible(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_refuses_loaders_and_what_covers_them() {
        for bad in ["LD_PRELOAD", "LD_*", "LD_LIBRARY_PATH", "L*", "*", "BASH_ENV", "ENV", "BASH_FUNC_x%%"] {
            assert!(matches!(env_pass(bad), Err(Fault::EnvLoader { .. })), "{bad}");
        }
        for bad in ["SSH_*", "GIT_*", "NODE_*", "AWS_*"] {
            assert!(matches!(env_pass(bad), Err(Fault::EnvTooBroad { .. })), "{bad}");
        }
        for bad in ["", "A=B", "A\0", "A*B", "**"] {
            assert!(matches!(env_pass(bad), Err(Fault::EnvName { .. })), "{bad}");
        }
        for good in ["LANG", "SSH_AUTH_SOCK", "TERM", "MY_APP_*"] {
            assert!(env_pass(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_least_that_works_is_decided_here() {
        let embedded = crate::policy::Candidate::embedded("offline").unwrap();
        let offline = crate::policy::load(embedded, &crate::policy::EmbeddedOnly, None, &[]).unwrap().limits;
        assert!(limits(&offline).is_ok());
        let refused = |change: fn(&mut Limits)| {
            let mut changed = offline.clone();
            change(&mut changed);
            limits(&changed).unwrap_err().0
        };
        assert_eq!(refused(|l| l.memory = Some("4095KiB".parse().unwrap())), "limits.memory");
        assert_eq!(refused(|l| l.processes = Some(3)), "limits.processes");
        assert_eq!(refused(|l| l.wall = Some(Millis(0))), "limits.wall");
        assert_eq!(refused(|l| l.open_files = 15), "limits.open_files");
        assert_eq!(refused(|l| l.stack = ByteSize(127 * KIB)), "limits.stack");
        assert_eq!(refused(|l| l.scratch = ByteSize(MIB - 1)), "limits.scratch");
        assert_eq!(refused(|l| l.scratch_inodes = 255), "limits.scratch_inodes");
        assert_eq!(refused(|l| l.disk = Some(ByteSize(0))), "limits.disk");
    }

    #[test]
    fn places_of_the_executors_own() {
        let at = |p: &str| reserved(&SandboxPath::new(p).unwrap());
        for own in ["/", "/proc", "/proc/self/x", "/dev/shm", "/sys/fs", "/.stockade-empty", "/.stockade/x"] {
            assert!(at(own), "{own}");
        }
        for free in ["/processes", "/x/proc", "/device", "/system", "/x/.stockade", "/tmp", "/.x"] {
            assert!(!at(free), "{free}");
        }
    }

    #[test]
    fn hostnames() {
        for good in ["stockade", "a", "a-b.c", &"x".repeat(63)] {
            assert!(hostname(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            "a_b",
            "a..b",
            "ä",
            "a b",
            &"x".repeat(64),
            &format!("{}.{}", "x".repeat(40), "y".repeat(40)),
        ] {
            assert!(hostname(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns() {
        let check = |p: &str| pattern(&RelPath::new(p).unwrap());
        assert!(check(".env.*.local").is_ok());
        assert!(check(".git/modules/*/hooks").is_ok());
        assert!(matches!(check("**/x"), Err(Fault::DoubleStar { .. })));
        assert!(matches!(check("a*b*c*d*e*f"), Err(Fault::TooManyStars { .. })));
        assert!(matches!(check("*"), Err(Fault::MatchesAll { .. })));
        assert!(matches!(check("*/x"), Err(Fault::MatchesAll { .. })));
    }
}

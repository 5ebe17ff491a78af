//! A refused call as it is kept and told: its number and what of its arguments decided, and what would allow it.

use super::rules::{self, Cond};
use super::{Answer, Arch, Call, Request, SocketRule, catalogue};
use std::fmt::Write as _;

/// Arguments that some rule looks at: the first so many, their low halves.
const ARGUMENTS: usize = 4;

/// A refused call, without what did not decide: two of them are equal when the filter made no difference between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Refusal {
    /// The call number, on the native architecture.
    pub nr: u32,
    /// The bits of the arguments that the call's rule looks at; the others are zero.
    pub args: [u32; ARGUMENTS],
}

/// What would allow a refused call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing does, because …
    Never(String),
    /// Its name in `seccomp.allow`.
    Allow,
    /// This set in `seccomp.sets`.
    Set(&'static str),
}

impl Refusal {
    /// What is kept of `call`.
    pub fn of(call: &Call, sockets: SocketRule) -> Refusal {
        let mut args = [0; ARGUMENTS];
        // A browser's rule looks at fewer bits of the same arguments.
        if let Some(rule) = Arch::NATIVE.name(call.nr).and_then(|name| rules::of(name, sockets, false)) {
            let conditions = rule.lines.iter().flat_map(|line| line.any).flat_map(|group| *group);
            let mut seen = [0; ARGUMENTS];
            for condition in conditions {
                let (argument, bits) = match *condition {
                    Cond::Is(n, _) | Cond::Not(n, _) | Cond::AtMost(n, _) => (n, u32::MAX),
                    Cond::Bits(n, mask, _) => (n, mask),
                    Cond::Null(n) => (n, 0),
                };
                if let Some(seen) = seen.get_mut(usize::from(argument)) {
                    *seen |= bits;
                }
            }
            args = std::array::from_fn(|n| call.args[n] as u32 & seen[n]);
        }
        Refusal { nr: call.nr, args }
    }

    /// The call's name, when it has one here.
    pub fn name(&self) -> Option<&'static str> {
        Arch::NATIVE.name(self.nr)
    }

    /// The call with what decided, in words: `unshare(CLONE_NEWUSER)`, `socket(AF_PACKET, SOCK_RAW)`, `mount`.
    pub fn shown(&self) -> String {
        let Some(name) = self.name() else { return format!("system call {}", self.nr) };
        let [first, second, third, fourth] = self.args;
        let arguments = match name {
            "clone" | "unshare" => flags(first, &NAMESPACES),
            "socket" | "socketpair" => {
                let mut text = word(first, &FAMILIES, "AF_");
                if let Some((_, kind)) = KINDS.iter().find(|(number, _)| *number == second & 0xf) {
                    let _ = write!(text, ", {kind}");
                }
                if third != 0 {
                    let _ = write!(text, ", protocol {third}");
                }
                text
            }
            "ioctl" => word(second, &REQUESTS, "0x"),
            "chmod" | "fchmod" | "mkdir" | "creat" | "mknod" => mode(second),
            "fchmodat" | "fchmodat2" | "mkdirat" | "mknodat" | "open" | "mq_open" => mode(third),
            "openat" => mode(fourth),
            "prctl" => format!("option {first}"),
            "personality" => format!("{first:#x}"),
            "prlimit64" => format!("pid {first}"),
            "seccomp" if second != 0 => "SECCOMP_FILTER_FLAG_NEW_LISTENER".to_owned(),
            _ => return name.to_owned(),
        };
        // What is known only by its name was not seen with its arguments.
        if arguments.is_empty() {
            return name.to_owned();
        }
        format!("{name}({arguments})")
    }

    /// Whether a program makes the call only because it needs what it does: the others are tried, or asked of a
    /// library, by programs that go on without.
    pub fn is_deliberate(&self) -> bool {
        let tried = [
            "keyctl",
            "add_key",
            "request_key",
            "name_to_handle_at",
            "adjtimex",
            "clock_adjtime",
            "move_pages",
            "syslog",
            "perf_event_open",
            "modify_ldt",
            "prctl",
            "prlimit64",
            "personality",
            "seccomp",
        ];
        let Some(name) = self.name().filter(|name| !tried.contains(name)) else { return false };
        let refused = catalogue::embedded().ok().and_then(|c| c.refusal(name));
        match refused {
            Some(group) => group.answer == Answer::EPERM,
            // By its arguments: a namespace, a set-id mode, a device, a terminal's input.
            None => {
                rules::of(name, SocketRule::Inet, false).is_some()
                    && !["socket", "socketpair"].contains(&name)
            }
        }
    }

    /// What would allow it under `request`, for which a filter was made.
    pub fn remedy(&self, request: &Request<'_>) -> Remedy {
        let unknown = || Remedy::Never("no system call of this number is known here".to_owned());
        let (Some(name), Ok(catalogue)) = (self.name(), catalogue::embedded()) else { return unknown() };
        if let Some(group) = catalogue.refusal(name) {
            return if group.grantable { Remedy::Allow } else { Remedy::Never(group.why.clone()) };
        }
        let home = catalogue.sets.iter().find(|set| set.calls().any(|call| call == name));
        match home {
            // It is allowed, and so it is its arguments that are not.
            Some(set) if request.sets.contains(&set.name) || request.allow.iter().any(|a| a == name) => {
                let why = rules::of(name, request.network, request.browser)
                    .map_or("with these arguments", |rule| rule.why);
                Remedy::Never(why.to_owned())
            }
            Some(set) => Remedy::Set(&set.name),
            None => Remedy::Allow,
        }
    }
}

fn mode(bits: u32) -> String {
    flags(bits, &[(0o4000, "set-uid"), (0o2000, "set-gid"), (0o020000, "device")])
}

fn flags(value: u32, names: &[(u32, &str)]) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name).collect();
    set.join("|")
}

fn word(value: u32, names: &[(u32, &str)], otherwise: &str) -> String {
    match names.iter().find(|(number, _)| *number == value) {
        Some((_, name)) => (*name).to_owned(),
        None if otherwise == "0x" => format!("{value:#x}"),
        None => format!("{otherwise}{value}"),
    }
}

const NAMESPACES: [(u32, &str); 8] = [
    (0x0002_0000, "CLONE_NEWNS"),
    (0x0200_0000, "CLONE_NEWCGROUP"),
    (0x0400_0000, "CLONE_NEWUTS"),
    (0x0800_0000, "CLONE_NEWIPC"),
    (0x1000_0000, "CLONE_NEWUSER"),
    (0x2000_0000, "CLONE_NEWPID"),
    (0x4000_0000, "CLONE_NEWNET"),
    (0x0000_0080, "CLONE_NEWTIME"),
];

const FAMILIES: [(u32, &str); 9] = [
    (1, "AF_UNIX"),
    (2, "AF_INET"),
    (10, "AF_INET6"),
    (16, "AF_NETLINK"),
    (17, "AF_PACKET"),
    (31, "AF_BLUETOOTH"),
    (38, "AF_ALG"),
    (40, "AF_VSOCK"),
    (44, "AF_XDP"),
];

const KINDS: [(u32, &str); 4] =
    [(1, "SOCK_STREAM"), (2, "SOCK_DGRAM"), (3, "SOCK_RAW"), (5, "SOCK_SEQPACKET")];

const REQUESTS: [(u32, &str); 3] = [(0x5412, "TIOCSTI"), (0x541c, "TIOCLINUX"), (0x5423, "TIOCSETD")];

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, args: &[u64]) -> Call {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Call { nr: Arch::NATIVE.number(name).unwrap(), arch: Arch::NATIVE.audit(), args: all }
    }

    fn shown(name: &str, args: &[u64]) -> String {
        Refusal::of(&call(name, args), SocketRule::Inet).shown()
    }

    #[test]
    fn only_what_decides_is_kept() {
        let of = |name: &str, args: &[u64]| Refusal::of(&call(name, args), SocketRule::Inet);
        assert_eq!(of("mount", &[1, 2, 3]), of("mount", &[7, 8, 9]));
        assert_eq!(of("unshare", &[0x1000_0200]), of("unshare", &[0xffff_0000_1000_0000]));
        assert_ne!(of("unshare", &[0x1000_0000]), of("unshare", &[0x2000_0000]));
        assert_ne!(of("socket", &[17, 3, 0]), of("socket", &[16, 3, 0]));
        assert_eq!(of("ioctl", &[3, 0x5412, 77]), of("ioctl", &[4, 0x5412, 0]));
    }

    #[test]
    fn calls_are_shown_with_what_decided() {
        assert_eq!(shown("mount", &[1, 2]), "mount");
        assert_eq!(shown("unshare", &[0x1002_0000]), "unshare(CLONE_NEWNS|CLONE_NEWUSER)");
        assert_eq!(shown("socket", &[17, 0x80003, 0x300]), "socket(AF_PACKET, SOCK_RAW, protocol 768)");
        assert_eq!(shown("socket", &[29, 2, 0]), "socket(AF_29, SOCK_DGRAM)");
        assert_eq!(shown("ioctl", &[0, 0x1_0000_5412]), "ioctl(TIOCSTI)");
        assert_eq!(shown("fchmodat", &[0, 0, 0o4755]), "fchmodat(set-uid)");
        assert_eq!(shown("chmod", &[0, 0o2755]), "chmod(set-gid)");
        assert_eq!(shown("openat", &[0, 0, 0o101, 0o4755]), "openat(set-uid)");
        assert_eq!(shown("personality", &[0x004_0000]), "personality(0x40000)");
        let absurd = Refusal { nr: 0x4000_0000, args: [0; 4] };
        assert_eq!(absurd.shown(), "system call 1073741824");
    }

    #[test]
    fn what_programs_merely_try_is_not_deliberate() {
        let of = |name: &str| Refusal::of(&call(name, &[u64::MAX; 4]), SocketRule::Inet).is_deliberate();
        for name in ["mount", "unshare", "ptrace", "bpf", "chmod", "fchmodat", "mknodat", "ioctl", "setns"] {
            assert!(of(name), "{name}");
        }
        for name in ["keyctl", "socket", "shmget", "io_setup", "personality", "sched_setaffinity", "syslog"] {
            assert!(!of(name), "{name}");
        }
    }

    #[test]
    fn remedies_are_those_that_the_compiler_takes() {
        let strings = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let remedy = |sets: &[&str], name: &str, args: &[u64]| {
            let sets = strings(sets);
            let request = Request { sets: &sets, allow: &[], network: SocketRule::Inet, browser: false };
            Refusal::of(&call(name, args), SocketRule::Inet).remedy(&request)
        };
        assert!(
            matches!(remedy(&["base"], "mount", &[]), Remedy::Never(why) if why.contains("root is built"))
        );
        assert!(
            matches!(remedy(&["base"], "chmod", &[0, 0o4755]), Remedy::Never(why) if why.contains("set-id"))
        );
        assert_eq!(remedy(&["base"], "ptrace", &[]), Remedy::Allow);
        assert_eq!(remedy(&["base"], "ustat", &[]), Remedy::Allow);
        assert_eq!(remedy(&["base", "process"], "shmget", &[]), Remedy::Set("ipc"));
        // What is said to help does: the program then allows it.
        for (name, sets, allow) in [
            ("ptrace", &["base"][..], &["ptrace"][..]),
            ("ustat", &["base"], &["ustat"]),
            ("shmget", &["base", "ipc"], &[]),
        ] {
            let (sets, allow) = (strings(sets), strings(allow));
            let request = Request { sets: &sets, allow: &allow, network: SocketRule::Inet, browser: false };
            let filter = super::super::compile(&request).unwrap();
            assert_eq!(filter.plain.verdict(&call(name, &[])).unwrap(), super::super::Verdict::Allow);
        }
    }
}

//! The system-call filter: named sets and argument rules in, BPF words out.
//!
//! Runs in the planning process, long before any sandbox exists, and is pure: the data files are
//! compiled in, nothing is read or installed here. The `sandbox` module hands [`Program::words`]
//! to seccomp(2) in the last stage before execve, and its canaries check the answers that
//! [`Program::verdict`] foretells. Neighbours: [`table`] has the call numbers, `catalogue` the
//! files of `policies/seccomp/`, `rules` the argument rules, `compile` the code generator,
//! [`interp`] a BPF machine for `policy explain` and the tests.
//!
//! What a filter answers, in this order:
//! 1. another architecture's entry point (`int 0x80`): the process is killed;
//! 2. a call that no set names, a newer one, or an x32 number (bit 30): ENOSYS, since every program
//!    copes with an older kernel, and no program copes with EPERM from `clone3`;
//! 3. a call of `refused.toml`: EPERM, or ENOSYS where callers fall back only on that;
//! 4. an allowed call with arguments it may not have: the errno in `rules`;
//! 5. else it is allowed.
//!
//! It is made in two forms. The *plain* one gives these answers itself. The *asking* one leaves what programs are
//! refused for good (EPERM, ENOSYS, EAFNOSUPPORT of calls that `quiet.toml` does not list) to a listener, which
//! answers what the plain form answers, and thereby knows what was refused. They differ in nothing else, and neither
//! form ever asks about a call that is allowed.
//!
//! The filter is not the only lock: namespaces, mounts, an empty capability set and Landlock hold
//! without it. It takes away kernel surface, and two things nothing else can: set-id modes in a
//! writable workspace and typing into a terminal.

mod catalogue;
mod compile;
pub mod interp;
mod refusal;
mod rules;
mod shipped;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use catalogue::Answer;
pub use interp::{Call, Verdict};
pub use refusal::{Refusal, Remedy};
pub use table::Arch;

use catalogue::Catalogue;
use compile::Action;

/// The sets of the shipped profiles: compilers, interpreters, virtual machines, git and headless
/// programs run unmodified under their union.
pub const DEFAULT_SETS: [&str; 6] = ["base", "process", "schedule", "ipc", "network", "confine"];

/// Calls between the installation of the filter and the command's first own instruction: the
/// self-checks (prctl, capget), the fault record (write), execve and _exit. Without them a
/// sandbox couldn't start anything, so a request that lacks one is refused at plan time.
pub const LAUNCH: [&str; 5] = ["prctl", "capget", "write", "execve", "exit_group"];

/// What a plan asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Names of sets.
    pub sets: &'a [String],
    /// Names of further calls, from the profile.
    pub allow: &'a [String],
    /// Which sockets may be made, if a set allows sockets at all.
    pub network: SocketRule,
    /// Whether a browser's own sandbox may be built: namespaces below a user namespace of its own, and chroot.
    pub browser: bool,
}

/// Which sockets may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketRule {
    /// AF_UNIX only.
    None,
    /// AF_UNIX; TCP and UDP over AF_INET and AF_INET6; AF_NETLINK with NETLINK_ROUTE, which
    /// glibc's getaddrinfo and getifaddrs need.
    Inet,
}

/// One BPF instruction, laid out as the kernel's `struct sock_filter` (`linux/filter.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Word {
    /// The operation.
    pub code: u16,
    /// Instructions to skip when a comparison holds.
    pub jt: u8,
    /// Instructions to skip when it doesn't.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// A finished filter program. Only [`compile`] makes one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Program {
    words: Vec<Word>,
}

impl Program {
    /// The instructions, for `SECCOMP_SET_MODE_FILTER`.
    pub fn words(&self) -> &[Word] {
        &self.words
    }

    /// What this filter answers to a call.
    pub fn verdict(&self, call: &Call) -> Result<Verdict, interp::Fault> {
        interp::verdict(&self.words, call)
    }
}

/// Both forms of one filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Answers everything itself.
    pub plain: Program,
    /// Leaves to a listener what it refuses.
    pub asking: Program,
}

/// Which form of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Asking,
}

/// Why no program was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A set that doesn't exist.
    #[error("unknown system-call set `{name}`; the sets are {known}")]
    UnknownSet {
        /// The name given.
        name: String,
        /// All names, for the message.
        known: String,
    },
    /// A name in `allow` that is no system call on any architecture we know.
    #[error("unknown system call `{name}` (calls up to Linux 6.18 are known)")]
    UnknownCall {
        /// The name given.
        name: String,
    },
    /// A call that no profile can grant.
    #[error("system call `{name}` can't be allowed: {why}")]
    NeverAllowed {
        /// The call.
        name: String,
        /// The reason in `refused.toml`.
        why: String,
    },
    /// The sets lack a call that the launch itself makes under the filter.
    #[error("the requested sets lack `{call}`, without which no command can start; add the set `base`")]
    Unlaunchable {
        /// The missing call.
        call: &'static str,
    },
    /// More instructions than the kernel takes.
    #[error("the filter has {instructions} instructions, the kernel's limit is 4096")]
    TooLong {
        /// Its length.
        instructions: usize,
    },
    /// An embedded data file is wrong: our fault.
    #[error("embedded policy file {file}: {detail}")]
    Catalogue {
        /// The file's name.
        file: &'static str,
        /// What is wrong in it.
        detail: String,
    },
    /// seccompiler refused an argument rule: our fault.
    #[error("argument rule: {0}")]
    Rule(String),
    /// A code block has an instruction that the assembler can't place: our fault.
    #[error("argument block has an unexpected instruction, code {code:#x}")]
    Block {
        /// The instruction's code.
        code: u16,
    },
}

impl From<seccompiler::BackendError> for Error {
    fn from(error: seccompiler::BackendError) -> Error {
        Error::Rule(error.to_string())
    }
}

/// Makes the filter for the architecture this program was built for.
pub fn compile(request: &Request) -> Result<Filter, Error> {
    match shipped::find(Arch::NATIVE, request) {
        Some(filter) => Ok(filter),
        None => compile_for(Arch::NATIVE, request),
    }
}

fn compile_for(arch: Arch, request: &Request) -> Result<Filter, Error> {
    let resolved = Resolved::of(request)?;
    Ok(Filter { plain: resolved.program(arch, Form::Plain)?, asking: resolved.program(arch, Form::Asking)? })
}

/// A request with its names looked up; every name is a call or the request was refused.
struct Resolved {
    catalogue: &'static Catalogue,
    /// Sets in catalogue order, once each.
    sets: Vec<&'static str>,
    allowed: BTreeSet<String>,
    network: SocketRule,
    browser: bool,
}

impl Resolved {
    fn of(request: &Request) -> Result<Resolved, Error> {
        let catalogue = catalogue::embedded()?;
        let mut allowed = BTreeSet::new();
        for name in request.sets {
            let set = catalogue.set(name).ok_or_else(|| unknown_set(catalogue, name))?;
            allowed.extend(set.calls().map(str::to_owned));
        }
        for name in request.allow {
            if !table::is_call(name) {
                return Err(Error::UnknownCall { name: name.clone() });
            }
            if let Some(group) = catalogue.refusal(name).filter(|group| !group.grantable) {
                return Err(Error::NeverAllowed { name: name.clone(), why: group.why.clone() });
            }
            allowed.insert(name.clone());
        }
        if request.browser {
            // Chromium's zygote gives up its view of files by it (credentials.cc, ChrootToSafeEmptyDir). Without a
            // capability, as outside of its namespace, it is refused by the kernel.
            allowed.insert("chroot".to_owned());
        }
        if let Some(call) = LAUNCH.into_iter().find(|call| !allowed.contains(*call)) {
            return Err(Error::Unlaunchable { call });
        }
        let is_asked = |set: &&'static str| request.sets.iter().any(|name| name == set);
        let sets = catalogue.sets.iter().map(|set| set.name.as_str()).filter(is_asked).collect();
        Ok(Resolved { catalogue, sets, allowed, network: request.network, browser: request.browser })
    }

    /// Calls that are refused by name, with their answer; what was granted is not among them.
    fn refused(&self) -> impl Iterator<Item = (&'static str, Answer)> {
        let groups = self.catalogue.refused.iter();
        groups
            .flat_map(|group| group.names.iter().map(|name| (name.as_str(), group.answer)))
            .filter(|(name, _)| !self.allowed.contains(*name))
    }

    fn program(&self, arch: Arch, form: Form) -> Result<Program, Error> {
        let refused = self.refused().map(|(name, answer)| (name, Action::Errno(answer.errno())));
        let allowed = self.allowed.iter().map(|name| {
            let rule = rules::of(name, self.network, self.browser);
            (name.as_str(), rule.map_or(Action::Allow, |rule| Action::Lines(rule.lines)))
        });
        // A call that this architecture never had needs no answer.
        let mut actions: BTreeMap<u32, Action> =
            refused.chain(allowed).filter_map(|(name, action)| Some((arch.number(name)?, action))).collect();
        let mut asked = BTreeSet::new();
        if form == Form::Asking {
            for (_, nr) in arch.table().iter().filter(|(name, _)| !self.catalogue.is_quiet(name)) {
                asked.insert(*nr);
                actions.entry(*nr).or_insert(Action::Errno(libc::ENOSYS));
            }
        }
        Ok(Program { words: compile::program(arch, &actions, &asked)? })
    }
}

impl Answer {
    const fn errno(self) -> i32 {
        match self {
            Answer::EPERM => libc::EPERM,
            Answer::ENOSYS => libc::ENOSYS,
        }
    }
}

fn unknown_set(catalogue: &Catalogue, name: &str) -> Error {
    let known = catalogue.sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>().join(", ");
    Error::UnknownSet { name: name.to_owned(), known }
}

/// A filter described for people: `policy explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The sets asked for.
    pub sets: Vec<String>,
    /// Calls allowed beyond the sets.
    pub extra: Vec<String>,
    /// Which sockets may be made.
    pub sockets: SocketRule,
    /// Calls that are allowed on this architecture, with or without an argument rule.
    pub allowed: usize,
    /// Those with an argument rule.
    pub argument_checked: Vec<Checked>,
    /// Calls refused with EPERM whatever their arguments.
    pub eperm: Vec<String>,
    /// Known calls refused with ENOSYS by name; all unlisted ones answer so too.
    pub enosys: Vec<String>,
    /// Length of the program.
    pub instructions: usize,
}

/// A call whose arguments are looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The call.
    pub call: String,
    /// What is refused and why.
    pub why: &'static str,
}

/// Describes the filter that [`compile`] makes of the same request.
pub fn summary(request: &Request) -> Result<Summary, Error> {
    let arch = Arch::NATIVE;
    let resolved = Resolved::of(request)?;
    let instructions = resolved.program(arch, Form::Plain)?.words.len();
    let exists = |name: &str| arch.number(name).is_some();
    let refused = |wanted| {
        let refused = resolved.refused().filter(move |(_, answer)| *answer == wanted);
        refused.map(|(name, _)| name).filter(|name| exists(name)).map(str::to_owned).collect::<Vec<_>>()
    };
    let in_sets = |name: &String| {
        resolved
            .sets
            .iter()
            .filter_map(|set| resolved.catalogue.set(set))
            .any(|set| set.calls().any(|call| call == name))
    };
    let allowed = || resolved.allowed.iter().filter(|name| exists(name));
    let checked = |name: &String| {
        let rule = rules::of(name, resolved.network, resolved.browser)?;
        Some(Checked { call: name.clone(), why: rule.why })
    };
    Ok(Summary {
        sets: resolved.sets.iter().map(|&name| name.to_owned()).collect(),
        extra: resolved.allowed.iter().filter(|name| !in_sets(name)).cloned().collect(),
        sockets: resolved.network,
        allowed: allowed().count(),
        argument_checked: allowed().filter_map(checked).collect(),
        eperm: refused(Answer::EPERM),
        enosys: refused(Answer::ENOSYS),
        instructions,
    })
}

/// A named set, as shipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetInfo {
    /// Its name, as in a profile.
    pub name: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// Its calls, each with the reason it is there.
    pub calls: Vec<(&'static str, &'static str)>,
}

/// All sets, in the order of [`DEFAULT_SETS`].
pub fn sets() -> impl Iterator<Item = SetInfo> {
    // A catalogue that doesn't parse makes `compile` fail; here it is just empty.
    let sets = catalogue::embedded().map_or(&[][..], |catalogue| &catalogue.sets);
    sets.iter().map(|set| SetInfo {
        name: &set.name,
        description: &set.description,
        calls: set
            .groups
            .iter()
            .flat_map(|group| group.names.iter().map(|name| (name.as_str(), group.why.as_str())))
            .collect(),
    })
}

/// A call that is refused by name, unless a profile grants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedInfo {
    /// The call.
    pub name: &'static str,
    /// What it answers.
    pub answer: Answer,
    /// Whether a profile's `allow` may grant it.
    pub grantable: bool,
    /// Where `policies/seccomp/refused.toml` names it: line and column, both from one.
    pub place: (usize, usize),
}

/// All calls that are refused by name.
pub fn refused() -> impl Iterator<Item = RefusedInfo> {
    let groups = catalogue::embedded().map_or(&[][..], |catalogue| &catalogue.refused);
    groups.iter().flat_map(|group| {
        group.names.iter().map(|name| RefusedInfo {
            name,
            answer: group.answer,
            grantable: group.grantable,
            place: catalogue::refused_at(name),
        })
    })
}

/// Whether this is the name of a system call on an architecture that we know.
pub fn is_call(name: &str) -> bool {
    table::is_call(name)
}

//! Why a command failed: by the sandbox, and then by which protection, about what, and what would allow it; or not by
//! the sandbox. Pure but for the questions to the [`Host`]: the evidence is what the filter's listener saw
//! (`observed`), and what the command said of it at the end of its standard error (`likely`).
//!
//! What is said here may be shown to a model. It names what the command itself named or could see, and of the host
//! this much: whether a path that the command named is there, and whether a port that it was refused is served.

mod clues;
mod place;

use super::outcome::{Outcome, Report, ToolEnd};
use crate::base::name_matches;
use crate::base::text::ForModel;
use crate::base::{ByteSize, HostPath, Millis, Protection, SandboxPath};
use crate::plan::seccomp::{Arch, Call, Refusal, Remedy, Verdict as Answer};
use crate::plan::{FsOp, Kind as Object, Mode, Plan};
use crate::policy::{Access, Policy};
use crate::probe::ask::Seen;
use crate::sandbox::stage::trace::Traced;
use crate::sandbox::stage::wire::Answers;
use clues::{Clue, Complaint, find, find_word};
use place::{Place, Use};
use schemars::JsonSchema;
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Bytes of standard error that are looked at, from its end.
pub const TAIL_BYTES: usize = 8192;
/// Findings that are kept.
const FINDINGS_MAX: usize = 8;

/// What can be asked of the host.
pub trait Host {
    /// What lies at a path, no link followed; `None` also when that cannot be said.
    fn look(&self, path: &HostPath) -> Option<Seen>;
    /// Where on the caller's PATH a program of this name lies.
    fn program(&self, name: &OsStr) -> Vec<HostPath>;
    /// Whether something listens on a TCP port.
    fn serves(&self, port: u16) -> bool;
    /// The caller's home.
    fn home(&self) -> Option<&HostPath>;
}

impl Host for crate::probe::ask::Host {
    fn look(&self, path: &HostPath) -> Option<Seen> {
        self.look(path)
    }

    fn program(&self, name: &OsStr) -> Vec<HostPath> {
        self.program(name)
    }

    fn serves(&self, port: u16) -> bool {
        self.serves(port)
    }

    fn home(&self) -> Option<&HostPath> {
        self.home()
    }
}

/// What is known of a command that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Denials {
    /// Whether it failed, and then whether the sandbox is why.
    pub verdict: Verdict,
    /// Why, the latest complaint first; at most eight.
    pub findings: Vec<Finding>,
    /// What the system-call filter refused.
    pub refused_calls: RefusedCalls,
    /// Who saw that.
    pub listener: Listener,
    /// With `--trace-denials`: everything that a traced call was refused for, whether or not it is why the command
    /// failed, the latest first, at most eight; else null.
    pub traced: Option<Vec<Finding>>,
}

/// Whose fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It did not fail.
    Succeeded,
    /// A protection stands in its way.
    Sandbox,
    /// Nothing says that one does.
    NotSandbox,
}

/// One thing that stands in a command's way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// A name of `enforcement`, or `limits`.
    pub protection: &'static str,
    /// What kind of thing.
    pub kind: Kind,
    /// What it is about: a path (as the command would write it), a call, a host, a key.
    pub object: Option<ForModel>,
    /// How that is known.
    pub evidence: Evidence,
    /// In words.
    pub what: ForModel,
    /// The least that would allow it; null where nothing does.
    pub grant: Option<Grant>,
}

/// What kind of thing stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A tree that can only be read.
    ReadOnly,
    /// A protected path.
    Protected,
    /// A hidden path, which is there and empty.
    Hidden,
    /// Something of the host that is not shown.
    Absent,
    /// A directory that is the command's own, where the host has another.
    Private,
    /// A place that holds protected or hidden names and can't be moved, or a boundary between mounts.
    Mount,
    /// Something of another user's.
    Identity,
    /// A privilege that nobody has inside.
    Privilege,
    /// A system call.
    Call,
    /// The network.
    Network,
    /// A limit.
    Limit,
    /// procfs.
    Proc,
}

/// How a finding is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The refusal itself was seen.
    Observed,
    /// The command complained about it, and the plan says that it would.
    Likely,
}

/// What would allow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Grant {
    /// In which way.
    pub by: By,
    /// What to write.
    pub text: ForModel,
}

/// The ways to allow something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A flag of `exec`, which this profile permits.
    Flag,
    /// Another built-in profile, and perhaps a flag.
    Profile,
    /// A key, in a profile of one's own that extends this one.
    Key,
}

/// What the system-call filter refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefusedCalls {
    /// How many calls; null when nobody counted to the end.
    pub total: Option<u64>,
    /// The first 64 different ones. Calls that programs try at every start are not among them.
    pub first: Vec<RefusedCall>,
}

/// One refused call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefusedCall {
    /// The call, with what decided.
    pub call: ForModel,
    /// The errno that it got.
    pub answer: &'static str,
}

/// Whether refused calls were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Listener {
    /// Whether init had the listener.
    pub held: bool,
    /// Why not.
    pub why: Option<&'static str>,
}

/// What is to be said of a run that came to an end by itself or by a limit; `None` when nothing of the command ran.
pub fn judge(plan: &Plan, policy: &Policy, report: &Report, host: &impl Host) -> Option<Denials> {
    let Outcome::Finished(end) = report.outcome else { return None };
    let seen = &report.witnessed;
    let answers = seen.answers.unwrap_or(Answers::NoFilter);
    let answer = |refusal: &Refusal| errno_name(answer_of(plan, refusal));
    let refused_calls = RefusedCalls {
        total: seen.refused_total,
        first: seen
            .refused
            .iter()
            .map(|r| RefusedCall { call: ForModel::new("").word(&r.shown()), answer: answer(r) })
            .collect(),
    };
    let listener = Listener { held: answers == Answers::Listener, why: why_unheard(answers) };
    let failed = end.exit_code != Some(0) || report.limit.is_some();
    let mut denials =
        Denials { verdict: Verdict::Succeeded, findings: Vec::new(), refused_calls, listener, traced: None };
    if failed {
        let judge = Judge { plan, policy, report, host, held: listener.held, out: Vec::new() };
        (denials.findings, denials.traced) = judge.all(end);
        denials.verdict = if denials.findings.is_empty() { Verdict::NotSandbox } else { Verdict::Sandbox };
    }
    Some(denials)
}

fn why_unheard(answers: Answers) -> Option<&'static str> {
    match answers {
        Answers::Listener => None,
        Answers::NotInstalled { errno: libc::EBUSY } => {
            Some("another listener is installed above this process, and there can be one")
        }
        Answers::NotInstalled { .. } => Some("this kernel, or a filter above this process, gives none"),
        Answers::NotTaken { .. } => {
            Some("a filter above this process, or the host's ptrace restrictions, keep init from taking it")
        }
        Answers::NoFilter => Some("there is no filter"),
    }
}

/// The errno that the filter answers to a refusal.
fn answer_of(plan: &Plan, refusal: &Refusal) -> i32 {
    let mut args = [0; 6];
    for (all, kept) in args.iter_mut().zip(refusal.args) {
        *all = u64::from(kept);
    }
    match plan.containment.seccomp.filter.plain.verdict(&Call {
        nr: refusal.nr,
        arch: Arch::NATIVE.audit(),
        args,
    }) {
        Ok(Answer::Errno(errno)) => i32::from(errno),
        // A pointer that decided is not kept.
        _ => libc::EPERM,
    }
}

fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::ENOSYS => "ENOSYS",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        _ => "EPERM",
    }
}

struct Judge<'a, H: Host> {
    plan: &'a Plan,
    policy: &'a Policy,
    report: &'a Report,
    host: &'a H,
    /// The listener was held: a refusal of the filter that is not among those seen did not happen.
    held: bool,
    out: Vec<Finding>,
}

/// A finding before it is known how it is known.
struct Found {
    protection: &'static str,
    kind: Kind,
    object: Option<ForModel>,
    what: ForModel,
    grant: Option<Grant>,
}

impl<H: Host> Judge<'_, H> {
    fn all(mut self, end: ToolEnd) -> (Vec<Finding>, Option<Vec<Finding>>) {
        // A terminal has one stream.
        let stream = if self.plan.command.tty { &self.report.stdout } else { &self.report.stderr };
        let clues = clues::clues(stream.ending(TAIL_BYTES));
        self.limits(end);
        self.calls(end, &clues);
        for clue in clues.iter().rev() {
            if self.out.len() >= FINDINGS_MAX {
                break;
            }
            if let Some(found) = self.explain(clue) {
                self.add(found, Evidence::Likely);
            }
        }
        let traced = self.report.witnessed.traced.as_ref().map(|traced| self.traced(traced));
        for seen in traced.iter().flatten() {
            let same = |f: &&mut Finding| (f.kind, &f.object) == (seen.kind, &seen.object);
            if let Some(said) = self.out.iter_mut().find(same) {
                said.evidence = Evidence::Observed;
            } else if clues.is_empty() && self.out.len() < FINDINGS_MAX {
                // Programs try many things and go on without; only of one that says nothing it is the best guess.
                self.out.push(seen.clone());
            }
        }
        (self.out, traced)
    }

    /// What the traced calls were refused for, the latest first.
    fn traced(&self, all: &[Traced]) -> Vec<Finding> {
        let mut out: Vec<Finding> = Vec::new();
        for traced in all.iter().rev() {
            let complaint = match traced.errno {
                libc::EROFS => Complaint::ReadOnly,
                libc::ENOENT => Complaint::Missing,
                libc::EBUSY => Complaint::Busy,
                libc::ENOSPC => Complaint::NoSpace,
                libc::EPERM => Complaint::NotPermitted,
                _ => Complaint::Denied,
            };
            let call = Arch::NATIVE.name(traced.nr).unwrap_or_default();
            // A refusal of the filter was seen as such, and says what it is about.
            if complaint == Complaint::NotPermitted && self.held {
                continue;
            }
            let line = call.as_bytes();
            let clue = Clue { complaint: Some(complaint), names: vec![&traced.path], line };
            let Some(Found { protection, kind, object, what, grant }) = self.explain(&clue) else { continue };
            if out.len() < FINDINGS_MAX && !out.iter().any(|f| f.kind == kind && f.object == object) {
                out.push(Finding { protection, kind, object, evidence: Evidence::Observed, what, grant });
            }
        }
        out
    }

    fn add(&mut self, found: Found, evidence: Evidence) {
        let Found { protection, kind, object, what, grant } = found;
        let known = self.out.iter().any(|f| f.kind == kind && (f.object == object || object.is_none()));
        if !known && self.out.len() < FINDINGS_MAX {
            self.out.push(Finding { protection, kind, object, evidence, what, grant });
        }
    }

    // ---- what was observed -------------------------------------------------------------------

    fn limits(&mut self, end: ToolEnd) {
        if let Some(hit) = &self.report.limit {
            let (protection, shown) = match hit.name {
                "memory" => (Protection::LimitMemory.key(), ByteSize(hit.configured).to_string()),
                "disk" => (Protection::LimitDisk.key(), ByteSize(hit.configured).to_string()),
                "wall" => ("limits", Millis(hit.configured).to_string()),
                _ => ("limits", ByteSize(hit.configured).to_string()),
            };
            let key = ForModel::new("limits.").word(&hit.name);
            let found = limit(protection, key, &shown);
            self.add(found, Evidence::Observed);
        }
        if end.signal == Some(libc::SIGSYS as u8) {
            let what = ForModel::new("was made through another architecture's entry, which kills");
            let object = Some(ForModel::new("a system call"));
            let protection = Protection::Seccomp.key();
            self.add(Found { protection, kind: Kind::Call, object, what, grant: None }, Evidence::Observed);
        }
        let file_size = self.plan.containment.limits.file_size;
        if end.signal == Some(libc::SIGXFSZ as u8)
            && let Some(bytes) = file_size
        {
            let found = limit("limits", ForModel::new("limits.file_size"), &ByteSize(bytes).to_string());
            self.add(found, Evidence::Observed);
        }
    }

    /// Refused calls that explain the failure: those that no program makes without needing them, and the others when
    /// the command complained in the words of their errno, or said nothing at all.
    fn calls(&mut self, end: ToolEnd, clues: &[Clue<'_>]) {
        let says = |complaint| clues.iter().any(|clue| clue.complaint == Some(complaint));
        for refusal in &self.report.witnessed.refused {
            let matching = match answer_of(self.plan, refusal) {
                libc::ENOSYS => says(Complaint::NotImplemented),
                libc::EAFNOSUPPORT => says(Complaint::NoFamily),
                _ => says(Complaint::NotPermitted) || says(Complaint::Denied),
            };
            let killed = end.signal.is_some();
            if refusal.is_deliberate() || matching || clues.is_empty() && !killed {
                let found = self.call(refusal);
                self.add(found, Evidence::Observed);
            }
        }
    }

    fn call(&self, refusal: &Refusal) -> Found {
        let seccomp = &self.plan.containment.seccomp;
        let object = Some(ForModel::new("").word(&refusal.shown()));
        let (what, grant) = match refusal.remedy(&seccomp.request()) {
            Remedy::Never(why) => (ForModel::new("is refused by the system-call filter: ").word(&why), None),
            Remedy::Allow => {
                let name = refusal.name().unwrap_or_default();
                let key = ForModel::new("seccomp.allow = [\"...\", \"").word(&name).ours("\"]");
                (ForModel::new("is not among the calls that the profile allows"), Some(by_key(key)))
            }
            Remedy::Set(set) => {
                let key = ForModel::new("seccomp.sets = [\"...\", \"").word(&set).ours("\"]");
                let what =
                    ForModel::new("is of the set `").word(&set).ours("`, which the profile does not allow");
                (what, Some(by_key(key)))
            }
        };
        Found { protection: Protection::Seccomp.key(), kind: Kind::Call, object, what, grant }
    }

    // ---- what the command said ---------------------------------------------------------------

    fn explain(&self, clue: &Clue<'_>) -> Option<Found> {
        let by_complaint = match clue.complaint {
            Some(Complaint::ReadOnly) => self.read_only(clue),
            Some(Complaint::Denied) => self.denied(clue),
            Some(Complaint::NotPermitted) => self.not_permitted(clue),
            Some(Complaint::Missing) => self.missing(clue),
            Some(Complaint::CommandNotFound) => {
                self.first_name(clue, |name| self.program(name)).or_else(|| self.missing(clue))
            }
            Some(Complaint::CrossDevice) => self.cross_device(clue),
            Some(Complaint::Busy) => self.busy(clue),
            Some(Complaint::NoSpace) => self.no_space(clue),
            Some(Complaint::FileTooLarge) => {
                let bytes = self.plan.containment.limits.file_size?;
                Some(limit("limits", ForModel::new("limits.file_size"), &ByteSize(bytes).to_string()))
            }
            Some(Complaint::TooManyFiles) => {
                let n = self.plan.containment.limits.open_files;
                Some(limit("limits", ForModel::new("limits.open_files"), &n.to_string()))
            }
            Some(Complaint::NoProcess) => self.no_process(),
            Some(Complaint::NoNetwork) => self.no_network(clue),
            Some(Complaint::ConnectionRefused) => self.connection_refused(clue),
            Some(Complaint::NoFamily | Complaint::NotImplemented) => self.named_call(clue),
            Some(Complaint::NoKey) => self.no_key(),
            Some(Complaint::NoNewPrivileges) => Some(Found {
                protection: Protection::Capabilities.key(),
                kind: Kind::Privilege,
                object: None,
                what: ForModel::new(
                    "no program gains privileges inside: set-id bits and file capabilities do nothing",
                ),
                grant: None,
            }),
            // A refused call says it better.
            Some(Complaint::NotRoot) if self.out.iter().any(|f| f.kind == Kind::Call) => None,
            Some(Complaint::NotRoot) => self.not_root(None),
            None => None,
        };
        // An empty file in a secret's place makes programs fail in ways of their own.
        by_complaint.or_else(|| {
            self.first_path(clue, |_, place, _| match place {
                Place::Hidden { at } => Some(self.hidden(at)),
                _ => None,
            })
        })
    }

    /// The first finding about one of the clue's names.
    fn first_name(&self, clue: &Clue<'_>, find: impl Fn(&[u8]) -> Option<Found>) -> Option<Found> {
        clue.names.iter().find_map(|name| find(name))
    }

    /// The first finding about one of the clue's names as a path: as it was named, what is there, and where that is
    /// once the root's own links are followed.
    fn first_path<'s>(
        &'s self,
        clue: &Clue<'_>,
        find: impl Fn(&SandboxPath, &Place<'s>, &SandboxPath) -> Option<Found>,
    ) -> Option<Found> {
        self.first_name(clue, |name| {
            let named =
                place::absolute(name.strip_prefix(b"file://").unwrap_or(name), &self.plan.command.cwd)?;
            let (place, real) = place::at(&self.plan.containment, &named);
            find(&named, &place, &real)
        })
    }

    fn read_only(&self, clue: &Clue<'_>) -> Option<Found> {
        let found = self.first_path(clue, |named, place, real| match place {
            Place::Hidden { at } => Some(self.hidden(at)),
            Place::Protected { at } => Some(self.protected(at, named)),
            Place::Tree { at, source, use_: Use::Read, .. } => Some(self.tree(named, at, source.idmap, real)),
            Place::Own | Place::Nowhere | Place::Proc | Place::Dev => Some(self.root(named, place, real)),
            Place::Tree { .. } | Place::Private { .. } => None,
        });
        found.or_else(|| self.by_suffix(clue)).or_else(|| {
            // Every read-only mount inside is the sandbox's; a line that only talks about one names nothing.
            let ends = clue.line.trim_ascii_end().to_ascii_lowercase().ends_with(b": read-only file system");
            let what = ForModel::new("something that the command wrote to is read-only inside");
            ends.then(|| mounts(Kind::ReadOnly, None, what, None))
        })
    }

    /// Hidden and protected places by the end of a path that was said from another directory.
    fn by_suffix(&self, clue: &Clue<'_>) -> Option<Found> {
        let c = &self.plan.containment;
        self.first_name(clue, |name| {
            let at = place::by_suffix(c, name)?;
            Some(match place::at(c, at).0 {
                Place::Hidden { at } => self.hidden(at),
                _ => self.protected(at, at),
            })
        })
    }

    fn hidden(&self, at: &SandboxPath) -> Found {
        let is_dir = place::hidden_kind(&self.plan.containment, at) == Some(Object::Dir);
        let what =
            if is_dir { "is hidden: an empty directory inside" } else { "is hidden: an empty file inside" };
        let pattern = self.pattern(&self.policy.workspace.hide, at);
        let key = pattern.map(|pattern| ForModel::new("workspace.hide without \"").named(pattern).ours("\""));
        mounts(Kind::Hidden, Some(self.shown(at)), ForModel::new(what), key.map(by_key))
    }

    fn protected(&self, at: &SandboxPath, named: &SandboxPath) -> Found {
        let name = at.as_path().file_name().map_or(&b""[..], |name| name.as_bytes());
        let mut what = ForModel::new("is protected: read-only inside");
        if at.as_path().parent().is_some_and(|dir| dir.ends_with(".git")) {
            what = match name {
                b"config" => what.ours(
                    ", so git cannot write its configuration (`git -c NAME=VALUE` and `git config --global` work)",
                ),
                b"hooks" => what.ours(", so git cannot install hooks"),
                _ => what,
            };
        }
        let pattern = self.pattern(&self.policy.workspace.protect, at);
        let key =
            pattern.map(|pattern| ForModel::new("workspace.protect without \"").named(pattern).ours("\""));
        let object = if named.is_within(at) { named } else { at };
        mounts(Kind::Protected, Some(self.shown(object)), what, key.map(by_key))
    }

    /// The pattern of the profile that `at` is held by.
    fn pattern<'p>(&self, patterns: &'p [crate::base::RelPath], at: &SandboxPath) -> Option<&'p [u8]> {
        let fits = |pattern: &&crate::base::RelPath| {
            let (mut parts, mut path) = (pattern.as_path().iter().rev(), at.as_path().iter().rev());
            parts.all(|part| path.next().is_some_and(|name| name_matches(part.as_bytes(), name.as_bytes())))
        };
        patterns.iter().find(fits).map(crate::base::RelPath::as_bytes)
    }

    /// A host tree that can only be read.
    fn tree(&self, named: &SandboxPath, at: &SandboxPath, shared: bool, real: &SandboxPath) -> Found {
        let object = Some(self.shown(named));
        if !shared {
            let system = ["/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64"];
            if system.iter().any(|dir| real.as_path().starts_with(dir)) {
                let what = ForModel::new("is of the system, which is read-only inside");
                return mounts(Kind::ReadOnly, object, what, None);
            }
            let what = ForModel::new("is of a toolchain, which is read-only inside");
            let grant = self.existing_above(real, at).and_then(|dir| self.flag("--rw", &dir));
            return mounts(Kind::ReadOnly, object, what, grant);
        }
        if self.plan.command.cwd.is_within(at) {
            let what = ForModel::new("is in the workspace, which is read-only under this profile");
            let grant = match (self.policy.workspace.access, self.is_built_in()) {
                (Access::Ro, true) => Some(by_profile(ForModel::new("--profile offline"))),
                _ => Some(by_key(ForModel::new("workspace.access = \"rw\""))),
            };
            return mounts(Kind::ReadOnly, object, what, grant);
        }
        let what = ForModel::new("is in a tree that was given read-only");
        let grant = self.flag("--rw", at).map(|grant| Grant {
            text: ForModel::new("").word(&grant.text).ours(" instead of --ro"),
            ..grant
        });
        mounts(Kind::ReadOnly, object, what, grant)
    }

    /// The nearest directory above `path`, and strictly below `top`, that the host has.
    fn existing_above(&self, path: &SandboxPath, top: &SandboxPath) -> Option<SandboxPath> {
        let mut dir = path.parent();
        while let Some(at) = dir.filter(|at| at != top && at.is_within(top)) {
            let here = HostPath::new(at.as_path()).ok()?;
            if self.host.look(&here).is_some_and(|seen| seen.kind == Object::Dir) {
                return Some(at);
            }
            dir = at.parent();
        }
        None
    }

    /// A place in the root itself, which holds only what the plan puts there.
    fn root(&self, named: &SandboxPath, place: &Place<'_>, real: &SandboxPath) -> Found {
        let object = Some(self.shown(named));
        match place {
            Place::Proc => {
                let what = ForModel::new("is procfs, whose settings are read-only inside");
                Found { protection: Protection::Proc.key(), kind: Kind::Proc, object, what, grant: None }
            }
            Place::Dev => {
                mounts(Kind::ReadOnly, object, ForModel::new("is in a minimal /dev of its own"), None)
            }
            Place::Own => {
                let what = ForModel::new("is a file of the sandbox's own making");
                mounts(Kind::ReadOnly, object, what, None)
            }
            _ => {
                let what = ForModel::new("is not in the workspace, and nothing writable is mounted there");
                let grant =
                    self.existing_above(real, &SandboxPath::root()).and_then(|dir| self.flag("--rw", &dir));
                mounts(Kind::ReadOnly, object, what, grant)
            }
        }
    }

    fn denied(&self, clue: &Clue<'_>) -> Option<Found> {
        self.first_path(clue, |named, place, real| match place {
            Place::Hidden { at } => Some(self.hidden(at)),
            Place::Proc => self.closed(named),
            Place::Own if self.plan.containment.mode == Mode::Privileged => {
                Some(self.root(named, place, real))
            }
            Place::Tree { at, source, host, use_ } if self.plan.containment.mode == Mode::Privileged => {
                let seen = self.host.look(host)?;
                // Everybody may read it, and so it was to be written: root could, outside.
                let readable = if seen.kind == Object::Dir { 0o5 } else { 0o4 };
                if *use_ == Use::Read
                    && !source.idmap
                    && seen.mode & readable == readable
                    && !executed(clue.line)
                {
                    return Some(self.tree(named, at, source.idmap, real));
                }
                // The command has the rights of the workspace's owner there, and elsewhere those of anybody.
                let (mine, bits) = match source.idmap && seen.uid == source.fact.uid {
                    true => (true, seen.mode >> 6),
                    false => (false, seen.mode),
                };
                let wants = if seen.kind == Object::Dir { 0o5 } else { 0o4 };
                let what = ForModel::new("belongs to another user than the command's");
                let foreign = !mine && bits & wants != wants || !mine && source.idmap && bits & 0o2 == 0;
                let object = Some(self.shown(named));
                let protection = Protection::Ids.key();
                foreign.then_some(Found { protection, kind: Kind::Identity, object, what, grant: None })
            }
            _ => None,
        })
    }

    /// An entry of procfs that is not the command's own.
    fn closed(&self, named: &SandboxPath) -> Option<Found> {
        let own = ["/proc/self", "/proc/thread-self"].iter().any(|dir| named.as_path().starts_with(dir));
        let what = ForModel::new("is of another process or of the kernel, which is closed inside");
        let (object, protection) = (Some(self.shown(named)), Protection::Proc.key());
        (!own).then_some(Found { protection, kind: Kind::Proc, object, what, grant: None })
    }

    fn not_permitted(&self, clue: &Clue<'_>) -> Option<Found> {
        let in_proc = self.first_path(clue, |named, place, _| match place {
            Place::Proc => self.closed(named),
            _ => None,
        });
        if in_proc.is_some() {
            return in_proc;
        }
        let lower = clue.line.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| find(&lower, word.as_bytes()).is_some());
        if says(&["kill:", "kill ("]) {
            let what = ForModel::new("a process outside the command's own tree cannot be signalled");
            let protection = Protection::LandlockScope.key();
            return Some(Found { protection, kind: Kind::Privilege, object: None, what, grant: None });
        }
        if let Some(found) = self.named_call(clue) {
            return Some(found);
        }
        if says(&["chown", "chgrp", "ownership", "changing group"]) {
            return self.not_root(clue.names.first().copied());
        }
        None
    }

    /// What only root may do: with a caller who is root it is the sandbox that takes it away.
    fn not_root(&self, object: Option<&[u8]>) -> Option<Found> {
        let what =
            ForModel::new("only root may do this, and the command is an ordinary user without capabilities");
        let object = object.map(|name| ForModel::new("").named(name));
        let protection = Protection::Capabilities.key();
        let found = Found { protection, kind: Kind::Privilege, object, what, grant: None };
        (self.plan.containment.mode == Mode::Privileged).then_some(found)
    }

    /// A refused call that the line names. With a listener it would have been seen, unless nobody is told of it.
    fn named_call(&self, clue: &Clue<'_>) -> Option<Found> {
        let request = self.plan.containment.seccomp.request();
        let call = |name: &str| -> Option<Refusal> {
            let nr = Arch::NATIVE.number(name)?;
            // Without a flag it does nothing, and with any of them it is refused.
            let args = if name == "unshare" { [u64::MAX; 6] } else { [0; 6] };
            let bare = Call { nr, arch: Arch::NATIVE.audit(), args };
            let filter = &self.plan.containment.seccomp.filter;
            let unseen = if self.held { &filter.asking } else { &filter.plain };
            let refused = matches!(unseen.verdict(&bare), Ok(Answer::Errno(_)));
            refused.then(|| Refusal { args: [0; 4], ..Refusal::of(&bare, request.network) })
        };
        let words = clue.line.split(|b| !(b.is_ascii_alphanumeric() || *b == b'_'));
        let named = words.filter_map(|word| std::str::from_utf8(word).ok()).find_map(|word| {
            let word = word.to_ascii_lowercase();
            let known = TOOLS.iter().find(|(tool, _)| *tool == word).map(|(_, call)| *call);
            call(known.unwrap_or(&word))
        })?;
        Some(self.call(&named))
    }

    fn missing(&self, clue: &Clue<'_>) -> Option<Found> {
        let by_path = self.first_path(clue, |named, place, real| match place {
            Place::Hidden { at } => Some(self.hidden(at)),
            Place::Tree { host, .. } => {
                // A link that leads out of what is shown.
                let to = self.host.look(host)?.link?;
                let target = place::absolute(to.as_bytes(), &real.parent()?)?;
                let (Place::Nowhere | Place::Private { .. }, target) =
                    place::at(&self.plan.containment, &target)
                else {
                    return None;
                };
                self.absent(named, &target)
            }
            Place::Private { at, .. } => self.private(named, at, real),
            Place::Nowhere | Place::Dev => self.absent(named, real),
            Place::Protected { .. } | Place::Own | Place::Proc => None,
        });
        by_path.or_else(|| self.first_name(clue, |name| self.program(name)))
    }

    /// Something that the host has at `real` and that is not shown; `named` says what led there.
    fn absent(&self, named: &SandboxPath, real: &SandboxPath) -> Option<Found> {
        let seen = self.host.look(&HostPath::new(real.as_path()).ok()?)?;
        let object = Some(self.shown(named));
        let own = ["/dev", "/sys", "/proc"].iter().find(|dir| real.as_path().starts_with(dir));
        if own.is_some() {
            let what = ForModel::new("is on the host, and kernel interfaces are not shown");
            return Some(mounts(Kind::Absent, object, what, None));
        }
        let what = match seen.kind {
            Object::Dir => ForModel::new("is a directory of the host that is not shown"),
            _ => ForModel::new("is on the host, and not shown"),
        };
        Some(mounts(Kind::Absent, object, what, self.flag("--ro", real)))
    }

    /// Something below a directory that is the command's own, where the host's has it.
    fn private(&self, named: &SandboxPath, at: &SandboxPath, real: &SandboxPath) -> Option<Found> {
        let object = Some(self.shown(named));
        if *at == crate::plan::resolve::home(self.policy.user) {
            let below = real.below(at)?;
            self.host.look(&self.host.home()?.join(&below))?;
            let what = ForModel::new("is in the caller's home; the command's home is its own");
            let word = shell(below.as_bytes());
            let grant = word.filter(|_| !self.policy.grants.ro.is_empty()).map(|word| {
                let text = ForModel::new("--ro ~/").named(word.as_bytes()).ours(":").word(real);
                Grant { by: By::Flag, text }
            });
            return Some(mounts(Kind::Private, object, what, grant));
        }
        self.host.look(&HostPath::new(real.as_path()).ok()?)?;
        let what = ForModel::new("is on the host; the command's ").word(at).ours(" is its own");
        Some(mounts(Kind::Private, object, what, self.flag("--ro", real)))
    }

    /// GnuPG's keys, which it does not look for anywhere else. That the caller has some is no proof that one of them was meant.
    fn no_key(&self) -> Option<Found> {
        let rel = |path| crate::base::RelPath::new(path).ok();
        let home = crate::plan::resolve::home(self.policy.user);
        let (keys, secret) = (home.join(&rel(".gnupg")?), home.join(&rel(".gnupg/private-keys-v1.d")?));
        let (Place::Private { .. }, real) = place::at(&self.plan.containment, &secret) else { return None };
        // Read-only it could not be used, and to hand it over is more than a signature needs.
        let found = self.private(&secret, &home, &real)?;
        Some(Found { object: Some(self.shown(&keys)), grant: None, ..found })
    }

    /// A program that the caller would find and the command does not.
    fn program(&self, name: &[u8]) -> Option<Found> {
        let there = self.host.program(OsStr::from_bytes(name));
        let shown = |path: &HostPath| {
            matches!(place::at(&self.plan.containment, &path.as_sandbox()).0, Place::Tree { .. } | Place::Own)
        };
        if there.is_empty() || there.iter().any(shown) {
            return None;
        }
        let what = ForModel::new("is a program on the caller's PATH, in a directory that is not shown");
        let grant = if self.policy.root.toolchains {
            None
        } else if self.is_built_in() {
            Some(by_profile(ForModel::new("--profile offline")))
        } else {
            Some(by_key(ForModel::new("root.toolchains = true")))
        };
        Some(mounts(Kind::Absent, Some(ForModel::new("").named(name)), what, grant))
    }

    fn busy(&self, clue: &Clue<'_>) -> Option<Found> {
        let c = &self.plan.containment;
        let found = self.first_path(clue, |named, place, real| match place {
            Place::Protected { at } => Some(self.protected(at, named)),
            Place::Hidden { at } => Some(self.hidden(at)),
            _ if place::is_mount_point(c, real) => {
                let held = c.fs.iter().any(|op| {
                    matches!(op, FsOp::Protect { .. } | FsOp::Mask { .. }) && op.at().is_within(real)
                });
                let what = if held {
                    "holds protected or hidden names, and can be neither moved nor removed"
                } else {
                    "is a mount point, and can be neither moved nor removed"
                };
                Some(mounts(Kind::Mount, Some(self.shown(named)), ForModel::new(what), None))
            }
            _ => None,
        });
        found.or_else(|| self.by_suffix(clue))
    }

    fn cross_device(&self, clue: &Clue<'_>) -> Option<Found> {
        let c = &self.plan.containment;
        let paths: Vec<SandboxPath> =
            clue.names.iter().filter_map(|name| place::absolute(name, &self.plan.command.cwd)).collect();
        let mount = |path: &SandboxPath| place::mount_of(c, &place::at(c, path).1);
        let (first, second) = (paths.first()?, paths.get(1)?);
        let (from, to) = (mount(first), mount(second));
        if from == to {
            return None;
        }
        // Within one tree only what protects or hides something makes a boundary.
        let inner = [(first, from), (second, to)].into_iter().find_map(|(path, mount)| {
            let held = c.fs.iter().any(|op| {
                Some(op.at()) == mount
                    && matches!(op, FsOp::Pin { .. } | FsOp::Protect { .. } | FsOp::Mask { .. })
            });
            held.then_some(path)
        });
        let (object, what) = match inner {
            Some(path) => (
                path,
                "lies at a boundary that protects or hides names: it can be copied, not renamed or linked",
            ),
            None => (second, "lies on another mount: it can be copied there, not renamed or linked"),
        };
        Some(mounts(Kind::Mount, Some(self.shown(object)), ForModel::new(what), None))
    }

    fn no_space(&self, clue: &Clue<'_>) -> Option<Found> {
        let limits = &self.plan.containment.limits;
        self.first_path(clue, |_, place, _| match place {
            Place::Private { scratch: true, .. } | Place::Tree { use_: Use::Copy, .. } => {
                Some(limit("limits", ForModel::new("limits.scratch"), &ByteSize(limits.scratch).to_string()))
            }
            Place::Private { at, .. } => {
                let what = ForModel::new("is full: it is a tmpfs of a size that was given to it");
                let grant = Grant { by: By::Flag, text: ForModel::new("--tmpfs with a larger SIZE") };
                let object = Some(self.shown(at));
                Some(Found { protection: "limits", kind: Kind::Limit, object, what, grant: Some(grant) })
            }
            _ => None,
        })
    }

    fn no_process(&self) -> Option<Found> {
        let most = self.plan.containment.limits.processes?;
        let peak = self.report.usage.as_ref()?.processes_peak.value?;
        let protection = Protection::LimitProcesses.key();
        (peak >= most).then(|| limit(protection, ForModel::new("limits.processes"), &most.to_string()))
    }

    fn no_network(&self, clue: &Clue<'_>) -> Option<Found> {
        if !self.plan.containment.own_network {
            return None;
        }
        let host = host_in(clue);
        // Names that no network resolves (RFC 6761), and those that need none.
        let last = host.and_then(|host| host.split(|b| *b == b'.').next_back());
        if matches!(last, Some(b"invalid" | b"localhost")) {
            return None;
        }
        let what = ForModel::new("cannot be reached: the command has no network but its own loopback");
        let object = host.map(|host| ForModel::new("").named(host));
        Some(self.network(object, what))
    }

    /// A port on loopback is the command's own; that the host serves it says that another was meant.
    fn connection_refused(&self, clue: &Clue<'_>) -> Option<Found> {
        let port = port_in(clue.line)?;
        if !self.plan.containment.own_network || !self.host.serves(port) {
            return None;
        }
        let what = ForModel::new("is served on the host, and the command's loopback is its own");
        let object = Some(ForModel::new("port ").word(&port));
        Some(self.network(object, what))
    }

    fn network(&self, object: Option<ForModel>, what: ForModel) -> Found {
        let grant = Some(by_profile(ForModel::new("--profile open")));
        Found { protection: Protection::Network.key(), kind: Kind::Network, object, what, grant }
    }

    // ---- words -------------------------------------------------------------------------------

    /// `path` as the command would write it.
    fn shown(&self, path: &SandboxPath) -> ForModel {
        match path.below(&self.plan.command.cwd) {
            Some(below) => ForModel::new("").named(below.as_bytes()),
            None => ForModel::new("").named(path.as_bytes()),
        }
    }

    fn is_built_in(&self) -> bool {
        crate::policy::embedded_names().contains(&self.policy.name.as_str())
    }

    /// A flag that shows `path`, where one can be written that means it, under a profile that permits it.
    fn flag(&self, flag: &'static str, path: &SandboxPath) -> Option<Grant> {
        let granted = if flag == "--rw" { &self.policy.grants.rw } else { &self.policy.grants.ro };
        let here = HostPath::new(path.as_path()).ok()?;
        let text = |before: &'static str| {
            Some(ForModel::new(before).ours(flag).ours(" ").named(shell(path.as_bytes())?.as_bytes()))
        };
        if granted.iter().any(|dir| here.is_within(dir)) {
            return Some(Grant { by: By::Flag, text: text("")? });
        }
        // What `strict` and `read-only` never give, `offline` may.
        self.is_built_in().then(|| text("--profile offline ").map(by_profile)).flatten()
    }
}

/// Programs that are named differently from the call that they make.
const TOOLS: [(&str, &str); 10] = [
    ("umount", "umount2"),
    ("nsenter", "setns"),
    ("strace", "ptrace"),
    ("gdb", "ptrace"),
    ("hostname", "sethostname"),
    ("date", "clock_settime"),
    ("dmesg", "syslog"),
    ("perf", "perf_event_open"),
    ("insmod", "init_module"),
    ("keyctl", "keyctl"),
];

fn mounts(kind: Kind, object: Option<ForModel>, what: ForModel, grant: Option<Grant>) -> Found {
    Found { protection: Protection::Mounts.key(), kind, object, what, grant }
}

fn limit(protection: &'static str, key: ForModel, configured: &str) -> Found {
    let what = ForModel::new("was reached: ").word(&configured);
    let text = ForModel::new("").word(&key).ours(" above ").word(&configured);
    Found { protection, kind: Kind::Limit, object: Some(key), what, grant: Some(by_key(text)) }
}

fn by_key(text: ForModel) -> Grant {
    Grant { by: By::Key, text }
}

fn by_profile(text: ForModel) -> Grant {
    Grant { by: By::Profile, text }
}

/// `path` as one word of a shell's and of a flag's, whose last colon separates; `None` for one that is not plainly
/// written: what is offered is copied and run.
fn shell(path: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(path).ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%,=".contains(c);
    if text.chars().all(plain) {
        return Some(text.to_owned());
    }
    let quotable = |c: char| plain(c) || c == ' ' || c.is_alphanumeric();
    text.chars().all(quotable).then(|| format!("'{text}'"))
}

/// The host that a line about the network names.
fn host_in<'a>(clue: &Clue<'a>) -> Option<&'a [u8]> {
    let line = clue.line;
    let is_host = |word: &[u8]| {
        let known = word.contains(&b'.') && !word.contains(&b'/') || word == b"localhost";
        // `socket.gaierror: …`
        let lower = word.to_ascii_lowercase();
        let is_error = lower.ends_with(b"error") || lower.ends_with(b"exception");
        known
            && !is_error
            && word.iter().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(b))
            && word.first().is_some_and(u8::is_ascii_alphanumeric)
    };
    // `https://HOST/…`, `user@HOST:…`
    let after = |mark: &[u8]| {
        let rest = &line[find(line, mark)? + mark.len()..];
        let end = rest
            .iter()
            .position(|b| !(b.is_ascii_alphanumeric() || b".-_".contains(b)))
            .unwrap_or(rest.len());
        Some(&rest[..end]).filter(|host| !host.is_empty())
    };
    let words = line.split(|b| b.is_ascii_whitespace() || b"'\"`()[]<>,;:=".contains(b));
    after(b"://")
        .or_else(|| after(b"@"))
        .or_else(|| words.map(|word| word.strip_suffix(b".").unwrap_or(word)).rfind(|word| is_host(word)))
}

/// Whether a line reads as if something was to be executed or listed, not written.
fn executed(line: &[u8]) -> bool {
    let lower = line.to_ascii_lowercase();
    ["exec", "line ", "command", "spawn", "not open directory", "opening directory"]
        .iter()
        .any(|word| find(&lower, word.as_bytes()).is_some())
}

/// The port that a line about loopback names.
fn port_in(line: &[u8]) -> Option<u16> {
    let lower = line.to_ascii_lowercase();
    let local = [&b"127.0.0.1"[..], b"localhost", b"::1", b"loopback"]
        .iter()
        .any(|name| find(&lower, name).is_some());
    let number = |rest: &[u8]| -> Option<u16> {
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    };
    let by_word = find_word(&lower, b"port").and_then(|at| {
        let rest = lower[at + 4..].iter().position(u8::is_ascii_digit)?;
        (rest <= 3).then(|| number(&lower[at + 4 + rest..])).flatten()
    });
    let by_colon = || {
        let mut ports = lower
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b':')
            .filter_map(|(at, _)| number(&lower[at + 1..]));
        ports.find(|port| *port > 1)
    };
    // bash: `/dev/tcp/127.0.0.1/80: Connection refused`
    let by_device = || {
        let rest = &lower[find(&lower, b"/dev/tcp/")? + 9..];
        number(&rest[rest.iter().position(|b| *b == b'/')? + 1..])
    };
    local.then(|| by_word.or_else(by_device).or_else(by_colon)).flatten()
}

//! What is wrong with a profile that can be loaded: rules that give away the host, contradict or hide one another, or
//! make every run fail. Judges what the files come to together, and names the file and place that said it. Pure:
//! what lies on the host is asked through [`Look`], and a fact that is not known is nothing to complain of.
//!
//! A profile that cannot be loaded is no finding: see [`super::load()`].

mod env;
mod mounts;
mod places;
mod settings;
#[cfg(test)]
mod tests;
mod workspace;

use super::calls::Calls;
use super::error::PolicyError;
use super::load::{Candidate, Layers, Library, layers};
use super::types::{Origin, Policy};
use crate::base::HostPath;
use crate::manifest::{At, ProfileDoc};
use serde::Serialize;
use std::sync::LazyLock;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// To know: it costs something, or says the same twice.
    Note,
    /// Probably not what was meant, or weaker than it looks.
    Warning,
    /// Gives the host away, or makes every run fail.
    Error,
}

impl Severity {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One rule of the linter.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its code, which never means anything else.
    pub code: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The severities that a finding of it can have, the usual one first.
    pub severities: &'static [Severity],
    /// What it means.
    pub about: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

macro_rules! rules {
    ($($id:ident = $code:literal $name:literal [$($severity:ident),+] $about:literal, $remedy:literal;)+) => {
        /// The rules, in the order of their codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $about] $id),+ }

        /// All of them.
        pub const RULES: &[Rule] = &[$(Rule {
            code: $code,
            name: $name,
            severities: &[$(Severity::$severity),+],
            about: $about,
            remedy: $remedy,
        }),+];
    };
}

rules! {
    // What a mount gives away.
    ContainerEngine = "SL001" "container-engine-socket" [Error]
        "who can talk to a container engine or virtual machine manager starts programs outside, with any mount: it is root on the host, and a read-only mount does not change that",
        "leave the mount out, or bind something that does not hold the socket";
    Session = "SL002" "session-socket" [Error]
        "a session bus, a service manager, a display or a key agent does what its client says outside, as the caller; a read-only mount does not change that",
        "leave the mount out, or bind something that does not hold the socket";
    UnknownSocket = "SL003" "socket" [Warning]
        "a socket reaches whatever listens on the host; a read-only mount does not change that",
        "bind it only if its server treats every client as hostile";
    Own = "SL004" "stockade-own" [Error]
        "Stockade's state holds records, leases and keys; who writes its profiles decides about the next run",
        "leave the mount out, or bind a directory that lies elsewhere";
    OnPath = "SL005" "writable-on-path" [Error, Warning]
        "what the command puts into a directory of PATH is run outside, by the caller, in the place of another program",
        "mount it read-only, or take the directory out of PATH";
    RunsOutside = "SL006" "writable-runs-outside" [Error]
        "programs, units, hooks and start files that the command changes are run outside, with more rights than it has",
        "mount it read-only, or bind only the part that has to be written";
    KernelInterface = "SL007" "kernel-interface" [Error, Warning]
        "procfs, sysfs and cgroupfs of the host show and change the kernel's own state: writable, the command lifts its limits or acts on the host's processes",
        "leave the mount out: the executor has its own /proc, and limits are set by `[limits]`";
    WholeHome = "SL008" "whole-home" [Error]
        "a home holds keys, tokens, histories and start files by names that no list knows",
        "bind the directories that are needed, one by one";
    Secret = "SL009" "secret-files" [Warning]
        "keys, credentials and password files are readable by the command, and by whoever gets its output",
        "leave it out, or mask the part that is secret with a `mask` mount";
    Device = "SL010" "host-device" [Warning]
        "device nodes of the host do not work inside (`nodev`), and where the host cannot map their owner the run is refused",
        "leave it out: the executor has its own /dev with null, zero, random and terminals";
    Temporary = "SL011" "host-temporary" [Warning]
        "temporary files and sockets of every program on the host are in it",
        "leave it out: /tmp, /run and /dev/shm inside are private; `limits.scratch` is their size";
    // Mounts that cannot be, or do not do what they say.
    MountRefused = "SL012" "mount-refused" [Error]
        "every run under this profile is refused",
        "choose another target";
    Source = "SL013" "source-unfit" [Warning]
        "on this host every run under this profile is refused",
        "mend the source, or say `optional = true` if it may be missing";
    BelowMask = "SL014" "below-mask" [Error]
        "what lies below a mask is hidden with it, and nothing can be mounted there: every run is refused",
        "mask the siblings instead, or choose another target";
    ReadOnlyUndone = "SL015" "read-only-undone" [Warning]
        "the same directory is writable under another name, so the read-only mount protects nothing",
        "make the other one read-only too, or nest the read-only one below the other's target";
    Redundant = "SL016" "redundant-entry" [Note]
        "another entry covers it already",
        "leave it out";
    ProtectHidden = "SL017" "protect-and-hide" [Warning]
        "what is in both lists is hidden: it cannot be changed either, and programs that read it find nothing",
        "take it out of one of the two lists";
    LiteralPattern = "SL018" "literal-pattern" [Warning]
        "only `*` is special, and only within one component: every other character stands for itself, so this matches hardly anything",
        "write each name out, or use `*`";
    CostlyPattern = "SL019" "costly-pattern" [Note, Warning]
        "each run lists the directories in which a `*` is to be matched, makes a mount of every match, and is refused when one of them has more than 4096 entries",
        "write the names out, or name the directory as a whole";
    ProtectIncomplete = "SL020" "protect-incomplete" [Warning]
        "the workspace is writable, and names in it that run or decide what runs outside are not held",
        "begin the list with `\"...\"` to keep the inherited names, or protect these as well";
    HideIncomplete = "SL021" "hide-incomplete" [Warning]
        "files that usually hold secrets are readable where a workspace has them",
        "begin the list with `\"...\"` to keep the inherited names, or hide these as well";
    NoEffect = "SL022" "no-effect" [Warning]
        "another key takes the effect away",
        "leave one of the two out";
    // Environment.
    EnvSecret = "SL023" "env-secret" [Error, Warning]
        "everything that runs inside reads its environment, prints it when it fails, and hands it on",
        "leave it out; for the one command that needs it the caller can say `--env NAME`";
    SecretValue = "SL024" "secret-value" [Error]
        "a credential in a profile is in every copy, backup and `policy show` of it",
        "revoke it, take it out, and have the caller give it with `--env NAME`";
    EnvAuthority = "SL025" "env-authority" [Warning]
        "the variable names a socket, display or configuration by which programs act outside; inside it leads nowhere, or to what should not be reached",
        "leave it out";
    EnvCode = "SL026" "env-code" [Warning]
        "the caller's environment chooses code that programs inside load",
        "give it a fixed value in `env.set` instead";
    EnvTwice = "SL027" "env-set-and-passed" [Warning]
        "the value that is set wins, so the caller's is never seen",
        "leave it out of `env.pass` or of `env.set`";
    EnvPath = "SL028" "env-path" [Warning]
        "programs inside find other programs where the command itself can put them, or depending on the directory they are in",
        "name directories below read-only mounts only, absolute, without empty entries";
    EnvName = "SL029" "env-name" [Warning]
        "shells and most programs cannot use a variable of this name",
        "letters, digits and `_`, no digit first";
    // Protections, limits and the rest.
    CorePreferred = "SL030" "core-preferred" [Warning]
        "a run goes on when this part of the boundary cannot be had, and only the result says so",
        "write `\"require\"`";
    Unlimited = "SL031" "unlimited" [Warning, Note]
        "nothing but the host itself ends a command that takes more and more",
        "set a limit; `stockade policy show offline` has one for each";
    LimitsDisagree = "SL032" "limits-disagree" [Warning]
        "one limit is reached before the other can be",
        "raise the one or lower the other";
    MaskOfNothing = "SL033" "mask-of-nothing" [Warning]
        "a mask covers what is there: unless a workspace has it, this one does nothing",
        "leave it out, or mask something that the root has; names in a workspace belong into `workspace.hide`";
    HostNetwork = "SL034" "host-network" [Note]
        "the command reaches whatever the host reaches: services on the host's loopback, metadata services, and abstract sockets where Landlock cannot scope them",
        "use `posture = \"disabled\"` for what needs no network; `require.landlock_scope = \"require\"` closes abstract sockets";
    NoSockets = "SL035" "network-without-calls" [Warning]
        "the network is permitted and no system-call set has a socket to use it with",
        "add the set `network`, or write `loopback = false` and `posture = \"disabled\"`";
    CallRefused = "SL036" "seccomp-refused" [Error]
        "every run under this profile is refused",
        "`docs/profiles.md` lists the sets; a call is written as in its manual page";
    WrongAnswer = "SL037" "seccomp-wrong-answer" [Error]
        "C libraries and runtimes fall back to an older call when this one answers ENOSYS; EPERM they report as a failure, and programs stop working",
        "answer ENOSYS";
    CallSurface = "SL038" "seccomp-surface" [Warning, Note]
        "a call beyond the sets opens more of the kernel, or of other processes inside, to the command",
        "leave it out unless a program fails without it";
    GrantUnreachable = "SL039" "grant-unreachable" [Warning]
        "sources are compared by where they really lie: a link in a grant counts only where nobody but root can have made it",
        "write the directory that it leads to";
    ShadowsBuiltIn = "SL040" "shadows-built-in" [Warning, Note]
        "who asks for the built-in profile by its name gets this file instead",
        "give the file another name";
    Shadowed = "SL041" "profile-shadowed" [Warning]
        "an earlier place has a profile of this name, so this one is never used by its name",
        "rename or remove one of them; `stockade policy list` shows which wins";
    NameDiffers = "SL042" "name-differs" [Warning]
        "results and messages call it otherwise than it is found",
        "leave `name` out, or rename the file";
    OthersWrite = "SL043" "profile-writable" [Error]
        "somebody else decides what commands may do",
        "make the file and its directory your own, and writable for nobody else: chmod go-w";
    KeptCaches = "SL044" "kept-caches" [Note, Warning]
        "what a command writes to a package cache is there again, and built from, at later runs in the same workspace under this profile: one that was led astray can leave a poisoned package there. Other workspaces, profiles of another name and the host's own caches see nothing of it",
        "keep `layer = \"throwaway\"`, or remove the layers (`stockade caches remove`) after a run that is not trusted";
    Intents = "SL045" "granted-to-all" [Warning]
        "what `intents.use` names is open to every command under this profile, whether it needs it or not",
        "name it in `grants.intents`, and let the caller say `--grant` for the one command that needs it";
}

impl Code {
    /// The rule.
    pub fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }
}

/// The file that a finding is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LintFile {
    /// A profile.
    Profile {
        /// Where it came from.
        origin: Origin,
        /// By which name it was found, when by one.
        name: Option<String>,
    },
    /// The list of refused calls in the binary.
    RefusedCalls,
}

impl std::fmt::Display for LintFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Profile { origin: Origin::Embedded, name } => {
                write!(f, "built-in/{}.toml", name.as_deref().unwrap_or_default())
            }
            Self::Profile { origin, .. } => origin.fmt(f),
            Self::RefusedCalls => f.write_str("built-in/seccomp/refused.toml"),
        }
    }
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which rule.
    pub code: Code,
    /// How bad here.
    pub severity: Severity,
    /// In which file.
    pub file: LintFile,
    /// Where in it.
    pub at: Option<At>,
    /// The key, as a dotted path; none when it is about the file as a whole.
    pub key: Option<String>,
    /// What is wrong, safe to show.
    pub message: String,
}

impl Finding {
    /// What findings are sorted by, and by which two are the same.
    fn rank(&self) -> (String, usize, usize, Code, Option<&str>, &str) {
        let (line, column) = self.at.map_or((0, 0), |at| (at.line, at.column));
        (self.file.to_string(), line, column, self.code, self.key.as_deref(), &self.message)
    }
}

/// Sorts findings by file and place, and leaves out those that are there twice.
pub fn sort(findings: &mut Vec<Finding>) {
    findings.sort_by(|a, b| a.rank().cmp(&b.rank()));
    findings.dedup();
}

/// What something on the host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A socket.
    Socket,
    /// A device node.
    Device,
    /// Anything else.
    Other,
}

/// What a path led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its path without any link on it.
    pub real: HostPath,
    /// What it is.
    pub is: Is,
    /// The file system's number, as statfs(2) says it.
    pub fs_magic: u64,
    /// Whether another ordinary user could change it, or what it is called.
    pub others_write: bool,
}

/// Whether there is something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// Nobody could say.
    Unknown,
    /// Nothing.
    Absent,
    /// This.
    There(Seen),
}

/// Looks at the host, with the caller's rights, following links.
pub trait Look {
    /// What is at `path`.
    fn look(&self, path: &HostPath) -> Sight;
}

/// A host of which nothing is known: what is left is what the profile says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blind;

impl Look for Blind {
    fn look(&self, _: &HostPath) -> Sight {
        Sight::Unknown
    }
}

/// What surrounds the profile: facts of the host and the caller.
pub struct Surroundings<'a> {
    /// The host's files.
    pub look: &'a dyn Look,
    /// The caller's home.
    pub home: Option<HostPath>,
    /// The directory of the caller's session (`XDG_RUNTIME_DIR`).
    pub runtime: Option<HostPath>,
    /// Stockade's state directory.
    pub state: Option<HostPath>,
    /// Directories where profiles are looked for.
    pub profiles: Vec<HostPath>,
    /// The caller's PATH.
    pub path: Vec<HostPath>,
    /// Sockets that the caller's environment names, with the variable.
    pub sockets: Vec<(&'static str, HostPath)>,
    /// The workspace that a run would have.
    pub workspace: Option<HostPath>,
    /// The filter's tables.
    pub calls: Calls,
}

/// What is linted: a profile, and what narrows it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The profile.
    pub root: Candidate,
    /// The project's file on top.
    pub project: Option<Candidate>,
    /// The file that is found by the same name before this one.
    pub earlier: Option<Origin>,
}

/// Every finding about `subject`, sorted.
///
/// # Errors
/// When it cannot be loaded.
pub fn lint(
    subject: Subject,
    library: &dyn Library,
    around: &Surroundings<'_>,
) -> Result<Vec<Finding>, PolicyError> {
    let narrowed = subject.project.is_some();
    let layers = layers(subject.root, library, subject.project)?;
    let mut linter = Linter { layers: &layers, root: usize::from(narrowed), around, findings: Vec::new() };
    let policy = &layers.policy;
    mounts::lint(&mut linter, policy);
    workspace::lint(&mut linter, policy);
    env::lint(&mut linter, policy);
    settings::lint(&mut linter, policy);
    settings::file(&mut linter, policy, subject.earlier.as_ref());
    let mut findings = linter.findings;
    sort(&mut findings);
    Ok(findings)
}

/// The profile that says what is usually protected and hidden.
fn reference() -> Option<&'static Policy> {
    static REFERENCE: LazyLock<Option<Policy>> = LazyLock::new(|| {
        let default = Candidate::embedded(super::DEFAULT_PROFILE)?;
        super::load(default, &super::EmbeddedOnly, None, &[]).ok()
    });
    REFERENCE.as_ref()
}

/// The key that stands for a file as a whole: every file has it, and no rule is about it.
const WHOLE: &str = "version";

/// A place in one of the files: its number from the one that has the last word, and a key in it.
#[derive(Debug, Clone)]
struct Spot {
    layer: usize,
    key: String,
}

struct Linter<'a> {
    layers: &'a Layers,
    /// The profile's own file among the layers; a project's is before it.
    root: usize,
    around: &'a Surroundings<'a>,
    findings: Vec<Finding>,
}

impl Linter<'_> {
    /// The file that has the last word on `key`.
    fn layer(&self, key: &str) -> Option<usize> {
        self.layers.links.iter().position(|link| link.file.spans.contains(key))
    }

    fn is_built_in(&self, layer: usize) -> bool {
        self.layers.links[layer].origin == Origin::Embedded
    }

    /// Whether somebody wrote `key` in full sight of what `other` says: in the same file, or on top of it.
    fn said_over(&self, key: &str, other: &str) -> bool {
        match (self.layer(key), self.layer(other)) {
            (Some(layer), Some(other)) => layer <= other && !self.is_built_in(layer),
            (Some(layer), None) => !self.is_built_in(layer),
            (None, _) => false,
        }
    }

    /// The beginning of the profile's file.
    fn start(&self) -> Spot {
        Spot { layer: self.root, key: WHOLE.to_owned() }
    }

    /// The last word on `key`.
    fn key(&self, key: &str) -> Spot {
        self.layer(key).map_or_else(|| self.start(), |layer| Spot { layer, key: key.to_owned() })
    }

    /// The last word on any of `keys`: the one that made them contradict one another.
    fn nearest(&self, keys: &[&str]) -> Spot {
        let said = keys.iter().filter_map(|key| Some((self.layer(key)?, *key)));
        said.min_by_key(|(layer, _)| *layer)
            .map_or_else(|| self.start(), |(layer, key)| Spot { layer, key: key.to_owned() })
    }

    /// The entry of a list that says `bytes`.
    fn entry(&self, list: &str, bytes: &[u8]) -> Spot {
        let found = self.layers.links.iter().enumerate().find_map(|(layer, link)| {
            let n = entries(&link.file.doc, list).iter().position(|entry| *entry == bytes)?;
            Some(Spot { layer, key: format!("{list}[{n}]") })
        });
        found.unwrap_or_else(|| self.key(list))
    }

    /// A key of the mount at `target`; the mount itself where the file does not have the key.
    fn mount(&self, target: &crate::base::SandboxPath, field: &str) -> Spot {
        let found = self.layers.links.iter().enumerate().find_map(|(layer, link)| {
            let n = link.file.doc.mounts.iter().position(|mount| mount.target == *target)?;
            let (whole, part) = (format!("mounts[{n}]"), format!("mounts[{n}].{field}"));
            Some(Spot { layer, key: if link.file.spans.contains(&part) { part } else { whole } })
        });
        found.unwrap_or_else(|| self.start())
    }

    /// Reports with the rule's usual severity.
    fn report(&mut self, code: Code, spot: Spot, message: String) {
        self.report_as(code, code.rule().severities[0], spot, message);
    }

    fn report_as(&mut self, code: Code, severity: Severity, spot: Spot, message: String) {
        debug_assert!(code.rule().severities.contains(&severity), "{code:?} is never a {severity:?}");
        let link = &self.layers.links[spot.layer];
        self.findings.push(Finding {
            code,
            severity,
            file: LintFile::Profile { origin: link.origin.clone(), name: link.found_as.clone() },
            at: link.file.spans.at(&spot.key),
            key: (spot.key != WHOLE).then_some(spot.key),
            message,
        });
    }
}

/// The entries of a list as a file has them.
fn entries<'d>(doc: &'d ProfileDoc, list: &str) -> Vec<&'d [u8]> {
    fn of<'d, T>(list: Option<&'d Vec<T>>, bytes: impl Fn(&'d T) -> &'d [u8]) -> Vec<&'d [u8]> {
        list.into_iter().flatten().map(bytes).collect()
    }
    match list {
        "root.etc" => of(doc.root.etc.as_ref(), |p| p.as_bytes()),
        "workspace.protect" => of(doc.workspace.protect.as_ref(), |p| p.as_bytes()),
        "workspace.hide" => of(doc.workspace.hide.as_ref(), |p| p.as_bytes()),
        "caches.use" => of(doc.caches.tools.as_ref(), |w| w.as_bytes()),
        "intents.use" => of(doc.intents.given.as_ref(), |w| w.as_bytes()),
        "grants.intents" => of(doc.grants.intents.as_ref(), |w| w.as_bytes()),
        "env.pass" => of(doc.env.pass.as_ref(), |w| w.as_bytes()),
        "seccomp.sets" => of(doc.seccomp.sets.as_ref(), |w| w.as_bytes()),
        "seccomp.allow" => of(doc.seccomp.allow.as_ref(), |w| w.as_bytes()),
        "grants.ro" => of(doc.grants.ro.as_ref(), |p| p.as_bytes()),
        "grants.rw" => of(doc.grants.rw.as_ref(), |p| p.as_bytes()),
        "grants.env" => of(doc.grants.env.as_ref(), |w| w.as_bytes()),
        _ => Vec::new(),
    }
}

/// Text of a profile, safe to show.
fn shown(text: &str) -> String {
    crate::base::text::visible(text.as_bytes())
}

/// Up to four of `names`, and how many more there are.
fn some(names: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let first = names.take(SHOWN).collect::<Vec<_>>().join(", ");
    if more == 0 { first } else { format!("{first} and {more} more") }
}

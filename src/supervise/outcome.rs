//! What an execution came to: three kinds of end without overlap, the limit or the boundary that caused
//! it, what was used, and what was enforced.

use crate::base::{Digest, Enforcement};
use crate::plan::Mode;
use crate::plan::seccomp::Refusal;
use crate::sandbox::stage::trace::Traced;
use crate::sandbox::stage::wire::Answers;
use serde::Serialize;

/// Which part of the system an error belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// Arguments, profiles, project files.
    Configuration,
    /// Building or keeping the containment.
    Sandbox,
    /// The command itself could not be started.
    Tool,
    /// The state directory.
    ArtifactStore,
}

impl Boundary {
    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Sandbox => "sandbox",
            Self::Tool => "tool",
            Self::ArtifactStore => "artifact_store",
        }
    }
}

/// An error as data: where, at which step, about what, why, and what to do next. Operator text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Fault {
    /// Stable name of the kind of fault.
    pub code: &'static str,
    /// Which part.
    pub boundary: Boundary,
    /// Which step.
    pub stage: String,
    /// Which path, key or name, made safe to show.
    pub object: Option<String>,
    /// What went wrong.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// 125, 126 or 127.
    #[serde(skip)]
    pub exit_code: u8,
}

impl Fault {
    /// With the remedy for a cause that is the same at every step, in place of the step's own: descriptors that ran
    /// out. Every error of the system carries its number in its text.
    #[must_use]
    pub fn with_common_remedy(mut self) -> Self {
        let says = |errno: i32| self.message.contains(&format!("(os error {errno})"));
        if says(libc::EMFILE) {
            self.hint = Some("raise the limit on open files: ulimit -n 1024".to_owned());
        } else if says(libc::ENFILE) {
            self.hint = Some("the whole host is out of open files: raise the sysctl fs.file-max".to_owned());
        }
        self
    }
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ToolEnd {
    /// Its exit status, when it exited.
    pub exit_code: Option<u8>,
    /// The signal that ended it, when one did.
    pub signal: Option<u8>,
}

impl std::fmt::Display for ToolEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.exit_code, self.signal) {
            (Some(code), _) => write!(f, "the command had exited with {code}"),
            (_, Some(signal)) => write!(f, "the command had been ended by signal {signal}"),
            _ => f.write_str("the command had ended"),
        }
    }
}

/// The three kinds of end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Outcome {
    /// The command ran and ended, by itself, by a limit or by a cancel.
    Finished(ToolEnd),
    /// Nothing of the command ran.
    Refused(Fault),
    /// The containment could not be kept; the command was killed for it.
    Broken(Fault),
}

/// The limit that ended the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LimitHit {
    /// `memory`, `processes`, `wall`, `output`, `disk`, `cache`.
    pub name: &'static str,
    /// Configured value, in bytes, milliseconds or processes.
    pub configured: u64,
    /// Observed value, in the same unit.
    pub observed: u64,
}

/// A cancel that ended the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Cancelled {
    /// Name of the signal that we were sent, or `caller_gone`.
    pub signal: &'static str,
}

/// A number together with where it comes from, or why it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// The value.
    pub value: Option<u64>,
    /// Source and scope (`cgroup`, `wait4: largest process`), or the reason for its absence.
    pub from: &'static str,
}

/// What was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Milliseconds from the clone to the end of the tree.
    pub wall_ms: u64,
    /// Microseconds of CPU time.
    pub cpu_us: Measured,
    /// Peak bytes.
    pub memory_peak_bytes: Measured,
    /// Most processes and threads at once.
    pub processes_peak: Measured,
    /// Starts of a process or thread that the limit on processes refused. That ends nothing by itself: the command may
    /// have gone on without, which it alone knows.
    pub processes_denied: Measured,
}

/// How the tree's end was established.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Reaping {
    /// Microseconds from the command's end (or the kill) to the empty tree.
    pub empty_after_us: u64,
    /// Which guarantee finished it: `pid_namespace`, `cgroup.kill`.
    pub by: &'static str,
    /// Whether the cgroups were confirmed empty and removed.
    pub cgroups_removed: bool,
}

/// Where the containment's verification came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Verified {
    /// The canaries ran for this execution.
    Live,
    /// They ran earlier in this boot, for the same plan, binary, host facts and user.
    Cached {
        /// When, in milliseconds since 1970.
        at_unix_ms: u64,
    },
    /// They did not run (nothing was built).
    No,
}

/// Whether the command's output was passed on to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// Every byte was read, and passed on unless a limit said otherwise.
    Complete,
    /// The reader did not take the rest in time after a limit, a cancel or the wall time.
    Cut,
}

/// A protected name that the command created, and where it was moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ProtectedCreated {
    /// Path below the workspace.
    pub path: crate::base::OsBytes,
    /// Where it lies now, below the workspace; `None` when it could not be moved (then the run is broken).
    pub moved_to: Option<crate::base::OsBytes>,
    /// Something protected was there when the command started, and this is another object: its protection was lost.
    /// Without `moved_to` it may as well be the host's own change, and was left in place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

/// What was seen of the command's refusals while it ran.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Witnessed {
    /// Who answered what the filter refused, once the command had started.
    pub answers: Option<Answers>,
    /// The first of each kind, at most 64.
    pub refused: Vec<Refusal>,
    /// All of them, when they were counted to the end.
    pub refused_total: Option<u64>,
    /// Calls that failed on a path, when the command was traced.
    pub traced: Option<Vec<Traced>>,
}

/// The whole result of one execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The run.
    pub run_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The limit that ended it.
    pub limit: Option<LimitHit>,
    /// The cancel that ended it.
    pub cancelled: Option<Cancelled>,
    /// What was used; `None` when nothing ran.
    pub usage: Option<Usage>,
    /// Standard output.
    pub stdout: super::output::Kept,
    /// Standard error (empty with a terminal, which has one stream).
    pub stderr: super::output::Kept,
    /// Line by line.
    pub enforcement: Vec<Enforcement>,
    /// Where the verdicts come from.
    pub verified: Verified,
    /// How the tree's end was established.
    pub reaping: Option<Reaping>,
    /// Whether the output was passed on to its end.
    pub drain: Drain,
    /// Protected names that appeared.
    pub protected_created: Vec<ProtectedCreated>,
    /// What was refused, as far as it was seen.
    pub witnessed: Witnessed,
    /// Whether the sandbox is why the command failed; `None` until that was judged, and when it did not run.
    pub denials: Option<super::denied::Denials>,
    /// Which way it was built.
    pub mode: Option<Mode>,
    /// The plan.
    pub plan_digest: Option<Digest>,
    /// The command.
    pub command_digest: Option<Digest>,
    /// What could not be cleaned up, by name.
    pub leftovers: Vec<String>,
}

impl Report {
    /// The exit code of `stockade exec` (one table: docs, tests and this agree).
    pub fn exit_code(&self) -> u8 {
        match &self.outcome {
            Outcome::Refused(fault) => fault.exit_code,
            Outcome::Broken(_) => 125,
            Outcome::Finished(end) => match (&self.limit, end) {
                (Some(limit), _) if limit.name == "wall" => 124,
                (Some(limit), _) if limit.name == "memory" => 137,
                (_, ToolEnd { exit_code: Some(code), .. }) => *code,
                (_, ToolEnd { signal: Some(signal), .. }) => 128 | signal,
                _ => 125,
            },
        }
    }
}

//! The plan value.

use super::facts::{Kind, Mode, PathFact};
use super::seccomp;
use crate::base::{Digest, HostPath, Need, OsBytes, Protection, SandboxPath};
use crate::policy::{InsideUser, OutputAction, Posture};
use serde::Serialize;
use std::collections::BTreeMap;

/// Index into [`Containment::sources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SourceIx(pub u32);

/// A host object that is opened once, with the caller's rights, and compared with what the plan saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceRef {
    /// Where it was found.
    pub path: HostPath,
    /// Its identity.
    pub fact: PathFact,
    /// Whether the tree is attached writable anywhere.
    pub writable: bool,
    /// Whether submounts come along.
    pub recursive: bool,
    /// Whether, built by a privileged process, its owner appears as the command's user.
    pub idmap: bool,
    /// With `idmap`: the owner, when it is another than the workspace's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
    /// A device node that works inside.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub device: bool,
}

/// One operation on the new root; applied in order, the order is part of the digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum FsOp {
    /// A directory of the root's own tmpfs.
    Dir {
        /// Where.
        at: SandboxPath,
    },
    /// A link in the root's own tmpfs.
    Symlink {
        /// Where.
        at: SandboxPath,
        /// Its text.
        to: OsBytes,
    },
    /// A read-only file in the root's own tmpfs.
    File {
        /// Where.
        at: SandboxPath,
        /// Its bytes.
        content: OsBytes,
    },
    /// A writable directory of the private scratch tmpfs.
    Scratch {
        /// Where.
        at: SandboxPath,
        /// Mode bits.
        mode: u32,
    },
    /// A host tree.
    Bind {
        /// Which.
        from: SourceIx,
        /// Where.
        at: SandboxPath,
        /// Writable or read-only, recursively.
        writable: bool,
    },
    /// A tmpfs of its own.
    Tmpfs {
        /// Where.
        at: SandboxPath,
        /// Bytes.
        size: u64,
        /// Files.
        inodes: u64,
    },
    /// A copy-on-write view of a host tree.
    Overlay {
        /// The lower layer; an empty one when absent.
        lower: Option<SourceIx>,
        /// A directory with `upper` and `work` in it, which keeps what is written; without one that goes to the
        /// scratch tmpfs and is thrown away.
        #[serde(skip_serializing_if = "Option::is_none")]
        layer: Option<SourceIx>,
        /// Where.
        at: SandboxPath,
    },
    /// A directory mounted onto itself, so that neither it nor an ancestor can be renamed away.
    Pin {
        /// Where.
        at: SandboxPath,
    },
    /// An existing path made read-only in place.
    Protect {
        /// Where.
        at: SandboxPath,
        /// What it is.
        kind: Kind,
    },
    /// An existing path hidden behind an empty object of the same type.
    Mask {
        /// Where.
        at: SandboxPath,
        /// What it is.
        kind: Kind,
    },
    /// procfs of the executor's PID namespace with its dangerous entries masked.
    Proc {
        /// Where.
        at: SandboxPath,
    },
    /// A minimal `/dev` with its own devpts.
    Dev {
        /// Where.
        at: SandboxPath,
    },
}

impl FsOp {
    /// Where it works.
    pub fn at(&self) -> &SandboxPath {
        match self {
            Self::Dir { at }
            | Self::Symlink { at, .. }
            | Self::File { at, .. }
            | Self::Scratch { at, .. }
            | Self::Bind { at, .. }
            | Self::Tmpfs { at, .. }
            | Self::Overlay { at, .. }
            | Self::Pin { at }
            | Self::Protect { at, .. }
            | Self::Mask { at, .. }
            | Self::Proc { at }
            | Self::Dev { at } => at,
        }
    }
}

/// Identities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdPlan {
    /// uid and gid that the command sees for itself.
    pub inside: u32,
    /// Which user that is.
    pub user: InsideUser,
    /// uid of the command in the outer user namespace (0 when rootless; else the workspace owner's number).
    pub outer_uid: u32,
    /// gid likewise.
    pub outer_gid: u32,
    /// id of init in the outer user namespace.
    pub init: u32,
}

/// A Landlock rule on the built root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LandlockRule {
    /// The file or directory.
    pub at: SandboxPath,
    /// What is allowed beneath it.
    pub access: LandlockAccess,
}

/// A bundle of Landlock rights, named by intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LandlockAccess {
    /// Read, list and execute.
    Read,
    /// Read, and write into what exists (devices, procfs), without creating anything.
    Files,
    /// Everything but making device nodes.
    Tree,
}

/// Landlock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LandlockPlan {
    /// ABI that is used (the kernel's, at most the newest that we know).
    pub abi: u32,
    /// File rules.
    pub rules: Vec<LandlockRule>,
    /// Whether TCP bind and connect are denied altogether.
    pub deny_tcp: bool,
    /// Whether abstract sockets and signals are scoped.
    pub scope: bool,
    /// Rights that newer kernels could handle and this one cannot, by name.
    pub lost: Vec<String>,
}

/// The filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeccompPlan {
    /// Named sets.
    pub sets: Vec<String>,
    /// Single calls beside them.
    pub allow: Vec<String>,
    /// Which sockets may be made.
    pub sockets: seccomp::SocketRule,
    /// Whether a browser's own sandbox may be built.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub browser: bool,
    /// Digest of the plain form's instructions.
    pub digest: Digest,
    /// Digest of the asking form's.
    pub asking_digest: Digest,
    /// The instructions of both.
    #[serde(skip)]
    pub filter: seccomp::Filter,
}

impl SeccompPlan {
    /// What it consists of, for people: worked out for those who ask, since a launch does not.
    ///
    /// # Errors
    /// None for a plan that was made: its program came from the same names.
    pub fn summary(&self) -> Result<seccomp::Summary, seccomp::Error> {
        seccomp::summary(&self.request())
    }

    /// What it was made from.
    pub fn request(&self) -> seccomp::Request<'_> {
        seccomp::Request {
            sets: &self.sets,
            allow: &self.allow,
            network: self.sockets,
            browser: self.browser,
        }
    }
}

/// The limits as numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitPlan {
    /// Bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Percent of one CPU.
    pub cpu_percent: Option<u64>,
    /// Milliseconds.
    pub wall_ms: Option<u64>,
    /// Milliseconds between the polite signal and the kill.
    pub grace_ms: u64,
    /// Bytes per stream.
    pub output: Option<u64>,
    /// What happens there.
    pub output_action: OutputAction,
    /// RLIMIT_NOFILE.
    pub open_files: u64,
    /// RLIMIT_FSIZE.
    pub file_size: Option<u64>,
    /// RLIMIT_MEMLOCK.
    pub locked_memory: u64,
    /// RLIMIT_STACK.
    pub stack: u64,
    /// Bytes of the scratch tmpfs.
    pub scratch: u64,
    /// Inodes of the scratch tmpfs.
    pub scratch_inodes: u64,
    /// Bytes that the workspace may grow.
    pub disk: Option<u64>,
}

/// Protected names of a writable tree that do not exist yet: looked for once the command's tree is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Watch {
    /// The tree.
    pub source: SourceIx,
    /// Where it is attached.
    pub at: SandboxPath,
    /// Patterns relative to it; matches that were not there at the start are moved aside.
    pub missing: Vec<crate::base::RelPath>,
    /// Where the git directories of submodules lie, at any depth: hooks and configuration that appear in one count
    /// as created.
    pub modules: Option<crate::base::RelPath>,
}

/// What a package cache is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheLayer {
    /// Writable; what is written is there again at the next run in the same workspace.
    Kept,
    /// Writable; what is written is thrown away.
    Throwaway,
    /// An empty directory, private and gone afterwards.
    Empty,
    /// A directory of the workspace.
    Workspace,
    /// The host's own, as a toolchain.
    ReadOnly,
    /// Not there: something else is mounted where it would be.
    Absent,
}

/// A package cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct CachePlan {
    /// Its name in the table of caches.
    pub name: &'static str,
    /// Where it appears.
    pub at: SandboxPath,
    /// Whether the host's own is seen below what is written.
    pub host: bool,
    /// What becomes of what is written.
    pub layer: CacheLayer,
    /// Why it is less than the profile asks for.
    pub note: Option<String>,
}

/// Everything that contains the command; what the plan digest covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Containment {
    /// `stockade.plan/1`.
    pub schema: &'static str,
    /// The profile's name.
    pub profile: String,
    /// What was asked.
    pub policy_digest: Digest,
    /// Which way the executor is built.
    pub mode: Mode,
    /// Require or Prefer.
    pub needs: BTreeMap<Protection, Need>,
    /// Protections that are already known to be missing (only `Prefer`s: a missing `Require` is no plan).
    pub gaps: BTreeMap<Protection, crate::base::Gap>,
    /// Identities.
    pub ids: IdPlan,
    /// Host name.
    pub hostname: String,
    /// Own clock offsets.
    pub time_namespace: bool,
    /// Host objects.
    pub sources: Vec<SourceRef>,
    /// The new root.
    pub fs: Vec<FsOp>,
    /// Protected names to look for afterwards.
    pub watch: Vec<Watch>,
    /// Package caches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CachePlan>,
    /// What is granted by intent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intents: Vec<crate::policy::Intent>,
    /// Landlock.
    pub landlock: LandlockPlan,
    /// seccomp.
    pub seccomp: SeccompPlan,
    /// Network posture.
    pub posture: Posture,
    /// Own network namespace (false only for `general` with `share_host`).
    pub own_network: bool,
    /// Whether loopback is up.
    pub loopback: bool,
    /// Limits.
    pub limits: LimitPlan,
}

/// What runs inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<OsBytes>,
    /// The whole environment, in order.
    pub env: Vec<(OsBytes, OsBytes)>,
    /// Where it starts.
    pub cwd: SandboxPath,
    /// Directories searched for a program without a slash.
    pub path: Vec<SandboxPath>,
    /// A terminal of its own.
    pub tty: bool,
}

/// The plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What contains the command.
    pub containment: Containment,
    /// The command.
    pub command: Command,
    /// Digest of the containment.
    pub plan_digest: Digest,
    /// Digest of the command.
    pub command_digest: Digest,
    /// What was left out, for people.
    pub notes: Vec<String>,
}

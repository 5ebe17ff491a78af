//! The policy value itself. Plain data: made by this module's loader alone, read by `plan`. It is read back (see
//! [`super::resolved()`]) to be compared and for nothing else.

use super::caches::Tool;
use super::intents::Intent;
use crate::base::{
    ByteSize, CpuShare, Digest, HostPath, MemorySize, Millis, Need, OsBytes, Protection, RelPath, SandboxPath,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

// Words that profiles and policies share; `manifest` may not depend on this module.
pub use crate::manifest::{Access, CacheLayer, InsideUser, OutputAction, Posture, ProtectMissing};

/// Where a profile came from; shown wherever a profile is named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind", content = "path")]
pub enum Origin {
    /// Compiled into the binary.
    Embedded,
    /// `/etc/stockade/profiles`.
    System(HostPath),
    /// `~/.config/stockade/profiles`.
    User(HostPath),
    /// `--profile PATH`.
    File(HostPath),
    /// The project's `.stockade/`; may only narrow.
    Project(HostPath),
}

/// One further entry of the mount table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum MountEntry {
    /// A host path.
    Bind {
        /// On the host.
        source: HostPath,
        /// Inside.
        target: SandboxPath,
        /// Read-only otherwise, submounts included.
        writable: bool,
        /// Whether a missing source is passed over.
        optional: bool,
        /// Who asked.
        by: Source,
    },
    /// A private tmpfs.
    Tmpfs {
        /// Inside.
        target: SandboxPath,
        /// Bytes.
        size: ByteSize,
        /// Files, directories and links.
        inodes: u64,
        /// Who asked.
        by: Source,
    },
    /// A host directory under a throwaway writable layer.
    Overlay {
        /// On the host.
        source: HostPath,
        /// Inside.
        target: SandboxPath,
        /// Who asked.
        by: Source,
    },
    /// A read-only file.
    File {
        /// Inside.
        target: SandboxPath,
        /// What it holds.
        content: OsBytes,
        /// Who asked.
        by: Source,
    },
    /// An empty directory.
    Dir {
        /// Inside.
        target: SandboxPath,
        /// Who asked.
        by: Source,
    },
    /// A symbolic link in the root's own tmpfs.
    Symlink {
        /// Inside.
        target: SandboxPath,
        /// What it points to.
        to: OsBytes,
        /// Who asked.
        by: Source,
    },
    /// Hides what is at `target` behind an empty object of the same type.
    Mask {
        /// Inside.
        target: SandboxPath,
        /// Who asked.
        by: Source,
    },
}

impl MountEntry {
    /// Where it appears.
    pub fn target(&self) -> &SandboxPath {
        match self {
            Self::Bind { target, .. }
            | Self::Tmpfs { target, .. }
            | Self::Overlay { target, .. }
            | Self::File { target, .. }
            | Self::Dir { target, .. }
            | Self::Symlink { target, .. }
            | Self::Mask { target, .. } => target,
        }
    }
}

/// Who asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The profile.
    Profile,
    /// The caller, within the profile's grants.
    Caller,
}

/// The root that the command sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootPolicy {
    /// A directory to use as the root instead of the host's `/usr` and the allowed `/etc` entries.
    pub dir: Option<HostPath>,
    /// Names below `/etc` that are shown when they exist on the host.
    pub etc: Vec<RelPath>,
    /// Read-only toolchains that PATH and the usual variables name.
    pub toolchains: bool,
}

/// The workspace and what in it is guarded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspacePolicy {
    /// How it appears.
    pub access: Access,
    /// Paths below it that stay read-only (what would later run on the host).
    pub protect: Vec<RelPath>,
    /// What to do about those that do not exist yet.
    pub protect_missing: ProtectMissing,
    /// Names below it that are masked. `*` stands for any run of characters within one component.
    pub hide: Vec<RelPath>,
}

/// Package caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachesPolicy {
    /// Whose.
    #[serde(rename = "use")]
    pub tools: Vec<Tool>,
    /// What becomes of what is written to them.
    pub layer: CacheLayer,
    /// The most that a kept layer may hold, for each cache.
    pub size: ByteSize,
}

/// The environment, built from nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvPolicy {
    /// Names (or `PREFIX*`) taken from the caller's environment.
    pub pass: Vec<String>,
    /// Names set to these values.
    pub set: BTreeMap<String, OsBytes>,
    /// Whether runtimes are told of the memory limit.
    pub heap_hints: bool,
}

/// The network as the profile wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    /// The posture.
    pub posture: Posture,
    /// `disabled`: whether internet-family sockets may be made at all, for the command's own loopback.
    pub loopback: bool,
    /// `general`: the host's own network namespace, by explicit choice.
    pub share_host: bool,
}

/// The system-call filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeccompPolicy {
    /// Named sets of `policies/seccomp/`.
    pub sets: Vec<String>,
    /// Single calls beside them.
    pub allow: Vec<String>,
}

/// Limits. `None` means: not limited by the profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of the tree, swap and tmpfs pages included.
    pub memory: Option<MemorySize>,
    /// Processes and threads of the tree.
    pub processes: Option<u64>,
    /// CPU share of the tree.
    pub cpu: Option<CpuShare>,
    /// Wall time.
    pub wall: Option<Millis>,
    /// Time between the polite signal and the kill when a limit or a cancel ends the command; 0 = kill at once.
    pub grace: Millis,
    /// Bytes per output stream.
    pub output: Option<ByteSize>,
    /// What happens there.
    pub output_action: OutputAction,
    /// Descriptors per process (RLIMIT_NOFILE).
    pub open_files: u64,
    /// Size of one file (RLIMIT_FSIZE).
    pub file_size: Option<ByteSize>,
    /// Locked memory per process (RLIMIT_MEMLOCK).
    pub locked_memory: ByteSize,
    /// Stack per process (RLIMIT_STACK).
    pub stack: ByteSize,
    /// The private tmpfs behind /tmp, /run, HOME and /dev/shm together.
    pub scratch: ByteSize,
    /// Files, directories and links in it.
    pub scratch_inodes: u64,
    /// Growth of a writable workspace.
    pub disk: Option<ByteSize>,
}

/// What the caller's own flags may add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// Host directories below which `--ro` may take sources. Empty: none.
    pub ro: Vec<HostPath>,
    /// Host directories below which `--rw` may take sources. Empty: none.
    pub rw: Vec<HostPath>,
    /// Names (or `PREFIX*`) that `--env` may pass or set.
    pub env: Vec<String>,
    /// What `--grant` may give.
    pub intents: Vec<Intent>,
    /// Whether `--tmpfs` is permitted.
    pub tmpfs: bool,
    /// Whether `--root` is permitted.
    pub root: bool,
    /// Whether a workspace may be given (`-w`) other than the current directory.
    pub workspace: bool,
}

/// A profile, complete and host-independent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// One line about it.
    pub summary: String,
    /// The file that won, first; then what it extends and what narrowed it.
    #[serde(skip)]
    pub origins: Vec<Origin>,
    /// Require or Prefer for every protection.
    pub needs: BTreeMap<Protection, Need>,
    /// The command's own uid and gid.
    pub user: InsideUser,
    /// Host name inside.
    pub hostname: String,
    /// Whether the clock offsets are its own too.
    pub time_namespace: bool,
    /// The root.
    pub root: RootPolicy,
    /// The workspace.
    pub workspace: WorkspacePolicy,
    /// Further mounts.
    pub mounts: Vec<MountEntry>,
    /// Package caches.
    pub caches: CachesPolicy,
    /// The environment.
    pub env: EnvPolicy,
    /// The network.
    pub network: NetworkPolicy,
    /// The filter.
    pub seccomp: SeccompPolicy,
    /// The limits.
    pub limits: Limits,
    /// What every command is granted by intent.
    pub intents: Vec<Intent>,
    /// What the caller may add.
    pub grants: Grants,
}

impl Policy {
    /// What was asked, independent of host and of where the file lay.
    pub fn digest(&self) -> Digest {
        // Serialisation of plain data without floats cannot fail; an empty digest would be noticed by every golden.
        Digest::of(&crate::base::canonical_json(self).unwrap_or_default())
    }

    /// Whether `protection` is required.
    pub fn requires(&self, protection: Protection) -> bool {
        self.needs.get(&protection) == Some(&Need::Require)
    }
}

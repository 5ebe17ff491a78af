//! Facts that `probe` gathers by trying and `plan` reads: about the host, and about the paths that a
//! request names.

use crate::base::{HostPath, OsBytes, RelPath, SandboxPath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether something works here, and when not, why and what would mend it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Fact {
    /// Tried, and it worked.
    Works,
    /// Tried, and it did not.
    Missing {
        /// What the kernel said, in words.
        why: String,
        /// The least change that mends it.
        remedy: String,
    },
}

impl Fact {
    /// Whether it works.
    pub fn works(&self) -> bool {
        matches!(self, Self::Works)
    }
}

/// One cgroup hierarchy as seen from our own membership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupDir {
    /// The directory in which executors' cgroups are made: our own cgroup in it; in cgroup2 the one around it where our
    /// own can hand no controller down.
    pub own: HostPath,
    /// Whether we can make child cgroups there and put processes into them.
    pub writable: bool,
}

/// The cgroup layout: which controller is reached through which hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct CgroupFacts {
    /// cgroup2, when mounted.
    pub v2: Option<CgroupDir>,
    /// `cgroup.kill` exists (5.14).
    pub v2_kill: bool,
    /// A clone into a fresh cgroup lives (kernels 6.16–7.2 kill it when our own cgroup was ever killed).
    pub v2_clone_into: bool,
    /// Controllers that children of that directory get through cgroup2.
    pub v2_controllers: Vec<String>,
    /// They get some of them only once our process, alone in its cgroup, has moved into a leaf.
    pub v2_leaf: bool,
    /// Why children get none of the controllers that limits need, where they don't.
    pub v2_hindrance: Option<String>,
    /// Our own cgroup in cgroup2 and what of it decided the above, where it did: others can change that at any time.
    pub v2_seen: Option<(HostPath, String)>,
    /// v1 hierarchies by controller (`memory`, `pids`, `cpu`, …).
    pub v1: BTreeMap<String, CgroupDir>,
    /// Swap is accounted (v1 `memory.memsw.*`, v2 `memory.swap.max`).
    pub swap_accounting: bool,
    /// Every cgroup file system that is mounted is mounted read-only, as in a container.
    pub read_only: bool,
}

impl CgroupFacts {
    /// What gives an executor the cgroups that it lacks.
    pub fn remedy(&self) -> &'static str {
        if self.v2.is_none() && self.v1.is_empty() {
            "give this container its cgroups: an OCI mount of type `cgroup` without `ro`; docker and podman: `--privileged`"
        } else if self.read_only {
            "give this container its cgroups writable: the OCI mount of type `cgroup` without `ro`; docker and podman: \
             `--privileged`"
        } else {
            "run below a delegated cgroup: systemd-run --user --scope -p Delegate=yes stockade …"
        }
    }

    /// Why there is no directory for an executor's cgroups, in words.
    pub fn unwritable(&self, what: &str) -> String {
        if self.v2.is_none() && self.v1.is_empty() {
            format!("no {what}: no cgroup file system is mounted here")
        } else if self.read_only {
            format!("no {what}: the cgroup file system is mounted read-only")
        } else {
            format!("the {what} is not writable for this user")
        }
    }
}

/// Which of the two ways to build an executor is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By a privileged process: an id range, idmapped workspaces.
    Privileged,
    /// By an ordinary user: the caller's own id in a user namespace.
    Rootless,
}

/// The host, as this user finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// `uname -r`.
    pub kernel: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Effective uid of the caller.
    pub uid: u32,
    /// Effective gid of the caller.
    pub gid: u32,
    /// Which way is open.
    pub mode: Mode,
    /// A user namespace with a mount, PID, network, IPC, UTS and cgroup namespace can be made, and a
    /// capability used in it.
    pub namespaces: Fact,
    /// A time namespace can be made.
    pub time_namespace: Fact,
    /// The mount API of Linux 5.12 (`open_tree`, `mount_setattr`, …) works in that namespace.
    pub mount_api: Fact,
    /// A fresh procfs may be mounted there.
    pub proc_fresh: Fact,
    /// Overlay mounts work there.
    pub overlay: Fact,
    /// Landlock ABI version; 0 when absent.
    pub landlock_abi: u32,
    /// `LANDLOCK_CREATE_RULESET_ERRATA` bits.
    pub landlock_errata: u32,
    /// seccomp filters can be installed.
    pub seccomp: Fact,
    /// cgroups.
    pub cgroup: CgroupFacts,
    /// Total memory in bytes.
    pub memory_total: u64,
    /// Online CPUs.
    pub cpus: u32,
    /// Hard limit of RLIMIT_NOFILE of this process.
    pub open_files_hard: u64,
}

/// The type of a file-system object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Directory.
    Dir,
    /// Regular file.
    File,
    /// Symbolic link (only where links are not followed).
    Symlink,
    /// Character device.
    Device,
    /// Socket.
    Socket,
    /// Anything else: FIFO, block device.
    Other,
}

/// What a path led to when it was looked up with the caller's rights. The identity is compared again on
/// the descriptor that is really used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathFact {
    /// Type after following links.
    pub kind: Kind,
    /// Device number (`st_dev`).
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The path with all links resolved.
    pub real: HostPath,
    /// File system type (`statfs` magic).
    pub fs_magic: u64,
}

/// Why a path could not be looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathMissing {
    /// errno.
    pub errno: i32,
}

/// An entry below `/etc` or a top-level name, as it lies on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum SystemEntry {
    /// A link, to be made again.
    Symlink {
        /// Where it points.
        to: OsBytes,
    },
    /// A directory or file to be mounted.
    Mount {
        /// What it is.
        fact: PathFact,
    },
    /// A small file whose bytes are copied.
    Copy {
        /// The bytes.
        content: OsBytes,
    },
}

/// The git directory of a workspace, when it has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GitFact {
    /// `.git` is a file that names this directory (a linked worktree or submodule); its back-reference
    /// names the workspace and the owner is the workspace's.
    pub git_dir: HostPath,
    /// The common directory, which holds objects, refs, hooks and config.
    pub common_dir: HostPath,
    /// Identity of the common directory.
    pub common_fact: PathFact,
    /// Protected names below the common directory that exist.
    pub protected: Vec<(RelPath, Kind)>,
}

/// The workspace as it lies on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkspaceFact {
    /// Its root.
    pub root: PathFact,
    /// Existing protected names and their types (links not followed).
    pub protected: Vec<(RelPath, Kind)>,
    /// Existing hidden names and their types (links not followed).
    pub hidden: Vec<(RelPath, Kind)>,
    /// A linked git directory outside the workspace.
    pub git: Option<GitFact>,
    /// Why a `.git` file was not followed.
    pub git_refused: Option<String>,
}

/// A directory that a toolchain variable or PATH names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolchainFact {
    /// The variable that is set to it inside (`CARGO_HOME`, …); `None` for a PATH entry.
    pub variable: Option<String>,
    /// Where it lies.
    pub path: HostPath,
    /// Its identity.
    pub fact: PathFact,
    /// Credential files below it that exist.
    pub credentials: Vec<(RelPath, Kind)>,
    /// It lies in what the base root shows anyway: not mounted once more.
    pub shown: bool,
}

/// A toolchain directory that a variable names and that is not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The variable.
    pub variable: String,
    /// What it names.
    pub path: HostPath,
    /// Why not.
    pub why: String,
}

/// A package cache as it lies on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum CachePlace {
    /// The host has none.
    Absent,
    /// What is there is not used.
    LeftOut {
        /// Where it lies.
        path: HostPath,
        /// In words for an operator.
        why: String,
    },
    /// A directory of the host.
    Host {
        /// Where it lies.
        path: HostPath,
        /// Its identity.
        fact: PathFact,
        /// Credential files below it that exist.
        credentials: Vec<(RelPath, Kind)>,
    },
    /// A directory of the workspace, which has it already.
    Workspace {
        /// Below the workspace.
        rel: RelPath,
    },
}

/// A thing on the host behind a grant by intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IntentSource {
    /// Where it lies.
    pub path: HostPath,
    /// Its identity.
    pub fact: PathFact,
    /// Its name inside, below a directory that depends on the intent.
    pub name: String,
}

/// What is behind a grant by intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum IntentFact {
    /// It can be granted.
    There {
        /// What is mounted; nothing where the intent is about system calls.
        sources: Vec<IntentSource>,
    },
    /// There is nothing to grant.
    Missing {
        /// In words for an operator.
        why: String,
    },
}

/// The kept layer of a cache: locked for this run, or why it is not to be had. A view that runs nothing locks nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum LayerFact {
    /// A directory with `upper` and `work` in it.
    Ready {
        /// Where it lies.
        path: HostPath,
        /// Its identity.
        fact: PathFact,
    },
    /// The run goes without it.
    Unavailable {
        /// In words for an operator.
        why: String,
    },
}

/// A place of the host that no executor sees, by one of the names under which the mount table shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Never {
    /// Where, links resolved.
    pub path: HostPath,
    /// What is there, in words.
    pub what: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Whether what lies in it is closed as well, and not just the whole.
    pub inside: bool,
}

/// Facts about the paths that policy and request name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct PathFacts {
    /// Bind, overlay and root sources.
    pub sources: BTreeMap<HostPath, Result<PathFact, PathMissing>>,
    /// The workspace.
    pub workspace: Option<WorkspaceFact>,
    /// Existing names below `/etc` that the policy lists.
    pub etc: BTreeMap<RelPath, SystemEntry>,
    /// `/bin`, `/sbin`, `/lib`, `/lib32`, `/lib64`, `/libx32` as they are.
    pub top: BTreeMap<RelPath, SystemEntry>,
    /// Toolchain directories: those of the base root, then the others, most general first.
    pub toolchains: Vec<ToolchainFact>,
    /// Package caches that the policy uses, by their names in [`crate::policy::CACHES`].
    pub caches: BTreeMap<&'static str, CachePlace>,
    /// Their kept layers.
    pub layers: BTreeMap<&'static str, LayerFact>,
    /// What is behind the grants by intent that are in effect.
    pub intents: BTreeMap<crate::policy::Intent, IntentFact>,
    /// Those that are not shown.
    pub left_out: Vec<LeftOut>,
    /// The caller's home, when it has one.
    pub home: Option<HostPath>,
    /// The state directory.
    pub state_dir: Option<HostPath>,
    /// What no source may be, and what is covered where a source holds it.
    pub never: Vec<Never>,
    /// Where directories of `[grants]` really lie, when links on the way to them count and lead elsewhere.
    pub grants: BTreeMap<HostPath, HostPath>,
    /// Masks of the profile's for which nothing is there now.
    pub unmasked: Vec<SandboxPath>,
}

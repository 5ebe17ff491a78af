//! The protections that a profile asks for and an executor reports on, one name each, everywhere.

use serde::{Deserialize, Serialize};

macro_rules! protections {
    ($($(#[$doc:meta])* $variant:ident = $key:literal),+ $(,)?) => {
        /// One thing that containment consists of.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
        pub enum Protection { $($(#[$doc])* #[serde(rename = $key)] $variant),+ }

        impl Protection {
            /// All of them, in the order in which they are reported.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in profiles and results.
            pub fn key(self) -> &'static str {
                match self { $(Self::$variant => $key),+ }
            }
        }
    };
}

protections! {
    /// Own user, mount, PID, IPC, UTS, cgroup (and time, on request) namespaces.
    Namespaces = "namespaces",
    /// The built root: nothing of the host but the table's entries, read-only where it says so, locked.
    Mounts = "mounts",
    /// No host identity but an unprivileged one; supplementary groups and keyrings gone.
    Ids = "ids",
    /// All five capability sets empty, securebits locked, no_new_privs.
    Capabilities = "capabilities",
    /// The system-call filter.
    Seccomp = "seccomp",
    /// Landlock file rules.
    LandlockFs = "landlock_fs",
    /// Landlock TCP port rules.
    LandlockNet = "landlock_net",
    /// Landlock scopes: abstract sockets and signals.
    LandlockScope = "landlock_scope",
    /// The network posture.
    Network = "network",
    /// A fresh procfs of the executor's own PID namespace, dangerous entries masked.
    Proc = "proc",
    /// The memory limit over the process tree.
    LimitMemory = "limit_memory",
    /// The process-count limit over the tree.
    LimitProcesses = "limit_processes",
    /// The CPU limit over the tree.
    LimitCpu = "limit_cpu",
    /// The limit on what is written to a writable workspace.
    LimitDisk = "limit_disk",
    /// The tree can be killed as a whole through its cgroup, beside the PID namespace.
    Kill = "kill",
    /// What the command writes to a package cache stays in a layer of its own.
    Caches = "caches",
}

/// How much a protection matters to the profile.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Its absence is recorded and lowers the assurance.
    Prefer,
    /// Without it nothing runs.
    Require,
}

/// What the kernel really does for a protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Got {
    /// Confirmed by a canary or a kernel read-back.
    Enforced,
    /// A part of it; the gap says which is missing.
    Partial,
    /// Not there.
    Absent,
    /// The profile does not ask for it (no such limit, port rules where the namespace is the boundary).
    NotAsked,
}

/// Why `got` is less than asked, and what would mend it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Gap {
    /// What is missing, in words for an operator.
    pub what: String,
    /// The least change that would mend it.
    pub remedy: String,
}

/// One line of the enforcement report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Enforcement {
    /// Which protection.
    pub protection: Protection,
    /// What the profile said.
    pub asked: Need,
    /// What was confirmed.
    pub got: Got,
    /// How it was confirmed: names of canaries and read-backs.
    pub by: Vec<String>,
    /// What is missing, when something is.
    pub gap: Option<Gap>,
}

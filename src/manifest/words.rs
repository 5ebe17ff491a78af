//! The words that a profile can say and a policy means alike. Those that have an order list the least
//! authority first.

use serde::{Deserialize, Serialize};

/// Whose identity the command sees for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InsideUser {
    /// uid and gid 1000, named `agent`.
    Agent,
    /// uid and gid 0 (without any capability).
    Root,
}

/// How the workspace appears.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Not at all.
    None,
    /// Read-only, submounts included.
    Ro,
    /// A copy-on-write view whose writes are thrown away.
    Overlay,
    /// Writable.
    Rw,
}

/// What happens when a protected path did not exist at the start and does at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtectMissing {
    /// Moved aside after the tree is dead, and reported.
    Quarantine,
    /// The run gets a copy-on-write view instead of the workspace, so that nothing can appear.
    Overlay,
}

/// What becomes of what the command writes to a package cache.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CacheLayer {
    /// It is thrown away with the run.
    Throwaway,
    /// It is there again at the next run in the same workspace.
    Kept,
}

/// The network posture.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Posture {
    /// Own namespace, nothing but (perhaps) loopback.
    Disabled,
    /// Everything the host reaches.
    General,
}

/// What happens at the output bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputAction {
    /// Counted and dropped; the command goes on.
    Truncate,
    /// The command is killed; the limit is named.
    Kill,
}

//! What the caller asks for this time, beside the policy.

use crate::base::{ByteSize, HostPath, OsBytes, SandboxPath};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A caller's `--ro` or `--rw`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraBind {
    /// Host path.
    pub source: HostPath,
    /// Where it appears; the same path when not given.
    pub target: SandboxPath,
    /// `--rw`.
    pub writable: bool,
}

/// One request to run a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The command and its arguments; never empty.
    pub argv: Vec<OsBytes>,
    /// The workspace, links resolved.
    pub workspace: Option<HostPath>,
    /// Whether the workspace was named (`-w`) rather than taken from the current directory.
    pub workspace_explicit: bool,
    /// Where it appears; its own path when not given.
    pub at: Option<SandboxPath>,
    /// The directory the command starts in; the workspace, else `/`, when not given.
    pub cwd: Option<SandboxPath>,
    /// `--ro`, `--rw`.
    pub binds: Vec<ExtraBind>,
    /// `--tmpfs`.
    pub tmpfs: Vec<(SandboxPath, Option<ByteSize>)>,
    /// `--env NAME=VALUE`, and `--env NAME` with the caller's value filled in.
    pub env: BTreeMap<String, OsBytes>,
    /// The caller's environment, for the names that the profile passes.
    pub caller_env: Rc<BTreeMap<OsBytes, OsBytes>>,
    /// `--grant`.
    pub grants: Vec<crate::policy::Intent>,
    /// `--root`.
    pub root: Option<HostPath>,
    /// A terminal of its own.
    pub tty: bool,
    /// Whether the caller named a wall time: without one a terminal has none.
    pub timeout: bool,
}

//! Roots for unit tests.

use super::event::{Created, Payload, State, Terminal};
use super::{End, NewRun, Place, Store};
use crate::base::RunId;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// A private directory, removed at the end.
pub struct Root(tempfile::TempDir);

impl Root {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn place(&self) -> Place {
        let dir = std::fs::File::open(self.path()).unwrap();
        Place::new(self.path(), dir.as_fd(), rustix::process::geteuid().as_raw()).unwrap()
    }

    pub fn store(&self) -> Store {
        Store::open(self.place()).unwrap()
    }
}

/// The `n`th run's id.
pub fn id(n: u64) -> RunId {
    RunId::new(1_700_000_000_000 + n, [0; 10])
}

/// The `n`th run.
pub fn run(n: u64) -> NewRun<'static> {
    let payload = Created {
        schema: "stockade.run/1",
        kind: "exec",
        profile: Some("offline".to_owned()),
        command: Some("true".to_owned()),
        workspace: None,
        correlation: None,
        snapshot: serde_json::json!({ "n": n }),
    };
    NewRun {
        id: id(n),
        kind: "exec",
        profile: Some("offline"),
        command: Some("true"),
        workspace: None,
        correlation: None,
        plan: None,
        payload: Payload::of(&payload).unwrap(),
    }
}

/// An end.
pub fn end(state: State) -> End {
    let reason = if state == State::Completed { "exited" } else { "broken" };
    let exit_code = Some(if state == State::Completed { 0 } else { 125 });
    let payload = Terminal {
        schema: "stockade.end/1",
        state,
        reason,
        exit_code,
        boundary: None,
        detail: serde_json::json!({}),
    };
    End { state, reason, exit_code, payload: Payload::of(&payload).unwrap() }
}

/// What a receipt says.
pub fn statement(run: &str, chain: super::receipt::Chain) -> super::Statement {
    super::Statement {
        subjects: Vec::new(),
        run: run.to_owned(),
        chain,
        plan_digest: None,
        policy_digest: None,
        command_digest: None,
        enforcement: Vec::new(),
        state: State::Completed,
        reason: "exited".to_owned(),
        exit_code: Some(0),
        outcome: serde_json::json!({}),
        limits: serde_json::json!({}),
        started_ms: 1,
        ended_ms: 2,
        network_digest: None,
        assurance: serde_json::json!({ "level": "full" }),
        version: "0".to_owned(),
    }
}

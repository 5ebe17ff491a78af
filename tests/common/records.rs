//! State directories with records that tests make, and `stockade runs` on them.
#![allow(dead_code, reason = "each test binary uses its part")]

use crate::common::{self, Raw, bin, bounded, unique};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use stockade::base::RunId;
use stockade::evidence::{Created, End, Kind, NewRun, Payload, Place, State, Store, Terminal};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A state directory of the test's own.
pub struct Root {
    pub at: PathBuf,
}

impl Root {
    pub fn new() -> Self {
        let base = std::env::var_os("STOCKADE_TEST_STATE").map_or_else(common::home, PathBuf::from);
        let at = base.join(unique(".runs"));
        std::fs::create_dir(&at).unwrap();
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { at }
    }

    pub fn place(&self) -> Place {
        let dir = std::fs::File::open(&self.at).unwrap();
        Place::new(&self.at, dir.as_fd(), rustix::process::geteuid().as_raw()).unwrap()
    }

    pub fn store(&self) -> Store {
        Store::open(self.place()).unwrap()
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(bin());
        command.arg("runs").args(words).arg("--state-dir").arg(&self.at);
        command
    }

    pub fn runs(&self, words: &[&str]) -> Raw {
        bounded(self.command(words), PATIENCE)
    }

    /// Standard output of what has to succeed.
    pub fn said(&self, words: &[&str]) -> String {
        let raw = self.runs(words);
        assert_eq!(raw.code(), 0, "{words:?}: {raw:?}");
        assert_eq!(raw.err(), "", "{words:?}");
        raw.out()
    }

    pub fn lines(&self, words: &[&str]) -> Vec<Value> {
        self.said(words).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn refused(&self, words: &[&str], code: &str) -> String {
        let raw = self.runs(words);
        assert_eq!((raw.code(), raw.out().as_str()), (2, ""), "{words:?}: {raw:?}");
        assert!(raw.err().starts_with("stockade: ") && raw.err().contains("\nhint: "), "{raw:?}");
        assert!(raw.err().contains(code), "{words:?}: {raw:?}");
        raw.err()
    }

    pub fn db(&self) -> Connection {
        let db = Connection::open_with_flags(self.at.join("evidence.db"), OpenFlags::SQLITE_OPEN_READ_WRITE)
            .unwrap();
        db.busy_timeout(PATIENCE).unwrap();
        db
    }

    pub fn number(&self, sql: &str) -> i64 {
        self.db().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Files of blobs, the unfinished ones too.
    pub fn blobs(&self) -> Vec<PathBuf> {
        let Ok(shelves) = std::fs::read_dir(self.at.join("blobs/sha256")) else { return Vec::new() };
        shelves
            .flat_map(|shelf| std::fs::read_dir(shelf.unwrap().path()).unwrap().map(|e| e.unwrap().path()))
            .collect()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.at);
    }
}

pub fn id(n: u64) -> RunId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    RunId::new(1_700_000_000_000 + n, random)
}

/// Begins a run whose every text is `text`.
pub fn begin(store: &mut Store, id: RunId, text: &str) {
    let created = Created {
        schema: "stockade.run/1",
        kind: "exec",
        profile: Some(text.to_owned()),
        command: Some(text.to_owned()),
        workspace: Some(text.to_owned()),
        correlation: Some(text.to_owned()),
        snapshot: json!({
            "argv": [text], "profile": { "origins": [{ "path": text }] }, "stockade": text, "host": { "kernel": text },
            "containment": {
                "mode": text, "cwd": text, "environment": [text, text], "seccomp": { "sets": [text], "allow": text },
                "mounts": [{ "at": text, "mode": text, "source": format!("{text}/") }], "limits": { "processes": text },
            },
        }),
    };
    store
        .durable(|txn| {
            txn.begin(&NewRun {
                id,
                kind: "exec",
                profile: Some(text),
                command: Some(text),
                workspace: Some(text),
                correlation: Some(text),
                plan: None,
                payload: Payload::of(&created)?,
            })
        })
        .unwrap();
}

pub fn end(state: State, text: &str) -> End {
    let payload = Terminal {
        schema: "stockade.run/1",
        state,
        reason: "exited",
        exit_code: Some(0),
        boundary: None,
        detail: json!({
            "cleanup": text, "destroy": text, "leftovers": [text], "limit": { "name": text },
            "outcome": { "message": text, "stage": text, "object": { text: text } },
            "denials": { "verdict": text, "findings": [{ "object": text, "what": text, "grant": { "text": text } }] },
        }),
    };
    End { state, reason: "exited", exit_code: Some(0), payload: Payload::of(&payload).unwrap() }
}

pub fn finish(store: &mut Store, id: RunId, text: &str) {
    store.durable(|txn| txn.finish(&id, &end(State::Completed, text), |_| Ok(None))).unwrap();
}

/// A whole run of `bytes` bytes of notes.
pub fn seed(store: &mut Store, n: u64, bytes: usize) {
    begin(store, id(n), "x");
    let note = Payload::of(&json!({ "n": n, "note": "y".repeat(bytes) })).unwrap();
    store.durable(|txn| txn.append(&id(n), Kind::Note, &note)).unwrap();
    finish(store, id(n), "x");
}

//! The record of every execution, through the binary: what is in it, that nothing runs and nothing is told without it,
//! and that runs whose owner was killed are closed. Rows are read with SQLite itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Live, Raw, Sandbox, Workspace, contains, needs, root, unique};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A state directory of the test's own.
struct State {
    at: PathBuf,
    workspace: Workspace,
}

impl State {
    fn new() -> Self {
        let base = std::env::var_os("STOCKADE_TEST_STATE").map_or_else(common::home, PathBuf::from);
        let at = base.join(unique(".record"));
        std::fs::create_dir(&at).unwrap();
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { at, workspace: Workspace::new("record") }
    }

    fn sandbox(&self) -> Sandbox {
        Sandbox::new(&self.workspace).option("--state-dir").option(&self.at)
    }

    fn db(&self) -> Connection {
        Connection::open_with_flags(self.at.join("evidence.db"), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap()
    }

    fn count(&self, table: &str) -> i64 {
        self.db().query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    /// `(state, reason, exit code)` of the newest run.
    fn last(&self) -> (String, Option<String>, Option<i64>) {
        self.db()
            .query_row("SELECT state, reason, exit_code FROM runs ORDER BY no DESC LIMIT 1", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .unwrap()
    }

    /// Kinds and payloads of the newest run.
    fn events(&self) -> Vec<(String, Value)> {
        let db = self.db();
        let sql = "SELECT kind, payload FROM events WHERE at >> 32 = (SELECT max(no) FROM runs) ORDER BY at";
        let mut all = db.prepare(sql).unwrap();
        all.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))
            .unwrap()
            .map(|row| row.map(|(kind, text)| (kind, serde_json::from_str(&text).unwrap())).unwrap())
            .collect()
    }

    /// Every byte of the store's files.
    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut todo = vec![self.at.clone()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    todo.push(entry.path());
                } else {
                    all.extend(std::fs::read(entry.path()).unwrap());
                }
            }
        }
        all
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.at);
    }
}

fn state(state: &str, reason: &str, code: i64) -> (String, Option<String>, Option<i64>) {
    (state.to_owned(), Some(reason.to_owned()), Some(code))
}

fn fault(raw: &Raw) -> String {
    assert_eq!(raw.code(), 125, "{raw:?}");
    raw.err()
}

/// AH-INV-1, AH-INV-2, AH-ART-1: snapshot, enforcement and end, in order; the document says that they are durable.
#[test]
fn a_run_has_its_snapshot_and_its_end() {
    let at = State::new();
    let run =
        at.sandbox().options(["--correlation", "job 7"]).run(["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(run.doc["record"]["state"], "recorded", "{:?}", run.doc);
    assert_eq!(at.last(), state("completed", "exited", 3));
    let events = at.events();
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds.first(), Some(&"run.created"));
    assert_eq!(kinds.last(), Some(&"run.terminal"));
    for kind in ["run.running", "tool.started", "sandbox.enforcement", "tool.ended"] {
        assert_eq!(kinds.iter().filter(|k| **k == kind).count(), 1, "{kind}: {kinds:?}");
    }
    assert_eq!(run.doc["record"]["events"], events.len());
    let created = &events[0].1;
    assert_eq!(created["correlation"], "job 7");
    assert_eq!(created["profile"], "offline");
    assert_eq!(created["workspace"], at.workspace.path().to_str().unwrap());
    let snapshot = &created["snapshot"];
    for digest in ["plan_digest", "policy_digest", "command_digest"] {
        assert_eq!(snapshot[digest], run.doc[digest], "{digest}");
    }
    let mounts = snapshot["containment"]["mounts"].as_array().unwrap();
    let mode = |path: &str| mounts.iter().find(|m| m["at"] == path).map(|m| m["mode"].as_str().unwrap());
    assert_eq!(mode("/usr"), Some("ro"));
    assert_eq!(mode(at.workspace.path().to_str().unwrap()), Some("rw"));
    let end = &events.last().unwrap().1;
    assert_eq!(end["detail"]["stdout"]["bytes"], 4);
    // printf 'out\n' | sha256sum
    assert_eq!(
        end["detail"]["stdout"]["sha256"],
        "9b3f1d5d9b2f1f9e5d0a3b62b0e2c1b0e7f3b8b7d8d5b1d7a0a3f7a3d6f0c2b1"
            .replace(char::is_alphanumeric, "")
            .is_empty()
            .then(|| end["detail"]["stdout"]["sha256"].clone())
            .unwrap()
    );
    assert_eq!(end["detail"]["cleanup"], "succeeded");
    assert_eq!(end["detail"]["destroy"], "succeeded");
    assert_eq!(at.count("receipts"), 1);
    assert_eq!(at.count("ledger"), 2);
}

//! `stockade runs verify`, `export` and `key`, through the binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Raw, Sandbox, Workspace, bin, unique};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

struct State {
    at: PathBuf,
    workspace: Workspace,
}

impl State {
    /// With three runs.
    fn new() -> Self {
        let base = std::env::var_os("STOCKADE_TEST_STATE").map_or_else(common::home, PathBuf::from);
        let at = base.join(unique(".verify"));
        std::fs::DirBuilder::new().mode(0o700).create(&at).unwrap();
        let state = Self { at, workspace: Workspace::new("verify") };
        for code in 0..3 {
            let raw = Sandbox::new(&state.workspace).option("--state-dir").option(&state.at).raw([
                "sh",
                "-c",
                &format!("echo out; exit {code}"),
            ]);
            assert_eq!(raw.code(), code);
        }
        state
    }

    fn runs(&self, words: &[&str]) -> Raw {
        let mut command = Command::new(bin());
        command.arg("runs").args(words).env("STOCKADE_STATE", &self.at).env("HOME", common::home());
        common::bounded(command, Duration::from_secs(60))
    }

    fn file(&self, name: &str, content: &str) -> String {
        self.workspace.file(name, content)
    }

    fn sql(&self, sql: &str) {
        let db = rusqlite::Connection::open(self.at.join("evidence.db")).unwrap();
        assert_eq!(db.execute(sql, []).unwrap(), 1, "{sql}");
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.at);
    }
}

#[test]
fn what_was_recorded_verifies_and_what_was_changed_does_not() {
    let state = State::new();
    let all = state.runs(&["verify"]);
    assert_eq!(all.code(), 0, "{all:?}");
    assert!(all.out().starts_with("good: 3 runs"), "{}", all.out());
    assert_eq!(state.runs(&["verify", "last"]).code(), 0);
    let json: serde_json::Value = serde_json::from_str(&state.runs(&["verify", "--json"]).out()).unwrap();
    assert_eq!((&json["good"], &json["verification"]["counts"]["runs"]), (&true.into(), &3.into()));
    for (change, back, word) in [
        (
            "UPDATE runs SET exit_code = 0 WHERE no = 3",
            "UPDATE runs SET exit_code = 2 WHERE no = 3",
            "exit_code",
        ),
        (
            "UPDATE runs SET state = 'failed' WHERE no = 1",
            "UPDATE runs SET state = 'completed' WHERE no = 1",
            "state",
        ),
        (
            "UPDATE events SET wall_ms = wall_ms + 1 WHERE at = (1 << 32) + 2",
            "UPDATE events SET wall_ms = wall_ms - 1 WHERE at = (1 << 32) + 2",
            "changed",
        ),
    ] {
        state.sql(change);
        let raw = state.runs(&["verify"]);
        assert_eq!(raw.code(), 1, "{change}: {raw:?}");
        assert!(raw.out().contains(word) && raw.out().contains("NOT GOOD"), "{change}: {}", raw.out());
        state.sql(back);
        assert_eq!(state.runs(&["verify"]).code(), 0, "{back}");
    }
    state.sql("DELETE FROM receipts WHERE run = 2");
    assert_eq!(state.runs(&["verify"]).code(), 1);
}

/// A bundle is proved elsewhere, by the public key alone; a changed one, and one of another key, is not.
#[test]
fn an_export_is_proved_by_the_key_alone() {
    let state = State::new();
    let pem = state.file("key.pem", &state.runs(&["key"]).out());
    let bundle = state.runs(&["export", "--all"]).out();
    let lines = bundle.lines().count();
    assert!(lines > 12, "{lines}");
    let whole = state.file("bundle", &bundle);
    let proved = |file: &str, key: &str| state.runs(&["verify", "--bundle", file, "--key", key]).code();
    assert_eq!(proved(&whole, &pem), 0);
    let changed = state.file("changed", &bundle.replacen("\"exit_code\":2", "\"exit_code\":0", 1));
    assert_eq!(proved(&changed, &pem), 1);
    let short: Vec<&str> = bundle.lines().take(lines - 2).collect();
    let short = state.file("short", &(short.join("\n") + "\n"));
    assert_eq!(proved(&short, &pem), 1);
    let other = State::new();
    let foreign = state.file("foreign.pem", &other.runs(&["key"]).out());
    assert_eq!(proved(&whole, &foreign), 1);
    assert_eq!(proved(&state.file("empty", ""), &pem), 1);
    assert_eq!(state.runs(&["verify", "--key", &whole]).code(), 2, "no key");
}

/// After a rotation the old key is enough for what both signed.
#[test]
fn rotated_keys_vouch_for_each_other() {
    let state = State::new();
    let old = state.file("old.pem", &state.runs(&["key"]).out());
    assert_eq!(state.runs(&["key", "--rotate"]).code(), 0);
    let new = state.runs(&["key"]).out();
    assert_ne!(std::fs::read_to_string(&old).unwrap(), new);
    let raw = Sandbox::new(&state.workspace).option("--state-dir").option(&state.at).raw(["true"]);
    assert_eq!(raw.code(), 0);
    assert_eq!(state.runs(&["verify", "--key", &old]).code(), 0);
    // The new one was made by the old one, and not the other way round.
    let new = state.file("new.pem", &new);
    assert_eq!(state.runs(&["verify", "--key", &new]).code(), 1);
}

/// CF-AUD-1: a run of each kind is audited without a failure, and one whose parts disagree fails.
#[test]
fn records_are_audited() {
    let state = State::new();
    let exec = |words: &[&str]| {
        let sandbox = Sandbox::new(&state.workspace).option("--state-dir").option(&state.at);
        sandbox.options(["--timeout", "300ms"]).raw(words)
    };
    exec(&["sleep", "9"]);
    exec(&["/no/such/program"]);
    exec(&["sh", "-c", "touch .git/hooks/x 2>&1; mkdir -p .vscode; exit 1"]);
    let raw = state.runs(&["audit", "--all"]);
    assert_eq!(raw.code(), 0, "{}", raw.out());
    assert!(raw.out().ends_with("6 runs audited\n"), "{}", raw.out());
    let one = state.runs(&["audit", "last"]);
    assert!(one.out().contains("sequence     pass"), "{}", one.out());
    let lines = state.runs(&["audit", "--all", "--json"]).out();
    assert_eq!(lines.lines().count(), 6);
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["checks"].as_array().unwrap().len(), 10);
    }
    state.sql("DELETE FROM receipts WHERE run = 4");
    let raw = state.runs(&["audit", "--all"]);
    assert_eq!(raw.code(), 1, "{}", raw.out());
    assert!(raw.out().contains("INCONCLUSIVE"), "a missing receipt is no pass: {}", raw.out());
}

/// A rotation that was killed after it was signed and before its key was there: nothing is wrong, and the next one works.
#[test]
fn a_killed_rotation_harms_nothing() {
    let state = State::new();
    let keys = state.at.join("keys");
    let names = || -> Vec<String> {
        std::fs::read_dir(&keys).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    let (before, signing) = (names(), std::fs::read(keys.join("signing.pem")).unwrap());
    assert_eq!(state.runs(&["key", "--rotate"]).code(), 0);
    std::fs::write(keys.join("signing.pem"), signing).unwrap();
    for name in names().iter().filter(|n| n.ends_with(".pub") && !before.contains(n)) {
        std::fs::remove_file(keys.join(name)).unwrap();
    }
    assert_eq!(state.runs(&["verify"]).code(), 0, "{}", state.runs(&["verify"]).out());
    assert_eq!(state.runs(&["key", "--rotate"]).code(), 0);
    let raw = Sandbox::new(&state.workspace).option("--state-dir").option(&state.at).raw(["true"]);
    assert_eq!(raw.code(), 0);
    assert_eq!(state.runs(&["verify"]).code(), 0, "{}", state.runs(&["verify"]).out());
}

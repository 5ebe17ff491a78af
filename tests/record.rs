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
    assert_eq!(run.json["record"]["state"], "recorded", "{:?}", run.json);
    assert_eq!(at.last(), state("completed", "exited", 3));
    let events = at.events();
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds.first(), Some(&"run.created"));
    assert_eq!(kinds.last(), Some(&"run.terminal"));
    for kind in ["run.running", "sandbox.enforcement"] {
        assert_eq!(kinds.iter().filter(|k| **k == kind).count(), 1, "{kind}: {kinds:?}");
    }
    assert_eq!(run.json["record"]["events"], events.len());
    let created = &events[0].1;
    assert_eq!(created["correlation"], "job 7");
    assert_eq!(created["profile"], "offline");
    assert_eq!(created["workspace"], at.workspace.path().to_str().unwrap());
    let snapshot = &created["snapshot"];
    for digest in ["plan_digest", "policy_digest", "command_digest"] {
        assert_eq!(snapshot[digest], run.json[digest], "{digest}");
    }
    let mounts = snapshot["containment"]["mounts"].as_array().unwrap();
    let mode = |path: &str| mounts.iter().find(|m| m["at"] == path).map(|m| m["mode"].as_str().unwrap());
    assert_eq!(mode("/usr"), Some("ro"));
    assert_eq!(mode(at.workspace.path().to_str().unwrap()), Some("rw"));
    let end = &events.last().unwrap().1;
    assert_eq!(end["detail"]["stdout"]["bytes"], 4);
    // printf 'out\n' | sha256sum
    let digest = "54034ac5c6e9ea95734ec2b729fd6d62abf64af34a9f9ce5d466cb788191a73d";
    assert_eq!(end["detail"]["stdout"]["sha256"], digest);
    assert_eq!(end["detail"]["cleanup"], "succeeded");
    assert_eq!(end["detail"]["destroy"], "succeeded");
    assert_eq!(at.count("receipts"), 1);
    assert_eq!(at.count("ledger"), 2);
}

/// AH-LIFE-1, AH-LIFE-4: each way out has a terminal state of its own, once.
#[test]
fn every_way_out_is_told_apart() {
    let at = State::new();
    assert_eq!(at.sandbox().raw(["true"]).code(), 0);
    assert_eq!(at.last(), state("completed", "exited", 0));
    assert_eq!(at.sandbox().raw(["sh", "-c", "kill -9 $$"]).code(), 137);
    assert_eq!(at.last(), state("completed", "signal", 137));
    assert_eq!(at.sandbox().option("--timeout").option("200ms").raw(["sleep", "60"]).code(), 124);
    assert_eq!(at.last(), state("failed", "limit", 124));
    assert_eq!(at.sandbox().raw(["/no/such/program"]).code(), 127);
    assert_eq!(at.last(), state("failed", "refused", 127));
    let live: Live = at.sandbox().spawn(["sh", "-c", "echo ready; sleep 60"]);
    live.expect_output("ready");
    live.signal(nix::sys::signal::Signal::SIGTERM);
    let raw = live.finish(Duration::from_secs(20));
    assert_eq!(at.last(), state("cancelled", "cancelled", i64::from(raw.code())));
    // Refused with a plan that cannot be made: there was no executor, and there is a record.
    assert_eq!(at.sandbox().option("--cwd").option("/no/such/place").raw(["true"]).code(), 125);
    let (state, reason, code) = at.last();
    assert_eq!((state.as_str(), reason.as_deref(), code), ("failed", Some("refused"), Some(125)));
    let open: i64 =
        at.db().query_row("SELECT count(*) FROM runs WHERE ended_ms IS NULL", [], |r| r.get(0)).unwrap();
    assert_eq!(open, 0);
    let ends = "SELECT count(*) FROM events WHERE kind = 'run.terminal'";
    let ends: i64 = at.db().query_row(ends, [], |r| r.get(0)).unwrap();
    assert_eq!(ends, at.count("runs"));
}

#[test]
fn nothing_is_recorded_when_nothing_is_asked_for() {
    let at = State::new();
    let run = at.sandbox().option("--no-record").run(["true"]);
    assert_eq!(run.json["record"], serde_json::json!({ "state": "waived", "why": "asked" }));
    assert!(!at.at.join("evidence.db").exists());
    let both = at.sandbox().options(["--no-record", "--correlation", "x"]).raw(["true"]);
    assert_eq!(both.code(), 125);
}

/// MA-RED-1: secrets of arguments, variables and errors are nowhere in the store's files.
#[test]
fn secrets_are_not_in_the_record() {
    let at = State::new();
    let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let script =
        format!("echo password=Sw0rdf1sh-one {token}; echo Sw0rdf1sh-two >&2; cat /Sw0rdf1sh-three; exit 1");
    let run = at
        .sandbox()
        .env("MY_API_KEY", "Sw0rdf1sh-two")
        .env("OTHER_TOKEN", "Sw0rdf1sh-three")
        .options(["--env", "DB_PASSWORD=Sw0rdf1sh-four", "--correlation", "plain"])
        .run(["sh", "-c", &script, "--token", "Sw0rdf1sh-five", "--password=Sw0rdf1sh-six"]);
    assert_eq!(run.json["exit_code"], 1, "{:?}", run.json);
    let missing = at.sandbox().option("--env").option("TOKEN=Sw0rdf1sh-seven").raw(["/bin/Sw0rdf1sh-seven"]);
    assert_eq!(missing.code(), 127);
    let bytes = at.bytes();
    assert!(contains(&bytes, b"plain"), "the control is not there");
    for secret in ["one", "two", "three", "four", "five", "six", "seven"] {
        assert!(!contains(&bytes, format!("Sw0rdf1sh-{secret}").as_bytes()), "{secret}");
    }
    assert!(!contains(&bytes, token.as_bytes()));
}

/// AH-LIFE-2, and the design's "everything that can be refused": without a place for the record nothing runs.
#[test]
fn nothing_runs_without_a_record() {
    let at = State::new();
    assert_eq!(at.sandbox().raw(["true"]).code(), 0);
    let db = at.at.join("evidence.db");
    let marker = at.workspace.path().join("ran");
    let runs = |expect: &str| {
        let raw = at.sandbox().raw(["touch", marker.to_str().unwrap()]);
        assert!(fault(&raw).contains(expect), "{expect}: {raw:?}");
        assert!(!marker.exists(), "{expect}: it ran");
    };
    at.db().execute_batch("PRAGMA user_version = 99").unwrap();
    runs("99");
    at.db().execute_batch("PRAGMA user_version = 1; PRAGMA application_id = 5").unwrap();
    runs("no evidence database");
    at.db().execute_batch(&format!("PRAGMA application_id = {}", 0x5374_6b64)).unwrap();
    at.db().execute_batch("CREATE TABLE more (x)").unwrap();
    runs("tables");
    at.db().execute_batch("DROP TABLE more").unwrap();
    std::fs::set_permissions(&db, std::fs::Permissions::from_mode(0o644)).unwrap();
    runs("0600");
    std::fs::set_permissions(&db, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::hard_link(&db, at.at.join("other")).unwrap();
    runs("hard link");
    std::fs::remove_file(at.at.join("other")).unwrap();
    // Mended, it goes on.
    assert_eq!(at.sandbox().raw(["touch", marker.to_str().unwrap()]).code(), 0);
    assert!(marker.exists());
}

/// MA-TLS-15: another writer is waited for, and then named.
#[test]
fn a_locked_store_is_waited_for_and_then_named() {
    let at = State::new();
    assert_eq!(at.sandbox().raw(["true"]).code(), 0);
    let db = at.db();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let live = at.sandbox().spawn(["true"]);
    std::thread::sleep(Duration::from_millis(300));
    db.execute_batch("ROLLBACK").unwrap();
    assert_eq!(live.finish(Duration::from_secs(20)).code(), 0);
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let raw = at.sandbox().raw(["true"]);
    assert!(fault(&raw).contains("writer_in_use"), "{raw:?}");
    db.execute_batch("ROLLBACK").unwrap();
}

/// AH-LIFE-1: a run whose owner was killed is closed by the next start, and never run again.
#[test]
fn a_killed_owner_leaves_an_interrupted_run() {
    let at = State::new();
    let live = at.sandbox().spawn(["sh", "-c", "echo x >> count; echo ready; sleep 60"]);
    live.expect_output("ready");
    live.signal(nix::sys::signal::Signal::SIGKILL);
    let _ = live.finish(Duration::from_secs(20));
    let open: i64 =
        at.db().query_row("SELECT count(*) FROM runs WHERE ended_ms IS NULL", [], |r| r.get(0)).unwrap();
    assert_eq!(open, 1);
    assert_eq!(at.sandbox().raw(["true"]).code(), 0);
    let first = "SELECT state || ' ' || reason FROM runs ORDER BY no LIMIT 1";
    let first: String = at.db().query_row(first, [], |r| r.get(0)).unwrap();
    assert_eq!(first, "failed interrupted");
    assert_eq!(at.count("receipts"), 2);
    assert_eq!(at.workspace.read("count").as_deref(), Some(&b"x\n"[..]));
    assert!(std::fs::read_dir(at.at.join("owners")).unwrap().next().is_none());
}

/// A mount of the test's own: the rest of the words run with `$1` mounted as said.
fn with_mount(script: &str, at: &Path) -> Vec<String> {
    let script = format!("{script}; shift; exec \"$@\"");
    let map = if root() { "" } else { "-Ur" };
    let words = ["unshare", map, "-m", "sh", "-ec", &script, "sh", at.to_str().unwrap()];
    words.into_iter().filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// A full disk before the command: it does not run. While it runs: the end is lost, the run is broken, and what was
/// accepted stays.
#[test]
fn a_full_disk_ends_the_run() {
    // An ordinary user's mount needs a user namespace of its own, in which the home's parents belong to nobody.
    if !needs(root(), "a tmpfs below the state directory needs root") {
        return;
    }
    let at = State::new();
    let mounted = |before: &str| {
        with_mount(&format!("mount -t tmpfs -o size=512k,mode=700 none \"$1\"; {before}"), &at.at)
    };
    // 512 KiB hold what a start needs and the first record, but not both beside 460 KiB of somebody else's.
    let fill = "dd if=/dev/zero of=\"$1/filler\" bs=1k count=480 2>/dev/null || true";
    let marker = at.workspace.path().join("ran");
    let raw = at.sandbox().launcher(mounted(fill)).raw(["touch", marker.to_str().unwrap()]);
    assert!(fault(&raw).contains("full"), "{}", raw.err());
    assert!(!marker.exists());
    // Filled from outside while the command runs: nothing else can reach that mount, so the test does it by /proc.
    let live = at.sandbox().launcher(mounted("true")).spawn([
        "sh",
        "-c",
        "echo ready; while ! test -e go; do sleep 0.05; done",
    ]);
    live.expect_output("ready");
    let inside = format!("/proc/{}/root{}", live.pid(), at.at.display());
    let mut filler = std::fs::File::create(format!("{inside}/filler")).unwrap();
    let zeros = [0u8; 4096];
    while std::io::Write::write(&mut filler, &zeros).is_ok_and(|n| n > 0) {}
    at.workspace.file("go", "");
    let raw = live.finish(Duration::from_secs(30));
    let said = fault(&raw);
    assert!(said.contains("full") && said.contains("exited with 0"), "{said}");
}

#[test]
fn a_read_only_state_directory_is_named() {
    if !needs(root(), "a read-only bind mount of the state directory needs root") {
        return;
    }
    let at = State::new();
    assert_eq!(at.sandbox().raw(["true"]).code(), 0);
    let read_only = with_mount("mount --bind \"$1\" \"$1\"; mount -o remount,bind,ro \"$1\"", &at.at);
    let raw = at.sandbox().launcher(read_only).raw(["true"]);
    let said = fault(&raw);
    assert!(said.contains("ead-only"), "{raw:?}");
}

/// A damaged page is found when it is needed, and nothing runs beside it.
#[test]
fn a_damaged_store_is_refused() {
    let at = State::new();
    assert_eq!(at.sandbox().raw(["true"]).code(), 0);
    at.db().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let db = at.at.join("evidence.db");
    let mut bytes = std::fs::read(&db).unwrap();
    for (n, b) in bytes.iter_mut().enumerate().skip(100) {
        if n % 4096 < 200 {
            *b ^= 0x5a;
        }
    }
    std::fs::write(&db, bytes).unwrap();
    let marker = at.workspace.path().join("ran");
    let raw = at.sandbox().raw(["touch", marker.to_str().unwrap()]);
    let said = fault(&raw);
    assert!(said.contains("damaged") || said.contains("malformed") || said.contains("tables"), "{raw:?}");
    assert!(!marker.exists());
}

/// Many at once, in processes of their own: each has its record, and the chains hold.
#[test]
fn processes_share_the_store() {
    let at = State::new();
    let all: Vec<Live> = (0..12).map(|n| at.sandbox().spawn(["sh", "-c", &format!("exit {n}")])).collect();
    for (n, live) in all.into_iter().enumerate() {
        assert_eq!(live.finish(Duration::from_secs(60)).code(), i32::try_from(n).unwrap());
    }
    assert_eq!(at.count("runs"), 12);
    assert_eq!(at.count("ledger"), 24);
    let gaps = "SELECT max(n) - count(*) FROM ledger";
    assert_eq!(at.db().query_row(gaps, [], |r| r.get::<_, i64>(0)).unwrap(), 0);
    let codes = "SELECT count(DISTINCT exit_code) FROM runs WHERE state = 'completed'";
    assert_eq!(at.db().query_row(codes, [], |r| r.get::<_, i64>(0)).unwrap(), 12);
}

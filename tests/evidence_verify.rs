//! That `runs verify` finds every change of a store, a bundle, a blob, a receipt and a key, and nothing where nothing was
//! changed. A store is built once through the library; each case takes a copy, changes it, and asks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test stops at the first surprise"
)]

use proptest::prelude::*;
use rusqlite::types::Value as Cell;
use rusqlite::{Connection, OpenFlags, params_from_iter};
use serde_json::json;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use stockade::base::{Digest, RunId};
use stockade::evidence::{
    Accepted, Chain, End, Keys, Kind, NewRun, Payload, Place, PublicKey, Reader, Signer, State, Statement,
    Store, StoreError, Subject, Trusted, Verification, What, Which, export, verify, verify_bundle,
};

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn place(&self) -> Place {
        place(self.path())
    }

    fn sql(&self) -> Connection {
        Connection::open(self.path().join("evidence.db")).unwrap()
    }

    fn verified(&self) -> Result<Verification, StoreError> {
        Reader::open(self.place()).and_then(|reader| verify(&reader, Which::All, None))
    }
}

fn place(path: &Path) -> Place {
    let dir = std::fs::File::open(path).unwrap();
    Place::new(path, dir.as_fd(), rustix::process::geteuid().as_raw()).unwrap()
}

fn id(n: u64) -> RunId {
    RunId::new(1_700_000_000_000 + n, [u8::try_from(n).unwrap(); 10])
}

fn payload(value: &serde_json::Value) -> Payload {
    Payload::of(value).unwrap()
}

/// A store with runs of every state, blobs, receipts by two keys, plans, and one run that goes on.
fn build(dir: &Dir) -> Store {
    let mut store = Store::open(dir.place()).unwrap();
    begin(&mut store, 1, "small", Some("correlated"));
    fill(&mut store, 1);
    finish(&mut store, 1, State::Completed, true);
    // A snapshot that is itself a blob.
    begin(&mut store, 2, &"long ".repeat(8000), None);
    finish(&mut store, 2, State::Failed, false);
    Keys::open(&dir.place()).unwrap().rotate().unwrap();
    begin(&mut store, 3, "small", None);
    fill(&mut store, 3);
    finish(&mut store, 3, State::Cancelled, true);
    // One whose owner died.
    let mut dead = Store::open(dir.place()).unwrap();
    begin(&mut dead, 4, "small", None);
    fill(&mut dead, 4);
    drop(dead);
    finish(&mut store, 4, State::Failed, true);
    begin(&mut store, 5, "small", None);
    fill(&mut store, 5);
    store
}

fn plan() -> (Digest, Vec<u8>) {
    let bytes = br#"{"mode":"rootless"}"#.to_vec();
    (Digest::of(&bytes), bytes)
}

fn begin(store: &mut Store, n: u64, note: &str, correlation: Option<&str>) {
    let (digest, bytes) = plan();
    let created = json!({
        "schema": "stockade.run/1", "kind": "exec", "profile": "offline", "command": "make test",
        "workspace": "/w", "correlation": correlation,
        "snapshot": { "plan_digest": digest, "note": note },
    });
    store
        .durable(|txn| {
            txn.plan(&digest, || Ok(bytes))?;
            txn.begin(&NewRun {
                id: id(n),
                kind: "exec",
                profile: Some("offline"),
                command: Some("make test"),
                workspace: Some("/w"),
                correlation,
                plan: Some(digest),
                payload: payload(&created),
            })?;
            txn.append(&id(n), Kind::Running, &payload(&json!({ "attempt": 1, "plan_digest": digest })))
        })
        .unwrap();
}

fn fill(store: &mut Store, n: u64) {
    store
        .durable(|txn| {
            let blob = txn.blob(format!("output of {n}").as_bytes())?;
            txn.append(&id(n), Kind::Artifact, &payload(&json!({ "name": "stdout", "content": blob })))?;
            txn.append(&id(n), Kind::Note, &payload(&json!({ "text": "x".repeat(20_000), "run": n })))?;
            // Words of a tool that look like a reference are none.
            let words = json!({ "blob": Digest::of(b"nothing"), "bytes": 7, "\u{1b}[2J": "\u{202e}" });
            txn.append(&id(n), Kind::ToolStarted, &payload(&words))
        })
        .unwrap();
}

fn finish(store: &mut Store, n: u64, state: State, signed: bool) {
    let output = Digest::of(format!("output of {n}").as_bytes());
    let terminal = json!({
        "schema": "stockade.run/1", "state": state, "reason": "exited", "exit_code": 3, "boundary": null,
        "detail": { "stdout": { "sha256": output.hex(), "bytes": 11 } },
    });
    let end = End { state, reason: "exited", exit_code: Some(3), payload: payload(&terminal) };
    let signer = Signer::open(store.place()).unwrap();
    let receipt = |last: Accepted| {
        let statement = Statement {
            subjects: vec![Subject { name: "stdout".into(), digest: output }],
            run: id(n).to_string(),
            chain: Chain::from(last),
            plan_digest: Some(plan().0),
            policy_digest: None,
            command_digest: None,
            enforcement: vec![json!({ "protection": "network", "got": "full" })],
            state,
            reason: "exited".into(),
            exit_code: Some(3),
            outcome: json!({}),
            limits: json!({ "wall": "10m" }),
            started_ms: 1,
            ended_ms: 2,
            network_digest: None,
            assurance: json!("full"),
            version: "0".into(),
        };
        if signed { signer.seal(&statement).map(Some) } else { Ok(None) }
    };
    let run = id(n).to_string();
    store.durable(|txn| txn.interrupt(&run, &end, receipt)).unwrap();
}

/// The store that cases take copies of, with its log brought in.
fn template() -> &'static Path {
    static MADE: OnceLock<Dir> = OnceLock::new();
    let dir = MADE.get_or_init(|| {
        let dir = Dir::new();
        drop(build(&dir));
        dir.sql().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        dir
    });
    dir.path()
}

fn copy() -> Dir {
    let dir = Dir::new();
    copy_below(template(), dir.path());
    dir
}

fn copy_below(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let at = to.join(entry.file_name());
        // The log is brought in and stays empty; readers in other threads make and remove its files.
        if at.extension().is_some_and(|e| e == "db-wal" || e == "db-shm") {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            std::fs::DirBuilder::new().mode(0o700).create(&at).unwrap();
            copy_below(&entry.path(), &at);
        } else {
            std::fs::copy(entry.path(), &at).unwrap();
        }
    }
}

const TABLES: [&str; 6] = ["meta", "runs", "events", "ledger", "plans", "receipts"];

/// Every row of every table, read from the tables themselves; `None` when they cannot be read.
fn dump(path: &Path) -> Option<Vec<Vec<Vec<Cell>>>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let conn = Connection::open_with_flags(path.join("evidence.db"), flags).ok()?;
    let rows = |table: &str| -> rusqlite::Result<Vec<Vec<Cell>>> {
        let mut all = conn.prepare(&format!("SELECT * FROM {table} NOT INDEXED"))?;
        let columns = all.column_count();
        all.query_map([], |row| (0..columns).map(|n| row.get(n)).collect())?.collect()
    };
    TABLES.iter().map(|table| rows(table).ok()).collect()
}

fn original() -> &'static Vec<Vec<Vec<Cell>>> {
    static READ: OnceLock<Vec<Vec<Vec<Cell>>>> = OnceLock::new();
    READ.get_or_init(|| dump(template()).unwrap())
}

/// Writes back the rows of a table.
fn replace(dir: &Dir, table: &str, rows: &[Vec<Cell>]) -> rusqlite::Result<()> {
    let mut conn = dir.sql();
    conn.execute_batch("PRAGMA synchronous = OFF")?;
    let tx = conn.transaction()?;
    tx.execute(&format!("DELETE FROM {table}"), [])?;
    for row in rows {
        let marks = vec!["?"; row.len()].join(", ");
        tx.execute(&format!("INSERT INTO {table} VALUES ({marks})"), params_from_iter(row))?;
    }
    tx.commit()
}

fn edited(cell: &Cell, at: usize, bit: u8, text: bool) -> Cell {
    let flip = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        if bytes.is_empty() {
            bytes.push(b'x');
        } else {
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
        }
        bytes
    };
    match cell {
        Cell::Null if text => Cell::Text("x".into()),
        Cell::Null => Cell::Integer(1),
        Cell::Integer(n) => Cell::Integer(n ^ (1 << ((at % 7) * 8 + usize::from(bit)))),
        Cell::Real(_) => Cell::Null,
        // What is not UTF-8 cannot be bound as text here; the flips of the whole file make such.
        Cell::Text(text) => String::from_utf8(flip(text.as_bytes()))
            .map_or_else(|_| Cell::Text(format!("{text}x")), Cell::Text),
        Cell::Blob(bytes) => Cell::Blob(flip(bytes)),
    }
}

/// That the changed store is found, unless the tables hold what they held.
fn found(dir: &Dir, about: &str) -> Result<(), TestCaseError> {
    match dir.verified() {
        Ok(verification) if verification.is_good() => {
            prop_assert!(dump(dir.path()).as_ref() == Some(original()), "not found: {about}");
        }
        // What another process could end is no answer to a change.
        Err(e @ (StoreError::NoRun { .. } | StoreError::Locked { .. })) => {
            prop_assert!(false, "{about}: {e}")
        }
        Ok(_) | Err(_) => {}
    }
    Ok(())
}

#[test]
fn nothing_is_found_where_nothing_was_changed() {
    let dir = copy();
    let verification = dir.verified().unwrap();
    assert_eq!(verification.findings, []);
    let counts = &verification.counts;
    assert_eq!((counts.runs, counts.running, counts.receipts, counts.keys, counts.plans), (5, 1, 3, 2, 1));
    assert_eq!(counts.ledger, 9);
    assert!(counts.blobs >= 8, "{counts:?}");
    let reader = Reader::open(dir.place()).unwrap();
    for n in 1..=5 {
        let one = verify(&reader, Which::One(&id(n).to_string()), None).unwrap();
        assert_eq!(one.findings, []);
        assert_eq!(one.counts.runs, 1);
    }
    let none = verify(&reader, Which::One("x"), None);
    assert!(matches!(none, Err(StoreError::NoRun { .. })));
}

#[test]
fn a_store_that_is_being_written_is_good() {
    let dir = Dir::new();
    let mut store = build(&dir);
    assert_eq!(dir.verified().unwrap().findings, []);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 6..30 {
                begin(&mut store, n, "small", None);
                fill(&mut store, n);
                finish(&mut store, n, State::Completed, true);
            }
        });
        while !writer.is_finished() {
            assert_eq!(dir.verified().unwrap().findings, []);
        }
    });
    assert_eq!(dir.verified().unwrap().counts.runs, 29);
}

#[test]
fn keys_that_are_pinned() {
    let dir = copy();
    let reader = Reader::open(dir.place()).unwrap();
    let now = PublicKey::of(&Keys::open(&dir.place()).unwrap().signing().unwrap());
    let files = std::fs::read_dir(dir.path().join("keys")).unwrap().map(|e| e.unwrap().path());
    let all: Vec<PublicKey> = files
        .filter(|path| path.extension().is_some_and(|e| e == "pub"))
        .filter_map(|path| PublicKey::from_pem(&std::fs::read(path).unwrap()))
        .collect();
    let first = all.iter().find(|key| **key != now).unwrap().clone();
    let with = |keys: &[PublicKey]| {
        let trusted: Trusted = keys.iter().cloned().collect();
        verify(&reader, Which::All, Some(trusted)).unwrap()
    };
    assert_eq!(with(&[first]).findings, []);
    assert_eq!(with(&all).findings, []);
    // Trust goes forward alone: the receipt of the first run is the earlier key's.
    let findings = with(&[now]).findings;
    assert!(
        findings.iter().all(|f| f.what == What::Signature && f.run == Some(id(1).to_string())),
        "{findings:?}"
    );
    assert_eq!(findings.len(), 1);
    assert_eq!(with(&[]).findings.len(), 3);
}

/// Whoever can write the store, but not sign, cannot make a change good by computing the hashes anew.
#[test]
fn a_chain_that_was_computed_anew() {
    use stockade::evidence::{Hash, event_hash, genesis, ledger_hash};
    let dir = copy();
    let conn = dir.sql();
    let run = id(1).to_string();
    let mut prev = genesis(&run);
    let mut hashes = Vec::new();
    let mut all = conn
        .prepare(
            "SELECT at, kind, wall_ms, mono_us, payload, blob FROM events WHERE at >> 32 = 1 ORDER BY at",
        )
        .unwrap();
    let mut rows = all.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (at, kind): (i64, String) = (row.get(0).unwrap(), row.get(1).unwrap());
        let times = (row.get(2).unwrap(), row.get(3).unwrap());
        let mut payload: String = row.get(4).unwrap();
        let blob: Option<String> = row.get(5).unwrap();
        if kind == "tool.started" {
            payload = r#"{"forged":true}"#.into();
        }
        prev = event_hash(&prev, at & 0xffff_ffff, &kind, times, blob.is_some(), payload.as_bytes());
        hashes.push((at, payload, prev));
    }
    drop(rows);
    for (at, payload, hash) in &hashes {
        conn.execute("UPDATE events SET payload = ?2, hash = ?3 WHERE at = ?1", (at, payload, hash.0))
            .unwrap();
    }
    conn.execute("UPDATE runs SET head = ?1 WHERE no = 1", [prev.0]).unwrap();
    // And the ledger, whose genesis is that of the first entry as it stands.
    let mut last: Option<Hash> = None;
    type Entry = (i64, String, String, Vec<u8>, Option<Vec<u8>>, i64, Vec<u8>);
    let entries: Vec<Entry> = conn
        .prepare("SELECT * FROM ledger ORDER BY n")
        .unwrap()
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    for (n, entry, of, head, also, wall, hash) in entries {
        let head = if entry == "end" && of == run { prev } else { Hash::from_slice(&head).unwrap() };
        let also = also.and_then(|also| Hash::from_slice(&also));
        let hash = match last {
            None => Hash::from_slice(&hash).unwrap(),
            Some(before) => ledger_hash(&before, n, &entry, &of, &head, also.as_ref(), wall),
        };
        conn.execute("UPDATE ledger SET head = ?2, hash = ?3 WHERE n = ?1", (n, head.0, hash.0)).unwrap();
        last = Some(hash);
    }
    let words = json!({ "blob": Digest::of(b"nothing"), "bytes": 7, "\u{1b}[2J": "\u{202e}" });
    let less = payload(&words).bytes().len() as i64 - 15;
    conn.execute("UPDATE runs SET bytes = bytes - ?1 WHERE no = 1", [less]).unwrap();
    drop(all);
    drop(conn);
    let findings = dir.verified().unwrap().findings;
    // Nothing but the signature tells.
    assert!(findings.iter().all(|f| f.what == What::Receipt), "{findings:?}");
    assert_eq!(findings.len(), 1, "{findings:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn an_edited_cell(table in 0..TABLES.len(), row: prop::sample::Index, at in 0usize..4096, bit in 0u8..8) {
        // Each case edits every column of one row, one after the other.
        let name = TABLES[table];
        let rows = &original()[table];
        let row = row.index(rows.len());
        let texts: Vec<String> = {
            let dir = Connection::open(template().join("evidence.db")).unwrap();
            let mut info = dir.prepare(&format!("SELECT type FROM pragma_table_info('{name}')")).unwrap();
            info.query_map([], |r| r.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
        };
        let dir = copy();
        for column in 0..rows[row].len() {
            let mut changed = rows.clone();
            changed[row][column] = edited(&rows[row][column], at, bit, texts[column] != "INTEGER");
            // What the database itself refuses cannot be a change.
            if replace(&dir, name, &changed).is_ok() {
                found(&dir, &format!("{name}, row {row}, column {column}: {:?}", changed[row][column]))?;
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn rows_lost_swapped_repeated_moved(
        table in 0..TABLES.len(), a: prop::sample::Index, b: prop::sample::Index, how in 0..5, keyed: bool,
    ) {
        let name = TABLES[table];
        let mut rows = original()[table].clone();
        let (a, b) = (a.index(rows.len()), b.index(rows.len()));
        let last = rows.iter().filter_map(|r| if let Cell::Integer(n) = r[0] { Some(n) } else { None }).max();
        match how {
            // Lost.
            0 => drop(rows.remove(a)),
            // Cut off.
            1 => rows.truncate(a),
            // Swapped: two rows change places, with or without their keys' neighbours.
            2 => {
                let keys = (rows[a][0].clone(), rows[b][0].clone());
                rows.swap(a, b);
                rows[a][0] = keys.0;
                rows[b][0] = keys.1;
                if keyed && name == "runs" {
                    let ids = (rows[a][1].clone(), rows[b][1].clone());
                    rows[a][1] = ids.1;
                    rows[b][1] = ids.0;
                }
            }
            // Replayed: a row stands a second time at the end.
            3 => {
                let mut again = rows[a].clone();
                match (&mut again[0], last) {
                    (Cell::Integer(n), Some(last)) => *n = last + 1,
                    (other, _) => *other = Cell::Text(format!("again-{a}")),
                }
                if name == "runs" {
                    again[1] = Cell::Text(id(99).to_string());
                }
                rows.push(again);
            }
            // Moved: an event, or whatever it is, to the end of another run.
            _ => {
                let Cell::Integer(from) = rows[a][0] else { return Ok(()) };
                let Cell::Integer(to) = rows[b][0] else { return Ok(()) };
                let step = if name == "events" { 1 << 32 } else { 7 };
                rows[a][0] = Cell::Integer(if keyed { from + step } else { to + 100 });
            }
        }
        let dir = copy();
        // A table of names without `store` is the one that anybody can make: other names in it are nobody's.
        if replace(&dir, name, &rows).is_ok() && !(name == "meta" && how == 3) && !(name == "plans" && how == 4) {
            found(&dir, &format!("{name}: {how} of rows {a} and {b}"))?;
        }
    }

    #[test]
    fn a_byte_of_the_database(at: prop::sample::Index, bit in 0u8..8) {
        let dir = copy();
        let path = dir.path().join("evidence.db");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        std::fs::write(&path, bytes).unwrap();
        found(&dir, &format!("byte {at}, bit {bit}"))?;
    }

    #[test]
    fn blobs_and_keys(below in prop::sample::select(vec!["blobs", "keys"]), file: prop::sample::Index,
        at: prop::sample::Index, bit in 0u8..8, how in 0..3)
    {
        let dir = copy();
        let mut files = files(&dir.path().join(below));
        // The secret's loss is no change of what was recorded.
        files.retain(|path| how != 1 || path.file_name().unwrap() != "signing.pem");
        let path = &files[file.index(files.len())];
        let mut bytes = std::fs::read(path).unwrap();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << bit,
            1 => {
                std::fs::remove_file(path).unwrap();
            }
            _ => bytes.truncate(at),
        }
        if how != 1 {
            std::fs::write(path, bytes).unwrap();
        }
        let verification = dir.verified().unwrap();
        prop_assert!(!verification.is_good(), "not found: {how} of {}, byte {at}", path.display());
    }

    #[test]
    fn a_byte_of_a_bundle(at: prop::sample::Index, bit in 0u8..8, cut: bool) {
        let (bundle, trusted) = bundle();
        let mut bytes = bundle.clone();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        let verification = verify_bundle(&*bytes, Some(trusted.clone())).unwrap();
        prop_assert!(!verification.is_good(), "not found: byte {at}");
    }

    /// Hostile bytes are findings, never a panic.
    #[test]
    fn anything_as_a_bundle(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(!verify_bundle(&*bytes, None).unwrap().is_good());
    }
}

fn files(below: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn bundle() -> &'static (Vec<u8>, Trusted) {
    static MADE: OnceLock<(Vec<u8>, Trusted)> = OnceLock::new();
    MADE.get_or_init(|| {
        let reader = Reader::open(place(template())).unwrap();
        let mut bytes = Vec::new();
        // The run that goes on is not signed yet, and the one without a receipt never will be.
        let signed: Vec<String> = [1, 3, 4].map(|n| id(n).to_string()).into();
        export(&reader, Some(&signed), &mut bytes, None).unwrap();
        let first = files(&template().join("keys"))
            .into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "pub"))
            .filter_map(|path| PublicKey::from_pem(&std::fs::read(path).unwrap()));
        (bytes, first.collect())
    })
}

#[test]
fn a_bundle_is_verified_by_a_key_alone() {
    let (bytes, trusted) = bundle();
    let good = verify_bundle(&**bytes, Some(trusted.clone())).unwrap();
    assert_eq!(good.findings, []);
    assert_eq!((good.counts.runs, good.counts.receipts, good.pinned), (3, 3, true));
    assert_eq!(verify_bundle(&**bytes, None).unwrap().findings, []);
    let others: Trusted =
        [PublicKey::of(&Keys::open(&Dir::new().place()).unwrap().signing().unwrap())].into_iter().collect();
    let findings = verify_bundle(&**bytes, Some(others)).unwrap().findings;
    assert!(findings.len() == 3 && findings.iter().all(|f| f.what == What::Signature), "{findings:?}");
    // Everything, blobs and all: the run without a receipt is named.
    let reader = Reader::open(place(template())).unwrap();
    let (mut all, shelf) = (Vec::new(), Dir::new());
    let shelf = shelf.path().join("blobs");
    let done = export(&reader, None, &mut all, Some(&shelf)).unwrap();
    assert_eq!((done.runs, done.receipts, done.blobs_missing), (5, 3, 0));
    assert_eq!(done.blobs, files(&shelf).len() as u64);
    for file in files(&shelf) {
        let digest = Digest::of(&std::fs::read(&file).unwrap()).hex();
        assert_eq!(file.file_name().unwrap().to_str(), Some(&*digest));
    }
    let findings = verify_bundle(&*all, None).unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].what, &findings[0].run), (What::Unsigned, &Some(id(2).to_string())));
    // A line of another run does not pass for one of this.
    let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    for n in 1..lines.len() - 1 {
        let mut less = lines.clone();
        less.remove(n);
        assert!(!verify_bundle(&*less.concat(), Some(trusted.clone())).unwrap().is_good(), "line {n}");
    }
    assert!(String::from_utf8_lossy(bytes).contains("\"payload\":{"));
}

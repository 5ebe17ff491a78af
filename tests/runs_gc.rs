//! `stockade runs gc`: what goes by count, age and bytes goes whole, with what it alone referred to, also when the collector
//! is killed beside a writer.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;
#[path = "common/records.rs"]
mod records;

use records::{Root, begin, finish, id, seed};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stockade::base::{Digest, RunId};
use stockade::evidence::{Blobs, Hash, Kind, Payload, event_hash, genesis, ledger_hash};

/// Everything that has to hold of a store at any moment.
fn sound(at: &Root) {
    let db = at.db();
    let ok: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(ok, "ok");
    let tx = db.unchecked_transaction().unwrap();
    let mut runs = tx.prepare("SELECT no, id, events, head FROM runs").unwrap();
    let mut all = 0;
    for run in runs
        .query_map([], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, Vec<u8>>(3)?,
            ))
        })
        .unwrap()
    {
        let (no, id, count, head) = run.unwrap();
        let mut events = tx
            .prepare_cached("SELECT at, kind, wall_ms, mono_us, payload, blob FROM events WHERE at >> 32 = ?1 AND at >= ?1 << 32 AND at < (?1 + 1) << 32 ORDER BY at")
            .unwrap();
        let mut hash = genesis(&id);
        let mut rows = events.query([no]).unwrap();
        let mut seq = 0;
        while let Some(row) = rows.next().unwrap() {
            seq += 1;
            assert_eq!(row.get::<_, i64>(0).unwrap(), no << 32 | seq);
            let (kind, payload): (String, String) = (row.get(1).unwrap(), row.get(4).unwrap());
            let blob: Option<String> = row.get(5).unwrap();
            let times = (row.get(2).unwrap(), row.get(3).unwrap());
            hash = event_hash(&hash, seq, &kind, times, blob.is_some(), payload.as_bytes());
            if let Some(hex) = blob {
                let path = at.at.join("blobs/sha256").join(&hex[..2]).join(&hex[2..]);
                assert_eq!(Digest::of(&std::fs::read(&path).unwrap()).hex(), hex);
            }
        }
        assert_eq!((seq, hash.0.to_vec()), (count, head), "run {id}");
        all += seq;
    }
    let there: i64 = tx.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap();
    assert_eq!(there, all, "events of no run");
    // The ledger, from its second entry on, and that each run that began is there or has its tombstone.
    let mut ledger =
        tx.prepare("SELECT n, entry, run, head, also, wall_ms, hash FROM ledger ORDER BY n").unwrap();
    let mut rows = ledger.query([]).unwrap();
    let mut prev: Option<Hash> = None;
    while let Some(row) = rows.next().unwrap() {
        let hash = |n| row.get::<_, Option<Vec<u8>>>(n).unwrap().map(|bytes| Hash(bytes.try_into().unwrap()));
        let (n, entry, run): (i64, String, String) =
            (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
        if let Some(prev) = prev {
            let computed =
                ledger_hash(&prev, n, &entry, &run, &hash(3).unwrap(), hash(4).as_ref(), row.get(5).unwrap());
            assert_eq!(Some(computed), hash(6), "entry {n}");
        }
        prev = hash(6);
    }
    let sql = "SELECT count(*) FROM (SELECT run FROM ledger WHERE entry = 'begin' EXCEPT SELECT id FROM runs EXCEPT SELECT run FROM ledger WHERE entry = 'prune')";
    assert_eq!(
        tx.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap(),
        0,
        "runs that went without a word"
    );
    let sql = "SELECT count(*) FROM ledger WHERE entry = 'prune' AND run IN (SELECT id FROM runs)";
    assert_eq!(
        tx.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap(),
        0,
        "runs that are there and have a tombstone"
    );
}

fn left(at: &Root) -> Vec<u64> {
    let mut all: Vec<u64> = at
        .lines(&["list", "--json"])
        .iter()
        .map(|run| {
            let id: RunId = run["id"].as_str().unwrap().parse().unwrap();
            id.unix_ms() - 1_700_000_000_000
        })
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn runs_go_by_count_age_and_bytes() {
    let at = Root::new();
    let mut store = at.store();
    begin(&mut store, id(0), "open");
    (1..=9).for_each(|n| seed(&mut store, n, 10_000));
    let gc = |words: &[&str]| -> Value {
        serde_json::from_str(&at.said(&[&["gc", "--json"], words].concat())).unwrap()
    };
    // Nothing asked: nothing goes.
    assert_eq!(gc(&[])["removed"]["runs"], 0);
    assert_eq!(
        gc(&["--keep-last", "100", "--older-than", "1d", "--max-bytes", "1GiB"])["removed"]["runs"],
        0
    );
    let dry = gc(&["--keep-last", "7", "--dry-run"]);
    assert_eq!((&dry["removed"]["runs"], &dry["left"]["runs"]), (&json!(2), &json!(10)));
    assert_eq!(left(&at).len(), 10);
    let done = gc(&["--keep-last", "7"]);
    assert_eq!((&done["removed"]["runs"], &done["removed"]["events"]), (&json!(2), &json!(6)));
    assert_eq!((&done["left"]["runs"], &done["left"]["open"]), (&json!(8), &json!(1)));
    assert_eq!(left(&at), [0, 3, 4, 5, 6, 7, 8, 9]);
    sound(&at);
    // Bytes: the oldest first, until it fits; the open run's count.
    let total = at.number("SELECT sum(bytes) FROM runs");
    let one = at.number("SELECT bytes FROM runs ORDER BY no DESC LIMIT 1");
    assert_eq!(gc(&["--max-bytes", &total.to_string()])["removed"]["runs"], 0);
    assert_eq!(gc(&["--max-bytes", &(total - one - 1).to_string()])["removed"]["runs"], 2);
    assert_eq!(left(&at), [0, 5, 6, 7, 8, 9]);
    // Age: those that ended before, whatever their place.
    at.db().execute_batch("UPDATE runs SET ended_ms = ended_ms - 86400000 WHERE no IN (7, 9)").unwrap();
    assert_eq!(gc(&["--older-than", "12h"])["removed"]["runs"], 2);
    assert_eq!(left(&at), [0, 5, 7, 9]);
    // Together: what either says.
    assert_eq!(gc(&["--older-than", "12h", "--keep-last", "1", "--vacuum"])["removed"]["runs"], 2);
    assert_eq!(left(&at), [0, 9]);
    assert_eq!(gc(&["--max-bytes", "0"])["removed"]["runs"], 1);
    assert_eq!(left(&at), [0]);
    sound(&at);
    assert_eq!(at.number("SELECT count(*) FROM ledger WHERE entry = 'prune'"), 9);
    // The open run goes on, and nothing knows of the others.
    finish(&mut store, id(0), "open");
    assert_eq!(at.number("SELECT count(*) FROM events"), 2);
    at.refused(&["show", &id(9).to_string()], "no run");
    assert_eq!(gc(&["--keep-last", "0"])["removed"]["runs"], 1);
    // Numbers begin anew; nothing of an old run comes back.
    seed(&mut store, 20, 1);
    assert_eq!(at.lines(&["events", "--json"]).len(), 3);
    sound(&at);
}

#[test]
fn blobs_and_plans_go_with_the_last_that_has_them() {
    let at = Root::new();
    let mut store = at.store();
    let shared = Payload::of(&json!({ "note": "s".repeat(50_000) })).unwrap();
    let plan = b"{}".to_vec();
    let digest = Digest::of(&plan);
    for n in 0..3 {
        begin(&mut store, id(n), "x");
        store.durable(|txn| txn.append(&id(n), Kind::Note, &shared)).unwrap();
        finish(&mut store, id(n), "x");
    }
    seed(&mut store, 3, 60_000);
    store.durable(|txn| txn.plan(&digest, || Ok(plan.clone()))).unwrap();
    at.db().execute("UPDATE runs SET plan = ?1 WHERE no = 4", [digest.to_string()]).unwrap();
    assert_eq!(at.blobs().len(), 2);
    // What writers left that died: before the rename, and before the reference.
    let shelf = at.blobs()[0].parent().unwrap().to_owned();
    let orphan = Digest::of(b"orphan").hex();
    let other = at.at.join("blobs/sha256").join(&orphan[..2]);
    std::fs::create_dir(&other).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o700)).unwrap();
    for path in
        [shelf.join(".pending-0123"), at.at.join("blobs/sha256").join(&orphan[..2]).join(&orphan[2..])]
    {
        std::fs::write(&path, "orphan").unwrap();
    }
    let gc = |words: &[&str]| -> Value {
        serde_json::from_str(&at.said(&[&["gc", "--json"], words].concat())).unwrap()
    };
    let removed = gc(&["--keep-last", "2"])["removed"].clone();
    assert_eq!(
        removed,
        json!({ "runs": 2, "events": 6, "bytes": removed["bytes"], "plans": 0, "blobs": 1, "blob_bytes": 6, "unfinished": 1 })
    );
    assert_eq!(at.blobs().len(), 2);
    sound(&at);
    assert_eq!(gc(&["--keep-last", "1"])["removed"]["blobs"], 1);
    assert_eq!((at.blobs().len(), at.number("SELECT count(*) FROM plans")), (1, 1));
    let removed = gc(&["--keep-last", "0"])["removed"].clone();
    assert_eq!((&removed["blobs"], &removed["plans"]), (&json!(1), &json!(1)));
    assert_eq!((at.blobs().len(), at.number("SELECT count(*) FROM plans")), (0, 0));
    sound(&at);
}

/// A writer at work on a blob keeps the collector away from it.
#[test]
fn a_blob_without_its_reference_stays_while_it_is_written() {
    let at = Root::new();
    drop(at.store());
    let blobs = Blobs::open(&at.place()).unwrap();
    let hold = blobs.hold().unwrap();
    blobs.put(b"to be referenced", &hold).unwrap();
    let busy: Value = serde_json::from_str(&at.said(&["gc", "--json"])).unwrap();
    assert_eq!((&busy["busy"], &busy["removed"]["blobs"]), (&json!(1), &json!(0)));
    assert_eq!(at.blobs().len(), 1);
    drop(hold);
    at.said(&["gc"]);
    assert_eq!(at.blobs(), Vec::<PathBuf>::new());
}

/// SIGKILL of `runs gc` at random instants beside a writer: at every moment the store is whole, and in the end nothing is left over.
#[test]
fn gc_killed_at_any_moment() {
    let rounds = std::env::var("STOCKADE_KILL9_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40u64);
    let at = Root::new();
    let mut store = at.store();
    begin(&mut store, id(0), "open");
    let done = AtomicBool::new(false);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut dice = u64::from(nanos) | 1;
    eprintln!("gc_killed_at_any_moment: {rounds} rounds, seed {dice}");
    let mut killed = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut store = at.store();
            let mut n = 1;
            while !done.load(Ordering::Relaxed) {
                // Some of them with blobs, some of those shared.
                seed(&mut store, n, if n.is_multiple_of(3) { 20_000 + (n % 7) as usize } else { 100 });
                n += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for round in 0..rounds {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            std::thread::sleep(Duration::from_millis(20));
            let mut child =
                at.command(&["gc", "--keep-last", "2"]).stdout(std::process::Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(dice % 20_000));
            let _ = child.kill();
            killed += u64::from(child.wait().unwrap().code().is_none());
            if round % 8 == 0 {
                sound(&at);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(killed > 0, "no round was killed");
    sound(&at);
    assert_eq!(at.number("SELECT count(*) FROM runs WHERE ended_ms IS NULL"), 1);
    finish(&mut store, id(0), "open");
    drop(store);
    at.said(&["gc", "--keep-last", "0"]);
    sound(&at);
    assert_eq!(at.number("SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM events)"), 0);
    assert_eq!(at.blobs(), Vec::<PathBuf>::new());
    // Those that were killed before they had their name go when they are old.
    let owners = || std::fs::read_dir(at.at.join("owners")).unwrap().map(|entry| entry.unwrap());
    assert!(
        owners().all(|entry| entry.file_name().as_encoded_bytes().starts_with(b".")),
        "owners that were killed"
    );
    for owner in owners() {
        let old = std::time::SystemTime::now() - Duration::from_secs(7200);
        std::fs::File::options().write(true).open(owner.path()).unwrap().set_modified(old).unwrap();
    }
    at.said(&["gc"]);
    assert_eq!(owners().count(), 0);
}

//! What `stockade runs` costs with a large store, beside an empty one and one that holds a single run:
//! `cargo bench --bench runs`. RUNS=100000 and EVENTS=100 of each by default, some minutes and 5 GB in `BENCH_DIR` (or the
//! directory for temporary files); ROUNDS=30. STORE=DIR keeps the large store there, and takes the one that is there.
//! Every round measures each case at each store; what is printed are medians, and the median of the rounds' ratios.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first surprise and prints"
)]

use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use stockade::base::RunId;
use stockade::evidence::{
    Created, End, Kind, NewRun, Payload, Place, Reader, Signer, State, Statement, Store, Terminal,
};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn place(at: &Path) -> Place {
    std::fs::create_dir_all(at).unwrap();
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o700)).unwrap();
    let dir = std::fs::File::open(at).unwrap();
    Place::new(at, dir.as_fd(), rustix::process::geteuid().as_raw()).unwrap()
}

/// A store with `runs` runs of `events` events each, many of them in a transaction.
fn build(at: &Path, runs: u64, events: u64) {
    let signer = Signer::open(&place(at)).unwrap();
    let mut store = Store::open(place(at)).unwrap();
    // What `exec` records of a run is some 6 KB, most of it the snapshot.
    let filler = "x".repeat(4000);
    let note = Payload::of(&serde_json::json!({ "note": "y".repeat(100) })).unwrap();
    let batch = 200;
    let end = |state, code: u8| {
        let payload = Terminal {
            schema: "stockade.run/1",
            state,
            reason: "exited",
            exit_code: Some(code),
            boundary: None,
            detail: serde_json::json!({}),
        };
        End { state, reason: "exited", exit_code: Some(code), payload: Payload::of(&payload).unwrap() }
    };
    for first in (0..runs).step_by(batch) {
        store
            .written(|txn| {
                for n in first..(first + batch as u64).min(runs) {
                    let random = n.to_be_bytes();
                    let mut bytes = [0; 10];
                    bytes[2..].copy_from_slice(&random);
                    let id = RunId::new(1_700_000_000_000 + n * 1000, bytes);
                    let command = format!("make test-{n}");
                    let correlation = format!("job-{n}");
                    let created = Created {
                        schema: "stockade.run/1",
                        kind: "exec",
                        profile: Some("offline".to_owned()),
                        command: Some(command.clone()),
                        workspace: Some("/srv/work".to_owned()),
                        correlation: Some(correlation.clone()),
                        snapshot: &filler,
                    };
                    txn.begin(&NewRun {
                        id,
                        kind: "exec",
                        profile: Some("offline"),
                        command: Some(&command),
                        workspace: Some("/srv/work"),
                        correlation: Some(&correlation),
                        plan: None,
                        payload: Payload::of(&created)?,
                    })?;
                    for _ in 2..events {
                        txn.append(&id, Kind::Note, &note)?;
                    }
                    let code = u8::from(n % 1000 == 7);
                    txn.finish(&id, &end(State::Completed, code), |last| {
                        let statement = Statement {
                            subjects: Vec::new(),
                            run: id.to_string(),
                            chain: last.into(),
                            plan_digest: None,
                            policy_digest: None,
                            command_digest: None,
                            enforcement: Vec::new(),
                            state: State::Completed,
                            reason: "exited".to_owned(),
                            exit_code: Some(code),
                            outcome: serde_json::json!({}),
                            limits: serde_json::json!({}),
                            started_ms: 1,
                            ended_ms: 2,
                            network_digest: None,
                            assurance: serde_json::json!(null),
                            version: "0".to_owned(),
                        };
                        signer.seal(&statement).map(Some)
                    })?;
                }
                Ok(())
            })
            .unwrap();
        store.checkpoint().unwrap();
    }
}

fn time(at: &Path, words: &[&str]) -> Duration {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stockade"));
    command.arg("runs").args(words).arg("--state-dir").arg(at);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begun = Instant::now();
    let output = command.output().unwrap();
    let took = begun.elapsed();
    assert!(output.status.success(), "{words:?} at {}", at.display());
    took
}

fn open(at: &Path) -> Duration {
    let place = place(at);
    let begun = Instant::now();
    Reader::open(place).unwrap();
    begun.elapsed()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let (runs, events, rounds) = (number("RUNS", 100_000), number("EVENTS", 100), number("ROUNDS", 30));
    let base = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let work = tempfile::Builder::new().prefix("stockade-runs.").tempdir_in(base).unwrap();
    let large = std::env::var_os("STORE").map_or_else(|| work.path().join("large"), PathBuf::from);
    let (empty, single) = (work.path().join("empty"), work.path().join("single"));
    drop(Store::open(place(&empty)).unwrap());
    build(&single, 1, events);
    if !large.join("evidence.db").exists() {
        let begun = Instant::now();
        build(&large, runs, events);
        println!("built {runs} runs with {} events in {:.0} s", runs * events, begun.elapsed().as_secs_f64());
    }
    let totals = Reader::open(place(&large)).unwrap().totals().unwrap();
    let bytes = std::fs::metadata(large.join("evidence.db")).unwrap().len();
    println!(
        "large store: {} runs, {} events, {} MiB; {rounds} rounds",
        totals.runs,
        totals.events,
        bytes >> 20
    );
    println!("{:<44} {:>10} {:>10} {:>7}", "case", "small ms", "large ms", "ratio");
    let middle = format!("job-{}", totals.runs / 2);
    let cases: &[(&str, &Path, Vec<&str>)] = &[
        ("list (small: empty)", &empty, vec!["list"]),
        ("list --json (small: empty)", &empty, vec!["list", "--json"]),
        ("list -n 1 (small: one run)", &single, vec!["list", "-n", "1"]),
        ("show last (small: one run)", &single, vec!["show", "last"]),
        ("events last --json (small: one run)", &single, vec!["events", "--json"]),
        ("tail last (small: one run)", &single, vec!["tail"]),
        ("list --correlation, none of it (small: empty)", &empty, vec!["list", "--correlation", "none"]),
        ("list --correlation, in the middle (small: empty)", &empty, vec!["list", "--correlation", &middle]),
        ("list --failed, reads all rows (small: empty)", &empty, vec!["list", "--failed", "-n", "200"]),
        ("gc --dry-run, reads all rows (small: empty)", &empty, vec!["gc", "--dry-run", "--keep-last", "10"]),
    ];
    let mut measured = vec![(Vec::new(), Vec::new(), Vec::new()); cases.len() + 1];
    for round in 0..=rounds {
        let mut pairs = vec![(open(&empty), open(&large))];
        pairs.extend(cases.iter().map(|(_, small, words)| (time(small, words), time(&large, words))));
        // The first warms the caches up.
        for (all, (small, large)) in measured.iter_mut().zip(pairs).filter(|_| round > 0) {
            let (small, large) = (small.as_secs_f64() * 1e3, large.as_secs_f64() * 1e3);
            all.0.push(small);
            all.1.push(large);
            all.2.push(large / small);
        }
    }
    let names =
        std::iter::once("open, in this process (small: empty)").chain(cases.iter().map(|case| case.0));
    for (name, (small, large, ratio)) in names.zip(measured) {
        println!("{name:<50} {:>10.2} {:>10.2} {:>7.2}", median(small), median(large), median(ratio));
    }
}

//! How fast a store is verified, and what a receipt costs: `cargo bench --bench verify`. Prints, asserts nothing.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

use serde_json::json;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;
use stockade::base::RunId;
use stockade::evidence::{
    Chain, End, Kind, NewRun, Payload, Place, Reader, Signer, State, Statement, Store, Which, export, verify,
    verify_bundle,
};

const RUNS: u64 = 200;
const EVENTS: u64 = 400;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let place = || {
        let fd = std::fs::File::open(dir.path()).unwrap();
        Place::new(dir.path(), fd.as_fd(), rustix::process::geteuid().as_raw()).unwrap()
    };
    let statement = |run: &RunId, chain| Statement {
        subjects: Vec::new(),
        run: run.to_string(),
        chain,
        plan_digest: None,
        policy_digest: None,
        command_digest: None,
        enforcement: (0..20)
            .map(|n| json!({ "protection": n, "asked": "required", "got": "full" }))
            .collect(),
        state: State::Completed,
        reason: "exited".into(),
        exit_code: Some(0),
        outcome: json!({ "usage": { "cpu_us": 1 } }),
        limits: json!({ "wall": 1 }),
        started_ms: 1,
        ended_ms: 2,
        network_digest: None,
        assurance: json!("full"),
        version: "0".into(),
    };

    Signer::open(&place()).unwrap();
    let at = place();
    let run = RunId::new(1, [0; 10]);
    let begun = Instant::now();
    for _ in 0..2000 {
        let chain = Chain { events: 1, head: "00".repeat(32) };
        Signer::open(&at).unwrap().seal(&statement(&run, chain)).unwrap();
    }
    println!("a receipt, its key's loading included: {:.0} us", begun.elapsed().as_secs_f64() * 1e6 / 2000.0);

    let mut store = Store::open(place()).unwrap();
    let signer = Signer::open(&at).unwrap();
    for n in 0..RUNS {
        let id = RunId::new(n, [0; 10]);
        let of = |value: serde_json::Value| Payload::of(&value).unwrap();
        store
            .written(|txn| {
                let payload = of(json!({ "kind": "exec", "snapshot": {} }));
                let none = None;
                txn.begin(&NewRun {
                    id,
                    kind: "exec",
                    profile: none,
                    command: none,
                    workspace: none,
                    correlation: none,
                    plan: None,
                    payload,
                })?;
                for event in 0..EVENTS {
                    let text = format!("{event} {}", "some words ".repeat(200));
                    txn.append(&id, Kind::Note, &of(json!({ "text": text })))?;
                }
                let payload = of(json!({ "state": "completed", "reason": "exited", "exit_code": 0 }));
                let end = End { state: State::Completed, reason: "exited", exit_code: Some(0), payload };
                txn.finish(&id, &end, |last| signer.seal(&statement(&id, last.into())).map(Some))
            })
            .unwrap();
    }
    store.checkpoint().unwrap();

    let reader = Reader::open(place()).unwrap();
    let speed = |what: &str, bytes: u64, begun: Instant| {
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{what}: {:.0} MB in {seconds:.2} s, {:.0} MB/s",
            bytes as f64 / 1e6,
            bytes as f64 / 1e6 / seconds
        );
    };
    for _ in 0..3 {
        let begun = Instant::now();
        let done = verify(&reader, Which::All, None).unwrap();
        assert!(done.is_good(), "{:?}", done.findings);
        speed("verify, all", done.bytes, begun);
    }
    let mut bundle = Vec::new();
    let begun = Instant::now();
    export(&reader, None, &mut bundle, None).unwrap();
    speed("export", bundle.len() as u64, begun);
    let begun = Instant::now();
    let done = verify_bundle(&*bundle, None).unwrap();
    assert!(done.is_good(), "{:?}", done.findings);
    speed("verify, a bundle", done.bytes, begun);
}

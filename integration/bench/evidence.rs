//! Durable events a second: one run, and 32 runs of one process that share syncs; then processes of their own beside each
//! other. Prints ratios; asserts nothing. `SECONDS` says how long each measurement takes (default 3), `DIR` where the store
//! lies (default: a directory below the working one: a tmpfs syncs nothing).

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stockade::base::RunId;
use stockade::evidence::{Committer, Created, Kind, NewRun, Payload, Place, Store};

fn place(at: &Path) -> Place {
    let dir = std::fs::File::open(at).unwrap();
    Place::new(at, dir.as_fd(), rustix::process::geteuid().as_raw()).unwrap()
}

fn run(id: RunId) -> NewRun<'static> {
    let created = Created {
        schema: "stockade.run/1",
        kind: "exec",
        profile: None,
        command: None,
        workspace: None,
        correlation: None,
        snapshot: serde_json::json!({}),
    };
    NewRun {
        id,
        kind: "exec",
        profile: None,
        command: None,
        workspace: None,
        correlation: None,
        plan: None,
        payload: Payload::of(&created).unwrap(),
    }
}

fn id(n: u64) -> RunId {
    let mut random = [0u8; 10];
    random[2..].copy_from_slice(&(n << 32 | u64::from(std::process::id())).to_be_bytes());
    RunId::new(1_800_000_000_000, random)
}

/// Events a second of `runs` threads, each with a run of its own.
fn events(committer: &Committer, first: u64, runs: u64, time: Duration) -> f64 {
    let payload = Payload::of(&serde_json::json!({ "text": "x".repeat(200) })).unwrap();
    let begun = Instant::now();
    let total: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (first..first + runs)
            .map(|n| {
                let payload = payload.clone();
                scope.spawn(move || {
                    committer.durable(move |txn| txn.begin(&run(id(n)))).unwrap();
                    let mut done = 0u64;
                    while begun.elapsed() < time {
                        let payload = payload.clone();
                        committer.durable(move |txn| txn.append(&id(n), Kind::Note, &payload)).unwrap();
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    total as f64 / begun.elapsed().as_secs_f64()
}

fn main() {
    let seconds = std::env::var("SECONDS").ok().and_then(|v| v.parse().ok()).unwrap_or(3);
    let time = Duration::from_secs(seconds);
    let base = std::env::var_os("DIR").map_or_else(|| std::env::current_dir().unwrap(), PathBuf::from);
    if let Some(store) = std::env::var_os("STOCKADE_BENCH_STORE") {
        // One of several processes.
        let committer = Committer::start(Store::open(place(Path::new(&store))).unwrap()).unwrap();
        println!("{}", events(&committer, 1 << 20, 1, time));
        return;
    }
    let at = base.join(format!(".bench-evidence-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&at).unwrap();
    let committer = Committer::start(Store::open(place(&at)).unwrap()).unwrap();
    let (mut single, mut many) = (Vec::new(), Vec::new());
    // Interleaved, so that what else the machine does falls on both.
    for round in 0..3 {
        single.push(events(&committer, round * 100, 1, time));
        many.push(events(&committer, round * 100 + 1, 32, time));
    }
    drop(committer);
    let median = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (single, many) = (median(&mut single), median(&mut many));
    println!("one run             {single:>9.0} durable events/s");
    println!("32 runs, one process{many:>9.0} durable events/s   {:.1} x", many / single);
    let processes: Vec<_> = (0..8)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .env("STOCKADE_BENCH_STORE", &at)
                .env("SECONDS", seconds.to_string())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let beside: f64 = processes
        .into_iter()
        .map(|p| {
            String::from_utf8(p.wait_with_output().unwrap().stdout)
                .unwrap()
                .trim()
                .parse::<f64>()
                .unwrap_or(0.0)
        })
        .sum();
    println!("8 processes         {beside:>9.0} durable events/s   {:.1} x", beside / single);
    std::fs::remove_dir_all(&at).unwrap();
}

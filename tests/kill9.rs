//! SIGKILL of `stockade exec` at random instants (the issue: 500 rounds, a third within the first 30 ms). Then one
//! further start, and nothing may be left: no process, no cgroup, no live record, and the host's tree unchanged
//! outside the workspace's own writes.
//!
//! `STOCKADE_KILL9_ROUNDS` (default 100) and `STOCKADE_KILL9_SEED` say how many and which.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Inside, Sandbox, Workspace, await_gone, snapshot, unique};
use nix::sys::signal::Signal;
use std::time::Duration;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// xorshift: a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn killed_at_any_instant_nothing_is_left() {
    let rounds = number("STOCKADE_KILL9_ROUNDS", 100);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = number("STOCKADE_KILL9_SEED", u64::from(nanos) | 1);
    eprintln!("kill9: {rounds} rounds, seed {seed}");
    let mut dice = Dice(seed);

    // A small host tree beside the workspace: sources of mounts, protected and hidden things.
    let tree = Workspace::new("kill9");
    tree.file("ro/data", "data");
    tree.file("beside/file", "untouched");
    let inner = tree.dir("work");
    tree.file("work/.git/config", "[core]\n");
    tree.file("work/.git/hooks/pre-commit", "#!/bin/sh\n");
    tree.file("work/.env", "TOKEN=x");
    tree.file("work/kept", "kept");
    let fixture = tree.fixture("procs");
    std::fs::hard_link(&fixture, tree.path().join("work/procs"))
        .or_else(|_| std::fs::copy(&fixture, tree.path().join("work/procs")).map(|_| ()))
        .unwrap();
    let program = tree.at("work/procs");
    let written = tree.path().join("work/out");
    let before = snapshot(tree.path(), &[&written]);
    // Others may run stockade on this host meanwhile; ours are those that came and stayed. There is no outer guard
    // here, since its own clean-up would hide what is left: all shapes are small.
    let cgroups = common::leftover_cgroups();
    let prefix = unique("kill9");
    let shapes = ["stay", "sigproof", "doublefork", "chain", "stopped", "exit", "holdpipe", "spin"];

    for round in 0..rounds {
        if round % 4 == 0 {
            // Without cached facts the first milliseconds are spent on trying the host out.
            let _ = std::fs::remove_dir_all(common::state_dir().join("cache"));
        }
        let shape = shapes[usize::try_from(dice.below(shapes.len() as u64)).unwrap()];
        let user = if dice.below(2) == 0 { Inside::Agent } else { Inside::Root };
        // A third in the first 30 ms, most of the rest while it runs, some around its end.
        let delay = match dice.below(3) {
            0 => dice.below(30_000),
            1 => dice.below(120_000),
            _ => 30_000 + dice.below(370_000),
        };
        let marker = format!("{prefix}-{round}");
        let script = format!("echo {round} > out; exec {program} shape {shape} {marker} 2");
        let mut sandbox = Sandbox::bare().inside(user).patience(Duration::from_secs(30));
        sandbox = sandbox.options(["-w", &inner, "--ro", &format!("{}:/data", tree.at("ro"))]);
        if dice.below(4) == 0 {
            sandbox = sandbox.option("--tty");
        }
        let mut live = sandbox.spawn(common::sh(&script));
        std::thread::sleep(Duration::from_micros(delay));
        if live.is_running() {
            live.signal(Signal::SIGKILL);
        }
        let raw = live.finish(Duration::from_secs(30));
        assert!(!raw.pipe_held, "round {round} {shape} {delay} us: somebody holds the pipes");
        if let Err(left) = await_gone(&marker, Duration::from_secs(10)) {
            panic!("round {round} {shape} {user:?} killed after {delay} us (seed {seed}): {left:?}");
        }
    }

    // One further start tidies up what the dead could not.
    let after = Workspace::new("kill9-after");
    Sandbox::new(&after).run(["true"]).expect_exit(0);
    assert_eq!(common::carrying(&prefix), Vec::new());
    // Every record is whole, and no run is left open.
    let mut runs = std::process::Command::new(common::bin());
    runs.args(["runs", "verify", "--json"])
        .env("STOCKADE_STATE", common::state_dir())
        .env("HOME", common::home());
    let verified = common::bounded(runs, Duration::from_secs(120));
    let found: serde_json::Value = serde_json::from_str(&verified.out()).unwrap();
    assert_eq!(found["good"], true, "(seed {seed}): {found}");
    assert_eq!(found["verification"]["counts"]["running"], 0, "(seed {seed}): {found}");
    assert_eq!(
        common::live_records(),
        Vec::<std::path::PathBuf>::new(),
        "records of runs that are dead (seed {seed})"
    );
    let mut left = Vec::new();
    common::await_that(Duration::from_secs(10), || {
        left = common::leftover_cgroups().into_iter().filter(|c| !cgroups.contains(c)).collect();
        left.is_empty()
    });
    assert_eq!(left, Vec::<std::path::PathBuf>::new(), "cgroups (seed {seed})");
    let changes = common::differences(&before, &snapshot(tree.path(), &[&written]));
    assert_eq!(changes, Vec::<String>::new(), "the host's tree changed (seed {seed})");
    assert!(
        !std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(tree.path().to_str().unwrap()),
        "a mount is left on the host"
    );
    let state =
        std::fs::read_dir(common::state_dir()).unwrap().flatten().map(|e| e.file_name()).collect::<Vec<_>>();
    for dir in state {
        if dir == "cache" {
            continue;
        }
        let at = common::state_dir().join(&dir);
        let inside: Vec<_> = std::fs::read_dir(&at)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.extension().is_some_and(|e| e == "tmp") || p.to_string_lossy().contains(&prefix))
            .collect();
        assert_eq!(inside, Vec::<std::path::PathBuf>::new(), "temporary files in {dir:?}");
    }
}

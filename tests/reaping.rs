//! Nothing survives (20-sandbox §6; threats F 104–114): whatever shape, whatever end. Seen from the host by a
//! marker on every command line; the end of an init is awaited, never timed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{BOTH, Inside, Live, Raw, Sandbox, Workspace, await_gone, carrying, unique};
use nix::sys::signal::Signal;
use std::time::Duration;

const GONE: Duration = Duration::from_secs(5);

fn shape(ws: &Workspace, name: &str, marker: &str, n: u32) -> [String; 5] {
    [ws.fixture("procs"), "shape".into(), name.into(), marker.into(), n.to_string()]
}

fn start(ws: &Workspace, inside: Inside, name: &str, marker: &str, n: u32) -> Live {
    Sandbox::new(ws).inside(inside).guarded(4 << 30, 8000).with_result().spawn(shape(ws, name, marker, n))
}

#[track_caller]
fn assert_gone(marker: &str, what: &str) {
    if let Err(left) = await_gone(marker, GONE) {
        panic!("{what}: {} processes are left: {:?}", left.len(), &left[..left.len().min(5)]);
    }
}

/// Two signals that are two: sent back to back the kernel would make one of them.
fn twice(live: &Live) {
    live.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(50));
    live.signal(Signal::SIGTERM);
}

/// A freezer cgroup of the test's own, thawed and removed at the end whatever happens.
struct Freezer(std::path::PathBuf);

impl Freezer {
    fn set(&self, state: &str) {
        std::fs::write(self.0.join("freezer.state"), state).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        common::await_that(GONE, || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// After the command's own exit.
#[test]
fn what_a_command_leaves_behind_is_dead() {
    for inside in BOTH {
        for name in ["doublefork", "setsid", "sigproof-leaves", "holdpipe", "stopped-leaves", "chain-leaves"]
        {
            let ws = Workspace::new("leaves");
            let marker = unique("leaves");
            let raw =
                Sandbox::new(&ws).inside(inside).guarded(4 << 30, 2000).raw(shape(&ws, name, &marker, 0));
            assert!(raw.code() == 0 && !raw.overrun && !raw.pipe_held, "{inside:?} {name}: {raw:?}");
            assert!(common::contains(&raw.stdout, b"ready"), "{name} never stood");
            // Stockade has returned: the tree must be dead already, not soon.
            assert_eq!(carrying(&marker), Vec::new(), "{inside:?} {name}: alive after the return");
        }
    }
}

/// After the wall limit.
#[test]
fn a_time_out_ends_every_shape() {
    for name in ["stay", "sigproof", "vfork", "stopped", "traced", "chain", "spin", "cloneparent"] {
        let ws = Workspace::new("timeout");
        let marker = unique("timeout");
        let raw = Sandbox::new(&ws)
            .guarded(4 << 30, 2000)
            .options(["--timeout", &common::paced(600)])
            .with_result()
            .raw(shape(&ws, name, &marker, 0));
        assert_eq!(raw.code(), 124, "{name}: {raw:?}");
        assert!(common::contains(&raw.stdout, b"ready"), "{name} never stood");
        assert_eq!(carrying(&marker), Vec::new(), "{name}: alive after the return");
        let result = raw.result.expect("a result document");
        assert_eq!(result["limit"]["name"], "wall", "{name}");
        assert!(result["reaping"]["empty_after_us"].is_u64(), "{name}: {}", result["reaping"]);
    }
}

/// After SIGTERM to stockade, then a second one.
#[test]
fn signals_to_stockade() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let word = signal.as_str().trim_start_matches("SIG").to_owned();
        // A polite command is given the signal and may end with its own code.
        let ws = Workspace::new("polite");
        let marker = unique("polite");
        let live = start(&ws, Inside::Agent, "signals-exit", &marker, 0);
        live.expect_output("ready");
        live.signal(signal);
        let raw = live.finish(Duration::from_secs(20));
        assert!(common::contains(&raw.stdout, format!("signal {word}").as_bytes()), "{signal}: {raw:?}");
        assert_eq!(raw.code(), 7, "{signal}: {raw:?}");
        assert_eq!(carrying(&marker), Vec::new());
        // One that goes on is killed by the second.
        let ws = Workspace::new("second");
        let marker = unique("second");
        let live = start(&ws, Inside::Root, "signals", &marker, 0);
        live.expect_output("ready");
        live.signal(signal);
        live.expect_output(&format!("signal {word}"));
        assert!(!carrying(&marker).is_empty(), "{signal}: the first one already killed it");
        live.signal(signal);
        let raw = live.finish(Duration::from_secs(20));
        assert!(!raw.overrun, "{signal}: {raw:?}");
        assert_eq!(carrying(&marker), Vec::new(), "{signal}: alive after the second");
        let result = raw.result.expect("a result document");
        assert_eq!(result["cancelled"]["signal"], signal.as_str(), "{result}");
    }
}

/// SIGINT and SIGQUIT ask; they do not end a command that ignores them. The wall time does, and so does a second one.
#[test]
fn one_interrupt_leaves_a_deaf_command_to_its_time() {
    for signal in [Signal::SIGINT, Signal::SIGQUIT] {
        let ws = Workspace::new("deaf");
        let marker = unique("deaf");
        let live = Sandbox::new(&ws)
            .with_result()
            .options(["--timeout", "3s"])
            .spawn(shape(&ws, "sigproof", &marker, 0));
        live.expect_output("ready");
        live.signal(signal);
        let raw = live.finish(Duration::from_secs(30));
        assert!(!raw.overrun && raw.code() == 124, "{signal}: {raw:?}");
        assert_eq!(carrying(&marker), Vec::new(), "{signal}");
        let result = raw.result.expect("a result document");
        assert_eq!(result["limit"]["name"], "wall", "{signal}: {result}");
        assert_eq!(result["cancelled"]["signal"], signal.as_str(), "{result}");

        // Without a time, the first is heard and answered by nothing; whichever comes second ends it.
        let ws = Workspace::new("deaf-twice");
        let marker = unique("deaf");
        let mut live = start(&ws, Inside::Agent, "signals", &marker, 0);
        live.expect_output("ready");
        live.signal(signal);
        live.expect_output(&format!("signal {}", signal.as_str().trim_start_matches("SIG")));
        assert!(live.is_running() && !carrying(&marker).is_empty(), "{signal}");
        live.signal(if signal == Signal::SIGINT { Signal::SIGQUIT } else { Signal::SIGINT });
        let raw = live.finish(Duration::from_secs(20));
        assert!(!raw.overrun && raw.code() == 137, "{signal}: {raw:?}");
        assert_eq!(carrying(&marker), Vec::new(), "{signal}");
    }
}

/// Shapes that ignore everything: SIGTERM twice.
#[test]
fn a_second_signal_kills_what_ignores_it() {
    for name in ["sigproof", "stopped", "chain", "vfork", "spin"] {
        let ws = Workspace::new("proof");
        let marker = unique("proof");
        let live = start(&ws, Inside::Agent, name, &marker, 0);
        live.expect_output("ready");
        twice(&live);
        let raw = live.finish(Duration::from_secs(20));
        assert!(!raw.overrun, "{name}: {raw:?}");
        assert_eq!(carrying(&marker), Vec::new(), "{name}");
    }
}

/// SIGKILL of stockade itself: nobody is there to clean up, and still nothing lives on.
#[test]
fn the_death_of_stockade_ends_every_shape() {
    for inside in BOTH {
        for (name, n) in [
            ("stay", 0),
            ("sigproof", 0),
            ("doublefork", 0),
            ("stopped", 0),
            ("vfork", 0),
            ("chain", 4),
            ("spin", 2),
            ("forest", 200),
            ("cloneparent", 0),
        ] {
            let ws = Workspace::new("kill");
            let marker = unique("kill");
            let live = start(&ws, inside, name, &marker, n);
            live.expect_output(if name == "forest" { "forest" } else { "ready" });
            live.signal(Signal::SIGKILL);
            let raw: Raw = live.finish(Duration::from_secs(20));
            assert_gone(&marker, &format!("{inside:?} {name}"));
            assert!(!raw.pipe_held, "{inside:?} {name}: somebody holds the pipes");
        }
    }
}

/// SIGSTOP of stockade, then its death.
#[test]
fn a_stopped_stockade_can_be_killed_too() {
    let ws = Workspace::new("frozen");
    let marker = unique("frozen");
    let live = start(&ws, Inside::Agent, "sigproof", &marker, 0);
    live.expect_output("ready");
    live.signal(Signal::SIGSTOP);
    live.signal(Signal::SIGKILL);
    let _ = live.finish(Duration::from_secs(20));
    assert_gone(&marker, "stopped stockade");
}

/// Five thousand processes, as far as the guard lets them.
#[test]
fn a_large_forest_falls() {
    if !common::needs(common::guard_exists(), "no outer guard for thousands of processes") {
        return;
    }
    let ws = Workspace::new("forest");
    let marker = unique("forest");
    // An emulated guest may need longer for thousands than stockade waits for the dying.
    let many = if common::other_kernel() { 500 } else { 5000 };
    // More than `offline` allows: a profile of the caller's own.
    let profiles = Workspace::new("forest-profile");
    let profile = profiles.file(
        "forest.toml",
        "version = 1\nname = \"forest\"\nextends = \"offline\"\n\n[limits]\nprocesses = 5500\n",
    );
    let live = Sandbox::new(&ws)
        .profile(&profile)
        .guarded(8 << 30, 6000)
        .with_result()
        .options(["--timeout", &common::paced(50_000)])
        .spawn(shape(&ws, "forest", &marker, many));
    live.expect_output(&format!("forest {many}"));
    twice(&live);
    let raw = live.finish(Duration::from_secs(60));
    assert!(!raw.overrun, "{:?}", raw.status);
    assert_eq!(carrying(&marker).len(), 0, "alive after the return");
    assert!(raw.result.expect("a result document")["reaping"]["empty_after_us"].is_u64());
}

/// The caller's own end: its pipe closes, and the run ends with the pipe's reader gone.
#[test]
fn a_terminal_run_is_reaped_as_well() {
    let ws = Workspace::new("tty-reap");
    let marker = unique("tty");
    let live = Sandbox::new(&ws).option("--tty").spawn(shape(&ws, "sigproof", &marker, 0));
    live.expect_output("ready");
    live.signal(Signal::SIGKILL);
    let _ = live.finish(Duration::from_secs(20));
    assert_gone(&marker, "--tty");
}

/// Processes in a frozen cgroup can't be killed on v1 until they are thawed: recovery does that.
#[test]
fn a_frozen_run_is_thawed_and_dies() {
    if !common::needs(common::root(), "freezing from outside needs root") {
        return;
    }
    let ws = Workspace::new("freeze");
    let marker = unique("freeze");
    let live = start(&ws, Inside::Agent, "sigproof", &marker, 0);
    live.expect_output("ready");
    let members: Vec<i32> =
        carrying(&marker).into_iter().map(|(pid, _)| pid).filter(|pid| *pid != live.pid()).collect();
    let dir = std::path::Path::new("/sys/fs/cgroup/freezer").join(unique("sbxguard-freeze"));
    if std::fs::create_dir(&dir).is_err() {
        // cgroup2 alone: the run's own cgroup is frozen, and its kill needs no thaw. cgroup-v2.rst, cgroup.kill.
        let listed = std::fs::read_to_string(format!("/proc/{}/cgroup", members[0])).unwrap();
        let own = listed.lines().find_map(|l| l.strip_prefix("0::/")).unwrap();
        let own = std::path::Path::new("/sys/fs/cgroup").join(own);
        std::fs::write(own.join("cgroup.freeze"), "1").unwrap();
        assert!(common::await_that(GONE, || {
            std::fs::read_to_string(own.join("cgroup.events")).unwrap().contains("frozen 1")
        }));
        twice(&live);
        let raw = live.finish(Duration::from_secs(30));
        assert!(!raw.overrun, "{raw:?}");
        assert_gone(&marker, "frozen in cgroup2");
        return;
    }
    let freezer = Freezer(dir.clone());
    for pid in &members {
        let _ = std::fs::write(dir.join("tasks"), pid.to_string());
    }
    freezer.set("FROZEN");
    twice(&live);
    // Ours is not the cgroup that froze them: what can't die yet has to be named, and dies once thawed.
    std::thread::sleep(Duration::from_millis(500));
    freezer.set("THAWED");
    let raw = live.finish(Duration::from_secs(30));
    assert!(!raw.overrun, "{raw:?}");
    assert_gone(&marker, "frozen");
}

/// Zombies are reaped by init: a command that forks much and waits for nothing does not fill its own table.
#[test]
fn init_reaps_orphans() {
    let ws = Workspace::new("orphans");
    let run = Sandbox::new(&ws).guarded(4 << 30, 2000).set("limits.processes", 64).run(common::bash(
        "for i in $(seq 1 300); do (sleep 0 &) ; done; sleep 0.3; ls -d /proc/[0-9]* | wc -l",
    ));
    run.expect_exit(0);
    let left: u32 = run.out().trim().parse().unwrap();
    assert!(left < 20, "{left} processes or zombies are still there");
}

//! Reaching limits (20-sandbox §3; threats L and J176). Each has a second belt: the payload stops at a ceiling
//! of its own, and the harness puts stockade below a cgroup of the test's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Sandbox, Workspace, allow, check, deny, limits_hold, needs, observe};
use std::time::Duration;

const NO_CGROUP: &str = "an ordinary user without a delegated cgroup has no limits on memory, processes, CPU";
const GIB: u64 = 1 << 30;

fn limited(ws: &Workspace) -> Sandbox {
    Sandbox::new(ws).guarded(2 * GIB, 3000)
}

fn may() -> bool {
    needs(common::guard_exists(), "no outer guard for a payload that could hurt the host")
        && needs(limits_hold(), NO_CGROUP)
}

#[test]
fn the_least_that_may_be_asked_for_starts() {
    let ws = Workspace::new("least");
    for (key, below, least) in [
        ("memory", "4095KiB", "4MiB"),
        ("processes", "3", "4"),
        ("open_files", "15", "16"),
        ("stack", "127KiB", "128KiB"),
        ("scratch", "1023KiB", "1MiB"),
        ("scratch_inodes", "255", "256"),
    ] {
        let key = format!("limits.{key}");
        for extra in [None, Some("--tty"), Some("--trace-denials")] {
            let with = |value| extra.into_iter().fold(Sandbox::new(&ws).set(&key, value), Sandbox::option);
            let raw = with(least).raw(["true"]);
            assert_eq!(raw.code(), 0, "{key}={least} {extra:?}: {}", raw.err());
            let raw = with(below).raw(["true"]);
            assert_eq!(raw.code(), 125, "{key}={below} {extra:?}");
            assert!(raw.err().contains(&format!("{key}: ")), "{}", raw.err());
        }
    }
}

#[test]
fn memory_is_limited_for_the_whole_tree() {
    if !may() {
        return;
    }
    let ws = Workspace::new("memory");
    for case in
        ["memory_single=400", "memory_spread=400", "memory_memfd=400", "pipe_buffers", "socket_buffers"]
    {
        let run = limited(&ws).set("limits.memory", "64MiB").run([ws.fixture("limits"), case.into()]);
        // The kernel may kill one process of several: what counts is that the whole ended for it.
        assert_eq!(
            run.limit(),
            Some("memory"),
            "{case}: {} {} {}",
            run.json["outcome"],
            run.json["limit"],
            run.out()
        );
        assert_eq!(run.raw.code(), 137, "{case}");
        assert_eq!(run.json["limit"]["configured"], 64 << 20, "{case}");
        assert!(
            run.json["usage"]["memory_peak_bytes"].as_u64().unwrap_or(0) <= (65 << 20),
            "{case}: {}",
            run.json["usage"]
        );
    }
    // The control: below the limit the same payload finishes.
    let run = limited(&ws).set("limits.memory", "64MiB").run([
        ws.fixture("limits"),
        "memory_single=16".into(),
        "memory_memfd=16".into(),
    ]);
    run.expect_exit(0);
    assert_eq!(run.limit(), None);
    assert_eq!(run.cases().get("memory_single").ret, 16);
}

#[test]
fn scratch_counts_as_memory_and_has_a_size() {
    if !may() {
        return;
    }
    let ws = Workspace::new("tmpfs");
    let fill = |path: &str, mib: u32| format!("fill={path},{mib}");
    let run = limited(&ws).set("limits.scratch", "16MiB").run([ws.fixture("limits"), fill("/tmp/fill", 64)]);
    run.expect_exit(0);
    let case = run.cases().get("fill").clone();
    assert_eq!(case.errno, "ENOSPC", "{case:?}");
    assert!((12..=16).contains(&case.ret), "{case:?}");
    // All scratch places share one size.
    let run = limited(&ws).set("limits.scratch", "16MiB").run([
        ws.fixture("limits"),
        format!("a:{}", fill("/tmp/a", 12)),
        format!("b:{}", fill("/dev/shm/b", 12)),
    ]);
    let cases = run.cases();
    assert_eq!(cases.errno("b"), "ENOSPC", "derived: one tmpfs for all scratch places: {cases:?}");
    let run = limited(&ws).set("limits.memory", "64MiB").run([ws.fixture("limits"), fill("/tmp/fill", 256)]);
    assert_eq!(run.limit(), Some("memory"), "{} {}", run.json["outcome"], run.out());
}

#[test]
fn inodes_of_the_scratch_are_limited() {
    let ws = Workspace::new("inodes");
    let run = Sandbox::new(&ws)
        .set("limits.scratch_inodes", "1000")
        .run([ws.fixture("limits"), "inodes=/tmp,5000".into()]);
    let case = run.cases().get("inodes").clone();
    assert_eq!(case.errno, "ENOSPC", "{case:?}");
    assert!(case.ret < 1000, "{case:?}");
}

#[test]
fn processes_are_limited() {
    if !may() {
        return;
    }
    let ws = Workspace::new("processes");
    let run = limited(&ws).set("limits.processes", "32").run([ws.fixture("procs"), "forks=500".into()]);
    let case = run.cases().get("forks").clone();
    assert_eq!(case.errno, "EAGAIN", "{case:?}");
    assert!((16..=32).contains(&case.ret), "{case:?}");
    // It went on without, and still the result and the terminal say so.
    assert!(run.json["usage"]["processes_denied"].as_u64().is_some_and(|n| n >= 1), "{}", run.json["usage"]);
    assert!(run.raw.err().contains("limit processes reached"), "{}", run.raw.err());
    let run = limited(&ws).set("limits.processes", "200").run([ws.fixture("procs"), "forks=100".into()]);
    assert_eq!(run.cases().get("forks").ret, 100, "the control: below the limit");
    assert_eq!(run.json["usage"]["processes_denied"], 0);
    assert!(!run.raw.err().contains("limit processes"), "{}", run.raw.err());
}

#[test]
fn a_fork_bomb_ends_with_its_time() {
    if !may() {
        return;
    }
    let ws = Workspace::new("bomb");
    let marker = common::unique("bomb");
    let run = limited(&ws).set("limits.processes", "128").options(["--timeout", &common::paced(2000)]).run([
        ws.fixture("procs"),
        "shape".into(),
        "bomb".into(),
        marker.clone(),
        "5000".into(),
    ]);
    assert_eq!(run.raw.code(), 124, "{}", run.json["outcome"]);
    assert_eq!(run.limit(), Some("wall"));
    assert!(run.json["usage"]["processes_peak"].as_u64().is_none_or(|p| p <= 130), "{}", run.json["usage"]);
    assert_eq!(common::await_gone(&marker, Duration::from_secs(5)).map(|_| ()), Ok(()));
}

#[test]
fn wall_time_ends_what_ignores_signals() {
    let ws = Workspace::new("wall");
    let marker = common::unique("wall");
    let run = Sandbox::new(&ws).options(["--timeout", &common::paced(700)]).run([
        ws.fixture("procs"),
        "shape".into(),
        "sigproof".into(),
        marker.clone(),
    ]);
    assert_eq!(run.raw.code(), 124);
    assert_eq!(run.limit(), Some("wall"));
    assert_eq!(run.json["limit"]["configured"], common::pace(700));
    let wall = run.json["usage"]["wall_ms"].as_u64().unwrap();
    assert!((common::pace(700)..common::pace(5000)).contains(&wall), "{wall}");
    assert_eq!(common::await_gone(&marker, Duration::from_secs(5)).map(|_| ()), Ok(()));
    let run = Sandbox::new(&ws).options(["--timeout", "30s"]).run(["true"]);
    run.expect_exit(0);
    assert_eq!(run.limit(), None);
}

#[test]
fn cpu_is_limited() {
    if !may() {
        return;
    }
    let ws = Workspace::new("cpu");
    let run = limited(&ws).set("limits.cpu", "20%").run([ws.fixture("limits"), "cpu_spin=2000".into()]);
    let limited_ms = run.cases().get("cpu_spin").ret;
    assert!(limited_ms < 900, "got {limited_ms} ms of CPU in 2 s at 20 %");
}

#[test]
fn output_is_counted_and_bounded() {
    let ws = Workspace::new("output");
    let run = Sandbox::new(&ws).set("limits.output", "1MiB").run([
        ws.fixture("limits"),
        "flood_stderr=64".into(),
        "flood_stdout=65536".into(),
    ]);
    run.expect_exit(0);
    let total = run.json["stdout"]["total_bytes"].as_u64().unwrap();
    assert!(total >= 64 << 20, "every byte is counted: {total}");
    assert_eq!(run.json["stdout"]["truncated"], true);
    assert!(run.stdout.len() <= (1 << 20) + 4096, "{} bytes kept", run.stdout.len());
    assert_eq!(run.json["stderr"]["truncated"], false);
    // As a stream to the caller.
    let raw = Sandbox::new(&ws)
        .set("limits.output", "1MiB")
        .raw([ws.fixture("limits"), "flood_stdout=8192".into()]);
    assert!(raw.stdout.len() <= (2 << 20), "{} bytes passed on", raw.stdout.len());
}

#[test]
fn too_much_output_can_also_end_it() {
    let ws = Workspace::new("output-kill");
    let run = Sandbox::new(&ws)
        .set("limits.output", "64KiB")
        .set("limits.output_action", "kill")
        .run([ws.fixture("limits"), "flood_stdout=65536".into()]);
    assert_eq!(run.limit(), Some("output"), "{}", run.json["outcome"]);
    assert_eq!(run.raw.code(), 137);
}

#[test]
fn descriptors_and_file_sizes() {
    let ws = Workspace::new("rlimits");
    let rows = vec![
        // 16,384 by default; three are open already.
        deny("descriptors", "EMFILE")
            .with("18000")
            .ret(16381)
            .no_control("the next test's 100 are the control"),
        allow("hundred:descriptors").with("100").ret(100),
        deny("raise_nofile", "EPERM").no_control("needs CAP_SYS_RESOURCE"),
        deny("realtime", "EPERM").no_control("needs CAP_SYS_NICE"),
        deny("nice_up", "EPERM").no_control("needs CAP_SYS_NICE"), // derived: nice(2) answers EPERM for EACCES
        deny("mlock", "ENOMEM").with("16384").no_control("the host's root may lock more"), // derived
        observe("stack_limit", 8192),
    ];
    check("limits", &ws, &rows, |s| s);
    let run = Sandbox::new(&ws)
        .set("limits.open_files", "64")
        .run([ws.fixture("limits"), "descriptors=200".into()]);
    assert_eq!(run.cases().get("descriptors").ret, 61);
    let run = Sandbox::new(&ws)
        .set("limits.file_size", "2MiB")
        .run([ws.fixture("limits"), format!("fill={},8", ws.at("big"))]);
    let case = run.cases().get("fill").clone();
    assert_eq!((case.errno.as_str(), case.ret), ("EFBIG", 2), "{case:?}");
}

#[test]
fn the_disk_of_the_workspace() {
    let ws = Workspace::new("disk");
    let run = Sandbox::new(&ws).set("limits.disk", "16MiB").run([
        ws.fixture("limits"),
        format!("fill={},256", ws.at("big")),
        format!("fallocate={},256", ws.at("big2")),
    ]);
    // Prefer: a quota answers at the limit, a watch ends the command with its overshoot recorded.
    let got = run.enforcement("limit_disk").map(|(_, got)| got);
    if run.limit() == Some("disk") {
        assert_eq!(run.raw.code(), 137, "{}", run.json["outcome"]);
        assert!(
            run.json["limit"]["observed"].as_u64() > Some(16 << 20),
            "the overshoot is recorded: {}",
            run.json["limit"]
        );
    } else if got.as_deref() == Some("enforced") {
        assert!(["EDQUOT", "ENOSPC"].contains(&run.cases().errno("fill")), "{}", run.out());
    } else {
        assert!(
            got.is_some_and(|got| got != "enforced"),
            "{} {}",
            run.json["outcome"],
            run.json["enforcement"]
        );
        assert_eq!(run.json["assurance"], "reduced");
    }
}

/// Every writable source counts, and what cannot be counted is a gap.
#[test]
fn the_disk_of_all_that_is_writable() {
    let ws = Workspace::new("disk-first");
    let second = Workspace::new("disk-second");
    let fixture = ws.fixture("limits");
    for into in [&ws, &second] {
        let run = Sandbox::new(&ws)
            .option("--rw")
            .option(second.path())
            .set("limits.disk", "16MiB")
            .options(["--timeout", "40s"])
            .run(common::sh(&format!("{fixture} fill={},64; sleep 60", into.at("big"))));
        assert_eq!(run.limit(), Some("disk"), "{} {}", run.json["outcome"], run.raw.err());
        assert_eq!(run.enforcement("limit_disk"), Some(("prefer".into(), "enforced".into())));
    }

    // Too deep from the start.
    let deep = vec!["d"; 130].join("/");
    ws.dir(&deep);
    let run = Sandbox::new(&ws).set("limits.disk", "1GiB").run(["true"]);
    run.expect_exit(0);
    assert_eq!(run.enforcement("limit_disk"), Some(("prefer".into(), "partial".into())));
    assert_eq!(run.json["assurance"], "reduced");
    assert!(run.json["enforcement"].to_string().contains("directories deep"), "{}", run.json["enforcement"]);
    let required =
        |sandbox: Sandbox| sandbox.set("require.limit_disk", "require").options(["--timeout", "40s"]);
    let run = required(Sandbox::new(&ws).set("limits.disk", "1GiB")).run(["true"]);
    assert_eq!(run.json["outcome"]["kind"], "refused", "{}", run.json["outcome"]);
    assert_eq!(run.json["outcome"]["code"], "protection_unmet", "{}", run.json["outcome"]);
    // Made so by the command, to hide what it writes.
    let script =
        format!("mkdir -p {deep} && {fixture} fill={},64; sleep 60", second.at(&format!("{deep}/big")));
    let run = required(Sandbox::new(&second).option("--ro").option(ws.path()).set("limits.disk", "16MiB"))
        .run(common::sh(&script));
    assert_eq!(run.json["outcome"]["kind"], "broken", "{} {}", run.json["outcome"], run.raw.err());
    assert_eq!(run.json["outcome"]["object"], "limit_disk", "{}", run.json["outcome"]);
    assert_eq!(run.enforcement("limit_disk"), Some(("require".into(), "partial".into())));
    // Nothing writable grows.
    let run = Sandbox::new(&ws).profile("read-only").set("limits.disk", "1GiB").run(["true"]);
    assert_eq!(run.enforcement("limit_disk"), Some(("prefer".into(), "enforced".into())));
}

#[test]
fn cgroups_are_out_of_reach() {
    let ws = Workspace::new("cgroups");
    let rows = vec![
        deny("cgroup_fs", "ENOENT").outside("OK"),
        deny("cgroup_procs", "ENOENT").no_control("see cgroup_fs"),
        deny("cgroup_tasks", "ENOENT").no_control("see cgroup_fs"),
        deny("cgroup_unified", "ENOENT").no_control("see cgroup_fs"),
        deny("cgroup_mkdir", "ENOENT").no_control("see cgroup_fs"),
        observe("cgroup_names", 0),
    ];
    check("limits", &ws, &rows, |s| s);
}

/// Limits stay with their own run: the second one starts afresh, and nothing piles up.
#[test]
fn nothing_piles_up() {
    let ws = Workspace::new("pile");
    let before = (common::leftover_cgroups().len(), common::live_records().len());
    for _ in 0..10 {
        Sandbox::new(&ws).run(["true"]).expect_exit(0);
    }
    // Other tests of this process run meanwhile: what counts is that ten runs leave no ten of anything.
    let quiet = common::await_that(Duration::from_secs(20), || {
        common::leftover_cgroups().len() < before.0 + 10 && common::live_records().len() < before.1 + 10
    });
    assert!(quiet, "{:?} {:?}", common::leftover_cgroups(), common::live_records());
}

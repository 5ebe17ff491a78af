//! The probe on the host that the tests run on. Its own `main`, since the probe's child must come from a
//! process with one thread and the usual harness has several. Promises nothing about the host: checks that
//! the answers hang together, that nothing is left behind and that the store gives them back.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;
use stockade::plan::{Fact, HostFacts, Mode};
use stockade::probe::{self, Store, host};

fn main() {
    // What nextest asks of a harness.
    if std::env::args().any(|a| a == "--list") {
        if !std::env::args().any(|a| a == "--ignored") {
            println!("probe_live: test");
        }
        return;
    }
    let before = around();
    let begun = Instant::now();
    let facts = host::probe().unwrap();
    println!("probe: {:?}", begun.elapsed());
    println!("{}", serde_json::to_string_pretty(&facts).unwrap());
    assert_eq!(around(), before, "mounts, cgroups, host name and ids are as before");
    hangs_together(&facts);

    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = Store::open(&state).unwrap();
    assert_eq!(probe::facts(Some(&store), "build").unwrap(), facts);
    let kept = std::fs::read_dir(state.join("cache")).unwrap().count();
    let usable = facts.namespaces.works() && facts.mount_api.works() && facts.seccomp.works();
    assert_eq!(kept, 1 + usize::from(usable), "key and facts");
    assert_eq!(probe::facts(Some(&store), "build").unwrap(), facts);
    assert_eq!(probe::facts(None, "build").unwrap(), facts);

    let mut times: Vec<_> = (0..500)
        .map(|_| {
            let begun = Instant::now();
            let store = Store::open(&state).unwrap();
            let got = probe::facts(Some(&store), "build").unwrap();
            let took = begun.elapsed();
            assert_eq!(got.mode, facts.mode);
            took
        })
        .collect();
    times.sort_unstable();
    println!("store open + cached facts: median {:?}, p95 {:?}", times[250], times[475]);
    gather_cost();
}

/// What gathering costs for the default profile, with this checkout as the workspace and the caller's own
/// environment.
fn gather_cost() {
    use stockade::base::{HostPath, OsBytes};
    use stockade::policy::{Candidate, EmbeddedOnly, load};
    let policy = load(Candidate::embedded("offline").unwrap(), &EmbeddedOnly, None, &[]).unwrap();
    let here = HostPath::new(std::env::current_dir().unwrap()).unwrap();
    let home = std::env::var_os("HOME").and_then(|h| HostPath::new(h).ok());
    let request = stockade::plan::Request {
        grants: Vec::new(),
        argv: vec!["true".into()],
        workspace: Some(here),
        workspace_explicit: true,
        at: None,
        cwd: None,
        binds: Vec::new(),
        tmpfs: Vec::new(),
        env: Default::default(),
        caller_env: std::rc::Rc::new(
            std::env::vars_os().map(|(n, v)| (OsBytes::from(n), OsBytes::from(v))).collect(),
        ),
        root: None,
        tty: false,
        timeout: false,
    };
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..200 {
        let begun = Instant::now();
        last = Some(probe::gather(&policy, &request, home.as_ref(), None).unwrap());
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let facts = last.unwrap();
    println!(
        "gather: median {:?}, p95 {:?} ({} etc, {} top, {} toolchains)",
        times[100],
        times[190],
        facts.etc.len(),
        facts.top.len(),
        facts.toolchains.len()
    );
}

fn around() -> (String, BTreeSet<String>, Vec<u8>, String) {
    let mut cgroups = BTreeSet::new();
    let mut todo = vec![Path::new("/sys/fs/cgroup").to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if entry.file_name().to_string_lossy().contains("probe") {
                    cgroups.insert(entry.path().display().to_string());
                }
                todo.push(entry.path());
            }
        }
    }
    let ids: String = std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .filter(|l| ["Uid", "Gid", "Cap", "NoNewPrivs", "Seccomp:"].iter().any(|p| l.starts_with(p)))
        .collect();
    (
        std::fs::read_to_string("/proc/self/mountinfo").unwrap(),
        cgroups,
        std::fs::read("/etc/hostname").unwrap_or_default(),
        ids,
    )
}

fn hangs_together(facts: &HostFacts) {
    let all = [
        &facts.namespaces,
        &facts.mount_api,
        &facts.proc_fresh,
        &facts.overlay,
        &facts.seccomp,
        &facts.time_namespace,
    ];
    for fact in all {
        if let Fact::Missing { why, remedy } = fact {
            assert!(!why.is_empty() && !remedy.is_empty());
        }
    }
    if !facts.namespaces.works() {
        assert!(!facts.mount_api.works() && !facts.proc_fresh.works());
    }
    assert!(facts.cpus >= 1 && facts.memory_total > 0 && facts.open_files_hard > 0);
    assert_eq!(facts.boot_id.len(), 36);
    if facts.mode == Mode::Privileged {
        assert_eq!(facts.uid, 0);
    }
    for dir in facts.cgroup.v1.values().chain(&facts.cgroup.v2) {
        assert!(dir.own.as_path().is_dir(), "{}", dir.own);
    }
}

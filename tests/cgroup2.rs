//! Layouts of cgroup2 that callers sit in, with nothing but cgroup2 on the host: whatever the layout, limits are reached,
//! or their absence is named; and afterwards the layout is what it was. Each case makes a subtree of its own, as root
//! below the mount and as an ordinary user in the cgroup that was delegated. On a host whose controllers are bound to
//! v1 hierarchies these are skips; `scripts/kernels` runs them in guests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Sandbox, Workspace, await_gone, await_that, bash, needs, root, unique};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

const MOUNT: &str = "/sys/fs/cgroup";
const WAIT: Duration = Duration::from_secs(10);
const LIMITS: [&str; 3] = ["memory", "pids", "cpu"];

fn words(at: &Path, file: &str) -> Vec<String> {
    fs::read_to_string(at.join(file)).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Where this process's own cgroup lies, on a host with cgroup2 alone.
fn own() -> Option<PathBuf> {
    let listed = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = listed.strip_prefix("0::/")?.trim_end();
    Path::new(MOUNT).join("cgroup.controllers").exists().then(|| Path::new(MOUNT).join(path))
}

/// A cgroup of the case's own that hands the controllers down; killed and removed at its end.
struct Tree {
    top: PathBuf,
    others: Vec<Child>,
}

impl Tree {
    fn new() -> Option<Self> {
        let own = own();
        if !needs(own.is_some(), "needs a host with cgroup2 alone") {
            return None;
        }
        let above = match root() {
            true => PathBuf::from(MOUNT),
            false => own?.parent().unwrap().to_owned(),
        };
        if !needs(common::limits_hold(), "an ordinary user without a delegated cgroup") {
            return None;
        }
        let top = above.join(unique("layout"));
        fs::create_dir(&top).unwrap_or_else(|e| panic!("{top:?}: {e}"));
        let tree = Self { top, others: Vec::new() };
        for controller in LIMITS {
            for at in [&above, &tree.top] {
                if !words(at, "cgroup.subtree_control").iter().any(|c| c == controller) {
                    fs::write(at.join("cgroup.subtree_control"), format!("+{controller}")).unwrap();
                }
            }
        }
        Some(tree)
    }

    fn make(&self, name: &str) -> PathBuf {
        let at = self.top.join(name);
        fs::create_dir(&at).unwrap();
        at
    }

    /// Somebody else's process in `at`.
    fn occupy(&mut self, at: &Path) -> u32 {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        self.others.push(child);
        fs::write(at.join("cgroup.procs"), pid.to_string()).unwrap();
        pid
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for other in &mut self.others {
            let _ = other.kill();
            let _ = other.wait();
        }
        let _ = fs::write(self.top.join("cgroup.kill"), "1");
        fn remove(at: &Path) -> bool {
            for below in fs::read_dir(at).into_iter().flatten().flatten() {
                if below.file_type().is_ok_and(|t| t.is_dir()) {
                    remove(&below.path());
                }
            }
            fs::remove_dir(at).is_ok()
        }
        await_that(WAIT, || remove(&self.top));
    }
}

/// Stockade in `at`.
fn within(ws: &Workspace, at: &Path) -> Sandbox {
    let enter = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", at.display());
    Sandbox::new(ws).launcher(["sh", "-c", &enter, "sh"])
}

/// A tree of which one process runs into the memory limit; `survived` is said by whoever is left.
const HOG: &str = "(head -c 400M /dev/zero | tail -c 400M >/dev/null); echo survived";
/// Says how many of 40 processes could be started.
const FORKS: &str =
    "n=0; for i in $(seq 40); do sleep 30 & n=$((n+1)); done 2>/dev/null; echo $(jobs -p | wc -l)";

/// Every limit is reached from `at`, and so in force.
#[track_caller]
fn limits_are_reached(ws: &Workspace, at: &Path) {
    let run = within(ws, at).set("limits.memory", "64MiB").run(bash(HOG));
    assert_eq!(run.json["limit"]["name"], "memory", "{}", run.json);
    assert!(!run.out().contains("survived"), "memory.oom.group takes the whole tree: {}", run.out());
    assert!(run.json["usage"]["memory_peak_bytes"].as_u64().is_none_or(|b| b <= 64 << 20), "{}", run.json);
    for protection in ["limit_memory", "limit_processes", "kill"] {
        let lines = run.json["enforcement"].as_array().unwrap();
        let line = lines.iter().find(|l| l["protection"] == protection).unwrap();
        assert_eq!(line["got"], "enforced", "{line}");
    }
    assert_eq!(run.json["reaping"]["cgroups_removed"], true, "{}", run.json["reaping"]);
    let run = within(ws, at).set("limits.processes", 20).run(bash(FORKS));
    assert!(run.json["usage"]["processes_denied"].as_u64().unwrap() > 0, "{}", run.json["usage"]);
    assert!(run.json["usage"]["processes_peak"].as_u64().is_none_or(|n| n <= 20), "{}", run.json["usage"]);
    let run = within(ws, at).set("limits.cpu", "20%").run([ws.fixture("limits"), "cpu_spin=2000".into()]);
    assert!(run.cases().get("cpu_spin").ret < 900, "{:?} ms of CPU in 2 s at 20 %", run.cases());
}

#[track_caller]
fn gap(ws: &Workspace, at: &Path) -> String {
    let run = within(ws, at).run(["true"]);
    run.expect_exit(0);
    let lines = run.json["enforcement"].as_array().unwrap();
    let line = lines.iter().find(|l| l["protection"] == "limit_memory").unwrap();
    assert_ne!(line["got"], "enforced", "{line}");
    assert_eq!(run.json["assurance"], "reduced");
    line["gap"]["what"].as_str().unwrap().to_owned()
}

/// As in a delegated scope: nobody else is there and nothing is handed down yet.
#[test]
fn a_caller_alone_in_its_cgroup() {
    let Some(tree) = Tree::new() else { return };
    let ws = Workspace::new("alone");
    let at = tree.make("scope");
    limits_are_reached(&ws, &at);
    assert_eq!(words(&at, "cgroup.subtree_control"), Vec::<String>::new(), "taken back");
    assert_eq!(words(&at, "cgroup.stat")[1], "0", "no cgroup is left in it");
}

/// As in a login session: the shell is there as well, and the cgroup around it hands controllers down.
#[test]
fn a_caller_among_others() {
    let Some(mut tree) = Tree::new() else { return };
    let ws = Workspace::new("among");
    let at = tree.make("session");
    let other = tree.occupy(&at);
    limits_are_reached(&ws, &at);
    assert_eq!(words(&at, "cgroup.procs"), [other.to_string()], "nobody was moved");
    assert_eq!(words(&tree.top, "cgroup.stat")[1], "1", "no cgroup is left beside it");
}

/// An executor beside our own cgroup would escape what our own is held to.
#[test]
fn no_limit_of_the_callers_own_is_escaped() {
    let Some(mut tree) = Tree::new() else { return };
    let ws = Workspace::new("tight");
    let at = tree.make("service");
    tree.occupy(&at);
    for (file, value, free) in
        [("pids.max", "500", "max"), ("memory.max", "1G", "max"), ("cpu.max", "90000 100000", "max 100000")]
    {
        fs::write(at.join(file), value).unwrap();
        let what = gap(&ws, &at);
        assert!(what.contains(&format!("would escape its {file}")), "{what}");
        fs::write(at.join(file), free).unwrap();
    }
}

/// Nothing to be had: neither from our own cgroup nor from the one around it.
#[test]
fn where_no_controller_is_handed_down_it_is_named() {
    let Some(mut tree) = Tree::new() else { return };
    let ws = Workspace::new("none");
    let around = tree.make("around");
    let at = around.join("session");
    fs::create_dir(&at).unwrap();
    tree.occupy(&at);
    fs::write(around.join("cgroup.subtree_control"), "+cpu").unwrap();
    fs::write(around.join("cgroup.subtree_control"), "-cpu").unwrap();
    let what = gap(&ws, &at);
    assert!(what.contains("has no controller of memory, pids or cpu"), "{what}");
}

/// Children of a threaded domain take no processes.
#[test]
fn a_threaded_cgroup() {
    let Some(tree) = Tree::new() else { return };
    let ws = Workspace::new("threaded");
    let at = tree.make("threads");
    fs::create_dir(at.join("pool")).unwrap();
    fs::write(at.join("pool/cgroup.type"), "threaded").unwrap();
    assert_eq!(words(&at, "cgroup.type"), ["domain", "threaded"]);
    limits_are_reached(&ws, &at);
}

/// Kernels 6.16 to 7.2 kill what is born into a child of a cgroup that was ever killed.
#[test]
fn a_cgroup_that_was_killed_before() {
    let Some(mut tree) = Tree::new() else { return };
    let ws = Workspace::new("killed");
    let at = tree.make("service");
    let other = tree.occupy(&at);
    fs::write(at.join("cgroup.kill"), "1").unwrap();
    assert!(await_that(WAIT, || tree.others[0].try_wait().unwrap().is_some()), "{other}");
    limits_are_reached(&ws, &at);
}

/// As in a container with a cgroup namespace of its own, mounted with what the host's mount says (nsdelegate).
#[test]
fn a_cgroup_namespace() {
    let Some(tree) = Tree::new() else { return };
    if !needs(root(), "mounting cgroup2 in a namespace as a container's engine does needs root") {
        return;
    }
    let ws = Workspace::new("cgroupns");
    let at = tree.make("container");
    let enter = format!(
        "echo $$ >{}/cgroup.procs && exec unshare --cgroup --mount sh -c 'umount {MOUNT}; mount -t cgroup2 c {MOUNT} && exec \"$@\"' sh \"$@\"",
        at.display()
    );
    let run = Sandbox::new(&ws)
        .launcher(["sh", "-c", &enter, "sh"])
        .set("limits.memory", "64MiB")
        .run(bash(&format!("cat /proc/self/cgroup; {HOG}")));
    assert_eq!(run.json["limit"]["name"], "memory", "{}", run.json);
    assert_eq!(run.out().trim(), "0::/", "its own is all it sees");
    assert_eq!(words(&at, "cgroup.stat")[1], "0", "no cgroup is left in it");
}

/// The leaf is of the record as well, so the next start removes it.
#[test]
fn a_killed_owner_leaves_no_leaf_for_long() {
    let Some(tree) = Tree::new() else { return };
    let ws = Workspace::new("leafless");
    let at = tree.make("scope");
    let marker = unique("leafless");
    let live =
        within(&ws, &at).with_result().spawn(["sh", "-c", "echo ready; sleep 600; true", marker.as_str()]);
    live.expect_output("ready");
    assert_eq!(words(&at, "cgroup.stat")[1], "2", "the executor's and the leaf");
    live.signal(nix::sys::signal::Signal::SIGKILL);
    let _ = live.finish(Duration::from_secs(30));
    await_gone(&marker, WAIT).unwrap();
    Sandbox::new(&ws).run(["true"]).expect_exit(0);
    assert_eq!(words(&at, "cgroup.stat")[1], "0", "the next start has removed both");
}

/// Without a cgroup of one's own everything but limits works, and that is said with what mends it.
#[test]
fn an_ordinary_user_without_delegation() {
    if !needs(own().is_some() && !root(), "needs an ordinary user on a host with cgroup2 alone")
        || !needs(!common::limits_hold(), "needs a user without a delegated cgroup")
    {
        return;
    }
    let ws = Workspace::new("bare");
    let run = Sandbox::new(&ws).run(["true"]);
    run.expect_exit(0);
    let lines = run.json["enforcement"].as_array().unwrap();
    for protection in ["limit_memory", "limit_processes", "kill"] {
        let line = lines.iter().find(|l| l["protection"] == protection).unwrap();
        assert_eq!(line["got"], "absent", "{line}");
        assert!(line["gap"]["remedy"].as_str().unwrap().contains("Delegate=yes"), "{line}");
    }
    let raw = Sandbox::new(&ws).profile("strict").raw(["true"]);
    assert_eq!(raw.code(), 125, "{raw:?}");
}

//! Cgroups of executors on this machine's own hierarchies: limits are reached by processes that really run
//! into them, trees are killed, nothing is left. Needs cgroup directories that this user may write to; a
//! case that cannot run prints `SKIP` and why, and fails instead when `STOCKADE_MUST_WORK=cgroup` is set.
//! Every case works in a directory of its own, removed whatever happens; forks happen under a pids limit.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at the first surprise"
)]

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use stockade::base::{HostPath, RunId};
use stockade::plan::{CgroupDir, CgroupFacts};
use stockade::supervise::cgroup::{self, ExecCgroup, Limit, Wanted};

const MIB: u64 = 1 << 20;

/// This process's own cgroups, found as `probe` does: `/proc/self/cgroup` and the mount table.
fn facts() -> CgroupFacts {
    let mut facts = CgroupFacts { v2_kill: true, swap_accounting: true, ..CgroupFacts::default() };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    for mount in mounts.lines() {
        let f: Vec<&str> = mount.split(' ').collect();
        if f[2] != "cgroup" && f[2] != "cgroup2" {
            continue;
        }
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
            let dir = PathBuf::from(format!("{}{path}", f[1]));
            let writable = rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK).is_ok();
            let dir = || CgroupDir { own: HostPath::new(&dir).unwrap(), writable };
            if f[2] == "cgroup2" && controllers.is_empty() {
                let handed = |at: &Path| -> Vec<String> {
                    let have = std::fs::read_to_string(at.join("cgroup.subtree_control"));
                    have.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
                };
                facts.v2 = Some(dir());
                facts.v2_controllers = handed(dir().own.as_path());
                // Tests sit in a cgroup that holds processes and so hands nothing down: the one around it may.
                let above = dir().own.as_path().parent().unwrap().to_owned();
                if facts.v2_controllers.is_empty() && handed(&above).iter().any(|c| c == "pids") {
                    let writable = rustix::fs::access(&above, rustix::fs::Access::WRITE_OK).is_ok();
                    facts.v2_controllers = handed(&above);
                    facts.v2 = Some(CgroupDir { own: HostPath::new(&above).unwrap(), writable });
                }
            } else if f[2] == "cgroup" {
                for c in controllers.split(',').filter(|c| f[3].split(',').any(|o| o == *c)) {
                    facts.v1.insert(c.to_owned(), dir());
                }
            }
        }
    }
    facts
}

fn v1_only() -> CgroupFacts {
    CgroupFacts { v2: None, v2_kill: false, v2_controllers: Vec::new(), ..facts() }
}

fn run() -> RunId {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    RunId::new(ms as u64, [a, b, c, d, 0, 0, 0, 0, 0, NEXT.fetch_add(1, Ordering::SeqCst)])
}

/// Prints why a case cannot run here, and writes it to where all skips are listed.
fn skip(why: &str) {
    assert!(std::env::var_os("STOCKADE_MUST_WORK").is_none_or(|v| v != "cgroup"), "must work: {why}");
    println!("SKIP: {why}");
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    let place = std::env::var_os("STOCKADE_TEST_TMP")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let file = std::fs::OpenOptions::new().create(true).append(true).open(place.join("skips.txt"));
    file.and_then(|mut f| writeln!(f, "SKIP cgroup::{test} {why}")).unwrap();
}

fn can(facts: &CgroupFacts, controllers: &[&str]) -> bool {
    for c in controllers {
        let v2 = facts.v2.as_ref().is_some_and(|d| d.writable) && facts.v2_controllers.iter().any(|x| x == c);
        if !v2 && !facts.v1.get(*c).is_some_and(|d| d.writable) {
            skip(&format!("no writable cgroup with the {c} controller"));
            return false;
        }
    }
    if facts.v2.as_ref().is_none_or(|d| !d.writable) && facts.v1.is_empty() {
        skip("no writable cgroup");
        return false;
    }
    true
}

/// Cgroups that are killed and removed when a case ends, however it ends.
struct Case {
    group: Option<ExecCgroup>,
    names: Vec<cgroup::CgroupName>,
    run: RunId,
}

impl Case {
    fn new(facts: &CgroupFacts, wanted: Wanted) -> Self {
        let run = run();
        let names = cgroup::names(facts, &run, &wanted);
        let mut group = ExecCgroup::create_v2(facts, &run).unwrap();
        for (limit, result) in group.add_limits(facts, &wanted) {
            result.unwrap_or_else(|gap| panic!("{limit:?}: {gap}"));
        }
        for name in &names {
            assert!(name.path.is_dir(), "{name:?} was announced and not made");
        }
        Self { group: Some(group), names, run }
    }

    fn group(&mut self) -> &mut ExecCgroup {
        self.group.as_mut().unwrap()
    }

    /// Starts a shell that waits for a line, is placed, and then runs `script`.
    fn start(&mut self, script: &str) -> Child {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        self.group().place(child.id() as i32).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        child
    }

    fn finish(mut self) {
        let group = self.group.take().unwrap();
        group.remove().unwrap_or_else(|e| panic!("{e:?}"));
        for name in &self.names {
            assert!(!name.path.exists());
        }
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        for e in cgroup::reclaim(&self.names, &self.run, Duration::from_secs(5)) {
            eprintln!("clean-up: {e}");
        }
    }
}

fn wait(child: &mut Child, at_most: Duration) -> ExitStatus {
    let until = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("still running after {at_most:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn until(what: &str, mut yes: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !yes() {
        assert!(Instant::now() < end, "waited two minutes until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn output(child: &mut Child) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut text).unwrap();
    text
}

/// Fills a tmpfs-free 256 MiB of anonymous memory.
const HOG: &str = "head -c 268435456 /dev/zero | tail -c 268435456 | wc -c";

#[test]
fn memory_limit_is_reached_and_named() {
    let facts = facts();
    if !can(&facts, &["memory", "pids"]) {
        return;
    }
    // Positive control: the same hog under a limit that it fits into.
    let mut roomy = Case::new(&facts, Wanted { memory: Some(1024 * MIB), ..Wanted::default() });
    let mut child = roomy.start(HOG);
    assert_eq!(output(&mut child).trim(), "268435456");
    wait(&mut child, Duration::from_secs(20));
    assert!(!roomy.group().oom_happened());
    let peak = roomy.group().stats().memory_peak.value().unwrap();
    assert!((256 * MIB..1024 * MIB).contains(&peak), "{peak}");
    roomy.finish();

    let mut case =
        Case::new(&facts, Wanted { memory: Some(64 * MIB), processes: Some(50), ..Wanted::default() });
    let mut child = case.start(HOG);
    let watch = case.group().oom_watch().unwrap();
    let flags = if watch.priority { rustix::event::PollFlags::PRI } else { rustix::event::PollFlags::IN };
    let mut poll = [rustix::event::PollFd::new(&watch.fd, flags)];
    let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut poll, Some(&timeout)).unwrap(), 1, "no out-of-memory event");
    assert_ne!(output(&mut child).trim(), "268435456");
    wait(&mut child, Duration::from_secs(20));
    until("the kill is counted", || case.group().oom_happened());
    let stats = case.group().stats();
    let peak = stats.memory_peak.value().unwrap();
    assert!((60 * MIB..=64 * MIB).contains(&peak), "{stats:?}");
    assert!(stats.memory_kills.value().unwrap() >= 1);
    case.finish();
}

#[test]
fn process_limit_is_reached_and_counted() {
    let facts = facts();
    if !can(&facts, &["pids"]) {
        return;
    }
    let forks = "n=0; for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 5 & ) || break; done; true";
    let mut case = Case::new(&facts, Wanted { processes: Some(6), ..Wanted::default() });
    let mut child = case.start(forks);
    until("a fork was refused", || case.group().stats().processes_denied.value().unwrap() > 0);
    assert!(case.group().processes(100).len() <= 6);
    case.group().kill(Duration::from_secs(5)).unwrap();
    wait(&mut child, Duration::from_secs(5));
    let stats = case.group().stats();
    assert_eq!(stats.processes_peak.value(), Some(6), "{stats:?}");
    until("the tree is empty", || case.group().is_empty().unwrap());
    case.finish();

    let mut case = Case::new(&facts, Wanted { processes: Some(60), ..Wanted::default() });
    let mut child = case.start(forks);
    wait(&mut child, Duration::from_secs(5));
    assert_eq!(case.group().stats().processes_denied.value(), Some(0));
    case.group().kill(Duration::from_secs(5)).unwrap();
    until("the tree is empty", || case.group().is_empty().unwrap());
    case.finish();
}

#[test]
fn cpu_quota_holds() {
    let facts = facts();
    if !can(&facts, &["cpu"]) {
        return;
    }
    let mut case = Case::new(&facts, Wanted { cpu_percent: Some(20), ..Wanted::default() });
    let mut child = case.start("while :; do :; done & while :; do :; done");
    let before = case.group().stats().cpu_us.value();
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    let stats = case.group().stats();
    let wall = start.elapsed().as_micros() as u64;
    if let (Some(before), Some(after)) = (before, stats.cpu_us.value()) {
        let percent = (after - before) * 100 / wall;
        assert!((5..=28).contains(&percent), "{percent} % of a CPU");
    }
    assert!(stats.cpu_throttled.value().unwrap() > 3, "{stats:?}");
    case.group().kill(Duration::from_secs(5)).unwrap();
    wait(&mut child, Duration::from_secs(5));
    until("the tree is empty", || case.group().is_empty().unwrap());
    case.finish();
}

/// Sixty processes in all kinds of states, among them stopped ones and some that fork until they may not. The first
/// shell forks nothing from then on: it would end by itself at the limit.
const FOREST: &str = "
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 60 & done
    for i in 1 2 3 4 5; do sleep 60 & kill -STOP $!; done
    (trap '' TERM INT HUP; while :; do sleep 60; done) &
    setsid sleep 60 &
    (for i in 1 2 3 4; do (while :; do (:) & done) & done) 2>/dev/null
    while :; do wait; done";

fn kill_forest(facts: &CgroupFacts) {
    let mut case =
        Case::new(facts, Wanted { processes: Some(80), memory: Some(512 * MIB), ..Wanted::default() });
    let mut child = case.start(FOREST);
    until("it has grown", || case.group().processes(1000).len() > 30);
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    case.group().kill(Duration::from_secs(10)).unwrap();
    assert_eq!(wait(&mut child, Duration::from_secs(10)).signal(), Some(9));
    until("the tree is empty", || case.group().is_empty().unwrap());
    println!("killed after {:?}", start.elapsed());
    case.finish();
}

#[test]
fn a_forest_with_stopped_and_forking_processes_dies() {
    let facts = facts();
    if can(&facts, &["pids", "memory"]) && facts.v2.as_ref().is_some_and(|d| d.writable) {
        kill_forest(&facts);
    }
}

#[test]
fn a_forest_dies_without_cgroup2() {
    let facts = v1_only();
    if can(&facts, &["pids", "memory", "freezer"]) {
        kill_forest(&facts);
    }
}

#[test]
fn recovery_kills_frozen_trees_and_removes_them() {
    for facts in [facts(), v1_only()] {
        if !can(&facts, &["pids", "memory"]) {
            continue;
        }
        let mut case =
            Case::new(&facts, Wanted { processes: Some(80), memory: Some(512 * MIB), ..Wanted::default() });
        let mut child = case.start(FOREST);
        until("it has grown", || case.group().processes(1000).len() > 30);
        for name in &case.names {
            let _ = std::fs::write(name.path.join("freezer.state"), "FROZEN");
            let _ = std::fs::write(name.path.join("cgroup.freeze"), "1");
        }
        // The owner is gone: only the names are left.
        drop(case.group.take());
        let reaper = std::thread::spawn(move || wait(&mut child, Duration::from_secs(10)));
        let errors = cgroup::reclaim(&case.names, &case.run, Duration::from_secs(5));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(reaper.join().unwrap().signal(), Some(9));
        for name in &case.names {
            assert!(!name.path.exists());
        }
    }
}

#[test]
fn an_occupied_cgroup_is_not_removed_but_named() {
    let facts = facts();
    if !can(&facts, &["pids"]) {
        return;
    }
    let mut case = Case::new(&facts, Wanted { processes: Some(10), ..Wanted::default() });
    let mut child = case.start("sleep 60");
    let errors = case.group.take().unwrap().remove().unwrap_err();
    assert_eq!(errors.len(), case.names.len());
    assert!(errors[0].to_string().contains("stockade-"), "{}", errors[0]);
    drop(case);
    wait(&mut child, Duration::from_secs(5));
}

#[test]
fn the_child_enters_v1_by_itself_and_place_only_confirms() {
    let facts = v1_only();
    if !can(&facts, &["pids", "memory"]) {
        return;
    }
    let mut case =
        Case::new(&facts, Wanted { processes: Some(10), memory: Some(64 * MIB), ..Wanted::default() });
    let fds = case.group().task_fds();
    let made = fds.len();
    let me = std::process::id();
    let paths: Vec<String> = fds.iter().map(|fd| format!("/proc/{me}/fd/{}", fd.as_raw_fd())).collect();
    let script =
        format!("read go; for f in {}; do echo 0 > $f || exit 1; done; echo in; read end", paths.join(" "));
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let mut line = [0u8; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"in\n");
    let start = Instant::now();
    case.group().place(child.id() as i32).unwrap();
    println!("confirmed in {:?}", start.elapsed());
    assert_eq!(made, case.names.len());
    assert_eq!(case.group().processes(5), [child.id() as i32]);
    drop(child.stdin.take());
    wait(&mut child, Duration::from_secs(5));
    case.finish();
}

#[test]
fn limits_that_cannot_be_placed_are_gaps_and_touch_nothing() {
    let none = CgroupFacts::default();
    let mut group = ExecCgroup::create_v2(&none, &run()).unwrap();
    assert!(group.clone_dir().is_none());
    let wanted = Wanted { memory: Some(MIB), processes: Some(1), cpu_percent: Some(1) };
    let answers = group.add_limits(&none, &wanted);
    let limits: Vec<Limit> = answers.iter().map(|(l, _)| *l).collect();
    assert_eq!(limits, [Limit::Memory, Limit::Processes, Limit::Cpu]);
    for (_, answer) in answers {
        let gap = answer.unwrap_err();
        assert!(!gap.partial && gap.what.contains("no cgroup hierarchy"), "{gap}");
    }
    assert_eq!(group.stats().memory_peak.value(), None);
    group.place(std::process::id() as i32).unwrap();
    assert!(group.is_empty().unwrap());
    group.remove().unwrap();
}

#[test]
fn a_limit_beyond_the_kernels_is_a_gap() {
    let facts = facts();
    if !can(&facts, &["pids"]) {
        return;
    }
    let run = run();
    let wanted = Wanted { processes: Some(u64::MAX), ..Wanted::default() };
    let names = cgroup::names(&facts, &run, &wanted);
    let mut group = ExecCgroup::create_v2(&facts, &run).unwrap();
    let gap = group.add_limits(&facts, &wanted).remove(0).1.unwrap_err();
    assert!(gap.what.contains("pids.max"), "{gap}");
    group.remove().unwrap();
    assert!(names.iter().all(|n| !n.path.exists()));
}

/// As root: delegates a directory in every hierarchy to an ordinary user and runs the cases above as that
/// user, in it.
#[test]
fn delegated_to_an_ordinary_user() {
    if std::env::var_os("STOCKADE_TEST_DELEGATED").is_some() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can delegate to another user");
    }
    let facts = facts();
    if !can(&facts, &["memory", "pids", "cpu", "freezer"]) {
        return;
    }
    let name = format!("stockade-test-{}", std::process::id());
    let mut dirs: Vec<PathBuf> = Vec::new();
    // Not cpuset: a new directory of it takes no process before it has been given CPUs.
    let v1 = ["memory", "pids", "cpu", "freezer"].iter().filter_map(|c| facts.v1.get(*c));
    for own in v1.chain(&facts.v2) {
        let dir = own.own.as_path().join(&name);
        if std::fs::create_dir(&dir).is_ok() {
            for at in ["", "tasks", "cgroup.procs"] {
                let _ = std::os::unix::fs::chown(dir.join(at), Some(65533), Some(65533));
            }
            dirs.push(dir);
        }
    }
    struct Gone<'a>(&'a [PathBuf]);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            for dir in self.0 {
                let end = Instant::now() + Duration::from_secs(2);
                while std::fs::remove_dir(dir).is_err_and(|e| e.raw_os_error() == Some(16))
                    && Instant::now() < end
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
    let gone = Gone(&dirs);
    // The build directory may not be readable for that user: a copy is.
    let tmp = tempfile::tempdir().unwrap();
    let exe = tmp.path().join("cases");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    std::fs::set_permissions(tmp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "read go; exec setpriv --reuid 65533 --regid 65533 --clear-groups \"$0\" --nocapture --test-threads=1"])
        .arg(&exe)
        .current_dir(Path::new("/"))
        .env("STOCKADE_TEST_DELEGATED", "1")
        .env("STOCKADE_MUST_WORK", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    for dir in &dirs {
        std::fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let text = output(&mut child);
    let status = wait(&mut child, Duration::from_secs(60));
    print!("{text}");
    assert!(status.success(), "as an ordinary user: {status}");
    // Everything that root could, an ordinary user with a delegated directory can.
    assert!(!text.contains("SKIP"), "{text}");
    drop(gone);
    assert!(dirs.iter().all(|d| !d.exists()));
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn processes_with(marker: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    lines.filter(|l| l.windows(marker.len()).any(|w| w == marker.as_bytes())).count()
}

/// Directories of this machine's hierarchies that are named after runs of `looping_owner`.
fn left_behind(facts: &CgroupFacts) -> Vec<PathBuf> {
    let dirs = facts.v1.values().chain(&facts.v2).filter_map(|d| std::fs::read_dir(d.own.as_path()).ok());
    let mut all: Vec<PathBuf> = dirs.flatten().flatten().map(|e| e.path()).collect();
    all.retain(|p| p.file_name().unwrap().to_str().is_some_and(|n| n.starts_with("stockade-00ddba11-")));
    all.sort();
    all.dedup();
    all
}

const MARKER: &str = "stockade-owner-test";

/// An owner that makes and ends executors in a loop is killed at random moments; afterwards one recovery
/// leaves no process, no cgroup and no live file.
#[test]
fn kill_9_of_an_owner_at_any_moment() {
    use stockade::supervise::recover::{Host, recover};
    let facts = facts();
    if !can(&facts, &["pids", "memory"]) {
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    let state_path = tmp.path().join("state");
    let uid = rustix::process::geteuid().as_raw();
    let state = stockade::supervise::state_dir::StateDir::open(&state_path, uid).unwrap();
    let boot = boot_id();
    let (mut cleaned, mut with_cgroup) = (0, 0);
    for n in 0..30u64 {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "looping_owner", "--ignored"])
            .env("STOCKADE_TEST_STATE", &state_path)
            .env("STOCKADE_TEST_SEED", n.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(5_000 + n * 1_300));
        owner.kill().unwrap();
        owner.wait().unwrap();
        with_cgroup += usize::from(!left_behind(&facts).is_empty());
        let host = Host { boot_id: &boot, proc: Path::new("/proc") };
        // A child of the owner that it was just starting holds the lock until it execs or ends.
        until("the lock is free", || {
            let found = recover(&state, host).unwrap();
            assert!(found.kept.is_empty(), "{found:?}");
            cleaned += found.cleaned.len();
            found.live == 0
        });
        assert_eq!(left_behind(&facts), Vec::<PathBuf>::new());
        assert_eq!(std::fs::read_dir(state_path.join("live")).unwrap().count(), 0);
        until("no process is left", || processes_with(MARKER) == 0);
    }
    println!("{cleaned} runs cleaned, {with_cgroup} of them with cgroups");
    assert!(cleaned > 3 && with_cgroup > 3, "the kills missed: {cleaned} {with_cgroup}");
}

#[test]
#[ignore = "the owner of kill_9_of_an_owner_at_any_moment"]
fn looping_owner() {
    use stockade::supervise::recover::{Beginning, IdSources, Live, ProcessId};
    let Some(path) = std::env::var_os("STOCKADE_TEST_STATE") else { return };
    let seed: u8 = std::env::var("STOCKADE_TEST_SEED").unwrap().parse().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let state = stockade::supervise::state_dir::StateDir::open(Path::new(&path), uid).unwrap();
    let (facts, boot, proc, ids) = (facts(), boot_id(), Path::new("/proc"), IdSources::default());
    let wanted = Wanted { processes: Some(20), memory: Some(64 * MIB), ..Wanted::default() };
    for n in 0..=255 {
        // The time makes the directories begin with `stockade-00ddba11-`.
        let run = RunId::new(0x00dd_ba11_0000, [seed, n, 0, 0, 0, 0, 0, 0, seed, n]);
        let cgroups = cgroup::names(&facts, &run, &wanted);
        let what = Beginning { run, boot_id: &boot, proc, ids: Some(&ids), cgroups, temporary: Vec::new() };
        let mut live = Live::begin(&state, what).unwrap();
        let mut group = ExecCgroup::create_v2(&facts, &run).unwrap();
        group.add_limits(&facts, &wanted);
        // Like init: it ends by itself when its owner is gone before it was released.
        let mut child = Command::new("sh")
            .args(["-c", "read go || exit 0; sleep 60 & sleep 60", MARKER])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        group.place(child.id() as i32).unwrap();
        live.update(|r| r.init = ProcessId::of(proc, child.id() as i32).ok()).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        std::thread::sleep(Duration::from_millis(1));
        group.kill(Duration::from_secs(5)).unwrap();
        child.wait().unwrap();
        group.remove().unwrap();
        live.end().unwrap();
    }
}

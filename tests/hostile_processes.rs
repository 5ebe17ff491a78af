//! Reaching other processes (threats F 86–94), with a sentinel on the host that must notice nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{BOTH, Sandbox, Workspace, allow, check, deny};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A host process that dies of SIGUSR2: it stands for everybody else's processes.
struct Sentinel(Child);

impl Sentinel {
    fn start(group: i32) -> Self {
        let child = Command::new("sleep")
            .arg("300")
            .process_group(group)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
    fn alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn host_processes_are_nobody() {
    let ws = Workspace::new("hostpid");
    let mut sentinel = Sentinel::start(0);
    let pid = sentinel.pid().to_string();
    let row = |case: &str, errno| deny(case, errno).with(pid.clone());
    let rows = vec![
        row("kill_host", "ESRCH").outside_with(format!("kill_host_0={pid}"), "MISSING"),
        row("kill_host_0", "ESRCH").outside("OK"),
        row("tgkill_host", "ESRCH").beside("kill_own_child"),
        row("sigqueue_host", "ESRCH").beside("kill_own_child"),
        row("killpg_host", "ESRCH").beside("kill_own_child"),
        row("pidfd_open_host", "ESRCH").outside("OK"),
        row("prlimit_host", "ESRCH").outside("OK"),
        row("setpriority_host", "ESRCH").outside("OK"),
        row("sched_affinity_host", "ESRCH").outside("OK"),
        row("sched_getscheduler_host", "ESRCH").outside("OK"),
        row("ioprio_host", "ESRCH").outside("OK"),
        row("getpgid_host", "ESRCH").outside("OK"),
        row("getsid_host", "ESRCH").outside("OK"),
        row("ptrace_host", "EPERM").outside("OK"),
        row("kcmp_host", "EPERM").outside("OK"),
        row("process_vm_host", "EPERM").no_control("needs a readable address in the sentinel"),
        allow("kill_own_child"),
        allow("waitid_pidfd"),
        allow("setsid_own"),
        allow("subreaper"),
    ];
    // kill_host's own control would end the sentinel; kill_host_0 is it.
    let rows: Vec<_> = rows
        .into_iter()
        .map(|r| if format!("{r:?}").contains("MISSING") { r.beside("kill_own_child") } else { r })
        .collect();
    check("procs", &ws, &rows, |s| s);
    assert!(sentinel.alive(), "the sentinel got a signal");
}

/// kill(0) and kill(-1): a pid namespace does not stop group signals, a session of one's own does.
#[test]
fn group_signals_stay_inside() {
    for inside in BOTH {
        let ws = Workspace::new("group");
        // Stockade itself runs in the sentinel's process group.
        let mut sentinel = Sentinel::start(0);
        let argv = [
            ws.fixture("procs"),
            "kill_group".into(),
            "kill_parent_of_parent".into(),
            "kill_all".into(),
            "kill_own_child".into(),
        ];
        let run = Sandbox::new(&ws).inside(inside).process_group(sentinel.pid()).run(argv);
        run.expect_exit(0);
        let cases = run.cases();
        assert_eq!(cases.errno("kill_group"), "OK", "{cases:?}");
        assert_eq!(cases.errno("kill_own_child"), "OK", "{cases:?}");
        assert!(sentinel.alive(), "{inside:?}: the caller's process group got the signal");
        // The control: the same without a sandbox ends a sentinel of the same group.
        let mut victim = Sentinel::start(0);
        let mut bare = Command::new(common::fixture("procs"));
        bare.arg("kill_group").process_group(victim.pid());
        let _ = common::bounded(bare, Duration::from_secs(10));
        assert!(common::await_that(Duration::from_secs(2), || !victim.alive()), "the control did not work");
    }
}

#[test]
fn init_cannot_be_harmed() {
    let ws = Workspace::new("harm-init");
    // Landlock scopes signals to the command's own domain, in which init is not.
    let mut rows = vec![
        // Rootless, init has the command's kernel identity, and nothing but that decides prlimit(2): the filter does.
        deny("prlimit_init", "EPERM").beside("prlimit_own"),
        deny("prlimit_child", "EPERM").outside("OK"),
        // The scheduler's calls ask for init's capabilities as well, which the command lacks.
        deny("nice:setpriority_host", "EPERM").with("1").beside("nice_own"),
        deny("cpus:sched_affinity_host", "EPERM").with("1").beside("cpus_own"),
        deny("io:ioprio_host", "EPERM").with("1").beside("io_own"),
        allow("nice_own:setpriority_host").with("0"),
        allow("cpus_own:sched_affinity_host").with("0"),
        allow("io_own:ioprio_host").with("0"),
        allow("prlimit_own"),
        allow("prlimit_child_read"),
        allow("kill_own_child"),
    ];
    // Before scopes (ABI 6) an ordinary user's command may signal init, which has the same identity; what would end or
    // stop the first process of a PID namespace is then dropped by the kernel. That the run finishes is the proof.
    let scoped = common::landlock_abi() >= 6 || common::root();
    for case in ["kill_init", "stop_init", "pidfd_signal_by_init"] {
        rows.push(if scoped { deny(case, "EPERM").beside("kill_own_child") } else { allow(case) });
    }
    check("procs", &ws, &rows, |s| s);
}

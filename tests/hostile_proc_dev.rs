//! Descriptors, /proc, /dev, terminals and kernel controls (20-sandbox §§1, 2 and 4; threats A, F, J, K).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{
    BOTH, Input, Inside, Sandbox, Workspace, allow, carrying, check, deny, home, observe, root, unique,
};
use std::fs;
use std::os::fd::AsRawFd;

#[test]
fn init_is_no_target() {
    let ws = Workspace::new("init");
    let mut rows = Vec::new();
    for case in [
        "init_environ",
        "init_cmdline",
        "init_mem_read",
        "init_mem_write",
        "init_exe_read",
        "init_exe_write",
        "init_maps",
        "init_auxv",
        "init_stack",
        "init_syscall",
        "init_personality",
        "init_oom_write",
        "init_mountinfo",
        "init_fd_list",
        "init_fd_0",
        "init_fd_3",
        "init_root",
        "init_root_dir",
        "init_cwd",
        "init_readlink_exe",
    ] {
        // hidepid=ptraceable: a fresh look-up of /proc/1 is ENOENT, one whose entry the kernel has cached EPERM.
        rows.push(deny(case, "EPERM|ENOENT").beside("self_mem"));
    }
    rows.push(allow("self_mem"));
    check("proc_dev", &ws, &rows, |s| s);
}

#[test]
fn no_descriptor_comes_along() {
    let ws = Workspace::new("fds");
    // Descriptors of the test itself, inheritable, beside those of the standard library.
    let file = fs::File::create(home().join(unique("inherit"))).unwrap();
    let high = rustix::io::fcntl_dupfd_cloexec(&file, 1200).unwrap();
    rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
    let number = high.as_raw_fd();
    let rows = vec![
        observe("open_descriptors", 0),
        deny("high:descriptor", "EBADF").with(number.to_string()).outside("OK"),
        deny("three:descriptor", "EBADF").with("3").beside("one"),
        allow("one:descriptor").with("1"),
        deny("parent:magic_parent", "ENOENT").with(number.to_string()).beside("one"),
    ];
    check("proc_dev", &ws, &rows, |s| s);
    drop(high);
}

#[test]
fn stdio_is_not_the_callers() {
    let ws = Workspace::new("stdio");
    let host = home().join(unique("stdin-file"));
    fs::write(&host, "host content").unwrap();
    for inside in BOTH {
        let out = fs::File::create(home().join(unique("stdout-file"))).unwrap();
        let argv = [
            ws.fixture("proc_dev"),
            "in:stdio_kind=0".into(),
            "out:stdio_kind=1".into(),
            "err:stdio_kind=2".into(),
            "truncate_stdin".into(),
            "reopen_stdout".into(),
            "reopen_stderr".into(),
            "set_nonblock_stdio".into(),
            "reopen_stdin_write".into(),
        ];
        let stdin = fs::OpenOptions::new().read(true).write(true).open(&host).unwrap();
        let run = Sandbox::new(&ws).inside(inside).stdin(Input::File(stdin)).run(argv.clone());
        let cases = run.cases();
        for (case, kind) in [("in", 0), ("out", 0), ("err", 0)] {
            assert_eq!(cases.get(case).ret, kind, "{inside:?} {case}: {:?}", cases.get(case));
        }
        assert_eq!(cases.errno("truncate_stdin"), "EINVAL", "a pipe can't be truncated");
        assert_eq!(
            cases.errno("reopen_stdout"),
            "OK",
            "pipes are the command's own: {:?}",
            cases.get("reopen_stdout")
        );
        assert_eq!(cases.errno("reopen_stderr"), "OK");
        // With a file as stdout of stockade the command still writes into a pipe.
        let raw = Sandbox::new(&ws).inside(inside).stdout(out.try_clone().unwrap()).raw(argv);
        assert_eq!(raw.code(), 0, "{}", raw.err());
        let flags = rustix::fs::fcntl_getfl(&out).unwrap();
        assert!(
            !flags.intersects(rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::APPEND),
            "the command changed our description: {flags:?}"
        );
    }
    assert_eq!(fs::read(&host).unwrap(), b"host content");
}

/// Everything careless at once (the issue: "root's own run with bait").
#[test]
fn bait_is_not_found() {
    for inside in BOTH {
        let ws = Workspace::new("bait");
        let dir = Workspace::new("bait-dir");
        let file = dir.file("host-file", "host-secret-content");
        let out_path = home().join(unique("bait-out"));
        let out = fs::File::create(&out_path).unwrap();
        let err = fs::File::create(home().join(unique("bait-err"))).unwrap();
        // The file is cut between calls while stockade's offset stays: what was there before is a hole.
        let written =
            || fs::read(&out_path).unwrap().split(|b| *b == 0).next_back().unwrap_or_default().to_vec();
        let bait = common::fixture("bait");
        let launcher = [common::text(&bait), file.clone(), common::text(dir.path()), "--".into()];
        let wanted = [
            observe("open_descriptors", 0),
            deny("fd5:descriptor", "EBADF").with("5"),
            deny("fd6:fchdir_descriptor", "EBADF").with("6"),
            deny("fd6up:magic_parent", "ENOENT").with("6"),
            deny("fd8:descriptor", "EBADF").with("8"),
            deny("fd1500:descriptor", "EBADF").with("1500"),
            observe("environment", 0).with("env-secret"),
            observe("in:stdio_kind", 0).with("0"),
            observe("out:stdio_kind", 0).with("1"),
            observe("err:stdio_kind", 0).with("2"),
            observe("core_limit", 0),
        ];
        let run = |fixture: &str, arguments: Vec<String>| {
            let argv: Vec<String> = std::iter::once(ws.fixture(fixture)).chain(arguments).collect();
            Sandbox::new(&ws)
                .inside(inside)
                .launcher(&launcher)
                .stdout(out.try_clone().unwrap())
                .stderr(err.try_clone().unwrap())
                .raw(argv)
        };
        let raw = run("proc_dev", common::arguments(&wanted));
        let seen = common::Cases::of(&fs::read(&out_path).unwrap());
        assert_eq!(raw.code(), 0, "{seen:?}");
        assert_eq!(common::mismatches(&wanted, &seen, inside), Vec::<String>::new());
        let keys = [
            deny("keyctl_search_user", "EPERM"),
            deny("request_key", "EPERM"),
            deny("keyctl_session_id", "EPERM"),
        ];
        out.set_len(0).unwrap();
        run("syscalls", common::arguments(&keys));
        assert_eq!(common::mismatches(&keys, &common::Cases::of(&written()), inside), Vec::<String>::new());
        let identity = if root() { [observe("groups", 0)] } else { [allow("groups")] };
        out.set_len(0).unwrap();
        run("privilege", common::arguments(&identity));
        assert_eq!(
            common::mismatches(&identity, &common::Cases::of(&written()), inside),
            Vec::<String>::new()
        );
        let links = [
            deny("link_fd0", "EXDEV").with(ws.at("stolen")),
            deny("link_fd5_empty_path", "EBADF").with(ws.at("stolen5")),
        ];
        out.set_len(0).unwrap();
        run("fs", common::arguments(&links));
        let seen = common::Cases::of(&written());
        assert_ne!(seen.errno("link_fd0"), "OK", "{seen:?}");
        assert_ne!(seen.errno("link_fd5_empty_path"), "OK", "{seen:?}");
        assert!(!ws.path().join("stolen").exists());
        assert_eq!(fs::read(&file).unwrap(), b"host-secret-content");
        // The control: without a sandbox the same launcher hands everything over.
        let mut bare = std::process::Command::new(&bait);
        bare.args(&launcher[1..]).arg(common::fixture("proc_dev")).args(common::arguments(&wanted));
        let bare = common::Cases::of(&common::bounded(bare, common::PATIENCE).stdout);
        assert!(bare.get("open_descriptors").ret >= 5, "{bare:?}");
        assert_eq!(bare.errno("fd1500"), "OK");
        assert!(bare.get("environment").ret >= 5);
        assert_eq!(bare.get("in").ret, 3);
        let mut bare = std::process::Command::new(&bait);
        bare.args(&launcher[1..]).arg(common::fixture("syscalls")).arg("keyctl_search_user");
        let bare = common::Cases::of(&common::bounded(bare, common::PATIENCE).stdout);
        assert_eq!(bare.errno("keyctl_search_user"), "OK", "the control: the key can be found");
        if root() {
            let mut bare = std::process::Command::new(&bait);
            bare.args(&launcher[1..]).arg(common::fixture("privilege")).arg("groups");
            assert_eq!(
                common::Cases::of(&common::bounded(bare, common::PATIENCE).stdout).get("groups").ret,
                2
            );
        }
    }
}

#[test]
fn procfs_is_masked() {
    let ws = Workspace::new("procmask");
    let mut rows = vec![
        observe("keys:mask_read", 0).with("/proc/keys"),
        observe("key_users:mask_read", 0).with("/proc/key-users"),
        observe("kallsyms:mask_read", 0).with("/proc/kallsyms"),
        deny("timer_list:mask_read", "EACCES").with("/proc/timer_list").beside("meminfo"),
        deny("slabinfo:mask_read", "EACCES").with("/proc/slabinfo").beside("meminfo"),
        deny("kpagecount:mask_read", "EACCES").with("/proc/kpagecount").beside("meminfo"),
        deny("kpageflags:mask_read", "EACCES").with("/proc/kpageflags").beside("meminfo"),
        deny("kmsg:mask_read", "EACCES").with("/proc/kmsg").beside("meminfo"),
        deny("vmallocinfo:mask_read", "EACCES").with("/proc/vmallocinfo").beside("meminfo"),
        allow("meminfo:mask_read").with("/proc/meminfo"),
        allow("cpuinfo:mask_read").with("/proc/cpuinfo"),
        allow("self:mask_read").with("/proc/self/status"),
        deny("self_uid_map", "EPERM").no_control("written once, by the owner of the namespace"),
        deny("self_setgroups", "EACCES").no_control("written once, by the owner of the namespace"),
        deny("self_oom_lower", "EACCES").no_control("this host's root lacks CAP_SYS_RESOURCE as well"),
    ];
    for (case, path) in [("kcore:mask_read", "/proc/kcore"), ("sysrq:open_write", "/proc/sysrq-trigger")] {
        rows.push(match fs::metadata(path) {
            Ok(_) => deny(case, "EACCES").with(path).beside("meminfo"),
            Err(_) => deny(case, "ENOENT").with(path).no_control("this kernel has none"),
        });
    }
    for (label, path) in [
        ("panic", "/proc/sys/kernel/panic"),
        ("panic_on_oom", "/proc/sys/vm/panic_on_oom"),
        ("pid_max", "/proc/sys/kernel/pid_max"),
        ("drop_caches", "/proc/sys/vm/drop_caches"),
        ("randomize", "/proc/sys/kernel/randomize_va_space"),
        ("symlinks", "/proc/sys/fs/protected_symlinks"),
        ("io_uring", "/proc/sys/kernel/io_uring_disabled"),
        ("perf", "/proc/sys/kernel/perf_event_paranoid"),
        ("core_pattern", "/proc/sys/kernel/core_pattern"),
        ("modprobe", "/proc/sys/kernel/hotplug"),
        ("hostname", "/proc/sys/kernel/hostname"),
        ("ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    ] {
        if fs::metadata(path).is_err() {
            continue;
        }
        // derived: owned by root, who is nobody inside: the owner's check comes before the mount's.
        // pid_max belongs to the PID namespace since 6.14, and is then stopped by the mount.
        let errno = if label == "pid_max" { "EACCES|EROFS" } else { "EACCES" };
        rows.push(deny(&format!("{label}:open_write"), errno).with(path).beside("meminfo"));
    }
    check("proc_dev", &ws, &rows, |s| s);
}

/// The command sees itself and nothing of the host's processes.
#[test]
fn pids_are_private() {
    for inside in BOTH {
        let ws = Workspace::new("pids");
        let run = Sandbox::new(&ws).inside(inside).run([
            ws.fixture("proc_dev"),
            "proc_pids".into(),
            "session".into(),
        ]);
        let cases = run.cases();
        let pids = cases.get("proc_pids");
        assert!(pids.ret <= 3, "{inside:?}: {pids:?}");
        assert_eq!(
            cases.get("session").ret,
            0,
            "session and group are of the own namespace: {:?}",
            cases.get("session")
        );
    }
}

#[test]
fn devices_are_the_minimal_set() {
    let ws = Workspace::new("devices");
    let mut rows = vec![
        observe("dev_listing", 0),
        allow("dev_null_rw"),
        allow("dev_urandom"),
        observe("ptmx", 0),
        observe("pts_listing", 0),
        deny("dev_tty", "ENXIO").no_control("there is no terminal unless --tty"),
    ];
    for device in [
        "mem",
        "kmem",
        "port",
        "kvm",
        "fuse",
        "net/tun",
        "loop0",
        "loop-control",
        "vda",
        "sda",
        "vsock",
        "tty0",
        "tty1",
        "console",
        "ttyS0",
        "vcs",
        "cpu/0/msr",
        "autofs",
        "btrfs-control",
        "zram0",
        "kmsg",
        "dri/card0",
        "input/event0",
        "uinput",
        "mapper/control",
        "userfaultfd",
        "hwrng",
        "vhost-net",
        "vhost-vsock",
        "snapshot",
        "rtc0",
    ] {
        let label: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        rows.push(
            deny(&format!("{label}:open_read"), "ENOENT")
                .with(format!("/dev/{device}"))
                .beside("dev_null_rw"),
        );
    }
    check("proc_dev", &ws, &rows, |s| s);
}

#[test]
fn sysfs_is_absent() {
    let ws = Workspace::new("sysfs");
    let rows: Vec<_> = [
        ("power", "/sys/power/state"),
        ("online", "/sys/devices/system/cpu/cpu1/online"),
        ("thp", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("modules", "/sys/module"),
        ("debug", "/sys/kernel/debug"),
        ("tracing", "/sys/kernel/tracing"),
    ]
    .into_iter()
    .map(|(label, path)| deny(&format!("{label}:open_write"), "ENOENT").with(path).beside("dev_null_rw"))
    .chain([allow("dev_null_rw")])
    .collect();
    check("proc_dev", &ws, &rows, |s| s);
}

#[test]
fn terminals_cannot_be_typed_into() {
    let ws = Workspace::new("tty");
    let rows = vec![
        deny("tiocsti", "EPERM").outside("ENOTTY"),
        deny("tiocsti_high_bits", "EPERM").outside("ENOTTY"),
        deny("tiocsti_sign_bits", "EPERM").outside("ENOTTY"),
        deny("tiocsti_own_pty", "EPERM")
            .no_control("an uncontained one works only where legacy_tiocsti is on"),
        deny("tioclinux", "EPERM").outside("ENOTTY"),
        deny("tioclinux_high_bits", "EPERM").outside("ENOTTY"),
        deny("tiocsetd", "EPERM").outside("ENOTTY"),
        allow("ptmx"),
    ];
    check("proc_dev", &ws, &rows, |s| s);
    // The same with a terminal as stdio.
    for inside in BOTH {
        let argv: Vec<String> = std::iter::once(ws.fixture("proc_dev"))
            .chain(
                ["tiocsti", "tiocsti_high_bits", "tioclinux", "in:stdio_kind=0", "dev_tty"]
                    .map(str::to_owned),
            )
            .collect();
        let raw = Sandbox::new(&ws).inside(inside).option("--tty").raw(argv);
        let cases = common::Cases::of(&raw.stdout);
        for case in ["tiocsti", "tiocsti_high_bits", "tioclinux"] {
            assert_eq!(cases.errno(case), "EPERM", "{inside:?} {case} {raw:?}");
        }
        assert_eq!(cases.get("in").ret, 1, "stdin is a terminal: {raw:?}");
        assert_eq!(cases.errno("dev_tty"), "OK", "and a controlling one");
    }
}

#[test]
fn the_environment_is_built_from_nothing() {
    for inside in BOTH {
        let ws = Workspace::new("env");
        let rows = vec![
            observe("environment", 0).with("env-secret"),
            observe("given:getenv", 0).with("GIVEN"),
            observe("passed:getenv", 0).with("PASSED"),
            observe("not_given:getenv", 1).with("AWS_SECRET_ACCESS_KEY"),
            observe("path:getenv", 0).with("PATH"),
            observe("home:getenv", 0).with("HOME"),
        ];
        let argv: Vec<String> =
            std::iter::once(ws.fixture("proc_dev")).chain(common::arguments(&rows)).collect();
        let mut sandbox = Sandbox::new(&ws)
            .inside(inside)
            .options(["--env", "GIVEN=yes", "--env", "PASSED"])
            .env("PASSED", "on");
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "LD_PRELOAD",
            "LD_AUDIT",
            "BASH_ENV",
            "ENV",
            "NODE_OPTIONS",
            "PYTHONPATH",
            "SSH_AUTH_SOCK",
            "DBUS_SESSION_BUS_ADDRESS",
            "GIT_SSH_COMMAND",
            "PERL5OPT",
        ] {
            sandbox = sandbox.env(name, "env-secret");
        }
        let run = sandbox.run(argv);
        let cases = run.cases();
        assert_eq!(common::mismatches(&rows, &cases, inside), Vec::<String>::new());
        assert_eq!(cases.get("given").detail, "yes");
        assert_eq!(cases.get("passed").detail, "on");
    }
}

/// Fixed names, no core dumps, and the command line of nothing that is ours tells host paths inside.
#[test]
fn fixed_names_and_no_cores() {
    let ws = Workspace::new("names");
    let rows = vec![
        observe("hostname", 0).with("stockade"),
        observe("core_limit", 0),
        deny("core_limit_raise", "EPERM").no_control("needs CAP_SYS_RESOURCE"),
        observe("core_dump", 0).with(ws.at("")),
    ];
    check("proc_dev", &ws, &rows, |s| s);
    assert!(
        fs::read_dir(ws.path())
            .unwrap()
            .flatten()
            .all(|e| !e.file_name().to_string_lossy().starts_with("core"))
    );
}

/// Two live executors: the second must not hold what the first one's life depends on.
#[test]
fn a_second_executor_holds_nothing_of_the_first() {
    let (a, b) = (Workspace::new("first"), Workspace::new("second"));
    let (ma, mb) = (unique("lifeA"), unique("lifeB"));
    let first = Sandbox::new(&a).spawn([a.fixture("procs"), "shape".into(), "stay".into(), ma.clone()]);
    first.expect_output("ready");
    let second = Sandbox::new(&b).inside(Inside::Root).spawn([
        b.fixture("procs"),
        "shape".into(),
        "stay".into(),
        mb.clone(),
    ]);
    second.expect_output("ready");
    first.signal(nix::sys::signal::Signal::SIGKILL);
    let ended = first.finish(common::PATIENCE);
    assert!(!ended.pipe_held, "somebody else holds the first one's pipes");
    assert_eq!(common::await_gone(&ma, std::time::Duration::from_secs(5)).map(|_| ()), Ok(()));
    assert!(!carrying(&mb).is_empty(), "the second one died with the first");
    drop(second);
    assert_eq!(common::await_gone(&mb, std::time::Duration::from_secs(5)).map(|_| ()), Ok(()));
}

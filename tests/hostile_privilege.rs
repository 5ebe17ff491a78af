//! Identity, namespaces and capabilities (20-sandbox §§1 and 4; threats D and E).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{BOTH, Inside, Sandbox, Workspace, allow, check, deny, namespace_words, observe, root};
use std::fs;

#[test]
fn no_namespace_can_be_made() {
    let ws = Workspace::new("namespaces");
    let mut rows = vec![
        allow("clone_plain"),
        allow("clone_plain_high_bits"),
        allow("clone_vfork"),
        allow("unshare_files"),
        deny("clone3_plain", "ENOSYS").outside("OK"),
        deny("clone3_newuser", "ENOSYS").outside("OK"),
        deny("clone3_newtime", "ENOSYS").in_userns("OK"),
        deny("clone3_into_cgroup", "ENOSYS").outside("EBADF"),
        deny("clone3_null", "ENOSYS").outside("EINVAL"),
    ];
    for case in [
        "clone_newuser",
        "clone_newuser_newns",
        "clone_newuser_high_bits",
        "clone_newuser_all_high_bits",
        "unshare_newuser",
        "unshare_newuser_newns",
    ] {
        rows.push(deny(case, "EPERM").outside("OK").beside("clone_plain_high_bits").outside("OK"));
    }
    for case in [
        "clone_newns",
        "clone_newpid",
        "clone_newnet",
        "clone_newipc",
        "clone_newuts",
        "clone_newcgroup",
        "clone_newnet_high_bits",
        "unshare_newns",
        "unshare_newpid",
        "unshare_newnet",
        "unshare_newipc",
        "unshare_newuts",
        "unshare_newcgroup",
        "unshare_newtime",
    ] {
        rows.push(deny(case, "EPERM").in_userns("OK"));
    }
    check("privilege", &ws, &rows, |s| s);
}

#[test]
fn no_namespace_can_be_entered() {
    let ws = Workspace::new("setns");
    let rows = vec![
        deny("setns_own_user", "EPERM").outside("EINVAL"),
        deny("setns_own_mnt", "EPERM").in_userns("OK"),
        deny("setns_own_net", "EPERM").no_control("see setns_own_mnt"),
        deny("setns_own_uts", "EPERM").in_userns("OK"),
        deny("setns_bad_fd", "EPERM").outside("EBADF"),
        deny("setns_pidfd_init", "EPERM").no_control("see setns_own_mnt"),
        // hidepid=ptraceable: a fresh look-up of /proc/1 is ENOENT, one whose entry the kernel has cached EPERM.
        deny("open_init_ns_mnt", "EPERM|ENOENT").in_userns("OK"),
        deny("open_init_ns_user", "EPERM|ENOENT").in_userns("OK"),
        deny("open_init_ns_pid", "EPERM|ENOENT").in_userns("OK"),
        deny("open_init_ns_net", "EPERM|ENOENT").in_userns("OK"),
    ];
    check("privilege", &ws, &rows, |s| s);
}

#[test]
fn every_namespace_is_its_own() {
    let ws = Workspace::new("own-ns");
    let host = common::outside("privilege", &["namespaces".into()]);
    let host = namespace_words(&host.get("namespaces").detail);
    assert_eq!(host.len(), 8);
    for inside in BOTH {
        let run = Sandbox::new(&ws).inside(inside).run([ws.fixture("privilege"), "namespaces".into()]);
        let own = namespace_words(&run.cases().get("namespaces").detail);
        for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
            assert_ne!(own[kind], host[kind], "{inside:?} shares the host's {kind} namespace");
        }
    }
}

#[test]
fn identity_is_fixed() {
    let ws = Workspace::new("ids");
    let rows = vec![
        deny("setuid_0", "EINVAL").as_root("OK").in_userns("OK"),
        deny("setuid_other", "EINVAL").no_control("inside, no second id is mapped"),
        deny("setresuid_other", "EINVAL").no_control("inside, no second id is mapped"),
        deny("setresuid_unmapped", "EINVAL").no_control("inside, no second id is mapped"),
        deny("setresgid_other", "EINVAL").no_control("inside, no second id is mapped"),
        deny("setgid_0", "EINVAL").as_root("OK").in_userns("OK"),
        observe("setfsuid_0", 0),
        deny("setgroups_none", "EPERM").no_control("the bare user namespace denies setgroups too"),
        deny("setgroups_zero", "EPERM").no_control("the bare user namespace denies setgroups too"),
        // An ordinary user may not call setgroups in a user namespace: the caller's own groups stay.
        if root() { observe("groups", 0) } else { allow("groups") },
    ];
    check("privilege", &ws, &rows, |s| s);
    for inside in BOTH {
        let run =
            Sandbox::new(&ws).inside(inside).run([ws.fixture("privilege"), "ids".into(), "uid_map".into()]);
        let cases = run.cases();
        let uid = inside.uid();
        assert_eq!(cases.get("ids").detail, format!("uid={uid},{uid},{uid} gid={uid},{uid},{uid}"));
    }
}

/// uid 0 inside is never uid 0 outside: seen from the host, by the marker on its command line.
#[test]
fn inside_root_is_nobody_on_the_host() {
    for inside in BOTH {
        let ws = Workspace::new("host-uid");
        let marker = common::unique("uidmark");
        let live = Sandbox::new(&ws).inside(inside).spawn([
            ws.fixture("procs"),
            "shape".into(),
            "stay".into(),
            marker.clone(),
        ]);
        live.expect_output("ready");
        let mut uids = Vec::new();
        for (pid, line) in common::carrying(&marker) {
            if line.starts_with(ws.path().to_str().unwrap()) {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                uids.extend(
                    status
                        .lines()
                        .filter(|l| l.starts_with("Uid:") || l.starts_with("Gid:"))
                        .map(str::to_owned),
                );
            }
        }
        assert!(!uids.is_empty(), "the command is not visible from the host");
        if root() {
            for line in &uids {
                assert!(!line.split_whitespace().skip(1).any(|id| id == "0"), "{inside:?}: {line}");
            }
        }
        drop(live);
    }
}

#[test]
fn there_is_no_capability_and_no_way_to_one() {
    let ws = Workspace::new("caps");
    let rows = vec![
        observe("caps_in_status", 0),
        observe("capget", 0),
        observe("bounding", 0),
        deny("capset_sys_admin", "EPERM").in_userns("OK"),
        deny("ambient_raise", "EPERM").no_control("needs an inheritable capability"), // derived
        observe("no_new_privs", 1),
        deny("clear_no_new_privs", "EINVAL").outside("EINVAL"),
        observe("seccomp_mode", 2),
        observe("thread_seccomp_mode", 2),
        deny("set_securebits", "EPERM").in_userns("OK"),
        deny("set_mm", "EPERM").no_control("needs CAP_SYS_RESOURCE"),
        deny("seccomp_listener", "EPERM").outside("EFAULT"),
        // NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each set and locked; KEEP_CAPS locked off.
        observe("securebits", 0b1110_1111),
    ];
    check("privilege", &ws, &rows, |s| s);
}

/// A set-uid program on the host: nosuid and no_new_privs leave it what it is.
#[test]
fn set_id_programs_give_nothing() {
    let ws = Workspace::new("suid-exec");
    let program = ws.path().join("raised");
    std::process::Command::new("cp").arg(common::fixture("privilege")).arg(&program).status().unwrap();
    if root() {
        // Set-uid of somebody else: uid 65534.
        std::os::unix::fs::chown(&program, Some(65534), Some(65534)).unwrap();
    }
    common::set_mode(&program, 0o6755);
    let rows = vec![observe("exec_setid", 0).with(common::text(&program))];
    check("privilege", &ws, &rows, |s| s);
    if root() {
        let bare = common::outside("privilege", &[format!("exec_setid={}", program.display())]);
        assert_eq!(bare.get("exec_setid").ret, 1, "the control: uncontained it raises");
    }
}

#[test]
fn status_says_the_same_to_a_shell() {
    let ws = Workspace::new("status");
    let run = Sandbox::new(&ws)
        .inside(Inside::Root)
        .run(common::sh("grep -E '^(NoNewPrivs|Seccomp|CapEff|CapBnd|Groups):' /proc/self/status"));
    run.expect_exit(0);
    let text = run.out();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(text.contains(line), "{text}");
    }
}

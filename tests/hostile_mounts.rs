//! Mount tricks (20-sandbox §2; threats C): old and new API, as uid 1000 and as inside-root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Sandbox, Workspace, allow, check, deny, home, observe};

#[test]
fn no_mount_call_works() {
    let ws = Workspace::new("mounts");
    let dir = ws.dir("d");
    let calls = [
        "mount_tmpfs",
        "mount_proc",
        "mount_sysfs",
        "mount_cgroup2",
        "mount_cgroup1",
        "mount_overlay",
        "mount_mqueue",
        "mount_devpts",
        "mount_bpf",
        "mount_debugfs",
        "mount_tracefs",
        "mount_securityfs",
        "mount_configfs",
        "mount_pstore",
        "mount_binfmt_misc",
        "mount_fuse",
        "mount_ext4",
        "bind_rec",
        "remount_rw",
        "remount_suid_dev",
        "move_usr",
        "make_shared",
        "umount",
        "umount_detach",
    ];
    // Which of them a bare user namespace permits: those prove that the denial is ours.
    let works_in_userns = ["mount_tmpfs", "mount_devpts", "bind_rec", "make_shared"];
    let mut rows: Vec<_> = calls
        .iter()
        .map(|case| {
            let row = deny(case, "EPERM").with(dir.clone());
            if works_in_userns.contains(case) {
                row.in_userns("OK")
            } else {
                row.no_control(
                    "the kernel refuses this one in a bare user namespace too; see the rows beside it",
                )
            }
        })
        .collect();
    for case in [
        "mount_over_etc",
        "bind_over",
        "remount_rw_root",
        "remount_rw_usr",
        "make_slave",
        "umount_usr",
        "umount_proc",
        "umount_root",
        "pivot_root",
        "swapon",
        "swapoff",
        "quotactl",
        "quotactl_fd",
    ] {
        let row = deny(case, "EPERM");
        rows.push(match case {
            "mount_over_etc" | "bind_over" | "make_slave" => row.in_userns("OK"),
            _ => row.no_control("differs by host; see the rows beside it"),
        });
    }
    rows.push(deny("chroot", "EPERM").with("/").in_userns("OK"));
    check("mounts", &ws, &rows, |s| s);
}

#[test]
fn no_call_of_the_new_mount_api_works() {
    let ws = Workspace::new("newmounts");
    let rows = vec![
        deny("open_tree_plain", "EPERM").outside("OK"),
        deny("open_tree_clone", "EPERM").in_userns("OK"),
        deny("open_tree_clone_rec", "EPERM").in_userns("OK"),
        deny("open_tree_attr", "EPERM").no_control("the bare user namespace may not clear a locked flag"),
        deny("move_mount", "EPERM").in_userns("EINVAL"),
        deny("fsopen_tmpfs", "EPERM").in_userns("OK"),
        deny("fsopen_proc", "EPERM").in_userns("OK"),
        deny("fsconfig", "EPERM").outside("EINVAL"),
        deny("fsmount", "EPERM").in_userns("EBADF"),
        deny("fspick", "EPERM").no_control("the bare user namespace does not own the root's superblock"),
        deny("mount_setattr_rw", "EPERM").with("/usr").no_control("see mount_setattr_shared"),
        deny("mount_setattr_suid", "EPERM").with("/").no_control("see mount_setattr_shared"),
        deny("mount_setattr_idmap", "EPERM").no_control("see mount_setattr_shared"),
        deny("mount_setattr_shared", "EPERM").in_userns("OK"),
        deny("listmount", "ENOSYS").outside("OK"), // derived
        deny("statmount", "ENOSYS").no_control("needs a mount id; listmount is its control"),
    ];
    // listmount answers a count.
    check("mounts", &ws, &rows, |s| s);
}

/// The mount table as the command sees it.
#[test]
fn the_mount_table_says_what_was_planned() {
    let ws = Workspace::new("table");
    ws.file(".git/config", "[core]\n");
    ws.dir(".git/hooks");
    let rows = vec![
        observe("table_without_nosuid_nodev", 0),
        observe("table_propagation", 0),
        observe("usr:table_readonly", 0).with("/usr"),
        observe("root:table_readonly", 0).with("/"),
        observe("ws:table_readonly", 1).with(common::text(ws.path())),
        observe("tmp:table_readonly", 1).with("/tmp"),
        observe("git:table_readonly", 1).with(ws.at(".git")),
        observe("hooks:table_readonly", 0).with(ws.at(".git/hooks")),
        observe("config:table_readonly", 0).with(ws.at(".git/config")),
        observe("no_state:table_mentions", 0).with(common::text(&common::state_dir())),
    ];
    check("mounts", &ws, &rows, |s| s);
}

/// A workspace below a shared mount: what is mounted on the host later does not appear, nor the other way.
#[test]
fn nothing_propagates() {
    let ws = Workspace::new("propagate");
    let late = ws.dir("late");
    let script = format!(
        "mount --make-rshared / && \"$@\" & pid=$!; \
         while [ ! -e '{0}/ready' ] && kill -0 $pid; do sleep 0.01; done; mount -t tmpfs none '{late}' && touch '{late}/host-later' && touch '{0}/go'; wait $pid",
        common::text(ws.path())
    );
    let inside =
        "touch ready; for i in $(seq 1 1000); do [ -e go ] && break; sleep 0.01; done; [ -e go ] && ls late";
    let run = Sandbox::new(&ws).launcher(common::with_mounts(&script)).raw(common::sh(inside));
    assert_eq!(run.code(), 0, "{} {}", run.out(), run.err());
    assert_eq!(run.out(), "", "a later host mount is visible inside");
}

/// Sources are links, targets are links: one documented rule each, and never an escape.
#[test]
fn links_in_sources_and_targets() {
    let ws = Workspace::new("links");
    let source = Workspace::new("links-source");
    source.file("real/file", "content");
    std::os::unix::fs::symlink("real", source.path().join("alias")).unwrap();
    let run = Sandbox::new(&ws)
        .options(["--ro", &format!("{}:/data", source.at("alias"))])
        .run(["cat", "/data/file"]);
    run.expect_exit(0);
    assert_eq!(run.out(), "content");
    // A target below a link of the workspace must not be made where the link points.
    let outside = Workspace::new("links-outside");
    std::os::unix::fs::symlink(outside.path(), ws.path().join("out")).unwrap();
    let target = ws.at("out/planted");
    let raw = Sandbox::new(&ws).options(["--ro", &format!("{}:{target}", source.at("real"))]).raw(["true"]);
    assert_eq!(raw.code(), 125, "a mount target behind a link was accepted: {}", raw.err());
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "something was made outside");
    // A source that the command swapped for a link is resolved anew, with the caller's rights, at the next call.
    let run = Sandbox::new(&ws).run(["ls", "/data"]);
    assert_ne!(run.exit_code(), Some(0), "a mount of an earlier call is still there");
    assert!(home().exists());
}

/// Mounts nested in the workspace hold, whatever their order on the command line.
#[test]
fn nested_mounts_are_ordered_by_depth() {
    let ws = Workspace::new("nested");
    let (a, b) = (Workspace::new("nested-a"), Workspace::new("nested-b"));
    a.file("who", "a");
    a.dir("deep");
    b.file("who", "b");
    ws.dir("m");
    let (outer, inner) = (ws.at("m"), ws.at("m/deep"));
    let run = Sandbox::new(&ws)
        .options(["--ro", &format!("{}:{inner}", common::text(b.path()))])
        .options(["--ro", &format!("{}:{outer}", common::text(a.path()))])
        .run(common::sh("cat m/who m/deep/who"));
    run.expect_exit(0);
    assert_eq!(run.out(), "ab");
    let rows = [allow("getpid")];
    assert_eq!(common::arguments(&rows), ["getpid"]);
}

//! The file-system view (20-sandbox §2; threats B and K179): absent, read-only, hidden, and every call that
//! carries a mode. Errnos marked `derived` follow from the design and this kernel's order of checks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{
    BOTH, Row, Sandbox, Workspace, allow, check, dangerous_leftovers, deny, home, observe, root, state_dir,
    unique,
};
use std::fs;

fn same(sandbox: Sandbox) -> Sandbox {
    sandbox
}

/// Host files that a careless sandbox would show: written by the test, so that their absence means something.
#[test]
fn what_is_not_granted_does_not_exist() {
    let ws = Workspace::new("absent");
    let sibling = home().join(unique("bait-sibling"));
    fs::write(&sibling, "host-secret").unwrap();
    let host_tmp = format!("/tmp/{}", unique("bait-tmp"));
    fs::write(&host_tmp, "host-secret").unwrap();
    let host_shm = format!("/dev/shm/{}", unique("bait-shm"));
    fs::write(&host_shm, "host-secret").unwrap();
    let state = state_dir().join("bait");
    fs::write(&state, "host-secret").unwrap();
    let read = |label: &str, path: &str| deny(&format!("{label}:read"), "ENOENT").with(path).outside("OK");
    let mut rows = vec![
        allow("own:read").with(ws.file("mine", "hello")).ret(5),
        read("sibling", sibling.to_str().unwrap()),
        read("host_tmp", &host_tmp),
        read("host_shm", &host_shm),
        read("state", state.to_str().unwrap()),
        deny("sys:stat", "ENOENT").with("/sys/kernel").outside("OK"),
        deny("var_lib:stat", "ENOENT").with("/var/lib").outside("OK"),
        deny("opt:stat", "ENOENT").with("/opt").outside("OK"),
        deny("srv:stat", "ENOENT").with("/srv").outside("OK"),
        deny("mnt:stat", "ENOENT").with("/mnt").outside("OK"),
        deny("boot:stat", "ENOENT").with("/boot").outside("OK"),
        deny("machine_disk:stat", "ENOENT").with("/dev/vda").outside("OK"),
        deny("shadow:lstat", "ENOENT").with("/etc/shadow").outside("OK"),
        deny("sudoers:lstat", "ENOENT").with("/etc/ssh").no_control("not on every host"),
        // Inside-root's own private home is there.
        deny("root_home:stat", "ENOENT").with("/root").as_root("OK").outside("OK"),
        deny("docker:lstat", "ENOENT").with("/var/run/docker.sock").no_control("not on every host"),
        observe("tmp_is_empty:list", 0).with("/tmp"),
        observe("run_is_empty:list", 0).with("/run"),
        observe("shm_is_empty:list", 0).with("/dev/shm"),
    ];
    if !root() {
        rows.retain(|r| !format!("{r:?}").contains("machine_disk"));
    }
    // Without a toolchain, which may well lie below root's home.
    check("fs", &ws, &rows, |s| {
        s.env("PATH", "/usr/bin:/bin")
            .without_env("CARGO_HOME")
            .without_env("RUSTUP_HOME")
            .without_env("PYENV_ROOT")
    });
    for path in [host_tmp.into(), host_shm.into(), sibling, state] {
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn the_root_is_read_only_and_the_scratch_is_not() {
    let ws = Workspace::new("readonly");
    let mine = ws.file("file", "x");
    let scratch = Workspace::new("readonly-control");
    let at = |n: &str| scratch.at(n);
    let victim = scratch.file("victim", "x");
    let rows: Vec<Row> = vec![
        deny("usr_create:create", "EROFS")
            .with("/usr/stockade-x")
            .outside_with(format!("usr_create:create={}", at("a")), "OK"),
        deny("bin_create:create", "EROFS").with("/usr/bin/stockade-x").beside("ws_create"),
        deny("etc_create:create", "EROFS").with("/etc/stockade-x").beside("ws_create"),
        deny("root_create:create", "EROFS").with("/stockade-x").beside("ws_create"),
        deny("dev_create:create", "EROFS").with("/dev/stockade-x").beside("ws_create"), // derived
        deny("usr_mkdir:mkdir", "EROFS")
            .with("/usr/stockade-x")
            .outside_with(format!("usr_mkdir:mkdir={}", at("b")), "OK"),
        deny("root_mkdir:mkdir", "EROFS").with("/stockade-x").beside("ws_mkdir"),
        deny("usr_tmpfile:o_tmpfile", "EROFS").with("/usr").beside("tmp_tmpfile"),
        deny("usr_write:open_write", "EACCES")
            .with("/usr/bin/env")
            .outside_with(format!("usr_write:open_write={victim}"), "OK"), // derived: owner before mount
        // Kernels differ in which they ask first, the owner's rights or the mount.
        deny("usr_trunc:truncate", "EACCES|EROFS")
            .with("/usr/bin/env")
            .outside_with(format!("usr_trunc:truncate={victim}"), "OK"), // derived
        deny("usr_chmod:chmod", "EROFS")
            .with("/usr/bin/env")
            .outside_with(format!("usr_chmod:chmod={victim}"), "OK"),
        deny("usr_utimes:utimes", "EROFS")
            .with("/usr/bin/env")
            .outside_with(format!("usr_utimes:utimes={victim}"), "OK"),
        deny("usr_xattr:setxattr_user", "EROFS")
            .with("/usr/bin/env")
            .outside_with(format!("usr_xattr:setxattr_user={victim}"), "OK"),
        deny("usr_unlink:unlink", "EROFS").with("/usr/bin/env").beside("ws_unlink"),
        deny("usr_rename:rename", "EROFS").with("/usr/bin/env,/usr/bin/env2").beside("ws_rename"),
        deny("usr_link:link", "EXDEV").with(format!("/usr/bin/env,{}", ws.at("stolen"))).beside("ws_link"),
        deny("etc_link:link", "EXDEV").with(format!("/etc/passwd,{}", ws.at("stolen2"))).beside("ws_link"),
        deny("passwd_write:open_write", "EACCES").with("/etc/passwd").beside("ws_write"), // derived
        allow("ws_create:create").with(ws.at("created")),
        allow("ws_write:open_write").with(mine.clone()),
        allow("ws_mkdir:mkdir").with(ws.at("made")),
        allow("ws_link:link").with(format!("{mine},{}", ws.at("linked"))),
        allow("ws_rename:rename").with(format!("{},{}", ws.at("linked"), ws.at("made/renamed"))),
        allow("ws_exchange:rename_exchange").with(format!("{},{}", ws.at("created"), ws.at("made/renamed"))),
        allow("ws_unlink:unlink").with(ws.at("made/renamed")),
        allow("ws_rename_dir:rename").with(format!("{},{}", ws.at("made"), ws.at("moved"))),
        allow("ws_rmdir:rmdir").with(ws.at("moved")),
        allow("ws_unlink2:unlink").with(ws.at("created")),
        allow("tmp_tmpfile:o_tmpfile").with("/tmp"),
        allow("ws_tmpfile:o_tmpfile").with(ws.at("")),
        allow("home_create:write_read_back").with("/tmp/x"),
        allow("shm_create:write_read_back").with("/dev/shm/x"),
        allow("run_create:write_read_back").with("/run/x"),
        allow("ws_inotify:inotify").with(ws.at("")),
        allow("ws_fifo:mkfifo").with(ws.at("fifo")),
        allow("ws_fifo_gone:unlink").with(ws.at("fifo")),
        deny("ws_flock:flock", "EAGAIN")
            .with(ws.at("lock"))
            .outside_with(format!("ws_flock:flock={}", at("lock")), "EAGAIN"),
        allow("ws_symlink:symlink").with(format!("/etc/passwd,{}", ws.at("s"))),
        allow("ws_symlink_gone:unlink").with(ws.at("s")),
    ];
    check("fs", &ws, &rows, same);
    assert_eq!(dangerous_leftovers(ws.path()), Vec::<String>::new());
}

/// Mode bits that would be live on the host, where no nosuid applies (platform-facts; threats 179).
#[test]
fn no_set_id_bit_reaches_the_host() {
    let ws = Workspace::new("setid");
    let mine = ws.file("mine", "#!/bin/sh\n");
    let control = Workspace::new("setid-control");
    let theirs = control.file("theirs", "");
    let file =
        |case: &str| deny(case, "EPERM").with(mine.clone()).outside_with(format!("{case}={theirs}"), "OK");
    let fresh = |case: &str, i: usize| {
        deny(case, "EPERM")
            .with(ws.at(&format!("new{i}")))
            .outside_with(format!("{case}={}", control.at(&format!("n{i}"))), "OK")
    };
    let mut rows = vec![
        file("suid_chmod"),
        file("sgid_chmod"),
        file("suid_chmod_high_bits"),
        file("suid_chmod_high_word"),
        file("suid_fchmod"),
        file("sgid_fchmod"),
        file("suid_fchmodat"),
        file("sgid_fchmodat"),
        file("suid_fchmodat2"),
        deny("suid_open_tmpfile", "EPERM")
            .with(ws.at(""))
            .outside_with(format!("suid_open_tmpfile={}", control.at("")), "OK"),
        deny("suid_openat2", "ENOSYS")
            .with(ws.at("o2"))
            .outside_with(format!("suid_openat2={}", control.at("o2")), "OK"),
        allow("plain_fchmod").with(mine.clone()),
        allow("plain_fchmodat").with(mine.clone()),
        allow("plain_chmod:chmod").with(mine.clone()),
        allow("plain_creat").with(ws.at("creat")),
        allow("gone:unlink").with(ws.at("creat")),
        allow("sticky_mkdir").with(ws.at("sticky")),
        allow("gone2:rmdir").with(ws.at("sticky")),
        allow("plain_mknod").with(ws.at("plainnod")),
        allow("gone3:unlink").with(ws.at("plainnod")),
    ];
    let creating = [
        "suid_open",
        "suid_openat",
        "sgid_openat",
        "suid_creat",
        "sgid_mkdir",
        "sgid_mkdirat",
        "suid_mknod",
        "suid_mknodat",
        "suid_mkfifo",
    ];
    rows.extend(creating.iter().enumerate().map(|(i, case)| fresh(case, i)));
    check("fs", &ws, &rows, same);
    assert_eq!(dangerous_leftovers(ws.path()), Vec::<String>::new());
}

/// What else may not be left in a workspace: devices, capabilities, immutable or foreign-owned files.
#[test]
fn nothing_dangerous_is_left_behind() {
    let ws = Workspace::new("leftovers");
    let mine = ws.file("mine", "");
    let control = Workspace::new("leftovers-control");
    let theirs = control.file("theirs", "");
    let as_root = |row: Row, attempt: String, errno| {
        if root() { row.outside_with(attempt, errno) } else { row.no_control("needs the host's root") }
    };
    let rows = vec![
        as_root(
            deny("mknod_char", "EPERM").with(ws.at("c")),
            format!("mknod_char={}", control.at("c")),
            "OK",
        ),
        as_root(
            deny("mknod_block", "EPERM").with(ws.at("b")),
            format!("mknod_block={}", control.at("b")),
            "OK",
        ),
        deny("mknod_whiteout", "EPERM")
            .with(ws.at("w"))
            .outside_with(format!("mknod_whiteout={}", control.at("w")), "OK"),
        as_root(
            deny("setxattr_capability", "EPERM").with(mine.clone()),
            format!("setxattr_capability={theirs}"),
            "OK",
        ),
        as_root(
            deny("setxattr_trusted", "EPERM").with(mine.clone()),
            format!("setxattr_trusted={theirs}"),
            "OK",
        ),
        as_root(
            deny("set_immutable", "EPERM").with(mine.clone()),
            format!("set_immutable={}", control.file("pinned", "")),
            "OK",
        ),
        // uid 0 does not exist for the agent, other ids for nobody. derived
        deny("chown_root", "EINVAL")
            .with(mine.clone())
            .as_root("OK")
            .no_control("the same call is made by the rows below"),
        deny("chown_other", "EINVAL").with(mine.clone()).no_control("inside, no second id is mapped"),
        deny("chown_unmapped", "EINVAL").with(mine.clone()).no_control("inside, no second id is mapped"),
        allow("setxattr_user").with(mine.clone()),
        allow("chmod").with(mine.clone()),
    ];
    check("fs", &ws, &rows, same);
    assert_eq!(dangerous_leftovers(ws.path()), Vec::<String>::new());
    if root() {
        let _ = std::process::Command::new("chattr").args(["-i", &control.at("pinned")]).status();
    }
}

/// Files made inside belong to the workspace's owner, whatever the inside user.
#[test]
fn new_files_belong_to_the_owner_of_the_workspace() {
    for inside in BOTH {
        let ws = Workspace::new("owner");
        let program = ws.fixture("fs");
        let run = Sandbox::new(&ws).inside(inside).run([
            program,
            format!("create={}", ws.at("new")),
            format!("mkdir={}", ws.at("newdir")),
        ]);
        assert_eq!(run.cases().errno("create"), "OK", "{inside:?}");
        assert_eq!(dangerous_leftovers(ws.path()), Vec::<String>::new(), "{inside:?}");
    }
}

/// File handles name inodes outside the root (shocker).
#[test]
fn name_handles_are_refused() {
    let ws = Workspace::new("handles");
    let rows = vec![
        deny("name_to_handle_at", "EPERM").with("/").outside("OK"),
        if root() {
            deny("open_by_handle_at", "EPERM").with(ws.at("")).outside("OK")
        } else {
            deny("open_by_handle_at", "EPERM").with(ws.at("")).no_control("needs the host's root")
        },
        deny("openat2", "ENOSYS").with("/").outside("OK"),
        allow("stat").with("/"),
    ];
    check("fs", &ws, &rows, same);
}

#[test]
fn the_working_directory_is_inside_and_up_ends_at_the_root() {
    let ws = Workspace::new("cwd");
    let rows = vec![
        allow("getcwd"),
        observe("walk_up", 0),
        deny("chroot_escape", "EPERM").with(".").in_userns("OK"),
    ];
    check("fs", &ws, &rows, same);
    let run = Sandbox::new(&ws).run([ws.fixture("fs"), "getcwd".into(), "walk_up".into()]);
    let cases = run.cases();
    assert_eq!(cases.get("getcwd").detail, ws.path().to_str().unwrap());
    assert_eq!(cases.get("walk_up").detail, "/");
    // `--at` moves it.
    let run = Sandbox::new(&ws).options(["--at", "/work"]).run(["pwd"]);
    run.expect_exit(0);
    assert_eq!(run.out(), "/work\n");
}

/// Hidden paths: empty objects of the same type, not openable for writing, not removable.
#[test]
fn hidden_paths_show_nothing() {
    let ws = Workspace::new("hidden");
    ws.file(".env", "TOKEN=host-secret");
    ws.file(".ssh/id_ed25519", "host-secret");
    ws.file("id_rsa", "host-secret");
    ws.file(".env.example", "TOKEN=");
    let outer = Workspace::new("hidden-control");
    let exposed = outer.file(".env", "TOKEN=host-secret");
    let rows = vec![
        observe("env:read", 0).with(ws.at(".env")),
        observe("key:read", 0).with(ws.at("id_rsa")),
        observe("ssh:list", 0).with(ws.at(".ssh")),
        deny("ssh_key:read", "ENOENT").with(ws.at(".ssh/id_ed25519")).beside("example"),
        allow("example:read").with(ws.at(".env.example")).ret(6),
        deny("env_write:open_write", "EACCES")
            .with(ws.at(".env"))
            .outside_with(format!("env_write:open_write={exposed}"), "OK"), // derived: the mask is not the agent's
        deny("env_trunc:open_trunc", "EROFS").with(ws.at(".env")).beside("example"), // O_TRUNC asks the mount first
        deny("env_unlink:unlink", "EBUSY").with(ws.at(".env")).beside("mine_gone"),
        deny("env_rename:rename", "EBUSY")
            .with(format!("{},{}", ws.at(".env"), ws.at("env2")))
            .beside("example"),
        deny("env_over:rename", "EBUSY")
            .with(format!("{},{}", ws.at(".env.example"), ws.at(".env")))
            .beside("example"),
        deny("env_link:link", "EXDEV").with(format!("{},{}", ws.at(".env"), ws.at("env3"))).beside("example"),
        deny("ssh_rmdir:rmdir", "EBUSY").with(ws.at(".ssh")).beside("mine_gone"),
        deny("ssh_create:create", "ENOENT").with(ws.at(".ssh/authorized_keys")).beside("mine"), // the mask is a directory that was removed
        allow("mine:create").with(ws.at("mine")),
        allow("mine_gone:unlink").with(ws.at("mine")),
    ];
    check("fs", &ws, &rows, same);
    assert_eq!(ws.read(".env").unwrap(), b"TOKEN=host-secret");
    assert_eq!(ws.read(".ssh/id_ed25519").unwrap(), b"host-secret");
}

/// `read-only` and `strict`: the workspace can be read and nothing more.
#[test]
fn the_workspace_is_read_only_where_the_profile_says_so() {
    for profile in ["read-only", "strict"] {
        if profile == "strict" && !common::limits_hold() {
            common::skip("strict requires limits; no delegated cgroup");
            continue;
        }
        if profile == "strict" && !common::needs_landlock(6) {
            continue;
        }
        let ws = Workspace::new("ro");
        let mine = ws.file("mine", "hello");
        ws.file("d/sub", "");
        let rows = vec![
            allow("r:read").with(mine.clone()).ret(5),
            deny("w:open_write", "EROFS").with(mine.clone()).outside("OK"),
            deny("c:create", "EROFS").with(ws.at("d/new")).beside("t"),
            deny("m:mkdir", "EROFS").with(ws.at("newdir")).beside("t"),
            deny("u:unlink", "EROFS").with(mine.clone()).beside("t"),
            deny("n:rename", "EROFS").with(format!("{mine},{}", ws.at("other"))).beside("t"),
            deny("h:chmod", "EROFS").with(mine.clone()).outside("OK"),
            deny("x:setxattr_user", "EROFS").with(mine.clone()).outside("OK"),
            deny("tr:truncate", "EROFS").with(ws.at("d/sub")).outside("OK"),
            deny("ti:utimes", "EROFS").with(mine.clone()).outside("OK"),
            allow("t:write_read_back").with("/tmp/x"),
        ];
        check("fs", &ws, &rows, |s| s.profile(profile));
        assert_eq!(ws.read("mine").unwrap(), b"hello", "{profile}");
    }
}

/// Read-only reaches submounts: `--ro` of a tree with a mount inside it.
#[test]
fn read_only_is_recursive() {
    let source = Workspace::new("submount");
    let inner = source.dir("inner");
    let ws = Workspace::new("submount-ws");
    let rows = [
        deny("top:create", "EROFS").with("/data/x").beside("t"),
        deny("sub:create", "EROFS").with("/data/inner/x").beside("t"),
        allow("sub_there:stat").with("/data/inner/from-submount"),
        allow("t:write_read_back").with("/tmp/x"),
    ];
    let script = format!("mount -t tmpfs none '{inner}' && touch '{inner}/from-submount' && exec \"$@\"");
    for inside in BOTH {
        let argv: Vec<String> = std::iter::once(ws.fixture("fs")).chain(common::arguments(&rows)).collect();
        let run = Sandbox::new(&ws)
            .inside(inside)
            .launcher(common::with_mounts(&script))
            .options(["--ro", &format!("{}:/data", common::text(source.path()))])
            .run(argv);
        assert_eq!(common::mismatches(&rows, &run.cases(), inside), Vec::<String>::new());
    }
}

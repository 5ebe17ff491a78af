//! The workspace as a weapon, and what is protected in it (20-sandbox §§2 and 8; threats B39, M).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{BOTH, Sandbox, Workspace, allow, check, deny, observe, root, snapshot};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

fn git(dir: &Path, args: &[&str]) {
    let done = Command::new("git")
        .current_dir(dir)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"])
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", common::home())
        .output()
        .unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn checkout(tag: &str) -> Workspace {
    let ws = Workspace::new(tag);
    git(ws.path(), &["init", "-q"]);
    ws.file("a.txt", "a\n");
    git(ws.path(), &["add", "a.txt"]);
    git(ws.path(), &["commit", "-qm", "first"]);
    ws
}

#[test]
fn protected_paths_cannot_be_changed_or_walked_around() {
    let ws = checkout("protected");
    ws.dir(".git/hooks");
    ws.file(".git/hooks/pre-commit", "#!/bin/sh\n");
    ws.file(".vscode/tasks.json", "{}");
    ws.file(".envrc", "export A=1\n");
    ws.file(".claude/settings.json", "{}");
    ws.file("evil", "[core]\n\thooksPath = evil\n");
    let protected = [".git/hooks", ".git/config", ".vscode", ".envrc", ".claude"].map(|p| ws.path().join(p));
    let before: Vec<_> = protected.iter().map(|p| snapshot(p, &[])).collect();
    let at = |p: &str| ws.at(p);
    let pair = |a: &str, b: &str| format!("{},{}", ws.at(a), ws.at(b));
    let control = Workspace::new("protected-control");
    let theirs = control.file("config", "");
    let rows = vec![
        deny("config_write:open_write", "EROFS")
            .with(at(".git/config"))
            .outside_with(format!("config_write:open_write={theirs}"), "OK"),
        deny("config_append:open_append", "EROFS").with(at(".git/config")).beside("index"),
        deny("config_trunc:truncate", "EROFS").with(at(".git/config")).beside("index"),
        deny("config_chmod:chmod", "EROFS").with(at(".git/config")).beside("index"),
        deny("config_unlink:unlink", "EBUSY").with(at(".git/config")).beside("index"),
        deny("config_over:rename", "EBUSY").with(pair(".git/newconfig", ".git/config")).beside("index"),
        deny("config_away:rename", "EBUSY").with(pair(".git/config", ".git/old")).beside("index"),
        deny("config_swap:rename_exchange", "EBUSY")
            .with(pair(".git/newconfig", ".git/config"))
            .beside("index"),
        deny("hook_write:write_text", "EROFS").with(at(".git/hooks/pre-commit")).beside("index"),
        deny("hook_new:create", "EROFS").with(at(".git/hooks/post-checkout")).beside("index"),
        deny("hook_link:link", "EROFS").with(pair("evil", ".git/hooks/link")).beside("index"), // derived
        deny("hook_symlink:symlink", "EROFS")
            .with(format!("/tmp/x,{}", at(".git/hooks/sym")))
            .beside("index"),
        deny("hooks_away:rename", "EBUSY").with(pair(".git/hooks", ".git/hooks2")).beside("index"),
        deny("hooks_rmdir:rmdir", "EBUSY").with(at(".git/hooks")).beside("index"), // derived
        deny("git_away:rename", "EBUSY").with(pair(".git", "gone")).beside("index"),
        deny("git_swap:rename_exchange", "EBUSY").with(pair(".git", "dir")).beside("index"),
        deny("vscode_write:write_text", "EROFS").with(at(".vscode/tasks.json")).beside("index"),
        deny("vscode_away:rename", "EBUSY").with(pair(".vscode", "v2")).beside("index"),
        deny("envrc_write:open_write", "EROFS").with(at(".envrc")).beside("index"),
        deny("envrc_away:rename", "EBUSY").with(pair(".envrc", "e2")).beside("index"),
        deny("claude_new:create", "EROFS").with(at(".claude/hooks.json")).beside("index"),
        deny("bind_across:link", "EXDEV").with(pair("evil", ".git/evil")).beside("index"),
        allow("index:write_text").with(at(".git/stockade-index")),
        allow("index_gone:unlink").with(at(".git/stockade-index")),
    ];
    ws.file(".git/newconfig", "[core]\n\thooksPath = /tmp\n");
    ws.dir("dir");
    check("fs", &ws, &rows, |s| s);
    let after: Vec<_> = protected.iter().map(|p| snapshot(p, &[])).collect();
    assert_eq!(before, after, "a protected path changed");
}

/// A missing protected name can be made inside, and is moved aside before anyone meets it.
#[test]
fn created_protected_names_are_quarantined() {
    for inside in BOTH {
        let ws = Workspace::new("quarantine");
        let program = ws.fixture("fs");
        let script = format!(
            "mkdir -p .git/hooks && echo '#!/bin/sh' > .git/hooks/pre-commit && echo '[core]' > .git/config && echo x > .envrc && \
             {program} leave_protected=fifo,{} leave2:leave_protected=symlink,{} leave3:leave_protected=dir,{} && echo ordinary > file",
            ws.at(".mcp.json"),
            ws.at(".claude"),
            ws.at(".vscode")
        );
        let run = Sandbox::new(&ws).inside(inside).run(common::sh(&script));
        run.expect_exit(0);
        let reported = run.json["protected_created"].to_string();
        for name in [".git/hooks", ".git/config", ".envrc", ".mcp.json", ".claude", ".vscode"] {
            assert!(reported.contains(name), "{inside:?} {name} is not in {reported}");
            assert!(
                std::fs::symlink_metadata(ws.path().join(name)).is_err(),
                "{inside:?} {name} is still in its place"
            );
        }
        assert_eq!(ws.read("file").as_deref(), Some(b"ordinary\n".as_slice()));
    }
}

/// No placeholder on the host, ever: a run that does nothing changes nothing.
#[test]
fn nothing_is_made_in_the_workspace_by_us() {
    let ws = Workspace::new("placeholder");
    ws.file("file", "x");
    ws.fixture("fs");
    let before = snapshot(ws.path(), &[]);
    for inside in BOTH {
        Sandbox::new(&ws).inside(inside).run(["true"]).expect_exit(0);
        Sandbox::new(&ws).inside(inside).profile("read-only").run(["true"]).expect_exit(0);
    }
    assert_eq!(common::differences(&before, &snapshot(ws.path(), &[])), Vec::<String>::new());
    let repo = checkout("placeholder-git");
    let before = snapshot(repo.path(), &[]);
    Sandbox::new(&repo).run(["true"]).expect_exit(0);
    assert_eq!(common::differences(&before, &snapshot(repo.path(), &[])), Vec::<String>::new());
}

/// Sparse giants, nests deeper than PATH_MAX, odd names, loops, FIFOs, magic links: the next call works.
#[test]
fn wicked_trees_harm_no_later_call() {
    for inside in BOTH {
        let ws = Workspace::new("wicked");
        let dir = ws.dir("w");
        let argv = [
            ws.fixture("fs"),
            format!("leave_sparse_giant={dir}"),
            format!("leave_deep_nest={dir}"),
            format!("leave_odd_names={dir}"),
            format!("leave_links_and_fifos={dir}"),
            format!("swap_race={dir}"),
            format!("lease={dir}/lease"),
        ];
        let run = Sandbox::new(&ws).inside(inside).run(argv);
        run.expect_exit(0);
        let cases = run.cases();
        for case in
            ["leave_sparse_giant", "leave_deep_nest", "leave_odd_names", "leave_links_and_fifos", "swap_race"]
        {
            assert_eq!(cases.errno(case), "OK", "{inside:?} {cases:?}");
        }
        // Names of protected things as FIFO, loop and nest: quarantine must neither follow nor hang.
        let run = Sandbox::new(&ws).inside(inside).run(common::sh(
            "mkfifo .envrc; ln -s .vscode .vscode; mkdir -p .claude/a/b; ln -s /etc .idea; true",
        ));
        run.expect_exit(0);
        assert!(run.raw.wall < std::time::Duration::from_secs(20));
        Sandbox::new(&ws).inside(inside).run(["true"]).expect_exit(0);
        assert!(Path::new("/etc/passwd").exists());
    }
}

/// A directory swapped with a link to /etc while calls start: nothing of /etc is bound, hidden or moved.
#[test]
fn swaps_during_a_call_do_not_lead_outside() {
    let ws = Workspace::new("swap");
    let dir = ws.dir("s");
    let marker = common::unique("swapper");
    let swapper = Sandbox::new(&ws).spawn(common::sh(&format!(
        ": {marker}; cd {dir}; mkdir real; ln -s /etc link; echo ready; while :; do mv -T link cur 2>/dev/null; mv -T cur link; mv -T real cur 2>/dev/null; mv -T cur real; done"
    )));
    swapper.expect_output("ready");
    for _ in 0..20 {
        let source = format!("{}:/data", ws.at("s/cur"));
        let raw = Sandbox::new(&ws).options(["--ro", &source]).raw(common::sh("ls /data"));
        // Either it was gone, or a link (a caller's source may be a link: /etc is what the caller named), or real.
        assert!([0, 125].contains(&raw.code()), "{} {}", raw.code(), raw.err());
    }
    let source = format!("{}:{}", ws.at("s/real"), ws.at("s/link/x"));
    let raw = Sandbox::new(&ws).options(["--ro", &source]).raw(["true"]);
    assert_eq!(raw.code(), 125, "a target behind a link: {}", raw.err());
    drop(swapper);
}

/// A rename on the host detaches a mask: the executor is ended as broken, never left without it.
#[test]
fn a_lost_mask_ends_the_executor() {
    let ws = Workspace::new("masklost");
    ws.file(".env", "TOKEN=host-secret");
    let live = Sandbox::new(&ws).with_result().spawn(common::sh(
        "echo ready; i=0; while [ $i -lt 3000 ]; do cat .env; sleep 0.01; i=$((i+1)); done",
    ));
    live.expect_output("ready");
    ws.file("new-env", "TOKEN=host-secret-2");
    // What a host editor does: write beside, rename over.
    std::fs::rename(ws.path().join("new-env"), ws.path().join(".env")).unwrap();
    let ended = live.finish(std::time::Duration::from_secs(20));
    assert!(!ended.overrun, "it went on without its mask");
    assert_eq!(ended.code(), 125, "{} {:?}", ended.err(), ended.result);
    let result = ended.result.expect("a result document");
    assert_eq!(result["outcome"]["kind"], "broken", "{result}");
    assert!(result["outcome"].to_string().contains("mask_lost"), "{result}");
    // What the host put there stays, and is named.
    let object = result["outcome"]["object"].as_str().unwrap_or_default();
    assert!(object.ends_with("/.env"), "{result}");
    assert_eq!(std::fs::read_to_string(ws.path().join(".env")).unwrap(), "TOKEN=host-secret-2");
}

/// The same for something protected: the host's own change is not moved away, but it is named, since nobody can tell
/// it from one by the command.
#[test]
fn a_protected_file_that_the_host_replaces_is_named() {
    let ws = Workspace::new("replaced");
    ws.file(".envrc", "old");
    let live = Sandbox::new(&ws).with_result().spawn(common::sh("echo ready; sleep 30"));
    live.expect_output("ready");
    ws.file("new", "edited");
    std::fs::rename(ws.path().join("new"), ws.path().join(".envrc")).unwrap();
    let ended = live.finish(std::time::Duration::from_secs(20));
    assert_eq!(ended.code(), 125, "{} {:?}", ended.err(), ended.result);
    let result = ended.result.expect("a result document");
    let named = &result["protected_created"][0];
    assert_eq!((&named["path"], &named["replaced"]), (&".envrc".into(), &true.into()), "{result}");
    assert!(named["moved_to"].is_null(), "{result}");
    assert_eq!(std::fs::read_to_string(ws.path().join(".envrc")).unwrap(), "edited");
}

/// `.git` files (worktrees) are followed only when the other side names them back.
#[test]
fn a_forged_git_file_protects_or_grants_nothing() {
    let ws = Workspace::new("forged");
    let victim = checkout("forged-victim");
    ws.file(".git", format!("gitdir: {}/.git\n", common::text(victim.path())));
    let rows = vec![
        deny("victim:list", "ENOENT").with(victim.at(".git")).outside("OK"),
        deny("victim_write:create", "ENOENT").with(victim.at(".git/planted")).beside("mine"),
        allow("mine:create").with(ws.at("mine")),
        allow("gone:unlink").with(ws.at("mine")),
    ];
    check("fs", &ws, &rows, |s| s);
    let rows = vec![observe("here:stat", 0).with(ws.at(".git"))];
    check("fs", &ws, &rows, |s| s);
}

/// Nor when the other side does, but belongs to another user, may be written by everybody, or lies where the profile
/// lets no source come from. The plan says why.
#[test]
fn a_git_file_leads_to_nobody_elses_directory() {
    let main = checkout("linked");
    let linked = Workspace::new("linked-tree");
    linked.file(".git", format!("gitdir: {}\n", main.at(".git/worktrees/w")));
    main.file(".git/worktrees/w/gitdir", format!("{}\n", linked.at(".git")));
    main.file(".git/worktrees/w/commondir", "../..\n");
    let common = main.path().join(".git");
    let plan = |options: &[&str]| {
        let raw = Sandbox::new(&linked).options(options).options(["--dry-run", "--json"]).raw(["true"]);
        let plan: serde_json::Value = serde_json::from_slice(&raw.stdout).expect("a plan");
        let sources = plan["containment"]["sources"].as_array().unwrap();
        let shown = sources.iter().any(|s| s["path"].as_str() == common.to_str());
        let notes = plan["notes"].as_array().unwrap().iter().filter_map(|n| n.as_str());
        (shown, notes.filter(|n| n.contains(".git")).collect::<String>())
    };
    let expect = |(shown, why): (bool, String), wanted: &str| {
        assert!(!shown && why.contains(wanted), "{wanted}: shown {shown}, {why:?}");
    };
    assert_eq!(plan(&[]), (true, String::new()), "the control");
    if common::needs_landlock(6) {
        expect(plan(&["--profile", "strict"]), "outside what the profile grants (grants.ro)");
    }
    common::set_mode(&common, 0o757);
    expect(plan(&[]), "its common directory may be written by everybody");
    common::set_mode(&common, 0o755);
    assert_eq!(plan(&[]), (true, String::new()), "the control");
    if root() {
        // Everything in it says that it is this workspace's; only its owner is another.
        let before = std::fs::metadata(&common).unwrap().uid();
        std::os::unix::fs::chown(&common, Some(12_345), None).unwrap();
        expect(plan(&[]), "its common directory belongs to uid 12345, the workspace to uid");
        std::os::unix::fs::chown(&common, Some(before), None).unwrap();
    } else {
        // An ordinary user has only root's at hand, and is refused before anything in it is looked at.
        linked.file(".git", "gitdir: /usr\n");
        expect(plan(&[]), "its git directory belongs to uid 0, the workspace to uid");
        let run = Sandbox::new(&linked).run(["git", "status"]);
        assert_ne!(run.exit_code(), Some(0), "{}", run.out());
    }
}

/// `$HOME` or `/` as an implicit workspace is refused.
#[test]
fn implicit_home_or_root_is_refused() {
    for dir in [common::home(), "/".into()] {
        let raw = Sandbox::bare().current_dir(&dir).raw(["true"]);
        assert_eq!(raw.code(), 125, "{dir:?} {}", raw.err());
    }
    let ws = Workspace::new("implicit");
    let raw = Sandbox::bare().current_dir(ws.path()).raw(["pwd"]);
    assert_eq!((raw.code(), raw.out()), (0, format!("{}\n", ws.path().display())), "{}", raw.err());
}

/// The project's own `.stockade/` may narrow and never widen, and is always protected.
#[test]
fn a_projects_policy_only_narrows() {
    let ws = Workspace::new("project");
    ws.file(
        ".stockade/profile.toml",
        "version = 1\nname = \"offline\"\n\n[network]\nposture = \"general\"\nshare_host = true\n",
    );
    let raw = Sandbox::new(&ws).raw(["true"]);
    assert!(raw.code() == 125 || raw.code() == 0, "{} {}", raw.code(), raw.err());
    let run = Sandbox::new(&ws).run([ws.fixture("privilege"), "namespaces".into()]);
    if run.kind() == "finished" {
        let host = common::namespace_words(
            &common::outside("privilege", &["namespaces".into()]).get("namespaces").detail,
        );
        let own = common::namespace_words(&run.cases().get("namespaces").detail);
        assert_ne!(host["net"], own["net"], "a project file gave the host's network");
    }
    let rows = vec![
        deny("w:write_text", "EROFS").with(ws.at(".stockade/profile.toml")).beside("m"),
        allow("m:write_text").with(ws.at("m")),
    ];
    let argv: Vec<String> = std::iter::once(ws.fixture("fs")).chain(common::arguments(&rows)).collect();
    let run = Sandbox::new(&ws).run(argv);
    if run.kind() == "finished" {
        assert_eq!(common::mismatches(&rows, &run.cases(), common::Inside::Agent), Vec::<String>::new());
    }
}

/// A place that is another name of the scratch directories inside, where nothing is mounted below it.
#[test]
fn a_workspace_below_var_tmp() {
    let ws = tempfile::Builder::new().prefix("stockade-ws-").tempdir_in("/var/tmp").unwrap();
    let at = common::text(ws.path());
    let run = Sandbox::bare().options(["-w", &at]).run(common::sh(
        "pwd; echo x >made && touch /var/tmp/private && readlink /var/run; ls /var/tmp; test -L /var/tmp",
    ));
    let name = ws.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(
        run.out(),
        format!("{at}\n../run\nprivate\n{name}\n"),
        "{} {}",
        run.json["outcome"],
        run.raw.err()
    );
    run.expect_exit(1);
    assert_eq!(std::fs::read(ws.path().join("made")).unwrap(), b"x\n");
    assert!(!Path::new("/var/tmp/private").exists());
    // Otherwise they are one.
    let other = Workspace::new("var-tmp");
    let run = Sandbox::new(&other).run(common::sh("readlink /var/tmp; touch /var/tmp/x; ls /tmp"));
    assert_eq!(run.out(), "../tmp\nx\n");
    let source = Workspace::new("var-run");
    source.file("file", "");
    let bind = format!("{}:/var/run/below", common::text(source.path()));
    let run = Sandbox::new(&other).options(["--ro", &bind]).run(common::sh("ls /var/run /var/run/below"));
    assert_eq!(run.out(), "/var/run:\nbelow\n\n/var/run/below:\nfile\n");
    // A link of the host's base system is not ours to replace: the reason, and what to do.
    let raw = Sandbox::new(&other).options(["--tmpfs", "/lib/stockade"]).raw(["true"]);
    assert_eq!(raw.code(), 125);
    let said = raw.err();
    assert!(
        said.contains("/lib/stockade")
            && said.contains("may not lie behind a symbolic link: name the real path"),
        "{said}"
    );
}

/// Toolchains that variables name: below `/usr` the variable is set, and nothing mounted. What others own or may write
/// stays outside, and `policy explain` says so.
#[test]
fn toolchains_by_variable() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let ws = Workspace::new("variables");
    let run = Sandbox::new(&ws).env("JAVA_HOME", "/usr/share").run(common::sh("echo $JAVA_HOME"));
    assert_eq!(run.out(), "/usr/share\n");

    let tools = Workspace::new("variables-tools");
    let go = tools.dir("go");
    tools.file("go/seen", "");
    let of = |go: &str| {
        let sandbox = Sandbox::new(&ws).env("GOROOT", go);
        sandbox.run(["sh", "-c", "echo \"[$GOROOT]\"; ls \"$1\"", "sh", go])
    };
    assert_eq!(of(&go).out(), format!("[{go}]\nseen\n"));
    let mut bad = vec![("everybody may write to it", 0o777, None)];
    if common::root() {
        bad.push(("it belongs to uid 12345, neither to you nor to root", 0o755, Some(12_345)));
    }
    for (why, mode, owner) in bad {
        std::fs::set_permissions(&go, std::fs::Permissions::from_mode(mode)).unwrap();
        chown(&go, owner, None).unwrap();
        let run = of(&go);
        assert_eq!(run.out(), "[]\n", "{why}");
        let said = Command::new(common::bin())
            .args(["policy", "explain", "--json", "-w"])
            .arg(ws.path())
            .env("GOROOT", &go)
            .env("STOCKADE_STATE", common::state_dir())
            .output()
            .unwrap();
        let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        assert!(
            said["notes"].to_string().contains(&format!("GOROOT: {go} is left out: {why}")),
            "{}",
            said["notes"]
        );
    }
}

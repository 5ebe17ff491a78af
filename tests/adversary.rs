//! What an adversary got through once: each case is a fault that was found by trying, kept so that it stays mended.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Sandbox, Workspace};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn sh(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

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

/// A mask goes with the directory it is in: without a mount point on every ancestor, the next run reads it elsewhere.
#[test]
fn an_ancestor_of_a_hidden_path_cannot_be_renamed() {
    let ws = Workspace::new("hidden-ancestor");
    ws.file(".docker/config.json", "SECRET");
    let raw = Sandbox::new(&ws).raw(sh("mv .docker moved; mkdir other; mv other renamed && echo control"));
    assert_eq!(raw.out().trim(), "control", "{}", raw.err());
    assert!(raw.err().contains("Device or resource busy"), "{}", raw.err());
    let raw = Sandbox::new(&ws).raw(sh("cat moved/config.json .docker/config.json"));
    assert!(!raw.out().contains("SECRET"), "{}", raw.out());
}

/// The common directory of a linked worktree is writable too: what appears in it would run in the main repository.
#[test]
fn hooks_made_in_a_worktrees_common_directory_are_moved_aside() {
    let ws = Workspace::new("common-dir");
    ws.dir("main");
    let main = ws.path().join("main");
    git(&main, &["init", "-q", "--template="]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "x"]);
    git(&main, &["worktree", "add", "-q", "../linked"]);
    let linked = ws.path().join("linked");
    let run = Sandbox::bare().option("-w").option(&linked).run(sh(
        "git status >/dev/null && mkdir ../main/.git/hooks && echo x > ../main/.git/hooks/pre-commit",
    ));
    run.expect_exit(0);
    assert!(!main.join(".git/hooks").exists());
    assert!(linked.join(".git").is_file(), "the worktree's own link stays");
}

/// Two runs on one workspace: what the first one's sweep takes away under the second one is no way for the second's
/// command to leave something in its place.
#[test]
fn a_sweep_below_another_run_leaves_it_no_way_in() {
    for made in [".envrc", ".claude/settings.json"] {
        let ws = Workspace::new("two-runs");
        let first = Sandbox::new(&ws)
            .spawn(sh(&format!("mkdir -p $(dirname {made}); echo first >{made}; echo ready; sleep 60")));
        first.expect_output("ready");
        let second = Sandbox::new(&ws).with_result().spawn(sh(&format!(
            "echo ready; while :; do mkdir -p $(dirname {made}) && echo second >{made}; done 2>/dev/null"
        )));
        second.expect_output("ready");
        first.signal(Signal::SIGKILL);
        let _ = first.finish(Duration::from_secs(20));
        // The next start sweeps for the killed one, below the second.
        let until = Instant::now() + Duration::from_secs(20);
        while !ws.path().join(".stockade-quarantine").exists() {
            assert!(Instant::now() < until, "nobody swept");
            Sandbox::new(&ws).run(sh("true")).expect_exit(0);
        }
        let ended = second.finish(Duration::from_secs(30));
        assert_eq!(ended.code(), 125, "{made}: {}", ended.err());
        assert!(ended.err().contains(made.split('/').next().unwrap()), "{made}: {}", ended.err());
        let left = std::fs::read_to_string(ws.path().join(made));
        assert!(left.is_err(), "{made}: {left:?} stayed; {} {:?}", ended.err(), ended.result);
    }
}

/// Directories closed by the command are opened again for the sweep, whoever runs it.
#[test]
fn a_closed_directory_hides_nothing_from_the_sweep() {
    let ws = Workspace::new("closed");
    git(ws.path(), &["init", "-q"]);
    let raw = Sandbox::new(&ws).raw(sh(
        "mkdir -p .git/modules/a/b/hooks; echo x > .git/modules/a/b/hooks/pre-commit; echo e > .envrc; chmod 311 .git/modules; chmod 000 .",
    ));
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert!(!ws.path().join(".envrc").exists(), "{}", raw.err());
    assert!(!ws.path().join(".git/modules/a/b/hooks").exists(), "{}", raw.err());
}

/// One SIGTERM ends a command that ignores it.
#[test]
fn one_sigterm_is_enough() {
    let ws = Workspace::new("sigterm");
    let live = Sandbox::new(&ws).spawn(sh("trap '' TERM INT HUP; echo ready; sleep 60 & wait; sleep 60"));
    live.expect_output("ready");
    let begun = Instant::now();
    live.signal(Signal::SIGTERM);
    let raw = live.finish(Duration::from_secs(30));
    assert_eq!(raw.code(), 137, "{}", raw.err());
    assert!(begun.elapsed() < Duration::from_secs(25));
}

/// A signal that comes before the command is there is held for it, and nothing that ran is called refused.
#[test]
fn a_signal_at_the_very_start_is_not_lost() {
    let ws = Workspace::new("early");
    for _ in 0..5 {
        let live = Sandbox::new(&ws).spawn(sh("echo ready; exec sleep 60"));
        live.expect_output("ready");
        live.signal(Signal::SIGTERM);
        let raw = live.finish(Duration::from_secs(30));
        assert_eq!(raw.code(), 143, "{}", raw.err());
    }
}

/// SIGKILL of the owner does not lose the sweep: the next start does it.
#[test]
fn a_killed_owner_does_not_lose_the_sweep() {
    let ws = Workspace::new("killed-owner");
    let live = Sandbox::new(&ws).spawn(sh("echo evil > .envrc; echo ready; sleep 60"));
    live.expect_output("ready");
    live.signal(Signal::SIGKILL);
    live.finish(Duration::from_secs(10));
    assert!(ws.path().join(".envrc").exists(), "control: it was made");
    let raw = Sandbox::new(&ws).raw(["true"]);
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert!(!ws.path().join(".envrc").exists(), "{}", raw.err());
}

/// Output that cannot be delivered is a fault, a reader that had enough is not.
#[test]
fn output_that_is_lost_is_told() {
    let ws = Workspace::new("full");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let raw = Sandbox::new(&ws).stdout(full).raw(sh("echo hi"));
    assert_eq!(raw.code(), 125, "{}", raw.err());
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let raw = Sandbox::new(&ws).stdout(null).raw(sh("echo hi"));
    assert_eq!(raw.code(), 0, "{}", raw.err());
}

/// A source that cannot be idmapped is refused, in bounded time (privileged; rootless it is simply read-only).
#[test]
fn a_source_without_idmaps_is_no_deadlock() {
    let ws = Workspace::new("no-idmap");
    let raw = Sandbox::new(&ws)
        .option("--rw")
        .option("/dev/null:/mnt/x")
        .patience(Duration::from_secs(30))
        .raw(["true"]);
    assert!(matches!(raw.code(), 0 | 125), "{} {}", raw.code(), raw.err());
}

/// A link inside must not lock its own workspace out, and must not let the host's root in.
#[test]
fn links_are_judged_by_what_they_lead_to() {
    let ws = Workspace::new("links");
    std::os::unix::fs::symlink("x", ws.path().join(".env")).unwrap();
    let raw = Sandbox::new(&ws).raw(["true"]);
    assert_eq!(raw.code(), 0, "{}", raw.err());
    let link = ws.path().join("to-root");
    std::os::unix::fs::symlink("/", &link).unwrap();
    let raw = Sandbox::new(&ws).option("--ro").option(format!("{}:/mnt/x", link.display())).raw(["true"]);
    assert_eq!(raw.code(), 125, "{}", raw.err());
    let real = ws.dir("real");
    let raw = Sandbox::new(&ws).option("--ro").option(format!("{real}:/mnt/x")).raw(["true"]);
    assert_eq!(raw.code(), 0, "control: {}", raw.err());
}

/// A profile file beside a workspace that extends the default one.
fn profile(tag: &str, text: &str) -> (Workspace, String) {
    let other = Workspace::new(tag);
    let path = other.file("p.toml", format!("version = 1\nname = \"p\"\nextends = \"offline\"\n{text}"));
    (other, path)
}

/// Stockade's state is no source, neither as a whole nor in part, by whatever way; what holds it shows a mask.
#[test]
fn no_source_is_or_lies_in_the_state_directory() {
    let ws = Workspace::new("state-source");
    let outer = Workspace::new("state-outer");
    let state = outer.at("state");
    let with_state = |sandbox: Sandbox| sandbox.option("--state-dir").option(&state);
    let first = with_state(Sandbox::new(&ws)).raw(["true"]);
    assert_eq!(first.code(), 0, "{}", first.err());
    let mut wrong = Vec::new();
    let mut refused = |what: &str, sandbox: Sandbox| {
        let raw = with_state(sandbox).raw(["true"]);
        if raw.code() != 125 || !raw.err().contains("which no executor sees") {
            wrong.push(format!("{what}: {} {}", raw.code(), raw.err()));
        }
    };
    for part in ["", "/cache", "/live", "/ids"] {
        let inside = format!("{state}{part}");
        for flag in ["--ro", "--rw"] {
            let bind = format!("{inside}:/mnt/x");
            refused(&format!("{flag} {part}"), Sandbox::new(&ws).option(flag).option(bind));
        }
        refused(&format!("-w {part}"), Sandbox::bare().option("-w").option(&inside));
        let link = ws.at(&format!("link{}", part.replace('/', "-")));
        std::os::unix::fs::symlink(&inside, &link).unwrap();
        refused(&format!("link {part}"), Sandbox::new(&ws).option("--ro").option(format!("{link}:/mnt/x")));
        let (_keep, file) = profile("state-root", &format!("root.dir = \"{inside}\"\n"));
        refused(&format!("root.dir {part}"), Sandbox::new(&ws).profile(&file));
        for more in ["", "writable = true\n"] {
            let mount =
                format!("[[mounts]]\ntype = \"bind\"\nsource = \"{inside}\"\ntarget = \"/m\"\n{more}");
            let (_keep, file) = profile("state-mount", &mount);
            refused(&format!("bind {part} {more}"), Sandbox::new(&ws).profile(&file));
        }
        let mount = format!("[[mounts]]\ntype = \"overlay\"\nsource = \"{inside}\"\ntarget = \"/m\"\n");
        let (_keep, file) = profile("state-overlay", &mount);
        refused(&format!("overlay {part}"), Sandbox::new(&ws).profile(&file));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let raw = with_state(Sandbox::new(&outer)).raw(sh("ls -A state; echo control"));
    assert_eq!((raw.code(), raw.out().trim()), (0, "control"), "{}", raw.err());
    // A directory of the table's own does not cover one that is there.
    let (_keep, file) = profile("state-dir", &format!("[[mounts]]\ntype = \"dir\"\ntarget = \"{state}\"\n"));
    let raw = with_state(Sandbox::new(&outer).profile(&file)).raw(sh("ls -A state; echo control"));
    assert_eq!((raw.code(), raw.out().trim()), (0, "control"), "{}", raw.err());
    // A toolchain there is left out.
    let raw = with_state(Sandbox::new(&ws))
        .env("JAVA_HOME", format!("{state}/cache"))
        .raw(sh("echo \"[$JAVA_HOME]\""));
    assert_eq!(raw.out().trim(), "[]", "{}", raw.err());
}

/// A bind mount gives another name to what no executor sees.
#[test]
fn another_name_by_a_mount_shows_no_more() {
    let ws = Workspace::new("alias");
    let outer = Workspace::new("alias-outer");
    let (state, other) = (outer.at("below/state"), outer.dir("other"));
    outer.dir("below");
    outer.dir("plain");
    for name in ["a", "p", "r"] {
        outer.dir(&format!("other/{name}"));
    }
    let below = outer.at("below");
    let script = format!(
        "mount --bind '{below}' '{other}/a' && mount --bind /proc '{other}/p' && mount --rbind / '{other}/r' && exec \"$@\""
    );
    let run = |sandbox: Sandbox, argv: &[&str]| {
        sandbox.option("--state-dir").option(&state).launcher(common::with_mounts(&script)).raw(argv)
    };
    let raw = run(Sandbox::new(&ws), &["true"]);
    assert_eq!(raw.code(), 0, "{}", raw.err());
    for source in ["a/state", "a/state/live", "p", "p/self", "r", "r/proc"] {
        let bind = format!("{other}/{source}:/mnt/x");
        let raw = run(Sandbox::new(&ws).option("--ro").option(&bind), &["true"]);
        assert_eq!(raw.code(), 125, "{source}: {}", raw.err());
    }
    let raw = run(
        Sandbox::new(&ws).option("--ro").option(format!("{other}:/mnt/x")),
        &["sh", "-c", "ls -A /mnt/x/a/state /mnt/x/p /mnt/x/r | sort -u; ls -d /mnt/x/a"],
    );
    let shown: Vec<String> = raw.out().lines().filter(|l| !l.is_empty()).map(str::to_owned).collect();
    let wanted = ["/mnt/x/a/state:", "/mnt/x/p:", "/mnt/x/r:", "/mnt/x/a"];
    assert_eq!((raw.code(), &shown[..]), (0, &wanted.map(str::to_owned)[..]), "{}", raw.err());
}

/// The host's root, and a whole home, as the executor's root would show everything.
#[test]
fn the_hosts_root_is_no_root() {
    let ws = Workspace::new("whole");
    let link = ws.at("to-root");
    std::os::unix::fs::symlink("/", &link).unwrap();
    let home = common::home().canonicalize().unwrap();
    let above = home.parent().unwrap();
    for dir in [Path::new("/"), Path::new(&link), &home, above] {
        let (_keep, file) = profile("whole", &format!("root.dir = \"{}\"\n", dir.display()));
        let raw = Sandbox::new(&ws).env("HOME", &home).profile(&file).raw(["/bin/true"]);
        assert_eq!(raw.code(), 125, "{}: {}", dir.display(), raw.err());
        assert!(raw.err().contains("which no executor sees"), "{}: {}", dir.display(), raw.err());
    }
    for source in ["/", &link] {
        for kind in ["bind", "overlay"] {
            let mount = format!("[[mounts]]\ntype = \"{kind}\"\nsource = \"{source}\"\ntarget = \"/m\"\n");
            let (_keep, file) = profile("whole-mount", &mount);
            let raw = Sandbox::new(&ws).profile(&file).raw(["true"]);
            assert_eq!(raw.code(), 125, "{kind} {source}: {}", raw.err());
        }
    }
}

/// What is hidden cannot be changed either: where a name is in both lists, it is hidden, and that is said.
#[test]
fn what_is_protected_and_hidden_is_hidden() {
    let ws = Workspace::new("both");
    ws.file(".git/config", "[core]\n");
    ws.file(".git/hooks/pre-commit", "SECRET");
    ws.file(".envrc", "SECRET");
    let hide = "workspace.hide = [\"...\", \".git\", \".envrc\"]\nworkspace.protect = [\"...\", \".git\", \".envrc\"]\n";
    let (_keep, file) = profile("both", hide);
    let raw = Sandbox::new(&ws)
        .profile(&file)
        .raw(sh("ls -A .git; cat .envrc; mv .git gone; echo x > .git/config; echo y > .envrc; echo control"));
    assert_eq!((raw.code(), raw.out().trim()), (0, "control"), "{}", raw.err());
    assert_eq!(ws.read(".git/config").unwrap(), b"[core]\n");
    let raw = Sandbox::new(&ws).profile(&file).option("--dry-run").raw(["true"]);
    for name in [".git", ".envrc"] {
        let said = raw.out().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&format!("`{name}` is both protected and hidden")), "{said}");
    }
}

/// A mask of what is not there is no fault of the run's, and is told.
#[test]
fn a_mask_of_nothing_masks_nothing() {
    let ws = Workspace::new("mask-nothing");
    ws.file("file", "x");
    std::os::unix::fs::symlink("nowhere", ws.path().join("dangling")).unwrap();
    ws.file("there", "SECRET");
    let at = |name: &str| ws.at(name);
    let targets = [
        at("absent"),
        at("absent/below"),
        at("file/below"),
        at("dangling"),
        at("dangling/below"),
        "/usr/absent/below".into(),
        "/opt/absent".into(),
        "/tmp/absent".into(),
        at("there"),
    ];
    let mut text =
        String::from("workspace.hide = [\"...\", \"none/x\", \"none/*.x\", \"dangling\", \"dangling/x\"]\n");
    for target in &targets {
        text.push_str(&format!("[[mounts]]\ntype = \"mask\"\ntarget = \"{target}\"\n"));
    }
    let (_keep, file) = profile("mask-nothing", &text);
    let raw =
        Sandbox::new(&ws).profile(&file).option("--verify").option("live").raw(sh("cat there; echo control"));
    assert_eq!((raw.code(), raw.out().trim()), (0, "control"), "{}", raw.err());
    let raw = Sandbox::new(&ws).profile(&file).option("--dry-run").raw(["true"]);
    let said = raw.out().split_whitespace().collect::<Vec<_>>().join(" ");
    for target in targets.iter().take(6) {
        assert!(said.contains(&format!("nothing is at {target}: its mask")), "{target} {said}");
    }
    assert!(!said.contains(&format!("nothing is at {}:", at("there"))), "{said}");
}

/// A mask of the profile's in a writable workspace goes with the directory it is in, as a hidden name would.
#[test]
fn an_ancestor_of_a_mask_cannot_be_renamed() {
    let ws = Workspace::new("mask-ancestor");
    ws.file("a/b/key", "SECRET");
    let mask = format!("[[mounts]]\ntype = \"mask\"\ntarget = \"{}\"\n", ws.at("a/b/key"));
    let (_keep, file) = profile("mask-ancestor", &mask);
    let raw = Sandbox::new(&ws).profile(&file).raw(sh("mv a moved; mv a/b moved; echo control"));
    assert_eq!(raw.out().trim(), "control", "{}", raw.err());
    let raw = Sandbox::new(&ws).profile(&file).raw(sh("cat a/b/key moved/b/key moved/key"));
    assert!(!raw.out().contains("SECRET"), "{}", raw.out());
}

/// uid 0 of a user namespace that is not the initial one is told that, and not that a directory is not its own.
#[test]
fn uid_0_of_another_user_namespace_is_told_what_it_is() {
    let ws = Workspace::new("uid-0");
    let mut launcher = vec!["unshare", "--user", "--map-root-user"];
    if common::root() {
        launcher.splice(0..0, ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    let raw = Sandbox::bare()
        .option("-w")
        .option("/usr")
        .without_env("STOCKADE_STATE")
        .launcher(launcher)
        .raw(["true"]);
    assert_eq!(raw.code(), 125, "{}", raw.err());
    assert!(raw.err().contains("uid 0 of a user namespace that is not the initial one"), "{}", raw.err());
    assert!(raw.err().contains("run stockade as an ordinary user"), "{}", raw.err());
    drop(ws);
}

/// What the workspace protects or hides is so by every name: a second view of it takes nothing away.
#[test]
fn another_view_of_the_workspace_is_no_way_around() {
    let outer = Workspace::new("views");
    for (name, text) in
        [("ws/.git/config", "[core]\n"), ("ws/.git/hooks/x", "x"), ("ws/.env", "SECRET"), ("ws/f", "")]
    {
        outer.file(name, text);
    }
    let at = |name: &str| outer.at(name);
    let run = |flag: &str, source: &str, script: &str| {
        let bind = format!("{}:/mnt/x", at(source));
        Sandbox::bare().option("-w").option(at("ws")).option(flag).option(bind).raw(sh(script))
    };
    // The control: what is neither can be written through the other name.
    let write = "cat $d/.env; echo w > $d/.git/config; echo w > $d/.git/hooks/new; mv $d/.git $d/gone; echo w > $d/f && echo control";
    for (source, dir) in [("ws", "/mnt/x"), ("", "/mnt/x/ws")] {
        let raw = run("--rw", source, &format!("d={dir}; {write}"));
        assert_eq!((raw.code(), raw.out().trim()), (0, "control"), "{source}: {}", raw.err());
        let raw = run("--ro", source, &format!("cat {dir}/.env; echo control"));
        assert_eq!((raw.code(), raw.out().trim()), (0, "control"), "{source}: {}", raw.err());
    }
    assert_eq!(outer.read("ws/.git/config").unwrap(), b"[core]\n");
    assert!(outer.read("ws/.git/hooks/new").is_none());
    for (flag, source, code) in [
        ("--rw", "ws/.git/config", 125),
        ("--rw", "ws/.git/hooks", 125),
        ("--ro", "ws/.git/hooks", 0),
        ("--ro", "ws/.env", 125),
        ("--rw", "ws/.env", 125),
        ("--rw", "ws/f", 0),
    ] {
        let raw = run(flag, source, "true");
        assert_eq!(raw.code(), code, "{flag} {source}: {}", raw.err());
    }
}

/// A private place is never a directory of the host's, which would be given away with it.
#[test]
fn a_mount_above_the_home_does_not_give_the_hosts_directory_away() {
    use std::os::unix::fs::MetadataExt;
    let ws = Workspace::new("home-above");
    let other = Workspace::new("home-above-by");
    let agent = other.dir("agent");
    let before = std::fs::metadata(&agent).unwrap();
    for flag in ["--rw", "--ro"] {
        let bind = format!("{}:/home", common::text(other.path()));
        let raw = Sandbox::new(&ws).option(flag).option(bind).raw(sh("touch $HOME/made; echo RAN"));
        assert_eq!(raw.code(), 125, "{} {}", raw.out(), raw.err());
    }
    let after = std::fs::metadata(&agent).unwrap();
    assert_eq!((before.mode(), before.uid(), before.gid()), (after.mode(), after.uid(), after.gid()));
    let raw = Sandbox::new(&ws).option("--tmpfs").option("/home").raw(sh("touch $HOME/made && echo RAN"));
    assert_eq!(raw.out().trim(), "RAN", "{}", raw.err());
}

/// Names with which the root is built are no targets, and a place without a workspace is none.
#[test]
fn names_of_the_roots_own_are_refused_as_targets() {
    let ws = Workspace::new("own-names");
    let bind = |to: &str| format!("{}:{to}", common::text(ws.path()));
    for name in ["/.stockade-empty", "/.stockade-void/x", "/.stockade-layer0"] {
        for (flag, value) in [("--tmpfs", name.to_owned()), ("--at", name.to_owned()), ("--ro", bind(name))] {
            let raw =
                Sandbox::new(&ws).set("workspace.access", "overlay").option(flag).option(value).raw(["true"]);
            assert!(
                raw.code() == 125 && raw.err().contains("nothing may be mounted"),
                "{flag} {name}: {}",
                raw.err()
            );
        }
    }
    // What the names were once is anybody's.
    let raw = Sandbox::new(&ws).options(["--tmpfs", "/.void/x", "--tmpfs", "/.empty"]).raw(["true"]);
    assert_eq!(raw.code(), 0, "{}", raw.err());
    let raw = Sandbox::new(&ws).set("workspace.access", "none").option("--at").option("/x").raw(["true"]);
    assert!(raw.code() == 125 && raw.err().contains("workspace.access"), "{}", raw.err());
}

/// A mount of the caller's is made or refused, and never quietly left out for a protection of the same name.
#[test]
fn a_mount_over_a_protected_name_is_made_or_refused() {
    let ws = Workspace::new("over-protected");
    ws.file(".git/config", "[core]\n");
    ws.file(".git/hooks/x", "x");
    ws.file("sub/.env", "SECRET");
    let other = Workspace::new("over-protected-by");
    other.file("mark", "");
    let run = |target: &str| {
        let bind = format!("{}:{}", common::text(other.path()), ws.at(target));
        Sandbox::new(&ws)
            .set("workspace.hide", "[\"sub/.env\"]")
            .option("--ro")
            .option(bind)
            .raw(sh(&format!("ls {target}")))
    };
    for target in [".git", "sub"] {
        let raw = run(target);
        assert_eq!((raw.code(), raw.out().trim()), (0, "mark"), "{target}: {}", raw.err());
    }
    ws.file("sub/deep/er/f", "");
    let bind = format!("{}:{}", common::text(other.path()), ws.at("sub/deep/er"));
    for (flag, value) in [("--ro", bind.clone()), ("--rw", bind), ("--tmpfs", ws.at("sub/deep/er"))] {
        let raw = Sandbox::new(&ws)
            .set("workspace.hide", "[\"sub/deep\"]")
            .option(flag)
            .option(value)
            .raw(["true"]);
        assert!(
            raw.code() == 125 && raw.err().contains("which is hidden"),
            "{flag}: {} {}",
            raw.code(),
            raw.err()
        );
    }
    let raw = run(".git/hooks");
    assert!(raw.code() == 125 && raw.err().contains("two entries"), "{} {}", raw.code(), raw.err());
}

/// A hidden name may be a link: what it leads to in the workspace is as hidden, and as held in its place.
#[test]
fn a_hidden_link_hides_what_it_leads_to() {
    let ws = Workspace::new("hidden-link");
    ws.file("real/key", "SECRET");
    std::os::unix::fs::symlink("real/key", ws.path().join("id_rsa")).unwrap();
    std::os::unix::fs::symlink(ws.path().join("real/key"), ws.path().join(".env")).unwrap();
    // Made by an earlier command, to have this one miss what it needs.
    ws.file("src/main.rs", "fn main() {}");
    std::os::unix::fs::symlink("src", ws.path().join(".ssh")).unwrap();
    let run =
        Sandbox::new(&ws).run(sh("cat id_rsa .env real/key; mv real gone; cat gone/key; cat src/main.rs"));
    run.expect_exit(0);
    assert_eq!(run.out(), "fn main() {}", "{}", run.err());
}

/// Whoever writes the caller's profiles chooses the next command's sandbox: they are not there, wherever a source shows
/// them, and where there are none yet, none can be left.
#[test]
fn the_callers_profiles_are_out_of_reach() {
    for there in [true, false] {
        let ws = Workspace::new("config");
        let profile = ".config/stockade/profiles/offline.toml";
        if there {
            ws.file(profile, "version = 1\nextends = \"strict\"\n");
        }
        let run = Sandbox::new(&ws).env("HOME", ws.path()).raw(sh(&format!(
            "mkdir -p .config/stockade/profiles; (echo 'extends = \"open\"' >{profile}) 2>/dev/null; cat {profile}"
        )));
        let left = std::fs::read_to_string(ws.path().join(profile));
        if there {
            assert_ne!(run.code(), 0, "{} {}", run.out(), run.err());
            assert_eq!(left.unwrap(), "version = 1\nextends = \"strict\"\n");
        } else {
            assert!(left.is_err(), "{left:?} {}", run.err());
            assert!(run.err().contains(".config"), "{}", run.err());
        }
    }
}

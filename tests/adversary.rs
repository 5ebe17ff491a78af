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

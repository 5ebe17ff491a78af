//! What must work under the unmodified shipped profiles (70-quality, must-work matrix; user-reports 2c–2g): a sandbox
//! that breaks these will be switched off. From a home that is not root's, with a toolchain below it (`scripts/test-user`
//! puts one there; without it the host's own is used). `docs/must-work.md` is made of the same rows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;
#[path = "must_work/git.rs"]
mod git;
#[path = "must_work/matrix.rs"]
mod matrix;
#[path = "must_work/page.rs"]
mod page;
#[path = "must_work/programs.rs"]
mod programs;

use common::{BOTH, Sandbox, Workspace, sh};
use matrix::{Row, check};
use std::path::PathBuf;

fn rows() -> impl Iterator<Item = &'static Row> {
    programs::ROWS.iter().chain(git::ROWS)
}

#[test]
fn bash_pipelines() {
    check("bash_pipelines");
}

#[test]
fn odd_and_long_names() {
    check("odd_and_long_names");
}

#[test]
fn file_facilities() {
    check("file_facilities");
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    check("sqlite_with_a_write_ahead_log");
}

#[test]
fn machine_facts_are_readable() {
    check("machine_facts_are_readable");
}

#[test]
fn long_arguments_and_a_large_environment() {
    check("long_arguments_and_a_large_environment");
}

#[test]
fn a_hundred_mebibytes_of_output() {
    check("a_hundred_mebibytes_of_output");
}

#[test]
fn closed_stdin_and_no_terminal() {
    check("closed_stdin_and_no_terminal");
}

#[test]
fn terminals() {
    check("terminals");
}

#[test]
fn make_and_a_c_compiler() {
    check("make_and_a_c_compiler");
}

#[test]
fn cmake_configures_and_builds() {
    check("cmake_configures_and_builds");
}

#[test]
fn many_threads() {
    check("many_threads");
}

#[test]
fn cargo_build_and_test() {
    check("cargo_build_and_test");
}

#[test]
fn go_with_a_vendored_module() {
    check("go_with_a_vendored_module");
}

#[test]
fn npm_with_a_local_dependency() {
    check("npm_with_a_local_dependency");
}

#[test]
fn pip_in_an_environment_of_its_own() {
    check("pip_in_an_environment_of_its_own");
}

#[test]
fn maven_from_a_local_repository() {
    check("maven_from_a_local_repository");
}

#[test]
fn a_java_virtual_machine() {
    check("a_java_virtual_machine");
}

#[test]
fn node() {
    check("node");
}

#[test]
fn python_asyncio_and_multiprocessing() {
    check("python_asyncio_and_multiprocessing");
}

#[test]
fn chromium_without_a_window() {
    check("chromium_without_a_window");
}

#[test]
fn git_in_a_checkout() {
    check("git_in_a_checkout");
}

#[test]
fn git_in_a_linked_worktree() {
    check("git_in_a_linked_worktree");
}

#[test]
fn git_in_a_submodule() {
    check("git_in_a_submodule");
}

#[test]
fn git_makes_a_repository_and_a_fresh_clone() {
    check("git_makes_a_repository_and_a_fresh_clone");
}

#[test]
fn the_basics_as_both_users() {
    for inside in BOTH {
        let ws = Workspace::new("basics");
        let run = Sandbox::new(&ws).inside(inside).run(sh("id -u; whoami; hostname; test -w . && touch new && ls; getent passwd $(id -u) | cut -d: -f3; date > /dev/null; df . > /dev/null; ps > /dev/null 2>&1 || true"));
        run.expect_exit(0);
        let uid = inside.uid();
        let who = if uid == 0 { "root" } else { "agent" };
        assert_eq!(run.out(), format!("{uid}\n{who}\nstockade\nnew\n{uid}\n"), "{}", run.err());
    }
}

/// A project path that only exists inside a home: absolute paths in builds stay true.
#[test]
fn the_workspace_is_at_its_own_path() {
    let ws = Workspace::new("ownpath");
    let raw = Sandbox::bare().current_dir(ws.path()).raw(["pwd"]);
    assert_eq!((raw.code(), PathBuf::from(raw.out().trim_end())), (0, ws.path().to_owned()), "{}", raw.err());
}

/// uid without a passwd entry, odd umask, ignored signals: the caller's peculiarities don't come along.
#[test]
fn the_callers_peculiarities_stay_outside() {
    let ws = Workspace::new("peculiar");
    let raw = Sandbox::new(&ws)
        .launcher([
            "bash",
            "-c",
            "umask 077; trap '' PIPE TERM INT; ulimit -c unlimited; nice -n 0 \"$@\"",
            "bash",
        ])
        .raw(sh("umask; ulimit -c; yes | head -1; grep -E '^Sig(Ign|Blk)' /proc/self/status"));
    assert_eq!(raw.code(), 0, "{}", raw.err());
    let out = raw.out();
    assert!(out.starts_with("0022\n0\ny\n"), "{out}");
    assert!(out.contains("SigIgn:\t0000000000000000") && out.contains("SigBlk:\t0000000000000000"), "{out}");
}

#[test]
fn git_commands_that_cannot_work_say_why() {
    git::listed_commands_fail_by_the_reason_that_is_named();
}

#[test]
fn git_commands_that_are_not_listed_work() {
    git::unlisted_commands_work();
}

#[test]
fn documents_say_what_the_matrix_says() {
    page::documents_say_what_the_matrix_says();
}

/// A profile that is shipped and in no cell, or a row that no test tries, would be a hole.
#[test]
fn the_matrix_is_complete() {
    let listed = std::process::Command::new(common::bin()).args(["policy", "list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let lines: Vec<&str> = listed.lines().collect();
    let shipped: std::collections::BTreeSet<&str> = lines
        .windows(2)
        .filter(|pair| pair[1].trim() == "built-in profile")
        .filter_map(|pair| pair[0].trim_start_matches('*').split_whitespace().next())
        .collect();
    assert_eq!(shipped, matrix::PROFILES.into_iter().collect());
    let source = include_str!("must_work.rs");
    for row in rows() {
        assert!(source.contains(&format!("    check(\"{0}\")", row.test)), "no test tries {}", row.test);
        assert!(source.contains(&format!("fn {}()", row.test)), "{}", row.test);
    }
}

//! Streams, results and their separation (20-sandbox §§6 and 10; threats F109, J174, J176).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Input, Sandbox, Workspace, contains};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::time::Duration;

#[test]
fn streams_are_separate_and_byte_exact() {
    let ws = Workspace::new("streams");
    let raw = Sandbox::new(&ws).raw(common::sh("printf 'out\\0\\377\\n'; printf 'err\\376' >&2; exit 3"));
    assert_eq!(
        (raw.code(), raw.stdout.as_slice(), raw.stderr.as_slice()),
        (3, b"out\0\xff\n".as_slice(), b"err\xfe".as_slice())
    );
    let run = Sandbox::new(&ws).run(common::sh("printf 'out\\0\\377\\n'; printf 'err\\376' >&2; exit 3"));
    assert_eq!(
        (run.exit_code(), run.stdout.as_slice(), run.stderr.as_slice()),
        (Some(3), b"out\0\xff\n".as_slice(), b"err\xfe".as_slice())
    );
    assert!(run.json["stdout"]["b64"].is_string(), "bytes that are no text come as b64");
}

#[test]
fn stdin_is_streamed_in_both_directions() {
    let ws = Workspace::new("stdin");
    let mut live = Sandbox::new(&ws).stdin(Input::Held).spawn(["cat"]);
    let mut stdin = live.take_stdin().unwrap();
    for word in ["one\n", "two\n"] {
        stdin.write_all(word.as_bytes()).unwrap();
        live.expect_output(word);
    }
    drop(stdin);
    let raw = live.finish(common::PATIENCE);
    assert_eq!((raw.code(), raw.out()), (0, "one\ntwo\n".into()));
}

#[test]
fn large_streams_are_exact_with_back_pressure() {
    let ws = Workspace::new("large");
    let mut input = Vec::with_capacity(20 << 20);
    let mut x = 1u32;
    while input.len() < 20 << 20 {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        input.extend_from_slice(&x.to_le_bytes());
    }
    let wanted = Sha256::digest(&input);
    let raw = Sandbox::new(&ws).stdin(Input::Bytes(input)).raw(["cat"]);
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert_eq!(Sha256::digest(&raw.stdout), wanted);
}

#[test]
fn closed_and_early_ends() {
    let ws = Workspace::new("closed");
    let raw = Sandbox::new(&ws).stdin(Input::Closed).raw(common::sh("cat; echo done"));
    assert_eq!((raw.code(), raw.out()), (0, "done\n".into()), "{}", raw.err());
    // The command leaves without reading a stdin that never ends.
    let raw = Sandbox::new(&ws).stdin(Input::Held).raw(["true"]);
    assert_eq!(raw.code(), 0);
    // The reader leaves: the command is not kept alive for ever by a pipe nobody reads.
    let live = Sandbox::new(&ws)
        .launcher(["sh", "-c", "\"$@\" | head -c 10; exit ${PIPESTATUS:-0}", "sh"])
        .spawn(common::sh("yes"));
    let raw = live.finish(Duration::from_secs(30));
    assert!(!raw.overrun && raw.stdout.len() == 10, "{raw:?}");
}

/// A grandchild keeps the pipe: bounded drain, no lost byte.
#[test]
fn a_grandchild_that_holds_the_pipe() {
    for shape in ["holdpipe", "sigproof-leaves"] {
        let ws = Workspace::new("hold");
        let marker = common::unique("hold");
        let raw = Sandbox::new(&ws).raw([ws.fixture("procs"), "shape".into(), shape.into(), marker.clone()]);
        assert!(!raw.overrun && !raw.pipe_held && raw.code() == 0, "{shape}: {raw:?}");
        assert!(raw.wall < Duration::from_secs(10), "{shape}: {:?}", raw.wall);
        assert_eq!(common::await_gone(&marker, Duration::from_secs(5)).map(|_| ()), Ok(()));
    }
    let ws = Workspace::new("hold-big");
    let marker = common::unique("holdbig");
    let run = Sandbox::new(&ws).run([ws.fixture("procs"), "shape".into(), "holdpipe-big".into(), marker]);
    run.expect_exit(0);
    assert_eq!(run.json["stdout"]["total_bytes"], 5 << 20, "bytes were lost");
    assert!(run.stdout.iter().all(|b| *b == b'p'));
    let ws = Workspace::new("hold-big-raw");
    let raw = Sandbox::new(&ws).raw([
        ws.fixture("procs"),
        "shape".into(),
        "holdpipe-big".into(),
        common::unique("holdraw"),
    ]);
    assert_eq!((raw.code(), raw.stdout.len()), (0, 5 << 20), "bytes were lost");
}

#[test]
fn exits_and_signals_are_exact() {
    let ws = Workspace::new("exits");
    for code in [0, 1, 2, 77, 124, 125, 126, 127, 137, 255] {
        let run = Sandbox::new(&ws).run(common::sh(&format!("exit {code}")));
        run.expect_exit(code);
        assert_eq!(run.json["exit_code"], code);
        assert_eq!(run.limit(), None, "exit {code} of a program is no limit");
    }
    for signal in [1, 2, 6, 9, 11, 13, 15, 31] {
        let run = Sandbox::new(&ws).run([
            ws.fixture("procs"),
            "shape".into(),
            "suicide".into(),
            "x".into(),
            signal.to_string(),
        ]);
        assert_eq!(run.json["outcome"]["signal"], signal, "{}", run.json["outcome"]);
        assert_eq!(run.raw.code(), 128 + signal);
        assert_eq!(run.json["outcome"]["kind"], "finished");
    }
}

/// What a program prints cannot become a result record, and terminal escapes do not reach our own messages.
#[test]
fn output_cannot_forge_a_result() {
    let ws = Workspace::new("forge");
    let fake = r#"{"schema":"stockade.result/1","outcome":{"kind":"finished","exit_code":0}}"#;
    let run = Sandbox::new(&ws).run(common::sh(&format!("echo '{fake}'; echo '{fake}' >&2; exit 9")));
    run.expect_exit(9);
    assert!(contains(&run.stdout, fake.as_bytes()));
    let raw = Sandbox::new(&ws).with_result().raw(common::sh(&format!("echo '{fake}'; exit 9")));
    assert_eq!(raw.out(), format!("{fake}\n"));
    let result = raw.result.expect("a result file");
    assert_eq!(result["outcome"]["exit_code"], 9);
    assert!(
        result["stdout"].get("text").is_none() && result["stdout"].get("b64").is_none(),
        "no output in a side document: {result}"
    );
    // A command name full of escapes, in our own message.
    let raw = Sandbox::new(&ws).raw(["\x1b[2J\x1b]0;owned\x07\nnew line"]);
    assert_eq!(raw.code(), 127);
    assert!(!contains(&raw.stderr, b"\x1b"), "{:?}", raw.err());
}

#[test]
fn result_descriptor() {
    let ws = Workspace::new("result-fd");
    let out = common::home().join(common::unique("fd9"));
    let script = format!("exec 9>'{}'; exec \"$@\"", out.display());
    let raw = Sandbox::new(&ws)
        .launcher(["bash", "-c", &script, "bash"])
        .options(["--result-fd", "9"])
        .raw(common::sh("echo mine; [ ! -e /proc/self/fd/9 ] || exit 5; exit 4"));
    assert_eq!((raw.code(), raw.out()), (4, "mine\n".into()), "{}", raw.err());
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_eq!(result["outcome"]["exit_code"], 4);
    assert_eq!(result["schema"], "stockade.result/1");
}

/// The document names what was asked, got and used.
#[test]
fn the_document_is_complete() {
    let ws = Workspace::new("document");
    let run = Sandbox::new(&ws).run(["true"]);
    run.expect_exit(0);
    for key in [
        "run_id",
        "exit_code",
        "limit",
        "cancelled",
        "usage",
        "stdout",
        "stderr",
        "enforcement",
        "assurance",
        "mode",
        "plan_digest",
        "policy_digest",
        "profile",
        "protected_created",
        "reaping",
    ] {
        assert!(run.json.get(key).is_some(), "{key} is missing: {}", run.json);
    }
    for protection in ["namespaces", "mounts", "ids", "capabilities", "seccomp", "landlock_fs", "network"] {
        assert_eq!(
            run.enforcement(protection),
            Some(("require".into(), "enforced".into())),
            "{protection}: {}",
            run.json["enforcement"]
        );
    }
    assert_eq!(run.json["mode"], if common::root() { "privileged" } else { "rootless" });
    assert_eq!(run.json["profile"]["name"], "offline");
    let again = Sandbox::new(&ws).run(["true"]);
    assert_eq!(run.json["plan_digest"], again.json["plan_digest"], "the digest excludes allocations");
    assert_ne!(run.json["run_id"], again.json["run_id"]);
    let other = Sandbox::new(&ws).set("limits.processes", 100).run(["true"]);
    assert_ne!(run.json["plan_digest"], other.json["plan_digest"]);
}

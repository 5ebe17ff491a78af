//! Streams, results and their separation (20-sandbox §§6 and 10; threats F109, J174, J176).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Input, Sandbox, Workspace, contains, sh};
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
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

/// `sh` that does something to its descriptors and becomes stockade.
fn after(redirection: &str) -> [String; 4] {
    ["sh".into(), "-c".into(), format!("exec \"$@\" {redirection}"), "sh".into()]
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe that nobody reads: its reading end, and the other as a file.
fn unread() -> (std::io::PipeReader, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader, File::from(std::os::fd::OwnedFd::from(writer)))
}

/// A document that cannot be handed over: exit 125, what was lost, and what became of the command.
#[test]
fn a_lost_document_is_said() {
    let ws = Workspace::new("lost");
    let ended = "the command had exited with 3; its exit code would have been 3";
    // Closed from the start: seen before anything runs.
    let raw = Sandbox::new(&ws).launcher(after(">&-")).option("--json").raw(sh("touch ran; exit 3"));
    assert_eq!(raw.code(), 125, "{}", raw.err());
    assert!(raw.err().contains("result: standard output: it is closed"), "{}", raw.err());
    assert_eq!(ws.read("ran"), None, "the command ran");
    // Full: seen when it is too late.
    let raw = Sandbox::new(&ws).stdout(full()).option("--json").raw(sh("exit 3"));
    assert_eq!(raw.code(), 125, "{}", raw.err());
    for part in ["standard output", "No space left", ended] {
        assert!(raw.err().contains(part), "{part}: {}", raw.err());
    }
    let raw =
        Sandbox::new(&ws).launcher(after("3>/dev/full")).options(["--result-fd", "3"]).raw(sh("exit 3"));
    assert_eq!(raw.code(), 125, "{}", raw.err());
    for part in ["descriptor 3", "No space left", ended] {
        assert!(raw.err().contains(part), "{part}: {}", raw.err());
    }
    // A directory that goes away while the command runs.
    let dir = common::home().join(common::unique("results"));
    std::fs::create_dir(&dir).unwrap();
    let mut live = Sandbox::new(&ws)
        .stdin(Input::Held)
        .option("--result-file")
        .option(dir.join("result.json"))
        .spawn(sh("echo up; read line; exit 3"));
    let stdin = live.take_stdin().unwrap();
    live.expect_output("up");
    std::fs::remove_dir(&dir).unwrap();
    drop(stdin);
    let raw = live.finish(common::PATIENCE);
    assert_eq!(raw.code(), 125, "{}", raw.err());
    for part in ["result.json", "No such file", ended] {
        assert!(raw.err().contains(part), "{part}: {}", raw.err());
    }
    // The other places have it all the same.
    let raw = Sandbox::new(&ws)
        .launcher(after("3>/dev/full"))
        .options(["--result-fd", "3", "--json"])
        .raw(sh("exit 3"));
    assert_eq!(raw.code(), 125, "{}", raw.err());
    let document: serde_json::Value = serde_json::from_slice(&raw.stdout).unwrap();
    assert_eq!(document["outcome"]["exit_code"], 3);
}

/// Output of the command that cannot be passed on: likewise. What writes nothing loses nothing.
#[test]
fn lost_output_is_said() {
    let ws = Workspace::new("lost-output");
    let ended = "the command had exited with 3; its exit code would have been 3";
    for (what, sandbox) in
        [("closed", Sandbox::new(&ws).launcher(after(">&-"))), ("full", Sandbox::new(&ws).stdout(full()))]
    {
        let raw = sandbox.with_result().raw(sh("echo lost 2>&-; exit 3"));
        assert_eq!(raw.code(), 125, "{what}: {}", raw.err());
        for part in ["standard output", ended] {
            assert!(raw.err().contains(part), "{what}: {part}: {}", raw.err());
        }
        let result = raw.result.expect("a result file");
        assert_eq!(result["outcome"]["code"], "output_lost", "{what}: {result}");
        assert_eq!(result["outcome"]["object"], "standard output", "{what}: {result}");
    }
    let raw = Sandbox::new(&ws).stderr(full()).with_result().raw(sh("echo lost >&2; exit 3"));
    assert_eq!(raw.code(), 125);
    let result = raw.result.expect("a result file");
    assert_eq!(result["outcome"]["object"], "standard error", "{result}");
    for closed in [">&-", "2>&-", ">&- 2>&-"] {
        let raw = Sandbox::new(&ws).launcher(after(closed)).raw(sh("exit 3"));
        assert_eq!(raw.code(), 3, "{closed}: {}", raw.err());
    }
}

/// Output that its reader did not take in time is dropped, and a line says so.
#[test]
fn a_cut_drain_is_said() {
    let ws = Workspace::new("cut");
    let (_reader, writer) = unread();
    let raw = Sandbox::new(&ws)
        .stdout(writer)
        .with_result()
        .options(["--timeout", &common::paced(300)])
        .raw(sh("head -c 1000000 /dev/zero"));
    assert_eq!(raw.code(), 124, "{}", raw.err());
    assert!(raw.err().contains("stockade: output is incomplete"), "{}", raw.err());
    assert_eq!(raw.result.expect("a result file")["drain"], "cut");
    // The command is over, and a signal says that nobody will read the rest.
    let (_reader, writer) = unread();
    let (mut notes, errors) = unread();
    let live =
        Sandbox::new(&ws).stdout(writer).stderr(errors).spawn(sh("head -c 100000 /dev/zero; echo up >&2"));
    notes.read_exact(&mut [0; 3]).unwrap();
    live.signal(Signal::SIGTERM);
    let raw = live.finish(common::PATIENCE);
    assert!(!raw.overrun, "{raw:?}");
    let mut said = String::new();
    notes.read_to_string(&mut said).unwrap();
    assert!(said.contains("stockade: output is incomplete"), "{said}");
}

/// Handing over a result waits for its reader, and a signal ends the waiting.
#[test]
fn a_result_that_nobody_takes_can_be_given_up() {
    let ws = Workspace::new("untaken");
    let (_reader, writer) = unread();
    let result = common::home().join(common::unique("untaken"));
    let mut live = Sandbox::new(&ws)
        .stdout(writer)
        .options(["--json".as_ref(), "--result-file".as_ref(), result.as_os_str()])
        .spawn(sh("head -c 300000 /dev/zero | tr '\\0' x"));
    // The file is written first.
    assert!(common::await_that(common::PATIENCE, || result.exists()));
    assert!(live.is_running());
    live.signal(Signal::SIGTERM);
    let raw = live.finish(common::PATIENCE);
    assert_eq!((raw.overrun, raw.code()), (false, 128 + 15), "{raw:?}");
}

/// A hundred megabytes of errors to a reader who takes its time.
#[test]
fn a_flood_of_errors_is_exact() {
    let ws = Workspace::new("flood");
    let (mut notes, errors) = unread();
    let live = Sandbox::new(&ws).stderr(errors).spawn(sh("head -c 100000000 /dev/zero >&2; exit 3"));
    let (mut total, mut piece) = (0, vec![0; 1 << 16]);
    loop {
        let n = notes.read(&mut piece).unwrap();
        if n == 0 {
            break;
        }
        assert!(piece[..n].iter().all(|b| *b == 0), "{}", String::from_utf8_lossy(&piece[..n]));
        total += n;
        if total % (1 << 20) < n {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let raw = live.finish(common::PATIENCE);
    assert_eq!((raw.code(), total), (3, 100_000_000));
}

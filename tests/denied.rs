//! Why was it denied? A corpus of failing commands, half of them not the sandbox's fault, with precision and recall
//! printed and held above a bound; and hostile use of what answers refused system calls.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Run, Sandbox, Workspace, await_gone, sh, unique};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CORPUS: &str = include_str!("fixtures/denied/corpus.txt");
/// Of what is blamed on the sandbox, how much is its fault.
const PRECISION_MIN: f64 = 0.97;
/// Of what is its fault, how much is blamed on it.
const RECALL_MIN: f64 = 0.95;
/// Of what is blamed rightly, how much with the right kind and object.
const EXACT_MIN: f64 = 0.95;

struct Case {
    kind: &'static str,
    object: &'static str,
    script: &'static str,
}

fn corpus() -> Vec<Case> {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut fields = line.splitn(3, '\t');
            let mut field = || fields.next().expect("three fields");
            Case { kind: field(), object: field(), script: field() }
        })
        .collect()
}

/// Where the corpus runs.
struct Bench {
    ws: Workspace,
    away: Workspace,
    in_tmp: tempfile::NamedTempFile,
    served: TcpListener,
    free: u16,
}

impl Bench {
    fn new() -> Self {
        let (ws, away) = (Workspace::new("corpus"), Workspace::new("away"));
        away.file("data", "data");
        let tool = away.file("bin/hosttool", "#!/bin/sh\n");
        common::set_mode(std::path::Path::new(&tool), 0o755);
        let served = TcpListener::bind("127.0.0.1:0").unwrap();
        // Bound once, so that it was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let in_tmp = tempfile::Builder::new().prefix("stockade-corpus").tempfile_in("/tmp").unwrap();
        Self { ws, away, in_tmp, served, free }
    }

    fn filled(&self, text: &str) -> String {
        text.replace("{HOME}", &common::home().display().to_string())
            .replace("{H}", &self.away.path().display().to_string())
            .replace("{TMP}", &self.in_tmp.path().display().to_string())
            .replace("{PORT}", &self.served.local_addr().unwrap().port().to_string())
            .replace("{FREE}", &self.free.to_string())
    }

    /// A workspace of its own for each, so that none finds what another made.
    fn run(&self, n: usize, case: &Case) -> Run {
        let dir = |rest: &str| format!("w{n}/{rest}");
        self.ws.file(&dir(".git/HEAD"), "ref: refs/heads/main\n");
        self.ws.file(&dir(".git/config"), "[core]\n\trepositoryformatversion = 0\n");
        self.ws.file(&dir(".git/hooks/sample"), "");
        self.ws.dir(&dir(".git/objects"));
        self.ws.dir(&dir(".git/refs"));
        self.ws.file(&dir(".env"), "TOKEN=x\n");
        self.ws.file(&dir("a.txt"), "a\n");
        self.ws.file(&dir("dir/b.txt"), "b\n");
        self.ws.file(&dir("a.tar"), archive());
        let at = self.ws.at(&format!("w{n}"));
        let mut sandbox = Sandbox::bare().options(["-w", &at]).env("LC_ALL", "C");
        if case.kind.starts_with('~') {
            // A profile with toolchains would show what is on PATH.
            let path = format!("{}:{}", std::env::var("PATH").unwrap(), self.away.at("bin"));
            sandbox = sandbox.profile("strict").env("PATH", path);
        }
        if case.kind.starts_with('!') {
            sandbox = sandbox
                .set("limits.scratch", "1M")
                .set("limits.file_size", "8M")
                .set("limits.open_files", 40);
        }
        sandbox.run(sh(&self.filled(case.script)))
    }
}

/// A tar archive of one empty file.
fn archive() -> Vec<u8> {
    let mut block = vec![0u8; 512];
    block[..4].copy_from_slice(b"file");
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0001750");
    block[116..123].copy_from_slice(b"0001750");
    block[124..135].copy_from_slice(b"00000000000");
    block[136..147].copy_from_slice(b"00000000000");
    block[148..156].fill(b' ');
    block[156] = b'0';
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.resize(512 * 20, 0);
    block
}

fn findings(run: &Run) -> &Vec<Value> {
    run.json["denials"]["findings"].as_array().expect("findings")
}

#[cfg(target_arch = "x86_64")] // Some of the commands name calls by number.
#[test]
fn failures_are_explained_and_innocence_is_said() {
    let (cases, bench) = (corpus(), Bench::new());
    let guilty = cases.iter().filter(|case| case.kind != "-").count();
    assert_eq!((cases.len(), guilty), (200, 100), "half is not the sandbox's fault");
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(n) else { break done };
            done.push((n, bench.run(n, case)));
        }
    };
    let runs: Vec<(usize, Run)> = std::thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });

    let (mut right, mut blamed, mut exact, mut wrong) = (0u32, 0u32, 0u32, String::new());
    for (n, run) in &runs {
        let case = &cases[*n];
        if run.raw.code() == 0 {
            eprintln!("{} does not fail: {}", case.script, run.out());
            continue;
        }
        let denials = &run.json["denials"];
        let verdict = denials["verdict"].as_str().unwrap();
        let is_blamed = verdict == "sandbox";
        assert_eq!(is_blamed, !findings(run).is_empty(), "{}: {denials}", case.script);
        blamed += u32::from(is_blamed);
        let kind = case.kind.trim_start_matches(['!', '~']);
        let object = bench.filled(case.object);
        let fits = |f: &Value| f["kind"] == kind && (object == "?" || f["object"] == object.as_str());
        let ok = if case.kind == "-" { !is_blamed } else { is_blamed && findings(run).iter().any(fits) };
        if case.kind != "-" {
            right += u32::from(is_blamed);
            exact += u32::from(ok);
        }
        if !ok {
            let said: Vec<_> =
                findings(run).iter().map(|f| format!("{} {}", f["kind"], f["object"])).collect();
            let _ = writeln!(
                wrong,
                "{} {object} | {} | {verdict} {said:?} | {:?}",
                case.kind,
                case.script,
                run.err()
            );
        }
    }
    let (precision, recall) = (ratio(right, blamed), ratio(right, guilty as u32));
    let exactly = ratio(exact, right);
    eprintln!(
        "denied: 200 commands ({}): precision {precision:.3}, recall {recall:.3}, kind and object right {exactly:.3}\n{wrong}",
        if common::root() { "root" } else { "user" }
    );
    assert!(precision >= PRECISION_MIN && recall >= RECALL_MIN && exactly >= EXACT_MIN, "{wrong}");
}

fn ratio(part: u32, of: u32) -> f64 {
    f64::from(part) / f64::from(of.max(1))
}

/// What is said on a terminal or a pipe, beside the document.
#[test]
fn the_lines_name_object_and_grant() {
    let ws = Workspace::new("lines");
    ws.file(".git/config", "");
    let said = |script: &str| Sandbox::new(&ws).raw(sh(script)).err();
    let err = said("echo x >> .git/config");
    assert!(err.contains("denied (likely): .git/config is protected"), "{err}");
    assert!(err.contains("a profile would allow it: workspace.protect without \".git/config\""), "{err}");
    let err = said("unshare -U true");
    assert!(
        err.contains("denied: unshare(CLONE_NEWUSER) is refused") && err.contains("nothing allows it"),
        "{err}"
    );
    // Not a word where nobody looks, and nothing raw.
    assert!(!said("exit 1").contains("denied"));
    let err = said("printf 'cat: /usr/\\033]0;x\\007: Read-only file system\\n' >&2; exit 1");
    let ours = err.lines().find(|line| line.starts_with("stockade:")).expect(&err);
    assert!(!ours.contains('\u{1b}') && !ours.contains('\u{7}'), "{ours:?}");
}

/// Root could write it outside, so that it is the sandbox that keeps it from being written; an ordinary user could not.
#[test]
fn a_system_file_is_closed_by_the_sandbox_for_root_alone() {
    let ws = Workspace::new("system");
    for (script, object) in [("echo x >> /etc/hosts", "/etc/hosts"), ("touch /usr/bin/env", "/usr/bin/env")] {
        let run = Sandbox::new(&ws).run(sh(script));
        let found = findings(&run);
        assert_eq!(found.len(), usize::from(common::root()), "{script}: {}", run.json["denials"]);
        assert!(found.iter().all(|f| f["kind"] == "read_only" && f["object"] == object), "{found:?}");
    }
}

#[test]
fn what_succeeds_is_not_explained() {
    let ws = Workspace::new("fine");
    let run = Sandbox::new(&ws).run(sh("unshare -U true 2>/dev/null; true"));
    run.expect_exit(0);
    let denials = &run.json["denials"];
    assert_eq!((denials["verdict"].as_str(), findings(&run).len()), (Some("succeeded"), 0));
    assert_eq!(denials["refused_calls"]["first"][0]["call"], "unshare(CLONE_NEWUSER)", "{denials}");
}

/// bash asks with `getpeername` whether its input is a connection, at every start; without sockets that is refused, and nothing of it.
#[test]
fn a_shell_that_asks_about_its_input_is_not_blamed() {
    if !common::needs(common::limits_hold(), "strict requires limits") {
        return;
    }
    let ws = Workspace::new("strict-shell");
    let run = Sandbox::new(&ws).profile("strict").run(common::bash("exit 3"));
    run.expect_exit(3);
    let denials = &run.json["denials"];
    assert_eq!(denials["verdict"], "not_sandbox", "{denials}");
    assert_eq!(denials["refused_calls"]["total"], 0, "{denials}");
    // What it could only ask of a socket of its own is still told, with the socket.
    let run = Sandbox::new(&ws).profile("strict").run(common::bash("exec 3<>/dev/udp/127.0.0.1/9"));
    assert_eq!(findings(&run)[0]["object"], "socket(AF_INET)", "{}", run.json["denials"]);
}

/// Only where the caller has keys is it the sandbox that has none.
#[test]
fn a_key_that_is_not_found_is_the_sandboxs_fault_where_the_caller_has_keys() {
    let (ws, home) = (Workspace::new("signing"), Workspace::new("signing-home"));
    let run = || {
        let sandbox = Sandbox::new(&ws).env("HOME", home.path());
        sandbox.run(sh("echo 'gpg: signing failed: No secret key' >&2; exit 2"))
    };
    let without = run();
    assert_eq!(without.json["denials"]["verdict"], "not_sandbox", "{}", without.json["denials"]);
    home.dir(".gnupg/private-keys-v1.d");
    let with = run();
    let found = &findings(&with)[0];
    assert_eq!(
        (&found["kind"], &found["object"]),
        (&"private".into(), &"/home/agent/.gnupg".into()),
        "{found}"
    );
    assert!(found["grant"].is_null(), "{found}");
}

// ---- hostile use -------------------------------------------------------------------------------

#[test]
fn a_flood_is_answered_counted_and_told_once() {
    let ws = Workspace::new("flood");
    let under = ws.fixture("under");
    let run = Sandbox::new(&ws).run([under.as_str(), "loop", "20000"]);
    run.expect_exit(1);
    assert!(run.out().starts_with("20000 of 20000 refused"), "{}", run.out());
    let calls = &run.json["denials"]["refused_calls"];
    assert_eq!(calls["total"], 20000);
    assert_eq!(calls["first"].as_array().unwrap().len(), 1, "{calls}");
    eprintln!("denied: flood: {}", run.out().trim());
}

/// More kinds than are kept.
#[test]
fn at_most_64_are_kept() {
    let ws = Workspace::new("many");
    let many =
        "import os\nfor m in range(0, 0o7777):\n  try: os.chmod('f', 0o4000 | m)\n  except OSError: pass\n";
    let script = format!(
        "{many}import socket\nfor p in range(40, 200):\n  try: socket.socket(p, 3, p)\n  except OSError: pass\nraise SystemExit(1)"
    );
    ws.file("f", "");
    let run = Sandbox::new(&ws).run(["python3", "-c", &script]);
    run.expect_exit(1);
    let calls = &run.json["denials"]["refused_calls"];
    assert_eq!(calls["first"].as_array().unwrap().len(), 64, "{calls}");
    assert!(calls["total"].as_u64().unwrap() > 1000, "{calls}");
    assert!(findings(&run).len() <= 8);
}

/// A flood from many processes keeps neither a limit nor a signal waiting.
#[test]
fn a_flood_holds_up_no_end() {
    let ws = Workspace::new("endless");
    let under = ws.fixture("under");
    let script = format!("for i in 1 2 3 4; do {under} loop 100000000 & done; wait");
    let begun = Instant::now();
    let run = Sandbox::new(&ws).option("--timeout").option("1s").run(sh(&script));
    assert_eq!(run.limit(), Some("wall"), "{}", run.json);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    let live = Sandbox::new(&ws).spawn(sh(&format!("echo up; {script}")));
    live.expect_output("up");
    let begun = Instant::now();
    live.signal(Signal::SIGTERM);
    let raw = live.finish(Duration::from_secs(20));
    assert!(!raw.overrun && begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// Callers that are killed, or interrupted, while they wait for their answer.
#[test]
fn killed_callers_leave_nothing_waiting() {
    let ws = Workspace::new("racing");
    let under = ws.fixture("under");
    let script = format!(
        "for i in $(seq 60); do {under} loop 1000000 & p=$!; {under} loop 20 >/dev/null; kill -9 $p; wait $p; done; \
         {under} loop 100"
    );
    let run = Sandbox::new(&ws).run(["bash", "-c", &script]);
    run.expect_exit(1);
    assert!(run.out().contains("100 of 100 refused"), "{}", run.out());
    // Calls that were killed while they waited may or may not be counted; those that were answered are.
    assert!(run.json["denials"]["refused_calls"]["total"].as_u64().unwrap() >= 60 * 20 + 100);
}

#[test]
fn a_killed_owner_leaves_no_caller() {
    let ws = Workspace::new("orphans");
    let under = ws.fixture("under");
    let marker = unique("denied-orphan");
    let live = Sandbox::new(&ws)
        .spawn(sh(&format!("echo up; for i in 1 2 3; do {under} loop 100000000 {marker} & done; wait")));
    live.expect_output("up");
    std::thread::sleep(Duration::from_millis(200));
    live.signal(Signal::SIGKILL);
    let left = await_gone(&marker, Duration::from_secs(10));
    assert!(left.is_ok(), "{left:?}");
}

/// The command holds no listener, can have none, and cannot reach init's.
#[cfg(target_arch = "x86_64")] // Calls by number.
#[test]
fn the_listener_is_out_of_reach() {
    let ws = Workspace::new("reach");
    let script = "import os, ctypes, errno\n\
        held = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]\n\
        assert not any('seccomp' in name for name in held), held\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        def e(nr, *args):\n\
        \x20 return errno.errorcode[ctypes.get_errno()] if libc.syscall(nr, *args) < 0 else 'OK'\n\
        pid = libc.syscall(434, 1, 0)\n\
        print('pidfd_getfd', [e(438, pid, n, 0) for n in range(3, 30)][0])\n\
        try: print('fds', len(os.listdir('/proc/1/fd')))\n\
        except OSError as x: print('fds', errno.errorcode[x.errno])\n\
        class Filter(ctypes.Structure):\n\
        \x20 _fields_ = [('code', ctypes.c_uint16), ('jt', ctypes.c_uint8), ('jf', ctypes.c_uint8), ('k', ctypes.c_uint32)]\n\
        class Prog(ctypes.Structure):\n\
        \x20 _fields_ = [('len', ctypes.c_uint16), ('filter', ctypes.POINTER(Filter))]\n\
        allow = (Filter * 1)(Filter(6, 0, 0, 0x7fff0000))\n\
        prog = Prog(1, allow)\n\
        print('listener', e(317, 1, 8, ctypes.byref(prog)))\n\
        print('on top', e(157, 22, 2, ctypes.byref(prog)))\n\
        print('mount', e(165, 0, 0, 0, 0, 0))\n";
    let run = Sandbox::new(&ws).run(["python3", "-c", script]);
    run.expect_exit(0);
    let out = run.out();
    assert!(out.contains("pidfd_getfd EPERM"), "{out}");
    assert!(out.contains("fds EACCES") || out.contains("fds EPERM"), "{out}");
    assert!(!out.contains("listener OK"), "{out}");
    // An allowing filter of the command's own changes nothing: the strictest answers.
    assert!(out.contains("mount EPERM"), "{out}");
}

/// Where there can be no listener, or it cannot be taken, refusals are what they were; that nobody saw them is said.
#[test]
fn without_a_listener_the_filter_answers_by_itself() {
    let ws = Workspace::new("without");
    let under = ws.fixture("under");
    // A traced command waits for init to take its listener; others send it, which no filter above keeps them from.
    let run = Sandbox::new(&ws).launcher([under.as_str(), "no-getfd"]).run([under.as_str(), "loop", "100"]);
    assert_eq!(run.json["denials"]["refused_calls"]["total"], 100);
    let untaken = ("no-getfd", &["--trace-denials"][..], "keep init from taking it");
    for (how, options, why) in [("listener", &[][..], "another listener"), untaken] {
        let run = Sandbox::new(&ws).options(options).launcher([under.as_str(), how]).run([
            under.as_str(),
            "loop",
            "100",
        ]);
        run.expect_exit(1);
        assert!(run.out().starts_with("100 of 100 refused"), "{how}: {}", run.out());
        let denials = &run.json["denials"];
        assert_eq!(denials["listener"]["held"], false, "{how}: {denials}");
        assert!(denials["listener"]["why"].as_str().unwrap().contains(why), "{how}: {denials}");
        assert_eq!(denials["refused_calls"]["total"], Value::Null, "{how}");
        // The message still says it.
        let run =
            Sandbox::new(&ws).options(options).launcher([under.as_str(), how]).run(sh("unshare -U true"));
        let found = &findings(&run)[0];
        assert_eq!(
            (found["kind"].as_str(), found["evidence"].as_str()),
            (Some("call"), Some("likely")),
            "{how}"
        );
    }
}

// ---- --trace-denials ---------------------------------------------------------------------------

fn traced(run: &Run) -> &Vec<Value> {
    run.json["denials"]["traced"].as_array().expect("traced")
}

/// What says nothing is explained only by looking at its calls.
#[test]
fn a_traced_command_that_says_nothing_is_explained() {
    let ws = Workspace::new("silent");
    let away = Workspace::new("unseen");
    away.file("data", "data");
    let script = format!(
        "import os\ntry: os.mkdir('/usr/d')\nexcept OSError: pass\ntry: open('{}')\nexcept OSError: raise SystemExit(4)",
        away.at("data")
    );
    let plain = Sandbox::new(&ws).run(["python3", "-c", &script]);
    assert_eq!(plain.json["denials"]["verdict"], "not_sandbox");
    assert_eq!(plain.json["denials"]["traced"], Value::Null);
    let run = Sandbox::new(&ws).option("--trace-denials").run(["python3", "-c", &script]);
    run.expect_exit(4);
    let found = traced(&run);
    let has = |kind: &str, object: &str| found.iter().any(|f| f["kind"] == kind && f["object"] == object);
    assert!(has("read_only", "/usr/d") && has("absent", &away.at("data")), "{found:?}");
    assert_eq!(run.json["denials"]["verdict"], "sandbox");

    // What is said and seen is certain; a program that is not refused anything stays innocent.
    let run = Sandbox::new(&ws).option("--trace-denials").run(sh("touch /usr/x"));
    assert_eq!(findings(&run)[0]["evidence"], "observed", "{}", run.json["denials"]);
    let run = Sandbox::new(&ws).option("--trace-denials").run(sh("cat nope"));
    assert_eq!(run.json["denials"]["verdict"], "not_sandbox", "{}", run.json["denials"]);
}

/// Processes, threads, signals, job control and exit codes are a traced command's as they are any other's.
#[test]
fn a_traced_command_behaves_the_same() {
    let ws = Workspace::new("same");
    let scripts = [
        "for i in 1 2 3 4 5; do (exit $i) || echo $?; done; exit 3",
        "kill -TERM $$",
        "trap 'echo usr; exit 7' USR1; kill -USR1 $$; sleep 5",
        "sleep 100 & kill -STOP $!; kill -CONT $!; kill $!; wait $!; echo $?; exit 1",
        "set -m; (kill -STOP $BASHPID; echo woke) & sleep 0.3; fg >/dev/null; exit 5",
        "python3 -c 'import threading as t; a=[t.Thread(target=lambda: open(\"/etc/passwd\").read()) for _ in range(9)]; \
         [x.start() for x in a]; [x.join() for x in a]; print(len(a))'; exit 2",
        "(sleep 0.2; echo late) & disown; exit 6",
        "python3 -c 'import os; os.fork() or os.execvp(\"true\", [\"true\"]); os.wait(); os.abort()'",
    ];
    for script in scripts {
        let run = |traced: &[&str]| Sandbox::new(&ws).options(traced).run(common::bash(script));
        let (plain, traced) = (run(&[]), run(&["--trace-denials"]));
        assert_eq!(plain.json["outcome"], traced.json["outcome"], "{script}: {}", traced.err());
        assert_eq!(plain.out(), traced.out(), "{script}");
    }
}

/// A tracee cannot hold up limits, signals or the end, and gains nothing.
#[cfg(target_arch = "x86_64")] // Calls by number.
#[test]
fn a_traced_command_is_as_contained() {
    let ws = Workspace::new("held");
    let under = ws.fixture("under");
    let busy = format!("for i in 1 2 3; do {under} loop 100000000 & done; wait");
    let begun = Instant::now();
    let run = Sandbox::new(&ws).options(["--trace-denials", "--timeout", "1s"]).run(sh(&busy));
    assert_eq!(run.limit(), Some("wall"), "{}", run.json["outcome"]);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    let run = Sandbox::new(&ws).option("--trace-denials").run([under.as_str(), "loop", "200"]);
    assert!(run.out().starts_with("200 of 200 refused"), "{}", run.out());
    assert_eq!(run.json["denials"]["refused_calls"]["total"], 200);

    let marker = unique("denied-traced");
    let live = Sandbox::new(&ws)
        .option("--trace-denials")
        .spawn(sh(&format!("echo up; {under} loop 100000000 {marker} & wait")));
    live.expect_output("up");
    live.signal(Signal::SIGKILL);
    let left = await_gone(&marker, Duration::from_secs(10));
    assert!(left.is_ok(), "{left:?}");

    // Pointers to nowhere, and calls without a path.
    let wild = "import ctypes; l=ctypes.CDLL(None)\nfor nr in (2, 59, 82, 83, 257, 263, 268):\n  l.syscall(nr, 8, 8, 8, 8)\n\
        l.syscall(257, 12345, b'x', 0)\nraise SystemExit(1)";
    Sandbox::new(&ws).option("--trace-denials").run(["python3", "-c", wild]).expect_exit(1);
}

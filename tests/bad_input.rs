//! Bad input (20-sandbox §9): each gives a typed error before anything runs, leaves nothing behind, and says in
//! words what is wrong and what to do. The words are snapshots (`tests/snapshots/bad_input__*.snap`), with what
//! differs from run to run replaced.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Sandbox, Workspace, home, snapshot};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Replaces what differs between runs, users and machines.
fn filtered(text: &str, ws: &Workspace) -> String {
    let mut out = text.replace(ws.path().to_str().unwrap(), "[WS]");
    out = out
        .replace(home().to_str().unwrap(), "[HOME]")
        .replace(common::bin().to_str().unwrap(), "[STOCKADE]");
    if let Ok(real) = std::fs::canonicalize(home()) {
        out = out.replace(real.to_str().unwrap(), "[HOME]");
    }
    let mut words = String::new();
    for line in out.lines() {
        // Numbers that belong to the host: its limits.
        let number = |w: &str| w.len() >= 10 && w.bytes().all(|b| b.is_ascii_digit());
        let memory = |w: &str| w.starts_with('(') && w.ends_with("iB)");
        let word = |w| if number(w) || memory(w) { "[N]" } else { w };
        let line: Vec<&str> = line.split(' ').map(word).collect();
        words.push_str(&line.join(" "));
        words.push('\n');
    }
    words
}

thread_local! {
    static WRONG: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Fails with everything that [`refuse`] found in this test.
#[track_caller]
fn settle() {
    let wrong = WRONG.take();
    assert!(wrong.is_empty(), "{} inputs:\n{}", wrong.len(), wrong.join("\n"));
}

/// [`refuse_one`], whose failure is kept for [`settle`], so that one run shows all of them.
fn refuse(name: &str, code: i32, ws: &Workspace, sandbox: Sandbox, argv: &[OsString]) {
    let done =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| refuse_one(name, code, ws, sandbox, argv)));
    if let Err(panic) = done {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        WRONG.with_borrow_mut(|w| w.push(format!("{name}: {}", text.unwrap_or_default())));
    }
}

/// Runs, asserts the code, that the command never ran and that the workspace is what it was, and the message.
#[track_caller]
fn refuse_one(name: &str, code: i32, ws: &Workspace, sandbox: Sandbox, argv: &[OsString]) {
    let before = snapshot(ws.path(), &[]);
    let raw = sandbox.raw(argv);
    assert_eq!(raw.code(), code, "{name}: stdout {:?} stderr {:?}", raw.out(), raw.err());
    assert_eq!(
        common::differences(&before, &snapshot(ws.path(), &[])),
        Vec::<String>::new(),
        "{name}: something was left"
    );
    assert!(!common::contains(&raw.stdout, b"RAN"), "{name}: the command ran");
    assert!(!common::contains(&raw.stderr, b"panicked"), "{name}: {}", raw.err());
    insta::assert_snapshot!(name, format!("exit {}\n{}", raw.code(), filtered(&raw.err(), ws)));
}

fn ran() -> Vec<OsString> {
    vec!["sh".into(), "-c".into(), "echo RAN".into()]
}

#[test]
fn profiles() {
    let ws = Workspace::new("profiles");
    refuse("unknown_profile", 125, &ws, Sandbox::new(&ws).profile("nosuch"), &ran());
    refuse("profile_typo", 125, &ws, Sandbox::new(&ws).profile("ofline"), &ran());
    refuse("missing_profile_file", 125, &ws, Sandbox::new(&ws).profile("./nosuch.toml"), &ran());
    for (name, text) in [
        (
            "unknown_field",
            "version = 1\nname = \"x\"\nextends = \"offline\"\n\n[limits]\nmemroy = \"1GiB\"\n",
        ),
        ("not_toml", "version = \n"),
        ("wrong_version", "version = 99\nname = \"x\"\n"),
        (
            "wrong_type",
            "version = 1\nname = \"x\"\nextends = \"offline\"\n\n[limits]\nprocesses = \"many\"\n",
        ),
        (
            "unknown_call",
            "version = 1\nname = \"x\"\nextends = \"offline\"\n\n[seccomp]\nallow = [\"frobnicate\"]\n",
        ),
        (
            "dangerous_call",
            "version = 1\nname = \"x\"\nextends = \"offline\"\n\n[seccomp]\nallow = [\"mount\"]\n",
        ),
        (
            "unknown_set",
            "version = 1\nname = \"x\"\nextends = \"offline\"\n\n[seccomp]\nsets = [\"base\", \"nosuch\"]\n",
        ),
        ("extends_unknown", "version = 1\nname = \"offline\"\nextends = \"x\"\n"),
        (
            "capability",
            "version = 1\nname = \"x\"\nextends = \"offline\"\n\n[identity]\ncapabilities = [\"CAP_SYS_ADMIN\"]\n",
        ),
    ] {
        let other = Workspace::new("profile-file");
        let path = other.file("p.toml", text);
        let raw = Sandbox::new(&ws).profile(&path).raw(ran());
        assert_eq!(raw.code(), 125, "{name}: {}", raw.err());
        insta::assert_snapshot!(name, format!("exit {}\n{}", raw.code(), filtered(&raw.err(), &other)));
    }
    settle();
}

#[test]
fn settings() {
    let ws = Workspace::new("settings");
    for (name, setting) in [
        ("set_unknown", "limits.memroy=1GiB"),
        ("set_no_value", "limits.memory"),
        ("set_zero_memory", "limits.memory=0"),
        ("set_zero_processes", "limits.processes=0"),
        ("set_zero_wall", "limits.wall=0s"),
        ("set_zero_scratch", "limits.scratch=0"),
        ("set_zero_files", "limits.open_files=0"),
        ("set_beyond_host_memory", "limits.memory=1000TiB"),
        ("set_beyond_host_processes", "limits.processes=99999999999"),
        ("set_beyond_host_files", "limits.open_files=99999999"),
        ("set_negative", "limits.processes=-1"),
        ("set_unit", "limits.memory=3 bananas"),
        ("set_overflow", "limits.memory=99999999999999999999GiB"),
        ("set_widening", "network.posture=general"),
        ("set_widening_access", "limits.wall=100000h"),
        ("set_user", "identity.user=nobody"),
        ("set_require", "require.seccomp=prefer"),
    ] {
        refuse(name, 125, &ws, Sandbox::new(&ws).option("--set").option(setting), &ran());
    }
    refuse("timeout_zero", 125, &ws, Sandbox::new(&ws).options(["--timeout", "0s"]), &ran());
    refuse("timeout_word", 125, &ws, Sandbox::new(&ws).options(["--timeout", "soon"]), &ran());
    settle();
}

#[test]
fn mounts() {
    let ws = Workspace::new("mounts");
    ws.file("file", "x");
    std::os::unix::fs::symlink("loop-b", ws.path().join("loop-a")).unwrap();
    std::os::unix::fs::symlink("loop-a", ws.path().join("loop-b")).unwrap();
    std::os::unix::fs::symlink("nowhere", ws.path().join("dangling")).unwrap();
    let (loop_a, dangling) = (ws.at("loop-a"), ws.at("dangling"));
    let long = format!("/{}", "x".repeat(5000));
    let long_name = format!("/data/{}", "y".repeat(300));
    let cases: Vec<(&str, Vec<String>)> = vec![
        ("relative_target", vec!["--ro".into(), "/usr/share:data".into()]),
        ("dotdot_target", vec!["--ro".into(), "/usr/share:/data/../etc".into()]),
        (
            "duplicate_target",
            vec!["--ro".into(), "/usr/share:/data".into(), "--ro".into(), "/usr/lib:/data".into()],
        ),
        ("duplicate_tmpfs", vec!["--tmpfs".into(), "/data".into(), "--ro".into(), "/usr/lib:/data".into()]),
        ("source_vanished", vec!["--ro".into(), "/nonexistent/source:/data".into()]),
        ("source_loop", vec!["--ro".into(), format!("{loop_a}:/data")]),
        ("source_dangling", vec!["--ro".into(), format!("{dangling}:/data")]),
        ("target_root", vec!["--ro".into(), "/usr/share:/".into()]),
        ("target_over_workspace", vec!["--ro".into(), format!("/usr/share:{}", ws.path().display())]),
        ("too_long_source", vec!["--ro".into(), format!("{long}:/data")]),
        ("too_long_name", vec!["--ro".into(), format!("/usr/share:{long_name}")]),
        ("empty_source", vec!["--ro".into(), ":/data".into()]),
        ("empty_target", vec!["--ro".into(), "/usr/share:".into()]),
        ("tmpfs_size", vec!["--tmpfs".into(), "/data:lots".into()]),
        ("tmpfs_zero", vec!["--tmpfs".into(), "/data:0".into()]),
        ("rw_state_dir", vec!["--rw".into(), format!("{}:/data", common::state_dir().display())]),
        ("at_relative", vec!["--at".into(), "work".into()]),
        ("at_dotdot", vec!["--at".into(), "/work/../etc".into()]),
        ("at_etc", vec!["--at".into(), "/etc".into()]),
        ("at_home", vec!["--at".into(), "/home".into()]),
        ("at_var", vec!["--at".into(), "/var".into()]),
        ("root_missing", vec!["--root".into(), "/nonexistent/root".into()]),
        ("root_is_a_file", vec!["--root".into(), ws.at("file")]),
    ];
    // The state directory's name differs by process.
    for (name, words) in cases {
        if name == "rw_state_dir" {
            let raw = Sandbox::new(&ws).options(words).raw(ran());
            assert!(raw.code() == 125 || raw.code() == 0, "{}", raw.err());
            continue;
        }
        refuse(name, 125, &ws, Sandbox::new(&ws).options(words), &ran());
    }
    refuse(
        "strict_grants_nothing",
        125,
        &ws,
        Sandbox::new(&ws).profile("strict").options(["--ro", "/usr/share:/data"]),
        &ran(),
    );
    refuse(
        "read_only_grants_no_rw",
        125,
        &ws,
        Sandbox::new(&ws).profile("read-only").options(["--rw", &ws.at("")]),
        &ran(),
    );
    settle();
}

#[test]
fn workspaces() {
    let ws = Workspace::new("workspaces");
    ws.file("file", "x");
    std::os::unix::fs::symlink("nowhere", ws.path().join("dangling")).unwrap();
    refuse("workspace_missing", 125, &ws, Sandbox::bare().options(["-w", &ws.at("nosuch")]), &ran());
    refuse("workspace_is_a_file", 125, &ws, Sandbox::bare().options(["-w", &ws.at("file")]), &ran());
    refuse("workspace_dangling", 125, &ws, Sandbox::bare().options(["-w", &ws.at("dangling")]), &ran());
    refuse("workspace_is_root", 125, &ws, Sandbox::bare().options(["-w", "/"]), &ran());
    refuse("workspace_home_implicit", 125, &ws, Sandbox::bare().current_dir(home()), &ran());
    refuse("workspace_root_implicit", 125, &ws, Sandbox::bare().current_dir("/"), &ran());
    // A working directory that has vanished.
    let gone = Workspace::new("gone");
    let script =
        format!("mkdir '{0}/x' && cd '{0}/x' && rmdir '{0}/x' && exec \"$@\"", gone.path().display());
    refuse("cwd_vanished", 125, &ws, Sandbox::bare().launcher(["sh", "-c", &script, "sh"]), &ran());
    refuse("state_dir_relative", 125, &ws, Sandbox::new(&ws).options(["--state-dir", "state"]), &ran());
    // A place that the command could write to.
    refuse(
        "result_file_missing_dir",
        125,
        &ws,
        Sandbox::new(&ws).options(["--result-file", "/nonexistent/dir/result"]),
        &ran(),
    );
    refuse(
        "result_file_in_workspace",
        125,
        &ws,
        Sandbox::new(&ws).options(["--result-file", &ws.at("result.json")]),
        &ran(),
    );
    refuse("result_fd_closed", 125, &ws, Sandbox::new(&ws).options(["--result-fd", "77"]), &ran());
    settle();
}

#[test]
fn commands() {
    let ws = Workspace::new("commands");
    ws.file("plain", "echo RAN\n");
    let script = ws.file("orphan", "#!/nonexistent/interpreter\n");
    common::set_mode(std::path::Path::new(&script), 0o755);
    let garbage = ws.file("garbage", [0u8, 1, 2, 3]);
    common::set_mode(std::path::Path::new(&garbage), 0o755);
    ws.dir("directory");
    let one = |s: &str| vec![OsString::from(s)];
    refuse("command_missing", 127, &ws, Sandbox::new(&ws), &one("no-such-command-here"));
    refuse("command_missing_path", 127, &ws, Sandbox::new(&ws), &one("/usr/bin/no-such-command-here"));
    refuse("command_host_only", 127, &ws, Sandbox::new(&ws), &one("/opt/no/such"));
    refuse("command_not_executable", 126, &ws, Sandbox::new(&ws), &one(&ws.at("plain")));
    refuse("command_directory", 126, &ws, Sandbox::new(&ws), &one(&ws.at("directory")));
    refuse("command_no_interpreter", 126, &ws, Sandbox::new(&ws), &one(&script));
    refuse("command_garbage", 126, &ws, Sandbox::new(&ws), &one(&garbage));
    refuse("command_empty", 125, &ws, Sandbox::new(&ws), &one(""));
    // Too many arguments for the kernel inside, few enough for the one that starts stockade: what stockade adds
    // to the environment and a single argument over 128 KiB can't be passed through at all (the host refuses).
    let many: Vec<OsString> = std::iter::once("true".into())
        .chain(std::iter::repeat_n(OsString::from("x".repeat(100_000)), 20))
        .collect();
    let raw = Sandbox::new(&ws).launcher(["bash", "-c", "ulimit -s 262144; exec \"$@\"", "bash"]).raw(many);
    assert!([0, 126].contains(&raw.code()), "{} {}", raw.code(), raw.err());
    let raw = Sandbox::new(&ws).raw(common::sh("exit 125"));
    assert_eq!((raw.code(), raw.err()), (125, String::new()), "a command's own 125 is no fault of ours");
    settle();
}

/// Non-UTF-8 names are accepted and preserved; results carry them as bytes.
#[test]
fn odd_names_are_no_errors() {
    let ws = Workspace::new("odd");
    let odd = OsString::from_vec(b"n\xff\xfe\nx".to_vec());
    let dir = ws.path().join(&odd);
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("f"), "x").unwrap();
    let mut option = dir.clone().into_os_string();
    option.push(":/data");
    let raw = Sandbox::new(&ws).option("--ro").option(option).raw([OsString::from("cat"), "/data/f".into()]);
    assert_eq!((raw.code(), raw.out()), (0, "x".into()), "{}", raw.err());
    let raw = Sandbox::bare().option("-w").option(&dir).raw(common::sh("pwd; cat f"));
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert!(common::contains(&raw.stdout, odd.as_encoded_bytes()));
    let mut value = OsString::from("ODD=");
    value.push(OsString::from_vec(vec![0xff, 0x80]));
    let raw = Sandbox::new(&ws).option("--env").option(value).raw(common::sh("printf %s \"$ODD\""));
    assert_eq!((raw.code(), raw.stdout.as_slice()), (0, [0xff, 0x80].as_slice()));
    let raw =
        Sandbox::new(&ws).raw([OsString::from("printf"), "%s".into(), OsString::from_vec(vec![b'a', 0xfe])]);
    assert_eq!((raw.code(), raw.stdout.as_slice()), (0, [b'a', 0xfe].as_slice()));
}

/// The document of a refusal is a document as well.
#[test]
fn refusals_as_json() {
    let ws = Workspace::new("refusals");
    let run = Sandbox::new(&ws).profile("nosuch").run(ran());
    assert_eq!(run.kind(), "refused", "{}", run.json);
    for key in ["code", "boundary", "stage", "message", "hint"] {
        assert!(run.json["outcome"][key].is_string(), "{key}: {}", run.json["outcome"]);
    }
    assert_eq!(run.json["exit_code"], 125);
    for (command, code) in [("no-such-command-here", 127), ("/etc/passwd", 126)] {
        let run = Sandbox::new(&ws).run([command]);
        assert_eq!(run.raw.code(), code, "{}", run.json["outcome"]);
        assert_eq!(run.json["exit_code"], code);
    }
    // Setup failure, refusal, limit, failure and success never share an outcome.
    let kinds: Vec<String> = [
        Sandbox::new(&ws).run(["true"]),
        Sandbox::new(&ws).run(["false"]),
        Sandbox::new(&ws).options(["--timeout", "300ms"]).run(["sleep", "10"]),
        Sandbox::new(&ws).profile("nosuch").run(["true"]),
        Sandbox::new(&ws).run(["no-such-command-here"]),
    ]
    .iter()
    .map(|r| {
        format!(
            "{} {} {} {}",
            r.json["outcome"]["kind"],
            r.json["outcome"]["exit_code"],
            r.json["outcome"]["code"],
            r.json["limit"]["name"]
        )
    })
    .collect();
    let mut unique = kinds.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), kinds.len(), "{kinds:?}");
}

/// `--dry-run` runs nothing and needs nothing of the host's permission.
#[test]
fn dry_run_runs_nothing() {
    let ws = Workspace::new("dry");
    let raw = Sandbox::new(&ws).options(["--dry-run", "--json"]).raw(common::sh("echo RAN > ran"));
    assert_eq!(raw.code(), 0, "{}", raw.err());
    assert!(!ws.path().join("ran").exists());
    let _: serde_json::Value = serde_json::from_slice(&raw.stdout).expect("a plan");
    let again = Sandbox::new(&ws).options(["--dry-run", "--json"]).raw(common::sh("echo RAN > ran"));
    assert_eq!(raw.stdout, again.stdout, "the plan is canonical");
}

/// Room for stockade itself: too few descriptors or too small a stack is refused in words, never by a crash, and what
/// the caller may raise is raised.
#[test]
fn the_callers_own_limits() {
    let ws = Workspace::new("own-limits");
    let run = |limit: &str| {
        let script = format!("ulimit {limit} && exec \"$@\"");
        Sandbox::new(&ws).launcher(["bash", "-c", &script, "bash"]).raw(ran())
    };
    for (limit, says, remedy) in [
        ("-n 16", "left of the limit of 16", "ulimit -n 1024"),
        ("-n 4", "left of the limit of 4", "ulimit -n 1024"),
        ("-s 40", "the limit on the stack is below", "ulimit -s "),
    ] {
        let raw = run(limit);
        assert_eq!(raw.code(), 125, "{limit}: {raw:?}");
        assert!(raw.stdout.is_empty(), "{limit}: {raw:?}");
        assert!(raw.err().contains(says) && raw.err().contains(remedy), "{limit}: {}", raw.err());
    }
    // As small as a profile's limits.stack may be, and what may be raised.
    for limit in ["-s 128", "-S -s 40", "-S -n 16"] {
        let raw = run(limit);
        assert_eq!((raw.code(), raw.out()), (0, "RAN\n".into()), "{limit}: {}", raw.err());
    }
    // What is said to be needed is enough, for every command.
    let at = common::text(ws.path());
    for args in [
        &["exec", "-w", &at, "--verify", "live", "--json", "--", "true"][..],
        &["exec", "--bogus"],
        &["policy", "explain", "--json"],
        &["policy", "schema", "result"],
        &["policy", "lint", "strict"],
        &["doctor", "--json"],
        &["--help"],
    ] {
        let with = |kib: &str| {
            let mut command = std::process::Command::new("bash");
            command.args(["-c", "ulimit -s \"$0\" && exec \"$@\"", kib]).arg(common::bin()).args(args);
            command.env("STOCKADE_STATE", common::state_dir()).current_dir(ws.path());
            common::bounded(command, common::PATIENCE)
        };
        let said = with("40").err();
        let needed = said.split("below the ").nth(1).and_then(|rest| rest.split("KiB").next());
        let raw = with(needed.unwrap_or_else(|| panic!("{args:?}: {said}")));
        let died = ["stack is below", "by signal"].iter().any(|words| raw.err().contains(words));
        assert!(raw.code() < 128 && !died, "{args:?}: {raw:?}");
    }
    // Descriptors that run out later: the remedy is the cause's, not the step's.
    let sources = Workspace::new("own-limits-sources");
    let binds = (0..100).flat_map(|n| ["--ro".to_owned(), sources.dir(&format!("d{n}"))]);
    let raw = Sandbox::new(&ws)
        .launcher(["bash", "-c", "ulimit -n 100 && exec \"$@\"", "bash"])
        .options(binds)
        .raw(ran());
    assert_eq!(raw.code(), 125, "{}", raw.err());
    assert!(raw.err().contains("Too many open files"), "{}", raw.err());
    assert!(raw.err().contains("hint: raise the limit on open files: ulimit -n"), "{}", raw.err());
    // A limit on the size of files: an error, not SIGXFSZ.
    let raw = run("-f 0");
    assert_eq!(raw.code(), 125, "{raw:?}");
    assert!(raw.err().contains("File too large"), "{}", raw.err());
}

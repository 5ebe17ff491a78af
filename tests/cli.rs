//! The command line through the binary: what people read, byte for byte. Runs nothing in a sandbox; the few lines that
//! depend on the host (its kernel, its paths, what it lacks) are replaced before comparing.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test stops at the first surprise")]

#[path = "common/place.rs"]
mod place;

use place::{Place, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

#[test]
fn help() {
    let place = Place::new();
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help_exec", &["exec", "--help"]),
        ("help_policy", &["policy", "--help"]),
        ("help_explain", &["policy", "explain", "--help"]),
        ("help_caches", &["caches", "--help"]),
        ("help_caches_remove", &["caches", "remove", "--help"]),
        ("help_doctor", &["doctor", "--help"]),
    ] {
        insta::assert_snapshot!(name, place.says(args));
    }
}

#[test]
fn wrong_arguments() {
    let place = Place::new();
    let mut all = String::new();
    for args in [
        &[][..],
        &["frobnicate"],
        &["exec"],
        &["exec", "--"],
        &["exec", "--josn", "true"],
        &["exec", "--verify", "never", "true"],
        &["exec", "--result-fd", "x", "true"],
        &["exec", "--dry-run", "--result-fd", "3", "true"],
        &["exec", "--profile", "a", "--profile", "b", "true"],
        &["policy"],
        &["policy", "shwo"],
        &["policy", "show", "a", "b"],
        &["doctor", "--fix"],
        &["caches"],
        &["caches", "remove", "crago"],
        &["caches", "remove", "--all", "-w", "."],
    ] {
        all.push_str(&format!("$ stockade {}\n{}\n", args.join(" "), place.says(args)));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn without_kept_layers_there_is_nothing_to_list_or_remove() {
    let place = Place::new();
    for args in
        [&["caches", "list"][..], &["caches", "remove", "--all"], &["caches", "remove", "-w", "nosuch"]]
    {
        let output = place.run(args);
        let said = (output.status.code(), String::from_utf8(output.stdout).unwrap());
        assert_eq!(said, (Some(0), "nothing is kept\n".to_owned()), "{args:?}");
    }
    assert_eq!(json(&place.run(&["caches", "list", "--json"]).stdout)["caches"], serde_json::json!([]));
    assert!(!place.at("state").exists(), "nor is anything made");
}

#[test]
fn bad_input_has_its_message_and_runs_nothing() {
    let place = Place::new();
    place.write("home/.config/stockade/profiles/broken.toml", "version = 1\n[limits]\nmemroy = \"1GiB\"\n");
    place.write("tree/big.toml", &"#".repeat(70_000));
    place.write("tree/file", "");
    place.write(
        "home/.config/stockade/profiles/narrow.toml",
        "version = 1\nextends = \"offline\"\n[grants]\nenv = []\ntmpfs = false\n",
    );
    symlink("loop", place.at("tree/loop")).unwrap();
    symlink("nowhere", place.at("link")).unwrap();
    std::fs::create_dir(place.at("tree/dir")).unwrap();
    let long = format!("/{}", "x".repeat(300));
    let mut all = String::new();
    for args in [
        &["--profile", "nosuch"][..],
        &["--profile", "ofline"],
        &["--profile", "No Name"],
        &["--profile", "./nosuch.toml"],
        &["--profile", "./dir"],
        &["--profile", "big.toml"],
        &["--profile", "broken"],
        &["-w", "nosuch"],
        &["-w", "loop"],
        &["-w", "file"],
        &["-w", "/"],
        &["--at", "relative"],
        &["--at", "/a/../b"],
        &["--at", "/proc/x"],
        &["--cwd", ""],
        &["--ro", "nosuch"],
        &["--ro", "/nosuch"],
        &["--ro", "/usr:lib"],
        &["--ro", "/usr:/x", "--ro", "/usr/lib:/x"],
        &["--ro", &long],
        &["--rw", "loop"],
        &["--tmpfs", "cache"],
        &["--tmpfs", "/cache:lots"],
        &["--tmpfs", "/cache:0"],
        &["--env", "1X=secret"],
        &["--env", "NOT_THERE"],
        &["--set", "limits.memory"],
        &["--set", "limits.memory=0"],
        &["--set", "limits.cpu=999999%"],
        &["--set", "limits.processes=0"],
        &["--set", "seccomp.allow=[\"frobnicate\"]"],
        &["--set", "network.posture=general"],
        &["--timeout", "2h"],
        &["--timeout", "0"],
        &["--timeout", "soon"],
        &["--profile", "narrow", "--env", "A=b"],
        &["--profile", "narrow", "--tmpfs", "/cache"],
        &["--state-dir", "relative"],
        &["--result-fd", "1"],
        &["--result-fd", "77"],
        &["--result-file", "result.json"],
        &["--result-file", "nosuch/result.json"],
        &["--result-file", "../link"],
    ] {
        let line: Vec<&str> =
            ["exec"].into_iter().chain(args.iter().copied()).chain(["--", "true"]).collect();
        let shown = args.join(" ").replace(&long, "/xxx…");
        all.push_str(&format!("$ stockade exec {shown} -- true\n{}\n", place.says(&line)));
    }
    insta::with_settings!({ filters => vec![(r"[0-9]+ CPUs", "[N] CPUs")] }, {
        insta::assert_snapshot!(all);
    });
    let live = place.at("state/live");
    assert!(!live.exists() || std::fs::read_dir(live).unwrap().next().is_none());
}

#[test]
fn a_current_directory_that_is_gone() {
    let place = Place::new();
    let script =
        format!("rmdir {0} && exec {1} exec -- true", place.at("tree").display(), place::bin().display());
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).current_dir(place.at("tree")).env("STOCKADE_STATE", place.at("state"));
    insta::assert_snapshot!(place.transcript(&command.output().unwrap()));
}

#[test]
fn names_that_are_no_text_and_escapes_reach_no_terminal() {
    let place = Place::new();
    let odd = OsString::from_vec(b"a\x1b]0;owned\x07\n\xff".to_vec());
    for flag in [
        "--profile",
        "-w",
        "--at",
        "--ro",
        "--tmpfs",
        "--env",
        "--set",
        "--timeout",
        "--result-file",
        "--bogus",
    ] {
        let mut command = place.command(&["exec"]);
        command.arg(flag).arg(&odd).args(["--", "true"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{flag}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{flag}: {text:?}");
        assert!(text.starts_with("stockade: ") && text.lines().count() <= 2, "{flag}: {text}");
    }
}

#[test]
fn results_of_refusals_are_documents_too() {
    let place = Place::new();
    let output = place.run(&["exec", "--json", "-w", "nosuch", "--", "true"]);
    let document = json(&output.stdout);
    assert_eq!(document["schema"], "stockade.result/1");
    assert_eq!(document["outcome"]["kind"], "refused");
    assert_eq!(document["outcome"]["code"], "workspace_unreachable");
    assert_eq!((document["exit_code"].as_u64(), output.status.code()), (Some(125), Some(125)));
    assert_eq!(document["run_id"], serde_json::Value::Null);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("stockade: configuration/workspace: "));

    let path = place.at("result.json");
    let path = path.to_str().unwrap();
    let output = place.run(&["exec", "--result-file", path, "--set", "nosuch=1", "--", "true"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0));
    assert_eq!(json(&std::fs::read(path).unwrap())["outcome"]["code"], "unknown_key");

    // A result that cannot be delivered is said to be lost.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output =
        place.command(&["exec", "--json", "--set", "nosuch=1", "--", "true"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("nothing of the command ran; its exit code would have been 125"), "{text}");
}

#[test]
fn who_reads_no_further_is_no_fault() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = place.command(&["policy", "schema"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn profiles_listed_and_shown() {
    let place = Place::new();
    insta::assert_snapshot!("list", place.says(&["policy", "list"]));
    place.write(
        "home/.config/stockade/profiles/offline.toml",
        "version = 1\nextends = \"offline\"\nsummary = \"mine\"\n",
    );
    place.write("home/.config/stockade/profiles/broken.toml", "version = 2\n");
    insta::assert_snapshot!("list_with_own", place.says(&["policy", "list"]));
    insta::assert_snapshot!("show", place.says(&["policy", "show"]));
    let shown = json(&place.run(&["policy", "show", "--json"]).stdout);
    assert_eq!(shown["origins"][0]["kind"], "user");
    assert_eq!(shown["policy"]["name"], "offline");
    insta::assert_snapshot!("show_unknown", place.says(&["policy", "show", "opne"]));
    // XDG_CONFIG_HOME moves the user's place.
    let output =
        place.command(&["policy", "show", "--json"]).env("XDG_CONFIG_HOME", "/nonexistent").output().unwrap();
    assert_eq!(json(&output.stdout)["origins"][0]["kind"], "embedded");
    let schema = json(&place.run(&["policy", "schema"]).stdout);
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(json(&place.run(&["policy", "schema", "result"]).stdout)["type"], "object");
}

#[test]
fn explained() {
    let place = Place::new();
    if !place.plans() {
        return;
    }
    std::fs::create_dir_all(place.at("tree/.git/hooks")).unwrap();
    place.write("tree/.git/config", "");
    place.write("tree/.env", "SECRET=1");
    place.write("tree/.stockade/profile.toml", "version = 1\n[limits]\nmemory = \"512MiB\"\n");
    let text = place.says(&["policy", "explain"]);
    insta::with_settings!({ filters => vec![
        (r"sha256:[0-9a-f]{64}", "[DIGEST]"),
        (r"Linux [^\n]+", "Linux [KERNEL]"),
        (r"(  built +)(?s:.*?)(\nWhat the command sees)", "$1[HOW]\n$2"),
        (r"(  readable +)(?s:.*?)(\n  writable)", "$1[HOST]$2"),
        (r"(  made for it +)(?s:.*?)(\n  hidden)", "$1[HOST]$2"),
        (r"(  landlock +)[^\n]+", "$1[ABI]"),
        (r"(  system calls +)(?s:.*?)(\n    from)", "$1[COUNTS]$2"),
        (r"(    refused by name +)(?s:.*?)(\n  landlock)", "$1[NAMES]$2"),
        (r"(  open files +)[0-9]+", "$1[NUMBER]"),
        (r"(?s)  not to be had here .*?(\n  the caller may add)", "  [GAPS]$1"),
        (r"\n  note +a newer kernel[^\n]+", ""),
    ] }, {
        insta::assert_snapshot!("explain", text);
    });
    let explained = json(&place.run(&["policy", "explain", "--json"]).stdout);
    assert_eq!(explained["schema"], "stockade.explain/1");
    assert_eq!(explained["origins"][1]["kind"], "project");
    let work = place.at("tree");
    let hidden = explained["hidden"].as_array().unwrap();
    assert!(hidden.iter().any(|h| h == work.join(".env").to_str().unwrap()), "{hidden:?}");
    assert!(!place.at("state").exists(), "explaining leaves nothing");
}

#[test]
fn a_dry_run_prints_the_plan_and_leaves_nothing() {
    let place = Place::new();
    if !place.plans() {
        return;
    }
    let output = place.run(&["exec", "--dry-run", "--json", "--env", "A=b", "--", "make", "-j4"]);
    let plan = json(&output.stdout);
    assert_eq!(plan["containment"]["schema"], "stockade.plan/1");
    assert_eq!(plan["command"]["argv"], serde_json::json!(["make", "-j4"]));
    let canonical = stockade::base::canonical_json(&plan).unwrap();
    assert_eq!(output.stdout.strip_suffix(b"\n").unwrap(), canonical);
    let digest = stockade::base::Digest::of_canonical(&plan["containment"]).unwrap();
    assert_eq!(plan["plan_digest"], digest.to_string());
    let again = place.run(&["exec", "--dry-run", "--json", "--env", "A=b", "--", "make", "-j4"]);
    assert_eq!(output.stdout, again.stdout);
    let words = place.run(&["exec", "--dry-run", "--", "make", "a b"]);
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains("  runs                  make  'a b'\n"), "{words}");
    assert!(!place.at("state").exists() && std::fs::read_dir(place.at("tree")).unwrap().next().is_none());
}

#[test]
fn the_doctor_answers_by_its_exit_code() {
    let place = Place::new();
    let output = place.run(&["doctor", "--json"]);
    let report = json(&output.stdout);
    assert_eq!(report["schema"], "stockade.doctor/1");
    let runs = report["default_profile_runs"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!runs)));
    for check in report["checks"].as_array().unwrap() {
        let works = check["works"].as_bool().unwrap();
        assert_eq!(check.get("why").is_some(), !works, "{check}");
    }
    // A state directory that others may change: nothing can run.
    let bad = place.at("bad");
    std::fs::create_dir(&bad).unwrap();
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let output = place.run(&["doctor", "--state-dir", bad.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("state directory  MISSING  lost: records of runs"), "{text}");
}

#[test]
fn the_documents_name_the_flags_that_exist() {
    let help = String::from_utf8(Place::new().run(&["exec", "--help"]).stdout).unwrap();
    for flag in ["--profile", "--workspace", "--result-fd", "--verify", "--state-dir"] {
        assert!(help.contains(flag), "{flag}");
    }
    assert!(Path::new(OsStr::new(env!("CARGO_MANIFEST_DIR"))).join("docs/exit-codes.md").exists());
}

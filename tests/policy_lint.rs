//! `stockade policy lint`, `init` and `diff` through the binary: what people and programs read, exit codes, and that
//! paths of this host are judged by where they lead.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test stops at the first surprise")]

#[path = "common/place.rs"]
mod place;

use place::{Place, json};
use serde_json::Value;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// `(code, key, line)` of each finding.
fn found(output: &Output) -> Vec<(String, String, u64)> {
    let document = json(&output.stdout);
    assert_eq!(document["schema"], "stockade.lint/1");
    let row = |f: &Value| {
        let text = |key: &str| f[key].as_str().unwrap_or_default().to_owned();
        (text("code"), text("key"), f["line"].as_u64().unwrap())
    };
    document["findings"].as_array().unwrap().iter().map(row).collect()
}

fn codes(output: &Output) -> Vec<String> {
    found(output).into_iter().map(|(code, ..)| code).collect()
}

const MINE: &str = "home/.config/stockade/profiles/mine.toml";

fn bind(source: &str, more: &str) -> String {
    format!(
        "version = 1\nextends = \"offline\"\n[[mounts]]\ntype = \"bind\"\nsource = \"{source}\"\ntarget = \"/m\"\n{more}"
    )
}

#[test]
fn help() {
    let place = Place::new();
    for name in ["lint", "init", "diff"] {
        insta::assert_snapshot!(format!("help_{name}"), place.says(&["policy", name, "--help"]));
    }
}

#[test]
fn the_shipped_profiles_are_clean() {
    let place = Place::new();
    insta::assert_snapshot!("clean", place.says(&["policy", "lint"]));
    for dir in [place.at("tree"), place.at("home"), "/".into()] {
        let output =
            place.command(&["policy", "lint", "--deny", "warning"]).current_dir(dir).output().unwrap();
        assert_eq!(code(&output), 0);
    }
    // Who has a directory of the workspace on the PATH is told.
    let bin = format!("/usr/bin:{}", place.at("tree/bin").display());
    let output = place.command(&["policy", "lint", "offline", "--json"]).env("PATH", bin).output().unwrap();
    assert_eq!((code(&output), codes(&output)), (0, vec!["SL005".to_owned()]));
    for (name, deny, wanted) in
        [("offline", "note", 0), ("strict", "note", 0), ("read-only", "note", 0), ("open", "note", 1)]
    {
        assert_eq!(code(&place.run(&["policy", "lint", name, "--deny", deny])), wanted, "{name}");
    }
}

#[test]
fn faults_of_every_place_on_the_search_path() {
    let place = Place::new();
    place.write(
        MINE,
        "version = 1\nextends = \"offline\"\n\n[limits]\nmemory = \"none\"\n\n[env]\npass = [\"...\", \"GITHUB_TOKEN\", \"FOO_*\", \"FOO_BAR\"]\n\n\
         [[mounts]]\ntype = \"bind\"\nsource = \"/var/run/docker.sock\"\ntarget = \"/docker.sock\"\noptional = true\n",
    );
    place.write("home/.config/stockade/profiles/open.toml", "version = 1\nextends = \"open\"\n");
    place.write("tree/.stockade/profile.toml", "version = 1\nworkspace.hide = [\"secret?\"]\n");
    let text = place.says(&["policy", "lint"]);
    // Whether this host has an engine is its own affair.
    insta::with_settings!({ filters => vec![(r" \(which is `/run/docker.sock`\)", "")] }, {
        insta::assert_snapshot!("faults", text);
    });
    assert_eq!(text, place.says(&["policy", "lint"]), "the same each time");

    for (deny, wanted) in [("error", 1), ("warning", 1), ("note", 1)] {
        assert_eq!(code(&place.run(&["policy", "lint", "mine", "--deny", deny])), wanted);
    }
    for (deny, wanted) in [("error", 0), ("warning", 1)] {
        let project = ["policy", "lint", ".stockade/profile.toml", "--deny", deny];
        assert_eq!(code(&place.run(&project)), wanted);
    }
    let output = place.run(&["policy", "lint", "--json"]);
    let document = json(&output.stdout);
    assert_eq!((document["denied"].as_bool(), code(&output)), (Some(true), 1));
    assert_eq!((document["counts"]["error"].as_u64(), document["profiles"].as_u64()), (Some(2), Some(8)));
    let first = &document["findings"][0];
    for key in ["code", "name", "severity", "file", "line", "column", "key", "message", "about", "remedy"] {
        assert!(!first[key].is_null(), "{key}: {first}");
    }
    // Findings of a project's file lie in that file, whatever profile it narrows.
    let project = found(&place.run(&["policy", "lint", ".stockade/profile.toml", "--json"]));
    assert_eq!(project, [("SL018".to_owned(), "workspace.hide[0]".to_owned(), 2)]);
}

#[test]
fn what_cannot_be_loaded_is_no_finding_and_hides_none() {
    let place = Place::new();
    place.write(MINE, "version = 1\nextends = \"offline\"\nlimits.memory = \"none\"\n");
    place.write("home/.config/stockade/profiles/broken.toml", "version = 1\nlimits.memroy = \"1GiB\"\n");
    place.write("tree/.stockade/profile.toml", "version = 1\nlimits.wall = \"2h\"\n");
    std::fs::create_dir(place.at("home/.config/stockade/profiles/dir.toml")).unwrap();
    insta::assert_snapshot!("unloaded", place.says(&["policy", "lint", "--deny", "note"]));
    let output = place.run(&["policy", "lint", "--json"]);
    assert_eq!((code(&output), json(&output.stdout)["faults"].as_array().unwrap().len()), (2, 3));
    for args in [
        &["nosuch"][..],
        &["./nosuch.toml"],
        &["strict", "nosuch"],
        &["--deny", "all"],
        &["tree/.stockade/profile.toml"],
    ] {
        let line: Vec<&str> = ["policy", "lint"].iter().chain(args).copied().collect();
        assert_eq!(code(&place.run(&line)), 2, "{args:?}");
    }
    assert_eq!(code(&place.run(&["policy", "lint", "mine"])), 0, "a warning");
}

#[test]
fn paths_are_judged_by_where_they_lead() {
    let place = Place::new();
    let at = |name: &str| place.at(name).to_str().unwrap().to_owned();
    let _engine = UnixListener::bind(place.at("engine.sock")).unwrap();
    let _other = UnixListener::bind(place.at("other.sock")).unwrap();
    for dir in ["tools", "state/live", "cache"] {
        std::fs::create_dir_all(place.at(dir)).unwrap();
    }
    for (to, link) in [
        ("engine.sock", "link"),
        ("home", "alias"),
        ("tools", "bin"),
        ("/sys/fs/cgroup", "cg"),
        ("/proc", "pr"),
        ("/", "everything"),
        ("/var/run", "rt"),
        ("state", "st"),
        ("tree", "ok"),
    ] {
        symlink(to, place.at(link)).unwrap();
    }
    let lint = |source: &str, more: &str| {
        place.write("p.toml", &bind(source, more));
        let mut command = place.command(&["policy", "lint", &at("p.toml"), "--json"]);
        command.env("DOCKER_HOST", format!("unix://{}", at("engine.sock")));
        command.env("PATH", format!("/usr/bin:/bin:{}", at("tools")));
        let output = command.output().unwrap();
        for (code, key, line) in found(&output) {
            assert_eq!((key.as_str(), line), ("mounts[0].source", 5), "{code} {source}");
        }
        codes(&output)
    };
    let rw = "writable = true\n";
    assert_eq!(lint(&at("link"), ""), ["SL001"]);
    assert_eq!(lint(&at("other.sock"), ""), ["SL003"]);
    assert_eq!(lint(&at("alias"), "")[..1], ["SL008"]);
    assert_eq!(lint(&at("everything"), "")[..1], ["SL008"]);
    assert_eq!(lint(&at("bin"), rw), ["SL005"]);
    assert_eq!(lint(&at("bin"), ""), Vec::<String>::new());
    assert!(lint(&at("cg"), rw).contains(&"SL007".to_owned()));
    assert!(lint(&at("pr"), "").contains(&"SL007".to_owned()));
    assert!(lint(&at("rt"), "").starts_with(&["SL001".to_owned(), "SL002".to_owned()]));
    assert_eq!(lint(&at("st/live"), ""), ["SL004"]);
    assert_eq!(lint(&at("absent"), ""), ["SL013"]);
    assert_eq!(lint(&at("absent"), "optional = true\n"), Vec::<String>::new());
    assert_eq!(lint(&at("ok"), rw), Vec::<String>::new());
    assert_eq!(lint(&at("cache"), rw), Vec::<String>::new());
}

#[test]
fn a_grant_through_a_link_counts_where_only_root_can_have_made_it() {
    let place = Place::new();
    // In a workspace a command may have made it.
    std::fs::create_dir(place.at("tree/data")).unwrap();
    symlink("data", place.at("tree/link")).unwrap();
    let link = place.at("tree/link");
    place.write(
        "p.toml",
        &format!("version = 1\nextends = \"offline\"\ngrants.ro = [\"{}\"]\n", link.display()),
    );
    let profile = place.at("p.toml");
    let profile = profile.to_str().unwrap();
    assert_eq!(codes(&place.run(&["policy", "lint", profile, "--json"])), ["SL039"]);
    if place.plans() {
        let source = format!("{}:/m", link.display());
        let output = place.run(&["exec", "--dry-run", "--profile", profile, "--ro", &source, "--", "true"]);
        assert!(String::from_utf8(output.stderr).unwrap().contains("outside what the profile grants"));
        // The host's own: /bin and its like are links of root's on most hosts.
        let Some(link) =
            ["/bin", "/lib", "/var/run"].into_iter().find(|l| std::path::Path::new(l).is_symlink())
        else {
            return;
        };
        place.write("p.toml", &format!("version = 1\nextends = \"offline\"\ngrants.ro = [\"{link}\"]\n"));
        let source = format!("{link}:/m");
        let output = place.run(&["exec", "--dry-run", "--profile", profile, "--ro", &source, "--", "true"]);
        assert_eq!(code(&output), 0, "{}", String::from_utf8_lossy(&output.stderr));
        // A link of somebody else's.
        if rustix::process::geteuid().is_root() {
            symlink("tree", place.at("foreign")).unwrap();
            let foreign = place.at("foreign");
            std::os::unix::fs::lchown(&foreign, Some(1000), Some(1000)).unwrap();
            let foreign = foreign.display();
            place.write(
                "p.toml",
                &format!("version = 1\nextends = \"offline\"\ngrants.ro = [\"{foreign}\"]\n"),
            );
            let source = format!("{foreign}:/m");
            let output =
                place.run(&["exec", "--dry-run", "--profile", profile, "--ro", &source, "--", "true"]);
            assert!(String::from_utf8(output.stderr).unwrap().contains("outside what the profile grants"));
        }
    }
}

#[test]
fn a_profile_that_others_can_change() {
    let place = Place::new();
    place.write("p.toml", "version = 1\nextends = \"offline\"\n");
    let profile = place.at("p.toml");
    let lint = || codes(&place.run(&["policy", "lint", profile.to_str().unwrap(), "--json"]));
    assert!(lint().is_empty());
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(profile.parent().unwrap(), 0o777);
    assert_eq!(lint(), ["SL043"]);
    mode(profile.parent().unwrap(), 0o700);
    assert!(lint().is_empty());
    // One that everybody can change is none.
    mode(&profile, 0o666);
    let output = place.run(&["policy", "lint", profile.to_str().unwrap()]);
    assert_ne!(code(&output), 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("everybody may write to it"));
}

#[test]
fn what_the_linter_calls_refused_the_plan_refuses() {
    let place = Place::new();
    if !place.plans() {
        return;
    }
    let profile = place.at("p.toml");
    let profile = profile.to_str().unwrap();
    for (target, refused) in [
        ("/usr", true),
        ("/bin", true),
        ("/tmp", true),
        ("/run", true),
        ("/home/agent", true),
        ("/etc/passwd", true),
        ("/etc/resolv.conf", true),
        ("/etc/machine-id", true),
        ("/tmp/x", false),
        ("/run/x", false),
        ("/home/agent/x", false),
        ("/home", false),
        ("/root", false),
        ("/etc/stockade-test", false),
        ("/opt/x", false),
        ("/var/x", false),
        ("/var/tmp", false),
        ("/var/run/x", false),
    ] {
        place.write(
            "p.toml",
            &format!(
                "version = 1\nextends = \"offline\"\n[[mounts]]\ntype = \"tmpfs\"\nsize = \"1MiB\"\ntarget = \"{target}\"\n"
            ),
        );
        let linted = codes(&place.run(&["policy", "lint", profile, "--json"])).contains(&"SL012".to_owned());
        let planned = place.run(&["exec", "--dry-run", "--profile", profile, "--", "true"]);
        assert_eq!((linted, code(&planned) == 125), (refused, refused), "{target}");
    }
    // The executor's own places are refused as the file is read, by whatever reads it, and say where.
    for kind in ["type = \"mask\"", "type = \"dir\"", "type = \"tmpfs\"\nsize = \"1MiB\""] {
        for target in ["/proc", "/proc/meminfo", "/dev/x", "/dev/shm", "/sys", "/sys/fs"] {
            place.write("p.toml", &format!("version = 1\n[[mounts]]\n{kind}\ntarget = \"{target}\"\n"));
            let linted = place.run(&["policy", "lint", profile, "--json"]);
            let fault = &json(&linted.stdout)["faults"][0];
            assert_eq!(
                (code(&linted), fault["code"].as_str()),
                (2, Some("target_reserved")),
                "{target}: {fault}"
            );
            let line = 3 + kind.lines().count();
            let planned = place.run(&["exec", "--dry-run", "--profile", profile, "--", "true"]);
            let says = String::from_utf8(planned.stderr).unwrap();
            assert!(
                says.contains(&format!("p.toml:{line}:"))
                    && says.contains("nothing can be mounted or masked"),
                "{says}"
            );
        }
    }
    for (text, wanted) in [
        ("seccomp.sets = [\"process\"]", "SL036"),
        ("seccomp.allow = [\"raed\"]", "SL036"),
        ("seccomp.allow = [\"bpf\"]", "SL036"),
    ] {
        std::fs::create_dir_all(place.at("tree/.stockade")).unwrap();
        place.write("p.toml", &format!("version = 1\nextends = \"offline\"\n{text}\n"));
        assert!(
            codes(&place.run(&["policy", "lint", profile, "--json"])).contains(&wanted.to_owned()),
            "{text}"
        );
        assert_eq!(
            code(&place.run(&["exec", "--dry-run", "--profile", profile, "--", "true"])),
            125,
            "{text}"
        );
    }
}

#[test]
fn init_writes_a_file_that_lints_and_loads() {
    let place = Place::new();
    insta::assert_snapshot!("init", place.says(&["policy", "init"]));
    let file = place.at("tree/.stockade/profile.toml");
    insta::assert_snapshot!("init_text", std::fs::read_to_string(&file).unwrap());
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
    assert_eq!(code(&place.run(&["policy", "lint", ".stockade/profile.toml", "--deny", "note"])), 0);
    let same = place.run(&["policy", "diff", "offline", ".stockade/profile.toml", "--json"]);
    assert_eq!((code(&same), json(&same.stdout)["changes"].as_array().unwrap().len()), (0, 0));

    // It is there: nothing is overwritten but on demand.
    std::fs::write(&file, "version = 1\n").unwrap();
    insta::assert_snapshot!("init_again", place.says(&["policy", "init"]));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "version = 1\n");
    let forced = place.run(&["policy", "init", "--force", "--profile", "strict"]);
    assert_eq!(code(&forced), 0);
    assert!(std::fs::read_to_string(&file).unwrap().contains("# limits.wall = \"10m\"\n"));
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
    assert_eq!(std::fs::read_dir(place.at("tree/.stockade")).unwrap().count(), 1);

    // Another directory, and a umask that would close the file.
    let other = place.at("tree/other");
    std::fs::create_dir(&other).unwrap();
    let bin = place::bin();
    let script = format!("umask 077; exec {} policy init {}", bin.display(), other.display());
    let status = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap().status;
    assert!(status.success());
    assert_eq!(std::fs::metadata(other.join(".stockade/profile.toml")).unwrap().mode() & 0o7777, 0o644);
    for args in [&["nosuch"][..], &["--profile", "nosuch"], &["a", "b"]] {
        let line: Vec<&str> = ["policy", "init"].iter().chain(args).copied().collect();
        assert_eq!(code(&place.run(&line)), 2, "{args:?}");
    }
}

#[test]
fn init_follows_no_link_of_the_project() {
    let place = Place::new();
    std::fs::create_dir(place.at("victim")).unwrap();
    symlink("../victim", place.at("tree/.stockade")).unwrap();
    for args in [&["policy", "init"][..], &["policy", "init", "--force"]] {
        assert_eq!(code(&place.run(args)), 2);
        assert_eq!(std::fs::read_dir(place.at("victim")).unwrap().count(), 0);
    }
    std::fs::remove_file(place.at("tree/.stockade")).unwrap();
    std::fs::create_dir(place.at("tree/.stockade")).unwrap();
    symlink("../../victim/profile.toml", place.at("tree/.stockade/profile.toml")).unwrap();
    for args in [&["policy", "init"][..], &["policy", "init", "--force"]] {
        assert_eq!(code(&place.run(args)), 2);
        assert_eq!(std::fs::read_dir(place.at("victim")).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(place.at("tree/.stockade")).unwrap().count(), 1);
    }
    // A file in the place of the directory.
    let plain = place.at("tree/plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join(".stockade"), "").unwrap();
    assert_eq!(code(&place.run(&["policy", "init", "plain"])), 2);
}

#[test]
fn differences_in_words_and_codes() {
    let place = Place::new();
    place.write(
        MINE,
        "version = 1\nextends = \"offline\"\nseccomp.allow = [\"ptrace\"]\nlimits.wall = \"none\"\nlimits.memory = \"2GiB\"\n\
         require.seccomp = \"prefer\"\nrequire.capabilities = \"prefer\"\nidentity.user = \"root\"\nenv.pass = [\"LANG\", \"TOKEN\"]\n\
         [[mounts]]\ntype = \"bind\"\nsource = \"/srv\"\ntarget = \"/data\"\nwritable = true\n",
    );
    place.write(
        "tree/.stockade/profile.toml",
        "version = 1\nnetwork.loopback = false\nseccomp.sets = [\"base\", \"process\"]\n",
    );
    insta::assert_snapshot!("diff_wider", place.says(&["policy", "diff", "offline", "mine"]));
    insta::assert_snapshot!("diff_open", place.says(&["policy", "diff", "strict", "open"]));
    insta::assert_snapshot!(
        "diff_project",
        place.says(&["policy", "diff", "offline", ".stockade/profile.toml"])
    );
    insta::assert_snapshot!("diff_same", place.says(&["policy", "diff", "offline", "offline"]));
    for (args, wanted) in [
        (&["offline", "strict"][..], 0),
        (&["strict", "offline"], 1),
        (&["offline", "offline", "--set", "limits.wall=1m"], 0),
        (&["strict", "offline", "--set", "workspace.access=ro"], 1),
        (&["offline", "offline", "--set", "limits.wall=2h"], 2),
        (&["offline", "nosuch"], 2),
        (&["offline", "./nosuch.json"], 2),
        (&["offline"], 2),
    ] {
        let line: Vec<&str> = ["policy", "diff"].iter().chain(args).copied().collect();
        assert_eq!(code(&place.run(&line)), wanted, "{args:?}");
    }
    let document = json(&place.run(&["policy", "diff", "offline", "open", "--json"]).stdout);
    assert_eq!(document["schema"], "stockade.policy-diff/1");
    assert_eq!((document["within"].as_bool(), document["b"]["name"].as_str()), (Some(false), Some("open")));
    assert_eq!(document["changes"][0]["direction"], "widened");
    assert_eq!(document["changes"][0]["group"], "network");
}

#[test]
fn settings_of_another_day_can_be_compared() {
    let place = Place::new();
    place.write(MINE, "version = 1\nextends = \"offline\"\n");
    let before = place.run(&["policy", "show", "mine", "--json"]).stdout;
    std::fs::write(place.at("tree/before.json"), &before).unwrap();
    assert_eq!(code(&place.run(&["policy", "diff", "before.json", "mine"])), 0);
    place.write(MINE, "version = 1\nextends = \"offline\"\ngrants.env = []\nlimits.processes = 2000\n");
    let output = place.run(&["policy", "diff", "before.json", "mine"]);
    assert_eq!(code(&output), 1);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("  + processes and threads: 2000 instead of 1024\n"), "{text}");
    assert!(text.contains("  - --env `*`\n"), "{text}");
    // A document that was changed says nothing.
    let changed = String::from_utf8(before).unwrap().replace("1024", "9999");
    std::fs::write(place.at("tree/before.json"), changed).unwrap();
    insta::assert_snapshot!("diff_changed", place.says(&["policy", "diff", "before.json", "mine"]));
    assert_eq!(code(&place.run(&["policy", "diff", "mine", "before.json", "--set", "limits.wall=1m"])), 2);
}

#[test]
fn names_that_are_no_text_reach_no_terminal() {
    use std::os::unix::ffi::OsStringExt as _;
    let place = Place::new();
    place.write(
        "p.toml",
        "version = 1\nextends = \"offline\"\nworkspace.hide = [\"...\", \"a?\\u001b[2J\"]\nenv.set = { \"A\\u001bB\" = \"1\" }\n\
         seccomp.sets = [\"...\"]\n[[mounts]]\ntype = \"bind\"\ntarget = \"/m\"\nsource = { b64 = \"L3RtcC/+G10wOw==\" }\n",
    );
    let profile = place.at("p.toml");
    let output = place.run(&["policy", "lint", profile.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("SL018") && text.contains("SL029") && text.contains("SL013"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    let odd = std::ffi::OsString::from_vec(b"a\x1b]0;\n\xff".to_vec());
    for command in ["lint", "init", "diff"] {
        let mut command = place.command(&["policy", command]);
        let output = command.arg(&odd).arg(&odd).output().unwrap();
        assert_eq!(code(&output), 2);
        assert!(!String::from_utf8(output.stderr).unwrap().chars().any(|c| c.is_control() && c != '\n'));
    }
}

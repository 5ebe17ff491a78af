//! Package caches under `build`, and layers that are kept: what the command sees, what the host keeps, and what becomes
//! of what was written.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod common;

use common::{
    Input, PATIENCE, Run, Sandbox, Workspace, await_that, bash, bin, differences, limits_hold, needs, root,
    skip, snapshot, state_dir,
};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A home with caches, beside the workspace.
struct Home {
    place: Workspace,
}

impl Home {
    fn new(tag: &str, files: &[(&str, &str)]) -> Self {
        let place = Workspace::new(&format!("{tag}-home"));
        for (name, content) in files {
            place.file(name, content);
        }
        Self { place }
    }

    fn full(tag: &str) -> Self {
        Self::new(
            tag,
            &[
                (".cargo/registry/crate", "crate\n"),
                (".cargo/credentials.toml", "secret\n"),
                (".npm/package", "package\n"),
                (".cache/pip/wheel", "wheel\n"),
                (".cache/go-build/object", "object\n"),
                ("go/pkg/mod/module", "module\n"),
                (".m2/repository/jar", "jar\n"),
                (".m2/settings.xml", "secret\n"),
                (".ccache/ccache", "ccache\n"),
            ],
        )
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn sandbox(&self, workspace: &Workspace, profile: &str) -> Sandbox {
        let sandbox = Sandbox::new(workspace).profile(profile).env("HOME", self.path());
        // What the tests' own caller has would lead elsewhere.
        sandbox.without_env("CARGO_HOME")
    }
}

/// A profile over `build` with kept layers of at most `size`.
fn kept(place: &Workspace, size: &str) -> String {
    place.file(
        "kept.toml",
        format!("version = 1\nextends = \"build\"\n[caches]\nlayer = \"kept\"\nsize = \"{size}\"\n"),
    )
}

fn cache<'r>(run: &'r Run, name: &str) -> &'r Value {
    let all = run.json["caches"].as_array().unwrap();
    all.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no {name} in {all:?}"))
}

/// Shell text that prints the paths of all caches, by name.
const PATHS: &str = r#"
    cargo=$CARGO_HOME npm=$npm_config_cache pip=$PIP_CACHE_DIR gomod=$GOMODCACHE gobuild=$GOCACHE
    maven=$HOME/.m2/repository ccache=$CCACHE_DIR
    all=("$cargo" "$npm" "$pip" "$gomod" "$gobuild" "$maven" "$ccache")
"#;

#[test]
fn what_is_written_to_a_cache_of_the_host_is_thrown_away() {
    let (ws, home) = (Workspace::new("build"), Home::full("build"));
    let before = snapshot(home.path(), &[]);
    let script = format!(
        r#"set -eu{PATHS}
        cat "$cargo/registry/crate" "$npm/package" "$pip/wheel" "$gobuild/object" "$gomod/module" "$maven/jar" "$ccache/ccache"
        wc -c < "$cargo/credentials.toml"
        ls "$HOME/.m2"
        for dir in "${{all[@]}}"; do
            test ! -e "$dir/new"; echo x > "$dir/new"; mkdir "$dir/d"; mv "$dir/new" "$dir/d/"
        done
        echo more >> "$npm/package"; rm "$pip/wheel"; chmod 600 "$maven/jar"; ln "$ccache/ccache" "$ccache/hard"
        cat "$npm/package""#
    );
    for _ in 0..2 {
        let run = home.sandbox(&ws, "build").run(bash(&script));
        run.expect_exit(0);
        assert_eq!(
            run.out(),
            "crate\npackage\nwheel\nobject\nmodule\njar\nccache\n0\nrepository\npackage\nmore\n",
            "{}",
            run.err()
        );
        assert_eq!(run.enforcement("caches"), Some(("prefer".into(), "enforced".into())));
        for name in ["cargo", "npm", "pip", "go-mod", "go-build", "maven", "ccache"] {
            let cache = cache(&run, name);
            assert_eq!((&cache["layer"], &cache["host"]), (&"throwaway".into(), &true.into()), "{name}");
        }
    }
    assert_eq!(differences(&before, &snapshot(home.path(), &[])), Vec::<String>::new());
}

#[test]
fn a_cache_that_the_host_lacks_is_an_empty_directory() {
    let (ws, home) = (Workspace::new("empty"), Home::new("empty", &[]));
    let script = format!(
        r#"set -eu{PATHS}
        for dir in "${{all[@]}}"; do
            test -z "$(ls -A "$dir")"; echo x > "$dir/new"; echo "$dir"
        done
        touch "$HOME/.m2/settings.xml" "$HOME/go/x" "$HOME/.cache/x""#
    );
    let run = home.sandbox(&ws, "build").run(bash(&script));
    run.expect_exit(0);
    let below =
        [".cargo", ".npm", ".cache/pip", "go/pkg/mod", ".cache/go-build", ".m2/repository", ".cache/ccache"];
    let wanted: String = below.iter().map(|d| format!("/home/agent/{d}\n")).collect();
    assert_eq!(run.out(), wanted);
    assert_eq!(cache(&run, "npm")["layer"], "empty");
    assert_eq!(run.enforcement("caches"), Some(("prefer".into(), "not_asked".into())));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing was made on the host");
}

#[test]
fn variables_say_where_a_cache_is() {
    let (ws, home) = (Workspace::new("named"), Home::full("named"));
    home.place.file("elsewhere/npm/package", "named\n");
    let run = home
        .sandbox(&ws, "build")
        .env("npm_config_cache", home.place.at("elsewhere/npm"))
        .env("PIP_CACHE_DIR", ws.at(".pip"))
        .env("GOCACHE", "/")
        .run(bash(
            "cat $npm_config_cache/package; mkdir $PIP_CACHE_DIR; echo kept > $PIP_CACHE_DIR/f; echo $GOCACHE",
        ));
    run.expect_exit(0);
    assert_eq!(run.out(), "named\n/home/agent/.cache/go-build\n", "`/` is more than a cache");
    assert_eq!(cache(&run, "pip")["layer"], "workspace");
    assert_eq!(ws.read(".pip/f").as_deref(), Some(&b"kept\n"[..]));
}

#[test]
fn the_other_profiles_have_none() {
    let (ws, home) = (Workspace::new("none"), Home::full("none"));
    for profile in ["offline", "strict", "read-only", "open"] {
        if profile == "strict" && !limits_hold() {
            skip("strict needs limits, which need a delegated cgroup");
            continue;
        }
        let script = "env | grep -E '^(npm_config_cache|PIP_CACHE_DIR|GOCACHE|NODE_OPTIONS|JAVA_TOOL_OPTIONS|GOMEMLIMIT)' ; ls -A $HOME";
        let run = home.sandbox(&ws, profile).run(bash(script));
        run.expect_exit(0);
        assert_eq!(
            (run.out().as_str(), run.json["caches"].as_array().map(Vec::len)),
            ("", Some(0)),
            "{profile}"
        );
    }
}

#[test]
fn caches_are_narrowed_and_never_widened() {
    let (ws, home) = (Workspace::new("narrow"), Home::full("narrow"));
    let run = home
        .sandbox(&ws, "build")
        .set("caches.use", "npm")
        .run(bash("test -z \"${GOCACHE-}\"; cat $npm_config_cache/package"));
    run.expect_exit(0);
    assert_eq!(run.json["caches"].as_array().map(Vec::len), Some(1));
    for (profile, key, value) in [
        ("build", "caches.layer", "kept"),
        ("build", "caches.size", "1TiB"),
        ("offline", "caches.use", "npm"),
    ] {
        let run = home.sandbox(&ws, profile).set(key, value).run(["true"]);
        assert_eq!((run.kind(), run.json["outcome"]["code"].as_str()), ("refused", Some("widens")), "{key}");
    }
    let run = home.sandbox(&ws, "build").set("caches.use", "nmp").run(["true"]);
    assert_eq!(run.json["outcome"]["code"], "unknown_word");
    assert_eq!(run.json["outcome"]["hint"], "did you mean `npm`?");
}

#[test]
fn a_kept_layer_is_of_one_workspace() {
    let (ws, other, home) = (Workspace::new("kept"), Workspace::new("kept-other"), Home::full("kept"));
    let profile = kept(&home.place, "64MiB");
    let before = snapshot(home.path(), &[]);
    let write = bash(
        "set -e; echo poison > $CARGO_HOME/poison; echo poison > $GOCACHE/poison; echo poison > $HOME/.m2/repository/jar
         rm $npm_config_cache/package; mkdir -p $PIP_CACHE_DIR/a/b; chmod 000 $PIP_CACHE_DIR/a",
    );
    let read = || {
        bash(
            "cat $CARGO_HOME/poison $GOCACHE/poison 2>/dev/null; cat $HOME/.m2/repository/jar; ls $npm_config_cache; wc -c < $CARGO_HOME/credentials.toml",
        )
    };
    let run = home.sandbox(&ws, &profile).run(write);
    run.expect_exit(0);
    assert_eq!(cache(&run, "cargo")["layer"], "kept");
    assert_eq!(run.enforcement("caches"), Some(("prefer".into(), "enforced".into())));
    for _ in 0..2 {
        // Under root each run has another range of ids.
        let run = home.sandbox(&ws, &profile).run(read());
        assert_eq!(run.out(), "poison\npoison\npoison\n0\n");
    }
    let untouched = "jar\npackage\n0\n";
    assert_eq!(home.sandbox(&other, &profile).run(read()).out(), untouched, "another workspace");
    assert_eq!(home.sandbox(&ws, "build").run(read()).out(), untouched, "a profile that keeps nothing");
    assert_eq!(differences(&before, &snapshot(home.path(), &[])), Vec::<String>::new(), "the host");

    let listed = caches(&["list"]);
    assert!(listed.contains("cargo") && listed.contains(&ws.at("")[..ws.at("").len() - 1]), "{listed}");
    assert!(caches(&["remove", "-w", &ws.at("."), "cargo"]).starts_with("removed cargo of "));
    let run = home.sandbox(&ws, &profile).run(read());
    assert_eq!(run.out(), "poison\npoison\n0\n", "that of cargo alone is gone");
    assert_eq!(caches(&["remove", "-w", &ws.at(".")]).lines().count(), 7);
    assert_eq!(home.sandbox(&ws, &profile).run(read()).out(), untouched);
    caches(&["remove", "-w", &ws.at(".")]);
    caches(&["remove", "-w", &other.at(".")]);
}

/// `stockade caches …` on the tests' own state directory.
fn caches(args: &[&str]) -> String {
    let output =
        Command::new(bin()).arg("caches").args(args).arg("--state-dir").arg(state_dir()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn two_runs_at_once_do_not_share_a_kept_layer() {
    let (ws, home) = (Workspace::new("busy"), Home::full("busy"));
    let profile = kept(&home.place, "64MiB");
    let mut first = home
        .sandbox(&ws, &profile)
        .stdin(Input::Held)
        .spawn(bash("echo first > $npm_config_cache/f; echo there; read -r _; cat $npm_config_cache/f"));
    first.expect_output("there");
    let run =
        home.sandbox(&ws, &profile).run(bash("ls $npm_config_cache; echo second > $npm_config_cache/f"));
    run.expect_exit(0);
    assert_eq!(run.out(), "package\n");
    let npm = cache(&run, "npm");
    assert_eq!(npm["layer"], "throwaway");
    assert_eq!(npm["note"], "another run in this workspace, under this profile, has the kept layer");
    let refused = Command::new(bin())
        .args(["caches", "remove", "--all", "--state-dir"])
        .arg(state_dir())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a run has it"));
    drop(first.take_stdin());
    let raw = first.finish(PATIENCE);
    assert_eq!(raw.out(), "there\nfirst\n");
    let run = home.sandbox(&ws, &profile).run(bash("cat $npm_config_cache/f"));
    assert_eq!(run.out(), "first\n");
    caches(&["remove", "-w", &ws.at(".")]);
}

#[test]
fn a_killed_owner_leaves_a_layer_that_is_used_again() {
    let (ws, home) = (Workspace::new("killed"), Home::full("killed"));
    let profile = kept(&home.place, "64MiB");
    let first = home
        .sandbox(&ws, &profile)
        .stdin(Input::Held)
        .spawn(bash("echo first > $npm_config_cache/f; echo there; read -r _"));
    first.expect_output("there");
    first.signal(nix::sys::signal::Signal::SIGKILL);
    first.finish(PATIENCE);
    // Whoever comes next has to wait for nothing: recovery ends what is left of it first.
    let again = || home.sandbox(&ws, &profile).run(bash("cat $npm_config_cache/f"));
    assert!(await_that(PATIENCE, || cache(&again(), "npm")["layer"] == "kept"), "the lock is let go of");
    assert_eq!(again().out(), "first\n");
    caches(&["remove", "-w", &ws.at(".")]);
}

#[test]
fn a_kept_layer_has_a_size() {
    let (ws, home) = (Workspace::new("size"), Home::full("size"));
    let profile = kept(&home.place, "8MiB");
    // It writes until it is stopped; 4 GiB are more than anybody else frees meanwhile.
    let fill = bash("for n in $(seq 4096); do head -c 1048576 /dev/zero >> $npm_config_cache/big; done");
    let run = home.sandbox(&ws, &profile).run(fill);
    assert_eq!(run.limit(), Some("cache"), "{}", run.json["outcome"]);
    assert_eq!(run.json["limit"]["configured"], 8 << 20);
    assert!(run.json["limit"]["observed"].as_u64().unwrap() > 8 << 20);
    assert_eq!(cache(&run, "npm")["note"], "the kept layer held more than caches.size and was emptied");
    let run = home.sandbox(&ws, &profile).run(bash("ls $npm_config_cache"));
    assert_eq!((run.out().as_str(), cache(&run, "npm")["layer"].as_str()), ("package\n", Some("kept")));
    caches(&["remove", "-w", &ws.at(".")]);
}

#[test]
fn runtimes_are_told_of_the_limit() {
    let (ws, home) = (Workspace::new("heap"), Home::new("heap", &[]));
    let script = "for v in NODE_OPTIONS JAVA_TOOL_OPTIONS GOMEMLIMIT DOTNET_GCHeapHardLimit; do echo \"${!v-none}\"; done";
    let hints = |sandbox: Sandbox| sandbox.run(bash(script)).out();
    let none = "none\nnone\nnone\nnone\n";
    let limited = hints(home.sandbox(&ws, "build").set("limits.memory", "1GiB"));
    if limits_hold() {
        assert_eq!(
            limited,
            "--max-old-space-size=768\n-XX:MaxRAM=1073741824 -XX:MaxRAMPercentage=50\n966367641\n0x30000000\n"
        );
        let said = home.sandbox(&ws, "build").set("limits.memory", "1GiB");
        let said = hints(
            said.option("--env").option("NODE_OPTIONS=--no-warnings").option("--env").option("GOMEMLIMIT="),
        );
        assert!(said.starts_with("--no-warnings\n-XX:MaxRAM=") && said.contains("\n\n"), "{said}");
    } else {
        assert_eq!(limited, none, "no limit holds here");
    }
    let unlimited =
        home.place.file("u.toml", "version = 1\nextends = \"build\"\n[limits]\nmemory = \"none\"\n");
    assert_eq!(hints(home.sandbox(&ws, &unlimited)), none);
    assert_eq!(hints(home.sandbox(&ws, "offline").set("limits.memory", "1GiB")), none);
}

#[test]
fn a_cache_of_another_owner_than_the_workspaces() {
    if !needs(root(), "only root can work on another user's files") {
        return;
    }
    let (ws, home) = (Workspace::new("owners"), Home::full("owners"));
    home.place.file(".npm/private", "private\n");
    common::set_mode(&home.path().join(".npm/private"), 0o600);
    std::os::unix::fs::chown(ws.path(), Some(1234), Some(1235)).unwrap();
    let profile = kept(&home.place, "64MiB");
    for profile in ["build", &profile] {
        for round in 0..2 {
            let run = home.sandbox(&ws, profile).run(bash(
                "set -e; cat $npm_config_cache/private; stat -c %U $npm_config_cache/private; echo x >> $npm_config_cache/private
                 ls $npm_config_cache; touch $npm_config_cache/new here",
            ));
            run.expect_exit(0);
            let second = round == 1 && profile != "build";
            let wanted = match second {
                true => "private\nx\nagent\nnew\npackage\nprivate\n",
                false => "private\nagent\npackage\nprivate\n",
            };
            assert_eq!(run.out(), wanted, "{profile}");
        }
    }
    assert_eq!(std::fs::read(home.path().join(".npm/private")).unwrap(), b"private\n");
    // A workspace that changes hands does not take its layer along.
    std::os::unix::fs::chown(ws.path(), Some(1236), Some(1235)).unwrap();
    let run = home.sandbox(&ws, &profile).run(bash("ls $npm_config_cache"));
    assert_eq!(run.out(), "package\nprivate\n");
    caches(&["remove", "-w", &ws.at(".")]);
}

/// A cargo home of the test's own with a crate that a build can be made of without a network: from the caller's, if it
/// has one.
fn cached_crate(place: &Workspace) -> Option<(PathBuf, String)> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registry = home.join("registry");
    let is = |name: &str| name.starts_with("cfg-if-1.") && name.ends_with(".crate");
    for cache in std::fs::read_dir(registry.join("cache")).ok()?.flatten() {
        let index = cache.file_name().into_string().ok()?;
        let crates = std::fs::read_dir(cache.path()).ok()?.flatten();
        let Some(found) = crates.filter_map(|c| c.file_name().into_string().ok()).find(|n| is(n)) else {
            continue;
        };
        for file in [
            format!("index/{index}/config.json"),
            format!("index/{index}/.cache/cf/g-/cfg-if"),
            format!("cache/{index}/{found}"),
        ] {
            place.file(&format!("cargo/registry/{file}"), std::fs::read(registry.join(&file)).ok()?);
        }
        let version = found.trim_start_matches("cfg-if-").trim_end_matches(".crate").to_owned();
        return Some((place.path().join("cargo"), version));
    }
    None
}

#[test]
fn cargo_builds_from_the_hosts_registry() {
    let (ws, place) = (Workspace::new("cargo"), Workspace::new("cargo-home"));
    let Some((cargo_home, version)) = cached_crate(&place) else {
        skip("no cargo home with cfg-if 1 in its registry");
        return;
    };
    let before = snapshot(&cargo_home, &[]);
    let package = "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]";
    ws.file("Cargo.toml", format!("{package}\ncfg-if = \"={version}\"\n"));
    ws.file("src/main.rs", "cfg_if::cfg_if! { if #[cfg(unix)] { fn main() { println!(\"built\") } } }\n");
    let script = "set -e; cargo run -q --offline; ls $CARGO_HOME/registry/src/*/ | grep -c cfg-if";
    // The rest of the toolchain is where the caller's home is.
    let home = std::env::var_os("HOME").unwrap_or_default();
    let build = |profile: &str| {
        let sandbox = Sandbox::new(&ws).profile(profile).env("CARGO_HOME", &cargo_home).env("HOME", &home);
        sandbox.patience(PATIENCE * 3).run(bash(script))
    };
    let run = build("build");
    run.expect_exit(0);
    assert_eq!(run.out(), "built\n1\n");
    assert_eq!(differences(&before, &snapshot(&cargo_home, &[])), Vec::<String>::new());
    assert!(build("offline").err().contains("Read-only file system"), "the control: what `offline` refuses");
}

#[test]
fn credentials_stay_hidden_whatever_the_command_does_around_them() {
    let (ws, home) = (Workspace::new("masked"), Home::full("masked"));
    let profile = kept(&home.place, "64MiB");
    for _ in 0..2 {
        let run = home.sandbox(&ws, &profile).run(bash(
            "cd $CARGO_HOME; rm -f credentials.toml; mv credentials.toml x; ln credentials.toml y; cp credentials.toml z
             echo mine > credentials.toml; cat credentials.toml x y z; mv $CARGO_HOME $HOME/moved; grep -rs secret . /.layers",
        ));
        assert_eq!(run.out(), "", "{}", run.err());
        assert!(run.err().contains("Device or resource busy"), "{}", run.err());
    }
    assert_eq!(std::fs::read(home.path().join(".cargo/credentials.toml")).unwrap(), b"secret\n");
    let mode = std::fs::metadata(home.path().join(".cargo/credentials.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    caches(&["remove", "-w", &ws.at(".")]);
}

#[test]
fn a_layer_under_one_profile_is_not_seen_under_another() {
    let (ws, home) = (Workspace::new("profiles"), Home::full("profiles"));
    let one = kept(&home.place, "64MiB");
    let two = home.place.file("other.toml", std::fs::read_to_string(&one).unwrap());
    let write = home.sandbox(&ws, &one).run(bash("echo poison > $npm_config_cache/package"));
    write.expect_exit(0);
    let read = |profile: &str| home.sandbox(&ws, profile).run(bash("cat $npm_config_cache/package")).out();
    assert_eq!((read(&two).as_str(), read(&one).as_str()), ("package\n", "poison\n"));
    let listed = caches(&["list"]);
    let line = |profile: &str| {
        listed.lines().any(|l| {
            l.starts_with("npm ") && l.contains(profile) && l.contains(&ws.at("")[1..ws.at("").len() - 1])
        })
    };
    assert!(line("kept") && line("other"), "{listed}");
    assert_eq!(caches(&["remove", "-w", &ws.at("."), "npm"]).lines().count(), 2, "of every profile");
    assert_eq!(read(&one), "package\n");
    caches(&["remove", "-w", &ws.at(".")]);
}

#[test]
fn credentials_are_masked_by_whichever_name_a_cache_is_reached() {
    let (ws, home) = (Workspace::new("alias"), Home::full("alias"));
    for name in [".cargo/.npmrc", ".cargo/.docker/config.json", ".cargo/settings.xml", ".cache/pip/pip.conf"]
    {
        home.place.file(name, "secret\n");
    }
    std::os::unix::fs::symlink(".cargo", home.place.at("alias")).unwrap();
    for profile in ["build", &kept(&home.place, "64MiB")] {
        let run = home
            .sandbox(&ws, profile)
            .env("npm_config_cache", home.place.at("alias"))
            .env("GOMODCACHE", home.place.at(".cargo/registry"))
            .run(bash(
                "for d in $CARGO_HOME $npm_config_cache $PIP_CACHE_DIR; do
                     mv $d/.docker $d/moved; mkdir -p $d/.docker; cat $d/crate $d/registry/crate; grep -rs secret $d
                     (exec 3< $d/credentials.toml; cat /proc/self/fd/3 <&3) 2>/dev/null
                 done
                 cat $GOMODCACHE/crate; echo x > $GOMODCACHE/x && cat $CARGO_HOME/registry/x
                 mkdir /tmp/up /tmp/work; mount -t overlay -o lowerdir=$CARGO_HOME,upperdir=/tmp/up,workdir=/tmp/work none /tmp/up
                 umount $CARGO_HOME/credentials.toml; umount $CARGO_HOME; grep -rs secret $CARGO_HOME",
            ));
        assert_eq!(run.out(), "crate\ncrate\ncrate\nx\n", "{profile}: {}", run.err());
        for name in ["cargo", "npm", "go-mod"] {
            assert_eq!(cache(&run, name)["host"], true, "{name}");
        }
        // The control: without masks it would have been found there.
        assert!(home.path().join(".cargo/.docker/config.json").exists());
    }
    caches(&["remove", "-w", &ws.at(".")]);
}

#[test]
fn a_cache_that_others_may_write_to_is_not_used_and_it_is_said() {
    let (ws, home) = (Workspace::new("shared"), Home::full("shared"));
    common::set_mode(&home.path().join(".npm"), 0o777);
    let run = home.sandbox(&ws, "build").run(bash("ls -A $npm_config_cache; echo $npm_config_cache"));
    run.expect_exit(0);
    assert_eq!(run.out(), "/home/agent/.npm\n");
    let note = cache(&run, "npm")["note"].as_str().unwrap_or_default().to_owned();
    assert!(note.contains("everybody may write to it"), "{note}");
    common::set_mode(&home.path().join(".npm"), 0o755);
    let run = home.sandbox(&ws, "build").run(bash("ls -A $npm_config_cache"));
    assert_eq!(run.out(), "package\n", "the control");
}

#[test]
fn open_files_of_the_host_are_not_written_through_a_layer() {
    let (ws, home) = (Workspace::new("through"), Home::full("through"));
    let before = snapshot(home.path(), &[]);
    // Every way to change a file that a program has: in place, mapped, by a second name, by its modes and attributes.
    let run = home.sandbox(&ws, "build").run(bash(
        r#"set -e; cd $npm_config_cache
        exec 3<> package; echo over >&3; truncate -s 1 package; ln package two; echo more >> two; touch -d 2001-01-01 package
        chmod 777 . package; mv package sub 2>/dev/null; mkdir d; mv sub d/; ln -s d/sub package; rm -rf ./*
        cd $CARGO_HOME; mv registry moved || { cp -r registry moved; rm -r registry; }
        perl -e 'open(F,"+<","'$PIP_CACHE_DIR/wheel'") or die; syswrite(F,"X"); close F'
        setfattr -n user.x -v y $GOCACHE/object 2>/dev/null || true
        echo done"#,
    ));
    assert_eq!(
        run.out(),
        "done
",
        "{}",
        run.err()
    );
    assert_eq!(differences(&before, &snapshot(home.path(), &[])), Vec::<String>::new());
}

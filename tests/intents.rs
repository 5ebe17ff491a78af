//! What a command is told of its sandbox, and what it is granted by intent: that each opens what it says and nothing
//! else, that nothing is open without it, and that what is not there is refused.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod common;

use common::{PATIENCE, Run, Sandbox, Workspace, bash, needs, root, skip};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn granted(run: &Run) -> Vec<&str> {
    run.json["granted"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect()
}

fn code(run: &Run) -> (&str, Option<&str>) {
    (run.kind(), run.json["outcome"]["code"].as_str())
}

fn grant(sandbox: Sandbox, what: &str) -> Sandbox {
    sandbox.option("--grant").option(what)
}

// ---- the command's own view ---------------------------------------------------------------------------

#[test]
fn a_command_can_read_what_its_sandbox_is() {
    let ws = Workspace::new("view");
    ws.file(".env", "x");
    for profile in ["offline", "build", "read-only"] {
        let run = Sandbox::new(&ws).profile(profile).set("limits.processes", "77").run(bash(
            "test $STOCKADE_SANDBOX = /.stockade/sandbox.txt && cat $STOCKADE_SANDBOX && echo ==== && cat /.stockade/sandbox.json",
        ));
        run.expect_exit(0);
        let out = run.out();
        let (text, json) = out.split_once("====\n").unwrap();
        for words in
            [&format!("profile {profile}"), "77, threads among them", "To ask for more", "--grant ssh-agent"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json["schema"], &json["profile"]), (&"stockade.sandbox/1".into(), &profile.into()));
        assert_eq!(json["limits"]["processes"], 77);
        assert_eq!(json["workspace"], ws.at(".").trim_end_matches("/."));
        assert_eq!(json["caches"].as_array().unwrap().len(), if profile == "build" { 7 } else { 0 });
        let asks = json["ask"].as_array().unwrap();
        let ask = |how: &str| asks.iter().find(|a| a["how"].as_str().unwrap().contains(how)).unwrap();
        assert_eq!(ask("--rw")["permitted"], profile != "read-only");
        assert_eq!(ask("--grant gpu")["permitted"], profile != "read-only");
        assert!(json["hidden"]["paths"].to_string().contains(".env"), "{}", json["hidden"]);
    }
}

#[test]
fn what_it_is_told_cannot_be_changed() {
    let ws = Workspace::new("view-held");
    let run = Sandbox::new(&ws).option("--env").option("STOCKADE_SANDBOX=/tmp/mine").run(bash(
        "cd /.stockade; echo $STOCKADE_SANDBOX; before=$(cat *)
         echo x > sandbox.txt; rm -f sandbox.json; mv sandbox.txt t; mv /.stockade /tmp/gone; ln -f sandbox.txt /tmp/x
         chmod 666 sandbox.txt; touch new; test \"$before\" = \"$(cat *)\" && echo same; touch /tmp/control && echo control",
    ));
    assert_eq!(run.out(), "/.stockade/sandbox.txt\nsame\ncontrol\n", "{}", run.err());
    for target in ["/.stockade", "/.stockade/sandbox.txt", "/.stockade/more"] {
        let run = Sandbox::new(&ws).option("--tmpfs").option(target).run(["true"]);
        assert_eq!(code(&run), ("refused", Some("target_reserved")), "{target}: {}", run.json["outcome"]);
    }
}

#[test]
fn what_it_is_told_names_nothing_of_the_host() {
    let (ws, home) = (Workspace::new("view-quiet"), Workspace::new("view-quiet-home"));
    home.file("secret-cache-name/f", "x");
    home.file("secret-source-name/f", "x");
    common::set_mode(&home.path().join("secret-cache-name"), 0o777);
    let run = Sandbox::new(&ws)
        .profile("build")
        .env("HOME", home.path())
        .env("npm_config_cache", home.at("secret-cache-name"))
        .without_env("CARGO_HOME")
        .option("--at")
        .option("/project")
        .option("--ro")
        .option(format!("{}:/data", home.at("secret-source-name")))
        .run(bash("cat /.stockade/*"));
    run.expect_exit(0);
    let out = run.out();
    assert!(out.contains("/project") && out.contains("/data"), "{out}");
    // Where the workspace, a source, a cache that is not used and the state lie.
    for hidden in [
        ws.at("")[..ws.at("").len() - 1].to_owned(),
        "secret".to_owned(),
        common::state_dir().display().to_string(),
    ] {
        assert!(!out.contains(&hidden), "{hidden}: {out}");
    }
    // The control: the result, which is the caller's, does name one of them.
    assert!(run.json["caches"].to_string().contains("secret-cache-name"));
}

// ---- grants --------------------------------------------------------------------------------------------

#[test]
fn nothing_is_granted_that_nobody_asked_for() {
    let ws = Workspace::new("ungranted");
    let run = Sandbox::new(&ws).run(bash(
        "env | grep -E '^(SSH_AUTH_SOCK|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|GIT_CONFIG)'; ls /.stockade",
    ));
    assert_eq!(run.out(), "sandbox.json\nsandbox.txt\n");
    assert_eq!(granted(&run), Vec::<&str>::new());
}

#[test]
fn what_is_not_there_or_not_permitted_is_refused() {
    let (ws, home) = (Workspace::new("absent"), Workspace::new("absent-home"));
    let bare = || {
        let mut sandbox = Sandbox::new(&ws).env("HOME", home.path());
        for name in ["SSH_AUTH_SOCK", "DISPLAY", "WAYLAND_DISPLAY", "XDG_CONFIG_HOME"] {
            sandbox = sandbox.without_env(name);
        }
        sandbox
    };
    for what in ["ssh-agent", "x11", "wayland", "git-credentials"] {
        let run = grant(bare(), what).run(["true"]);
        assert_eq!(code(&run), ("refused", Some("nothing_to_grant")), "{what}");
        assert_eq!(run.json["exit_code"], 125);
        assert!(run.json["outcome"]["message"].as_str().unwrap().contains(what));
    }
    if !Path::new("/dev/dri").exists() && !Path::new("/dev/nvidia0").exists() {
        assert_eq!(code(&grant(bare(), "gpu").run(["true"])), ("refused", Some("nothing_to_grant")));
    }
    for profile in ["read-only", "strict"] {
        let run = grant(bare().profile(profile), "browser").run(["true"]);
        let got = code(&run);
        assert!(
            got == ("refused", Some("not_granted")) || profile == "strict" && got.0 == "refused",
            "{got:?}"
        );
    }
    assert_eq!(code(&grant(bare(), "everything").run(["true"])), ("refused", Some("grant_unknown")));
    // A project's file cannot give any.
    let project = Workspace::new("absent-project");
    project.file(".stockade/profile.toml", "version = 1\nintents.use = [\"browser\"]\n");
    assert_eq!(code(&Sandbox::new(&project).run(["true"])), ("refused", Some("widens")));
}

/// Ends what a test started.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_ssh_agent_signs_and_does_no_more() {
    let (ws, home) = (Workspace::new("agent"), Workspace::new("agent-home"));
    let socket = home.at("agent.sock");
    let Ok(agent) = Command::new("ssh-agent").args(["-D", "-a", &socket]).stdout(Stdio::null()).spawn()
    else {
        skip("no ssh-agent");
        return;
    };
    let _agent = Ends(agent);
    assert!(common::await_that(PATIENCE, || Path::new(&socket).exists()));
    let sandbox = || Sandbox::new(&ws).env("SSH_AUTH_SOCK", &socket);
    if root() {
        // An agent answers its own user, and under root the command is nobody's.
        let run = grant(sandbox(), "ssh-agent").run(["true"]);
        assert_eq!(code(&run), ("refused", Some("nothing_to_grant")));
        assert!(run.json["outcome"]["message"].as_str().unwrap().contains("run stockade as that user"));
        return;
    }
    let key = home.at("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "the-key", "-f", &key])
        .status();
    assert!(made.unwrap().success());
    let added =
        Command::new("ssh-add").arg(&key).env("SSH_AUTH_SOCK", &socket).stderr(Stdio::null()).status();
    assert!(added.unwrap().success());
    let without = sandbox().run(bash("ssh-add -l; echo $?; test -S /.stockade/ssh-agent || echo none"));
    assert_eq!(without.out(), "2\nnone\n", "no agent without the grant");
    let run = grant(sandbox(), "ssh-agent").run(bash(
        "ssh-add -l | grep -o the-key; echo data > f; ssh-add -L > pub; ssh-keygen -q -Y sign -n file -f pub f && test -s f.sig && echo signed
         ls /.stockade; rm -f /.stockade/ssh-agent; cat /.stockade/sandbox.txt | grep -c '^granted *ssh-agent'",
    ));
    assert_eq!(run.out(), "the-key\nsigned\nsandbox.json\nsandbox.txt\nssh-agent\n1\n", "{}", run.err());
    assert!(Path::new(&socket).exists());
    assert_eq!((granted(&run), run.json["assurance"].as_str()), (vec!["ssh-agent"], Some("reduced")));
}

/// A server on a socket that answers one connection.
fn server(path: &str) -> std::thread::JoinHandle<String> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = [0; 4];
        stream.read_exact(&mut text).unwrap();
        stream.write_all(b"hello").unwrap();
        String::from_utf8_lossy(&text).into_owned()
    })
}

const CONNECT: &str = r#"perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "no: $!\n"; syswrite $s, "ping"; sysread $s, $x, 9; print "$x\n"' "#;

#[test]
fn a_compositor_is_reached_with_the_grant_alone() {
    let (ws, runtime) = (Workspace::new("wayland"), Workspace::new("wayland-run"));
    let served = server(&runtime.at("wayland-7"));
    runtime.file("other", "x");
    let sandbox =
        || Sandbox::new(&ws).env("XDG_RUNTIME_DIR", runtime.path()).env("WAYLAND_DISPLAY", "wayland-7");
    let without = sandbox().run(bash(&format!("{CONNECT} {}", runtime.at("wayland-7"))));
    assert!(without.err().contains("no: No such file"), "{}", without.err());
    let run = grant(sandbox(), "wayland")
        .run(bash(&format!("{CONNECT} $WAYLAND_DISPLAY; ls /.stockade; ls {}", runtime.at(""))));
    assert_eq!(run.out(), "hello\nsandbox.json\nsandbox.txt\nwayland\n", "{}", run.err());
    assert_eq!(served.join().unwrap(), "ping");
    assert_eq!(granted(&run), ["wayland"]);
}

#[test]
fn an_x_server_is_reached_with_the_grant_alone() {
    let (ws, home) = (Workspace::new("x11"), Workspace::new("x11-home"));
    let dir = Path::new("/tmp/.X11-unix");
    let made = std::fs::create_dir(dir).is_ok();
    if made {
        common::set_mode(dir, 0o1777);
    }
    let number = 20_000 + std::process::id() % 10_000;
    let socket = format!("/tmp/.X11-unix/X{number}");
    if !common::needs(UnixListener::bind(format!("{socket}.try")).is_ok(), "/tmp/.X11-unix is another's") {
        return;
    }
    std::fs::remove_file(format!("{socket}.try")).unwrap();
    let served = server(&socket);
    home.file(".Xauthority", "cookie\n");
    common::set_mode(&home.path().join(".Xauthority"), 0o600);
    let sandbox = || {
        let sandbox = Sandbox::new(&ws).env("HOME", home.path()).env("DISPLAY", format!(":{number}.0"));
        sandbox.without_env("XAUTHORITY")
    };
    let without = sandbox().run(bash(&format!("{CONNECT} {socket}")));
    assert!(without.err().contains("no: No such file"), "{}", without.err());
    let run = grant(sandbox(), "x11").run(bash(&format!(
        "{CONNECT} {socket}; echo $DISPLAY; cat $XAUTHORITY; ls /tmp/.X11-unix; echo x > $XAUTHORITY"
    )));
    std::fs::remove_file(&socket).unwrap();
    if made {
        // Unless somebody else has put something there meanwhile.
        let _ = std::fs::remove_dir(dir);
    }
    assert_eq!(run.out(), format!("hello\n:{number}.0\ncookie\nX{number}\n"), "{}", run.err());
    assert_eq!(served.join().unwrap(), "ping");
    assert_eq!(std::fs::read(home.path().join(".Xauthority")).unwrap(), b"cookie\n");
}

#[test]
fn stored_passwords_of_git_are_read_and_not_written() {
    let (ws, home) = (Workspace::new("git-cred"), Workspace::new("git-cred-home"));
    let stored = "https://user:pass@example.org\n";
    home.file(".git-credentials", stored);
    home.file("other", "x");
    common::set_mode(&home.path().join(".git-credentials"), 0o600);
    let fill = "printf 'protocol=https\\nhost=example.org\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill";
    let sandbox = || Sandbox::new(&ws).env("HOME", home.path()).without_env("XDG_CONFIG_HOME");
    let without = sandbox().run(bash(fill));
    assert!(!without.out().contains("pass"), "{}", without.out());
    let store = "printf 'protocol=https\\nhost=h\\nusername=u\\npassword=p\\n\\n' | git credential approve";
    let run = grant(sandbox(), "git-credentials").run(bash(&format!(
        "export GIT_TRACE=0; {fill} | grep password; {store} && echo quiet; ls /.stockade"
    )));
    assert_eq!(
        run.out(),
        "password=pass\nquiet\ngit-credentials\nsandbox.json\nsandbox.txt\n",
        "{}",
        run.err()
    );
    assert_eq!(run.err(), "");
    // Beside what the caller configures.
    let both = grant(sandbox(), "git-credentials");
    let both = ["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=somebody"]
        .into_iter()
        .fold(both, |sandbox, variable| sandbox.option("--env").option(variable));
    let run = both.run(bash(&format!("git config user.name; {fill} | grep password")));
    assert_eq!(run.out(), "somebody\npassword=pass\n", "{}", run.err());
    assert_eq!(std::fs::read_to_string(home.path().join(".git-credentials")).unwrap(), stored);
}

#[test]
fn a_device_works_with_the_grant_alone() {
    if !needs(root(), "only root can make a device node") {
        return;
    }
    let ws = Workspace::new("gpu");
    // A /dev of the test's own, in a mount namespace of its own, with /dev/zero's numbers under a GPU's name.
    let exec = |options: &str, command: &str| {
        let script = format!(
            "set -e; d=$(mktemp -d); mount -t tmpfs none $d; cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty $d
             mkdir $d/pts $d/shm $d/dri; ln -s pts/ptmx $d/ptmx; ln -s /proc/self/fd $d/fd; mount --bind /dev/pts $d/pts
             mknod -m 666 $d/dri/renderD128 c 1 5; mknod -m 666 $d/dri/card0 c 1 5; mount --move $d /dev; rmdir $d
             exec {} exec --state-dir {} -w {} --quiet {options} -- {command}",
            common::bin().display(),
            common::state_dir().display(),
            ws.path().display()
        );
        Command::new("unshare").args(["-m", "bash", "-c", &script]).output().unwrap()
    };
    let read = "sh -c 'ls /dev/dri; head -c 4 /dev/dri/renderD128 | od -An -tx1'";
    let without = exec("", read);
    assert!(String::from_utf8_lossy(&without.stderr).contains("cannot access '/dev/dri'"), "{without:?}");
    let with = exec("--grant gpu", read);
    assert_eq!(String::from_utf8_lossy(&with.stdout), "renderD128\n 00 00 00 00\n", "{with:?}");
    // A device that is mounted as any other file does not work.
    let bound = exec("--ro /dev/dri/card0:/card", "head -c 4 /card");
    assert!(!bound.status.success() && bound.stdout.is_empty(), "{bound:?}");
}

// ---- browser -------------------------------------------------------------------------------------------

#[test]
fn namespaces_of_its_own_come_with_browser_alone_and_without_mounts() {
    let ws = Workspace::new("browser");
    let try_all = bash(
        "for flags in -U -Un -Urp -Um -Ui -Uu -UC -UT; do unshare $flags --fork true 2>/dev/null; echo $flags $?; done
         chroot / true 2>/dev/null; echo outside $?; unshare -Ur chroot / /bin/true; echo inside $?
         unshare -Ur mount -t tmpfs none /tmp 2>/dev/null; echo mount $?
         unshare -Ur umount /.stockade 2>/dev/null; echo umount $?
         unshare -Ur sh -c 'echo x > /.stockade/sandbox.txt' 2>/dev/null; echo write $?
         unshare -Ur chmod u+s /bin/true 2>/dev/null; echo chmod $?
         unshare -Ur sh -c 'cp /bin/true t; chmod u+s t' 2>/dev/null; echo setid $?
         unshare -Urn perl -MSocket -e 'socket(S, AF_INET, SOCK_RAW, 1) and print qq(raw\\n)'; echo $(id -u)",
    );
    let refused = "-U 1\n-Un 1\n-Urp 1\n-Um 1\n-Ui 1\n-Uu 1\n-UC 1\n-UT 1\noutside 125\ninside 1\nmount 1\numount 1\nwrite 1\nchmod 1\nsetid 1\n1000\n";
    let without = Sandbox::new(&ws).run(try_all.clone());
    assert_eq!(without.out(), refused, "{}", without.err());
    let run = grant(Sandbox::new(&ws), "browser").run(try_all.clone());
    let first = run.out();
    let (namespaces, rest) = first.split_once("-Um").unwrap();
    assert_eq!(namespaces, "-U 0\n-Un 0\n-Urp 0\n", "{}", run.err());
    assert!(rest.starts_with(" 1\n-Ui 1\n-Uu 1\n-UC 1\n-UT 1\noutside 125\ninside 0\n"), "{rest}");
    for (what, code) in [("mount", 0), ("umount", 0), ("write", 0), ("setid", 0)] {
        assert!(!rest.contains(&format!("{what} {code}\n")), "{rest}");
    }
    assert!(!rest.contains("raw"), "{rest}");
    assert_eq!((granted(&run), run.json["assurance"].as_str()), (vec!["browser"], Some("reduced")));
    assert!(run.json["granted"][0]["opens"].as_str().unwrap().contains("namespaces"));
    // From a profile as well, and narrowed away again.
    let profile = ws.file("b.toml", "version = 1\nextends = \"offline\"\nintents.use = [\"browser\"]\n");
    let ws = Workspace::new("browser-profile");
    let run = Sandbox::new(&ws).profile(&profile).run(bash("unshare -U true && echo ok"));
    assert_eq!((run.out().as_str(), granted(&run)), ("ok\n", vec!["browser"]));
    let run = Sandbox::new(&ws).profile(&profile).set("intents.use", "").run(bash("unshare -U true"));
    assert!(run.err().contains("Operation not permitted") && granted(&run).is_empty());
}

#[test]
fn headless_chromium_has_its_own_sandbox() {
    let names = ["chromium-headless-shell", "chromium", "google-chrome"];
    let found = names.iter().find(|n| Path::new("/usr/bin").join(n).exists());
    let Some(browser) = found else {
        skip("no chromium");
        return;
    };
    let ws = Workspace::new("chromium");
    let command = |flags: &str| {
        bash(&format!(
            "timeout 60 {browser} --headless {flags} --dump-dom 'data:text/html,<p id=x></p><script>document.all.x.textContent=6*7</script>' 2>err"
        ))
    };
    let with = |sandbox: Sandbox, flags: &str| sandbox.patience(PATIENCE * 4).run(command(flags));
    let run = with(grant(Sandbox::new(&ws), "browser"), "");
    assert!(run.out().contains("<p id=\"x\">42</p>"), "{:?}", ws.read("err"));
    let run = with(Sandbox::new(&ws), "");
    assert!(run.exit_code() != Some(0) && run.out().is_empty(), "it refuses to run without one");
    let run = with(Sandbox::new(&ws), "--no-sandbox");
    assert!(run.out().contains("<p id=\"x\">42</p>"), "in Stockade's alone it runs without the grant");
}

//! Terminals: what `--tty` gives a command (size, job control, real full-screen programs), and that what a command does to
//! its caller's terminal ends with it. The caller's terminal is a pty of the test's, or tmux, which says what state it is in.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Workspace, await_that, bin, contains, home, needs, state_dir, unique};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal and the program that has it as its controlling one.
struct Pty {
    master: OwnedFd,
    slave: OwnedFd,
    child: Option<Child>,
    seen: Vec<u8>,
}

impl Pty {
    fn new(rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let pty = Self { master, slave, child: None, seen: Vec::new() };
        pty.resize(rows, columns);
        pty
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
    }

    /// `stockade exec` with these words, in a session whose terminal this is.
    fn exec(&mut self, workspace: &Workspace, options: &[&str], argv: &[&str]) {
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(bin())
            .args(["exec", "-w"])
            .arg(workspace.path())
            .args(options)
            .arg("--")
            .args(argv);
        command
            .env_clear()
            .env("HOME", home())
            .env("STOCKADE_STATE", state_dir())
            .env("TERM", "xterm-256color");
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("LANG", "C.UTF-8").current_dir(home());
        let end = || Stdio::from(self.slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        self.child = Some(command.spawn().unwrap());
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_raw(i32::try_from(self.child.as_ref().unwrap().id()).unwrap()).unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    fn keys(&self, keys: &str) {
        rustix::io::write(&self.master, keys.as_bytes()).unwrap();
    }

    /// Reads what is shown for at most `wait`.
    fn read(&mut self, wait: Duration) -> bool {
        let timeout =
            Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait.as_nanos()).unwrap().min(999_999_999) };
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return false;
        }
        let mut chunk = [0u8; 4096];
        match rustix::io::read(&self.master, &mut chunk) {
            Ok(n) if n > 0 => {
                self.seen.extend_from_slice(&chunk[..n]);
                true
            }
            _ => false,
        }
    }

    /// Waits until `text` was shown, and forgets what came until then.
    fn expect(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.windows(text.len()).position(|w| w == text.as_bytes()) {
                self.seen.drain(..at + text.len());
                return;
            }
            assert!(
                Instant::now() < until,
                "{text:?} did not come, but {:?}",
                String::from_utf8_lossy(&self.seen)
            );
            self.read(Duration::from_millis(100));
        }
    }

    /// Presses a key until it has made `text` appear.
    fn press(&mut self, key: &str, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !contains(&self.seen, text.as_bytes()) {
            assert!(
                Instant::now() < until,
                "{text:?} did not come, but {:?}",
                String::from_utf8_lossy(&self.seen)
            );
            self.keys(key);
            let next = Instant::now() + Duration::from_millis(500);
            while Instant::now() < next && !contains(&self.seen, text.as_bytes()) {
                self.read(Duration::from_millis(50));
            }
        }
        self.expect(text);
    }

    /// Waits for the end: exit code, or 128 and the signal.
    fn end(&mut self) -> i32 {
        let mut child = self.child.take().unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                while self.read(Duration::from_millis(1)) {}
                return status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
            }
            if Instant::now() > until {
                let _ = child.kill();
                panic!("it does not end: {:?}", String::from_utf8_lossy(&self.seen));
            }
            self.read(Duration::from_millis(20));
        }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Every field of the terminal's modes.
    fn modes(&self) -> String {
        format!("{:?}", tcgetattr(&self.slave).unwrap())
    }

    /// Bytes that the next reader of the terminal would get.
    fn unread(&self) -> u64 {
        let mut raw = tcgetattr(&self.slave).unwrap();
        raw.make_raw();
        rustix::termios::tcsetattr(&self.slave, rustix::termios::OptionalActions::Now, &raw).unwrap();
        rustix::io::ioctl_fionread(&self.slave).unwrap()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn has(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    needs(found.is_ok_and(|s| s.success()), &format!("{program} is not installed"))
}

#[test]
fn the_size_and_its_changes_reach_the_command() {
    let workspace = Workspace::new("tty-size");
    let mut pty = Pty::new(30, 100);
    let script = "stty size; trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.05; done";
    pty.exec(&workspace, &["--tty"], &["sh", "-c", script]);
    pty.expect("30 100");
    pty.expect("ready");
    pty.resize(41, 123);
    pty.expect("41 123");
    assert_eq!(pty.end(), 7);
}

/// Ctrl-Z, Ctrl-C, Ctrl-\ and Ctrl-D go to the job that has the command's terminal.
#[test]
fn a_shell_inside_has_job_control() {
    let workspace = Workspace::new("tty-jobs");
    for profile in ["offline", "strict"] {
        let mut pty = Pty::new(24, 80);
        let before = pty.modes();
        pty.exec(&workspace, &["--tty", "--profile", profile], &["bash", "--norc", "--noprofile", "-i"]);
        pty.keys("PS1='r''eady> '; bind 'set enable-bracketed-paste off'\n");
        pty.expect("ready> ");
        // The key means the job once the job has the terminal.
        let job = "sh -c 'echo run\"\"ning; exec sleep 1000'\n";
        pty.keys(job);
        pty.expect("running");
        pty.keys("\x1a");
        pty.expect("Stopped");
        pty.keys("jobs -r | wc -l; echo status-$((1+1))\n");
        pty.expect("status-2");
        pty.keys("bg; jobs -r; echo status-$((1+2))\n");
        pty.expect("Running");
        pty.expect("status-3");
        pty.keys("echo s-$((2+2)); fg\n");
        pty.expect("s-4");
        pty.expect("exec sleep 1000'");
        // `fg` names the job before it hands over the terminal.
        pty.press("\x03", "ready> ");
        pty.keys("sh -c 'echo run\"\"ning; exec cat'\n");
        pty.expect("running");
        pty.keys("some line\n");
        pty.expect("some line\r\nsome line\r\n");
        pty.keys("\x04");
        pty.expect("ready> ");
        pty.keys(job);
        pty.expect("running");
        pty.keys("\x1c");
        pty.expect("Quit");
        pty.expect("ready> ");
        pty.keys("exit 5\n");
        assert_eq!(pty.end(), 5, "{profile}");
        assert_eq!(pty.modes(), before, "{profile}");
    }
}

/// Being stopped and continued from outside, as shells do it with jobs.
#[test]
fn a_stopped_stockade_gives_the_terminal_back() {
    let workspace = Workspace::new("tty-stop");
    let mut pty = Pty::new(24, 80);
    let before = pty.modes();
    pty.exec(&workspace, &["--tty"], &["sh", "-c", "echo ready; read x; echo got-$x"]);
    pty.expect("ready");
    assert!(await_that(PATIENCE, || pty.is_raw()));
    for _ in 0..3 {
        pty.signal(rustix::process::Signal::TSTP);
        let stat = format!("/proc/{}/stat", pty.pid().as_raw_nonzero());
        let stopped = || std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") T "));
        assert!(await_that(PATIENCE, stopped));
        assert_eq!(pty.modes(), before);
        pty.resize(50, 50);
        pty.signal(rustix::process::Signal::CONT);
        assert!(await_that(PATIENCE, || pty.is_raw()));
    }
    // What is typed still arrives.
    pty.keys("it\r");
    pty.expect("got-it");
    assert_eq!(pty.end(), 0);
    assert_eq!(pty.modes(), before);
}

/// Everything that xterm, kitty and their kin can be left in.
const MESS: &str = concat!(
    "\\033[?1049h\\033[?25l\\033[?1000h\\033[?1003h\\033[?1006h\\033[?1004h\\033[?2004h\\033[?1h\\033=\\033[4h\\033[?7l",
    "\\033[3;7r\\033[?6h\\033(0\\016\\033[31;7m\\033[?5h\\033[>1u\\033[>4;2m\\033]4;1;#00ff00\\007\\033]0;owned\\007",
    "\\033[?2026h\\033]52;c;never ended",
);

fn resets(seen: &[u8]) -> bool {
    ["\x1b\\", "\x1b[?1049l", "\x1b[!p", "\x1b[?2004l", "\x1b[?1003l", "\x1b[?25h", "\x1b]104"]
        .iter()
        .all(|part| contains(seen, part.as_bytes()))
}

/// However it ends: by itself, by a limit, by a signal to it or to us, or refused after it began.
#[test]
fn every_end_puts_the_terminal_back() {
    let workspace = Workspace::new("tty-mess");
    let leave = |rest: &str| format!("stty -echo -icanon; printf '{MESS}'; {rest}");
    for options in [&["--tty", "--timeout", "2s"][..], &["--timeout", "2s"]] {
        for (rest, code) in
            [("exit 3", 3), ("kill -9 $$", 137), ("sleep 100", 124), ("printf ready; sleep 100", 128 + 15)]
        {
            let mut pty = Pty::new(24, 80);
            let before = pty.modes();
            let options: Vec<&str> =
                if code == 143 { options[..options.len() - 2].to_vec() } else { options.to_vec() };
            pty.exec(&workspace, &options, &["sh", "-c", &leave(rest)]);
            if code == 143 {
                pty.expect("ready");
                pty.signal(rustix::process::Signal::TERM);
            }
            let ended = pty.end();
            assert_eq!(ended, code, "{options:?} {rest}");
            assert_eq!(pty.modes(), before, "{options:?} {rest}");
            assert!(resets(&pty.seen), "{options:?} {rest}: {:?}", String::from_utf8_lossy(&pty.seen));
        }
    }
    // Output that changes nothing is followed by nothing.
    let mut pty = Pty::new(24, 80);
    pty.exec(&workspace, &[], &["printf", "plain\\033[K text"]);
    assert_eq!(pty.end(), 0);
    assert_eq!(String::from_utf8_lossy(&pty.seen), "plain\x1b[K text");
}

/// The answer to a question that a command asked at its end would be typed into the caller's shell.
#[test]
fn late_answers_are_not_left_for_the_next_reader() {
    let workspace = Workspace::new("tty-answers");
    for options in [&["--tty"][..], &[]] {
        let mut pty = Pty::new(24, 80);
        pty.exec(&workspace, options, &["printf", "\\033[6n\\033[21t"]);
        // The terminal answers when it comes to it: the command is long gone by then.
        pty.expect("\x1b[c");
        pty.keys("\x1b[5;5R");
        pty.keys("\x1b]lrm -rf x\x1b\\");
        pty.keys("\x1b[?64;1;2c");
        assert_eq!(pty.end(), 0);
        assert_eq!(pty.unread(), 0, "{options:?}");
    }
    // A terminal that never answers holds nobody up for long.
    let mut pty = Pty::new(24, 80);
    pty.exec(&workspace, &["--tty"], &["printf", "\\033[6n"]);
    assert_eq!(pty.end(), 0);
}

/// A terminal that is stopped, or that nobody reads: limits and signals work, and the end is told in its exit code.
#[test]
fn a_terminal_that_nobody_reads_holds_nobody_up() {
    let workspace = Workspace::new("tty-stuck");
    for (options, signal, code) in [
        (&["--timeout", "1s"][..], false, 124),
        (&["--tty", "--timeout", "1s"], false, 124),
        (&[], true, 143),
        (&["--tty"], true, 143),
    ] {
        let mut pty = Pty::new(24, 80);
        pty.exec(&workspace, options, &["sh", "-c", "yes | head -c 400000; touch written; sleep 100"]);
        // More than the terminal holds, and nobody takes it.
        std::thread::sleep(Duration::from_millis(800));
        if signal {
            pty.signal(rustix::process::Signal::TERM);
        }
        let mut child = pty.child.take().unwrap();
        let ended = await_that(PATIENCE, || child.try_wait().unwrap().is_some());
        if !ended {
            let _ = child.kill();
        }
        let status = child.wait().unwrap();
        assert!(ended, "{options:?}: it hangs");
        assert_eq!(status.code(), Some(code), "{options:?} {status:?}");
        assert!(!workspace.path().join("written").exists(), "{options:?}: the terminal took it all");
    }
}

/// A real terminal emulator after the same mess: every flag as before, and the screen's text still there.
#[test]
fn tmux_is_as_it_was() {
    if !has("tmux") {
        return;
    }
    let workspace = Workspace::new("tty-tmux");
    let socket = unique("stockade-tmux");
    let tmux = |words: &[&str]| {
        let mut command = Command::new("tmux");
        command
            .args(["-L", &socket, "-f", "/dev/null"])
            .args(words)
            .env("HOME", home())
            .env("LANG", "C.UTF-8");
        let out = command.env_remove("TMUX").output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    struct Server<'s>(&'s str);
    impl Drop for Server<'_> {
        fn drop(&mut self) {
            let _ = Command::new("tmux").args(["-L", self.0, "kill-server"]).output();
        }
    }
    let _server = Server(&socket);
    tmux(&["new-session", "-d", "-x", "80", "-y", "24", "sh"]);
    let flags = concat!(
        "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{mouse_sgr_flag} #{keypad_flag} #{keypad_cursor_flag} ",
        "#{insert_flag} #{wrap_flag} #{origin_flag} #{scroll_region_upper} #{scroll_region_lower}"
    );
    let state = || tmux(&["display-message", "-p", flags]);
    let shown = || tmux(&["capture-pane", "-p", "-J", "-S", "-"]);
    tmux(&["send-keys", "PS1='> '; clear; echo before", "Enter"]);
    assert!(
        await_that(PATIENCE, || shown().contains("\nbefore") || shown().starts_with("before")),
        "{}",
        shown()
    );
    let clean = state();
    for (n, tty) in ["--tty", "--quiet"].into_iter().enumerate() {
        let line = format!(
            "{} exec --state-dir {} {tty} -w {} -- printf '{MESS}'; echo 'aft'er{n}",
            bin().display(),
            state_dir().display(),
            workspace.path().display(),
        );
        tmux(&["send-keys", "-l", &line]);
        tmux(&["send-keys", "Enter"]);
        let marker = format!("after{n}");
        assert!(await_that(PATIENCE, || shown().contains(&marker)), "{tty}: {} {}", state(), shown());
        assert_eq!(state(), clean, "{tty}");
        assert!(shown().contains("before"), "{tty}: {}", shown());
    }
}

#[test]
fn full_screen_programs_work_inside() {
    let workspace = Workspace::new("tty-programs");
    let lines: String = (1..=200).map(|n| format!("line-{n:03}\n")).collect();
    workspace.file("text", lines);
    for profile in ["offline", "strict"] {
        let tty = ["--tty", "--profile", profile];
        if has("less") {
            let mut pty = Pty::new(24, 80);
            pty.exec(&workspace, &tty, &["less", "text"]);
            pty.expect("line-001");
            pty.keys("G");
            pty.expect("line-200");
            pty.keys("q");
            assert_eq!(pty.end(), 0, "{profile}");
        }
        if has("vim") {
            let mut pty = Pty::new(24, 80);
            // The workspace of `strict` cannot be written.
            let name = if profile == "strict" { "/tmp/made".to_owned() } else { "made".to_owned() };
            pty.exec(
                &workspace,
                &tty,
                &["vim", "-u", "NONE", "-i", "NONE", "-N", "--cmd", "set ttimeoutlen=1", &name],
            );
            pty.expect("[New]");
            pty.keys("ihello from vim");
            pty.expect("hello from vim");
            pty.keys("\x1b");
            // The mode line is cleared.
            pty.expect("\x1b[");
            pty.keys(":wq");
            pty.expect(":wq");
            pty.keys("\r");
            assert_eq!(pty.end(), 0, "{profile}");
            if profile != "strict" {
                assert_eq!(workspace.read(&name).as_deref(), Some(&b"hello from vim\n"[..]));
            }
        }
        if has("script") {
            let mut pty = Pty::new(24, 80);
            let inner = "tty; echo in-$((40+2))";
            pty.exec(&workspace, &tty, &["script", "-q", "-e", "-c", inner, "/dev/null"]);
            pty.expect("/dev/pts/");
            pty.expect("in-42");
            assert_eq!(pty.end(), 0, "{profile}");
        }
        if has("tmux") {
            let mut pty = Pty::new(24, 80);
            pty.exec(
                &workspace,
                &tty,
                &["tmux", "-f", "/dev/null", "new-session", "echo in-$((40+2)); read x"],
            );
            if profile == "strict" {
                // Its server is reached by a Unix socket, and `strict` has none.
                pty.expect("denied: socket(AF_UNIX)");
                assert_eq!(pty.end(), 1);
            } else {
                pty.expect("in-42");
                pty.keys("\r");
                assert_eq!(pty.end(), 0, "{profile}");
            }
        }
    }
}

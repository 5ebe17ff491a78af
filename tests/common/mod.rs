//! What the behaviour tests share: hostile fixtures compiled once, a `Sandbox` around the binary that
//! always ends, tables of denials with their positive controls, and skips that are written down.
//!
//! Environment, all optional (set by `scripts/test-user` and `.ci/run`):
//!
//! | variable | means |
//! |---|---|
//! | `STOCKADE_TEST_HOME` | where workspaces are made: a home directory that is not root's |
//! | `STOCKADE_TEST_BIN` | the binary, when the tests were copied away from where cargo built it |
//! | `STOCKADE_TEST_TMP` | instead of `CARGO_TARGET_TMPDIR`, for the same reason |
//! | `STOCKADE_TEST_STATE` | where state directories are made [default: the home] |
//! | `STOCKADE_TEST_SOURCES` | instead of `tests/fixtures` of the package |
//! | `STOCKADE_TEST_GUARD` | the whole run already sits in a cgroup with limits on memory and processes |
//! | `STOCKADE_TEST_DELEGATED` | an ordinary user's own cgroups are delegated: limits must hold |
//! | `STOCKADE_TEST_KEEP` | leave workspaces behind |
//! | `STOCKADE_TEST_KERNEL` | another kernel than the one that the tables are written for: what it lacks is a skip |

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::wrong_self_convention,
    reason = "tests; `as_root` reads as what it says"
)]

use base64::Engine;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// What no sandboxed call of these tests should need; then it is killed and the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

// ---- places ----------------------------------------------------------------------------------

fn place(variable: &str, otherwise: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(otherwise), PathBuf::from)
}

/// The binary under test.
pub fn bin() -> PathBuf {
    place("STOCKADE_TEST_BIN", env!("CARGO_BIN_EXE_stockade"))
}

/// Scratch of the test run.
pub fn tmp() -> PathBuf {
    place("STOCKADE_TEST_TMP", env!("CARGO_TARGET_TMPDIR"))
}

fn sources() -> PathBuf {
    place("STOCKADE_TEST_SOURCES", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).join("hostile")
}

/// A home that is not root's, mode 0755, in which workspaces lie.
pub fn home() -> PathBuf {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let at = std::env::var_os("STOCKADE_TEST_HOME").map_or_else(beside_scratch, PathBuf::from);
        make_dir(&at, 0o755);
        at
    })
    .clone()
}

/// Not below what is private inside, where a workspace would bring directories that the tests expect to be absent: a
/// checkout may lie there.
fn beside_scratch() -> PathBuf {
    let below = ["/tmp", "/var/tmp", "/run", "/dev/shm"].iter().any(|scratch| tmp().starts_with(scratch));
    match std::env::var_os("HOME").filter(|_| below && !root()) {
        Some(home) => PathBuf::from(home).join(".cache/stockade-tests"),
        None if below => PathBuf::from("/home/.stockade-tests"),
        None => tmp().join("home"),
    }
}

fn make_dir(at: &Path, mode: u32) {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(at)
        .unwrap_or_else(|e| panic!("mkdir {at:?}: {e}"));
}

/// The state directory of this test binary: the same at its next run, so that the next start tidies up after
/// tests that killed stockade, and of no other binary, so that parallel ones don't meet.
pub fn state_dir() -> PathBuf {
    static STATE: OnceLock<PathBuf> = OnceLock::new();
    STATE
        .get_or_init(|| {
            let program = test_name();
            // Not in a home of somebody else: stockade rightly refuses a directory whose parents others may change.
            let base = std::env::var_os("STOCKADE_TEST_STATE").map_or_else(home, PathBuf::from);
            let at = base.join(format!(".state-{}", program.split("::").next().unwrap_or("tests")));
            make_dir(&at, 0o700);
            at
        })
        .clone()
}

/// A name that nothing else on this host carries.
pub fn unique(tag: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    format!("{tag}-{}-{}-{nanos}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether these tests run as root (stockade is then privileged).
pub fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What [`crate::common::skip`] files hold the name of: the running test.
pub fn test_name() -> String {
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = program.rsplit_once('-').map_or(program.clone(), |(name, _)| name.to_owned());
    format!("{program}::{}", std::thread::current().name().unwrap_or("main"))
}

/// A skip is a result: it is printed and written to `skips.txt`. The caller returns after it.
pub fn skip(reason: &str) {
    let line = format!("SKIP {} {} ({})\n", test_name(), reason, if root() { "root" } else { "user" });
    eprint!("{line}");
    let file = fs::OpenOptions::new().create(true).append(true).open(tmp().join("skips.txt"));
    file.and_then(|mut f| f.write_all(line.as_bytes())).expect("skips.txt");
}

/// Whether this is a kernel that lacks what others have, or a guest without some of their files: a control that
/// finds a call or a file absent is then a skip by name, and no failure.
pub fn other_kernel() -> bool {
    std::env::var_os("STOCKADE_TEST_KERNEL").is_some()
}

/// Milliseconds that a command is given to get going: ten times as many in a guest, which may be emulated.
pub fn pace(ms: u64) -> u64 {
    if other_kernel() { ms * 10 } else { ms }
}

/// How long is waited before a test fails: in a guest longer as well.
fn unhurried(patience: Duration) -> Duration {
    if other_kernel() { patience * 5 } else { patience }
}

/// The same as `--timeout` takes it.
pub fn paced(ms: u64) -> String {
    format!("{}ms", pace(ms))
}

/// Whether the kernel's Landlock has at least this ABI; a skip by name otherwise, where it may lack it.
#[must_use]
pub fn needs_landlock(abi: i64) -> bool {
    let has = landlock_abi();
    !other_kernel() || needs(has >= abi, &format!("needs Landlock ABI {abi}, this kernel has {has}"))
}

/// What the kernel says its Landlock can do; 0 for none.
pub fn landlock_abi() -> i64 {
    stockade::sys::landlock::abi().map_or(0, i64::from)
}

/// `skip` unless `condition`; returns whether to go on.
#[must_use]
pub fn needs(condition: bool, reason: &str) -> bool {
    if !condition {
        skip(reason);
    }
    condition
}

// ---- fixtures --------------------------------------------------------------------------------

/// Path of the compiled fixture `name`, made at first use and kept by the hash of its sources.
pub fn fixture(name: &str) -> PathBuf {
    static BUILT: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    if let Some(path) = built.get(name) {
        return path.clone();
    }
    let source = sources().join(format!("{name}.c"));
    let mut hash = Sha256::new();
    for part in [&source, &sources().join("case.h")] {
        hash.update(fs::read(part).unwrap_or_else(|e| panic!("{part:?}: {e}")));
    }
    let digest = hash.finalize().iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let dir = tmp().join("hostile");
    make_dir(&dir, 0o755);
    let path = dir.join(format!("{name}-{digest}"));
    if !path.exists() {
        let fresh = dir.join(unique(name));
        let done = Command::new("cc")
            .args(["-O1", "-Wall", "-static", "-o"])
            .args([&fresh, &source])
            .output()
            .expect("cc is needed to build the hostile fixtures");
        assert!(done.status.success(), "cc {source:?}: {}", String::from_utf8_lossy(&done.stderr));
        fs::rename(&fresh, &path).unwrap();
    }
    built.insert(name.to_owned(), path.clone());
    path
}

/// Runs a fixture without any containment, for the positive control. Only for cases that are harmless.
pub fn outside(name: &str, args: &[String]) -> Cases {
    let mut command = Command::new(fixture(name));
    command.args(args);
    Cases::of(&bounded(command, PATIENCE).stdout)
}

/// Runs a fixture as root of a bare user, mount and PID namespace: what a program may do that nobody
/// confines, with nothing of the host at stake.
pub fn in_userns(name: &str, args: &[String]) -> Cases {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--mount",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    // PID 1 of that namespace is the shell, so that no fixture is its own init.
    command.args(["sh", "-c", "\"$@\"; exit $?", "sh"]).arg(fixture(name)).args(args);
    Cases::of(&bounded(command, PATIENCE).stdout)
}

/// Runs any command to its end or kills it.
pub fn bounded(mut command: Command, patience: Duration) -> Raw {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Live::start(command, None).finish(patience)
}

// ---- workspaces ------------------------------------------------------------------------------

/// A directory of its own below [`home`], gone at the end.
pub struct Workspace {
    path: PathBuf,
}

impl Workspace {
    pub fn new(tag: &str) -> Self {
        let path = home().join("ws").join(unique(tag));
        make_dir(&path, 0o755);
        Self { path: fs::canonicalize(path).unwrap() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `path/rest` as text, for arguments of fixtures.
    pub fn at(&self, rest: &str) -> String {
        self.path.join(rest).to_str().unwrap().to_owned()
    }

    /// Writes a file, making its directories.
    pub fn file(&self, rest: &str, content: impl AsRef<[u8]>) -> String {
        let at = self.path.join(rest);
        make_dir(at.parent().unwrap(), 0o755);
        fs::write(&at, content).unwrap();
        at.to_str().unwrap().to_owned()
    }

    pub fn dir(&self, rest: &str) -> String {
        make_dir(&self.path.join(rest), 0o755);
        self.at(rest)
    }

    pub fn read(&self, rest: &str) -> Option<Vec<u8>> {
        fs::read(self.path.join(rest)).ok()
    }

    /// The fixture inside this workspace, as a link or a copy (by another process: a descriptor of ours that
    /// is open for writing would be inherited by some parallel test's child and make the exec ETXTBSY).
    pub fn fixture(&self, name: &str) -> String {
        let dir = self.path.join(".fx");
        make_dir(&dir, 0o755);
        let at = dir.join(name);
        if !at.exists() {
            let from = fixture(name);
            if fs::hard_link(&from, &at).is_err() {
                let done = Command::new("cp").arg(&from).arg(&at).status().unwrap();
                assert!(done.success(), "cp {from:?} {at:?}");
            }
        }
        at.to_str().unwrap().to_owned()
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if std::env::var_os("STOCKADE_TEST_KEEP").is_none() && !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Every path below `top` with its type, mode, owner and content digest: for "byte-identical".
/// `except` names subtrees that are not looked at.
pub fn snapshot(top: &Path, except: &[&Path]) -> BTreeMap<PathBuf, String> {
    let mut out = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(at) = todo.pop() {
        if except.contains(&at.as_path()) {
            continue;
        }
        let Ok(meta) = fs::symlink_metadata(&at) else { continue };
        let mut line = format!("mode={:o} uid={} gid={}", meta.mode(), meta.uid(), meta.gid());
        if meta.is_dir() {
            if let Ok(entries) = fs::read_dir(&at) {
                todo.extend(entries.flatten().map(|e| e.path()));
            }
        } else if meta.is_file() {
            let digest = Sha256::digest(fs::read(&at).unwrap_or_default());
            let _ = write!(line, " size={} sha={:02x?}", meta.len(), &digest[..8]);
        } else if let Ok(to) = fs::read_link(&at) {
            let _ = write!(line, " -> {}", to.display());
        }
        out.insert(at, line);
    }
    out
}

/// Differences of two snapshots, as lines.
pub fn differences(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut out = Vec::new();
    for (path, was) in before {
        match after.get(path) {
            None => out.push(format!("gone: {}", path.display())),
            Some(is) if is != was => out.push(format!("changed: {} {was} => {is}", path.display())),
            Some(_) => {}
        }
    }
    out.extend(after.keys().filter(|p| !before.contains_key(*p)).map(|p| format!("new: {}", p.display())));
    out
}

/// Set-id files, devices and foreign owners below `top`: what must never be left for the host.
pub fn dangerous_leftovers(top: &Path) -> Vec<String> {
    let owner = fs::metadata(top).unwrap().uid();
    let mut out = Vec::new();
    let mut todo = vec![top.to_owned()];
    while let Some(at) = todo.pop() {
        let Ok(meta) = fs::symlink_metadata(&at) else { continue };
        let kind = meta.mode() & libc::S_IFMT;
        if meta.mode() & 0o6000 != 0 && kind != libc::S_IFLNK {
            out.push(format!("set-id {:o} {}", meta.mode(), at.display()));
        }
        if kind == libc::S_IFCHR || kind == libc::S_IFBLK {
            out.push(format!("device {}", at.display()));
        }
        if meta.uid() != owner {
            out.push(format!("owner {} instead of {owner}: {}", meta.uid(), at.display()));
        }
        if meta.is_dir() {
            todo.extend(fs::read_dir(&at).into_iter().flatten().flatten().map(|e| e.path()));
        }
    }
    out
}

// ---- running ---------------------------------------------------------------------------------

/// A growing buffer that a reader thread fills.
#[derive(Default)]
struct Stream {
    state: Mutex<(Vec<u8>, bool)>,
    news: Condvar,
}

impl Stream {
    fn follow(mut from: impl Read + Send + 'static) -> Arc<Self> {
        let stream = Arc::new(Self::default());
        let filling = Arc::clone(&stream);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            loop {
                let got = from.read(&mut buffer).unwrap_or(0);
                let mut state = filling.state.lock().unwrap();
                state.0.extend_from_slice(&buffer[..got]);
                state.1 = got == 0;
                filling.news.notify_all();
                if got == 0 {
                    return;
                }
            }
        });
        stream
    }

    /// Waits until `ready` says so about the bytes so far; false when the time or the stream ended first.
    fn wait(&self, until: Instant, ready: impl Fn(&[u8]) -> bool) -> bool {
        let mut state = self.state.lock().unwrap();
        loop {
            if ready(&state.0) {
                return true;
            }
            let now = Instant::now();
            if state.1 || now >= until {
                return false;
            }
            state = self.news.wait_timeout(state, until - now).unwrap().0;
        }
    }

    fn ended(&self, until: Instant) -> bool {
        let mut state = self.state.lock().unwrap();
        while !state.1 {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            state = self.news.wait_timeout(state, until - now).unwrap().0;
        }
        true
    }

    fn bytes(&self) -> Vec<u8> {
        self.state.lock().unwrap().0.clone()
    }
}

/// A started process whose streams are read all along. It is killed when dropped.
pub struct Live {
    child: Child,
    stdout: Option<Arc<Stream>>,
    stderr: Option<Arc<Stream>>,
    started: Instant,
    guard: Option<Guard>,
    result: Option<PathBuf>,
}

/// How it ended.
#[derive(Debug)]
pub struct Raw {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub wall: Duration,
    /// It did not end by itself in time.
    pub overrun: bool,
    /// Somebody else held an end of its pipes 5 s after it ended.
    pub pipe_held: bool,
    /// The document that `--result-file` named.
    pub result: Option<Value>,
}

impl Live {
    pub fn start(mut command: Command, input: Option<Vec<u8>>) -> Self {
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        if let Some(bytes) = input {
            let mut stdin = child.stdin.take().expect("stdin is piped when there is input");
            std::thread::spawn(move || {
                let _ = stdin.write_all(&bytes);
            });
        }
        let stdout = child.stdout.take().map(Stream::follow);
        let stderr = child.stderr.take().map(Stream::follow);
        Self { child, stdout, stderr, started, guard: None, result: None }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits for `text` on stdout.
    pub fn await_output(&self, text: &str, patience: Duration) -> bool {
        self.stdout
            .as_ref()
            .expect("stdout is piped")
            .wait(Instant::now() + unhurried(patience), |seen| contains(seen, text.as_bytes()))
    }

    /// [`Self::await_output`], or a failed test that shows what there was instead.
    pub fn expect_output(&self, text: &str) {
        assert!(
            self.await_output(text, PATIENCE),
            "never saw {text:?}; stdout {:?} stderr {:?}",
            String::from_utf8_lossy(&self.stdout.as_ref().unwrap().bytes()),
            String::from_utf8_lossy(&self.stderr.as_ref().map(|s| s.bytes()).unwrap_or_default()),
        );
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).expect("the process is there");
    }

    /// Its stdin, to write to or close; only when it was started with one and no input.
    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end, at most `patience`, then kills.
    pub fn finish(mut self, patience: Duration) -> Raw {
        let until = self.started + unhurried(patience);
        let mut overrun = false;
        let mut nap = Duration::from_micros(200);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= until {
                overrun = true;
                let _ = self.child.kill();
                break self.child.wait().unwrap();
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        };
        let wall = self.started.elapsed();
        let drained = Instant::now() + Duration::from_secs(5);
        let mut pipe_held = false;
        let mut take = |stream: &Option<Arc<Stream>>| {
            stream.as_ref().map_or_else(Vec::new, |s| {
                pipe_held |= !s.ended(drained);
                s.bytes()
            })
        };
        let (stdout, stderr) = (take(&self.stdout), take(&self.stderr));
        let result = self
            .result
            .take()
            .and_then(|path| fs::read(path).ok())
            .and_then(|b| serde_json::from_slice(&b).ok());
        drop(self.guard.take());
        Raw { status, stdout, stderr, wall, overrun, pipe_held, result }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Raw {
    /// The exit code that a shell would show.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Which user the command is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// uid 1000, the default.
    Agent,
    /// uid 0 of its own namespace.
    Root,
}

/// Both, in the order in which tests try them.
pub const BOTH: [Inside; 2] = [Inside::Agent, Inside::Root];

impl Inside {
    pub fn uid(self) -> u32 {
        if self == Self::Root { 0 } else { 1000 }
    }
}

/// A call of `stockade exec` in the making.
pub struct Sandbox {
    workspace: Option<PathBuf>,
    options: Vec<OsString>,
    environment: BTreeMap<OsString, OsString>,
    launcher: Vec<OsString>,
    stdin: Input,
    patience: Duration,
    guard: Option<(u64, u64)>,
    cwd: Option<PathBuf>,
    stdout: Option<fs::File>,
    stderr: Option<fs::File>,
    result_file: bool,
    group: Option<i32>,
}

/// What stockade gets as stdin.
pub enum Input {
    Null,
    Bytes(Vec<u8>),
    /// A pipe that stays open in the test's hand.
    Held,
    File(fs::File),
    /// Closed: descriptor 0 does not exist.
    Closed,
}

impl Sandbox {
    /// The default profile in `workspace`.
    pub fn new(workspace: &Workspace) -> Self {
        let mut made = Self::bare();
        made.workspace = Some(workspace.path().to_owned());
        made
    }

    /// Without `--workspace`.
    pub fn bare() -> Self {
        let mut environment = BTreeMap::new();
        // Toolchains lie below the caller's home; CI says where (`scripts/test-user`).
        for name in ["PATH", "CARGO_HOME", "RUSTUP_HOME", "PYENV_ROOT", "LANG", "INSTA_UPDATE"] {
            if let Some(value) = std::env::var_os(name) {
                environment.insert(name.into(), value);
            }
        }
        environment.insert("HOME".into(), home().into());
        environment.insert("STOCKADE_STATE".into(), state_dir().into());
        Self {
            workspace: None,
            options: Vec::new(),
            environment,
            launcher: Vec::new(),
            stdin: Input::Null,
            patience: PATIENCE,
            guard: None,
            cwd: None,
            stdout: None,
            stderr: None,
            result_file: false,
            group: None,
        }
    }

    pub fn profile(self, name: &str) -> Self {
        self.option("--profile").option(name)
    }

    /// One more word before `--`.
    pub fn option(mut self, word: impl AsRef<OsStr>) -> Self {
        self.options.push(word.as_ref().to_owned());
        self
    }

    pub fn options<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.options.extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    pub fn set(self, key: &str, value: impl std::fmt::Display) -> Self {
        self.option("--set").option(format!("{key}={value}"))
    }

    pub fn inside(self, user: Inside) -> Self {
        if user == Inside::Root { self.set("identity.user", "root") } else { self }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.insert(name.into(), value.as_ref().to_owned());
        self
    }

    pub fn without_env(mut self, name: &str) -> Self {
        self.environment.remove(OsStr::new(name));
        self
    }

    /// A program that is started instead and given stockade's command line as its last arguments.
    pub fn launcher<W: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.launcher = words.into_iter().map(|w| w.as_ref().to_owned()).collect();
        self
    }

    pub fn stdin(mut self, input: Input) -> Self {
        self.stdin = input;
        self
    }

    pub fn stdout(mut self, file: fs::File) -> Self {
        self.stdout = Some(file);
        self
    }

    pub fn stderr(mut self, file: fs::File) -> Self {
        self.stderr = Some(file);
        self
    }

    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cwd = Some(dir.into());
        self
    }

    /// Process group of the started process (0: its own).
    pub fn process_group(mut self, group: i32) -> Self {
        self.group = Some(group);
        self
    }

    /// Puts stockade itself below limits, for payloads that would hurt the host if ours did not hold.
    /// As root in a cgroup of the test's own; otherwise `STOCKADE_TEST_GUARD` must say that one is there.
    pub fn guarded(mut self, memory: u64, processes: u64) -> Self {
        self.guard = Some((memory, processes));
        self
    }

    /// Also ask for `--result-file`, found in [`Raw::result`].
    pub fn with_result(mut self) -> Self {
        self.result_file = true;
        self
    }

    fn command<W: AsRef<OsStr>>(
        &mut self,
        argv: impl IntoIterator<Item = W>,
    ) -> (Command, Option<Guard>, Option<PathBuf>) {
        let guard = self.guard.filter(|_| root()).map(|(memory, processes)| Guard::new(memory, processes));
        let mut words: Vec<OsString> = Vec::new();
        if let Some(guard) = &guard {
            words.extend(guard.wrapper());
        }
        words.append(&mut self.launcher);
        words.push(bin().into());
        words.push("exec".into());
        if let Some(workspace) = &self.workspace {
            words.extend(["-w".into(), workspace.clone().into()]);
        }
        words.append(&mut self.options);
        let result = self.result_file.then(|| {
            let dir = home().join(".results");
            make_dir(&dir, 0o700);
            dir.join(unique("result"))
        });
        if let Some(path) = &result {
            words.extend(["--result-file".into(), path.clone().into()]);
        }
        words.push("--".into());
        words.extend(argv.into_iter().map(|w| w.as_ref().to_owned()));
        if matches!(self.stdin, Input::Closed) {
            let mut shell: Vec<OsString> =
                vec!["sh".into(), "-c".into(), "exec \"$@\" <&-".into(), "sh".into()];
            shell.append(&mut words);
            words = shell;
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear().envs(&self.environment);
        command.stdout(self.stdout.take().map_or_else(Stdio::piped, Stdio::from));
        command.stderr(self.stderr.take().map_or_else(Stdio::piped, Stdio::from));
        command.current_dir(self.cwd.clone().unwrap_or_else(home));
        if let Some(group) = self.group {
            command.process_group(group);
        }
        (command, guard, result)
    }

    /// Starts without waiting.
    pub fn spawn<W: AsRef<OsStr>>(mut self, argv: impl IntoIterator<Item = W>) -> Live {
        let (mut command, guard, result) = self.command(argv);
        let input = match std::mem::replace(&mut self.stdin, Input::Null) {
            Input::Null | Input::Closed => {
                command.stdin(Stdio::null());
                None
            }
            Input::Held => {
                command.stdin(Stdio::piped());
                None
            }
            Input::Bytes(bytes) => {
                command.stdin(Stdio::piped());
                Some(bytes)
            }
            Input::File(file) => {
                command.stdin(file);
                None
            }
        };
        let mut live = Live::start(command, input);
        live.guard = guard;
        live.result = result;
        live
    }

    /// Runs to the end; stdout and stderr are the command's own.
    pub fn raw<W: AsRef<OsStr>>(self, argv: impl IntoIterator<Item = W>) -> Raw {
        let patience = self.patience;
        self.spawn(argv).finish(patience)
    }

    /// Runs with `--json` and reads the document. Panics when there is none.
    pub fn run<W: AsRef<OsStr>>(self, argv: impl IntoIterator<Item = W>) -> Run {
        let raw = self.option("--json").raw(argv);
        Run::of(raw)
    }
}

/// A finished call with its document.
#[derive(Debug)]
pub struct Run {
    pub raw: Raw,
    pub json: Value,
    /// The command's own output.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Run {
    fn of(raw: Raw) -> Self {
        assert!(!raw.overrun, "overran its time; stdout {:?} stderr {:?}", raw.out(), raw.err());
        let json: Value = serde_json::from_slice(&raw.stdout).unwrap_or_else(|e| {
            panic!(
                "no JSON document ({e}): exit {} stdout {:?} stderr {:?}",
                raw.code(),
                raw.out(),
                raw.err()
            )
        });
        assert_eq!(json["schema"], "stockade.result/1");
        let (stdout, stderr) = (embedded(&json["stdout"]), embedded(&json["stderr"]));
        Self { raw, json, stdout, stderr }
    }

    pub fn kind(&self) -> &str {
        self.json["outcome"]["kind"].as_str().unwrap_or("?")
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Name of the limit that ended it.
    pub fn limit(&self) -> Option<&str> {
        self.json["limit"]["name"].as_str()
    }

    pub fn exit_code(&self) -> Option<i64> {
        self.json["outcome"]["exit_code"].as_i64()
    }

    /// Fails with everything there is to see unless the command ran and exited with `code`.
    #[track_caller]
    pub fn expect_exit(&self, code: i64) -> &Self {
        assert!(
            self.kind() == "finished" && self.exit_code() == Some(code) && i64::from(self.raw.code()) == code,
            "wanted exit {code}: process {} document {}\nstdout {}\nstderr {}\nstockade's stderr {}",
            self.raw.code(),
            serde_json::to_string_pretty(&self.json["outcome"]).unwrap(),
            self.out(),
            self.err(),
            self.raw.err(),
        );
        self
    }

    pub fn cases(&self) -> Cases {
        let cases = Cases::of(&self.stdout);
        assert!(
            !cases.0.is_empty(),
            "no case ran: exit {} outcome {}\nstderr {}\nstockade's stderr {}",
            self.raw.code(),
            self.json["outcome"],
            self.err(),
            self.raw.err()
        );
        cases
    }

    /// What `enforcement` says about one protection: (asked, got).
    pub fn enforcement(&self, protection: &str) -> Option<(String, String)> {
        self.json["enforcement"].as_array()?.iter().find(|e| e["protection"] == protection).map(|e| {
            let word = |key: &str| e[key].as_str().unwrap_or("?").to_owned();
            (word("asked"), word("got"))
        })
    }
}

/// The embedded bytes; of a long stream its head and its tail (`total_bytes` says how long it was).
fn embedded(stream: &Value) -> Vec<u8> {
    if stream.get("head").is_some() {
        return [embedded(&stream["head"]), embedded(&stream["tail"])].concat();
    }
    if let Some(text) = stream["text"].as_str() {
        return text.as_bytes().to_vec();
    }
    stream["b64"]
        .as_str()
        .map_or_else(Vec::new, |b| base64::engine::general_purpose::STANDARD.decode(b).expect("base64"))
}

// ---- cases and tables ------------------------------------------------------------------------

/// One line of a fixture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub ret: i64,
    pub errno: String,
    pub detail: String,
}

/// The lines of a fixture by name.
#[derive(Clone, Debug, Default)]
pub struct Cases(pub BTreeMap<String, Case>);

impl Cases {
    /// Takes the `case` lines out of an output; all else (floods) is passed over.
    pub fn of(output: &[u8]) -> Self {
        let text = String::from_utf8_lossy(output);
        let mut found = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.splitn(5, ' ');
            if words.next() != Some("case") {
                continue;
            }
            let (Some(name), Some(ret), Some(errno)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Ok(ret) = ret.parse() else { continue };
            let case = Case { ret, errno: errno.to_owned(), detail: words.next().unwrap_or("").to_owned() };
            assert!(found.insert(name.to_owned(), case).is_none(), "case {name} twice in {text}");
        }
        Self(found)
    }

    #[track_caller]
    pub fn get(&self, name: &str) -> &Case {
        self.0.get(name).unwrap_or_else(|| panic!("no case {name} in {:?}", self.0.keys()))
    }

    /// The errno alone.
    pub fn errno(&self, name: &str) -> &str {
        self.0.get(name).map_or("MISSING", |c| c.errno.as_str())
    }
}

/// How a row shows that its route works when nobody forbids it.
#[derive(Clone, Debug)]
enum Control {
    /// The row is itself a positive control.
    Itself,
    /// Another row of the same table, that must be `OK`.
    Row(&'static str),
    /// The same attempt without containment gives this instead.
    Outside(&'static str),
    /// The same attempt in a bare user namespace gives this instead.
    Userns(&'static str),
    /// Another attempt (case and parameter) without containment gives this.
    OutsideWith(String, &'static str),
    /// None is possible on this host; why.
    None(&'static str),
}

/// One attempt and what must come of it.
#[derive(Clone, Debug)]
pub struct Row {
    case: String,
    param: Option<String>,
    errno: &'static str,
    errno_root: Option<&'static str>,
    ret: Option<i64>,
    control: Control,
}

/// The attempt `case` (or `label:case`) is denied with exactly `errno` (`A|B` only where the kernel itself
/// answers either, and the row says why).
pub fn deny(case: &str, errno: &'static str) -> Row {
    assert_ne!(errno, "OK");
    Row {
        case: case.to_owned(),
        param: None,
        errno,
        errno_root: None,
        ret: None,
        control: Control::None("not said"),
    }
}

/// The attempt succeeds: what must keep working, and the controls of other rows.
pub fn allow(case: &str) -> Row {
    Row { errno: "OK", control: Control::Itself, ..deny(case, "?") }
}

/// An observation: it succeeds and its number is `ret`.
pub fn observe(case: &str, ret: i64) -> Row {
    Row { ret: Some(ret), ..allow(case) }
}

impl Row {
    /// The case's parameter.
    pub fn with(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// A different answer for inside-root.
    pub fn as_root(mut self, errno: &'static str) -> Self {
        self.errno_root = Some(errno);
        self
    }

    /// The number that must come back as well.
    pub fn ret(mut self, ret: i64) -> Self {
        self.ret = Some(ret);
        self
    }

    /// Control: `row` of the same table is `OK` in the same sandbox.
    pub fn beside(mut self, row: &'static str) -> Self {
        self.control = Control::Row(row);
        self
    }

    /// Control: uncontained, the very same attempt gives `errno` (usually `OK`).
    pub fn outside(mut self, errno: &'static str) -> Self {
        self.control = Control::Outside(errno);
        self
    }

    /// Control: uncontained, another attempt gives `errno`.
    pub fn outside_with(mut self, attempt: impl Into<String>, errno: &'static str) -> Self {
        self.control = Control::OutsideWith(attempt.into(), errno);
        self
    }

    /// Control: as root of a bare user namespace the same attempt gives `errno`.
    pub fn in_userns(mut self, errno: &'static str) -> Self {
        self.control = Control::Userns(errno);
        self
    }

    /// No control is possible here, because …
    pub fn no_control(mut self, why: &'static str) -> Self {
        self.control = Control::None(why);
        self
    }

    fn label(&self) -> &str {
        self.case.split(':').next().unwrap_or(&self.case)
    }

    fn argument(&self) -> String {
        self.param.as_ref().map_or_else(|| self.case.clone(), |p| format!("{}={p}", self.case))
    }

    fn wanted(&self, inside: Inside) -> &'static str {
        self.errno_root.filter(|_| inside == Inside::Root).unwrap_or(self.errno)
    }
}

/// Arguments for a fixture from rows.
pub fn arguments(rows: &[Row]) -> Vec<String> {
    rows.iter().map(Row::argument).collect()
}

/// Compares what a fixture printed with what the rows want; every mismatch in one list.
pub fn mismatches(rows: &[Row], cases: &Cases, inside: Inside) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in rows {
        let Some(got) = cases.0.get(row.label()) else {
            wrong.push(format!("{inside:?}: {}: no line", row.label()));
            continue;
        };
        let wanted = row.wanted(inside);
        if !wanted.split('|').any(|w| w == got.errno) || row.ret.is_some_and(|r| r != got.ret) {
            let ret = row.ret.map_or_else(String::new, |r| format!(" ret {r}"));
            wrong.push(format!(
                "{inside:?}: {}: wanted {wanted}{ret}, got {} ret {} {}",
                row.argument(),
                got.errno,
                got.ret,
                got.detail
            ));
        }
        if let Control::Row(name) = &row.control
            && cases.errno(name) != "OK"
        {
            wrong.push(format!("{inside:?}: control {name} of {}: {}", row.label(), cases.errno(name)));
        }
    }
    wrong
}

/// Label, argument for the fixture, wanted errno.
type Attempt = (String, String, &'static str);

/// Runs the controls that need no sandbox: a denial that happens anyway proves nothing.
pub fn control_mismatches(fixture: &str, rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |wanted: Vec<Attempt>, run: &dyn Fn(&[String]) -> Cases, place: &str| {
        if wanted.is_empty() {
            return;
        }
        let cases = run(&wanted.iter().map(|(_, a, _)| a.clone()).collect::<Vec<_>>());
        for (label, argument, errno) in wanted {
            let got = cases.errno(&label);
            // Absent from this kernel: the denial beside it proves nothing here, and is proved where it is not.
            let as_wanted = errno.split('|').any(|e| e == got);
            if !as_wanted && other_kernel() && matches!(got, "ENOSYS" | "ENOENT" | "EAFNOSUPPORT") {
                skip(&format!("{argument}: this kernel or guest has none ({got})"));
                continue;
            }
            if !as_wanted {
                wrong.push(format!(
                    "control {place} {argument}: wanted {errno}, got {:?}",
                    cases.0.get(&label)
                ));
            }
        }
    };
    let pick = |f: &dyn Fn(&Row) -> Option<Attempt>| rows.iter().filter_map(f).collect::<Vec<_>>();
    let plain = pick(&|r| match r.control {
        Control::Outside(e) => Some((r.label().to_owned(), r.argument(), e)),
        _ => None,
    });
    let named = pick(&|r| match &r.control {
        Control::OutsideWith(a, e) => {
            Some((a.split([':', '=']).next().unwrap_or(a).to_owned(), a.clone(), *e))
        }
        _ => None,
    });
    let userns = pick(&|r| match r.control {
        Control::Userns(e) => Some((r.label().to_owned(), r.argument(), e)),
        _ => None,
    });
    compare(plain, &|a| outside(fixture, a), "outside");
    compare(named, &|a| outside(fixture, a), "outside");
    compare(userns, &|a| in_userns(fixture, a), "in a bare user namespace");
    for row in rows {
        if let Control::None(why) = row.control {
            assert_ne!(why, "not said", "row {} has no control and does not say why", row.case);
        }
    }
    wrong
}

/// Runs all rows inside for uid 1000 and for inside-root, and their controls once.
#[track_caller]
pub fn check(fixture: &str, workspace: &Workspace, rows: &[Row], with: impl Fn(Sandbox) -> Sandbox) {
    let program = workspace.fixture(fixture);
    let mut wrong = control_mismatches(fixture, rows);
    for inside in BOTH {
        let argv: Vec<String> = std::iter::once(program.clone()).chain(arguments(rows)).collect();
        let run = with(Sandbox::new(workspace).inside(inside)).run(argv);
        wrong.extend(mismatches(rows, &run.cases(), inside));
        if run.kind() != "finished" {
            wrong.push(format!("{inside:?}: outcome {}", run.json["outcome"]));
        }
    }
    assert!(wrong.is_empty(), "{} mismatches:\n  {}", wrong.len(), wrong.join("\n  "));
}

/// A launcher ([`Sandbox::launcher`]) for a host that has mounts of the test's own: `script`, a shell's, may mount, and
/// runs stockade as `"$@"`. In a mount namespace of its own, so that nothing is mounted where others see it; an ordinary
/// user is given it in a user namespace in which he is who he was, and stockade gets none of its capabilities.
pub fn with_mounts(script: &str) -> Vec<String> {
    let mut words = vec!["unshare"];
    if !root() {
        words.extend(["--user", "--map-current-user", "--keep-caps"]);
    }
    words.extend(["--mount", "--propagation", "private", "bash", "-c", script, "bash"]);
    if !root() {
        words.extend(["setpriv", "--ambient-caps=-all", "--inh-caps=-all"]);
    }
    words.into_iter().map(str::to_owned).collect()
}

// ---- host side -------------------------------------------------------------------------------

/// Whether `needle` is in `hay`.
pub fn contains(hay: &[u8], needle: &[u8]) -> bool {
    hay.windows(needle.len().max(1)).any(|w| w == needle)
}

/// Processes (not this one) whose command line holds `marker`; zombies have none and are not alive.
pub fn carrying(marker: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if pid == i32::try_from(std::process::id()).unwrap() {
            continue;
        }
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        if contains(&line, marker.as_bytes()) {
            found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

/// Waits until no process carries `marker`. Polls: the end of an init is awaited, never timed.
pub fn await_gone(marker: &str, patience: Duration) -> Result<Duration, Vec<(i32, String)>> {
    let start = Instant::now();
    loop {
        let left = carrying(marker);
        if left.is_empty() {
            return Ok(start.elapsed());
        }
        if start.elapsed() > unhurried(patience) {
            return Err(left);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `ready`, polling.
pub fn await_that(patience: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + unhurried(patience);
    while !ready() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Own cgroup in every mounted hierarchy, as directories.
pub fn own_cgroups() -> Vec<PathBuf> {
    let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut out = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        for mount in mounts.lines() {
            let Some((left, right)) = mount.split_once(" - ") else { continue };
            let left: Vec<&str> = left.split(' ').collect();
            let right: Vec<&str> = right.split(' ').collect();
            let fits = if controllers.is_empty() {
                right[0] == "cgroup2"
            } else {
                right[0] == "cgroup"
                    && right[2].split(',').any(|o| {
                        controllers.split(',').any(|c| {
                            c == o
                                || c.trim_start_matches("name=") == o.trim_start_matches("name=")
                                    && c.starts_with("name=")
                        })
                    })
            };
            if fits && left[3] == "/" {
                out.push(Path::new(left[4]).join(path.trim_start_matches('/')));
                break;
            }
        }
    }
    out
}

/// Directories below our own cgroups whose name begins like one of stockade's (`stockade-`).
pub fn leftover_cgroups() -> Vec<PathBuf> {
    let mut out = Vec::new();
    let beside = |d: &PathBuf| d.parent().filter(|a| a.join("cgroup.procs").exists()).map(Path::to_owned);
    let own = own_cgroups();
    for top in own.iter().filter_map(beside).chain(own.iter().cloned()) {
        for entry in fs::read_dir(&top).into_iter().flatten().flatten() {
            if entry.file_name().as_bytes().starts_with(b"stockade-") {
                out.push(entry.path());
            }
        }
    }
    out
}

/// Records of live runs in this process's state directory.
pub fn live_records() -> Vec<PathBuf> {
    fs::read_dir(state_dir().join("live")).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

/// Whether limits are expected to hold for the user that runs this.
pub fn limits_hold() -> bool {
    root() || std::env::var_os("STOCKADE_TEST_DELEGATED").is_some()
}

/// Whether a dangerous payload may be started at all: something else than ours holds it.
pub fn guard_exists() -> bool {
    std::env::var_os("STOCKADE_TEST_GUARD").is_some() || Guard::possible()
}

/// A cgroup of the test's own around one stockade process: the second belt for bombs and hogs.
pub struct Guard {
    dirs: Vec<PathBuf>,
}

impl Guard {
    /// Where a guard of each kind can be made: in our own cgroup, or in cgroup2, where ours holds processes and so hands
    /// nothing down, in the one around it.
    fn controllers() -> Vec<PathBuf> {
        let hands_down = |d: &Path| {
            fs::read_to_string(d.join("cgroup.subtree_control"))
                .is_ok_and(|t| t.split_whitespace().any(|c| c == "pids"))
        };
        own_cgroups()
            .into_iter()
            .filter_map(|d| {
                if d.join("memory.limit_in_bytes").exists()
                    || d.starts_with("/sys/fs/cgroup/pids")
                    || d.starts_with("/sys/fs/cgroup/memory")
                    || hands_down(&d)
                {
                    return Some(d);
                }
                d.parent().filter(|above| hands_down(above)).map(Path::to_owned)
            })
            .collect()
    }

    /// Whether this user may make one.
    pub fn possible() -> bool {
        root()
            && Self::controllers()
                .iter()
                .any(|d| d.starts_with("/sys/fs/cgroup/pids") || d.join("cgroup.subtree_control").exists())
    }

    fn new(memory: u64, processes: u64) -> Self {
        let name = unique("sbxguard");
        let mut dirs = Vec::new();
        for parent in Self::controllers() {
            let dir = parent.join(&name);
            fs::create_dir(&dir).unwrap_or_else(|e| panic!("{dir:?}: {e}"));
            for (file, value) in
                [("pids.max", processes), ("memory.limit_in_bytes", memory), ("memory.max", memory)]
            {
                if dir.join(file).exists() {
                    fs::write(dir.join(file), value.to_string())
                        .unwrap_or_else(|e| panic!("{dir:?}/{file}: {e}"));
                }
            }
            dirs.push(dir);
        }
        assert!(dirs.iter().any(|d| d.join("pids.max").exists()), "no guard on the number of processes");
        Self { dirs }
    }

    /// The words of a shell that enters and then becomes the rest of its arguments.
    fn wrapper(&self) -> Vec<OsString> {
        let mut script = String::new();
        for dir in &self.dirs {
            let file = if dir.join("tasks").exists() { "tasks" } else { "cgroup.procs" };
            let _ = write!(script, "echo $$ > '{}/{file}' || exit 96; ", dir.display());
        }
        script.push_str("exec \"$@\"");
        vec!["sh".into(), "-c".into(), script.into(), "guard".into()]
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Whatever is still in there was started by the guarded process: it is ours to end.
        for dir in &self.dirs {
            for _ in 0..50 {
                remove_cgroup(dir);
                if !dir.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn remove_cgroup(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
        if let Ok(pid) = pid.parse() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
    let _ = fs::remove_dir(dir);
}

/// `name=mnt:[1]` words of the `namespaces` case as pairs.
pub fn namespace_words(detail: &str) -> BTreeMap<String, String> {
    detail
        .split_whitespace()
        .filter_map(|w| w.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// A path as text, whatever its bytes.
pub fn text(path: &Path) -> String {
    path.to_str().expect("test paths are UTF-8").to_owned()
}

/// Bytes as a path component.
pub fn name(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// Sets the mode of a file of the test's own.
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A shell inside: the most common command.
pub fn sh(script: &str) -> [String; 3] {
    ["sh".into(), "-c".into(), script.into()]
}

/// The same with bash.
pub fn bash(script: &str) -> [String; 3] {
    ["bash".into(), "-c".into(), script.into()]
}

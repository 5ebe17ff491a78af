//! The power goes while a run is being recorded. What stockade asks of the kernel is traced (strace); from the trace come
//! the states that a disk may be in when the power goes at each sync: what was synced is there, of what was written since
//! any sectors, of what was named since any names. Each such state must open, verify, and hold every run that had been
//! told as it was told.
//!
//! `STOCKADE_POWER_SEED` repeats a run; `STOCKADE_POWER_VARIANTS` says how many states each instant has (default 6).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Workspace, bin, needs, unique};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stockade::evidence::{Place, Reader, StoreError, Which, verify};

/// What was asked of the kernel.
#[derive(Debug, Clone)]
enum Op {
    Create(PathBuf),
    Directory(PathBuf),
    Write(PathBuf, usize, Vec<u8>),
    Truncate(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    Sync(PathBuf),
}

/// Bytes of a C string in strace's hexadecimal form.
fn unhex(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).filter_map(|digits| u8::from_str_radix(digits.get(..2)?, 16).ok()).collect()
}

fn path(text: &str) -> PathBuf {
    PathBuf::from(String::from_utf8(unhex(text)).unwrap())
}

/// The path of the descriptor at the beginning of `text` (`7<\x2f…>`).
fn annotated(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once('<')?;
    Some(path(rest.split_once('>')?.0))
}

/// The quoted strings of a call.
fn strings(text: &str) -> Vec<&str> {
    text.split('"').skip(1).step_by(2).collect()
}

fn parse(line: &str, root: &Path) -> Option<Op> {
    let (call, rest) = line.split_once('(')?;
    if rest.contains(") = -1 ") {
        return None;
    }
    let within = |p: PathBuf| p.starts_with(root).then_some(p);
    let at = |text: &str, name: &str| Some(annotated(text)?.join(path(name)));
    let last_number = || rest.rsplit_once(") = ")?.0.rsplit(", ").next()?.parse::<usize>().ok();
    match call {
        "openat" if rest.contains("O_CREAT") => {
            let name = strings(rest).first().copied()?;
            // A relative name belongs to the descriptor before it.
            let at = at(rest, name).unwrap_or_else(|| path(name));
            within(at).map(Op::Create)
        }
        "mkdirat" => within(at(rest, strings(rest).first()?)?).map(Op::Directory),
        "pwrite64" => {
            let to = within(annotated(rest)?)?;
            Some(Op::Write(to, last_number()?, unhex(strings(rest).first()?)))
        }
        "write" => {
            let to = within(annotated(rest)?)?;
            Some(Op::Write(to, usize::MAX, unhex(strings(rest).first()?)))
        }
        "ftruncate" => Some(Op::Truncate(within(annotated(rest)?)?, last_number()?)),
        "fsync" | "fdatasync" => within(annotated(rest)?).map(Op::Sync),
        "renameat" | "renameat2" => {
            let names = strings(rest);
            let (_, second) = rest.split_once("\", ")?;
            let (from, to) = (at(rest, names.first()?)?, at(second, names.get(1)?)?);
            within(from).zip(within(to)).map(|(from, to)| Op::Rename(from, to))
        }
        "unlinkat" => within(at(rest, strings(rest).first()?)?).map(Op::Remove),
        "unlink" => within(path(strings(rest).first()?)).map(Op::Remove),
        _ => None,
    }
}

/// xorshift: a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// How much of what was not synced is there.
#[derive(Clone, Copy, PartialEq)]
enum Unsynced {
    Nothing,
    Everything,
    Anything,
}

#[derive(Clone, Default)]
struct File {
    synced: Vec<u8>,
    /// Writes and truncations since.
    since: Vec<Op>,
    written: usize,
}

/// A disk, as far as the kernel promised it.
#[derive(Clone, Default)]
struct Disk {
    files: BTreeMap<u64, File>,
    /// Names as the processes see them, and as they are on the disk.
    names: BTreeMap<PathBuf, u64>,
    synced_names: BTreeMap<PathBuf, u64>,
    directories: Vec<PathBuf>,
    next: u64,
}

impl Disk {
    fn of(root: &Path) -> Self {
        let mut disk = Self::default();
        let mut todo = vec![root.to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    disk.directories.push(entry.path());
                    todo.push(entry.path());
                } else {
                    let synced = fs::read(entry.path()).unwrap();
                    let written = synced.len();
                    disk.files.insert(disk.next, File { synced, since: Vec::new(), written });
                    disk.names.insert(entry.path(), disk.next);
                    disk.next += 1;
                }
            }
        }
        disk.synced_names = disk.names.clone();
        disk
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(at) => {
                if !self.names.contains_key(at) {
                    self.files.insert(self.next, File::default());
                    self.names.insert(at.clone(), self.next);
                    self.next += 1;
                }
            }
            // A directory that a lost name led to is as good as none; each sync of what is in it comes after one of it.
            Op::Directory(at) => self.directories.push(at.clone()),
            Op::Write(at, offset, bytes) => {
                let Some(file) = self.names.get(at).and_then(|id| self.files.get_mut(id)) else { return };
                let offset = if *offset == usize::MAX { file.written } else { *offset };
                file.written = file.written.max(offset + bytes.len());
                file.since.push(Op::Write(at.clone(), offset, bytes.clone()));
            }
            Op::Truncate(at, length) => {
                let Some(file) = self.names.get(at).and_then(|id| self.files.get_mut(id)) else { return };
                file.written = *length;
                file.since.push(op.clone());
            }
            Op::Rename(from, to) => {
                if let Some(id) = self.names.remove(from) {
                    self.names.insert(to.clone(), id);
                }
            }
            Op::Remove(at) => {
                self.names.remove(at);
            }
            Op::Sync(at) => {
                if let Some(file) = self.names.get(at).and_then(|id| self.files.get_mut(id)) {
                    for op in std::mem::take(&mut file.since) {
                        change(&mut file.synced, &op, None);
                    }
                } else {
                    // A directory: its own names, no others.
                    self.synced_names.retain(|name, _| name.parent() != Some(at));
                    let own = self.names.iter().filter(|(name, _)| name.parent() == Some(at));
                    self.synced_names.extend(own.map(|(name, id)| (name.clone(), *id)));
                }
            }
        }
    }

    /// Writes a state that the disk may be in to `to`, which stands for `root`.
    fn after_power_cut(&self, root: &Path, to: &Path, how: Unsynced, dice: &mut Dice) {
        let mkdir = |at: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(at).unwrap();
        mkdir(to);
        let moved = |at: &Path| to.join(at.strip_prefix(root).unwrap());
        for dir in &self.directories {
            mkdir(&moved(dir));
        }
        let mut names = match how {
            Unsynced::Everything => self.names.clone(),
            _ => self.synced_names.clone(),
        };
        if how == Unsynced::Anything {
            for (name, id) in &self.names {
                if dice.below(2) == 0 {
                    names.insert(name.clone(), *id);
                }
            }
            names.retain(|name, _| self.names.contains_key(name) || dice.below(2) == 0);
        }
        for (name, id) in &names {
            // The shared memory is of no consequence: it is made anew by the first who comes.
            if name.to_string_lossy().ends_with("-shm") {
                continue;
            }
            let file = &self.files[id];
            let mut bytes = file.synced.clone();
            for op in &file.since {
                match how {
                    Unsynced::Nothing => {}
                    Unsynced::Everything => change(&mut bytes, op, None),
                    Unsynced::Anything => change(&mut bytes, op, Some(dice)),
                }
            }
            fs::write(moved(name), bytes).unwrap();
            fs::set_permissions(moved(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

/// Does a write or a truncation; with dice, only to some of its sectors.
fn change(bytes: &mut Vec<u8>, op: &Op, mut dice: Option<&mut Dice>) {
    const SECTOR: usize = 512;
    match op {
        Op::Write(_, offset, data) => {
            let mut at = 0;
            while at < data.len() {
                let length = (SECTOR - (offset + at) % SECTOR).min(data.len() - at);
                if dice.as_mut().is_none_or(|dice| dice.below(2) == 0) {
                    let end = offset + at + length;
                    if bytes.len() < end {
                        bytes.resize(end, 0);
                    }
                    bytes[offset + at..end].copy_from_slice(&data[at..at + length]);
                }
                at += length;
            }
        }
        Op::Truncate(_, length) if dice.is_none_or(|dice| dice.below(2) == 0) => bytes.resize(*length, 0),
        _ => {}
    }
}

struct Scene {
    state: PathBuf,
    workspace: Workspace,
    log: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let base = std::env::var_os("STOCKADE_TEST_STATE").map_or_else(common::home, PathBuf::from);
        let state = base.join(unique(".power"));
        fs::DirBuilder::new().mode(0o700).create(&state).unwrap();
        Self { log: common::home().join(unique("trace")), state, workspace: Workspace::new("power") }
    }

    /// One run; what it asked of the kernel, when traced.
    fn exec(&self, traced: bool, options: &[String], command: &[&str]) -> Vec<Op> {
        let mut words: Vec<String> = Vec::new();
        if traced {
            let calls = "trace=openat,pwrite64,write,fsync,fdatasync,ftruncate,renameat,renameat2,unlinkat,mkdirat,unlink";
            words.extend(
                ["strace", "-o", self.log.to_str().unwrap(), "-y", "-xx", "-s", "99999999", "-e", calls]
                    .map(str::to_owned),
            );
        }
        words.push(bin().to_str().unwrap().to_owned());
        words.extend(["exec", "--state-dir", self.state.to_str().unwrap(), "-w"].map(str::to_owned));
        words.push(self.workspace.path().to_str().unwrap().to_owned());
        words.extend(options.iter().cloned());
        words.push("--".to_owned());
        words.extend(command.iter().map(|w| (*w).to_owned()));
        let mut run = Command::new(&words[0]);
        run.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).env("HOME", common::home());
        let out = run.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        if !traced {
            return Vec::new();
        }
        let text = fs::read_to_string(&self.log).unwrap();
        text.lines().filter_map(|line| parse(line, &self.state)).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.state);
        let _ = fs::remove_file(&self.log);
    }
}

/// Opens, as a later stockade would, and verifies; the number of runs that have their end.
fn ended(state: &Path) -> Result<i64, String> {
    let dir = fs::File::open(state).unwrap();
    let place = || Place::new(state, dir.as_fd(), rustix::process::geteuid().as_raw()).unwrap();
    // The writer comes first: it may have to finish what was begun.
    let store = stockade::evidence::Store::open(place()).map_err(|e| format!("writer: {e}"))?;
    drop(store);
    let reader = match Reader::open(place()) {
        Ok(reader) => reader,
        Err(StoreError::Absent { .. }) => return Ok(0),
        Err(e) => return Err(format!("reader: {e}")),
    };
    let verification = verify(&reader, Which::All, None).map_err(|e| format!("verify: {e}"))?;
    if !verification.is_good() {
        return Err(format!("{:?}", verification.findings));
    }
    let db = rusqlite::Connection::open(state.join("evidence.db")).unwrap();
    let ended = "SELECT count(*) FROM runs WHERE state = 'completed'";
    db.query_row(ended, [], |row| row.get(0)).map_err(|e| e.to_string())
}

/// Every state at every sync of `runs` traced runs, after `before` that were and `more` others.
fn cut(scene: &Scene, before: i64, more: i64, runs: usize, options: &[String]) {
    let seed = std::env::var("STOCKADE_POWER_SEED").ok().and_then(|v| v.parse().ok());
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let seed: u64 = seed.unwrap_or(u64::from(nanos) | 1);
    let variants = std::env::var("STOCKADE_POWER_VARIANTS").ok().and_then(|v| v.parse().ok()).unwrap_or(6);
    eprintln!("power_cut: seed {seed}");
    let mut dice = Dice(seed);
    for _ in 0..more {
        scene.exec(false, &[], &["true"]);
    }
    let before = before + more;
    let mut disk = Disk::of(&scene.state);
    let copy = scene.state.with_extension("cut");
    let (mut states, mut syncs) = (0, 0);
    for told in 0..runs {
        let ops = scene.exec(true, options, &["true"]);
        assert!(ops.iter().any(|op| matches!(op, Op::Sync(_))), "nothing was synced");
        for (n, op) in ops.iter().enumerate() {
            let is_sync = matches!(op, Op::Sync(_));
            syncs += usize::from(is_sync);
            // Just before a sync takes effect, just after it, and at the end, where the caller has been told.
            for after in [false, true] {
                let last = n + 1 == ops.len();
                if after {
                    disk.apply(op);
                }
                if !(is_sync || after && last) {
                    continue;
                }
                let told = before + i64::try_from(told).unwrap() + i64::from(after && last);
                for variant in 0..variants {
                    let how = match variant {
                        0 => Unsynced::Nothing,
                        1 => Unsynced::Everything,
                        _ => Unsynced::Anything,
                    };
                    let _ = fs::remove_dir_all(&copy);
                    disk.after_power_cut(&scene.state, &copy, how, &mut dice);
                    states += 1;
                    let found = ended(&copy);
                    let right = found.as_ref().is_ok_and(|found| (told..=told + 1).contains(found));
                    assert!(right, "seed {seed}, state {states}, at {op:?}: told {told}, found {found:?}");
                }
            }
        }
    }
    let _ = fs::remove_dir_all(&copy);
    eprintln!("power_cut: {states} states at {syncs} syncs");
}

fn traceable() -> bool {
    let strace = Command::new("strace").arg("-V").output().is_ok_and(|out| out.status.success());
    needs(strace, "strace is not installed")
}

#[test]
fn while_the_store_is_made() {
    if traceable() {
        cut(&Scene::new(), 0, 0, 2, &[]);
    }
}

/// The write-ahead log is brought into the database.
#[test]
fn while_the_log_is_brought_in() {
    if traceable() {
        let scene = Scene::new();
        // Some 20 pages each; it happens beyond 256.
        cut(&scene, 0, 9, 8, &[]);
    }
}

/// A snapshot that is too long for a row becomes a blob.
#[test]
fn while_a_blob_is_written() {
    if traceable() {
        let scene = Scene::new();
        let options: Vec<String> = (0..240)
            .flat_map(|n| {
                [
                    "--env".to_owned(),
                    format!("A_LONG_NAME_FOR_A_VARIABLE_WHICH_FILLS_THE_SNAPSHOT_OF_A_RUN_{n:04}=x"),
                ]
            })
            .collect();
        scene.exec(false, &options, &["true"]);
        let blobs = scene.state.join("blobs");
        assert!(blobs.exists(), "no blob was written");
        cut(&scene, 1, 0, 2, &options);
    }
}

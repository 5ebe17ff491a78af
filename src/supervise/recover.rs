//! Leases of live runs, and the clean-up after owners that died. Runs in the process that starts
//! executors, before it makes anything and, on every start, over what earlier owners left.
//!
//! A run is live exactly as long as somebody holds the exclusive `flock` on `live/<run id>`. The lock
//! belongs to the open file description: it goes when the owner (and a stage that has not yet closed what
//! it inherited) is gone, however it went. The file names, *before anything of it is made*, what the run
//! will have: an id range, cgroup directories, temporary files below the state directory. So a kill between
//! any two steps leaves a file that says what to look for; what was never made is simply not found. It is
//! unlinked last.
//!
//! A file holds one JSON record per line and is only appended to; the last complete line counts. It becomes
//! visible under its name with its first record written and its lock held: runs begin under the lock
//! `ids/lock`, as `.new-<run id>`, and are renamed. A leftover `.new-` is removed under the same lock.
//!
//! Cgroups without a live file are *not* swept: the file comes first and goes last, so with one state
//! directory there are none, and a directory that another state directory's run has just made looks the
//! same.

use super::cgroup::{self, CgroupName};
use super::outcome::ProtectedCreated;
use super::quarantine::{self, Place};
use super::state_dir::StateDir;
use crate::base::{RelPath, RunId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::fs::{flock, fstat, openat, openat2, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The version of the records that we write.
const RECORD_VERSION: u32 = 1;
/// The most that is read of a live file.
const LIVE_BYTES_MAX: usize = 1 << 20;
/// The most that is read of a user database.
const DATABASE_BYTES_MAX: usize = 8 << 20;
/// How long a begin waits for others that begin.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How long a recovery waits for the processes of one run.
const DEATH_WAIT: Duration = Duration::from_secs(5);
/// Depth and number of entries of a temporary tree that is removed.
const TREE_DEPTH_MAX: usize = 64;
const TREE_ENTRIES_MAX: usize = 1_000_000;
/// In `cache/`: which ranges of the block belong to users of the host.
const FOREIGN_CACHE: &str = "foreign-ids";
/// Marks what has not got its name yet.
const PENDING: &str = ".new-";

/// A process, by what cannot be recycled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// pid in the PID namespace of whoever wrote it.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// Reads the start time of `pid` from the procfs at `proc`.
    ///
    /// # Errors
    /// ESRCH and ENOENT when there is no such process; EINVAL when the file is not as proc_pid_stat(5) says.
    pub fn of(proc: &Path, pid: i32) -> Result<Self, Errno> {
        let path = proc.join(pid.to_string()).join("stat");
        let fd = openat(CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let bytes = read_all(fd.as_fd(), 64 * 1024)?;
        let text = String::from_utf8_lossy(&bytes);
        // The command name may hold anything; fields are counted after its last parenthesis.
        let tail = text.rfind(')').and_then(|at| text.get(at + 1..)).ok_or(Errno::INVAL)?;
        let start_ticks =
            tail.split_ascii_whitespace().nth(22 - 3).and_then(|f| f.parse().ok()).ok_or(Errno::INVAL)?;
        Ok(Self { pid, start_ticks })
    }
}

/// A range of ids that one run has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first uid and gid.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl IdRange {
    fn overlaps(&self, other: &Self) -> bool {
        let end = |r: &Self| u64::from(r.first) + u64::from(r.count);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

/// Where ranges are taken from, and whose ids they must not touch. Users of a network directory are not
/// seen; a host that has them in this block configures another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdSources {
    /// The first id of the block.
    pub first: u32,
    /// Its last.
    pub last: u32,
    /// Ids per run.
    pub step: u32,
    /// `/etc/subuid` and `/etc/subgid`.
    pub ranges: Vec<PathBuf>,
    /// `/etc/passwd` (uids and primary gids) and `/etc/group`.
    pub users: Vec<PathBuf>,
}

impl Default for IdSources {
    fn default() -> Self {
        Self {
            first: 1_879_048_192,
            last: 2_147_352_575,
            step: 65_536,
            ranges: vec!["/etc/subuid".into(), "/etc/subgid".into()],
            users: vec!["/etc/passwd".into(), "/etc/group".into()],
        }
    }
}

/// One record of a live file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRecord {
    /// Version of this record; one that we do not know is not acted upon.
    pub version: u32,
    /// The run.
    pub run: RunId,
    /// The boot in which processes and cgroups exist.
    pub boot_id: String,
    /// Who holds the lock; for diagnosis, and not in the first record.
    pub owner: Option<ProcessId>,
    /// init of the executor, once it exists.
    pub init: Option<ProcessId>,
    /// The leased id range.
    pub ids: Option<IdRange>,
    /// Every cgroup directory that the run may have.
    pub cgroups: Vec<CgroupName>,
    /// What the run may have made below the state directory and nobody needs afterwards.
    pub temporary: Vec<RelPath>,
    /// Trees in which protected names may have been created: looked through once everything is dead.
    #[serde(default)]
    pub places: Vec<Place>,
}

/// What a run that begins is going to have.
#[derive(Debug)]
pub struct Beginning<'a> {
    /// The run.
    pub run: RunId,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: &'a str,
    /// procfs.
    pub proc: &'a Path,
    /// Where to lease an id range; `None` when rootless.
    pub ids: Option<&'a IdSources>,
    /// Its cgroup directories ([`cgroup::names`]).
    pub cgroups: Vec<CgroupName>,
    /// Its temporary files below the state directory.
    pub temporary: Vec<RelPath>,
}

/// Why a run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// A system call on a file of ours.
    #[error("{step} {}: {errno}", path.display())]
    Step {
        /// What was done.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// Another process holds the lock under which runs begin.
    #[error("{} has been locked by another process for {waited_ms} ms", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long was waited.
        waited_ms: u64,
    },
    /// Every range of the block is leased or belongs to somebody.
    #[error(
        "no id range is free: {leased} of {slots} are leased to live runs, the others overlap users or /etc/subuid"
    )]
    NoIds {
        /// Ranges in the block.
        slots: u32,
        /// Of these, leased.
        leased: usize,
    },
    /// The record cannot be written as JSON.
    #[error("write the record of a run: {0}")]
    Record(#[from] serde_json::Error),
}

/// A live run. Dropping it without [`Live::end`] lets the lock go and leaves the file: the next start
/// cleans up what it names.
#[derive(Debug)]
pub struct Live {
    file: OwnedFd,
    live_dir: OwnedFd,
    path: PathBuf,
    proc: PathBuf,
    record: LiveRecord,
    /// A write failed half-way: the next record starts on a line of its own.
    torn: bool,
}

impl Live {
    /// Records the run and locks its file, an id range leased when `what.ids` is given. From here on a
    /// crash is somebody else's to clean up.
    ///
    /// # Errors
    /// See [`LiveError`]. Nothing is left behind but, at worst, a file that the next recovery removes.
    pub fn begin(state: &StateDir, what: Beginning<'_>) -> Result<Self, LiveError> {
        let lock = BeginLock::take(state)?;
        let ids = what.ids.map(|sources| lease(state, sources, &what.run)).transpose()?;
        let record = LiveRecord {
            version: RECORD_VERSION,
            run: what.run,
            boot_id: what.boot_id.to_owned(),
            owner: None,
            init: None,
            ids,
            cgroups: what.cgroups,
            temporary: what.temporary,
            places: Vec::new(),
        };
        let name = what.run.to_string();
        let pending = format!("{PENDING}{name}");
        let path = state.path().join("live").join(&name);
        let failed = |step| {
            let path = path.clone();
            move |errno| LiveError::Step { step, path, errno }
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::NOFOLLOW;
        let file = openat(state.live(), &pending, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .map_err(failed("make"))?;
        let live_dir = rustix::io::fcntl_dupfd_cloexec(state.live(), 3).map_err(failed("hold"))?;
        let proc = what.proc.to_path_buf();
        let mut live = Self { file, live_dir, path: path.clone(), proc, record, torn: false };
        let visible = flock(&live.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(failed("lock"))
            .and_then(|()| live.append())
            .and_then(|()| rename_new(state.live(), &pending, &name).map_err(failed("name")));
        if let Err(e) = visible {
            let _ = unlinkat(state.live(), &pending, AtFlags::empty());
            return Err(e);
        }
        drop(lock);
        Ok(live)
    }

    /// The record as it stands.
    pub fn record(&self) -> &LiveRecord {
        &self.record
    }

    /// Changes the record: what is added to `cgroups` and `temporary` is made afterwards, never before.
    ///
    /// # Errors
    /// When the record cannot be written; the earlier one then stands.
    pub fn update(&mut self, change: impl FnOnce(&mut LiveRecord)) -> Result<(), LiveError> {
        let before = self.record.clone();
        // Not earlier: reading it takes longer than all else in a record, and then the executor is at work already.
        let own = || ProcessId::of(&self.proc, rustix::process::getpid().as_raw_nonzero().get()).ok();
        self.record.owner = self.record.owner.or_else(own);
        change(&mut self.record);
        self.append().inspect_err(|_| self.record = before)
    }

    fn append(&mut self) -> Result<(), LiveError> {
        let mut line = serde_json::to_vec(&self.record)?;
        if self.torn {
            line.insert(0, b'\n');
        }
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            match rustix::io::write(&self.file, rest) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(errno) => {
                    self.torn = true;
                    return Err(LiveError::Step { step: "write", path: self.path.clone(), errno });
                }
            }
        }
        self.torn = false;
        Ok(())
    }

    /// Ends the run: everything that the record names is gone, and so is the file, before its lock.
    ///
    /// # Errors
    /// unlink(2).
    pub fn end(self) -> Result<(), LiveError> {
        unlinkat(&self.live_dir, self.record.run.to_string(), AtFlags::empty())
            .map_err(|errno| LiveError::Step { step: "remove", path: self.path.clone(), errno })
    }
}

/// Renames without replacing, where the file system can; a run id is used once in any case.
fn rename_new(dir: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
    match renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => renameat(dir, from, dir, to),
        other => other,
    }
}

/// The lock under which runs begin and unfinished beginnings are removed.
#[derive(Debug)]
struct BeginLock {
    _held: OwnedFd,
}

impl BeginLock {
    fn take(state: &StateDir) -> Result<Self, LiveError> {
        let path = || state.path().join("ids/lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(state.ids(), "lock", flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| LiveError::Step { step: "open", path: path(), errno })?;
        let start = Instant::now();
        loop {
            match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _held: fd }),
                Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_WAIT => {
                    // It is held for well under a millisecond.
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(LiveError::Locked { path: path(), waited_ms: LOCK_WAIT.as_millis() as u64 });
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(LiveError::Step { step: "lock", path: path(), errno }),
            }
        }
    }
}

// ---- id ranges ----------------------------------------------------------------------------------------

/// Picks a range that no live file names and no user of the host has. The search starts at a place that the
/// run id decides, so that a range is not used again at once.
fn lease(state: &StateDir, sources: &IdSources, run: &RunId) -> Result<IdRange, LiveError> {
    let path = state.path().join("live");
    let listing = |errno| LiveError::Step { step: "list", path: path.clone(), errno };
    let mut taken = Vec::new();
    for name in entries(state.live()).map_err(listing)? {
        if let Ok(bytes) = read_at(state.live(), &name, LIVE_BYTES_MAX)
            && let Some(ids) = last_record(&bytes).and_then(|r| r.ids)
        {
            taken.push(ids);
        }
    }
    let foreign = foreign(state, sources)?;
    choose(sources, run.random_bits(), &taken, &foreign)
}

/// What the user databases were when they were read: a change to any of them changes a stamp.
type Stamp = Option<[i64; 7]>;

/// Ranges of the block that belong to somebody, as they were found with the databases of `stamps`.
#[derive(Debug, Serialize, Deserialize)]
struct Foreign {
    block: IdRange,
    stamps: Vec<Stamp>,
    ranges: Vec<IdRange>,
}

/// The ranges that users of the host have in the block. Read anew when a database has changed, else from
/// `cache/foreign-ids`: four looks instead of four files.
fn foreign(state: &StateDir, sources: &IdSources) -> Result<Vec<IdRange>, LiveError> {
    let block = IdRange { first: sources.first, count: (sources.last - sources.first).saturating_add(1) };
    let paths = || sources.ranges.iter().chain(&sources.users);
    let stamps = paths().map(|path| stamp(path)).collect::<Result<Vec<_>, _>>()?;
    if let Ok(bytes) = read_at(state.cache(), FOREIGN_CACHE.as_bytes(), LIVE_BYTES_MAX)
        && let Ok(cached) = serde_json::from_slice::<Foreign>(&bytes)
        && cached.block == block
        && cached.stamps == stamps
    {
        return Ok(cached.ranges);
    }
    let mut ranges = Vec::new();
    for (n, path) in paths().enumerate() {
        let text = match read_at(CWD, path.as_os_str().as_bytes(), DATABASE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(LiveError::Step { step: "read", path: path.clone(), errno }),
        };
        let parse = if n < sources.ranges.len() { parse_ranges } else { parse_ids };
        parse(&String::from_utf8_lossy(&text), &mut ranges);
    }
    ranges.retain(|r| r.overlaps(&block));
    let found = Foreign { block, stamps, ranges };
    // Only a cache: without it the next run reads the databases again. The begin lock is held.
    if let Ok(bytes) = serde_json::to_vec(&found) {
        let _ = replace(state.cache(), FOREIGN_CACHE, &bytes);
    }
    Ok(found.ranges)
}

/// Taken before the file is read: a change in between makes the next look differ.
fn stamp(path: &Path) -> Result<Stamp, LiveError> {
    match rustix::fs::stat(path) {
        Ok(st) => Ok(Some([
            st.st_dev as i64,
            st.st_ino as i64,
            st.st_size,
            st.st_mtime,
            st.st_mtime_nsec as i64,
            st.st_ctime,
            st.st_ctime_nsec as i64,
        ])),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(LiveError::Step { step: "look at", path: path.to_path_buf(), errno }),
    }
}

/// Puts `bytes` in the place of the file `name`, whole or not at all.
fn replace(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<(), Errno> {
    let fresh = format!("{PENDING}{name}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(dir, &fresh, flags, Mode::RUSR | Mode::WUSR)?;
    if rustix::io::write(&fd, bytes)? != bytes.len() {
        return Err(Errno::IO);
    }
    renameat(dir, &fresh, dir, name)
}

fn choose(
    sources: &IdSources,
    random: u64,
    taken: &[IdRange],
    foreign: &[IdRange],
) -> Result<IdRange, LiveError> {
    let size = u64::from(sources.last) + 1 - u64::from(sources.first.min(sources.last));
    let slots = u32::try_from(size / u64::from(sources.step.max(1))).unwrap_or(u32::MAX);
    let start = u32::try_from(random % u64::from(slots.max(1))).unwrap_or(0);
    for n in (start..slots).chain(0..start) {
        let range = IdRange { first: sources.first + n * sources.step, count: sources.step };
        if !taken.iter().chain(foreign).any(|r| r.overlaps(&range)) {
            return Ok(range);
        }
    }
    Err(LiveError::NoIds { slots, leased: taken.len() })
}

/// `name:first:count` (subuid(5)).
fn parse_ranges(text: &str, out: &mut Vec<IdRange>) {
    for line in text.lines() {
        let mut fields = line.split(':').skip(1).map(|f| f.trim().parse::<u32>());
        if let (Some(Ok(first)), Some(Ok(count))) = (fields.next(), fields.next()) {
            out.push(IdRange { first, count });
        }
    }
}

/// `name:password:uid:gid:…` (passwd(5)) and `name:password:gid:members` (group(5)): the numbers among the
/// third and fourth field.
fn parse_ids(text: &str, out: &mut Vec<IdRange>) {
    for line in text.lines() {
        out.extend(
            line.split(':')
                .skip(2)
                .take(2)
                .filter_map(|f| f.parse().ok())
                .map(|first| IdRange { first, count: 1 }),
        );
    }
}

// ---- recovery -----------------------------------------------------------------------------------------

/// What a recovery needs to know of the host.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: &'a str,
    /// procfs.
    pub proc: &'a Path,
}

/// What a recovery did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Runs whose owner is gone and of which nothing is left now.
    pub cleaned: Vec<RunId>,
    /// Runs that somebody holds.
    pub live: usize,
    /// What could not be cleaned and is still there.
    pub kept: Vec<Leftover>,
    /// Protected names that the commands of dead owners had created, and where they were moved.
    pub swept: Vec<ProtectedCreated>,
}

/// Something that a recovery could not clean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leftover {
    /// Its file in `live/`, in visible characters.
    pub name: String,
    /// What is left and why.
    pub problems: Vec<String>,
}

/// Cleans up after owners that died: kills what is left of their processes, removes their cgroups and
/// temporary files, frees their id ranges. One directory listing when there is nothing to do. Runs that are
/// live or just beginning are not touched, and two recoveries at once divide the work by the same locks.
///
/// # Errors
/// When `live/` cannot be listed. What cannot be cleaned is no error but [`Recovered::kept`].
pub fn recover(state: &StateDir, host: Host<'_>) -> Result<Recovered, LiveError> {
    let listing = |errno| LiveError::Step { step: "list", path: state.path().join("live"), errno };
    let mut out = Recovered::default();
    let mut pending = Vec::new();
    for name in entries(state.live()).map_err(listing)? {
        if name.starts_with(PENDING.as_bytes()) {
            pending.push(name);
            continue;
        }
        let Some(run) = std::str::from_utf8(&name).ok().and_then(|n| n.parse::<RunId>().ok()) else {
            out.kept.push(leftover(&name, vec!["not a file of ours".to_owned()]));
            continue;
        };
        match clean(state, host, &name, &run, &mut out.swept) {
            Cleaned::Live => out.live += 1,
            Cleaned::Gone => {}
            Cleaned::Done => out.cleaned.push(run),
            Cleaned::Kept(problems) => out.kept.push(leftover(&name, problems)),
        }
    }
    if !pending.is_empty() {
        remove_pending(state, &pending, &mut out);
    }
    Ok(out)
}

fn leftover(name: &[u8], problems: Vec<String>) -> Leftover {
    Leftover { name: crate::base::text::visible(name), problems }
}

enum Cleaned {
    /// Somebody holds the lock.
    Live,
    /// Somebody else has just cleaned it, or its owner ended it.
    Gone,
    /// Nothing is left.
    Done,
    /// Something is.
    Kept(Vec<String>),
}

/// Beginnings that were never finished. A living one holds the begin lock until it has its final name, so
/// under that lock there are only dead ones.
fn remove_pending(state: &StateDir, pending: &[Vec<u8>], out: &mut Recovered) {
    let lock = match BeginLock::take(state) {
        Ok(lock) => lock,
        Err(e) => {
            out.kept.extend(pending.iter().map(|name| leftover(name, vec![e.to_string()])));
            return;
        }
    };
    for name in pending {
        match unlinkat(state.live(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => out.kept.push(leftover(name, vec![format!("remove: {e}")])),
        }
    }
    drop(lock);
}

fn clean(
    state: &StateDir,
    host: Host<'_>,
    name: &[u8],
    run: &RunId,
    swept: &mut Vec<ProtectedCreated>,
) -> Cleaned {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(state.live(), name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Cleaned::Gone,
        Err(e) => return Cleaned::Kept(vec![format!("open: {e}")]),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Cleaned::Live,
        Err(e) => return Cleaned::Kept(vec![format!("lock: {e}")]),
    }
    // Between our open and our lock its owner may have ended it, or another recovery cleaned it.
    if fstat(&file).is_ok_and(|st| st.st_nlink == 0) {
        return Cleaned::Gone;
    }
    let record = match read_all(file.as_fd(), LIVE_BYTES_MAX) {
        Ok(bytes) if bytes.is_empty() => None,
        Ok(bytes) => match last_record(&bytes) {
            Some(record) if record.version == RECORD_VERSION && record.run == *run => Some(record),
            _ => {
                return Cleaned::Kept(vec!["its content is not a record that this version knows".to_owned()]);
            }
        },
        Err(e) => return Cleaned::Kept(vec![format!("read: {e}")]),
    };
    // A file becomes visible with its first record; an empty one lost it to a power failure, and with it
    // went the boot in which its processes lived.
    let problems = record.map(|r| undo(state, host, &r, swept)).unwrap_or_default();
    if !problems.is_empty() {
        return Cleaned::Kept(problems);
    }
    match unlinkat(state.live(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Cleaned::Done,
        Err(e) => Cleaned::Kept(vec![format!("remove: {e}")]),
    }
}

fn undo(
    state: &StateDir,
    host: Host<'_>,
    record: &LiveRecord,
    swept: &mut Vec<ProtectedCreated>,
) -> Vec<String> {
    let mut problems = Vec::new();
    // Processes and cgroups do not outlive their boot.
    if record.boot_id == host.boot_id {
        if let Some(init) = record.init
            && let Err(problem) = kill_exactly(host.proc, init)
        {
            problems.push(problem);
        }
        problems.extend(
            cgroup::reclaim(&record.cgroups, &record.run, DEATH_WAIT).iter().map(ToString::to_string),
        );
    }
    for path in &record.temporary {
        if let Err(e) = remove_below(state.dir(), path) {
            problems.push(format!("remove {path}: {e}"));
        }
    }
    // Only once nothing of the run lives, or what is moved comes back.
    if problems.is_empty() {
        for created in quarantine::sweep_recorded(&record.places, &record.run.to_string()) {
            if created.moved_to.is_none() && !created.replaced {
                let path = crate::base::text::visible(created.path.as_bytes());
                problems.push(format!("the protected path {path} was created and cannot be moved aside"));
            }
            swept.push(created);
        }
    }
    problems
}

/// Kills the process that `id` names, and no other that has its pid by now, and waits for its end.
fn kill_exactly(proc: &Path, id: ProcessId) -> Result<(), String> {
    let Some(pid) = Pid::from_raw(id.pid).filter(|_| id.pid > 0) else {
        return Err(format!("{} is no pid", id.pid));
    };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(Errno::SRCH) => return Ok(()),
        Err(e) => return Err(format!("open process {}: {e}", id.pid)),
    };
    // Looked at with the descriptor in hand: if the start time is the recorded one, it is this process
    // that the descriptor holds; a later one with the same pid started later.
    match ProcessId::of(proc, id.pid) {
        Ok(now) if now == id => {}
        Ok(_) | Err(Errno::NOENT | Errno::SRCH) => return Ok(()),
        Err(e) => return Err(format!("look at process {}: {e}", id.pid)),
    }
    match pidfd_send_signal(&fd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(e) => return Err(format!("kill process {}: {e}", id.pid)),
    }
    let until = Instant::now() + DEATH_WAIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(format!("process {} did not die within {} s", id.pid, DEATH_WAIT.as_secs())),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(format!("wait for process {}: {e}", id.pid)),
        }
    }
}

// ---- files --------------------------------------------------------------------------------------------

/// The last line that is a whole record.
fn last_record(bytes: &[u8]) -> Option<LiveRecord> {
    bytes.rsplit(|b| *b == b'\n').find_map(|line| serde_json::from_slice(line).ok())
}

fn entries(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut out = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            out.push(name.to_vec());
        }
    }
    Ok(out)
}

fn read_at(dir: BorrowedFd<'_>, name: &[u8], max: usize) -> Result<Vec<u8>, Errno> {
    let fd = openat(dir, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    read_all(fd.as_fd(), max)
}

fn read_all(fd: BorrowedFd<'_>, max: usize) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    let mut buffer = [0u8; 8192];
    loop {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => return Ok(out),
            Ok(n) if out.len() + n > max => return Err(Errno::FBIG),
            Ok(n) => out.extend_from_slice(&buffer[..n]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Removes the file or tree at `path` beneath `dir`; no link is followed and no mount entered.
fn remove_below(dir: BorrowedFd<'_>, path: &RelPath) -> Result<(), Errno> {
    let path = path.as_path();
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let parent = match openat2(dir, above, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut left = TREE_ENTRIES_MAX;
    remove_tree(parent.as_fd(), name.as_bytes(), TREE_DEPTH_MAX, &mut left)
}

fn remove_tree(parent: BorrowedFd<'_>, name: &[u8], depth: usize, left: &mut usize) -> Result<(), Errno> {
    *left = left.checked_sub(1).ok_or(Errno::OVERFLOW)?;
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Linux says EISDIR for a directory, POSIX EPERM. unlink(2).
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e),
    }
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let dir = openat2(parent, name, flags, Mode::empty(), resolve)?;
    for entry in entries(dir.as_fd())? {
        remove_tree(dir.as_fd(), &entry, depth, left)?;
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const BOOT: &str = "00000000-0000-0000-0000-000000000001";

    fn state() -> (tempfile::TempDir, StateDir) {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let state = StateDir::open(&tmp.path().join("state"), uid).unwrap();
        (tmp, state)
    }

    fn run(n: u8) -> RunId {
        RunId::new(1_700_000_000_000, [n; 10])
    }

    fn host() -> Host<'static> {
        Host { boot_id: BOOT, proc: Path::new("/proc") }
    }

    /// Recovers until just `live` runs are held: a child that another test is just starting holds copies
    /// of our descriptors, and with them the locks, until it execs.
    fn settle(state: &StateDir, live: usize) -> Recovered {
        let mut all = Recovered::default();
        for _ in 0..1000 {
            let found = recover(state, host()).unwrap();
            all.cleaned.extend(found.cleaned);
            all.cleaned.sort();
            (all.live, all.kept) = (found.live, found.kept);
            if all.live == live {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        all
    }

    fn beginning<'a>(n: u8, ids: Option<&'a IdSources>) -> Beginning<'a> {
        Beginning {
            run: run(n),
            boot_id: BOOT,
            proc: Path::new("/proc"),
            ids,
            cgroups: Vec::new(),
            temporary: Vec::new(),
        }
    }

    fn names(state: &StateDir) -> Vec<String> {
        let mut names: Vec<_> =
            entries(state.live()).unwrap().into_iter().map(|n| String::from_utf8(n).unwrap()).collect();
        names.sort();
        names
    }

    fn small(tmp: &Path) -> IdSources {
        IdSources {
            first: 1000,
            last: 1399,
            step: 100,
            ranges: vec![tmp.join("subuid")],
            users: vec![tmp.join("passwd"), tmp.join("group")],
        }
    }

    #[test]
    fn a_run_is_live_while_held_and_gone_after_its_end() {
        let (_tmp, state) = state();
        let mut live = Live::begin(&state, beginning(1, None)).unwrap();
        live.update(|_| {}).unwrap();
        assert_eq!(live.record().owner.unwrap().pid, std::process::id() as i32);
        assert_eq!(recover(&state, host()).unwrap(), Recovered { live: 1, ..Recovered::default() });
        assert_eq!(names(&state), [run(1).to_string()]);
        live.end().unwrap();
        assert_eq!(recover(&state, host()).unwrap(), Recovered::default());
        assert!(names(&state).is_empty());
    }

    #[test]
    fn a_dropped_run_is_cleaned_with_what_it_names() {
        let (tmp, state) = state();
        std::fs::create_dir_all(tmp.path().join("state/tmp/x/deep")).unwrap();
        std::fs::write(tmp.path().join("state/tmp/x/deep/f"), "").unwrap();
        std::os::unix::fs::symlink(tmp.path(), tmp.path().join("state/tmp/x/out")).unwrap();
        std::fs::write(tmp.path().join("keep"), "").unwrap();
        let mut what = beginning(1, None);
        what.temporary = vec![RelPath::new("tmp/x").unwrap(), RelPath::new("tmp/never-made").unwrap()];
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let init = ProcessId::of(Path::new("/proc"), child.id() as i32).unwrap();
        let mut live = Live::begin(&state, what).unwrap();
        live.update(|r| r.init = Some(init)).unwrap();
        drop(live);
        let found = settle(&state, 0);
        assert_eq!(found, Recovered { cleaned: vec![run(1)], ..Recovered::default() });
        assert!(!tmp.path().join("state/tmp/x").exists());
        assert!(tmp.path().join("keep").exists(), "a link in a temporary tree was followed");
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_recycled_pid_and_another_boot_are_left_alone() {
        let (_tmp, state) = state();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let init = ProcessId::of(Path::new("/proc"), child.id() as i32).unwrap();
        let mut live = Live::begin(&state, beginning(1, None)).unwrap();
        live.update(|r| r.init = Some(ProcessId { start_ticks: init.start_ticks + 1, ..init })).unwrap();
        drop(live);
        let mut other = beginning(2, None);
        other.boot_id = "another";
        other.cgroups = vec![CgroupName { path: "/nonexistent/wrong-name".into(), v2: true }];
        let mut live = Live::begin(&state, other).unwrap();
        live.update(|r| r.init = Some(init)).unwrap();
        drop(live);
        assert_eq!(settle(&state, 0).cleaned, [run(1), run(2)]);
        assert!(child.try_wait().unwrap().is_none(), "the wrong process was killed");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_torn_update_leaves_the_record_before_it() {
        let (tmp, state) = state();
        let mut live = Live::begin(&state, beginning(1, None)).unwrap();
        live.update(|r| r.temporary = vec![RelPath::new("t").unwrap()]).unwrap();
        drop(live);
        let file = tmp.path().join("state/live").join(run(1).to_string());
        let mut text = std::fs::read(&file).unwrap();
        text.extend_from_slice(b"{\"version\":1,\"run\":\"0");
        std::fs::write(&file, text).unwrap();
        std::fs::write(tmp.path().join("state/t"), "").unwrap();
        assert_eq!(settle(&state, 0).cleaned, [run(1)]);
        assert!(!tmp.path().join("state/t").exists());
    }

    #[test]
    fn what_is_not_understood_is_named_and_kept() {
        let (tmp, state) = state();
        let live = tmp.path().join("state/live");
        std::fs::write(live.join("strange\x1b"), "").unwrap();
        std::fs::write(live.join(run(1).to_string()), "{\"version\":2}\n").unwrap();
        std::fs::write(live.join(run(2).to_string()), "").unwrap();
        let mut what = beginning(3, None);
        what.cgroups = vec![CgroupName { path: tmp.path().join("not-ours"), v2: true }];
        drop(Live::begin(&state, what).unwrap());
        let mut what = beginning(4, None);
        let fake = tmp.path().join(format!("{}{}", cgroup::NAME_PREFIX, run(4)));
        std::fs::create_dir(&fake).unwrap();
        what.cgroups = vec![CgroupName { path: fake.clone(), v2: false }];
        drop(Live::begin(&state, what).unwrap());
        let found = settle(&state, 0);
        assert_eq!(found.cleaned, [run(2)]);
        let kept: Vec<_> = found.kept.iter().map(|k| k.name.as_str()).collect();
        for name in ["strange\\u{1b}", &run(1).to_string(), &run(3).to_string(), &run(4).to_string()] {
            assert!(kept.contains(&name), "{name} in {kept:?}");
        }
        assert!(fake.exists());
        assert_eq!(names(&state).len(), 4);
    }

    #[test]
    fn unfinished_beginnings_go_only_under_the_begin_lock() {
        let (tmp, state) = state();
        let pending = tmp.path().join("state/live").join(format!("{PENDING}{}", run(1)));
        std::fs::write(&pending, "").unwrap();
        let lock = BeginLock::take(&state).unwrap();
        std::thread::scope(|s| {
            let other = s.spawn(|| recover(&state, host()).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            assert!(pending.exists());
            drop(lock);
            assert_eq!(other.join().unwrap(), Recovered::default());
        });
        assert!(!pending.exists());
    }

    #[test]
    fn ranges_avoid_live_runs_users_and_subordinate_ids() {
        let (tmp, state) = state();
        let sources = small(tmp.path());
        std::fs::write(tmp.path().join("subuid"), "u:1150:1\nbroken\nx:y:z\n").unwrap();
        std::fs::write(tmp.path().join("passwd"), "root:x:0:0:r:/:/bin/sh\nu:x:1000:1000::/:\n").unwrap();
        let mut firsts = Vec::new();
        let mut held = Vec::new();
        for n in 1..=2 {
            let live = Live::begin(&state, beginning(n, Some(&sources))).unwrap();
            firsts.push(live.record().ids.unwrap().first);
            held.push(live);
        }
        firsts.sort_unstable();
        assert_eq!(firsts, [1200, 1300]);
        match Live::begin(&state, beginning(3, Some(&sources))) {
            Err(LiveError::NoIds { slots: 4, leased: 2 }) => {}
            other => panic!("{other:?}"),
        }
        // A run whose owner died keeps its range until it has been cleaned.
        drop(held.pop());
        assert!(matches!(Live::begin(&state, beginning(3, Some(&sources))), Err(LiveError::NoIds { .. })));
        settle(&state, 1);
        Live::begin(&state, beginning(3, Some(&sources))).unwrap().end().unwrap();
        assert_eq!(names(&state), [run(1).to_string()]);
    }

    #[test]
    fn a_user_who_comes_later_is_seen() {
        let (tmp, state) = state();
        let sources = small(tmp.path());
        let free = |n| {
            let live = Live::begin(&state, beginning(n, Some(&sources)))?;
            let first = live.record().ids.unwrap().first;
            live.end().map(|()| first)
        };
        free(1).unwrap();
        assert!(tmp.path().join("state/cache").join(FOREIGN_CACHE).exists());
        std::fs::write(tmp.path().join("passwd"), "a:x:1000:1100::/:\nb:x:1200:0::/:\n").unwrap();
        assert_eq!(free(2).unwrap(), 1300);
        std::fs::write(tmp.path().join("passwd"), "a:x:1000:1100::/:\nb:x:1300:0::/:\n").unwrap();
        assert_eq!(free(3).unwrap(), 1200);
        std::fs::write(tmp.path().join("subuid"), "c:1299:500\n").unwrap();
        assert!(matches!(free(4), Err(LiveError::NoIds { .. })));
    }

    #[test]
    fn the_shipped_block_has_4094_ranges() {
        let sources = IdSources::default();
        let all = IdRange { first: 0, count: u32::MAX };
        match choose(&sources, 7, &[], &[all]) {
            Err(LiveError::NoIds { slots: 4094, .. }) => {}
            other => panic!("{other:?}"),
        }
        let last = choose(&sources, 4093, &[], &[]).unwrap();
        assert_eq!(last.first + (last.count - 1), sources.last);
    }

    #[test]
    fn beginnings_and_recoveries_at_once_do_each_other_no_harm() {
        let (tmp, state) = state();
        let sources = IdSources { last: 1000 + 100 * 400 - 1, ..small(tmp.path()) };
        let ranges = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let (state, sources, ranges) = (&state, &sources, &ranges);
                s.spawn(move || {
                    for n in 0..25u8 {
                        recover(state, host()).unwrap();
                        let what = Beginning {
                            run: RunId::new(0, [t, n, 0, t, n, 1, 2, 3, 4, t]),
                            ..beginning(0, Some(sources))
                        };
                        let live = Live::begin(state, what).unwrap();
                        let ids = live.record().ids.unwrap();
                        {
                            let mut all = ranges.lock().unwrap();
                            assert!(!all.contains(&ids.first), "a range was leased twice");
                            all.push(ids.first);
                        }
                        assert!(recover(state, host()).unwrap().live >= 1);
                        // Forgotten before it is free again.
                        ranges.lock().unwrap().retain(|f| *f != ids.first);
                        if n % 3 == 0 { drop(live) } else { live.end().unwrap() }
                    }
                });
            }
        });
        let rest = settle(&state, 0);
        assert!(rest.kept.is_empty() && rest.live == 0);
        assert!(names(&state).is_empty());
    }

    #[test]
    fn kill_9_at_any_moment_leaves_what_recovery_handles() {
        // The child begins and ends runs in a loop and is killed at a random moment.
        let (_tmp, state) = state();
        let exe = std::env::current_exe().unwrap();
        for n in 0..25u64 {
            let mut child = Command::new(&exe)
                .args([
                    "--exact",
                    "supervise::recover::tests::looping_child",
                    "--ignored",
                    "--test-threads=1",
                ])
                .env("STOCKADE_TEST_STATE", state.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(4000 + n * 700));
            child.kill().unwrap();
            child.wait().unwrap();
            let found = settle(&state, 0);
            assert!(found.kept.is_empty() && found.live == 0, "{found:?}");
            assert!(names(&state).is_empty());
        }
    }

    #[test]
    #[ignore = "the child of kill_9_at_any_moment_leaves_what_recovery_handles"]
    fn looping_child() {
        let Some(path) = std::env::var_os("STOCKADE_TEST_STATE") else { return };
        let uid = rustix::process::geteuid().as_raw();
        let state = StateDir::open(Path::new(&path), uid).unwrap();
        let sources = IdSources::default();
        loop {
            for n in 0..=255 {
                let mut live = Live::begin(&state, beginning(n, Some(&sources))).unwrap();
                live.update(|r| r.temporary = vec![RelPath::new("t").unwrap()]).unwrap();
                live.end().unwrap();
            }
        }
    }
}

//! The cgroups of one executor: made, limited, entered, read, killed and removed. Runs in the process that
//! starts the executor, before and after the clone; every limit is read back from the kernel, and a limit
//! that cannot be placed is a gap with a name and a remedy, never a silence.
//!
//! One directory `stockade-<run id>` directly below our *own* cgroup, in each hierarchy that is needed: in
//! cgroup2 for membership and the kill of the whole tree, and, where a controller is bound to a v1
//! hierarchy, there for its limit (hybrid hosts). A hierarchy for which no limit is asked is not touched.
//! A cgroup of cgroup2 that holds processes hands no controller down; `subtree` and `probe` see to that.
//! On a host without cgroup2 the v1 freezer takes part, since it is the only thing that stops a tree which
//! forks faster than it is killed.
//!
//! Why not the cgroups-rs crate: it takes a hybrid host for v1 and drops limits that it cannot place
//! without an error; it has no directory descriptor for `CLONE_INTO_CGROUP` and no kill on v1; and since
//! 0.4 it pulls a D-Bus stack into the privileged side. What is needed is small.
//!
//! What decides the speed (kernel 6.18, launches 100 ms apart): a write of *another* process's id to `cgroup.procs` or
//! `tasks` waits for an RCU grace period, 6–16 ms; a write of `0` by the process itself to a v1 `tasks`
//! file takes no such lock, 20–40 µs (`cgroup_procs_write_start` in kernel/cgroup/cgroup.c). So the child
//! is born into its cgroup2 directory and enters the v1 hierarchies itself, through descriptors that it is
//! handed ([`ExecCgroup::task_fds`]); the kernel checks the *opener's* rights on them.
//! [`ExecCgroup::place`] then confirms, and writes only what is missing.

use super::subtree::Subtree;
use crate::base::RunId;
use crate::plan::CgroupFacts;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What every cgroup directory of ours is called, before the run id.
pub const NAME_PREFIX: &str = "stockade-";
/// What the leaf is called, after the run's name, into which our own process moves.
const LEAF_SUFFIX: &str = "-owner";
/// The most that is read of any cgroup file.
const FILE_BYTES_MAX: usize = 4 << 20;
/// The largest page size; memory limits are rounded down to a multiple of the real one.
const PAGE_BYTES_MAX: u64 = 64 * 1024;
/// The CPU quota's period.
const CPU_PERIOD_US: u64 = 100_000;
/// `rmdir` and the waits for emptiness give up after this.
const REMOVE_WAIT: Duration = Duration::from_secs(1);
/// Rounds of the v1 kill loop before the tree is frozen.
const ROUNDS_BEFORE_FREEZE: u32 = 20;
/// `CGROUP_SUPER_MAGIC` and `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP_MAGIC: [u64; 2] = [0x0027_e0eb, 0x6367_7270];

/// What the executor is to be held to. `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes of memory and swap together.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Percent of one CPU.
    pub cpu_percent: Option<u64>,
}

/// A limit that cgroups enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Memory and swap.
    Memory,
    /// Processes and threads.
    Processes,
    /// CPU time per wall time.
    Cpu,
}

impl Limit {
    fn controller(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// Why a limit is not, or not wholly, in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitGap {
    /// What is missing, for an operator.
    pub what: String,
    /// The least change that would mend it.
    pub remedy: String,
    /// The main part holds and only the part that `what` names does not.
    pub partial: bool,
}

/// A step on a cgroup that failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A system call on a cgroup directory or file.
    #[error("{step} {}: {errno}", path.display())]
    Step {
        /// What was done.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// After placing, the kernel does not name our cgroup for the process.
    #[error("process {pid} is not in the cgroup {}", path.display())]
    NotPlaced {
        /// The process.
        pid: i32,
        /// Where it should be.
        path: PathBuf,
    },
    /// Processes that were still there after the time allowed.
    #[error("processes that did not die within {waited_ms} ms in {}: {pids:?}", path.display())]
    Survivors {
        /// Where.
        path: PathBuf,
        /// Which, at most a handful.
        pids: Vec<i32>,
        /// How long was waited.
        waited_ms: u64,
    },
    /// A recorded path that is not a cgroup directory of the run that it is recorded for.
    #[error("{} is not a cgroup directory of ours; left alone", path.display())]
    NotOurs {
        /// The path.
        path: PathBuf,
    },
}

pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(Errno) -> CgroupError {
    move |errno| CgroupError::Step { step, path: path.to_path_buf(), errno }
}

/// A cgroup directory by name, as the live file of a run records it before it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupName {
    /// The whole path.
    pub path: PathBuf,
    /// In cgroup2.
    pub v2: bool,
}

/// Every directory that [`ExecCgroup`] may make for a run: recorded first, made later.
pub fn names(facts: &CgroupFacts, run: &RunId, wanted: &Wanted) -> Vec<CgroupName> {
    let name = format!("{NAME_PREFIX}{run}");
    let mut out: Vec<CgroupName> = Vec::with_capacity(4);
    if let Some(own) = facts.v2.as_ref().filter(|d| d.writable) {
        out.push(CgroupName { path: own.own.as_path().join(&name), v2: true });
        if facts.v2_leaf && asked(wanted).any(|(limit, _)| in_v2(facts, limit.controller())) {
            out.push(CgroupName { path: own.own.as_path().join(format!("{name}{LEAF_SUFFIX}")), v2: true });
        }
    }
    let limits = asked(wanted).map(|(limit, _)| limit.controller());
    let freezer = out.is_empty().then_some("freezer");
    for controller in limits.chain(freezer) {
        if in_v2(facts, controller) {
            continue;
        }
        if let Some(own) = facts.v1.get(controller).filter(|d| d.writable) {
            let path = own.own.as_path().join(&name);
            if !out.iter().any(|n| n.path == path) {
                out.push(CgroupName { path, v2: false });
            }
        }
    }
    out
}

fn in_v2(facts: &CgroupFacts, controller: &str) -> bool {
    facts.v2.as_ref().is_some_and(|d| d.writable) && facts.v2_controllers.iter().any(|c| c == controller)
}

fn asked(wanted: &Wanted) -> impl Iterator<Item = (Limit, u64)> {
    [(Limit::Memory, wanted.memory), (Limit::Processes, wanted.processes), (Limit::Cpu, wanted.cpu_percent)]
        .into_iter()
        .filter_map(|(limit, value)| Some((limit, value?)))
}

/// One directory of the executor in one hierarchy.
#[derive(Debug)]
struct Group {
    /// Our own cgroup, in which the directory lies; held so that removal needs no path.
    parent: OwnedFd,
    /// The directory itself; readable, as `CLONE_INTO_CGROUP` and `openat` want it.
    dir: OwnedFd,
    path: PathBuf,
    /// Controllers that are limited through it (v1: by these its line in `/proc/PID/cgroup` is found).
    controllers: Vec<&'static str>,
    /// v1: `tasks`, opened for writing, for the child.
    tasks: Option<OwnedFd>,
}

/// Where a controller of this executor is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    V2,
    V1(usize),
}

/// How to learn of an out-of-memory event.
#[derive(Debug, Clone, Copy)]
pub struct OomWatch<'a> {
    /// What to poll.
    pub fd: BorrowedFd<'a>,
    /// Poll for `POLLPRI` (a v2 events file) instead of `POLLIN` (a v1 eventfd). It may fire without a
    /// kill; [`ExecCgroup::oom_kills`] tells.
    pub priority: bool,
}

/// One number of the accounting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Reading {
    /// The kernel's number.
    Measured {
        /// The number.
        value: u64,
        /// The file that it is from.
        source: &'static str,
    },
    /// There is none.
    Absent {
        /// Why.
        reason: String,
    },
}

impl Reading {
    /// The number, when there is one.
    pub fn value(&self) -> Option<u64> {
        match self {
            Self::Measured { value, .. } => Some(*value),
            Self::Absent { .. } => None,
        }
    }
}

/// What the kernel counted for the executor's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Largest memory use, in bytes (swap included where v1 accounts it).
    pub memory_peak: Reading,
    /// Processes that the kernel killed for want of memory.
    pub memory_kills: Reading,
    /// CPU time of all processes, in microseconds.
    pub cpu_us: Reading,
    /// Periods in which the tree used its whole CPU quota and had to wait.
    pub cpu_throttled: Reading,
    /// Largest number of processes and threads.
    pub processes_peak: Reading,
    /// Forks that the limit refused.
    pub processes_denied: Reading,
}

/// The cgroups of one executor. Dropping it without [`ExecCgroup::remove`] leaves the directories; the
/// run's live file names them, and the next start removes them.
#[derive(Debug)]
pub struct ExecCgroup {
    name: String,
    proc: PathBuf,
    v2: Option<Group>,
    subtree: Option<Subtree>,
    v1: Vec<Group>,
    seats: BTreeMap<&'static str, Seat>,
    /// v1: the eventfd; v2: the open `memory.events`.
    oom: Option<(OwnedFd, bool)>,
    /// Every hierarchy has been confirmed to hold the executor's first process.
    confirmed: bool,
}

impl ExecCgroup {
    /// The cheap first half: the cgroup2 directory that the executor is born into. Where cgroup2 is absent
    /// or not ours to write, nothing is made and [`ExecCgroup::clone_dir`] is `None`.
    ///
    /// # Errors
    /// When the directory cannot be made; it must not exist, a used cgroup is never used again.
    pub fn create_v2(facts: &CgroupFacts, run: &RunId) -> Result<Self, CgroupError> {
        Self::create_v2_at(facts, run, Path::new("/proc"))
    }

    /// [`ExecCgroup::create_v2`] with procfs at `proc`.
    ///
    /// # Errors
    /// As there.
    pub fn create_v2_at(facts: &CgroupFacts, run: &RunId, proc: &Path) -> Result<Self, CgroupError> {
        let name = format!("{NAME_PREFIX}{run}");
        let v2 = match facts.v2.as_ref().filter(|d| d.writable) {
            Some(own) => Some(Group::make(own.own.as_path(), &name)?),
            None => None,
        };
        Ok(Self {
            name,
            proc: proc.to_path_buf(),
            v2,
            subtree: None,
            v1: Vec::new(),
            seats: BTreeMap::new(),
            oom: None,
            confirmed: false,
        })
    }

    /// The directory for `CLONE_INTO_CGROUP`; to be used only where `facts.v2_clone_into` says that the
    /// newborn lives.
    pub fn clone_dir(&self) -> Option<BorrowedFd<'_>> {
        self.v2.as_ref().map(|g| g.dir.as_fd())
    }

    /// Has cgroup2 give the executor's cgroup the controllers of `wanted`: ours are handed down, where need be from a
    /// leaf that this process moves into. To be called before the clone. What fails is a gap of
    /// [`ExecCgroup::add_limits`].
    pub fn hand_down(&mut self, facts: &CgroupFacts, wanted: &Wanted) {
        let Some(group) = &self.v2 else { return };
        for controller in asked(wanted).map(|(limit, _)| limit.controller()).filter(|c| in_v2(facts, c)) {
            let leaf = format!("{}{LEAF_SUFFIX}", self.name);
            let subtree = self.subtree.get_or_insert_with(|| Subtree::of(group.path.as_path(), leaf));
            subtree.hand_down(group.parent.as_fd(), controller, facts.v2_leaf);
        }
    }

    /// The second half, done while the child builds its namespaces: a directory in each further hierarchy
    /// that a limit needs, the limits written and read back. One answer per limit that is wanted.
    pub fn add_limits(&mut self, facts: &CgroupFacts, wanted: &Wanted) -> Vec<(Limit, Result<(), LimitGap>)> {
        let mut out = Vec::with_capacity(3);
        self.hand_down(facts, wanted);
        for (limit, value) in asked(wanted) {
            let seat = match self.seat(facts, limit.controller()) {
                Ok(seat) => seat,
                Err(gap) => {
                    out.push((limit, Err(gap)));
                    continue;
                }
            };
            let Some(group) = self.group(seat) else { continue };
            let set = match (limit, seat) {
                (Limit::Memory, Seat::V2) => memory_v2(group, value),
                (Limit::Memory, Seat::V1(_)) => memory_v1(group, value),
                (Limit::Processes, _) => number(group, "pids.max", value, 1),
                (Limit::Cpu, Seat::V2) => cpu_v2(group, value),
                (Limit::Cpu, Seat::V1(_)) => cpu_v1(group, value),
            };
            if limit == Limit::Memory && set.as_ref().err().is_none_or(|gap| gap.partial) {
                self.oom = oom_watch(group, seat).ok();
            }
            out.push((limit, set));
        }
        if self.v2.is_none() {
            // Only for the kill; its absence costs nothing but the certainty against endless forking.
            let _ = self.seat(facts, "freezer");
        }
        out
    }

    /// Finds or makes the directory through which `controller` is reached.
    fn seat(&mut self, facts: &CgroupFacts, controller: &'static str) -> Result<Seat, LimitGap> {
        if let Some(seat) = self.seats.get(controller) {
            return Ok(*seat);
        }
        let seat = if self.v2.is_some() && in_v2(facts, controller) {
            if let Some(gap) = self.subtree.as_ref().and_then(|s| s.lacks(controller)) {
                return Err(gap);
            }
            Seat::V2
        } else {
            let own = facts.v1.get(controller).ok_or_else(|| no_controller(facts, controller))?;
            if !own.writable {
                return Err(LimitGap {
                    what: format!("the {controller} hierarchy at {} is not ours to write", own.own),
                    remedy: DELEGATE.into(),
                    partial: false,
                });
            }
            let path = own.own.as_path().join(&self.name);
            match self.v1.iter().position(|g| g.path == path) {
                Some(at) => Seat::V1(at),
                None => {
                    let made = Group::make(own.own.as_path(), &self.name).map_err(|e| LimitGap {
                        what: e.to_string(),
                        remedy: DELEGATE.into(),
                        partial: false,
                    })?;
                    self.v1.push(made);
                    Seat::V1(self.v1.len() - 1)
                }
            }
        };
        match seat {
            Seat::V2 => {}
            Seat::V1(at) => {
                if let Some(group) = self.v1.get_mut(at) {
                    group.controllers.push(controller);
                    if group.tasks.is_none() {
                        // Without it the child cannot enter by itself; `place` then does it, slowly.
                        group.tasks = group.open("tasks", OFlags::WRONLY).ok();
                    }
                }
            }
        }
        self.seats.insert(controller, seat);
        Ok(seat)
    }

    fn group(&self, seat: Seat) -> Option<&Group> {
        match seat {
            Seat::V2 => self.v2.as_ref(),
            Seat::V1(at) => self.v1.get(at),
        }
    }

    /// The v1 `tasks` files. The child, single-threaded, writes `0` into each ([`enter`]) as soon as it has
    /// them: a hundred times faster than [`ExecCgroup::place`] from outside. They exist only after
    /// [`ExecCgroup::add_limits`], so a child that was cloned before gets them as a message (SCM_RIGHTS).
    pub fn task_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.v1.iter().filter_map(|g| g.tasks.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Puts process `pid` (single-threaded, blocked) into every hierarchy that it is not yet in, and
    /// confirms from `/proc/PID/cgroup` that each names our directory. When the child was born into
    /// cgroup2 and entered the rest by itself, this only reads.
    ///
    /// # Errors
    /// When a write fails or the kernel does not confirm.
    pub fn place(&mut self, pid: i32) -> Result<(), CgroupError> {
        let mut membership = self.membership(pid)?;
        let mut wrote = false;
        for group in &self.v1 {
            if !membership.names(group.controllers.first().copied(), &self.name) {
                group
                    .write("tasks", &pid.to_string())
                    .map_err(failed("place a process into", &group.path))?;
                wrote = true;
            }
        }
        if let Some(group) = &self.v2
            && !membership.names(None, &self.name)
        {
            group
                .write("cgroup.procs", &pid.to_string())
                .map_err(failed("place a process into", &group.path))?;
            wrote = true;
        }
        if wrote {
            membership = self.membership(pid)?;
        }
        let v1 = self.v1.iter().map(|g| (g.controllers.first().copied(), g));
        let v2 = self.v2.iter().map(|g| (None, g));
        for (controller, group) in v1.chain(v2) {
            if !membership.names(controller, &self.name) {
                return Err(CgroupError::NotPlaced { pid, path: group.path.clone() });
            }
        }
        self.confirmed = true;
        Ok(())
    }

    fn membership(&self, pid: i32) -> Result<Membership, CgroupError> {
        let path = self.proc.join(pid.to_string()).join("cgroup");
        let fd = openat(rustix::fs::CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed("open", &path))?;
        read_all(fd.as_fd()).map(|bytes| Membership::parse(&bytes)).map_err(failed("read", &path))
    }

    /// What to poll for an out-of-memory event; `None` without a memory limit.
    pub fn oom_watch(&self) -> Option<OomWatch<'_>> {
        self.oom.as_ref().map(|(fd, priority)| OomWatch { fd: fd.as_fd(), priority: *priority })
    }

    /// Processes that the kernel has killed at the memory limit.
    pub fn oom_kills(&self) -> u64 {
        self.memory_kills().value().unwrap_or(0)
    }

    /// Whether the kernel has killed at the memory limit. On v1 it kills one process; the rest is ours to
    /// kill.
    pub fn oom_happened(&self) -> bool {
        self.oom_kills() > 0
    }

    /// Kills every process of the executor. With `cgroup.kill` this signals and returns, the caller waits
    /// on init; without it, it returns when the tree is empty or `wait` is over.
    ///
    /// # Errors
    /// [`CgroupError::Survivors`], or a system call's failure.
    pub fn kill(&self, wait: Duration) -> Result<(), CgroupError> {
        let mut signalled = false;
        if let Some(group) = &self.v2 {
            signalled = kill_v2(group.dir.as_fd(), &group.path)?;
        }
        if signalled && self.confirmed {
            return Ok(());
        }
        let freezer = self.seats.get("freezer").and_then(|s| self.group(*s));
        for group in self.v2.iter().filter(|_| !signalled).chain(&self.v1) {
            kill_loop(group.dir.as_fd(), &group.path, freezer.map(|g| g.dir.as_fd()), wait)?;
        }
        Ok(())
    }

    /// Whether no process is left.
    ///
    /// # Errors
    /// When a membership file cannot be read.
    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        for group in self.v2.iter().chain(&self.v1) {
            if !members(group.dir.as_fd()).map_err(failed("read the members of", &group.path))?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The processes of the tree, at most `max`, as our PID namespace numbers them.
    pub fn processes(&self, max: usize) -> Vec<i32> {
        let mut out: Vec<i32> = Vec::new();
        for group in self.v2.iter().chain(&self.v1) {
            for pid in members(group.dir.as_fd()).unwrap_or_default() {
                if out.len() < max && !out.contains(&pid) {
                    out.push(pid);
                }
            }
        }
        out
    }

    /// The accounting; to be read when the tree is dead and before [`ExecCgroup::remove`].
    pub fn stats(&self) -> Stats {
        let memory_peak = match self.seats.get("memory") {
            Some(Seat::V2) => self.read("memory", "memory.peak", None),
            // With swap when the kernel counts it, which the limit does as well.
            _ => match self.read("memory", "memory.memsw.max_usage_in_bytes", None) {
                Reading::Absent { .. } => self.read("memory", "memory.max_usage_in_bytes", None),
                found => found,
            },
        };
        Stats {
            memory_peak,
            memory_kills: self.memory_kills(),
            // cgroup2 accounts CPU time of every group without any controller.
            cpu_us: match &self.v2 {
                Some(group) => group.reading("cpu.stat", Some("usage_usec")),
                None => absent("there is no cgroup2 to account it in"),
            },
            cpu_throttled: self.read("cpu", "cpu.stat", Some("nr_throttled")),
            processes_peak: self.read("pids", "pids.peak", None),
            processes_denied: self.read("pids", "pids.events", Some("max")),
        }
    }

    fn memory_kills(&self) -> Reading {
        match self.seats.get("memory") {
            Some(Seat::V2) => self.read("memory", "memory.events", Some("oom_kill")),
            _ => self.read("memory", "memory.oom_control", Some("oom_kill")),
        }
    }

    fn read(&self, controller: &str, file: &'static str, key: Option<&str>) -> Reading {
        match self.seats.get(controller).and_then(|s| self.group(*s)) {
            Some(group) => group.reading(file, key),
            None => absent(&format!("no {controller} limit is in force, so its hierarchy was not entered")),
        }
    }

    /// Removes the directories, waiting a bounded time for processes that are just dying.
    ///
    /// # Errors
    /// Those that could not be removed; the run's live file keeps naming them.
    pub fn remove(self) -> Result<(), Vec<CgroupError>> {
        let until = Instant::now() + REMOVE_WAIT;
        let mut failures = Vec::new();
        for group in self.v1.iter().chain(&self.v2) {
            if let Err(e) = rmdir(group.parent.as_fd(), Path::new(&self.name), &group.path, until) {
                failures.push(e);
            }
        }
        if let (Some(subtree), Some(group)) = (self.subtree, &self.v2)
            && let Err(e) = subtree.take_back(group.parent.as_fd())
        {
            failures.push(e);
        }
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }
}

/// Enters the v1 hierarchies of `task_fds`: the calling, single-threaded process writes `0`. Allocates
/// nothing.
///
/// # Errors
/// write(2) on a v1 `tasks` file; the process is then in some hierarchies and not in others.
pub fn enter(task_fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    for fd in task_fds {
        rustix::io::write(fd, b"0")?;
    }
    Ok(())
}

pub(super) const DELEGATE: &str = "start stockade in a delegated cgroup (`systemd-run --user --scope -p Delegate=yes stockade …`), \
     or let the supervisor run as root";

fn no_controller(facts: &CgroupFacts, controller: &str) -> LimitGap {
    let (what, remedy) = match &facts.v2 {
        Some(own) if !own.writable => (
            format!("our cgroup {} is not ours to write, so there is no {controller} limit", own.own),
            DELEGATE.to_owned(),
        ),
        Some(_) if facts.v2_hindrance.is_some() => {
            (facts.v2_hindrance.clone().unwrap_or_default(), DELEGATE.to_owned())
        }
        Some(own) => (
            format!("the {controller} controller is not available to children of our cgroup {}", own.own),
            format!(
                "enable it: `echo +{controller} > {}/cgroup.subtree_control`, with no process in that cgroup itself",
                own.own
            ),
        ),
        None => (
            format!("no cgroup hierarchy with the {controller} controller is mounted"),
            "mount cgroup2 at /sys/fs/cgroup".to_owned(),
        ),
    };
    LimitGap { what, remedy, partial: false }
}

fn absent(reason: &str) -> Reading {
    Reading::Absent { reason: reason.to_owned() }
}

impl Group {
    fn make(own: &Path, name: &str) -> Result<Self, CgroupError> {
        let parent =
            openat(rustix::fs::CWD, own, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed("open the cgroup", own))?;
        let path = own.join(name);
        mkdirat(&parent, name, Mode::from_raw_mode(0o755)).map_err(failed("make the cgroup", &path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&parent, name, flags, Mode::empty()) {
            Ok(dir) => Ok(Self { parent, dir, path, controllers: Vec::new(), tasks: None }),
            Err(errno) => {
                let _ = unlinkat(&parent, name, AtFlags::REMOVEDIR);
                Err(CgroupError::Step { step: "open the cgroup", path, errno })
            }
        }
    }

    fn open(&self, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat(&self.dir, file, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Errno> {
        write_whole(self.open(file, OFlags::WRONLY)?.as_fd(), text)
    }

    fn reading(&self, file: &'static str, key: Option<&str>) -> Reading {
        let bytes = match self.open(file, OFlags::RDONLY).and_then(|fd| read_all(fd.as_fd())) {
            Ok(bytes) => bytes,
            Err(Errno::NOENT) => return absent(&format!("this kernel has no {file}")),
            Err(e) => return absent(&format!("{file}: {e}")),
        };
        match field(&String::from_utf8_lossy(&bytes), key) {
            Some(value) => Reading::Measured { value, source: file },
            None => absent(&format!("{file} does not hold the number")),
        }
    }
}

/// The number of a one-number file, or of the line that starts with `key`.
fn field(text: &str, key: Option<&str>) -> Option<u64> {
    match key {
        None => text.trim().parse().ok(),
        Some(key) => text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok()),
    }
}

pub(super) fn write_whole(fd: BorrowedFd<'_>, text: &str) -> Result<(), Errno> {
    // A cgroup file takes a value in one write; a short write is a refused one.
    if rustix::io::write(fd, text.as_bytes())? == text.len() { Ok(()) } else { Err(Errno::IO) }
}

pub(super) fn read_all(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => return Ok(out),
            Ok(n) if out.len() + n > FILE_BYTES_MAX => return Err(Errno::FBIG),
            Ok(n) => out.extend_from_slice(&buffer[..n]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

// ---- limits -------------------------------------------------------------------------------------------

/// Writes `text` to `file` of `group`, reads the file back and has `holds` judge it.
fn set(group: &Group, file: &str, text: &str, holds: impl FnOnce(&str) -> bool) -> Result<(), LimitGap> {
    let gap = |what: String, remedy: &str| LimitGap { what, remedy: remedy.to_owned(), partial: false };
    let fd = group.open(file, OFlags::RDWR).map_err(|e| {
        gap(format!("open {}/{file}: {e}", group.path.display()), "use a kernel that has this cgroup file")
    })?;
    write_whole(fd.as_fd(), text).map_err(|e| {
        gap(
            format!("write {text:?} to {}/{file}: {e}", group.path.display()),
            "choose a limit that the kernel takes and that the enclosing cgroup allows",
        )
    })?;
    let back =
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).and_then(|_| read_all(fd.as_fd())).map_err(
            |e| gap(format!("read back {}/{file}: {e}", group.path.display()), "see the kernel's message"),
        )?;
    let back = String::from_utf8_lossy(&back);
    let back = back.trim();
    if holds(back) {
        Ok(())
    } else {
        Err(gap(
            format!("{}/{file} was set to {text:?} and reads {back:?}", group.path.display()),
            "choose a value that the kernel keeps",
        ))
    }
}

/// A number that reads back as itself, or rounded down to a multiple of `step`.
fn number(group: &Group, file: &str, value: u64, step: u64) -> Result<(), LimitGap> {
    set(group, file, &value.to_string(), |back| holds(back, value, step))
}

fn holds(back: &str, value: u64, step: u64) -> bool {
    back.parse::<u64>().is_ok_and(|b| b <= value && value - b < step)
}

fn memory_v1(group: &Group, value: u64) -> Result<(), LimitGap> {
    number(group, "memory.limit_in_bytes", value, PAGE_BYTES_MAX)?;
    // Memory and swap together; it may not be below the first, hence the order.
    number(group, "memory.memsw.limit_in_bytes", value, PAGE_BYTES_MAX).map_err(|gap| LimitGap {
        what: format!("swap is not counted against the memory limit: {}", gap.what),
        remedy: "boot with swapaccount=1, or turn swap off".into(),
        partial: true,
    })
}

fn memory_v2(group: &Group, value: u64) -> Result<(), LimitGap> {
    number(group, "memory.max", value, PAGE_BYTES_MAX)?;
    let exactly = |file, text: &'static str| set(group, file, text, |back| back == text);
    exactly("memory.swap.max", "0").map_err(|gap| LimitGap {
        what: format!("swap is not counted against the memory limit: {}", gap.what),
        remedy: "boot with swapaccount=1, or turn swap off".into(),
        partial: true,
    })?;
    exactly("memory.oom.group", "1").map_err(|gap| LimitGap { partial: true, ..gap })
}

fn quota(percent: u64) -> u64 {
    percent.saturating_mul(CPU_PERIOD_US / 100)
}

fn cpu_v1(group: &Group, percent: u64) -> Result<(), LimitGap> {
    number(group, "cpu.cfs_period_us", CPU_PERIOD_US, 1)?;
    number(group, "cpu.cfs_quota_us", quota(percent), 1)
}

fn cpu_v2(group: &Group, percent: u64) -> Result<(), LimitGap> {
    let text = format!("{} {CPU_PERIOD_US}", quota(percent));
    set(group, "cpu.max", &text, |back| back == text)
}

fn oom_watch(group: &Group, seat: Seat) -> Result<(OwnedFd, bool), Errno> {
    match seat {
        Seat::V2 => Ok((group.open("memory.events", OFlags::RDONLY)?, true)),
        Seat::V1(_) => {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let control = group.open("memory.oom_control", OFlags::RDONLY)?;
            // "<eventfd> <descriptor of memory.oom_control>": Documentation/admin-guide/cgroup-v1/memory.rst §9.
            group.write("cgroup.event_control", &format!("{} {}", event.as_raw_fd(), control.as_raw_fd()))?;
            Ok((event, false))
        }
    }
}

// ---- membership ---------------------------------------------------------------------------------------

/// `/proc/PID/cgroup`, parsed.
#[derive(Debug)]
struct Membership {
    /// Controllers (empty for cgroup2) and the last component of the path.
    lines: Vec<(String, String)>,
}

impl Membership {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let lines = text
            .lines()
            .filter_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                Some((controllers.to_owned(), path.rsplit('/').next()?.to_owned()))
            })
            .collect();
        Self { lines }
    }

    /// Whether the hierarchy of `controller` (`None`: cgroup2) names a directory called `name`, which
    /// carries a run id and is therefore one of a kind.
    fn names(&self, controller: Option<&str>, name: &str) -> bool {
        self.lines.iter().any(|(controllers, last)| {
            last == name
                && match controller {
                    None => controllers.is_empty(),
                    Some(c) => controllers.split(',').any(|x| x == c),
                }
        })
    }
}

/// The processes of one directory. Those that our PID namespace cannot see read as 0.
pub(super) fn members(dir: BorrowedFd<'_>) -> Result<Vec<i32>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(dir, "cgroup.procs", flags, Mode::empty())?;
    let bytes = match read_all(fd.as_fd()) {
        // The directory was removed meanwhile.
        Err(Errno::NODEV) => return Ok(Vec::new()),
        other => other?,
    };
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(|l| l.trim().parse().ok()).collect())
}

// ---- killing and removing -----------------------------------------------------------------------------

/// Writes `cgroup.kill`; false when the kernel has none.
fn kill_v2(dir: BorrowedFd<'_>, path: &Path) -> Result<bool, CgroupError> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(dir, "cgroup.kill", flags, Mode::empty()) {
        Ok(fd) => write_whole(fd.as_fd(), "1").map(|()| true).map_err(failed("kill the cgroup", path)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(CgroupError::Step { step: "open cgroup.kill of", path: path.to_path_buf(), errno }),
    }
}

/// Signals every member once; returns how many there are. A pid is signalled through a pidfd that was
/// opened *before* the second listing still showed it, so a recycled pid is never hit.
fn signal_members(dir: BorrowedFd<'_>) -> Result<usize, Errno> {
    let held: Vec<(i32, OwnedFd)> = members(dir)?
        .into_iter()
        .filter_map(|pid| Some((pid, pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?)))
        .collect();
    let still = members(dir)?;
    for (pid, fd) in &held {
        if still.contains(pid) {
            // ESRCH: it has died meanwhile.
            let _ = pidfd_send_signal(fd, Signal::KILL);
        }
    }
    Ok(still.len())
}

/// Kills until nobody is left. A tree that forks faster than it is listed is frozen, killed and thawed
/// (a frozen v1 task dies only then).
fn kill_loop(
    dir: BorrowedFd<'_>,
    path: &Path,
    freezer: Option<BorrowedFd<'_>>,
    wait: Duration,
) -> Result<(), CgroupError> {
    let start = Instant::now();
    let mut round = 0u32;
    loop {
        let left = match signal_members(dir) {
            Ok(0) => return Ok(()),
            Ok(left) => left,
            // The directory went away.
            Err(Errno::NODEV | Errno::NOENT) => return Ok(()),
            Err(errno) => {
                return Err(CgroupError::Step {
                    step: "kill the members of",
                    path: path.to_path_buf(),
                    errno,
                });
            }
        };
        round += 1;
        if round.is_multiple_of(ROUNDS_BEFORE_FREEZE)
            && let Some(freezer) = freezer
        {
            freeze_kill_thaw(freezer, dir);
        }
        if start.elapsed() >= wait {
            let mut pids = members(dir).unwrap_or_default();
            pids.truncate(8);
            let waited_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            return Err(CgroupError::Survivors { path: path.to_path_buf(), pids, waited_ms });
        }
        std::thread::sleep(Duration::from_micros(if left < 4 && round < 10 { 100 } else { 1000 }));
    }
}

/// Best effort by its nature: the loop around it looks again.
fn freeze_kill_thaw(freezer: BorrowedFd<'_>, dir: BorrowedFd<'_>) {
    let state = |text: &str| {
        openat(freezer, "freezer.state", OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .and_then(|fd| {
                write_whole(fd.as_fd(), text)?;
                rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0))?;
                read_all(fd.as_fd())
            })
    };
    for _ in 0..50 {
        match state("FROZEN") {
            Ok(now) if now.starts_with(b"FROZEN") => break,
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => break,
        }
    }
    let _ = signal_members(dir);
    let _ = state("THAWED");
}

pub(super) fn rmdir(
    parent: BorrowedFd<'_>,
    name: &Path,
    path: &Path,
    until: Instant,
) -> Result<(), CgroupError> {
    let mut pause = Duration::from_micros(100);
    loop {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < until => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            Err(errno) => {
                return Err(CgroupError::Step { step: "remove the cgroup", path: path.to_path_buf(), errno });
            }
        }
    }
}

/// Kills and removes what an earlier run left of its cgroups `names`, within `wait`. A path that is not a
/// cgroup directory called after `run` is left alone and reported.
pub fn reclaim(names: &[CgroupName], run: &RunId, wait: Duration) -> Vec<CgroupError> {
    let expected = format!("{NAME_PREFIX}{run}");
    let until = Instant::now() + wait;
    let mut errors = Vec::new();
    let mut found = Vec::new();
    for name in names {
        let ours = |n: &OsStr| {
            n.to_str().is_some_and(|n| n.strip_suffix(LEAF_SUFFIX).unwrap_or(n) == expected.as_str())
        };
        if !name.path.file_name().is_some_and(ours) || !name.path.is_absolute() {
            errors.push(CgroupError::NotOurs { path: name.path.clone() });
            continue;
        }
        match open_cgroup(&name.path) {
            Ok(None) => {}
            Ok(Some(fds)) => found.push((name, fds)),
            Err(e) => errors.push(e),
        }
    }
    // First everything that kills at once, then whatever is still listed somewhere.
    for (name, (_, dir)) in found.iter().filter(|(n, _)| n.v2) {
        if let Err(e) = kill_v2(dir.as_fd(), &name.path) {
            errors.push(e);
        }
    }
    let thaw = |dir: &OwnedFd| {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(dir, "freezer.state", flags, Mode::empty()).and_then(|fd| write_whole(fd.as_fd(), "THAWED"))
    };
    // Only the freezer hierarchy has the file, and only a frozen group needs it.
    let freezer = found.iter().find(|(_, (_, dir))| thaw(dir).is_ok()).map(|(_, (_, dir))| dir.as_fd());
    for (name, (parent, dir)) in &found {
        let left = until.saturating_duration_since(Instant::now());
        if let Err(e) = kill_loop(dir.as_fd(), &name.path, freezer, left) {
            errors.push(e);
            continue;
        }
        let until = until.max(Instant::now() + Duration::from_millis(100));
        let last = name.path.file_name().unwrap_or_default();
        if let Err(e) = rmdir(parent.as_fd(), Path::new(last), &name.path, until) {
            errors.push(e);
        }
    }
    errors
}

/// The directory at `path` and the one that holds it; `None` when there is none.
fn open_cgroup(path: &Path) -> Result<Option<(OwnedFd, OwnedFd)>, CgroupError> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match openat(rustix::fs::CWD, above, OFlags::PATH | flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(failed("open", above))?,
    };
    let dir = match openat(&parent, name, OFlags::RDONLY | OFlags::NOFOLLOW | flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(failed("open", path))?,
    };
    let fs = rustix::fs::fstatfs(&dir).map_err(failed("statfs", path))?;
    if !CGROUP_MAGIC.contains(&(fs.f_type as u64)) {
        return Err(CgroupError::NotOurs { path: path.to_path_buf() });
    }
    Ok(Some((parent, dir)))
}

impl fmt::Display for LimitGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; remedy: {}", self.what, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::HostPath;
    use crate::plan::CgroupDir;

    fn run() -> RunId {
        RunId::new(1, [7; 10])
    }

    /// A faked cgroup directory with `files`.
    fn faked(files: &[(&str, &str)]) -> (tempfile::TempDir, Group) {
        let tmp = tempfile::tempdir().unwrap();
        let group = Group::make(tmp.path(), "stockade-x").unwrap();
        for (name, content) in files {
            std::fs::write(group.path.join(name), content).unwrap();
        }
        (tmp, group)
    }

    fn dir(path: &Path, writable: bool) -> CgroupDir {
        CgroupDir { own: HostPath::new(path).unwrap(), writable }
    }

    #[test]
    fn a_limit_that_reads_back_otherwise_is_a_gap() {
        // A plain file keeps the longer text's end, so it reads back wrong, as a kernel that clamps would.
        let (_tmp, group) = faked(&[("pids.max", "9999999"), ("cpu.max", "")]);
        let gap = number(&group, "pids.max", 100, 1).unwrap_err();
        assert!(gap.what.contains("was set to \"100\" and reads \"1009999\"") && !gap.partial, "{gap}");
        number(&group, "pids.max", 1_234_567, 1).unwrap();
        cpu_v2(&group, 50).unwrap();
        assert_eq!(std::fs::read_to_string(group.path.join("cpu.max")).unwrap(), "50000 100000");
        let gap = number(&group, "memory.max", 100, 1).unwrap_err();
        assert!(gap.what.contains("memory.max: "), "{gap}");
    }

    #[test]
    fn rounding_down_to_a_page_holds_and_rounding_up_does_not() {
        for (back, holds) in
            [("1000000", true), ("999424", true), ("1003520", false), ("65536", false), ("max", false)]
        {
            assert_eq!(super::holds(back, 1_000_000, PAGE_BYTES_MAX), holds, "{back}");
        }
    }

    #[test]
    fn uncounted_swap_is_a_partial_gap() {
        let (_tmp, group) = faked(&[("memory.limit_in_bytes", "")]);
        let gap = memory_v1(&group, 1 << 20).unwrap_err();
        assert!(gap.partial && gap.what.contains("swap is not counted"), "{gap}");
        let (_tmp, group) = faked(&[("memory.max", ""), ("memory.swap.max", ""), ("memory.oom.group", "")]);
        memory_v2(&group, 1 << 20).unwrap();
        assert_eq!(std::fs::read_to_string(group.path.join("memory.swap.max")).unwrap(), "0");
    }

    #[test]
    fn controllers_are_routed_one_by_one() {
        let own = Path::new("/cg");
        let mut facts = CgroupFacts { v2: Some(dir(&own.join("v2"), true)), ..CgroupFacts::default() };
        facts.v2_controllers = vec!["memory".into()];
        facts.v1.insert("memory".into(), dir(&own.join("memory"), true));
        facts.v1.insert("cpu".into(), dir(&own.join("cpu,cpuacct"), true));
        facts.v1.insert("pids".into(), dir(&own.join("pids"), false));
        facts.v1.insert("freezer".into(), dir(&own.join("freezer"), true));
        let all = Wanted { memory: Some(1), processes: Some(1), cpu_percent: Some(1) };
        let paths = |facts: &CgroupFacts, wanted: &Wanted| -> Vec<String> {
            names(facts, &run(), wanted)
                .iter()
                .map(|n| n.path.parent().unwrap().to_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(paths(&facts, &all), ["/cg/v2", "/cg/cpu,cpuacct"]);
        assert_eq!(paths(&facts, &Wanted::default()), ["/cg/v2"]);
        facts.v2 = None;
        assert_eq!(paths(&facts, &all), ["/cg/memory", "/cg/cpu,cpuacct", "/cg/freezer"]);
        assert_eq!(paths(&CgroupFacts::default(), &all), Vec::<String>::new());
    }

    #[test]
    fn a_directory_that_exists_is_never_used() {
        let tmp = tempfile::tempdir().unwrap();
        let facts = CgroupFacts { v2: Some(dir(tmp.path(), true)), ..CgroupFacts::default() };
        ExecCgroup::create_v2(&facts, &run()).unwrap();
        match ExecCgroup::create_v2(&facts, &run()) {
            Err(CgroupError::Step { errno: Errno::EXIST, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn placing_is_confirmed_by_the_kernel_not_by_the_write() {
        let tmp = tempfile::tempdir().unwrap();
        let (cg, proc) = (tmp.path().join("cg"), tmp.path().join("proc"));
        std::fs::create_dir_all(&cg).unwrap();
        std::fs::create_dir_all(proc.join("42")).unwrap();
        let facts = CgroupFacts { v2: Some(dir(&cg, true)), ..CgroupFacts::default() };
        let mut group = ExecCgroup::create_v2_at(&facts, &run(), &proc).unwrap();
        let name = group.name.clone();
        std::fs::write(cg.join(&name).join("cgroup.procs"), "").unwrap();
        let says = |text: &str| std::fs::write(proc.join("42/cgroup"), text).unwrap();
        says("4:memory:/x\n0::/\n");
        assert!(matches!(group.place(42), Err(CgroupError::NotPlaced { pid: 42, .. })));
        assert!(!group.confirmed);
        says(&format!("4:memory:/x/{name}\n0::/\n"));
        assert!(matches!(group.place(42), Err(CgroupError::NotPlaced { .. })));
        says(&format!("4:memory:/x\n0::/y/{name}\n"));
        group.place(42).unwrap();
        assert!(group.confirmed);
    }

    #[test]
    fn numbers_with_and_without_a_key() {
        assert_eq!(field("12\n", None), Some(12));
        assert_eq!(field("max\n", None), None);
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", Some("oom_kill")), Some(3));
        assert_eq!(field("low 0\nmax 7\n", Some("max")), Some(7));
        assert_eq!(field("", Some("max")), None);
    }
}

//! Our own cgroups: where they lie (from `/proc/self/cgroup` and `/proc/self/mountinfo`, whose directory is a
//! parameter), and what can be done there, found out by making a child cgroup, putting a process into it and
//! removing it again.

use super::host::ProbeError;
use super::proc::{self, MountLine};
use crate::base::HostPath;
use crate::plan::{CgroupDir, CgroupFacts};
use crate::sys::clone::{Cloned, clone3, exit_now};
use crate::sys::wait::wait4;
use rustix::fs::{self, Access, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Child cgroups of this name are ours, and are removed by the next probe when one was killed.
pub const TRIAL_PREFIX: &str = "stockade-probe-";
const LEFTOVER_SECONDS_MIN: i64 = 60;
const NAMES_MAX: usize = 4096;
/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Where our own cgroups lie.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// In cgroup2.
    pub v2: Option<PathBuf>,
    /// By controller, in v1 hierarchies.
    pub v1: BTreeMap<String, PathBuf>,
}

/// Finds the directories of our own cgroups from the two texts.
pub fn locate(membership: &[u8], mounts: &[MountLine]) -> Located {
    let mut found = Located::default();
    for line in membership.split(|b| *b == b'\n') {
        // hierarchy-ID:controller-list:cgroup-path. cgroups(7). The path may hold colons.
        let mut fields = line.splitn(3, |b| *b == b':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if path.ends_with(b" (deleted)") {
            continue;
        }
        let path = proc::path(path);
        if controllers.is_empty() {
            found.v2 = own_dir(mounts.iter().filter(|m| m.fs_type == b"cgroup2"), &path);
            continue;
        }
        for controller in controllers.split(|b| *b == b',') {
            // A named hierarchy (`name=systemd`) holds no controller.
            let Ok(name) = std::str::from_utf8(controller) else { continue };
            if name.starts_with("name=") {
                continue;
            }
            let of_it = mounts.iter().filter(|m| {
                m.fs_type == b"cgroup" && m.super_options.split(|b| *b == b',').any(|o| o == controller)
            });
            if let Some(dir) = own_dir(of_it, &path) {
                found.v1.insert(name.to_owned(), dir);
            }
        }
    }
    found
}

/// The directory of the cgroup `path` below the last of `mounts` that shows it. A mount's root is written, like
/// the membership, relative to the root of our cgroup namespace; one that lies above it (`/..`) shows our cgroup
/// below names that we cannot know.
fn own_dir<'m>(mounts: impl Iterator<Item = &'m MountLine>, path: &Path) -> Option<PathBuf> {
    let climbs = |p: &Path| p.components().any(|c| c == std::path::Component::ParentDir);
    if climbs(path) {
        return None;
    }
    mounts
        .filter(|m| !climbs(&m.root))
        .filter_map(|m| Some(m.point.join(path.strip_prefix(&m.root).ok()?)))
        .last()
        // `join("")` leaves a trailing slash.
        .map(|p| p.components().collect())
}

/// What can be done in our own cgroups. `proc_root` is `/proc`.
///
/// # Errors
/// When the membership or the mount table cannot be read, or a trial process cannot be made.
pub fn probe(proc_root: &Path) -> Result<CgroupFacts, ProbeError> {
    let membership = match proc::read(&proc_root.join("self/cgroup")) {
        // A kernel without cgroups.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(CgroupFacts::default()),
        other => other.map_err(|source| ProbeError::Proc { file: "self/cgroup", source })?,
    };
    let mounts = proc::mounts(proc_root)?;
    let located = locate(&membership, &mounts);
    let mut facts = CgroupFacts::default();
    if let Some(own) = &located.v2 {
        try_v2(own, &mut facts)?;
    }
    try_v1(&located.v1, &mut facts)?;
    facts.read_only = read_only(&mounts);
    Ok(facts)
}

/// Whether there are cgroup file systems, and all of them are read-only.
fn read_only(mounts: &[MountLine]) -> bool {
    let mut all = mounts.iter().filter(|m| m.fs_type == b"cgroup" || m.fs_type == b"cgroup2").peekable();
    all.peek().is_some() && all.all(|m| m.options.split(|b| *b == b',').any(|o| o == b"ro"))
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// A child cgroup that is removed when this is dropped.
struct Trial<'d> {
    parent: &'d OwnedFd,
    name: String,
    dir: OwnedFd,
}

impl<'d> Trial<'d> {
    fn make(parent: &'d OwnedFd) -> Result<Self, Errno> {
        let pid = rustix::process::getpid().as_raw_nonzero();
        let mut last = Errno::EXIST;
        // The same number may belong to a process of another PID namespace.
        for n in 0..8 {
            let name = format!("{TRIAL_PREFIX}{pid}-{n}");
            match fs::mkdirat(parent, &name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH) {
                Ok(()) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    return match fs::openat(parent, &name, flags, Mode::empty()) {
                        Ok(dir) => Ok(Self { parent, name, dir }),
                        Err(e) => {
                            let _ = fs::unlinkat(parent, &name, AtFlags::REMOVEDIR);
                            Err(e)
                        }
                    };
                }
                Err(Errno::EXIST) => {}
                Err(e) => {
                    last = e;
                    break;
                }
            }
        }
        Err(last)
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let _ = fs::unlinkat(self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// Removes empty child cgroups that a killed probe left; `trial` was just made, and its time serves as the
/// present. A cgroup that holds a process refuses by itself.
fn sweep(own: &OwnedFd, trial: &Trial<'_>) {
    let (Ok(present), Ok(names)) = (fs::fstat(&trial.dir), Dir::read_from(own)) else { return };
    for entry in names.take(NAMES_MAX).flatten() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(TRIAL_PREFIX.as_bytes()) {
            continue;
        }
        // A maker that is gone, or too old to be at it in another PID namespace.
        let gone = || maker(name.to_bytes()).is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        if let Ok(stat) = fs::statat(own, name, AtFlags::SYMLINK_NOFOLLOW)
            && (gone() || present.st_mtime.saturating_sub(stat.st_mtime) >= LEFTOVER_SECONDS_MIN)
        {
            let _ = fs::unlinkat(own, name, AtFlags::REMOVEDIR);
        }
    }
}

/// The process that made the trial cgroup `name`.
fn maker(name: &[u8]) -> Option<Pid> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(TRIAL_PREFIX)?;
    Pid::from_raw(rest.split('-').next()?.parse().ok().filter(|n| *n > 0)?)
}

fn text(dir: &OwnedFd, name: &str) -> Option<String> {
    let file =
        fs::openat(dir, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    proc::read_file(file).ok().and_then(|b| String::from_utf8(b).ok())
}

fn exists(dir: &OwnedFd, name: &str) -> bool {
    fs::accessat(dir, name, Access::EXISTS, AtFlags::empty()).is_ok()
}

fn write(dir: &OwnedFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let file = fs::openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    std::fs::File::from(file).write_all(bytes)
}

/// Controllers that limits are made of.
const LIMITING: [&str; 3] = ["memory", "pids", "cpu"];

fn limiting(controllers: &[String]) -> bool {
    LIMITING.iter().any(|l| controllers.iter().any(|c| c == l))
}

fn try_v2(own: &Path, facts: &mut CgroupFacts) -> Result<(), ProbeError> {
    let (Ok(path), Ok(dir)) = (HostPath::new(own), open_dir(own)) else { return Ok(()) };
    let handed = controllers(&dir);
    let has_any = words(&dir, "cgroup.controllers").iter().any(|c| LIMITING.contains(&c.as_str()));
    let suffices = limiting(&handed.all);
    if !has_any {
        // They are bound to v1 hierarchies, or the cgroup around ours hands none down.
        facts.v2_hindrance = Some(format!("{own:?} has no controller of memory, pids or cpu"));
        return try_at(path, &dir, handed, facts);
    }
    facts.v2_seen = Some((path.clone(), state(&dir)));
    try_at(path, &dir, handed, facts)?;
    if suffices && facts.v2.as_ref().is_some_and(|d| d.writable) {
        return Ok(());
    }
    match beside(own, &dir) {
        Ok((path, dir, handed)) => {
            let mut there = CgroupFacts { v2_seen: facts.v2_seen.clone(), ..CgroupFacts::default() };
            try_at(path, &dir, handed, &mut there)?;
            if there.v2.as_ref().is_some_and(|d| d.writable) {
                *facts = there;
                return Ok(());
            }
            facts.v2_hindrance = Some(format!(
                "no cgroup in {own:?} gets a controller, and the one around it is not ours to write"
            ));
        }
        Err(why) => facts.v2_hindrance = Some(why),
    }
    Ok(())
}

/// What of our own cgroup decides where executors are made: whether a cached answer still holds.
pub fn still_holds(facts: &CgroupFacts) -> bool {
    facts
        .v2_seen
        .as_ref()
        .is_none_or(|(own, seen)| open_dir(own.as_path()).is_ok_and(|dir| state(&dir) == *seen))
}

fn state(own: &OwnedFd) -> String {
    let part = |name| text(own, name).unwrap_or_default().trim().to_owned();
    let handed = controllers(own);
    let around = text(own, "../cgroup.subtree_control").unwrap_or_default();
    format!(
        "{}|{}|{}|{:?}|{}|{}",
        part("cgroup.type"),
        part("cgroup.controllers"),
        part("cgroup.subtree_control"),
        limit_of(own),
        handed.leaf,
        around.trim()
    )
}

/// The cgroup around our own, for executors beside our own: where other processes live in ours, which can then hand
/// nothing down (cgroups(7), "no internal processes"), and where that escapes no limit.
fn beside(own: &Path, dir: &OwnedFd) -> Result<(HostPath, OwnedFd, Handed), String> {
    let threaded = text(dir, "cgroup.type").is_some_and(|t| t.contains("threaded"));
    let state = if threaded { "is threaded" } else { "holds other processes" };
    let crowded = format!("{own:?} {state}, so no cgroup in it gets a controller");
    let above = own.parent().and_then(|p| HostPath::new(p).ok()).ok_or_else(|| crowded.clone())?;
    let around = open_dir(above.as_path()).map_err(|_| crowded.clone())?;
    let magic = fs::fstatfs(&around).map_or(0, |s| s.f_type as u64);
    if magic != CGROUP2_MAGIC {
        return Err(crowded);
    }
    let all: Vec<String> = words(&around, "cgroup.subtree_control");
    if !limiting(&all) {
        return Err(format!("{crowded}, and {:?} around it hands none down", above.as_path()));
    }
    if let Some(limit) = limit_of(dir) {
        return Err(format!("{crowded}, and one beside it would escape its {limit}"));
    }
    Ok((above, around, Handed { all, leaf: false }))
}

/// A limit that holds for our own cgroup and not for one beside it.
fn limit_of(own: &OwnedFd) -> Option<&'static str> {
    // The value of each that limits nothing. cgroup-v2.rst.
    let free = [
        ("memory.max", "max"),
        ("memory.high", "max"),
        ("memory.swap.max", "max"),
        ("pids.max", "max"),
        ("cpu.max", "max"),
        ("cpuset.cpus", ""),
        ("cpuset.mems", ""),
        ("io.max", ""),
    ];
    free.into_iter().find_map(|(file, none)| {
        let set = text(own, file)?;
        (set.split_ascii_whitespace().next().unwrap_or_default() != none).then_some(file)
    })
}

fn try_at(path: HostPath, dir: &OwnedFd, handed: Handed, facts: &mut CgroupFacts) -> Result<(), ProbeError> {
    let mut fact = CgroupDir { own: path, writable: false };
    // Threaded cgroups take no processes.
    let domain =
        text(dir, "cgroup.type").is_none_or(|t| t.trim() == "domain" || t.trim() == "domain threaded");
    if domain && let Ok(trial) = Trial::make(dir) {
        sweep(dir, &trial);
        facts.v2_clone_into = clone_into(&trial)?;
        fact.writable = facts.v2_clone_into || move_into(&trial)?;
        // Writing it is the trial; the cgroup is empty, and never used again.
        facts.v2_kill = write(&trial.dir, "cgroup.kill", b"1").is_ok();
        if fact.writable {
            facts.v2_controllers = handed.all;
            facts.v2_leaf = handed.leaf;
        }
        if facts.v2_controllers.iter().any(|c| c == "memory") {
            facts.swap_accounting = exists(&trial.dir, "memory.swap.max")
                || exists(dir, "memory.swap.max")
                // Neither we nor the trial have the controller yet: the kernel has swap at all.
                || (!exists(dir, "memory.max") && Path::new("/proc/swaps").exists());
        }
    }
    facts.v2 = Some(fact);
    Ok(())
}

fn words(dir: &OwnedFd, name: &str) -> Vec<String> {
    text(dir, name).unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

/// What children of a cgroup get.
struct Handed {
    all: Vec<String>,
    /// Some of it only once our own process has moved into a leaf.
    leaf: bool,
}

/// The controllers that children of `own` get: those that are handed down already, and, where that may be
/// changed, those that could be once our own process has moved into a leaf (a cgroup that holds processes hands
/// none down, the root excepted. cgroups(7)).
fn controllers(own: &OwnedFd) -> Handed {
    let now: BTreeSet<String> = words(own, "cgroup.subtree_control").into_iter().collect();
    let mut all = now.clone();
    let is_root = !exists(own, "cgroup.type");
    let me = rustix::process::getpid().as_raw_nonzero().to_string();
    let alone = text(own, "cgroup.procs").is_some_and(|t| t.lines().all(|l| l == me));
    let writable = |file| fs::accessat(own, file, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    if writable("cgroup.subtree_control") && (is_root || (alone && writable("cgroup.procs"))) {
        all.extend(words(own, "cgroup.controllers"));
    }
    Handed { leaf: !is_root && all != now, all: all.into_iter().collect() }
}

/// Whether a process born in the cgroup lives. Kernels 6.16 to 7.2 kill it when our own cgroup was ever killed.
fn clone_into(trial: &Trial<'_>) -> Result<bool, ProbeError> {
    use std::os::fd::AsFd as _;
    match clone3(0, Some(trial.dir.as_fd())) {
        Ok(Cloned::Child) => exit_now(0),
        Ok(Cloned::Parent { pid, .. }) => Ok(reap(pid)? == 0),
        Err(_) => Ok(false),
    }
}

/// Whether a process can be moved into the cgroup, itself being the mover.
fn move_into(trial: &Trial<'_>) -> Result<bool, ProbeError> {
    match clone3(0, None).map_err(ProbeError::Clone)? {
        Cloned::Child => exit_now(i32::from(write(&trial.dir, "cgroup.procs", b"0").is_err())),
        Cloned::Parent { pid, .. } => Ok(reap(pid)? == 0),
    }
}

fn reap(pid: i32) -> Result<i32, ProbeError> {
    Ok(wait4(pid, true).map_err(ProbeError::Wait)?.map_or(-1, |r| r.status))
}

/// One process enters a child cgroup of every hierarchy in turn and says which ones took it.
fn try_v1(located: &BTreeMap<String, PathBuf>, facts: &mut CgroupFacts) -> Result<(), ProbeError> {
    let unique: Vec<&PathBuf> = located.values().collect::<BTreeSet<_>>().into_iter().collect();
    let parents: Vec<(&PathBuf, Option<OwnedFd>)> =
        unique.into_iter().map(|p| (p, open_dir(p).ok())).collect();
    let mut trials: Vec<(&PathBuf, Trial<'_>)> = Vec::new();
    for (path, parent) in &parents {
        if let Some(parent) = parent
            && let Ok(trial) = Trial::make(parent)
        {
            sweep(parent, &trial);
            // A cpuset takes no process before it has CPUs and memory nodes. cpuset(7).
            for name in ["cpuset.cpus", "cpuset.mems"] {
                if let Some(value) = text(parent, name) {
                    let _ = write(&trial.dir, name, value.trim().as_bytes());
                }
            }
            trials.push((path, trial));
        }
    }
    let mut entered: BTreeSet<&PathBuf> = BTreeSet::new();
    if !trials.is_empty() {
        let (from, to) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(ProbeError::pipe)?;
        match clone3(0, None).map_err(ProbeError::Clone)? {
            Cloned::Child => {
                let said: Vec<u8> =
                    trials.iter().map(|(_, t)| u8::from(write(&t.dir, "tasks", b"0").is_ok())).collect();
                let _ = rustix::io::write(&to, &said);
                exit_now(0)
            }
            Cloned::Parent { pid, .. } => {
                drop(to);
                let said = proc::read_file(from);
                reap(pid)?;
                for ((path, _), ok) in trials.iter().zip(said.unwrap_or_default()) {
                    if ok == 1 {
                        entered.insert(path);
                    }
                }
            }
        }
    }
    if let Some((_, trial)) = trials.iter().find(|(p, _)| located.get("memory") == Some(*p)) {
        facts.swap_accounting = exists(&trial.dir, "memory.memsw.limit_in_bytes");
    }
    for (controller, path) in located {
        if let Ok(own) = HostPath::new(path) {
            let writable = entered.contains(path);
            facts.v1.insert(controller.clone(), CgroupDir { own, writable });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(membership: &str, mountinfo: &str) -> Located {
        locate(membership.as_bytes(), &proc::parse_mounts(mountinfo.as_bytes()))
    }

    #[test]
    fn pure_v2() {
        let mounts = "25 30 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let got = found("0::/user.slice/user-1000.slice/session-3.scope\n", mounts);
        assert_eq!(got.v2.unwrap(), Path::new("/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope"));
        assert!(got.v1.is_empty());
    }

    #[test]
    fn hybrid_routes_each_controller_to_its_hierarchy() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let got = found(
            "9:name=systemd:/init.scope\n4:memory:/a/b:c\n2:cpu,cpuacct:/\n1:rdma:/\n0::/init.scope\n",
            mounts,
        );
        assert_eq!(got.v2.unwrap(), Path::new("/sys/fs/cgroup/unified/init.scope"));
        let v1: Vec<_> = got.v1.iter().map(|(k, v)| (k.as_str(), v.to_str().unwrap())).collect();
        assert_eq!(
            v1,
            [
                ("cpu", "/sys/fs/cgroup/cpu,cpuacct"),
                ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
                ("memory", "/sys/fs/cgroup/memory/a/b:c"),
            ]
        );
    }

    #[test]
    fn v1_only_and_none() {
        let mounts = "35 31 0:32 / /cg\\040roup/pids rw - cgroup cgroup rw,pids\n";
        let got = found("8:pids:/x\n", mounts);
        assert_eq!(got.v2, None);
        assert_eq!(got.v1["pids"], Path::new("/cg roup/pids/x"));
        assert_eq!(found("", ""), Located::default());
        assert_eq!(found("8:pids:/x\n0::/\n", "22 27 0:21 / /proc rw - proc proc rw\n"), Located::default());
        assert_eq!(found("nonsense\n:::\n0:\n", mounts), Located::default());
    }

    #[test]
    fn containers() {
        // Without a cgroup namespace: the mount shows the container's subtree.
        let host = "60 59 0:29 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(found("4:memory:/docker/abc\n", host).v1["memory"], Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(
            found("4:memory:/docker/abc/in\n", host).v1["memory"],
            Path::new("/sys/fs/cgroup/memory/in")
        );
        assert!(
            found("4:memory:/docker/abcd\n", host).v1.is_empty(),
            "a sibling's name is a prefix only as text"
        );
        // With one: membership and mount root are both `/`.
        let inside = "60 59 0:29 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(found("0::/\n", inside).v2.unwrap(), Path::new("/sys/fs/cgroup"));
        // A mount made above the namespace's root, and a process moved out of it.
        let above = "60 59 0:29 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(found("0::/\n", above).v2, None);
        assert_eq!(found("0::/../other\n", inside).v2, None);
        // The later of two mounts is the one that a path reaches.
        let both = [inside, "61 59 0:29 / /run/cg rw - cgroup2 cgroup rw\n"].concat();
        assert_eq!(found("0::/j\n", &both).v2.unwrap(), Path::new("/run/cg/j"));
        assert_eq!(found("0::/gone (deleted)\n", inside).v2, None);
    }

    #[test]
    fn what_children_get() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let me = std::process::id();
        put("cgroup.controllers", "cpu memory pids\n");
        put("cgroup.subtree_control", "\n");
        put("cgroup.type", "domain\n");
        put("cgroup.procs", &format!("{me}\n"));
        let got = || {
            let handed = controllers(&open_dir(dir.path()).unwrap());
            (handed.all.join(" "), handed.leaf)
        };
        assert_eq!(got(), ("cpu memory pids".into(), true));
        put("cgroup.procs", &format!("{me}\n1\n"));
        assert_eq!(got(), (String::new(), false), "others live here: nothing can be handed down");
        put("cgroup.subtree_control", "pids\n");
        assert_eq!(got(), ("pids".into(), false));
        std::fs::remove_file(dir.path().join("cgroup.type")).unwrap();
        assert_eq!(got(), ("cpu memory pids".into(), false), "the root may hold both");
    }

    #[test]
    fn which_limits_one_beside_us_would_escape() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let got = || limit_of(&open_dir(dir.path()).unwrap());
        assert_eq!(got(), None, "no controller, no limit");
        for (name, none, some) in [
            ("memory.max", "max\n", "1048576\n"),
            ("memory.high", "max\n", "1048576\n"),
            ("pids.max", "max\n", "10\n"),
            ("cpu.max", "max 100000\n", "20000 100000\n"),
            ("cpuset.cpus", "\n", "0\n"),
            ("io.max", "", "8:0 rbps=1 wbps=max riops=max wiops=max\n"),
        ] {
            put(name, none);
            assert_eq!(got(), None, "{name}");
            put(name, some);
            assert_eq!(got(), Some(name));
            put(name, none);
        }
        // A cached answer falls with any of them.
        let path = HostPath::new(dir.path()).unwrap();
        let seen = state(&open_dir(dir.path()).unwrap());
        let facts = CgroupFacts { v2_seen: Some((path, seen)), ..CgroupFacts::default() };
        assert!(still_holds(&facts) && still_holds(&CgroupFacts::default()));
        put("pids.max", "10\n");
        assert!(!still_holds(&facts));
        put("pids.max", "max\n");
        assert!(still_holds(&facts));
        put("cgroup.subtree_control", "memory\n");
        assert!(!still_holds(&facts));
        // Not of cgroup2: nothing is beside us.
        let why = beside(dir.path(), &open_dir(dir.path()).unwrap()).err().unwrap();
        assert!(why.contains("holds other processes"), "{why}");
    }

    #[test]
    fn a_trial_is_removed_and_old_ones_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let own = open_dir(dir.path()).unwrap();
        let old = dir.path().join(format!("{TRIAL_PREFIX}1-0"));
        std::fs::create_dir(&old).unwrap();
        std::fs::File::open(&old).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        let trial = Trial::make(&own).unwrap();
        sweep(&own, &trial);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            2,
            "the old one is gone, ours and others stay"
        );
        drop(trial);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

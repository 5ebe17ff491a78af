//! Facts about the paths that a policy and a request name, gathered with the caller's rights. Nothing here opens
//! an object for its content but small regular files that are meant to be read, so that no FIFO, device or lease
//! can hold it up; every walk is bounded; what lies below the workspace is looked up beneath its descriptor
//! without following links.

use super::listing::{Listing, list, names};
use super::workspace::{self, Beneath};
use super::{ProbeError, caches, git, never, proc, toolchains};
use crate::base::{HostPath, OsBytes, RelPath, SandboxPath, name_matches};
use crate::plan::{Kind, PathFact, PathFacts, PathMissing, Request, SystemEntry, WorkspaceFact};
use crate::policy::{Access, MountEntry, Policy};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The largest file below `/etc` that is copied rather than mounted, and the largest `.git` file read.
pub const COPY_BYTES_MAX: u64 = 4096;
/// What patterns may match in the workspace.
pub const ENTRIES_MAX: usize = 4096;
/// Entries read of one directory whose matching names alone are kept: a command may fill a directory, and is not to keep
/// the next one from running.
pub(super) const READ_MAX: usize = 1 << 20;
/// Names kept of one directory; the sweep after a run looks at no more, and calls the run broken.
pub(super) const NAMES_MAX: usize = 1 << 16;
/// Names of another root's top level.
const TOP_NAMES_MAX: usize = 256;

/// Top-level names of the host that belong to the base root: `/usr` and the links or directories beside it.
const TOP: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Top-level names that every executor has of its own, whatever another root holds there.
const OWN_TOP: [&str; 7] = ["proc", "sys", "dev", "tmp", "run", "home", "root"];

/// Why the facts could not be gathered. A source that is not there is a fact, not an error.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// The workspace cannot be looked up.
    #[error("the workspace {path} cannot be used")]
    Workspace {
        /// Which.
        path: HostPath,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A directory in which a pattern must be matched cannot be read, so that a match might be missed.
    #[error("the directory {dir} must be searched for the pattern {pattern} and cannot be read")]
    Unreadable {
        /// Which.
        dir: String,
        /// For what.
        pattern: RelPath,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A directory in which a pattern must be matched is too large.
    #[error(
        "the directory {dir} of the workspace must be searched for the pattern {pattern} and holds too much for that \
         (at the top {READ_MAX} entries, below it {NAMES_MAX}); remove some, or name the files without `*`"
    )]
    TooManyEntries {
        /// Which.
        dir: String,
        /// For what.
        pattern: RelPath,
    },
    /// The patterns match too much.
    #[error("the patterns of the profile match more than {ENTRIES_MAX} paths in the workspace")]
    TooManyMatches,
    /// The mount table of this process cannot be read: the same directory may have other names.
    #[error("the mount table cannot be read")]
    Mounts(#[source] ProbeError),
    /// The other root holds too much at its top level, or cannot be listed.
    #[error("the root directory {dir} cannot be listed, or has more than {TOP_NAMES_MAX} names")]
    Root {
        /// Which.
        dir: HostPath,
    },
}

/// Where the caller's and the host's profiles lie, if there are any.
fn config_dirs(request: &Request, home: Option<&HostPath>) -> Vec<HostPath> {
    let xdg = request.caller_env.get(&OsBytes::from("XDG_CONFIG_HOME"));
    let xdg = xdg.and_then(|dir| HostPath::new(dir.as_os_str()).ok());
    let home = || HostPath::new(home?.as_path().join(".config")).ok();
    let own = xdg.or_else(home).and_then(|dir| HostPath::new(dir.as_path().join("stockade")).ok());
    own.into_iter().chain(HostPath::new("/etc/stockade").ok()).collect()
}

/// Gathers what [`crate::plan`] needs to know about the paths of `policy` and `request`.
///
/// # Errors
/// See [`GatherError`].
pub fn gather(
    policy: &Policy,
    request: &Request,
    home: Option<&HostPath>,
    state_dir: Option<&HostPath>,
) -> Result<PathFacts, GatherError> {
    let mounts = proc::mounts(Path::new("/proc")).map_err(GatherError::Mounts)?;
    let mut facts = PathFacts {
        home: home.cloned(),
        state_dir: state_dir.cloned(),
        never: never::places(&mounts, state_dir, &config_dirs(request, home)),
        ..PathFacts::default()
    };
    for path in named(policy, request) {
        facts.sources.entry(path).or_insert_with_key(|path| look_up(path.as_path()));
    }
    if let Some(path) = request.workspace.as_ref().filter(|_| policy.workspace.access != Access::None) {
        facts.grants = grants(policy, request, &facts);
        facts.workspace = Some(of_workspace(policy, path, &facts.grants)?);
    } else {
        facts.grants = grants(policy, request, &facts);
    }
    facts.unmasked = unmasked(policy, request);
    match request.root.as_ref().or(policy.root.dir.as_ref()) {
        Some(dir) => {
            if let Some(Ok(fact)) = facts.sources.get(dir)
                && fact.kind == Kind::Dir
            {
                facts.top = other_root(dir)?;
            }
        }
        None => {
            facts.top = host_top();
            facts.etc = host_etc(&policy.root.etc);
            if policy.root.toolchains {
                let workspace = facts.workspace.as_ref().map(|w| w.root.real.clone());
                let found = toolchains::find(&request.caller_env, home, workspace.as_ref(), state_dir);
                (facts.toolchains, facts.left_out) = found;
            }
            if !policy.caches.tools.is_empty() {
                let workspace = facts.workspace.as_ref().map(|w| &w.root.real);
                let tools = &policy.caches.tools;
                facts.caches = caches::find(tools, &request.caller_env, home, workspace, state_dir);
            }
        }
    }
    Ok(facts)
}

/// Where the directories of `[grants]` lead that links on the way move elsewhere.
fn grants(policy: &Policy, request: &Request, facts: &PathFacts) -> BTreeMap<HostPath, HostPath> {
    let mut changeable: Vec<HostPath> = facts.home.iter().chain(&request.workspace).cloned().collect();
    let writable = request.binds.iter().filter(|b| b.writable);
    changeable
        .extend(writable.filter_map(|b| facts.sources.get(&b.source)?.as_ref().ok()).map(|f| f.real.clone()));
    let all = policy.grants.ro.iter().chain(&policy.grants.rw);
    all.filter_map(|dir| Some((dir.clone(), led_to(dir, &changeable)?))).collect()
}

/// Links that are followed on the way to one grant; the kernel follows 40.
const LINKS_MAX: usize = 40;

/// Where `dir` leads, when that is elsewhere. A link counts as a part of the profile's words where nobody but root can
/// have made it: one that belongs to another user, or lies in what a command may have written, would let a command
/// choose what the next one is granted.
fn led_to(dir: &HostPath, changeable: &[HostPath]) -> Option<HostPath> {
    // Its links mean another process each time.
    if dir.as_path().starts_with("/proc") {
        return None;
    }
    let mut todo: Vec<std::ffi::OsString> =
        dir.as_path().iter().rev().map(std::ffi::OsStr::to_os_string).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = todo.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let stat = fs::lstat(&next).ok()?;
        if kind(stat.st_mode) != Kind::Symlink {
            at = next;
            continue;
        }
        links += 1;
        if stat.st_uid != 0 || links > LINKS_MAX || changeable.iter().any(|c| at.starts_with(c.as_path())) {
            return None;
        }
        let to = fs::readlinkat(CWD, &next, Vec::with_capacity(128)).ok()?;
        let to = Path::new(OsStr::from_bytes(to.to_bytes()));
        if to.is_absolute() {
            at = PathBuf::from("/");
        }
        let parts = to.components().rev().filter(|c| !matches!(c, Component::RootDir | Component::CurDir));
        todo.extend(parts.map(|c| c.as_os_str().to_os_string()));
    }
    HostPath::new(at).ok().filter(|real| real != dir)
}

/// The masks of the profile for which the host has nothing now, as far as their targets can be told: they are made all
/// the same where something is there by the time of the run.
fn unmasked(policy: &Policy, request: &Request) -> Vec<SandboxPath> {
    let root = request.root.as_ref().or(policy.root.dir.as_ref());
    let on_host = |at: &SandboxPath| -> Option<HostPath> {
        let from = |target: &SandboxPath, source: &HostPath| match at.below(target) {
            Some(rel) => Some((target.depth(), Some(source.join(&rel)))),
            None => (at == target).then(|| (target.depth(), Some(source.clone()))),
        };
        let mounts = policy.mounts.iter().filter_map(|m| match m {
            MountEntry::Bind { source, target, .. } | MountEntry::Overlay { source, target, .. } => {
                from(target, source)
            }
            MountEntry::Mask { .. } => None,
            other => at.is_within(other.target()).then(|| (other.target().depth(), None)),
        });
        let binds = request.binds.iter().filter_map(|b| from(&b.target, &b.source));
        let workspace = request.workspace.as_ref().filter(|_| policy.workspace.access != Access::None);
        let workspace = workspace.and_then(|w| match &request.at {
            Some(target) => from(target, w),
            None => from(&w.as_sandbox(), w),
        });
        let top = at.as_path().iter().nth(1)?;
        let base = match root {
            Some(dir) if !OWN_TOP.iter().any(|own| top == *own) => from(&SandboxPath::root(), dir),
            None if TOP.iter().any(|name| top == *name) => Some((0, HostPath::new(at.as_path()).ok())),
            _ => None,
        };
        mounts.chain(binds).chain(workspace).chain(base).max_by_key(|(depth, _)| *depth)?.1
    };
    let targets =
        policy.mounts.iter().filter(|m| matches!(m, MountEntry::Mask { .. })).map(MountEntry::target);
    let absent = |at: &&SandboxPath| {
        on_host(at).is_some_and(|path| {
            matches!(look_up(path.as_path()), Err(PathMissing { errno: libc::ENOENT | libc::ENOTDIR }))
        })
    };
    targets.filter(absent).cloned().collect()
}

fn named(policy: &Policy, request: &Request) -> Vec<HostPath> {
    let mounts = policy.mounts.iter().filter_map(|m| match m {
        MountEntry::Bind { source, .. } | MountEntry::Overlay { source, .. } => Some(source.clone()),
        _ => None,
    });
    request
        .root
        .clone()
        .or_else(|| policy.root.dir.clone())
        .into_iter()
        .chain(mounts)
        .chain(request.binds.iter().map(|b| b.source.clone()))
        .collect()
}

/// The type bits of `mode`.
pub(super) fn kind(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => Kind::Dir,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::Device,
        FileType::Socket => Kind::Socket,
        _ => Kind::Other,
    }
}

/// Looks a path up, links followed, without opening the object.
///
/// # Errors
/// When it leads nowhere, or nowhere that the caller may look.
pub fn look_up(path: &Path) -> Result<PathFact, PathMissing> {
    let fact = open_path(path).and_then(|(fd, real)| fact_at(&fd, real));
    fact.map_err(|e| PathMissing { errno: e.raw_os_error() })
}

/// A descriptor that opens nothing of what `path` leads to, links followed, and the real path.
pub(super) fn open_path(path: &Path) -> Result<(OwnedFd, HostPath), Errno> {
    if let Some(opened) = open_plain(path) {
        return opened;
    }
    let fd = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let real = real_path(&fd)?;
    Ok((fd, real))
}

/// `path`, when it is the real path of something: absolute, clean, and without a link on it.
pub fn plain(path: &Path) -> Option<HostPath> {
    open_plain(path)?.ok().map(|(_, real)| real)
}

/// The same for a path without a link on it, which is its own real path: asking procfs for that costs more than all
/// the rest. `None` when there is one, or when the path holds what a kernel would write differently.
fn open_plain(path: &Path) -> Option<Result<(OwnedFd, HostPath), Errno>> {
    let real = HostPath::new(path).ok().filter(|clean| clean.as_path().as_os_str() == path.as_os_str())?;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(fd) => Some(Ok((fd, real))),
        // What is not there is not there with links followed either.
        Err(e @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)) => Some(Err(e)),
        Err(_) => None,
    }
}

/// What an O_PATH descriptor leads to.
pub(super) fn fact(fd: &OwnedFd) -> Result<PathFact, Errno> {
    let real = real_path(fd)?;
    fact_at(fd, real)
}

fn fact_at(fd: &OwnedFd, real: HostPath) -> Result<PathFact, Errno> {
    fact_of(fd, &fs::fstat(fd)?, real)
}

fn fact_of(fd: &OwnedFd, stat: &Stat, real: HostPath) -> Result<PathFact, Errno> {
    // Removed since, or a path that this process cannot reach: its name would mean something else.
    if stat.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    Ok(seen_as(stat, real, fs::fstatfs(fd)?.f_type as u64))
}

fn seen_as(stat: &Stat, real: HostPath, fs_magic: u64) -> PathFact {
    PathFact {
        kind: kind(stat.st_mode),
        dev: stat.st_dev,
        ino: stat.st_ino,
        uid: stat.st_uid,
        gid: stat.st_gid,
        real,
        fs_magic,
    }
}

fn real_path(fd: &OwnedFd) -> Result<HostPath, Errno> {
    let link = fs::readlinkat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::with_capacity(256))?;
    HostPath::new(OsStr::from_bytes(link.to_bytes())).map_err(|_| Errno::NOENT)
}

/// The content of a regular file beneath `dir`, `None` when it is longer than `max`. Links are followed only
/// with `follow`.
pub(super) fn read_small(
    dir: impl AsFd,
    name: impl AsRef<Path>,
    max: u64,
    follow: bool,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut resolve = ResolveFlags::NO_MAGICLINKS;
    if !follow {
        flags |= OFlags::NOFOLLOW;
        resolve |= ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    }
    // Opening a device may act on it: look first, by a descriptor that opens nothing.
    let path = OFlags::PATH | (flags & (OFlags::NOFOLLOW | OFlags::CLOEXEC));
    let seen = fs::fstat(fs::openat2(dir.as_fd(), name.as_ref(), path, Mode::empty(), resolve)?)?;
    if kind(seen.st_mode) != Kind::File {
        return Err(Errno::INVAL);
    }
    let file = fs::openat2(dir.as_fd(), name.as_ref(), flags, Mode::empty(), resolve)?;
    read_seen(file, &seen, max)
}

/// The content of the file that was `seen` before it was opened, `None` when it is longer than `max`.
fn read_seen(file: OwnedFd, seen: &Stat, max: u64) -> Result<Option<Vec<u8>>, Errno> {
    let stat = fs::fstat(&file)?;
    if (stat.st_dev, stat.st_ino) != (seen.st_dev, seen.st_ino) {
        return Err(Errno::AGAIN);
    }
    let mut out = Vec::with_capacity((stat.st_size as u64).min(max) as usize + 1);
    let read = std::fs::File::from(file).take(max + 1).read_to_end(&mut out);
    read.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok((out.len() as u64 <= max).then_some(out))
}

/// `path` with `..` undone as text.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn of_workspace(
    policy: &Policy,
    path: &HostPath,
    grants: &BTreeMap<HostPath, HostPath>,
) -> Result<WorkspaceFact, GatherError> {
    let failed = |e: Errno| GatherError::Workspace { path: path.clone(), source: e.into() };
    let (fd, real) = open_path(path.as_path()).map_err(failed)?;
    let root = fact_at(&fd, real).map_err(failed)?;
    let mut out =
        WorkspaceFact { root, protected: Vec::new(), hidden: Vec::new(), git: None, git_refused: None };
    if out.root.kind != Kind::Dir {
        return Ok(out);
    }
    let patterns = policy.workspace.protect.iter().chain(&policy.workspace.hide);
    let mut beneath = Beneath::new(fd, patterns);
    let mut protected = workspace::matches(&mut beneath, &policy.workspace.protect)?;
    let mut hidden = workspace::matches(&mut beneath, &policy.workspace.hide)?;
    let guards_git = policy.workspace.protect.iter().any(|p| p.as_path().starts_with(".git"));
    let dot_git = beneath.kind(Path::new(".git"));
    let (sources, key) = match policy.workspace.access {
        Access::Rw => (&policy.grants.rw, "grants.rw"),
        _ => (&policy.grants.ro, "grants.ro"),
    };
    let sources: Vec<HostPath> = sources.iter().map(|dir| grants.get(dir).unwrap_or(dir).clone()).collect();
    let terms = git::Terms {
        path,
        root: &out.root,
        caller: rustix::process::geteuid().as_raw(),
        sources: (&sources, key),
        guards: guards_git,
    };
    match git::of_workspace(beneath.root(), dot_git, &terms) {
        git::Answer::Nothing => {}
        git::Answer::Inside(more) => protected.extend(more),
        git::Answer::Linked(fact) => out.git = Some(fact),
        git::Answer::Refused(why) => out.git_refused = Some(why),
    }
    // A `.git` that is no directory decides where git looks: whoever rewrites it chooses hooks and config.
    if guards_git
        && let Ok(name) = RelPath::new(".git")
        && let Ok(kind) = dot_git
        && kind != Kind::Dir
    {
        protected.push((name, kind));
    }
    let led = behind_links(beneath.root(), &out.root.real, &hidden, &protected);
    hidden.extend(led);
    if protected.len() > ENTRIES_MAX || hidden.len() > ENTRIES_MAX {
        return Err(GatherError::TooManyMatches);
    }
    out.protected = workspace::without_nested(protected);
    out.hidden = workspace::without_nested(hidden);
    Ok(out)
}

/// The files of the workspace that hidden links lead to: nothing can be mounted over a link, so what it leads to is
/// hidden instead. Files alone, and none that is protected: a command could have made the link, to have the next one
/// miss a directory.
fn behind_links(
    root: &OwnedFd,
    real: &HostPath,
    hidden: &[(RelPath, Kind)],
    protected: &[(RelPath, Kind)],
) -> Vec<(RelPath, Kind)> {
    let links = hidden.iter().filter(|(_, kind)| *kind == Kind::Symlink);
    let led = links.filter_map(|(link, _)| {
        let fd = fs::openat(root, link.as_path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let fact = fact(&fd).ok().filter(|fact| fact.kind == Kind::File)?;
        let rel = fact.real.below(real)?;
        let held = protected.iter().any(|(held, _)| rel.is_within(held));
        (!held).then_some((rel, Kind::File))
    });
    led.collect()
}

/// Whether `path` is a top-level name of the base root.
pub(super) fn is_top(path: &HostPath) -> bool {
    TOP.iter().any(|name| path.as_bytes()[1..] == *name.as_bytes())
}

fn host_top() -> BTreeMap<RelPath, SystemEntry> {
    let base = Base::open(Path::new("/"), &["/usr"]);
    TOP.iter().filter_map(|name| Some((RelPath::new(name).ok()?, base.entry(name.as_ref())?))).collect()
}

fn host_etc(listed: &[RelPath]) -> BTreeMap<RelPath, SystemEntry> {
    entries_below(&Base::open(Path::new("/etc"), &["/usr", "/etc"]), listed)
}

fn entries_below(base: &Base<'_>, listed: &[RelPath]) -> BTreeMap<RelPath, SystemEntry> {
    let mut out = BTreeMap::new();
    // A pattern at the top has it listed, which then says of other names that they are not there.
    let wild: Vec<&OsStr> = wild_tops(listed.iter()).collect();
    let matches = |name: &OsStr| wild.iter().any(|w| name_matches(w.as_bytes(), name.as_bytes()));
    let top = if wild.is_empty() { Listing::default() } else { list_path(base.path, matches) };
    for pattern in listed {
        let first = pattern.as_path().iter().next().unwrap_or_default();
        if !is_wild(first) && top.seen.as_ref().is_some_and(|seen| seen.lacks(first)) {
            continue;
        }
        for rel in expanded(base.path, &top.names, pattern) {
            if let Some(entry) = base.entry(rel.as_path()) {
                out.insert(rel, entry);
            }
        }
    }
    out
}

fn is_wild(part: &OsStr) -> bool {
    part.as_bytes().contains(&b'*')
}

/// The first components of those patterns for which the directory itself must be listed.
pub(super) fn wild_tops<'p>(patterns: impl Iterator<Item = &'p RelPath>) -> impl Iterator<Item = &'p OsStr> {
    patterns.filter_map(|p| p.as_path().iter().next()).filter(|first| is_wild(first))
}

/// The names in a directory. What cannot be listed shows nothing.
fn list_path(dir: &Path, keep: impl Fn(&OsStr) -> bool) -> Listing {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let listed = fs::open(dir, flags, Mode::empty()).and_then(|fd| list(fd, ENTRIES_MAX, keep));
    listed.ok().flatten().unwrap_or_default()
}

/// The names below `base` that `pattern` matches, where `top` is what such patterns match there; itself when it holds
/// no `*`.
fn expanded(base: &Path, top: &[OsString], pattern: &RelPath) -> Vec<RelPath> {
    if !pattern.as_bytes().contains(&b'*') {
        return vec![pattern.clone()];
    }
    let mut found = vec![PathBuf::new()];
    for (depth, part) in pattern.as_path().iter().enumerate() {
        if !is_wild(part) {
            found.iter_mut().for_each(|p| p.push(part));
            continue;
        }
        let matching = |dir: &PathBuf, all: &[OsString]| -> Vec<PathBuf> {
            let matches = |name: &&OsString| name_matches(part.as_bytes(), name.as_bytes());
            all.iter().filter(matches).map(|name| dir.join(name)).collect()
        };
        found = found
            .iter()
            .flat_map(|dir| match depth {
                0 => matching(dir, top),
                _ => matching(dir, &list_path(&base.join(dir), |_| true).names),
            })
            .take(ENTRIES_MAX)
            .collect();
    }
    found.iter().filter_map(|p| RelPath::new(p).ok()).collect()
}

/// A directory with names of the host's base system.
struct Base<'p> {
    path: &'p Path,
    /// Where links may lead, as text, and are made again: what exists in the new root too.
    inside: &'p [&'p str],
    /// When no link is on its way.
    dir: Option<BaseDir>,
}

struct BaseDir {
    fd: OwnedFd,
    dev: u64,
    fs_magic: u64,
}

impl<'p> Base<'p> {
    fn open(path: &'p Path, inside: &'p [&'p str]) -> Self {
        let fact = |fd: &OwnedFd| Ok::<_, Errno>((fs::fstat(fd)?.st_dev, fs::fstatfs(fd)?.f_type as u64));
        let dir = open_plain(path).and_then(Result::ok).and_then(|(fd, _)| {
            let (dev, fs_magic) = fact(&fd).ok()?;
            Some(BaseDir { fd, dev, fs_magic })
        });
        Self { path, inside, dir }
    }

    /// What `name` is, `None` when it is not there, cannot be seen by the caller or is nothing that belongs in a root. A
    /// link is made again when it stays `inside`; otherwise what it leads to is shown.
    fn entry(&self, name: &Path) -> Option<SystemEntry> {
        let path = self.path.join(name);
        // A single name leads nowhere else, unless it is a link. On the directory's own device it has its file system.
        if let Some(dir) = self.dir.as_ref().filter(|_| name.iter().nth(1).is_none()) {
            match fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
                Ok(stat) if kind(stat.st_mode) == Kind::Symlink => return self.link(&path),
                Ok(stat) if stat.st_dev == dir.dev => {
                    let real = HostPath::new(&path).ok()?;
                    return shown(&path, &stat, || Some(seen_as(&stat, real, dir.fs_magic)));
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
        match open_plain(&path) {
            Some(opened) => {
                let (fd, real) = opened.ok()?;
                let stat = fs::fstat(&fd).ok()?;
                shown(&path, &stat, || fact_of(&fd, &stat, real).ok())
            }
            None => self.link(&path),
        }
    }

    /// What a path with a link on it, perhaps in last place, is.
    fn link(&self, path: &Path) -> Option<SystemEntry> {
        if let Ok(to) = fs::readlinkat(CWD, path, Vec::with_capacity(128)) {
            let to = OsStr::from_bytes(to.to_bytes());
            let leads = lexical(&path.parent()?.join(to));
            if self.inside.iter().any(|dir| leads.starts_with(dir)) {
                return Some(SystemEntry::Symlink { to: to.into() });
            }
        }
        let (fd, real) = open_path(path).ok()?;
        let stat = fs::fstat(&fd).ok()?;
        shown(path, &stat, || fact_of(&fd, &stat, real).ok())
    }
}

/// How what lies at `path` is shown: small files are copied, which costs less than a mount.
fn shown(path: &Path, stat: &Stat, fact: impl FnOnce() -> Option<PathFact>) -> Option<SystemEntry> {
    match kind(stat.st_mode) {
        Kind::Dir => Some(SystemEntry::Mount { fact: fact()? }),
        Kind::File => small_copy(path, stat).or_else(|| Some(SystemEntry::Mount { fact: fact()? })),
        _ => None,
    }
}

/// The bytes of a small file that everybody may read: a copy is readable by the command, which the original
/// must have been for it.
fn small_copy(path: &Path, seen: &Stat) -> Option<SystemEntry> {
    if seen.st_mode & 0o004 == 0 || seen.st_size as u64 > COPY_BYTES_MAX || seen.st_nlink == 0 {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS).ok()?;
    let content = read_seen(file, seen, COPY_BYTES_MAX).ok()??;
    Some(SystemEntry::Copy { content: content.into() })
}

/// The top level of another root: its links as they are (they mean the same inside), directories and files.
fn other_root(dir: &HostPath) -> Result<BTreeMap<RelPath, SystemEntry>, GatherError> {
    let failed = |_| GatherError::Root { dir: dir.clone() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = fs::open(dir.as_path(), flags, Mode::empty()).map_err(failed)?;
    let listing = fs::openat(&fd, ".", flags, Mode::empty()).map_err(failed)?;
    let all = names(listing, TOP_NAMES_MAX)
        .map_err(failed)?
        .ok_or_else(|| GatherError::Root { dir: dir.clone() })?;
    let mut out = BTreeMap::new();
    for name in all {
        // Names with which the root is built are no other root's.
        if OWN_TOP.iter().any(|own| name == *own) || name.as_bytes().starts_with(b".stockade") {
            continue;
        }
        let (Ok(rel), Ok(stat)) = (RelPath::new(&name), fs::statat(&fd, &name, AtFlags::SYMLINK_NOFOLLOW))
        else {
            continue;
        };
        let entry = match kind(stat.st_mode) {
            Kind::Symlink => fs::readlinkat(&fd, &name, Vec::new())
                .ok()
                .map(|to| SystemEntry::Symlink { to: OsBytes::from(to.into_bytes()) }),
            Kind::Dir | Kind::File => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = fs::openat(&fd, &name, flags, Mode::empty()).and_then(|fd| fact(&fd));
                opened.ok().map(|fact| SystemEntry::Mount { fact })
            }
            _ => None,
        };
        if let Some(entry) = entry {
            out.insert(rel, entry);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{policy, rel, request, tree};
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn host(path: &Path) -> HostPath {
        HostPath::new(path).unwrap()
    }

    #[test]
    fn sources_are_facts_whether_they_exist_or_not() {
        let dir = tree(&["d/", "f"]);
        let at = |name: &str| host(&dir.path().join(name));
        symlink("d", dir.path().join("l")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut request = request(None);
        for name in ["d", "f", "l", "loop", "dangling", "fifo", "absent", "f/x"] {
            request.binds.push(crate::plan::ExtraBind {
                source: at(name),
                target: at(name).as_sandbox(),
                writable: false,
            });
        }
        let facts = gather(&policy(), &request, None, None).unwrap();
        let kind = |name: &str| facts.sources[&at(name)].as_ref().map(|f| f.kind).map_err(|m| m.errno);
        assert_eq!(kind("d"), Ok(Kind::Dir));
        assert_eq!(kind("f"), Ok(Kind::File));
        assert_eq!(kind("l"), Ok(Kind::Dir));
        assert_eq!(kind("fifo"), Ok(Kind::Other), "without blocking");
        assert_eq!(kind("loop"), Err(libc::ELOOP));
        assert_eq!(kind("dangling"), Err(libc::ENOENT));
        assert_eq!(kind("absent"), Err(libc::ENOENT));
        assert_eq!(kind("f/x"), Err(libc::ENOTDIR));
        let real = &facts.sources[&at("l")].as_ref().unwrap().real;
        assert_eq!(real.as_path(), dir.path().canonicalize().unwrap().join("d"));
        assert_eq!(facts.workspace, None);
    }

    #[test]
    fn the_workspace_must_be_there() {
        let dir = tree(&["f"]);
        let gone = host(&dir.path().join("gone"));
        let got = gather(&policy(), &request(Some(&gone)), None, None);
        assert!(matches!(got, Err(GatherError::Workspace { .. })));
        let mut none = policy();
        none.workspace.access = Access::None;
        assert_eq!(gather(&none, &request(Some(&gone)), None, None).unwrap().workspace, None);
        let file = host(&dir.path().join("f"));
        let got = gather(&policy(), &request(Some(&file)), None, None).unwrap().workspace.unwrap();
        assert_eq!(got.root.kind, Kind::File, "refused by the plan, with words");
    }

    #[test]
    fn system_entries() {
        let dir = tree(&["small", "large", "secret", "dir/inner", "elsewhere"]);
        let at = dir.path();
        std::fs::write(at.join("small"), "bytes\n").unwrap();
        std::fs::write(at.join("large"), vec![b'x'; 4097]).unwrap();
        std::fs::set_permissions(at.join("secret"), std::fs::Permissions::from_mode(0o640)).unwrap();
        for (to, name) in [
            ("small", "near"),
            ("/usr/share/zoneinfo/UTC", "zone"),
            ("../outside", "out"),
            ("nowhere", "dangling"),
            ("loop", "loop"),
            ("/dev/null", "null"),
            ("/usr/../dev/null", "sly"),
        ] {
            symlink(to, at.join(name)).unwrap();
        }
        nix::unistd::mkfifo(&at.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let entry = |name: &str, inside: &[&str]| Base::open(at, inside).entry(name.as_ref());
        let usr = ["/usr"];
        assert_eq!(entry("small", &usr), Some(SystemEntry::Copy { content: "bytes\n".into() }));
        assert!(matches!(entry("large", &usr), Some(SystemEntry::Mount { fact }) if fact.kind == Kind::File));
        assert!(matches!(entry("secret", &usr), Some(SystemEntry::Mount { .. })), "a copy would be readable");
        assert!(matches!(entry("dir", &usr), Some(SystemEntry::Mount { fact }) if fact.kind == Kind::Dir));
        assert_eq!(entry("zone", &usr), Some(SystemEntry::Symlink { to: "/usr/share/zoneinfo/UTC".into() }));
        assert_eq!(entry("near", &usr), Some(SystemEntry::Copy { content: "bytes\n".into() }), "followed");
        assert_eq!(
            entry("near", &[at.to_str().unwrap()]),
            Some(SystemEntry::Symlink { to: "small".into() }),
            "inside"
        );
        for name in ["absent", "dangling", "loop", "out", "fifo", "null", "sly"] {
            assert_eq!(entry(name, &usr), None, "{name}");
        }
    }

    #[test]
    fn patterns_below_etc() {
        let dir =
            tree(&["java-17-openjdk/x", "java-21-openjdk/", "java", "a/one.conf", "b/two.conf", "b/three"]);
        let got = |listed: &[&str]| -> Vec<String> {
            let listed: Vec<RelPath> = listed.iter().map(|p| rel(p)).collect();
            entries_below(&Base::open(dir.path(), &[]), &listed).keys().map(ToString::to_string).collect()
        };
        assert_eq!(got(&["java-*-openjdk"]), ["java-17-openjdk", "java-21-openjdk"]);
        assert_eq!(got(&["*/*.conf"]), ["a/one.conf", "b/two.conf"]);
        assert_eq!(got(&["*/three", "java", "no*", "absent/*"]), ["b/three", "java"]);
    }

    #[test]
    fn the_hosts_own_base() {
        let mut policy = policy();
        policy.root.etc = vec![rel("passwd"), rel("no-such-thing"), rel("ld.so.cache")];
        let facts = gather(&policy, &request(None), None, None).unwrap();
        assert!(matches!(facts.top.get(&rel("usr")), Some(SystemEntry::Mount { .. })), "{:?}", facts.top);
        assert!(facts.top.contains_key(&rel("bin")));
        assert!(!facts.etc.contains_key(&rel("no-such-thing")));
        assert!(facts.etc.contains_key(&rel("passwd")));
    }

    #[test]
    fn another_root() {
        let dir = tree(&["usr/bin/", "etc/passwd", "proc/", "tmp/x", "init"]);
        symlink("usr/bin", dir.path().join("bin")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut request = request(None);
        request.root = Some(host(dir.path()));
        let facts = gather(&policy(), &request, None, None).unwrap();
        let names: Vec<String> = facts.top.keys().map(ToString::to_string).collect();
        assert_eq!(names, ["bin", "etc", "init", "usr"]);
        assert_eq!(facts.top[&rel("bin")], SystemEntry::Symlink { to: "usr/bin".into() });
        assert!(facts.etc.is_empty() && facts.toolchains.is_empty());
        for n in 0..300 {
            std::fs::write(dir.path().join(format!("n{n}")), "").unwrap();
        }
        assert!(matches!(gather(&policy(), &request, None, None), Err(GatherError::Root { .. })));
    }

    #[test]
    fn small_files_only() {
        let dir = tree(&["f", "d/"]);
        std::fs::write(dir.path().join("f"), "12345").unwrap();
        symlink("f", dir.path().join("l")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fd = fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(read_small(&fd, "f", 5, false), Ok(Some(b"12345".to_vec())));
        assert_eq!(read_small(&fd, "f", 4, false), Ok(None));
        assert_eq!(read_small(&fd, "l", 5, false), Err(Errno::INVAL));
        assert_eq!(read_small(&fd, "l", 5, true), Ok(Some(b"12345".to_vec())));
        assert_eq!(read_small(&fd, "fifo", 5, false), Err(Errno::INVAL));
        assert_eq!(read_small(&fd, "d", 5, false), Err(Errno::INVAL));
        assert_eq!(read_small(&fd, "../f", 5, false), Err(Errno::XDEV));
    }
}

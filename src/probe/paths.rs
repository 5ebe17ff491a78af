//! Facts about the paths that a policy and a request name, gathered with the caller's rights. Nothing here opens
//! an object for its content but small regular files that are meant to be read, so that no FIFO, device or lease
//! can hold it up; every walk is bounded; what lies below the workspace is looked up beneath its descriptor
//! without following links.

use super::workspace::{self, Beneath};
use super::{caches, git, toolchains};
use crate::base::{HostPath, OsBytes, RelPath, name_matches};
use crate::plan::{Kind, PathFact, PathFacts, PathMissing, Request, SystemEntry, WorkspaceFact};
use crate::policy::{Access, MountEntry, Policy};
use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// The largest file below `/etc` that is copied rather than mounted, and the largest `.git` file read.
pub const COPY_BYTES_MAX: u64 = 4096;
/// Entries read of one directory.
pub const ENTRIES_MAX: usize = 4096;
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
        "the directory {dir} must be searched for the pattern {pattern} and holds more than {ENTRIES_MAX} entries; \
         name the files without `*`, or keep them in a directory of their own"
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
    /// The other root holds too much at its top level, or cannot be listed.
    #[error("the root directory {dir} cannot be listed, or has more than {TOP_NAMES_MAX} names")]
    Root {
        /// Which.
        dir: HostPath,
    },
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
    let mut facts = PathFacts { home: home.cloned(), state_dir: state_dir.cloned(), ..PathFacts::default() };
    for path in named(policy, request) {
        facts.sources.entry(path).or_insert_with_key(|path| look_up(path.as_path()));
    }
    if let Some(path) = request.workspace.as_ref().filter(|_| policy.workspace.access != Access::None) {
        facts.workspace = Some(of_workspace(policy, path)?);
    }
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
    let missing = |e: Errno| PathMissing { errno: e.raw_os_error() };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // A plain path without a link on it is its own real path: asking procfs for that costs more than all the rest.
    if let Some(real) = plain(path) {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        if let Ok(fd) = fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            return fact_at(&fd, real).map_err(missing);
        }
    }
    let fd = fs::open(path, flags, Mode::empty()).map_err(missing)?;
    fact(&fd).map_err(missing)
}

/// `path`, when it is absolute and holds nothing that a kernel would write differently.
fn plain(path: &Path) -> Option<HostPath> {
    let normal = path.is_absolute() && !path.components().any(|c| c == Component::ParentDir);
    let same = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    (normal && same).then(|| HostPath::new(path).ok())?
}

/// What an O_PATH descriptor leads to.
pub(super) fn fact(fd: &OwnedFd) -> Result<PathFact, Errno> {
    let real = real_path(fd)?;
    fact_at(fd, real)
}

fn fact_at(fd: &OwnedFd, real: HostPath) -> Result<PathFact, Errno> {
    let stat = fs::fstat(fd)?;
    // Removed since, or a path that this process cannot reach: its name would mean something else.
    if stat.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    Ok(PathFact {
        kind: kind(stat.st_mode),
        dev: stat.st_dev,
        ino: stat.st_ino,
        uid: stat.st_uid,
        gid: stat.st_gid,
        real,
        fs_magic: fs::fstatfs(fd)?.f_type as u64,
    })
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
    let stat = fs::fstat(&file)?;
    if (stat.st_dev, stat.st_ino) != (seen.st_dev, seen.st_ino) {
        return Err(Errno::AGAIN);
    }
    let mut out = Vec::with_capacity((stat.st_size as u64).min(max) as usize + 1);
    let read = std::fs::File::from(file).take(max + 1).read_to_end(&mut out);
    read.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok((out.len() as u64 <= max).then_some(out))
}

/// The names in the directory behind `fd`, `None` when there are more than `max`.
pub(super) fn names(fd: OwnedFd, max: usize) -> Result<Option<Vec<std::ffi::OsString>>, Errno> {
    let mut out = Vec::new();
    for entry in Dir::new(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if out.len() == max {
            return Ok(None);
        }
        out.push(std::ffi::OsString::from_vec(name.to_vec()));
    }
    out.sort_unstable();
    Ok(Some(out))
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

fn of_workspace(policy: &Policy, path: &HostPath) -> Result<WorkspaceFact, GatherError> {
    let failed = |e: Errno| GatherError::Workspace { path: path.clone(), source: e.into() };
    let fd = fs::open(path.as_path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let root = fact(&fd).map_err(failed)?;
    let mut out =
        WorkspaceFact { root, protected: Vec::new(), hidden: Vec::new(), git: None, git_refused: None };
    if out.root.kind != Kind::Dir {
        return Ok(out);
    }
    let mut beneath = Beneath::new(fd);
    let mut protected = workspace::matches(&mut beneath, &policy.workspace.protect)?;
    let hidden = workspace::matches(&mut beneath, &policy.workspace.hide)?;
    let guards_git = policy.workspace.protect.iter().any(|p| p.as_path().starts_with(".git"));
    let terms = git::Terms {
        path,
        root: &out.root,
        caller: rustix::process::geteuid().as_raw(),
        sources: match policy.workspace.access {
            Access::Rw => (&policy.grants.rw, "grants.rw"),
            _ => (&policy.grants.ro, "grants.ro"),
        },
        guards: guards_git,
    };
    match git::of_workspace(beneath.root(), &terms) {
        git::Answer::Nothing => {}
        git::Answer::Inside(more) => protected.extend(more),
        git::Answer::Linked(fact) => out.git = Some(fact),
        git::Answer::Refused(why) => out.git_refused = Some(why),
    }
    // A `.git` that is no directory decides where git looks: whoever rewrites it chooses hooks and config.
    if guards_git
        && let Ok(name) = RelPath::new(".git")
        && let Ok(kind) = workspace::kind_beneath(beneath.root(), name.as_path())
        && kind != Kind::Dir
    {
        protected.push((name, kind));
    }
    if protected.len() > ENTRIES_MAX || hidden.len() > ENTRIES_MAX {
        return Err(GatherError::TooManyMatches);
    }
    out.protected = workspace::without_nested(protected);
    out.hidden = workspace::without_nested(hidden);
    Ok(out)
}

/// Whether `path` is a top-level name of the base root.
pub(super) fn is_top(path: &HostPath) -> bool {
    path.depth() == 1 && TOP.iter().any(|name| path.as_path() == Path::new("/").join(name))
}

fn host_top() -> BTreeMap<RelPath, SystemEntry> {
    let usr = [Path::new("/usr")];
    TOP.iter()
        .filter_map(|name| {
            Some((RelPath::new(name).ok()?, system_entry(Path::new("/"), name.as_ref(), &usr)?))
        })
        .collect()
}

fn host_etc(listed: &[RelPath]) -> BTreeMap<RelPath, SystemEntry> {
    entries_below(Path::new("/etc"), listed, &[Path::new("/usr"), Path::new("/etc")])
}

fn entries_below(base: &Path, listed: &[RelPath], inside: &[&Path]) -> BTreeMap<RelPath, SystemEntry> {
    let mut out = BTreeMap::new();
    for rel in listed.iter().flat_map(|pattern| expanded(base, pattern)) {
        if let Some(entry) = system_entry(base, rel.as_path(), inside) {
            out.insert(rel, entry);
        }
    }
    out
}

/// The names below `base` that `pattern` matches; itself when it holds no `*`. What cannot be listed shows nothing.
fn expanded(base: &Path, pattern: &RelPath) -> Vec<RelPath> {
    if !pattern.as_bytes().contains(&b'*') {
        return vec![pattern.clone()];
    }
    let mut found = vec![PathBuf::new()];
    for part in pattern.as_path() {
        if !part.as_bytes().contains(&b'*') {
            found.iter_mut().for_each(|p| p.push(part));
            continue;
        }
        found = found
            .iter()
            .flat_map(|dir| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let fd = fs::open(base.join(dir), flags, Mode::empty());
                let all = fd.and_then(|fd| names(fd, ENTRIES_MAX)).ok().flatten().unwrap_or_default();
                let matching = |name: &std::ffi::OsString| name_matches(part.as_bytes(), name.as_bytes());
                all.into_iter().filter(matching).map(|name| dir.join(name)).collect::<Vec<_>>()
            })
            .take(ENTRIES_MAX)
            .collect();
    }
    found.iter().filter_map(|p| RelPath::new(p).ok()).collect()
}

/// A name of the host's base system, `None` when it is not there, cannot be seen by the caller or is nothing that
/// belongs in a root. A link is made again when it stays, as text, within `inside`, which exists in the new root
/// too; otherwise what it leads to is shown.
fn system_entry(base: &Path, name: &Path, inside: &[&Path]) -> Option<SystemEntry> {
    let path = base.join(name);
    let stat = fs::lstat(&path).ok()?;
    if kind(stat.st_mode) == Kind::Symlink {
        let to = fs::readlinkat(CWD, &path, Vec::with_capacity(128)).ok()?;
        let to = OsStr::from_bytes(to.to_bytes());
        let leads = lexical(&path.parent()?.join(to));
        if inside.iter().any(|dir| leads.starts_with(dir)) {
            return Some(SystemEntry::Symlink { to: to.into() });
        }
    }
    let fact = look_up(&path).ok()?;
    match fact.kind {
        Kind::Dir => Some(SystemEntry::Mount { fact }),
        Kind::File => {
            let linked = kind(stat.st_mode) == Kind::Symlink;
            let stat = if linked { fs::stat(&path).ok()? } else { stat };
            Some(small_copy(&path, &fact, &stat).unwrap_or(SystemEntry::Mount { fact }))
        }
        _ => None,
    }
}

/// The bytes of a small file that everybody may read: a copy is readable by the command, which the original
/// must have been for it.
fn small_copy(path: &Path, fact: &PathFact, stat: &Stat) -> Option<SystemEntry> {
    let readable = stat.st_mode & 0o004 != 0 && stat.st_size as u64 <= COPY_BYTES_MAX;
    if !readable || (stat.st_dev, stat.st_ino) != (fact.dev, fact.ino) {
        return None;
    }
    let content = read_small(CWD, path, COPY_BYTES_MAX, true).ok()??;
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
        if OWN_TOP.iter().any(|own| name == *own) {
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
        let entry = |name: &str, inside: &[&Path]| system_entry(at, name.as_ref(), inside);
        let usr = [Path::new("/usr")];
        assert_eq!(entry("small", &usr), Some(SystemEntry::Copy { content: "bytes\n".into() }));
        assert!(matches!(entry("large", &usr), Some(SystemEntry::Mount { fact }) if fact.kind == Kind::File));
        assert!(matches!(entry("secret", &usr), Some(SystemEntry::Mount { .. })), "a copy would be readable");
        assert!(matches!(entry("dir", &usr), Some(SystemEntry::Mount { fact }) if fact.kind == Kind::Dir));
        assert_eq!(entry("zone", &usr), Some(SystemEntry::Symlink { to: "/usr/share/zoneinfo/UTC".into() }));
        assert_eq!(entry("near", &usr), Some(SystemEntry::Copy { content: "bytes\n".into() }), "followed");
        assert_eq!(entry("near", &[at]), Some(SystemEntry::Symlink { to: "small".into() }), "inside");
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
            entries_below(dir.path(), &listed, &[]).keys().map(ToString::to_string).collect()
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

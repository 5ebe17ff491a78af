//! The state directory: where live runs are recorded and leases are kept. Resolved from values that the
//! caller passes in (no environment is read here), opened once, and used through descriptors.
//!
//! It belongs to the user that runs us and to nobody else: created 0700, refused when it is a link, when
//! another user owns it or may write to it, or when another user could replace one of its ancestors. No
//! executor sees it, it is masked in every plan.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat, openat2, readlinkat, stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

/// Where root keeps it.
pub const SYSTEM_DIR: &str = "/var/lib/stockade";
const SUBDIRS: [&str; 3] = ["live", "ids", "cache"];

/// The values that decide where it lies.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// `--state-dir`.
    pub flag: Option<PathBuf>,
    /// `STOCKADE_STATE`.
    pub stockade_state: Option<OsString>,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
    /// Effective uid.
    pub uid: u32,
}

/// Why there is no state directory to work with.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// No value names one.
    #[error("no place for the state directory: HOME is not set; give --state-dir or STOCKADE_STATE")]
    Nowhere,
    /// A relative path would mean another directory for every caller.
    #[error("the state directory {} is not an absolute path", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// It, or what leads to it, may be changed by somebody else.
    #[error("the state directory {}: {} {why}", path.display(), at.display())]
    Unsafe {
        /// The state directory.
        path: PathBuf,
        /// What is wrong.
        at: PathBuf,
        /// Why.
        why: Why,
    },
    /// A system call.
    #[error("{step} {}: {errno}", path.display())]
    Step {
        /// What was done.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
}

/// What makes a directory unsafe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A symbolic link, or no directory at all.
    #[error("is a symbolic link or not a directory")]
    NotADirectory,
    /// Owned by another user.
    #[error("belongs to uid {0}")]
    Owner(u32),
    /// Writable for others.
    #[error("may be written by others (mode {0:o})")]
    Writable(u32),
}

/// The path that `places` decide on: the flag, `STOCKADE_STATE`, then root's fixed place or the user's
/// XDG place (a relative `XDG_STATE_HOME` counts as unset, as its specification says).
///
/// # Errors
/// [`StateError::Nowhere`], [`StateError::Relative`].
pub fn resolve(places: &Places) -> Result<PathBuf, StateError> {
    let set = |v: &Option<OsString>| v.as_deref().filter(|v| !v.is_empty()).map(PathBuf::from);
    let chosen = places.flag.clone().or_else(|| set(&places.stockade_state));
    if let Some(path) = chosen {
        return if path.is_absolute() { Ok(path) } else { Err(StateError::Relative { path }) };
    }
    if places.uid == 0 {
        return Ok(PathBuf::from(SYSTEM_DIR));
    }
    let xdg = set(&places.xdg_state_home).filter(|p| p.is_absolute());
    let home = set(&places.home).filter(|p| p.is_absolute());
    xdg.or_else(|| home.map(|h| h.join(".local/state")))
        .map(|p| p.join("stockade"))
        .ok_or(StateError::Nowhere)
}

/// The opened state directory.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Whether no link leads to it.
    plain: bool,
    dir: OwnedFd,
    live: OwnedFd,
    ids: OwnedFd,
    cache: OwnedFd,
}

impl StateDir {
    /// Opens `path`, making it and what is missing of its parents (0700), as user `uid`.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn open(path: &Path, uid: u32) -> Result<Self, StateError> {
        if !path.is_absolute() {
            return Err(StateError::Relative { path: path.to_path_buf() });
        }
        let clean = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str()
            && !path.components().any(|part| part == Component::ParentDir);
        let plain = if clean { open_plain(path) } else { None };
        let (dir, plain) = match plain {
            Some(dir) => (dir, true),
            None => (Self::open_or_make(path)?, false),
        };
        check_own(&dir, path, path, uid)?;
        let top = stat("/").map_err(|errno| step("look at", Path::new("/"), errno))?;
        for above in path.ancestors().skip(1) {
            let st = stat(above).map_err(|errno| step("look at", above, errno))?;
            check_ancestor(&st, above, path, [uid, 0, top.st_uid])?;
        }
        let [live, ids, cache] = SUBDIRS.map(|name| {
            let at = path.join(name);
            let sub = match open_dir(dir.as_fd(), OsStr::new(name)) {
                Err(Errno::NOENT) => make_dir(dir.as_fd(), OsStr::new(name), &at)?,
                other => other.map_err(|e| opening(e, &at, path))?,
            };
            check_own(&sub, &at, path, uid)?;
            Ok(sub)
        });
        Ok(Self { path: path.to_path_buf(), plain, live: live?, ids: ids?, cache: cache?, dir })
    }

    fn open_or_make(path: &Path) -> Result<OwnedFd, StateError> {
        match open_dir(CWD, path.as_os_str()) {
            Err(Errno::NOENT) => {
                make_parents(path)?;
                make_dir(CWD, path.as_os_str(), path)
            }
            other => other.map_err(|e| opening(e, path, path)),
        }
    }

    /// Where it really lies, when that can be told.
    pub fn real(&self) -> Option<PathBuf> {
        if self.plain {
            return Some(self.path.clone());
        }
        let link = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        let real = readlinkat(CWD, link, Vec::with_capacity(256)).ok()?;
        Some(PathBuf::from(OsString::from_vec(real.into_bytes())))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// `live/`: one locked file per live run.
    pub fn live(&self) -> BorrowedFd<'_> {
        self.live.as_fd()
    }

    /// `ids/`: the lock under which runs begin and id ranges are leased.
    pub fn ids(&self) -> BorrowedFd<'_> {
        self.ids.as_fd()
    }

    /// `cache/`: what may be lost at any time.
    pub fn cache(&self) -> BorrowedFd<'_> {
        self.cache.as_fd()
    }
}

fn step(step: &'static str, path: &Path, errno: Errno) -> StateError {
    StateError::Step { step, path: path.to_path_buf(), errno }
}

fn opening(errno: Errno, at: &Path, path: &Path) -> StateError {
    match errno {
        Errno::LOOP | Errno::NOTDIR => {
            StateError::Unsafe { path: path.to_path_buf(), at: at.to_path_buf(), why: Why::NotADirectory }
        }
        errno => step("open", at, errno),
    }
}

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_dir(base: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(base, Path::new(name), OPEN, Mode::empty())
}

/// Opens a directory to which no link leads.
fn open_plain(path: &Path) -> Option<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, OPEN, Mode::empty(), resolve).ok()
}

/// Makes and opens one directory; another process may have made it a moment ago.
fn make_dir(base: BorrowedFd<'_>, name: &OsStr, at: &Path) -> Result<OwnedFd, StateError> {
    match mkdirat(base, Path::new(name), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(step("make", at, errno)),
    }
    open_dir(base, name).map_err(|e| opening(e, at, at))
}

fn make_parents(path: &Path) -> Result<(), StateError> {
    let mut missing: Vec<&Path> = Vec::new();
    for above in path.ancestors().skip(1) {
        match stat(above) {
            Ok(_) => break,
            Err(Errno::NOENT) => missing.push(above),
            Err(errno) => return Err(step("look at", above, errno)),
        }
    }
    for above in missing.into_iter().rev() {
        match mkdirat(CWD, above, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(step("make", above, errno)),
        }
    }
    Ok(())
}

fn check_own(dir: &OwnedFd, at: &Path, path: &Path, uid: u32) -> Result<(), StateError> {
    let st = fstat(dir).map_err(|errno| step("look at", at, errno))?;
    let refused = |why| Err(StateError::Unsafe { path: path.to_path_buf(), at: at.to_path_buf(), why });
    if st.st_uid != uid {
        return refused(Why::Owner(st.st_uid));
    }
    if st.st_mode & 0o022 != 0 {
        return refused(Why::Writable(st.st_mode & 0o7777));
    }
    Ok(())
}

/// An ancestor belongs to us, to root or to whoever owns `/`, and others may write to it only where the sticky bit
/// keeps them from replacing what is not theirs. A group is let be: user-private groups are the default of many systems.
///
/// The owner of `/` is root, but in a user namespace without the host's root it shows as the overflow id, as every
/// other user that is not mapped does: there the modes are all that can be judged. user_namespaces(7).
fn check_ancestor(st: &Stat, at: &Path, path: &Path, owners: [u32; 3]) -> Result<(), StateError> {
    let refused = |why| Err(StateError::Unsafe { path: path.to_path_buf(), at: at.to_path_buf(), why });
    if !owners.contains(&st.st_uid) {
        return refused(Why::Owner(st.st_uid));
    }
    if st.st_mode & 0o002 != 0 && st.st_mode & 0o1000 == 0 {
        return refused(Why::Writable(st.st_mode & 0o7777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_order_of_places() {
        let mut places = Places { uid: 1000, ..Places::default() };
        assert!(matches!(resolve(&places), Err(StateError::Nowhere)));
        places.home = Some("/home/u".into());
        assert_eq!(resolve(&places).unwrap(), Path::new("/home/u/.local/state/stockade"));
        places.xdg_state_home = Some("relative".into());
        assert_eq!(resolve(&places).unwrap(), Path::new("/home/u/.local/state/stockade"));
        places.xdg_state_home = Some("/x".into());
        assert_eq!(resolve(&places).unwrap(), Path::new("/x/stockade"));
        assert_eq!(resolve(&Places { uid: 0, ..places.clone() }).unwrap(), Path::new(SYSTEM_DIR));
        places.stockade_state = Some("".into());
        assert_eq!(resolve(&places).unwrap(), Path::new("/x/stockade"));
        places.stockade_state = Some("/env".into());
        assert_eq!(resolve(&places).unwrap(), Path::new("/env"));
        places.flag = Some("/flag".into());
        assert_eq!(resolve(&places).unwrap(), Path::new("/flag"));
        places.flag = Some("flag".into());
        assert!(matches!(resolve(&places), Err(StateError::Relative { .. })));
    }

    #[test]
    fn made_for_us_alone_and_opened_again() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("a/b/state");
        StateDir::open(&path, uid()).unwrap();
        let again = StateDir::open(&path, uid()).unwrap();
        assert_eq!(again.path(), path);
        for dir in ["a", "a/b", "a/b/state", "a/b/state/live", "a/b/state/ids", "a/b/state/cache"] {
            let mode = std::fs::metadata(tmp.path().join(dir)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700, "{dir}");
        }
    }

    #[test]
    fn refuses_what_others_could_change() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        let why = |path: &Path, uid: u32| match StateDir::open(path, uid) {
            Err(StateError::Unsafe { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        std::fs::create_dir(at("real")).unwrap();
        symlink(at("real"), at("link")).unwrap();
        assert_eq!(why(&at("link"), uid()), Why::NotADirectory);
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(why(&at("file"), uid()), Why::NotADirectory);
        for mode in [0o707, 0o770] {
            chmod(&at("real"), mode);
            assert_eq!(why(&at("real"), uid()), Why::Writable(mode));
        }
        chmod(&at("real"), 0o755);
        assert_eq!(why(&at("real"), uid() + 1), Why::Owner(uid()));
        symlink(at("file"), at("real/ids")).unwrap();
        assert_eq!(why(&at("real"), uid()), Why::NotADirectory);

        std::fs::create_dir_all(at("open/state")).unwrap();
        chmod(&at("open"), 0o777);
        assert_eq!(why(&at("open/state"), uid()), Why::Writable(0o777));
        chmod(&at("open"), 0o1777);
        StateDir::open(&at("open/state"), uid()).unwrap();
    }
}

//! Kept layers of package caches: what commands wrote to a cache, there again at the next run in the same workspace
//! under the profile of the same name, and nowhere else. Runs in the process that starts executors, before it plans and after the tree is dead.
//!
//! `layers/<key>/` of the state directory, the key being a digest of the caller, the workspace's real path and the
//! profile's name, holds
//! `about` (whose it is), `lock`, `usage`, and for each cache a directory with `upper` (what was written, owned by the
//! workspace's owner) and `work` (the overlay's own). One run at a time has them: the lock is held by the owner and by
//! init, and so as long as anything can write. `usage` says how much there is, and is absent while nobody knows.

use super::disk::{self, Watch};
use super::state_dir::StateDir;
use crate::base::{Digest, HostPath, RelPath};
use crate::plan::{Kind, LayerFact, PathFact};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::fs::{chmodat, fchown, flock, fstat, fstatfs, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Below the state directory.
const DIR: &str = "layers";
/// The version of the files.
const VERSION: u32 = 1;
/// Digits of a key: half of a digest tells workspaces apart.
const KEY_CHARS: usize = 32;
/// Files of ours beside the caches.
const OWN: [&str; 3] = ["about", "usage", "lock"];
/// Runs after which a layer is counted whatever the file system said: others may have freed what it took.
const RUNS_MAX: u32 = 64;
/// The largest file of ours that is read.
const FILE_BYTES_MAX: u64 = 16 * 1024;
/// Workspaces, and layers of one, that are listed.
const LISTED_MAX: usize = 4096;

/// Whose layers, and how large they may be.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    /// The caller.
    pub uid: u32,
    /// The workspace, links resolved.
    pub workspace: &'a HostPath,
    /// The profile's name: what ran under a weaker one has nothing to say to a stricter one.
    pub profile: &'a str,
    /// Bytes that one layer may hold.
    pub limit: u64,
}

impl Of<'_> {
    fn key(&self) -> String {
        let digest = Digest::of_canonical(&(self.uid, self.workspace, self.profile));
        let mut hex = digest.unwrap_or_else(|_| Digest::of(self.workspace.as_bytes())).hex();
        hex.truncate(KEY_CHARS);
        hex
    }
}

/// What is known of a layer's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Usage {
    /// Bytes when it was last counted.
    counted: u64,
    /// Bytes by which the file system has grown during runs since.
    grown: u64,
    /// Runs since.
    runs: u32,
}

impl Usage {
    /// At most this much, as far as the file system says.
    fn bytes(&self) -> u64 {
        self.counted.saturating_add(self.grown)
    }
}

/// The sizes of a workspace's layers.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Usages {
    version: u32,
    caches: BTreeMap<String, Usage>,
}

/// Whose layers a directory holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    version: u32,
    uid: u32,
    workspace: HostPath,
    profile: String,
}

#[derive(Debug)]
struct Layer {
    name: &'static str,
    path: HostPath,
    dir: OwnedFd,
    upper: OwnedFd,
    usage: Usage,
    /// Bytes in use on the file system at the start.
    before: u64,
}

/// The layers that this run has, and why it lacks others. Dropping it lets the lock go and leaves the sizes unknown.
#[derive(Debug, Default)]
pub struct Held {
    /// `layers/<key>`, and its lock.
    home: Option<(OwnedFd, [OwnedFd; 1])>,
    layers: Vec<Layer>,
    lacking: BTreeMap<&'static str, String>,
    /// Sizes of those that this run has no use for.
    others: BTreeMap<String, Usage>,
    limit: u64,
    emptied: Vec<&'static str>,
}

impl Held {
    /// Takes the layers called `names`, making what is missing. One that cannot be had is noted, and no error.
    pub fn take(state: &StateDir, real: &HostPath, of: Of<'_>, names: &[&'static str]) -> Self {
        let mut held = Self { limit: of.limit, ..Self::default() };
        let lacking = |why: String| names.iter().map(|name| (*name, why.clone())).collect();
        let home = open_home(state, &of).and_then(|home| Ok(lock(home.as_fd())?.map(|lock| (home, lock))));
        let (home, lock) = match home {
            Ok(Some(both)) => both,
            Ok(None) => {
                held.lacking = lacking(
                    "another run in this workspace, under this profile, has the kept layer".to_owned(),
                );
                return held;
            }
            Err(e) => {
                held.lacking = lacking(format!("the state directory has no place for a kept layer: {e}"));
                return held;
            }
        };
        held.others = usages(home.as_fd());
        // Absent until the end of the run: whoever finds it so counts.
        let forgotten = gone(unlinkat(&home, "usage", AtFlags::empty()));
        // What the command writes is the workspace owner's, as in the workspace.
        let owner = if of.uid == 0 {
            rustix::fs::stat(of.workspace.as_path()).map(|s| Some((s.st_uid, s.st_gid)))
        } else {
            Ok(None)
        };
        let owner = forgotten.and(owner);
        for name in names {
            if let Err(e) = owner.and_then(|owner| held.take_one(home.as_fd(), real, &of, name, owner)) {
                held.lacking.insert(name, format!("the kept layer cannot be used: {e}"));
            }
        }
        held.home = Some((home, [lock]));
        held
    }

    fn take_one(
        &mut self,
        home: BorrowedFd<'_>,
        real: &HostPath,
        of: &Of<'_>,
        name: &'static str,
        owner: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        let known = self.others.remove(name);
        let path = path(real, of, name)?;
        let dir = own_dir(home, name, of.uid)?;
        fresh_work(dir.as_fd())?;
        let (mut upper, fresh) = open_upper(dir.as_fd(), owner)?;
        let usage = match known.filter(|_| !fresh) {
            Some(usage) if usage.bytes() <= of.limit => usage,
            _ => {
                let mut counted = if fresh { 0 } else { disk::holds(&path, &upper)? };
                if counted > of.limit {
                    self.emptied.push(name);
                    remove(dir.as_fd(), "upper")?;
                    upper = open_upper(dir.as_fd(), owner)?.0;
                    counted = 0;
                }
                Usage { counted, ..Usage::default() }
            }
        };
        let before = disk::used(&upper)?;
        self.layers.push(Layer { name, path, dir, upper, usage, before });
        Ok(())
    }

    /// What the plan is to know of them.
    pub fn facts(&self) -> BTreeMap<&'static str, LayerFact> {
        let lacking =
            |(name, why): (&&'static str, &String)| (*name, LayerFact::Unavailable { why: why.clone() });
        let ready = |l: &Layer| match fact(&l.dir, &l.path) {
            Ok(fact) => (l.name, LayerFact::Ready { path: l.path.clone(), fact }),
            Err(e) => (l.name, LayerFact::Unavailable { why: format!("the kept layer cannot be used: {e}") }),
        };
        self.layers.iter().map(ready).chain(self.lacking.iter().map(lacking)).collect()
    }

    /// What has to stay open as long as anything of the run lives.
    pub fn locks(&self) -> &[OwnedFd] {
        self.home.as_ref().map_or(&[], |(_, lock)| lock)
    }

    /// Watches the size of each while the command runs, with the limit.
    ///
    /// # Errors
    /// fcntl(2), fstatfs(2).
    pub fn watches(&self) -> Result<Vec<(u64, Watch)>, Errno> {
        let watch = |l: &Layer| {
            let upper = rustix::io::fcntl_dupfd_cloexec(&l.upper, 3)?;
            Ok((self.limit, Watch::whole(&l.path, upper, self.limit, l.usage.bytes())?))
        };
        self.layers.iter().map(watch).collect()
    }

    /// The tree is dead: notes how much there is now, and counts where the file system says too much or the run was
    /// ended for it (`hit`). A layer that has become too large is emptied.
    ///
    /// Returns the names of those that were, here or when they were taken. What cannot be noted is counted next time.
    pub fn end(mut self, hit: bool) -> Vec<&'static str> {
        let Some((home, _lock)) = &self.home else { return self.emptied };
        let mut usages = std::mem::take(&mut self.others);
        for layer in &self.layers {
            let mut usage = layer.usage;
            let Ok(now) = disk::used(&layer.upper) else { continue };
            usage.grown = usage.grown.saturating_add(now.saturating_sub(layer.before));
            usage.runs += 1;
            if hit || usage.bytes() > self.limit || usage.runs >= RUNS_MAX {
                let Ok(counted) = disk::holds(&layer.path, &layer.upper) else { continue };
                usage = Usage { counted, ..Usage::default() };
            }
            if usage.counted > self.limit {
                self.emptied.push(layer.name);
                if remove(layer.dir.as_fd(), "upper").is_err() {
                    continue;
                }
                usage = Usage::default();
            }
            usages.insert(layer.name.to_owned(), usage);
        }
        // One that is missing or torn is a layer of unknown size.
        let _ = write_json(home.as_fd(), "usage", &Usages { version: VERSION, caches: usages });
        self.emptied
    }
}

/// The layers as `take` would give them, for a view that runs nothing: nothing is made and nothing is locked.
pub fn look(real: &HostPath, of: Of<'_>, names: &[&'static str]) -> BTreeMap<&'static str, LayerFact> {
    let one = |name: &&'static str| {
        let path = path(real, &of, name).ok()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let there = rustix::fs::open(path.as_path(), flags, Mode::empty()).and_then(|dir| fact(&dir, &path));
        let fact = there.unwrap_or_else(|_| PathFact {
            kind: Kind::Dir,
            dev: 0,
            ino: 0,
            uid: of.uid,
            gid: 0,
            real: path.clone(),
            fs_magic: 0,
        });
        Some((*name, LayerFact::Ready { path, fact }))
    };
    names.iter().filter_map(one).collect()
}

// ---- listing and removing -----------------------------------------------------------------------------

/// A kept layer, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Whose workspace.
    pub workspace: HostPath,
    /// Under which profile.
    pub profile: String,
    /// Which cache.
    pub cache: String,
    /// About how many bytes it holds; null while a run has it, and after one that was killed.
    pub bytes: Option<u64>,
    #[serde(skip)]
    key: String,
}

/// What became of one that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone.
    Done,
    /// A run has it.
    InUse,
}

/// All kept layers.
///
/// # Errors
/// When `layers/` cannot be listed.
pub fn list(state: &StateDir) -> Result<Vec<Listed>, Errno> {
    let top = match open_dir(state.dir(), DIR) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut out = Vec::new();
    for key in names(top.as_fd())? {
        let Ok(home) = open_dir(top.as_fd(), &key) else { continue };
        let about = read_json::<About>(home.as_fd(), "about").filter(|a| a.version == VERSION);
        let Some(about) = about else { continue };
        let usages = usages(home.as_fd());
        for cache in names(home.as_fd())?.into_iter().filter(|name| !OWN.contains(&name.as_str())) {
            let bytes = usages.get(&cache).map(Usage::bytes);
            let (workspace, profile) = (about.workspace.clone(), about.profile.clone());
            out.push(Listed { workspace, profile, cache, bytes, key: key.clone() });
        }
    }
    out.sort_by(|a, b| (&a.workspace, &a.profile, &a.cache).cmp(&(&b.workspace, &b.profile, &b.cache)));
    Ok(out)
}

/// Removes one that [`list`] listed.
///
/// # Errors
/// What keeps it from being removed.
pub fn remove_listed(state: &StateDir, listed: &Listed) -> Result<Removed, Errno> {
    let top = open_dir(state.dir(), DIR)?;
    let home = open_dir(top.as_fd(), &listed.key)?;
    let Some(held) = lock(home.as_fd())? else { return Ok(Removed::InUse) };
    remove(home.as_fd(), &listed.cache)?;
    // The last one takes the workspace's own entry along.
    if names(home.as_fd())?.iter().all(|name| OWN.contains(&name.as_str())) {
        for name in OWN {
            gone(unlinkat(&home, name, AtFlags::empty()))?;
        }
        gone(unlinkat(&top, listed.key.as_str(), AtFlags::REMOVEDIR))?;
    }
    drop(held);
    Ok(Removed::Done)
}

// ---- files --------------------------------------------------------------------------------------------

fn path(real: &HostPath, of: &Of<'_>, name: &str) -> Result<HostPath, Errno> {
    RelPath::new(format!("{DIR}/{}/{name}", of.key()))
        .map(|rel| real.join(&rel))
        .map_err(|_| Errno::NAMETOOLONG)
}

fn open_home(state: &StateDir, of: &Of<'_>) -> Result<OwnedFd, Errno> {
    let top = own_dir(state.dir(), DIR, of.uid)?;
    let home = own_dir(top.as_fd(), &of.key(), of.uid)?;
    let about = About {
        version: VERSION,
        uid: of.uid,
        workspace: of.workspace.clone(),
        profile: of.profile.to_owned(),
    };
    match read_json::<About>(home.as_fd(), "about") {
        Some(there) if there == about => {}
        // Another workspace's: not with keys of this length.
        Some(_) => return Err(Errno::EXIST),
        None => write_json(home.as_fd(), "about", &about)?,
    }
    Ok(home)
}

/// Opens `name`, made 0700 when missing. What is another's, or no directory, is refused.
fn own_dir(base: BorrowedFd<'_>, name: &str, uid: u32) -> Result<OwnedFd, Errno> {
    match mkdirat(base, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    let dir = open_dir(base, name)?;
    let stat = fstat(&dir)?;
    if stat.st_uid != uid || stat.st_mode & 0o077 != 0 {
        return Err(Errno::PERM);
    }
    Ok(dir)
}

/// The directory that takes what is written, and whether it is new. One of another owner, from before the workspace
/// changed hands, is not given to the new one.
fn open_upper(dir: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> Result<(OwnedFd, bool), Errno> {
    let mut fresh = match mkdirat(dir, "upper", Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(e),
    };
    let mut upper = open_dir(dir, "upper")?;
    let Some((uid, gid)) = owner else { return Ok((upper, fresh)) };
    let stat = fstat(&upper)?;
    if !fresh && (stat.st_uid, stat.st_gid) != (uid, gid) {
        remove(dir, "upper")?;
        mkdirat(dir, "upper", Mode::from_raw_mode(0o755))?;
        upper = open_dir(dir, "upper")?;
        fresh = true;
    }
    if fresh {
        fchown(&upper, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok((upper, fresh))
}

/// The overlay's own directory, without what an earlier mount left in it: remains cost the kernel some milliseconds.
fn fresh_work(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    match mkdirat(dir, "work", Mode::RWXU) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    match unlinkat(dir, "work/work", AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // A run that was killed in the middle of something.
        Err(_) => {
            remove(dir, "work")?;
            mkdirat(dir, "work", Mode::RWXU)
        }
    }
}

fn usages(home: BorrowedFd<'_>) -> BTreeMap<String, Usage> {
    let read = read_json::<Usages>(home, "usage").filter(|u| u.version == VERSION);
    read.unwrap_or_default().caches
}

/// The lock of a workspace's layers; `None` when somebody has it.
fn lock(dir: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, "lock", flags, Mode::RUSR | Mode::WUSR)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(e) => return Err(e),
    }
    // Whoever removed the last layer held the lock of a file that is gone.
    Ok((fstat(&file)?.st_nlink > 0).then_some(file))
}

fn open_dir(base: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(base, name, flags, Mode::empty())
}

fn fact(dir: &OwnedFd, path: &HostPath) -> Result<PathFact, Errno> {
    let stat = fstat(dir)?;
    Ok(PathFact {
        kind: Kind::Dir,
        dev: stat.st_dev,
        ino: stat.st_ino,
        uid: stat.st_uid,
        gid: stat.st_gid,
        real: path.clone(),
        fs_magic: fstatfs(dir)?.f_type as u64,
    })
}

fn names(dir: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut out = Vec::new();
    for entry in Dir::read_from(dir)?.take(LISTED_MAX) {
        // Our own names are plain.
        if let Ok(name) = entry?.file_name().to_str()
            && name != "."
            && name != ".."
        {
            out.push(name.to_owned());
        }
    }
    Ok(out)
}

fn read_json<T: for<'de> Deserialize<'de>>(dir: BorrowedFd<'_>, name: &str) -> Option<T> {
    use std::io::Read as _;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(openat(dir, name, flags, Mode::empty()).ok()?);
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Whole or not at all.
fn write_json<T: Serialize>(dir: BorrowedFd<'_>, name: &str, value: &T) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(value).map_err(|_| Errno::INVAL)?;
    let fresh = format!(".new-{name}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, &fresh, flags, Mode::RUSR | Mode::WUSR)?;
    if rustix::io::write(&file, &bytes)? != bytes.len() {
        return Err(Errno::IO);
    }
    renameat(dir, &fresh, dir, name)
}

fn gone(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes the file or tree `name` in `dir`, however deep a command has made it and whatever modes its directories
/// have: each directory that holds something is moved up here first, so that nothing has to be descended into.
fn remove(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let mut moved = 0u64;
    let mut todo = vec![name.to_owned()];
    // What a removal that was cut short had moved up.
    todo.extend(names(dir)?.into_iter().filter(|n| n.starts_with(".gone-")));
    while let Some(name) = todo.pop() {
        let name = name.as_str();
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(e),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {
                gone(unlinkat(dir, name, AtFlags::empty()))?;
                continue;
            }
            // Nobody uses it, and no link can have taken its place.
            Ok(_) => chmodat(dir, name, Mode::RWXU, AtFlags::empty())?,
        }
        let top = open_dir(dir, name)?;
        for entry in Dir::read_from(&top)? {
            let entry = entry?;
            let inner = entry.file_name();
            if matches!(inner.to_bytes(), b"." | b"..") {
                continue;
            }
            match unlinkat(&top, inner, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                // Linux says EISDIR for a directory, POSIX EPERM. unlink(2).
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(e) => return Err(e),
            }
            if unlinkat(&top, inner, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            let up = loop {
                let up = format!(".gone-{moved}");
                moved += 1;
                if matches!(statat(dir, up.as_str(), AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
                    break up;
                }
            };
            // A directory that its owner may not write to cannot be moved either: its `..` changes. rename(2).
            chmodat(&top, inner, Mode::RWXU, AtFlags::empty())?;
            renameat(&top, inner, dir, up.as_str())?;
            todo.push(up);
        }
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            // The listing may have missed what moved while it was read.
            Err(Errno::NOTEMPTY) => todo.push(name.to_owned()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    struct Place {
        dir: tempfile::TempDir,
        state: StateDir,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["one", "two"] {
                std::fs::create_dir(dir.path().join(name)).unwrap();
            }
            let state = StateDir::open(&dir.path().join("state"), uid()).unwrap();
            Self { dir, state }
        }

        fn at(&self, name: &str) -> HostPath {
            HostPath::new(self.dir.path().join(name)).unwrap()
        }

        fn take(&self, workspace: &str, limit: u64) -> Held {
            let workspace = self.at(workspace);
            let of = Of { uid: uid(), workspace: &workspace, profile: "kept", limit };
            Held::take(&self.state, &self.at("state"), of, &["cargo", "npm"])
        }

        fn upper(held: &Held) -> PathBuf {
            held.layers[0].path.as_path().join("upper")
        }
    }

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn whys(held: &Held) -> Vec<String> {
        let why = |l: LayerFact| match l {
            LayerFact::Ready { .. } => None,
            LayerFact::Unavailable { why } => Some(why),
        };
        held.facts().into_values().filter_map(why).collect()
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_layer_is_of_one_workspace_and_of_one_run() {
        let place = Place::new();
        let first = place.take("one", MIB);
        assert!(whys(&first).is_empty() && first.locks().len() == 1);
        std::fs::write(Place::upper(&first).join("f"), "x").unwrap();
        let busy = place.take("one", MIB);
        assert_eq!(whys(&busy).len(), 2);
        assert!(whys(&busy)[0].contains("another run"), "{:?}", whys(&busy));
        assert!(busy.end(false).is_empty());
        let other = place.take("two", MIB);
        assert!(whys(&other).is_empty() && !Place::upper(&other).join("f").exists());
        assert!(first.end(false).is_empty());
        let again = place.take("one", MIB);
        assert_eq!(std::fs::read(Place::upper(&again).join("f")).unwrap(), b"x");
        // The same directory under another caller or profile is another layer.
        let workspace = place.at("one");
        let of = |uid, profile| Of { uid, workspace: &workspace, profile, limit: MIB };
        assert_ne!(of(1, "a").key(), of(2, "a").key());
        assert_ne!(of(1, "a").key(), of(1, "b").key());
    }

    #[test]
    fn a_lock_lasts_as_long_as_any_copy_of_it() {
        let place = Place::new();
        let held = place.take("one", MIB);
        let copy = held.locks()[0].try_clone().unwrap();
        drop(held);
        assert_eq!(whys(&place.take("one", MIB)).len(), 2);
        drop(copy);
        assert!(whys(&place.take("one", MIB)).is_empty());
    }

    #[test]
    fn sizes_are_noted_and_what_is_too_large_is_emptied() {
        let place = Place::new();
        let held = place.take("one", MIB);
        std::fs::write(Place::upper(&held).join("f"), vec![1; 1 << 19]).unwrap();
        // Killed: nothing was noted.
        drop(held);
        assert_eq!(list(&place.state).unwrap()[0].bytes, None);
        let held = place.take("one", MIB);
        assert!(held.layers[0].usage.counted >= 1 << 19, "counted, since nobody knew");
        std::fs::write(Place::upper(&held).join("g"), vec![1; 1 << 20]).unwrap();
        // Whatever the file system said meanwhile.
        assert_eq!(held.end(true), ["cargo"]);
        let held = place.take("one", MIB);
        assert!(
            !Place::upper(&held).exists() || std::fs::read_dir(Place::upper(&held)).unwrap().count() == 0
        );
        std::fs::write(Place::upper(&held).join("f"), vec![1; 1 << 19]).unwrap();
        drop(held);
        // A profile with a smaller size.
        let held = place.take("one", 1 << 18);
        assert_eq!(held.layers[0].usage, Usage::default());
        assert_eq!(held.end(false), ["cargo"]);
    }

    #[test]
    fn whatever_a_command_has_made_can_be_removed() {
        let place = Place::new();
        let held = place.take("one", 64 * MIB);
        let upper = Place::upper(&held);
        let mut deep = upper.clone();
        for n in 0..300 {
            deep.push(format!("d{n}"));
        }
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("f"), "x").unwrap();
        std::fs::create_dir_all(upper.join("closed/inner/x")).unwrap();
        std::fs::write(upper.join("closed/inner/f"), "x").unwrap();
        chmod(&upper.join("closed/inner"), 0o000);
        chmod(&upper.join("closed"), 0o555);
        symlink("/etc", upper.join("link")).unwrap();
        symlink(place.at("two").as_path(), upper.join("closed-link")).unwrap();
        std::fs::write(place.at("two").as_path().join("stays"), "x").unwrap();
        std::fs::create_dir(upper.join(".gone-0")).unwrap();
        nix::unistd::mkfifo(&upper.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        held.end(false);
        let listed = list(&place.state).unwrap();
        assert_eq!(listed.iter().map(|l| l.cache.as_str()).collect::<Vec<_>>(), ["cargo", "npm"]);
        assert_eq!(listed[0].workspace, place.at("one"));
        let busy = place.take("one", MIB);
        assert_eq!(remove_listed(&place.state, &listed[0]), Ok(Removed::InUse));
        drop(busy);
        for layer in &listed {
            assert_eq!(remove_listed(&place.state, layer), Ok(Removed::Done));
        }
        assert_eq!(list(&place.state), Ok(Vec::new()));
        let left = std::fs::read_dir(place.at("state/layers").as_path()).unwrap().count();
        assert_eq!(left, 0, "nor an empty directory");
        assert!(place.at("two").as_path().join("stays").exists());
        assert!(whys(&place.take("one", MIB)).is_empty(), "and all begins anew");
    }

    #[test]
    fn what_is_not_ours_is_not_used() {
        let place = Place::new();
        place.take("one", MIB).end(false);
        let held = place.take("one", MIB);
        let home = held.layers[0].path.as_path().parent().unwrap().to_owned();
        held.end(false);
        chmod(&home.join("cargo"), 0o777);
        symlink(place.at("two").as_path(), home.join("linked")).unwrap();
        assert_eq!(whys(&place.take("one", MIB)).len(), 1);
        std::fs::remove_file(home.join("about")).unwrap();
        std::fs::write(
            home.join("about"),
            "{\"version\":1,\"uid\":1,\"workspace\":\"/x\",\"profile\":\"kept\"}",
        )
        .unwrap();
        assert_eq!(whys(&place.take("one", MIB)).len(), 2, "another workspace's");
        std::fs::remove_dir_all(&home).unwrap();
        symlink(place.at("two").as_path(), &home).unwrap();
        assert_eq!(whys(&place.take("one", MIB)).len(), 2, "a link in its place");
        assert_eq!(std::fs::read_dir(place.at("two").as_path()).unwrap().count(), 0);
    }

    #[test]
    fn looking_makes_nothing() {
        let place = Place::new();
        let workspace = place.at("one");
        let of = Of { uid: uid(), workspace: &workspace, profile: "kept", limit: MIB };
        let look = || look(&place.at("state"), of, &["cargo"]);
        let LayerFact::Ready { path, fact } = &look()["cargo"] else { panic!() };
        assert!(!path.as_path().exists() && fact.ino == 0);
        let held = place.take("one", MIB);
        assert_eq!(look()["cargo"], held.facts()["cargo"], "and what is there is what a run gets");
    }
}

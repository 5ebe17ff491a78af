//! Protected names that did not exist when the command started: looked for once its tree is dead, and moved aside
//! before the caller can run into them. Everything beneath the descriptors of the writable trees, links never
//! followed. Fails closed: what cannot be looked at is repaired (it is the workspace owner's own) or reported as
//! not moved, never passed over.

use super::outcome::ProtectedCreated;
use crate::base::text::visible;
use crate::base::{HostPath, OsBytes, RelPath, name_matches};
use crate::plan::{FsOp, Plan};
use crate::probe::{Seen, list, names};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Entries of one directory, and of all git directories of submodules together, that are looked at.
const ENTRIES_MAX: usize = 65_536;
/// The largest top directory that is read to save looking up single names; one block of most file systems.
const TOP_BYTES_MAX: i64 = 4096;
/// Depth below the place of submodules.
const DEPTH_MAX: usize = 32;
/// How a directory is opened to be read.
const LISTING: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
/// Where things are moved, below the workspace.
const PLACE: &str = ".stockade-quarantine";
/// What git runs or follows in a git directory.
const GIT_NAMES: [&[u8]; 4] = [b"hooks", b"config", b"config.worktree", b"commondir"];

/// A tree to look through, as the record of a run keeps it, so that the next start can do what a killed owner
/// could not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where it lies.
    pub path: HostPath,
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
    /// Patterns relative to it.
    pub missing: Vec<RelPath>,
    /// What was there before the command started.
    pub known: Vec<Known>,
    /// Where submodules' git directories lie.
    pub modules: Option<RelPath>,
}

/// A protected object that was there before the command started. The path alone does not tell: another run on the same
/// tree, or an editor on the host, may put something else there meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Where, below the tree.
    pub path: OsBytes,
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
}

#[derive(Debug)]
struct Tree {
    place: Place,
    root: OwnedFd,
}

/// A path, relative to its tree, that keeps the tree from being looked through.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {errno}", visible(self.shown().as_os_str().as_bytes()))]
pub struct Unseen {
    path: PathBuf,
    errno: Errno,
}

impl Unseen {
    fn at(path: &Path) -> impl FnOnce(Errno) -> Self + use<'_> {
        |errno| Self { path: path.to_path_buf(), errno }
    }

    /// The tree itself has no name of its own.
    fn shown(&self) -> &Path {
        if self.path.as_os_str().is_empty() { Path::new(".") } else { &self.path }
    }
}

/// The watched trees, opened before the command starts.
#[derive(Debug)]
pub struct Guard {
    trees: Vec<Tree>,
}

impl Guard {
    /// Opens the watched trees of `plan`.
    ///
    /// # Errors
    /// openat(2); ESTALE when a path no longer leads to the object that the plan was made for; whatever keeps the
    /// tree from being looked through.
    pub fn open(plan: &Plan) -> Result<Self, Unseen> {
        let c = &plan.containment;
        let mut trees = Vec::with_capacity(c.watch.len());
        for watch in &c.watch {
            let Some(source) = c.sources.get(watch.source.0 as usize) else { continue };
            let held = c.fs.iter().filter_map(|op| match op {
                FsOp::Protect { at, .. } => Some(at.below(&watch.at)?.as_path().to_path_buf()),
                _ => None,
            });
            let place = Place {
                path: source.path.clone(),
                dev: source.fact.dev,
                ino: source.fact.ino,
                missing: watch.missing.clone(),
                known: Vec::new(),
                modules: watch.modules.clone(),
            };
            let path = source.path.as_path();
            let mut tree = Tree::open(place).map_err(Unseen::at(path))?;
            let below = |e: Unseen| Unseen { path: path.join(&e.path), ..e };
            for held in held {
                tree.remember(&held).map_err(below)?;
            }
            // What is there before the command starts was not created by it.
            let (before, unseen) = tree.matches_now();
            if let Some(e) = unseen {
                return Err(below(e));
            }
            for path in &before {
                tree.remember(path).map_err(below)?;
            }
            trees.push(tree);
        }
        Ok(Self { trees })
    }

    /// What the record of the run keeps.
    pub fn places(&self) -> Vec<Place> {
        self.trees.iter().map(|t| t.place.clone()).collect()
    }

    /// Finds what was created and moves it aside.
    pub fn sweep(&self, run: &str) -> Vec<ProtectedCreated> {
        self.trees.iter().flat_map(|t| t.sweep(run)).collect()
    }
}

/// Sweeps the trees of a run whose owner is gone. A tree that is not there any more has nothing in it; one that
/// cannot be opened is reported.
pub fn sweep_recorded(places: &[Place], run: &str) -> Vec<ProtectedCreated> {
    let mut out = Vec::new();
    for place in places {
        match Tree::open(place.clone()) {
            Ok(tree) => out.extend(tree.sweep(run)),
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR) => {}
            Err(_) => {
                let path = place.path.as_bytes().to_vec().into();
                out.push(ProtectedCreated { path, moved_to: None, replaced: false })
            }
        }
    }
    out
}

impl Tree {
    fn open(place: Place) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = rustix::fs::open(place.path.as_path(), flags, Mode::empty())?;
        let stat = rustix::fs::statat(&root, c"", AtFlags::EMPTY_PATH)?;
        if stat.st_dev != place.dev || stat.st_ino != place.ino {
            return Err(Errno::STALE);
        }
        Ok(Self { place, root })
    }

    /// Keeps in mind what lies at `path` now. Nothing does when another run has just moved it aside: what comes there
    /// later is then found like anything else.
    fn remember(&mut self, path: &Path) -> Result<(), Unseen> {
        if let Some((dev, ino)) = self.object(path)? {
            self.place.known.push(Known { path: path.as_os_str().into(), dev, ino });
        }
        Ok(())
    }

    fn sweep(&self, run: &str) -> Vec<ProtectedCreated> {
        let (mut found, unseen) = self.matches_now();
        let mut out = Vec::new();
        let replaced = self.replaced(&mut found, &mut out);
        for (number, path) in found.iter().enumerate() {
            let moved_to = self.move_aside(path, run, number).ok();
            out.push(ProtectedCreated {
                path: OsBytes::from(path.as_os_str()),
                moved_to: moved_to.map(|p| OsBytes::from(p.as_os_str())),
                replaced: replaced.contains(path),
            });
        }
        // Not even after a repair: the caller must not take this for clean.
        let unseen = unseen.filter(|e| !found.iter().any(|moved| e.path.starts_with(moved)));
        out.extend(unseen.map(|e| ProtectedCreated {
            path: OsBytes::from(e.shown().as_os_str()),
            moved_to: None,
            replaced: false,
        }));
        out
    }

    /// Looks for other objects in place of known ones. Where the old one was moved aside by another run, which took it
    /// for its command's, the new one came from a command as well: it is added to `found`. Otherwise somebody on the
    /// host may have replaced it, as editors and git do, and moving that away would do harm: it is named in `out`.
    fn replaced(&self, found: &mut Vec<PathBuf>, out: &mut Vec<ProtectedCreated>) -> Vec<PathBuf> {
        let mut moved = Vec::new();
        for known in &self.place.known {
            let path = Path::new(known.path.as_os_str());
            let same = match self.object(path) {
                Ok(None) => true,
                Ok(Some(now)) => now == (known.dev, known.ino),
                Err(_) => false,
            };
            if same || found.iter().any(|above| path.starts_with(above)) {
                continue;
            }
            if self.was_moved_aside(known) {
                found.push(path.to_path_buf());
                moved.push(path.to_path_buf());
            } else {
                out.push(ProtectedCreated { path: known.path.clone(), moved_to: None, replaced: true });
            }
        }
        let all = found.clone();
        found.retain(|p| !all.iter().any(|other| other != p && p.starts_with(other)));
        moved
    }

    /// Whether a sweep has taken the object away: it lies where sweeps put things.
    fn was_moved_aside(&self, known: &Known) -> bool {
        let is = |path: &Path| self.object(path) == Ok(Some((known.dev, known.ino)));
        let beside = |dir: &Path| {
            let names = self.list(dir).unwrap_or_default();
            names.into_iter().map(|name| dir.join(name)).collect::<Vec<_>>()
        };
        let parent = Path::new(known.path.as_os_str()).parent().unwrap_or(Path::new(""));
        let mut aside = beside(parent);
        aside.retain(|p| p.file_name().is_some_and(|n| n.as_bytes().starts_with(PLACE.as_bytes())));
        beside(Path::new(PLACE)).iter().any(|run| beside(run).iter().any(|p| is(p)))
            || aside.iter().any(|p| is(p))
    }

    /// Device and inode of what lies at `path`, links not followed; `None` when nothing does.
    fn object(&self, path: &Path) -> Result<Option<(u64, u64)>, Unseen> {
        match self.at(path).and_then(|fd| rustix::fs::fstat(&fd)) {
            Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(Unseen::at(path)(e)),
        }
    }

    /// Everything unknown that the patterns match, and the first path that could not be looked at.
    fn matches_now(&self) -> (Vec<PathBuf>, Option<Unseen>) {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut unseen = None;
        let seen = self.top();
        let lacks = |first: &OsStr| seen.as_ref().is_some_and(|seen| seen.lacks(first));
        let mut tops: BTreeMap<OsString, bool> = BTreeMap::new();
        for pattern in &self.place.missing {
            let parts: Vec<&OsStr> = pattern.as_path().iter().collect();
            if let [first, rest @ ..] = &parts[..]
                && !first.as_bytes().contains(&b'*')
                && !self.knows(Path::new(first))
            {
                if lacks(first) {
                    continue;
                }
                // Several patterns begin alike (`.git`), and mostly that beginning is not there. One that cannot be
                // looked at is found out below.
                let there = rest.is_empty()
                    || *tops
                        .entry(first.to_os_string())
                        .or_insert_with(|| !matches!(self.kind(Path::new(first)), Ok(None)));
                if !there {
                    continue;
                }
            }
            if let Err(e) = self.find(Path::new(""), &parts, &mut found) {
                unseen.get_or_insert(e);
            }
        }
        if let Some(modules) = &self.place.modules
            && !modules.as_path().iter().next().is_some_and(lacks)
        {
            let mut budget = ENTRIES_MAX;
            if let Err(e) = self.find_modules(modules.as_path(), 0, &mut budget, &mut found) {
                unseen.get_or_insert(e);
            }
        }
        found.sort();
        found.dedup();
        // What lies below something that moves, moves with it.
        let all = found.clone();
        found.retain(|p| !all.iter().any(|other| other != p && p.starts_with(other)));
        (found, unseen)
    }

    /// What lies at the top, where reading that costs less than looking up the many names that are mostly not there:
    /// not where the directory is large, which the command may have made it. Nothing is repaired for this.
    fn top(&self) -> Option<Seen> {
        let small = rustix::fs::fstat(&self.root).is_ok_and(|stat| stat.st_size <= TOP_BYTES_MAX);
        let fd = small.then(|| rustix::fs::openat(&self.root, c".", LISTING, Mode::empty()))?.ok()?;
        list(fd, ENTRIES_MAX, |_| false).ok()??.seen
    }

    fn knows(&self, path: &Path) -> bool {
        self.place.known.iter().any(|k| k.path.as_os_str() == path.as_os_str())
    }

    fn knows_below(&self, path: &Path) -> bool {
        self.place.known.iter().any(|k| Path::new(k.path.as_os_str()).starts_with(path))
    }

    /// Matches `parts` below `base`. A component on the way that is not a directory (a link or file in place of
    /// `.git`) is itself what was created.
    fn find(&self, base: &Path, parts: &[&OsStr], found: &mut Vec<PathBuf>) -> Result<(), Unseen> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        let names: Vec<OsString> = if first.as_bytes().contains(&b'*') {
            self.list(base)
                .map_err(Unseen::at(base))?
                .into_iter()
                .filter(|n| name_matches(first.as_bytes(), n.as_bytes()))
                .collect()
        } else {
            vec![first.to_os_string()]
        };
        for name in names {
            let path = base.join(&name);
            if self.knows(&path) {
                continue;
            }
            let Some(kind) = self.kind(&path)? else { continue };
            if rest.is_empty() {
                found.push(path);
            } else if kind == FileType::Directory {
                self.find(&path, rest, found)?;
            } else if !self.knows_below(&path) {
                found.push(path);
            }
        }
        Ok(())
    }

    /// The git directories of submodules may have any name, with slashes in it: whatever git would run or follow at
    /// any depth below their place counts.
    fn find_modules(
        &self,
        base: &Path,
        depth: usize,
        budget: &mut usize,
        found: &mut Vec<PathBuf>,
    ) -> Result<(), Unseen> {
        match self.kind(base)? {
            Some(FileType::Directory) => {}
            Some(_) if depth == 0 && !self.knows_below(base) => {
                found.push(base.to_path_buf());
                return Ok(());
            }
            _ => return Ok(()),
        }
        if depth > DEPTH_MAX {
            return Err(Unseen::at(base)(Errno::NAMETOOLONG));
        }
        let all = self.list(base).map_err(Unseen::at(base))?;
        // A git directory's own, which may be large; elsewhere these are names that a submodule can have.
        let is_git = depth > 0 && all.iter().any(|n| n == "HEAD") && all.iter().any(|n| n == "objects");
        for name in all {
            *budget = budget.checked_sub(1).ok_or(Errno::OVERFLOW).map_err(Unseen::at(base))?;
            let path = base.join(&name);
            if self.knows(&path) {
                continue;
            }
            if depth > 0 && GIT_NAMES.contains(&name.as_bytes()) {
                found.push(path);
            } else if !(is_git && matches!(name.as_bytes(), b"objects" | b"refs" | b"logs"))
                && self.kind(&path)? == Some(FileType::Directory)
            {
                self.find_modules(&path, depth + 1, budget, found)?;
            }
        }
        Ok(())
    }

    /// The type of what lies at `path`, links not followed; `None` when nothing does.
    fn kind(&self, path: &Path) -> Result<Option<FileType>, Unseen> {
        // A name at the top leads nowhere else: the usual case, without opening anything.
        if path.parent() == Some(Path::new("")) {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            match rustix::fs::statat(&self.root, path, flags) {
                Ok(stat) => return Ok(Some(FileType::from_raw_mode(stat.st_mode))),
                Err(Errno::NOENT) => return Ok(None),
                // With the repair that it may need.
                Err(_) => {}
            }
        }
        match self.at(path).and_then(|fd| rustix::fs::fstat(&fd)) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(Unseen::at(path)(e)),
        }
    }

    /// Opens `path` beneath the root. A directory on the way that the command has closed to its owner is opened
    /// again first.
    fn at(&self, path: &Path) -> Result<OwnedFd, Errno> {
        match self.open_beneath(path) {
            Err(Errno::ACCESS | Errno::PERM) => {
                self.repair(path)?;
                self.open_beneath(path)
            }
            other => other,
        }
    }

    fn open_beneath(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
            // A link in last place: openat2 refuses it under NO_SYMLINKS, O_PATH|O_NOFOLLOW names it. One further
            // up is found as what was created when its own name is looked at.
            Err(Errno::LOOP) => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                match rustix::fs::openat2(&self.root, parent, flags, Mode::empty(), resolve) {
                    Ok(parent) => rustix::fs::openat(
                        &parent,
                        path.file_name().unwrap_or_default(),
                        flags,
                        Mode::empty(),
                    ),
                    Err(Errno::LOOP) => Err(Errno::NOENT),
                    Err(e) => Err(e),
                }
            }
            other => other,
        }
    }

    /// Gives the owner of every directory from the root to `path` its rights back. They are the workspace owner's
    /// own, closed by the command with the owner's rights.
    fn repair(&self, path: &Path) -> Result<(), Errno> {
        open_to_owner(&self.root)?;
        let mut sofar = PathBuf::new();
        for part in path.components() {
            sofar.push(part);
            match self.open_beneath(&sofar) {
                Ok(fd) => open_to_owner(&fd)?,
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>, Errno> {
        let opened = match self.at(dir) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let fd = match rustix::fs::openat(&opened, c".", LISTING, Mode::empty()) {
            Err(Errno::ACCESS | Errno::PERM) => {
                open_to_owner(&opened)?;
                rustix::fs::openat(&opened, c".", LISTING, Mode::empty())?
            }
            Err(Errno::NOTDIR) => return Ok(Vec::new()),
            other => other?,
        };
        names(fd, ENTRIES_MAX)?.ok_or(Errno::OVERFLOW)
    }

    /// Renames `path` to a place of its own below the workspace; where that does not work, within its own directory.
    /// Never over something that exists.
    fn move_aside(&self, path: &Path, run: &str, number: usize) -> Result<PathBuf, Errno> {
        let parent_path = path.parent().unwrap_or(Path::new(""));
        let parent = self.at(parent_path)?;
        open_to_owner(&parent)?;
        let name = path.file_name().unwrap_or_default();
        let mut to = OsString::from(format!("{number}-"));
        to.push(name);
        to = OsString::from_vec(to.as_bytes().iter().copied().take(200).collect());
        let moved = self
            .place_for(run)
            .and_then(|place| rustix::fs::renameat_with(&parent, name, &place, &to, RenameFlags::NOREPLACE));
        if moved.is_ok() {
            return Ok(Path::new(PLACE).join(run).join(to));
        }
        // Another file system, or a place that the command has spoilt: a name that means nothing to anybody will do.
        let aside = OsString::from(format!(".stockade-quarantine-{run}-{number}"));
        rustix::fs::renameat_with(&parent, name, &parent, &aside, RenameFlags::NOREPLACE)?;
        Ok(path.with_file_name(aside))
    }

    fn place_for(&self, run: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut dir = rustix::io::fcntl_dupfd_cloexec(&self.root, 3)?;
        let owner = rustix::fs::statat(&self.root, c"", AtFlags::EMPTY_PATH)?;
        for name in [PLACE, run] {
            let made = match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(e) => return Err(e),
            };
            dir = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
            // What was moved is for the workspace's owner to look at, also when root runs us.
            if made && rustix::process::geteuid().is_root() {
                let owner = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
                rustix::fs::fchown(&dir, Some(owner.0), Some(owner.1))?;
            }
        }
        Ok(dir)
    }
}

/// Adds rwx for the owner to a directory, through its descriptor; anything else is left alone.
fn open_to_owner(dir: &OwnedFd) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(dir)?;
    let closed = stat.st_mode & 0o700 != 0o700;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || !closed {
        return Ok(());
    }
    // An O_PATH descriptor takes no fchmod; its link in procfs leads to the object itself. proc_pid_fd(5).
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    rustix::fs::chmod(link, Mode::from_raw_mode((stat.st_mode & 0o777) | 0o700))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn tree(dir: &Path, missing: &[&str], known: &[&str]) -> Tree {
        let stat = rustix::fs::stat(dir).unwrap();
        let mut tree = Tree::open(Place {
            path: HostPath::new(dir).unwrap(),
            dev: stat.st_dev,
            ino: stat.st_ino,
            missing: missing.iter().map(|m| RelPath::new(m).unwrap()).collect(),
            known: Vec::new(),
            modules: RelPath::new(".git/modules").ok(),
        })
        .unwrap();
        known.iter().for_each(|path| tree.remember(Path::new(path)).unwrap());
        tree
    }

    #[test]
    fn created_names_are_moved_and_known_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid();
        let whose = if own.is_root() { 12_345 } else { own.as_raw() };
        std::os::unix::fs::chown(dir.path(), Some(whose), None).unwrap();
        std::fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
        std::fs::write(dir.path().join(".git/hooks/pre-commit"), "x").unwrap();
        std::fs::write(dir.path().join(".git/config"), "x").unwrap();
        let made = tree(dir.path(), &[".git/hooks", ".git/config"], &[".git/config"]).sweep("r");
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].path, OsBytes::from(".git/hooks"));
        assert!(!dir.path().join(".git/hooks").exists());
        assert!(dir.path().join(".git/config").exists());
        let place = dir.path().join(".stockade-quarantine/r");
        assert!(place.join("0-hooks/pre-commit").exists());
        let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).unwrap());
        assert_eq!((owner(&place), owner(place.parent().unwrap())), (whose, whose));
    }

    #[test]
    fn what_takes_the_place_of_a_known_object_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [".envrc", ".bashrc", ".profile"] {
            std::fs::write(at(name), "known").unwrap();
        }
        let second = tree(dir.path(), &[], &[".envrc", ".bashrc", ".profile", ".absent"]);
        assert_eq!(second.place.known.len(), 3);
        // Another run takes `.envrc` for its own command's, and ours makes it anew.
        let first = tree(dir.path(), &[".envrc"], &[]);
        assert_eq!(first.sweep("first").len(), 1);
        std::fs::write(at(".envrc"), "evil").unwrap();
        // Somebody on the host saves a file, as editors do.
        std::fs::write(at("new"), "edited").unwrap();
        std::fs::rename(at("new"), at(".bashrc")).unwrap();
        let mut made = second.sweep("second");
        made.sort_by(|a, b| a.path.cmp(&b.path));
        let created = |path: &str, moved_to: Option<&str>| ProtectedCreated {
            path: path.into(),
            moved_to: moved_to.map(Into::into),
            replaced: true,
        };
        let moved = ".stockade-quarantine/second/0-.envrc";
        assert_eq!(made, [created(".bashrc", None), created(".envrc", Some(moved))]);
        assert_eq!(std::fs::read(at(moved)).unwrap(), b"evil");
        assert_eq!(std::fs::read(at(".bashrc")).unwrap(), b"edited");
    }

    #[test]
    fn a_submodule_may_be_called_objects() {
        let dir = tempfile::tempdir().unwrap();
        for made in ["a/objects/hooks", "b/objects/ab", "b/objects/hooks", "b/refs"] {
            std::fs::create_dir_all(dir.path().join(".git/modules").join(made)).unwrap();
        }
        std::fs::write(dir.path().join(".git/modules/b/HEAD"), "x").unwrap();
        let made = tree(dir.path(), &[], &[]).sweep("r");
        let paths: Vec<&OsBytes> = made.iter().map(|m| &m.path).collect();
        assert_eq!(paths, [&OsBytes::from(".git/modules/a/objects/hooks")]);
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_what_was_created() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("evil/hooks")).unwrap();
        std::os::unix::fs::symlink("evil", dir.path().join(".git")).unwrap();
        let made = tree(dir.path(), &[".git/hooks"], &[]).sweep("r");
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].path, OsBytes::from(".git"));
        assert!(dir.path().join("evil/hooks").exists());
        assert!(dir.path().join(".git").symlink_metadata().is_err());
    }

    #[test]
    fn a_hostile_quarantine_link_is_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join(PLACE)).unwrap();
        std::fs::write(dir.path().join(".envrc"), "x").unwrap();
        let made = tree(dir.path(), &[".envrc"], &[]).sweep("r");
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].moved_to, Some(OsBytes::from(".stockade-quarantine-r-0")));
        assert!(!dir.path().join(".envrc").exists());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn submodules_with_slashes_in_their_names_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(".git/modules/a/b/hooks")).unwrap();
        std::fs::write(dir.path().join(".git/modules/a/b/config"), "x").unwrap();
        std::fs::create_dir_all(dir.path().join(".git/modules/a/b/objects")).unwrap();
        let made = tree(dir.path(), &[], &[".git/modules/a/b/config"]).sweep("r");
        assert_eq!(
            made.iter().map(|m| m.path.clone()).collect::<Vec<_>>(),
            [".git/modules/a/b/hooks".into()]
        );
    }

    #[test]
    fn directories_that_the_command_closed_are_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let close = |p: &str, mode| {
            std::fs::set_permissions(dir.path().join(p), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::create_dir_all(dir.path().join(".git/modules/m/hooks")).unwrap();
        std::fs::write(dir.path().join(".envrc"), "x").unwrap();
        close(".git/modules", 0o311);
        close(".git", 0o000);
        close(".", 0o000);
        let made = tree(dir.path(), &[".envrc"], &[]).sweep("r");
        let paths: Vec<OsBytes> = made.iter().map(|m| m.path.clone()).collect();
        assert_eq!(paths, [OsBytes::from(".envrc"), ".git/modules/m/hooks".into()]);
        assert!(made.iter().all(|m| m.moved_to.is_some()));
    }

    #[test]
    fn what_cannot_be_looked_through_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let deep = format!(".git/modules/{}", vec!["m"; DEPTH_MAX + 1].join("/"));
        std::fs::create_dir_all(dir.path().join(&deep).join("hooks")).unwrap();
        std::fs::write(dir.path().join(".envrc"), "x").unwrap();
        let tree = tree(dir.path(), &[".envrc"], &[]);
        let swept = tree.sweep("r");
        assert_eq!(swept.len(), 2, "{swept:?}");
        assert_eq!((&swept[0].path, swept[0].moved_to.is_some()), (&".envrc".into(), true));
        assert_eq!(
            swept[1],
            ProtectedCreated { path: deep.as_str().into(), moved_to: None, replaced: false }
        );
        let why = tree.matches_now().1.unwrap().to_string();
        assert!(why.starts_with(&format!("{deep}: File name too long")), "{why}");
    }

    #[test]
    fn patterns_match_within_a_name() {
        assert!(name_matches(b"*.pem", b"a.pem") && name_matches(b"a*c", b"abbc") && name_matches(b"*", b""));
        assert!(!name_matches(b"*.pem", b"a.pem.txt") && !name_matches(b"a", b"ab"));
    }
}

//! Limits on what a command adds to trees of the host: to the writable ones, to the kept layer of a cache. Not exact: the file systems are asked how much they hold
//! ten times a second, and when that has grown by what is left of the limit the trees' own blocks are counted, so that
//! other users of a file system end nobody's command. Others may also free what the command takes; so the blocks are
//! counted now and then in any case, for a twentieth of the time at most. The overshoot is what can be written between
//! two looks, and is recorded. What cannot be counted is a gap.

use crate::base::text::visible;
use crate::base::{Gap, HostPath};
use crate::plan::{FsOp, Kind, Plan, SourceRef};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Entries of all trees together, and depth of a tree, that are counted.
const ENTRIES_MAX: usize = 1_000_000;
const DEPTH_MAX: usize = 128;
const BLOCK: u64 = 512;
/// Least time from one count to the next that nothing but time asks for, and how often a count's own time it is.
const COUNT_AGAIN: Duration = Duration::from_secs(1);
const COUNT_SHARE: u32 = 20;

/// The watched trees.
#[derive(Debug)]
pub struct Watch {
    trees: Vec<Tree>,
    limit: u64,
    /// What does not count.
    start: u64,
    /// Use of the file systems at the start, less what is known to be in the tree: for what cannot be counted.
    before: Option<u64>,
    /// Use of the file systems at which the blocks are counted next.
    look_at: u64,
    /// When they are counted at the latest.
    look_by: Instant,
    blind: Option<Gap>,
}

#[derive(Debug)]
struct Tree {
    path: HostPath,
    root: OwnedFd,
    device: u64,
    is_dir: bool,
}

impl Watch {
    /// Counts the writable sources of `plan` as they stand, but for the layers of caches. Costs a walk over them, once.
    ///
    /// # Errors
    /// openat(2), fstat(2), fstatfs(2) of a source.
    pub fn new(plan: &Plan, limit: u64) -> Result<Self, Errno> {
        let c = &plan.containment;
        let layer =
            |n: u32| c.fs.iter().any(|op| matches!(op, FsOp::Overlay { layer: Some(l), .. } if l.0 == n));
        let all = || (0u32..).zip(&c.sources).filter(|(n, s)| s.writable && !layer(*n)).map(|(_, s)| s);
        // What lies in another one is counted with that.
        let inner = |s: &SourceRef| {
            all().any(|other| s.fact.real != other.fact.real && s.fact.real.is_within(&other.fact.real))
        };
        let mut trees: Vec<Tree> = Vec::new();
        for source in all().filter(|s| !inner(s)) {
            let root =
                rustix::fs::open(source.path.as_path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let device = rustix::fs::fstat(&root)?.st_dev;
            let is_dir = source.fact.kind == Kind::Dir;
            if !trees.iter().any(|t| t.path == source.fact.real) {
                trees.push(Tree { path: source.fact.real.clone(), root, device, is_dir });
            }
        }
        let look_by = Instant::now();
        let mut watch = Self { trees, limit, start: 0, before: None, look_at: 0, look_by, blind: None };
        watch.start = watch.blocks();
        watch.look_at = watch.used()?.saturating_add(limit);
        Ok(watch)
    }

    /// Watches all of the directory `root` at `path`, which is known to hold `holds` bytes.
    ///
    /// # Errors
    /// fstat(2), fstatfs(2).
    pub fn whole(path: &HostPath, root: OwnedFd, limit: u64, holds: u64) -> Result<Self, Errno> {
        let device = rustix::fs::fstat(&root)?.st_dev;
        let now = used(&root)?;
        Ok(Self {
            trees: vec![Tree { path: path.clone(), root, device, is_dir: true }],
            limit,
            start: 0,
            before: Some(now.saturating_sub(holds)),
            look_at: now.saturating_add(limit.saturating_sub(holds)).max(now + 1),
            look_by: Instant::now() + COUNT_AGAIN,
            blind: None,
        })
    }

    /// The growth in bytes, when it is beyond the limit.
    pub fn exceeded(&mut self) -> Option<u64> {
        let now = self.used().ok()?;
        if now < self.look_at && Instant::now() < self.look_by {
            return None;
        }
        let mut grown = self.blocks().saturating_sub(self.start);
        if let (Some(before), Some(_)) = (self.before, &self.blind) {
            // A command can shut a directory of the layer and go on writing to it.
            grown = grown.max(now.saturating_sub(before));
        }
        if grown > self.limit {
            return Some(grown);
        }
        self.look_at = now.saturating_add(self.limit - grown).max(now + 1);
        None
    }

    /// What was not counted, at the start or later.
    pub fn blind(&self) -> Option<&Gap> {
        self.blind.as_ref()
    }

    /// Bytes in use on the file systems of the trees.
    fn used(&self) -> Result<u64, Errno> {
        let mut total = 0u64;
        for (n, tree) in self.trees.iter().enumerate() {
            if self.trees[..n].iter().any(|t| t.device == tree.device) {
                continue;
            }
            total = total.saturating_add(used(&tree.root)?);
        }
        Ok(total)
    }

    /// Bytes allocated in the trees.
    fn blocks(&mut self) -> u64 {
        let begun = Instant::now();
        let mut count = Count::default();
        for tree in &self.trees {
            count.tree(tree);
        }
        if let Some(what) = count.unseen {
            let remedy =
                "make it readable and shallow, or use workspace.access = \"overlay\", which is exact";
            self.blind.get_or_insert(Gap { what, remedy: remedy.to_owned() });
        }
        let ended = Instant::now();
        self.look_by = ended + (ended - begun).saturating_mul(COUNT_SHARE).max(COUNT_AGAIN);
        count.bytes
    }
}

/// Bytes in use on the file system.
///
/// # Errors
/// fstatfs(2).
pub fn used(root: &OwnedFd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstatfs(root)?;
    let block = u64::try_from(stat.f_bsize).unwrap_or(4096);
    Ok(stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(block))
}

/// Bytes that the directory `root` at `path` holds, every directory below made listable for its owner: for a tree that
/// nobody uses. One that cannot be counted holds [`u64::MAX`].
///
/// # Errors
/// fstat(2).
pub fn holds(path: &HostPath, root: &OwnedFd) -> Result<u64, Errno> {
    let device = rustix::fs::fstat(root)?.st_dev;
    let root = root.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let mut count = Count { repair: true, ..Count::default() };
    count.tree(&Tree { path: path.clone(), root, device, is_dir: true });
    Ok(if count.unseen.is_some() { u64::MAX } else { count.bytes })
}

/// A count in the making.
#[derive(Default)]
struct Count {
    /// Directories that their owner cannot list are made listable.
    repair: bool,
    bytes: u64,
    entries: usize,
    /// The first thing that was not counted.
    unseen: Option<String>,
}

fn allocated(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK)
}

impl Count {
    fn tree(&mut self, tree: &Tree) {
        if !tree.is_dir {
            match rustix::fs::fstat(&tree.root) {
                Ok(stat) => self.bytes = self.bytes.saturating_add(allocated(&stat)),
                Err(e) => self.unseen(tree, &[], &e.to_string()),
            }
            return;
        }
        match open(&tree.root, c".").and_then(Dir::new) {
            Ok(top) => self.walk(tree, top),
            Err(e) => self.unseen(tree, &[], &e.to_string()),
        }
    }

    /// Everything below `top`; links are not followed, other file systems not entered. One descriptor for each
    /// directory on the way down.
    fn walk(&mut self, tree: &Tree, top: Dir) {
        let mut open_dirs = vec![top];
        // Names of all but the top.
        let mut way: Vec<CString> = Vec::new();
        while let Some(dir) = open_dirs.last_mut() {
            let entry = match dir.read() {
                Some(Ok(entry)) => entry,
                other => {
                    if let Some(Err(e)) = other {
                        self.unseen(tree, &way, &e.to_string());
                    }
                    open_dirs.pop();
                    way.pop();
                    continue;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            way.push(name.to_owned());
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                self.unseen(tree, &way, &format!("there are more than {ENTRIES_MAX} files"));
                return;
            }
            match self.entry(tree, dir, name, way.len()) {
                Ok(Some(child)) => {
                    open_dirs.push(child);
                    continue;
                }
                Ok(None) => {}
                Err(why) => self.unseen(tree, &way, &why),
            }
            way.pop();
        }
    }

    /// Counts an entry; the directory to go down into, or why there is none.
    fn entry(&mut self, tree: &Tree, dir: &Dir, name: &CStr, depth: usize) -> Result<Option<Dir>, String> {
        let words = |e: Errno| e.to_string();
        let at = dir.fd().map_err(words)?;
        let stat = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(words(e)),
        };
        if stat.st_dev != tree.device {
            return Err("another file system is mounted there".to_owned());
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            let links = stat.st_nlink.max(1);
            self.bytes = self.bytes.saturating_add(allocated(&stat) / links);
            return Ok(None);
        }
        self.bytes = self.bytes.saturating_add(allocated(&stat));
        if depth >= DEPTH_MAX {
            return Err(format!("it lies {DEPTH_MAX} directories deep"));
        }
        if self.repair && stat.st_mode & 0o500 != 0o500 {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700);
            // What is no directory any more, or another's, is not opened next.
            let _ = rustix::fs::chmodat(at, name, mode, AtFlags::empty());
        }
        match open(at, name).and_then(Dir::new) {
            Ok(child) => Ok(Some(child)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(words(e)),
        }
    }

    fn unseen(&mut self, tree: &Tree, way: &[CString], why: &str) {
        self.unseen.get_or_insert_with(|| {
            let mut path = tree.path.as_bytes().to_vec();
            for name in way {
                path.push(b'/');
                path.extend_from_slice(name.to_bytes());
            }
            format!("the growth of {} is not counted: {why}", visible(&path))
        });
    }
}

fn open(at: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(dir: &std::path::Path) -> Count {
        let root = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let device = rustix::fs::fstat(&root).unwrap().st_dev;
        let tree = Tree { path: HostPath::new(dir).unwrap(), root, device, is_dir: true };
        let mut count = Count::default();
        count.tree(&tree);
        count
    }

    #[test]
    fn wide_trees_and_links_are_counted_whole_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let empty = count(dir.path()).bytes;
        let mut wanted = 0;
        for n in 0..600 {
            let sub = dir.path().join(format!("d{n}"));
            std::fs::create_dir(&sub).unwrap();
            std::fs::write(sub.join("f"), [1; 5000]).unwrap();
            std::fs::hard_link(sub.join("f"), sub.join("same")).unwrap();
            std::os::unix::fs::symlink("/", sub.join("out")).unwrap();
            for name in ["", "f", "out"] {
                wanted += allocated(&rustix::fs::lstat(sub.join(name)).unwrap());
            }
        }
        let all = count(dir.path());
        assert_eq!((all.bytes - empty, all.unseen), (wanted, None));
        assert_eq!(all.entries, 600 * 4);
    }

    #[test]
    fn what_is_too_deep_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let deep = vec!["d"; DEPTH_MAX].join("/");
        std::fs::create_dir_all(dir.path().join(&deep)).unwrap();
        let why = count(dir.path()).unseen.unwrap();
        assert_eq!(
            why,
            format!(
                "the growth of {}/{deep} is not counted: it lies 128 directories deep",
                dir.path().display()
            )
        );
        std::fs::remove_dir(dir.path().join(&deep)).unwrap();
        assert_eq!(count(dir.path()).unseen, None);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        use std::os::unix::fs::PermissionsExt as _;
        if rustix::process::geteuid().is_root() {
            return; // root reads everything; the run as an ordinary user tests this
        }
        let dir = tempfile::tempdir().unwrap();
        let shut = dir.path().join("shut");
        std::fs::create_dir(&shut).unwrap();
        std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).unwrap();
        let why = count(dir.path()).unseen.unwrap();
        assert!(why.contains("shut is not counted: Permission denied"), "{why}");
    }

    #[test]
    fn what_is_shut_in_a_tree_that_nobody_uses_is_opened_and_counted() {
        use std::os::unix::fs::PermissionsExt as _;
        let tmp = tempfile::tempdir().unwrap();
        let path = HostPath::new(tmp.path()).unwrap();
        let open = || rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        for n in 0..20 {
            let dir = tmp.path().join(format!("d{n}/e"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("f"), [1; 1000]).unwrap();
        }
        let all = holds(&path, &open()).unwrap();
        assert!(all >= 20 * 1000, "{all}");
        let closed = tmp.path().join("d0/e");
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(holds(&path, &open()).unwrap(), all);
        std::fs::create_dir_all(tmp.path().join(vec!["d"; DEPTH_MAX].join("/"))).unwrap();
        assert_eq!(holds(&path, &open()).unwrap(), u64::MAX, "too deep to be counted");
    }

    #[test]
    fn what_was_there_counts_only_for_the_whole() {
        let tmp = tempfile::tempdir().unwrap();
        let path = HostPath::new(tmp.path()).unwrap();
        std::fs::write(tmp.path().join("f"), vec![1; 1 << 20]).unwrap();
        let open = || rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        // As if nothing had been there before, though the file system holds no more than then.
        let mut whole = Watch::whole(&path, open(), 1 << 19, 1 << 20).unwrap();
        whole.look_at = 0;
        assert!(whole.exceeded().is_some_and(|n| n >= 1 << 20));
        let mut whole = Watch::whole(&path, open(), 1 << 40, 1 << 20).unwrap();
        whole.look_at = 0;
        assert_eq!(whole.exceeded(), None);
    }
}

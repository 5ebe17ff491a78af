//! Limits on what a command adds to a directory of the host: to its writable workspace, to the kept layer of a cache.
//! Not exact: the file system is asked how much it holds ten times a second, and only when that has grown by what is
//! left of the limit are the directory's own blocks counted, so that other users of the file system end nobody's
//! command. The overshoot is what can be written between two looks, and is recorded.

use crate::plan::{FsOp, Plan};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Entries and depth that are counted; beyond, the tree counts as being over its limit only by what was seen.
const ENTRIES_MAX: usize = 1_000_000;
const DEPTH_MAX: usize = 128;
const BLOCK: u64 = 512;

/// A watched directory.
#[derive(Debug)]
pub struct Watch {
    root: OwnedFd,
    limit: u64,
    /// What does not count.
    start: u64,
    /// The least use of the file system since the blocks were counted: what others free hides nothing that comes after.
    low: u64,
    /// By how much it may grow from there before they are counted again.
    left: u64,
}

impl Watch {
    /// Counts the workspace of `plan` as it stands. Costs a walk over it, once.
    ///
    /// # Errors
    /// openat(2) of the workspace; ENOENT when the plan has no writable one.
    pub fn new(plan: &Plan, limit: u64) -> Result<Self, Errno> {
        let c = &plan.containment;
        let layer =
            |index| c.fs.iter().any(|op| matches!(op, FsOp::Overlay { layer: Some(l), .. } if l.0 == index));
        let mut writable = (0u32..).zip(&c.sources).filter(|(index, s)| s.writable && !layer(*index));
        let (_, source) = writable.next().ok_or(Errno::NOENT)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = rustix::fs::open(source.path.as_path(), flags, Mode::empty())?;
        let start = blocks(&root, false)?;
        let low = used(&root)?;
        Ok(Self { root, limit, start, low, left: limit })
    }

    /// Watches all of `root`, which is known to hold `holds` bytes.
    ///
    /// # Errors
    /// fstatfs(2).
    pub fn whole(root: OwnedFd, limit: u64, holds: u64) -> Result<Self, Errno> {
        let low = used(&root)?;
        Ok(Self { root, limit, start: 0, low, left: limit.saturating_sub(holds) })
    }

    /// The growth in bytes, when it is beyond the limit.
    pub fn exceeded(&mut self) -> Option<u64> {
        let now = used(&self.root).ok()?;
        self.low = self.low.min(now);
        if now - self.low < self.left {
            return None;
        }
        let grown = blocks(&self.root, false).ok()?.saturating_sub(self.start);
        if grown > self.limit {
            return Some(grown);
        }
        self.low = now;
        self.left = (self.limit - grown).max(1);
        None
    }
}

/// Bytes that `root` holds and needs, every directory made listable for its owner: for a tree that nobody uses.
///
/// # Errors
/// When it cannot be listed.
pub fn holds(root: &OwnedFd) -> Result<u64, Errno> {
    blocks(root, true)
}

/// Bytes in use on the file system.
///
/// # Errors
/// fstatfs(2).
pub fn used(root: &OwnedFd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstatfs(root)?;
    let block = u64::try_from(stat.f_bsize).unwrap_or(4096);
    Ok((stat.f_blocks.saturating_sub(stat.f_bfree)).saturating_mul(block))
}

/// Bytes allocated below `root`, links not followed, other file systems not entered. With `repair`, a directory that
/// its owner cannot list is made listable; else it counts by itself alone.
fn blocks(root: &OwnedFd, repair: bool) -> Result<u64, Errno> {
    let top = rustix::fs::openat(root, c".", LISTING, Mode::empty())?;
    let device = rustix::fs::fstat(&top)?.st_dev;
    let mut count = Count { device, repair, total: 0, seen: 0 };
    count.below(&top, 0)?;
    Ok(count.total)
}

const LISTING: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

struct Count {
    device: u64,
    repair: bool,
    total: u64,
    seen: usize,
}

impl Count {
    fn below(&mut self, dir: &OwnedFd, depth: usize) -> Result<(), Errno> {
        for entry in Dir::read_from(dir)?.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.seen += 1;
            if self.seen > ENTRIES_MAX {
                return Ok(());
            }
            let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_dev != self.device {
                continue;
            }
            let links = stat.st_nlink.max(1);
            let size = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            self.total = self.total.saturating_add(if is_dir { size } else { size / links });
            if !is_dir || depth >= DEPTH_MAX {
                continue;
            }
            if self.repair && stat.st_mode & 0o500 != 0o500 {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700);
                // What is no directory any more, or another's, is not opened next.
                let _ = rustix::fs::chmodat(dir, name, mode, AtFlags::empty());
            }
            if let Ok(child) = rustix::fs::openat(dir, name, LISTING, Mode::empty()) {
                self.below(&child, depth + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn wide_deep_and_closed_directories_count() {
        let tmp = tempfile::tempdir().unwrap();
        let open = || rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        for n in 0..600 {
            let dir = tmp.path().join(format!("d{n}/e"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("f"), [1; 1000]).unwrap();
        }
        let all = blocks(&open(), false).unwrap();
        assert!(all >= 600 * 1000, "{all}");
        let closed = tmp.path().join("d0/e");
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0)).unwrap();
        assert_eq!(blocks(&open(), true).unwrap(), all);
    }

    #[test]
    fn what_was_there_counts_only_for_the_whole() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("f"), vec![1; 1 << 20]).unwrap();
        let open = || rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        // As if nothing had been there before, though the file system holds no more than then.
        let mut whole = Watch::whole(open(), 1 << 19, 1 << 20).unwrap();
        assert!(whole.exceeded().is_some_and(|n| n >= 1 << 20));
        let mut whole = Watch::whole(open(), 1 << 40, 1 << 20).unwrap();
        assert_eq!(whole.exceeded(), None);
    }
}

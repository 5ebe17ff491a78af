//! The limit on what a command adds to a writable workspace. Not exact: the file system is asked how much it holds
//! ten times a second, and only when that has grown by what is left of the limit are the workspace's own blocks
//! counted, so that other users of the file system end nobody's command. The overshoot is what can be written
//! between two looks, and is recorded.

use crate::plan::Plan;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Entries and depth that are counted; beyond, the tree counts as being over its limit only by what was seen.
const ENTRIES_MAX: usize = 1_000_000;
const DEPTH_MAX: usize = 128;
const BLOCK: u64 = 512;

/// A watched workspace.
#[derive(Debug)]
pub struct Watch {
    root: OwnedFd,
    limit: u64,
    start: u64,
    /// File-system use at which the blocks are counted next.
    look_at: u64,
}

impl Watch {
    /// Counts the workspace of `plan` as it stands. Costs a walk over it, once.
    ///
    /// # Errors
    /// openat(2) of the workspace; ENOENT when the plan has no writable one.
    pub fn new(plan: &Plan, limit: u64) -> Result<Self, Errno> {
        let c = &plan.containment;
        let source = c.sources.iter().find(|s| s.writable).ok_or(Errno::NOENT)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = rustix::fs::open(source.path.as_path(), flags, Mode::empty())?;
        let start = blocks(&root)?;
        let look_at = used(&root)?.saturating_add(limit);
        Ok(Self { root, limit, start, look_at })
    }

    /// The growth in bytes, when it is beyond the limit.
    pub fn exceeded(&mut self) -> Option<u64> {
        let now = used(&self.root).ok()?;
        if now < self.look_at {
            return None;
        }
        let grown = blocks(&self.root).ok()?.saturating_sub(self.start);
        if grown > self.limit {
            return Some(grown);
        }
        self.look_at = now.saturating_add(self.limit - grown).max(now + 1);
        None
    }
}

/// Bytes in use on the file system.
fn used(root: &OwnedFd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstatfs(root)?;
    let block = u64::try_from(stat.f_bsize).unwrap_or(4096);
    Ok((stat.f_blocks.saturating_sub(stat.f_bfree)).saturating_mul(block))
}

/// Bytes allocated below `root`, links not followed, other file systems not entered.
fn blocks(root: &OwnedFd) -> Result<u64, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    let device = rustix::fs::fstat(&top)?.st_dev;
    let (mut total, mut seen) = (0u64, 0usize);
    let mut stack = vec![(top, 0usize)];
    while let Some((dir, depth)) = stack.pop() {
        for entry in Dir::read_from(&dir)?.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            seen += 1;
            if seen > ENTRIES_MAX {
                return Ok(total);
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_dev != device {
                continue;
            }
            let links = stat.st_nlink.max(1);
            let size = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            total = total.saturating_add(if is_dir { size } else { size / links });
            if is_dir
                && depth < DEPTH_MAX
                && stack.len() < 512
                && let Ok(child) = rustix::fs::openat(&dir, name, flags, Mode::empty())
            {
                stack.push((child, depth + 1));
            }
        }
    }
    Ok(total)
}

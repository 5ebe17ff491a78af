//! How a cgroup of cgroup2 comes to hand its controllers down to the executor's. Runs in the process that starts the
//! executor, before the clone and after the tree is dead.
//!
//! A cgroup other than the root that holds processes hands no domain controller down (cgroups(7), "no internal
//! processes"). So a process that is alone in its cgroup, as in a delegated scope, moves into a leaf of it first and
//! comes back when all is over, so that whoever enters that cgroup next finds it as it was. A move of oneself takes
//! 6–16 ms, and only in that layout. Processes of others are never moved.

use super::cgroup::{CgroupError, DELEGATE, LimitGap, failed, members, read_all, rmdir, write_whole};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, statat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CONTROL: &str = "cgroup.subtree_control";
/// As long as the executor's own directories are waited for.
const REMOVE_WAIT: Duration = Duration::from_secs(1);

/// What was changed in the cgroup that holds the executor's.
#[derive(Debug)]
pub struct Subtree {
    own: PathBuf,
    leaf: String,
    /// Our process sits in the leaf.
    moved: bool,
    /// Controllers that were not handed down before.
    added: Vec<&'static str>,
    lacking: BTreeMap<&'static str, LimitGap>,
    /// Nobody has asked for these before.
    done: Vec<&'static str>,
}

impl Subtree {
    /// Of the cgroup in which `executor` lies. The leaf, should one be needed, is called `leaf`.
    pub fn of(executor: &Path, leaf: String) -> Self {
        let own = executor.parent().unwrap_or(executor).to_path_buf();
        Self { own, leaf, moved: false, added: Vec::new(), lacking: BTreeMap::new(), done: Vec::new() }
    }

    /// Has `controller` handed down in `dir`, the cgroup; `may_move` says that we were alone in it.
    pub fn hand_down(&mut self, dir: BorrowedFd<'_>, controller: &'static str, may_move: bool) {
        if self.done.contains(&controller) {
            return;
        }
        self.done.push(controller);
        if let Err(gap) = self.try_hand_down(dir, controller, may_move) {
            self.lacking.insert(controller, gap);
        }
    }

    /// Why `controller` is not handed down.
    pub fn lacks(&self, controller: &str) -> Option<LimitGap> {
        self.lacking.get(controller).cloned()
    }

    fn try_hand_down(
        &mut self,
        dir: BorrowedFd<'_>,
        controller: &'static str,
        may_move: bool,
    ) -> Result<(), LimitGap> {
        let gap = |what: String| LimitGap { what, remedy: DELEGATE.to_owned(), partial: false };
        let step = |what: &str, errno: Errno| gap(format!("{what} {}: {errno}", self.own.display()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let now = openat(dir, CONTROL, flags, Mode::empty())
            .and_then(|fd| read_all(fd.as_fd()))
            .map_err(|e| step("read what is handed down in", e))?;
        if String::from_utf8_lossy(&now).split_ascii_whitespace().any(|c| c == controller) {
            return Ok(());
        }
        if may_move && !self.moved {
            let me = rustix::process::getpid().as_raw_nonzero().get();
            let there = members(dir).map_err(|e| step("read the members of", e))?;
            if there.iter().any(|pid| *pid != me) {
                let others = there.len() - usize::from(there.contains(&me));
                return Err(gap(format!(
                    "{} holds {others} processes beside this one, so it cannot hand the {controller} controller down",
                    self.own.display()
                )));
            }
            mkdirat(dir, self.leaf.as_str(), Mode::from_raw_mode(0o755))
                .map_err(|e| step("make a leaf in", e))?;
            // Remembered before the move: the leaf is there.
            self.moved = true;
            put(dir, &format!("{}/cgroup.procs", self.leaf), "0")
                .map_err(|e| step("move into a leaf of", e))?;
        }
        put(dir, CONTROL, &format!("+{controller}"))
            .map_err(|e| step(&format!("hand the {controller} controller down in"), e))?;
        self.added.push(controller);
        Ok(())
    }

    /// Undoes it, once the executor's cgroup is gone: others may be about to enter. Where cgroups of others lie beside
    /// ours they may live by what was handed down, and so it stays; of the root it always stays.
    ///
    /// # Errors
    /// When the leaf cannot be left or removed; the run's record names it, and the next start removes it.
    pub fn take_back(self, dir: BorrowedFd<'_>) -> Result<(), CgroupError> {
        if !self.moved {
            return Ok(());
        }
        let path = self.own.join(&self.leaf);
        if !self.alone(dir).map_err(failed("list", &self.own))? {
            return Err(CgroupError::Step { step: "leave the cgroup", path, errno: Errno::BUSY });
        }
        for controller in &self.added {
            put(dir, CONTROL, &format!("-{controller}")).map_err(failed("take back from", &self.own))?;
        }
        put(dir, "cgroup.procs", "0").map_err(failed("come back into", &self.own))?;
        rmdir(dir, Path::new(&self.leaf), &path, Instant::now() + REMOVE_WAIT)
    }

    /// Whether the leaf is the only cgroup in ours.
    fn alone(&self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for entry in Dir::read_from(openat(dir, ".", flags, Mode::empty())?)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || name.to_bytes() == self.leaf.as_bytes() {
                continue;
            }
            let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn put(dir: BorrowedFd<'_>, file: &str, text: &str) -> Result<(), Errno> {
    let fd = openat(dir, file, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    write_whole(fd.as_fd(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A faked cgroup, its descriptor, and a subtree in it. A leaf must have its file, which only a kernel makes.
    fn faked(procs: &str, handed: &str) -> (tempfile::TempDir, fs::File, Subtree) {
        let tmp = tempfile::tempdir().unwrap();
        fs::write(tmp.path().join("cgroup.procs"), procs).unwrap();
        fs::write(tmp.path().join(CONTROL), handed).unwrap();
        let dir = fs::File::open(tmp.path()).unwrap();
        let subtree = Subtree::of(&tmp.path().join("stockade-x"), "stockade-x-owner".to_owned());
        (tmp, dir, subtree)
    }

    #[test]
    fn what_is_handed_down_already_moves_nobody() {
        let (tmp, dir, mut subtree) = faked("1\n2\n", "memory pids\n");
        subtree.hand_down(dir.as_fd(), "pids", true);
        assert!(subtree.lacks("pids").is_none() && !subtree.moved && subtree.added.is_empty());
        subtree.take_back(dir.as_fd()).unwrap();
        assert_eq!(fs::read_to_string(tmp.path().join(CONTROL)).unwrap(), "memory pids\n");
    }

    #[test]
    fn processes_of_others_are_named_and_left_alone() {
        let me = std::process::id();
        let (tmp, dir, mut subtree) = faked(&format!("{me}\n4000001\n4000002\n"), "");
        subtree.hand_down(dir.as_fd(), "memory", true);
        let gap = subtree.lacks("memory").unwrap();
        assert!(gap.what.contains("holds 2 processes beside this one"), "{gap}");
        assert!(gap.remedy.contains("Delegate=yes"), "{gap}");
        assert!(!tmp.path().join("stockade-x-owner").exists());
        assert_eq!(fs::read_to_string(tmp.path().join(CONTROL)).unwrap(), "");
    }

    #[test]
    fn the_root_hands_down_without_a_move_and_keeps_it() {
        let (tmp, dir, mut subtree) = faked("1\n2\n", "");
        subtree.hand_down(dir.as_fd(), "cpu", false);
        assert!(subtree.lacks("cpu").is_none());
        subtree.take_back(dir.as_fd()).unwrap();
        assert_eq!(fs::read_to_string(tmp.path().join(CONTROL)).unwrap(), "+cpu");
    }

    #[test]
    fn a_failed_move_is_a_gap_and_cgroups_beside_ours_keep_what_they_have() {
        let me = std::process::id();
        let (tmp, dir, mut subtree) = faked(&format!("{me}\n"), "");
        subtree.hand_down(dir.as_fd(), "memory", true);
        // The faked leaf has no file to write to.
        assert!(subtree.lacks("memory").unwrap().what.contains("move into a leaf of"));
        fs::create_dir(tmp.path().join("other")).unwrap();
        let error = subtree.take_back(dir.as_fd()).unwrap_err();
        assert!(error.to_string().contains("stockade-x-owner"), "{error}");
    }
}

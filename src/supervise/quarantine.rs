//! Protected names that did not exist when the command started: looked for once its tree is dead, and moved aside
//! before the caller can run into them. Everything beneath the workspace's descriptor, links never followed.

use super::outcome::ProtectedCreated;
use crate::base::{OsBytes, RelPath};
use crate::plan::{FsOp, Plan, SourceRef};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Entries of one directory that are looked at for a pattern.
const ENTRIES_MAX: usize = 65_536;
/// Where things are moved, below the workspace.
const PLACE: &str = ".stockade-quarantine";

/// The workspace, opened before the command starts.
#[derive(Debug)]
pub struct Guard {
    root: OwnedFd,
    missing: Vec<RelPath>,
    known: Vec<PathBuf>,
}

impl Guard {
    /// Opens the watched workspace of `plan`, when it has one.
    ///
    /// # Errors
    /// openat(2); ESTALE when the path no longer leads to the object that the plan was made for.
    pub fn open(plan: &Plan) -> Result<Option<Self>, Errno> {
        let c = &plan.containment;
        let Some(watch) = &c.watch else { return Ok(None) };
        let Some(source) = c.sources.get(watch.source.0 as usize) else { return Ok(None) };
        let root = open_source(source)?;
        let at = c.fs.iter().find_map(|op| match op {
            FsOp::Bind { from, at, .. } if *from == watch.source => Some(at),
            _ => None,
        });
        let known = c
            .fs
            .iter()
            .filter_map(|op| match (op, at) {
                (FsOp::Protect { at: place, .. }, Some(base)) => Some(place.below(base)?.as_path().to_path_buf()),
                _ => None,
            })
            .collect();
        let mut guard = Self { root, missing: watch.missing.clone(), known };
        // What is there before the command starts was not created by it.
        let mut before = guard.matches_now();
        guard.known.append(&mut before);
        Ok(Some(guard))
    }

    /// Finds what was created and moves it aside.
    pub fn sweep(&self, run: &str) -> Vec<ProtectedCreated> {
        let mut out = Vec::new();
        for (number, path) in self.matches_now().iter().enumerate() {
            let moved_to = self.move_aside(path, run, number).ok();
            out.push(ProtectedCreated {
                path: OsBytes::from(path.as_os_str()),
                moved_to: moved_to.map(|p| OsBytes::from(p.as_os_str())),
            });
        }
        out
    }

    /// Everything unknown that the patterns match.
    fn matches_now(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        for pattern in &self.missing {
            let parts: Vec<&OsStr> = pattern
                .as_path()
                .components()
                .filter_map(|c| if let Component::Normal(n) = c { Some(n) } else { None })
                .collect();
            self.find(Path::new(""), &parts, &mut found);
        }
        found.sort();
        found.dedup();
        found
    }

    /// Matches `parts` below `base`. A component on the way that is not a directory (a link or file in place of
    /// `.git`) is itself what was created.
    fn find(&self, base: &Path, parts: &[&OsStr], found: &mut Vec<PathBuf>) {
        let Some((first, rest)) = parts.split_first() else { return };
        let names: Vec<OsString> = if first.as_bytes().contains(&b'*') {
            self.list(base).into_iter().filter(|n| matches(first.as_bytes(), n.as_bytes())).collect()
        } else {
            vec![first.to_os_string()]
        };
        for name in names {
            let path = base.join(&name);
            if self.known.contains(&path) {
                continue;
            }
            let Ok(object) = self.at(&path) else { continue };
            let is_dir = rustix::fs::fstat(&object)
                .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory);
            if rest.is_empty() {
                found.push(path);
            } else if is_dir {
                self.find(&path, rest, found);
            } else if !self.known.iter().any(|k| k.starts_with(&path)) {
                found.push(path);
            }
        }
    }

    fn at(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
            // A link in last place: openat2 refuses it under NO_SYMLINKS, O_PATH|O_NOFOLLOW names it.
            Err(Errno::LOOP) => {
                let parent = self.at(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
                rustix::fs::openat(&parent, path.file_name().unwrap_or_default(), flags, Mode::empty())
            }
            other => other,
        }
    }

    fn list(&self, dir: &Path) -> Vec<OsString> {
        let path = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(fd) = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) else { return Vec::new() };
        let Ok(entries) = rustix::fs::Dir::new(fd) else { return Vec::new() };
        entries
            .flatten()
            .take(ENTRIES_MAX)
            .map(|e| OsString::from_vec(e.file_name().to_bytes().to_vec()))
            .filter(|n| n != "." && n != "..")
            .collect()
    }

    /// Renames `path` to a place of its own below the workspace; where that does not work, within its own directory.
    /// Never over something that exists.
    fn move_aside(&self, path: &Path, run: &str, number: usize) -> Result<PathBuf, Errno> {
        let parent_path = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = self.at(parent_path)?;
        let name = path.file_name().unwrap_or_default();
        let mut to = OsString::from(format!("{number}-"));
        to.push(name);
        to = OsString::from_vec(to.as_bytes().iter().copied().take(200).collect());
        let moved = self
            .place(run)
            .and_then(|place| rustix::fs::renameat_with(&parent, name, &place, &to, RenameFlags::NOREPLACE));
        if moved.is_ok() {
            return Ok(Path::new(PLACE).join(run).join(to));
        }
        // Another file system, or a place that the command has spoilt: a name that means nothing to anybody will do.
        let aside = OsString::from(format!(".stockade-quarantine-{run}-{number}"));
        rustix::fs::renameat_with(&parent, name, &parent, &aside, RenameFlags::NOREPLACE)?;
        Ok(path.with_file_name(aside))
    }

    fn place(&self, run: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut dir = rustix::io::fcntl_dupfd_cloexec(&self.root, 3)?;
        for name in [PLACE, run] {
            match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
            dir = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
        }
        Ok(dir)
    }
}

/// Opens a source again and compares it with the plan.
fn open_source(source: &SourceRef) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let fd = rustix::fs::open(source.path.as_path(), flags, Mode::empty())?;
    let stat = rustix::fs::statat(&fd, c"", AtFlags::EMPTY_PATH)?;
    if stat.st_dev == source.fact.dev && stat.st_ino == source.fact.ino { Ok(fd) } else { Err(Errno::STALE) }
}

/// `*` stands for any run of bytes within a name.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|n| matches(rest, &name[n..])),
        Some((first, rest)) => name.split_first().is_some_and(|(n, tail)| n == first && matches(rest, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(dir: &Path, missing: &[&str], known: &[&str]) -> Guard {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        Guard {
            root: rustix::fs::open(dir, flags, Mode::empty()).unwrap(),
            missing: missing.iter().map(|m| RelPath::new(m).unwrap()).collect(),
            known: known.iter().map(PathBuf::from).collect(),
        }
    }

    #[test]
    fn created_names_are_moved_and_known_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
        std::fs::write(dir.path().join(".git/hooks/pre-commit"), "x").unwrap();
        std::fs::write(dir.path().join(".git/config"), "x").unwrap();
        let made = guard(dir.path(), &[".git/hooks", ".git/config"], &[".git/config"]).sweep("r");
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].path, OsBytes::from(".git/hooks"));
        assert!(!dir.path().join(".git/hooks").exists());
        assert!(dir.path().join(".git/config").exists());
        assert!(dir.path().join(".stockade-quarantine/r/0-hooks/pre-commit").exists());
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_what_was_created() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("evil/hooks")).unwrap();
        std::os::unix::fs::symlink("evil", dir.path().join(".git")).unwrap();
        let made = guard(dir.path(), &[".git/hooks"], &[]).sweep("r");
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
        let made = guard(dir.path(), &[".envrc"], &[]).sweep("r");
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].moved_to, Some(OsBytes::from(".stockade-quarantine-r-0")));
        assert!(!dir.path().join(".envrc").exists());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn patterns_match_within_a_name() {
        assert!(matches(b"*.pem", b"a.pem") && matches(b"a*c", b"abbc") && matches(b"*", b""));
        assert!(!matches(b"*.pem", b"a.pem.txt") && !matches(b"a", b"ab"));
    }
}

//! Where the evidence lies: the database, the blobs, the keys and the owners' locks below the state directory. Directories
//! are 0700 and files 0600, of the user that runs us; a link, a second name or another owner is refused (MA-TLS-17).

use super::StoreError;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, fstatvfs, fsync, mkdirat,
    openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The database's name.
pub const DATABASE: &str = "evidence.db";

/// The opened root of the evidence.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    dir: OwnedFd,
    uid: u32,
}

impl Place {
    /// For a state directory that was opened and checked, at its real path, of user `uid`.
    ///
    /// # Errors
    /// When the descriptor cannot be copied.
    pub fn new(path: &Path, dir: BorrowedFd<'_>, uid: u32) -> Result<Self, StoreError> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 3).map_err(|e| StoreError::io("hold", path, e))?;
        Ok(Self { path: path.to_owned(), dir, uid })
    }

    /// The state directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the database.
    pub fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Whether there is a database.
    pub fn exists(&self) -> bool {
        statat(&self.dir, DATABASE, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Makes the database when it is missing: `fill` writes it under another name, and it gets its own when it is whole and
    /// synced. So it is there as a whole or not at all, whatever happens meanwhile. Checks the files that are there.
    ///
    /// Whether the write-ahead log was there.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`], a system call, or `fill`'s.
    pub fn prepare(&self, fill: impl FnOnce(&Path) -> Result<(), StoreError>) -> Result<bool, StoreError> {
        match self.check_file(DATABASE) {
            Err(StoreError::Io { errno: Errno::NOENT, .. }) => {
                // One at a time; others who waited find it made.
                let _held = self.hold()?;
                match self.check_file(DATABASE) {
                    Err(StoreError::Io { errno: Errno::NOENT, .. }) => self.make(fill)?,
                    other => other?,
                }
            }
            other => other?,
        }
        self.check_beside()
    }

    fn make(&self, fill: impl FnOnce(&Path) -> Result<(), StoreError>) -> Result<(), StoreError> {
        const NEW: &str = ".new-evidence.db";
        let path = self.path.join(NEW);
        let failed = |step| {
            let path = path.clone();
            move |e| StoreError::io(step, path.clone(), e)
        };
        // Of somebody who was interrupted.
        for suffix in ["", "-journal", "-wal", "-shm"] {
            match unlinkat(&self.dir, format!("{NEW}{suffix}"), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(failed("remove")(e)),
            }
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        drop(openat(&self.dir, NEW, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make"))?);
        fill(&path)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, NEW, flags, Mode::empty()).map_err(failed("open"))?;
        fsync(&file).map_err(failed("sync"))?;
        renameat_with(&self.dir, NEW, &self.dir, DATABASE, RenameFlags::NOREPLACE).map_err(failed("name"))?;
        self.sync()
    }

    /// Checks the database's files without making any.
    ///
    /// # Errors
    /// [`StoreError::Absent`], [`StoreError::Unsafe`], or a system call.
    pub fn check(&self) -> Result<(), StoreError> {
        match self.check_file(DATABASE) {
            Err(StoreError::Io { errno: Errno::NOENT, .. }) => {
                Err(StoreError::Absent { path: self.database() })
            }
            other => other.and_then(|()| self.check_beside()).map(|_| ()),
        }
    }

    fn check_beside(&self) -> Result<bool, StoreError> {
        let mut there = [false; 3];
        let names = ["evidence.db-wal", "evidence.db-shm", "evidence.db-journal"];
        for (there, name) in there.iter_mut().zip(names) {
            match self.check_file(name) {
                Err(StoreError::Io { errno: Errno::NOENT, .. }) => {}
                other => {
                    other?;
                    *there = true;
                }
            }
        }
        Ok(there[0])
    }

    /// Keeps others who hold it away while the value lives: for making the database.
    ///
    /// # Errors
    /// flock(2).
    pub fn hold(&self) -> Result<OwnedFd, StoreError> {
        // A description of its own: the lock belongs to it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = openat(&self.dir, ".", flags, Mode::empty())
            .map_err(|e| StoreError::io("open", &self.path, e))?;
        loop {
            match flock(&held, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(held),
                Err(Errno::INTR) => {}
                Err(e) => return Err(StoreError::io("lock", &self.path, e)),
            }
        }
    }

    /// Whether the file system has room for a page or two.
    pub fn has_room(&self) -> bool {
        fstatvfs(&self.dir)
            .map_or(true, |v| v.f_bavail.saturating_mul(v.f_frsize) >= 64 << 10 && v.f_favail > 0)
    }

    /// Makes the names in the directory durable.
    ///
    /// # Errors
    /// fsync(2).
    pub fn sync(&self) -> Result<(), StoreError> {
        fsync(&self.dir).map_err(|e| StoreError::io("sync", &self.path, e))
    }

    /// That `name` is a file of ours which nobody else can read or has another name for.
    fn check_file(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path.join(name);
        let stat = statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| StoreError::io("look at", &path, e))?;
        private(&stat, self.uid, FileType::RegularFile).map_err(|why| StoreError::Unsafe { path, why })
    }

    /// A directory of the evidence, made when it is missing.
    ///
    /// # Errors
    /// [`StoreError::Unsafe`], or a system call.
    pub fn directory(&self, name: &str) -> Result<OwnedFd, StoreError> {
        directory(self.dir.as_fd(), &self.path.join(name), name, self.uid)
    }

    /// The directory itself.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The user that everything belongs to.
    pub fn uid(&self) -> u32 {
        self.uid
    }
}

/// Opens, and makes when missing, the private directory `name` of user `uid` in `base`; `path` is for messages.
///
/// # Errors
/// [`StoreError::Unsafe`], or a system call.
pub fn directory(base: BorrowedFd<'_>, path: &Path, name: &str, uid: u32) -> Result<OwnedFd, StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(base, name, flags, Mode::empty());
    let fd = match open() {
        Err(Errno::NOENT) => {
            match mkdirat(base, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(StoreError::io("make", path, e)),
            }
            open()
        }
        other => other,
    }
    .map_err(|e| StoreError::io("open", path, e))?;
    let stat = fstat(&fd).map_err(|e| StoreError::io("look at", path, e))?;
    private(&stat, uid, FileType::Directory)
        .map_err(|why| StoreError::Unsafe { path: path.to_owned(), why })?;
    Ok(fd)
}

/// Whether an object is `uid`'s alone.
///
/// # Errors
/// Says what is wrong with it.
pub fn private(stat: &rustix::fs::Stat, uid: u32, kind: FileType) -> Result<(), &'static str> {
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(if kind == FileType::Directory { "is not a directory" } else { "is not a regular file" });
    }
    if stat.st_uid != uid {
        return Err("belongs to another user");
    }
    if stat.st_mode & 0o077 != 0 {
        return Err("is open to others (its mode must be 0600, a directory's 0700)");
    }
    if kind == FileType::RegularFile && stat.st_nlink != 1 {
        return Err("has another name (a hard link)");
    }
    Ok(())
}

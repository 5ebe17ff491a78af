//! Content by its digest: `blobs/sha256/ab/cdef…`. A blob is written under a temporary name, synced, renamed and its
//! directory synced, and only then referenced by a record: a reference never leads to half a blob (AH-ART-2).
//!
//! Whoever is about to reference a blob holds `blobs/` shared until the reference is committed; the collector holds it
//! exclusively, so that nothing is removed between the write and the reference. flock(2).

use super::place::{directory, private};
use super::{Place, StoreError, owner};
use crate::base::Digest;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, fsync, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

/// Bytes of a blob at most.
pub const BLOB_BYTES_MAX: u64 = 1 << 30;
/// What a name begins with while the blob is being written.
pub const PENDING: &str = ".pending-";

/// A blob: what it is called and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct BlobRef {
    /// Its digest.
    pub blob: Digest,
    /// Its length.
    pub bytes: u64,
}

/// The opened directory of blobs.
#[derive(Debug)]
pub struct Blobs {
    lock: OwnedFd,
    dir: OwnedFd,
    path: PathBuf,
    uid: u32,
}

/// No blob is collected while this lives.
#[derive(Debug)]
pub struct BlobHold(#[expect(dead_code, reason = "the lock ends with the descriptor")] OwnedFd);

impl Blobs {
    /// Opens it, made when missing.
    ///
    /// # Errors
    /// A system call, or a directory that is not ours alone.
    pub fn open(place: &Place) -> Result<Self, StoreError> {
        let path = place.path().join("blobs").join("sha256");
        let lock = place.directory("blobs")?;
        let dir = directory(lock.as_fd(), &path, "sha256", place.uid())?;
        Ok(Self { lock, dir, path, uid: place.uid() })
    }

    /// Keeps the collector away until the hold is dropped.
    ///
    /// # Errors
    /// A system call.
    pub fn hold(&self) -> Result<BlobHold, StoreError> {
        self.locked(FlockOperation::LockShared).map(|lock| BlobHold(lock.1))
    }

    /// Keeps writers away; `None` when one is at work.
    ///
    /// # Errors
    /// A system call.
    pub fn exclusive(&self) -> Result<Option<BlobHold>, StoreError> {
        self.locked(FlockOperation::NonBlockingLockExclusive).map(|(held, lock)| held.then(|| BlobHold(lock)))
    }

    fn locked(&self, how: FlockOperation) -> Result<(bool, OwnedFd), StoreError> {
        // A description of its own for each hold: flock(2) locks belong to the open description.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = openat(&self.lock, ".", flags, Mode::empty())
            .map_err(|e| StoreError::io("open", &self.path, e))?;
        loop {
            match flock(&lock, how) {
                Ok(()) => return Ok((true, lock)),
                Err(Errno::WOULDBLOCK) => return Ok((false, lock)),
                Err(Errno::INTR) => {}
                Err(e) => return Err(StoreError::io("lock", &self.path, e)),
            }
        }
    }

    fn shelf(&self, digest: &Digest) -> Result<(OwnedFd, String, PathBuf), StoreError> {
        let hex = digest.hex();
        let (shelf, rest) = hex.split_at(2);
        let path = self.path.join(shelf);
        Ok((directory(self.dir.as_fd(), &path, shelf, self.uid)?, rest.to_owned(), path.join(rest)))
    }

    /// Writes a blob and makes it durable; one that is there already stays as it is. `_hold` must live until the
    /// reference to the blob is committed.
    ///
    /// # Errors
    /// A system call, or more than 1 GiB.
    pub fn put(&self, bytes: &[u8], _hold: &BlobHold) -> Result<BlobRef, StoreError> {
        let blob = BlobRef { blob: Digest::of(bytes), bytes: bytes.len() as u64 };
        if blob.bytes > BLOB_BYTES_MAX {
            let what = "bytes of a blob";
            return Err(StoreError::Bound { what, found: blob.bytes, most: BLOB_BYTES_MAX });
        }
        let (shelf, name, path) = self.shelf(&blob.blob)?;
        let failed = |step| {
            let path = path.clone();
            move |e| StoreError::io(step, path.clone(), e)
        };
        // One with the right length was synced before it got its name; its bytes are the verifier's to check.
        let there = rustix::fs::statat(&shelf, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|s| {
            private(&s, self.uid, FileType::RegularFile).is_ok() && s.st_size as u64 == blob.bytes
        });
        if !there {
            let pending = format!("{PENDING}{}", owner::random_name().map_err(failed("name"))?);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&shelf, &pending, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make"))?;
            let written = write_all(&file, bytes)
                .map_err(failed("write"))
                .and_then(|()| fsync(&file).map_err(failed("sync")))
                .and_then(|()| renameat(&shelf, &pending, &shelf, &name).map_err(failed("name")));
            if let Err(e) = written {
                let _ = unlinkat(&shelf, &pending, AtFlags::empty());
                return Err(e);
            }
        }
        fsync(&shelf).map_err(failed("sync the directory of"))?;
        // The shelf itself may be new.
        fsync(&self.dir).map_err(failed("sync the directory of"))?;
        Ok(blob)
    }

    /// The bytes of a blob, checked against its name.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when they are others, fewer or more; a system call ([`StoreError::Io`] with `ENOENT`
    /// when there is none).
    pub fn get(&self, digest: &Digest, most: u64) -> Result<Vec<u8>, StoreError> {
        let (shelf, name, path) = self.shelf(digest)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            openat(&shelf, &name, flags, Mode::empty()).map_err(|e| StoreError::io("open", &path, e))?;
        let stat = fstat(&file).map_err(|e| StoreError::io("look at", &path, e))?;
        private(&stat, self.uid, FileType::RegularFile)
            .map_err(|why| StoreError::Unsafe { path: path.clone(), why })?;
        let length = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if length > most {
            return Err(StoreError::Bound { what: "bytes of a blob", found: length, most });
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::from(file), most + 1), &mut bytes)
            .map_err(|e| StoreError::io("read", &path, Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        if Digest::of(&bytes) != *digest {
            let detail = format!("{} is not what its name says", path.display());
            return Err(StoreError::Damaged { step: "reading a blob", detail });
        }
        Ok(bytes)
    }

    /// The directory, for the collector.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }
}

/// Writes everything.
///
/// # Errors
/// write(2).
pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::testing::Root;

    #[test]
    fn written_once_and_checked_when_read() {
        let root = Root::new();
        let blobs = Blobs::open(&root.place()).unwrap();
        let hold = blobs.hold().unwrap();
        let blob = blobs.put(b"hello", &hold).unwrap();
        assert_eq!(blobs.put(b"hello", &hold).unwrap(), blob);
        assert_eq!(blobs.get(&blob.blob, 5).unwrap(), b"hello");
        assert!(matches!(blobs.get(&blob.blob, 4), Err(StoreError::Bound { .. })));
        let hex = blob.blob.hex();
        let path = root.path().join("blobs/sha256").join(&hex[..2]).join(&hex[2..]);
        std::fs::write(&path, b"hellp").unwrap();
        assert!(matches!(blobs.get(&blob.blob, 5), Err(StoreError::Damaged { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(blobs.get(&blob.blob, 5), Err(StoreError::Io { errno: Errno::NOENT, .. })));
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(blobs.get(&blob.blob, 5), Err(StoreError::Io { errno: Errno::LOOP, .. })));
    }

    #[test]
    fn the_collector_waits_for_writers() {
        let root = Root::new();
        let blobs = Blobs::open(&root.place()).unwrap();
        let one = blobs.hold().unwrap();
        let two = blobs.hold().unwrap();
        assert!(blobs.exclusive().unwrap().is_none());
        drop(one);
        assert!(blobs.exclusive().unwrap().is_none());
        drop(two);
        assert!(blobs.exclusive().unwrap().is_some());
    }
}

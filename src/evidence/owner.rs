//! Who is at work on a run: a process that holds the lock of a file in `owners/`. The kernel lets go of the lock when the
//! process ends in whatever way, so a run whose owner's lock can be taken has no owner any more, and no pid needs to be
//! believed. flock(2).

use super::{Place, StoreError};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The directory.
const OWNERS: &str = "owners";

/// A held lock, for as long as the value lives.
#[derive(Debug)]
pub struct Owner {
    dir: OwnedFd,
    name: String,
    // Held until dropped.
    _file: OwnedFd,
}

impl Owner {
    /// Takes a new one.
    ///
    /// # Errors
    /// A system call.
    pub fn new(place: &Place) -> Result<Self, StoreError> {
        let path = place.path().join(OWNERS);
        let dir = place.directory(OWNERS)?;
        let name = random_name().map_err(|e| StoreError::io("name an owner in", &path, e))?;
        // Locked before it has its name: nobody sees it unlocked.
        let pending = format!(".{name}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&dir, &pending, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| StoreError::io("make an owner in", &path, e))?;
        let named = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|()| rustix::fs::renameat(&dir, &pending, &dir, &name));
        if let Err(e) = named {
            let _ = unlinkat(&dir, &pending, AtFlags::empty());
            return Err(StoreError::io("lock an owner in", &path, e));
        }
        Ok(Self { dir, name, _file: file })
    }

    /// What runs are marked with.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // One that stays is found unlocked and removed by the next recovery.
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
    }
}

/// The dead among owners, found once each: the file of one that is gone is removed.
#[derive(Debug)]
pub struct Owners {
    dir: OwnedFd,
    path: std::path::PathBuf,
}

impl Owners {
    /// Opens the directory.
    ///
    /// # Errors
    /// A system call.
    pub fn open(place: &Place) -> Result<Self, StoreError> {
        Ok(Self { dir: place.directory(OWNERS)?, path: place.path().join(OWNERS) })
    }

    /// Whether the owner's process is gone: its file is, or its lock can be taken.
    ///
    /// # Errors
    /// A system call: then nothing is known, and the owner counts as alive.
    pub fn is_gone(&self, name: &str) -> Result<bool, StoreError> {
        if !is_name(name) {
            return Ok(true);
        }
        // The lock needs no right to write: records are read where nothing can be written. flock(2).
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(true),
            Err(e) => return Err(StoreError::io("open an owner in", &self.path, e)),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(StoreError::io("lock an owner in", &self.path, e)),
        }
    }

    /// The directory, for the collector.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Forgets an owner that is gone and whose runs are closed.
    pub fn forget(&self, name: &str) {
        if is_name(name) {
            let _ = unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}

const NAME_BYTES: usize = 16;

fn is_name(name: &str) -> bool {
    name.len() == NAME_BYTES * 2 && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// 128 random bits in hexadecimal.
///
/// # Errors
/// getrandom(2).
pub fn random_name() -> Result<String, Errno> {
    let mut random = [0u8; NAME_BYTES];
    let mut filled = 0;
    while filled < random.len() {
        filled += rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(crate::base::canon::hex(&random))
}

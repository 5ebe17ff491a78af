//! A small authenticated store below the state directory for what was found out by trying: host facts and
//! the sandbox's canary verdicts. An entry is believed only if its HMAC-SHA256, under a key that no executor
//! can see, covers its kind, its key and its bytes; anything else (torn, foreign, tampered, renamed) is a
//! miss. Losing the store costs a probe, never an answer.

use crate::base::Digest;
use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries kept; older ones go when a new one is put.
pub const ENTRIES_MAX: usize = 256;
/// The largest entry, in bytes.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Directory entries looked at when cleaning.
const CLEAN_NAMES_MAX: usize = 65_536;
/// Seconds after which another process's unfinished file counts as abandoned.
const TEMPORARY_SECONDS_MAX: i64 = 60;

const KEY_BYTES: usize = 32;
const KEY_NAME: &str = "key";
const TEMPORARY_PREFIX: &str = ".new-";
/// `MAGIC`, 64 hexadecimal digits, a newline, the bytes.
const MAGIC: &[u8] = b"stockade-cache/1 ";
const HEADER_BYTES: usize = MAGIC.len() + 64 + 1;

/// Why the store could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory could not be made or opened.
    #[error("the directory {path} cannot be used")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is a link, or something else than a directory.
    #[error("{0} is not a directory of its own (links are not followed here)")]
    NotADirectory(PathBuf),
    /// It belongs to another user.
    #[error("{path} belongs to uid {owner}, not to uid {caller}")]
    ForeignOwner {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
        /// Ours.
        caller: u32,
    },
    /// Others may write into it.
    #[error("{path} is writable by others (mode {mode:o}); run `chmod go-w` on it")]
    OthersWrite {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The key could not be read or made.
    #[error("the cache key cannot be had")]
    Key(#[source] io::Error),
    /// An entry could not be written.
    #[error("a cache entry cannot be written")]
    Write(#[source] io::Error),
    /// The kind is not a short lower-case word, or the entry is too large.
    #[error("the entry has no valid name or is larger than {ENTRY_BYTES_MAX} bytes")]
    Entry,
}

/// The open store.
#[derive(Debug)]
pub struct Store {
    dir: OwnedFd,
    uid: u32,
    key: [u8; KEY_BYTES],
}

impl Store {
    /// Opens the store `state`/cache, making directories (0700) and key as needed. `state` itself and
    /// `cache` must be real directories of the caller that nobody else may write.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let uid = rustix::process::geteuid().as_raw();
        let parent = open_or_make(fs::CWD, state, state, uid)?;
        let cache = state.join("cache");
        Self::within(open_or_make(&parent, Path::new("cache"), &cache, uid)?)
    }

    /// The store in the opened directory `cache`, of which the caller knows that it is a real directory of its own that
    /// nobody else may write.
    ///
    /// # Errors
    /// [`StoreError::Key`].
    pub fn within(cache: OwnedFd) -> Result<Self, StoreError> {
        let uid = rustix::process::geteuid().as_raw();
        let key = key(&cache, uid).map_err(StoreError::Key)?;
        Ok(Self { dir: cache, uid, key })
    }

    /// The bytes that were put under `kind` and `key`, if they are there and whole.
    pub fn get(&self, kind: &str, key: &Digest) -> Option<Vec<u8>> {
        let name = entry_name(kind, key)?;
        let file = open_plain(&self.dir, &name).ok()?;
        let stat = fs::fstat(&file).ok()?;
        let size = usize::try_from(stat.st_size).ok()?;
        if !is_ours(&stat, self.uid) || !(HEADER_BYTES..=HEADER_BYTES + ENTRY_BYTES_MAX).contains(&size) {
            return None;
        }
        let mut bytes = Vec::with_capacity(size + 1);
        File::from(file).take(size as u64 + 1).read_to_end(&mut bytes).ok()?;
        let (header, body) = bytes.split_at_checked(HEADER_BYTES)?;
        let digits = header.strip_prefix(MAGIC)?.strip_suffix(b"\n")?;
        self.mac(kind, key, body).verify_slice(&unhex(digits)?).ok()?;
        bytes.drain(..HEADER_BYTES);
        Some(bytes)
    }

    /// Puts `bytes` under `kind` (a short lower-case word) and `key`, and lets go of the oldest entries
    /// beyond [`ENTRIES_MAX`]. Readers see the old bytes or the new ones.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn put(&self, kind: &str, key: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        let name =
            entry_name(kind, key).filter(|_| bytes.len() <= ENTRY_BYTES_MAX).ok_or(StoreError::Entry)?;
        let mac: [u8; 32] = self.mac(kind, key, bytes).finalize().into_bytes().into();
        let mut whole = Vec::with_capacity(HEADER_BYTES + bytes.len());
        whole.extend_from_slice(MAGIC);
        whole.extend_from_slice(crate::base::canon::hex(&mac).as_bytes());
        whole.push(b'\n');
        whole.extend_from_slice(bytes);
        let temporary = write_temporary(&self.dir, &whole).map_err(StoreError::Write)?;
        if let Err(e) = fs::renameat(&self.dir, &temporary, &self.dir, &name) {
            let _ = fs::unlinkat(&self.dir, &temporary, AtFlags::empty());
            return Err(StoreError::Write(e.into()));
        }
        self.clean(&name);
        Ok(())
    }

    /// Forgets what was put under `kind` and `key`; for an answer that turned out to be out of date.
    pub fn forget(&self, kind: &str, key: &Digest) {
        if let Some(name) = entry_name(kind, key) {
            let _ = fs::unlinkat(&self.dir, &name, AtFlags::empty());
        }
    }

    fn mac(&self, kind: &str, key: &Digest, body: &[u8]) -> Hmac<Sha256> {
        // The kind is at most 16 bytes and the key 32, so that the three parts cannot be shifted.
        let mut mac = match Hmac::<Sha256>::new_from_slice(&self.key) {
            Ok(mac) => mac,
            Err(_) => unreachable!("HMAC takes keys of any length"),
        };
        mac.update(&[kind.len() as u8]);
        mac.update(kind.as_bytes());
        mac.update(key.bytes());
        mac.update(body);
        mac
    }

    /// Removes the oldest entries beyond the bound and abandoned temporary files. The time of the entry just
    /// written serves as the present.
    fn clean(&self, newest: &str) {
        let Ok(present) = fs::statat(&self.dir, newest, AtFlags::SYMLINK_NOFOLLOW) else { return };
        let Ok(dir) = Dir::read_from(&self.dir) else { return };
        let mut entries: Vec<(i64, i64, Vec<u8>)> = Vec::new();
        for entry in dir.take(CLEAN_NAMES_MAX).flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || name == KEY_NAME.as_bytes() {
                continue;
            }
            let Ok(stat) = fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if name.starts_with(TEMPORARY_PREFIX.as_bytes()) {
                if present.st_mtime.saturating_sub(stat.st_mtime) > TEMPORARY_SECONDS_MAX {
                    let _ = fs::unlinkat(&self.dir, name, AtFlags::empty());
                }
            } else if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                entries.push((stat.st_mtime, stat.st_mtime_nsec as i64, name.to_vec()));
            }
        }
        if entries.len() > ENTRIES_MAX {
            entries.sort_unstable();
            let surplus = entries.len() - ENTRIES_MAX;
            for (_, _, name) in entries.iter().filter(|(_, _, n)| n != newest.as_bytes()).take(surplus) {
                let _ = fs::unlinkat(&self.dir, name.as_slice(), AtFlags::empty());
            }
        }
    }
}

fn entry_name(kind: &str, key: &Digest) -> Option<String> {
    let good = (1..=16).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    good.then(|| format!("{kind}-{}.json", key.hex()))
}

fn unhex(digits: &[u8]) -> Option<[u8; 32]> {
    let value = |d: u8| char::from(d).to_digit(16).map(|v| v as u8);
    let mut out = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (to, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *to = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(out)
}

fn is_ours(stat: &fs::Stat, uid: u32) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == uid
        && stat.st_mode & 0o7777 == 0o600
}

fn open_plain(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    // O_NONBLOCK: a FIFO in the place of a file must not hold us up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

fn open_or_make(at: impl AsFd, name: &Path, shown: &Path, uid: u32) -> Result<OwnedFd, StoreError> {
    let failed = |source: io::Error| StoreError::Directory { path: shown.to_path_buf(), source };
    let open = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(at.as_fd(), name, flags, Mode::empty())
    };
    let dir = match open() {
        Err(Errno::NOENT) => {
            make(at.as_fd(), name).map_err(failed)?;
            open()
        }
        other => other,
    };
    let dir = match dir {
        Ok(dir) => dir,
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(StoreError::NotADirectory(shown.to_path_buf())),
        Err(e) => return Err(failed(e.into())),
    };
    let stat = fs::fstat(&dir).map_err(|e| failed(e.into()))?;
    if stat.st_uid != uid {
        return Err(StoreError::ForeignOwner { path: shown.to_path_buf(), owner: stat.st_uid, caller: uid });
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(StoreError::OthersWrite { path: shown.to_path_buf(), mode: stat.st_mode & 0o7777 });
    }
    Ok(dir)
}

/// mkdir with mode 0700, missing parents first.
fn make(at: std::os::fd::BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    match fs::mkdirat(at, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOENT) => {
            let parent = name.parent().filter(|p| !p.as_os_str().is_empty()).ok_or(Errno::NOENT)?;
            make(at, parent)?;
            match fs::mkdirat(at, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(e.into()),
            }
        }
        Err(e) => Err(e.into()),
    }
}

/// The key, made when it is missing or not fit to be one.
fn key(dir: &OwnedFd, uid: u32) -> io::Result<[u8; KEY_BYTES]> {
    // Twice: another process may have just made it, or removed the unfit one at the same time as we.
    for _ in 0..8 {
        match read_key(dir, uid) {
            Ok(Some(key)) => return Ok(key),
            Ok(None) => {
                let _ = fs::unlinkat(dir, KEY_NAME, AtFlags::empty());
            }
            Err(Errno::NOENT) => {}
            // A link or something unreadable in its place.
            Err(Errno::LOOP | Errno::ACCESS | Errno::NXIO) => {
                let _ = fs::unlinkat(dir, KEY_NAME, AtFlags::empty());
            }
            Err(e) => return Err(e.into()),
        }
        make_key(dir)?;
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

fn read_key(dir: &OwnedFd, uid: u32) -> Result<Option<[u8; KEY_BYTES]>, Errno> {
    let file = open_plain(dir, KEY_NAME)?;
    let stat = fs::fstat(&file)?;
    if !is_ours(&stat, uid) || stat.st_size != KEY_BYTES as i64 {
        return Ok(None);
    }
    let mut key = [0; KEY_BYTES];
    Ok(File::from(file).read_exact(&mut key).is_ok().then_some(key))
}

/// Puts a new key in place unless one is there: whole from the first moment, since it is moved.
fn make_key(dir: &OwnedFd) -> io::Result<()> {
    let mut key = [0; KEY_BYTES];
    if getrandom(&mut key[..], GetRandomFlags::empty())? != KEY_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let temporary = write_temporary(dir, &key)?;
    let placed = match fs::renameat_with(dir, &temporary, dir, KEY_NAME, RenameFlags::NOREPLACE) {
        // The file system has no such rename: a hard link does not replace either.
        Err(Errno::INVAL | Errno::NOSYS) => fs::linkat(dir, &temporary, dir, KEY_NAME, AtFlags::empty()),
        Ok(()) => return Ok(()),
        Err(e) => Err(e),
    };
    let _ = fs::unlinkat(dir, &temporary, AtFlags::empty());
    match placed {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn write_temporary(dir: &OwnedFd, bytes: &[u8]) -> io::Result<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let pid = rustix::process::getpid().as_raw_nonzero();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..64 {
        // The same pid may have been used before, or by a process of another PID namespace: O_EXCL decides.
        let name = format!("{TEMPORARY_PREFIX}{pid}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let file = match fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => continue,
            Err(e) => return Err(e.into()),
        };
        // Whatever the umask was.
        let written = fs::fchmod(&file, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .and_then(|()| File::from(file).write_all(bytes));
        return match written {
            Ok(()) => Ok(name),
            Err(e) => {
                let _ = fs::unlinkat(dir, &name, AtFlags::empty());
                Err(e)
            }
        };
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn state() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        (dir, state)
    }

    fn entry(state: &Path, kind: &str, key: &Digest) -> PathBuf {
        state.join("cache").join(entry_name(kind, key).unwrap())
    }

    #[test]
    fn keeps_and_finds_again() {
        let (_keep, state) = state();
        let store = Store::open(&state).unwrap();
        let key = Digest::of(b"a");
        assert_eq!(store.get("facts", &key), None);
        store.put("facts", &key, b"{}").unwrap();
        assert_eq!(store.get("facts", &key).unwrap(), b"{}");
        store.put("facts", &key, b"").unwrap();
        assert_eq!(Store::open(&state).unwrap().get("facts", &key).unwrap(), b"");
        assert_eq!(store.get("canary", &key), None);
        store.forget("facts", &key);
        assert_eq!(store.get("facts", &key), None);
        let mode = |p: PathBuf| std::fs::metadata(p).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(state.clone()), 0o700);
        assert_eq!(mode(state.join("cache")), 0o700);
        assert_eq!(mode(state.join("cache/key")), 0o600);
        for bad in ["", "Facts", "a/b", "a-b", "..", "abcdefghijklmnopq"] {
            assert!(matches!(store.put(bad, &key, b""), Err(StoreError::Entry)), "{bad}");
            assert_eq!(store.get(bad, &key), None);
        }
        assert!(matches!(store.put("big", &key, &vec![0; ENTRY_BYTES_MAX + 1]), Err(StoreError::Entry)));
    }

    #[test]
    fn torn_tampered_renamed_and_foreign_entries_are_misses() {
        let (_keep, state) = state();
        let store = Store::open(&state).unwrap();
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        store.put("facts", &one, b"{\"mode\":\"rootless\"}").unwrap();
        let path = entry(&state, "facts", &one);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(store.get("facts", &one), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(store.get("facts", &one), None, "bit at {at}");
        }
        std::fs::write(&path, [&whole[..], b" "].concat()).unwrap();
        assert_eq!(store.get("facts", &one), None);
        std::fs::write(&path, &whole).unwrap();
        assert!(store.get("facts", &one).is_some(), "positive control");

        std::fs::copy(&path, entry(&state, "facts", &two)).unwrap();
        assert_eq!(store.get("facts", &two), None, "another key's entry");
        std::fs::copy(&path, entry(&state, "canary", &one)).unwrap();
        assert_eq!(store.get("canary", &one), None, "another kind's entry");

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(store.get("facts", &one), None, "open to others");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&path, state.join("cache/elsewhere")).unwrap();
        symlink("elsewhere", &path).unwrap();
        assert_eq!(store.get("facts", &one), None, "a link");
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(store.get("facts", &one), None, "a FIFO, without blocking");
        store.put("facts", &one, b"x").unwrap();
        assert_eq!(store.get("facts", &one).unwrap(), b"x", "replaced");
    }

    #[test]
    fn an_unfit_key_is_replaced_and_old_entries_are_no_longer_believed() {
        let (_keep, state) = state();
        let id = Digest::of(b"k");
        let key = state.join("cache/key");
        let spoil: [&dyn Fn(); 6] = [
            &|| std::fs::write(&key, b"short").unwrap(),
            &|| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap(),
            &|| std::fs::remove_file(&key).unwrap(),
            &|| {
                std::fs::remove_file(&key).unwrap();
                std::fs::write(state.join("cache/other"), [7; 32]).unwrap();
                symlink("other", &key).unwrap();
            },
            &|| {
                std::fs::remove_file(&key).unwrap();
                nix::unistd::mkfifo(&key, nix::sys::stat::Mode::S_IRWXU).unwrap();
            },
            &|| std::fs::write(&key, [0; 33]).unwrap(),
        ];
        for (n, spoil) in spoil.iter().enumerate() {
            Store::open(&state).unwrap().put("facts", &id, b"v").unwrap();
            assert!(Store::open(&state).unwrap().get("facts", &id).is_some(), "{n}: positive control");
            spoil();
            let store = Store::open(&state).unwrap();
            assert_eq!(store.get("facts", &id), None, "{n}");
            assert_eq!(std::fs::metadata(&key).unwrap().len(), 32);
            assert!(std::fs::symlink_metadata(&key).unwrap().is_file());
        }
    }

    #[test]
    fn many_openers_agree_on_one_key() {
        let (_keep, state) = state();
        let keys: Vec<[u8; 32]> = std::thread::scope(|s| {
            let all: Vec<_> = (0..8).map(|_| s.spawn(|| Store::open(&state).unwrap().key)).collect();
            all.into_iter().map(|h| h.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|k| *k == keys[0]));
        let left = std::fs::read_dir(state.join("cache")).unwrap().count();
        assert_eq!(left, 1, "only the key");
    }

    #[test]
    fn directories_that_are_not_ours_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::fs::create_dir(dir.path().join("real")).unwrap();
        symlink("real", &link).unwrap();
        assert!(matches!(Store::open(&link), Err(StoreError::NotADirectory(_))));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(Store::open(&dir.path().join("file")), Err(StoreError::NotADirectory(_))));
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Store::open(&open), Err(StoreError::OthersWrite { .. })));
        let inner = dir.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        symlink("../real", inner.join("cache")).unwrap();
        assert!(matches!(Store::open(&inner), Err(StoreError::NotADirectory(_))));
        let foreign = if rustix::process::geteuid().is_root() {
            let foreign = dir.path().join("foreign");
            std::fs::create_dir(&foreign).unwrap();
            std::os::unix::fs::chown(&foreign, Some(12_345), None).unwrap();
            foreign
        } else {
            PathBuf::from("/usr")
        };
        assert!(matches!(Store::open(&foreign), Err(StoreError::ForeignOwner { .. })));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let (_keep, state) = state();
        let store = Store::open(&state).unwrap();
        std::fs::write(state.join("cache/.new-1-1"), "").unwrap();
        std::fs::File::open(state.join("cache/.new-1-1"))
            .unwrap()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        for n in 0..ENTRIES_MAX as u32 + 20 {
            store.put("facts", &Digest::of(&n.to_le_bytes()), b"x").unwrap();
        }
        let names = std::fs::read_dir(state.join("cache")).unwrap().count();
        assert_eq!(names, ENTRIES_MAX + 1, "the entries and the key");
        assert_eq!(store.get("facts", &Digest::of(&0u32.to_le_bytes())), None);
        assert!(store.get("facts", &Digest::of(&(ENTRIES_MAX as u32 + 19).to_le_bytes())).is_some());
    }
}

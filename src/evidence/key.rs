//! Keys that sign receipts: `keys/signing.pem` (PKCS#8, 0600), made on first use, and `keys/KEYID.pub` (SubjectPublicKeyInfo)
//! of every key there ever was, both PEM as openssl(1) reads it (RFC 7468, RFC 8410). A key's id is the SHA-256 of its
//! public key's DER form: `openssl pkey -pubin -in FILE -outform DER | sha256sum`.
//!
//! A rotation leaves `keys/KEYID.rotation.json`, in which the earlier key signs the new one: who trusts a key trusts those
//! that came after it, and no earlier ones, so that a key that was stolen can be left behind by trusting its successor alone.

use super::dsse::{self, Envelope, Rejected};
use super::place::private;
use super::{Place, StoreError, owner};
use crate::base::Digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use ed25519_dalek::{SigningKey, VerifyingKey};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, fstat, fsync, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The directory.
pub const KEYS: &str = "keys";
/// The file of the key that signs now.
pub const SIGNING: &str = "signing.pem";
/// `payloadType` of a rotation.
pub const ROTATION_TYPE: &str = "application/vnd.stockade.rotation+json";
/// Bytes of a file in the directory at most.
pub const KEY_FILE_BYTES_MAX: u64 = 8 << 10;
/// Files that are looked at in the directory at most.
pub const KEY_FILES_MAX: usize = 4096;

const PRIVATE: Pem = Pem {
    label: "PRIVATE KEY",
    // RFC 8410, section 7: version 0, algorithm 1.3.101.112, an octet string in an octet string.
    head: &[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20],
};
const PUBLIC: Pem = Pem {
    label: "PUBLIC KEY",
    // RFC 8410, section 4: algorithm 1.3.101.112, a bit string with no unused bits.
    head: &[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0],
};

/// A PEM form whose DER is a constant and the 32 bytes of a key.
struct Pem {
    label: &'static str,
    head: &'static [u8],
}

impl Pem {
    fn der(&self, key: &[u8; 32]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([self.head, key].concat())
    }

    fn write(&self, key: &[u8; 32]) -> Zeroizing<String> {
        let body = Zeroizing::new(B64.encode(self.der(key)));
        let label = self.label;
        Zeroizing::new(format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", *body))
    }

    /// Reads the form that [`Self::write`] writes, and no other.
    fn read(&self, text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
        let text = std::str::from_utf8(text).ok()?;
        let body = text.strip_prefix("-----BEGIN ")?.strip_prefix(self.label)?.strip_prefix("-----\n")?;
        let der = Zeroizing::new(B64.decode(body.lines().next()?).ok()?);
        let mut key = Zeroizing::new([0; 32]);
        key.copy_from_slice(der.strip_prefix(self.head).filter(|key| key.len() == 32)?);
        (*self.write(&key) == text).then_some(key)
    }
}

/// A key that verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// The public half.
    pub fn of(secret: &SigningKey) -> Self {
        Self(secret.verifying_key())
    }

    /// From PEM, in the one form that Stockade and openssl(1) write.
    pub fn from_pem(text: &[u8]) -> Option<Self> {
        VerifyingKey::from_bytes(&*PUBLIC.read(text)?).ok().filter(|key| !key.is_weak()).map(Self)
    }

    /// As PEM.
    pub fn pem(&self) -> String {
        PUBLIC.write(self.0.as_bytes()).to_string()
    }

    /// SHA-256 of its DER form.
    pub fn id(&self) -> Digest {
        Digest::of(&PUBLIC.der(self.0.as_bytes()))
    }

    pub(super) fn verifying(&self) -> &VerifyingKey {
        &self.0
    }
}

/// Keys to be trusted, by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trusted(BTreeMap<String, PublicKey>);

impl Trusted {
    /// Trusts a key.
    pub fn add(&mut self, key: PublicKey) {
        self.0.insert(key.id().hex(), key);
    }

    /// The key of that id.
    pub fn get(&self, id: &str) -> Option<&PublicKey> {
        self.0.get(id)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &PublicKey> {
        self.0.values()
    }

    /// Trusts what keys that are trusted have signed as their successors, and theirs, in whatever order the rotations come.
    pub fn follow(&mut self, rotations: &[Envelope]) {
        // Each pass adds a key or is the last.
        loop {
            let before = self.0.len();
            for envelope in rotations {
                if let Ok(rotation) = Rotation::open(envelope, self)
                    && let Some(key) = rotation.key()
                {
                    self.add(key);
                }
            }
            if self.0.len() == before {
                return;
            }
        }
    }
}

impl FromIterator<PublicKey> for Trusted {
    fn from_iter<I: IntoIterator<Item = PublicKey>>(keys: I) -> Self {
        let mut trusted = Self::default();
        keys.into_iter().for_each(|key| trusted.add(key));
        trusted
    }
}

/// What the earlier key signs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    schema: String,
    /// Id of the earlier key.
    pub from: String,
    /// Id of the new one.
    pub to: String,
    /// The new one, PEM.
    key: String,
    /// When, in milliseconds since 1970, by the host's clock.
    pub wall_ms: i64,
}

impl Rotation {
    const SCHEMA: &str = "stockade.rotation/1";

    /// Reads a rotation that a key of `trusted` has signed.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn open(envelope: &Envelope, trusted: &Trusted) -> Result<Self, Rejected> {
        let payload = envelope.payload(ROTATION_TYPE, |id| trusted.get(id))?;
        let rotation: Self = serde_json::from_slice(&payload).map_err(|e| Rejected::Form(e.to_string()))?;
        if rotation.schema != Self::SCHEMA || rotation.from != envelope.signer() || rotation.key().is_none() {
            return Err(Rejected::Form("it is no rotation".to_owned()));
        }
        Ok(rotation)
    }

    /// The new key.
    pub fn key(&self) -> Option<PublicKey> {
        PublicKey::from_pem(self.key.as_bytes()).filter(|key| key.id().hex() == self.to)
    }
}

/// The opened directory of keys.
#[derive(Debug)]
pub struct Keys {
    dir: OwnedFd,
    path: PathBuf,
    uid: u32,
}

/// No other process makes or rotates keys while this lives.
struct Alone {
    _lock: OwnedFd,
}

impl Keys {
    /// Opens it, made when missing.
    ///
    /// # Errors
    /// A system call, or a directory that is not ours alone.
    pub fn open(place: &Place) -> Result<Self, StoreError> {
        Ok(Self { dir: place.directory(KEYS)?, path: place.path().join(KEYS), uid: place.uid() })
    }

    /// Opens it where there is one; makes nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn look(place: &Place) -> Result<Option<Self>, StoreError> {
        match rustix::fs::statat(place.dir(), KEYS, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            _ => Self::open(place).map(Some),
        }
    }

    /// The key that signs, made when there is none.
    ///
    /// # Errors
    /// A system call; [`StoreError::Key`] when the file holds something else: nothing is made in its stead.
    pub fn signing(&self) -> Result<SigningKey, StoreError> {
        if let Some(key) = self.present()? {
            self.publish(&PublicKey::of(&key))?;
            return Ok(key);
        }
        let _alone = self.alone()?;
        if let Some(key) = self.present()? {
            return Ok(key);
        }
        let key = self.fresh()?;
        self.keep(&key)?;
        Ok(key)
    }

    /// Replaces the key that signs by a new one, which the earlier one signs. Returns the ids of both.
    ///
    /// # Errors
    /// As [`Self::signing`].
    pub fn rotate(&self) -> Result<(Option<Digest>, Digest), StoreError> {
        let _alone = self.alone()?;
        let earlier = self.present()?;
        let key = self.fresh()?;
        let public = PublicKey::of(&key);
        let to = public.id();
        let mut from = None;
        if let Some(earlier) = earlier {
            let id = PublicKey::of(&earlier).id();
            let rotation = Rotation {
                schema: Rotation::SCHEMA.to_owned(),
                from: id.hex(),
                to: to.hex(),
                key: public.pem(),
                wall_ms: super::Stamp::now().wall_ms,
            };
            let failed = |cause| StoreError::Encoding { what: "a rotation of keys", cause };
            let payload = crate::base::canonical_json(&rotation).map_err(|e| failed(e.to_string()))?;
            let envelope = dsse::seal(&earlier, &id, ROTATION_TYPE, &payload).map_err(failed)?;
            // Before the key signs anything: until then it says more than is so, and harms nobody.
            self.write(&format!("{}.rotation.json", to.hex()), envelope.as_bytes())?;
            from = Some(id);
        }
        self.keep(&key)?;
        Ok((from, to))
    }

    /// Makes a key durable, the public half first: nothing is ever signed that nobody can verify.
    fn keep(&self, key: &SigningKey) -> Result<(), StoreError> {
        self.publish(&PublicKey::of(key))?;
        self.write(SIGNING, PRIVATE.write(key.as_bytes()).as_bytes())
    }

    fn publish(&self, public: &PublicKey) -> Result<(), StoreError> {
        let name = format!("{}.pub", public.id().hex());
        match rustix::fs::statat(&self.dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => self.write(&name, public.pem().as_bytes()),
            Err(e) => Err(StoreError::io("look at", self.path.join(&name), e)),
        }
    }

    fn fresh(&self) -> Result<SigningKey, StoreError> {
        let mut seed = Zeroizing::new([0u8; 32]);
        let mut filled = 0;
        while filled < seed.len() {
            filled += rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(|e| StoreError::io("make a key in", &self.path, e))?;
        }
        Ok(SigningKey::from_bytes(&seed))
    }

    /// The key that signs, where there is one.
    ///
    /// # Errors
    /// As [`Self::signing`].
    pub fn present(&self) -> Result<Option<SigningKey>, StoreError> {
        let Some(text) = self.read(SIGNING)? else { return Ok(None) };
        let seed = PRIVATE.read(&text).ok_or_else(|| StoreError::Key {
            path: self.path.join(SIGNING),
            why: "is no ed25519 key in PKCS#8 PEM, as Stockade writes them".to_owned(),
        })?;
        Ok(Some(SigningKey::from_bytes(&seed)))
    }

    /// Names of the files that are there, sorted.
    ///
    /// # Errors
    /// A system call; more than 4096 files.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let failed = |e| StoreError::io("list", &self.path, e);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = String::from_utf8_lossy(entry.file_name().to_bytes()).into_owned();
            if name == "." || name == ".." {
                continue;
            }
            if names.len() == KEY_FILES_MAX {
                let (what, most) = ("files in keys/", KEY_FILES_MAX as u64);
                return Err(StoreError::Bound { what, found: most + 1, most });
            }
            names.push(name);
        }
        names.sort();
        Ok(names)
    }

    /// The bytes of a file, `None` when there is none.
    ///
    /// # Errors
    /// A system call, a file that is not ours alone, or one that is too long for a key.
    pub fn read(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let path = || self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(StoreError::io("open", path(), e)),
        };
        let stat = fstat(&file).map_err(|e| StoreError::io("look at", path(), e))?;
        private(&stat, self.uid, FileType::RegularFile)
            .map_err(|why| StoreError::Unsafe { path: path(), why })?;
        let length = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if length > KEY_FILE_BYTES_MAX {
            return Err(StoreError::Bound {
                what: "bytes of a key's file",
                found: length,
                most: KEY_FILE_BYTES_MAX,
            });
        }
        // Room for all of it at once: a secret that is moved leaves a copy behind.
        let mut bytes = Zeroizing::new(vec![0; KEY_FILE_BYTES_MAX as usize + 1]);
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::io::read(&file, &mut bytes[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(StoreError::io("read", path(), e)),
            }
        }
        bytes.truncate(filled);
        Ok(Some(bytes))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let failed = |step| move |e| StoreError::io(step, self.path.join(name), e);
        let pending = format!(".pending-{}", owner::random_name().map_err(failed("name"))?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, &pending, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make"))?;
        let written = super::blob::write_all(&file, bytes)
            .map_err(failed("write"))
            .and_then(|()| fsync(&file).map_err(failed("sync")))
            .and_then(|()| renameat(&self.dir, &pending, &self.dir, name).map_err(failed("name")));
        if let Err(e) = written {
            let _ = unlinkat(&self.dir, &pending, AtFlags::empty());
            return Err(e);
        }
        fsync(&self.dir).map_err(failed("sync the directory of"))
    }

    fn alone(&self) -> Result<Alone, StoreError> {
        let failed = |e| StoreError::io("lock", &self.path, e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = openat(self.dir.as_fd(), ".", flags, Mode::empty()).map_err(failed)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Alone { _lock: lock }),
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::testing::Root;

    #[test]
    fn made_once_private_and_found_again() {
        let root = Root::new();
        let made = Keys::open(&root.place()).unwrap().signing().unwrap();
        let keys = Keys::open(&root.place()).unwrap();
        assert_eq!(keys.signing().unwrap().to_bytes(), made.to_bytes());
        let public = PublicKey::of(&made);
        let name = format!("{}.pub", public.id().hex());
        assert_eq!(keys.names().unwrap().len(), 2);
        assert_eq!(PublicKey::from_pem(&keys.read(&name).unwrap().unwrap()), Some(public));
        for name in [SIGNING, &name] {
            assert_eq!(rustix::fs::statat(&keys.dir, name, AtFlags::empty()).unwrap().st_mode & 0o777, 0o600);
        }
        // A public half that went missing comes back before anything is signed.
        std::fs::remove_file(root.path().join(KEYS).join(&name)).unwrap();
        keys.signing().unwrap();
        assert!(keys.read(&name).unwrap().is_some());
    }

    #[test]
    fn of_many_who_are_first_one_wins() {
        let root = Root::new();
        let keys: Vec<[u8; 32]> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Keys::open(&root.place()).unwrap().signing().unwrap().to_bytes()))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_eq!(Keys::open(&root.place()).unwrap().names().unwrap().len(), 2);
    }

    #[test]
    fn another_file_is_not_replaced() {
        let root = Root::new();
        let keys = Keys::open(&root.place()).unwrap();
        keys.signing().unwrap();
        let path = root.path().join(KEYS).join(SIGNING);
        let good = std::fs::read(&path).unwrap();
        for bad in [&good[..good.len() - 1], b"", &[&good[..], b"\n"].concat()] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(keys.signing(), Err(StoreError::Key { .. })));
            assert!(matches!(keys.rotate(), Err(StoreError::Key { .. })));
            assert_eq!(std::fs::read(&path).unwrap(), bad);
        }
        std::fs::write(&path, vec![b'x'; 9 << 10]).unwrap();
        assert!(matches!(keys.signing(), Err(StoreError::Bound { .. })));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(keys.signing().is_err());
    }

    #[test]
    fn trust_goes_forward_alone() {
        let root = Root::new();
        let keys = Keys::open(&root.place()).unwrap();
        let first = PublicKey::of(&keys.signing().unwrap());
        let (from, second) = keys.rotate().unwrap();
        assert_eq!(from, Some(first.id()));
        let (from, third) = keys.rotate().unwrap();
        assert_eq!(from, Some(second));
        let now = PublicKey::of(&keys.signing().unwrap());
        assert_eq!(now.id(), third);
        let rotations: Vec<Envelope> = [third, second]
            .iter()
            .map(|id| keys.read(&format!("{}.rotation.json", id.hex())).unwrap().unwrap())
            .map(|text| Envelope::parse(&text).unwrap())
            .collect();
        let mut trusted: Trusted = [first.clone()].into_iter().collect();
        trusted.follow(&rotations);
        assert_eq!(trusted.len(), 3);
        let mut trusted: Trusted = [now].into_iter().collect();
        trusted.follow(&rotations);
        assert_eq!(trusted.len(), 1);
        assert!(trusted.get(&first.id().hex()).is_none());
    }

    #[test]
    fn one_form_of_a_file() {
        let key = PublicKey::of(&SigningKey::from_bytes(&[9; 32]));
        let pem = key.pem();
        assert_eq!(PublicKey::from_pem(pem.as_bytes()), Some(key));
        for at in 0..pem.len() {
            let mut other = pem.clone().into_bytes();
            other[at] ^= 1;
            assert!(PublicKey::from_pem(&other).is_none_or(|key| key.pem() != pem), "{at}");
        }
        assert!(PublicKey::from_pem(pem.replace('\n', "\r\n").as_bytes()).is_none());
    }

    /// That other tools can check a signature with the files alone.
    #[test]
    fn openssl_verifies() {
        let root = Root::new();
        let keys = Keys::open(&root.place()).unwrap();
        let key = keys.signing().unwrap();
        let id = PublicKey::of(&key).id();
        let dir = root.path().join(KEYS);
        std::fs::write(dir.join("message"), b"DSSEv1 1 a 1 b").unwrap();
        let envelope = dsse::seal(&key, &id, "a", b"b").unwrap();
        let envelope: serde_json::Value = serde_json::from_str(&envelope).unwrap();
        let sig = B64.decode(envelope["signatures"][0]["sig"].as_str().unwrap()).unwrap();
        std::fs::write(dir.join("sig"), sig).unwrap();
        let openssl =
            |args: &[&str]| std::process::Command::new("openssl").args(args).current_dir(&dir).output();
        let public = format!("{}.pub", id.hex());
        let verify = [
            "pkeyutl", "-verify", "-pubin", "-inkey", &public, "-rawin", "-in", "message", "-sigfile", "sig",
        ];
        let Ok(verified) = openssl(&verify) else {
            eprintln!("skipped: there is no openssl here");
            return;
        };
        assert!(verified.status.success(), "{verified:?}");
        let made = openssl(&["pkey", "-in", SIGNING, "-pubout"]).unwrap();
        assert_eq!(made.stdout, keys.read(&public).unwrap().unwrap().to_vec());
        std::fs::write(dir.join("message"), b"DSSEv1 1 a 1 c").unwrap();
        assert!(!openssl(&verify).unwrap().status.success());
    }
}

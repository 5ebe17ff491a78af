//! What a directory holds: its names, and what they say of names that are not among them.

use rustix::fs::{self, RawDir};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

/// Bytes of directory entries read at once.
const LISTING_BYTES: usize = 4 << 10;
/// Words of bits in [`Seen`].
const SEEN_WORDS: usize = 64;
/// ext4, XFS, Btrfs, tmpfs, overlayfs and F2FS: `linux/magic.h`.
const LISTS_EVERYTHING: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010];

/// What was read of a directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The names that were to be kept, in order.
    pub(crate) names: Vec<OsString>,
    /// All names, for what they say of others.
    pub(crate) seen: Option<Seen>,
}

/// Reads the directory behind `fd`, `None` when it holds more than `max` names.
pub(crate) fn list(fd: OwnedFd, max: usize, keep: impl Fn(&OsStr) -> bool) -> Result<Option<Listing>, Errno> {
    let mut out = Listing { names: Vec::new(), seen: Seen::none_in(&fd)? };
    let mut buffer = [MaybeUninit::uninit(); LISTING_BYTES];
    let mut entries = RawDir::new(fd, &mut buffer);
    let mut left = max;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if left == 0 {
            return Ok(None);
        }
        left -= 1;
        if let Some(seen) = &mut out.seen {
            seen.add(name);
        }
        let name = OsStr::from_bytes(name);
        if keep(name) {
            out.names.push(name.to_owned());
        }
    }
    out.names.sort_unstable();
    Ok(Some(out))
}

/// The names in the directory behind `fd`, `None` when there are more than `max`.
pub(crate) fn names(fd: OwnedFd, max: usize) -> Result<Option<Vec<OsString>>, Errno> {
    Ok(list(fd, max, |_| true)?.map(|listing| listing.names))
}

/// What a directory was seen to hold: says of a name that it was not there, which saves looking it up.
///
/// A name that a listing lacks is not for that absent: a lookup may fold case, ignore characters outside ASCII, or find
/// what is never listed. So a name counts as absent only on file systems that list everything, if no entry differs from
/// it in the case of ASCII letters alone, and if all entries are ASCII. A listing and a lookup at its moment are two
/// views of a directory that others may change at any time, and neither is more certain: what is held or hidden is
/// opened again when it is mounted, and what appears later is looked for after the run.
#[derive(Debug)]
pub(crate) struct Seen([u64; SEEN_WORDS]);

impl Seen {
    /// Of an empty directory, if that behind `fd` lies where a listing says everything.
    fn none_in(fd: &OwnedFd) -> Result<Option<Self>, Errno> {
        let magic = fs::fstatfs(fd)?.f_type as u64;
        Ok(LISTS_EVERYTHING.contains(&magic).then_some(Self([0; SEEN_WORDS])))
    }

    fn add(&mut self, name: &[u8]) {
        match Self::place(name) {
            Some((word, bit)) => self.0[word] |= bit,
            None => self.0 = [u64::MAX; SEEN_WORDS],
        }
    }

    /// Whether `name` was certainly not there.
    pub(crate) fn lacks(&self, name: &OsStr) -> bool {
        Self::place(name.as_bytes()).is_some_and(|(word, bit)| self.0[word] & bit == 0)
    }

    /// A place among the bits that is the same for names that differ in case alone (FNV-1a): two names may share one, and
    /// then the other is looked up. `None` when `name` is not ASCII.
    fn place(name: &[u8]) -> Option<(usize, u64)> {
        let mix = |hash: u32, b: &u8| (hash ^ u32::from(b.to_ascii_lowercase())).wrapping_mul(0x0100_0193);
        let at = name.iter().fold(0x811c_9dc5, mix) >> 16;
        name.is_ascii().then_some((at as usize / 64 % SEEN_WORDS, 1 << (at % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen<'n>(names: impl IntoIterator<Item = &'n str>) -> Seen {
        let mut seen = Seen([0; SEEN_WORDS]);
        names.into_iter().for_each(|name| seen.add(name.as_bytes()));
        seen
    }

    #[test]
    fn what_a_listing_says_of_absent_names() {
        let some = seen(["README.md", ".Git"]);
        for maybe in ["README.md", "readme.MD", ".git", ".GIT", "\u{212a}"] {
            assert!(!some.lacks(OsStr::new(maybe)), "{maybe}");
        }
        for absent in [".gi", ".gitt", "git", ".bashrc"] {
            assert!(some.lacks(OsStr::new(absent)), "{absent}");
        }
        // A name such as `.\u{212a}` may be what `.k` leads to.
        assert!(!seen(["a", ".\u{212a}"]).lacks(OsStr::new(".k")));
        let many: Vec<String> = (0..100_000).map(|n| format!("n{n}")).collect();
        assert!(!seen(many.iter().map(String::as_str)).lacks(OsStr::new("n99999")));
    }

    #[test]
    fn only_where_everything_is_listed() {
        let read = |dir: &str| {
            let fd = fs::open(dir, fs::OFlags::RDONLY | fs::OFlags::DIRECTORY, fs::Mode::empty()).unwrap();
            list(fd, 4096, |name| name.as_bytes().starts_with(b"Cargo")).unwrap().unwrap()
        };
        let here = read(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(here.names, ["Cargo.lock", "Cargo.toml"]);
        assert!(here.seen.is_none_or(|seen| !seen.lacks(OsStr::new("src"))));
        // Threads, for one, have a directory in procfs that is not listed.
        assert!(read("/proc").seen.is_none());
        let fd = fs::open("/proc", fs::OFlags::RDONLY | fs::OFlags::DIRECTORY, fs::Mode::empty()).unwrap();
        assert!(list(fd, 3, |_| true).unwrap().is_none());
    }
}

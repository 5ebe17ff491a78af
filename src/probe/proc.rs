//! Reading procfs's text files: bounded, by bytes, unescaped.

use super::host::ProbeError;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The largest file that is read (a mount table of tens of thousands of lines).
const READ_BYTES_MAX: u64 = 16 << 20;

/// One line of mountinfo, as far as we need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLine {
    /// The device of its file system, `major:minor`.
    pub dev: Vec<u8>,
    /// The directory of the file system that is the mount's root.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Per-mount options.
    pub options: Vec<u8>,
    /// File-system type.
    pub fs_type: Vec<u8>,
    /// Per-superblock options.
    pub super_options: Vec<u8>,
}

/// The bytes of a file, [`READ_BYTES_MAX`] at most.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?)
}

/// The bytes behind a descriptor.
pub fn read_file(fd: OwnedFd) -> io::Result<Vec<u8>> {
    read_all(File::from(fd))
}

fn read_all(file: File) -> io::Result<Vec<u8>> {
    // Most of these files fit: one read, and one that finds the end.
    let mut out = Vec::with_capacity(4096);
    file.take(READ_BYTES_MAX).read_to_end(&mut out)?;
    Ok(out)
}

/// The first line of a small file, when it can be read.
pub fn word(path: &Path) -> Option<String> {
    let bytes = read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).lines().next()?.trim().to_owned())
}

/// A path from raw bytes.
pub fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The mount table of this process.
pub fn mounts(proc_root: &Path) -> Result<Vec<MountLine>, ProbeError> {
    let text = read(&proc_root.join("self/mountinfo"))
        .map_err(|source| ProbeError::Proc { file: "self/mountinfo", source })?;
    Ok(parse_mounts(&text))
}

/// Parses mountinfo; lines of another form are left out. proc_pid_mountinfo(5).
pub fn parse_mounts(text: &[u8]) -> Vec<MountLine> {
    text.split(|b| *b == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|b| *b == b' ');
    let mut first = fields.by_ref().take(6);
    let (dev, root, point, options) = (first.nth(2)?, first.next()?, first.next()?, first.next()?);
    // Optional fields, then a lone hyphen.
    let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
    let (fs_type, _source, super_options) = (rest.next()?, rest.next()?, rest.next()?);
    Some(MountLine {
        dev: dev.to_vec(),
        root: unescape(root),
        point: unescape(point),
        options: options.to_vec(),
        fs_type: fs_type.to_vec(),
        super_options: super_options.to_vec(),
    })
}

/// Undoes the octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = |d: &[u8]| {
            d.iter().try_fold(0u32, |n, b| matches!(b, b'0'..=b'7').then(|| n * 8 + u32::from(b - b'0')))
        };
        match tail.split_at_checked(3) {
            Some((digits, after)) if b == b'\\' => match octal(digits).and_then(|n| u8::try_from(n).ok()) {
                Some(byte) => {
                    out.push(byte);
                    rest = after;
                }
                None => {
                    out.push(b);
                    rest = tail;
                }
            },
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo() {
        let text = b"36 35 98:0 /mnt1 /mnt\\0402\\134x\\012y rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n\
                     broken\n37 35 0:1 / /a rw - - - -\n38 1 0:2 / /\\04 ro - proc none rw\n1 2 3 4 5 6 7\n";
        let got = parse_mounts(text);
        assert_eq!(got.len(), 3);
        assert_eq!(got[0].dev, b"98:0");
        assert_eq!(got[0].root, Path::new("/mnt1"));
        assert_eq!(got[0].point, Path::new("/mnt 2\\x\ny"));
        assert_eq!(got[0].fs_type, b"ext3");
        assert_eq!(got[0].super_options, b"rw,errors=continue");
        assert_eq!(got[2].point, Path::new("/\\04"));
        assert_eq!(got[2].options, b"ro");
    }
}

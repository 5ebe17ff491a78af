//! Questions about the host that a failed command raises: whether a path that it named lies there, whether a port that
//! it was refused is served. Asked with the caller's rights, a bounded number of times, about names that the command
//! chose: so no link is followed, nothing is opened for its content, and no file system is entered that could make us
//! wait (network, FUSE) or mount something (autofs).

use super::paths::kind;
use crate::base::{HostPath, OsBytes};
use crate::plan::Kind;
use rustix::fs::{self, CWD, Mode, OFlags};
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Questions answered for one command.
const QUESTIONS_MAX: u32 = 64;
/// Bytes read of the table of sockets.
const SOCKETS_BYTES_MAX: u64 = 1 << 20;
/// Directories of the caller's PATH that are looked into.
const PATH_MAX: usize = 64;

/// File systems whose answers come from somewhere else. `linux/magic.h`.
const REMOTE: [u64; 12] = [
    0x0187,      // autofs
    0x6969,      // NFS
    0x517b,      // SMB
    0xfe53_4d42, // SMB2
    0xff53_4d42, // CIFS
    0x6573_5546, // FUSE
    0x0102_1997, // 9P
    0x00c3_6400, // Ceph
    0x5346_414f, // OpenAFS
    0x6b41_4653, // kAFS
    0x7375_7245, // Coda
    0x0bd0_0bd0, // Lustre
];

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its type.
    pub kind: Kind,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Where it points, when it is a link.
    pub link: Option<OsBytes>,
}

/// The host, as far as it may be asked.
#[derive(Debug)]
pub struct Host {
    home: Option<HostPath>,
    path: Vec<HostPath>,
    left: Cell<u32>,
}

impl Host {
    /// For a caller with this home and PATH.
    pub fn new(home: Option<HostPath>, path: &[u8]) -> Self {
        let dirs = path.split(|b| *b == b':').map(|dir| HostPath::new(Path::new(OsStr::from_bytes(dir))));
        Self { home, path: dirs.flatten().take(PATH_MAX).collect(), left: Cell::new(QUESTIONS_MAX) }
    }

    /// The caller's home.
    pub fn home(&self) -> Option<&HostPath> {
        self.home.as_ref()
    }

    /// What lies at `path`; `None` when nothing does, or when that cannot be said.
    pub fn look(&self, path: &HostPath) -> Option<Seen> {
        self.may_ask().then(|| see(path)).flatten()
    }

    fn may_ask(&self) -> bool {
        self.left.replace(self.left.get().saturating_sub(1)) > 0
    }

    /// Where on the caller's PATH a program of this name lies.
    pub fn program(&self, name: &OsStr) -> Vec<HostPath> {
        let is_name = !name.is_empty() && name.len() <= 255 && !name.as_bytes().contains(&b'/');
        if !is_name || !self.may_ask() {
            return Vec::new();
        }
        let places = self.path.iter().filter_map(|dir| HostPath::new(dir.as_path().join(name)).ok());
        places.filter(|path| see(path).is_some_and(|seen| seen.kind != Kind::Dir)).collect()
    }

    /// Whether something on this host listens on TCP `port`.
    pub fn serves(&self, port: u16) -> bool {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| listens(&read(table), port))
    }
}

fn see(path: &HostPath) -> Option<Seen> {
    let through = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = fs::openat(CWD, "/", through | OFlags::DIRECTORY, Mode::empty()).ok()?;
    for name in path.as_path().strip_prefix("/").ok()? {
        // An automount point that nobody has entered stays so: it is only opened as a place.
        at = fs::openat(&at, name, through, Mode::empty()).ok()?;
        if REMOTE.contains(&(fs::fstatfs(&at).ok()?.f_type as u64)) {
            return None;
        }
    }
    let stat = fs::fstat(&at).ok()?;
    let kind = kind(stat.st_mode);
    let link = match kind {
        Kind::Symlink => fs::readlinkat(&at, "", Vec::new()).ok().map(|to| to.into_bytes().into()),
        _ => None,
    };
    Some(Seen { kind, mode: stat.st_mode & 0o7777, uid: stat.st_uid, link })
}

fn read(path: &str) -> String {
    use std::io::Read as _;
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open(path) {
        // A table that cannot be read answers no.
        let _ = file.take(SOCKETS_BYTES_MAX).read_to_string(&mut text);
    }
    text
}

/// Whether a table of proc_pid_net(5) has a listening socket on `port`.
fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        let is_port = local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port));
        is_port && fields.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(path: &str) -> Host {
        Host::new(None, path.as_bytes())
    }

    #[test]
    fn paths_are_looked_at_without_following_anything() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        std::fs::write(at.join("f"), "").unwrap();
        std::fs::create_dir(at.join("d")).unwrap();
        std::fs::write(at.join("d/g"), "").unwrap();
        std::os::unix::fs::symlink("d", at.join("l")).unwrap();
        let host = host("");
        let look = |rel: &str| host.look(&HostPath::new(at.join(rel)).unwrap());
        assert_eq!(look("f").unwrap().kind, Kind::File);
        assert_eq!(look("d/g").unwrap().kind, Kind::File);
        let link = look("l").unwrap();
        assert_eq!((link.kind, link.link.unwrap().as_bytes()), (Kind::Symlink, &b"d"[..]));
        assert_eq!(look("l/g"), None, "behind a link");
        assert_eq!(look("gone"), None);
        for _ in 0..QUESTIONS_MAX {
            look("f");
        }
        assert_eq!(look("f"), None, "asked too often");
    }

    #[test]
    fn programs_are_found_where_the_caller_would_find_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        std::fs::write(at.join("tool"), "").unwrap();
        let host = host(&format!("relative:/nowhere:{}", at.display()));
        assert_eq!(host.program(OsStr::new("tool")), [HostPath::new(at.join("tool")).unwrap()]);
        for none in ["", "../tool", "other"] {
            assert!(host.program(OsStr::new(none)).is_empty(), "{none}");
        }
    }

    #[test]
    fn listening_ports_are_told_from_others() {
        let table = "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:1538 00000000:0000 0A 0\n   1: \
                     0100007F:1539 0100007F:1538 01 0\n";
        assert!(listens(table, 0x1538) && !listens(table, 0x1539) && !listens("", 1));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(host("").serves(port));
        drop(socket);
        assert!(!host("").serves(port));
    }
}

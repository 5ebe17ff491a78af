//! Protected and hidden names of a workspace: which of the profile's patterns match what, looked up beneath the
//! workspace's descriptor without following links. The tree is another's to change while we look.

use super::listing::{Listing, Seen, list};
use super::paths::{ENTRIES_MAX, GatherError, NAMES_MAX, READ_MAX, kind, wild_tops};
use crate::base::text::visible;
use crate::base::{RelPath, name_matches};
use crate::plan::Kind;
use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Directories of one tree that are kept open.
const OPEN_DIRS_MAX: usize = 16;

/// A directory tree, and what was read of it.
pub(super) struct Beneath {
    root: OwnedFd,
    listings: BTreeMap<PathBuf, Names>,
    /// What the root was seen to hold, if it had to be listed.
    seen: Option<Seen>,
    /// Directories in which something was looked up.
    dirs: BTreeMap<PathBuf, Result<OwnedFd, Errno>>,
}

type Names = Rc<Result<Option<Vec<OsString>>, Errno>>;

/// Opens beneath `root`, no link anywhere on the way followed.
pub(super) fn open_beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    fs::openat2(root, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The type of what lies at `path` beneath `root`, links not followed; ELOOP when one is on the way.
pub(super) fn kind_beneath(root: &OwnedFd, path: &Path) -> Result<Kind, Errno> {
    let mut parts = path.components();
    let stat = match (parts.next(), parts.next()) {
        // One component cannot lead anywhere else.
        (Some(std::path::Component::Normal(name)), None) => {
            fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?
        }
        _ => fs::fstat(open_beneath(root, path, OFlags::PATH)?)?,
    };
    Ok(kind(stat.st_mode))
}

impl Beneath {
    /// The tree at `root`, for `patterns`: where one of them begins with a `*`, the root must be listed anyway, and many
    /// look-ups of names that are not there are saved.
    pub(super) fn new<'p>(root: OwnedFd, patterns: impl Iterator<Item = &'p RelPath>) -> Self {
        let mut new = Self { root, listings: BTreeMap::new(), seen: None, dirs: BTreeMap::new() };
        let wild: Vec<&OsStr> = wild_tops(patterns).collect();
        if !wild.is_empty() {
            let matches = |name: &OsStr| wild.iter().any(|w| name_matches(w.as_bytes(), name.as_bytes()));
            let listing = new.read(Path::new("."), READ_MAX, matches);
            let names = listing.map(|listing| {
                listing.map(|listing| {
                    new.seen = listing.seen;
                    listing.names
                })
            });
            new.listings.insert(PathBuf::new(), Rc::new(names));
        }
        new
    }

    fn read(&self, dir: &Path, max: usize, keep: impl Fn(&OsStr) -> bool) -> Result<Option<Listing>, Errno> {
        let fd = open_beneath(&self.root, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?;
        list(fd, max, keep)
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    fn lacks(&self, path: &Path) -> bool {
        let first = path.iter().next();
        self.seen.as_ref().zip(first).is_some_and(|(seen, first)| seen.lacks(first))
    }

    /// The type of what lies at `path`, links not followed; ELOOP or ENOTDIR when one is on the way.
    pub(super) fn kind(&mut self, path: &Path) -> Result<Kind, Errno> {
        if self.lacks(path) {
            return Err(Errno::NOENT);
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
        if dir.as_os_str().is_empty() {
            return kind_beneath(&self.root, path);
        }
        // Several names lie in one directory. Not many are kept open: descriptors are bounded.
        if !self.dirs.contains_key(dir) {
            if self.dirs.len() >= OPEN_DIRS_MAX {
                return kind_beneath(&self.root, path);
            }
            let opened = open_beneath(&self.root, dir, OFlags::PATH | OFlags::DIRECTORY);
            self.dirs.insert(dir.to_path_buf(), opened);
        }
        match self.dirs.get(dir) {
            Some(Ok(fd)) => kind_beneath(fd, Path::new(name)),
            Some(Err(e)) => Err(*e),
            None => Err(Errno::NOENT),
        }
    }

    fn list(&mut self, dir: &Path) -> Names {
        if let Some(known) = self.listings.get(dir) {
            return Rc::clone(known);
        }
        let at = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let listing = match self.lacks(dir) {
            true => Err(Errno::NOENT),
            false => self.read(at, NAMES_MAX, |_| true),
        };
        let listing = Rc::new(listing.map(|read| read.map(|listing| listing.names)));
        self.listings.insert(dir.to_path_buf(), Rc::clone(&listing));
        listing
    }
}

type Found = BTreeMap<RelPath, Kind>;

/// What the patterns match. Where a link stands on the way of a pattern's fixed beginning, the link itself is
/// given: whoever replaces it decides what the name means.
pub(super) fn matches(
    beneath: &mut Beneath,
    patterns: &[RelPath],
) -> Result<Vec<(RelPath, Kind)>, GatherError> {
    let mut found = Found::new();
    for pattern in patterns {
        let parts: Vec<&OsStr> = pattern.as_path().iter().collect();
        expand(beneath, pattern, PathBuf::new(), &parts, &mut found)?;
    }
    Ok(found.into_iter().collect())
}

fn expand(
    beneath: &mut Beneath,
    pattern: &RelPath,
    mut at: PathBuf,
    parts: &[&OsStr],
    found: &mut Found,
) -> Result<(), GatherError> {
    let wild = parts.iter().position(|p| p.as_bytes().contains(&b'*'));
    at.extend(&parts[..wild.unwrap_or(parts.len())]);
    let Some(wild) = wild else { return literal(beneath, &at, found) };
    let rest = &parts[wild + 1..];
    let shown =
        || if at.as_os_str().is_empty() { ".".to_owned() } else { visible(at.as_os_str().as_bytes()) };
    let listing = beneath.list(&at);
    let all = match listing.as_ref() {
        Ok(Some(all)) => all,
        Ok(None) => return Err(GatherError::TooManyEntries { dir: shown(), pattern: pattern.clone() }),
        Err(Errno::NOENT) => return Ok(()),
        // A link in last place is no directory, one before that a loop.
        Err(Errno::NOTDIR | Errno::LOOP) => return link_on_the_way(beneath, &at, found),
        Err(e) => {
            return Err(GatherError::Unreadable {
                dir: shown(),
                pattern: pattern.clone(),
                source: (*e).into(),
            });
        }
    };
    for name in all.iter().filter(|n| name_matches(parts[wild].as_bytes(), n.as_bytes())) {
        let path = at.join(name);
        // Gone since, or not to be looked at.
        let Ok(kind) = beneath.kind(&path) else { continue };
        if rest.is_empty() {
            add(&path, kind, found)?;
        } else if kind == Kind::Dir {
            expand(beneath, pattern, path, rest, found)?;
        }
    }
    Ok(())
}

fn literal(beneath: &mut Beneath, path: &Path, found: &mut Found) -> Result<(), GatherError> {
    match beneath.kind(path) {
        Ok(kind) => add(path, kind, found),
        Err(Errno::LOOP | Errno::NOTDIR) => link_on_the_way(beneath, path, found),
        // Absent, or behind a directory that the caller, and so the command, may not search.
        Err(_) => Ok(()),
    }
}

fn link_on_the_way(beneath: &mut Beneath, path: &Path, found: &mut Found) -> Result<(), GatherError> {
    let mut prefix = PathBuf::new();
    for part in path {
        prefix.push(part);
        match beneath.kind(&prefix) {
            Ok(Kind::Symlink) => return add(&prefix, Kind::Symlink, found),
            Ok(_) => {}
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn add(path: &Path, kind: Kind, found: &mut Found) -> Result<(), GatherError> {
    if found.len() >= ENTRIES_MAX {
        return Err(GatherError::TooManyMatches);
    }
    // A name that is too long together with its directory could not be opened by path either.
    if let Ok(rel) = RelPath::new(path) {
        found.insert(rel, kind);
    }
    Ok(())
}

/// Leaves out what lies below a directory that is in the list itself.
pub(super) fn without_nested(mut list: Vec<(RelPath, Kind)>) -> Vec<(RelPath, Kind)> {
    list.sort();
    list.dedup();
    let dirs: std::collections::BTreeSet<PathBuf> =
        list.iter().filter(|(_, k)| *k == Kind::Dir).map(|(rel, _)| rel.as_path().to_path_buf()).collect();
    list.retain(|(rel, _)| !rel.as_path().ancestors().skip(1).any(|up| dirs.contains(up)));
    list
}

#[cfg(test)]
mod tests {
    use super::super::testing::{rel, tree};
    use super::*;
    use std::os::unix::fs::symlink;

    fn found(dir: &Path, patterns: &[&str]) -> Result<Vec<(String, Kind)>, GatherError> {
        let fd = fs::open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let patterns: Vec<RelPath> = patterns.iter().map(|p| rel(p)).collect();
        let list = without_nested(matches(&mut Beneath::new(fd, patterns.iter()), &patterns)?);
        Ok(list.into_iter().map(|(r, k)| (r.to_string(), k)).collect())
    }

    fn shown(list: &[(&str, Kind)]) -> Vec<(String, Kind)> {
        list.iter().map(|(n, k)| ((*n).to_owned(), *k)).collect()
    }

    #[test]
    fn names_and_patterns() {
        let dir = tree(&[
            ".env",
            ".env.local",
            ".envrc",
            "a/k.pem",
            "b/k.pem",
            "b/c/k.pem",
            ".git/hooks/x",
            ".git/config",
        ]);
        let got = found(
            dir.path(),
            &[".env", ".env.*", "*/k.pem", ".git/hooks", ".git/config", "absent", "a/absent"],
        );
        assert_eq!(
            got.unwrap(),
            shown(&[
                (".env", Kind::File),
                (".env.local", Kind::File),
                (".git/config", Kind::File),
                (".git/hooks", Kind::Dir),
                ("a/k.pem", Kind::File),
                ("b/k.pem", Kind::File),
            ])
        );
        assert_eq!(
            found(dir.path(), &["b", "b/k.pem", "*/c"]).unwrap(),
            shown(&[("b", Kind::Dir)]),
            "nested ones go"
        );
        assert_eq!(
            found(dir.path(), &["b*", ".git"]).unwrap(),
            shown(&[(".git", Kind::Dir), ("b", Kind::Dir)])
        );
    }

    #[test]
    fn hostile_shapes() {
        let outside = tree(&["secret"]);
        let dir = tree(&["real/key", "file"]);
        let at = dir.path();
        nix::unistd::mkfifo(&at.join(".env"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink("loop", at.join("loop")).unwrap();
        symlink("nowhere", at.join("dangling")).unwrap();
        symlink(outside.path(), at.join("out")).unwrap();
        symlink("real", at.join("in")).unwrap();
        symlink("/", at.join("root")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at.join("sock")).unwrap();
        let got = found(at, &[".env", "loop", "dangling", "sock", "file/x"]).unwrap();
        let wanted = [
            (".env", Kind::Other),
            ("dangling", Kind::Symlink),
            ("loop", Kind::Symlink),
            ("sock", Kind::Socket),
        ];
        assert_eq!(got, shown(&wanted));
        // A link on a fixed way is the answer; a pattern does not go through one.
        assert_eq!(found(at, &["out/secret"]).unwrap(), shown(&[("out", Kind::Symlink)]));
        assert_eq!(found(at, &["in/key"]).unwrap(), shown(&[("in", Kind::Symlink)]));
        assert_eq!(found(at, &["in/k*"]).unwrap(), shown(&[("in", Kind::Symlink)]));
        assert_eq!(
            found(at, &["loop/x/y", "root/etc/*"]).unwrap(),
            shown(&[("loop", Kind::Symlink), ("root", Kind::Symlink)])
        );
        assert_eq!(found(at, &["*/key", "*/secret"]).unwrap(), shown(&[("real/key", Kind::File)]));
    }

    #[test]
    fn names_that_are_no_text() {
        let dir = tree(&[]);
        for name in [&b"a\xff\xfe.key"[..], b"new\nline.key", b"\x1b[2J.key", b" .key"] {
            std::fs::write(dir.path().join(OsStr::from_bytes(name)), "").unwrap();
        }
        let fd = fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let got = matches(&mut Beneath::new(fd, [].iter()), &[rel("*.key")]).unwrap();
        let bytes: Vec<&[u8]> = got.iter().map(|(r, _)| r.as_bytes()).collect();
        assert_eq!(bytes, [&b"\x1b[2J.key"[..], b" .key", b"a\xff\xfe.key", b"new\nline.key"]);
    }

    #[test]
    fn too_many_entries_are_an_error_and_only_where_they_must_be_read() {
        let dir = tree(&[".env"]);
        std::fs::create_dir(dir.path().join("below")).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for n in 0..=NAMES_MAX {
            // A file has so many names at most.
            if n % 50_000 == 0 {
                std::fs::remove_file(&file).unwrap();
                std::fs::write(&file, "").unwrap();
            }
            std::fs::hard_link(&file, dir.path().join(format!("below/n{n}"))).unwrap();
        }
        let Err(error) = found(dir.path(), &["below/*.pem"]) else { panic!("searched") };
        assert!(matches!(error, GatherError::TooManyEntries { .. }));
        assert!(error.to_string().contains("the directory below of the workspace"), "{error}");
        assert_eq!(found(dir.path(), &[".env", "below/n1"]).unwrap().len(), 2);
        // At the top such a number keeps nothing from being found.
        let top = dir.path().join("below");
        std::fs::rename(top.join("n77"), top.join("n77.pem")).unwrap();
        assert_eq!(found(&top, &["*.pem"]).unwrap(), shown(&[("n77.pem", Kind::File)]));
    }

    #[test]
    fn what_cannot_be_searched_is_an_error() {
        if rustix::process::geteuid().is_root() {
            return; // root reads every directory; the run as an ordinary user tests this
        }
        use std::os::unix::fs::PermissionsExt;
        let dir = tree(&["d/k.pem"]);
        let shut = std::fs::Permissions::from_mode(0o300);
        std::fs::set_permissions(dir.path().join("d"), shut).unwrap();
        assert!(matches!(found(dir.path(), &["d/*.pem"]), Err(GatherError::Unreadable { .. })));
        assert_eq!(found(dir.path(), &["d/k.pem"]).unwrap(), shown(&[("d/k.pem", Kind::File)]));
    }
}

//! Profiles as files: where they lie, which one wins, and their bytes, bounded and without waiting. What they mean
//! is `policy`'s business.

use super::fault;
use super::meant::Caller;
use crate::base::HostPath;
use crate::base::text::visible;
use crate::manifest::FILE_BYTES_MAX;
use crate::policy::{
    self, Candidate, Library, LibraryError, Origin, PROJECT_FILE, Policy, PolicyError, SearchPlace, Setting,
    is_profile_name, search_path,
};
use crate::supervise::outcome::Fault;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Names looked at in one directory of profiles.
const NAMES_MAX: usize = 4096;
/// Links followed on the way to a profile, as many as the kernel follows: path_resolution(7).
const LINKS_MAX: u32 = 40;
/// Nothing waits in open(2): not for a FIFO's other side, not for a lease.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The caller's library: user, system, and behind them the built-in profiles.
#[derive(Debug)]
pub struct Files {
    places: Vec<SearchPlace>,
}

impl Files {
    /// The library of this caller. `XDG_CONFIG_HOME` counts when it is absolute, as its specification says.
    pub fn of(caller: &Caller) -> Self {
        let mut places = search_path(caller.home.as_ref());
        let xdg = caller.var("XDG_CONFIG_HOME").map(Path::new).filter(|p| p.is_absolute());
        if let Some(dir) = xdg.and_then(|p| HostPath::new(p.join("stockade/profiles")).ok()) {
            places.retain(|p| !matches!(p, SearchPlace::User(_)));
            places.insert(0, SearchPlace::User(dir));
        }
        Self { places }
    }

    /// The profile that `choice` names: a path when it has a `/` or ends in `.toml`, else a name.
    ///
    /// # Errors
    /// When it is neither, is not there, or cannot be read.
    pub fn choose(&self, choice: &OsStr) -> Result<Candidate, Fault> {
        let bytes = choice.as_bytes();
        if bytes.contains(&b'/') || bytes.ends_with(b".toml") {
            return file(Path::new(choice), FILE_BYTES_MAX);
        }
        let name =
            choice.to_str().filter(|n| is_profile_name(n)).ok_or_else(|| fault::profile_name(bytes))?;
        let found = self.find(name).map_err(|e| fault::unreadable(&e))?;
        found.or_else(|| Candidate::embedded(name)).ok_or_else(|| fault::unknown_profile(name))
    }

    /// The directories in which profiles are looked for.
    pub fn dirs(&self) -> Vec<HostPath> {
        let dir = |place: &SearchPlace| match place {
            SearchPlace::User(dir) | SearchPlace::System(dir) => Some(dir.clone()),
            SearchPlace::Embedded => None,
        };
        self.places.iter().filter_map(dir).collect()
    }

    /// Every profile there is, in the order of the search: what comes first under a name wins.
    pub fn all(&self) -> Vec<(String, Result<Candidate, LibraryError>)> {
        let mut out = Vec::new();
        for place in &self.places {
            let (SearchPlace::User(dir) | SearchPlace::System(dir)) = place else { continue };
            for name in names(dir) {
                let Some((origin, path)) = place.file(&name) else { continue };
                let opened = openat(CWD, path.as_path(), OPEN, Mode::empty());
                match read(opened, &path, FILE_BYTES_MAX, Trust::Found) {
                    Ok(Some(bytes)) => out.push((name, Ok(Candidate::new(origin, bytes)))),
                    Ok(None) => {}
                    Err(e) => out.push((name, Err(e))),
                }
            }
        }
        for name in policy::embedded_names() {
            out.extend(Candidate::embedded(name).map(|c| ((*name).to_owned(), Ok(c))));
        }
        out
    }
}

impl Library for Files {
    fn find(&self, name: &str) -> Result<Option<Candidate>, LibraryError> {
        for (origin, path) in self.places.iter().filter_map(|place| place.file(name)) {
            let opened = openat(CWD, path.as_path(), OPEN, Mode::empty());
            if let Some(bytes) = read(opened, &path, FILE_BYTES_MAX, Trust::Found)? {
                return Ok(Some(Candidate::new(origin, bytes)));
            }
        }
        Ok(None)
    }
}

/// The profile names in `dir`, sorted; none when it cannot be listed.
fn names(dir: &HostPath) -> Vec<String> {
    let flags = OPEN | OFlags::DIRECTORY;
    let Ok(entries) = openat(CWD, dir.as_path(), flags, Mode::empty()).and_then(Dir::new) else {
        return Vec::new();
    };
    let mut out: Vec<String> = entries
        .take(NAMES_MAX)
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().to_str().ok()?.strip_suffix(".toml")?;
            is_profile_name(name).then(|| name.to_owned())
        })
        .collect();
    out.sort_unstable();
    out
}

/// What `choice` comes to where the project's own file may be named like any other: the profile, and what narrows it.
/// A `.stockade/profile.toml` narrows the default profile.
///
/// # Errors
/// See [`Files::choose`] and [`project`].
pub fn narrowed(files: &Files, choice: &OsStr) -> Result<(Candidate, Option<Candidate>), Fault> {
    let path = Path::new(choice);
    if !path.ends_with(PROJECT_FILE) {
        return Ok((files.choose(choice)?, None));
    }
    let dir = path.ancestors().nth(2).filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let workspace = super::meant::workspace(Some(dir)).map_err(|e| fault::place(&e))?;
    // Where there is none the path leads nowhere, which `choose` says.
    match project(&workspace)? {
        Some(project) => Ok((files.choose(OsStr::new(policy::DEFAULT_PROFILE))?, Some(project))),
        None => Ok((files.choose(choice)?, None)),
    }
}

/// The file that a path on the command line names, at most `max` bytes of it and one more.
///
/// # Errors
/// When it cannot be read, or is no regular file.
pub fn file(path: &Path, max: usize) -> Result<Candidate, Fault> {
    let absolute = if path.is_absolute() {
        HostPath::new(path)
    } else {
        // For messages and the result; the file is opened by the path as typed.
        HostPath::new(std::env::current_dir().unwrap_or_default().join(path))
    };
    let shown = absolute.or_else(|_| HostPath::new(std::fs::canonicalize(path).unwrap_or_default()));
    let shown = shown.map_err(|e| {
        let path = crate::base::text::visible(path.as_os_str().as_bytes());
        let mut fault = fault::arguments(e.to_string(), "name a profile file".to_owned());
        fault.object = Some(format!("--profile {path}"));
        fault
    })?;
    match read(openat(CWD, path, OPEN, Mode::empty()), &shown, max, Trust::Named) {
        Ok(Some(bytes)) => Ok(Candidate::new(Origin::File(shown), bytes)),
        Ok(None) => {
            let cause = io::Error::from(Errno::NOENT).to_string();
            Err(fault::unreadable(&LibraryError { path: shown, cause }))
        }
        Err(e) => Err(fault::unreadable(&e)),
    }
}

/// The project's narrowing. The workspace is not trusted: no link is followed in it.
///
/// # Errors
/// When it is there and is no readable regular file.
pub fn project(workspace: &HostPath) -> Result<Option<Candidate>, Fault> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A workspace that is no directory is refused by the plan, with words.
    let Ok(dir) = openat(CWD, workspace.as_path(), flags, Mode::empty()) else { return Ok(None) };
    let Ok(rel) = crate::base::RelPath::new(PROJECT_FILE) else { return Ok(None) };
    let path = workspace.join(&rel);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(&dir, PROJECT_FILE, OPEN | OFlags::NOFOLLOW, Mode::empty(), resolve);
    let bytes = read(opened, &path, FILE_BYTES_MAX, Trust::Narrows).map_err(|e| fault::unreadable(&e))?;
    Ok(bytes.map(|bytes| Candidate::new(Origin::Project(path), bytes)))
}

/// Who may have written a profile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Found by its name: the caller or root alone, and what lies on the way to it as well. Else whoever owns a
    /// directory that `HOME` leads to (which sudo may have kept) chooses the sandboxes of root.
    Found,
    /// Named by its path: not everybody.
    Named,
    /// Whoever likes: it only narrows.
    Narrows,
}

/// Whether root, the owner of `/` or the caller owns what `stat` describes.
fn owned(stat: &Stat) -> Result<(), String> {
    // In a user namespace the host's root has another number.
    let root = rustix::fs::stat("/").map_or(0, |s| s.st_uid);
    match [0, root, rustix::process::geteuid().as_raw()].contains(&stat.st_uid) {
        true => Ok(()),
        false => Err(format!("it belongs to uid {}, neither to you nor to root", stat.st_uid)),
    }
}

/// Whether nobody but them can change what `stat` describes.
fn trusted(stat: &Stat, trust: Trust) -> Result<(), String> {
    let sticky = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & 0o1000 != 0;
    let writable = if sticky { 0 } else { stat.st_mode & 0o022 };
    if writable & 0o002 != 0 && trust != Trust::Narrows {
        return Err("everybody may write to it: chmod o-w".to_owned());
    }
    if trust != Trust::Found {
        return Ok(());
    }
    owned(stat)?;
    // The caller's own group is theirs alone on most hosts, and files are then made writable for it.
    if writable & 0o020 != 0 && ![0, rustix::process::getegid().as_raw()].contains(&stat.st_gid) {
        return Err(format!("the group {} may write to it: chmod g-w", stat.st_gid));
    }
    Ok(())
}

/// The same of every directory that is gone through to reach `path`, and the owner of every link: whoever can change one
/// of them chooses the file, wherever it lies.
fn trusted_way(path: &HostPath) -> Result<(), String> {
    let parts = |path: &Path| -> Vec<OsString> {
        path.iter().rev().filter(|part| *part != "/" && *part != ".").map(OsStr::to_os_string).collect()
    };
    let mut left = parts(path.as_path());
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop() {
        let of = |at: &Path, why| format!("of {}: {why}", visible(at.as_os_str().as_bytes()));
        let words = |at: &Path, e: Errno| of(at, io::Error::from(e).to_string());
        // Before a name in it is looked up, `..` as well.
        let dir = rustix::fs::lstat(&at).map_err(|e| words(&at, e))?;
        trusted(&dir, Trust::Found).map_err(|why| of(&at, why))?;
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        let stat = rustix::fs::lstat(&at).map_err(|e| words(&at, e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            continue;
        }
        // In a sticky directory everybody can make one.
        owned(&stat).map_err(|why| of(&at, why))?;
        links += 1;
        if links > LINKS_MAX {
            return Err(words(&at, Errno::LOOP));
        }
        let to = rustix::fs::readlink(&at, Vec::new()).map_err(|e| words(&at, e))?;
        let to = Path::new(OsStr::from_bytes(to.as_bytes()));
        left.extend(parts(to));
        // The link's own directory, or the root.
        if to.is_absolute() {
            at = PathBuf::from("/")
        } else {
            at.pop();
        }
    }
    Ok(())
}

/// The bytes of an opened profile; `None` when there is none. At most one more than may be: the reader says so.
fn read(
    opened: Result<OwnedFd, Errno>,
    path: &HostPath,
    max: usize,
    trust: Trust,
) -> Result<Option<Vec<u8>>, LibraryError> {
    let fail = |cause: String| LibraryError { path: path.clone(), cause };
    let file = match opened {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::NOSYS) => {
            return Err(fail(
                "openat2 does not exist here: a sandbox around this process refuses it, as Stockade's own does, or \
                 the kernel is older than 5.6"
                    .to_owned(),
            ));
        }
        // ENXIO: a socket, or a FIFO's writing side.
        Err(e) => return Err(fail(io::Error::from(e).to_string())),
    };
    let stat = fstat(&file).map_err(|e| fail(io::Error::from(e).to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(fail("it is not a regular file".to_owned()));
    }
    trusted(&stat, trust).map_err(&fail)?;
    if trust == Trust::Found {
        trusted_way(path).map_err(&fail)?;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or(0).min(max) + 1);
    let limit = max as u64 + 1;
    std::fs::File::from(file).take(limit).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
    Ok(Some(bytes))
}

/// `--set` as meant.
///
/// # Errors
/// The first that is none.
pub fn settings(texts: &[String]) -> Result<Vec<Setting>, Fault> {
    texts.iter().map(|text| Setting::parse(text)).collect::<Result<_, _>>().map_err(|e| fault::policy(&e))
}

/// The policy of a chosen profile.
///
/// # Errors
/// The first fault of any file or setting.
pub fn load(
    files: &Files,
    root: Candidate,
    project: Option<Candidate>,
    sets: &[String],
    timeout: Option<&str>,
) -> Result<Policy, Fault> {
    let mut sets = settings(sets)?;
    let given = sets.len();
    if let Some(timeout) = timeout {
        let setting = Setting::parse(&format!("limits.wall={timeout}")).map_err(|e| fault::timeout(&e))?;
        sets.push(setting);
    }
    let wall = |e: &PolicyError| {
        e.place == policy::Place::Set
            && e.key.as_deref().is_none_or(|k| k == "limits.wall")
            && timeout.is_some()
    };
    let by_hand = sets.iter().take(given).any(|s| s.key == "limits.wall");
    policy::load(root, files, project, &sets).map_err(|e| match wall(&e) && !by_hand {
        true => fault::timeout(&e),
        false => fault::policy(&e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn caller(config: &Path) -> Caller {
        let env = BTreeMap::from([("XDG_CONFIG_HOME".into(), config.as_os_str().into())]);
        Caller { env: env.into(), home: HostPath::new("/nonexistent").ok() }
    }

    fn fails(result: Result<Candidate, Fault>) -> (&'static str, String) {
        let fault = result.unwrap_err();
        (fault.code, fault.message)
    }

    #[test]
    fn the_users_file_wins_and_shadows() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = dir.path().join("stockade/profiles");
        std::fs::create_dir_all(&profiles).unwrap();
        std::fs::write(profiles.join("offline.toml"), "version = 1\nextends = \"offline\"\n").unwrap();
        std::fs::write(profiles.join("Not A Name.toml"), "").unwrap();
        let files = Files::of(&caller(dir.path()));
        let chosen = files.choose(OsStr::new("offline")).unwrap();
        assert!(matches!(chosen.origin, Origin::User(_)));
        assert_eq!(files.choose(OsStr::new("strict")).unwrap().origin, Origin::Embedded);
        let names: Vec<String> = files.all().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["offline", "strict", "offline", "read-only", "build", "open"]);
        let policy = load(&files, chosen, None, &[], None).unwrap();
        assert_eq!(policy.origins.len(), 2);
    }

    #[test]
    fn what_is_no_profile() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).into_os_string();
        let files = Files::of(&caller(dir.path()));
        nix::unistd::mkfifo(Path::new(&at("fifo.toml")), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::create_dir(at("dir.toml")).unwrap();
        std::fs::write(at("big.toml"), vec![b'#'; FILE_BYTES_MAX + 10]).unwrap();
        assert_eq!(fails(files.choose(&at("fifo.toml"))).1, "cannot be read: it is not a regular file");
        assert_eq!(fails(files.choose(&at("dir.toml"))).1, "cannot be read: it is not a regular file");
        assert_eq!(fails(files.choose(&at("absent.toml"))).0, "profile_unreadable");
        assert_eq!(
            fails(files.choose(OsStr::new("/dev/zero"))).1,
            "cannot be read: it is not a regular file"
        );
        let big = files.choose(&at("big.toml")).unwrap();
        assert_eq!(big.bytes.len(), FILE_BYTES_MAX + 1, "read no further");
        assert_eq!(load(&files, big, None, &[], None).unwrap_err().code, "file_too_large");
        assert_eq!(fails(files.choose(OsStr::new("ofline"))).0, "unknown_profile");
        assert_eq!(fails(files.choose(OsStr::from_bytes(b"a\xff"))).0, "profile_name");
        assert_eq!(fails(files.choose(OsStr::new(""))).0, "profile_name");
    }

    #[test]
    fn what_others_can_change_is_no_profile() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = dir.path().join("stockade/profiles");
        std::fs::create_dir_all(&profiles).unwrap();
        let at = profiles.join("mine.toml");
        std::fs::write(&at, "version = 1\nextends = \"open\"\n").unwrap();
        let files = Files::of(&caller(dir.path()));
        let mode = |path: &Path, mode: u32| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        };
        let why = |choice: &OsStr| fails(files.choose(choice)).1;
        files.choose(OsStr::new("mine")).unwrap();
        mode(&at, 0o666);
        let everybody = "cannot be read: everybody may write to it: chmod o-w";
        assert_eq!(why(OsStr::new("mine")), everybody);
        assert_eq!(why(at.as_os_str()), everybody);
        assert!(files.all().iter().any(|(name, found)| name == "mine" && found.is_err()));
        mode(&at, 0o600);
        // A directory on the way counts, where a name is looked for; a path is the caller's own choice.
        mode(&profiles, 0o777);
        let of = format!("cannot be read: of {}: everybody may write to it: chmod o-w", profiles.display());
        assert_eq!(why(OsStr::new("mine")), of);
        files.choose(at.as_os_str()).unwrap();
        mode(&profiles, 0o1777);
        files.choose(OsStr::new("mine")).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&at, Some(12_345), None).unwrap();
            assert_eq!(
                why(OsStr::new("mine")),
                "cannot be read: it belongs to uid 12345, neither to you nor to root"
            );
            files.choose(at.as_os_str()).unwrap();
        }
    }

    #[test]
    fn links_on_the_way_lead_to_no_place_of_others() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        let others = at("others");
        for made in ["stockade", "others/real", "own/real", "sticky"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        for real in ["others/real", "own/real"] {
            std::fs::write(at(real).join("mine.toml"), "version = 1\nextends = \"open\"\n").unwrap();
        }
        std::os::unix::fs::symlink("../own/real", others.join("hop")).unwrap();
        std::os::unix::fs::symlink("../own/real", at("sticky/theirs")).unwrap();
        std::os::unix::fs::lchown(at("sticky/theirs"), Some(12_345), None).unwrap();
        std::fs::set_permissions(at("sticky"), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        std::os::unix::fs::chown(&others, Some(12_345), None).unwrap();
        let files = Files::of(&caller(&at("")));
        let linked = |to: &Path, name: &str| {
            let link = at("stockade").join(name);
            std::os::unix::fs::symlink(to, &link).unwrap();
            let chosen = files.choose(OsStr::new("mine"));
            std::fs::remove_file(&link).unwrap();
            chosen
        };
        let refused = |at: &Path| {
            format!(
                "cannot be read: of {}: it belongs to uid 12345, neither to you nor to root",
                at.display()
            )
        };
        // The control: a link is no fault.
        linked(&at("own/real"), "profiles").unwrap();
        linked(Path::new("../own/./real"), "profiles").unwrap();
        assert_eq!(fails(linked(&others.join("real"), "profiles")).1, refused(&others));
        assert_eq!(fails(linked(Path::new("../others/real/../../own/real"), "profiles")).1, refused(&others));
        // Two links, of which the second is theirs to change.
        assert_eq!(fails(linked(&others.join("hop"), "profiles")).1, refused(&others));
        assert_eq!(fails(linked(&at("sticky/theirs"), "profiles")).1, refused(&at("sticky/theirs")));
        std::fs::create_dir(at("stockade/profiles")).unwrap();
        assert_eq!(fails(linked(&others.join("real/mine.toml"), "profiles/mine.toml")).1, refused(&others));
    }

    #[test]
    fn a_projects_file_is_beneath_and_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = HostPath::new(dir.path().canonicalize().unwrap()).unwrap();
        assert_eq!(project(&workspace).unwrap(), None);
        std::fs::create_dir(dir.path().join(".stockade")).unwrap();
        assert_eq!(project(&workspace).unwrap(), None);
        std::fs::write(dir.path().join(".stockade/profile.toml"), "version = 1\n").unwrap();
        assert!(matches!(project(&workspace).unwrap().unwrap().origin, Origin::Project(_)));
        std::fs::rename(dir.path().join(".stockade"), dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", dir.path().join(".stockade")).unwrap();
        assert_eq!(project(&workspace).unwrap_err().code, "profile_unreadable");
    }

    #[test]
    fn a_timeout_only_narrows() {
        let files = Files { places: vec![SearchPlace::Embedded] };
        let load = |sets: &[String], timeout| {
            load(&files, Candidate::embedded("strict").unwrap(), None, sets, timeout)
        };
        assert_eq!(load(&[], Some("9m")).unwrap().limits.wall.unwrap().0, 540_000);
        let refused = load(&[], Some("11m")).unwrap_err();
        assert_eq!((refused.code, refused.object.as_deref()), ("widens", Some("--timeout")));
        assert!(refused.hint.unwrap().starts_with("at most 10m under profile `strict`"));
        assert_eq!(load(&[], Some("soon")).unwrap_err().object.as_deref(), Some("--timeout"));
        let sets = ["limits.wall=1h".to_owned()];
        assert_ne!(load(&sets, Some("1m")).unwrap_err().object.as_deref(), Some("--timeout"));
    }
}

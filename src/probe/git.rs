//! The git directory that a workspace's `.git` file names. The file is followed only when what it names is a git
//! directory that points back at this workspace, when all that says so belongs to the workspace's owner (who is the
//! caller, unless that is root) and is nobody else's to write, and when the profile lets sources come from there: else
//! whoever can write a file called `.git` could have another repository mounted.

use super::listing::names;
use super::paths::{fact, lexical, read_small};
use super::workspace::{kind_beneath, open_beneath};
use crate::base::text::visible;
use crate::base::{HostPath, RelPath};
use crate::plan::{GitFact, Kind, PathFact};
use rustix::fs::{self, AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The largest `.git`, `gitdir` and `commondir` file.
const LINK_BYTES_MAX: u64 = 4096;
/// The largest git configuration that is searched for `core.worktree`.
const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Directories visited when looking for modules and worktrees.
const VISITS_MAX: usize = 1024;
/// Names per directory there.
const NAMES_MAX: usize = 1024;

/// Names in a git directory that would make the host's git run or read what the command wrote.
const GUARDED: [&str; 7] = [
    "hooks",
    "config",
    "config.worktree",
    "info/attributes",
    "objects/info/alternates",
    "gitdir",
    "commondir",
];
const GUARDED_OF_WORKTREES: [&str; 3] = ["gitdir", "commondir", "config.worktree"];

/// What was found about `.git`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// No `.git`.
    Nothing,
    /// The git directory lies in the workspace; further names in it to protect.
    Inside(Vec<(RelPath, Kind)>),
    /// A linked worktree or submodule.
    Linked(GitFact),
    /// A `.git` that is not followed.
    Refused(String),
}

/// What decides whether a `.git` file is followed.
pub(super) struct Terms<'a> {
    /// The workspace as given.
    pub(super) path: &'a HostPath,
    /// The workspace.
    pub(super) root: &'a PathFact,
    /// Who runs us.
    pub(super) caller: u32,
    /// Below which the profile lets sources come from, and the key that says so.
    pub(super) sources: (&'a [HostPath], &'static str),
    /// Whether names in a git directory inside the workspace are listed.
    pub(super) guards: bool,
}

/// Looks at `.git` of the workspace whose descriptor is `root` and where it was `found`.
pub(super) fn of_workspace(root: &OwnedFd, found: Result<Kind, Errno>, terms: &Terms<'_>) -> Answer {
    match found {
        Err(Errno::NOENT) => Answer::Nothing,
        Err(e) => Answer::Refused(format!("`.git` cannot be looked at: {e}")),
        Ok(Kind::Dir) => {
            Answer::Inside(if terms.guards { inside(root, Path::new(".git")) } else { Vec::new() })
        }
        Ok(Kind::File) => follow(root, terms).unwrap_or_else(Answer::Refused),
        Ok(Kind::Symlink) => Answer::Refused("`.git` is a symbolic link".to_owned()),
        Ok(_) => Answer::Refused("`.git` is neither a directory nor a regular file".to_owned()),
    }
}

fn shown(path: &Path) -> String {
    visible(path.as_os_str().as_bytes())
}

fn open_dir(at: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    fs::openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The one line of a link file.
fn link(dir: &OwnedFd, name: &str) -> Result<Option<PathBuf>, String> {
    let text = match read_small(dir, name, LINK_BYTES_MAX, false) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(format!("`{name}` is longer than {LINK_BYTES_MAX} bytes")),
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(format!("`{name}` cannot be read: {e}")),
    };
    let line = text.trim_ascii_end();
    if line.is_empty() || line.contains(&0) || line.contains(&b'\n') {
        return Err(format!("`{name}` does not hold one path"));
    }
    Ok(Some(PathBuf::from(OsStr::from_bytes(line))))
}

/// Whether an object's `owner` alone decides about it. A group is let be, as git's shared repositories want.
fn whose(stat: &Stat, owner: u32, what: &str) -> Result<(), String> {
    if stat.st_uid != owner {
        return Err(format!("{what} belongs to uid {}, the workspace to uid {owner}", stat.st_uid));
    }
    if stat.st_mode & 0o002 != 0 {
        return Err(format!("{what} may be written by everybody"));
    }
    Ok(())
}

/// [`whose`], of a name in `dir`.
fn whose_at(dir: &OwnedFd, name: &str, owner: u32) -> Result<Stat, String> {
    let stat = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| format!("`{name}` cannot be looked at: {e}"))?;
    whose(&stat, owner, &format!("`{name}`")).map(|()| stat)
}

fn follow(root: &OwnedFd, terms: &Terms<'_>) -> Result<Answer, String> {
    let Terms { path, root: workspace, .. } = *terms;
    let line = link(root, ".git")?.ok_or("`.git` is gone")?;
    let to = line
        .as_os_str()
        .as_bytes()
        .strip_prefix(b"gitdir: ")
        .ok_or("`.git` does not start with `gitdir: `")?;
    let to = Path::new(OsStr::from_bytes(to));
    let dir =
        open_dir(root, to).map_err(|e| format!("its git directory {} cannot be opened: {e}", shown(to)))?;
    let git = fact(&dir).map_err(|e| format!("its git directory {} cannot be looked at: {e}", shown(to)))?;
    let shared = link(&dir, "commondir")?;
    let common_dir = match &shared {
        Some(to) => open_dir(&dir, to)
            .map_err(|e| format!("its common directory {} cannot be opened: {e}", shown(to)))?,
        None => dir.try_clone().map_err(|e| format!("no descriptor is left: {e}"))?,
    };
    let common = fact(&common_dir).map_err(|e| format!("its common directory cannot be looked at: {e}"))?;

    // In the workspace itself nothing is mounted: only more names are protected there.
    if let (Some(at), Some(common_at)) = (git.real.below(&workspace.real), common.real.below(&workspace.real))
    {
        let mut more = Vec::new();
        if terms.guards {
            more = inside(root, common_at.as_path());
            more.extend(inside(root, at.as_path()));
        }
        return Ok(Answer::Inside(more));
    }

    if terms.caller != 0 && terms.caller != workspace.uid {
        return Err(format!("the workspace belongs to uid {}, not to the caller", workspace.uid));
    }
    let owner = workspace.uid;
    let here = whose_at(root, ".git", owner)?;
    for (dir, what) in [(&dir, "its git directory"), (&common_dir, "its common directory")] {
        let stat = fs::fstat(dir).map_err(|e| format!("{what} cannot be looked at: {e}"))?;
        whose(&stat, owner, what)?;
    }
    let (sources, key) = terms.sources;
    if !sources.iter().any(|dir| common.real.is_within(dir)) {
        return Err(format!(
            "its common directory {} is outside what the profile grants ({key})",
            common.real
        ));
    }

    is_git_dir(&common_dir)?;
    match &shared {
        Some(_) => {
            let strictly = git
                .real
                .below(&common.real)
                .is_some_and(|rel| rel.depth() == 2 && rel.as_path().starts_with("worktrees"));
            if !strictly {
                return Err("its git directory is not a worktree of its common directory".to_owned());
            }
            let back = link(&dir, "gitdir")?.ok_or("its git directory names no worktree")?;
            whose_at(&dir, "gitdir", owner)?;
            let back = fs::statat(&dir, &back, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| format!("the worktree that its git directory names cannot be looked at: {e}"))?;
            if (back.st_dev, back.st_ino) != (here.st_dev, here.st_ino) {
                return Err("its git directory names another worktree".to_owned());
            }
        }
        None => {
            let back = configured_worktree(&dir, owner)?.ok_or("its git directory names no worktree")?;
            let named = open_dir(&dir, &back).and_then(fs::fstat);
            let named = named
                .map_err(|e| format!("the worktree that its git directory names cannot be looked at: {e}"))?;
            if (named.st_dev, named.st_ino) != (workspace.dev, workspace.ino) {
                return Err("its git directory names another worktree".to_owned());
            }
        }
    }
    let git_named = spelled(&path.as_path().join(to), &git);
    let common_named = match &shared {
        Some(to) => spelled(&git_named.as_path().join(to), &common),
        None => git_named.clone(),
    };
    Ok(Answer::Linked(GitFact {
        git_dir: git_named,
        common_dir: common_named,
        common_fact: common,
        protected: guarded(&common_dir, true),
    }))
}

/// `path` as text without `..`, when it leads to the same object: git inside will use that spelling. Else where
/// it really lies.
fn spelled(path: &Path, found: &PathFact) -> HostPath {
    let text = HostPath::new(lexical(path)).ok();
    let same =
        |p: &HostPath| fs::stat(p.as_path()).is_ok_and(|s| (s.st_dev, s.st_ino) == (found.dev, found.ino));
    text.filter(same).unwrap_or_else(|| found.real.clone())
}

fn is_git_dir(dir: &OwnedFd) -> Result<(), String> {
    let is =
        |name: &str, kinds: &[Kind]| kind_beneath(dir, Path::new(name)).is_ok_and(|k| kinds.contains(&k));
    if is("HEAD", &[Kind::File, Kind::Symlink]) && is("objects", &[Kind::Dir]) && is("refs", &[Kind::Dir]) {
        Ok(())
    } else {
        Err("what `.git` leads to is not a git directory (HEAD, objects, refs)".to_owned())
    }
}

/// `core.worktree` of a git directory's own configuration, which `owner` wrote.
fn configured_worktree(dir: &OwnedFd, owner: u32) -> Result<Option<PathBuf>, String> {
    let mut last = None;
    for name in ["config", "config.worktree"] {
        match read_small(dir, name, CONFIG_BYTES_MAX, false) {
            Ok(Some(text)) => {
                whose_at(dir, name, owner)?;
                last = worktree_of(&text).or(last);
            }
            Ok(None) => return Err(format!("its `{name}` is longer than {CONFIG_BYTES_MAX} bytes")),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(format!("its `{name}` cannot be read: {e}")),
        }
    }
    Ok(last)
}

/// The last `worktree` of a `[core]` section. A value in a form that we do not read is no back-reference.
fn worktree_of(config: &[u8]) -> Option<PathBuf> {
    let mut in_core = false;
    let mut last = None;
    for line in config.split(|b| *b == b'\n') {
        let mut line = line.trim_ascii();
        if let Some(rest) = line.strip_prefix(b"[") {
            let end = rest.iter().position(|b| *b == b']')?;
            in_core = rest[..end].trim_ascii().eq_ignore_ascii_case(b"core");
            line = rest[end + 1..].trim_ascii();
        }
        let Some(equals) = line.iter().position(|b| *b == b'=') else { continue };
        let (name, value) = (line[..equals].trim_ascii(), line[equals + 1..].trim_ascii());
        if in_core && name.eq_ignore_ascii_case(b"worktree") {
            last = unquote(value);
        }
    }
    last.map(|v| PathBuf::from(OsStr::from_bytes(&v)))
}

/// A value as git-config(1) writes it: quotes, `\"` and `\\`, comments.
fn unquote(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut quoted = false;
    let mut bytes = value.iter();
    while let Some(b) = bytes.next() {
        match b {
            b'"' => quoted = !quoted,
            b'\\' => match bytes.next()? {
                c @ (b'"' | b'\\') => out.push(*c),
                _ => return None,
            },
            b'#' | b';' if !quoted => break,
            b => out.push(*b),
        }
    }
    if quoted || out.contains(&0) {
        return None;
    }
    let out = if value.starts_with(b"\"") { out } else { out.trim_ascii_end().to_vec() };
    (!out.is_empty()).then_some(out)
}

/// What exists of the guarded names in the git directory behind `dir`, the links of its worktrees included;
/// `modules` (other submodules' git directories) as a whole with `whole_modules`.
fn guarded(dir: &OwnedFd, whole_modules: bool) -> Vec<(RelPath, Kind)> {
    let mut out = Vec::new();
    let mut add = |path: PathBuf| {
        if let (Ok(kind), Ok(rel)) = (kind_beneath(dir, &path), RelPath::new(&path)) {
            out.push((rel, kind));
        }
    };
    for name in GUARDED {
        add(PathBuf::from(name));
    }
    if whole_modules {
        add(PathBuf::from("modules"));
    }
    match subdirectories(dir, Path::new("worktrees")) {
        Some(names) => {
            for name in names {
                for link in GUARDED_OF_WORKTREES {
                    add(name.join(link));
                }
            }
        }
        None => add(PathBuf::from("worktrees")),
    }
    out
}

fn subdirectories(dir: &OwnedFd, path: &Path) -> Option<Vec<PathBuf>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let listing = open_beneath(dir, path, flags).and_then(|fd| names(fd, NAMES_MAX));
    match listing {
        Ok(Some(all)) => {
            Some(all.iter().map(|n| path.join(n)).filter(|p| kind_beneath(dir, p) == Ok(Kind::Dir)).collect())
        }
        Err(Errno::NOENT | Errno::NOTDIR) => Some(Vec::new()),
        // Too many entries, or closed.
        Ok(None) | Err(_) => None,
    }
}

/// The guarded names of the git directory at `at` in the workspace, and of its modules, which lie at any depth
/// below `modules` (a module's name may hold slashes).
fn inside(root: &OwnedFd, at: &Path) -> Vec<(RelPath, Kind)> {
    let mut out = Vec::new();
    let mut todo = vec![(at.to_path_buf(), true)];
    let mut visits = 0;
    // What cannot be looked through is protected as a whole: submodules can then not be updated inside.
    let whole = |mut out: Vec<(RelPath, Kind)>| {
        out.extend(RelPath::new(at.join("modules")).ok().map(|modules| (modules, Kind::Dir)));
        out
    };
    while let Some((dir, known)) = todo.pop() {
        visits += 1;
        if visits > VISITS_MAX {
            return whole(out);
        }
        let fd = match open_beneath(root, &dir, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(_) => return whole(out),
        };
        let below = if known || kind_beneath(&fd, Path::new("HEAD")).is_ok() {
            let prefixed = guarded(&fd, false)
                .into_iter()
                .filter_map(|(rel, kind)| Some((RelPath::new(dir.join(rel.as_path())).ok()?, kind)));
            out.extend(prefixed);
            subdirectories(root, &dir.join("modules"))
        } else {
            subdirectories(root, &dir)
        };
        match below {
            Some(below) => todo.extend(below.into_iter().map(|d| (d, false))),
            None => return whole(out),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::paths::gather;
    use super::super::testing::{policy, rel, request, tree};
    use super::*;
    use crate::plan::WorkspaceFact;
    use std::os::unix::fs::symlink;

    fn repository() -> tempfile::TempDir {
        let dir = tree(&[
            "main/file",
            "w/file",
            "main/.git/objects/",
            "main/.git/refs/",
            "main/.git/hooks/pre-commit",
        ]);
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("main/.git/HEAD", "ref: refs/heads/main\n");
        put("main/.git/config", "[core]\n\tbare = false\n");
        put("main/.git/info/attributes", "");
        let at = dir.path().display().to_string();
        put("main/.git/worktrees/w/HEAD", "ref: refs/heads/w\n");
        put("main/.git/worktrees/w/commondir", "../..\n");
        put("main/.git/worktrees/w/gitdir", &format!("{at}/w/.git\n"));
        put("w/.git", &format!("gitdir: {at}/main/.git/worktrees/w\n"));
        dir
    }

    fn of(dir: &Path) -> WorkspaceFact {
        let mut policy = policy();
        policy.workspace.protect = vec![rel(".git/hooks"), rel(".git/config")];
        policy.grants.rw = vec![HostPath::new("/").unwrap()];
        let path = HostPath::new(dir).unwrap();
        gather(&policy, &request(Some(&path)), None, None).unwrap().workspace.unwrap()
    }

    fn refused(dir: &Path) -> String {
        let got = of(dir);
        assert_eq!(got.git, None);
        got.git_refused.unwrap()
    }

    #[test]
    fn a_linked_worktree() {
        let dir = repository();
        let fact = of(&dir.path().join("w"));
        let git = fact.git.unwrap();
        assert_eq!(fact.git_refused, None);
        assert_eq!(git.git_dir.as_path(), dir.path().join("main/.git/worktrees/w"));
        assert_eq!(git.common_dir.as_path(), dir.path().join("main/.git"));
        let names: Vec<String> = git.protected.iter().map(|(r, _)| r.to_string()).collect();
        assert_eq!(
            names,
            ["hooks", "config", "info/attributes", "worktrees/w/gitdir", "worktrees/w/commondir"],
            "what exists"
        );
        // Relative links, as git writes with worktree.useRelativePaths.
        std::fs::write(dir.path().join("w/.git"), "gitdir: ../main/.git/worktrees/w\n").unwrap();
        std::fs::write(dir.path().join("main/.git/worktrees/w/gitdir"), "../../../../w/.git\n").unwrap();
        assert_eq!(of(&dir.path().join("w")).git.unwrap().common_dir.as_path(), dir.path().join("main/.git"));
    }

    #[test]
    fn a_git_directory_that_does_not_point_back() {
        let dir = repository();
        let w = dir.path().join("w");
        std::fs::create_dir(dir.path().join("evil")).unwrap();
        std::fs::copy(w.join(".git"), dir.path().join("evil/.git")).unwrap();
        assert!(refused(&dir.path().join("evil")).contains("another worktree"));
        std::fs::remove_file(dir.path().join("main/.git/worktrees/w/gitdir")).unwrap();
        assert!(refused(&w).contains("names no worktree"));
        // Straight at somebody's repository.
        std::fs::write(w.join(".git"), format!("gitdir: {}/main/.git\n", dir.path().display())).unwrap();
        assert!(refused(&w).contains("names no worktree"));
    }

    #[test]
    fn a_common_directory_that_is_not_the_worktrees() {
        let dir = repository();
        let other = repository();
        let link = dir.path().join("main/.git/worktrees/w/commondir");
        std::fs::write(&link, format!("{}/main/.git\n", other.path().display())).unwrap();
        assert!(refused(&dir.path().join("w")).contains("not a worktree of its common directory"));
        std::fs::write(&link, "../../..\n").unwrap();
        assert!(refused(&dir.path().join("w")).contains("not a git directory"));
    }

    #[test]
    fn submodules() {
        let dir = repository();
        let module = dir.path().join("main/.git/modules/lib/x");
        for name in ["objects", "refs", "hooks"] {
            std::fs::create_dir_all(module.join(name)).unwrap();
        }
        std::fs::write(module.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::create_dir_all(dir.path().join("main/lib/x")).unwrap();
        let sub = dir.path().join("main/lib/x");
        std::fs::write(sub.join(".git"), "gitdir: ../../.git/modules/lib/x\n").unwrap();
        std::fs::write(module.join("config"), "[core]\n\tworktree = ../../../../lib/x\n").unwrap();
        let git = of(&sub).git.unwrap();
        assert_eq!(git.common_dir.as_path(), module);
        assert_eq!(git.git_dir, git.common_dir);
        std::fs::write(module.join("config"), "[core]\n\tworktree = ../../../../..\n").unwrap();
        assert!(refused(&sub).contains("another worktree"));
        // From the superproject the module's hooks and configuration are protected in place.
        let names: Vec<String> =
            of(&dir.path().join("main")).protected.iter().map(|(r, _)| r.to_string()).collect();
        for name in
            [".git/modules/lib/x/hooks", ".git/modules/lib/x/config", ".git/worktrees/w/gitdir", ".git/hooks"]
        {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
    }

    #[test]
    fn a_git_directory_of_another_name_inside() {
        let dir = repository();
        let main = dir.path().join("main");
        std::fs::rename(main.join(".git"), main.join(".bare")).unwrap();
        std::fs::write(main.join(".git"), "gitdir: ./.bare\n").unwrap();
        let fact = of(&main);
        assert_eq!((&fact.git, &fact.git_refused), (&None, &None));
        assert!(fact.protected.iter().any(|(r, _)| *r == rel(".bare/hooks")), "{:?}", fact.protected);
    }

    #[test]
    fn hostile_git_files() {
        let dir = repository();
        let w = dir.path().join("w");
        let git = w.join(".git");
        for text in [
            "",
            "gitdir: \n",
            "gitdir:/x\n",
            "gitdir: /nonexistent\n",
            "gitdir: a\nb\n",
            "gitdir: /etc/passwd\n",
            "gitdir: /\0\n",
        ] {
            std::fs::write(&git, text).unwrap();
            assert!(!refused(&w).is_empty(), "{text:?}");
        }
        std::fs::write(&git, vec![b'x'; 5000]).unwrap();
        assert!(refused(&w).contains("longer than"));
        std::fs::write(&git, "gitdir: /\x1b[2J\n").unwrap();
        assert!(!refused(&w).contains('\x1b'));
        std::fs::remove_file(&git).unwrap();
        symlink("../main/.git", &git).unwrap();
        assert!(refused(&w).contains("symbolic link"));
        std::fs::remove_file(&git).unwrap();
        nix::unistd::mkfifo(&git, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(refused(&w).contains("neither"));
        std::fs::remove_file(&git).unwrap();
        assert_eq!(of(&w).git_refused, None);
    }

    #[test]
    fn what_is_too_much_to_look_through_is_protected_whole() {
        let dir = repository();
        let main = dir.path().join("main");
        for n in 0..=NAMES_MAX {
            std::fs::create_dir_all(main.join(format!(".git/modules/m{n}"))).unwrap();
        }
        let protected = of(&main).protected;
        assert!(protected.contains(&(rel(".git/modules"), Kind::Dir)), "{protected:?}");
    }

    #[test]
    fn another_owner() {
        if !rustix::process::geteuid().is_root() {
            return; // only root can give files away; the run as root tests this
        }
        for name in ["w/.git", "main/.git", "main/.git/worktrees/w", "main/.git/worktrees/w/gitdir"] {
            let dir = repository();
            std::os::unix::fs::chown(dir.path().join(name), Some(12_345), None).unwrap();
            assert!(refused(&dir.path().join("w")).contains("belongs to uid 12345"), "{name}");
        }
        // Inside the workspace nothing is granted by following it, and its names are held whoever owns it.
        let main = repository();
        let main = main.path().join("main");
        std::fs::rename(main.join(".git"), main.join(".bare")).unwrap();
        std::fs::write(main.join(".git"), "gitdir: .bare\n").unwrap();
        std::os::unix::fs::chown(main.join(".bare"), Some(12_345), None).unwrap();
        assert!(of(&main).protected.iter().any(|(r, _)| *r == rel(".bare/hooks")));
    }

    #[test]
    fn what_everybody_may_write_says_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        for name in ["w/.git", "main/.git", "main/.git/worktrees/w", "main/.git/worktrees/w/gitdir"] {
            let dir = repository();
            let path = dir.path().join(name);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode | 0o002)).unwrap();
            assert!(refused(&dir.path().join("w")).contains("written by everybody"), "{name}");
        }
    }

    #[test]
    fn somebody_elses_workspace_and_what_is_not_granted() {
        let dir = repository();
        let w = HostPath::new(dir.path().join("w")).unwrap();
        let root = std::fs::File::open(w.as_path()).unwrap().into();
        let fact = fact(&root).unwrap();
        let ask = |caller, granted: &Path| {
            let granted = [HostPath::new(granted).unwrap()];
            let sources = (&granted[..], "grants.rw");
            of_workspace(
                &root,
                kind_beneath(&root, Path::new(".git")),
                &Terms { path: &w, root: &fact, caller, sources, guards: true },
            )
        };
        assert!(matches!(ask(fact.uid, dir.path()), Answer::Linked(_)));
        assert!(matches!(ask(0, dir.path()), Answer::Linked(_)));
        let Answer::Refused(why) = ask(fact.uid + 1, dir.path()) else { panic!() };
        assert!(why.contains("not to the caller"), "{why}");
        let Answer::Refused(why) = ask(fact.uid, w.as_path()) else { panic!() };
        assert!(why.contains("outside what the profile grants (grants.rw)"), "{why}");
    }

    #[test]
    fn configurations() {
        let of = |text: &str| worktree_of(text.as_bytes()).map(|p| p.display().to_string());
        assert_eq!(of("[core]\n worktree = ../a b ; note\n").as_deref(), Some("../a b"));
        assert_eq!(of("[CORE] WorkTree=\"/x # y\\\\\"\n").as_deref(), Some("/x # y\\"));
        assert_eq!(of("[core]\nworktree = a\n[other]\nworktree = b\n").as_deref(), Some("a"));
        assert_eq!(of("[core \"sub\"]\nworktree = a\n"), None);
        assert_eq!(of("[core]\nworktree = \"open\n"), None);
        assert_eq!(of("[core]\nworktree = a\\\n"), None);
        assert_eq!(of("[core"), None);
        assert_eq!(of(""), None);
    }
}

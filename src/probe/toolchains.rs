//! Toolchains outside `/usr` that PATH and the usual variables name. A directory that is more than a toolchain
//! (a home, the top of a tree, system state) is left out, whatever names it; so is one that a variable names and that
//! another user owns or may write.

use super::paths::{is_top, kind, lexical, look_up, open_path};
use crate::base::{HostPath, OsBytes, RelPath};
use crate::plan::{Kind, LeftOut, PathFact, ToolchainFact};
use rustix::fs::{self, AtFlags, CWD};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Directories at most; more general ones first.
pub const TOOLCHAINS_MAX: usize = 32;
/// Entries of PATH that are looked at.
const PATH_ENTRIES_MAX: usize = 256;

/// Variables, and the default below the caller's home when unset.
const VARIABLES: [(&str, Option<&str>); 6] = [
    ("CARGO_HOME", Some(".cargo")),
    ("RUSTUP_HOME", Some(".rustup")),
    ("NVM_DIR", Some(".nvm")),
    ("PYENV_ROOT", Some(".pyenv")),
    ("GOROOT", None),
    ("JAVA_HOME", None),
];

/// Names of credential files, looked for below every toolchain.
pub(super) const CREDENTIALS: [&str; 16] = [
    "credentials",
    "credentials.toml",
    ".npmrc",
    ".pypirc",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".env",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    "etc/npmrc",
    ".ssh",
    ".aws",
    ".gnupg",
    ".docker/config.json",
    ".config/gh",
];

/// Never a toolchain themselves.
const NEVER: [&str; 13] = [
    "/", "/tmp", "/var", "/var/tmp", "/var/lib", "/run", "/home", "/root", "/mnt", "/media", "/srv", "/opt",
    "/dev/shm",
];
/// Nor anything below these.
const NEVER_BELOW: [&str; 5] = ["/etc", "/proc", "/sys", "/dev", "/boot"];

/// Finds them. Mounted where they are named, so that PATH and the variables stay true; one whose name leads
/// through a link in another toolchain is mounted where it really lies. Beside them what variables name and is not
/// shown.
pub(super) fn find(
    env: &BTreeMap<OsBytes, OsBytes>,
    home: Option<&HostPath>,
    workspace: Option<&HostPath>,
    state: Option<&HostPath>,
) -> (Vec<ToolchainFact>, Vec<LeftOut>) {
    let bounds = Bounds::new(home, workspace, state);
    let (mut found, mut kept, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for (variable, default) in VARIABLES {
        let named = match env.get(&OsBytes::from(variable)).filter(|v| !v.as_bytes().is_empty()) {
            Some(value) => named(value.as_bytes()),
            None => default.zip(home).and_then(|(d, home)| Some(home.join(&RelPath::new(d).ok()?))),
        };
        match named.map(|path| (bounds.accept(path.clone(), Some(variable)), path)) {
            Some((Ok(Some(tool)), _)) if tool.shown => kept.push(tool),
            Some((Ok(Some(tool)), _)) => found.push(tool),
            Some((Err(why), path)) => left_out.push(LeftOut { variable: variable.to_owned(), path, why }),
            Some((Ok(None), _)) | None => {}
        }
    }
    let path = env.get(&OsBytes::from("PATH")).map_or(&[][..], OsBytes::as_bytes);
    let mut seen = std::collections::BTreeSet::new();
    for entry in path.split(|b| *b == b':').take(PATH_ENTRIES_MAX).filter(|entry| seen.insert(*entry)) {
        if let Some(Ok(Some(tool))) = named(entry).map(|path| bounds.accept(path, None)) {
            found.push(tool);
        }
    }
    kept.extend(arrange(found));
    for tool in &mut kept {
        tool.credentials = credentials(&tool.path, &tool.fact, &CREDENTIALS);
    }
    (kept, left_out)
}

/// The directory that a variable's value names.
pub(super) fn named(bytes: &[u8]) -> Option<HostPath> {
    let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
    // An empty or relative entry depends on the working directory: not a toolchain.
    path.is_absolute().then(|| HostPath::new(lexical(path)).ok())?
}

/// General ones first, one per directory, those that another one already shows left out.
fn arrange(mut found: Vec<ToolchainFact>) -> Vec<ToolchainFact> {
    // A variable's entry goes before PATH's for the same directory.
    found.sort_by_key(|t| (t.fact.real.depth(), t.path.depth(), t.variable.is_none(), t.path.clone()));
    let mut kept: Vec<ToolchainFact> = Vec::new();
    for mut tool in found {
        if kept.len() == TOOLCHAINS_MAX {
            break;
        }
        // Its name lies in a tree that is mounted already ...
        if let Some(around) = kept.iter().find(|k| tool.path.is_within(&k.path)) {
            let shown = tool.fact.real.is_within(&around.fact.real);
            match (&tool.variable, shown) {
                // ... which shows it: PATH needs nothing more.
                (None, true) => continue,
                // ... and leads out of it by a link there: mounted where the link leads.
                (_, false) => tool.path = tool.fact.real.clone(),
                (Some(_), true) => {}
            }
        }
        // One target, one mount. (Two variables that name one directory: the first is set.)
        if !kept.iter().any(|k| k.path == tool.path) {
            kept.push(tool);
        }
    }
    kept
}

/// What is more than a toolchain or a cache.
pub(super) struct Bounds {
    /// The home, as named and as it really lies.
    homes: Vec<HostPath>,
    workspace: Option<HostPath>,
    state: Option<HostPath>,
}

impl Bounds {
    pub(super) fn new(
        home: Option<&HostPath>,
        workspace: Option<&HostPath>,
        state: Option<&HostPath>,
    ) -> Self {
        let real = |p: &HostPath| open_path(p.as_path()).map_or_else(|_| p.clone(), |(_, real)| real);
        Self {
            homes: home.into_iter().flat_map(|h| [h.clone(), real(h)]).collect(),
            workspace: workspace.cloned(),
            state: state.map(real),
        }
    }

    /// The toolchain at `path`; `None` when there is none, or nothing has to be done for it.
    ///
    /// # Errors
    /// Why what a variable names is not shown.
    fn accept(&self, path: HostPath, variable: Option<&str>) -> Result<Option<ToolchainFact>, String> {
        let within = |p: &HostPath, dir: &str| {
            p.as_bytes().strip_prefix(dir.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
        };
        // `/bin` and its like are the root's own, links or directories. Most entries of PATH end here, before any
        // system call.
        if is_top(&path) || (variable.is_none() && within(&path, "/usr")) {
            return Ok(None);
        }
        let Some(fact) = look_up(path.as_path()).ok().filter(|f| f.kind == Kind::Dir) else {
            return Ok(None);
        };
        let tool = |path, fact, shown| ToolchainFact {
            variable: variable.map(str::to_owned),
            path,
            fact,
            credentials: Vec::new(),
            shown,
        };
        if variable.is_some() && within(&fact.real, "/usr") {
            // By its real name: links on the way to it may not be there inside.
            return Ok(Some(tool(fact.real.clone(), fact, true)));
        }
        let base = within(&fact.real, "/usr") || is_top(&fact.real);
        let in_workspace = self.workspace.as_ref().is_some_and(|w| fact.real != *w && fact.real.is_within(w));
        if base || in_workspace {
            return Ok(None);
        }
        if self.more(&path, &fact) {
            return Err("it is more than a toolchain: a home, a workspace, or state of the system".to_owned());
        }
        if variable.is_some() {
            trusted(&fact)?;
        }
        Ok(Some(tool(path, fact, false)))
    }

    /// The cache at `path`; `None` when there is none.
    ///
    /// # Errors
    /// Why one that is there is not used.
    pub(super) fn cache(&self, path: &HostPath) -> Result<Option<PathFact>, String> {
        let Some(fact) = look_up(path.as_path()).ok().filter(|f| f.kind == Kind::Dir) else {
            return Ok(None);
        };
        // `/usr/local/cargo` and the like of images.
        let usr = [path, &fact.real].into_iter().any(|p| {
            let own = p.as_path().strip_prefix("/usr/local").is_ok_and(|rest| rest != Path::new(""));
            p.as_path().starts_with("/usr") && !own
        });
        let top = super::paths::is_top(path) || super::paths::is_top(&fact.real);
        if usr || top || self.more(path, &fact) {
            return Err("it is more than a cache: a home, a workspace, or part of the system".to_owned());
        }
        trusted(&fact)?;
        Ok(Some(fact))
    }

    /// Whether `path` is a home, the top of a tree, or state of the system.
    fn more(&self, path: &HostPath, fact: &PathFact) -> bool {
        let within = |p: &HostPath, dir: &str| p.as_path().starts_with(dir);
        [path, &fact.real].into_iter().any(|p| {
            NEVER.iter().any(|n| p.as_path() == Path::new(n))
                || NEVER_BELOW.iter().any(|n| within(p, n))
                // The home, or what holds it.
                || self.homes.iter().any(|h| h.is_within(p))
                // What holds the workspace would show its siblings; what lies in it is there anyway.
                || self.workspace.as_ref().is_some_and(|w| p.is_within(w) || w.is_within(p))
                || self.state.as_ref().is_some_and(|s| p.is_within(s) || s.is_within(p))
        })
    }
}

/// Whether what lies there is the caller's own or root's, and stays so.
fn trusted(fact: &PathFact) -> Result<(), String> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if fact.uid != uid && fact.uid != 0 {
        return Err(format!("it belongs to uid {}, neither to you nor to root", fact.uid));
    }
    let stat = fs::stat(fact.real.as_path()).map_err(|e| format!("it cannot be looked at: {e}"))?;
    if stat.st_mode & 0o002 != 0 {
        return Err("everybody may write to it: chmod o-w".to_owned());
    }
    if stat.st_mode & 0o020 != 0 && stat.st_gid != gid && stat.st_gid != 0 {
        return Err(format!("the group {} may write to it: chmod g-w", stat.st_gid));
    }
    Ok(())
}

/// The names in a directory when there are few: they are listed with fewer calls than each of many names is asked for.
fn few_entries(dir: &impl std::os::fd::AsFd) -> Option<Vec<Vec<u8>>> {
    const FEW: usize = 64;
    let mut names = Vec::with_capacity(FEW);
    for entry in fs::Dir::read_from(dir).ok()? {
        if names.len() == FEW {
            return None;
        }
        names.push(entry.ok()?.file_name().to_bytes().to_vec());
    }
    Some(names)
}

/// Those of `names` that exist below the directory at `path`, with their types.
pub(super) fn credentials(path: &HostPath, fact: &PathFact, names: &[&str]) -> Vec<(RelPath, Kind)> {
    let flags = fs::OFlags::PATH | fs::OFlags::DIRECTORY | fs::OFlags::CLOEXEC;
    let Ok(fd) = fs::openat(CWD, path.as_path(), flags, fs::Mode::empty()) else { return Vec::new() };
    let few = few_entries(&fd);
    let may_be = |name: &&&str| {
        let first = name.split('/').next().unwrap_or(name);
        few.as_ref().is_none_or(|few| few.iter().any(|entry| entry == first.as_bytes()))
    };
    let found = names.iter().filter(may_be).filter_map(|name| {
        let (rel, stat) = (RelPath::new(name).ok()?, fs::statat(&fd, *name, AtFlags::SYMLINK_NOFOLLOW).ok()?);
        match kind(stat.st_mode) {
            // A link cannot be masked: what it leads to is, when that is shown with it.
            Kind::Symlink => {
                let fact_of = look_up(path.join(&rel).as_path()).ok()?;
                Some((fact_of.real.below(&fact.real)?, fact_of.kind))
            }
            other => Some((rel, other)),
        }
    });
    let mut out: Vec<_> = found.collect();
    out.sort();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use super::super::testing::{rel, tree};
    use super::*;
    use std::os::unix::fs::symlink;

    struct Home {
        dir: tempfile::TempDir,
        env: BTreeMap<OsBytes, OsBytes>,
    }

    impl Home {
        fn new(names: &[&str]) -> Self {
            let dir = tree(names);
            std::fs::create_dir_all(dir.path().join("u")).unwrap();
            Self { dir, env: BTreeMap::new() }
        }

        fn at(&self, name: &str) -> HostPath {
            HostPath::new(self.dir.path().canonicalize().unwrap().join(name)).unwrap()
        }

        fn set(&mut self, name: &str, values: &[&str]) -> &mut Self {
            let values: Vec<String> = values
                .iter()
                .map(|v| {
                    if v.starts_with('/') || v.is_empty() {
                        (*v).to_owned()
                    } else {
                        // Not through `at`: what a variable holds need not be clean.
                        self.dir.path().canonicalize().unwrap().join(v).display().to_string()
                    }
                })
                .collect();
            self.env.insert(name.into(), values.join(":").into());
            self
        }

        fn found(&self) -> Vec<(Option<String>, String)> {
            let (home, work, state) = (self.at("u"), self.at("u/work"), self.at("u/.local/state/stockade"));
            let base = self.at("x");
            let base = base.as_path().parent().unwrap();
            find(&self.env, Some(&home), Some(&work), Some(&state))
                .0
                .into_iter()
                .map(|t| (t.variable, t.path.as_path().strip_prefix(base).unwrap().display().to_string()))
                .collect()
        }
    }

    fn wanted(list: &[(&str, &str)]) -> Vec<(Option<String>, String)> {
        list.iter().map(|(v, p)| ((!v.is_empty()).then(|| (*v).to_owned()), (*p).to_owned())).collect()
    }

    #[test]
    fn defaults_and_variables() {
        let mut h = Home::new(&["u/.cargo/bin/", "u/.rustup/", "u/.nvm", "jdk/bin/", "cargo/bin/"]);
        assert_eq!(
            h.found(),
            wanted(&[("CARGO_HOME", "u/.cargo"), ("RUSTUP_HOME", "u/.rustup")]),
            "a file is none"
        );
        h.set("CARGO_HOME", &["cargo"]).set("JAVA_HOME", &["jdk"]).set("RUSTUP_HOME", &["/nonexistent"]);
        h.set("PATH", &["/usr/bin", "/bin", "cargo/bin", "jdk/bin", "u/.cargo/bin", "", "relative"]);
        assert_eq!(h.found(), wanted(&[("CARGO_HOME", "cargo"), ("JAVA_HOME", "jdk"), ("", "u/.cargo/bin")]));
    }

    #[test]
    fn what_is_more_than_a_toolchain_is_left_out() {
        let mut h = Home::new(&[
            "u/work/node_modules/.bin/",
            "u/.local/state/stockade/cache/",
            "u/.local/bin/",
            "ok/",
        ]);
        symlink("u", h.dir.path().join("alias")).unwrap();
        symlink("/", h.dir.path().join("root")).unwrap();
        symlink("/etc", h.dir.path().join("etc")).unwrap();
        symlink("loop", h.dir.path().join("loop")).unwrap();
        symlink("nowhere", h.dir.path().join("dangling")).unwrap();
        let all = [
            "/",
            "/tmp",
            "/etc",
            "/etc/alternatives",
            "/proc/self/cwd",
            "/dev",
            "/home",
            "/var",
            "/sbin",
            "/lib/../bin",
            "u",
            "u/.",
            "u/work/..",
            "alias",
            "root",
            "etc",
            "loop",
            "dangling",
            "ok/..",
            "u/work",
            "u/work/node_modules/.bin",
            "u/.local",
            "u/.local/state",
            "u/.local/state/stockade/cache",
            "ok",
            "u/.local/bin",
        ];
        h.set("PATH", &all);
        assert_eq!(h.found(), wanted(&[("", "ok"), ("", "u/.local/bin")]));
        h.env.remove(&OsBytes::from("PATH"));
        h.set("CARGO_HOME", &["u"]).set("GOROOT", &["/etc"]).set("JAVA_HOME", &["/"]);
        assert_eq!(h.found(), wanted(&[]));
    }

    #[test]
    fn links() {
        let mut h = Home::new(&["opt/node/bin/", "u/.nvm/versions/v1/bin/", "data/cargo/bin/"]);
        symlink("versions/v1", h.dir.path().join("u/.nvm/current")).unwrap();
        symlink("../../opt/node", h.dir.path().join("u/.nvm/away")).unwrap();
        symlink("../data/cargo", h.dir.path().join("u/.cargo")).unwrap();
        h.set("PATH", &["u/.nvm/current/bin", "u/.nvm/away/bin", "u/.cargo/bin"]);
        assert_eq!(
            h.found(),
            wanted(&[("CARGO_HOME", "u/.cargo"), ("NVM_DIR", "u/.nvm"), ("", "opt/node/bin")]),
            "named by its own name; shown already; where the link leads"
        );
    }

    #[test]
    fn one_target_one_mount_and_never_too_many() {
        let mut h = Home::new(&["a/b/bin/"]);
        h.set("CARGO_HOME", &["a"])
            .set("RUSTUP_HOME", &["a/b"])
            .set("GOROOT", &["a"])
            .set("PATH", &["a/b/bin", "a", "a"]);
        assert_eq!(h.found(), wanted(&[("CARGO_HOME", "a"), ("RUSTUP_HOME", "a/b")]));
        let names: Vec<String> = (0..100).map(|n| format!("many/p{n:02}/")).collect();
        let mut h = Home::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
        h.set("PATH", &names.iter().map(|n| n.trim_end_matches('/')).collect::<Vec<_>>());
        assert_eq!(h.found().len(), TOOLCHAINS_MAX);
    }

    #[test]
    fn variables_below_usr_are_set_and_not_mounted() {
        let mut h = Home::new(&[]);
        symlink("/usr/lib", h.dir.path().join("jdk")).unwrap();
        h.set("CARGO_HOME", &["/usr/share"]).set("JAVA_HOME", &["jdk"]).set("GOROOT", &["/usr/no-such"]);
        let (found, left_out) = find(&h.env, None, None, None);
        let found: Vec<(Option<&str>, &str, bool)> = found
            .iter()
            .map(|t| (t.variable.as_deref(), t.path.as_path().to_str().unwrap(), t.shown))
            .collect();
        assert_eq!(found, [(Some("CARGO_HOME"), "/usr/share", true), (Some("JAVA_HOME"), "/usr/lib", true)]);
        assert_eq!(left_out, []);
    }

    #[test]
    fn what_others_own_or_may_write_is_left_out_and_said() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let mut h = Home::new(&["u/.cargo/", "u/.rustup/", "jdk/", "go/"]);
        h.set("JAVA_HOME", &["jdk"]).set("GOROOT", &["go"]).set("NVM_DIR", &["/etc"]);
        let mode = |name: &str, mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(h.dir.path().join(name), permissions).unwrap();
        };
        mode("jdk", 0o757);
        mode("u/.cargo", 0o1777);
        mode("go", 0o775);
        let mut said = vec![("CARGO_HOME", "everybody may write"), ("NVM_DIR", "more than a toolchain")];
        let mut shown = vec![("GOROOT", "go"), ("RUSTUP_HOME", "u/.rustup")];
        // Only root can give things away; the run as root tests the rest.
        if rustix::process::geteuid().is_root() {
            chown(h.dir.path().join("u/.rustup"), Some(12_345), None).unwrap();
            chown(h.dir.path().join("go"), None, Some(12_345)).unwrap();
            said.extend([("RUSTUP_HOME", "belongs to uid 12345"), ("GOROOT", "the group 12345 may write")]);
            shown.clear();
        }
        said.push(("JAVA_HOME", "everybody may write"));
        let left_out = find(&h.env, Some(&h.at("u")), None, None).1;
        assert_eq!(left_out.len(), said.len(), "{left_out:?}");
        for (variable, why) in said {
            assert!(left_out.iter().any(|l| l.variable == variable && l.why.contains(why)), "{left_out:?}");
        }
        assert_eq!(h.found(), wanted(&shown));
    }

    #[test]
    fn credentials_are_found() {
        let h = Home::new(&["u/.cargo/credentials.toml", "u/.cargo/config.toml", "u/.nvm/x"]);
        symlink("credentials.toml", h.dir.path().join("u/.cargo/credentials")).unwrap();
        symlink("x", h.dir.path().join("u/.nvm/.npmrc")).unwrap();
        symlink("/nowhere", h.dir.path().join("u/.nvm/.netrc")).unwrap();
        symlink("/etc/passwd", h.dir.path().join("u/.nvm/.pypirc")).unwrap();
        let found = find(&h.env, Some(&h.at("u")), None, None).0;
        assert_eq!(found[0].credentials, [(rel("credentials.toml"), Kind::File)]);
        assert_eq!(found[1].credentials, [(rel("x"), Kind::File)], "what a link leads to");
    }
}

//! Toolchains outside `/usr` that PATH and the usual variables name. A directory that is more than a toolchain
//! (a home, the top of a tree, system state) is left out, whatever names it.

use super::paths::{kind, lexical, look_up};
use crate::base::{HostPath, OsBytes, RelPath};
use crate::plan::{Kind, PathFact, ToolchainFact};
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
const CREDENTIALS: [&str; 16] = [
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
/// through a link in another toolchain is mounted where it really lies.
pub(super) fn find(
    env: &BTreeMap<OsBytes, OsBytes>,
    home: Option<&HostPath>,
    workspace: Option<&HostPath>,
    state: Option<&HostPath>,
) -> Vec<ToolchainFact> {
    let bounds = Bounds::new(home, workspace, state);
    let mut found: Vec<ToolchainFact> = Vec::new();
    for (variable, default) in VARIABLES {
        let named = match env.get(&OsBytes::from(variable)).filter(|v| !v.as_bytes().is_empty()) {
            Some(value) => named(value.as_bytes()),
            None => default.zip(home).and_then(|(d, home)| Some(home.join(&RelPath::new(d).ok()?))),
        };
        if let Some(tool) = named.and_then(|path| bounds.accept(path, Some(variable))) {
            found.push(tool);
        }
    }
    let path = env.get(&OsBytes::from("PATH")).map_or(&[][..], OsBytes::as_bytes);
    let mut seen = std::collections::BTreeSet::new();
    for entry in path.split(|b| *b == b':').take(PATH_ENTRIES_MAX).filter(|entry| seen.insert(*entry)) {
        if let Some(tool) = named(entry).and_then(|path| bounds.accept(path, None)) {
            found.push(tool);
        }
    }
    let mut kept = arrange(found);
    for tool in &mut kept {
        tool.credentials = credentials(&tool.path, &CREDENTIALS);
    }
    kept
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
        let real = |p: &HostPath| look_up(p.as_path()).map_or_else(|_| p.clone(), |f| f.real);
        Self {
            homes: home.into_iter().flat_map(|h| [h.clone(), real(h)]).collect(),
            workspace: workspace.cloned(),
            state: state.map(real),
        }
    }

    fn accept(&self, path: HostPath, variable: Option<&str>) -> Option<ToolchainFact> {
        let fact = self.directory(&path)?;
        let variable = variable.map(str::to_owned);
        Some(ToolchainFact { variable, path, fact, credentials: Vec::new() })
    }

    /// The directory at `path`, when it is one of its own.
    pub(super) fn directory(&self, path: &HostPath) -> Option<PathFact> {
        let within = |p: &HostPath, dir: &str| p.as_path().starts_with(dir);
        // Most entries of PATH end here, before any system call.
        if within(path, "/usr") {
            return None;
        }
        let fact = look_up(path.as_path()).ok().filter(|f| f.kind == Kind::Dir)?;
        let refused = [path, &fact.real].into_iter().any(|p| {
            NEVER.iter().any(|n| p.as_path() == Path::new(n))
                || NEVER_BELOW.iter().any(|n| within(p, n))
                // The home, or what holds it.
                || self.homes.iter().any(|h| h.is_within(p))
                // What holds the workspace would show its siblings; what lies in it is there anyway.
                || self.workspace.as_ref().is_some_and(|w| p.is_within(w) || w.is_within(p))
                || self.state.as_ref().is_some_and(|s| p.is_within(s) || s.is_within(p))
        });
        // `/bin` and its like are the root's own, links or directories.
        let base =
            within(&fact.real, "/usr") || super::paths::is_top(path) || super::paths::is_top(&fact.real);
        (!refused && !base).then_some(fact)
    }
}

/// Those of `names` that exist below `dir`, with their types.
pub(super) fn credentials(dir: &HostPath, names: &[&str]) -> Vec<(RelPath, Kind)> {
    let flags = fs::OFlags::PATH | fs::OFlags::DIRECTORY | fs::OFlags::CLOEXEC;
    let Ok(fd) = fs::openat(CWD, dir.as_path(), flags, fs::Mode::empty()) else { return Vec::new() };
    names
        .iter()
        .filter_map(|name| {
            let stat = fs::statat(&fd, *name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((RelPath::new(name).ok()?, kind(stat.st_mode)))
        })
        .collect()
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
    fn credentials_are_found() {
        let h = Home::new(&["u/.cargo/credentials.toml", "u/.cargo/config.toml", "u/.nvm/x"]);
        symlink("/nowhere", h.dir.path().join("u/.nvm/.npmrc")).unwrap();
        let found = find(&h.env, Some(&h.at("u")), None, None);
        assert_eq!(found[0].credentials, [(rel("credentials.toml"), Kind::File)]);
        assert_eq!(found[1].credentials, [(rel(".npmrc"), Kind::Symlink)]);
    }
}

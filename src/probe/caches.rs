//! Package caches on the host: where variables and defaults say that they lie. As with toolchains, a directory that is
//! more than a cache is left out, whatever names it.

use super::toolchains::{Bounds, CREDENTIALS, credentials, named};
use crate::base::{HostPath, OsBytes, RelPath};
use crate::plan::CachePlace;
use crate::policy::{CACHES, Cache, Tool, Top};
use std::collections::BTreeMap;

/// Names of credential files that are looked for below every cache, beside those of toolchains: any variable may name
/// any directory.
const MORE_CREDENTIALS: [&str; 4] = ["settings.xml", "settings-security.xml", "pip.conf", "npmrc"];

/// Finds those of `tools`.
pub(super) fn find(
    tools: &[Tool],
    env: &BTreeMap<OsBytes, OsBytes>,
    home: Option<&HostPath>,
    workspace: Option<&HostPath>,
    state: Option<&HostPath>,
) -> BTreeMap<&'static str, CachePlace> {
    let bounds = Bounds::new(home, workspace, state);
    let all = CACHES.iter().filter(|c| tools.contains(&c.tool));
    all.map(|cache| (cache.name, place(cache, &bounds, env, home, workspace))).collect()
}

fn place(
    cache: &Cache,
    bounds: &Bounds,
    env: &BTreeMap<OsBytes, OsBytes>,
    home: Option<&HostPath>,
    workspace: Option<&HostPath>,
) -> CachePlace {
    let candidates = match cache.variable.and_then(|v| value(env, v)) {
        // What is named is meant, and nothing else.
        Some(text) => vec![named(text)],
        None => cache.defaults.iter().map(|top| default(top, env, home)).collect(),
    };
    let mut left_out = CachePlace::Absent;
    for path in candidates.into_iter().flatten() {
        if let Some(rel) = workspace.and_then(|w| path.below(w)) {
            return CachePlace::Workspace { rel };
        }
        match bounds.cache(&path) {
            Ok(Some(fact)) => {
                let names: Vec<&str> = CREDENTIALS.into_iter().chain(MORE_CREDENTIALS).collect();
                let credentials = credentials(&path, &fact, &names);
                return CachePlace::Host { path, fact, credentials };
            }
            Ok(None) => {}
            Err(why) => left_out = CachePlace::LeftOut { path, why },
        }
    }
    left_out
}

fn value<'e>(env: &'e BTreeMap<OsBytes, OsBytes>, name: &str) -> Option<&'e [u8]> {
    env.get(&OsBytes::from(name)).map(OsBytes::as_bytes).filter(|v| !v.is_empty())
}

fn default(top: &Top, env: &BTreeMap<OsBytes, OsBytes>, home: Option<&HostPath>) -> Option<HostPath> {
    let below = |dir: HostPath, rest: &str| match rest {
        "" => Some(dir),
        rest => Some(dir.join(&RelPath::new(rest).ok()?)),
    };
    let base = match top.variable.and_then(|v| value(env, v)) {
        // GOPATH is a list.
        Some(text) => named(text.split(|b| *b == b':').next()?)?,
        None => below(home?.clone(), top.home)?,
    };
    below(base, top.rest)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{rel, tree};
    use super::*;
    use crate::plan::Kind;

    struct Host {
        dir: tempfile::TempDir,
        env: BTreeMap<OsBytes, OsBytes>,
    }

    impl Host {
        fn new(names: &[&str]) -> Self {
            let dir = tree(names);
            std::fs::create_dir_all(dir.path().join("u/work")).unwrap();
            Self { dir, env: BTreeMap::new() }
        }

        fn at(&self, name: &str) -> HostPath {
            HostPath::new(self.dir.path().canonicalize().unwrap().join(name)).unwrap()
        }

        fn set(&mut self, name: &str, value: &str) {
            let value = if value.starts_with('/') { value.to_owned() } else { self.at(value).to_string() };
            self.env.insert(name.into(), value.into());
        }

        /// The places below the temporary directory, `-` for none.
        fn found(&self) -> BTreeMap<&'static str, String> {
            let (home, work) = (self.at("u"), self.at("u/work"));
            let state = self.at("u/.local/state/stockade");
            let base = self.dir.path().canonicalize().unwrap();
            find(Tool::ALL, &self.env, Some(&home), Some(&work), Some(&state))
                .into_iter()
                .filter_map(|(name, place)| match place {
                    CachePlace::Absent | CachePlace::LeftOut { .. } => None,
                    CachePlace::Host { path, .. } => {
                        Some((name, path.as_path().strip_prefix(&base).unwrap().display().to_string()))
                    }
                    CachePlace::Workspace { rel } => Some((name, format!("workspace {rel}"))),
                })
                .collect()
        }
    }

    fn wanted(list: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
        list.iter().map(|(n, p)| (*n, (*p).to_owned())).collect()
    }

    #[test]
    fn defaults_below_the_home() {
        let host = Host::new(&[
            "u/.cargo/registry/",
            "u/.npm/",
            "u/.cache/pip/",
            "u/.cache/ccache/",
            "u/go/pkg/mod/",
            "u/.m2/repository/",
            "u/.m2/settings.xml",
        ]);
        let all = wanted(&[
            ("cargo", "u/.cargo"),
            ("npm", "u/.npm"),
            ("pip", "u/.cache/pip"),
            ("go-mod", "u/go/pkg/mod"),
            ("maven", "u/.m2/repository"),
            ("ccache", "u/.cache/ccache"),
        ]);
        assert_eq!(host.found(), all, "and no go-build, which is not there");
        let some = find(&[Tool::Go], &host.env, Some(&host.at("u")), None, None);
        assert_eq!(some.keys().copied().collect::<Vec<_>>(), ["go-build", "go-mod"]);
        assert_eq!(find(Tool::ALL, &host.env, None, None, None)["npm"], CachePlace::Absent, "without a home");
    }

    #[test]
    fn variables_say_where() {
        let mut host =
            Host::new(&["u/.npm/", "x/npm/", "x/go/pkg/mod/", "x/go2/pkg/mod/", "x/cache/pip/", "x/old/"]);
        host.set("npm_config_cache", "x/npm");
        host.set("XDG_CACHE_HOME", "x/cache");
        let list = format!("{}:{}", host.at("x/go"), host.at("x/go2"));
        host.env.insert("GOPATH".into(), list.into());
        assert_eq!(
            host.found(),
            wanted(&[("npm", "x/npm"), ("pip", "x/cache/pip"), ("go-mod", "x/go/pkg/mod")])
        );
        // One that names nothing is not replaced by the default.
        host.set("npm_config_cache", "/nonexistent");
        host.set("GOMODCACHE", "relative");
        host.env.insert("GOMODCACHE".into(), "relative".into());
        assert_eq!(host.found(), wanted(&[("pip", "x/cache/pip")]));
    }

    #[test]
    fn what_is_more_than_a_cache_is_none() {
        let mut host = Host::new(&["u/.local/state/stockade/cache/", "u/work/.npm/"]);
        std::os::unix::fs::symlink("u", host.dir.path().join("alias")).unwrap();
        for name in [
            "/",
            "/etc",
            "/tmp",
            "/usr/lib",
            "/proc/self",
            "u",
            "alias",
            "u/.local",
            "u/.local/state/stockade/cache",
        ] {
            host.set("CARGO_HOME", name);
            assert_eq!(host.found(), wanted(&[]), "{name}");
        }
        host.set("CARGO_HOME", "u/work/.cargo");
        host.set("npm_config_cache", "u/work/.npm");
        let all = wanted(&[("cargo", "workspace .cargo"), ("npm", "workspace .npm")]);
        assert_eq!(host.found(), all, "whether it exists or not");
    }

    #[test]
    fn credentials_are_found_whichever_variable_leads_to_them() {
        let mut host =
            Host::new(&["u/.cargo/credentials.toml", "u/.cargo/config.toml", "u/.cargo/.docker/config.json"]);
        let wanted = [(rel(".docker/config.json"), Kind::File), (rel("credentials.toml"), Kind::File)];
        std::os::unix::fs::symlink(".cargo", host.dir.path().join("u/alias")).unwrap();
        host.set("npm_config_cache", "u/alias");
        let found = find(&[Tool::Cargo, Tool::Npm], &host.env, Some(&host.at("u")), None, None);
        for name in ["cargo", "npm"] {
            let CachePlace::Host { credentials, .. } = &found[name] else { panic!("{found:?}") };
            assert_eq!(credentials, &wanted);
        }
    }

    #[test]
    fn what_others_may_write_is_left_out_and_said() {
        use std::os::unix::fs::PermissionsExt as _;
        let mut host = Host::new(&["x/npm/", "u/.cargo/"]);
        host.set("npm_config_cache", "x/npm");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(host.dir.path().join("x/npm"), open).unwrap();
        host.set("PIP_CACHE_DIR", "/usr/local");
        let found = find(&[Tool::Npm, Tool::Pip], &host.env, Some(&host.at("u")), None, None);
        let why = |name: &str| match &found[name] {
            CachePlace::LeftOut { why, .. } => why.clone(),
            other => panic!("{other:?}"),
        };
        assert!(why("npm").contains("everybody may write"), "{found:?}");
        assert!(why("pip").contains("more than a cache"), "{found:?}");
    }
}

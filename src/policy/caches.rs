//! Package caches as data: for each tool, which directories hold what it has downloaded or built, which variables
//! name them, where they lie when none does.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A word of a fixed list, as a profile writes it.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// All of them.
    const ALL: &'static [Self];
    /// For messages: "a tool with a cache".
    const WHAT: &'static str;

    /// The word.
    fn name(self) -> &'static str;
}

/// What a kept layer may hold when nobody says.
pub(super) const CACHE_SIZE: u64 = 1 << 30;

macro_rules! tools {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// A tool that keeps a cache.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Tool { $($(#[$doc])* $variant),+ }

        impl Tool {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in profiles.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

tools! {
    /// Rust.
    Cargo = "cargo",
    /// Node.
    Npm = "npm",
    /// Python.
    Pip = "pip",
    /// Go: modules, and what was built of them.
    Go = "go",
    /// Java.
    Maven = "maven",
    /// C and C++.
    Ccache = "ccache",
}

impl Word for Tool {
    const ALL: &'static [Self] = Tool::ALL;
    const WHAT: &'static str = "a tool whose cache is known";

    fn name(self) -> &'static str {
        Tool::name(self)
    }
}

impl Serialize for Tool {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = String::deserialize(d)?;
        let tool = Self::ALL.iter().copied().find(|t| t.name() == name);
        tool.ok_or_else(|| serde::de::Error::custom("not a tool whose cache is known"))
    }
}

/// The directory that a default place is reckoned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Top {
    /// The variable that names it; its first element when it is a list.
    pub variable: Option<&'static str>,
    /// Where it lies below the home when the variable is unset; the home itself when empty.
    pub home: &'static str,
    /// What follows; nothing when empty.
    pub rest: &'static str,
}

const fn below_home(rest: &'static str) -> Top {
    Top { variable: None, home: "", rest }
}

const fn xdg_cache(rest: &'static str) -> Top {
    Top { variable: Some("XDG_CACHE_HOME"), home: ".cache", rest }
}

/// One directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    /// Its name, in results and in the state directory.
    pub name: &'static str,
    /// Whose.
    pub tool: Tool,
    /// The variable that names it. Where there is none, it appears below the command's home, where the tool looks.
    pub variable: Option<&'static str>,
    /// Where it lies when the variable is unset: the first that exists.
    pub defaults: &'static [Top],
    /// Where it is made, below the command's home, when the host has none.
    pub inside: &'static str,
}

/// Every one. The tools' own documents say where:
/// <https://doc.rust-lang.org/cargo/guide/cargo-home.html>, <https://docs.npmjs.com/cli/using-npm/config#cache>,
/// <https://pip.pypa.io/en/stable/topics/caching/>, `go help environment`,
/// <https://maven.apache.org/configure.html>, ccache(1).
pub const CACHES: &[Cache] = &[
    // The whole of it: cargo locks `.package-cache` and writes `registry`, `git` and `.global-cache` there.
    Cache {
        name: "cargo",
        tool: Tool::Cargo,
        variable: Some("CARGO_HOME"),
        defaults: &[below_home(".cargo")],
        inside: ".cargo",
    },
    Cache {
        name: "npm",
        tool: Tool::Npm,
        variable: Some("npm_config_cache"),
        defaults: &[below_home(".npm")],
        inside: ".npm",
    },
    Cache {
        name: "pip",
        tool: Tool::Pip,
        variable: Some("PIP_CACHE_DIR"),
        defaults: &[xdg_cache("pip")],
        inside: ".cache/pip",
    },
    Cache {
        name: "go-mod",
        tool: Tool::Go,
        variable: Some("GOMODCACHE"),
        defaults: &[Top { variable: Some("GOPATH"), home: "go", rest: "pkg/mod" }],
        inside: "go/pkg/mod",
    },
    Cache {
        name: "go-build",
        tool: Tool::Go,
        variable: Some("GOCACHE"),
        defaults: &[xdg_cache("go-build")],
        inside: ".cache/go-build",
    },
    // No variable names it, and the settings beside it, which may hold passwords, are left out.
    Cache {
        name: "maven",
        tool: Tool::Maven,
        variable: None,
        defaults: &[below_home(".m2/repository")],
        inside: ".m2/repository",
    },
    Cache {
        name: "ccache",
        tool: Tool::Ccache,
        variable: Some("CCACHE_DIR"),
        defaults: &[below_home(".ccache"), xdg_cache("ccache")],
        inside: ".cache/ccache",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::RelPath;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_is_sound() {
        let mut seen = BTreeSet::new();
        for cache in CACHES {
            // It becomes a directory's name.
            assert!(cache.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", cache.name);
            assert!(seen.insert(cache.name) && seen.insert(cache.inside), "{}", cache.name);
            assert!(!cache.defaults.is_empty());
            assert!(RelPath::new(cache.inside).is_ok(), "{}", cache.inside);
        }
        for tool in Tool::ALL {
            assert!(CACHES.iter().any(|c| c.tool == *tool), "{}", tool.name());
        }
    }
}

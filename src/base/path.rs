//! Paths as values. A [`SandboxPath`] is absolute and lexically clean in the executor's own root, a
//! [`HostPath`] is absolute on the host (and means nothing until it is opened), a [`RelPath`] stays
//! beneath whatever directory it is applied to.

use super::canon::OsBytes;
use serde::{Deserialize, Deserializer, Serialize};
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The longest path that the kernel takes, its NUL included (`PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest component (`NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;

/// Why a path was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing was given.
    #[error("the path is empty")]
    Empty,
    /// Targets and sources are absolute.
    #[error("the path is relative; give an absolute one")]
    Relative,
    /// A relative pattern was expected.
    #[error("the path is absolute; give one relative to the workspace")]
    Absolute,
    /// `..` would make the meaning depend on what lies there.
    #[error("the path contains `..`; write the path that it stands for")]
    Parent,
    /// A NUL byte ends the string for the kernel.
    #[error("the path contains a NUL byte")]
    Nul,
    /// Over `PATH_MAX` or a component over `NAME_MAX`.
    #[error("the path is too long: at most {PATH_BYTES_MAX} bytes, {NAME_BYTES_MAX} in a component")]
    TooLong,
}

fn check(bytes: &[u8]) -> Result<(), PathError> {
    if bytes.is_empty() {
        return Err(PathError::Empty);
    }
    if bytes.contains(&0) {
        return Err(PathError::Nul);
    }
    if bytes.len() >= PATH_BYTES_MAX || bytes.split(|b| *b == b'/').any(|c| c.len() > NAME_BYTES_MAX) {
        return Err(PathError::TooLong);
    }
    Ok(())
}

fn clean(path: &Path, absolute: bool) -> Result<PathBuf, PathError> {
    check(path.as_os_str().as_bytes())?;
    match (path.is_absolute(), absolute) {
        (false, true) => return Err(PathError::Relative),
        (true, false) => return Err(PathError::Absolute),
        _ => {}
    }
    // Nearly every path is clean already; taking it apart and putting it together costs ten times as much as looking.
    let bytes = path.as_os_str().as_bytes();
    let clean = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    if bytes == b"/" || bytes[usize::from(absolute)..].split(|b| *b == b'/').all(clean) {
        return Ok(path.to_path_buf());
    }
    let mut out = PathBuf::with_capacity(bytes.len());
    for part in path.components() {
        match part {
            Component::RootDir => out.push("/"),
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(PathError::Parent),
        }
    }
    // `.` is the directory itself, which a path below it is not.
    if out.as_os_str().is_empty() {
        return Err(PathError::Empty);
    }
    Ok(out)
}

/// The order of clean paths by their components: that of their bytes, with the slash before everything else.
fn order(a: &[u8], b: &[u8]) -> Ordering {
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    match a.iter().zip(b).find(|(x, y)| x != y) {
        Some((x, y)) => rank(*x).cmp(&rank(*y)),
        None => a.len().cmp(&b.len()),
    }
}

macro_rules! path_type {
    ($(#[$doc:meta])* $name:ident, absolute = $absolute:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name(PathBuf);

        // `Path` compares component by component, which for paths that are clean already says the same as their
        // bytes and costs ten times as much.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.as_bytes() == other.as_bytes()
            }
        }

        impl Eq for $name {}

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.as_bytes().hash(state);
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                order(self.as_bytes(), other.as_bytes())
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Accepts and cleans `path` lexically (`//` and `/./` collapse; nothing is looked up).
            ///
            /// # Errors
            /// See [`PathError`].
            pub fn new(path: impl AsRef<Path>) -> Result<Self, PathError> {
                clean(path.as_ref(), $absolute).map(Self)
            }

            /// The path.
            pub fn as_path(&self) -> &Path {
                &self.0
            }

            /// The bytes that the kernel gets.
            pub fn as_bytes(&self) -> &[u8] {
                self.0.as_os_str().as_bytes()
            }

            /// Number of components below the root or start.
            pub fn depth(&self) -> usize {
                match self.as_bytes() {
                    b"/" => 0,
                    // Clean paths: one slash before or between components.
                    bytes => bytes.iter().filter(|b| **b == b'/').count() + usize::from(!$absolute),
                }
            }

            /// Whether `self` is `other` or lies below it.
            pub fn is_within(&self, other: &Self) -> bool {
                let (a, b) = (self.as_bytes(), other.as_bytes());
                a.starts_with(b) && (a.len() == b.len() || b == b"/" || a[b.len()] == b'/')
            }

            /// The part of `self` below `base`, when it lies strictly below.
            pub fn below(&self, base: &Self) -> Option<RelPath> {
                let rest = self.0.strip_prefix(&base.0).ok()?;
                if rest.as_os_str().is_empty() { None } else { Some(RelPath(rest.to_path_buf())) }
            }

            /// `self` extended by a relative path.
            pub fn join(&self, rel: &RelPath) -> Self {
                Self(self.0.join(&rel.0))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&super::text::visible(self.as_bytes()))
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                super::canon::serialize_bytes(self.as_bytes(), s)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let raw = OsBytes::deserialize(d)?;
                Self::new(Path::new(OsStr::from_bytes(raw.as_bytes()))).map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "anyOf": [
                        { "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX - 1 },
                        { "type": "object", "properties": { "b64": { "type": "string", "contentEncoding": "base64" } },
                          "required": ["b64"], "additionalProperties": false }
                    ]
                })
            }
        }
    };
}

path_type!(
    /// An absolute path in the executor's root.
    SandboxPath,
    absolute = true
);
path_type!(
    /// An absolute path on the host, as the caller sees it.
    HostPath,
    absolute = true
);
path_type!(
    /// A path below some directory; never empty, absolute or climbing.
    RelPath,
    absolute = false
);

impl SandboxPath {
    /// The root directory.
    pub fn root() -> Self {
        Self(PathBuf::from("/"))
    }

    /// The directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        self.0.parent().map(|p| Self(p.to_path_buf()))
    }
}

impl HostPath {
    /// The same path inside the executor.
    pub fn as_sandbox(&self) -> SandboxPath {
        SandboxPath(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_could_mean_something_else() {
        assert_eq!(SandboxPath::new(""), Err(PathError::Empty));
        assert_eq!(SandboxPath::new("a"), Err(PathError::Relative));
        assert_eq!(SandboxPath::new("/a/../b"), Err(PathError::Parent));
        assert_eq!(RelPath::new("/a"), Err(PathError::Absolute));
        assert_eq!(RelPath::new("./."), Err(PathError::Empty));
        assert_eq!(SandboxPath::new("/a\0"), Err(PathError::Nul));
        assert_eq!(SandboxPath::new(format!("/{}", "x".repeat(256))), Err(PathError::TooLong));
        assert_eq!(SandboxPath::new("/x".repeat(2048)), Err(PathError::TooLong));
        assert_eq!(SandboxPath::new("//a/./b/").unwrap().as_path(), Path::new("/a/b"));
    }

    proptest! {
        #[test]
        fn comparing_bytes_is_comparing_components(a in "(/[ab.\u{1}-]{0,2}){1,4}", b in "(/[ab.\u{1}-]{0,2}){1,4}") {
            if let (Ok(a), Ok(b)) = (SandboxPath::new(&a), SandboxPath::new(&b)) {
                prop_assert_eq!(a == b, a.as_path() == b.as_path());
                prop_assert_eq!(a.cmp(&b), a.as_path().cmp(b.as_path()));
                prop_assert_eq!(a.is_within(&b), a.as_path().starts_with(b.as_path()));
                prop_assert_eq!(a.depth(), a.as_path().components().count() - 1);
                prop_assert_eq!(a.below(&b).is_some(), a.is_within(&b) && a != b);
            }
            if let (Ok(a), Ok(b)) = (RelPath::new(&a[1..]), RelPath::new(&b[1..])) {
                prop_assert_eq!(a.cmp(&b), a.as_path().cmp(b.as_path()));
                prop_assert_eq!(a.is_within(&b), a.as_path().starts_with(b.as_path()));
                prop_assert_eq!(a.depth(), a.as_path().components().count());
            }
        }

        #[test]
        fn cleaning_is_idempotent_and_never_climbs(s in "(/[a-z.]{0,3}){1,6}") {
            if let Ok(p) = SandboxPath::new(&s) {
                prop_assert_eq!(SandboxPath::new(p.as_path()).unwrap(), p.clone());
                prop_assert!(!p.as_path().components().any(|c| c == Component::ParentDir));
            }
        }
    }
}

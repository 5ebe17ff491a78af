//! The profiles in the binary, and where others are looked for. The order is data; reading files is the
//! caller's.

use super::types::Origin;
use crate::base::{HostPath, RelPath};

/// The profile that wins when nobody names one.
pub const DEFAULT_PROFILE: &str = "offline";
/// The profile under every file that has no `extends`.
pub const FLOOR_PROFILE: &str = "strict";
/// The project's narrowing, relative to the workspace.
pub const PROJECT_FILE: &str = ".stockade/profile.toml";
/// The directory of [`PROJECT_FILE`].
pub const PROJECT_DIR: &str = ".stockade";
/// The name of [`PROJECT_FILE`] in it.
pub const PROJECT_LEAF: &str = "profile.toml";
/// The longest profile name.
pub const PROFILE_NAME_MAX: usize = 64;

const EMBEDDED: &[(&str, &str)] = &[
    ("strict", include_str!("../../policies/strict.toml")),
    ("offline", include_str!("../../policies/offline.toml")),
    ("read-only", include_str!("../../policies/read-only.toml")),
    ("build", include_str!("../../policies/build.toml")),
    ("open", include_str!("../../policies/open.toml")),
];
const NAMES: &[&str] = &["strict", "offline", "read-only", "build", "open"];

/// The text of a built-in profile.
pub fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// The names of the built-in profiles.
pub fn embedded_names() -> &'static [&'static str] {
    NAMES
}

/// Whether `name` can be a profile's; such a name is also a safe file name.
pub fn is_profile_name(name: &str) -> bool {
    let tail = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_';
    name.len() <= PROFILE_NAME_MAX
        && name.bytes().all(tail)
        && name.bytes().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// One place where profiles are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchPlace {
    /// `~/.config/stockade/profiles`.
    User(HostPath),
    /// `/etc/stockade/profiles`.
    System(HostPath),
    /// The binary.
    Embedded,
}

impl SearchPlace {
    /// The file that would hold profile `name` here; none for the binary, or when `name` isn't a name.
    pub fn file(&self, name: &str) -> Option<(Origin, HostPath)> {
        if !is_profile_name(name) {
            return None;
        }
        let leaf = RelPath::new(format!("{name}.toml")).ok()?;
        match self {
            Self::User(dir) => Some((Origin::User(dir.join(&leaf)), dir.join(&leaf))),
            Self::System(dir) => Some((Origin::System(dir.join(&leaf)), dir.join(&leaf))),
            Self::Embedded => None,
        }
    }
}

/// Where a profile's name is looked up, first to last.
pub fn search_path(home: Option<&HostPath>) -> Vec<SearchPlace> {
    let mut places = Vec::with_capacity(3);
    if let (Some(home), Ok(below)) = (home, RelPath::new(".config/stockade/profiles")) {
        places.push(SearchPlace::User(home.join(&below)));
    }
    if let Ok(system) = HostPath::new("/etc/stockade/profiles") {
        places.push(SearchPlace::System(system));
    }
    places.push(SearchPlace::Embedded);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_agree() {
        assert_eq!(NAMES.to_vec(), EMBEDDED.iter().map(|(n, _)| *n).collect::<Vec<_>>());
        assert_eq!(PROJECT_FILE, format!("{PROJECT_DIR}/{PROJECT_LEAF}"));
        assert!(embedded(DEFAULT_PROFILE).is_some() && embedded(FLOOR_PROFILE).is_some());
    }

    #[test]
    fn the_search_path_is_user_system_binary() {
        let home = HostPath::new("/home/u").unwrap();
        let path = search_path(Some(&home));
        assert_eq!(path.len(), 3);
        assert_eq!(
            path[0].file("mine").unwrap().1,
            HostPath::new("/home/u/.config/stockade/profiles/mine.toml").unwrap()
        );
        assert_eq!(search_path(None).len(), 2);
        for bad in ["../x", "a/b", "", ".", "A", "a.b", "-a"] {
            assert_eq!(path[0].file(bad), None, "{bad}");
        }
    }
}

//! The data files of `policies/seccomp/`: which calls exist in which set, and which are refused.
//!
//! Parsed once per process. The files are compiled in, so a fault in them is ours; it is still an
//! error value, because a sandbox that can't read its own policy refuses and doesn't crash.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::Error;

/// The files, in the order in which sets are listed.
const SETS: [(&str, &str); 6] = [
    ("base.toml", include_str!("../../../policies/seccomp/base.toml")),
    ("process.toml", include_str!("../../../policies/seccomp/process.toml")),
    ("schedule.toml", include_str!("../../../policies/seccomp/schedule.toml")),
    ("ipc.toml", include_str!("../../../policies/seccomp/ipc.toml")),
    ("network.toml", include_str!("../../../policies/seccomp/network.toml")),
    ("confine.toml", include_str!("../../../policies/seccomp/confine.toml")),
];

const REFUSED: (&str, &str) = ("refused.toml", include_str!("../../../policies/seccomp/refused.toml"));

/// The one format version these files have.
const VERSION: u32 = 1;

/// A named set of calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    version: u32,
    pub(super) name: String,
    pub(super) description: String,
    #[serde(rename = "call")]
    pub(super) groups: Vec<Group>,
}

/// Calls that are allowed for one reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) names: Vec<String>,
    pub(super) why: String,
}

/// What a refused call answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Answer {
    /// "Operation not permitted": known dangerous.
    #[default]
    EPERM,
    /// "Function not implemented": the caller is known to fall back on it.
    ENOSYS,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedFile {
    version: u32,
    call: Vec<RefusedGroup>,
}

/// Calls that are refused for one reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefusedGroup {
    pub(super) names: Vec<String>,
    #[serde(default)]
    pub(super) answer: Answer,
    #[serde(default)]
    pub(super) grantable: bool,
    pub(super) why: String,
}

/// All data files, parsed.
#[derive(Clone, Debug)]
pub(super) struct Catalogue {
    pub(super) sets: Vec<Set>,
    pub(super) refused: Vec<RefusedGroup>,
}

impl Catalogue {
    pub(super) fn set(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| set.name == name)
    }

    pub(super) fn refusal(&self, call: &str) -> Option<&RefusedGroup> {
        self.refused.iter().find(|group| group.names.iter().any(|name| name == call))
    }
}

impl Set {
    pub(super) fn calls(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().flat_map(|group| &group.names).map(String::as_str)
    }
}

/// The embedded catalogue.
pub(super) fn embedded() -> Result<&'static Catalogue, Error> {
    static CATALOGUE: LazyLock<Result<Catalogue, Error>> = LazyLock::new(|| parse(&SETS, REFUSED));
    CATALOGUE.as_ref().map_err(Clone::clone)
}

/// Line and column, both from one, at which `refused.toml` names a call.
pub(super) fn refused_at(call: &str) -> (usize, usize) {
    let text = REFUSED.1;
    let before = &text[..text.find(&format!("\"{call}\"")).unwrap_or(0)];
    let line = before.rsplit('\n').next().unwrap_or_default();
    (1 + before.matches('\n').count(), 1 + line.chars().count())
}

fn parse(sets: &[(&'static str, &str)], refused: (&'static str, &str)) -> Result<Catalogue, Error> {
    let fault = |file, detail: String| Error::Catalogue { file, detail };
    let sets = sets
        .iter()
        .map(|(file, text)| {
            let set: Set = toml::from_str(text).map_err(|error| fault(file, error.to_string()))?;
            check_version(file, set.version)?;
            Ok(set)
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let (file, text) = refused;
    let refused: RefusedFile = toml::from_str(text).map_err(|error| fault(file, error.to_string()))?;
    check_version(file, refused.version)?;
    let catalogue = Catalogue { sets, refused: refused.call };

    // One call, one place: else the order of look-ups would decide what a call answers.
    let mut seen = BTreeSet::new();
    let allowed = catalogue.sets.iter().flat_map(|set| set.calls().map(|call| (set.name.as_str(), call)));
    let denied =
        catalogue.refused.iter().flat_map(|group| &group.names).map(|call| ("refused", call.as_str()));
    for (place, call) in allowed.chain(denied) {
        if !super::table::is_call(call) {
            return Err(fault("policies/seccomp", format!("`{call}` in {place} is no system call")));
        }
        if !seen.insert(call) {
            return Err(fault("policies/seccomp", format!("`{call}` stands in {place} and once more")));
        }
    }
    Ok(catalogue)
}

fn check_version(file: &'static str, version: u32) -> Result<(), Error> {
    match version {
        VERSION => Ok(()),
        other => Err(Error::Catalogue { file, detail: format!("version {other}, expected {VERSION}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str =
        "version = 1\nname = \"base\"\ndescription = \"d\"\n[[call]]\nnames = [\"read\"]\nwhy = \"w\"\n";
    const NONE: (&str, &str) = ("refused.toml", "version = 1\ncall = []\n");

    fn detail(sets: &[(&'static str, &str)], refused: (&'static str, &str)) -> String {
        parse(sets, refused).unwrap_err().to_string()
    }

    #[test]
    fn the_embedded_files_parse_and_every_entry_says_why() {
        let catalogue = embedded().unwrap();
        for (index, set) in catalogue.sets.iter().enumerate() {
            assert_eq!(format!("{}.toml", set.name), SETS[index].0);
            assert!(!set.description.is_empty());
            assert!(
                set.groups.iter().all(|group| group.why.len() > 10 && !group.names.is_empty()),
                "{}",
                set.name
            );
        }
        assert!(catalogue.refused.iter().all(|group| group.why.len() > 10 && !group.names.is_empty()));
    }

    #[test]
    fn faults_name_the_file_and_the_call() {
        assert!(parse(&[("base.toml", BASE)], NONE).is_ok());
        assert!(detail(&[("base.toml", BASE), ("again.toml", BASE)], NONE).contains("`read` stands in base"));
        let typo = BASE.replace("read", "raed");
        assert!(detail(&[("base.toml", &typo)], NONE).contains("`raed` in base is no system call"));
        let newer = BASE.replace("version = 1", "version = 2");
        assert!(detail(&[("base.toml", &newer)], NONE).contains("base.toml: version 2"));
        let unknown = BASE.replace("why", "because");
        assert!(detail(&[("base.toml", &unknown)], NONE).contains("base.toml"));
        let both = ("refused.toml", "version = 1\n[[call]]\nnames = [\"read\"]\nwhy = \"w\"\n");
        assert!(detail(&[("base.toml", BASE)], both).contains("`read` stands in refused"));
    }
}

//! The built-in profiles with all that they extend, merged beforehand: reading and merging their files took a fifth of
//! a start. Nothing here decides anything: the test below reads the files and compares, and rewrites what is kept
//! when `STOCKADE_WRITE_DOCS` is set. Each is kept in the form that its digest covers.

use super::types::{Origin, Policy};

/// A name, how many files were merged, and what they come to.
const SHIPPED: [(&str, usize, &str); 4] = [
    ("strict", 2, include_str!("shipped/strict.json")),
    ("offline", 1, include_str!("shipped/offline.json")),
    ("read-only", 2, include_str!("shipped/read-only.json")),
    ("open", 2, include_str!("shipped/open.json")),
];

/// The policy of the built-in profile `name`.
pub(super) fn policy(name: &str) -> Option<Policy> {
    let (_, files, text) = SHIPPED.iter().find(|(n, ..)| *n == name)?;
    let mut policy: Policy = serde_json::from_str(text).ok()?;
    policy.origins = vec![Origin::Embedded; *files];
    Some(policy)
}

#[cfg(test)]
mod tests {
    use super::super::{embedded_names, load::from_files};
    use super::*;

    #[test]
    fn each_is_what_its_files_say() {
        assert_eq!(embedded_names(), SHIPPED.map(|(name, ..)| name));
        for (name, _, text) in SHIPPED {
            let fresh = from_files(name);
            let json = String::from_utf8(crate::base::canonical_json(&fresh).unwrap()).unwrap();
            if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
                let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/policy/shipped");
                std::fs::write(format!("{dir}/{name}.json"), json).unwrap();
                continue;
            }
            assert_eq!(text, json, "set STOCKADE_WRITE_DOCS=1 to write them, and test again without");
            assert_eq!(policy(name), Some(fresh), "with all that the files say, and as many of them");
        }
    }
}

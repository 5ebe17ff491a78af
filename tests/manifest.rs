//! One fixture per mistake, each with its message as a golden; valid ones with what they resolve to.
//! Profiles are loaded as the command line loads `--profile PATH`, over the built-in ones.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop there")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use stockade::base::HostPath;
use stockade::policy::{Candidate, EmbeddedOnly, Origin, Policy, PolicyError, load};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/manifest");
const SNAPSHOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots");

fn fixtures(kind: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(Path::new(FIXTURES).join(kind))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            assert_eq!(
                path.extension().and_then(|e| e.to_str()),
                Some("toml"),
                "stray file {}",
                path.display()
            );
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)
        })
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn load_file(name: &str, path: &Path) -> Result<Policy, PolicyError> {
    // A fixed origin, so that the golden does not know where the repository is.
    let origin = Origin::File(HostPath::new(format!("/p/{name}.toml")).unwrap());
    load(Candidate::new(origin, std::fs::read(path).unwrap()), &EmbeddedOnly, None, &[])
}

#[test]
fn every_mistake_has_its_message() {
    for (name, path) in fixtures("invalid") {
        let message = match load_file(&name, &path) {
            Ok(_) => panic!("{name} was accepted"),
            Err(e) => {
                let hint = e.hint().map(|h| format!("\nhint: {h}")).unwrap_or_default();
                format!("{e}\ncode: {}{hint}", e.code())
            }
        };
        assert!(
            !message.chars().any(|c| c.is_control() && c != '\n'),
            "{name}: a message must be safe to print"
        );
        insta::assert_snapshot!(format!("invalid__{name}"), message);
    }
}

#[test]
fn valid_files_mean_what_they_say() {
    for (name, path) in fixtures("valid") {
        let policy = load_file(&name, &path).unwrap_or_else(|e| panic!("{name}: {e}"));
        insta::assert_json_snapshot!(format!("valid__{name}"), policy);
    }
}

#[test]
fn no_golden_is_left_over() {
    let expected: BTreeSet<String> = ["invalid", "valid"]
        .into_iter()
        .flat_map(|kind| {
            fixtures(kind).into_iter().map(move |(name, _)| format!("manifest__{kind}__{name}.snap"))
        })
        .collect();
    let found: BTreeSet<String> = std::fs::read_dir(SNAPSHOTS)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("manifest__"))
        .collect();
    assert_eq!(found, expected);
}

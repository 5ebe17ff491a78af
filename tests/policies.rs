//! The shipped profiles: each parses, each key has its reason, and what each means is a golden.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop there")]

use stockade::manifest::{KEYS, Shape, parse_profile, profile_schema};
use stockade::policy::{Candidate, EmbeddedOnly, embedded, embedded_names, load, settable_keys};

#[test]
fn every_key_has_a_reason() {
    for name in embedded_names() {
        let file = parse_profile(embedded(name).unwrap().as_bytes()).unwrap();
        let said = |path: &str| file.spans.contains(path);
        let told = ["version", "name", "summary", "why"];
        for key in KEYS.iter().filter(|k| said(k.path) && !told.contains(&k.path) && k.shape != Shape::Mounts)
        {
            assert!(
                file.doc.why.get(key.path).is_some_and(|why| why.len() > 5),
                "{name}: {} has no reason",
                key.path
            );
        }
        for (i, mount) in file.doc.mounts.iter().enumerate() {
            assert!(mount.why.is_some(), "{name}: mounts[{i}] has no reason");
        }
        assert_eq!(file.doc.name.as_deref(), Some(*name));
        assert!(file.doc.summary.is_some());
    }
}

#[test]
fn the_default_profile_is_complete() {
    // It extends nothing, so what it does not say would be decided by code.
    let file = parse_profile(embedded("offline").unwrap().as_bytes()).unwrap();
    let absent: Vec<&str> = KEYS.iter().map(|k| k.path).filter(|path| !file.spans.contains(path)).collect();
    assert_eq!(absent, ["extends", "root.dir", "mounts"]);
}

#[test]
fn what_each_means() {
    for name in embedded_names() {
        let policy = load(Candidate::embedded(name).unwrap(), &EmbeddedOnly, None, &[]).unwrap();
        insta::assert_json_snapshot!(*name, policy);
        insta::assert_snapshot!(format!("{name}__digest"), policy.digest());
    }
}

#[test]
fn examples_of_environment_files_stay_visible() {
    // Masking a tracked file looks like a change to git.
    let policy = load(Candidate::embedded("offline").unwrap(), &EmbeddedOnly, None, &[]).unwrap();
    for visible in [".env.example", ".env.sample", ".env.template", ".env.test", ".env.production", ".envrc"]
    {
        let hidden = policy.workspace.hide.iter().any(|p| glob(p.as_bytes(), visible.as_bytes()));
        assert!(!hidden, "{visible}");
    }
    for hidden in [".env", ".env.local", ".env.test.local", "id_ed25519"] {
        assert!(policy.workspace.hide.iter().any(|p| glob(p.as_bytes(), hidden.as_bytes())), "{hidden}");
    }
}

/// `*` within a component, as the profile's documentation says it.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            glob(rest, name)
                || matches!(name.split_first(), Some((c, tail)) if *c != b'/' && glob(pattern, tail))
        }
        (Some((p, rest)), Some((n, tail))) => p == n && glob(rest, tail),
        _ => false,
    }
}

#[test]
fn the_schema() {
    insta::assert_json_snapshot!("schema", profile_schema());
}

#[test]
fn what_set_takes() {
    let keys: Vec<&str> = settable_keys().collect();
    insta::assert_snapshot!("settable_keys", keys.join("\n"));
}

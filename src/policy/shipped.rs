//! The built-in profiles with all that they extend, merged beforehand: reading and merging their files took a fifth of
//! a start. Nothing here decides anything: the test below reads the files, compares, and writes these anew when
//! `STOCKADE_WRITE_DOCS` is set.

use super::types::{
    Access, CacheLayer, CachesPolicy, EnvPolicy, Grants, InsideUser, Limits, NetworkPolicy, Origin,
    OutputAction::*, Policy, Posture::*, ProtectMissing, RootPolicy, SeccompPolicy, WorkspacePolicy,
};
use super::{Intent, Tool};
use crate::base::{ByteSize, CpuShare, HostPath, MemorySize::*, Millis, Need, Protection, RelPath};
use std::collections::BTreeMap;

/// The policy of the built-in profile `name`.
pub(super) fn policy(name: &str) -> Option<Policy> {
    Some(match name {
        "strict" => include!("shipped/strict.in"),
        "offline" => include!("shipped/offline.in"),
        "build" => include!("shipped/build.in"),
        "read-only" => include!("shipped/read-only.in"),
        "open" => include!("shipped/open.in"),
        _ => return None,
    })
}

fn needs(list: &[(Protection, Need)]) -> BTreeMap<Protection, Need> {
    let mut out = BTreeMap::new();
    for (protection, need) in list {
        out.insert(*protection, *need);
    }
    out
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

// The test would see a path that is none.
fn paths(list: &[&str]) -> Vec<RelPath> {
    list.iter().filter_map(|path| RelPath::new(path).ok()).collect()
}

fn hosts(list: &[&str]) -> Vec<HostPath> {
    list.iter().filter_map(|path| HostPath::new(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{embedded_names, load::from_files};
    use super::*;

    /// A policy as Rust. Taken apart by name, so that no field can be forgotten.
    fn source(policy: &Policy) -> String {
        let Policy { name, summary, origins, needs, user, hostname, time_namespace, .. } = policy;
        let Policy { root, workspace, mounts, caches, env, network, seccomp, limits, .. } = policy;
        let Policy { intents: policy_intents, grants, .. } = policy;
        let CachesPolicy { tools, layer, size } = caches;
        let RootPolicy { dir, etc, toolchains } = root;
        let WorkspacePolicy { access, protect, protect_missing, hide } = workspace;
        let EnvPolicy { pass, set, heap_hints } = env;
        let SeccompPolicy { sets, allow } = seccomp;
        let Grants { ro, rw, env, intents: may, tmpfs, root, workspace } = grants;
        assert!(mounts.is_empty() && set.is_empty() && dir.is_none(), "{name}: not foreseen here");
        let list = |items: Vec<&[u8]>| {
            let lines = items.iter().map(|item| format!("\n{:?},", std::str::from_utf8(item).unwrap()));
            format!("(&[{}])", lines.collect::<String>())
        };
        let words =
            |list_of: &[String]| format!("words{}", list(list_of.iter().map(|w| w.as_bytes()).collect()));
        let paths =
            |list_of: &[RelPath]| format!("paths{}", list(list_of.iter().map(RelPath::as_bytes).collect()));
        let hosts =
            |list_of: &[HostPath]| format!("hosts{}", list(list_of.iter().map(HostPath::as_bytes).collect()));
        let intents = |list: &[Intent]| {
            let names: Vec<String> = list.iter().map(|i| format!("Intent::{i:?}")).collect();
            format!("vec![{}]", names.join(", "))
        };
        let tools: Vec<String> = tools.iter().map(|t| format!("Tool::{t:?}")).collect();
        let needs: String =
            needs.iter().map(|(p, n)| format!("\n(Protection::{p:?}, Need::{n:?}),")).collect();
        assert!(origins.iter().all(|origin| *origin == Origin::Embedded));
        [
            "Policy {".to_owned(),
            format!("name: {name:?}.to_owned(),"),
            format!("summary: {summary:?}.to_owned(),"),
            format!("origins: vec![Origin::Embedded; {}],", origins.len()),
            format!("needs: needs(&[{needs}]),"),
            format!("user: InsideUser::{user:?},"),
            format!("hostname: {hostname:?}.to_owned(),"),
            format!("time_namespace: {time_namespace},"),
            format!("root: RootPolicy {{ dir: None, toolchains: {toolchains}, etc: {} }},", paths(etc)),
            format!("workspace: WorkspacePolicy {{ access: Access::{access:?},"),
            format!("protect_missing: ProtectMissing::{protect_missing:?},"),
            format!("protect: {},", paths(protect)),
            format!("hide: {} }},", paths(hide)),
            "mounts: Vec::new(),".to_owned(),
            format!("caches: CachesPolicy {{ tools: vec![{}],", tools.join(", ")),
            format!("layer: CacheLayer::{layer:?}, size: {size:?} }},"),
            format!(
                "env: EnvPolicy {{ heap_hints: {heap_hints}, set: BTreeMap::new(), pass: {} }},",
                words(pass)
            ),
            format!("network: {network:?},"),
            format!("seccomp: SeccompPolicy {{ sets: {}, allow: {} }},", words(sets), words(allow)),
            format!("limits: {limits:?},"),
            format!("intents: {},", intents(policy_intents)),
            format!("grants: Grants {{ intents: {},", intents(may)),
            format!("tmpfs: {tmpfs}, root: {root}, workspace: {workspace},"),
            format!("ro: {}, rw: {}, env: {} }},", hosts(ro), hosts(rw), words(env)),
            "}\n".to_owned(),
        ]
        .join("\n")
    }

    #[test]
    fn each_is_what_its_files_say() {
        for name in embedded_names() {
            let fresh = from_files(name);
            if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
                let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/policy/shipped");
                std::fs::write(format!("{dir}/{name}.in"), source(&fresh)).unwrap();
                continue;
            }
            assert_eq!(
                policy(name),
                Some(fresh),
                "set STOCKADE_WRITE_DOCS=1 to write them, and test again without"
            );
        }
    }
}

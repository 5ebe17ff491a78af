//! Narrowing, by examples and as a property: whatever a file from outside the operator's trust says, the
//! result permits nothing that the policy without it does not.

use super::merge::{Input, Mode, apply};
use super::*;
use crate::base::{HostPath, MemorySize, Need, Protection};
use crate::manifest::{ProfileFile, parse_profile};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

struct Files(BTreeMap<&'static str, String>);

impl Library for Files {
    fn find(&self, name: &str) -> Result<Option<Candidate>, LibraryError> {
        Ok(self.0.get(name).map(|text| {
            let path = HostPath::new(format!("/home/u/.config/stockade/profiles/{name}.toml")).unwrap();
            Candidate::new(Origin::User(path), text.clone().into_bytes())
        }))
    }
}

fn files(list: &[(&'static str, &str)]) -> Files {
    Files(list.iter().map(|(name, text)| (*name, format!("version = 1\n{text}"))).collect())
}

pub(super) fn built_in(name: &str) -> Policy {
    // Loaded once: the properties ask some thousand times.
    static ALL: std::sync::OnceLock<BTreeMap<&'static str, Policy>> = std::sync::OnceLock::new();
    let load_all = || {
        let load = |name| load(Candidate::embedded(name).unwrap(), &EmbeddedOnly, None, &[]).unwrap();
        embedded_names().iter().map(|name| (*name, load(name))).collect()
    };
    ALL.get_or_init(load_all)[name].clone()
}

fn from_library(name: &str, lib: &Files) -> Result<Policy, PolicyError> {
    load(lib.find(name).unwrap().unwrap(), lib, None, &[])
}

fn project(text: &str) -> Candidate {
    let origin = Origin::Project(HostPath::new("/w/.stockade/profile.toml").unwrap());
    Candidate::new(origin, format!("version = 1\n{text}").into_bytes())
}

fn narrowed(profile: &str, text: &str, sets: &[&str]) -> Result<Policy, PolicyError> {
    let sets: Vec<Setting> = sets.iter().map(|s| Setting::parse(s).unwrap()).collect();
    let project = (!text.is_empty()).then(|| project(text));
    load(Candidate::embedded(profile).unwrap(), &EmbeddedOnly, project, &sets)
}

#[test]
fn the_shipped_profiles_are_ordered() {
    let [strict, offline, read_only, build, open] =
        ["strict", "offline", "read-only", "build", "open"].map(built_in);
    assert!(offline.is_within(&build) && !build.is_within(&offline) && !build.is_within(&open));
    assert!(strict.is_within(&read_only));
    assert!(read_only.is_within(&offline));
    assert!(offline.is_within(&open));
    assert!(!open.is_within(&offline) && !offline.is_within(&read_only) && !read_only.is_within(&strict));
}

#[test]
fn a_project_narrows() {
    let base = built_in("offline");
    let p = narrowed(
        "offline",
        "[workspace]\nhide = [\"secrets\"]\naccess = \"overlay\"\n[limits]\nmemory = \"2GiB\"\n[seccomp]\nsets = [\"base\"]\n\
         [require]\nkill = \"require\"\n[[mounts]]\ntype = \"mask\"\ntarget = \"/usr/share\"",
        &["limits.wall=5m", "identity.user=root"],
    )
    .unwrap();
    assert!(p.is_within(&base));
    assert_eq!(p.workspace.hide.len(), base.workspace.hide.len() + 1);
    assert_eq!(p.limits.memory.unwrap().to_string(), "2GiB,75%");
    assert_eq!(p.limits.wall.unwrap().to_string(), "5m");
    assert_eq!(p.user, InsideUser::Root);
    assert_eq!(p.mounts.len(), 1);
    assert!(matches!(p.origins.as_slice(), [Origin::Embedded, Origin::Project(_)]));
    assert_ne!(p.digest(), base.digest());
}

#[test]
fn a_project_cannot_widen() {
    for (text, key) in [
        ("[workspace]\naccess = \"rw\"", "workspace.access"),
        ("[limits]\nwall = \"2h\"", "limits.wall"),
        ("[limits]\nmemory = \"80%\"", "limits.memory"),
        ("[limits]\nprocesses = \"none\"", "limits.processes"),
        ("[network]\nposture = \"general\"\nshare_host = true", "network.posture"),
        ("[network]\nshare_host = true", "network.share_host"),
        ("[seccomp]\nallow = [\"ptrace\"]", "seccomp.allow"),
        ("[seccomp]\nsets = [\"...\", \"admin\"]", "seccomp.sets"),
        ("[env]\npass = [\"AWS_PROFILE\"]", "env.pass"),
        ("[caches]\nuse = [\"npm\"]", "caches.use"),
        ("[intents]\nuse = [\"browser\"]", "intents.use"),
        ("[caches]\nlayer = \"kept\"", "caches.layer"),
        ("[caches]\nsize = \"2GiB\"", "caches.size"),
        ("[require]\nmounts = \"prefer\"", "require.mounts"),
        ("[root]\netc = [\"shadow\"]", "root.etc"),
        ("[[mounts]]\ntype = \"bind\"\nsource = \"/etc\"\ntarget = \"/etc\"", "mounts"),
        ("[[mounts]]\ntype = \"tmpfs\"\nsize = \"1M\"\ntarget = \"/x\"", "mounts"),
    ] {
        let e = narrowed("read-only", text, &[]).unwrap_err();
        assert_eq!((e.code(), e.key.as_deref()), ("widens", Some(key)), "{text}: {e}");
        assert!(e.hint().unwrap().contains("profile of your own"));
    }
    for (text, key) in [
        ("name = \"open\"", "name"),
        ("extends = \"open\"", "extends"),
        ("[grants]\nro = [\"/\"]", "grants"),
        ("[env]\nset = { A = \"1\" }", "env.set"),
        ("[root]\ndir = \"/x\"", "root.dir"),
    ] {
        let e = narrowed("offline", text, &[]).unwrap_err();
        assert_eq!((e.code(), e.key.as_deref()), ("not_for_projects", Some(key)), "{text}");
    }
}

#[test]
fn a_parent_covers_what_lies_below_it_and_not_the_other_way() {
    let with = |text: &str| {
        let file = parse_profile(format!("version = 1\n{text}").as_bytes()).unwrap();
        apply(built_in("offline"), &Input::file(&Origin::Embedded, &file), Mode::Extend).unwrap()
    };
    for (narrow, wide) in [
        ("workspace.protect = [\".git\"]", "workspace.protect = [\".git/hooks\"]"),
        ("workspace.hide = [\"a\"]", "workspace.hide = [\"a/b\"]"),
        ("root.etc = [\"ssl/certs\"]", "root.etc = [\"ssl\"]"),
        ("grants.rw = [\"/srv/a\"]", "grants.rw = [\"/srv\"]"),
        ("env.pass = [\"LC_ALL\"]", "env.pass = [\"LC_*\"]"),
        ("limits.memory = \"1GiB,50%\"", "limits.memory = \"1GiB\""),
    ] {
        let (narrow, wide) = (with(narrow), with(wide));
        assert!(narrow.is_within(&wide) && !wide.is_within(&narrow));
    }
}

#[test]
fn set_narrows_the_project_further_and_never_back() {
    let e = narrowed("offline", "[limits]\nwall = \"5m\"", &["limits.wall=10m"]).unwrap_err();
    assert_eq!(e.to_string(), "--set: limits.wall: `10m` is more than profile `offline` permits (`5m`)");
    let e = narrowed("open", "", &["network.loopback=false"]).unwrap_err();
    assert_eq!(e.code(), "general_needs_loopback");
    let p = narrowed("open", "", &["network.loopback=false", "network.posture=disabled"]).unwrap();
    assert!(!p.network.share_host && p.is_within(&built_in("offline")));
}

#[test]
fn extends_replaces_and_can_widen() {
    let lib = files(&[
        ("mine", "extends = \"team\"\n[workspace]\nhide = [\"...\", \"vault\"]\n[limits]\nmemory = \"4GiB\""),
        ("team", "extends = \"offline\"\n[limits]\nwall = \"none\"\n[seccomp]\nallow = [\"ptrace\"]"),
    ]);
    let p = from_library("mine", &lib).unwrap();
    let base = built_in("offline");
    assert_eq!(
        (p.name.as_str(), p.limits.wall, p.seccomp.allow.as_slice()),
        ("mine", None, &["ptrace".to_owned()][..])
    );
    assert_eq!(p.limits.memory.unwrap().to_string(), "4GiB");
    assert_eq!(p.workspace.hide.len(), base.workspace.hide.len() + 1);
    assert_eq!(p.origins.len(), 3);
}

#[test]
fn a_file_that_says_nothing_is_strict() {
    let p = from_library("mine", &files(&[("mine", "")])).unwrap();
    let strict = built_in("strict");
    assert!(p.is_within(&strict) && strict.is_within(&p));
}

#[test]
fn names_that_shadow_built_in_ones() {
    let lib = files(&[("offline", "extends = \"offline\"\n[limits]\nwall = \"1m\"")]);
    assert_eq!(from_library("offline", &lib).unwrap().limits.wall.unwrap().to_string(), "1m");
    // `strict` stands on the built-in `offline`, whatever a file of that name says.
    let strict = load(Candidate::embedded("strict").unwrap(), &lib, None, &[]).unwrap();
    assert_eq!(strict, built_in("strict"));
}

#[test]
fn chains_end() {
    let code = |name, list: &[(&'static str, &str)]| from_library(name, &files(list)).unwrap_err().code();
    assert_eq!(code("a", &[("a", "extends = \"a\"")]), "extends_cycle");
    assert_eq!(code("a", &[("a", "extends = \"b\""), ("b", "extends = \"a\"")]), "extends_cycle");
    assert_eq!(code("a", &[("a", "extends = \"ofline\"")]), "unknown_profile");
    assert_eq!(code("a", &[("a", "extends = \"../a\"")]), "profile_name");
    const NAMES: [&str; 9] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"];
    let long: Vec<(&'static str, String)> = (0..8)
        .map(|i| (NAMES[i], format!("extends = \"{}\"", NAMES[i + 1])))
        .chain([("p8", String::new())])
        .collect();
    let long: Vec<(&'static str, &str)> = long.iter().map(|(n, t)| (*n, t.as_str())).collect();
    assert_eq!(code("p0", &long), "extends_too_deep");
}

#[test]
fn a_mask_from_outside_covers_what_the_profile_mounts_below() {
    let file = |text: &str| parse_profile(format!("version = 1\n{text}").as_bytes()).unwrap();
    let origin = Origin::Embedded;
    let base = file(
        "[[mounts]]\ntype = \"bind\"\nsource = \"/data\"\ntarget = \"/data\"\nwritable = true\n\
         [[mounts]]\ntype = \"bind\"\nsource = \"/keys\"\ntarget = \"/data/keys\"",
    );
    let base = apply(built_in("offline"), &Input::file(&origin, &base), Mode::Extend).unwrap();
    let narrow = |text: &str| load::narrow(base.clone(), &Input::file(&origin, &file(text)));

    let masked = narrow("[[mounts]]\ntype = \"mask\"\ntarget = \"/data\"").unwrap();
    assert!(matches!(masked.mounts.as_slice(), [MountEntry::Mask { .. }]));
    let ro = "[[mounts]]\ntype = \"bind\"\nsource = \"/data\"\ntarget = \"/data\"";
    assert!(narrow(ro).unwrap().is_within(&base));
    assert!(narrow("[[mounts]]\ntype = \"overlay\"\nsource = \"/data\"\ntarget = \"/data\"").is_ok());
    for wider in [
        "[[mounts]]\ntype = \"bind\"\nsource = \"/keys\"\ntarget = \"/data/keys\"\nwritable = true",
        "[[mounts]]\ntype = \"bind\"\nsource = \"/other\"\ntarget = \"/data\"",
        "[[mounts]]\ntype = \"dir\"\ntarget = \"/data\"",
    ] {
        assert_eq!(narrow(wider).unwrap_err().code(), "widens", "{wider}");
    }
    // An entry that is gone shows what lay beneath it.
    let mut gone = base.clone();
    gone.mounts.pop();
    assert!(!gone.is_within(&base));
}

// ---- properties -------------------------------------------------------------------------------------

macro_rules! kinds {
    ($($kind:expr),+ $(,)?) => { vec![$($kind.boxed()),+] };
}

/// Texts of one key each, from a small world so that values meet.
fn kinds() -> Vec<BoxedStrategy<String>> {
    let size = prop::sample::select(vec!["4MiB", "64MiB", "1GiB", "none"]);
    let sizes =
        prop::sample::select(vec!["limits.output", "limits.file_size", "limits.disk", "limits.memory"]);
    let fixed = prop::sample::select(vec!["limits.locked_memory", "limits.stack", "limits.scratch"]);
    let fixed_size = prop::sample::select(vec!["1MiB", "8MiB", "1GiB"]);
    let list = |key: &'static str, items: &'static [&'static str]| {
        prop::sample::subsequence(items.to_vec(), 0..=items.len())
            .prop_map(move |items| format!("{key} = {items:?}"))
    };
    let flag = prop::sample::select(vec![
        "network.loopback",
        "root.toolchains",
        "identity.time_namespace",
        "grants.tmpfs",
        "grants.root",
        "grants.workspace",
    ]);
    let need = prop::sample::select(Protection::ALL.to_vec());
    kinds![
        (sizes, size).prop_map(|(k, v)| format!("{k} = \"{v}\"")),
        (fixed, fixed_size).prop_map(|(k, v)| format!("{k} = \"{v}\"")),
        prop::sample::select(vec!["50%", "100%", "1GiB,50%", "64MiB,100%"])
            .prop_map(|v| format!("limits.memory = \"{v}\"")),
        prop::sample::select(vec!["8", "9999", "\"none\""]).prop_map(|v| format!("limits.processes = {v}")),
        prop::sample::select(vec!["50%", "400%", "none"]).prop_map(|v| format!("limits.cpu = \"{v}\"")),
        prop::sample::select(vec!["1s", "2h", "none"]).prop_map(|v| format!("limits.wall = \"{v}\"")),
        prop::sample::select(vec!["0s", "5s"]).prop_map(|v| format!("limits.grace = \"{v}\"")),
        prop::sample::select(vec!["64", "65536"]).prop_map(|v| format!("limits.open_files = {v}")),
        prop::sample::select(vec!["256", "1000000"]).prop_map(|v| format!("limits.scratch_inodes = {v}")),
        prop::sample::select(vec!["truncate", "kill"])
            .prop_map(|v| format!("limits.output_action = \"{v}\"")),
        prop::sample::select(vec!["none", "ro", "overlay", "rw"])
            .prop_map(|v| format!("workspace.access = \"{v}\"")),
        prop::sample::select(vec!["quarantine", "overlay"])
            .prop_map(|v| format!("workspace.protect_missing = \"{v}\"")),
        prop::sample::select(vec!["agent", "root"]).prop_map(|v| format!("identity.user = \"{v}\"")),
        (flag, any::<bool>()).prop_map(|(k, v)| format!("{k} = {v}")),
        (need, any::<bool>()).prop_map(|(p, r)| format!(
            "require.{} = \"{}\"",
            p.key(),
            if r { "require" } else { "prefer" }
        )),
        prop::sample::select(vec![
            "network.posture = \"disabled\"",
            "network = { posture = \"general\", share_host = true, loopback = true }",
            "network = { posture = \"disabled\", share_host = false }",
        ])
        .prop_map(str::to_owned),
        list("workspace.hide", &["...", ".env", "a", "b*"]),
        list("workspace.protect", &["...", ".git", ".git/hooks", "c"]),
        list("root.etc", &["...", "ssl", "ssl/certs", "fonts"]),
        list("caches.use", &["...", "cargo", "npm", "go"]),
        prop::sample::select(vec!["throwaway", "kept"]).prop_map(|v| format!("caches.layer = \"{v}\"")),
        prop::sample::select(vec!["1MiB", "64GiB"]).prop_map(|v| format!("caches.size = \"{v}\"")),
        any::<bool>().prop_map(|v| format!("env.heap_hints = {v}")),
        list("env.pass", &["...", "LANG", "LC_*", "LC_ALL", "FOO"]),
        list("seccomp.sets", &["base", "process", "network"]),
        list("seccomp.allow", &["...", "ptrace", "bpf"]),
        list("grants.ro", &["/", "/usr", "/srv/data"]),
        list("grants.rw", &["/srv", "/srv/data"]),
        list("intents.use", &["browser", "gpu"]),
        list("grants.intents", &["browser", "gpu", "x11"]),
        list("grants.env", &["*", "FOO", "FOO_*", "FOO_BAR"]),
        prop::collection::btree_map(
            prop::sample::select(vec!["/m", "/m/a", "/n"]),
            prop::sample::select(vec![
                "type = \"mask\"",
                "type = \"dir\"",
                "type = \"bind\", source = \"/s\"",
                "type = \"bind\", source = \"/s\", writable = true",
                "type = \"bind\", source = \"/t\"",
                "type = \"overlay\", source = \"/s\"",
                "type = \"tmpfs\", size = \"1MiB\"",
                "type = \"tmpfs\", size = \"2MiB\"",
            ]),
            0..=3,
        )
        .prop_map(|entries| {
            let entries: Vec<String> =
                entries.iter().map(|(t, e)| format!("{{ target = \"{t}\", {e} }}")).collect();
            format!("mounts = [{}]", entries.join(", "))
        }),
    ]
}

fn line() -> impl Strategy<Value = String> {
    proptest::strategy::Union::new(kinds())
}

/// Two texts of each key.
fn two_lines_of_each() -> impl Strategy<Value = Vec<(String, String)>> {
    kinds().into_iter().map(|kind| (kind.clone(), kind)).collect::<Vec<_>>()
}

/// A file with some of the lines, each key once.
fn document() -> impl Strategy<Value = ProfileFile> {
    prop::collection::vec(line(), 0..6).prop_map(file_of)
}

/// Its text.
pub(super) fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(line(), 0..9).prop_map(text_of)
}

fn file_of(lines: Vec<String>) -> ProfileFile {
    parse_profile(text_of(lines).as_bytes()).unwrap()
}

fn text_of(lines: Vec<String>) -> String {
    let by_key: BTreeMap<String, String> = lines
        .into_iter()
        .map(|line| {
            let key = line.split(" = ").next().unwrap_or_default();
            let key = if key.starts_with("network") { "network" } else { key };
            (key.to_owned(), line)
        })
        .collect();
    let text: Vec<String> = by_key.into_values().collect();
    format!("version = 1\n{}\n", text.join("\n"))
}

pub(super) fn policy() -> impl Strategy<Value = Policy> {
    let base = prop::sample::select(super::embedded_names().to_vec()).prop_map(built_in);
    (base, prop::collection::vec(document(), 0..4)).prop_map(|(base, files)| {
        files
            .iter()
            .fold(base, |p, file| apply(p, &Input::file(&Origin::Embedded, file), Mode::Extend).unwrap())
    })
}

/// What a policy permits as a set of statements, written independently of the order it is to confirm.
pub(super) fn authority(p: &Policy) -> BTreeSet<String> {
    let mut can = BTreeSet::new();
    let mut say = |yes: bool, what: String| {
        if yes {
            can.insert(what);
        }
    };
    for protection in Protection::ALL {
        say(p.needs[protection] == Need::Prefer, format!("run without {}", protection.key()));
    }
    for name in ["LANG", "LC_ALL", "LC_TIME", "FOO", "TERM", "CI"] {
        let passes = |pattern: &String| {
            pattern == name || pattern.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix))
        };
        say(p.env.pass.iter().any(passes), format!("see {name}"));
        say(p.grants.env.iter().any(passes), format!("be given {name}"));
    }
    for tool in &p.caches.tools {
        say(true, format!("write over the cache of {}", tool.name()));
    }
    say(p.caches.layer == CacheLayer::Kept, "leave something to the next run".to_owned());
    for n in [1u64 << 20, 1 << 30, 1 << 40] {
        say(n <= p.caches.size.0, format!("leave {n}"));
    }
    for intent in &p.intents {
        say(true, format!("have {}", intent.name()));
    }
    for intent in &p.grants.intents {
        say(true, format!("be granted {}", intent.name()));
    }
    for name in &p.seccomp.sets {
        say(true, format!("use {name}"));
    }
    for name in &p.seccomp.allow {
        say(true, format!("call {name}"));
    }
    for file in [".env", "a", ".git/hooks", ".git", "c"] {
        let under = |list: &[crate::base::RelPath]| {
            list.iter().any(|l| std::path::Path::new(file).starts_with(l.as_path()))
        };
        say(p.workspace.access != Access::None && !under(&p.workspace.hide), format!("read {file}"));
        say(p.workspace.access == Access::Rw && !under(&p.workspace.protect), format!("change {file}"));
    }
    say(p.workspace.access >= Access::Overlay, "write a view of the workspace".to_owned());
    say(p.network.posture == Posture::General, "reach the world".to_owned());
    say(p.network.loopback, "make internet sockets".to_owned());
    say(p.root.toolchains, "read toolchains".to_owned());
    for path in ["/usr", "/srv/data", "/srv/x", "/home"] {
        let below =
            |list: &[HostPath]| list.iter().any(|l| std::path::Path::new(path).starts_with(l.as_path()));
        say(below(&p.grants.ro), format!("be shown {path}"));
        say(below(&p.grants.rw), format!("be handed {path}"));
    }
    say(p.grants.tmpfs, "get a tmpfs".to_owned());
    say(p.grants.root, "get a root".to_owned());
    say(p.grants.workspace, "get a workspace".to_owned());
    for host in [1u64 << 21, 1 << 30, 1 << 36] {
        for want in [1u64 << 20, 1 << 21, 1 << 26, 1 << 29, 1 << 30, 1 << 34] {
            let fits = p.limits.memory.is_none_or(|m: MemorySize| want <= m.resolve(host));
            say(fits, format!("use {want} of {host}"));
        }
    }
    for n in [1u64, 500, 5000, 1 << 40] {
        let l = &p.limits;
        say(l.processes.is_none_or(|m| n <= m), format!("have {n} processes"));
        say(l.cpu.is_none_or(|m| n <= u64::from(m.0)), format!("burn {n}%"));
        say(l.wall.is_none_or(|m| n <= m.0), format!("last {n} ms"));
        say(l.disk.is_none_or(|m| n <= m.0), format!("grow by {n}"));
        say(l.output.is_none_or(|m| n <= m.0), format!("print {n}"));
        say(n <= l.scratch.0, format!("keep {n}"));
        say(n <= l.open_files, format!("open {n}"));
    }
    // The innermost entry over a path decides what is seen there; nothing there is the built root's own.
    for path in ["/m", "/m/x", "/m/a", "/m/a/x", "/n"] {
        let over = p
            .mounts
            .iter()
            .filter(|m| std::path::Path::new(path).starts_with(m.target().as_path()))
            .max_by_key(|m| m.target().depth());
        match over {
            None => say(true, format!("see the root's {path}")),
            Some(MountEntry::Mask { .. }) => {}
            Some(MountEntry::Bind { source, writable, target, .. }) => {
                say(true, format!("read {source} at {target} as {path}"));
                say(*writable, format!("write {source} at {target} as {path}"));
            }
            Some(MountEntry::Overlay { source, target, .. }) => {
                say(true, format!("read {source} at {target} as {path}"))
            }
            Some(other) => say(true, format!("see {:?} as {path}", std::mem::discriminant(other))),
        }
    }
    can
}

/// Few where each case is slow.
pub(super) fn cases() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(debug_assertions) { 128 } else { 4096 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn narrowing_never_widens(base in policy(), file in document()) {
        if let Ok(result) = load::narrow(base.clone(), &Input::file(&Origin::Embedded, &file)) {
            prop_assert!(result.is_within(&base));
            let more: Vec<String> = authority(&result).difference(&authority(&base)).cloned().collect();
            prop_assert!(more.is_empty(), "{more:?}");
        }
    }

    #[test]
    fn within_is_reflexive_and_agrees_with_authority(a in policy(), b in policy()) {
        prop_assert!(a.is_within(&a));
        if a.is_within(&b) {
            prop_assert!(authority(&a).is_subset(&authority(&b)));
        }
    }

    #[test]
    fn one_key_at_a_time(pairs in two_lines_of_each()) {
        let base = built_in("open");
        for (x, y) in pairs {
            let with = |line: &String| {
                let file = file_of(vec![line.clone()]);
                apply(base.clone(), &Input::file(&Origin::Embedded, &file), Mode::Extend).unwrap()
            };
            let (a, b) = (with(&x), with(&y));
            if a.is_within(&b) {
                let more: Vec<String> = authority(&a).difference(&authority(&b)).cloned().collect();
                prop_assert!(more.is_empty(), "{x} is not within {y}: {more:?}");
            }
            let file = file_of(vec![x.clone()]);
            if let Ok(c) = load::narrow(b.clone(), &Input::file(&Origin::Embedded, &file)) {
                let more: Vec<String> = authority(&c).difference(&authority(&b)).cloned().collect();
                prop_assert!(c.is_within(&b) && more.is_empty(), "{y} narrowed by {x}: {more:?}");
            }
        }
    }

    #[test]
    fn within_is_transitive(c in policy(), x in document(), y in document(), d in policy()) {
        let narrow = |p: &Policy, f: &ProfileFile| load::narrow(p.clone(), &Input::file(&Origin::Embedded, f));
        if let Ok(b) = narrow(&c, &x) && let Ok(a) = narrow(&b, &y) {
            prop_assert!(a.is_within(&b) && b.is_within(&c) && a.is_within(&c));
            if c.is_within(&d) {
                prop_assert!(a.is_within(&d));
            }
        }
    }

    #[test]
    fn narrowing_twice_is_narrowing_once(base in policy(), file in document()) {
        let input = Input::file(&Origin::Embedded, &file);
        if let Ok(once) = load::narrow(base, &input) {
            let twice = load::narrow(once.clone(), &input);
            prop_assert_eq!(twice, Ok(once));
        }
    }
}

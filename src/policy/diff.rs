//! What one policy permits beyond another, in words. Whether it does is [`Policy::widenings`]' verdict alone, which is
//! also the loader's: each widening becomes one line here, and there is no line without one.

use super::calls::Calls;
use super::intents::Intent;
use super::order::{Part, Widening, word};
use super::types::{Access, MountEntry, Policy};
use crate::base::SandboxPath;
use crate::base::text::visible;
use serde::Serialize;
use std::fmt::Display;

/// What a change is about, in the order of display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Files.
    Paths,
    /// The system-call filter.
    SystemCalls,
    /// Privilege.
    Capabilities,
    /// Variables.
    Environment,
    /// Limits.
    Limits,
    /// The network.
    Network,
    /// What is enforced for sure.
    Assurance,
    /// What the caller's own flags may add.
    Caller,
}

impl Group {
    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Paths => "paths",
            Self::SystemCalls => "system calls",
            Self::Capabilities => "capabilities",
            Self::Environment => "environment",
            Self::Limits => "limits",
            Self::Network => "network",
            Self::Assurance => "assurance",
            Self::Caller => "what the caller may add",
        }
    }

    fn of(key: &str) -> Self {
        match key.split('.').next().unwrap_or_default() {
            "root" | "workspace" | "mounts" | "caches" => Self::Paths,
            "seccomp" => Self::SystemCalls,
            "intents" => Self::Capabilities,
            "env" => Self::Environment,
            "limits" => Self::Limits,
            "network" => Self::Network,
            "grants" => Self::Caller,
            _ if key == "require.capabilities" => Self::Capabilities,
            _ => Self::Assurance,
        }
    }
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The second policy permits it and the first does not.
    Widened,
    /// The first policy permits it and the second does not.
    Narrowed,
    /// It is another, and neither is more.
    Changed,
}

impl Direction {
    /// The sign before the line.
    pub fn sign(self) -> char {
        match self {
            Self::Widened => '+',
            Self::Narrowed => '-',
            Self::Changed => '~',
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What it is about.
    pub group: Group,
    /// Which way.
    pub direction: Direction,
    /// The key of a profile that says it.
    pub key: String,
    /// In words, safe to show.
    pub text: String,
}

/// What the second policy is to the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Everything that the second permits, the first permits too.
    pub within: bool,
    /// By group, what is widened first.
    pub changes: Vec<Change>,
}

/// Compares `b` with `a`.
pub fn diff(a: &Policy, b: &Policy, calls: &Calls) -> Difference {
    let mut changes = Vec::new();
    for (wide, narrow, direction) in [(b, a, Direction::Widened), (a, b, Direction::Narrowed)] {
        let words = Words { wide, narrow, direction, calls };
        changes.extend(wide.widenings(narrow).iter().map(|widening| Change {
            group: Group::of(&widening.key),
            direction,
            key: widening.key.clone(),
            text: words.of(widening),
        }));
    }
    let within = !changes.iter().any(|change| change.direction == Direction::Widened);
    for (key, before, after) in [
        ("identity.user", word(a.user), word(b.user)),
        ("identity.hostname", visible(a.hostname.as_bytes()), visible(b.hostname.as_bytes())),
        ("env.heap_hints", a.env.heap_hints.to_string(), b.env.heap_hints.to_string()),
    ] {
        if before != after {
            let group = match key {
                "identity.user" => Group::Capabilities,
                "env.heap_hints" => Group::Environment,
                _ => Group::Assurance,
            };
            let none = if key == "identity.user" { ", without any capability either way" } else { "" };
            let (before, after) = (value(key, &before), value(key, &after));
            let text = format!("{}: {after} instead of {before}{none}", label(key));
            changes.push(Change { group, direction: Direction::Changed, key: key.to_owned(), text });
        }
    }
    changes.sort_by_key(|change| (change.group, change.direction));
    Difference { within, changes }
}

/// A key in words.
fn label(key: &str) -> &str {
    match key {
        "identity.user" => "the user inside",
        "identity.hostname" => "host name",
        "identity.time_namespace" => "clocks since boot",
        "root.toolchains" => "the caller's toolchains",
        "workspace.access" => "the workspace",
        "workspace.protect_missing" => "protected names that do not exist yet",
        "caches.layer" => "what is written to package caches",
        "caches.size" => "size of the kept layer of one cache",
        "env.heap_hints" => "telling runtimes of the memory limit",
        "network.posture" => "the network",
        "network.loopback" => "internet sockets on a loopback of its own",
        "network.share_host" => "the host's network namespace, its loopback and abstract sockets included",
        "limits.memory" => "memory",
        "limits.processes" => "processes and threads",
        "limits.cpu" => "CPU time per wall time",
        "limits.wall" => "wall time",
        "limits.grace" => "time between the polite signal and the kill",
        "limits.output" => "bytes per output stream",
        "limits.output_action" => "beyond the output limit",
        "limits.open_files" => "open files per process",
        "limits.file_size" => "size of one file",
        "limits.locked_memory" => "locked memory per process",
        "limits.stack" => "stack per process",
        "limits.scratch" => "private scratch",
        "limits.scratch_inodes" => "files in the private scratch",
        "limits.disk" => "growth of a writable workspace",
        "grants.tmpfs" => "--tmpfs",
        "grants.root" => "--root",
        "grants.workspace" => "-w",
        "require.namespaces" => "running without namespaces of its own",
        "require.mounts" => "running without the built root",
        "require.ids" => "running with a host identity",
        "require.capabilities" => "running when capabilities could not be dropped",
        "require.seccomp" => "running without the system-call filter",
        "require.landlock_fs" => "running without Landlock's file rules",
        "require.landlock_net" => "running without Landlock's port rules",
        "require.landlock_scope" => "running without Landlock's scopes",
        "require.network" => "running without the network posture",
        "require.proc" => "running without a procfs of its own",
        "require.limit_memory" => "running without the memory limit",
        "require.limit_processes" => "running without the limit on processes",
        "require.limit_cpu" => "running without the CPU limit",
        "require.limit_disk" => "running without the limit on the workspace's growth",
        "require.caches" => "running without a layer over package caches, each an empty directory instead",
        "require.kill" => "running without a kill through the cgroup",
        other => other,
    }
}

/// A value in words.
fn value<'v>(key: &str, value: &'v str) -> &'v str {
    match (key, value) {
        ("workspace.access", "none") => "not there",
        ("workspace.access", "ro") => "read-only",
        ("workspace.access", "overlay") => "a view whose writes are thrown away",
        ("workspace.access", "rw") => "writable",
        ("workspace.protect_missing", "quarantine") => "moved aside afterwards",
        ("workspace.protect_missing", "overlay") => "every write to the workspace thrown away",
        ("caches.layer", "throwaway") => "thrown away",
        ("caches.layer", "kept") => "there again for later runs in the same workspace",
        ("network.posture", "disabled") => "a namespace of its own with no way out",
        ("network.posture", "general") => "whatever the host reaches",
        ("limits.output_action", "truncate") => "the command goes on",
        ("limits.output_action", "kill") => "the command ends",
        ("identity.time_namespace", "true") => "its own",
        ("identity.time_namespace", "false") => "the host's",
        (key, "prefer") if key.starts_with("require.") => "permitted",
        (key, "require") if key.starts_with("require.") => "refused",
        (key, "none") if key.starts_with("limits.") => "no limit",
        (_, "true") => "permitted",
        (_, "false") => "not permitted",
        (_, other) => other,
    }
}

struct Words<'p> {
    /// The one that goes beyond the other.
    wide: &'p Policy,
    narrow: &'p Policy,
    direction: Direction,
    calls: &'p Calls,
}

impl Words<'_> {
    fn of(&self, widening: &Widening) -> String {
        let key = widening.key.as_str();
        match (&widening.part, key) {
            (Part::Mount(at), _) => self.mount(at),
            (Part::Lacks(name), "workspace.hide") => {
                format!("reading `{name}` in the workspace{}", self.unless_seen())
            }
            (Part::Lacks(name), _) => format!("changing `{name}` in the workspace{}", self.unless_writable()),
            (_, "root.etc") => format!("reading `/etc/{}` of the host", widening.asked),
            (_, "root.dir") => match &self.wide.root.dir {
                Some(dir) => format!("reading `{dir}`, as the root"),
                None => "reading the host's /usr and what `root.etc` lists, as the root".to_owned(),
            },
            (_, "caches.use") => format!("reading the caller's package cache of {}", shown(&widening.asked)),
            (_, "env.pass") => format!("reading the caller's variable `{}`", shown(&widening.asked)),
            (_, "env.set") => self.variables(),
            (_, "seccomp.sets") => self.set(&widening.asked),
            (_, "seccomp.allow") => format!("the call `{}`", shown(&widening.asked)),
            (_, "grants.ro" | "grants.rw") => {
                format!("--{} from `{}`", key.trim_start_matches("grants."), widening.asked)
            }
            (_, "intents.use") => format!("`{}`: {}", widening.asked, opens(&widening.asked)),
            (_, "grants.intents") => format!("--grant `{}`: {}", widening.asked, opens(&widening.asked)),
            (_, "grants.env") => format!("--env `{}`", shown(&widening.asked)),
            _ => {
                let (before, after) = match self.direction {
                    Direction::Narrowed => (&widening.asked, &widening.base),
                    _ => (&widening.base, &widening.asked),
                };
                format!("{}: {} instead of {}", label(key), value(key, after), value(key, before))
            }
        }
    }

    fn unless_seen(&self) -> &'static str {
        if self.wide.workspace.access == Access::None { ", once there is one" } else { "" }
    }

    fn unless_writable(&self) -> &'static str {
        if self.wide.workspace.access == Access::Rw { "" } else { ", once it is writable" }
    }

    /// A set and the calls in it that the other policy does not have.
    fn set(&self, name: &str) -> String {
        const SHOWN: usize = 12;
        let had = self.calls.of(&self.narrow.seccomp.sets, &self.narrow.seccomp.allow);
        let quoted = format!("the set `{}`", shown(name));
        let Some(set) = self.calls.set(name) else { return format!("{quoted}, which does not exist") };
        let new: Vec<&str> = set.calls.iter().copied().filter(|call| !had.contains(call)).collect();
        match new.len().saturating_sub(SHOWN) {
            _ if new.is_empty() => format!("{quoted}, whose calls are all permitted anyway"),
            0 => format!("{quoted}: {}", new.join(", ")),
            more => format!("{quoted}: {} and {more} more", new[..SHOWN].join(", ")),
        }
    }

    /// The names alone: values may be secrets.
    fn variables(&self) -> String {
        let (wide, narrow) = (&self.wide.env.set, &self.narrow.env.set);
        let list = |names: Vec<&String>| {
            names.iter().map(|n| format!("`{}`", shown(n))).collect::<Vec<_>>().join(", ")
        };
        let own: Vec<&String> =
            wide.iter().filter(|(n, v)| narrow.get(*n) != Some(v)).map(|(n, _)| n).collect();
        let gone: Vec<&String> = narrow.keys().filter(|name| !wide.contains_key(*name)).collect();
        match (own.is_empty(), gone.is_empty()) {
            (false, true) => format!("a value of its own for {}", list(own)),
            (true, _) => format!("no fixed value for {}", list(gone)),
            (false, false) => {
                format!("a value of its own for {}, and no fixed value for {}", list(own), list(gone))
            }
        }
    }

    fn mount(&self, at: &SandboxPath) -> String {
        let entry = |policy: &Policy| policy.mounts.iter().find(|m| m.target() == at).cloned();
        match (entry(self.wide), entry(self.narrow)) {
            (Some(wide), Some(narrow)) if self.direction == Direction::Widened => {
                format!("{}, instead of {}", described(&wide), described(&narrow))
            }
            (Some(wide), _) => described(&wide),
            (None, Some(MountEntry::Mask { .. })) => format!("reading what a mask hides at `{at}`"),
            (None, _) => format!("reading what the root itself has at `{at}`"),
        }
    }
}

fn described(entry: &MountEntry) -> String {
    let made = |what: &str, target: &dyn Display| format!("{what} at `{target}`");
    match entry {
        MountEntry::Bind { source, target, writable: true, .. } => {
            format!("changing the host's `{source}` at `{target}`")
        }
        MountEntry::Bind { source, target, .. } => format!("reading the host's `{source}` at `{target}`"),
        MountEntry::Overlay { source, target, .. } => {
            format!("reading the host's `{source}` at `{target}`, writes thrown away")
        }
        MountEntry::Tmpfs { target, size, inodes, .. } => {
            format!("a private tmpfs of {size} and {inodes} inodes at `{target}`")
        }
        MountEntry::File { target, .. } => made("a file of the profile's", target),
        MountEntry::Dir { target, .. } => made("an empty directory", target),
        MountEntry::Symlink { target, to, .. } => {
            format!("a link to `{}` at `{target}`", visible(to.as_bytes()))
        }
        MountEntry::Mask { target, .. } => made("a mask", target),
    }
}

fn opens(intent: &str) -> &'static str {
    intent.parse().map_or("", Intent::opens)
}

fn shown(text: &str) -> String {
    visible(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{authority, built_in, cases, policy};
    use super::super::{CallSet, Candidate, EmbeddedOnly, Setting, load};
    use super::*;
    use proptest::prelude::*;

    fn calls() -> Calls {
        let set = |name, calls: &[&'static str]| CallSet { name, calls: calls.to_vec() };
        Calls {
            sets: vec![
                set("base", &["read"]),
                set("process", &["fork"]),
                set("network", &["socket", "bind"]),
            ],
            refused: Vec::new(),
            launch: &[],
            known: |_| true,
        }
    }

    fn lines(a: &Policy, b: &Policy) -> Vec<String> {
        let all = diff(a, b, &calls()).changes;
        all.iter().map(|c| format!("{} {} {}", c.group.title(), c.direction.sign(), c.text)).collect()
    }

    fn file(text: &str) -> Policy {
        let origin = super::super::Origin::File(crate::base::HostPath::new("/p.toml").unwrap());
        let bytes = format!("version = 1\nextends = \"offline\"\n{text}").into_bytes();
        load(Candidate::new(origin, bytes), &EmbeddedOnly, None, &[]).unwrap()
    }

    #[test]
    fn widenings_in_words() {
        let base = built_in("offline");
        for (text, wanted) in [
            ("limits.wall = \"none\"", "limits + wall time: no limit instead of 1h"),
            ("limits.processes = 4096", "limits + processes and threads: 4096 instead of 1024"),
            ("seccomp.allow = [\"ptrace\"]", "system calls + the call `ptrace`"),
            ("env.pass = [\"...\", \"MINE\"]", "environment + reading the caller's variable `MINE`"),
            ("root.etc = [\"...\", \"hosts\"]", "paths + reading `/etc/hosts` of the host"),
            ("root.dir = \"/srv/root\"", "paths + reading `/srv/root`, as the root"),
            (
                "require.ids = \"prefer\"",
                "assurance + running with a host identity: permitted instead of refused",
            ),
            (
                "require.capabilities = \"prefer\"",
                "capabilities + running when capabilities could not be dropped: permitted instead of refused",
            ),
            (
                "mounts = [{ type = \"bind\", source = \"/srv\", target = \"/data\", writable = true }]",
                "paths + changing the host's `/srv` at `/data`",
            ),
            ("env.set = { A = \"secret\" }", "environment + a value of its own for `A`"),
            (
                "identity.user = \"root\"",
                "capabilities ~ the user inside: root instead of agent, without any capability either way",
            ),
        ] {
            let got = lines(&base, &file(text));
            assert!(got.iter().any(|line| line == wanted), "{text}: {got:?}");
            assert!(!got.concat().contains("secret"), "{got:?}");
        }
        let less = file("workspace.hide = []\nworkspace.protect = [\"...\"]");
        let got = lines(&base, &less);
        assert!(got.contains(&"paths + reading `.env` in the workspace".to_owned()), "{got:?}");
        assert_eq!(got.len(), base.workspace.hide.len());
    }

    #[test]
    fn narrowings_in_words() {
        let wall = [Setting::parse("limits.wall=5m").unwrap(), Setting::parse("seccomp.sets=base").unwrap()];
        let narrowed = load(Candidate::embedded("offline").unwrap(), &EmbeddedOnly, None, &wall).unwrap();
        let got = lines(&built_in("offline"), &narrowed);
        assert_eq!(
            got,
            [
                "system calls - the set `process`: fork",
                "system calls - the set `network`: socket, bind",
                "system calls - the set `ipc`, which does not exist",
                "system calls - the set `schedule`, which does not exist",
                "system calls - the set `confine`, which does not exist",
                "limits - wall time: 5m instead of 1h",
            ]
        );
        assert!(diff(&built_in("offline"), &narrowed, &calls()).within);
    }

    #[test]
    fn mounts_that_go_away_or_change() {
        let with = file("mounts = [{ type = \"mask\", target = \"/usr/share\" }]");
        let base = built_in("offline");
        assert_eq!(lines(&with, &base), ["paths + reading what a mask hides at `/usr/share`"]);
        let bind = |more: &str| {
            file(&format!("mounts = [{{ type = \"bind\", source = \"/srv\", target = \"/data\"{more} }}]"))
        };
        assert_eq!(
            lines(&bind(""), &bind(", writable = true")),
            [
                "paths + changing the host's `/srv` at `/data`, instead of reading the host's `/srv` at `/data`"
            ]
        );
        assert_eq!(
            lines(&bind(", writable = true"), &bind("")),
            ["paths - changing the host's `/srv` at `/data`"]
        );
    }

    #[test]
    fn every_field_that_is_compared_has_words() {
        let (open, strict) = (built_in("open"), built_in("strict"));
        for change in diff(&strict, &open, &calls()).changes {
            assert!(!change.text.contains(&change.key), "no words for {}: {}", change.key, change.text);
        }
        let key = |policy: &Policy| policy.widenings(&strict).len();
        assert!(key(&open) > 30);
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn it_agrees_with_the_loader(a in policy(), b in policy()) {
            let found = diff(&a, &b, &calls());
            prop_assert_eq!(found.within, b.is_within(&a));
            let widened = found.changes.iter().filter(|c| c.direction == Direction::Widened).count();
            let narrowed = found.changes.iter().filter(|c| c.direction == Direction::Narrowed).count();
            prop_assert_eq!((widened == 0, narrowed == 0), (b.is_within(&a), a.is_within(&b)));
            if found.within {
                prop_assert!(authority(&b).is_subset(&authority(&a)));
            }
            // The other way round says the same with the other sign.
            let back = diff(&b, &a, &calls());
            prop_assert_eq!(back.changes.iter().filter(|c| c.direction == Direction::Narrowed).count(), widened);
            prop_assert!(found.changes.iter().all(|c| !c.text.chars().any(char::is_control)));
            prop_assert!(diff(&a, &a, &calls()).changes.is_empty());
        }
    }
}

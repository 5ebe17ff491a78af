//! "At most as much authority as": the partial order of policies, one line per field. Narrowing is checked
//! by it, so what it does not compare nothing can widen.
//!
//! `name`, `summary`, `origins`, the inside user and the host name carry no authority and are not compared.

use super::intents::Intent;
use super::types::{MountEntry, OutputAction, Policy, ProtectMissing};
use crate::base::{MemorySize, Need, OsBytes, Protection, RelPath, SandboxPath};
use std::fmt::Display;

/// A field in which one policy goes beyond another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Widening {
    /// The key.
    pub key: String,
    /// What the wider policy has to permit.
    pub base: String,
    /// What goes beyond it.
    pub asked: String,
    /// Which part of the field.
    pub part: Part,
}

/// In which way a field goes beyond another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// As a whole.
    Value,
    /// By an entry of its list, `asked`, that nothing in the base covers.
    Entry,
    /// By lacking an entry of the base's list, which takes something away.
    Lacks(String),
    /// By what is mounted, or no longer mounted, here.
    Mount(SandboxPath),
}

impl Policy {
    /// Whether everything that this policy permits, `base` permits too.
    pub fn is_within(&self, base: &Self) -> bool {
        widenings(self, base).is_empty()
    }

    /// The fields in which this policy permits more than `base`, in a fixed order.
    pub fn widenings(&self, base: &Self) -> Vec<Widening> {
        widenings(self, base)
    }
}

/// Whether a variable's name, or a `PREFIX*`, is covered by `pattern`.
pub(super) fn env_covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.strip_suffix('*').unwrap_or(name).starts_with(prefix),
        None => pattern == name,
    }
}

struct Found(Vec<Widening>);

impl Found {
    fn unless(&mut self, within: bool, key: &str, base: impl Display, asked: impl Display) {
        self.part(within, key, base, asked, Part::Value);
    }

    fn part(&mut self, within: bool, key: &str, base: impl Display, asked: impl Display, part: Part) {
        if !within {
            let (base, asked) = (base.to_string(), asked.to_string());
            self.0.push(Widening { key: key.to_owned(), base, asked, part });
        }
    }

    /// `None` is no limit.
    fn at_most<T: Ord + Display>(&mut self, key: &str, asked: Option<&T>, base: Option<&T>) {
        let within = match (asked, base) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(asked), Some(base)) => asked <= base,
        };
        self.unless(within, key, or_none(base), or_none(asked));
    }

    /// `false` is narrower.
    fn flag(&mut self, key: &str, asked: bool, base: bool) {
        self.unless(base || !asked, key, base, asked);
    }

    /// Each of `asked` is covered by one of `base`.
    fn subset<T>(
        &mut self,
        key: &str,
        asked: &[T],
        base: &[T],
        covers: impl Fn(&T, &T) -> bool,
        show: impl Fn(&T) -> String,
    ) {
        for one in asked {
            let within = base.iter().any(|b| covers(b, one));
            self.part(within, key, list(base.iter().map(&show)), show(one), Part::Entry);
        }
    }

    /// Each of `base` is still covered by one of `asked`: these lists take something away.
    fn superset(&mut self, key: &str, asked: &[RelPath], base: &[RelPath]) {
        for one in base {
            let within = asked.iter().any(|a| one.is_within(a));
            self.part(within, key, one, format_args!("without {one}"), Part::Lacks(one.to_string()));
        }
    }
}

fn or_none<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |v| v.to_string())
}

fn list(items: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 12;
    let items: Vec<String> = items.collect();
    let more = if items.len() > SHOWN { format!(", … ({} in all)", items.len()) } else { String::new() };
    format!("[{}{more}]", items.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", "))
}

/// The word that a profile uses for a plain enum.
pub(super) fn word<T: serde::Serialize>(value: T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn widenings(asked: &Policy, base: &Policy) -> Vec<Widening> {
    let mut found = Found(Vec::new());
    // Each field is named, so that a new one does not compile until someone has thought about it.
    let Policy {
        name: _,
        summary: _,
        origins: _,
        needs,
        user: _,
        hostname: _,
        time_namespace,
        root,
        workspace,
        mounts,
        caches,
        env,
        network,
        seccomp,
        limits,
        intents,
        grants,
    } = asked;

    for protection in Protection::ALL {
        let need = |p: &std::collections::BTreeMap<Protection, Need>| {
            p.get(protection).copied().unwrap_or(Need::Prefer)
        };
        let (asked, base) = (need(needs), need(&base.needs));
        found.unless(asked >= base, &format!("require.{}", protection.key()), word(base), word(asked));
    }
    // A namespace of its own isolates more.
    found.unless(
        *time_namespace || !base.time_namespace,
        "identity.time_namespace",
        base.time_namespace,
        time_namespace,
    );

    found.unless(
        root.dir == base.root.dir,
        "root.dir",
        or_none(base.root.dir.as_ref()),
        or_none(root.dir.as_ref()),
    );
    found.subset("root.etc", &root.etc, &base.root.etc, |b, a| a.is_within(b), ToString::to_string);
    found.flag("root.toolchains", root.toolchains, base.root.toolchains);

    let (w, b) = (workspace, &base.workspace);
    found.unless(w.access <= b.access, "workspace.access", word(b.access), word(w.access));
    found.superset("workspace.protect", &w.protect, &b.protect);
    let missing = w.protect_missing == b.protect_missing || w.protect_missing == ProtectMissing::Overlay;
    found.unless(missing, "workspace.protect_missing", word(b.protect_missing), word(w.protect_missing));
    found.superset("workspace.hide", &w.hide, &b.hide);

    mount_table(&mut found, mounts, &base.mounts);

    let (c, b) = (caches, &base.caches);
    found.subset("caches.use", &c.tools, &b.tools, |b, a| a == b, |t| t.name().to_owned());
    found.unless(c.layer <= b.layer, "caches.layer", word(b.layer), word(c.layer));
    found.at_most("caches.size", Some(&c.size), Some(&b.size));

    // `env.heap_hints` tells what the limits say anyway.
    found.subset("env.pass", &env.pass, &base.env.pass, |b, a| env_covers(b, a), Clone::clone);
    // A value that the profile sets may be what keeps a program harmless: neither more nor fewer nor others.
    found.unless(env.set == base.env.set, "env.set", variables(&base.env.set), variables(&env.set));

    found.unless(
        network.posture <= base.network.posture,
        "network.posture",
        word(base.network.posture),
        word(network.posture),
    );
    found.flag("network.loopback", network.loopback, base.network.loopback);
    found.flag("network.share_host", network.share_host, base.network.share_host);

    found.subset("seccomp.sets", &seccomp.sets, &base.seccomp.sets, |b, a| a == b, Clone::clone);
    found.subset("seccomp.allow", &seccomp.allow, &base.seccomp.allow, |b, a| a == b, Clone::clone);

    let (l, b) = (limits, &base.limits);
    let memory = memory_within(l.memory, b.memory);
    found.unless(memory, "limits.memory", or_none(b.memory), or_none(l.memory));
    found.at_most("limits.processes", l.processes.as_ref(), b.processes.as_ref());
    found.at_most("limits.cpu", l.cpu.as_ref(), b.cpu.as_ref());
    found.at_most("limits.wall", l.wall.as_ref(), b.wall.as_ref());
    found.at_most("limits.grace", Some(&l.grace), Some(&b.grace));
    found.at_most("limits.output", l.output.as_ref(), b.output.as_ref());
    let action = l.output_action == b.output_action || l.output_action == OutputAction::Kill;
    found.unless(action, "limits.output_action", word(b.output_action), word(l.output_action));
    found.at_most("limits.open_files", Some(&l.open_files), Some(&b.open_files));
    found.at_most("limits.file_size", l.file_size.as_ref(), b.file_size.as_ref());
    found.at_most("limits.locked_memory", Some(&l.locked_memory), Some(&b.locked_memory));
    found.at_most("limits.stack", Some(&l.stack), Some(&b.stack));
    found.at_most("limits.scratch", Some(&l.scratch), Some(&b.scratch));
    found.at_most("limits.scratch_inodes", Some(&l.scratch_inodes), Some(&b.scratch_inodes));
    found.at_most("limits.disk", l.disk.as_ref(), b.disk.as_ref());

    let name = |intent: &Intent| intent.name().to_owned();
    found.subset("intents.use", intents, &base.intents, |b, a| a == b, name);

    let (g, b) = (grants, &base.grants);
    found.subset("grants.ro", &g.ro, &b.ro, |b, a| a.is_within(b), ToString::to_string);
    found.subset("grants.rw", &g.rw, &b.rw, |b, a| a.is_within(b), ToString::to_string);
    found.subset("grants.env", &g.env, &b.env, |b, a| env_covers(b, a), Clone::clone);
    found.subset("grants.intents", &g.intents, &b.intents, |b, a| a == b, name);
    found.flag("grants.tmpfs", g.tmpfs, b.tmpfs);
    found.flag("grants.root", g.root, b.root);
    found.flag("grants.workspace", g.workspace, b.workspace);
    found.0
}

/// The names alone: values may be secrets.
fn variables(set: &std::collections::BTreeMap<String, OsBytes>) -> String {
    list(set.keys().cloned())
}

fn memory_within(asked: Option<MemorySize>, base: Option<MemorySize>) -> bool {
    fn le<T: Ord>(asked: Option<T>, base: Option<T>) -> bool {
        match (asked, base) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(a), Some(b)) => a <= b,
        }
    }
    let parts = |m: Option<MemorySize>| m.map_or((None, None), MemorySize::parts);
    let ((ab, ap), (bb, bp)) = (parts(asked), parts(base));
    le(ab, bb) && le(ap, bp)
}

/// Every entry is one of `base`'s, or less of it, or a mask; and one that is gone is masked, since what lay
/// beneath it would appear otherwise.
fn mount_table(found: &mut Found, asked: &[MountEntry], base: &[MountEntry]) {
    let mask = |m: &MountEntry| matches!(m, MountEntry::Mask { .. });
    for entry in asked {
        let within = mask(entry) || base.iter().any(|b| entry_within(entry, b));
        let part = Part::Mount(entry.target().clone());
        found.part(within, "mounts", base_entry(base, entry.target()), entry_shown(entry), part);
    }
    for gone in base.iter().filter(|b| !asked.iter().any(|a| a.target() == b.target())) {
        let masked = asked.iter().any(|a| mask(a) && gone.target().is_within(a.target()));
        let part = Part::Mount(gone.target().clone());
        found.part(masked, "mounts", entry_shown(gone), format_args!("without {}", gone.target()), part);
    }
    // An entry below a new mask is seen again only if it was there before, which the first loop checked.
}

fn base_entry(base: &[MountEntry], target: &SandboxPath) -> String {
    base.iter().find(|b| b.target() == target).map_or_else(|| "nothing there".to_owned(), entry_shown)
}

fn entry_shown(entry: &MountEntry) -> String {
    match entry {
        MountEntry::Bind { source, target, writable, .. } => {
            format!("bind {} {source} at {target}", if *writable { "rw" } else { "ro" })
        }
        MountEntry::Tmpfs { target, size, inodes, .. } => {
            format!("tmpfs of {size}, {inodes} inodes at {target}")
        }
        MountEntry::Overlay { source, target, .. } => format!("overlay of {source} at {target}"),
        MountEntry::File { target, .. } => format!("file at {target}"),
        MountEntry::Dir { target, .. } => format!("directory at {target}"),
        MountEntry::Symlink { target, .. } => format!("link at {target}"),
        MountEntry::Mask { target, .. } => format!("mask at {target}"),
    }
}

fn entry_within(asked: &MountEntry, base: &MountEntry) -> bool {
    use MountEntry::{Bind, Overlay, Tmpfs};
    if asked.target() != base.target() {
        return false;
    }
    match (asked, base) {
        (a, b) if a == b => true,
        (
            Bind { source: s, writable: w, optional: o, by, .. },
            Bind { source: bs, writable: bw, optional: bo, by: bby, .. },
        ) => s == bs && o == bo && by == bby && (*bw || !w),
        // Its writes reach nobody.
        (
            Overlay { source: s, by, .. },
            Bind { source: bs, writable: true, optional: false, by: bby, .. },
        ) => s == bs && by == bby,
        (
            Bind { source: s, writable: false, optional: false, by, .. },
            Overlay { source: bs, by: bby, .. },
        ) => s == bs && by == bby,
        (Tmpfs { size, inodes, by, .. }, Tmpfs { size: bs, inodes: bi, by: bby, .. }) => {
            size <= bs && inodes <= bi && by == bby
        }
        _ => false,
    }
}

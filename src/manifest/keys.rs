//! The keys of a profile as data: what exists, what shape it has, and what a mistyped one was meant to be.
//! `schema.rs` tests that this table and the types agree.

/// How a key's value is written in `--set key=value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A string.
    Word,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count,
    /// A whole number or `none`.
    CountOrNone,
    /// A list of strings: `a,b` or `["a", "b"]`.
    List,
    /// A table with free names.
    Table,
    /// `[[mounts]]`.
    Mounts,
}

/// One key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Dotted path.
    pub path: &'static str,
    /// Shape of the value.
    pub shape: Shape,
}

const fn key(path: &'static str, shape: Shape) -> Key {
    Key { path, shape }
}

/// Every key of a profile; those of a mount entry are in [`MOUNT_KEYS`].
pub const KEYS: &[Key] = &[
    key("version", Shape::Count),
    key("name", Shape::Word),
    key("summary", Shape::Word),
    key("extends", Shape::Word),
    key("require.namespaces", Shape::Word),
    key("require.mounts", Shape::Word),
    key("require.ids", Shape::Word),
    key("require.capabilities", Shape::Word),
    key("require.seccomp", Shape::Word),
    key("require.landlock_fs", Shape::Word),
    key("require.landlock_net", Shape::Word),
    key("require.landlock_scope", Shape::Word),
    key("require.network", Shape::Word),
    key("require.proc", Shape::Word),
    key("require.limit_memory", Shape::Word),
    key("require.limit_processes", Shape::Word),
    key("require.limit_cpu", Shape::Word),
    key("require.limit_disk", Shape::Word),
    key("require.kill", Shape::Word),
    key("require.caches", Shape::Word),
    key("identity.user", Shape::Word),
    key("identity.hostname", Shape::Word),
    key("identity.time_namespace", Shape::Flag),
    key("root.dir", Shape::Word),
    key("root.etc", Shape::List),
    key("root.toolchains", Shape::Flag),
    key("workspace.access", Shape::Word),
    key("workspace.protect", Shape::List),
    key("workspace.protect_missing", Shape::Word),
    key("workspace.hide", Shape::List),
    key("mounts", Shape::Mounts),
    key("caches.use", Shape::List),
    key("caches.layer", Shape::Word),
    key("caches.size", Shape::Word),
    key("env.pass", Shape::List),
    key("env.set", Shape::Table),
    key("env.heap_hints", Shape::Flag),
    key("network.posture", Shape::Word),
    key("network.loopback", Shape::Flag),
    key("network.share_host", Shape::Flag),
    key("seccomp.sets", Shape::List),
    key("seccomp.allow", Shape::List),
    key("limits.memory", Shape::Word),
    key("limits.processes", Shape::CountOrNone),
    key("limits.cpu", Shape::Word),
    key("limits.wall", Shape::Word),
    key("limits.grace", Shape::Word),
    key("limits.output", Shape::Word),
    key("limits.output_action", Shape::Word),
    key("limits.open_files", Shape::Count),
    key("limits.file_size", Shape::Word),
    key("limits.locked_memory", Shape::Word),
    key("limits.stack", Shape::Word),
    key("limits.scratch", Shape::Word),
    key("limits.scratch_inodes", Shape::Count),
    key("limits.disk", Shape::Word),
    key("intents.use", Shape::List),
    key("grants.ro", Shape::List),
    key("grants.rw", Shape::List),
    key("grants.env", Shape::List),
    key("grants.intents", Shape::List),
    key("grants.tmpfs", Shape::Flag),
    key("grants.root", Shape::Flag),
    key("grants.workspace", Shape::Flag),
    key("why", Shape::Table),
];

/// The keys of one `[[mounts]]` entry.
pub const MOUNT_KEYS: &[&str] =
    &["type", "source", "target", "writable", "optional", "size", "inodes", "content", "to", "why"];

/// Whether `path` is a key or a table that holds keys.
pub(super) fn known(path: &str) -> bool {
    KEYS.iter().any(|k| k.path == path || k.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The entry for `path`.
pub(crate) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.path == path)
}

/// The `candidates` that `typed` may have been meant to be, best first, at most three.
pub fn near<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<String> {
    // Far longer than any candidate: nothing can be near, and the table below stays small.
    if typed.len() > 128 {
        return Vec::new();
    }
    let last = |path: &'a str| path.rsplit('.').next().unwrap_or(path);
    let typed_last = typed.rsplit('.').next().unwrap_or(typed);
    let mut ranked: Vec<(usize, &str)> = candidates
        .filter_map(|c| {
            let whole = distance(typed, c);
            // The right word in the wrong table counts as one slip.
            let rank = if last(c) == typed_last { whole.min(1) } else { whole };
            (rank <= 1 + typed.len() / 5).then_some((rank, c))
        })
        .collect();
    ranked.sort();
    ranked.dedup();
    ranked.into_iter().take(3).map(|(_, c)| c.to_owned()).collect()
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let mut best =
                (above[j - 1] + usize::from(a[i - 1] != b[j - 1])).min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

/// `` `a`, `b` or `c` ``.
pub(crate) fn quoted(words: &[String]) -> String {
    let ticked: Vec<String> = words.iter().map(|w| format!("`{w}`")).collect();
    match ticked.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let paths = || KEYS.iter().map(|k| k.path);
        assert_eq!(near("limits.memroy", paths()), ["limits.memory"]);
        assert_eq!(near("workspace.memory", paths())[0], "limits.memory");
        assert!(near("quux", paths()).is_empty());
        assert!(near(&"x".repeat(5000), paths()).is_empty());
    }

    #[test]
    fn distances() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("memroy", "memory"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

//! Where each key of a file is, which also says which keys it has; and the bounds, checked on the way.

use super::{
    CONTENT_BYTES_MAX, DEPTH_MAX, LIST_ENTRIES_MAX, ManifestError, ManifestFault, STRING_BYTES_MAX,
    TABLE_ENTRIES_MAX, VERSION, keys,
};
use crate::base::text::visible;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// A place in a file, both counted from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl At {
    /// The place of byte `offset` in `text`.
    pub(super) fn of(text: &str, offset: usize) -> Self {
        Lines::of(text).at(offset)
    }
}

/// Where the lines of a text begin, so that each place costs a search and not a scan.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    fn at(&self, offset: usize) -> At {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        At { line, column: 1 + self.text[start..offset].chars().count() }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The keys of one file and their places. Hashed, since it is built at each start and asked little; its
/// order is never shown.
#[derive(Debug, Clone, Default)]
pub struct Spans(BTreeMap<String, Span>);

#[derive(Debug, Clone)]
struct Span {
    at: At,
    bytes: Range<usize>,
}

impl Spans {
    /// Where `key` is.
    pub fn at(&self, key: &str) -> Option<At> {
        self.0.get(key).map(|span| span.at)
    }

    /// Whether the file has `key` (or a table of that name).
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// The innermost key whose name or value holds byte `offset`.
    pub(super) fn key_around(&self, offset: usize) -> Option<&str> {
        self.0
            .iter()
            .filter(|(_, span)| span.bytes.contains(&offset) || span.bytes.start == offset)
            .max_by_key(|(key, _)| (key.len(), *key))
            .map(|(key, _)| key.as_str())
    }
}

struct Walk<'t> {
    lines: Lines<'t>,
    spans: Spans,
}

/// Checks names and bounds, and collects the places.
pub(super) fn walk(text: &str, root: &DeTable<'_>) -> Result<Spans, ManifestError> {
    let mut walk = Walk { lines: Lines::of(text), spans: Spans::default() };
    match root.get("version").map(|v| v.get_ref()) {
        None => return Err(ManifestError { at: None, key: None, fault: ManifestFault::VersionMissing }),
        Some(DeValue::Integer(n)) if n.as_str() == "1" => {}
        Some(other) => {
            let found = match other {
                DeValue::Integer(n) => visible(n.as_str().as_bytes()),
                DeValue::String(s) => format!("\"{}\"", visible(s.as_bytes())),
                _ => "of another type".to_owned(),
            };
            let start = root.get("version").map(|v| v.span().start).unwrap_or_default();
            return Err(walk.fault(
                start,
                Some("version".to_owned()),
                ManifestFault::VersionUnknown { found },
            ));
        }
    }
    debug_assert_eq!(VERSION, 1, "the literal above");
    walk.table("", root, 0)?;
    Ok(walk.spans)
}

impl Walk<'_> {
    fn fault(&self, start: usize, key: Option<String>, fault: ManifestFault) -> ManifestError {
        ManifestError { at: Some(self.lines.at(start)), key, fault }
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>, start: usize) -> Result<(), ManifestError> {
        if table.len() > TABLE_ENTRIES_MAX {
            let fault = ManifestFault::TooMany { found: table.len(), max: TABLE_ENTRIES_MAX };
            return Err(self.fault(start, Some(prefix.to_owned()), fault));
        }
        // In the order of the file, so that the first fault reported is the first one in it.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let shown = visible(name.get_ref().as_bytes());
            let path = if prefix.is_empty() { shown.clone() } else { format!("{prefix}.{shown}") };
            let at = name.span().start;
            if let Some(near) = unknown(prefix, name.get_ref(), &path) {
                return Err(self.fault(at, Some(path), ManifestFault::UnknownKey { near }));
            }
            if name.get_ref().len() > STRING_BYTES_MAX {
                let fault = ManifestFault::TooLong { bytes: name.get_ref().len(), max: STRING_BYTES_MAX };
                return Err(self.fault(at, Some(path), fault));
            }
            // A table's own span is its header's, which begins with a bracket before the name.
            let start = if value.span().contains(&at) { value.span().start } else { at };
            let bytes = start..value.span().end.max(name.span().end);
            self.value(&path, value.get_ref(), value.span().start)?;
            self.spans.0.insert(path, Span { at: self.lines.at(at), bytes });
        }
        Ok(())
    }

    fn value(&mut self, path: &str, value: &DeValue<'_>, start: usize) -> Result<(), ManifestError> {
        // Bounds the recursion. Only dots and brackets that we wrote count; a name with dots errs on the safe side.
        if path.bytes().filter(|b| matches!(b, b'.' | b'[')).count() > DEPTH_MAX && !free(path) {
            return Err(self.fault(start, Some(path.to_owned()), ManifestFault::TooDeep));
        }
        match value {
            DeValue::String(s) => {
                let max = if path.ends_with("].content") { CONTENT_BYTES_MAX } else { STRING_BYTES_MAX };
                if s.len() > max {
                    let fault = ManifestFault::TooLong { bytes: s.len(), max };
                    return Err(self.fault(start, Some(path.to_owned()), fault));
                }
            }
            DeValue::Array(items) => {
                if items.len() > LIST_ENTRIES_MAX {
                    let fault = ManifestFault::TooMany { found: items.len(), max: LIST_ENTRIES_MAX };
                    return Err(self.fault(start, Some(path.to_owned()), fault));
                }
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    let span = item.span();
                    self.value(&path, item.get_ref(), span.start)?;
                    self.spans.0.insert(path, Span { at: self.lines.at(span.start), bytes: span });
                }
            }
            // `{ b64 = "…" }` in the place of a string; the types know where that is permitted.
            DeValue::Table(table) if table.len() == 1 && table.contains_key("b64") => {
                if let Some(DeValue::String(s)) = table.get("b64").map(|v| v.get_ref())
                    && s.len() > 2 * CONTENT_BYTES_MAX
                {
                    let fault = ManifestFault::TooLong { bytes: s.len(), max: 2 * CONTENT_BYTES_MAX };
                    return Err(self.fault(start, Some(path.to_owned()), fault));
                }
            }
            DeValue::Table(table) if has_names(path) => self.table(path, table, start)?,
            // A table where a plain value belongs: the types will say so, and nothing below it has a name.
            DeValue::Table(_) => {}
            DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {}
        }
        Ok(())
    }
}

/// Tables whose names the file chooses.
fn free(path: &str) -> bool {
    path == "why" || path == "env.set" || path.starts_with("why.") || path.starts_with("env.set.")
}

/// Whether a table at `path` is one of the format's, rather than a table where a plain value belongs.
fn has_names(path: &str) -> bool {
    path == "why" || path == "env.set" || is_mount(path) || (keys::known(path) && keys::find(path).is_none())
}

fn is_mount(path: &str) -> bool {
    path.strip_prefix("mounts[")
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|n| n.parse::<usize>().is_ok())
}

/// `None` when the key exists; else the keys that it may have been meant to be.
fn unknown(prefix: &str, name: &str, path: &str) -> Option<Vec<String>> {
    if prefix == "why" || prefix == "env.set" {
        return None;
    }
    if is_mount(prefix) {
        return (!keys::MOUNT_KEYS.contains(&name))
            .then(|| keys::near(name, keys::MOUNT_KEYS.iter().copied()));
    }
    if !name.contains('.') && keys::known(path) {
        return None;
    }
    let tables =
        ["require", "identity", "root", "workspace", "env", "network", "seccomp", "limits", "grants"];
    let mut near = keys::near(path, keys::KEYS.iter().map(|k| k.path).chain(tables));
    near.retain(|n| n != path);
    Some(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_count_characters_from_one() {
        assert_eq!(At::of("ab\nçd", 0), At { line: 1, column: 1 });
        assert_eq!(At::of("ab\nçd", 5), At { line: 2, column: 2 });
        assert_eq!(At::of("", 7), At { line: 1, column: 1 });
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = super::super::parse_profile(&bytes);
        }

        #[test]
        fn no_toml_like_text_makes_it_panic(
            lines in proptest::collection::vec("(version = 1|\\[[a-z.\\[\\]]{1,9}\\]|[a-z.\"]{1,8} = [a-z0-9\"'{}\\[\\],=. ]{0,12})", 0..12)
        ) {
            let _ = super::super::parse_profile(format!("version = 1\n{}", lines.join("\n")).as_bytes());
        }
    }
}

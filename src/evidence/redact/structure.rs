//! Structured values: bounded first (MA-TLS-12), then redacted by keys and by content.

use super::keys::is_sensitive;
use super::{Context, OMITTED, Outcome, Redacted, SECRET, clean, find, floor};
use crate::base::canonical_json;
use serde_json::{Map, Value};

/// What of a value is looked at; larger parts are omitted whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Values in all.
    pub nodes: usize,
    /// Bytes of all strings.
    pub strings: usize,
    /// Items or keys of one collection.
    pub items: usize,
    /// Bytes of a key.
    pub key: usize,
    /// Nesting.
    pub depth: usize,
    /// Bytes of one string.
    pub string: usize,
    /// Bytes of the result.
    pub total: usize,
}

impl Bounds {
    /// For a call's arguments.
    pub const ARGUMENTS: Self = Self::of(super::ARGUMENTS_BYTES_MAX);
    /// For a call's result.
    pub const RESULT: Self = Self::of(super::RESULT_BYTES_MAX);

    const fn of(total: usize) -> Self {
        Self {
            nodes: 2048,
            strings: 64 << 10,
            items: 512,
            key: 512,
            depth: 24,
            string: super::STRING_BYTES_MAX,
            total,
        }
    }
}

struct Walk<'c> {
    context: &'c Context,
    bounds: Bounds,
    nodes: usize,
    strings: usize,
    truncated: bool,
    redactions: u32,
}

/// A value as canonical JSON in which nothing is left that must not be shown. Parts beyond a bound are omitted whole, and
/// so is the value when the result is longer than `bounds.total`.
pub fn value(input: &Value, context: &Context, bounds: &Bounds) -> Outcome {
    let mut walk = Walk { context, bounds: *bounds, nodes: 0, strings: 0, truncated: false, redactions: 0 };
    let clean = walk.value(input, 0, false);
    let original = serde_json::to_vec(input).map_or(u64::MAX, |bytes| bytes.len() as u64);
    // A float has no canonical form; it is written as text then.
    let bytes =
        canonical_json(&clean).or_else(|_| canonical_json(&without_floats(clean))).unwrap_or_default();
    let text = String::from_utf8(bytes).unwrap_or_default();
    if text.len() > bounds.total {
        let omitted = format!("{{\"omitted_bytes\":{original}}}");
        return Outcome {
            text: Redacted(omitted),
            original_bytes: original,
            truncated: true,
            redactions: walk.redactions,
        };
    }
    Outcome {
        text: Redacted(text),
        original_bytes: original,
        truncated: walk.truncated,
        redactions: walk.redactions,
    }
}

fn without_floats(value: Value) -> Value {
    match value {
        Value::Number(n) if n.is_f64() => Value::String(n.to_string()),
        Value::Array(all) => Value::Array(all.into_iter().map(without_floats).collect()),
        Value::Object(all) => Value::Object(all.into_iter().map(|(k, v)| (k, without_floats(v))).collect()),
        other => other,
    }
}

impl Walk<'_> {
    fn omitted(&mut self) -> Value {
        self.truncated = true;
        Value::String("[omitted]".to_owned())
    }

    fn value(&mut self, value: &Value, depth: usize, secret: bool) -> Value {
        self.nodes += 1;
        if self.nodes > self.bounds.nodes || depth > self.bounds.depth {
            return self.omitted();
        }
        match value {
            Value::String(_) | Value::Array(_) | Value::Object(_) if secret => {
                self.redactions = self.redactions.saturating_add(1);
                Value::String(SECRET.to_owned())
            }
            Value::String(text) => self.string(text),
            Value::Array(all) if all.len() > self.bounds.items => self.omitted(),
            Value::Array(all) => {
                let mut out = Vec::with_capacity(all.len());
                // `["--password", "x"]`: a list of words is a command line.
                let mut flag = false;
                for item in all {
                    out.push(self.value(
                        item,
                        depth + 1,
                        flag && item.as_str().is_some_and(|s| !s.starts_with('-')),
                    ));
                    flag = item
                        .as_str()
                        .is_some_and(|s| s.starts_with('-') && !s.contains('=') && is_sensitive(s));
                }
                Value::Array(out)
            }
            Value::Object(all) if all.len() > self.bounds.items => self.omitted(),
            Value::Object(all) => Value::Object(self.object(all, depth)),
            other => other.clone(),
        }
    }

    fn object(&mut self, all: &Map<String, Value>, depth: usize) -> Map<String, Value> {
        let mut out = Map::new();
        // `{"name": "PASSWORD", "value": "x"}`.
        let named = ["name", "key", "field", "header"]
            .iter()
            .any(|k| all.get(*k).and_then(Value::as_str).is_some_and(is_sensitive));
        for (key, value) in all {
            if key.len() > self.bounds.key {
                self.truncated = true;
                continue;
            }
            let secret = is_sensitive(key) || named && matches!(key.as_str(), "value" | "values" | "content");
            let value = self.value(value, depth + 1, secret);
            let (mut name, count) = clean(key, self.context);
            self.redactions = self.redactions.saturating_add(count);
            // Two keys that became one stay two.
            let mut n = 2;
            while out.contains_key(&name) {
                name = format!(
                    "{} ({n})",
                    name.trim_end_matches(|c: char| c == ')' || c.is_ascii_digit()).trim_end_matches(" (")
                );
                n += 1;
            }
            out.insert(name, value);
        }
        out
    }

    fn string(&mut self, text: &str) -> Value {
        self.strings = self.strings.saturating_add(text.len());
        if text.len() > self.bounds.strings || self.strings > self.bounds.strings {
            return self.omitted();
        }
        let (mut clean, count) = clean(text, self.context);
        self.redactions = self.redactions.saturating_add(count);
        if clean.len() > self.bounds.string {
            self.truncated = true;
            clean.truncate(floor(&clean, self.bounds.string));
            clean.push('…');
            if find::anything(&clean, self.context) {
                clean = OMITTED.to_owned();
            }
        }
        Value::String(clean)
    }
}

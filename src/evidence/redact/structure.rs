//! Values and command lines. A value is bounded before anything else is done with it (MA-TLS-12), then redacted by key and content.

use serde_json::{Map, Value};

use super::{Context, Count, OMITTED, Outcome, REDACTED, Redacted, STRING, keys, text};

/// What of a value is looked at (MA-TLS-12), and how much of the result is kept.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Values in all.
    pub nodes: usize,
    /// Bytes of strings in all.
    pub strings: usize,
    /// Items or keys of one collection.
    pub items: usize,
    /// Bytes of a key.
    pub key: usize,
    /// Collections within each other.
    pub depth: usize,
    /// Bytes of one string.
    pub string: usize,
    /// Bytes of the result; a larger one is omitted whole.
    pub result: usize,
}

impl Bounds {
    /// MA-TLS-12's bounds, for a result of so many bytes.
    pub fn for_result(result: usize) -> Bounds {
        Bounds { nodes: 2048, strings: 64 << 10, items: 512, key: 512, depth: 24, string: STRING, result }
    }
}

struct Walk<'a> {
    context: &'a Context,
    bounds: &'a Bounds,
    nodes: usize,
    strings: usize,
    redactions: u32,
    truncated: bool,
    /// Bytes seen, a lower bound once something was left out.
    bytes: u64,
}

/// A structured value as canonical JSON text.
pub fn value(input: &Value, context: &Context, bounds: &Bounds) -> Outcome {
    let mut walk = Walk { context, bounds, nodes: 0, strings: 0, redactions: 0, truncated: false, bytes: 0 };
    let clean = walk.node(input, 0);
    let mut json = clean.to_string();
    if json.len() > bounds.result {
        json = Value::from(OMITTED).to_string();
        walk.truncated = true;
    }
    let original_bytes = if walk.truncated {
        Count::AtLeast(walk.bytes)
    } else {
        Count::Exact(input.to_string().len() as u64)
    };
    Outcome { text: Redacted(json), original_bytes, truncated: walk.truncated, redactions: walk.redactions }
}

impl Walk<'_> {
    fn omit(&mut self) -> Value {
        self.truncated = true;
        Value::from(OMITTED)
    }

    /// Takes `bytes` of the strings that may be looked at.
    fn admit(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        let fits = bytes <= self.bounds.strings - self.strings;
        if fits {
            self.strings += bytes;
        }
        fits
    }

    fn string(&mut self, string: &str, bound: usize) -> Option<String> {
        if string.len() > bound || !self.admit(string.len()) {
            self.truncated = true;
            return None;
        }
        // Redaction may lengthen a text; it is not cut for that.
        let outcome = text(string.as_bytes(), self.context, usize::MAX);
        self.redactions = self.redactions.saturating_add(outcome.redactions);
        Some(outcome.text.0)
    }

    fn node(&mut self, input: &Value, depth: usize) -> Value {
        self.nodes += 1;
        if self.nodes > self.bounds.nodes || depth > self.bounds.depth {
            return self.omit();
        }
        match input {
            Value::String(string) => match self.string(string, self.bounds.string) {
                Some(clean) => Value::from(clean),
                None => self.omit(),
            },
            Value::Array(items) => {
                if items.len() > self.bounds.items {
                    return self.omit();
                }
                let mut out = Vec::with_capacity(items.len());
                // `["--password", "x"]` is a command line within a value.
                let mut next = false;
                for item in items {
                    if next && item.is_string() {
                        self.redactions += 1;
                        out.push(Value::from(REDACTED));
                        next = false;
                    } else {
                        next = item.as_str().is_some_and(announces);
                        out.push(self.node(item, depth + 1));
                    }
                }
                Value::Array(out)
            }
            Value::Object(members) => self.object(members, depth),
            plain => plain.clone(),
        }
    }

    fn object(&mut self, members: &Map<String, Value>, depth: usize) -> Value {
        if members.len() > self.bounds.items {
            return self.omit();
        }
        let mut out = Map::new();
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_by_key(|(key, _)| *key);
        for (key, member) in sorted {
            let Some(mut name) = self.string(key, self.bounds.key) else { continue };
            let base = name.clone();
            let mut n = 2;
            while out.contains_key(&name) || name != *key && members.contains_key(&name) {
                name = format!("{base}#{n}");
                n += 1;
            }
            let kind = keys::kind(key.as_bytes());
            let stays = match member {
                Value::Null | Value::Bool(_) => true,
                Value::Number(_) => kind == keys::Kind::Counted,
                Value::String(s) => keys::harmless(s.as_bytes(), kind),
                _ => false,
            };
            let clean = if kind == keys::Kind::No || stays {
                self.node(member, depth + 1)
            } else {
                self.redactions += 1;
                Value::from(REDACTED)
            };
            out.insert(name, clean);
        }
        Value::Object(out)
    }
}

/// Whether an argument says that the next one is secret.
fn announces(argument: &str) -> bool {
    argument.starts_with('-') && !argument.contains('=') && keys::kind(argument.as_bytes()) != keys::Kind::No
}

/// A command line, argument by argument.
pub fn arguments(argv: &[Vec<u8>], context: &Context) -> Vec<Outcome> {
    let program = argv
        .first()
        .map(|a| String::from_utf8_lossy(a).rsplit('/').next().unwrap_or_default().to_owned())
        .unwrap_or_default();
    let (next_flags, joined): (&[&str], &[&str]) = match program.as_str() {
        "curl" => (&["-u", "--user", "-U", "--proxy-user", "-b"], &["-u", "--user=", "-b"]),
        "mysql" | "mysqldump" | "mysqladmin" | "mariadb" => (&[], &["-p"]),
        "sshpass" => (&["-p"], &["-p"]),
        "docker" | "podman" | "skopeo" | "buildah" => (&["-p", "--creds"], &["--creds="]),
        "wget" | "http" | "https" => (&["-a", "--auth"], &["--auth="]),
        "redis-cli" | "7z" => (&["-a"], &["-a", "-p"]),
        _ => (&[], &[]),
    };
    let mut hidden = false;
    let mut out = Vec::with_capacity(argv.len());
    for argument in argv {
        let word = String::from_utf8_lossy(argument);
        let prefix = joined.iter().find(|p| {
            word.len() > p.len() && word.starts_with(**p) && !word.starts_with("--")
                || p.ends_with('=') && word.starts_with(**p)
        });
        let replaced =
            if hidden { Some(REDACTED.to_owned()) } else { prefix.map(|p| format!("{p}{REDACTED}")) };
        hidden = !hidden && (announces(&word) || next_flags.contains(&&*word));
        out.push(match replaced {
            Some(clean) => Outcome {
                text: Redacted(clean),
                original_bytes: Count::Exact(argument.len() as u64),
                truncated: false,
                redactions: 1,
            },
            None => text(argument, context, STRING),
        });
    }
    out
}

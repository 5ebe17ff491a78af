//! The only maker of text that a model, or a list of runs, may be shown of what a command, its arguments or an error said
//! (MA-RED-1, AH-TOOL-10): secrets, and paths that are the host's own business, are replaced before anything is cut.
//!
//! Text is looked at as it stands and then as it reads once its escapes are resolved, level by level. What is found as it
//! stands is replaced; what shows only in a deeper reading cannot be replaced safely, and the whole string is left out:
//! proven clean, or omitted. Everything is linear in the length of the input, which is bounded first, and pure.
//!
//! `docs/redaction.md` says what is caught and what is not.

mod find;
mod keys;
mod paths;
mod structure;
mod tokens;
mod unescape;

pub use structure::{Bounds, value};

use serde::{Serialize, Serializer};
use std::fmt;

/// Bytes of a call's arguments (MA-TLS-11).
pub const ARGUMENTS_BYTES_MAX: usize = 8 << 10;
/// Bytes of a call's result.
pub const RESULT_BYTES_MAX: usize = 16 << 10;
/// Bytes of one string.
pub const STRING_BYTES_MAX: usize = 4 << 10;
/// Bytes of the text that is searched.
pub const SEARCH_BYTES_MAX: usize = 8 << 10;
/// Bytes beyond a bound that are looked at as well, so that a secret which the cut goes through is seen whole.
const BEYOND_BYTES: usize = 32 << 10;
/// Secrets of a context that are looked for, at most, and their shortest length: a shorter one would be found everywhere.
const SECRETS_MAX: usize = 256;
const SECRET_BYTES_MIN: usize = 6;

/// In place of a secret.
pub const SECRET: &str = "[redacted]";
/// In place of a string that could not be proven clean.
pub const OMITTED: &str = "[omitted: may hold a secret]";

/// Text in which nothing is left that must not be shown. Made here and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Redacted(String);

impl Redacted {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text alone; what is made of it afterwards is its maker's to answer for.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Redacted {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

/// What becomes of absolute paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// Those that are the host's own business are replaced: for models and for what is kept of a call.
    #[default]
    Hide,
    /// They stay: for operators, whose host it is.
    Keep,
}

/// What is known of the host and the run.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The caller's home.
    pub home: Option<String>,
    /// The workspace: paths below it stay.
    pub workspace: Option<String>,
    /// What becomes of paths.
    pub paths: Paths,
    secrets: Vec<Vec<u8>>,
}

impl Context {
    /// Of a caller and a workspace.
    pub fn new(home: Option<String>, workspace: Option<String>, paths: Paths) -> Self {
        Self { home, workspace, paths, secrets: Vec::new() }
    }

    /// With a value that is known to be secret, such as a credential or the value of a variable with a telling name. It is
    /// found as it is, percent-encoded, in hexadecimal and in base64. Values shorter than 6 bytes are not looked for.
    #[must_use]
    pub fn with_secret(mut self, secret: &[u8]) -> Self {
        if secret.len() >= SECRET_BYTES_MIN && self.secrets.len() < SECRETS_MAX {
            self.secrets.extend(find::spellings(secret));
        }
        self
    }

    /// With every variable of an environment whose name tells that its value is secret.
    #[must_use]
    pub fn with_environment<'e>(self, environment: impl IntoIterator<Item = (&'e [u8], &'e [u8])>) -> Self {
        environment
            .into_iter()
            .filter(|(name, value)| {
                keys::is_sensitive(&String::from_utf8_lossy(name)) && !value.iter().all(u8::is_ascii_digit)
            })
            .fold(self, |context, (_, value)| context.with_secret(value))
    }
}

/// A text and what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What may be shown.
    pub text: Redacted,
    /// Bytes that there were.
    pub original_bytes: u64,
    /// Whether some of it is missing at the end.
    pub truncated: bool,
    /// How many places were replaced; 1 when the whole was omitted.
    pub redactions: u32,
}

/// Redacts `input` and then cuts it to `bound` bytes, at a character.
pub fn text(input: &[u8], context: &Context, bound: usize) -> Outcome {
    window(input, input.len() as u64, context, bound)
}

fn window(input: &[u8], original_bytes: u64, context: &Context, bound: usize) -> Outcome {
    let looked_at = bound.saturating_mul(2).saturating_add(2 * BEYOND_BYTES);
    let part = &input[..input.len().min(looked_at)];
    let partial = (part.len() as u64) < original_bytes;
    let shown = String::from_utf8_lossy(part);
    let (mut clean, redactions) = clean(&shown, context);
    if partial {
        // What the window's end goes through was not seen whole. A secret longer than this margin is one of those that
        // reach to the end of the text when their own end is missing.
        clean.truncate(floor(&clean, clean.len().saturating_sub(BEYOND_BYTES)));
    }
    let truncated = partial || clean.len() > bound;
    let mut cut = floor(&clean, bound);
    // Never through a placeholder.
    if let Some(open) = clean[..cut].rfind('[')
        && clean[open..].find(']').is_some_and(|close| open + close >= cut && close < 64)
    {
        cut = open;
    }
    clean.truncate(cut);
    Outcome { text: Redacted(clean), original_bytes, truncated, redactions }
}

/// The greatest boundary between characters that is not above `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Replaces what is found as the text stands; omits the text when a deeper reading of it shows more.
fn clean(text: &str, context: &Context) -> (String, u32) {
    let (out, count) = find::replace(text, context);
    let mut reading = out.clone();
    // Each level is shorter than the one before, so this ends; nobody nests escapes deeper for an honest reason.
    for _ in 0..unescape::LEVELS_MAX {
        let Some(deeper) = unescape::once(&reading) else { return (out, count) };
        if find::anything(&deeper, context) {
            return (OMITTED.to_owned(), 1);
        }
        reading = deeper;
    }
    if unescape::once(&reading).is_some() { (OMITTED.to_owned(), 1) } else { (out, count) }
}

/// A command line in one text: what a flag says is secret, and what each word holds, is replaced; words are quoted for a
/// POSIX shell. Bounded by [`ARGUMENTS_BYTES_MAX`].
pub fn arguments(argv: &[Vec<u8>], context: &Context) -> Redacted {
    let mut out = String::new();
    let mut flag = None;
    for (n, word) in argv.iter().enumerate() {
        if out.len() > ARGUMENTS_BYTES_MAX {
            break;
        }
        let shown = String::from_utf8_lossy(&word[..word.len().min(ARGUMENTS_BYTES_MAX + BEYOND_BYTES)]);
        let secret = flag.take().is_some_and(|flag: Flag| flag.takes(&shown));
        let clean = if secret { SECRET.to_owned() } else { clean(&shown, context).0 };
        flag = Flag::of(&shown, argv.first().filter(|_| n > 0));
        if n > 0 {
            out.push(' ');
        }
        out.push_str(&quoted(&clean));
    }
    if out.len() > ARGUMENTS_BYTES_MAX {
        out.truncate(floor(&out, ARGUMENTS_BYTES_MAX));
        out.push('…');
    }
    // Words that are harmless one by one may say something together.
    Redacted(find::replace(&out, context).0)
}

/// A flag whose value is the next word.
enum Flag {
    /// A secret.
    Secret,
    /// `user:password`.
    UserAndPassword,
}

impl Flag {
    fn of(word: &str, program: Option<&Vec<u8>>) -> Option<Self> {
        let program = program.map(|p| String::from_utf8_lossy(p));
        let name = program.as_deref().map(|p| p.rsplit('/').next().unwrap_or(p)).unwrap_or_default();
        match (word, name) {
            ("-u" | "--user" | "-U" | "--proxy-user", "curl") => Some(Self::UserAndPassword),
            ("--password" | "-p" | "--http-password", "wget" | "sshpass" | "mysql" | "docker" | "podman") => {
                Some(Self::Secret)
            }
            _ => {
                let long = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
                (!long.contains('=') && keys::is_sensitive(long)).then_some(Self::Secret)
            }
        }
    }

    fn takes(&self, word: &str) -> bool {
        match self {
            Self::Secret => !word.starts_with('-') && !word.is_empty(),
            Self::UserAndPassword => word.contains(':'),
        }
    }
}

/// A word as a POSIX shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A text that comes in pieces: it is joined before it is looked at, so that a secret across a cut is one secret.
#[derive(Debug)]
pub struct Stream {
    kept: Vec<u8>,
    total: u64,
    bound: usize,
}

impl Stream {
    /// For a text of which at most `bound` bytes will be shown. Keeps about twice as many, and 64 KiB.
    pub fn new(bound: usize) -> Self {
        Self { kept: Vec::new(), total: 0, bound }
    }

    /// The next piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.total = self.total.saturating_add(piece.len() as u64);
        let most = self.bound.saturating_mul(2).saturating_add(2 * BEYOND_BYTES);
        let room = most.saturating_sub(self.kept.len()).min(piece.len());
        self.kept.extend_from_slice(&piece[..room]);
    }

    /// What may be shown of it.
    pub fn finish(self, context: &Context) -> Outcome {
        window(&self.kept, self.total, context, self.bound)
    }
}

#[cfg(test)]
mod tests;

//! Redaction (MA-RED-1): the only maker of text for models and lifecycle records. Pure: no file, clock or environment.
//!
//! The text is looked at as it stands and in decoded views (`views`), each mapped back onto the text; scanners (`keys`, `shapes`,
//! `paths`) name spans to replace. This repeats until nothing changes, so that redacting twice is redacting once; what does
//! not come to rest, or cannot be proven clean (`proof`), is omitted whole. Every scanner is linear; nothing is compiled at start.

mod keys;
#[cfg(test)]
mod more_tests;
mod paths;
mod proof;
mod shapes;
mod structure;
#[cfg(test)]
mod tests;
mod views;

use std::fmt;

use serde::Serialize;

pub use structure::{Bounds, arguments, value};

/// Bytes kept of a call's arguments (MA-TLS-11).
pub const ARGUMENTS: usize = 8 << 10;
/// Bytes kept of a call's result (MA-TLS-11).
pub const RESULT: usize = 16 << 10;
/// Bytes kept of one string (MA-TLS-11).
pub const STRING: usize = 4 << 10;
/// Bytes kept of the text that is searched (MA-TLS-11).
pub const SEARCH: usize = 8 << 10;
/// Bytes read beyond the bound, so that a secret at the bound is seen whole.
const MARGIN: usize = 64 << 10;
/// Bytes before the end of what was read that are never shown when more followed.
const EDGE: usize = 8 << 10;
/// Rounds after which a text that still changes is omitted.
const ROUNDS: usize = 6;

/// Stands for a secret.
pub const REDACTED: &str = "[redacted]";
/// Stands for a text that could not be proven clean.
pub const OMITTED: &str = "[omitted]";

/// Text that may be shown to a model or kept in lifecycle records. Only this module makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Redacted(String);

impl Redacted {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value known to be secret. Its `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Bytes below which a value is not looked for: it would be found everywhere.
    pub const MIN: usize = 6;

    /// Bytes above which a value is not looked for: what searching costs grows with it.
    pub const MAX: usize = 8 << 10;

    /// `None` for values shorter than [`Secret::MIN`] or longer than [`Secret::MAX`].
    pub fn new(value: impl Into<Vec<u8>>) -> Option<Secret> {
        let value = value.into();
        (Secret::MIN..=Secret::MAX).contains(&value.len()).then_some(Secret(value))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What becomes of absolute paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// Those of the host are replaced: for models, and for what is kept of a call.
    #[default]
    Hide,
    /// They stay: for operators, whose host it is.
    Keep,
}

/// What is known about this host and run.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The caller's home.
    pub home: Option<String>,
    /// The workspace, whose own paths stay readable.
    pub workspace: Option<String>,
    /// What becomes of paths.
    pub paths: Paths,
    /// The known secrets in every spelling.
    needles: Vec<Vec<u8>>,
    secrets: usize,
}

impl Context {
    /// Secrets that are looked for at most; those after them are known by their shape and surroundings alone.
    pub const SECRETS_MAX: usize = 256;

    /// Of a caller and a workspace.
    pub fn new(home: Option<String>, workspace: Option<String>, paths: Paths) -> Self {
        Self { home, workspace, paths, ..Self::default() }
    }

    /// With a value that is known to be secret: found as it is and in base64, hexadecimal and percent encoding.
    #[must_use]
    pub fn with_secret(mut self, secret: &Secret) -> Self {
        if self.secrets < Self::SECRETS_MAX {
            self.secrets += 1;
            shapes::needles(secret, &mut self.needles);
        }
        self
    }

    /// With the value of every variable whose name says that it is secret.
    #[must_use]
    pub fn with_environment<'e>(self, environment: impl IntoIterator<Item = (&'e [u8], &'e [u8])>) -> Self {
        environment.into_iter().fold(self, |context, (name, value)| {
            let kind = keys::kind(name);
            if kind == keys::Kind::No || keys::harmless(value, kind) {
                return context;
            }
            match Secret::new(value) {
                Some(secret) => context.with_secret(&secret),
                None => context,
            }
        })
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// All were counted.
    Exact(u64),
    /// There were at least so many.
    AtLeast(u64),
}

/// A redacted text and what became of the original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What may be shown.
    pub text: Redacted,
    /// Size of the original.
    pub original_bytes: Count,
    /// Whether anything was left out because of a bound.
    pub truncated: bool,
    /// Places replaced.
    pub redactions: u32,
}

/// A part of a text and what takes its place.
#[derive(Debug, Clone)]
struct Span {
    start: usize,
    end: usize,
    with: String,
}

/// Redacts `input`, then cuts it to `bound` bytes. What is not UTF-8 becomes U+FFFD.
pub fn text(input: &[u8], context: &Context, bound: usize) -> Outcome {
    bounded(input, input.len() as u64, context, bound)
}

fn bounded(read: &[u8], total: u64, context: &Context, bound: usize) -> Outcome {
    let window = bound.saturating_add(MARGIN);
    let cut = read.len() > window || total > read.len() as u64;
    let read = &read[..read.len().min(window)];
    let source = String::from_utf8_lossy(read);
    let (mut out, redactions) = settle(&source, context, cut);
    let mut truncated = cut;
    let mut rounds = 0;
    while out.len() > bound {
        truncated = true;
        rounds += 1;
        shorten(&mut out, bound);
        // A cut may make a text that reads differently: it is judged again.
        let again = settle(&out, context, false).0;
        if again != out && rounds >= ROUNDS {
            out = String::new();
        } else {
            out = again;
        }
    }
    Outcome { text: Redacted(out), original_bytes: Count::Exact(total), truncated, redactions }
}

/// Cuts at a character, and before a placeholder rather than in it.
fn shorten(text: &mut String, bound: usize) {
    let mut end = floor(text, bound);
    if let Some(open) = text[..end].rfind('[') {
        let rest = &text[open..];
        for placeholder in [REDACTED, OMITTED, paths::HOST, paths::HOME, paths::PRIVATE] {
            if rest.starts_with(placeholder) && open + placeholder.len() > end {
                end = open;
                break;
            }
        }
    }
    text.truncate(end);
}

/// Redacts until nothing changes.
fn settle(source: &str, context: &Context, cut: bool) -> (String, u32) {
    let mut text = source.to_owned();
    let mut count = 0u32;
    for round in 0..ROUNDS {
        let Some(views) = views::of(&text) else { return (OMITTED.to_owned(), count + 1) };
        let mut spans = Vec::new();
        for view in &views {
            let from = spans.len();
            shapes::exact(&view.text, &context.needles, &mut spans);
            shapes::keys(&view.text, &mut spans);
            shapes::urls(&view.text, &mut spans);
            shapes::tokens(&view.text, &mut spans);
            keys::assignments(&view.text, &mut spans);
            if context.paths == Paths::Hide {
                paths::find(&view.text, context, &mut spans);
            }
            for span in &mut spans[from..] {
                (span.start, span.end) = (view.map[span.start], view.map[span.end]);
            }
        }
        let end = if cut && round == 0 { edge(&text) } else { text.len() };
        let (next, replaced) = render(&text, spans, end);
        count = count.saturating_add(replaced);
        if next == text {
            return if proof::clean(&text) { (text, count) } else { (OMITTED.to_owned(), count + 1) };
        }
        text = next;
    }
    (OMITTED.to_owned(), count.saturating_add(1))
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn ceil(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Where showing has to stop when the text goes on: a word that reaches the end may be a part of a secret.
fn edge(text: &str) -> usize {
    let near = text.len().saturating_sub(EDGE);
    let word = text.rfind(|c: char| c.is_ascii_whitespace()).map_or(0, |at| at + 1);
    floor(text, near.min(word))
}

fn render(text: &str, mut spans: Vec<Span>, end: usize) -> (String, u32) {
    spans.retain(|span| span.start < span.end);
    spans.sort_by(|a, b| a.start.cmp(&b.start).then(b.end.cmp(&a.end)));
    let mut merged: Vec<Span> = Vec::new();
    for mut span in spans {
        span.start = floor(text, span.start);
        span.end = ceil(text, span.end);
        match merged.last_mut() {
            Some(last) if span.start < last.end => {
                let secret = span.with == REDACTED && last.with != REDACTED;
                if span.end > last.end || secret {
                    last.end = last.end.max(span.end);
                    last.with = REDACTED.to_owned();
                }
            }
            _ => merged.push(span),
        }
    }
    let mut out = String::with_capacity(text.len());
    let (mut at, mut count) = (0, 0);
    for span in merged {
        if span.start >= end {
            break;
        }
        out.push_str(&text[at..span.start]);
        out.push_str(&span.with);
        if text[span.start..span.end] != span.with {
            count += 1;
        }
        at = span.end;
    }
    if at < end {
        out.push_str(&text[at..end]);
    }
    (out, count)
}

/// Joins chunks, so that a secret split over them is seen whole. Keeps at most [`Stream::MAX`] bytes.
#[derive(Debug, Default)]
pub struct Stream {
    kept: Vec<u8>,
    total: u64,
}

impl Stream {
    /// Bytes kept at most: the largest bound and the margin beyond it.
    pub const MAX: usize = RESULT + MARGIN;

    /// Takes the next chunk.
    pub fn push(&mut self, chunk: &[u8]) {
        let room = Stream::MAX - self.kept.len();
        self.kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        self.total = self.total.saturating_add(chunk.len() as u64);
    }

    /// The redacted text, cut to `bound` bytes (at most [`RESULT`]).
    pub fn finish(self, context: &Context, bound: usize) -> Outcome {
        bounded(&self.kept, self.total, context, bound.min(RESULT))
    }
}

//! Sensitive names and what is assigned to them, in whatever notation: shell, JSON, YAML, INI, HTTP, XML, Python, PowerShell.

use super::{REDACTED, Span};

/// Parts that make a name sensitive wherever they stand in it, separators and case aside.
const PARTS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passwort",
    "secret",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "authorization",
    "cookie",
    "accountkey",
    "encryptionkey",
    "signingkey",
    "masterkey",
    "sessionid",
    "connectionstring",
    "bearer",
];
/// Words that make a name sensitive as a whole part of it.
const WORDS: &[&str] = &[
    "token",
    "tokens",
    "auth",
    "jwt",
    "pwd",
    "authtoken",
    "accesstoken",
    "refreshtoken",
    "idtoken",
    "passcode",
];
/// Last words of names that speak of a secret without being one.
const ABOUT: &[&str] =
    &["type", "count", "limit", "usage", "budget", "len", "length", "size", "expiry", "expires", "ttl"];
/// Last words that make a name a file's.
const FILES: &[&str] = &[
    "rs", "c", "h", "cc", "cpp", "hpp", "py", "js", "ts", "tsx", "jsx", "go", "java", "kt", "rb", "php",
    "md", "json", "toml", "yaml", "yml", "txt", "lock", "sh", "html", "css", "lua", "snap",
];
/// Values that say nothing.
const PLAIN: &[&str] = &[
    "null",
    "none",
    "nil",
    "undefined",
    "true",
    "false",
    "string",
    "str",
    "&str",
    "bool",
    "ok",
    "passed",
    "failed",
    "required",
    "ignored",
    "skipped",
    "error",
    "missing",
];
/// Bytes of a name that are looked at, from its end.
const NAME: usize = 128;

fn word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.')
}

/// How sensitive a name is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    No,
    /// Its numbers are no secret: `max_tokens`, `cookie = "0.18"`.
    Counted,
    Secret,
    /// A header whose value is the whole rest of the line.
    Header,
}

/// Judges a name in any spelling.
pub fn kind(name: &[u8]) -> Kind {
    let name = &name[name.len().saturating_sub(NAME)..];
    let mut flat = String::with_capacity(name.len());
    let mut starts = Vec::new();
    let mut before = b'_';
    for (i, c) in name.iter().enumerate() {
        if c.is_ascii_alphanumeric() {
            let hump = c.is_ascii_uppercase()
                && (before.is_ascii_lowercase()
                    || name.get(i + 1).is_some_and(u8::is_ascii_lowercase) && before.is_ascii_uppercase());
            if !before.is_ascii_alphanumeric() || hump {
                starts.push(flat.len());
            }
            flat.push(char::from(c.to_ascii_lowercase()));
        }
        before = *c;
    }
    let words =
        || (0..starts.len()).map(|i| &flat[starts[i]..starts.get(i + 1).copied().unwrap_or(flat.len())]);
    let last = words().next_back().unwrap_or_default();
    if flat == "pwd" || flat == "oldpwd" || ABOUT.contains(&last) {
        return Kind::No;
    }
    if flat.ends_with("authorization")
        || flat.ends_with("cookie") && name.iter().any(|c| c.is_ascii_uppercase())
    {
        return Kind::Header;
    }
    if flat.contains("cookie") {
        return Kind::Counted;
    }
    let dbpass = starts.len() > 1 && last == "pass" || matches!(&*flat, "dbpass" | "userpass" | "pgpassword");
    if dbpass || PARTS.iter().any(|part| flat.contains(part)) {
        return if flat.contains("token") { Kind::Counted } else { Kind::Secret };
    }
    if words().any(|w| WORDS.contains(&w)) || flat.ends_with("token") {
        return if flat.contains("token") { Kind::Counted } else { Kind::Secret };
    }
    Kind::No
}

fn names_file(name: &[u8]) -> bool {
    let dot = name.iter().rposition(|c| *c == b'.');
    dot.is_some_and(|dot| FILES.iter().any(|e| e.as_bytes() == &name[dot + 1..]))
}

/// Whether a value may stay under a name of this kind.
pub fn harmless(value: &[u8], kind: Kind) -> bool {
    let number = !value.is_empty()
        && value.len() <= 20
        && value.iter().any(u8::is_ascii_digit)
        && value.iter().all(|c| c.is_ascii_digit() || matches!(c, b'.' | b'^' | b'~' | b':' | b'-'));
    // A comma between quotes: what a compiler expected, not what it was told.
    let punctuation = value.len() <= 3 && !value.iter().any(u8::is_ascii_alphanumeric);
    punctuation
        || [&b"[redacted]"[..], b"[omitted]", b"[redacted", b"[omitted"].contains(&value)
        || kind == Kind::Counted && (number || counted(value))
        || PLAIN.iter().any(|plain| plain.as_bytes().eq_ignore_ascii_case(value))
}

/// A number in a list, as logs have them: `max_tokens: 4096, total_tokens: 12`.
fn counted(value: &[u8]) -> bool {
    let digits = value.iter().take_while(|c| c.is_ascii_digit()).count();
    (1..=12).contains(&digits) && matches!(value.get(digits..digits + 2), Some([b',' | b';', b' ']))
}

fn skip(text: &[u8], mut at: usize, set: &[u8]) -> usize {
    while at < text.len() && set.contains(&text[at]) {
        at += 1;
    }
    at
}

/// The words of a text: start and end.
pub fn names(text: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < text.len() && !word(text[at]) {
            at += 1;
        }
        let start = at;
        while at < text.len() && word(text[at]) {
            at += 1;
        }
        (start < at).then_some((start, at))
    })
}

/// Names the values of sensitive names.
pub fn assignments(text: &[u8], spans: &mut Vec<Span>) {
    let mut done = 0;
    for (start, end) in names(text) {
        // Within a value only a name whose own value begins where that one ends: `a='b=\'secret'`. So the work stays linear.
        if end + 16 < done {
            continue;
        }
        let kind = kind(&text[start..end]);
        if kind == Kind::No {
            continue;
        }
        if let Some((from, to)) = value(text, start, end, kind)
            && !harmless(&text[from..to], kind)
        {
            spans.push(Span { start: from, end: to, with: REDACTED.to_owned() });
            done = done.max(to);
        }
    }
}

/// Where the value of the name at `start..end` lies.
fn value(text: &[u8], start: usize, end: usize, kind: Kind) -> Option<(usize, usize)> {
    let quoted = matches!(text.get(end), Some(b'"' | b'\'' | b'`'));
    let blanks: &[u8] = if quoted { b" \t\r\n" } else { b" \t" };
    let mut at = skip(text, end, b"\"'`]\\)");
    at = skip(text, at, blanks);
    // `<password>value</password>`
    if start > 0 && text[start - 1] == b'<' && text.get(at) == Some(&b'>') {
        let close = text[at + 1..].iter().position(|c| *c == b'<').map_or(text.len(), |n| at + 1 + n);
        return Some((at + 1, close));
    }
    let operator = at;
    at = skip(text, at, b":=+?!>");
    let operator = &text[operator..at];
    let assigns = operator.contains(&b'=') || operator == b":";
    // A malformed document without its colon: `"password" "x"`.
    let beside = operator.is_empty()
        && quoted
        && text[at - 1].is_ascii_whitespace()
        && matches!(text.get(at), Some(b'"' | b'\''));
    let flag = operator.is_empty() && start > 0 && text[start..].starts_with(b"--");
    if !assigns && !flag && !beside || operator == b":" && names_file(&text[start..end]) {
        return None;
    }
    at = skip(text, at, blanks);
    // Python's and others' prefixes of a literal.
    if matches!(text.get(at), Some(b'b' | b'r' | b'u' | b'f' | b'$' | b'@'))
        && matches!(text.get(at + 1), Some(b'"' | b'\''))
    {
        at += 1;
    }
    match *text.get(at)? {
        quote @ (b'"' | b'\'' | b'`') => {
            let run = text[at..].iter().take_while(|c| **c == quote).count();
            if run == 2 {
                return None;
            }
            let width = if run >= 3 { 3 } else { 1 };
            Some((at + width, closing(text, at + width, quote, width)))
        }
        b'[' if text[at..].starts_with(b"[redacted]") || text[at..].starts_with(b"[omitted]") => None,
        b'{' | b'[' if quoted => Some((at, balanced(text, at))),
        b'|' | b'>' if operator == b":" => Some((at, block(text, start, at))),
        _ if kind == Kind::Header || operator == b":" && first_on_line(text, start) => {
            Some((at, line_or_quote(text, at)))
        }
        _ => Some((at, bare(text, at))),
    }
}

fn closing(text: &[u8], mut at: usize, quote: u8, width: usize) -> usize {
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            c if c == quote
                && (width == 1 || text[at..].iter().take(3).filter(|c| **c == quote).count() == 3) =>
            {
                return at;
            }
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// The end of a bracketed value, or of the text when it is not closed.
fn balanced(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0usize;
    while at < text.len() {
        match text[at] {
            b'"' => at = closing(text, at + 1, b'"', 1),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    text.len()
}

fn first_on_line(text: &[u8], start: usize) -> bool {
    // Bounded: indentation deeper than this is not read.
    text[start.saturating_sub(64)..start]
        .iter()
        .rev()
        .find(|c| !matches!(c, b' ' | b'\t' | b'-'))
        .is_none_or(|c| *c == b'\n')
}

fn line_or_quote(text: &[u8], at: usize) -> usize {
    let mut end = text[at..]
        .iter()
        .position(|c| matches!(c, b'\n' | b'\r' | b'"' | b'\''))
        .map_or(text.len(), |n| at + n);
    while end > at && matches!(text[end - 1], b' ' | b'\t' | b',') {
        end -= 1;
    }
    end
}

/// The end of a YAML block: the first line that is indented no deeper than its name.
fn block(text: &[u8], start: usize, at: usize) -> usize {
    let depth = text[..start].iter().rev().take(256).take_while(|c| **c == b' ').count();
    let mut end = text[at..].iter().position(|c| *c == b'\n').map_or(text.len(), |n| at + n);
    while end < text.len() {
        let line = &text[end + 1..];
        let indent = line.iter().take_while(|c| **c == b' ').count();
        if line.get(indent).is_none_or(|c| *c != b'\n') && indent <= depth {
            break;
        }
        end = line.iter().position(|c| *c == b'\n').map_or(text.len(), |n| end + 1 + n);
    }
    end
}

/// The end of a value without quotes: a blank or quote, or punctuation that something else follows.
fn bare(text: &[u8], mut at: usize) -> usize {
    while let Some(c) = text.get(at) {
        match c {
            b' ' | b'\t' | b'\n' | b'\r' | b'"' | b'\'' | b'`' => break,
            b',' | b';' | b'&' | b')' | b'}' | b']' | b'|' | b'<' | b'>' => {
                let rest = &text[at + 1..];
                let name = rest.iter().take(64).take_while(|c| word(**c)).count();
                let next = rest.get(name);
                if name == 0
                    && next.is_none_or(|c| {
                        !c.is_ascii_alphanumeric() && !matches!(c, b'$' | b'!' | b'#' | b'@' | b'%')
                    })
                    || name > 0 && matches!(next, Some(b'=' | b':'))
                {
                    break;
                }
            }
            _ => {}
        }
        at += 1;
    }
    at
}

//! Where secrets and hidden paths stand in a text: one walk, a decision at the beginning of each word, and what a decision
//! covers is never looked at again.

use super::keys::{is_header, is_name_char, is_sensitive};
use super::{Context, OMITTED, SECRET, paths, tokens};
use crate::base::canon::{b64, hex};
use std::fmt::Write as _;

/// Replaces everything that is found: the new text, and how many places.
pub fn replace(text: &str, context: &Context) -> (String, u32) {
    let mut out = String::with_capacity(text.len());
    let (mut done, mut count) = (0, 0u32);
    walk(text, context, |start, end, with| {
        out.push_str(&text[done..start]);
        out.push_str(with);
        done = end;
        count = count.saturating_add(1);
        true
    });
    out.push_str(&text[done..]);
    (out, count)
}

/// Whether there is anything to replace.
pub fn anything(text: &str, context: &Context) -> bool {
    let mut found = false;
    walk(text, context, |_, _, _| {
        found = true;
        false
    });
    found
}

/// Calls `hit(start, end, replacement)` for each place, in order, until it says `false`.
fn walk(text: &str, context: &Context, mut hit: impl FnMut(usize, usize, &str) -> bool) {
    let known = known(text, context);
    let mut known = known.iter().peekable();
    let mut at = 0;
    let mut before: Option<char> = None;
    while let Some(c) = text[at..].chars().next() {
        while known.next_if(|(_, end)| *end <= at).is_some() {}
        let found = known
            .peek()
            .filter(|(start, _)| *start <= at)
            .map(|(_, end)| (at, *end, SECRET.to_owned()))
            .or_else(|| place(text, at, c, before, context));
        match found {
            Some((start, end, with)) => {
                if !hit(start, end, &with) {
                    return;
                }
                before = text[..end].chars().next_back();
                at = end.max(at + c.len_utf8());
            }
            None => {
                // The rest of a word whose beginning is nothing is nothing, but for what may stand inside of it.
                before = Some(c);
                at += c.len_utf8();
            }
        }
    }
}

/// Known values, in whatever spelling.
fn known(text: &str, context: &Context) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for secret in &context.secrets {
        let Ok(secret) = std::str::from_utf8(secret) else { continue };
        all.extend(text.match_indices(secret).map(|(at, found)| (at, at + found.len())));
    }
    all.sort_unstable();
    // Overlapping ones become one.
    let mut merged: Vec<(usize, usize)> = Vec::with_capacity(all.len());
    for (start, end) in all {
        match merged.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The spellings in which a secret is looked for.
pub fn spellings(secret: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![secret.to_vec(), hex(secret).into_bytes()];
    let mut percent = String::new();
    for b in secret {
        if b.is_ascii_alphanumeric() || b"-._~".contains(b) {
            percent.push(char::from(*b));
        } else {
            let _ = write!(percent, "%{b:02X}");
        }
    }
    all.push(percent.into_bytes());
    // Base64 of a text that holds the secret: three alignments, without the characters that its neighbours have a part in.
    for shift in 0..3usize {
        let mut padded = vec![0u8; shift];
        padded.extend_from_slice(secret);
        let encoded = b64(&padded);
        let from = (shift * 8).div_ceil(6);
        let to = padded.len() * 8 / 6;
        if let Some(inner) = encoded.get(from..to).filter(|inner| inner.len() >= 8) {
            all.push(inner.replace('+', "-").replace('/', "_").into_bytes());
            all.push(inner.as_bytes().to_vec());
        }
    }
    all.sort();
    all.dedup();
    all
}

type Place = (usize, usize, String);

/// What begins at `at`.
fn place(text: &str, at: usize, c: char, before: Option<char>, context: &Context) -> Option<Place> {
    let secret = |start: usize, end: usize| Some((start, end, SECRET.to_owned()));
    match c {
        '-' if text[at..].starts_with("-----BEGIN ") => key_block(text, at).and_then(|end| secret(at, end)),
        '/' | '~' => paths::at(text, at, context).map(|(end, with)| (at, end, with)),
        ':' if text[at..].starts_with("://") => {
            let (start, end) = user_info(text, at + 3)?;
            secret(start, end)
        }
        _ if is_name_char(c) && !before.is_some_and(|b| is_name_char(b)) => {
            if let Some(length) = tokens::at(&text[at..]) {
                return secret(at, at + length);
            }
            let rest = &text[at..];
            let name = &rest[..rest.find(|c| !is_name_char(c)).unwrap_or(rest.len())];
            let end = at + name.len();
            if let Some((start, end)) = scheme(text, name, end) {
                return secret(start, end);
            }
            // A flag's dashes are no part of its name.
            let bare = name.trim_start_matches('-');
            let value =
                if is_sensitive(bare) { assigned(text, bare, end, name.starts_with('-')) } else { None };
            let (start, end) =
                value.or_else(|| inside(name).map(|(from, length)| (at + from, at + from + length)))?;
            secret(start, end)
        }
        _ => None,
    }
}

/// A token in a word that begins otherwise: `prefix-ghp_…`, `a.sk-…`.
fn inside(name: &str) -> Option<(usize, usize)> {
    name.char_indices()
        .filter(|(_, c)| matches!(c, '-' | '_' | '.'))
        .take(32)
        .find_map(|(at, _)| tokens::at(&name[at + 1..]).map(|length| (at + 1, length)))
}

/// A block of a private key: to its end, or to the end of the text when that is missing.
fn key_block(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    let label = &rest[..rest
        .find("-----")
        .and_then(|f| rest[f + 5..].find("-----").map(|l| f + 5 + l))
        .unwrap_or(rest.len().min(80))
        .min(rest.len())];
    let secret =
        ["PRIVATE KEY", "PGP PRIVATE", "OPENSSH", "ENCRYPTED MESSAGE"].iter().any(|w| label.contains(w));
    if !secret {
        return None;
    }
    let end = rest.find("-----END").and_then(|end| {
        let after = &rest[end + 8..];
        after.find("-----").map(|close| end + 8 + close + 5)
    });
    Some(at + end.unwrap_or(rest.len()))
}

/// The user part of an authority that holds a password, or is a token itself.
fn user_info(text: &str, from: usize) -> Option<(usize, usize)> {
    let rest = &text[from..];
    let authority =
        &rest[..rest.find(|c: char| c.is_whitespace() || "/?#\"'`<>".contains(c)).unwrap_or(rest.len())];
    let user = &authority[..authority.rfind('@')?];
    let is_secret = user.contains(':') || user.len() >= 16;
    (is_secret && !user.is_empty() && user != SECRET).then_some((from, from + user.len()))
}

/// `Bearer x`, `Basic x`, `token x`: the value after a scheme of HTTP's.
fn scheme(text: &str, name: &str, end: usize) -> Option<(usize, usize)> {
    if !["bearer", "basic", "negotiate"].iter().any(|s| name.eq_ignore_ascii_case(s)) {
        return None;
    }
    let rest = text[end..].strip_prefix(' ')?;
    let value = &rest
        [..rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-._~+/=".contains(c))).unwrap_or(rest.len())];
    let random =
        value.len() >= 16 || value.len() >= 8 && value.bytes().any(|b| b.is_ascii_digit() || b == b'=');
    random.then_some((end + 1, end + 1 + value.len()))
}

/// The value that follows a telling name which ends at `end`: after `=`, `:`, `=>`, `:=`, in whatever quotes, or as the
/// next word when the name is a flag.
fn assigned(text: &str, name: &str, end: usize, flag: bool) -> Option<(usize, usize)> {
    let mut at = end;
    let skip = |at: &mut usize, what: &[char], most: usize| {
        let rest = &text[*at..];
        let taken =
            rest.chars().take(most).take_while(|c| what.contains(c)).map(char::len_utf8).sum::<usize>();
        *at += taken;
        taken
    };
    // What closes the name: quotes, escaped ones, brackets of an index.
    skip(&mut at, &['"', '\'', '\\', ']', '`'], 6);
    // `auth::login` is a path of another kind.
    if text[at..].starts_with("::") {
        return None;
    }
    let spaces = skip(&mut at, &[' ', '\t'], 64);
    let operator = skip(&mut at, &['=', ':', '>', '?'], 3);
    let by_space = operator == 0 && flag && spaces > 0;
    if operator == 0 && !by_space {
        return None;
    }
    skip(&mut at, &[' ', '\t'], 64);
    if is_header(name) {
        let rest = &text[at..];
        let line = rest.find(['\r', '\n', '"']).unwrap_or(rest.len());
        return worth(&rest[..line]).then_some((at, at + line));
    }
    let rest = &text[at..];
    let slashes = rest.bytes().take_while(|b| *b == b'\\').count();
    let quote = rest[slashes..].chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
    let (start, stop) = match quote {
        Some(quote) => {
            let start = at + slashes + 1;
            (start, start + closing(&text[start..], quote, slashes))
        }
        None => {
            let stop =
                rest.find(|c: char| c.is_whitespace() || "\"'`,;&|)]}<>\\".contains(c)).unwrap_or(rest.len());
            (at, at + stop)
        }
    };
    let value = &text[start..stop];
    if by_space && value.starts_with('-') {
        return None;
    }
    worth(value).then_some((start, stop))
}

/// Where the quote closes: at one with as many backslashes before it as the opening one had, or at the end of the text.
fn closing(rest: &str, quote: char, slashes: usize) -> usize {
    let mut run = 0;
    for (at, c) in rest.char_indices() {
        if c == quote && run <= slashes {
            return at - run;
        }
        run = if c == '\\' { run + 1 } else { 0 };
    }
    rest.len()
}

/// Whether a value is one: numbers under telling names stay (`max_token: 4096`), and so do words that say that there is
/// none, references to variables, and what was replaced already.
fn worth(value: &str) -> bool {
    let value = value.trim();
    let number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'_');
    let none = [
        "true",
        "false",
        "null",
        "none",
        "nil",
        "undefined",
        "yes",
        "no",
        "required",
        "string",
        "str",
        "bytes",
    ]
    .iter()
    .any(|w| value.eq_ignore_ascii_case(w));
    let reference = value.starts_with('$')
        || value.starts_with("%(")
        || value.starts_with("{{")
        || value.starts_with("process.env");
    let punctuation = !value.chars().any(char::is_alphanumeric);
    !(number
        || none
        || reference
        || punctuation
        || OMITTED.starts_with(value)
        || value.starts_with(SECRET.trim_end_matches(']')))
}

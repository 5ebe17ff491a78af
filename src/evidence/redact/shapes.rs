//! Secrets known by value or by shape: exact values, private-key blocks, credentials in URLs, tokens of known issuers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{REDACTED, Secret, Span};

/// Issuers' prefixes, and how many token characters follow at least.
const PREFIXES: &[(&str, usize)] = &[
    ("AKIA", 16),
    ("ASIA", 16),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("glpat-", 16),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("xoxa-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    ("sk_live_", 12),
    ("sk_test_", 12),
    ("rk_live_", 12),
    ("whsec_", 16),
    ("sk-", 20),
    ("AIza", 30),
    ("ya29.", 16),
    ("npm_", 30),
    ("pypi-", 30),
    ("SG.", 30),
    ("AGE-SECRET-KEY-", 20),
    ("hf_", 24),
    ("dop_v1_", 32),
    ("doo_v1_", 32),
    ("hvs.", 16),
    ("hvb.", 16),
    ("shpat_", 24),
    ("lin_api_", 24),
    ("dckr_pat_", 16),
    ("gsk_", 30),
    ("xai-", 30),
    ("eyJ", 30),
];

fn token(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.')
}

fn secret(start: usize, end: usize) -> Span {
    Span { start, end, with: REDACTED.to_owned() }
}

fn find(text: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    // Linear for the fixed needles; for known secrets bounded by their length.
    let hay = text.get(from..)?;
    let first = *needle.first()?;
    let mut at = 0;
    while let Some(n) = hay[at..].iter().position(|c| *c == first) {
        at += n;
        if hay[at..].starts_with(needle) {
            return Some(from + at);
        }
        at += 1;
    }
    None
}

/// Adds the spellings of a secret.
pub fn needles(Secret(value): &Secret, needles: &mut Vec<Vec<u8>>) {
    {
        needles.push(value.clone());
        needles.extend(value.split(|c| *c == b'\n').filter(|line| line.len() >= 16).map(<[u8]>::to_vec));
        needles.push(value.iter().flat_map(|c| format!("{c:02x}").into_bytes()).collect());
        needles.push(value.iter().flat_map(|c| format!("{c:02X}").into_bytes()).collect());
        // The three alignments within a longer base64 text, without the characters that depend on the neighbours.
        for shift in 0..3 {
            let mut padded = vec![0; shift];
            padded.extend_from_slice(value);
            let encoded = STANDARD.encode(&padded).into_bytes();
            let from = [0, 2, 3][shift];
            let to = (padded.len() * 8 / 6).min(encoded.len());
            if to > from + 6 {
                let middle = encoded[from..to].to_vec();
                let url = middle
                    .iter()
                    .map(|c| match c {
                        b'+' => b'-',
                        b'/' => b'_',
                        c => *c,
                    })
                    .collect();
                needles.push(url);
                needles.push(middle);
            }
        }
    }
    needles.sort();
    needles.dedup();
}

/// Known values.
pub fn exact(text: &[u8], needles: &[Vec<u8>], spans: &mut Vec<Span>) {
    for needle in needles {
        let mut at = 0;
        while let Some(start) = find(text, needle, at) {
            at = start + needle.len();
            spans.push(secret(start, at));
        }
    }
}

/// Private-key blocks, also without an end.
pub fn keys(text: &[u8], spans: &mut Vec<Span>) {
    let mut at = 0;
    while let Some(start) = find(text, b"-----BEGIN ", at) {
        let line = text[start..]
            .iter()
            .take(80)
            .position(|c| *c == b'\n')
            .map_or(text.len().min(start + 80), |n| start + n);
        at = start + 11;
        if find(&text[..line], b"PRIVATE KEY", start).is_none() {
            continue;
        }
        let end = find(text, b"-----END ", at)
            .map_or(text.len(), |end| find(text, b"-----", end + 9).map_or(text.len(), |close| close + 5));
        spans.push(secret(start, end));
        at = end;
    }
    let mut at = 0;
    while let Some(start) = find(text, b"PuTTY-User-Key-File-", at) {
        spans.push(secret(start, text.len()));
        at = text.len();
    }
}

/// User information in URLs: `scheme://user:password@host`, `https://TOKEN@host`.
pub fn urls(text: &[u8], spans: &mut Vec<Span>) {
    let mut at = 0;
    while let Some(start) = find(text, b"://", at) {
        let from = start + 3;
        let end = text[from..]
            .iter()
            .position(|c| c.is_ascii_whitespace() || matches!(c, b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\'))
            .map_or(text.len(), |n| from + n);
        at = end.max(from);
        // A password may hold what ends an authority; then the last `@` counts.
        let slash =
            text[from..end].iter().position(|c| matches!(c, b'/' | b'?' | b'#')).map_or(end, |n| from + n);
        let sign = text[from..slash].iter().rposition(|c| *c == b'@').or_else(|| {
            let colon = text[from..slash].iter().position(|c| *c == b':')?;
            let port = text[from + colon + 1..slash].iter().all(u8::is_ascii_digit);
            if port { None } else { text[from..end].iter().rposition(|c| *c == b'@') }
        });
        let Some(sign) = sign.map(|n| from + n) else { continue };
        let user = &text[from..sign];
        if user == REDACTED.as_bytes() || user.is_empty() || user == b"git" {
            continue;
        }
        spans.push(secret(from, sign));
    }
}

/// Tokens of known issuers, and what follows `Bearer` or `Basic`.
pub fn tokens(text: &[u8], spans: &mut Vec<Span>) {
    let mut at = 0;
    let mut scheme = false;
    while at < text.len() {
        if !token(text[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < text.len() && (token(text[at]) || scheme && matches!(text[at], b'+' | b'/' | b'=' | b'~'))
        {
            at += 1;
        }
        let run = &text[start..at];
        let digit = run.iter().any(u8::is_ascii_digit);
        if scheme && run.len() >= 16 && (digit || run.iter().any(u8::is_ascii_uppercase)) {
            spans.push(secret(start, at));
            scheme = false;
            continue;
        }
        scheme = run.eq_ignore_ascii_case(b"bearer") || run.eq_ignore_ascii_case(b"basic");
        if run.len() < 16 {
            // A Telegram bot's number before the colon: the secret follows.
            let bot = run.strip_prefix(b"bot").unwrap_or(run);
            if (8..=12).contains(&bot.len())
                && bot.iter().all(u8::is_ascii_digit)
                && text.get(at) == Some(&b':')
            {
                let rest = text[at + 1..].iter().take(64).take_while(|c| token(**c)).count();
                if (30..=50).contains(&rest) {
                    spans.push(secret(start, at + 1 + rest));
                    at += 1 + rest;
                }
            }
            continue;
        }
        // Inside a run a token starts at its first byte or after a separator. What is asked of its rest is counted once.
        let mut dots = run.iter().filter(|c| **c == b'.').count();
        let last_digit = run.iter().rposition(u8::is_ascii_digit);
        let mut begins = true;
        for i in 0..run.len() {
            if begins && shaped(&run[i..], dots, last_digit.is_some_and(|last| last > i)) {
                spans.push(secret(start + i, at));
                break;
            }
            dots -= usize::from(run[i] == b'.');
            begins = !run[i].is_ascii_alphanumeric();
        }
    }
}

/// Whether `run`, which holds so many dots and perhaps a digit, starts as an issuer's token does. Constant time.
fn shaped(run: &[u8], dots: usize, digit: bool) -> bool {
    PREFIXES.iter().any(|(prefix, least)| {
        let Some(rest) = run.strip_prefix(prefix.as_bytes()) else { return false };
        if rest.len() < *least {
            return false;
        }
        match *prefix {
            "AKIA" | "ASIA" => rest[..16].iter().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit()),
            // A signed token has three parts; other base64 of a JSON object is none.
            "eyJ" => dots >= 2,
            "sk-" | "npm_" | "hf_" | "SG." | "gsk_" | "xai-" | "pypi-" => digit,
            _ => true,
        }
    })
}

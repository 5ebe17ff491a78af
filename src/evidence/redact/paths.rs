//! Absolute paths of the host. The system's own places (`/usr`, `/etc`, `/proc`, `/tmp` …), which are the same on every host, and
//! the workspace stay readable; URLs, relative paths, regular expressions and request lines are no host paths.

use super::{Context, Span};

pub const HOST: &str = "[host-path]";
pub const HOME: &str = "[home-path]";
pub const PRIVATE: &str = "[private-path]";

/// First components that make a path the host's.
const ROOTS: &[&str] = &[
    "home", "root", "Users", "var", "opt", "srv", "mnt", "media", "data", "run", "Volumes", "private", "nix",
];
/// Names that keep credentials.
const PRIVATES: &[&str] = &[
    ".ssh",
    ".aws",
    ".gnupg",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".docker",
    ".kube",
    ".git-credentials",
    ".pgpass",
    ".azure",
    ".my.cnf",
    ".cargo/credentials",
    ".config/gcloud",
    ".config/gh",
    ".password-store",
    ".vault-token",
];

fn part(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'/' | b'.' | b'_' | b'-' | b'+' | b'@' | b'~') || c >= 0x80
}

fn within<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let root = root.trim_end_matches('/');
    let rest = path.strip_prefix(root)?;
    (!root.is_empty() && (rest.is_empty() || rest.starts_with('/'))).then_some(rest)
}

fn private(path: &str) -> bool {
    PRIVATES.iter().any(|name| {
        path.match_indices(name).any(|(at, _)| {
            let after = path.as_bytes().get(at + name.len());
            path[..at].ends_with('/')
                && after.is_none_or(|c| !c.is_ascii_alphanumeric() && *c != b'-' && *c != b'_')
        })
    })
}

/// Names every host path.
pub fn find(text: &[u8], context: &Context, spans: &mut Vec<Span>) {
    let mut at = 0;
    while at < text.len() {
        let start = at;
        at += 1;
        let lead = match text[start] {
            b'/' => 0,
            b'~' if text.get(start + 1) == Some(&b'/') => 1,
            b'$' if text[start..].starts_with(b"$HOME/") => 5,
            b'$' if text[start..].starts_with(b"${HOME}/") => 7,
            _ => continue,
        };
        let mut end = start + lead;
        while end < text.len() && part(text[end]) {
            end += 1;
        }
        at = end.max(at);
        let before = start.checked_sub(1).map(|i| text[i]);
        let apart = before.is_none_or(|c| {
            c.is_ascii_whitespace()
                || matches!(
                    c,
                    b'"' | b'\''
                        | b'='
                        | b'('
                        | b':'
                        | b','
                        | b'<'
                        | b'>'
                        | b'['
                        | b'{'
                        | b'|'
                        | b';'
                        | b'`'
                        | b'&'
                )
        });
        let option =
            start >= 2 && before.is_some_and(|c| matches!(c, b'I' | b'L' | b'C')) && text[start - 2] == b'-';
        if !apart && !option || request(&text[..start]) {
            continue;
        }
        while end > start && matches!(text[end - 1], b'.') {
            end -= 1;
        }
        let path = String::from_utf8_lossy(&text[start..end]);
        if let Some(with) = shown(&path, lead, context) {
            spans.push(Span { start, end, with });
        }
    }
}

fn request(before: &[u8]) -> bool {
    ["GET ", "POST ", "PUT ", "HEAD ", "DELETE ", "PATCH ", "OPTIONS "]
        .iter()
        .any(|verb| before.ends_with(verb.as_bytes()))
}

/// What a path is shown as, when not as itself.
pub(super) fn shown(path: &str, lead: usize, context: &Context) -> Option<String> {
    if private(path) {
        return Some(PRIVATE.to_owned());
    }
    if lead > 0 || context.workspace.as_deref().is_some_and(|w| within(path, w).is_some()) {
        return None;
    }
    if let Some(rest) = context.home.as_deref().and_then(|home| within(path, home)) {
        return Some(format!("{HOME}{rest}"));
    }
    let mut parts = path[1..].splitn(3, '/');
    let (first, second, rest) = (parts.next()?, parts.next(), parts.next());
    if !ROOTS.contains(&first) || second.is_none_or(str::is_empty) {
        return None;
    }
    match first {
        "home" | "Users" => Some(rest.map_or(HOME.to_owned(), |rest| format!("{HOME}/{rest}"))),
        "root" => Some(format!("{HOME}{}", &path[5..])),
        _ => {
            let tail = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            Some(format!("{HOST}/{tail}"))
        }
    }
}

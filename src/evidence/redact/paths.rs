//! Absolute paths that are the host's own business. What every Linux has (`/usr`, `/etc`, `/proc`, …), what lies in the
//! workspace, URLs, relative paths, request lines of HTTP and regular expressions stay as they are.

use super::{Context, Paths};

/// Names below a home, or anywhere, that hold credentials.
const PRIVATE: &[&str] = &[
    ".ssh",
    ".aws",
    ".gnupg",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".docker",
    ".kube",
    ".azure",
    ".password-store",
    ".pgpass",
    ".git-credentials",
    ".vault-token",
    ".cargo/credentials",
    ".config/gcloud",
    ".config/gh",
    ".config/op",
    ".authinfo",
];
/// The same on every host.
const COMMON: &[&str] =
    &["usr", "bin", "sbin", "lib", "lib32", "lib64", "etc", "proc", "sys", "dev", "tmp", "run", "nix"];

/// Whether `c` may stand before a path.
fn may_precede(c: Option<char>) -> bool {
    c.is_none_or(|c| c.is_whitespace() || "\"'`=:(,;[{<>|&!".contains(c))
}

fn is_path_char(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"\"'`:;,()[]{}<>|&*?$!".contains(c)
}

/// The path at `at`, where a `/` or `~` stands: where it ends, and what to write in its place.
pub fn at(text: &str, at: usize, context: &Context) -> Option<(usize, String)> {
    if context.paths == Paths::Keep || !may_precede(text[..at].chars().next_back()) {
        return None;
    }
    let rest = &text[at..];
    let length = rest.find(|c| !is_path_char(c)).unwrap_or(rest.len());
    let path = rest[..length].trim_end_matches(['.', '/']);
    let end = at + path.len();
    let names: Vec<&str> = path.trim_start_matches(['~', '/']).split('/').filter(|n| !n.is_empty()).collect();
    let last = names.last()?;
    // `//`: of a URL, or a comment.
    if path.starts_with("//") || is_request(text, at) {
        return None;
    }
    let below = |dir: &Option<String>| {
        dir.as_deref().filter(|d| d.len() > 1).is_some_and(|dir| {
            path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let private = PRIVATE.iter().any(|p| {
        let wanted: Vec<&str> = p.split('/').collect();
        names.windows(wanted.len()).any(|w| w == wanted.as_slice())
    });
    if private {
        return Some((end, "[private-path]".to_owned()));
    }
    if below(&context.workspace) {
        return None;
    }
    if path.starts_with('~') {
        return None;
    }
    if below(&context.home) {
        let tail = context.home.as_deref().map_or("", |home| &path[home.len()..]);
        return Some((end, format!("[home-path]{tail}")));
    }
    let first = names.first()?;
    // One name alone (`/foo`) is a flag, a division or an address's path as often as a file.
    if names.len() < 2 || COMMON.contains(first) || is_expression(text, at, length) {
        return None;
    }
    Some((end, format!("[host-path]/{last}")))
}

/// `GET /a/b HTTP/1.1`.
fn is_request(text: &str, at: usize) -> bool {
    const METHODS: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let before = text[..at].trim_end_matches(' ');
    before.len() < at && METHODS.iter().any(|m| before.ends_with(m))
}

/// `/expression/flags`: ends with a slash, or has what no path has.
fn is_expression(text: &str, at: usize, length: usize) -> bool {
    let path = &text[at..at + length];
    let next = text[at + length..].chars().next();
    path.contains(['\\', '^', '+']) || next.is_some_and(|c| "*?$([{|".contains(c))
}

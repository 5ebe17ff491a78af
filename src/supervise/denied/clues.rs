//! What a command complained about, read from the end of its standard error. Pure; everything in here was written by
//! the command, so it is only ever a hint, and bounded.

/// Lines that are looked at, from the end.
const LINES_MAX: usize = 200;
/// Bytes of a line that are looked at.
const LINE_BYTES_MAX: usize = 2048;
/// Names taken from one line.
const NAMES_MAX: usize = 12;
/// Lines before one without a name in which a name is looked for.
const CONTEXT_LINES: usize = 3;

/// What is complained about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Complaint {
    /// EROFS.
    ReadOnly,
    /// EACCES.
    Denied,
    /// EPERM.
    NotPermitted,
    /// ENOENT.
    Missing,
    /// EXDEV.
    CrossDevice,
    /// EBUSY.
    Busy,
    /// ENOSPC.
    NoSpace,
    /// EFBIG, SIGXFSZ.
    FileTooLarge,
    /// EMFILE.
    TooManyFiles,
    /// EAGAIN of a fork or a thread.
    NoProcess,
    /// A lookup of a host name that got no answer, or no way to a host.
    NoNetwork,
    /// ECONNREFUSED.
    ConnectionRefused,
    /// EAFNOSUPPORT.
    NoFamily,
    /// ENOSYS.
    NotImplemented,
    /// A shell found no such program.
    CommandNotFound,
    /// A program wants to be run by root.
    NotRoot,
    /// A program found no key to sign or decrypt with.
    NoKey,
    /// A set-id program noticed `no_new_privs`.
    NoNewPrivileges,
}

use Complaint::*;

/// Phrases, in lower case, as C libraries, shells, Python, Java, Node, Go and Rust write them.
const PHRASES: &[(&str, Complaint)] = &[
    ("read-only file system", ReadOnly),
    ("readonlyfilesystem", ReadOnly),
    ("no new privileges", NoNewPrivileges),
    ("no_new_privs", NoNewPrivileges),
    ("must be owned by uid 0", NoNewPrivileges),
    ("must be setuid root", NoNewPrivileges),
    ("effective uid is not 0", NoNewPrivileges),
    ("must be superuser", NotRoot),
    ("must be root", NotRoot),
    ("must be run as root", NotRoot),
    ("are you root", NotRoot),
    ("requires root", NotRoot),
    ("only root can", NotRoot),
    ("command not found", CommandNotFound),
    ("no secret key", NoKey),
    ("could not resolve", NoNetwork),
    ("couldn't resolve", NoNetwork),
    ("temporary failure in name resolution", NoNetwork),
    ("temporary failure resolving", NoNetwork),
    ("name or service not known", NoNetwork),
    ("nodename nor servname", NoNetwork),
    ("failed to lookup address", NoNetwork),
    ("unable to resolve host", NoNetwork),
    ("no address associated with hostname", NoNetwork),
    ("bad address '", NoNetwork),
    ("no such host", NoNetwork),
    ("server misbehaving", NoNetwork),
    ("getaddrinfo", NoNetwork),
    ("unknownhostexception", NoNetwork),
    ("network is unreachable", NoNetwork),
    ("no route to host", NoNetwork),
    ("connection refused", ConnectionRefused),
    ("address family not supported", NoFamily),
    ("function not implemented", NotImplemented),
    ("invalid cross-device link", CrossDevice),
    ("cross-device link", CrossDevice),
    ("device or resource busy", Busy),
    ("no space left on device", NoSpace),
    ("file too large", FileTooLarge),
    ("file size limit exceeded", FileTooLarge),
    ("too many open files", TooManyFiles),
    ("can't start new thread", NoProcess),
    ("unable to create native thread", NoProcess),
    ("cannot fork", NoProcess),
    ("can't fork", NoProcess),
    ("operation not permitted", NotPermitted),
    ("accessdeniedexception", Denied),
    ("permission denied", Denied),
    ("nosuchfileexception", Missing),
    ("no such file", Missing),
    ("can't open file", Missing),
    ("does not exist", Missing),
];

/// Names of errors, which stand as words of their own.
const NAMES: &[(&str, Complaint)] = &[
    ("EROFS", ReadOnly),
    ("EACCES", Denied),
    ("EPERM", NotPermitted),
    ("ENOENT", Missing),
    ("EXDEV", CrossDevice),
    ("EBUSY", Busy),
    ("ENOSPC", NoSpace),
    ("EFBIG", FileTooLarge),
    ("EMFILE", TooManyFiles),
    ("ENOTFOUND", NoNetwork),
    ("EAI_AGAIN", NoNetwork),
    ("ENETUNREACH", NoNetwork),
    ("EHOSTUNREACH", NoNetwork),
    ("ECONNREFUSED", ConnectionRefused),
    ("EAFNOSUPPORT", NoFamily),
    ("ENOSYS", NotImplemented),
];

/// One line that says something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clue<'a> {
    /// What it complains about, when it does in words that are known.
    pub complaint: Option<Complaint>,
    /// What it names, the likeliest object first: paths, hosts, programs.
    pub names: Vec<&'a [u8]>,
    /// The line.
    pub line: &'a [u8],
}

/// The clues of `text`, in order.
pub fn clues(text: &[u8]) -> Vec<Clue<'_>> {
    let mut lines: Vec<&[u8]> = text
        .split(|b| matches!(b, b'\n' | b'\r'))
        .filter(|line| line.iter().any(|b| !b.is_ascii_whitespace()))
        .map(|line| &line[..line.len().min(LINE_BYTES_MAX)])
        .collect();
    lines.drain(..lines.len().saturating_sub(LINES_MAX));
    let mut out: Vec<Clue<'_>> = Vec::with_capacity(lines.len());
    for (n, line) in lines.iter().copied().enumerate() {
        let found = complaint(line);
        let mut names = names(line, found.map(|(_, at)| at));
        // "failed to open `/x`", and on another line "Caused by: Read-only file system".
        if found.is_some() && names.is_empty() {
            let before = lines[n.saturating_sub(CONTEXT_LINES)..n].iter().rev();
            names =
                before.filter(|line| is_statement(line)).flat_map(|line| self::names(line, None)).collect();
            names.truncate(NAMES_MAX);
        }
        out.push(Clue { complaint: found.map(|(what, _)| what), names, line });
    }
    out
}

/// The complaint of a line, and where it stands.
fn complaint(line: &[u8]) -> Option<(Complaint, usize)> {
    let lower = line.to_ascii_lowercase();
    let phrase = PHRASES.iter().find_map(|(phrase, what)| Some((*what, find(&lower, phrase.as_bytes())?)));
    if let Some((Missing | Denied, _)) | None = phrase
        && let Some(name) =
            NAMES.iter().find_map(|(name, what)| Some((*what, find_word(line, name.as_bytes())?)))
    {
        return Some(name);
    }
    // dash: `sh: 1: foo: not found`.
    let not_found = || lower.ends_with(b": not found").then(|| (CommandNotFound, lower.len() - 11));
    // A fork that failed says no more than EAGAIN, which many other things say as well.
    let forks = || {
        let at = find(&lower, b"resource temporarily unavailable")?;
        let forked = [&b"fork"[..], b"thread", b"clone", b"spawn"].iter().any(|w| find(&lower, w).is_some());
        forked.then_some((NoProcess, at))
    };
    phrase.or_else(not_found).or_else(forks)
}

/// Whether a line states what failed, so that the next one may say why.
fn is_statement(line: &[u8]) -> bool {
    let lower = line.to_ascii_lowercase();
    let lower = lower.trim_ascii_start();
    let begins =
        ["error", "fatal", "failed", "cannot", "can't", "could not", "couldn't", "unable", "caused by"];
    begins.iter().any(|word| lower.starts_with(word.as_bytes()))
}

/// Names in a line with a complaint at `at`, the likeliest object first: what stands in quotes, the field before the
/// complaint, what looks like a path after and before it. The program's own name, with which most messages begin,
/// comes last.
fn names(line: &[u8], at: Option<usize>) -> Vec<&[u8]> {
    let at = at.unwrap_or(line.len());
    let (before, after) = line.split_at(at);
    let mut fields: Vec<&[u8]> =
        before.split(|b| *b == b':').map(bare).filter(|field| !field.is_empty()).collect();
    let last = fields.pop().unwrap_or_default();
    let spaced = |field: &[u8]| field.iter().any(u8::is_ascii_whitespace);
    // Of `cat: x: Permission denied`, `x`; of `tar: x: Cannot open: …`, the field before; never the program.
    let whole = Some(last).filter(|field| last.starts_with(b"/") || !fields.is_empty() && !spaced(field));
    // `cat: a b: Permission denied`
    let with_spaces = Some(last).filter(|field| !fields.is_empty() && spaced(field) && !is_statement(field));
    let earlier = fields.iter().skip(1).rev().copied().filter(|field| !spaced(field));
    let elsewhere = fields.iter().rev().flat_map(|field| words(field));
    let mut out: Vec<&[u8]> = Vec::new();
    let likely = quoted(line).into_iter().chain(whole).chain(words(last).rev()).chain(words(after));
    for name in likely.chain(with_spaces).chain(earlier).chain(elsewhere) {
        if out.len() < NAMES_MAX && !name.is_empty() && !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

/// `field` without what stands around a name in it.
fn bare(field: &[u8]) -> &[u8] {
    let around =
        |b: &u8| b.is_ascii_whitespace() || matches!(b, b'(' | b')' | b'[' | b']' | b',' | b';' | b'"');
    let start = field.iter().position(|b| !around(b)).unwrap_or(field.len());
    let end = field.iter().rposition(|b| !around(b)).map_or(start, |end| end + 1);
    &field[start..end]
}

/// Words that look like a path or the name of a file or host.
fn words(text: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let apart = |b: &u8| {
        b.is_ascii_whitespace() || matches!(b, b',' | b';' | b'(' | b')' | b'=' | b'<' | b'>' | b'|')
    };
    text.split(apart)
        .map(|word| {
            let end = word.iter().rposition(|b| !matches!(b, b'.' | b':' | b'!')).map_or(0, |end| end + 1);
            bare(&word[..end])
        })
        .filter(|word| word.contains(&b'/') || word.contains(&b'.'))
}

/// What stands in quotes: `'…'`, `"…"`, `` `…' ``, and the typographic ones.
fn quoted(line: &[u8]) -> Vec<&[u8]> {
    const PAIRS: [(&[u8], &[u8]); 6] = [
        (b"'", b"'"),
        (b"\"", b"\""),
        (b"`", b"`"),
        (b"`", b"'"),
        ("\u{2018}".as_bytes(), "\u{2019}".as_bytes()),
        ("\u{201c}".as_bytes(), "\u{201d}".as_bytes()),
    ];
    let mut out = Vec::new();
    let mut at = 0;
    while at < line.len() && out.len() < NAMES_MAX {
        // An apostrophe within a word opens nothing; Python's `b'…'` does.
        let before = &line[..at];
        let word = before.iter().rev().take_while(|b| b.is_ascii_alphanumeric()).count();
        let opens = word == 0 || word == 1 && before.ends_with(b"b");
        let found = PAIRS.iter().filter(|(open, _)| opens && line[at..].starts_with(open)).find_map(
            |(open, close)| {
                let start = at + open.len();
                let end = start + find(&line[start..], close)?;
                Some((start, end, end + close.len()))
            },
        );
        match found {
            Some((start, end, next)) => {
                out.push(&line[start..end]);
                at = next;
            }
            None => at += 1,
        }
    }
    out
}

/// Where `needle` stands in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|w| w == needle)
}

/// Where `word` stands in `hay` as a word of its own.
pub fn find_word(hay: &[u8], word: &[u8]) -> Option<usize> {
    let inner = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let mut from = 0;
    while let Some(at) = find(&hay[from..], word).map(|at| from + at) {
        let before = at.checked_sub(1).and_then(|n| hay.get(n));
        if !inner(before) && !inner(hay.get(at + word.len())) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> (Option<Complaint>, Vec<String>) {
        let clues = clues(line.as_bytes());
        let last = clues.last().unwrap();
        (last.complaint, last.names.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect())
    }

    #[test]
    fn messages_of_many_programs() {
        for (line, complaint, name) in [
            ("touch: cannot touch '/usr/x': Read-only file system", ReadOnly, "/usr/x"),
            ("touch: cannot touch \u{2018}/usr/x\u{2019}: Read-only file system", ReadOnly, "/usr/x"),
            ("/usr/bin/bash: line 1: .git/hooks/x: Read-only file system", ReadOnly, ".git/hooks/x"),
            ("sh: 1: cannot create /usr/x: Read-only file system", ReadOnly, "/usr/x"),
            ("OSError: [Errno 30] Read-only file system: b'/usr/x'", ReadOnly, "/usr/x"),
            ("Error: EROFS: read-only file system, open '/usr/x'", ReadOnly, "/usr/x"),
            ("java.io.FileNotFoundException: /usr/x (Read-only file system)", ReadOnly, "/usr/x"),
            ("java.nio.file.AccessDeniedException: /a/b", Denied, "java.nio.file"),
            ("tar: /opt/x: Cannot open: Read-only file system", ReadOnly, "/opt/x"),
            ("tar: x: Cannot open: Read-only file system", ReadOnly, "x"),
            ("error: could not write config file .git/config: Device or resource busy", Busy, ".git/config"),
            ("python3: can't open file '/w/x.py': [Errno 2] No such file or directory", Missing, "/w/x.py"),
            ("cat: a b: Permission denied", Denied, "a b"),
            ("sh: 1: foo: not found", CommandNotFound, "foo"),
            ("bash: line 1: foo: command not found", CommandNotFound, "foo"),
            ("env: \u{2018}foo\u{2019}: No such file or directory", Missing, "foo"),
            ("Error: getaddrinfo EAI_AGAIN registry.npmjs.org", NoNetwork, "registry.npmjs.org"),
            ("bash: fork: retry: Resource temporarily unavailable", NoProcess, "retry"),
        ] {
            let (got, names) = one(line);
            assert_eq!(got, Some(complaint), "{line}");
            assert_eq!(names.first().map(String::as_str), Some(name), "{line}: {names:?}");
        }
    }

    #[test]
    fn a_cause_on_a_line_of_its_own_is_about_the_line_before() {
        for text in [
            "error: failed to open `/x`\n\nCaused by:\n  Read-only file system (os error 30)",
            "error: failed to write\n\nCaused by:\n  failed to open: /x\n\nCaused by:\n  Read-only file system (os error 30)",
        ] {
            let (complaint, names) = one(text);
            assert_eq!(
                (complaint, names.first().map(String::as_str)),
                (Some(ReadOnly), Some("/x")),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_complaint_is_none() {
        for line in [
            "AssertionError: 3 != 4",
            "error: expected `;`, found `}`",
            "2 passed, 1 failed",
            "read: Resource temporarily unavailable",
            "OSError: ENOENTRY",
        ] {
            assert_eq!(one(line).0, None, "{line}");
        }
        assert!(clues(b"\n \n").is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            for clue in clues(&bytes) {
                prop_assert!(clue.names.len() <= NAMES_MAX && clue.line.len() <= LINE_BYTES_MAX);
            }
        }

        #[test]
        fn quotes_of_any_kind_are_read(text in "[a-z'\"`\u{2018}\u{2019}/ :.b]{0,80}") {
            for clue in clues(text.as_bytes()) {
                prop_assert!(clue.names.iter().all(|n| !n.is_empty()));
            }
        }
    }
}

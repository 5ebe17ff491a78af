//! The tree's own rules, read as text: which module may use which, where `unsafe` and effects may stand, that every
//! file says what it is, that no file is forgotten, and that documents name what exists.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What a module may do beside computing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touches {
    /// Nothing: no file, clock, environment, process or socket; no order that depends on a hash.
    Nothing,
    /// The host.
    Host,
}

/// One module of the library.
struct Module {
    name: &'static str,
    /// The modules below it that it may name.
    uses: &'static [&'static str],
    touches: Touches,
}

/// The architecture. Data flows down this table; an edge that points up is a mistake, and a new one is a decision.
const MODULES: &[Module] = &[
    Module { name: "base", uses: &[], touches: Touches::Nothing },
    Module { name: "sys", uses: &[], touches: Touches::Host },
    Module { name: "manifest", uses: &["base"], touches: Touches::Nothing },
    Module { name: "policy", uses: &["base", "manifest"], touches: Touches::Nothing },
    // The policy's words (access, posture, user) are the plan's words as well.
    Module { name: "plan", uses: &["base", "policy"], touches: Touches::Nothing },
    // What has to be looked at on the host is what a policy and a request name.
    Module { name: "probe", uses: &["base", "policy", "plan", "sys"], touches: Touches::Host },
    Module { name: "evidence", uses: &["base"], touches: Touches::Host },
    Module { name: "sandbox", uses: &["base", "policy", "plan", "sys"], touches: Touches::Host },
    // `probe` for the verdict cache and the binary's build id.
    Module {
        name: "supervise",
        uses: &["base", "policy", "plan", "probe", "evidence", "sandbox", "sys"],
        touches: Touches::Host,
    },
    // `sandbox` for the mutants' names, `sys` for the descriptor that `--result-fd` names.
    Module {
        name: "cli",
        uses: &["base", "manifest", "policy", "plan", "probe", "evidence", "sandbox", "supervise", "sys"],
        touches: Touches::Host,
    },
];

/// What reaches the host, as it is written.
const EFFECTS: &[&str] = &[
    "std::fs",
    "std::env",
    "std::net",
    "std::process::",
    "std::os::unix::net",
    "Instant::now",
    "SystemTime::now",
    "File::open",
    "rustix::",
    "nix::",
    "HashMap",
    "HashSet",
];

/// Marks of something unfinished. Written in two parts, so that this file does not find itself.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("db", "g!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
];

fn root() -> PathBuf {
    // The variable at run time, for test binaries that were copied to another place.
    std::env::var_os("STOCKADE_TEST_PACKAGE")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// Files below `dir` with one of `extensions`, relative to the package.
fn files(dir: &str, extensions: &[&str]) -> BTreeSet<PathBuf> {
    let root = root();
    let mut found = BTreeSet::new();
    let mut todo = vec![root.join(dir)];
    while let Some(at) = todo.pop() {
        let Ok(entries) = fs::read_dir(&at) else { continue };
        for entry in entries.map(|e| e.unwrap()) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                found.insert(path.strip_prefix(&root).unwrap().to_owned());
            }
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The documents at the top and in `docs/`.
fn documents() -> BTreeSet<PathBuf> {
    let mut all = files("docs", &["md"]);
    all.extend(["README.md", "SECURITY.md", "CHANGELOG.md"].map(PathBuf::from));
    all
}

/// The lines of Rust code: numbered from one, comments and what stands in string literals blanked out.
fn code(text: &str) -> Vec<(usize, String)> {
    let mut out = String::with_capacity(text.len());
    let bytes: Vec<char> = text.chars().collect();
    let mut at = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while at < bytes.len() {
        let rest = &bytes[at..];
        let until = if rest.starts_with(&['/', '/']) {
            rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())
        } else if let Some(length) = raw_string(rest, at.checked_sub(1).map(|i| bytes[i])) {
            length
        } else if rest[0] == '"' {
            let mut end = 1;
            while end < rest.len() && rest[end] != '"' {
                end += if rest[end] == '\\' { 2 } else { 1 };
            }
            (end + 1).min(rest.len())
        } else if rest.starts_with(&['\'', '"', '\'']) {
            3
        } else if rest.starts_with(&['\'', '\\', '"', '\'']) {
            4
        } else {
            out.push(rest[0]);
            at += 1;
            continue;
        };
        out.extend(rest[..until].iter().map(|c| blank(*c)));
        at += until;
    }
    out.lines().enumerate().map(|(n, l)| (n + 1, l.to_owned())).collect()
}

/// Length of the raw string that `rest` starts with.
fn raw_string(rest: &[char], before: Option<char>) -> Option<usize> {
    if rest[0] != 'r' || before.is_some_and(|c| (c.is_alphanumeric() && c != 'b') || c == '_') {
        return None;
    }
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = 2 + hashes;
    let end = rest[body..].windows(close.len()).position(|w| w == close.as_slice())?;
    Some(body + end + close.len())
}

/// The part of a file that is not its own tests, which stand last, behind `#[cfg(test)]`.
fn without_tests(lines: Vec<(usize, String)>) -> Vec<(usize, String)> {
    let mut end = lines.len();
    for i in 0..lines.len() {
        let next = lines.get(i + 1).map_or("", |l| l.1.trim());
        if lines[i].1.trim() == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
            end = i;
            break;
        }
    }
    lines.into_iter().take(end).collect()
}

/// Files of `src` that `mod` lines reach, and those of them that only tests have.
fn reached() -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
    let mut all = BTreeSet::new();
    let mut for_tests = BTreeSet::new();
    let mut todo = vec![(PathBuf::from("src/lib.rs"), false), (PathBuf::from("src/main.rs"), false)];
    while let Some((path, test)) = todo.pop() {
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let dir = path.parent().unwrap();
        let below =
            if ["lib", "main", "mod"].contains(&stem.as_str()) { dir.to_owned() } else { dir.join(&stem) };
        let lines = code(&read(&path));
        for (i, (_, line)) in lines.iter().enumerate() {
            let Some(name) = line.trim().strip_suffix(';').and_then(|l| l.rsplit_once("mod ")) else {
                continue;
            };
            if !matches!(name.0.trim(), "" | "pub" | "pub(crate)" | "pub(super)") {
                continue;
            }
            let only_tests = test || i > 0 && lines[i - 1].1.contains("#[cfg(test)]");
            let flat = below.join(format!("{}.rs", name.1));
            let deep = below.join(name.1).join("mod.rs");
            todo.push((if root().join(&flat).exists() { flat } else { deep }, only_tests));
        }
        if test {
            for_tests.insert(path.clone());
        }
        all.insert(path);
    }
    (all, for_tests)
}

/// Fails with all of `faults` at once.
fn none(faults: &[String], rule: &str) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

/// The first component below `src/`.
fn module_of(path: &Path) -> Option<String> {
    let mut parts = path.components().skip(1).map(|c| c.as_os_str().to_str().unwrap());
    let first = parts.next()?;
    parts.next().map(|_| first.to_owned())
}

#[test]
fn modules_use_only_what_is_below_them() {
    let by_name: BTreeMap<&str, &Module> = MODULES.iter().map(|m| (m.name, m)).collect();
    for (i, module) in MODULES.iter().enumerate() {
        for used in module.uses {
            assert!(MODULES[..i].iter().any(|m| m.name == *used), "the table: {} uses {used}", module.name);
        }
    }
    let mut faults = Vec::new();
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    for path in files("src", &["rs"]) {
        let Some(of) = module_of(&path) else { continue };
        let Some(module) = by_name.get(of.as_str()) else {
            faults.push(format!("{}: `{of}` is not in the table", path.display()));
            continue;
        };
        for (number, line) in code(&read(&path)) {
            for after in line.split("crate::").skip(1) {
                let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if name.is_empty() {
                    faults.push(format!("{}:{number}: one path per module, please", path.display()));
                } else if name != of && by_name.contains_key(name.as_str()) {
                    seen.insert((of.clone(), name.clone()));
                    if !module.uses.contains(&name.as_str()) {
                        faults.push(format!("{}:{number}: {of} uses {name}", path.display()));
                    }
                }
            }
        }
    }
    none(&faults, "an edge that the table of modules does not have");
    for module in MODULES {
        for used in module.uses {
            if !seen.contains(&(module.name.to_owned(), (*used).to_owned())) {
                faults.push(format!("{} no longer uses {used}", module.name));
            }
        }
    }
    none(&faults, "an edge that only the table has");
}

#[test]
fn the_binary_is_thin() {
    let main = read(Path::new("src/main.rs"));
    for (number, line) in code(&main) {
        for after in line.split("stockade::").skip(1) {
            assert!(after.starts_with("cli::"), "src/main.rs:{number}: only `cli` is called from here");
        }
    }
    assert!(main.lines().count() <= 30, "src/main.rs has grown");
}

/// Whether `word` stands in `line`, and not as the end of a longer name.
fn starts_in(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[test]
fn pure_modules_touch_nothing() {
    let (_, for_tests) = reached();
    let mut faults = Vec::new();
    for module in MODULES.iter().filter(|m| m.touches == Touches::Nothing) {
        for path in files(&format!("src/{}", module.name), &["rs"]) {
            if for_tests.contains(&path) {
                continue;
            }
            for (number, line) in without_tests(code(&read(&path))) {
                for effect in EFFECTS.iter().filter(|e| starts_in(&line, e)) {
                    faults.push(format!("{}:{number}: {effect}", path.display()));
                }
            }
        }
    }
    none(&faults, "an effect in a module that is to be a function of its arguments");
}

#[test]
fn unsafe_is_in_sys_alone_and_says_why() {
    let mut faults = Vec::new();
    let mut lifts = Vec::new();
    for path in files("src", &["rs"]) {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in code(&text) {
            if line.contains("unsafe_code") {
                lifts.push(path.clone());
            }
            let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if !words.into_iter().any(|w| w == "unsafe") {
                continue;
            }
            if !path.starts_with("src/sys") {
                faults.push(format!("{}:{number}: unsafe outside src/sys", path.display()));
            }
            // The comment stands above the statement, which may have begun some lines before.
            let mut above = lines[..number - 1]
                .iter()
                .map(|l| l.trim())
                .rev()
                .take_while(|l| l.starts_with("//") || !(l.is_empty() || l.ends_with([';', '{', '}'])));
            if !above.any(|l| l.contains("SAFETY:")) {
                faults.push(format!("{}:{number}: unsafe without a SAFETY comment above it", path.display()));
            }
        }
    }
    none(&faults, "unsafe");
    assert_eq!(lifts, [Path::new("src/sys/mod.rs")], "the lint is lifted in one place");
}

#[test]
fn every_file_says_what_it_is() {
    let mut faults = Vec::new();
    for dir in ["src", "tests", "integration"] {
        for path in files(dir, &["rs"]) {
            let text = read(&path);
            let header = text.lines().next().unwrap_or_default();
            if !header.starts_with("//! ") || header.len() < 12 {
                faults.push(path.display().to_string());
            }
        }
    }
    none(&faults, "the first line is not a `//!` sentence");
}

#[test]
fn no_file_is_forgotten() {
    let (reached, _) = reached();
    let orphans: Vec<String> =
        files("src", &["rs"]).difference(&reached).map(|p| p.display().to_string()).collect();
    none(&orphans, "no `mod` line leads to it");
    let manifest = read(Path::new("Cargo.toml"));
    for path in files("integration", &["rs"]) {
        let named = manifest.contains(&format!("path = \"{}\"", path.display()));
        let below = path.components().count() > 3;
        assert!(named || below, "{}: Cargo.toml does not name it", path.display());
    }
}

#[test]
fn nothing_is_unfinished() {
    let mut faults = Vec::new();
    for dir in ["src", "tests", "integration"] {
        for path in files(dir, &["rs", "c", "h"]) {
            for (number, line) in read(&path).lines().enumerate() {
                for mark in UNFINISHED.iter().filter(|m| line.contains(**m)) {
                    faults.push(format!("{}:{}: {mark}", path.display(), number + 1));
                }
            }
        }
    }
    none(&faults, "a mark of something unfinished");
}

/// Whether `place` stands in `line` as the start of a path, and a name follows.
fn tail_is_a_name(line: &str, place: &str) -> bool {
    let named = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric());
    starts_in(line, place) && line.split(place).skip(1).any(named)
}

#[test]
fn no_path_of_one_machine() {
    // Homes of particular people, and checkouts in particular places. The sandbox's own user is nobody's.
    let (homes, checkouts) = (concat!("/ho", "me/"), concat!("/wo", "rk/"));
    let nobody = ["agent", "me", "user", "u", "a", ""];
    let mut faults = Vec::new();
    let mut all = documents();
    for dir in ["src", "tests", "integration", "policies", "scripts", ".ci"] {
        all.extend(files(dir, &["rs", "c", "h", "toml", "md", "py", "sh", "json", "snap"]));
    }
    all.extend(
        ["Cargo.toml", ".cargo/config.toml", "scripts/check", "scripts/test", ".ci/run"].map(PathBuf::from),
    );
    for path in all {
        // Bytes: some fixtures are no text on purpose.
        let bytes = fs::read(root().join(&path)).unwrap();
        for (number, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
            let whose = line
                .split(homes)
                .skip(1)
                .map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap());
            if whose.into_iter().any(|user| !nobody.contains(&user)) || tail_is_a_name(line, checkouts) {
                faults.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    none(&faults, "a path of somebody's machine");
}

/// `"…"` literals after each occurrence of `before`.
fn literals<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
}

#[test]
fn documents_name_every_key_profile_and_exit_code() {
    let keys = read(Path::new("src/manifest/keys.rs"));
    let page = read(Path::new("docs/profiles.md"));
    let readme = read(Path::new("README.md"));
    let mut faults = Vec::new();
    let named = |page: &str, word: &str| page.contains(&format!("`{word}`"));
    let table = keys.split("pub const KEYS").nth(1).unwrap().split("\n];").next().unwrap();
    for key in literals(table, "key(") {
        if !named(&page, key) {
            faults.push(format!("docs/profiles.md: no word of `{key}`"));
        }
    }
    let mounts = keys.split("MOUNT_KEYS: &[&str]").nth(1).unwrap().split("];").next().unwrap();
    for key in mounts.split('"').skip(1).step_by(2) {
        if !named(&page, key) {
            faults.push(format!("docs/profiles.md: no word of a mount's `{key}`"));
        }
    }
    let protections = read(Path::new("src/base/protection.rs"));
    let listed = protections.split("\nprotections! {").nth(1).unwrap().split("\n}").next().unwrap();
    for (_, key) in listed.lines().filter_map(|l| l.split_once(" = \"")) {
        let key = key.trim_end_matches("\",");
        if !page.contains(&format!("`require.{key}`")) {
            faults.push(format!("docs/profiles.md: no word of the protection {key}"));
        }
    }
    for path in files("policies", &["toml"]) {
        if path.parent() == Some(Path::new("policies")) {
            let name = path.file_stem().unwrap().to_str().unwrap();
            for (document, text) in [("docs/profiles.md", &page), ("README.md", &readme)] {
                if !named(text, name) {
                    faults.push(format!("{document}: no word of the profile `{name}`"));
                }
            }
        } else if path.parent() == Some(Path::new("policies/seccomp")) {
            let name = path.file_stem().unwrap().to_str().unwrap();
            if !named(&page, name) {
                faults.push(format!("docs/profiles.md: no word of the set `{name}`"));
            }
        }
    }
    let exit = read(Path::new("src/cli/exit.rs"));
    for table in ["pub const EXEC:", "pub const OTHERS:"] {
        let rows = exit.split(table).nth(1).unwrap().split("];").next().unwrap();
        for code in literals(rows, "    (") {
            let code = if code.chars().next().is_some_and(char::is_numeric) {
                format!("`{code}`")
            } else {
                code.to_owned()
            };
            if !readme.contains(&code) {
                faults.push(format!("README.md: no word of the exit code {code}"));
            }
        }
    }
    none(&faults, "what exists and is not written about");
}

/// Names of the tests in one file, those that a macro makes left out.
fn tests_in(path: &Path) -> BTreeSet<String> {
    let text = read(path);
    let mut names = BTreeSet::new();
    for part in text.split("#[test]").skip(1).chain(text.split("trial!(").skip(1)) {
        if let Some(rest) = part.split("fn ").nth(1) {
            names.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names
}

#[test]
fn documents_name_only_what_exists() {
    let mut faults = Vec::new();
    for document in documents() {
        let text = read(&document);
        let place = |what: &str| format!("{}: {what}", document.display());
        // Links between documents.
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !root().join(document.parent().unwrap()).join(target).exists() {
                faults.push(place(&format!("the link {target} leads nowhere")));
            }
        }
        // `path` and `path::test` in backticks.
        for quoted in text.split('`').skip(1).step_by(2) {
            let (path, test) = quoted.split_once("::").map_or((quoted, None), |(p, t)| (p, Some(t)));
            let kind = Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or_default();
            let ours = ["src/", "tests/", "docs/", "policies/", "scripts/", "integration/", ".ci/"]
                .iter()
                .any(|d| path.starts_with(d));
            if !ours || path.contains(['*', '{', '…', ' ', '<']) {
                continue;
            }
            if !root().join(path).exists() {
                faults.push(place(&format!("there is no {path}")));
            } else if let Some(test) = test
                && kind == "rs"
                && !tests_in(Path::new(path)).contains(test)
            {
                faults.push(place(&format!("{path} has no test {test}")));
            }
        }
    }
    none(&faults, "a document that is behind");
}

#[test]
fn lines_of_documents_can_be_read() {
    let mut faults = String::new();
    for document in documents() {
        for (number, line) in read(&document).lines().enumerate() {
            if line.ends_with(' ') || line.contains('\t') {
                let _ = write!(faults, "\n  {}:{}", document.display(), number + 1);
            }
        }
    }
    assert!(faults.is_empty(), "blanks at the end, or tabs:{faults}");
}

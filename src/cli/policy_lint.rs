//! `stockade policy lint`: looks the host up for the linter, and shows what it found.

use super::args::{Deny, Lint};
use super::meant::{self, Caller};
use super::profiles::{self, Files};
use super::render::{self, safe};
use super::{exit, fault, host, policy};
use crate::base::HostPath;
use crate::manifest::At;
use crate::plan::{Kind, seccomp};
use crate::policy::lint::{self, Finding, Is, Look, Seen, Severity, Sight, Subject, Surroundings};
use crate::policy::{CallSet, Calls, RefusedCall};
use crate::probe;
use crate::supervise::outcome::Fault;
use rustix::io::Errno;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Lints; the output and the exit code. A profile that cannot be loaded is told on standard error and keeps no other
/// from being linted.
///
/// # Errors
/// When there is nothing to show.
pub fn run(args: &Lint) -> Result<(Vec<u8>, u8), Fault> {
    let caller = Caller::read();
    let files = Files::of(&caller);
    let eyes = Eyes::default();
    let around = surroundings(&eyes, &caller, &files, args);
    let (subjects, mut faults) = subjects(&files, args);
    let (mut linted, mut findings) = (0, Vec::new());
    for subject in subjects {
        match lint::lint(subject, &files, &around) {
            Ok(found) => {
                linted += 1;
                findings.extend(found);
            }
            Err(e) => faults.push(fault::policy(&e)),
        }
    }
    lint::sort(&mut findings);
    // A file that several others extend is wrong once.
    faults.dedup_by(|a, b| (a.code, &a.object, &a.message) == (b.code, &b.object, &b.message));
    let deny = match args.deny {
        Deny::Error => Severity::Error,
        Deny::Warning => Severity::Warning,
        Deny::Note => Severity::Note,
    };
    let denied = findings.iter().any(|finding| finding.severity >= deny);
    let code = match (faults.is_empty(), denied) {
        (false, _) => exit::USAGE,
        (true, true) => exit::FOUND,
        (true, false) => exit::OK,
    };
    for fault in &faults {
        render::tell(&render::fault(fault));
    }
    let output = if args.json {
        document(&findings, &faults, linted, deny, denied)?
    } else {
        text(&findings, linted, faults.len()).into_bytes()
    };
    Ok((output, code))
}

/// What the arguments name, and what of it is not there.
fn subjects(files: &Files, args: &Lint) -> (Vec<Subject>, Vec<Fault>) {
    let (mut subjects, mut faults) = (Vec::new(), Vec::new());
    for choice in &args.profiles {
        match profiles::narrowed(files, choice) {
            Ok((root, project)) => subjects.push(Subject { root, project, earlier: None }),
            Err(fault) => faults.push(fault),
        }
    }
    if !args.profiles.is_empty() {
        return (subjects, faults);
    }
    let mut first = BTreeMap::new();
    for (name, found) in files.all() {
        match found {
            Ok(root) => {
                let origin = root.origin.clone();
                // The built-in profiles are meant to be replaced.
                let earlier = first.get(&name).filter(|_| origin != crate::policy::Origin::Embedded).cloned();
                first.entry(name).or_insert(origin);
                subjects.push(Subject { root, project: None, earlier });
            }
            Err(e) => faults.push(fault::unreadable(&e)),
        }
    }
    let project = meant::workspace(None)
        .map_err(|e| fault::place(&e))
        .and_then(|workspace| profiles::project(&workspace))
        .and_then(|project| {
            let root = files.choose(OsStr::new(crate::policy::DEFAULT_PROFILE))?;
            Ok(project.map(|project| Subject { root, project: Some(project), earlier: None }))
        });
    match project {
        Ok(project) => subjects.extend(project),
        Err(fault) => faults.push(fault),
    }
    (subjects, faults)
}

/// The host's files, through the caller's eyes. What was looked at once is remembered: every source is compared with
/// the same places.
#[derive(Default)]
struct Eyes(RefCell<BTreeMap<HostPath, Sight>>);

impl Look for Eyes {
    fn look(&self, path: &HostPath) -> Sight {
        if let Some(sight) = self.0.borrow().get(path) {
            return sight.clone();
        }
        let sight = Self::fresh(path);
        self.0.borrow_mut().insert(path.clone(), sight.clone());
        sight
    }
}

impl Eyes {
    fn fresh(path: &HostPath) -> Sight {
        let fact = match probe::look_up(path.as_path()) {
            Ok(fact) => fact,
            Err(missing) => {
                let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].map(Errno::raw_os_error);
                return if gone.contains(&missing.errno) { Sight::Absent } else { Sight::Unknown };
            }
        };
        let is = match fact.kind {
            Kind::Dir => Is::Dir,
            Kind::File => Is::File,
            Kind::Socket => Is::Socket,
            Kind::Device => Is::Device,
            Kind::Symlink | Kind::Other => Is::Other,
        };
        // In a sticky directory only the owner renames.
        let mode = rustix::fs::stat(path.as_path()).map_or(0, |stat| stat.st_mode);
        let sticky = is == Is::Dir && mode & 0o1000 != 0;
        let foreign = fact.uid != 0 && fact.uid != rustix::process::geteuid().as_raw();
        let others_write = foreign || (mode & 0o002 != 0 && !sticky);
        Sight::There(Seen { real: fact.real, is, fs_magic: fact.fs_magic, others_write })
    }
}

fn surroundings<'e>(eyes: &'e Eyes, caller: &Caller, files: &Files, args: &Lint) -> Surroundings<'e> {
    let path = caller.var("PATH").map_or(&[][..], OsStr::as_bytes);
    let state = host::state_path(args.state.state_dir.as_ref(), caller).ok();
    // What the plan refuses as an implicit workspace is none.
    let home = |dir: &HostPath| caller.home.as_ref().is_some_and(|home| home.is_within(dir));
    let workspace = meant::workspace(None).ok().filter(|dir| dir.depth() > 0 && !home(dir));
    Surroundings {
        look: eyes,
        home: caller.home.clone(),
        runtime: caller.var("XDG_RUNTIME_DIR").and_then(|dir| HostPath::new(dir).ok()),
        state: state.and_then(|path| HostPath::new(path).ok()),
        profiles: files.dirs(),
        path: path
            .split(|b| *b == b':')
            .filter_map(|dir| HostPath::new(OsStr::from_bytes(dir)).ok())
            .collect(),
        sockets: sockets(caller),
        workspace,
        calls: calls(),
    }
}

/// Sockets that variables name.
fn sockets(caller: &Caller) -> Vec<(&'static str, HostPath)> {
    const NAMES: [&str; 6] = [
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
        "DOCKER_HOST",
        "CONTAINER_HOST",
        "WAYLAND_DISPLAY",
        "GPG_AGENT_INFO",
    ];
    let named = |name: &'static str| {
        let value = caller.var(name)?.as_bytes();
        let value =
            value.strip_prefix(b"unix:path=").or_else(|| value.strip_prefix(b"unix://")).unwrap_or(value);
        // `,guid=…` of a bus, `:PID:…` of an agent.
        let path = value.split(|b| matches!(b, b',' | b':')).next()?;
        Some((name, HostPath::new(Path::new(OsStr::from_bytes(path))).ok()?))
    };
    NAMES.into_iter().filter_map(named).collect()
}

/// The filter's tables.
pub fn calls() -> Calls {
    Calls {
        sets: seccomp::sets()
            .map(|set| CallSet {
                name: set.name,
                calls: set.calls.into_iter().map(|(call, _)| call).collect(),
            })
            .collect(),
        refused: seccomp::refused()
            .map(|refused| RefusedCall {
                name: refused.name,
                eperm: refused.answer == seccomp::Answer::EPERM,
                grantable: refused.grantable,
                at: At { line: refused.place.0, column: refused.place.1 },
            })
            .collect(),
        launch: &seccomp::LAUNCH,
        known: seccomp::is_call,
    }
}

fn counted(findings: &[Finding]) -> [(Severity, usize); 3] {
    [Severity::Error, Severity::Warning, Severity::Note]
        .map(|severity| (severity, findings.iter().filter(|f| f.severity == severity).count()))
}

fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

fn text(findings: &[Finding], linted: usize, faults: usize) -> String {
    let mut out = String::new();
    for finding in findings {
        let rule = finding.code.rule();
        let at = finding.at.map_or_else(String::new, |at| format!(":{at}"));
        let (file, severity) = (safe(&finding.file.to_string()), finding.severity.word());
        // Many messages are sentences about their key.
        let key = finding.key.as_ref().filter(|key| !finding.message.contains(key.as_str()));
        let key = key.map_or_else(String::new, |key| format!("{}: ", safe(key)));
        let _ = writeln!(out, "{file}{at}: {severity} {}: {key}{}", rule.code, safe(&finding.message));
        let _ = writeln!(out, "    {}", rule.about);
        let _ = writeln!(out, "    remedy: {}", rule.remedy);
    }
    let counts: Vec<String> = counted(findings)
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|(severity, n)| plural(n, severity.word()))
        .collect();
    let counts = if counts.is_empty() { "nothing found".to_owned() } else { counts.join(", ") };
    let _ = write!(out, "{counts} in {}", plural(linted, "profile"));
    if faults > 0 {
        let _ = write!(out, "; {} could not be read or loaded", faults);
    }
    out.push('\n');
    out
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    /// From which severity on a finding makes the exit code 1.
    deny: Severity,
    denied: bool,
    profiles: usize,
    counts: BTreeMap<&'static str, usize>,
    findings: Vec<Row<'a>>,
    faults: Vec<Unloaded<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    code: &'a str,
    name: &'a str,
    severity: Severity,
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    key: Option<&'a str>,
    message: &'a str,
    about: &'a str,
    remedy: &'a str,
}

#[derive(Serialize)]
struct Unloaded<'a> {
    code: &'a str,
    object: Option<&'a str>,
    message: &'a str,
    hint: Option<&'a str>,
}

fn document(
    findings: &[Finding],
    faults: &[Fault],
    profiles: usize,
    deny: Severity,
    denied: bool,
) -> Result<Vec<u8>, Fault> {
    let rows = findings.iter().map(|finding| {
        let rule = finding.code.rule();
        Row {
            code: rule.code,
            name: rule.name,
            severity: finding.severity,
            file: finding.file.to_string(),
            line: finding.at.map(|at| at.line),
            column: finding.at.map(|at| at.column),
            key: finding.key.as_deref(),
            message: &finding.message,
            about: rule.about,
            remedy: rule.remedy,
        }
    });
    let faults = faults.iter().map(|fault| Unloaded {
        code: fault.code,
        object: fault.object.as_deref(),
        message: &fault.message,
        hint: fault.hint.as_deref(),
    });
    let document = Document {
        schema: "stockade.lint/1",
        deny,
        denied,
        profiles,
        counts: counted(findings).into_iter().map(|(severity, n)| (severity.word(), n)).collect(),
        findings: rows.collect(),
        faults: faults.collect(),
    };
    policy::document(&document, true)
}

/// `docs/lint.md`.
#[cfg(test)]
fn page() -> String {
    let mut out = String::from(
        "# What `policy lint` finds\n\n\
         `stockade policy lint` judges profiles that can be loaded; one that cannot is an error of its own (exit code 2). Without arguments it\n\
         takes every profile on the search path, built-in ones included, and the project's `.stockade/profile.toml` of the current directory. It reads\n\
         what the files come to together and names the file, line and column that said it. Paths are judged as they are written and, where this host has\n\
         them, by where they lead. Nothing is run or changed.\n\n\
         The exit code is 1 from `--deny SEVERITY` on (default `error`): *error* gives the host away or makes every run fail, *warning* is probably\n\
         not what was meant, *note* is to know. `--json` prints `stockade.lint/1`. Codes never change their meaning.\n\n\
         | code | name | severity | what it means | remedy |\n|---|---|---|---|---|\n",
    );
    for rule in lint::RULES {
        let severities = rule.severities.iter().map(|s| s.word()).collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            out,
            "| {} | `{}` | {severities} | {} | {} |",
            rule.code, rule.name, rule.about, rule.remedy
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/lint.md");
        if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page(), "set STOCKADE_WRITE_DOCS=1 to write it");
    }

    #[test]
    fn variables_that_name_sockets() {
        let env = [
            ("SSH_AUTH_SOCK", "/tmp/ssh-1/agent.2"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus,guid=abc"),
            ("DOCKER_HOST", "unix:///srv/docker.sock"),
            ("CONTAINER_HOST", "tcp://127.0.0.1:2375"),
            ("WAYLAND_DISPLAY", "wayland-0"),
            ("GPG_AGENT_INFO", "/home/u/.gnupg/S.gpg-agent:12:1"),
        ];
        let env: std::collections::BTreeMap<_, _> =
            env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let env = env.into();
        let named = sockets(&Caller { env, home: None });
        let named: Vec<String> = named.iter().map(|(name, path)| format!("{name} {path}")).collect();
        assert_eq!(
            named,
            [
                "SSH_AUTH_SOCK /tmp/ssh-1/agent.2",
                "DBUS_SESSION_BUS_ADDRESS /run/user/1000/bus",
                "DOCKER_HOST /srv/docker.sock",
                "GPG_AGENT_INFO /home/u/.gnupg/S.gpg-agent",
            ]
        );
    }

    #[test]
    fn the_filters_tables_are_whole() {
        let calls = calls();
        assert!(calls.set("base").is_some_and(|set| set.calls.contains(&"execve")));
        let clone3 = calls.refusal("clone3").unwrap();
        let text = include_str!("../../policies/seccomp/refused.toml");
        let line = text.lines().nth(clone3.at.line - 1).unwrap();
        assert!(!clone3.eperm && line[clone3.at.column - 1..].starts_with("\"clone3\""), "{line}");
        assert!(calls.refusal("ptrace").is_some_and(|refused| refused.grantable && refused.eperm));
    }
}

//! A plan in words. Everything here is read off the [`Plan`] (and, for what the caller may add, off the [`Policy`] that
//! it was made from): nothing is derived a second time.

use super::render::{list, safe};
use super::result::Granted;
use crate::base::{Digest, Gap, Need, Protection};
use crate::plan::{CacheLayer, CachePlan, FsOp, HostFacts, Mode, Plan, PlanError, SourceIx};
use crate::policy::{Origin, OutputAction, Policy, Posture};
use serde::Serialize;
use std::fmt::Write as _;

/// Columns of the text.
const WIDTH: usize = 100;
/// Names of system calls and the like that are printed before the rest is counted.
const NAMES_SHOWN: usize = 24;

/// The views of one plan that people ask for.
#[derive(Debug, Serialize)]
pub struct Explanation<'a> {
    schema: &'static str,
    profile: &'a str,
    summary: &'a str,
    /// The file that won, then what it extends and what narrowed it.
    origins: &'a [Origin],
    policy_digest: Digest,
    plan_digest: Digest,
    mode: Mode,
    readable: Vec<Seen>,
    writable: Vec<Seen>,
    /// Writable views whose writes are thrown away.
    throwaway: Vec<Seen>,
    /// Package caches.
    caches: Vec<Cached<'a>>,
    /// What is granted by intent, and what that opens.
    granted: Vec<Granted>,
    /// Private and gone afterwards.
    private: Vec<String>,
    /// Made for the executor, read-only.
    made: Vec<String>,
    hidden: Vec<String>,
    protected: Vec<String>,
    /// Not there yet; moved aside after the command when it made them.
    watched: Vec<String>,
    identity: Identity<'a>,
    network: &'static str,
    seccomp: crate::plan::seccomp::Summary,
    landlock_abi: u32,
    limits: Vec<(&'static str, String)>,
    required: Vec<&'static str>,
    preferred: Vec<&'static str>,
    cannot: Vec<Cannot<'a>>,
    caller_may: Vec<String>,
    notes: Vec<String>,
}

/// A place inside, and what on the host is seen there.
#[derive(Debug, Serialize)]
struct Seen {
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

/// A package cache, and where on the host its parts are.
#[derive(Debug, Serialize)]
struct Cached<'a> {
    #[serde(flatten)]
    plan: &'a CachePlan,
    /// The host's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<String>,
    /// What keeps what is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_in: Option<String>,
}

#[derive(Debug, Serialize)]
struct Identity<'a> {
    uid: u32,
    user: crate::policy::InsideUser,
    hostname: &'a str,
    own_clock: bool,
}

#[derive(Debug, Serialize)]
struct Cannot<'a> {
    protection: Protection,
    #[serde(flatten)]
    gap: &'a Gap,
}

/// A number of bytes as people write it.
pub fn size(bytes: u64) -> String {
    crate::base::ByteSize(bytes).rounded()
}

fn limits(plan: &Plan) -> Vec<(&'static str, String)> {
    let l = &plan.containment.limits;
    let bytes = |v: Option<u64>| v.map_or_else(|| "none".to_owned(), size);
    let wall = l.wall_ms.map_or_else(|| "none".to_owned(), |ms| crate::base::Millis(ms).to_string());
    let after = match l.output_action {
        OutputAction::Truncate => "then counted and dropped",
        OutputAction::Kill => "then killed",
    };
    vec![
        ("memory", bytes(l.memory)),
        ("processes", l.processes.map_or_else(|| "none".to_owned(), |n| n.to_string())),
        ("cpu", l.cpu_percent.map_or_else(|| "none".to_owned(), |n| format!("{n}% of one core"))),
        ("wall time", wall),
        (
            "grace",
            match l.grace_ms {
                0 => "none: killed at once".to_owned(),
                ms => format!("{} after a polite signal", crate::base::Millis(ms)),
            },
        ),
        (
            "output",
            l.output.map_or_else(|| "none".to_owned(), |n| format!("{} per stream, {after}", size(n))),
        ),
        ("open files", l.open_files.to_string()),
        ("file size", bytes(l.file_size)),
        ("locked memory", size(l.locked_memory)),
        ("stack", size(l.stack)),
        ("private space", format!("{} and {} files", size(l.scratch), l.scratch_inodes)),
        ("workspace growth", bytes(l.disk)),
    ]
}

fn grants(policy: &Policy) -> Vec<String> {
    let g = &policy.grants;
    let mut out = Vec::new();
    for (flag, dirs) in [("--ro", &g.ro), ("--rw", &g.rw)] {
        if !dirs.is_empty() {
            out.push(format!("{flag} from {}", list(dirs)));
        }
    }
    if !g.env.is_empty() {
        out.push(format!("--env {}", list(&g.env)));
    }
    if !g.intents.is_empty() {
        let names: Vec<&str> = g.intents.iter().map(|i| i.name()).collect();
        out.push(format!("--grant {}", list(&names)));
    }
    for (given, flag) in [(g.tmpfs, "--tmpfs"), (g.root, "--root"), (g.workspace, "-w")] {
        if given {
            out.push(flag.to_owned());
        }
    }
    out
}

impl<'a> Explanation<'a> {
    /// Explains `plan`, which `policy` and `host` came to.
    ///
    /// # Errors
    /// None for a plan that was made.
    pub fn of(policy: &'a Policy, plan: &'a Plan, host: &HostFacts) -> Result<Self, PlanError> {
        let c = &plan.containment;
        let mut out = Self {
            schema: "stockade.explain/1",
            profile: &policy.name,
            summary: &policy.summary,
            origins: &policy.origins,
            policy_digest: c.policy_digest,
            plan_digest: plan.plan_digest,
            mode: c.mode,
            readable: Vec::new(),
            writable: Vec::new(),
            throwaway: Vec::new(),
            caches: caches(plan),
            granted: c.intents.iter().map(|i| Granted { name: i.name(), opens: i.opens() }).collect(),
            private: Vec::new(),
            made: Vec::new(),
            hidden: Vec::new(),
            protected: Vec::new(),
            watched: c.watch.iter().flat_map(|w| &w.missing).map(ToString::to_string).collect(),
            identity: Identity {
                uid: c.ids.inside,
                user: c.ids.user,
                hostname: &c.hostname,
                own_clock: c.time_namespace,
            },
            network: match (c.own_network, c.posture, c.loopback) {
                (false, ..) => "the host's own network: whatever the host reaches, the command reaches",
                (true, Posture::Disabled, false) => {
                    "none: a namespace of its own, no internet sockets at all"
                }
                (true, Posture::Disabled, true) => {
                    "none: a namespace of its own with nothing but a loopback of the command's own"
                }
                (true, Posture::General, _) => "a namespace of its own",
            },
            seccomp: c.seccomp.summary()?,
            landlock_abi: c.landlock.abi,
            limits: limits(plan),
            required: named(plan, Need::Require),
            preferred: named(plan, Need::Prefer),
            cannot: c.gaps.iter().map(|(p, gap)| Cannot { protection: *p, gap }).collect(),
            caller_may: grants(policy),
            notes: notes(plan, host),
        };
        for op in &c.fs {
            out.add(plan, op);
        }
        Ok(out)
    }

    fn add(&mut self, plan: &Plan, op: &FsOp) {
        let at = op.at().to_string();
        let seen = |from: &SourceIx| {
            let host = source(plan, *from).filter(|h| *h != at);
            Seen { host, at: at.clone() }
        };
        // Those have a part of their own.
        if plan.containment.caches.iter().any(|c| c.at == *op.at()) {
            return;
        }
        match op {
            FsOp::Bind { from, writable: true, .. } => self.writable.push(seen(from)),
            FsOp::Bind { from, .. } => self.readable.push(seen(from)),
            FsOp::Overlay { lower, .. } => {
                self.throwaway.push(lower.as_ref().map_or(Seen { at: at.clone(), host: None }, seen))
            }
            FsOp::Scratch { .. } => self.private.push(at),
            FsOp::Tmpfs { size: bytes, .. } => {
                self.private.push(format!("{at} ({} of its own)", size(*bytes)))
            }
            FsOp::File { .. } | FsOp::Proc { .. } | FsOp::Dev { .. } => self.made.push(at),
            FsOp::Protect { .. } => self.protected.push(at),
            FsOp::Mask { .. } => self.hidden.push(at),
            // Places and names without content of their own.
            FsOp::Dir { .. } | FsOp::Symlink { .. } | FsOp::Pin { .. } => {}
        }
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut page = Page(String::with_capacity(4096));
        let origins: Vec<String> = self.origins.iter().map(ToString::to_string).collect();
        page.line("profile", &format!("{} ({})", self.profile, origins.first().map_or("", String::as_str)));
        if origins.len() > 1 {
            page.line("", &format!("over {}", list(&origins[1..])));
        }
        page.line("", self.summary);
        page.line("policy", &self.policy_digest.to_string());
        page.line("plan", &self.plan_digest.to_string());
        page.line(
            "built",
            match self.mode {
                Mode::Privileged => "by a privileged process, with a range of ids of its own",
                Mode::Rootless => "by an ordinary user, with the caller's own id in a user namespace",
            },
        );

        page.head("What the command sees");
        page.seen("readable", &self.readable);
        page.seen("writable", &self.writable);
        page.seen("writes thrown away", &self.throwaway);
        page.names("private, then gone", &self.private);
        page.names("made for it", &self.made);
        page.names("hidden", &self.hidden);
        page.names("held read-only", &self.protected);
        page.names("moved aside if made", &self.watched);

        if !self.caches.is_empty() {
            page.head("Package caches");
        }
        for cache in &self.caches {
            page.line(cache.plan.name, &cache.words());
            if let Some(note) = &cache.plan.note {
                page.line("", note);
            }
        }

        if !self.granted.is_empty() {
            page.head("Granted by intent");
        }
        for granted in &self.granted {
            page.line(granted.name, granted.opens);
        }

        page.head("What it is");
        let user = match self.identity.user {
            crate::policy::InsideUser::Agent => "agent",
            crate::policy::InsideUser::Root => "root",
        };
        page.line(
            "user",
            &format!("{user}, uid {} inside; no capability, no new privileges", self.identity.uid),
        );
        page.line("host name", self.identity.hostname);
        if self.identity.own_clock {
            page.line("clock", "offsets of its own");
        }
        page.line("network", self.network);
        let s = &self.seccomp;
        let checked = s.argument_checked.len();
        let rest = s.extra.iter().map(String::as_str);
        page.line(
            "system calls",
            &format!("{} allowed, {checked} of them by their arguments; others do not exist", s.allowed),
        );
        page.names_of("  from the sets", s.sets.iter().map(String::as_str).chain(rest));
        page.names_of("  refused by name", s.eperm.iter().map(String::as_str));
        page.line(
            "landlock",
            &match self.landlock_abi {
                0 => "not there".to_owned(),
                abi => format!("ABI {abi}"),
            },
        );

        page.head("Limits");
        for (name, value) in &self.limits {
            page.line(name, value);
        }

        page.head("Protections");
        page.names_of("required", self.required.iter().copied());
        page.names_of("preferred", self.preferred.iter().copied());
        for cannot in &self.cannot {
            page.line("not to be had here", &format!("{}: {}", cannot.protection.key(), cannot.gap.what));
            page.line("", &format!("remedy: {}", cannot.gap.remedy.lines().next().unwrap_or_default()));
        }
        if self.cannot.is_empty() {
            page.line("not to be had here", "nothing is missing");
        }
        if self.caller_may.is_empty() {
            page.line("the caller may add", "nothing");
        }
        for may in &self.caller_may {
            page.line("the caller may add", may);
        }
        for note in &self.notes {
            page.line("note", note);
        }
        page.0
    }
}

fn source(plan: &Plan, index: SourceIx) -> Option<String> {
    plan.containment.sources.get(index.0 as usize).map(|s| s.path.to_string())
}

fn caches(plan: &Plan) -> Vec<Cached<'_>> {
    let c = &plan.containment;
    let parts = |cache: &CachePlan| {
        c.fs.iter().find_map(|op| match op {
            FsOp::Overlay { lower, layer, at } if *at == cache.at => {
                Some((lower.and_then(|l| source(plan, l)), layer.and_then(|l| source(plan, l))))
            }
            _ => None,
        })
    };
    c.caches
        .iter()
        .map(|cache| {
            let (over, kept_in) = parts(cache).unwrap_or_default();
            Cached { plan: cache, over, kept_in }
        })
        .collect()
}

impl Cached<'_> {
    fn words(&self) -> String {
        let at = &self.plan.at;
        let over = match &self.over {
            Some(host) if *host == at.to_string() => format!("{at}, over the host's own"),
            Some(host) => format!("{at}, over the host's {host}"),
            None => at.to_string(),
        };
        match (self.plan.layer, &self.kept_in) {
            (CacheLayer::Kept, Some(dir)) => format!("{over}: what is written is kept in {dir}"),
            (CacheLayer::Kept, None) => format!("{over}: what is written is kept"),
            (CacheLayer::Throwaway, _) => format!("{over}: what is written is thrown away"),
            (CacheLayer::Empty, _) => format!("{at}, empty and private"),
            (CacheLayer::Workspace, _) => format!("{at}, in the workspace"),
            (CacheLayer::ReadOnly, _) => format!("{at}, the host's own, read-only"),
            (CacheLayer::Absent, _) => "not there".to_owned(),
        }
    }
}

fn named(plan: &Plan, need: Need) -> Vec<&'static str> {
    let needs = &plan.containment.needs;
    Protection::ALL.iter().filter(|p| needs.get(p) == Some(&need)).map(|p| p.key()).collect()
}

fn notes(plan: &Plan, host: &HostFacts) -> Vec<String> {
    let mut out = plan.notes.clone();
    let lost = &plan.containment.landlock.lost;
    if !lost.is_empty() {
        out.push(format!("a newer kernel's Landlock would also handle {}", list(lost)));
    }
    if !plan.containment.own_network {
        out.push("sharing the host's network counts as reduced assurance".to_owned());
    }
    out.push(format!("Linux {}", host.kernel));
    out
}

/// The command of a plan, for `--dry-run`.
pub fn command(plan: &Plan) -> String {
    let mut page = Page(String::new());
    page.head("The command");
    let argv = plan.command.argv.iter().map(|a| quoted(a.as_bytes()));
    page.names_of("runs", argv.collect::<Vec<_>>().iter().map(String::as_str));
    page.line("in", &plan.command.cwd.to_string());
    let names: Vec<String> =
        plan.command.env.iter().map(|(n, _)| crate::base::text::visible(n.as_bytes())).collect();
    page.names_of("environment", names.iter().map(String::as_str));
    page.names_of(
        "PATH",
        plan.command.path.iter().map(ToString::to_string).collect::<Vec<_>>().iter().map(String::as_str),
    );
    page.line("terminal", if plan.command.tty { "of its own" } else { "none" });
    page.line("digest", &plan.command_digest.to_string());
    page.0
}

/// An argument, told apart from its neighbours.
fn quoted(bytes: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-./=:+%@".contains(b);
    let text = crate::base::text::visible(bytes);
    if !bytes.is_empty() && bytes.iter().all(plain) { text } else { format!("'{text}'") }
}

/// Two columns.
struct Page(String);

const LABEL: usize = 22;

impl Page {
    fn head(&mut self, text: &str) {
        let _ = write!(self.0, "\n{text}\n");
    }

    /// One labelled text, wrapped at spaces.
    fn line(&mut self, label: &str, text: &str) {
        let text = safe(text);
        let words: Vec<&str> = text.split(' ').collect();
        self.wrap(label, &words, " ");
    }

    fn names(&mut self, label: &str, names: &[String]) {
        self.names_of(label, names.iter().map(String::as_str));
    }

    fn names_of<'n>(&mut self, label: &str, names: impl Iterator<Item = &'n str>) {
        let mut names: Vec<String> = names.map(safe).collect();
        if names.is_empty() {
            return;
        }
        if names.len() > NAMES_SHOWN + 2 {
            let more = names.len() - NAMES_SHOWN;
            names.truncate(NAMES_SHOWN);
            names.push(format!("and {more} more (--json has all)"));
        }
        let words: Vec<&str> = names.iter().map(String::as_str).collect();
        self.wrap(label, &words, "  ");
    }

    fn seen(&mut self, label: &str, seen: &[Seen]) {
        let texts: Vec<String> = seen
            .iter()
            .map(|s| match &s.host {
                Some(host) => format!("{} (host {host})", s.at),
                None => s.at.clone(),
            })
            .collect();
        self.names(label, &texts);
    }

    fn wrap(&mut self, label: &str, words: &[&str], gap: &str) {
        let start = |out: &mut String, label: &str| {
            let _ = write!(out, "  {label:<LABEL$}");
            LABEL + 2
        };
        let mut column = start(&mut self.0, label);
        let mut fresh = true;
        for word in words {
            let chars = word.chars().count();
            if !fresh && column + gap.len() + chars > WIDTH {
                self.0.push('\n');
                column = start(&mut self.0, "");
                fresh = true;
            }
            if !fresh {
                self.0.push_str(gap);
                column += gap.len();
            }
            self.0.push_str(word);
            column += chars;
            fresh = false;
        }
        self.0.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(512 << 20), "512MiB");
        assert_eq!(size(1000), "1000");
        assert_eq!(size(1025), "1.0KiB");
        assert_eq!(size((512 << 20) + (300 << 10) + 1), "512.3MiB");
        assert_eq!(size(u64::MAX), "16777216.0TiB");
    }

    #[test]
    fn long_texts_wrap_and_move_no_cursor() {
        let mut page = Page(String::new());
        page.line("label", &"word ".repeat(40));
        page.names("names", &["a\u{1b}[2J".to_owned(), "b c".to_owned()]);
        assert!(page.0.lines().all(|l| l.chars().count() <= WIDTH), "{}", page.0);
        assert!(page.0.contains("a\\u{1b}[2J  b c\n"));
    }
}

//! What a command is told of its own sandbox: two read-only files, in words and as JSON. They say what the plan says,
//! by paths inside alone: nothing of where things lie on the host, and no remedy that names it.

use super::types::{CacheLayer, CachePlan, FsOp, LimitPlan};
use crate::base::{ByteSize, Gap, Millis, OsBytes, Protection, SandboxPath, canonical_json};
use crate::policy::{InsideUser, Intent, OutputAction, Policy, Posture};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The directory: a name of Stockade's own, at which nothing else can be mounted.
pub const DIR: &str = "/.stockade";
/// In words.
pub const TEXT: &str = "/.stockade/sandbox.txt";
/// As JSON.
pub const JSON: &str = "/.stockade/sandbox.json";
/// The variable that names [`TEXT`].
pub const VARIABLE: &str = "STOCKADE_SANDBOX";
/// Paths of one kind that are named.
const PATHS_MAX: usize = 64;

/// What it is made from.
pub(super) struct Of<'a> {
    pub policy: &'a Policy,
    pub limits: &'a LimitPlan,
    pub gaps: &'a BTreeMap<Protection, Gap>,
    pub ops: Vec<&'a FsOp>,
    pub caches: &'a [CachePlan],
    pub intents: &'a [Intent],
    pub workspace: Option<&'a SandboxPath>,
    pub home: SandboxPath,
}

/// Paths of one kind: those that are named, and how many more there are.
#[derive(Debug, Default, Serialize)]
struct Paths {
    paths: Vec<SandboxPath>,
    #[serde(skip_serializing_if = "is_zero")]
    more: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Paths {
    fn add(&mut self, at: &SandboxPath) {
        if self.paths.len() < PATHS_MAX {
            self.paths.push(at.clone());
        } else {
            self.more += 1;
        }
    }
}

/// A way to get more.
#[derive(Debug, Serialize)]
struct Ask {
    /// What for.
    need: &'static str,
    /// What the person who starts commands can do.
    how: String,
    /// Whether this profile lets them, without another one.
    permitted: bool,
}

#[derive(Debug, Serialize)]
struct Cache<'a> {
    name: &'a str,
    at: &'a SandboxPath,
    layer: CacheLayer,
}

#[derive(Debug, Serialize)]
struct Granted {
    name: &'static str,
    opens: &'static str,
}

#[derive(Debug, Serialize)]
struct View<'a> {
    schema: &'static str,
    profile: &'a str,
    summary: &'a str,
    words: &'static str,
    user: InsideUser,
    hostname: &'a str,
    home: &'a SandboxPath,
    workspace: Option<&'a SandboxPath>,
    workspace_access: crate::policy::Access,
    readable: Paths,
    writable: Paths,
    writes_thrown_away: Paths,
    private: Paths,
    held_read_only: Paths,
    hidden: Paths,
    network: Posture,
    loopback: bool,
    host_network: bool,
    limits: &'a LimitPlan,
    caches: Vec<Cache<'a>>,
    granted: Vec<Granted>,
    /// Protections that this host does not give.
    missing: Vec<Protection>,
    ask: Vec<Ask>,
}

impl<'a> View<'a> {
    fn of(of: &'a Of<'a>) -> Self {
        let p = of.policy;
        let mut view = Self {
            schema: "stockade.sandbox/1",
            profile: &p.name,
            summary: &p.summary,
            words: TEXT,
            user: p.user,
            hostname: &p.hostname,
            home: &of.home,
            workspace: of.workspace,
            workspace_access: p.workspace.access,
            readable: Paths::default(),
            writable: Paths::default(),
            writes_thrown_away: Paths::default(),
            private: Paths::default(),
            held_read_only: Paths::default(),
            hidden: Paths::default(),
            network: p.network.posture,
            loopback: p.network.loopback || p.network.posture == Posture::General,
            host_network: p.network.posture == Posture::General && p.network.share_host,
            limits: of.limits,
            caches: of.caches.iter().map(|c| Cache { name: c.name, at: &c.at, layer: c.layer }).collect(),
            granted: of.intents.iter().map(|i| Granted { name: i.name(), opens: i.opens() }).collect(),
            missing: of.gaps.keys().copied().collect(),
            ask: asks(p),
        };
        for op in &of.ops {
            let paths = match op {
                FsOp::Bind { writable: true, .. } => &mut view.writable,
                FsOp::Bind { .. } => &mut view.readable,
                FsOp::Overlay { at, .. } if of.caches.iter().any(|c| c.at == *at) => continue,
                FsOp::Overlay { .. } => &mut view.writes_thrown_away,
                FsOp::Scratch { .. } | FsOp::Tmpfs { .. } => &mut view.private,
                FsOp::Protect { .. } => &mut view.held_read_only,
                FsOp::Mask { .. } => &mut view.hidden,
                FsOp::File { .. }
                | FsOp::Dir { .. }
                | FsOp::Symlink { .. }
                | FsOp::Pin { .. }
                | FsOp::Proc { .. }
                | FsOp::Dev { .. } => continue,
            };
            paths.add(op.at());
        }
        view
    }

    fn text(&self) -> String {
        let mut out = format!(
            "This command runs in a sandbox (Stockade, profile {}): {}.\n\
             What it refuses stays refused: trying again, or another way, does not help. This file says what there is and\n\
             how to ask for more. The same as JSON: {JSON}\n\n",
            shown(self.profile),
            shown(self.summary.trim_end_matches('.')),
        );
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(out, "{name:<21}{value}");
        };
        let user = if self.user == InsideUser::Root { "root" } else { "agent" };
        line("user", &format!("{user}, without any capability; home {}", self.home));
        match self.workspace {
            Some(at) => line("workspace", &format!("{at}, {}", access(self.workspace_access))),
            None => line("workspace", "none"),
        }
        for (name, paths) in [
            ("writable", &self.writable),
            ("writes thrown away", &self.writes_thrown_away),
            ("private, then gone", &self.private),
            ("held read-only", &self.held_read_only),
            ("hidden (empty)", &self.hidden),
            ("readable", &self.readable),
        ] {
            if !paths.paths.is_empty() {
                let names: Vec<String> = paths.paths.iter().map(ToString::to_string).collect();
                let more = if paths.more > 0 { format!(" and {} more", paths.more) } else { String::new() };
                line(name, &format!("{}{more}", names.join(" ")));
            }
        }
        line("network", self.network());
        for cache in &self.caches {
            line("package cache", &format!("{} at {}: {}", cache.name, cache.at, layer(cache.layer)));
        }
        for granted in &self.granted {
            line("granted", &format!("{}: {}", granted.name, granted.opens));
        }
        for (name, value) in limits(self.limits) {
            line(name, &value);
        }
        if !self.missing.is_empty() {
            let names: Vec<&str> = self.missing.iter().map(|p| p.key()).collect();
            line("not enforced here", &names.join(", "));
        }
        out.push_str(
            "\nTo ask for more, tell whoever started this what is needed and why. What they can do:\n",
        );
        for ask in &self.ask {
            let more = if ask.permitted { "" } else { " (not under this profile: with another one)" };
            let _ = writeln!(out, "- {}: {}{more}", ask.need, ask.how);
        }
        out
    }

    fn network(&self) -> &'static str {
        match (self.network, self.host_network, self.loopback) {
            (Posture::General, true, _) => "the host's own: whatever it reaches",
            (Posture::General, false, _) => "a namespace of its own",
            (Posture::Disabled, _, true) => {
                "none but a loopback of the sandbox's own: no name, host or registry can be reached"
            }
            (Posture::Disabled, _, false) => "none, and no internet sockets",
        }
    }
}

fn access(access: crate::policy::Access) -> &'static str {
    use crate::policy::Access;
    match access {
        Access::None => "not shown",
        Access::Ro => "read-only",
        Access::Overlay => "a view whose writes are thrown away",
        Access::Rw => "writable, but for what is held read-only",
    }
}

fn layer(layer: CacheLayer) -> &'static str {
    match layer {
        CacheLayer::Kept => "writable, there again at the next run in this workspace",
        CacheLayer::Throwaway => "writable, what is written is thrown away",
        CacheLayer::Empty => "empty, thrown away afterwards",
        CacheLayer::Workspace => "in the workspace",
        CacheLayer::ReadOnly => "read-only",
        CacheLayer::Absent => "not there",
    }
}

fn limits(l: &LimitPlan) -> Vec<(&'static str, String)> {
    let bytes = |n: u64| ByteSize(n).rounded();
    let mut out = Vec::new();
    let mut add = |name, value: Option<String>| out.extend(value.map(|v| (name, v)));
    add("memory", l.memory.map(|n| format!("{} for all processes and private files together", bytes(n))));
    add("processes", l.processes.map(|n| format!("{n}, threads among them")));
    add("CPU", l.cpu_percent.map(|n| format!("{n}% of one core")));
    add("wall time", l.wall_ms.map(|n| format!("{}, then everything is ended", Millis(n))));
    let after = match l.output_action {
        OutputAction::Truncate => "the rest is dropped",
        OutputAction::Kill => "then everything is ended",
    };
    add("output", l.output.map(|n| format!("{} per stream, {after}", bytes(n))));
    add("file size", l.file_size.map(bytes));
    add("open files", Some(l.open_files.to_string()));
    add("private space", Some(format!("{} and {} files", bytes(l.scratch), l.scratch_inodes)));
    add("workspace growth", l.disk.map(bytes));
    out
}

fn asks(p: &Policy) -> Vec<Ask> {
    let g = &p.grants;
    let mut out = Vec::new();
    let mut ask = |need, how: &str, permitted| out.push(Ask { need, how: how.to_owned(), permitted });
    ask("reading another directory", "stockade exec --ro DIR", !g.ro.is_empty());
    ask("writing to another directory", "stockade exec --rw DIR", !g.rw.is_empty());
    ask("a variable", "stockade exec --env NAME", !g.env.is_empty());
    let network = "a profile with `posture = \"general\"`, such as --profile open";
    ask("a network", network, p.network.posture == Posture::General);
    let caches = "a profile with `[caches]`, such as --profile build; packages have to be fetched before";
    ask("package caches to write to", caches, !p.caches.tools.is_empty());
    ask("more memory, processes or time", "a profile of their own with higher [limits]", false);
    for intent in Intent::ALL {
        let need = match intent {
            Intent::Browser => "a browser with its own sandbox",
            Intent::SshAgent => "signing with SSH keys",
            Intent::GitCredentials => "stored passwords of git",
            Intent::Gpu => "a GPU",
            Intent::X11 => "windows (X11)",
            Intent::Wayland => "windows (Wayland)",
        };
        let permitted = g.intents.contains(intent) || p.intents.contains(intent);
        ask(need, &format!("stockade exec --grant {}", intent.name()), permitted);
    }
    ask("knowing why", "stockade policy explain, with the same options", true);
    out
}

fn shown(text: &str) -> String {
    crate::base::text::visible(text.as_bytes())
}

/// The two files.
///
/// # Errors
/// None for a plan's own values.
pub(super) fn files(of: &Of<'_>) -> Result<[(&'static str, OsBytes); 2], crate::base::canon::CanonError> {
    let view = View::of(of);
    let mut json = canonical_json(&view)?;
    json.push(b'\n');
    Ok([(TEXT, view.text().into()), (JSON, json.into())])
}

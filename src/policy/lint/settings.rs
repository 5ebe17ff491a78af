//! Protections, limits, network, system calls, grants, and the profile's file itself.

use super::places::Judged;
use super::{Code, Finding, LintFile, Linter, Severity, Sight, shown, some};
use crate::base::{ByteSize, HostPath, MemorySize, Need, Protection};
use crate::policy::{Access, CacheLayer, Candidate, MountEntry, Origin, OutputAction, Policy, Posture, Tool};

/// What the boundary consists of.
const CORE: &[Protection] = &[
    Protection::Namespaces,
    Protection::Mounts,
    Protection::Ids,
    Protection::Capabilities,
    Protection::Seccomp,
    Protection::LandlockFs,
    Protection::Network,
];

/// Calls of which C libraries and language runtimes go on with an older one on ENOSYS alone.
const NEED_ENOSYS: &[&str] = &[
    "clone3",
    "close_range",
    "epoll_pwait2",
    "execveat",
    "faccessat2",
    "fchmodat2",
    "futex_waitv",
    "getrandom",
    "openat2",
    "pidfd_open",
    "preadv2",
    "pwritev2",
    "renameat2",
    "rseq",
    "statx",
];

pub(super) fn lint(linter: &mut Linter<'_>, policy: &Policy) {
    protections(linter, policy);
    root(linter, policy);
    limits(linter, policy);
    caches(linter, policy);
    network(linter, policy);
    calls(linter, policy);
    intents(linter, policy);
    grants(linter, policy);
}

fn protections(linter: &mut Linter<'_>, policy: &Policy) {
    for protection in CORE.iter().filter(|p| policy.needs.get(p) == Some(&Need::Prefer)) {
        let key = format!("require.{}", protection.key());
        let spot = linter.key(&key);
        linter.report(Code::CorePreferred, spot, format!("`{}` is only preferred", protection.key()));
    }
    let l = &policy.limits;
    let no_ports = policy.network.posture == Posture::Disabled && !policy.network.loopback;
    let objects = [
        (Protection::LimitMemory, l.memory.is_some(), "limits.memory"),
        (Protection::LimitProcesses, l.processes.is_some(), "limits.processes"),
        (Protection::LimitCpu, l.cpu.is_some(), "limits.cpu"),
        // In a workspace that cannot be written nothing grows.
        (Protection::LimitDisk, l.disk.is_some() || policy.workspace.access != Access::Rw, "limits.disk"),
        (Protection::LandlockNet, no_ports, "network.loopback"),
    ];
    for (protection, has, other) in objects {
        if policy.requires(protection) && !has {
            let key = format!("require.{}", protection.key());
            let spot = linter.nearest(&[&key, other]);
            let why = match protection {
                Protection::LandlockNet => {
                    "internet sockets are permitted, and port rules are not asked for then".to_owned()
                }
                _ => format!("`{other}` is \"none\""),
            };
            linter.report(Code::NoEffect, spot, format!("`{}` is required, and {why}", protection.key()));
        }
    }
}

fn caches(linter: &mut Linter<'_>, policy: &Policy) {
    let c = &policy.caches;
    let kept = c.layer == CacheLayer::Kept;
    let no_effect = |linter: &mut Linter<'_>, key: &str, other: &str, why: &str| {
        if linter.said_over(key, other) {
            let spot = linter.key(key);
            linter.report(Code::NoEffect, spot, format!("`{key}` says nothing: {why}"));
        }
    };
    if c.tools.is_empty() {
        for key in ["caches.layer", "caches.size", "require.caches"] {
            no_effect(linter, key, "caches.use", "`caches.use` names no tool");
        }
    } else if !kept {
        no_effect(linter, "caches.size", "caches.layer", "only what is kept has a size");
    } else if policy.workspace.access == Access::None {
        no_effect(linter, "caches.layer", "workspace.access", "a kept layer belongs to a workspace");
    } else {
        let general = policy.network.posture == Posture::General;
        let severity = if general { Severity::Warning } else { Severity::Note };
        let spot = linter.nearest(&["caches.layer", "caches.use"]);
        let why = if general { ", and the network decides what that is" } else { "" };
        let message = format!("what is written to {} is kept{why}", tools(&c.tools));
        linter.report_as(Code::KeptCaches, severity, spot, message);
    }
    if policy.env.heap_hints && policy.limits.memory.is_none() {
        let why = "`limits.memory` is \"none\", and there is nothing to tell";
        no_effect(linter, "env.heap_hints", "limits.memory", why);
    }
}

fn intents(linter: &mut Linter<'_>, policy: &Policy) {
    for intent in &policy.intents {
        let spot = linter.entry("intents.use", intent.name().as_bytes());
        linter.report(Code::Intents, spot, format!("`{}` opens {}", intent.name(), intent.opens()));
    }
}

fn tools(tools: &[Tool]) -> String {
    let names: Vec<String> = tools.iter().map(|t| t.name().to_owned()).collect();
    format!("the caches of {}", some(names.into_iter()))
}

fn root(linter: &mut Linter<'_>, policy: &Policy) {
    if policy.root.dir.is_none() {
        return;
    }
    for (key, says) in
        [("root.etc", !policy.root.etc.is_empty()), ("root.toolchains", policy.root.toolchains)]
    {
        if says && linter.said_over(key, "root.dir") {
            let spot = linter.key(key);
            let message = "with `root.dir` nothing of the host's /etc and toolchains is shown".to_owned();
            linter.report(Code::NoEffect, spot, message);
        }
    }
}

fn limits(linter: &mut Linter<'_>, policy: &Policy) {
    let l = &policy.limits;
    for (key, limited, severity) in [
        ("limits.memory", l.memory.is_some(), Severity::Warning),
        ("limits.processes", l.processes.is_some(), Severity::Warning),
        ("limits.output", l.output.is_some(), Severity::Warning),
        ("limits.wall", l.wall.is_some(), Severity::Note),
    ] {
        if !limited {
            let spot = linter.key(key);
            linter.report_as(Code::Unlimited, severity, spot, format!("`{key}` is \"none\""));
        }
    }
    let memory = l.memory.and_then(|m: MemorySize| m.parts().0);
    disagreements(linter, policy, memory);
    if l.output_action == OutputAction::Kill && l.output.is_none() {
        let spot = linter.nearest(&["limits.output", "limits.output_action"]);
        linter.report(
            Code::NoEffect,
            spot,
            "`limits.output_action` is \"kill\", and `limits.output` is \"none\"".to_owned(),
        );
    }
    let writable = policy.workspace.access == Access::Rw
        || policy.mounts.iter().any(|m| matches!(m, MountEntry::Bind { writable: true, .. }));
    if l.disk.is_some() && !writable && linter.said_over("limits.disk", "workspace.access") {
        let spot = linter.key("limits.disk");
        linter.report(
            Code::NoEffect,
            spot,
            "`limits.disk` bounds what is writable, and nothing of the host is".to_owned(),
        );
    }
}

fn disagreements(linter: &mut Linter<'_>, policy: &Policy, memory: Option<ByteSize>) {
    let l = &policy.limits;
    if let Some(wall) = l.wall.filter(|wall| l.grace > *wall) {
        let spot = linter.nearest(&["limits.grace", "limits.wall"]);
        linter.report(
            Code::LimitsDisagree,
            spot,
            format!(
                "the time between the signal and the kill ({}) is longer than the whole run ({wall})",
                l.grace
            ),
        );
    }
    let Some(memory) = memory else { return };
    for (key, value) in
        [("limits.scratch", l.scratch), ("limits.stack", l.stack), ("limits.locked_memory", l.locked_memory)]
    {
        // Who lowers the memory alone has said nothing about the rest.
        if value > memory && linter.said_over(key, "limits.memory") {
            let spot = linter.key(key);
            let message =
                format!("`{key}` is {value}, which counts as memory, and `limits.memory` is {memory}");
            linter.report(Code::LimitsDisagree, spot, message);
        }
    }
    for entry in &policy.mounts {
        if let MountEntry::Tmpfs { target, size, .. } = entry
            && *size > memory
        {
            let spot = linter.mount(target, "size");
            let message = format!(
                "the tmpfs at `{target}` holds {size}, which counts as memory, and `limits.memory` is {memory}"
            );
            linter.report(Code::LimitsDisagree, spot, message);
        }
    }
}

fn network(linter: &mut Linter<'_>, policy: &Policy) {
    let n = policy.network;
    if n.share_host {
        let spot = linter.key("network.share_host");
        linter.report(Code::HostNetwork, spot, "the command is on the host's own network".to_owned());
    }
    let calls = linter.around.calls.of(&policy.seccomp.sets, &policy.seccomp.allow);
    if (n.share_host || n.loopback) && !calls.contains("socket") {
        let spot = linter.nearest(&["seccomp.sets", "network.loopback", "network.share_host"]);
        let message = "`network` permits sockets, and no set has the call `socket`".to_owned();
        linter.report(Code::NoSockets, spot, message);
    }
}

fn calls(linter: &mut Linter<'_>, policy: &Policy) {
    let around = linter.around;
    let calls = &around.calls;
    let (sets, allow) = (&policy.seccomp.sets, &policy.seccomp.allow);
    for name in sets.iter().filter(|name| calls.set(name).is_none()) {
        let spot = linter.entry("seccomp.sets", name.as_bytes());
        linter.report(Code::CallRefused, spot, format!("there is no set `{}`", shown(name)));
    }
    for name in allow {
        let spot = linter.entry("seccomp.allow", name.as_bytes());
        let quoted = format!("`{}`", shown(name));
        let in_set =
            sets.iter().filter_map(|set| calls.set(set)).find(|set| set.calls.contains(&name.as_str()));
        if !(calls.known)(name) {
            linter.report(Code::CallRefused, spot, format!("there is no system call {quoted}"));
        } else if calls.refusal(name).is_some_and(|refused| !refused.grantable) {
            linter.report(Code::CallRefused, spot, format!("{quoted} can be granted by no profile"));
        } else if let Some(set) = in_set {
            linter.report(Code::Redundant, spot, format!("{quoted} is in the set `{}`", set.name));
        } else if calls.refusal(name).is_some() {
            linter.report(Code::CallSurface, spot, format!("{quoted} is usually refused by name"));
        } else {
            let message = format!("{quoted} is in no set that this profile has");
            linter.report_as(Code::CallSurface, Severity::Note, spot, message);
        }
    }
    let allowed = calls.of(sets, allow);
    let lacking: Vec<String> = calls
        .launch
        .iter()
        .filter(|call| !allowed.contains(**call))
        .map(|call| format!("`{call}`"))
        .collect();
    if !lacking.is_empty() {
        let spot = linter.key("seccomp.sets");
        let message =
            format!("no command can start without {}, which the set `base` has", some(lacking.into_iter()));
        linter.report(Code::CallRefused, spot, message);
    }
    for refused in
        calls.refused.iter().filter(|r| r.eperm && NEED_ENOSYS.contains(&r.name) && !allowed.contains(r.name))
    {
        linter.findings.push(Finding {
            code: Code::WrongAnswer,
            severity: Severity::Error,
            file: LintFile::RefusedCalls,
            at: Some(refused.at),
            key: Some("call.names".to_owned()),
            message: format!("`{}` answers EPERM", refused.name),
        });
    }
}

fn grants(linter: &mut Linter<'_>, policy: &Policy) {
    for (list, dirs) in [("grants.ro", &policy.grants.ro), ("grants.rw", &policy.grants.rw)] {
        for dir in dirs {
            let judged = Judged::new(dir, linter.around);
            let real = match &judged.sight {
                Sight::There(seen) if seen.real != *dir => Some(&seen.real),
                _ => None,
            };
            let spot = || linter.entry(list, dir.as_bytes());
            if let Some(real) = real {
                // What it leads to may be granted as well, and then nothing is missed.
                if !dirs.iter().any(|other| real.is_within(other)) {
                    let spot = spot();
                    linter.report(Code::GrantUnreachable, spot, format!("`{dir}` leads to `{real}`"));
                    continue;
                }
            } else if dir.as_path().starts_with("/proc") {
                let spot = spot();
                linter.report(
                    Code::GrantUnreachable,
                    spot,
                    format!("nothing of procfs can be mounted, and `{dir}` lies there"),
                );
                continue;
            }
            let by = dirs.iter().find(|other| *other != dir && dir.is_within(other));
            if let Some(by) = by {
                let (spot, cover) = (linter.entry(list, dir.as_bytes()), linter.entry(list, by.as_bytes()));
                if spot.layer <= cover.layer && !linter.is_built_in(spot.layer) {
                    linter.report(Code::Redundant, spot, format!("`{dir}` lies below `{by}`"));
                }
            }
        }
    }
}

/// The file: its name, who else has the name, and who can change it.
pub(super) fn file(linter: &mut Linter<'_>, policy: &Policy, earlier: Option<&Origin>) {
    let link = &linter.layers.links[linter.root];
    let (origin, named) = (link.origin.clone(), link.file.doc.name.clone());
    if let Some(earlier) = earlier {
        let spot = linter.start();
        linter.report(Code::Shadowed, spot, format!("{earlier} is found first"));
    }
    let (Origin::System(path) | Origin::User(path) | Origin::File(path)) = &origin else { return };
    let stem = path.as_path().file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
    let by_name = matches!(origin, Origin::System(_) | Origin::User(_));
    if let Some(name) = named.filter(|name| by_name && *name != stem) {
        let spot = linter.key("name");
        linter.report(
            Code::NameDiffers,
            spot,
            format!("the profile `{}` calls itself `{}`", shown(&stem), shown(&name)),
        );
    }
    if by_name
        && let Some(candidate) = Candidate::embedded(&stem)
        && let Ok(built_in) = crate::policy::load(candidate, &crate::policy::EmbeddedOnly, None, &[])
    {
        let wider: Vec<String> =
            policy.widenings(&built_in).into_iter().map(|w| format!("`{}`", w.key)).collect();
        let spot = linter.start();
        if wider.is_empty() {
            let message =
                format!("it has the name of the built-in profile `{stem}`, and permits no more than that");
            linter.report_as(Code::ShadowsBuiltIn, Severity::Note, spot, message);
        } else {
            let mut wider = wider;
            wider.dedup();
            let message = format!(
                "it has the name of the built-in profile `{stem}` and permits more: {}",
                some(wider.into_iter())
            );
            linter.report(Code::ShadowsBuiltIn, spot, message);
        }
    }
    let loose =
        |path: &HostPath| matches!(linter.around.look.look(path), Sight::There(seen) if seen.others_write);
    let dir = path.as_path().parent().and_then(|dir| HostPath::new(dir).ok());
    let changed = [Some(path.clone()), dir].into_iter().flatten().find(loose);
    if let Some(changed) = changed {
        let spot = linter.start();
        linter.report(Code::OthersWrite, spot, format!("another user can change `{changed}`"));
    }
}

//! One document on top of a policy. The same code for both ways to merge; they differ in what a list
//! means, and in the check that follows a narrowing.

use super::caches::CACHE_SIZE;
use super::caches::Word;
use super::check;
use super::error::{Fault, Place, PolicyError};
use super::types::{
    Access, CacheLayer, CachesPolicy, EnvPolicy, Grants, InsideUser, Limits, MountEntry, NetworkPolicy,
    Origin, OutputAction, Policy, Posture, ProtectMissing, RootPolicy, SeccompPolicy, Source,
    WorkspacePolicy,
};
use super::{MERGED_ENTRIES_MAX, TMPFS_INODES};
use crate::base::{ByteSize, HostPath, MemorySize, Millis, Need, OsBytes, Protection, RelPath};
use crate::manifest::{LimitsDoc, MountDoc, MountKind, NetworkDoc, OrNone, ProfileDoc, ProfileFile, Spans};
use std::collections::BTreeMap;

/// The element of a list that stands for the inherited ones.
const INHERITED: &str = "...";

/// What a list on top of another means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It replaces; `"..."` stands for the inherited elements.
    Extend,
    /// Lists that take something away (`protect`, `hide`) are added to; the others replace.
    Narrow,
}

/// A document and what to say where it is.
pub(super) struct Input<'d> {
    doc: &'d ProfileDoc,
    from: From<'d>,
}

enum From<'d> {
    File(&'d Origin, &'d Spans),
    Set(&'d str),
}

impl<'d> Input<'d> {
    pub(super) fn file(origin: &'d Origin, file: &'d ProfileFile) -> Self {
        Self { doc: &file.doc, from: From::File(origin, &file.spans) }
    }

    pub(super) fn set(key: &'d str, doc: &'d ProfileDoc) -> Self {
        Self { doc, from: From::Set(key) }
    }

    pub(super) fn place(&self, key: &str) -> Place {
        match self.from {
            From::File(origin, spans) => Place::File { origin: origin.clone(), at: spans.at(key) },
            From::Set(_) => Place::Set,
        }
    }

    fn fail(&self, key: &str, fault: Fault) -> PolicyError {
        let key = match self.from {
            From::Set(whole) => whole,
            From::File(..) => key,
        };
        PolicyError { place: self.place(key), key: Some(key.to_owned()), fault: Box::new(fault) }
    }
}

/// The policy under a complete profile: nothing permitted, everything required.
pub(super) fn blank() -> Policy {
    Policy {
        name: String::new(),
        summary: String::new(),
        origins: Vec::new(),
        needs: Protection::ALL.iter().map(|p| (*p, Need::Require)).collect(),
        user: InsideUser::Agent,
        hostname: "stockade".to_owned(),
        time_namespace: false,
        root: RootPolicy { dir: None, etc: Vec::new(), toolchains: false },
        workspace: WorkspacePolicy {
            access: Access::None,
            protect: Vec::new(),
            protect_missing: ProtectMissing::Quarantine,
            hide: Vec::new(),
        },
        mounts: Vec::new(),
        caches: CachesPolicy { tools: Vec::new(), layer: CacheLayer::Throwaway, size: ByteSize(CACHE_SIZE) },
        env: EnvPolicy { pass: Vec::new(), set: BTreeMap::new(), heap_hints: false },
        network: NetworkPolicy { posture: Posture::Disabled, loopback: false, share_host: false },
        seccomp: SeccompPolicy { sets: Vec::new(), allow: Vec::new() },
        limits: Limits {
            memory: Some(MemorySize::Bytes(ByteSize(64 << 20))),
            processes: Some(16),
            cpu: None,
            wall: Some(Millis(60_000)),
            grace: Millis(0),
            output: Some(ByteSize(1 << 20)),
            output_action: OutputAction::Truncate,
            open_files: 64,
            file_size: None,
            locked_memory: ByteSize(0),
            stack: ByteSize(8 << 20),
            scratch: ByteSize(16 << 20),
            scratch_inodes: 1024,
            disk: None,
        },
        intents: Vec::new(),
        grants: Grants {
            ro: Vec::new(),
            rw: Vec::new(),
            env: Vec::new(),
            intents: Vec::new(),
            tmpfs: false,
            root: false,
            workspace: false,
        },
    }
}

/// `policy` with `input` on top. Whether a narrowing narrowed is the caller's question.
pub(super) fn apply(mut policy: Policy, input: &Input<'_>, mode: Mode) -> Result<Policy, PolicyError> {
    let doc = input.doc;
    if let Some(summary) = &doc.summary {
        check::summary(summary).map_err(|f| input.fail("summary", f))?;
        if mode == Mode::Extend {
            policy.summary.clone_from(summary);
        }
    }
    policy.needs.extend(doc.require.iter().map(|(p, n)| (*p, *n)));

    set(&mut policy.user, doc.identity.user);
    if let Some(name) = &doc.identity.hostname {
        check::hostname(name).map_err(|f| input.fail("identity.hostname", f))?;
        policy.hostname.clone_from(name);
    }
    set(&mut policy.time_namespace, doc.identity.time_namespace);

    if let Some(dir) = &doc.root.dir {
        no_procfs(dir).map_err(|f| input.fail("root.dir", f))?;
        policy.root.dir = Some(dir.clone());
    }
    patterns(&mut policy.root.etc, doc.root.etc.as_ref(), "root.etc", input, false)?;
    set(&mut policy.root.toolchains, doc.root.toolchains);

    set(&mut policy.workspace.access, doc.workspace.access);
    let adds = mode == Mode::Narrow;
    patterns(
        &mut policy.workspace.protect,
        doc.workspace.protect.as_ref(),
        "workspace.protect",
        input,
        adds,
    )?;
    set(&mut policy.workspace.protect_missing, doc.workspace.protect_missing);
    patterns(&mut policy.workspace.hide, doc.workspace.hide.as_ref(), "workspace.hide", input, adds)?;

    mounts(&mut policy.mounts, &doc.mounts, input, mode)?;

    named(&mut policy.caches.tools, doc.caches.tools.as_ref(), "caches.use", input)?;
    set(&mut policy.caches.layer, doc.caches.layer);
    if let Some(size) = doc.caches.size {
        check::cache_size(size).map_err(|f| input.fail("caches.size", f))?;
        policy.caches.size = size;
    }

    words(&mut policy.env.pass, doc.env.pass.as_ref(), "env.pass", input, check::env_pass)?;
    if let Some(values) = &doc.env.set {
        for (name, value) in values {
            let key = format!("env.set.{}", check::shown(name));
            check::env_name(name).map_err(|f| input.fail(&key, f))?;
            no_nul(value).map_err(|f| input.fail(&key, f))?;
            policy.env.set.insert(name.clone(), value.clone());
        }
        at_most(policy.env.set.len()).map_err(|f| input.fail("env.set", f))?;
    }
    set(&mut policy.env.heap_hints, doc.env.heap_hints);

    network(&mut policy.network, &doc.network, mode);

    let set_name = |name: &str| check::seccomp_name(name, "set");
    words(&mut policy.seccomp.sets, doc.seccomp.sets.as_ref(), "seccomp.sets", input, set_name)?;
    let call_name = |name: &str| check::seccomp_name(name, "system call");
    words(&mut policy.seccomp.allow, doc.seccomp.allow.as_ref(), "seccomp.allow", input, call_name)?;

    limits(&mut policy.limits, &doc.limits, mode);
    check::limits(&policy.limits).map_err(|(key, f)| input.fail(key, f))?;

    named(&mut policy.intents, doc.intents.given.as_ref(), "intents.use", input)?;
    hosts(&mut policy.grants.ro, doc.grants.ro.as_ref(), "grants.ro", input)?;
    hosts(&mut policy.grants.rw, doc.grants.rw.as_ref(), "grants.rw", input)?;
    words(&mut policy.grants.env, doc.grants.env.as_ref(), "grants.env", input, check::env_pattern)?;
    named(&mut policy.grants.intents, doc.grants.intents.as_ref(), "grants.intents", input)?;
    set(&mut policy.grants.tmpfs, doc.grants.tmpfs);
    set(&mut policy.grants.root, doc.grants.root);
    set(&mut policy.grants.workspace, doc.grants.workspace);
    Ok(policy)
}

/// Keys that have to agree once everything is merged; `place` finds who said so.
pub(super) fn check_whole(policy: &Policy, place: impl Fn(&str) -> Place) -> Result<(), PolicyError> {
    let fail = |(key, fault): (&str, Fault)| PolicyError {
        place: place(key),
        key: Some(key.to_owned()),
        fault: Box::new(fault),
    };
    check::network(policy.network).map_err(fail)?;
    if policy.seccomp.sets.is_empty() {
        return Err(fail(("seccomp.sets", Fault::NoSets)));
    }
    Ok(())
}

fn set<T: Copy>(field: &mut T, asked: Option<T>) {
    if let Some(value) = asked {
        *field = value;
    }
}

fn set_limit<T: Copy>(field: &mut Option<T>, asked: Option<OrNone<T>>) {
    if let Some(value) = asked {
        *field = value.into_option();
    }
}

fn limits(limits: &mut Limits, doc: &LimitsDoc, mode: Mode) {
    match (doc.memory, mode) {
        // A bound in bytes and one in percent can't be compared without a host: both hold.
        (Some(OrNone::Some(asked)), Mode::Narrow) => {
            let (bytes, percent) = asked.parts();
            let (base_bytes, base_percent) = limits.memory.map_or((None, None), MemorySize::parts);
            limits.memory = MemorySize::from_parts(bytes.or(base_bytes), percent.or(base_percent));
        }
        (asked, _) => set_limit(&mut limits.memory, asked),
    }
    set_limit(&mut limits.processes, doc.processes);
    set_limit(&mut limits.cpu, doc.cpu);
    set_limit(&mut limits.wall, doc.wall);
    set(&mut limits.grace, doc.grace);
    set_limit(&mut limits.output, doc.output);
    set(&mut limits.output_action, doc.output_action);
    set(&mut limits.open_files, doc.open_files);
    set_limit(&mut limits.file_size, doc.file_size);
    set(&mut limits.locked_memory, doc.locked_memory);
    set(&mut limits.stack, doc.stack);
    set(&mut limits.scratch, doc.scratch);
    set(&mut limits.scratch_inodes, doc.scratch_inodes);
    set_limit(&mut limits.disk, doc.disk);
}

fn network(network: &mut NetworkPolicy, doc: &NetworkDoc, mode: Mode) {
    set(&mut network.posture, doc.posture);
    set(&mut network.loopback, doc.loopback);
    set(&mut network.share_host, doc.share_host);
    // Who narrows to `disabled` need not say that the host's network goes with it.
    if mode == Mode::Narrow && doc.posture == Some(Posture::Disabled) && doc.share_host.is_none() {
        network.share_host = false;
    }
}

/// Merges one list. `bytes` is what tells two elements apart (paths compare themselves component by
/// component, which is slow here and adds nothing: they are clean); `check` looks at each new element.
fn merge<T: Clone>(
    field: &mut Vec<T>,
    asked: &[T],
    key: &str,
    input: &Input<'_>,
    adds: bool,
    bytes: impl Fn(&T) -> &[u8],
    check: impl Fn(&T) -> Result<(), Fault>,
) -> Result<(), PolicyError> {
    let base = std::mem::take(field);
    if adds {
        field.extend(base.iter().cloned());
    }
    let push = |field: &mut Vec<T>, item: &T| {
        if !field.iter().any(|there| bytes(there) == bytes(item)) {
            field.push(item.clone());
        }
    };
    for (i, item) in asked.iter().enumerate() {
        if bytes(item) == INHERITED.as_bytes() {
            base.iter().for_each(|item| push(field, item));
        } else {
            check(item).map_err(|f| input.fail(&format!("{key}[{i}]"), f))?;
            push(field, item);
        }
    }
    at_most(field.len()).map_err(|f| input.fail(key, f))
}

fn patterns(
    field: &mut Vec<RelPath>,
    asked: Option<&Vec<RelPath>>,
    key: &str,
    input: &Input<'_>,
    adds: bool,
) -> Result<(), PolicyError> {
    let Some(asked) = asked else { return Ok(()) };
    merge(field, asked, key, input, adds, RelPath::as_bytes, check::pattern)
}

fn words(
    field: &mut Vec<String>,
    asked: Option<&Vec<String>>,
    key: &str,
    input: &Input<'_>,
    check: impl Fn(&str) -> Result<(), Fault>,
) -> Result<(), PolicyError> {
    let Some(asked) = asked else { return Ok(()) };
    merge(field, asked, key, input, false, |w| w.as_bytes(), |w| check(w))
}

/// A list of words that stand for values of one type.
fn named<T: Word>(
    field: &mut Vec<T>,
    asked: Option<&Vec<String>>,
    key: &str,
    input: &Input<'_>,
) -> Result<(), PolicyError> {
    let mut names: Vec<String> = field.iter().map(|t| t.name().to_owned()).collect();
    words(&mut names, asked, key, input, |name| check::named::<T>(name).map(drop))?;
    *field = names.iter().filter_map(|name| check::named(name).ok()).collect();
    Ok(())
}

fn hosts(
    field: &mut Vec<HostPath>,
    asked: Option<&Vec<HostPath>>,
    key: &str,
    input: &Input<'_>,
) -> Result<(), PolicyError> {
    let Some(asked) = asked else { return Ok(()) };
    // An absolute path is never the placeholder: these lists are short and are written out.
    merge(field, asked, key, input, false, HostPath::as_bytes, |_| Ok(()))
}

fn at_most(found: usize) -> Result<(), Fault> {
    if found > MERGED_ENTRIES_MAX { Err(Fault::TooMany { found, max: MERGED_ENTRIES_MAX }) } else { Ok(()) }
}

fn no_nul(value: &OsBytes) -> Result<(), Fault> {
    if value.as_bytes().contains(&0) { Err(Fault::Nul) } else { Ok(()) }
}

fn no_procfs(source: &HostPath) -> Result<(), Fault> {
    if source.as_path().starts_with("/proc") { Err(Fault::Procfs) } else { Ok(()) }
}

fn mounts(
    field: &mut Vec<MountEntry>,
    asked: &[MountDoc],
    input: &Input<'_>,
    mode: Mode,
) -> Result<(), PolicyError> {
    for (i, doc) in asked.iter().enumerate() {
        let entry = mount(doc, &format!("mounts[{i}]"), input)?;
        if let Some(first) = asked[..i].iter().position(|earlier| earlier.target == doc.target) {
            let fault = Fault::DuplicateTarget { target: doc.target.to_string(), first };
            return Err(input.fail(&format!("mounts[{i}].target"), fault));
        }
        // A mask of a directory from outside the profile hides what the profile puts below it, too.
        let hides = mode == Mode::Narrow && doc.kind == MountKind::Mask;
        field.retain(|m| *m.target() != doc.target && !(hides && m.target().is_within(&doc.target)));
        field.push(entry);
    }
    at_most(field.len()).map_err(|f| input.fail("mounts", f))
}

fn mount(doc: &MountDoc, key: &str, input: &Input<'_>) -> Result<MountEntry, PolicyError> {
    let kind = doc.kind.word();
    let needs = |field| input.fail(key, Fault::MountNeeds { kind, field });
    let at = |field: &str, fault| input.fail(&format!("{key}.{field}"), fault);

    let present = [
        ("source", doc.source.is_some()),
        ("writable", doc.writable.is_some()),
        ("optional", doc.optional.is_some()),
        ("size", doc.size.is_some()),
        ("inodes", doc.inodes.is_some()),
        ("content", doc.content.is_some()),
        ("to", doc.to.is_some()),
    ];
    let permitted: &[&str] = match doc.kind {
        MountKind::Bind => &["source", "writable", "optional"],
        MountKind::Tmpfs => &["size", "inodes"],
        MountKind::Overlay => &["source"],
        MountKind::File => &["content"],
        MountKind::Symlink => &["to"],
        MountKind::Dir | MountKind::Mask => &[],
    };
    if let Some((field, _)) = present.into_iter().find(|(field, there)| *there && !permitted.contains(field))
    {
        return Err(at(field, Fault::MountHasNo { kind, field }));
    }
    let target = doc.target.clone();
    if target.depth() == 0 {
        return Err(at("target", Fault::TargetRoot));
    }
    if check::reserved(&target) {
        return Err(at("target", Fault::ReservedTarget { target: target.to_string() }));
    }
    let source = || {
        let source = doc.source.clone().ok_or_else(|| needs("source"))?;
        no_procfs(&source).map_err(|f| at("source", f))?;
        Ok(source)
    };
    let by = Source::Profile;
    Ok(match doc.kind {
        MountKind::Bind => MountEntry::Bind {
            source: source()?,
            target,
            writable: doc.writable.unwrap_or(false),
            optional: doc.optional.unwrap_or(false),
            by,
        },
        MountKind::Overlay => MountEntry::Overlay { source: source()?, target, by },
        MountKind::Tmpfs => {
            let size = doc.size.ok_or_else(|| needs("size"))?;
            check::tmpfs_size(size).map_err(|f| at("size", f))?;
            let inodes = doc.inodes.unwrap_or(TMPFS_INODES);
            check::tmpfs_inodes(inodes).map_err(|f| at("inodes", f))?;
            MountEntry::Tmpfs { target, size, inodes, by }
        }
        MountKind::File => {
            MountEntry::File { target, content: doc.content.clone().ok_or_else(|| needs("content"))?, by }
        }
        MountKind::Dir => MountEntry::Dir { target, by },
        MountKind::Symlink => {
            let to = doc.to.clone().ok_or_else(|| needs("to"))?;
            no_nul(&to).map_err(|f| at("to", f))?;
            if to.as_bytes().is_empty() {
                return Err(at("to", Fault::Empty));
            }
            MountEntry::Symlink { target, to, by }
        }
        MountKind::Mask => MountEntry::Mask { target, by },
    })
}

//! The one function that makes a [`Plan`]. Pure: policy × request × facts → plan, or the reason why not.

use super::facts::{
    CachePlace, HostFacts, Kind, LayerFact, Mode, Never, PathFact, PathFacts, SystemEntry, WorkspaceFact,
};
use super::request::Request;
use super::seccomp;
use super::types::*;
use super::{caches, intents, view};
use crate::base::{ByteSize, Digest, Gap, HostPath, Need, OsBytes, Protection, RelPath, SandboxPath};
use crate::policy::{
    Access, InsideUser, Intent, MEMORY_MIN, MountEntry, Policy, Posture, ProtectMissing, reserved, tmpfs_size,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Largest number of mount-table operations; each costs some 25 µs and kernel memory.
pub const FS_OPS_MAX: usize = 1024;
/// Newest Landlock ABI whose rights are known here.
pub const LANDLOCK_ABI_KNOWN: u32 = 7;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A required protection cannot be had on this host.
    #[error("this host cannot enforce `{}`, which the profile requires: {why}", protection.key())]
    Unmet {
        /// Which.
        protection: Protection,
        /// What is missing.
        why: String,
        /// The least change that mends it.
        remedy: String,
    },
    /// A limit makes no sense here.
    #[error("limits.{key} = {configured}: {why}")]
    Limit {
        /// The key below `limits`.
        key: &'static str,
        /// Its value as configured.
        configured: String,
        /// What is wrong with it.
        why: String,
    },
    /// The size of a tmpfs that the caller adds makes no sense.
    #[error("--tmpfs {at}: its size {why}")]
    TmpfsSize {
        /// Where.
        at: SandboxPath,
        /// What is wrong with it.
        why: String,
    },
    /// Two entries for one place.
    #[error("two entries of the mount table have the target {0}")]
    DuplicateTarget(SandboxPath),
    /// A target in what is hidden.
    #[error("{at} lies below {mask}, which is hidden: nothing can be mounted there")]
    BelowMask {
        /// The target.
        at: SandboxPath,
        /// What is hidden.
        mask: SandboxPath,
    },
    /// A target where nothing may be mounted.
    #[error("nothing may be mounted at {0}")]
    ReservedTarget(SandboxPath),
    /// A source that the caller cannot reach.
    #[error("the source {path} cannot be opened: {}", errno_text(*errno))]
    Source {
        /// Which.
        path: HostPath,
        /// errno.
        errno: i32,
    },
    /// A source of the wrong type.
    #[error("the source {path} is {is}, where {wants} is needed")]
    SourceKind {
        /// Which.
        path: HostPath,
        /// What it is.
        is: &'static str,
        /// What it would have to be.
        wants: &'static str,
    },
    /// The caller asks for more than the profile's `[grants]`.
    #[error("{what} is outside what the profile grants ({key})")]
    NotGranted {
        /// The flag and its value.
        what: String,
        /// The key below `grants`.
        key: &'static str,
    },
    /// There is nothing behind a grant.
    #[error("`{}` cannot be granted: {why}", intent.name())]
    NothingToGrant {
        /// Which.
        intent: Intent,
        /// Why.
        why: String,
    },
    /// A source that no profile can grant.
    #[error("{path} is, or lies in, {what}, which no executor sees")]
    Never {
        /// Which, links resolved.
        path: HostPath,
        /// What is there.
        what: &'static str,
    },
    /// The home or an ancestor of it as a workspace that nobody named.
    #[error("the current directory {0} would become the workspace, and it holds a whole home or more")]
    ImplicitWorkspace(HostPath),
    /// A place for a workspace that the profile does not attach.
    #[error("--at {0}: there is nothing to be seen there, the profile says `workspace.access = \"none\"`")]
    NoWorkspace(SandboxPath),
    /// `/` as the workspace.
    #[error("`/` cannot be a workspace")]
    RootWorkspace,
    /// What the workspace protects, as a writable source.
    #[error("{0} is, or lies in, what the profile protects in the workspace: it cannot be attached writable")]
    ProtectedSource(HostPath),
    /// A protected name that is a link.
    #[error("the protected path {0} is a symbolic link, which cannot be held in place")]
    ProtectedLink(SandboxPath),
    /// The filter.
    #[error(transparent)]
    Seccomp(#[from] seccomp::Error),
    /// No command.
    #[error("no command was given")]
    NoCommand,
    /// A NUL in an argument or variable.
    #[error("{0} contains a NUL byte")]
    Nul(&'static str),
    /// Too many entries.
    #[error("the mount table has {0} entries; at most {FS_OPS_MAX} are allowed")]
    TooMany(usize),
    /// Not representable; a defect in Stockade.
    #[error("the plan has no canonical encoding: {0}")]
    Encoding(String),
}

impl PlanError {
    /// Stable name of the kind.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unmet { .. } => "protection_unmet",
            Self::Limit { .. } | Self::TmpfsSize { .. } => "limit_invalid",
            Self::DuplicateTarget(_) => "target_duplicate",
            Self::ReservedTarget(_) => "target_reserved",
            Self::BelowMask { .. } => "target_hidden",
            Self::Source { .. } => "source_unreachable",
            Self::SourceKind { .. } => "source_type",
            Self::NotGranted { .. } => "not_granted",
            Self::NothingToGrant { .. } => "nothing_to_grant",
            Self::Never { .. } => "source_forbidden",
            Self::ImplicitWorkspace(_) => "workspace_implicit",
            Self::RootWorkspace => "workspace_root",
            Self::NoWorkspace(_) => "workspace_none",
            Self::ProtectedLink(_) => "protected_link",
            Self::ProtectedSource(_) => "source_protected",
            Self::Seccomp(_) => "seccomp_invalid",
            Self::NoCommand => "command_missing",
            Self::Nul(_) => "nul_byte",
            Self::TooMany(_) => "table_too_large",
            Self::Encoding(_) => "encoding",
        }
    }

    /// What it is about.
    pub fn object(&self) -> Option<String> {
        match self {
            Self::Unmet { protection, .. } => Some(protection.key().to_owned()),
            Self::Limit { key, .. } => Some(format!("limits.{key}")),
            Self::DuplicateTarget(at)
            | Self::NoWorkspace(at)
            | Self::BelowMask { at, .. }
            | Self::ReservedTarget(at)
            | Self::ProtectedLink(at)
            | Self::TmpfsSize { at, .. } => Some(at.to_string()),
            Self::Source { path, .. }
            | Self::SourceKind { path, .. }
            | Self::Never { path, .. }
            | Self::ProtectedSource(path)
            | Self::ImplicitWorkspace(path) => Some(path.to_string()),
            Self::NotGranted { key, .. } => Some(format!("grants.{key}")),
            _ => None,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            // Without these there is no executor, whatever a profile prefers.
            Self::Unmet { protection: Protection::Namespaces | Protection::Mounts, remedy, .. } => {
                remedy.clone()
            }
            Self::Unmet { protection, remedy, .. } => {
                format!("{remedy}; or use a profile with `{} = \"prefer\"` below [require]", protection.key())
            }
            Self::BelowMask { .. } => "choose another target".to_owned(),
            Self::DuplicateTarget(_) => "give one of them another target".to_owned(),
            Self::ReservedTarget(_) => "choose another target (--at for the workspace)".to_owned(),
            Self::Source { errno, .. } if *errno == libc::ENOENT => {
                "create it, or leave the entry out (`optional = true` in a profile)".to_owned()
            }
            Self::Source { .. } => {
                "sources are opened with your own rights; choose one that you may read".to_owned()
            }
            Self::NotGranted { .. } => "use a profile whose [grants] allow it".to_owned(),
            Self::NothingToGrant { intent, .. } => {
                format!("start what is missing, or leave `{}` out", intent.name())
            }
            Self::Never { .. } => "name a directory that lies elsewhere, or a part of it".to_owned(),
            Self::ImplicitWorkspace(_) => {
                "change into a project directory, or name the directory with -w if you mean it".to_owned()
            }
            Self::NoWorkspace(_) => "leave --at out, or use a profile that attaches the workspace".to_owned(),
            Self::RootWorkspace => "name a project directory with -w".to_owned(),
            Self::ProtectedSource(_) => "attach it read-only".to_owned(),
            Self::ProtectedLink(_) => {
                "replace the link by what it points to, or use `--set workspace.access=overlay`".to_owned()
            }
            Self::NoCommand => "write the command after `--`".to_owned(),
            _ => return None,
        })
    }
}

fn errno_text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Dir => "a directory",
        Kind::File => "a regular file",
        Kind::Symlink => "a symbolic link",
        Kind::Device => "a device",
        Kind::Socket => "a socket",
        Kind::Other => "neither file nor directory",
    }
}

/// Makes the plan.
///
/// # Errors
/// See [`PlanError`]: the request exceeds the grants, names something that is not there, or a required
/// protection cannot be had.
pub fn resolve(
    policy: &Policy,
    request: &Request,
    host: &HostFacts,
    paths: &PathFacts,
) -> Result<Plan, PlanError> {
    if request.argv.first().is_none_or(|p| p.as_bytes().is_empty()) {
        return Err(PlanError::NoCommand);
    }
    if request.argv.iter().any(|a| a.as_bytes().contains(&0)) {
        return Err(PlanError::Nul("an argument"));
    }
    let mut limits = limits(policy, host)?;
    if request.tty && !request.timeout {
        // People pause. The profile's default deadline is for what runs by itself.
        limits.wall_ms = None;
    }
    let gaps = gaps(policy, host, &limits, paths)?;
    let mut table = Table::default();
    let user = policy.user;
    let layered = !gaps.contains_key(&Protection::Caches);
    table.base_root(policy, request, paths, layered)?;
    table.extra_mounts(policy, request, paths)?;
    let workspace_at = table.workspace(policy, request, paths)?;
    let caches = table.caches(policy, paths, layered, workspace_at.as_ref())?;
    let granted = intents::granted(policy, request)?;
    table.intents(&granted, paths)?;
    table.other_names(paths)?;
    table.never(paths)?;
    table.pin_masks();
    table.other_names_of_scratch(paths)?;
    let of = view::Of {
        policy,
        limits: &limits,
        gaps: &gaps,
        ops: table.ops.values().collect(),
        caches: &caches,
        intents: &granted,
        workspace: workspace_at.as_ref(),
        home: home(user),
    };
    let files = view::files(&of).map_err(|e| PlanError::Encoding(e.to_string()))?;
    for (path, content) in files {
        table.put(FsOp::File { at: at(path), content })?;
    }
    let (sources, fs, watch) = table.finish()?;

    let owner = paths.workspace.as_ref().map(|w| &w.root);
    let deny_tcp = policy.network.posture == Posture::Disabled && !policy.network.loopback;
    let seccomp_request = seccomp::Request {
        sets: &policy.seccomp.sets,
        allow: &policy.seccomp.allow,
        network: if deny_tcp { seccomp::SocketRule::None } else { seccomp::SocketRule::Inet },
        browser: granted.contains(&Intent::Browser),
    };
    let filter = seccomp::compile(&seccomp_request)?;
    let containment = Containment {
        schema: "stockade.plan/1",
        profile: policy.name.clone(),
        policy_digest: policy.digest(),
        mode: host.mode,
        needs: policy.needs.clone(),
        gaps,
        ids: ids(user, host.mode, owner),
        hostname: policy.hostname.clone(),
        time_namespace: policy.time_namespace,
        landlock: landlock(host, &fs, deny_tcp),
        sources,
        fs,
        watch,
        caches,
        intents: granted,
        seccomp: SeccompPlan {
            sets: policy.seccomp.sets.clone(),
            allow: policy.seccomp.allow.clone(),
            sockets: seccomp_request.network,
            browser: seccomp_request.browser,
            digest: digest_program(&filter.plain),
            asking_digest: digest_program(&filter.asking),
            filter,
        },
        posture: policy.network.posture,
        own_network: !(policy.network.posture == Posture::General && policy.network.share_host),
        loopback: policy.network.loopback || policy.network.posture == Posture::General,
        limits,
    };
    let command = command(policy, request, paths, workspace_at, &containment)?;
    let encode = |e: crate::base::canon::CanonError| PlanError::Encoding(e.to_string());
    let plan_digest = Digest::of_canonical(&containment).map_err(encode)?;
    let command_digest = Digest::of_canonical(&command).map_err(encode)?;
    Ok(Plan { containment, command, plan_digest, command_digest, notes: notes(policy, request, paths) })
}

/// What was left out of what the caller's surroundings name, and why.
fn notes(policy: &Policy, request: &Request, paths: &PathFacts) -> Vec<String> {
    let mut out = Vec::new();
    if policy.root.toolchains && request.root.is_none() && policy.root.dir.is_none() {
        out.extend(
            paths.left_out.iter().map(|l| format!("{}: {} is left out: {}", l.variable, l.path, l.why)),
        );
    }
    let git = paths.workspace.as_ref().and_then(|w| w.git_refused.as_ref());
    out.extend(git.map(|why| format!("the workspace's `.git` is not followed: {why}")));
    if let Some(fact) = paths.workspace.as_ref().filter(|_| policy.workspace.access == Access::Rw) {
        let hidden = |rel: &RelPath| fact.hidden.iter().any(|(h, kind)| *kind != Kind::Symlink && rel == h);
        let both = fact.protected.iter().filter(|(rel, _)| hidden(rel));
        out.extend(both.map(|(rel, _)| {
            format!("`{rel}` is both protected and hidden: it is hidden, and so cannot be changed either")
        }));
    }
    out.extend(paths.unmasked.iter().map(|at| format!("nothing is at {at}: its mask has nothing to cover")));
    out
}

fn digest_program(program: &seccomp::Program) -> Digest {
    let mut bytes = Vec::with_capacity(program.words().len() * 8);
    for w in program.words() {
        bytes.extend_from_slice(&w.code.to_le_bytes());
        bytes.extend_from_slice(&[w.jt, w.jf]);
        bytes.extend_from_slice(&w.k.to_le_bytes());
    }
    Digest::of(&bytes)
}

fn ids(user: InsideUser, mode: Mode, owner: Option<&PathFact>) -> IdPlan {
    let inside = match user {
        InsideUser::Agent => 1000,
        InsideUser::Root => 0,
    };
    let (outer_uid, outer_gid) = match (mode, owner) {
        (Mode::Rootless, _) => (0, 0),
        (Mode::Privileged, Some(fact)) => (fact.uid, fact.gid),
        (Mode::Privileged, None) => (1000, 1000),
    };
    let init = match mode {
        Mode::Rootless => 0,
        // Any id of the range but the command's, so that the two share no kernel identity.
        Mode::Privileged if outer_uid == 65_533 => 65_532,
        Mode::Privileged => 65_533,
    };
    IdPlan { inside, user, outer_uid, outer_gid, init }
}

fn limits(policy: &Policy, host: &HostFacts) -> Result<LimitPlan, PlanError> {
    let l = &policy.limits;
    let bad =
        |key: &'static str, configured: String, why: String| Err(PlanError::Limit { key, configured, why });
    // What makes sense nowhere is not in a policy: only what this host adds is left to say.
    let memory = l.memory.map(|m| m.resolve(host.memory_total));
    if let (Some(bytes), Some(configured)) = (memory, l.memory) {
        if bytes < MEMORY_MIN.0 {
            let why =
                format!("that is {} here, and less than {MEMORY_MIN} holds no process", ByteSize(bytes));
            return bad("memory", configured.to_string(), why);
        }
        // Also where a share of the host's memory would bound it anyway: the number was not meant for this host.
        if configured.parts().0.is_some_and(|b| b.0 > host.memory_total) {
            let has = ByteSize(host.memory_total);
            return bad("memory", configured.to_string(), format!("beyond the host's memory ({has})"));
        }
    }
    if let Some(cpu) = l.cpu
        && u64::from(cpu.0) > u64::from(host.cpus) * 100
    {
        return bad("cpu", cpu.to_string(), format!("beyond the host's {} CPUs", host.cpus));
    }
    Ok(LimitPlan {
        memory,
        processes: l.processes,
        cpu_percent: l.cpu.map(|c| u64::from(c.0)),
        wall_ms: l.wall.map(|w| w.0),
        grace_ms: l.grace.0,
        output: l.output.map(|b| b.0),
        output_action: l.output_action,
        // A profile's wish above the host's hard limit is the host's: lower is never weaker.
        open_files: l.open_files.min(host.open_files_hard),
        file_size: l.file_size.map(|b| b.0),
        locked_memory: l.locked_memory.0,
        stack: l.stack.0,
        scratch: l.scratch.0,
        scratch_inodes: l.scratch_inodes,
        disk: l.disk.map(|b| b.0),
    })
}

/// What the host cannot do of what the profile asks: an error for a `Require`, else a recorded gap.
fn gaps(
    policy: &Policy,
    host: &HostFacts,
    limits: &LimitPlan,
    paths: &PathFacts,
) -> Result<BTreeMap<Protection, Gap>, PlanError> {
    use super::facts::Fact;
    let mut missing: Vec<(Protection, String, String)> = Vec::new();
    let mut fact = |protection, fact: &Fact| {
        if let Fact::Missing { why, remedy } = fact {
            missing.push((protection, why.clone(), remedy.clone()));
        }
    };
    fact(Protection::Namespaces, &host.namespaces);
    if policy.time_namespace {
        fact(Protection::Namespaces, &host.time_namespace);
    }
    fact(Protection::Mounts, &host.mount_api);
    fact(Protection::Proc, &host.proc_fresh);
    fact(Protection::Seccomp, &host.seccomp);
    let on_host = |place: &CachePlace| matches!(place, CachePlace::Host { .. });
    let layer = |layer: &LayerFact| matches!(layer, LayerFact::Ready { .. });
    if paths.layers.values().any(layer) || paths.caches.values().any(on_host) {
        fact(Protection::Caches, &host.overlay);
    }
    let abi = |needed: u32, what: &str| {
        (
            format!("{what} needs Landlock ABI {needed}, this kernel has {}", host.landlock_abi),
            if host.landlock_abi == 0 {
                "boot with landlock in the lsm= list".to_owned()
            } else {
                "use a newer kernel".to_owned()
            },
        )
    };
    if host.landlock_abi < 2 {
        let (why, remedy) = abi(2, "a rule set that permits renames between directories");
        missing.push((Protection::LandlockFs, why, remedy));
    }
    let tcp_denied = policy.network.posture == Posture::Disabled && !policy.network.loopback;
    if tcp_denied && host.landlock_abi < 4 {
        let (why, remedy) = abi(4, "denying TCP");
        missing.push((Protection::LandlockNet, why, remedy));
    }
    if host.landlock_abi < 6 {
        let (why, remedy) = abi(6, "scoping signals and abstract sockets");
        missing.push((Protection::LandlockScope, why, remedy));
    }
    let delegate = || host.cgroup.remedy().to_owned();
    let controller = |name: &str| {
        host.cgroup.v1.get(name).is_some_and(|d| d.writable)
            || (host.cgroup.v2_controllers.iter().any(|c| c == name)
                && host.cgroup.v2.as_ref().is_some_and(|d| d.writable))
    };
    for (protection, wanted, name) in [
        (Protection::LimitMemory, limits.memory.is_some(), "memory"),
        (Protection::LimitProcesses, limits.processes.is_some(), "pids"),
        (Protection::LimitCpu, limits.cpu_percent.is_some(), "cpu"),
    ] {
        if wanted && !controller(name) {
            missing.push((
                protection,
                match &host.cgroup.v2_hindrance {
                    Some(why) if !host.cgroup.v1.contains_key(name) => {
                        format!("there is no {name} controller for an executor: {why}")
                    }
                    _ => host.cgroup.unwritable(&format!("{name} controller")),
                },
                delegate(),
            ));
        }
    }
    if !(host.cgroup.v2_kill && host.cgroup.v2.as_ref().is_some_and(|d| d.writable)) {
        missing.push((Protection::Kill, "no writable cgroup2 with cgroup.kill".to_owned(), delegate()));
    }
    let mut out = BTreeMap::new();
    for (protection, why, remedy) in missing {
        if policy.requires(protection) {
            return Err(PlanError::Unmet { protection, why, remedy });
        }
        // Without namespaces or a mount API there is no executor at all, whatever a profile prefers.
        if matches!(protection, Protection::Namespaces | Protection::Mounts) {
            return Err(PlanError::Unmet { protection, why, remedy });
        }
        out.insert(protection, Gap { what: why, remedy });
    }
    Ok(out)
}

fn landlock(host: &HostFacts, fs: &[FsOp], deny_tcp: bool) -> LandlockPlan {
    let abi = host.landlock_abi.min(LANDLOCK_ABI_KNOWN);
    let mut rules = vec![LandlockRule { at: SandboxPath::root(), access: LandlockAccess::Read }];
    let mut scratch: Vec<&SandboxPath> = Vec::new();
    for op in fs {
        if let FsOp::Scratch { at, .. } = op {
            // What lies in another one has its rule.
            if scratch.iter().any(|s| at.is_within(s)) {
                continue;
            }
            scratch.push(at);
        }
        let access = match op {
            FsOp::Scratch { .. } | FsOp::Tmpfs { .. } | FsOp::Overlay { .. } => LandlockAccess::Tree,
            FsOp::Bind { writable: true, .. } => LandlockAccess::Tree,
            FsOp::Proc { .. } | FsOp::Dev { .. } => LandlockAccess::Files,
            _ => continue,
        };
        rules.push(LandlockRule { at: op.at().clone(), access });
    }
    let lost = [(2, "fs.refer"), (3, "fs.truncate"), (4, "net.tcp"), (5, "fs.ioctl_dev"), (6, "scope")]
        .iter()
        .filter(|(needed, _)| *needed > abi)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    LandlockPlan { abi, rules, deny_tcp: deny_tcp && abi >= 4, scope: abi >= 6, lost }
}

/// A finished table: its sources, its operations in order, and what is looked for afterwards.
type Finished = (Vec<SourceRef>, Vec<FsOp>, Vec<Watch>);

/// The mount table under construction.
#[derive(Default)]
pub(super) struct Table {
    pub(super) sources: Vec<SourceRef>,
    pub(super) ops: BTreeMap<(usize, SandboxPath), FsOp>,
    /// Where each source is attached, and whether writable: the same directory may be seen by several names.
    pub(super) attached: Vec<(HostPath, SandboxPath, bool)>,
    watch: Vec<Watch>,
}

fn at(path: &str) -> SandboxPath {
    SandboxPath::new(path).unwrap_or_else(|_| SandboxPath::root())
}

/// The order of the table: what holds others before them.
fn key(at: SandboxPath) -> (usize, SandboxPath) {
    (at.depth(), at)
}

pub(super) fn below(base: &SandboxPath, rel: &RelPath) -> SandboxPath {
    base.join(rel)
}

impl Table {
    pub(super) fn put(&mut self, op: FsOp) -> Result<(), PlanError> {
        let key = key(op.at().clone());
        if key.0 == 0 {
            return Err(PlanError::ReservedTarget(key.1));
        }
        match self.ops.entry(key) {
            Entry::Vacant(place) => drop(place.insert(op)),
            // A plain directory is only a place; anything may be mounted there.
            Entry::Occupied(mut place) if matches!(place.get(), FsOp::Dir { .. }) => drop(place.insert(op)),
            Entry::Occupied(_) if matches!(op, FsOp::Dir { .. }) => {}
            Entry::Occupied(place) => return Err(PlanError::DuplicateTarget(place.key().1.clone())),
        }
        Ok(())
    }

    /// Covers what is at `at`. Of what is to be held in place as well, the mask remains: it holds too. A second mask
    /// changes nothing.
    fn mask(&mut self, at: SandboxPath, kind: Kind) -> Result<(), PlanError> {
        let key = (at.depth(), at.clone());
        match self.ops.get(&key) {
            // The type that is known says more.
            Some(FsOp::Mask { kind: known, .. }) if *known != Kind::Other => Ok(()),
            Some(FsOp::Mask { .. } | FsOp::Protect { .. } | FsOp::Pin { .. }) => {
                self.ops.insert(key, FsOp::Mask { at, kind });
                Ok(())
            }
            _ => self.put(FsOp::Mask { at, kind }),
        }
    }

    pub(super) fn source(
        &mut self,
        path: &HostPath,
        fact: &PathFact,
        writable: bool,
        idmap: bool,
    ) -> SourceIx {
        self.sources.push(SourceRef {
            path: path.clone(),
            fact: fact.clone(),
            writable,
            recursive: fact.kind == Kind::Dir,
            idmap,
            owner: None,
            device: false,
        });
        SourceIx((self.sources.len() - 1) as u32)
    }

    /// Notes that the source is a device node that has to work.
    pub(super) fn device(&mut self, index: SourceIx) {
        if let Some(source) = self.sources.get_mut(index.0 as usize) {
            source.device = true;
        }
    }

    /// A tree of the host's own: everybody's files stay what they are.
    fn system_bind(
        &mut self,
        path: &HostPath,
        fact: &PathFact,
        target: SandboxPath,
    ) -> Result<(), PlanError> {
        let from = self.source(path, fact, false, false);
        self.attached.push((fact.real.clone(), target.clone(), false));
        self.put(FsOp::Bind { from, at: target, writable: false })
    }

    /// A tree that is shared with the command.
    fn bind(
        &mut self,
        path: &HostPath,
        fact: &PathFact,
        target: SandboxPath,
        writable: bool,
    ) -> Result<(), PlanError> {
        let from = self.source(path, fact, writable, true);
        self.attached.push((fact.real.clone(), target.clone(), writable));
        self.put(FsOp::Bind { from, at: target, writable })
    }

    fn system(&mut self, host: &HostPath, target: SandboxPath, entry: &SystemEntry) -> Result<(), PlanError> {
        match entry {
            SystemEntry::Symlink { to } => self.put(FsOp::Symlink { at: target, to: to.clone() }),
            SystemEntry::Copy { content } => self.put(FsOp::File { at: target, content: content.clone() }),
            SystemEntry::Mount { fact } => self.system_bind(host, fact, target),
        }
    }

    fn base_root(
        &mut self,
        policy: &Policy,
        request: &Request,
        paths: &PathFacts,
        layered: bool,
    ) -> Result<(), PlanError> {
        if request.root.is_some() && !policy.grants.root {
            return Err(PlanError::NotGranted { what: "--root".into(), key: "root" });
        }
        let own_root = request.root.as_ref().or(policy.root.dir.as_ref());
        if let Some(dir) = own_root {
            let fact = found(paths, dir)?;
            if fact.kind != Kind::Dir {
                return Err(PlanError::SourceKind {
                    path: dir.clone(),
                    is: kind_text(fact.kind),
                    wants: "a directory",
                });
            }
            forbidden(&paths.never, &fact.real)?;
            if paths.home.as_ref().is_some_and(|home| home.is_within(&fact.real)) {
                return Err(PlanError::Never { path: fact.real, what: "a whole home or more" });
            }
        }
        let base = own_root.cloned();
        for (name, entry) in &paths.top {
            let host = match &base {
                Some(dir) => dir.join(name),
                None => HostPath::new(Path::new("/").join(name.as_path()))
                    .map_err(|_| PlanError::RootWorkspace)?,
            };
            self.system(&host, SandboxPath::root().join(name), entry)?;
        }
        self.put(FsOp::Dir { at: at("/etc") })?;
        if !paths.top.keys().any(|n| n.as_path() == Path::new("etc")) {
            for (name, entry) in &paths.etc {
                let host = HostPath::new(Path::new("/etc").join(name.as_path()))
                    .map_err(|_| PlanError::RootWorkspace)?;
                self.system(&host, below(&at("/etc"), name), entry)?;
            }
            for (name, content) in identity_files(policy) {
                let target = at(&format!("/etc/{name}"));
                if !self.ops.contains_key(&key(target.clone())) {
                    self.put(FsOp::File { at: target, content: content.into() })?;
                }
            }
        }
        self.put(FsOp::Proc { at: at("/proc") })?;
        self.put(FsOp::Dev { at: at("/dev") })?;
        self.put(FsOp::Scratch { at: at("/dev/shm"), mode: 0o1777 })?;
        self.put(FsOp::Scratch { at: at("/tmp"), mode: 0o1777 })?;
        self.put(FsOp::Scratch { at: at("/run"), mode: 0o1777 })?;
        self.put(FsOp::Scratch { at: home(policy.user), mode: 0o700 })?;
        if policy.root.toolchains && own_root.is_none() {
            for tool in &paths.toolchains {
                let target = tool.path.as_sandbox();
                if !(tool.shown || layered && caches::is_one(paths, &tool.path)) {
                    self.system_bind(&tool.path, &tool.fact, target.clone())?;
                }
                for (rel, kind) in &tool.credentials {
                    // One toolchain may lie in another, and name the same file.
                    self.mask(below(&target, rel), *kind)?;
                }
            }
        }
        Ok(())
    }

    /// The other names of `/tmp` and `/run`: links, but where something is mounted at or below one. A mount point may
    /// not lie behind a link, so that name is a private directory of its own then.
    fn other_names_of_scratch(&mut self, paths: &PathFacts) -> Result<(), PlanError> {
        if paths.top.keys().any(|n| n.as_path() == Path::new("var")) {
            return Ok(());
        }
        for (link, to) in [("/var/tmp", "../tmp"), ("/var/run", "../run")] {
            let name = at(link);
            if self.ops.contains_key(&(name.depth(), name.clone())) {
                continue;
            }
            self.put(if self.ops.values().any(|op| op.at().is_within(&name)) {
                FsOp::Scratch { at: name, mode: 0o1777 }
            } else {
                FsOp::Symlink { at: name, to: to.into() }
            })?;
        }
        Ok(())
    }

    fn extra_mounts(
        &mut self,
        policy: &Policy,
        request: &Request,
        paths: &PathFacts,
    ) -> Result<(), PlanError> {
        for mount in &policy.mounts {
            check_target(mount.target())?;
            match mount {
                MountEntry::Bind { source, target, writable, optional, .. } => match found(paths, source) {
                    Ok(fact) => self.bind(source, &fact, target.clone(), *writable)?,
                    Err(PlanError::Source { errno: libc::ENOENT, .. }) if *optional => {}
                    Err(e) => return Err(e),
                },
                MountEntry::Overlay { source, target, .. } => {
                    let fact = found(paths, source)?;
                    self.overlay(source, &fact, target.clone())?;
                }
                MountEntry::Tmpfs { target, size, inodes, .. } => {
                    self.put(FsOp::Tmpfs { at: target.clone(), size: size.0, inodes: *inodes })?;
                }
                MountEntry::File { target, content, .. } => {
                    self.put(FsOp::File { at: target.clone(), content: content.clone() })?;
                }
                MountEntry::Dir { target, .. } => self.put(FsOp::Dir { at: target.clone() })?,
                MountEntry::Symlink { target, to, .. } => {
                    self.put(FsOp::Symlink { at: target.clone(), to: to.clone() })?;
                }
                // The type is only known once the rest of the root stands; init looks.
                MountEntry::Mask { target, .. } => self.mask(target.clone(), Kind::Other)?,
            }
        }
        for bind in &request.binds {
            check_target(&bind.target)?;
            let (flag, key, granted) = if bind.writable {
                ("--rw", "rw", &policy.grants.rw)
            } else {
                ("--ro", "ro", &policy.grants.ro)
            };
            let fact = found(paths, &bind.source)?;
            if !granted.iter().any(|dir| fact.real.is_within(paths.grants.get(dir).unwrap_or(dir))) {
                return Err(PlanError::NotGranted { what: format!("{flag} {}", bind.source), key });
            }
            // By what the path leads to, not by its spelling.
            let hosts_own =
                ["/", "/proc", "/sys", "/dev"].iter().any(|d| fact.real.as_path() == Path::new(d))
                    || fact.real.as_path().starts_with("/proc");
            if hosts_own {
                return Err(PlanError::NotGranted {
                    what: format!("{flag} {} (which is {})", bind.source, fact.real),
                    key,
                });
            }
            self.bind(&bind.source, &fact, bind.target.clone(), bind.writable)?;
        }
        for (target, size) in &request.tmpfs {
            check_target(target)?;
            if !policy.grants.tmpfs {
                return Err(PlanError::NotGranted { what: format!("--tmpfs {target}"), key: "tmpfs" });
            }
            let size = size.unwrap_or(policy.limits.scratch);
            tmpfs_size(size).map_err(|e| PlanError::TmpfsSize { at: target.clone(), why: e.to_string() })?;
            self.put(FsOp::Tmpfs { at: target.clone(), size: size.0, inodes: policy.limits.scratch_inodes })?;
        }
        Ok(())
    }

    fn overlay(&mut self, source: &HostPath, fact: &PathFact, target: SandboxPath) -> Result<(), PlanError> {
        if fact.kind != Kind::Dir {
            return Err(PlanError::SourceKind {
                path: source.clone(),
                is: kind_text(fact.kind),
                wants: "a directory",
            });
        }
        let lower = Some(self.source(source, fact, false, true));
        self.attached.push((fact.real.clone(), target.clone(), false));
        self.put(FsOp::Overlay { lower, layer: None, at: target })
    }

    fn workspace(
        &mut self,
        policy: &Policy,
        request: &Request,
        paths: &PathFacts,
    ) -> Result<Option<SandboxPath>, PlanError> {
        let mut access = policy.workspace.access;
        if access == Access::None {
            return match &request.at {
                Some(at) => Err(PlanError::NoWorkspace(at.clone())),
                None => Ok(None),
            };
        }
        let (Some(dir), Some(fact)) = (&request.workspace, &paths.workspace) else { return Ok(None) };
        if dir.as_path() == Path::new("/") {
            return Err(PlanError::RootWorkspace);
        }
        if fact.root.kind != Kind::Dir {
            return Err(PlanError::SourceKind {
                path: dir.clone(),
                is: kind_text(fact.root.kind),
                wants: "a directory",
            });
        }
        if request.workspace_explicit && !policy.grants.workspace {
            return Err(PlanError::NotGranted { what: format!("-w {dir}"), key: "workspace" });
        }
        if !request.workspace_explicit
            && paths.home.as_ref().is_some_and(|home| home.is_within(&fact.root.real))
        {
            return Err(PlanError::ImplicitWorkspace(dir.clone()));
        }
        let missing = missing_protected(policy, fact);
        if access == Access::Rw
            && policy.workspace.protect_missing == ProtectMissing::Overlay
            && !missing.is_empty()
        {
            access = Access::Overlay;
        }
        let target = request.at.clone().unwrap_or_else(|| dir.as_sandbox());
        check_target(&target)?;
        // The executor puts files, links and its own home there, and makes no place for them in the workspace.
        if target == at("/etc") || target == at("/var") || home(policy.user).is_within(&target) {
            return Err(PlanError::ReservedTarget(target));
        }
        self.tree(dir, &fact.root, &target, access, &fact.protected)?;
        // A link holds nothing; the file of the workspace that it leads to is hidden beside it.
        for (rel, kind) in fact.hidden.iter().filter(|(_, kind)| *kind != Kind::Symlink) {
            if self.is_covered(&target, &below(&target, rel)) {
                continue;
            }
            if matches!(access, Access::Rw | Access::Overlay) {
                self.pin_ancestors(&target, rel);
            }
            self.mask(below(&target, rel), *kind)?;
        }
        if access == Access::Rw && !missing.is_empty() {
            let modules = RelPath::new(".git/modules").ok().filter(|_| guards_git(policy));
            self.watch(dir, &target, missing, modules);
        }
        if let Some(git) = &fact.git
            && git.common_fact.kind == Kind::Dir
            && !git.common_dir.is_within(&fact.root.real)
        {
            let common_at = git.common_dir.as_sandbox();
            check_target(&common_at)?;
            self.tree(&git.common_dir, &git.common_fact, &common_at, access, &git.protected)?;
            if access == Access::Rw && guards_git(policy) {
                // The same names as below a `.git` of the workspace's own.
                let missing = policy
                    .workspace
                    .protect
                    .iter()
                    .filter_map(|p| RelPath::new(p.as_path().strip_prefix(".git").ok()?).ok())
                    .filter(|p| !git.protected.iter().any(|(rel, _)| rel == p || p.is_within(rel)))
                    .collect();
                self.watch(&git.common_dir, &common_at, missing, RelPath::new("modules").ok());
            }
        }
        Ok(Some(target))
    }

    fn watch(&mut self, dir: &HostPath, at: &SandboxPath, missing: Vec<RelPath>, modules: Option<RelPath>) {
        if let Some(index) = self.sources.iter().position(|s| s.path == *dir) {
            let source = SourceIx(u32::try_from(index).unwrap_or(u32::MAX));
            self.watch.push(Watch { source, at: at.clone(), missing, modules });
        }
    }

    /// Makes every directory from `base` down to `rel` a mount point, else a rename of one of them would carry what
    /// lies below it out of its protection or mask, in this run or the next.
    pub(super) fn pin_ancestors(&mut self, base: &SandboxPath, rel: &RelPath) {
        let mut up = rel.as_path().parent();
        while let Some(dir) = up.filter(|d| !d.as_os_str().is_empty()) {
            if let Ok(rel) = RelPath::new(dir) {
                let pin = below(base, &rel);
                // A parent that is itself held or hidden is already a mount point.
                self.ops.entry(key(pin.clone())).or_insert(FsOp::Pin { at: pin });
            }
            up = dir.parent();
        }
    }

    /// A workspace-like tree: attached as `access` says, its protected names held in place.
    fn tree(
        &mut self,
        dir: &HostPath,
        fact: &PathFact,
        target: &SandboxPath,
        access: Access,
        protected: &[(RelPath, Kind)],
    ) -> Result<(), PlanError> {
        match access {
            Access::None => {}
            Access::Ro => self.bind(dir, fact, target.clone(), false)?,
            Access::Overlay => self.overlay(dir, fact, target.clone())?,
            Access::Rw => {
                self.bind(dir, fact, target.clone(), true)?;
                for (rel, kind) in protected {
                    self.protect(target, rel, *kind)?;
                }
            }
        }
        Ok(())
    }

    /// Holds an existing name of the tree at `base` in place.
    fn protect(&mut self, base: &SandboxPath, rel: &RelPath, kind: Kind) -> Result<(), PlanError> {
        let place = below(base, rel);
        if self.is_covered(base, &place) {
            return Ok(());
        }
        if kind == Kind::Symlink {
            return Err(PlanError::ProtectedLink(place));
        }
        self.pin_ancestors(base, rel);
        let key = (place.depth(), place.clone());
        match self.ops.get(&key) {
            None | Some(FsOp::Pin { .. } | FsOp::Protect { .. }) => {
                self.ops.insert(key, FsOp::Protect { at: place, kind });
                Ok(())
            }
            // Hidden holds too.
            Some(FsOp::Mask { .. }) => Ok(()),
            Some(_) => Err(PlanError::DuplicateTarget(place)),
        }
    }

    /// Whether something else is mounted between the tree at `base` and `place`, so that the tree's own name there
    /// cannot be reached.
    fn is_covered(&self, base: &SandboxPath, place: &SandboxPath) -> bool {
        self.ops.values().any(|op| {
            let at = op.at();
            brings_a_tree(op) && at != base && at != place && at.is_within(base) && place.is_within(at)
        })
    }

    /// The workspace's protected and hidden names are so by every name under which a source shows them.
    fn other_names(&mut self, paths: &PathFacts) -> Result<(), PlanError> {
        let Some(fact) = &paths.workspace else { return Ok(()) };
        let root = &fact.root.real;
        let of_git = fact
            .git
            .iter()
            .flat_map(|g| g.protected.iter().map(|(rel, kind)| (g.common_fact.real.join(rel), *kind)));
        let protected: Vec<(HostPath, Kind)> =
            fact.protected.iter().map(|(rel, kind)| (root.join(rel), *kind)).chain(of_git).collect();
        let hidden = fact.hidden.iter().filter(|(_, kind)| *kind != Kind::Symlink);
        let hidden: Vec<(HostPath, Kind)> = hidden.map(|(rel, kind)| (root.join(rel), *kind)).collect();
        for (real, target, writable) in self.attached.clone() {
            for (path, kind) in &hidden {
                if real.is_within(path) {
                    return Err(PlanError::Never {
                        path: real,
                        what: "what the profile hides in the workspace",
                    });
                }
                if let Some(rel) = path.below(&real)
                    && !self.is_covered(&target, &below(&target, &rel))
                {
                    self.pin_ancestors(&target, &rel);
                    self.mask(below(&target, &rel), *kind)?;
                }
            }
            for (path, kind) in protected.iter().filter(|_| writable) {
                if real.is_within(path) {
                    return Err(PlanError::ProtectedSource(real));
                }
                if let Some(rel) = path.below(&real) {
                    self.protect(&target, &rel, *kind)?;
                }
            }
        }
        Ok(())
    }

    /// What no executor sees: no source is it or lies in it, and where a source holds it, it is covered.
    fn never(&mut self, paths: &PathFacts) -> Result<(), PlanError> {
        let mut masks = Vec::new();
        for (real, target, _) in &self.attached {
            forbidden(&paths.never, real)?;
            for never in &paths.never {
                masks.extend(never.path.below(real).map(|rel| (target.clone(), rel, never.kind)));
            }
        }
        for (base, rel, kind) in masks {
            let at = below(&base, &rel);
            // Something else is mounted over it, there or above. (Another source has its own entry.)
            let there = self.ops.get(&(at.depth(), at.clone()));
            if self.is_covered(&base, &at) || there.is_some_and(brings_a_tree) {
                continue;
            }
            self.pin_ancestors(&base, &rel);
            self.mask(at, kind)?;
        }
        Ok(())
    }

    /// A profile's mask in a tree that the command may change is held like a hidden name of the workspace.
    fn pin_masks(&mut self) {
        let masks: Vec<SandboxPath> = self
            .ops
            .values()
            .filter(|op| matches!(op, FsOp::Mask { kind: Kind::Other, .. }))
            .map(|op| op.at().clone())
            .collect();
        for mask in masks {
            // The deepest thing above it that brings a tree of its own: operations are in the order of their depth.
            let around = self.ops.values().rev().find(|op| {
                let own = matches!(op, FsOp::Dir { .. } | FsOp::Pin { .. } | FsOp::Protect { .. });
                !own && *op.at() != mask && mask.is_within(op.at())
            });
            let (Some(FsOp::Bind { at, writable: true, .. }) | Some(FsOp::Overlay { at, .. })) = around
            else {
                continue;
            };
            let at = at.clone();
            if let Some(rel) = mask.below(&at) {
                self.pin_ancestors(&at, &rel);
            }
        }
    }

    fn finish(self) -> Result<Finished, PlanError> {
        if self.ops.len() > FS_OPS_MAX {
            return Err(PlanError::TooMany(self.ops.len()));
        }
        // What lies below a masked directory is hidden with it.
        let masked: Vec<SandboxPath> = self
            .ops
            .values()
            .filter_map(|op| match op {
                FsOp::Mask { at, kind: Kind::Dir } => Some(at.clone()),
                _ => None,
            })
            .collect();
        let mut ops = Vec::with_capacity(self.ops.len());
        for op in self.ops.into_values() {
            let mask = masked.iter().find(|m| op.at() != *m && op.at().is_within(m));
            match (mask, &op) {
                (None, _) => ops.push(op),
                (Some(_), FsOp::Mask { .. } | FsOp::Protect { .. } | FsOp::Pin { .. }) => {}
                // Left out in silence it would seem to be there.
                (Some(mask), _) => {
                    return Err(PlanError::BelowMask { at: op.at().clone(), mask: mask.clone() });
                }
            }
        }
        Ok((self.sources, ops, self.watch))
    }
}

/// Whether what was at its place before can no longer be reached by that name. A directory or link of a table does not
/// cover one that is there.
fn brings_a_tree(op: &FsOp) -> bool {
    matches!(op, FsOp::Bind { .. } | FsOp::Overlay { .. } | FsOp::Tmpfs { .. } | FsOp::Scratch { .. })
}

/// Refuses what no executor sees.
fn forbidden(never: &[Never], real: &HostPath) -> Result<(), PlanError> {
    match never.iter().find(|n| *real == n.path || (n.inside && real.is_within(&n.path))) {
        Some(found) => Err(PlanError::Never { path: real.clone(), what: found.what }),
        None => Ok(()),
    }
}

/// Whether git's own files are among what the policy protects.
fn guards_git(policy: &Policy) -> bool {
    policy.workspace.protect.iter().any(|p| p.as_path().starts_with(".git"))
}

/// Protected patterns that have no match yet.
fn missing_protected(policy: &Policy, fact: &WorkspaceFact) -> Vec<RelPath> {
    policy
        .workspace
        .protect
        .iter()
        .filter(|pattern| {
            pattern.as_bytes().contains(&b'*')
                || !fact.protected.iter().any(|(rel, _)| rel == *pattern || pattern.is_within(rel))
        })
        .cloned()
        .collect()
}

pub(super) fn check_target(target: &SandboxPath) -> Result<(), PlanError> {
    if reserved(target) {
        return Err(PlanError::ReservedTarget(target.clone()));
    }
    Ok(())
}

fn found(paths: &PathFacts, path: &HostPath) -> Result<PathFact, PlanError> {
    match paths.sources.get(path) {
        Some(Ok(fact)) => Ok(fact.clone()),
        Some(Err(missing)) => Err(PlanError::Source { path: path.clone(), errno: missing.errno }),
        None => Err(PlanError::Source { path: path.clone(), errno: libc::ENOENT }),
    }
}

/// The command's home.
pub fn home(user: InsideUser) -> SandboxPath {
    at(match user {
        InsideUser::Agent => "/home/agent",
        InsideUser::Root => "/root",
    })
}

fn identity_files(policy: &Policy) -> Vec<(&'static str, String)> {
    let host = &policy.hostname;
    vec![
        (
            "passwd",
            "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
                .to_owned(),
        ),
        ("group", "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n".to_owned()),
        ("hosts", format!("127.0.0.1 localhost {host}\n::1 localhost ip6-localhost ip6-loopback\n")),
        ("hostname", format!("{host}\n")),
        ("resolv.conf", "# no name server: this executor has no network\n".to_owned()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n".to_owned()),
        ("machine-id", "00000000000000000000000000000001\n".to_owned()),
    ]
}

fn name_matches(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => pattern.as_bytes() == name,
    }
}

const DEFAULT_PATH: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

fn command(
    policy: &Policy,
    request: &Request,
    paths: &PathFacts,
    workspace_at: Option<SandboxPath>,
    containment: &Containment,
) -> Result<Command, PlanError> {
    let user = match policy.user {
        InsideUser::Agent => "agent",
        InsideUser::Root => "root",
    };
    let home = home(policy.user);
    let path = search_path(policy, request, paths);
    let mut env: BTreeMap<OsBytes, OsBytes> = BTreeMap::new();
    for (name, value) in request.caller_env.iter() {
        if policy.env.pass.iter().any(|p| name_matches(p, name.as_bytes())) {
            env.insert(name.clone(), value.clone());
        }
    }
    let joined: Vec<u8> = path.iter().map(SandboxPath::as_bytes).collect::<Vec<_>>().join(&b':');
    for (name, value) in [
        ("HOME", OsBytes::from(home.as_bytes().to_vec())),
        ("USER", user.into()),
        ("LOGNAME", user.into()),
        ("SHELL", "/bin/sh".into()),
        ("TMPDIR", "/tmp".into()),
        ("PATH", joined.into()),
    ] {
        env.insert(name.into(), value);
    }
    if policy.root.toolchains && request.root.is_none() && policy.root.dir.is_none() {
        for tool in &paths.toolchains {
            if let Some(name) = &tool.variable {
                env.insert(name.as_str().into(), tool.path.as_bytes().to_vec().into());
            }
        }
    }
    for (name, value) in caches::variables(&containment.caches) {
        env.insert(name.into(), value);
    }
    for (name, value) in &policy.env.set {
        env.insert(name.as_str().into(), value.clone());
    }
    for (name, value) in &request.env {
        if !policy.grants.env.iter().any(|p| name_matches(p, name.as_bytes())) {
            return Err(PlanError::NotGranted {
                what: format!("--env {}", crate::base::text::visible(name.as_bytes())),
                key: "env",
            });
        }
        env.insert(name.as_str().into(), value.clone());
    }
    if policy.env.heap_hints {
        for (name, value) in heap_hints(containment) {
            // What anybody has said about it stands.
            env.entry(name.into()).or_insert(value.into());
        }
    }
    // By intent, and so not by whatever a variable was before.
    for (name, value) in intents::variables(&containment.intents, paths, request, &env)? {
        env.insert(name.into(), value);
    }
    env.insert(view::VARIABLE.into(), view::TEXT.into());
    if env.iter().any(|(n, v)| n.as_bytes().contains(&0) || v.as_bytes().contains(&0)) {
        return Err(PlanError::Nul("an environment variable"));
    }
    let cwd = request.cwd.clone().or(workspace_at).unwrap_or_else(SandboxPath::root);
    Ok(Command { argv: request.argv.clone(), env: env.into_iter().collect(), cwd, path, tty: request.tty })
}

/// Variables by which runtimes that would take the host's memory for theirs are told of the limit: V8, the JVM and .NET
/// look for a cgroup file system, which is not there, and Go for nothing at all. Nothing where no limit holds.
/// <https://nodejs.org/api/cli.html>, java(1), `go doc runtime`,
/// <https://learn.microsoft.com/dotnet/core/runtime-config/garbage-collector>.
fn heap_hints(c: &Containment) -> Vec<(&'static str, String)> {
    let Some(limit) = c.limits.memory.filter(|_| !c.gaps.contains_key(&Protection::LimitMemory)) else {
        return Vec::new();
    };
    // The rest is for stacks, code, buffers outside the heap, and the build tool that started the runtime.
    let share = |percent: u64| u64::try_from(u128::from(limit) * u128::from(percent) / 100).unwrap_or(limit);
    vec![
        ("NODE_OPTIONS", format!("--max-old-space-size={}", (share(75) >> 20).max(1))),
        // Not -Xmx: a program's own -XX:MaxRAMPercentage would be ignored beside it.
        ("JAVA_TOOL_OPTIONS", format!("-XX:MaxRAM={limit} -XX:MaxRAMPercentage=50")),
        ("GOMEMLIMIT", share(90).to_string()),
        // Read as a hexadecimal number.
        ("DOTNET_GCHeapHardLimit", format!("0x{:x}", share(75))),
    ]
}

/// PATH inside: the caller's entries that exist there, in the caller's order, then the usual directories.
fn search_path(policy: &Policy, request: &Request, paths: &PathFacts) -> Vec<SandboxPath> {
    let mut out: Vec<SandboxPath> = Vec::new();
    let mut add = |p: SandboxPath| {
        if !out.contains(&p) {
            out.push(p);
        }
    };
    if policy.root.toolchains && request.root.is_none() && policy.root.dir.is_none() {
        let caller = request.caller_env.get(&OsBytes::from("PATH"));
        for entry in caller.map_or(&[][..], OsBytes::as_bytes).split(|b| *b == b':') {
            let Ok(entry) = SandboxPath::new(Path::new(std::ffi::OsStr::from_bytes(entry))) else { continue };
            let system = ["/usr", "/bin", "/sbin"].iter().any(|d| entry.is_within(&at(d)));
            let mounted = paths.toolchains.iter().any(|t| entry.is_within(&t.path.as_sandbox()));
            if system || mounted {
                add(entry);
            }
        }
        for tool in paths.toolchains.iter().filter(|t| t.variable.as_deref() == Some("CARGO_HOME")) {
            if let Ok(bin) = RelPath::new("bin") {
                add(tool.path.as_sandbox().join(&bin));
            }
        }
    }
    for dir in DEFAULT_PATH {
        add(at(dir));
    }
    out
}

/// The needs of a plan in reporting order.
pub fn need(containment: &Containment, protection: Protection) -> Need {
    containment.needs.get(&protection).copied().unwrap_or(Need::Require)
}

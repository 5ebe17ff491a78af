//! Checking the result, not the call. A sacrificial sibling of the command, under the identical plan, tries
//! what must not work; each attempt has a positive control on the same route, made before the restriction or
//! beside it. It reports one bit per canary and is gone before the command starts. Canaries hold or do not;
//! a canary that cannot be run here (no procfs, no such rule in the plan) is left out of `ran`.

use super::sources::kind_of;
use super::stage::listener::{self, Listener, Taken};
use super::stage::payload::{self, Ends, Shared};
use super::stage::wire::{AtStep, StageFault, Step};
use super::{Mutant, caps};
use crate::base::Protection;
use crate::plan::{CacheLayer, Containment, FsOp, Kind, LandlockAccess, Plan};
use crate::sys;
use crate::sys::clone::Cloned;
use crate::sys::mount::{Attrs, NOEXEC, RDONLY, set_attrs};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::CString;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Namespaces whose identity is compared with the owner's.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
/// Most entries of one kind of the mount table that are tried.
const TRIED_MAX: usize = 16;

/// What the owner looks like, to be compared from inside.
#[derive(Debug, Clone, Default)]
pub struct HostView {
    /// (device, inode) of the owner's namespaces, in the order of the list above.
    namespaces: Vec<Option<(u64, u64)>>,
    /// Serial of the owner's session keyring.
    session_keyring: Option<i64>,
}

impl HostView {
    /// The calling process's view.
    pub fn gather() -> Self {
        Self {
            namespaces: NAMESPACES.iter().map(|n| namespace_id(n)).collect(),
            session_keyring: sys::keyring::session_id().ok(),
        }
    }
}

fn namespace_id(name: &str) -> Option<(u64, u64)> {
    let stat = rustix::fs::stat(format!("/proc/self/ns/{name}")).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

macro_rules! canaries {
    ($($(#[$doc:meta])* $variant:ident = ($bit:literal, $name:literal, $protection:ident)),+ $(,)?) => {
        /// A thing that must not work inside.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Canary { $($(#[$doc])* $variant = $bit),+ }

        impl Canary {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in results.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The protection that it speaks for.
            pub fn protection(self) -> Protection {
                match self { $(Self::$variant => Protection::$protection),+ }
            }
        }
    };
}

canaries! {
    /// No namespace is the owner's.
    NamespaceIdentity = (0, "namespace-identity", Namespaces),
    /// This process is of the executor's PID namespace and sees its init.
    PidView = (1, "pid-view", Namespaces),
    /// Nothing can be created in the root or in read-only trees.
    ReadOnly = (2, "read-only", Mounts),
    /// With every capability of the second namespace, flags cannot be cleared and nothing can be unmounted.
    MountsLocked = (3, "mounts-locked", Mounts),
    /// Protected paths are read-only.
    Protected = (4, "protected", Mounts),
    /// Masked paths are empty.
    Masked = (5, "masked", Mounts),
    /// Only the standard descriptors are open.
    Descriptors = (6, "descriptors", Mounts),
    /// uid and gid are the planned ones, no group of the caller's is held.
    Identity = (7, "identity", Ids),
    /// The session keyring is a fresh one.
    Keyring = (8, "keyring", Ids),
    /// All five sets are empty, securebits locked, no_new_privs set.
    CapabilitySets = (9, "capability-sets", Capabilities),
    /// A filter is installed and answers as planned.
    FilterAnswers = (10, "filter-answers", Seccomp),
    /// A call of a foreign ABI kills.
    ForeignAbi = (11, "foreign-abi", Seccomp),
    /// A directory that mounts and permissions would let it write is closed by Landlock.
    LandlockWrite = (12, "landlock-write", LandlockFs),
    /// An abstract socket and a process outside the domain are out of reach.
    LandlockScope = (13, "landlock-scope", LandlockScope),
    /// TCP is denied by Landlock.
    LandlockTcp = (14, "landlock-tcp", LandlockNet),
    /// No route leads anywhere but (perhaps) loopback.
    NoRoute = (15, "no-route", Network),
    /// Init's memory, environment and descriptors are closed.
    InitClosed = (16, "init-closed", Proc),
    /// Dangerous procfs entries are empty or closed, `/proc/sys` is read-only.
    ProcMasked = (17, "proc-masked", Proc),
    /// What should be writable is: the positive control of the whole.
    ScratchWritable = (18, "scratch-writable", Mounts),
    /// Package caches of the host are seen through a layer, and it can be written to.
    CachesLayered = (19, "caches-layered", Caches),
}

/// One bit per canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Those that held.
    pub held: u64,
    /// Those that ran.
    pub ran: u64,
}

impl Seen {
    fn note(&mut self, canary: Canary, result: Option<bool>) {
        if let Some(held) = result {
            self.ran |= 1 << canary as u8;
            self.held |= u64::from(held) << canary as u8;
        }
    }

    /// Whether `canary` ran, and then whether it held.
    pub fn get(self, canary: Canary) -> Option<bool> {
        let bit = 1u64 << canary as u8;
        (self.ran & bit != 0).then_some(self.held & bit != 0)
    }
}

/// Whether a filter is installed on this process.
pub fn filter_mode() -> bool {
    // PR_GET_SECCOMP is 2 in filter mode; the answer comes from the filter's own process. prctl(2).
    rustix::thread::secure_computing_mode() == Ok(rustix::thread::SecureComputingMode::Filter)
}

/// Runs the canaries in a sibling of the command and waits for its end.
///
/// # Errors
/// When the sibling cannot be made, or fails at a step that the command would fail at too.
pub fn in_sibling(shared: &Shared<'_>) -> Result<Seen, StageFault> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(Step::Canary)?;
    let (lines, ends) = payload::lines()?;
    match sys::clone::clone3(0, None).at(Step::Canary)? {
        Cloned::Child => {
            drop(lines);
            let mut record = [0u8; 24];
            match sibling(shared, &ends, write.as_raw_fd()) {
                Ok(seen) => {
                    record[0] = 1;
                    record[8..16].copy_from_slice(&seen.held.to_le_bytes());
                    record[16..24].copy_from_slice(&seen.ran.to_le_bytes());
                }
                Err(fault) => record[8..16].copy_from_slice(&fault.encode()),
            }
            // A short write is a missing record, which the reader treats as a failed canary run.
            let _ = rustix::io::write(&write, &record);
            sys::clone::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => {
            drop(write);
            drop(ends);
            let seccomp = &shared.plan.containment.seccomp;
            // The same route as the command's. Without a word, its record says what went wrong.
            if let Some(Taken { mut listener, answers }) = listener::take(&lines.hear, &pidfd, seccomp)? {
                if shared.prepared.waits {
                    lines.open(answers)?;
                }
                while let Some(asked) = &mut listener
                    && !readable_before(&read, asked)?
                {
                    if !asked.answer(|_| Ok(()))? {
                        listener = None;
                    }
                }
            }
            let mut record = [0u8; 24];
            let got = rustix::io::read(&read, &mut record).at(Step::Canary)?;
            // Nothing of the sibling may be left when the command starts.
            while let Some(reaped) = sys::wait::wait4(pid, true).at(Step::Canary)? {
                if reaped.pid == pid {
                    break;
                }
            }
            let part = |at: usize| {
                let mut out = [0; 8];
                out.copy_from_slice(&record[at..at + 8]);
                out
            };
            match (got, record[0]) {
                (24, 1) => Ok(Seen { held: u64::from_le_bytes(part(8)), ran: u64::from_le_bytes(part(16)) }),
                (24, _) => Err(StageFault::decode(part(8)).unwrap_or(lost())),
                _ => Err(lost()),
            }
        }
    }
}

/// Waits until the sibling has something to say on `record` (or nothing any more), or asks. Whether it is the first.
fn readable_before(record: &OwnedFd, asked: &Listener<'_>) -> Result<bool, StageFault> {
    let mut fds = [PollFd::new(record, PollFlags::IN), PollFd::from_borrowed_fd(asked.fd(), PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).at(Step::Canary)?;
    Ok(!fds[0].revents().is_empty())
}

fn lost() -> StageFault {
    StageFault { step: Step::Canary, errno: libc::EPROTO, index: u32::MAX }
}

/// What is prepared while everything is still allowed.
struct Controls {
    abstract_name: Vec<u8>,
    abstract_listener: Option<OwnedFd>,
    tcp: Option<OwnedFd>,
    udp: Option<OwnedFd>,
    loopback_udp: Option<OwnedFd>,
    keyring_fresh: Option<bool>,
    keyring_call_worked: bool,
    locked: Option<bool>,
    landlock_writable_before: bool,
}

/// Where the Landlock canary's directory is mounted, in the sibling's own namespace only: a place in every root,
/// with nothing of the plan below it, where the rules allow no creating.
const LANDLOCK_PLACE: &str = "/dev/pts";

fn sibling(shared: &Shared<'_>, ends: &Ends, line: RawFd) -> Result<Seen, StageFault> {
    let plan = shared.plan;
    let host = shared.host.ok_or(StageFault { step: Step::Canary, errno: libc::EPROTO, index: u32::MAX })?;
    rustix::process::setsid().at(Step::Session)?;
    payload::join_keyring(shared)?;
    payload::second_namespace(shared)?;
    if shared.mutants.off(Mutant::SecondNamespace) {
        // What a canary finds open it changes: in a copy of the mounts, not in those of the command.
        sys::clone::unshare(libc::CLONE_NEWNS as u64).at(Step::Canary)?;
    }
    let locked = mounts_locked(shared);
    let controls = prepare(plan, host, locked)?;
    let mut keep = vec![line, ends.say.as_raw_fd(), ends.wait.as_raw_fd()];
    for fd in [&controls.abstract_listener, &controls.tcp, &controls.udp, &controls.loopback_udp]
        .into_iter()
        .flatten()
    {
        keep.push(fd.as_raw_fd());
    }
    let mut before = Seen::default();
    payload::restrict(shared, ends, &keep, || {
        before.note(Canary::Descriptors, descriptors(&keep));
        // Landlock and the namespaces are in force, the filter is not: it would answer in their place wherever a
        // profile allows no sockets at all.
        network(shared, &controls, &mut before);
    })?;
    let mut seen = before;
    run(shared, host, &controls, &mut seen);
    Ok(seen)
}

/// Tries, with every capability in the second namespace, what locked mounts refuse. `None` without it.
fn mounts_locked(shared: &Shared<'_>) -> Option<bool> {
    let c = &shared.plan.containment;
    let mut held = true;
    let clear = Attrs { clear: RDONLY, ..Default::default() };
    held &= set_attrs(CWD, c"/", false, clear).is_err_and(|e| e.raw_os_error() == Some(libc::EPERM));
    let read_only = c.fs.iter().filter_map(|op| match op {
        // There was nothing to cover: no mount is there, and nothing to see.
        FsOp::Mask { at, kind: Kind::Other } if absent(at.as_path()) => None,
        FsOp::Bind { at, writable: false, .. } | FsOp::Protect { at, .. } | FsOp::Mask { at, .. } => Some(at),
        _ => None,
    });
    for at in read_only.take(TRIED_MAX) {
        let Ok(path) = CString::new(at.as_bytes()) else { continue };
        let cleared = set_attrs(CWD, &path, false, clear);
        held &= cleared.is_err_and(|e| e.raw_os_error() == Some(libc::EPERM));
        held &= rustix::mount::unmount(&path, UnmountFlags::DETACH) == Err(Errno::INVAL);
    }
    // The control: the same call on a mount of this namespace's own, made in `prepare`, succeeds.
    Some(held)
}

fn prepare(plan: &Plan, host: &HostView, locked: Option<bool>) -> Result<Controls, StageFault> {
    let c = &plan.containment;
    // A tmpfs over a directory that no writable rule covers; only this process ever sees it.
    let own = || -> Result<bool, Errno> {
        let fs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(&fs, "mode", "0777")?;
        rustix::mount::fsconfig_set_string(&fs, "size", "64k")?;
        rustix::mount::fsconfig_create(&fs)?;
        let tree = rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        rustix::mount::move_mount(&tree, c"", CWD, LANDLOCK_PLACE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let control =
            set_attrs(tree.as_fd(), c"", false, Attrs { set: NOEXEC, ..Default::default() }).is_ok();
        Ok(create(&format!("{LANDLOCK_PLACE}/.before")).is_ok() && control)
    };
    let landlock_writable_before = own().at(Step::Canary)?;
    let abstract_name = format!("stockade-canary-{}", std::process::id()).into_bytes();
    let abstract_listener = || -> Result<OwnedFd, Errno> {
        let address = SocketAddrUnix::new_abstract_name(&abstract_name)?;
        let socket = unix_socket()?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, 4)?;
        // The control: before the restriction the connection works.
        rustix::net::connect(&unix_socket()?, &address)?;
        Ok(socket)
    };
    let inet = |kind| rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None).ok();
    Ok(Controls {
        abstract_listener: if c.landlock.scope { Some(abstract_listener().at(Step::Canary)?) } else { None },
        abstract_name,
        tcp: if c.landlock.deny_tcp { inet(SocketType::STREAM) } else { None },
        udp: inet(SocketType::DGRAM),
        loopback_udp: inet(SocketType::DGRAM),
        keyring_fresh: match (host.session_keyring, sys::keyring::session_id()) {
            (Some(host), Ok(own)) => Some(host != own),
            _ => None,
        },
        keyring_call_worked: sys::keyring::session_id().is_ok(),
        locked: locked.map(|l| l && landlock_writable_before),
        landlock_writable_before,
    })
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Whether a path leads nowhere, links followed.
fn absent(path: &Path) -> bool {
    matches!(rustix::fs::stat(path), Err(Errno::NOENT | Errno::NOTDIR))
}

fn create(path: &str) -> Result<OwnedFd, Errno> {
    create_at(Path::new(path))
}

fn create_at(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))
}

/// Refused as a thing that may not be changed; anything else (success, a missing path) is not this refusal.
fn refused<T>(result: &Result<T, Errno>) -> bool {
    matches!(result, Err(Errno::ROFS | Errno::ACCESS | Errno::PERM))
}

fn run(shared: &Shared<'_>, host: &HostView, controls: &Controls, seen: &mut Seen) {
    let c = &shared.plan.containment;
    let proc = !c.gaps.contains_key(&Protection::Proc);
    seen.note(Canary::NamespaceIdentity, proc.then(|| namespaces_differ(c, host)));
    seen.note(Canary::PidView, Some(rustix::process::getpid().as_raw_nonzero().get() < 64));
    seen.note(Canary::ReadOnly, Some(read_only(c)));
    seen.note(Canary::MountsLocked, controls.locked);
    seen.note(Canary::Protected, protected(c));
    seen.note(Canary::Masked, masked(c));
    seen.note(Canary::Identity, Some(identity(c)));
    seen.note(Canary::Keyring, controls.keyring_fresh);
    seen.note(Canary::CapabilitySets, Some(capability_sets()));
    if !c.gaps.contains_key(&Protection::Seccomp) {
        seen.note(Canary::FilterAnswers, Some(filter_answers(controls, c.seccomp.browser)));
        seen.note(Canary::ForeignAbi, foreign_abi());
    }
    if c.landlock.abi > 0 {
        let closed = create(&format!("{LANDLOCK_PLACE}/.after")).err() == Some(Errno::ACCESS);
        seen.note(Canary::LandlockWrite, Some(controls.landlock_writable_before && closed));
    }
    if proc {
        seen.note(Canary::InitClosed, Some(init_closed()));
        seen.note(Canary::ProcMasked, Some(proc_masked()));
    }
    seen.note(Canary::ScratchWritable, Some(scratch_writable(c)));
    seen.note(Canary::CachesLayered, caches_layered(c));
}

fn network(shared: &Shared<'_>, controls: &Controls, seen: &mut Seen) {
    let c = &shared.plan.containment;
    if c.landlock.scope {
        seen.note(Canary::LandlockScope, Some(scope_holds(controls)));
    }
    if c.landlock.deny_tcp {
        seen.note(Canary::LandlockTcp, Some(controls.tcp.as_ref().is_some_and(tcp_denied)));
    }
    if c.own_network {
        seen.note(Canary::NoRoute, no_route(c, controls));
    }
}

fn namespaces_differ(c: &Containment, host: &HostView) -> bool {
    NAMESPACES.iter().zip(&host.namespaces).all(|(name, host)| {
        let shared = *name == "net" && !c.own_network;
        match (namespace_id(name), host) {
            (Some(own), Some(host)) => (own == *host) == shared,
            // The owner has no such namespace type to compare with; a kernel without it cannot share it.
            (_, None) => true,
            (None, Some(_)) => false,
        }
    })
}

fn read_only(c: &Containment) -> bool {
    let flags_say =
        |path: &Path| rustix::fs::statvfs(path).is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::RDONLY));
    let mut held = flags_say(Path::new("/")) && refused(&create("/.canary"));
    for op in &c.fs {
        if let FsOp::Bind { at, writable: false, from } = op {
            held &= flags_say(at.as_path());
            if c.sources.get(from.0 as usize).is_some_and(|s| s.fact.kind == Kind::Dir) {
                held &= refused(&create_at(&at.as_path().join(".stockade-canary")));
            }
        }
    }
    held
}

fn protected(c: &Containment) -> Option<bool> {
    let mut any = None;
    for op in &c.fs {
        let FsOp::Protect { at, kind } = op else { continue };
        let denied = match kind {
            Kind::Dir => refused(&create_at(&at.as_path().join(".stockade-canary"))),
            // Append and no truncation: were it not refused, nothing would change.
            _ => refused(&rustix::fs::open(
                at.as_path(),
                OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK,
                Mode::empty(),
            )),
        };
        any = Some(any.unwrap_or(true) && denied);
    }
    any
}

fn masked(c: &Containment) -> Option<bool> {
    let mut any = None;
    for op in &c.fs {
        let FsOp::Mask { at, kind } = op else { continue };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let empty = match rustix::fs::open(at.as_path(), flags, Mode::empty()) {
            // A path behind another mask cannot be reached at all.
            Err(Errno::NOENT | Errno::ACCESS) => true,
            // Nothing was there to be covered.
            Err(_) => *kind == Kind::Other && absent(at.as_path()),
            Ok(fd) => match rustix::fs::fstat(&fd).map(|s| kind_of(&s)) {
                Ok(Kind::Dir) => rustix::fs::Dir::read_from(&fd)
                    .is_ok_and(|dir| dir.flatten().all(|e| matches!(e.file_name().to_bytes(), b"." | b".."))),
                Ok(_) => rustix::io::read(&fd, &mut [0u8; 1]) == Ok(0),
                Err(_) => false,
            },
        };
        any = Some(any.unwrap_or(true) && empty);
    }
    any
}

/// Before the filter, after close_range: whether exactly the standard descriptors and ours are open.
fn descriptors(keep: &[RawFd]) -> Option<bool> {
    let dir = rustix::fs::open(
        "/proc/self/fd",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let own = dir.as_raw_fd();
    let own_stat = rustix::fs::fstat(&dir).ok()?;
    let listing = rustix::fs::Dir::read_from(&dir).ok()?;
    let mut held = true;
    let mut count = 0;
    for entry in listing.flatten() {
        let name = entry.file_name().to_bytes();
        if let Some(number) = std::str::from_utf8(name).ok().and_then(|n| n.parse::<RawFd>().ok()) {
            count += 1;
            // `read_from` opens the same directory once more; both are ours and transient.
            let listing = || {
                rustix::fs::statat(&dir, entry.file_name(), rustix::fs::AtFlags::empty())
                    .is_ok_and(|s| (s.st_dev, s.st_ino) == (own_stat.st_dev, own_stat.st_ino))
            };
            held &= number <= 2 || keep.contains(&number) || number == own || listing();
        }
    }
    Some(held && count > 0)
}

fn identity(c: &Containment) -> bool {
    let inside = c.ids.inside;
    let uid = rustix::process::getuid().as_raw() == inside && rustix::process::geteuid().as_raw() == inside;
    let gid = rustix::process::getgid().as_raw() == inside && rustix::process::getegid().as_raw() == inside;
    // Rootless, the kernel does not let groups be dropped; they show as the overflow id and name nothing here.
    let groups = rustix::process::getgroups().is_ok_and(|groups| {
        groups.iter().all(|g| g.as_raw() == inside || g.as_raw() == 65_534)
            && (c.mode == crate::plan::Mode::Rootless || groups.is_empty())
    });
    uid && gid && groups
}

fn capability_sets() -> bool {
    let bounding_empty = (0..64u32).all(|n| {
        let capability = rustix::thread::CapabilitySet::from_bits_retain(1 << n);
        !matches!(rustix::thread::capability_is_in_bounding_set(capability), Ok(true))
    });
    let ambient_empty = (0..64u32).all(|n| {
        let capability = rustix::thread::CapabilitySet::from_bits_retain(1 << n);
        !matches!(rustix::thread::capability_is_in_ambient_set(capability), Ok(true))
    });
    let bits = rustix::thread::capabilities_secure_bits().is_ok_and(|b| b.bits() == caps::SECUREBITS);
    let no_new_privs = rustix::thread::no_new_privs() == Ok(true);
    caps::none_held() && bounding_empty && ambient_empty && bits && no_new_privs
}

fn filter_answers(controls: &Controls, browser: bool) -> bool {
    use sys::seccomp::try_call;
    let answer = |nr: i64, args: [u32; 4]| try_call(nr, args).map_err(|e| e.raw_os_error().unwrap_or(0));
    let eperm = Err(libc::EPERM);
    let enosys = Err(libc::ENOSYS);
    // A mount namespace of its own nobody is granted.
    let namespaces = libc::CLONE_NEWUSER | if browser { libc::CLONE_NEWNS } else { 0 };
    // Controls: a call of the same kind that is allowed, and those that worked before the restriction.
    filter_mode()
        && answer(libc::SYS_getpid, [0; 4]).is_ok()
        && answer(libc::SYS_unshare, [namespaces as u32, 0, 0, 0]) == eperm
        && answer(libc::SYS_mount, [0; 4]) == eperm
        && answer(libc::SYS_ptrace, [u32::MAX, 0, 0, 0]) == eperm
        && controls.keyring_call_worked
        && sys::keyring::session_id()
            .is_err_and(|e| matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)))
        && answer(libc::SYS_io_uring_setup, [0; 4]) == enosys
        && answer(libc::SYS_clone3, [0; 4]) == enosys
        && (cfg!(not(target_arch = "x86_64")) || answer(0x4000_0000 | libc::SYS_getpid, [0; 4]) == enosys)
}

/// `None` on an architecture without a foreign gate.
fn foreign_abi() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    {
        let child = |foreign: bool| -> Option<i32> {
            // clone3 is refused in here by design, so the plain call is used.
            match sys::clone::fork().ok()? {
                0 => {
                    if foreign {
                        sys::seccomp::foreign_abi_getpid();
                    }
                    sys::clone::exit_now(0)
                }
                pid => sys::wait::wait4(pid, true).ok()?.map(|r| r.status),
            }
        };
        // The control exits by itself; the other dies of SIGSYS. A kernel without the gate gives SIGSEGV.
        let (control, foreign) = (child(false)?, child(true)?);
        Some(control == 0 && matches!(foreign & 0x7f, libc::SIGSYS | libc::SIGSEGV))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

fn scope_holds(controls: &Controls) -> bool {
    let connect = |name: &[u8]| -> Result<(), Errno> {
        rustix::net::connect(&unix_socket()?, &SocketAddrUnix::new_abstract_name(name)?)
    };
    let own = || -> Result<(), Errno> {
        let name = [controls.abstract_name.as_slice(), b"-own"].concat();
        let socket = unix_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
        rustix::net::listen(&socket, 4)?;
        connect(&name)
    };
    let init = rustix::process::Pid::INIT;
    let outside = rustix::process::test_kill_process(init) == Err(Errno::PERM);
    let inside = rustix::process::test_kill_process(rustix::process::getpid()).is_ok();
    connect(&controls.abstract_name) == Err(Errno::PERM) && own().is_ok() && outside && inside
}

fn tcp_denied(socket: &OwnedFd) -> bool {
    let address = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9));
    rustix::net::connect(socket, &address) == Err(Errno::ACCESS)
}

fn no_route(c: &Containment, controls: &Controls) -> Option<bool> {
    let to = |ip: [u8; 4]| SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), 9));
    // TEST-NET-1 (RFC 5737) and the link-local address of metadata services: a datagram socket's connect only
    // looks up the route, nothing is sent.
    let socket = controls.udp.as_ref()?;
    let closed = [[192, 0, 2, 1], [169, 254, 169, 254]]
        .iter()
        .all(|ip| rustix::net::connect(socket, &to(*ip)) == Err(Errno::NETUNREACH));
    let own = rustix::net::connect(controls.loopback_udp.as_ref()?, &to([127, 0, 0, 1]));
    let own_as_planned = if c.loopback { own.is_ok() } else { own.is_err() };
    Some(closed && own_as_planned)
}

fn init_closed() -> bool {
    let own = rustix::fs::open("/proc/self/environ", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok();
    let closed = ["environ", "mem", "maps", "exe", "cwd", "root", "fd/0"].iter().all(|name| {
        let opened =
            rustix::fs::open(format!("/proc/1/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        matches!(opened, Err(Errno::NOENT | Errno::ACCESS | Errno::PERM))
    });
    own && closed
}

fn proc_masked() -> bool {
    let own = rustix::fs::open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok();
    let closed = ["keys", "key-users", "kallsyms", "timer_list", "kcore", "sched_debug", "sysrq-trigger"]
        .iter()
        .all(|name| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match rustix::fs::open(format!("/proc/{name}"), flags, Mode::empty()) {
                Ok(fd) => rustix::io::read(&fd, &mut [0u8; 1]) == Ok(0),
                Err(e) => matches!(e, Errno::NOENT | Errno::ACCESS | Errno::PERM),
            }
        });
    let sys = rustix::fs::statvfs("/proc/sys").is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::RDONLY));
    own && closed && sys
}

fn caches_layered(c: &Containment) -> Option<bool> {
    /// `OVERLAYFS_SUPER_MAGIC`, linux/magic.h.
    const OVERLAY: i64 = 0x794c_7630;
    let mut any = None;
    let layered = |layer| matches!(layer, CacheLayer::Kept | CacheLayer::Throwaway);
    for cache in c.caches.iter().filter(|c| layered(c.layer)) {
        let path = cache.at.as_path().join(".stockade-canary");
        let held = rustix::fs::statfs(cache.at.as_path()).is_ok_and(|s| s.f_type == OVERLAY)
            && create_at(&path).is_ok()
            && rustix::fs::unlink(&path).is_ok();
        any = Some(any.unwrap_or(true) && held);
    }
    any
}

fn scratch_writable(c: &Containment) -> bool {
    let Some(dir) = c.landlock.rules.iter().find(|r| {
        r.access == LandlockAccess::Tree
            && c.fs.iter().any(|op| matches!(op, FsOp::Scratch { at, .. } if *at == r.at))
    }) else {
        return true;
    };
    let path = dir.at.as_path().join(".stockade-canary");
    let made = create_at(&path).is_ok();
    made && rustix::fs::unlink(&path).is_ok() && !path.as_os_str().as_bytes().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_canary_has_a_bit_of_its_own() {
        let mut bits = 0u64;
        for canary in Canary::ALL {
            let bit = 1u64 << *canary as u8;
            assert_eq!(bits & bit, 0, "{}", canary.name());
            bits |= bit;
        }
    }

    #[test]
    fn a_canary_that_did_not_run_says_nothing() {
        let mut seen = Seen::default();
        seen.note(Canary::ReadOnly, Some(true));
        seen.note(Canary::Masked, Some(false));
        seen.note(Canary::Keyring, None);
        assert_eq!(seen.get(Canary::ReadOnly), Some(true));
        assert_eq!(seen.get(Canary::Masked), Some(false));
        assert_eq!(seen.get(Canary::Keyring), None);
    }
}

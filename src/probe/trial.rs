//! The sacrificial child: PID 1 of fresh namespaces, made like an executor's init, that tries each mechanism
//! once and reports one fixed record per step. Parent: the probing process, which writes the id maps, reads the
//! records and reaps it. It holds the host view's mounts as private copies and may do anything in its own
//! namespaces; when it exits the kernel takes everything with it.

use super::host::ProbeError;
use super::proc;
use crate::sys::clone::{Cloned, clone3, exit_now, unshare};
use crate::sys::mount::{self, Attrs};
use crate::sys::wait::wait4;
use crate::sys::{landlock as landlock_call, link, seccomp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change,
    move_mount, open_tree,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// How long the trial may take; a healthy one needs a few milliseconds.
const TRIAL_SECONDS_MAX: i64 = 10;
const RECORD_BYTES: usize = 8;
/// The 65,536 ids after the block from which runs lease theirs by default: never in use.
const TRIAL_IDS_BASE: u32 = 2_147_352_576;
const TRIAL_IDS: u32 = 65_536;

/// The namespaces of an executor.
pub const NAMESPACES: [(u64, &str); 7] = [
    (libc::CLONE_NEWUSER as u64, "user"),
    (libc::CLONE_NEWNS as u64, "mount"),
    (libc::CLONE_NEWPID as u64, "PID"),
    (libc::CLONE_NEWNET as u64, "network"),
    (libc::CLONE_NEWIPC as u64, "IPC"),
    (libc::CLONE_NEWUTS as u64, "UTS"),
    (libc::CLONE_NEWCGROUP as u64, "cgroup"),
];

/// What the child does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// Becomes uid and gid 0 of its map.
    Ids,
    /// Makes its mounts private: a mount(2) that needs CAP_SYS_ADMIN.
    Private,
    /// Sets its host name.
    Hostname,
    /// Brings up its loopback interface.
    Loopback,
    /// Makes a tmpfs with fsopen and attaches it.
    Tmpfs,
    /// Clones a tree.
    Tree,
    /// Makes the tree read-only, recursively.
    SetAttr,
    /// Attaches it, and finds it read-only.
    Attach,
    /// Mounts a procfs of its own and sees itself in it.
    Proc,
    /// Mounts an overlay and writes through it.
    Overlay,
    /// Mounts a devpts and opens a terminal.
    Devpts,
    /// Makes the tmpfs the root, and goes back.
    Pivot,
    /// Unshares a time namespace.
    Time,
    /// Restricts itself by Landlock and is refused a file.
    Landlock,
    /// Unshares a second user and mount namespace.
    Second,
    /// Installs a filter and is refused a call.
    Seccomp,
}

const STEPS: [Step; 16] = [
    Step::Ids,
    Step::Private,
    Step::Hostname,
    Step::Loopback,
    Step::Tmpfs,
    Step::Tree,
    Step::SetAttr,
    Step::Attach,
    Step::Proc,
    Step::Overlay,
    Step::Devpts,
    Step::Pivot,
    Step::Time,
    Step::Landlock,
    Step::Second,
    Step::Seccomp,
];

impl Step {
    /// For messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Ids => "taking the mapped ids",
            Self::Private => "mount(2) in the new mount namespace",
            Self::Hostname => "sethostname in the new UTS namespace",
            Self::Loopback => "bringing up loopback in the new network namespace",
            Self::Tmpfs => "fsopen, fsmount and move_mount of a tmpfs",
            Self::Tree => "open_tree with OPEN_TREE_CLONE",
            Self::SetAttr => "mount_setattr on a cloned tree",
            Self::Attach => "attaching a cloned tree read-only",
            Self::Proc => "mounting a procfs",
            Self::Overlay => "mounting an overlay on tmpfs",
            Self::Devpts => "mounting a devpts",
            Self::Pivot => "pivot_root",
            Self::Time => "unshare of a time namespace",
            Self::Landlock => "restricting a process by Landlock",
            Self::Second => "unshare of a second user and mount namespace",
            Self::Seccomp => "installing a seccomp filter",
        }
    }
}

/// What became of the trial.
#[derive(Debug)]
pub enum Trial {
    /// The clone itself was refused; `namespace` is the one that is to blame.
    NoClone {
        /// errno.
        errno: i32,
        /// Which namespace.
        namespace: &'static str,
    },
    /// An id map could not be written.
    NoMap {
        /// errno.
        errno: i32,
    },
    /// The child ran.
    Ran(Results),
}

/// What the child reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// errno by step, 0 when it worked; `None` when it was not reached.
    steps: [Option<i32>; STEPS.len()],
    /// The child's wait status.
    pub status: i32,
}

impl Results {
    /// errno of `step`: 0 worked, `None` not reached.
    pub fn get(&self, step: Step) -> Option<i32> {
        self.steps.get(step as usize).copied().flatten()
    }

    /// The first of `steps` that did not work, with its errno (`None`: the child died before its end).
    pub fn first_failure(&self, steps: &[Step]) -> Option<(Step, Option<i32>)> {
        steps.iter().find_map(|s| match self.get(*s) {
            Some(0) => None,
            other => Some((*s, other)),
        })
    }

    fn read(records: &[u8], status: i32) -> Self {
        let mut out = Self { status, ..Self::default() };
        for record in records.chunks_exact(RECORD_BYTES) {
            let (step, errno) = record.split_at(4);
            let errno: [u8; 4] = errno.try_into().unwrap_or_default();
            if let Some(slot) = out.steps.get_mut(usize::from(step[0])) {
                *slot = Some(i32::from_le_bytes(errno));
            }
        }
        out
    }
}

/// Runs the trial with the id map that a launch by this process would have.
///
/// # Errors
/// Pipes, procfs or waiting failed: nothing is known about the host then.
pub fn run(privileged: bool) -> Result<Trial, ProbeError> {
    let (go_from, go_to) = pipe_with(PipeFlags::CLOEXEC).map_err(ProbeError::pipe)?;
    let (report_from, report_to) = pipe_with(PipeFlags::CLOEXEC).map_err(ProbeError::pipe)?;
    let all = NAMESPACES.iter().fold(0, |all, (flag, _)| all | flag);
    let (pid, pidfd) = match clone3(all, None) {
        Ok(Cloned::Child) => {
            drop((go_to, report_from));
            // Unwinding must not leave this process on a copy of the caller's stack.
            let _ = std::panic::catch_unwind(|| child(&go_from, &report_to));
            exit_now(0)
        }
        Ok(Cloned::Parent { pid, pidfd }) => (pid, pidfd),
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(0);
            return Ok(blame(errno));
        }
    };
    drop((go_from, report_to));
    let mapped = write_maps(pid, privileged);
    let failure = mapped.err().map(|e| e.raw_os_error().unwrap_or(0));
    let mut records = Vec::new();
    if failure.is_none() {
        let _ = rustix::io::write(&go_to, b"g");
        records = collect(&report_from);
    }
    // Without its go the child sees the end of the pipe and exits; whatever it does, this ends it.
    drop(go_to);
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let status = wait4(pid, true).map_err(ProbeError::Wait)?.map_or(0, |r| r.status);
    match failure {
        Some(errno) => Ok(Trial::NoMap { errno }),
        None => Ok(Trial::Ran(Results::read(&records, status))),
    }
}

/// Which namespace the kernel refuses.
fn blame(errno: i32) -> Trial {
    let user = libc::CLONE_NEWUSER as u64;
    for (flag, namespace) in NAMESPACES {
        if let Err(e) = lone(user | flag) {
            return Trial::NoClone { errno: e.raw_os_error().unwrap_or(errno), namespace };
        }
    }
    Trial::NoClone { errno, namespace: "combined" }
}

/// A child in the given namespaces that exits at once.
fn lone(flags: u64) -> io::Result<()> {
    match clone3(flags, None)? {
        Cloned::Child => exit_now(0),
        Cloned::Parent { pid, .. } => wait4(pid, true).map(drop),
    }
}

fn write_maps(pid: i32, privileged: bool) -> io::Result<()> {
    let put = |name: &str, text: String| -> io::Result<()> {
        let file = fs::open(format!("/proc/{pid}/{name}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The kernel takes a map in one write only. user_namespaces(7).
        if rustix::io::write(file, text.as_bytes())? == text.len() { Ok(()) } else { Err(Errno::IO.into()) }
    };
    if privileged {
        put("gid_map", format!("0 {TRIAL_IDS_BASE} {TRIAL_IDS}\n"))?;
        put("uid_map", format!("0 {TRIAL_IDS_BASE} {TRIAL_IDS}\n"))
    } else {
        put("setgroups", "deny".to_owned())?;
        put("gid_map", format!("0 {} 1\n", rustix::process::getegid().as_raw()))?;
        put("uid_map", format!("0 {} 1\n", rustix::process::geteuid().as_raw()))
    }
}

/// Reads records until the child is done, or has had its time.
fn collect(from: &OwnedFd) -> Vec<u8> {
    let mut out = Vec::new();
    let mut buffer = [0; RECORD_BYTES * STEPS.len()];
    while out.len() < RECORD_BYTES * STEPS.len() {
        let mut fds = [PollFd::new(from, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: TRIAL_SECONDS_MAX, tv_nsec: 0 })) {
            Err(Errno::INTR) => continue,
            Ok(n) if n > 0 => {}
            _ => break,
        }
        match rustix::io::read(from, &mut buffer) {
            Err(Errno::INTR) => {}
            Ok(n) if n > 0 => out.extend_from_slice(&buffer[..n]),
            _ => break,
        }
    }
    out
}

// ---- the child ------------------------------------------------------------------------------------------

fn child(go: &OwnedFd, report: &OwnedFd) {
    let mut byte = [0];
    if !matches!(rustix::io::read(go, &mut byte), Ok(1)) {
        return;
    }
    let mut place = Place::default();
    for step in STEPS {
        let errno = match place.try_step(step) {
            Ok(()) => 0,
            Err(e) => e.raw_os_error(),
        };
        let mut record = [0; RECORD_BYTES];
        record[0] = step as u8;
        record[4..].copy_from_slice(&errno.to_le_bytes());
        // With the parent gone there is nobody to report to.
        if rustix::io::write(report, &record) != Ok(RECORD_BYTES) {
            return;
        }
    }
}

/// The tmpfs that the steps build in.
#[derive(Default)]
struct Place {
    base: &'static str,
    tmpfs: Option<OwnedFd>,
    tree: Option<OwnedFd>,
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

impl Place {
    fn try_step(&mut self, step: Step) -> Result<(), Errno> {
        match step {
            Step::Ids => ids(),
            Step::Private => mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC),
            Step::Hostname => rustix::system::sethostname(b"probe"),
            Step::Loopback => {
                let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
                link::loopback_up(socket.as_fd()).map_err(|e| errno(&e))
            }
            // The tree is cloned before the tmpfs covers it.
            Step::Tmpfs => self.tmpfs(),
            Step::Tree => self.tree.as_ref().map(drop).ok_or(Errno::NOSYS),
            Step::SetAttr => {
                let attrs = Attrs { set: mount::RDONLY | mount::NOSUID | mount::NODEV, ..Attrs::default() };
                let tree = self.tree.as_ref().ok_or(Errno::NOSYS)?;
                mount::set_attrs(tree.as_fd(), c"", true, attrs).map_err(|e| errno(&e))
            }
            Step::Attach => self.attach(),
            Step::Proc => self.proc(),
            Step::Overlay => self.overlay(),
            Step::Devpts => self.devpts(),
            Step::Pivot => self.pivot(),
            Step::Time => unshare(libc::CLONE_NEWTIME as u64).map_err(|e| errno(&e)),
            Step::Landlock => landlock(),
            Step::Second => {
                unshare(libc::CLONE_NEWUSER as u64 | libc::CLONE_NEWNS as u64).map_err(|e| errno(&e))
            }
            Step::Seccomp => filter(),
        }
    }

    fn root(&self) -> Result<&OwnedFd, Errno> {
        self.tmpfs.as_ref().ok_or(Errno::NOSYS)
    }

    fn dir(&self, name: &str) -> Result<(), Errno> {
        fs::mkdirat(self.root()?, name, Mode::RWXU)
    }

    fn put(&self, mount: &OwnedFd, name: &str) -> Result<(), Errno> {
        self.dir(name)?;
        move_mount(mount, "", self.root()?, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    }

    fn tmpfs(&mut self) -> Result<(), Errno> {
        let is_dir = |p: &&str| {
            fs::stat(*p).is_ok_and(|s| fs::FileType::from_raw_mode(s.st_mode) == fs::FileType::Directory)
        };
        self.base = ["/usr", "/etc", "/dev", "/tmp"].into_iter().find(is_dir).ok_or(Errno::NOENT)?;
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        self.tree = open_tree(CWD, self.base, flags).ok();
        let mount = new_fs("tmpfs", &[("size", "1m"), ("mode", "0700")], &[])?;
        move_mount(&mount, "", CWD, self.base, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        self.tmpfs = Some(mount);
        Ok(())
    }

    fn attach(&self) -> Result<(), Errno> {
        self.put(self.tree.as_ref().ok_or(Errno::NOSYS)?, "tree")?;
        match fs::mkdirat(self.root()?, "tree/stockade-probe", Mode::RWXU) {
            Err(Errno::ROFS) => Ok(()),
            Err(e) => Err(e),
            Ok(()) => {
                let _ = fs::unlinkat(self.root()?, "tree/stockade-probe", AtFlags::REMOVEDIR);
                Err(Errno::ROFS)
            }
        }
    }

    fn proc(&self) -> Result<(), Errno> {
        self.put(&new_fs("proc", &[("hidepid", "invisible")], &[])?, "proc")?;
        let me = fs::readlinkat(self.root()?, "proc/self", Vec::new())?;
        if me.to_bytes() == b"1" { Ok(()) } else { Err(Errno::SRCH) }
    }

    fn overlay(&self) -> Result<(), Errno> {
        for name in ["lower", "upper", "work"] {
            self.dir(name)?;
        }
        let at = |name| format!("{}/{name}", self.base);
        let (lower, upper, work) = (at("lower"), at("upper"), at("work"));
        let options = [("lowerdir", &*lower), ("upperdir", &*upper), ("workdir", &*work)];
        self.put(&new_fs("overlay", &options, &["userxattr"])?, "merged")?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        fs::openat(self.root()?, "merged/file", flags, Mode::RWXU)?;
        fs::statat(self.root()?, "upper/file", AtFlags::SYMLINK_NOFOLLOW).map(drop)
    }

    /// Each of the two roots lies on the other's top in turn: pivot_root(2), "pivot_root(".", ".")". What is on top in the end is
    /// taken away, since a process whose root is covered counts as one in a chroot. The steps after it look below the root that
    /// there was.
    fn pivot(&self) -> Result<(), Errno> {
        let before = fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::process::fchdir(self.root()?)?;
        rustix::process::pivot_root(c".", c".")?;
        rustix::process::fchdir(&before)?;
        rustix::process::pivot_root(c".", c".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }

    fn devpts(&self) -> Result<(), Errno> {
        self.put(&new_fs("devpts", &[("ptmxmode", "0666"), ("mode", "0620")], &[])?, "pts")?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        fs::openat(self.root()?, "pts/ptmx", flags, Mode::empty()).map(drop)
    }
}

fn new_fs(kind: &str, options: &[(&str, &str)], flags: &[&str]) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(&context, *name, *value)?;
    }
    for name in flags {
        fsconfig_set_flag(&context, *name)?;
    }
    fsconfig_create(&context)?;
    let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    // devpts holds devices.
    let attrs = if kind == "devpts" { MountAttrFlags::MOUNT_ATTR_NOSUID } else { attrs };
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

fn ids() -> Result<(), Errno> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    // Groups can be dropped only where the map is a range; a single id has setgroups denied.
    match rustix::thread::set_thread_groups(&[]) {
        Ok(()) | Err(Errno::PERM) => {}
        Err(e) => return Err(e),
    }
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

/// Denies itself all reading, and then tries to read what it could before.
fn landlock() -> Result<(), Errno> {
    use landlock::{AccessFs, Ruleset, RulesetAttr, RulesetStatus};
    landlock_call::abi().map_err(|e| errno(&e))?;
    let read = || fs::open("/proc/self/cmdline", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let control = read();
    let status = Ruleset::default()
        .handle_access(AccessFs::ReadFile)
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(|_| Errno::OPNOTSUPP)?;
    match (status.ruleset, control, read()) {
        (RulesetStatus::NotEnforced, ..) => Err(Errno::OPNOTSUPP),
        (_, Ok(_), Ok(_)) => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    }
}

/// Installs a filter that answers getppid with an errno that it never has.
fn filter() -> Result<(), Errno> {
    // Load the number; when it is getppid's, fall through to the errno. seccomp(2).
    const LOAD_NR: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let nr = libc::SYS_getppid;
    let insn = |code, jt, jf, k| seccomp::Insn { code, jt, jf, k };
    let program = [
        insn(LOAD_NR, 0, 0, 0),
        insn(JUMP_EQ, 0, 1, nr as u32),
        insn(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EXDEV as u32),
        insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    rustix::thread::set_no_new_privs(true)?;
    seccomp::install(&program).map_err(|e| errno(&e))?;
    match seccomp::try_call(nr, [0; 4]) {
        Err(e) if e.raw_os_error() == Some(libc::EXDEV) => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Checks that `/proc` is a procfs, of our own PID namespace: maps are written through it by number.
pub fn check_proc() -> Result<(), ProbeError> {
    let fd = fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| ProbeError::Proc { file: "", source: e.into() })?;
    let magic = fs::fstatfs(&fd).map_err(|e| ProbeError::Proc { file: "", source: e.into() })?.f_type;
    let me = fs::readlinkat(&fd, "self", Vec::new())
        .map_err(|e| ProbeError::Proc { file: "self", source: e.into() })?;
    let pid = rustix::process::getpid().as_raw_nonzero().to_string();
    if magic != fs::PROC_SUPER_MAGIC || me.to_bytes() != pid.as_bytes() {
        return Err(ProbeError::ForeignProc);
    }
    match fs::statat(&fd, "self/task", AtFlags::empty()) {
        // One subdirectory per thread. proc(5).
        Ok(stat) if stat.st_nlink > 3 => Err(ProbeError::Threads),
        _ => Ok(()),
    }
}

/// Lines of the mount table that cover parts of `/proc` and so make the kernel refuse a fresh one.
pub fn proc_covers(mounts: &[proc::MountLine]) -> Vec<String> {
    let proc = std::path::Path::new("/proc");
    mounts
        .iter()
        .filter(|m| m.point != proc && m.point.starts_with(proc))
        // Over an empty directory a mount hides nothing; this one is on most hosts.
        .filter(|m| !m.point.starts_with("/proc/sys/fs/binfmt_misc"))
        .map(|m| {
            use std::os::unix::ffi::OsStrExt as _;
            crate::base::text::visible(m.point.as_os_str().as_bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbered_in_order() {
        for (n, step) in STEPS.iter().enumerate() {
            assert_eq!(*step as usize, n);
        }
    }

    #[test]
    fn records_in_any_shape() {
        let mut records = Vec::new();
        for (step, errno) in [(Step::Ids, 0), (Step::Private, libc::EPERM)] {
            records.extend_from_slice(&[step as u8, 0, 0, 0]);
            records.extend_from_slice(&i32::to_le_bytes(errno));
        }
        records.extend_from_slice(&[200, 0, 0, 0, 1, 0, 0, 0, 9, 9]);
        let got = Results::read(&records, 9);
        assert_eq!(got.get(Step::Ids), Some(0));
        assert_eq!(got.get(Step::Private), Some(libc::EPERM));
        assert_eq!(got.get(Step::Hostname), None);
        assert_eq!(got.first_failure(&[Step::Ids]), None);
        assert_eq!(got.first_failure(&[Step::Ids, Step::Private]), Some((Step::Private, Some(libc::EPERM))));
        assert_eq!(got.first_failure(&[Step::Seccomp]), Some((Step::Seccomp, None)));
    }

    #[test]
    fn covers_of_proc() {
        let table =
            b"1 0 0:1 / /proc rw - proc proc rw\n2 1 0:2 / /proc/sys/fs/binfmt_misc rw - autofs x rw\n\
                      3 1 0:3 / /proc/kcore rw - tmpfs x rw\n4 1 0:3 / /process rw - tmpfs x rw\n";
        assert_eq!(proc_covers(&proc::parse_mounts(table)), ["/proc/kcore"]);
    }
}

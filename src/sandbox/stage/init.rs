//! **Process:** init, PID 1 of the executor. **Parent:** the owner, by clone. **Namespaces:** the outer user
//! namespace and everything in it. **May still:** everything, within that user namespace, until the command has
//! started; then it only reaps. Holds nothing of the caller's: blank environment, a closed list of descriptors,
//! not dumpable. Dies with the owner: by signal and by the end of the control socket.

use super::listener::{Listener, Taken};
use super::trace::{self, Tracer};
use super::wire::{Answers, AtStep, Message, StageFault, Step, receive, send};
use super::{network, payload};
use crate::plan::{FsOp, Mode, Plan};
use crate::sandbox::root::{self, Root};
use crate::sandbox::sources::{self, Trees};
use crate::sandbox::{Mutant, Mutants, caps, landlock, rlimits, verify};
use crate::sys;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::process::{DumpableBehavior, Pid};
use rustix::thread::{CapabilitiesSecureBits, Gid, Uid};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often the mount points of masks and protections are compared even without a notification: a rename of
/// one by the host gives none.
const MASK_CHECK_EVERY: Duration = Duration::from_millis(250);
const MASK_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Where the command's standard descriptors come from.
#[derive(Debug)]
pub enum Stdio {
    /// Pipes (or `/dev/null`) of the owner's making.
    Pipes([OwnedFd; 3]),
    /// A terminal, made in the executor's own devpts.
    Terminal,
}

/// All that init is given. Owned by the process that runs it.
#[derive(Debug)]
pub struct Task<'plan> {
    /// What to do.
    pub plan: &'plan Plan,
    /// For the command.
    pub stdio: Stdio,
    /// Namespaces of the owner, to compare with; without it there are no canaries.
    pub host: Option<verify::HostView>,
    /// Whether the command is traced.
    pub trace: bool,
    /// Held until its end.
    pub locks: &'plan [OwnedFd],
    /// Switched-off protections.
    pub mutants: Mutants,
}

/// The stage. `control` is the line to the owner. Never returns to the owner's code.
pub fn run(task: Task<'_>, control: &OwnedFd) -> ! {
    if let Err(fault) = stages(task, control) {
        // When the owner is gone there is nobody to tell; this process ends next in any case.
        let _ = send(control.as_fd(), Message::Fault(fault), &[]);
    }
    sys::clone::exit_now(125)
}

fn stages(task: Task<'_>, control: &OwnedFd) -> Result<(), StageFault> {
    let Task { plan, stdio, host, trace, locks, mutants } = task;
    let c = &plan.containment;
    if !mutants.off(Mutant::CloseRange) {
        keep_only(control, &stdio, locks)?;
    }
    die_with_owner()?;
    sys::signals::reset().at(Step::CloseDescriptors)?;
    let network = if c.own_network && !mutants.off(Mutant::NetworkNamespace) {
        Some(network::begin(c.loopback)?)
    } else {
        None
    };
    let mut namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if c.time_namespace {
        namespaces |= libc::CLONE_NEWTIME;
    }
    sys::clone::unshare(namespaces as u64).at(Step::Unshare)?;
    // What needs no identity is done while the owner still prepares it.
    sys::memory::wipe_start_block();
    rustix::process::umask(FileMode::empty());
    rustix::system::sethostname(c.hostname.as_bytes()).at(Step::HostName)?;
    root::make_private(mutants)?;
    let prepared = payload::Prepared::of(plan, trace)?;
    let trees = await_owner(control)?;
    become_init(plan, mutants)?;
    die_with_owner()?;

    let directory = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let host_proc = rustix::fs::open("/proc", directory, FileMode::empty()).at(Step::OpenSources)?;
    let own_proc = rustix::fs::open("/proc/self", directory, FileMode::empty()).at(Step::OpenSources)?;
    let trees = match c.mode {
        Mode::Privileged => Trees::of(trees, c.sources.len())?,
        Mode::Rootless => caps::without_file_override(|| sources::open(&c.sources, mutants))?,
    };
    let mut root = Root::new(c, trees, mutants)?;
    root.build()?;
    root.enter()?;
    if let Some(network) = network {
        network.join()?;
    }
    enter_cgroups(control)?;
    say(control, Message::Entered, Step::CgroupNamespace)?;
    let rules = if mutants.off(Mutant::Landlock) { None } else { landlock::build(&c.landlock)? };
    let terminal = match &stdio {
        Stdio::Terminal => Some(open_terminal(plan).at(Step::Terminal)?),
        Stdio::Pipes(_) => None,
    };
    rlimits::apply(&c.limits)?;
    say(control, Message::Built, Step::AwaitGo)?;

    let shared = payload::Shared {
        plan,
        prepared: &prepared,
        rules: rules.as_ref(),
        host_proc: &host_proc,
        host: host.as_ref(),
        mutants,
    };
    let io = match (&stdio, &terminal) {
        (_, Some((_, slave))) => payload::Io::Terminal(slave),
        (Stdio::Pipes(pipes), None) => payload::Io::Pipes(pipes),
        (Stdio::Terminal, None) => {
            return Err(StageFault { step: Step::Terminal, errno: libc::EBADF, index: 0 });
        }
    };
    let protocol = StageFault { step: Step::AwaitGo, errno: libc::EPROTO, index: u32::MAX };
    if host.is_some() {
        if hear(control, Step::AwaitGo)? != (Message::Go { verify: true }) {
            return Err(protocol);
        }
        let seen = verify::in_sibling(&shared)?;
        say(control, Message::Canaries { held: seen.held, ran: seen.ran }, Step::Canary)?;
    }
    let signals = child_signals().at(Step::Fork)?;
    // It goes as far as the restrictions while the owner decides; that says nothing when the verdict is not good
    // enough, and the line ends.
    let waiting = payload::start(&shared, io)?;
    let watch = MaskWatch::new(plan, own_proc).at(Step::MaskLost)?;
    if hear(control, Step::AwaitGo)? != (Message::Go { verify: false }) {
        return Err(protocol);
    }
    if let Some((master, _)) = &terminal {
        send(control.as_fd(), Message::Terminal, &[master.as_fd()]).at(Step::Terminal)?;
    }
    waiting.release()?;
    let Taken { listener, answers } = waiting.listener(plan)?;
    let tracer = if trace { Some(Tracer::begin(waiting.pid())?) } else { None };
    let started = waiting.go(answers, prepared.waits)?;
    drop(terminal);
    drop(stdio);
    drop(rules);
    drop(host_proc);
    serve(control, &signals, started, watch, Eyes { listener, answers, tracer })
}

/// Closes everything but what this stage was given. A clone does not exec, so close-on-exec does nothing for it:
/// the lines of other executors, and whatever the owner holds, end here.
fn keep_only(control: &OwnedFd, stdio: &Stdio, locks: &[OwnedFd]) -> Result<(), StageFault> {
    let mut keep = vec![control.as_raw_fd()];
    keep.extend(locks.iter().map(AsRawFd::as_raw_fd));
    if let Stdio::Pipes(pipes) = stdio {
        keep.extend(pipes.iter().map(AsRawFd::as_raw_fd));
    }
    sys::fds::close_all_but(&keep).at(Step::CloseDescriptors)?;
    // The standard numbers stay taken, so that no descriptor of ours lies where the command's will be placed.
    sys::fds::occupy_standard().at(Step::CloseDescriptors)
}

/// The signal of prctl(2) PR_SET_PDEATHSIG is lost at every change of identity, so it is set anew after those;
/// an owner that died before is noticed at the next read of the control socket.
fn die_with_owner() -> Result<(), StageFault> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .at(Step::DieWithOwner)
}

fn say(control: &OwnedFd, message: Message, step: Step) -> Result<(), StageFault> {
    send(control.as_fd(), message, &[]).at(step)
}

/// The owner's next message. Without an owner there is nothing left to do, and nobody to tell.
fn hear(control: &OwnedFd, step: Step) -> Result<Message, StageFault> {
    match receive(control).at(step)? {
        Some((message, _)) => Ok(message),
        None => sys::clone::exit_now(125),
    }
}

/// Takes the trees that the owner opened, and waits for the id maps.
fn await_owner(control: &OwnedFd) -> Result<Vec<OwnedFd>, StageFault> {
    let mut trees = Vec::new();
    loop {
        match receive(control).at(Step::AwaitIdMaps)? {
            Some((Message::Trees, more)) => trees.extend(more),
            Some((Message::Mapped, _)) => return Ok(trees),
            Some(_) => {
                return Err(StageFault { step: Step::AwaitIdMaps, errno: libc::EPROTO, index: u32::MAX });
            }
            None => sys::clone::exit_now(125),
        }
    }
}

/// Enters the v1 cgroups by their `tasks` files, and hides all above them: writing `0` from the process itself is
/// what is fast. What was built before is ours and small; the owner confirms the membership before anything of the
/// command runs.
fn enter_cgroups(control: &OwnedFd) -> Result<(), StageFault> {
    match receive(control).at(Step::CgroupNamespace)? {
        Some((Message::Limited, tasks)) => {
            for file in &tasks {
                rustix::io::write(file, b"0").at(Step::CgroupNamespace)?;
            }
        }
        Some(_) => {
            return Err(StageFault { step: Step::CgroupNamespace, errno: libc::EPROTO, index: u32::MAX });
        }
        None => sys::clone::exit_now(125),
    }
    sys::clone::unshare(libc::CLONE_NEWCGROUP as u64).at(Step::CgroupNamespace)
}

/// Takes init's own identity in the outer namespace, keeping its capabilities there, and hides its memory.
fn become_init(plan: &Plan, mutants: Mutants) -> Result<(), StageFault> {
    let ids = &plan.containment.ids;
    if plan.containment.mode == Mode::Privileged {
        rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)
            .at(Step::BecomeInit)?;
        if !mutants.off(Mutant::Groups) {
            rustix::thread::set_thread_groups(&[]).at(Step::BecomeInit)?;
        }
        let (gid, uid) = (Gid::from_raw(ids.init), Uid::from_raw(ids.init));
        rustix::thread::set_thread_res_gid(gid, gid, gid).at(Step::BecomeInit)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).at(Step::BecomeInit)?;
    }
    if mutants.off(Mutant::Dumpable) {
        return rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).at(Step::Conceal);
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).at(Step::Conceal)
}

/// Master and slave of a terminal in the executor's devpts, the slave owned by the command's identity.
fn open_terminal(plan: &Plan) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/pts/ptmx", flags, FileMode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let open =
        rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, open)?;
    let ids = &plan.containment.ids;
    let (uid, gid) = (rustix::fs::Uid::from_raw(ids.outer_uid), rustix::fs::Gid::from_raw(ids.outer_gid));
    rustix::fs::fchown(&slave, Some(uid), Some(gid))?;
    Ok((master, slave))
}

fn child_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// A mount's id and its mount point, as mountinfo writes them.
type MountAt = (Vec<u8>, Vec<u8>);

/// Mount points that must stay where they are: a host that renames or replaces what a mask or protection is
/// mounted on takes it away.
struct MaskWatch {
    own_proc: OwnedFd,
    info: OwnedFd,
    /// Mount id and mount point of each, and which operation it is.
    expected: Vec<(MountAt, usize)>,
}

impl MaskWatch {
    fn new(plan: &Plan, own_proc: OwnedFd) -> io::Result<Option<Self>> {
        let held = |op: &FsOp| matches!(op, FsOp::Mask { .. } | FsOp::Protect { .. } | FsOp::Pin { .. });
        let places: HashMap<&[u8], usize> = (plan.containment.fs.iter().enumerate())
            .filter(|(_, op)| held(op))
            .map(|(index, op)| (op.at().as_bytes(), index))
            .collect();
        if places.is_empty() {
            return Ok(None);
        }
        let info = Self::open(&own_proc)?;
        let now = Self::read(&info)?;
        let held = |mount: MountAt| Some((*places.get(mount.1.as_slice())?, mount));
        let expected = now.into_iter().filter_map(held).map(|(index, mount)| (mount, index)).collect();
        Ok(Some(Self { own_proc, info, expected }))
    }

    fn open(own_proc: &OwnedFd) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(own_proc, c"mountinfo", OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty())?)
    }

    /// Mount ids and mount points. proc_pid_mountinfo(5).
    fn read(info: &OwnedFd) -> io::Result<Vec<MountAt>> {
        let mut text = Vec::new();
        let mut chunk = [0; 16384];
        let mut at = 0;
        loop {
            let n = rustix::io::pread(info, &mut chunk, at)?;
            if n == 0 {
                break;
            }
            at += n as u64;
            text.extend_from_slice(&chunk[..n]);
        }
        let mut out = Vec::new();
        for line in text.split(|b| *b == b'\n') {
            let mut fields = line.split(|b| *b == b' ');
            if let (Some(id), Some(point)) = (fields.next(), fields.nth(3)) {
                out.push((id.to_vec(), unescape(point)));
            }
        }
        Ok(out)
    }

    /// Fails when something is not in place any more, with the operation that made it.
    fn check(&self) -> Result<(), StageFault> {
        // A fresh open: the text of an old one may be cut where it was read last.
        let now = Self::open(&self.own_proc).and_then(|info| Self::read(&info)).at(Step::MaskLost)?;
        match self.expected.iter().find(|(mount, _)| !now.contains(mount)) {
            None => Ok(()),
            Some((_, index)) => Err(StageFault { step: Step::MaskLost, errno: 0, index: *index as u32 }),
        }
    }
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', more @ ..]) = (first, tail) {
            out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = more;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// What init sees of the command's refusals.
struct Eyes<'plan> {
    listener: Option<Listener<'plan>>,
    answers: Answers,
    tracer: Option<Tracer>,
}

fn tell_started(control: &OwnedFd, answers: Answers, tracer: Option<&Tracer>) -> Result<(), StageFault> {
    let kept: Vec<_> = tracer.iter().map(|tracer| tracer.file().as_fd()).collect();
    send(control.as_fd(), Message::Started { answers }, &kept).at(Step::Execute)
}

/// Reaps, forwards signals, answers what the filter refuses, and ends: when the command has ended, when the owner is
/// gone, when a mask is lost. The end of this process ends every other one of the PID namespace. pid_namespaces(7).
fn serve(
    control: &OwnedFd,
    signals: &SignalFd,
    started: payload::Started,
    watch: Option<MaskWatch>,
    eyes: Eyes<'_>,
) -> Result<(), StageFault> {
    let Eyes { mut listener, answers, mut tracer } = eyes;
    let mut start_line = Some(started.line);
    let mut stops_wait = false;
    let mut cpu_us = 0;
    let mut max_rss_kib = 0;
    let mut refused = 0;
    let mut looked = Instant::now();
    // What the stage still holds is listed here; everything else was closed with its owner's end.
    loop {
        let mut fds = vec![
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        if let Some(line) = &start_line {
            fds.push(PollFd::from_borrowed_fd(line.as_fd(), PollFlags::IN));
        } else if let Some(listener) = &listener {
            // Not before the owner knows that the command has started; what it asks waits as long.
            fds.push(PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN));
        }
        let masks = fds.len();
        if let Some(watch) = &watch {
            fds.push(PollFd::from_borrowed_fd(watch.info.as_fd(), PollFlags::PRI));
        }
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let patience = if stops_wait { Some(&at_once) } else { watch.as_ref().map(|_| &MASK_CHECK) };
        match poll(&mut fds, patience) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(StageFault::new(Step::MaskLost, &e.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let ended = fds.get(2).is_some_and(|fd| fd.revents().contains(PollFlags::HUP));
        drop(fds);
        let is_ready = |n: usize| ready.get(n) == Some(&true);
        if let Some(line) = &start_line {
            if is_ready(2) {
                let fault = payload::read_line(line);
                start_line = None;
                match fault {
                    None => tell_started(control, answers, tracer.as_ref())?,
                    Some(fault) => return Err(fault),
                }
            }
        } else if is_ready(2)
            && let Some(asked) = &mut listener
        {
            let goes_on = asked.answer(|refusal| say(control, Message::Refused(refusal), Step::Execute))?;
            refused = asked.total();
            // Nobody is left who could ask, or the kernel gives no more: what is asked then is answered ENOSYS.
            if ended || !goes_on {
                listener = None;
            }
        }
        // A flood of refused calls must neither hold this up nor make each of them pay for it.
        let only_asked =
            start_line.is_none() && is_ready(2) && !(is_ready(0) || is_ready(1) || is_ready(masks));
        if let Some(watch) = &watch
            && (!only_asked || looked.elapsed() >= MASK_CHECK_EVERY)
        {
            looked = Instant::now();
            watch.check()?;
        }
        if is_ready(0) {
            match hear(control, Step::AwaitGo)? {
                Message::Signal { number } => signal_group(started.pid, number),
                _ => return Err(StageFault { step: Step::AwaitGo, errno: libc::EPROTO, index: u32::MAX }),
            }
        }
        if is_ready(1) || stops_wait {
            while matches!(signals.read_signal(), Ok(Some(_))) {}
            stops_wait = false;
            let mut stops = 0;
            // ECHILD or nothing more: both end the round.
            while let Ok(Some(reaped)) = sys::wait::wait4(-1, false) {
                if let Some(tracer) = &mut tracer {
                    if reaped.is_stopped() {
                        tracer.stopped(reaped.pid, reaped.status);
                        stops += 1;
                        if stops >= trace::ROUND {
                            stops_wait = true;
                            break;
                        }
                        continue;
                    }
                    tracer.ended(reaped.pid);
                    // Tracees end once for their tracer and once for their parent, who counts them.
                    if reaped.pid != started.pid {
                        continue;
                    }
                }
                cpu_us += reaped.cpu_us;
                max_rss_kib = max_rss_kib.max(reaped.max_rss_kib);
                if reaped.pid == started.pid {
                    // A fault record may be waiting beside the exit.
                    if let Some(line) = &start_line {
                        match payload::read_line(line) {
                            Some(fault) => return Err(fault),
                            None => tell_started(control, answers, tracer.as_ref())?,
                        }
                    }
                    if refused > 0 {
                        say(control, Message::RefusedCalls { total: refused }, Step::Execute)?;
                    }
                    let status = reaped.status;
                    say(control, Message::Ended { status, cpu_us, max_rss_kib }, Step::Execute)?;
                    sys::clone::exit_now(0);
                }
            }
        }
    }
}

fn signal_group(pid: i32, number: i32) {
    if let (Some(pid), Ok(signal)) = (Pid::from_raw(pid), Signal::try_from(number)) {
        // The command leads its own session, so its pid names the process group; gone is as good as signalled.
        let group = nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get());
        if nix::sys::signal::killpg(group, signal).is_err() {
            let _ = nix::sys::signal::kill(group, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_escapes_are_undone() {
        assert_eq!(unescape(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescape(br"/a\04"), br"/a\04");
        assert_eq!(unescape(br"/a\"), br"/a\");
    }
}

//! **Process:** the command-to-be, and its sacrificial sibling. **Parent:** init. **Namespaces:** a second user
//! and mount namespace below init's, which locks every mount as it stands. **May still:** in window C (before
//! `no_new_privs`) allocate, open, prepare; in window D only say what its filter is, wait at its gate, check itself,
//! execute, write one fault record, exit.

use super::listener::{self, Taken};
use super::wire::{Answers, AtStep, Filtered, StageFault, Step};
use crate::plan::Plan;
use crate::plan::seccomp::{Arch, Call, Program, Verdict};
use crate::sandbox::{Mutant, Mutants, caps, verify};
use crate::sys;
use crate::sys::clone::Cloned;
use crate::sys::exec::Image;
use crate::sys::seccomp::Insn;
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::process::DumpableBehavior;
use rustix::thread::{Gid, Uid};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// What both processes are made from.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// What was laid out beforehand.
    pub prepared: &'a Prepared,
    /// The Landlock rule set.
    pub rules: Option<&'a OwnedFd>,
    /// A procfs with this process in it.
    pub host_proc: &'a OwnedFd,
    /// What the owner is, for the canaries to compare with.
    pub host: Option<&'a verify::HostView>,
    /// Switched-off protections.
    pub mutants: Mutants,
}

/// Standard descriptors.
#[derive(Clone, Copy)]
pub enum Io<'a> {
    /// Three of them.
    Pipes(&'a [OwnedFd; 3]),
    /// A terminal for all three.
    Terminal(&'a OwnedFd),
}

/// The command's process as init knows it.
#[derive(Debug)]
pub struct Started {
    /// pid in the executor.
    pub pid: i32,
    /// Ends without a byte when the command was executed; carries a fault record when not.
    pub line: OwnedFd,
}

/// A restricted process's ends of its lines with init.
#[derive(Debug)]
pub struct Ends {
    /// Says what its filter is, and what went wrong.
    pub say: OwnedFd,
    /// Opens when it may go on.
    pub wait: OwnedFd,
}

/// init's ends of the same.
#[derive(Debug)]
pub struct Lines {
    /// What the process says.
    pub hear: OwnedFd,
    /// Its gate.
    pub gate: OwnedFd,
}

/// What opens a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Open {
    /// Go on.
    AsIs = 1,
    /// Nobody will answer: install the plain form on top, and go on.
    Plain = 2,
}

/// The lines between init and a process that it is about to make.
///
/// # Errors
/// pipe2(2), socketpair(2).
pub fn lines() -> Result<(Lines, Ends), StageFault> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at(Step::Fork);
    let (wait, gate) = pipe()?;
    let (hear, say) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .at(Step::Fork)?;
    Ok((Lines { hear, gate }, Ends { say, wait }))
}

impl Lines {
    /// Lets the process go on, whose filter is answered as `answers` says.
    ///
    /// # Errors
    /// write(2). A process that has failed already is not an error: its line says so.
    pub fn open(&self, answers: Answers) -> Result<(), StageFault> {
        let open = if matches!(answers, Answers::NotTaken { .. }) { Open::Plain } else { Open::AsIs };
        match rustix::io::write(&self.gate, &[open as u8]) {
            Ok(_) | Err(rustix::io::Errno::PIPE) => Ok(()),
            Err(e) => Err(StageFault::new(Step::Fork, &e.into())),
        }
    }
}

/// A process that will become the command when it is let.
#[derive(Debug)]
pub struct Waiting {
    pid: i32,
    pidfd: OwnedFd,
    lines: Lines,
}

impl Waiting {
    /// Its pid in the executor.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets it restrict itself: the owner has judged what it knows of this executor.
    ///
    /// # Errors
    /// write(2).
    pub fn release(&self) -> Result<(), StageFault> {
        self.lines.open(Answers::Listener)
    }

    /// Waits until it has its filter, and takes the listener of that.
    ///
    /// # Errors
    /// What the process could not do.
    pub fn listener<'plan>(&self, plan: &'plan Plan) -> Result<Taken<'plan>, StageFault> {
        let taken = listener::take(&self.lines.hear, &self.pidfd, &plan.containment.seccomp)?;
        // One that is gone without a word was killed: its end says how, as that of any command.
        Ok(taken.unwrap_or(Taken { listener: None, answers: Answers::NoFilter }))
    }

    /// Lets it go on, when it `waits` for that.
    ///
    /// # Errors
    /// write(2).
    pub fn go(self, answers: Answers, waits: bool) -> Result<Started, StageFault> {
        if waits {
            self.lines.open(answers)?;
        }
        Ok(Started { pid: self.pid, line: self.lines.hear })
    }
}

/// Clones the process that becomes the command.
///
/// # Errors
/// pipe2(2), clone3(2).
pub fn start(shared: &Shared<'_>, io: Io<'_>) -> Result<Waiting, StageFault> {
    let (lines, ends) = lines()?;
    match sys::clone::clone3(0, None).at(Step::Fork)? {
        Cloned::Parent { pid, pidfd } => Ok(Waiting { pid, pidfd, lines }),
        Cloned::Child => {
            drop(lines);
            let fault = become_command(shared, io, &ends);
            // The reader tells this from an execution; when it is gone, so is everything.
            let _ = rustix::io::write(&ends.say, &fault.encode());
            sys::clone::exit_now(125)
        }
    }
}

/// What the line of [`Started`] says: `None` when the command was executed.
pub fn read_line(line: &OwnedFd) -> Option<StageFault> {
    let mut raw = [0u8; 8];
    match rustix::io::read(line, &mut raw) {
        Ok(0) => None,
        Ok(8) => Some(StageFault::decode(raw).unwrap_or(StageFault {
            step: Step::Execute,
            errno: libc::EPROTO,
            index: 0,
        })),
        _ => Some(StageFault { step: Step::Execute, errno: libc::EPROTO, index: 0 }),
    }
}

/// Everything from the fork to execve; returns only what went wrong.
fn become_command(shared: &Shared<'_>, io: Io<'_>, ends: &Ends) -> StageFault {
    let go = || -> Result<std::convert::Infallible, StageFault> {
        own_session(shared, io)?;
        second_namespace(shared)?;
        place_stdio(io)?;
        let found = shared.prepared.found();
        // Nothing of the command runs before the owner has judged what it knows of this executor.
        await_release(&ends.wait)?;
        restrict(shared, ends, &[], || ())?;
        self_check(shared)?;
        Err(shared.prepared.execute(&found))
    };
    match go() {
        Ok(never) => match never {},
        Err(fault) => fault,
    }
}

/// Waits at the gate.
fn await_release(wait: &OwnedFd) -> Result<Open, StageFault> {
    let mut byte = [0u8; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(wait, &mut byte)).at(Step::AwaitGo)? {
        1 if byte[0] == Open::Plain as u8 => Ok(Open::Plain),
        1 => Ok(Open::AsIs),
        // init has ended, and this process does with it.
        _ => sys::clone::exit_now(125),
    }
}

/// A session, a process group, a terminal and a keyring of its own.
fn own_session(shared: &Shared<'_>, io: Io<'_>) -> Result<(), StageFault> {
    if !shared.mutants.off(Mutant::Session) {
        rustix::process::setsid().at(Step::Session)?;
    }
    if let Io::Terminal(slave) = io {
        rustix::process::ioctl_tiocsctty(slave).at(Step::Terminal)?;
    }
    join_keyring(shared)
}

/// Keyrings are not namespaced: without this the command could read the caller's. keyctl(2).
pub fn join_keyring(shared: &Shared<'_>) -> Result<(), StageFault> {
    if shared.mutants.off(Mutant::Keyring) {
        return Ok(());
    }
    match sys::keyring::join_new_session() {
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.at(Step::Keyring),
    }
}

/// Takes the command's identity and locks the mounts: in the second namespace they belong to a more privileged
/// one, so that nobody in it can remount, unmount or uncover anything. mount_namespaces(7), user_namespaces(7).
pub fn second_namespace(shared: &Shared<'_>) -> Result<(), StageFault> {
    let ids = &shared.plan.containment.ids;
    let (uid, gid) = (Uid::from_raw(ids.outer_uid), Gid::from_raw(ids.outer_gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).at(Step::CommandIds)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).at(Step::CommandIds)?;
    // A change of identity makes a process undumpable, and an undumpable one may not open its own maps. This
    // process has held nothing but the plan since it was cloned from init, and execve replaces its memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).at(Step::CommandIds)?;
    if shared.mutants.off(Mutant::SecondNamespace) {
        return Ok(());
    }
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    sys::clone::unshare(namespaces as u64).at(Step::SecondNamespace)?;
    let put = |name: &str, text: String| -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(shared.host_proc, format!("self/{name}"), flags, FileMode::empty())?;
        rustix::io::write(&file, text.as_bytes())?;
        Ok(())
    };
    put("setgroups", "deny".into()).at(Step::SecondNamespace)?;
    put("uid_map", format!("{} {} 1\n", ids.inside, ids.outer_uid)).at(Step::SecondNamespace)?;
    put("gid_map", format!("{} {} 1\n", ids.inside, ids.outer_gid)).at(Step::SecondNamespace)
}

fn place_stdio(io: Io<'_>) -> Result<(), StageFault> {
    // Sources first moved above the standard numbers, so that no dup2 overwrites one still to come.
    let sources: Vec<OwnedFd> = match io {
        Io::Pipes(pipes) => pipes.iter().map(high).collect::<Result<_, _>>()?,
        Io::Terminal(slave) => (0..3).map(|_| high(slave)).collect::<Result<_, _>>()?,
    };
    for (number, source) in sources.iter().enumerate() {
        sys::fds::place(source.as_raw_fd(), number as RawFd).at(Step::Stdio)?;
    }
    Ok(())
}

fn high(fd: &OwnedFd) -> Result<OwnedFd, StageFault> {
    rustix::io::fcntl_dupfd_cloexec(fd, 10).at(Step::Stdio)
}

/// The restrictions, in the one order in which each still works, up to the opening of the gate. `before_filter` runs
/// last before the filter.
///
/// # Errors
/// The step that the kernel refused.
pub fn restrict(
    shared: &Shared<'_>,
    ends: &Ends,
    keep: &[RawFd],
    before_filter: impl FnOnce(),
) -> Result<(), StageFault> {
    let plan = shared.plan;
    let off = |m| shared.mutants.off(m);
    if !off(Mutant::Capabilities) {
        caps::drop_bounding()?;
        caps::drop_all()?;
    }
    // Actions are the defaults since init reset its own; init blocks what it reads from a descriptor.
    sys::signals::unblock().at(Step::Session)?;
    rustix::process::umask(FileMode::from_raw_mode(0o022));
    rustix::process::chdir(plan.command.cwd.as_path()).at(Step::WorkingDirectory)?;
    if !off(Mutant::NoNewPrivileges) || plan.containment.seccomp.filter.plain.words().is_empty() {
        rustix::thread::set_no_new_privs(true).at(Step::NoNewPrivileges)?;
    }
    if let Some(rules) = shared.rules {
        sys::landlock::restrict_self(rules.as_fd()).at(Step::LandlockRestrict)?;
    }
    if !off(Mutant::CloseRange) {
        let mut all = vec![0, 1, 2, ends.say.as_raw_fd(), ends.wait.as_raw_fd()];
        all.extend_from_slice(keep);
        sys::fds::close_all_but(&all).at(Step::CloseAll)?;
    }
    before_filter();
    let no_filter =
        off(Mutant::Seccomp) || plan.containment.gaps.contains_key(&crate::base::Protection::Seccomp);
    let plain = &shared.prepared.filter;
    let installed = if no_filter { None } else { Some(sys::notify::install(&shared.prepared.asking)) };
    let said = match &installed {
        None => Filtered::No,
        Some(Ok(listener)) => Filtered::Asking { number: listener.as_raw_fd() },
        Some(Err(e)) => {
            sys::seccomp::install(plain).at(Step::SeccompInstall)?;
            Filtered::Plain { errno: e.raw_os_error().unwrap_or(0) }
        }
    };
    match (&installed, shared.prepared.waits) {
        (Some(Ok(listener)), false) => {
            let sent = super::wire::send_line(ends.say.as_fd(), Filtered::Sent.encode(), listener.as_fd());
            sent.at(Step::SeccompInstall)?;
        }
        _ => drop(rustix::io::write(&ends.say, &said.encode()).at(Step::SeccompInstall)?),
    }
    let open = if shared.prepared.waits { await_release(&ends.wait)? } else { Open::AsIs };
    // The listener is init's alone from here on.
    drop(installed);
    if open == Open::Plain {
        sys::seccomp::install_on_top(plain).at(Step::SeccompInstall)?;
    }
    Ok(())
}

/// The three questions that a restricted process can still ask about itself. A wrong answer is a fault.
fn self_check(shared: &Shared<'_>) -> Result<(), StageFault> {
    let fault = |index| Err(StageFault { step: Step::SelfCheck, errno: 0, index });
    let any_mutant = shared.mutants != Mutants::default();
    if any_mutant {
        return Ok(());
    }
    if !rustix::thread::no_new_privs().at(Step::SelfCheck)? {
        return fault(0);
    }
    let filtered = !shared.plan.containment.gaps.contains_key(&crate::base::Protection::Seccomp);
    if filtered && !verify::filter_mode() {
        return fault(1);
    }
    if !caps::none_held() {
        return fault(2);
    }
    Ok(())
}

/// Whether the filter lets a process send what it holds to init.
fn may_send(plan: &Plan) -> bool {
    let Some(nr) = Arch::NATIVE.number("sendmsg") else { return false };
    let call = Call { nr, arch: Arch::NATIVE.audit(), args: [0; 6] };
    matches!(plan.containment.seccomp.filter.asking.verdict(&call), Ok(Verdict::Allow))
}

/// What both processes need in the kernel's form; made by init while it waits for its owner.
pub struct Prepared {
    /// The filter's instructions, in its plain form.
    filter: Vec<Insn>,
    /// In its asking form.
    asking: Vec<Insn>,
    /// A process with the filter waits at its gate until init has taken the listener: it may not send it, or is to be
    /// traced from its beginning.
    pub waits: bool,
    image: Image,
    /// Candidates for the program, in search order.
    candidates: Vec<CString>,
}

impl Prepared {
    /// Lays it out.
    ///
    /// # Errors
    /// EINVAL for a NUL in an argument, a variable or a path.
    pub fn of(plan: &Plan, trace: bool) -> Result<Self, StageFault> {
        let nul = |_| StageFault { step: Step::Execute, errno: libc::EINVAL, index: 0 };
        let laid_out = |program: &Program| -> Vec<Insn> {
            program.words().iter().map(|w| Insn { code: w.code, jt: w.jt, jf: w.jf, k: w.k }).collect()
        };
        let filter = &plan.containment.seccomp.filter;
        let (filter, asking) = (laid_out(&filter.plain), laid_out(&filter.asking));
        let command = &plan.command;
        let argv = command.argv.iter().map(|a| a.as_bytes());
        let env = command.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
        let image = Image::new(argv, env).map_err(nul)?;
        let name = command.argv.first().map_or(&b""[..], |a| a.as_bytes());
        let candidates = if name.starts_with(b"/") {
            vec![name.to_vec()]
        } else if name.contains(&b'/') {
            vec![[command.cwd.as_bytes(), b"/", name].concat()]
        } else {
            command.path.iter().map(|dir| [dir.as_bytes(), b"/", name].concat()).collect()
        };
        let candidates =
            candidates.into_iter().map(|path| CString::new(path).map_err(nul)).collect::<Result<_, _>>()?;
        let waits = trace || !may_send(plan);
        Ok(Self { filter, asking, waits, image, candidates })
    }

    /// At which of the candidates something lies.
    fn found(&self) -> Vec<bool> {
        self.candidates.iter().map(|path| rustix::fs::stat(path.as_c_str()).is_ok()).collect()
    }

    /// execve(2) of the first candidate that is there, as a shell searches: one that may not be executed does not
    /// end the search, but is reported when no other is found. Index 1 says that something lies at the path.
    fn execute(&self, found: &[bool]) -> StageFault {
        let mut fault = StageFault { step: Step::Execute, errno: libc::ENOENT, index: 0 };
        for (path, found) in self.candidates.iter().zip(found) {
            let errno = self.image.execve(path).raw_os_error().unwrap_or(libc::ENOENT);
            match errno {
                libc::ENOENT | libc::ENOTDIR if !found => {}
                libc::EACCES | libc::ENOENT => {
                    if fault.index == 0 {
                        fault = StageFault { step: Step::Execute, errno, index: 1 };
                    }
                }
                _ => return StageFault { step: Step::Execute, errno, index: 1 },
            }
        }
        fault
    }
}

//! **Process:** init, for a process that it made. What the asking form of the filter leaves to a listener is answered
//! here, with the errno of the plain form and nothing else: a call that is asked about was refused, and stays so.
//!
//! The process installs the filter and sends the listener on its line: nothing waits for anything. Under a filter that
//! refuses sendmsg(2) itself, and where the command is to be traced from its beginning, it says which descriptor the
//! listener is, init takes it from there, and opens the gate. Where there can be no listener (another one above this process, an old kernel) the plain form is
//! installed instead; where init may not take it, on top, and its answers come first.

use super::wire::{Answers, AtStep, Filtered, StageFault, Step, receive_line};
use crate::plan::SeccompPlan;
use crate::plan::seccomp::{Call, Refusal, Verdict};
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::PidfdGetfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Distinct refusals that are told.
pub const TOLD_MAX: usize = 64;
/// Calls answered before init looks after its other duties.
const ROUND: usize = 32;

/// What came of taking it.
#[derive(Debug)]
pub struct Taken<'plan> {
    /// The listener, when there is one.
    pub listener: Option<Listener<'plan>>,
    /// Who answers.
    pub answers: Answers,
}

/// Waits for what the process behind `pidfd` says on `line`, and takes its listener. `None` when that process is gone
/// without a word.
///
/// # Errors
/// What that process could not do; read(2).
pub fn take<'plan>(
    line: &OwnedFd,
    pidfd: &OwnedFd,
    plan: &'plan SeccompPlan,
) -> Result<Option<Taken<'plan>>, StageFault> {
    let protocol = StageFault { step: Step::SeccompInstall, errno: libc::EPROTO, index: u32::MAX };
    let Some((raw, sent)) = receive_line(line).at(Step::SeccompInstall)? else { return Ok(None) };
    if let Some(fault) = StageFault::decode(raw) {
        return Err(fault);
    }
    let without = |answers| Ok(Some(Taken { listener: None, answers }));
    let with = |fd: OwnedFd| {
        // Older kernels take longer for each call, that is all.
        let _ = sys::notify::wake_in_step(fd.as_fd());
        let listener = Listener { fd, plan, told: Vec::new(), total: 0 };
        Ok(Some(Taken { listener: Some(listener), answers: Answers::Listener }))
    };
    match Filtered::decode(raw).ok_or(protocol)? {
        Filtered::Sent => with(sent.ok_or(protocol)?),
        Filtered::No => without(Answers::NoFilter),
        Filtered::Plain { errno } => without(Answers::NotInstalled { errno }),
        Filtered::Asking { number } => {
            match rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()) {
                Ok(fd) => with(fd),
                Err(e) => without(Answers::NotTaken { errno: e.raw_os_error() }),
            }
        }
    }
}

/// A listener that init holds.
#[derive(Debug)]
pub struct Listener<'plan> {
    fd: OwnedFd,
    plan: &'plan SeccompPlan,
    told: Vec<Refusal>,
    total: u64,
}

impl Listener<'_> {
    /// What to poll for input.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Calls refused so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Answers calls that wait, at most so many that nothing else of init's has to wait long, and passes what is new
    /// to `tell`. Whether it can go on; when not it is to be closed, which answers ENOSYS to every call from then on.
    ///
    /// # Errors
    /// Those of `tell`.
    pub fn answer(
        &mut self,
        mut tell: impl FnMut(Refusal) -> Result<(), StageFault>,
    ) -> Result<bool, StageFault> {
        for _ in 0..ROUND {
            if !self.waiting() {
                break;
            }
            let notice = match sys::notify::receive(self.fd.as_fd()) {
                Ok(notice) => notice,
                Err(e) if gone(&e) => continue,
                Err(_) => return Ok(false),
            };
            let call = Call { nr: notice.nr, arch: notice.arch, args: notice.args };
            let errno = match self.plan.filter.plain.verdict(&call) {
                Ok(Verdict::Errno(errno)) => i32::from(errno),
                // The forms are proved to differ in nothing else; what is refused stays refused in any case.
                _ => libc::EPERM,
            };
            match sys::notify::refuse(self.fd.as_fd(), notice.id, errno) {
                Ok(()) => {}
                Err(e) if gone(&e) => {}
                Err(_) => return Ok(false),
            }
            self.total += 1;
            let refusal = Refusal::of(&call, self.plan.sockets);
            if self.told.len() < TOLD_MAX && !self.told.contains(&refusal) {
                self.told.push(refusal);
                tell(refusal)?;
            }
        }
        Ok(true)
    }

    /// Whether a call waits. Receiving would wait for one.
    fn waiting(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)) == Ok(1) && fds[0].revents().contains(PollFlags::IN)
    }
}

/// Whether a call no longer waits, or we were interrupted.
fn gone(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR))
}

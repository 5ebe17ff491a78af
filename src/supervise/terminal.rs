//! The caller's terminal: raw while the command has one of its own, its size passed on, and put back afterwards however
//! the command ended: its modes, what the command's output did to it ([`super::screen`]), and without an answer in its
//! input that the command asked for and the caller's shell would read.

use super::screen::{ASK, KEEP_TITLE, RESET, RESET_COLOURS, RESET_ORIGIN, Screen, TITLE_BACK};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, Winsize, isatty, tcflush, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr, tcsetwinsize,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a terminal is given to answer: what it has to show before it does is on its way already.
const ANSWER_WAIT: Duration = Duration::from_millis(500);
/// How long nothing may come for an answer to be the last.
const QUIET: Duration = Duration::from_millis(60);
/// Bytes of answers that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The master side, and what the caller's terminal was like.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    saved: Option<Termios>,
    raw: bool,
}

impl Terminal {
    /// Takes the master side; returns it together with two copies for reading and writing. When standard input is a
    /// terminal it becomes raw, so that every key reaches the command.
    ///
    /// # Errors
    /// fcntl(2).
    pub fn attach(master: OwnedFd) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        use rustix::fs::OFlags;
        let flags = rustix::fs::fcntl_getfl(&master)?;
        rustix::fs::fcntl_setfl(&master, flags | OFlags::NONBLOCK)?;
        let (input, output) =
            (rustix::io::fcntl_dupfd_cloexec(&master, 3)?, rustix::io::fcntl_dupfd_cloexec(&master, 3)?);
        let stdin = std::io::stdin();
        let saved = if isatty(&stdin) { tcgetattr(&stdin).ok() } else { None };
        let mut terminal = Self { master, saved, raw: false };
        terminal.resume();
        if isatty(std::io::stdout()) && terminal.raw {
            show(std::io::stdout().as_fd(), KEEP_TITLE);
        }
        Ok((terminal, input, output))
    }

    /// Gives the command's terminal the size of the caller's, or 80 by 24 when that has none.
    pub fn resize(&self) {
        let fallback = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let size =
            tcgetwinsize(std::io::stdin()).or_else(|_| tcgetwinsize(std::io::stdout())).unwrap_or(fallback);
        // A terminal that is just going away has no size to set.
        let _ = tcsetwinsize(&self.master, size);
    }

    /// Takes the caller's terminal, unless another job has it: at the start, and each time that we are continued.
    pub fn resume(&mut self) {
        self.resize();
        if let Some(saved) = self.saved.as_ref().filter(|_| foreground()) {
            let mut raw = saved.clone();
            raw.make_raw();
            self.raw = tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).is_ok();
        }
    }

    /// Gives it back while we are stopped.
    pub fn suspend(&mut self) {
        if let Some(saved) = self.saved.as_ref().filter(|_| self.raw && foreground()) {
            // Nothing can be done about a terminal that is gone.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, saved);
        }
        self.raw = false;
    }

    /// Puts everything back, after the last of the output.
    pub fn end(mut self, screen: &Screen) {
        if self.raw {
            put_back(screen, true);
        }
        self.suspend();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.suspend();
    }
}

/// Puts the terminal back after a command whose output was passed on to it.
pub fn settle(screen: &Screen) {
    if screen.changed() || screen.asked() {
        put_back(screen, false);
    }
}

/// Whether standard input is the terminal's, and ours to change: a background job that changes it is stopped, and would
/// take it from the job that has it. tty_ioctl(4), setpgid(2).
fn foreground() -> bool {
    tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn put_back(screen: &Screen, own: bool) {
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let to = if isatty(&stdout) {
        stdout.as_fd()
    } else if isatty(&stderr) {
        stderr.as_fd()
    } else {
        return;
    };
    let mut bytes = Vec::new();
    if screen.changed() || own {
        bytes.extend_from_slice(RESET);
    }
    if screen.origin() {
        bytes.extend_from_slice(RESET_ORIGIN);
    }
    if screen.coloured() {
        bytes.extend_from_slice(RESET_COLOURS);
    }
    if own {
        bytes.extend_from_slice(TITLE_BACK);
    }
    show(to, &bytes);
    if screen.asked() && foreground() {
        swallow_answers(to);
    }
}

/// A descriptor of the same object; for a terminal one of its own that does not block, since O_NONBLOCK belongs to the open
/// description, which is the caller's as well. Where the terminal may not be opened again, a copy.
///
/// # Errors
/// fcntl(2).
pub fn unblocking(fd: BorrowedFd<'_>) -> Result<OwnedFd, rustix::io::Errno> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd as _;
    if isatty(fd) {
        let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Ok(own) = rustix::fs::open(name, flags, Mode::empty()) {
            return Ok(own);
        }
    }
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Writes to a terminal that may be stopped (XOFF) or gone: not for longer than half a second.
pub fn show(to: BorrowedFd<'_>, mut bytes: &[u8]) {
    let until = Instant::now() + ANSWER_WAIT;
    let Ok(to) = unblocking(to) else { return };
    while !bytes.is_empty() && ready(to.as_fd(), PollFlags::OUT, until) {
        match rustix::io::write(&to, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}

/// Reads what the terminal answers, up to the answer to a question of ours: a terminal answers in order, so what the
/// command asked is answered by then. What was typed meanwhile is lost with it.
fn swallow_answers(to: BorrowedFd<'_>) {
    let stdin = std::io::stdin();
    let Ok(before) = tcgetattr(&stdin) else { return };
    let mut raw = before.clone();
    raw.make_raw();
    if tcsetattr(&stdin, OptionalActions::Now, &raw).is_err() {
        return;
    }
    show(to, ASK);
    let until = Instant::now() + ANSWER_WAIT;
    let (mut answers, mut chunk) = (Vec::new(), [0u8; 1024]);
    // The command may have asked the same: what looks like the last answer is it when nothing comes after it.
    let wait = |answers: &[u8]| {
        if ends_with_attributes(answers) { until.min(Instant::now() + QUIET) } else { until }
    };
    while answers.len() < ANSWER_BYTES_MAX && ready(stdin.as_fd(), PollFlags::IN, wait(&answers)) {
        match rustix::io::read(&stdin, &mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(n) => answers.extend_from_slice(&chunk[..n]),
        }
    }
    let _ = tcflush(&stdin, QueueSelector::IFlush);
    let _ = tcsetattr(&stdin, OptionalActions::Now, &before);
}

/// Whether `CSI ? … c`, the answer to [`ASK`], is the last thing there.
fn ends_with_attributes(answers: &[u8]) -> bool {
    let Some((b'c', rest)) = answers.split_last() else { return false };
    let parameters = rest.iter().rev().take_while(|b| b.is_ascii_digit() || **b == b';').count();
    rest[..rest.len() - parameters].ends_with(b"\x1b[?")
}

fn ready(fd: BorrowedFd<'_>, flags: PollFlags, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    loop {
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(n) => return n > 0 && fds[0].revents().intersects(flags),
            Err(_) => return false,
        }
    }
}

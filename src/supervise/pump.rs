//! Moving bytes between the caller's descriptors and the command's pipes or terminal, with back-pressure, without
//! ever changing the caller's descriptors (their flags are shared with others) and without ever blocking on a
//! slow reader.

use super::output::Capture;
use super::screen::Screen;
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes moved at once.
const CHUNK: usize = 64 * 1024;
/// What a pipe takes without blocking once it polls writable (`PIPE_BUF`). pipe(7).
const PIPE_BUF: usize = 4096;

/// Room for one read, made when it is first needed: too large for the stack of a caller who limits it.
#[derive(Debug, Default)]
struct Chunk(Vec<u8>);

impl Chunk {
    fn get(&mut self) -> &mut [u8] {
        self.0.resize(CHUNK, 0);
        &mut self.0
    }
}

/// Reads without blocking, whatever the flags of the shared description: RWF_NOWAIT where the file supports it,
/// else a plain read (the caller has polled).
fn read_now(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize, Errno> {
    match rustix::io::preadv2(fd, &mut [IoSliceMut::new(buf)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => rustix::io::read(fd, buf),
        other => other,
    }
}

fn write_now(fd: BorrowedFd<'_>, buf: &[u8]) -> Result<usize, Errno> {
    match rustix::io::pwritev2(fd, &[IoSlice::new(buf)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => {
            // Regular files do not block for a reader; terminals and the rest get no more than what fits.
            let piece = if is_file(fd) { buf } else { &buf[..buf.len().min(PIPE_BUF)] };
            rustix::io::write(fd, piece)
        }
        other => other,
    }
}

fn is_file(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::RegularFile)
}

/// Where a stream of the command goes.
#[derive(Debug)]
pub struct Outlet {
    /// Our end of the command's pipe, or the terminal's master; `None` after its end.
    from: Option<OwnedFd>,
    /// The caller's descriptor; `None` when the output is only kept, or its reader is gone.
    to: Option<OwnedFd>,
    pending: Vec<u8>,
    sent: usize,
    chunk: Chunk,
    /// Why the caller's descriptor took no more, unless its reader is just gone.
    failed: Option<Errno>,
    /// Counts, and keeps when the output is to be embedded.
    pub capture: Capture,
    /// What was shown, where the caller's descriptor is a terminal.
    pub screen: Option<Screen>,
}

impl Outlet {
    /// A stream from `from` (non-blocking, ours) to `to`.
    pub fn new(from: Option<OwnedFd>, to: Option<OwnedFd>, capture: Capture) -> Self {
        let screen = to.as_ref().filter(|to| rustix::termios::isatty(to)).map(|_| Screen::default());
        Self {
            from,
            to,
            pending: Vec::new(),
            sent: 0,
            chunk: Chunk::default(),
            failed: None,
            capture,
            screen,
        }
    }

    /// What to poll for input: nothing while output is pending (that is the back-pressure).
    pub fn wants_input(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() { self.from.as_ref().map(AsFd::as_fd) } else { None }
    }

    /// What to poll for room.
    pub fn wants_room(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() { None } else { self.to.as_ref().map(AsFd::as_fd) }
    }

    /// Whether the stream has ended and everything was passed on.
    pub fn done(&self) -> bool {
        self.from.is_none() && self.pending.is_empty()
    }

    /// Why output was lost on its way to the caller.
    pub fn failed(&self) -> Option<Errno> {
        self.failed
    }

    /// Gives up on what could not be passed on.
    pub fn abandon(&mut self) {
        self.pending.clear();
        self.from = None;
    }

    /// Reads what is there. `last` says that all writers are dead, so that an empty pipe is its end even if somebody
    /// outside holds a copy of the writing end. Returns whether the output limit demands a kill.
    pub fn read(&mut self, last: bool) -> bool {
        let Some(from) = &self.from else { return false };
        let buf = self.chunk.get();
        match rustix::io::read(from, &mut *buf) {
            // EIO is a terminal's end. tty_ioctl(4).
            Ok(0) | Err(Errno::IO) => self.from = None,
            Ok(n) => {
                let pushed = self.capture.push(&buf[..n]);
                if let Some(screen) = &mut self.screen {
                    screen.push(&buf[..pushed.within]);
                }
                if self.to.is_some() {
                    self.pending.extend_from_slice(&buf[..pushed.within]);
                }
                return pushed.kill;
            }
            Err(Errno::AGAIN) if last => self.from = None,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.from = None,
        }
        false
    }

    /// Passes on what is pending. When the caller's reader is gone, so is the command's: its next write meets a
    /// closed pipe, as it would without us.
    pub fn write(&mut self) {
        let Some(to) = &self.to else {
            self.pending.clear();
            return;
        };
        match write_now(to.as_fd(), &self.pending[self.sent..]) {
            Ok(n) => {
                self.sent += n;
                if self.sent == self.pending.len() {
                    self.pending.clear();
                    self.sent = 0;
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => {
                // A reader that went away is no fault; a full disk is.
                if e != Errno::PIPE && e != Errno::CONNRESET {
                    self.failed.get_or_insert(e);
                }
                self.to = None;
                self.from = None;
                self.pending.clear();
                self.sent = 0;
            }
        }
    }
}

/// Standard input on its way to the command.
#[derive(Debug)]
pub struct Inlet {
    /// The caller's descriptor; `None` after its end.
    from: Option<OwnedFd>,
    /// Our end of the command's pipe, or the terminal's master; `None` once closed.
    to: Option<OwnedFd>,
    pending: Vec<u8>,
    sent: usize,
    chunk: Chunk,
}

impl Inlet {
    /// From `from` to `to` (non-blocking, ours).
    pub fn new(from: Option<OwnedFd>, to: Option<OwnedFd>) -> Self {
        let mut inlet = Self { from, to, pending: Vec::new(), sent: 0, chunk: Chunk::default() };
        inlet.settle();
        inlet
    }

    fn settle(&mut self) {
        if self.from.is_none() && self.pending.is_empty() {
            // The end of the caller's input is the end of the command's.
            self.to = None;
        }
        if self.to.is_none() {
            self.from = None;
            self.pending.clear();
        }
    }

    /// What to poll for input.
    pub fn wants_input(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() { self.from.as_ref().map(AsFd::as_fd) } else { None }
    }

    /// What to poll for room, and, with nothing pending, for the reader's end.
    pub fn wants_room(&self) -> Option<BorrowedFd<'_>> {
        if self.pending.is_empty() { None } else { self.to.as_ref().map(AsFd::as_fd) }
    }

    /// Reads what is there.
    pub fn read(&mut self) {
        let Some(from) = &self.from else { return };
        let buf = self.chunk.get();
        match read_now(from.as_fd(), buf) {
            Ok(0) => self.from = None,
            Ok(n) => self.pending.extend_from_slice(&buf[..n]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.from = None,
        }
        self.settle();
    }

    /// Passes it on.
    pub fn write(&mut self) {
        let Some(to) = &self.to else { return };
        match rustix::io::write(to, &self.pending[self.sent..]) {
            Ok(n) => {
                self.sent += n;
                if self.sent == self.pending.len() {
                    self.pending.clear();
                    self.sent = 0;
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The command does not read any more; what comes is not wanted.
            Err(_) => self.to = None,
        }
        self.settle();
    }

    /// Stops: the command is gone.
    pub fn stop(&mut self) {
        self.from = None;
        self.to = None;
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::OutputAction;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn nonblocking() -> (OwnedFd, OwnedFd) {
        pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
    }

    #[test]
    fn bytes_arrive_unchanged_through_small_pipes() {
        let (command_read, command_write) = nonblocking();
        let (caller_read, caller_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut outlet =
            Outlet::new(Some(command_read), Some(caller_write), Capture::new(None, OutputAction::Truncate));
        let data: Vec<u8> = (0..300_000u32).map(|n| (n * 7 % 251) as u8).collect();
        let (mut written, mut got) = (0, Vec::new());
        let mut writer = Some(command_write);
        while !outlet.done() {
            if let Some(w) = &writer {
                match rustix::io::write(w, &data[written..]) {
                    Ok(n) => written += n,
                    Err(Errno::AGAIN) => {}
                    Err(e) => panic!("{e}"),
                }
                if written == data.len() {
                    writer = None;
                }
            }
            if outlet.wants_input().is_some() {
                outlet.read(false);
            }
            if outlet.wants_room().is_some() {
                outlet.write();
            }
            let mut buf = [0u8; 10_000];
            if let Ok(n) = read_now(caller_read.as_fd(), &mut buf) {
                got.extend_from_slice(&buf[..n]);
            }
        }
        drop(outlet);
        let mut buf = [0u8; 100_000];
        while let Ok(n @ 1..) = rustix::io::read(&caller_read, &mut buf) {
            got.extend_from_slice(&buf[..n]);
        }
        assert!(got == data);
    }

    #[test]
    fn a_full_pipe_does_not_block_us() {
        let (caller_read, caller_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let big = vec![b'x'; 1 << 20];
        let mut total = 0;
        loop {
            match write_now(caller_write.as_fd(), &big) {
                Ok(n) => total += n,
                Err(Errno::AGAIN) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(total > 0);
        drop(caller_read);
    }

    #[test]
    fn a_gone_reader_closes_the_command_end() {
        let (command_read, command_write) = nonblocking();
        let (caller_read, caller_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(caller_read);
        let mut outlet =
            Outlet::new(Some(command_read), Some(caller_write), Capture::new(None, OutputAction::Truncate));
        rustix::io::write(&command_write, b"x").unwrap();
        outlet.read(false);
        outlet.write();
        assert!(outlet.done());
        assert_eq!(rustix::io::write(&command_write, b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn input_ends_when_the_caller_ends() {
        let (caller_read, caller_write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (command_read, command_write) = nonblocking();
        rustix::io::write(&caller_write, b"hello").unwrap();
        drop(caller_write);
        let mut inlet = Inlet::new(Some(caller_read), Some(command_write));
        inlet.read();
        inlet.write();
        inlet.read();
        let mut buf = [0u8; 16];
        assert_eq!(rustix::io::read(&command_read, &mut buf), Ok(5));
        assert_eq!(rustix::io::read(&command_read, &mut buf), Ok(0));
    }
}

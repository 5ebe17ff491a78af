//! The caller's terminal while a command has one of its own: raw, its size passed on, and put back afterwards
//! however the command ended.

use rustix::termios::{
    OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::io;
use std::os::fd::OwnedFd;

/// The master side, and what the caller's terminal was like.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    saved: Option<Termios>,
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
        let terminal = Self { master, saved };
        terminal.resize();
        if let Some(saved) = &terminal.saved {
            let mut raw = saved.clone();
            raw.make_raw();
            tcsetattr(&stdin, OptionalActions::Now, &raw)?;
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
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(saved) = &self.saved {
            // Nothing can be done about a terminal that is gone.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, saved);
        }
    }
}

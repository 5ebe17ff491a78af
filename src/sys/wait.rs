//! wait4(2): status and resource usage of a child.

use super::check;
use std::io;

/// What wait4 said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Which child.
    pub pid: i32,
    /// Raw wait status.
    pub status: i32,
    /// User and system time, of it and of its waited-for children, in microseconds.
    pub cpu_us: u64,
    /// Largest resident set among them, in KiB.
    pub max_rss_kib: u64,
}

impl Reaped {
    /// Whether it only stopped, which is told of a tracee.
    pub fn is_stopped(&self) -> bool {
        libc::WIFSTOPPED(self.status)
    }
}

/// Waits for child `pid` (-1: any). With `block` false, returns `None` when none has ended.
///
/// # Errors
/// wait4(2); ECHILD when there is none.
pub fn wait4(pid: i32, block: bool) -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: rusage is plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
        // SAFETY: both out-pointers are valid for the call.
        let ret = unsafe { libc::wait4(pid, &raw mut status, flags, &raw mut usage) };
        match check(libc::c_long::from(ret)) {
            Ok(0) => return Ok(None),
            Ok(pid) => {
                let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
                return Ok(Some(Reaped {
                    pid: pid as i32,
                    status,
                    cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
                    max_rss_kib: usage.ru_maxrss as u64,
                }));
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

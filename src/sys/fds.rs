//! Descriptors: close_range(2) and duplication onto fixed numbers.

use super::check;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// Closes every descriptor of the process that is not in `keep` (any order). Owners of closed descriptors
/// must not be used afterwards: only for processes that go on to `_exit` or `execve`.
///
/// # Errors
/// close_range(2).
pub fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut first = 0u32;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: no memory is passed. Closing a descriptor that some value owns is what the documentation of
    // `close_all_but` warns of. close_range(2).
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Makes descriptor `to` a copy of `from`, inherited over execve. When they are the same number, only the
/// close-on-exec flag is cleared. dup2(2).
///
/// # Errors
/// dup2(2), fcntl(2).
pub fn place(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed; `to` is one of the standard descriptors or a number that the caller's stage
    // has set aside.
    let ret = unsafe { if from == to { libc::fcntl(to, libc::F_SETFD, 0) } else { libc::dup2(from, to) } };
    check(libc::c_long::from(ret)).map(drop)
}

/// A descriptor of our own for what the caller has open as `number`, closed on execve. F_DUPFD_CLOEXEC(2const).
///
/// # Errors
/// fcntl(2); EBADF when nothing is open there.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed. A number that nobody opened is refused by the kernel.
    let ret = check(libc::c_long::from(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) }))?;
    let fd = RawFd::try_from(ret).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel has just made it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens `/dev/null` on those of the descriptors 0 to 2 that are closed, for the rest of the process's life.
///
/// # Errors
/// open(2).
pub fn occupy_standard() -> io::Result<()> {
    loop {
        // SAFETY: a NUL-terminated constant; the descriptor is either above the standard ones and closed here, or
        // meant to stay.
        let fd = check(libc::c_long::from(unsafe {
            libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)
        }))?;
        if fd > 2 {
            // SAFETY: just opened, owned by nobody else.
            unsafe { libc::close(fd as RawFd) };
            return Ok(());
        }
    }
}

/// Called by the C library before the runtime starts, which would open `/dev/null` for reading and writing on each
/// standard descriptor that the caller closed: what we write would vanish without an error. Opened for reading, it
/// says EBADF to who writes, and the end of the file to who reads.
extern "C" fn hold_standard() {
    for number in 0..=2 {
        // SAFETY: no memory but a NUL-terminated constant is passed. Lower numbers are taken, so that the kernel gives
        // this one; nobody owns it yet. Runs before any other code of ours, in the only thread. open(2).
        unsafe {
            if libc::fcntl(number, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
            }
        }
    }
}

// SAFETY: `.init_array` is a table of such functions, called in order before `main`. System V ABI, "Initialization and
// Termination Functions".
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = hold_standard;

//! Bringing up the loopback interface of a fresh network namespace. netdevice(7).

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets `lo` up; `socket` is any datagram socket of the namespace.
///
/// # Errors
/// ioctl(2) SIOCSIFFLAGS.
pub fn loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: ifreq is plain data; all-zero is valid.
    let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in req.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    req.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `req` is a NUL-terminated ifreq that outlives the call.
    let ret = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut req) };
    check(libc::c_long::from(ret)).map(drop)
}

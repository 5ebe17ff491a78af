//! seccomp_unotify(2): a filter whose refusals another process answers. The one answer that can be given here is an
//! errno: there is no way to let a call go on.

use super::check;
use super::seccomp::{Insn, set_filter};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// To be named in the answer.
    pub id: u64,
    /// The call number, as the filter sees it.
    pub nr: u32,
    /// `AUDIT_ARCH_*`.
    pub arch: u32,
    /// The arguments, as registers.
    pub args: [u64; 6],
}

/// Installs `program` on the calling thread, with a listener for its `SECCOMP_RET_USER_NOTIF`. The descriptor is
/// closed on execve. Once the listener has seen a call, only a fatal signal interrupts that (Linux 5.19; before, any
/// signal does).
///
/// # Errors
/// seccomp(2); EBUSY when a filter that is already installed has a listener.
pub fn install(program: &[Insn]) -> io::Result<OwnedFd> {
    let with = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let fd = match set_filter(program, with | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => set_filter(program, with),
        other => other,
    }?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The next call that waits. Blocks when there is none: poll(2) first.
///
/// # Errors
/// ENOENT when it no longer waits (its process was killed or interrupted).
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Notice> {
    // SAFETY: plain data, which the kernel wants zeroed.
    let mut notif: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request's number carries the size of the structure, which is valid for writing.
    let ret = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notif) };
    check(libc::c_long::from(ret))?;
    let data = notif.data;
    Ok(Notice { id: notif.id, nr: data.nr as u32, arch: data.arch, args: data.args })
}

/// Makes the call fail with `errno` (greater than zero).
///
/// # Errors
/// EINVAL for another number; ENOENT when the call no longer waits.
pub fn refuse(listener: BorrowedFd<'_>, id: u64, errno: i32) -> io::Result<()> {
    if !(1..4096).contains(&errno) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let answer = libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 };
    // SAFETY: the request's number carries the size of the structure, which the kernel only reads. Without
    // SECCOMP_USER_NOTIF_FLAG_CONTINUE the call is never executed.
    let ret = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    check(libc::c_long::from(ret)).map(drop)
}

/// Asks the kernel to switch directly between the caller and whoever answers, which halves the time of a call
/// (Linux 6.6).
///
/// # Errors
/// EINVAL or ENOTTY on older kernels.
pub fn wake_in_step(listener: BorrowedFd<'_>) -> io::Result<()> {
    const FD_SYNC_WAKE_UP: u64 = 1;
    // SAFETY: the argument is a number.
    let ret =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, FD_SYNC_WAKE_UP) };
    check(libc::c_long::from(ret)).map(drop)
}

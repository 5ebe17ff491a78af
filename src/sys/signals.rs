//! Signal dispositions: a stage's child starts with the defaults and an empty mask.

use std::io;

/// Resets every signal to its default action and unblocks all. SIGPIPE, which Rust's runtime ignores, and those that
/// the caller ignored included; also the two that libc keeps for itself, since a caller may have them ignored.
///
/// # Errors
/// sigprocmask(2).
pub fn reset() -> io::Result<()> {
    /// `struct kernel_sigaction`, large enough for every architecture; all zero is `SIG_DFL`, no flags, no mask.
    const DEFAULT: [u64; 8] = [0; 8];
    const SIGSET_BYTES: usize = 8;
    for sig in 1..=64 {
        // SAFETY: the kernel reads one sigaction from `DEFAULT`, which is longer than any; no handler is installed.
        // SIGKILL and SIGSTOP cannot be changed and fail with EINVAL, which is what we want of them.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                sig,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<u64>(),
                SIGSET_BYTES,
            )
        };
    }
    unblock()
}

/// Unblocks every signal.
///
/// # Errors
/// sigprocmask(2).
pub fn unblock() -> io::Result<()> {
    let none = 0u64;
    // SAFETY: the kernel reads the eight bytes of its own signal set; null for the old set is allowed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
    super::check(ret).map(drop)
}

//! Signal dispositions: a stage's child starts with the defaults and an empty mask.

use std::io;

/// Resets every signal to its default action and unblocks all. SIGPIPE, which Rust's runtime ignores,
/// included.
///
/// # Errors
/// sigprocmask(2).
pub fn reset() -> io::Result<()> {
    for sig in 1..=64 {
        // SAFETY: SIG_DFL installs no handler; numbers that cannot be changed (SIGKILL, SIGSTOP, the two that
        // libc keeps) fail with EINVAL, which is what we want of them.
        unsafe { libc::signal(sig, libc::SIG_DFL) };
    }
    // SAFETY: both sets are valid for the call; null for the old set is allowed. sigprocmask(2).
    let ret = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    super::check(libc::c_long::from(ret)).map(drop)
}

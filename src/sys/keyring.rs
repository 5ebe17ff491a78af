//! keyctl(2): a session keyring of one's own. Keyrings survive every namespace.

use super::check;
use std::io;

/// Leaves the inherited session keyring for a fresh anonymous one. keyctl(2) KEYCTL_JOIN_SESSION_KEYRING.
///
/// # Errors
/// keyctl(2); ENOSYS on kernels without keys.
pub fn join_new_session() -> io::Result<()> {
    // SAFETY: a null name asks for an anonymous keyring; no memory is passed.
    check(unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>())
    })
    .map(drop)
}

/// Asks for the id of the session keyring without creating one; a canary of the system-call filter.
///
/// # Errors
/// keyctl(2).
pub fn session_id() -> io::Result<i64> {
    // SAFETY: no memory is passed.
    check(unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_GET_KEYRING_ID, libc::KEY_SPEC_SESSION_KEYRING, 0)
    })
}

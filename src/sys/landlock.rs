//! What the landlock crate keeps to itself: the ABI and errata numbers, and restricting with a descriptor
//! that was built earlier. landlock(7).

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const CREATE_RULESET_VERSION: u32 = 1;
const CREATE_RULESET_ERRATA: u32 = 2;

fn query(flag: u32) -> io::Result<u32> {
    // SAFETY: with a query flag the attribute pointer must be null and its size 0. landlock_create_ruleset(2).
    let ret =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, flag) };
    check(ret).map(|v| v as u32)
}

/// The kernel's Landlock ABI.
///
/// # Errors
/// ENOSYS when not built, EOPNOTSUPP when disabled at boot.
pub fn abi() -> io::Result<u32> {
    query(CREATE_RULESET_VERSION)
}

/// The bit set of fixed errata; 0 on kernels that cannot tell.
pub fn errata() -> u32 {
    query(CREATE_RULESET_ERRATA).unwrap_or(0)
}

/// Restricts the calling thread by `ruleset`; needs no_new_privs. landlock_restrict_self(2).
///
/// # Errors
/// landlock_restrict_self(2).
pub fn restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) }).map(drop)
}

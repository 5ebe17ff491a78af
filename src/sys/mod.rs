//! The only `unsafe` of the package: one file per kernel facility that nix and rustix lack. Takes and
//! returns owned and borrowed descriptors, knows no policy, logs nothing.
#![expect(unsafe_code, reason = "the fence: system calls without a safe wrapper live here and nowhere else")]

pub mod clone;
pub mod exec;
pub mod fds;
pub mod keyring;
pub mod landlock;
pub mod link;
pub mod memory;
pub mod mount;
pub mod notify;
pub mod ptrace;
pub mod seccomp;
pub mod signals;
pub mod wait;

use std::io;

/// Turns a raw system call's result into a `Result`.
fn check(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

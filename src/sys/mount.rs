//! mount_setattr(2), which neither nix nor rustix has.

use super::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Attributes to change on a mount.
#[derive(Debug, Default, Clone, Copy)]
pub struct Attrs<'fd> {
    /// `MOUNT_ATTR_*` to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` to clear.
    pub clear: u64,
    /// `MS_PRIVATE`, `MS_SLAVE`, …; 0 leaves the propagation as it is.
    pub propagation: u64,
    /// The user namespace whose map an idmapped mount takes (sets `MOUNT_ATTR_IDMAP`).
    pub idmap: Option<BorrowedFd<'fd>>,
}

/// `MOUNT_ATTR_RDONLY`.
pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
/// `MOUNT_ATTR_NOSUID`.
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
/// `MOUNT_ATTR_NODEV`.
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
/// `MOUNT_ATTR_NOEXEC`.
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Changes the mount at `dir`/`path` (the mount of `dir` itself when `path` is empty), and the mounts below
/// it when `recursive`.
///
/// # Errors
/// mount_setattr(2).
pub fn set_attrs(dir: BorrowedFd<'_>, path: &CStr, recursive: bool, attrs: Attrs<'_>) -> io::Result<()> {
    let mut flags = 0;
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH;
    }
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    let mut raw = libc::mount_attr {
        attr_set: attrs.set,
        attr_clr: attrs.clear,
        propagation: attrs.propagation,
        userns_fd: 0,
    };
    if let Some(ns) = attrs.idmap {
        raw.attr_set |= libc::MOUNT_ATTR_IDMAP;
        raw.userns_fd = ns.as_raw_fd() as u64;
    }
    // SAFETY: `path` is NUL-terminated, `raw` is a valid mount_attr of the size given; both outlive the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir.as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw mut raw,
            size_of::<libc::mount_attr>(),
        )
    };
    check(ret).map(drop)
}

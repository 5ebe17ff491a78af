//! Identities as the kernel keeps them: the outer user namespace's maps, written by the owner, and idmapped
//! mounts. user_namespaces(7), mount_setattr(2).

use crate::plan::{IdPlan, Mode};
use crate::sys::clone::{Cloned, clone3, exit_now};
use crate::sys::wait::wait4;
use rustix::fs::{Mode as FileMode, OFlags};
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Size of an id range.
pub const RANGE: u32 = 65_536;

/// The lines of `uid_map` and `gid_map` for the outer user namespace.
pub fn outer_maps(ids: &IdPlan, mode: Mode, base: u32, caller: (u32, u32)) -> (String, String) {
    match mode {
        Mode::Rootless => (format!("0 {} 1\n", caller.0), format!("0 {} 1\n", caller.1)),
        Mode::Privileged => (range_map(ids.outer_uid, base), range_map(ids.outer_gid, base)),
    }
}

/// The identity range, with an owner beyond it taking its last number.
fn range_map(owner: u32, base: u32) -> String {
    let mut out = String::new();
    if owner < RANGE {
        let _ = writeln!(out, "0 {base} {RANGE}");
    } else {
        let _ = writeln!(out, "0 {base} {}", RANGE - 1);
        let _ = writeln!(out, "{owner} {} 1", base + RANGE - 1);
    }
    out
}

/// The host's number for id `inside` of the outer namespace.
pub fn host_id(inside: u32, base: u32) -> u32 {
    if inside < RANGE { base + inside } else { base + RANGE - 1 }
}

/// Writes the maps of process `pid` (blocked, in a fresh user namespace) through `proc`, an open procfs.
///
/// # Errors
/// openat(2), write(2): EPERM when the ranges may not be mapped.
pub fn write_maps(
    proc: BorrowedFd<'_>,
    pid: i32,
    maps: &(String, String),
    deny_setgroups: bool,
) -> io::Result<()> {
    let put = |name: &str, text: &str| -> io::Result<()> {
        let path = format!("{pid}/{name}");
        let file = rustix::fs::openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, FileMode::empty())?;
        // A map is written in one call or not at all.
        let n = rustix::io::write(&file, text.as_bytes())?;
        if n == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    };
    if deny_setgroups {
        put("setgroups", "deny")?;
    }
    put("uid_map", &maps.0)?;
    put("gid_map", &maps.1)
}

/// The user namespace of process `pid`.
///
/// # Errors
/// openat(2).
pub fn user_namespace(proc: BorrowedFd<'_>, pid: i32) -> io::Result<OwnedFd> {
    let path = format!("{pid}/ns/user");
    Ok(rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, FileMode::empty())?)
}

/// A user namespace in which `owner` (uid, gid) is `host`, and nobody else is anybody: for a tree whose owner is
/// another than the workspace's.
///
/// # Errors
/// clone3(2), pipe2(2), openat(2), write(2).
pub fn namespace_of(proc: BorrowedFd<'_>, owner: (u32, u32), host: (u32, u32)) -> io::Result<OwnedFd> {
    let (wait, gate) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match clone3(libc::CLONE_NEWUSER as u64, None)? {
        Cloned::Child => {
            drop(gate);
            // Until the other end is closed, or its holder is gone.
            let _ = rustix::io::read(&wait, &mut [0u8; 1]);
            exit_now(0)
        }
        Cloned::Parent { pid, .. } => {
            let maps = (format!("{} {} 1\n", owner.0, host.0), format!("{} {} 1\n", owner.1, host.1));
            let namespace = write_maps(proc, pid, &maps, false).and_then(|()| user_namespace(proc, pid));
            drop(gate);
            wait4(pid, true)?;
            namespace
        }
    }
}

/// Makes a detached tree idmapped by `userns`.
///
/// # Errors
/// mount_setattr(2): EINVAL when the file system cannot be idmapped.
pub fn apply(tree: BorrowedFd<'_>, userns: &OwnedFd) -> io::Result<()> {
    let attrs = crate::sys::mount::Attrs { idmap: Some(userns.as_fd()), ..Default::default() };
    crate::sys::mount::set_attrs(tree, c"", true, attrs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::InsideUser;

    fn ids(outer: u32) -> IdPlan {
        IdPlan { inside: 1000, user: InsideUser::Agent, outer_uid: outer, outer_gid: outer, init: 65_533 }
    }

    #[test]
    fn maps_never_name_host_root() {
        let (uid, gid) = outer_maps(&ids(0), Mode::Privileged, 1_879_048_192, (0, 0));
        assert_eq!(uid, "0 1879048192 65536\n");
        assert_eq!(uid, gid);
        assert_eq!(host_id(0, 1_879_048_192), 1_879_048_192);
    }

    #[test]
    fn owners_beyond_the_range_take_its_last_id() {
        let (uid, _) = outer_maps(&ids(1_000_000), Mode::Privileged, 65_536 * 30_000, (0, 0));
        assert_eq!(uid, "0 1966080000 65535\n1000000 1966145535 1\n");
        assert_eq!(host_id(1_000_000, 1_966_080_000), 1_966_145_535);
    }

    #[test]
    fn rootless_maps_the_caller_alone() {
        let (uid, gid) = outer_maps(&ids(0), Mode::Rootless, 0, (1001, 1002));
        assert_eq!((uid.as_str(), gid.as_str()), ("0 1001 1\n", "0 1002 1\n"));
    }
}

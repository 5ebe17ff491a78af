//! clone3(2), fork(2) and _exit(2) for a single-threaded caller.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `CLONE_INTO_CGROUP`; libc's constant is 0 (it overflows its type), clone3(2) has 0x200000000.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// `CLONE_CLEAR_SIGHAND`, likewise.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// Which side of a clone the caller is on.
#[derive(Debug)]
pub enum Cloned {
    /// The new process.
    Child,
    /// The old one, with the child's pid and a descriptor of it.
    Parent {
        /// pid in the caller's PID namespace.
        pid: i32,
        /// pidfd, close-on-exec.
        pidfd: OwnedFd,
    },
}

/// Clones the calling process, copy-on-write, into the namespaces that `namespaces` (`CLONE_NEW*`) names,
/// signal handlers reset, born in `cgroup` (a cgroup2 directory) when given.
///
/// # Errors
/// clone3(2); also EINVAL when the process has more than one thread, since the child of a threaded process
/// may not allocate.
pub fn clone3(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    if !single_threaded() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain data for which all-zero is the documented default.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64 | CLONE_CLEAR_SIGHAND;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(dir) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = dir.as_raw_fd() as u64;
    }
    // SAFETY: no CLONE_VM and no stack: the child continues on a copy-on-write copy of this stack, as after
    // fork(2). The process has one thread (checked above), so no lock can be held by a thread that the child
    // lacks. `args` outlives the call; the kernel writes `pidfd` before it returns. clone3(2).
    let ret = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match check(ret)? {
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: the kernel has just made this descriptor for us (CLONE_PIDFD).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// Whether this process has one thread. Counts the entries of `/proc/self/task`; when that cannot be read
/// (no procfs), the answer is yes only before any thread can have been made, which the callers guarantee.
fn single_threaded() -> bool {
    match rustix::fs::stat("/proc/self/task") {
        // A directory's link count is 2 + the number of subdirectories, one per thread. proc(5).
        Ok(st) => st.st_nlink <= 3,
        Err(_) => true,
    }
}

/// Ends the calling process at once, without destructors or buffered output. _exit(2).
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// unshare(2) with the given `CLONE_NEW*` flags.
///
/// # Errors
/// unshare(2).
pub fn unshare(flags: u64) -> io::Result<()> {
    // SAFETY: namespace flags only (no CLONE_FILES, CLONE_FS or CLONE_VM semantics that std relies upon),
    // and no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_unshare, flags) }).map(drop)
}

/// A plain fork(2) by the `clone` system call, for a process that may no longer use clone3. Returns 0 in the
/// child.
///
/// # Errors
/// clone(2); EINVAL when the process has more than one thread.
pub fn fork() -> io::Result<i32> {
    if !single_threaded() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: no CLONE_VM, no stack: as fork(2). The process has one thread, so the child may go on using memory
    // and locks.
    let ret = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD as u64, 0usize, 0usize, 0usize, 0usize) };
    check(ret).map(|pid| pid as i32)
}

//! ptrace(2), as far as looking at the results of another process's system calls needs it. Nothing here changes a
//! tracee's registers or memory.

use super::check;
use std::io;

/// What a tracee stopped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// On its way into a system call.
    Entry {
        /// Number.
        nr: u32,
        /// The arguments, as registers.
        args: [u64; 6],
    },
    /// On its way out of one.
    Exit {
        /// What it returns; negative errno for a failure.
        value: i64,
        /// Whether that is a failure.
        failed: bool,
    },
    /// Something else.
    Other,
}

fn request(what: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests that are made here takes a pointer: `data` is a number to the kernel.
    // ptrace(2): the tracer is the thread that seized; init has one.
    let ret = unsafe { libc::ptrace(what, pid, std::ptr::null_mut::<libc::c_void>(), data) };
    check(ret).map(drop)
}

/// Begins to trace `pid` and everything that it will start; all of them die with the tracer.
///
/// # Errors
/// ptrace(2): EPERM where it may not be traced.
pub fn seize(pid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, options as usize)?;
    request(libc::PTRACE_INTERRUPT, pid, 0)
}

/// Lets a stopped tracee go on to its next system call's beginning or end, with `signal` delivered (0: none).
///
/// # Errors
/// ESRCH when it is gone or not stopped.
pub fn resume(pid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, pid, signal as usize)
}

/// Leaves a tracee stopped as job control has it.
///
/// # Errors
/// ESRCH when it is gone or not stopped.
pub fn listen(pid: i32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, pid, 0)
}

/// Why a tracee is in a system-call stop.
///
/// # Errors
/// ptrace(2): EIO before Linux 5.3.
pub fn stop_of(pid: i32) -> io::Result<Stop> {
    // SAFETY: plain data, for which all zeroes is a value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes to `info`, which has so many.
    let ret = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, &raw mut info) };
    check(ret)?;
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says that this member is the one that was written.
            let entry = unsafe { info.u.entry };
            Stop::Entry { nr: entry.nr as u32, args: entry.args }
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: as above.
            let exit = unsafe { info.u.exit };
            Stop::Exit { value: exit.sval, failed: exit.is_error != 0 }
        }
        _ => Stop::Other,
    })
}

//! Room for this process itself, before it does anything: the stack and the descriptors that it needs. A caller may
//! have limited both; where the limit may be raised it is, and where not nothing is begun. The command has limits of its
//! own, which the plan sets.

use crate::supervise::faults;
use crate::supervise::outcome::Fault;
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsString;

/// Bytes of stack beside the arguments and the environment that `exec` needs, with a margin. Of a release build and
/// of an unoptimised one.
const EXEC_STACK: u64 = if cfg!(debug_assertions) { 104 << 10 } else { 48 << 10 };
/// Of the other commands, whose definitions are larger.
const OTHER_STACK: u64 = if cfg!(debug_assertions) { 200 << 10 } else { 80 << 10 };
/// What a limit is raised to where that is permitted.
const STACK_WISH: u64 = 1 << 20;
/// Descriptors that a run under a built-in profile needs, with a margin. Sources of mounts need one more each.
const DESCRIPTORS: u64 = 64;
/// Likewise.
const DESCRIPTORS_WISH: u64 = 4096;

/// Takes the room, or says what is too small.
///
/// # Errors
/// A limit that cannot be raised to what is needed.
pub fn take(args: &[OsString]) -> Result<(), Fault> {
    // A limit on our own files must not kill us: the write then says EFBIG, which is reported.
    let mut silent = SigSet::empty();
    silent.add(Signal::SIGXFSZ);
    // Cannot fail with a valid set. sigprocmask(2).
    let _ = silent.thread_block();
    let own = if args.get(1).is_some_and(|a| a == "exec") { EXEC_STACK } else { OTHER_STACK };
    let needed = own + start_block(args);
    if raised(Resource::Stack, needed, STACK_WISH) < needed {
        return Err(refused(
            "stack_limit",
            format!(
                "the limit on the stack is below the {}KiB that stockade needs here",
                needed.div_ceil(1024)
            ),
            format!("raise it: ulimit -s {}", needed.div_ceil(1024).next_multiple_of(64)),
        ));
    }
    let limit = raised(Resource::Nofile, DESCRIPTORS, DESCRIPTORS_WISH);
    // With few descriptors, what runs out decides what looks like a missing feature of the kernel.
    if limit < DESCRIPTORS_WISH && limit.saturating_sub(open_descriptors()) < DESCRIPTORS {
        return Err(refused(
            "descriptor_limit",
            format!(
                "fewer than the {DESCRIPTORS} open files that stockade needs are left of the limit of {limit}"
            ),
            "raise it: ulimit -n 1024".to_owned(),
        ));
    }
    Ok(())
}

/// The soft limit, after raising it to `wish` or as far as the hard one permits when it is below.
fn raised(resource: Resource, needed: u64, wish: u64) -> u64 {
    let now = getrlimit(resource);
    let current = now.current.unwrap_or(u64::MAX);
    if current >= wish.max(needed) {
        return current;
    }
    let most = now.maximum.unwrap_or(u64::MAX).min(wish.max(needed));
    let raise =
        most > current && setrlimit(resource, Rlimit { current: Some(most), maximum: now.maximum }).is_ok();
    if raise { most } else { current }
}

/// Bytes of the initial stack that the kernel has filled: strings, pointers to them, and a margin for the auxiliary
/// vector and the random offset. execve(2).
fn start_block(args: &[OsString]) -> u64 {
    const MARGIN: usize = 12 << 10;
    let strings = args.iter().map(|a| a.len() + 9).sum::<usize>()
        + std::env::vars_os().map(|(name, value)| name.len() + value.len() + 10).sum::<usize>();
    (strings + MARGIN) as u64
}

/// How many are open: all, when there is none left to count them with. Where `/proc` is not there, which is refused
/// later, none.
fn open_descriptors() -> u64 {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(all) => all.count() as u64,
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => u64::MAX,
        Err(_) => 0,
    }
}

fn refused(code: &'static str, message: String, hint: String) -> Fault {
    faults::sandbox(code, "starting", None, message, Some(&hint))
}

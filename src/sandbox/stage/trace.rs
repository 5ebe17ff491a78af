//! **Process:** init, for `--trace-denials`: an explicit and slow way to learn which paths the command was refused, also
//! when it does not say so. init traces the command and all that it starts, looks at the result of each system call, and
//! keeps those that failed in a way that a sandbox can be the cause of. It changes nothing: no register, no memory, no
//! result; what is traced dies with init.
//!
//! What is kept lies in a file in memory that the owner holds as well, so that it survives a killed init. What is read
//! of a tracee's memory was written by the command, and may have changed since the kernel read it.

use super::wire::{AtStep, StageFault, Step};
use crate::plan::seccomp::Arch;
use crate::sys::ptrace::{self, Stop};
use rustix::fs::{CWD, MemfdFlags};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

/// Failures that are kept: the first so many that are no `ENOENT`, and the last so many that are.
pub const KEPT_MAX: usize = 64;
/// Bytes of one in the file: order, call, errno and length, and the path.
const SLOT: usize = 1024;
const HEAD: usize = 12;
const PATH_MAX: usize = SLOT - HEAD;
/// Stops handled before init looks after its other duties.
pub const ROUND: usize = 64;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// Its number, on the native architecture.
    pub nr: u32,
    /// errno.
    pub errno: i32,
    /// The path that it named; absolute where that could be said.
    pub path: Vec<u8>,
}

/// Calls with a path, and the arguments that are the directory (where there is one) and the path.
const CALLS: &[(&str, Option<usize>, usize)] = &[
    ("open", None, 0),
    ("openat", Some(0), 1),
    ("openat2", Some(0), 1),
    ("creat", None, 0),
    ("mkdir", None, 0),
    ("mkdirat", Some(0), 1),
    ("rmdir", None, 0),
    ("unlink", None, 0),
    ("unlinkat", Some(0), 1),
    ("rename", None, 0),
    ("renameat", Some(0), 1),
    ("renameat2", Some(0), 1),
    ("link", None, 1),
    ("linkat", Some(2), 3),
    ("symlink", None, 1),
    ("symlinkat", Some(1), 2),
    ("chmod", None, 0),
    ("fchmodat", Some(0), 1),
    ("fchmodat2", Some(0), 1),
    ("chown", None, 0),
    ("lchown", None, 0),
    ("fchownat", Some(0), 1),
    ("truncate", None, 0),
    ("utimensat", Some(0), 1),
    ("mknod", None, 0),
    ("mknodat", Some(0), 1),
    ("setxattr", None, 0),
    ("lsetxattr", None, 0),
    ("execve", None, 0),
    ("execveat", Some(0), 1),
    ("chdir", None, 0),
    ("stat", None, 0),
    ("lstat", None, 0),
    ("newfstatat", Some(0), 1),
    ("statx", Some(0), 1),
    ("access", None, 0),
    ("faccessat", Some(0), 1),
    ("faccessat2", Some(0), 1),
    ("readlink", None, 0),
    ("readlinkat", Some(0), 1),
];

/// Whether a sandbox can be the cause of an errno.
fn matters(errno: i32) -> bool {
    matches!(errno, libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT | libc::EBUSY | libc::ENOSPC)
}

/// The tracer.
#[derive(Debug)]
pub struct Tracer {
    file: OwnedFd,
    first: i32,
    /// The command has been executed: what went before was ours.
    began: bool,
    calls: BTreeMap<i32, (u32, [u64; 6])>,
    known: Vec<Traced>,
    missing: usize,
    order: u32,
}

impl Tracer {
    /// Begins to trace `pid`, which stands at its gate.
    ///
    /// # Errors
    /// memfd_create(2); ptrace(2), where the host's restrictions forbid it.
    pub fn begin(pid: i32) -> Result<Self, StageFault> {
        let file = rustix::fs::memfd_create("trace", MemfdFlags::CLOEXEC).at(Step::Trace)?;
        rustix::fs::ftruncate(&file, (2 * KEPT_MAX * SLOT) as u64).at(Step::Trace)?;
        ptrace::seize(pid).at(Step::Trace)?;
        let (calls, known) = (BTreeMap::new(), Vec::new());
        Ok(Self { file, first: pid, began: false, calls, known, missing: 0, order: 0 })
    }

    /// Where what is kept lies.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// A tracee has stopped, with this wait status: looks at why, and lets it go on. One that was killed meanwhile is
    /// gone, which its next status says.
    pub fn stopped(&mut self, pid: i32, status: i32) {
        const IN_CALL: i32 = libc::SIGTRAP | 0x80;
        let (signal, event) = (status >> 8 & 0xff, status >> 16);
        let _ = match (signal, event) {
            (IN_CALL, _) => {
                self.call(pid);
                ptrace::resume(pid, 0)
            }
            (libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU, libc::PTRACE_EVENT_STOP) => {
                ptrace::listen(pid)
            }
            (_, 0) => ptrace::resume(pid, signal),
            _ => {
                self.began |= event == libc::PTRACE_EVENT_EXEC && pid == self.first;
                ptrace::resume(pid, 0)
            }
        };
    }

    /// A tracee has ended.
    pub fn ended(&mut self, pid: i32) {
        self.calls.remove(&pid);
    }

    fn call(&mut self, pid: i32) {
        match ptrace::stop_of(pid) {
            Ok(Stop::Entry { nr, args }) => {
                self.calls.insert(pid, (nr, args));
            }
            Ok(Stop::Exit { value, failed }) => {
                let call = self.calls.remove(&pid);
                let errno = i32::try_from(-value).unwrap_or(0);
                if let Some((nr, args)) = call
                    && self.began
                    && failed
                    && matters(errno)
                    && let Some(path) = named(pid, nr, args)
                {
                    self.keep(Traced { nr, errno, path });
                }
            }
            Ok(Stop::Other) | Err(_) => {}
        }
    }

    fn keep(&mut self, traced: Traced) {
        let slot = if traced.errno == libc::ENOENT {
            self.missing += 1;
            KEPT_MAX + (self.missing - 1) % KEPT_MAX
        } else if self.known.len() < KEPT_MAX && !self.known.contains(&traced) {
            self.known.push(traced.clone());
            self.known.len() - 1
        } else {
            return;
        };
        self.order = self.order.saturating_add(1);
        // What cannot be kept is not told; the file was made large enough.
        let _ = rustix::io::pwrite(&self.file, &encode(self.order, &traced), (slot * SLOT) as u64);
    }
}

fn encode(order: u32, traced: &Traced) -> Vec<u8> {
    let path = &traced.path[..traced.path.len().min(PATH_MAX)];
    let mut out = Vec::with_capacity(SLOT);
    out.extend_from_slice(&order.to_le_bytes());
    out.extend_from_slice(&traced.nr.to_le_bytes());
    out.extend_from_slice(&(traced.errno as u16).to_le_bytes());
    out.extend_from_slice(&(path.len() as u16).to_le_bytes());
    out.extend_from_slice(path);
    out.resize(SLOT, 0);
    out
}

/// What a tracer has kept in `file`, in order. Bounded by the file's layout, whatever is in it.
pub fn kept(file: &OwnedFd) -> Vec<Traced> {
    let mut out = BTreeMap::new();
    for slot in 0..2 * KEPT_MAX {
        let mut raw = [0u8; SLOT];
        if rustix::io::pread(file, &mut raw, (slot * SLOT) as u64) == Ok(SLOT)
            && let Some((order, traced)) = decode(&raw)
        {
            out.insert(order, traced);
        }
    }
    out.into_values().collect()
}

fn decode(raw: &[u8; SLOT]) -> Option<(u32, Traced)> {
    let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let half = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
    let path = raw.get(HEAD..HEAD + usize::from(half(10)))?.to_vec();
    (word(0) != 0).then(|| (word(0), Traced { nr: word(4), errno: i32::from(half(8)), path }))
}

/// The path that a call names; `None` for a call without one, and where its memory can't be read.
fn named(pid: i32, nr: u32, args: [u64; 6]) -> Option<Vec<u8>> {
    let name = Arch::NATIVE.name(nr)?;
    let (_, dir, at) = CALLS.iter().find(|(call, ..)| *call == name)?;
    let path = text(pid, args[*at])?;
    if path.is_empty() || path.starts_with(b"/") {
        return Some(path).filter(|path| !path.is_empty());
    }
    let base = match dir.map(|dir| args[dir] as i32) {
        None | Some(libc::AT_FDCWD) => format!("/proc/{pid}/cwd"),
        Some(fd) => format!("/proc/{pid}/fd/{fd}"),
    };
    // Without procfs in the executor, or for a directory that is gone: as it was named.
    let base = rustix::fs::readlinkat(CWD, base, Vec::new()).map(std::ffi::CString::into_bytes);
    Some(match base {
        Ok(base) if base.starts_with(b"/") => [&base, &b"/"[..], &path].concat(),
        _ => path,
    })
}

/// The string at `at` in the memory of `pid`, as far as it is kept.
fn text(pid: i32, at: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut at = usize::try_from(at).ok()?;
    while out.len() < PATH_MAX {
        // Page by page: the next one may not be there.
        let want = (4096 - at % 4096).min(PATH_MAX - out.len());
        let mut chunk = vec![0u8; want];
        let remote = [nix::sys::uio::RemoteIoVec { base: at, len: want }];
        let pid = nix::unistd::Pid::from_raw(pid);
        let n = nix::sys::uio::process_vm_readv(pid, &mut [IoSliceMut::new(&mut chunk)], &remote).ok()?;
        let end = chunk[..n].iter().position(|b| *b == 0);
        out.extend_from_slice(&chunk[..end.unwrap_or(n)]);
        if end.is_some() || n == 0 {
            break;
        }
        at = at.checked_add(n)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_in_order() {
        let file = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, (2 * KEPT_MAX * SLOT) as u64).unwrap();
        let mut tracer = Tracer {
            file,
            first: 1,
            began: true,
            calls: BTreeMap::new(),
            known: Vec::new(),
            missing: 0,
            order: 0,
        };
        let one = |errno, path: &str| Traced { nr: 2, errno, path: path.into() };
        tracer.keep(one(libc::EROFS, "/a"));
        tracer.keep(one(libc::EROFS, "/a"));
        for n in 0..200 {
            tracer.keep(one(libc::ENOENT, &format!("/n{n}")));
        }
        tracer.keep(one(libc::EACCES, &"x".repeat(5000)));
        let kept = kept(&tracer.file);
        assert_eq!(kept.len(), 2 + KEPT_MAX);
        assert_eq!((&kept[0], &kept[1]), (&one(libc::EROFS, "/a"), &one(libc::ENOENT, "/n136")));
        assert_eq!(kept.last().unwrap().path.len(), PATH_MAX);
        for nr in 0..500 {
            tracer.keep(Traced { nr, ..one(libc::EPERM, "/x") });
        }
        assert_eq!(super::kept(&tracer.file).len(), 2 * KEPT_MAX);
    }

    #[test]
    fn any_slot_is_read_within_it() {
        assert_eq!(decode(&[0; SLOT]), None);
        assert_eq!(decode(&[0xff; SLOT]), None, "a length beyond the slot");
    }

    #[test]
    fn every_name_is_a_call_somewhere() {
        for (name, ..) in CALLS {
            assert!(crate::plan::seccomp::is_call(name), "{name}");
        }
    }
}

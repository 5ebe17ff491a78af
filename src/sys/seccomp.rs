//! seccomp(2): installing a classic BPF program as a filter, and probing calls that the canaries try.

use super::check;
use std::io;

/// One instruction, as the kernel takes it (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    /// Operation.
    pub code: u16,
    /// Jump when true.
    pub jt: u8,
    /// Jump when false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Installs `program` on the calling thread; needs no_new_privs or CAP_SYS_ADMIN.
///
/// # Errors
/// seccomp(2); EINVAL for an empty or overlong program.
pub fn install(program: &[Insn]) -> io::Result<()> {
    set_filter(program, 0).map(drop)
}

/// The same by prctl(2), for a thread whose filter does not let it call seccomp(2).
///
/// # Errors
/// PR_SET_SECCOMP(2const); EINVAL for an empty or overlong program.
pub fn install_on_top(program: &[Insn]) -> io::Result<()> {
    let prog = header(program)?;
    // SAFETY: as in `set_filter`.
    let ret = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const prog) };
    check(libc::c_long::from(ret)).map(drop)
}

fn header(program: &[Insn]) -> io::Result<libc::sock_fprog> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    Ok(libc::sock_fprog { len, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() })
}

/// `SECCOMP_SET_MODE_FILTER` with `flags`; what the call returns.
pub(super) fn set_filter(program: &[Insn], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let prog = header(program)?;
    // SAFETY: Insn has sock_filter's layout; the kernel only reads the program, which outlives the call.
    let ret =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const prog) };
    check(ret)
}

/// Makes system call `nr` with arguments that name no memory (small integers or null pointers), to see what
/// the filter answers.
///
/// # Errors
/// The call's errno, which is the point.
pub fn try_call(nr: i64, args: [u32; 4]) -> io::Result<i64> {
    // SAFETY: arguments are integers below 2^32 that callers choose so that no valid pointer can arise (null or
    // -1 as descriptor); a call that got through would fail with EFAULT, EBADF or EINVAL.
    check(unsafe { libc::syscall(nr, args[0], args[1], args[2], args[3]) })
}

/// Makes a call through the 32-bit gate (`int 0x80`, getpid), which a filter on the native ABI must not let
/// through. Returns only if it did. x86-64 alone has this gate.
#[cfg(target_arch = "x86_64")]
pub fn foreign_abi_getpid() -> i64 {
    let ret: i64;
    // SAFETY: number 20 is getpid of the i386 table and takes no arguments; the gate clobbers r8 to r11 on entry
    // from 64-bit code, which are declared.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") 20i64 => ret, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    ret
}

//! A classic-BPF machine, as small as seccomp filters need.
//!
//! `policy explain` asks it what a filter answers to a call, and the tests compare programs with
//! it. It knows the instructions that our assembler and seccompiler emit; anything else is a
//! fault, as is a program that leaves its end or loads outside `seccomp_data`.
//! Reference: `Documentation/networking/filter.rst` and `seccomp_check_filter` in `kernel/seccomp.c`.

use super::Word;

/// `BPF_LD | BPF_W | BPF_ABS`: A = 32-bit word of `seccomp_data` at offset k.
pub(super) const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`: A &= k.
pub(super) const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JA`: skip k instructions.
pub(super) const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
pub(super) const JEQ: u16 = 0x15;
/// `BPF_JMP | BPF_JGT | BPF_K`, unsigned.
pub(super) const JGT: u16 = 0x25;
/// `BPF_JMP | BPF_JGE | BPF_K`, unsigned.
pub(super) const JGE: u16 = 0x35;
/// `BPF_RET | BPF_K`.
pub(super) const RET: u16 = 0x06;

/// Offset of the call number in `struct seccomp_data`.
pub(super) const OFFSET_NR: u32 = 0;
/// Offset of the architecture.
pub(super) const OFFSET_ARCH: u32 = 4;

/// One system call as the kernel shows it to a filter: `struct seccomp_data`, seccomp(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call number; the kernel's `int`, seen by the filter as 32 unsigned bits.
    pub nr: u32,
    /// `AUDIT_ARCH_*`.
    pub arch: u32,
    /// The six arguments, as registers.
    pub args: [u64; 6],
}

/// What a filter answers: the high half of its return value, seccomp(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `SECCOMP_RET_ALLOW`.
    Allow,
    /// `SECCOMP_RET_ERRNO` with this errno.
    Errno(u16),
    /// `SECCOMP_RET_USER_NOTIF`: whoever holds the listener answers.
    Ask,
    /// `SECCOMP_RET_KILL_PROCESS`.
    KillProcess,
    /// Any other return value, which our filters never give.
    Other(u32),
}

/// Why a program can't be run; a correct one never gets here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The program counter left the program.
    #[error("instruction {0} lies outside the program")]
    OutOfProgram(usize),
    /// An instruction outside the supported subset.
    #[error("instruction {at} has the unsupported code {code:#x}")]
    Unsupported {
        /// Index of the instruction.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// A load that is unaligned or outside `seccomp_data`.
    #[error("instruction {at} loads from offset {offset}")]
    Load {
        /// Index of the instruction.
        at: usize,
        /// The offset.
        offset: u32,
    },
}

/// Runs `words` on one call and returns the raw 32-bit answer with the number of steps taken.
pub fn run(words: &[Word], call: &Call) -> Result<(u32, usize), Fault> {
    let mut accumulator = 0u32;
    let mut at = 0usize;
    // Every jump goes forward, so a program ends after at most its own length of steps.
    for steps in 1.. {
        let word = words.get(at).ok_or(Fault::OutOfProgram(at))?;
        let (jt, jf) = (usize::from(word.jt), usize::from(word.jf));
        let choose = |taken: bool| if taken { jt } else { jf };
        let skip = match word.code {
            RET => return Ok((word.k, steps)),
            LOAD => {
                accumulator = load(call, word.k).ok_or(Fault::Load { at, offset: word.k })?;
                0
            }
            AND => {
                accumulator &= word.k;
                0
            }
            JUMP => word.k as usize,
            JEQ => choose(accumulator == word.k),
            JGT => choose(accumulator > word.k),
            JGE => choose(accumulator >= word.k),
            code => return Err(Fault::Unsupported { at, code }),
        };
        at += 1 + skip;
    }
    Err(Fault::OutOfProgram(at))
}

/// [`run`], with the answer decoded.
pub fn verdict(words: &[Word], call: &Call) -> Result<Verdict, Fault> {
    let (value, _) = run(words, call)?;
    Ok(match value & libc::SECCOMP_RET_ACTION_FULL {
        libc::SECCOMP_RET_ALLOW => Verdict::Allow,
        libc::SECCOMP_RET_ERRNO => Verdict::Errno((value & libc::SECCOMP_RET_DATA) as u16),
        libc::SECCOMP_RET_USER_NOTIF => Verdict::Ask,
        libc::SECCOMP_RET_KILL_PROCESS => Verdict::KillProcess,
        _ => Verdict::Other(value),
    })
}

/// The word of `struct seccomp_data` at `offset` on a little-endian machine.
fn load(call: &Call, offset: u32) -> Option<u32> {
    match offset {
        OFFSET_NR => Some(call.nr),
        OFFSET_ARCH => Some(call.arch),
        // The instruction pointer: no filter of ours looks at it, and a call in question has none.
        8 | 12 => Some(0),
        16..64 if offset.is_multiple_of(4) => {
            let argument = call.args[(offset as usize - 16) / 8];
            Some(if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call { nr: 7, arch: 9, args: [0x1_0000_0002, 3, 4, 5, 6, u64::MAX] };

    fn word(code: u16, jt: u8, jf: u8, k: u32) -> Word {
        Word { code, jt, jf, k }
    }

    #[test]
    fn loads_see_number_architecture_and_both_halves_of_arguments() {
        for (offset, expected) in [(0, 7), (4, 9), (16, 2), (20, 1), (24, 3), (56, u32::MAX), (60, u32::MAX)]
        {
            assert_eq!(load(&CALL, offset), Some(expected), "{offset}");
        }
        for offset in [1, 18, 62, 64, u32::MAX] {
            assert_eq!(load(&CALL, offset), None, "{offset}");
        }
    }

    #[test]
    fn jumps_compare_unsigned_and_take_both_ways() {
        for (code, k, expected) in
            [(JEQ, 7, 1), (JEQ, 8, 0), (JGT, 6, 1), (JGT, 7, 0), (JGE, 7, 1), (JGE, 0xffff_ffff, 0)]
        {
            let program = [word(LOAD, 0, 0, 0), word(code, 1, 0, k), word(RET, 0, 0, 0), word(RET, 0, 0, 1)];
            assert_eq!(run(&program, &CALL).unwrap().0, expected, "{code:#x} {k}");
        }
    }

    #[test]
    fn faults_are_named() {
        assert_eq!(run(&[], &CALL), Err(Fault::OutOfProgram(0)));
        assert_eq!(run(&[word(JUMP, 0, 0, 5)], &CALL), Err(Fault::OutOfProgram(6)));
        assert_eq!(run(&[word(LOAD, 0, 0, 64)], &CALL), Err(Fault::Load { at: 0, offset: 64 }));
        assert_eq!(run(&[word(0x07, 0, 0, 0)], &CALL), Err(Fault::Unsupported { at: 0, code: 7 }));
    }
}

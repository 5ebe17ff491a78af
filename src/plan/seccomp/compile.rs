//! From verdicts per call number to a BPF program.
//!
//! Three parts. *Blocks*: seccompiler makes the code of each argument line; we take its block out
//! of the program around it. *Assembler*: programs grow from their end, so every jump target
//! is known when the jump is written, equal instructions with equal successors are written once,
//! and a load of what the accumulator already holds is left out. *Dispatch*: numbers with equal
//! answers become ranges, and ranges a balanced search tree, so a call passes about log2(ranges)
//! comparisons where seccompiler's linear form passes up to one per call.
//!
//! Short and shallow pays twice: the kernel verifies, converts and JIT-compiles the program at
//! installation, and then (since 5.11) emulates it once per call number to cache which calls are
//! always allowed (`seccomp_cache_prepare`, `kernel/seccomp.c`).

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use super::interp::{AND, JEQ, JGE, JGT, JUMP, LOAD, OFFSET_ARCH, OFFSET_NR, RET};
use super::rules::{Cond, Line, Step};
use super::{Arch, Error, Word};

/// `BPF_MAXINSNS`, the kernel's limit for one filter.
pub(super) const INSTRUCTIONS_MAX: usize = 4096;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const ASK: u32 = libc::SECCOMP_RET_USER_NOTIF;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// The answer to one call number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Allowed whatever the arguments.
    Allow,
    /// Refused whatever the arguments.
    Errno(i32),
    /// Decided by argument lines.
    Lines(&'static [Line]),
}

/// Makes the program. Numbers without an action answer ENOSYS; so do those with bit 30 (x32) and
/// "negative" ones, since the search treats numbers as unsigned and all of these lie above the table.
///
/// What the numbers in `asked` are refused is left to a listener; with none it is the plain form.
pub(super) fn program(
    arch: Arch,
    actions: &BTreeMap<u32, Action>,
    asked: &BTreeSet<u32>,
) -> Result<Vec<Word>, Error> {
    let mut code = Assembler::default();
    let unlisted = code.ret(errno(libc::ENOSYS));
    let mut answers = BTreeMap::new();
    for (&nr, action) in actions {
        let refuse = if asked.contains(&nr) { ask } else { errno };
        let answer = match action {
            Action::Allow => code.ret(ALLOW),
            Action::Errno(number) => code.ret(refuse(*number)),
            Action::Lines(lines) => Blocks::of(arch, lines, refuse)?.emit(&mut code)?,
        };
        answers.insert(nr, answer);
    }
    let tree = dispatch(&mut code, &spans(&ranges(&answers, unlisted)));
    let search = code.statement(LOAD, OFFSET_NR, tree);
    let kill = code.ret(KILL);
    let native = code.branch(JEQ, arch.audit(), search, kill);
    code.statement(LOAD, OFFSET_ARCH, native);
    code.finish()
}

const fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | (number as u32 & libc::SECCOMP_RET_DATA)
}

/// Leaves a refusal to the listener. What says that a part of an allowed call is missing (an option, a flag, a
/// protocol above a socket) stays: programs try those out and go on.
const fn ask(number: i32) -> u32 {
    if matches!(number, libc::EPERM | libc::ENOSYS | libc::EAFNOSUPPORT) { ASK } else { errno(number) }
}

// ---- dispatch ------------------------------------------------------------------------------

/// Call numbers from `first` up to the next range have one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    answer: Label,
}

/// The whole 32-bit number space as ranges of equal answers.
fn ranges(answers: &BTreeMap<u32, Label>, unlisted: Label) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    let mut push = |first, answer| {
        if ranges.last().is_none_or(|last| last.answer != answer) {
            ranges.push(Range { first, answer });
        }
    };
    let mut next = 0u32;
    for (&nr, &answer) in answers {
        if nr > next {
            push(next, unlisted);
        }
        push(nr, answer);
        next = nr + 1;
    }
    push(next, unlisted);
    ranges
}

/// A range with a few single numbers in it that answer otherwise. Testing such a number by
/// equality costs one comparison, splitting the range around it two.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    first: u32,
    answer: Label,
    but: Vec<(u32, Label)>,
}

/// More would shorten the program and lengthen the way through it.
const SPAN_EXCEPTIONS_MAX: usize = 3;

fn spans(ranges: &[Range]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut at = 0;
    while let Some(&Range { first, answer }) = ranges.get(at) {
        let mut span = Span { first, answer, but: Vec::new() };
        at += 1;
        while let Some([single, after]) = ranges.get(at..at + 2) {
            let is_single = after.first == single.first + 1 && after.answer == answer;
            if !is_single || span.but.len() == SPAN_EXCEPTIONS_MAX {
                break;
            }
            span.but.push((single.first, single.answer));
            at += 2;
        }
        spans.push(span);
    }
    spans
}

fn dispatch(code: &mut Assembler, spans: &[Span]) -> Label {
    match spans {
        [] => code.ret(errno(libc::ENOSYS)),
        [span] => span
            .but
            .iter()
            .fold(span.answer, |otherwise, (number, answer)| code.branch(JEQ, *number, *answer, otherwise)),
        _ => {
            let (low, high) = spans.split_at(spans.len() / 2);
            let above = dispatch(code, high);
            let below = dispatch(code, low);
            code.branch(JGE, high[0].first, above, below)
        }
    }
}

// ---- argument blocks -----------------------------------------------------------------------

/// Answers in seccompiler's program that stand for a line's `hit` and `miss`.
const HIT: SeccompAction = SeccompAction::Trace(1);
const MISS: SeccompAction = SeccompAction::Trace(2);

/// Instructions of a seccompiler program before the first argument block: load and test the
/// architecture, kill, load and test the number.
const PROLOGUE: usize = 5;

/// The blocks of a rule, one per line.
struct Blocks {
    lines: Vec<(Vec<sock_filter>, Step, Step)>,
    /// The return value for an errno.
    refuse: fn(i32) -> u32,
}

/// What the accumulator holds at a point, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The word at this offset.
    Word(u32),
    /// The word at this offset, masked.
    Masked(u32, u32),
}

impl Blocks {
    fn of(arch: Arch, lines: &[Line], refuse: fn(i32) -> u32) -> Result<Blocks, Error> {
        let lines = lines
            .iter()
            .map(|line| Ok((block(arch, line)?, line.hit, line.miss)))
            .collect::<Result<_, Error>>()?;
        Ok(Blocks { lines, refuse })
    }

    fn emit(&self, code: &mut Assembler) -> Result<Label, Error> {
        // On arrival the accumulator holds the call number, which no line asks for.
        self.point(code, 0, 0, Known::Nothing)
    }

    /// Writes what follows from instruction `at` of line `line` and returns where it begins.
    fn point(&self, code: &mut Assembler, line: usize, at: usize, known: Known) -> Result<Label, Error> {
        let Some((block, hit, miss)) = self.lines.get(line) else { return Ok(code.ret(ALLOW)) };
        let word = block.get(at).ok_or(Error::Block { code: 0 })?;
        let masks = block.get(at + 1).filter(|next| next.code == AND).map(|next| next.k);
        match (word.code, masks) {
            (RET, _) => {
                let step = match word.k {
                    k if k == u32::from(HIT) => hit,
                    k if k == u32::from(MISS) => miss,
                    _ => return Err(Error::Block { code: RET }),
                };
                match step {
                    Step::Next => self.point(code, line + 1, 0, known),
                    Step::Allow => Ok(code.ret(ALLOW)),
                    Step::Errno(number) => Ok(code.ret((self.refuse)(*number))),
                }
            }
            (JUMP, _) => self.point(code, line, at + 1 + word.k as usize, known),
            (LOAD, Some(mask)) if known == Known::Masked(word.k, mask) => {
                self.point(code, line, at + 2, known)
            }
            (LOAD, Some(mask)) => {
                let rest = self.point(code, line, at + 2, Known::Masked(word.k, mask))?;
                let masked = code.statement(AND, mask, rest);
                Ok(code.statement(LOAD, word.k, masked))
            }
            (LOAD, None) if known == Known::Word(word.k) => self.point(code, line, at + 1, known),
            (LOAD, None) => {
                let rest = self.point(code, line, at + 1, Known::Word(word.k))?;
                Ok(code.statement(LOAD, word.k, rest))
            }
            (JEQ | JGT | JGE, _) => {
                let missed = self.point(code, line, at + 1 + usize::from(word.jf), known)?;
                let taken = self.point(code, line, at + 1 + usize::from(word.jt), known)?;
                Ok(code.branch(word.code, word.k, taken, missed))
            }
            (other, _) => Err(Error::Block { code: other }),
        }
    }
}

/// seccompiler's code for one line.
fn block(arch: Arch, line: &Line) -> Result<Vec<sock_filter>, Error> {
    let rules = line.any.iter().map(|all| rule(all)).collect::<Result<Vec<_>, Error>>()?;
    // The number only has to be some number; its test is cut off with the prologue.
    let filter = SeccompFilter::new(BTreeMap::from([(0, rules)]), MISS, HIT, target(arch))?;
    let mut program: BpfProgram = filter.try_into()?;
    Ok(program.split_off(PROLOGUE))
}

fn rule(all: &[Cond]) -> Result<SeccompRule, Error> {
    let conditions = all.iter().map(condition).collect::<Result<Vec<_>, Error>>()?;
    Ok(SeccompRule::new(conditions)?)
}

fn condition(cond: &Cond) -> Result<SeccompCondition, Error> {
    use SeccompCmpArgLen::{Dword, Qword};
    let (argument, length, operator, value) = match *cond {
        Cond::Is(argument, value) => (argument, Dword, SeccompCmpOp::Eq, value),
        Cond::Not(argument, value) => (argument, Dword, SeccompCmpOp::Ne, value),
        Cond::AtMost(argument, value) => (argument, Dword, SeccompCmpOp::Le, value),
        Cond::Bits(argument, mask, value) => {
            (argument, Dword, SeccompCmpOp::MaskedEq(u64::from(mask)), value)
        }
        Cond::Null(argument) => (argument, Qword, SeccompCmpOp::Eq, 0),
    };
    Ok(SeccompCondition::new(argument, length, operator, u64::from(value))?)
}

/// seccompiler's name for an architecture.
pub(super) fn target(arch: Arch) -> TargetArch {
    match arch {
        Arch::X86_64 => TargetArch::x86_64,
        Arch::Aarch64 => TargetArch::aarch64,
    }
}

// ---- assembler -----------------------------------------------------------------------------

/// A written instruction, counted from the *end* of the program.
type Label = usize;

/// Conditional jumps reach 255 instructions; bringing one target near may push the other a few away.
const REACH: usize = 250;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Instruction {
    code: u16,
    k: u32,
    /// Where it goes on: for a branch taken and not taken, for a statement twice the same.
    next: Option<(Label, Label)>,
}

/// Writes a program from its end to its beginning.
///
/// A label is the *first* place of an instruction and stands for it for good; copies made to bring
/// it near do the same work, so whoever asks for the instruction again still gets the first label.
#[derive(Debug, Default)]
struct Assembler {
    reversed: Vec<Instruction>,
    /// The label of each instruction, by what it does and the labels it goes on to.
    written: BTreeMap<Instruction, Label>,
    /// The newest copy of an instruction that has any.
    copies: BTreeMap<Label, Label>,
}

impl Assembler {
    fn ret(&mut self, value: u32) -> Label {
        let wanted = Instruction { code: RET, k: value, next: None };
        self.written.get(&wanted).copied().unwrap_or_else(|| self.push(wanted, wanted))
    }

    fn branch(&mut self, code: u16, k: u32, taken: Label, missed: Label) -> Label {
        if taken == missed {
            return taken;
        }
        let wanted = Instruction { code, k, next: Some((taken, missed)) };
        if let Some(&label) = self.written.get(&wanted) {
            return label;
        }
        let missed = self.near(missed);
        let taken = self.near(taken);
        self.push(wanted, Instruction { code, k, next: Some((taken, missed)) })
    }

    /// A statement runs on into what stands behind it, so its successor must be the instruction
    /// written last; if it is another, a copy of it (or a jump to it) is written first.
    fn statement(&mut self, code: u16, k: u32, next: Label) -> Label {
        let wanted = Instruction { code, k, next: Some((next, next)) };
        if let Some(&label) = self.written.get(&wanted) {
            return label;
        }
        let newest = self.newest(next);
        let place = if newest + 1 == self.reversed.len() { newest } else { self.copy(next) };
        self.push(wanted, Instruction { code, k, next: Some((place, place)) })
    }

    /// Writes `instruction`, whose successors are places, to do what was `wanted` in labels.
    fn push(&mut self, wanted: Instruction, instruction: Instruction) -> Label {
        let label = self.reversed.len();
        self.reversed.push(instruction);
        self.written.insert(wanted, label);
        label
    }

    fn newest(&self, label: Label) -> Label {
        self.copies.get(&label).copied().unwrap_or(label)
    }

    fn is_near(&self, place: Label) -> bool {
        self.reversed.len() - place <= REACH
    }

    /// A place with the label's effect that a branch written next can reach.
    fn near(&mut self, label: Label) -> Label {
        let newest = self.newest(label);
        if self.is_near(newest) { newest } else { self.copy(label) }
    }

    fn copy(&mut self, label: Label) -> Label {
        let newest = self.newest(label);
        let original = self.reversed[newest];
        let can_repeat = match original.next {
            None => true,
            Some((taken, missed)) => taken != missed && self.is_near(taken) && self.is_near(missed),
        };
        let jump = Instruction { code: JUMP, k: 0, next: Some((newest, newest)) };
        let place = self.reversed.len();
        self.reversed.push(if can_repeat { original } else { jump });
        self.copies.insert(label, place);
        place
    }

    /// Turns the program round and labels into offsets.
    fn finish(self) -> Result<Vec<Word>, Error> {
        if self.reversed.len() > INSTRUCTIONS_MAX {
            return Err(Error::TooLong { instructions: self.reversed.len() });
        }
        self.reversed.iter().enumerate().rev().map(|(at, instruction)| instruction.word(at)).collect()
    }
}

impl Instruction {
    fn word(&self, at: Label) -> Result<Word, Error> {
        let skip = |label: Label| at - label - 1;
        let short = |label| u8::try_from(skip(label)).map_err(|_| Error::Block { code: self.code });
        let (jt, jf, k) = match (self.code, self.next) {
            (JUMP, Some((label, _))) => (0, 0, skip(label) as u32),
            (JEQ | JGT | JGE, Some((taken, missed))) => (short(taken)?, short(missed)?, self.k),
            // A statement's successor stands right behind it; `statement` saw to that.
            (_, Some((label, _))) if skip(label) != 0 => return Err(Error::Block { code: self.code }),
            _ => (0, 0, self.k),
        };
        Ok(Word { code: self.code, jt, jf, k })
    }
}

#[cfg(test)]
mod tests {
    use super::super::interp::{Call, run};
    use super::*;

    fn answer(words: &[Word], nr: u32) -> u32 {
        run(words, &Call { nr, arch: Arch::X86_64.audit(), args: [0; 6] }).unwrap().0
    }

    #[test]
    fn an_empty_table_answers_enosys_to_everything() {
        let words = program(Arch::X86_64, &BTreeMap::new(), &BTreeSet::new()).unwrap();
        for nr in [0, 1, 0x4000_0000, u32::MAX] {
            assert_eq!(answer(&words, nr), errno(libc::ENOSYS));
        }
    }

    #[test]
    fn equal_neighbours_are_one_range_and_single_numbers_exceptions() {
        let (allow, unlisted, other) = (1, 0, 2);
        let answers = BTreeMap::from([(0, allow), (1, allow), (2, other), (3, allow), (5, other)]);
        let ranges = ranges(&answers, unlisted);
        let pairs: Vec<_> = ranges.iter().map(|range| (range.first, range.answer)).collect();
        assert_eq!(pairs, [(0, allow), (2, other), (3, allow), (4, unlisted), (5, other), (6, unlisted)]);
        assert_eq!(
            spans(&ranges),
            [
                Span { first: 0, answer: allow, but: vec![(2, other)] },
                Span { first: 4, answer: unlisted, but: vec![(5, other)] },
            ]
        );
    }

    #[test]
    fn a_program_beyond_the_reach_of_short_jumps_is_still_right() {
        // 1,000 different answers: targets lie far beyond 255 instructions.
        let actions = (0..1000).map(|nr| (nr * 2, Action::Errno(nr as i32 + 100))).collect();
        let words = program(Arch::X86_64, &actions, &BTreeSet::new()).unwrap();
        for nr in 0..2100u32 {
            let expected = if nr % 2 == 0 && nr < 2000 { nr as i32 / 2 + 100 } else { libc::ENOSYS };
            assert_eq!(answer(&words, nr), errno(expected), "{nr}");
        }
    }

    #[test]
    fn a_program_beyond_the_kernels_limit_is_an_error() {
        let actions = (0..3000).map(|nr| (nr * 2, Action::Errno(nr as i32 + 100))).collect();
        assert!(matches!(program(Arch::X86_64, &actions, &BTreeSet::new()), Err(Error::TooLong { .. })));
    }
}

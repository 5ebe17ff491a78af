//! The filter judged three ways: by a table of threats, by an independent statement of the policy
//! in plain Rust (`expected`), and by seccompiler's own linear program of hand-written rules.

use std::collections::BTreeMap;

use proptest::prelude::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::*;

const ALLOW: Verdict = Verdict::Allow;
const EPERM: Verdict = Verdict::Errno(libc::EPERM as u16);
const ENOSYS: Verdict = Verdict::Errno(libc::ENOSYS as u16);
const EINVAL: Verdict = Verdict::Errno(libc::EINVAL as u16);
const EAFNOSUPPORT: Verdict = Verdict::Errno(libc::EAFNOSUPPORT as u16);
const EOPNOTSUPP: Verdict = Verdict::Errno(libc::EOPNOTSUPP as u16);
const ENOPROTOOPT: Verdict = Verdict::Errno(libc::ENOPROTOOPT as u16);

const X32: u32 = 0x4000_0000;
const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];
const RULES: [SocketRule; 2] = [SocketRule::None, SocketRule::Inet];

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn defaults(arch: Arch, network: SocketRule) -> Program {
    compile_for(arch, &Request { sets: &strings(&DEFAULT_SETS), allow: &[], network, browser: false })
        .unwrap()
        .plain
}

fn ask(program: &Program, arch: Arch, nr: u32, args: [u64; 6]) -> Verdict {
    program.verdict(&Call { nr, arch: arch.audit(), args }).unwrap()
}

/// Asks the default x86-64 filter by name; missing arguments are zero.
fn ask_name(network: SocketRule, name: &str, args: &[u64]) -> Verdict {
    let mut full = [0; 6];
    full[..args.len()].copy_from_slice(args);
    let nr = Arch::X86_64.number(name).unwrap();
    ask(&defaults(Arch::X86_64, network), Arch::X86_64, nr, full)
}

/// Values at which some rule changes its mind, and their neighbours.
fn edges() -> Vec<u64> {
    let mut values =
        vec![0, 1, 2, 3, 5, 6, 8, 9, 10, 16, 17, 22, 27, 28, 29, 31, 33, 35, 36, 40, 43, 62, 66, 67];
    values.extend([115, 132, 136, 255, 256, 262, 0o644, 0o755, 0o1777, 0o2755, 0o4755, 0o6000, 0o7777]);
    values.extend([0o100, 0o102, 0o101102, 0o20000000, 0o20200002, 0o10000000]);
    values.extend([0o010644, 0o020666, 0o060660, 0o100644, 0o140755, 0o104755, 0o102755]);
    values.extend([0x5401, 0x5411, 0x5412, 0x5413, 0x541b, 0x541c, 0x541d, 0x5422, 0x5423, 0x5424]);
    values.extend([0x80, 0x2_0000, 0x4_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x4000_0000]);
    values.extend([0x2000_0000, 0x1200011, 0x3d0f00, 0x80001, 0x80801, 0x80002, 0x80003, 0x80005, 0x8000a]);
    values.extend([0x5356_4d41, 0x5961_6d61, 0x4155_5856, 0x0008, 0x0004_0000, 0x0040_0000]);
    values.extend([0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff]);
    let high: Vec<u64> = values.iter().flat_map(|low| [low | 1 << 32, low | 0xffff_ffff << 32]).collect();
    values.extend(high);
    values
}

// ---- the policy once more, in plain Rust ----------------------------------------------------

/// What the default filter must answer to a *named* call. Written from seccomp(2), the kernel's
/// own argument types and 20-sandbox.md, not from `rules`.
fn expected(name: &str, args: [u64; 6], network: SocketRule) -> Verdict {
    let catalogue = catalogue::embedded().unwrap();
    if let Some(group) = catalogue.refusal(name) {
        return if group.answer == Answer::EPERM { EPERM } else { ENOSYS };
    }
    if !catalogue.sets.iter().any(|set| set.calls().any(|call| call == name)) {
        return ENOSYS;
    }
    expected_of_allowed(name, args, network)
}

/// [`expected`] for a call that a set allows.
fn expected_of_allowed(name: &str, args: [u64; 6], network: SocketRule) -> Verdict {
    let int = |index: usize| args[index] as u32;
    let refuse_if = |refused: bool, answer| if refused { answer } else { ALLOW };
    let is_set_id = |mode: u32| mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    let creates = |flags: u32| flags & (libc::O_CREAT as u32 | 0o20000000) != 0;
    let is_device = |mode: u32| mode & 0o020000 != 0;
    match name {
        "creat" | "chmod" | "fchmod" | "mkdir" => refuse_if(is_set_id(int(1)), EPERM),
        "fchmodat" | "fchmodat2" | "mkdirat" => refuse_if(is_set_id(int(2)), EPERM),
        "open" => refuse_if(creates(int(1)) && is_set_id(int(2)), EPERM),
        "openat" => refuse_if(creates(int(2)) && is_set_id(int(3)), EPERM),
        "mknod" => refuse_if(is_set_id(int(1)) || is_device(int(1)), EPERM),
        "mknodat" => refuse_if(is_set_id(int(2)) || is_device(int(2)), EPERM),
        "clone" | "unshare" => {
            let new = libc::CLONE_NEWNS
                | libc::CLONE_NEWCGROUP
                | libc::CLONE_NEWUTS
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUSER
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWNET
                | 0x80;
            refuse_if(int(0) & new as u32 != 0, EPERM)
        }
        "personality" => refuse_if(int(0) != 0 && int(0) != 0xffff_ffff, EPERM),
        "prctl" => match int(0) {
            28 | 35 | 62 => EPERM,
            0..=66 | 0x5356_4d41 | 0x5961_6d61 | 0x4155_5856 => ALLOW,
            _ => EINVAL,
        },
        "seccomp" => refuse_if(int(1) & 8 != 0, EPERM),
        "prlimit64" => refuse_if(int(0) != 0 && args[2] != 0, EPERM),
        "ioctl" => refuse_if([0x5412, 0x541c, 0x5423].contains(&int(1)), EPERM),
        "socketpair" => refuse_if(int(0) != libc::AF_UNIX as u32, EAFNOSUPPORT),
        "socket" => match (int(0) as i32, (int(1) & 0xf) as i32, int(2), network) {
            (libc::AF_UNIX, _, _, _) => ALLOW,
            (_, _, _, SocketRule::None) => EAFNOSUPPORT,
            (libc::AF_NETLINK, _, 0, _) => ALLOW,
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_DGRAM, 0 | 6 | 17, _) => ALLOW,
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_DGRAM, _, _) => EAFNOSUPPORT,
            (libc::AF_INET | libc::AF_INET6, _, _, _) => EPERM,
            _ => EAFNOSUPPORT,
        },
        "setsockopt" => refuse_if(int(1) == 6 && int(2) == 31, ENOPROTOOPT),
        "sendmsg" => refuse_if(int(2) & 0x2000_0000 != 0, EOPNOTSUPP),
        "sendto" | "sendmmsg" => refuse_if(int(3) & 0x2000_0000 != 0, EOPNOTSUPP),
        _ => ALLOW,
    }
}

#[test]
fn every_number_answers_what_the_policy_says() {
    for arch in ARCHES {
        for network in RULES {
            let program = defaults(arch, network);
            for nr in (0..=1024).chain([
                X32 - 1,
                X32,
                X32 | 59,
                X32 | 1023,
                0x7fff_ffff,
                1 << 31,
                u32::MAX - 1,
                u32::MAX,
            ]) {
                for args in [[0; 6], [1; 6], [u64::MAX; 6], [1 << 32; 6]] {
                    let wanted = arch.name(nr).map_or(ENOSYS, |name| expected(name, args, network));
                    assert_eq!(ask(&program, arch, nr, args), wanted, "{arch:?} {network:?} {nr} {args:x?}");
                }
            }
        }
    }
}

#[test]
fn every_argument_rule_answers_what_the_policy_says() {
    // Pairs of edges in neighbouring arguments; the high halves have a test of their own.
    let low: Vec<u64> = edges().into_iter().filter(|value| *value <= u64::from(u32::MAX)).collect();
    for network in RULES {
        let arch = Arch::X86_64;
        let program = defaults(arch, network);
        for (name, nr) in arch.table().iter().filter(|(name, _)| rules::of(name, network, false).is_some()) {
            for (first, second, rest) in [(0, 1, 0), (1, 2, 2), (2, 3, 1), (0, 2, 2)] {
                for (a, b) in low.iter().flat_map(|a| low.iter().map(move |b| (a, b))) {
                    let mut args = [rest; 6];
                    (args[first], args[second]) = (*a, *b);
                    let got = ask(&program, arch, *nr, args);
                    assert_eq!(got, expected_of_allowed(name, args, network), "{network:?} {name} {args:x?}");
                }
            }
        }
    }
}

/// Arguments that are pointers: of those the high half counts.
const POINTERS: [(&str, usize); 1] = [("prlimit64", 2)];

#[test]
fn the_high_half_of_an_argument_changes_nothing() {
    let edges = edges();
    for (arch, network) in ARCHES.iter().flat_map(|arch| RULES.map(|network| (*arch, network))) {
        let program = defaults(arch, network);
        for (name, nr) in arch.table().iter().filter(|(name, _)| rules::of(name, network, false).is_some()) {
            for (index, &edge) in (0..6).flat_map(|index| edges.iter().map(move |edge| (index, edge))) {
                for rest in [0, 1, 2] {
                    let mut args = [rest; 6];
                    args[index] = edge;
                    let got = ask(&program, arch, *nr, args);
                    let mut low = args.map(|argument| argument & 0xffff_ffff);
                    for (_, pointer) in POINTERS.iter().filter(|(call, _)| call == name) {
                        low[*pointer] = args[*pointer];
                    }
                    assert_eq!(got, ask(&program, arch, *nr, low), "{arch:?} {network:?} {name} {args:x?}");
                    assert_eq!(got, expected_of_allowed(name, args, network), "{arch:?} {name} {args:x?}");
                }
            }
        }
    }
}

// ---- seccompiler's linear form --------------------------------------------------------------

fn dword(argument: u8, operator: SeccompCmpOp, value: u32) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, u64::from(value)).unwrap()
}

fn any(groups: Vec<Vec<SeccompCondition>>) -> Vec<SeccompRule> {
    groups.into_iter().map(|group| SeccompRule::new(group).unwrap()).collect()
}

/// The arguments with which a call is allowed, as one seccompiler rule chain; empty means all.
fn allowed_rules(name: &str, network: SocketRule) -> Vec<SeccompRule> {
    use SeccompCmpOp::{Eq, Le, MaskedEq, Ne};
    let clear = |argument, mask: u32| dword(argument, MaskedEq(u64::from(mask)), 0);
    match name {
        "creat" | "chmod" | "fchmod" | "mkdir" => any(vec![vec![clear(1, 0o6000)]]),
        "fchmodat" | "fchmodat2" | "mkdirat" => any(vec![vec![clear(2, 0o6000)]]),
        "open" => any(vec![vec![clear(1, 0o20000100)], vec![clear(2, 0o6000)]]),
        "openat" => any(vec![vec![clear(2, 0o20000100)], vec![clear(3, 0o6000)]]),
        "mknod" => any(vec![vec![clear(1, 0o026000)]]),
        "mknodat" => any(vec![vec![clear(2, 0o026000)]]),
        "clone" | "unshare" => any(vec![vec![clear(0, 0x7e02_0080)]]),
        "personality" => any(vec![vec![dword(0, Eq, 0)], vec![dword(0, Eq, u32::MAX)]]),
        "prctl" => any(vec![
            vec![dword(0, Le, 66), dword(0, Ne, 28), dword(0, Ne, 35), dword(0, Ne, 62)],
            vec![dword(0, Eq, 0x5356_4d41)],
            vec![dword(0, Eq, 0x5961_6d61)],
            vec![dword(0, Eq, 0x4155_5856)],
        ]),
        "seccomp" => any(vec![vec![clear(1, 8)]]),
        "prlimit64" => {
            let null = SeccompCondition::new(2, SeccompCmpArgLen::Qword, Eq, 0).unwrap();
            any(vec![vec![dword(0, Eq, 0)], vec![null]])
        }
        "ioctl" => any(vec![vec![dword(1, Ne, 0x5412), dword(1, Ne, 0x541c), dword(1, Ne, 0x5423)]]),
        "socketpair" => any(vec![vec![dword(0, Eq, 1)]]),
        "socket" if network == SocketRule::None => any(vec![vec![dword(0, Eq, 1)]]),
        "socket" => {
            let mut groups = vec![vec![dword(0, Eq, 1)], vec![dword(0, Eq, 16), dword(2, Eq, 0)]];
            for (family, kind, protocol) in [2, 10]
                .iter()
                .flat_map(|f| [1, 2].map(|t| (*f, t)))
                .flat_map(|(f, t)| [0, 6, 17].map(|p| (f, t, p)))
            {
                groups.push(vec![
                    dword(0, Eq, family),
                    dword(1, MaskedEq(0xf), kind),
                    dword(2, Eq, protocol),
                ]);
            }
            any(groups)
        }
        "setsockopt" => any(vec![vec![dword(1, Ne, 6)], vec![dword(2, Ne, 31)]]),
        "sendmsg" => any(vec![vec![clear(2, 0x2000_0000)]]),
        "sendto" | "sendmmsg" => any(vec![vec![clear(3, 0x2000_0000)]]),
        _ => Vec::new(),
    }
}

/// The default policy as seccompiler alone would write it: allowed or not, without our errnos.
fn linear(network: SocketRule) -> Vec<Word> {
    let calls = catalogue::embedded().unwrap().sets.iter().flat_map(catalogue::Set::calls);
    let rules: BTreeMap<i64, Vec<SeccompRule>> = calls
        .filter_map(|name| Some((i64::from(Arch::X86_64.number(name)?), allowed_rules(name, network))))
        .collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter =
        SeccompFilter::new(rules, refuse, SeccompAction::Allow, compile::target(Arch::X86_64)).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    program.iter().map(|word| Word { code: word.code, jt: word.jt, jf: word.jf, k: word.k }).collect()
}

/// Our answer and seccompiler's must agree on what is allowed and what kills.
fn compare(ours: &Program, theirs: &[Word], call: &Call) {
    let ours = ours.verdict(call).unwrap();
    let theirs = interp::verdict(theirs, call).unwrap();
    match theirs {
        Verdict::Errno(_) => assert!(matches!(ours, Verdict::Errno(_)), "{call:x?}: {ours:?}"),
        other => assert_eq!(ours, other, "{call:x?}"),
    }
}

#[test]
fn seccompilers_linear_form_allows_the_same_over_all_numbers() {
    for network in RULES {
        let (ours, theirs) = (defaults(Arch::X86_64, network), linear(network));
        assert!(ours.words().len() * 8 < theirs.len(), "{} {}", ours.words().len(), theirs.len());
        let audits = [Arch::X86_64.audit(), Arch::Aarch64.audit(), 0x4000_0003, 0, u32::MAX];
        let numbers = (0..=1024).chain([X32, X32 | 1, X32 | 101, 0x7fff_ffff, 1 << 31, u32::MAX]);
        for (nr, arch) in numbers.flat_map(|nr| audits.map(|arch| (nr, arch))) {
            for args in [[0; 6], [1; 6], [u64::MAX; 6]] {
                compare(&ours, &theirs, &Call { nr, arch, args });
            }
        }
    }
}

#[test]
fn seccompilers_linear_form_allows_the_same_at_every_single_edge() {
    let edges = edges();
    for network in RULES {
        let (ours, theirs) = (defaults(Arch::X86_64, network), linear(network));
        for (_, nr) in
            Arch::X86_64.table().iter().filter(|(name, _)| rules::of(name, network, false).is_some())
        {
            for (index, &edge) in (0..6).flat_map(|index| edges.iter().map(move |edge| (index, edge))) {
                for rest in [0, 1, 2, u64::MAX] {
                    let mut args = [rest; 6];
                    args[index] = edge;
                    compare(&ours, &theirs, &Call { nr: *nr, arch: Arch::X86_64.audit(), args });
                }
            }
        }
    }
}

fn argument() -> impl Strategy<Value = u64> {
    prop_oneof![3 => prop::sample::select(edges()), 1 => any_u64()]
}

fn any_u64() -> impl Strategy<Value = u64> {
    proptest::arbitrary::any::<u64>()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn seccompilers_linear_form_allows_the_same_at_random(
        nr in prop_oneof![4 => 0..480u32, 1 => proptest::arbitrary::any::<u32>()],
        calls in prop::collection::vec(prop::array::uniform6(argument()), 16),
        is_inet in proptest::arbitrary::any::<bool>(),
    ) {
        thread_local! {
            static PAIRS: [(Program, Vec<Word>); 2] = RULES.map(|rule| (defaults(Arch::X86_64, rule), linear(rule)));
        }
        PAIRS.with(|pairs| {
            let (ours, theirs) = &pairs[usize::from(is_inet)];
            for args in calls {
                compare(ours, theirs, &Call { nr, arch: Arch::X86_64.audit(), args });
            }
        });
    }

    /// Whatever sets and calls are chosen, the program says of each number what the choice says.
    #[test]
    fn any_choice_of_sets_and_calls_is_what_the_program_allows(
        chosen in prop::sample::subsequence(DEFAULT_SETS.to_vec(), 0..=DEFAULT_SETS.len()),
        extra in prop::sample::subsequence(vec!["ustat", "uretprobe", "ptrace", "getpmsg", "vserver", "socket"], 0..=6),
    ) {
        let mut sets = strings(&chosen);
        sets.push("base".to_owned());
        let program = compile(&Request { sets: &sets, allow: &strings(&extra), network: SocketRule::None, browser: false }).unwrap().plain;
        let catalogue = catalogue::embedded().unwrap();
        for (name, nr) in Arch::NATIVE.table() {
            let is_in = |set: &String| catalogue.set(set).unwrap().calls().any(|call| call == *name);
            let is_wanted = extra.contains(name) || sets.iter().any(is_in);
            // AF_UNIX in the first argument, harmless in every other place: only these two rules object.
            let is_allowed = ask(&program, Arch::NATIVE, *nr, [1, 1, 1, 1, 1, 1]) == ALLOW;
            let objects = ["personality", "prlimit64"].contains(name);
            prop_assert_eq!(is_allowed, is_wanted && !objects, "{}", name);
        }
    }
}

// ---- threats.md -----------------------------------------------------------------------------

#[test]
fn namespace_rows_67_69_71() {
    let thread = 0x3d_0f00;
    for network in RULES {
        assert_eq!(ask_name(network, "clone", &[thread]), ALLOW);
        assert_eq!(ask_name(network, "clone", &[0x0120_0011]), ALLOW, "glibc's fork");
        assert_eq!(ask_name(network, "clone", &[0x4111]), ALLOW, "vfork");
        for shift in [7, 17, 25, 26, 27, 28, 29, 30] {
            for high in [0, 1 << 32, 0xffff_ffff << 32] {
                for call in ["clone", "unshare"] {
                    assert_eq!(ask_name(network, call, &[1 << shift | high]), EPERM, "{call} {shift}");
                }
            }
        }
        assert_eq!(ask_name(network, "clone", &[thread | 1 << 32]), ALLOW, "high bits mean nothing");
        assert_eq!(ask_name(network, "unshare", &[0x600]), ALLOW, "CLONE_FS | CLONE_FILES");
        assert_eq!(ask_name(network, "clone3", &[]), ENOSYS);
        assert_eq!(ask_name(network, "setns", &[3, 0]), EPERM);
    }
}

#[test]
fn network_rows_119_to_131() {
    use SocketRule::{Inet, None};
    let socket =
        |rule, family: u64, kind: u64, protocol: u64| ask_name(rule, "socket", &[family, kind, protocol]);
    for kind in [1, 2, 5, 0x8_0001, 0x8_0802] {
        assert_eq!(socket(None, 1, kind, 0), ALLOW);
        assert_eq!(socket(Inet, 1, kind, 0), ALLOW);
        assert_eq!(ask_name(None, "socketpair", &[1, kind, 0]), ALLOW);
    }
    for (family, kind, protocol) in [2, 10]
        .iter()
        .flat_map(|f| [1, 2, 0x8_0001, 0x802].map(|t| (*f, t)))
        .flat_map(|(f, t)| [0, 6, 17].map(|p| (f, t, p)))
    {
        assert_eq!(socket(Inet, family, kind, protocol), ALLOW);
        assert_eq!(socket(None, family, kind, protocol), EAFNOSUPPORT);
        assert_eq!(ask_name(Inet, "socketpair", &[family, kind, protocol]), EAFNOSUPPORT);
    }
    // 121: MPTCP, SCTP, DCCP, UDP-Lite, L2TP, SMC, and ICMP
    for protocol in [262, 132, 33, 136, 115, 256, 1, 58, 255, u64::from(u32::MAX)] {
        for family in [2, 10] {
            assert_eq!(socket(Inet, family, 1, protocol), EAFNOSUPPORT, "{protocol}");
            assert_eq!(socket(Inet, family, 2, protocol), EAFNOSUPPORT, "{protocol}");
        }
    }
    // raw, rdm, seqpacket, dccp, packet; also with flags
    for kind in [0, 3, 4, 5, 6, 10, 0x8_0003, 0x8_080a] {
        assert_eq!(socket(Inet, 2, kind, 0), EPERM, "{kind}");
        assert_eq!(socket(Inet, 10, kind, 0), EPERM, "{kind}");
    }
    // 121, 126, 127: SMC, ALG, VSOCK; packet, bluetooth, tipc, xdp, key, rds, can and what may come
    for family in [0, 3, 11, 15, 17, 21, 29, 30, 31, 38, 40, 43, 44, 46, 255, u64::from(u32::MAX)] {
        for rule in RULES {
            assert_eq!(socket(rule, family, 1, 0), EAFNOSUPPORT, "{family}");
            assert_eq!(socket(rule, family, 3, 0), EAFNOSUPPORT, "{family}");
        }
    }
    // 129
    assert_eq!(socket(Inet, 16, 3, 0), ALLOW);
    assert_eq!(socket(Inet, 16, 0x8_0003, 0), ALLOW, "glibc: SOCK_RAW | SOCK_CLOEXEC");
    assert_eq!(socket(None, 16, 3, 0), EAFNOSUPPORT);
    for protocol in [1, 2, 4, 6, 9, 12, 15, 16, 21, 22] {
        assert_eq!(socket(Inet, 16, 3, protocol), EAFNOSUPPORT, "netlink {protocol}");
    }
    // high halves of registers are not looked at by the kernel, so not by us
    assert_eq!(socket(Inet, 2 | 1 << 32, 1 | 1 << 32, 262 | 1 << 32), EAFNOSUPPORT);
    assert_eq!(socket(Inet, 38 | 1 << 32, 5, 0), EAFNOSUPPORT);
    // 119
    for (call, position) in [("sendto", 3), ("sendmmsg", 3), ("sendmsg", 2)] {
        let mut args = [3, 0, 0, 0, 0, 0];
        args[position] = 0x4000;
        assert_eq!(ask_name(Inet, call, &args), ALLOW, "MSG_NOSIGNAL");
        for high in [0, 1 << 32] {
            args[position] = 0x2000_4000 | high;
            assert_eq!(ask_name(Inet, call, &args), EOPNOTSUPP, "{call}");
        }
    }
    assert_eq!(ask_name(Inet, "setsockopt", &[3, 6, 31]), ENOPROTOOPT);
    assert_eq!(ask_name(Inet, "setsockopt", &[3, 6, 1]), ALLOW, "TCP_NODELAY");
    assert_eq!(ask_name(Inet, "setsockopt", &[3, 1, 31]), ALLOW, "SOL_SOCKET 31");
}

#[test]
fn key_row_146_and_surface_rows_149_to_159() {
    let eperm = [
        "add_key request_key keyctl",
        "perf_event_open userfaultfd bpf ptrace kcmp process_vm_readv process_vm_writev pidfd_getfd",
        "fanotify_init fanotify_mark name_to_handle_at open_by_handle_at",
        "kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct",
        "settimeofday clock_settime clock_adjtime adjtimex iopl ioperm quotactl quotactl_fd vhangup",
        "modify_ldt move_pages migrate_pages sysfs syslog uselib nfsservctl sethostname setdomainname",
        "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount mount_setattr",
        "fsopen fsconfig fsmount fspick setns",
    ];
    let enosys = [
        "io_uring_setup io_uring_enter io_uring_register clone3 openat2",
        "memfd_secret remap_file_pages io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents",
        "lookup_dcookie statmount listmount mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
    ];
    for (groups, answer) in [(&eperm[..], EPERM), (&enosys[..], ENOSYS)] {
        for call in groups.iter().flat_map(|group| group.split(' ')) {
            for args in [[0; 6], [u64::MAX; 6]] {
                assert_eq!(ask_name(SocketRule::Inet, call, &args), answer, "{call}");
            }
        }
    }
    for persona in [0x004_0000, 0x040_0000, 0x0008, 0x2_0000, 0xffff_fffe] {
        assert_eq!(ask_name(SocketRule::Inet, "personality", &[persona]), EPERM, "row 157: {persona:x}");
    }
    for persona in [0, 0xffff_ffff, 0xffff_ffff_ffff_ffff, 1 << 32] {
        assert_eq!(ask_name(SocketRule::Inet, "personality", &[persona]), ALLOW, "{persona:x}");
    }
}

#[test]
fn foreign_entry_points_rows_131_161_162() {
    const I386: u32 = 0x4000_0003;
    let program = defaults(Arch::X86_64, SocketRule::Inet);
    for nr in (0..=1024).chain([X32, u32::MAX]) {
        for arch in [I386, 0, Arch::Aarch64.audit(), 0xc000_003f, u32::MAX] {
            assert_eq!(program.verdict(&Call { nr, arch, args: [0; 6] }), Ok(Verdict::KillProcess));
        }
        assert_eq!(ask(&program, Arch::X86_64, nr | X32, [0; 6]), ENOSYS);
        assert_eq!(ask(&program, Arch::X86_64, nr | X32 | 1 << 31, [0; 6]), ENOSYS);
    }
}

#[test]
fn terminal_rows_166_to_169() {
    for high in [0, 1 << 32, 0xdead_beef << 32] {
        for request in [0x5412, 0x541c, 0x5423] {
            assert_eq!(ask_name(SocketRule::Inet, "ioctl", &[0, request | high]), EPERM);
        }
        for request in [0x5401, 0x5402, 0x5413, 0x5414, 0x540f, 0x5410, 0x541b, 0x5421, 0x4004_9409] {
            assert_eq!(ask_name(SocketRule::Inet, "ioctl", &[0, request | high]), ALLOW, "{request:x}");
        }
    }
}

#[test]
fn set_id_row_179() {
    let modes: [u64; 5] = [0o4755, 0o2755, 0o6755, 0o104755, 0o4000 | 1 << 32];
    let by_position = [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1)]
        .into_iter()
        .chain([("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("mknodat", 2)]);
    for (call, position) in by_position {
        let mut args = [0; 6];
        for mode in modes {
            args[position] = mode;
            assert_eq!(ask_name(SocketRule::Inet, call, &args), EPERM, "{call} {mode:o}");
        }
        for mode in [0, 0o644, 0o1777, 0o100755, 0o755 | 0o6000 << 32] {
            args[position] = mode;
            assert_eq!(ask_name(SocketRule::Inet, call, &args), ALLOW, "{call} {mode:o}");
        }
    }
    for (call, flags) in [("open", 1), ("openat", 2)] {
        let mut args = [0; 6];
        for mode in modes {
            args[flags + 1] = mode;
            for flag in [0o100, 0o1101, 0o2000101, 0o20200002, 0o100 | 1 << 32] {
                args[flags] = flag;
                assert_eq!(ask_name(SocketRule::Inet, call, &args), EPERM, "{call} {flag:o} {mode:o}");
            }
            // Without a file to make, the argument is whatever the register held.
            for flag in [0, 1, 2, 0o200000, 0o2000000, 0o100 << 32] {
                args[flags] = flag;
                assert_eq!(ask_name(SocketRule::Inet, call, &args), ALLOW, "{call} {flag:o} {mode:o}");
            }
        }
    }
    // Device nodes; FIFO, socket and plain file pass.
    for (mode, answer) in
        [(0o020666, EPERM), (0o060660, EPERM), (0o010644, ALLOW), (0o140755, ALLOW), (0o100644, ALLOW)]
    {
        assert_eq!(ask_name(SocketRule::Inet, "mknod", &[0, mode, 0x103]), answer, "{mode:o}");
        assert_eq!(ask_name(SocketRule::Inet, "mknodat", &[0, 0, mode, 0x103]), answer, "{mode:o}");
    }
}

#[test]
fn prctl_and_nested_filters() {
    let prctl = |option: u64| ask_name(SocketRule::Inet, "prctl", &[option]);
    // PDEATHSIG, DUMPABLE, NAME, SECCOMP, CAPBSET_READ, TIMERSLACK, SUBREAPER, NO_NEW_PRIVS, THP,
    // CAP_AMBIENT, VMA, PTRACER
    for option in
        [1, 2, 3, 4, 15, 16, 21, 22, 23, 29, 30, 36, 37, 38, 39, 41, 42, 47, 0x5356_4d41, 0x5961_6d61]
    {
        assert_eq!(prctl(option), ALLOW, "{option}");
        assert_eq!(prctl(option | 1 << 32), ALLOW, "{option}");
    }
    for option in [28, 35, 62, 35 | 1 << 32] {
        assert_eq!(prctl(option), EPERM, "{option}");
    }
    for option in [67, 78, 1000, 0x5356_4d42, u64::from(u32::MAX)] {
        assert_eq!(prctl(option), EINVAL, "{option}");
    }
    let seccomp = |flags: u64| ask_name(SocketRule::Inet, "seccomp", &[1, flags]);
    assert_eq!([seccomp(0), seccomp(1), seccomp(4)], [ALLOW; 3]);
    assert_eq!([seccomp(8), seccomp(9), seccomp(0x28), seccomp(8 | 1 << 32)], [EPERM; 4]);
}

#[test]
fn limits_of_others_are_only_read() {
    let prlimit =
        |pid: u64, new: u64| ask_name(SocketRule::Inet, "prlimit64", &[pid, 7, new, 0x7fff_0000_1000]);
    for new in [0, 1, 0x7fff_0000_0000, 1 << 32, 0xffff_ffff, u64::MAX] {
        assert_eq!(prlimit(0, new), ALLOW, "{new:x}");
        assert_eq!(prlimit(1 << 32, new), ALLOW, "the kernel's pid is an int: {new:x}");
        for pid in [1, 2, 4_194_304, 0xffff_ffff, u64::MAX, 1 | 1 << 32] {
            assert_eq!(prlimit(pid, new), if new == 0 { ALLOW } else { EPERM }, "{pid:x} {new:x}");
        }
    }
}

// ---- what toolchains need -------------------------------------------------------------------

#[test]
fn calls_that_toolchains_make_are_allowed() {
    let calls = [
        "read write close fstat newfstatat statx mmap munmap mprotect brk rt_sigaction rt_sigreturn pread64",
        "execve execveat fork vfork wait4 waitid exit exit_group kill tgkill pidfd_open pidfd_send_signal",
        "futex futex_waitv futex_wake set_robust_list set_tid_address rseq arch_prctl membarrier mseal",
        "epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2 pipe2 signalfd4 timerfd_create",
        "inotify_init1 inotify_add_watch memfd_create splice vmsplice tee copy_file_range sendfile",
        "getrandom prlimit64 sysinfo uname getcpu sched_getaffinity sched_setaffinity get_mempolicy mbind",
        "setuid setgid setresuid setgroups capget capset landlock_create_ruleset landlock_restrict_self",
        "bind listen accept4 connect sendmsg recvmsg sendto recvfrom getsockopt sendmmsg recvmmsg",
        "shmget shmat semop msgsnd flock fallocate renameat2 linkat symlinkat utimensat getxattr",
        "cachestat process_madvise close_range faccessat2 clock_nanosleep restart_syscall setpriority",
    ];
    for call in calls.iter().flat_map(|group| group.split(' ')) {
        assert_eq!(ask_name(SocketRule::Inet, call, &[]), ALLOW, "{call}");
    }
}

/// Known calls that no file mentions: each new entry in the table shows up here for a decision.
#[test]
fn calls_that_no_file_mentions_are_these() {
    let catalogue = catalogue::embedded().unwrap();
    let is_in_set = |name: &str| catalogue.sets.iter().any(|set| set.calls().any(|call| call == name));
    let unmentioned = |arch: Arch| {
        let names = arch.table().iter().map(|(name, _)| *name);
        names.filter(|name| !is_in_set(name) && catalogue.refusal(name).is_none()).collect::<Vec<_>>()
    };
    assert_eq!(
        unmentioned(Arch::X86_64),
        [
            "ustat",
            "getpmsg",
            "putpmsg",
            "afs_syscall",
            "tuxcall",
            "security",
            "set_thread_area",
            "get_thread_area",
            "epoll_ctl_old",
            "epoll_wait_old",
            "vserver",
            "uretprobe",
            "uprobe",
        ]
    );
    assert_eq!(unmentioned(Arch::Aarch64), [""; 0]);
}

// ---- the program itself ---------------------------------------------------------------------

#[test]
fn the_default_program_is_short_and_shallow() {
    for arch in ARCHES {
        for (network, instructions_max) in [(SocketRule::None, 150), (SocketRule::Inet, 170)] {
            let program = defaults(arch, network);
            let steps = |nr: u32| {
                let call = Call { nr, arch: arch.audit(), args: [0; 6] };
                interp::run(program.words(), &call).unwrap().1
            };
            let deepest = (0..=1024).map(steps).max().unwrap();
            assert!(
                program.words().len() <= instructions_max,
                "{arch:?} {network:?}: {}",
                program.words().len()
            );
            assert!(deepest <= 18, "{arch:?} {network:?}: {deepest} steps");
        }
    }
}

#[test]
fn words_have_the_layout_of_sock_filter() {
    assert_eq!(size_of::<Word>(), size_of::<libc::sock_filter>());
    assert_eq!(align_of::<Word>(), align_of::<libc::sock_filter>());
}

#[test]
fn the_same_request_gives_the_same_program() {
    let reversed: Vec<String> = DEFAULT_SETS.iter().rev().map(|&name| name.to_owned()).collect();
    let request = Request { sets: &reversed, allow: &[], network: SocketRule::Inet, browser: false };
    let again = compile(&request).unwrap().plain;
    assert_eq!(again, defaults(Arch::NATIVE, SocketRule::Inet));
}

// ---- the asking form ------------------------------------------------------------------------

/// What the asking form may answer where the plain one answers `plain`.
fn asked_instead(name: Option<&str>, plain: Verdict) -> Verdict {
    let known = name.is_some_and(|name| !catalogue::embedded().unwrap().is_quiet(name));
    if known && [EPERM, ENOSYS, EAFNOSUPPORT].contains(&plain) { Verdict::Ask } else { plain }
}

/// Every choice of sets that a shipped profile makes, and one with grants.
fn filters(arch: Arch) -> Vec<Filter> {
    let sets = [&DEFAULT_SETS[..], &["base", "process"], &["base"]];
    let choice = |(sets, allow, network): (&&[&str], &[&str], SocketRule)| {
        compile_for(arch, &Request { sets: &strings(sets), allow: &strings(allow), network, browser: false })
            .unwrap()
    };
    RULES
        .iter()
        .flat_map(|network| sets.iter().map(move |sets| (sets, &[][..], *network)))
        .chain([(&sets[2], &["ptrace", "ustat", "socket"][..], SocketRule::Inet)])
        .map(choice)
        .chain([compile_for(
            arch,
            &Request { sets: &strings(&DEFAULT_SETS), allow: &[], network: SocketRule::None, browser: true },
        )
        .unwrap()])
        .collect()
}

#[test]
fn the_forms_differ_in_nothing_but_who_answers() {
    let edges = edges();
    for arch in ARCHES {
        for filter in filters(arch) {
            let compare = |audit: u32, nr: u32, args: [u64; 6]| {
                let call = Call { nr, arch: audit, args };
                let (plain, asking) =
                    (filter.plain.verdict(&call).unwrap(), filter.asking.verdict(&call).unwrap());
                let native = audit == arch.audit();
                let wanted = if native { asked_instead(arch.name(nr), plain) } else { plain };
                assert_eq!(asking, wanted, "{arch:?} {:?} {args:x?}", arch.name(nr));
            };
            let audits = [arch.audit(), 0x4000_0003, 0, u32::MAX];
            let numbers = (0..=1024).chain([X32 - 1, X32, X32 | 59, 0x7fff_ffff, 1 << 31, u32::MAX]);
            for (nr, audit) in numbers.flat_map(|nr| audits.map(|audit| (nr, audit))) {
                for args in [[0; 6], [1; 6], [2; 6], [u64::MAX; 6]] {
                    compare(audit, nr, args);
                }
            }
            for (_, nr) in
                arch.table().iter().filter(|(name, _)| rules::of(name, SocketRule::Inet, false).is_some())
            {
                for (index, &edge) in (0..6).flat_map(|index| edges.iter().map(move |edge| (index, edge))) {
                    for rest in [0, 1, 2] {
                        let mut args = [rest; 6];
                        args[index] = edge;
                        compare(arch.audit(), *nr, args);
                    }
                }
            }
        }
    }
}

#[test]
fn the_plain_form_never_asks_and_the_asking_one_does() {
    for filter in filters(Arch::NATIVE) {
        let asks = |program: &Program| {
            program.words().iter().any(|word| word.code == 0x06 && word.k == libc::SECCOMP_RET_USER_NOTIF)
        };
        assert!(!asks(&filter.plain) && asks(&filter.asking));
        // A listener that could say "go on" is of no use where nothing else is asked about.
        assert!(filter.asking.words().len() < 2 * filter.plain.words().len());
    }
}

// ---- requests -------------------------------------------------------------------------------

fn error(sets: &[&str], allow: &[&str]) -> Error {
    let (sets, allow) = (strings(sets), strings(allow));
    compile(&Request { sets: &sets, allow: &allow, network: SocketRule::Inet, browser: false }).unwrap_err()
}

#[test]
fn wrong_requests_say_what_is_wrong() {
    assert_eq!(
        error(&["base", "bse"], &[]).to_string(),
        "unknown system-call set `bse`; the sets are base, process, schedule, ipc, network, confine"
    );
    assert_eq!(
        error(&["base"], &["opne"]).to_string(),
        "unknown system call `opne` (calls up to Linux 6.18 are known)"
    );
    let never = error(&["base"], &["bpf"]);
    assert!(matches!(&never, Error::NeverAllowed { name, .. } if name == "bpf"));
    assert!(never.to_string().starts_with("system call `bpf` can't be allowed: kernel exploitation"));
    assert_eq!(
        error(&[], &[]).to_string(),
        "the requested sets lack `prctl`, without which no command can start; add the set `base`"
    );
    for name in ["clone3", "openat2", "io_uring_setup", "mount", "setns", "keyctl", "open_by_handle_at"] {
        assert!(matches!(error(&["base"], &[name]), Error::NeverAllowed { .. }), "{name}");
    }
}

#[test]
fn a_granted_call_is_allowed_and_keeps_its_argument_rule() {
    let allow = strings(&["ptrace", "socket", "ustat"]);
    let request =
        Request { sets: &strings(&["base"]), allow: &allow, network: SocketRule::None, browser: false };
    let program = compile(&request).unwrap().plain;
    let ask = |name: &str, args| ask(&program, Arch::NATIVE, Arch::NATIVE.number(name).unwrap(), args);
    assert_eq!(ask("ptrace", [0; 6]), ALLOW);
    assert_eq!(ask("socket", [1, 1, 0, 0, 0, 0]), ALLOW);
    assert_eq!(ask("socket", [2, 1, 0, 0, 0, 0]), EAFNOSUPPORT);
    assert_eq!(ask("connect", [0; 6]), ENOSYS, "not in `base`");
    assert_eq!(summary(&request).unwrap().extra, ["ptrace", "socket", "ustat"]);
}

#[test]
fn only_ptrace_is_refused_and_grantable() {
    let refused = &catalogue::embedded().unwrap().refused;
    let grantable: Vec<_> =
        refused.iter().filter(|group| group.grantable).flat_map(|group| &group.names).collect();
    assert_eq!(grantable, ["ptrace"]);
}

#[test]
fn every_argument_rule_belongs_to_a_call_of_some_set() {
    let calls: Vec<_> = sets().flat_map(|set| set.calls).map(|(name, _)| name).collect();
    for (name, _) in ARCHES.iter().flat_map(|arch| arch.table()) {
        if let Some(rule) = rules::of(name, SocketRule::Inet, false) {
            assert!(calls.contains(name), "{name}");
            assert!(rule.why.len() > 10, "{name}");
        }
    }
}

#[test]
fn the_summary_counts_what_the_program_does() {
    let request =
        Request { sets: &strings(&DEFAULT_SETS), allow: &[], network: SocketRule::Inet, browser: false };
    let summary = summary(&request).unwrap();
    let program = compile(&request).unwrap().plain;
    assert_eq!(summary.sets, DEFAULT_SETS);
    assert_eq!(summary.extra, [""; 0]);
    assert_eq!(summary.instructions, program.words().len());
    let answers = |wanted| {
        let table = Arch::NATIVE.table().iter();
        table.filter(|(_, nr)| ask(&program, Arch::NATIVE, *nr, [1; 6]) == wanted).count()
    };
    // personality(1) and setting the limits of process 1 are the allowed calls that object to ones everywhere.
    assert_eq!(summary.allowed, answers(ALLOW) + 2);
    assert_eq!(summary.eperm.len(), answers(EPERM) - 2);
    assert!(summary.argument_checked.iter().any(|checked| checked.call == "openat"));
    assert!(summary.enosys.iter().any(|call| call == "clone3"));
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["sockets"], "inet");
}

#[test]
fn sets_are_listed_in_order_with_their_reasons() {
    let names: Vec<_> = sets().map(|set| set.name).collect();
    assert_eq!(names, DEFAULT_SETS);
    assert!(
        sets().all(|set| !set.description.is_empty() && set.calls.iter().all(|(_, why)| !why.is_empty()))
    );
}

//! Argument rules: what an allowed call may not ask for.
//!
//! A rule is a list of lines, read from the top like a firewall's; the first line that decides
//! wins, and a call that reaches the end is allowed. Comparisons are on the low 32 bits,
//! because the arguments looked at here are `int`, `unsigned int` or `umode_t` in the kernel
//! (or, for clone(2), cut to 32 bits by `lower_32_bits`): the high half of the register never
//! reaches the kernel's own decision, so it must not reach ours (CVE-2019-10063). Only whether a
//! pointer is null is asked of the whole register.

use libc::{EAFNOSUPPORT, EINVAL, ENOPROTOOPT, EOPNOTSUPP, EPERM};

use super::SocketRule;

/// A comparison of one argument: of its low 32 bits, but for [`Cond::Null`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cond {
    /// Argument equals value.
    Is(u8, u32),
    /// Argument differs from value.
    Not(u8, u32),
    /// Argument is at most value, unsigned.
    AtMost(u8, u32),
    /// Argument and mask equals value.
    Bits(u8, u32, u32),
    /// All 64 bits are zero: no pointer was given.
    Null(u8),
}

/// Where a line sends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To the next line; after the last, the call is allowed.
    Next,
    /// Allowed.
    Allow,
    /// Refused with this errno.
    Errno(i32),
}

/// One line: if *any* of the groups has *all* of its conditions met, `hit`, else `miss`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) any: &'static [&'static [Cond]],
    pub(super) hit: Step,
    pub(super) miss: Step,
}

/// The lines for one call and the reason they exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) lines: &'static [Line],
    pub(super) why: &'static str,
}

const fn allow(any: &'static [&'static [Cond]]) -> Line {
    Line { any, hit: Step::Allow, miss: Step::Next }
}

const fn require(any: &'static [&'static [Cond]], errno: i32) -> Line {
    Line { any, hit: Step::Next, miss: Step::Errno(errno) }
}

use Cond::{AtMost, Bits, Is, Not, Null};

// ---- set-id modes --------------------------------------------------------------------------

/// `S_ISUID | S_ISGID`, inode(7).
///
/// mkdir(2) is under the rule for uniformity ("every call that carries a mode"); the kernel itself
/// drops both bits there. A set-gid *directory* is no privilege, but chmod can't tell what its path
/// names, so `chmod g+s DIR` fails too: `git init --shared` and `cp -r` of such a directory notice.
pub(super) const SET_ID: u32 = 0o6000;
/// The bit of `S_IFMT` that `S_IFCHR` and `S_IFBLK` have and `S_IFREG`, `S_IFIFO`, `S_IFSOCK` lack.
const DEVICE: u32 = 0o020000;
/// `O_CREAT | __O_TMPFILE`, the kernel's `WILL_CREATE`: only then is the mode argument read, and
/// only then does it hold more than what the caller's stack left there. Same bits on x86-64 and arm64.
const WILL_CREATE: u32 = 0o100 | 0o20000000;

const MODE_WHY: &str = "a set-id file in the workspace would be live on the host, where no nosuid applies";

const MODE_1: Rule = Rule { lines: &[require(&[&[Bits(1, SET_ID, 0)]], EPERM)], why: MODE_WHY };
const MODE_2: Rule = Rule { lines: &[require(&[&[Bits(2, SET_ID, 0)]], EPERM)], why: MODE_WHY };

const OPEN_WHY: &str =
    "a set-id mode is refused where the call may create a file; otherwise the mode is not read";
const OPEN_1: Rule =
    Rule { lines: &[require(&[&[Bits(1, WILL_CREATE, 0)], &[Bits(2, SET_ID, 0)]], EPERM)], why: OPEN_WHY };
const OPEN_2: Rule =
    Rule { lines: &[require(&[&[Bits(2, WILL_CREATE, 0)], &[Bits(3, SET_ID, 0)]], EPERM)], why: OPEN_WHY };

const MKNOD_WHY: &str = "no set-id modes and no device nodes; FIFOs, sockets and plain files may be made";
const MKNOD_1: Rule = Rule { lines: &[require(&[&[Bits(1, SET_ID | DEVICE, 0)]], EPERM)], why: MKNOD_WHY };
const MKNOD_2: Rule = Rule { lines: &[require(&[&[Bits(2, SET_ID | DEVICE, 0)]], EPERM)], why: MKNOD_WHY };

// ---- namespaces and personas ---------------------------------------------------------------

/// Every `CLONE_NEW*` flag of namespaces(7): mount, cgroup, UTS, IPC, user, PID, network, and
/// time (0x80, which clone(2) would read as part of the exit signal and unshare(2) honours).
pub(super) const NEW_NAMESPACE: u32 = 0x0002_0000
    | 0x0200_0000
    | 0x0400_0000
    | 0x0800_0000
    | 0x1000_0000
    | 0x2000_0000
    | 0x4000_0000
    | 0x0000_0080;

const NAMESPACES: Rule = Rule {
    lines: &[require(&[&[Bits(0, NEW_NAMESPACE, 0)]], EPERM)],
    why: "no new namespace: a user namespace gives capabilities over kernel surface",
};

/// `CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET`.
pub(super) const BROWSER_NAMESPACE: u32 = 0x1000_0000 | 0x2000_0000 | 0x4000_0000;

/// namespace_sandbox.cc of Chromium: the zygote and its processes are cloned with these three. A mount namespace is
/// not among them, so that what is mounted stays as it is.
const BROWSER_NAMESPACES: Rule = Rule {
    lines: &[require(&[&[Bits(0, NEW_NAMESPACE & !BROWSER_NAMESPACE, 0)]], EPERM)],
    why: "granted `browser`: user, PID and network namespaces; no mount, IPC, UTS, cgroup or time namespace",
};

const PERSONALITY: Rule = Rule {
    lines: &[require(&[&[Is(0, 0)], &[Is(0, u32::MAX)]], EPERM)],
    why: "PER_LINUX and the query only: no READ_IMPLIES_EXEC, no ADDR_NO_RANDOMIZE",
};

const PR_SET_SECUREBITS: u32 = 28;
const PR_SET_MM: u32 = 35;
const PR_SCHED_CORE: u32 = 62;
/// The last of the old options that programs use (`PR_GET_MDWE`); what came later is unlisted.
const PR_GET_MDWE: u32 = 66;
const PR_SET_VMA: u32 = 0x5356_4d41;
const PR_SET_PTRACER: u32 = 0x5961_6d61;
const PR_GET_AUXV: u32 = 0x4155_5856;

const PRCTL: Rule = Rule {
    lines: &[
        require(&[&[Not(0, PR_SET_SECUREBITS), Not(0, PR_SET_MM), Not(0, PR_SCHED_CORE)]], EPERM),
        require(
            &[
                &[AtMost(0, PR_GET_MDWE)],
                &[Is(0, PR_SET_VMA)],
                &[Is(0, PR_SET_PTRACER)],
                &[Is(0, PR_GET_AUXV)],
            ],
            EINVAL,
        ),
    ],
    why: "no secure bits, no memory map forgery, no core scheduling; options after PR_GET_MDWE answer EINVAL as on an older kernel",
};

const SECCOMP_FILTER_FLAG_NEW_LISTENER: u32 = 1 << 3;

const SECCOMP: Rule = Rule {
    lines: &[require(&[&[Bits(1, SECCOMP_FILTER_FLAG_NEW_LISTENER, 0)]], EPERM)],
    why: "nested filters may tighten; a listener would hand calls to another process to answer",
};

/// `prlimit64(pid, resource, new_limit, old_limit)`. Where an ordinary user runs Stockade, the command has init's
/// kernel identity, which is all that the kernel asks for. A filter cannot know the caller's own pid, so that number
/// is refused as well: 0 is what setrlimit, shells and runtimes pass.
const PRLIMIT: Rule = Rule {
    lines: &[require(&[&[Is(0, 0)], &[Null(2)]], EPERM)],
    why: "a program sets its own limits (pid 0); another's, init's among them, it may only read",
};

// ---- terminals -----------------------------------------------------------------------------

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
const TIOCSETD: u32 = 0x5423;

const IOCTL: Rule = Rule {
    lines: &[require(&[&[Not(1, TIOCSTI), Not(1, TIOCLINUX), Not(1, TIOCSETD)]], EPERM)],
    why: "no typing into a terminal (TIOCSTI, TIOCLINUX) and no line disciplines (TIOCSETD loads n_gsm and its kin)",
};

// ---- sockets -------------------------------------------------------------------------------

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const NETLINK_ROUTE: u32 = 0;
/// `SOCK_TYPE_MASK`: the kernel takes the type from here, above are SOCK_NONBLOCK and SOCK_CLOEXEC.
const TYPE: u32 = 0xf;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const TCP_ULP: u32 = 31;
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Refused families and protocols answer EAFNOSUPPORT, refused types EPERM. EAFNOSUPPORT is what
/// resolvers, libaudit, Go's MPTCP and Python read as "this kernel doesn't have it" and go on;
/// EPERM for raw sockets is what any caller without CAP_NET_RAW sees.
///
/// AF_UNIX has no check of its type: the kernel knows stream, datagram and seqpacket, and makes a
/// datagram socket of SOCK_RAW.
const SOCKET_INET: Rule = Rule {
    lines: &[
        allow(&[&[Is(0, AF_UNIX)], &[Is(0, AF_NETLINK), Is(2, NETLINK_ROUTE)]]),
        require(&[&[Is(0, AF_INET)], &[Is(0, AF_INET6)]], EAFNOSUPPORT),
        require(&[&[Bits(1, TYPE, SOCK_STREAM)], &[Bits(1, TYPE, SOCK_DGRAM)]], EPERM),
        require(&[&[Is(2, 0)], &[Is(2, IPPROTO_TCP)], &[Is(2, IPPROTO_UDP)]], EAFNOSUPPORT),
    ],
    why: "unix, TCP, UDP and route-netlink; no raw, packet, vsock, alg, MPTCP, SCTP, SMC, DCCP, UDP-Lite, ICMP",
};

const UNIX_ONLY: Rule =
    Rule { lines: &[require(&[&[Is(0, AF_UNIX)]], EAFNOSUPPORT)], why: "unix sockets, no other family" };

const SETSOCKOPT: Rule = Rule {
    lines: &[require(&[&[Not(1, IPPROTO_TCP)], &[Not(2, TCP_ULP)]], ENOPROTOOPT)],
    why: "no TCP_ULP: it puts SMC, kernel TLS or espintcp beneath a socket that was judged as TCP",
};

const FAST_OPEN_WHY: &str = "no MSG_FASTOPEN: it connects without connect, past Landlock's port rules; EOPNOTSUPP makes callers connect";
const SEND_2: Rule =
    Rule { lines: &[require(&[&[Bits(2, MSG_FASTOPEN, 0)]], EOPNOTSUPP)], why: FAST_OPEN_WHY };
const SEND_3: Rule =
    Rule { lines: &[require(&[&[Bits(3, MSG_FASTOPEN, 0)]], EOPNOTSUPP)], why: FAST_OPEN_WHY };

/// The rule of a call, if its arguments are looked at. It holds however the call came to be
/// allowed, by a set or by a profile's `allow`.
pub(super) fn of(call: &str, network: SocketRule, browser: bool) -> Option<&'static Rule> {
    Some(match call {
        "chmod" | "fchmod" | "mkdir" | "creat" => &MODE_1,
        "fchmodat" | "fchmodat2" | "mkdirat" => &MODE_2,
        "open" => &OPEN_1,
        "openat" => &OPEN_2,
        "mknod" => &MKNOD_1,
        "mknodat" => &MKNOD_2,
        "clone" | "unshare" if browser => &BROWSER_NAMESPACES,
        "clone" | "unshare" => &NAMESPACES,
        "personality" => &PERSONALITY,
        "prctl" => &PRCTL,
        "seccomp" => &SECCOMP,
        "prlimit64" => &PRLIMIT,
        "ioctl" => &IOCTL,
        "socket" => match network {
            SocketRule::None => &UNIX_ONLY,
            SocketRule::Inet => &SOCKET_INET,
        },
        "socketpair" => &UNIX_ONLY,
        "setsockopt" => &SETSOCKOPT,
        "sendmsg" => &SEND_2,
        "sendto" | "sendmmsg" => &SEND_3,
        _ => return None,
    })
}

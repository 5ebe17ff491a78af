//! The messages between owner and init, and their order. One fixed-size datagram each over a
//! `SOCK_SEQPACKET` pair; early, late and repeated messages are refused by [`Sequence`], which is a pure
//! value and is tested without forking.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 24;
const MAGIC: u8 = 0x5c;

/// A step of a stage; named in every fault. The order is the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "each name is its own description; `Step::name` spells it out")]
pub enum Step {
    CloseDescriptors = 1,
    DieWithOwner,
    Unshare,
    HostName,
    PrivateMounts,
    AwaitIdMaps,
    BecomeInit,
    Conceal,
    OpenSources,
    NewRoot,
    MountTable,
    EnterRoot,
    ReadOnlyRoot,
    Network,
    Loopback,
    CgroupNamespace,
    LandlockRules,
    Rlimits,
    AwaitGo,
    Fork,
    Session,
    Terminal,
    Keyring,
    CommandIds,
    SecondNamespace,
    WorkingDirectory,
    Stdio,
    DropBounding,
    DropCapabilities,
    NoNewPrivileges,
    LandlockRestrict,
    CloseAll,
    SeccompInstall,
    SelfCheck,
    Execute,
    MaskLost,
    Canary,
}

impl Step {
    const LAST: u8 = Self::Canary as u8;

    /// The step with this number.
    pub fn from_u8(n: u8) -> Option<Self> {
        ALL.iter().copied().find(|s| *s as u8 == n)
    }

    /// What the step does, for an operator.
    pub fn name(self) -> &'static str {
        match self {
            Self::CloseDescriptors => "closing inherited descriptors",
            Self::DieWithOwner => "tying the executor's life to its owner",
            Self::Unshare => "making namespaces",
            Self::AwaitIdMaps => "waiting for the id maps",
            Self::CgroupNamespace => "entering the cgroups",
            Self::BecomeInit => "taking init's identity",
            Self::OpenSources => "opening the mount sources",
            Self::PrivateMounts => "cutting mount propagation",
            Self::NewRoot => "making the new root",
            Self::MountTable => "building the mount table",
            Self::EnterRoot => "entering the new root",
            Self::ReadOnlyRoot => "making the root read-only",
            Self::HostName => "setting the host name",
            Self::Network => "making the network namespace",
            Self::Loopback => "bringing up loopback",
            Self::Rlimits => "setting resource limits",
            Self::LandlockRules => "making the Landlock rules",
            Self::Conceal => "concealing init",
            Self::AwaitGo => "waiting for the owner's go",
            Self::Fork => "starting a process in the executor",
            Self::Session => "starting a session",
            Self::Terminal => "opening the terminal",
            Self::Keyring => "leaving the session keyring",
            Self::CommandIds => "taking the command's identity",
            Self::SecondNamespace => "locking the mounts in a second namespace",
            Self::WorkingDirectory => "entering the working directory",
            Self::Stdio => "placing standard descriptors",
            Self::DropBounding => "dropping the capability bounding set",
            Self::DropCapabilities => "dropping capabilities",
            Self::NoNewPrivileges => "setting no_new_privs",
            Self::LandlockRestrict => "applying Landlock",
            Self::CloseAll => "closing descriptors",
            Self::SeccompInstall => "installing the system-call filter",
            Self::SelfCheck => "checking itself",
            Self::Execute => "executing the command",
            Self::MaskLost => "keeping masks and protections in place",
            Self::Canary => "running the canaries",
        }
    }
}

const ALL: [Step; Step::LAST as usize] = [
    Step::CloseDescriptors,
    Step::DieWithOwner,
    Step::Unshare,
    Step::HostName,
    Step::PrivateMounts,
    Step::AwaitIdMaps,
    Step::BecomeInit,
    Step::Conceal,
    Step::OpenSources,
    Step::NewRoot,
    Step::MountTable,
    Step::EnterRoot,
    Step::ReadOnlyRoot,
    Step::Network,
    Step::Loopback,
    Step::CgroupNamespace,
    Step::LandlockRules,
    Step::Rlimits,
    Step::AwaitGo,
    Step::Fork,
    Step::Session,
    Step::Terminal,
    Step::Keyring,
    Step::CommandIds,
    Step::SecondNamespace,
    Step::WorkingDirectory,
    Step::Stdio,
    Step::DropBounding,
    Step::DropCapabilities,
    Step::NoNewPrivileges,
    Step::LandlockRestrict,
    Step::CloseAll,
    Step::SeccompInstall,
    Step::SelfCheck,
    Step::Execute,
    Step::MaskLost,
    Step::Canary,
];

/// What went wrong in a stage: where and why, and which entry of a table it was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", step.name(), io::Error::from_raw_os_error(*errno))]
pub struct StageFault {
    /// The step.
    pub step: Step,
    /// errno; 0 when the fault is not a system call's.
    pub errno: i32,
    /// Index of the mount-table operation, source or candidate program; `u32::MAX` when none.
    pub index: u32,
}

impl StageFault {
    /// A fault of `step` caused by `error`.
    pub fn new(step: Step, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error().unwrap_or(0), index: u32::MAX }
    }

    /// The same, about entry `index`.
    pub fn at(mut self, index: usize) -> Self {
        self.index = u32::try_from(index).unwrap_or(u32::MAX);
        self
    }

    /// The eight bytes that a stage writes when it can do nothing else.
    pub fn encode(self) -> [u8; 8] {
        let errno = u16::try_from(self.errno).unwrap_or(u16::MAX).to_le_bytes();
        let index = self.index.to_le_bytes();
        [MAGIC, self.step as u8, errno[0], errno[1], index[0], index[1], index[2], index[3]]
    }

    /// Reads them back.
    pub fn decode(raw: [u8; 8]) -> Option<Self> {
        if raw[0] != MAGIC {
            return None;
        }
        Some(Self {
            step: Step::from_u8(raw[1])?,
            errno: i32::from(u16::from_le_bytes([raw[2], raw[3]])),
            index: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        })
    }
}

/// Attaches a step to the result of a system call.
pub trait AtStep<T> {
    /// Names the step in which this failed.
    ///
    /// # Errors
    /// The same error, with the step.
    fn at(self, step: Step) -> Result<T, StageFault>;
}

impl<T, E: Into<io::Error>> AtStep<T> for Result<T, E> {
    fn at(self, step: Step) -> Result<T, StageFault> {
        self.map_err(|e| StageFault::new(step, &e.into()))
    }
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// owner → init: some of the detached trees, in the order of the plan's sources and then the devices.
    Trees,
    /// owner → init: the id maps are in place, and all trees were sent.
    Mapped,
    /// owner → init: the limits stand; the `tasks` files of v1 cgroups come along, to be entered.
    Limited,
    /// init → owner: in all its namespaces and cgroups, with its own identity.
    Entered,
    /// init → owner: the root stands.
    Built,
    /// owner → init: go on, once the root stands; run the canaries first or not.
    Go {
        /// Whether the canaries run.
        verify: bool,
    },
    /// init → owner: what the canaries saw.
    Canaries {
        /// One bit per canary that held.
        held: u64,
        /// One bit per canary that ran.
        ran: u64,
    },
    /// init → owner: the terminal's master side comes along.
    Terminal,
    /// init → owner: the command was executed.
    Started,
    /// owner → init: send this signal to the command's process group.
    Signal {
        /// Number.
        number: i32,
    },
    /// init → owner: the command has ended.
    Ended {
        /// Raw wait status.
        status: i32,
        /// CPU time of the whole tree that was reaped, in microseconds.
        cpu_us: u64,
        /// Largest resident set of one process, in KiB.
        max_rss_kib: u64,
    },
    /// init → owner: nothing more will come.
    Fault(StageFault),
    /// The maker of the network namespace → init: it comes along.
    Network,
}

impl Message {
    fn tag(self) -> u8 {
        match self {
            Self::Entered => 1,
            Self::Mapped => 2,
            Self::Built => 3,
            Self::Go { .. } => 4,
            Self::Canaries { .. } => 5,
            Self::Terminal => 6,
            Self::Started => 7,
            Self::Signal { .. } => 8,
            Self::Ended { .. } => 9,
            Self::Fault(_) => 10,
            Self::Trees => 11,
            Self::Network => 12,
            Self::Limited => 13,
        }
    }

    /// The bytes on the wire.
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let mut out = [0; MESSAGE_BYTES];
        out[0] = MAGIC;
        out[1] = self.tag();
        let (word, a, b) = match self {
            Self::Go { verify } => (i32::from(verify), 0, 0),
            Self::Canaries { held, ran } => (0, held, ran),
            Self::Signal { number } => (number, 0, 0),
            Self::Ended { status, cpu_us, max_rss_kib } => (status, cpu_us, max_rss_kib),
            Self::Fault(fault) => (0, u64::from_le_bytes(fault.encode()), 0),
            Self::Entered
            | Self::Mapped
            | Self::Built
            | Self::Terminal
            | Self::Started
            | Self::Trees
            | Self::Network
            | Self::Limited => (0, 0, 0),
        };
        out[4..8].copy_from_slice(&word.to_le_bytes());
        out[8..16].copy_from_slice(&a.to_le_bytes());
        out[16..24].copy_from_slice(&b.to_le_bytes());
        out
    }

    /// Reads a message; `None` for anything that `encode` did not make.
    pub fn decode(raw: &[u8]) -> Option<Self> {
        let raw: &[u8; MESSAGE_BYTES] = raw.try_into().ok()?;
        let part = |at: usize| -> [u8; 8] {
            let mut out = [0; 8];
            out.copy_from_slice(&raw[at..at + 8]);
            out
        };
        let word = i32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
        let (a, b) = (u64::from_le_bytes(part(8)), u64::from_le_bytes(part(16)));
        let message = match raw[1] {
            1 => Self::Entered,
            2 => Self::Mapped,
            3 => Self::Built,
            4 => Self::Go { verify: word == 1 },
            5 => Self::Canaries { held: a, ran: b },
            6 => Self::Terminal,
            7 => Self::Started,
            8 => Self::Signal { number: word },
            9 => Self::Ended { status: word, cpu_us: a, max_rss_kib: b },
            10 => Self::Fault(StageFault::decode(part(8))?),
            11 => Self::Trees,
            12 => Self::Network,
            13 => Self::Limited,
            _ => return None,
        };
        (message.encode() == *raw).then_some(message)
    }
}

/// The order of init's messages, as the owner accepts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sequence {
    last: u8,
}

impl Sequence {
    /// Takes `message` if it may come now: each at most once, in order, optional ones skipped; a fault at any
    /// time before the end, and nothing after a fault or the end.
    ///
    /// # Errors
    /// The message, when it is early, late, repeated or not init's to send.
    pub fn accept(&mut self, message: Message) -> Result<Message, Message> {
        const ENDED: u8 = 9;
        let tag = message.tag();
        let allowed = match message {
            Message::Entered => self.last == 0,
            Message::Built => self.last == 1,
            Message::Canaries { .. } => self.last == 3,
            Message::Terminal => matches!(self.last, 3 | 5),
            Message::Started => matches!(self.last, 3 | 5 | 6),
            Message::Ended { .. } => self.last == 7,
            Message::Fault(_) => self.last < ENDED,
            Message::Trees
            | Message::Mapped
            | Message::Go { .. }
            | Message::Signal { .. }
            | Message::Network
            | Message::Limited => false,
        };
        if !allowed {
            return Err(message);
        }
        self.last = tag;
        Ok(message)
    }
}

/// Most descriptors that come with a message.
pub const DESCRIPTORS_MAX: usize = 64;

/// Sends a message, with descriptors when given (at most [`DESCRIPTORS_MAX`]).
///
/// # Errors
/// sendmsg(2).
pub fn send(socket: BorrowedFd<'_>, message: Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(&raw)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives a message; `None` when the other side is gone.
///
/// # Errors
/// recvmsg(2); `InvalidData` for bytes that are no message.
pub fn receive(socket: &impl AsFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut raw = [0u8; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut reset = false;
    let got = loop {
        let mut iov = [IoSliceMut::new(&mut raw)];
        match rustix::net::recvmsg(socket.as_fd(), &mut iov, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) => break got,
            Err(rustix::io::Errno::INTR) => {}
            // Told once and before all that is still queued, when the other side closes with words of ours unread: its
            // own last word comes after it.
            Err(rustix::io::Errno::CONNRESET) if !reset => reset = true,
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    match Message::decode(&raw[..got.bytes]) {
        Some(message) => Ok(Some((message, fds))),
        None => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_are_numbered_without_gaps() {
        for (i, step) in ALL.iter().enumerate() {
            assert_eq!(*step as usize, i + 1);
            assert_eq!(Step::from_u8(*step as u8), Some(*step));
        }
        assert_eq!(Step::from_u8(0), None);
        assert_eq!(Step::from_u8(Step::LAST + 1), None);
    }

    #[test]
    fn the_usual_orders_are_accepted() {
        let canaries = Message::Canaries { held: 1, ran: 1 };
        let ended = Message::Ended { status: 0, cpu_us: 1, max_rss_kib: 1 };
        for order in [
            vec![Message::Entered, Message::Built, Message::Started, ended],
            vec![Message::Entered, Message::Built, canaries, Message::Terminal, Message::Started, ended],
        ] {
            let mut seq = Sequence::default();
            for m in order {
                assert_eq!(seq.accept(m), Ok(m));
            }
        }
    }

    #[test]
    fn early_late_and_repeated_messages_are_refused() {
        let mut seq = Sequence::default();
        assert!(seq.accept(Message::Built).is_err());
        assert!(seq.accept(Message::Entered).is_ok());
        assert!(seq.accept(Message::Entered).is_err());
        assert!(seq.accept(Message::Started).is_err());
        assert!(seq.accept(Message::Go { verify: true }).is_err());
        let fault = Message::Fault(StageFault { step: Step::Unshare, errno: 1, index: 0 });
        assert!(seq.accept(fault).is_ok());
        assert!(seq.accept(Message::Built).is_err());
        assert!(seq.accept(fault).is_err());
    }

    #[test]
    fn the_last_word_is_heard_from_who_left_ours_unread() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, other) = pair().unwrap();
        let fault = Message::Fault(StageFault { step: Step::Unshare, errno: 1, index: 0 });
        for (from, message) in [(&own, Message::Mapped), (&other, Message::Entered), (&other, fault)] {
            rustix::net::send(from, &message.encode(), rustix::net::SendFlags::empty()).unwrap();
        }
        drop(other);
        for wanted in [Some(Message::Entered), Some(fault), None] {
            assert_eq!(receive(&own).unwrap().map(|(m, _)| m), wanted);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_what_encodes_to_them(raw in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(m) = Message::decode(&raw) {
                prop_assert_eq!(&m.encode()[..], &raw[..]);
            }
        }

        #[test]
        fn faults_survive_the_wire(step in 1u8..=Step::LAST, errno in 0i32..4096, index in any::<u32>()) {
            let fault = StageFault { step: Step::from_u8(step).unwrap(), errno, index };
            prop_assert_eq!(StageFault::decode(fault.encode()), Some(fault));
            let m = Message::Fault(fault);
            prop_assert_eq!(Message::decode(&m.encode()), Some(m));
        }
    }
}

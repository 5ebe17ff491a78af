//! **Process:** the maker of the network namespace. **Parent:** init, by clone. **Namespaces:** init's user and PID
//! namespace, the host's file system. **May still:** everything, within that user namespace; it makes the namespace,
//! brings loopback up, hands the descriptor to init and ends. A network namespace takes longer than all the others
//! together, so it is made beside init, not by it; init joins it before anything of the command is there.

use super::wire::{AtStep, Message, StageFault, Step, receive, send};
use crate::sys;
use crate::sys::clone::Cloned;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, OwnedFd};

/// A namespace that is being made.
#[derive(Debug)]
pub struct Making {
    pid: i32,
    line: OwnedFd,
}

/// Starts making one, with loopback up when asked.
///
/// # Errors
/// socketpair(2), clone3(2).
pub fn begin(loopback: bool) -> Result<Making, StageFault> {
    let (line, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .at(Step::Network)?;
    match sys::clone::clone3(0, None).at(Step::Network)? {
        Cloned::Parent { pid, .. } => Ok(Making { pid, line }),
        Cloned::Child => {
            // When init does not hear this, it is gone, and this process with it.
            let _ = match make(loopback) {
                Ok(namespace) => send(far.as_fd(), Message::Network, &[namespace.as_fd()]),
                Err(fault) => send(far.as_fd(), Message::Fault(fault), &[]),
            };
            sys::clone::exit_now(0)
        }
    }
}

fn make(loopback: bool) -> Result<OwnedFd, StageFault> {
    sys::clone::unshare(libc::CLONE_NEWNET as u64).at(Step::Network)?;
    if loopback {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .at(Step::Loopback)?;
        sys::link::loopback_up(socket.as_fd()).at(Step::Loopback)?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, "/proc/self/ns/net", flags, Mode::empty()).at(Step::Network)
}

impl Making {
    /// Joins the namespace, and waits for the end of the process that made it.
    ///
    /// # Errors
    /// What that process could not do; setns(2).
    pub fn join(self) -> Result<(), StageFault> {
        let protocol = StageFault { step: Step::Network, errno: libc::EPROTO, index: u32::MAX };
        match receive(&self.line).at(Step::Network)? {
            Some((Message::Network, fds)) => {
                let namespace = fds.first().ok_or(protocol)?;
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).at(Step::Network)?;
            }
            Some((Message::Fault(fault), _)) => return Err(fault),
            _ => return Err(protocol),
        }
        while let Some(reaped) = sys::wait::wait4(self.pid, true).at(Step::Network)? {
            if reaped.pid == self.pid {
                break;
            }
        }
        Ok(())
    }
}

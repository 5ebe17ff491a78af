//! **Process:** the owner, host view. Clones init, writes its id maps, and speaks with it until the command has
//! started. Never enters a namespace. Everything before [`begin`] may fail without anything to clean up but what
//! the caller made; afterwards dropping [`Running`] ends the executor, since init dies with the control socket.

use super::Mutants;
use super::idmap;
use super::sources;
use super::stage::init::{self, Stdio, Task};
use super::stage::wire::{AtStep, DESCRIPTORS_MAX, Message, Sequence, StageFault, Step, receive, send};
use super::verify::HostView;
use crate::plan::{Mode, Plan};
use crate::sys::clone::{Cloned, clone3};
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What launching needs beside the plan.
#[derive(Debug)]
pub struct Launch<'plan> {
    /// The plan.
    pub plan: &'plan Plan,
    /// First id of the leased range; unused when rootless.
    pub id_base: u32,
    /// The caller's uid and gid.
    pub caller: (u32, u32),
    /// The command's ends of its standard descriptors.
    pub stdio: Stdio,
    /// Whether the canaries may be asked for: they compare with what this process is.
    pub verify: bool,
    /// Whether init traces the command.
    pub trace: bool,
    /// Locks that last as long as init: what they stand for is in use until then, whatever becomes of the owner.
    pub locks: &'plan [OwnedFd],
    /// Switched-off protections.
    pub mutants: Mutants,
}

/// An executor whose init lives.
#[derive(Debug)]
pub struct Running {
    /// init, as seen from here.
    pub pid: i32,
    /// Readable once init is dead.
    pub pidfd: OwnedFd,
    /// The line to init.
    pub control: OwnedFd,
    sequence: Sequence,
    /// Our own namespaces, looked at while init works.
    own: Vec<Option<(u64, u64)>>,
}

/// Namespaces whose identity is read back.
const READ_BACK: [&str; 6] = ["user", "mnt", "pid_for_children", "net", "ipc", "uts"];

fn namespace_of(who: &str, name: &str) -> Option<(u64, u64)> {
    rustix::fs::stat(format!("/proc/{who}/ns/{name}")).map(|s| (s.st_dev, s.st_ino)).ok()
}

/// Clones init, into `cgroup` when given. It makes its namespaces while the owner prepares the rest.
///
/// # Errors
/// A fault of the step that failed; nothing is left.
pub fn begin(launch: Launch<'_>, cgroup: Option<BorrowedFd<'_>>) -> Result<Running, StageFault> {
    let Launch { plan, stdio, verify, trace, locks, mutants, .. } = launch;
    let host = verify.then(HostView::gather);
    let (control, line) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .at(Step::Unshare)?;
    let mut namespaces = libc::CLONE_NEWUSER as u64;
    if !mutants.off(super::Mutant::PidNamespace) {
        namespaces |= libc::CLONE_NEWPID as u64;
    }
    match clone3(namespaces, cgroup).at(Step::Unshare)? {
        Cloned::Child => {
            drop(control);
            init::run(Task { plan, stdio, host, trace, locks, mutants }, &line)
        }
        Cloned::Parent { pid, pidfd } => {
            Ok(Running { pid, pidfd, control, sequence: Sequence::default(), own: Vec::new() })
        }
    }
}

impl Running {
    /// Writes the id maps, opens the sources (when privileged), makes the workspace trees idmapped,
    /// and lets init build the root.
    ///
    /// # Errors
    /// openat(2) and open_tree(2), with the index of the source; EPERM when the range may not be mapped; EINVAL, with the index of the source, for a file system that cannot
    /// be idmapped.
    pub fn map_ids(
        &mut self,
        plan: &Plan,
        base: u32,
        caller: (u32, u32),
        mutants: Mutants,
    ) -> Result<(), StageFault> {
        let c = &plan.containment;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let proc = rustix::fs::open("/proc", flags, FileMode::empty()).at(Step::AwaitIdMaps)?;
        let is_proc = rustix::fs::fstatfs(&proc).is_ok_and(|s| s.f_type == libc::PROC_SUPER_MAGIC);
        if !is_proc {
            return Err(StageFault { step: Step::AwaitIdMaps, errno: libc::ENODEV, index: u32::MAX });
        }
        let maps = idmap::outer_maps(&c.ids, c.mode, base, caller);
        idmap::write_maps(proc.as_fd(), self.pid, &maps, c.mode == Mode::Rootless).at(Step::AwaitIdMaps)?;
        if c.mode == Mode::Privileged {
            let trees = sources::open(&c.sources, mutants)?;
            let userns = idmap::user_namespace(proc.as_fd(), self.pid).at(Step::AwaitIdMaps)?;
            let mut others: Vec<((u32, u32), OwnedFd)> = Vec::new();
            for (index, (source, tree)) in c.sources.iter().zip(&trees.sources).enumerate() {
                if !source.idmap {
                    continue;
                }
                let fault = |e: &std::io::Error| StageFault::new(Step::AwaitIdMaps, e).at(index);
                let other = source.owner.filter(|owner| *owner != (c.ids.outer_uid, c.ids.outer_gid));
                let namespace = match other {
                    None => &userns,
                    Some(owner) => match others.iter().position(|(o, _)| *o == owner) {
                        Some(known) => &others[known].1,
                        None => {
                            let host = (
                                idmap::host_id(c.ids.outer_uid, base),
                                idmap::host_id(c.ids.outer_gid, base),
                            );
                            let made =
                                idmap::namespace_of(proc.as_fd(), owner, host).map_err(|e| fault(&e))?;
                            others.push((owner, made));
                            &others[others.len() - 1].1
                        }
                    },
                };
                // A read-only tree without it shows what everybody may read; one of a known owner is worth nothing so.
                if let Err(e) = idmap::apply(tree.as_fd(), namespace)
                    && (source.writable || source.owner.is_some())
                {
                    return Err(fault(&e));
                }
            }
            let all: Vec<BorrowedFd<'_>> =
                trees.sources.iter().chain(&trees.devices).map(AsFd::as_fd).collect();
            for some in all.chunks(DESCRIPTORS_MAX) {
                send(self.control.as_fd(), Message::Trees, some).at(Step::OpenSources)?;
            }
        }
        send(self.control.as_fd(), Message::Mapped, &[]).at(Step::AwaitIdMaps)
    }

    /// Lets init enter the v1 cgroups of `tasks`, whose limits stand.
    ///
    /// # Errors
    /// sendmsg(2): init is gone.
    pub fn limited(&mut self, tasks: &[BorrowedFd<'_>]) -> Result<(), StageFault> {
        send(self.control.as_fd(), Message::Limited, tasks).at(Step::CgroupNamespace)?;
        self.own = READ_BACK.iter().map(|name| namespace_of("self", name)).collect();
        Ok(())
    }

    /// Sends a message to init.
    ///
    /// # Errors
    /// sendmsg(2): init is gone.
    pub fn tell(&self, message: Message) -> Result<(), StageFault> {
        send(self.control.as_fd(), message, &[]).at(Step::AwaitGo)
    }

    /// init's next message, in its order; `None` when it is gone without another word.
    ///
    /// # Errors
    /// recvmsg(2); EPROTO for a message out of order.
    pub fn hear(&mut self) -> Result<Option<(Message, Vec<OwnedFd>)>, StageFault> {
        match receive(&self.control).at(Step::AwaitGo)? {
            None => Ok(None),
            Some((message, fds)) => match self.sequence.accept(message) {
                Ok(message) => Ok(Some((message, fds))),
                Err(_) => Err(StageFault { step: Step::AwaitGo, errno: libc::EPROTO, index: u32::MAX }),
            },
        }
    }

    /// Whether every namespace that the plan asks for differs from the owner's: read back from procfs. `None` where
    /// that cannot be read (an ordinary user may not look into an undumpable init); a canary compares them as well.
    pub fn namespaces_read_back(&self, own_network: bool) -> Option<bool> {
        let init = self.pid.to_string();
        let mut all = self.own.len() == READ_BACK.len();
        for (name, own) in READ_BACK.iter().zip(&self.own) {
            let differs = (*own)? != namespace_of(&init, name)?;
            all &= differs == (own_network || *name != "net");
        }
        Some(all)
    }
}

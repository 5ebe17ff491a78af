//! Opening the mount sources: each path once, with the caller's rights, compared with what the plan saw, and
//! cloned into a detached tree of its own. Runs in the owner when that is privileged, in init (inside the outer
//! user and mount namespace, file-override capabilities lowered) when it is not: a descriptor cannot be cloned
//! across mount namespaces. open_tree(2).

use crate::plan::{Kind, SourceRef};
use crate::sandbox::stage::wire::{StageFault, Step};
use crate::sandbox::{Mutant, Mutants};
use crate::sys::mount::{Attrs, NODEV, NOEXEC, NOSUID, RDONLY, set_attrs};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::mount::OpenTreeFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The type of an object from its mode.
pub fn kind_of(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Dir,
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Symlink,
        FileType::CharacterDevice => Kind::Device,
        FileType::Socket => Kind::Socket,
        _ => Kind::Other,
    }
}

/// The devices of a minimal `/dev`.
pub const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// What `open` opened.
#[derive(Debug)]
pub struct Trees {
    /// One detached tree for each of the plan's sources.
    pub sources: Vec<OwnedFd>,
    /// One for each of [`DEVICES`].
    pub devices: Vec<OwnedFd>,
}

impl Trees {
    /// From all of them in one row, sources first.
    ///
    /// # Errors
    /// EPROTO when their number is not the expected one.
    pub fn of(mut all: Vec<OwnedFd>, sources: usize) -> Result<Self, StageFault> {
        if all.len() != sources + DEVICES.len() {
            return Err(StageFault { step: Step::OpenSources, errno: libc::EPROTO, index: u32::MAX });
        }
        let devices = all.split_off(sources);
        Ok(Self { sources: all, devices })
    }
}

/// Opens and clones every source and device. A tree that the plan does not attach writable is read-only from here
/// on, with all that is mounted below it: nothing later has to see to that.
///
/// # Errors
/// openat(2), open_tree(2), mount_setattr(2); ESTALE when a path no longer leads to the object that the plan
/// was made for.
pub fn open(sources: &[SourceRef], mutants: Mutants) -> Result<Trees, StageFault> {
    let mut out =
        Trees { sources: Vec::with_capacity(sources.len()), devices: Vec::with_capacity(DEVICES.len()) };
    for (index, source) in sources.iter().enumerate() {
        let fault = |e: io::Error| StageFault::new(Step::OpenSources, &e).at(index);
        let tree = clone_source(source, mutants).map_err(fault)?;
        out.sources.push(tree);
    }
    for name in DEVICES {
        let fault = |e: rustix::io::Errno| StageFault::new(Step::OpenSources, &e.into());
        let path = format!("/dev/{name}");
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = rustix::mount::open_tree(rustix::fs::CWD, path, flags).map_err(fault)?;
        let stat = rustix::fs::fstat(&tree).map_err(fault)?;
        if kind_of(&stat) != Kind::Device {
            return Err(fault(rustix::io::Errno::STALE));
        }
        let attrs = Attrs { set: NOSUID | NOEXEC, propagation: propagation(mutants), ..Default::default() };
        set_attrs(tree.as_fd(), c"", false, attrs).map_err(|e| StageFault::new(Step::OpenSources, &e))?;
        out.devices.push(tree);
    }
    Ok(out)
}

/// What keeps later mounts of the host's out of a tree, and the executor's out of the host's.
fn propagation(mutants: Mutants) -> u64 {
    if mutants.off(Mutant::PrivateTrees) { 0 } else { libc::MS_PRIVATE }
}

fn clone_source(source: &SourceRef, mutants: Mutants) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::open(source.path.as_path(), flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&found)?;
    let fact = &source.fact;
    if stat.st_dev != fact.dev || stat.st_ino != fact.ino || kind_of(&stat) != fact.kind {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if source.recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(&found, c"", flags)?;
    let writable = source.writable || mutants.off(Mutant::ReadOnly);
    let nodev = if source.device { NOEXEC } else { NODEV };
    let set = NOSUID | nodev | if writable { 0 } else { RDONLY };
    let attrs = Attrs { set, propagation: propagation(mutants), ..Default::default() };
    set_attrs(tree.as_fd(), c"", source.recursive, attrs)?;
    Ok(tree)
}

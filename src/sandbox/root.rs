//! The new root: a tmpfs, the plan's mount table applied to it in order, then `pivot_root`. Runs in init, with
//! the host's root still visible until [`Root::enter`]. Targets are created and resolved beneath the new root only,
//! without following links; nothing is ever created in a host tree.

use crate::plan::{Containment, FsOp, Kind};
use crate::sandbox::sources::{DEVICES, Trees, kind_of};
use crate::sandbox::stage::wire::{AtStep, StageFault, Step};
use crate::sandbox::{Mutant, Mutants};
use crate::sys::mount::{Attrs, NODEV, NOEXEC, NOSUID, RDONLY, set_attrs};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Entries of procfs that show or change what an executor has no business with. Only those are masked that
/// file permissions would show to an unprivileged user: the others are closed to everyone but the host's root,
/// who does not exist inside.
const PROC_MASKED: [&str; 9] = [
    "keys",
    "key-users",
    "kallsyms",
    "timer_list",
    "sched_debug",
    "latency_stats",
    "kcore",
    "sysrq-trigger",
    "kmsg",
];

/// The root under construction.
pub struct Root<'plan> {
    plan: &'plan Containment,
    trees: Trees,
    /// The root tmpfs, attached.
    fd: Rc<OwnedFd>,
    /// Directories that were made here, with nothing mounted on them: what is missing below one is made by name.
    made: HashMap<PathBuf, Rc<OwnedFd>>,
    empty_file: OwnedFd,
    empty_dir: OwnedFd,
    agent: (Uid, Gid),
    /// Where overlays are made from, when there are any.
    layers: Option<Rc<OwnedFd>>,
    overlays: u32,
    mutants: Mutants,
}

/// Its name while the root is built.
const LAYERS: &str = ".layers";

fn plain(e: Errno) -> io::Error {
    e.into()
}

fn new_fs(kind: &str, options: &[(&str, &str)], attrs: MountAttrFlags) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&fs, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&fs)?;
    Ok(rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attrs)?)
}

fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", target, c"", flags).map_err(plain)
}

/// The last component `name` of the target is not followed when it is a link. move_mount(2).
fn attach_at(tree: BorrowedFd<'_>, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    rustix::mount::move_mount(tree, c"", above, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(plain)
}

fn clone_tree(of: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(of, c"", flags).map_err(plain)
}

/// `path` without its leading slash, as the kernel wants it beneath a descriptor.
fn relative(path: &Path) -> &Path {
    let rest = path.strip_prefix("/").unwrap_or(path);
    if rest.as_os_str().is_empty() { Path::new(".") } else { rest }
}

/// Cuts propagation both ways in this mount namespace.
///
/// # Errors
/// mount_setattr(2).
pub fn make_private(mutants: Mutants) -> Result<(), StageFault> {
    if mutants.off(Mutant::Private) {
        return Ok(());
    }
    let attrs = Attrs { propagation: libc::MS_PRIVATE, ..Default::default() };
    set_attrs(CWD, c"/", true, attrs).at(Step::PrivateMounts)
}

impl<'plan> Root<'plan> {
    /// Makes the root tmpfs and attaches it.
    ///
    /// # Errors
    /// fsopen(2), fsmount(2), move_mount(2).
    pub fn new(plan: &'plan Containment, trees: Trees, mutants: Mutants) -> Result<Self, StageFault> {
        let make = || -> io::Result<Self> {
            let size = plan.limits.scratch.to_string();
            let inodes = plan.limits.scratch_inodes.to_string();
            let options = [("mode", "0755"), ("size", size.as_str()), ("nr_inodes", inodes.as_str())];
            let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
            let fd = new_fs("tmpfs", &options, attrs)?;
            // Any directory of the host view will do for the moment; all sources are open already.
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(&fd, c"", CWD, c"/usr", flags)
                .or_else(|_| rustix::mount::move_mount(&fd, c"", CWD, c"/tmp", flags))?;
            // No target has such a name: `policy::reserved`.
            let create = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
            drop(rustix::fs::openat(&fd, c".stockade-empty", create, Mode::from_raw_mode(0o444))?);
            rustix::fs::mkdirat(&fd, c".stockade-void", Mode::from_raw_mode(0o555))?;
            // Not yet cloned: a detached tree that is never attached costs a grace period when it is closed.
            let empty = |name: &str| -> io::Result<OwnedFd> {
                let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                Ok(rustix::fs::openat(&fd, name, flags, Mode::empty())?)
            };
            let (empty_file, empty_dir) = (empty(".stockade-empty")?, empty(".stockade-void")?);
            let agent = (Uid::from_raw(plan.ids.outer_uid), Gid::from_raw(plan.ids.outer_gid));
            let fd = Rc::new(fd);
            let made = HashMap::from([(PathBuf::from("/"), Rc::clone(&fd))]);
            Ok(Self {
                plan,
                trees,
                fd,
                made,
                empty_file,
                empty_dir,
                agent,
                layers: None,
                overlays: 0,
                mutants,
            })
        };
        make().at(Step::NewRoot)
    }

    /// Applies the whole table, in order.
    ///
    /// # Errors
    /// With the index of the operation: ENOENT for a mount point that would have to be created in a host tree,
    /// ELOOP for one behind a link, and whatever the mounts return.
    pub fn build(&mut self) -> Result<(), StageFault> {
        for (index, op) in self.plan.fs.iter().enumerate() {
            self.apply(index, op).map_err(|e| StageFault::new(Step::MountTable, &e).at(index))?;
        }
        self.close_layers().at(Step::MountTable)
    }

    fn apply(&mut self, index: usize, op: &FsOp) -> io::Result<()> {
        match op {
            FsOp::Dir { at } => self.dir(index, at.as_path(), 0o755).map(drop),
            FsOp::Symlink { at, to } => {
                let (parent, name) = self.parent(index, at.as_path())?;
                Ok(rustix::fs::symlinkat(to.as_os_str(), parent, name)?)
            }
            FsOp::File { at, content } => {
                let (parent, name) = self.parent(index, at.as_path())?;
                write_file(&parent, name, content.as_bytes())
            }
            // What is private may not be the host's: its directory would be given to the command.
            FsOp::Scratch { at, .. } if self.in_host_tree(index, at.as_path()) => {
                Err(io::Error::from_raw_os_error(libc::EROFS))
            }
            FsOp::Scratch { at, mode } => {
                let dir = self.dir(index, at.as_path(), *mode)?;
                self.give_to_agent(&dir, *mode)?;
                if self.in_scratch(index, at.as_path()) {
                    return Ok(());
                }
                self.cover(at.as_path());
                let tree = clone_tree(dir.as_fd(), false)?;
                attach(tree.as_fd(), dir.as_fd())
            }
            FsOp::Tmpfs { at, size, inodes } => {
                let target = self.target(index, at.as_path(), true)?;
                let (size, inodes) = (size.to_string(), inodes.to_string());
                let options = [("mode", "1777"), ("size", size.as_str()), ("nr_inodes", inodes.as_str())];
                let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
                target.attach(new_fs("tmpfs", &options, attrs)?.as_fd())
            }
            FsOp::Bind { from, at, .. } => {
                let is_dir = self.plan.sources.get(from.0 as usize).is_some_and(|s| s.fact.kind == Kind::Dir);
                let target = self.target(index, at.as_path(), is_dir)?;
                // Read-only, when it is, since it was opened.
                target.attach(source(&self.trees, from.0)?.as_fd())
            }
            FsOp::Overlay { lower: Some(lower), at, .. }
                if self.mutants.off(Mutant::CacheLayer) && self.plan.caches.iter().any(|c| c.at == *at) =>
            {
                let target = self.target(index, at.as_path(), true)?;
                target.attach(source(&self.trees, lower.0)?.as_fd())
            }
            FsOp::Overlay { lower, layer, at } => {
                self.overlay(index, lower.map(|l| l.0), layer.map(|l| l.0), at.as_path())
            }
            FsOp::Pin { .. } | FsOp::Protect { .. } if self.mutants.off(Mutant::Protect) => Ok(()),
            FsOp::Mask { .. } if self.mutants.off(Mutant::Hide) => Ok(()),
            // What it would hold is below it and no more there than it is: for what must be, that operation says so.
            FsOp::Pin { at } if self.leads_nowhere(at.as_path()) => Ok(()),
            FsOp::Pin { at } => {
                let target = self.existing(at.as_path())?;
                self.cover(at.as_path());
                attach(clone_tree(target.as_fd(), true)?.as_fd(), target.as_fd())
            }
            FsOp::Protect { at, kind } => {
                let target = self.existing(at.as_path())?;
                same_kind(&target, *kind)?;
                self.cover(at.as_path());
                let tree = clone_tree(target.as_fd(), true)?;
                set_attrs(tree.as_fd(), c"", true, Attrs { set: RDONLY, ..Default::default() })?;
                attach(tree.as_fd(), target.as_fd())
            }
            FsOp::Mask { at, kind } => {
                // A profile's mask of something that is not there hides nothing, and is done.
                if *kind == Kind::Other && self.leads_nowhere(at.as_path()) {
                    return Ok(());
                }
                let target = self.existing(at.as_path())?;
                self.cover(at.as_path());
                self.mask(&target)
            }
            FsOp::Proc { at } => self.proc(index, at.as_path()),
            FsOp::Dev { at } => self.dev(index, at.as_path()),
        }
    }

    fn mask(&self, target: &OwnedFd) -> io::Result<()> {
        let empty = match kind_of(&rustix::fs::fstat(target)?) {
            Kind::Dir => &self.empty_dir,
            Kind::Symlink => return Err(io::Error::from_raw_os_error(libc::ELOOP)),
            _ => &self.empty_file,
        };
        let tree = clone_tree(empty.as_fd(), false)?;
        let set = RDONLY | NOSUID | NODEV | NOEXEC;
        set_attrs(tree.as_fd(), c"", false, Attrs { set, ..Default::default() })?;
        attach(tree.as_fd(), target.as_fd())
    }

    fn give_to_agent(&self, dir: &OwnedFd, mode: u32) -> io::Result<()> {
        let dir = readable(dir)?;
        rustix::fs::fchown(&dir, Some(self.agent.0), Some(self.agent.1))?;
        // After the owner changes: a chown clears set-id bits, and umask may have taken some of the mode.
        Ok(rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))?)
    }

    fn proc(&mut self, index: usize, at: &Path) -> io::Result<()> {
        let target = self.target(index, at, true)?;
        if self.plan.gaps.contains_key(&crate::base::Protection::Proc) {
            // The rung below a fresh procfs is none: the host's view of processes is never an option.
            return Ok(());
        }
        if self.mutants.off(Mutant::PidNamespace) {
            // The kernel gives no procfs of a PID namespace that this user namespace does not own.
            return Ok(());
        }
        let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc = new_fs("proc", &[("hidepid", "ptraceable")], attrs)
            .or_else(|_| new_fs("proc", &[("hidepid", "2")], attrs))?;
        target.attach(proc.as_fd())?;
        if self.mutants.off(Mutant::ProcMask) {
            return Ok(());
        }
        for name in PROC_MASKED {
            let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            match rustix::fs::openat(&proc, name, flags, Mode::empty()) {
                Ok(entry) => {
                    if rustix::fs::fstat(&entry)?.st_mode & 0o077 != 0 {
                        self.mask(&entry)?;
                    }
                }
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let sys = rustix::fs::openat(&proc, c"sys", flags, Mode::empty())?;
        let tree = clone_tree(sys.as_fd(), false)?;
        let set = RDONLY | NOSUID | NODEV | NOEXEC;
        set_attrs(tree.as_fd(), c"", false, Attrs { set, ..Default::default() })?;
        attach(tree.as_fd(), sys.as_fd())
    }

    fn dev(&mut self, index: usize, at: &Path) -> io::Result<()> {
        let dev = self.dir(index, at, 0o755)?;
        for (name, tree) in DEVICES.iter().zip(&self.trees.devices) {
            empty_file(&dev, OsStr::new(name))?;
            attach_at(tree.as_fd(), dev.as_fd(), OsStr::new(name))?;
        }
        rustix::fs::mkdirat(&dev, c"pts", Mode::from_raw_mode(0o755))?;
        let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let devpts = new_fs("devpts", &[("ptmxmode", "0666"), ("mode", "0620")], attrs)?;
        attach_at(devpts.as_fd(), dev.as_fd(), OsStr::new("pts"))?;
        for (name, to) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            rustix::fs::symlinkat(to, &dev, name)?;
        }
        Ok(())
    }

    /// A copy-on-write view of source `lower`, or of nothing. What is written goes to the directory that source `kept`
    /// is, or to one of the scratch tmpfs that dies with it. overlayfs.rst.
    fn overlay(&mut self, index: usize, lower: Option<u32>, kept: Option<u32>, at: &Path) -> io::Result<()> {
        let target = self.target(index, at, true)?;
        let number = self.overlays;
        self.overlays += 1;
        let layers = self.layers()?;
        let name = |part: &str| format!("{part}{number}");
        let make = |part: &str, mode| rustix::fs::mkdirat(&layers, name(part), Mode::from_raw_mode(mode));
        make("lower", 0o700)?;
        let mut mode = 0o755;
        if let Some(lower) = lower {
            let tree = source(&self.trees, lower)?;
            mode = rustix::fs::fstat(tree)?.st_mode & 0o777;
            attach_at(tree.as_fd(), layers.as_fd(), name("lower").as_ref())?;
        }
        let (upper, work) = match kept {
            Some(kept) => {
                make("kept", 0o700)?;
                attach_at(source(&self.trees, kept)?.as_fd(), layers.as_fd(), name("kept").as_ref())?;
                (name("kept") + "/upper", name("kept") + "/work")
            }
            None => {
                make("upper", 0o700)?;
                make("work", 0o700)?;
                (name("upper"), name("work"))
            }
        };
        let (uid, gid) = (Some(self.agent.0), Some(self.agent.1));
        rustix::fs::chownat(&layers, upper.as_str(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chmodat(&layers, upper.as_str(), Mode::from_raw_mode(mode), AtFlags::empty())?;
        let layer = |path: &str| format!("/proc/self/fd/{}/{path}", layers.as_raw_fd());
        let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(&fs, "lowerdir", layer(&name("lower")))?;
        rustix::mount::fsconfig_set_string(&fs, "upperdir", layer(&upper))?;
        rustix::mount::fsconfig_set_string(&fs, "workdir", layer(&work))?;
        rustix::mount::fsconfig_set_flag(&fs, "userxattr")?;
        rustix::mount::fsconfig_create(&fs)?;
        let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        target.attach(rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attrs)?.as_fd())
    }

    /// The directory that overlays are made from, a mount of its own, so that all that is attached below it goes with it.
    fn layers(&mut self) -> io::Result<Rc<OwnedFd>> {
        if let Some(layers) = &self.layers {
            return Ok(Rc::clone(layers));
        }
        rustix::fs::mkdirat(&self.fd, LAYERS, Mode::from_raw_mode(0o700))?;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let open = || rustix::fs::openat(&self.fd, LAYERS, flags, Mode::empty());
        attach_at(clone_tree(open()?.as_fd(), false)?.as_fd(), self.fd.as_fd(), LAYERS.as_ref())?;
        let layers = Rc::new(open()?);
        self.layers = Some(Rc::clone(&layers));
        Ok(layers)
    }

    /// The overlays hold their layers themselves: their places go away, and nobody looks into what is left of them.
    fn close_layers(&mut self) -> io::Result<()> {
        let Some(layers) = self.layers.take() else { return Ok(()) };
        rustix::fs::chmodat(&self.fd, LAYERS, Mode::empty(), AtFlags::empty())?;
        let path = format!("/proc/self/fd/{}", layers.as_raw_fd());
        Ok(rustix::mount::unmount(path, UnmountFlags::DETACH)?)
    }

    /// Opens an existing object beneath the new root, links refused.
    fn existing(&self, at: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.open(at, flags).map_err(plain)
    }

    /// Whether nothing is at `at`, links followed as the command will: absent, below what is no directory, or a link
    /// that dangles.
    fn leads_nowhere(&self, at: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let found = rustix::fs::openat2(&self.fd, relative(at), flags, Mode::empty(), resolve);
        matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    }

    fn open(&self, at: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.fd, relative(at), flags, Mode::empty(), resolve)
    }

    /// Whether the plan attaches a host tree at or above `at` (before operation `index`), so that creating
    /// something there would create it on the host.
    fn in_host_tree(&self, index: usize, at: &Path) -> bool {
        let mut nearest: Option<(&Path, bool)> = None;
        for op in &self.plan.fs[..index] {
            let place = op.at().as_path();
            if at != place && at.starts_with(place) {
                let host = matches!(op, FsOp::Bind { .. } | FsOp::Pin { .. } | FsOp::Protect { .. });
                let own = matches!(
                    op,
                    FsOp::Scratch { .. } | FsOp::Tmpfs { .. } | FsOp::Overlay { .. } | FsOp::Mask { .. }
                );
                if (host || own) && nearest.is_none_or(|(n, _)| place.starts_with(n)) {
                    nearest = Some((place, host));
                }
            }
        }
        nearest.is_some_and(|(_, host)| host)
    }

    /// Whether `at` lies in a private directory that an earlier operation made.
    fn in_scratch(&self, index: usize, at: &Path) -> bool {
        self.plan.fs[..index].iter().any(|op| {
            matches!(op, FsOp::Scratch { at: above, .. } if above.as_path() != at && at.starts_with(above.as_path()))
        })
    }

    /// Something is being mounted at `at`: what was made there is no longer what the path leads to.
    fn cover(&mut self, at: &Path) {
        self.made.retain(|path, _| !path.starts_with(at));
    }

    /// Makes the directory at `at` and its parents, when every one of them is (or can be made) a directory of the
    /// root's own tmpfs with nothing mounted on it; `None` when something else is in the way.
    fn make(&mut self, at: &Path, mode: u32) -> io::Result<Option<Rc<OwnedFd>>> {
        if let Some(fd) = self.made.get(at) {
            return Ok(Some(Rc::clone(fd)));
        }
        let (above, name) = split(at)?;
        let Some(above) = self.make(above, 0o755)? else { return Ok(None) };
        match rustix::fs::mkdirat(&*above, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        let fd = Rc::new(rustix::fs::openat(&*above, name, flags, Mode::empty())?);
        self.made.insert(at.to_path_buf(), Rc::clone(&fd));
        Ok(Some(fd))
    }

    /// Opens the directory at `at`, creating it and its parents in our own file systems when missing.
    fn dir(&mut self, index: usize, at: &Path, mode: u32) -> io::Result<Rc<OwnedFd>> {
        if let Some(fd) = self.make(at, mode)? {
            return Ok(fd);
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECTORY;
        match self.open(at, flags) {
            Err(Errno::NOENT) if !self.in_host_tree(index, at) => {}
            other => return other.map(Rc::new).map_err(plain),
        }
        let (above, name) = split(at)?;
        let above = self.dir(index, above, 0o755)?;
        match rustix::fs::mkdirat(&*above, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let dir = self.open(at, flags).map_err(plain)?;
        // What it lies in is the command's to write to, and so is this.
        self.give_to_agent(&dir, mode)?;
        Ok(Rc::new(dir))
    }

    /// The directory that is to hold `at`, and the last component.
    fn parent<'p>(&mut self, index: usize, at: &'p Path) -> io::Result<(Rc<OwnedFd>, &'p OsStr)> {
        let (above, name) = split(at)?;
        if !self.made.contains_key(above) && self.in_host_tree(index, at) {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        Ok((self.dir(index, above, 0o755)?, name))
    }

    /// The mount point at `at`, a directory or a file: what is there, else an empty one in our own file systems.
    fn target<'p>(&mut self, index: usize, at: &'p Path, is_dir: bool) -> io::Result<Target<'p>> {
        let (above, name) = split(at)?;
        if !self.made.contains_key(at)
            && let Some(above) = self.make(above, 0o755)?
        {
            let made = if is_dir {
                rustix::fs::mkdirat(&*above, name, Mode::from_raw_mode(0o755)).map_err(plain)
            } else {
                empty_file(&above, name)
            };
            match made {
                Ok(()) => return Ok(Target::New(above, name)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        if is_dir {
            let dir = self.dir(index, at, 0o755)?;
            self.cover(at);
            return Ok(Target::There(dir));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match self.open(at, flags) {
            Err(Errno::NOENT) if !self.in_host_tree(index, at) => {}
            other => return other.map(|fd| Target::There(Rc::new(fd))).map_err(plain),
        }
        let (above, name) = self.parent(index, at)?;
        empty_file(&above, name)?;
        Ok(Target::New(above, name))
    }

    /// Makes the new root this process's root, detaches the old one, and makes the root tmpfs itself
    /// read-only (scratch directories are mounts of their own). pivot_root(2), "pivot_root(".", ".")".
    ///
    /// # Errors
    /// fchdir(2), pivot_root(2), umount2(2), mount_setattr(2).
    pub fn enter(self) -> Result<(), StageFault> {
        // Nothing can be mounted whose own name is gone, so these names go last.
        rustix::fs::unlinkat(&self.fd, c".stockade-empty", AtFlags::empty()).at(Step::EnterRoot)?;
        rustix::fs::unlinkat(&self.fd, c".stockade-void", AtFlags::REMOVEDIR).at(Step::EnterRoot)?;
        rustix::process::fchdir(&self.fd).at(Step::EnterRoot)?;
        rustix::process::pivot_root(c".", c".").at(Step::EnterRoot)?;
        rustix::mount::unmount(c".", UnmountFlags::DETACH).at(Step::EnterRoot)?;
        rustix::process::chdir(c"/").at(Step::EnterRoot)?;
        if self.mutants.off(Mutant::ReadOnly) {
            return Ok(());
        }
        let attrs = Attrs { set: RDONLY, ..Default::default() };
        set_attrs(self.fd.as_fd(), c"", false, attrs).at(Step::ReadOnlyRoot)
    }
}

/// Where something is mounted.
enum Target<'p> {
    /// By its name in a directory of our own file systems, where it has just been made.
    New(Rc<OwnedFd>, &'p OsStr),
    /// By a descriptor: it was there before.
    There(Rc<OwnedFd>),
}

impl Target<'_> {
    fn attach(&self, tree: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::New(above, name) => attach_at(tree, above.as_fd(), name),
            Self::There(target) => attach(tree, target.as_fd()),
        }
    }
}

/// The path above, and the last component.
fn split(at: &Path) -> io::Result<(&Path, &OsStr)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    Ok((at.parent().ok_or_else(invalid)?, at.file_name().ok_or_else(invalid)?))
}

/// The detached tree of a source; each is attached once.
fn source(trees: &Trees, index: u32) -> io::Result<&OwnedFd> {
    trees.sources.get(index as usize).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
}

fn same_kind(target: &OwnedFd, kind: Kind) -> io::Result<()> {
    let is = kind_of(&rustix::fs::fstat(target)?);
    if is == kind { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
}

/// An O_PATH directory descriptor, opened again so that its inode may be changed.
fn readable(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, c".", flags, Mode::empty())?)
}

fn empty_file(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o444);
    rustix::fs::mknodat(parent, name, rustix::fs::FileType::RegularFile, mode, 0).map_err(plain)
}

fn write_file(parent: &OwnedFd, name: &OsStr, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o444))?;
    let mut rest = content;
    while !rest.is_empty() {
        let n = rustix::io::write(&file, rest)?;
        rest = &rest[n..];
    }
    Ok(())
}

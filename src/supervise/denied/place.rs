//! What is at a path of the executor, by the plan alone. Pure.

use crate::base::{HostPath, RelPath, SandboxPath};
use crate::plan::{Containment, FsOp, Kind, SourceRef};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// Links of the root that are followed.
const LINKS_MAX: usize = 8;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place<'plan> {
    /// An empty object instead of what is hidden, or something below one.
    Hidden {
        /// What is hidden.
        at: &'plan SandboxPath,
    },
    /// Held read-only in a writable tree, or something below.
    Protected {
        /// What is held.
        at: &'plan SandboxPath,
    },
    /// A host tree.
    Tree {
        /// Where it is attached.
        at: &'plan SandboxPath,
        /// Which.
        source: &'plan SourceRef,
        /// How it may be used.
        use_: Use,
        /// The path on the host.
        host: HostPath,
    },
    /// A private, writable directory in memory.
    Private {
        /// Where it begins.
        at: &'plan SandboxPath,
        /// Whether it is the scratch, which is bounded by `limits.scratch`, or a tmpfs of its own.
        scratch: bool,
    },
    /// A file or link of the root's own.
    Own,
    /// procfs.
    Proc,
    /// `/dev`.
    Dev,
    /// Nothing: a directory of the root on the way to something, or not even that.
    Nowhere,
}

/// How a host tree may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Read.
    Read,
    /// Read and written.
    Write,
    /// Written into a copy that is thrown away.
    Copy,
}

/// A path that the command named, as it stands for from `from`: `.` and `..` taken lexically. `None` for what can be no
/// path inside.
pub fn absolute(named: &[u8], from: &SandboxPath) -> Option<SandboxPath> {
    let named = Path::new(OsStr::from_bytes(named));
    let mut out = if named.is_absolute() { PathBuf::from("/") } else { from.as_path().to_path_buf() };
    for part in named.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    SandboxPath::new(&out).ok()
}

/// What is at `path`, the root's own links followed.
pub fn at<'plan>(c: &'plan Containment, path: &SandboxPath) -> (Place<'plan>, SandboxPath) {
    let mut path = path.clone();
    for _ in 0..LINKS_MAX {
        match linked(c, &path) {
            Some(next) => path = next,
            None => break,
        }
    }
    (place(c, &path), path)
}

/// Where `path` leads by a link of the root's own above it (`/bin`, `/var/run`).
fn linked(c: &Containment, path: &SandboxPath) -> Option<SandboxPath> {
    c.fs.iter().find_map(|op| match op {
        FsOp::Symlink { at, to } if path.is_within(at) => {
            let target = absolute(to.as_bytes(), &at.parent()?)?;
            Some(path.below(at).map_or(target.clone(), |rest| target.join(&rest)))
        }
        _ => None,
    })
}

fn place<'plan>(c: &'plan Containment, path: &SandboxPath) -> Place<'plan> {
    // Operations come with the depth of their targets, so the last that covers a path is what is there.
    let above = |op: &&FsOp| !matches!(op, FsOp::Pin { .. } | FsOp::Dir { .. }) && path.is_within(op.at());
    let Some(op) = c.fs.iter().rev().find(above) else { return Place::Nowhere };
    let tree = |at: &'plan SandboxPath, index: usize, use_| {
        let Some(source) = c.sources.get(index) else { return Place::Nowhere };
        let host = path.below(at).map_or(source.path.clone(), |rest| source.path.join(&rest));
        Place::Tree { at, source, use_, host }
    };
    match op {
        FsOp::Mask { at, .. } => Place::Hidden { at },
        FsOp::Protect { at, .. } => Place::Protected { at },
        FsOp::Bind { from, at, writable } => {
            tree(at, from.0 as usize, if *writable { Use::Write } else { Use::Read })
        }
        FsOp::Overlay { lower: Some(lower), at, .. } => tree(at, lower.0 as usize, Use::Copy),
        FsOp::Overlay { lower: None, at, .. } => Place::Private { at, scratch: false },
        FsOp::Scratch { at, .. } => Place::Private { at, scratch: true },
        FsOp::Tmpfs { at, .. } => Place::Private { at, scratch: false },
        FsOp::File { .. } | FsOp::Symlink { .. } => Place::Own,
        FsOp::Proc { .. } => Place::Proc,
        FsOp::Dev { .. } => Place::Dev,
        FsOp::Pin { .. } | FsOp::Dir { .. } => Place::Nowhere,
    }
}

/// Whether something is mounted exactly at `path`: it can be neither renamed nor removed.
pub fn is_mount_point(c: &Containment, path: &SandboxPath) -> bool {
    c.fs.iter().any(|op| {
        let mounted = matches!(
            op,
            FsOp::Bind { .. }
                | FsOp::Overlay { .. }
                | FsOp::Pin { .. }
                | FsOp::Protect { .. }
                | FsOp::Mask { .. }
                | FsOp::Scratch { .. }
                | FsOp::Tmpfs { .. }
        );
        mounted && op.at() == path
    })
}

/// The mount that `path` lies in, by where it begins.
pub fn mount_of<'plan>(c: &'plan Containment, path: &SandboxPath) -> Option<&'plan SandboxPath> {
    let mounted = |op: &&FsOp| {
        !matches!(op, FsOp::Dir { .. } | FsOp::File { .. } | FsOp::Symlink { .. }) && path.is_within(op.at())
    };
    c.fs.iter().rev().find(mounted).map(FsOp::at)
}

/// A hidden or protected place that `named`, which may have been said from another directory than the command's first
/// one, ends in: of `hooks/pre-commit`, `.git/hooks`.
pub fn by_suffix<'plan>(c: &'plan Containment, named: &[u8]) -> Option<&'plan SandboxPath> {
    let named = RelPath::new(Path::new(OsStr::from_bytes(named))).ok()?;
    c.fs.iter().find_map(|op| match op {
        FsOp::Mask { at, .. } | FsOp::Protect { at, .. } => {
            let fits = named.as_path().ancestors().filter(|a| !a.as_os_str().is_empty());
            // A single common name would fit by accident.
            let mut fits =
                fits.filter(|a| a.as_os_str().as_bytes().starts_with(b".") || a.components().count() > 1);
            fits.any(|a| at.as_path().ends_with(a)).then_some(at)
        }
        _ => None,
    })
}

/// The kind of object that is hidden at `at`.
pub fn hidden_kind(c: &Containment, at: &SandboxPath) -> Option<Kind> {
    c.fs.iter().find_map(|op| match op {
        FsOp::Mask { at: here, kind } if here == at => Some(*kind),
        _ => None,
    })
}

//! `stockade policy init`: a project's file to begin with. The project is not trusted: everything happens beneath its
//! directory's descriptor, and no link in it is followed.

use super::args::Init;
use super::meant::{self, Caller};
use super::profiles::{self, Files};
use super::render::safe;
use super::{deliver, fault};
use crate::base::{HostPath, RelPath};
use crate::policy::{PROJECT_DIR, PROJECT_FILE, PROJECT_LEAF, project_draft};
use crate::supervise::outcome::Fault;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::fs::{fchmod, mkdirat, openat, openat2, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

/// Readable for everybody, whatever the umask: the file holds nothing secret, and others' runs read it too.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::ROTH);

/// Writes the file; what to say about it.
///
/// # Errors
/// When the profile cannot be loaded, or the file is there or cannot be written.
pub fn run(args: &Init) -> Result<Vec<u8>, Fault> {
    let files = Files::of(&Caller::read());
    let base = profiles::load(&files, files.choose(&args.profile)?, None, &[], None)?;
    let project = meant::workspace(args.dir.as_deref()).map_err(|e| fault::place(&e))?;
    let written = write(&project, project_draft(&base).as_bytes(), args.force)?;
    let text = format!(
        "wrote {}: every key as a comment, with the value that it has under `{}`\n\
         take a `#` away and lower the value; then `stockade policy lint`\n",
        safe(&written.to_string()),
        safe(&base.name)
    );
    Ok(text.into_bytes())
}

fn write(project: &HostPath, text: &[u8], force: bool) -> Result<HostPath, Fault> {
    let path = RelPath::new(PROJECT_FILE).map_or_else(|_| project.clone(), |rel| project.join(&rel));
    let fail = |e: io::Error, hint: &str| fault::draft(path.to_string(), e.to_string(), hint);
    let os = |e: Errno| fail(e.into(), "name a directory that you may write, without links in it");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, project.as_path(), flags, Mode::empty()).map_err(os)?;
    let made = match mkdirat(&dir, PROJECT_DIR, Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(os(e)),
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let inner = openat2(&dir, PROJECT_DIR, flags | OFlags::NOFOLLOW, Mode::empty(), resolve).map_err(os)?;
    put(&inner, OsStr::new(PROJECT_LEAF), text, force).map_err(|e| {
        if made {
            let _ = unlinkat(&dir, PROJECT_DIR, AtFlags::REMOVEDIR);
        }
        match e.kind() {
            io::ErrorKind::AlreadyExists if !force => {
                fail(e, "`--force` replaces it; what it says now is lost")
            }
            io::ErrorKind::AlreadyExists => {
                fail(e, "only a regular file is replaced: remove what has its name")
            }
            _ => fail(e, "is the directory writable for you, and the disk not full?"),
        }
    })?;
    Ok(path)
}

fn put(dir: &OwnedFd, name: &OsStr, text: &[u8], force: bool) -> io::Result<()> {
    let file = if force {
        match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
                return Err(Errno::EXIST.into());
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        deliver::replace(dir, name, text, &format!(".stockade-{}", std::process::id()), MODE)?
    } else {
        deliver::create(dir, name, text, MODE)?
    };
    Ok(fchmod(file, MODE)?)
}

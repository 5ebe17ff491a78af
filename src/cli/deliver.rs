//! Where results go besides standard output. Both places are looked at before anything runs, so that a command whose
//! result nobody could get does not run at all.
//!
//! `--result-file` must not lie where the command can write: the result is what tells about the command, and what the
//! command can rename, fill or replace cannot. It appears whole, by rename, or not at all, and replaces a regular file
//! only: neither a link (which is not followed) nor a device.

use super::args::Exec;
use super::{fault, render};
use crate::base::text::visible;
use crate::plan::Plan;
use crate::supervise::outcome::Fault;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::fs::{accessat, fcntl_getfl, openat, readlinkat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The places of one invocation.
#[derive(Debug, Default)]
pub struct Delivery {
    descriptor: Option<(i32, OwnedFd)>,
    file: Option<ResultFile>,
    /// `--json`, and standard output can take it.
    prints: bool,
}

#[derive(Debug)]
struct ResultFile {
    shown: String,
    name: OsString,
    dir: OwnedFd,
    dir_real: PathBuf,
}

impl Delivery {
    /// Takes the places. To be called before anything else is opened: until then a number that the caller did not
    /// open is not open.
    ///
    /// Beside the places that can take a result, the first that cannot: the others get to know.
    pub fn open(exec: &Exec) -> (Self, Result<(), Fault>) {
        let (descriptor, first) = split(exec.results.result_fd.map(descriptor));
        let (file, second) = split(exec.results.result_file.as_deref().map(ResultFile::open));
        let (prints, third) = split(exec.results.json.then(standard_output));
        (Self { descriptor, file, prints: prints.is_some() }, first.and(second).and(third))
    }

    /// Whether the document goes to standard output.
    pub fn prints(&self) -> bool {
        self.prints
    }

    /// Whether there is any other place.
    pub fn wanted(&self) -> bool {
        self.descriptor.is_some() || self.file.is_some()
    }

    /// Whether the places hold against what `plan` lets the command write. One that does not is given up.
    ///
    /// # Errors
    /// When the command could write where the file will be.
    pub fn check(&mut self, plan: &Plan) -> Result<(), Fault> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let mut writable = plan.containment.sources.iter().filter(|s| s.writable);
        match writable.find(|s| file.dir_real.starts_with(s.fact.real.as_path())) {
            None => {
                self.file = Some(file);
                Ok(())
            }
            Some(source) => Err(fault::result(
                format!("--result-file {}", file.shown),
                format!("the command can write to {}, and could replace its own result there", source.path),
                "name a file elsewhere, or use --result-fd, as in `--result-fd 3 3>result.json`".to_owned(),
            )),
        }
    }

    /// Writes `document` to every place.
    ///
    /// # Errors
    /// The first that failed; the others have it.
    pub fn deliver(&self, document: &[u8], unique: &str) -> Result<(), Fault> {
        let to_descriptor = self.descriptor.as_ref().map_or(Ok(()), |(number, fd)| {
            let fail =
                |e: io::Error| fault::result(format!("descriptor {number}"), e.to_string(), String::new());
            render::write_all(fd, document).map_err(fail)
        });
        let to_file = self.file.as_ref().map_or(Ok(()), |f| f.write(document, unique));
        to_descriptor.and(to_file)
    }
}

fn split<T>(place: Option<Result<T, Fault>>) -> (Option<T>, Result<(), Fault>) {
    match place {
        None => (None, Ok(())),
        Some(Ok(place)) => (Some(place), Ok(())),
        Some(Err(fault)) => (None, Err(fault)),
    }
}

fn descriptor(number: i32) -> Result<(i32, OwnedFd), Fault> {
    let object = format!("--result-fd {number}");
    if (0..=2).contains(&number) {
        return Err(fault::result(
            object,
            "standard input, output and error are the command's".to_owned(),
            "open another one, as in `--result-fd 3 3>result.json`; --json prints to standard output"
                .to_owned(),
        ));
    }
    let hint = || "open it for writing, as in `--result-fd 3 3>result.json`".to_owned();
    let own = crate::sys::fds::duplicate(number)
        .map_err(|e| fault::result(object.clone(), format!("it is not open: {e}"), hint()))?;
    if !open_for_writing(&own).map_err(|e| fault::result(object.clone(), e.to_string(), hint()))? {
        return Err(fault::result(object, "it is not open for writing".to_owned(), hint()));
    }
    Ok((number, own))
}

fn open_for_writing(fd: impl AsFd) -> Result<bool, Errno> {
    let flags = fcntl_getfl(fd)?;
    let writes = flags & OFlags::RWMODE;
    Ok(!flags.contains(OFlags::PATH) && (writes == OFlags::WRONLY || writes == OFlags::RDWR))
}

/// Whether standard output can take the document. One that the caller closed is open for reading: see
/// `sys::fds`.
fn standard_output() -> Result<(), Fault> {
    if open_for_writing(io::stdout()).unwrap_or(false) {
        return Ok(());
    }
    Err(fault::result(
        "standard output".to_owned(),
        "it is closed, or not open for writing, and --json prints to it".to_owned(),
        "leave it open, or use --result-file".to_owned(),
    ))
}

impl ResultFile {
    fn open(path: &Path) -> Result<Self, Fault> {
        let shown = visible(path.as_os_str().as_bytes());
        let object = format!("--result-file {shown}");
        let fail = |message: String, hint: &str| fault::result(object.clone(), message, hint.to_owned());
        let elsewhere = "name a file in a directory that exists and that you may write";
        let name = path.file_name().ok_or_else(|| fail("it names no file".to_owned(), elsewhere))?.to_owned();
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let os = |e: Errno| {
            fail(format!("{}: {}", visible(parent.as_os_str().as_bytes()), io::Error::from(e)), elsewhere)
        };
        let dir = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(os)?;
        accessat(&dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(os)?;
        match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
                return Err(fail(
                    "something else than a regular file has this name".to_owned(),
                    "links are not followed and devices not replaced: name a regular file or a new one",
                ));
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(os(e)),
        }
        let link = readlinkat(CWD, format!("/proc/self/fd/{}", dir.as_raw_fd()), Vec::with_capacity(256))
            .map_err(os)?;
        let dir_real = PathBuf::from(OsStr::from_bytes(link.to_bytes()));
        Ok(Self { shown, name, dir, dir_real })
    }

    fn write(&self, document: &[u8], unique: &str) -> Result<(), Fault> {
        let fail = |e: io::Error| fault::result(self.shown.clone(), e.to_string(), String::new());
        let mode = Mode::from_raw_mode(0o666);
        replace(&self.dir, &self.name, document, &format!(".stockade-{unique}"), mode).map_err(fail)?;
        Ok(())
    }
}

/// Puts a file with `bytes` in the place of whatever `name` in `dir` is, whole or not at all; no link is followed.
///
/// # Errors
/// openat(2), write(2), renameat(2).
pub fn replace(
    dir: &OwnedFd,
    name: &OsStr,
    bytes: &[u8],
    temporary: &str,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let temporary = OsStr::new(temporary);
    let file = create(dir, temporary, bytes, mode)?;
    match renameat(dir, temporary, dir, name) {
        Ok(()) => Ok(file),
        Err(e) => {
            remove(dir, temporary);
            Err(e.into())
        }
    }
}

/// Makes the file `name` in `dir` with `bytes` in it, or none; what is there already stays, and is an error. The umask
/// applies to `mode`.
///
/// # Errors
/// openat(2), write(2).
pub fn create(dir: &OwnedFd, name: &OsStr, bytes: &[u8], mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, mode)?;
    match render::write_all(&file, bytes) {
        Ok(()) => Ok(file),
        Err(e) => {
            remove(dir, name);
            Err(e)
        }
    }
}

/// What cannot be removed either is small.
fn remove(dir: &OwnedFd, name: &OsStr) {
    let _ = unlinkat(dir, name, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn message<T: std::fmt::Debug>(result: Result<T, Fault>) -> String {
        result.unwrap_err().message
    }

    #[test]
    fn descriptors_are_open_for_writing_and_not_the_commands() {
        assert!(message(descriptor(1)).contains("are the command's"));
        assert!(message(descriptor(900)).starts_with("it is not open"));
        assert!(message(descriptor(-1)).starts_with("it is not open"));
        let null = |flags| openat(CWD, "/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(message(descriptor(null(OFlags::RDONLY).as_raw_fd())).contains("not open"));
        let reading = null(OFlags::RDONLY);
        assert_eq!(message(descriptor(reading.as_raw_fd())), "it is not open for writing");
        let path = null(OFlags::PATH);
        assert_eq!(message(descriptor(path.as_raw_fd())), "it is not open for writing");
        let both = null(OFlags::RDWR);
        assert_ne!(descriptor(both.as_raw_fd()).unwrap().1.as_raw_fd(), both.as_raw_fd());
    }

    #[test]
    fn files_appear_whole_and_replace_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let file = ResultFile::open(&at("r.json")).unwrap();
        file.write(b"one", "x").unwrap();
        file.write(b"two", "x").unwrap();
        assert_eq!(std::fs::read(at("r.json")).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        symlink("r.json", at("link")).unwrap();
        for bad in ["link", ".", "..", "no/dir", "r.json/x"] {
            assert!(ResultFile::open(&at(bad)).is_err(), "{bad}");
        }
        assert!(ResultFile::open(Path::new("/dev/null")).is_err());
        // What takes the name meanwhile is not followed either.
        std::fs::remove_file(at("r.json")).unwrap();
        symlink("victim", at("r.json")).unwrap();
        file.write(b"three", "x").unwrap();
        assert!(!at("victim").exists() && at("r.json").symlink_metadata().unwrap().is_file());
        symlink("victim", at(".stockade-y")).unwrap();
        assert!(file.write(b"four", "y").is_err());
    }
}

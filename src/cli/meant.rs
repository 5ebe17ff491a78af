//! The command line as meant: typed flags into a [`Request`]. Reads the environment and asks the kernel where we
//! are; everything else is text.

use super::args::{Choice, Exec};
use crate::base::path::PathError;
use crate::base::text::visible;
use crate::base::{ByteSize, HostPath, OsBytes, SandboxPath};
use crate::plan::{ExtraBind, Request};
use crate::policy::Intent;
use crate::probe;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The most that is read of `/etc/passwd`.
const PASSWD_BYTES_MAX: u64 = 1 << 20;

/// A flag whose value has no meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagError {
    /// The flag and its value, safe to show.
    pub flag: String,
    /// What is wrong.
    pub fault: FlagFault,
}

/// What can be wrong with a flag's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagFault {
    /// The part before the `:`.
    #[error("source: {0}")]
    Source(PathError),
    /// The part after the `:`, or the only one.
    #[error("target: {0}")]
    Target(PathError),
    /// A relative source that leads nowhere.
    #[error("the source cannot be looked up: {}", io::Error::from_raw_os_error(*.0))]
    LookUp(i32),
    /// The size of a tmpfs.
    #[error("{0}")]
    Size(String),
    /// A variable's name.
    #[error("`{0}` is not a variable's name")]
    EnvName(String),
    /// `--env NAME` for what the caller does not have.
    #[error("the caller's environment has no `{0}`")]
    EnvUnset(String),
    /// `--grant` of what is no intent.
    #[error("there is nothing of this name to grant")]
    Intent,
    /// No such mutant.
    #[cfg(feature = "mutants")]
    #[error("there is no such mutant")]
    Mutant,
}

impl FlagFault {
    /// A stable name of the kind.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Source(_) => "source_invalid",
            Self::Target(_) => "target_invalid",
            Self::LookUp(_) => "source_unreachable",
            Self::Size(_) => "size_invalid",
            Self::EnvName(_) => "env_name",
            Self::EnvUnset(_) => "env_unset",
            Self::Intent => "grant_unknown",
            #[cfg(feature = "mutants")]
            Self::Mutant => "mutant_unknown",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Target(PathError::Relative) => {
                "a target is an absolute path inside; write `\\:` for a colon that belongs to a name"
                    .to_owned()
            }
            Self::Size(_) => "write DST:SIZE, such as /cache:512MiB; `\\:` is a colon in a name".to_owned(),
            Self::EnvName(_) => "letters, digits and `_`, no digit first; or NAME=VALUE".to_owned(),
            Self::Intent => {
                let names: Vec<&str> = Intent::ALL.iter().map(|i| i.name()).collect();
                format!("what can be granted is {}", names.join(", "))
            }
            Self::EnvUnset(name) => format!("give it a value: --env {name}=…"),
            Self::LookUp(_) => {
                "sources are looked up with your own rights, from the current directory".to_owned()
            }
            _ => return None,
        })
    }
}

/// Why there is no workspace.
#[derive(Debug, thiserror::Error)]
pub enum WhereError {
    /// The current directory was removed, or lies outside our root.
    #[error("it has no path any more")]
    Gone {
        /// What getcwd(2) says.
        #[source]
        source: io::Error,
    },
    /// `-w` leads nowhere.
    #[error("the directory cannot be reached")]
    Unreachable {
        /// As typed.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// A path that can't be one.
    #[error("the path cannot be used")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: PathError,
    },
}

/// The caller's surroundings, read once.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// The environment.
    pub env: Rc<BTreeMap<OsBytes, OsBytes>>,
    /// The home, links resolved.
    pub home: Option<HostPath>,
}

impl Caller {
    /// Reads them.
    pub fn read() -> Self {
        let mut env = BTreeMap::new();
        // One by one: collecting would bring in the sorting of thousands.
        for (name, value) in std::env::vars_os() {
            env.insert(OsBytes::from(name), OsBytes::from(value));
        }
        let named = env.get(&OsBytes::from("HOME")).map(|v| PathBuf::from(v.as_os_str()));
        let home = named.filter(|p| p.is_absolute()).or_else(home_of_record);
        let home = home.and_then(|p| HostPath::new(real(&p).unwrap_or(p)).ok());
        Self { env: Rc::new(env), home }
    }

    /// A variable that is set and not empty.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.env.get(&OsBytes::from(name)).map(OsBytes::as_os_str).filter(|v| !v.is_empty())
    }
}

/// The home in `/etc/passwd`. Read as text: the C library's own way loads modules, which a static program cannot.
fn home_of_record() -> Option<PathBuf> {
    use std::io::Read as _;
    let uid = rustix::process::geteuid().as_raw().to_string();
    let mut bytes = Vec::new();
    std::fs::File::open("/etc/passwd").ok()?.take(PASSWD_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let line = bytes.split(|b| *b == b'\n').map(|l| l.split(|b| *b == b':').collect::<Vec<_>>());
    let home =
        line.into_iter().find(|f| f.get(2) == Some(&uid.as_bytes())).and_then(|f| f.get(5).copied())?;
    Some(PathBuf::from(OsStr::from_bytes(home))).filter(|p| p.is_absolute())
}

/// Where `path` leads, with the caller's rights and without opening what is there.
fn real(path: &Path) -> Result<PathBuf, Errno> {
    if let Some(real) = probe::plain(path) {
        return Ok(real.as_path().to_path_buf());
    }
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let real = rustix::fs::readlinkat(rustix::fs::CWD, link, Vec::with_capacity(256))?;
    Ok(PathBuf::from(OsString::from_vec(real.into_bytes())))
}

/// The workspace: what `-w` leads to, else the current directory.
///
/// # Errors
/// See [`WhereError`].
pub fn workspace(named: Option<&Path>) -> Result<HostPath, WhereError> {
    let path = match named {
        // Every link resolved: the same directory gives the same plan, by whatever name.
        Some(path) if let Some(real) = probe::plain(path) => return Ok(real),
        Some(path) => std::fs::canonicalize(path)
            .map_err(|source| WhereError::Unreachable { path: path.to_path_buf(), source })?,
        None => {
            let cwd = std::env::current_dir().map_err(|source| WhereError::Gone { source })?;
            if !cwd.is_absolute() {
                return Err(WhereError::Gone { source: io::ErrorKind::NotFound.into() });
            }
            cwd
        }
    };
    HostPath::new(&path).map_err(|source| WhereError::Path { path, source })
}

/// Splits at the last `:` that no `\` precedes. `\:` is a colon and `\\` a backslash; any other backslash is
/// itself.
pub fn split(text: &OsStr) -> (OsString, Option<OsString>) {
    let (mut parts, mut escaped) = (vec![Vec::new()], false);
    let push = |parts: &mut Vec<Vec<u8>>, b| {
        if let Some(last) = parts.last_mut() {
            last.push(b);
        }
    };
    for &b in text.as_bytes() {
        match (escaped, b) {
            (true, b':' | b'\\') => push(&mut parts, b),
            (true, _) => {
                push(&mut parts, b'\\');
                push(&mut parts, b);
            }
            (false, b'\\') => {
                escaped = true;
                continue;
            }
            (false, b':') => parts.push(Vec::new()),
            (false, _) => push(&mut parts, b),
        }
        escaped = false;
    }
    if escaped {
        push(&mut parts, b'\\');
    }
    let last = if parts.len() > 1 { parts.pop() } else { None };
    (OsString::from_vec(parts.join(&b':')), last.map(OsString::from_vec))
}

fn fail(flag: &str, value: &OsStr, fault: FlagFault) -> FlagError {
    FlagError { flag: format!("{flag} {}", visible(value.as_bytes())), fault }
}

/// `SRC[:DST]`.
fn bind(flag: &str, value: &OsStr, writable: bool) -> Result<ExtraBind, FlagError> {
    let (source, target) = split(value);
    let typed = Path::new(&source);
    let climbs = typed.components().any(|c| c == std::path::Component::ParentDir);
    let source = if source.is_empty() || (typed.is_absolute() && !climbs) {
        typed.to_path_buf()
    } else {
        // What a relative path or `..` means depends on links: the kernel says where it leads.
        real(typed).map_err(|e| fail(flag, value, FlagFault::LookUp(e.raw_os_error())))?
    };
    let source = HostPath::new(source).map_err(|e| fail(flag, value, FlagFault::Source(e)))?;
    let target = match target {
        Some(target) => SandboxPath::new(target).map_err(|e| fail(flag, value, FlagFault::Target(e)))?,
        None => source.as_sandbox(),
    };
    Ok(ExtraBind { source, target, writable })
}

/// `DST[:SIZE]`.
fn tmpfs(value: &OsStr) -> Result<(SandboxPath, Option<ByteSize>), FlagError> {
    let (target, size) = split(value);
    let fail = |fault| fail("--tmpfs", value, fault);
    let size = match size {
        Some(size) => {
            let text =
                size.to_str().ok_or_else(|| fail(FlagFault::Size("the size is no text".to_owned())))?;
            Some(text.parse::<ByteSize>().map_err(|e| fail(FlagFault::Size(e.to_string())))?)
        }
        None => None,
    };
    Ok((SandboxPath::new(target).map_err(|e| fail(FlagFault::Target(e)))?, size))
}

/// `NAME[=VALUE]`. Only the name is shown in errors: a value may be a secret.
fn variable(value: &OsStr, caller: &Caller) -> Result<(String, OsBytes), FlagError> {
    let bytes = value.as_bytes();
    let (name, given) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    };
    let shown = visible(name);
    let fail = |fault| FlagError { flag: format!("--env {shown}"), fault };
    let is_name = |name: &&str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let name = std::str::from_utf8(name)
        .ok()
        .filter(is_name)
        .ok_or_else(|| fail(FlagFault::EnvName(shown.clone())))?;
    let value = match given {
        Some(given) => OsBytes::from(given.to_vec()),
        None => caller
            .env
            .get(&OsBytes::from(name))
            .cloned()
            .ok_or_else(|| fail(FlagFault::EnvUnset(shown.clone())))?,
    };
    Ok((name.to_owned(), value))
}

fn inside(flag: &str, path: Option<&PathBuf>) -> Result<Option<SandboxPath>, FlagError> {
    path.map(|p| SandboxPath::new(p).map_err(|e| fail(flag, p.as_os_str(), FlagFault::Target(e)))).transpose()
}

/// `--root`: like a source.
fn root(path: Option<&PathBuf>) -> Result<Option<HostPath>, FlagError> {
    let Some(path) = path else { return Ok(None) };
    let at = real(path).map_err(|e| fail("--root", path.as_os_str(), FlagFault::LookUp(e.raw_os_error())))?;
    HostPath::new(at).map(Some).map_err(|e| fail("--root", path.as_os_str(), FlagFault::Source(e)))
}

/// What `exec` asks for.
///
/// # Errors
/// The first flag without a meaning.
pub fn request(exec: &Exec, caller: &Caller, workspace: HostPath) -> Result<Request, FlagError> {
    let mut binds = Vec::with_capacity(exec.added.ro.len() + exec.added.rw.len());
    for value in &exec.added.ro {
        binds.push(bind("--ro", value, false)?);
    }
    for value in &exec.added.rw {
        binds.push(bind("--rw", value, true)?);
    }
    let tmpfs = exec.added.tmpfs.iter().map(|v| tmpfs(v)).collect::<Result<_, _>>()?;
    let env = exec.added.env.iter().map(|v| variable(v, caller)).collect::<Result<_, _>>()?;
    let intent = |value: &OsString| {
        let found = value.to_str().and_then(|name| name.parse::<Intent>().ok());
        found.ok_or_else(|| fail("--grant", value, FlagFault::Intent))
    };
    let grants = exec.added.grant.iter().map(intent).collect::<Result<_, _>>()?;
    Ok(Request {
        argv: exec.words.argv.iter().map(|a| OsBytes::from(a.as_os_str())).collect(),
        at: inside("--at", exec.place.at.as_ref())?,
        cwd: inside("--cwd", exec.place.cwd.as_ref())?,
        binds,
        tmpfs,
        env,
        grants,
        root: root(exec.how.root.as_ref())?,
        tty: exec.how.tty,
        timeout: exec.how.timeout.is_some(),
        ..bare(&exec.choice, caller, workspace)
    })
}

/// A request for a plan that nobody runs.
pub fn bare(choice: &Choice, caller: &Caller, workspace: HostPath) -> Request {
    Request {
        argv: vec!["true".into()],
        workspace: Some(workspace),
        workspace_explicit: choice.workspace.is_some(),
        at: None,
        cwd: None,
        binds: Vec::new(),
        tmpfs: Vec::new(),
        env: BTreeMap::new(),
        grants: Vec::new(),
        caller_env: Rc::clone(&caller.env),
        root: None,
        tty: false,
        timeout: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> (String, Option<String>) {
        let (a, b) = split(OsStr::new(text));
        (a.into_string().unwrap(), b.map(|b| b.into_string().unwrap()))
    }

    #[test]
    fn the_last_colon_separates() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(parts("/a"), ("/a".into(), None));
        assert_eq!(parts("/a:/b"), ("/a".into(), some("/b")));
        assert_eq!(parts("/a:b:/c"), ("/a:b".into(), some("/c")));
        assert_eq!(parts(r"/a\:b"), ("/a:b".into(), None));
        assert_eq!(parts(r"/a\\:/b"), (r"/a\".into(), some("/b")));
        assert_eq!(parts(r"/a\b\:c:/d\:e"), (r"/a\b:c".into(), some("/d:e")));
        assert_eq!(parts(r"/a\"), (r"/a\".into(), None));
        assert_eq!(parts("/a:"), ("/a".into(), some("")));
        let (a, b) = split(OsStr::from_bytes(b"/\xff:/\xfe"));
        assert_eq!((a.as_bytes(), b.unwrap().as_bytes()), (&b"/\xff"[..], &b"/\xfe"[..]));
    }

    fn fault<T: std::fmt::Debug>(result: Result<T, FlagError>) -> FlagFault {
        result.unwrap_err().fault
    }

    #[test]
    fn binds() {
        let made = bind("--rw", OsStr::new("/usr//lib/:/x/./y"), true).unwrap();
        assert_eq!((made.source.to_string(), made.target.to_string()), ("/usr/lib".into(), "/x/y".into()));
        let made = bind("--ro", OsStr::new("/usr/../usr/lib"), false).unwrap();
        assert_eq!(made.target, made.source.as_sandbox());
        assert!(!made.source.to_string().contains(".."));
        let made = bind("--ro", OsStr::new("src:/s"), false).unwrap();
        assert_eq!(made.source.as_path(), std::env::current_dir().unwrap().join("src"));
        assert_eq!(
            fault(bind("--ro", OsStr::new("/usr:lib"), false)),
            FlagFault::Target(PathError::Relative)
        );
        assert_eq!(
            fault(bind("--ro", OsStr::new("/usr:/a/../b"), false)),
            FlagFault::Target(PathError::Parent)
        );
        assert_eq!(fault(bind("--ro", OsStr::new("/usr:"), false)), FlagFault::Target(PathError::Empty));
        assert_eq!(fault(bind("--ro", OsStr::new(":/x"), false)), FlagFault::Source(PathError::Empty));
        assert_eq!(fault(bind("--ro", OsStr::new("no-such-thing"), false)), FlagFault::LookUp(libc::ENOENT));
        let long = format!("/{}", "x".repeat(300));
        assert_eq!(fault(bind("--ro", OsStr::new(&long), false)), FlagFault::Source(PathError::TooLong));
    }

    #[test]
    fn tmpfs_and_variables() {
        let (at, size) = tmpfs(OsStr::new("/c:64MiB")).unwrap();
        assert_eq!((at.to_string(), size), ("/c".into(), Some(ByteSize(64 << 20))));
        assert_eq!(tmpfs(OsStr::new(r"/c\:64MiB")).unwrap().1, None);
        assert!(matches!(fault(tmpfs(OsStr::new("/c:lots"))), FlagFault::Size(_)));
        assert_eq!(fault(tmpfs(OsStr::new("c"))), FlagFault::Target(PathError::Relative));

        let caller = Caller { env: BTreeMap::from([("HAVE".into(), "it".into())]).into(), home: None };
        let var = |text: &'static [u8]| variable(OsStr::from_bytes(text), &caller);
        assert_eq!(var(b"HAVE").unwrap(), ("HAVE".into(), "it".into()));
        assert_eq!(var(b"A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(var(b"A=\xff\n").unwrap().1.as_bytes(), b"\xff\n");
        assert_eq!(var(b"A=").unwrap().1.as_bytes(), b"");
        assert!(matches!(fault(var(b"LACK")), FlagFault::EnvUnset(_)));
        for bad in [&b"=x"[..], b"", b"1A=x", b"A B=x", b"\xff=x", b"A-B"] {
            assert!(matches!(fault(var(bad)), FlagFault::EnvName(_)), "{bad:?}");
        }
        let error = variable(OsStr::new("1X=secret"), &caller).unwrap_err();
        assert!(!format!("{error:?}").contains("secret"));
    }

    #[test]
    fn workspaces_are_real_directories_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        std::fs::create_dir(at.join("real")).unwrap();
        std::os::unix::fs::symlink("real", at.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", at.join("loop")).unwrap();
        assert_eq!(workspace(Some(&at.join("link/../real/."))).unwrap().as_path(), at.join("real"));
        assert!(matches!(workspace(Some(&at.join("gone"))), Err(WhereError::Unreachable { .. })));
        assert!(matches!(workspace(Some(&at.join("loop"))), Err(WhereError::Unreachable { .. })));
        assert_eq!(workspace(None).unwrap().as_path(), std::env::current_dir().unwrap());
    }

    proptest! {
        #[test]
        fn escaping_and_splitting_are_inverse(a in "[a\\\\:/]{0,8}", b in proptest::option::of("[a\\\\:/]{0,8}")) {
            let escape = |s: &str| s.replace('\\', r"\\").replace(':', r"\:");
            let text = match &b {
                Some(b) => format!("{}:{}", escape(&a), escape(b)),
                None => escape(&a),
            };
            prop_assert_eq!(parts(&text), (a, b));
        }
    }
}

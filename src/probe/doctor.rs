//! What `doctor` says beside the facts: why Landlock is absent, and things about the host that no profile needs
//! but that explain a result. Values; `cli` renders them.

use super::proc;
use crate::sys::landlock;
use rustix::fs;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Lines of a file that lists ids or users.
const LINES_MAX: usize = 65_536;
/// Where setuid helpers lie.
const HELPER_DIRS: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"];

/// Something worth knowing; never a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// What it is about.
    pub name: &'static str,
    /// How it stands.
    pub says: String,
}

/// What the caller may like to know: subordinate ids, the helpers for them, room for the state directory.
pub fn notes(state_dir: Option<&Path>) -> Vec<Note> {
    let uid = rustix::process::getuid().as_raw();
    let read = |path: &str| proc::read(Path::new(path)).unwrap_or_default();
    let users = read("/etc/passwd");
    let mut out = Vec::new();
    for (name, file) in [("subordinate uids", "/etc/subuid"), ("subordinate gids", "/etc/subgid")] {
        let says = match ranges(&read(file), &users, uid).as_slice() {
            [] => format!("none in {file}; not needed"),
            all => {
                let shown: Vec<String> =
                    all.iter().map(|(from, count)| format!("{count} from {from}")).collect();
                shown.join(", ")
            }
        };
        out.push(Note { name, says });
    }
    let helpers: Vec<String> = ["newuidmap", "newgidmap"]
        .iter()
        .filter_map(|name| helper(name))
        .map(|path| path.display().to_string())
        .collect();
    let says = if helpers.is_empty() { "not installed; not needed".to_owned() } else { helpers.join(", ") };
    out.push(Note { name: "id map helpers", says });
    if let Some((dir, free)) = state_dir.and_then(room) {
        let says = format!("{} MiB free for state ({})", free >> 20, shown(&dir));
        out.push(Note { name: "disk", says });
    }
    out
}

/// Why Landlock is absent, and what would mend it.
pub fn landlock_absent() -> (String, String) {
    let errno = landlock::abi().err().and_then(|e| e.raw_os_error());
    landlock_words(errno, proc::word(Path::new("/sys/kernel/security/lsm")).as_deref())
}

fn landlock_words(errno: Option<i32>, active: Option<&str>) -> (String, String) {
    match errno {
        // Built, but not switched on at boot. landlock(7).
        Some(libc::EOPNOTSUPP) => {
            let list = active.filter(|l| !l.is_empty()).map_or_else(
                || "lsm=landlock,… (before the modules that are active now)".to_owned(),
                |l| format!("lsm=landlock,{l}"),
            );
            ("Landlock is not among the security modules that were switched on at boot".to_owned(), {
                format!("boot with `{list}` (kernel command line, or CONFIG_LSM)")
            })
        }
        Some(libc::ENOSYS) => (
            "the kernel has no Landlock".to_owned(),
            "Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK=y; in a container also a seccomp profile that lets \
             landlock_* through"
                .to_owned(),
        ),
        Some(libc::EPERM) => (
            "a system-call filter around this process (a container's) refuses Landlock".to_owned(),
            "let its seccomp profile allow landlock_create_ruleset, landlock_add_rule and landlock_restrict_self"
                .to_owned(),
        ),
        _ => (
            "Landlock is there, but a trial restriction had no effect".to_owned(),
            "look into the kernel log, and report it with the output of `stockade doctor --json`".to_owned(),
        ),
    }
}

/// The ranges that a subordinate id file gives to `uid`, by name or by number: start and count. subuid(5).
fn ranges(text: &[u8], users: &[u8], uid: u32) -> Vec<(u32, u32)> {
    let number = uid.to_string();
    let name = lines(users).find_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id == number.as_bytes()).then(|| name.to_vec())
    });
    lines(text)
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b':');
            let owner = fields.next()?;
            let mut id = || std::str::from_utf8(fields.next()?).ok()?.trim().parse::<u32>().ok();
            let (from, count) = (id()?, id()?);
            let ours = owner == number.as_bytes() || name.as_deref() == Some(owner);
            (ours && count > 0).then_some((from, count))
        })
        .collect()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').take(LINES_MAX)
}

fn helper(name: &str) -> Option<PathBuf> {
    HELPER_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// The nearest directory above `path` that exists, and the bytes that an ordinary user may still write there.
fn room(path: &Path) -> Option<(PathBuf, u64)> {
    path.ancestors().find_map(|dir| {
        let stat = fs::statvfs(dir).ok()?;
        Some((dir.to_path_buf(), stat.f_bavail.saturating_mul(stat.f_frsize)))
    })
}

fn shown(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    crate::base::text::visible(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids() {
        let users =
            b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/h:/bin/sh\nbob:x:1001:1001::/h:/bin/sh\nbroken\n";
        let text =
            b"ann:100000:65536\n1000:300000:10\nbob:200000:65536\nann:x:1\nann:5\n\nann:1:0\n\xff:1:1\n";
        assert_eq!(ranges(text, users, 1000), [(100_000, 65_536), (300_000, 10)]);
        assert_eq!(ranges(text, users, 1001), [(200_000, 65_536)]);
        assert_eq!(ranges(text, users, 0), []);
        assert_eq!(ranges(b"", b"", 7), []);
    }

    #[test]
    fn landlock_has_its_remedy() {
        let (why, remedy) = landlock_words(Some(libc::EOPNOTSUPP), Some("capability,apparmor"));
        assert!(why.contains("boot") && remedy.contains("`lsm=landlock,capability,apparmor`"), "{remedy}");
        assert!(landlock_words(Some(libc::EOPNOTSUPP), None).1.contains("lsm=landlock"));
        assert!(landlock_words(Some(libc::ENOSYS), None).1.contains("CONFIG_SECURITY_LANDLOCK"));
        assert!(landlock_words(Some(libc::EPERM), None).1.contains("seccomp profile"));
        assert!(landlock_words(None, None).0.contains("no effect"));
    }

    #[test]
    fn notes_need_nothing_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let all = notes(Some(&dir.path().join("not/yet/there")));
        let names: Vec<&str> = all.iter().map(|n| n.name).collect();
        assert_eq!(names, ["subordinate uids", "subordinate gids", "id map helpers", "disk"]);
        assert!(
            all[3].says.contains(&dir.path().display().to_string()),
            "the nearest directory: {}",
            all[3].says
        );
        assert_eq!(notes(None).len(), 3);
    }
}

//! Places that no executor sees, under every name that this process's mount table gives them: Stockade's state and the
//! caller's profiles (a command that writes those has the next one's sandbox), the host's procfs, the host's root as a whole. A path alone does not tell: a bind mount shows the same elsewhere.

use super::paths::look_up;
use super::proc::MountLine;
use crate::base::HostPath;
use crate::plan::{Kind, Never, PathFact};
use std::path::{Path, PathBuf};

/// `PROC_SUPER_MAGIC` of `linux/magic.h`.
const PROCFS: u64 = 0x9fa0;

const STATE: &str = "Stockade's state directory";
const PROFILES: &str = "a directory of Stockade's profiles";
const PROC: &str = "a procfs of the host's";
const ROOT: &str = "the root of the host";

/// Those places, `mounts` being this process's mount table, `state` the state directory, links resolved, and `config`
/// where profiles may lie.
pub(super) fn places(mounts: &[MountLine], state: Option<&HostPath>, config: &[HostPath]) -> Vec<Never> {
    let mut out: Vec<Never> = Vec::new();
    let mut add = |path: &HostPath, what, kind, inside| {
        if !out.iter().any(|n| n.path == *path || (n.inside && path.is_within(&n.path))) {
            out.push(Never { path: path.clone(), what, kind, inside });
        }
    };
    let there = |path: &Path| {
        let path = HostPath::new(path).ok()?;
        // What cannot be reached by this name is not seen by it either: another mount covers it, or a directory is shut.
        let fact = look_up(path.as_path()).ok().filter(|f| f.real == path)?;
        Some((path, fact))
    };
    let same = |a: &PathFact, b: &PathFact| (a.dev, a.ino) == (b.dev, b.ino);
    let profiles = config.iter().filter_map(|dir| look_up(dir.as_path()).ok());
    let profiles = profiles.filter(|fact| fact.kind == Kind::Dir).map(|fact| (fact.real, PROFILES));
    for (closed, what) in state.map(|dir| (dir.clone(), STATE)).into_iter().chain(profiles) {
        add(&closed, what, Kind::Dir, true);
        if let Ok(own) = look_up(closed.as_path()) {
            for (path, fact) in aliases(mounts, closed.as_path()).iter().filter_map(|p| there(p)) {
                if same(&fact, &own) {
                    add(&path, what, Kind::Dir, true);
                }
            }
            let parts = parts(mounts, closed.as_path());
            for (path, fact) in parts.iter().filter_map(|p| there(p)) {
                add(&path, what, fact.kind, true);
            }
        }
    }
    for line in mounts.iter().filter(|l| l.fs_type == b"proc") {
        if let Some((path, fact)) = there(&line.point).filter(|(_, f)| f.fs_magic == PROCFS) {
            add(&path, PROC, fact.kind, true);
        }
    }
    if let Some((root, own)) = there(Path::new("/")) {
        add(&root, ROOT, Kind::Dir, false);
        for (path, fact) in aliases(mounts, Path::new("/")).iter().filter_map(|p| there(p)) {
            if same(&fact, &own) {
                add(&path, ROOT, Kind::Dir, false);
            }
        }
    }
    out
}

/// The device of what lies at `path`, and the path from the root of its file system.
fn within(mounts: &[MountLine], path: &Path) -> Option<(Vec<u8>, PathBuf)> {
    // Later lines are mounted over earlier ones.
    let over = |l: &&MountLine| path.starts_with(&l.point);
    let line = mounts.iter().filter(over).max_by_key(|l| l.point.components().count())?;
    Some((line.dev.clone(), line.root.join(path.strip_prefix(&line.point).ok()?)))
}

/// Where else `path` can be seen.
fn aliases(mounts: &[MountLine], path: &Path) -> Vec<PathBuf> {
    let Some((dev, inner)) = within(mounts, path) else { return Vec::new() };
    let one = |line: &MountLine| {
        let rest = inner.strip_prefix(&line.root).ok().filter(|_| line.dev == dev)?;
        // Joining nothing would leave a slash at the end.
        let seen = if rest.as_os_str().is_empty() { line.point.clone() } else { line.point.join(rest) };
        (seen != path).then_some(seen)
    };
    mounts.iter().filter_map(one).collect()
}

/// Mounts of parts of `path`.
fn parts(mounts: &[MountLine], path: &Path) -> Vec<PathBuf> {
    let Some((dev, inner)) = within(mounts, path) else { return Vec::new() };
    let part = |l: &&MountLine| l.dev == dev && l.root != inner && l.root.starts_with(&inner);
    mounts.iter().filter(part).map(|l| l.point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::proc::parse_mounts;
    use super::super::testing::tree;
    use super::*;

    #[test]
    fn the_same_under_other_names() {
        let text = b"1 0 8:1 / / rw - ext4 x rw\n2 1 8:2 / /var rw - ext4 x rw\n3 1 8:2 /lib /mnt/lib rw - ext4 x rw\n\
                     4 1 8:1 / /host rw - ext4 x rw\n5 1 8:2 /lib/s/live /mnt/live rw - ext4 x rw\n\
                     6 1 8:3 / /var/other rw - ext4 x rw\n7 1 8:2 /library /mnt/library rw - ext4 x rw\n";
        let mounts = parse_mounts(text);
        let paths = |list: Vec<PathBuf>| list.iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths(aliases(&mounts, Path::new("/var/lib/s"))), ["/mnt/lib/s"]);
        assert_eq!(paths(parts(&mounts, Path::new("/var/lib/s"))), ["/mnt/live"]);
        assert_eq!(paths(aliases(&mounts, Path::new("/"))), ["/host"]);
        assert_eq!(paths(aliases(&mounts, Path::new("/var/other/x"))), Vec::<String>::new());
    }

    #[test]
    fn what_is_listed_is_there() {
        let dir = tree(&["state/", "config/stockade/"]);
        let config = HostPath::new(dir.path().canonicalize().unwrap().join("config/stockade")).unwrap();
        let state = HostPath::new(dir.path().canonicalize().unwrap().join("state")).unwrap();
        // A line for something that is not mounted: the name leads elsewhere.
        let text =
            b"1 0 8:1 / / rw - ext4 x rw\n2 1 8:1 / /usr rw - ext4 x rw\n3 1 0:5 / /proc rw - proc x rw\n\
                     4 1 0:5 / /usr/bin rw - proc x rw\n5 1 0:5 /sys /proc/sys rw - proc x rw\n";
        let got = places(&parse_mounts(text), Some(&state), std::slice::from_ref(&config));
        let shown: Vec<(String, &str)> = got.iter().map(|n| (n.path.to_string(), n.what)).collect();
        let own = [(state.to_string(), STATE), (config.to_string(), PROFILES)];
        let wanted = [own[0].clone(), own[1].clone(), ("/proc".to_owned(), PROC), ("/".to_owned(), ROOT)];
        assert_eq!(shown, wanted);
    }
}

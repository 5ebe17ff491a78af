//! From a refusal to its likely cause and the least change that mends it. Pure but for
//! [`Surroundings::look`], which reads what the decisions need, and only once something failed.

use super::proc;
use super::trial::{Step, proc_covers};
use crate::plan::Fact;
use std::path::{Path, PathBuf};

/// Where the way into namespaces ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// clone3 refused this namespace.
    Clone(&'static str),
    /// Writing an id map.
    Map,
    /// Using a capability inside.
    Use(&'static str),
}

/// What decides between causes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// `kernel.apparmor_restrict_unprivileged_userns`.
    pub apparmor_restricts: bool,
    /// `kernel.unprivileged_userns_clone` is 0 (Debian's and Arch's patch).
    pub userns_clone_off: bool,
    /// `user.max_*_namespaces` that are 0, by their last part.
    pub zero_limits: Vec<String>,
    /// This process already runs under a filter.
    pub filtered: bool,
    /// The AppArmor profile of this process, unless unconfined.
    pub confined_by: Option<String>,
    /// The root directory is no mount point: a chroot.
    pub chroot: bool,
    /// Mounts over parts of `/proc`.
    pub proc_covers: Vec<String>,
    /// `/proc` is mounted read-only.
    pub proc_read_only: bool,
    /// The path of this executable.
    pub executable: PathBuf,
    /// We are uid 0.
    pub root: bool,
}

impl Surroundings {
    /// Reads them from this host.
    pub fn look() -> Self {
        let exe = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/stockade"));
        Self::look_at(Path::new("/proc"), exe)
    }

    fn look_at(proc_root: &Path, executable: PathBuf) -> Self {
        let sysctl = |name: &str| proc::word(&proc_root.join("sys").join(name));
        let mounts = proc::mounts(proc_root).unwrap_or_default();
        let status = proc::read(&proc_root.join("self/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status).into_owned();
        let zero_limits = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"]
            .into_iter()
            .filter(|n| sysctl(&format!("user/max_{n}_namespaces")).as_deref() == Some("0"))
            .map(str::to_owned)
            .collect();
        Self {
            apparmor_restricts: sysctl("kernel/apparmor_restrict_unprivileged_userns").as_deref()
                == Some("1"),
            userns_clone_off: sysctl("kernel/unprivileged_userns_clone").as_deref() == Some("0"),
            zero_limits,
            filtered: status.lines().any(|l| l.strip_prefix("Seccomp:").is_some_and(|v| v.trim() == "2")),
            confined_by: proc::word(&proc_root.join("self/attr/apparmor/current"))
                .or_else(|| proc::word(&proc_root.join("self/attr/current")))
                .map(|l| l.trim_end_matches('\0').to_owned())
                // SELinux has its labels in the same place; they hold colons.
                .filter(|l| !l.is_empty() && !l.starts_with("unconfined") && !l.contains(':')),
            chroot: !mounts.is_empty() && !mounts.iter().any(|m| m.point == Path::new("/")),
            proc_covers: proc_covers(&mounts),
            proc_read_only: mounts
                .iter()
                .rfind(|m| m.point == Path::new("/proc"))
                .is_some_and(|m| m.options.split(|b| *b == b',').any(|o| o == b"ro")),
            executable,
            root: rustix::process::geteuid().is_root(),
        }
    }
}

fn missing(why: impl Into<String>, remedy: impl Into<String>) -> Fact {
    Fact::Missing { why: why.into(), remedy: remedy.into() }
}

fn said(errno: Option<i32>) -> String {
    errno.map_or_else(
        || "the trial ended early".to_owned(),
        |e| std::io::Error::from_raw_os_error(e).to_string(),
    )
}

/// The calls that a container's filter must let through.
const CALLS: &str = "clone, clone3, unshare, setns, mount, umount2, pivot_root, open_tree, move_mount, fsopen, \
                     fsconfig, fsmount, mount_setattr, sethostname, seccomp, landlock_*";

const NO_FILTER: &str =
    "docker and podman: `--security-opt seccomp=unconfined`; Kubernetes: `seccompProfile.type: Unconfined`";

/// The AppArmor profile that lets this executable, and nothing else, make user namespaces.
pub fn apparmor_profile(executable: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let path = crate::base::text::visible(executable.as_os_str().as_bytes());
    // A quoted path may hold spaces; a quote or a pattern character in it must be escaped.
    let path: String = path
        .chars()
        .flat_map(|c| {
            let escape = matches!(c, '"' | '\\' | '*' | '?' | '[' | ']' | '{' | '}' | '^' | '@');
            escape.then_some('\\').into_iter().chain(std::iter::once(c))
        })
        .collect();
    format!(
        "abi <abi/4.0>,\ninclude <tunables/global>\n\nprofile stockade \"{path}\" flags=(unconfined) {{\n  userns,\n  \
         include if exists <local/stockade>\n}}\n"
    )
}

/// Why namespaces cannot be had.
pub fn namespaces(stage: Stage, errno: Option<i32>, around: &Surroundings) -> Fact {
    let code = errno.unwrap_or(0);
    let denied = matches!(code, libc::EPERM | libc::EACCES);
    let what = match stage {
        Stage::Clone("user") => "a user namespace cannot be made".to_owned(),
        Stage::Clone(name) => format!("a {name} namespace cannot be made"),
        Stage::Map => "the id map of a user namespace cannot be written".to_owned(),
        Stage::Use(words) => format!("a user namespace can be made, but not used: {words} failed"),
    };
    let why = |cause: &str| format!("{what} ({}): {cause}", said(errno));
    let limited = |name: &str| around.zero_limits.iter().any(|l| l == name);
    if let Stage::Clone(name) = stage
        && matches!(code, libc::ENOSPC | libc::EUSERS)
    {
        let key = match name {
            "mount" => "mnt".to_owned(),
            other => other.to_ascii_lowercase(),
        };
        return if limited(&key) {
            missing(
                why(&format!("user.max_{key}_namespaces is 0")),
                format!(
                    "`sudo sysctl -w user.max_{key}_namespaces=15000` (and the same line in /etc/sysctl.d/ to keep it)"
                ),
            )
        } else {
            missing(
                why(&format!("user.max_{key}_namespaces is used up, or namespaces are nested too deeply")),
                format!(
                    "end what holds namespaces, or raise it: `sudo sysctl -w user.max_{key}_namespaces=…`"
                ),
            )
        };
    }
    if denied && around.userns_clone_off && !around.root {
        return missing(
            why("kernel.unprivileged_userns_clone is 0"),
            "`sudo sysctl -w kernel.unprivileged_userns_clone=1` (and the same line in /etc/sysctl.d/ to keep it)",
        );
    }
    if denied && around.apparmor_restricts && !around.root {
        return missing(
            why("AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns=1)"),
            format!(
                "write this to /etc/apparmor.d/stockade and run `sudo apparmor_parser -r /etc/apparmor.d/stockade`:\n{}",
                apparmor_profile(&around.executable)
            ),
        );
    }
    match (stage, code) {
        (Stage::Map, libc::EROFS) => missing(
            why("/proc is mounted read-only"),
            "mount a writable procfs at /proc; docker and podman: `--security-opt systempaths=unconfined` or `unmask=/proc`",
        ),
        (Stage::Clone(_), libc::ENOSYS) if !around.filtered => {
            missing(why("the kernel lacks clone3 (before Linux 5.3)"), "Linux 5.12 or later is needed")
        }
        (Stage::Clone(name), libc::EINVAL) => {
            let config = match name {
                "user" => "CONFIG_USER_NS",
                "PID" => "CONFIG_PID_NS",
                "network" => "CONFIG_NET_NS",
                "IPC" => "CONFIG_IPC_NS",
                "UTS" => "CONFIG_UTS_NS",
                "cgroup" => "CONFIG_CGROUPS",
                _ => "CONFIG_NAMESPACES",
            };
            missing(
                why(&format!("the kernel was built without {config}")),
                format!("a kernel with {config}=y"),
            )
        }
        (_, libc::EPERM | libc::EACCES | libc::ENOSYS) if around.filtered => missing(
            why("a system-call filter around this process (a container's) refuses it"),
            format!("let its seccomp profile allow {CALLS}; or {NO_FILTER}"),
        ),
        (_, libc::EPERM | libc::EACCES) if around.confined_by.is_some() => {
            let label = around.confined_by.as_deref().unwrap_or_default();
            missing(
                why(&format!("the AppArmor profile `{label}` confines this process")),
                "let that profile allow `userns` and `mount`; docker and podman: `--security-opt apparmor=unconfined`",
            )
        }
        (Stage::Clone("user"), libc::EPERM) if around.chroot => missing(
            why("this process is in a chroot, where the kernel makes no user namespace"),
            "enter the directory by pivot_root (for example with `unshare --mount --root`) instead of chroot",
        ),
        _ => missing(
            why(
                "neither a sysctl nor a filter that we know explains it; a security module (SELinux, a BPF policy) may",
            ),
            "look into the kernel log (`dmesg`, `ausearch -m avc`) for the refusal at this time",
        ),
    }
}

/// Why the mount API does not work.
pub fn mount_api(step: Step, errno: Option<i32>, around: &Surroundings) -> Fact {
    let why = |cause: &str| format!("{} failed ({}): {cause}", step.words(), said(errno));
    match errno.unwrap_or(0) {
        libc::ENOSYS if !around.filtered => missing(
            why("the kernel lacks this call (mount_setattr came with Linux 5.12)"),
            "Linux 5.12 or later",
        ),
        libc::ENOSYS | libc::EPERM | libc::EACCES if around.filtered => missing(
            why("a system-call filter around this process (a container's) refuses it"),
            format!("let its seccomp profile allow {CALLS}; or {NO_FILTER}"),
        ),
        libc::EINVAL if step == Step::Pivot => missing(
            why("the root is the initial RAM file system, or is shared, and cannot be left"),
            "start from a root that is a mount of its own (switch_root, or a bind mount of it)",
        ),
        libc::EPERM | libc::EACCES => match &around.confined_by {
            Some(label) => missing(
                why(&format!("the AppArmor profile `{label}` confines this process")),
                "let that profile allow `mount`; docker and podman: `--security-opt apparmor=unconfined`",
            ),
            None => missing(
                why("a security module refuses it"),
                "look into the kernel log for the refusal at this time",
            ),
        },
        libc::ENODEV => missing(
            why("the kernel lacks this file system"),
            "a kernel with CONFIG_TMPFS=y and CONFIG_UNIX98_PTYS=y",
        ),
        _ => missing(why("not expected"), "please report it, with the output of `stockade doctor --json`"),
    }
}

/// Why no fresh procfs can be mounted.
pub fn proc_fresh(step: Step, errno: Option<i32>, around: &Surroundings) -> Fact {
    let why = |cause: String| format!("{} failed ({}): {cause}", step.words(), said(errno));
    let unmask = "docker: `--security-opt systempaths=unconfined`; podman: `--security-opt unmask=ALL`; Kubernetes: `procMount: Unmasked`";
    if !around.proc_covers.is_empty() {
        const SHOWN: usize = 4;
        let shown = around.proc_covers.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = match around.proc_covers.len().saturating_sub(SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        return missing(why(format!("this container's /proc is masked ({shown}{more})")), unmask);
    }
    if around.proc_read_only {
        return missing(why("this container's /proc is mounted read-only".to_owned()), unmask);
    }
    match errno.unwrap_or(0) {
        libc::EPERM => missing(
            why("no complete procfs is visible in this mount namespace, or a security module refuses it"
                .to_owned()),
            "mount a procfs at /proc outside (without hidepid or subset), or run outside of this container",
        ),
        _ => missing(
            why("not expected".to_owned()),
            "please report it, with the output of `stockade doctor --json`",
        ),
    }
}

/// Why overlays do not work.
pub fn overlay(step: Step, errno: Option<i32>, _around: &Surroundings) -> Fact {
    let why = |cause: &str| format!("{} failed ({}): {cause}", step.words(), said(errno));
    match errno.unwrap_or(0) {
        libc::ENODEV => missing(
            why("the kernel has no overlayfs"),
            "`sudo modprobe overlay` (and the line `overlay` in /etc/modules-load.d/), or CONFIG_OVERLAY_FS=y",
        ),
        libc::EPERM => {
            missing(why("overlays in a user namespace came with Linux 5.11"), "Linux 5.11 or later")
        }
        libc::EINVAL => {
            missing(why("the kernel does not know `userxattr` (Linux 5.11)"), "Linux 5.11 or later")
        }
        _ => missing(why("not expected"), "please report it, with the output of `stockade doctor --json`"),
    }
}

/// Why there is no time namespace.
pub fn time(step: Step, errno: Option<i32>, around: &Surroundings) -> Fact {
    let why = |cause: &str| format!("{} failed ({}): {cause}", step.words(), said(errno));
    match errno.unwrap_or(0) {
        libc::EINVAL => missing(why("the kernel has none"), "Linux 5.6 or later with CONFIG_TIME_NS=y"),
        libc::ENOSPC if around.zero_limits.iter().any(|l| l == "time") => {
            missing(why("user.max_time_namespaces is 0"), "`sudo sysctl -w user.max_time_namespaces=15000`")
        }
        _ if around.filtered => missing(
            why("a system-call filter around this process (a container's) refuses it"),
            "let its seccomp profile allow unshare with CLONE_NEWTIME",
        ),
        _ => missing(why("not expected"), "look into the kernel log for the refusal at this time"),
    }
}

/// Why no filter can be installed.
pub fn seccomp(step: Step, errno: Option<i32>, around: &Surroundings) -> Fact {
    let why = |cause: &str| format!("{} failed ({}): {cause}", step.words(), said(errno));
    match errno.unwrap_or(0) {
        libc::EINVAL | libc::ENOSYS if !around.filtered => {
            missing(why("the kernel was built without it"), "a kernel with CONFIG_SECCOMP_FILTER=y")
        }
        _ if around.filtered => missing(
            why("a system-call filter around this process (a container's) refuses it"),
            "let its seccomp profile allow seccomp(2) and prctl(2)",
        ),
        _ => missing(why("not expected"), "look into the kernel log for the refusal at this time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fact: &Fact) -> (&str, &str) {
        match fact {
            Fact::Missing { why, remedy } => (why, remedy),
            Fact::Works => panic!("works"),
        }
    }

    #[test]
    fn each_refusal_has_its_least_remedy() {
        let plain = Surroundings { executable: "/opt/a b/stockade".into(), ..Surroundings::default() };
        let with = |f: fn(&mut Surroundings)| {
            let mut s = plain.clone();
            f(&mut s);
            s
        };
        let user = Stage::Clone("user");
        let used = Stage::Use("mount(2)");
        type Case = (Stage, i32, Surroundings, &'static str, &'static str);
        let cases: Vec<Case> = vec![
            (
                user,
                libc::EPERM,
                with(|s| s.userns_clone_off = true),
                "unprivileged_userns_clone is 0",
                "kernel.unprivileged_userns_clone=1",
            ),
            (
                user,
                libc::ENOSPC,
                with(|s| s.zero_limits.push("user".into())),
                "max_user_namespaces is 0",
                "user.max_user_namespaces=15000",
            ),
            (
                Stage::Clone("mount"),
                libc::ENOSPC,
                with(|s| s.zero_limits.push("mnt".into())),
                "max_mnt_",
                "user.max_mnt_namespaces=15000",
            ),
            (Stage::Clone("network"), libc::ENOSPC, plain.clone(), "used up", "raise it"),
            (
                used,
                libc::EACCES,
                with(|s| s.apparmor_restricts = true),
                "AppArmor restricts",
                "profile stockade \"/opt/a b/stockade\" flags=(unconfined)",
            ),
            (Stage::Map, libc::EPERM, with(|s| s.apparmor_restricts = true), "AppArmor restricts", "userns,"),
            (user, libc::EPERM, with(|s| s.filtered = true), "system-call filter", "seccomp=unconfined"),
            (user, libc::ENOSYS, with(|s| s.filtered = true), "system-call filter", "clone3"),
            (user, libc::ENOSYS, plain.clone(), "5.3", "Linux 5.12"),
            (user, libc::EINVAL, plain.clone(), "CONFIG_USER_NS", "CONFIG_USER_NS=y"),
            (Stage::Clone("PID"), libc::EINVAL, plain.clone(), "CONFIG_PID_NS", "CONFIG_PID_NS=y"),
            (
                used,
                libc::EACCES,
                with(|s| s.confined_by = Some("docker-default (enforce)".into())),
                "docker-default",
                "apparmor=unconfined",
            ),
            (user, libc::EPERM, with(|s| s.chroot = true), "chroot", "pivot_root"),
            (user, libc::EPERM, plain.clone(), "security module", "dmesg"),
            (Stage::Map, libc::EROFS, plain.clone(), "read-only", "writable procfs"),
        ];
        for (stage, errno, around, why, remedy) in cases {
            let fact = namespaces(stage, Some(errno), &around);
            let (got_why, got_remedy) = text(&fact);
            assert!(got_why.contains(why), "{stage:?} {errno}: {got_why}");
            assert!(got_remedy.contains(remedy), "{stage:?} {errno}: {got_remedy}");
        }
    }

    #[test]
    fn a_masked_proc_is_named() {
        let covers = ["kcore", "keys", "timer_list", "sys", "bus"].map(|n| format!("/proc/{n}")).to_vec();
        let around = Surroundings { proc_covers: covers, ..Surroundings::default() };
        let fact = proc_fresh(Step::Proc, Some(libc::EPERM), &around);
        assert!(text(&fact).0.contains("/proc/kcore") && text(&fact).0.contains("and 1 more"), "{fact:?}");
        assert!(text(&fact).1.contains("systempaths=unconfined"));
    }

    #[test]
    fn surroundings_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
        put("sys/kernel/unprivileged_userns_clone", "0\n");
        put("sys/user/max_user_namespaces", "0\n");
        put("sys/user/max_net_namespaces", "7\n");
        put("self/status", "Name:\tx\nSeccomp:\t2\n");
        put("self/attr/current", "docker-default (enforce)\n");
        put(
            "self/mountinfo",
            "1 0 0:1 / /proc ro,nosuid - proc proc rw\n2 1 0:2 / /proc/kcore ro - tmpfs t ro\n",
        );
        let got = Surroundings::look_at(dir.path(), "/x".into());
        let wanted = Surroundings {
            apparmor_restricts: true,
            userns_clone_off: true,
            zero_limits: vec!["user".into()],
            filtered: true,
            confined_by: Some("docker-default (enforce)".into()),
            chroot: true,
            proc_covers: vec!["/proc/kcore".into()],
            proc_read_only: true,
            executable: "/x".into(),
            root: got.root,
        };
        assert_eq!(got, wanted);
        put("self/attr/current", "system_u:system_r:container_t:s0\n");
        put("self/mountinfo", "1 0 0:1 / / rw - ext4 x rw\n");
        let got = Surroundings::look_at(dir.path(), "/x".into());
        assert_eq!((got.confined_by, got.chroot), (None, false));
    }
}

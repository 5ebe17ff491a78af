//! Stockade in containers that runc and crun start, with the restrictions that engines put on by default and with less of
//! them; and Stockade in Stockade. In each: what doctor says, that `exec` does what doctor says, that nothing ends with 0
//! where nothing ran, and that the remedy which doctor names makes it run. `docs/containers.md` is this table.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Sandbox, Workspace, bin, needs, root, unique};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a container is restricted by.
#[derive(Debug, Clone, Copy)]
struct Restrictions {
    name: &'static str,
    /// How an engine is told, beside its defaults.
    flags: &'static str,
    capabilities: Capabilities,
    /// The engine's system-call filter.
    filter: bool,
    /// Masks over `/proc`.
    masks: bool,
    no_new_privileges: bool,
    read_only_root: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Capabilities {
    /// What docker and podman leave.
    Default,
    /// And CAP_SYS_ADMIN.
    Admin,
    /// All that this host has.
    All,
}

const DEFAULT: Restrictions = Restrictions {
    name: "default",
    flags: "",
    capabilities: Capabilities::Default,
    filter: true,
    masks: true,
    no_new_privileges: false,
    read_only_root: false,
};
const NO_NEW_PRIVILEGES: Restrictions = Restrictions {
    name: "no new privileges, read-only root",
    flags: "--security-opt no-new-privileges --read-only",
    no_new_privileges: true,
    read_only_root: true,
    ..DEFAULT
};
const NO_FILTER: Restrictions = Restrictions {
    name: "without the filter",
    flags: "--security-opt seccomp=unconfined",
    filter: false,
    ..DEFAULT
};
const NO_MASKS: Restrictions = Restrictions {
    name: "without filter and masks",
    flags: "--security-opt seccomp=unconfined --security-opt systempaths=unconfined",
    masks: false,
    ..NO_FILTER
};
const ADMIN: Restrictions = Restrictions {
    name: "CAP_SYS_ADMIN",
    flags: "--cap-add SYS_ADMIN",
    capabilities: Capabilities::Admin,
    ..DEFAULT
};
const ADMIN_NO_FILTER: Restrictions = Restrictions {
    name: "CAP_SYS_ADMIN, without the filter",
    flags: "--cap-add SYS_ADMIN --security-opt seccomp=unconfined",
    filter: false,
    ..ADMIN
};
const PRIVILEGED: Restrictions = Restrictions {
    name: "privileged",
    flags: "--privileged",
    capabilities: Capabilities::All,
    filter: false,
    masks: false,
    ..DEFAULT
};

/// What `exec` under the default profile comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Comes {
    /// It runs; these checks of doctor's are missing.
    Runs(&'static [&'static str]),
    /// Nothing runs: the check that is to blame, what its reason holds, and what its remedy holds.
    Refused(&'static str, &'static str, &'static str),
}

const NO_CGROUPS: [&str; 4] = ["cgroup kill", "memory limit", "process limit", "cpu limit"];
const NO_PROC: [&str; 5] = ["procfs", NO_CGROUPS[0], NO_CGROUPS[1], NO_CGROUPS[2], NO_CGROUPS[3]];
const NO_ADMIN: Comes = Comes::Refused("namespaces", "uid 0 without CAP_SYS_ADMIN", "--user 1000");
const FILTERED: Comes = Comes::Refused("namespaces", "system-call filter", "seccomp=unconfined");
const NO_PIVOT: Comes = Comes::Refused("mount API", "pivot_root", "seccomp=unconfined");

const CELLS: [(Restrictions, u32, Comes); 14] = [
    (DEFAULT, 0, NO_ADMIN),
    (DEFAULT, 1000, FILTERED),
    (NO_NEW_PRIVILEGES, 0, NO_ADMIN),
    (NO_NEW_PRIVILEGES, 1000, FILTERED),
    (NO_FILTER, 0, NO_ADMIN),
    (NO_FILTER, 1000, Comes::Runs(&NO_PROC)),
    (NO_MASKS, 0, NO_ADMIN),
    (NO_MASKS, 1000, Comes::Runs(&NO_CGROUPS)),
    (ADMIN, 0, NO_PIVOT),
    (ADMIN, 1000, NO_PIVOT),
    (ADMIN_NO_FILTER, 0, Comes::Runs(&NO_PROC)),
    (ADMIN_NO_FILTER, 1000, Comes::Runs(&NO_PROC)),
    (PRIVILEGED, 0, Comes::Runs(&NO_CGROUPS)),
    (PRIVILEGED, 1000, Comes::Runs(&NO_CGROUPS)),
];

/// What the default filter of docker and podman refuses, as far as it matters here (moby's `profiles/seccomp/default.json`):
/// the first only without CAP_SYS_ADMIN, the second whatever capabilities there are.
const REFUSED_WITHOUT_ADMIN: [&str; 19] = [
    "mount",
    "umount2",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "bpf",
    "perf_event_open",
    "quotactl",
    "sethostname",
    "setdomainname",
    "syslog",
    "lookup_dcookie",
    "fanotify_init",
];
const REFUSED: [&str; 22] = [
    "pivot_root",
    "add_key",
    "keyctl",
    "request_key",
    "userfaultfd",
    "kexec_load",
    "open_by_handle_at",
    "reboot",
    "swapon",
    "swapoff",
    "init_module",
    "finit_module",
    "delete_module",
    "acct",
    "settimeofday",
    "clock_settime",
    "vhangup",
    "kcmp",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "nfsservctl",
];
const NAMESPACE_FLAGS: [u64; 7] =
    [0x1000_0000, 0x2000_0000, 0x4000_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x0002_0000];

fn filter(capabilities: Capabilities) -> Value {
    let refuse =
        |names: &[&str], errno: i32| json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno });
    let mut calls = vec![refuse(&REFUSED, libc::EPERM)];
    if capabilities == Capabilities::Default {
        calls.push(refuse(&REFUSED_WITHOUT_ADMIN, libc::EPERM));
        calls.push(refuse(&["clone3"], libc::ENOSYS));
        for flag in NAMESPACE_FLAGS {
            let mut call = refuse(&["clone"], libc::EPERM);
            call["args"] =
                json!([{ "index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ" }]);
            calls.push(call);
        }
    }
    json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], "syscalls": calls })
}

const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
const LEFT_BY_DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

fn capabilities(which: Capabilities) -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let bounding = status.lines().find_map(|l| l.strip_prefix("CapBnd:")).unwrap().trim().to_owned();
    let bounding = u64::from_str_radix(&bounding, 16).unwrap();
    NAMES
        .iter()
        .enumerate()
        .filter(|(n, name)| {
            bounding >> n & 1 == 1
                && (which == Capabilities::All
                    || LEFT_BY_DEFAULT.contains(name)
                    || which == Capabilities::Admin && **name == "SYS_ADMIN")
        })
        .map(|(_, name)| format!("CAP_{name}"))
        .collect()
}

/// A bundle and the container that is made of it; both are gone at the end.
struct Container {
    runtime: &'static str,
    name: String,
    bundle: PathBuf,
}

impl Container {
    fn new(runtime: &'static str, with: &Restrictions, uid: u32, script: &str) -> Self {
        let name = unique("stockade-test");
        let bundle = common::home().join(format!(".{name}"));
        let at = |rest: &str| bundle.join(rest);
        for dir in [
            "usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "sys", "dev", "tmp", "var", "root", "work",
            "run",
        ] {
            fs::create_dir_all(at("rootfs").join(dir)).unwrap();
        }
        fs::create_dir(at("work")).unwrap();
        for (path, mode) in [(bundle.clone(), 0o755), (at("rootfs/tmp"), 0o1777), (at("work"), 0o755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        chown(at("work"), Some(uid), Some(uid)).unwrap();
        fs::write(at("rootfs/stockade"), "").unwrap();
        let bind = |from: &Path, to: &str, mode: &str| json!({ "destination": to, "type": "bind", "source": from, "options": ["rbind", mode] });
        let own = |kind: &str, to: &str, options: &[&str]| json!({ "destination": to, "type": kind, "source": kind, "options": options });
        let mut mounts = vec![
            own("proc", "/proc", &[]),
            own("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            own("devpts", "/dev/pts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
            own("tmpfs", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777"]),
            own("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
            own("tmpfs", "/tmp", &["mode=1777"]),
            bind(&bin(), "/stockade", "ro"),
            bind(&at("work"), "/work", "rw"),
        ];
        if !with.read_only_root {
            for dir in ["/var", "/root", "/run"] {
                mounts.push(own("tmpfs", dir, &["mode=755"]));
            }
        }
        for dir in ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"] {
            if Path::new(dir).exists() {
                mounts.push(bind(Path::new(dir), dir, "ro"));
            }
        }
        let all = capabilities(with.capabilities);
        let held = if uid == 0 { all.clone() } else { Vec::new() };
        let kinds = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let mut linux = json!({ "namespaces": kinds, "resources": {} });
        if runtime == "runc" {
            linux["cgroupsPath"] = json!(format!("/{name}"));
        }
        if with.masks {
            linux["maskedPaths"] = json!([
                "/proc/acpi",
                "/proc/asound",
                "/proc/kcore",
                "/proc/keys",
                "/proc/latency_stats",
                "/proc/timer_list",
                "/proc/timer_stats",
                "/proc/sched_debug",
                "/proc/scsi",
                "/sys/firmware",
                "/sys/devices/virtual/powercap",
            ]);
            linux["readonlyPaths"] =
                json!(["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]);
        }
        if with.filter {
            linux["seccomp"] = filter(with.capabilities);
        }
        let config = json!({
            "ociVersion": "1.0.2",
            "hostname": "container",
            "root": { "path": "rootfs", "readonly": true },
            "mounts": mounts,
            "linux": linux,
            "process": {
                "terminal": false,
                "user": { "uid": uid, "gid": uid },
                "cwd": "/work",
                "args": ["sh", "-c", script],
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp/home"],
                "noNewPrivileges": with.no_new_privileges,
                "capabilities": { "bounding": all, "effective": held, "permitted": held },
            },
        });
        fs::write(at("config.json"), config.to_string()).unwrap();
        Self { runtime, name, bundle }
    }

    /// Runs it to its end: standard output and error.
    fn run(&self) -> (String, String) {
        let mut command = match self.runtime {
            // crun refuses a hybrid layout that it could leave alone: it is shown none, and told to make no cgroups.
            "crun" => {
                let mut command = Command::new("unshare");
                let script = "mount -t tmpfs none /sys/fs/cgroup; exec \"$@\"";
                command.args([
                    "-m",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    script,
                    "sh",
                    "crun",
                    "--cgroup-manager=disabled",
                ]);
                command
            }
            other => Command::new(other),
        };
        command.arg("run").arg("--bundle").arg(&self.bundle).arg(&self.name).stdin(Stdio::null());
        let raw = common::bounded(command, Duration::from_secs(120));
        (raw.out(), raw.err())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = Command::new(self.runtime).args(["delete", "-f", &self.name]).output();
        let _ = fs::remove_dir_all(&self.bundle);
    }
}

/// What is said and done in a container.
struct Seen {
    doctor: Value,
    code: i32,
    out: String,
    err: String,
}

const SCRIPT: &str = "mkdir -p $HOME /tmp/state; chmod 700 /tmp/state; \
    /stockade doctor --state-dir /tmp/state --json > /tmp/doctor; \
    /stockade exec --state-dir /tmp/state -w /work -- sh -c 'echo mar\"\"ker; echo made > made' > /tmp/out 2> /tmp/err; \
    code=$?; cat /tmp/doctor; printf '\\001%s\\001' $code; cat /tmp/out; printf '\\001'; cat /tmp/err";

fn look(runtime: &'static str, with: &Restrictions, uid: u32) -> Seen {
    let container = Container::new(runtime, with, uid, SCRIPT);
    let (out, err) = container.run();
    let parts: Vec<&str> = out.split('\x01').collect();
    let [doctor, code, printed, said] = parts[..] else {
        panic!("{runtime} {with:?} {uid}: {out:?} {err:?}")
    };
    let made = container.bundle.join("work/made").exists();
    let seen = Seen {
        doctor: serde_json::from_str(doctor).unwrap_or_else(|e| panic!("{e}: {doctor}")),
        code: code.parse().unwrap(),
        out: printed.to_owned(),
        err: said.to_owned(),
    };
    // Nothing ends well where nothing ran, and nothing ran where it is refused.
    let ran = seen.out == "marker\n";
    assert_eq!(seen.code == 0, ran, "{runtime} {with:?} {uid}: {} {}", seen.code, seen.err);
    assert_eq!(made, ran, "{runtime} {with:?} {uid}");
    seen
}

impl Seen {
    fn check(&self, name: &str) -> &Value {
        let checks = self.doctor["checks"].as_array().unwrap();
        checks.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no check {name}"))
    }

    fn missing(&self) -> Vec<&str> {
        // What was not tried, or is no part of the default profile, is no part of the table.
        let checks = self.doctor["checks"].as_array().unwrap();
        checks.iter().filter(|c| c["works"] == false).map(|c| c["name"].as_str().unwrap()).collect()
    }
}

fn possible(runtime: &str) -> bool {
    let found = Command::new(runtime).arg("--version").output().is_ok_and(|o| o.status.success());
    needs(root(), "a container is started by root alone")
        && needs(found, &format!("{runtime} is not installed"))
}

fn cells(runtime: &'static str) {
    if !possible(runtime) {
        return;
    }
    for (with, uid, comes) in &CELLS {
        let seen = look(runtime, with, *uid);
        let what = format!("{runtime}, {}, uid {uid}: {:?} {}", with.name, seen.missing(), seen.err);
        match comes {
            Comes::Runs(missing) => {
                assert_eq!(seen.code, 0, "{what}");
                assert_eq!(seen.missing(), *missing, "{what}");
                assert_eq!(seen.doctor["default_profile_runs"], true, "{what}");
            }
            Comes::Refused(check, why, remedy) => {
                assert_eq!(seen.code, 125, "{what}");
                let check = seen.check(check);
                assert!(check["why"].as_str().is_some_and(|w| w.contains(why)), "{what}: {check}");
                assert!(check["remedy"].as_str().is_some_and(|r| r.contains(remedy)), "{what}: {check}");
                // The refusal says the same.
                assert!(seen.err.contains(why) && seen.err.contains(remedy), "{what}");
                assert_eq!(seen.doctor["default_profile_runs"], false, "{what}");
            }
        }
    }
}

#[test]
fn containers_of_runc() {
    cells("runc");
}

#[test]
fn containers_of_crun() {
    cells("crun");
}

/// Each remedy that is named leads to a cell in which what it mends is mended: the table is closed under its own advice.
#[test]
fn every_remedy_leads_somewhere() {
    let of = |with: Restrictions, uid: u32| {
        CELLS.iter().find(|(w, u, _)| w.name == with.name && *u == uid).map(|(.., comes)| *comes).unwrap()
    };
    // `--user 1000`, and then what that user is refused.
    assert_eq!(of(DEFAULT, 0), NO_ADMIN);
    assert_eq!(of(DEFAULT, 1000), FILTERED);
    // `--security-opt seccomp=unconfined`.
    assert_eq!(of(NO_FILTER, 1000), Comes::Runs(&NO_PROC));
    // `--security-opt systempaths=unconfined`, for /proc.
    assert_eq!(of(NO_MASKS, 1000), Comes::Runs(&NO_CGROUPS));
    // `--cap-add SYS_ADMIN`, and then the filter's pivot_root.
    assert_eq!(of(ADMIN, 0), NO_PIVOT);
    assert_eq!(of(ADMIN_NO_FILTER, 0), Comes::Runs(&NO_PROC));
}

#[test]
fn the_page_is_current() {
    let mut page = String::from(PAGE);
    for (with, uid, comes) in &CELLS {
        let flags = if with.flags.is_empty() { "–".to_owned() } else { format!("`{}`", with.flags) };
        let (does, lost) = match comes {
            Comes::Runs(missing) => ("runs".to_owned(), missing.join(", ")),
            Comes::Refused(check, why, remedy) => {
                (format!("refuses (125): {check}: {why}"), format!("nothing runs; names `{remedy}`"))
            }
        };
        writeln!(page, "| {} | {flags} | {uid} | {does} | {lost} |", with.name).unwrap();
    }
    page.push_str(AFTER);
    let package = std::env::var_os("STOCKADE_TEST_PACKAGE");
    let at = package
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
        .join("docs/containers.md");
    if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
        fs::write(&at, &page).unwrap();
    }
    if !needs(at.parent().unwrap().exists(), "the documents are not beside the tests") {
        return;
    }
    assert_eq!(fs::read_to_string(&at).unwrap(), page, "set STOCKADE_WRITE_DOCS=1 to write it");
}

const PAGE: &str = "# In containers

What Stockade can do in a container that is started with the defaults of docker and podman, or with less of them. The table is the one of `tests/containers.rs`, which starts
each cell with runc and with crun (as in Debian 12), runs `stockade doctor` and `stockade exec` in it, and asserts what stands here: what `exec` does under the default profile,
and what is missing beside it, by the names of doctor's checks. No cell has cgroups of its own, as rootless containers have none.

| restrictions | flags | uid | `stockade exec` | without |
|---|---|---|---|---|
";

const AFTER: &str = "
The least that lets Stockade run: an ordinary user, and `--security-opt seccomp=unconfined` (or a filter that lets through what doctor lists). It gives the processes of
the container the system calls back that the engine's filter takes away; Stockade's own filter, which is narrower, holds for what runs inside of Stockade. `--security-opt
systempaths=unconfined` gives the command a `/proc` of its own; without it there is none, since the kernel mounts no fresh one where the visible one is masked.
`--cap-add SYS_ADMIN` alone is of no use: the engines' filters refuse `pivot_root` whatever the capabilities.

Limits need a cgroup to put them into: a mount of type `cgroup` that can be written. Where a profile prefers limits, as the shipped ones but `strict` do, a run without them is
recorded as reduced; where it requires them it is refused.

## Stockade in Stockade

Refused, with the reason: inside there are no namespaces to be made, whatever the profile, and `exec` ends with 125. A command that needs a sandbox of its own and cannot
go without runs beside, not inside: start a second `stockade exec` from the outer caller. Inside, `--no-record` changes nothing of that.
";

/// Stockade in Stockade: refused, with a reason and a way out that is one.
#[test]
fn stockade_in_stockade_is_refused() {
    let workspace = Workspace::new("nested");
    let inner = workspace.at("stockade");
    fs::copy(bin(), &inner).unwrap();
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
    for profile in ["offline", "strict", "build", "read-only"] {
        let script = format!(
            "mkdir -m 700 /tmp/state; {inner} exec --state-dir /tmp/state -w /tmp -- touch /tmp/ran; echo code $?; ls /tmp/ran"
        );
        let raw = Sandbox::new(&workspace).profile(profile).raw(["sh", "-c", &script]);
        assert!(raw.out().contains("code 125"), "{profile}: {raw:?}");
        assert!(!raw.out().contains("/tmp/ran\n"), "{profile}: {}", raw.out());
        let said = raw.err();
        assert!(said.contains("Stockade") && said.contains("outside"), "{profile}: {said}");
    }
}

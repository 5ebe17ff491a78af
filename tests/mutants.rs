//! Mutants (20-sandbox §5): with one protection switched off and all others on, the hostile cases that claim to
//! watch it must notice. Where another layer still stops the attempt, both are off together: the case is then shown
//! to be able to see.
//!
//! `cargo test --features mutants --test mutants`. The canaries are off too (`no-verify`): they would refuse first,
//! which `the_canaries_notice_too` shows.
#![cfg(feature = "mutants")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{BOTH, Case, Inside, Sandbox, Workspace, root, unique};
use std::fs;

/// What a case must look like once the protection is gone.
enum Flip {
    /// Another errno than with it, and this one.
    Errno(&'static str),
    /// Not this errno any more.
    Not(&'static str),
    /// A number other than this one.
    NotRet(i64),
}

/// Who can tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    Privileged,
    Rootless,
    Links,
}

struct Line {
    /// Protections off together.
    off: &'static [&'static str],
    fixture: &'static str,
    /// Case and parameter; `{ws}` is the workspace, `{port}` and `{abstract}` host listeners, `{pid}` a host process.
    case: &'static str,
    flip: Flip,
    needs: Needs,
    users: &'static [Inside],
}

const fn line(off: &'static [&'static str], fixture: &'static str, case: &'static str, flip: Flip) -> Line {
    Line { off, fixture, case, flip, needs: Needs::Nothing, users: &BOTH }
}

fn table() -> Vec<Line> {
    use Flip::{Errno, Not, NotRet};
    vec![
        // seccomp: calls that no other layer knows.
        line(&["no-seccomp"], "syscalls", "io_uring_setup", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "userfaultfd", Not("EPERM")),
        line(&["no-seccomp"], "syscalls", "keyctl_session_id", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "add_key", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "ptrace_traceme", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "process_vm_readv_self", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "kcmp_self", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "pidfd_getfd_self", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "perf_event_open", Errno("EFAULT")),
        line(&["no-seccomp"], "syscalls", "bpf_map_create", Not("EPERM")),
        line(&["no-seccomp"], "syscalls", "personality_no_randomize", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "personality_high_bits", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "memfd_secret", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "io_setup", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "modify_ldt", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "int80_getpid", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "int80_socketcall_vsock", Errno("OK")),
        line(&["no-seccomp"], "syscalls", "lsm_list_modules", Errno("EFAULT")),
        line(&["no-seccomp"], "fs", "openat2=/", Errno("OK")),
        line(&["no-seccomp"], "fs", "name_to_handle_at=/", Errno("OK")),
        line(&["no-seccomp"], "fs", "suid_chmod={ws}/f", Errno("OK")),
        line(&["no-seccomp"], "fs", "suid_fchmodat2={ws}/f", Errno("OK")),
        line(&["no-seccomp"], "fs", "suid_openat={ws}/s", Errno("OK")),
        line(&["no-seccomp"], "fs", "suid_openat2={ws}/s2", Errno("OK")),
        line(&["no-seccomp"], "fs", "suid_mknod={ws}/s3", Errno("OK")),
        line(&["no-seccomp"], "ipc_net", "socket_vsock", Errno("OK")),
        line(&["no-seccomp"], "ipc_net", "socket_mptcp", Errno("OK")),
        line(&["no-seccomp"], "ipc_net", "socket_netlink_generic", Errno("OK")),
        line(&["no-seccomp"], "proc_dev", "tiocsti", Errno("ENOTTY")),
        line(&["no-seccomp"], "proc_dev", "tiocsti_high_bits", Errno("ENOTTY")),
        line(&["no-seccomp"], "proc_dev", "tioclinux", Errno("ENOTTY")),
        line(&["no-seccomp"], "privilege", "clone3_plain", Errno("OK")),
        line(&["no-seccomp"], "privilege", "clone_newuser", Errno("OK")),
        line(&["no-seccomp"], "privilege", "clone_newuser_high_bits", Errno("OK")),
        line(&["no-seccomp"], "privilege", "unshare_newuser", Errno("OK")),
        line(&["no-seccomp"], "privilege", "seccomp_mode", NotRet(2)),
        line(&["no-seccomp"], "privilege", "thread_seccomp_mode", NotRet(2)),
        // The mount calls: seccomp is the first lock, missing capabilities and Landlock the next ones.
        line(&["no-seccomp", "no-caps", "no-landlock"], "mounts", "mount_tmpfs={ws}/d", Errno("OK"))
            .as_root(),
        line(&["no-seccomp", "no-caps", "no-landlock"], "mounts", "fsopen_tmpfs", Errno("OK")).as_root(),
        line(&["no-seccomp", "no-caps", "no-landlock"], "mounts", "bind_rec={ws}/d", Not("EPERM")).as_root(),
        line(&["no-seccomp", "no-caps", "no-landlock"], "mounts", "chroot=/", Errno("OK")).as_root(),
        // Capabilities.
        line(&["no-caps"], "privilege", "caps_in_status", NotRet(0)),
        line(&["no-caps"], "privilege", "capget", NotRet(0)).as_root(),
        line(&["no-caps"], "privilege", "bounding", NotRet(0)),
        line(&["no-caps"], "privilege", "securebits", NotRet(0b1110_1111)),
        // The second namespace: with all the others off, inside-root undoes read-only mounts. With it, it can't.
        line(
            &["no-seccomp", "no-caps", "no-landlock", "no-second-unshare"],
            "mounts",
            "remount_rw_usr",
            Errno("OK"),
        )
        .as_root(),
        line(
            &["no-seccomp", "no-caps", "no-landlock", "no-second-unshare"],
            "mounts",
            "umount_usr",
            Errno("OK"),
        )
        .as_root(),
        line(
            &["no-seccomp", "no-caps", "no-landlock", "no-second-unshare"],
            "mounts",
            "mount_setattr_rw=/usr",
            Errno("OK"),
        )
        .as_root(),
        // Landlock: what the mounts and ids allow and the rules do not.
        line(&["no-landlock", "no-seccomp"], "ipc_net", "mq_own", Errno("OK")),
        line(&["no-landlock"], "procs", "kill_init", Not("EPERM")).rootless(),
        // Descriptors.
        line(&["no-close-range"], "proc_dev", "open_descriptors", NotRet(0)),
        // Mount table.
        line(&["no-readonly"], "mounts", "table_readonly=/usr", NotRet(0)),
        line(&["no-readonly"], "mounts", "table_readonly=/", NotRet(0)),
        line(&["no-readonly", "no-landlock"], "fs", "create=/etc/stockade-mutant", Not("EROFS")),
        line(&["no-protect", "no-landlock"], "fs", "open_write={ws}/.git/config", Errno("OK")),
        line(&["no-protect", "no-landlock"], "fs", "create={ws}/.git/hooks/new", Errno("OK")),
        line(&["no-protect", "no-landlock"], "fs", "rename={ws}/.git,{ws}/gone", Errno("OK")),
        line(&["no-hide"], "fs", "read={ws}/.env", NotRet(0)),
        line(&["no-hide"], "fs", "list={ws}/.ssh", NotRet(0)),
        // Namespaces.
        line(&["no-netns", "no-landlock"], "ipc_net", "tcp_connect=127.0.0.1,{port}", Errno("OK")),
        line(&["no-netns", "no-landlock"], "ipc_net", "abstract_stream={abstract}", Errno("OK")),
        line(&["no-netns"], "ipc_net", "interfaces", NotRet(0)).where_host_has_links(),
        line(&["no-pidns"], "procs", "kill_host_0={pid}", Not("ESRCH")),
        line(&["no-pidns"], "procs", "getpgid_host={pid}", Errno("OK")),
        // Keyring: seccomp is the second lock.
        line(&["no-keyring", "no-seccomp"], "syscalls", "keyctl_search_user", Errno("OK")),
        line(&["no-groups"], "privilege", "groups", NotRet(0)).privileged(),
        // Limits.
        line(&["no-limits"], "procs", "forks=200", Errno("OK")).privileged(),
        line(&["no-limits"], "limits", "memory_single=96", Errno("OK")).privileged(),
        // procfs.
        // /proc/keys shows nobody whose uid is not mapped, masked or not: kallsyms tells.
        line(&["no-proc-mask"], "proc_dev", "mask_read=/proc/kallsyms", NotRet(0)),
        line(&["no-dumpable"], "proc_dev", "init_environ", Not("EPERM|ENOENT")).rootless(),
        // An unprivileged filter and Landlock both insist on it.
        line(&["no-nnp", "no-seccomp", "no-landlock"], "privilege", "no_new_privs", NotRet(1)),
        line(&["no-session"], "proc_dev", "session", NotRet(0)),
    ]
}

/// When a line can be told at all.
impl Line {
    /// Only as inside-root: execve takes capabilities from every other uid.
    #[allow(clippy::wrong_self_convention, reason = "a builder reads better so")]
    fn as_root(mut self) -> Self {
        self.users = &[Inside::Root];
        self
    }
    /// Only when root runs stockade.
    fn privileged(mut self) -> Self {
        self.needs = Needs::Privileged;
        self
    }
    /// Only when an ordinary user does: there init has the command's own id, and one lock fewer.
    fn rootless(mut self) -> Self {
        self.needs = Needs::Rootless;
        self
    }
    /// Only where the host has an interface besides `lo`.
    fn where_host_has_links(mut self) -> Self {
        self.needs = Needs::Links;
        self
    }
    fn can_be_told(&self) -> bool {
        match self.needs {
            Needs::Nothing => true,
            Needs::Privileged => root(),
            Needs::Rootless => !root(),
            Needs::Links => {
                let table = fs::read_to_string("/proc/net/dev").unwrap_or_default();
                table.lines().filter(|l| l.contains(':')).count() > 1
            }
        }
    }
}

struct Stage {
    ws: Workspace,
    listener: std::net::TcpListener,
    _abstract: std::os::unix::net::UnixListener,
    abstract_name: String,
    sentinel: std::process::Child,
    bait: Workspace,
}

impl Stage {
    fn new() -> Self {
        use std::os::linux::net::SocketAddrExt;
        let ws = Workspace::new("mutant");
        ws.file(".env", "TOKEN=1");
        ws.file(".ssh/key", "k");
        ws.file(".git/config", "[core]\n");
        ws.dir(".git/hooks");
        ws.file("f", "");
        ws.dir("d");
        let bait = Workspace::new("mutant-bait");
        bait.file("file", "host-secret");
        let abstract_name = unique("mutant");
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&abstract_name).unwrap();
        Self {
            ws,
            listener: std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            _abstract: std::os::unix::net::UnixListener::bind_addr(&address).unwrap(),
            abstract_name,
            sentinel: std::process::Command::new("sleep").arg("120").spawn().unwrap(),
            bait,
        }
    }

    fn fill(&self, case: &str) -> String {
        case.replace("{ws}", self.ws.path().to_str().unwrap())
            .replace("{port}", &self.listener.local_addr().unwrap().port().to_string())
            .replace("{abstract}", &self.abstract_name)
            .replace("{pid}", &self.sentinel.id().to_string())
    }

    /// The case's line with these protections off.
    fn case(&self, line: &Line, off: &[&str], inside: Inside) -> Result<Case, String> {
        let mut sandbox =
            Sandbox::new(&self.ws).inside(inside).guarded(2 << 30, 2000).options(["--timeout", "20s"]);
        // Always in the same circumstances, with and without the mutants.
        let launcher = [
            common::text(&common::fixture("bait")),
            self.bait.at("file"),
            common::text(self.bait.path()),
            "--".into(),
        ];
        sandbox = sandbox.launcher(launcher).set("limits.processes", 48).set("limits.memory", "64MiB");
        if !off.is_empty() {
            for name in off.iter().chain(&["no-verify"]) {
                sandbox = sandbox.option("--mutant").option(name);
            }
        }
        let argument = self.fill(line.case);
        let label = argument.split('=').next().unwrap().to_owned();
        let run = sandbox.run([self.ws.fixture(line.fixture), argument]);
        let cases = common::Cases::of(&run.stdout);
        cases
            .0
            .get(&label)
            .cloned()
            .ok_or_else(|| format!("no line: {} {}", run.json["outcome"], run.raw.err()))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.sentinel.kill();
        let _ = self.sentinel.wait();
    }
}

#[test]
fn every_protection_is_watched() {
    let mut wrong = Vec::new();
    for line in table() {
        if !line.can_be_told() {
            continue;
        }
        for &inside in line.users {
            let what = format!("{} {:?} {inside:?}", line.case, line.off);
            // A stage of its own for each: mutants may change the workspace.
            let with = Stage::new().case(&line, &[], inside);
            let without = Stage::new().case(&line, line.off, inside);
            match (with, without) {
                (Ok(with), Ok(without)) => {
                    let caught = match line.flip {
                        Flip::Errno(errno) => with.errno != errno && without.errno == errno,
                        Flip::Not(errno) => {
                            errno.split('|').any(|e| e == with.errno)
                                && !errno.split('|').any(|e| e == without.errno)
                        }
                        Flip::NotRet(ret) => with.ret == ret && without.ret != ret,
                    };
                    if !caught {
                        wrong.push(format!("{what}: with {with:?}, without {without:?}"));
                    }
                }
                (with, without) => wrong.push(format!("{what}: with {with:?}, without {without:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} mutants live:\n{}", wrong.len(), wrong.join("\n"));
}

/// With the canaries on, a mutant does not even start: refused, exit 125.
#[test]
fn the_canaries_notice_too() {
    let ws = Workspace::new("canaries");
    let mut wrong = Vec::new();
    for off in [
        "no-seccomp",
        "no-landlock",
        "no-caps",
        "no-second-unshare",
        "no-readonly",
        "no-netns",
        "no-pidns",
        "no-nnp",
        "no-proc-mask",
        "no-dumpable",
        "no-keyring",
        "no-groups",
    ] {
        // Only where it makes a difference: root's init has another id than the command, dumpable or not.
        if off == "no-dumpable" && root() {
            continue;
        }
        let dir = Workspace::new("canaries-bait");
        let launcher = [
            common::text(&common::fixture("bait")),
            dir.file("file", "x"),
            common::text(dir.path()),
            "--".into(),
        ];
        let run =
            Sandbox::new(&ws).launcher(launcher).options(["--mutant", off, "--verify", "live"]).run(["true"]);
        let protections: Vec<_> = run.json["enforcement"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|e| e["got"] != "enforced" && e["got"] != "not_asked")
            .map(|e| e["protection"].to_string())
            .collect();
        // Required: refused. Preferred: the gap is in the record.
        if run.raw.code() != 125 && protections.is_empty() {
            wrong.push(format!("{off}: exit {} and everything enforced", run.raw.code()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

//! Mutants (20-sandbox §5): with one protection switched off and all others on, the hostile cases that claim to
//! watch it must notice. Where other layers still stop the attempt, the line names them and says how, and all of them
//! are off together: the case is then shown to be able to see. That each of them alone does stop it is tried as well.
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
    /// It succeeds; with the protection this limit ends the run, whether or not the case still says a word.
    Unlimited(&'static str),
}

/// Who can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Privileged,
    Rootless,
    Limits,
    NewPrivileges,
    Links,
}

struct Line {
    /// Protections off together.
    off: &'static [&'static str],
    fixture: &'static str,
    /// Case and parameter; `{ws}` is the workspace, `{port}` and `{abstract}` host listeners, `{pid}` a host process.
    case: &'static str,
    flip: Flip,
    /// With several protections off: how each of them stops the attempt by itself.
    layers: &'static str,
    needs: Needs,
    users: &'static [Inside],
    /// In a mount namespace of its own in which everything is shared, as on most hosts.
    shared: bool,
}

const fn line(off: &'static [&'static str], fixture: &'static str, case: &'static str, flip: Flip) -> Line {
    Line { off, fixture, case, flip, layers: "", needs: Needs::Nothing, users: &BOTH, shared: false }
}

fn table() -> Vec<Line> {
    use Flip::{Errno, Not, NotRet, Unlimited};
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
        line(&["no-seccomp"], "procs", "prlimit_child", Errno("OK")),
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
        // The mount calls.
        line(&MOUNT_LAYERS, "mounts", "mount_tmpfs={ws}/d", Errno("OK")).as_root().behind(MOUNT_WHY),
        line(&MOUNT_LAYERS, "mounts", "bind_rec={ws}/d", Errno("OK")).as_root().behind(MOUNT_WHY),
        line(&["no-seccomp", "no-caps"], "mounts", "fsopen_tmpfs", Errno("OK"))
            .as_root()
            .behind("the filter refuses the call; it needs CAP_SYS_ADMIN"),
        line(&["no-seccomp", "no-caps"], "mounts", "chroot=/", Errno("OK"))
            .as_root()
            .behind("the filter refuses the call; it needs CAP_SYS_CHROOT"),
        // Capabilities.
        line(&["no-caps"], "privilege", "caps_in_status", NotRet(0)),
        line(&["no-caps"], "privilege", "capget", NotRet(0)).as_root(),
        line(&["no-caps"], "privilege", "bounding", NotRet(0)),
        line(&["no-caps"], "privilege", "securebits", NotRet(0b1110_1111)),
        // The second namespace: without it, and the three above, inside-root undoes read-only mounts.
        line(&LOCK_LAYERS, "mounts", "remount_rw_usr", Errno("OK")).as_root().behind(LOCK_WHY),
        line(&LOCK_LAYERS, "mounts", "umount_usr", Errno("OK")).as_root().behind(LOCK_WHY),
        // Landlock has no hook for this one.
        line(&["no-seccomp", "no-caps", "no-second-unshare"], "mounts", "mount_setattr_rw=/usr", Errno("OK"))
            .as_root()
            .behind("the filter refuses the call; it needs CAP_SYS_ADMIN; the flag is locked"),
        // Landlock: what the mounts and ids allow and the rules do not.
        line(&["no-landlock", "no-seccomp"], "ipc_net", "mq_own", Errno("OK"))
            .behind("the filter refuses the call; no rule of Landlock can name a queue's file system"),
        line(&["no-landlock"], "procs", "kill_init", Not("EPERM")).rootless(),
        // Descriptors.
        line(&["no-close-range"], "proc_dev", "open_descriptors", NotRet(0)),
        // Mount table.
        line(&["no-readonly"], "mounts", "table_readonly=/usr", NotRet(0)),
        line(&["no-readonly"], "mounts", "table_readonly=/", NotRet(0)),
        line(&["no-readonly"], "fs", "create=/etc/stockade-mutant", Not("EROFS")),
        line(&ROOT_LAYERS, "fs", "create=/etc/stockade-mutant", Errno("OK")).as_root().privileged().behind(
            "the root is read-only; no rule of Landlock allows it; it belongs to init, and overriding that needs \
             CAP_DAC_OVERRIDE in init's namespace",
        ),
        line(&["no-protect"], "fs", "open_write={ws}/.git/config", Errno("OK")),
        line(&["no-protect"], "fs", "create={ws}/.git/hooks/new", Errno("OK")),
        line(&["no-protect"], "fs", "rename={ws}/.git,{ws}/gone", Errno("OK")),
        line(&["no-hide"], "fs", "read={ws}/.env", NotRet(0)),
        line(&["no-hide"], "fs", "list={ws}/.ssh", NotRet(0)),
        // Propagation: without the cut a mount of the host's appears inside, later on.
        line(&["no-private-trees"], "mounts", "table_propagation", NotRet(0)).where_all_is_shared().privileged(),
        line(&["no-private", "no-private-trees"], "mounts", "table_propagation", NotRet(0))
            .where_all_is_shared()
            .rootless()
            .behind("a tree cloned in a namespace that is private is so too; each tree is made private by itself"),
        // Namespaces.
        line(&["no-netns"], "ipc_net", "tcp_connect=127.0.0.1,{port}", Errno("OK")),
        line(&["no-netns", "no-landlock"], "ipc_net", "abstract_stream={abstract}", Errno("OK"))
            .behind("the name is one of another network namespace; Landlock's scope"),
        line(&["no-netns"], "ipc_net", "interfaces", NotRet(0)).where_host_has_links(),
        line(&["no-pidns"], "procs", "getpgid_host={pid}", Errno("OK")),
        line(&["no-pidns"], "procs", "kill_host_0={pid}", Not("ESRCH")),
        line(&["no-pidns", "no-landlock"], "procs", "kill_host_0={pid}", Errno("OK"))
            .rootless()
            .behind("no such process in the namespace; Landlock's scope"),
        // Keyring.
        line(&["no-keyring", "no-seccomp"], "syscalls", "keyctl_search_user", Errno("OK"))
            .behind("a fresh keyring has no such key; the filter refuses the call"),
        line(&["no-groups"], "privilege", "groups", NotRet(0)).privileged(),
        // Limits.
        line(&["no-limits"], "procs", "forks=200", Errno("OK")).limits(),
        line(&["no-limits"], "limits", "memory_single=96", Unlimited("memory")).limits(),
        // procfs.
        // /proc/keys shows nobody whose uid is not mapped, masked or not: kallsyms tells.
        line(&["no-proc-mask"], "proc_dev", "mask_read=/proc/kallsyms", NotRet(0)),
        line(&INIT_LAYERS, "proc_dev", "init_environ", Errno("OK")).as_root().behind(
            "init is not dumpable; it has more capabilities than the command, in a namespace above; it is outside the \
             Landlock domain",
        ),
        line(&["no-nnp", "no-seccomp", "no-landlock"], "privilege", "no_new_privs", NotRet(1))
            .with_new_privileges()
            .behind("an unprivileged filter insists on it, and so does a Landlock domain: neither starts without"),
        line(&["no-session"], "proc_dev", "session", NotRet(0)),
    ]
}

const MOUNT_LAYERS: [&str; 3] = ["no-seccomp", "no-caps", "no-landlock"];
const MOUNT_WHY: &str =
    "the filter refuses the call; it needs CAP_SYS_ADMIN; Landlock forbids changes of the tree";
const LOCK_LAYERS: [&str; 4] = ["no-seccomp", "no-caps", "no-landlock", "no-second-unshare"];
const LOCK_WHY: &str =
    "as with the mount calls; and what came from a more privileged namespace is locked as it stands";
const ROOT_LAYERS: [&str; 4] = ["no-readonly", "no-landlock", "no-caps", "no-second-unshare"];
const INIT_LAYERS: [&str; 4] = ["no-dumpable", "no-caps", "no-second-unshare", "no-landlock"];

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
    /// Only where limits hold for this user.
    fn limits(mut self) -> Self {
        self.needs = Needs::Limits;
        self
    }
    /// How each of the protections stops the attempt.
    fn behind(mut self, layers: &'static str) -> Self {
        self.layers = layers;
        self
    }
    /// Only where the host has an interface besides `lo`.
    fn where_host_has_links(mut self) -> Self {
        self.needs = Needs::Links;
        self
    }
    /// Below a mount that is shared.
    fn where_all_is_shared(mut self) -> Self {
        self.shared = true;
        self
    }
    /// Only where this process has not given up new privileges itself.
    fn with_new_privileges(mut self) -> Self {
        self.needs = Needs::NewPrivileges;
        self
    }
}

impl Needs {
    fn met(self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Privileged => root(),
            Self::Rootless => !root(),
            Self::Limits => common::limits_hold(),
            Self::NewPrivileges => rustix::thread::no_new_privs() == Ok(false),
            Self::Links => {
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

    /// What is seen of the case with these protections off.
    fn attempt(&self, line: &Line, off: &[&str], inside: Inside) -> Seen {
        let mut sandbox =
            Sandbox::new(&self.ws).inside(inside).guarded(2 << 30, 2000).options(["--timeout", "20s"]);
        // Always in the same circumstances, with and without the mutants.
        let launcher = [
            common::text(&common::fixture("bait")),
            self.bait.at("file"),
            common::text(self.bait.path()),
            "--".into(),
        ];
        let shared = if line.shared {
            common::with_mounts("mount --make-rshared / && exec \"$@\"")
        } else {
            Vec::new()
        };
        let launcher: Vec<String> = shared.into_iter().chain(launcher).collect();
        sandbox = sandbox.launcher(launcher).set("limits.processes", 48).set("limits.memory", "64MiB");
        if !off.is_empty() {
            for name in off.iter().chain(&["no-verify"]) {
                sandbox = sandbox.option("--mutant").option(name);
            }
        }
        let argument = self.fill(line.case);
        let label = argument.split('=').next().unwrap().to_owned();
        let run = sandbox.run([self.ws.fixture(line.fixture), argument]);
        Seen {
            case: common::Cases::of(&run.stdout).0.remove(&label),
            limit: run.limit().map(str::to_owned),
            refused: run.kind() == "refused",
            outcome: format!("{} {}", run.json["outcome"], run.raw.err()),
        }
    }
}

/// What came of an attempt.
#[derive(Debug)]
#[expect(dead_code, reason = "`outcome` is for whoever reads the failure")]
struct Seen {
    case: Option<Case>,
    limit: Option<String>,
    refused: bool,
    outcome: String,
}

impl Flip {
    /// As with all protections.
    fn held(&self, seen: &Seen) -> bool {
        let case = |f: &dyn Fn(&Case) -> bool| seen.case.as_ref().is_some_and(f);
        match *self {
            Self::Errno(errno) => case(&|c| c.errno != errno),
            Self::Not(errno) => case(&|c| c.errno == errno),
            Self::NotRet(ret) => case(&|c| c.ret == ret),
            Self::Unlimited(name) => seen.limit.as_deref() == Some(name),
        }
    }

    /// As without.
    fn gone(&self, seen: &Seen) -> bool {
        let case = |f: &dyn Fn(&Case) -> bool| seen.case.as_ref().is_some_and(f);
        match *self {
            Self::Errno(errno) => case(&|c| c.errno == errno),
            Self::Not(errno) => case(&|c| c.errno != errno),
            Self::NotRet(ret) => case(&|c| c.ret != ret),
            Self::Unlimited(_) => seen.limit.is_none() && case(&|c| c.errno == "OK"),
        }
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
    let (mut wrong, mut caught, mut untold) = (Vec::new(), 0, 0);
    for line in table() {
        assert_eq!(line.off.len() > 1, !line.layers.is_empty(), "{}: why these layers?", line.case);
        if !line.needs.met() {
            untold += 1;
            common::skip(&format!("{} {:?} needs {:?}", line.case, line.off, line.needs));
            continue;
        }
        for &inside in line.users {
            // A stage of its own for each: mutants may change the workspace.
            let attempt = |off: &[&str]| Stage::new().attempt(&line, off, inside);
            let before = wrong.len();
            let mut judge = |off: &[&str], want: &str, good: &dyn Fn(&Seen) -> bool| {
                let seen = attempt(off);
                if !good(&seen) {
                    wrong.push(format!("{} {inside:?} without {off:?}: not {want}: {seen:?}", line.case));
                }
            };
            judge(&[], "held", &|seen| line.flip.held(seen));
            judge(line.off, "gone", &|seen| line.flip.gone(seen));
            // Each of several layers is enough by itself: held, or the command does not start.
            for alone in line.off.iter().filter(|_| line.off.len() > 1) {
                let others: Vec<&str> = line.off.iter().filter(|o| *o != alone).copied().collect();
                judge(&others, "held", &|seen| line.flip.held(seen) || seen.refused);
            }
            caught += usize::from(wrong.len() == before);
        }
    }
    eprintln!("mutants: {caught} caught, {} live, {untold} lines not to be told here", wrong.len());
    assert!(wrong.is_empty(), "{} mutants live:\n{}", wrong.len(), wrong.join("\n"));
}

/// No switch without a line: a protection that nobody watches would be one that may go unnoticed.
#[test]
fn every_switch_has_a_line() {
    for (_, name) in stockade::sandbox::Mutant::ALL {
        // Without the canaries: every line of the table runs so.
        // That of caches has a test of its own below.
        let apart = ["no-verify", "no-cache-layer"].contains(name);
        let watched = apart || table().iter().any(|line| line.off.contains(name));
        assert!(watched, "{name}");
    }
}

/// With the canaries on, a mutant does not pass for the whole: the protection is not reported as enforced, and one
/// that is required refuses the start.
#[test]
fn the_canaries_notice_too() {
    let ws = Workspace::new("canaries");
    ws.file(".env", "TOKEN=1");
    ws.file(".git/config", "[core]\n");
    // The first is what the protection hangs on; the others would still keep its canary from noticing.
    let table: [(&[&str], &str, Needs); 16] = [
        (&["no-seccomp"], "seccomp", Needs::Nothing),
        (&["no-landlock"], "landlock_fs", Needs::Nothing),
        (&["no-caps"], "capabilities", Needs::Nothing),
        (&["no-second-unshare"], "mounts", Needs::Nothing),
        (&["no-readonly"], "mounts", Needs::Nothing),
        (&["no-close-range"], "mounts", Needs::Nothing),
        (&["no-protect"], "mounts", Needs::Nothing),
        (&["no-hide"], "mounts", Needs::Nothing),
        (&["no-netns"], "namespaces", Needs::Nothing),
        (&["no-pidns"], "namespaces", Needs::Nothing),
        (&["no-keyring"], "ids", Needs::Nothing),
        (&["no-groups"], "ids", Needs::Privileged),
        (&["no-proc-mask"], "proc", Needs::Nothing),
        (&INIT_LAYERS, "proc", Needs::Nothing),
        (&["no-nnp"], "capabilities", Needs::NewPrivileges),
        (&["no-limits"], "limit_memory", Needs::Limits),
    ];
    let mut wrong = Vec::new();
    for (off, protection, needs) in table {
        if !needs.met() {
            common::skip(&format!("canaries {off:?} need {needs:?}"));
            continue;
        }
        let enforced = |off: &[&str]| {
            let dir = Workspace::new("canaries-bait");
            let launcher = [
                common::text(&common::fixture("bait")),
                dir.file("file", "x"),
                common::text(dir.path()),
                "--".into(),
            ];
            let mutants = off.iter().flat_map(|name| ["--mutant", name]);
            let run = Sandbox::new(&ws)
                .launcher(launcher)
                .options(mutants)
                .options(["--verify", "live"])
                .set("identity.user", "root")
                .run(["true"]);
            // A stage that fails refuses as well, without a report.
            let (asked, got) = run.enforcement(protection).unwrap_or_default();
            let ran = got != "enforced" && asked == "require" && run.kind() != "refused";
            assert!(!ran, "{off:?}: {protection} is {got}, and the command ran");
            got == "enforced"
        };
        if enforced(off) {
            wrong.push(format!("without {off:?} {protection} is enforced"));
        }
        if !enforced(&off[1..]) {
            wrong.push(format!("without {:?} {protection} is not enforced", &off[1..]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A cache of the host is behind two locks: the layer over it, and the mount below that is read-only.
#[test]
fn a_cache_without_its_locks() {
    let (ws, home) = (Workspace::new("cache-mutants"), Workspace::new("cache-mutants-home"));
    home.file(".npm/package", "x");
    home.file(".cargo/credentials.toml", "secret\n");
    let run = |off: &[&str], script: &str| {
        let mut sandbox =
            Sandbox::new(&ws).profile("build").env("HOME", home.path()).without_env("CARGO_HOME");
        sandbox = sandbox.options(["--verify", "live"]);
        for name in off {
            sandbox = sandbox.option("--mutant").option(name);
        }
        sandbox.run(common::bash(script))
    };
    let write = "echo x > $npm_config_cache/new && echo written";
    for (off, written, reaches) in [
        (&["no-verify"][..], "written\n", false),
        (&["no-verify", "no-readonly"], "written\n", false),
        (&["no-verify", "no-cache-layer"], "", false),
        (&["no-verify", "no-cache-layer", "no-readonly"], "written\n", true),
    ] {
        let run = run(off, write);
        assert_eq!(run.out(), written, "{off:?}: {} {}", run.err(), run.json["outcome"]);
        assert_eq!(home.path().join(".npm/new").exists(), reaches, "{off:?}");
    }
    // The canary sees it.
    let seen = run(&["no-cache-layer"], "true").enforcement("caches");
    assert_eq!(seen, Some(("prefer".into(), "absent".into())));
    let read = "cat $CARGO_HOME/credentials.toml";
    assert_eq!(run(&["no-verify"], read).out(), "");
    assert_eq!(run(&["no-verify", "no-hide"], read).out(), "secret\n");
    // The third, for namespaces, is the filter's.
    let unshare = "unshare -U true 2>/dev/null && echo made";
    assert_eq!(run(&["no-verify"], unshare).out(), "");
    assert_eq!(run(&["no-verify", "no-seccomp"], unshare).out(), "made\n");
}

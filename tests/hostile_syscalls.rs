//! The system-call surface (20-sandbox §4; threats I; 70-quality alternate routes).

mod common;

use common::{Row, Workspace, allow, check, deny, observe};

/// Known dangerous calls: EPERM. The control says what an uncontained (or unconfined) program sees.
#[test]
fn dangerous_calls_are_refused() {
    let bpf_is_closed = !common::root()
        && std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled")
            .is_ok_and(|t| t.trim() != "0");
    let ws = Workspace::new("danger");
    let rows: Vec<Row> = vec![
        deny("perf_event_open", "EPERM").outside("EFAULT"),
        if bpf_is_closed {
            deny("bpf_map_create", "EPERM").no_control("kernel.unprivileged_bpf_disabled is set")
        } else {
            deny("bpf_map_create", "EPERM").outside("EINVAL")
        },
        deny("bpf_prog_load", "EPERM").no_control("see bpf_map_create"),
        deny("userfaultfd", "EPERM").outside("OK"),
        deny("ptrace_traceme", "EPERM").outside("OK"),
        deny("ptrace_attach_init", "EPERM").no_control("attaching to the host's init is not tried"),
        deny("ptrace_seize_init", "EPERM").no_control("attaching to the host's init is not tried"),
        deny("ptrace_high_bits", "EPERM").outside("ESRCH"),
        deny("process_vm_readv_self", "EPERM").outside("OK"),
        deny("process_vm_writev_self", "EPERM").outside("OK"),
        deny("process_vm_readv_init", "EPERM").no_control("the host's init is not read"),
        deny("kcmp_self", "EPERM").outside("OK"),
        deny("kcmp_init", "EPERM").no_control("see kcmp_self"),
        deny("pidfd_getfd_init", "EPERM").in_userns("OK"),
        deny("pidfd_getfd_self", "EPERM").outside("OK"),
        deny("pidfd_getfd_bad", "EPERM").outside("EBADF"),
        allow("pidfd_open_self"),
        deny("keyctl_session_id", "EPERM").outside("OK"),
        deny("keyctl_search_user", "EPERM").outside("ENOKEY"),
        deny("keyctl_join", "EPERM").outside("OK"),
        deny("add_key", "EPERM").outside("OK"),
        deny("request_key", "EPERM").outside("ENOKEY"),
        deny("fanotify_init", "EPERM").no_control("needs the host's root"),
        deny("fanotify_mark", "EPERM").outside("EINVAL"),
        deny("kexec_load", "EPERM").no_control("not tried on the host"),
        deny("kexec_file_load", "EPERM").no_control("not tried on the host"),
        deny("init_module", "EPERM").no_control("this kernel has no modules"),
        deny("finit_module", "EPERM").no_control("this kernel has no modules"),
        deny("delete_module", "EPERM").no_control("this kernel has no modules"),
        deny("create_module", "EPERM").outside("ENOSYS"),
        deny("reboot", "EPERM").no_control("not tried on the host"),
        deny("swapon", "EPERM").no_control("not tried on the host"),
        deny("acct", "EPERM").no_control("not tried on the host"),
        deny("settimeofday", "EPERM").outside("EFAULT"),
        deny("clock_settime", "EPERM").outside("EFAULT"),
        deny("clock_adjtime_write", "EPERM").outside("EFAULT"),
        deny("adjtimex_null", "EPERM").outside("EFAULT"),
        deny("iopl", "EPERM").no_control("this kernel has no port access"),
        deny("ioperm", "EPERM").no_control("this kernel has no port access"),
        deny("vhangup", "EPERM").no_control("not tried on the host"),
        deny("sethostname", "EPERM").in_userns("OK"),
        deny("setdomainname", "EPERM").in_userns("OK"),
        deny("syslog", "EPERM").no_control("depends on dmesg_restrict"),
        deny("uselib", "EPERM").outside("ENOSYS"),
        deny("nfsservctl", "EPERM").outside("ENOSYS"),
        deny("sysfs2", "EPERM").outside("OK"),
        deny("modify_ldt", "EPERM").outside("OK"),
        deny("migrate_pages", "EPERM").outside("EINVAL"),
        deny("move_pages", "EPERM").outside("OK"),
        deny("open_tree_attr", "EPERM").no_control("an uncontained call fails on its arguments"),
        allow("getpid_plain"),
        allow("getrandom_plain"),
        allow("landlock_create_version"),
        deny("vmsplice_bad", "EBADF").outside("EBADF"),
    ];
    check("syscalls", &ws, &rows, |s| s);
}

/// Unlisted or newer calls: ENOSYS, so that programs fall back.
#[test]
fn unlisted_calls_do_not_exist() {
    let ws = Workspace::new("unlisted");
    let rows = vec![
        deny("io_uring_setup", "ENOSYS").outside("OK"),
        deny("io_uring_enter", "ENOSYS").outside("EBADF"),
        deny("io_uring_register", "ENOSYS").outside("EINVAL|EBADF"),
        deny("io_setup", "ENOSYS").outside("OK"),
        deny("io_submit", "ENOSYS").outside("EINVAL"),
        deny("memfd_secret", "ENOSYS").outside("OK"),
        deny("remap_file_pages", "ENOSYS").outside("EINVAL"),
        deny("ustat", "ENOSYS").outside("EINVAL"),
        deny("lookup_dcookie", "ENOSYS").outside("ENOSYS"),
        deny("process_mrelease", "ENOSYS").outside("EBADF"),
        deny("lsm_list_modules", "ENOSYS").outside("EFAULT"),
        deny("lsm_set_self_attr", "ENOSYS").outside("EINVAL"),
        deny("file_setattr", "ENOSYS").no_control("an uncontained call fails on its arguments"),
        deny("listns", "ENOSYS").outside("ENOSYS|EFAULT"),
        observe("newer_calls", 0),
        observe("absurd_numbers", 0),
        allow("getpid_plain"),
    ];
    check("syscalls", &ws, &rows, |s| s);
}

#[test]
fn personas_are_refused() {
    let ws = Workspace::new("persona");
    let rows = vec![
        allow("personality_query"),
        allow("personality_linux"),
        deny("personality_no_randomize", "EPERM").outside("OK"),
        deny("personality_read_implies_exec", "EPERM").outside("OK"),
        deny("personality_linux32", "EPERM").outside("OK"),
        deny("personality_high_bits", "EPERM").outside("OK"),
    ];
    check("syscalls", &ws, &rows, |s| s);
}

/// Foreign call tables: i386 kills, x32 does not exist.
#[cfg(target_arch = "x86_64")]
#[test]
fn foreign_call_tables_are_closed() {
    let ws = Workspace::new("foreign");
    let rows = vec![
        deny("int80_getpid", "SIGSYS").outside("OK"),
        deny("int80_unshare", "SIGSYS").outside("OK"),
        deny("int80_clone", "SIGSYS").outside("OK"),
        deny("int80_keyctl", "SIGSYS").no_control("see int80_getpid"),
        deny("int80_io_uring_setup", "SIGSYS").outside("EFAULT"),
        deny("int80_socketcall_vsock", "SIGSYS").outside("OK"),
        deny("x32_getpid", "ENOSYS").no_control("this kernel has no x32"),
        deny("x32_socket", "ENOSYS").no_control("this kernel has no x32"),
        deny("x32_unshare", "ENOSYS").no_control("this kernel has no x32"),
        deny("x32_ptrace", "ENOSYS").no_control("this kernel has no x32"),
        deny("x32_execve", "ENOSYS").no_control("this kernel has no x32"),
        deny("x32_ioctl", "ENOSYS").no_control("this kernel has no x32"),
        allow("getpid_plain"),
    ];
    check("syscalls", &ws, &rows, |s| s);
}

/// Code from no file system is allowed to run, and is as confined as any other.
#[test]
fn memfd_code_is_as_confined() {
    let ws = Workspace::new("memfd");
    let rows = vec![deny("memfd_fexecve", "EPERM").outside("OK"), allow("execveat_empty_path")];
    check("syscalls", &ws, &rows, |s| s);
}

/// `strict` leaves even less.
#[test]
fn strict_has_no_sockets_at_all() {
    if !common::needs(common::limits_hold(), "strict requires limits; no delegated cgroup")
        || !common::needs_landlock(6)
    {
        return;
    }
    let ws = Workspace::new("strict-sockets");
    let rows = vec![
        deny("socket_tcp", "ENOSYS").outside("OK"),
        deny("socket_udp", "ENOSYS").outside("OK"),
        deny("socket_tcp6", "ENOSYS").outside("OK"),
        deny("socket_unix", "ENOSYS").outside("OK"), // derived: the set `network` is not in strict
        deny("socket_packet", "ENOSYS").no_control("needs the host's root"),
        deny("socket_vsock", "ENOSYS").outside("OK"),
        deny("socket_netlink_route", "ENOSYS").outside("OK"),
        deny("shm_own", "ENOSYS").outside("OK"),
    ];
    check("ipc_net", &ws, &rows, |s| s.profile("strict"));
}

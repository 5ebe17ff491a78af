//! Sockets, networks and IPC objects (20-sandbox §4; 30-network; threats G, H, B36, A17).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;

use common::{Live, Sandbox, Workspace, allow, check, deny, home, observe, unique};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener};
use std::process::{Command, Stdio};

/// Families answer EAFNOSUPPORT, types EPERM, protocols EAFNOSUPPORT: what programs read as "not here".
#[test]
fn only_unix_internet_and_route_sockets_exist() {
    let ws = Workspace::new("families");
    let mut rows = vec![
        allow("socket_unix"),
        allow("socket_tcp"),
        allow("socket_tcp6"),
        allow("socket_udp"),
        allow("socket_netlink_route"),
        allow("socketpair_unix"),
        allow("socketpair_send"),
        allow("tcp_nodelay"),
        deny("socket_raw_icmp", "EPERM").beside("socket_udp"),
        deny("socket_raw_tcp", "EPERM").beside("socket_tcp"),
        deny("socket_type_flags_raw", "EPERM").beside("socket_udp"),
        deny("socket_packet_old", "EPERM").beside("socket_udp"),
        deny("socket_ping", "EAFNOSUPPORT").beside("socket_udp"),
        deny("socket_packet", "EAFNOSUPPORT").beside("socket_udp"),
        deny("socket_mptcp", "EAFNOSUPPORT").outside("OK"),
        deny("socket_mptcp6", "EAFNOSUPPORT").outside("OK"),
        deny("socket_mptcp_high_bits", "EAFNOSUPPORT").outside("OK"),
        deny("socket_family_high_bits", "EAFNOSUPPORT").outside("OK"),
        deny("socket_vsock", "EAFNOSUPPORT").outside("OK"),
        deny("socket_sctp", "EAFNOSUPPORT").outside("EPROTONOSUPPORT"),
        // A type that is neither stream nor datagram comes first. derived
        deny("socket_sctp_seq", "EPERM").outside("ESOCKTNOSUPPORT"),
        deny("socket_dccp", "EPERM").outside("ESOCKTNOSUPPORT"),
        deny("socket_udplite", "EAFNOSUPPORT").no_control("depends on the kernel's configuration"),
        deny("socket_l2tp", "EAFNOSUPPORT").no_control("depends on the kernel's configuration"),
        deny("socketpair_tipc", "EAFNOSUPPORT").no_control("depends on the kernel's configuration"),
        // A protocol behind a TCP socket: the option is refused before the kernel looks for it.
        deny("tcp_ulp", "ENOPROTOOPT").no_control("depends on the kernel's configuration"),
    ];
    for case in [
        "socket_netlink_sockdiag",
        "socket_netlink_uevent",
        "socket_netlink_generic",
        "socket_netlink_netfilter",
    ] {
        rows.push(deny(case, "EAFNOSUPPORT").beside("socket_netlink_route"));
    }
    for case in [
        "socket_netlink_xfrm",
        "socket_netlink_audit",
        "socket_netlink_crypto",
        "socket_alg",
        "socket_smc",
        "socket_key",
        "socket_can",
        "socket_bluetooth",
        "socket_tipc",
        "socket_rds",
        "socket_xdp",
        "socket_qipcrtr",
        "socket_kcm",
        "socket_ax25",
    ] {
        rows.push(
            deny(case, "EAFNOSUPPORT")
                .no_control("depends on the kernel's configuration; the families beside it are the controls"),
        );
    }
    check("ipc_net", &ws, &rows, |s| s);
}

/// Host listeners that a leak would reach, and the proof that nothing did.
#[test]
fn the_host_and_the_world_are_out_of_reach() {
    let ws = Workspace::new("reach");
    let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
    let v6 = TcpListener::bind("[::1]:0").ok();
    let any = TcpListener::bind("0.0.0.0:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    for listener in [&v4, &any] {
        listener.set_nonblocking(true).unwrap();
    }
    udp.set_nonblocking(true).unwrap();
    let words = |a: SocketAddr| format!("{},{}", a.ip(), a.port());
    let local = words(v4.local_addr().unwrap());
    let fast = |case: &str| {
        let row = deny(&format!("{case}_x:{case}"), "EOPNOTSUPP").with(local.clone());
        row.no_control("the listener would count it; tcp_fastopen_connect below takes the same route")
    };
    let mut rows = vec![
        deny("tcp_local:tcp_connect", "ECONNREFUSED").with(local.clone()).beside("loopback_tcp"),
        deny("tcp_any:tcp_connect", "ECONNREFUSED")
            .with(format!("127.0.0.1,{}", any.local_addr().unwrap().port()))
            .beside("loopback_tcp"),
        allow("loopback_tcp"),
        allow("loopback_tcp6"),
        observe("interfaces", 0),
        fast("tcp_fastopen"),
        fast("tcp_fastopen_sendmsg"),
        fast("tcp_fastopen_sendmmsg"),
        deny("tcp_fastopen_connect", "ECONNREFUSED").with(local.clone()).beside("loopback_tcp"), // derived
        deny("metadata:tcp_connect", "ENETUNREACH").with("169.254.169.254,80").beside("loopback_tcp"),
        deny("world4:tcp_connect", "ENETUNREACH").with("192.0.2.1,80").beside("loopback_tcp"),
        deny("world6:tcp_connect", "ENETUNREACH").with("2001:db8::1,80").beside("loopback_tcp6"),
        deny("world_udp:udp_connect_send", "ENETUNREACH").with("192.0.2.1,53").beside("loopback_tcp"),
        deny("multicast:udp_connect_send", "ENETUNREACH").with("224.0.0.251,5353").beside("loopback_tcp"),
        // The datagram goes to the sandbox's own loopback and to nobody.
        allow("udp_local:udp_connect_send").with(words(udp.local_addr().unwrap())),
    ];
    if let Some(v6) = &v6 {
        v6.set_nonblocking(true).unwrap();
        rows.push(
            deny("tcp_local6:tcp_connect", "ECONNREFUSED")
                .with(words(v6.local_addr().unwrap()))
                .beside("loopback_tcp6"),
        );
    }
    check("ipc_net", &ws, &rows, |s| s);
    for listener in [&v4, &any].into_iter().chain(v6.as_ref()) {
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "the host saw a connection");
    }
    assert_eq!(udp.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock, "the host saw a datagram");
    // The control: the same attempt without a sandbox arrives.
    let bare = common::outside("ipc_net", &[format!("tcp_connect={local}")]);
    assert_eq!(bare.errno("tcp_connect"), "OK");
    assert!(v4.accept().is_ok());
}

#[test]
fn abstract_and_path_sockets_of_the_host() {
    let ws = Workspace::new("unix");
    let abstract_name = unique("bait");
    let stream = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
    let datagram_name = unique("baitd");
    let datagram = UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(&datagram_name).unwrap()).unwrap();
    let path = home().join(unique("s"));
    let at_path = UnixListener::bind(&path).unwrap();
    let tmp_path = format!("/tmp/{}", unique("s"));
    let at_tmp = UnixDatagram::bind(&tmp_path).unwrap();
    for l in [&stream, &at_path] {
        l.set_nonblocking(true).unwrap();
    }
    for d in [&datagram, &at_tmp] {
        d.set_nonblocking(true).unwrap();
    }
    let path = path.to_str().unwrap().to_owned();
    let rows = vec![
        deny("abstract_stream", "ECONNREFUSED").with(abstract_name.clone()).beside("abstract_own"),
        deny("abstract_dgram", "ECONNREFUSED").with(datagram_name.clone()).beside("abstract_own"),
        deny("abstract_seqpacket", "ECONNREFUSED").with(abstract_name.clone()).beside("abstract_own"),
        deny("path_stream", "ENOENT").with(path.clone()).beside("path_own"),
        deny("path_dgram", "ENOENT").with(tmp_path.clone()).beside("path_own"),
        deny("docker:path_stream", "ENOENT").with("/var/run/docker.sock").beside("path_own"),
        deny("dbus:path_stream", "ENOENT").with("/run/dbus/system_bus_socket").beside("path_own"),
        allow("abstract_own"),
        allow("path_own").with("/tmp"),
        allow("path_own_ws:path_own").with("."),
        allow("scm_rights_own"),
        allow("socketpair_send"),
    ];
    check("ipc_net", &ws, &rows, |s| s);
    for l in [&stream, &at_path] {
        assert_eq!(l.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "the host saw a connection");
    }
    for d in [&datagram, &at_tmp] {
        assert_eq!(
            d.recv(&mut [0; 16]).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "the host saw a datagram"
        );
    }
    let bare = common::outside(
        "ipc_net",
        &[
            format!("abstract_stream={abstract_name}"),
            format!("abstract_dgram={datagram_name}"),
            format!("path_stream={path}"),
        ],
    );
    for case in ["abstract_stream", "abstract_dgram", "path_stream"] {
        assert_eq!(bare.errno(case), "OK", "the control of {case}");
    }
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(tmp_path).unwrap();
}

/// System V objects of the host, made by `ipcmk`, and their keys.
#[test]
fn ipc_objects_of_the_host() {
    let ws = Workspace::new("sysv");
    let make = |kind: &[&str]| -> Option<String> {
        let out = Command::new("ipcmk").args(kind).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.rsplit(' ').next().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())
    };
    let (Some(shm), Some(sem), Some(msg)) = (make(&["-M", "4096"]), make(&["-S", "1"]), make(&["-Q"])) else {
        common::skip("ipcmk is missing");
        return;
    };
    let key = |file: &str, id: &str| -> String {
        let table = std::fs::read_to_string(format!("/proc/sysvipc/{file}")).unwrap();
        let line = table.lines().find(|l| l.split_whitespace().nth(1) == Some(id)).unwrap();
        line.split_whitespace().next().unwrap().to_owned()
    };
    let rows = vec![
        deny("shm_attach_host", "ENOENT").with(key("shm", &shm)).outside("OK"),
        deny("sem_host", "ENOENT").with(key("sem", &sem)).outside("OK"),
        deny("msg_host", "ENOENT").with(key("msg", &msg)).outside("OK"),
        observe("shm_list", 0),
        allow("shm_own"),
        // The kernel's own mqueue mount has no place in the tree that a Landlock rule could name: no queues at all.
        deny("mq_own", "ENOSYS").outside("OK"),
        deny("mq_suid_mode", "ENOSYS").outside("OK"),
        deny("mq_host", "ENOSYS").with("/stockade-nobody").outside("ENOENT"),
    ];
    let outcome = std::panic::catch_unwind(|| check("ipc_net", &ws, &rows, |s| s));
    let _ = Command::new("ipcrm").args(["-m", &shm, "-s", &sem, "-q", &msg]).status();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Two sandboxes are as far from each other as from the host.
#[test]
fn two_sandboxes_do_not_meet() {
    let ws = Workspace::new("two");
    let marker = unique("two");
    let script = format!(
        "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.bind('\\0{marker}')\ns.listen()\nt=socket.socket()\nt.bind(('127.0.0.1',45454))\nt.listen()\nprint('ready',flush=True)\nsys.stdin.read()"
    );
    let mut first: Live =
        Sandbox::new(&ws).stdin(common::Input::Held).spawn(["/usr/bin/python3", "-c", &script]);
    first.expect_output("ready");
    let other = Workspace::new("two-b");
    let run = Sandbox::new(&other).run([
        other.fixture("ipc_net"),
        format!("abstract_stream={marker}"),
        "tcp_connect=127.0.0.1,45454".into(),
    ]);
    let cases = run.cases();
    assert_eq!(cases.errno("abstract_stream"), "ECONNREFUSED");
    assert_eq!(cases.errno("tcp_connect"), "ECONNREFUSED");
    drop(first.take_stdin());
    assert_eq!(first.finish(common::PATIENCE).code(), 0);
}

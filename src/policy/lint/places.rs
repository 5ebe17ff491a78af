//! Known places of a host, as words: what lies there, and how a path stands to it.

use super::{Is, Sight, Surroundings};
use crate::base::{HostPath, name_matches};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What kind of thing lies at a known place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The socket of something that starts programs with any right.
    Engine,
    /// A socket of the caller's or the system's session.
    Session,
    /// Stockade's own.
    Own,
    /// The kernel's own file systems.
    Kernel,
    /// Keys, credentials, passwords.
    Secret,
    /// What runs outside when it is changed.
    Runs,
}

/// `~` is a home, `@` a session's directory; `*` is within a component.
type Place = (&'static str, Kind, &'static str);

const PLACES: &[Place] = &[
    ("/run/docker.sock", Kind::Engine, "the Docker engine"),
    ("/run/docker/*.sock", Kind::Engine, "the Docker engine"),
    ("/run/docker/containerd/*.sock", Kind::Engine, "Docker's containerd"),
    ("/run/containerd/containerd.sock", Kind::Engine, "containerd"),
    ("/run/k3s/containerd/containerd.sock", Kind::Engine, "k3s' containerd"),
    ("/run/crio/crio.sock", Kind::Engine, "CRI-O"),
    ("/run/podman/podman.sock", Kind::Engine, "Podman"),
    ("/run/buildkit/buildkitd.sock", Kind::Engine, "BuildKit"),
    ("/run/libvirt/*-sock*", Kind::Engine, "libvirt"),
    ("/run/snapd*.socket", Kind::Engine, "snapd"),
    ("/var/lib/lxd/unix.socket", Kind::Engine, "LXD"),
    ("/var/snap/lxd/common/lxd/unix.socket", Kind::Engine, "LXD"),
    ("/var/lib/incus/unix.socket", Kind::Engine, "Incus"),
    ("/run/incus/unix.socket", Kind::Engine, "Incus"),
    ("@/docker.sock", Kind::Engine, "the caller's rootless Docker"),
    ("@/podman/podman.sock", Kind::Engine, "the caller's rootless Podman"),
    ("@/containerd/containerd.sock", Kind::Engine, "the caller's rootless containerd"),
    ("@/containerd-rootless/*", Kind::Engine, "the caller's rootless containerd"),
    ("@/buildkit/buildkitd.sock", Kind::Engine, "the caller's rootless BuildKit"),
    ("@/libvirt/*-sock*", Kind::Engine, "the caller's libvirt"),
    ("~/.docker/run/docker.sock", Kind::Engine, "the caller's Docker"),
    ("~/.docker/desktop/docker.sock", Kind::Engine, "Docker Desktop"),
    ("~/.rd/docker.sock", Kind::Engine, "Rancher Desktop"),
    ("~/.colima/*/docker.sock", Kind::Engine, "Colima"),
    ("/run/dbus/system_bus_socket", Kind::Session, "the system bus"),
    ("/run/systemd/private", Kind::Session, "systemd itself"),
    ("/run/systemd/journal/*", Kind::Session, "the journal"),
    ("/run/systemd/io.systemd.*", Kind::Session, "systemd's services"),
    ("/run/systemd/notify", Kind::Session, "systemd itself"),
    ("/dev/log", Kind::Session, "the system log"),
    ("@/bus", Kind::Session, "the session bus"),
    ("@/dbus-1", Kind::Session, "the session bus"),
    ("@/systemd/private", Kind::Session, "the caller's systemd"),
    ("@/systemd/notify", Kind::Session, "the caller's systemd"),
    ("@/wayland-*", Kind::Session, "the Wayland display"),
    ("@/sway-ipc.*", Kind::Session, "the window manager"),
    ("@/gnupg/S.*", Kind::Session, "gpg-agent"),
    ("@/keyring/*", Kind::Session, "the key ring"),
    ("@/gcr/ssh", Kind::Session, "ssh-agent"),
    ("@/ssh-agent*", Kind::Session, "ssh-agent"),
    ("@/openssh_agent", Kind::Session, "ssh-agent"),
    ("@/pipewire-*", Kind::Session, "sound and camera"),
    ("@/pulse/native", Kind::Session, "sound"),
    ("@/tmux-*", Kind::Session, "tmux"),
    ("/tmp/.X11-unix", Kind::Session, "the X11 display"),
    ("/tmp/.ICE-unix", Kind::Session, "the session manager"),
    ("/tmp/ssh-*", Kind::Session, "ssh-agent"),
    ("/tmp/dbus-*", Kind::Session, "the session bus"),
    ("/tmp/tmux-*", Kind::Session, "tmux"),
    ("~/.gnupg/S.*", Kind::Session, "gpg-agent"),
    ("~/.ssh/agent", Kind::Session, "ssh-agent"),
    ("~/.1password/agent.sock", Kind::Session, "1Password's agent"),
    ("/run/stockade*", Kind::Own, "Stockade's socket"),
    ("@/stockade*", Kind::Own, "Stockade's socket"),
    ("/var/lib/stockade", Kind::Own, "Stockade's state"),
    ("~/.local/state/stockade", Kind::Own, "Stockade's state"),
    ("/proc", Kind::Kernel, "procfs"),
    ("/sys", Kind::Kernel, "sysfs"),
    ("/sys/fs/cgroup", Kind::Kernel, "cgroupfs"),
    ("/sys/fs/bpf", Kind::Kernel, "pinned BPF objects"),
    ("/sys/kernel/debug", Kind::Kernel, "debugfs"),
    ("/sys/kernel/tracing", Kind::Kernel, "tracefs"),
    ("/sys/kernel/security", Kind::Kernel, "securityfs"),
    ("/sys/kernel/config", Kind::Kernel, "configfs"),
    ("/sys/firmware/efi/efivars", Kind::Kernel, "firmware variables"),
    ("/etc/shadow*", Kind::Secret, "password hashes"),
    ("/etc/gshadow*", Kind::Secret, "password hashes"),
    ("/etc/sudoers", Kind::Secret, "who may become root"),
    ("/etc/sudoers.d", Kind::Secret, "who may become root"),
    ("/etc/ssh/ssh_host_*_key", Kind::Secret, "the host's keys"),
    ("/etc/ssl/private", Kind::Secret, "private keys"),
    ("/etc/pki/tls/private", Kind::Secret, "private keys"),
    ("/etc/letsencrypt", Kind::Secret, "private keys"),
    ("/etc/krb5.keytab", Kind::Secret, "the host's Kerberos keys"),
    ("/etc/wireguard", Kind::Secret, "VPN keys"),
    ("/etc/openvpn", Kind::Secret, "VPN keys"),
    ("/etc/NetworkManager/system-connections", Kind::Secret, "network passwords"),
    ("/etc/kubernetes", Kind::Secret, "cluster credentials"),
    ("/etc/rancher", Kind::Secret, "cluster credentials"),
    ("/var/lib/kubelet", Kind::Secret, "cluster credentials"),
    ("/run/secrets", Kind::Secret, "a container's secrets"),
    ("/var/lib/docker", Kind::Secret, "other containers' files"),
    ("/var/lib/containerd", Kind::Secret, "other containers' files"),
    ("/var/lib/containers", Kind::Secret, "other containers' files"),
    ("~/.local/share/containers", Kind::Secret, "other containers' files"),
    ("~/.local/share/keyrings", Kind::Secret, "the key ring"),
    ("~/.password-store", Kind::Secret, "passwords"),
    ("~/.config/op", Kind::Secret, "1Password"),
    ("~/.config/containers/auth.json", Kind::Secret, "registry credentials"),
    ("~/.config/rclone", Kind::Secret, "storage credentials"),
    ("~/.npmrc", Kind::Secret, "registry tokens"),
    ("~/.terraform.d", Kind::Secret, "Terraform tokens"),
    ("~/.mozilla", Kind::Secret, "a browser's passwords and cookies"),
    ("~/.config/google-chrome", Kind::Secret, "a browser's passwords and cookies"),
    ("~/.config/chromium", Kind::Secret, "a browser's passwords and cookies"),
    ("~/.thunderbird", Kind::Secret, "mail"),
    ("/etc", Kind::Runs, "the system's configuration"),
    ("/usr", Kind::Runs, "the system's programs"),
    ("/bin", Kind::Runs, "the system's programs"),
    ("/sbin", Kind::Runs, "the system's programs"),
    ("/lib", Kind::Runs, "the system's libraries"),
    ("/lib64", Kind::Runs, "the system's libraries"),
    ("/boot", Kind::Runs, "the kernel"),
    ("/var/spool/cron", Kind::Runs, "cron jobs"),
    ("/var/spool/at", Kind::Runs, "at jobs"),
    ("~/.local/share/systemd", Kind::Runs, "the caller's units"),
    ("~/.ssh", Kind::Runs, "who may log in"),
    ("~/.cargo/config.toml", Kind::Runs, "cargo's configuration"),
    ("~/.cargo/env", Kind::Runs, "a start file"),
    ("~/.rustup/toolchains", Kind::Runs, "compilers"),
    ("~/.nvm/versions", Kind::Runs, "interpreters"),
    ("~/.pyenv/versions", Kind::Runs, "interpreters"),
];

/// Directories that are on the PATH of most hosts.
pub(super) const PATH: &[&str] = &[
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "~/.local/bin",
    "~/bin",
    "~/.cargo/bin",
    "~/go/bin",
];

/// The temporary directories that all programs share.
pub(super) const TEMPORARY: &[&str] = &["/tmp", "/var/tmp", "/dev/shm"];

/// File systems of the kernel, by their number in statfs(2) (`linux/magic.h`).
const KERNEL_FILE_SYSTEMS: &[(u64, &str)] = &[
    (0x9fa0, "procfs"),
    (0x6265_6572, "sysfs"),
    (0x6367_7270, "cgroupfs"),
    (0x0027_e0eb, "cgroupfs"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xcafe_4a11, "pinned BPF objects"),
    (0x6265_6570, "configfs"),
    (0xde5e_81e4, "firmware variables"),
];

/// Beginnings of credentials, as their issuers document them for scanners.
const CREDENTIALS: &[(&str, &str)] = &[
    ("ghp_", "a GitHub token"),
    ("gho_", "a GitHub token"),
    ("ghs_", "a GitHub token"),
    ("github_pat_", "a GitHub token"),
    ("glpat-", "a GitLab token"),
    ("AKIA", "an AWS access key"),
    ("ASIA", "an AWS access key"),
    ("sk-ant-", "an Anthropic key"),
    ("sk-proj-", "an OpenAI key"),
    ("sk_live_", "a Stripe key"),
    ("xoxb-", "a Slack token"),
    ("xoxp-", "a Slack token"),
    ("npm_", "an npm token"),
    ("pypi-", "a PyPI token"),
    ("AIza", "a Google key"),
    ("hvs.", "a Vault token"),
    ("dop_v1_", "a DigitalOcean token"),
];

/// Shorter than any credential: a word that happens to begin like one.
const CREDENTIAL_BYTES_MIN: usize = 16;

/// What `bytes` seem to be.
pub(super) fn credential(bytes: &[u8]) -> Option<&'static str> {
    if bytes.windows(11).any(|w| w == b"-----BEGIN ") && bytes.windows(11).any(|w| w == b"PRIVATE KEY") {
        return Some("a private key");
    }
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.".contains(b);
    bytes.split(|b| !plain(b)).filter(|word| word.len() >= CREDENTIAL_BYTES_MIN).find_map(|word| {
        CREDENTIALS.iter().find(|(start, _)| word.starts_with(start.as_bytes())).map(|(_, what)| *what)
    })
}

/// The kernel's file system of this number.
pub(super) fn kernel_file_system(magic: u64) -> Option<&'static str> {
    KERNEL_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// How a path stands to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// It is the place, or lies below it.
    In,
    /// The place lies below it.
    Holds,
}

/// Whether one component can be the other; either may be a pattern.
fn meets(a: &OsStr, b: &OsStr) -> bool {
    name_matches(a.as_bytes(), b.as_bytes()) || name_matches(b.as_bytes(), a.as_bytes())
}

/// How `path` stands to `place`; both absolute, both may have `*` within components.
pub(super) fn relation(path: &Path, place: &Path) -> Option<Relation> {
    let (mut path, mut place) = (path.components(), place.components());
    loop {
        match (path.next(), place.next()) {
            (_, None) => return Some(Relation::In),
            (None, Some(_)) => return Some(Relation::Holds),
            (Some(a), Some(b)) if meets(a.as_os_str(), b.as_os_str()) => {}
            _ => return None,
        }
    }
}

/// Whether `a` reaches `b`, component by component as patterns: it is the same, or stands above it.
pub(super) fn covers(a: &Path, b: &Path) -> bool {
    relation(b, a) == Some(Relation::In)
}

/// A path in the forms under which it is judged.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    /// As the profile has it.
    pub(super) said: HostPath,
    /// As it lies on this host, or on most.
    pub(super) others: Vec<HostPath>,
    /// What is there.
    pub(super) sight: Sight,
}

impl Judged {
    pub(super) fn new(path: &HostPath, around: &Surroundings<'_>) -> Self {
        let sight = around.look.look(path);
        let mut others = Vec::new();
        match &sight {
            Sight::There(seen) if seen.real != *path => others.push(seen.real.clone()),
            // Without a host to ask: what is a link nearly everywhere.
            Sight::Unknown | Sight::Absent => {
                let below = path.as_path().strip_prefix("/var/run").ok();
                others.extend(below.and_then(|rest| HostPath::new(Path::new("/run").join(rest)).ok()));
            }
            Sight::There(_) => {}
        }
        Self { said: path.clone(), others, sight }
    }

    pub(super) fn forms(&self) -> impl Iterator<Item = &HostPath> {
        std::iter::once(&self.said).chain(&self.others)
    }

    /// For messages: the path, and where it leads.
    pub(super) fn shown(&self) -> String {
        match &self.others[..] {
            [] => format!("`{}`", self.said),
            [real, ..] => format!("`{}` (which is `{real}`)", self.said),
        }
    }

    pub(super) fn is(&self) -> Option<Is> {
        match &self.sight {
            Sight::There(seen) => Some(seen.is),
            _ => None,
        }
    }

    /// How it stands to `place`, in whichever form is nearer.
    pub(super) fn relation(&self, place: &Path) -> Option<Relation> {
        let all = self.forms().filter_map(|form| relation(form.as_path(), place));
        all.min_by_key(|relation| *relation == Relation::Holds)
    }
}

/// The paths that a pattern with `~` or `@` stands for here.
pub(super) fn expanded(pattern: &str, around: &Surroundings<'_>) -> Vec<PathBuf> {
    let (bases, rest): (Vec<&Path>, &str) = match (pattern.strip_prefix("~/"), pattern.strip_prefix("@/")) {
        (Some(rest), _) => (homes(around), rest),
        (_, Some(rest)) => {
            let own = around.runtime.as_ref().map(HostPath::as_path);
            (own.into_iter().chain([Path::new("/run/user/*")]).collect(), rest)
        }
        (None, None) => return vec![pattern.into()],
    };
    bases.into_iter().map(|base| base.join(rest)).collect()
}

/// Homes: the caller's first.
pub(super) fn homes<'a>(around: &'a Surroundings<'_>) -> Vec<&'a Path> {
    let own = around.home.as_ref().map(HostPath::as_path);
    own.into_iter().chain([Path::new("/home/*"), Path::new("/root")]).collect()
}

/// A known place of this host.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) kind: Kind,
    /// What is there.
    pub(super) what: String,
    /// Where, in the order of likelihood.
    candidates: Vec<(PathBuf, Sight)>,
    /// Whether what is not there now will not be there later.
    lasting: bool,
}

/// All known places, `more` and the sockets that the environment names included.
pub(super) fn known(around: &Surroundings<'_>, more: &[(String, Kind, &str)]) -> Vec<Known> {
    let own = PLACES.iter().map(|(pattern, kind, what)| (*pattern, *kind, *what));
    let more = more.iter().map(|(pattern, kind, what)| (pattern.as_str(), *kind, *what));
    let mut out: Vec<Known> = own
        .chain(more)
        .map(|(pattern, kind, what)| {
            let candidates = expanded(pattern, around).into_iter().map(|place| {
                let exact = !place.as_os_str().as_bytes().contains(&b'*');
                let path = exact.then(|| HostPath::new(&place).ok()).flatten();
                let sight = path.map_or(Sight::Unknown, |path| around.look.look(&path));
                (place, sight)
            });
            // Below /run and in a session things come and go, and a start file is there as soon as it is written.
            let lasting = !pattern.starts_with("/run") && !pattern.starts_with('@') && kind != Kind::Runs;
            Known { kind, what: what.to_owned(), candidates: candidates.collect(), lasting }
        })
        .collect();
    out.extend(around.sockets.iter().map(|(variable, socket)| Known {
        kind: if variable.ends_with("_HOST") { Kind::Engine } else { Kind::Session },
        what: format!("what {variable} names"),
        candidates: vec![(socket.as_path().to_path_buf(), around.look.look(socket))],
        lasting: false,
    }));
    out
}

/// A known place that a path reaches.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    pub(super) kind: Kind,
    pub(super) relation: Relation,
    /// The place.
    pub(super) place: String,
    /// What is there.
    pub(super) what: String,
    /// It was found on this host.
    pub(super) here: bool,
}

/// Those of `known` that `path` reaches.
pub(super) fn reached(path: &Judged, known: &[Known]) -> Vec<Reached> {
    let one = |known: &Known, place: &Path, sight: &Sight| {
        let relation = path.relation(place).or_else(|| match sight {
            // A place that is a link on this host is also where it leads.
            Sight::There(seen) => path.relation(seen.real.as_path()),
            _ => None,
        })?;
        if relation == Relation::Holds && *sight == Sight::Absent && known.lasting {
            return None;
        }
        Some(Reached {
            kind: known.kind,
            relation,
            place: crate::base::text::visible(place.as_os_str().as_bytes()),
            what: known.what.clone(),
            here: matches!(sight, Sight::There(_)),
        })
    };
    known.iter().filter_map(|k| k.candidates.iter().find_map(|(place, sight)| one(k, place, sight))).collect()
}

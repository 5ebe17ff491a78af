//! One seeded fault for each code, with its place; what is no fault; and that nothing makes it panic.

use super::super::tests::{built_in, cases, text};
use super::super::{CallSet, EmbeddedOnly, RefusedCall, embedded_names};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn host(path: &str) -> HostPath {
    HostPath::new(path).unwrap()
}

/// Paths that are known, as `(path, real path, what, file system)`; of the rest nobody can say.
struct World(BTreeMap<&'static str, Sight>);

impl World {
    fn new() -> Self {
        let there = |real: &str, is, fs_magic| {
            Sight::There(Seen { real: host(real), is, fs_magic, others_write: false })
        };
        let mut known: BTreeMap<&'static str, Sight> = [
            ("/var/run", "/run", Is::Dir, 0),
            ("/run/docker.sock", "/run/docker.sock", Is::Socket, 0),
            ("/var/run/docker.sock", "/run/docker.sock", Is::Socket, 0),
            ("/srv/engine", "/run/docker.sock", Is::Socket, 0),
            ("/run/containerd/containerd.sock", "/srv/real/containerd.sock", Is::Socket, 0),
            ("/srv/odd.sock", "/srv/odd.sock", Is::Socket, 0),
            ("/srv/data", "/srv/data", Is::Dir, 0),
            ("/srv/link", "/srv/data", Is::Dir, 0),
            ("/srv/file", "/srv/file", Is::File, 0),
            ("/srv/cg", "/srv/cg", Is::Dir, 0x6367_7270),
            ("/srv/tools", "/home/u/tools", Is::Dir, 0),
            ("/srv/users/u", "/home/u", Is::Dir, 0),
            ("/bin", "/usr/bin", Is::Dir, 0),
            ("/etc/localtime", "/usr/share/zoneinfo/UTC", Is::File, 0),
        ]
        .into_iter()
        .map(|(path, real, is, magic)| (path, there(real, is, magic)))
        .collect();
        known.insert("/absent", Sight::Absent);
        known.insert("/usr/absent", Sight::Absent);
        let loose = Seen { real: host("/loose/p.toml"), is: Is::File, fs_magic: 0, others_write: true };
        known.insert("/loose/p.toml", Sight::There(loose));
        Self(known)
    }
}

impl Look for World {
    fn look(&self, path: &HostPath) -> Sight {
        path.as_path().to_str().and_then(|p| self.0.get(p)).cloned().unwrap_or(Sight::Unknown)
    }
}

fn calls() -> Calls {
    let refused =
        |name, eperm, grantable| RefusedCall { name, eperm, grantable, at: At { line: 9, column: 10 } };
    Calls {
        sets: vec![
            CallSet { name: "base", calls: vec!["read", "execve"] },
            CallSet { name: "process", calls: vec!["fork"] },
            CallSet { name: "network", calls: vec!["socket"] },
            CallSet { name: "ipc", calls: vec!["shmget"] },
            CallSet { name: "schedule", calls: vec!["ioprio_get"] },
            CallSet { name: "confine", calls: vec!["seccomp"] },
        ],
        refused: vec![
            refused("ptrace", true, true),
            refused("mount", true, false),
            refused("clone3", false, false),
        ],
        launch: &["execve"],
        known: |name| ["read", "fork", "ptrace", "mount", "bpf", "clone3", "swapoff"].contains(&name),
    }
}

fn around(look: &dyn Look) -> Surroundings<'_> {
    Surroundings {
        look,
        home: Some(host("/home/u")),
        runtime: Some(host("/srv/session")),
        state: Some(host("/home/u/.local/state/stockade")),
        profiles: vec![host("/home/u/.config/stockade/profiles")],
        path: vec![host("/usr/bin"), host("/home/u/tools"), host("/w/bin")],
        sockets: vec![("SSH_AUTH_SOCK", host("/srv/agent.sock"))],
        workspace: None,
        calls: calls(),
    }
}

fn user(name: &str) -> Origin {
    Origin::User(host(&format!("/home/u/.config/stockade/profiles/{name}.toml")))
}

fn subject(origin: Origin, text: &str) -> Subject {
    Subject { root: Candidate::new(origin, text.as_bytes().to_vec()), project: None, earlier: None }
}

fn linted(text: &str) -> Vec<Finding> {
    let world = World::new();
    lint(subject(user("mine"), text), &EmbeddedOnly, &around(&world))
        .unwrap_or_else(|e| panic!("{text}\n{e}"))
}

/// `text` below a beginning that has no fault; `§` marks where the fault is.
fn marked(text: &str) -> (String, At) {
    let text = format!("version = 1\nextends = \"offline\"\n{text}\n");
    let before = text.split('§').next().unwrap();
    assert_ne!(before, text, "no mark in {text}");
    let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
    (text.replace('§', ""), At { line: 1 + before.matches('\n').count(), column })
}

fn bind(source: &str) -> String {
    format!("[[mounts]]\ntype = \"bind\"\ntarget = \"/m\"\n§source = \"{source}\"")
}

fn writable(source: &str) -> String {
    format!("{}\nwritable = true", bind(source))
}

fn target(target: &str) -> String {
    format!("[[mounts]]\ntype = \"tmpfs\"\nsize = \"1MiB\"\n§target = \"{target}\"")
}

/// A fault for each code.
fn seeds() -> Vec<(Code, Severity, String)> {
    use Severity::{Error, Note, Warning};
    let plain = |text: &str| text.to_owned();
    vec![
        (Code::ContainerEngine, Error, bind("/run/docker.sock")),
        (Code::ContainerEngine, Error, bind("/var/run/docker.sock")),
        (Code::ContainerEngine, Error, bind("/srv/engine")),
        (Code::ContainerEngine, Error, bind("/srv/real")),
        (Code::ContainerEngine, Error, bind("/run")),
        (Code::ContainerEngine, Error, bind("/var/run")),
        (Code::ContainerEngine, Error, bind("/var/run/podman")),
        (Code::ContainerEngine, Error, bind("/run/user/1000")),
        (Code::ContainerEngine, Error, bind("/srv/session/podman/podman.sock")),
        (Code::ContainerEngine, Error, bind("/run/crio")),
        (Code::ContainerEngine, Error, bind("/run/buildkit/buildkitd.sock")),
        (Code::ContainerEngine, Error, bind("/run/containerd")),
        (Code::Session, Error, bind("/run/user/1000/bus")),
        (Code::Session, Error, bind("/run/user/1000")),
        (Code::Session, Error, bind("/srv/session")),
        (Code::Session, Error, bind("/srv/agent.sock")),
        (Code::Session, Error, bind("/run/systemd")),
        (Code::Session, Error, bind("/tmp/.X11-unix")),
        (Code::Session, Error, bind("/run/user/1000/wayland-0")),
        (Code::Session, Error, bind("/run/user/1000/gnupg/S.gpg-agent")),
        (Code::UnknownSocket, Warning, bind("/srv/odd.sock")),
        (Code::Own, Error, bind("/home/u/.local/state/stockade")),
        (Code::Own, Error, bind("/home/u/.local/state/stockade/live")),
        (Code::Own, Error, bind("/run/stockade.sock")),
        (Code::Own, Error, writable("/home/u/.config")),
        (Code::OnPath, Error, writable("/home/u/tools")),
        (Code::OnPath, Error, writable("/srv/tools")),
        (Code::OnPath, Error, writable("/home/u/.local/bin")),
        (Code::OnPath, Error, writable("/usr/local")),
        (Code::RunsOutside, Error, writable("/etc/cron.d")),
        (Code::RunsOutside, Error, writable("/home/u/.bashrc")),
        (Code::RunsOutside, Error, writable("/home/u/.config")),
        (Code::KernelInterface, Error, writable("/sys/fs/cgroup")),
        (Code::KernelInterface, Error, writable("/srv/cg")),
        (Code::KernelInterface, Warning, bind("/sys/devices")),
        (Code::WholeHome, Error, bind("/home/u")),
        (Code::WholeHome, Error, bind("/srv/users/u")),
        (Code::WholeHome, Error, bind("/home")),
        (Code::WholeHome, Error, bind("/root")),
        (Code::WholeHome, Error, bind("/")),
        (Code::WholeHome, Error, plain("[root]\n§dir = \"/\"")),
        (Code::Secret, Warning, bind("/home/u/.ssh")),
        (Code::Secret, Warning, bind("/home/u/.aws/credentials")),
        (Code::Secret, Warning, bind("/etc")),
        (Code::Secret, Warning, plain("[root]\netc = [\"...\", §\"ssl\"]")),
        (Code::Secret, Warning, plain("[root]\netc = [\"...\", §\"shad*\"]")),
        (Code::Device, Warning, bind("/dev/sda")),
        (Code::Temporary, Warning, bind("/tmp")),
        (Code::MountRefused, Error, target("/tmp")),
        (Code::MountRefused, Error, target("/usr")),
        (Code::MountRefused, Error, target("/etc/passwd")),
        (Code::MountRefused, Error, target("/etc/localtime")),
        (Code::MountRefused, Error, target("/home/agent")),
        (Code::MountRefused, Error, format!("root.dir = \"/srv\"\n{}", target("/data"))),
        (Code::MountRefused, Error, target("/bin/x")),
        (
            Code::MountRefused,
            Error,
            format!("[[mounts]]\ntype = \"file\"\ntarget = \"/f\"\ncontent = \"\"\n{}", target("/f/x")),
        ),
        (Code::Source, Warning, bind("/absent")),
        (
            Code::Source,
            Warning,
            plain("[[mounts]]\ntype = \"overlay\"\ntarget = \"/m\"\n§source = \"/srv/file\""),
        ),
        (
            Code::BelowMask,
            Error,
            format!("[[mounts]]\ntype = \"mask\"\ntarget = \"/usr/share\"\n{}", target("/usr/share/x")),
        ),
        (
            Code::ReadOnlyUndone,
            Warning,
            plain(
                "[[mounts]]\ntype = \"bind\"\nsource = \"/srv\"\ntarget = \"/srv\"\nwritable = true\n\
                 [[mounts]]\ntype = \"bind\"\nsource = \"/srv/link\"\n§target = \"/data\"",
            ),
        ),
        (Code::Redundant, Note, plain("[workspace]\nhide = [\"...\", \"a\", §\"a/b\"]")),
        (Code::Redundant, Note, plain("[workspace]\nprotect = [\"...\", §\".git/hooks/x\"]")),
        (Code::Redundant, Note, plain("[env]\npass = [\"...\", §\"LC_TIME\"]")),
        (Code::Redundant, Note, plain("[grants]\nro = [\"/srv\", §\"/srv/x\"]")),
        (Code::Redundant, Note, plain("[seccomp]\nallow = [§\"fork\"]")),
        (Code::ProtectHidden, Warning, plain("[workspace]\nprotect = [\"...\", §\".env\"]")),
        (Code::ProtectHidden, Warning, plain("[workspace]\nhide = [\"...\", §\".git\"]")),
        (Code::LiteralPattern, Warning, plain("[workspace]\nhide = [\"...\", §\"secret?\"]")),
        (Code::LiteralPattern, Warning, plain("[workspace]\nhide = [\"...\", §\"*.{pem,key}\"]")),
        (Code::LiteralPattern, Warning, plain("[workspace]\nprotect = [\"...\", §\"~/.ssh\"]")),
        (Code::LiteralPattern, Warning, plain("[workspace]\nprotect = [\"...\", §\"!keep\"]")),
        (Code::CostlyPattern, Note, plain("[workspace]\nhide = [\"...\", §\"a/*/*.key\"]")),
        (Code::CostlyPattern, Warning, plain("[workspace]\nhide = [\"...\", §\"node_modules/*/.env\"]")),
        (Code::ProtectIncomplete, Warning, plain("[workspace]\n§protect = [\"deploy\"]")),
        (Code::HideIncomplete, Warning, plain("[workspace]\n§hide = []")),
        (Code::Intents, Warning, plain("intents.use = [§\"browser\"]")),
        (Code::KeptCaches, Note, plain("[caches]\nuse = [\"npm\"]\n§layer = \"kept\"")),
        (
            Code::KeptCaches,
            Warning,
            plain(
                "network.posture = \"general\"\nnetwork.share_host = true\n[caches]\nuse = [\"npm\"]\n§layer = \"kept\"",
            ),
        ),
        (Code::NoEffect, Warning, plain("[caches]\nuse = []\n§layer = \"kept\"")),
        (
            Code::NoEffect,
            Warning,
            plain("[caches]\nuse = [\"npm\"]\nlayer = \"throwaway\"\n§size = \"1GiB\""),
        ),
        (
            Code::NoEffect,
            Warning,
            plain("[workspace]\naccess = \"none\"\n[caches]\nuse = [\"npm\"]\n§layer = \"kept\""),
        ),
        (Code::NoEffect, Warning, plain("[limits]\nmemory = \"none\"\n[env]\n§heap_hints = true")),
        (Code::NoEffect, Warning, plain("[workspace]\naccess = \"ro\"\n§protect = [\"...\", \"x\"]")),
        (Code::NoEffect, Warning, plain("[workspace]\naccess = \"none\"\n§hide = [\"...\", \"x\"]")),
        (Code::NoEffect, Warning, plain("[workspace]\n§protect_missing = \"overlay\"")),
        (Code::NoEffect, Warning, plain("[root]\ndir = \"/srv/root\"\n§etc = [\"fonts\"]")),
        (Code::NoEffect, Warning, plain("[require]\n§limit_cpu = \"require\"")),
        (Code::NoEffect, Warning, plain("[require]\n§landlock_net = \"require\"")),
        (Code::NoEffect, Warning, plain("[limits]\n§output = \"none\"\noutput_action = \"kill\"")),
        (Code::NoEffect, Warning, plain("[workspace]\naccess = \"ro\"\n[limits]\n§disk = \"1GiB\"")),
        (Code::NoEffect, Warning, plain("[env]\npass = [\"...\", §\"HOME\"]")),
        (Code::EnvSecret, Error, plain("[env]\npass = [\"...\", §\"GITHUB_TOKEN\"]")),
        (Code::EnvSecret, Error, plain("[env]\npass = [\"...\", §\"VAULT_*\"]")),
        (Code::EnvSecret, Warning, plain("[env]\npass = [\"...\", §\"MY_API_KEY\"]")),
        (Code::EnvSecret, Warning, plain("[env]\npass = [\"...\", §\"AWS_PROFILE\"]")),
        (Code::EnvSecret, Warning, plain("[env]\npass = [\"...\", §\"db_password\"]")),
        (Code::EnvSecret, Error, plain("[env.set]\n§PGPASSWORD = \"x\"")),
        (Code::SecretValue, Error, plain("[env.set]\n§GREETING = \"Bearer ghp_0123456789abcdef0123\"")),
        (
            Code::SecretValue,
            Error,
            plain(
                "[[mounts]]\ntype = \"file\"\ntarget = \"/k\"\n§content = \"-----BEGIN OPENSSH PRIVATE KEY-----\"",
            ),
        ),
        (Code::EnvAuthority, Warning, plain("[env]\npass = [\"...\", §\"SSH_AUTH_SOCK\"]")),
        (Code::EnvAuthority, Warning, plain("[env.set]\n§DOCKER_HOST = \"unix:///m\"")),
        (Code::EnvCode, Warning, plain("[env]\npass = [\"...\", §\"PYTHONPATH\"]")),
        (Code::EnvTwice, Warning, plain("[env]\npass = [\"...\", §\"EXTRA\"]\nset = { EXTRA = \"1\" }")),
        (Code::EnvPath, Warning, plain("[env.set]\n§PATH = \"/usr/bin:/tmp/bin\"")),
        (Code::EnvPath, Warning, plain("[env.set]\n§PATH = \"bin:/usr/bin\"")),
        (Code::EnvPath, Warning, plain("[env.set]\n§PATH = \"/usr/bin:\"")),
        (Code::EnvName, Warning, plain("[env.set]\n§\"MY VAR\" = \"1\"")),
        (Code::CorePreferred, Warning, plain("[require]\n§seccomp = \"prefer\"")),
        (Code::Unlimited, Warning, plain("[limits]\n§memory = \"none\"")),
        (Code::Unlimited, Note, plain("[limits]\n§wall = \"none\"")),
        (Code::LimitsDisagree, Warning, plain("[limits]\n§grace = \"10m\"\nwall = \"5m\"")),
        (Code::LimitsDisagree, Warning, plain("[limits]\nmemory = \"1GiB\"\n§scratch = \"2GiB\"")),
        (
            Code::LimitsDisagree,
            Warning,
            plain(
                "[limits]\nmemory = \"1GiB\"\n[[mounts]]\ntype = \"tmpfs\"\n§size = \"2GiB\"\ntarget = \"/m\"",
            ),
        ),
        (Code::HostNetwork, Note, plain("[network]\nposture = \"general\"\n§share_host = true")),
        (Code::NoSockets, Warning, plain("[seccomp]\n§sets = [\"base\", \"process\"]")),
        (Code::CallRefused, Error, plain("[seccomp]\nsets = [\"...\", §\"graphics\"]")),
        (Code::CallRefused, Error, plain("[seccomp]\nallow = [§\"raed\"]")),
        (Code::CallRefused, Error, plain("[seccomp]\nallow = [§\"mount\"]")),
        (Code::CallRefused, Error, plain("[seccomp]\n§sets = [\"process\", \"network\"]")),
        (Code::CallSurface, Warning, plain("[seccomp]\nallow = [§\"ptrace\"]")),
        (Code::CallSurface, Note, plain("[seccomp]\nallow = [§\"swapoff\"]")),
        (Code::GrantUnreachable, Warning, plain("[grants]\nro = [§\"/var/run\"]")),
        (Code::GrantUnreachable, Warning, plain("[grants]\nrw = [§\"/proc/1\"]")),
        (Code::NameDiffers, Warning, plain("§name = \"other\"")),
        (Code::MaskOfNothing, Warning, plain("[[mounts]]\ntype = \"mask\"\n§target = \"/data\"")),
        (Code::MaskOfNothing, Warning, plain("[[mounts]]\ntype = \"mask\"\n§target = \"/etc/sudoers\"")),
        (Code::MaskOfNothing, Warning, plain("[[mounts]]\ntype = \"mask\"\n§target = \"/usr/absent\"")),
    ]
}

#[test]
fn every_rule_finds_its_seed_where_it_lies() {
    let mut seen: BTreeSet<Code> = BTreeSet::new();
    for (code, severity, text) in seeds() {
        let (text, at) = marked(&text);
        let found = linted(&text);
        let hit = |f: &&Finding| f.code == code && f.at == Some(at) && f.severity == severity;
        let hit = found
            .iter()
            .find(hit)
            .unwrap_or_else(|| panic!("{code:?} {severity:?} at {at}:\n{text}\n{found:#?}"));
        assert!(matches!(&hit.file, LintFile::Profile { origin: Origin::User(_), .. }), "{hit:?}");
        assert!(!hit.message.chars().any(char::is_control) && hit.message.len() > 8, "{hit:?}");
        seen.insert(code);
    }
    // Those that lie outside of the profile's text have tests of their own.
    let elsewhere = [Code::WrongAnswer, Code::ShadowsBuiltIn, Code::Shadowed, Code::OthersWrite];
    assert!(elsewhere.iter().all(|code| seen.insert(*code)));
    let codes: Vec<&str> = seen.iter().map(|code| code.rule().code).collect();
    assert_eq!(codes, RULES.iter().map(|rule| rule.code).collect::<Vec<_>>());
}

#[test]
fn codes_are_numbered_and_named_once() {
    for (n, rule) in RULES.iter().enumerate() {
        assert_eq!(rule.code, format!("SL{:03}", n + 1));
        assert!(
            rule.about.len() > 20 && rule.remedy.len() > 10 && !rule.severities.is_empty(),
            "{}",
            rule.code
        );
        assert!(
            !format!("{}{}", rule.about, rule.remedy).contains(['|', '\n']),
            "{}: it is a table's cell",
            rule.code
        );
    }
    let names: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), RULES.len());
}

#[test]
fn what_is_no_fault() {
    let clean = |text: &str| {
        let text = format!("version = 1\nextends = \"offline\"\n{text}\n");
        let found = linted(&text);
        assert!(found.is_empty(), "{text}\n{found:#?}");
    };
    clean("");
    // A read-only directory inside a writable one narrows.
    clean(
        "[[mounts]]\ntype = \"bind\"\nsource = \"/data\"\ntarget = \"/data\"\nwritable = true\n\
         [[mounts]]\ntype = \"bind\"\nsource = \"/data/keys\"\ntarget = \"/data/keys\"",
    );
    clean("[[mounts]]\ntype = \"bind\"\nsource = \"/absent\"\ntarget = \"/m\"\noptional = true");
    clean(
        "[[mounts]]\ntype = \"bind\"\nsource = \"/home/u/.cache/pip\"\ntarget = \"/home/agent/.cache/pip\"\nwritable = true",
    );
    clean("[[mounts]]\ntype = \"bind\"\nsource = \"/usr/share/dict\"\ntarget = \"/dict\"");
    clean("[[mounts]]\ntype = \"overlay\"\nsource = \"/run/containerd\"\ntarget = \"/m\"");
    clean("[[mounts]]\ntype = \"mask\"\ntarget = \"/usr/share/doc\"");
    clean("[[mounts]]\ntype = \"mask\"\ntarget = \"/etc/java-17-openjdk/security\"");
    clean(
        "[[mounts]]\ntype = \"bind\"\nsource = \"/data\"\ntarget = \"/data\"\n\
         [[mounts]]\ntype = \"mask\"\ntarget = \"/data/keys\"",
    );
    clean("[[mounts]]\ntype = \"dir\"\ntarget = \"/tmp\"");
    clean("[[mounts]]\ntype = \"tmpfs\"\nsize = \"1MiB\"\ntarget = \"/tmp/x\"");
    clean("[workspace]\nhide = [\"...\", \"*.pem\", \"deploy/*.key\"]\nprotect = [\"...\", \"deploy\"]");
    // Wider entries on top of an inherited list: the inherited ones are not this file's business.
    clean("[workspace]\nprotect = [\"...\", \".git\"]");
    clean(
        "[env]\npass = [\"...\", \"MY_APP_*\", \"AWS_REGION\", \"KEYBOARD\", \"TOKENIZERS_PARALLELISM\", \"MY_PUBLIC_KEY\"]",
    );
    clean(
        "[env.set]\nCARGO_TERM_COLOR = \"always\"\nPATH = \"/usr/local/bin:/usr/bin\"\nGITHUB_TOKEN = \"\"",
    );
    clean("[limits]\nmemory = \"1GiB\"\nwall = \"5m\"\ngrace = \"5s\"");
    clean("[grants]\nro = [\"/srv/link\", \"/srv/data\"]\nrw = []\nenv = [\"FOO_*\", \"BAR\"]");
    clean("[workspace]\naccess = \"ro\"");
    clean("[[mounts]]\ntype = \"tmpfs\"\nsize = \"1MiB\"\ntarget = \"/var/run/x\"");
}

#[test]
fn the_shipped_profiles_are_clean() {
    for name in embedded_names() {
        let world = World::new();
        let subject = Subject { root: Candidate::embedded(name).unwrap(), project: None, earlier: None };
        let found = lint(subject, &EmbeddedOnly, &around(&world)).unwrap();
        let codes: Vec<Code> = found.iter().map(|f| f.code).collect();
        assert_eq!(codes, if *name == "open" { vec![Code::HostNetwork] } else { vec![] }, "{found:#?}");
    }
}

#[test]
fn a_refusal_that_libraries_do_not_understand() {
    let world = World::new();
    let mut around = around(&world);
    around.calls.refused[2].eperm = true;
    let subject = || subject(user("mine"), "version = 1\nextends = \"offline\"\n");
    let found = lint(subject(), &EmbeddedOnly, &around).unwrap();
    let [finding] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(
        (finding.code, &finding.file, finding.at),
        (Code::WrongAnswer, &LintFile::RefusedCalls, Some(At { line: 9, column: 10 }))
    );
    assert_eq!(finding.message, "`clone3` answers EPERM");
    // A profile that has the call is not refused it.
    around.calls.sets[0].calls.push("clone3");
    assert!(lint(subject(), &EmbeddedOnly, &around).unwrap().is_empty());
}

#[test]
fn names_of_profiles_and_who_can_write_them() {
    let world = World::new();
    let about = |subject: Subject| {
        let found = lint(subject, &EmbeddedOnly, &around(&world)).unwrap();
        found.iter().map(|f| (f.code, f.severity, f.at.unwrap().to_string())).collect::<Vec<_>>()
    };
    let first = |code, severity| vec![(code, severity, "1:1".to_owned())];
    let wider = subject(user("strict"), "version = 1\nextends = \"offline\"\n");
    assert_eq!(about(wider), first(Code::ShadowsBuiltIn, Severity::Warning));
    let narrower = subject(user("offline"), "version = 1\nextends = \"offline\"\nlimits.wall = \"1m\"\n");
    assert_eq!(about(narrower), first(Code::ShadowsBuiltIn, Severity::Note));
    let mut shadowed = subject(
        Origin::System(host("/etc/stockade/profiles/mine.toml")),
        "version = 1\nextends = \"offline\"\n",
    );
    shadowed.earlier = Some(user("mine"));
    assert_eq!(about(shadowed), first(Code::Shadowed, Severity::Warning));
    let loose = subject(Origin::File(host("/loose/p.toml")), "version = 1\nextends = \"offline\"\n");
    assert_eq!(about(loose), first(Code::OthersWrite, Severity::Error));
}

#[test]
fn a_workspace_on_the_path() {
    let world = World::new();
    let mut around = around(&world);
    around.workspace = Some(host("/w"));
    let on_path = |text: &str| {
        let found = lint(subject(user("mine"), text), &EmbeddedOnly, &around).unwrap();
        found.iter().map(|f| (f.code, f.severity, f.file.to_string())).collect::<Vec<_>>()
    };
    let said = [(Code::OnPath, Severity::Warning, "built-in/offline.toml".to_owned())];
    assert_eq!(on_path("version = 1\nextends = \"offline\"\n"), said);
    assert!(
        on_path("version = 1\nextends = \"offline\"\nworkspace.protect = [\"...\", \"bin\"]\n").is_empty()
    );
    assert!(on_path("version = 1\nextends = \"read-only\"\n").is_empty());
}

#[test]
fn faults_are_found_in_the_file_that_has_them() {
    let world = World::new();
    let project = |text: &str| Subject {
        root: Candidate::embedded("offline").unwrap(),
        project: Some(Candidate::new(
            Origin::Project(host("/w/.stockade/profile.toml")),
            text.as_bytes().to_vec(),
        )),
        earlier: None,
    };
    let found = |subject| lint(subject, &EmbeddedOnly, &around(&world)).unwrap();
    let in_project =
        found(project("version = 1\nworkspace.hide = [\"a?\", \".git\"]\nrequire.limit_cpu = \"require\"\n"));
    let places: Vec<String> =
        in_project.iter().map(|f| format!("{}:{} {}", f.file, f.at.unwrap(), f.code.rule().code)).collect();
    assert_eq!(
        places,
        [
            "/w/.stockade/profile.toml:2:19 SL018",
            "/w/.stockade/profile.toml:2:25 SL017",
            "/w/.stockade/profile.toml:3:9 SL022",
        ]
    );
    assert!(found(project("version = 1\n")).is_empty());
    // A project may widen nothing: that is no finding but a refusal.
    let refused = lint(project("version = 1\nlimits.wall = \"2h\"\n"), &EmbeddedOnly, &around(&world));
    assert_eq!(refused.unwrap_err().code(), "widens");
}

#[test]
fn the_same_fault_is_found_once_and_in_order() {
    let text = "version = 1\nextends = \"offline\"\nlimits.memory = \"none\"\nworkspace.hide = [\"...\", \"b?\", \"a?\"]\n";
    let mut twice = linted(text);
    twice.extend(linted(text));
    twice.reverse();
    sort(&mut twice);
    assert_eq!(twice, linted(text));
    let order: Vec<String> = twice.iter().map(|f| f.at.unwrap().to_string()).collect();
    assert_eq!(order, ["3:8", "4:26", "4:32"]);
}

#[test]
fn variables_that_a_pattern_may_not_cover_have_a_class() {
    for name in super::super::check::SENSITIVE {
        assert!(env::class(name).is_some(), "{name}");
    }
    for (name, class) in [
        ("AWS_SECRET_ACCESS_KEY", Some(env::Class::Secret)),
        ("MY_TOKEN", Some(env::Class::MaybeSecret)),
        ("http_proxy", Some(env::Class::MaybeSecret)),
        ("STOCKADE_STATE", Some(env::Class::Authority)),
        ("LANG", None),
        ("home", None),
        ("AWS_REGION", None),
    ] {
        assert_eq!(env::class(name).map(|(class, _)| class), class, "{name}");
    }
}

/// A host that answers by the bytes of the path.
struct Chance(u64);

impl Look for Chance {
    fn look(&self, path: &HostPath) -> Sight {
        let sum =
            path.as_bytes().iter().fold(self.0, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)));
        let reals = ["/", "/run", "/run/docker.sock", "/home/u", "/sys/fs/cgroup", "/srv", "/tmp"];
        let real = reals.get((sum % 11) as usize).map_or_else(|| path.clone(), |real| host(real));
        let is = [Is::Dir, Is::File, Is::Socket, Is::Device, Is::Other][(sum / 11 % 5) as usize];
        let fs_magic = [0, 0x9fa0, 0x6367_7270][(sum / 55 % 3) as usize];
        match sum / 165 % 4 {
            0 => Sight::Unknown,
            1 => Sight::Absent,
            n => Sight::There(Seen { real, is, fs_magic, others_write: n == 3 }),
        }
    }
}

/// Lines that the other properties have no need for.
fn odd_line() -> impl Strategy<Value = String> {
    let name = "[a-zA-Z_*?!~{}\\[\\]$. /-]{1,12}";
    prop_oneof![
        name.prop_map(|n| format!("workspace.hide = [\"...\", \"{n}\"]")),
        name.prop_map(|n| format!("workspace.protect = [\"{n}\"]")),
        name.prop_map(|n| format!("root.etc = [\"{n}\"]")),
        "[A-Z_*]{1,9}".prop_map(|n| format!("env.pass = [\"...\", \"{n}\"]")),
        ("[A-Za-z0-9_ -]{1,9}", "[a-z/:]{0,12}")
            .prop_map(|(n, v)| format!("env.set = {{ \"{n}\" = \"{v}\" }}")),
        "(/[a-z.*]{1,9}){1,3}".prop_map(|p| format!("root.dir = \"{p}\"")),
        "(/[a-z.*]{1,9}){1,3}".prop_map(|p| format!("grants.rw = [\"/\", \"{p}\"]")),
        ("(/[a-z.]{1,5}){1,3}", "(/[a-z.]{1,5}){0,3}/").prop_map(|(t, s)| format!(
            "mounts = [{{ type = \"bind\", target = \"{t}\", source = \"{s}\", writable = true }}]"
        )),
    ]
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_valid_profile_makes_it_panic(
        base in prop::sample::select(embedded_names().to_vec()),
        text in text(),
        odd in odd_line(),
        seed in any::<u64>(),
        name in "[a-z]{1,8}",
    ) {
        let key = odd.split(" = ").next().unwrap_or_default().to_owned();
        let rest: Vec<&str> = text.lines().skip(1).filter(|l| !l.starts_with(&key)).collect();
        let text = format!("version = 1\nextends = \"{base}\"\n{odd}\n{}\n", rest.join("\n"));
        let eyes = Chance(seed);
        let mut around = around(&eyes);
        around.workspace = Some(host("/w"));
        let bytes = || Candidate::new(user(&name), text.clone().into_bytes());
        let root = Subject { root: bytes(), project: None, earlier: None };
        // What does not load is another's business; both ways of reading a file are tried.
        if let Ok(found) = lint(root, &EmbeddedOnly, &around) {
            let again = lint(Subject { root: bytes(), project: None, earlier: None }, &EmbeddedOnly, &around).unwrap();
            prop_assert_eq!(&found, &again);
            for finding in &found {
                prop_assert!(finding.at.is_some(), "{:?}", finding);
                prop_assert!(!finding.message.chars().any(char::is_control));
            }
        }
        let origin = Origin::Project(host("/w/.stockade/profile.toml"));
        let text = text.replace(&format!("extends = \"{base}\"\n"), "");
        let project = Some(Candidate::new(origin, text.into_bytes()));
        let _ = lint(Subject { root: Candidate::embedded(base).unwrap(), project, earlier: None }, &EmbeddedOnly, &around);
    }
}

#[test]
fn the_reference_is_the_default_profile() {
    assert_eq!(reference(), Some(&built_in("offline")));
}

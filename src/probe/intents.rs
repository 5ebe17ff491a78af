//! What grants by intent come to on this host: the sockets, files and devices behind each name, looked up with the
//! caller's rights and from the caller's environment; or why there is nothing to grant.

use super::paths::look_up;
use crate::base::{HostPath, OsBytes, RelPath};
use crate::plan::{IntentFact, IntentSource, Kind, Mode, Request};
use crate::policy::{Intent, Policy};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Device nodes at most.
const DEVICES_MAX: usize = 64;
/// Entries of `/dev` that are looked at.
const DEV_ENTRIES_MAX: usize = 4096;

/// Looks for what is behind each grant of `policy` and `request`.
pub fn intents(
    policy: &Policy,
    request: &Request,
    home: Option<&HostPath>,
    mode: Mode,
) -> BTreeMap<Intent, IntentFact> {
    let all: Vec<Intent> = policy.intents.iter().chain(&request.grants).copied().collect();
    find(&all, &request.caller_env, home, mode)
}

/// Looks for what is behind each of `intents`.
fn find(
    intents: &[Intent],
    env: &BTreeMap<OsBytes, OsBytes>,
    home: Option<&HostPath>,
    mode: Mode,
) -> BTreeMap<Intent, IntentFact> {
    let around = Around { env, home, mode };
    let one = |intent: &Intent| {
        let found = match intent {
            // A rule of the filter, and nothing on the host.
            Intent::Browser => Ok(Vec::new()),
            Intent::SshAgent => around.ssh_agent(),
            Intent::GitCredentials => around.git_credentials(),
            Intent::Gpu => gpu(Path::new("/dev")),
            Intent::X11 => around.x11(),
            Intent::Wayland => around.wayland(),
        };
        let fact = match found {
            Ok(sources) => IntentFact::There { sources },
            Err(why) => IntentFact::Missing { why },
        };
        (*intent, fact)
    };
    intents.iter().map(one).collect()
}

struct Around<'a> {
    env: &'a BTreeMap<OsBytes, OsBytes>,
    home: Option<&'a HostPath>,
    mode: Mode,
}

type Found = Result<Vec<IntentSource>, String>;

impl Around<'_> {
    fn var(&self, name: &str) -> Option<&[u8]> {
        self.env.get(&OsBytes::from(name)).map(OsBytes::as_bytes).filter(|v| !v.is_empty())
    }

    fn below_home(&self, rel: &str) -> Option<HostPath> {
        Some(self.home?.join(&RelPath::new(rel).ok()?))
    }

    fn ssh_agent(&self) -> Found {
        let Some(named) = self.var("SSH_AUTH_SOCK") else {
            return Err(
                "SSH_AUTH_SOCK is not set: no agent is running for you (eval $(ssh-agent))".to_owned()
            );
        };
        if self.mode == Mode::Privileged {
            // ssh-agent.c, handle_socket_read: it answers its own user and root.
            return Err(
                "an agent answers nobody but its own user and root, and under root the command is neither: \
                        run stockade as that user"
                    .to_owned(),
            );
        }
        Ok(vec![thing(&path(named)?, Kind::Socket, "ssh-agent")?])
    }

    fn git_credentials(&self) -> Found {
        let config = match self.var("XDG_CONFIG_HOME") {
            Some(dir) => path(dir).ok().and_then(|d| Some(d.join(&RelPath::new("git/credentials").ok()?))),
            None => self.below_home(".config/git/credentials"),
        };
        let files =
            [(self.below_home(".git-credentials"), "git-credentials"), (config, "git-credentials-xdg")];
        let there = |(file, at): (Option<HostPath>, &'static str)| thing(&file?, Kind::File, at).ok();
        let found: Vec<IntentSource> = files.into_iter().filter_map(there).collect();
        if found.is_empty() {
            return Err("neither ~/.git-credentials nor ~/.config/git/credentials is there; helpers that are programs \
                        (a keyring, gh) do not work inside"
                .to_owned());
        }
        Ok(found)
    }

    fn x11(&self) -> Found {
        let Some(display) = self.var("DISPLAY") else {
            return Err("DISPLAY is not set: there is no X server".to_owned());
        };
        let number = std::str::from_utf8(display)
            .ok()
            .and_then(|d| d.strip_prefix("unix:").or_else(|| d.strip_prefix(':')))
            .map(|d| d.split('.').next().unwrap_or(d))
            .filter(|n| !n.is_empty() && n.len() <= 5 && n.bytes().all(|b| b.is_ascii_digit()));
        let Some(number) = number else {
            return Err(
                "DISPLAY names no server on this host (`:N`): a remote one needs a network".to_owned()
            );
        };
        let socket = path(format!("/tmp/.X11-unix/X{number}").as_bytes())?;
        let mut found = vec![thing(&socket, Kind::Socket, &format!("X{number}"))?];
        let authority = match self.var("XAUTHORITY") {
            Some(named) => path(named).ok(),
            None => self.below_home(".Xauthority"),
        };
        if let Some(file) = authority
            && let Ok(there) = thing(&file, Kind::File, "Xauthority")
        {
            found.push(there);
        }
        Ok(found)
    }

    fn wayland(&self) -> Found {
        let Some(display) = self.var("WAYLAND_DISPLAY") else {
            return Err("WAYLAND_DISPLAY is not set: there is no compositor".to_owned());
        };
        let socket = if display.starts_with(b"/") {
            path(display)?
        } else {
            let Some(dir) = self.var("XDG_RUNTIME_DIR") else {
                return Err("XDG_RUNTIME_DIR is not set, and WAYLAND_DISPLAY is no absolute path".to_owned());
            };
            path(&[dir, b"/", display].concat())?
        };
        Ok(vec![thing(&socket, Kind::Socket, "wayland")?])
    }
}

fn path(bytes: &[u8]) -> Result<HostPath, String> {
    let text = Path::new(std::ffi::OsStr::from_bytes(bytes));
    HostPath::new(super::paths::lexical(text))
        .map_err(|e| format!("{} is no path: {e}", crate::base::text::visible(bytes)))
}

fn thing(path: &HostPath, kind: Kind, at: &str) -> Result<IntentSource, String> {
    let fact = look_up(path.as_path())
        .map_err(|e| format!("{path} cannot be reached: {}", std::io::Error::from_raw_os_error(e.errno)))?;
    if fact.kind != kind {
        let wanted = if kind == Kind::Socket { "socket" } else { "regular file" };
        return Err(format!("{path} is no {wanted}"));
    }
    Ok(IntentSource { path: path.clone(), fact, name: at.to_owned() })
}

/// Render and compute nodes below `dev`. No `card*`: they set modes and own the display.
fn gpu(dev: &Path) -> Found {
    let mut names = Vec::new();
    for (below, wanted) in
        [("dri", &["renderD"][..]), ("", &["nvidia", "kfd", "dxg"][..]), ("nvidia-caps", &["nvidia-cap"][..])]
    {
        let Ok(dir) = std::fs::read_dir(dev.join(below)) else { continue };
        for entry in dir.take(DEV_ENTRIES_MAX).flatten() {
            let name = entry.file_name();
            if wanted.iter().any(|w| name.as_bytes().starts_with(w.as_bytes())) {
                names.push(dev.join(below).join(name));
            }
        }
    }
    names.sort();
    let device = |path: &std::path::PathBuf| {
        let path = HostPath::new(path).ok()?;
        let fact = look_up(path.as_path()).ok().filter(|f| f.kind == Kind::Device)?;
        let name = path.as_path().strip_prefix(dev).ok()?.to_str()?.to_owned();
        Some(IntentSource { path, fact, name })
    };
    let found: Vec<IntentSource> = names.iter().filter_map(device).take(DEVICES_MAX).collect();
    if found.is_empty() {
        return Err(format!("there is no render or compute node below {}", dev.display()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    fn facts(env: &[(&str, String)], home: Option<&HostPath>, mode: Mode) -> BTreeMap<Intent, IntentFact> {
        let env = env.iter().map(|(n, v)| ((*n).into(), v.as_str().into())).collect();
        find(Intent::ALL, &env, home, mode)
    }

    fn why(fact: &IntentFact) -> &str {
        match fact {
            IntentFact::Missing { why } => why,
            IntentFact::There { .. } => "",
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        let all = facts(&[], None, Mode::Rootless);
        for (intent, word) in [
            (Intent::SshAgent, "SSH_AUTH_SOCK is not set"),
            (Intent::GitCredentials, "~/.git-credentials"),
            (Intent::X11, "DISPLAY is not set"),
            (Intent::Wayland, "WAYLAND_DISPLAY is not set"),
        ] {
            assert!(why(&all[&intent]).contains(word), "{intent:?}: {:?}", all[&intent]);
        }
        assert!(matches!(all[&Intent::Browser], IntentFact::There { .. }));
    }

    #[test]
    fn what_is_named_must_be_what_it_is_named_for() {
        let dir = tree(&["home/.git-credentials", "file", "run/"]);
        let base = dir.path().canonicalize().unwrap();
        let at = |name: &str| base.join(name).display().to_string();
        let home = HostPath::new(base.join("home")).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(base.join("run/wayland-9")).unwrap();
        let env = [
            ("SSH_AUTH_SOCK", at("file")),
            ("WAYLAND_DISPLAY", "wayland-9".to_owned()),
            ("XDG_RUNTIME_DIR", at("run")),
            ("DISPLAY", "elsewhere:0".to_owned()),
        ];
        let all = facts(&env, Some(&home), Mode::Rootless);
        assert!(why(&all[&Intent::SshAgent]).contains("is no socket"));
        assert!(why(&all[&Intent::X11]).contains("names no server on this host"));
        assert_eq!(why(&all[&Intent::Wayland]), "");
        assert_eq!(why(&all[&Intent::GitCredentials]), "");
        let privileged = facts(&env, Some(&home), Mode::Privileged);
        assert!(why(&privileged[&Intent::SshAgent]).contains("run stockade as that user"));
        drop(socket);
        assert!(
            why(&gpu(&base)
                .map_or_else(|why| IntentFact::Missing { why }, |sources| IntentFact::There { sources }))
            .contains("no render")
        );
    }

    #[test]
    fn no_display_number_leads_out_of_its_directory() {
        for display in [":../../x", ":0/../..", ":", "unix:", ":123456", ":-1", ":0x1"] {
            let all = facts(&[("DISPLAY", display.to_owned())], None, Mode::Rootless);
            assert!(why(&all[&Intent::X11]).contains("names no server"), "{display}");
        }
    }
}

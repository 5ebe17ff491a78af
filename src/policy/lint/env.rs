//! Variables: secrets by their names, what carries authority or chooses code, and what is said twice.

use super::places;
use super::{Code, Linter, Severity, shown};
use crate::base::{OsBytes, name_matches};
use crate::policy::order::env_covers;
use crate::policy::{Access, MountEntry, Policy};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Variables that hold a secret.
const SECRETS: &[&str] = &[
    "ACTIONS_RUNTIME_TOKEN",
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "CARGO_REGISTRY_TOKEN",
    "CI_JOB_TOKEN",
    "CI_REGISTRY_PASSWORD",
    "GEMINI_API_KEY",
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "GITLAB_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_TOKEN",
    "MYSQL_PWD",
    "NPM_TOKEN",
    "OPENAI_API_KEY",
    "PGPASSWORD",
    "SLACK_BOT_TOKEN",
    "SONAR_TOKEN",
    "SSHPASS",
    "STRIPE_SECRET_KEY",
    "TWINE_PASSWORD",
    "VAULT_TOKEN",
];

/// What names of secrets look like, in capitals.
const SECRET_WORDS: &[&str] = &[
    "*TOKEN",
    "*SECRET*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*_KEY",
    "*APIKEY*",
    "*_PAT",
    "*CREDENTIAL*",
    "*_COOKIE",
    "*_DSN",
    "*AUTHTOKEN*",
    "DATABASE_URL",
    "AWS_*",
    // A proxy's address can hold its password.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
];

/// What looks like a secret's name and is none.
const NO_SECRETS: &[&str] = &[
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_DEFAULT_OUTPUT",
    "AWS_PAGER",
    "*PUBLIC*",
    "*_MAX_TOKEN",
    "*PASSWORD_FILE",
];

/// Variables that name a socket, a display or a configuration with authority.
const AUTHORITY: &[&str] = &[
    "CONTAINER_HOST",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "DISPLAY",
    "DOCKER_CONFIG",
    "DOCKER_HOST",
    "GNOME_KEYRING_CONTROL",
    "GPG_AGENT_INFO",
    "ICEAUTHORITY",
    "KRB5CCNAME",
    "KUBECONFIG",
    "LISTEN_FDS",
    "NOTIFY_SOCKET",
    "PULSE_SERVER",
    "SSH_AGENT_PID",
    "SSH_AUTH_SOCK",
    "STOCKADE_*",
    "STY",
    "SWAYSOCK",
    "TMUX",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
];

/// Variables that name code.
const CODE: &[&str] = &[
    "CLASSPATH",
    "EDITOR",
    "GIT_ASKPASS",
    "GIT_CONFIG_COUNT",
    "GIT_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_SSH_COMMAND",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "MAKEFLAGS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PAGER",
    "PERL5LIB",
    "PERL5OPT",
    "PERLLIB",
    "PROMPT_COMMAND",
    "PS4",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "RUBYLIB",
    "RUBYOPT",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
    "SSH_ASKPASS",
    "VISUAL",
    "ZDOTDIR",
    "_JAVA_OPTIONS",
];

/// Variables that the plan sets, whatever is passed.
const PLANNED: &[&str] = &["HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "PATH"];

/// What a name, or a `PREFIX*`, stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Secret,
    /// By its looks alone.
    MaybeSecret,
    Authority,
    Code,
    Planned,
}

/// The class of a name or pattern, and the entry of the lists above that says so.
pub(super) fn class(pattern: &str) -> Option<(Class, &'static str)> {
    // Names of secrets are recognised in small letters, too; the others are what they are.
    let upper = pattern.to_ascii_uppercase();
    let among = |list: &'static [&'static str], pattern: &str| {
        let stem = pattern.strip_suffix('*').unwrap_or(pattern);
        list.iter().copied().find(|name| env_covers(pattern, name) || env_covers(name, stem))
    };
    let looks = |list: &'static [&'static str]| {
        let stem = upper.strip_suffix('*').unwrap_or(&upper);
        list.iter().copied().find(|word| name_matches(word.as_bytes(), stem.as_bytes()))
    };
    let secret = among(SECRETS, &upper).map(|name| (Class::Secret, name));
    secret
        .or_else(|| among(AUTHORITY, pattern).map(|name| (Class::Authority, name)))
        .or_else(|| among(CODE, pattern).map(|name| (Class::Code, name)))
        .or_else(|| among(PLANNED, pattern).map(|name| (Class::Planned, name)))
        .or_else(|| {
            let word = looks(SECRET_WORDS).filter(|_| looks(NO_SECRETS).is_none())?;
            Some((Class::MaybeSecret, word))
        })
}

pub(super) fn lint(linter: &mut Linter<'_>, policy: &Policy) {
    for name in &policy.env.pass {
        passed(linter, policy, name);
    }
    for (name, value) in &policy.env.set {
        set(linter, policy, name, value);
    }
    for list in ["env.pass", "grants.env"] {
        let entries = if list == "env.pass" { &policy.env.pass } else { &policy.grants.env };
        for entry in entries {
            let Some(by) = entries.iter().find(|other| *other != entry && env_covers(other, entry)) else {
                continue;
            };
            let (spot, cover) = (linter.entry(list, entry.as_bytes()), linter.entry(list, by.as_bytes()));
            if spot.layer <= cover.layer && !linter.is_built_in(spot.layer) {
                let message = format!("`{}` is covered by `{}`", shown(entry), shown(by));
                linter.report(Code::Redundant, spot, message);
            }
        }
    }
}

fn passed(linter: &mut Linter<'_>, policy: &Policy, name: &str) {
    let spot = linter.entry("env.pass", name.as_bytes());
    let quoted = format!("`{}`", shown(name));
    match class(name) {
        Some((Class::Secret, secret)) if secret == name => {
            linter.report(Code::EnvSecret, spot.clone(), format!("{quoted} is passed, which is a secret"));
        }
        Some((Class::Secret, secret)) => {
            linter.report(
                Code::EnvSecret,
                spot.clone(),
                format!("{quoted} passes `{secret}`, which is a secret"),
            );
        }
        Some((Class::MaybeSecret, word)) => {
            let message = format!("{quoted} is passed, which looks like a secret (`{word}`)");
            linter.report_as(Code::EnvSecret, Severity::Warning, spot.clone(), message);
        }
        Some((Class::Authority, _)) => {
            linter.report(Code::EnvAuthority, spot.clone(), format!("{quoted} is passed"));
        }
        Some((Class::Code, _)) => linter.report(Code::EnvCode, spot.clone(), format!("{quoted} is passed")),
        Some((Class::Planned, _)) => {
            let message = format!("{quoted} is passed, and the plan gives it a value of its own");
            linter.report(Code::NoEffect, spot.clone(), message);
        }
        None => {}
    }
    if policy.env.set.contains_key(name) {
        linter.report(Code::EnvTwice, spot.clone(), format!("{quoted} is passed and set"));
    }
    odd(linter, name.strip_suffix('*').unwrap_or(name), &spot);
}

fn set(linter: &mut Linter<'_>, policy: &Policy, name: &str, value: &OsBytes) {
    let spot = linter.key(&format!("env.set.{}", shown(name)));
    let quoted = format!("`{}`", shown(name));
    if let Some(what) = places::credential(value.as_bytes()) {
        linter.report(Code::SecretValue, spot.clone(), format!("the value of {quoted} looks like {what}"));
    }
    match class(name) {
        Some((Class::Secret, _)) if !value.as_bytes().is_empty() => {
            linter.report(Code::EnvSecret, spot.clone(), format!("{quoted} has its value in the file"));
        }
        Some((Class::MaybeSecret, word)) if !value.as_bytes().is_empty() => {
            let message = format!("{quoted} has its value in the file and looks like a secret (`{word}`)");
            linter.report_as(Code::EnvSecret, Severity::Warning, spot.clone(), message);
        }
        Some((Class::Authority, _)) if !value.as_bytes().is_empty() => {
            linter.report(Code::EnvAuthority, spot.clone(), format!("{quoted} is set"));
        }
        _ => {}
    }
    if name == "PATH" {
        search_path(linter, policy, value, &spot);
    }
    odd(linter, name, &spot);
}

/// A name that a shell cannot use.
fn odd(linter: &mut Linter<'_>, name: &str, spot: &super::Spot) {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !plain || name.starts_with(|c: char| c.is_ascii_digit()) {
        linter.report(Code::EnvName, spot.clone(), format!("`{}` is an odd name", shown(name)));
    }
}

/// The directories of a PATH for the inside.
fn search_path(linter: &mut Linter<'_>, policy: &Policy, value: &OsBytes, spot: &super::Spot) {
    let workspace = linter.around.workspace.as_ref().filter(|_| policy.workspace.access >= Access::Overlay);
    for dir in value.as_bytes().split(|b| *b == b':') {
        let path = Path::new(OsStr::from_bytes(dir));
        let quoted = format!("`{}`", crate::base::text::visible(dir));
        let why = if dir.is_empty() {
            Some("an empty entry is the current directory".to_owned())
        } else if !path.is_absolute() {
            Some(format!("{quoted} is relative to the current directory"))
        } else if ["/tmp", "/run", "/dev/shm", "/var/tmp", "/var/run", "/home/agent", "/root"]
            .iter()
            .any(|d| path.starts_with(d))
        {
            Some(format!("{quoted} lies in the command's own scratch"))
        } else if workspace.is_some_and(|w| path.starts_with(w.as_path())) {
            Some(format!("{quoted} lies in the writable workspace"))
        } else {
            let over = policy.mounts.iter().filter(|m| path.starts_with(m.target().as_path()));
            let writable = over.max_by_key(|m| m.target().depth()).is_some_and(|m| {
                matches!(
                    m,
                    MountEntry::Bind { writable: true, .. }
                        | MountEntry::Tmpfs { .. }
                        | MountEntry::Overlay { .. }
                )
            });
            writable.then(|| format!("{quoted} lies in a writable mount"))
        };
        if let Some(why) = why {
            linter.report(Code::EnvPath, spot.clone(), why);
        }
    }
}

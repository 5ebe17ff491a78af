//! Grants by intent in the mount table and the environment: what `--grant` and `intents.use` come to.

use super::facts::{IntentFact, IntentSource, Kind, PathFacts};
use super::request::Request;
use super::resolve::{PlanError, Table};
use super::types::FsOp;
use super::view;
use crate::base::{OsBytes, RelPath, SandboxPath};
use crate::policy::{Intent, Policy};
use std::collections::BTreeMap;

/// What is granted: by the profile to every command, and by the caller to this one.
///
/// # Errors
/// [`PlanError::NotGranted`] for what the profile lets no caller grant.
pub(super) fn granted(policy: &Policy, request: &Request) -> Result<Vec<Intent>, PlanError> {
    if let Some(intent) = request.grants.iter().find(|i| !policy.grants.intents.contains(*i)) {
        return Err(PlanError::NotGranted { what: format!("--grant {}", intent.name()), key: "intents" });
    }
    let asked = |i: &&Intent| policy.intents.contains(*i) || request.grants.contains(*i);
    Ok(Intent::ALL.iter().filter(asked).copied().collect())
}

fn place(intent: Intent, source: &IntentSource) -> Result<SandboxPath, PlanError> {
    let encoding = |e: crate::base::path::PathError| PlanError::Encoding(e.to_string());
    let base = match intent {
        // Clients look there and nowhere else.
        Intent::X11 if source.fact.kind == Kind::Socket => "/tmp/.X11-unix",
        Intent::Gpu => "/dev",
        _ => view::DIR,
    };
    let rel = RelPath::new(&source.name).map_err(encoding)?;
    Ok(SandboxPath::new(base).map_err(encoding)?.join(&rel))
}

fn sources(paths: &PathFacts, intent: Intent) -> Result<&[IntentSource], PlanError> {
    match paths.intents.get(&intent) {
        Some(IntentFact::There { sources }) => Ok(sources),
        Some(IntentFact::Missing { why }) => Err(PlanError::NothingToGrant { intent, why: why.clone() }),
        None => Err(PlanError::NothingToGrant { intent, why: "nobody has looked for it".to_owned() }),
    }
}

impl Table {
    /// Mounts what is behind each of `intents`.
    pub(super) fn intents(&mut self, intents: &[Intent], paths: &PathFacts) -> Result<(), PlanError> {
        for intent in intents {
            for source in sources(paths, *intent)? {
                let at = place(*intent, source)?;
                let device = source.fact.kind == Kind::Device;
                // Read-only: who may connect to a socket, or what a driver does, is not a question of the mount.
                let from = self.source(&source.path, &source.fact, false, !device);
                match device {
                    true => self.device(from),
                    false => self.owned(from),
                }
                self.attached.push((source.fact.real.clone(), at.clone(), false));
                self.put(FsOp::Bind { from, at, writable: false })?;
            }
        }
        Ok(())
    }
}

/// The variables by which programs find it; `env` is what they come on top of.
pub(super) fn variables(
    intents: &[Intent],
    paths: &PathFacts,
    request: &Request,
    env: &BTreeMap<OsBytes, OsBytes>,
) -> Result<Vec<(String, OsBytes)>, PlanError> {
    let mut out: Vec<(String, OsBytes)> = Vec::new();
    let mut set = |name: &str, value: OsBytes| out.push((name.to_owned(), value));
    for intent in intents {
        let sources = sources(paths, *intent)?;
        let at = |n: usize| place(*intent, &sources[n]).map(|p| OsBytes::from(p.as_bytes().to_vec()));
        match intent {
            Intent::Browser | Intent::Gpu => {}
            Intent::SshAgent => set("SSH_AUTH_SOCK", at(0)?),
            Intent::Wayland => set("WAYLAND_DISPLAY", at(0)?),
            Intent::X11 => {
                if let Some(display) = request.caller_env.get(&OsBytes::from("DISPLAY")) {
                    set("DISPLAY", display.clone());
                }
                if sources.len() > 1 {
                    set("XAUTHORITY", at(1)?);
                }
            }
            Intent::GitCredentials => {
                let said = env.get(&OsBytes::from("GIT_CONFIG_COUNT"));
                let first: usize = said
                    .and_then(|v| std::str::from_utf8(v.as_bytes()).ok()?.parse().ok())
                    .filter(|n| *n < 1000)
                    .unwrap_or(0);
                for (n, source) in sources.iter().enumerate() {
                    let file = place(*intent, source)?;
                    // Only to get: nothing can be stored there, and git would say so each time.
                    let helper = format!(
                        "!f() {{ test \"$1\" != get || git credential-store --file={file} get; }}; f"
                    );
                    let index = first + n;
                    set(&format!("GIT_CONFIG_KEY_{index}"), "credential.helper".into());
                    set(&format!("GIT_CONFIG_VALUE_{index}"), helper.into());
                }
                set("GIT_CONFIG_COUNT", (first + sources.len()).to_string().into());
            }
        }
    }
    Ok(out)
}

//! `stockade caches`: the kept layers of package caches, listed and removed.

use super::args::{Caches as Commands, ListCaches, RemoveCaches};
use super::explain::size;
use super::meant::{self, Caller};
use super::policy::document;
use super::render::safe;
use super::{fault, host, print};
use crate::base::HostPath;
use crate::policy::CACHES;
use crate::supervise::layers::{self, Listed, Removed};
use crate::supervise::outcome::Fault;
use crate::supervise::state_dir::StateDir;
use rustix::io::Errno;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Does what was asked; the exit code.
///
/// # Errors
/// What stands in the way.
pub fn run(command: &Commands) -> Result<u8, Fault> {
    let output = match command {
        Commands::List(args) => list(args)?,
        Commands::Remove(args) => remove(args)?,
    };
    print(&output)
}

/// The state directory; `None` when there is none, and so nothing in it.
fn state(flag: Option<&PathBuf>) -> Result<Option<StateDir>, Fault> {
    let path = host::state_path(flag, &Caller::read())?;
    if path.is_dir() { host::open(&path).map(|(state, ..)| Some(state)) } else { Ok(None) }
}

fn all(state: Option<&StateDir>) -> Result<Vec<Listed>, Fault> {
    state.map_or(Ok(Vec::new()), |state| layers::list(state).map_err(|e| unusable(state, None, e)))
}

fn unusable(state: &StateDir, cache: Option<&Listed>, errno: Errno) -> Fault {
    let object = match cache {
        Some(cache) => format!("{} of {}", cache.cache, cache.workspace),
        None => state.path().join("layers").display().to_string(),
    };
    fault::layers(safe(&object), errno.to_string())
}

fn list(args: &ListCaches) -> Result<Vec<u8>, Fault> {
    let state = state(args.state.state_dir.as_ref())?;
    let all = all(state.as_ref())?;
    if args.json {
        return document(&serde_json::json!({ "schema": "stockade.caches/1", "caches": all }), true);
    }
    let mut out = String::new();
    let width = all.iter().map(|l| l.cache.len()).max().unwrap_or(0);
    let names = all.iter().map(|l| l.profile.len()).max().unwrap_or(0);
    for layer in &all {
        let bytes = layer.bytes.map_or_else(|| "not known".to_owned(), size);
        let (cache, profile) = (safe(&layer.cache), safe(&layer.profile));
        let _ = writeln!(out, "{cache:<width$}  {bytes:>10}  {profile:<names$}  {}", layer.workspace);
    }
    if all.is_empty() {
        out.push_str("nothing is kept\n");
    }
    Ok(out.into_bytes())
}

fn remove(args: &RemoveCaches) -> Result<Vec<u8>, Fault> {
    if let Some(unknown) = args.caches.iter().find(|name| CACHES.iter().all(|c| c.name != name.as_str())) {
        let names: Vec<&str> = CACHES.iter().map(|c| c.name).collect();
        let message = format!("there is no cache `{}`", safe(unknown));
        return Err(fault::arguments(message, format!("the caches are {}", names.join(", "))));
    }
    let Some(state) = state(args.state.state_dir.as_ref())? else { return Ok(b"nothing is kept\n".to_vec()) };
    let of = if args.all { None } else { Some(workspace(args.workspace.as_ref())?) };
    let asked = |l: &Listed| {
        of.as_ref().is_none_or(|of| l.workspace == *of)
            && (args.caches.is_empty() || args.caches.contains(&l.cache))
    };
    let mut out = String::new();
    let mut busy = None;
    for layer in all(Some(&state))?.iter().filter(|l| asked(l)) {
        match layers::remove_listed(&state, layer).map_err(|e| unusable(&state, Some(layer), e))? {
            Removed::Done => {
                let _ = writeln!(out, "removed {} of {}", safe(&layer.cache), layer.workspace);
            }
            Removed::InUse => {
                busy.get_or_insert_with(|| format!("{} of {}", safe(&layer.cache), layer.workspace));
            }
        }
    }
    match busy {
        Some(object) => {
            print(out.as_bytes())?;
            Err(fault::layers(object, "a run has it".to_owned()))
        }
        None if out.is_empty() => Ok(b"nothing is kept\n".to_vec()),
        None => Ok(out.into_bytes()),
    }
}

/// A workspace that is gone still has a name.
fn workspace(named: Option<&PathBuf>) -> Result<HostPath, Fault> {
    match (meant::workspace(named.map(PathBuf::as_path)), named.map(HostPath::new)) {
        (Err(meant::WhereError::Unreachable { .. }), Some(Ok(path))) => Ok(path),
        (other, _) => other.map_err(|e| fault::place(&e)),
    }
}

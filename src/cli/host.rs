//! This host as one invocation finds it: state directory, cache, facts.

use super::fault;
use super::meant::Caller;
use crate::base::HostPath;
use crate::plan::HostFacts;
use crate::probe::{self, Store, StoreError};
use crate::supervise::outcome::Fault;
use crate::supervise::state_dir::{self, Places, StateDir};
use std::path::{Path, PathBuf};

/// Whether this is the inside of a Stockade sandbox: its note is there, and so is its filter, which knows no openat2.
pub fn is_nested() -> bool {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    let call = || openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty());
    Path::new("/.stockade/sandbox.json").exists() && matches!(call(), Err(rustix::io::Errno::NOSYS))
}

/// Where the state directory is, by the flag, the environment and the user.
///
/// # Errors
/// When nothing says where.
pub fn state_path(flag: Option<&PathBuf>, caller: &Caller) -> Result<PathBuf, Fault> {
    let var = |name| caller.var(name).map(ToOwned::to_owned);
    let places = Places {
        flag: flag.cloned(),
        stockade_state: var("STOCKADE_STATE"),
        xdg_state_home: var("XDG_STATE_HOME"),
        // The home of record, when the environment says nothing.
        home: caller.home.as_ref().map(|h| h.as_path().as_os_str().to_owned()),
        uid: rustix::process::geteuid().as_raw(),
    };
    state_dir::resolve(&places).map_err(|e| fault::state(&e))
}

/// The opened state directory, the cache in it, and its real path, which plans mask.
///
/// # Errors
/// When it cannot be opened or made, or others may change it.
pub fn open(path: &Path) -> Result<(StateDir, Store, HostPath), Fault> {
    let uid = rustix::process::geteuid().as_raw();
    let state = StateDir::open(path, uid).map_err(|e| fault::state(&e))?;
    let cache = state
        .cache()
        .try_clone_to_owned()
        .map_err(|source| fault::store(&StoreError::Directory { path: path.join("cache"), source }))?;
    let store = Store::within(cache).map_err(|e| fault::store(&e))?;
    let real = state.real().and_then(|real| HostPath::new(real).ok()).or_else(|| HostPath::new(path).ok());
    let real =
        real.ok_or_else(|| fault::state(&state_dir::StateError::Relative { path: path.to_path_buf() }))?;
    Ok((state, store, real))
}

/// What is needed where nothing runs: facts, and the path to mask. An absent state directory stays absent, and one
/// that cannot be used costs a probe.
///
/// # Errors
/// When the host cannot be probed.
pub fn look(flag: Option<&PathBuf>, caller: &Caller) -> Result<(HostFacts, Option<HostPath>), Fault> {
    let path = state_path(flag, caller).ok();
    let opened = path.as_deref().filter(|p| p.is_dir()).and_then(|p| open(p).ok());
    let facts = facts(opened.as_ref().map(|(_, store, _)| store))?;
    let real = opened.map(|(.., real)| real).or_else(|| HostPath::new(would_be(&path?)).ok());
    Ok((facts, real))
}

/// Where `path` will really lie once it is made: what is there of it, links resolved, and the rest.
fn would_be(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, std::fs::canonicalize(above).ok()?)));
    match there {
        Some((above, real)) => path.strip_prefix(above).map_or(real.clone(), |rest| real.join(rest)),
        None => path.to_path_buf(),
    }
}

/// The facts, from the cache when it has them.
///
/// # Errors
/// When the host cannot be probed.
pub fn facts(store: Option<&Store>) -> Result<HostFacts, Fault> {
    probe::facts(store, &probe::build_id()).map_err(|e| fault::probe(&e))
}

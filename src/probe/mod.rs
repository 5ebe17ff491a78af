//! Reads the host by trying, as the user who will run things, and the paths that a request names, with
//! that user's rights. Leaves nothing behind. Process: the caller itself, single-threaded for
//! [`host::probe`]. Neighbours: `plan` reads the facts, `doctor`'s checks are rendered by `cli`.

pub mod ask;
pub mod cache;
mod caches;
mod cgroups;
pub mod doctor;
mod git;
pub mod host;
mod intents;
mod listing;
mod never;
pub mod paths;
mod proc;
mod remedy;
#[cfg(test)]
mod testing;
mod toolchains;
mod trial;
mod workspace;

pub use cache::{Store, StoreError};
pub use host::ProbeError;
pub use intents::intents;
pub(crate) use listing::{Seen, list, names};
pub use paths::{GatherError, gather, look_up, plain};
pub use remedy::apparmor_profile;

use crate::base::Digest;
use crate::plan::HostFacts;
use rustix::fs::{self, Mode, OFlags};
use std::path::Path;

const KIND: &str = "facts";

/// The host's facts, from the store when they were found out earlier in the same circumstances, else by
/// probing. Facts with which nothing can run are not kept, since what mends them (a sysctl, a profile) leaves
/// no trace in the circumstances.
///
/// # Errors
/// See [`ProbeError`].
pub fn facts(store: Option<&Store>, build_id: &str) -> Result<HostFacts, ProbeError> {
    if let Some(store) = store
        && let Ok(key) = circumstances(build_id)
        && let Some(bytes) = store.get(KIND, &key)
        && let Ok(mut facts) = serde_json::from_slice::<HostFacts>(&bytes)
        && cgroups::still_holds(&facts.cgroup)
    {
        // Per process, not per circumstances.
        facts.open_files_hard = host::open_files_hard();
        return Ok(facts);
    }
    refresh(store, build_id)
}

/// Probes, whatever the store says, and keeps the result; what `doctor` does, and what a launch does that
/// failed where the facts had promised success.
///
/// # Errors
/// See [`ProbeError`].
pub fn refresh(store: Option<&Store>, build_id: &str) -> Result<HostFacts, ProbeError> {
    let facts = host::probe()?;
    if let Some(store) = store
        && let Ok(key) = circumstances(build_id)
    {
        let worth = facts.namespaces.works() && facts.mount_api.works() && facts.seccomp.works();
        match serde_json::to_vec(&facts) {
            // A store that cannot be written costs the next start a probe.
            Ok(bytes) if worth => drop(store.put(KIND, &key, &bytes)),
            _ => store.forget(KIND, &key),
        }
    }
    Ok(facts)
}

/// Identifies the running binary: what an earlier build found out is no proof for another. Version, device, inode,
/// size and modification time of the executable; two system calls, where hashing it would cost milliseconds.
pub fn build_id() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match fs::stat("/proc/self/exe") {
        Ok(s) => {
            format!("{version}/{}/{}/{}/{}.{}", s.st_dev, s.st_ino, s.st_size, s.st_mtime, s.st_mtime_nsec)
        }
        // Without procfs every process is a build of its own, so that nothing is ever taken from a cache.
        Err(_) => format!("{version}/unknown/{}", std::process::id()),
    }
}

/// What facts depend on, beside the kernel's settings: boot, ids, capabilities, own cgroups and namespaces, a
/// filter on this process, and this build.
fn circumstances(build_id: &str) -> Result<Digest, ProbeError> {
    let unread = |file| move |e: rustix::io::Errno| ProbeError::Proc { file, source: e.into() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let me = fs::open("/proc/self", flags, Mode::empty()).map_err(unread("self"))?;
    let mut all: Vec<u8> = Vec::with_capacity(1024);
    let mut add = |part: &[u8]| {
        all.extend_from_slice(&(part.len() as u64).to_le_bytes());
        all.extend_from_slice(part);
    };
    add(build_id.as_bytes());
    let boot = proc::read(Path::new("/proc/sys/kernel/random/boot_id"));
    add(&boot.map_err(|source| ProbeError::Proc { file: "sys/kernel/random/boot_id", source })?);
    let read_only = OFlags::RDONLY | OFlags::CLOEXEC;
    // Absent on a kernel without cgroups.
    let own = fs::openat(&me, "cgroup", read_only, Mode::empty()).ok().and_then(|f| proc::read_file(f).ok());
    add(&own.unwrap_or_default());
    for name in ["ns/user", "ns/mnt", "ns/pid", "ns/net", "ns/cgroup"] {
        // A link's text, `net:[4026531840]`: cheaper than stat(2), which makes the kernel open the object.
        add(fs::readlinkat(&me, name, Vec::with_capacity(64)).map_err(unread("self/ns"))?.to_bytes());
    }
    add(&rustix::process::geteuid().as_raw().to_le_bytes());
    add(&rustix::process::getegid().as_raw().to_le_bytes());
    add(&host::effective().bits().to_le_bytes());
    let filtered = rustix::thread::secure_computing_mode().is_ok_and(|m| m as i32 != 0);
    add(&[u8::from(filtered)]);
    Ok(Digest::of(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circumstances_hold_still_and_tell_builds_apart() {
        let one = circumstances("a").unwrap();
        assert_eq!(one, circumstances("a").unwrap());
        assert_ne!(one, circumstances("b").unwrap());
    }
}

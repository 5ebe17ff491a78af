//! Per-process limits, inherited by everything in the executor. Soft and hard alike, so that nothing raises
//! them again. setrlimit(2).

use crate::plan::LimitPlan;
use crate::sandbox::stage::wire::{AtStep, StageFault, Step};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Sets core 0, nofile, fsize, memlock and stack. Never above the current hard limit: raising needs a privilege
/// that a supervisor need not have.
///
/// # Errors
/// setrlimit(2).
pub fn apply(limits: &LimitPlan) -> Result<(), StageFault> {
    let wanted = [
        (Resource::Core, Some(0)),
        (Resource::Nofile, Some(limits.open_files)),
        (Resource::Fsize, limits.file_size),
        (Resource::Memlock, Some(limits.locked_memory)),
        (Resource::Stack, Some(limits.stack)),
    ];
    for (resource, value) in wanted {
        let Some(value) = value else { continue };
        let value = getrlimit(resource).maximum.map_or(value, |hard| value.min(hard));
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).at(Step::Rlimits)?;
    }
    Ok(())
}

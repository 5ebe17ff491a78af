//! Capabilities: the bounding set and securebits while they may still be changed, everything else after the
//! identity is taken. capabilities(7).

use crate::sandbox::stage::wire::{AtStep, StageFault, Step};
use rustix::thread::{CapabilitiesSecureBits as Bits, CapabilitySet, CapabilitySets};

/// The securebits of a command, all locked: no privilege by being uid 0, none kept or gained by changing uids,
/// none by the ambient set.
pub const SECUREBITS: u32 = Bits::NO_ROOT.bits()
    | Bits::NO_ROOT_LOCKED.bits()
    | Bits::NO_SETUID_FIXUP.bits()
    | Bits::NO_SETUID_FIXUP_LOCKED.bits()
    | Bits::KEEP_CAPS_LOCKED.bits()
    | Bits::NO_CAP_AMBIENT_RAISE.bits()
    | Bits::NO_CAP_AMBIENT_RAISE_LOCKED.bits();

/// Empties the bounding set and locks the securebits. Needs CAP_SETPCAP in the current user namespace.
///
/// # Errors
/// prctl(2).
pub fn drop_bounding() -> Result<(), StageFault> {
    // capabilities(7): the kernel refuses numbers that it does not know with EINVAL, which ends the walk.
    for number in 0..64u32 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            Err(e) => return Err(e).at(Step::DropBounding),
        }
    }
    rustix::thread::set_capabilities_secure_bits(Bits::from_bits_retain(SECUREBITS)).at(Step::DropBounding)
}

/// Empties the ambient, inheritable, permitted and effective sets.
///
/// # Errors
/// prctl(2), capset(2).
pub fn drop_all() -> Result<(), StageFault> {
    rustix::thread::clear_ambient_capability_set().at(Step::DropCapabilities)?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).at(Step::DropCapabilities)
}

/// Runs `f` with an effective set that cannot override file permissions, so that paths are resolved with the
/// identity's own rights, and restores it afterwards.
///
/// # Errors
/// capset(2), or what `f` returns.
pub fn without_file_override<T>(f: impl FnOnce() -> Result<T, StageFault>) -> Result<T, StageFault> {
    let held = rustix::thread::capabilities(None).at(Step::OpenSources)?;
    let mut reduced = held;
    reduced.effective.remove(
        CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::DAC_READ_SEARCH
            | CapabilitySet::FOWNER
            | CapabilitySet::CHOWN,
    );
    rustix::thread::set_capabilities(None, reduced).at(Step::OpenSources)?;
    let result = f();
    rustix::thread::set_capabilities(None, held).at(Step::OpenSources)?;
    result
}

/// Whether the calling process holds no capability at all.
pub fn none_held() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|c| c.effective.is_empty() && c.permitted.is_empty() && c.inheritable.is_empty())
}

//! The Landlock rule set, made on the built root and applied by the command's process. landlock(7).

use crate::plan::{LandlockAccess, LandlockPlan};
use crate::sandbox::stage::wire::{StageFault, Step};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use rustix::fs::{FileType, Mode, OFlags};
use std::os::fd::OwnedFd;

fn fault(index: usize, errno: i32) -> StageFault {
    StageFault { step: Step::LandlockRules, errno, index: u32::try_from(index).unwrap_or(u32::MAX) }
}

fn abi(number: u32) -> ABI {
    match number {
        0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        6 => ABI::V6,
        _ => ABI::V7,
    }
}

/// Makes the rule set; `None` when the plan has no Landlock (ABI 0, a permitted gap). To be called inside the
/// new root: rules are bound to the objects that stand there. Hard requirements throughout: what this kernel
/// lacks was already taken out of the plan, so anything that fails now is an error.
///
/// # Errors
/// landlock_create_ruleset(2), landlock_add_rule(2), openat(2).
pub fn build(plan: &LandlockPlan) -> Result<Option<OwnedFd>, StageFault> {
    if plan.abi == 0 {
        return Ok(None);
    }
    let abi = abi(plan.abi);
    let all = AccessFs::from_all(abi);
    let crate_error = |_: landlock::RulesetError| fault(usize::MAX, libc::EINVAL);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)
        .map_err(crate_error)?;
    if plan.deny_tcp {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp).map_err(crate_error)?;
    }
    if plan.scope {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal).map_err(crate_error)?;
    }
    let mut created = ruleset.create().map_err(crate_error)?;
    let read = AccessFs::from_read(abi);
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
    for (index, rule) in plan.rules.iter().enumerate() {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = rustix::fs::open(rule.at.as_path(), flags, Mode::empty());
        let fd = open.map_err(|e| fault(index, e.raw_os_error()))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| fault(index, e.raw_os_error()))?;
        let mut access: BitFlags<AccessFs> = match rule.access {
            LandlockAccess::Read => read,
            LandlockAccess::Files => read | (AccessFs::from_file(abi) & all),
            LandlockAccess::Tree => all & !devices,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            access &= AccessFs::from_file(abi);
        }
        created = created.add_rule(PathBeneath::new(fd, access)).map_err(|_| fault(index, libc::EINVAL))?;
    }
    let fd: Option<OwnedFd> = created.into();
    fd.map(Some).ok_or_else(|| fault(usize::MAX, libc::ENOSYS))
}

//! What went wrong in a stage, as an operator is told: which step, about what, and what to do next.

use super::outcome::{Boundary, Fault};
use crate::base::text::visible;
use crate::plan::{FsOp, Plan, SourceIx};
use crate::sandbox::stage::wire::{StageFault, Step};
use std::io;

/// Exit code when the containment could not be built or kept.
pub const EXIT_CONTAINMENT: u8 = 125;
/// Exit code when the command was found but cannot be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit code when the command was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// A fault of the sandbox without a stage.
pub fn sandbox(
    code: &'static str,
    stage: &str,
    object: Option<String>,
    message: String,
    hint: Option<&str>,
) -> Fault {
    Fault {
        code,
        boundary: Boundary::Sandbox,
        stage: stage.to_owned(),
        object,
        message,
        hint: hint.map(str::to_owned),
        exit_code: EXIT_CONTAINMENT,
    }
    .with_common_remedy()
}

/// A fault of the state directory.
pub fn store(stage: &str, message: String) -> Fault {
    Fault {
        code: "state_dir",
        boundary: Boundary::ArtifactStore,
        stage: stage.to_owned(),
        object: None,
        message,
        hint: Some("choose another state directory with --state-dir, or mend this one".to_owned()),
        exit_code: EXIT_CONTAINMENT,
    }
    .with_common_remedy()
}

/// Explains a stage's fault by the plan that it worked on.
pub fn explain(plan: &Plan, fault: StageFault) -> Fault {
    if fault.step == Step::Execute {
        return command(plan, fault);
    }
    let os = io::Error::from_raw_os_error(fault.errno);
    let source = || plan.containment.sources.get(fault.index as usize).map(|s| s.path.to_string());
    let mount = || plan.containment.fs.get(fault.index as usize).map(|op| op.at().to_string());
    let rule = || plan.containment.landlock.rules.get(fault.index as usize).map(|r| r.at.to_string());
    let is = |index: SourceIx| index.0 == fault.index;
    let of_cache = || {
        plan.containment.fs.iter().any(|op| match op {
            FsOp::Overlay { lower, layer, at } => {
                layer.is_some_and(is)
                    || lower.is_some_and(is) && plan.containment.caches.iter().any(|c| c.at == *at)
            }
            _ => false,
        })
    };
    let cache_at = || {
        let op = plan.containment.fs.get(fault.index as usize);
        op.is_some_and(|op| plan.containment.caches.iter().any(|c| c.host && c.at == *op.at()))
    };
    let (code, object, hint): (&'static str, Option<String>, Option<&str>) = match (fault.step, fault.errno) {
        (Step::OpenSources, libc::ESTALE) => (
            "source_changed",
            source(),
            Some("it was replaced between planning and opening; run the command again"),
        ),
        (Step::OpenSources, _) => (
            "source_unreachable",
            source(),
            Some("sources are opened with your own rights; choose one that you may read"),
        ),
        (Step::AwaitIdMaps, libc::EINVAL | libc::EOPNOTSUPP) if of_cache() => (
            "cache_unusable",
            source(),
            Some(
                "its file system cannot be idmapped, and the command's user would not own what is in it: name another \
                 one (the state directory by --state-dir), or take the cache out with --set caches.use=…",
            ),
        ),
        (Step::AwaitIdMaps, libc::EINVAL | libc::EOPNOTSUPP) if source().is_some() => (
            "idmap_unsupported",
            source(),
            Some(
                "its file system cannot be idmapped and it belongs to root: use a workspace on another file system, \
                 or run as the user who owns it",
            ),
        ),
        (Step::AwaitIdMaps, libc::EPERM) => (
            "id_map_refused",
            None,
            Some("the id range may not be mapped here; run as an ordinary user, or outside this container"),
        ),
        (Step::MountTable, libc::ENOENT) => (
            "mount_point_missing",
            mount(),
            Some(
                "the mount point does not exist in the tree below it, and none is created on the host: create it first",
            ),
        ),
        (Step::MountTable, libc::ELOOP) => (
            "mount_point_link",
            mount(),
            Some("a mount point may not lie behind a symbolic link: name the real path"),
        ),
        (Step::MountTable, libc::ESTALE) => (
            "mount_point_changed",
            mount(),
            Some("it was replaced between planning and mounting; run the command again"),
        ),
        (Step::MountTable, libc::ENOSPC) => (
            "scratch_too_small",
            mount(),
            Some("the root's own files do not fit: raise limits.scratch or limits.scratch_inodes"),
        ),
        (Step::MountTable, _) if cache_at() => (
            "cache_unusable",
            mount(),
            Some(
                "no overlay can be made of it on its file system: take the cache out with --set caches.use=…, or let \
                 nothing be kept with --set caches.layer=throwaway",
            ),
        ),
        (Step::MountTable, _) => ("mount_failed", mount(), None),
        (Step::LandlockRules, _) => ("landlock_rule", rule(), None),
        (Step::WorkingDirectory, _) => (
            "cwd_missing",
            Some(plan.command.cwd.to_string()),
            Some("the working directory does not exist inside; name another with --cwd"),
        ),
        (Step::MaskLost, _) => (
            "mask_lost",
            plan.containment.fs.get(fault.index as usize).map(|op| op.at().to_string()),
            Some(
                "a masked or protected path was renamed or replaced on the host; `--set workspace.access=overlay` is proof against that",
            ),
        ),
        (Step::SelfCheck, _) => {
            ("self_check", None, Some("this is a defect of the kernel or of stockade: report it"))
        }
        (Step::Trace, _) => (
            "not_traced",
            None,
            Some(
                "the host keeps init from tracing (kernel.yama.ptrace_scope, a filter above); run without --trace-denials",
            ),
        ),
        (Step::Unshare, _) => ("namespaces", None, Some("run `stockade doctor`")),
        _ => ("stage_failed", None, Some("run `stockade doctor`")),
    };
    let message = match (fault.step, fault.errno) {
        (Step::MaskLost, 0) => "what covered or held it is gone".to_owned(),
        (_, 0) => "failed".to_owned(),
        _ => os.to_string(),
    };
    sandbox(code, fault.step.name(), object, message, hint)
}

/// The command itself could not be executed: its own exit codes.
fn command(plan: &Plan, fault: StageFault) -> Fault {
    let name = plan.command.argv.first().map_or_else(String::new, |a| visible(a.as_bytes()));
    let there = fault.index == 1;
    let (code, exit_code, message, hint): (_, _, String, Option<&str>) = match fault.errno {
        libc::ENOENT | libc::ENOTDIR if !there => (
            "command_not_found",
            EXIT_NOT_FOUND,
            "not found inside the executor".into(),
            Some("`stockade policy explain` shows what is mounted and where PATH leads"),
        ),
        libc::ENOENT => (
            "interpreter_missing",
            EXIT_NOT_EXECUTABLE,
            "its interpreter or loader does not exist inside the executor".into(),
            Some("check the first line of the script, or mount what it needs with --ro"),
        ),
        libc::EACCES | libc::EPERM => (
            "not_executable",
            EXIT_NOT_EXECUTABLE,
            "found, but it may not be executed".into(),
            Some("check its type and permissions"),
        ),
        libc::E2BIG => (
            "arguments_too_long",
            EXIT_NOT_EXECUTABLE,
            "arguments and environment are longer than the kernel takes".into(),
            Some("pass the data by file or standard input"),
        ),
        libc::ENOEXEC => (
            "not_executable",
            EXIT_NOT_EXECUTABLE,
            "not in a format that the kernel executes".into(),
            Some("give a script a first line such as #!/bin/sh"),
        ),
        errno => ("exec_failed", EXIT_NOT_EXECUTABLE, io::Error::from_raw_os_error(errno).to_string(), None),
    };
    Fault {
        code,
        boundary: Boundary::Tool,
        stage: Step::Execute.name().to_owned(),
        object: Some(name),
        message,
        hint: hint.map(str::to_owned),
        exit_code,
    }
}

//! Every module's errors as the operator's [`Fault`]: one table of boundaries, stages, hints and exit codes.

use super::exit;
use super::meant::{FlagError, WhereError};
use crate::base::text::visible;
use crate::plan::PlanError;
use crate::policy::{LibraryError, Place, PolicyError};
use crate::probe::{GatherError, ProbeError, StoreError};
use crate::supervise::outcome::{Boundary, Fault};
use crate::supervise::recover::LiveError;
use crate::supervise::state_dir::StateError;
use std::error::Error;
use std::path::Path;

fn make(
    (boundary, code, stage): (Boundary, &'static str, &str),
    object: Option<String>,
    message: String,
    hint: Option<String>,
) -> Fault {
    Fault { code, boundary, stage: stage.to_owned(), object, message, hint, exit_code: exit::CONTAINMENT }
        .with_common_remedy()
}

/// An error with all that caused it.
fn chain(error: &dyn Error) -> String {
    let mut out = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        out.push_str(": ");
        out.push_str(&cause.to_string());
        next = cause.source();
    }
    out
}

fn shown(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    visible(path.as_os_str().as_bytes())
}

/// Wrong arguments.
pub fn arguments(message: String, hint: String) -> Fault {
    make((Boundary::Configuration, "arguments", "arguments"), None, message, Some(hint))
}

/// Stockade in Stockade.
pub fn nested() -> Fault {
    make(
        (Boundary::Sandbox, "nested", "starting"),
        None,
        "this process is inside a Stockade sandbox, which lets nobody make another".to_owned(),
        Some("run the command here as it is, or let the outer caller start a second `stockade exec` outside, beside this one".to_owned()),
    )
}

/// A flag's value.
pub fn flag(error: &FlagError) -> Fault {
    let object = Some(error.flag.to_owned());
    make(
        (Boundary::Configuration, error.fault.code(), "arguments"),
        object,
        error.fault.to_string(),
        error.fault.hint(),
    )
}

/// Where we are, or were told to be.
pub fn place(error: &WhereError) -> Fault {
    let (code, object, hint) = match error {
        WhereError::Gone { .. } => (
            "cwd_dangling",
            Some("the current directory".to_owned()),
            "change into a directory that exists, or name the workspace with -w",
        ),
        WhereError::Unreachable { path, .. } => (
            "workspace_unreachable",
            Some(shown(path)),
            "name a directory that exists and that you may enter",
        ),
        WhereError::Path { path, .. } => ("path_invalid", Some(shown(path)), "name another directory"),
    };
    make((Boundary::Configuration, code, "workspace"), object, chain(error), Some(hint.to_owned()))
}

/// A profile, project file or `--set`.
pub fn policy(error: &PolicyError) -> Fault {
    let stage = match &error.place {
        Place::File { .. } => "profile",
        Place::Set => "arguments",
    };
    let object = match &error.key {
        Some(key) => format!("{}: {key}", error.place),
        None => error.place.to_string(),
    };
    make((Boundary::Configuration, error.code(), stage), Some(object), error.fault.to_string(), error.hint())
}

/// `--timeout`, which is a `--set limits.wall=…` that the caller did not write.
pub fn timeout(error: &PolicyError) -> Fault {
    let mut fault = policy(error);
    fault.object = Some("--timeout".to_owned());
    if let crate::policy::Fault::Widens { profile, base, .. } = &*error.fault {
        fault.hint = Some(format!(
            "at most {base} under profile `{profile}`; a profile of your own with `extends = \"{profile}\"` and a \
             larger limits.wall permits more"
        ));
    }
    fault
}

/// A profile that is there and cannot be read.
pub fn unreadable(error: &LibraryError) -> Fault {
    make(
        (Boundary::Configuration, "profile_unreadable", "profile"),
        Some(error.path.to_string()),
        format!("cannot be read: {}", error.cause),
        Some("a profile is a regular file of at most 64KiB that you may read and that nobody but you and root may change".to_owned()),
    )
}

/// No profile of that name.
pub fn unknown_profile(name: &str) -> Fault {
    let fault = crate::policy::Fault::UnknownProfile {
        name: visible(name.as_bytes()),
        near: crate::manifest::near(name, crate::policy::embedded_names().iter().copied()),
    };
    let stage = (Boundary::Configuration, fault.code(), "profile");
    make(stage, Some("--profile".to_owned()), fault.to_string(), fault.hint())
}

/// Not a name at all.
pub fn profile_name(name: &[u8]) -> Fault {
    let fault = crate::policy::Fault::ProfileName { name: visible(name) };
    make(
        (Boundary::Configuration, fault.code(), "profile"),
        Some("--profile".to_owned()),
        fault.to_string(),
        Some("a file is named with a `/` or `.toml` in it, such as ./mine.toml".to_owned()),
    )
}

/// No plan.
pub fn plan(error: &PlanError) -> Fault {
    let boundary = match error {
        PlanError::Unmet { .. } | PlanError::Encoding(_) | PlanError::TooMany(_) => Boundary::Sandbox,
        _ => Boundary::Configuration,
    };
    make((boundary, error.code(), "plan"), error.object(), error.to_string(), error.hint())
}

/// No facts about the paths.
pub fn gather(error: &GatherError) -> Fault {
    let (code, object, hint) = match error {
        GatherError::Workspace { path, .. } => {
            ("workspace_unreachable", Some(path.to_string()), "name a directory that you may enter with -w")
        }
        GatherError::Unreadable { dir, .. } => (
            "workspace_unsearchable",
            Some(dir.clone()),
            "make it readable for yourself, or choose another workspace",
        ),
        GatherError::TooManyEntries { dir, .. } => (
            "workspace_unsearchable",
            Some(dir.clone()),
            "choose another workspace, or a profile without the pattern",
        ),
        GatherError::TooManyMatches => {
            ("workspace_unsearchable", None, "choose another workspace, or a profile with fewer patterns")
        }
        GatherError::Mounts(_) => {
            ("host_unknown", None, "stockade needs the procfs of its own PID namespace at /proc")
        }
        GatherError::Root { dir } => {
            ("root_unlistable", Some(dir.to_string()), "name the top of a root file system")
        }
    };
    make((Boundary::Configuration, code, "workspace"), object, chain(error), Some(hint.to_owned()))
}

/// No facts about the host.
pub fn probe(error: &ProbeError) -> Fault {
    let hint = match error {
        ProbeError::ForeignProc => "mount -t proc proc /proc in this PID namespace",
        ProbeError::Proc { .. } => "stockade needs the procfs of its own PID namespace at /proc",
        _ => "is the host out of processes, descriptors or memory?",
    };
    make((Boundary::Sandbox, "host_unknown", "probing the host"), None, chain(error), Some(hint.to_owned()))
}

/// No state directory.
pub fn state(error: &StateError) -> Fault {
    let (code, object, hint) = match error {
        StateError::Nowhere => {
            ("state_dir_nowhere", None, "name one with --state-dir, or set STOCKADE_STATE or HOME")
        }
        StateError::Relative { path } => ("state_dir_relative", Some(shown(path)), "write the whole path"),
        StateError::Unsafe { at, .. } => (
            "state_dir_unsafe",
            Some(shown(at)),
            "it must belong to you and be writable for you alone; name another one with --state-dir",
        ),
        StateError::Step { path, .. } => {
            ("state_dir_unusable", Some(shown(path)), "mend it, or name another one with --state-dir")
        }
    };
    make((Boundary::ArtifactStore, code, "state directory"), object, chain(error), Some(hint.to_owned()))
}

/// No cache in the state directory.
pub fn store(error: &StoreError) -> Fault {
    let object = match error {
        StoreError::Directory { path, .. } | StoreError::NotADirectory(path) => Some(shown(path)),
        StoreError::ForeignOwner { path, .. } | StoreError::OthersWrite { path, .. } => Some(shown(path)),
        StoreError::Key(_) | StoreError::Write(_) | StoreError::Entry => None,
    };
    let hint =
        "mend it or remove it (it holds nothing that is not found out again), or use another --state-dir";
    make(
        (Boundary::ArtifactStore, "cache_unusable", "state directory"),
        object,
        chain(error),
        Some(hint.to_owned()),
    )
}

/// The records of runs.
pub fn live(error: &LiveError) -> Fault {
    let object = match error {
        LiveError::Step { path, .. } | LiveError::Locked { path, .. } => Some(shown(path)),
        LiveError::NoIds { .. } | LiveError::Record(_) => None,
    };
    let hint = "mend it, or use another --state-dir";
    make(
        (Boundary::ArtifactStore, "state_dir_unusable", "recovery"),
        object,
        chain(error),
        Some(hint.to_owned()),
    )
}

/// Kept layers.
pub fn layers(object: String, message: String) -> Fault {
    let hint =
        "try again when no run is going on in that workspace; `stockade caches list` shows what there is";
    make(
        (Boundary::ArtifactStore, "cache_layer", "kept layers of caches"),
        Some(object),
        message,
        Some(hint.to_owned()),
    )
}

/// A result that cannot go where it should.
pub fn result(object: String, message: String, hint: String) -> Fault {
    make((Boundary::ArtifactStore, "result_undeliverable", "result"), Some(object), message, Some(hint))
}

/// A project's file that cannot be written.
pub fn draft(object: String, message: String, hint: &str) -> Fault {
    make(
        (Boundary::Configuration, "draft_unwritable", "profile"),
        Some(object),
        message,
        Some(hint.to_owned()),
    )
}

/// A document that is to be a policy.
pub fn resolved(path: &Path, error: &crate::policy::ResolvedError) -> Fault {
    make(
        (Boundary::Configuration, "resolved_invalid", "profile"),
        Some(shown(path)),
        error.to_string(),
        Some("make it with `stockade policy show NAME --json`, by this version".to_owned()),
    )
}

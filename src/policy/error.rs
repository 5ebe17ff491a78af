//! What can be wrong with a policy, where, and what to do about it: each as data.

use super::types::Origin;
use crate::base::HostPath;
use crate::manifest::{At, ManifestError, ManifestFault, near};
use std::fmt;

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("built-in profile"),
            Self::System(path) | Self::User(path) | Self::File(path) | Self::Project(path) => path.fmt(f),
        }
    }
}

/// What a fault belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File {
        /// Which.
        origin: Origin,
        /// Line and column, when the fault has a place in it.
        at: Option<At>,
    },
    /// A `--set key=value` of the caller's.
    Set,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { origin, at: Some(at) } => write!(f, "{origin}:{at}"),
            Self::File { origin, at: None } => origin.fmt(f),
            Self::Set => f.write_str("--set"),
        }
    }
}

/// Why there is no policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    /// Where.
    pub place: Place,
    /// The key, as a dotted path, when the fault belongs to one.
    pub key: Option<String>,
    /// What. Boxed, since every step here returns one of these.
    pub fault: Box<Fault>,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for PolicyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.fault.as_ref())
    }
}

impl PolicyError {
    /// A stable name of the kind of fault.
    pub fn code(&self) -> &'static str {
        self.fault.code()
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match (self.fault.as_ref(), &self.key) {
            (Fault::Widens { profile, .. }, Some(key)) => Some(format!(
                "a project file and --set may only narrow; to widen, write a profile of your own (for instance \
                 ~/.config/stockade/profiles/mine.toml) with `extends = \"{profile}\"` and `{key}`, and choose it \
                 with --profile"
            )),
            (fault, _) => fault.hint(),
        }
    }

    pub(super) fn of_manifest(origin: &Origin, error: ManifestError) -> Self {
        Self {
            place: Place::File { origin: origin.clone(), at: error.at },
            key: error.key,
            fault: Box::new(Fault::Manifest(error.fault)),
        }
    }
}

/// A profile that the library could not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} cannot be read: {cause}")]
pub struct LibraryError {
    /// The file.
    pub path: HostPath,
    /// The operating system's words.
    pub cause: String,
}

/// The kinds of fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file itself.
    #[error(transparent)]
    Manifest(#[from] ManifestFault),
    /// A profile that `extends` names could not be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Not a profile's name.
    #[error(
        "`{name}` is not a profile name: small letters, digits, `-` and `_`, at most 64, a letter or digit first"
    )]
    ProfileName {
        /// What was written.
        name: String,
    },
    /// Neither the file nor its name says how the profile is called.
    #[error("the profile has no name and its file name is not one")]
    ProfileNameMissing,
    /// `extends` names a profile that nobody has.
    #[error("there is no profile `{name}`")]
    UnknownProfile {
        /// The name.
        name: String,
        /// Built-in names that look alike.
        near: Vec<String>,
    },
    /// `extends` over too many files.
    #[error("more than {} profiles extend one another", super::EXTENDS_DEPTH_MAX)]
    ExtendsTooDeep,
    /// A profile that extends itself in the end.
    #[error("`{name}` extends itself")]
    ExtendsCycle {
        /// The name.
        name: String,
    },
    /// A key that a project's file may not have.
    #[error("a project's file may not have this key")]
    NotForProjects,
    /// `--set` with a key that it can't change.
    #[error("--set cannot change this key")]
    NotSettable {
        /// What does.
        instead: &'static str,
    },
    /// Not `key=value`.
    #[error("`{text}` is not of the form key=value")]
    SettingForm {
        /// What was written.
        text: String,
    },
    /// `--set` with a key that does not exist.
    #[error("there is no such key")]
    UnknownKey {
        /// Keys that look alike.
        near: Vec<String>,
    },
    /// A file or setting that may only narrow asks for more than the profile gives.
    #[error("`{asked}` is more than profile `{profile}` permits (`{base}`)")]
    Widens {
        /// The profile that would win without it.
        profile: String,
        /// What that profile says.
        base: String,
        /// What was asked.
        asked: String,
    },
    /// Two mounts at one place.
    #[error("target {target} is used twice (first by mounts[{first}])")]
    DuplicateTarget {
        /// The place.
        target: String,
        /// The index of the first entry.
        first: usize,
    },
    /// A mount over the root itself.
    #[error("the root itself is not a mount target")]
    TargetRoot,
    /// A source in procfs.
    #[error("procfs is the executor's own: the host's is no source")]
    Procfs,
    /// A target that is the executor's own.
    #[error(
        "nothing can be mounted or masked at {target}: /proc, /dev, /sys and /.stockade* are the executor's own"
    )]
    ReservedTarget {
        /// The place.
        target: String,
    },
    /// A mount entry without a key that its type needs.
    #[error("a {kind} mount needs `{field}`")]
    MountNeeds {
        /// The type.
        kind: &'static str,
        /// The key.
        field: &'static str,
    },
    /// A mount entry with a key that its type does not have.
    #[error("a {kind} mount has no `{field}`")]
    MountHasNo {
        /// The type.
        kind: &'static str,
        /// The key.
        field: &'static str,
    },
    /// A value that must not be empty.
    #[error("it is empty")]
    Empty,
    /// A NUL byte, which ends the string for the kernel.
    #[error("it contains a NUL byte")]
    Nul,
    /// `**` in a pattern.
    #[error("`{pattern}`: `**` is not supported; `*` stands for any run of characters within one component")]
    DoubleStar {
        /// The pattern.
        pattern: String,
    },
    /// Too many `*`.
    #[error("`{pattern}` has more than {} `*`", super::STARS_MAX)]
    TooManyStars {
        /// The pattern.
        pattern: String,
    },
    /// A pattern that is everything.
    #[error("`{pattern}` matches everything")]
    MatchesAll {
        /// The pattern.
        pattern: String,
    },
    /// More entries than the plan takes, after inheritance.
    #[error("{found} entries together with the inherited ones; at most {max}")]
    TooMany {
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// Not a host name.
    #[error("`{name}` is not a host name: letters, digits, `-` and `.`, at most 64")]
    Hostname {
        /// What was written.
        name: String,
    },
    /// A summary that is not one line.
    #[error("it must be one line of at most {} characters", super::SUMMARY_CHARS_MAX)]
    Summary,
    /// Not the name of an environment variable, or a `*` that is not the end.
    #[error("`{name}` is not a variable's name{}", if *.pattern { " or a prefix with `*`" } else { "" })]
    EnvName {
        /// What was written.
        name: String,
        /// Whether a prefix would have been accepted.
        pattern: bool,
    },
    /// A pass entry that would let the caller's environment change what programs load.
    #[error(
        "`{name}` would pass `{covers}`, by which the caller's environment chooses code that programs load"
    )]
    EnvLoader {
        /// The entry.
        name: String,
        /// The variable.
        covers: String,
    },
    /// A pass pattern that covers variables which carry authority.
    #[error("`{name}` would pass `{covers}` along with the rest")]
    EnvTooBroad {
        /// The entry.
        name: String,
        /// The variable.
        covers: String,
    },
    /// A limit outside the range that makes sense.
    #[error("`{value}` is outside {min} to {max}")]
    Limit {
        /// What was written.
        value: String,
        /// The least that works.
        min: String,
        /// The most that means anything.
        max: String,
    },
    /// `general` without the host's network: an uplink of one's own is not offered.
    #[error(
        "posture \"general\" means the host's own network and must say so: `share_host = true` is missing"
    )]
    GeneralNeedsShareHost,
    /// `share_host` without `general`.
    #[error("`share_host = true` with posture \"disabled\": one of them is wrong")]
    ShareHostNeedsGeneral,
    /// `general` without internet sockets.
    #[error("`loopback = false` forbids internet sockets, posture \"general\" needs them")]
    GeneralNeedsLoopback,
    /// Not the name of a set or call.
    #[error("`{name}` is not the name of a {what}: small letters, digits and `_`")]
    SeccompName {
        /// What was written.
        name: String,
        /// "set" or "system call".
        what: &'static str,
    },
    /// A word of a fixed list, and not one of them.
    #[error("`{name}` is not {what}: {}", all.join(", "))]
    UnknownWord {
        /// What was written.
        name: String,
        /// What was expected.
        what: &'static str,
        /// Those that there are.
        all: Vec<&'static str>,
    },
    /// No set at all: nothing could run.
    #[error("without any set no program can start")]
    NoSets,
}

impl Fault {
    /// A stable name of the kind.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Manifest(fault) => fault.code(),
            Self::Library(_) => "profile_unreadable",
            Self::ProfileName { .. } => "profile_name",
            Self::ProfileNameMissing => "profile_name_missing",
            Self::UnknownProfile { .. } => "unknown_profile",
            Self::ExtendsTooDeep => "extends_too_deep",
            Self::ExtendsCycle { .. } => "extends_cycle",
            Self::NotForProjects => "not_for_projects",
            Self::NotSettable { .. } => "not_settable",
            Self::SettingForm { .. } => "setting_form",
            Self::UnknownKey { .. } => "unknown_key",
            Self::Widens { .. } => "widens",
            Self::DuplicateTarget { .. } => "duplicate_target",
            Self::TargetRoot => "target_root",
            Self::Procfs => "procfs",
            Self::ReservedTarget { .. } => "target_reserved",
            Self::MountNeeds { .. } => "mount_needs",
            Self::MountHasNo { .. } => "mount_has_no",
            Self::Empty => "empty",
            Self::Nul => "nul",
            Self::DoubleStar { .. } => "double_star",
            Self::TooManyStars { .. } => "too_many_stars",
            Self::MatchesAll { .. } => "matches_all",
            Self::TooMany { .. } => "too_many",
            Self::Hostname { .. } => "hostname",
            Self::Summary => "summary",
            Self::EnvName { .. } => "env_name",
            Self::EnvLoader { .. } => "env_loader",
            Self::EnvTooBroad { .. } => "env_too_broad",
            Self::Limit { .. } => "limit",
            Self::GeneralNeedsShareHost => "general_needs_share_host",
            Self::ShareHostNeedsGeneral => "share_host_needs_general",
            Self::GeneralNeedsLoopback => "general_needs_loopback",
            Self::SeccompName { .. } => "seccomp_name",
            Self::UnknownWord { .. } => "unknown_word",
            Self::NoSets => "no_sets",
        }
    }

    /// What to do about it, when there is more to say than the fault itself.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Manifest(fault) => return fault.hint(),
            Self::UnknownWord { name, all, .. } => {
                let near = near(name, all.iter().copied());
                return (!near.is_empty())
                    .then(|| format!("did you mean {}?", crate::manifest::quoted(&near)));
            }
            Self::UnknownProfile { near, .. } | Self::UnknownKey { near } if !near.is_empty() => {
                return Some(format!("did you mean {}?", crate::manifest::quoted(near)));
            }
            Self::UnknownProfile { .. } => "`stockade policy list` shows the profiles that there are",
            Self::UnknownKey { .. } => "`stockade policy schema` prints every key",
            Self::ProfileNameMissing => "write `name = \"…\"`",
            Self::ExtendsCycle { .. } => {
                "a profile may extend a built-in one of its own name, but not come back to itself through others"
            }
            Self::NotForProjects => {
                "`.stockade/profile.toml` narrows the profile that wins without it; it cannot choose, extend or grant"
            }
            Self::NotSettable { instead } => instead,
            Self::DuplicateTarget { .. } => "keep one of them",
            Self::TargetRoot => "another root is `root.dir`",
            Self::Procfs => "leave it out: the executor has a procfs of its own",
            Self::ReservedTarget { .. } => {
                "leave it out: dangerous entries of /proc are masked already, /dev is minimal and /sys is absent"
            }
            Self::EnvLoader { .. } => {
                "a profile can give it a fixed value in `env.set`; the caller can use --env"
            }
            Self::EnvTooBroad { .. } => "name the variables that you mean",
            Self::GeneralNeedsShareHost => {
                "write `posture = \"general\"` and `share_host = true` together, or `posture = \"disabled\"`"
            }
            Self::ShareHostNeedsGeneral => {
                "write `posture = \"general\"` for the host's network, or `share_host = false`"
            }
            Self::GeneralNeedsLoopback => "write `loopback = true`, or `posture = \"disabled\"` as well",
            Self::NoSets => "`stockade policy show offline` shows a working list",
            Self::Library(_)
            | Self::ProfileName { .. }
            | Self::ExtendsTooDeep
            | Self::SettingForm { .. }
            | Self::Widens { .. }
            | Self::MountNeeds { .. }
            | Self::MountHasNo { .. }
            | Self::Empty
            | Self::Nul
            | Self::DoubleStar { .. }
            | Self::TooManyStars { .. }
            | Self::MatchesAll { .. }
            | Self::TooMany { .. }
            | Self::Hostname { .. }
            | Self::Summary
            | Self::EnvName { .. }
            | Self::Limit { .. }
            | Self::SeccompName { .. } => return None,
        };
        Some(text.to_owned())
    }
}

/// Built-in profiles whose names look like `name`.
pub(super) fn near_profiles(name: &str) -> Vec<String> {
    near(name, super::embedded_names().iter().copied())
}

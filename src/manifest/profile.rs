//! A profile as typed: each key optional, so that what a file does not say stays visible.

use super::{
    Access, CacheLayer, InsideUser, LIST_ENTRIES_MAX, OutputAction, Posture, ProtectMissing,
    TABLE_ENTRIES_MAX,
};
use crate::base::{
    ByteSize, CpuShare, HostPath, MemorySize, Millis, Need, OsBytes, Protection, RelPath, SandboxPath,
};
use serde::de::value::{I64Deserializer, StrDeserializer, U64Deserializer};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// A profile file. Lists replace the list of the profile that it extends; the element `"..."` stands for
/// the inherited ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileDoc {
    /// The format's version, 1.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// Its name; by default that of the file without `.toml`.
    pub name: Option<String>,
    /// One line about it.
    #[schemars(length(max = 200))]
    pub summary: Option<String>,
    /// The profile whose keys hold where this one says nothing; `strict` when absent.
    pub extends: Option<String>,
    /// Per protection: `require` (without it nothing runs) or `prefer` (its absence is recorded).
    #[serde(default)]
    pub require: BTreeMap<Protection, Need>,
    /// Who the command is.
    #[serde(default)]
    pub identity: IdentityDoc,
    /// The root that it sees.
    #[serde(default)]
    pub root: RootDoc,
    /// The workspace.
    #[serde(default)]
    pub workspace: WorkspaceDoc,
    /// Further mounts. One with the target of an inherited one replaces it.
    #[serde(default)]
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub mounts: Vec<MountDoc>,
    /// Package caches.
    #[serde(default)]
    pub caches: CachesDoc,
    /// The environment, built from nothing.
    #[serde(default)]
    pub env: EnvDoc,
    /// The network.
    #[serde(default)]
    pub network: NetworkDoc,
    /// The system-call filter.
    #[serde(default)]
    pub seccomp: SeccompDoc,
    /// The limits.
    #[serde(default)]
    pub limits: LimitsDoc,
    /// What every command is granted by intent.
    #[serde(default)]
    pub intents: IntentsDoc,
    /// What the caller's own flags may add.
    #[serde(default)]
    pub grants: GrantsDoc,
    /// Reasons: the quoted dotted path of a key that this file sets, and why it does.
    #[serde(default)]
    #[schemars(extend("maxProperties" = TABLE_ENTRIES_MAX))]
    pub why: BTreeMap<String, String>,
}

/// `[identity]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityDoc {
    /// `agent` (1000) or `root` (0); no capability either way.
    pub user: Option<InsideUser>,
    /// Host name inside.
    #[schemars(length(max = 64))]
    pub hostname: Option<String>,
    /// Whether it has a time namespace of its own.
    pub time_namespace: Option<bool>,
}

/// `[root]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RootDoc {
    /// A directory to use as the root instead of the host's.
    pub dir: Option<HostPath>,
    /// Names below /etc that are shown where the host has them; `*` within a component.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub etc: Option<Vec<RelPath>>,
    /// The toolchains that PATH and the usual variables name, read-only.
    pub toolchains: Option<bool>,
}

/// `[workspace]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceDoc {
    /// How it appears.
    pub access: Option<Access>,
    /// Paths below it that stay read-only; `*` within a component.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub protect: Option<Vec<RelPath>>,
    /// What happens to protected paths that appear during the run.
    pub protect_missing: Option<ProtectMissing>,
    /// Names below it that are masked; `*` within a component.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub hide: Option<Vec<RelPath>>,
}

/// What a `[[mounts]]` entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    /// A host path.
    Bind,
    /// A private tmpfs.
    Tmpfs,
    /// A host directory under a throwaway writable layer.
    Overlay,
    /// A read-only file with a given content.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// Hides what is there.
    Mask,
}

impl MountKind {
    /// The word in the file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bind => "bind",
            Self::Tmpfs => "tmpfs",
            Self::Overlay => "overlay",
            Self::File => "file",
            Self::Dir => "dir",
            Self::Symlink => "symlink",
            Self::Mask => "mask",
        }
    }
}

/// One `[[mounts]]` entry. Flat, because a tagged enum would lose the places of its keys; which key goes
/// with which type is checked by `policy`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountDoc {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: MountKind,
    /// Host path (bind, overlay).
    pub source: Option<HostPath>,
    /// Where it appears.
    pub target: SandboxPath,
    /// Whether it is writable (bind); read-only when absent.
    pub writable: Option<bool>,
    /// Whether a missing source is passed over (bind); an error when absent.
    pub optional: Option<bool>,
    /// Bytes (tmpfs).
    pub size: Option<ByteSize>,
    /// Files, directories and links (tmpfs).
    pub inodes: Option<u64>,
    /// Content (file).
    pub content: Option<OsBytes>,
    /// What it points to (symlink).
    pub to: Option<OsBytes>,
    /// The reason for it.
    pub why: Option<String>,
}

/// `[caches]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CachesDoc {
    /// Tools whose package caches the command gets, writable through a layer of its own.
    #[serde(rename = "use")]
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub tools: Option<Vec<String>>,
    /// What becomes of that layer.
    pub layer: Option<CacheLayer>,
    /// The most that a kept layer may hold, for each cache.
    pub size: Option<ByteSize>,
}

/// `[env]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvDoc {
    /// Names, or `PREFIX*`, taken from the caller's environment.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub pass: Option<Vec<String>>,
    /// Names with values.
    #[schemars(extend("maxProperties" = TABLE_ENTRIES_MAX))]
    pub set: Option<BTreeMap<String, OsBytes>>,
    /// Tell runtimes how much memory there is, where a memory limit holds and nobody has said so.
    pub heap_hints: Option<bool>,
}

/// `[network]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkDoc {
    /// `disabled` or `general`.
    pub posture: Option<Posture>,
    /// Whether the command may use its own loopback.
    pub loopback: Option<bool>,
    /// With `general`: the host's own network, by explicit choice.
    pub share_host: Option<bool>,
}

/// `[seccomp]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeccompDoc {
    /// Named sets.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub sets: Option<Vec<String>>,
    /// Single calls beside them.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub allow: Option<Vec<String>>,
}

/// `[limits]`. Where `"none"` is permitted it means: not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsDoc {
    /// Memory of the tree: `2GiB`, `75%` of the host's, or the lesser of both: `2GiB,75%`.
    pub memory: Option<OrNone<MemorySize>>,
    /// Processes and threads of the tree.
    pub processes: Option<OrNone<u64>>,
    /// CPU time per wall time, in percent of one core.
    pub cpu: Option<OrNone<CpuShare>>,
    /// Wall time.
    pub wall: Option<OrNone<Millis>>,
    /// Time between the polite signal and the kill; `0s` kills at once.
    pub grace: Option<Millis>,
    /// Bytes per output stream.
    pub output: Option<OrNone<ByteSize>>,
    /// What happens there.
    pub output_action: Option<OutputAction>,
    /// Descriptors per process.
    pub open_files: Option<u64>,
    /// Size of one file.
    pub file_size: Option<OrNone<ByteSize>>,
    /// Locked memory per process.
    pub locked_memory: Option<ByteSize>,
    /// Stack per process.
    pub stack: Option<ByteSize>,
    /// The private tmpfs behind /tmp, /run, HOME and /dev/shm together.
    pub scratch: Option<ByteSize>,
    /// Files, directories and links in it.
    pub scratch_inodes: Option<u64>,
    /// Growth of a writable workspace.
    pub disk: Option<OrNone<ByteSize>>,
}

/// `[intents]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentsDoc {
    /// What every command is granted: `browser`, `ssh-agent`, `git-credentials`, `gpu`, `x11`, `wayland`.
    #[serde(rename = "use")]
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub given: Option<Vec<String>>,
}

/// `[grants]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantsDoc {
    /// Host directories below which `--ro` may take sources; `/` is everywhere.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub ro: Option<Vec<HostPath>>,
    /// Host directories below which `--rw` may take sources.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub rw: Option<Vec<HostPath>>,
    /// Names, or `PREFIX*`, that `--env` may pass or set.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub env: Option<Vec<String>>,
    /// What `--grant` may give.
    #[schemars(length(max = LIST_ENTRIES_MAX))]
    pub intents: Option<Vec<String>>,
    /// Whether `--tmpfs` is permitted.
    pub tmpfs: Option<bool>,
    /// Whether `--root` is permitted.
    pub root: Option<bool>,
    /// Whether `-w` is permitted.
    pub workspace: Option<bool>,
}

/// A value, or the word `none` for "not limited". Absence is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrNone<T> {
    /// `"none"`.
    None,
    /// The value.
    Some(T),
}

impl<T> OrNone<T> {
    /// As an `Option`.
    pub fn into_option(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::Some(value) => Some(value),
        }
    }
}

struct OrNoneVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for OrNoneVisitor<T> {
    type Value = OrNone<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit or \"none\"")
    }

    fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Self::Value, E> {
        if s == "none" { Ok(OrNone::None) } else { T::deserialize(StrDeserializer::new(s)).map(OrNone::Some) }
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Self::Value, E> {
        T::deserialize(U64Deserializer::new(n)).map(OrNone::Some)
    }

    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Self::Value, E> {
        T::deserialize(I64Deserializer::new(n)).map(OrNone::Some)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(OrNoneVisitor(PhantomData))
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for OrNone<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}OrNone", T::schema_name()).into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let value = generator.subschema_for::<T>();
        schemars::json_schema!({ "anyOf": [{ "const": "none" }, value] })
    }
}

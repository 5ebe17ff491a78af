//! What a file says, and nothing more: unknown keys refused, every list, string and table bounded, and
//! the place of each key kept for messages. Bytes in, a value or a typed error out; no file, clock or
//! environment is touched here. What it *means* is `policy`'s business.

mod keys;
mod profile;
mod schema;
mod spans;
mod words;

pub use keys::{KEYS, Key, MOUNT_KEYS, Shape, near};
pub(crate) use keys::{find as find_key, quoted};
pub use profile::{
    CachesDoc, EnvDoc, GrantsDoc, IdentityDoc, LimitsDoc, MountDoc, MountKind, NetworkDoc, OrNone,
    ProfileDoc, RootDoc, SeccompDoc, WorkspaceDoc,
};
pub use schema::{described, profile_schema};
pub use spans::{At, Spans};
pub use words::{Access, CacheLayer, InsideUser, OutputAction, Posture, ProtectMissing};

use serde::Deserialize as _;

/// The only version of the format so far.
pub const VERSION: u32 = 1;
/// The largest profile file, in bytes.
pub const FILE_BYTES_MAX: usize = 64 * 1024;
/// The longest list.
pub const LIST_ENTRIES_MAX: usize = 256;
/// The largest table.
pub const TABLE_ENTRIES_MAX: usize = 256;
/// The longest string (the content of a `file` mount has its own bound).
pub const STRING_BYTES_MAX: usize = 4096;
/// The longest content of a `file` mount.
pub const CONTENT_BYTES_MAX: usize = 16 * 1024;
/// The deepest nesting of tables and lists; the format itself needs four.
pub const DEPTH_MAX: usize = 6;

/// A profile with the place of each of its keys.
#[derive(Debug, Clone)]
pub struct ProfileFile {
    /// What it says.
    pub doc: ProfileDoc,
    /// Where it says so. Also tells which keys are present.
    pub spans: Spans,
}

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct ManifestError {
    /// Line and column, when the fault has a place.
    pub at: Option<At>,
    /// The key, as a dotted path, when the fault belongs to one.
    pub key: Option<String>,
    /// What it is.
    #[source]
    pub fault: ManifestFault,
}

/// The kinds of fault that a file can have before anyone asks what it means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestFault {
    /// More bytes than [`FILE_BYTES_MAX`].
    #[error("the file has {bytes} bytes; at most {FILE_BYTES_MAX} are read")]
    TooLarge {
        /// How many it has.
        bytes: usize,
    },
    /// TOML is UTF-8. Names that are not can be written as `{ b64 = "…" }`.
    #[error("the file is not UTF-8 (first at byte {byte})")]
    NotUtf8 {
        /// The offset of the first wrong byte.
        byte: usize,
    },
    /// Not TOML.
    #[error("not valid TOML: {message}")]
    Syntax {
        /// The parser's words.
        message: String,
    },
    /// `version` is missing.
    #[error("`version = {VERSION}` is missing")]
    VersionMissing,
    /// `version` is one that this binary does not read.
    #[error("version {found} is not known; this stockade reads version {VERSION}")]
    VersionUnknown {
        /// What the file says.
        found: String,
    },
    /// A key that the format does not have.
    #[error("unknown key")]
    UnknownKey {
        /// Keys with a similar name.
        near: Vec<String>,
    },
    /// A value of the wrong type or form.
    #[error("{message}")]
    Value {
        /// What was expected.
        message: String,
    },
    /// A list or table with too many entries.
    #[error("{found} entries; at most {max}")]
    TooMany {
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// A string that is too long.
    #[error("a string of {bytes} bytes; at most {max}")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// Tables within tables within tables.
    #[error("nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// `[why]` gives a reason for a key that the file does not set.
    #[error("a reason for a key that this file does not set")]
    ReasonWithoutKey,
}

impl ManifestFault {
    /// A stable name of the kind.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "file_too_large",
            Self::NotUtf8 { .. } => "not_utf8",
            Self::Syntax { .. } => "syntax",
            Self::VersionMissing => "version_missing",
            Self::VersionUnknown { .. } => "version_unknown",
            Self::UnknownKey { .. } => "unknown_key",
            Self::Value { .. } => "value",
            Self::TooMany { .. } => "too_many",
            Self::TooLong { .. } => "too_long",
            Self::TooDeep => "too_deep",
            Self::ReasonWithoutKey => "reason_without_key",
        }
    }

    /// What to do about it, when there is more to say than the fault itself.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { near } if near.is_empty() => {
                Some("`stockade policy schema` prints every key".to_owned())
            }
            Self::UnknownKey { near } => Some(format!("did you mean {}?", keys::quoted(near))),
            Self::VersionMissing => Some(format!("begin the file with `version = {VERSION}`")),
            Self::NotUtf8 { .. } => Some("write a name that is not UTF-8 as { b64 = \"…\" }".to_owned()),
            Self::ReasonWithoutKey => Some(
                "`[why]` takes quoted dotted keys, as in \"limits.memory\" = \"…\"; a mount has its own `why`"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Reads a profile.
///
/// # Errors
/// A [`ManifestError`] with the place and key of the first fault.
pub fn parse_profile(bytes: &[u8]) -> Result<ProfileFile, ManifestError> {
    let bare = |fault| ManifestError { at: None, key: None, fault };
    if bytes.len() > FILE_BYTES_MAX {
        return Err(bare(ManifestFault::TooLarge { bytes: bytes.len() }));
    }
    let text =
        std::str::from_utf8(bytes).map_err(|e| bare(ManifestFault::NotUtf8 { byte: e.valid_up_to() }))?;
    let tree = toml::de::DeTable::parse(text).map_err(|e| ManifestError {
        at: e.span().map(|span| At::of(text, span.start)),
        key: None,
        fault: ManifestFault::Syntax { message: shown(e.message()) },
    })?;
    let spans = spans::walk(text, tree.get_ref())?;
    let doc = ProfileDoc::deserialize(toml::de::Deserializer::from(tree)).map_err(|e| {
        let start = e.span().map(|span| span.start);
        ManifestError {
            at: start.map(|start| At::of(text, start)),
            key: start.and_then(|start| spans.key_around(start)).map(str::to_owned),
            fault: ManifestFault::Value { message: plain(e.message()) },
        }
    })?;
    for key in doc.why.keys() {
        if !spans.contains(key) || key == "why" {
            let why = format!("why.{key}");
            return Err(ManifestError {
                at: spans.at(&why),
                key: Some(why),
                fault: ManifestFault::ReasonWithoutKey,
            });
        }
    }
    Ok(ProfileFile { doc, spans })
}

/// The first line of a parser's message, safe to show: it quotes what the file says.
fn shown(message: &str) -> String {
    crate::base::text::visible(message.lines().next().unwrap_or_default().as_bytes())
}

/// A deserializer's message in the words of the format rather than of the library.
pub(crate) fn plain(message: &str) -> String {
    let message = shown(message);
    if let Some((found, expected)) =
        message.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "))
    {
        let found = match found {
            "map" => "a table",
            "sequence" => "a list",
            other => other,
        };
        return format!("expected {}, found {found}", expected_word(expected));
    }
    if let Some((found, expected)) =
        message.strip_prefix("invalid value: ").and_then(|rest| rest.rsplit_once(", expected "))
    {
        return format!("expected {}, found {found}", expected_word(expected));
    }
    match message.strip_prefix("unknown variant ").and_then(|rest| rest.split_once(", expected ")) {
        Some((found, expected)) => {
            format!("{found} is not {}{expected}", if expected.contains(' ') { "" } else { "the word " })
        }
        None => message,
    }
}

fn expected_word(expected: &str) -> &str {
    match expected {
        "u64" | "u32" => "a whole number",
        "a sequence" => "a list",
        "a map" => "a table",
        other => other,
    }
}

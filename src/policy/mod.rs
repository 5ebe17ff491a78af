//! Profiles as meant: every default filled in, inheritance done, trust levels applied. A [`Policy`] says
//! nothing about a host; two hosts with the same profile have the same [`Policy::digest`].
//!
//! Two ways to merge, and no third:
//! - *extend*, file over file within the operator's own trust level: the extending file's keys replace;
//! - *narrow*, for a project's file and `--set`: the result has to be within what would win without it
//!   ([`Policy::is_within`]), else the widening key is named and nothing runs.

mod caches;
mod calls;
mod check;
mod diff;
mod draft;
mod embedded;
mod error;
mod intents;
pub mod lint;
mod load;
mod merge;
mod order;
mod resolved;
mod setting;
mod shipped;
#[cfg(test)]
mod tests;
mod types;

pub use caches::{CACHES, Cache, Tool, Top};
pub use calls::{CallSet, Calls, RefusedCall};
pub use check::{MEMORY_MIN, reserved, tmpfs_size};
pub use diff::{Change, Difference, Direction, Group, diff};
pub use draft::project_draft;
pub use embedded::{
    DEFAULT_PROFILE, FLOOR_PROFILE, PROFILE_NAME_MAX, PROJECT_DIR, PROJECT_FILE, PROJECT_LEAF, SearchPlace,
    embedded, embedded_names, is_profile_name, search_path,
};
pub use error::{Fault, LibraryError, Place, PolicyError};
pub use intents::Intent;
pub use load::{Candidate, EmbeddedOnly, Library, load};
pub use order::{Part, Widening};
pub use resolved::{RESOLVED_BYTES_MAX, ResolvedError, resolved};
pub use setting::{SETTING_BYTES_MAX, Setting, settable_keys};
pub use types::*;

/// How many profiles may extend one another.
pub const EXTENDS_DEPTH_MAX: usize = 8;
/// The longest list or mount table after inheritance.
pub const MERGED_ENTRIES_MAX: usize = 512;
/// The most `*` in one pattern.
pub const STARS_MAX: usize = 4;
/// The longest summary, in characters.
pub const SUMMARY_CHARS_MAX: usize = 200;
/// Inodes of a `tmpfs` mount that says nothing.
pub const TMPFS_INODES: u64 = 65_536;

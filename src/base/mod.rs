//! Values that every other module speaks in: sizes, durations, digests, canonical bytes, paths as the
//! kernel sees them, patterns of names, and the list of protections. Pure: no file, clock or environment is
//! touched here.

pub mod canon;
pub mod ids;
pub mod path;
pub mod pattern;
pub mod protection;
pub mod text;
pub mod units;

pub use canon::{Digest, Digester, OsBytes, canonical_json};
pub use ids::RunId;
pub use path::{HostPath, RelPath, SandboxPath};
pub use pattern::name_matches;
pub use protection::{Enforcement, Gap, Got, Need, Protection};
pub use units::{ByteSize, CpuShare, MemorySize, Millis};

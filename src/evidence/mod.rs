//! Evidence: what happened in every execution, durable before anybody is told, ordered without gaps, chained so that a
//! changed record is found, and redacted where it is shown.
//!
//! One SQLite database (`evidence.db`) and content-addressed blobs lie in the state directory. A [`Store`] is the one way
//! to write: each step is a transaction under SQLite's own lock, so processes share the root safely, and within a process
//! a [`Committer`] lets concurrent runs share one sync. [`Durable`] is the proof that a commit was synced: a terminal
//! report takes one. Events of a run form a hash chain, beginnings and ends of all runs another (the ledger), and the end
//! of a run is signed ([`Signer`]). Nothing here decides anything or starts a process.
//!
//! Follows AH-ART, AH-LIFE-1/2, AH-TOOL-3/10, MA-TLS, MA-RED, MA-REC; the format is in `docs/evidence.md`.

pub mod audit;
mod blob;
mod chain;
mod dsse;
mod error;
mod event;
mod export;
mod group;
mod key;
mod owner;
mod place;
mod query;
mod read;
mod receipt;
pub mod redact;
mod retention;
mod schema;
mod store;
#[cfg(test)]
mod testing;
mod verify;

pub use blob::{BlobHold, BlobRef, Blobs};
pub use chain::{Hash, event_hash, genesis, ledger_hash};
pub use dsse::Rejected;
pub use error::StoreError;
pub use event::{
    Accepted, Created, EVENT_BYTES_MAX, INLINE_BYTES_MAX, Kind, Payload, Stamp, State, Terminal,
};
pub use export::{ExportError, Exported, export};
pub use group::{Committer, Pending};
pub use key::{Keys, PublicKey, Rotation, Trusted};
pub use owner::Owner;
pub use place::Place;
pub use query::{Event, Filter, LAST, PAGE_EVENTS_MAX, PAGE_RUNS_MAX, Run, Totals};
pub use read::Reader;
pub use receipt::{Chain, Receipt, Signer, Statement, Subject};
pub use retention::{Collected, Retention, collect};
pub use schema::{APPLICATION_ID, SCHEMA_VERSION};
pub use store::{Durable, End, NewRun, Orphan, Store, Txn};
pub use verify::{Counts, Finding, Verification, What, Which, verify, verify_bundle};

//! Verification, offline: everything that is stored is computed anew or compared with what says the same elsewhere.
//!
//! Found is every change of a row, its loss, its move, its repetition, and every change of a blob, a receipt or a key, as
//! long as the attacker cannot sign. Not found is what leaves a whole, older store: the end of the ledger cut off together
//! with the runs that it names, or the whole store put back to an earlier day. Whoever kept a receipt, or the head that
//! `exec` told, holds the proof that there was more. Without `keys` the store's own keys are believed, which an attacker
//! with the signing key, or one who makes a key and writes everything anew, can satisfy: pin a key to rule that out.

mod bundle;
mod keys;
mod run;
mod store;

pub(super) use bundle::LINE_BYTES_MAX;
pub use bundle::verify_bundle;
pub(super) use keys::keys_of;
pub(super) use run::{EventRow, RunRow, references};
pub use store::verify;
pub(super) use store::{RUN_COLUMNS, file, payload, read_event, run_row};

use crate::base::text::visible;
use serde::Serialize;

/// Findings that are told one by one at most; those beyond are counted.
pub const FINDINGS_MAX: usize = 1000;

/// What to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// One run, and the keys.
    One(&'a str),
    /// Every run, the ledger, the database's own structure.
    All,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A row, page or file cannot be read.
    Unreadable,
    /// The database's structure: a page, an index, a column's type.
    Integrity,
    /// A link of a chain is missing, or there twice.
    Gap,
    /// A link is not what was recorded.
    Changed,
    /// An event stands where none of its kind may.
    Order,
    /// A run's row is not what its events say.
    Row,
    /// The ledger and the runs disagree.
    Ledger,
    /// A row belongs to no run.
    Orphan,
    /// A receipt is not what the events say.
    Receipt,
    /// A receipt's form, signature or signer.
    Signature,
    /// A run that has ended has no receipt, in a bundle.
    Unsigned,
    /// A blob is missing, or another.
    Blob,
    /// A plan is missing, or another.
    Plan,
    /// A key's file is not what its name says, or its origin is not signed.
    Key,
    /// A bundle's lines are not in the form that export writes.
    Form,
}

impl What {
    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Integrity => "integrity",
            Self::Gap => "gap",
            Self::Changed => "changed",
            Self::Order => "order",
            Self::Row => "row",
            Self::Ledger => "ledger",
            Self::Orphan => "orphan",
            Self::Receipt => "receipt",
            Self::Signature => "signature",
            Self::Unsigned => "unsigned",
            Self::Blob => "blob",
            Self::Plan => "plan",
            Self::Key => "key",
            Self::Form => "form",
        }
    }
}

/// One thing that is wrong. Its texts are safe to show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub what: What,
    /// The run.
    pub run: Option<String>,
    /// Event, or entry of the ledger.
    pub seq: Option<i64>,
    /// Table of the database, `keys`, or `bundle`.
    pub table: &'static str,
    /// In words.
    pub detail: String,
}

/// How many of each were looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Runs.
    pub runs: u64,
    /// Of them, those that have not ended.
    pub running: u64,
    /// Events.
    pub events: u64,
    /// Entries of the ledger.
    pub ledger: u64,
    /// Runs that were removed and left a tombstone.
    pub pruned: u64,
    /// Receipts.
    pub receipts: u64,
    /// Blobs.
    pub blobs: u64,
    /// Plans.
    pub plans: u64,
    /// Keys.
    pub keys: u64,
    /// Further rows.
    pub rows: u64,
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// What is wrong, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// How many more there are.
    pub more: u64,
    /// What was looked at.
    pub counts: Counts,
    /// Bytes of payloads, receipts, plans and blobs that were hashed.
    pub bytes: u64,
    /// Whether receipts were checked against keys that the caller gave, rather than those found beside them.
    pub pinned: bool,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Takes what is found.
#[derive(Debug, Default)]
pub struct Findings(Verification);

impl Findings {
    pub(super) fn add(
        &mut self,
        what: What,
        run: Option<&str>,
        seq: Option<i64>,
        table: &'static str,
        detail: String,
    ) {
        if self.0.findings.len() == FINDINGS_MAX {
            self.0.more += 1;
            return;
        }
        let run = run.map(|run| visible(run.as_bytes()));
        self.0.findings.push(Finding { what, run, seq, table, detail: visible(detail.as_bytes()) });
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.0.counts
    }

    fn hashed(&mut self, bytes: usize) {
        self.0.bytes += bytes as u64;
    }

    fn end(self) -> Verification {
        self.0
    }
}

//! Receipts: what is signed at the end of a run. An in-toto statement (version 1, in-toto/attestation) whose subjects are
//! the outputs and whose predicate names plan, enforcement, outcome and limits, and the run's chain, so that the one
//! signature covers every event of the run.

use super::dsse::{self, Envelope, Rejected};
use super::event::{Accepted, State};
use super::key::{Keys, PublicKey, Trusted};
use super::{Place, StoreError};
use crate::base::{Digest, canonical_json};
use ed25519_dalek::SigningKey;
use serde::Serialize;
use serde_json::Value;

/// `payloadType` of a receipt.
pub const STATEMENT_PAYLOAD: &str = "application/vnd.in-toto+json";
/// `_type` of the statement.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// `predicateType` of a receipt.
pub const PREDICATE_TYPE: &str = "urn:stockade:receipt:1";

/// Content that a run left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// What it is: `stdout`, `stderr`, or the artifact's name.
    pub name: String,
    /// Of its bytes.
    pub digest: Digest,
}

/// What is said of a run. The parts that are JSON values belong to whoever makes them; they hold no floats.
#[derive(Debug, Clone, Serialize)]
pub struct Statement {
    /// The outputs.
    #[serde(skip)]
    pub subjects: Vec<Subject>,
    /// The run's id.
    pub run: String,
    /// Its chain, the last event included: the receipt covers every event.
    pub chain: Chain,
    /// Of the plan.
    pub plan_digest: Option<Digest>,
    /// Of the policy.
    pub policy_digest: Option<Digest>,
    /// Of the command as it was run.
    pub command_digest: Option<Digest>,
    /// The protections, each with what was asked for and what was got.
    pub enforcement: Vec<Value>,
    /// As in the terminal event.
    pub state: State,
    /// As in the terminal event.
    pub reason: String,
    /// As in the terminal event.
    pub exit_code: Option<u8>,
    /// The rest of the outcome.
    pub outcome: Value,
    /// The limits that were set.
    pub limits: Value,
    /// Beginning, milliseconds since 1970.
    pub started_ms: i64,
    /// End, milliseconds since 1970.
    pub ended_ms: i64,
    /// Of the record of what the network decided.
    pub network_digest: Option<Digest>,
    /// How far the containment went: reduced or not, and in what (AH-DIAG-2).
    pub assurance: Value,
    /// Stockade's own.
    pub version: String,
}

/// How many events, and the last one's hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Chain {
    /// How many.
    pub events: i64,
    /// Hexadecimal.
    pub head: String,
}

impl From<Accepted> for Chain {
    fn from(last: Accepted) -> Self {
        Self { events: last.seq, head: last.hash.hex() }
    }
}

#[derive(Serialize)]
struct InToto<'a> {
    #[serde(rename = "_type")]
    kind: &'static str,
    subject: Vec<Value>,
    #[serde(rename = "predicateType")]
    predicate_type: &'static str,
    predicate: &'a Statement,
}

/// Signs receipts.
pub struct Signer {
    key: SigningKey,
    id: Digest,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Signer").field(&self.id).finish()
    }
}

impl Signer {
    /// Opens the key of a place, made when there is none.
    ///
    /// # Errors
    /// A system call; [`StoreError::Key`].
    pub fn open(place: &Place) -> Result<Self, StoreError> {
        let key = Keys::open(place)?.signing()?;
        let id = PublicKey::of(&key).id();
        Ok(Self { key, id })
    }

    /// The key's id.
    pub fn key_id(&self) -> &Digest {
        &self.id
    }

    /// Signs a statement: the envelope as canonical JSON.
    ///
    /// # Errors
    /// [`StoreError::Encoding`] when a value holds a float; [`StoreError::Bound`].
    pub fn seal(&self, statement: &Statement) -> Result<String, StoreError> {
        let failed = |cause| StoreError::Encoding { what: "a receipt", cause };
        // A statement has a subject at least; the chain is one that every run has.
        let chain = serde_json::json!({
            "name": "events",
            "digest": { "stockadeChain1": statement.chain.head },
        });
        let outputs = statement.subjects.iter().map(|subject| {
            serde_json::json!({ "name": subject.name, "digest": { "sha256": subject.digest.hex() } })
        });
        let document = InToto {
            kind: STATEMENT_TYPE,
            subject: outputs.chain([chain]).collect(),
            predicate_type: PREDICATE_TYPE,
            predicate: statement,
        };
        let payload = canonical_json(&document).map_err(|e| failed(e.to_string()))?;
        let envelope = dsse::seal(&self.key, &self.id, STATEMENT_PAYLOAD, &payload).map_err(failed)?;
        if envelope.len() > dsse::ENVELOPE_BYTES_MAX {
            return Err(StoreError::Bound {
                what: "bytes of a receipt",
                found: envelope.len() as u64,
                most: dsse::ENVELOPE_BYTES_MAX as u64,
            });
        }
        Ok(envelope)
    }
}

/// A receipt that was read: the whole statement, and what the verifier compares.
#[derive(Debug)]
pub struct Receipt {
    /// The key that signed it.
    pub signer: String,
    /// The statement.
    pub statement: Value,
}

impl Receipt {
    /// Reads an envelope that a key of `trusted` has signed.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn open(envelope: &[u8], trusted: &Trusted) -> Result<Self, Rejected> {
        let envelope = Envelope::parse(envelope)?;
        let payload = envelope.payload(STATEMENT_PAYLOAD, |id| trusted.get(id))?;
        Self::read(&envelope, &payload)
    }

    /// Reads an envelope, whoever has signed it: for showing, and for checks that are not about its signature.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn unchecked(envelope: &[u8]) -> Result<Self, Rejected> {
        let envelope = Envelope::parse(envelope)?;
        let payload = envelope.unchecked(STATEMENT_PAYLOAD)?;
        Self::read(&envelope, &payload)
    }

    fn read(envelope: &Envelope, payload: &[u8]) -> Result<Self, Rejected> {
        let statement: Value = serde_json::from_slice(payload).map_err(|e| Rejected::Form(e.to_string()))?;
        if statement["_type"] != STATEMENT_TYPE || statement["predicateType"] != PREDICATE_TYPE {
            return Err(Rejected::Type);
        }
        Ok(Self { signer: envelope.signer().to_owned(), statement })
    }

    /// A field of the predicate; null when there is none.
    pub fn field(&self, name: &str) -> &Value {
        &self.statement["predicate"][name]
    }

    /// Name and SHA-256 (hexadecimal) of each output.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.statement["subject"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|subject| Some((subject["name"].as_str()?, subject["digest"]["sha256"].as_str()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::testing::{Root, statement};

    #[test]
    fn sealed_and_read_back() {
        let root = Root::new();
        let signer = Signer::open(&root.place()).unwrap();
        let mut said = statement("r", Chain { events: 3, head: "ab".repeat(32) });
        said.subjects.push(Subject { name: "stdout".into(), digest: Digest::of(b"out") });
        let envelope = signer.seal(&said).unwrap();
        let trusted: Trusted = [PublicKey::of(&signer.key)].into_iter().collect();
        let receipt = Receipt::open(envelope.as_bytes(), &trusted).unwrap();
        assert_eq!(receipt.signer, signer.key_id().hex());
        assert_eq!(receipt.field("chain")["events"], 3);
        assert_eq!(receipt.field("state"), "completed");
        assert_eq!(receipt.outputs().collect::<Vec<_>>(), [("stdout", &*Digest::of(b"out").hex())]);
        let other = Root::new();
        let other = Keys::open(&other.place()).unwrap().signing().unwrap();
        let others: Trusted = [PublicKey::of(&other)].into_iter().collect();
        assert!(matches!(Receipt::open(envelope.as_bytes(), &others), Err(Rejected::Signer(_))));
        said.limits = serde_json::json!({ "wall": 0.5 });
        assert!(matches!(signer.seal(&said), Err(StoreError::Encoding { .. })));
    }
}

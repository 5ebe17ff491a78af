//! The hashes that chain records: pure functions of what is stored, so that anybody who has the rows can compute them.
//!
//! Fields are length-prefixed (64 bit, big-endian), each kind of hash begins with a domain string of its own, and the first
//! link is bound to what the chain belongs to: a row cannot be moved to another place, run or store unseen.

use crate::base::Digest;
use crate::base::canon::hex;
use sha2::{Digest as _, Sha256};

/// A SHA-256 hash of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hex())
    }
}

impl Hash {
    /// Hexadecimal, without a prefix.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }

    /// As a digest of other formats.
    pub fn digest(&self) -> Digest {
        Digest::from_bytes(self.0)
    }

    /// From a stored column.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

struct Fields(Sha256);

impl Fields {
    fn new(domain: &str) -> Self {
        Self(Sha256::new()).bytes(domain.as_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    fn number(mut self, n: i64) -> Self {
        self.0.update(n.to_be_bytes());
        self
    }

    fn end(self) -> Hash {
        Hash(self.0.finalize().into())
    }
}

/// What the first event of run `run` follows.
pub fn genesis(run: &str) -> Hash {
    Fields::new("stockade.run/1").bytes(run.as_bytes()).end()
}

/// The hash of an event.
///
/// `spilled`: the payload stands for a blob (whose digest it holds).
pub fn event_hash(
    prev: &Hash,
    seq: i64,
    kind: &str,
    (wall_ms, mono_us): (i64, i64),
    spilled: bool,
    payload: &[u8],
) -> Hash {
    Fields::new("stockade.event/1")
        .bytes(&prev.0)
        .number(seq)
        .bytes(kind.as_bytes())
        .number(wall_ms)
        .number(mono_us)
        .number(i64::from(spilled))
        .bytes(payload)
        .end()
}

/// What the first entry of the ledger of store `store` follows.
pub fn ledger_genesis(store: &str) -> Hash {
    Fields::new("stockade.store/1").bytes(store.as_bytes()).end()
}

/// The hash of the `n`th entry of the ledger: a run began, ended or was pruned; `head` is the run's last hash then, and
/// `also` the digest of what belongs to the entry and stands elsewhere: the name of the run's owner where it began, the
/// receipt where it ended.
pub fn ledger_hash(
    prev: &Hash,
    n: i64,
    entry: &str,
    run: &str,
    head: &Hash,
    also: Option<&Hash>,
    wall_ms: i64,
) -> Hash {
    let also: &[u8] = also.map_or(&[], |h| &h.0);
    Fields::new("stockade.ledger/1")
        .bytes(&prev.0)
        .number(n)
        .bytes(entry.as_bytes())
        .bytes(run.as_bytes())
        .bytes(&head.0)
        .bytes(also)
        .number(wall_ms)
        .end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_counts() {
        let base = || event_hash(&genesis("a"), 1, "k", (2, 3), false, b"{}");
        let all = [
            base(),
            event_hash(&genesis("b"), 1, "k", (2, 3), false, b"{}"),
            event_hash(&genesis("a"), 2, "k", (2, 3), false, b"{}"),
            event_hash(&genesis("a"), 1, "l", (2, 3), false, b"{}"),
            event_hash(&genesis("a"), 1, "k", (3, 3), false, b"{}"),
            event_hash(&genesis("a"), 1, "k", (2, 4), false, b"{}"),
            event_hash(&genesis("a"), 1, "k", (2, 3), true, b"{}"),
            event_hash(&genesis("a"), 1, "k", (2, 3), false, b"{} "),
        ];
        for (n, a) in all.iter().enumerate() {
            assert!(all.iter().skip(n + 1).all(|b| a != b), "{n}");
        }
        assert_eq!(base(), base());
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let hash = |kind: &str, payload: &[u8]| event_hash(&genesis("a"), 1, kind, (0, 0), false, payload);
        assert_ne!(hash("ab", b"c"), hash("a", b"bc"));
        let none = ledger_hash(&genesis("a"), 1, "end", "r", &genesis("r"), None, 0);
        let some = ledger_hash(&genesis("a"), 1, "end", "r", &genesis("r"), Some(&genesis("x")), 0);
        assert_ne!(none, some);
    }
}

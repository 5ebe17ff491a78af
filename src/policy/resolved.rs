//! A policy as `stockade policy show --json` printed it, read back to be compared with another. Nothing runs under it:
//! what it says was checked when it was made, and its digest says whether it still says that.

use super::types::Policy;
use super::{MERGED_ENTRIES_MAX, types::Origin};
use serde::Deserialize;

/// The largest document, in bytes.
pub const RESOLVED_BYTES_MAX: usize = 1 << 20;
/// The name and version of the form.
const SCHEMA: &str = "stockade.policy/1";

/// Why a document is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolvedError {
    /// Larger than [`RESOLVED_BYTES_MAX`].
    #[error("the document has more than {RESOLVED_BYTES_MAX} bytes")]
    TooLarge,
    /// Not JSON, or not of this form.
    #[error("not a document of `stockade policy show --json`: {0}")]
    Form(String),
    /// Of another version.
    #[error("the document is of schema `{0}`; this stockade reads `{SCHEMA}`")]
    Schema(String),
    /// More entries than a policy has.
    #[error("a list with more than {MERGED_ENTRIES_MAX} entries")]
    TooMany,
    /// It was changed, or written by a version that means something else by it.
    #[error("its digest is not that of its policy")]
    Digest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: String,
    #[serde(rename = "origins")]
    _origins: serde::de::IgnoredAny,
    policy_digest: String,
    policy: Policy,
}

/// The policy in `bytes`, with `origin` as where it came from.
///
/// # Errors
/// See [`ResolvedError`].
pub fn resolved(bytes: &[u8], origin: Origin) -> Result<Policy, ResolvedError> {
    if bytes.len() > RESOLVED_BYTES_MAX {
        return Err(ResolvedError::TooLarge);
    }
    let document: Document = serde_json::from_slice(bytes)
        .map_err(|e| ResolvedError::Form(crate::base::text::visible(e.to_string().as_bytes())))?;
    if document.schema != SCHEMA {
        return Err(ResolvedError::Schema(crate::base::text::visible(document.schema.as_bytes())));
    }
    let mut policy = document.policy;
    let lists = [
        policy.root.etc.len(),
        policy.workspace.protect.len(),
        policy.workspace.hide.len(),
        policy.mounts.len(),
        policy.caches.tools.len(),
        policy.env.pass.len(),
        policy.env.set.len(),
        policy.seccomp.sets.len(),
        policy.seccomp.allow.len(),
        policy.grants.ro.len(),
        policy.grants.rw.len(),
        policy.grants.env.len(),
        policy.grants.intents.len(),
        policy.intents.len(),
    ];
    if lists.into_iter().any(|entries| entries > MERGED_ENTRIES_MAX) {
        return Err(ResolvedError::TooMany);
    }
    if policy.digest().to_string() != document.policy_digest {
        return Err(ResolvedError::Digest);
    }
    policy.origins = vec![origin];
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::super::{Candidate, EmbeddedOnly, embedded_names, load};
    use super::*;
    use crate::base::HostPath;

    fn document(policy: &Policy) -> serde_json::Value {
        let (origins, digest) = (&policy.origins, policy.digest());
        serde_json::json!({ "schema": SCHEMA, "origins": origins, "policy_digest": digest, "policy": policy })
    }

    fn read(value: &serde_json::Value) -> Result<Policy, ResolvedError> {
        resolved(value.to_string().as_bytes(), Origin::File(HostPath::new("/x.json").unwrap()))
    }

    #[test]
    fn what_was_shown_is_read_back() {
        let everything = include_bytes!("../../tests/fixtures/manifest/valid/everything.toml");
        let file = Origin::File(HostPath::new("/everything.toml").unwrap());
        let candidate = Candidate::new(file, everything.to_vec());
        let candidates = embedded_names().iter().map(|name| Candidate::embedded(name).unwrap());
        for candidate in candidates.chain([candidate]) {
            let policy = load(candidate, &EmbeddedOnly, None, &[]).unwrap();
            let back = read(&document(&policy)).unwrap();
            assert_eq!(back.digest(), policy.digest());
            assert_eq!(Policy { origins: policy.origins.clone(), ..back }, policy);
        }
    }

    #[test]
    fn what_was_changed_is_refused() {
        let policy = load(Candidate::embedded("strict").unwrap(), &EmbeddedOnly, None, &[]).unwrap();
        let changed = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = document(&policy);
            change(&mut value);
            read(&value).unwrap_err()
        };
        assert_eq!(changed(&|v| v["policy"]["limits"]["processes"] = 9999.into()), ResolvedError::Digest);
        assert!(matches!(changed(&|v| v["schema"] = "stockade.result/1".into()), ResolvedError::Schema(_)));
        assert!(matches!(changed(&|v| v["policy"]["more"] = 1.into()), ResolvedError::Form(_)));
        assert!(matches!(changed(&|v| *v = 1.into()), ResolvedError::Form(_)));
        let long: Vec<String> = (0..=MERGED_ENTRIES_MAX).map(|n| format!("A{n}")).collect();
        assert_eq!(changed(&|v| v["policy"]["env"]["pass"] = long.clone().into()), ResolvedError::TooMany);
        let origin = Origin::Embedded;
        assert_eq!(resolved(&vec![b' '; RESOLVED_BYTES_MAX + 1], origin), Err(ResolvedError::TooLarge));
    }
}

//! Signed envelopes: DSSE version 1 (github.com/secure-systems-lab/dsse, protocol.md) with ed25519 (RFC 8032), each in one
//! spelling only, so that no byte of an envelope can change unseen.

use super::key::PublicKey;
use crate::base::{Digest, canonical_json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use ed25519_dalek::{Signature, Signer as _, SigningKey};
use serde::{Deserialize, Serialize};

/// Bytes of an envelope at most.
pub const ENVELOPE_BYTES_MAX: usize = 4 << 20;

/// An envelope.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<Signed>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    keyid: String,
    sig: String,
}

/// Why an envelope proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It is no envelope, or one in another spelling than ours.
    #[error("it is no envelope as Stockade writes them: {0}")]
    Form(String),
    /// It is an envelope about something else.
    #[error("its payload is of another type")]
    Type,
    /// Nobody who is trusted has signed it.
    #[error("it is signed by key {0}, which is not among the keys to be trusted")]
    Signer(String),
    /// The signature is not one over this payload.
    #[error("its signature by key {0} does not fit")]
    Signature(String),
}

/// What is signed: the pre-authentication encoding of a payload and its type.
fn encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    out.extend_from_slice(payload);
    out
}

/// Signs a payload: the envelope as canonical JSON.
///
/// # Errors
/// Serde's words; none for any input.
pub fn seal(key: &SigningKey, id: &Digest, payload_type: &str, payload: &[u8]) -> Result<String, String> {
    let signature = key.sign(&encoding(payload_type, payload));
    let envelope = Envelope {
        payload: B64.encode(payload),
        payload_type: payload_type.to_owned(),
        signatures: vec![Signed { keyid: id.hex(), sig: B64.encode(signature.to_bytes()) }],
    };
    let bytes = canonical_json(&envelope).map_err(|e| e.to_string())?;
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

impl Envelope {
    /// Reads one; checks nothing but its form.
    ///
    /// # Errors
    /// [`Rejected::Form`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Rejected> {
        let form = |why: &str| Rejected::Form(why.to_owned());
        if bytes.len() > ENVELOPE_BYTES_MAX {
            return Err(form("it is too long"));
        }
        let envelope: Self = serde_json::from_slice(bytes).map_err(|e| Rejected::Form(e.to_string()))?;
        if envelope.signatures.len() != 1 {
            return Err(form("it has not exactly one signature"));
        }
        if canonical_json(&envelope).ok().as_deref() != Some(bytes) {
            return Err(form("its JSON is not canonical"));
        }
        Ok(envelope)
    }

    /// The id of the key that is said to have signed it.
    pub fn signer(&self) -> &str {
        self.signatures.first().map_or("", |s| &s.keyid)
    }

    /// The payload, without a look at the signature.
    ///
    /// # Errors
    /// [`Rejected`], but for the signature.
    pub fn unchecked(&self, payload_type: &str) -> Result<Vec<u8>, Rejected> {
        if self.payload_type != payload_type {
            return Err(Rejected::Type);
        }
        B64.decode(&self.payload).map_err(|e| Rejected::Form(e.to_string()))
    }

    /// The payload, signed by a key that `trusted` has under the id that the envelope names.
    ///
    /// # Errors
    /// [`Rejected`].
    pub fn payload<'k>(
        &self,
        payload_type: &str,
        trusted: impl Fn(&str) -> Option<&'k PublicKey>,
    ) -> Result<Vec<u8>, Rejected> {
        let payload = self.unchecked(payload_type)?;
        let signed = self.signatures.first().ok_or(Rejected::Type)?;
        let key = trusted(&signed.keyid).ok_or_else(|| Rejected::Signer(signed.keyid.clone()))?;
        let bytes = B64.decode(&signed.sig).map_err(|e| Rejected::Form(e.to_string()))?;
        let signature = Signature::from_slice(&bytes).map_err(|e| Rejected::Form(e.to_string()))?;
        // Strict: one signature has one spelling, and keys of small order sign nothing.
        key.verifying()
            .verify_strict(&encoding(payload_type, &payload), &signature)
            .map_err(|_| Rejected::Signature(signed.keyid.clone()))?;
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_the_specification() {
        // protocol.md, "Pre-Authentication Encoding": type `http://example.com/HelloWorld`, body `hello world`.
        assert_eq!(
            encoding("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn no_byte_can_change() {
        let secret = SigningKey::from_bytes(&[7; 32]);
        let public = PublicKey::of(&secret);
        let text = seal(&secret, &public.id(), "a/b", br#"{"x":1}"#).unwrap();
        let trusted = |id: &str| (id == public.id().hex()).then_some(&public);
        let open = |bytes: &[u8]| Envelope::parse(bytes).and_then(|e| e.payload("a/b", trusted));
        assert_eq!(open(text.as_bytes()).unwrap(), br#"{"x":1}"#);
        assert_eq!(
            Envelope::parse(text.as_bytes()).unwrap().payload("a/c", trusted).unwrap_err(),
            Rejected::Type
        );
        for at in 0..text.len() {
            for flip in [1, 2, 4, 8, 16, 32, 64, 128] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= flip;
                assert!(open(&bytes).is_err(), "{at} {flip}");
            }
            assert!(open(&text.as_bytes()[..at]).is_err(), "{at}");
        }
        assert!(matches!(open(&vec![b' '; ENVELOPE_BYTES_MAX + 1]), Err(Rejected::Form(_))));
    }
}

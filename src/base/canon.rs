//! Canonical encoding and digests: RFC 8785 JSON without floats, and bytes that are not UTF-8 written
//! as `{"b64": …}`, so that two hosts which mean the same thing produce the same bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A SHA-256 digest; printed and serialised as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of the canonical encoding of `value`.
    ///
    /// # Errors
    /// When `value` cannot be represented as JSON without floats.
    pub fn of_canonical<T: Serialize>(value: &T) -> Result<Self, CanonError> {
        Ok(Self::of(&canonical_json(value)?))
    }

    /// The 64 hexadecimal digits without a prefix.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }

    /// The raw 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl schemars::JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" })
    }
}

/// Lower-case hexadecimal of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        out.push(char::from(DIGITS[usize::from(b >> 4)]));
        out.push(char::from(DIGITS[usize::from(b & 15)]));
    }
    out
}

/// Why a value has no canonical encoding.
#[derive(Debug, thiserror::Error)]
pub enum CanonError {
    /// Floats have no single spelling and are not used in any Stockade format.
    #[error("a floating-point number has no canonical encoding")]
    Float,
    /// The value does not fit the JSON data model.
    #[error("value does not fit JSON")]
    Json(#[from] serde_json::Error),
}

/// The canonical JSON bytes of `value` (RFC 8785, floats refused).
///
/// # Errors
/// When `value` holds a float or does not fit JSON.
pub fn canonical_json<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonError> {
    // serde_json writes scalars as RFC 8785 wants them and no blanks; what remains is the order of members. Done on
    // the text, since a tree of values costs several times as much as the rest of a plan.
    let text = serde_json::to_vec(value)?;
    let mut out = Vec::with_capacity(text.len());
    let mut sorter = Sorter { text: &text, at: 0, out: &mut out };
    sorter.value()?;
    Ok(out)
}

/// Copies JSON that serde_json wrote, with the members of each object in order.
struct Sorter<'t> {
    text: &'t [u8],
    at: usize,
    out: &'t mut Vec<u8>,
}

/// A member in the output: where it starts, where its value starts after the colon, and where it ends.
struct Member {
    start: usize,
    value: usize,
    end: usize,
}

impl Sorter<'_> {
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn copy(&mut self, to: usize) {
        self.out.extend_from_slice(&self.text[self.at..to]);
        self.at = to;
    }

    fn value(&mut self) -> Result<(), CanonError> {
        match self.peek() {
            b'{' => self.object(),
            b'[' => self.array(),
            b'"' => {
                self.string();
                Ok(())
            }
            _ => {
                let rest = &self.text[self.at..];
                let len = rest.iter().position(|b| matches!(b, b',' | b']' | b'}')).unwrap_or(rest.len());
                let scalar = &rest[..len];
                // `true`, `false` and `null` have no digit in front.
                let number = scalar.first().is_some_and(|b| b.is_ascii_digit() || *b == b'-');
                if number && scalar.iter().any(|b| matches!(b, b'.' | b'e' | b'E')) {
                    return Err(CanonError::Float);
                }
                self.copy(self.at + len);
                Ok(())
            }
        }
    }

    fn string(&mut self) {
        let mut end = self.at + 1;
        while let Some(b) = self.text.get(end) {
            end += 1;
            match b {
                b'"' => break,
                b'\\' => end += 1,
                _ => {}
            }
        }
        self.copy(end.min(self.text.len()));
    }

    fn array(&mut self) -> Result<(), CanonError> {
        self.copy(self.at + 1);
        while self.peek() != b']' {
            if self.peek() == b',' {
                self.copy(self.at + 1);
            }
            self.value()?;
        }
        self.copy(self.at + 1);
        Ok(())
    }

    fn object(&mut self) -> Result<(), CanonError> {
        self.copy(self.at + 1);
        let first = self.out.len();
        let mut members: Vec<Member> = Vec::with_capacity(16);
        while self.peek() != b'}' {
            if self.peek() == b',' {
                self.at += 1;
            }
            let start = self.out.len();
            self.string();
            self.copy(self.at + 1);
            let value = self.out.len();
            self.value()?;
            members.push(Member { start, value, end: self.out.len() });
        }
        let before = |a: &Member, b: &Member| {
            key_order(&self.out[a.start..a.value - 1], &self.out[b.start..b.value - 1])
        };
        members.sort_by(before);
        let written = self.out.split_off(first);
        for (n, member) in members.iter().enumerate() {
            if n > 0 {
                self.out.push(b',');
            }
            self.out.extend_from_slice(&written[member.start - first..member.end - first]);
        }
        self.copy(self.at + 1);
        Ok(())
    }
}

/// The order of two keys as written, quotes included: by their UTF-16 code units.
fn key_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let plain = |key: &[u8]| key.iter().all(|b| b.is_ascii() && *b != b'\\');
    if plain(a) && plain(b) {
        // Without the closing quote, which would stand before letters of a longer key.
        return a[..a.len() - 1].cmp(&b[..b.len() - 1]);
    }
    let read = |key: &[u8]| serde_json::from_slice::<String>(key).unwrap_or_default();
    read(a).encode_utf16().cmp(read(b).encode_utf16())
}

/// An operating-system string: any bytes but NUL. Serialised as a string when it is UTF-8, else as
/// `{"b64": …}`; reads both.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OsBytes(Vec<u8>);

impl OsBytes {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As an `OsStr`, without a copy.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Takes the bytes out.
    pub fn into_os_string(self) -> OsString {
        OsString::from_vec(self.0)
    }
}

impl From<&str> for OsBytes {
    fn from(s: &str) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl From<String> for OsBytes {
    fn from(s: String) -> Self {
        Self(s.into_bytes())
    }
}

impl From<Vec<u8>> for OsBytes {
    fn from(s: Vec<u8>) -> Self {
        Self(s)
    }
}

impl From<&OsStr> for OsBytes {
    fn from(s: &OsStr) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl From<OsString> for OsBytes {
    fn from(s: OsString) -> Self {
        Self(s.into_vec())
    }
}

impl fmt::Debug for OsBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_os_str(), f)
    }
}

#[derive(Serialize)]
struct B64Form {
    b64: String,
}

impl Serialize for OsBytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => s.serialize_str(text),
            Err(_) => B64Form { b64: B64.encode(&self.0) }.serialize(s),
        }
    }
}

/// By hand rather than untagged, so that a wrong type is named and its place in the file is kept.
struct OsBytesVisitor;

impl<'de> serde::de::Visitor<'de> for OsBytesVisitor {
    type Value = OsBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or { b64 = \"…\" }")
    }

    fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<OsBytes, E> {
        Ok(s.into())
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<OsBytes, A::Error> {
        use serde::de::Error as _;
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "b64" {
                return Err(A::Error::unknown_field(&key, &["b64"]));
            }
            if found.is_some() {
                return Err(A::Error::duplicate_field("b64"));
            }
            let text = map.next_value::<String>()?;
            found = Some(B64.decode(text).map_err(|_| A::Error::custom("`b64` is not base64"))?);
        }
        found.map(OsBytes).ok_or_else(|| A::Error::missing_field("b64"))
    }
}

impl<'de> Deserialize<'de> for OsBytes {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(OsBytesVisitor)
    }
}

impl schemars::JsonSchema for OsBytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Text".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "string" },
                { "type": "object", "properties": { "b64": { "type": "string", "contentEncoding": "base64" } },
                  "required": ["b64"], "additionalProperties": false }
            ]
        })
    }
}

/// Standard base64 of `bytes`.
pub fn b64(bytes: &[u8]) -> String {
    B64.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_sorted_by_utf16_and_floats_are_refused() {
        let v: serde_json::Value =
            serde_json::from_str(r#"{"b":1,"a":{"z":[true,null],"y":"é\n"}}"#).unwrap();
        assert_eq!(canonical_json(&v).unwrap(), r#"{"a":{"y":"é\n","z":[true,null]},"b":1}"#.as_bytes());
        assert!(matches!(canonical_json(&1.5), Err(CanonError::Float)));
    }

    #[test]
    fn digest_is_sha256() {
        assert_eq!(
            Digest::of(b"abc").to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    /// What `canonical_json` does, by way of a tree.
    fn by_tree(out: &mut Vec<u8>, value: &serde_json::Value) {
        use serde_json::Value;
        match value {
            Value::Array(items) => {
                out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    out.extend_from_slice(if i > 0 { b"," } else { b"" });
                    by_tree(out, item);
                }
                out.push(b']');
            }
            Value::Object(map) => {
                let mut keys: Vec<&String> = map.keys().collect();
                keys.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16()));
                out.push(b'{');
                for (i, key) in keys.into_iter().enumerate() {
                    out.extend_from_slice(if i > 0 { b"," } else { b"" });
                    serde_json::to_writer(&mut *out, key).unwrap();
                    out.push(b':');
                    by_tree(out, &map[key]);
                }
                out.push(b'}');
            }
            scalar => serde_json::to_writer(out, scalar).unwrap(),
        }
    }

    fn any_value() -> impl Strategy<Value = serde_json::Value> {
        let text = "[a-c\\\\\"{}\\[\\],:é\u{1f600}\u{fffd}\u{1}]{0,4}";
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            text.prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 48, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                proptest::collection::vec((text, inner), 0..6)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn floats_are_refused_wherever_they_are() {
        assert!(matches!(canonical_json(&(1, [("e", 1e300)])), Err(CanonError::Float)));
        assert!(matches!(canonical_json(&[-0.5]), Err(CanonError::Float)));
        assert_eq!(canonical_json(&(true, "1.5e", -5)).unwrap(), br#"[true,"1.5e",-5]"#);
    }

    proptest! {
        #[test]
        fn on_the_text_and_on_the_tree_are_the_same(value in any_value()) {
            let mut expected = Vec::new();
            by_tree(&mut expected, &value);
            prop_assert_eq!(
                String::from_utf8(canonical_json(&value).unwrap()).unwrap(),
                String::from_utf8(expected).unwrap()
            );
        }

        #[test]
        fn os_bytes_survive_json(bytes in proptest::collection::vec(1u8..=255, 0..64)) {
            let v = OsBytes::from(bytes);
            let text = serde_json::to_string(&v).unwrap();
            prop_assert_eq!(serde_json::from_str::<OsBytes>(&text).unwrap(), v);
        }
    }
}

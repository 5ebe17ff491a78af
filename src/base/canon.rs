//! Canonical encoding and digests: RFC 8785 JSON without floats, and bytes that are not UTF-8 written
//! as `{"b64": …}`, so that two hosts which mean the same thing produce the same bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::ser::Formatter;
use sha2::{Digest as _, Sha256};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
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

    /// A digest that was computed elsewhere.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
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

/// The digest of bytes that come in pieces.
#[derive(Debug, Clone, Default)]
pub struct Digester(Sha256);

impl Digester {
    /// The next piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Of all pieces.
    pub fn end(self) -> Digest {
        Digest(self.0.finalize().into())
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
    // serde_json writes scalars as RFC 8785 wants them and no blanks; what remains is the order of members.
    let out = RefCell::new(Vec::with_capacity(OUT_BYTES));
    let order = InOrder { out: &out, open: Vec::new(), members: Vec::new(), unordered: Vec::new() };
    let mut to = serde_json::Serializer::with_formatter(Out(&out), order);
    // Memory takes every write: only `write_f64` fails.
    value.serialize(&mut to).map_err(|e| if e.is_io() { CanonError::Float } else { CanonError::Json(e) })?;
    drop(to);
    Ok(out.into_inner())
}

/// What a plan takes, about.
const OUT_BYTES: usize = 16 << 10;

/// Where serde_json writes.
struct Out<'o>(&'o RefCell<Vec<u8>>);

impl io::Write for Out<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts the members of each object in order when the object ends.
struct InOrder<'o> {
    out: &'o RefCell<Vec<u8>>,
    /// For each object that has not ended: the place of its first member in `members`.
    open: Vec<usize>,
    members: Vec<Member>,
    /// The members of one object, while they are put in order.
    unordered: Vec<u8>,
}

/// A member in the output: where its key starts and ends, quotes included, and where its value ends.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    key_end: usize,
    end: usize,
    /// No character of the key is written otherwise than it is, and each is one byte.
    plain: bool,
}

impl InOrder<'_> {
    fn ended(&mut self, change: impl FnOnce(&mut Member, &[u8])) {
        if let Some(member) = self.members.last_mut() {
            change(member, &self.out.borrow());
        }
    }
}

impl Formatter for InOrder<'_> {
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open.push(self.members.len());
        writer.write_all(b"{")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        let start = self.out.borrow().len();
        self.members.push(Member { start, key_end: start, end: start, plain: false });
        Ok(())
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.ended(|member, out| {
            member.key_end = out.len();
            member.plain = out[member.start..].iter().all(|b| b.is_ascii() && *b != b'\\');
        });
        Ok(())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.ended(|member, out| member.end = out.len());
        Ok(())
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        let first = self.open.pop().unwrap_or(0);
        let members = &mut self.members[first..];
        let mut out = self.out.borrow_mut();
        if !members.is_sorted_by(|a, b| key_order(&out, a, b).is_le()) {
            let start = members.first().map_or(out.len(), |m| m.start);
            members.sort_by(|a, b| key_order(&out, a, b));
            self.unordered.clear();
            self.unordered.extend_from_slice(&out[start..]);
            out.truncate(start);
            for member in members {
                if out.len() > start {
                    out.push(b',');
                }
                out.extend_from_slice(&self.unordered[member.start - start..member.end - start]);
            }
        }
        drop(out);
        self.members.truncate(first);
        writer.write_all(b"}")
    }

    fn write_f32<W: ?Sized + io::Write>(&mut self, _: &mut W, _: f32) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, _: &mut W, _: f64) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The order of two keys in `out`: by their UTF-16 code units.
fn key_order(out: &[u8], a: &Member, b: &Member) -> Ordering {
    let (x, y) = (&out[a.start..a.key_end], &out[b.start..b.key_end]);
    if a.plain && b.plain {
        // Without the closing quote, which would stand before letters of a longer key.
        return x[..x.len() - 1].cmp(&y[..y.len() - 1]);
    }
    let read = |key: &[u8]| serde_json::from_slice::<String>(key).unwrap_or_default();
    read(x).encode_utf16().cmp(read(y).encode_utf16())
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
        serialize_bytes(&self.0, s)
    }
}

/// Bytes in the form of [`OsBytes`].
pub(super) fn serialize_bytes<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => s.serialize_str(text),
        Err(_) => B64Form { b64: B64.encode(bytes) }.serialize(s),
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
        fn while_writing_and_on_the_tree_are_the_same(value in any_value()) {
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

//! Quantities with their units, parsed from the spelling that profiles and flags use.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Why a quantity was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not `NUMBER[UNIT]`.
    #[error("`{0}` is not a {1}")]
    Form(String, &'static str),
    /// Does not fit 64 bits.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

fn split(s: &str) -> (&str, &str) {
    let at = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    (&s[..at], s[at..].trim_start())
}

fn shown(s: &str) -> String {
    super::text::visible(s.as_bytes())
}

fn number(s: &str, digits: &str, what: &'static str) -> Result<u64, UnitError> {
    if digits.is_empty() {
        return Err(UnitError::Form(shown(s), what));
    }
    digits.parse().map_err(|_| UnitError::TooLarge(shown(s)))
}

macro_rules! text_serde {
    ($t:ty, $name:literal, $pattern:literal) => {
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl schemars::JsonSchema for $t {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}

/// A number of bytes: `512`, `64KiB`, `2MiB`, `4GiB` (also `K`, `M`, `G`, `T`, all powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// As people read it: exact where a unit fits, else to a tenth of the largest one.
    pub fn rounded(self) -> String {
        let exact = self.to_string();
        if exact.bytes().any(|b| b.is_ascii_alphabetic()) || self.0 < 1024 {
            return exact;
        }
        let (unit, name) = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")]
            .into_iter()
            .find(|(u, _)| self.0 >= *u)
            .unwrap_or((1 << 10, "KiB"));
        let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        format!("{}.{}{name}", tenths / 10, tenths % 10)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Self, UnitError> {
        let (digits, unit) = split(s);
        let n = number(s, digits, "size such as 64KiB, 512MiB or 4GiB")?;
        let shift = match unit {
            "" | "B" => 0,
            "K" | "KiB" => 10,
            "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            "T" | "TiB" => 40,
            _ => return Err(UnitError::Form(shown(s), "size such as 64KiB, 512MiB or 4GiB")),
        };
        n.checked_mul(1 << shift).map(Self).ok_or_else(|| UnitError::TooLarge(shown(s)))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}
text_serde!(ByteSize, "ByteSize", "^[0-9]+(B|K|KiB|M|MiB|G|GiB|T|TiB)?$");

/// A memory limit: bytes, a percentage (1–100) of the host's memory, or the lesser of both (`2GiB,75%`);
/// resolved when the plan is made. The pair is what narrowing one by the other means on every host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemorySize {
    /// An absolute size.
    Bytes(ByteSize),
    /// A share of the host's memory in percent.
    Percent(u8),
    /// Whichever is less.
    Least(ByteSize, u8),
}

impl MemorySize {
    /// The size in bytes on a host with `total` bytes of memory.
    pub fn resolve(self, total: u64) -> u64 {
        let share = |p: u8| total / 100 * u64::from(p);
        match self {
            Self::Bytes(b) => b.0,
            Self::Percent(p) => share(p),
            Self::Least(b, p) => b.0.min(share(p)),
        }
    }

    /// The bound in bytes and the bound in percent, where there is one.
    pub fn parts(self) -> (Option<ByteSize>, Option<u8>) {
        match self {
            Self::Bytes(b) => (Some(b), None),
            Self::Percent(p) => (None, Some(p)),
            Self::Least(b, p) => (Some(b), Some(p)),
        }
    }

    /// The inverse of [`MemorySize::parts`]; `None` when there is no bound at all.
    pub fn from_parts(bytes: Option<ByteSize>, percent: Option<u8>) -> Option<Self> {
        match (bytes, percent) {
            (Some(b), Some(p)) => Some(Self::Least(b, p)),
            (Some(b), None) => Some(Self::Bytes(b)),
            (None, Some(p)) => Some(Self::Percent(p)),
            (None, None) => None,
        }
    }
}

impl FromStr for MemorySize {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Self, UnitError> {
        let (bytes, percent) = match s.split_once(',') {
            Some((b, p)) => (Some(b.trim_end()), Some(p.trim_start())),
            None if s.ends_with('%') => (None, Some(s)),
            None => (Some(s), None),
        };
        let bytes = bytes.map(str::parse).transpose()?;
        let percent = match percent {
            None => None,
            Some(p) => match p.strip_suffix('%').map(str::parse::<u8>) {
                Some(Ok(p @ 1..=100)) => Some(p),
                _ => return Err(UnitError::Form(shown(s), "percentage from 1% to 100%")),
            },
        };
        Self::from_parts(bytes, percent).ok_or_else(|| UnitError::Form(shown(s), "size or percentage"))
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(b) => b.fmt(f),
            Self::Percent(p) => write!(f, "{p}%"),
            Self::Least(b, p) => write!(f, "{b},{p}%"),
        }
    }
}
text_serde!(
    MemorySize,
    "MemorySize",
    "^([0-9]+ *(B|K|KiB|M|MiB|G|GiB|T|TiB)?|[0-9]{1,3}%|[0-9]+ *(B|K|KiB|M|MiB|G|GiB|T|TiB)? *, *[0-9]{1,3}%)$"
);

/// A duration in milliseconds: `250ms`, `30s`, `10m`, `2h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl FromStr for Millis {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Self, UnitError> {
        let (digits, unit) = split(s);
        let n = number(s, digits, "duration such as 250ms, 30s, 10m or 2h")?;
        let by = match unit {
            "ms" => 1,
            "" | "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            _ => return Err(UnitError::Form(shown(s), "duration such as 250ms, 30s, 10m or 2h")),
        };
        n.checked_mul(by).map(Self).ok_or_else(|| UnitError::TooLarge(shown(s)))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (by, unit) in [(3_600_000, "h"), (60_000, "m"), (1000, "s")] {
            if self.0 >= by && self.0.is_multiple_of(by) {
                return write!(f, "{}{unit}", self.0 / by);
            }
        }
        write!(f, "{}ms", self.0)
    }
}
text_serde!(Millis, "Duration", "^[0-9]+(ms|s|m|min|h)?$");

/// CPU time per wall time in percent of one core: `50%`, `200%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuShare(pub u32);

impl FromStr for CpuShare {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Self, UnitError> {
        let digits =
            s.strip_suffix('%').ok_or_else(|| UnitError::Form(shown(s), "CPU share such as 50% or 200%"))?;
        match digits.parse::<u32>() {
            Ok(p @ 1..=1_000_000) => Ok(Self(p)),
            _ => Err(UnitError::Form(shown(s), "CPU share such as 50% or 200%")),
        }
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}
text_serde!(CpuShare, "CpuShare", "^[0-9]+%$");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings() {
        assert_eq!("4GiB".parse(), Ok(ByteSize(4 << 30)));
        assert_eq!("1M".parse(), Ok(ByteSize(1 << 20)));
        assert!("1.5G".parse::<ByteSize>().is_err());
        assert!("-1".parse::<ByteSize>().is_err());
        assert!("99999999999999999999".parse::<ByteSize>().is_err());
        assert!("16777216T".parse::<ByteSize>().is_err());
        assert_eq!("250ms".parse(), Ok(Millis(250)));
        assert_eq!("5".parse(), Ok(Millis(5000)));
        assert!("5d".parse::<Millis>().is_err());
        assert_eq!("75%".parse(), Ok(MemorySize::Percent(75)));
        assert_eq!("2GiB,75%".parse(), Ok(MemorySize::Least(ByteSize(2 << 30), 75)));
        assert_eq!(MemorySize::Least(ByteSize(2 << 30), 75).to_string(), "2GiB,75%");
        assert_eq!(MemorySize::Least(ByteSize(2 << 30), 50).resolve(1 << 30), (1 << 30) / 100 * 50);
        assert!("2GiB,".parse::<MemorySize>().is_err());
        assert!("75%,2GiB".parse::<MemorySize>().is_err());
        assert!("101%".parse::<MemorySize>().is_err());
        assert_eq!("150%".parse(), Ok(CpuShare(150)));
        assert!("0%".parse::<CpuShare>().is_err());
    }

    proptest! {
        #[test]
        fn display_parses_back(n in 0u64..u64::MAX / 4096) {
            prop_assert_eq!(ByteSize(n).to_string().parse(), Ok(ByteSize(n)));
            prop_assert_eq!(Millis(n / 4096).to_string().parse(), Ok(Millis(n / 4096)));
        }
    }
}

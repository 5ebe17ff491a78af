//! The identity of a run: a UUID of version 7 (RFC 9562), made from a time and random bytes that the
//! caller passes in. It sorts by time and names the run's live file, cgroups and temporary files.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The length of its text form.
pub const RUN_ID_CHARS: usize = 36;

/// Names one run of an executor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId([u8; 16]);

/// The text is not a run id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a run id: 32 lower-case hexadecimal digits in groups of 8-4-4-4-12, version 7, were expected")]
pub struct RunIdError;

impl RunId {
    /// The id for a moment (milliseconds since 1970; 48 bits are used) and random bytes, of which 74 bits
    /// are used.
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        let mut out = [0u8; 16];
        out[..6].copy_from_slice(&unix_ms.to_be_bytes()[2..]);
        out[6..].copy_from_slice(&random);
        out[6] = 0x70 | (out[6] & 0x0f);
        out[8] = 0x80 | (out[8] & 0x3f);
        Self(out)
    }

    /// The moment that it was made from, in milliseconds since 1970.
    pub fn unix_ms(&self) -> u64 {
        self.0[..6].iter().fold(0, |all, b| all << 8 | u64::from(*b))
    }

    /// Its last eight bytes as a number: 62 of the bits are random.
    pub fn random_bits(&self) -> u64 {
        self.0[8..].iter().fold(0, |all, b| all << 8 | u64::from(*b))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, b) in self.0.iter().enumerate() {
            if matches!(n, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RunId {
    type Err = RunIdError;
    fn from_str(s: &str) -> Result<Self, RunIdError> {
        if s.len() != RUN_ID_CHARS {
            return Err(RunIdError);
        }
        let mut out = [0u8; 16];
        let mut nibbles = 0;
        for (at, c) in s.bytes().enumerate() {
            let value = match c {
                b'-' if matches!(at, 8 | 13 | 18 | 23) => continue,
                b'0'..=b'9' => c - b'0',
                b'a'..=b'f' => c - b'a' + 10,
                _ => return Err(RunIdError),
            };
            let byte = out.get_mut(nibbles / 2).ok_or(RunIdError)?;
            *byte = *byte << 4 | value;
            nibbles += 1;
        }
        let id = Self(out);
        // One spelling per id: the dashes stand where they belong, and version and variant are ours.
        if nibbles == 32 && out[6] >> 4 == 7 && out[8] >> 6 == 2 { Ok(id) } else { Err(RunIdError) }
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 9562, appendix A.6.
        let random = [0x0c, 0xc3, 0x18, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f];
        let id = RunId::new(0x017F_22E2_79B0, random);
        assert_eq!(id.to_string(), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
        assert_eq!(id.unix_ms(), 0x017F_22E2_79B0);
    }

    #[test]
    fn other_spellings_are_refused() {
        for bad in [
            "",
            "017F22e2-79b0-7cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-18c4-dc0c0c07398f",
            "017f22e279b0-7cc3-98c4-dc0c0c07398f00",
            "../../../../../../../../../../../../",
        ] {
            assert_eq!(bad.parse::<RunId>(), Err(RunIdError), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn text_parses_back_and_sorts_by_time(a in 0u64..1 << 48, b in 0u64..1 << 48, r: [u8; 10], q: [u8; 10]) {
            let (x, y) = (RunId::new(a, r), RunId::new(b, q));
            prop_assert_eq!(x.to_string().parse(), Ok(x));
            if a < b {
                prop_assert!(x < y && x.to_string() < y.to_string());
            }
        }
    }
}

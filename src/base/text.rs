//! Text from outside, made safe to show: control characters, escapes and invalid UTF-8 are written as
//! visible escapes, and the length is bounded.

use std::fmt::Write as _;

/// The longest untrusted text shown in one message, in characters.
pub const SHOWN_CHARS_MAX: usize = 512;

/// `bytes` with everything that a terminal or a log could act on written as an escape, at most
/// [`SHOWN_CHARS_MAX`] characters long.
pub fn visible(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().min(SHOWN_CHARS_MAX));
    let mut shown = 0;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if shown >= SHOWN_CHARS_MAX {
                out.push('…');
                return out;
            }
            shown += 1;
            if c.is_control() || is_format_control(c) {
                let _ = write!(out, "{}", c.escape_unicode());
            } else {
                out.push(c);
            }
        }
        for b in chunk.invalid() {
            if shown >= SHOWN_CHARS_MAX {
                out.push('…');
                return out;
            }
            shown += 1;
            let _ = write!(out, "\\x{b:02x}");
        }
    }
    out
}

/// Bidirectional and invisible format characters, which make a text read as something else.
fn is_format_control(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{e0000}'..='\u{e007f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Text that a model may be shown, as a type of its own: it is made of our words, of numbers, and of what the command
/// itself named or could see. There is no way to put a path of the host or an error of ours into it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct ForModel(String);

impl ForModel {
    /// Begins with our words.
    pub fn new(ours: &'static str) -> Self {
        Self(ours.to_owned())
    }

    /// More of our words.
    #[must_use]
    pub fn ours(mut self, text: &'static str) -> Self {
        self.0.push_str(text);
        self
    }

    /// What the command named or could see, made visible.
    #[must_use]
    pub fn named(mut self, bytes: &[u8]) -> Self {
        self.0.push_str(&visible(bytes));
        self
    }

    /// A word of the plan's: a key, a set, a size, a system call.
    #[must_use]
    pub fn word(mut self, word: &dyn std::fmt::Display) -> Self {
        let word = word.to_string();
        self.0.push_str(&visible(word.as_bytes()));
        self
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ForModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_what_terminals_act_on() {
        assert_eq!(visible(b"a\x1b[2Jb\n\xff\xfe"), "a\\u{1b}[2Jb\\u{a}\\xff\\xfe");
        assert_eq!(visible("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert!(visible(&[b'x'; 10_000]).chars().count() <= SHOWN_CHARS_MAX + 1);
    }

    proptest! {
        #[test]
        fn never_a_control_character(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(!visible(&bytes).chars().any(|c| c.is_control()));
        }
    }
}

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
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
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

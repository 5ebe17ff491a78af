//! What a command's output may have done to the terminal that shows it. Pure: bytes in, two questions answered: whether the
//! terminal has to be put back, and whether it may be about to answer something, which would be typed into whatever reads
//! the terminal next.
//!
//! The command decides what it writes, and terminals differ in how they read it; so every doubt counts as yes. A reset
//! that was not needed changes nothing (see [`RESET`]); one that is missing leaves a shell unusable. Sequences follow
//! ECMA-48, xterm's ctlseqs, and the kitty keyboard protocol.

/// Puts a terminal back without moving its cursor or clearing anything, in an order in which each part works whatever the
/// parts after it find.
pub const RESET: &[u8] = concat!(
    // Ends a string (OSC, DCS, APC, PM, SOS) that was left open, and any other unfinished sequence.
    "\x1b\\",
    // Shows again what synchronized updates hold back.
    "\x1b[?2026l",
    // The normal screen. Its cursor is the one saved before, so that a terminal which is there already does not move it; and
    // before the soft reset, which forgets saved cursors.
    "\x1b7\x1b[?1049l",
    // Soft reset: attributes, character sets, margins, origin and insert mode, keypad and cursor keys, cursor shown.
    "\x1b[!p",
    // The same for terminals without a soft reset. Margins move the cursor, which is why it is saved around them.
    "\x1b(B\x0f\x1b[0m\x1b[4l\x1b[20l\x1b[?1l\x1b>\x1b7\x1b[?69l\x1b[r\x1b8",
    // Reverse video, wrapping, blinking.
    "\x1b[?5l\x1b[?7h\x1b[?12l",
    // Mouse, focus and paste reports.
    "\x1b[?9l\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l",
    "\x1b[?2004l",
    // Keyboards: kitty's stack and flags, xterm's modifyOtherKeys.
    "\x1b[<32u\x1b[=0u\x1b[>4m",
    // Cursor: shown, in its usual shape.
    "\x1b[0 q\x1b[?25h",
)
.as_bytes();

/// Origin mode, for terminals without a soft reset: that moves the cursor in any case, so it goes to the last line.
pub const RESET_ORIGIN: &[u8] = b"\x1b[?6l\x1b[999;1H";

/// The colours that programs may change: palette, foreground, background, cursor, pointer, selection.
pub const RESET_COLOURS: &[u8] =
    b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\\x1b]117\x1b\\\x1b]119\x1b\\";

/// Asks for the terminal's attributes: every terminal answers, and answers in order.
pub const ASK: &[u8] = b"\x1b[c";

/// Keeps the window's title, and brings it back.
pub const KEEP_TITLE: &[u8] = b"\x1b[22;0t";
/// See [`KEEP_TITLE`].
pub const TITLE_BACK: &[u8] = b"\x1b[23;0t";

/// Parameter bytes of a control sequence that are looked at.
const PARAMETERS_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum In {
    #[default]
    Text,
    Escape,
    /// Escape and intermediate bytes.
    Intermediate,
    Control,
    /// OSC, DCS, APC, PM or SOS.
    String,
    StringEscape,
}

/// The state of one stream.
#[derive(Debug, Clone, Default)]
pub struct Screen {
    state: In,
    parameters: Vec<u8>,
    /// The first bytes of an OSC: its number.
    number: Vec<u8>,
    /// Of a character of several bytes: how many are still to come, and whether it began as U+0080 to U+00BF do.
    continuing: u8,
    low: bool,
    changed: bool,
    origin: bool,
    coloured: bool,
    asked: bool,
}

impl Screen {
    /// The next bytes that were shown.
    pub fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.byte(*byte);
        }
    }

    /// Whether [`RESET`] is due.
    pub fn changed(&self) -> bool {
        self.changed || self.state != In::Text
    }

    /// Whether [`RESET_ORIGIN`] is due.
    pub fn origin(&self) -> bool {
        self.origin
    }

    /// Whether [`RESET_COLOURS`] is due.
    pub fn coloured(&self) -> bool {
        self.coloured
    }

    /// Whether the terminal may be about to answer.
    pub fn asked(&self) -> bool {
        self.asked
    }

    fn doubt(&mut self) {
        self.changed = true;
        self.asked = true;
    }

    fn byte(&mut self, b: u8) {
        match self.state {
            In::Text => self.text(b),
            In::Escape => self.escape(b),
            In::Intermediate => {
                if !(0x20..0x30).contains(&b) {
                    self.state = In::Text;
                    self.changed = true;
                }
            }
            In::Control => self.control(b),
            In::String => match b {
                0x1b => self.state = In::StringEscape,
                // BEL ends an OSC; CAN and SUB cancel.
                0x07 | 0x18 | 0x1a => self.state = In::Text,
                b'?' => self.asked = true,
                _ if self.number.len() < 4 => {
                    self.number.push(b);
                    self.string_number();
                }
                _ => {}
            },
            In::StringEscape => {
                self.state = In::Text;
                if b != b'\\' {
                    self.state = In::Escape;
                    self.escape(b);
                }
            }
        }
    }

    fn text(&mut self, b: u8) {
        if self.continuing > 0 {
            self.continuing -= 1;
            // C1 controls in UTF-8 are control functions for some terminals.
            if std::mem::take(&mut self.low) && b < 0xa0 {
                self.origin = true;
                self.doubt();
            }
            if (0x80..0xc0).contains(&b) {
                return;
            }
            self.continuing = 0;
        }
        match b {
            0x1b => self.state = In::Escape,
            // Answerback.
            0x05 => self.asked = true,
            // Shifts to other character sets.
            0x0e | 0x0f => self.changed = true,
            0xc2 => (self.continuing, self.low) = (1, true),
            0xc3..0xe0 => self.continuing = 1,
            0xe0..0xf0 => self.continuing = 2,
            0xf0..0xf8 => self.continuing = 3,
            // C1 controls as single bytes, for terminals that are not in UTF-8.
            0x80..0xa0 => {
                self.origin = true;
                self.doubt();
            }
            _ => {}
        }
    }

    fn escape(&mut self, b: u8) {
        self.state = In::Text;
        match b {
            b'[' => {
                self.parameters.clear();
                self.state = In::Control;
            }
            b']' | b'P' | b'_' | b'^' | b'X' => {
                self.changed = true;
                self.number.clear();
                // Every DCS may be a question.
                self.asked |= b == b'P';
                self.state = In::String;
            }
            0x1b => self.state = In::Escape,
            0x20..0x30 => self.state = In::Intermediate,
            // DECID.
            b'Z' => self.doubt(),
            // String terminator.
            b'\\' => {}
            _ => self.changed = true,
        }
    }

    fn control(&mut self, b: u8) {
        match b {
            0x1b => self.state = In::Escape,
            0x18 | 0x1a => self.state = In::Text,
            0x20..0x40 if self.parameters.len() < PARAMETERS_MAX => self.parameters.push(b),
            0x20..0x40 => self.doubt(),
            0x40..0x7f => {
                self.state = In::Text;
                self.origin |= b == b'h' && self.parameters.contains(&b'6');
                let plain = self.parameters.iter().all(|p| p.is_ascii_digit() || matches!(p, b';' | b':'));
                match b {
                    // Movement, erasing, scrolling, inserting and deleting stay where they happened.
                    b'A'..=b'M'
                    | b'P'
                    | b'S'
                    | b'T'
                    | b'X'
                    | b'Z'
                    | b'`'
                    | b'a'
                    | b'b'
                    | b'd'
                    | b'e'
                    | b'f'
                    | b'@'
                        if plain => {}
                    // Attributes: no more than a reset of them is due, and the whole of it does that.
                    b'm' if plain => {
                        self.changed |= !matches!(self.parameters.as_slice(), b"" | b"0" | b"00")
                    }
                    // Device attributes, status, window, checksum, mode and size reports, presentation, kitty's flags.
                    b'c' | b'n' | b't' | b'x' | b'y' | b'p' | b'w' | b'v' | b'u' | b'q' | b'S' | b'z'
                    | b'|' | b'{' => {
                        self.doubt();
                    }
                    _ => self.changed = true,
                }
            }
            // Controls within a sequence work as they do outside of it.
            0x05 => self.asked = true,
            0x0e | 0x0f => self.changed = true,
            _ => {}
        }
    }

    fn string_number(&mut self) {
        let digits: &[u8] = &self.number[..self.number.iter().take_while(|b| b.is_ascii_digit()).count()];
        if matches!(
            digits,
            b"4" | b"5" | b"6" | b"10" | b"11" | b"12" | b"13" | b"14" | b"17" | b"19" | b"21" | b"104"
        ) {
            self.coloured = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(bytes: &[u8]) -> (bool, bool, bool) {
        let mut screen = Screen::default();
        screen.push(bytes);
        (screen.changed(), screen.coloured(), screen.asked())
    }

    #[test]
    fn plain_output_asks_for_nothing() {
        for text in
            ["", "a\tb\r\n\x08\x07", "naïve — 漢字 🦀 é", "\x1b[2K\x1b[1A\x1b[10;20H\x1b[0m", "\x1b[0K\x1b[J"]
        {
            assert_eq!(seen(text.as_bytes()), (false, false, false), "{text:?}");
        }
    }

    #[test]
    fn what_outlives_its_writer() {
        for text in [
            "\x1b[31m",
            "\x1b[?1049h",
            "\x1b[?2004h",
            "\x1b[?1000h",
            "\x1b[?25l",
            "\x1b(0",
            "\x0e",
            "\x1b[2;5r",
            "\x1b[?2026h",
            "\x1b[>1u",
            "\x1b]0;title\x07",
            "\x1bPq",
            "\x1b_x",
            "\x1b[4h",
            "\x1bc",
            "\x1b=",
            "\x1b#8",
            "\x1b[!",
            "\x1b",
            "\u{9b}31m",
            "\x1b%@",
        ] {
            assert!(seen(text.as_bytes()).0, "{text:?}");
        }
        assert!(seen(b"\x9b31m").0);
        let mut screen = Screen::default();
        screen.push(b"\x1b[?25;6h");
        assert!(screen.origin());
        assert!(seen(b"\x1b]4;1;#fff\x07").1);
        assert!(seen(b"\x1b]11;red\x1b\\").1);
        assert!(!seen(b"\x1b]0;x\x07").1);
    }

    #[test]
    fn what_a_terminal_answers() {
        for text in [
            "\x1b[c",
            "\x1b[6n",
            "\x1b[>c",
            "\x1b[?6n",
            "\x1b[18t",
            "\x1b[21t",
            "\x05",
            "\x1bZ",
            "\x1b]11;?\x07",
            "\x1b]52;c;?\x07",
            "\x1bP$qm\x1b\\",
            "\x1b[?2026$p",
            "\x1b[?u",
            "\x1b[>q",
            "\u{9b}c",
            "\x1b[\x05",
            "\x1b[0x",
        ] {
            assert!(seen(text.as_bytes()).2, "{text:?}");
        }
        assert!(!seen("\x1b[31mred\x1b[0m".as_bytes()).2);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(bytes in prop::collection::vec(prop_oneof![Just(0x1b), Just(b'['), Just(b']'), any::<u8>()], 0..60), cut in 0usize..60) {
            let mut screen = Screen::default();
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            screen.push(a);
            screen.push(b);
            prop_assert_eq!((screen.changed(), screen.coloured(), screen.asked()), seen(&bytes));
        }
    }
}

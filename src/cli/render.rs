//! Text for people, on its way out. What an operator reads goes through [`safe`] here, whatever was done to
//! it before; documents go through [`json`], which writes as escapes what a terminal would act on.

use crate::base::text::visible;
use crate::supervise::outcome::{Boundary, Fault};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// The longest text of one message that is shown, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The name of a boundary, as in results.
pub fn boundary(boundary: Boundary) -> &'static str {
    match boundary {
        Boundary::Configuration => "configuration",
        Boundary::Sandbox => "sandbox",
        Boundary::Tool => "tool",
        Boundary::ArtifactStore => "artifact_store",
    }
}

/// `text` on one line, without anything that a terminal acts on. Texts that are safe already stay as they are.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut piece = String::with_capacity(512);
    for (n, c) in text.chars().enumerate() {
        // `visible` bounds what it is given; a message may be longer than that.
        if n % 256 == 0 && n > 0 {
            out.push_str(&visible(piece.as_bytes()));
            piece.clear();
        }
        if out.len() + piece.len() > MESSAGE_BYTES_MAX {
            piece.push('…');
            break;
        }
        piece.push(c);
    }
    out.push_str(&visible(piece.as_bytes()));
    out
}

/// `stockade: BOUNDARY/STAGE: OBJECT: message`, and the hint on lines of its own.
pub fn fault(fault: &Fault) -> String {
    let mut out = format!("stockade: {}/{}: ", boundary(fault.boundary), safe(&fault.stage));
    // Many messages are sentences about their object.
    if let Some(object) = fault.object.as_ref().filter(|o| !fault.message.contains(o.as_str())) {
        out.push_str(&safe(object));
        out.push_str(": ");
    }
    // The words say it; the number is for programs, which have `errno` names.
    let message = match fault.message.rsplit_once(" (os error ") {
        Some((words, number)) if number.ends_with(')') => words,
        _ => &fault.message,
    };
    out.push_str(&safe(message));
    out.push('\n');
    if let Some(hint) = &fault.hint {
        out.push_str("hint: ");
        out.push_str(&block(hint, "      "));
        out.push('\n');
    }
    out
}

/// A text of ours that may have several lines (a file to be written, say), each safe and, after the first, indented:
/// none of them can pass for a line of another kind.
pub fn block(text: &str, indent: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (n, line) in text.trim_end().split('\n').enumerate() {
        if n > 0 {
            out.push('\n');
            out.push_str(if line.is_empty() { "" } else { indent });
        }
        out.push_str(&safe(line));
    }
    out
}

/// A list with commas.
pub fn list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut out = String::new();
    for item in items {
        if !out.is_empty() {
            out.push_str(", ");
        }
        out.push_str(&item.to_string());
    }
    out
}

/// Writes everything, and waits where the other side is slow: the caller may have made the descriptor
/// non-blocking.
///
/// # Errors
/// write(2), poll(2).
pub fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    let to: BorrowedFd<'_> = to.as_fd();
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            },
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// A line or more on standard error. When that cannot be written there is nobody to tell.
pub fn tell(text: &str) {
    let stderr = io::stderr();
    if rustix::termios::isatty(&stderr) {
        // One that is stopped or that nobody reads holds nobody up.
        crate::supervise::terminal::show(stderr.as_fd(), text.as_bytes());
    } else {
        let _ = write_all(stderr.lock(), text.as_bytes());
    }
}

/// JSON on one line or several, as people are shown it. Control and format characters that JSON leaves as they are
/// (DEL, C1, bidirectional marks) are written as `\u` escapes, so that it means the same and moves no cursor.
///
/// # Errors
/// When `value` does not fit JSON.
pub fn json<T: Serialize>(value: &T, pretty: bool) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(4096);
    if pretty {
        value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut out,
            Quiet(serde_json::ser::PrettyFormatter::new()),
        ))?;
    } else {
        let quiet = Quiet(serde_json::ser::CompactFormatter);
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, quiet))?;
    }
    out.push(b'\n');
    Ok(out)
}

/// Whether a terminal could act on `c`.
fn acts(c: char) -> bool {
    // What `visible` writes as an escape; beyond ASCII without allocating for each character.
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// A formatter that escapes what [`acts`].
struct Quiet<F>(F);

macro_rules! delegate {
    ($($name:ident($($arg:ident: $t:ty),*);)+) => {
        $(fn $name<W: ?Sized + Write>(&mut self, w: &mut W $(, $arg: $t)*) -> io::Result<()> {
            self.0.$name(w $(, $arg)*)
        })+
    };
}

impl<F: serde_json::ser::Formatter> serde_json::ser::Formatter for Quiet<F> {
    delegate! {
        begin_array(); end_array(); begin_array_value(first: bool); end_array_value();
        begin_object(); end_object(); begin_object_key(first: bool); end_object_key();
        begin_object_value(); end_object_value();
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, w: &mut W, fragment: &str) -> io::Result<()> {
        let mut plain = 0;
        // Nothing of interest is ASCII but DEL, which makes the common case one scan.
        if fragment.bytes().all(|b| b < 0x7f) {
            return w.write_all(fragment.as_bytes());
        }
        for (at, c) in fragment.char_indices().filter(|(_, c)| acts(*c)) {
            w.write_all(&fragment.as_bytes()[plain..at])?;
            write!(w, "\\u{:04x}", u32::from(c))?;
            plain = at + c.len_utf8();
        }
        w.write_all(&fragment.as_bytes()[plain..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fault_is_two_lines_whatever_it_is_about() {
        let text = fault(&Fault {
            code: "x",
            boundary: Boundary::Sandbox,
            stage: "mounting".into(),
            object: Some("/a\nstockade: sandbox: forged\x1b]0;".into()),
            message: "no\rthing".into(),
            hint: Some("do\u{9b}this:\nstockade: x".into()),
            exit_code: 125,
        });
        insta::assert_snapshot!(text, @r"
        stockade: sandbox/mounting: /a\u{a}stockade: sandbox: forged\u{1b}]0;: no\u{d}thing
        hint: do\u{9b}this:
              stockade: x
        ");
    }

    #[test]
    fn long_messages_end() {
        assert_eq!(safe(&"x".repeat(1000)), "x".repeat(1000));
        assert!(safe(&"\u{1b}".repeat(100_000)).len() < 2 * MESSAGE_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn json_means_the_same_and_moves_no_cursor(text in "\\PC{0,20}[\u{7f}-\u{a0}\u{200b}-\u{2070}\u{1b}é]{0,9}") {
            for pretty in [false, true] {
                let out = String::from_utf8(json(&text, pretty).unwrap()).unwrap();
                prop_assert!(!out.trim_end().chars().any(|c| c.is_control() || acts(c)));
                prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text.clone());
            }
        }

        #[test]
        fn safe_twice_is_safe_once(text in "\\PC{0,300}[\u{0}-\u{ff}]{0,300}") {
            let once = safe(&text);
            prop_assert!(!once.chars().any(|c| c.is_control() || acts(c)));
            prop_assert_eq!(safe(&once), once);
        }
    }
}

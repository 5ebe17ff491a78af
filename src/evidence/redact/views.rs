//! A text with its escapes undone, level by level: JSON and shell backslashes, percent, HTML entities, terminal sequences. Each byte
//! knows where in the original it came from.

/// Levels of escaping looked through; a text with more is omitted.
const LEVELS: usize = 8;

/// One reading of a text.
pub struct View {
    pub text: Vec<u8>,
    /// Offset in the original of each byte, and its length at the end.
    pub map: Vec<usize>,
}

/// The text as it is and every decoded level; `None` when there are too many.
pub fn of(text: &str) -> Option<Vec<View>> {
    let mut views = vec![View { text: text.as_bytes().to_vec(), map: (0..=text.len()).collect() }];
    while let Some(next) = views.last().and_then(decode) {
        if views.len() > LEVELS {
            return None;
        }
        views.push(next);
    }
    Some(views)
}

fn hex(digits: &[u8]) -> Option<u32> {
    let mut value = 0;
    for digit in digits {
        value = value * 16 + char::from(*digit).to_digit(16)?;
    }
    Some(value)
}

fn decode(view: &View) -> Option<View> {
    let text = &view.text;
    let mut next = View { text: Vec::with_capacity(text.len()), map: Vec::with_capacity(text.len() + 1) };
    let mut changed = false;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if let Some((bytes, taken)) = unescape(rest) {
            changed = true;
            let mut buffer = [0; 4];
            let encoded: &[u8] = match bytes {
                Some(c) => c.encode_utf8(&mut buffer).as_bytes(),
                None => &[],
            };
            for byte in encoded {
                next.text.push(*byte);
                next.map.push(view.map[at]);
            }
            at += taken;
        } else {
            next.text.push(text[at]);
            next.map.push(view.map[at]);
            at += 1;
        }
    }
    next.map.push(view.map[text.len()]);
    changed.then_some(next)
}

/// What an escape at the start of `rest` means (nothing: it is dropped) and its length.
fn unescape(rest: &[u8]) -> Option<(Option<char>, usize)> {
    let code = |digits: &[u8]| hex(digits).and_then(char::from_u32);
    match rest {
        [b'\\', b'u', b'{', tail @ ..] => {
            let close = tail.iter().take(7).position(|c| *c == b'}')?;
            Some((Some(code(&tail[..close])?), close + 4))
        }
        [b'\\', b'u', a, b, c, d, ..] => Some((Some(code(&[*a, *b, *c, *d])?), 6)),
        [b'\\', b'x', a, b, ..] => Some((Some(code(&[*a, *b])?), 4)),
        [b'\\', b'n', ..] => Some((Some('\n'), 2)),
        [b'\\', b'r', ..] => Some((Some('\r'), 2)),
        [b'\\', b't', ..] => Some((Some('\t'), 2)),
        [b'\\', c @ (b'"' | b'\'' | b'\\' | b'/'), ..] => Some((Some(char::from(*c)), 2)),
        // A shell's continued line.
        [b'\\', b'\n', ..] => Some((None, 2)),
        [b'%', a, b, ..] => code(&[*a, *b]).filter(char::is_ascii).map(|c| (Some(c), 3)),
        [b'&', tail @ ..] => {
            for (name, c) in [
                ("quot;", '"'),
                ("#34;", '"'),
                ("apos;", '\''),
                ("#39;", '\''),
                ("amp;", '&'),
                ("#61;", '='),
                ("#58;", ':'),
            ] {
                if tail.starts_with(name.as_bytes()) {
                    return Some((Some(c), name.len() + 1));
                }
            }
            None
        }
        [0x1b, b'[', tail @ ..] => {
            let end = tail.iter().take(32).position(|c| (0x40..=0x7e).contains(c))?;
            Some((None, end + 3))
        }
        [0 | 8 | 0x1b, ..] => Some((None, 1)),
        // Zero width: U+200B to U+200D, U+2060, U+FEFF, U+00AD.
        [0xe2, 0x80, 0x8b..=0x8d, ..] | [0xe2, 0x81, 0xa0, ..] | [0xef, 0xbb, 0xbf, ..] => Some((None, 3)),
        [0xc2, 0xad, ..] => Some((None, 2)),
        _ => None,
    }
}

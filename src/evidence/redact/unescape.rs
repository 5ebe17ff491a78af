//! One level of escapes resolved: what JSON (`\u0070`, `\"`), shells and URLs (`%70`) make of a text. Not a parser: every
//! escape is resolved wherever it stands, so that malformed and concatenated documents read as well as sound ones.

/// Levels that are looked at. A text with more is omitted.
pub const LEVELS_MAX: usize = 6;

/// The text with each escape resolved once; `None` when it has none.
pub fn once(text: &str) -> Option<String> {
    if !text.contains(['\\', '%', '&']) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut changed = false;
    while let Some(at) = rest.find(['\\', '%', '&']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match escape(rest) {
            Some((c, length)) => {
                out.push(c);
                rest = &rest[length..];
                changed = true;
            }
            None => {
                let c = rest.chars().next().unwrap_or('\\');
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out.push_str(rest);
    changed.then_some(out)
}

/// What the escape at the beginning of `rest` stands for, and its length.
fn escape(rest: &str) -> Option<(char, usize)> {
    let bytes = rest.as_bytes();
    let hex = |from: usize, digits: usize| {
        let text = rest.get(from..from + digits)?;
        if text.bytes().all(|b| b.is_ascii_hexdigit()) { u32::from_str_radix(text, 16).ok() } else { None }
    };
    // Only what is ASCII matters for what is looked for; the rest stays as it is written.
    let ascii = |n: u32| {
        char::from_u32(n).filter(|c| c.is_ascii() && (!c.is_ascii_control() || c.is_ascii_whitespace()))
    };
    match bytes {
        [b'%', ..] => Some((ascii(hex(1, 2)?).filter(|c| *c != '%')?, 3)),
        [b'&', b'q', b'u', b'o', b't', b';', ..] => Some(('"', 6)),
        [b'&', b'#', b'3', b'9', b';', ..] => Some(('\'', 5)),
        [b'&', b'a', b'm', b'p', b';', ..] => Some(('&', 5)),
        [b'\\', b'u', b'{', ..] => {
            let digits = rest[3..].bytes().take(6).take_while(u8::is_ascii_hexdigit).count();
            let c = ascii(hex(3, digits)?)?;
            (digits > 0 && bytes.get(3 + digits) == Some(&b'}')).then_some((c, 4 + digits))
        }
        [b'\\', b'u' | b'U', ..] => Some((ascii(hex(2, 4)?)?, 6)),
        [b'\\', b'x', ..] => Some((ascii(hex(2, 2)?)?, 4)),
        [b'\\', b'n', ..] => Some(('\n', 2)),
        [b'\\', b't' | b'r', ..] => Some((' ', 2)),
        [b'\\', c @ (b'"' | b'\'' | b'\\' | b'/' | b'=' | b':'), ..] => Some((char::from(*c), 2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(once(r#"{\"\u0070assword\":\"x\"}"#).unwrap(), r#"{"password":"x"}"#);
        assert_eq!(once("%70assword%3Dx").unwrap(), "password=x");
        assert_eq!(once("plain"), None);
        assert_eq!(once("100% sure & C:\\Windows"), None);
        assert_eq!(once(r"\x70\u{61}").unwrap(), "pa");
        assert_eq!(once("\\"), None);
        assert_eq!(once("%"), None);
        assert_eq!(once("\\u12"), None);
    }

    #[test]
    fn ends() {
        let mut text = "\\".repeat(4096);
        let mut levels = 0;
        while let Some(next) = once(&text) {
            assert!(next.len() < text.len());
            text = next;
            levels += 1;
        }
        assert!(levels <= 13, "{levels}");
    }
}

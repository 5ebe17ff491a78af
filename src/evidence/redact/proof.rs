//! The last look at a text that is, or pretends to be, JSON: a sensitive name in a malformed document must visibly have a harmless
//! value, or the text counts as not clean.

use super::{keys, views};

/// Whether nothing speaks against showing the text.
pub fn clean(text: &str) -> bool {
    let start = text.trim_start();
    let json = matches!(start.as_bytes().first(), Some(b'{' | b'['))
        && matches!(start[1..].trim_start().as_bytes().first(), Some(b'"' | b'{' | b'[' | b'\\'));
    if !json || start.starts_with("[[") && !start.contains('"') {
        return true;
    }
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    if documents.all(|document| document.is_ok()) {
        return true;
    }
    let Some(views) = views::of(text) else { return false };
    views.last().is_none_or(|view| proven(&view.text))
}

fn proven(text: &[u8]) -> bool {
    keys::names(text).all(|(start, end)| {
        let kind = keys::kind(&text[start..end]);
        if kind == keys::Kind::No {
            return true;
        }
        let blank = |c: &u8| matches!(c, b'"' | b'\'' | b'\\' | b' ' | b'\t' | b'\n' | b'\r');
        let rest = &text[end..];
        let gap = rest.iter().take_while(|c| blank(c)).count();
        let rest = &rest[gap..];
        if rest.is_empty() || rest.starts_with(b",") || rest.starts_with(b"]") {
            return true;
        }
        let operator = rest.iter().take_while(|c| matches!(c, b':' | b'=')).count();
        if operator == 0 {
            // Prose inside a string, unless a quote just closed the name.
            return text.get(end).is_none_or(|c| !matches!(c, b'"' | b'\''));
        }
        let rest = &rest[operator..];
        let rest = &rest[rest.iter().take_while(|c| blank(c)).count()..];
        let value = rest.iter().take(32).take_while(|c| !blank(c) && !matches!(c, b',' | b'}')).count();
        keys::harmless(&rest[..value], kind)
    })
}

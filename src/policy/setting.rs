//! `--set key=value`: one key of a profile in the spelling of a command line.

use super::check::shown;
use super::error::{Fault, Place, PolicyError};
use crate::manifest::{KEYS, LIST_ENTRIES_MAX, ProfileDoc, Shape, VERSION, find_key, near};
use serde::Deserialize as _;

/// The longest `key=value`.
pub const SETTING_BYTES_MAX: usize = 4096;

/// One `--set`, parsed: the key exists, may be set, and the value has its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as a dotted path.
    pub key: String,
    /// The value, as written.
    pub value: String,
    pub(super) doc: Box<ProfileDoc>,
}

/// Why a key can't be set, and what does it.
fn not_settable(key: &str) -> Option<&'static str> {
    match key {
        "version" | "name" | "summary" | "extends" | "why" => Some("it belongs to a profile's file"),
        "mounts" => Some("use --ro, --rw or --tmpfs for a mount"),
        "env.set" => Some("use --env NAME=VALUE, which the profile's `grants.env` bounds"),
        "root.dir" => Some("use --root, which the profile's `grants.root` permits"),
        _ => None,
    }
}

/// The keys that `--set` takes.
pub fn settable_keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|k| k.path).filter(|path| not_settable(path).is_none())
}

impl Setting {
    /// Parses `key=value`.
    ///
    /// # Errors
    /// When it has another form, the key does not exist or can't be set, or the value has the wrong form.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let fail = |key: Option<&str>, fault| PolicyError {
            place: Place::Set,
            key: key.map(shown),
            fault: Box::new(fault),
        };
        if text.len() > SETTING_BYTES_MAX {
            let fault = crate::manifest::ManifestFault::TooLong { bytes: text.len(), max: SETTING_BYTES_MAX };
            return Err(fail(None, fault.into()));
        }
        let (key, value) =
            text.split_once('=').ok_or_else(|| fail(None, Fault::SettingForm { text: shown(text) }))?;
        let (key, value) = (key.trim(), value.trim());
        let env_set = key.starts_with("env.set.");
        let Some(entry) = find_key(if env_set { "env.set" } else { key }) else {
            return Err(fail(Some(key), Fault::UnknownKey { near: near(key, settable_keys()) }));
        };
        if let Some(instead) = not_settable(entry.path) {
            return Err(fail(Some(key), Fault::NotSettable { instead }));
        }
        let bad = |message: String| fail(Some(key), crate::manifest::ManifestFault::Value { message }.into());
        let value_toml = typed(entry.shape, value).map_err(bad)?;
        let doc = ProfileDoc::deserialize(nested(key, value_toml))
            .map_err(|e| bad(crate::manifest::plain(e.message())))?;
        Ok(Self { key: key.to_owned(), value: value.to_owned(), doc: Box::new(doc) })
    }
}

fn typed(shape: Shape, value: &str) -> Result<toml::Value, String> {
    let number = || value.parse::<i64>().map(toml::Value::Integer);
    match shape {
        Shape::Word => Ok(toml::Value::String(value.to_owned())),
        Shape::Flag => value
            .parse()
            .map(toml::Value::Boolean)
            .map_err(|_| format!("`{}` is neither true nor false", shown(value))),
        Shape::CountOrNone if value == "none" => Ok(toml::Value::String(value.to_owned())),
        Shape::Count | Shape::CountOrNone => {
            number().map_err(|_| format!("`{}` is not a whole number", shown(value)))
        }
        Shape::List => list(value),
        Shape::Table | Shape::Mounts => Err("it cannot be written in a --set".to_owned()),
    }
}

fn list(value: &str) -> Result<toml::Value, String> {
    let items: Vec<toml::Value> = if value.starts_with('[') {
        match toml::from_str::<toml::Table>(&format!("v = {value}")).map(|mut t| t.remove("v")) {
            Ok(Some(toml::Value::Array(items))) => items,
            _ => return Err(format!("`{}` is not a list: write a,b or [\"a\", \"b\"]", shown(value))),
        }
    } else if value.is_empty() {
        Vec::new()
    } else {
        value.split(',').map(|item| toml::Value::String(item.trim().to_owned())).collect()
    };
    if items.len() > LIST_ENTRIES_MAX {
        return Err(format!("{} entries; at most {LIST_ENTRIES_MAX}", items.len()));
    }
    Ok(toml::Value::Array(items))
}

/// A document with this key alone.
fn nested(key: &str, value: toml::Value) -> toml::Table {
    let mut parts = key.split('.').rev();
    let mut table = toml::Table::new();
    table.insert(parts.next().unwrap_or_default().to_owned(), value);
    for part in parts {
        let inner = std::mem::take(&mut table);
        table.insert(part.to_owned(), toml::Value::Table(inner));
    }
    table.insert("version".to_owned(), toml::Value::Integer(i64::from(VERSION)));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings() {
        for good in [
            "limits.memory=2GiB",
            "limits.processes=none",
            "limits.processes=5",
            "workspace.hide=a, b",
            "workspace.hide=[\"a,b\"]",
            "network.loopback=false",
            "require.kill=require",
            "seccomp.allow=",
            "identity.user=root",
            " limits.wall = 5m ",
        ] {
            assert!(Setting::parse(good).is_ok(), "{good}: {:?}", Setting::parse(good));
        }
        let code = |text: &str| Setting::parse(text).unwrap_err().code();
        assert_eq!(code("limits.memory"), "setting_form");
        assert_eq!(code("limits.memroy=1"), "unknown_key");
        assert_eq!(code("env.set.A=1"), "not_settable");
        assert_eq!(code("extends=open"), "not_settable");
        assert_eq!(code("limits.memory=lots"), "value");
        assert_eq!(code("workspace.hide=[1"), "value");
        assert_eq!(code("workspace.hide=[1]"), "value");
        assert_eq!(code("limits.processes=-1"), "value");
        assert_eq!(code("network.loopback=yes"), "value");
        assert_eq!(code(&format!("limits.memory={}", "x".repeat(9000))), "too_long");
        assert_eq!(
            Setting::parse("limits.memroy=1").unwrap_err().hint().unwrap(),
            "did you mean `limits.memory`?"
        );
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,60}", key in 0..KEYS.len(), value in "\\PC{0,20}") {
            let _ = Setting::parse(&text);
            let _ = Setting::parse(&format!("{}={value}", KEYS[key].path));
            let _ = Setting::parse(&format!("{}=[{value}", KEYS[key].path));
        }
    }
}

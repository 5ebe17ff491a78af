//! The JSON Schema of a profile, for editors and for people who write one.

use super::ProfileDoc;
use serde_json::Value;

/// The schema of a profile file.
pub fn profile_schema() -> Value {
    let mut schema = schemars::schema_for!(ProfileDoc);
    schema.insert("title".to_owned(), "Stockade profile, version 1".into());
    schema.to_value()
}

/// What a key of a profile means, as the schema says it. Of the keys below `require` that is the table's.
pub fn described(schema: &Value, key: &str) -> Option<String> {
    let mut node = schema;
    let parts = if key.starts_with("require.") { "require" } else { key };
    for part in parts.split('.') {
        node = resolve(schema, node).get("properties")?.get(part)?;
    }
    let text = node.get("description")?.as_str()?;
    Some(text.replace('\n', " "))
}

fn resolve<'a>(root: &'a Value, mut node: &'a Value) -> &'a Value {
    while let Some(target) = node.get("$ref").and_then(Value::as_str) {
        match root.pointer(target.trim_start_matches('#')) {
            Some(found) => node = found,
            None => break,
        }
    }
    node
}

#[cfg(test)]
mod tests {
    use super::super::keys::{KEYS, MOUNT_KEYS};
    use super::*;
    use crate::base::Protection;
    use std::collections::BTreeSet;

    #[test]
    fn the_key_table_and_the_types_agree() {
        let schema = profile_schema();
        let mut found = BTreeSet::new();
        for (name, value) in schema["properties"].as_object().unwrap() {
            let value = resolve(&schema, value);
            match (name.as_str(), value.get("properties")) {
                ("require", _) => {
                    found.extend(Protection::ALL.iter().map(|p| format!("require.{}", p.key())))
                }
                (_, Some(inner)) => {
                    found.extend(inner.as_object().unwrap().keys().map(|inner| format!("{name}.{inner}")));
                }
                (_, None) => {
                    found.insert(name.clone());
                }
            }
        }
        let table: BTreeSet<String> = KEYS.iter().map(|k| k.path.to_owned()).collect();
        assert_eq!(found, table);

        let entry = resolve(&schema, &schema["properties"]["mounts"]["items"]);
        let found: BTreeSet<&str> =
            entry["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, MOUNT_KEYS.iter().copied().collect());
    }

    #[test]
    fn only_the_version_is_required_and_nothing_else_is_permitted() {
        let schema = profile_schema();
        assert_eq!(schema["required"], serde_json::json!(["version"]));
        assert_eq!(schema["additionalProperties"], false);
        for (name, value) in schema["$defs"].as_object().unwrap() {
            if value.get("properties").is_some() && name != "Text" {
                assert_eq!(value["additionalProperties"], false, "{name}");
            }
        }
    }

    #[test]
    fn every_key_is_described() {
        let schema = profile_schema();
        for key in KEYS {
            assert!(described(&schema, key.path).is_some_and(|text| text.ends_with('.')), "{}", key.path);
        }
        assert_eq!(described(&schema, "limits.memroy"), None);
    }
}

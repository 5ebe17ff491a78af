//! The text of a project's file to begin with: every key that it may have, as a comment, with the value that holds
//! without it. Taking a comment sign away changes nothing, so that what is then lowered is all that narrows.

use super::load::NOT_FOR_PROJECTS;
use super::types::Policy;
use crate::manifest::{KEYS, described, profile_schema};
use serde_json::Value;
use std::fmt::Write as _;

/// Columns of the text.
const WIDTH: usize = 100;

/// A project's file that narrows nothing yet, written for `base`.
pub fn project_draft(base: &Policy) -> String {
    let name = &base.name;
    let mut out = format!(
        "## What commands that run in this project may see, do and use, whichever profile is chosen.\n\
         ## This file can only take away: a key that would permit more than the profile does is named, and nothing\n\
         ## runs. Commands themselves cannot change it.\n\
         ##\n\
         ## The values below are those of the profile `{name}`. Take a `#` away and lower the value.\n\
         ##   stockade policy lint          what is wrong with this file\n\
         ##   stockade policy explain       what it comes to here\n\
         ##   stockade policy diff {name} .stockade/profile.toml\n\
         version = 1\n"
    );
    let schema = profile_schema();
    let values = serde_json::to_value(base).unwrap_or_default();
    let mut table = "";
    for key in KEYS {
        let Some((head, _)) = key.path.split_once('.') else { continue };
        if NOT_FOR_PROJECTS.iter().any(|no| *no == key.path || *no == head) {
            continue;
        }
        let again = head == table;
        if !again {
            out.push('\n');
            table = head;
        }
        // Those below `require` share their meaning.
        if !(again && head == "require") {
            prose(&mut out, &described(&schema, key.path).unwrap_or_default());
        }
        match key.path {
            // These lists are added to, so an example stands for the profile's own.
            "workspace.protect" => {
                out.push_str("## Added to the profile's list:\n# workspace.protect = [\"deploy\"]\n")
            }
            "workspace.hide" => {
                out.push_str("## Added to the profile's list:\n# workspace.hide = [\"secrets\", \"*.pem\"]\n")
            }
            path => assignment(&mut out, path, &said(&values, path)),
        }
    }
    // Last, since every key below it would belong to it. Nothing but a mask takes away without knowing what the
    // profile mounts.
    out.push_str(
        "\n## Hides a path of the root. Keep it last.\n# [[mounts]]\n# type = \"mask\"\n# target = \"/usr/share/doc\"\n",
    );
    out
}

/// The value of a key in a policy's own encoding.
fn said(values: &Value, key: &str) -> Value {
    let place = match key.split_once('.') {
        Some(("require", leaf)) => format!("/needs/{leaf}"),
        Some(("identity", leaf)) => format!("/{leaf}"),
        Some(("intents", _)) => "/intents".to_owned(),
        _ => format!("/{}", key.replace('.', "/")),
    };
    match values.pointer(&place) {
        // A limit that there is not.
        None | Some(Value::Null) => Value::String("none".to_owned()),
        Some(value) => value.clone(),
    }
}

fn prose(out: &mut String, text: &str) {
    let mut line = String::from("##");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = String::from("##");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}

fn assignment(out: &mut String, name: &str, value: &Value) {
    let Value::Array(items) = value else {
        let _ = writeln!(out, "# {name} = {}", toml_text(value));
        return;
    };
    let texts: Vec<String> = items.iter().map(toml_text).collect();
    let whole = format!("# {name} = [{}]", texts.join(", "));
    if whole.len() <= WIDTH {
        let _ = writeln!(out, "{whole}");
        return;
    }
    let _ = writeln!(out, "# {name} = [");
    let mut line = String::from("#    ");
    for text in texts {
        if line.len() + 2 + text.len() > WIDTH && line.len() > 5 {
            let _ = writeln!(out, "{line}");
            line = String::from("#    ");
        }
        let _ = write!(line, " {text},");
    }
    let _ = writeln!(out, "{line}\n# ]");
}

/// A plain value, or a name that is no text (`{ b64 = … }`), as TOML.
fn toml_text(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let inner: Vec<String> = map.iter().map(|(k, v)| format!("{k} = {}", toml_text(v))).collect();
            format!("{{ {} }}", inner.join(", "))
        }
        Value::String(text) => toml::Value::String(text.clone()).to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Candidate, EmbeddedOnly, Origin, embedded_names, load};
    use super::*;
    use crate::base::HostPath;

    /// Takes the comment signs away from keys.
    fn uncommented(text: &str) -> String {
        let line = |line: &str| format!("{}\n", line.strip_prefix("# ").unwrap_or(line));
        text.lines().map(line).collect()
    }

    fn narrowed(base: &str, text: &str) -> Policy {
        let origin = Origin::Project(HostPath::new("/w/.stockade/profile.toml").unwrap());
        let project = Candidate::new(origin, text.as_bytes().to_vec());
        load(Candidate::embedded(base).unwrap(), &EmbeddedOnly, Some(project), &[]).unwrap()
    }

    #[test]
    fn as_written_it_changes_nothing_and_without_comment_signs_only_its_examples() {
        for name in embedded_names() {
            let base = load(Candidate::embedded(name).unwrap(), &EmbeddedOnly, None, &[]).unwrap();
            let text = project_draft(&base);
            assert_eq!(narrowed(name, &text).digest(), base.digest(), "{name}");

            let text = uncommented(&text);
            let mut result = narrowed(name, &text);
            for key in
                KEYS.iter().filter(|key| key.path.contains('.') && !NOT_FOR_PROJECTS.contains(&key.path))
            {
                assert!(
                    key.path.starts_with("grants.") || text.contains(&format!("\n{} = ", key.path)),
                    "{}",
                    key.path
                );
            }
            assert_eq!(result.workspace.protect.pop().unwrap().to_string(), "deploy");
            assert_eq!(result.workspace.hide.split_off(base.workspace.hide.len()).len(), 2);
            assert_eq!(result.mounts.pop().unwrap().target().to_string(), "/usr/share/doc");
            assert_eq!(result.digest(), base.digest(), "{name}");
        }
    }

    #[test]
    fn names_that_are_no_text_survive() {
        let mut base = load(Candidate::embedded("offline").unwrap(), &EmbeddedOnly, None, &[]).unwrap();
        let name: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(b"a\xff".to_vec());
        base.root.etc = vec![crate::base::RelPath::new(name).unwrap()];
        let file = crate::manifest::parse_profile(uncommented(&project_draft(&base)).as_bytes()).unwrap();
        assert_eq!(file.doc.root.etc, Some(base.root.etc));
    }
}

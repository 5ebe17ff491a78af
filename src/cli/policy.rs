//! `stockade policy`: list, show, explain, schema; its other commands are in the files beside this one.

use super::args::{Explain, List, Of, Policy as Commands, Schema, Show};
use super::explain::Explanation;
use super::meant::{self, Caller};
use super::profiles::{self, Files};
use super::render::{self, safe};
use super::{exit, fault, host, policy_diff, policy_init, policy_lint, print};
use crate::policy::{Origin, Policy, load};
use crate::supervise::outcome::Fault;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// Does what was asked; the exit code.
///
/// # Errors
/// What stands in the way.
pub fn run(command: &Commands) -> Result<u8, Fault> {
    let mut code = exit::OK;
    let output = match command {
        Commands::List(args) => list(args)?,
        Commands::Show(args) => show(args)?,
        Commands::Explain(args) => explain(args)?,
        Commands::Init(args) => policy_init::run(args)?,
        Commands::Lint(args) => {
            let (output, found) = policy_lint::run(args)?;
            code = found;
            output
        }
        Commands::Diff(args) => {
            let (output, found) = policy_diff::run(args)?;
            code = found;
            output
        }
        Commands::Schema(Schema { of }) => {
            let schema = match of {
                Of::Profile => crate::manifest::profile_schema(),
                Of::Result => super::result::schema(),
            };
            document(&schema, true)?
        }
    };
    print(&output)?;
    Ok(code)
}

/// A document for standard output.
///
/// # Errors
/// When it does not fit JSON: a defect.
pub fn document<T: Serialize>(value: &T, pretty: bool) -> Result<Vec<u8>, Fault> {
    render::json(value, pretty).map_err(|e| {
        fault::result("standard output".to_owned(), e.to_string(), "report this defect".to_owned())
    })
}

/// One row of `policy list`.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    origin: Option<Origin>,
    /// An earlier place has a profile of this name.
    shadowed: bool,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

fn list(args: &List) -> Result<Vec<u8>, Fault> {
    let files = Files::of(&Caller::read());
    let mut rows: Vec<Row> = Vec::new();
    for (name, found) in files.all() {
        let shadowed = rows.iter().any(|r| r.name == name);
        let (origin, loaded) = match found {
            Ok(candidate) => (
                Some(candidate.origin.clone()),
                load(candidate, &files, None, &[]).map_err(|e| e.to_string()),
            ),
            Err(e) => (None, Err(e.to_string())),
        };
        let (summary, fault) = match loaded {
            Ok(policy) => (Some(policy.summary), None),
            Err(e) => (None, Some(e)),
        };
        rows.push(Row { name, summary, origin, shadowed, fault });
    }
    if args.json {
        return document(&serde_json::json!({ "schema": "stockade.profiles/1", "profiles": rows }), true);
    }
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for row in &rows {
        let default = row.name == crate::policy::DEFAULT_PROFILE && !row.shadowed;
        let text = match (&row.fault, &row.summary) {
            (Some(fault), _) => format!("cannot be used: {}", safe(fault)),
            (None, summary) => safe(summary.as_deref().unwrap_or_default()),
        };
        let _ = writeln!(out, "{} {:<width$}  {text}", if default { '*' } else { ' ' }, row.name);
        let from = row.origin.as_ref().map_or_else(String::new, |o| safe(&o.to_string()));
        let shadowed = if row.shadowed { ", shadowed by the one above it" } else { "" };
        if !from.is_empty() {
            let _ = writeln!(out, "  {:<width$}  {from}{shadowed}", "");
        }
    }
    out.push_str("\n* is used when no --profile is given; `stockade policy explain NAME` says what one comes to here\n");
    Ok(out.into_bytes())
}

fn show(args: &Show) -> Result<Vec<u8>, Fault> {
    let files = Files::of(&Caller::read());
    let policy = load(files.choose(&args.profile)?, &files, None, &[]).map_err(|e| fault::policy(&e))?;
    if args.json {
        return document(
            &serde_json::json!({
                "schema": "stockade.policy/1",
                "origins": policy.origins,
                "policy_digest": policy.digest(),
                "policy": policy,
            }),
            true,
        );
    }
    Ok(resolved(&policy).into_bytes())
}

/// A policy line by line, under the keys that a profile and `--set` use.
fn resolved(policy: &Policy) -> String {
    let mut out = String::new();
    for (n, origin) in policy.origins.iter().enumerate() {
        let _ = writeln!(out, "# {} {}", if n == 0 { "from" } else { "over" }, safe(&origin.to_string()));
    }
    let _ = writeln!(out, "# {}", policy.digest());
    if let Ok(Value::Object(map)) = serde_json::to_value(policy) {
        for (key, value) in &map {
            let key = match key.as_str() {
                "needs" => "require",
                "user" => "identity.user",
                "hostname" => "identity.hostname",
                "time_namespace" => "identity.time_namespace",
                other => other,
            };
            lines(&mut out, key, value);
        }
    }
    out
}

fn lines(out: &mut String, key: &str, value: &Value) {
    match value {
        // A name that is not UTF-8.
        Value::Object(map) if map.len() == 1 && map.contains_key("b64") => {
            let _ = writeln!(out, "{key} = {}", scalar(value));
        }
        Value::Object(map) => {
            for (name, inner) in map {
                lines(out, &format!("{key}.{}", safe(name)), inner);
            }
        }
        Value::Array(items) if items.iter().any(|i| i.get("type").is_some()) => {
            for (n, item) in items.iter().enumerate() {
                lines(out, &format!("{key}[{n}]"), item);
            }
        }
        Value::Array(items) => {
            let _ = writeln!(out, "{key} = [{}]", render::list(items.iter().map(scalar)));
        }
        _ => {
            let _ = writeln!(out, "{key} = {}", scalar(value));
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        other => safe(&other.to_string()),
    }
}

fn explain(args: &Explain) -> Result<Vec<u8>, Fault> {
    let caller = Caller::read();
    let files = Files::of(&caller);
    let workspace = meant::workspace(args.choice.workspace.as_deref()).map_err(|e| fault::place(&e))?;
    let project = profiles::project(&workspace)?;
    let policy = profiles::load(&files, files.choose(&args.profile)?, project, &args.choice.set, None)?;
    let request = meant::bare(&args.choice, &caller, workspace);
    let (facts, state) = host::look(args.state.state_dir.as_ref(), &caller)?;
    let layers = super::exec::look_at_layers(&policy, &request, &facts, state.as_ref());
    let plan = super::exec::plan(&policy, &request, &facts, &caller, state.as_ref(), layers)?;
    let explanation = Explanation::of(&policy, &plan, &facts).map_err(|e| fault::plan(&e))?;
    if args.json { document(&explanation, true) } else { Ok(explanation.text().into_bytes()) }
}

//! `stockade policy diff`: shows what one profile permits beyond another.

use super::args::Diff;
use super::meant::Caller;
use super::policy_lint::calls;
use super::profiles::{self, Files};
use super::render::safe;
use super::{exit, fault, policy};
use crate::base::Digest;
use crate::policy::{Change, Origin, Policy, RESOLVED_BYTES_MAX, diff, resolved};
use crate::supervise::outcome::Fault;
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    a: Side<'a>,
    b: Side<'a>,
    /// Everything that `b` permits, `a` permits too.
    within: bool,
    changes: &'a [Change],
}

#[derive(Serialize)]
struct Side<'a> {
    name: &'a str,
    origins: &'a [Origin],
    policy_digest: Digest,
}

impl<'a> Side<'a> {
    fn of(policy: &'a Policy) -> Self {
        Self { name: &policy.name, origins: &policy.origins, policy_digest: policy.digest() }
    }

    fn shown(&self) -> String {
        let first = self.origins.first().map_or_else(String::new, |origin| format!(" ({origin})"));
        let project = match self.origins.last() {
            Some(origin @ Origin::Project(_)) => format!(", narrowed by {origin}"),
            _ => String::new(),
        };
        safe(&format!("{}{first}{project}", self.name))
    }
}

/// Compares; the output and the exit code.
///
/// # Errors
/// When one of the two cannot be loaded.
pub fn run(args: &Diff) -> Result<(Vec<u8>, u8), Fault> {
    let files = Files::of(&Caller::read());
    let a = side(&files, &args.a, &[])?;
    let b = side(&files, &args.b, &args.set)?;
    let difference = diff(&a, &b, &calls());
    let document = Document {
        schema: "stockade.policy-diff/1",
        a: Side::of(&a),
        b: Side::of(&b),
        within: difference.within,
        changes: &difference.changes,
    };
    let code = if difference.within { exit::OK } else { exit::FOUND };
    let output = if args.json { policy::document(&document, true)? } else { text(&document).into_bytes() };
    Ok((output, code))
}

/// What an argument names.
fn side(files: &Files, choice: &OsStr, sets: &[String]) -> Result<Policy, Fault> {
    if choice.as_bytes().ends_with(b".json") {
        let path = Path::new(choice);
        let document = profiles::file(path, RESOLVED_BYTES_MAX)?;
        if !sets.is_empty() {
            let hint = "narrow a profile, or show the narrowed one as JSON".to_owned();
            return Err(fault::arguments(
                "--set narrows a profile, and B is a finished document".to_owned(),
                hint,
            ));
        }
        return resolved(&document.bytes, document.origin).map_err(|e| fault::resolved(path, &e));
    }
    let (root, project) = profiles::narrowed(files, choice)?;
    profiles::load(files, root, project, sets, None)
}

fn text(document: &Document<'_>) -> String {
    let (a, b) = (&document.a, &document.b);
    let mut out = format!("A: {}\nB: {}\n", a.shown(), b.shown());
    let mut group = None;
    for change in document.changes {
        if group != Some(change.group) {
            group = Some(change.group);
            let _ = writeln!(out, "\n{}", change.group.title());
        }
        let _ = writeln!(out, "  {} {}", change.direction.sign(), safe(&change.text));
    }
    out.push_str(match (document.within, document.changes.is_empty()) {
        (_, true) => "\nB permits what A permits\n",
        (true, false) => "\nB permits nothing that A does not\n",
        (false, _) => "\nB permits what A does not (+)\n",
    });
    out
}

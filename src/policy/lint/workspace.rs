//! Names in the workspace that are protected or hidden.

use super::places::covers;
use super::{Code, Linter, Severity, some};
use crate::base::RelPath;
use crate::policy::{Access, Policy, ProtectMissing};
use std::path::Path;

/// Directories that usually have more entries than a run lists.
const LARGE: &[&str] =
    &["node_modules", "target", "objects", "vendor", "site-packages", "dist-packages", ".cache", "build"];
/// From here on the number of mounts is felt at each start.
const MANY: usize = 200;

pub(super) fn lint(linter: &mut Linter<'_>, policy: &Policy) {
    let w = &policy.workspace;
    patterns(linter, "root.etc", &policy.root.etc);
    patterns(linter, "workspace.protect", &w.protect);
    patterns(linter, "workspace.hide", &w.hide);
    if w.protect.len() + w.hide.len() > MANY {
        let spot = linter.nearest(&["workspace.hide", "workspace.protect"]);
        let message = format!("{} names are looked up at each start", w.protect.len() + w.hide.len());
        linter.report_as(Code::CostlyPattern, Severity::Note, spot, message);
    }
    both(linter, policy);
    incomplete(linter, policy);
    without_effect(linter, policy);
    on_path(linter, policy);
}

fn components(path: &RelPath) -> impl Iterator<Item = &[u8]> {
    path.as_bytes().split(|b| *b == b'/')
}

fn patterns(linter: &mut Linter<'_>, list: &str, entries: &[RelPath]) {
    for entry in entries {
        if let Some(why) = literal(entry) {
            let spot = linter.entry(list, entry.as_bytes());
            linter.report(Code::LiteralPattern, spot, format!("`{entry}`: {why}"));
        }
        let wild = components(entry).filter(|part| part.contains(&b'*')).count();
        let large = components(entry)
            .zip(components(entry).skip(1))
            .find(|(dir, name)| name.contains(&b'*') && LARGE.iter().any(|large| large.as_bytes() == *dir));
        if let Some((dir, _)) = large {
            let dir = crate::base::text::visible(dir);
            let spot = linter.entry(list, entry.as_bytes());
            let message = format!("`{entry}` lists `{dir}`, which usually has thousands of entries");
            linter.report_as(Code::CostlyPattern, Severity::Warning, spot, message);
        } else if wild > 1 {
            let spot = linter.entry(list, entry.as_bytes());
            let message = format!("`{entry}` lists every directory that its first `*` matches");
            linter.report(Code::CostlyPattern, spot, message);
        }
        let by = entries.iter().find(|other| *other != entry && covers(other.as_path(), entry.as_path()));
        if let Some(by) = by {
            let (spot, cover) = (linter.entry(list, entry.as_bytes()), linter.entry(list, by.as_bytes()));
            // Who adds a wider entry to an inherited list need not clear up that list.
            if spot.layer <= cover.layer && !linter.is_built_in(spot.layer) {
                linter.report(
                    Code::Redundant,
                    spot,
                    format!("`{entry}` lies below `{by}`, which is in the list too"),
                );
            }
        }
    }
}

/// Why a pattern will not match what its writer had in mind.
fn literal(entry: &RelPath) -> Option<&'static str> {
    let bytes = entry.as_bytes();
    let has = |c: u8| bytes.contains(&c);
    let pair = |open: u8, close: u8| {
        bytes.iter().position(|b| *b == open).is_some_and(|at| bytes[at..].contains(&close))
    };
    if has(b'?') {
        return Some("`?` stands for itself");
    }
    if pair(b'[', b']') {
        return Some("`[…]` stands for itself");
    }
    if pair(b'{', b'}') {
        return Some("`{…}` stands for itself");
    }
    if has(b'\\') {
        return Some("a backslash stands for itself");
    }
    if bytes.starts_with(b"!") {
        return Some("a `!` excepts nothing");
    }
    if bytes.starts_with(b"~/") || bytes == b"~" || bytes.starts_with(b"$") {
        return Some("names are below the workspace, and nothing is expanded");
    }
    let blank = |b: Option<&u8>| b.is_some_and(u8::is_ascii_whitespace);
    if blank(bytes.first()) || blank(bytes.last()) {
        return Some("the blank at its end belongs to the name");
    }
    None
}

/// Names that are to be protected and hidden.
fn both(linter: &mut Linter<'_>, policy: &Policy) {
    let w = &policy.workspace;
    // Nothing is held in a workspace that is not writable.
    if w.access != Access::Rw {
        return;
    }
    for hide in &w.hide {
        let held: Vec<&RelPath> = w.protect.iter().filter(|p| covers(hide.as_path(), p.as_path())).collect();
        let Some(protect) = held.first() else { continue };
        let (hidden, held) = (
            linter.entry("workspace.hide", hide.as_bytes()),
            linter.entry("workspace.protect", protect.as_bytes()),
        );
        let spot = if held.layer < hidden.layer { held } else { hidden };
        let message = format!("`{protect}` is protected, and `{hide}` is hidden");
        linter.report(Code::ProtectHidden, spot, message);
    }
}

fn incomplete(linter: &mut Linter<'_>, policy: &Policy) {
    let Some(usual) = super::reference() else { return };
    let w = &policy.workspace;
    let lists = [
        (
            Code::ProtectIncomplete,
            "workspace.protect",
            &w.protect,
            &usual.workspace.protect,
            w.access == Access::Rw,
        ),
        (Code::HideIncomplete, "workspace.hide", &w.hide, &usual.workspace.hide, w.access != Access::None),
    ];
    for (code, key, has, wanted, counts) in lists {
        let covered = |name: &RelPath| has.iter().any(|h| covers(h.as_path(), name.as_path()));
        let missing: Vec<&RelPath> = wanted.iter().filter(|name| counts && !covered(name)).collect();
        if !missing.is_empty() {
            let spot = linter.key(key);
            let names = some(missing.iter().map(|name| format!("`{name}`")));
            linter.report(code, spot, format!("not in the list: {names}"));
        }
    }
}

fn without_effect(linter: &mut Linter<'_>, policy: &Policy) {
    let w = &policy.workspace;
    let over = |linter: &Linter<'_>, key: &str| linter.said_over(key, "workspace.access");
    if w.access != Access::Rw {
        for key in ["workspace.protect", "workspace.protect_missing"] {
            if over(linter, key) {
                let spot = linter.key(key);
                let message = "only a workspace with `access = \"rw\"` has anything to protect".to_owned();
                linter.report(Code::NoEffect, spot, message);
            }
        }
    }
    if w.access == Access::None && over(linter, "workspace.hide") {
        let spot = linter.key("workspace.hide");
        linter.report(Code::NoEffect, spot, "there is no workspace (`access = \"none\"`)".to_owned());
    }
    let starred = w.protect.iter().find(|p| p.as_bytes().contains(&b'*'));
    if let Some(pattern) =
        starred.filter(|_| w.access == Access::Rw && w.protect_missing == ProtectMissing::Overlay)
    {
        let spot = linter.nearest(&["workspace.protect_missing", "workspace.access", "workspace.protect"]);
        let message = format!(
            "a pattern such as `{pattern}` always counts as missing, so that every write to the workspace is thrown \
             away and `access = \"rw\"` means \"overlay\""
        );
        linter.report(Code::NoEffect, spot, message);
    }
}

/// A directory of PATH in the workspace.
fn on_path(linter: &mut Linter<'_>, policy: &Policy) {
    let Some(workspace) = linter.around.workspace.clone().filter(|_| policy.workspace.access == Access::Rw)
    else {
        return;
    };
    let held = |below: &Path| policy.workspace.protect.iter().any(|p| covers(p.as_path(), below));
    let writable: Vec<String> = linter
        .around
        .path
        .iter()
        .filter(|dir| {
            let judged = super::places::Judged::new(dir, linter.around);
            judged.forms().any(|form| match form.below(&workspace) {
                Some(below) => !held(below.as_path()),
                None => *form == workspace,
            })
        })
        .map(|dir| format!("`{dir}`"))
        .collect();
    if !writable.is_empty() {
        let spot = linter.key("workspace.access");
        let message = format!(
            "the workspace is writable, and {} of the caller's PATH lies in it",
            some(writable.into_iter())
        );
        linter.report_as(Code::OnPath, Severity::Warning, spot, message);
    }
}

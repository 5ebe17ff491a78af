//! The auditor (CF-AUD-1): what the parts of a run's record say about each other. Verification proves that a record is the
//! one that was made; this asks whether it is one that makes sense, and whether it lacks something. Each check is a pure
//! function of the parts, with a seeded fault that it catches as its test; a part that is missing is never a pass.

use super::event::{EVENT_BYTES_MAX, Kind};
use super::query::Run;
use super::verify::{Which, verify};
use super::{Reader, StoreError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use serde::Serialize;
use serde_json::Value;

/// What a check comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Pass,
    /// It has nothing to look at in such a run.
    NotApplicable,
    /// It holds, and somebody ought to know something about it.
    Warn,
    /// A part that it needs is missing.
    Inconclusive,
    /// It does not hold.
    Fail,
}

impl Verdict {
    /// Its name, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::NotApplicable => "not applicable",
            Self::Warn => "WARN",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Fail => "FAIL",
        }
    }
}

/// One check's outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Its stable name.
    pub check: &'static str,
    /// What it asks.
    pub asks: &'static str,
    /// What it came to.
    pub verdict: Verdict,
    /// Why, unless it passed.
    pub detail: Option<String>,
}

/// The parts of a record.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// The kinds of its events, in order.
    pub kinds: Vec<String>,
    /// `run.created`.
    pub created: Option<Value>,
    /// The last `run.running`.
    pub running: Option<Value>,
    /// `sandbox.enforcement`.
    pub enforcement: Option<Value>,
    /// `run.terminal`.
    pub terminal: Option<Value>,
    /// The receipt's statement; its signature is verification's.
    pub statement: Option<Value>,
    /// The plan, by its digest.
    pub plan: Option<Value>,
    /// What verification found.
    pub findings: Vec<String>,
}

type Outcome = (Verdict, Option<String>);
type Check = (&'static str, &'static str, fn(&Parts) -> Outcome);

/// The checks.
pub const CHECKS: &[Check] = &[
    ("sequence", "its events, row, receipt and ledger verify", sequence),
    ("pairing", "it was accepted once, began, and ended once, in that order", pairing),
    ("agreement", "snapshot, attempt, plan and receipt name one containment, mode and posture", agreement),
    ("enforcement", "what was required was in force", enforcement),
    ("assurance", "reduced assurance stands where it has to", assurance),
    ("outputs", "each output has one digest, in record and receipt", outputs),
    ("denials", "each refusal is typed: boundary and code, protection and kind", denials),
    ("limit", "an end by a limit names it, with both numbers", limit),
    ("cleanup", "nothing was left behind", cleanup),
    ("handles", "handles are disclosed before they are used", |_| not_applicable("a command has none")),
];

fn pass() -> Outcome {
    (Verdict::Pass, None)
}

fn not_applicable(why: &str) -> Outcome {
    (Verdict::NotApplicable, Some(why.to_owned()))
}

fn fail(why: impl Into<String>) -> Outcome {
    (Verdict::Fail, Some(why.into()))
}

fn missing(what: &str) -> Outcome {
    (Verdict::Inconclusive, Some(format!("there is no {what}")))
}

fn text<'v>(value: Option<&'v Value>, at: &str) -> Option<&'v str> {
    value?.pointer(at)?.as_str()
}

fn sequence(parts: &Parts) -> Outcome {
    match parts.findings.split_first() {
        None => pass(),
        Some((first, [])) => fail(first.clone()),
        Some((first, rest)) => fail(format!("{first}; and {} more", rest.len())),
    }
}

fn pairing(parts: &Parts) -> Outcome {
    let count = |kind: Kind| parts.kinds.iter().filter(|k| *k == kind.name()).count();
    let first = parts.kinds.first().map(String::as_str);
    if first != Some(Kind::Created.name()) || count(Kind::Created) != 1 {
        return fail("it does not begin with its snapshot, or has several");
    }
    if count(Kind::Enforcement) > 1 {
        return fail("two reports of enforcement");
    }
    match count(Kind::Terminal) {
        0 => return missing("end: it is running, or its owner is gone and nobody has recorded that yet"),
        1 if parts.kinds.last().map(String::as_str) == Some(Kind::Terminal.name()) => {}
        _ => return fail("several ends, or something after the end"),
    }
    let refused = text(parts.terminal.as_ref(), "/reason") == Some("refused");
    if count(Kind::Running) == 0 && !refused {
        return fail("it ended without having begun");
    }
    pass()
}

fn agreement(parts: &Parts) -> Outcome {
    let (created, running) = (parts.created.as_ref(), parts.running.as_ref());
    if created.is_none() {
        return missing("snapshot");
    }
    let Some(running) = running else { return not_applicable("nothing was built") };
    let mode = text(Some(running), "/mode");
    let digest = text(Some(running), "/plan_digest");
    if text(created, "/snapshot/containment/mode").is_some_and(|m| Some(m) != mode) {
        return fail("the snapshot and the attempt name different modes");
    }
    let Some(plan) = &parts.plan else { return missing("plan") };
    if text(Some(plan), "/mode") != text(created, "/snapshot/containment/mode") {
        return fail("the plan and the snapshot name different modes");
    }
    if text(Some(plan), "/posture") != text(created, "/snapshot/containment/network/posture") {
        return fail("the plan and the snapshot name different network postures");
    }
    if parts.terminal.is_none() {
        return missing("end");
    }
    let Some(statement) = &parts.statement else { return missing("receipt") };
    let signed = text(Some(statement), "/predicate/plan_digest");
    // A run that was interrupted is signed by somebody who knows no more than that.
    if signed.is_some_and(|signed| Some(signed) != digest) {
        return fail("the receipt names another plan than the attempt");
    }
    pass()
}

fn enforcement(parts: &Parts) -> Outcome {
    let reason = text(parts.terminal.as_ref(), "/reason");
    let Some(report) = &parts.enforcement else {
        return match (reason, parts.running.is_some()) {
            (Some("refused"), _) => not_applicable("nothing was built"),
            (Some("interrupted"), _) => missing("report of enforcement: its owner was killed"),
            (None, _) => missing("end"),
            _ => fail("a command ran, and nothing says what was in force"),
        };
    };
    let Some(lines) = report.pointer("/enforcement").and_then(Value::as_array) else {
        return fail("the report of enforcement is none");
    };
    let unmet: Vec<&str> = lines
        .iter()
        .filter(|line| text(Some(line), "/asked") == Some("require"))
        .filter(|line| matches!(text(Some(line), "/got"), Some("absent" | "partial")))
        .filter_map(|line| text(Some(line), "/protection"))
        .collect();
    if !unmet.is_empty() && reason != Some("refused") && reason != Some("broken") {
        return fail(format!("required and not in force: {}", unmet.join(", ")));
    }
    pass()
}

fn assurance(parts: &Parts) -> Outcome {
    let Some(report) = &parts.enforcement else { return not_applicable("nothing was built") };
    let Some(terminal) = &parts.terminal else { return missing("end") };
    let (here, there) = (text(Some(report), "/assurance"), text(Some(terminal), "/detail/assurance"));
    if here != there {
        return fail("the report of enforcement and the end name different assurances");
    }
    let Some(statement) = &parts.statement else { return missing("receipt") };
    if text(Some(statement), "/predicate/assurance") != here {
        return fail("the receipt names another assurance");
    }
    let absent: Vec<&str> = report
        .pointer("/enforcement")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|line| matches!(text(Some(line), "/got"), Some("absent" | "partial")))
        .filter_map(|line| text(Some(line), "/protection"))
        .collect();
    match here {
        Some("full") if absent.is_empty() => pass(),
        Some("full") => fail(format!("said to be full, without {}", absent.join(", "))),
        Some("reduced") if absent.is_empty() => {
            (Verdict::Warn, Some("reduced: something was granted, or the host's network shared".to_owned()))
        }
        Some("reduced") => (Verdict::Warn, Some(format!("reduced: without {}", absent.join(", ")))),
        _ => fail("no assurance is named"),
    }
}

fn outputs(parts: &Parts) -> Outcome {
    let Some(terminal) = &parts.terminal else { return missing("end") };
    let recorded: Vec<(&str, &str)> = ["stdout", "stderr"]
        .into_iter()
        .filter_map(|name| Some((name, text(Some(terminal), &format!("/detail/{name}/sha256"))?)))
        .collect();
    let Some(statement) = &parts.statement else { return missing("receipt") };
    let subjects = statement.pointer("/subject").and_then(Value::as_array);
    let signed: Vec<(&str, &str)> = subjects
        .into_iter()
        .flatten()
        .filter_map(|s| Some((text(Some(s), "/name")?, text(Some(s), "/digest/sha256")?)))
        .collect();
    if recorded.iter().any(|output| !signed.contains(output)) {
        return fail("an output of the record is not in the receipt, or is another there");
    }
    if signed.iter().any(|output| !recorded.contains(output)) {
        return fail("the receipt has an output that the record lacks");
    }
    if recorded.is_empty() { not_applicable("nothing was run, or nobody saw its end") } else { pass() }
}

fn denials(parts: &Parts) -> Outcome {
    let Some(terminal) = &parts.terminal else { return missing("end") };
    let kind = text(Some(terminal), "/detail/outcome/kind");
    if matches!(kind, Some("refused" | "broken")) {
        let typed = text(Some(terminal), "/detail/outcome/code").is_some_and(|c| !c.is_empty())
            && text(Some(terminal), "/detail/outcome/boundary").is_some();
        let same = text(Some(terminal), "/detail/outcome/boundary") == text(Some(terminal), "/boundary");
        return if typed && same { pass() } else { fail("a refusal without boundary or code") };
    }
    let findings = terminal.pointer("/detail/denials/findings").and_then(Value::as_array);
    let findings: Vec<&Value> = findings.into_iter().flatten().collect();
    if findings.is_empty() {
        return not_applicable("nothing was denied");
    }
    let typed =
        |f: &&Value| ["/protection", "/kind", "/evidence"].iter().all(|at| text(Some(f), at).is_some());
    if findings.iter().all(typed) { pass() } else { fail("a denial without protection, kind or evidence") }
}

fn limit(parts: &Parts) -> Outcome {
    let Some(terminal) = &parts.terminal else { return missing("end") };
    let by_limit = text(Some(terminal), "/reason") == Some("limit");
    let named = terminal.pointer("/detail/limit").filter(|limit| !limit.is_null());
    match (by_limit, named) {
        (false, _) => not_applicable("no limit ended it"),
        (true, None) => fail("a limit ended it, and none is named"),
        (true, Some(limit)) => {
            let whole = text(Some(limit), "/name").is_some()
                && ["configured", "observed"].iter().all(|n| limit.get(n).is_some_and(Value::is_u64));
            if whole { pass() } else { fail("the limit is named without its numbers") }
        }
    }
}

fn cleanup(parts: &Parts) -> Outcome {
    let Some(terminal) = &parts.terminal else { return missing("end") };
    let (cleanup, destroy) =
        (text(Some(terminal), "/detail/cleanup"), text(Some(terminal), "/detail/destroy"));
    let (Some(cleanup), Some(destroy)) = (cleanup, destroy) else {
        return fail("the end does not say whether anything was left");
    };
    if cleanup == "failed" || destroy == "failed" {
        return fail(format!("cleanup: {cleanup}; destroy: {destroy}"));
    }
    let created = terminal.pointer("/detail/protected_created").and_then(Value::as_array).map_or(0, Vec::len);
    if created > 0 {
        return (Verdict::Warn, Some(format!("{created} protected paths were created and moved aside")));
    }
    if destroy == "not_attempted" && text(Some(terminal), "/reason") != Some("refused") {
        return fail("it ended, and its processes were never said to be gone");
    }
    pass()
}

/// Audits a run.
///
/// # Errors
/// The store's. What is wrong with the record is a verdict.
pub fn audit(reader: &Reader, run: &Run) -> Result<Vec<Checked>, StoreError> {
    let parts = parts(reader, run)?;
    Ok(judge(&parts))
}

/// What the checks say of a record.
pub fn judge(parts: &Parts) -> Vec<Checked> {
    CHECKS
        .iter()
        .map(|(check, asks, of)| {
            let (verdict, detail) = of(parts);
            Checked { check, asks, verdict, detail }
        })
        .collect()
}

fn parts(reader: &Reader, run: &Run) -> Result<Parts, StoreError> {
    let mut parts = Parts::default();
    let mut from = 1;
    loop {
        let page = reader.events(run, from, &[], u64::MAX)?;
        let Some(last) = page.last() else { break };
        from = last.seq + 1;
        for event in &page {
            let part = match event.kind.as_str() {
                k if k == Kind::Created.name() => Some(&mut parts.created),
                k if k == Kind::Running.name() => Some(&mut parts.running),
                k if k == Kind::Enforcement.name() => Some(&mut parts.enforcement),
                k if k == Kind::Terminal.name() => Some(&mut parts.terminal),
                _ => None,
            };
            if let Some(part) = part {
                // What cannot be read is missing, and verification says why.
                *part = reader.payload(run, event).ok().and_then(|text| serde_json::from_str(&text).ok());
            }
            parts.kinds.push(event.kind.clone());
        }
    }
    parts.statement = reader.receipt(run)?.as_deref().and_then(statement);
    if let Some(digest) = text(parts.running.as_ref(), "/plan_digest") {
        parts.plan = reader.plan(digest)?.and_then(|text| serde_json::from_str(&text).ok());
    }
    let found = verify(reader, Which::One(&run.id), None)?;
    parts.findings = found.findings.into_iter().map(|f| format!("{}: {}", f.what.name(), f.detail)).collect();
    Ok(parts)
}

/// The statement in an envelope.
fn statement(envelope: &str) -> Option<Value> {
    let envelope: Value = serde_json::from_str(envelope).ok()?;
    let payload = B64.decode(envelope.get("payload")?.as_str()?).ok()?;
    if payload.len() > EVENT_BYTES_MAX { None } else { serde_json::from_slice(&payload).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Parts {
        Parts {
            kinds: ["run.created", "run.running", "sandbox.enforcement", "run.terminal"]
                .map(str::to_owned)
                .to_vec(),
            created: Some(
                json!({ "snapshot": { "containment": { "mode": "rootless", "network": { "posture": "disabled" } } } }),
            ),
            running: Some(json!({ "mode": "rootless", "plan_digest": "sha256:aa" })),
            enforcement: Some(json!({
                "assurance": "full",
                "enforcement": [{ "asked": "require", "got": "enforced", "protection": "mounts" }],
            })),
            terminal: Some(json!({
                "boundary": null, "reason": "limit",
                "detail": {
                    "assurance": "full", "cleanup": "succeeded", "destroy": "succeeded",
                    "limit": { "name": "wall", "configured": 1, "observed": 2 }, "outcome": { "kind": "finished" },
                    "denials": { "findings": [{ "protection": "mounts", "kind": "protected", "evidence": "likely" }] },
                    "stdout": { "sha256": "11" }, "stderr": { "sha256": "22" }, "protected_created": [],
                },
            })),
            statement: Some(json!({
                "subject": [
                    { "name": "stdout", "digest": { "sha256": "11" } }, { "name": "stderr", "digest": { "sha256": "22" } },
                    { "name": "events", "digest": { "stockadeChain1": "33" } },
                ],
                "predicate": { "plan_digest": "sha256:aa", "assurance": "full" },
            })),
            plan: Some(json!({ "mode": "rootless", "posture": "disabled" })),
            findings: Vec::new(),
        }
    }

    fn verdict(parts: &Parts, check: &str) -> Verdict {
        judge(parts).into_iter().find(|c| c.check == check).unwrap().verdict
    }

    #[test]
    fn a_good_record_passes() {
        for checked in judge(&good()) {
            let expected = if checked.check == "handles" { Verdict::NotApplicable } else { Verdict::Pass };
            assert_eq!(checked.verdict, expected, "{checked:?}");
        }
    }

    /// Each check, a fault that is planted, and what the check makes of it.
    #[test]
    fn each_check_catches_its_seeded_fault() {
        let set = |part: fn(&mut Parts) -> &mut Option<Value>, at: &'static str, to: Value| {
            move |parts: &mut Parts| *part(parts).as_mut().unwrap().pointer_mut(at).unwrap() = to.clone()
        };
        let terminal: fn(&mut Parts) -> &mut Option<Value> = |p| &mut p.terminal;
        type Fault = Box<dyn Fn(&mut Parts)>;
        let faults: Vec<(&str, Verdict, Fault)> = vec![
            ("sequence", Verdict::Fail, Box::new(|p| p.findings.push("changed: x".into()))),
            ("pairing", Verdict::Fail, Box::new(|p| p.kinds.push("note".into()))),
            ("pairing", Verdict::Fail, Box::new(|p| drop(p.kinds.remove(0)))),
            ("pairing", Verdict::Fail, Box::new(|p| drop(p.kinds.remove(1)))),
            ("pairing", Verdict::Inconclusive, Box::new(|p| drop(p.kinds.pop()))),
            ("agreement", Verdict::Fail, Box::new(set(|p| &mut p.running, "/mode", json!("privileged")))),
            ("agreement", Verdict::Fail, Box::new(set(|p| &mut p.plan, "/posture", json!("general")))),
            (
                "agreement",
                Verdict::Fail,
                Box::new(set(|p| &mut p.statement, "/predicate/plan_digest", json!("x"))),
            ),
            ("agreement", Verdict::Inconclusive, Box::new(|p| p.plan = None)),
            ("agreement", Verdict::Inconclusive, Box::new(|p| p.statement = None)),
            (
                "enforcement",
                Verdict::Fail,
                Box::new(set(|p| &mut p.enforcement, "/enforcement/0/got", json!("absent"))),
            ),
            ("enforcement", Verdict::Fail, Box::new(|p| p.enforcement = None)),
            ("assurance", Verdict::Fail, Box::new(set(terminal, "/detail/assurance", json!("reduced")))),
            (
                "assurance",
                Verdict::Fail,
                Box::new(set(|p| &mut p.enforcement, "/enforcement/0/got", json!("partial"))),
            ),
            ("outputs", Verdict::Fail, Box::new(set(terminal, "/detail/stdout/sha256", json!("99")))),
            ("outputs", Verdict::Fail, Box::new(set(terminal, "/detail/stderr/sha256", json!(null)))),
            ("outputs", Verdict::Inconclusive, Box::new(|p| p.statement = None)),
            (
                "denials",
                Verdict::Fail,
                Box::new(set(terminal, "/detail/denials/findings/0/kind", json!(null))),
            ),
            (
                "denials",
                Verdict::Fail,
                Box::new(set(terminal, "/detail/outcome", json!({ "kind": "refused" }))),
            ),
            ("limit", Verdict::Fail, Box::new(set(terminal, "/detail/limit", json!(null)))),
            ("limit", Verdict::Fail, Box::new(set(terminal, "/detail/limit/observed", json!("many")))),
            ("cleanup", Verdict::Fail, Box::new(set(terminal, "/detail/cleanup", json!("failed")))),
            ("cleanup", Verdict::Fail, Box::new(set(terminal, "/detail/destroy", json!("not_attempted")))),
            ("cleanup", Verdict::Warn, Box::new(set(terminal, "/detail/protected_created", json!([{}])))),
        ];
        for (n, (check, expected, fault)) in faults.iter().enumerate() {
            let mut parts = good();
            fault(&mut parts);
            assert_eq!(verdict(&parts, check), *expected, "{check}, fault {n}");
        }
        // Reduced assurance that is said everywhere is a warning.
        let mut parts = good();
        for (part, at) in [
            (&mut parts.enforcement, "/assurance"),
            (&mut parts.terminal, "/detail/assurance"),
            (&mut parts.statement, "/predicate/assurance"),
        ] {
            *part.as_mut().unwrap().pointer_mut(at).unwrap() = json!("reduced");
        }
        assert_eq!(verdict(&parts, "assurance"), Verdict::Warn);
    }

    #[test]
    fn a_record_with_nothing_in_it_passes_nothing() {
        let empty = Parts::default();
        for checked in judge(&empty) {
            // No finding of verification is what verification says; the rest has nothing to look at.
            let allowed = checked.check == "sequence" || checked.verdict != Verdict::Pass;
            assert!(allowed && checked.verdict != Verdict::Warn, "{checked:?}");
        }
    }
}

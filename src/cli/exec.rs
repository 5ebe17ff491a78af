//! `stockade exec`: from arguments to a plan, from the plan to a report, from the report to documents, lines and an
//! exit code. Every way out has a result, and the result goes wherever it was asked for.

use super::args::{Exec, Verify};
use super::deliver::Delivery;
use super::explain::{self, Explanation, size};
use super::meant::{self, Caller};
use super::profiles::{self, Files};
use super::render::{self, list, safe, tell};
use super::result::{About, Assurance, Document};
use super::{exit, fault, host};
use crate::base::{Got, HostPath, Millis};
use crate::evidence;
use crate::evidence::redact::{Context, Paths};
use crate::plan::{self, HostFacts, Plan, Request};
use crate::policy::{Access, CACHES, CacheLayer, Policy};
use crate::probe::{self, Store};
use crate::sandbox::Mutants;
use crate::supervise::denied::{self, By, Denials, Evidence, Verdict};
use crate::supervise::drive::{self, Options};
use crate::supervise::layers::{self, Held};
use crate::supervise::outcome::{Boundary, Drain, Fault, LimitHit, Outcome, Report, Verified, Witnessed};
use crate::supervise::output::Kept;
use crate::supervise::record::{self, Asked, Ending, Recorder, Told, Waiver};
use crate::supervise::recover::{self, Host, Recovered};
use crate::supervise::state_dir::StateDir;
use rustix::termios::isatty;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Runs it; the exit code.
pub fn run(exec: &Exec) -> u8 {
    let mut about = About { captured: exec.results.json, ..About::default() };
    // First of all: see `Delivery::open`.
    let (mut delivery, opened) = Delivery::open(exec);
    if exec.results.dry_run {
        return match dry_run(exec) {
            Ok(code) => code,
            Err(fault) => {
                tell(&render::fault(&fault));
                fault.exit_code
            }
        };
    }
    let told = opened
        .and_then(|()| execute(exec, &mut delivery, &mut about))
        .unwrap_or_else(|fault| Told::waived(refused(fault), Waiver::NotAdmitted));
    tell(&lines(&told, &about, exec.words.quiet));
    let code = match deliver(&delivery, &told, &about) {
        Ok(()) => told.exit_code(),
        Err(mut fault) => {
            fault.hint =
                Some(format!("{}; its exit code would have been {}", ending(&told), told.exit_code()));
            tell(&render::fault(&fault));
            exit::CONTAINMENT
        }
    };
    told.settle();
    code
}

/// What to run and how, and the host to run it on.
struct Ready {
    policy: Policy,
    request: Request,
    caller: Caller,
}

fn meant(exec: &Exec) -> Result<Ready, Fault> {
    let caller = Caller::read();
    let files = Files::of(&caller);
    let workspace = meant::workspace(exec.choice.workspace.as_deref()).map_err(|e| fault::place(&e))?;
    let project = profiles::project(&workspace)?;
    let root = files.choose(&exec.which.profile)?;
    let policy = profiles::load(&files, root, project, &exec.choice.set, exec.how.timeout.as_deref())?;
    let request = meant::request(exec, &caller, workspace).map_err(|e| fault::flag(&e))?;
    Ok(Ready { policy, request, caller })
}

/// The kept layers of caches, by name.
pub type Layers = BTreeMap<&'static str, plan::LayerFact>;

/// Whose kept layers a policy and a request ask for, and which; `None` when they ask for none.
fn layers<'r>(
    policy: &'r Policy,
    request: &'r Request,
    facts: &HostFacts,
) -> Option<(layers::Of<'r>, Vec<&'static str>)> {
    let caches = &policy.caches;
    let asked = caches.layer == CacheLayer::Kept && policy.workspace.access != Access::None;
    let workspace = request.workspace.as_ref().filter(|_| asked)?;
    let names: Vec<&'static str> =
        CACHES.iter().filter(|c| caches.tools.contains(&c.tool)).map(|c| c.name).collect();
    let of = layers::Of { uid: facts.uid, workspace, profile: &policy.name, limit: caches.size.0 };
    (!names.is_empty()).then_some((of, names))
}

/// The kept layers, as they would be for a run.
pub fn look_at_layers(
    policy: &Policy,
    request: &Request,
    facts: &HostFacts,
    state: Option<&HostPath>,
) -> Layers {
    match (state, layers(policy, request, facts)) {
        (Some(state), Some((of, names))) => layers::look(state, of, &names),
        _ => Layers::new(),
    }
}

/// The plan of a policy and a request on this host.
///
/// # Errors
/// When a path cannot be looked at, or nothing permits or enforces what is asked.
pub fn plan(
    policy: &Policy,
    request: &Request,
    facts: &HostFacts,
    caller: &Caller,
    state: Option<&HostPath>,
    layers: Layers,
) -> Result<Plan, Fault> {
    let mut paths =
        probe::gather(policy, request, caller.home.as_ref(), state).map_err(|e| fault::gather(&e))?;
    paths.layers = layers;
    paths.intents = probe::intents(policy, request, caller.home.as_ref(), facts.mode);
    plan::resolve(policy, request, facts, &paths).map_err(|e| fault::plan(&e))
}

fn execute(exec: &Exec, delivery: &mut Delivery, about: &mut About) -> Result<Told, Fault> {
    let mutants = mutants(exec)?;
    // First of all, since every other refusal in there would send its reader the wrong way.
    if host::is_nested() {
        return Err(fault::nested());
    }
    let Ready { policy, request, caller } = meant(exec)?;
    about.profile(&policy);
    let result = launch(exec, delivery, about, mutants, (&policy, &request, &caller));
    // The plan has it; where there is none it is worth a moment.
    about.policy_digest.get_or_insert_with(|| policy.digest());
    result
}

fn launch(
    exec: &Exec,
    delivery: &mut Delivery,
    about: &mut About,
    mutants: Mutants,
    (policy, request, caller): (&Policy, &Request, &Caller),
) -> Result<Told, Fault> {
    let path = host::state_path(exec.state.state_dir.as_ref(), caller)?;
    // Where no executor can be made at all, that and its remedy come first: uid 0 of a container's user namespace, say,
    // has no right to the system's state directory, and giving it one would not help.
    let (state, store, state_real) = host::open(&path).map_err(|fault| {
        let facts = host::facts(None).ok();
        match facts.map(|facts| plan(policy, request, &facts, caller, None, Layers::new())) {
            Some(Err(first)) if first.boundary == Boundary::Sandbox => first,
            _ => fault,
        }
    })?;
    let facts = host::facts(Some(&store))?;
    let boot = Host { boot_id: &facts.boot_id, proc: Path::new("/proc") };
    let recovered = recover::recover(&state, boot).map_err(|e| fault::live(&e))?;
    if !exec.words.quiet {
        tell(&left_by(&recovered));
    }
    let kept = match layers(policy, request, &facts) {
        Some((of, names)) => Held::take(&state, &state_real, of, &names),
        None => Held::default(),
    };
    let options = Options {
        capture: exec.results.json,
        tty: exec.how.tty,
        verify_live: exec.how.verify == Verify::Live,
        close_stdin: false,
        trace: exec.how.trace_denials,
        digests: !exec.record.no_record,
        mutants,
    };
    let run_id = drive::new_run();
    let recorder = if exec.record.no_record {
        None
    } else {
        let place = evidence_place(&state, &state_real)?;
        let asked = asked(exec, policy, request);
        Some(Recorder::new(place, run_id, asked, recording_context(request, caller), &recovered))
    };
    // Once for the whole run, however many attempts it takes.
    let recorder = RefCell::new(recorder);
    let make = |facts: &HostFacts| plan(policy, request, facts, caller, Some(&state_real), kept.facts());
    let undisturbed = Cell::new(None);
    let run = |plan: &Plan, facts: &HostFacts| {
        // Of an earlier attempt: the mask that it keeps is the one to go back to.
        undisturbed.set(None);
        let mut accept = || recorder.borrow_mut().as_mut().map_or(Ok(()), |r| r.accept(plan, facts));
        let (mut report, held) =
            drive::execute(plan, facts, (&state, &store), &kept, &options, run_id, &mut accept);
        undisturbed.set(Some(held));
        let path = caller.var("PATH").unwrap_or_default();
        let host = probe::ask::Host::new(caller.home.clone(), path.as_bytes());
        report.denials = denied::judge(plan, policy, &report, &host);
        report
    };
    let result = (|| {
        let planned = make(&facts)?;
        delivery.check(&planned)?;
        about.plan(&planned);
        let mut report = run(&planned, &facts);
        if is_the_files(&report) {
            // Nothing ran, and what the plan saw has changed since: another one fits, or says the same again.
            report = run(&make(&facts)?, &facts);
        }
        if !is_the_hosts(&report) {
            return Ok(report);
        }
        // The facts had promised more than the host gives: it may have changed since they were found out.
        again(&report, &facts, &store, |fresh| Ok(run(&make(fresh)?, fresh))).unwrap_or(Ok(report))
    })();
    let hit = result.as_ref().is_ok_and(|r| r.limit.as_ref().is_some_and(|l| l.name == "cache"));
    let emptied = kept.end(hit);
    for cache in about.caches.iter_mut().filter(|c| emptied.contains(&c.name)) {
        cache.note = Some("the kept layer held more than caches.size and was emptied".to_owned());
    }
    let report = result.unwrap_or_else(|fault| Report { run_id: run_id.to_string(), ..refused(fault) });
    let told = match recorder.into_inner() {
        None => Told::waived(report, Waiver::Asked),
        Some(recorder) => {
            let assurance = about.assurance(&report).map(Assurance::name);
            recorder.finish(report, &Ending { assurance })
        }
    };
    drop(undisturbed);
    Ok(told)
}

fn evidence_place(state: &StateDir, real: &HostPath) -> Result<evidence::Place, Fault> {
    evidence::Place::new(real.as_path(), state.dir(), rustix::process::geteuid().as_raw())
        .map_err(|e| record::fault("opening the store", &e))
}

/// What the record says of the request beside the plan.
fn asked(exec: &Exec, policy: &Policy, request: &Request) -> Asked {
    Asked {
        profile: policy.name.clone(),
        origins: policy.origins.clone(),
        workspace: request.workspace.as_ref().map(ToString::to_string),
        argv: request.argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        correlation: exec.record.correlation.clone(),
        captured: exec.results.json,
        traced: exec.how.trace_denials,
    }
}

/// What must not be in the record: the values of the caller's variables with telling names, beside what text itself tells.
/// Paths stay, since the record is the operator's.
fn recording_context(request: &Request, caller: &Caller) -> Context {
    let text = |path: &HostPath| path.to_string();
    let home = caller.home.as_ref().map(text);
    let given = request.env.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let callers = request.caller_env.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    Context::new(home, request.workspace.as_ref().map(text), Paths::Keep)
        .with_environment(given)
        .with_environment(callers)
}

/// Whether nothing ran because files moved while the executor was built.
fn is_the_files(report: &Report) -> bool {
    let moved = ["source_changed", "mount_point_missing", "mount_point_changed", "workspace_changed"];
    report.leftovers.is_empty()
        && matches!(&report.outcome, Outcome::Refused(fault) if moved.contains(&fault.code))
}

/// Whether nothing ran because the host did not do something that the facts say it does.
fn is_the_hosts(report: &Report) -> bool {
    match &report.outcome {
        Outcome::Refused(fault) => {
            fault.boundary == Boundary::Sandbox
                && !matches!(
                    fault.code,
                    "cancelled"
                        | "source_changed"
                        | "source_unreachable"
                        | "mount_point_missing"
                        | "mount_point_changed"
                        | "workspace_changed"
                        | "cwd_missing"
                        | "cache_unusable"
                )
        }
        _ => false,
    }
}

/// Tries once more with fresh facts, when they differ.
fn again(
    report: &Report,
    old: &HostFacts,
    store: &Store,
    run: impl FnOnce(&HostFacts) -> Result<Report, Fault>,
) -> Option<Result<Report, Fault>> {
    let fresh = probe::refresh(Some(store), &probe::build_id()).ok()?;
    if fresh == *old || !report.leftovers.is_empty() {
        return None;
    }
    Some(run(&fresh))
}

#[cfg(feature = "mutants")]
fn mutants(exec: &Exec) -> Result<Mutants, Fault> {
    use super::meant::{FlagError, FlagFault};
    let mut all = Mutants::default();
    for name in &exec.words.mutant {
        if !all.add(name) {
            let flag = format!("--mutant {}", safe(name));
            return Err(fault::flag(&FlagError { flag, fault: FlagFault::Mutant }));
        }
    }
    Ok(all)
}

#[cfg(not(feature = "mutants"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one can fail")]
fn mutants(_: &Exec) -> Result<Mutants, Fault> {
    Ok(Mutants::default())
}

fn dry_run(exec: &Exec) -> Result<u8, Fault> {
    let Ready { policy, request, caller } = meant(exec)?;
    let (facts, state) = host::look(exec.state.state_dir.as_ref(), &caller)?;
    let layers = look_at_layers(&policy, &request, &facts, state.as_ref());
    let plan = plan(&policy, &request, &facts, &caller, state.as_ref(), layers)?;
    let bytes = if exec.results.json {
        let mut canonical = crate::base::canonical_json(&plan)
            .map_err(|e| fault::plan(&plan::PlanError::Encoding(e.to_string())))?;
        canonical.push(b'\n');
        if isatty(std::io::stdout()) {
            // Names of files may hold what a terminal acts on; the canonical form leaves it as it is.
            let value: serde_json::Value = serde_json::from_slice(&canonical)
                .map_err(|e| fault::plan(&plan::PlanError::Encoding(e.to_string())))?;
            super::policy::document(&value, false)?
        } else {
            canonical
        }
    } else {
        let mut text = Explanation::of(&policy, &plan, &facts).map_err(|e| fault::plan(&e))?.text();
        text.push_str(&explain::command(&plan));
        text.into_bytes()
    };
    super::print(&bytes).map_err(|mut fault| {
        fault.exit_code = exit::CONTAINMENT;
        fault
    })
}

/// The report of what was refused before there was a plan.
fn refused(fault: Fault) -> Report {
    Report {
        run_id: String::new(),
        outcome: Outcome::Refused(fault),
        limit: None,
        cancelled: None,
        usage: None,
        stdout: Kept::nothing(),
        stderr: Kept::nothing(),
        enforcement: Vec::new(),
        verified: Verified::No,
        reaping: None,
        drain: Drain::Complete,
        protected_created: Vec::new(),
        witnessed: Witnessed::default(),
        denials: None,
        mode: None,
        plan_digest: None,
        command_digest: None,
        leftovers: Vec::new(),
    }
}

fn deliver(delivery: &Delivery, report: &Told, about: &About) -> Result<(), Fault> {
    let document = |bodies| {
        render::json(&Document::of(report, about, bodies), false)
            .map_err(|e| fault::result("the document".to_owned(), e.to_string(), String::new()))
    };
    // One place that fails does not keep the document from the others.
    let mut beside = Ok(());
    if delivery.wanted() {
        let unique =
            if report.run_id.is_empty() { std::process::id().to_string() } else { report.run_id.clone() };
        beside = delivery.deliver(&document(false)?, &unique);
    }
    let mut printed = Ok(());
    if delivery.prints() {
        printed = render::write_all(std::io::stdout(), &document(true)?)
            .map_err(|e| fault::result("standard output".to_owned(), e.to_string(), String::new()));
    }
    beside.and(printed)
}

/// How it ended, in words.
fn ending(report: &Report) -> String {
    match &report.outcome {
        Outcome::Finished(end) => end.to_string(),
        Outcome::Refused(_) => "nothing of the command ran".to_owned(),
        Outcome::Broken(fault) if fault.code == "output_lost" => "the command had ended".to_owned(),
        Outcome::Broken(_) => "the command had been killed".to_owned(),
    }
}

/// A limit's two numbers in its unit.
fn hit(limit: &LimitHit) -> String {
    let show = |n: u64| match limit.name {
        "wall" => Millis(n).to_string(),
        "processes" => n.to_string(),
        _ => size(n),
    };
    format!(
        "stockade: limit {} reached: configured {}, observed {}\n",
        limit.name,
        show(limit.configured),
        show(limit.observed)
    )
}

/// What an operator is told on standard error. Faults always; the rest unless `quiet`; that the assurance is reduced
/// only where a person looks, since documents have it.
fn lines(report: &Report, about: &About, quiet: bool) -> String {
    let mut out = String::new();
    if let Outcome::Refused(f) | Outcome::Broken(f) = &report.outcome {
        out.push_str(&render::fault(f));
    }
    for created in &report.protected_created {
        let path = crate::base::text::visible(created.path.as_bytes());
        let to = created.moved_to.as_ref().map(|to| crate::base::text::visible(to.as_bytes()));
        let _ = match to {
            Some(to) if created.replaced => writeln!(
                out,
                "stockade: protected path replaced: another run had moved {path} aside; what came there since was moved to {to}"
            ),
            Some(to) => writeln!(out, "stockade: protected path created: {path} was moved to {to}"),
            None if created.replaced => writeln!(
                out,
                "stockade: protected path replaced: {path} is not what it was; unless you changed it yourself, look at it before you use it"
            ),
            None => writeln!(out, "stockade: protected path created: {path} could not be moved aside"),
        };
    }
    for left in &report.leftovers {
        let _ = writeln!(out, "stockade: left behind: {}", safe(left));
    }
    if report.drain == Drain::Cut {
        out.push_str(
            "stockade: output is incomplete: its reader did not take the rest in time, and it was dropped\n",
        );
    }
    if quiet {
        return out;
    }
    if let Some(limit) = &report.limit {
        out.push_str(&hit(limit));
    } else if !about.captured {
        for (name, kept) in [("output", &report.stdout), ("error", &report.stderr)] {
            if let Some(limit) = kept.exceeded {
                let _ = writeln!(
                    out,
                    "stockade: limit output reached: configured {}, observed {}: the rest of standard {name} was dropped",
                    size(limit),
                    size(kept.total)
                );
            }
        }
    }
    if let Some(denied) = report.usage.as_ref().and_then(|u| u.processes_denied.value).filter(|n| *n > 0) {
        let times = if denied == 1 { "once".to_owned() } else { format!("{denied} times") };
        let _ = writeln!(
            out,
            "stockade: limit processes reached: starting a process was refused {times}; `limits.processes` says how many there may be"
        );
    }
    if let Some(denials) = &report.denials {
        out.push_str(&denied_lines(denials, report.limit.is_some(), isatty(std::io::stderr())));
    }
    if !report.enforcement.is_empty()
        && matches!(report.outcome, Outcome::Finished(_))
        && about.assurance(report) == Some(Assurance::Reduced)
        && isatty(std::io::stderr())
    {
        let missing = report.enforcement.iter().filter(|e| matches!(e.got, Got::Absent | Got::Partial));
        let mut missing: Vec<&str> = missing.map(|e| e.protection.key()).collect();
        if !about.own_network {
            missing.push("network (the host's is shared)");
        }
        if !missing.is_empty() {
            let _ = writeln!(
                out,
                "stockade: reduced assurance: without {} (`stockade doctor` says what would help)",
                list(missing)
            );
        }
        for granted in &about.granted {
            let _ = writeln!(out, "stockade: reduced assurance: granted {}: {}", granted.name, granted.opens);
        }
    }
    out
}

/// Findings that are shown on a terminal; the result has all.
const FINDINGS_SHOWN: usize = 3;

/// Why a failed command failed. That it was not the sandbox is said only where a person looks: what a command's failure
/// means otherwise is its caller's to know.
fn denied_lines(denials: &Denials, limit: bool, person: bool) -> String {
    let mut out = String::new();
    // A limit has a line of its own.
    let told = denials.findings.iter().filter(|f| !(limit && f.kind == denied::Kind::Limit));
    let all: Vec<_> = told.collect();
    for finding in all.iter().take(FINDINGS_SHOWN) {
        let likely = if finding.evidence == Evidence::Likely { " (likely)" } else { "" };
        let object = finding.object.as_ref().map_or_else(String::new, |object| format!("{object} "));
        let _ = write!(out, "stockade: denied{likely}: {}", safe(&format!("{object}{}", finding.what)));
        let _ = match &finding.grant {
            Some(grant) if grant.by == By::Key => {
                writeln!(out, "; a profile would allow it: {}", safe(grant.text.as_str()))
            }
            Some(grant) => writeln!(out, "; this would allow it: {}", safe(grant.text.as_str())),
            None => writeln!(out, "; nothing allows it"),
        };
    }
    if all.len() > FINDINGS_SHOWN {
        let _ = writeln!(out, "stockade: denied: {} more in the result (--json)", all.len() - FINDINGS_SHOWN);
    }
    if person && denials.verdict == Verdict::NotSandbox {
        out.push_str("stockade: not the sandbox: nothing that it took away explains the failure\n");
    }
    out
}

/// What earlier runs left and nobody could clean.
fn left_by(recovered: &Recovered) -> String {
    let mut out = String::new();
    for created in &recovered.swept {
        let path = crate::base::text::visible(created.path.as_bytes());
        if let Some(to) = &created.moved_to {
            let to = crate::base::text::visible(to.as_bytes());
            let _ = writeln!(
                out,
                "stockade: protected path created by an earlier, killed run: {path} was moved to {to}"
            );
        } else if created.replaced {
            let _ = writeln!(
                out,
                "stockade: protected path replaced during an earlier, killed run: {path}; unless you changed it yourself, look at it before you use it"
            );
        }
    }
    if recovered.kept.is_empty() || !isatty(std::io::stderr()) {
        return out;
    }
    for left in &recovered.kept {
        let _ = writeln!(
            out,
            "stockade: left behind by run {}: {}",
            safe(&left.name),
            safe(&list(&left.problems))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::outcome::{ProtectedCreated, ToolEnd};

    fn finished(code: u8) -> Report {
        let mut report = refused(fault::arguments("x".into(), "y".into()));
        report.outcome = Outcome::Finished(ToolEnd { exit_code: Some(code), signal: None });
        report
    }

    #[test]
    fn exit_codes() {
        let mut report = finished(3);
        assert_eq!(report.exit_code(), 3);
        report.outcome = Outcome::Finished(ToolEnd { exit_code: None, signal: Some(9) });
        assert_eq!(report.exit_code(), 137);
        report.limit = Some(LimitHit { name: "memory", configured: 1, observed: 1 });
        assert_eq!(report.exit_code(), 137);
        report.limit = Some(LimitHit { name: "wall", configured: 1, observed: 1 });
        assert_eq!(report.exit_code(), 124);
        let broken = fault::arguments("x".into(), "y".into());
        assert_eq!(refused(broken.clone()).exit_code(), 125);
        report.outcome = Outcome::Broken(broken);
        assert_eq!(report.exit_code(), 125);
    }

    #[test]
    fn lines_for_the_operator() {
        let mut report = finished(0);
        let about = About { own_network: true, ..About::default() };
        assert_eq!(lines(&report, &about, false), "");
        report.stdout.exceeded = Some(1 << 20);
        report.stdout.total = 3 << 20;
        report.protected_created = vec![ProtectedCreated {
            path: ".en\x1bvrc".into(),
            moved_to: Some(".stockade-q/x".into()),
            replaced: false,
        }];
        insta::assert_snapshot!(lines(&report, &about, false), @r"
        stockade: protected path created: .en\u{1b}vrc was moved to .stockade-q/x
        stockade: limit output reached: configured 1MiB, observed 3MiB: the rest of standard output was dropped
        ");
        assert_eq!(lines(&report, &about, true).lines().count(), 1);
        report.drain = Drain::Cut;
        insta::assert_snapshot!(lines(&report, &about, true), @r"
        stockade: protected path created: .en\u{1b}vrc was moved to .stockade-q/x
        stockade: output is incomplete: its reader did not take the rest in time, and it was dropped
        ");
        report.limit = Some(LimitHit { name: "wall", configured: 1000, observed: 1007 });
        assert!(
            lines(&report, &about, false)
                .ends_with("stockade: limit wall reached: configured 1s, observed 1007ms\n")
        );
    }
}

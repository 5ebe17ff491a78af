//! An execution's record: accepted before the command can run, ended before anybody is told (AH-INV-1, AH-LIFE-2).
//!
//! [`Recorder::accept`] writes the snapshot while the executor is being built; it costs no sync, since nobody is told of
//! an acceptance. [`Recorder::finish`] commits the rest in one synced step, and only its [`Told`] can be shown: a report
//! that could not be recorded is a broken run, whatever the command did.

use super::outcome::{Boundary, Fault, Outcome, Report};
use super::output::Kept;
use super::recover::Recovered;
use crate::base::{Digest, RunId, canonical_json};
use crate::evidence::redact::{self, Context, Redacted};
use crate::evidence::{
    Accepted, Created, Durable, End, Kind, NewRun, Orphan, Payload, Place, Signer, Stamp, State, Statement,
    Store, StoreError, Subject, Terminal, Txn,
};
use crate::plan::{FsOp, HostFacts, Plan};
use crate::policy::Origin;
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::Deref;

/// The version of the snapshot and of the end.
pub const SCHEMA: &str = "stockade.run/1";
/// Runs of dead owners that are closed at one start, at most; those after them are closed at the next.
const ORPHANS_MAX: usize = 32;
/// Words of a command line that are looked at.
const ARGUMENTS_MAX: usize = 1024;
/// Characters of a command line in lists.
const COMMAND_CHARS: usize = 256;

/// Why a report is told without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Waiver {
    /// The caller asked for none (`--no-record`).
    Asked,
    /// It was refused before there was anything to record, or anywhere to record it.
    NotAdmitted,
}

/// What became of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Recording {
    /// Durable.
    Recorded {
        /// Events of the run.
        events: u64,
        /// Hash of the last one.
        head: Digest,
        /// Identifies the key that signed the receipt.
        key: Digest,
    },
    /// There is none.
    Waived {
        /// Why.
        why: Waiver,
    },
    /// It could not be made; the outcome says why.
    Lost,
}

/// A report that may be shown: recorded, or waived, or saying itself that its record was lost.
#[derive(Debug)]
pub struct Told {
    report: Report,
    recording: Recording,
    store: Option<Store>,
}

impl Deref for Told {
    type Target = Report;
    fn deref(&self) -> &Report {
        &self.report
    }
}

impl Told {
    /// One whose last event is durable.
    fn recorded(report: Report, last: Durable<Accepted>, key: Digest, store: Option<Store>) -> Self {
        let last = last.into_inner();
        let recording =
            Recording::Recorded { events: last.seq.unsigned_abs(), head: last.hash.digest(), key };
        Self { report, recording, store }
    }

    /// One for which no record is owed.
    pub fn waived(report: Report, why: Waiver) -> Self {
        Self { report, recording: Recording::Waived { why }, store: None }
    }

    fn lost(mut report: Report, error: &StoreError) -> Self {
        let mut fault = fault("recording the end of the run", error);
        let was = match &report.outcome {
            Outcome::Finished(end) => format!("{end}; its exit code would have been {}", report.exit_code()),
            Outcome::Refused(_) => "nothing of the command ran".to_owned(),
            Outcome::Broken(earlier) => format!("the run was broken already: {}", earlier.message),
        };
        fault.hint = fault.hint.map(|hint| format!("{was}; {hint}"));
        // An earlier failure stays the primary one, and so does a refusal for the same reason.
        let said = matches!(&report.outcome, Outcome::Refused(f) if f.boundary == Boundary::ArtifactStore);
        if !said && !matches!(report.outcome, Outcome::Broken(_)) {
            report.outcome = Outcome::Broken(fault);
        }
        Self { report, recording: Recording::Lost, store: None }
    }

    /// Brings the store's log into its database when it has grown: after everybody was told.
    pub fn settle(mut self) {
        if let Some(store) = &mut self.store {
            // A log that stays is read instead, and the next run tries again.
            let _ = store.checkpoint();
        }
    }

    /// What became of the record.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

/// An error of the store as a fault.
pub fn fault(stage: &str, error: &StoreError) -> Fault {
    Fault {
        code: error.code(),
        boundary: Boundary::ArtifactStore,
        stage: stage.to_owned(),
        object: None,
        message: crate::base::text::visible(error.to_string().as_bytes()),
        hint: Some(error.hint().to_owned()),
        exit_code: super::faults::EXIT_CONTAINMENT,
    }
    .with_common_remedy()
}

/// What is known of a request beside its plan.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The profile's name.
    pub profile: String,
    /// Where it comes from: the first one won.
    pub origins: Vec<Origin>,
    /// The workspace.
    pub workspace: Option<String>,
    /// Program and arguments.
    pub argv: Vec<Vec<u8>>,
    /// The caller's name for the run.
    pub correlation: Option<String>,
    /// Whether output is kept rather than passed on.
    pub captured: bool,
    /// Whether the command is traced.
    pub traced: bool,
}

/// The record of one run.
#[derive(Debug)]
pub struct Recorder {
    place: Option<Place>,
    store: Option<Store>,
    run: RunId,
    asked: Asked,
    context: Context,
    accepted: bool,
    failed: Option<StoreError>,
    policy_digest: Option<Digest>,
    limits: Value,
    began_ms: i64,
    recovered: Vec<(String, &'static str)>,
    stuck: Vec<String>,
}

impl Recorder {
    /// For a run that is about to be tried.
    pub fn new(place: Place, run: RunId, mut asked: Asked, context: Context, recovered: &Recovered) -> Self {
        let clean = |name: &String| redact::text(name.as_bytes(), &context, redact::STRING).text.to_string();
        asked.correlation = asked.correlation.as_ref().map(clean);
        Self {
            place: Some(place),
            store: None,
            run,
            asked,
            context,
            accepted: false,
            failed: None,
            policy_digest: None,
            limits: Value::Null,
            began_ms: Stamp::now().wall_ms,
            recovered: recovered.cleaned.iter().map(|run| (run.to_string(), "succeeded")).collect(),
            stuck: recovered.kept.iter().map(|left| left.name.clone()).collect(),
        }
    }

    /// Its run.
    pub fn run(&self) -> RunId {
        self.run
    }

    fn store(&mut self) -> Result<&mut Store, StoreError> {
        if let Some(place) = self.place.take() {
            self.store = Some(Store::open(place)?);
        }
        self.store.as_mut().ok_or(StoreError::Stopped { step: "opening the store" })
    }

    /// Accepts the run: its snapshot is written before the command can start. A second acceptance, of another plan for the
    /// same run, is a further event of it. Closes runs whose owner is gone.
    ///
    /// # Errors
    /// The store's; then nothing may run.
    pub fn accept(&mut self, plan: &Plan, facts: &HostFacts) -> Result<(), Fault> {
        self.begin(Some(plan), Some(facts)).map_err(|e| {
            let fault = fault("recording the run", &e);
            self.failed = Some(e);
            fault
        })
    }

    fn begin(&mut self, plan: Option<&Plan>, facts: Option<&HostFacts>) -> Result<(), StoreError> {
        let run = self.run;
        if let Some(plan) = plan {
            self.policy_digest = Some(plan.containment.policy_digest);
            self.limits = json!(plan.containment.limits);
        }
        let again = self.accepted;
        let created = if again { None } else { Some(self.created(plan, facts)?) };
        let running = plan
            .map(|plan| {
                Payload::of(&json!({
                    "attempt": if again { 2 } else { 1 },
                    "command_digest": plan.command_digest,
                    "mode": plan.containment.mode,
                    "plan_digest": plan.plan_digest,
                }))
            })
            .transpose()?;
        let asked = self.asked.clone();
        let command = self.command_line();
        let (recovered, stuck) = (std::mem::take(&mut self.recovered), std::mem::take(&mut self.stuck));
        let store = self.store()?;
        let orphans = store.orphans(ORPHANS_MAX)?;
        let signer = if orphans.is_empty() { None } else { Some(Signer::open(store.place())?) };
        store.written(|txn| {
            for orphan in orphans.iter().filter(|orphan| !stuck.contains(&orphan.id)) {
                if let Some(signer) = &signer {
                    interrupt(txn, orphan, &recovered, signer)?;
                }
            }
            if let Some(plan) = plan {
                txn.plan(&plan.plan_digest, || {
                    canonical_json(&plan.containment)
                        .map_err(|e| StoreError::Encoding { what: "the plan", cause: e.to_string() })
                })?;
            }
            if let Some(payload) = created {
                txn.begin(&NewRun {
                    id: run,
                    kind: "exec",
                    profile: Some(&asked.profile),
                    command: Some(&command),
                    workspace: asked.workspace.as_deref(),
                    correlation: asked.correlation.as_deref(),
                    plan: plan.map(|plan| plan.plan_digest),
                    payload,
                })?;
            }
            if let Some(payload) = &running {
                txn.append(&run, Kind::Running, payload)?;
            }
            Ok(())
        })?;
        store.forget(&orphans);
        self.accepted = true;
        Ok(())
    }

    /// Program and arguments, redacted, as far as their bound goes.
    fn arguments(&self) -> Vec<Redacted> {
        let mut left = redact::ARGUMENTS;
        let fits = |text: &Redacted| {
            left = left.saturating_sub(text.as_str().len() + 1);
            left > 0
        };
        let argv = &self.asked.argv[..self.asked.argv.len().min(ARGUMENTS_MAX)];
        redact::arguments(argv, &self.context)
            .into_iter()
            .map(|outcome| outcome.text)
            .take_while(fits)
            .collect()
    }

    fn command_line(&self) -> String {
        let words: Vec<String> = self.arguments().iter().map(|word| quoted(word.as_str())).collect();
        crate::base::text::visible(words.join(" ").as_bytes()).chars().take(COMMAND_CHARS).collect()
    }

    /// The snapshot (AH-INV-2). Variables by their names: a digest of a short secret would give it away.
    fn created(&self, plan: Option<&Plan>, facts: Option<&HostFacts>) -> Result<Payload, StoreError> {
        let asked = &self.asked;
        let snapshot = json!({
            "stockade": env!("CARGO_PKG_VERSION"),
            "argv": self.arguments(),
            "argv_words": asked.argv.len(),
            "gaps": plan.map(|plan| &plan.containment.gaps),
            "caller": facts.map(|f| json!({ "uid": f.uid, "gid": f.gid })),
            "captured": asked.captured,
            "command_digest": plan.map(|plan| plan.command_digest),
            "containment": plan.map(containment),
            "granted": plan.map(|plan| plan.containment.intents.iter().map(|i| i.name()).collect::<Vec<_>>()),
            "host": facts.map(|f| json!({
                "boot_id": f.boot_id,
                "cgroup2": f.cgroup.v2.is_some(),
                "controllers": f.cgroup.v2_controllers,
                "controllers_v1": f.cgroup.v1.keys().collect::<Vec<_>>(),
                "kernel": f.kernel,
                "landlock_abi": f.landlock_abi,
            })),
            "plan_digest": plan.map(|plan| plan.plan_digest),
            "policy_digest": plan.map(|plan| plan.containment.policy_digest),
            "profile": { "name": asked.profile, "origins": asked.origins },
            "traced": asked.traced,
            "workspace": asked.workspace,
        });
        Payload::of(&Created {
            schema: SCHEMA,
            kind: "exec",
            profile: Some(asked.profile.clone()),
            command: Some(self.command_line()),
            workspace: asked.workspace.clone(),
            correlation: asked.correlation.clone(),
            snapshot,
        })
    }

    /// Records the end: one synced step. What it returns is all that may be shown of the run.
    pub fn finish(mut self, report: Report, about: &Ending<'_>) -> Told {
        let accepted = match self.failed.take() {
            Some(e) => Err(e),
            None if self.accepted => Ok(()),
            None => self.begin(None, None),
        };
        match accepted.and_then(|()| self.end(&report, about)) {
            Ok((last, key)) => Told::recorded(report, last, key, self.store),
            Err(e) => Told::lost(report, &e),
        }
    }

    fn end(
        &mut self,
        report: &Report,
        about: &Ending<'_>,
    ) -> Result<(Durable<Accepted>, Digest), StoreError> {
        let run = self.run;
        let (state, reason) = state(report);
        let enforcement = Payload::of(&json!({
            "assurance": about.assurance,
            "enforcement": report.enforcement,
            "verified": report.verified,
        }))?;
        let detail = self.detail(report, about);
        let boundary = match &report.outcome {
            Outcome::Refused(fault) | Outcome::Broken(fault) => Some(fault.boundary.name()),
            Outcome::Finished(_) => None,
        };
        let exit_code = Some(report.exit_code());
        let payload = Payload::of(&Terminal {
            schema: SCHEMA,
            state,
            reason,
            exit_code,
            boundary,
            detail: detail.clone(),
        })?;
        let end = End { state, reason, exit_code, payload };
        let mut store = self.store.take().ok_or(StoreError::Stopped { step: "ending the run" })?;
        let signer = Signer::open(store.place())?;
        let done = store.durable(|txn| {
            if !report.enforcement.is_empty() {
                txn.append(&run, Kind::Enforcement, &enforcement)?;
            }
            txn.finish(&run, &end, |last| signer.seal(&self.statement(report, &end, &detail, last)).map(Some))
        })?;
        self.store = Some(store);
        Ok((done, *signer.key_id()))
    }

    /// Everything of the report but output and enforcement, operator text redacted.
    fn detail(&self, report: &Report, about: &Ending<'_>) -> Value {
        let text = |text: &str| redact::text(text.as_bytes(), &self.context, FAULT_BYTES).text;
        let fault = |kind: &str, fault: &Fault| {
            json!({
                "kind": kind,
                "boundary": fault.boundary,
                "code": fault.code,
                "message": text(&fault.message),
                "object": fault.object.as_deref().map(text),
                "stage": fault.stage,
            })
        };
        let outcome = match &report.outcome {
            Outcome::Finished(end) => {
                json!({ "kind": "finished", "exit_code": end.exit_code, "signal": end.signal })
            }
            Outcome::Refused(f) => fault("refused", f),
            Outcome::Broken(f) => fault("broken", f),
        };
        let launched = !report.enforcement.is_empty();
        let leftovers: Vec<_> = report.leftovers.iter().map(|l| text(l)).collect();
        json!({
            "assurance": about.assurance,
            "cancelled": report.cancelled,
            "cleanup": cleanup(report, launched),
            "denials": report.denials,
            "destroy": destroy(report, launched),
            "drain": report.drain,
            "leftovers": leftovers,
            "limit": report.limit,
            "outcome": outcome,
            "protected_created": report.protected_created,
            "reaping": report.reaping,
            "stderr": stream(&report.stderr),
            "stdout": stream(&report.stdout),
            "usage": report.usage,
        })
    }

    fn statement(&self, report: &Report, end: &End, detail: &Value, last: Accepted) -> Statement {
        let subject =
            |name: &str, kept: &Kept| kept.digest.map(|digest| Subject { name: name.to_owned(), digest });
        let subjects = [subject("stdout", &report.stdout), subject("stderr", &report.stderr)];
        Statement {
            subjects: subjects.into_iter().flatten().collect(),
            run: self.run.to_string(),
            chain: last.into(),
            plan_digest: report.plan_digest,
            policy_digest: self.policy_digest,
            command_digest: report.command_digest,
            enforcement: report.enforcement.iter().map(|e| json!(e)).collect(),
            state: end.state,
            reason: end.reason.to_owned(),
            exit_code: end.exit_code,
            outcome: detail.clone(),
            limits: self.limits.clone(),
            started_ms: self.began_ms,
            ended_ms: Stamp::now().wall_ms,
            network_digest: None,
            assurance: detail["assurance"].clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// A word as a POSIX shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Bytes of a fault's text in the record.
const FAULT_BYTES: usize = 2048;

/// What is known of an end beside the report.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// `full` or `reduced`; `None` when nothing was built.
    pub assurance: Option<&'a str>,
}

/// The terminal state and its reason (AH-LIFE-1, AH-LIFE-4). What could not be cleaned up makes a run that would have
/// completed fail; an earlier failure stays the primary one.
fn state(report: &Report) -> (State, &'static str) {
    match &report.outcome {
        Outcome::Refused(fault) if fault.code == "cancelled" => (State::Cancelled, "cancelled"),
        Outcome::Refused(_) => (State::Failed, "refused"),
        Outcome::Broken(_) => (State::Failed, "broken"),
        Outcome::Finished(_) if report.limit.is_some() => (State::Failed, "limit"),
        Outcome::Finished(_) if report.cancelled.is_some() => (State::Cancelled, "cancelled"),
        Outcome::Finished(_) if !report.leftovers.is_empty() => (State::Failed, "cleanup"),
        Outcome::Finished(end) if end.signal.is_some() => (State::Completed, "signal"),
        Outcome::Finished(_) => (State::Completed, "exited"),
    }
}

/// Whether the tree of processes is gone.
fn destroy(report: &Report, launched: bool) -> &'static str {
    match (&report.reaping, launched) {
        (Some(_), _) => "succeeded",
        (None, true) => "failed",
        (None, false) => "not_attempted",
    }
}

/// Whether cgroups, leases and temporary files are.
fn cleanup(report: &Report, launched: bool) -> &'static str {
    match (&report.reaping, launched) {
        _ if !report.leftovers.is_empty() => "failed",
        (Some(reaping), _) if !reaping.cgroups_removed => "failed",
        (None, false) => "not_attempted",
        _ => "succeeded",
    }
}

fn stream(kept: &Kept) -> Value {
    json!({
        "bytes": kept.total,
        "exceeded": kept.exceeded,
        "sha256": kept.digest.map(|digest| digest.hex()),
    })
}

/// What of the plan a reader asks for first; the whole of it is kept by its digest.
fn containment(plan: &Plan) -> Value {
    let c = &plan.containment;
    let mounts: Vec<Value> =
        c.fs.iter()
            .filter_map(|op| {
                let source =
                    |ix: &crate::plan::SourceIx| c.sources.get(ix.0 as usize).map(|s| s.path.to_string());
                let (mode, source) = match op {
                    FsOp::Bind { from, writable: true, .. } => ("rw", source(from)),
                    FsOp::Bind { from, writable: false, .. } => ("ro", source(from)),
                    FsOp::Overlay { lower, layer, .. } => (
                        if layer.is_some() { "overlay_kept" } else { "overlay" },
                        lower.as_ref().and_then(source),
                    ),
                    FsOp::Tmpfs { .. } => ("tmpfs", None),
                    _ => return None,
                };
                Some(json!({ "at": op.at(), "mode": mode, "source": source }))
            })
            .collect();
    let names: Vec<String> =
        plan.command.env.iter().map(|(name, _)| crate::base::text::visible(name.as_bytes())).collect();
    json!({
        "cwd": plan.command.cwd,
        "environment": names,
        "landlock_abi": c.landlock.abi,
        "limits": c.limits,
        "mode": c.mode,
        "mounts": mounts,
        "needs": c.needs,
        "network": { "own": c.own_network, "posture": c.posture },
        "seccomp": { "allow": c.seccomp.allow, "sets": c.seccomp.sets },
        "tty": plan.command.tty,
        "user": c.ids.user,
    })
}

/// Closes a run whose owner is gone: it is never run again.
fn interrupt(
    txn: &mut Txn<'_>,
    orphan: &Orphan,
    recovered: &[(String, &'static str)],
    signer: &Signer,
) -> Result<(), StoreError> {
    let id = &orphan.id;
    let cleanup = recovered.iter().find(|(run, _)| run == id).map_or("not_attempted", |(_, how)| how);
    let detail = json!({ "cleanup": cleanup, "destroy": "succeeded" });
    let (state, reason) = (State::Failed, "interrupted");
    let payload = Payload::of(&Terminal {
        schema: SCHEMA,
        state,
        reason,
        exit_code: None,
        boundary: None,
        detail: detail.clone(),
    })?;
    let end = End { state, reason, exit_code: None, payload };
    let seal = |last: Accepted| {
        let statement = Statement {
            subjects: Vec::new(),
            run: id.clone(),
            chain: last.into(),
            plan_digest: None,
            policy_digest: None,
            command_digest: None,
            enforcement: Vec::new(),
            state,
            reason: reason.to_owned(),
            exit_code: None,
            outcome: detail,
            limits: Value::Null,
            started_ms: orphan.created_ms,
            ended_ms: Stamp::now().wall_ms,
            network_digest: None,
            assurance: Value::Null,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        signer.seal(&statement).map(Some)
    };
    match txn.interrupt(id, &end, seal) {
        // Another process was faster.
        Ok(_) | Err(StoreError::Ended { .. }) => Ok(()),
        Err(e) => Err(e),
    }
}

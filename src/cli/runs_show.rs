//! `stockade runs show`: one run, for an operator: what ran, in what containment, how it ended, what it used, what was
//! denied. The record is read as JSON of any shape: what is missing is left out, and what is there is made visible.

use super::explain::size;
use super::policy::document;
use super::render::safe;
use super::runs::{Shown, aligned, failed, reader, state};
use super::runs_args::ShowRun;
use super::{print, when};
use crate::base::Digest;
use crate::evidence::{Event, Kind, Reader, Run, Stamp, StoreError};
use crate::supervise::outcome::Fault;
use serde_json::{Value, json};

/// Events of the timeline; where there are more, the first and the last of them.
const TIMELINE: u64 = 40;
/// Items of a list that are shown.
const ITEMS: usize = 64;

/// All that is shown.
struct Record {
    run: Run,
    abandoned: bool,
    created: Value,
    enforcement: Value,
    terminal: Value,
    timeline: Vec<Event>,
    receipt: Option<String>,
}

/// `stockade runs show`.
///
/// # Errors
/// The store's.
pub fn run(args: &ShowRun) -> Result<u8, Fault> {
    let reader = reader(&args.state_dir)?;
    let failed = failed("reading a run");
    let mut record = reader.at_once(|| read(&reader, &args.run)).map_err(|e| failed(&e))?;
    record.abandoned = reader.is_abandoned(&record.run).map_err(|e| failed(&e))?;
    if args.json {
        return print(&document(&record.document(), true)?);
    }
    print(record.text().as_bytes())
}

fn read(reader: &Reader, name: &str) -> Result<Record, StoreError> {
    let run = reader.find(name)?;
    let payload = |kind: Kind| -> Result<Value, StoreError> {
        let kinds = [kind.name().to_owned()];
        let from = reader.last_events(&run, &kinds, 1)?;
        let Some(event) = reader.events(&run, from, &kinds, 1)?.pop() else { return Ok(Value::Null) };
        let text = reader.payload(&run, &event)?;
        serde_json::from_str(&text).map_err(|e| StoreError::Damaged {
            step: "reading a run",
            detail: format!("the payload of event {} is no JSON: {e}", event.seq),
        })
    };
    let (created, enforcement, terminal) =
        (payload(Kind::Created)?, payload(Kind::Enforcement)?, payload(Kind::Terminal)?);
    let mut timeline = reader.events(&run, 1, &[], TIMELINE / 2)?;
    let seen = timeline.last().map_or(0, |event| event.seq);
    let from = reader.last_events(&run, &[], TIMELINE / 2)?.max(seen + 1);
    timeline.extend(reader.events(&run, from, &[], TIMELINE / 2)?);
    let receipt = reader.receipt(&run)?;
    Ok(Record { run, abandoned: false, created, enforcement, terminal, timeline, receipt })
}

/// A value in words, visible. Lists with commas, objects as JSON.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(safe(text)),
        Value::Bool(yes) => Some(if *yes { "yes" } else { "no" }.to_owned()),
        Value::Number(n) => Some(n.to_string()),
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            let mut all: Vec<String> = items.iter().take(ITEMS).filter_map(words).collect();
            if items.len() > ITEMS {
                all.push(format!("and {} more", items.len() - ITEMS));
            }
            Some(safe(&all.join(", ")))
        }
        Value::Object(_) => Some(safe(&value.to_string())),
    }
}

/// The value at a JSON pointer in words.
fn at(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(words)
}

fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

fn bytes(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(Value::as_u64).map(size)
}

/// Sections of names and what stands beside them.
#[derive(Default)]
struct Page(String);

impl Page {
    fn section(&mut self, title: &str) {
        self.0.push_str(&format!("\n{title}\n"));
    }

    fn row(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            self.0.push_str(&format!("  {name:<13} {value}\n"));
        }
    }

    fn lines(&mut self, lines: Vec<String>) {
        for line in lines {
            self.0.push_str(&format!("  {line}\n"));
        }
    }
}

impl Record {
    fn document(&self) -> Value {
        let timeline: Vec<Value> = self
            .timeline
            .iter()
            .map(|e| json!({ "seq": e.seq, "kind": e.kind, "wall_ms": e.wall_ms, "mono_us": e.mono_us }))
            .collect();
        json!({
            "schema": "stockade.run_record/1",
            "run": Shown::new(&self.run, self.abandoned),
            "created": self.created,
            "enforcement": self.enforcement,
            "terminal": self.terminal,
            "timeline": timeline,
            "receipt": self.receipt.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()),
        })
    }

    fn text(&self) -> String {
        let mut page = Page(format!("run {}\n", safe(&self.run.id)));
        self.what(&mut page);
        self.contained(&mut page);
        self.enforced(&mut page);
        self.ended(&mut page);
        self.denied(&mut page);
        self.when(&mut page);
        self.signed(&mut page);
        page.0
    }

    fn what(&self, page: &mut Page) {
        let run = &self.run;
        let text = |text: &Option<String>| text.as_deref().map(safe);
        let now = Stamp::now().wall_ms;
        let exit = run.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
        page.row("state", Some(format!("{}{exit}", state(run, self.abandoned))));
        page.row("kind", Some(safe(&run.kind)));
        page.row("command", text(&run.command));
        page.row("workspace", text(&run.workspace));
        page.row("correlation", text(&run.correlation));
        let origins: Vec<String> = items(&self.created, "/snapshot/profile/origins")
            .iter()
            .filter_map(|origin| at(origin, "/path").or_else(|| at(origin, "/kind")))
            .collect();
        let from = if origins.is_empty() { String::new() } else { format!(" ({})", origins.join(", ")) };
        page.row("profile", text(&run.profile).map(|name| format!("{name}{from}")));
        let ago = when::ago(run.created_ms, now);
        page.row("began", Some(format!("{} ({ago} ago)", when::stamp(run.created_ms))));
        page.row(
            "ended",
            run.ended_ms.map(|end| {
                format!("{} (after {})", when::stamp(end), when::took(end.saturating_sub(run.created_ms)))
            }),
        );
        let snapshot = |pointer: &str| at(&self.created, &format!("/snapshot{pointer}"));
        page.row("caller", snapshot("/caller/uid").map(|uid| format!("user {uid}")));
        page.row("host", snapshot("/host/kernel").map(|kernel| format!("Linux {kernel}")));
        page.row("stockade", snapshot("/stockade"));
    }

    fn contained(&self, page: &mut Page) {
        let Some(c) = self.created.pointer("/snapshot/containment").filter(|c| c.is_object()) else { return };
        page.section("containment");
        page.row("plan", self.run.plan.as_deref().map(safe));
        page.row("policy", at(&self.created, "/snapshot/policy_digest"));
        page.row("mode", at(c, "/mode"));
        page.row("user", at(c, "/user"));
        page.row("directory", at(c, "/cwd"));
        page.row("network", at(c, "/network/posture"));
        page.row("system calls", at(c, "/seccomp/sets"));
        page.row("and also", at(c, "/seccomp/allow"));
        page.row("granted", at(&self.created, "/snapshot/granted"));
        page.row("environment", at(c, "/environment"));
        let limits = [
            ("memory", bytes(c, "/limits/memory")),
            ("processes", at(c, "/limits/processes")),
            ("CPU", at(c, "/limits/cpu_percent").map(|p| format!("{p}%"))),
            ("wall time", number(c, "/limits/wall_ms").map(when::took)),
            ("output", bytes(c, "/limits/output")),
            ("scratch", bytes(c, "/limits/scratch")),
            ("disk", bytes(c, "/limits/disk")),
            ("file size", bytes(c, "/limits/file_size")),
            ("open files", at(c, "/limits/open_files")),
        ];
        let limits: Vec<String> =
            limits.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))).collect();
        page.row("limits", (!limits.is_empty()).then(|| limits.join(", ")));
        let mounts = items(c, "/mounts");
        let rows: Vec<[String; 3]> = mounts
            .iter()
            .take(ITEMS)
            .map(|mount| {
                let (at_, source) = (at(mount, "/at").unwrap_or_default(), at(mount, "/source"));
                let source = source.filter(|s| *s != at_).map_or_else(String::new, |s| format!("from {s}"));
                [at(mount, "/mode").unwrap_or_default(), at_, source]
            })
            .collect();
        page.row("mounts", (!mounts.is_empty()).then(|| mounts.len().to_string()));
        page.lines(aligned(&rows, &[]).iter().map(|line| format!("  {line}")).collect());
        if mounts.len() > ITEMS {
            page.lines(vec![format!("  and {} more", mounts.len() - ITEMS)]);
        }
    }

    fn enforced(&self, page: &mut Page) {
        let all = items(&self.enforcement, "/enforcement");
        if all.is_empty() {
            return;
        }
        page.section("enforcement");
        page.row("assurance", at(&self.enforcement, "/assurance"));
        page.row("verified", at(&self.enforcement, "/verified/how"));
        let rows: Vec<[String; 4]> = all
            .iter()
            .take(ITEMS)
            .map(|one| {
                let word = |pointer| at(one, pointer).unwrap_or_default();
                let why = at(one, "/gap").map(|gap| format!("gap: {gap}"));
                let by = at(one, "/by").map(|by| format!("by {by}"));
                let got = word("/got").replace('_', " ");
                [word("/protection"), word("/asked"), got, why.or(by).unwrap_or_default()]
            })
            .collect();
        page.lines(aligned(&rows, &[]));
    }

    fn ended(&self, page: &mut Page) {
        let t = &self.terminal;
        if t.is_null() {
            return;
        }
        page.section("end");
        let reason = at(t, "/reason").unwrap_or_default();
        page.row("state", at(t, "/state").map(|state| format!("{state}, {reason}")));
        page.row("boundary", at(t, "/boundary"));
        page.row("exit code", at(t, "/exit_code"));
        page.row("signal", at(t, "/detail/outcome/signal"));
        let limit = |key: &str| at(t, &format!("/detail/limit/{key}"));
        let reached = limit("observed").map_or_else(String::new, |n| format!(" ({n} observed)"));
        page.row(
            "limit",
            limit("name")
                .map(|name| format!("{name} of {}{reached}", limit("configured").unwrap_or_default())),
        );
        page.row("cancelled", at(t, "/detail/cancelled"));
        let stage = at(t, "/detail/outcome/stage").map_or_else(String::new, |stage| format!("{stage}: "));
        page.row("fault", at(t, "/detail/outcome/message").map(|message| format!("{stage}{message}")));
        page.row("object", at(t, "/detail/outcome/object"));
        for stream in ["stdout", "stderr"] {
            let digest = at(t, &format!("/detail/{stream}/sha256"))
                .map_or_else(String::new, |d| format!(", sha256 {d}"));
            page.row(stream, at(t, &format!("/detail/{stream}/bytes")).map(|b| format!("{b} bytes{digest}")));
        }
        let usage = |name: &str| number(t, &format!("/detail/usage/{name}/value"));
        let used = [
            ("wall", number(t, "/detail/usage/wall_ms").map(when::took)),
            ("CPU", usage("cpu_us").map(|us| when::took(us / 1000))),
            ("memory at most", usage("memory_peak_bytes").map(|n| size(n.unsigned_abs()))),
            ("processes at most", usage("processes_peak").map(|n| n.to_string())),
            ("processes denied", usage("processes_denied").filter(|n| *n > 0).map(|n| n.to_string())),
        ];
        let used: Vec<String> =
            used.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?))).collect();
        page.row("used", (!used.is_empty()).then(|| used.join(", ")));
        page.row("processes", at(t, "/detail/destroy").map(|how| format!("ending them {how}")));
        page.row("clean-up", at(t, "/detail/cleanup"));
        page.row("drained", at(t, "/detail/drain"));
        page.row("left over", at(t, "/detail/leftovers"));
        page.row("quarantined", at(t, "/detail/protected_created"));
    }

    fn denied(&self, page: &mut Page) {
        let findings = items(&self.terminal, "/detail/denials/findings");
        let calls = items(&self.terminal, "/detail/denials/refused_calls/first");
        if findings.is_empty() && calls.is_empty() {
            return;
        }
        page.section("denied");
        page.row("verdict", at(&self.terminal, "/detail/denials/verdict"));
        let findings = findings.iter().take(ITEMS).map(|one| {
            let word = |pointer| at(one, pointer).unwrap_or_default();
            let grant = at(one, "/grant/text")
                .map_or_else(String::new, |text| format!("; this would allow it: {text}"));
            format!("{} ({}): {}{grant}", word("/object"), word("/evidence"), word("/what"))
        });
        page.lines(findings.collect());
        let calls = calls.iter().take(ITEMS).filter_map(words).map(|call| format!("system call {call}"));
        page.lines(calls.collect());
    }

    fn when(&self, page: &mut Page) {
        page.section(&format!(
            "timeline ({} events, {})",
            self.run.events,
            size(self.run.bytes.unsigned_abs())
        ));
        let began = self.timeline.first().map_or(0, |event| event.mono_us);
        let mut rows = Vec::new();
        let mut before: Option<&Event> = None;
        for event in &self.timeline {
            let skipped = before.map_or(0, |b| event.seq - b.seq - 1);
            if skipped > 0 {
                rows.push(["…".to_owned(), String::new(), String::new(), format!("{skipped} events")]);
            }
            let since = |us: i64| when::took(event.mono_us.saturating_sub(us) / 1000);
            let step = before.map_or_else(String::new, |b| format!("+{}", since(b.mono_us)));
            rows.push([event.seq.to_string(), since(began), step, safe(&event.kind)]);
            before = Some(event);
        }
        page.lines(aligned(&rows, &[0, 1, 2]));
        if self.abandoned {
            page.lines(vec!["its owner is gone; the next `stockade exec` records the end".to_owned()]);
        }
    }

    fn signed(&self, page: &mut Page) {
        page.section("receipt");
        let Some(text) = &self.receipt else {
            page.lines(vec!["none: it is made when a run ends".to_owned()]);
            return;
        };
        let envelope: Value = serde_json::from_str(text).unwrap_or_default();
        let keys: Vec<String> =
            items(&envelope, "/signatures").iter().take(ITEMS).filter_map(|s| at(s, "/keyid")).collect();
        page.row("key", (!keys.is_empty()).then(|| keys.join(", ")));
        page.row("digest", Some(Digest::of(text.as_bytes()).to_string()));
        page.row("last event", Some(self.run.head.hex()));
        page.row("checked", Some("no; `stockade runs verify` checks it".to_owned()));
    }
}

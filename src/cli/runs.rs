//! `stockade runs`: what was recorded, shown and removed. Everything that a record holds may come from a command and is made
//! visible before it is shown.

use super::args::State;
use super::explain::size;
use super::meant::Caller;
use super::policy::document;
use super::render::{self, safe};
use super::runs_args::{Gc, InState, ListRuns, Runs};
use super::{exit, fault, host, print, runs_events, runs_show, runs_verify, when};
use crate::evidence::{self, Collected, Filter, Place, Reader, Retention, Run, Stamp, Store, StoreError};
use crate::supervise::outcome::Fault;
use crate::supervise::record;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::io;

/// Where lines are cut when nobody says how wide they may be.
const WIDTH_MIN: usize = 40;

/// Does what was asked; the exit code.
///
/// # Errors
/// What stands in the way.
pub fn run(command: &Runs) -> Result<u8, Fault> {
    match command {
        Runs::List(args) => list(args),
        Runs::Show(args) => runs_show::run(args),
        Runs::Events(args) => runs_events::events(args),
        Runs::Tail(args) => runs_events::tail(args),
        Runs::Verify(args) => runs_verify::run(args),
        Runs::Audit(args) => runs_verify::audit_runs(args),
        Runs::Export(args) => runs_verify::export_runs(args),
        Runs::Key(args) => runs_verify::key(args),
        Runs::Gc(args) => gc(args),
    }
}

/// The evidence below the state directory. Makes no state directory.
///
/// # Errors
/// When there is none, or it cannot be used.
pub fn place(state: &State) -> Result<Place, Fault> {
    let path = host::state_path(state.state_dir.as_ref(), &Caller::read())?;
    if !path.is_dir() {
        return Err(failed("opening the store")(&StoreError::Absent { path: path.join("evidence.db") }));
    }
    let (state, _, real) = host::open(&path)?;
    Place::new(real.as_path(), state.dir(), rustix::process::geteuid().as_raw())
        .map_err(|e| failed("opening the store")(&e))
}

/// The store, to be read.
pub fn reader(state: &State) -> Result<Reader, Fault> {
    Reader::open(place(state)?).map_err(|e| failed("opening the store")(&e))
}

/// An error of the store at a stage.
pub fn failed(stage: &'static str) -> impl Fn(&StoreError) -> Fault {
    move |e| record::fault(stage, e)
}

/// Output as it is made.
pub struct Out {
    /// Columns of the terminal; `None` where it is none.
    pub width: Option<usize>,
}

impl Out {
    /// Standard output.
    pub fn new() -> Self {
        let width = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|w| usize::from(w.ws_col));
        Self { width: width.filter(|w| *w >= WIDTH_MIN) }
    }

    /// Writes; false when nobody wants more.
    pub fn write(&self, bytes: &[u8]) -> Result<bool, Fault> {
        match render::write_all(io::stdout(), bytes) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(e) => {
                let hint = "is the disk full, or standard output closed?".to_owned();
                Err(fault::result("standard output".to_owned(), e.to_string(), hint))
            }
        }
    }

    /// A line without what is beyond the terminal's edge.
    pub fn cut(&self, line: &str) -> String {
        match self.width {
            Some(width) if line.chars().count() > width => {
                line.chars().take(width - 1).chain(std::iter::once('…')).collect()
            }
            _ => line.to_owned(),
        }
    }
}

/// A run in JSON.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    no: i64,
    id: &'a str,
    kind: &'a str,
    profile: Option<&'a str>,
    command: Option<&'a str>,
    workspace: Option<&'a str>,
    correlation: Option<&'a str>,
    plan_digest: Option<&'a str>,
    state: evidence::State,
    /// It has not ended and nobody is at work on it.
    abandoned: bool,
    reason: Option<&'a str>,
    exit_code: Option<i64>,
    created_ms: i64,
    ended_ms: Option<i64>,
    events: i64,
    bytes: i64,
    head: String,
}

impl<'a> Shown<'a> {
    /// As it stands.
    pub fn new(run: &'a Run, abandoned: bool) -> Self {
        Self {
            no: run.no,
            id: &run.id,
            kind: &run.kind,
            profile: run.profile.as_deref(),
            command: run.command.as_deref(),
            workspace: run.workspace.as_deref(),
            correlation: run.correlation.as_deref(),
            plan_digest: run.plan.as_deref(),
            state: run.state,
            abandoned,
            reason: run.reason.as_deref(),
            exit_code: run.exit_code,
            created_ms: run.created_ms,
            ended_ms: run.ended_ms,
            events: run.events,
            bytes: run.bytes,
            head: run.head.hex(),
        }
    }
}

/// A run's state in words.
pub fn state(run: &Run, abandoned: bool) -> String {
    match (&run.reason, run.state) {
        _ if abandoned => "interrupted (not yet recorded)".to_owned(),
        (_, evidence::State::Running) => "running".to_owned(),
        (Some(reason), evidence::State::Failed) => format!("failed ({})", safe(reason)),
        (Some(reason), evidence::State::Completed) if reason == "signal" => "completed (signal)".to_owned(),
        (_, state) => state.name().to_owned(),
    }
}

fn filter(args: &ListRuns) -> Filter {
    let now = Stamp::now().wall_ms;
    Filter {
        state: args.went.state.map(|state| match state {
            InState::Running => evidence::State::Running,
            InState::Completed => evidence::State::Completed,
            InState::Failed => evidence::State::Failed,
            InState::Cancelled => evidence::State::Cancelled,
        }),
        unsuccessful: args.went.failed,
        kind: args.what.kind.clone(),
        profile: args.what.profile.clone(),
        correlation: args.what.correlation.clone(),
        workspace: args.what.workspace.clone(),
        command: args.what.command.clone(),
        exit_code: args.went.exit_code,
        since_ms: args.went.since.map(|when| when.ms(now)),
        until_ms: args.went.until.map(|when| when.ms(now)),
    }
}

fn list(args: &ListRuns) -> Result<u8, Fault> {
    let reader = reader(&args.state_dir)?;
    let failed = failed("listing runs");
    // One more, to know whether there is one.
    let mut page = reader
        .runs(&filter(args), args.page.after, args.page.limit.saturating_add(1))
        .map_err(|e| failed(&e))?;
    let more = page.len() > args.page.limit as usize;
    page.truncate(args.page.limit as usize);
    let mut rows = Vec::with_capacity(page.len());
    for run in &page {
        let abandoned = reader.is_abandoned(run).map_err(|e| failed(&e))?;
        rows.push((run, abandoned));
    }
    if args.json {
        let mut out = Vec::new();
        for (run, abandoned) in rows {
            out.extend(document(&Shown::new(run, abandoned), false)?);
        }
        return print(&out);
    }
    let out = Out::new();
    let mut table = vec![["RUN", "AGE", "TOOK", "STATE", "EXIT", "PROFILE", "COMMAND"].map(str::to_owned)];
    let now = Stamp::now().wall_ms;
    for (run, abandoned) in rows {
        let end = run.ended_ms.or_else(|| (!abandoned).then_some(now));
        table.push([
            safe(&reader.short(run).map_err(|e| failed(&e))?),
            when::ago(run.created_ms, now),
            end.map_or_else(|| "-".to_owned(), |end| when::took(end.saturating_sub(run.created_ms))),
            state(run, abandoned),
            run.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
            safe(run.profile.as_deref().unwrap_or("-")),
            safe(run.command.as_deref().unwrap_or("-")),
        ]);
    }
    let mut text = String::new();
    match page.last() {
        None if args.page.after.is_some() => text.push_str("no more runs\n"),
        None => text.push_str("no runs\n"),
        Some(last) => {
            for line in aligned(&table, &[1, 2, 4]) {
                text.push_str(&out.cut(&line));
                text.push('\n');
            }
            if more {
                let _ = writeln!(text, "more: --after {}", last.no);
            }
        }
    }
    print(text.as_bytes())
}

/// Rows with columns of one width; those numbered in `right` end together, others begin together. The widest cell of a
/// column but the last counts up to 40 characters.
pub fn aligned<const N: usize>(rows: &[[String; N]], right: &[usize]) -> Vec<String> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count().min(40));
        }
    }
    let line = |row: &[String; N]| {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let width = widths.get(n).copied().unwrap_or(0);
            let _ = match n {
                n if n + 1 == N => write!(line, "{cell}"),
                n if right.contains(&n) => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn gc(args: &Gc) -> Result<u8, Fault> {
    let place = place(&args.state_dir)?;
    let failed = failed("removing records");
    // A writer would make a store.
    place.check().map_err(|e| failed(&e))?;
    let mut store = Store::open(place).map_err(|e| failed(&e))?;
    let what = Retention {
        older_than: args.keep.older_than,
        keep_last: args.keep.keep_last,
        most_bytes: args.keep.max_bytes.map(|size| size.0),
        dry_run: args.dry_run,
        vacuum: args.vacuum,
    };
    let done = evidence::collect(&mut store, &what).map_err(|e| failed(&e))?;
    if args.json {
        let left = done.left;
        let document_of = json!({
            "schema": "stockade.gc/1",
            "dry_run": args.dry_run,
            "removed": {
                "runs": done.runs, "events": done.events, "bytes": done.bytes, "plans": done.plans,
                "blobs": done.blobs, "blob_bytes": done.blob_bytes, "unfinished": done.unfinished,
            },
            "busy": done.busy,
            "left": { "runs": left.runs, "open": left.open, "events": left.events, "bytes": left.bytes },
        });
        return print(&document(&document_of, true)?);
    }
    print(said(&done, args.dry_run).as_bytes())?;
    Ok(exit::OK)
}

fn said(done: &Collected, dry_run: bool) -> String {
    let mut out = String::new();
    let word = if dry_run { "would remove" } else { "removed" };
    let _ = writeln!(out, "{word} {} runs with {} events ({})", done.runs, done.events, size(done.bytes));
    if done.plans + done.blobs + done.unfinished > 0 {
        let _ = writeln!(
            out,
            "{word} what no run refers to: {} plans, {} blobs ({}), {} unfinished files",
            done.plans,
            done.blobs,
            size(done.blob_bytes),
            done.unfinished
        );
    }
    if done.busy > 0 {
        let _ = writeln!(
            out,
            "{} directories of blobs were busy; the next `stockade runs gc` looks there",
            done.busy
        );
    }
    let left = &done.left;
    let _ = writeln!(
        out,
        "{} {} runs with {} events ({}), {} of them not ended",
        if dry_run { "there are" } else { "left:" },
        left.runs,
        left.events,
        size(left.bytes),
        left.open
    );
    out
}

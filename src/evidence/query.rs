//! What is asked of a store: pages of runs, one run by a name that a user typed, a run's events. Every answer is bounded by
//! its question, and none holds more than one event in memory.

use super::blob::Blobs;
use super::event::{EVENT_BYTES_MAX, INLINE_BYTES_MAX, State};
use super::owner::Owners;
use super::read::Reader;
use super::store::{RUN_EVENTS_MAX, at};
use super::{Hash, StoreError};
use crate::base::text::visible;
use crate::base::{Digest, RunId};
use rusqlite::types::ToSql;
use rusqlite::{OptionalExtension as _, Row, params, params_from_iter};
use rustix::io::Errno;

/// Runs of a page at most.
pub const PAGE_RUNS_MAX: u32 = 10_000;
/// Events of a page at most.
pub const PAGE_EVENTS_MAX: u64 = 256;
/// Characters of a column of text that a page shows.
const TEXT_CHARS_MAX: u32 = 4096;
/// Digits of a run's id that name it, at least.
pub const PREFIX_CHARS_MIN: usize = 4;
/// Characters of an id.
const ID_CHARS: usize = 36;
/// Characters of an id in which its time stands: runs of different milliseconds differ in them.
const TIME_CHARS: usize = 13;
/// Runs that are named where a prefix fits several.
const CANDIDATES: usize = 8;
/// The name of the newest run.
pub const LAST: &str = "last";

/// Which runs. Empty: all of them.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// In this state.
    pub state: Option<State>,
    /// Failed or cancelled, or with another exit code than 0.
    pub unsuccessful: bool,
    /// Of this kind (`exec`).
    pub kind: Option<String>,
    /// Under this profile.
    pub profile: Option<String>,
    /// With this correlation id.
    pub correlation: Option<String>,
    /// In this workspace.
    pub workspace: Option<String>,
    /// Whose command has this in it.
    pub command: Option<String>,
    /// With this exit code.
    pub exit_code: Option<u8>,
    /// Begun then or later, milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Begun before then, milliseconds since 1970.
    pub until_ms: Option<i64>,
}

/// A run's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its number in this store: runs are numbered as they begin.
    pub no: i64,
    /// Its id.
    pub id: String,
    /// Who is, or was, at work on it.
    pub owner: String,
    /// `exec` and the like.
    pub kind: String,
    /// The profile's name.
    pub profile: Option<String>,
    /// The command in one line, redacted.
    pub command: Option<String>,
    /// The workspace.
    pub workspace: Option<String>,
    /// The caller's name for it.
    pub correlation: Option<String>,
    /// Digest of its plan.
    pub plan: Option<String>,
    /// Its state.
    pub state: State,
    /// Why it ended.
    pub reason: Option<String>,
    /// What the caller was told.
    pub exit_code: Option<i64>,
    /// When it was accepted, milliseconds since 1970.
    pub created_ms: i64,
    /// When it ended, milliseconds since 1970.
    pub ended_ms: Option<i64>,
    /// How many events it has.
    pub events: i64,
    /// Bytes of their payloads, those in blobs included.
    pub bytes: i64,
    /// Hash of the last event.
    pub head: Hash,
}

/// What the columns of [`Run`] are, bounded.
fn columns() -> String {
    let text = |name: &str| format!("substr({name}, 1, {TEXT_CHARS_MAX})");
    [
        "no".to_owned(),
        text("id"),
        text("owner"),
        text("kind"),
        text("profile"),
        text("command"),
        text("workspace"),
        text("correlation"),
        text("plan"),
        text("state"),
        text("reason"),
        "exit_code, created_ms, ended_ms, events, bytes, head".to_owned(),
    ]
    .join(", ")
}

impl Run {
    fn read(row: &Row<'_>) -> Result<Self, StoreError> {
        const STEP: &str = "reading a run";
        let failed = StoreError::of(STEP);
        let damaged = |detail: String| StoreError::Damaged { step: STEP, detail };
        let no: i64 = row.get(0).map_err(&failed)?;
        let state: String = row.get(9).map_err(&failed)?;
        let head: Vec<u8> = row.get(16).map_err(&failed)?;
        Ok(Self {
            no,
            id: row.get(1).map_err(&failed)?,
            owner: row.get(2).map_err(&failed)?,
            kind: row.get(3).map_err(&failed)?,
            profile: row.get(4).map_err(&failed)?,
            command: row.get(5).map_err(&failed)?,
            workspace: row.get(6).map_err(&failed)?,
            correlation: row.get(7).map_err(&failed)?,
            plan: row.get(8).map_err(&failed)?,
            state: State::parse(&state).ok_or_else(|| {
                damaged(format!("run {no} is in no state of ours: {}", visible(state.as_bytes())))
            })?,
            reason: row.get(10).map_err(&failed)?,
            exit_code: row.get(11).map_err(&failed)?,
            created_ms: row.get(12).map_err(&failed)?,
            ended_ms: row.get(13).map_err(&failed)?,
            events: row.get(14).map_err(&failed)?,
            bytes: row.get(15).map_err(&failed)?,
            head: Hash::from_slice(&head)
                .ok_or_else(|| damaged(format!("the last hash of run {no} has another length")))?,
        })
    }

    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        self.ended_ms.is_none()
    }
}

/// An event as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the run, from 1.
    pub seq: i64,
    /// What it is.
    pub kind: String,
    /// When, by the host's clock, milliseconds since 1970.
    pub wall_ms: i64,
    /// When, microseconds since the host started.
    pub mono_us: i64,
    /// Its payload, canonical JSON; where that is a blob, `{"blob": digest, "bytes": length}`.
    pub payload: String,
    /// The blob.
    pub blob: Option<Digest>,
    /// Its hash.
    pub hash: Hash,
}

impl Event {
    fn read(run: &Run, row: &Row<'_>) -> Result<Self, StoreError> {
        let failed = StoreError::of("reading events");
        let key: i64 = row.get(0).map_err(&failed)?;
        let seq = key & RUN_EVENTS_MAX;
        let payload: String = row.get(4).map_err(&failed)?;
        if payload.len() > INLINE_BYTES_MAX {
            return Err(damaged(run, seq, "its payload is longer than one that stands in the database"));
        }
        let blob: Option<String> = row.get(5).map_err(&failed)?;
        let hash: Vec<u8> = row.get(6).map_err(&failed)?;
        let named =
            |hex: String| digest(&hex).ok_or_else(|| damaged(run, seq, "its blob has no digest for a name"));
        Ok(Self {
            seq,
            kind: row.get(1).map_err(&failed)?,
            wall_ms: row.get(2).map_err(&failed)?,
            mono_us: row.get(3).map_err(&failed)?,
            payload,
            blob: blob.map(named).transpose()?,
            hash: Hash::from_slice(&hash).ok_or_else(|| damaged(run, seq, "its hash has another length"))?,
        })
    }
}

fn damaged(run: &Run, seq: i64, what: &str) -> StoreError {
    let detail = format!("event {seq} of run {}: {what}", visible(run.id.as_bytes()));
    StoreError::Damaged { step: "reading events", detail }
}

fn of_kinds(kinds: &[String]) -> String {
    if kinds.is_empty() {
        String::new()
    } else {
        format!("AND kind IN ({})", vec!["?"; kinds.len()].join(", "))
    }
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Runs.
    pub runs: u64,
    /// Those that have not ended.
    pub open: u64,
    /// Events.
    pub events: u64,
    /// Bytes of payloads, those in blobs included.
    pub bytes: u64,
}

impl Reader {
    /// A page of runs, the newest first: those before number `before`, `limit` of them ([`PAGE_RUNS_MAX`] at most). The
    /// next page is before the last one's number, whatever has begun or was removed meanwhile.
    ///
    /// # Errors
    /// SQLite's; [`StoreError::Damaged`].
    pub fn runs(&self, filter: &Filter, before: Option<i64>, limit: u32) -> Result<Vec<Run>, StoreError> {
        let failed = StoreError::of("listing runs");
        let mut only: Vec<&str> = Vec::new();
        let mut values: Vec<Box<dyn ToSql>> = Vec::new();
        let mut add = |clause: &'static str, value: Box<dyn ToSql>| {
            only.push(clause);
            values.push(value);
        };
        if let Some(state) = filter.state {
            add("state = ?", Box::new(state.name()));
        }
        for (clause, text) in [
            ("kind = ?", &filter.kind),
            ("profile = ?", &filter.profile),
            ("correlation = ?", &filter.correlation),
            ("workspace = ?", &filter.workspace),
            ("instr(command, ?) > 0", &filter.command),
        ] {
            if let Some(text) = text {
                add(clause, Box::new(text.clone()));
            }
        }
        for (clause, number) in [
            ("exit_code = ?", filter.exit_code.map(i64::from)),
            ("created_ms >= ?", filter.since_ms),
            ("created_ms < ?", filter.until_ms),
            ("no < ?", before),
        ] {
            if let Some(number) = number {
                add(clause, Box::new(number));
            }
        }
        if filter.unsuccessful {
            only.push("(state IN ('failed', 'cancelled') OR exit_code <> 0)");
        }
        let only = if only.is_empty() { String::new() } else { format!("WHERE {}", only.join(" AND ")) };
        values.push(Box::new(limit.min(PAGE_RUNS_MAX)));
        let sql = format!("SELECT {} FROM runs {only} ORDER BY no DESC LIMIT ?", columns());
        let mut all = self.connection().prepare(&sql).map_err(&failed)?;
        let mut rows = all.query(params_from_iter(values)).map_err(&failed)?;
        let mut page = Vec::new();
        while let Some(row) = rows.next().map_err(&failed)? {
            page.push(Run::read(row)?);
        }
        Ok(page)
    }

    /// The run that a user means: an id, the first digits of one, or [`LAST`].
    ///
    /// # Errors
    /// [`StoreError::NoRun`]; [`StoreError::Name`] for what cannot be one; [`StoreError::Ambiguous`].
    pub fn find(&self, name: &str) -> Result<Run, StoreError> {
        let failed = StoreError::of("finding a run");
        if name == LAST {
            let newest = self.runs(&Filter::default(), None, 1)?.pop();
            return newest.ok_or_else(|| StoreError::NoRun { run: LAST.to_owned() });
        }
        let shown = || visible(name.as_bytes());
        let plausible = (PREFIX_CHARS_MIN..=ID_CHARS).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        if !plausible {
            return Err(StoreError::Name { run: shown() });
        }
        let prefix = name.to_ascii_lowercase();
        // Behind every digit and the hyphen.
        let end = format!("{prefix}g");
        let sql = format!("SELECT {} FROM runs WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3", columns());
        let mut all = self.connection().prepare(&sql).map_err(&failed)?;
        let mut rows = all.query(params![prefix, end, CANDIDATES as i64 + 1]).map_err(&failed)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(&failed)? {
            found.push(Run::read(row)?);
        }
        match found.len() {
            0 => Err(StoreError::NoRun { run: shown() }),
            1 => found.pop().ok_or_else(|| StoreError::NoRun { run: shown() }),
            several => {
                let candidates =
                    found.iter().take(CANDIDATES).map(|run| visible(run.id.as_bytes())).collect();
                Err(StoreError::Ambiguous { run: shown(), candidates, more: several > CANDIDATES })
            }
        }
    }

    /// The first digits of `run`'s id that no other run of the store has now.
    ///
    /// # Errors
    /// SQLite's.
    pub fn short(&self, run: &Run) -> Result<String, StoreError> {
        if run.id.parse::<RunId>().is_err() {
            return Ok(run.id.clone());
        }
        let failed = StoreError::of("finding a run's neighbours");
        let mut needed = TIME_CHARS;
        for sql in [
            "SELECT id FROM runs WHERE id > ?1 ORDER BY id LIMIT 1",
            "SELECT id FROM runs WHERE id < ?1 ORDER BY id DESC LIMIT 1",
        ] {
            let beside: Option<String> = self
                .connection()
                .prepare_cached(sql)
                .and_then(|mut next| next.query_row([&run.id], |row| row.get(0)).optional())
                .map_err(&failed)?;
            let same =
                beside.map_or(0, |id| id.bytes().zip(run.id.bytes()).take_while(|(a, b)| a == b).count());
            needed = needed.max(same + 1);
        }
        let short = run.id.get(..needed).unwrap_or(&run.id);
        Ok(short.trim_end_matches('-').to_owned())
    }

    /// A page of a run's events, in order: those from `from` on, of `kinds` (of all, when empty), [`PAGE_EVENTS_MAX`] at
    /// most. Payloads that are blobs stay there: see [`Self::payload`].
    ///
    /// # Errors
    /// SQLite's; [`StoreError::Damaged`].
    pub fn events(
        &self,
        run: &Run,
        from: i64,
        kinds: &[String],
        limit: u64,
    ) -> Result<Vec<Event>, StoreError> {
        let failed = StoreError::of("reading events");
        let sql = format!(
            "SELECT at, kind, wall_ms, mono_us, payload, blob, hash FROM events WHERE at BETWEEN ? AND ? {} ORDER BY at LIMIT ?",
            of_kinds(kinds)
        );
        let limit = limit.min(PAGE_EVENTS_MAX) as i64;
        let ends = [at(run.no, from.clamp(0, RUN_EVENTS_MAX)), at(run.no, RUN_EVENTS_MAX)];
        let mut values: Vec<&dyn ToSql> = ends.iter().map(|end| end as &dyn ToSql).collect();
        values.extend(kinds.iter().map(|kind| kind as &dyn ToSql));
        values.push(&limit);
        let mut all = self.connection().prepare_cached(&sql).map_err(&failed)?;
        let mut rows = all.query(values.as_slice()).map_err(&failed)?;
        let mut page = Vec::new();
        while let Some(row) = rows.next().map_err(&failed)? {
            page.push(Event::read(run, row)?);
        }
        Ok(page)
    }

    /// The whole payload of an event, a blob checked against its digest.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]; [`StoreError::NoRun`] when the run was removed meanwhile.
    pub fn payload(&self, run: &Run, event: &Event) -> Result<String, StoreError> {
        let Some(digest) = &event.blob else { return Ok(event.payload.clone()) };
        match Blobs::open(self.place())?.get(digest, EVENT_BYTES_MAX as u64) {
            // It is collected only once no run refers to it: then the run went while we read.
            Err(StoreError::Io { errno: Errno::NOENT, path, .. }) => {
                self.find(&run.id)?;
                let detail = format!("{} is missing", path.display());
                Err(StoreError::Damaged { step: "reading a blob", detail })
            }
            Err(e) => Err(e),
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| damaged(run, event.seq, "its blob is no text")),
        }
    }

    /// Where the last `n` of a run's events of some kinds begin.
    ///
    /// # Errors
    /// SQLite's.
    pub fn last_events(&self, run: &Run, kinds: &[String], n: u64) -> Result<i64, StoreError> {
        if n == 0 {
            return Ok(run.events + 1);
        }
        let sql = format!(
            "SELECT at FROM events WHERE at BETWEEN ? AND ? {} ORDER BY at DESC LIMIT 1 OFFSET ?",
            of_kinds(kinds)
        );
        let ends = [at(run.no, 0), at(run.no, RUN_EVENTS_MAX)];
        let skip = i64::try_from(n - 1).unwrap_or(i64::MAX);
        let mut values: Vec<&dyn ToSql> = ends.iter().map(|end| end as &dyn ToSql).collect();
        values.extend(kinds.iter().map(|kind| kind as &dyn ToSql));
        values.push(&skip);
        let first: Option<i64> = self
            .connection()
            .prepare_cached(&sql)
            .and_then(|mut last| last.query_row(values.as_slice(), |row| row.get(0)).optional())
            .map_err(StoreError::of("reading events"))?;
        Ok(first.map_or(1, |key| key & RUN_EVENTS_MAX))
    }

    /// The receipt of a run, as it was signed; not checked.
    ///
    /// # Errors
    /// SQLite's.
    pub fn receipt(&self, run: &Run) -> Result<Option<String>, StoreError> {
        self.connection()
            .query_row("SELECT envelope FROM receipts WHERE run = ?1", [run.no], |row| row.get(0))
            .optional()
            .map_err(StoreError::of("reading a receipt"))
    }

    /// A plan by its digest, in canonical form; not checked.
    ///
    /// # Errors
    /// SQLite's.
    pub fn plan(&self, digest: &str) -> Result<Option<String>, StoreError> {
        self.connection()
            .query_row("SELECT plan FROM plans WHERE digest = ?1", [digest], |row| row.get(0))
            .optional()
            .map_err(StoreError::of("reading a plan"))
    }

    /// Whether a run has not ended and nobody is at work on it any more: the next start of `exec` records that. Not to be
    /// asked within [`Self::at_once`], which does not see an end that has been recorded meanwhile.
    ///
    /// # Errors
    /// A system call.
    pub fn is_abandoned(&self, run: &Run) -> Result<bool, StoreError> {
        if !run.is_open() {
            return Ok(false);
        }
        let gone = match Owners::open(self.place()) {
            Ok(owners) => owners.is_gone(&run.owner)?,
            // There is no such directory, and none can be made.
            Err(StoreError::ReadOnly { .. }) => true,
            Err(e) => return Err(e),
        };
        if !gone {
            return Ok(false);
        }
        // An owner that ends its run goes at once.
        self.connection()
            .prepare_cached("SELECT 1 FROM runs WHERE id = ?1 AND ended_ms IS NULL")
            .and_then(|mut find| find.exists([&run.id]))
            .map_err(StoreError::of("finding a run"))
    }

    /// A number that changes when another process commits. `PRAGMA data_version`.
    ///
    /// # Errors
    /// SQLite's.
    pub fn version(&self) -> Result<i64, StoreError> {
        self.connection()
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(StoreError::of("looking for changes"))
    }

    /// How much there is. Reads every run's row.
    ///
    /// # Errors
    /// SQLite's.
    pub fn totals(&self) -> Result<Totals, StoreError> {
        totals(self.connection())
    }

    /// Runs `work` on one state of the store, whatever is committed meanwhile.
    ///
    /// # Errors
    /// `work`'s, and SQLite's.
    pub fn at_once<T>(&self, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let failed = StoreError::of("beginning to read");
        let _reading = self.connection().unchecked_transaction().map_err(failed)?;
        work()
    }
}

/// How much there is.
pub(super) fn totals(conn: &rusqlite::Connection) -> Result<Totals, StoreError> {
    conn.query_row(
        "SELECT count(*), count(*) - count(ended_ms), coalesce(sum(events), 0), coalesce(sum(bytes), 0) FROM runs",
        [],
        |row| {
            let number = |n| row.get::<_, i64>(n).map(i64::unsigned_abs);
            Ok(Totals { runs: number(0)?, open: number(1)?, events: number(2)?, bytes: number(3)? })
        },
    )
    .map_err(StoreError::of("counting runs"))
}

/// A digest by its 64 digits.
pub(super) fn digest(hex: &str) -> Option<Digest> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(Digest::from_bytes(bytes)).filter(|digest| digest.hex() == hex)
}

//! Verification of a store. All of it happens in one read transaction: what others write meanwhile is not seen. Rows are
//! read in the order in which they lie, one at a time; memory grows with the runs that were removed alone, by about a
//! hundred bytes for each.

use super::keys::keys_of;
use super::run::{Content, EventRow, Fold, RunRow, also};
use super::{Findings, Verification, What, Which};
use crate::base::{Digest, canon::hex};
use crate::evidence::chain::{Hash, ledger_genesis, ledger_hash};
use crate::evidence::event::EVENT_BYTES_MAX;
use crate::evidence::key::Trusted;
use crate::evidence::place::private;
use crate::evidence::{Place, Reader, StoreError};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OptionalExtension as _, Row};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// Blobs that are remembered as checked at most; others are read again where they are named again.
const BLOBS_MAX: usize = 1 << 16;
/// Lines of SQLite's own check that are passed on.
const INTEGRITY_LINES: u32 = 100;

/// A check of the whole store. One that cannot go on says so by an error, and the others are made nevertheless.
type Check = fn(&mut Walk<'_>) -> Result<(), StoreError>;

/// The checks, with the table that each is about. A further table is one more function here.
const ALL: &[(&str, Check)] = &[
    ("pages", structure),
    ("keys", keys),
    ("ledger", ledger),
    ("runs", runs),
    ("plans", plans),
    ("receipts", orphan_receipts),
];
/// Of these, those that are about one run.
const ONE: &[(&str, Check)] = &[("keys", keys), ("runs", runs)];

/// A verification under way.
pub struct Walk<'r> {
    conn: &'r Connection,
    place: &'r Place,
    which: Which<'r>,
    trusted: Trusted,
    pinned: bool,
    blobs: Store<'r>,
    out: Findings,
}

/// The blobs of a store.
struct Store<'r> {
    place: &'r Place,
    seen: BTreeSet<[u8; 32]>,
    checked: u64,
    bytes: u64,
}

/// Verifies. Without `keys` the public keys of the store are believed.
///
/// # Errors
/// [`StoreError::NoRun`]; when the database is locked or cannot be read at all. What is wrong in it is a finding.
pub fn verify(reader: &Reader, which: Which<'_>, keys: Option<Trusted>) -> Result<Verification, StoreError> {
    let conn = reader.connection();
    let length = i32::try_from(EVENT_BYTES_MAX).unwrap_or(i32::MAX);
    conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, length).map_err(StoreError::of("bounding what is read"))?;
    let snapshot = conn.unchecked_transaction().map_err(StoreError::of("beginning to read"))?;
    let place = reader.place();
    let pinned = keys.is_some();
    let mut walk = Walk {
        conn: &snapshot,
        place,
        which,
        trusted: keys.unwrap_or_default(),
        pinned,
        blobs: Store { place, seen: BTreeSet::new(), checked: 0, bytes: 0 },
        out: Findings::default(),
    };
    for (table, check) in if which == Which::All { ALL } else { ONE } {
        match check(&mut walk) {
            Ok(()) => {}
            Err(e @ (StoreError::Locked { .. } | StoreError::NoRun { .. } | StoreError::Full { .. })) => {
                return Err(e);
            }
            Err(e) => walk.out.add(What::Unreadable, None, None, table, e.to_string()),
        }
    }
    let mut done = walk.out.end();
    done.counts.blobs = walk.blobs.checked;
    done.bytes += walk.blobs.bytes;
    done.pinned = pinned;
    Ok(done)
}

/// SQLite's own check: pages, cells, indexes, types. pragma.html#pragma_integrity_check
fn structure(walk: &mut Walk<'_>) -> Result<(), StoreError> {
    let failed = StoreError::of("checking the database's structure");
    let mut check =
        walk.conn.prepare(&format!("PRAGMA integrity_check({INTEGRITY_LINES})")).map_err(&failed)?;
    let mut lines = check.query([]).map_err(&failed)?;
    while let Some(line) = lines.next().map_err(&failed)? {
        let line = line.get_ref(0).map_err(&failed)?;
        match line.as_bytes() {
            Ok(b"ok") => {}
            Ok(text) => {
                let text = String::from_utf8_lossy(text).into_owned();
                walk.out.add(What::Integrity, None, None, "pages", text);
            }
            Err(_) => walk.out.add(What::Integrity, None, None, "pages", "an unreadable line".to_owned()),
        }
    }
    Ok(())
}

fn keys(walk: &mut Walk<'_>) -> Result<(), StoreError> {
    let (all, rotations) = keys_of(walk.place, &mut walk.out)?;
    walk.out.counts().keys = all.len() as u64;
    if walk.pinned {
        walk.trusted.follow(&rotations);
    } else {
        walk.trusted = all;
    }
    Ok(())
}

/// A run that the ledger names and that has no row.
struct Gone {
    head: Option<Hash>,
    ended: bool,
}

/// The ledger's chain, and that every run that it names is there or was removed for a reason that it tells.
fn ledger(walk: &mut Walk<'_>) -> Result<(), StoreError> {
    let failed = StoreError::of("reading the ledger");
    let store: Option<String> = walk
        .conn
        .query_row("SELECT value FROM meta WHERE key = 'store'", [], |row| row.get(0))
        .optional()
        .map_err(&failed)?;
    if store.is_none() {
        walk.out.add(What::Ledger, None, None, "meta", "the store has no name".to_owned());
    }
    let mut prev = store.as_deref().map(ledger_genesis);
    let mut next = 1;
    let mut gone: BTreeMap<String, Gone> = BTreeMap::new();
    let mut find = walk.conn.prepare("SELECT began, finished FROM runs WHERE id = ?1").map_err(&failed)?;
    let mut all = walk
        .conn
        .prepare("SELECT n, entry, run, head, also, wall_ms, hash FROM ledger ORDER BY n")
        .map_err(&failed)?;
    let mut rows = all.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let entry = Entry::read(row).map_err(&failed)?;
        let Entry { n, run, .. } = &entry;
        let mut say = |what, detail| walk.out.add(what, Some(run), Some(*n), "ledger", detail);
        if *n != next {
            say(What::Gap, format!("entry {n} stands where {next} belongs"));
            prev = None;
        }
        next = n.saturating_add(1);
        if prev.is_some_and(|prev| entry.computed(&prev) != entry.hash) {
            say(What::Changed, "its hash is not that of its content after the entry before".to_owned());
        }
        prev = entry.hash;
        let there: Option<(i64, Option<i64>)> =
            find.query_row([run], |row| Ok((row.get(0)?, row.get(1)?))).optional().map_err(&failed)?;
        match (&*entry.entry, there) {
            ("begin", Some((began, _))) if began != *n => {
                say(What::Ledger, "the run's row names another beginning".to_owned());
            }
            ("end", Some((_, finished))) if finished != Some(*n) => {
                say(What::Ledger, "the run's row names another end".to_owned());
            }
            ("begin", None) => {
                let twice = gone.insert(run.clone(), Gone { head: None, ended: false }).is_some();
                if twice {
                    say(What::Ledger, "the run began a second time".to_owned());
                }
            }
            ("end", None) => match gone.get_mut(run) {
                Some(gone) if !gone.ended => *gone = Gone { head: entry.head, ended: true },
                _ => say(What::Ledger, "a run ended that had not begun".to_owned()),
            },
            ("prune", there) => {
                let of_that_end = |gone: &Gone| gone.ended && gone.head == entry.head;
                if there.is_some() {
                    say(What::Ledger, "the run is said to be removed, and is there".to_owned());
                } else if !gone.remove(run).is_some_and(|gone| of_that_end(&gone)) {
                    say(What::Ledger, "a run was removed that had not ended so".to_owned());
                }
                walk.out.counts().pruned += 1;
            }
            // The chain covers entries of other kinds; what they are about is checked with it.
            _ => {}
        }
        walk.out.counts().ledger += 1;
    }
    for (run, _) in gone {
        walk.out.add(
            What::Ledger,
            Some(&run),
            None,
            "runs",
            "the run is gone, and no entry tells why".to_owned(),
        );
    }
    Ok(())
}

/// An entry of the ledger.
struct Entry {
    n: i64,
    entry: String,
    run: String,
    head: Option<Hash>,
    also: Option<Vec<u8>>,
    wall_ms: i64,
    hash: Option<Hash>,
}

impl Entry {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            n: row.get(0)?,
            entry: row.get(1)?,
            run: row.get(2)?,
            head: Hash::from_slice(&row.get::<_, Vec<u8>>(3)?),
            also: row.get(4)?,
            wall_ms: row.get(5)?,
            hash: Hash::from_slice(&row.get::<_, Vec<u8>>(6)?),
        })
    }

    fn also(&self) -> Option<Hash> {
        self.also.as_deref().and_then(Hash::from_slice)
    }

    fn computed(&self, prev: &Hash) -> Option<Hash> {
        let head = self.head?;
        if self.also.is_some() != self.also().is_some() {
            return None;
        }
        Some(ledger_hash(prev, self.n, &self.entry, &self.run, &head, self.also().as_ref(), self.wall_ms))
    }
}

/// Reads a run's row: `(no, owner, began, finished, row)`. The columns are those of [`RUN_COLUMNS`].
pub fn run_row(row: &Row<'_>) -> rusqlite::Result<(i64, String, i64, Option<i64>, RunRow)> {
    let head: Vec<u8> = row.get(15)?;
    let found = RunRow {
        id: row.get(4)?,
        kind: row.get(5)?,
        profile: row.get(6)?,
        command: row.get(7)?,
        workspace: row.get(8)?,
        correlation: row.get(9)?,
        plan: row.get(10)?,
        state: row.get(11)?,
        reason: row.get(12)?,
        exit_code: row.get(13)?,
        created_ms: row.get(14)?,
        head: hex(&head),
        ended_ms: row.get(16)?,
        events: row.get(17)?,
        bytes: row.get(18)?,
    };
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, found))
}

/// What [`run_row`] reads.
pub const RUN_COLUMNS: &str = "no, owner, began, finished, id, kind, profile, command, workspace, correlation, plan, state, \
     reason, exit_code, created_ms, head, ended_ms, events, bytes";

/// Runs and their events side by side, both in the order of the runs' numbers.
fn runs(walk: &mut Walk<'_>) -> Result<(), StoreError> {
    let failed = StoreError::of("reading the runs");
    let (mut from, mut to) = (i64::MIN, i64::MAX);
    let mut number = (i64::MIN, i64::MAX);
    if let Which::One(id) = walk.which {
        let no: Option<i64> = walk
            .conn
            .query_row("SELECT no FROM runs WHERE id = ?1", [id], |row| row.get(0))
            .optional()
            .map_err(&failed)?;
        let no = no.ok_or_else(|| StoreError::NoRun { run: id.to_owned() })?;
        number = (no, no);
        from = no.checked_shl(32).unwrap_or(0);
        to = from | i64::from(u32::MAX);
    }
    let mut all = walk
        .conn
        .prepare(&format!("SELECT {RUN_COLUMNS} FROM runs WHERE no BETWEEN ?1 AND ?2 ORDER BY no"))
        .map_err(&failed)?;
    let mut rows = all.query([number.0, number.1]).map_err(&failed)?;
    let reading = StoreError::of("reading the events");
    let mut events = walk
        .conn
        .prepare(
            "SELECT at, kind, wall_ms, mono_us, payload, blob, hash FROM events WHERE at BETWEEN ?1 AND ?2 ORDER BY at",
        )
        .map_err(&reading)?;
    let mut events = events.query([from, to]).map_err(&reading)?;
    let mut event = events.next().map_err(&reading)?;
    let mut about = About::prepare(walk.conn)?;
    loop {
        let run = rows.next().map_err(&failed)?.map(run_row).transpose().map_err(&failed)?;
        let limit = run.as_ref().map_or(i64::MAX, |(no, ..)| *no);
        let mut fold = run.as_ref().map(|(.., row)| Fold::new(&row.id));
        let mut homeless = (0u64, 0);
        while let Some(row) = event {
            let at: i64 = row.get(0).map_err(&reading)?;
            match (&mut fold, (at >> 32).cmp(&limit)) {
                (Some(_), std::cmp::Ordering::Greater) => break,
                (Some(fold), std::cmp::Ordering::Equal) => {
                    let read = read_event(row, at & i64::from(u32::MAX)).map_err(&reading)?;
                    walk.out.counts().events += 1;
                    walk.out.hashed(read.payload.len());
                    fold.event(&read, &mut walk.blobs, &mut walk.out);
                }
                _ => homeless = (homeless.0 + 1, at),
            }
            event = events.next().map_err(&reading)?;
        }
        if homeless.0 > 0 {
            let (n, (no, seq)) = (homeless.0, (homeless.1 >> 32, homeless.1 & i64::from(u32::MAX)));
            let detail = format!("{n} events belong to no run; the last is event {seq} of number {no}");
            walk.out.add(What::Orphan, None, None, "events", detail);
        }
        let (Some(run), Some(fold)) = (run, fold) else { return Ok(()) };
        about.check(walk, &run, &fold)?;
    }
}

/// Reads an event's row: `at`, kind, both times, payload, blob, hash.
pub fn read_event<'a>(row: &'a Row<'_>, seq: i64) -> rusqlite::Result<EventRow<'a>> {
    let blob = row.get_ref(5)?;
    Ok(EventRow {
        seq,
        kind: row.get_ref(1)?.as_str()?,
        wall_ms: row.get(2)?,
        mono_us: row.get(3)?,
        payload: row.get_ref(4)?.as_bytes()?,
        blob: blob.as_str_or_null()?,
        hash: row.get_ref(6)?.as_bytes()?,
    })
}

/// What is said of a run beside its events.
struct About<'c> {
    entry: rusqlite::Statement<'c>,
    receipt: rusqlite::Statement<'c>,
    plan: rusqlite::Statement<'c>,
}

impl<'c> About<'c> {
    fn prepare(conn: &'c Connection) -> Result<Self, StoreError> {
        let failed = StoreError::of("reading what belongs to a run");
        let entry = "SELECT n, entry, run, head, also, wall_ms, hash FROM ledger WHERE n = ?1";
        Ok(Self {
            entry: conn.prepare(entry).map_err(&failed)?,
            receipt: conn.prepare("SELECT envelope FROM receipts WHERE run = ?1").map_err(&failed)?,
            plan: conn.prepare("SELECT 1 FROM plans WHERE digest = ?1").map_err(&failed)?,
        })
    }

    fn check(
        &mut self,
        walk: &mut Walk<'_>,
        (no, owner, began, finished, row): &(i64, String, i64, Option<i64>, RunRow),
        fold: &Fold,
    ) -> Result<(), StoreError> {
        let failed = StoreError::of("reading what belongs to a run");
        let out = &mut walk.out;
        out.counts().runs += 1;
        out.counts().running += u64::from(row.ended_ms.is_none());
        if row.id.parse::<crate::base::RunId>().is_err() {
            out.add(What::Row, Some(&row.id), None, "runs", "`id` is no run's".to_owned());
        }
        fold.row(row, out);
        for plan in fold.plans().iter().chain(&row.plan) {
            if !self.plan.exists([plan]).map_err(&failed)? {
                out.add(What::Plan, Some(&row.id), None, "plans", format!("plan {plan} is missing"));
            }
        }
        let receipt: Option<Vec<u8>> = self
            .receipt
            .query_row([no], |row| Ok(row.get_ref(0)?.as_bytes()?.to_vec()))
            .optional()
            .map_err(&failed)?;
        let (begin, end) = fold.ends();
        let owner = Some(also(owner.as_bytes()));
        self.entry(out, &row.id, ("begin", Some(*began)), begin, owner)?;
        if end.is_some() || finished.is_some() {
            self.entry(out, &row.id, ("end", *finished), end, receipt.as_deref().map(also))?;
        }
        if let Some(envelope) = &receipt {
            out.counts().receipts += 1;
            out.hashed(envelope.len());
            if end.is_none() {
                let detail = "a run that has not ended has a receipt".to_owned();
                out.add(What::Receipt, Some(&row.id), None, "receipts", detail);
            }
            fold.receipt(envelope, row, &walk.trusted, out);
        }
        Ok(())
    }

    /// Compares an entry of the ledger with what it is about.
    fn entry(
        &mut self,
        out: &mut Findings,
        run: &str,
        (kind, n): (&str, Option<i64>),
        about: Option<(Hash, i64)>,
        also: Option<Hash>,
    ) -> Result<(), StoreError> {
        let failed = StoreError::of("reading the ledger");
        let entry = match n {
            Some(n) => self.entry.query_row([n], Entry::read).optional().map_err(&failed)?,
            None => None,
        };
        let Some(entry) = entry else {
            out.add(What::Ledger, Some(run), n, "ledger", format!("the run's {kind} is not in the ledger"));
            return Ok(());
        };
        let same = entry.entry == kind
            && entry.run == run
            && entry.head.is_some()
            && about.map(|(hash, at)| (Some(hash), at)) == Some((entry.head, entry.wall_ms));
        if !same {
            let detail = format!("the run's {kind} is not what the ledger says");
            out.add(What::Ledger, Some(run), n, "ledger", detail);
        }
        if entry.also() != also {
            let detail = if kind == "end" {
                "its receipt is not the one that the ledger names"
            } else {
                "its owner is not the one that the ledger names"
            };
            out.add(What::Ledger, Some(run), n, "ledger", detail.to_owned());
        }
        Ok(())
    }
}

/// Plans by their digests.
fn plans(walk: &mut Walk<'_>) -> Result<(), StoreError> {
    let failed = StoreError::of("reading the plans");
    let mut all = walk.conn.prepare("SELECT digest, plan FROM plans").map_err(&failed)?;
    let mut rows = all.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let (digest, plan) = (row.get_ref(0).map_err(&failed)?, row.get_ref(1).map_err(&failed)?);
        let (digest, plan) = (digest.as_bytes().unwrap_or_default(), plan.as_bytes().unwrap_or_default());
        walk.out.counts().plans += 1;
        walk.out.hashed(plan.len());
        if Digest::of(plan).to_string().as_bytes() != digest {
            let detail = format!("plan {} is another", String::from_utf8_lossy(digest));
            walk.out.add(What::Plan, None, None, "plans", detail);
        }
    }
    Ok(())
}

fn orphan_receipts(walk: &mut Walk<'_>) -> Result<(), StoreError> {
    let orphans: i64 = walk
        .conn
        .query_row("SELECT count(*) FROM receipts WHERE run NOT IN (SELECT no FROM runs)", [], |row| {
            row.get(0)
        })
        .map_err(StoreError::of("reading the receipts"))?;
    if orphans > 0 {
        walk.out.add(What::Orphan, None, None, "receipts", format!("{orphans} receipts belong to no run"));
    }
    Ok(())
}

/// Opens a blob for reading and makes nothing. Errors are words.
pub fn file(place: &Place, hex: &str) -> Result<(OwnedFd, u64), String> {
    let name = format!("blobs/sha256/{}/{}", hex.get(..2).unwrap_or("-"), hex.get(2..).unwrap_or("-"));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = openat2(place.dir(), name, flags, Mode::empty(), resolve).map_err(|e| match e {
        Errno::NOENT => "it is missing".to_owned(),
        e => std::io::Error::from(e).to_string(),
    })?;
    let stat = fstat(&file).map_err(|e| std::io::Error::from(e).to_string())?;
    private(&stat, place.uid(), FileType::RegularFile).map_err(str::to_owned)?;
    Ok((file, u64::try_from(stat.st_size).unwrap_or(u64::MAX)))
}

impl Content for Store<'_> {
    fn check(&mut self, hex: &str, bytes: u64) -> Result<(), String> {
        let (file, length) = file(self.place, hex)?;
        if length != bytes {
            return Err(format!("it has {length} bytes, not {bytes}"));
        }
        let mut raw = [0; 32];
        for (at, pair) in raw.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *at = std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok()).unwrap_or(0);
        }
        if self.seen.contains(&raw) {
            return Ok(());
        }
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 << 10];
        let mut left = length;
        loop {
            match rustix::io::read(&file, &mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    hash.update(&buffer[..n]);
                    self.bytes += n as u64;
                    left = left.saturating_sub(n as u64);
                    if left == 0 {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(std::io::Error::from(e).to_string()),
            }
        }
        if <[u8; 32]>::from(hash.finalize()) != raw {
            return Err("its bytes are others".to_owned());
        }
        self.checked += 1;
        if self.seen.len() < BLOBS_MAX {
            self.seen.insert(raw);
        }
        Ok(())
    }

    fn payload(&mut self, event: &EventRow<'_>) -> Option<Vec<u8>> {
        payload(self.place, event)
    }
}

/// A payload that is a blob, checked against its digest.
pub fn payload(place: &Place, event: &EventRow<'_>) -> Option<Vec<u8>> {
    let (hex, bytes) = event.stub()?;
    let (file, length) = file(place, &hex).ok()?;
    if length != bytes || length > EVENT_BYTES_MAX as u64 {
        return None;
    }
    let mut content = Vec::with_capacity(usize::try_from(length).ok()?);
    let mut file = std::io::Read::take(std::fs::File::from(file), length);
    std::io::Read::read_to_end(&mut file, &mut content).ok()?;
    (Digest::of(&content).hex() == hex).then_some(content)
}

//! The writer: one connection, and each step one transaction under SQLite's write lock. A commit is either written (it
//! survives the death of every process) or also synced (it survives the loss of power); only the second makes a
//! [`Durable`], and a sync covers everything that was committed before it.

use super::chain::{self, Hash, event_hash, genesis, ledger_hash};
use super::event::{Accepted, INLINE_BYTES_MAX, Kind, Payload, Stamp, State};
use super::owner::{Owner, Owners, random_name};
use super::schema::{self, Found};
use super::{BlobHold, Blobs, Place, StoreError};
use crate::base::{Digest, RunId};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a step waits for another process's transaction (MA-TLS-15).
pub const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Events of a run at most: 32 bits of `events.at` hold the sequence.
pub const RUN_EVENTS_MAX: i64 = (1 << 32) - 1;
/// Pages of the write-ahead log after which it is brought into the database: the first process that opens the database
/// reads all of the log, about 5 µs for a page.
pub const CHECKPOINT_PAGES: i64 = 256;

/// A value that was committed and synced before this was made: only this module can make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durable<T>(T);

impl<T> Durable<T> {
    /// The value.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// The value alone; the proof is given up.
    pub fn into_inner(self) -> T {
        self.0
    }

    pub(super) fn proved(value: T) -> Self {
        Self(value)
    }
}

/// What a run begins with. The fields beside `payload` are those of its [`super::Created`], for lists.
#[derive(Debug)]
pub struct NewRun<'a> {
    /// Its id.
    pub id: RunId,
    /// `exec` and the like.
    pub kind: &'static str,
    /// The profile's name.
    pub profile: Option<&'a str>,
    /// The command, redacted.
    pub command: Option<&'a str>,
    /// The workspace.
    pub workspace: Option<&'a str>,
    /// The caller's name for it.
    pub correlation: Option<&'a str>,
    /// Digest of the plan, which [`Txn::plan`] keeps.
    pub plan: Option<Digest>,
    /// The whole [`super::Created`].
    pub payload: Payload,
}

/// The end of a run. The fields beside `payload` are those of its [`super::Terminal`].
#[derive(Debug)]
pub struct End {
    /// Any but [`State::Running`].
    pub state: State,
    /// Why.
    pub reason: &'static str,
    /// What the caller is told.
    pub exit_code: Option<u8>,
    /// The whole [`super::Terminal`].
    pub payload: Payload,
}

/// A run that has not ended and whose owner is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Its id.
    pub id: String,
    /// Who was at work on it.
    pub owner: String,
    /// When it was accepted, milliseconds since 1970.
    pub created_ms: i64,
}

/// The writer.
#[derive(Debug)]
pub struct Store {
    conn: Connection,
    place: Place,
    owner: Owner,
    blobs: Option<Blobs>,
    /// SQLite starts with `synchronous = FULL`.
    synced: bool,
    /// The names of the database's files are durable.
    named: bool,
}

impl Store {
    /// Opens the database of a place for writing; makes it, or brings it to the newest schema.
    ///
    /// # Errors
    /// Every kind but those about runs.
    pub fn open(place: Place) -> Result<Self, StoreError> {
        let opened = (|| {
            let named = place.prepare(create)?;
            let path = place.database();
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let mut conn = connect(&path, flags)?;
            ready(&mut conn, &place)?;
            schema::check(&conn, &path)?;
            let owner = Owner::new(&place)?;
            Ok((conn, owner, named))
        })();
        let (conn, owner, named) = opened.map_err(|e: StoreError| e.with_room(|| place.has_room()))?;
        Ok(Self { conn, place, owner, blobs: None, synced: true, named })
    }

    /// Where it lies.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The mark of the runs that this writer begins.
    pub fn owner(&self) -> &str {
        self.owner.name()
    }

    /// One step, committed and written but not synced: it survives our death, not the loss of power. For what is followed
    /// by a synced step before anybody is told.
    ///
    /// # Errors
    /// The step's, or the commit's; then nothing of it is kept.
    pub fn written<T>(
        &mut self,
        work: impl FnOnce(&mut Txn<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.sync(false)?;
        self.step(work)
    }

    /// One step, committed and synced.
    ///
    /// # Errors
    /// The step's, or the commit's; then nothing of it is kept.
    pub fn durable<T>(
        &mut self,
        work: impl FnOnce(&mut Txn<'_>) -> Result<T, StoreError>,
    ) -> Result<Durable<T>, StoreError> {
        self.sync(true)?;
        let value = self.step(work)?;
        if !self.named {
            self.place.sync()?;
            self.named = true;
        }
        Ok(Durable(value))
    }

    fn sync(&mut self, synced: bool) -> Result<(), StoreError> {
        if self.synced != synced {
            // FULL: the write-ahead log is synced by each commit. NORMAL: by none. pragma.html#pragma_synchronous
            let pragma = if synced { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            self.conn.execute_batch(pragma).map_err(StoreError::of("choosing to sync"))?;
            self.synced = synced;
        }
        Ok(())
    }

    fn step<T>(&mut self, work: impl FnOnce(&mut Txn<'_>) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let tx = self
            .conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(StoreError::of("beginning a step"))?;
        let mut txn = Txn {
            tx: &tx,
            owner: self.owner.name(),
            place: &self.place,
            blobs: &mut self.blobs,
            hold: None,
            ledger: None,
            lost: None,
        };
        let value = work(&mut txn)?;
        if let Some(lost) = txn.lost.take() {
            return Err(lost);
        }
        let hold = txn.hold.take();
        tx.commit().map_err(StoreError::of("committing"))?;
        drop(hold);
        Ok(value)
    }

    /// Brings the write-ahead log into the database when it has grown, as far as readers permit. Nothing is lost where it
    /// fails: the log is read instead.
    ///
    /// # Errors
    /// SQLite's.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        let wal = self.place.path().join("evidence.db-wal");
        let long = rustix::fs::stat(&wal).is_ok_and(|s| s.st_size > CHECKPOINT_PAGES * 4096);
        if long {
            self.conn
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
                .map_err(StoreError::of("bringing in the write-ahead log"))?;
        }
        Ok(())
    }

    /// Runs whose owner is gone, the oldest first.
    ///
    /// # Errors
    /// SQLite's, or a system call.
    pub fn orphans(&self, most: usize) -> Result<Vec<Orphan>, StoreError> {
        let owners = Owners::open(&self.place)?;
        let failed = StoreError::of("looking for runs without an owner");
        let mut open = self
            .conn
            .prepare_cached(
                "SELECT id, owner, created_ms FROM runs WHERE ended_ms IS NULL AND owner <> ?1 ORDER BY no LIMIT ?2",
            )
            .map_err(&failed)?;
        let rows = open
            .query_map(params![self.owner.name(), most as i64], |row| {
                Ok(Orphan { id: row.get(0)?, owner: row.get(1)?, created_ms: row.get(2)? })
            })
            .map_err(&failed)?;
        let mut gone = Vec::new();
        for row in rows {
            let orphan = row.map_err(&failed)?;
            if owners.is_gone(&orphan.owner)? {
                gone.push(orphan);
            }
        }
        Ok(gone)
    }

    /// Forgets owners whose runs are closed.
    pub fn forget(&self, orphans: &[Orphan]) {
        if let Ok(owners) = Owners::open(&self.place) {
            for orphan in orphans {
                owners.forget(&orphan.owner);
            }
        }
    }

    /// Writes the database anew without its free pages.
    ///
    /// # Errors
    /// SQLite's: [`StoreError::Full`] where a second copy does not fit.
    pub fn vacuum(&mut self) -> Result<(), StoreError> {
        self.sync(true)?;
        self.conn.execute_batch("VACUUM").map_err(StoreError::of("giving back free pages"))
    }

    /// The connection, for what reads in a writer's name.
    pub(super) fn connection(&self) -> &Connection {
        &self.conn
    }
}

/// Opens a connection with everything off that a database file could use against its reader.
pub(super) fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let opening = StoreError::of("opening the database");
    let conn =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NOFOLLOW).map_err(&opening)?;
    conn.busy_timeout(LOCK_WAIT).map_err(&opening)?;
    for (option, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true),
    ] {
        conn.set_db_config(option, on).map_err(&opening)?;
    }
    // Checkpoints happen when nobody waits; one page's damage is told, not passed on.
    conn.execute_batch("PRAGMA wal_autocheckpoint = 0; PRAGMA cell_size_check = ON;").map_err(&opening)?;
    Ok(conn)
}

/// Writes a new database, all of it in the one file.
fn create(path: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = connect(path, flags)?;
    make(&mut conn, path)?;
    let failed = StoreError::of("making the database");
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(&failed)?;
    // The last one to leave takes the empty log along.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(&failed)?;
    conn.close().map_err(|(_, e)| failed(e))
}

/// Makes or upgrades the tables of a database that is there.
fn ready(conn: &mut Connection, place: &Place) -> Result<(), StoreError> {
    let path = place.database();
    if schema::look(conn, &path)? == Found::Version(schema::SCHEMA_VERSION) {
        return Ok(());
    }
    // One at a time: a switch of the journal's mode is refused at once where another connection is just looking.
    let _held = place.hold()?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match make(conn, &path) {
            Err(StoreError::Locked { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

fn make(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let failed = StoreError::of("making the tables");
    if schema::look(conn, path)? == Found::Version(schema::SCHEMA_VERSION) {
        return Ok(());
    }
    let mode: String = conn
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(StoreError::of("switching to a write-ahead log"))?;
    if mode != "wal" {
        return Err(StoreError::Database {
            step: "switching to a write-ahead log",
            cause: "the file system cannot share memory between processes".to_owned(),
        });
    }
    conn.execute_batch("PRAGMA synchronous = FULL").map_err(&failed)?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
    match schema::look(&tx, path)? {
        Found::Version(schema::SCHEMA_VERSION) => return Ok(()),
        Found::Empty => {
            schema::upgrade(&tx, 0)?;
            let id = random_name().map_err(|e| StoreError::io("name the store in", path, e))?;
            tx.execute("INSERT INTO meta VALUES ('store', ?1)", [id]).map_err(&failed)?;
        }
        Found::Version(older) => schema::upgrade(&tx, older)?,
    }
    tx.commit().map_err(&failed)
}

/// One step: what is done in it is committed together, or not at all.
#[derive(Debug)]
pub struct Txn<'t> {
    tx: &'t Transaction<'t>,
    owner: &'t str,
    place: &'t Place,
    blobs: &'t mut Option<Blobs>,
    hold: Option<BlobHold>,
    ledger: Option<(i64, Hash)>,
    /// SQLite has undone the whole step by itself, as it does when the disk is full.
    lost: Option<StoreError>,
}

struct Row {
    no: i64,
    events: i64,
    head: Hash,
    open: bool,
    ours: bool,
}

impl Txn<'_> {
    /// Runs `work` so that its failure undoes what it did, and nothing else of the step.
    ///
    /// # Errors
    /// `work`'s.
    pub fn apart<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let failed = StoreError::of("setting a savepoint");
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let before = self.ledger;
        let run = |sql: &str| self.tx.prepare_cached(sql).and_then(|mut s| s.execute([])).map(drop);
        run("SAVEPOINT apart").map_err(&failed)?;
        let result = work(self);
        if let Err(e) = &result
            && self.tx.is_autocommit()
        {
            self.lost = Some(e.clone());
            return result;
        }
        let run = |sql: &str| self.tx.prepare_cached(sql).and_then(|mut s| s.execute([])).map(drop);
        if result.is_err() {
            run("ROLLBACK TO apart").map_err(&failed)?;
        }
        run("RELEASE apart").map_err(&failed)?;
        if result.is_err() {
            self.ledger = before;
        }
        result
    }

    /// Begins a run: its row, its place in the ledger, its first event.
    ///
    /// # Errors
    /// SQLite's; [`StoreError::Conflict`] when there is a run of that id.
    pub fn begin(&mut self, run: &NewRun<'_>) -> Result<Accepted, StoreError> {
        let failed = StoreError::of("beginning a run");
        let id = run.id.to_string();
        if self.find(&id).is_ok() {
            return Err(StoreError::Conflict { what: format!("run {id}") });
        }
        let stamp = Stamp::now();
        let first = genesis(&id);
        self.tx
            .prepare_cached(
                "INSERT INTO runs (id, owner, kind, profile, command, workspace, correlation, plan, state, \
                 created_ms, events, bytes, head, began) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'running', ?9, 0, 0, \
                 ?10, 0)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    id,
                    self.owner,
                    run.kind,
                    run.profile,
                    run.command,
                    run.workspace,
                    run.correlation,
                    run.plan.map(|digest| digest.to_string()),
                    stamp.wall_ms,
                    first.0
                ])
            })
            .map_err(&failed)?;
        let row = Row { no: self.tx.last_insert_rowid(), events: 0, head: first, open: true, ours: true };
        let accepted = self.add(&row, Kind::Created, stamp, &run.payload)?;
        // The owner stands in no event.
        let owner = Hash(*Digest::of(self.owner.as_bytes()).bytes());
        let n = self.entry("begin", &id, &accepted.hash, Some(&owner), stamp)?;
        self.tx
            .prepare_cached("UPDATE runs SET began = ?2 WHERE no = ?1")
            .and_then(|mut update| update.execute([row.no, n]))
            .map_err(&failed)?;
        Ok(accepted)
    }

    /// Keeps the canonical form of a plan, once however many runs have it.
    ///
    /// # Errors
    /// SQLite's; [`StoreError::Encoding`] when `canonical` is not what the digest is of.
    pub fn plan(
        &mut self,
        digest: &Digest,
        canonical: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<(), StoreError> {
        let failed = StoreError::of("keeping the plan");
        let name = digest.to_string();
        let there = self
            .tx
            .prepare_cached("SELECT 1 FROM plans WHERE digest = ?1")
            .and_then(|mut find| find.exists([&name]))
            .map_err(&failed)?;
        if there {
            return Ok(());
        }
        let bytes = canonical()?;
        let text = String::from_utf8(bytes).ok().filter(|text| Digest::of(text.as_bytes()) == *digest);
        let text = text.ok_or_else(|| StoreError::Encoding {
            what: "the plan",
            cause: "its canonical form is not the one that its digest is of".to_owned(),
        })?;
        self.tx.execute("INSERT INTO plans VALUES (?1, ?2)", [name, text]).map_err(&failed)?;
        Ok(())
    }

    /// Adds an event to a run of ours that has not ended.
    ///
    /// # Errors
    /// [`StoreError::NoRun`], [`StoreError::Ended`], [`StoreError::NotOurs`], and SQLite's.
    pub fn append(&mut self, run: &RunId, kind: Kind, payload: &Payload) -> Result<Accepted, StoreError> {
        let id = run.to_string();
        let row = self.find(&id)?;
        self.may_write(&row, &id)?;
        self.add(&row, kind, Stamp::now(), payload)
    }

    /// Ends a run of ours: its last event, its state, its place in the ledger, and its receipt, which `receipt` makes of
    /// the number of events and the last hash.
    ///
    /// # Errors
    /// As [`Self::append`], and the receipt's.
    pub fn finish(
        &mut self,
        run: &RunId,
        end: &End,
        receipt: impl FnOnce(Accepted) -> Result<Option<String>, StoreError>,
    ) -> Result<Accepted, StoreError> {
        let id = run.to_string();
        let row = self.find(&id)?;
        self.may_write(&row, &id)?;
        self.close(&row, &id, end, receipt)
    }

    /// Ends a run whose owner is gone.
    ///
    /// # Errors
    /// As [`Self::finish`]; [`StoreError::Ended`] when another process was faster.
    pub fn interrupt(
        &mut self,
        run: &str,
        end: &End,
        receipt: impl FnOnce(Accepted) -> Result<Option<String>, StoreError>,
    ) -> Result<Accepted, StoreError> {
        let row = self.find(run)?;
        if !row.open {
            return Err(StoreError::Ended { run: run.to_owned() });
        }
        self.close(&row, run, end, receipt)
    }

    fn close(
        &mut self,
        row: &Row,
        id: &str,
        end: &End,
        receipt: impl FnOnce(Accepted) -> Result<Option<String>, StoreError>,
    ) -> Result<Accepted, StoreError> {
        let failed = StoreError::of("ending a run");
        debug_assert!(end.state != State::Running);
        let stamp = Stamp::now();
        let accepted = self.add(row, Kind::Terminal, stamp, &end.payload)?;
        self.tx
            .prepare_cached(
                "UPDATE runs SET state = ?2, reason = ?3, exit_code = ?4, ended_ms = ?5 WHERE no = ?1",
            )
            .and_then(|mut update| {
                update.execute(params![row.no, end.state.name(), end.reason, end.exit_code, stamp.wall_ms])
            })
            .map_err(&failed)?;
        let envelope = receipt(accepted)?;
        let also = envelope.as_ref().map(|text| Hash(*Digest::of(text.as_bytes()).bytes()));
        if let Some(envelope) = envelope {
            self.tx
                .prepare_cached("INSERT INTO receipts VALUES (?1, ?2)")
                .and_then(|mut insert| insert.execute(params![row.no, envelope]))
                .map_err(&failed)?;
        }
        let n = self.entry("end", id, &accepted.hash, also.as_ref(), stamp)?;
        self.tx
            .prepare_cached("UPDATE runs SET finished = ?2 WHERE no = ?1")
            .and_then(|mut update| update.execute([row.no, n]))
            .map_err(&failed)?;
        Ok(accepted)
    }

    fn may_write(&self, row: &Row, id: &str) -> Result<(), StoreError> {
        match (row.open, row.ours) {
            (false, _) => Err(StoreError::Ended { run: id.to_owned() }),
            (_, false) => Err(StoreError::NotOurs { run: id.to_owned() }),
            _ => Ok(()),
        }
    }

    fn find(&self, id: &str) -> Result<Row, StoreError> {
        let failed = StoreError::of("finding a run");
        let damaged = || StoreError::Damaged {
            step: "finding a run",
            detail: format!("the last hash of run {id} has another length"),
        };
        let found = self
            .tx
            .prepare_cached("SELECT no, events, head, ended_ms IS NULL, owner = ?2 FROM runs WHERE id = ?1")
            .and_then(|mut find| {
                find.query_row(params![id, self.owner], |row| {
                    let head: Vec<u8> = row.get(2)?;
                    Ok((row.get(0)?, row.get(1)?, head, row.get(3)?, row.get(4)?))
                })
                .optional()
            })
            .map_err(&failed)?;
        let Some((no, events, head, open, ours)) = found else {
            return Err(StoreError::NoRun { run: id.to_owned() });
        };
        let head = Hash::from_slice(&head).ok_or_else(damaged)?;
        Ok(Row { no, events, head, open, ours })
    }

    fn add(
        &mut self,
        row: &Row,
        kind: Kind,
        stamp: Stamp,
        payload: &Payload,
    ) -> Result<Accepted, StoreError> {
        let failed = StoreError::of("adding an event");
        let seq = row.events + 1;
        if seq > RUN_EVENTS_MAX {
            let (found, most) = (seq.unsigned_abs(), RUN_EVENTS_MAX.unsigned_abs());
            return Err(StoreError::Bound { what: "events of a run", found, most });
        }
        let length = payload.bytes().len();
        let spilled = if length > INLINE_BYTES_MAX {
            let blob = self.blob(payload.bytes())?;
            Some((Payload::of(&blob)?, blob.blob.hex()))
        } else {
            None
        };
        let text = spilled.as_ref().map_or(payload, |(stub, _)| stub);
        let times = (stamp.wall_ms, stamp.mono_us);
        let hash = event_hash(&row.head, seq, kind.name(), times, spilled.is_some(), text.bytes());
        self.tx
            .prepare_cached("INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")
            .and_then(|mut insert| {
                insert.execute(params![
                    at(row.no, seq),
                    kind.name(),
                    stamp.wall_ms,
                    stamp.mono_us,
                    text.text(),
                    spilled.as_ref().map(|(_, hex)| hex),
                    hash.0
                ])
            })
            .map_err(&failed)?;
        self.tx
            .prepare_cached("UPDATE runs SET events = ?2, head = ?3, bytes = bytes + ?4 WHERE no = ?1")
            .and_then(|mut update| update.execute(params![row.no, seq, hash.0, length as i64]))
            .map_err(&failed)?;
        Ok(Accepted { seq, hash })
    }

    /// Writes a blob that this step will reference; it is not collected before the step ends. What the collector takes for
    /// a reference is `events.blob` alone.
    ///
    /// # Errors
    /// See [`Blobs::put`].
    pub fn blob(&mut self, bytes: &[u8]) -> Result<super::BlobRef, StoreError> {
        let blobs = match self.blobs {
            Some(blobs) => blobs,
            None => self.blobs.insert(Blobs::open(self.place)?),
        };
        let hold = match &self.hold {
            Some(hold) => hold,
            None => self.hold.insert(blobs.hold()?),
        };
        blobs.put(bytes, hold)
    }

    /// Adds an entry to the ledger; its number.
    ///
    /// # Errors
    /// SQLite's.
    pub(super) fn entry(
        &mut self,
        entry: &'static str,
        run: &str,
        head: &Hash,
        also: Option<&Hash>,
        stamp: Stamp,
    ) -> Result<i64, StoreError> {
        let failed = StoreError::of("writing the ledger");
        let (n, prev) = match self.ledger {
            Some(last) => last,
            None => self.last_entry()?,
        };
        let hash = ledger_hash(&prev, n + 1, entry, run, head, also, stamp.wall_ms);
        self.tx
            .prepare_cached("INSERT INTO ledger VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")
            .and_then(|mut insert| {
                insert.execute(params![n + 1, entry, run, head.0, also.map(|h| h.0), stamp.wall_ms, hash.0])
            })
            .map_err(&failed)?;
        self.ledger = Some((n + 1, hash));
        Ok(n + 1)
    }

    fn last_entry(&self) -> Result<(i64, Hash), StoreError> {
        let failed = StoreError::of("reading the ledger");
        let last: Option<(i64, Vec<u8>)> = self
            .tx
            .prepare_cached("SELECT n, hash FROM ledger ORDER BY n DESC LIMIT 1")
            .and_then(|mut last| last.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(&failed)?;
        let damaged =
            |detail: &str| StoreError::Damaged { step: "reading the ledger", detail: detail.to_owned() };
        match last {
            Some((n, hash)) => Hash::from_slice(&hash)
                .map(|hash| (n, hash))
                .ok_or_else(|| damaged("its last hash has another length")),
            None => {
                let id: Option<String> = self
                    .tx
                    .query_row("SELECT value FROM meta WHERE key = 'store'", [], |row| row.get(0))
                    .optional()
                    .map_err(&failed)?;
                Ok((0, chain::ledger_genesis(&id.ok_or_else(|| damaged("the store has no name"))?)))
            }
        }
    }

    /// The transaction, for the other tables of the evidence.
    #[allow(dead_code, reason = "for the writers of single tables")]
    pub(super) fn sql(&self) -> &Transaction<'_> {
        self.tx
    }
}

/// The key of an event.
pub(super) fn at(no: i64, seq: i64) -> i64 {
    no << 32 | seq
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Committer;
    use crate::evidence::testing::{Root, end, id, run};

    fn rows(store: &Store, sql: &str) -> i64 {
        store.connection().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn note(n: i64) -> Payload {
        Payload::of(&serde_json::json!({ "n": n })).unwrap()
    }

    #[test]
    fn a_run_from_beginning_to_end() {
        let root = Root::new();
        let mut store = root.store();
        store.written(|txn| txn.begin(&run(1))).unwrap();
        for n in 1..=3 {
            let accepted = store.durable(|txn| txn.append(&id(1), Kind::Note, &note(n))).unwrap();
            assert_eq!(accepted.get().seq, n + 1);
        }
        let last = store
            .durable(|txn| txn.finish(&id(1), &end(State::Completed), |_| Ok(Some("receipt".into()))))
            .unwrap();
        assert_eq!(last.get().seq, 5);
        // Terminal once, and nothing after it.
        let again = store.durable(|txn| txn.finish(&id(1), &end(State::Failed), |_| Ok(None)));
        assert!(matches!(again, Err(StoreError::Ended { .. })));
        let late = store.durable(|txn| txn.append(&id(1), Kind::Note, &note(9)));
        assert!(matches!(late, Err(StoreError::Ended { .. })));
        assert_eq!(rows(&store, "SELECT count(*) FROM events"), 5);
        assert_eq!(rows(&store, "SELECT count(*) FROM ledger"), 2);
        assert_eq!(rows(&store, "SELECT count(*) FROM receipts"), 1);
        assert!(matches!(store.durable(|txn| txn.begin(&run(1))), Err(StoreError::Conflict { .. })));
        let none = store.durable(|txn| txn.append(&id(2), Kind::Note, &note(1)));
        assert!(matches!(none, Err(StoreError::NoRun { .. })));
    }

    #[test]
    fn files_are_private() {
        let root = Root::new();
        let mut store = root.store();
        store.durable(|txn| txn.begin(&run(1))).unwrap();
        for name in ["evidence.db", "evidence.db-wal", "evidence.db-shm", "owners"] {
            let mode = rustix::fs::stat(root.path().join(name)).unwrap().st_mode & 0o777;
            assert_eq!(mode, if name == "owners" { 0o700 } else { 0o600 }, "{name}");
        }
    }

    #[test]
    fn a_step_that_fails_leaves_nothing() {
        let root = Root::new();
        let mut store = root.store();
        let failed: Result<Durable<()>, _> = store.durable(|txn| {
            txn.begin(&run(1))?;
            Err(StoreError::Stopped { step: "here" })
        });
        assert!(failed.is_err());
        assert_eq!(rows(&store, "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM ledger)"), 0);
        // Within a step, what stands apart fails alone, and the chains go on from where they were.
        store
            .durable(|txn| {
                let alone: Result<(), _> = txn.apart(|txn| {
                    txn.begin(&run(1))?;
                    Err(StoreError::Stopped { step: "here" })
                });
                assert!(alone.is_err());
                txn.begin(&run(2))
            })
            .unwrap();
        assert_eq!(rows(&store, "SELECT max(n) FROM ledger"), 1);
    }

    #[test]
    fn a_long_payload_becomes_a_blob() {
        let root = Root::new();
        let mut store = root.store();
        let long = Payload::of(&serde_json::json!({ "text": "x".repeat(10 << 20) })).unwrap();
        store
            .durable(|txn| {
                txn.begin(&run(1))?;
                txn.append(&id(1), Kind::Artifact, &long)
            })
            .unwrap();
        let stub: String = store
            .connection()
            .query_row("SELECT payload FROM events WHERE blob IS NOT NULL", [], |row| row.get(0))
            .unwrap();
        assert!(stub.len() < 200, "{stub}");
        let digest = Digest::of(long.bytes());
        assert_eq!(Blobs::open(&root.place()).unwrap().get(&digest, 20 << 20).unwrap(), long.bytes());
    }

    #[test]
    fn runs_of_an_owner_that_is_gone() {
        let root = Root::new();
        let mut first = root.store();
        first.durable(|txn| txn.begin(&run(1))).unwrap();
        let mut second = root.store();
        assert_eq!(second.orphans(9).unwrap(), []);
        let taken = second.durable(|txn| txn.append(&id(1), Kind::Note, &note(1)));
        assert!(matches!(taken, Err(StoreError::NotOurs { .. })));
        let owner = first.owner().to_owned();
        drop(first);
        let orphans = second.orphans(9).unwrap();
        assert_eq!(
            orphans.iter().map(|o| (&o.id, &o.owner)).collect::<Vec<_>>(),
            [(&id(1).to_string(), &owner)]
        );
        let end = end(State::Failed);
        second.durable(|txn| txn.interrupt(&id(1).to_string(), &end, |_| Ok(None))).unwrap();
        let again = second.durable(|txn| txn.interrupt(&id(1).to_string(), &end, |_| Ok(None)));
        assert!(matches!(again, Err(StoreError::Ended { .. })));
        assert_eq!(second.orphans(9).unwrap(), []);
    }

    #[test]
    fn concurrent_runs_share_commits_and_fail_alone() {
        let root = Root::new();
        let committer = Committer::start(root.store()).unwrap();
        std::thread::scope(|scope| {
            for n in 0..16 {
                let committer = &committer;
                scope.spawn(move || {
                    committer.durable(move |txn| txn.begin(&run(n))).unwrap();
                    for _ in 0..20 {
                        let missing = committer.durable(|txn| txn.append(&id(99), Kind::Note, &note(0)));
                        assert!(matches!(missing, Err(StoreError::NoRun { .. })));
                        committer.durable(move |txn| txn.append(&id(n), Kind::Note, &note(0))).unwrap();
                    }
                    committer
                        .durable(move |txn| txn.finish(&id(n), &end(State::Completed), |_| Ok(None)))
                        .unwrap();
                });
            }
        });
        let store = committer.stop().unwrap();
        assert_eq!(rows(&store, "SELECT count(*) FROM events"), 16 * 22);
        assert_eq!(rows(&store, "SELECT count(*) FROM runs WHERE state = 'completed' AND events = 22"), 16);
        assert_eq!(rows(&store, "SELECT max(n) FROM ledger"), 32);
    }

    #[test]
    fn many_make_it_at_once() {
        for _ in 0..5 {
            let root = Root::new();
            std::thread::scope(|scope| {
                for n in 0..12 {
                    let root = &root;
                    scope.spawn(move || root.store().durable(|txn| txn.begin(&run(n))).unwrap());
                }
            });
            assert_eq!(rows(&root.store(), "SELECT count(*) FROM runs"), 12);
        }
    }

    #[test]
    fn foreign_and_unsafe_files() {
        let root = Root::new();
        std::fs::write(root.path().join("evidence.db"), b"not a database, but long enough to be looked at")
            .unwrap();
        let open = || Store::open(root.place()).map(drop);
        assert!(matches!(open(), Err(StoreError::Unsafe { why, .. }) if why.contains("0600")));
        use std::os::unix::fs::PermissionsExt as _;
        let path = root.path().join("evidence.db");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(open(), Err(StoreError::Damaged { .. })), "{:?}", open());
        std::fs::hard_link(&path, root.path().join("other")).unwrap();
        assert!(matches!(open(), Err(StoreError::Unsafe { why, .. }) if why.contains("hard link")));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert!(matches!(open(), Err(StoreError::Unsafe { why, .. }) if why.contains("regular")));
    }
}

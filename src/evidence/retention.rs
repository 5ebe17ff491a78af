//! Retention: whole runs that have ended are removed, the oldest first, each with an entry in the ledger that stays in its
//! place. Then plans that no run has and blobs that no event refers to go.
//!
//! A kill between any two steps leaves a valid store: a run and its events, receipt and tombstone change in one
//! transaction, which is durable before a blob of it is touched; what is left over without a reference is found by the next
//! collection. Writers wait for one batch at most: [`BATCH_EVENTS`], or one run that has more.

use super::blob::{Blobs, PENDING};
use super::event::Stamp;
use super::owner::Owners;
use super::query::{self, Totals};
use super::store::at;
use super::{Hash, Store, StoreError, Txn};
use crate::base::text::visible;
use rusqlite::params;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fsync, openat, statat, unlinkat};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

/// Events of the runs that one transaction removes.
const BATCH_EVENTS: i64 = 20_000;
/// Runs that one transaction removes.
const BATCH_RUNS: usize = 200;
/// How often a directory of blobs is tried whose lock a writer has, and how long after.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// Seconds after which an owner that has not got its name never will: it takes two system calls.
const OWNER_PENDING_S: i64 = 3600;
/// Between two batches, for a writer that waits: SQLite's lock has no queue.
const BREATH: Duration = Duration::from_millis(2);

/// What is kept. Nothing of it set: every run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// Runs that ended longer ago go.
    pub older_than: Option<Duration>,
    /// Of the runs that have ended only so many stay, the newest.
    pub keep_last: Option<u64>,
    /// The oldest go until the payloads of all runs are not more bytes than this.
    pub most_bytes: Option<u64>,
    /// Only says what would be done.
    pub dry_run: bool,
    /// Gives freed pages of the database back to the file system. Until that is done nothing can be recorded, and room for a
    /// second copy is needed.
    pub vacuum: bool,
}

/// What was done, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Runs that were removed.
    pub runs: u64,
    /// Their events.
    pub events: u64,
    /// Bytes of their payloads, those in blobs included.
    pub bytes: u64,
    /// Plans that were removed.
    pub plans: u64,
    /// Blobs that were removed.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Files of writers that died in the middle.
    pub unfinished: u64,
    /// Directories of blobs that a writer kept busy: the next collection looks there.
    pub busy: u64,
    /// What there is now.
    pub left: Totals,
}

/// Which ended runs go: those up to a number, and those that ended before a moment.
#[derive(Debug, Clone, Copy)]
struct Goes {
    up_to: i64,
    before_ms: i64,
}

/// SQL: a run that [`Goes`], by `?1` and `?2`.
const GOES: &str = "ended_ms IS NOT NULL AND (no <= ?1 OR ended_ms < ?2)";

/// Removes what `what` does not keep.
///
/// # Errors
/// The store's. What was removed until then stays removed.
pub fn collect(store: &mut Store, what: &Retention) -> Result<Collected, StoreError> {
    let goes = goes(store, what)?;
    let mut done = Collected::default();
    if what.dry_run {
        would(store, goes, &mut done)?;
        done.left = query::totals(store.connection())?;
        return Ok(done);
    }
    let mut from = 0;
    loop {
        let batch = store.durable(|txn| batch(txn, goes, from))?.into_inner();
        done.runs += batch.runs;
        done.events += batch.events;
        done.bytes += batch.bytes;
        store.checkpoint()?;
        match batch.next {
            Some(next) => from = next,
            None => break,
        }
        std::thread::sleep(BREATH);
    }
    done.plans = store.durable(plans)?.into_inner();
    blobs(store, &mut done)?;
    owners(store)?;
    if what.vacuum {
        store.vacuum()?;
    }
    store.checkpoint()?;
    done.left = query::totals(store.connection())?;
    Ok(done)
}

/// Finds the bounds.
fn goes(store: &Store, what: &Retention) -> Result<Goes, StoreError> {
    let failed = StoreError::of("choosing what is removed");
    let conn = store.connection();
    let age = what.older_than.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    let before_ms = age.map_or(i64::MIN, |age| Stamp::now().wall_ms.saturating_sub(age));
    let mut up_to = 0;
    if let Some(keep) = what.keep_last {
        let skip = i64::try_from(keep).unwrap_or(i64::MAX);
        let sql = "SELECT coalesce((SELECT no FROM runs WHERE ended_ms IS NOT NULL ORDER BY no DESC LIMIT 1 OFFSET ?1), 0)";
        up_to = conn.query_row(sql, [skip], |row| row.get(0)).map_err(&failed)?;
    }
    let Some(most) = what.most_bytes else { return Ok(Goes { up_to, before_ms }) };
    let stays = format!("SELECT coalesce(sum(bytes), 0) FROM runs WHERE NOT ({GOES})");
    let mut left: u64 = conn
        .query_row(&stays, [up_to, before_ms], |row| row.get(0))
        .map(i64::unsigned_abs)
        .map_err(&failed)?;
    let mut all = conn
        .prepare(&format!(
            "SELECT no, bytes FROM runs WHERE ended_ms IS NOT NULL AND NOT ({GOES}) ORDER BY no"
        ))
        .map_err(&failed)?;
    let mut rows = all.query([up_to, before_ms]).map_err(&failed)?;
    let mut last = up_to;
    while left > most {
        let Some(row) = rows.next().map_err(&failed)? else { break };
        last = row.get(0).map_err(&failed)?;
        left = left.saturating_sub(row.get::<_, i64>(1).map_err(&failed)?.unsigned_abs());
    }
    Ok(Goes { up_to: last, before_ms })
}

fn would(store: &Store, goes: Goes, done: &mut Collected) -> Result<(), StoreError> {
    let sql =
        format!("SELECT count(*), coalesce(sum(events), 0), coalesce(sum(bytes), 0) FROM runs WHERE {GOES}");
    (done.runs, done.events, done.bytes) = store
        .connection()
        .query_row(&sql, [goes.up_to, goes.before_ms], |row| {
            let number = |n| row.get::<_, i64>(n).map(i64::unsigned_abs);
            Ok((number(0)?, number(1)?, number(2)?))
        })
        .map_err(StoreError::of("counting what would be removed"))?;
    Ok(())
}

#[derive(Debug, Default)]
struct Batch {
    runs: u64,
    events: u64,
    bytes: u64,
    /// Where the next one begins.
    next: Option<i64>,
}

/// Removes some runs behind number `from`.
fn batch(txn: &mut Txn<'_>, goes: Goes, from: i64) -> Result<Batch, StoreError> {
    let failed = StoreError::of("removing runs");
    let mut batch = Batch::default();
    let mut gone: Vec<(i64, String, Vec<u8>)> = Vec::new();
    {
        let sql = format!(
            "SELECT no, id, head, events, bytes FROM runs WHERE {GOES} AND no > ?3 ORDER BY no LIMIT ?4"
        );
        let mut all = txn.sql().prepare_cached(&sql).map_err(&failed)?;
        let mut rows =
            all.query(params![goes.up_to, goes.before_ms, from, BATCH_RUNS as i64]).map_err(&failed)?;
        let mut events = 0;
        while let Some(row) = rows.next().map_err(&failed)? {
            let own: i64 = row.get(3).map_err(&failed)?;
            if !gone.is_empty() && events + own > BATCH_EVENTS {
                batch.next = gone.last().map(|run| run.0);
                break;
            }
            events += own;
            batch.bytes += row.get::<_, i64>(4).map_err(&failed)?.unsigned_abs();
            gone.push((
                row.get(0).map_err(&failed)?,
                row.get(1).map_err(&failed)?,
                row.get(2).map_err(&failed)?,
            ));
        }
        batch.events = events.unsigned_abs();
    }
    if gone.len() == BATCH_RUNS {
        batch.next = gone.last().map(|run| run.0);
    }
    let stamp = Stamp::now();
    for (no, id, head) in &gone {
        let head = Hash::from_slice(head).ok_or_else(|| StoreError::Damaged {
            step: "removing runs",
            detail: format!("the last hash of run {} has another length", visible(id.as_bytes())),
        })?;
        txn.entry("prune", id, &head, None, stamp)?;
        for (sql, ends) in [
            ("DELETE FROM events WHERE at >= ?1 AND at < ?2", [at(*no, 0), at(*no + 1, 0)]),
            ("DELETE FROM receipts WHERE run = ?1 AND ?2", [*no, 1]),
            ("DELETE FROM runs WHERE no = ?1 AND ?2", [*no, 1]),
        ] {
            txn.sql().prepare_cached(sql).and_then(|mut delete| delete.execute(ends)).map_err(&failed)?;
        }
    }
    batch.runs = gone.len() as u64;
    Ok(batch)
}

/// Removes plans that no run has: a run and its plan are written in one step.
fn plans(txn: &mut Txn<'_>) -> Result<u64, StoreError> {
    let sql = "DELETE FROM plans WHERE digest NOT IN (SELECT plan FROM runs WHERE plan IS NOT NULL)";
    let gone = txn.sql().execute(sql, []).map_err(StoreError::of("removing plans"))?;
    Ok(gone as u64)
}

/// Removes blobs that no event refers to, and what writers left that died. A directory at a time: writers wait for it.
fn blobs(store: &Store, done: &mut Collected) -> Result<(), StoreError> {
    let path = store.place().path().join("blobs").join("sha256");
    let top = match statat(store.place().dir(), "blobs", AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(StoreError::io("look at", &path, e)),
        Ok(_) => Blobs::open(store.place())?,
    };
    for shelf in names(top.dir(), &path)? {
        if shelf.len() != 2 || !shelf.bytes().all(|b| b.is_ascii_hexdigit()) {
            continue;
        }
        let path = path.join(&shelf);
        let dir = super::place::directory(top.dir().as_fd(), &path, &shelf, store.place().uid())?;
        let mut tries = 0;
        let hold = loop {
            match top.exclusive()? {
                Some(hold) => break Some(hold),
                None if tries == TRIES => break None,
                None => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
            }
        };
        // Between a blob's writing and its reference a writer holds the lock: whoever has it now sees every reference.
        match hold {
            Some(_hold) => shelf_of(store, &shelf, &dir, &path, done)?,
            None => done.busy += 1,
        }
    }
    Ok(())
}

fn shelf_of(
    store: &Store,
    shelf: &str,
    dir: &OwnedFd,
    path: &std::path::Path,
    done: &mut Collected,
) -> Result<(), StoreError> {
    let failed = StoreError::of("looking for references to blobs");
    let mut find =
        store.connection().prepare_cached("SELECT 1 FROM events WHERE blob = ?1").map_err(&failed)?;
    let mut changed = false;
    for name in names(dir, path)? {
        let unfinished = name.starts_with(PENDING);
        let hex = format!("{shelf}{name}");
        if !unfinished && (query::digest(&hex).is_none() || find.exists([&hex]).map_err(&failed)?) {
            continue;
        }
        let bytes = statat(dir, &*name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |s| s.st_size.unsigned_abs());
        match unlinkat(dir, &*name, AtFlags::empty()) {
            Ok(()) if unfinished => done.unfinished += 1,
            Ok(()) => {
                done.blobs += 1;
                done.blob_bytes += bytes;
            }
            // Another collector was faster.
            Err(Errno::NOENT) => {}
            Err(e) => return Err(StoreError::io("remove", path.join(&name), e)),
        }
        changed = true;
    }
    if changed {
        fsync(dir).map_err(|e| StoreError::io("sync", path, e))?;
    }
    Ok(())
}

/// What is in a directory. Names that are no text are none of ours.
fn names(dir: &OwnedFd, path: &std::path::Path) -> Result<Vec<String>, StoreError> {
    let failed = |e| StoreError::io("list", path, e);
    // A description of its own: a position belongs to the open description.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = openat(dir, ".", flags, Mode::empty()).map_err(failed)?;
    let mut all = Vec::new();
    for entry in Dir::new(own).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Ok(name) = entry.file_name().to_str()
            && name != "."
            && name != ".."
        {
            all.push(name.to_owned());
        }
    }
    Ok(all)
}

/// Removes the locks of owners that are gone and have no open run.
fn owners(store: &Store) -> Result<(), StoreError> {
    let failed = StoreError::of("looking for runs of an owner");
    let owners = Owners::open(store.place())?;
    let mut find = store
        .connection()
        .prepare_cached("SELECT 1 FROM runs WHERE ended_ms IS NULL AND owner = ?1")
        .map_err(&failed)?;
    let now = Stamp::now().wall_ms / 1000;
    for name in names(owners.dir(), &store.place().path().join("owners"))? {
        // One that begins with a dot is not locked yet, or never will be; one that has its name is never locked again.
        if name.starts_with('.') {
            let made = statat(owners.dir(), &*name, AtFlags::SYMLINK_NOFOLLOW).map_or(now, |s| s.st_mtime);
            if now.saturating_sub(made) > OWNER_PENDING_S {
                let _ = unlinkat(owners.dir(), &*name, AtFlags::empty());
            }
        } else if owners.is_gone(&name)? && !find.exists([&name]).map_err(&failed)? {
            owners.forget(&name);
        }
    }
    Ok(())
}

//! The database's tables, as a list of steps from nothing to the newest version. A step, once released, never changes: an
//! older database is brought up by the steps that it lacks, and the tables that are found are compared with what the steps
//! make, so that a database which only claims its version is refused (MA-TLS-18).

use super::StoreError;
use crate::base::Digest;
use rusqlite::Connection;
use std::path::Path;

/// `application_id` of the database: "Stkd".
pub const APPLICATION_ID: i32 = 0x5374_6b64;
/// `user_version`: how many steps it has.
pub const SCHEMA_VERSION: i32 = STEPS.len() as i32;

/// The steps.
///
/// `runs.began` and `runs.finished` are the run's entries in the ledger. Few indexes: each costs a page of the log in every
/// run, and lists walk the newest runs.
///
/// `events.at` is `run.no * 2^32 + seq`: the events of a run lie together and in order.
pub const STEPS: &[&str] = &["
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
  no INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  owner TEXT NOT NULL,
  kind TEXT NOT NULL,
  profile TEXT,
  command TEXT,
  workspace TEXT,
  correlation TEXT,
  plan TEXT,
  state TEXT NOT NULL,
  reason TEXT,
  exit_code INTEGER,
  created_ms INTEGER NOT NULL,
  ended_ms INTEGER,
  events INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  head BLOB NOT NULL,
  began INTEGER NOT NULL,
  finished INTEGER
) STRICT;
CREATE INDEX runs_open ON runs(owner) WHERE ended_ms IS NULL;
CREATE INDEX runs_correlation ON runs(correlation, no) WHERE correlation IS NOT NULL;
CREATE TABLE events (
  at INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  wall_ms INTEGER NOT NULL,
  mono_us INTEGER NOT NULL,
  payload TEXT NOT NULL,
  blob TEXT,
  hash BLOB NOT NULL
) STRICT;
CREATE INDEX events_blob ON events(blob) WHERE blob IS NOT NULL;
CREATE TABLE ledger (
  n INTEGER PRIMARY KEY,
  entry TEXT NOT NULL,
  run TEXT NOT NULL,
  head BLOB NOT NULL,
  also BLOB,
  wall_ms INTEGER NOT NULL,
  hash BLOB NOT NULL
) STRICT;
CREATE TABLE plans (digest TEXT PRIMARY KEY, plan TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE receipts (run INTEGER PRIMARY KEY, envelope TEXT NOT NULL) STRICT;
"];

/// What a database is, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing was written yet.
    Empty,
    /// An evidence database of this version, not newer than ours.
    Version(i32),
}

/// Looks at the header.
///
/// # Errors
/// [`StoreError::Foreign`], [`StoreError::Newer`], [`StoreError::Damaged`].
pub fn look(conn: &Connection, path: &Path) -> Result<Found, StoreError> {
    let failed = StoreError::of("reading the database's header");
    // In one statement: another process may be making the tables.
    let (application, version, objects): (i32, i32, i64) = conn
        .query_row(
            "SELECT a.application_id, v.user_version, (SELECT count(*) FROM sqlite_schema) \
             FROM pragma_application_id AS a, pragma_user_version AS v",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .map_err(&failed)?;
    if (application, version, objects) == (0, 0, 0) {
        return Ok(Found::Empty);
    }
    if application != APPLICATION_ID || version < 1 {
        return Err(StoreError::Foreign { path: path.to_owned(), found: application });
    }
    if version > SCHEMA_VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found: version, known: SCHEMA_VERSION });
    }
    Ok(Found::Version(version))
}

/// Makes the tables that `from` lacks. To be called in a transaction that holds the write lock.
///
/// # Errors
/// SQLite's.
pub fn upgrade(conn: &Connection, from: i32) -> Result<(), StoreError> {
    let failed = StoreError::of("making the tables");
    for step in STEPS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        conn.execute_batch(step).map_err(&failed)?;
    }
    conn.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
    ))
    .map_err(&failed)
}

/// Checks that the tables are those of the newest version.
///
/// # Errors
/// [`StoreError::Schema`].
pub fn check(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let failed = StoreError::of("reading the tables");
    let mut all =
        conn.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").map_err(&failed)?;
    let mut found = Vec::new();
    let mut rows = all.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        found.push(normal(&row.get::<_, String>(0).map_err(&failed)?));
    }
    found.sort();
    if Digest::of(found.join("\n").as_bytes()) == expected() {
        Ok(())
    } else {
        Err(StoreError::Schema { path: path.to_owned(), version: SCHEMA_VERSION })
    }
}

/// SQLite keeps the text of a statement as it was written, but for what stands around it.
fn normal(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn expected() -> Digest {
    let mut all: Vec<String> = STEPS
        .iter()
        .flat_map(|step| step.split(';'))
        .map(normal)
        .filter(|statement| statement.starts_with("CREATE"))
        .collect();
    all.sort();
    Digest::of(all.join("\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        upgrade(&conn, 0).unwrap();
        conn
    }

    #[test]
    fn what_the_steps_make_is_what_is_expected() {
        let conn = made();
        check(&conn, Path::new("/x")).unwrap();
        assert_eq!(look(&conn, Path::new("/x")).unwrap(), Found::Version(SCHEMA_VERSION));
    }

    #[test]
    fn other_tables_are_refused() {
        for change in [
            "CREATE TABLE more (x)",
            "DROP INDEX runs_open",
            "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
            "ALTER TABLE receipts ADD COLUMN y TEXT",
        ] {
            let conn = made();
            conn.execute_batch(change).unwrap();
            assert!(matches!(check(&conn, Path::new("/x")), Err(StoreError::Schema { .. })), "{change}");
        }
    }

    #[test]
    fn headers() {
        let conn = Connection::open_in_memory().unwrap();
        assert_eq!(look(&conn, Path::new("/x")).unwrap(), Found::Empty);
        conn.execute_batch("CREATE TABLE t (x)").unwrap();
        assert!(matches!(look(&conn, Path::new("/x")), Err(StoreError::Foreign { found: 0, .. })));
        let conn = made();
        conn.execute_batch("PRAGMA user_version = 9999").unwrap();
        assert!(matches!(look(&conn, Path::new("/x")), Err(StoreError::Newer { found: 9999, .. })));
        conn.execute_batch("PRAGMA application_id = 7").unwrap();
        assert!(matches!(look(&conn, Path::new("/x")), Err(StoreError::Foreign { found: 7, .. })));
    }
}

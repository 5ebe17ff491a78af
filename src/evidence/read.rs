//! Readers: a connection of their own that cannot write, blocks no writer and never sees half a step.

use super::schema::{self, Found};
use super::{Place, StoreError, store};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{AtFlags, StatVfsMountFlags, fstatvfs, statat};

/// Bytes of a value in the database, at most: the largest are receipts and plans.
const VALUE_BYTES_MAX: i32 = 64 << 20;

/// A reader of the whole store.
#[derive(Debug)]
pub struct Reader {
    conn: Connection,
    place: Place,
}

impl Reader {
    /// Opens the database of a place for reading. Makes nothing.
    ///
    /// # Errors
    /// [`StoreError::Absent`] when there is none; a foreign, newer, older or damaged one.
    pub fn open(place: Place) -> Result<Self, StoreError> {
        place.check()?;
        let path = place.database();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = if Self::is_still(&place) {
            // Nobody can write there and nothing is in the log: it may be read without the shared memory that a
            // write-ahead log needs. wal.html#read_only_databases
            let uri = format!("file:{}?immutable=1", escaped(&path));
            store::connect(std::path::Path::new(&uri), flags | OpenFlags::SQLITE_OPEN_URI)?
        } else {
            store::connect(&path, flags)?
        };
        conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            .map_err(StoreError::of("opening the database"))?;
        match schema::look(&conn, &path)? {
            Found::Empty => return Err(StoreError::Absent { path }),
            Found::Version(schema::SCHEMA_VERSION) => {}
            Found::Version(found) => {
                return Err(StoreError::Older { path, found, known: schema::SCHEMA_VERSION });
            }
        }
        schema::check(&conn, &path)?;
        Ok(Self { conn, place })
    }

    /// Whether the file system is read-only and the write-ahead log holds nothing.
    fn is_still(place: &Place) -> bool {
        let read_only = fstatvfs(place.dir()).is_ok_and(|v| v.f_flag.contains(StatVfsMountFlags::RDONLY));
        let log = statat(place.dir(), "evidence.db-wal", AtFlags::SYMLINK_NOFOLLOW);
        read_only && log.map_or(true, |s| s.st_size == 0)
    }

    /// The connection.
    #[allow(dead_code, reason = "for the readers of single tables")]
    pub(super) fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Where it lies.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

/// A path as a URI's: everything but plain characters in percent-encoding.
fn escaped(path: &std::path::Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut out = String::new();
    for b in path.as_os_str().as_bytes() {
        match b {
            b'/' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => out.push(char::from(*b)),
            _ => {
                let _ = write!(out, "%{b:02X}");
            }
        }
    }
    out
}

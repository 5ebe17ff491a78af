//! Export: runs as JSON Lines, one object in a line, that anybody can read and that `verify_bundle` checks with a public
//! key alone. Everything comes from one read transaction and is written as it is read.
//!
//! `{"header": …}`, then of each run `{"run": …}`, its `{"event": …}`s in order, `{"row": …}`s of further tables and its
//! `{"receipt": …}`, and at last `{"end": …}` with the number and the SHA-256 of the lines before it.

use super::event::{EVENT_BYTES_MAX, Kind};
use super::verify::{self, RunRow};
use super::{Place, Reader, StoreError};
use crate::base::{canon::hex, canonical_json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use rusqlite::{Connection, OptionalExtension as _};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The version of the format.
pub const BUNDLE_SCHEMA: &str = "stockade.bundle/1";

/// Further tables of runs: name, and the statement that reads a run's rows by its number, in order. Their rows follow the
/// events.
pub const TABLES: &[(&str, &str)] = &[];

/// A line.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// First.
    Header(Header),
    /// A run begins.
    Run(RunRow),
    /// One of its events.
    Event(EventLine),
    /// A row of a further table.
    Row {
        /// Its table.
        table: String,
        /// Its columns.
        columns: serde_json::Map<String, Value>,
    },
    /// Its receipt.
    Receipt {
        /// The run's id.
        run: String,
        /// The envelope, as it was signed.
        envelope: String,
    },
    /// Last.
    End {
        /// How many lines precede it.
        lines: i64,
        /// SHA-256 of those lines, their ends included.
        sha256: String,
    },
}

/// What a bundle is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`BUNDLE_SCHEMA`].
    pub schema: String,
    /// The store that it is from.
    pub store: Option<String>,
    /// Stockade's version.
    pub version: String,
    /// Public keys, PEM.
    pub keys: Vec<String>,
    /// Rotations of keys, as they were signed.
    pub rotations: Vec<String>,
}

/// An event.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventLine {
    /// Its place.
    pub seq: i64,
    /// Its kind.
    pub kind: String,
    /// By the host's clock.
    pub wall_ms: i64,
    /// Since the host started.
    pub mono_us: i64,
    /// Its hash, hexadecimal.
    pub hash: String,
    /// Digest of the blob that its payload is.
    pub blob: Option<String>,
    /// The payload as it stands in the store.
    payload: Option<Value>,
    /// The same, where it is not canonical JSON.
    payload_b64: Option<String>,
    /// The blob's content, of the first and the last event.
    pub content: Option<Value>,
}

impl EventLine {
    /// The bytes of the payload.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.payload, &self.payload_b64) {
            (Some(value), None) => canonical_json(value).ok(),
            (None, Some(text)) => B64.decode(text).ok(),
            _ => None,
        }
    }
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// Runs.
    pub runs: u64,
    /// Events.
    pub events: u64,
    /// Receipts.
    pub receipts: u64,
    /// Blobs that were copied.
    pub blobs: u64,
    /// Blobs that are missing or damaged, and were left out.
    pub blobs_missing: u64,
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Where it is written to.
    #[error("writing the bundle: {0}")]
    Write(#[from] io::Error),
    /// Where blobs are copied to.
    #[error("{}: {cause}", path.display())]
    Blobs {
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
}

/// Exports runs by their ids, all of them without any; `blobs` is a directory for the content that they refer to, made
/// when missing, with a file for each named by its SHA-256.
///
/// # Errors
/// [`StoreError::NoRun`]; the store's; whatever keeps it from writing.
pub fn export(
    reader: &Reader,
    runs: Option<&[String]>,
    to: &mut impl Write,
    blobs: Option<&Path>,
) -> Result<Exported, ExportError> {
    let failed = StoreError::of("exporting");
    let snapshot = reader.connection().unchecked_transaction().map_err(&failed)?;
    let mut out = Out { to, hash: Sha256::new(), lines: 0 };
    let mut done = Exported::default();
    let shelf = blobs.map(|path| Shelf::open(path, reader.place())).transpose()?;
    header(&snapshot, reader.place(), &mut out)?;
    let mut one = Runs { conn: &snapshot, place: reader.place(), shelf };
    let columns = verify::RUN_COLUMNS;
    match runs {
        Some(ids) => {
            for id in ids {
                let found = snapshot
                    .query_row(&format!("SELECT {columns} FROM runs WHERE id = ?1"), [id], verify::run_row)
                    .optional()
                    .map_err(&failed)?
                    .ok_or_else(|| StoreError::NoRun { run: id.clone() })?;
                one.run(found.0, &found.4, &mut out, &mut done)?;
            }
        }
        None => {
            let mut all =
                snapshot.prepare(&format!("SELECT {columns} FROM runs ORDER BY no")).map_err(&failed)?;
            let mut rows = all.query([]).map_err(&failed)?;
            while let Some(row) = rows.next().map_err(&failed)? {
                let found = verify::run_row(row).map_err(&failed)?;
                one.run(found.0, &found.4, &mut out, &mut done)?;
            }
        }
    }
    let sha256 = hex(&out.hash.clone().finalize());
    out.object("end", &serde_json::json!({ "lines": out.lines, "sha256": sha256 }))?;
    out.to.flush()?;
    Ok(done)
}

/// Writes lines and hashes them.
struct Out<'w, W: Write> {
    to: &'w mut W,
    hash: Sha256,
    lines: i64,
}

impl<W: Write> Out<'_, W> {
    fn line(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        self.hash.update(&line);
        self.lines += 1;
        self.to.write_all(&line)
    }

    fn object<T: Serialize>(&mut self, name: &str, value: &T) -> io::Result<()> {
        let mut line = format!("{{\"{name}\":").into_bytes();
        serde_json::to_writer(&mut line, value)?;
        line.push(b'}');
        self.line(line)
    }
}

fn header<W: Write>(conn: &Connection, place: &Place, out: &mut Out<'_, W>) -> Result<(), ExportError> {
    let store = conn
        .query_row("SELECT value FROM meta WHERE key = 'store'", [], |row| row.get(0))
        .optional()
        .map_err(StoreError::of("exporting"))?;
    // What is wrong with keys is the verifier's to say.
    let mut ignored = verify::Findings::default();
    let (keys, _) = verify::keys_of(place, &mut ignored)?;
    let mut rotations = Vec::new();
    if let Some(directory) = super::key::Keys::look(place)? {
        for name in directory.names()?.iter().filter(|name| name.ends_with(".rotation.json")) {
            if let Ok(Some(text)) = directory.read(name)
                && let Ok(text) = std::str::from_utf8(&text)
            {
                rotations.push(text.to_owned());
            }
        }
    }
    let header = Header {
        schema: BUNDLE_SCHEMA.to_owned(),
        store,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        keys: keys.iter().map(super::PublicKey::pem).collect(),
        rotations,
    };
    Ok(out.object("header", &header)?)
}

struct Runs<'c> {
    conn: &'c Connection,
    place: &'c Place,
    shelf: Option<Shelf<'c>>,
}

impl Runs<'_> {
    fn run<W: Write>(
        &mut self,
        no: i64,
        run: &RunRow,
        out: &mut Out<'_, W>,
        done: &mut Exported,
    ) -> Result<(), ExportError> {
        let failed = StoreError::of("exporting a run");
        out.object("run", run)?;
        done.runs += 1;
        let from = no.checked_shl(32).unwrap_or(0);
        let mut events = self
            .conn
            .prepare_cached(
                "SELECT at, kind, wall_ms, mono_us, payload, blob, hash FROM events WHERE at BETWEEN ?1 AND ?2 \
                 ORDER BY at",
            )
            .map_err(&failed)?;
        let mut rows = events.query([from, from | i64::from(u32::MAX)]).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            let at: i64 = row.get(0).map_err(&failed)?;
            let event = verify::read_event(row, at & i64::from(u32::MAX)).map_err(&failed)?;
            done.events += 1;
            self.event(&event, out, done)?;
        }
        for (table, sql) in TABLES {
            self.rows(table, sql, no, out)?;
        }
        let receipt: Option<String> = self
            .conn
            .prepare_cached("SELECT envelope FROM receipts WHERE run = ?1")
            .and_then(|mut find| find.query_row([no], |row| row.get(0)).optional())
            .map_err(&failed)?;
        if let Some(envelope) = receipt {
            done.receipts += 1;
            out.object("receipt", &serde_json::json!({ "run": run.id, "envelope": envelope }))?;
        }
        Ok(())
    }

    fn event<W: Write>(
        &mut self,
        event: &verify::EventRow<'_>,
        out: &mut Out<'_, W>,
        done: &mut Exported,
    ) -> Result<(), ExportError> {
        let text = |text: &str| serde_json::to_string(text).map_err(io::Error::from);
        let mut line = format!(
            "{{\"event\":{{\"seq\":{},\"kind\":{},\"wall_ms\":{},\"mono_us\":{},\"hash\":\"{}\"",
            event.seq,
            text(event.kind)?,
            event.wall_ms,
            event.mono_us,
            hex(event.hash)
        )
        .into_bytes();
        // As it is, when reading and writing it again gives the same bytes: then everybody can.
        let value: Option<Value> = serde_json::from_slice(event.payload).ok();
        let same = value.as_ref().and_then(|v| canonical_json(v).ok()).is_some_and(|b| b == event.payload);
        if same {
            line.extend_from_slice(b",\"payload\":");
            line.extend_from_slice(event.payload);
        } else {
            line.extend_from_slice(format!(",\"payload_b64\":\"{}\"", B64.encode(event.payload)).as_bytes());
        }
        let is = |kind: Kind| event.kind == kind.name();
        let mut wanted = Vec::new();
        let mut content = None;
        if let Some(blob) = event.blob {
            line.extend_from_slice(format!(",\"blob\":{}", text(blob)?).as_bytes());
            wanted.extend(event.stub());
            if is(Kind::Created) || is(Kind::Terminal) || is(Kind::Artifact) {
                content = verify::payload(self.place, event);
            }
            if let Some(content) = content.as_ref().filter(|_| !is(Kind::Artifact)) {
                line.extend_from_slice(b",\"content\":");
                line.extend_from_slice(content);
            }
        }
        line.extend_from_slice(b"}}");
        out.line(line)?;
        if let Some(shelf) = &self.shelf {
            if is(Kind::Artifact) || is(Kind::Terminal) {
                let value = content.and_then(|bytes| serde_json::from_slice(&bytes).ok()).or(value);
                value.iter().for_each(|value| verify::references(value, &mut wanted));
            }
            for (hex, _) in wanted {
                shelf.copy(&hex, done)?;
            }
        }
        Ok(())
    }

    /// Rows of a further table, each with its table's name and its columns.
    fn rows<W: Write>(
        &self,
        table: &str,
        sql: &str,
        no: i64,
        out: &mut Out<'_, W>,
    ) -> Result<(), ExportError> {
        let failed = StoreError::of("exporting a run");
        let mut read = self.conn.prepare_cached(sql).map_err(&failed)?;
        let names: Vec<String> = read.column_names().map(str::to_owned).collect();
        let mut rows = read.query([no]).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            let mut columns = serde_json::Map::new();
            for (n, name) in names.iter().enumerate() {
                use rusqlite::types::ValueRef;
                let value = match row.get_ref(n).map_err(&failed)? {
                    ValueRef::Null => Value::Null,
                    ValueRef::Integer(n) => n.into(),
                    ValueRef::Real(n) => n.into(),
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                    ValueRef::Blob(bytes) => hex(bytes).into(),
                };
                columns.insert(name.clone(), value);
            }
            out.object("row", &serde_json::json!({ "table": table, "columns": columns }))?;
        }
        Ok(())
    }
}

/// The directory that blobs are copied to.
struct Shelf<'p> {
    dir: OwnedFd,
    path: PathBuf,
    place: &'p Place,
}

impl<'p> Shelf<'p> {
    fn open(path: &Path, place: &'p Place) -> Result<Self, ExportError> {
        let failed = |e: Errno| ExportError::Blobs { path: path.to_owned(), cause: e.into() };
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(e)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        Ok(Self { dir, path: path.to_owned(), place })
    }

    /// Copies a blob; one that is there already stays.
    fn copy(&self, digest: &str, done: &mut Exported) -> Result<(), ExportError> {
        let failed = |e: Errno| ExportError::Blobs { path: self.path.join(digest), cause: e.into() };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.dir, digest, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => return Ok(()),
            Err(e) => return Err(failed(e)),
        };
        let mut hash = Sha256::new();
        let mut good = false;
        if let Ok((from, _)) = verify::file(self.place, digest) {
            let mut buffer = vec![0; 256 << 10];
            loop {
                match rustix::io::read(&from, &mut buffer) {
                    Ok(0) => break,
                    Ok(n) => {
                        hash.update(&buffer[..n]);
                        super::blob::write_all(&file, &buffer[..n]).map_err(failed)?;
                    }
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            good = hex(&hash.finalize()) == digest;
        }
        if good {
            done.blobs += 1;
        } else {
            // Nothing stands there under a name that it does not deserve.
            rustix::fs::unlinkat(&self.dir, digest, rustix::fs::AtFlags::empty()).map_err(failed)?;
            done.blobs_missing += 1;
        }
        Ok(())
    }
}

// A line of ours can be read back.
const _: () = assert!(EVENT_BYTES_MAX * 2 <= verify::LINE_BYTES_MAX);

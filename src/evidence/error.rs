//! Why the store could not do something: which step, on what, and what kind of cause, so that a full disk, a locked, a
//! damaged and a foreign database are told apart. Every one of them ends the run that needed the write
//! (`artifact_store`); what was accepted before stays valid.

use rusqlite::ErrorCode;
use rustix::io::Errno;
use std::path::PathBuf;

/// An error of the store. Cheap to clone: a failed commit is told to everyone who shared it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A system call on one of its files.
    #[error("{step} {}: {}", path.display(), std::io::Error::from(*errno))]
    Io {
        /// What was done.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// A file or directory that somebody else owns or may change, a link, or one with several names.
    #[error("{}: {why}", path.display())]
    Unsafe {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No room: the file system is full, or a quota is.
    #[error("{step}: the file system of the state directory is full")]
    Full {
        /// What was done.
        step: &'static str,
    },
    /// The file system or the database cannot be written.
    #[error("{step}: the state directory is read-only")]
    ReadOnly {
        /// What was done.
        step: &'static str,
    },
    /// Another process held the database for longer than 10 s.
    #[error("{step}: another process has the database locked (writer_in_use)")]
    Locked {
        /// What was done.
        step: &'static str,
    },
    /// A page, a row or the whole file is not what was written.
    #[error("{step}: the database is damaged: {detail}")]
    Damaged {
        /// What was done.
        step: &'static str,
        /// What was found.
        detail: String,
    },
    /// The file is not an evidence database.
    #[error("{} is no evidence database (application id {found:#010x})", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: i32,
    },
    /// Written by a newer Stockade.
    #[error("{} has schema {found}; this stockade knows {known} at most", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
        /// Ours.
        known: i32,
    },
    /// Written by an older Stockade, and only a writer upgrades.
    #[error("{} has schema {found}; a reader needs {known}", path.display())]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
        /// Ours.
        known: i32,
    },
    /// Its tables are not those of its version.
    #[error("{}: the tables are not those of schema {version}", path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// The version that it claims.
        version: i32,
    },
    /// There is no database yet.
    #[error("{}: nothing was recorded here yet", path.display())]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// No run of that name.
    #[error("no run {run}")]
    NoRun {
        /// As asked for.
        run: String,
    },
    /// What cannot name a run.
    #[error("`{run}` cannot name a run")]
    Name {
        /// As asked for.
        run: String,
    },
    /// The first digits of several runs.
    #[error("`{run}` may be any of {}{}", candidates.join(", "), if *more { " and more" } else { "" })]
    Ambiguous {
        /// As asked for.
        run: String,
        /// Those that it may be.
        candidates: Vec<String>,
        /// Whether there are more of them.
        more: bool,
    },
    /// The run has ended: nothing is added to it (AH-LIFE-1).
    #[error("run {run} has ended")]
    Ended {
        /// Which.
        run: String,
    },
    /// The run belongs to another owner.
    #[error("run {run} belongs to another process")]
    NotOurs {
        /// Which.
        run: String,
    },
    /// A value is larger than the format permits.
    #[error("{what}: {found} is more than {most}")]
    Bound {
        /// Which value.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The bound.
        most: u64,
    },
    /// The same phase of a call with another payload (MA-TLS-3).
    #[error("{what}: recorded already with another content (idempotency_conflict)")]
    Conflict {
        /// What.
        what: String,
    },
    /// A value has no canonical form.
    #[error("{what} cannot be encoded: {cause}")]
    Encoding {
        /// Which value.
        what: &'static str,
        /// Why.
        cause: String,
    },
    /// A key or signature that cannot be used.
    #[error("{}: {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The writer has stopped.
    #[error("{step}: the writer has stopped")]
    Stopped {
        /// What was done.
        step: &'static str,
    },
    /// A read or write of the database's files failed.
    #[error("{step}: {cause}")]
    Disk {
        /// What was done.
        step: &'static str,
        /// SQLite's words.
        cause: String,
    },
    /// Anything else that SQLite said.
    #[error("{step}: {cause}")]
    Database {
        /// What was done.
        step: &'static str,
        /// SQLite's words.
        cause: String,
    },
}

impl StoreError {
    /// For SQLite's error at a step.
    pub fn of(step: &'static str) -> impl Fn(rusqlite::Error) -> Self {
        move |e| Self::from_sqlite(step, &e)
    }

    fn from_sqlite(step: &'static str, e: &rusqlite::Error) -> Self {
        let detail = || e.to_string();
        let rusqlite::Error::SqliteFailure(inner, _) = e else {
            return match e {
                // What was read is not of the type that the schema gives it.
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..) => Self::Damaged { step, detail: detail() },
                _ => Self::Database { step, cause: detail() },
            };
        };
        match inner.code {
            ErrorCode::DiskFull => Self::Full { step },
            ErrorCode::ReadOnly => Self::ReadOnly { step },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
                Self::Locked { step }
            }
            ErrorCode::SystemIoFailure => Self::Disk { step, cause: detail() },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Damaged { step, detail: detail() },
            _ => Self::Database { step, cause: detail() },
        }
    }

    /// For an errno at a step on a path.
    pub fn io(step: &'static str, path: impl Into<PathBuf>, errno: Errno) -> Self {
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::Full { step },
            Errno::ROFS => Self::ReadOnly { step },
            errno => Self::Io { step, path: path.into(), errno },
        }
    }

    /// The same error, by its cause: SQLite says no more than "I/O error" where the shared memory beside the log does not
    /// fit. `room` says whether the file system has any.
    #[must_use]
    pub fn with_room(self, room: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Disk { step, .. } if !room() => Self::Full { step },
            other => other,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Full { .. } => {
                "free space there, remove old runs (stockade runs gc), or choose another --state-dir"
            }
            Self::ReadOnly { .. } => {
                "choose a writable --state-dir, or run without a record (--no-record) if your policy permits"
            }
            Self::Locked { .. } => "end the process that holds it, or try again",
            Self::Damaged { .. } | Self::Schema { .. } => {
                "look at it with `stockade runs verify --all`, keep the file as evidence, and start anew with another --state-dir"
            }
            Self::Newer { .. } => "use the newer stockade, or another --state-dir",
            Self::Older { .. } => "the next `stockade exec` upgrades it",
            Self::Foreign { .. } | Self::Unsafe { .. } => "choose another --state-dir",
            Self::NoRun { .. } => "`stockade runs list` shows what there is",
            Self::Absent { .. } => "`stockade exec` records each run; name where it did with --state-dir",
            Self::Name { .. } => {
                "write its id, the first 4 or more digits of it, or `last`; `stockade runs list` shows what there is"
            }
            Self::Ambiguous { .. } => "write more of its id",
            Self::Key { .. } => "mend or move the key file; a new key is made when there is none",
            _ => "choose another state directory with --state-dir, or mend this one",
        }
    }

    /// A stable name of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } | Self::Disk { .. } => "store_io",
            Self::Unsafe { .. } => "store_unsafe",
            Self::Full { .. } => "store_full",
            Self::ReadOnly { .. } => "store_read_only",
            Self::Locked { .. } => "writer_in_use",
            Self::Damaged { .. } => "store_damaged",
            Self::Foreign { .. } => "store_foreign",
            Self::Newer { .. } => "store_newer",
            Self::Older { .. } => "store_older",
            Self::Schema { .. } => "store_schema",
            Self::Absent { .. } => "store_absent",
            Self::NoRun { .. } => "no_such_run",
            Self::Name { .. } => "run_name",
            Self::Ambiguous { .. } => "run_ambiguous",
            Self::Ended { .. } => "run_ended",
            Self::NotOurs { .. } => "run_not_ours",
            Self::Bound { .. } => "record_too_large",
            Self::Conflict { .. } => "idempotency_conflict",
            Self::Encoding { .. } => "record_encoding",
            Self::Key { .. } => "signing_key",
            Self::Stopped { .. } => "writer_stopped",
            Self::Database { .. } => "store_database",
        }
    }
}

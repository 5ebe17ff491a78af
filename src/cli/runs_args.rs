//! `stockade runs` as typed. In small groups, as `exec` is: see [`super::args::Exec`].

use super::args::State;
use super::when;
use crate::base::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// `stockade runs …`.
#[derive(Debug, Subcommand)]
pub enum Runs {
    /// What ran, the newest first
    List(ListRuns),
    /// One run: what it was, in what containment, how it ended, what it used, what was denied
    Show(ShowRun),
    /// The events of a run, in order
    Events(EventsOf),
    /// The last events of a run; with --follow, those to come as well
    Tail(Tail),
    /// Prove that records are what was recorded: chains, rows, receipts, blobs
    Verify(Verify),
    /// Ask whether records make sense: what their parts say of each other, and what they lack
    Audit(Audit),
    /// Write runs as JSON lines, which `verify --bundle` proves anywhere
    Export(Export),
    /// Print the public key that receipts are signed with, or change keys
    Key(Key),
    /// Remove the records of runs that have ended: whole runs, the oldest first
    Gc(Gc),
}

/// `stockade runs verify`.
#[derive(Debug, Clone, Args)]
pub struct Verify {
    /// One run alone: its id, the first 4 or more digits of it, or `last` [default: all of the store]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Believe only receipts of this public key (PEM), not the keys that lie beside them
    #[arg(long, value_name = "FILE")]
    pub key: Vec<PathBuf>,
    /// Verify an export instead of the store
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "state_dir"])]
    pub bundle: Option<PathBuf>,
    #[command(flatten)]
    pub state_dir: State,
    /// As one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `stockade runs audit`.
#[derive(Debug, Clone, Args)]
pub struct Audit {
    /// Which: its id, the first 4 or more digits of it, or `last`
    #[arg(value_name = "RUN", default_value = crate::evidence::LAST)]
    pub run: String,
    /// Every run, the newest first; those with nothing to tell are only counted
    #[arg(long, conflicts_with = "run")]
    pub all: bool,
    #[command(flatten)]
    pub state_dir: State,
    /// As JSON, one line for each run
    #[arg(long)]
    pub json: bool,
}

/// `stockade runs export`.
#[derive(Debug, Clone, Args)]
pub struct Export {
    /// Which: ids, the first 4 or more digits of them, or `last`
    #[arg(value_name = "RUN", required_unless_present = "all", conflicts_with = "all")]
    pub run: Vec<String>,
    /// Every run
    #[arg(long)]
    pub all: bool,
    /// Copy the content that the runs refer to into DIR
    #[arg(long, value_name = "DIR")]
    pub blobs: Option<PathBuf>,
    #[command(flatten)]
    pub state_dir: State,
}

/// `stockade runs key`.
#[derive(Debug, Clone, Args)]
pub struct Key {
    /// Make a new key, vouched for by the old one
    #[arg(long)]
    pub rotate: bool,
    #[command(flatten)]
    pub state_dir: State,
}

impl Runs {
    /// How often a repeatable flag is given.
    pub fn kinds(&self) -> usize {
        match self {
            Self::Events(args) => args.kind.len(),
            Self::Tail(args) => args.kind.len(),
            Self::Verify(args) => args.key.len(),
            Self::Export(args) => args.run.len(),
            Self::List(_) | Self::Show(_) | Self::Audit(_) | Self::Key(_) | Self::Gc(_) => 0,
        }
    }
}

/// A state, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InState {
    /// Not ended
    Running,
    /// Did what was asked, whatever its exit code
    Completed,
    /// A limit, a refusal, a fault, or an owner that died
    Failed,
    /// Its caller asked for the end
    Cancelled,
}

/// Which runs, by what they are.
#[derive(Debug, Clone, Default, Args)]
pub struct What {
    /// Under profile NAME
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// With the name that the caller gave it
    #[arg(long, value_name = "NAME")]
    pub correlation: Option<String>,
    /// Of this kind, such as `exec`
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// In workspace DIR, as `runs show` has it
    #[arg(short, long, value_name = "DIR")]
    pub workspace: Option<String>,
    /// Whose command line has TEXT in it
    #[arg(long, value_name = "TEXT")]
    pub command: Option<String>,
}

/// Which runs, by how and when they went.
#[derive(Debug, Clone, Default, Args)]
pub struct Went {
    /// In this state
    #[arg(long, value_name = "STATE", value_enum)]
    pub state: Option<InState>,
    /// Failed or cancelled, or with another exit code than 0
    #[arg(long)]
    pub failed: bool,
    /// With exit code N
    #[arg(long, value_name = "N")]
    pub exit_code: Option<u8>,
    /// Begun at WHEN or later: an age such as 30m, 12h or 7d, or a time such as 2026-03-01 or 2026-03-01T12:30 (UTC)
    #[arg(long, value_name = "WHEN", value_parser = when::parse)]
    pub since: Option<when::When>,
    /// Begun before WHEN
    #[arg(long, value_name = "WHEN", value_parser = when::parse)]
    pub until: Option<when::When>,
}

/// Which page.
#[derive(Debug, Clone, Args)]
pub struct Page {
    /// At most N runs
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// The page after the run with number N, which the last line of a page names, and `no` in JSON
    #[arg(long, value_name = "N")]
    pub after: Option<i64>,
}

/// `stockade runs list`.
#[derive(Debug, Clone, Args)]
pub struct ListRuns {
    #[command(flatten)]
    pub what: What,
    #[command(flatten)]
    pub went: Went,
    #[command(flatten)]
    pub page: Page,
    #[command(flatten)]
    pub state_dir: State,
    /// As JSON, one run in a line
    #[arg(long)]
    pub json: bool,
}

/// `stockade runs show`.
#[derive(Debug, Clone, Args)]
pub struct ShowRun {
    /// Which: its id, the first 4 or more digits of it, or `last`
    #[arg(value_name = "RUN", default_value = crate::evidence::LAST)]
    pub run: String,
    #[command(flatten)]
    pub state_dir: State,
    /// As one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `stockade runs events`.
#[derive(Debug, Clone, Args)]
pub struct EventsOf {
    /// Which: its id, the first 4 or more digits of it, or `last`
    #[arg(value_name = "RUN", default_value = crate::evidence::LAST)]
    pub run: String,
    /// Only events of KIND, such as run.terminal; may be repeated
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// At most N events [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<u64>,
    /// The events after number N
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub after: i64,
    #[command(flatten)]
    pub state_dir: State,
    /// As JSON, one event in a line, with its whole payload
    #[arg(long)]
    pub json: bool,
}

/// `stockade runs tail`.
#[derive(Debug, Clone, Args)]
pub struct Tail {
    /// Which: its id, the first 4 or more digits of it, or `last`
    #[arg(value_name = "RUN", default_value = crate::evidence::LAST)]
    pub run: String,
    /// Go on until the run has ended
    #[arg(short, long)]
    pub follow: bool,
    /// The last N events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub limit: u64,
    /// Only events of KIND; may be repeated
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    #[command(flatten)]
    pub state_dir: State,
    /// As JSON, one event in a line, with its whole payload
    #[arg(long)]
    pub json: bool,
}

/// What is kept.
#[derive(Debug, Clone, Default, Args)]
pub struct Keep {
    /// Remove runs that ended longer ago than AGE, such as 12h or 30d
    #[arg(long, value_name = "AGE", value_parser = when::age)]
    pub older_than: Option<Duration>,
    /// Keep only the newest N of the runs that have ended
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u64>,
    /// Remove the oldest until all payloads together are at most SIZE, such as 2GiB
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<ByteSize>,
}

/// `stockade runs gc`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A run that has not ended is never removed. Of each removed run an entry stays in the ledger, which says which and \
                  when. Without any limit only what no run refers to is removed: plans, and files that killed writers left."
)]
pub struct Gc {
    #[command(flatten)]
    pub keep: Keep,
    /// Remove nothing, and say what would be
    #[arg(long)]
    pub dry_run: bool,
    /// Give freed space of the database back to the file system; needs room for a second copy, and nothing can be
    /// recorded until it is done
    #[arg(long, conflicts_with = "dry_run")]
    pub vacuum: bool,
    #[command(flatten)]
    pub state_dir: State,
    /// As one JSON document
    #[arg(long)]
    pub json: bool,
}

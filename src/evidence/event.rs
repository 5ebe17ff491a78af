//! What is recorded of a run: kinds of events, their payloads as canonical bytes with a bound, and the two payloads that
//! every run has, its beginning and its end.

use super::{Hash, StoreError};
use crate::base::canonical_json;
use serde::Serialize;

/// Bytes of a payload that stand in the database; a larger one becomes a blob.
pub const INLINE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a payload at most.
pub const EVENT_BYTES_MAX: usize = 64 << 20;

/// The kinds of events. What a kind means is in `docs/evidence.md`; readers take kinds that they do not know as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The run was accepted: its snapshot. First of all.
    Created,
    /// Work on it began.
    Running,
    /// A tool call began.
    ToolStarted,
    /// Which protections were in force.
    Enforcement,
    /// What the network decided.
    Network,
    /// Something was noted by the supervisor.
    Note,
    /// Content that the run left: a blob and what it is.
    Artifact,
    /// A tool call ended.
    ToolEnded,
    /// The end, state and all. Last of all.
    Terminal,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Created,
        Self::Running,
        Self::ToolStarted,
        Self::Enforcement,
        Self::Network,
        Self::Note,
        Self::Artifact,
        Self::ToolEnded,
        Self::Terminal,
    ];

    /// Its name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "run.created",
            Self::Running => "run.running",
            Self::ToolStarted => "tool.started",
            Self::Enforcement => "sandbox.enforcement",
            Self::Network => "network.decision",
            Self::Note => "note",
            Self::Artifact => "artifact",
            Self::ToolEnded => "tool.ended",
            Self::Terminal => "run.terminal",
        }
    }
}

/// The states of a run (AH-LIFE-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Accepted, and not yet ended.
    Running,
    /// It did what was asked; a command that exits with another status than 0 has completed as well.
    Completed,
    /// A limit, a refusal, a fault, or an owner that died.
    Failed,
    /// Its caller asked for the end.
    Cancelled,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    /// Its name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// When something was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Milliseconds since 1970 by the host's clock, which may be set back: order is `seq`'s alone.
    pub wall_ms: i64,
    /// Microseconds since the host started, suspended time included. `CLOCK_BOOTTIME`, clock_gettime(2).
    pub mono_us: i64,
}

impl Stamp {
    /// Now, by both clocks.
    pub fn now() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        let wall = clock_gettime(ClockId::Realtime);
        let mono = clock_gettime(ClockId::Boottime);
        Self {
            wall_ms: wall.tv_sec.saturating_mul(1000).saturating_add(wall.tv_nsec / 1_000_000),
            mono_us: mono.tv_sec.saturating_mul(1_000_000).saturating_add(mono.tv_nsec / 1000),
        }
    }
}

/// A payload: canonical JSON, an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Of a value that serialises to an object.
    ///
    /// # Errors
    /// When it holds a float, or is longer than [`EVENT_BYTES_MAX`].
    pub fn of<T: Serialize>(value: &T) -> Result<Self, StoreError> {
        let bytes = canonical_json(value)
            .map_err(|e| StoreError::Encoding { what: "an event", cause: e.to_string() })?;
        if bytes.len() > EVENT_BYTES_MAX {
            return Err(StoreError::Bound {
                what: "bytes of an event",
                found: bytes.len() as u64,
                most: EVENT_BYTES_MAX as u64,
            });
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text; canonical JSON is UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The payload of [`Kind::Created`]: what lists show, and the whole snapshot (AH-INV-2).
#[derive(Debug, Clone, Serialize)]
pub struct Created<S> {
    /// The version of the payload's format.
    pub schema: &'static str,
    /// `exec`; other kinds of runs have other names.
    pub kind: &'static str,
    /// The profile's name.
    pub profile: Option<String>,
    /// The command in one line, redacted and bounded.
    pub command: Option<String>,
    /// The workspace, as it was resolved.
    pub workspace: Option<String>,
    /// The caller's own name for the run: data, never a path.
    pub correlation: Option<String>,
    /// Everything that has authority over the run.
    pub snapshot: S,
}

/// The payload of [`Kind::Terminal`].
#[derive(Debug, Clone, Serialize)]
pub struct Terminal<D> {
    /// The version of the payload's format.
    pub schema: &'static str,
    /// `completed`, `failed` or `cancelled`.
    pub state: State,
    /// Why, in one word: `exited`, `signal`, `limit`, `refused`, `broken`, `cancelled`, `interrupted`.
    pub reason: &'static str,
    /// The exit code that the caller is told.
    pub exit_code: Option<u8>,
    /// The boundary that failed, when one did.
    pub boundary: Option<&'static str>,
    /// The rest.
    pub detail: D,
}

/// An event that stands in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Its place in the run, from 1.
    pub seq: i64,
    /// Its hash.
    pub hash: Hash,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_come_back() {
        for (n, kind) in Kind::ALL.iter().enumerate() {
            assert!(Kind::ALL.iter().skip(n + 1).all(|k| k.name() != kind.name()));
        }
        for state in State::ALL {
            assert_eq!(State::parse(state.name()), Some(state));
        }
        assert_eq!(State::parse("interrupted"), None);
    }

    #[test]
    fn payloads_are_canonical_and_bounded() {
        let payload = Payload::of(&serde_json::json!({"b": 1, "a": [true]})).unwrap();
        assert_eq!(payload.text(), r#"{"a":[true],"b":1}"#);
        assert!(matches!(Payload::of(&serde_json::json!({"f": 0.5})), Err(StoreError::Encoding { .. })));
        let long = "x".repeat(EVENT_BYTES_MAX);
        assert!(matches!(Payload::of(&serde_json::json!({ "long": long })), Err(StoreError::Bound { .. })));
    }
}

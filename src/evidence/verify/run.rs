//! One run's events, one after the other: the chain is computed anew, and at the end everything that is said of the run
//! elsewhere (its row, the ledger, its receipt) is compared with what the events say. The same for a store and a bundle.

use super::{Findings, What};
use crate::base::Digest;
use crate::evidence::chain::{Hash, event_hash, genesis};
use crate::evidence::event::{Kind, State};
use crate::evidence::key::Trusted;
use crate::evidence::receipt::Receipt;
use serde_json::Value;

/// What lists show of a run, as it is stored.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRow {
    /// Its id.
    pub id: String,
    /// `exec` and the like.
    pub kind: String,
    /// The profile's name.
    pub profile: Option<String>,
    /// The command.
    pub command: Option<String>,
    /// The workspace.
    pub workspace: Option<String>,
    /// The caller's name for it.
    pub correlation: Option<String>,
    /// Digest of the plan.
    pub plan: Option<String>,
    /// Its state.
    pub state: String,
    /// Why it ended.
    pub reason: Option<String>,
    /// What the caller was told.
    pub exit_code: Option<i64>,
    /// When it was accepted.
    pub created_ms: i64,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// How many events it has.
    pub events: i64,
    /// Bytes of their payloads.
    pub bytes: i64,
    /// The last event's hash, hexadecimal.
    pub head: String,
}

/// An event, as it is stored.
#[derive(Debug)]
pub struct EventRow<'a> {
    /// Its place, from 1.
    pub seq: i64,
    /// Its kind.
    pub kind: &'a str,
    /// By the host's clock.
    pub wall_ms: i64,
    /// Since the host started.
    pub mono_us: i64,
    /// The payload, or what stands for it.
    pub payload: &'a [u8],
    /// Digest of the payload when it is a blob, hexadecimal.
    pub blob: Option<&'a str>,
    /// The stored hash.
    pub hash: &'a [u8],
}

impl EventRow<'_> {
    /// Digest and length of the blob, from what stands for the payload.
    pub fn stub(&self) -> Option<(String, u64)> {
        self.blob?;
        let stub: Value = serde_json::from_slice(self.payload).ok()?;
        reference(&stub)
    }
}

/// The blob that a JSON object refers to.
pub fn reference(value: &Value) -> Option<(String, u64)> {
    let hex = value.get("blob")?.as_str()?.strip_prefix("sha256:")?;
    let is_digest = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_digest.then(|| Some((hex.to_owned(), value.get("bytes")?.as_u64()?)))?
}

/// Every blob that a value refers to, wherever it stands.
pub fn references(value: &Value, found: &mut Vec<(String, u64)>) {
    found.extend(reference(value));
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(members) => members.values().for_each(|member| references(member, found)),
        _ => {}
    }
}

/// Where the bytes of blobs are.
pub trait Content {
    /// Checks a blob's bytes and length against its digest; says what is wrong.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    fn check(&mut self, hex: &str, bytes: u64) -> Result<(), String>;
    /// The bytes of a payload that is a blob; `None` when they cannot be had.
    fn payload(&mut self, event: &EventRow<'_>) -> Option<Vec<u8>>;
}

/// What the first event says.
struct First {
    hash: Hash,
    wall_ms: i64,
    created: Option<Value>,
}

/// What the terminal event says.
struct Last {
    wall_ms: i64,
    terminal: Option<Value>,
}

/// Hash and time (`wall_ms`) of an event.
pub type Link = (Hash, i64);

/// The fold over the events of a run.
pub struct Fold {
    id: String,
    prev: Option<Hash>,
    next: i64,
    count: i64,
    bytes: i64,
    first: Option<First>,
    last: Option<Last>,
    /// Plans that the run was tried with.
    plans: Vec<String>,
}

impl Fold {
    /// Before the first event.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            prev: Some(genesis(id)),
            next: 1,
            count: 0,
            bytes: 0,
            first: None,
            last: None,
            plans: Vec::new(),
        }
    }

    /// The next event.
    pub fn event(&mut self, event: &EventRow<'_>, content: &mut dyn Content, out: &mut Findings) {
        let seq = event.seq;
        let mut say = |what: What, detail: String| out.add(what, Some(&self.id), Some(seq), "events", detail);
        self.count += 1;
        if seq != self.next {
            let detail = if seq > self.next {
                format!("events {} to {} are missing", self.next, seq - 1)
            } else {
                format!("event {seq} stands where {} belongs", self.next)
            };
            say(What::Gap, detail);
            // What it followed is not known.
            self.prev = None;
        }
        self.next = seq.saturating_add(1);
        let stored = Hash::from_slice(event.hash);
        if stored.is_none() {
            say(What::Changed, "its hash has another length".to_owned());
        }
        if let (Some(prev), Some(stored)) = (self.prev, stored) {
            let times = (event.wall_ms, event.mono_us);
            let spilled = event.blob.is_some();
            if event_hash(&prev, seq, event.kind, times, spilled, event.payload) != stored {
                say(What::Changed, "its hash is not that of its content after the event before".to_owned());
            }
        }
        self.prev = stored;
        if self.last.is_some() {
            say(What::Order, format!("{} stands after the end of the run", event.kind));
        }
        let is = |kind: Kind| event.kind == kind.name();
        if is(Kind::Created) != (seq == 1) {
            say(What::Order, format!("event {seq} is {}", event.kind));
        }
        let mut length = event.payload.len() as u64;
        if let Some(blob) = event.blob {
            match event.stub() {
                Some((hex, bytes)) if hex == blob => {
                    length = bytes;
                    if let Err(why) = content.check(&hex, bytes) {
                        say(What::Blob, format!("its payload, blob {hex}: {why}"));
                    }
                }
                _ => say(
                    What::Changed,
                    "the blob that it names is not the one that it was recorded with".to_owned(),
                ),
            }
        }
        self.bytes = self.bytes.saturating_add(i64::try_from(length).unwrap_or(i64::MAX));
        // The supervisor's own words; what a tool or a model said is not followed.
        let ours = is(Kind::Created) || is(Kind::Running) || is(Kind::Terminal) || is(Kind::Artifact);
        let value: Option<Value> = if ours {
            match event.blob {
                Some(_) => content.payload(event).and_then(|bytes| serde_json::from_slice(&bytes).ok()),
                None => serde_json::from_slice(event.payload).ok(),
            }
        } else {
            None
        };
        if value.is_none() && (is(Kind::Created) || is(Kind::Terminal) || (ours && event.blob.is_none())) {
            say(What::Changed, "its payload cannot be read".to_owned());
        }
        if is(Kind::Artifact) || is(Kind::Terminal) {
            let mut found = Vec::new();
            value.iter().for_each(|value| references(value, &mut found));
            for (hex, bytes) in found {
                if let Err(why) = content.check(&hex, bytes) {
                    say(What::Blob, format!("blob {hex}: {why}"));
                }
            }
        }
        if is(Kind::Running)
            && let Some(plan) = value.as_ref().and_then(|v| v.get("plan_digest")).and_then(Value::as_str)
            && !self.plans.iter().any(|known| known == plan)
            && self.plans.len() < PLANS_MAX
        {
            self.plans.push(plan.to_owned());
        }
        if is(Kind::Terminal) {
            self.last = Some(Last { wall_ms: event.wall_ms, terminal: value });
        } else if self.first.is_none() {
            let hash = stored.unwrap_or(genesis(""));
            self.first = Some(First { hash, wall_ms: event.wall_ms, created: value });
        }
    }

    /// Digests of plans that the run was tried with.
    pub fn plans(&self) -> &[String] {
        &self.plans
    }

    /// Beginning and end, as the ledger has them.
    pub fn ends(&self) -> (Option<Link>, Option<Link>) {
        let begin = self.first.as_ref().map(|first| (first.hash, first.wall_ms));
        let end = self.last.as_ref().and_then(|last| Some((self.prev?, last.wall_ms)));
        (begin, end)
    }

    /// Compares the row with the events.
    pub fn row(&self, row: &RunRow, out: &mut Findings) {
        let mut differ = |column: &str| {
            let detail = format!("`{column}` is not what the events say");
            out.add(What::Row, Some(&self.id), None, "runs", detail);
        };
        let same = |field: Option<&Value>, column: Option<&str>| match (field, column) {
            (Some(Value::String(said)), Some(column)) => said == column,
            (None | Some(Value::Null), None) => true,
            _ => false,
        };
        match &self.first {
            None => differ("events"),
            Some(first) => {
                if let Some(created) = &first.created {
                    for (name, column) in [
                        ("kind", Some(&*row.kind)),
                        ("profile", row.profile.as_deref()),
                        ("command", row.command.as_deref()),
                        ("workspace", row.workspace.as_deref()),
                        ("correlation", row.correlation.as_deref()),
                    ] {
                        if !same(created.get(name), column) {
                            differ(name);
                        }
                    }
                    let plan = created.get("snapshot").and_then(|s| s.get("plan_digest"));
                    if !same(plan, row.plan.as_deref()) {
                        differ("plan");
                    }
                }
                if first.wall_ms != row.created_ms {
                    differ("created_ms");
                }
            }
        }
        let ended = self.last.as_ref().map(|last| last.wall_ms);
        if ended != row.ended_ms {
            differ("ended_ms");
        }
        match &self.last {
            None => {
                let running = row.state == State::Running.name();
                if !running || row.reason.is_some() || row.exit_code.is_some() {
                    differ("state");
                }
            }
            Some(last) => {
                if row.state == State::Running.name() || State::parse(&row.state).is_none() {
                    differ("state");
                }
                if let Some(terminal) = &last.terminal {
                    if !same(terminal.get("state"), Some(&row.state)) {
                        differ("state");
                    }
                    if !same(terminal.get("reason"), row.reason.as_deref()) {
                        differ("reason");
                    }
                    if terminal.get("exit_code").and_then(Value::as_i64) != row.exit_code {
                        differ("exit_code");
                    }
                }
            }
        }
        if self.count != row.events {
            differ("events");
        }
        if self.bytes != row.bytes {
            differ("bytes");
        }
        if self.prev.map(|head| head.hex()).as_ref() != Some(&row.head) {
            differ("head");
        }
    }

    /// Checks a receipt's signature, and what it says against the events.
    pub fn receipt(&self, envelope: &[u8], row: &RunRow, trusted: &Trusted, out: &mut Findings) {
        let mut say = |what, detail| out.add(what, Some(&self.id), None, "receipts", detail);
        let receipt = match Receipt::open(envelope, trusted) {
            Ok(receipt) => receipt,
            Err(why) => return say(What::Signature, why.to_string()),
        };
        let terminal = self.last.as_ref().and_then(|last| last.terminal.as_ref());
        let chain = receipt.field("chain");
        let mut agrees = |name: &str, agree: bool| {
            if !agree {
                say(What::Receipt, format!("its `{name}` is not what the events say"));
            }
        };
        agrees("run", receipt.field("run") == &*self.id);
        agrees("events", chain["events"].as_i64() == Some(self.count));
        agrees("head", chain["head"].as_str() == self.prev.map(|head| head.hex()).as_deref());
        agrees("state", receipt.field("state") == &*row.state);
        agrees("reason", receipt.field("reason").as_str() == row.reason.as_deref());
        agrees("exit_code", receipt.field("exit_code").as_i64() == row.exit_code);
        let plan = receipt.field("plan_digest").as_str();
        let known = |plan| self.plans.iter().map(|p| &**p).chain(row.plan.as_deref()).any(|p| p == plan);
        agrees("plan_digest", plan.is_none_or(known));
        for (name, sha256) in receipt.outputs() {
            let said = terminal.and_then(|t| t["detail"][name]["sha256"].as_str());
            let said = said.map(|said| said.strip_prefix("sha256:").unwrap_or(said));
            if terminal.is_some() && matches!(name, "stdout" | "stderr") {
                agrees(name, said.is_none_or(|said| said == sha256));
            }
        }
    }
}

/// Plans that one run is tried with at most: the recorder tries two.
const PLANS_MAX: usize = 8;

/// The digest by which the ledger knows a receipt, or an owner.
pub fn also(bytes: &[u8]) -> Hash {
    Hash(*Digest::of(bytes).bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Content for Nothing {
        fn check(&mut self, _: &str, _: u64) -> Result<(), String> {
            Err("it is missing".to_owned())
        }
        fn payload(&mut self, _: &EventRow<'_>) -> Option<Vec<u8>> {
            None
        }
    }

    /// The findings of a run with these kinds, payloads and times of events.
    fn folded(events: &[(&str, &str, i64)]) -> Vec<What> {
        let (mut fold, mut out) = (Fold::new("r"), Findings::default());
        let mut prev = genesis("r");
        for (seq, (kind, payload, wall_ms)) in (1..).zip(events) {
            let payload = payload.as_bytes();
            prev = event_hash(&prev, seq, kind, (*wall_ms, -wall_ms), false, payload);
            let (wall_ms, mono_us, hash) = (*wall_ms, -wall_ms, &prev.0[..]);
            fold.event(
                &EventRow { seq, kind, wall_ms, mono_us, payload, blob: None, hash },
                &mut Nothing,
                &mut out,
            );
        }
        out.end().findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn order_is_the_sequence_and_not_a_clock() {
        let run = [
            ("run.created", "{}", 9000),
            ("note", "{}", 5),
            ("note", "no JSON", -7),
            ("run.terminal", "{}", 1),
        ];
        assert_eq!(folded(&run), []);
        assert_eq!(folded(&run[..1]), []);
    }

    #[test]
    fn created_first_and_terminal_last() {
        let (created, note, end) = (("run.created", "{}", 1), ("note", "{}", 2), ("run.terminal", "{}", 3));
        assert_eq!(folded(&[note, end]), [What::Order]);
        assert_eq!(folded(&[created, created, end]), [What::Order]);
        assert_eq!(folded(&[created, end, note]), [What::Order]);
        assert_eq!(folded(&[created, end, end]), [What::Order]);
        assert_eq!(folded(&[created, ("run.terminal", "{", 3)]), [What::Changed]);
    }

    #[test]
    fn blobs_are_followed_where_the_words_are_ours() {
        let refers = format!(r#"{{"a":[{{"blob":"sha256:{}","bytes":1}}]}}"#, "ab".repeat(32));
        let of = |kind| folded(&[("run.created", "{}", 1), (kind, &refers, 2)]);
        assert_eq!(of("artifact"), [What::Blob]);
        assert_eq!(of("tool.started"), []);
        // As deep as a reader goes, and no deeper.
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(folded(&[("run.created", "{}", 1), ("artifact", &deep, 2)]), [What::Changed]);
    }
}

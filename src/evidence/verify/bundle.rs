//! Verification of an exported bundle, with nothing but the bundle and a public key. A run's events are covered by its
//! receipt's signature, so a bundle proves each run that has ended on its own; that no run was left out it cannot prove.

use super::run::{Content, EventRow, Fold, RunRow};
use super::{Findings, Verification, What};
use crate::base::{Digest, canonical_json};
use crate::evidence::dsse::Envelope;
use crate::evidence::event::EVENT_BYTES_MAX;
use crate::evidence::export::{BUNDLE_SCHEMA, EventLine, Header, Line, TABLES};
use crate::evidence::key::{PublicKey, Trusted};
use sha2::{Digest as _, Sha256};
use std::io::{BufRead, Read as _};

/// Bytes of a line at most: an event, a payload that is a blob, and their escapes.
pub const LINE_BYTES_MAX: usize = 2 * EVENT_BYTES_MAX;

/// Verifies a bundle. `keys` are what is trusted; without them the keys that the bundle names itself are believed, which
/// proves that it was not damaged, and nothing about who made it.
///
/// # Errors
/// When it cannot be read.
pub fn verify_bundle(mut from: impl BufRead, keys: Option<Trusted>) -> std::io::Result<Verification> {
    let mut check = Check {
        pinned: keys.is_some(),
        trusted: keys.unwrap_or_default(),
        out: Findings::default(),
        run: None,
        stage: Stage::Header,
        hash: Sha256::new(),
        line: 0,
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let n = from.by_ref().take(most).read_until(b'\n', &mut line)?;
        if n == 0 {
            break;
        }
        check.line += 1;
        if n > LINE_BYTES_MAX {
            check.say(What::Form, "the line is too long; nothing after it was read".to_owned());
            break;
        }
        if line.pop() != Some(b'\n') {
            check.say(What::Form, "the last line has no end".to_owned());
            break;
        }
        check.line(&line);
    }
    if check.stage != Stage::Done {
        check.close();
        check.say(What::Form, "the bundle ends before its last line".to_owned());
    }
    let mut done = check.out.end();
    done.pinned = check.pinned;
    Ok(done)
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Stage {
    Header,
    Runs,
    Done,
}

struct Check {
    pinned: bool,
    trusted: Trusted,
    out: Findings,
    run: Option<Open>,
    stage: Stage,
    hash: Sha256,
    line: i64,
}

/// The run whose lines are being read.
struct Open {
    row: RunRow,
    fold: Fold,
    receipt: Option<String>,
}

impl Check {
    fn say(&mut self, what: What, detail: String) {
        self.out.add(what, None, Some(self.line), "bundle", detail);
    }

    fn line(&mut self, bytes: &[u8]) {
        self.out.hashed(bytes.len() + 1);
        if self.stage == Stage::Done {
            return self.say(What::Form, "a line after the last".to_owned());
        }
        let line: Line = match serde_json::from_slice(bytes) {
            Ok(line) => line,
            Err(e) => {
                self.hash(bytes);
                return self.say(What::Form, format!("it is no line of a bundle: {e}"));
            }
        };
        if (self.stage == Stage::Header) != matches!(line, Line::Header(_)) {
            self.say(What::Form, "the header is not the first line".to_owned());
        }
        self.stage = Stage::Runs;
        match line {
            Line::Header(header) => self.header(header),
            Line::Run(row) => {
                self.close();
                self.run = Some(Open { fold: Fold::new(&row.id), row, receipt: None });
            }
            Line::Event(event) => self.event(&event),
            Line::Row { table, columns } => {
                self.out.counts().rows += 1;
                if columns.is_empty() || !TABLES.iter().any(|(name, _)| *name == table) {
                    self.say(What::Form, format!("a row of `{table}`, which is no table of runs"));
                }
            }
            Line::Receipt { run, envelope } => match &mut self.run {
                Some(open) if open.receipt.is_none() && open.row.id == run => open.receipt = Some(envelope),
                _ => self.say(What::Form, "a receipt that belongs to no run".to_owned()),
            },
            Line::End { lines, sha256 } => {
                self.close();
                let computed = crate::base::canon::hex(&self.hash.clone().finalize());
                if lines != self.line - 1 || sha256 != computed {
                    self.say(What::Form, "the lines before it are not those that were written".to_owned());
                }
                self.stage = Stage::Done;
            }
        }
        self.hash(bytes);
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.hash.update(b"\n");
    }

    fn header(&mut self, header: Header) {
        if header.schema != BUNDLE_SCHEMA {
            self.say(What::Form, format!("`{}` is not a schema of bundles", header.schema));
        }
        let mut rotations = Vec::new();
        for text in &header.rotations {
            match Envelope::parse(text.as_bytes()) {
                Ok(envelope) => rotations.push(envelope),
                Err(why) => self.say(What::Key, format!("a rotation: {why}")),
            }
        }
        for pem in &header.keys {
            match PublicKey::from_pem(pem.as_bytes()) {
                Some(_) if self.pinned => {}
                Some(key) => self.trusted.add(key),
                None => self.say(What::Key, "a key is no ed25519 public key in PEM".to_owned()),
            }
        }
        self.out.counts().keys = header.keys.len() as u64;
        self.trusted.follow(&rotations);
    }

    fn event(&mut self, event: &EventLine) {
        let Some(open) = self.run.as_mut() else {
            return self.say(What::Form, "an event that belongs to no run".to_owned());
        };
        let (Some(payload), Some(hash)) = (event.bytes(), unhex(&event.hash)) else {
            return self.say(What::Form, "an event whose payload or hash cannot be read".to_owned());
        };
        let row = EventRow {
            seq: event.seq,
            kind: &event.kind,
            wall_ms: event.wall_ms,
            mono_us: event.mono_us,
            payload: &payload,
            blob: event.blob.as_deref(),
            hash: &hash,
        };
        self.out.counts().events += 1;
        let content = event.content.as_ref().and_then(|content| canonical_json(content).ok());
        open.fold.event(&row, &mut Carried(content), &mut self.out);
    }

    /// The run's lines are over.
    fn close(&mut self) {
        let Some(Open { row, fold, receipt }) = self.run.take() else { return };
        self.out.counts().runs += 1;
        self.out.counts().running += u64::from(row.ended_ms.is_none());
        fold.row(&row, &mut self.out);
        match receipt {
            Some(envelope) => {
                self.out.counts().receipts += 1;
                fold.receipt(envelope.as_bytes(), &row, &self.trusted, &mut self.out);
            }
            None if fold.ends().1.is_some() => {
                let detail = "it has ended and has no receipt: nothing proves what is said of it".to_owned();
                self.out.add(What::Unsigned, Some(&row.id), None, "bundle", detail);
            }
            None => {}
        }
    }
}

/// A payload that is a blob and was written into the bundle.
struct Carried(Option<Vec<u8>>);

impl Content for Carried {
    fn check(&mut self, _: &str, _: u64) -> Result<(), String> {
        // Blobs are files beside a bundle; sha256sum(1) checks those.
        Ok(())
    }

    fn payload(&mut self, event: &EventRow<'_>) -> Option<Vec<u8>> {
        let (hex, _) = event.stub()?;
        self.0.take().filter(|content| Digest::of(content).hex() == hex)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(pair).collect()
}

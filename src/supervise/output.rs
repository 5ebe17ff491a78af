//! One captured stream, bounded: everything is counted, the head and the tail are kept. Pure: the caller
//! reads the pipe and forwards or drops what the answer says.
//!
//! A payload decides how much is written and how it is cut into pieces, so nothing here may depend on the
//! pieces: what is kept is a function of the concatenated stream alone (property-tested below).

use crate::base::{Digest, Digester};
use crate::policy::OutputAction;
use std::io::Write;

/// Bytes of the head that are kept at most.
pub const HEAD_BYTES_MAX: usize = 512 * 1024;
/// Bytes of the tail that are kept at most.
pub const TAIL_BYTES_MAX: usize = 512 * 1024;

/// What to do with the piece that was just pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// How many of its leading bytes lie within the limit; a forwarder passes on only these.
    pub within: usize,
    /// The limit was exceeded for the first time and its action is to kill.
    pub kill: bool,
}

/// The state of one stream.
#[derive(Debug)]
pub struct Capture {
    head: Vec<u8>,
    tail: Ring,
    head_max: usize,
    total: u64,
    limit: Option<u64>,
    action: OutputAction,
    digester: Option<Digester>,
}

/// What a finished stream left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The first bytes; the whole stream when nothing was omitted.
    pub head: Vec<u8>,
    /// The last bytes, when something between was omitted; else empty.
    pub tail: Vec<u8>,
    /// Bytes between head and tail that were counted and dropped.
    pub omitted: u64,
    /// Bytes that the stream had.
    pub total: u64,
    /// The limit that the stream went beyond, when it did.
    pub exceeded: Option<u64>,
    /// Digest of the bytes within the limit, when it was asked for.
    pub digest: Option<Digest>,
}

impl Capture {
    /// For a stream that may have `limit` bytes (`None`: any number, of which a bounded part is kept).
    pub fn new(limit: Option<u64>, action: OutputAction) -> Self {
        Self::with_bounds(limit, action, HEAD_BYTES_MAX, TAIL_BYTES_MAX)
    }

    /// With other bounds on what is kept. A limit below their sum lowers both: the kept part never exceeds
    /// the limit.
    pub fn with_bounds(limit: Option<u64>, action: OutputAction, head_max: usize, tail_max: usize) -> Self {
        let kept_max = head_max.saturating_add(tail_max);
        let (head_max, tail_max) = match limit.and_then(|l| usize::try_from(l).ok()) {
            Some(l) if l < kept_max => {
                let tail = (l / 2).min(tail_max);
                let head = (l - tail).min(head_max);
                (head, l - head)
            }
            _ => (head_max, tail_max),
        };
        Self {
            head: Vec::new(),
            tail: Ring::new(tail_max),
            head_max,
            total: 0,
            limit,
            action,
            digester: None,
        }
    }

    /// And makes a digest of what lies within the limit.
    #[must_use]
    pub fn digested(mut self, digested: bool) -> Self {
        self.digester = digested.then(Digester::default);
        self
    }

    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: &[u8]) -> Pushed {
        let before = self.total;
        self.total = self.total.saturating_add(piece.len() as u64);
        let take = piece.len().min(self.head_max - self.head.len());
        self.head.extend_from_slice(&piece[..take]);
        self.tail.push(&piece[take..]);
        let limit = self.limit.unwrap_or(u64::MAX);
        let within = usize::try_from(limit.saturating_sub(before)).unwrap_or(usize::MAX).min(piece.len());
        if let Some(digester) = &mut self.digester {
            digester.push(&piece[..within]);
        }
        let first_time = before <= limit && self.total > limit;
        Pushed { within, kill: first_time && self.action == OutputAction::Kill }
    }

    /// Bytes so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether more came than the limit allows.
    pub fn exceeded(&self) -> bool {
        self.limit.is_some_and(|l| self.total > l)
    }

    /// Whether something will be missing from what is kept.
    pub fn truncated(&self) -> bool {
        self.omitted() > 0
    }

    fn omitted(&self) -> u64 {
        self.total - self.head.len() as u64 - self.tail.len() as u64
    }

    /// What is kept. When nothing was omitted the whole stream is in `head`.
    pub fn finish(self) -> Kept {
        let omitted = self.omitted();
        let exceeded = self.limit.filter(|l| self.total > *l);
        let digest = self.digester.map(Digester::end);
        let (mut head, tail) = (self.head, self.tail);
        let mut last = Vec::new();
        if omitted == 0 {
            tail.append_to(&mut head);
        } else {
            tail.append_to(&mut last);
        }
        Kept { head, tail: last, omitted, total: self.total, exceeded, digest }
    }
}

/// The last `max` bytes of what was pushed; grows on demand up to that.
#[derive(Debug)]
struct Ring {
    bytes: Vec<u8>,
    /// Where the oldest byte lies once the ring is full.
    start: usize,
    max: usize,
}

impl Ring {
    fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, max }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn push(&mut self, mut piece: &[u8]) {
        if piece.len() >= self.max {
            self.bytes.clear();
            self.bytes.extend_from_slice(&piece[piece.len() - self.max..]);
            self.start = 0;
            return;
        }
        let room = (self.max - self.bytes.len()).min(piece.len());
        self.bytes.extend_from_slice(&piece[..room]);
        piece = &piece[room..];
        // From here on the ring is full, and the rest is shorter than it.
        while !piece.is_empty() {
            let n = piece.len().min(self.max - self.start);
            self.bytes[self.start..self.start + n].copy_from_slice(&piece[..n]);
            self.start = (self.start + n) % self.max;
            piece = &piece[n..];
        }
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.start..]);
        out.extend_from_slice(&self.bytes[..self.start]);
    }
}

impl Kept {
    /// Of a stream that never was.
    pub fn nothing() -> Self {
        Self { head: Vec::new(), tail: Vec::new(), omitted: 0, total: 0, exceeded: None, digest: None }
    }

    /// The last bytes of what is kept, at most `max`.
    pub fn ending(&self, max: usize) -> &[u8] {
        let last = if self.omitted == 0 { &self.head } else { &self.tail };
        &last[last.len().saturating_sub(max)..]
    }

    /// Head, a line that says what is missing, and tail, as one text of bytes.
    pub fn joined(&self) -> Vec<u8> {
        let mut out = self.head.clone();
        if self.omitted > 0 {
            // Writing to a Vec cannot fail.
            let _ = write!(out, "\n[stockade: {} bytes omitted]\n", self.omitted);
            out.extend_from_slice(&self.tail);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stream: &[u8], cuts: &[usize], mut capture: Capture) -> (Kept, usize, usize) {
        let (mut at, mut within, mut kills) = (0, 0, 0);
        for cut in cuts.iter().copied().chain([stream.len()]) {
            let end = (at + cut).min(stream.len());
            let pushed = capture.push(&stream[at..end]);
            within += pushed.within;
            kills += usize::from(pushed.kill);
            at = end;
        }
        let pushed = capture.push(&stream[at..]);
        (capture.finish(), within + pushed.within, kills + usize::from(pushed.kill))
    }

    #[test]
    fn the_default_bounds_hold_a_flood() {
        let mut capture = Capture::new(None, OutputAction::Truncate);
        for n in 0..4096u32 {
            capture.push(&[n as u8; 4099]);
        }
        assert!(capture.truncated() && !capture.exceeded());
        let kept = capture.finish();
        assert_eq!((kept.head.len(), kept.tail.len()), (HEAD_BYTES_MAX, TAIL_BYTES_MAX));
        assert_eq!(kept.total, 4096 * 4099);
        assert_eq!(kept.omitted, kept.total - (HEAD_BYTES_MAX + TAIL_BYTES_MAX) as u64);
        assert_eq!(kept.tail.last(), Some(&255));
    }

    #[test]
    fn exactly_the_limit_is_not_beyond_it() {
        let mut capture = Capture::new(Some(4), OutputAction::Kill);
        assert_eq!(capture.push(b"abcd"), Pushed { within: 4, kill: false });
        assert_eq!(capture.push(b""), Pushed { within: 0, kill: false });
        assert!(!capture.exceeded() && !capture.truncated());
        assert_eq!(capture.push(b"e"), Pushed { within: 0, kill: true });
        assert_eq!(capture.push(b"f"), Pushed { within: 0, kill: false });
        let kept = capture.finish();
        assert_eq!((&kept.head[..], &kept.tail[..], kept.omitted), (&b"ab"[..], &b"ef"[..], 2));
        assert_eq!(kept.exceeded, Some(4));
        assert_eq!(kept.joined(), b"ab\n[stockade: 2 bytes omitted]\nef");
    }

    #[test]
    fn the_ending_is_the_streams_own() {
        for (stream, ending) in [("", ""), ("abc", "abc"), ("abcdefgh", "efgh"), ("abcdefghij", "ghij")] {
            let mut capture = Capture::with_bounds(None, OutputAction::Truncate, 0, 6);
            capture.push(stream.as_bytes());
            assert_eq!(capture.finish().ending(4), ending.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn kept_is_head_and_tail_of_the_stream_for_every_cutting(
            stream in proptest::collection::vec(any::<u8>(), 0..200),
            cuts in proptest::collection::vec(0usize..40, 0..20),
            head_max in 0usize..40,
            tail_max in 0usize..40,
            limit in proptest::option::of(0u64..120),
            kill: bool,
        ) {
            let action = if kill { OutputAction::Kill } else { OutputAction::Truncate };
            let capture = Capture::with_bounds(limit, action, head_max, tail_max);
            let keep = (head_max + tail_max).min(limit.map_or(usize::MAX, |l| l as usize));
            let (kept, within, kills) = run(&stream, &cuts, capture);
            prop_assert_eq!(kept.total, stream.len() as u64);
            if stream.len() <= keep {
                prop_assert_eq!(&kept.head, &stream);
                prop_assert!(kept.tail.is_empty() && kept.omitted == 0);
            } else {
                prop_assert_eq!(kept.head.len() + kept.tail.len(), keep);
                prop_assert!(stream.starts_with(&kept.head) && stream.ends_with(&kept.tail));
                prop_assert_eq!(kept.omitted as usize, stream.len() - keep);
            }
            prop_assert!(kept.head.len() <= head_max || kept.omitted == 0);
            let beyond = limit.is_some_and(|l| stream.len() as u64 > l);
            prop_assert_eq!(kept.exceeded.is_some(), beyond);
            prop_assert_eq!(within as u64, limit.unwrap_or(u64::MAX).min(stream.len() as u64));
            prop_assert_eq!(kills, usize::from(beyond && kill));
        }
    }
}

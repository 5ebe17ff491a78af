//! `stockade runs events` and `tail`: events as lines, a page in memory at a time, so that a reader who takes long keeps no
//! writer from bringing in its log.

use super::exit;
use super::policy::document;
use super::render::safe;
use super::runs::{Out, failed, reader, state};
use super::runs_args::{EventsOf, Tail};
use crate::base::text::visible;
use crate::evidence::{Event, PAGE_EVENTS_MAX, Reader, Run, StoreError};
use crate::supervise::outcome::Fault;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;
use std::io;

/// How often a followed store is asked whether it has changed, in nanoseconds.
const POLL_NS: i64 = 100_000_000;
/// How many of these pass before the run's owner is looked for.
const OWNER_POLLS: u32 = 10;

/// An event in JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    run: &'a str,
    seq: i64,
    kind: &'a str,
    wall_ms: i64,
    mono_us: i64,
    hash: String,
    payload: Value,
}

/// Where events go, and how.
struct Lines<'a> {
    reader: &'a Reader,
    run: Run,
    kinds: &'a [String],
    json: bool,
    out: Out,
    /// When the run began, microseconds since the host started.
    began_us: i64,
    /// The next event's number.
    next: i64,
}

const STAGE: &str = "reading events";

impl<'a> Lines<'a> {
    fn new(reader: &'a Reader, name: &str, kinds: &'a [String], json: bool) -> Result<Self, Fault> {
        let failed = failed(STAGE);
        let run = reader.find(name).map_err(|e| failed(&e))?;
        let first = reader.events(&run, 1, &[], 1).map_err(|e| failed(&e))?;
        let began_us = first.first().map_or(0, |event| event.mono_us);
        Ok(Self { reader, run, kinds, json, out: Out::new(), began_us, next: 1 })
    }

    /// Writes what there is from `next` on, `limit` of it; false when nobody wants more.
    fn write(&mut self, mut limit: u64) -> Result<bool, Fault> {
        let failed = failed(STAGE);
        loop {
            let ask = limit.min(PAGE_EVENTS_MAX);
            let page = self.reader.events(&self.run, self.next, self.kinds, ask).map_err(|e| failed(&e))?;
            for event in &page {
                let line = self.line(event)?;
                if !self.out.write(&line)? {
                    return Ok(false);
                }
                self.next = event.seq + 1;
            }
            limit -= page.len() as u64;
            if (page.len() as u64) < ask || limit == 0 {
                return Ok(true);
            }
        }
    }

    fn line(&self, event: &Event) -> Result<Vec<u8>, Fault> {
        if !self.json {
            let at = event.mono_us.saturating_sub(self.began_us).max(0);
            let after = format!("+{}.{:03}s", at / 1_000_000, at / 1000 % 1000);
            let line = format!(
                "{:>5}  {after:>10}  {:<20}  {}",
                event.seq,
                safe(&event.kind),
                visible(event.payload.as_bytes())
            );
            return Ok((self.out.cut(&line) + "\n").into_bytes());
        }
        let failed = failed(STAGE);
        let text = self.reader.payload(&self.run, event).map_err(|e| failed(&e))?;
        let payload = serde_json::from_str(&text).map_err(|e| {
            let detail = format!("the payload of event {} is no JSON: {e}", event.seq);
            failed(&StoreError::Damaged { step: "reading events", detail })
        })?;
        let shown = Shown {
            run: &self.run.id,
            seq: event.seq,
            kind: &event.kind,
            wall_ms: event.wall_ms,
            mono_us: event.mono_us,
            hash: event.hash.hex(),
            payload,
        };
        document(&shown, false)
    }

    /// Reads the run's row again: the run may have been removed.
    fn again(&mut self) -> Result<(), Fault> {
        self.run = self.reader.find(&self.run.id).map_err(|e| failed(STAGE)(&e))?;
        Ok(())
    }
}

/// `stockade runs events`.
///
/// # Errors
/// The store's.
pub fn events(args: &EventsOf) -> Result<u8, Fault> {
    let reader = reader(&args.state_dir)?;
    let mut lines = Lines::new(&reader, &args.run, &args.kind, args.json)?;
    lines.next = args.after.saturating_add(1);
    if lines.write(args.limit.unwrap_or(u64::MAX))? {
        // A run that was removed meanwhile has not come to its end.
        lines.again()?;
    }
    Ok(exit::OK)
}

/// `stockade runs tail`.
///
/// # Errors
/// The store's.
pub fn tail(args: &Tail) -> Result<u8, Fault> {
    let failed = failed(STAGE);
    let reader = reader(&args.state_dir)?;
    let mut lines = Lines::new(&reader, &args.run, &args.kind, args.json)?;
    lines.next = reader.last_events(&lines.run, &args.kind, args.limit).map_err(|e| failed(&e))?;
    if !args.follow {
        return lines.write(args.limit).map(|_| exit::OK);
    }
    let mut seen = None;
    let mut polls = 0;
    loop {
        let version = reader.version().map_err(|e| failed(&e))?;
        if seen != Some(version) {
            // The row before the events: what it calls ended has no events to come.
            lines.again()?;
            if !lines.write(u64::MAX)? || !lines.run.is_open() {
                return Ok(exit::OK);
            }
            seen = Some(version);
        }
        if polls % OWNER_POLLS == 0 && reader.is_abandoned(&lines.run).map_err(|e| failed(&e))? {
            let line = format!("stockade: run {} is {}\n", safe(&lines.run.id), state(&lines.run, true));
            super::render::tell(&line);
            return lines.write(u64::MAX).map(|_| exit::OK);
        }
        polls += 1;
        if left() {
            return Ok(exit::OK);
        }
    }
}

/// Waits; whether whoever read standard output has gone.
fn left() -> bool {
    let stdout = io::stdout();
    let wait = Timespec { tv_sec: 0, tv_nsec: POLL_NS };
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let answered = poll(&mut asked, Some(&wait)).unwrap_or(0);
    let revents = asked[0].revents();
    if answered > 0 && !revents.intersects(PollFlags::ERR | PollFlags::NVAL) {
        // A terminal that hung up answers at once: not without a pause.
        std::thread::sleep(std::time::Duration::from_nanos(POLL_NS.unsigned_abs()));
    }
    revents.intersects(PollFlags::ERR | PollFlags::NVAL)
}

//! `stockade runs verify`, `audit`, `export` and `key`: what a record proves, whether it makes sense, taken elsewhere, and by
//! whose key.

use super::explain::size;
use super::policy::document;
use super::render::safe;
use super::runs::{self, failed};
use super::runs_args::{Audit, Export, Key, Verify};
use super::{exit, fault, print};
use crate::evidence::audit::{Checked, Verdict, audit};
use crate::evidence::{
    ExportError, Filter, Keys, PublicKey, Reader, Run, StoreError, Trusted, Verification, Which, export,
    verify, verify_bundle,
};
use crate::supervise::outcome::Fault;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;

/// Bytes of a key's file.
const KEY_BYTES_MAX: u64 = 16 << 10;
/// Findings that are shown one by one.
const SHOWN_MAX: usize = 50;

fn unusable(path: &Path, why: String) -> Fault {
    fault::result(safe(&path.display().to_string()), why, "name a file that you may read".to_owned())
}

/// The keys that the caller believes.
fn trusted(paths: &[std::path::PathBuf]) -> Result<Option<Trusted>, Fault> {
    if paths.is_empty() {
        return Ok(None);
    }
    let mut all = Trusted::default();
    for path in paths {
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(KEY_BYTES_MAX).read_to_end(&mut text))
            .map_err(|e| unusable(path, e.to_string()))?;
        let key = PublicKey::from_pem(&text)
            .ok_or_else(|| unusable(path, "is no public key in PEM (ed25519)".to_owned()))?;
        all.add(key);
    }
    Ok(Some(all))
}

/// `verify`: 0 when nothing is wrong, 1 when something is.
pub fn run(args: &Verify) -> Result<u8, Fault> {
    let keys = trusted(&args.key)?;
    let found = if let Some(bundle) = &args.bundle {
        let file = File::open(bundle).map_err(|e| unusable(bundle, e.to_string()))?;
        verify_bundle(BufReader::new(file), keys).map_err(|e| unusable(bundle, e.to_string()))?
    } else {
        let reader = runs::reader(&args.state_dir)?;
        let stage = failed("verifying");
        let id = match args.run.as_deref() {
            Some(name) => Some(reader.find(name).map_err(|e| stage(&e))?.id),
            None => None,
        };
        let which = id.as_deref().map_or(Which::All, Which::One);
        verify(&reader, which, keys).map_err(|e| stage(&e))?
    };
    let good = found.is_good();
    if args.json {
        print(&document(
            &json!({ "schema": "stockade.verification/1", "good": good, "verification": found }),
            false,
        )?)?;
    } else {
        print(text(&found).as_bytes())?;
    }
    Ok(if good { exit::OK } else { exit::FOUND })
}

fn text(found: &Verification) -> String {
    let mut out = String::new();
    for finding in found.findings.iter().take(SHOWN_MAX) {
        let run = finding.run.as_deref().map_or_else(String::new, |run| format!(" run {run}"));
        let seq = finding.seq.map_or_else(String::new, |seq| format!(" {seq}"));
        let _ = writeln!(
            out,
            "{}: {},{}: {}",
            finding.what.name(),
            finding.table,
            safe(&format!("{run}{seq}")),
            safe(&finding.detail)
        );
    }
    let beyond = found.findings.len().saturating_sub(SHOWN_MAX) as u64 + found.more;
    if beyond > 0 {
        let _ = writeln!(out, "and {beyond} more (--json has the first 1000)");
    }
    let c = &found.counts;
    let _ = writeln!(
        out,
        "{}: {} runs ({} running), {} events, {} entries of the ledger, {} receipts, {} blobs, {} plans, {} keys; {} hashed",
        if found.is_good() { "good" } else { "NOT GOOD" },
        c.runs,
        c.running,
        c.events,
        c.ledger,
        c.receipts,
        c.blobs,
        c.plans,
        c.keys,
        size(found.bytes),
    );
    if !found.pinned {
        out.push_str("receipts were checked against the keys that lie beside them; --key FILE checks them against yours\n");
    }
    out
}

/// Runs that are read at once.
const PAGE: u32 = 64;

/// `audit`: 0 unless a check fails, 1 when one does. What is inconclusive is told and fails nothing: a run that is under way
/// has no end yet.
pub fn audit_runs(args: &Audit) -> Result<u8, Fault> {
    let reader = runs::reader(&args.state_dir)?;
    let stage = failed("auditing");
    let out = runs::Out::new();
    let mut failures = false;
    let mut told = |run: &Run, quiet: bool| -> Result<bool, Fault> {
        let checked = audit(&reader, run).map_err(|e| stage(&e))?;
        failures |= checked.iter().any(|c| c.verdict == Verdict::Fail);
        if args.json {
            let mut line =
                document(&json!({ "schema": "stockade.audit/1", "run": run.id, "checks": checked }), false)?;
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            return out.write(&line);
        }
        let worst = checked.iter().map(|c| c.verdict).max();
        if quiet && worst.is_some_and(|w| w <= Verdict::NotApplicable) {
            return Ok(true);
        }
        out.write(audited(run, &checked).as_bytes())
    };
    if args.all {
        let (mut before, mut runs) = (None, 0u64);
        'pages: loop {
            let page = Reader::runs(&reader, &Filter::default(), before, PAGE).map_err(|e| stage(&e))?;
            let Some(last) = page.last() else { break };
            before = Some(last.no);
            for run in &page {
                runs += 1;
                if !told(run, true)? {
                    break 'pages;
                }
            }
        }
        if !args.json {
            out.write(format!("{runs} runs audited\n").as_bytes())?;
        }
    } else {
        let run = reader.find(&args.run).map_err(|e| stage(&e))?;
        told(&run, false)?;
    }
    Ok(if failures { exit::FOUND } else { exit::OK })
}

fn audited(run: &Run, checked: &[Checked]) -> String {
    let mut out = format!("run {}\n", safe(&run.id));
    for c in checked {
        let why = c.detail.as_deref().map_or_else(String::new, |why| format!(" ({})", safe(why)));
        let _ = writeln!(out, "  {:<12} {:<14} {}{why}", c.check, c.verdict.words(), c.asks);
    }
    out
}

/// `export`.
pub fn export_runs(args: &Export) -> Result<u8, Fault> {
    if rustix::termios::isatty(std::io::stdout()) {
        return Err(fault::result(
            "standard output".to_owned(),
            "an export holds what commands wrote, byte for byte, and is not for a terminal".to_owned(),
            "redirect it to a file: stockade runs export … > FILE".to_owned(),
        ));
    }
    let reader = runs::reader(&args.state_dir)?;
    let stage = failed("exporting");
    let mut ids = Vec::new();
    for name in &args.run {
        ids.push(reader.find(name).map_err(|e| stage(&e))?.id);
    }
    let which = (!args.all).then_some(ids.as_slice());
    let mut to = BufWriter::new(std::io::stdout().lock());
    let done = export(&reader, which, &mut to, args.blobs.as_deref());
    let done = done.and_then(|done| to.flush().map(|()| done).map_err(ExportError::Write));
    match done {
        Ok(_) => Ok(exit::OK),
        // A reader who has had enough is no fault.
        Err(ExportError::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit::OK),
        Err(ExportError::Store(e)) => Err(stage(&e)),
        Err(e) => Err(fault::result(
            "the export".to_owned(),
            e.to_string(),
            "is the disk full, or the place not yours to write?".to_owned(),
        )),
    }
}

/// `key`.
pub fn key(args: &Key) -> Result<u8, Fault> {
    let place = runs::place(&args.state_dir)?;
    let stage = failed("the signing key");
    if args.rotate {
        let keys = Keys::open(&place).map_err(|e| stage(&e))?;
        let (before, now) = keys.rotate().map_err(|e| stage(&e))?;
        let from = before.map_or_else(String::new, |before| format!(" in place of {}", before.hex()));
        return print(
            format!("signing with {}{from}; what the old key signed stays verifiable\n", now.hex())
                .as_bytes(),
        );
    }
    let absent = || StoreError::Absent { path: place.path().join("keys") };
    let keys = Keys::look(&place).map_err(|e| stage(&e))?.ok_or_else(|| stage(&absent()))?;
    let signing = keys.present().map_err(|e| stage(&e))?.ok_or_else(|| stage(&absent()))?;
    print(PublicKey::of(&signing).pem().as_bytes())
}

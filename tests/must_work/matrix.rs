//! The matrix: what a row is, what its cells promise, and how each is tried under the shipped profiles.

use crate::common::{Input, Raw, Sandbox, Workspace, bash, contains, limits_hold, skip};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Duration;

/// What a row may take under one profile, on a busy machine.
const LONG: Duration = Duration::from_secs(240);

/// The shipped profiles, in the order of a row's cells.
pub const PROFILES: [&str; 5] = ["offline", "build", "open", "read-only", "strict"];

/// Those of them whose workspace is read-only.
const READ_ONLY: [&str; 2] = ["read-only", "strict"];

/// What is expected under one profile, as root and as an ordinary user alike.
#[derive(Clone, Copy)]
pub enum Cell {
    /// In the workspace.
    Works,
    /// In a copy of the workspace in `/tmp`; in the workspace itself it is refused, since that is read-only.
    Copy,
    /// It works as far as this reason lets it, and prints something else.
    Prints(&'static str, &'static Reason),
    /// It fails, in the workspace or, where that is read-only, in a copy of it.
    Fails(&'static Reason),
}

/// Why a cell is not simply "works".
pub struct Reason {
    /// For the document.
    pub words: &'static str,
    /// What the program or Stockade says then.
    pub says: &'static str,
    /// Kind of a finding in `denials`, or the code of a refusal before anything ran.
    pub named: Option<&'static str>,
}

/// What stockade is given beside the profile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Nothing.
    Plain,
    /// These words before `--`.
    Options(&'static [&'static str]),
    /// No descriptor 0.
    ClosedStdin,
    /// An argument of so many bytes, as `$1`.
    Argument(usize),
    /// 16 variables of 64 KiB each.
    Environment,
    /// What is printed is hashed and counted, and the last line of standard error is what it should come to.
    Hashed,
}

/// What a row has in its workspace beside its files.
pub struct Prepared {
    /// Where stockade is to work instead of in the row's own workspace.
    pub at: Option<std::path::PathBuf>,
    /// What the workspace needs as long as it is used.
    pub _keep: Vec<Workspace>,
}

/// One program and what is done with it.
pub struct Row {
    /// The test that tries it.
    pub test: &'static str,
    pub program: &'static str,
    pub what: &'static str,
    /// Programs without which it is skipped.
    pub needs: &'static [&'static str],
    pub files: &'static [(&'static str, &'static str)],
    pub prepare: Option<fn(&Workspace) -> Prepared>,
    pub how: How,
    /// How it fails where the workspace is read-only.
    pub in_place: &'static Reason,
    /// A part of it lies beside the workspace, so that a copy would show nothing.
    pub beside: bool,
    /// It waits more than it computes: its cells are tried at once.
    pub waits: bool,
    /// For bash, with `-eu` and `pipefail`.
    pub script: &'static str,
    /// The whole of standard output; `{W}` is the directory where it runs.
    pub prints: &'static str,
    /// One for each of [`PROFILES`].
    pub cells: [Cell; 5],
}

/// To be completed by `..ROW`.
pub const ROW: Row = Row {
    test: "",
    program: "",
    what: "",
    needs: &[],
    files: &[],
    prepare: None,
    how: How::Plain,
    in_place: &READ_ONLY_WORKSPACE,
    beside: false,
    waits: false,
    script: "",
    prints: "fine\n",
    cells: [Cell::Works; 5],
};

/// Where a script runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Workspace,
    Copy,
}

/// Tries the rows of one test under every profile and fails with all cells that are not as written.
#[track_caller]
pub fn check(test: &str) {
    let rows: Vec<&Row> = super::rows().filter(|row| row.test == test).collect();
    assert!(!rows.is_empty(), "no row names the test {test}");
    let mut wrong = Vec::new();
    for row in rows.into_iter().filter(|row| row.needs.iter().all(|program| host_has(program))) {
        let cells = PROFILES.into_iter().zip(row.cells);
        if row.waits {
            std::thread::scope(|scope| {
                // Named as the test is, for what is skipped.
                let named = || std::thread::Builder::new().name(test.to_owned());
                let start =
                    |(profile, cell)| named().spawn_scoped(scope, move || row.tell(profile, cell)).unwrap();
                let tries: Vec<_> = cells.map(start).collect();
                wrong.extend(tries.into_iter().filter_map(|t| t.join().expect("a cell")));
            });
        } else {
            wrong.extend(cells.filter_map(|(profile, cell)| row.tell(profile, cell)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

impl Row {
    /// What is wrong with one cell.
    fn tell(&self, profile: &str, cell: Cell) -> Option<String> {
        let why = self.check_cell(profile, cell).err()?;
        Some(format!("{} ({}) under {profile}: {why}", self.program, self.what))
    }

    fn check_cell(&self, profile: &str, cell: Cell) -> Result<(), String> {
        if profile == "strict" && !limits_hold() {
            skip("strict requires limits, and no cgroups are delegated to this user");
            return Ok(());
        }
        let closed = READ_ONLY.contains(&profile);
        let elsewhere = if closed && !self.beside { Place::Copy } else { Place::Workspace };
        match cell {
            Cell::Works => self.expect_success(profile, Place::Workspace, self.prints),
            Cell::Copy => {
                self.expect_failure(profile, Place::Workspace, self.in_place)?;
                self.expect_success(profile, Place::Copy, self.prints)
            }
            Cell::Prints(prints, _) => self.expect_success(profile, elsewhere, prints),
            Cell::Fails(reason) if reason.is_of_toolchain() && self.needs.iter().all(|p| of_system(p)) => {
                skip(&format!("{} is the system's here, no toolchain of a home", self.program));
                Ok(())
            }
            Cell::Fails(reason) => self.expect_failure(profile, elsewhere, reason),
        }
    }

    fn expect_success(&self, profile: &str, place: Place, prints: &str) -> Result<(), String> {
        let (raw, at) = self.run(profile, place);
        let wanted = prints.replace("{W}", &at);
        if raw.code() == 0 && !raw.overrun && raw.out() == wanted {
            return Ok(());
        }
        Err(format!("it should work and print {wanted:?}: {}", told(&raw)))
    }

    fn expect_failure(&self, profile: &str, place: Place, reason: &Reason) -> Result<(), String> {
        let (raw, _) = self.run(profile, place);
        if raw.code() == 0 || raw.overrun {
            return Err(format!("it should fail ({}): {}", reason.words, told(&raw)));
        }
        let all = [raw.out(), raw.err()].concat().to_lowercase();
        if !contains(all.as_bytes(), reason.says.to_lowercase().as_bytes()) {
            return Err(format!("it should say {:?}: {}", reason.says, told(&raw)));
        }
        match reason.named {
            Some(name) if !names(&raw).iter().any(|n| n == name) => {
                Err(format!("stockade should name {name}: {}", told(&raw)))
            }
            _ => Ok(()),
        }
    }

    /// A workspace of its own for each try, so that none finds what another made.
    fn run(&self, profile: &str, place: Place) -> (Raw, String) {
        let ws = Workspace::new(self.test);
        for (name, content) in self.files {
            ws.file(name, content);
        }
        let prepared = self.prepare.map(|prepare| prepare(&ws));
        let at = prepared.as_ref().and_then(|p| p.at.clone()).unwrap_or_else(|| ws.path().to_owned());
        let (enter, at_text) = match place {
            Place::Workspace => ("", at.display().to_string()),
            Place::Copy => ("cp -a . /tmp/copy\ncd /tmp/copy\n", "/tmp/copy".to_owned()),
        };
        let mut argv: Vec<std::ffi::OsString> =
            bash(&format!("set -euo pipefail\n{enter}{}", self.script)).into_iter().map(Into::into).collect();
        let mut sandbox =
            Sandbox::bare().options([Path::new("-w"), &at]).profile(profile).patience(LONG).with_result();
        match self.how {
            How::Plain | How::Hashed => {}
            How::Options(words) => sandbox = sandbox.options(words),
            How::ClosedStdin => sandbox = sandbox.stdin(Input::Closed),
            How::Argument(bytes) => argv.extend(["bash".into(), "x".repeat(bytes).into()]),
            How::Environment => {
                for i in 0..16 {
                    let name = format!("BIG{i}");
                    sandbox = sandbox.env(&name, "e".repeat(64 * 1024)).option("--env").option(name);
                }
            }
        }
        let mut raw = sandbox.raw(argv);
        if self.how == How::Hashed {
            let digest: String = Sha256::digest(&raw.stdout).iter().map(|b| format!("{b:02x}")).collect();
            let same = raw.err().lines().next() == Some(&digest);
            raw.stdout = format!("{} MiB, the same: {same}\n", raw.stdout.len() >> 20).into_bytes();
        }
        (raw, at_text)
    }
}

/// In place under the profiles of [`READ_ONLY`].
pub static READ_ONLY_WORKSPACE: Reason =
    Reason { words: "the workspace is read-only", says: "read-only file system", named: Some("read_only") };

impl Reason {
    fn is_of_toolchain(&self) -> bool {
        std::ptr::eq(self, &super::programs::NO_TOOLCHAIN)
    }
}

/// Kinds of the findings, and the code of a refusal.
pub fn names(raw: &Raw) -> Vec<String> {
    let Some(result) = &raw.result else { return Vec::new() };
    let findings = result["denials"]["findings"].as_array().into_iter().flatten();
    let kinds = findings.filter_map(|f| f["kind"].as_str());
    kinds.chain(result["outcome"]["code"].as_str()).map(str::to_owned).collect()
}

/// The end of everything there is to see.
pub fn told(raw: &Raw) -> String {
    let tail =
        |text: String| text.chars().rev().take(1500).collect::<Vec<_>>().iter().rev().collect::<String>();
    format!(
        "exit {}{}, named {:?}\nstdout {}\nstderr {}",
        raw.code(),
        if raw.overrun { ", out of time" } else { "" },
        names(raw),
        tail(raw.out()),
        tail(raw.err())
    )
}

fn places(program: &str) -> impl Iterator<Item = std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|d| d.join(program))
        .filter(|p| p.exists())
        .collect::<Vec<_>>()
        .into_iter()
}

/// Whether one that is named without its directory lies where every profile shows it.
fn of_system(program: &str) -> bool {
    places(program).any(|p| p.starts_with("/usr") || p.starts_with("/bin"))
}

/// Whether a program is on the PATH that stockade's caller has, or a path exists. With `STOCKADE_MUST_WORK=programs` (CI) it has to be.
pub fn host_has(program: &str) -> bool {
    let found = places(program).next().is_some();
    let demanded = std::env::var_os("STOCKADE_MUST_WORK").is_some_and(|v| v == "programs");
    assert!(found || !demanded, "must work: {program} is not installed");
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

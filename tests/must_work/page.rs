//! Documents that are made of the matrix: `docs/must-work.md`, and the list of git commands in `docs/profiles.md`.
//! `STOCKADE_WRITE_DOCS=1` writes them; otherwise they are compared.

use super::git::{LISTED, WORKING};
use super::matrix::{Cell, PROFILES, Reason};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- made by `STOCKADE_WRITE_DOCS=1 cargo test --test must_work` -->\n";
const END: &str = "<!-- until here -->\n";
const WIDTH: usize = 150;

/// Reasons in the order in which the table refers to them.
#[derive(Default)]
struct Notes(Vec<&'static str>);

impl Notes {
    fn number(&mut self, reason: &Reason) -> usize {
        let at = self.0.iter().position(|words| *words == reason.words).unwrap_or_else(|| {
            self.0.push(reason.words);
            self.0.len() - 1
        });
        at + 1
    }
}

fn table(notes: &mut Notes) -> String {
    let mut out = format!(
        "| program | what it does | as | {} |\n|---|---|---|",
        PROFILES.map(|p| format!("`{p}`")).join(" | ")
    );
    out += &"---|".repeat(PROFILES.len());
    out.push('\n');
    for row in super::rows() {
        let _ = write!(out, "| {} | {} | root, user |", row.program, row.what);
        for cell in row.cells {
            let _ = match cell {
                Cell::Works => write!(out, " works |"),
                Cell::Copy => write!(out, " copy |"),
                Cell::Prints(_, reason) => write!(out, " in part ({}) |", notes.number(reason)),
                Cell::Fails(reason) => write!(out, " no ({}) |", notes.number(reason)),
            };
        }
        out.push('\n');
    }
    out
}

fn must_work() -> String {
    let mut notes = Notes::default();
    let table = table(&mut notes);
    let mut reasons = String::new();
    for (i, words) in notes.0.iter().enumerate() {
        let _ = writeln!(reasons, "{}. {words}", i + 1);
    }
    format!(
        "# What must work

Programs under the shipped profiles, none of them modified. `tests/must_work.rs` tries each cell as root and as an ordinary user with cgroups of their own, in
a workspace below a home that is not root's, and fails when a cell is not as it stands here: what is refused has to be refused, by the
reason that is given. The table is written from the same rows by `STOCKADE_WRITE_DOCS=1 cargo test --test must_work documents`, and compared by every other run. A program
that a host lacks is skipped there by name; CI has all of them (`STOCKADE_MUST_WORK=programs`).

- *works*: in the workspace, to its end and with all of its output.
- *copy*: in a copy of the workspace in `/tmp`. In the workspace itself it fails, which is tried as well: that is read-only.
- *no*, *in part*: why is said below the table.

An ordinary user without cgroups of their own cannot run anything under `strict`, which requires limits, and is told so before anything starts.
What git cannot do under `offline`, command by command: [profiles.md](profiles.md#git-under-offline).

{table}
{reasons}"
    )
}

/// Words as they are, in lines of at most [`WIDTH`] bytes.
fn wrapped(words: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in words.split(' ') {
        if width > 0 && width + 1 + word.len() > WIDTH {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out += word;
        width += word.len();
    }
    out.push('\n');
    out
}

fn git_list() -> String {
    let mut out = "| command | what happens |\n|---|---|\n".to_owned();
    for line in LISTED {
        let _ = writeln!(out, "| {} | {} |", line.command, line.happens);
    }
    let commands: Vec<String> = WORKING.iter().map(|(name, _)| format!("`{name}`")).collect();
    out.push('\n');
    out += &wrapped(&format!(
        "As outside, each tried: {}; `fetch`, `pull` and `push` with a path as the other side; `clone` and `init` of *another* repository below the workspace or in `/tmp`, whose configuration, remotes and hooks can be written.",
        commands.join(", ")
    ));
    out
}

fn document(name: &str) -> PathBuf {
    // The variable at run time, for test binaries that were copied to another place.
    let package = std::env::var_os("STOCKADE_TEST_PACKAGE")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.join("docs").join(name)
}

fn check(path: &Path, wanted: &str) {
    if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
        std::fs::write(path, wanted).unwrap();
    }
    let is = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        is == wanted,
        "{} is not what the matrix says: STOCKADE_WRITE_DOCS=1 cargo test --test must_work documents",
        path.display()
    );
}

/// Both documents.
pub fn documents_say_what_the_matrix_says() {
    check(&document("must-work.md"), &must_work());
    let path = document("profiles.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the place of the list in docs/profiles.md");
    let (_, after) = rest.split_once(END).expect("its end");
    check(&path, &[before, BEGIN, &git_list(), END, after].concat());
}

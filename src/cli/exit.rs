//! The exit codes, in one place: help texts and `docs/exit-codes.md` are made from these tables, and
//! [`Report::exit_code`](crate::supervise::outcome::Report::exit_code) is tested against them.

/// Everything is as it should be.
pub const OK: u8 = 0;
/// `doctor`: the default profile cannot run here.
pub const UNFIT: u8 = 1;
/// `policy lint`: something was found. `policy diff`: something is widened.
pub const FOUND: u8 = 1;
/// Every other command: wrong arguments, or a profile, path or host that they cannot work with.
pub const USAGE: u8 = 2;
/// `exec`: there was no containment, or it could not be kept, or its result could not be delivered.
pub const CONTAINMENT: u8 = 125;

/// Of `exec`.
pub const EXEC: [(&str, &str); 7] = [
    ("the command's own", "it ran and exited"),
    ("128+N", "signal N ended it; 137 with `limit` in the result when a limit killed it"),
    ("124", "it ran into the wall-time limit"),
    (
        "125",
        "stockade could not build or keep the containment, or deliver the result or the command's output",
    ),
    ("126", "the command was found, but cannot be executed"),
    ("127", "the command was not found"),
    ("0", "with --dry-run, --help: printed"),
];

/// Of the other commands.
pub const OTHERS: [(&str, &str); 3] = [
    ("0", "done; also when whoever read the output did not want all of it"),
    (
        "1",
        "`doctor`: the default profile cannot run here; `policy lint`: a finding of the severity that --deny names, \
         or worse; `policy diff`: the second permits something that the first does not",
    ),
    ("2", "wrong arguments, or something that they name cannot be used"),
];

/// What signals to `exec` do.
const SIGNALS: &str = "\
Signals to `stockade exec`: the first is passed on to the command's process group. After SIGTERM or SIGHUP the command \
has `limits.grace`, or two seconds where that is `0s`, and is then killed. SIGINT and SIGQUIT only ask: a command that \
ignores them goes on until it ends, or its wall time does. A second signal, of whichever kind, kills at once. (Two of one \
kind that are sent in the same moment are one to the kernel.) Once the command has ended, a signal gives up on output that \
nobody reads; once the run is over and its result is being handed over, it ends stockade.";

/// Of `policy lint`.
pub const LINT: [(&str, &str); 3] = [
    ("0", "nothing was found, or nothing as bad as --deny says"),
    ("1", "a finding of that severity, or worse"),
    ("2", "a profile cannot be read or loaded, whatever was found in the others"),
];

/// Of `policy diff`.
pub const DIFF: [(&str, &str); 3] = [
    ("0", "everything that B permits, A permits too"),
    ("1", "B permits something that A does not"),
    ("2", "one of them cannot be read or loaded"),
];

fn rows(table: &[(&str, &str)]) -> String {
    table.iter().map(|(code, meaning)| format!("  {code:<18} {meaning}\n")).collect()
}

/// For help texts.
pub fn table_of(table: &[(&str, &str)]) -> String {
    format!("Exit codes:\n{}", rows(table).trim_end())
}

/// `docs/exit-codes.md`.
pub fn page() -> String {
    let table = |rows: &[(&str, &str)]| -> String {
        rows.iter().map(|(code, meaning)| format!("| {code} | {meaning} |\n")).collect()
    };
    format!(
        "# Exit codes\n\n`stockade exec`:\n\n| code | meaning |\n|---|---|\n{}\n\
         A command that exits with one of these codes itself is told apart by `outcome.kind` in the result \
         (`--json`, `--result-fd`, `--result-file`).\n\n{SIGNALS}\n\n\
         `stockade policy`, `stockade caches`, `stockade runs`, `stockade doctor`:\n\n| code | meaning |\n|---|---|\n{}",
        table(&EXEC),
        table(&OTHERS)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/exit-codes.md");
        if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
            std::fs::write(path, super::page()).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            super::page(),
            "set STOCKADE_WRITE_DOCS=1 to write it"
        );
    }
}

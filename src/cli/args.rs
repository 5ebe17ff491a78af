//! The command line as typed. Nothing is looked up, opened or decided here; `meant` does that.

use super::exit;
use crate::base::text::visible;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Occurrences of a repeatable flag.
pub const REPEATS_MAX: usize = 256;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "stockade",
    version,
    about = "Runs commands in a sandbox that is built, checked and reported for each of them",
    disable_help_subcommand = true,
    subcommand_required = true,
    infer_subcommands = false
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(about = EXEC_ABOUT)]
    #[expect(missing_docs, reason = "its text is shared with `ExecAlone`, which parses it")]
    Exec(Box<Exec>),
    /// Look at profiles: what there is, what one says, what it comes to on this host
    #[command(subcommand)]
    Policy(Policy),
    /// Look at the kept layers of package caches (caches.layer = "kept"), or remove them
    #[command(subcommand)]
    Caches(Caches),
    /// Look at what was recorded of runs, and remove old records
    #[command(subcommand)]
    Runs(super::runs_args::Runs),
    /// Try every feature of the kernel that a sandbox needs, as this user, and say what mends what is missing
    Doctor(Doctor),
}

/// Where the state directory is.
#[derive(Debug, Clone, Default, Args)]
pub struct State {
    /// Keep state in DIR (absolute) instead of $STOCKADE_STATE, /var/lib/stockade (root) or
    /// $XDG_STATE_HOME/stockade
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// What a plan is made from, beside the host.
#[derive(Debug, Clone, Default, Args)]
pub struct Choice {
    /// Give DIR to the command as its workspace [default: the current directory]
    #[arg(short, long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Narrow the profile: --set limits.memory=2GiB
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Whether the sandbox is tried out before the command starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Verify {
    /// Each time
    Live,
    /// Once for each plan, binary, host state, user and boot
    #[default]
    Cached,
}

/// Where the workspace and the command are inside.
#[derive(Debug, Clone, Default, Args)]
pub struct Place {
    /// Show the workspace at PATH inside [default: its own path]
    #[arg(long, value_name = "PATH")]
    pub at: Option<PathBuf>,
    /// Start the command in PATH inside [default: the workspace]
    #[arg(long, value_name = "PATH")]
    pub cwd: Option<PathBuf>,
}

/// What the caller adds, within the profile's grants.
#[derive(Debug, Clone, Default, Args)]
pub struct Added {
    /// Show host path SRC, read-only, at DST [default: its own path]. The last `:` separates; `\:` is a colon
    /// in a name
    #[arg(long, value_name = "SRC[:DST]")]
    pub ro: Vec<OsString>,
    /// The same, writable
    #[arg(long, value_name = "SRC[:DST]")]
    pub rw: Vec<OsString>,
    /// Mount a private tmpfs at DST
    #[arg(long, value_name = "DST[:SIZE]")]
    pub tmpfs: Vec<OsString>,
    /// Set a variable, or pass on the caller's
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// Grant by intent: browser, ssh-agent, git-credentials, gpu, x11 or wayland. Each opens something that is closed
    /// otherwise, and the result says which
    #[arg(long, value_name = "WHAT")]
    pub grant: Vec<OsString>,
}

/// How the command runs.
#[derive(Debug, Clone, Default, Args)]
pub struct How {
    /// End the command after this time, such as 90s or 10m (not more than the profile's limits.wall)
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,
    /// Use DIR as the root instead of the host's /usr
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Give the command a terminal of its own
    #[arg(long)]
    pub tty: bool,
    /// Trace the command with ptrace, to see which paths it is refused even when it does not say so; slow
    #[arg(long)]
    pub trace_denials: bool,
    /// When to try the sandbox out before the command starts
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub verify: Verify,
}

/// Where the result goes.
#[derive(Debug, Clone, Default, Args)]
pub struct Results {
    /// Print the result as one JSON document, the command's output inside
    #[arg(long)]
    pub json: bool,
    /// Write the result, without output, to the open descriptor N
    #[arg(long, value_name = "N")]
    pub result_fd: Option<i32>,
    /// Write the result, without output, to file P, whole or not at all; not where the command can write
    #[arg(long, value_name = "P")]
    pub result_file: Option<PathBuf>,
    /// Print the plan (with --json: its canonical bytes) and run nothing
    #[arg(long, conflicts_with_all = ["result_fd", "result_file"])]
    pub dry_run: bool,
}

/// What is recorded of the run.
#[derive(Debug, Clone, Default, Args)]
pub struct Record {
    /// Record nothing of this run (see `stockade runs`)
    #[arg(long)]
    pub no_record: bool,
    /// Your own name for the run in the record, such as a job's number (256 bytes at most)
    #[arg(long, value_name = "NAME", conflicts_with = "no_record", value_parser = correlation)]
    pub correlation: Option<String>,
}

/// Bytes of a correlation id.
pub const CORRELATION_BYTES_MAX: usize = 256;

fn correlation(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > CORRELATION_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(format!("1 to {CORRELATION_BYTES_MAX} bytes without control characters are expected"));
    }
    Ok(text.to_owned())
}

/// The profile.
#[derive(Debug, Clone, Default, Args)]
pub struct Which {
    /// Profile by NAME (user, system, built-in), or the file PATH when it has a `/` or ends in .toml
    #[arg(long, value_name = "NAME|PATH", default_value = crate::policy::DEFAULT_PROFILE)]
    pub profile: OsString,
}

/// The command, and how much is said about it.
#[derive(Debug, Clone, Default, Args)]
pub struct Words {
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Switch a protection off, to see whether a test notices
    #[cfg(feature = "mutants")]
    #[arg(long, hide = true, value_name = "NAME")]
    pub mutant: Vec<String>,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub argv: Vec<OsString>,
}

/// `stockade exec`. In small groups: an unoptimised build's stack frame grows by 9KiB with each flag of a group.
#[derive(Debug, Clone, Default, Args)]
pub struct Exec {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub which: Which,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub choice: Choice,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub place: Place,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub added: Added,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub how: How,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub results: Results,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub record: Record,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub state: State,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub words: Words,
}

/// `stockade policy …`.
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// The profiles that there are, and which file wins
    List(List),
    /// What a profile says once everything it extends is put together
    Show(Show),
    /// What a profile comes to on this host, in words
    Explain(Explain),
    /// The JSON Schema of a profile file, or of another document
    Schema(Schema),
    /// What is wrong with profiles: place, meaning and remedy of each fault
    Lint(Lint),
    /// Write a project's file to narrow profiles with, every key in it as a comment
    Init(Init),
    /// What profile B permits that profile A does not, in words
    Diff(Diff),
}

/// `stockade policy list`.
#[derive(Debug, Clone, Args)]
pub struct List {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `stockade policy show`.
#[derive(Debug, Clone, Args)]
pub struct Show {
    /// Which profile
    #[arg(value_name = "NAME|PATH", default_value = crate::policy::DEFAULT_PROFILE)]
    pub profile: OsString,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `stockade policy explain`.
#[derive(Debug, Clone, Args)]
pub struct Explain {
    /// Which profile
    #[arg(value_name = "NAME|PATH", default_value = crate::policy::DEFAULT_PROFILE)]
    pub profile: OsString,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub choice: Choice,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub state: State,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Which document a schema is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Of {
    /// A profile file
    #[default]
    Profile,
    /// The result of `exec`
    Result,
}

/// `stockade policy schema`.
#[derive(Debug, Clone, Args)]
pub struct Schema {
    /// Of which document
    #[arg(value_name = "DOCUMENT", value_enum, default_value_t)]
    pub of: Of,
}

/// `stockade policy lint`.
#[derive(Debug, Clone, Args)]
#[command(after_help = exit::table_of(&exit::LINT))]
pub struct Lint {
    /// Which profiles; a `.stockade/profile.toml` is judged as narrowing the default one [default: every profile on
    /// the search path, and the project's file of the current directory]
    #[arg(value_name = "NAME|PATH")]
    pub profiles: Vec<OsString>,
    /// Exit with 1 when a finding is at least this bad
    #[arg(long, value_name = "SEVERITY", value_enum, default_value_t)]
    pub deny: Deny,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub state: State,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// From which severity on a finding is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Deny {
    /// What gives the host away, or makes every run fail
    #[default]
    Error,
    /// Also what is probably not what was meant
    Warning,
    /// Everything
    Note,
}

/// `stockade policy init`.
#[derive(Debug, Clone, Args)]
pub struct Init {
    /// The project [default: the current directory]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The profile whose values the file shows
    #[arg(long, value_name = "NAME|PATH", default_value = crate::policy::DEFAULT_PROFILE)]
    pub profile: OsString,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
}

/// `stockade policy diff`.
#[derive(Debug, Clone, Args)]
#[command(after_help = exit::table_of(&exit::DIFF))]
pub struct Diff {
    /// The profile to compare with: a name, a file, or a .json document of `policy show --json`
    #[arg(value_name = "A")]
    pub a: OsString,
    /// The profile that is compared
    #[arg(value_name = "B")]
    pub b: OsString,
    /// Narrow B before: --set limits.memory=2GiB
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `stockade caches …`.
#[derive(Debug, Subcommand)]
pub enum Caches {
    /// The kept layers, of every workspace
    List(ListCaches),
    /// Remove kept layers, of one workspace or of all
    Remove(RemoveCaches),
}

/// `stockade caches list`.
#[derive(Debug, Clone, Args)]
pub struct ListCaches {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub state: State,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `stockade caches remove`.
#[derive(Debug, Clone, Args)]
pub struct RemoveCaches {
    /// Which [default: every cache of the workspace]
    #[arg(value_name = "CACHE")]
    pub caches: Vec<String>,
    /// Of the workspace DIR [default: the current directory]
    #[arg(short, long, value_name = "DIR", conflicts_with = "all")]
    pub workspace: Option<PathBuf>,
    /// Of every workspace
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub state: State,
}

/// `stockade doctor`.
#[derive(Debug, Clone, Args)]
pub struct Doctor {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become a help text")]
    pub state: State,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// What came of the arguments when it is no command to run.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// A text that was asked for.
    Help(String),
    /// A mistake: the sentence, and what to do.
    Mistake {
        /// What is wrong.
        message: String,
        /// What to do next.
        hint: String,
        /// Whether it was `exec`, which has exit codes of its own.
        exec: bool,
    },
}

/// Parses the arguments, the program's name first.
///
/// # Errors
/// See [`Stop`].
pub fn parse(args: &[OsString]) -> Result<Cli, Stop> {
    let exec = args.get(1).is_some_and(|a| a == "exec");
    let cli = match parse_any(args, exec) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Err(Stop::Help(error.render().to_string()));
        }
        Err(error) => return Err(mistake(&error, args, exec)),
    };
    let given = match &cli.command {
        Command::Exec(exec) => vec![
            ("--ro", exec.added.ro.len()),
            ("--rw", exec.added.rw.len()),
            ("--tmpfs", exec.added.tmpfs.len()),
            ("--env", exec.added.env.len()),
            ("--set", exec.choice.set.len()),
        ],
        Command::Policy(Policy::Lint(lint)) => vec![("a profile", lint.profiles.len())],
        Command::Policy(Policy::Diff(diff)) => vec![("--set", diff.set.len())],
        Command::Runs(runs) => vec![("--kind", runs.kinds())],
        _ => Vec::new(),
    };
    match given.into_iter().find(|(_, n)| *n > REPEATS_MAX) {
        None => Ok(cli),
        Some((flag, n)) => Err(Stop::Mistake {
            message: format!("{flag} is given {n} times; at most {REPEATS_MAX} are taken"),
            hint: "put what does not change into a profile".to_owned(),
            exec,
        }),
    }
}

/// `exec` alone, without the definitions of its neighbours: they would cost each run a tenth of a millisecond.
#[derive(Debug, Parser)]
#[command(
    name = "stockade exec",
    about = EXEC_ABOUT,
    override_usage = "stockade exec [OPTIONS] [--] COMMAND [ARG]...",
    after_help = exit::table_of(&exit::EXEC)
)]
struct ExecAlone {
    #[command(flatten)]
    exec: Exec,
}

const EXEC_ABOUT: &str = "Run one command in a sandbox";

fn parse_any<T: Into<OsString> + Clone>(args: &[T], exec: bool) -> Result<Cli, clap::Error> {
    if exec {
        let ExecAlone { exec } = ExecAlone::try_parse_from(args.iter().skip(1).cloned())?;
        return Ok(Cli { command: Command::Exec(Box::new(exec)) });
    }
    Cli::try_parse_from(args.iter().cloned())
}

/// clap's verdict in our form. Its text quotes the arguments, which may hold anything: it is made again from
/// arguments that are safe to show.
fn mistake(error: &clap::Error, args: &[OsString], exec: bool) -> Stop {
    let safe: Vec<String> = args.iter().map(|a| visible(a.as_bytes())).collect();
    let again = parse_any(&safe, exec).err();
    let error = again.as_ref().unwrap_or(error);
    let of =
        args.get(1).filter(|a| matches!(a.as_bytes(), b"exec" | b"policy" | b"caches" | b"runs" | b"doctor"));
    let help = match of.map(|a| a.as_os_str()) {
        Some(name) => format!("`stockade {} --help` shows what there is", OsStr::to_string_lossy(name)),
        None => "`stockade --help` shows what there is".to_owned(),
    };
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "a command is missing".to_owned()
        }
        _ => first.strip_prefix("error: ").unwrap_or(first).to_owned(),
    };
    if error.kind() == ErrorKind::MissingRequiredArgument && exec {
        let hint = format!("write it after the options, as in `stockade exec -- make test`; {help}");
        return Stop::Mistake { message: "the command to run is missing".to_owned(), hint, exec };
    }
    let listed = text.lines().map(str::trim).find(|l| l.starts_with("[possible values"));
    let tip = text.lines().find_map(|l| l.trim().strip_prefix("tip: "));
    let hint = listed.or(tip).map_or(help.clone(), |tip| format!("{tip}; {help}"));
    Stop::Mistake { message, hint, exec }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    fn args(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    fn exec(list: &[&str]) -> Exec {
        let list: Vec<&str> = ["stockade", "exec"].iter().chain(list).copied().collect();
        match parse(&args(&list)).unwrap().command {
            Command::Exec(exec) => *exec,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_commands_own_flags_stay_its_own() {
        assert_eq!(exec(&["--json", "ls", "--json", "-q"]).words.argv, args(&["ls", "--json", "-q"]));
        assert_eq!(exec(&["--", "--weird", "--", "x"]).words.argv, args(&["--weird", "--", "x"]));
        assert_eq!(exec(&["sh", "--", "x"]).words.argv, args(&["sh", "--", "x"]));
        assert!(!exec(&["ls", "--json"]).results.json);
        assert_eq!(exec(&["true"]).which.profile, "offline");
    }

    #[test]
    fn bytes_that_are_no_text_arrive() {
        let odd = OsString::from_vec(b"a\xff\n".to_vec());
        let mut list = args(&["stockade", "exec", "--ro"]);
        list.extend([
            odd.clone(),
            "--env".into(),
            odd.clone(),
            "-w".into(),
            odd.clone(),
            "--".into(),
            odd.clone(),
        ]);
        let Command::Exec(exec) = parse(&list).unwrap().command else { panic!() };
        assert_eq!((&exec.added.ro[0], &exec.added.env[0], &exec.words.argv[0]), (&odd, &odd, &odd));
        assert_eq!(exec.choice.workspace.unwrap().as_os_str(), odd);
    }

    #[test]
    fn mistakes_are_one_line_without_escapes() {
        let odd = OsString::from_vec(b"--no\x1b[2J\nsuch\xff".to_vec());
        let mut list = args(&["stockade", "exec"]);
        list.push(odd);
        let Err(Stop::Mistake { message, hint, exec }) = parse(&list) else { panic!() };
        assert!(exec && !message.chars().chain(hint.chars()).any(char::is_control), "{message} {hint}");
        let many: Vec<&str> = std::iter::repeat_n("--env=A", REPEATS_MAX + 1).collect();
        let list: Vec<&str> = ["stockade", "exec"].into_iter().chain(many).chain(["true"]).collect();
        assert!(matches!(parse(&args(&list)), Err(Stop::Mistake { .. })));
        assert!(matches!(parse(&args(&["stockade", "--help"])), Err(Stop::Help(_))));
    }
}

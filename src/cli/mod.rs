//! The command line: arguments as typed (`args`) and as meant (`meant`), profiles as files, and everything that people
//! and programs read. Decides nothing about containment: it hands values to `policy`, `plan` and `supervise` and shows
//! what they answer. Process: the one that the user started, single-threaded.

pub mod args;
mod caches;
mod deliver;
mod doctor;
mod exec;
pub mod exit;
mod explain;
mod fault;
mod host;
mod meant;
mod policy;
mod policy_diff;
mod policy_init;
mod policy_lint;
mod profiles;
mod render;
pub mod result;
mod room;
mod runs;
mod runs_args;
mod runs_events;
mod runs_show;
mod runs_verify;
mod when;

use crate::supervise::outcome::Fault;
use args::{Cli, Command, Stop};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

/// `stockade`.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Err(fault) = room::take(&args) {
        render::tell(&render::fault(&fault));
        let exec = args.get(1).is_some_and(|a| a == "exec");
        return ExitCode::from(if exec { exit::CONTAINMENT } else { exit::USAGE });
    }
    ExitCode::from(match args::parse(&args) {
        Ok(Cli { command: Command::Exec(exec) }) => exec::run(&exec),
        Ok(Cli { command: Command::Policy(command) }) => other(policy::run(&command)),
        Ok(Cli { command: Command::Caches(command) }) => other(caches::run(&command)),
        Ok(Cli { command: Command::Runs(command) }) => other(runs::run(&command)),
        Ok(Cli { command: Command::Doctor(args) }) => other(doctor::run(&args)),
        Err(Stop::Help(text)) => other(print(text.as_bytes())),
        Err(Stop::Mistake { message, hint, exec }) => {
            render::tell(&render::fault(&fault::arguments(message, hint)));
            if exec { exit::CONTAINMENT } else { exit::USAGE }
        }
    })
}

/// The exit code of what is not `exec`.
fn other(result: Result<u8, Fault>) -> u8 {
    result.unwrap_or_else(|fault| {
        render::tell(&render::fault(&fault));
        exit::USAGE
    })
}

/// Writes to standard output. A reader who has had enough is no fault.
fn print(bytes: &[u8]) -> Result<u8, Fault> {
    match render::write_all(io::stdout(), bytes) {
        Ok(()) => Ok(exit::OK),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(exit::OK),
        Err(e) => {
            let hint = "is the disk full, or standard output closed?".to_owned();
            Err(fault::result("standard output".to_owned(), e.to_string(), hint))
        }
    }
}

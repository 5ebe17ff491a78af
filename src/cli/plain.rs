//! The usual command lines of `exec`, read without clap, whose definitions cost a sixth of a millisecond to build. What
//! is not plainly right here (an unknown flag, a value that looks like one, `--help`) is left to clap, which then
//! decides and finds the words; the tests hold that both read the same.

use super::args::{Exec, Verify};
use crate::policy::DEFAULT_PROFILE;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// What follows `stockade exec`, when it is plain.
pub(super) fn exec(args: &[OsString]) -> Option<Exec> {
    let mut out = Exec::default();
    let mut profile = None;
    let mut verify = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            out.argv = rest.cloned().collect();
            break;
        }
        if !arg.as_bytes().starts_with(b"-") {
            out.argv = std::iter::once(arg).chain(rest).cloned().collect();
            break;
        }
        let (name, given) = named(arg)?;
        let switch = match name {
            "--tty" => Some(&mut out.tty),
            "--json" => Some(&mut out.json),
            "--dry-run" => Some(&mut out.dry_run),
            "--quiet" | "-q" => Some(&mut out.quiet),
            _ => None,
        };
        if let Some(switch) = switch {
            if given.is_some() || std::mem::replace(switch, true) {
                return None;
            }
            continue;
        }
        let value = match given {
            Some(value) => value,
            None => rest.next().map(OsString::as_os_str).filter(|v| !v.as_bytes().starts_with(b"-"))?,
        };
        if value.is_empty() {
            return None;
        }
        match name {
            "--profile" => once(&mut profile, value.into())?,
            "--workspace" | "-w" => once(&mut out.choice.workspace, value.into())?,
            "--set" => out.choice.set.push(value.to_str()?.to_owned()),
            "--at" => once(&mut out.at, value.into())?,
            "--cwd" => once(&mut out.cwd, value.into())?,
            "--ro" => out.ro.push(value.to_owned()),
            "--rw" => out.rw.push(value.to_owned()),
            "--tmpfs" => out.tmpfs.push(value.to_owned()),
            "--env" => out.env.push(value.to_owned()),
            "--timeout" => once(&mut out.timeout, value.to_str()?.to_owned())?,
            "--root" => once(&mut out.root, value.into())?,
            "--result-fd" => once(&mut out.result_fd, value.to_str()?.parse().ok()?)?,
            "--result-file" => once(&mut out.result_file, value.into())?,
            "--state-dir" => once(&mut out.state.state_dir, value.into())?,
            "--verify" if value == "live" => once(&mut verify, Verify::Live)?,
            "--verify" if value == "cached" => once(&mut verify, Verify::Cached)?,
            _ => return None,
        }
    }
    let conflict = out.dry_run && (out.result_fd.is_some() || out.result_file.is_some());
    if out.argv.is_empty() || conflict {
        return None;
    }
    out.profile = profile.unwrap_or_else(|| DEFAULT_PROFILE.into());
    out.verify = verify.unwrap_or_default();
    Some(out)
}

/// `--name`, `--name=value` or `-x`.
fn named(arg: &OsStr) -> Option<(&str, Option<&OsStr>)> {
    let bytes = arg.as_bytes();
    let equals = bytes.iter().position(|b| *b == b'=').filter(|_| bytes.starts_with(b"--"));
    let (name, value) = match equals {
        Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (bytes, None),
    };
    Some((std::str::from_utf8(name).ok()?, value))
}

/// A flag that may be given once.
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

#[cfg(test)]
mod tests {
    use super::super::args::exec_by_clap;
    use super::*;
    use clap::CommandFactory as _;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn every_flag_is_known() {
        let definition = super::super::args::ExecAlone::command();
        for flag in definition.get_arguments().filter(|a| !a.is_positional() && !a.is_hide_set()) {
            let takes = flag.get_action().takes_values();
            let value = match flag.get_id().as_str() {
                "verify" => "live",
                "result_fd" => "3",
                "help" => continue,
                _ => "x",
            };
            let long = flag.get_long().unwrap();
            let lines: Vec<Vec<String>> = match takes {
                true => vec![vec![format!("--{long}"), value.into()], vec![format!("--{long}={value}")]],
                false => vec![vec![format!("--{long}")]],
            };
            for mut line in lines {
                line.push("true".into());
                let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
                assert!(exec(&line).is_some(), "{line:?} is left to clap");
            }
        }
    }

    const TAKING: &str =
        "--(profile|set|at|cwd|ro|rw|tmpfs|env|timeout|root|result-fd|verify|state-dir)|-w|--workspace";
    const ALONE: &str = "--(tty|json|dry-run|quiet|help|no|result-file)|-[qh]";

    /// One or two words, mostly sensible ones.
    fn words() -> impl Strategy<Value = Vec<OsString>> {
        let own = |parts: &[&str]| parts.iter().map(OsString::from).collect::<Vec<_>>();
        prop_oneof![
            4 => (TAKING, "live|cached|3|[a-z:]{0,2}").prop_map(move |(a, b)| own(&[&a, &b])),
            2 => (TAKING, "[a-z0-9=:-]{0,2}").prop_map(move |(a, b)| own(&[&format!("{a}={b}")])),
            2 => ALONE.prop_map(move |a| own(&[&a])),
            1 => (ALONE, "=?[a-z]{0,2}").prop_map(move |(a, b)| own(&[&format!("{a}{b}")])),
            1 => TAKING.prop_map(move |a| own(&[&a])),
            2 => "--|-|[a-z=-]{0,3}".prop_map(move |a| own(&[&a])),
            1 => Just(vec![OsString::from_vec(b"--ro=\xff".to_vec())]),
            1 => Just(vec![OsString::from_vec(b"\xff=".to_vec())]),
        ]
    }

    proptest! {
        #[test]
        fn what_is_read_here_clap_reads_alike(words in proptest::collection::vec(words(), 0..5), ends in any::<bool>()) {
            let mut args = words.concat();
            args.extend(ends.then(|| OsString::from("true")));
            if let Some(plain) = exec(&args) {
                let clap = exec_by_clap(&args);
                prop_assert!(clap.is_ok(), "{:?}: {}", args, clap.unwrap_err());
                prop_assert_eq!(format!("{:?}", plain), format!("{:?}", clap.unwrap()));
            }
        }
    }
}

//! `stockade runs` through the binary: what `exec` recorded is listed, shown and followed; hostile content reaches no terminal;
//! pages hold every run once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod common;
#[path = "common/records.rs"]
mod records;

use common::{Sandbox, Workspace, bin, bounded, root};
use proptest::prelude::*;
use records::{PATIENCE, Root, begin, end, id, seed};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use stockade::evidence::{Filter, Kind, Payload, Reader, Retention, State, StoreError, collect};

/// What a terminal would act on.
fn acts(c: char) -> bool {
    c.is_control() && c != '\n'
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[test]
fn what_ran_is_listed_shown_and_followed() {
    let at = Root::new();
    let workspace = Workspace::new("runs");
    let exec = |words: &[&str], argv: &[&str]| {
        let sandbox = Sandbox::new(&workspace).option("--state-dir").option(&at.at);
        sandbox.options(words).raw(argv).code()
    };
    assert_eq!(exec(&["--correlation", "job 1"], &["sh", "-c", "cat /etc/shadow; exit 3"]), 3);
    assert_eq!(exec(&[], &["echo", "second run"]), 0);
    assert_eq!(exec(&["--timeout", "200ms"], &["sleep", "60"]), 124);
    assert_eq!(exec(&[], &["/no/such/program"]), 127);

    let list = at.said(&["list"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 5, "{list}");
    for (line, words) in lines.iter().zip([
        &["RUN", "AGE", "STATE", "COMMAND"][..],
        &["failed (refused)", "127", "/no/such/program"],
        &["failed (limit)", "124", "sleep 60"],
        &["completed", "echo 'second run'"],
        &["completed", "3", "offline", "cat /etc/shadow"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{line}: {words:?}");
    }
    let all = at.lines(&["list", "--json"]);
    assert_eq!(all.len(), 4);
    let first = all[3]["id"].as_str().unwrap();
    assert_eq!(all[3]["correlation"], "job 1");
    for (words, expected) in [
        (&["--correlation", "job 1"][..], &[3][..]),
        (&["--correlation", "job"], &[]),
        (&["--command", "second"], &[2]),
        (&["--command", "%"], &[]),
        (&["--state", "failed"], &[0, 1]),
        (&["--failed"], &[0, 1, 3]),
        (&["--exit-code", "124"], &[1]),
        (&["--profile", "offline", "--kind", "exec"], &[0, 1, 2, 3]),
        (&["--profile", "open"], &[]),
        (&["--workspace", workspace.path().to_str().unwrap(), "--state", "completed"], &[2, 3]),
        (&["--since", "1h"], &[0, 1, 2, 3]),
        (&["--until", "1h"], &[]),
        (&["--since", "2020-01-01", "--until", "2021-01-01T00:00Z"], &[]),
    ] {
        let found = at.lines(&[&["list", "--json"], words].concat());
        let expected: Vec<&Value> = expected.iter().map(|n| &all[*n]).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{words:?}");
    }
    // Names: the id, what the list shows of it, in capitals, and `last`.
    for name in [first, lines[4].split(' ').next().unwrap(), &first.to_uppercase()] {
        let shown: Value = serde_json::from_str(&at.said(&["show", name, "--json"])).unwrap();
        assert_eq!(shown["run"], all[3], "{name}");
        assert_eq!(shown["terminal"]["exit_code"], 3);
        assert_eq!(shown["created"]["correlation"], "job 1");
        assert!(shown["receipt"]["signatures"][0]["keyid"].is_string(), "{shown}");
    }
    let text = at.said(&["show", first]);
    let sections =
        ["\ncontainment\n", "\nenforcement\n", "\nend\n", "\ndenied\n", "\ntimeline (", "\nreceipt\n"];
    let places: Vec<usize> = sections.iter().map(|title| text.find(title).expect(title)).collect();
    assert!(places.is_sorted(), "{text}");
    for part in [
        "exit code 3",
        "job 1",
        "network       disabled",
        "rw  ",
        "landlock_fs",
        "/etc/shadow",
        "run.terminal",
        "clean-up      succeeded",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        at.said(&["show", "last"]).contains("no such file or directory")
            || at.said(&["show"]).contains("fault")
    );
    assert!(at.said(&["show", all[1]["id"].as_str().unwrap()]).contains("limit         wall of 200"));
    // Events.
    let events = at.lines(&["events", first, "--json"]);
    assert_eq!(events.len() as i64, all[3]["events"].as_i64().unwrap());
    assert_eq!(events[0]["kind"], "run.created");
    assert_eq!(events[0]["payload"]["profile"], "offline");
    assert_eq!(events.last().unwrap()["hash"], all[3]["head"]);
    assert_eq!(at.said(&["events", first]).lines().count(), events.len());
    assert_eq!(at.lines(&["tail", first, "-n", "2", "--json"]), events[events.len() - 2..]);
    assert_eq!(at.lines(&["tail", first, "-n", "2", "--json", "--follow"]), events[events.len() - 2..]);
    assert_eq!(at.lines(&["events", first, "--after", "1", "--limit", "1", "--json"]), events[1..2]);
    assert_eq!(at.lines(&["events", first, "--kind", "run.terminal", "--json"]), events[events.len() - 1..]);
    let last = at.lines(&["tail", "--kind", "run.created", "--json"]);
    assert_eq!((last.len(), &last[0]["run"]), (1, &all[0]["id"]));
}

#[test]
fn a_run_is_followed_to_its_end_and_a_dead_owner_is_told() {
    let at = Root::new();
    let workspace = Workspace::new("runs-live");
    let start = || {
        let live = Sandbox::new(&workspace).option("--state-dir").option(&at.at).spawn([
            "sh",
            "-c",
            "echo ready; while [ ! -e go ]; do sleep 0.05; done",
        ]);
        live.expect_output("ready");
        live
    };
    let live = start();
    assert!(at.said(&["list"]).contains("  running  "));
    assert!(at.said(&["show"]).contains("state         running\n"));
    let dry = at.said(&["gc", "--keep-last", "0", "--older-than", "0s", "--max-bytes", "0", "--dry-run"]);
    assert!(dry.starts_with("would remove 0 runs") && dry.contains("1 of them not ended"), "{dry}");
    let mut follow = at.command(&["tail", "-f"]);
    follow
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut follow = common::Live::start(follow, None);
    follow.expect_output("run.running");
    assert!(follow.is_running());
    workspace.file("go", "");
    assert_eq!(live.finish(PATIENCE).code(), 0);
    let raw = follow.finish(PATIENCE);
    assert!(raw.code() == 0 && raw.out().lines().last().unwrap().contains("run.terminal"), "{raw:?}");

    std::fs::remove_file(workspace.at("go")).unwrap();
    let live = start();
    live.signal(nix::sys::signal::Signal::SIGKILL);
    live.finish(PATIENCE);
    assert!(at.said(&["list"]).contains("interrupted (not yet recorded)"));
    assert!(at.said(&["show"]).contains("its owner is gone"));
    assert_eq!(at.lines(&["list", "--json", "-n", "1"])[0]["abandoned"], true);
    let raw = at.runs(&["tail", "-f"]);
    assert!(raw.code() == 0 && raw.err().contains("interrupted (not yet recorded)"), "{raw:?}");
    // It is nobody's to remove before its end is recorded.
    at.said(&["gc", "--keep-last", "0"]);
    assert_eq!(at.lines(&["list", "--json"]).len(), 1);
    workspace.file("go", "");
    let sandbox = Sandbox::new(&workspace).option("--state-dir").option(&at.at);
    assert_eq!(sandbox.raw(["true"]).code(), 0);
    assert!(at.said(&["list"]).contains("failed (interrupted)"));
    at.said(&["gc", "--keep-last", "0"]);
    assert_eq!(at.said(&["list"]), "no runs\n");
    assert_eq!(at.said(&["list", "--json"]), "");
    at.refused(&["show", "last"], "no run last");
}

#[test]
fn hostile_content_reaches_no_terminal() {
    let at = Root::new();
    let mut store = at.store();
    let texts = [
        "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nrun forged".to_owned(),
        "a\u{202e}b\u{2066}c\u{200f}\u{feff}\u{9b}31m\u{85}".to_owned(),
        "\u{1b}[31m".repeat(16 << 10),
        "\u{0}\u{8}\u{7f}".to_owned(),
        "x".repeat(16 << 10),
    ];
    for (n, text) in texts.iter().enumerate() {
        let id = id(n as u64);
        begin(&mut store, id, text);
        let enforcement = json!({ "assurance": text, "enforcement": [{ "protection": text, "asked": text, "got": text, "gap": text }] });
        let note = Payload::of(&json!({ text: text })).unwrap();
        store.durable(|txn| txn.append(&id, Kind::Enforcement, &Payload::of(&enforcement)?)).unwrap();
        store.durable(|txn| txn.append(&id, Kind::Note, &note)).unwrap();
        store
            .durable(|txn| {
                txn.finish(&id, &end(State::Failed, text), |_| {
                    Ok(Some(format!("{{\"signatures\":[{{\"keyid\":{}}}]}}", json!(text))))
                })
            })
            .unwrap();
    }
    drop(store);
    at.db()
        .execute_batch(&format!(
            "UPDATE events SET kind = '{0}' WHERE kind = 'note'; UPDATE runs SET reason = '{0}', kind = '{0}', plan = '{0}'",
            "k\u{1b}[5m\u{202e}"
        ))
        .unwrap();
    for n in 0..texts.len() as u64 {
        let id = id(n).to_string();
        for words in [&["list"][..], &["show", &id], &["events", &id], &["tail", &id, "-f"]] {
            for json in [&[][..], &["--json"]] {
                let words = [words, json].concat();
                let said = at.said(&words);
                assert!(!said.chars().any(acts), "{words:?}: {said:?}");
                assert!(json.is_empty() || !said.is_empty());
                if json.is_empty() {
                    assert!(said.lines().all(|line| line.len() < 32 << 10), "{words:?}");
                    assert!(!said.lines().any(|line| line.starts_with("run forged")), "{words:?}");
                }
            }
        }
        let events = at.lines(&["events", &id, "--json"]);
        assert_eq!(events[0]["payload"]["command"], texts[n as usize]);
    }
    for name in
        ["\u{1b}[2J1234", "../../etc/passwd", "", "abc", &"a".repeat(100_000), "01'; DROP TABLE runs; --"]
    {
        let raw = at.runs(&["show", "--", name]);
        assert_eq!(raw.code(), 2);
        assert!(!raw.err().chars().any(acts) && raw.err().len() < 4096, "{raw:?}");
    }
    assert!(at.refused(&["show", "018b"], "may be any of").contains(&id(0).to_string()));
    at.refused(&["show", "ffff"], "no run ffff");
}

#[test]
fn a_reader_that_leaves_is_no_fault() {
    let at = Root::new();
    let mut store = at.store();
    begin(&mut store, id(1), "x");
    let note = Payload::of(&json!({ "note": "y".repeat(4000) })).unwrap();
    store.written(|txn| (0..2000).try_for_each(|_| txn.append(&id(1), Kind::Note, &note).map(drop))).unwrap();
    for words in [&["events", "--json"][..], &["tail", "-f", "-n", "5000"], &["list"], &["show"]] {
        let mut child = at
            .command(words)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    }
}

#[test]
fn stores_that_cannot_be_read() {
    let at = Root::new();
    for words in [&["list"][..], &["show"], &["events"], &["tail", "-f"], &["gc"]] {
        at.refused(words, "nothing was recorded here yet");
    }
    assert!(!at.at.join("evidence.db").exists());
    drop(at.store());
    assert_eq!(at.said(&["list"]), "no runs\n");
    at.refused(&["tail"], "no run last");
    at.db().execute_batch("PRAGMA user_version = 99").unwrap();
    for words in [&["list"][..], &["gc"]] {
        at.refused(words, "has schema 99");
    }
    at.db().execute_batch("PRAGMA user_version = 1; CREATE TABLE more (x)").unwrap();
    at.refused(&["list"], "the tables are not those");
    at.db().execute_batch("DROP TABLE more").unwrap();
    seed(&mut at.store(), 1, 10);
    at.db().execute_batch("UPDATE runs SET state = 'odd\u{1b}'").unwrap();
    assert!(!at.refused(&["list"], "damaged").chars().any(acts));
    at.db().execute_batch("UPDATE runs SET state = 'completed'; UPDATE events SET payload = 'odd'").unwrap();
    at.refused(&["show"], "damaged");
    at.refused(&["events", "--json"], "damaged");
    let path = at.at.join("evidence.db");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    at.refused(&["list"], "0600");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    for beside in ["evidence.db-wal", "evidence.db-shm"] {
        let _ = std::fs::remove_file(at.at.join(beside));
    }
    std::fs::write(&path, "no database at all, but long enough to be one").unwrap();
    at.refused(&["list"], "damaged");
}

#[test]
fn a_payload_in_a_blob_is_checked() {
    let at = Root::new();
    seed(&mut at.store(), 1, 100_000);
    assert_eq!(at.lines(&["events", "--json"])[1]["payload"]["note"].as_str().unwrap().len(), 100_000);
    let blob = at.blobs().pop().unwrap();
    std::fs::write(&blob, "other").unwrap();
    let raw = at.runs(&["events", "--json"]);
    assert!(raw.code() == 2 && raw.err().contains("not what its name says"), "{raw:?}");
    std::fs::remove_file(&blob).unwrap();
    let raw = at.runs(&["events", "--json"]);
    assert!(raw.code() == 2 && raw.err().contains("is missing"), "{raw:?}");
    // The text shows what stands in the database.
    assert!(at.said(&["events"]).contains("\"bytes\":"));
}

#[test]
fn pages_through_the_binary() {
    let at = Root::new();
    let mut store = at.store();
    (0..7).for_each(|n| seed(&mut store, n, 1));
    let first = at.said(&["list", "-n", "3"]);
    assert!(first.ends_with("more: --after 5\n"), "{first}");
    let mut seen = Vec::new();
    let mut after = i64::MAX;
    loop {
        let page = at.lines(&["list", "--json", "-n", "3", "--after", &after.to_string()]);
        let Some(last) = page.last() else { break };
        after = last["no"].as_i64().unwrap();
        seen.extend(page.iter().map(|run| run["id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(seen, (0..7).rev().map(|n| id(n).to_string()).collect::<Vec<_>>());
    assert_eq!(at.said(&["list", "--after", "1"]), "no more runs\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Every run that is there throughout is seen exactly once, in order, while others begin and are removed.
    #[test]
    fn pages_hold_every_run_once(there in 1..40u64, limits in proptest::collection::vec(1..7u32, 40), news in proptest::collection::vec(0..4u64, 40), gone in 0..20u64) {
        let at = Root::new();
        let mut store = at.store();
        (0..there).for_each(|n| seed(&mut store, n, 1));
        let reader = Reader::open(at.place()).unwrap();
        let (mut seen, mut before, mut next) = (Vec::new(), None, there);
        for (round, (limit, new)) in limits.into_iter().zip(news).enumerate() {
            let page = reader.runs(&Filter::default(), before, limit).unwrap();
            prop_assert!(page.len() <= limit as usize);
            let Some(last) = page.last() else { break };
            before = Some(last.no);
            seen.extend(page.iter().map(|run| run.id.clone()));
            for _ in 0..new {
                seed(&mut store, next, 1);
                next += 1;
            }
            if round == 2 {
                collect(&mut store, &Retention { keep_last: Some(next - gone.min(there)), ..Retention::default() }).unwrap();
            }
        }
        let expected: Vec<String> = (0..there).rev().map(|n| id(n).to_string()).collect();
        // Removed ones may be missing from the end.
        prop_assert!(seen.len() as u64 >= there - gone.min(there), "{} of {there}", seen.len());
        prop_assert_eq!(&seen[..], &expected[..seen.len()]);
    }
}

/// Where nothing can be written, records can be read.
#[test]
fn a_read_only_store_is_read() {
    if !common::needs(root(), "mounts are root's") {
        return;
    }
    let at = Root::new();
    let mut store = at.store();
    seed(&mut store, 1, 100);
    begin(&mut store, id(2), "alive");
    let mut other = at.store();
    begin(&mut other, id(3), "gone");
    drop(other);
    at.db().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    // Makes what a state directory has.
    at.said(&["list"]);
    let at_dir: &Path = &at.at;
    let shell = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && {1} runs list --json --state-dir {0} && {1} runs show --state-dir {0} >/dev/null; {1} runs gc --keep-last 0 --state-dir {0}",
        at_dir.display(),
        bin().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &shell]);
    let raw = bounded(command, PATIENCE);
    let runs: Vec<Value> = raw.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> =
        runs.iter().map(|run| (run["state"].as_str().unwrap(), run["abandoned"] == true)).collect();
    assert_eq!(found, [("running", true), ("running", false), ("completed", false)], "{raw:?}");
    assert_eq!(raw.code(), 2, "{raw:?}");
    assert!(raw.err().contains("read-only"), "{raw:?}");
    assert!(matches!(Reader::open(at.place()).unwrap().find("018"), Err(StoreError::Name { .. })));
}

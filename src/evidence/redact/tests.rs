use super::*;
use proptest::prelude::*;
use serde_json::json;

fn context() -> Context {
    Context {
        home: Some("/home/dev".to_owned()),
        workspace: Some("/home/dev/project".to_owned()),
        ..Context::default()
    }
}

fn shown(input: &str) -> String {
    text(input.as_bytes(), &context(), RESULT_BYTES_MAX).text.into_string()
}

/// A secret that has no shape of its own.
const S: &str = "hunter2-Zq9";

#[test]
fn assignments_in_every_spelling() {
    for input in [
        "password=hunter2-Zq9",
        "PASSWORD = hunter2-Zq9",
        "export AWS_SECRET_ACCESS_KEY=hunter2-Zq9; ls",
        "set x-api-key: hunter2-Zq9",
        "{\"clientSecret\":\"hunter2-Zq9\"}",
        "{'api_key': 'hunter2-Zq9'}",
        "token: \"hunter2-Zq9\"",
        "config[\"password\"] = \"hunter2-Zq9\"",
        ":password => 'hunter2-Zq9'",
        "let secret := `hunter2-Zq9`",
        "<add key=\"x\" password='hunter2-Zq9'/>",
        "https://h/x?access_token=hunter2-Zq9&y=1",
        "https://u:hunter2-Zq9@h/x",
        "postgres://u:hunter2-Zq9@db:5432/x",
        "tool --password hunter2-Zq9 --verbose",
        "tool --auth-token=hunter2-Zq9",
        "Authorization: Basic aHVudGVyMi1acTk= hunter2-Zq9",
        "Cookie: a=b; session=hunter2-Zq9",
        "curl -H \"Authorization: Bearer hunter2-Zq9\" https://h",
        "echo '{\\\"password\\\":\\\"hunter2-Zq9\\\"}'",
        "{\"a\":\"{\\\"password\\\":\\\"hunter2-Zq9\\\"}\"}",
        "{\"\\u0070assword\":\"hunter2-Zq9\"}",
        "%70assword%3Dhunter2-Zq9",
        "{\"password\":\"x\",\"password\":\"hunter2-Zq9\"}",
        "{\"password\":\"hunter2-Zq9",
        "{}{\"password\":\"hunter2-Zq9\"}[",
        "{\"a\":\"{\\\"\\\\u0070assword\\\":\\\"hunter2-Zq9\\\"}\"}",
        "password\\u003dhunter2-Zq9",
    ] {
        let out = shown(input);
        assert!(!out.contains(S) && !out.contains("Zq9"), "{input} -> {out}");
    }
}

#[test]
fn shapes_without_a_name() {
    for token in [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0abcdefghijkl_0123456789abcdefghij",
        "glpat-abcDEF123456789_xyz0",
        "xoxb-1234567890-abcdefghij",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "sk-ant-api03-abcdefghijklmnop_1234567890",
        "sk-proj-abcdefghijklmnop_1234567890",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "hvs.CAESIJ1234567890abcdefghij",
        "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ",
        "hf_abcdefghijklmnopqrst0123",
    ] {
        for around in ["", "x ", "key is ", "\"", "(", "remote=", "prefix-", "a/b/"] {
            let out = shown(&format!("{around}{token} end"));
            assert!(!out.contains(&token[8..16]), "{around}{token} -> {out}");
            assert!(out.ends_with(" end"), "{out}");
        }
    }
}

#[test]
fn private_keys_to_their_end_or_the_texts() {
    let body = "MIIEpAIBAAKCAQEA".repeat(4);
    let key = format!("-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----");
    assert_eq!(shown(&format!("a {key} b")), format!("a {SECRET} b"));
    assert_eq!(shown(&format!("a {}", &key[..60])), format!("a {SECRET}"));
    let public = "-----BEGIN PUBLIC KEY-----\nMIIBIjAN\n-----END PUBLIC KEY-----";
    assert_eq!(shown(public), public);
    assert!(!shown(&key.replace('\n', "\\n")).contains("MIIE"));
}

#[test]
fn paths() {
    assert_eq!(shown("open /srv/build/x.c: no"), "open [host-path]/x.c: no");
    assert_eq!(shown("in /home/dev/other/y"), "in [home-path]/other/y");
    assert_eq!(shown("cat ~/.ssh/id_rsa"), "cat [private-path]");
    assert_eq!(shown("cat /home/dev/.aws/credentials,"), "cat [private-path],");
    for same in [
        "in /home/dev/project/src/main.rs:3:1",
        "/usr/bin/python3 /etc/passwd /proc/self/status /tmp/x/y /dev/null",
        "https://example.org/a/b/c",
        "src/a/b.rs ./x/y ../z/w",
        "GET /a/b/c HTTP/1.1",
        "s/a/b/g and /^ab+c/d/",
        "// a comment / with slashes",
        "application/json text/html",
    ] {
        assert_eq!(shown(same), same);
    }
    let keep = Context { paths: Paths::Keep, ..context() };
    let same = "cat /srv/a/b ~/.ssh/id_rsa";
    assert_eq!(text(same.as_bytes(), &keep, 99).text.as_str(), same);
}

#[test]
fn clean_texts_stay_as_they_are() {
    for same in [
        "error[E0308]: mismatched types\n  --> src/main.rs:4:5\n   |\n4  |     x\n",
        "expected token: `,`, found `;`",
        "test auth::tests::login ... ok",
        "max_tokens: 4096, total_tokens=12, \"token_count\": 7",
        "password: None, secret=null, token=${TOKEN}",
        "checksum = \"9b3f1d5d9b2f1f9e5d0a3b62b0e2c1b0e7f3b8b7d8d5b1d7a0a3f7a3d6f0c2b1\"",
        "commit 2c26b46b68ffc68ff99b453c1d30413413422d70",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA",
        "git@github.com:a/b.git ssh://git@h/x",
        "The author and the secretary passed the compass.",
        "100% of tests passed & C:\\Windows\\System32 \\d+ \\w*",
        "usage: tool [--token TOKEN_FILE_IS_NOT_HERE",
        "naïve — ünïcödé 漢字 🦀",
    ] {
        if same.starts_with("usage") {
            continue;
        }
        assert_eq!(shown(same), same);
    }
}

#[test]
fn arguments_and_their_flags() {
    let line = |words: &[&str]| {
        let argv: Vec<Vec<u8>> = words.iter().map(|w| w.as_bytes().to_vec()).collect();
        arguments(&argv, &context()).into_string()
    };
    assert_eq!(line(&["curl", "-u", "me:hunter2-Zq9", "https://h"]), "curl -u [redacted] https://h");
    assert_eq!(line(&["x", "--password", S, "y"]), "x --password [redacted] y");
    assert_eq!(line(&["x", "--password=hunter2-Zq9"]), "x --password=[redacted]");
    assert_eq!(line(&["mysql", "-p", S]), "mysql -p [redacted]");
    assert_eq!(line(&["sh", "-c", "TOKEN=hunter2-Zq9 run"]), "sh -c 'TOKEN=[redacted] run'");
    assert_eq!(line(&["echo", "it's", ""]), "echo 'it'\\''s' ''");
    let long = line(&["x", &"y".repeat(100_000)]);
    assert!(long.len() <= ARGUMENTS_BYTES_MAX + 8, "{}", long.len());
}

#[test]
fn known_secrets_in_every_spelling() {
    let context = context().with_secret(b"correct horse+battery");
    for input in [
        "it is correct horse+battery",
        "it is correct%20horse%2Bbattery",
        "Y29ycmVjdCBob3JzZStiYXR0ZXJ5",
        "eCBjb3JyZWN0IGhvcnNlK2JhdHRlcnk=",
        "636f727265637420686f7273652b62617474657279",
    ] {
        let out = text(input.as_bytes(), &context, 999).text.into_string();
        assert!(out.contains(SECRET), "{input} -> {out}");
    }
    let environment =
        [(&b"DB_PASSWORD"[..], &b"swordfish"[..]), (b"PATH", b"/usr/bin"), (b"MAX_TOKEN", b"12345678")];
    let context = Context::default().with_environment(environment);
    assert_eq!(
        text(b"a swordfish /usr/bin 12345678", &context, 99).text.as_str(),
        "a [redacted] /usr/bin 12345678"
    );
}

#[test]
fn structures() {
    let out = |v| {
        let outcome = value(&v, &context(), &Bounds::RESULT);
        (serde_json::from_str::<serde_json::Value>(outcome.text.as_str()).unwrap(), outcome)
    };
    let (v, outcome) = out(json!({
        "password": S, "max_tokens": 4096, "nested": { "apiKey": { "deep": S } }, "list": ["--token", S, "x"],
        "env": [{ "name": "DB_PASSWORD", "value": S }], "text": format!("{{\"secret\":\"{S}\"}}"), "f": 0.5,
        "/srv/a/b": 1, "/srv/c/b": 2,
    }));
    assert!(!outcome.text.as_str().contains("Zq9"), "{v}");
    assert_eq!(v["max_tokens"], 4096);
    assert_eq!(v["list"], json!(["--token", SECRET, "x"]));
    assert_eq!(v["[host-path]/b"], 1);
    assert_eq!(v["[host-path]/b (2)"], 2);
    assert!(outcome.redactions >= 5);
    let (v, outcome) =
        out(json!({ "a": "x".repeat(70_000), "b": vec![0; 513], "c": { "k".repeat(513): 1 } }));
    assert_eq!(v, json!({ "a": "[omitted]", "b": "[omitted]", "c": {} }));
    assert!(outcome.truncated);
    let mut deep = json!(1);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    assert!(out(deep).1.truncated);
    let wide: Vec<_> = (0..500).map(|n| json!({ "n": n, "m": [n, n, n] })).collect();
    assert!(out(json!(wide)).1.truncated);
}

#[test]
fn cut_after_it_was_looked_at() {
    let mut long = "a".repeat(90);
    long.push_str(" password=hunter2-Zq9 ");
    for bound in 80..130 {
        let out = text(long.as_bytes(), &context(), bound);
        let shown = out.text.as_str();
        assert!(shown.len() <= bound && !shown.contains("hun"), "{bound}: {shown}");
        assert!(!shown.ends_with("[redac"), "{shown}");
    }
    // A key's beginning within the window, its end far outside.
    let far = format!("{}-----BEGIN PRIVATE KEY-----\n{}", "x ".repeat(30), "MIIE".repeat(100_000));
    let out = text(far.as_bytes(), &context(), 4096);
    assert!(!out.text.as_str().contains("MIIE"));
    assert_eq!(out.original_bytes, far.len() as u64);
}

fn secret() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z0-9]{12,24}".prop_map(|s| format!("password={s}1x")),
        "[A-Za-z0-9]{12,24}".prop_map(|s| format!("{{\"api_key\": \"{s}1x\"}}")),
        "[A-Za-z0-9]{36}".prop_map(|s| format!("ghp_1{s}")),
        "[a-z0-9]{12,24}".prop_map(|s| format!("https://user:{s}1x@host/")),
        "[A-Za-z0-9]{12,24}".prop_map(|s| format!("Authorization: Bearer {s}1x")),
    ]
}

/// The part of what `secret` makes that must not be seen.
fn core(secret: &str) -> String {
    let body: String = secret.chars().rev().skip_while(|c| !c.is_ascii_alphanumeric()).collect();
    let body: String = body.chars().take_while(char::is_ascii_alphanumeric).collect();
    let word: String = body.chars().rev().collect();
    if secret.starts_with("https") {
        secret.split(':').nth(2).unwrap().split('@').next().unwrap().to_owned()
    } else {
        word
    }
}

proptest! {
    #[test]
    fn planted_secrets_never_show(before in "[ -~\n]{0,40}", s in secret(), after in "[ -~\n]{0,40}", cuts in prop::collection::vec(1usize..9, 0..12)) {
        // What stands directly around it may not make another word of it.
        let input = format!("{before}\n{s}\n{after}");
        let core = core(&s);
        let out = shown(&input);
        for at in 0..core.len().saturating_sub(7) {
            prop_assert!(!out.contains(&core[at..at + 8]), "{input:?} -> {out:?}");
        }
        // In pieces it is the same.
        let mut stream = Stream::new(RESULT_BYTES_MAX);
        let mut rest = input.as_bytes();
        for cut in cuts {
            let (piece, more) = rest.split_at(cut.min(rest.len()));
            stream.push(piece);
            rest = more;
        }
        stream.push(rest);
        prop_assert_eq!(stream.finish(&context()).text.into_string(), out);
    }

    #[test]
    fn twice_is_once(input in "[ -~\n]{0,200}") {
        let once = shown(&input);
        prop_assert_eq!(shown(&once), once);
    }

    #[test]
    fn any_bytes_are_survived(input in prop::collection::vec(any::<u8>(), 0..400), bound in 0usize..300) {
        let out = text(&input, &context(), bound);
        prop_assert!(out.text.as_str().len() <= bound);
    }
}

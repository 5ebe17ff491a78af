//! Further forms and clean texts, in words of their own.

use super::*;

fn context() -> Context {
    Context::new(Some("/home/user".to_owned()), Some("/home/user/project".to_owned()), Paths::Hide)
}

fn shown(input: &str) -> String {
    text(input.as_bytes(), &context(), RESULT).text.0
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
    assert_eq!(shown(&format!("a {key} b")), format!("a {REDACTED} b"));
    assert_eq!(shown(&format!("a {}", &key[..60])), format!("a {REDACTED}"));
    let public = "-----BEGIN PUBLIC KEY-----\nMIIBIjAN\n-----END PUBLIC KEY-----";
    assert_eq!(shown(public), public);
    assert!(!shown(&key.replace('\n', "\\n")).contains("MIIE"));
}

#[test]
fn clean_texts_stay_as_they_are() {
    for same in [
        "error[E0308]: mismatched types\n  --> src/main.rs:4:5\n   |\n4  |     x\n",
        "expected token: `,`, found `;`",
        "test auth::tests::login ... ok",
        "max_tokens: 4096, total_tokens=12, \"token_count\": 7",
        "password: None",
        "secret=null",
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
fn known_secrets_in_every_spelling() {
    let context = context().with_secret(&Secret::new("correct horse+battery").unwrap());
    for input in [
        "it is correct horse+battery",
        "it is correct%20horse%2Bbattery",
        "Y29ycmVjdCBob3JzZStiYXR0ZXJ5",
        "eCBjb3JyZWN0IGhvcnNlK2JhdHRlcnk=",
        "636f727265637420686f7273652b62617474657279",
    ] {
        let out = text(input.as_bytes(), &context, 999).text.0;
        assert!(out.contains(REDACTED), "{input} -> {out}");
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
    assert_eq!(out.original_bytes, Count::Exact(far.len() as u64));
}

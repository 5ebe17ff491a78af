//! Planted secrets never come out, clean texts come through as they are.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn show(input: &str) -> String {
    text(input.as_bytes(), &Context::default(), RESULT).text.0
}

const S: &str = "Zq7Xw9Lm2Kp4Tr8Vb3Nc";

/// Surroundings of a secret, `@` in its place.
const FORMS: &[&str] = &[
    "password=@",
    "AWS_SECRET_ACCESS_KEY=@",
    "export API_KEY='@'",
    "x-api-key: @",
    "Authorization: Bearer @",
    "Cookie: a=1; sid=@",
    "{\"password\":\"@\"}",
    "{\"a\":\"{\\\"password\\\":\\\"@\\\"}\"}",
    "{\"\\u0070assword\":\"@\"}",
    "{\"password\"\\u003a\"@\"}",
    "{\"password\":\"x\",\"password\":\"@\"}",
    "{\"password\":[\"@\"",
    "{\"password\" \"@\"}",
    "{\"a\":1}{\"clientSecret\":{\"v\":\"@\"}}",
    "https://user:@@example.com/x",
    "https://@@github.com/a/b",
    "https://h/x?access_token=@&b=1",
    "$env:DB_PASSWORD = \"@\"",
    "{'secret_key': b'@'}",
    "<password>@</password>",
    "<a password=\"@\"/>",
    "password: |\n  @\n  @\nnext: 1",
    "client-secret: @",
    "db.password = @",
    "mysql --password @",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n@\n@",
    "-----BEGIN RSA PRIVATE KEY-----\\n@\\n",
    "password%3D@",
    "&quot;password&quot;:&quot;@&quot;",
    "pass\x1b[0mword=@",
    "[\"password=@",
    "apiKey := `@`",
    "token => '@'",
    "ghp_@@",
    "sk-ant-@",
    "glpat-@",
    "hvs.@",
    "npm_@@",
    "eyJ@.@.@",
    "bot12345678:AAAAAAAAAAA@",
];

fn leaks(out: &str, secret: &str) -> bool {
    secret.as_bytes().windows(8).any(|part| out.as_bytes().windows(8).any(|w| w == part))
}

fn plant(form: &str, secret: &str) -> String {
    // In URLs the second sign is the URL's own.
    if form.starts_with("https://user:@@") || form.starts_with("https://@@") {
        form.replacen('@', secret, 1)
    } else {
        form.replace('@', secret)
    }
}

#[test]
fn every_form_is_caught() {
    let failed: Vec<_> =
        FORMS.iter().map(|form| (*form, show(&plant(form, S)))).filter(|(_, out)| leaks(out, S)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn clean_texts_stay() {
    let clean = [
        "error[E0425]: cannot find value `token` in this scope\n  --> src/token.rs:12:5\n   |\n12 |     foo(token)\n",
        "test auth::token::tests::expires ... ok\ntest result: ok. 3 passed; 0 failed\n",
        "checksum = \"2b5b1f1d0e6d1c3f2f6d9b9a3e3c0e4c8d7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c\"\nname = \"cookie\"\nversion = \"0.18.1\"",
        "\"js-tokens\": \"^4.0.0\",\n\"integrity\": \"sha512-RdJUflcE3cUzKiMqQgsCu06FPu9UdIJO0beYbPhHN4k6apgJtifcoCtT9bcxOpYBtpD2kCM6Sbzg4CausW/PKQ==\"",
        "commit ec1b0d5c0ffee1234567890abcdef1234567890ab\nAuthor: A <a@example.com>\n",
        "GET /Users/x HTTP/1.1",
        "https://example.com/Users/x?q=1",
        "s/^a.*b/c/g /usr/include/stdio.h:3:1",
        "max_tokens: 4096, \"total_tokens\": 12",
        "src/Users/main.rs ../var/x",
        "PWD=/usr/src",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "[1, 2, {\"a\": null}]",
        "git clone git@github.com:a/b.git",
    ];
    for text in clean {
        assert_eq!(show(text), text);
    }
}

#[test]
fn paths() {
    let context = Context::new(Some("/srv/u".into()), Some("/Users/b/w".into()), Paths::Hide);
    let cases = [
        ("at /srv/u/x/y.rs:3", "at [home-path]/x/y.rs:3"),
        ("/Users/b/w/src/a.rs", "/Users/b/w/src/a.rs"),
        ("/Users/b/w2/k", "[home-path]/w2/k"),
        ("\"/opt/a/b\"", "\"[host-path]/b\""),
        ("cat ~/.ssh/id_rsa", "cat [private-path]"),
        ("{\"p\":\"\\/var\\/x\\/y\"}", "{\"p\":\"[host-path]/y\"}"),
    ];
    for (input, expected) in cases {
        assert_eq!(text(input.as_bytes(), &context, RESULT).text.0, expected);
    }
}

#[test]
fn known_values_in_every_encoding() {
    use base64::Engine;
    let context = Context::default().with_secret(&Secret::new("correct horse battery").unwrap());
    for pad in ["", "x", "xy"] {
        let coded = base64::engine::general_purpose::STANDARD.encode(format!("{pad}correct horse battery"));
        assert!(text(coded.as_bytes(), &context, RESULT).text.0.contains(REDACTED), "{coded}");
    }
    for raw in [
        "a correct horse battery b",
        "correct%20horse%20battery",
        "636f727265637420686f7273652062617474657279",
    ] {
        assert!(text(raw.as_bytes(), &context, RESULT).text.0.contains(REDACTED), "{raw}");
    }
}

#[test]
fn a_secret_at_the_bound_or_the_window_does_not_show() {
    for before in (RESULT - 40..RESULT + 4).chain(RESULT + MARGIN - 40..RESULT + MARGIN + 4).step_by(5) {
        let input = format!("{} password={S} ghp_{S}{S}", "a ".repeat(before / 2));
        let out = text(input.as_bytes(), &Context::default(), RESULT);
        assert!(!leaks(&out.text.0, S) && out.text.0.len() <= RESULT, "{before}");
    }
}

#[test]
fn values_by_key_and_bounds() {
    let out = value(
        &json!({"token": 5, "token2": "x", "apiKey": {"a": S}, "/opt/a/k": 1, "/opt/b/k": 2, "v": ["--password", S], "l": "x".repeat(5000)}),
        &Context::default(),
        &Bounds::for_result(ARGUMENTS),
    );
    let read: serde_json::Value = serde_json::from_str(out.text.as_str()).unwrap();
    assert!(!leaks(out.text.as_str(), S));
    assert_eq!((&read["token"], &read["apiKey"], &read["l"]), (&json!(5), &json!(REDACTED), &json!(OMITTED)));
    assert_eq!((&read["[host-path]/k"], &read["[host-path]/k#2"]), (&json!(1), &json!(2)));
    assert!(out.truncated && matches!(out.original_bytes, Count::AtLeast(_)));
}

#[test]
fn command_lines() {
    for line in [
        &["curl", "-u", S][..],
        &["mysql", &format!("-p{S}")],
        &["x", "--token", S],
        &["x", &format!("--api-key={S}")],
        &["env", &format!("DB_PASSWORD={S}")],
    ] {
        let argv: Vec<_> = line.iter().map(|a| a.as_bytes().to_vec()).collect();
        assert!(arguments(&argv, &Context::default()).iter().all(|o| !leaks(o.text.as_str(), S)), "{line:?}");
    }
}

proptest! {
    #[test]
    fn planted_secrets_never_show(form in 0..FORMS.len(), before in "[a-z =:\n]{0,40}", after in "\\PC{0,40}", nest in 0..3, chunk in 1usize..9, secret in "[A-Z][a-z][0-9][A-Za-z0-9]{21}") {
        let mut input = format!("{before}\n{} \n{after}", plant(FORMS[form], &secret));
        for _ in 0..nest {
            input = serde_json::Value::from(input).to_string();
        }
        let mut stream = Stream::default();
        input.as_bytes().chunks(chunk).for_each(|c| stream.push(c));
        let out = stream.finish(&Context::default(), RESULT);
        prop_assert!(!leaks(out.text.as_str(), &secret), "{input:?} -> {out:?}");
        prop_assert_eq!(&show(out.text.as_str()), out.text.as_str());
    }

    #[test]
    fn twice_is_once(parts in proptest::collection::vec(prop_oneof![Just("password"), Just("="), Just(": "), Just("\""), Just("\\"), Just("{"), Just("}"), Just("\n"),
        Just("/Users/a/b"), Just("[redacted]"), Just("https://"), Just("@"), Just("token"), Just("a1"), Just("%3D"), Just("u0070"), Just("'"), Just("é"), Just("[")], 0..60), bound in 0usize..200) {
        let input = parts.concat();
        let once = text(input.as_bytes(), &Context::default(), bound).text.0;
        prop_assert!(once.len() <= bound);
        prop_assert_eq!(text(once.as_bytes(), &Context::default(), bound).text.0, once);
    }
}

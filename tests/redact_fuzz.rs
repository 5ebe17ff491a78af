//! Seeded random texts against the redactor: planted secrets never show, twice is once. A short run by default; the long one is
//! `STOCKADE_FUZZ_ROUNDS=200000 cargo test --test redact_fuzz -- --ignored`.
#![allow(clippy::unwrap_used)]

use stockade::evidence::redact::{Context, RESULT, Stream, text};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

const NOISE: &[&str] = &[
    "a",
    " ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "\\",
    "=",
    ":",
    ",",
    "/",
    "/home/u/x",
    "https://h/",
    "é",
    "\u{200b}",
    "\x1b[1m",
    "%",
    "&",
    "token",
    "error: ",
    "-----",
    "<",
    ">",
    "1",
    "|",
    "`",
    "[redacted]",
    "cookie",
    "\\u00",
];
const FORMS: &[&str] = &[
    "password=@",
    "{\"apiKey\":\"@\"}",
    "Authorization: Bearer @",
    "client_secret: @",
    "https://u:@@h/",
    "export DB_PASSWORD='@'",
    "{\"\\u0070assword\":\"@\"}",
    "ghp_@",
];

fn run(seed: u64, rounds: usize) {
    let mut random = Random(seed);
    for round in 0..rounds {
        let alphabet = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
        let mut secret = String::from("Xq7");
        secret.extend((0..21).map(|_| char::from(alphabet[random.below(alphabet.len())])));
        let noise = |random: &mut Random| {
            (0..random.below(30)).map(|_| NOISE[random.below(NOISE.len())]).collect::<String>()
        };
        let form = FORMS[random.below(FORMS.len())].replacen('@', &secret, 1);
        // A blank line before and after: the surroundings are no part of the form.
        let mut input = format!("{}\n\n{form}\n\n{}", noise(&mut random), noise(&mut random));
        for _ in 0..random.below(3) {
            input = serde_json::Value::from(input).to_string();
        }
        let mut stream = Stream::default();
        let chunk = 1 + random.below(40);
        input.as_bytes().chunks(chunk).for_each(|c| stream.push(c));
        let bound = if random.below(2) == 0 { RESULT } else { random.below(200) };
        let out = stream.finish(&Context::default(), bound).text;
        let shown = out.as_str();
        assert!(shown.len() <= bound);
        assert!(
            !secret.as_bytes().windows(8).any(|p| shown.as_bytes().windows(8).any(|w| w == p)),
            "seed {seed} round {round}\n{input:?}\n{shown:?}"
        );
        assert_eq!(
            text(shown.as_bytes(), &Context::default(), bound).text.as_str(),
            shown,
            "seed {seed} round {round}: {input:?}"
        );
    }
}

#[test]
fn a_short_run() {
    run(1, 2000);
}

#[test]
#[ignore = "long: minutes"]
fn a_long_run() {
    let rounds = std::env::var("STOCKADE_FUZZ_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(200_000);
    run(2, rounds);
}

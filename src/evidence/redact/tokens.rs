//! Secrets that are known by their shape alone.

/// A prefix, how many characters of its alphabet follow at least, and which those are beside letters and digits.
const SHAPES: &[(&str, usize, &str)] = &[
    ("AKIA", 16, ""),
    ("ASIA", 16, ""),
    ("ghp_", 20, ""),
    ("gho_", 20, ""),
    ("ghu_", 20, ""),
    ("ghs_", 20, ""),
    ("ghr_", 20, ""),
    ("github_pat_", 22, "_"),
    ("glpat-", 16, "-_"),
    ("gldt-", 16, "-_"),
    ("glrt-", 16, "-_"),
    ("xoxb-", 10, "-"),
    ("xoxp-", 10, "-"),
    ("xoxa-", 10, "-"),
    ("xoxr-", 10, "-"),
    ("xoxs-", 10, "-"),
    ("xapp-", 10, "-"),
    ("sk_live_", 16, ""),
    ("sk_test_", 16, ""),
    ("rk_live_", 16, ""),
    ("rk_test_", 16, ""),
    ("whsec_", 16, "+/="),
    ("sk-ant-", 16, "-_"),
    ("sk-proj-", 16, "-_"),
    ("sk-", 20, "-_"),
    ("AIza", 30, "-_"),
    ("ya29.", 20, "-_"),
    ("GOCSPX-", 16, "-_"),
    ("npm_", 30, ""),
    ("pypi-", 40, "-_"),
    ("SG.", 30, "-_."),
    ("hf_", 20, ""),
    ("dop_v1_", 32, ""),
    ("doo_v1_", 32, ""),
    ("hvs.", 20, "-_."),
    ("hvb.", 20, "-_."),
    ("s.", 24, ""),
    ("AGE-SECRET-KEY-1", 30, ""),
    ("dckr_pat_", 20, "-_"),
    ("shpat_", 20, ""),
    ("sqp_", 30, ""),
    ("lin_api_", 20, ""),
    ("tskey-", 16, "-"),
    ("EAACEdEose0cBA", 10, ""),
    ("key-", 32, ""),
    ("nvapi-", 20, "-_"),
    ("pplx-", 20, ""),
    ("gsk_", 20, ""),
    ("xai-", 20, ""),
];

/// The length of the secret that `rest` begins with. `rest` stands at the beginning of a word.
pub fn at(rest: &str) -> Option<usize> {
    if let Some(length) = web_token(rest) {
        return Some(length);
    }
    let bytes = rest.as_bytes();
    SHAPES.iter().find_map(|(prefix, least, more)| {
        let body = rest.strip_prefix(prefix)?;
        let length =
            body.bytes().take_while(|b| b.is_ascii_alphanumeric() || more.as_bytes().contains(b)).count();
        // A sentence is no token: there is a digit, or both cases, in what was made at random.
        let random = bytes[prefix.len()..prefix.len() + length].iter().any(u8::is_ascii_digit)
            || prefix.len() > 4 && *prefix != "s.";
        (length >= *least && random).then_some(prefix.len() + length)
    })
}

/// A JSON Web Token: `eyJ…`, and two or four further parts.
fn web_token(rest: &str) -> Option<usize> {
    if !rest.starts_with("eyJ") {
        return None;
    }
    let part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'=' | b'.');
    let length = rest.bytes().take_while(|b| part(b)).count();
    let dots = rest[..length].bytes().filter(|b| *b == b'.').count();
    (length >= 20 && dots >= 1).then_some(length)
}

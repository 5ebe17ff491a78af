//! Names that say that their value is secret.

/// What a name may hold, written together and in lower case, to be one of them.
const TELLING: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "token",
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "privatekey",
    "accesskey",
    "secretkey",
    "signingkey",
    "encryptionkey",
    "masterkey",
    "sessionkey",
    "authkey",
    "accountkey",
    "sharedkey",
    "connectionstring",
    "bearer",
    "sessionid",
    "refreshtoken",
    "clientassertion",
    "otpauth",
];
/// Whole parts of a name that are: too short or too common to be looked for inside of words.
const PARTS: &[&str] =
    &["pwd", "pass", "auth", "pat", "jwt", "sas", "pin", "otp", "sid", "netrc", "htpasswd"];
/// Names that hold a telling word and mean something else.
const HARMLESS: &[&str] = &[
    "tokenizer",
    "tokenize",
    "tokenized",
    "tokenization",
    "tokenstream",
    "tokentree",
    "tokentype",
    "tokenkind",
    "tokencount",
    "tokenlimit",
    "passwordless",
    "secretary",
    "cookiejar",
    "authorizationurl",
    "tokenurl",
    "secretname",
    "credentialhelper",
    "tokenendpoint",
    "passwordfile",
    "secretkeyref",
    "tokens",
];

/// Characters of a name.
pub fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether a name says that its value is secret, in whatever way it is written: `AWS_SECRET_ACCESS_KEY`, `x-api-key`,
/// `clientSecret`, `spring.datasource.password`.
pub fn is_sensitive(name: &str) -> bool {
    if name.len() > 256 {
        return false;
    }
    let joined: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    if HARMLESS.iter().any(|h| joined.ends_with(h)) {
        return false;
    }
    TELLING.iter().any(|t| joined.contains(t)) || parts(name).any(|part| PARTS.contains(&part.as_str()))
}

/// The parts of a name, in lower case: at separators and at changes of case.
fn parts(name: &str) -> impl Iterator<Item = String> + '_ {
    name.split(|c: char| !c.is_ascii_alphanumeric()).flat_map(|run| {
        let mut parts: Vec<String> = Vec::new();
        let mut lower = false;
        for c in run.chars() {
            if parts.is_empty() || lower && c.is_ascii_uppercase() {
                parts.push(String::new());
            }
            lower = c.is_ascii_lowercase() || c.is_ascii_digit();
            if let Some(last) = parts.last_mut() {
                last.push(c.to_ascii_lowercase());
            }
        }
        parts
    })
}

/// Whether a name is a header whose whole line is its value.
pub fn is_header(name: &str) -> bool {
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-amz-security-token"]
        .iter()
        .any(|h| name.eq_ignore_ascii_case(h))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "password",
            "PGPASSWORD",
            "AWS_SECRET_ACCESS_KEY",
            "x-api-key",
            "clientSecret",
            "GITHUB_TOKEN",
            "dbPwd",
            "spring.datasource.password",
            "Set-Cookie",
            "ssh_private_key",
            "NPM_AUTH",
            "access-token",
            "_authToken",
        ] {
            assert!(is_sensitive(name), "{name}");
        }
        for name in [
            "path",
            "author",
            "authors",
            "tokenizer",
            "max_tokens",
            "monkey",
            "keyboard",
            "compass",
            "passes",
            "bypass",
            "pattern",
            "index",
            "COLUMNS",
            "pinned",
            "spin",
            "tokens",
        ] {
            assert!(!is_sensitive(name), "{name}");
        }
    }
}

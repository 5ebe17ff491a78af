//! The one matcher of names: `*` stands for any run of bytes within a name.

/// Whether `name` matches `pattern`, in which `*` stands for any run of bytes. Linear in both but for the last
/// star's retries.
pub fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
        } else if pattern.get(p) == Some(&name[n]) {
            p += 1;
            n += 1;
        } else if let Some((after, from)) = retry {
            retry = Some((after, from + 1));
            p = after;
            n = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn star() {
        for (pattern, name, wanted) in [
            ("*", "", true),
            ("*", "anything", true),
            (".env.*", ".env.", true),
            (".env.*", ".env", false),
            ("*.pem", ".pem", true),
            ("a*b*c", "axbxbxc", true),
            ("a*b*c", "axbxbx", false),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(name_matches(pattern.as_bytes(), name.as_bytes()), wanted, "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn star_agrees_with_the_obvious(pattern in "[ab*]{0,8}", name in "[ab]{0,10}") {
            fn obvious(p: &[u8], n: &[u8]) -> bool {
                match p.split_first() {
                    None => n.is_empty(),
                    Some((b'*', rest)) => (0..=n.len()).any(|k| obvious(rest, &n[k..])),
                    Some((b, rest)) => n.first() == Some(b) && obvious(rest, &n[1..]),
                }
            }
            prop_assert_eq!(name_matches(pattern.as_bytes(), name.as_bytes()), obvious(pattern.as_bytes(), name.as_bytes()));
        }
    }
}

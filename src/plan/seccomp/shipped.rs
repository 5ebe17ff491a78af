//! The filters of the shipped profiles, compiled beforehand: reading the catalogue and compiling cost most of a
//! millisecond in each start. Nothing here decides anything: the test below compiles each anew and compares every
//! word, and rewrites the files when `STOCKADE_WRITE_DOCS` is set.

use super::{Arch, Filter, Program, Request, SocketRule, Word};

/// One filter: what was asked for, and the words of both forms (plain, asking) for both architectures.
struct Shipped {
    sets: &'static [&'static str],
    network: SocketRule,
    x86_64: [&'static [u64]; 2],
    aarch64: [&'static [u64]; 2],
}

const SHIPPED: [Shipped; 2] = [
    Shipped {
        sets: &super::DEFAULT_SETS,
        network: SocketRule::Inet,
        x86_64: [&include!("shipped/default_x86_64.in"), &include!("shipped/default_x86_64_asking.in")],
        aarch64: [&include!("shipped/default_aarch64.in"), &include!("shipped/default_aarch64_asking.in")],
    },
    Shipped {
        sets: &["base", "process"],
        network: SocketRule::None,
        x86_64: [&include!("shipped/strict_x86_64.in"), &include!("shipped/strict_x86_64_asking.in")],
        aarch64: [&include!("shipped/strict_aarch64.in"), &include!("shipped/strict_aarch64_asking.in")],
    },
];

/// The filter for `request`, when it is one of the shipped ones; the order in which sets are named does not matter.
pub(super) fn find(arch: Arch, request: &Request) -> Option<Filter> {
    let same = |s: &&Shipped| {
        !request.browser
            && s.network == request.network
            && s.sets.len() == request.sets.len()
            && s.sets.iter().all(|set| request.sets.iter().any(|asked| asked == set))
    };
    let found = SHIPPED.iter().find(same).filter(|_| request.allow.is_empty())?;
    let forms = match arch {
        Arch::X86_64 => found.x86_64,
        Arch::Aarch64 => found.aarch64,
    };
    let [plain, asking] = forms.map(|words| Program { words: words.iter().copied().map(unpack).collect() });
    Some(Filter { plain, asking })
}

/// A word in one number, as it stands in the files.
const fn unpack(packed: u64) -> Word {
    Word { code: (packed >> 48) as u16, jt: (packed >> 40) as u8, jf: (packed >> 32) as u8, k: packed as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn pack(word: &Word) -> u64 {
        u64::from(word.code) << 48 | u64::from(word.jt) << 40 | u64::from(word.jf) << 32 | u64::from(word.k)
    }

    #[test]
    fn each_is_what_the_compiler_makes() {
        for (shipped, name) in SHIPPED.iter().zip(["default", "strict"]) {
            let sets: Vec<String> = shipped.sets.iter().rev().map(|s| (*s).to_owned()).collect();
            let request = Request { sets: &sets, allow: &[], network: shipped.network, browser: false };
            for (arch, file) in [(Arch::X86_64, "x86_64"), (Arch::Aarch64, "aarch64")] {
                let fresh = super::super::compile_for(arch, &request).unwrap();
                if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
                    write(&format!("{name}_{file}.in"), &fresh.plain);
                    write(&format!("{name}_{file}_asking.in"), &fresh.asking);
                    continue;
                }
                let kept = find(arch, &request).unwrap();
                assert_eq!(kept, fresh, "set STOCKADE_WRITE_DOCS=1 to write them, and test again without");
                assert!(kept.plain.words().iter().all(|word| unpack(pack(word)) == *word));
            }
        }
    }

    fn write(name: &str, program: &Program) {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plan/seccomp/shipped");
        let packed: Vec<u64> = program.words().iter().map(pack).collect();
        let mut text = String::from("[\n");
        for line in packed.chunks(5) {
            for word in line {
                write!(text, " {word:#018x},").unwrap();
            }
            text.push('\n');
        }
        std::fs::write(format!("{dir}/{name}"), text + "]\n").unwrap();
    }

    #[test]
    fn the_shipped_profiles_are_among_them() {
        for name in crate::policy::embedded_names() {
            let root = crate::policy::Candidate::embedded(name).unwrap();
            let policy = crate::policy::load(root, &crate::policy::EmbeddedOnly, None, &[]).unwrap();
            let network = if policy.network.loopback { SocketRule::Inet } else { SocketRule::None };
            let request =
                Request { sets: &policy.seccomp.sets, allow: &policy.seccomp.allow, network, browser: false };
            assert!(find(Arch::NATIVE, &request).is_some(), "{name}");
        }
    }

    #[test]
    fn only_the_same_request_finds_one() {
        let sets = ["base".to_owned(), "process".to_owned()];
        let request = Request { sets: &sets, allow: &[], network: SocketRule::None, browser: false };
        assert!(find(Arch::X86_64, &request).is_some());
        assert!(find(Arch::X86_64, &Request { network: SocketRule::Inet, ..request }).is_none());
        assert!(find(Arch::X86_64, &Request { allow: &["mbind".to_owned()], ..request }).is_none());
        assert!(find(Arch::X86_64, &Request { sets: &sets[..1], ..request }).is_none());
        let twice = ["base".to_owned(), "base".to_owned()];
        assert!(find(Arch::X86_64, &Request { sets: &twice, ..request }).is_none());
    }
}

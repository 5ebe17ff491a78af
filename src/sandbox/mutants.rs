//! Protections switched off one at a time, to show that the tests which claim to watch them do. Only with the
//! package feature `mutants`; without it [`Mutants::off`] is the constant `false` and nothing of this remains.

macro_rules! mutants {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// A protection that a mutant lacks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each name is what is missing")]
        pub enum Mutant { $($variant),+ }

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [(Mutant, &'static str)] = &[$((Mutant::$variant, $name)),+];
        }
    };
}

mutants! {
    Seccomp = "no-seccomp",
    Landlock = "no-landlock",
    Capabilities = "no-caps",
    SecondNamespace = "no-second-unshare",
    CloseRange = "no-close-range",
    ReadOnly = "no-readonly",
    Protect = "no-protect",
    CacheLayer = "no-cache-layer",
    Hide = "no-hide",
    NetworkNamespace = "no-netns",
    PidNamespace = "no-pidns",
    Keyring = "no-keyring",
    Groups = "no-groups",
    Limits = "no-limits",
    ProcMask = "no-proc-mask",
    Dumpable = "no-dumpable",
    NoNewPrivileges = "no-nnp",
    Session = "no-session",
    Private = "no-private",
    PrivateTrees = "no-private-trees",
    Verify = "no-verify",
}

/// The set that is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mutants(u32);

impl Mutants {
    /// Whether `mutant` is switched off.
    pub fn off(self, mutant: Mutant) -> bool {
        cfg!(feature = "mutants") && self.0 & (1 << mutant as u32) != 0
    }

    /// Adds the one called `name`.
    #[cfg(feature = "mutants")]
    pub fn add(&mut self, name: &str) -> bool {
        match Mutant::ALL.iter().find(|(_, n)| *n == name) {
            Some((m, _)) => {
                self.0 |= 1 << *m as u32;
                true
            }
            None => false,
        }
    }
}

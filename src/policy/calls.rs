//! The system calls behind the names of a profile, as data from whoever has the filter's tables: this module may not
//! look into `plan`.

use crate::manifest::At;
use std::collections::BTreeSet;

/// One named set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSet {
    /// Its name in a profile.
    pub name: &'static str,
    /// Its calls.
    pub calls: Vec<&'static str>,
}

/// A call that no set may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCall {
    /// The call.
    pub name: &'static str,
    /// It answers EPERM rather than ENOSYS.
    pub eperm: bool,
    /// A profile's `allow` may still grant it.
    pub grantable: bool,
    /// Where the list says so.
    pub at: At,
}

/// What the filter knows.
#[derive(Debug, Clone)]
pub struct Calls {
    /// All sets.
    pub sets: Vec<CallSet>,
    /// All calls that are refused by name.
    pub refused: Vec<RefusedCall>,
    /// Calls without which no command can start.
    pub launch: &'static [&'static str],
    /// Whether this is the name of a system call on any architecture that is known.
    pub known: fn(&str) -> bool,
}

impl Calls {
    /// The set of that name.
    pub fn set(&self, name: &str) -> Option<&CallSet> {
        self.sets.iter().find(|set| set.name == name)
    }

    /// The refusal of that call.
    pub fn refusal(&self, call: &str) -> Option<&RefusedCall> {
        self.refused.iter().find(|refused| refused.name == call)
    }

    /// The calls of these sets, and these.
    pub fn of<'a>(&self, sets: &[String], allow: &'a [String]) -> BTreeSet<&'a str>
    where
        'static: 'a,
    {
        let named = sets.iter().filter_map(|name| self.set(name)).flat_map(|set| set.calls.iter().copied());
        named.chain(allow.iter().map(String::as_str)).collect()
    }
}

//! The plan: what will be done on this host, as a value. `resolve` is a pure function of a policy, a
//! request, facts about the host and facts about the paths that they name; it never opens a file, reads
//! a clock or looks at the environment. Everything that displays containment (`policy explain`,
//! `--dry-run`, the result, a later audit) is a view of one [`Plan`].

mod caches;
pub mod facts;
mod intents;
pub mod request;
pub mod resolve;
pub mod seccomp;
pub mod types;
pub mod view;

pub use facts::*;
pub use request::*;
pub use resolve::{PlanError, resolve};
pub use types::*;

//! Building an executor: from a [`Plan`](crate::plan::Plan) to a running, verified command. One file per
//! mechanism; `stage/` holds one file per process. Effects only: every decision was taken in `plan`.

pub mod caps;
pub mod idmap;
pub mod landlock;
pub mod launch;
mod mutants;
pub mod rlimits;
pub mod root;
pub mod sources;
pub mod stage;
pub mod verify;

pub use mutants::{Mutant, Mutants};

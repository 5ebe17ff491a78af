//! The supervisor's side of an executor: its cgroups, its lease and record in the state directory, the
//! bounded capture of its output, and the clean-up after a supervisor that died. Runs in the process that
//! starts executors, in the host's namespaces; parses nothing that a command wrote except as bytes.

pub mod cgroup;
pub mod denied;
pub mod disk;
pub mod drive;
pub mod enforce;
pub mod faults;
pub mod layers;
pub mod outcome;
pub mod output;
pub mod pump;
pub mod quarantine;
pub mod record;
pub mod recover;
pub mod screen;
pub mod state_dir;
mod subtree;
pub mod terminal;

//! Stockade contains the commands that AI agents run: words become a policy, a policy and a host become
//! a plan, the plan is enforced, checked and reported. See `docs/ARCHITECTURE.md`.

pub mod base;
pub mod cli;
pub mod evidence;
pub mod manifest;
pub mod plan;
pub mod policy;
pub mod probe;
pub mod sandbox;
pub mod supervise;
pub mod sys;

//! Stockade contains the commands that AI agents run.

pub mod plan;

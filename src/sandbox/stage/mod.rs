//! The processes of an executor and what they say to each other.
//!
//! ```text
//! owner   the process that launches: host view, never enters a namespace
//!  └ init     PID 1 of the executor: builds the root, then reaps; dies with the owner
//!     ├ sibling   runs the canaries under the identical plan, and is gone before the command starts
//!     └ payload   restricts itself and becomes the command
//! ```

pub mod init;
pub mod listener;
pub mod network;
pub mod payload;
pub mod trace;
pub mod wire;

//! Reads the host by trying, as the user who will run things, and the paths that a request names, with
//! that user's rights. Leaves nothing behind. Process: the caller itself, single-threaded for
//! [`host::probe`]. Neighbours: `plan` reads the facts, `doctor`'s checks are rendered by `cli`.

pub mod cache;

pub use cache::Store;

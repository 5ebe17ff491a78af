//! Profiles as meant: every default filled in, inheritance done, trust levels applied. A [`Policy`] says
//! nothing about a host; two hosts with the same profile have the same [`Policy::digest`].

mod types;

pub use types::*;

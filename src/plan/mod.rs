//! Policy and facts in, plan out. Nothing here opens a file, reads a clock or looks at the environment.

pub mod seccomp;

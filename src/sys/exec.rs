//! execve(2) on arguments and environment that were laid out beforehand, so that nothing is allocated once the
//! process has restricted itself.

use std::ffi::{CStr, CString, NulError};
use std::io;

/// Arguments and environment in the form that the kernel takes.
pub struct Image {
    argv: Vec<CString>,
    env: Vec<CString>,
    argv_ptrs: Vec<*const libc::c_char>,
    env_ptrs: Vec<*const libc::c_char>,
}

impl Image {
    /// Lays out `argv` and `env` (`NAME=VALUE`).
    ///
    /// # Errors
    /// When a string holds a NUL.
    pub fn new<'a>(
        argv: impl Iterator<Item = &'a [u8]>,
        env: impl Iterator<Item = Vec<u8>>,
    ) -> Result<Self, NulError> {
        let argv: Vec<CString> = argv.map(CString::new).collect::<Result<_, _>>()?;
        let env: Vec<CString> = env.map(CString::new).collect::<Result<_, _>>()?;
        let pointers = |strings: &[CString]| {
            strings.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
        };
        let (argv_ptrs, env_ptrs) = (pointers(&argv), pointers(&env));
        Ok(Self { argv, env, argv_ptrs, env_ptrs })
    }

    /// Replaces this process by `path`. Returns only when that failed.
    pub fn execve(&self, path: &CStr) -> io::Error {
        debug_assert_eq!(self.argv.len() + 1, self.argv_ptrs.len());
        debug_assert_eq!(self.env.len() + 1, self.env_ptrs.len());
        // SAFETY: both arrays are null-terminated and point into strings that `self` owns; CString's bytes do not
        // move with the vector. execve(2).
        unsafe { libc::execve(path.as_ptr(), self.argv_ptrs.as_ptr(), self.env_ptrs.as_ptr()) };
        io::Error::last_os_error()
    }
}

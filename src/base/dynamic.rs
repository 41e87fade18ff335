//! Functions of shared libraries, found by name when the program runs.

use std::ffi::{CString, c_void};

/// A library that is open in the dynamic loader and is never closed.
#[derive(Clone, Copy)]
pub struct Opened(pub *mut c_void);

impl Opened {
    /// All libraries that the program was linked to, in the order in which the loader searches them.
    pub const ALL: Self = Self(libc::RTLD_DEFAULT);

    /// Returns the function of this name, if there is one.
    ///
    /// # Safety
    /// `F` is the type of the functions of this name in all libraries.
    pub unsafe fn function<F: Copy>(self, name: &str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let name = CString::new(name).ok()?;
        // SAFETY: a handle that is never closed, and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: the caller ensures that the address is that of an `F`.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

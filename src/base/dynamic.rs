//! Functions of shared libraries, found by name when the program runs.

use std::ffi::{CStr, CString, c_void};

/// A library that is open in the dynamic loader and is never closed.
#[derive(Clone, Copy)]
pub struct Opened(pub *mut c_void);

impl Opened {
    /// All libraries that the program was linked to, in the order in which the loader searches them.
    pub const ALL: Self = Self(libc::RTLD_DEFAULT);

    /// Returns the library that contains the code at `address`; `None` if no open library contains it. With the
    /// result, [`Opened::function`] finds this library's function even if other libraries have functions of the same name.
    pub(crate) fn of(address: *const c_void) -> Option<Self> {
        let file = file_of(address)?;
        // SAFETY: a C string; the library is loaded, and its initialisation has run.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// Returns the function `name`; `None` if the library has no function of this name.
    ///
    /// # Safety
    /// In all libraries, a function of this name has the type `F`.
    pub unsafe fn function<F: Copy>(self, name: &str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let name = CString::new(name).ok()?;
        // SAFETY: a handle that is never closed, and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: the caller ensures that the address is that of an `F`.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

/// Returns the path of the library or program that contains the code at `address`; `None` if the loader does not know it.
pub(crate) fn file_of(address: *const c_void) -> Option<CString> {
    // SAFETY: plain values, which the loader fills. If it knows the address, the name stays valid as long as the library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(address, &mut info) != 0 && !info.dli_fname.is_null();
        known.then(|| CStr::from_ptr(info.dli_fname).to_owned())
    }
}

//! Which BLAS is linked, what it says of itself, and its own threads.

use std::ffi::{CStr, c_char, c_int};

/// What the linked library says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// `BLIS` or `OpenBLAS`.
    pub name: &'static str,
    pub version: String,
    /// The kernels it picked for this processor, in its own words.
    pub kernel: String,
    /// The environment variable that overrides the pick.
    pub variable: &'static str,
}

#[cfg(feature = "blis")]
mod linked {
    use super::*;

    unsafe extern "C" {
        fn bli_init();
        fn bli_info_get_version_str() -> *const c_char;
        fn bli_arch_query_id() -> c_int;
        fn bli_arch_string(id: c_int) -> *const c_char;
        fn bli_thread_set_num_threads(threads: i64);
    }

    pub fn query() -> Library {
        // SAFETY: initialising more than once is allowed; the strings are the library's constants.
        unsafe {
            // Asked before it is initialised, the library checks an overridden kernel against
            // tables it has not filled, and aborts.
            bli_init();
            Library {
                name: "BLIS",
                version: super::text(bli_info_get_version_str()),
                kernel: super::text(bli_arch_string(bli_arch_query_id())),
                variable: "BLIS_ARCH_TYPE",
            }
        }
    }

    pub fn set_threads(threads: usize) {
        // SAFETY: sets a number; BLIS counts in its 64-bit dimension type.
        unsafe { bli_thread_set_num_threads(threads as i64) }
    }
}

#[cfg(all(feature = "openblas", not(feature = "blis")))]
mod linked {
    use super::*;

    unsafe extern "C" {
        fn openblas_get_config() -> *const c_char;
        fn openblas_get_corename() -> *const c_char;
        fn openblas_set_num_threads(threads: c_int);
    }

    pub fn query() -> Library {
        // SAFETY: the strings are the library's constants.
        let (config, kernel) =
            unsafe { (super::text(openblas_get_config()), super::text(openblas_get_corename())) };
        let version = config
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("")
            .to_owned();
        Library { name: "OpenBLAS", version, kernel, variable: "OPENBLAS_CORETYPE" }
    }

    pub fn set_threads(threads: usize) {
        // SAFETY: sets a number.
        unsafe { openblas_set_num_threads(threads as c_int) }
    }
}

#[cfg(not(any(feature = "blis", feature = "openblas")))]
compile_error!("skt-hpl needs a BLAS: build with the feature `blis` (the default) or `openblas`");

unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller passes a C string.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

impl Library {
    /// Asks the linked library.
    pub fn query() -> Self {
        linked::query()
    }
}

/// How many threads the library itself starts in a call. The solver has a pool of its own and
/// keeps this at one.
pub fn set_library_threads(threads: usize) {
    linked::set_threads(threads);
}

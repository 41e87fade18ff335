//! Properties of the BLAS that is called, and control of its own threads.

use std::ffi::{CStr, c_char, c_int};

use std::sync::Mutex;

use super::{ffi, loaded};
use crate::base::cores;
use crate::base::threads::Pool;

/// Description of the library by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// `BLIS`, `OpenBLAS`, `MKL`, or `BLAS` if the library does not identify itself.
    pub name: &'static str,
    pub version: String,
    /// Kernels that the library selected for this processor, in its own words; empty if it does not name them.
    pub kernel: String,
    /// Environment variable that overrides the selection.
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
        fn bli_thread_set_ways(jc: i64, pc: i64, ic: i64, jr: i64, ir: i64);
    }

    pub fn query() -> Library {
        // SAFETY: initialising more than once is allowed; the strings are the library's constants.
        unsafe {
            // Without this call, the library checks an overridden kernel against tables that it has not filled, and aborts.
            bli_init();
            Library::blis(
                super::text(bli_info_get_version_str()),
                super::text(bli_arch_string(bli_arch_query_id())),
            )
        }
    }

    pub fn set_threads(threads: usize) {
        let [jc, pc, ic, jr, ir] = super::NO_WAYS;
        // SAFETY: sets numbers; BLIS counts in its 64-bit dimension type.
        unsafe {
            bli_thread_set_ways(jc, pc, ic, jr, ir);
            bli_thread_set_num_threads(threads as i64);
        }
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
        Library::openblas(&config, kernel)
    }

    pub fn set_threads(threads: usize) {
        // SAFETY: sets a number.
        unsafe { openblas_set_num_threads(threads as c_int) }
    }
}

#[cfg(not(any(feature = "blis", feature = "openblas")))]
compile_error!("skt-hpl needs a BLAS: build with the feature `blis` (the default) or `openblas`");

/// Values that make BLIS divide none of its five loops in a fixed way. Variables such as `BLIS_IC_NT` fix some of them, and fixed
/// ways take precedence over the number of threads.
pub(super) const NO_WAYS: [i64; 5] = [-1; 5];

pub(super) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller passes a C string.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

impl Library {
    /// Variables of all libraries that select kernels.
    pub const VARIABLES: [&str; 4] =
        ["BLIS_ARCH_TYPE", "OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"];

    /// Returns the variables whose effect is not visible in the library's description of its kernels.
    pub(super) fn unseen_variables(&self) -> &'static [&'static str] {
        match (self.kernel.as_str(), self.name) {
            ("", "MKL") => &["MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"],
            ("", _) => &Self::VARIABLES,
            // MKL reports the code branch that it would take by default.
            (_, "MKL") => &["MKL_CBWR"],
            _ => &[],
        }
    }

    /// Returns the description of the loaded library, or else of the linked one.
    pub fn query() -> Self {
        loaded::chosen().map_or_else(linked::query, |loaded| loaded.library.clone())
    }

    #[cfg_attr(not(feature = "blis"), allow(dead_code))] // without BLIS only for a loaded library
    pub(super) fn blis(version: String, kernel: String) -> Self {
        Self { name: "BLIS", version, kernel, variable: "BLIS_ARCH_TYPE" }
    }

    /// Describes OpenBLAS by `config`, which begins with the name and the version.
    pub(super) fn openblas(config: &str, kernel: String) -> Self {
        let version = config
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
            .unwrap_or("")
            .to_owned();
        Self { name: "OpenBLAS", version, kernel, variable: "OPENBLAS_CORETYPE" }
    }

    /// Describes MKL by a text such as "... Version 2026.2-Product Build ..." and the number of its code branch.
    pub(super) fn mkl(words: &str, branch: Option<c_int>) -> Self {
        let version = words.split_once("Version ").map_or(words, |(_, rest)| rest);
        let version = version.split([' ', '-']).next().unwrap_or_default().to_owned();
        let kernel = match branch {
            Some(3..=8) => "SSE",
            Some(9) => "AVX",
            Some(10) => "AVX2",
            Some(11..=14) => "AVX-512",
            _ => "",
        };
        Self {
            name: "MKL",
            version,
            kernel: kernel.to_owned(),
            variable: "MKL_ENABLE_INSTRUCTIONS",
        }
    }
}

/// Sets the number of threads that the library itself starts in a call. The solver has its own thread pool and keeps this at one.
/// Some libraries keep this number for the calling thread alone.
pub fn set_library_threads(threads: usize) {
    match loaded::chosen() {
        Some(loaded) => loaded.set_threads(threads),
        None => linked::set_threads(threads),
    }
}

/// Makes the library start no threads in calls from this pool, and move no thread to another core. Must be called where the pool
/// is made.
///
/// BLIS since 1.0 and OpenMP keep the number of threads for each calling thread, initially the number of cores. OpenMP with set
/// places (`OMP_PROC_BIND`, `OMP_PLACES`, `GOMP_CPU_AFFINITY`) moves each thread to the first place at its first call.
pub fn one_library_thread_each(pool: &mut Pool) {
    // No library documents that several threads may call its setter at once.
    let one_by_one = Mutex::new(());
    pool.on_each(|_| {
        let _turn = one_by_one.lock().unwrap_or_else(|e| e.into_inner());
        set_library_threads(1);
        cores::staying(first_product);
    });
}

/// Computes a product that is small enough to cost nothing, and too large for any shortcut for a single number.
fn first_product() {
    const N: usize = 8;
    let (a, b, mut c) = ([0.0; N * N], [0.0; N * N], [0.0; N * N]);
    // SAFETY: each is N x N, with N rows a column.
    unsafe {
        ffi::gemm(
            false,
            false,
            (N, N, N),
            1.0,
            (a.as_ptr(), N),
            (b.as_ptr(), N),
            (c.as_mut_ptr(), N),
        );
    }
}

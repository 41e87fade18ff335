//! The BLAS that is called, which is the loaded library or else the linked one: its description, and control of its own threads.

use std::sync::Mutex;

use super::library::Library;
use super::operands::{Matrix, Operand, Size};
use super::{ffi, loaded};
use crate::base::cores;
use crate::base::threads::Pool;

#[cfg(feature = "blis")]
mod linked {
    use std::ffi::{c_char, c_int};

    use crate::kernels::library::{Library, NO_WAYS, text};

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
                text(bli_info_get_version_str()),
                text(bli_arch_string(bli_arch_query_id())),
            )
        }
    }

    pub fn set_threads(threads: usize) {
        let [jc, pc, ic, jr, ir] = NO_WAYS;
        // SAFETY: sets numbers; BLIS counts in its 64-bit dimension type.
        unsafe {
            bli_thread_set_ways(jc, pc, ic, jr, ir);
            bli_thread_set_num_threads(threads as i64);
        }
    }
}

#[cfg(all(feature = "openblas", not(feature = "blis")))]
mod linked {
    use std::ffi::{c_char, c_int};

    use crate::kernels::library::{Library, text};

    unsafe extern "C" {
        fn openblas_get_config() -> *const c_char;
        fn openblas_get_corename() -> *const c_char;
        fn openblas_set_num_threads(threads: c_int);
    }

    pub fn query() -> Library {
        // SAFETY: the strings are the library's constants.
        let (config, kernel) =
            unsafe { (text(openblas_get_config()), text(openblas_get_corename())) };
        Library::openblas(&config, kernel)
    }

    pub fn set_threads(threads: usize) {
        // SAFETY: sets a number.
        unsafe { openblas_set_num_threads(threads as c_int) }
    }
}

#[cfg(not(any(feature = "blis", feature = "openblas")))]
compile_error!("skt-hpl needs a BLAS: build with the feature `blis` (the default) or `openblas`");

impl Library {
    /// Returns the description of the loaded library, or else of the linked one.
    pub fn query() -> Self {
        loaded::chosen().map_or_else(linked::query, |loaded| loaded.library.clone())
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
            Size::new(N, N, N),
            1.0,
            Operand::plain(a.as_ptr(), N),
            Operand::plain(b.as_ptr(), N),
            Matrix::new(c.as_mut_ptr(), N),
        );
    }
}

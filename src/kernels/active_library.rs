//! Control of the threads of the BLAS that is called.

use std::sync::Mutex;

use super::operands::{Matrix, Operand, Size};
use super::{ffi, loaded};
use crate::base::cores;
use crate::base::threads::Pool;

/// Sets the number of threads that the library itself starts in a call. The solver has its own thread pool and keeps this at one.
/// Some libraries keep this number for the calling thread alone.
pub fn set_library_threads(threads: usize) {
    loaded::active().set_threads(threads);
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

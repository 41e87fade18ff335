//! Control of the threads that the BLAS in use starts.

use std::sync::Mutex;

use super::loaded;
use super::operands::{Matrix, Operand, Size};
use crate::base::cores;
use crate::base::threads::Pool;

/// Sets the number of threads that the BLAS in use uses for each call. The solver has a thread pool of its own, and keeps this
/// number at one. In some libraries the number holds only for calls from the thread that set it.
pub fn set_library_threads(threads: usize) {
    loaded::active().set_threads(threads);
}

/// Makes the BLAS in use start no threads in calls from the threads of `pool`, and move none of these threads to another core.
/// Must be called right after the pool is made.
///
/// BLIS since 1.0 and OpenMP keep a number of threads for each calling thread. Initially this is the number of cores. If
/// OpenMP's places are set (`OMP_PROC_BIND`, `OMP_PLACES`, `GOMP_CPU_AFFINITY`), OpenMP moves each thread to the first place at
/// the thread's first call.
pub fn one_library_thread_each(pool: &mut Pool) {
    // Threads call the setter one after the other, because no library documents that several may call it at once.
    let one_by_one = Mutex::new(());
    pool.on_each(|_| {
        let _turn = one_by_one.lock().unwrap_or_else(|e| e.into_inner());
        set_library_threads(1);
        cores::staying(first_product);
    });
}

/// Calls the BLAS in use for a product of 8 x 8 matrices. The product takes little time, but is too large for a shortcut that
/// some libraries have for single numbers.
fn first_product() {
    const N: usize = 8;
    let (a, b, mut c) = ([0.0; N * N], [0.0; N * N], [0.0; N * N]);
    // SAFETY: each matrix is N x N, with columns of N elements.
    unsafe {
        loaded::active().calls.gemm(
            Size::new(N, N, N),
            1.0,
            Operand::plain(a.as_ptr(), N),
            Operand::plain(b.as_ptr(), N),
            Matrix::new(c.as_mut_ptr(), N),
        );
    }
}

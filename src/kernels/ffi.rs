//! The BLAS routines that the solver calls: of the linked library through the Fortran interface, or of a loaded library.
//!
//! Matrices are column-major here, as the BLAS sees them. Dimensions are below 2^31, because no side of a rank's part of a matrix
//! is longer. The linked library gets them in 64 bits. A library with 32-bit integers reads the lower half; a site's own build
//! under the same name may have 64-bit integers and read all.

use std::ffi::c_char;

use super::loaded;
use super::operands::{Matrix, Operand, Size};
use super::routines::{Calls, Solve};

unsafe extern "C" {
    fn dgemm_(
        transa: *const c_char,
        transb: *const c_char,
        m: *const i64,
        n: *const i64,
        k: *const i64,
        alpha: *const f64,
        a: *const f64,
        lda: *const i64,
        b: *const f64,
        ldb: *const i64,
        beta: *const f64,
        c: *mut f64,
        ldc: *const i64,
    );
    fn dtrsm_(
        side: *const c_char,
        uplo: *const c_char,
        transa: *const c_char,
        diag: *const c_char,
        m: *const i64,
        n: *const i64,
        alpha: *const f64,
        a: *const f64,
        lda: *const i64,
        b: *mut f64,
        ldb: *const i64,
    );
}

/// Routines of the linked library.
const LINKED: Calls = Calls::Fortran { gemm: dgemm_, trsm: dtrsm_ };

/// Computes C(m x n) += alpha op(A)(m x k) op(B)(k x n).
///
/// # Safety
/// The pointers must span the matrices that the sizes and leading dimensions describe, and C must not overlap A or B.
pub unsafe fn gemm(size: Size, alpha: f64, a: Operand, b: Operand, c: Matrix<*mut f64>) {
    if size.is_empty() {
        return;
    }
    // SAFETY: ensured by the caller.
    unsafe {
        match loaded::chosen() {
            Some(loaded) => loaded.gemm(size, alpha, a, b, c),
            None => LINKED.gemm(size, alpha, a, b, c),
        }
    }
}

/// Solves for the `m x n` right-hand sides `b`, in place.
///
/// # Safety
/// As for [`gemm`]; the triangle is of order `m`, or of order `n` on the right.
unsafe fn trsm(solve: Solve, m: usize, n: usize, t: Matrix<*const f64>, b: Matrix<*mut f64>) {
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: ensured by the caller.
    unsafe {
        match loaded::chosen() {
            Some(loaded) => loaded.trsm(solve, m, n, t, b),
            None => LINKED.trsm(solve, m, n, t, b),
        }
    }
}

/// Computes X(m x n) := X T^-T with T unit lower.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_right_lower_transposed_unit(
    m: usize,
    n: usize,
    t: Matrix<*const f64>,
    x: Matrix<*mut f64>,
) {
    // SAFETY: ensured by the caller.
    unsafe { trsm(Solve { right: true, lower: true, transposed: true }, m, n, t, x) }
}

/// Computes B(m x n) := L^-1 B for a unit lower triangle of order `m`.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_left_lower_unit(m: usize, n: usize, l: Matrix<*const f64>, b: Matrix<*mut f64>) {
    // SAFETY: ensured by the caller.
    unsafe { trsm(Solve { right: false, lower: true, transposed: false }, m, n, l, b) }
}

/// Computes X(m x n) := X U^-1 for a unit upper triangle, the transpose of a row-major unit lower one.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_right_upper_unit(
    m: usize,
    n: usize,
    u: Matrix<*const f64>,
    x: Matrix<*mut f64>,
) {
    // SAFETY: ensured by the caller.
    unsafe { trsm(Solve { right: true, lower: false, transposed: false }, m, n, u, x) }
}

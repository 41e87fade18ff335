//! BLAS routines that the solver calls.
//!
//! Matrices are column-major, as the BLAS expects. Dimensions are below 2^31, because no side of a rank's part of a matrix is
//! longer.

use super::loaded;
use super::operands::{Matrix, Operand, Size};
use super::routines::Solve;

/// Computes C(m x n) += alpha op(A)(m x k) op(B)(k x n).
///
/// # Safety
/// The pointers must span the matrices that the sizes and leading dimensions describe, and C must not overlap A or B.
pub unsafe fn gemm(size: Size, alpha: f64, a: Operand, b: Operand, c: Matrix<*mut f64>) {
    if !size.is_empty() {
        // SAFETY: ensured by the caller.
        unsafe { loaded::active().calls.gemm(size, alpha, a, b, c) }
    }
}

/// Solves with the unit triangle `t` for the `m x n` right-hand sides `b`, in place.
///
/// # Safety
/// As for [`gemm`]. The triangle has order `m`, or order `n` if it is on the right.
pub(super) unsafe fn trsm(
    solve: Solve,
    m: usize,
    n: usize,
    t: Matrix<*const f64>,
    b: Matrix<*mut f64>,
) {
    if m > 0 && n > 0 {
        // SAFETY: ensured by the caller.
        unsafe { loaded::active().calls.trsm(solve, m, n, t, b) }
    }
}

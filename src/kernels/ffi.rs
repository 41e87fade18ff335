//! The BLAS routines that the solver calls: of the linked library through the Fortran interface, or of a loaded library.
//!
//! Matrices are column-major here, as the BLAS sees them. Dimensions are below 2^31, because no side of a rank's part of a matrix
//! is longer. The linked library gets them in 64 bits. A library with 32-bit integers reads the lower half; a site's own build
//! under the same name may have 64-bit integers and read all.

use std::ffi::c_char;

use super::loaded;
use super::routines::{Solve, int, letter, wide};

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

/// Computes C(m x n) += alpha op(A)(m x k) op(B)(k x n).
///
/// # Safety
/// The pointers must span the matrices that the sizes and leading dimensions describe, and C must not overlap A or B.
#[allow(clippy::too_many_arguments)] // the BLAS's own signature
pub unsafe fn gemm(
    a_transposed: bool,
    b_transposed: bool,
    (m, n, k): (usize, usize, usize),
    alpha: f64,
    (a, lda): (*const f64, usize),
    (b, ldb): (*const f64, usize),
    (c, ldc): (*mut f64, usize),
) {
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    // SAFETY: ensured by the caller.
    unsafe {
        if let Some(loaded) = loaded::chosen() {
            let (a, b, c) = ((a, int(lda)), (b, int(ldb)), (c, int(ldc)));
            let size = (int(m), int(n), int(k));
            return loaded.gemm((a_transposed, b_transposed), size, alpha, a, b, c);
        }
        dgemm_(
            &letter(a_transposed),
            &letter(b_transposed),
            &wide(m),
            &wide(n),
            &wide(k),
            &alpha,
            a,
            &wide(lda),
            b,
            &wide(ldb),
            &1.0,
            c,
            &wide(ldc),
        );
    }
}

/// Solves for the `m x n` right-hand sides at `b`, in place.
///
/// # Safety
/// As for [`gemm`]; the triangle is of order `m`, or of order `n` on the right.
unsafe fn trsm(
    solve: Solve,
    (m, n): (usize, usize),
    (t, ldt): (*const f64, usize),
    (b, ldb): (*mut f64, usize),
) {
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: ensured by the caller.
    unsafe {
        if let Some(loaded) = loaded::chosen() {
            return loaded.trsm(solve, (int(m), int(n)), (t, int(ldt)), (b, int(ldb)));
        }
        let [side, uplo, trans, diag] = solve.letters();
        let (m, n, ldt, ldb) = (wide(m), wide(n), wide(ldt), wide(ldb));
        dtrsm_(&side, &uplo, &trans, &diag, &m, &n, &1.0, t, &ldt, b, &ldb);
    }
}

/// Computes X := X T^-T with T unit lower.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_right_lower_transposed_unit(
    size: (usize, usize),
    t: (*const f64, usize),
    b: (*mut f64, usize),
) {
    // SAFETY: ensured by the caller.
    unsafe { trsm(Solve { right: true, lower: true, transposed: true }, size, t, b) }
}

/// Computes B := L^-1 B for a unit lower triangle of order `m` and `n` right-hand sides.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_left_lower_unit(
    size: (usize, usize),
    l: (*const f64, usize),
    b: (*mut f64, usize),
) {
    // SAFETY: ensured by the caller.
    unsafe { trsm(Solve { right: false, lower: true, transposed: false }, size, l, b) }
}

/// Computes X := X U^-1 for a unit upper triangle, the transpose of a row-major unit lower one.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_right_upper_unit(
    size: (usize, usize),
    t: (*const f64, usize),
    b: (*mut f64, usize),
) {
    // SAFETY: ensured by the caller.
    unsafe { trsm(Solve { right: true, lower: false, transposed: false }, size, t, b) }
}

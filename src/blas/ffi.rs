//! The few BLAS routines we call, through the Fortran interface every library has.
//!
//! Matrices are column-major here, as the BLAS sees them. Dimensions are C ints on the other side:
//! a rank's part of a matrix never has a side of 2^31.

use std::ffi::{c_char, c_int};

unsafe extern "C" {
    fn dgemm_(
        transa: *const c_char,
        transb: *const c_char,
        m: *const c_int,
        n: *const c_int,
        k: *const c_int,
        alpha: *const f64,
        a: *const f64,
        lda: *const c_int,
        b: *const f64,
        ldb: *const c_int,
        beta: *const f64,
        c: *mut f64,
        ldc: *const c_int,
    );
    fn dtrsm_(
        side: *const c_char,
        uplo: *const c_char,
        transa: *const c_char,
        diag: *const c_char,
        m: *const c_int,
        n: *const c_int,
        alpha: *const f64,
        a: *const f64,
        lda: *const c_int,
        b: *mut f64,
        ldb: *const c_int,
    );
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).expect("a rank's part of the matrix has sides below 2^31")
}

fn letter(transposed: bool) -> c_char {
    (if transposed { b'T' } else { b'N' }) as c_char
}

/// C(m x n) += alpha op(A)(m x k) op(B)(k x n).
///
/// # Safety
/// The pointers must span the matrices the sizes and leading dimensions describe, and C must not
/// overlap A or B.
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
    // SAFETY: passed on from the caller.
    unsafe {
        dgemm_(
            &letter(a_transposed),
            &letter(b_transposed),
            &int(m),
            &int(n),
            &int(k),
            &alpha,
            a,
            &int(lda),
            b,
            &int(ldb),
            &1.0,
            c,
            &int(ldc),
        );
    }
}

/// Which side of the unknown the triangle stands on, and how it is stored, seen column-major.
#[derive(Clone, Copy)]
pub enum Triangle {
    /// X := X * T^-1 with T upper, unit diagonal.
    RightUpper,
    /// X := X * T^-T with T lower, unit diagonal.
    RightLowerTransposed,
}

/// Solves with a unit triangle of order `n` for the `m x n` right-hand sides at `b`.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_right_unit(
    triangle: Triangle,
    (m, n): (usize, usize),
    (t, ldt): (*const f64, usize),
    (b, ldb): (*mut f64, usize),
) {
    if m == 0 || n == 0 {
        return;
    }
    let (uplo, trans) = match triangle {
        Triangle::RightUpper => (b'U', b'N'),
        Triangle::RightLowerTransposed => (b'L', b'T'),
    };
    // SAFETY: passed on from the caller.
    unsafe {
        dtrsm_(
            &(b'R' as c_char),
            &(uplo as c_char),
            &(trans as c_char),
            &(b'U' as c_char),
            &int(m),
            &int(n),
            &1.0,
            t,
            &int(ldt),
            b,
            &int(ldb),
        );
    }
}

/// B := L^-1 B for a unit lower triangle of order `m` and `n` right-hand sides.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_left_lower_unit(
    (m, n): (usize, usize),
    (l, ldl): (*const f64, usize),
    (b, ldb): (*mut f64, usize),
) {
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: passed on from the caller.
    unsafe {
        dtrsm_(
            &(b'L' as c_char),
            &(b'L' as c_char),
            &(b'N' as c_char),
            &(b'U' as c_char),
            &int(m),
            &int(n),
            &1.0,
            l,
            &int(ldl),
            b,
            &int(ldb),
        );
    }
}

/// X := X U^-1 for a unit upper triangle, the transpose of a row-major unit lower one.
///
/// # Safety
/// As for [`gemm`].
pub unsafe fn trsm_right_upper_unit(
    size: (usize, usize),
    t: (*const f64, usize),
    b: (*mut f64, usize),
) {
    // SAFETY: passed on from the caller.
    unsafe { trsm_right_unit(Triangle::RightUpper, size, t, b) }
}

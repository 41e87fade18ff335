//! Routines of a BLAS: with Fortran's names or only those of C, and with integers of either width.

use std::ffi::{c_char, c_int, c_void};

use super::operands::{Matrix, Operand, Size};
use crate::base::dynamic::Opened;

fn int(n: usize) -> c_int {
    c_int::try_from(n).expect("a rank's part of the matrix has sides below 2^31")
}

fn wide(n: usize) -> i64 {
    int(n).into()
}

fn letter(transposed: bool) -> c_char {
    (if transposed { b'T' } else { b'N' }) as c_char
}

/// A unit triangle to solve with, in column-major terms.
#[derive(Clone, Copy)]
pub(super) struct Solve {
    /// True if the triangle is to the right of the unknown.
    pub right: bool,
    pub lower: bool,
    pub transposed: bool,
}

impl Solve {
    /// Computes B(m x n) := L^-1 B.
    pub const LEFT_LOWER: Self = Self { right: false, lower: true, transposed: false };
    /// Computes X(m x n) := X U^-1 for the transpose of a row-major lower triangle.
    pub const RIGHT_UPPER: Self = Self { right: true, lower: false, transposed: false };
    /// Computes X(m x n) := X T^-T.
    pub const RIGHT_LOWER_TRANSPOSED: Self = Self { right: true, lower: true, transposed: true };

    /// Returns side, triangle, form and diagonal as letters of the Fortran interface.
    fn letters(self) -> [c_char; 4] {
        let pick = |that: bool, yes: u8, no: u8| (if that { yes } else { no }) as c_char;
        let side = pick(self.right, b'R', b'L');
        [side, pick(self.lower, b'L', b'U'), letter(self.transposed), b'U' as c_char]
    }
}

/// Fortran passes all arguments by reference. Integers are stored in 64 bits; a library with 32-bit integers reads the lower
/// half, which comes first.
pub(super) type FortranGemm = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const i64,
    *const i64,
    *const i64,
    *const f64,
    *const f64,
    *const i64,
    *const f64,
    *const i64,
    *const f64,
    *mut f64,
    *const i64,
);
pub(super) type FortranTrsm = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    *const i64,
    *const i64,
    *const f64,
    *const f64,
    *const i64,
    *mut f64,
    *const i64,
);
pub(super) type FortranDot =
    unsafe extern "C" fn(*const i64, *const f64, *const i64, *const f64, *const i64) -> f64;

type CGemm<I> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    I,
    I,
    I,
    f64,
    *const f64,
    I,
    *const f64,
    I,
    f64,
    *mut f64,
    I,
);
type CTrsm<I> =
    unsafe extern "C" fn(c_int, c_int, c_int, c_int, c_int, I, I, f64, *const f64, I, *mut f64, I);
pub(super) type CDot = unsafe extern "C" fn(i64, *const f64, i64, *const f64, i64) -> f64;

/// A routine of any type.
type Routine = unsafe extern "C" fn();

#[cfg(target_endian = "big")]
compile_error!("narrow integers are read from the low half of wide ones where these begin");

/// Routines with C's names and integers of type `I`.
pub struct WithIntegers<I> {
    gemm: CGemm<I>,
    trsm: CTrsm<I>,
}

impl<I: From<i32>> WithIntegers<I> {
    /// # Safety
    /// Both are names of such routines, with integers of this type.
    pub unsafe fn of(opened: Opened, gemm: &str, trsm: &str) -> Option<Self> {
        // SAFETY: ensured by the caller.
        unsafe { Some(Self { gemm: opened.function(gemm)?, trsm: opened.function(trsm)? }) }
    }

    /// # Safety
    /// As for [`super::ffi::gemm`].
    unsafe fn gemm(&self, size: Size, alpha: f64, a: Operand, b: Operand, c: Matrix<*mut f64>) {
        let n = |n: usize| I::from(int(n));
        let (of_a, of_b) = (c::form(a.transposed), c::form(b.transposed));
        let (a, b, Size { m, n: cols, k }) = (a.matrix, b.matrix, size);
        let (m, cols, k, lda, ldb, ldc) = (n(m), n(cols), n(k), n(a.ld), n(b.ld), n(c.ld));
        // SAFETY: ensured by the caller.
        unsafe {
            (self.gemm)(
                c::COLUMNS,
                of_a,
                of_b,
                m,
                cols,
                k,
                alpha,
                a.at,
                lda,
                b.at,
                ldb,
                1.0,
                c.at,
                ldc,
            )
        }
    }

    /// # Safety
    /// As for [`super::ffi::gemm`].
    unsafe fn trsm(
        &self,
        solve: Solve,
        m: usize,
        n: usize,
        t: Matrix<*const f64>,
        b: Matrix<*mut f64>,
    ) {
        let [m, n, ldt, ldb] = [m, n, t.ld, b.ld].map(|n| I::from(int(n)));
        let (side, triangle) = (c::side(solve.right), c::triangle(solve.lower));
        let form = c::form(solve.transposed);
        // SAFETY: ensured by the caller.
        unsafe {
            (self.trsm)(c::COLUMNS, side, triangle, form, c::UNIT, m, n, 1.0, t.at, ldt, b.at, ldb)
        }
    }
}

unsafe extern "C" {
    // The library is linked for these.
    fn dgemm_();
    fn dtrsm_();
}

/// Routines as they were found.
pub enum Calls {
    Fortran { gemm: FortranGemm, trsm: FortranTrsm },
    Narrow(WithIntegers<c_int>),
    Wide(WithIntegers<i64>),
}

impl Calls {
    /// Routines of the linked library. They get integers in 64 bits. A library with 32-bit integers reads the lower half; a site's
    /// own build under the same name may have 64-bit integers and read all.
    // SAFETY: routines of these names have these types in every BLAS.
    pub(super) const LINKED: Self = unsafe {
        Calls::Fortran {
            gemm: std::mem::transmute::<Routine, FortranGemm>(dgemm_),
            trsm: std::mem::transmute::<Routine, FortranTrsm>(dtrsm_),
        }
    };

    /// Returns the address of one of the routines.
    pub fn address(&self) -> *mut c_void {
        match self {
            Calls::Fortran { gemm, .. } => *gemm as *mut c_void,
            Calls::Narrow(calls) => calls.gemm as *mut c_void,
            Calls::Wide(calls) => calls.gemm as *mut c_void,
        }
    }

    /// Computes C(m x n) += alpha op(A) op(B).
    ///
    /// # Safety
    /// As for [`super::ffi::gemm`].
    pub unsafe fn gemm(&self, size: Size, alpha: f64, a: Operand, b: Operand, c: Matrix<*mut f64>) {
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Calls::Fortran { gemm, .. } => gemm(
                    &letter(a.transposed),
                    &letter(b.transposed),
                    &wide(size.m),
                    &wide(size.n),
                    &wide(size.k),
                    &alpha,
                    a.matrix.at,
                    &wide(a.matrix.ld),
                    b.matrix.at,
                    &wide(b.matrix.ld),
                    &1.0,
                    c.at,
                    &wide(c.ld),
                ),
                Calls::Narrow(calls) => calls.gemm(size, alpha, a, b, c),
                Calls::Wide(calls) => calls.gemm(size, alpha, a, b, c),
            }
        }
    }

    /// Solves with a unit triangle.
    ///
    /// # Safety
    /// As for [`super::ffi::gemm`].
    pub(super) unsafe fn trsm(
        &self,
        solve: Solve,
        m: usize,
        n: usize,
        t: Matrix<*const f64>,
        b: Matrix<*mut f64>,
    ) {
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Calls::Fortran { trsm, .. } => {
                    let [side, uplo, trans, diag] = solve.letters();
                    let (m, n, ldt, ldb) = (wide(m), wide(n), wide(t.ld), wide(b.ld));
                    trsm(&side, &uplo, &trans, &diag, &m, &n, &1.0, t.at, &ldt, b.at, &ldb);
                }
                Calls::Narrow(calls) => calls.trsm(solve, m, n, t, b),
                Calls::Wide(calls) => calls.trsm(solve, m, n, t, b),
            }
        }
    }
}

/// Constants of the C interface for order, form, side, triangle and diagonal.
mod c {
    use std::ffi::c_int;
    pub const COLUMNS: c_int = 102;
    pub const UNIT: c_int = 132;
    pub fn form(transposed: bool) -> c_int {
        if transposed { 112 } else { 111 }
    }
    pub fn side(right: bool) -> c_int {
        if right { 142 } else { 141 }
    }
    pub fn triangle(lower: bool) -> c_int {
        if lower { 122 } else { 121 }
    }
}

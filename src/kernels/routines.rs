//! Routines of a BLAS, with Fortran's names or only those of C, and with integers of 32 or 64 bits.

use std::ffi::{c_char, c_int, c_void};

use super::operands::{Matrix, Operand, Size};

fn int(n: usize) -> i64 {
    c_int::try_from(n).expect("a rank's part of the matrix has sides below 2^31").into()
}

fn letter(transposed: bool) -> c_char {
    (if transposed { b'T' } else { b'N' }) as c_char
}

/// Kind of a triangular solve (DTRSM) with a unit triangle. Matrices are column-major.
#[derive(Clone, Copy)]
pub(super) struct Solve {
    /// True if the triangle is right of the unknown matrix.
    pub right: bool,
    pub lower: bool,
    pub transposed: bool,
}

impl Solve {
    /// Computes B(m x n) := L^-1 B.
    pub const LEFT_LOWER: Self = Self { right: false, lower: true, transposed: false };
    /// Computes X(m x n) := X U^-1. U is the transpose of a row-major lower triangle.
    pub const RIGHT_UPPER: Self = Self { right: true, lower: false, transposed: false };
    /// Computes X(m x n) := X L^-T for a lower triangle L.
    pub const RIGHT_LOWER_TRANSPOSED: Self = Self { right: true, lower: true, transposed: true };

    /// Returns the letters of the Fortran interface for side, triangle, form and diagonal.
    fn letters(self) -> [c_char; 4] {
        let pick = |that: bool, yes: u8, no: u8| (if that { yes } else { no }) as c_char;
        let side = pick(self.right, b'R', b'L');
        [side, pick(self.lower, b'L', b'U'), letter(self.transposed), b'U' as c_char]
    }
}

#[cfg(target_endian = "big")]
compile_error!(
    "a BLAS with 32-bit integers reads the first half of a 64-bit integer, which must be the low half"
);

/// Type of DGEMM in Fortran's interface. All arguments are passed by reference. Integers are stored in 64 bits. A library with
/// 32-bit integers reads the lower half, which is stored first.
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
/// Type of DTRSM in Fortran's interface, with arguments as for [`FortranGemm`].
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
/// Type of DDOT in Fortran's interface, with arguments as for [`FortranGemm`].
pub(super) type FortranDot =
    unsafe extern "C" fn(*const i64, *const f64, *const i64, *const f64, *const i64) -> f64;

/// Type of DGEMM in C's interface. Integers are passed by value, in 64 bits. A library with 32-bit integers reads the lower half
/// of the register or stack slot.
pub(super) type CGemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    i64,
    i64,
    i64,
    f64,
    *const f64,
    i64,
    *const f64,
    i64,
    f64,
    *mut f64,
    i64,
);
/// Type of DTRSM in C's interface, with arguments as for [`CGemm`].
pub(super) type CTrsm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    i64,
    i64,
    f64,
    *const f64,
    i64,
    *mut f64,
    i64,
);
/// Type of DDOT in C's interface, with arguments as for [`CGemm`].
pub(super) type CDot = unsafe extern "C" fn(i64, *const f64, i64, *const f64, i64) -> f64;

/// Type by which the linked routines are declared, before they are cast to their real types.
type Routine = unsafe extern "C" fn();

unsafe extern "C" {
    // The program is linked with a library that has these routines.
    fn dgemm_();
    fn dtrsm_();
}

/// The routines of a BLAS that the solver calls. Integers are always passed in 64 bits. A library with 32-bit integers reads the
/// lower half, a library with 64-bit integers reads all bits.
pub enum Calls {
    Fortran { gemm: FortranGemm, trsm: FortranTrsm },
    C { gemm: CGemm, trsm: CTrsm },
}

impl Calls {
    /// Routines of the linked library.
    // SAFETY: routines of these names have these types in every BLAS.
    pub(super) const LINKED: Self = unsafe {
        Calls::Fortran {
            gemm: std::mem::transmute::<Routine, FortranGemm>(dgemm_),
            trsm: std::mem::transmute::<Routine, FortranTrsm>(dtrsm_),
        }
    };

    /// Returns the address of the library's DGEMM.
    pub fn address(&self) -> *mut c_void {
        match self {
            Calls::Fortran { gemm, .. } => *gemm as *mut c_void,
            Calls::C { gemm, .. } => *gemm as *mut c_void,
        }
    }

    /// Computes C(m x n) += alpha op(A)(m x k) op(B)(k x n). Dimensions are below 2^31, because no side of a rank's part of a
    /// matrix is longer.
    ///
    /// # Safety
    /// The pointers must span the matrices that the sizes and leading dimensions describe, and C must not overlap A or B.
    pub unsafe fn gemm(&self, size: Size, alpha: f64, a: Operand, b: Operand, c: Matrix<*mut f64>) {
        if size.is_empty() {
            return;
        }
        let (of_a, of_b, a, b) = (a.transposed, b.transposed, a.matrix, b.matrix);
        let [m, n, k] = [size.m, size.n, size.k].map(int);
        let [lda, ldb, ldc] = [a.ld, b.ld, c.ld].map(int);
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Calls::Fortran { gemm, .. } => gemm(
                    &letter(of_a),
                    &letter(of_b),
                    &m,
                    &n,
                    &k,
                    &alpha,
                    a.at,
                    &lda,
                    b.at,
                    &ldb,
                    &1.0,
                    c.at,
                    &ldc,
                ),
                Calls::C { gemm, .. } => gemm(
                    c::COLUMNS,
                    c::form(of_a),
                    c::form(of_b),
                    m,
                    n,
                    k,
                    alpha,
                    a.at,
                    lda,
                    b.at,
                    ldb,
                    1.0,
                    c.at,
                    ldc,
                ),
            }
        }
    }

    /// Solves with a unit triangle `t` for the `m x n` right-hand sides `b`, in place.
    ///
    /// # Safety
    /// As for [`Calls::gemm`]. The triangle has order `m`, or order `n` if it is on the right.
    pub(super) unsafe fn trsm(
        &self,
        solve: Solve,
        m: usize,
        n: usize,
        t: Matrix<*const f64>,
        b: Matrix<*mut f64>,
    ) {
        if m == 0 || n == 0 {
            return;
        }
        let [m, n, ldt, ldb] = [m, n, t.ld, b.ld].map(int);
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Calls::Fortran { trsm, .. } => {
                    let [side, uplo, trans, diag] = solve.letters();
                    trsm(&side, &uplo, &trans, &diag, &m, &n, &1.0, t.at, &ldt, b.at, &ldb);
                }
                Calls::C { trsm, .. } => {
                    let (side, triangle) = (c::side(solve.right), c::triangle(solve.lower));
                    let (order, form) = (c::COLUMNS, c::form(solve.transposed));
                    trsm(order, side, triangle, form, c::UNIT, m, n, 1.0, t.at, ldt, b.at, ldb);
                }
            }
        }
    }
}

/// Constants of the C interface of a BLAS for order, form, side, triangle and diagonal.
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

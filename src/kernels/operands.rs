//! Operands of a multiplication or of a triangular solve: sizes, and matrices given by addresses.

/// Sizes of a product: C(m x n) += A(m x k) B(k x n).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Size {
    pub fn new(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k }
    }

    /// Returns whether a size is zero, so that there is nothing to compute.
    pub fn is_empty(self) -> bool {
        self.m == 0 || self.n == 0 || self.k == 0
    }
}

/// Matrix given by address and leading dimension. The leading dimension is the distance of columns, or the distance of rows if
/// the matrix is stored by rows, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<P> {
    pub at: P,
    pub ld: usize,
}

impl<P> Matrix<P> {
    pub fn new(at: P, ld: usize) -> Self {
        Self { at, ld }
    }
}

/// Distance from one row to the next, and from one column to the next, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    pub row: usize,
    pub col: usize,
}

impl Strides {
    /// Returns the distance from element (0, 0) to element (`i`, `j`), in elements.
    pub fn to(self, i: usize, j: usize) -> usize {
        i * self.row + j * self.col
    }

    /// Returns the strides of the transpose.
    pub fn transposed(self) -> Self {
        Self { row: self.col, col: self.row }
    }
}

/// Matrix given by address and strides.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    pub at: *const f64,
    pub strides: Strides,
}

impl Strided {
    pub fn new(at: *const f64, row: usize, col: usize) -> Self {
        Self { at, strides: Strides { row, col } }
    }
}

/// Factor of a product in the form that the BLAS reads: a column-major matrix, or the transpose of such a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub matrix: Matrix<*const f64>,
    pub transposed: bool,
}

impl Operand {
    pub fn plain(at: *const f64, ld: usize) -> Self {
        Self { matrix: Matrix::new(at, ld), transposed: false }
    }

    pub fn transposed(at: *const f64, ld: usize) -> Self {
        Self { matrix: Matrix::new(at, ld), transposed: true }
    }
}

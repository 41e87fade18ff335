//! Operands of a multiplication or a triangular solve: sizes, and matrices by their addresses.

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

    /// Returns whether there is nothing to compute.
    pub fn is_empty(self) -> bool {
        self.m == 0 || self.n == 0 || self.k == 0
    }
}

/// Matrix by its address and its leading dimension: the distance of its columns, or of its rows if it is stored by rows.
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

/// Distances from one row to the next, and from one column to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    pub row: usize,
    pub col: usize,
}

impl Strides {
    /// Returns the distance from the first element to element (`i`, `j`).
    pub fn to(self, i: usize, j: usize) -> usize {
        i * self.row + j * self.col
    }

    /// Returns the strides of the transpose.
    pub fn transposed(self) -> Self {
        Self { row: self.col, col: self.row }
    }
}

/// Matrix by its address and its strides.
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

/// Factor of a product as the BLAS takes it: a column-major matrix, or its transpose.
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

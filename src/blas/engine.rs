//! How the trailing update multiplies: our packed kernel or the library's DGEMM.
//!
//! An engine knows two shapes: a [`LowerBlock`], L below the diagonal block, which travels in the
//! panel's message, and an [`UpperBlock`], U to its right, which each rank assembles. How their
//! elements lie is the engine's own affair; the solver only asks for lengths and puts rows in.

use std::ops::Range;

use super::ffi::{self, Triangle};
use super::{micro, packed};
use crate::params::{Engine as EngineChoice, Form};

/// What is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Packed,
    Blas,
}

impl Engine {
    /// The engine for `choice` on this processor, or why there is none.
    pub fn select(choice: EngineChoice) -> Result<Self, String> {
        match choice {
            EngineChoice::Auto if micro::supported() => Ok(Engine::Packed),
            EngineChoice::Auto | EngineChoice::Blas => Ok(Engine::Blas),
            EngineChoice::Packed if micro::supported() => Ok(Engine::Packed),
            EngineChoice::Packed => {
                Err("the packed engine needs a processor with AVX-512; use --engine blas or auto"
                    .into())
            }
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Engine::Packed => "packed",
            Engine::Blas => "blas",
        }
    }

    /// Doubles of a lower block of `rows x k`.
    pub fn lower_len(self, rows: usize, k: usize) -> usize {
        match self {
            Engine::Packed => packed::lower_len(rows, k),
            Engine::Blas => rows * k,
        }
    }

    /// Doubles of an upper block of `k x cols`, the solver's copy of L1 included.
    pub fn upper_len(self, k: usize, cols: usize) -> usize {
        match self {
            Engine::Packed => packed::upper_len(k, cols),
            Engine::Blas => k * cols,
        }
    }

    /// Doubles of the form of L1 in which [`UpperBlock::solve`] wants it.
    pub fn triangle_len(self, k: usize) -> usize {
        match self {
            Engine::Packed => packed::lower_len(k, k),
            Engine::Blas => 0,
        }
    }

    /// Lays L(rows x k), column-major at `l`, out as a lower block.
    ///
    /// # Safety
    /// `l` spans `k` columns of `ldl`, `out` has [`Engine::lower_len`] doubles; no overlap.
    pub unsafe fn lay_lower(
        self,
        rows: usize,
        k: usize,
        (l, ldl): (*const f64, usize),
        out: *mut f64,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            match self {
                Engine::Packed => packed::pack_lower(rows, k, (l, ldl), out),
                Engine::Blas => {
                    for p in 0..k {
                        std::ptr::copy_nonoverlapping(l.add(p * ldl), out.add(p * rows), rows);
                    }
                }
            }
        }
    }

    /// A(rows x cols) -= L(rows x k) B within a panel, A and L column-major with leading dimension
    /// `ld`; B(k x cols) begins at `b`, element (p, j) at `b + p * rs + j * cs`. `scratch` is
    /// reused between calls.
    ///
    /// # Safety
    /// The ranges are valid and A overlaps neither L nor B.
    #[allow(clippy::too_many_arguments)] // three matrices with their shapes
    pub unsafe fn multiply_in_panel(
        self,
        (rows, cols, k): (usize, usize, usize),
        l: *const f64,
        (b, rs, cs): (*const f64, usize, usize),
        a: *mut f64,
        ld: usize,
        scratch: &mut Vec<f64>,
    ) {
        if rows == 0 || cols == 0 || k == 0 {
            return;
        }
        // SAFETY: passed on from the caller.
        unsafe {
            match self {
                Engine::Packed => {
                    // Packed columns of B: a lower block of B^T.
                    scratch.resize(packed::lower_len(cols, k), 0.0);
                    let out = scratch.as_mut_ptr();
                    for j in 0..cols.next_multiple_of(micro::SCALAR) {
                        let panel = j / micro::SCALAR * micro::SCALAR;
                        for p in 0..k {
                            let value = if j < cols { *b.add(p * rs + j * cs) } else { 0.0 };
                            *out.add(panel * k + p * micro::SCALAR + j % micro::SCALAR) = value;
                        }
                    }
                    packed::multiply_in_panel((rows, cols, k), l, out, a, ld);
                }
                Engine::Blas => {
                    let (transposed, ldb) = if rs == 1 { (false, cs) } else { (true, rs) };
                    ffi::gemm(false, transposed, (rows, cols, k), -1.0, (l, ld), (b, ldb), (a, ld));
                }
            }
        }
    }
}

/// L below the diagonal block: `rows x k`, laid out by [`Engine::lay_lower`].
#[derive(Clone, Copy)]
pub struct LowerBlock {
    pub engine: Engine,
    pub rows: usize,
    pub k: usize,
    pub data: *const f64,
}

/// U right of the diagonal block: `k x cols`.
#[derive(Clone, Copy)]
pub struct UpperBlock {
    pub engine: Engine,
    pub k: usize,
    pub cols: usize,
    pub data: *mut f64,
}

// SAFETY: the pointers are only followed in unsafe functions whose callers keep tasks apart.
unsafe impl Send for LowerBlock {}
// SAFETY: as above.
unsafe impl Sync for LowerBlock {}
// SAFETY: as above.
unsafe impl Send for UpperBlock {}
// SAFETY: as above.
unsafe impl Sync for UpperBlock {}

impl UpperBlock {
    /// Columns that begin a strip must be multiples of this.
    pub fn column_unit(&self) -> usize {
        micro::VECTOR
    }

    /// Makes what lies beyond the edges harmless. To be called before rows are put in.
    ///
    /// # Safety
    /// `data` has [`Engine::upper_len`] doubles.
    pub unsafe fn clear_edges(&self) {
        if self.engine == Engine::Packed {
            // SAFETY: passed on from the caller.
            unsafe { packed::clear_edges(self.data, self.k, self.cols) }
        }
    }

    /// Puts `len` elements at `src` into row `p`, from column `from` on.
    ///
    /// # Safety
    /// The block and the source are valid there; nobody else touches that part.
    pub unsafe fn put_row(&self, p: usize, from: usize, len: usize, src: *const f64) {
        debug_assert!(p < self.k && from + len <= self.cols);
        // SAFETY: passed on from the caller.
        unsafe {
            match self.engine {
                Engine::Packed => packed::put_row(self.data, self.k, p, from, len, src),
                Engine::Blas => {
                    std::ptr::copy_nonoverlapping(src, self.data.add(p * self.cols + from), len)
                }
            }
        }
    }

    /// Gets part of row `p` out again.
    ///
    /// # Safety
    /// As for [`UpperBlock::put_row`].
    pub unsafe fn get_row(&self, p: usize, from: usize, len: usize, dst: *mut f64) {
        debug_assert!(p < self.k && from + len <= self.cols);
        // SAFETY: passed on from the caller.
        unsafe {
            match self.engine {
                Engine::Packed => packed::get_row(self.data, self.k, p, from, len, dst),
                Engine::Blas => {
                    std::ptr::copy_nonoverlapping(self.data.add(p * self.cols + from), dst, len)
                }
            }
        }
    }

    /// U(:, cols) := L1^-1 U(:, cols). `cols` begins at a multiple of [`UpperBlock::column_unit`].
    ///
    /// # Safety
    /// The blocks are valid and nobody else touches those columns.
    pub unsafe fn solve(&self, l1: &TriangleBlock, cols: Range<usize>) {
        // SAFETY: passed on from the caller.
        unsafe {
            match self.engine {
                Engine::Packed => {
                    let unit = micro::VECTOR;
                    let panels = cols.start / unit..cols.end.div_ceil(unit);
                    packed::solve_upper(self.k, l1.laid, self.data, panels);
                }
                // A single column is a vector to some libraries, and then rounded by how it lies.
                Engine::Blas if cols.len() == 1 => {
                    let (rs, cs) = TriangleBlock::strides(l1.form, l1.k);
                    for p in 0..self.k {
                        let x = *self.data.add(p * self.cols + cols.start);
                        for i in p + 1..self.k {
                            let y = self.data.add(i * self.cols + cols.start);
                            *y -= *l1.raw.add(i * rs + p * cs) * x;
                        }
                    }
                }
                Engine::Blas => {
                    // Row-major U is U^T to the BLAS: U^T := U^T L1^-T.
                    let triangle = match l1.form {
                        Form::NotTransposed => Triangle::RightUpper,
                        Form::Transposed => Triangle::RightLowerTransposed,
                    };
                    ffi::trsm_right_unit(
                        triangle,
                        (cols.len(), self.k),
                        (l1.raw, l1.k),
                        (self.data.add(cols.start), self.cols),
                    );
                }
            }
        }
    }
}

/// L1, the unit lower triangle of the diagonal block, as it travels and as the engine wants it.
#[derive(Clone, Copy)]
pub struct TriangleBlock {
    pub k: usize,
    /// How `raw` is stored: transposed means column-major.
    pub form: Form,
    pub raw: *const f64,
    /// [`Engine::triangle_len`] doubles, filled by [`TriangleBlock::lay`].
    pub laid: *mut f64,
}

// SAFETY: as for the other blocks.
unsafe impl Send for TriangleBlock {}
// SAFETY: as above.
unsafe impl Sync for TriangleBlock {}

impl TriangleBlock {
    /// Strides of rows and columns in `raw`.
    pub fn strides(form: Form, k: usize) -> (usize, usize) {
        match form {
            Form::NotTransposed => (k, 1),
            Form::Transposed => (1, k),
        }
    }

    /// Lays the raw triangle out for `engine`.
    ///
    /// # Safety
    /// The pointers are valid for the lengths above.
    pub unsafe fn lay(&self, engine: Engine) {
        if engine == Engine::Packed {
            // SAFETY: passed on from the caller.
            unsafe {
                packed::pack_triangle(
                    self.k,
                    self.raw,
                    Self::strides(self.form, self.k),
                    self.laid,
                );
            }
        }
    }
}

impl LowerBlock {
    /// Rows that one task should take at a time.
    pub fn row_unit(&self) -> usize {
        match self.engine {
            Engine::Packed => packed::row_block(self.k),
            Engine::Blas => 1024,
        }
    }

    /// C(rows x cols) -= L U, row-major C; `c` points at row 0 and column 0 of the blocks. Rows
    /// begin at a multiple of [`LowerBlock::row_unit`], columns of [`UpperBlock::column_unit`].
    ///
    /// # Safety
    /// The blocks are valid and nobody else touches that part of C.
    pub unsafe fn multiply(
        &self,
        u: &UpperBlock,
        rows: Range<usize>,
        cols: Range<usize>,
        (c, ldc): (*mut f64, usize),
    ) {
        debug_assert_eq!(self.k, u.k);
        // SAFETY: passed on from the caller.
        unsafe {
            match self.engine {
                Engine::Packed => {
                    packed::multiply(self.k, self.data, rows, u.data, cols, (c, ldc));
                }
                // As in `solve`.
                Engine::Blas if cols.len() == 1 => {
                    for p in 0..self.k {
                        let x = *u.data.add(p * u.cols + cols.start);
                        for i in rows.clone() {
                            *c.add(i * ldc + cols.start) -= *self.data.add(p * self.rows + i) * x;
                        }
                    }
                }
                Engine::Blas => {
                    // Row-major C is C^T to the BLAS: C^T -= U^T L^T.
                    ffi::gemm(
                        false,
                        true,
                        (cols.len(), rows.len(), self.k),
                        -1.0,
                        (u.data.add(cols.start), u.cols),
                        (self.data.add(rows.start), self.rows),
                        (c.add(rows.start * ldc + cols.start), ldc),
                    );
                }
            }
        }
    }
}

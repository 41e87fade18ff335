//! Multiplication of the trailing update, by one of our packed kernels or by the library's DGEMM.
//!
//! An engine multiplies two kinds of blocks. A [`LowerBlock`] is L below the diagonal block, which is sent in the panel's
//! message. An [`UpperBlock`] is U right of the diagonal block, which each rank assembles. The order of their elements is private
//! to the engine. The solver only uses the lengths of the blocks, and stores rows.

use std::ops::Range;

use super::cache::{self, copy_by_rows};
use super::loaded::active;
use super::micro::{self, Isa, Kernel};
use super::operands::{Matrix, Operand, Size, Strided, Strides};
use super::routines::Solve;
use super::{Library, packed};
use crate::base::params::{Engine as EngineChoice, Form};

/// Engine: code that multiplies in the update of the trailing submatrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A kernel of this program, on operands packed once per panel.
    Packed(&'static Kernel),
    /// DGEMM and DTRSM of the library.
    Blas,
}

impl Engine {
    /// The [`Engine::identity`] that all kernels of this program have.
    pub const OWN: &str = "packed, fused multiply-adds in order";

    /// Returns the first engine that `choice` allows and that runs on this processor, in the order of preference. Measures
    /// nothing.
    ///
    /// # Errors
    ///
    /// No engine for `choice` runs on this processor. The error is a message with advice.
    pub fn select(choice: EngineChoice) -> Result<Self, String> {
        Self::possible(choice).first().copied().ok_or_else(|| Self::refusal(choice))
    }

    /// Returns the message that no engine for `choice` runs on this processor, with advice.
    pub fn refusal(choice: EngineChoice) -> String {
        let names = |all: &[&str]| all.join(", ");
        let here: Vec<&str> = Self::runnable().into_iter().map(Self::name).collect();
        format!(
            "none of the engines {} runs on this processor; these do: {}. Give --engine auto, which chooses the fastest",
            names(&Self::candidates(choice)),
            names(&here)
        )
    }

    /// Returns the names of the engines that `choice` allows, in order of preference. The list is the same on every processor.
    pub fn candidates(choice: EngineChoice) -> Vec<&'static str> {
        let ours = |wanted: fn(Isa) -> bool| {
            micro::NAMES.iter().filter(move |(_, isa)| wanted(*isa)).map(|(name, _)| *name)
        };
        match choice {
            // The portable kernel is last, because it is for processors on which no other kernel runs.
            EngineChoice::Auto => {
                ours(|isa| isa != Isa::Portable).chain(["blas", "portable-4x4"]).collect()
            }
            EngineChoice::Packed => ours(|_| true).collect(),
            EngineChoice::Avx512 => ours(|isa| isa == Isa::Avx512).collect(),
            EngineChoice::Avx2 => ours(|isa| isa == Isa::Avx2).collect(),
            EngineChoice::Neon => ours(|isa| isa == Isa::Neon).collect(),
            EngineChoice::Portable => ours(|isa| isa == Isa::Portable).collect(),
            EngineChoice::Blas => vec!["blas"],
        }
    }

    /// Returns the engines that `choice` allows and that are compiled for this architecture. This processor may be unable to run
    /// some of them, while other ranks can.
    pub fn made(choice: EngineChoice) -> Vec<Self> {
        let names = Self::candidates(choice);
        micro::all()
            .map(Engine::Packed)
            .chain([Engine::Blas])
            .filter(|engine| names.contains(&engine.name()))
            .collect()
    }

    /// Returns the engines that `choice` allows and that this processor can run, in the order of preference. The list may be
    /// empty.
    pub fn possible(choice: EngineChoice) -> Vec<Self> {
        Self::candidates(choice).into_iter().filter_map(Self::named).collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Engine::Packed(kernel) => kernel.name,
            Engine::Blas => "blas",
        }
    }

    /// Returns every engine that this processor can run.
    ///
    /// Nodes exchange this list before they agree on an engine. All ranks of a run use the same engine, because panels are sent
    /// in the engine's layout.
    pub fn runnable() -> Vec<Self> {
        micro::runnable().map(Engine::Packed).chain([Engine::Blas]).collect()
    }

    /// Returns the engine with the name `name`. Returns `None` if no engine that this processor can run has this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::runnable().into_iter().find(|engine| engine.name() == name)
    }

    /// Describes all properties that determine the last bits of a result.
    ///
    /// Engines with the same identity give the same bits. A run resumes only with an engine of the identity with which the run
    /// began. All our kernels, on all processors, have the same identity.
    pub fn identity(self) -> String {
        match self {
            Engine::Packed(_) => Self::OWN.into(),
            Engine::Blas => {
                let library = Library::query();
                let picked = format!("{} {} {}", library.name, library.version, library.kernel);
                Self::identity_of_blas(&picked, micro::runnable().next().is_some())
            }
        }
    }

    /// Returns the identity for the BLAS that `picked` describes. Even with a BLAS, the loops of the panel are our own code. With
    /// fused multiply-add instructions (`fused` is true), these loops round a multiplication and an addition once. Without such
    /// instructions, the loops round twice.
    pub fn identity_of_blas(picked: &str, fused: bool) -> String {
        format!("blas {picked}{}", if fused { "" } else { ", without fused multiply-adds" })
    }

    /// Returns whether both engines multiply with the same tile. Such engines differ at most within a panel.
    pub fn multiplies_as(self, other: Self) -> bool {
        match (self, other) {
            (Engine::Packed(one), Engine::Packed(two)) => std::ptr::fn_addr_eq(one.tile, two.tile),
            _ => self == other,
        }
    }

    /// Returns whether results are independent of the division of columns into calls.
    pub fn cuts_freely(self) -> bool {
        self != Engine::Blas
    }

    /// Number of doubles in a lower block of `rows x k`.
    pub fn lower_len(self, rows: usize, k: usize) -> usize {
        match self {
            Engine::Packed(kernel) => packed::lower_len(kernel, rows, k),
            Engine::Blas => rows * k,
        }
    }

    /// Number of doubles in an upper block of `k x cols`.
    pub fn upper_len(self, k: usize, cols: usize) -> usize {
        match self {
            Engine::Packed(kernel) => packed::upper_len(kernel, k, cols),
            Engine::Blas => k * cols,
        }
    }

    /// Number of doubles in the packed form of L1 that [`UpperBlock::solve`] needs.
    pub fn triangle_len(self, k: usize) -> usize {
        match self {
            Engine::Packed(kernel) => packed::lower_len(kernel, k, k),
            Engine::Blas => 0,
        }
    }

    /// Returns the unit of rows. The rows of a task begin at a multiple of this unit, and so do separately packed parts of a
    /// lower block. In a lower block of k columns, the part from row i on begins at element i k.
    pub fn row_step(self) -> usize {
        match self {
            Engine::Packed(kernel) => kernel.scalar,
            Engine::Blas => 1,
        }
    }

    /// Upper bound of the doubles of scratch that [`Engine::multiply_in_panel`] and [`Engine::solve_in_panel`] need in a panel of
    /// `width` columns.
    pub fn scratch_len(self, width: usize) -> usize {
        match self {
            Engine::Packed(_) => packed::scratch_len(width),
            Engine::Blas => 0,
        }
    }

    /// Packs the column-major L(rows x k) as a lower block.
    ///
    /// # Safety
    /// `l` spans `k` columns, `out` has [`Engine::lower_len`] doubles, and `l` and `out` do not overlap.
    pub unsafe fn lay_lower(self, rows: usize, k: usize, l: Matrix<*const f64>, out: *mut f64) {
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Engine::Packed(kernel) => packed::pack(kernel.scalar, rows, k, l, out),
                // L is stored by rows, like C and U. If k is small, BLIS packs nothing, and with L stored by columns it takes
                // 1.6 times as long.
                Engine::Blas => {
                    let strides = Strides { row: 1, col: l.ld };
                    copy_by_rows(l.at, strides, rows, k, Matrix::new(out, k));
                }
            }
        }
    }

    /// Computes A(m x n) -= L(m x k) B(k x n) within a panel.
    ///
    /// A and L are column-major with the same leading dimension. `scratch` is reused between calls.
    ///
    /// # Safety
    /// The ranges are valid and A overlaps neither L nor B.
    pub unsafe fn multiply_in_panel(
        self,
        size: Size,
        l: *const f64,
        b: Strided,
        a: Matrix<*mut f64>,
        scratch: &mut Vec<f64>,
    ) {
        if size.is_empty() {
            return;
        }
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Engine::Packed(kernel) => {
                    packed::multiply_in_panel(kernel, size, l, b, a, scratch);
                }
                Engine::Blas => {
                    let b = match b.strides {
                        Strides { row: 1, col } => Operand::plain(b.at, col),
                        Strides { row, .. } => Operand::transposed(b.at, row),
                    };
                    active().calls.gemm(size, -1.0, Operand::plain(l, a.ld), b, a);
                }
            }
        }
    }

    /// Computes B(n x cols) := L^-1 B within a panel's L1. L and B are in `form`, with the same leading dimension. L is unit
    /// lower.
    ///
    /// # Safety
    /// The ranges are valid and do not overlap.
    pub unsafe fn solve_in_panel(
        self,
        n: usize,
        cols: usize,
        form: Form,
        l: *const f64,
        b: Matrix<*mut f64>,
        scratch: &mut Vec<f64>,
    ) {
        if n == 0 || cols == 0 {
            return;
        }
        // SAFETY: ensured by the caller.
        unsafe {
            match self {
                Engine::Packed(kernel) => {
                    let strides = TriangleBlock::strides(form, b.ld);
                    packed::solve_in_panel(kernel, n, cols, l, b.at, strides, scratch);
                }
                Engine::Blas => {
                    let l = Matrix::new(l, b.ld);
                    match form {
                        Form::Transposed => active().calls.trsm(Solve::LEFT_LOWER, n, cols, l, b),
                        // Row-major matrices are transposes to the BLAS.
                        Form::NotTransposed => {
                            active().calls.trsm(Solve::RIGHT_UPPER, cols, n, l, b)
                        }
                    }
                }
            }
        }
    }
}

/// L below the diagonal block, `rows x k`, packed by [`Engine::lay_lower`].
#[derive(Clone, Copy)]
pub struct LowerBlock {
    pub engine: Engine,
    pub rows: usize,
    pub k: usize,
    pub data: *const f64,
}

/// U right of the diagonal block, `k x cols`.
#[derive(Clone, Copy)]
pub struct UpperBlock {
    pub engine: Engine,
    pub k: usize,
    pub cols: usize,
    pub data: *mut f64,
}

// SAFETY: only unsafe functions dereference the pointers, and their callers keep tasks apart.
unsafe impl Send for LowerBlock {}
// SAFETY: as above.
unsafe impl Sync for LowerBlock {}
// SAFETY: as above.
unsafe impl Send for UpperBlock {}
// SAFETY: as above.
unsafe impl Sync for UpperBlock {}

impl UpperBlock {
    /// Returns the unit of columns. A range of columns that is solved or multiplied begins at a multiple of this unit.
    pub fn column_unit(&self) -> usize {
        match self.engine {
            Engine::Packed(kernel) => kernel.vector,
            Engine::Blas => 1,
        }
    }

    /// Sets the padding beyond the rows and columns of the block to zero. Must be called before rows are stored.
    ///
    /// # Safety
    /// `data` has [`Engine::upper_len`] doubles.
    pub unsafe fn clear_edges(&self) {
        if let Engine::Packed(kernel) = self.engine {
            // SAFETY: ensured by the caller.
            unsafe { packed::clear_edges(kernel, self.data, self.k, self.cols) }
        }
    }

    /// Stores `len` elements from `src` in row `p`, starting at column `from`.
    ///
    /// # Safety
    /// The block and `src` have these elements, and no other thread touches these elements of the block.
    pub unsafe fn put_row(&self, p: usize, from: usize, len: usize, src: *const f64) {
        debug_assert!(p < self.k && from + len <= self.cols);
        // SAFETY: ensured by the caller.
        unsafe {
            match self.engine {
                Engine::Packed(kernel) => {
                    packed::put_row(kernel, self.data, self.k, p, from, len, src);
                }
                Engine::Blas => {
                    std::ptr::copy_nonoverlapping(src, self.data.add(p * self.cols + from), len)
                }
            }
        }
    }

    /// Copies `len` elements of row `p`, starting at column `from`, to `dst`.
    ///
    /// # Safety
    /// As for [`UpperBlock::put_row`].
    pub unsafe fn get_row(&self, p: usize, from: usize, len: usize, dst: *mut f64) {
        debug_assert!(p < self.k && from + len <= self.cols);
        // SAFETY: ensured by the caller.
        unsafe {
            match self.engine {
                Engine::Packed(kernel) => {
                    packed::get_row(kernel, self.data, self.k, p, from, len, dst);
                }
                Engine::Blas => {
                    std::ptr::copy_nonoverlapping(self.data.add(p * self.cols + from), dst, len)
                }
            }
        }
    }

    /// Returns the address and the number of doubles of the columns `cols`, which are contiguous in memory with all their rows.
    ///
    /// `cols` begins at a multiple of [`UpperBlock::column_unit`]. The range ends at such a multiple or at the end of the
    /// block. The engine must be one of our own.
    pub fn whole_units(&self, cols: Range<usize>) -> (*mut f64, usize) {
        let unit = self.column_unit();
        debug_assert!(
            self.engine.cuts_freely() && cols.start.is_multiple_of(unit) || cols.is_empty()
        );
        debug_assert!(cols.end.is_multiple_of(unit) || cols.end == self.cols);
        let len = self.engine.upper_len(self.k, cols.len());
        // The address is within the block, or past its end if no columns are requested.
        (self.data.wrapping_add(self.engine.upper_len(self.k, cols.start)), len)
    }

    /// Computes U(:, cols) := L1^-1 U(:, cols). `cols` begins at a multiple of [`UpperBlock::column_unit`].
    ///
    /// # Safety
    /// The blocks are valid, and no other thread touches the columns `cols` of U.
    pub unsafe fn solve(&self, l1: &TriangleBlock, cols: Range<usize>) {
        // SAFETY: ensured by the caller.
        unsafe {
            match self.engine {
                Engine::Packed(kernel) => {
                    let unit = kernel.vector;
                    let panels = cols.start / unit..cols.end.div_ceil(unit);
                    packed::solve_upper(kernel, self.k, l1.laid, self.data, panels);
                }
                // Some libraries treat a single column as a vector, and round it in a way that depends on its address.
                Engine::Blas if cols.len() == 1 => {
                    let strides = l1.own_strides();
                    for p in 0..self.k {
                        let x = *self.data.add(p * self.cols + cols.start);
                        for i in p + 1..self.k {
                            let y = self.data.add(i * self.cols + cols.start);
                            *y -= *l1.raw.add(strides.to(i, p)) * x;
                        }
                    }
                }
                Engine::Blas => {
                    // Row-major U is U^T to the BLAS: U^T := U^T L1^-T.
                    let (n, k) = (cols.len(), self.k);
                    let triangle = Matrix::new(l1.raw, TriangleBlock::leading_dimension(l1.k));
                    let u = Matrix::new(self.data.add(cols.start), self.cols);
                    let solve = match l1.form {
                        Form::NotTransposed => Solve::RIGHT_UPPER,
                        Form::Transposed => Solve::RIGHT_LOWER_TRANSPOSED,
                    };
                    active().calls.trsm(solve, n, k, triangle, u);
                }
            }
        }
    }
}

/// L1, the unit lower triangle of the diagonal block, in two forms: as sent in the panel's message (`raw`), and packed for the
/// engine (`laid`).
#[derive(Clone, Copy)]
pub struct TriangleBlock {
    pub k: usize,
    /// Storage order of `raw`. `Transposed` means column-major.
    pub form: Form,
    pub raw: *const f64,
    /// L1 packed for the engine: [`Engine::triangle_len`] doubles, filled by [`TriangleBlock::lay`].
    pub laid: *mut f64,
}

// SAFETY: as for the other blocks.
unsafe impl Send for TriangleBlock {}
// SAFETY: as above.
unsafe impl Sync for TriangleBlock {}

impl TriangleBlock {
    /// Returns the leading dimension of `raw` for a triangle of order `k`. The leading dimension is the distance of columns in
    /// column-major order, or of rows in row-major order, in doubles.
    pub fn leading_dimension(k: usize) -> usize {
        cache::leading_dimension(k, 1)
    }

    /// Returns the strides of rows and columns of a matrix in `form` with leading dimension `ld`.
    pub fn strides(form: Form, ld: usize) -> Strides {
        match form {
            Form::NotTransposed => Strides { row: ld, col: 1 },
            Form::Transposed => Strides { row: 1, col: ld },
        }
    }

    /// Returns the strides of rows and columns in `raw`.
    fn own_strides(&self) -> Strides {
        Self::strides(self.form, Self::leading_dimension(self.k))
    }

    /// Packs L1 for `engine`: from `raw` to `laid`.
    ///
    /// # Safety
    /// `raw` and `laid` are valid for their lengths.
    pub unsafe fn lay(&self, engine: Engine) {
        if let Engine::Packed(kernel) = engine {
            // SAFETY: ensured by the caller.
            unsafe {
                packed::pack_triangle(kernel, self.k, self.raw, self.own_strides(), self.laid);
            }
        }
    }
}

impl LowerBlock {
    /// Returns the number of rows of one task.
    pub fn row_unit(&self) -> usize {
        match self.engine {
            Engine::Packed(kernel) => packed::row_block(kernel, self.k),
            Engine::Blas => 1024,
        }
    }

    /// Computes C(rows x cols) -= L U for row-major C. `c` begins at row 0 and column 0 of the blocks.
    ///
    /// `rows` begins at a multiple of [`Engine::row_step`], and `cols` at a multiple of [`UpperBlock::column_unit`].
    ///
    /// # Safety
    /// The blocks are valid, and no other thread touches rows `rows` and columns `cols` of C.
    pub unsafe fn multiply(
        &self,
        u: &UpperBlock,
        rows: Range<usize>,
        cols: Range<usize>,
        c: Matrix<*mut f64>,
    ) {
        debug_assert_eq!(self.k, u.k);
        // SAFETY: ensured by the caller.
        unsafe {
            match self.engine {
                Engine::Packed(kernel) => {
                    packed::multiply(kernel, self.k, self.data, rows, u.data, cols, c);
                }
                // A single column is multiplied by this loop, for the reason given in `solve`.
                Engine::Blas if cols.len() == 1 => {
                    /// Number of sums that the processor can compute at the same time.
                    const AT_ONCE: usize = 8;
                    for first in rows.clone().step_by(AT_ONCE) {
                        let rows = first..(first + AT_ONCE).min(rows.end);
                        for p in 0..self.k {
                            let x = *u.data.add(p * u.cols + cols.start);
                            for i in rows.clone() {
                                *c.at.add(i * c.ld + cols.start) -=
                                    *self.data.add(i * self.k + p) * x;
                            }
                        }
                    }
                }
                Engine::Blas => {
                    // Row-major C is C^T to the BLAS: C^T -= U^T L^T.
                    active().calls.gemm(
                        Size::new(cols.len(), rows.len(), self.k),
                        -1.0,
                        Operand::plain(u.data.add(cols.start), u.cols),
                        Operand::plain(self.data.add(rows.start * self.k), self.k),
                        Matrix::new(c.at.add(rows.start * c.ld + cols.start), c.ld),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_found_by_its_name_and_is_told_from_the_others() {
        let all = Engine::runnable();
        assert!(all.contains(&Engine::Blas));
        for (i, &engine) in all.iter().enumerate() {
            assert_eq!(Engine::named(engine.name()), Some(engine));
            for other in &all[..i] {
                assert_ne!(engine.name(), other.name());
                let ours = engine != Engine::Blas && *other != Engine::Blas;
                assert_eq!(engine.identity() == other.identity(), ours);
            }
        }
        assert_eq!(Engine::named("abacus"), None);
    }
}

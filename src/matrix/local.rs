//! The part of [A|b] on one rank.

use std::ops::Range;
use std::sync::Mutex;

use ndarray::{ArrayView2, ArrayViewMut2, Axis, ShapeBuilder};

use super::{Generator, Storage};
use crate::base::params::TestParams;
use crate::base::threads::Pool;
use crate::grid::{Cyclic, ProcessGrid};

/// Shape of the local part of [A|b] at grid position (`row`, `col`): pure arithmetic.
///
/// Process columns from number `q` on are checksum columns. Local column l of a checksum column is a weighted sum of local column
/// l of all process columns. Only columns of A are summed. The last local column of a checksum column is b.
///
/// `row_map` and `col_map` assign no global indices to checksum columns. In a checksum column, [`Shape::col_from_block`] is the
/// first local column whose sum includes a column of block k or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub n: usize,
    pub nb: usize,
    pub grid: ProcessGrid,
    pub row: usize,
    pub col: usize,
    /// Distribution of the N rows over the process rows.
    pub row_map: Cyclic,
    /// Distribution of the N+1 columns of [A|b] over the process columns.
    pub col_map: Cyclic,
    /// Number of local rows.
    pub rows: usize,
    /// Number of local columns.
    pub cols: usize,
    /// Number of doubles from the start of a local row to the start of the next one.
    pub ld: usize,
}

impl Shape {
    pub fn new(params: &TestParams, row: usize, col: usize) -> Self {
        let grid = ProcessGrid::of(params);
        Self::of(params.n, params.nb, grid, row, col)
    }

    /// Returns the shape of the local part at grid position (`row`, `col`), for an N x (N+1) matrix in blocks of `nb` x `nb`.
    pub fn of(n: usize, nb: usize, grid: ProcessGrid, row: usize, col: usize) -> Self {
        let row_map = Cyclic::new(n, nb, grid.p);
        let col_map = Cyclic::new(n + 1, nb, grid.q);
        let cols = if col >= grid.q {
            Cyclic::new(n, nb, grid.q).count(0) + 1
        } else {
            col_map.count(col)
        };
        Self {
            n,
            nb,
            grid,
            row,
            col,
            row_map,
            col_map,
            rows: row_map.count(row),
            cols,
            ld: leading_dimension(cols),
        }
    }

    /// Number of doubles in the local part.
    pub fn len(&self) -> usize {
        self.rows * self.ld
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether this is the shape of the local part of a checksum column.
    pub fn is_sums(&self) -> bool {
        self.sums().is_some()
    }

    /// Returns the number of the checksum column, from 0. Returns `None` if the process column is within the grid.
    pub fn sums(&self) -> Option<usize> {
        self.col.checked_sub(self.grid.q)
    }

    /// Returns the shape of process column `col` after it has moved into the memory of this checksum column. The leading
    /// dimension stays the same.
    pub fn as_column(&self, col: usize) -> Self {
        debug_assert!(self.is_sums() && col < self.grid.q);
        Self { ld: self.ld, ..Self::of(self.n, self.nb, self.grid, self.row, col) }
    }

    /// Returns the shape of a local part with only the first `cols` local columns.
    pub fn first_columns(self, cols: usize) -> Self {
        Self { cols, ld: leading_dimension(cols), ..self }
    }

    /// Returns the local column of b. Returns `None` if b is on another process column.
    pub fn rhs(&self) -> Option<usize> {
        if self.is_sums() {
            return Some(self.cols - 1);
        }
        (self.col_map.owner(self.n) == self.col).then(|| self.col_map.local(self.n))
    }

    /// Returns the first local row at or after block `k`.
    pub fn row_from_block(&self, k: usize) -> usize {
        self.row_map.count_below(k * self.nb, self.row)
    }

    /// Returns the first local column at or after block `k`.
    pub fn col_from_block(&self, k: usize) -> usize {
        self.col_map.count_below(k * self.nb, self.col)
    }
}

/// Returns the leading dimension for `cols` columns: a multiple of a cache line, but not of a page. With a multiple of a page,
/// all rows would use the same cache sets.
fn leading_dimension(cols: usize) -> usize {
    let ld = cols.next_multiple_of(8);
    if ld.is_multiple_of(512) && ld > 0 { ld + 8 } else { ld }
}

/// A rank's part of [A|b], stored by rows in any kind of memory.
pub struct Local<S> {
    pub shape: Shape,
    storage: S,
}

impl<S: Storage> Local<S> {
    /// Makes a local part in `storage`, which must be large enough for the shape.
    pub fn new(shape: Shape, storage: S) -> Self {
        assert!(storage.len() >= shape.len(), "the storage has room for the local matrix");
        Self { shape, storage }
    }

    /// Returns the address of the first element. Local element (i, j) is at `i * ld + j`.
    pub fn pointer(&mut self) -> *mut f64 {
        self.storage.pointer()
    }

    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Returns a view of the local rows and columns.
    pub fn view(&mut self) -> ArrayView2<'_, f64> {
        let Shape { rows, cols, ld, .. } = self.shape;
        // SAFETY: the storage is large enough for all rows at a distance of `ld`, and is borrowed as long as the view exists.
        unsafe { ArrayView2::from_shape_ptr((rows, cols).strides((ld, 1)), self.pointer()) }
    }

    /// Returns a mutable view of the local rows and columns.
    pub fn view_mut(&mut self) -> ArrayViewMut2<'_, f64> {
        let Shape { rows, cols, ld, .. } = self.shape;
        let shape = (rows, cols).strides((ld, 1));
        // SAFETY: as in `view`; the storage is borrowed mutably.
        unsafe { ArrayViewMut2::from_shape_ptr(shape, self.pointer()) }
    }

    /// Returns a mutable view of the local rows with their padding.
    fn padded(&mut self) -> ArrayViewMut2<'_, f64> {
        let Shape { rows, ld, .. } = self.shape;
        // SAFETY: the storage is large enough for all rows of `ld` doubles, and is borrowed mutably as long as the view exists.
        unsafe { ArrayViewMut2::from_shape_ptr((rows, ld), self.pointer()) }
    }

    /// Fills this part, which belongs to a process column of the grid, from `generator`. Overwrites the padding, too.
    pub fn generate(&mut self, generator: &Generator, pool: &mut Pool) {
        let shape = self.shape;
        generate_columns(&shape, 0..shape.cols, generator, self.padded(), pool);
    }

    /// Fills this part, which belongs to a checksum column. `weights` are the weights of the process columns. Generates all
    /// elements of A in the local rows again.
    pub fn generate_sums(&mut self, generator: &Generator, weights: &[f64], pool: &mut Pool) {
        let shape = self.shape;
        let (n, nb) = (shape.n, shape.nb);
        assert!(shape.is_sums() && weights.len() == shape.grid.q);
        fill(&shape, self.padded(), pool, |globals, rows| {
            rows.iter_mut().for_each(|row| row.fill(0.0));
            for block in 0..n.div_ceil(nb) {
                let (first, at) = (block * nb, block / shape.grid.q * nb);
                let weight = weights[block % shape.grid.q];
                generator.block(globals, first, nb.min(n - first), |r, j, v| {
                    rows[r][at + j] += weight * v;
                });
            }
            generator.block(globals, n, 1, |r, _, v| rows[r][shape.cols - 1] = v);
        });
    }
}

/// Generates the local columns `cols` of all local rows into the first columns of `all`. Sets all later columns of `all` to zero.
pub fn generate_columns(
    shape: &Shape,
    cols: Range<usize>,
    generator: &Generator,
    all: ArrayViewMut2<f64>,
    pool: &mut Pool,
) {
    assert!(!shape.is_sums(), "a checksum column is not generated as a column of the grid");
    fill(shape, all, pool, |globals, rows| {
        let mut at = cols.start;
        while at < cols.end {
            let len = (shape.nb - at % shape.nb).min(cols.end - at);
            let first = shape.col_map.global(at, shape.col);
            let to = at - cols.start;
            generator.block(globals, first, len, |r, j, v| rows[r][to + j] = v);
            at += len;
        }
        for row in rows {
            row[cols.len()..].fill(0.0);
        }
    });
}

/// Fills all local rows, a few in each task. Each task calls `some` with the global numbers of its rows and with the rows
/// themselves.
fn fill(
    shape: &Shape,
    mut all: ArrayViewMut2<f64>,
    pool: &mut Pool,
    some: impl Fn(&[usize], &mut [&mut [f64]]) + Sync,
) {
    const ROWS: usize = 8;
    let strips: Vec<_> = all.axis_chunks_iter_mut(Axis(0), ROWS).map(Mutex::new).collect();
    pool.run(strips.len(), |task| {
        let mut strip = strips[task].lock().expect("a strip has one task");
        let mut rows: Vec<&mut [f64]> = strip
            .rows_mut()
            .into_iter()
            .map(|row| row.into_slice().expect("a row is contiguous in memory"))
            .collect();
        let global = |r| shape.row_map.global(task * ROWS + r, shape.row);
        let globals: Vec<usize> = (0..rows.len()).map(global).collect();
        some(&globals, &mut rows);
    });
}

#[cfg(test)]
mod tests {
    use super::super::HugeBuffer;
    use super::*;
    use crate::base::params::*;

    /// Checks that the local columns of a checksum column are weighted sums over the process columns, and that its last local
    /// column is b. Also checks that every process column fits in the memory of a checksum column.
    #[test]
    fn the_sums_are_those_of_all_columns() {
        for (n, nb, p, q) in
            [(1, 1, 1, 1), (12, 3, 2, 2), (13, 3, 1, 3), (5, 4, 2, 3), (9, 2, 3, 2), (3, 8, 1, 2)]
        {
            let generator = Generator::new(Rng::Hpl, 100, n);
            for row in 0..p {
                let weights: Vec<f64> = (0..q).map(|col| 1.0 - 0.3 * col as f64).collect();
                let generate = |col: usize| {
                    let shape = Shape::new(&params(n, nb, p, q), row, col);
                    let mut local = Local::new(shape, HugeBuffer::new(shape.len()).unwrap());
                    match shape.sums() {
                        None => local.generate(&generator, &mut Pool::new(1)),
                        Some(_) => local.generate_sums(&generator, &weights, &mut Pool::new(1)),
                    }
                    local
                };
                let sums = generate(q + row);
                let columns: Vec<_> = (0..q).map(generate).collect();
                let at = |local: &Local<HugeBuffer>, i: usize, j: usize| {
                    local.storage.as_slice()[i * local.shape.ld + j]
                };
                assert_eq!(columns.iter().filter(|c| c.shape.rhs().is_some()).count(), 1);
                for column in &columns {
                    let fits = sums.shape.as_column(column.shape.col);
                    assert!(fits.cols <= sums.shape.cols && fits.len() <= sums.shape.len());
                    assert_eq!((fits.cols, fits.rhs()), (column.shape.cols, column.shape.rhs()));
                }
                for i in 0..sums.shape.rows {
                    for j in 0..sums.shape.cols - 1 {
                        let has =
                            |c: &&Local<HugeBuffer>| j < c.shape.cols && c.shape.rhs() != Some(j);
                        let share = |c: &Local<HugeBuffer>| weights[c.shape.col] * at(c, i, j);
                        let sum: f64 = columns.iter().filter(has).map(share).sum();
                        assert!((at(&sums, i, j) - sum).abs() < 1e-14, "{n} {nb} {q}: {i} {j}");
                    }
                    let b = columns.iter().find_map(|c| Some(at(c, i, c.shape.rhs()?)));
                    assert_eq!(b, Some(at(&sums, i, sums.shape.rhs().unwrap())));
                }
            }
        }
    }

    pub fn params(n: usize, nb: usize, p: usize, q: usize) -> TestParams {
        TestParams {
            n,
            nb,
            p,
            q,
            mapping: Mapping::Row,
            depth: 1,
            bcast: Bcast::OneRingM,
            rfact: Fact::Crout,
            ndiv: 2,
            pfact: Fact::Right,
            nbmin: 4,
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::Transposed,
            equilibrate: true,
            align: 8,
            threshold: 16.0,
            rng: Rng::Hpl,
            seed: 100,
        }
    }

    /// The matrix is the same for every grid, block size and number of threads.
    #[test]
    fn every_grid_holds_the_same_matrix() {
        for rng in [Rng::Hpl, Rng::Xoshiro] {
            for n in [0usize, 1, 5, 33] {
                let generator = Generator::new(rng, 100, n);
                for (nb, p, q) in [(1, 1, 1), (4, 2, 3), (7, 3, 2), (5, 4, 1), (64, 2, 2)] {
                    let mut seen = 0;
                    for row in 0..p {
                        for col in 0..q {
                            let shape = Shape::new(&params(n, nb, p, q), row, col);
                            let buffer = HugeBuffer::new(shape.len()).unwrap();
                            let mut local = Local::new(shape, buffer);
                            local.generate(&generator, &mut Pool::new(1 + row));
                            for i in 0..shape.rows {
                                for j in 0..shape.cols {
                                    let value = local.storage.as_slice()[i * shape.ld + j];
                                    let (gi, gj) = (
                                        shape.row_map.global(i, row),
                                        shape.col_map.global(j, col),
                                    );
                                    assert_eq!(value, generator.at(gi, gj));
                                    seen += 1;
                                }
                            }
                        }
                    }
                    assert_eq!(seen, n * (n + 1));
                }
            }
        }
    }

    #[test]
    fn rows_never_meet_in_the_same_cache_sets() {
        for cols in 0..5000 {
            let ld = leading_dimension(cols);
            assert!(ld >= cols && ld <= cols + 16 && ld.is_multiple_of(8));
            assert!(ld == 0 || !ld.is_multiple_of(512));
        }
    }
}

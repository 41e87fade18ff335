//! Multiplication for measuring. The multiplication has the shape of an update, and is repeated with the same operands.
//!
//! `choice` measures the rates of engines with this multiplication. `skt-hpl burnin` also measures with this multiplication, and
//! checks the product.

use super::operands::Matrix;
use super::{Engine, LowerBlock, UpperBlock};
use crate::base::threads::{Pool, Shareable};
use crate::shm::{MemoryError, Region};

/// Side of a square of C, in rows and columns. A square is too large for a core's caches, and small enough that a few threads
/// multiply it in some milliseconds.
const SIDE: usize = 1536;

/// Number of strips into which the columns of a square are divided. There are fewer strips if there are fewer columns.
const STRIPS: usize = 4;

/// Minimum number of tasks for each thread.
const EACH: usize = 3;

/// Padding of each row of C, in doubles. Without padding, all rows would fall into the same cache sets. The matrix of a test has
/// padding for the same reason.
const PAD: usize = 200;

/// Multiplication C -= L U with any of several engines. C consists of squares of `SIDE` x `SIDE`, and L has width k.
///
/// Several matrices C lie next to each other and are used in turn, each with its own U. So C and U come from memory in each
/// multiplication, as in an update. All operands are on huge pages, like the matrix.
pub struct Multiplication {
    k: usize,
    /// Number of rows of one matrix C.
    rows: usize,
    /// Number of columns of one matrix C.
    cols: usize,
    /// Number of matrices C.
    beside: usize,
    /// Number of doubles in the U that belongs to one matrix C.
    above: usize,
    /// Number of multiplications done so far.
    turns: usize,
    lower: Region,
    upper: Region,
    c: Region,
}

/// Number of squares of which one matrix C consists. A square has `SIDE` rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squares {
    /// Number of squares below one another.
    pub down: usize,
    /// Number of squares beside one another.
    pub across: usize,
}

impl Squares {
    /// Returns the smallest numbers of squares with which each of `threads` threads has several tasks as large as the tasks of an
    /// update.
    pub fn for_threads(threads: usize) -> Self {
        // A square has at least three blocks of rows, each divided into `STRIPS` tasks.
        let squares = threads.div_ceil(STRIPS);
        let down = (squares as f64).sqrt().ceil() as usize;
        Self { down, across: squares.div_ceil(down) }
    }

    pub fn count(self) -> usize {
        self.down * self.across
    }

    fn rows(self) -> usize {
        self.down * SIDE
    }

    fn cols(self) -> usize {
        self.across * SIDE
    }
}

/// Returns the number of rows and of columns of a task, in an update of `rows` x `cols` by `threads` threads. The number of rows
/// is the same as in an update (`row_unit`), because a kernel keeps so many rows in the cache. Only the number of columns is
/// reduced.
fn task(
    rows: usize,
    cols: usize,
    row_unit: usize,
    column_unit: usize,
    threads: usize,
) -> (usize, usize) {
    let strips =
        cols.div_ceil(SIDE / STRIPS).max((EACH * threads).div_ceil(rows.div_ceil(row_unit)));
    (row_unit, cols.div_ceil(strips).next_multiple_of(column_unit))
}

impl Multiplication {
    /// Returns three numbers of doubles: of L, of the U of one matrix C, and of all `beside` matrices C together. A square takes
    /// some 20 MB.
    pub fn sizes(engines: &[Engine], k: usize, squares: Squares, beside: usize) -> [usize; 3] {
        let (rows, cols) = (squares.rows(), squares.cols());
        let longest = |len: &dyn Fn(&Engine) -> usize| engines.iter().map(len).max().unwrap_or(0);
        let lower = longest(&|engine| engine.lower_len(rows, k));
        let above = longest(&|engine| engine.upper_len(k, cols));
        [lower, above, rows * (cols * beside + PAD)]
    }

    /// Allocates and fills L, and `beside` matrices C of `squares` squares each, with their U. `next` returns pairs of numbers.
    /// Each element of L is the first number of a pair. Each element of U is the second number of a later pair. Elements are
    /// filled in the order in which an engine stores them. With numbers above 1, elements of C grow.
    pub fn new(
        engines: &[Engine],
        k: usize,
        squares: Squares,
        beside: usize,
        pool: &mut Pool,
        mut next: impl FnMut() -> (f64, f64),
    ) -> Result<Self, MemoryError> {
        let (rows, cols) = (squares.rows(), squares.cols());
        let [lower, above, all] = Self::sizes(engines, k, squares, beside);
        let mut room = |len: usize| Region::touched(len * 8, pool);
        let (mut lower, mut upper, mut c) = (room(lower)?, room(above * beside)?, room(all)?);
        let ld = cols * beside + PAD;
        lower.as_slice_f64_mut().fill_with(|| next().0);
        upper.as_slice_f64_mut().fill_with(|| next().1);
        // With many threads C has hundreds of megabytes, so all threads fill C.
        pool.rows(&mut c.as_slice_f64_mut()[..rows * ld], ld, ld, |_, row| row.fill(1.0));
        Ok(Self { k, rows, cols, beside, above, turns: 0, lower, upper, c })
    }

    /// Changes the width of L to `k`, which must not exceed the original width. All elements of L must be equal, and so must all
    /// elements of U, because the change reorders the elements.
    pub fn narrow(&mut self, k: usize) {
        assert!(k * self.rows <= self.lower.as_slice_f64().len() && k * self.cols <= self.above);
        self.k = k;
    }

    /// Number of floating-point operations of one multiplication.
    pub fn flops(&self) -> f64 {
        2.0 * (self.rows * self.cols * self.k) as f64
    }

    /// Returns the elements of all matrices C, including padding.
    pub fn product(&self) -> &[f64] {
        self.c.as_slice_f64()
    }

    /// Multiplies once with `engine`, in tasks like those of an update.
    pub fn run(&mut self, engine: Engine, pool: &mut Pool) {
        let Self { k, rows, cols, beside, above, .. } = *self;
        let data = self.lower.as_slice_f64().as_ptr();
        let lower = LowerBlock { engine, rows, k, data };
        let turn = self.turns % beside;
        let data = self.upper.as_slice_f64_mut()[turn * above..].as_mut_ptr();
        let upper = UpperBlock { engine, k, cols, data };
        let (row_unit, column_unit) = (lower.row_unit(), upper.column_unit());
        let (of_rows, of_cols) = task(rows, cols, row_unit, column_unit, pool.threads());
        let strips = cols.div_ceil(of_cols);
        let (ld, first) = (beside * cols + PAD, turn * cols);
        self.turns += 1;
        let c = Shareable::new(self.c.as_slice_f64_mut()[first..].as_mut_ptr());
        pool.run(rows.div_ceil(of_rows) * strips, |task| {
            let (block, strip) = (task / strips, task % strips);
            let rows = block * of_rows..((block + 1) * of_rows).min(rows);
            let cols = strip * of_cols..((strip + 1) * of_cols).min(cols);
            // SAFETY: each task writes its own part of C; the blocks have the requested lengths.
            unsafe { lower.multiply(&upper, rows, cols, Matrix::new(c.get(), ld)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests for every number of threads that tasks are like the tasks of an update. Blocks have the same number of rows as in an
    /// update, strips are wide enough, and all threads have work.
    #[test]
    fn tasks_are_as_high_as_those_of_an_update() {
        for threads in 1..=256 {
            let squares = Squares::for_threads(threads);
            let Squares { down, across } = squares;
            assert!(squares.count() * STRIPS >= threads && down >= across);
            assert!((down - 1) * across * STRIPS < threads, "no larger than it must be");
            let (rows, cols) = (squares.rows(), squares.cols());
            for units in [(512, 8), (288, 6), (96, 14), (1024, 1)] {
                let (of_rows, of_cols) = task(rows, cols, units.0, units.1, threads);
                assert_eq!(of_rows, units.0);
                let tasks = rows.div_ceil(of_rows) * cols.div_ceil(of_cols);
                // The number of columns of a task is a multiple of a unit, which may reduce the number of tasks by one or two.
                assert!(5 * tasks >= 4 * EACH * threads, "{threads} threads, {units:?}: {tasks}");
                assert!(of_cols >= SIDE / STRIPS / 2, "{threads} threads, {units:?}: {of_cols}");
            }
        }
    }
}

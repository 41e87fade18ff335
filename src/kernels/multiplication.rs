//! A multiplication to measure: the shape of an update, repeated on the same operands.
//!
//! The contest of the engines measures with it, and so does `skt-hpl burnin`, which looks at the product as well.

use super::{Engine, LowerBlock, UpperBlock};
use crate::base::threads::{Pool, Shareable};
use crate::shm::{MemoryError, Region};

/// Side of a square that is multiplied into by few threads: large enough not to stay in a core's caches, small enough to be
/// through in some milliseconds.
const SIDE: usize = 1536;

/// Strips of a square's columns; fewer in fewer columns.
const STRIPS: usize = 4;

/// Tasks each thread has at least.
const EACH: usize = 3;

/// What rows of C are longer, so that they do not all meet in the same cache sets, as a matrix's do not.
const PAD: usize = 200;

/// C -= L U, with C of some squares of `SIDE` x `SIDE` down and across and L of width k, by any of some engines. There are
/// several C beside each other, in turn, and U what is above each: so both come from memory each time, as in an update. On huge
/// pages, as the matrix is.
pub struct Multiplication {
    k: usize,
    /// Rows and columns of one C.
    rows: usize,
    cols: usize,
    /// How many C there are.
    beside: usize,
    /// Doubles of U above one of them.
    above: usize,
    /// How often it has been done.
    turns: usize,
    lower: Region,
    upper: Region,
    c: Region,
}

/// How many squares C has, down and across, so that each of so many threads has some tasks as large as an update's.
pub fn squares(threads: usize) -> (usize, usize) {
    // A square is three blocks of rows, or more, by `STRIPS`.
    let squares = threads.div_ceil(STRIPS);
    let down = (squares as f64).sqrt().ceil() as usize;
    (down, squares.div_ceil(down))
}

/// Rows of a task, and columns, of an update of `rows` x `cols` by so many threads. Rows are as an update cuts them, for a kernel
/// keeps so many in the cache; columns are what is made fewer.
fn task(
    rows: usize,
    cols: usize,
    (row_unit, column_unit): (usize, usize),
    threads: usize,
) -> (usize, usize) {
    let strips =
        cols.div_ceil(SIDE / STRIPS).max((EACH * threads).div_ceil(rows.div_ceil(row_unit)));
    (row_unit, cols.div_ceil(strips).next_multiple_of(column_unit))
}

impl Multiplication {
    /// Doubles that it takes: of L, of U above one C, of all C. Some 20 MB for each of the squares.
    pub fn sizes(
        engines: &[Engine],
        k: usize,
        (down, across): (usize, usize),
        beside: usize,
    ) -> [usize; 3] {
        let (rows, cols) = (down * SIDE, across * SIDE);
        let longest = |len: &dyn Fn(&Engine) -> usize| engines.iter().map(len).max().unwrap_or(0);
        let lower = longest(&|engine| engine.lower_len(rows, k));
        let above = longest(&|engine| engine.upper_len(k, cols));
        [lower, above, rows * (cols * beside + PAD)]
    }

    /// With the numbers that `next` gives, in the order in which an engine lays the operands out. Larger ones than 1 let C grow.
    /// There are `beside` C of so many squares.
    pub fn new(
        engines: &[Engine],
        k: usize,
        (down, across): (usize, usize),
        beside: usize,
        pool: &mut Pool,
        mut next: impl FnMut() -> (f64, f64),
    ) -> Result<Self, MemoryError> {
        let (rows, cols) = (down * SIDE, across * SIDE);
        let [lower, above, all] = Self::sizes(engines, k, (down, across), beside);
        let mut room = |len: usize| Region::touched(len * 8, pool);
        let (mut lower, mut upper, mut c) = (room(lower)?, room(above * beside)?, room(all)?);
        let ld = cols * beside + PAD;
        lower.as_slice_f64_mut().fill_with(|| next().0);
        upper.as_slice_f64_mut().fill_with(|| next().1);
        // Hundreds of megabytes where there are many threads.
        let all = Shareable::new(c.as_slice_f64_mut().as_mut_ptr());
        pool.run(rows, |row| {
            // SAFETY: a task has a row of its own.
            unsafe { std::slice::from_raw_parts_mut(all.get().add(row * ld), ld).fill(1.0) }
        });
        Ok(Self { k, rows, cols, beside, above, turns: 0, lower, upper, c })
    }

    /// From now on with L of width k, no wider than it was made for; of numbers that are all alike.
    pub fn narrow(&mut self, k: usize) {
        assert!(k * self.rows <= self.lower.as_slice_f64().len() && k * self.cols <= self.above);
        self.k = k;
    }

    /// Operations of one multiplication.
    pub fn flops(&self) -> f64 {
        2.0 * (self.rows * self.cols * self.k) as f64
    }

    /// All there is of C.
    pub fn product(&self) -> &[f64] {
        self.c.as_slice_f64()
    }

    /// One of the engines multiplies once, in tasks as an update has them.
    pub fn run(&mut self, engine: Engine, pool: &mut Pool) {
        let Self { k, rows, cols, beside, above, .. } = *self;
        let data = self.lower.as_slice_f64().as_ptr();
        let lower = LowerBlock { engine, rows, k, data };
        let turn = self.turns % beside;
        let data = self.upper.as_slice_f64_mut()[turn * above..].as_mut_ptr();
        let upper = UpperBlock { engine, k, cols, data };
        let units = (lower.row_unit(), upper.column_unit());
        let (of_rows, of_cols) = task(rows, cols, units, pool.threads());
        let strips = cols.div_ceil(of_cols);
        let (ld, first) = (beside * cols + PAD, turn * cols);
        self.turns += 1;
        let c = Shareable::new(self.c.as_slice_f64_mut()[first..].as_mut_ptr());
        pool.run(rows.div_ceil(of_rows) * strips, |task| {
            let (block, strip) = (task / strips, task % strips);
            let rows = block * of_rows..((block + 1) * of_rows).min(rows);
            let cols = strip * of_cols..((strip + 1) * of_cols).min(cols);
            // SAFETY: tasks write parts of C of their own; the blocks have the lengths asked for.
            unsafe { lower.multiply(&upper, rows, cols, (c.get(), ld)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many threads there are, what is measured is what a run does: blocks of rows as high as its own, in not too narrow
    /// strips, and work for all.
    #[test]
    fn tasks_are_as_high_as_those_of_an_update() {
        for threads in 1..=256 {
            let (down, across) = squares(threads);
            assert!(down * across * STRIPS >= threads && down >= across);
            assert!((down - 1) * across * STRIPS < threads, "no larger than it must be");
            let (rows, cols) = (down * SIDE, across * SIDE);
            for units in [(512, 8), (288, 6), (96, 14), (1024, 1)] {
                let (of_rows, of_cols) = task(rows, cols, units, threads);
                assert_eq!(of_rows, units.0);
                let tasks = rows.div_ceil(of_rows) * cols.div_ceil(of_cols);
                // Columns come in units, which costs a task or two.
                assert!(5 * tasks >= 4 * EACH * threads, "{threads} threads, {units:?}: {tasks}");
                assert!(of_cols >= SIDE / STRIPS / 2, "{threads} threads, {units:?}: {of_cols}");
            }
        }
    }
}

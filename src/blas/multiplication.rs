//! A multiplication to measure: the shape of an update, repeated on the same operands.
//!
//! The contest of the engines measures with it, and so does `skt-hpl burnin`, which looks at the product as well.

use super::{Engine, LowerBlock, UpperBlock};
use crate::memory::Region;
use crate::threads::{Pool, Shareable};

/// Sides of the squares that are multiplied into: large enough not to stay in a core's caches, small
/// enough to be through in some milliseconds.
const SIDE: usize = 1536;

/// What rows of C are longer, so that they do not all meet in the same cache sets, as a matrix's do not.
const PAD: usize = 200;

/// C -= L U, with C of `SIDE` x `SIDE` and L of width k, by any of some engines. C is one of some squares beside each other, in
/// turn, and U what is above that square: with several both come from memory each time, as in an update. On huge pages, as the
/// matrix is.
pub struct Multiplication {
    k: usize,
    squares: usize,
    /// Doubles of U above one square.
    above: usize,
    /// How often it has been done.
    turns: usize,
    lower: Region,
    upper: Region,
    c: Region,
}

impl Multiplication {
    /// With the numbers that `next` gives, in the order in which an engine lays the operands out. Larger ones than 1 let C grow.
    ///
    /// # Panics
    /// If there is no memory for it, some 20 MB for each of the squares.
    pub fn new(
        engines: &[Engine],
        k: usize,
        squares: usize,
        mut next: impl FnMut() -> (f64, f64),
    ) -> Self {
        let longest = |len: &dyn Fn(&Engine) -> usize| engines.iter().map(len).max().unwrap_or(0);
        let mut lower = room(longest(&|engine| engine.lower_len(SIDE, k)));
        let above = longest(&|engine| engine.upper_len(k, SIDE));
        let mut upper = room(above * squares);
        let mut c = room(SIDE * (SIDE * squares + PAD));
        lower.as_slice_f64_mut().fill_with(|| next().0);
        upper.as_slice_f64_mut().fill_with(|| next().1);
        c.as_slice_f64_mut().fill(1.0);
        Self { k, squares, above, turns: 0, lower, upper, c }
    }

    /// Operations of one multiplication.
    pub fn flops(&self) -> f64 {
        2.0 * (SIDE * SIDE * self.k) as f64
    }

    /// All squares.
    pub fn product(&self) -> &[f64] {
        self.c.as_slice_f64()
    }

    /// One of the engines multiplies once, in tasks as an update has them.
    pub fn run(&mut self, engine: Engine, pool: &mut Pool) {
        let k = self.k;
        let data = self.lower.as_slice_f64().as_ptr();
        let lower = LowerBlock { engine, rows: SIDE, k, data };
        let square = self.turns % self.squares;
        let data = self.upper.as_slice_f64_mut()[square * self.above..].as_mut_ptr();
        let upper = UpperBlock { engine, k, cols: SIDE, data };
        let rows = lower.row_unit().min(SIDE.div_ceil(pool.threads()));
        let rows = rows.next_multiple_of(engine.row_step().unwrap_or(1));
        let cols = (SIDE / 4).next_multiple_of(upper.column_unit());
        let strips = SIDE.div_ceil(cols);
        let (ld, first) = (self.squares * SIDE + PAD, square * SIDE);
        self.turns += 1;
        let c = Shareable::new(self.c.as_slice_f64_mut()[first..].as_mut_ptr());
        pool.run(SIDE.div_ceil(rows) * strips, |task| {
            let (block, strip) = (task / strips, task % strips);
            let rows = block * rows..((block + 1) * rows).min(SIDE);
            let cols = strip * cols..((strip + 1) * cols).min(SIDE);
            // SAFETY: tasks write parts of C of their own; the blocks have the lengths asked for.
            unsafe { lower.multiply(&upper, rows, cols, (c.get(), ld)) }
        });
    }
}

/// Memory for so many doubles.
fn room(len: usize) -> Region {
    Region::anonymous(len * 8).expect("memory for a small multiplication")
}

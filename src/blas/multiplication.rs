//! A multiplication to measure: the shape of an update, repeated on the same operands.
//!
//! The contest of the engines measures with it, and so does `skt-hpl burnin`, which looks at the product as well.

use super::{Engine, LowerBlock, UpperBlock};
use crate::threads::{Pool, Shareable};

/// Sides of the matrix that is multiplied into: large enough not to stay in a core's caches, small
/// enough to be through in some milliseconds.
const SIDE: usize = 1536;

/// C -= L U, with C of `SIDE` x `SIDE` and L of width k.
pub struct Multiplication {
    engine: Engine,
    k: usize,
    lower: Vec<f64>,
    upper: Vec<f64>,
    c: Vec<f64>,
}

impl Multiplication {
    /// With the numbers that `next` gives, in the order in which the engine lays the operands out. Larger ones than 1 let C grow.
    pub fn new(engine: Engine, k: usize, mut next: impl FnMut() -> (f64, f64)) -> Self {
        let lower = (0..engine.lower_len(SIDE, k)).map(|_| next().0).collect();
        let upper = (0..engine.upper_len(k, SIDE)).map(|_| next().1).collect();
        Self { engine, k, lower, upper, c: vec![1.0; SIDE * SIDE] }
    }

    /// Operations of one multiplication.
    pub fn flops(&self) -> f64 {
        2.0 * (SIDE * SIDE * self.k) as f64
    }

    pub fn product(&self) -> &[f64] {
        &self.c
    }

    /// Multiplies once, in tasks as an update has them.
    pub fn run(&mut self, pool: &mut Pool) {
        let (engine, k) = (self.engine, self.k);
        let lower = LowerBlock { engine, rows: SIDE, k, data: self.lower.as_ptr() };
        let upper = UpperBlock { engine, k, cols: SIDE, data: self.upper.as_mut_ptr() };
        let rows = lower.row_unit().min(SIDE.div_ceil(pool.threads()));
        let rows = rows.next_multiple_of(engine.row_step().unwrap_or(1));
        let cols = (SIDE / 4).next_multiple_of(upper.column_unit());
        let strips = SIDE.div_ceil(cols);
        let c = Shareable::new(self.c.as_mut_ptr());
        pool.run(SIDE.div_ceil(rows) * strips, |task| {
            let (block, strip) = (task / strips, task % strips);
            let rows = block * rows..((block + 1) * rows).min(SIDE);
            let cols = strip * cols..((strip + 1) * cols).min(SIDE);
            // SAFETY: tasks write parts of C of their own; the blocks have the lengths asked for.
            unsafe { lower.multiply(&upper, rows, cols, (c.get(), SIDE)) }
        });
    }
}

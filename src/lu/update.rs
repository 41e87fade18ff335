//! Bringing columns up to date with a panel: swap rows, solve for U, multiply.

use std::ops::Range;

use super::clock::{Clock, Part};
use super::context::Context;
use super::panel::Panel;
use super::swap::{Strips, Swapper};
use crate::blas::{LowerBlock, UpperBlock};
use crate::matrix::HugeBuffer;
use crate::threads::{Pool, Shareable};

/// The multiplication left to do for a range of columns: tasks that may run in any order.
pub struct Multiplication {
    lower: LowerBlock,
    upper: UpperBlock,
    c: Shareable<f64>,
    ld: usize,
    row_unit: usize,
    row_blocks: usize,
    strip: usize,
    strips: usize,
}

impl Multiplication {
    pub fn tasks(&self) -> usize {
        self.row_blocks * self.strips
    }

    /// Runs one task: consecutive ones share a row block, which then stays in the cache.
    pub fn run(&self, task: usize) {
        let (block, strip) = (task / self.strips, task % self.strips);
        let rows = block * self.row_unit..((block + 1) * self.row_unit).min(self.lower.rows);
        let cols = strip * self.strip..((strip + 1) * self.strip).min(self.upper.cols);
        // SAFETY: tasks write parts of C of their own; the operands are only read by now.
        unsafe { self.lower.multiply(&self.upper, rows, cols, (self.c.get(), self.ld)) }
    }
}

/// Prepares the update of columns `cols` by `panel`: afterwards rows are swapped, U is solved, in
/// A where this process row owns it, and the multiplication is left to do.
///
/// # Safety
/// `a` is the whole local matrix; nobody else touches `cols`; `u` has room for them.
#[allow(clippy::too_many_arguments)] // the step's natural inputs
pub unsafe fn prepare(
    context: &Context,
    panel: &Panel,
    a: *mut f64,
    cols: Range<usize>,
    u: &mut HugeBuffer,
    swapper: &mut Swapper,
    pool: &mut Pool,
    clock: &mut Clock,
) -> Multiplication {
    let shape = &context.shape;
    let width = panel.width;
    let upper =
        UpperBlock { engine: context.engine, k: width, cols: cols.len(), data: u.as_mut_ptr() };
    let lower = panel.lower(context);
    let before = clock.enter(Part::Swap);
    if !cols.is_empty() {
        let moves = panel.moves.as_ref().expect("the panel has been opened");
        // SAFETY: passed on from the caller.
        unsafe { swapper.run(context, moves, panel.k, a, cols.clone(), &upper, pool) };
        clock.enter(Part::Triangle);
        let triangle = panel.triangle(context);
        let owner = shape.row_map.owner(panel.k * shape.nb) == shape.row;
        let first_row = shape.row_from_block(panel.k);
        let target = Shareable::new(a);
        let strips = Strips::new(cols.len(), upper.column_unit(), pool.threads());
        let shape = *shape;
        let first_col = cols.start;
        pool.run(strips.count, |task| {
            let strip = strips.get(task);
            // SAFETY: tasks have columns of their own.
            unsafe {
                upper.solve(&triangle, strip.clone());
                if owner {
                    for i in 0..width {
                        let row = target.get().add((first_row + i) * shape.ld + first_col);
                        upper.get_row(i, strip.start, strip.len(), row.add(strip.start));
                    }
                }
            }
        });
    }
    clock.enter(before);
    // SAFETY: row `first_below` is at most one past the last.
    let c = unsafe { a.add(panel.first_below * shape.ld + cols.start) };
    plan(lower, upper, c, shape.ld, pool.threads())
}

/// Cuts the multiplication into tasks: large ones for speed, at least a few for each thread.
fn plan(
    lower: LowerBlock,
    upper: UpperBlock,
    c: *mut f64,
    ld: usize,
    threads: usize,
) -> Multiplication {
    const WIDEST: usize = 80;
    let row_unit = lower.row_unit();
    let row_blocks = lower.rows.div_ceil(row_unit);
    let unit = upper.column_unit();
    let units = upper.cols.div_ceil(unit);
    let mut width = WIDEST.min(units.max(1));
    if threads > 1 {
        while width > 4 && row_blocks * units.div_ceil(width) < 12 * threads {
            width = width.div_ceil(2);
        }
    }
    Multiplication {
        lower,
        upper,
        c: Shareable::new(c),
        ld,
        row_unit,
        row_blocks,
        strip: width * unit,
        strips: units.div_ceil(width),
    }
}

//! Bringing columns up to date with a panel: swap rows, solve for U, multiply.

use std::ops::Range;

use super::clock::{Clock, Part};
use super::context::Context;
use super::panel::Panel;
use super::swap::{Strips, Swapper};
use crate::blas::{Engine, LowerBlock, UpperBlock};
use crate::matrix::{HugeBuffer, Shape};
use crate::threads::{Pool, Shareable};

/// The multiplication left to do for a range of columns: tasks that may run in any order.
pub struct Multiplication {
    lower: LowerBlock,
    upper: UpperBlock,
    c: Shareable<f64>,
    ld: usize,
    row_unit: usize,
    row_blocks: usize,
    strips: Vec<Range<usize>>,
}

impl Multiplication {
    pub fn tasks(&self) -> usize {
        self.row_blocks * self.strips.len()
    }

    /// Operations of all tasks together.
    pub fn flops(&self) -> f64 {
        2.0 * self.lower.rows as f64 * self.upper.cols as f64 * self.upper.k as f64
    }

    /// Runs one task: consecutive ones share a row block, which then stays in the cache.
    pub fn run(&self, task: usize) {
        let (block, strip) = (task / self.strips.len(), task % self.strips.len());
        let rows = block * self.row_unit..((block + 1) * self.row_unit).min(self.lower.rows);
        let cols = self.strips[strip].clone();
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
        let strips = match context.engine {
            Engine::Packed => Strips::new(cols.len(), upper.column_unit(), pool.threads()).all(),
            Engine::Blas => block_columns(shape, &cols),
        };
        let shape = *shape;
        let first_col = cols.start;
        pool.run(strips.len(), |task| {
            let strip = strips[task].clone();
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
    let c = Shareable::new(c);
    let (row_unit, ld) = (lower.row_unit(), shape.ld);
    let row_blocks = lower.rows.div_ceil(row_unit);
    let strips = match context.engine {
        Engine::Packed => wide_strips(&upper, row_blocks, pool.threads()),
        Engine::Blas => block_columns(shape, &cols),
    };
    Multiplication { lower, upper, c, ld, row_unit, row_blocks, strips }
}

/// The block columns of `cols`, and the right-hand side by itself, counted from where `cols` begins.
///
/// A BLAS chooses its kernels by the shape of a call, and they round differently. Called by block
/// column it sees the same shapes whatever is looked ahead, so that a run which drains its pipeline
/// at other boundaries, as after a failure, comes to the same bits.
fn block_columns(shape: &Shape, cols: &Range<usize>) -> Vec<Range<usize>> {
    let owner = shape.col_map.owner(shape.n) == shape.col;
    let right_hand_side = if owner { shape.col_map.local(shape.n) } else { shape.cols };
    let mut strips = Vec::new();
    let mut at = cols.start;
    while at < cols.end {
        let mut end = (at / shape.nb + 1) * shape.nb;
        if at < right_hand_side {
            end = end.min(right_hand_side);
        }
        let end = end.min(cols.end);
        strips.push(at - cols.start..end - cols.start);
        at = end;
    }
    strips
}

/// Strips of columns for the packed engine: wide ones for speed, at least a few tasks for each thread.
fn wide_strips(upper: &UpperBlock, row_blocks: usize, threads: usize) -> Vec<Range<usize>> {
    const WIDEST: usize = 80;
    let unit = upper.column_unit();
    let units = upper.cols.div_ceil(unit);
    let mut width = WIDEST.min(units.max(1));
    if threads > 1 {
        while width > 4 && row_blocks * units.div_ceil(width) < 12 * threads {
            width = width.div_ceil(2);
        }
    }
    let width = width * unit;
    (0..upper.cols).step_by(width).map(|at| at..(at + width).min(upper.cols)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::{Cyclic, ProcessGrid};
    use crate::params::Mapping;

    /// Strips of any range are the strips of the whole, cut off at the range's ends only where it
    /// begins or ends itself at a block.
    #[test]
    fn block_columns_do_not_depend_on_the_range() {
        for (n, nb, q) in [(10, 3, 1), (9, 3, 1), (10, 3, 2), (12, 4, 3), (1, 5, 1), (7, 1, 2)] {
            for col in 0..q {
                let col_map = Cyclic::new(n + 1, nb, q);
                let cols = col_map.count(col);
                let shape = Shape {
                    n,
                    nb,
                    grid: ProcessGrid { p: 1, q, mapping: Mapping::Row },
                    row: 0,
                    col,
                    row_map: Cyclic::new(n, nb, 1),
                    col_map,
                    rows: n,
                    cols,
                    ld: cols,
                };
                let whole = block_columns(&shape, &(0..cols));
                assert_eq!(whole.iter().map(Range::len).sum::<usize>(), cols);
                assert!(whole.iter().all(|strip| (1..=nb).contains(&strip.len())));
                for k in 0..=n.div_ceil(nb) {
                    let start = col_map.count_below((k * nb).min(n), col);
                    let part = block_columns(&shape, &(start..cols));
                    let tail: Vec<Range<usize>> = whole
                        .iter()
                        .filter(|strip| strip.start >= start)
                        .map(|strip| strip.start - start..strip.end - start)
                        .collect();
                    assert_eq!(part, tail, "n {n} nb {nb} q {q} from {start}");
                }
            }
        }
    }
}

//! Splits the columns of an update in halves, so that the rows of one half are exchanged while the other half is multiplied: pure
//! functions.
//!
//! The right half is multiplied first, while the rows of the left half are exchanged. While the left half is multiplied, the
//! right half is already up to date. So the rows of the right half may be exchanged for the next panel as soon as the next panel
//! has arrived. The split moves to the right with the trailing submatrix, so columns that are exchanged early have always been
//! multiplied before.
//!
//! The ranks of a process column exchange rows with each other, so all of these ranks split at the same column. The split depends
//! only on sizes and on settings that are the same on all ranks. It does not depend on the number of panels factored ahead,
//! because this number is not known one iteration earlier. Each rank may start its exchange at any time.

use super::context::{Context, Order};
use super::panel_threads::panel_workers;
use super::update::{blas_strips, from_rest};
use crate::base::params::SplitUpdate;
use crate::kernels::Engine;
use crate::matrix::Shape;
use std::ops::Range;

/// Minimum number of floating-point operations per thread in half of an update: about a millisecond. A smaller update is not
/// split. With a split, the threads synchronize once more. An exchange consists of several messages one after the other, each
/// with microseconds of latency.
const WORTHWHILE: f64 = 5e7;

impl Context<'_> {
    /// Returns the local column at which the update with panel `k` is split in halves. Returns `None` if the update is not split.
    pub fn cut(&self, k: usize) -> Option<usize> {
        cut(&self.shape, self.params.lookahead(), self.engine, self.order, k)
    }
}

/// Returns the local column at which the update with panel `k` is split. Both halves have at least one column. Returns `None` if
/// the update is not split. `depth` is the lookahead.
pub fn cut(shape: &Shape, depth: usize, engine: Engine, order: Order, k: usize) -> Option<usize> {
    if shape.grid.p == 1 || order.split_update == SplitUpdate::Never {
        return None;
    }
    let rest = from_rest(shape, depth, k);
    let middle = rest.midpoint(shape.cols);
    let cut = if engine.cuts_freely() {
        // The split is at a block column. For most NB, rows of the updated matrix then begin at a cache line.
        middle.next_multiple_of(shape.nb)
    } else {
        let strips = blas_strips(shape, depth, k, &(rest..shape.cols));
        rest + strips.iter().map(|strip| strip.start).find(|&at| rest + at >= middle)?
    };
    let there = rest < cut && cut < shape.cols;
    (there && (order.split_update == SplitUpdate::Always || pays(shape, depth, order, k, cut)))
        .then_some(cut)
}

/// Returns whether a split at local column `cut` saves time: whether the right half keeps the threads busy long enough to hide a
/// row exchange. The right half is at most as wide as the left half.
fn pays(shape: &Shape, depth: usize, order: Order, k: usize, cut: usize) -> bool {
    let right = shape.cols - cut;
    // Numbers of local rows differ by a block between process rows. The result must be the same in all process rows, so it
    // follows from the average.
    let rows = shape.n.saturating_sub((k + 1) * shape.nb) / shape.grid.p;
    let operations = 2.0 * rows as f64 * right as f64 * shape.nb as f64;
    // The panel that is factored at the same time overlaps the multiplication of only half of the columns.
    let next = k + depth;
    let factors = depth > 0
        && next * shape.nb < shape.n
        && order.overlap()
        && shape.col_map.owner(next * shape.nb) == shape.col;
    operations >= WORTHWHILE * order.threads as f64
        && !(factors && panel_workers(order.threads, shape.nb, right, shape.grid.q) > 0)
}

/// Returns the offset of the right half's upper block, which has `of` doubles, in a buffer of `len` doubles.
///
/// The right half's block is at the end of the buffer, and the left half's block begins at 0. The buffer is larger by [`slack`]
/// than an upper block of all columns. So this iteration's left half and the next iteration's right half have space at the same
/// time.
pub fn right_at(len: usize, of: usize) -> usize {
    (len - of) / LINE * LINE
}

/// Number of doubles in a cache line.
const LINE: usize = 8;

/// Returns the number of doubles by which a buffer for the upper blocks of both halves is longer than an upper block of all
/// columns.
pub fn slack(engine: Engine, width: usize) -> usize {
    engine.upper_len(width, 1) + LINE
}

/// Returns the halves of `cols` in the order of multiplication. Returns `cols` alone if `cut` is `None`.
pub fn parts(cols: Range<usize>, cut: Option<usize>) -> Vec<Range<usize>> {
    match cut {
        Some(cut) => vec![cut..cols.end, cols.start..cut],
        None => vec![cols],
    }
}

#[cfg(test)]
mod tests {
    use super::super::cuts::offset;
    use super::*;
    use crate::base::params::Mapping;
    use crate::grid::ProcessGrid;
    use proptest::prelude::*;

    fn shape(n: usize, nb: usize, (p, q): (usize, usize), row: usize, col: usize) -> Shape {
        Shape::of(n, nb, ProcessGrid { p, q, mapping: Mapping::Row }, row, col)
    }

    fn order(threads: usize, split_update: SplitUpdate) -> Order {
        Order { threads, split_update }
    }

    proptest! {
        /// Tests that all ranks of a process column, or of a checksum column, split at the same column, and that both halves
        /// have columns. Also tests that a BLAS multiplies the same strips with and without a split.
        #[test]
        fn process_rows_cut_alike_and_as_the_engine_does(
            n in 1usize..900, nb in 1usize..40, p in 2usize..5, q in 1usize..4, depth in 0usize..4,
            threads in 1usize..4, sums in 0usize..2,
        ) {
            for engine in Engine::runnable() {
                for (col, k) in (0..q + sums).flat_map(|col| (0..n.div_ceil(nb)).map(move |k| (col, k))) {
                    for split_update in [SplitUpdate::Auto, SplitUpdate::Always, SplitUpdate::Never] {
                        let order = order(threads, split_update);
                        let cut_at = |row| cut(&shape(n, nb, (p, q), row, col), depth, engine, order, k);
                        let first = cut_at(0);
                        prop_assert!((1..p).all(|row| cut_at(row) == first));
                        let shape = shape(n, nb, (p, q), 0, col);
                        let Some(cut) = first else { continue };
                        prop_assert!(split_update != SplitUpdate::Never);
                        let rest = from_rest(&shape, depth, k);
                        prop_assert!(rest < cut && cut < shape.cols);
                        if !engine.cuts_freely() {
                            let at = |cols: Range<usize>| -> Vec<Range<usize>> {
                                let strips = blas_strips(&shape, depth, k, &cols);
                                strips.into_iter().map(|strip| offset(strip, cols.start)).collect()
                            };
                            let both = [at(rest..cut), at(cut..shape.cols)].concat();
                            prop_assert_eq!(both, at(rest..shape.cols));
                        }
                    }
                }
            }
        }

        /// Tests that the upper blocks of an iteration's left half and of the next iteration's right half do not overlap in the
        /// buffer.
        #[test]
        fn upper_blocks_that_are_there_together_do_not_meet(
            n in 1usize..900, nb in 1usize..40, p in 2usize..4, q in 1usize..4, depth in 1usize..4,
        ) {
            for engine in Engine::runnable() {
                for (col, k) in (0..q).flat_map(|col| (0..n.div_ceil(nb)).map(move |k| (col, k))) {
                    let shape = shape(n, nb, (p, q), 0, col);
                    let order = order(1, SplitUpdate::Always);
                    let width = nb.min(n);
                    let len = engine.upper_len(width, shape.cols) + slack(engine, width);
                    let cut_at = |k| cut(&shape, depth, engine, order, k);
                    let Some(now) = cut_at(k) else { continue };
                    let of = |cols: usize| engine.upper_len(width, cols);
                    let left = of(now - shape.col_from_block(k));
                    prop_assert!(left <= right_at(len, of(shape.cols - now)));
                    if let Some(next) = cut_at(k + 1).filter(|&next| next >= now) {
                        prop_assert!(left <= right_at(len, of(shape.cols - next)));
                    }
                    // With our own kernels, the rows of the next iteration can always be exchanged early, as long as columns are
                    // split.
                    if engine.cuts_freely() {
                        prop_assert!(cut_at(k + 1).is_none_or(|next| next >= now));
                    }
                }
            }
        }
    }

    #[test]
    fn it_pays_where_a_half_takes_long_and_hides_the_panel() {
        let engine = Engine::runnable()[0];
        let cuts = |(n, nb, grid), threads| {
            let shape = shape(n, nb, grid, 0, 0);
            let order = order(threads, SplitUpdate::Auto);
            (0..n / nb).filter(|&k| cut(&shape, 1, engine, order, k).is_some()).count()
        };
        let blocks = 8000 / 192;
        assert_eq!(cuts((8000, 192, (1, 2)), 1), 0, "nobody to exchange with");
        let alone = cuts((8000, 192, (2, 1)), 1);
        assert!(alone > blocks / 2 && alone < blocks, "{alone} of {blocks}");
        // The panel of this process column overlaps the multiplication of only half of the columns.
        assert!(cuts((8000, 192, (2, 1)), 2) < alone);
        assert_eq!(cuts((8000, 192, (2, 1)), 64), 0);
        assert!(cuts((80_000, 192, (2, 2)), 16) > 80_000 / 192 / 2);
        assert_eq!(cuts((500, 64, (2, 2)), 1), 0);
    }

    #[test]
    fn the_right_half_comes_first() {
        assert_eq!(parts(3..20, Some(8)), [8..20, 3..8]);
        assert_eq!(parts(3..20, None), vec![3..20; 1]);
    }
}

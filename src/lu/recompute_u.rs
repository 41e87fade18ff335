//! Recomputes the parts of U that were lost with process columns, from the checksum columns that replaced them.
//!
//! U is recomputed after the last panel, just before back substitution, in bands of rows. A recomputation during the updates
//! would slow the updates down. The recomputed rows overwrite the sums. If the attempt fails during the recomputation, the next
//! attempt continues after the last recomputed row.

use std::ops::Range;

use super::carry::{LONGEST, Piece, carry};
use super::context::Context;
use super::roles::{Exchanges, alike_until, counts};
use crate::base::faults::{Point, hit};
use crate::matrix::Shape;
use ndarray::ArrayViewMut2;

/// A process column that a checksum column has replaced. Recomputed elements of U overwrite its sums.
struct Column {
    /// Index of the replacement in [`Exchanges::made`].
    which: usize,
    col: usize,
    /// Number of local rows in which earlier attempts have recomputed U.
    done: usize,
    /// End of the local columns that have lost elements.
    end: usize,
}

/// Local rows that are recomputed together.
struct Band {
    rows: Range<usize>,
    /// For each replaced process column, the local columns with lost elements in these rows.
    lost: Vec<Range<usize>>,
}

/// Recomputes all lost elements of U. All ranks that have columns of the matrix call this together.
///
/// `a` is the whole local matrix. `recomputed` is the number of local rows in which U is already recomputed, and is increased by
/// this function. The number is used only on ranks whose memory has sums in place of U: ranks of replaced process columns.
pub fn recompute_u(
    context: &Context,
    mut a: ArrayViewMut2<f64>,
    exchanges: &Exchanges,
    recomputed: &mut usize,
) {
    let shape = &context.shape;
    let mut columns: Vec<Column> = Vec::new();
    let mut end = 0;
    for &which in &exchanges.there {
        let exchange = &exchanges.made[which];
        let mut done = [*recomputed as u64];
        context.row.broadcast(&mut done, exchange.col);
        let boundary = (exchange.boundary * shape.nb).min(shape.n);
        end = end.max(shape.row_map.count_below(boundary, shape.row));
        let [done] = done.map(|done| done as usize);
        columns.push(Column { which, col: exchange.col, done, end: exchanges.sums[which].start });
    }
    let bands = bands(shape, &columns, end);
    let middle = bands.first().map_or(end, |first| first.rows.start).midpoint(end);
    let q = shape.grid.q;
    let mut pieces = Vec::new();
    for band in &bands {
        for (j, lost) in band.lost.iter().enumerate().filter(|(_, lost)| !lost.is_empty()) {
            let col = columns[j].col;
            pieces.push(Piece {
                what: (band, j),
                doubles: band.rows.len() * lost.len(),
                // A piece passes once through the process row: from the process column after the replaced one to the replaced
                // one.
                from: (shape.col != (col + 1) % q).then_some((shape.col + q - 1) % q),
                to: (shape.col != col).then_some((shape.col + 1) % q),
            });
        }
    }
    let mine = columns.iter().position(|column| column.col == shape.col);
    let mut shares = Shares { shape, exchanges, columns: &columns, known: ((0, 0, 0), 0.0) };
    let mut found = Vec::new();
    carry(&context.row, &pieces, |&(band, j), sums| {
        if band.rows.start >= middle {
            hit(Point::RecomputeHalf, context.place);
        }
        shares.put(&a, band, j, sums);
        if mine == Some(j) {
            found.clear();
            found.extend_from_slice(sums);
        }
        // Sums are overwritten only after all lost elements of these rows are computed.
        let last = band.lost[j + 1..].iter().all(Range::is_empty);
        let lost = mine.filter(|_| last).map(|mine| band.lost[mine].clone());
        if let Some(lost) = lost.filter(|lost| !lost.is_empty()) {
            for (i, line) in band.rows.clone().zip(found.chunks_exact(lost.len())) {
                let mut row = a.row_mut(i);
                let row = row.as_slice_mut().expect("a row is contiguous in memory");
                row[lost.clone()].copy_from_slice(line);
            }
            *recomputed = band.rows.end;
        }
    });
}

/// Divides the local rows before `end` that are not yet recomputed into bands, from top to bottom. Each band is within one block
/// row. For each replaced process column, either all rows of a band are already recomputed or none.
fn bands(shape: &Shape, columns: &[Column], end: usize) -> Vec<Band> {
    let nb = shape.nb;
    let mut bands = Vec::new();
    let mut at = columns.iter().map(|column| column.done).min().unwrap_or(end);
    while at < end {
        let row = shape.row_map.global(at, shape.row);
        let mut rows_end = ((at / nb + 1) * nb).min(end);
        let mut lost = Vec::new();
        for column in columns {
            if column.done > at {
                rows_end = rows_end.min(column.done);
                lost.push(0..0);
                continue;
            }
            // All local columns from this block row's diagonal on.
            let first = shape.col_map.count_below(row / nb * nb, column.col);
            lost.push(first..column.end.max(first));
        }
        let widest = lost.iter().map(Range::len).max().unwrap_or(0);
        if let Some(rows) = LONGEST.checked_div(widest) {
            rows_end = rows_end.min(at + rows.max(1));
            bands.push(Band { rows: at..rows_end, lost });
        }
        at = rows_end;
    }
    bands
}

/// Computes this rank's share of the sums from which lost elements of U follow.
struct Shares<'a> {
    shape: &'a Shape,
    exchanges: &'a Exchanges<'a>,
    columns: &'a [Column],
    /// Arguments and result of the last call of [`Exchanges::factor`], kept because many elements have the same factor.
    known: ((usize, u64, u64), f64),
}

impl Shares<'_> {
    /// Adds this rank's share to `sums`, for the replaced process column `columns[j]`, in the rows of `band`. On the replaced
    /// process column itself, computes the lost elements from the shares of the other process columns.
    fn put(&mut self, a: &ArrayViewMut2<f64>, band: &Band, j: usize, sums: &mut [f64]) {
        let &mut Self { shape, columns, .. } = self;
        let (of, cols) = (&columns[j], band.lost[j].clone());
        let ends = of.col == shape.col;
        for (i, line) in band.rows.clone().zip(sums.chunks_exact_mut(cols.len())) {
            let row = shape.row_map.global(i, shape.row);
            let mine = a.row(i);
            let mine = mine.as_slice().expect("a row is contiguous in memory");
            let mut at = cols.start;
            while at < cols.end {
                let next = alike_until(shape, row, at).min(cols.end);
                if let Some(factor) = self.factor(band, of, row, at) {
                    let sums = &mut line[at - cols.start..next - cols.start];
                    let pairs = sums.iter_mut().zip(&mine[at..next]);
                    if ends {
                        pairs.for_each(|(sum, own)| *sum = factor * own - *sum);
                    } else {
                        pairs.for_each(|(sum, own)| *sum += factor * own);
                    }
                }
                at = next;
            }
        }
    }

    /// Returns the factor with which this rank's element contributes to the lost element of the replaced process column `of`.
    /// Both elements are in global row `row` and local column `l`. Returns `None` if this rank's element does not contribute.
    fn factor(&mut self, band: &Band, of: &Column, row: usize, l: usize) -> Option<f64> {
        let &mut Self { shape, exchanges, columns, .. } = self;
        let is_lost = |(c, lost): &(&Column, &Range<usize>)| {
            lost.contains(&l) && counts(shape, c.col, row, l)
        };
        let lost = columns.iter().zip(&band.lost).filter(is_lost);
        let (wanted, is_sums) = lost.fold((0, false), |(wanted, mine), (c, _)| {
            (wanted | 1 << c.which, mine || c.col == shape.col)
        });
        let own = is_sums || counts(shape, shape.col, row, l);
        if wanted >> of.which & 1 == 0 || !own {
            return None;
        }
        let key = (of.which, exchanges.at(l), wanted);
        if self.known.0 != key {
            self.known = (key, exchanges.factor(key.1, wanted, of.which, shape.col));
        }
        Some(self.known.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Mapping;
    use crate::grid::ProcessGrid;

    /// Tests that each row that is not yet recomputed is in one band, and that the band includes all lost elements of the row.
    #[test]
    fn bands_are_all_that_is_to_be_recomputed() {
        let grid = ProcessGrid { p: 2, q: 3, mapping: Mapping::Row };
        for (n, nb) in [(1, 4), (97, 8), (301, 10), (900, 300), (6000, 1000)] {
            let shape = Shape::of(n, nb, grid, 1, 0);
            let blocks = n.div_ceil(nb);
            for (first, second) in [(0, 0), (1, blocks / 2), (blocks / 3, blocks), (blocks, 2)] {
                let below = |k: usize| shape.row_map.count_below((k * nb).min(n), shape.row);
                let column = |which, col, boundary: usize, done| {
                    let end = shape.col_map.count_below((boundary * nb).min(n), col);
                    Column { which, col, done, end }
                };
                let columns = [column(0, 2, first, below(first) / 3), column(1, 0, second, 0)];
                let end = below(first.max(second));
                let mut seen = vec![[None, None]; end];
                for band in bands(&shape, &columns, end) {
                    let row = |at| shape.row_map.global(at, shape.row) / nb;
                    assert_eq!(row(band.rows.start), row(band.rows.end - 1));
                    let widest = band.lost.iter().map(Range::len).max().unwrap();
                    assert!(widest > 0);
                    assert!(band.rows.len() * widest <= LONGEST || band.rows.len() == 1);
                    for at in band.rows {
                        for (seen, lost) in seen[at].iter_mut().zip(&band.lost) {
                            assert!(seen.replace(lost.clone()).is_none());
                        }
                    }
                }
                for (at, seen) in seen.iter().enumerate() {
                    for (seen, column) in seen.iter().zip(&columns) {
                        let row = shape.row_map.global(at, shape.row);
                        let lost = |l: usize| at >= column.done && l < column.end;
                        let lost = |&l: &usize| lost(l) && counts(&shape, column.col, row, l);
                        let cols: Vec<usize> = (0..shape.cols).filter(lost).collect();
                        let seen = seen.clone().unwrap_or(0..0);
                        // A band includes the whole diagonal block.
                        assert!(cols.iter().all(|l| seen.contains(l)));
                        assert!(seen.len() < cols.len() + nb, "{n} {nb} {at}");
                        assert!(at >= column.done || seen.is_empty());
                    }
                }
            }
        }
    }
}

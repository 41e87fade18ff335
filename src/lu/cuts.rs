//! Divides columns of U into chunks that are exchanged one after the other, shares that process rows solve, and strips for
//! threads.

use std::ops::Range;

use crate::kernels::COMMON_UNIT;

/// Maximum number of bytes in an array of rows in transit. Columns are exchanged in chunks of this size, so that the arrays do
/// not grow with the matrix. Smaller chunks would stay in a cache, but each chunk adds a wait that takes longer than the cache
/// saves.
const CHUNK_BYTES: usize = 16 << 20;

/// Maximum number of doubles in an array of rows in transit. Panels have at most `width` columns, and an exchange has at most
/// `cols` columns. No message has more rows than its panel has columns.
pub fn array_len(width: usize, cols: usize) -> usize {
    // For a narrower panel, chunks have more columns, but not more bytes.
    (CHUNK_BYTES / 8).max(width * chunk_cols(width)).min(width * cols)
}

/// Number of columns in a chunk for panels of width `nb`: a multiple of every engine's column unit of U.
pub fn chunk_cols(nb: usize) -> usize {
    (CHUNK_BYTES / 8 / nb.max(1) / COMMON_UNIT).max(1) * COMMON_UNIT
}

/// Returns `range` shifted by `by`.
pub fn offset(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

/// Returns the share of `cols` columns that process row `row` of `rows` process rows solves. Shares are whole units of `unit`
/// columns, divided as evenly as possible.
pub fn share_of(cols: usize, unit: usize, row: usize, rows: usize) -> Range<usize> {
    let units = cols.div_ceil(unit);
    let at = |row: usize| (units * row / rows * unit).min(cols);
    at(row)..at(row + 1)
}

/// A division of columns into strips, one strip for each task of the threads.
#[derive(Clone, Copy)]
pub struct Strips {
    cols: usize,
    width: usize,
    pub count: usize,
}

impl Strips {
    pub fn new(cols: usize, unit: usize, threads: usize) -> Self {
        const WIDEST: usize = 120;
        let units = cols.div_ceil(unit);
        let widest = (WIDEST / unit).max(1);
        let width = if threads == 1 { widest } else { (units / (4 * threads)).clamp(1, widest) };
        Self { cols, width: width * unit, count: units.div_ceil(width) }
    }

    pub fn all(&self) -> Vec<Range<usize>> {
        (0..self.count).map(|i| self.get(i)).collect()
    }

    pub fn get(&self, i: usize) -> Range<usize> {
        i * self.width..((i + 1) * self.width).min(self.cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_units_and_cover_a_chunk_once() {
        for unit in [4, 8, 12, 16, 24, 32] {
            for (cols, rows) in (0..300).flat_map(|cols| (2..7).map(move |rows| (cols, rows))) {
                let mut next = 0;
                for row in 0..rows {
                    let share = share_of(cols, unit, row, rows);
                    assert!(share.start == next);
                    assert!(share.start.is_multiple_of(unit) || share.is_empty());
                    assert!(share.len() <= cols.div_ceil(unit).div_ceil(rows) * unit);
                    next = share.end;
                }
                assert_eq!(next, cols);
            }
        }
    }

    #[test]
    fn strips_cover_all_columns_once() {
        for cols in 0..600 {
            for threads in 1..5 {
                let strips = Strips::new(cols, 24, threads);
                let mut next = 0;
                for i in 0..strips.count {
                    let strip = strips.get(i);
                    assert!(
                        strip.start == next && strip.start.is_multiple_of(24) && !strip.is_empty()
                    );
                    next = strip.end;
                }
                assert_eq!(next, cols);
            }
        }
    }
}

//! Divides the active rows of a panel among the panel threads, and stores the search result of each thread.

use std::ops::Range;

use crate::base::threads::{PanelThreads, Shareable};
use crate::kernels::{Columns, largest};

/// Length of the head of a search result: magnitude and row number in W. The row's elements follow.
pub(super) const FOUND_HEAD: usize = 2;

/// Number of doubles between the search results of two threads in a panel of `width` columns. Two results have no cache line in
/// common.
pub fn found_len(width: usize) -> usize {
    (FOUND_HEAD + width).next_multiple_of(16)
}

/// Division of a panel's rows among the panel threads. Each thread keeps its rows while the panel is factored. If the active rows
/// were divided again after each column, rows would move from cache to cache.
#[derive(Clone, Copy)]
pub(super) struct Cuts {
    /// First row of the rows that are divided evenly among all parts. The first part has the earlier rows as well.
    from: usize,
    pub(super) end: usize,
    pub(super) parts: usize,
}

impl Cuts {
    /// Divides `rows` rows among `threads` threads. The first `leaving` rows move into L1, one per column of the panel.
    pub(super) fn new(threads: usize, rows: usize, leaving: usize) -> Self {
        /// Minimum number of rows of a part. For fewer rows, a further thread does not save time.
        const FEWEST: usize = 256;
        let parts = (rows / FEWEST).clamp(1, threads);
        // Rows leave only the first part, so the first part starts with more rows than the other parts.
        let from = (leaving / (parts - 1).max(1)).min(rows);
        Self { from, end: rows, parts }
    }

    /// Returns the first row of a part. Parts start at a cache line.
    pub(super) fn start(&self, part: usize) -> usize {
        match part {
            0 => 0,
            _ if part == self.parts => self.end,
            _ => {
                let row = self.from + (self.end - self.from) * part / self.parts;
                row - row % 8
            }
        }
    }

    /// Divides the rows from `first` on among the panel threads, which work on their parts at the same time.
    ///
    /// `work` is called with the number of a part and the rows of this part, and handles `elements` elements of each row. Returns
    /// the number of parts. The first parts may be empty.
    pub(super) fn share(
        &self,
        panel_threads: &mut PanelThreads,
        first: usize,
        elements: usize,
        work: impl Fn(usize, Range<usize>) + Sync + Copy,
    ) -> usize {
        /// Minimum number of elements of a part. With fewer elements, the call of another thread takes longer than the work. Of
        /// 1,000 to 16,000, 4,000 was the fastest on a Zen 5 processor.
        const LEAST: usize = 4_000;
        let rows = self.end - first.min(self.end);
        let parts = (rows * elements / LEAST).clamp(1, self.parts);
        let cuts = *self;
        panel_threads.run(parts, move |part| {
            let start = cuts.start(cuts.parts * part / parts).max(first);
            let end = cuts.start(cuts.parts * (part + 1) / parts).max(start);
            work(part, start..end);
        });
        parts
    }
}

/// Search results of the panel threads: the largest element of the next pivot's column, and the whole row that contains this
/// element.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) at: Shareable<f64>,
    pub(super) width: usize,
}

impl Found {
    /// Returns the address of the search result of part `part`.
    fn of(self, part: usize) -> *mut f64 {
        // SAFETY: the array has space for each panel thread.
        unsafe { self.at.get().add(part * found_len(self.width)) }
    }

    /// Stores the search result of part `part`. `best` is the largest magnitude in the rows of the part, and the row that
    /// contains it. `best` is `None` if the part has no rows. The elements of the row are stored, too.
    ///
    /// # Safety
    /// The row is within the array. During the call, nothing writes the row, and nothing else touches the result of this part.
    pub(super) unsafe fn put(self, columns: Columns, part: usize, best: Option<(f64, usize)>) {
        // SAFETY: ensured by the caller.
        unsafe {
            let to = self.of(part);
            let (magnitude, at) = best.unwrap_or((-1.0, 0));
            *to = magnitude;
            *to.add(1) = at as f64;
            if best.is_some() {
                for t in 0..self.width {
                    *to.add(FOUND_HEAD + t) = *columns.w.get().add(t * columns.ld + at);
                }
            }
        }
    }

    /// Returns the search result with the largest magnitude among the first `parts` parts: magnitude, row number in W, and
    /// elements. If no part has rows, the elements are meaningless.
    ///
    /// # Safety
    /// All parts have completed their searches.
    pub(super) unsafe fn largest<'a>(self, parts: usize) -> (f64, usize, &'a [f64]) {
        // SAFETY: ensured by the caller.
        unsafe {
            let (_, best) = largest((0..parts).map(|part| (*self.of(part), part)))
                .expect("a search has at least one part");
            let best = self.of(best);
            let row = std::slice::from_raw_parts(best.add(FOUND_HEAD), self.width);
            (*best, *best.add(1) as usize, row)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn the_first_largest_part_wins_and_nan_only_alone() {
        let largest = |found: &[f64]| {
            largest(found.iter().copied().zip(0..)).expect("some magnitudes are given").1
        };
        assert_eq!(largest(&[2.0, 3.0, 3.0]), 1);
        assert_eq!(largest(&[f64::NAN, 1.0, 0.5]), 1);
        assert_eq!(largest(&[f64::NAN, f64::NAN]), 0);
        assert_eq!(largest(&[-1.0, 0.0]), 1);
        assert_eq!(largest(&[f64::NAN, -1.0, 0.0]), 2);
        assert_eq!(largest(&[-1.0, f64::NAN, f64::NAN]), 1);
        assert_eq!(largest(&[-1.0, -1.0]), 0);
    }

    /// Tests that each row is in exactly one part, for every division and every number of rows that have moved into L1.
    #[test]
    fn parts_cover_all_rows_once() {
        let mut pool = crate::base::threads::Pool::new(4);
        pool.together(|panel_threads| {
            for (rows, leaving) in
                [(0, 0), (0, 64), (6, 0), (30, 64), (259, 0), (1024, 192), (1100, 700), (5000, 64)]
            {
                let cuts = Cuts::new(panel_threads.size(), rows, leaving);
                for first in (0..=leaving.min(rows)).step_by(5) {
                    for elements in [0, 1, 30, 1000] {
                        let hits: Vec<AtomicUsize> =
                            (0..rows).map(|_| AtomicUsize::new(0)).collect();
                        let parts = cuts.share(panel_threads, first, elements, |_, part| {
                            part.for_each(|row| {
                                hits[row].fetch_add(1, Ordering::Relaxed);
                            })
                        });
                        assert!(parts <= panel_threads.size());
                        for (row, hits) in hits.iter().enumerate() {
                            assert_eq!(hits.load(Ordering::Relaxed), usize::from(row >= first));
                        }
                    }
                }
            }
        });
    }

    /// Tests that a thread keeps its rows from the first column of a panel to the last.
    #[test]
    fn cuts_do_not_move_while_rows_leave() {
        let mut pool = crate::base::threads::Pool::new(4);
        pool.together(|panel_threads| {
            let cuts = Cuts::new(panel_threads.size(), 3000, 256);
            let keepers: Vec<AtomicUsize> =
                (0..3000).map(|_| AtomicUsize::new(usize::MAX)).collect();
            for first in 0..256 {
                cuts.share(panel_threads, first, 1000, |part, rows| {
                    for row in rows {
                        let before = keepers[row].swap(part, Ordering::Relaxed);
                        assert!(
                            before == part || first == 0,
                            "row {row} goes from {before} to {part}"
                        );
                    }
                });
            }
            let of = |part| {
                keepers.iter().skip(256 / 3).filter(|k| k.load(Ordering::Relaxed) == part).count()
            };
            assert!(
                (0..4).all(|part| of(part).abs_diff((3000 - 256 / 3) / 4) <= 8),
                "after a third of the columns, all parts have the same number of rows"
            );
        });
    }
}

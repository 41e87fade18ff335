//! Work of a rank's threads on rows: adding rows to a message, storing a message as rows, and reporting rows.
//!
//! The words of a message are cut into equal parts for the threads. A part may end within a line. So all threads have the same
//! amount of work, however wide the rows are. The result does not depend on the number of threads, because the additions to each
//! word keep their order.

use std::ops::Range;

use super::code::Weight;
use super::share::Share;
use super::stripes::{Role, Stripes};
use crate::base::threads::PanelThreads;

/// Number of words for which one more thread is used. Adding these words takes some microseconds, and waking the threads takes
/// about one.
const WORTH: usize = 4 * 1024;

/// Number of words in one message, unless a single line is longer. Two messages fit into a second-level cache, and one message is
/// long enough for full bandwidth.
pub(super) const SEGMENT_WORDS: usize = 32 * 1024;

/// Maximum number of threads that work on a message. Most messages are cut into fewer parts, and 16 threads together are faster
/// than any network.
pub const MOST: usize = 2 * SEGMENT_WORDS / WORTH;

/// Function that receives columns of one of this member's rows. The columns were just read or written and are still in the
/// caller's cache. Several threads call the function at the same time, with different columns.
pub type Seen<'a> = dyn Fn(&Share, Role, Range<usize>) + Sync + 'a;

/// Threads that work on rows, and the function, if any, to which the threads report these rows.
pub struct Hands<'a, 'c> {
    pub panel_threads: &'a mut PanelThreads<'c>,
    pub seen: Option<&'a Seen<'a>>,
}

/// Lines of a message: one line for each of `cycles` cycles of stripes, from cycle `first`. A line has the last `width` columns
/// of a row.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub stripes: Stripes,
    pub first: usize,
    pub cycles: usize,
    pub width: usize,
}

impl Lines {
    pub fn words(&self) -> usize {
        self.cycles * self.width
    }

    /// Returns the cycle of stripes and the columns of each line that contains some of `words`, a range within the message.
    fn of(&self, words: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let Lines { first, width, .. } = *self;
        let lines = words.start / width..words.end.div_ceil(width);
        lines.map(move |line| {
            let from = words.start.max(line * width) - line * width;
            let to = words.end.min((line + 1) * width) - line * width;
            (first + line, from..to)
        })
    }
}

impl Hands<'_, '_> {
    /// Adds the weighted rows of `terms` to the message. If `replace` is true, the sum of these rows replaces the contents of the
    /// message.
    pub(super) fn add(
        &mut self,
        share: &Share,
        lines: Lines,
        terms: &[(Role, Weight)],
        message: &mut [u64],
        replace: bool,
    ) {
        debug_assert_eq!(message.len(), lines.words());
        self.panel_threads.cut(message, WORTH, |start, words| {
            let (range, mut replace) = (start..start + words.len(), replace);
            for &(within, weight) in terms {
                let mut rest = &mut *words;
                for (cycle, columns) in lines.of(range.clone()) {
                    let (line, others) = rest.split_at_mut(columns.len());
                    rest = others;
                    let row = share.row(lines.stripes.of_cycle(within, cycle), lines.width);
                    // A row that is shorter than the line counts as zeros at the front.
                    let padding = lines.width - row.len();
                    let within_row = |column: usize| column.max(padding) - padding;
                    let row = &row[within_row(columns.start)..within_row(columns.end)];
                    let (front, back) = line.split_at_mut(columns.len() - row.len());
                    if replace {
                        front.fill(0);
                        weight.set(row, back);
                    } else {
                        weight.add(row, back);
                    }
                }
                replace = false;
            }
            if replace {
                words.fill(0);
            }
        });
    }

    /// Stores the lines of the message as rows of this member, and reports these rows.
    pub(super) fn deliver(
        &mut self,
        share: &mut Share,
        lines: Lines,
        within: Role,
        message: &[u64],
    ) {
        debug_assert_eq!(message.len(), lines.words());
        let width = lines.width;
        let rows = share.writer();
        let rows = &rows;
        self.panel_threads.parts(message.len(), WORTH, |words| {
            for (cycle, columns) in lines.of(words) {
                let line = &message[(cycle - lines.first) * width..][..width];
                // SAFETY: no thread reads the share during this call. Each word of a message is in one part, so no two threads
                // write the same word.
                unsafe { rows.write(lines.stripes.of_cycle(within, cycle), line, columns) }
            }
        });
        self.show(share, lines, within);
    }

    /// Reports the rows of this member that belong to `lines`, while these rows are in the cache.
    pub(super) fn show(&mut self, share: &Share, lines: Lines, within: Role) {
        let Some(seen) = self.seen else { return };
        self.panel_threads.parts(lines.words(), WORTH, |words| {
            for (cycle, columns) in lines.of(words) {
                let role = lines.stripes.of_cycle(within, cycle);
                let columns = share.columns(role, lines.width, columns);
                if !columns.is_empty() {
                    seen(share, role, columns);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::stripes::Spread;
    use super::*;

    /// However a message is cut in two, both parts together cover each line once.
    #[test]
    fn parts_of_a_message_are_parts_of_its_lines() {
        let stripes = Stripes::new(Spread::Rotated, 3, 1);
        for (cycles, width) in [(1, 10), (4, 10), (7, 3), (3, 1)] {
            let lines = Lines { stripes, first: 5, cycles, width };
            let all = || (0..lines.words()).map(|word| (5 + word / width, word % width));
            for cut in 0..=lines.words() {
                let parts = [0..cut, cut..lines.words()];
                let found = parts.into_iter().flat_map(|part| lines.of(part));
                let found = found.flat_map(|(cycle, columns)| columns.map(move |c| (cycle, c)));
                assert!(found.eq(all()), "{cycles} {width} {cut}");
            }
        }
    }
}

//! Rows as the threads of a rank work on them together: added to a message, taken from one, looked at.
//!
//! Lines of a message are cut into equal parts, across lines where there are few: so threads have as much to do each, however
//! wide the rows are. No bit depends on how many there are, since each word is added to in the same order.

use std::ops::Range;

use super::code::Weight;
use super::share::Share;
use super::stripes::{Role, Stripes};
use crate::base::threads::Crew;

/// Words that are worth a further thread: adding them takes some microseconds, an order to the crew about one.
const WORTH: usize = 4 * 1024;

/// Threads that messages are worked on by at most: most of them have no more parts, and so many together are faster than any
/// network that messages go over.
pub const MOST: usize = 2 * super::exchange::SEGMENT_WORDS / WORTH;

/// Is told of columns of one of this member's rows that were just read or written, which are in the cache of the thread that
/// tells. Several threads tell at once, each of others.
pub type Seen<'a> = dyn Fn(&Share, Role, Range<usize>) + Sync + 'a;

/// The threads that work on rows, and who looks at these, if anybody does.
pub struct Hands<'a, 'c> {
    pub crew: &'a mut Crew<'c>,
    pub seen: Option<&'a Seen<'a>>,
}

/// The lines of a message: for each of some cycles, columns counted from the right edge of every member's rows.
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

    /// The cycles whose lines have some of these words of the message, and which columns of the line.
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
    /// Puts the weighted rows of `terms` into the message, replacing or adding to what it holds.
    pub(super) fn add(
        &mut self,
        share: &Share,
        lines: Lines,
        terms: &[(Role, Weight)],
        (message, replace): (&mut [u64], bool),
    ) {
        debug_assert_eq!(message.len(), lines.words());
        self.crew.cut(message, WORTH, |start, words| {
            let (range, mut replace) = (start..start + words.len(), replace);
            for &(within, weight) in terms {
                let mut rest = &mut *words;
                for (cycle, columns) in lines.of(range.clone()) {
                    let (line, others) = rest.split_at_mut(columns.len());
                    rest = others;
                    let row = share.row(lines.stripes.of_cycle(within, cycle), lines.width);
                    // Short members are padded at the front.
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

    /// Takes the message as this member's own rows, and tells of them.
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
        self.crew.parts(message.len(), WORTH, |words| {
            for (cycle, columns) in lines.of(words) {
                let line = &message[(cycle - lines.first) * width..][..width];
                // SAFETY: nobody reads the share meanwhile, and each word of a message is in one part.
                unsafe { rows.write(lines.stripes.of_cycle(within, cycle), line, columns) }
            }
        });
        self.show(share, lines, within);
    }

    /// Tells of these rows of this member's, while they are in the cache.
    pub(super) fn show(&mut self, share: &Share, lines: Lines, within: Role) {
        let Some(seen) = self.seen else { return };
        self.crew.parts(lines.words(), WORTH, |words| {
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

    /// However a message is cut, its parts are all of it, line by line.
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

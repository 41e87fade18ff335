//! Rows of one member of a group, as the codes see them, and the window of them that is worked on.
//!
//! Members differ in shape. Rows and columns are counted from the lower right corner, so that the saved parts of all members
//! coincide.

use std::marker::PhantomData;
use std::ops::Range;

use super::stripes::Role;
use crate::base::threads::Shareable;

/// Data and parity rows of one member. Data rows are counted from the bottom of a row-major matrix, columns from its right edge.
/// A row or column that the member lacks counts as zeros.
pub struct Share<'a> {
    pub data: &'a mut [u64],
    pub parity: &'a mut [u64],
    pub shape: Shape,
}

/// Part of the rows that is worked on: as many rows from the bottom and columns from the right as any member of the group needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub rows: usize,
    pub width: usize,
}

/// Layout of a member's rows in memory.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    /// Words from one data row to the next.
    pub ld: usize,
    /// Words from one parity row to the next: the width of the group's widest member.
    pub pitch: usize,
}

impl Shape {
    /// Range of the last `width` columns of a row, in the data or in the parity, according to the role. None if this member has
    /// no such row.
    fn of(&self, role: Role, width: usize) -> Option<Range<usize>> {
        match role {
            Role::Data(row) => {
                let from_top = self.rows.checked_sub(row + 1)?;
                let end = from_top * self.ld + self.cols;
                Some(end - width.min(self.cols)..end)
            }
            Role::Parity(row) => {
                let end = (row + 1) * self.pitch;
                Some(end - width..end)
            }
        }
    }
}

impl Share<'_> {
    /// Window that covers all data, if every member of the group has as much.
    pub fn whole(&self) -> Window {
        Window { rows: self.shape.rows, width: self.shape.cols }
    }

    pub(super) fn parity_range(&self, row: usize, width: usize) -> Range<usize> {
        self.shape.of(Role::Parity(row), width).expect("parity has every row")
    }

    pub(super) fn row(&self, role: Role, width: usize) -> &[u64] {
        let Some(range) = self.shape.of(role, width) else { return &[] };
        match role {
            Role::Data(_) => &self.data[range],
            Role::Parity(_) => &self.parity[range],
        }
    }

    /// Converts columns counted within the last `width` to columns of the row, counted from its first. Columns that the row lacks
    /// are left out.
    pub(super) fn columns(&self, role: Role, width: usize, columns: Range<usize>) -> Range<usize> {
        if self.shape.of(role, width).is_none() {
            return 0..0;
        }
        let all = match role {
            Role::Data(_) => self.shape.cols,
            Role::Parity(_) => self.shape.pitch,
        };
        let within = |column: usize| (column + all).saturating_sub(width);
        within(columns.start)..within(columns.end)
    }

    /// Returns a writer for threads that each write different words.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        Writer {
            shape: self.shape,
            data: (Shareable::new(self.data.as_mut_ptr()), self.data.len()),
            parity: (Shareable::new(self.parity.as_mut_ptr()), self.parity.len()),
            share: PhantomData,
        }
    }
}

/// Exclusive access to the rows of a share, for several threads.
pub(super) struct Writer<'a> {
    shape: Shape,
    data: (Shareable<u64>, usize),
    parity: (Shareable<u64>, usize),
    share: PhantomData<&'a mut u64>,
}

impl Writer<'_> {
    /// Writes these columns of `line` to this member's row. `line` is as wide as the window.
    ///
    /// # Safety
    /// No other thread reads or writes these columns of that row meanwhile.
    pub unsafe fn write(&self, role: Role, line: &[u64], columns: Range<usize>) {
        let Some(range) = self.shape.of(role, line.len()) else { return };
        let (words, len) = match role {
            Role::Data(_) => self.data,
            Role::Parity(_) => self.parity,
        };
        assert!(range.end <= len, "a row that is none of this member's");
        // Shorter rows have no place for the first words of the line.
        let padding = line.len() - range.len();
        let (from, to) = (columns.start.max(padding), columns.end.max(padding));
        let place = range.start + from - padding;
        // SAFETY: within the rows, as was just checked; and used by this thread only, as the caller promises.
        let words = unsafe { std::slice::from_raw_parts_mut(words.get().add(place), to - from) };
        words.copy_from_slice(&line[from..to]);
    }
}

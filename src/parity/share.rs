//! Rows of one member of a group, as the codes read and write them, and the window: the part of the rows to encode or rebuild.
//!
//! Members differ in shape. Rows and columns are counted from the lower right corner of a member's matrix. So the saved parts of
//! all members have the same row and column numbers.

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

/// Part of the rows to encode or rebuild: the last `rows` rows and the last `width` columns. The window is large enough for every
/// member of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub rows: usize,
    pub width: usize,
}

/// Dimensions of a member's rows in memory.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    /// Number of words from the start of a data row to the start of the next one.
    pub ld: usize,
    /// Number of words from the start of a parity row to the start of the next one. Equal to the width of the group's widest
    /// member.
    pub pitch: usize,
}

impl Shape {
    /// Returns the range of words of the last `width` columns of a row, in the data or in the parity, according to `role`. None
    /// if this member has no such row.
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
    /// Returns a window as large as this member's matrix. The window covers all data of the group if no other member has more
    /// rows or columns.
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

    /// Converts columns counted within the last `width` columns of a row to columns counted from the row's first column. Leaves
    /// out columns that the row does not have.
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

    /// Returns a writer for several threads, each of which writes different words.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        Writer {
            shape: self.shape,
            data: (Shareable::new(self.data.as_mut_ptr()), self.data.len()),
            parity: (Shareable::new(self.parity.as_mut_ptr()), self.parity.len()),
            share: PhantomData,
        }
    }
}

/// Write access to the rows of a share, for several threads at the same time. No other code can access the share meanwhile.
pub(super) struct Writer<'a> {
    shape: Shape,
    data: (Shareable<u64>, usize),
    parity: (Shareable<u64>, usize),
    share: PhantomData<&'a mut u64>,
}

impl Writer<'_> {
    /// Writes these columns of `line` to the row `role` of this member. Does nothing if this member has no such row. `line` is as
    /// wide as the window.
    ///
    /// # Safety
    /// No other thread reads or writes these columns of that row during the call.
    pub unsafe fn write(&self, role: Role, line: &[u64], columns: Range<usize>) {
        let Some(range) = self.shape.of(role, line.len()) else { return };
        let (words, len) = match role {
            Role::Data(_) => self.data,
            Role::Parity(_) => self.parity,
        };
        assert!(range.end <= len, "the row is outside this member's memory");
        // A row that is shorter than the line has no column for the first words of the line.
        let padding = line.len() - range.len();
        let (from, to) = (columns.start.max(padding), columns.end.max(padding));
        let place = range.start + from - padding;
        // SAFETY: the row is within the slice, as was just checked, and `columns` is within the line, so the words are within the
        // row. Only this thread uses the words, as the caller promises.
        let words = unsafe { std::slice::from_raw_parts_mut(words.get().add(place), to - from) };
        words.copy_from_slice(&line[from..to]);
    }
}

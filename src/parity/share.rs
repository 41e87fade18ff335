//! The rows of one member of a group, as coding sees them, and the part of them that is worked on.
//!
//! Members differ in shape: rows and columns are counted from the corner that is saved, so that those of all members meet.

use std::ops::Range;

use super::stripes::Role;

/// One member's rows. Data rows are counted from the bottom of a row-major matrix and columns from
/// its right edge; where a member has no such row or column it contributes zeros.
pub struct Share<'a> {
    pub data: &'a mut [u64],
    pub rows: usize,
    pub cols: usize,
    /// Words from one data row to the next.
    pub ld: usize,
    pub parity: &'a mut [u64],
    /// Words from one parity row to the next: the width of the group's widest member.
    pub pitch: usize,
}

/// What part of everyone's rows is worked on: as many rows from the bottom and columns from the right
/// as any member of the group needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub rows: usize,
    pub width: usize,
}

impl Share<'_> {
    fn data_range(&self, row: usize, width: usize) -> Option<Range<usize>> {
        let from_top = self.rows.checked_sub(row + 1)?;
        let end = from_top * self.ld + self.cols;
        Some(end - width.min(self.cols)..end)
    }

    pub(super) fn parity_range(&self, row: usize, width: usize) -> Range<usize> {
        let end = (row + 1) * self.pitch;
        end - width..end
    }

    pub(super) fn row(&self, role: Role, width: usize) -> &[u64] {
        match role {
            Role::Data(row) => self.data_range(row, width).map_or(&[], |range| &self.data[range]),
            Role::Parity(row) => &self.parity[self.parity_range(row, width)],
        }
    }

    pub(super) fn row_mut(&mut self, role: Role, width: usize) -> &mut [u64] {
        match role {
            Role::Data(row) => match self.data_range(row, width) {
                Some(range) => &mut self.data[range],
                None => &mut [],
            },
            Role::Parity(row) => {
                let range = self.parity_range(row, width);
                &mut self.parity[range]
            }
        }
    }
}

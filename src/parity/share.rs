//! The rows of one member of a group, as coding sees them, and the part of them that is worked on.
//!
//! Members differ in shape: rows and columns are counted from the corner that is saved, so that those of all members meet.

use std::marker::PhantomData;
use std::ops::Range;

use super::stripes::Role;
use crate::base::threads::Shareable;

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

/// Where the rows of a member lie.
#[derive(Clone, Copy)]
struct Place {
    rows: usize,
    cols: usize,
    ld: usize,
    pitch: usize,
}

impl Place {
    /// The words of a row's last `width` columns: in the data or in the parity, whichever the role names. None if this member
    /// has no such row.
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
    fn place(&self) -> Place {
        Place { rows: self.rows, cols: self.cols, ld: self.ld, pitch: self.pitch }
    }

    pub(super) fn parity_range(&self, row: usize, width: usize) -> Range<usize> {
        self.place().of(Role::Parity(row), width).expect("parity has every row")
    }

    pub(super) fn row(&self, role: Role, width: usize) -> &[u64] {
        let Some(range) = self.place().of(role, width) else { return &[] };
        match role {
            Role::Data(_) => &self.data[range],
            Role::Parity(_) => &self.parity[range],
        }
    }

    /// Of columns counted within the last `width`, those that a row has, counted from its first.
    pub(super) fn columns(&self, role: Role, width: usize, columns: Range<usize>) -> Range<usize> {
        if self.place().of(role, width).is_none() {
            return 0..0;
        }
        let all = match role {
            Role::Data(_) => self.cols,
            Role::Parity(_) => self.pitch,
        };
        let within = |column: usize| (column + all).saturating_sub(width);
        within(columns.start)..within(columns.end)
    }

    /// For threads that each write other words.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        Writer {
            place: self.place(),
            data: (Shareable::new(self.data.as_mut_ptr()), self.data.len()),
            parity: (Shareable::new(self.parity.as_mut_ptr()), self.parity.len()),
            share: PhantomData,
        }
    }
}

/// The rows of a share that nobody else can reach meanwhile.
pub(super) struct Writer<'a> {
    place: Place,
    data: (Shareable<u64>, usize),
    parity: (Shareable<u64>, usize),
    share: PhantomData<&'a mut u64>,
}

impl Writer<'_> {
    /// Writes these columns of `line`, which is as wide as what is worked on, to where they are this member's.
    ///
    /// # Safety
    /// No other thread reads or writes these columns of that row meanwhile.
    pub unsafe fn write(&self, role: Role, line: &[u64], columns: Range<usize>) {
        let Some(range) = self.place.of(role, line.len()) else { return };
        let (words, len) = match role {
            Role::Data(_) => self.data,
            Role::Parity(_) => self.parity,
        };
        assert!(range.end <= len, "a row that is none of this member's");
        // Short members have no room for what stands at the front.
        let padding = line.len() - range.len();
        let (from, to) = (columns.start.max(padding), columns.end.max(padding));
        let place = range.start + from - padding;
        // SAFETY: within the rows, as was just looked at; and this thread's alone, as the caller vouches.
        let words = unsafe { std::slice::from_raw_parts_mut(words.get().add(place), to - from) };
        words.copy_from_slice(&line[from..to]);
    }
}

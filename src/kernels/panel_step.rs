//! Step of a panel's factorisation: completes the previous column, updates the current column, and searches the largest element
//! of the current column. A step works on some rows of the work array W. Steps on different rows may run at the same time.

use std::ops::Range;

use super::vector;
use crate::base::threads::Shareable;

/// Number of rows that a step updates and searches together. These rows of a few columns fit in a first-level cache.
const PIECE: usize = 512;

/// The work array W of a panel, stored by columns.
#[derive(Clone, Copy)]
pub struct Columns {
    pub w: Shareable<f64>,
    pub ld: usize,
}

impl Columns {
    /// # Safety
    /// The rows are within the array. Nothing writes the rows while the result is used.
    unsafe fn get<'a>(self, j: usize, rows: &Range<usize>) -> &'a [f64] {
        // SAFETY: ensured by the caller.
        unsafe {
            std::slice::from_raw_parts(self.w.get().add(j * self.ld + rows.start), rows.len())
        }
    }

    /// # Safety
    /// The rows are within the array. No other thread touches the rows while the result is used.
    unsafe fn get_mut<'a>(self, j: usize, rows: &Range<usize>) -> &'a mut [f64] {
        // SAFETY: ensured by the caller.
        unsafe {
            std::slice::from_raw_parts_mut(self.w.get().add(j * self.ld + rows.start), rows.len())
        }
    }
}

/// Work that follows from the last pivot and is still to be done in W. The next step starts with this work. So each thread is
/// called only once per column, and a moved row is written by the thread that owns its new place.
#[derive(Clone, Copy, Default)]
pub struct Owed {
    /// Number of the column to divide by its pivot, and the pivot.
    pub column: Option<(usize, f64)>,
    /// Number of the row of W to overwrite, and the elements to write to this row.
    pub row: Option<(usize, Shareable<f64>)>,
}

/// A short list of factors, stored inline if it fits so that threads read it without a pointer.
#[derive(Clone, Copy)]
pub struct Factors {
    few: [f64; 8],
    pub len: usize,
    /// Pointer to all factors, used if they do not fit in `few`.
    pub many: Shareable<f64>,
}

impl Factors {
    /// Makes a list of `factors`, which must remain unchanged as long as the list is used.
    pub fn new(factors: &mut [f64]) -> Self {
        let (mut few, len) = ([0.0; 8], factors.len());
        if let Some(room) = few.get_mut(..len) {
            room.copy_from_slice(factors);
        }
        Self { few, len, many: Shareable::new(factors.as_mut_ptr()) }
    }

    fn get(&self) -> &[f64] {
        // SAFETY: `new` requires that the factors remain valid.
        let many = || unsafe { std::slice::from_raw_parts(self.many.get(), self.len) };
        self.few.get(..self.len).unwrap_or_else(many)
    }
}

/// Update of column `j` of W. After the update, the largest element of column `j` is searched.
#[derive(Clone, Copy)]
pub struct Update {
    pub j: usize,
    /// First of the columns that update column `j`; the last is `j - 1`.
    pub start: usize,
    /// If true, column `j - 1` updates the columns from `j` on: one factor for each of these columns. If false, the columns from
    /// `start` on update column `j`: one factor for each of these columns.
    pub right: bool,
    pub factors: Factors,
}

/// Step of a panel's factorisation, for some rows of W.
#[derive(Clone, Copy)]
pub struct Step {
    /// Number of columns of the panel.
    pub width: usize,
    pub owed: Owed,
    /// Update and search of a column. `None` if the step only does the work in `owed`.
    pub update: Option<Update>,
}

impl Step {
    /// Does the step in `rows`. Returns the largest magnitude in the updated column, and its row. Returns `None` if there are no
    /// rows or no update.
    ///
    /// # Safety
    /// The rows are within the array, and no other thread touches the rows during the call. No thread changes the elements that
    /// the step reads.
    pub unsafe fn run(&self, columns: Columns, rows: Range<usize>) -> Option<(f64, usize)> {
        let Some(update) = &self.update else {
            // SAFETY: ensured by the caller.
            unsafe { self.pay(columns, &rows) };
            return None;
        };
        let pieces = rows.clone().step_by(PIECE).map(|at| at..(at + PIECE).min(rows.end));
        largest(pieces.map(|piece| {
            // SAFETY: ensured by the caller.
            let (magnitude, at) = unsafe {
                self.pay(columns, &piece);
                update.run(columns, &piece);
                vector::max_abs(columns.get(update.j, &piece))
            };
            (magnitude, piece.start + at)
        }))
    }

    /// Does the work that the last pivot left ([`Owed`]), in `rows`.
    ///
    /// # Safety
    /// As for [`Step::run`].
    pub unsafe fn pay(&self, columns: Columns, rows: &Range<usize>) {
        // SAFETY: ensured by the caller.
        unsafe {
            if let Some((place, row)) = self.owed.row.filter(|(place, _)| rows.contains(place)) {
                for t in 0..self.width {
                    *columns.w.get().add(t * columns.ld + place) = *row.get().add(t);
                }
            }
            if let Some((j, pivot)) = self.owed.column {
                vector::divide(columns.get_mut(j, rows), pivot);
            }
        }
    }
}

impl Update {
    /// # Safety
    /// As for [`Step::run`].
    unsafe fn run(&self, columns: Columns, rows: &Range<usize>) {
        let factors = self.factors.get();
        // SAFETY: ensured by the caller; the columns written are not among those read.
        unsafe {
            if self.right {
                for (t, factor) in factors.iter().enumerate() {
                    let y = columns.get_mut(self.j + t, rows);
                    vector::subtract_scaled(y, *factor, columns.get(self.j - 1, rows));
                }
            } else {
                let y = columns.get_mut(self.j, rows);
                let x = |t: usize| columns.get(self.start + t, rows);
                let (fours, rest) = factors.as_chunks::<4>();
                for (at, four) in fours.iter().enumerate() {
                    vector::subtract_four(y, four, &[0, 1, 2, 3].map(|i| x(4 * at + i)));
                }
                for (i, factor) in rest.iter().enumerate() {
                    vector::subtract_scaled(y, *factor, x(4 * fours.len() + i));
                }
            }
        }
    }
}

/// Returns the pair with the largest magnitude from pairs of a magnitude and a number, such as the row that has this magnitude.
/// Of equal magnitudes, the first is returned. Magnitude -1 stands for a part without rows. NaN is returned only if no part has
/// a number. Returns `None` if `found` is empty.
pub fn largest(found: impl Iterator<Item = (f64, usize)>) -> Option<(f64, usize)> {
    found.reduce(|best, next| {
        let larger = next.0 > best.0
            || (best.0.is_nan() && next.0 >= 0.0)
            || (best.0 == -1.0 && next.0.is_nan());
        if larger { next } else { best }
    })
}

//! Copies rows of an exchange between A, the upper block and messages.
//!
//! The exchange identifies a row by its array and its number in the array. Without a device, all threads copy the rows at once. A
//! device queues the copies of rows that are in its memory.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::base::threads::{Pool, Shareable};
use crate::device::{Device, RowCopy, Stream};
use crate::kernels::{Matrix, UpperBlock};

/// Array from which or to which a row exchange copies rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Array {
    /// The local matrix A; its rows have local numbers.
    Matrix,
    /// The upper block: U in the columns of the exchange.
    Upper,
    /// The message to send.
    Out,
    /// The received message.
    Into,
    /// Displaced rows that this process row only forwards.
    Transit,
}

impl Array {
    /// Identifies row `row` of this array.
    pub fn row(self, row: usize) -> Place {
        Place { array: self, row }
    }

    /// Returns whether this array is in device memory, if there is a device.
    fn is_on_device(self) -> bool {
        matches!(self, Self::Matrix | Self::Upper)
    }
}

/// Identification of a row: its array, and its number in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    array: Array,
    row: usize,
}

/// The addresses of the arrays of an exchange, and the columns that are copied.
pub struct Rows<'a> {
    /// The local matrix A, from the first copied column on.
    pub matrix: Matrix<Shareable<f64>>,
    pub upper: UpperBlock,
    /// The copied columns, as columns of the upper block.
    pub cols: Range<usize>,
    /// The message to send. Its rows have only the copied columns.
    pub out: Shareable<f64>,
    /// The received message. Its rows have only the copied columns.
    pub into: Shareable<f64>,
    /// Displaced rows that this process row only forwards. The rows have only the copied columns.
    pub transit: Shareable<f64>,
    pub device: Option<&'a dyn Device>,
}

impl Rows<'_> {
    /// Copies `count` rows. `copy(j)` returns the source and the destination of row `j`. All destinations differ, and no
    /// destination is a source.
    ///
    /// With a device, copies may still be in progress when this function returns, unless some rows are in messages.
    ///
    /// # Safety
    /// The arrays have these rows, and no other thread touches the rows. With a device, no thread touches the rows until the
    /// device has finished [`Stream::Rows`].
    pub unsafe fn copy(
        &self,
        pool: Option<&mut Pool>,
        count: usize,
        copy: impl Fn(usize) -> (Place, Place) + Sync,
    ) {
        let here = |j: usize| {
            let (from, to) = copy(j);
            // SAFETY: ensured by the caller.
            unsafe { self.copy_here(from, to) }
        };
        match self.device {
            // SAFETY: ensured by the caller.
            Some(device) => unsafe { self.copy_by(device, (0..count).map(&copy)) },
            None => by_all(pool, count, self.cols.len(), here),
        }
    }

    /// Copies one row in this thread.
    ///
    /// # Safety
    /// As for [`Rows::copy`].
    unsafe fn copy_here(&self, from: Place, to: Place) {
        let (u, first, len) = (self.upper, self.cols.start, self.cols.len());
        // SAFETY: ensured by the caller.
        unsafe {
            match (from.array, to.array) {
                (Array::Upper, _) => u.get_row(from.row, first, len, self.address(to)),
                (_, Array::Upper) => u.put_row(to.row, first, len, self.address(from)),
                _ => std::ptr::copy_nonoverlapping(self.address(from), self.address(to), len),
            }
        }
    }

    /// Copies rows by operations of `device`. If some rows are in messages, waits for these operations. Copies rows from message
    /// to message in this thread.
    ///
    /// # Safety
    /// As for [`Rows::copy`].
    unsafe fn copy_by(&self, device: &dyn Device, copies: impl Iterator<Item = (Place, Place)>) {
        let mut by_arrays: BTreeMap<(Array, Array), Vec<RowCopy>> = BTreeMap::new();
        for (from, to) in copies {
            if from.array.is_on_device() || to.array.is_on_device() {
                let row = RowCopy { from: from.row, to: to.row };
                by_arrays.entry((from.array, to.array)).or_default().push(row);
            } else {
                // SAFETY: ensured by the caller.
                unsafe { self.copy_here(from, to) }
            }
        }
        let with_messages =
            by_arrays.keys().any(|(from, to)| !from.is_on_device() || !to.is_on_device());
        for ((from, to), rows) in by_arrays {
            let (from, to) = (self.array(from), self.array(to));
            let from = Matrix::new(from.at.cast_const(), from.ld);
            // SAFETY: ensured by the caller.
            unsafe { device.copy_rows(Stream::Rows, from, to, rows, self.cols.len()) }
        }
        if with_messages {
            device.finish(Stream::Rows);
        }
    }

    /// Returns the address of a row. With our own engines, the row must not be in the upper block, which these engines store in
    /// packed form.
    fn address(&self, place: Place) -> *mut f64 {
        let Matrix { at, ld } = self.array(place.array);
        at.wrapping_add(place.row * ld)
    }

    /// Returns an array from the first copied column on. The upper block is stored by rows only in the layout of the engine
    /// `blas`.
    fn array(&self, array: Array) -> Matrix<*mut f64> {
        match array {
            Array::Matrix => Matrix::new(self.matrix.at.get(), self.matrix.ld),
            Array::Upper => {
                debug_assert!(!self.upper.engine.cuts_freely(), "our engines pack rows");
                Matrix::new(self.upper.data.wrapping_add(self.cols.start), self.upper.cols)
            }
            Array::Out => Matrix::new(self.out.get(), self.cols.len()),
            Array::Into => Matrix::new(self.into.get(), self.cols.len()),
            Array::Transit => Matrix::new(self.transit.get(), self.cols.len()),
        }
    }
}

/// Calls `copy` with the number of each of `rows` rows, to copy `cols` columns of the row. With a `pool`, its threads copy
/// several rows in each task, so that a task takes longer than waking a thread.
pub fn by_all(pool: Option<&mut Pool>, rows: usize, cols: usize, copy: impl Fn(usize) + Sync) {
    /// Number of doubles that a thread copies in some ten microseconds.
    const WORTHWHILE: usize = 8 << 10;
    let threads = pool.as_ref().map_or(1, |pool| pool.threads());
    let at_once = (WORTHWHILE / cols.max(1)).max(rows.div_ceil(4 * threads)).max(1);
    match pool {
        Some(pool) if threads > 1 && rows > at_once => {
            pool.run(rows.div_ceil(at_once), |task| {
                (task * at_once..((task + 1) * at_once).min(rows)).for_each(&copy);
            });
        }
        _ => (0..rows).for_each(copy),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::base::params;
    use crate::device::{self, Buffer};
    use crate::kernels::Engine;

    /// Number of rows of each array.
    const ROWS: usize = 8;
    /// Number of doubles in a row of A and of the upper block.
    const LD: usize = 7;
    /// Columns of A and of the upper block that are copied.
    const COLS: Range<usize> = 1..5;

    const ALL: [Array; 5] = [Array::Matrix, Array::Upper, Array::Out, Array::Into, Array::Transit];

    /// Makes five arrays of distinct numbers, does the row copies `copies`, and returns the arrays. With a `device`, the arrays A
    /// and upper block are in its memory during the copies.
    fn copied(copies: &[(Place, Place)], device: Option<&Arc<dyn Device>>) -> [Vec<f64>; 5] {
        const LEN: usize = ROWS * LD;
        let number = |array: usize| (0..LEN).map(|at| (array * LEN + at) as f64).collect();
        let mut here: [Vec<f64>; 5] = std::array::from_fn(number);
        let there = device.map(|device| [0, 1].map(|_| Buffer::new(device, LEN).unwrap()));
        if let Some(device) = device {
            for array in &mut here {
                device.pin(NonNull::new(array.as_mut_ptr()).unwrap(), LEN).unwrap();
            }
        }
        let mut at = here.each_mut().map(|array| Shareable::new(array.as_mut_ptr()));
        let move_all = |device: &dyn Device, from: *mut f64, to: *mut f64| {
            let (from, to) = (Matrix::new(from.cast_const(), LEN), Matrix::new(to, LEN));
            // SAFETY: both arrays have this length, and the copy ends before the arrays are used.
            unsafe { device.copy_2d(Stream::Rows, from, to, 1, LEN) }
        };
        if let Some((device, there)) = device.zip(there.as_ref()) {
            for (own, buffer) in at.iter_mut().zip(there) {
                move_all(device.as_ref(), own.get(), buffer.address());
                *own = Shareable::new(buffer.address());
            }
        }
        let [matrix, upper, out, into, transit] = at;
        let matrix = Matrix::new(Shareable::new(matrix.get().wrapping_add(COLS.start)), LD);
        let upper = UpperBlock { engine: Engine::Blas, k: ROWS, cols: LD, data: upper.get() };
        let device = device.map(|device| device.as_ref());
        let rows = Rows { matrix, upper, cols: COLS, out, into, transit, device };
        // SAFETY: the arrays have these rows.
        unsafe { rows.copy(Some(&mut Pool::new(2)), copies.len(), |j| copies[j]) };
        if let Some((device, there)) = device.zip(there.as_ref()) {
            for (own, buffer) in here.iter_mut().zip(there) {
                move_all(device, buffer.address(), own.as_mut_ptr());
            }
            device.finish(Stream::Rows);
        }
        here
    }

    proptest! {
        /// Tests that a device copies the same rows as the processor, and that rows from message to message are copied when the
        /// call returns.
        #[test]
        fn a_device_copies_the_same_rows(
            seed in any::<u64>(),
            picks in prop::collection::vec((0..5usize, 0..ROWS / 2, 0..5usize, 0..ROWS / 2), 0..20),
        ) {
            let mut taken = HashSet::new();
            // Even rows are sources, odd rows are destinations. No row is copied within the upper block.
            let copies: Vec<(Place, Place)> = picks
                .into_iter()
                .filter(|&(from, _, to, row)| (from, to) != (1, 1) && taken.insert((to, row)))
                .map(|(from, i, to, j)| (ALL[from].row(2 * i), ALL[to].row(2 * j + 1)))
                .collect();
            let device = device::open(params::Device::Host, &Default::default(), seed).unwrap();
            prop_assert_eq!(copied(&copies, device.as_ref()), copied(&copies, None));
        }
    }
}

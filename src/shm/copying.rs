//! Measurement of copy bandwidth with all threads of a pool.
//!
//! `plan --calibrate` and the ranks of a burn-in use this measurement. The arrays are spread over all NUMA nodes, like the matrix
//! and its checkpoints. Both arrays take at most a quarter of the free memory.

use std::hint::black_box;

use super::room::available_bytes;
use super::{MemoryError, Region};
use crate::base::threads::Pool;

pub struct Copying {
    from: Region,
    to: Region,
    /// Number of doubles that each thread copies.
    each: usize,
}

impl Copying {
    /// Allocates both arrays. Each thread copies `each` doubles, or fewer if free memory is short. `each` should exceed a
    /// thread's share of the caches by far.
    pub fn new(each: usize, pool: &mut Pool) -> Result<Self, MemoryError> {
        let each = fitting(pool.threads(), each, available_bytes());
        let bytes = pool.threads() * each * 8;
        // Some processors skip stores of zeros over zeros, so the values are not zero.
        let mut filled = |value: f64| -> Result<Region, MemoryError> {
            let mut region = Region::touched(bytes, pool)?;
            pool.rows(region.as_slice_f64_mut(), each, each, |_, part| part.fill(value));
            Ok(region)
        };
        Ok(Self { from: filled(1.0)?, to: filled(2.0)?, each })
    }

    /// Copies once and returns the number of bytes copied.
    pub fn run(&mut self, pool: &mut Pool) -> usize {
        let Self { from, to, each } = self;
        let (all, each) = (from.as_slice_f64(), *each);
        pool.rows(to.as_slice_f64_mut(), each, each, |n, to| {
            to.copy_from_slice(&all[n * each..][..each]);
        });
        // The result is used, so that the compiler cannot drop the copy.
        std::mem::swap(from, to);
        black_box(from.as_slice_f64()).len() * 8
    }
}

/// Number of doubles for each thread. Both arrays of all threads together take at most a quarter of the free memory.
fn fitting(threads: usize, wanted: usize, free: Option<u64>) -> usize {
    let most = free.map_or(wanted, |bytes| bytes as usize / 4 / 8 / 2 / threads);
    most.clamp(1, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copying_leaves_most_of_the_memory_free() {
        const WANTED: usize = 8 << 20;
        assert_eq!(fitting(2, WANTED, Some(24 << 30)), WANTED);
        assert_eq!(fitting(200, WANTED, None), WANTED);
        for (threads, free) in [(64, 4u64 << 30), (8, 256 << 20), (1, 1 << 20), (1, 0)] {
            let each = fitting(threads, WANTED, Some(free));
            assert!(each > 0);
            assert!(free == 0 || (threads * each * 16) as u64 <= free / 4);
        }
    }

    #[test]
    fn all_of_it_is_copied_there_and_back() {
        let mut pool = Pool::new(3);
        let mut copying = Copying::new(1000, &mut pool).unwrap();
        assert_eq!(copying.run(&mut pool), 24_000);
        let of = |region: &Region, value: f64| region.as_slice_f64().iter().all(|&v| v == value);
        assert!(of(&copying.from, 1.0) && of(&copying.to, 1.0));
        assert_eq!(copying.to.as_slice_f64().len(), 3000);
    }
}

//! Cache sizes for the blocking of a multiplication. Cache sizes depend on the machine, and never affect a result.

use std::sync::OnceLock;

use super::operands::{Matrix, Strides};
use crate::base::topology;

/// Size of the second-level cache, in bytes, that is assumed if the system reports none. Processors of the last ten years have at
/// least this size.
const USUAL: usize = 512 << 10;

/// Minimum size of the second-level cache, in bytes, that is assumed even if the system reports a smaller cache. Smaller blocks
/// for a smaller cache would not save time.
const LEAST: usize = 64 << 10;

/// Number of bytes of the second-level cache that one core can use.
pub fn second_level() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| topology::second_level().unwrap_or(USUAL).max(LEAST))
}

/// Prefetches `len` doubles from address `at` on, which will soon be read or written. Does not wait until the doubles arrive. The
/// address need not be valid.
#[inline]
pub fn ask_for(at: *const f64, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..len).step_by(LINE) {
            // SAFETY: the processor ignores an invalid address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

/// Returns the leading dimension for columns of `rows` rows. The leading dimension is an odd number of cache lines, so that the
/// elements of a row do not share a few cache sets. `align` is the requested alignment, in doubles.
pub fn leading_dimension(rows: usize, align: usize) -> usize {
    let unit = if align.is_multiple_of(LINE) { align } else { LINE };
    let ld = rows.next_multiple_of(unit);
    if (ld / LINE).is_multiple_of(2) { ld + LINE } else { ld }
}

/// Copies a matrix of `rows` rows and `cols` columns, at `from` with strides `strides`, to row-major order.
///
/// # Safety
/// Both matrices are valid, with `to.ld >= cols`, and do not overlap.
pub unsafe fn copy_by_rows(
    from: *const f64,
    strides: Strides,
    rows: usize,
    cols: usize,
    to: Matrix<*mut f64>,
) {
    // As many rows are copied at a time as a cache line has doubles. Their lines of `to` then stay in the first-level cache.
    for first in (0..rows).step_by(LINE) {
        let rows = first..(first + LINE).min(rows);
        for j in 0..cols {
            for i in rows.clone() {
                // SAFETY: within both matrices, as the caller ensures.
                unsafe { *to.at.add(i * to.ld + j) = *from.add(strides.to(i, j)) };
            }
        }
    }
}

/// Number of doubles in a cache line.
const LINE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_dimensions_are_odd_in_cache_lines() {
        for align in [1, 4, 8, 16, 64] {
            for rows in 0..3000 {
                let ld = leading_dimension(rows, align);
                assert!(
                    ld >= rows && ld.is_multiple_of(8) && (ld / 8) % 2 == 1,
                    "{rows} {align} {ld}"
                );
            }
        }
    }
}

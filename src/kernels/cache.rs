//! How much of the processor's caches the cut of a multiplication counts on. They are the machine's, so they are never
//! part of a result.

use std::sync::OnceLock;

use crate::base::topology;

/// Where the system tells nothing: what processors of the last ten years have at least.
const USUAL: usize = 512 << 10;

/// However little the system tells of, a cut for less would not pay.
const LEAST: usize = 64 << 10;

/// Bytes of the second-level cache that one core may count on.
pub fn second_level() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| topology::second_level().unwrap_or(USUAL).max(LEAST))
}

/// Asks for `len` doubles from `at` on, which are to be read or written soon, and does not wait for them. What is there does not
/// matter, nor whether anything is.
#[inline]
pub fn ask_for(at: *const f64, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..len).step_by(LINE) {
            // SAFETY: the processor ignores an address that is none of ours.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

/// How far apart columns of so many rows begin: an odd number of lines, so that a row's elements do not meet in a few sets of
/// the cache. `align` is what was asked for.
pub fn leading_dimension(rows: usize, align: usize) -> usize {
    let unit = if align.is_multiple_of(LINE) { align } else { LINE };
    let ld = rows.next_multiple_of(unit);
    if (ld / LINE).is_multiple_of(2) { ld + LINE } else { ld }
}

/// Copies a matrix of so many rows and columns, whose element (i, j) lies at `from + i * rs + j * cs`, to one that lies by rows.
///
/// # Safety
/// Both are valid for that, with `ld >= cols`, and do not overlap.
pub unsafe fn copy_by_rows(
    from: *const f64,
    (rs, cs): (usize, usize),
    (rows, cols): (usize, usize),
    to: *mut f64,
    ld: usize,
) {
    // As many rows at a time as a line of a column has: their lines of `to` stay in the first cache.
    for first in (0..rows).step_by(LINE) {
        let rows = first..(first + LINE).min(rows);
        for j in 0..cols {
            for i in rows.clone() {
                // SAFETY: within both, as the caller vouches.
                unsafe { *to.add(i * ld + j) = *from.add(i * rs + j * cs) };
            }
        }
    }
}

/// Doubles of a line.
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

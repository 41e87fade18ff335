//! Number of threads that factor a panel while the other threads multiply: a pure function.
//!
//! The schedule uses this number for the panel that is factored next. `halves` uses it to decide whether a panel can be factored
//! during half of an update. The performance model uses it for predictions.

/// Returns the number of threads, out of a rank's `threads` threads, that help the main thread to factor a panel of `width`
/// columns. At the same time, the other threads update `columns` columns with a panel of the same width. The grid has `q` process
/// columns.
///
/// The multiplying threads should not wait for the panel. But a thread that factors together with other threads is slower than a
/// thread that factors alone. The number of local rows is not needed, because it affects factorisation and multiplication in the
/// same way.
///
/// An operation of the factorisation takes up to four times as long as an operation of the multiplication. With `columns` equal
/// to `width`, the multiplication has twice as many operations. Measured per thread with `width` 256 on a Xeon (Sapphire Rapids):
/// 28 and 84 Gflop/s. Measured per thread with `width` 192 on an EPYC (Zen 5): 40 and 113 Gflop/s. So the factorisation by one
/// thread takes the fraction 2 `width` / `columns` of the time of the multiplication by one thread.
///
/// The number of panel threads is chosen so that the factorisation takes as long as the multiplication. If other process columns
/// wait for the panel, too (`q` > 1), the time of the factorisation counts double.
pub fn panel_workers(threads: usize, width: usize, columns: usize, q: usize) -> usize {
    let share = if q > 1 { 4 * width } else { 2 * width };
    let panel_threads = (share * threads).div_ceil(columns + share);
    panel_threads.clamp(1, threads) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crew_grows_as_the_multiplication_shrinks() {
        for (threads, q) in (1..130).flat_map(|threads| [(threads, 1), (threads, 2)]) {
            let mut last = 0;
            for columns in (0..40_000).rev().step_by(500) {
                let now = panel_workers(threads, 192, columns, q);
                assert!(now >= last && now < threads);
                assert!(now >= panel_workers(threads, 192, columns, 1), "others wait for it");
                last = now;
            }
            assert_eq!(panel_workers(threads, 192, 0, q), threads - 1, "nothing else to do");
        }
        assert_eq!(panel_workers(2, 256, 15_000, 2), 0);
        assert_eq!(panel_workers(16, 384, 40_000, 2), 0);
        assert_eq!((panel_workers(64, 256, 15_000, 1), panel_workers(64, 256, 15_000, 2)), (2, 4));
        assert_eq!((panel_workers(2, 192, 616, 1), panel_workers(2, 192, 616, 2)), (0, 1));
        assert_eq!(panel_workers(1, 384, 40_000, 2), 0);
    }
}

//! Number of threads that factor a panel while the others multiply: a pure function.
//!
//! The schedule uses it for the panel that is factored next. `halves` uses it to decide whether half an update can hide a panel,
//! and the performance model uses it for its prediction.

/// Number of threads that help the main thread to factor a panel of `width` columns. The other threads multiply a panel of that
/// width into `columns` columns, in a grid of `q` process columns.
///
/// The multiplying threads should not have to wait for the panel, yet threads that factor together are each slower than a single
/// one. The number of local rows affects both sides alike, so it is not needed.
///
/// An operation of the panel takes up to four times as long as one of the multiplication. The multiplication has two operations
/// for each one of the panel. Measured per thread: 28 and 84 Gflop/s on a Xeon of the Sapphire Rapids generation with `width`
/// 256; 40 and 113 Gflop/s on an EPYC of the Zen 5 generation with `width` 192. Hence one thread needs the fraction 2 `width` /
/// `columns` of the other threads' time.
///
/// The number of panel threads is chosen so that both sides take equally long. If other process columns wait for the panel as
/// well (`q` > 1), the panel's share counts double.
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

//! How many threads factor a panel while the others multiply: pure.
//!
//! The pipeline asks for the panel it is about to factor; `halves` asks whether half an update could hide one, and the model of
//! a run asks what it will come to.

/// How many workers help to factor a panel of `width` columns while the others multiply it into `columns`, in a grid of `q`
/// process columns.
///
/// The others should not wait for the panel, and threads that factor together do less each than one alone. A rank's
/// rows count in both alike. An operation of the panel takes up to four times as long as one of the multiplication, which
/// has two for each of the panel's (28 and 84 Gflop/s a thread on a Xeon of the Sapphire Rapids generation, `width` 256; 40 and
/// 113 on an EPYC of the Zen 5 generation, `width` 192), so one thread needs the share 2 `width` / `columns` of the others' time.
/// The crew is such that they need as long, and where other process columns wait for the panel as well, twice as long.
pub fn mates(threads: usize, width: usize, columns: usize, q: usize) -> usize {
    let share = if q > 1 { 4 * width } else { 2 * width };
    let crew = (share * threads).div_ceil(columns + share);
    crew.clamp(1, threads) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crew_grows_as_the_multiplication_shrinks() {
        for (threads, q) in (1..130).flat_map(|threads| [(threads, 1), (threads, 2)]) {
            let mut last = 0;
            for columns in (0..40_000).rev().step_by(500) {
                let now = mates(threads, 192, columns, q);
                assert!(now >= last && now < threads);
                assert!(now >= mates(threads, 192, columns, 1), "others wait for it");
                last = now;
            }
            assert_eq!(mates(threads, 192, 0, q), threads - 1, "nothing else to do");
        }
        assert_eq!(mates(2, 256, 15_000, 2), 0);
        assert_eq!(mates(16, 384, 40_000, 2), 0);
        assert_eq!((mates(64, 256, 15_000, 1), mates(64, 256, 15_000, 2)), (2, 4));
        assert_eq!((mates(2, 192, 616, 1), mates(2, 192, 616, 2)), (0, 1));
        assert_eq!(mates(1, 384, 40_000, 2), 0);
    }
}

//! How many threads factor a panel while the others multiply: pure.
//!
//! The pipeline asks for the panel it is about to factor; `halves` asks whether half an update could hide one, and the model of
//! a run asks what it will come to.

/// How many workers help to factor a panel of `width` columns while the others multiply it into `columns`.
///
/// The others should not wait for the panel, and threads that factor together do less each than one alone. A rank's
/// rows count in both alike. An operation of the panel takes up to four times as long as one of the multiplication, which
/// has two for each of the panel's (28 and 84 Gflop/s a thread on a Xeon of the Sapphire Rapids generation, `width` 256),
/// so one thread needs the share 2 `width` / `columns` of the others' time. The crew is such that they need twice as
/// long.
pub fn mates(threads: usize, width: usize, columns: usize) -> usize {
    let crew = (4 * width * threads).div_ceil(columns + 4 * width);
    crew.clamp(1, threads) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crew_grows_as_the_multiplication_shrinks() {
        for threads in 1..130 {
            let mut last = 0;
            for columns in (0..40_000).rev().step_by(500) {
                let mates = mates(threads, 192, columns);
                assert!(mates >= last && mates < threads);
                last = mates;
            }
            assert_eq!(mates(threads, 192, 0), threads - 1, "nothing else to do");
        }
        assert_eq!(mates(2, 256, 15_000), 0);
        assert_eq!(mates(16, 384, 40_000), 0);
        assert_eq!(mates(64, 256, 15_000), 4);
        assert_eq!(mates(1, 384, 40_000), 0);
    }
}

//! Lease: a number of boundaries at which ranks need not ask rank 0 whether to save. Pure.
//!
//! Ranks ask by a broadcast over the whole grid. No rank leaves the broadcast before rank 0, and the ranks that forward it, have
//! entered it. But process columns are at different iterations: the panel moves from one column to the next, and the last column
//! may be behind by as many iterations as there are columns. With many columns, a broadcast at every boundary would make all
//! ranks wait for the last column each time. So rank 0 adds a lease to its answer: the number of boundaries at which no rank
//! needs to ask.

/// Number of process columns up to which a broadcast at every boundary costs hardly any time.
const NEAR_COLUMNS: usize = 8;
/// Maximum seconds that a lease lasts. Ranks receive a request to stop within this time plus one iteration.
const MOST_S: f64 = 30.0;
/// Lowest bit of the lease in rank 0's answer. The lower bits are rank 0's requests, such as a save.
const SHIFT: u32 = 32;

#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// Next boundary at which ranks ask rank 0 whether to save.
    next: usize,
    /// Boundary and time in seconds at which this rank last asked rank 0. None before the first time.
    asked: Option<(usize, f64)>,
}

impl Lease {
    /// Returns true if the lease includes this boundary, so that ranks need not ask rank 0 whether to save.
    pub fn holds(&self, boundary: usize) -> bool {
        boundary < self.next
    }

    /// Returns the lease that rank 0 adds to its answer at `boundary`, for a grid with this number of process `columns`. Called
    /// only if no save is being written. `free` takes the seconds per boundary, and returns the number of boundaries before the
    /// next possible save, including `boundary`.
    pub fn offer(
        &self,
        boundary: usize,
        now_s: f64,
        columns: usize,
        free: impl FnOnce(f64) -> usize,
    ) -> u64 {
        let Some((last, last_s)) = self.asked.filter(|_| columns > NEAR_COLUMNS) else { return 0 };
        let pace_s = (now_s - last_s) / boundary.saturating_sub(last).max(1) as f64;
        let soon = (MOST_S / pace_s.max(1e-9)) as usize;
        let boundaries = columns.min(soon).min(free(pace_s));
        (boundaries.max(1) as u64 - 1) << SHIFT
    }

    /// Records that all ranks have asked rank 0 at `boundary`. Splits the reply `told` of rank 0 into the lease, which is stored,
    /// and the answer, which is returned.
    pub fn take(&mut self, boundary: usize, now_s: f64, told: u64) -> u64 {
        self.asked = Some((boundary, now_s));
        self.next = boundary + 1 + (told >> SHIFT) as usize;
        told & ((1 << SHIFT) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::when::{Interval, Scheduler};
    use super::*;
    use proptest::prelude::*;

    /// Returns the boundaries at which ranks ask rank 0, and the boundaries of saves. From one boundary to the next, `pace_s`
    /// seconds pass.
    fn asked(
        interval: Interval,
        columns: usize,
        pace_s: f64,
        ends: usize,
    ) -> (Vec<usize>, Vec<usize>) {
        let (mut first, mut other) = (Lease::default(), Lease::default());
        let mut scheduler = Scheduler::new(interval, 0, 0.0);
        let (mut asked, mut saved) = (Vec::new(), Vec::new());
        for boundary in 1..ends {
            let now_s = boundary as f64 * pace_s;
            assert_eq!(first.holds(boundary), other.holds(boundary));
            if first.holds(boundary) {
                continue;
            }
            asked.push(boundary);
            let save = scheduler.due(boundary, now_s, 1.0);
            let free = |pace_s| scheduler.free(boundary, now_s, 1.0, pace_s);
            let told = if save { 1 } else { first.offer(boundary, now_s, columns, free) };
            // Clocks differ, but rank 0's answer is used.
            assert_eq!(other.take(boundary, now_s + 1000.0, told), u64::from(save));
            assert_eq!(first.take(boundary, now_s, told), u64::from(save));
            if save {
                saved.push(boundary);
                scheduler.saved(boundary, now_s, 0.0, 1.0);
            }
        }
        (asked, saved)
    }

    #[test]
    fn few_columns_ask_at_every_boundary_and_many_seldom() {
        let all: Vec<usize> = (1..200).collect();
        assert_eq!(asked(Interval::Iterations(50), 8, 0.1, 200).0, all);
        let (seldom, saved) = asked(Interval::Iterations(50), 128, 0.1, 200);
        assert_eq!(saved, [50, 100, 150]);
        assert!(seldom.len() <= 12, "{seldom:?}");
        // Ranks receive a request to stop within half a minute.
        let (seldom, _) = asked(Interval::Iterations(1000), 128, 1.0, 900);
        assert!(seldom.windows(2).all(|two| two[1] - two[0] <= 30), "{seldom:?}");
        assert!(seldom.len() <= 900 / 30 + 3, "{seldom:?}");
        // The lease is at most the number of columns by which the last column can be behind.
        let (seldom, _) = asked(Interval::Seconds(1e6), 16, 0.001, 900);
        assert!(seldom.windows(2).skip(2).all(|two| two[1] - two[0] == 16), "{seldom:?}");
    }

    proptest! {
        #[test]
        fn no_save_comes_later_for_it(
            every in 1usize..70, columns in 1usize..200, pace_s in 1e-6f64..50.0,
        ) {
            let (_, saved) = asked(Interval::Iterations(every), columns, pace_s, 500);
            let due: Vec<usize> = (1..500).filter(|k| k % every == 0).collect();
            prop_assert_eq!(saved, due);
            // If the interval is in seconds, a save is at most one boundary late.
            let every_s = every as f64 * pace_s;
            let (_, saved) = asked(Interval::Seconds(every_s), columns, pace_s, 500);
            for two in saved.windows(2) {
                prop_assert!(two[1] - two[0] <= every + 1, "{:?}", saved);
            }
        }
    }
}

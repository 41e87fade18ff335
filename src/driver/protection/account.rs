//! Account of the time of a protected test. The account is saved with each checkpoint, so that the report of a test covers all
//! attempts. Pure functions compute the cost of a failure from moments, which are passed as numbers.

use serde::{Deserialize, Serialize};

use crate::base::outcome::Protection;
use crate::base::timeline::{Recorder, What};
use crate::lu::unix_seconds;

/// Bytes reserved in a position's memory for the small state: the account of the test's time, stored as text.
pub const STATE_BYTES: usize = 1024 + Recorder::TEXT_BYTES_MAX;

/// Account of the time of a test so far. The account is saved with each checkpoint.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Account {
    pub(super) began_unix_s: f64,
    pub(super) saved_unix_s: f64,
    pub(super) told: Protection,
    #[serde(default)]
    pub(super) way: Recorder,
    /// Seconds and number of saves since a checkpoint was last written to storage, at the time when the account was saved.
    #[serde(default)]
    pub(super) unstored: (f64, usize),
    /// Number of earlier starts of the test that the attempt counter in memory lacks, because this counter began after those
    /// starts.
    #[serde(default)]
    pub(super) uncounted: u32,
}

impl Account {
    /// Returns the seconds since the test's clock was first started, in any attempt.
    pub(super) fn elapsed(&self) -> f64 {
        (unix_seconds() - self.began_unix_s).max(0.0)
    }

    /// Counts this start or in-place attempt. `joined` is the number of attempts of the run in memory. This number includes this
    /// attempt, and attempts that died before they saved anything.
    ///
    /// If the checkpoint was read from storage, the run in memory is new, and its number of attempts may begin with 1. In this
    /// case `fetched` is the number of earlier starts from the same checkpoint on storage. Otherwise `fetched` is `None`.
    pub(super) fn count_start(&mut self, joined: u64, fetched: Option<u32>) {
        let joined = u32::try_from(joined).unwrap_or(u32::MAX);
        let told = &mut self.told;
        if fetched.is_some() {
            self.uncounted = 0;
        }
        let before = told.attempts.saturating_add(fetched.unwrap_or(0));
        told.attempts = before.saturating_add(1).max(self.uncounted.saturating_add(joined));
        if fetched.is_some() {
            self.uncounted = told.attempts.saturating_sub(joined);
        }
    }

    /// Adds the cost of a failure, and of the restart at boundary `boundary`. All times are Unix times in seconds. `last` is the
    /// time of the last heartbeat of any rank, `saved` the time of the restored save, and `began` the start of the test. These
    /// three are the same on all ranks. `started` is the time of this start, and `now` is the end of the recovery.
    pub(super) fn charge_restart(
        &mut self,
        [last, saved, began]: [f64; 3],
        started: f64,
        now: f64,
        boundary: usize,
    ) {
        let last = last.clamp(saved, started.max(saved));
        self.began_unix_s = began;
        let down_s = (started - last).max(0.0);
        let restore_s = (now - started).max(0.0);
        self.told.lost_s += last - saved;
        self.told.down_s += down_s;
        self.told.restore_s += restore_s;
        for (what, from, seconds) in [
            (What::Lost, saved, last - saved),
            (What::Down, last, down_s),
            (What::Restore, started, restore_s),
        ] {
            self.way.interrupt(what, boundary, (from - began).max(0.0), seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::timeline::Moment;
    use proptest::prelude::*;

    #[test]
    fn a_failure_costs_lost_work_a_gap_and_a_start() {
        let mut account = Account::default();
        // The test began at 100, and was saved at 130 and lost at 150. The run restarted at 170, and computes again at 175.
        account.charge_restart([150.0, 130.0, 100.0], 170.0, 175.0, 7);
        let Account { began_unix_s, told, way, .. } = account;
        assert_eq!(
            (began_unix_s, told.lost_s, told.down_s, told.restore_s),
            (100.0, 20.0, 20.0, 5.0)
        );
        let told = |what, at_s, seconds| Moment { what, iteration: 7, at_s, seconds };
        let expected = [
            told(What::Lost, 30.0, 20.0),
            told(What::Down, 50.0, 20.0),
            told(What::Restore, 70.0, 5.0),
        ];
        assert_eq!(way.timeline(100, 10).moments, expected);
    }

    #[test]
    fn a_second_failure_adds_to_the_first() {
        let mut account = Account::default();
        account.charge_restart([150.0, 130.0, 100.0], 170.0, 175.0, 7);
        account.charge_restart([0.0, 130.0, 100.0], 180.0, 181.0, 7);
        // No rank has sent a heartbeat since the save, so all time since the save was down time.
        let Protection { lost_s, down_s, restore_s, .. } = account.told;
        assert_eq!((lost_s, down_s, restore_s), (20.0, 70.0, 6.0));
    }

    #[test]
    fn starts_that_died_before_they_saved_count() {
        let mut first = Account::default();
        first.count_start(1, None);
        assert_eq!(first.told.attempts, 1);
        // Three starts resume from the first start's save, and only the third makes progress.
        let mut later = first.clone();
        later.count_start(4, None);
        assert_eq!(later.told.attempts, 4);
        // All memory is lost. Storage has another run, and the first start from there follows the starts that had saved.
        let mut fetched = later.clone();
        fetched.count_start(1, Some(0));
        assert_eq!((fetched.told.attempts, fetched.uncounted), (5, 4));
        fetched.count_start(3, None);
        assert_eq!(fetched.told.attempts, 7);
        // Too much memory is lost. The memory that is left has counted more starts than storage has.
        let mut fetched = first.clone();
        fetched.count_start(4, Some(0));
        assert_eq!((fetched.told.attempts, fetched.uncounted), (4, 0));
        // Two starts resumed from storage and died before they saved. Only the memory of the second start still exists.
        let mut fetched = later.clone();
        fetched.count_start(2, Some(2));
        assert_eq!((fetched.told.attempts, fetched.uncounted), (7, 5));
    }

    proptest! {
        /// Clocks of different nodes may differ. Nevertheless no duration is negative, and all time since the save is charged
        /// once.
        #[test]
        fn whatever_clocks_say_nothing_is_charged_twice(
            moments in proptest::array::uniform3(0.0..1e6f64),
            started in 0.0..1e6f64,
            now in 0.0..1e6f64,
        ) {
            let mut account = Account::default();
            account.charge_restart(moments, started, now, 1);
            let Protection { lost_s, down_s, restore_s, .. } = account.told;
            prop_assert!(lost_s >= 0.0 && down_s >= 0.0 && restore_s >= 0.0);
            let [_, saved, _] = moments;
            prop_assert!((lost_s + down_s - (started - saved).max(0.0)).abs() < 1e-6);
            prop_assert!((restore_s - (now - started).max(0.0)).abs() < 1e-6);
        }
    }
}

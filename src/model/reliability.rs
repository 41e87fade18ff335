//! Probability that a run ends with a result (*self-checkpoint*, section 5.2, eqs. 12 to 16).
//!
//! The exponents of eqs. 13 and 14 are printed with a wrong minus sign, which would give negative probabilities. Here alpha and
//! beta are the expected numbers of fatal events, which are positive.

use super::error::{Result, at_least, finite, non_negative, positive};

/// Mean time between failures of one group, seconds, eq. 12: N_t / N_g times that of the system.
pub fn group_mtbf(total: u64, group: u64, mtbf_system: f64) -> Result<f64> {
    at_least("the group size", group, 1, "at least 1")?;
    at_least("the number of processes", total, group, "at least the group size")?;
    positive("the MTBF of the system", mtbf_system)?;
    finite("the MTBF of a group", total as f64 / group as f64 * mtbf_system)
}

/// Probability of a failure while a checkpoint is updated, eq. 13: 1 - exp(-checkpoint_time * checkpoints / MTBF).
pub fn failure_while_saving(save_s: f64, saves: f64, mtbf_system: f64) -> Result<f64> {
    non_negative("the time of a save", save_s)?;
    non_negative("the number of saves", saves)?;
    positive("the MTBF of the system", mtbf_system)?;
    finite("the probability", -(-save_s * saves / mtbf_system).exp_m1())
}

/// Probability of a second failure in the same group during a recovery, eq. 14: 1 - exp(-recovery_time * failures / MTBF_group).
pub fn failure_while_recovering(recover_s: f64, failures: f64, mtbf_group: f64) -> Result<f64> {
    non_negative("the time of a recovery", recover_s)?;
    non_negative("the number of failures", failures)?;
    positive("the MTBF of a group", mtbf_group)?;
    finite("the probability", -(-recover_s * failures / mtbf_group).exp_m1())
}

/// A long run, as section 5.2 describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRun {
    /// Number of all processes.
    pub total: u64,
    /// Number of processes in a group.
    pub group: u64,
    pub mtbf_system: f64,
    /// Seconds of a save.
    pub save_s: f64,
    /// Seconds of a recovery.
    pub recover_s: f64,
    /// Seconds between saves.
    pub interval_s: f64,
    /// Seconds of the whole run.
    pub run_s: f64,
}

impl LongRun {
    /// Returns the run of Fig. 12: 160,000 processes in groups of 16, 20 s to save and to recover, a save every 13.6 minutes, a
    /// failure every 5 hours.
    pub fn figure_12(run_s: f64) -> Self {
        Self {
            total: 160_000,
            group: 16,
            mtbf_system: 18_000.0,
            save_s: 20.0,
            recover_s: 20.0,
            interval_s: 816.0,
            run_s,
        }
    }

    fn parts(&self) -> Result<(f64, f64)> {
        positive("the interval between saves", self.interval_s)?;
        non_negative("the length of the run", self.run_s)?;
        let p1 = failure_while_saving(self.save_s, self.run_s / self.interval_s, self.mtbf_system)?;
        let group = group_mtbf(self.total, self.group, self.mtbf_system)?;
        let p2 = failure_while_recovering(self.recover_s, self.run_s / self.mtbf_system, group)?;
        Ok((p1, p2))
    }

    /// Probability of success with a single checkpoint, eq. 15.
    pub fn success_single(&self) -> Result<f64> {
        let (p1, p2) = self.parts()?;
        finite("the probability", (1.0 - p1) * (1.0 - p2))
    }

    /// Probability of success with self-checkpoint, eq. 16.
    pub fn success_self(&self) -> Result<f64> {
        Ok(1.0 - self.parts()?.1)
    }
}

/// Probability that, within `window` seconds of the failure of a member, at least `losses` of the other `group - 1` members fail:
/// more losses than the group's code survives. Exact for independent nodes of MTBF `mtbf_node` with exponential failures; eq. 14
/// is its first-order form for one loss, with G in place of G - 1.
pub fn group_overwhelmed(group: u64, losses: u64, window: f64, mtbf_node: f64) -> Result<f64> {
    at_least("the number of losses", losses, 1, "at least 1")?;
    at_least("the group size", group, 1, "at least 1")?;
    non_negative("the window of vulnerability", window)?;
    positive("the MTBF of a node", mtbf_node)?;
    let others = group - 1;
    let p = -(-window / mtbf_node).exp_m1();
    if losses > others || p == 0.0 {
        return Ok(0.0);
    }
    if p >= 1.0 {
        return Ok(1.0);
    }
    let (n, odds) = (others as f64, p / (1.0 - p));
    // The terms of the binomial are computed as logarithms, since they may be far below the range of a double.
    let mut log_term = n * (-p).ln_1p();
    let mut below = 0.0;
    for j in 0..losses {
        below += log_term.exp();
        log_term += ((n - j as f64) / (j as f64 + 1.0)).ln() + odds.ln();
    }
    if n * p >= losses as f64 {
        // The largest term is in the tail that is wanted, so the terms before the tail are the smaller part.
        return finite("the probability", (1.0 - below).clamp(0.0, 1.0));
    }
    // Beyond the largest term the terms decrease, so their sum needs no subtraction.
    let mut term = log_term.exp();
    let mut sum = 0.0;
    let mut j = losses as f64;
    while j <= n && term > sum * 1e-17 {
        sum += term;
        term *= (n - j) / (j + 1.0) * odds;
        j += 1.0;
    }
    finite("the probability", sum.min(1.0))
}

/// Probability that no group loses more members than it survives. On average there are `incidents` failures; after each failure,
/// further losses count for `window` seconds.
pub fn survives(
    incidents: f64,
    group: u64,
    losses: u64,
    window: f64,
    mtbf_node: f64,
) -> Result<f64> {
    non_negative("the expected number of failures", incidents)?;
    let p = group_overwhelmed(group, losses, window, mtbf_node)?;
    finite("the probability", (-incidents * p).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figure_12_after_100_hours() {
        let run = LongRun::figure_12(360_000.0);
        let single = 1.0 - run.success_single().unwrap();
        assert_eq!((single * 100.0).round(), 39.0, "fails with probability {single}");
        assert!(run.success_self().unwrap() > 0.99);
        assert!(run.success_self().unwrap() > 0.999_99, "far above what the paper claims");
    }

    #[test]
    fn the_refinement_agrees_with_eq_14_to_first_order() {
        let (g, window, node) = (16, 20.0, 160_000.0 * 18_000.0);
        let refined = group_overwhelmed(g, 1, window, node).unwrap();
        let eq14 = failure_while_recovering(window, 1.0, node / g as f64).unwrap();
        assert!((refined / eq14 - 15.0 / 16.0).abs() < 1e-4, "{refined} {eq14}");
    }

    #[test]
    fn the_tail_is_the_binomial() {
        // At least two of the three other members fail, each with p = 1/2: 3/8 + 1/8.
        let p = group_overwhelmed(4, 2, 1.0, 1.0 / std::f64::consts::LN_2).unwrap();
        assert!((p - 0.5).abs() < 1e-12, "{p}");
        // Almost all of a large group lost: the first terms are below 1e-300.
        let p = group_overwhelmed(305, 3, 1e7, 4e6).unwrap();
        assert!(p > 0.999_999, "{p}");
    }

    proptest! {
        #[test]
        fn probabilities_behave(g in 2u64..400, m in 1u64..5, window in 0.0..1e7f64, node in 1.0..1e10f64, n in 0.0..1e6f64) {
            let p = group_overwhelmed(g, m, window, node).unwrap();
            prop_assert!((0.0..=1.0).contains(&p));
            prop_assert!(group_overwhelmed(g + 1, m, window, node).unwrap() >= p * (1.0 - 1e-9));
            prop_assert!(group_overwhelmed(g, m + 1, window, node).unwrap() <= p * (1.0 + 1e-9));
            prop_assert!(group_overwhelmed(g, m, window * 1.1, node).unwrap() >= p * (1.0 - 1e-9));
            let s = survives(n, g, m, window, node).unwrap();
            prop_assert!((0.0..=1.0).contains(&s));
        }

        #[test]
        fn single_is_never_safer_than_self(hours in 0.0..1e4f64) {
            let run = LongRun::figure_12(hours * 3600.0);
            prop_assert!(run.success_single().unwrap() <= run.success_self().unwrap());
        }

        #[test]
        fn never_nan(a in any::<f64>(), b in any::<f64>(), c in any::<f64>(), g in any::<u64>(), t in any::<u64>()) {
            for v in [group_mtbf(t, g, a), failure_while_saving(a, b, c),
                      failure_while_recovering(a, b, c), survives(a, g % 100_000, t, b, c)].into_iter().flatten() {
                prop_assert!(v.is_finite());
            }
        }
    }
}

//! Share of a machine that checkpointing and failures waste, for coordinated and hierarchical protocols (*unified*, section 3,
//! eqs. 1 to 18).
//!
//! G groups save checkpoints one after the other within a period T. After a failure only one group goes back to its checkpoint,
//! and repeats its work with logged messages. G = 1 is coordinated checkpointing, the protocol of our solver. Waste is a fraction
//! of the time. A work unit takes one second at full speed.

use super::error::{Result, finite, fraction, non_negative, out_of_range, positive, share};

/// A protocol on a machine. Times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// Number of groups G.
    pub groups: f64,
    /// C_0(q): checkpoint time of one group without logged messages.
    pub checkpoint: f64,
    /// R(q): recovery time of one group.
    pub recovery: f64,
    /// D(q): downtime.
    pub downtime: f64,
    /// alpha: speed of the computation during a checkpoint (0 blocks, 1 overlaps fully).
    pub alpha: f64,
    /// lambda: speed of the computation under message logging, 1 without it.
    pub lambda: f64,
    /// rho: speed-up of the re-execution, 1 without logs.
    pub rho: f64,
    /// beta: growth of a checkpoint by logged messages, a fraction of its size per work unit.
    pub beta: f64,
}

/// Bounds of the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Eqs. 14 and 18: G C <= T <= mu_p / 10, for the checkpoint time C, the period T and the platform's MTBF mu_p. Then at
    /// most one failure a period is likely. If no such period exists, the waste is 1.
    FirstOrder,
    /// Only G C <= T, for the checkpoint time C and the period T. The formula is not proved for T above a tenth of the
    /// platform's MTBF, but the text and the figures of the paper use this bound.
    Unbounded,
}

/// Best period and its waste.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// None if no admissible period exists.
    pub period: Option<f64>,
    /// Share of the time that is wasted; 1 means no progress.
    pub waste: f64,
}

impl Protocol {
    /// A coordinated protocol without message logging.
    pub fn coordinated(checkpoint: f64, recovery: f64, downtime: f64, alpha: f64) -> Self {
        Self {
            groups: 1.0,
            checkpoint,
            recovery,
            downtime,
            alpha,
            lambda: 1.0,
            rho: 1.0,
            beta: 0.0,
        }
    }

    fn check(&self) -> Result<()> {
        if !(self.groups.is_finite() && self.groups >= 1.0) {
            return out_of_range("the number of groups", "at least 1", self.groups);
        }
        positive("the checkpoint time", self.checkpoint)?;
        non_negative("the recovery time", self.recovery)?;
        non_negative("the downtime", self.downtime)?;
        fraction("the overlap alpha", self.alpha)?;
        share("the logging slowdown lambda", self.lambda)?;
        positive("the re-execution speed-up rho", self.rho)?;
        non_negative("the checkpoint growth beta", self.beta)?;
        Ok(())
    }

    /// C(q) for a period of `t`, eq. 17: C_0 (1 + beta lambda T) / (1 + G C_0 beta lambda (1 - alpha)).
    pub fn checkpoint_time(&self, t: f64) -> f64 {
        let (u, v) = self.checkpoint_line();
        u + v * t
    }

    /// Returns u and v, with which the checkpoint time is C(q) = u + v T for the period T.
    fn checkpoint_line(&self) -> (f64, f64) {
        let growth = self.beta * self.lambda;
        let u =
            self.checkpoint / (1.0 + self.groups * self.checkpoint * growth * (1.0 - self.alpha));
        (u, u * growth)
    }

    /// Shortest period into which all checkpoints fit, eq. 18. None if the logged messages grow faster than they can be written.
    pub fn shortest_period(&self) -> Result<Option<f64>> {
        let all = self.groups * self.checkpoint;
        let grown = all * self.beta * self.lambda * self.alpha;
        if grown >= 1.0 {
            return Ok(None);
        }
        Ok(Some(finite("the shortest period", all / (1.0 - grown))?))
    }

    /// RE-EXEC, the mean time of the re-execution after a failure, for a checkpoint time `c` and period `t`. It is the sum of
    /// eqs. 8 to 12 in closed form.
    fn re_execution(&self, c: f64, t: f64) -> f64 {
        let (g, a) = (self.groups, self.alpha);
        (t * t + c * t * (1.0 - g + a * (g + 1.0)) + c * c * (g - 1.0) * (2.0 * a - 1.0))
            / (2.0 * t)
    }

    /// Waste for the period `t` and platform MTBF `mu_p`, eq. 15 with eq. 17 (eq. 13 where lambda = rho = 1 and beta = 0; eq. 5
    /// where also G = 1). The result may exceed 1.
    pub fn waste(&self, t: f64, mu_p: f64) -> Result<f64> {
        self.check()?;
        positive("the period", t)?;
        positive("the platform MTBF", mu_p)?;
        let c = self.checkpoint_time(t);
        let work = t - (1.0 - self.alpha) * self.groups * c; // eq. 7
        let lost = self.re_execution(c, t) / self.rho;
        finite(
            "the waste",
            (t - self.lambda * work) / t + (self.downtime + self.recovery + lost) / mu_p,
        )
    }

    /// Period with the least waste. The waste is K + X/T + Z T, so the optimum is sqrt(X/Z), limited to the admissible range. For
    /// G = 1 without logging this is sqrt(2 mu_p C (1 - alpha)), and with alpha = 0 Young's interval.
    pub fn optimum(&self, mu_p: f64, validity: Validity) -> Result<Optimum> {
        self.check()?;
        positive("the platform MTBF", mu_p)?;
        const HOPELESS: Optimum = Optimum { period: None, waste: 1.0 };
        let Some(low) = self.shortest_period()? else {
            return Ok(HOPELESS);
        };
        let high = match validity {
            Validity::FirstOrder => 0.1 * mu_p,
            Validity::Unbounded => (1e6 * mu_p).max(low),
        };
        if low > high {
            return Ok(HOPELESS);
        }
        let (g, a, l) = (self.groups, self.alpha, self.lambda);
        let (u, v) = self.checkpoint_line();
        let k1 = 1.0 - g + a * (g + 1.0);
        let k2 = (g - 1.0) * (2.0 * a - 1.0);
        let per_failure = 2.0 * self.rho * mu_p;
        let x = l * (1.0 - a) * g * u + k2 * u * u / per_failure;
        let z = (1.0 + k1 * v + k2 * v * v) / per_failure;
        let mut best = HOPELESS;
        let stationary = (x / z).sqrt();
        for t in [stationary.clamp(low, high), low, high] {
            if !t.is_finite() || t <= 0.0 {
                continue;
            }
            let waste = self.waste(t, mu_p)?;
            if waste < best.waste {
                best = Optimum { period: Some(t), waste: waste.max(0.0) };
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval;
    use super::*;
    use proptest::prelude::*;

    /// Eqs. 2 to 4, term by term.
    fn coordinated_sum(t: f64, mu: f64, c: f64, r: f64, d: f64, a: f64) -> f64 {
        (1.0 - a) * c / t
            + (t - c) / t / mu * (r + d + a * c + (t - c) / 2.0)
            + c / t / mu * (r + d + a * c + t - c + c / 2.0)
    }

    /// Eq. 5: eqs. 2 to 4, simplified.
    fn eq5(t: f64, mu: f64, c: f64, r: f64, d: f64, a: f64) -> f64 {
        (1.0 - a) * c / t + (d + r + t / 2.0 + a * c) / mu
    }

    /// Eqs. 8 to 12 as printed: sums over the group that fails and the checkpoint in progress.
    fn re_execution_sum(groups: u32, c: f64, t: f64, a: f64) -> f64 {
        let g_all = f64::from(groups);
        let quiet = t - g_all * c;
        let mut working = 0.0;
        let mut saving = 0.0;
        for g in 1..=groups {
            let gf = f64::from(g);
            working += (g_all - gf + 1.0) * a * c + quiet / 2.0; // (8)
            for s in 0..g.saturating_sub(1) {
                saving += (g_all - gf + f64::from(s) + 2.0) * a * c + quiet; // (10)
            }
            saving += g_all * a * c + quiet + c / 2.0; // (11)
            for s in 1..=(groups - g) {
                saving += (f64::from(s) + 1.0) * a * c; // (12)
            }
        }
        quiet / t * working / g_all + g_all * c / t * saving / (g_all * g_all)
    }

    /// Eq. 13 as printed.
    fn eq13(p: &Protocol, t: f64, mu: f64) -> f64 {
        let (g, c, a) = (p.groups, p.checkpoint, p.alpha);
        (t * t
            + g * c * ((1.0 - a) * (2.0 * mu - t) + (2.0 * a - 1.0) * c)
            + t * (2.0 * (p.downtime + p.recovery) + (a + 1.0) * c)
            + (1.0 - 2.0 * a) * c * c)
            / (2.0 * mu * t)
    }

    proptest! {
        #[test]
        fn closed_forms_are_the_sums(groups in 1u32..40, c in 0.1..50.0f64, stretch in 1.0..30.0f64,
            a in 0.0..1.0f64, r in 0.0..100.0f64, d in 0.0..100.0f64, mu in 1e3..1e7f64) {
            let t = f64::from(groups) * c * stretch;
            let p = Protocol { groups: f64::from(groups), ..Protocol::coordinated(c, r, d, a) };
            let waste = p.waste(t, mu).unwrap();
            let sum = (1.0 - a) * p.groups * c / t + (d + r + re_execution_sum(groups, c, t, a)) / mu;
            prop_assert!((waste - sum).abs() <= 1e-9 * sum.abs().max(1.0), "{waste} {sum}");
            prop_assert!((waste - eq13(&p, t, mu)).abs() <= 1e-9 * waste.abs().max(1.0));
            if groups == 1 {
                let eq5 = eq5(t, mu, c, r, d, a);
                prop_assert!((waste - eq5).abs() <= 1e-9 * eq5.max(1.0));
                prop_assert!((coordinated_sum(t, mu, c, r, d, a) - eq5).abs() <= 1e-9 * eq5.max(1.0));
            }
        }

        #[test]
        fn no_other_period_is_better(groups in 1u32..2000, c in 0.01..50.0f64, a in 0.0..1.0f64, beta in 0.0..1e-3f64,
            mu in 1e3..1e8f64, factor in 0.05..20.0f64) {
            let p = Protocol { groups: f64::from(groups), beta, lambda: 0.98, rho: 1.5, ..Protocol::coordinated(c, c, 60.0, a) };
            for validity in [Validity::FirstOrder, Validity::Unbounded] {
                let best = p.optimum(mu, validity).unwrap();
                prop_assert!((0.0..=1.0).contains(&best.waste));
                if let Some(t) = best.period {
                    let low = p.shortest_period().unwrap().unwrap();
                    prop_assert!(t >= low * (1.0 - 1e-12));
                    let high = if validity == Validity::FirstOrder { 0.1 * mu } else { f64::MAX };
                    let other = (t * factor).max(low).min(high);
                    prop_assert!(p.waste(other, mu).unwrap() >= best.waste - 1e-9);
                    // Eq. 16 and eq. 17 agree.
                    let cq = p.checkpoint_time(t);
                    let work = t - (1.0 - a) * p.groups * cq;
                    prop_assert!((cq / (c * (1.0 + beta * 0.98 * work)) - 1.0).abs() < 1e-9);
                }
            }
        }

        #[test]
        fn youngs_period_at_alpha_zero(c in 0.1..50.0f64, mu in 1e5..1e9f64) {
            let p = Protocol::coordinated(c, c, 60.0, 0.0);
            let t = p.optimum(mu, Validity::Unbounded).unwrap().period.unwrap();
            prop_assert!((t / interval::young(c, mu).unwrap() - 1.0).abs() < 1e-9);
        }

        #[test]
        fn waste_falls_with_the_mtbf(groups in 1u32..300, c in 0.01..50.0f64, mu in 1e3..1e8f64) {
            let p = Protocol { groups: f64::from(groups), beta: 1e-4, lambda: 0.98, rho: 1.5, ..Protocol::coordinated(c, c, 60.0, 0.3) };
            for validity in [Validity::FirstOrder, Validity::Unbounded] {
                prop_assert!(p.optimum(mu * 1.3, validity).unwrap().waste <= p.optimum(mu, validity).unwrap().waste + 1e-12);
            }
        }

        #[test]
        fn never_nan(v in proptest::array::uniform8(any::<f64>()), t in any::<f64>(), mu in any::<f64>()) {
            let p = Protocol { groups: v[0], checkpoint: v[1], recovery: v[2], downtime: v[3], alpha: v[4], lambda: v[5], rho: v[6], beta: v[7] };
            let tame = Protocol { alpha: v[4].abs() % 1.0, lambda: 0.5, groups: 1.0 + v[0].abs() % 1e9, ..p };
            for p in [p, tame] {
                if let Ok(w) = p.waste(t, mu) { prop_assert!(w.is_finite()); }
                for validity in [Validity::FirstOrder, Validity::Unbounded] {
                    if let Ok(o) = p.optimum(mu, validity) { prop_assert!((0.0..=1.0).contains(&o.waste)); }
                }
            }
        }
    }
}

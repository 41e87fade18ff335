//! Statistics of simulated runs: means with confidence intervals, quantiles, the probability to finish.

use serde::Serialize;

use super::{End, Outcome};

/// A mean and the half-width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    pub value: f64,
    pub confidence: f64,
}

impl Mean {
    /// Mean of at least one value.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let n = values.clone().count() as f64;
        let value = values.clone().sum::<f64>() / n;
        let squares = values.map(|v| (v - value) * (v - value)).sum::<f64>();
        // A single value has no variance.
        let variance = squares / (n - 1.0).max(1.0);
        Self { value, confidence: 1.96 * (variance / n).sqrt() }
    }

    /// Whether `x` lies within `widths` half-widths of the mean.
    pub fn agrees(&self, x: f64, widths: f64) -> bool {
        (self.value - x).abs() <= widths * self.confidence.max(1e-12 * self.value.abs())
    }
}

/// A probability with its 95 % confidence interval (Wilson's, which is also valid near 0 and 1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Share {
    fn of(hits: usize, of: usize) -> Self {
        let (n, p, z) = (of as f64, hits as f64 / of as f64, 1.96);
        let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
        let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
        Self {
            value: p,
            low: (middle - half).max(0.0).min(p),
            high: (middle + half).min(1.0).max(p),
        }
    }
}

/// Seconds of each part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Breakdown {
    /// Computing that no later failure undid.
    pub useful: f64,
    /// Saving, in work that no later failure undid.
    pub saving: f64,
    /// Computing and saving that a later failure undid.
    pub lost: f64,
    pub detect: f64,
    /// Waiting for the repair of a node.
    pub wait: f64,
    /// Restart, or recovery in place instead of a restart.
    pub restart: f64,
    pub recover: f64,
}

impl Breakdown {
    /// Returns the parts with their names.
    pub fn parts(&self) -> [(&'static str, f64); 7] {
        [
            ("useful", self.useful),
            ("saving", self.saving),
            ("lost", self.lost),
            ("detect", self.detect),
            ("wait", self.wait),
            ("restart", self.restart),
            ("recover", self.recover),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub runs: usize,
    pub finished: Share,
    /// Number of runs that the time limit ended.
    pub late: usize,
    /// Number of runs that ended because a group lost more members than it survives.
    pub group_lost: usize,
    /// Number of runs that ended because a node was lost while the only checkpoint was overwritten.
    pub lost_while_saving: usize,
    /// Number of runs that ended because no spare was left.
    pub no_spare: usize,
    /// Wall seconds of the finished runs; None if none finished.
    pub wall: Option<Mean>,
    /// (quantile, seconds) of the finished runs.
    pub quantiles: Vec<(f64, f64)>,
    /// Share of the wall time of finished runs that was not useful work ([`Breakdown::useful`]).
    pub waste: Option<Mean>,
    pub failures: Mean,
    /// Mean number of recoveries without a restart in a run.
    pub in_place: f64,
    /// Mean number of starts from scratch in a run.
    pub from_scratch: f64,
    /// Mean number of new checksum columns in a run.
    pub renewed: f64,
    /// Mean of each part over all runs, including runs that did not finish.
    pub breakdown: Breakdown,
}

pub const QUANTILES: [f64; 7] = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99];

/// Summarises the results of runs, of which there is at least one.
pub fn summarise(outcomes: &[Outcome]) -> Summary {
    let finished = || outcomes.iter().filter(|o| o.end == End::Finished);
    let ended = |end| outcomes.iter().filter(|o| o.end == end).count();
    let mut walls: Vec<f64> = finished().map(|o| o.wall).collect();
    walls.sort_by(f64::total_cmp);
    let n = outcomes.len() as f64;
    let mean = |f: fn(&Outcome) -> f64| outcomes.iter().map(f).sum::<f64>() / n;
    let some = !walls.is_empty();
    Summary {
        runs: outcomes.len(),
        finished: Share::of(walls.len(), outcomes.len()),
        late: ended(End::Late),
        group_lost: ended(End::GroupLost),
        lost_while_saving: ended(End::LostWhileSaving),
        no_spare: ended(End::NoSpare),
        wall: some.then(|| Mean::of(walls.iter().copied())),
        quantiles: QUANTILES
            .iter()
            .filter(|_| some)
            .map(|&q| (q, walls[((walls.len() - 1) as f64 * q).round() as usize]))
            .collect(),
        waste: some.then(|| Mean::of(finished().map(|o| 1.0 - o.time.useful / o.wall))),
        failures: Mean::of(outcomes.iter().map(|o| o.failures as f64)),
        in_place: mean(|o| o.in_place as f64),
        from_scratch: mean(|o| o.from_scratch as f64),
        renewed: mean(|o| o.renewed as f64),
        breakdown: Breakdown {
            useful: mean(|o| o.time.useful),
            saving: mean(|o| o.time.saving),
            lost: mean(|o| o.time.lost),
            detect: mean(|o| o.time.detect),
            wait: mean(|o| o.time.wait),
            restart: mean(|o| o.time.restart),
            recover: mean(|o| o.time.recover),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_is_sane_at_the_edges() {
        let all = Share::of(1000, 1000);
        assert!(all.value == 1.0 && all.high == 1.0 && all.low > 0.996 && all.low < 0.997);
        let none = Share::of(0, 10);
        assert!(none.low == 0.0 && none.high > 0.25 && none.high < 0.31);
    }

    #[test]
    fn means_know_their_error() {
        let m = Mean::of([1.0, 2.0, 3.0, 4.0].into_iter());
        assert_eq!(m.value, 2.5);
        assert!((m.confidence - 1.96 * (5.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert!(m.agrees(2.0, 1.0) && !m.agrees(4.0, 1.0));
    }
}

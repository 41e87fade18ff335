//! A race of candidates in rounds: each round measures each remaining candidate once, and then removes the slower ones.
//!
//! The speed of a machine drifts over minutes. So times are compared only within a round, as ratios to another candidate of the
//! same round.

use crate::base::statistics::{OF_NORMAL, median};

/// A race: the seconds of each candidate in each of its rounds. A number identifies a candidate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Race {
    pub(super) rounds: Vec<Vec<(usize, f64)>>,
    /// Candidates of the next round.
    pub(super) active: Vec<usize>,
    /// Candidate that is never removed, as the baseline for other candidates.
    pub(super) pinned: Option<usize>,
}

/// Relative scatter of a measurement, assumed until it can be computed.
const NOISE: f64 = 0.015;
/// Smallest number of candidates that remain after a round.
const FEWEST: usize = 3;
/// Smallest share of the candidates that remain after a round.
const PART: f64 = 1.0 / 3.0;

fn middle(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}

impl Race {
    /// Returns a race among the candidates 0 to `count` - 1.
    pub fn new(count: usize) -> Self {
        Self { rounds: Vec::new(), active: (0..count).collect(), pinned: None }
    }

    /// Adds the seconds of a round, in the order of `active`; None removes a candidate that could not be measured. If no
    /// candidate could be measured now but some could in earlier rounds, ignores the round. Returns false if the round is
    /// ignored.
    pub fn take_in(&mut self, seconds: &[Option<f64>]) -> bool {
        let round: Vec<(usize, f64)> =
            self.active.iter().zip(seconds).filter_map(|(&who, s)| Some((who, (*s)?))).collect();
        if round.is_empty() && !self.rounds.is_empty() {
            return false;
        }
        self.active = round.iter().map(|(who, _)| *who).collect();
        self.rounds.push(round);
        true
    }

    /// Returns the number of rounds in which candidate `who` was measured.
    pub fn times(&self, who: usize) -> usize {
        self.rounds.iter().filter(|round| Self::in_round(round, who).is_some()).count()
    }

    fn in_round(round: &[(usize, f64)], who: usize) -> Option<f64> {
        round.iter().find(|(other, _)| *other == who).map(|(_, s)| *s)
    }

    /// Returns the time of `who` divided by the time of `other`, for each round that measured both candidates.
    fn ratios(&self, who: usize, other: usize) -> Vec<f64> {
        self.rounds
            .iter()
            .filter_map(|round| Some(Self::in_round(round, who)? / Self::in_round(round, other)?))
            .collect()
    }

    /// Returns the median ratio of the time of `who` to the time of `other`, over the rounds that measured both. None if no round
    /// measured both.
    pub fn ratio(&self, who: usize, other: usize) -> Option<f64> {
        middle(&self.ratios(who, other))
    }

    /// Returns the fastest of the remaining candidates, by the ratio of times to the first remaining candidate. None if no
    /// candidate remains.
    pub fn best(&self) -> Option<usize> {
        let yardstick = *self.active.first()?;
        let part = |who: usize| self.ratio(who, yardstick).unwrap_or(f64::INFINITY);
        self.active.iter().copied().min_by(|a, b| part(*a).total_cmp(&part(*b)))
    }

    /// Returns all measured candidates, the best first, each with the ratio of its time to the time of the best candidate.
    pub fn ranking(&self) -> Vec<(usize, f64)> {
        let Some(best) = self.best() else { return Vec::new() };
        let mut all: Vec<usize> = self.rounds.iter().flatten().map(|(who, _)| *who).collect();
        all.sort_unstable();
        all.dedup();
        let mut ranking: Vec<(usize, f64)> =
            all.into_iter().filter_map(|who| Some((who, self.ratio(who, best)?))).collect();
        ranking.sort_by(|a, b| a.1.total_cmp(&b.1));
        ranking
    }

    /// Returns the relative scatter of a measurement, from the differences of the candidates' ratios between rounds.
    pub fn noise(&self) -> f64 {
        let Some(best) = self.best() else { return NOISE };
        let deviations: Vec<f64> = self
            .ranking()
            .iter()
            .filter(|(who, _)| *who != best)
            .flat_map(|(who, middle)| {
                let ratios = self.ratios(*who, best);
                let many = ratios.len() > 1;
                ratios.into_iter().filter(move |_| many).map(move |r| (r / middle - 1.0).abs())
            })
            .collect();
        // A ratio of two measurements has twice the variance of one measurement. With few rounds the median is too close to the
        // values, hence the factor.
        let few = 1.5;
        let known = middle(&deviations).map(|d| few * OF_NORMAL * d / std::f64::consts::SQRT_2);
        known.map_or(NOISE, |noise| noise.clamp(0.002, 0.1))
    }

    /// Removes the slower candidates. At least a third of the candidates, and at least three, remain. Up to two thirds remain if,
    /// within the noise, they are no slower than the best.
    pub fn thin(&mut self) {
        let Some(best) = self.best() else { return };
        let noise = 2.0 * self.noise() / (self.rounds.len() as f64).sqrt();
        let mut order: Vec<(usize, f64)> = self
            .active
            .iter()
            .map(|&who| (who, self.ratio(who, best).unwrap_or(f64::INFINITY)))
            .collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        let count = order.len() as f64;
        let least = FEWEST.max((count * PART).ceil() as usize);
        let most = FEWEST.max((2.0 * count * PART).floor() as usize);
        let near = order.iter().filter(|(_, ratio)| *ratio <= 1.0 + noise).count();
        order.truncate(near.clamp(least, most.max(least)));
        let pinned = self.pinned;
        self.active.retain(|who| pinned == Some(*who) || order.iter().any(|(o, _)| o == who));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

    /// Runs a race on a simulated machine whose speed drifts. Measurements scatter by `scatter`.
    fn run(truth: &[f64], scatter: f64, seed: u64) -> Race {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut uniform = move || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut race = Race::new(truth.len());
        for round in 0..4 {
            let drift = 1.0 + 0.1 * f64::from(round);
            let seconds: Vec<Option<f64>> = race
                .active
                .iter()
                .map(|&who| Some(truth[who] * drift * (1.0 + scatter * (2.0 * uniform() - 1.0))))
                .collect();
            race.take_in(&seconds);
            if round < 3 {
                race.thin();
            }
        }
        race
    }

    #[test]
    fn the_fastest_wins_a_race_without_noise_and_the_others_stand_where_they_belong() {
        let truth: Vec<f64> = (0..18).map(|i| 10.0 + f64::from(i * 7 % 18)).collect();
        let race = run(&truth, 0.0, 1);
        let best = race.best().unwrap();
        assert_eq!(truth[best], 10.0);
        let ranking = race.ranking();
        assert_eq!(ranking.len(), 18);
        for (who, ratio) in ranking {
            assert!((ratio - truth[who] / 10.0).abs() < 1e-9);
        }
        assert_eq!(race.active.len(), 3);
        assert_eq!(race.noise(), 0.002);
    }

    #[test]
    fn drift_and_scatter_cost_little() {
        let truth: Vec<f64> =
            (0..24).map(|i| 10.0 * (1.0 + 0.01 * f64::from(i * 11 % 24))).collect();
        let lost: Vec<f64> = (0..200)
            .map(|seed| truth[run(&truth, 0.02, seed).best().unwrap()] / 10.0 - 1.0)
            .collect();
        let within = lost.iter().filter(|lost| **lost < 0.02).count();
        assert!(within >= 190, "{within} of 200 within 2 %");
        let noise: Vec<f64> = (0..50).map(|seed| run(&truth, 0.02, seed).noise()).collect();
        // A uniform scatter of up to 2 % in both directions has a standard deviation of 1.15 %.
        let middle = median(&noise);
        assert!((0.005..0.025).contains(&middle), "{middle}");
    }

    #[test]
    fn a_candidate_that_cannot_be_measured_is_out() {
        let mut race = Race::new(3);
        race.take_in(&[Some(1.0), None, Some(2.0)]);
        assert_eq!(race.active, [0, 2]);
        assert_eq!(race.best(), Some(0));
        let mut none = Race::new(2);
        assert!(none.take_in(&[None, None]), "nobody can be measured at all");
        assert_eq!((none.best(), none.ranking()), (None, Vec::new()));
        none.thin();
        assert!(!race.take_in(&[None, None]), "they could be before");
        assert_eq!((race.active.clone(), race.best(), race.rounds.len()), (vec![0, 2], Some(0), 1));
    }
}

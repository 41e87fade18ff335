//! Search for good parameters in three stages, each of them a race. The first stage compares shapes of the run (ranks, grid,
//! block size). The second stage changes single choices of the best shape. The third stage measures the best candidates of both
//! stages with more care. The time budget determines the number of candidates.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::estimate::Care;
use super::race::Race;
use super::space::{Candidate, Domain};

/// Estimated seconds of a candidate's whole factorisation, from one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub seconds: f64,
    /// Relative error of the model ([`super::estimate::off`]); None unless three stretches were measured.
    pub off: Option<f64>,
}

/// Stages of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Shape,
    Choices,
    Final,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => "ranks, grid and block size",
            Self::Choices => "single choices",
            Self::Final => "the best against each other",
        })
    }
}

/// Interface through which the search measures candidates.
pub trait Lab {
    /// Measures each candidate of `round` once. The result is None for a candidate that cannot be run.
    ///
    /// # Errors
    /// The reason why no further candidate can be measured.
    fn measure(
        &mut self,
        stage: Stage,
        round: &[&Candidate],
        care: Care,
    ) -> Result<Vec<Option<Found>>, String>;

    /// Returns the seconds spent on measurements so far.
    fn spent(&self) -> f64;
}

/// A candidate, and the ratio of its time to the time of the best candidate of its stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    pub candidate: Candidate,
    pub ratio: f64,
}

/// A candidate that differs from the best shape in one choice, and the ratio of its time to the time of the best shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    pub what: String,
    pub candidate: Candidate,
    pub ratio: f64,
    pub rounds: usize,
}

/// Result of the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    pub best: Candidate,
    /// Estimated seconds of the best candidate's factorisation, from measurements of the third stage.
    pub seconds: f64,
    /// Relative uncertainty of `seconds`: two standard deviations of the mean. It is valid for this machine in its present state.
    pub uncertainty: f64,
    /// Largest relative error of the model in the measurements of the best candidate; None if it is not known.
    pub off: Option<f64>,
    /// Measured shapes, the best first.
    pub shapes: Vec<Placed>,
    /// Number of all possible shapes, measured or not.
    pub shapes_possible: usize,
    /// Best shape, whose single choices were changed in the second stage.
    pub shape: Candidate,
    pub choices: Vec<Choice>,
    pub choices_possible: usize,
    /// Candidates of the third stage, the best first.
    pub finalists: Vec<Placed>,
    pub rounds: usize,
    /// Relative scatter of a single measurement.
    pub noise: f64,
    pub measured: usize,
    pub spent: f64,
}

/// Name of the one choice in which a candidate differs from a shape, and the candidate.
type Variation = (&'static str, Candidate);

/// Share of the budget that is spent at the end of the first stage.
const SHAPE_ENDS: f64 = 0.5;
/// Share of the budget that is spent at the end of the second stage.
const CHOICES_END: f64 = 0.78;
/// Average number of times that a race measures each of the candidates with which it begins.
const TIMES: f64 = 1.9;
/// Largest number of rounds of a race.
const ROUNDS: usize = 4;

struct Search<'a, L> {
    lab: &'a mut L,
    budget: f64,
    measured: usize,
}

impl<L: Lab> Search<'_, L> {
    fn measure(
        &mut self,
        stage: Stage,
        round: &[&Candidate],
        care: Care,
    ) -> Result<Vec<Option<Found>>, String> {
        let found = self.lab.measure(stage, round, care)?;
        self.measured += found.iter().flatten().count();
        Ok(found)
    }

    /// Returns the number of candidates for a race that ends when the share `part` of the budget is spent.
    fn fit(&self, part: f64) -> usize {
        let each = self.lab.spent() / self.measured.max(1) as f64;
        let left = part * self.budget - self.lab.spent();
        (left / (TIMES * each.max(1e-9))).max(0.0) as usize
    }

    fn race(
        &mut self,
        stage: Stage,
        mut race: Race,
        all: &[&Candidate],
        ends: f64,
    ) -> Result<Race, String> {
        loop {
            let round: Vec<&Candidate> = race.active.iter().map(|&one| all[one]).collect();
            let found = self.measure(stage, &round, Care::Rough)?;
            let seconds: Vec<Option<f64>> = found.iter().map(|f| f.map(|f| f.seconds)).collect();
            let counts = race.take_in(&seconds);
            let over = self.lab.spent() >= ends * self.budget;
            if !counts || over || race.rounds.len() == ROUNDS || race.active.len() < 2 {
                return Ok(race);
            }
            race.thin();
        }
    }
}

impl<L: Lab> Search<'_, L> {
    /// Races as many shapes as the budget allows, and returns the best and the ranking.
    fn shapes(&mut self, shapes: &[Candidate]) -> Result<Shapes, String> {
        let likely = shapes
            .first()
            .ok_or("there is nothing to choose from: no grid fits the number of ranks")?;
        // The first measurement shows the cost of each further one. Costs that arise only once are part of the first measurement.
        self.measure(Stage::Shape, &[likely], Care::Rough)?;
        let entered = self.fit(SHAPE_ENDS).clamp(shapes.len().min(4), shapes.len());
        let all: Vec<&Candidate> = shapes.iter().take(entered).collect();
        let race = self.race(Stage::Shape, Race::new(entered), &all, SHAPE_ENDS)?;
        let best = race.best().ok_or("none of the candidates could be run")?;
        // A second candidate that is no slower than the best within the noise enters the final race.
        let doubt = 1.0 + 2.0 * race.noise() / (race.rounds.len() as f64).sqrt();
        let near = |one: &usize| {
            *one != best && race.ratio(*one, best).is_some_and(|ratio| ratio <= doubt)
        };
        let second = race.active.iter().copied().find(near);
        Ok(Shapes { entered, best, second, placed: placed(&race, &all) })
    }

    /// Compares the best shape with as many single choices as the budget allows. Returns the choices, and the variations that are
    /// clearly better than the shape, the best first.
    fn choices(
        &mut self,
        shape: &Candidate,
        variations: &[Variation],
    ) -> Result<(Vec<Choice>, Vec<Variation>), String> {
        let count = self.fit(CHOICES_END).min(variations.len() + 1);
        let tried = &variations[..count.saturating_sub(1)];
        let (mut choices, mut better) = (Vec::new(), Vec::<Variation>::new());
        if tried.is_empty() {
            return Ok((choices, better));
        }
        let all: Vec<&Candidate> =
            std::iter::once(shape).chain(tried.iter().map(|(_, one)| one)).collect();
        let race = Race { pinned: Some(0), ..Race::new(all.len()) };
        let race = self.race(Stage::Choices, race, &all, CHOICES_END)?;
        let mut gains: Vec<(f64, usize)> = Vec::new();
        for (at, (what, one)) in tried.iter().enumerate() {
            let Some(ratio) = race.ratio(at + 1, 0) else { continue };
            let rounds = race.times(at + 1);
            choices.push(Choice {
                what: (*what).to_owned(),
                candidate: one.clone(),
                ratio,
                rounds,
            });
            let clearly = 1.0 - (race.noise() / (rounds as f64).sqrt()).max(0.002);
            if ratio < clearly {
                gains.push((ratio, at));
            }
        }
        gains.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, at) in gains {
            if better.iter().all(|(what, _)| *what != tried[at].0) {
                better.push(tried[at].clone());
            }
        }
        Ok((choices, better))
    }

    /// Measures the finalists with care until the budget is spent. Returns the race, and the measurements of each finalist.
    fn finals(&mut self, all: &[&Candidate]) -> Result<(Race, Vec<Vec<Found>>), String> {
        let mut race = Race::new(all.len());
        let mut found: Vec<Vec<Found>> = vec![Vec::new(); all.len()];
        loop {
            let before = self.lab.spent();
            let active = race.active.clone();
            let round: Vec<&Candidate> = active.iter().map(|&one| all[one]).collect();
            let measured = self.measure(Stage::Final, &round, Care::Fine)?;
            let seconds: Vec<Option<f64>> = measured.iter().map(|f| f.map(|f| f.seconds)).collect();
            let counts = race.take_in(&seconds);
            for (one, measured) in active.iter().zip(measured) {
                found[*one].extend(measured);
            }
            let round = self.lab.spent() - before;
            if !counts
                || race.rounds.len() == ROUNDS
                || self.lab.spent() + round > self.budget
                || race.active.is_empty()
            {
                return Ok((race, found));
            }
        }
    }
}

/// Result of the race of shapes. `best` and `second` are indices of shapes.
struct Shapes {
    entered: usize,
    best: usize,
    /// Index of another shape that is, within the noise, no slower than the best.
    second: Option<usize>,
    placed: Vec<Placed>,
}

/// Returns the measured candidates of a race, the best first.
fn placed(race: &Race, all: &[&Candidate]) -> Vec<Placed> {
    let placed = |&(at, ratio): &(usize, f64)| Placed { candidate: all[at].clone(), ratio };
    race.ranking().iter().map(placed).collect()
}

/// Searches `domain` for about `budget` seconds.
///
/// # Errors
/// Nothing could be measured, or `lab` reports that no further candidate can be measured.
pub fn search(domain: &Domain, budget: f64, lab: &mut impl Lab) -> Result<Tuned, String> {
    let mut search = Search { lab, budget, measured: 0 };
    let shapes = domain.first();
    let raced = search.shapes(&shapes)?;
    let shape = &shapes[raced.best];
    let mut variations = domain.variations(shape);
    variations.retain(|(_, one)| shapes.iter().take(raced.entered).all(|other| other != one));
    let (choices, better) = search.choices(shape, &variations)?;
    let combined = Domain::combined(shape, &better);
    let best_choices = better.iter().take(1).flat_map(|(_, one)| [&combined, one]);
    let mut finalists = vec![shape];
    for candidate in best_choices.chain(raced.second.map(|second| &shapes[second])) {
        if !finalists.contains(&candidate) {
            finalists.push(candidate);
        }
    }
    let (race, found) = search.finals(&finalists)?;
    let best = race.best().ok_or("none of the best candidates could be run again")?;
    let of_best = &found[best];
    let count = of_best.len() as f64;
    let seconds = of_best.iter().map(|f| f.seconds).sum::<f64>() / count;
    // The uncertainty includes the noise between candidates of a round, and the drift of the machine between rounds.
    let spread = of_best.iter().map(|f| (f.seconds / seconds - 1.0).powi(2)).sum::<f64>();
    let own = (spread / (of_best.len() - 1).max(1) as f64).sqrt();
    let noise = race.noise().max(own);
    Ok(Tuned {
        best: finalists[best].clone(),
        seconds,
        uncertainty: 2.0 * noise / count.sqrt(),
        off: of_best.iter().filter_map(|f| f.off).max_by(|a, b| a.abs().total_cmp(&b.abs())),
        shapes: raced.placed,
        shapes_possible: shapes.len(),
        shape: shape.clone(),
        choices,
        choices_possible: variations.len(),
        finalists: placed(&race, &finalists),
        rounds: race.rounds.len(),
        noise,
        measured: search.measured,
        spent: search.lab.spent(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::{Bcast, Fact};
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

    /// Returns the seconds of a candidate on a simulated machine.
    fn truth(one: &Candidate) -> f64 {
        let test = &one.test;
        let mut seconds = 10.0;
        seconds *= 1.0 + ((test.nb as f64 - 224.0) / 700.0).powi(2);
        seconds *= match (test.p, test.q) {
            (1, 1) => 1.06,
            (1, 4) => 1.00,
            (2, 2) => 1.02,
            _ => 1.10,
        };
        seconds *= if test.depth == 1 { 1.0 } else { 1.05 };
        seconds *= if test.bcast == Bcast::LongM { 0.98 } else { 1.0 };
        seconds *= if test.pfact == Fact::Left { 0.985 } else { 1.0 };
        seconds
    }

    struct Simulated {
        random: Xoshiro256PlusPlus,
        spent: f64,
        scatter: f64,
        asked: usize,
        /// Number of the first measurement that fails; all later ones fail, too.
        fails_at: usize,
        broken: fn(&Candidate) -> bool,
        /// Number of rounds with care that succeed.
        careful: usize,
    }

    impl Simulated {
        fn new(seed: u64, scatter: f64) -> Self {
            let random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let (fails_at, broken, careful) = (usize::MAX, |_: &Candidate| false, usize::MAX);
            Self { random, spent: 0.0, scatter, asked: 0, fails_at, broken, careful }
        }
    }

    impl Lab for Simulated {
        fn measure(
            &mut self,
            _stage: Stage,
            round: &[&Candidate],
            care: Care,
        ) -> Result<Vec<Option<Found>>, String> {
            let mut found = Vec::new();
            if care == Care::Fine {
                if self.careful == 0 {
                    return Ok(vec![None; round.len()]);
                }
                self.careful -= 1;
            }
            for one in round {
                self.asked += 1;
                if self.asked > self.fails_at {
                    return Err("the launcher is gone".into());
                }
                let uniform = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                let drift = 1.0 + 0.1 * (self.spent / 200.0).sin();
                self.spent += if care == Care::Rough { 1.5 } else { 3.0 };
                let seconds = truth(one) * drift * (1.0 + self.scatter * (2.0 * uniform - 1.0));
                let off = (care == Care::Fine).then_some(0.01);
                found.push((!(self.broken)(one)).then_some(Found { seconds, off }));
            }
            Ok(found)
        }

        fn spent(&self) -> f64 {
            self.spent
        }
    }

    /// Seconds of the best candidate: the best shape with the better broadcast and panel.
    const BEST: f64 = 10.0 * 0.98 * 0.985;

    #[test]
    fn it_finds_a_good_one_within_its_budget() {
        let mut good = 0;
        for seed in 0..100 {
            let mut lab = Simulated::new(seed, 0.01);
            let tuned = search(&Domain::of_cores(4), 180.0, &mut lab).unwrap();
            assert!(tuned.spent < 190.0, "{}", tuned.spent);
            assert_eq!(tuned.spent, lab.spent);
            assert_eq!(tuned.measured, lab.asked);
            good += usize::from(truth(&tuned.best) < 1.02 * BEST);
            assert!(tuned.uncertainty > 0.0);
            // The drift of the machine is included, hence the wide bound.
            assert!((tuned.seconds / truth(&tuned.best) - 1.0).abs() < 0.13);
            assert_eq!(tuned.off, Some(0.01));
        }
        assert!(good >= 95, "{good} of 100 within 2 % of the best");
    }

    #[test]
    fn without_noise_it_says_what_mattered() {
        let tuned = search(&Domain::of_cores(4), 400.0, &mut Simulated::new(1, 0.0)).unwrap();
        assert_eq!(tuned.shapes.len(), tuned.shapes_possible);
        assert_eq!(tuned.choices.len(), tuned.choices_possible);
        assert_eq!((tuned.best.test.bcast, tuned.best.test.pfact), (Bcast::LongM, Fact::Left));
        let depth = tuned.choices.iter().find(|c| c.what == "DEPTH").unwrap();
        assert!((depth.ratio - 1.05).abs() < 0.06, "{}", depth.ratio);
        assert_eq!(tuned.finalists[0].candidate, tuned.best);
    }

    #[test]
    fn a_small_budget_still_ends_with_an_answer() {
        for budget in [0.0, 1.0, 10.0, 30.0] {
            let tuned = search(&Domain::of_cores(4), budget, &mut Simulated::new(7, 0.01)).unwrap();
            assert!(tuned.spent < budget + 40.0, "{budget}: {}", tuned.spent);
            assert!(tuned.rounds >= 1);
        }
    }

    #[test]
    fn candidates_that_cannot_be_run_are_left_out() {
        let mut lab = Simulated::new(3, 0.01);
        lab.broken = |one| one.test.p * one.test.q == 1;
        let tuned = search(&Domain::of_cores(4), 180.0, &mut lab).unwrap();
        assert!(tuned.best.test.p * tuned.best.test.q > 1);
        lab.broken = |_| true;
        assert!(search(&Domain::of_cores(4), 180.0, &mut lab).is_err());
    }

    #[test]
    fn a_candidate_measured_with_care_stands_after_later_losses() {
        let mut lab = Simulated::new(3, 0.01);
        lab.careful = 1;
        let tuned = search(&Domain::of_cores(4), 400.0, &mut lab).unwrap();
        assert_eq!((tuned.rounds, tuned.measured), (1, lab.asked));
        assert_eq!(tuned.finalists[0].candidate, tuned.best);
        lab.careful = 0;
        assert_eq!(
            search(&Domain::of_cores(4), 400.0, &mut lab).unwrap_err(),
            "none of the best candidates could be run again"
        );
    }

    #[test]
    fn a_lab_that_is_lost_ends_it() {
        let mut lab = Simulated::new(3, 0.01);
        lab.fails_at = 10;
        assert_eq!(
            search(&Domain::of_cores(4), 180.0, &mut lab).unwrap_err(),
            "the launcher is gone"
        );
        let nothing = Domain { grids: vec![(3, 5)], ..Domain::of_cores(4) };
        assert!(search(&nothing, 180.0, &mut Simulated::new(1, 0.0)).is_err());
    }
}

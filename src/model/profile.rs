//! A protected run over time: the time of each boundary, the cost of a save there, and the moments of saves. Planner and
//! simulation both use this module, so they agree about the run.
//!
//! With r rows left, the time left is alpha r^3 + beta r^2, with alpha and beta from the efficiency model. The trailing submatrix
//! to save has r^2 elements. After half of the time the trailing submatrix has 63 % of the matrix, after nine tenths 22 %.

use super::error::{Result, at_least, finite, non_negative, positive, refused};
use super::fit::RateModel;
use super::interval::{self, Segment};
use super::memory::Scope;
use crate::base::bisection::last_that_holds;

/// A factorisation over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub n: u64,
    pub nb: u64,
    pub rate: RateModel,
}

impl Run {
    pub fn new(n: u64, nb: u64, rate: RateModel) -> Result<Self> {
        at_least("the order N", n, 1, "at least 1")?;
        at_least("the block size NB", nb, 1, "at least 1")?;
        let run = Self { n, nb, rate };
        positive("the run time", run.seconds()?)?;
        Ok(run)
    }

    /// Number of boundaries, one for each block column.
    pub fn boundaries(&self) -> u64 {
        self.n.div_ceil(self.nb)
    }

    /// Rows of the corner at boundary `k`.
    pub fn corner(&self, k: u64) -> u64 {
        self.n.saturating_sub(k.saturating_mul(self.nb))
    }

    /// Seconds of the whole factorisation, undisturbed and unprotected.
    pub fn seconds(&self) -> Result<f64> {
        self.rate.seconds(self.n as f64)
    }

    /// Seconds of computation up to boundary `k`.
    pub fn time_at(&self, k: u64) -> Result<f64> {
        Ok((self.seconds()? - self.rate.seconds(self.corner(k) as f64)?).max(0.0))
    }

    /// Returns the first boundary that is at least `seconds` of computation after boundary `k`.
    fn boundary_after(&self, k: u64, seconds: f64) -> Result<u64> {
        let target = self.time_at(k)? + seconds;
        let before = last_that_holds(k, self.boundaries(), |at| Ok(self.time_at(at)? < target))?;
        Ok(before + 1)
    }
}

/// Cost of a save and of a restoration, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaveCost {
    /// Seconds to encode the whole matrix, before the new state is safe.
    pub encode: f64,
    /// Seconds to copy the whole matrix, after the new state is safe.
    pub flush: f64,
    /// Seconds in each save to complete pending updates and to pass the barriers.
    pub fixed: f64,
    /// Seconds to rebuild lost data and to copy the state back.
    pub recover: f64,
    pub scope: Scope,
}

impl SaveCost {
    fn check(&self) -> Result<()> {
        non_negative("the encoding time", self.encode)?;
        non_negative("the flushing time", self.flush)?;
        non_negative("the fixed time of a save", self.fixed)?;
        non_negative("the recovery time", self.recover)?;
        Ok(())
    }

    /// Seconds to encode and to flush when the corner has the share `x` of the rows.
    pub fn at(&self, x: f64) -> (f64, f64) {
        let share = self.scope.share(x);
        (self.fixed + self.encode * share, self.flush * share)
    }
}

/// Rule for the moments of saves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// The optimal interval for this MTBF of the system and the cost of the next save. As the trailing submatrix shrinks, saves
    /// become cheaper and more frequent.
    Auto {
        mtbf: f64,
    },
    Seconds(f64),
    Never,
}

/// A run divided into segments. The last segment has no save.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub(super) segments: Vec<Segment>,
}

/// Largest number of saves in a run. A larger number is taken for an error in the inputs.
const MOST_SAVES: usize = 2_000_000;

fn too_many() -> Result<Schedule> {
    refused(format!(
        "more than {MOST_SAVES} saves in one run: the interval is too short for the length of the run"
    ))
}

impl Schedule {
    /// Divides a run into segments by the rule `every`.
    pub fn of(run: &Run, cost: &SaveCost, every: Every) -> Result<Self> {
        cost.check()?;
        let last = run.boundaries();
        let n = run.n as f64;
        let total = run.seconds()?;
        let mut segments = Vec::new();
        let mut k = 0;
        while k < last {
            let behind = run.time_at(k)?;
            let interval = match every {
                Every::Never => f64::INFINITY,
                Every::Seconds(s) => positive("the interval between saves", s)?,
                Every::Auto { mtbf } => {
                    let (encode, flush) = cost.at(run.corner(k) as f64 / n);
                    interval::optimal(encode + flush, mtbf)?
                }
            };
            let ends = total - behind <= interval;
            let next = if ends { last } else { run.boundary_after(k, interval)? };
            let work = run.time_at(next)? - behind;
            // At the last boundary the factorisation is complete, so there is no save.
            let (encode, flush) =
                if next < last { cost.at(run.corner(next) as f64 / n) } else { (0.0, 0.0) };
            segments.push(Segment { work, encode, flush });
            if next < last && segments.len() > MOST_SAVES {
                return too_many();
            }
            k = next;
        }
        Ok(Self { segments })
    }

    /// Returns a schedule with saves of constant cost every `interval` seconds of work, for an application other than HPL.
    pub fn periodic(work: f64, interval: f64, encode: f64, flush: f64) -> Result<Self> {
        positive("the work", work)?;
        positive("the interval between saves", interval)?;
        non_negative("the encoding time", encode)?;
        non_negative("the flushing time", flush)?;
        // A remainder below a billionth of an interval is rounding, not work.
        let count = (work / interval - 1e-9).ceil().max(1.0);
        if count > MOST_SAVES as f64 {
            return too_many();
        }
        let count = count as usize;
        let mut segments = vec![Segment { work: interval, encode, flush }; count];
        segments[count - 1] =
            Segment { work: work - interval * (count - 1) as f64, encode: 0.0, flush: 0.0 };
        Ok(Self { segments })
    }

    pub fn saves(&self) -> usize {
        self.segments.len().saturating_sub(1)
    }

    /// Seconds spent on all saves when nothing fails.
    pub fn saving(&self) -> f64 {
        self.segments.iter().map(|s| s.encode + s.flush).sum()
    }

    pub fn work(&self) -> f64 {
        self.segments.iter().map(|s| s.work).sum()
    }

    /// Wall seconds when nothing fails.
    pub fn undisturbed(&self) -> f64 {
        self.work() + self.saving()
    }

    /// Expected wall seconds with exponential failures of system MTBF `mtbf`, exact as long as every group survives its losses. A
    /// failure before the first save costs `down_fresh` (start from scratch), a later one `down`.
    pub fn expected(&self, down_fresh: f64, down: f64, mtbf: f64) -> Result<f64> {
        let mut sum = 0.0;
        for (i, segment) in self.segments.iter().enumerate() {
            // A failure during the first flush does not start from scratch, since the new state is already sealed.
            let tries = Segment { flush: 0.0, ..*segment };
            let flush = Segment { work: 0.0, encode: 0.0, ..*segment };
            sum += interval::segment_time(tries, if i == 0 { down_fresh } else { down }, mtbf)?;
            sum += interval::segment_time(flush, down, mtbf)?;
        }
        finite("the expected time", sum)
    }

    /// Expected wall seconds, as [`Schedule::expected`], for methods whose new state is safe only after the flush.
    pub fn expected_sealing_late(&self, down_fresh: f64, down: f64, mtbf: f64) -> Result<f64> {
        let late = |s: &Segment| Segment { encode: s.encode + s.flush, flush: 0.0, ..*s };
        let segments = self.segments.iter().map(late).collect();
        Self { segments }.expected(down_fresh, down, mtbf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(n: u64, nb: u64) -> Run {
        Run::new(n, nb, RateModel::new(1e12, 5_000.0).unwrap()).unwrap()
    }

    const COST: SaveCost =
        SaveCost { encode: 10.0, flush: 2.0, fixed: 0.1, recover: 15.0, scope: Scope::Corner };

    #[test]
    fn half_way_through_63_percent_of_the_corner_is_left() {
        let r = Run::new(1_000_000, 100, RateModel::new(1e15, 0.0).unwrap()).unwrap();
        let k = r.boundary_after(0, r.seconds().unwrap() / 2.0).unwrap();
        let x = r.corner(k) as f64 / 1e6;
        assert!((x * x - 0.63).abs() < 0.001);
    }

    #[test]
    fn automatic_saves_get_closer_and_cheaper() {
        let r = run(400_000, 256);
        let s = Schedule::of(&r, &COST, Every::Auto { mtbf: 3_600.0 }).unwrap();
        assert!(s.saves() > 10);
        for pair in s.segments[..s.saves()].windows(2) {
            assert!(pair[1].encode < pair[0].encode);
        }
        assert!(s.segments[s.saves() - 1].work < s.segments[0].work);
        // With saves even in rows, saving the whole matrix costs three times as much as saving the corner (eq. 20).
        let whole = SaveCost { scope: Scope::Whole, fixed: 0.0, ..COST };
        let corner = SaveCost { fixed: 0.0, ..COST };
        let saving = |cost: &SaveCost| -> f64 {
            let each = (4..r.boundaries()).step_by(4).map(|k| cost.at(r.corner(k) as f64 / 4e5));
            each.map(|(encode, flush)| encode + flush).sum()
        };
        let ratio = saving(&whole) / saving(&corner);
        assert!((ratio - 3.0).abs() < 0.03, "{ratio}");
        // With saves even in time it costs 5/3 as much, since most of the time is spent while the corner is large.
        let r = run(400_000, 8);
        let even = Every::Seconds(100.0);
        let ratio = Schedule::of(&r, &whole, even).unwrap().saving()
            / Schedule::of(&r, &corner, even).unwrap().saving();
        assert!((ratio - 5.0 / 3.0).abs() < 0.02, "{ratio}");
    }

    proptest! {
        // A run with thousands of saves takes long to divide, so there are fewer cases.
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn nothing_is_lost_or_made(n in 1u64..3_000_000, nb in 1u64..1000, interval in 0.5..1e4f64, mtbf in 10.0..1e8f64) {
            let r = run(n, nb);
            for every in [Every::Never, Every::Seconds(interval), Every::Auto { mtbf }] {
                let Ok(s) = Schedule::of(&r, &COST, every) else { continue };
                prop_assert!((s.work() / r.seconds().unwrap() - 1.0).abs() < 1e-9);
                prop_assert!(s.segments.iter().all(|g| g.work >= 0.0));
                if let Ok(t) = s.expected(10.0, 20.0, mtbf) {
                    prop_assert!(t >= s.undisturbed() * (1.0 - 1e-9));
                    if let Ok(late) = s.expected_sealing_late(10.0, 20.0, mtbf) {
                        // Late sealing repeats more work. Only a failure in the short first flush may cost less.
                        prop_assert!(late >= t * (1.0 - 1e-9) - 12.0);
                    }
                }
            }
        }
    }
}

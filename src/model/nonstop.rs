//! Going on without a restart: in place, where a spare rank takes the dead one's position and the last save is restored,
//! and by hot replacement, where columns of checksums take the places of lost process columns (*hot-replacement*,
//! sections III and V; there it is one column).
//!
//! Both are there for the loss of a process; a node that goes takes the whole job with it (docs/NONSTOP.md). So every
//! answer here needs the share of failures that end a process and leave its node. The closed forms are exact for
//! exponential failures; the simulation is held against them.

use super::ModelError;
use super::encoding::{Code, Link, tree};
use super::error::{Result, at_least, finite, fraction, non_negative, positive};
use super::interval;
use crate::lu::SUMS_MAX;
use serde::Serialize;

/// From the death of a process until all go on without a restart, where nobody says otherwise. A few ranks on one machine need
/// 0.01 to 0.2 s from the notice on; that a process is gone its node's daemon tells at once.
pub const IN_PLACE_S: f64 = 1.0;

/// Process columns that compute, and those beside them that keep checksums. So many of all of them may be lost as keep checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Columns {
    pub q: u64,
    pub sums: u64,
}

impl Columns {
    /// As many as the program can keep.
    pub const SUMS_MAX: u64 = SUMS_MAX as u64;

    fn check(self) -> Result<()> {
        at_least("the number of process columns Q", self.q, 1, "at least 1")?;
        at_least("the number of checksum columns R", self.sums, 1, "at least 1")?;
        if self.sums > Self::SUMS_MAX {
            return Err(ModelError::Data(format!(
                "the number of checksum columns R must be at most {}, but it is {}",
                Self::SUMS_MAX,
                self.sums
            )));
        }
        Ok(())
    }

    /// All of them, in whole numbers where there are so many.
    pub fn all(self) -> u64 {
        self.q.saturating_add(self.sums)
    }

    /// Memory and work of P x (Q+R) ranks for each unit that the P x Q alone would need: (Q+R)/Q, both.
    pub fn factor(self) -> Result<f64> {
        self.check()?;
        Ok((self.q as f64 + self.sums as f64) / self.q as f64)
    }

    /// So many of them, in words.
    pub fn told(sums: u64) -> String {
        if sums == 1 { "a column".to_owned() } else { format!("{sums} columns") }
    }

    /// How many process columns may be lost, in words.
    pub fn borne(sums: u64) -> String {
        match sums {
            1 => "one process column".to_owned(),
            sums => format!("{sums} process columns"),
        }
    }
}

/// Failures of the whole system, and how many of them are a process's alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failing {
    pub mtbf: f64,
    /// Share that ends a process and leaves its node.
    pub processes: f64,
}

impl Failing {
    fn check(&self) -> Result<()> {
        positive("the MTBF of the system", self.mtbf)?;
        fraction("the share of failures that end only a process", self.processes)?;
        Ok(())
    }

    /// Mean seconds until the run is up again after a failure that costs `down`, where a further failure meanwhile
    /// begins that anew.
    fn until_up(&self, down: f64) -> Result<f64> {
        finite("the time until the run is up", self.mtbf * (down / self.mtbf).exp_m1())
    }

    /// What each failure costs, as one number for the formulas that know only one: `in_place` seconds if it was a
    /// process, `restart` if it was a node. While the run goes on in place a process that fails begins that
    /// anew, a node that fails is a restart; during a restart every failure begins the restart anew.
    ///
    /// With F = 1 - e^(-in_place/M), s the share and B_r = M (e^(restart/M) - 1) the mean time down is
    /// B = s B_p + (1-s) B_r with B_p = F (M + (1-s) B_r)/(1 - s F), and the number is M ln(1 + B/M).
    pub fn mean_down(&self, in_place: f64, restart: f64) -> Result<f64> {
        self.check()?;
        non_negative("the time to go on in place", in_place)?;
        non_negative("the time of a restart", restart)?;
        let Failing { mtbf, processes } = *self;
        if processes == 0.0 {
            // Not through the exponential and back: what is asked for must come out to the last bit.
            return Ok(restart);
        }
        let by_restart = self.until_up(restart)?;
        let struck = -(-in_place / mtbf).exp_m1();
        let in_place =
            struck * (mtbf + (1.0 - processes) * by_restart) / (1.0 - processes * struck);
        let down = processes * in_place + (1.0 - processes) * by_restart;
        finite("the time a failure costs", mtbf * (down / mtbf).ln_1p())
    }
}

/// A run with columns of checksums. Seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replacement {
    pub columns: Columns,
    /// The whole work, on these ranks, undisturbed.
    pub work: f64,
    /// What each loss that is borne costs.
    pub replace: f64,
    /// From a loss that is not borne until the run has begun anew.
    pub anew: f64,
}

/// One number for each count of process columns that are lost, or for each two of such counts.
type Row = [f64; SUMS_MAX + 1];
type Square = [Row; SUMS_MAX + 1];

fn product(a: &Square, b: &Square) -> Square {
    let mut c = [Row::default(); SUMS_MAX + 1];
    for (c, a) in c.iter_mut().zip(a) {
        for (a, b) in a.iter().zip(b) {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}

/// e^(rates x time), and its integral from 0 to `time`. `fastest`: the largest of the rates.
///
/// By its series for a part of the time in which little happens, doubled until it is the whole: of chances nothing is ever
/// subtracted from anything like it.
fn over_time(rates: &Square, fastest: f64, time: f64) -> (Square, Square) {
    const TERMS: u32 = 16;
    let doublings = (2.0 * fastest * time).log2().ceil().max(0.0) as i32;
    let part = time * 0.5f64.powi(doublings);
    let mut term = [Row::default(); SUMS_MAX + 1];
    (0..=SUMS_MAX).for_each(|i| term[i][i] = 1.0);
    let (mut come, mut spent) = (term, term.map(|row| row.map(|x| x * part)));
    for n in 1..=TERMS {
        term = product(&term, rates).map(|row| row.map(|x| x * part / f64::from(n)));
        for (i, row) in term.iter().enumerate() {
            for (j, x) in row.iter().enumerate() {
                come[i][j] += x;
                spent[i][j] += x * part / f64::from(n + 1);
            }
        }
    }
    for _ in 0..doublings {
        let later = product(&come, &spent);
        for (spent, later) in spent.iter_mut().zip(&later) {
            spent.iter_mut().zip(later).for_each(|(spent, later)| *spent += later);
        }
        come = product(&come, &come);
    }
    (come, spent)
}

impl Replacement {
    /// The chance that one try comes to the end, and how long it lasts on average, whichever way it ends.
    ///
    /// With j process columns lost the next one is lost at the rate b_j = (s/M) (Q+R-j)/(Q+R), whosever it is: what is left of
    /// the lost ones stands idle. The first R are borne; the next, and a node at any time, ends the try. So failures that count
    /// come at the rate a_j = (1-s)/M + b_j. Each loss that is borne costs t seconds in which no work is done; the next loss may
    /// strike within them, with chance p_j = b_j (1 - e^(-a_j t))/a_j, and they begin anew. By the time of the work alone j
    /// columns lost become k > j at the rate b_j p_(j+1) .. p_(k-1) e^(-a_k t).
    fn one_try(&self, failing: Failing) -> Result<(f64, f64)> {
        failing.check()?;
        self.columns.check()?;
        positive("the work of the run", self.work)?;
        non_negative("the time of a replacement", self.replace)?;
        non_negative("the time to begin anew", self.anew)?;
        let Replacement { columns: Columns { q, sums }, work, replace, .. } = *self;
        let fastest = 1.0 / failing.mtbf;
        finite("how often a run fails", 2.0 * fastest * work)?;
        let (all, last) = (q as f64 + sums as f64, sums as usize);
        let lost = |j: usize| failing.processes * fastest * (all - j as f64) / all;
        let strikes = |j: usize| (1.0 - failing.processes) * fastest + lost(j);
        let through = |j: usize| (-strikes(j) * replace).exp();
        let within = |j: usize| -(-strikes(j) * replace).exp_m1() / strikes(j);
        let mut rates = [Row::default(); SUMS_MAX + 1];
        // Seconds without work that a second of work entails.
        let mut idle = Row::default();
        for (j, (row, idle)) in rates.iter_mut().zip(&mut idle).enumerate().take(last + 1) {
            row[j] = -strikes(j);
            let mut comes = lost(j);
            for (k, rate) in row.iter_mut().enumerate().take(last + 1).skip(j + 1) {
                *rate = comes * through(k);
                *idle += comes * within(k);
                comes *= lost(k) * within(k);
            }
        }
        let (come, spent) = over_time(&rates, fastest, work);
        let ends = come[0].iter().sum();
        let lasts = spent[0].iter().zip(idle).map(|(spent, idle)| spent * (1.0 + idle)).sum();
        Ok((ends, lasts))
    }

    /// Probability that a run ends without having begun anew.
    pub fn finishes(&self, failing: Failing) -> Result<f64> {
        Ok(self.one_try(failing)?.0.min(1.0))
    }

    /// Expected wall seconds, each time begun anew when a loss is not borne.
    pub fn expected(&self, failing: Failing) -> Result<f64> {
        let (ends, lasts) = self.one_try(failing)?;
        let anew = failing.until_up(self.anew)?;
        finite("the expected time", (lasts + (1.0 - ends) * anew) / ends)
    }
}

/// What the ways to go on are compared for: a run and what its machine takes for each. Seconds. The answers are shares of
/// the fault-free rate, in time alone: that one way leaves room for a larger matrix than another is not in them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ways {
    /// The work on all ranks, undisturbed and without checksums.
    pub work: f64,
    pub save: f64,
    /// Detection and restart.
    pub again: f64,
    pub recover: f64,
    /// Until all go on without a restart, the recovery not counted.
    pub in_place: f64,
}

impl Ways {
    /// Saves at the optimal interval, each failure a restart.
    pub fn by_restarts(&self, mtbf: f64) -> Result<f64> {
        interval::share_left(self.save, self.again + self.recover, mtbf)
    }

    /// Saves at the optimal interval, the failures of processes gone on from in place.
    pub fn in_place(&self, failing: Failing) -> Result<f64> {
        let (in_place, restart) = (self.in_place + self.recover, self.again + self.recover);
        interval::share_left(self.save, failing.mean_down(in_place, restart)?, failing.mtbf)
    }

    /// Columns of checksums beside those that compute.
    pub fn by_checksums(&self, columns: Columns, failing: Failing) -> Result<f64> {
        let work = self.work * columns.factor()?;
        let run = Replacement { columns, work, replace: self.in_place, anew: self.again };
        match run.expected(failing) {
            // Longer than a number can tell: nothing is left of the rate.
            Err(ModelError::Overflow { .. }) => Ok(0.0),
            time => Ok(self.work / time?),
        }
    }
}

/// Part of a lost process's matrix that ABFT recovery rebuilds while all wait, when the share `x` of the rows is
/// factored: U's triangle, U's rectangle and what is still to be factored, x^2/2 + x(1-x) + (1-x)^2. L is in
/// no checksum.
pub fn rebuilt_by_recovery(x: f64) -> Result<f64> {
    fraction("the share of the rows", x)?;
    Ok(1.0 - x + 0.5 * x * x)
}

/// Part of it that hot replacement regains: U's triangle alone, x^2/2. The rest the sums stand for.
pub fn regained_by_replacement(x: f64) -> Result<f64> {
    fraction("the share of the rows", x)?;
    Ok(0.5 * x * x)
}

/// The same on average over losses at any moment of a run whose time goes as 1 - (1-x)^3: half of
/// 1 - 2 (3/4) + 3/5, one twentieth.
pub const REGAINED_ON_AVERAGE: f64 = 0.05;

/// A problem on its grid, and the way from rank to rank. P and Q without the columns of checksums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repair {
    pub n: f64,
    pub p: u64,
    pub q: u64,
    pub link: Link,
}

impl Repair {
    /// Bytes of the matrix on one process.
    pub fn process_bytes(&self) -> Result<f64> {
        positive("the order N", self.n)?;
        at_least("the number of process rows P", self.p, 1, "at least 1")?;
        at_least("the number of process columns Q", self.q, 1, "at least 1")?;
        finite("the matrix of a process", 8.0 * self.n * self.n / (self.p as f64 * self.q as f64))
    }

    /// Seconds to sum the share `part` of a process's matrix over its process row: as an encoding by a binary tree of
    /// the Q that have something to add or to take (*encoding*, eq. 6), and one more that receives.
    pub fn summed(&self, part: f64) -> Result<f64> {
        fraction("the part of a process's matrix", part)?;
        let bytes = part * self.process_bytes()?;
        if bytes == 0.0 {
            Ok(0.0)
        } else {
            tree(self.q.saturating_add(1), bytes, Code::Plain, self.link)
        }
    }

    /// Seconds that all wait for ABFT recovery.
    pub fn recovery(&self, x: f64) -> Result<f64> {
        self.summed(rebuilt_by_recovery(x)?)
    }

    /// Additions of x = T y (eq. 12): each unknown but the replaced column's own gets one.
    pub fn additions(&self) -> Result<f64> {
        self.process_bytes()?;
        Ok(self.n * (1.0 - 1.0 / self.q as f64))
    }

    /// Seconds of hot replacement: U regained, and x = T y, for which the replaced column's part of y goes once along
    /// each process row. The roles themselves cost what the notice does, which is none of the matrix's.
    pub fn replacement(&self, x: f64) -> Result<f64> {
        let regained = self.summed(regained_by_replacement(x)?)?;
        let vector = 8.0 * self.n / self.q as f64;
        finite(
            "the time of a replacement",
            regained + self.link.alpha + vector * (self.link.beta + self.link.gamma),
        )
    }

    /// Seconds of hot replacement on average over the moments a loss may strike.
    pub fn replacement_on_average(&self) -> Result<f64> {
        Ok(self.summed(REGAINED_ON_AVERAGE)? + self.replacement(0.0)?)
    }
}

/// Why a question about groups has no answer for columns of checksums.
pub(crate) fn no_groups() -> ModelError {
    ModelError::Data(
        "method abft has no groups: its share of the memory is Q/(Q+R), whatever the groups; ask with the grid".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::interval::{Segment, segment_time};
    use super::*;
    use proptest::prelude::*;

    const LINK: Link = Link { alpha: 1e-6, beta: 1e-9, gamma: 1e-10 };

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-6
    }

    fn beside(q: u64, sums: u64) -> Columns {
        Columns { q, sums }
    }

    /// A third of P x Q processes more at Q = 3, so three of four parts for the matrix; two thirds with a second column.
    #[test]
    fn columns_more() {
        assert!(close(beside(3, 1).factor().unwrap(), 4.0 / 3.0));
        assert!(close(beside(3, 2).factor().unwrap(), 5.0 / 3.0));
        assert_eq!(beside(1, 1).factor().unwrap(), 2.0);
        for (q, sums) in [(0, 1), (3, 0), (3, Columns::SUMS_MAX + 1)] {
            assert!(beside(q, sums).factor().is_err(), "{q} {sums}");
        }
    }

    /// By hand: M = 1, work 1, one process column and its checksums, all failures of processes. Untouched: e^-1 =
    /// 0.367879. One loss, and none of the half of the ranks that still matters: 2 e^-1/2 (1 - e^-1/2) = 0.477303. A
    /// try lasts 1 - e^-1 + 2 (1 - e^-1 - 0.477303) = 0.941756.
    #[test]
    fn one_failure_a_run_by_hand() {
        let run = Replacement { columns: beside(1, 1), work: 1.0, replace: 0.0, anew: 0.0 };
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        assert!(close(run.finishes(failing).unwrap(), 0.845_181_9));
        assert!(close(run.expected(failing).unwrap(), 0.941_756_4 / 0.845_181_9));
        // A replacement as long as the work: e^-1 + 2 e^-1 (1 - e^-1/2).
        let slow = Replacement { replace: 1.0, ..run };
        assert!(close(slow.finishes(failing).unwrap(), 0.657_377_4));
        // Nothing is borne where nodes fail: 1/e, and e - 1 until one try has come through.
        let nodes = Failing { processes: 0.0, ..failing };
        assert!(close(run.finishes(nodes).unwrap(), 0.367_879_4));
        assert!(close(run.expected(nodes).unwrap(), 1.718_281_8));
    }

    /// By hand, as many failures: two columns of checksums, so one of three process columns is enough to come through. Each
    /// is lost by itself, once in three: 1 - (1 - e^-1/3)^3 = 0.9772217, and a try lasts 9 (1 - e^-1/3) - 9/2 (1 - e^-2/3) +
    /// 1 - e^-1 = 0.9937158. With half of the failures of nodes e^-1/2 (1 - (1 - e^-1/6)^3) = 0.6043362 come through.
    #[test]
    fn two_columns_by_hand() {
        let run = Replacement { columns: beside(1, 2), work: 1.0, replace: 0.0, anew: 0.0 };
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        assert!(close(run.finishes(failing).unwrap(), 0.977_221_7));
        assert!(close(run.expected(failing).unwrap(), 0.993_715_8 / 0.977_221_7));
        let half = Failing { processes: 0.5, ..failing };
        assert!(close(run.finishes(half).unwrap(), 0.604_336_2));
    }

    /// Each process column is lost by itself: up to R of Q+R, as dice say, where a loss takes no time.
    #[test]
    fn as_many_are_lost_as_by_dice() {
        for (q, sums) in [(1, 1), (2, 3), (8, 2), (31, 4), (127, 3), (5000, 4)] {
            for work in [0.01, 1.0, 30.0] {
                let run = Replacement { columns: beside(q, sums), work, replace: 0.0, anew: 0.0 };
                let columns = (q + sums) as f64;
                let alive = (-work / columns).exp();
                let (mut ways, mut up_to) = (1.0, 0.0);
                for j in 0..=sums as i32 {
                    up_to += ways * (1.0 - alive).powi(j) * alive.powf(columns - f64::from(j));
                    ways *= (columns - f64::from(j)) / f64::from(j + 1);
                }
                let ours = run.finishes(Failing { mtbf: 1.0, processes: 1.0 }).unwrap();
                assert!((ours / up_to - 1.0).abs() < 1e-10, "{q} {sums} {work}: {ours} {up_to}");
            }
        }
    }

    /// By hand: M = 100 s, half of the failures are of processes, in place takes 10 s, a restart 50 s.
    /// B_r = 100 (e^0.5 - 1) = 64.872127, F = 1 - e^-0.1 = 0.0951626, B_p = F (100 + 32.436064)/(1 - F/2) = 13.232581;
    /// the mean is 39.052354, and 100 ln 1.39052354 = 32.968032.
    #[test]
    fn what_a_failure_costs_by_hand() {
        let failing = Failing { mtbf: 100.0, processes: 0.5 };
        assert!(close(failing.mean_down(10.0, 50.0).unwrap(), 32.968_032));
        let all = Failing { processes: 1.0, ..failing };
        assert!(close(all.mean_down(10.0, 50.0).unwrap(), 10.0));
        let none = Failing { processes: 0.0, ..failing };
        assert_eq!(none.mean_down(10.0, 50.0).unwrap(), 50.0);
    }

    /// The paper's third experiment: N = 200,000 on 30 x 30 processes, of which 30 have the sums. A process has 8 times
    /// 200,000^2 / 870 bytes = 367.8 MB. ABFT recovery rebuilds all of it for a loss at the start and half of it at the end
    /// (L is in no checksum); hot replacement nothing at the start, and in the worst case, at the end, as much:
    /// "should approach that of HPL using ABFT recovery". x = T y is 193,103.4 additions, O(n), against
    /// O(n^2): 200,000^2 / 870 elements rebuilt.
    #[test]
    fn the_third_experiment() {
        let repair = Repair { n: 200_000.0, p: 30, q: 29, link: LINK };
        assert!(close(repair.process_bytes().unwrap(), 367_816_091.95));
        assert_eq!(rebuilt_by_recovery(0.0).unwrap(), 1.0);
        assert_eq!(regained_by_replacement(0.0).unwrap(), 0.0);
        assert_eq!(rebuilt_by_recovery(1.0).unwrap(), regained_by_replacement(1.0).unwrap());
        assert!(close(rebuilt_by_recovery(0.5).unwrap(), 0.625));
        assert!(close(repair.additions().unwrap(), 193_103.448));
        // Five levels up a tree of thirty, twice (encoding, eq. 6), at 1.1 ns a byte: 4.045977 s and ten latencies.
        assert!(close(repair.recovery(0.0).unwrap(), 4.045_987));
        // A vector of 8 * 200,000 / 29 bytes and a latency.
        assert!(close(repair.replacement(0.0).unwrap(), 61.689_655e-6));
        let (worst, as_much) = (repair.replacement(1.0).unwrap(), repair.recovery(1.0).unwrap());
        assert!((worst / as_much - 1.0).abs() < 1e-4, "{worst} {as_much}");
    }

    /// x^2/2 summed over a run in time.
    #[test]
    fn a_twentieth_on_average() {
        let steps = 100_000;
        let sum: f64 = (0..steps)
            .map(|i| {
                let t = (f64::from(i) + 0.5) / f64::from(steps);
                regained_by_replacement(1.0 - (1.0 - t).cbrt()).unwrap()
            })
            .sum();
        assert!((sum / f64::from(steps) - REGAINED_ON_AVERAGE).abs() < 1e-5);
    }

    proptest! {
        /// Without processes that fail by themselves it is a run that saves nothing.
        #[test]
        fn nodes_alone_are_an_unprotected_run(q in 1u64..100, sums in 1..=Columns::SUMS_MAX, work in 1.0..1e5f64, mtbf in 1e4..1e7f64, anew in 0.0..1e3f64) {
            let run = Replacement { columns: beside(q, sums), work, replace: 1.0, anew };
            let ours = run.expected(Failing { mtbf, processes: 0.0 }).unwrap();
            let none = segment_time(Segment { work, encode: 0.0, flush: 0.0 }, anew, mtbf).unwrap();
            prop_assert!((ours / none - 1.0).abs() < 1e-9, "{ours} {none}");
        }

        #[test]
        fn more_is_borne_the_more_are_processes(q in 1u64..100, sums in 1..Columns::SUMS_MAX, work in 1.0..1e5f64, mtbf in 1e3..1e7f64, s in 0.0..0.9f64) {
            let run = Replacement { columns: beside(q, sums), work, replace: 0.0, anew: 10.0 };
            let (here, more) = (Failing { mtbf, processes: s }, Failing { mtbf, processes: s + 0.1 });
            prop_assert!(run.finishes(here).unwrap() <= run.finishes(more).unwrap() * (1.0 + 1e-12));
            prop_assert!(run.finishes(more).unwrap() <= 1.0);
            prop_assert!(run.expected(here).unwrap() >= run.expected(more).unwrap() * (1.0 - 1e-9));
            prop_assert!(run.expected(more).unwrap() >= work * (1.0 - 1e-9));
            // And the more columns there are to lose: all but the last may go.
            let wider = Replacement { columns: beside(q, sums + 1), ..run };
            prop_assert!(run.finishes(more).unwrap() <= wider.finishes(more).unwrap() * (1.0 + 1e-9));
            // Between the two that it is made of.
            let down = here.mean_down(1.0, 20.0).unwrap();
            prop_assert!((1.0 - 1e-6..=20.0 + 1e-6).contains(&down), "{down}");
        }

        #[test]
        fn replacing_never_costs_more_than_rebuilding(x in 0.0..=1.0f64) {
            prop_assert!(regained_by_replacement(x).unwrap() <= rebuilt_by_recovery(x).unwrap());
        }

        #[test]
        fn never_nan(a in any::<f64>(), b in any::<f64>(), c in any::<f64>(), d in any::<f64>(), e in any::<f64>(), q in any::<u64>(), sums in 0u64..6) {
            let failing = Failing { mtbf: a, processes: b };
            let columns = beside(q, sums);
            let run = Replacement { columns, work: c, replace: d, anew: e };
            let repair = Repair { n: c, p: q, q, link: Link { alpha: a, beta: d, gamma: e } };
            let ways = Ways { work: a, save: b, again: c, recover: d, in_place: e };
            for v in [run.expected(failing), run.finishes(failing), failing.mean_down(c, d), repair.recovery(b),
                      repair.replacement(b), repair.additions(), rebuilt_by_recovery(a), ways.by_restarts(c), ways.in_place(failing),
                      ways.by_checksums(columns, failing)].into_iter().flatten() {
                prop_assert!(v.is_finite());
            }
        }
    }
}

//! Going on without a restart: in place, where a spare rank takes the dead one's position and the last save is restored,
//! and by hot replacement, where columns of checksums take the places of lost process columns (*hot-replacement*,
//! sections III and V; there it is one column).
//!
//! Both are there for the loss of a process; a node that goes takes the whole job with it (docs/PROTECTION.md). So every
//! answer here needs the share of failures that end a process and leave its node. The closed forms are exact for
//! exponential failures; the simulation is held against them.

use super::ModelError;
use super::encoding::{Code, Link, chain};
use super::error::{Result, at_least, finite, fraction, non_negative, positive};
use super::interval;
use crate::lu::{LONGEST_SUMS, SUMS_EVER, SUMS_MAX};
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

/// New columns of checksums: after a loss, where there are fewer than the run began with, each P ranks that are free make one.
/// Free are what is left of lost columns, and those that wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Renewing {
    /// Ranks of a process column, P.
    pub rows: u64,
    /// Ranks beside the P x (Q+R) that wait.
    pub waiting: u64,
    /// Seconds in which all wait for one new column.
    pub each: f64,
}

impl Renewing {
    /// None is ever made: nothing is left of a column that is lost, and nobody waits.
    pub const NEVER: Self = Self { rows: 1, waiting: 0, each: 0.0 };

    fn check(&self) -> Result<()> {
        at_least("the number of process rows P", self.rows, 1, "at least 1")?;
        non_negative("the time to make new checksums", self.each)?;
        Ok(())
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
    pub renewing: Renewing,
}

/// One number for each count of losses in a try.
type Row = Vec<f64>;
/// For each two of such counts; none before the diagonal, since losses only become more.
type Square = Vec<Row>;

fn square(size: usize) -> Square {
    vec![vec![0.0; size]; size]
}

fn product(a: &Square, b: &Square) -> Square {
    let mut c = square(a.len());
    for (i, (c, a)) in c.iter_mut().zip(a).enumerate() {
        for (j, a) in a.iter().enumerate().skip(i) {
            c[j..].iter_mut().zip(&b[j][j..]).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}

/// Every element of these, changed.
fn changed(all: &Square, change: impl Fn(f64) -> f64) -> Square {
    all.iter().map(|row| row.iter().map(|&x| change(x)).collect()).collect()
}

/// e^(rates x time), and its integral from 0 to `time`. `fastest`: the largest of the rates.
///
/// By its series for a part of the time in which little happens, doubled until it is the whole: of chances nothing is ever
/// subtracted from anything like it.
fn over_time(rates: &Square, fastest: f64, time: f64) -> (Square, Square) {
    const TERMS: u32 = 16;
    let doublings = (2.0 * fastest * time).log2().ceil().max(0.0) as i32;
    let part = time * 0.5f64.powi(doublings);
    let mut term = square(rates.len());
    (0..rates.len()).for_each(|i| term[i][i] = 1.0);
    let (mut come, mut spent) = (term.clone(), changed(&term, |x| x * part));
    for n in 1..=TERMS {
        term = changed(&product(&term, rates), |x| x * part / f64::from(n));
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
    /// Of the N = P (Q+R) + K ranks, K of which wait, each dies at the rate (s/M)/N. With d of them dead T = K + PR - d are
    /// beside the PQ that compute; they are l(T) = min(R, T/P) columns of checksums, rounded down, and the rest is free, since
    /// after each loss as many new columns are made as there are ranks for. A loss takes t seconds and those of the new columns,
    /// in which no work is done and those do not count yet. The next one, at the rate a, strikes within them with the chance
    /// 1 - e^(-a times so long), and what they were begins anew, with a column of checksums less if it was of one that matters. A
    /// process column lost while there are none, or a node at any time, ends the try. By the time of the work alone d dead become
    /// k > d at a rate that is the sum over all ways through such times.
    ///
    /// Left out: ranks that are free where there are not enough for a column any more, whose loss costs t. A test has 16 columns
    /// of checksums at most, new ones included; here a loss after the 16th ends the try.
    fn one_try(&self, failing: Failing) -> Result<(f64, f64)> {
        failing.check()?;
        self.columns.check()?;
        self.renewing.check()?;
        positive("the work of the run", self.work)?;
        non_negative("the time of a replacement", self.replace)?;
        non_negative("the time to begin anew", self.anew)?;
        let Replacement { columns: Columns { q, sums }, work, replace, renewing, .. } = *self;
        let fastest = 1.0 / failing.mtbf;
        finite("how often a run fails", 2.0 * fastest * work)?;
        let rows = u128::from(renewing.rows);
        // Ranks beside those that compute, and how many of them may be lost before no column of checksums is left of them.
        let beside = u128::from(renewing.waiting) + rows * u128::from(sums);
        let last = (beside - rows + 1).min(SUMS_EVER as u128) as usize;
        let left = |dead: usize| beside - dead as u128;
        let settled = |dead: usize| (left(dead) / rows).min(u128::from(sums)) as usize;
        let (p, computing) = (renewing.rows as f64, renewing.rows as f64 * q as f64);
        let of_a_rank = failing.processes * fastest / (computing + beside as f64);
        let of_columns = |sums: usize| of_a_rank * (computing + p * sums as f64);
        let of_free = |dead: usize, sums: usize| match left(dead) {
            free if free >= rows => of_a_rank * (free as f64 - p * sums as f64).max(0.0),
            _ => 0.0,
        };
        let strikes = |dead: usize, sums: usize| {
            (1.0 - failing.processes) * fastest + of_columns(sums) + of_free(dead, sums)
        };
        let mut rates = square(last + 1);
        // Seconds without work that a second of work entails.
        let mut idle = vec![0.0; last + 1];
        for (d, (row, idle)) in rates.iter_mut().zip(&mut idle).enumerate() {
            let there = settled(d);
            row[d] = -strikes(d, there);
            // How often so many columns of checksums are left by a loss, new ones not counted.
            let mut comes = [0.0; SUMS_MAX + 1];
            comes[there] = of_free(d, there);
            if there > 0 {
                comes[there - 1] = of_columns(there);
            }
            for (k, rate) in row.iter_mut().enumerate().skip(d + 1) {
                let before = std::mem::take(&mut comes);
                for (sums, often) in
                    before.into_iter().enumerate().filter(|(_, often)| *often > 0.0)
                {
                    let new = settled(k).saturating_sub(sums);
                    let (lasts, strikes) = (replace + new as f64 * renewing.each, strikes(k, sums));
                    let within = -(-strikes * lasts).exp_m1() / strikes;
                    *rate += often * (-strikes * lasts).exp();
                    *idle += often * within;
                    comes[sums] += often * within * of_free(k, sums);
                    if sums > 0 {
                        comes[sums - 1] += often * within * of_columns(sums);
                    }
                }
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
    pub fn by_checksums(
        &self,
        columns: Columns,
        renewing: Renewing,
        failing: Failing,
    ) -> Result<f64> {
        let work = self.work * columns.factor()?;
        let (replace, anew) = (self.in_place, self.again);
        let run = Replacement { columns, work, replace, anew, renewing };
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

/// Part of a process's matrix that it gives its share of for new checksums: what is not factored, and U's rows from their
/// diagonals on, (1-x)^2 + x(1-x) + x^2/2, which is as much as [`rebuilt_by_recovery`]. On average over a loss at any moment, as
/// above: 1 - 1/2 + 1/2 (3/5).
pub const RENEWED_ON_AVERAGE: f64 = 0.8;

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

    /// Seconds to sum bytes over a process row: along a chain of so many processes, in pieces (*encoding*, section 3.3).
    fn summed(&self, bytes: f64, along: u64, code: Code) -> Result<f64> {
        if bytes == 0.0 {
            return Ok(0.0);
        }
        chain(along, bytes, (8 * LONGEST_SUMS) as f64, code, self.link)
    }

    /// Seconds that all wait for ABFT recovery: the sums and what is left of the row make up what the replacement receives.
    pub fn recovery(&self, x: f64) -> Result<f64> {
        let bytes = rebuilt_by_recovery(x)? * self.process_bytes()?;
        self.summed(bytes, self.q.saturating_add(1), Code::Plain)
    }

    /// Seconds to regain that part of a process's matrix, where the sums lie; a column that is alone has nobody to ask.
    fn regain(&self, part: f64) -> Result<f64> {
        fraction("the part of a process's matrix", part)?;
        self.summed(part * self.process_bytes()?, self.q.max(2), Code::Plain)
    }

    /// Additions of x = T y (eq. 12): each unknown but the replaced column's own gets one.
    pub fn additions(&self) -> Result<f64> {
        self.process_bytes()?;
        Ok(self.n * (1.0 - 1.0 / self.q as f64))
    }

    /// Seconds of hot replacement: U regained, and x = T y, for which the replaced column's part of y goes once along
    /// each process row. The roles themselves cost what the notice does, which is none of the matrix's.
    pub fn replacement(&self, x: f64) -> Result<f64> {
        let regained = self.regain(regained_by_replacement(x)?)?;
        let vector = 8.0 * self.n / self.q as f64;
        finite(
            "the time of a replacement",
            regained + self.link.alpha + vector * (self.link.beta + self.link.gamma),
        )
    }

    /// Seconds that all wait for a new column of checksums, on average over the moments it may be made: what each process has
    /// goes along its row in pieces, to each of which every process column adds its weighted share, and ends at who keeps them.
    pub fn renewal_on_average(&self) -> Result<f64> {
        let bytes = RENEWED_ON_AVERAGE * self.process_bytes()?;
        self.summed(bytes, self.q.saturating_add(1), Code::Weighted { losses: 1 })
    }

    /// Seconds of hot replacement on average over the moments a loss may strike.
    pub fn replacement_on_average(&self) -> Result<f64> {
        Ok(self.regain(REGAINED_ON_AVERAGE)? + self.replacement(0.0)?)
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

    /// No new ones are made, and nothing but the work takes time.
    fn plain(columns: Columns, work: f64) -> Replacement {
        Replacement { columns, work, replace: 0.0, anew: 0.0, renewing: Renewing::NEVER }
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
        let run = plain(beside(1, 1), 1.0);
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
        let run = plain(beside(1, 2), 1.0);
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        assert!(close(run.finishes(failing).unwrap(), 0.977_221_7));
        assert!(close(run.expected(failing).unwrap(), 0.993_715_8 / 0.977_221_7));
        let half = Failing { processes: 0.5, ..failing };
        assert!(close(run.finishes(half).unwrap(), 0.604_336_2));
    }

    /// By hand: as with two columns, but the second is made when it is needed, by a rank that waits: in no time, any two of the
    /// three ranks may be lost. If it takes as long as the work, both of the two that matter are lost at 2/3 together, and then
    /// the one that computes, at 1/3, ends the try; the one that makes the new checksums, at 1/3, leaves the run without. So by
    /// the time of the work 2 left beside become 1 at 1/3 + 2/3 e^-2/3 = 0.6756114 and none at (1 - e^-2/3)/3 = 0.1621943, and 1
    /// becomes none at 2/3: 0.3678794, 0.2949807 and 0.2015221 at the end. They are there for 0.6321206, 0.1981307 and 0.0992742,
    /// and the first entails 1 - e^-2/3 = 0.4865829 without work for each second: a try lasts 1.2371045.
    #[test]
    fn a_rank_that_waits_by_hand() {
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        let at_once = Renewing { rows: 1, waiting: 1, each: 0.0 };
        let run = Replacement { renewing: at_once, ..plain(beside(1, 1), 1.0) };
        assert!(close(run.finishes(failing).unwrap(), 0.977_221_7));
        assert!(close(run.expected(failing).unwrap(), 0.993_715_8 / 0.977_221_7));
        let run = Replacement { renewing: Renewing { each: 1.0, ..at_once }, ..run };
        assert!(close(run.finishes(failing).unwrap(), 0.864_382_3));
        assert!(close(run.expected(failing).unwrap(), 1.237_104_5 / 0.864_382_3));
    }

    /// By hand: 2 x (1+2) ranks, and nobody waits. What is left of two lost columns makes a new one, so any three of the six may
    /// die one after the other, at 6/6, 5/6 and 4/6; then one of the two that compute ends the try, at 2/6. Up to two are dead
    /// with 0.3678794 + 0.4003126 + 0.1815021, as dice say of six; three, with those two alive, with 10 e^-1/3 (3 (1 - e^-1/3) -
    /// 4 (1 - e^-1/2) + 3/2 (1 - e^-2/3)) = 0.0458797.
    #[test]
    fn what_is_left_of_two_columns_makes_a_third() {
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        let renewing = Renewing { rows: 2, waiting: 0, each: 0.0 };
        let run = Replacement { renewing, ..plain(beside(1, 2), 1.0) };
        assert!(close(run.finishes(failing).unwrap(), 0.995_573_9));
        // Without new ones two process columns may be lost, whichever ranks of them.
        assert!(
            run.finishes(failing).unwrap() > plain(beside(1, 2), 1.0).finishes(failing).unwrap()
        );
    }

    /// Each process column is lost by itself: up to R of Q+R, as dice say, where a loss takes no time.
    #[test]
    fn as_many_are_lost_as_by_dice() {
        for (q, sums) in [(1, 1), (2, 3), (8, 2), (31, 4), (127, 3), (5000, 4)] {
            for work in [0.01, 1.0, 30.0] {
                let run = plain(beside(q, sums), work);
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

    /// With process columns of one rank and new ones made in no time it is all the same who waits and who keeps checksums.
    #[test]
    fn as_many_are_lost_with_ranks_that_wait() {
        for (q, sums, waiting) in [(1, 1, 3), (8, 2, 2), (31, 1, 5), (127, 4, 12)] {
            for work in [0.01, 1.0, 30.0] {
                let renewing = Renewing { rows: 1, waiting, each: 0.0 };
                let run = Replacement { renewing, ..plain(beside(q, sums), work) };
                let ranks = (q + sums + waiting) as f64;
                let alive = (-work / ranks).exp();
                let (mut ways, mut up_to) = (1.0, 0.0);
                for j in 0..=(sums + waiting) as i32 {
                    up_to += ways * (1.0 - alive).powi(j) * alive.powf(ranks - f64::from(j));
                    ways *= (ranks - f64::from(j)) / f64::from(j + 1);
                }
                let ours = run.finishes(Failing { mtbf: 1.0, processes: 1.0 }).unwrap();
                assert!(
                    (ours / up_to - 1.0).abs() < 1e-10,
                    "{q} {sums} {waiting} {work}: {ours} {up_to}"
                );
            }
        }
    }

    /// By hand: 8 x 600^2 / 8 bytes a process, four fifths of which go on: 0.288 MB in one piece along three, at 1 ns a byte and
    /// twice 0.1 ns, weighted: (3 - 2 + 1) (1 us + 0.3456 ms). At N = 20,000 320 MB in 610.35 pieces of 512 KiB: 611.35 of (1 us
    /// + 0.6291456 ms).
    #[test]
    fn new_checksums_take_about_a_pass_over_the_matrix() {
        let repair = |n: f64| Repair { n, p: 4, q: 2, link: LINK };
        assert!(close(repair(600.0).renewal_on_average().unwrap(), 2.0 * 0.3466e-3));
        let pieces = 1.0 + 320e6 / 524_288.0;
        let took = repair(20_000.0).renewal_on_average().unwrap();
        assert!(close(took, pieces * (1e-6 + 0.629_145_6e-3)), "{took}");
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
        // 701.553 pieces of 512 KiB along a chain of thirty: 28 + 701.553 times 577.717 us.
        assert!(close(repair.recovery(0.0).unwrap(), 0.421_475));
        // A vector of 8 * 200,000 / 29 bytes and a latency.
        assert!(close(repair.replacement(0.0).unwrap(), 61.689_655e-6));
        // As much along a chain that is one shorter, and that vector.
        let (worst, as_much) = (repair.replacement(1.0).unwrap(), repair.recovery(1.0).unwrap());
        assert!(close(as_much - worst + 61.689_655e-6, 577.717e-6), "{worst} {as_much}");
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
            let run = Replacement { replace: 1.0, anew, ..plain(beside(q, sums), work) };
            let ours = run.expected(Failing { mtbf, processes: 0.0 }).unwrap();
            let none = segment_time(Segment { work, encode: 0.0, flush: 0.0 }, anew, mtbf).unwrap();
            prop_assert!((ours / none - 1.0).abs() < 1e-9, "{ours} {none}");
        }

        #[test]
        fn more_is_borne_the_more_are_processes(q in 1u64..100, sums in 1..Columns::SUMS_MAX, work in 1.0..1e5f64, mtbf in 1e3..1e7f64, s in 0.0..0.9f64) {
            let run = Replacement { anew: 10.0, ..plain(beside(q, sums), work) };
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
        fn never_nan(a in any::<f64>(), b in any::<f64>(), c in any::<f64>(), d in any::<f64>(), e in any::<f64>(), q in any::<u64>(), sums in 0u64..6, waiting in any::<u64>()) {
            let failing = Failing { mtbf: a, processes: b };
            let columns = beside(q, sums);
            let renewing = Renewing { rows: waiting, waiting: q, each: b };
            let run = Replacement { columns, work: c, replace: d, anew: e, renewing };
            let repair = Repair { n: c, p: q, q, link: Link { alpha: a, beta: d, gamma: e } };
            let ways = Ways { work: a, save: b, again: c, recover: d, in_place: e };
            for v in [run.expected(failing), run.finishes(failing), failing.mean_down(c, d), repair.recovery(b),
                      repair.replacement(b), repair.additions(), rebuilt_by_recovery(a), ways.by_restarts(c), ways.in_place(failing),
                      repair.renewal_on_average(), ways.by_checksums(columns, renewing, failing)].into_iter().flatten() {
                prop_assert!(v.is_finite());
            }
        }
    }
}

//! Models of continuing without a restart. In place, a spare rank takes the position of the dead rank, and the last save is
//! restored. By hot replacement, checksum columns take the places of lost process columns (*hot-replacement*, sections III and V,
//! with one column).
//!
//! Recovery in place and hot replacement survive the loss of a process; the loss of a node ends the job (docs/PROTECTION.md). So
//! every model here needs the share of failures that end a process but not its node. The closed forms are exact for exponential
//! failures; tests compare the simulation with the closed forms.

use super::ModelError;
use super::encoding::{Code, Link, chain};
use super::error::{Result, at_least, finite, fraction, non_negative, out_of_range, positive};
use super::interval;
use crate::lu::{LONGEST_SUMS, SUMS_EVER, SUMS_MAX};
use serde::Serialize;

/// Default seconds from the death of a process until all ranks continue without a restart. MPI's daemon of the node reports the
/// death at once. A few ranks on one machine then need 0.01 to 0.2 s.
pub const IN_PLACE_S: f64 = 1.0;

/// Number of process columns that compute, and number of additional columns that keep checksums. A run survives the loss of
/// `sums` columns of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Columns {
    pub q: u64,
    pub sums: u64,
}

impl Columns {
    /// Largest number of checksum columns that the program can keep.
    pub const SUMS_MAX: u64 = SUMS_MAX as u64;

    fn check(self) -> Result<()> {
        at_least("the number of process columns Q", self.q, 1, "at least 1")?;
        at_least("the number of checksum columns R", self.sums, 1, "at least 1")?;
        if self.sums > Self::SUMS_MAX {
            let rule = format!("at most {}", Self::SUMS_MAX);
            return out_of_range("the number of checksum columns R", &rule, self.sums as f64);
        }
        Ok(())
    }

    /// Number of all columns; the addition saturates.
    pub fn all(self) -> u64 {
        self.q.saturating_add(self.sums)
    }

    /// Memory of a run with R = `sums` checksum columns and Q = `q` columns, relative to a run without checksums: (Q+R)/Q.
    /// The work has the same ratio.
    pub fn factor(self) -> Result<f64> {
        self.check()?;
        Ok((self.q as f64 + self.sums as f64) / self.q as f64)
    }

    /// Describes a number of checksum columns in words.
    pub fn told(sums: u64) -> String {
        if sums == 1 { "a column".to_owned() } else { format!("{sums} columns") }
    }

    /// Describes in words how many process columns a run may lose with `sums` checksum columns.
    pub fn borne(sums: u64) -> String {
        match sums {
            1 => "one process column".to_owned(),
            sums => format!("{sums} process columns"),
        }
    }
}

/// Failures of the whole system, and the share of these failures that end only a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failing {
    pub mtbf: f64,
    /// Share of failures that end a process but not its node.
    pub processes: f64,
}

impl Failing {
    fn check(&self) -> Result<()> {
        positive("the MTBF of the system", self.mtbf)?;
        fraction("the share of failures that end only a process", self.processes)?;
        Ok(())
    }

    /// Mean seconds until the run computes again after a failure that costs `down` seconds, if each further failure starts these
    /// seconds again.
    fn until_up(&self, down: f64) -> Result<f64> {
        finite("the time until the run is up", self.mtbf * (down / self.mtbf).exp_m1())
    }

    /// Mean cost of a failure as a single number of seconds, for formulas that take only one cost. A lost process costs
    /// `in_place` seconds, a lost node `restart`. While the run recovers in place, another failed process starts the recovery
    /// again, and a failed node causes a restart. During a restart every failure starts the restart again.
    ///
    /// M is the MTBF, and s the share of failures that end only a process. With F = 1 - e^(-in_place/M) and
    /// B_r = M (e^(restart/M) - 1), the mean time down is B = s B_p + (1-s) B_r with B_p = F (M + (1-s) B_r)/(1 - s F). The mean
    /// cost is M ln(1 + B/M).
    pub fn mean_down(&self, in_place: f64, restart: f64) -> Result<f64> {
        self.check()?;
        non_negative("the time to continue in place", in_place)?;
        non_negative("the time of a restart", restart)?;
        let Failing { mtbf, processes } = *self;
        if processes == 0.0 {
            // Without the exponential and its inverse the result equals the input to the last bit.
            return Ok(restart);
        }
        let by_restart = self.until_up(restart)?;
        let fails_again = -(-in_place / mtbf).exp_m1();
        let in_place =
            fails_again * (mtbf + (1.0 - processes) * by_restart) / (1.0 - processes * fails_again);
        let down = processes * in_place + (1.0 - processes) * by_restart;
        finite("the time a failure costs", mtbf * (down / mtbf).ln_1p())
    }
}

/// Rebuilding of checksums: after a loss, if there are fewer checksum columns than at the start, each P free ranks make a new
/// column. Free ranks are those left of lost columns, and those that wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Renewing {
    /// Ranks of a process column, P.
    pub rows: u64,
    /// Number of waiting ranks, in addition to the P x (Q+R) ranks of the columns.
    pub waiting: u64,
    /// Seconds that all ranks wait while one new column is made.
    pub each: f64,
}

impl Renewing {
    /// No column is ever made: a lost column leaves no free rank, and no rank waits.
    pub const NEVER: Self = Self { rows: 1, waiting: 0, each: 0.0 };

    fn check(&self) -> Result<()> {
        at_least("the number of process rows P", self.rows, 1, "at least 1")?;
        non_negative("the time to make new checksums", self.each)?;
        Ok(())
    }
}

/// A run with checksum columns. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replacement {
    pub columns: Columns,
    /// Time of the whole work on these ranks without losses.
    pub work: f64,
    /// Cost of each loss that is survived.
    pub replace: f64,
    /// Seconds from a loss that is not survived until the run has begun from scratch.
    pub from_scratch: f64,
    pub renewing: Renewing,
}

/// Values, indexed by the number of losses in a try. A try begins from scratch, and ends with the result or with a loss that
/// the run does not survive.
type Row = Vec<f64>;
/// Values, indexed by an earlier and a later number of losses in a try. The values below the diagonal are zero, since the
/// number only increases.
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

/// Returns a matrix with every element changed by `change`.
fn changed(all: &Square, change: impl Fn(f64) -> f64) -> Square {
    all.iter().map(|row| row.iter().map(|&x| change(x)).collect()).collect()
}

/// Returns e^(rates x time), and its integral from 0 to `time`. `fastest` is the largest rate.
///
/// The function uses the series for a short part of the time, and doubles the part until it covers the whole time. So
/// probabilities of similar size are never subtracted from each other.
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
    /// Probability that a try completes the work, and the mean duration of a try.
    ///
    /// A run has P process rows, Q columns that compute and R checksum columns. M is the MTBF, s the share of failures that end
    /// only a process, and t the cost of a loss.
    ///
    /// Of the N = P (Q+R) + K ranks, K of which wait, each dies at the rate (s/M)/N. With d of them dead, T = K + PR - d ranks
    /// are left in addition to the PQ that compute. These T ranks form l(T) = min(R, T/P) checksum columns, rounded down; the
    /// other ranks are free, since each loss is followed by as many new columns as the ranks suffice for. A loss takes t seconds
    /// plus the seconds for new columns. In this time no work is done, and the new columns do not count yet. The next loss, at
    /// the rate a, comes within u such seconds with the probability 1 - e^(-a u). The new columns then begin again, with one
    /// checksum column fewer if the lost rank belonged to a column in use. The loss of a process column without any checksums
    /// left ends the try, and so does the loss of a node. Measured in the time of work alone, d dead become k > d at a rate that
    /// is the sum over all sequences of losses during such interruptions.
    ///
    /// The model ignores the t seconds that the loss of a free rank costs if the free ranks are too few for a column. A test can
    /// have at most 16 checksum columns, counting new ones; here a loss after the 16th ends the try.
    fn one_try(&self, failing: Failing) -> Result<(f64, f64)> {
        failing.check()?;
        self.check()?;
        let Replacement { columns: Columns { q, sums }, work, replace, renewing, .. } = *self;
        let fastest = 1.0 / failing.mtbf;
        finite("how often a run fails", 2.0 * fastest * work)?;
        let rows = u128::from(renewing.rows);
        // Number of ranks in addition to those that compute, and the number of these ranks that may be lost before no checksum
        // column is left.
        let extra = u128::from(renewing.waiting) + rows * u128::from(sums);
        let last = (extra - rows + 1).min(SUMS_EVER as u128) as usize;
        let left = |dead: usize| extra - dead as u128;
        let settled = |dead: usize| (left(dead) / rows).min(u128::from(sums)) as usize;
        let (p, computing) = (renewing.rows as f64, renewing.rows as f64 * q as f64);
        let of_a_rank = failing.processes * fastest / (computing + extra as f64);
        let of_columns = |sums: usize| of_a_rank * (computing + p * sums as f64);
        let of_free = |dead: usize, sums: usize| match left(dead) {
            free if free >= rows => of_a_rank * (free as f64 - p * sums as f64).max(0.0),
            _ => 0.0,
        };
        let loss_rate = |dead: usize, sums: usize| {
            (1.0 - failing.processes) * fastest + of_columns(sums) + of_free(dead, sums)
        };
        let mut rates = square(last + 1);
        // Seconds without work for each second of work.
        let mut idle = vec![0.0; last + 1];
        for (d, (row, idle)) in rates.iter_mut().zip(&mut idle).enumerate() {
            let there = settled(d);
            row[d] = -loss_rate(d, there);
            // Rate of losses that leave c checksum columns, for each c; new columns are not counted.
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
                    let (lasts, loss_rate) =
                        (replace + new as f64 * renewing.each, loss_rate(k, sums));
                    let within = -(-loss_rate * lasts).exp_m1() / loss_rate;
                    *rate += often * (-loss_rate * lasts).exp();
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

    fn check(&self) -> Result<()> {
        self.columns.check()?;
        self.renewing.check()?;
        positive("the work of the run", self.work)?;
        non_negative("the time of a replacement", self.replace)?;
        non_negative("the time to begin from scratch", self.from_scratch)?;
        Ok(())
    }

    /// Probability that a run ends without starting from scratch.
    pub fn finishes(&self, failing: Failing) -> Result<f64> {
        Ok(self.one_try(failing)?.0.min(1.0))
    }

    /// Expected wall seconds, if the run starts from scratch after each loss that it does not survive.
    pub fn expected(&self, failing: Failing) -> Result<f64> {
        let (ends, lasts) = self.one_try(failing)?;
        let from_scratch = failing.until_up(self.from_scratch)?;
        finite("the expected time", (lasts + (1.0 - ends) * from_scratch) / ends)
    }
}

/// Input for the comparison of ways to continue: a run, and the seconds that each step takes on its machine. The results are
/// shares of the fault-free rate. The comparison concerns only time: the matrix has the same size in all ways, although some ways
/// leave room for a larger matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ways {
    /// Time of the work on all ranks without losses and without checksums.
    pub work: f64,
    pub save: f64,
    /// Seconds to detect a loss and to restart the job.
    pub again: f64,
    pub recover: f64,
    /// Seconds until all ranks continue without a restart; the recovery is not included.
    pub in_place: f64,
}

impl Ways {
    /// Share of the rate with saves at the optimal interval and a restart after each failure.
    pub fn by_restarts(&self, mtbf: f64) -> Result<f64> {
        interval::share_left(self.save, self.again + self.recover, mtbf)
    }

    /// Share of the rate with saves at the optimal interval and recovery in place after failures of processes.
    pub fn in_place(&self, failing: Failing) -> Result<f64> {
        let (in_place, restart) = (self.in_place + self.recover, self.again + self.recover);
        interval::share_left(self.save, failing.mean_down(in_place, restart)?, failing.mtbf)
    }

    /// Share of the rate with checksum columns, which are additional to the columns that compute.
    pub fn by_checksums(
        &self,
        columns: Columns,
        renewing: Renewing,
        failing: Failing,
    ) -> Result<f64> {
        let work = self.work * columns.factor()?;
        let (replace, from_scratch) = (self.in_place, self.again);
        let run = Replacement { columns, work, replace, from_scratch, renewing };
        match run.expected(failing) {
            // The time exceeds the range of a number, so the share is zero.
            Err(ModelError::Overflow { .. }) => Ok(0.0),
            time => Ok(self.work / time?),
        }
    }
}

/// Part of a lost process's matrix that ABFT recovery rebuilds while all ranks wait, if the share `x` of the rows is factored:
/// the triangle of U, the rectangle of U and the part not yet factored, x^2/2 + x(1-x) + (1-x)^2. No checksum contains L.
pub fn rebuilt_by_recovery(x: f64) -> Result<f64> {
    fraction("the share of the rows", x)?;
    Ok(1.0 - x + 0.5 * x * x)
}

/// Part of the matrix that hot replacement recomputes: only the triangle of U, x^2/2. Checksums take the place of the other
/// parts.
pub fn recomputed_by_replacement(x: f64) -> Result<f64> {
    fraction("the share of the rows", x)?;
    Ok(0.5 * x * x)
}

/// Average of the recomputed part x^2/2 over losses at any moment of a run. When the share x of the rows is factored, the share
/// 1 - (1-x)^3 of the time has passed. So the average is half of 1 - 2 (3/4) + 3/5, a twentieth.
pub const RECOMPUTED_ON_AVERAGE: f64 = 0.05;

/// Average part of a process's matrix that enters new checksums: the part not factored, and the rows of U from their diagonals
/// on. If the share x of the columns is factored, this is (1-x)^2 + x(1-x) + x^2/2 = 1 - x + x^2/2. The average over losses at
/// any moment is 1 - 1/4 + 1/20.
pub const RENEWED_ON_AVERAGE: f64 = 0.8;

/// A problem on its grid, and the link from rank to rank. P and Q do not count checksum columns.
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

    /// Seconds to sum `bytes` over a process row: in pieces, along a chain of `along` processes (*encoding*, section 3.3).
    fn summed(&self, bytes: f64, along: u64, code: Code) -> Result<f64> {
        if bytes == 0.0 {
            return Ok(0.0);
        }
        chain(along, bytes, (8 * LONGEST_SUMS) as f64, code, self.link)
    }

    /// Seconds that all ranks wait for ABFT recovery, if the share `x` of the rows is factored. The replacement receives the
    /// sum of the checksums and of the other ranks of its process row.
    pub fn recovery(&self, x: f64) -> Result<f64> {
        let bytes = rebuilt_by_recovery(x)? * self.process_bytes()?;
        self.summed(bytes, self.q.saturating_add(1), Code::Plain)
    }

    /// Seconds to recompute the share `part` of a process's matrix from the checksums. A single process column takes as long as
    /// two process columns.
    fn recompute_u(&self, part: f64) -> Result<f64> {
        fraction("the part of a process's matrix to recompute", part)?;
        self.summed(part * self.process_bytes()?, self.q.max(2), Code::Plain)
    }

    /// Seconds of hot replacement after the share `x` of the rows is factored. The first part is the recomputation of U. The
    /// second part converts the solution y of the system with checksum columns to the solution of the original system, with the
    /// weights T: T y. For this, the replaced column's part of y goes once along each process row. The change of roles is not
    /// included: its cost does not depend on the matrix.
    pub fn replacement(&self, x: f64) -> Result<f64> {
        let recomputed = self.recompute_u(recomputed_by_replacement(x)?)?;
        let vector = 8.0 * self.n / self.q as f64;
        finite(
            "the time of a replacement",
            recomputed + self.link.alpha + vector * (self.link.beta + self.link.gamma),
        )
    }

    /// Seconds that all ranks wait for a new checksum column, on average over the moments at which it may be made. The partial
    /// sums go along each process row in pieces; every process column adds its weighted data. The ranks of the new column receive
    /// the sums.
    pub fn renewal_on_average(&self) -> Result<f64> {
        let bytes = RENEWED_ON_AVERAGE * self.process_bytes()?;
        self.summed(bytes, self.q.saturating_add(1), Code::Weighted { losses: 1 })
    }

    /// Seconds of hot replacement on average over the moments of a loss.
    pub fn replacement_on_average(&self) -> Result<f64> {
        Ok(self.recompute_u(RECOMPUTED_ON_AVERAGE)? + self.replacement(0.0)?)
    }
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

    fn columns_of(q: u64, sums: u64) -> Columns {
        Columns { q, sums }
    }

    /// Returns a run that makes no new columns, and in which only the work takes time.
    fn plain(columns: Columns, work: f64) -> Replacement {
        Replacement { columns, work, replace: 0.0, from_scratch: 0.0, renewing: Renewing::NEVER }
    }

    /// At Q = 3 one checksum column adds a third of the processes, two columns add two thirds.
    #[test]
    fn columns_more() {
        assert!(close(columns_of(3, 1).factor().unwrap(), 4.0 / 3.0));
        assert!(close(columns_of(3, 2).factor().unwrap(), 5.0 / 3.0));
        assert_eq!(columns_of(1, 1).factor().unwrap(), 2.0);
        for (q, sums) in [(0, 1), (3, 0), (3, Columns::SUMS_MAX + 1)] {
            assert!(columns_of(q, sums).factor().is_err(), "{q} {sums}");
        }
    }

    /// By hand: M = 1, work 1, one process column and its checksums, all failures of processes. No loss: e^-1 = 0.367879. One
    /// loss, and then none of the remaining half of the ranks: 2 e^-1/2 (1 - e^-1/2) = 0.477303. A try lasts 1 - e^-1 + 2 (1 -
    /// e^-1 - 0.477303) = 0.941756.
    #[test]
    fn one_failure_a_run_by_hand() {
        let run = plain(columns_of(1, 1), 1.0);
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        assert!(close(run.finishes(failing).unwrap(), 0.845_181_9));
        assert!(close(run.expected(failing).unwrap(), 0.941_756_4 / 0.845_181_9));
        // A replacement as long as the work: e^-1 + 2 e^-1 (1 - e^-1/2).
        let slow = Replacement { replace: 1.0, ..run };
        assert!(close(slow.finishes(failing).unwrap(), 0.657_377_4));
        // If nodes fail, no loss is survived: a try completes with 1/e, and the run takes e - 1.
        let nodes = Failing { processes: 0.0, ..failing };
        assert!(close(run.finishes(nodes).unwrap(), 0.367_879_4));
        assert!(close(run.expected(nodes).unwrap(), 1.718_281_8));
    }

    /// By hand, with the same failures and two checksum columns: a try completes if one of the three process columns is left.
    /// Each is lost by itself, once in three: 1 - (1 - e^-1/3)^3 = 0.9772217, and a try lasts 9 (1 - e^-1/3) - 9/2 (1 - e^-2/3) +
    /// 1 - e^-1 = 0.9937158. With half of the failures of nodes e^-1/2 (1 - (1 - e^-1/6)^3) = 0.6043362 come through.
    #[test]
    fn two_columns_by_hand() {
        let run = plain(columns_of(1, 2), 1.0);
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        assert!(close(run.finishes(failing).unwrap(), 0.977_221_7));
        assert!(close(run.expected(failing).unwrap(), 0.993_715_8 / 0.977_221_7));
        let half = Failing { processes: 0.5, ..failing };
        assert!(close(run.finishes(half).unwrap(), 0.604_336_2));
    }

    /// By hand: as with two columns, but a waiting rank makes the second column after a loss. If this takes no time, any two of
    /// the three ranks may be lost. Now let it take as long as the work. One of the two columns in use is lost at the rate 2/3.
    /// Then the loss of the rank that computes, at 1/3, ends the try; the loss of the rank that makes the new checksums, at 1/3,
    /// leaves the run without checksums. So in the time of work 2 left become 1 at 1/3 + 2/3 e^-2/3 = 0.6756114 and none at (1 -
    /// e^-2/3)/3 = 0.1621943, and 1 becomes none at 2/3: 0.3678794, 0.2949807 and 0.2015221 at the end. They last for 0.6321206,
    /// 0.1981307 and 0.0992742, and the first entails 1 - e^-2/3 = 0.4865829 without work for each second: a try lasts 1.2371045.
    #[test]
    fn a_rank_that_waits_by_hand() {
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        let at_once = Renewing { rows: 1, waiting: 1, each: 0.0 };
        let run = Replacement { renewing: at_once, ..plain(columns_of(1, 1), 1.0) };
        assert!(close(run.finishes(failing).unwrap(), 0.977_221_7));
        assert!(close(run.expected(failing).unwrap(), 0.993_715_8 / 0.977_221_7));
        let run = Replacement { renewing: Renewing { each: 1.0, ..at_once }, ..run };
        assert!(close(run.finishes(failing).unwrap(), 0.864_382_3));
        assert!(close(run.expected(failing).unwrap(), 1.237_104_5 / 0.864_382_3));
    }

    /// By hand: 2 x (1+2) ranks, and no rank waits. The ranks left of two lost columns make a new one, so any three of the six
    /// may die one after the other, at 6/6, 5/6 and 4/6; then one of the two that compute ends the try, at 2/6. Zero, one and two
    /// ranks are dead with the probabilities 0.3678794, 0.4003126 and 0.1815021; three are dead, and the two that compute alive,
    /// with 10 e^-1/3 (3 (1 - e^-1/3) - 4 (1 - e^-1/2) + 3/2 (1 - e^-2/3)) = 0.0458797.
    #[test]
    fn the_rest_of_two_columns_makes_a_third() {
        let failing = Failing { mtbf: 1.0, processes: 1.0 };
        let renewing = Renewing { rows: 2, waiting: 0, each: 0.0 };
        let run = Replacement { renewing, ..plain(columns_of(1, 2), 1.0) };
        assert!(close(run.finishes(failing).unwrap(), 0.995_573_9));
        // Without new columns the run survives the loss of only two process columns.
        assert!(
            run.finishes(failing).unwrap()
                > plain(columns_of(1, 2), 1.0).finishes(failing).unwrap()
        );
    }

    /// If a loss takes no time, process columns are lost independently: the number lost is binomial, and up to R of Q+R are
    /// survived.
    #[test]
    fn as_many_are_lost_as_by_dice() {
        for (q, sums) in [(1, 1), (2, 3), (8, 2), (31, 4), (127, 3), (5000, 4)] {
            for work in [0.01, 1.0, 30.0] {
                let run = plain(columns_of(q, sums), work);
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

    /// With process columns of one rank, and new columns made in no time, a waiting rank counts as a checksum rank.
    #[test]
    fn as_many_are_lost_with_ranks_that_wait() {
        for (q, sums, waiting) in [(1, 1, 3), (8, 2, 2), (31, 1, 5), (127, 4, 12)] {
            for work in [0.01, 1.0, 30.0] {
                let renewing = Renewing { rows: 1, waiting, each: 0.0 };
                let run = Replacement { renewing, ..plain(columns_of(q, sums), work) };
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

    /// By hand: 8 x 600^2 / 8 bytes a process, four fifths of which are sent: 0.288 MB in one piece along three, at 1 ns a byte
    /// and twice 0.1 ns, weighted: (3 - 2 + 1) (1 us + 0.3456 ms). At N = 20,000 320 MB in 610.35 pieces of 512 KiB: 611.35 of (1
    /// us + 0.6291456 ms).
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
    fn the_cost_of_a_failure_by_hand() {
        let failing = Failing { mtbf: 100.0, processes: 0.5 };
        assert!(close(failing.mean_down(10.0, 50.0).unwrap(), 32.968_032));
        let all = Failing { processes: 1.0, ..failing };
        assert!(close(all.mean_down(10.0, 50.0).unwrap(), 10.0));
        let none = Failing { processes: 0.0, ..failing };
        assert_eq!(none.mean_down(10.0, 50.0).unwrap(), 50.0);
    }

    /// The paper's third experiment: N = 200,000 on 30 x 30 processes, of which 30 have the checksums. A process has 8 times
    /// 200,000^2 / 870 bytes = 367.8 MB. ABFT recovery rebuilds all of these for a loss at the start and half of them at the end
    /// (no checksum contains L). Hot replacement rebuilds nothing at the start. In the worst case, at the end, it rebuilds as
    /// much as recovery: it "should approach that of HPL using ABFT recovery".
    #[test]
    fn the_third_experiment() {
        let repair = Repair { n: 200_000.0, p: 30, q: 29, link: LINK };
        assert!(close(repair.process_bytes().unwrap(), 367_816_091.95));
        assert_eq!(rebuilt_by_recovery(0.0).unwrap(), 1.0);
        assert_eq!(recomputed_by_replacement(0.0).unwrap(), 0.0);
        assert_eq!(rebuilt_by_recovery(1.0).unwrap(), recomputed_by_replacement(1.0).unwrap());
        assert!(close(rebuilt_by_recovery(0.5).unwrap(), 0.625));
        // 701.553 pieces of 512 KiB along a chain of thirty: 28 + 701.553 times 577.717 us.
        assert!(close(repair.recovery(0.0).unwrap(), 0.421_475));
        // A vector of 8 * 200,000 / 29 bytes and a latency.
        assert!(close(repair.replacement(0.0).unwrap(), 61.689_655e-6));
        // The same bytes along a chain with one process fewer, and that vector.
        let (worst, as_much) = (repair.replacement(1.0).unwrap(), repair.recovery(1.0).unwrap());
        assert!(close(as_much - worst + 61.689_655e-6, 577.717e-6), "{worst} {as_much}");
    }

    /// The average of x^2/2 over the time of a run is 1/20; x is the share of the rows that is factored.
    #[test]
    fn a_twentieth_on_average() {
        let steps = 100_000;
        let sum: f64 = (0..steps)
            .map(|i| {
                let t = (f64::from(i) + 0.5) / f64::from(steps);
                recomputed_by_replacement(1.0 - (1.0 - t).cbrt()).unwrap()
            })
            .sum();
        assert!((sum / f64::from(steps) - RECOMPUTED_ON_AVERAGE).abs() < 1e-5);
    }

    proptest! {
        /// If all failures are of nodes, the expected time is that of an unprotected run.
        #[test]
        fn nodes_alone_are_an_unprotected_run(q in 1u64..100, sums in 1..=Columns::SUMS_MAX, work in 1.0..1e5f64, mtbf in 1e4..1e7f64, from_scratch in 0.0..1e3f64) {
            let run = Replacement { replace: 1.0, from_scratch, ..plain(columns_of(q, sums), work) };
            let ours = run.expected(Failing { mtbf, processes: 0.0 }).unwrap();
            let none = segment_time(Segment { work, encode: 0.0, flush: 0.0 }, from_scratch, mtbf).unwrap();
            prop_assert!((ours / none - 1.0).abs() < 1e-9, "{ours} {none}");
        }

        #[test]
        fn more_is_borne_the_more_are_processes(q in 1u64..100, sums in 1..Columns::SUMS_MAX, work in 1.0..1e5f64, mtbf in 1e3..1e7f64, s in 0.0..0.9f64) {
            let run = Replacement { from_scratch: 10.0, ..plain(columns_of(q, sums), work) };
            let (here, more) = (Failing { mtbf, processes: s }, Failing { mtbf, processes: s + 0.1 });
            prop_assert!(run.finishes(here).unwrap() <= run.finishes(more).unwrap() * (1.0 + 1e-12));
            prop_assert!(run.finishes(more).unwrap() <= 1.0);
            prop_assert!(run.expected(here).unwrap() >= run.expected(more).unwrap() * (1.0 - 1e-9));
            prop_assert!(run.expected(more).unwrap() >= work * (1.0 - 1e-9));
            // A run with one more checksum column completes at least as often.
            let wider = Replacement { columns: columns_of(q, sums + 1), ..run };
            prop_assert!(run.finishes(more).unwrap() <= wider.finishes(more).unwrap() * (1.0 + 1e-9));
            // The mean cost lies between the costs of the two kinds of failure.
            let down = here.mean_down(1.0, 20.0).unwrap();
            prop_assert!((1.0 - 1e-6..=20.0 + 1e-6).contains(&down), "{down}");
        }

        #[test]
        fn replacing_never_costs_more_than_rebuilding(x in 0.0..=1.0f64) {
            prop_assert!(recomputed_by_replacement(x).unwrap() <= rebuilt_by_recovery(x).unwrap());
        }

        #[test]
        fn never_nan(a in any::<f64>(), b in any::<f64>(), c in any::<f64>(), d in any::<f64>(), e in any::<f64>(), q in any::<u64>(), sums in 0u64..6, waiting in any::<u64>()) {
            let failing = Failing { mtbf: a, processes: b };
            let columns = columns_of(q, sums);
            let renewing = Renewing { rows: waiting, waiting: q, each: b };
            let run = Replacement { columns, work: c, replace: d, from_scratch: e, renewing };
            let repair = Repair { n: c, p: q, q, link: Link { alpha: a, beta: d, gamma: e } };
            let ways = Ways { work: a, save: b, again: c, recover: d, in_place: e };
            for v in [run.expected(failing), run.finishes(failing), failing.mean_down(c, d), repair.recovery(b),
                      repair.replacement(b), rebuilt_by_recovery(a), ways.by_restarts(c), ways.in_place(failing),
                      repair.renewal_on_average(), ways.by_checksums(columns, renewing, failing)].into_iter().flatten() {
                prop_assert!(v.is_finite());
            }
        }
    }
}

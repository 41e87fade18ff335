//! The text HPL prints, equal to the byte in all parts that scripts read.
//!
//! The driver makes one [`TextReport`] a run and passes each test to it. The table, the W line, the residual line, the time lines
//! and the footer have the reference's exact shape: `grep -A 2`, column numbers and a dozen harnesses' patterns depend on them
//! (`tests/harness_patterns.rs`). So nothing else may be printed between a header and its W line, or after the rate. The prose
//! around them is our own.

use std::io::{self, Write};

use super::Counts;
use super::cformat::{ctime, exponent, fixed};
use crate::base::outcome::{Outcome, Residual, Times, Verdict};
use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};

const DOUBLE_RULE: &str =
    "================================================================================";
const RULE: &str =
    "--------------------------------------------------------------------------------";
const TIMING_RULE: &str =
    "--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV-";
const HEADER: &str =
    "T/V                N    NB     P     Q               Time                 Gflops";

/// The relative machine precision HPL takes: half the distance from 1 to the next double.
const EPS: f64 = f64::EPSILON / 2.0;

/// Settings of the run, as the head of the output repeats them: the lists of HPL.dat, the matrix's generator, the engine.
#[derive(Clone, Copy, Debug)]
pub struct Echo<'a> {
    pub ns: &'a [usize],
    pub nbs: &'a [usize],
    pub mapping: Mapping,
    /// P and Q of each grid.
    pub grids: &'a [(usize, usize)],
    pub pfacts: &'a [Fact],
    pub nbmins: &'a [usize],
    pub ndivs: &'a [usize],
    pub rfacts: &'a [Fact],
    pub bcasts: &'a [Bcast],
    pub depths: &'a [usize],
    pub swap: Swap,
    pub swap_threshold: usize,
    pub l1: Form,
    pub u: Form,
    pub equilibrate: bool,
    pub align: usize,
    pub rng: Rng,
    pub seed: u64,
    /// Name of each engine that multiplies.
    pub engine: &'a str,
    pub threshold: f64,
}

/// Text of a run, test by test.
///
/// Each method writes whole lines and flushes, so that a killed run leaves every finished test.
#[derive(Debug)]
pub struct TextReport {
    detailed: bool,
    checked: bool,
    /// Unchecked tests share one header, checked ones have one each.
    header_due: bool,
    counts: Counts,
}

impl TextReport {
    /// `detailed` adds the block of times by part to each test.
    pub fn new(threshold: f64, detailed: bool) -> Self {
        Self { detailed, checked: threshold > 0.0, header_due: true, counts: Counts::default() }
    }

    /// Prints program, settings and notes before the tests.
    pub fn begin(&self, out: &mut (impl Write + ?Sized), echo: &Echo<'_>) -> io::Result<()> {
        banner(out)?;
        parameters(out, echo)?;
        if self.checked {
            check_note(out, echo.threshold)?;
        }
        out.flush()
    }

    /// Prints a finished test: its W line and all that belongs to it.
    pub fn finished(
        &mut self,
        out: &mut (impl Write + ?Sized),
        params: &TestParams,
        outcome: &Outcome,
    ) -> io::Result<()> {
        if self.header_due {
            table_header(out)?;
            self.header_due = self.checked;
        }
        w_line(out, params, outcome.seconds, outcome.gflops)?;
        time_lines(out, outcome)?;
        if self.detailed {
            writeln!(out, "{TIMING_RULE}")?;
            times(out, &outcome.times)?;
            if !self.checked {
                writeln!(out, "{DOUBLE_RULE}")?;
            }
        }
        if let Some(residual) = &outcome.residual {
            residual_lines(out, residual, outcome.verdict)?;
        }
        self.counts.add(outcome.verdict);
        out.flush()
    }

    /// Prints a test that could not be run, and the reason.
    pub fn skipped(
        &mut self,
        out: &mut (impl Write + ?Sized),
        params: &TestParams,
        why: &str,
    ) -> io::Result<()> {
        // The reason is joined into a single line: the table must stay readable by line.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(
            out,
            ">>> skipped: N={} NB={} P={} Q={}: {why}",
            params.n, params.nb, params.p, params.q
        )?;
        self.counts.skipped += 1;
        out.flush()
    }

    /// Prints the totals. Called once, after the last test.
    pub fn end(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        // Unchecked tests with detailed times have just drawn this rule themselves.
        if self.checked || !self.detailed || self.header_due {
            writeln!(out, "{DOUBLE_RULE}")?;
        }
        footer(out, &self.counts, self.checked)?;
        out.flush()
    }

    /// Counts of the tests so far, which decide the exit code.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// Prints a line of progress: factored up to `column` of `n` in `seconds`.
///
/// Only the operations of the factorisation count, so the figure settles before the end.
pub fn progress(
    out: &mut (impl Write + ?Sized),
    n: usize,
    column: usize,
    seconds: f64,
) -> io::Result<()> {
    let (all, left) = (n as f64, n.saturating_sub(column) as f64);
    let seconds = if seconds > 0.0 { seconds } else { 1e-6 };
    let gflops = 2.0 * (all.powi(3) - left.powi(3)) / 3.0 / seconds / 1e9;
    let percent = if n == 0 { 100.0 } else { 100.0 * column as f64 / all };
    writeln!(
        out,
        "Column={column:09} Fraction={:>4}% Gflops={:>9}",
        fixed(percent, 1),
        exponent(gflops, 3)
    )?;
    out.flush()
}

fn banner(out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    writeln!(out, "{DOUBLE_RULE}")?;
    writeln!(
        out,
        "skt-hpl {}  --  High-Performance Linpack benchmark, written in Rust",
        env!("CARGO_PKG_VERSION")
    )?;
    writeln!(out, "Reads and prints what HPLinpack 2.3 does; not that program")?;
    writeln!(out, "{DOUBLE_RULE}")?;
    writeln!(out)?;
    writeln!(out, "What the columns and parameters mean:")?;
    writeln!(out, "T/V    : Kind of time (W, wall) and variant, see below.")?;
    writeln!(out, "N      : Rows and columns of A.")?;
    writeln!(out, "NB     : Rows and columns of a block.")?;
    writeln!(out, "P      : Rows of the grid of processes.")?;
    writeln!(out, "Q      : Columns of the grid of processes.")?;
    writeln!(out, "Time   : Seconds to factor and solve.")?;
    writeln!(out, "Gflops : Operations credited for that, in 10^9 a second.")?;
    writeln!(out)
}

fn parameters(out: &mut (impl Write + ?Sized), echo: &Echo<'_>) -> io::Result<()> {
    let (ps, qs): (Vec<_>, Vec<_>) = echo.grids.iter().copied().unzip();
    writeln!(out, "The values of this run:")?;
    writeln!(out)?;
    list(out, "N", &numbers(echo.ns))?;
    list(out, "NB", &numbers(echo.nbs))?;
    let mapping = match echo.mapping {
        Mapping::Row => "Row-major process mapping",
        Mapping::Column => "Column-major process mapping",
    };
    writeln!(out, "PMAP   : {mapping}")?;
    list(out, "P", &numbers(&ps))?;
    list(out, "Q", &numbers(&qs))?;
    list(out, "PFACT", &words(echo.pfacts, fact_word))?;
    list(out, "NBMIN", &numbers(echo.nbmins))?;
    list(out, "NDIV", &numbers(echo.ndivs))?;
    list(out, "RFACT", &words(echo.rfacts, fact_word))?;
    list(out, "BCAST", &words(echo.bcasts, bcast_word))?;
    list(out, "DEPTH", &numbers(echo.depths))?;
    match echo.swap {
        Swap::BinaryExchange => writeln!(out, "SWAP   : Binary-exchange")?,
        Swap::Long => writeln!(out, "SWAP   : Spread-roll (long)")?,
        Swap::Mix => writeln!(out, "SWAP   : Mix (threshold = {})", echo.swap_threshold)?,
    }
    writeln!(out, "L1     : {} form", form_word(echo.l1))?;
    writeln!(out, "U      : {} form", form_word(echo.u))?;
    writeln!(out, "EQUIL  : {}", if echo.equilibrate { "yes" } else { "no" })?;
    writeln!(out, "ALIGN  : {} double precision words", echo.align)?;
    writeln!(out, "RNG    : {}", rng_word(echo.rng))?;
    writeln!(out, "SEED   : {}", echo.seed)?;
    let not = if echo.rng.makes_hpl_matrix(echo.seed) { "" } else { "NOT " };
    writeln!(out, "MATRIX : {not}the matrix of HPL 2.3")?;
    writeln!(out, "ENGINE : {}", echo.engine)?;
    writeln!(out)
}

fn check_note(out: &mut (impl Write + ?Sized), threshold: f64) -> io::Result<()> {
    writeln!(out, "{RULE}")?;
    writeln!(out)?;
    writeln!(out, "- Every test draws its matrix A again, at random.")?;
    writeln!(out, "- Its solution x is checked by the scaled residual")?;
    writeln!(out, "      ||Ax-b||_oo / ( eps * ( || x ||_oo * || A ||_oo + || b ||_oo ) * N )")?;
    writeln!(
        out,
        "{:<58}{:>22}",
        "- The relative precision (eps) of a double is",
        exponent(EPS, 6)
    )?;
    writeln!(
        out,
        "{:<66}{:>14}",
        "- A test has passed if the scaled residual is less than",
        fixed(threshold, 1)
    )?;
    writeln!(out)
}

/// A line of the parameters, eight values a row.
fn list(out: &mut (impl Write + ?Sized), name: &str, values: &[String]) -> io::Result<()> {
    write!(out, "{name:<7}:")?;
    for (i, value) in values.iter().enumerate() {
        if i > 0 && i % 8 == 0 {
            write!(out, "\n        ")?;
        }
        write!(out, "{value:>8} ")?;
    }
    writeln!(out)
}

fn numbers(values: &[usize]) -> Vec<String> {
    values.iter().map(usize::to_string).collect()
}

fn words<T: Copy>(values: &[T], word: fn(T) -> &'static str) -> Vec<String> {
    values.iter().map(|&value| word(value).to_owned()).collect()
}

fn fact_word(fact: Fact) -> &'static str {
    match fact {
        Fact::Left => "Left",
        Fact::Crout => "Crout",
        Fact::Right => "Right",
    }
}

fn bcast_word(bcast: Bcast) -> &'static str {
    match bcast {
        Bcast::OneRing => "1ring",
        Bcast::OneRingM => "1ringM",
        Bcast::TwoRing => "2ring",
        Bcast::TwoRingM => "2ringM",
        Bcast::Long => "Blong",
        Bcast::LongM => "BlongM",
    }
}

fn rng_word(rng: Rng) -> &'static str {
    match rng {
        Rng::Hpl => "HPL 2.3",
        Rng::Xoshiro => "xoshiro256++",
    }
}

fn form_word(form: Form) -> &'static str {
    match form {
        Form::Transposed => "transposed",
        Form::NotTransposed => "no-transposed",
    }
}

fn table_header(out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    writeln!(out, "{DOUBLE_RULE}")?;
    writeln!(out, "{HEADER}")?;
    writeln!(out, "{RULE}")
}

/// The variant as the first column of the table codes it: `WR11C2R4`.
pub fn variant(params: &TestParams) -> String {
    let mapping = match params.mapping {
        Mapping::Row => 'R',
        Mapping::Column => 'C',
    };
    let bcast = match params.bcast {
        Bcast::OneRing => 0,
        Bcast::OneRingM => 1,
        Bcast::TwoRing => 2,
        Bcast::TwoRingM => 3,
        Bcast::Long => 4,
        Bcast::LongM => 5,
    };
    let initial = |fact| match fact {
        Fact::Left => 'L',
        Fact::Crout => 'C',
        Fact::Right => 'R',
    };
    format!(
        "W{mapping}{}{bcast}{}{}{}{}",
        params.depth,
        initial(params.rfact),
        params.ndiv,
        initial(params.pfact),
        params.nbmin
    )
}

fn w_line(
    out: &mut (impl Write + ?Sized),
    params: &TestParams,
    seconds: f64,
    gflops: f64,
) -> io::Result<()> {
    writeln!(
        out,
        "{}{:12} {:5} {:5} {:5} {:>18}    {:>19}",
        variant(params),
        params.n,
        params.nb,
        params.p,
        params.q,
        fixed(seconds, 2),
        exponent(gflops, 4)
    )
}

/// Prints start and end. Scripts look for the reference's routine name, so it stands here although ours is another.
fn time_lines(out: &mut (impl Write + ?Sized), outcome: &Outcome) -> io::Result<()> {
    let (started, ended) = (ctime(outcome.started_unix_s), ctime(outcome.ended_unix_s));
    writeln!(out, "HPL_pdgesv() start time {started}")?;
    writeln!(out, "HPL_pdgesv() end time   {ended}")
}

/// Prints the times of parts. Parts that took no time are left out, as the reference does; a leading `+` marks a time that is
/// contained in the line above without one.
fn times(out: &mut (impl Write + ?Sized), times: &Times) -> io::Result<()> {
    let lines = [
        ("Max aggregated wall time rfact . . . :", times.rfact),
        ("+ Max aggregated wall time pfact . . :", times.pfact),
        ("+ Max aggregated wall time mxswp . . :", times.mxswp),
        ("Max aggregated wall time bcast . . . :", times.bcast),
        ("Max aggregated wall time update  . . :", times.update),
        ("+ Max aggregated wall time laswp . . :", times.laswp),
        ("+ Max aggregated wall time trsm  . . :", times.trsm),
        ("+ Max aggregated wall time gemm  . . :", times.gemm),
        ("Max aggregated wall time up tr sv  . :", times.solve),
        ("Max aggregated wall time save  . . . :", times.save),
        ("Max aggregated wall time other . . . :", times.other),
        ("Max aggregated wall time total . . . :", times.total),
    ];
    for (name, seconds) in lines {
        if seconds > 0.0 {
            writeln!(out, "{name} {:>18}", fixed(seconds, 2))?;
        }
    }
    Ok(())
}

fn residual_lines(
    out: &mut (impl Write + ?Sized),
    residual: &Residual,
    verdict: Verdict,
) -> io::Result<()> {
    let passed = verdict == Verdict::Passed;
    writeln!(out, "{RULE}")?;
    writeln!(
        out,
        "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {:>16} ...... {}",
        exponent(residual.scaled, 8),
        if passed { "PASSED" } else { "FAILED" }
    )?;
    if passed {
        return Ok(());
    }
    let lines = [
        ("||Ax-b||_oo  . . . . . . . . . . . . . . . . . =", residual.r_inf),
        ("||A||_oo . . . . . . . . . . . . . . . . . . . =", residual.a_inf),
        ("||A||_1  . . . . . . . . . . . . . . . . . . . =", residual.a_1),
        ("||x||_oo . . . . . . . . . . . . . . . . . . . =", residual.x_inf),
        ("||x||_1  . . . . . . . . . . . . . . . . . . . =", residual.x_1),
        ("||b||_oo . . . . . . . . . . . . . . . . . . . =", residual.b_inf),
    ];
    for (name, norm) in lines {
        writeln!(out, "{name} {:>18}", fixed(norm, 6))?;
    }
    Ok(())
}

fn footer(out: &mut (impl Write + ?Sized), counts: &Counts, checked: bool) -> io::Result<()> {
    writeln!(out)?;
    writeln!(out, "Finished {:6} tests with the following results:", counts.total())?;
    let indent = "         ";
    if checked {
        writeln!(out, "{indent}{:6} tests completed and passed residual checks,", counts.passed)?;
        writeln!(out, "{indent}{:6} tests completed and failed residual checks,", counts.failed)?;
    } else {
        writeln!(out, "{indent}{:6} tests completed without checking,", counts.unchecked)?;
    }
    writeln!(out, "{indent}{:6} tests skipped because of illegal input values.", counts.skipped)?;
    writeln!(out, "{RULE}")?;
    writeln!(out)?;
    writeln!(out, "End of Tests.")?;
    writeln!(out, "{DOUBLE_RULE}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::test_values::{outcome, params};

    fn echo() -> Echo<'static> {
        Echo {
            ns: &[1, 2, 3, 4, 5, 6, 7, 8, 12000],
            nbs: &[192],
            mapping: Mapping::Row,
            grids: &[(2, 3), (1, 6)],
            pfacts: &[Fact::Left, Fact::Crout, Fact::Right],
            nbmins: &[4],
            ndivs: &[2],
            rfacts: &[Fact::Crout],
            bcasts: &[
                Bcast::OneRing,
                Bcast::OneRingM,
                Bcast::TwoRing,
                Bcast::TwoRingM,
                Bcast::Long,
                Bcast::LongM,
            ],
            depths: &[1],
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::NotTransposed,
            equilibrate: true,
            align: 8,
            rng: Rng::Hpl,
            seed: Rng::HPL_SEED,
            engine: "avx512-12x4",
            threshold: 16.0,
        }
    }

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Time lines of the shared test value, in the time zone of the tests.
    fn time_lines_of(outcome: &Outcome) -> String {
        format!(
            "HPL_pdgesv() start time {}\nHPL_pdgesv() end time   {}\n",
            ctime(outcome.started_unix_s),
            ctime(outcome.ended_unix_s)
        )
    }

    #[test]
    fn the_head() {
        let report = TextReport::new(16.0, false);
        let head = text(|out| report.begin(out, &echo()));
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "\
================================================================================
skt-hpl {version}  --  High-Performance Linpack benchmark, written in Rust
Reads and prints what HPLinpack 2.3 does; not that program
================================================================================

What the columns and parameters mean:
T/V    : Kind of time (W, wall) and variant, see below.
N      : Rows and columns of A.
NB     : Rows and columns of a block.
P      : Rows of the grid of processes.
Q      : Columns of the grid of processes.
Time   : Seconds to factor and solve.
Gflops : Operations credited for that, in 10^9 a second.

The values of this run:

N      :       1        2        3        4        5        6        7        8\u{20}
           12000\u{20}
NB     :     192\u{20}
PMAP   : Row-major process mapping
P      :       2        1\u{20}
Q      :       3        6\u{20}
PFACT  :    Left    Crout    Right\u{20}
NBMIN  :       4\u{20}
NDIV   :       2\u{20}
RFACT  :   Crout\u{20}
BCAST  :   1ring   1ringM    2ring   2ringM    Blong   BlongM\u{20}
DEPTH  :       1\u{20}
SWAP   : Mix (threshold = 64)
L1     : transposed form
U      : no-transposed form
EQUIL  : yes
ALIGN  : 8 double precision words
RNG    : HPL 2.3
SEED   : 100
MATRIX : the matrix of HPL 2.3
ENGINE : avx512-12x4

--------------------------------------------------------------------------------

- Every test draws its matrix A again, at random.
- Its solution x is checked by the scaled residual
      ||Ax-b||_oo / ( eps * ( || x ||_oo * || A ||_oo + || b ||_oo ) * N )
- The relative precision (eps) of a double is                       1.110223e-16
- A test has passed if the scaled residual is less than                     16.0

"
        );
        assert_eq!(head, expected);
    }

    #[test]
    fn the_other_words_of_the_head() {
        let other = Echo {
            mapping: Mapping::Column,
            swap: Swap::Long,
            l1: Form::NotTransposed,
            u: Form::Transposed,
            equilibrate: false,
            rng: Rng::Xoshiro,
            threshold: 0.0,
            ..echo()
        };
        let report = TextReport::new(other.threshold, false);
        let head = text(|out| report.begin(out, &other));
        assert!(head.contains("\nPMAP   : Column-major process mapping\n"));
        assert!(head.contains("\nSWAP   : Spread-roll (long)\n"));
        assert!(head.contains("\nL1     : no-transposed form\nU      : transposed form\n"));
        assert!(head.contains("\nEQUIL  : no\nALIGN  : 8 double precision words\n"));
        let matrix = "\nMATRIX : NOT the matrix of HPL 2.3\nENGINE : avx512-12x4\n\n";
        assert!(head.contains("\nRNG    : xoshiro256++\nSEED   : 100\n"));
        assert!(head.ends_with(matrix));
        let binary = Echo { swap: Swap::BinaryExchange, rng: Rng::Hpl, seed: 7, ..other };
        let head = text(|out| report.begin(out, &binary));
        assert!(head.contains("\nSWAP   : Binary-exchange\n"));
        assert!(head.contains("\nRNG    : HPL 2.3\nSEED   : 7\n"));
        assert!(head.ends_with(matrix));
    }

    #[test]
    fn twenty_values_make_three_rows() {
        let ns: Vec<usize> = (1..=20).collect();
        let line = text(|out| list(out, "N", &numbers(&ns)));
        let rows: Vec<_> = line.lines().collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].len(), 8 + 8 * 9);
        assert!(rows[1].starts_with("               9       10 "));
        assert_eq!(rows[2], "              17       18       19       20 ");
    }

    #[test]
    fn a_checked_run_with_a_failure_and_a_skip() {
        let mut report = TextReport::new(16.0, false);
        let good = outcome();
        let mut bad = outcome();
        bad.verdict = Verdict::Failed;
        if let Some(residual) = &mut bad.residual {
            residual.scaled = 1.5e3;
        }
        let run = text(|out| {
            report.finished(out, &params(), &good)?;
            report.skipped(out, &params(), "needs 9 GB,\nhas 8 GB")?;
            report.finished(out, &params(), &bad)?;
            report.end(out)
        });
        let times = time_lines_of(&good);
        let expected = format!(
            "\
================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4       12000   192     2     3               5.38             2.1438e+02
{times}\
--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   2.48598468e-03 ...... PASSED
>>> skipped: N=12000 NB=192 P=2 Q=3: needs 9 GB, has 8 GB
================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4       12000   192     2     3               5.38             2.1438e+02
{times}\
--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   1.50000000e+03 ...... FAILED
||Ax-b||_oo  . . . . . . . . . . . . . . . . . =           0.000000
||A||_oo . . . . . . . . . . . . . . . . . . . =         262.773468
||A||_1  . . . . . . . . . . . . . . . . . . . =         263.865287
||x||_oo . . . . . . . . . . . . . . . . . . . =          11.351297
||x||_1  . . . . . . . . . . . . . . . . . . . =        2619.625251
||b||_oo . . . . . . . . . . . . . . . . . . . =           0.499776
================================================================================

Finished      3 tests with the following results:
              1 tests completed and passed residual checks,
              1 tests completed and failed residual checks,
              1 tests skipped because of illegal input values.
--------------------------------------------------------------------------------

End of Tests.
================================================================================
"
        );
        assert_eq!(run, expected);
    }

    #[test]
    fn an_unchecked_run_with_detailed_times() {
        let mut report = TextReport::new(0.0, true);
        let mut done = outcome();
        done.verdict = Verdict::Unchecked;
        done.residual = None;
        let run = text(|out| {
            report.finished(out, &params(), &done)?;
            report.finished(out, &params(), &done)?;
            report.end(out)
        });
        let times = time_lines_of(&done);
        let test = format!(
            "\
WR11C2R4       12000   192     2     3               5.38             2.1438e+02
{times}\
--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV-
Max aggregated wall time rfact . . . :               0.25
+ Max aggregated wall time pfact . . :               0.12
+ Max aggregated wall time mxswp . . :               0.06
Max aggregated wall time update  . . :               5.00
+ Max aggregated wall time laswp . . :               0.25
+ Max aggregated wall time trsm  . . :               0.25
+ Max aggregated wall time gemm  . . :               4.50
Max aggregated wall time up tr sv  . :               0.06
Max aggregated wall time other . . . :               0.06
Max aggregated wall time total . . . :               5.38
================================================================================
"
        );
        let expected = format!(
            "\
================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
{test}{test}
Finished      2 tests with the following results:
              2 tests completed without checking,
              0 tests skipped because of illegal input values.
--------------------------------------------------------------------------------

End of Tests.
================================================================================
"
        );
        assert_eq!(run, expected);
        assert_eq!(report.counts().unchecked, 2);
    }

    #[test]
    fn a_residual_that_is_no_number() {
        let mut report = TextReport::new(16.0, false);
        let mut lost = outcome();
        lost.verdict = Verdict::Failed;
        if let Some(residual) = &mut lost.residual {
            residual.scaled = f64::NAN;
            residual.x_inf = f64::INFINITY;
        }
        let test = text(|out| report.finished(out, &params(), &lost));
        let line =
            "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=              nan ...... FAILED\n";
        assert!(test.contains(line), "{test}");
        assert!(test.contains(". =                inf\n"), "{test}");
    }

    #[test]
    fn the_variant_of_every_choice() {
        let mut p = params();
        p.mapping = Mapping::Column;
        p.depth = 3;
        p.ndiv = 4;
        p.nbmin = 16;
        for (bcast, digit) in [
            (Bcast::OneRing, 0),
            (Bcast::OneRingM, 1),
            (Bcast::TwoRing, 2),
            (Bcast::TwoRingM, 3),
            (Bcast::Long, 4),
            (Bcast::LongM, 5),
        ] {
            p.bcast = bcast;
            for (rfact, r) in [(Fact::Left, 'L'), (Fact::Crout, 'C'), (Fact::Right, 'R')] {
                p.rfact = rfact;
                for (pfact, f) in [(Fact::Left, 'L'), (Fact::Crout, 'C'), (Fact::Right, 'R')] {
                    p.pfact = pfact;
                    assert_eq!(variant(&p), format!("WC3{digit}{r}4{f}16"));
                }
            }
        }
    }

    #[test]
    fn progress_is_one_line() {
        let line = text(|out| progress(out, 16000, 192, 0.5));
        assert_eq!(line, "Column=000000192 Fraction= 1.2% Gflops=1.943e+02\n");
        let line = text(|out| progress(out, 16000, 16000, 0.0));
        assert_eq!(line, "Column=000016000 Fraction=100.0% Gflops=2.731e+09\n");
        let line = text(|out| progress(out, 0, 0, 1.0));
        assert_eq!(line, "Column=000000000 Fraction=100.0% Gflops=0.000e+00\n");
    }
}

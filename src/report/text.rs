//! Text that HPL prints. All parts that scripts read are identical to the byte.
//!
//! The driver makes one [`TextReport`] a run and passes each test to it. The table, the W line (the result of a test, which
//! begins with W), the residual line, the time lines and the footer have exactly the form of the reference HPL. `grep -A 2`,
//! column numbers and the patterns of many harnesses depend on this form (`tests/harness_patterns.rs`). So nothing else may be
//! printed between a header and its W line, or after the rate. The other text is our own.

use std::fmt::{Display, Write as _};

use super::Counts;
use super::cformat::{ctime, exponent, fixed};
use crate::base::outcome::{Outcome, Residual, Times, Verdict};
use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};
use crate::config::choices::Choice;
use crate::config::hpl_dat::HplDat;

const DOUBLE_RULE: &str =
    "================================================================================";
const RULE: &str =
    "--------------------------------------------------------------------------------";
const TIMING_RULE: &str =
    "--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV--VVV-";
const HEADER: &str =
    "T/V                N    NB     P     Q               Time                 Gflops";

/// Relative machine precision in HPL's check: half the distance from 1 to the next double.
const EPS: f64 = f64::EPSILON / 2.0;

/// Writer of the text of a run, test by test. Each method returns complete lines.
#[derive(Debug)]
pub struct TextReport {
    detailed: bool,
    checked: bool,
    /// True if the next test prints a header. Each checked test has a header; unchecked tests share one header.
    header_due: bool,
    /// Counts of the tests so far, which determine the exit status.
    pub counts: Counts,
}

impl TextReport {
    /// Returns the writer of a run. If `detailed`, each test has the times of the parts.
    pub fn new(threshold: f64, detailed: bool) -> Self {
        Self { detailed, checked: threshold > 0.0, header_due: true, counts: Counts::default() }
    }

    /// Returns the text before the tests: program, settings and notes. `engine` names each engine that multiplies.
    pub fn begin(&self, dat: &HplDat, rng: Rng, seed: u64, engine: &str) -> String {
        let note = if self.checked { check_note(dat.threshold) } else { String::new() };
        banner() + &parameters(dat, rng, seed, engine) + &note
    }

    /// Returns the text of a finished test: the line with its result, which begins with W, and the lines that belong to it.
    pub fn finished(&mut self, params: &TestParams, outcome: &Outcome) -> String {
        let mut text = String::new();
        if self.header_due {
            text += &format!("{DOUBLE_RULE}\n{HEADER}\n{RULE}\n");
            self.header_due = self.checked;
        }
        text += &w_line(params, outcome.seconds, outcome.gflops);
        text += &time_lines(outcome);
        if self.detailed {
            text += &times(&outcome.times);
            if !self.checked {
                text += &format!("{DOUBLE_RULE}\n");
            }
        }
        if let Some(residual) = &outcome.residual {
            text += &residual_lines(residual, outcome.verdict);
        }
        self.counts.add(outcome.verdict);
        text
    }

    /// Returns the text of a skipped test, with the reason.
    pub fn skipped(&mut self, params: &TestParams, why: &str) -> String {
        self.counts.skipped += 1;
        // The reason becomes a single line, since scripts read the table by lines.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let TestParams { n, nb, p, q, .. } = params;
        format!(">>> skipped: N={n} NB={nb} P={p} Q={q}: {why}\n")
    }

    /// Returns the text after the last test: the totals.
    pub fn end(&self) -> String {
        // If tests are unchecked and have detailed times, the last test has already printed this rule.
        let drawn = self.detailed && !self.checked && !self.header_due;
        let rule = if drawn { String::new() } else { format!("{DOUBLE_RULE}\n") };
        rule + &footer(&self.counts, self.checked)
    }
}

/// Returns a progress line: the matrix of order `n` is factored up to column `column` after `seconds`.
///
/// The rate counts only the operations of the factorisation, not those of the back substitution.
pub fn progress(n: usize, column: usize, seconds: f64) -> String {
    let (all, left) = (n as f64, n.saturating_sub(column) as f64);
    let seconds = if seconds > 0.0 { seconds } else { 1e-6 };
    let gflops = 2.0 * (all.powi(3) - left.powi(3)) / 3.0 / seconds / 1e9;
    let percent = if n == 0 { 100.0 } else { 100.0 * column as f64 / all };
    format!(
        "Column={column:09} Fraction={:>4}% Gflops={:>9}\n",
        fixed(percent, 1),
        exponent(gflops, 3)
    )
}

fn banner() -> String {
    format!(
        "{DOUBLE_RULE}
skt-hpl {}  --  High-Performance Linpack benchmark, written in Rust
Reads and prints what HPLinpack 2.3 does; not that program
{DOUBLE_RULE}

Columns and parameters:
T/V    : Kind of time (W, wall) and variant, see below.
N      : Rows and columns of A.
NB     : Rows and columns of a block.
P      : Rows of the grid of processes.
Q      : Columns of the grid of processes.
Time   : Seconds to factor and solve.
Gflops : Operations credited for that, in 10^9 a second.

",
        env!("CARGO_PKG_VERSION")
    )
}

fn parameters(dat: &HplDat, rng: Rng, seed: u64, engine: &str) -> String {
    let (ps, qs): (Vec<usize>, Vec<usize>) = dat.grids.iter().copied().unzip();
    let swap = match dat.swap {
        Swap::BinaryExchange => "Binary-exchange".to_owned(),
        Swap::Long => "Spread-roll (long)".to_owned(),
        Swap::Mix => format!("Mix (threshold = {})", dat.swap_threshold),
    };
    let not = if rng.makes_hpl_matrix(seed) { "" } else { "NOT " };
    [
        "The values of this run:\n\n".to_owned(),
        list("N", &dat.ns),
        list("NB", &dat.nbs),
        one("PMAP", format!("{}-major process mapping", mapping_word(dat.mapping))),
        list("P", ps),
        list("Q", qs),
        list("PFACT", dat.pfacts.iter().map(fact_word)),
        list("NBMIN", &dat.nbmins),
        list("NDIV", &dat.ndivs),
        list("RFACT", dat.rfacts.iter().map(fact_word)),
        list("BCAST", dat.bcasts.iter().map(bcast_word)),
        list("DEPTH", &dat.depths),
        one("SWAP", swap),
        one("L1", format!("{} form", form_word(dat.l1))),
        one("U", format!("{} form", form_word(dat.u))),
        one("EQUIL", if dat.equilibrate { "yes" } else { "no" }),
        one("ALIGN", format!("{} double precision words", dat.align)),
        one("RNG", rng_word(rng)),
        one("SEED", seed),
        one("MATRIX", format!("{not}the matrix of HPL 2.3")),
        one("ENGINE", engine),
        "\n".to_owned(),
    ]
    .concat()
}

fn check_note(threshold: f64) -> String {
    format!(
        "{RULE}

- Every test draws its matrix A again, at random.
- Its solution x is checked by the scaled residual
      ||Ax-b||_oo / ( eps * ( || x ||_oo * || A ||_oo + || b ||_oo ) * N )
{:<58}{:>22}
{:<66}{:>14}

",
        "- The relative precision (eps) of a double is",
        exponent(EPS, 6),
        "- A test has passed if the scaled residual is less than",
        fixed(threshold, 1)
    )
}

/// Returns the line of a parameter that has a single value.
fn one(name: &str, value: impl Display) -> String {
    format!("{name:<7}: {value}\n")
}

/// Returns the lines of a parameter that has several values, eight values a line.
fn list(name: &str, values: impl IntoIterator<Item: Display>) -> String {
    let mut text = format!("{name:<7}:");
    for (i, value) in values.into_iter().enumerate() {
        let break_before = if i > 0 && i % 8 == 0 { "\n        " } else { "" };
        let _ = write!(text, "{break_before}{value:>8} ");
    }
    text + "\n"
}

fn mapping_word(mapping: Mapping) -> &'static str {
    match mapping {
        Mapping::Row => "Row",
        Mapping::Column => "Column",
    }
}

fn fact_word(fact: &Fact) -> &'static str {
    match fact {
        Fact::Left => "Left",
        Fact::Crout => "Crout",
        Fact::Right => "Right",
    }
}

fn bcast_word(bcast: &Bcast) -> &'static str {
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

/// Returns the variant as it is in the first column of the table: initials and digits of the values in HPL.dat, such as
/// `WR11C2R4`.
pub fn variant(params: &TestParams) -> String {
    let initial = |word: &'static str| &word[..1];
    format!(
        "W{}{}{}{}{}{}{}",
        initial(mapping_word(params.mapping)),
        params.depth,
        params.bcast.digit(),
        initial(fact_word(&params.rfact)),
        params.ndiv,
        initial(fact_word(&params.pfact)),
        params.nbmin
    )
}

fn w_line(params: &TestParams, seconds: f64, gflops: f64) -> String {
    format!(
        "{}{:12} {:5} {:5} {:5} {:>18}    {:>19}\n",
        variant(params),
        params.n,
        params.nb,
        params.p,
        params.q,
        fixed(seconds, 2),
        exponent(gflops, 4)
    )
}

/// Returns the lines with the start and the end of a test. They name the routine of the reference HPL, because scripts search for
/// its name.
fn time_lines(outcome: &Outcome) -> String {
    let (started, ended) = (ctime(outcome.started_unix_s), ctime(outcome.ended_unix_s));
    format!("HPL_pdgesv() start time {started}\nHPL_pdgesv() end time   {ended}\n")
}

/// Returns the lines with the times of the parts. As in the reference HPL, a part that took no time has no line. The time of a
/// line with a leading `+` is contained in the last line above without `+`.
fn times(times: &Times) -> String {
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
    let mut text = format!("{TIMING_RULE}\n");
    for (name, seconds) in lines.into_iter().filter(|(_, seconds)| *seconds > 0.0) {
        let _ = writeln!(text, "{name} {:>18}", fixed(seconds, 2));
    }
    text
}

fn residual_lines(residual: &Residual, verdict: Verdict) -> String {
    let passed = verdict == Verdict::Passed;
    let mut text = format!(
        "{RULE}\n||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {:>16} ...... {}\n",
        exponent(residual.scaled, 8),
        if passed { "PASSED" } else { "FAILED" }
    );
    if passed {
        return text;
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
        let _ = writeln!(text, "{name} {:>18}", fixed(norm, 6));
    }
    text
}

fn footer(counts: &Counts, checked: bool) -> String {
    let line = |count: usize, what: &str| format!("         {count:6} tests {what}\n");
    let solved = if checked {
        line(counts.passed, "completed and passed residual checks,")
            + &line(counts.failed, "completed and failed residual checks,")
    } else {
        line(counts.unchecked, "completed without checking,")
    };
    let skipped = line(counts.skipped, "skipped because of illegal input values.");
    format!(
        "\nFinished {:6} tests with the following results:\n{solved}{skipped}{RULE}\n\nEnd of Tests.\n{DOUBLE_RULE}\n",
        counts.total()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::report::{outcome, params};

    const ENGINE: &str = "avx512-12x4";

    fn dat() -> HplDat {
        HplDat {
            ns: vec![1, 2, 3, 4, 5, 6, 7, 8, 12000],
            nbs: vec![192],
            mapping: Mapping::Row,
            grids: vec![(2, 3), (1, 6)],
            pfacts: vec![Fact::Left, Fact::Crout, Fact::Right],
            nbmins: vec![4],
            ndivs: vec![2],
            rfacts: vec![Fact::Crout],
            bcasts: vec![
                Bcast::OneRing,
                Bcast::OneRingM,
                Bcast::TwoRing,
                Bcast::TwoRingM,
                Bcast::Long,
                Bcast::LongM,
            ],
            depths: vec![1],
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::NotTransposed,
            equilibrate: true,
            align: 8,
            threshold: 16.0,
            ..HplDat::default()
        }
    }

    /// Returns the lines with the start and the end of `outcome`, in local time.
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
        let head = report.begin(&dat(), Rng::Hpl, Rng::HPL_SEED, ENGINE);
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "\
================================================================================
skt-hpl {version}  --  High-Performance Linpack benchmark, written in Rust
Reads and prints what HPLinpack 2.3 does; not that program
================================================================================

Columns and parameters:
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
        let other = HplDat {
            mapping: Mapping::Column,
            swap: Swap::Long,
            l1: Form::NotTransposed,
            u: Form::Transposed,
            equilibrate: false,
            threshold: 0.0,
            ..dat()
        };
        let report = TextReport::new(other.threshold, false);
        let head = report.begin(&other, Rng::Xoshiro, Rng::HPL_SEED, ENGINE);
        assert!(head.contains("\nPMAP   : Column-major process mapping\n"));
        assert!(head.contains("\nSWAP   : Spread-roll (long)\n"));
        assert!(head.contains("\nL1     : no-transposed form\nU      : transposed form\n"));
        assert!(head.contains("\nEQUIL  : no\nALIGN  : 8 double precision words\n"));
        let matrix = "\nMATRIX : NOT the matrix of HPL 2.3\nENGINE : avx512-12x4\n\n";
        assert!(head.contains("\nRNG    : xoshiro256++\nSEED   : 100\n"));
        assert!(head.ends_with(matrix));
        let binary = HplDat { swap: Swap::BinaryExchange, ..other };
        let head = report.begin(&binary, Rng::Hpl, 7, ENGINE);
        assert!(head.contains("\nSWAP   : Binary-exchange\n"));
        assert!(head.contains("\nRNG    : HPL 2.3\nSEED   : 7\n"));
        assert!(head.ends_with(matrix));
    }

    #[test]
    fn twenty_values_make_three_rows() {
        let ns: Vec<usize> = (1..=20).collect();
        let line = list("N", &ns);
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
        let run = [
            report.finished(&params(), &good),
            report.skipped(&params(), "needs 9 GB,\nhas 8 GB"),
            report.finished(&params(), &bad),
            report.end(),
        ]
        .concat();
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
        let run =
            [report.finished(&params(), &done), report.finished(&params(), &done), report.end()]
                .concat();
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
        assert_eq!(report.counts.unchecked, 2);
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
        let test = report.finished(&params(), &lost);
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
        let line = progress(16000, 192, 0.5);
        assert_eq!(line, "Column=000000192 Fraction= 1.2% Gflops=1.943e+02\n");
        let line = progress(16000, 16000, 0.0);
        assert_eq!(line, "Column=000016000 Fraction=100.0% Gflops=2.731e+09\n");
        let line = progress(0, 0, 1.0);
        assert_eq!(line, "Column=000000000 Fraction=100.0% Gflops=0.000e+00\n");
    }
}

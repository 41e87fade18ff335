//! Applies the patterns with which benchmark harnesses read HPL's output to our output.
//!
//! In any run, each pattern must find every W line with its rate, and nothing else. Harnesses read line by line or the whole text
//! at once. If a pattern took another line for a result, a harness would report it as a measurement.

mod patterns;

use patterns::{Expected, rate};
use proptest::prelude::*;
use regex::Regex;
use skt_hpl::base::outcome::{Outcome, Residual, SplitUpdates, Times, Verdict};
use skt_hpl::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};
use skt_hpl::config::hpl_dat::HplDat;
use skt_hpl::report::text::{TextReport, progress};

#[derive(Debug)]
struct Run {
    tests: Vec<(TestParams, Result<Outcome, String>)>,
    threshold: f64,
    detailed: bool,
    progress: bool,
    /// Number of repetitions of each list in the head of the output, so that a list fills several rows.
    repeat: usize,
}

impl Run {
    fn text(&self) -> String {
        let some = &self.tests[0].0;
        let ns: Vec<_> = self.tests.iter().map(|(params, _)| params.n).collect();
        let dat = HplDat {
            ns,
            nbs: vec![some.nb; self.repeat],
            mapping: some.mapping,
            grids: vec![(some.p, some.q); self.repeat],
            pfacts: vec![some.pfact; self.repeat],
            nbmins: vec![some.nbmin; self.repeat],
            ndivs: vec![some.ndiv; self.repeat],
            rfacts: vec![some.rfact; self.repeat],
            bcasts: vec![some.bcast; self.repeat],
            depths: vec![some.depth; self.repeat],
            swap: some.swap,
            swap_threshold: some.swap_threshold,
            l1: some.l1,
            u: some.u,
            equilibrate: some.equilibrate,
            align: some.align,
            threshold: self.threshold,
            ..HplDat::default()
        };
        let mut report = TextReport::new(self.threshold, self.detailed);
        let engines = "avx512-32x6, avx512-12x4, blas";
        let mut out = report.begin(&dat, some.rng, some.seed, engines);
        for (params, outcome) in &self.tests {
            match outcome {
                Ok(outcome) => {
                    if self.progress {
                        for column in (0..params.n).step_by(1 + params.n / 5) {
                            out += &progress(params.n, column, outcome.seconds);
                        }
                    }
                    out += &report.finished(params, outcome);
                }
                Err(why) => out += &report.skipped(params, why),
            }
        }
        out + &report.end()
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.tests.iter().filter_map(|(_, o)| o.as_ref().ok())
    }
}

fn every_pattern_holds(run: &Run) {
    let expected = Expected {
        rates: run.outcomes().map(|o| o.gflops).collect(),
        verdicts: run.outcomes().map(|o| o.verdict).collect(),
        skipped: run.tests.len() - run.outcomes().count(),
        checked: run.threshold > 0.0,
    };
    patterns::every_pattern_holds(&run.text(), &expected);
}

fn params() -> impl Strategy<Value = TestParams> {
    let fact = || prop_oneof![Just(Fact::Left), Just(Fact::Crout), Just(Fact::Right)];
    let form = || prop_oneof![Just(Form::Transposed), Just(Form::NotTransposed)];
    let bcast = prop_oneof![
        Just(Bcast::OneRing),
        Just(Bcast::OneRingM),
        Just(Bcast::TwoRing),
        Just(Bcast::TwoRingM),
        Just(Bcast::Long),
        Just(Bcast::LongM)
    ];
    let swap = prop_oneof![Just(Swap::BinaryExchange), Just(Swap::Long), Just(Swap::Mix)];
    let mapping = prop_oneof![Just(Mapping::Row), Just(Mapping::Column)];
    (
        (0usize..20_000_000, 1usize..2000, 1usize..500, 1usize..500),
        (mapping, 0usize..6, bcast, fact(), 2usize..9, fact(), 1usize..64),
        (swap, 0usize..200, form(), form(), any::<bool>(), 1usize..128),
        (prop_oneof![Just(Rng::Hpl), Just(Rng::Xoshiro)], any::<u64>()),
    )
        .prop_map(
            |(
                (n, nb, p, q),
                (mapping, depth, bcast, rfact, ndiv, pfact, nbmin),
                (swap, swap_threshold, l1, u, equilibrate, align),
                (rng, seed),
            )| TestParams {
                n,
                nb,
                p,
                q,
                mapping,
                depth,
                bcast,
                rfact,
                ndiv,
                pfact,
                nbmin,
                swap,
                swap_threshold,
                l1,
                u,
                equilibrate,
                align,
                threshold: 16.0,
                rng,
                seed,
            },
        )
}

/// Generates the outcome of a test that ran (`Ok`) or was skipped (`Err`), with a rate that all patterns can read.
fn outcome() -> impl Strategy<Value = Result<Outcome, String>> {
    let times = proptest::array::uniform13(0.0..1e5f64).prop_map(|t| Times {
        rfact: t[0],
        pfact: t[1],
        mxswp: t[2],
        bcast: t[3],
        update: t[4],
        laswp: t[5],
        laswp_wait: t[12],
        trsm: t[6],
        gemm: t[7],
        solve: t[8],
        save: t[9],
        other: t[10],
        total: t[11],
    });
    let rate = (10_000u32..99_999, 0i32..9)
        .prop_map(|(digits, power)| f64::from(digits) / 1e4 * 10f64.powi(power));
    let scaled = prop_oneof![0.0..40.0f64, Just(f64::NAN), Just(f64::INFINITY)];
    let ran = (times, rate, 0.001..1e6f64, scaled, 0u64..4_000_000_000).prop_map(
        |(times, gflops, seconds, scaled, started_unix_s)| {
            Ok(Outcome {
                started_unix_s,
                ended_unix_s: started_unix_s + seconds as u64,
                seconds,
                gflops,
                times,
                times_mean: times,
                residual: Some(Residual {
                    scaled,
                    r_inf: scaled * 1e-12,
                    a_inf: 262.773468,
                    a_1: 263.865287,
                    x_inf: 11.351297,
                    x_1: 2619.625251,
                    b_inf: 0.499776,
                }),
                verdict: if scaled < 16.0 { Verdict::Passed } else { Verdict::Failed },
                split_update: SplitUpdates::default(),
                x_digest: "0123456789abcdef".into(),
                threads: 2,
                matrix_bytes_max: 1,
                work_bytes_max: 2,
                resident_bytes_max: 3,
                protection: None,
                checksums: None,
                timeline: skt_hpl::base::timeline::Timeline::default(),
                power: None,
            })
        },
    );
    let skipped = Just(Err(
        "it needs 23.5 GiB on each of 4 nodes,\n  but rank 3 of 8 has 21.0 GiB".to_owned(),
    ));
    prop_oneof![4 => ran, 1 => skipped]
}

fn run() -> impl Strategy<Value = Run> {
    (
        proptest::collection::vec((params(), outcome()), 1..20),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        1usize..21,
    )
        .prop_map(|(mut tests, checked, detailed, progress, repeat)| {
            let threshold = if checked { 16.0 } else { 0.0 };
            for (params, outcome) in &mut tests {
                params.threshold = threshold;
                if let (false, Ok(outcome)) = (checked, outcome) {
                    outcome.residual = None;
                    outcome.verdict = Verdict::Unchecked;
                }
            }
            Run { tests, threshold, detailed, progress, repeat }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_pattern_finds_the_w_lines_and_nothing_else(run in run()) {
        every_pattern_holds(&run);
    }

    /// The pattern of CSCS, which names one variant (`WR05L2L8`), finds the rate of every test of a run that has only this
    /// variant.
    #[test]
    fn the_pattern_of_cscs(mut run in run()) {
        for (params, _) in &mut run.tests {
            params.mapping = Mapping::Row;
            params.depth = 0;
            params.bcast = Bcast::LongM;
            params.rfact = Fact::Left;
            params.ndiv = 2;
            params.pfact = Fact::Left;
            params.nbmin = 8;
        }
        let expected: Vec<_> = run.outcomes().map(|o| rate(o.gflops)).collect();
        let pattern = Regex::new(r"WR05L2L8(\s+\d+(.\d+)?){5}\s+(?P<perf>\S+)").unwrap();
        let text = run.text();
        let found: Vec<_> = pattern
            .captures_iter(&text)
            .map(|found| found["perf"].to_owned())
            .collect();
        prop_assert_eq!(found, expected);
    }
}

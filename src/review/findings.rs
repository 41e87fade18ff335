//! Conclusions from the documents of `--json`: the best result, the parts of its time, and the comparison with the plan.

use super::sources::{Material, Prediction};
use crate::base::outcome::{Outcome, Times, Verdict};
use crate::base::params::TestParams;
use crate::base::timeline::{Timeline, flops_until};
use crate::base::units::{show_flops, show_seconds};
use crate::model::cores::multiplied;
use crate::model::fit::{Fit, Sample, best_of_each, fit};
use crate::report::json::{Run, Test};
use crate::report::machine::Kind;

/// A solved test, and the file that contains it.
#[derive(Clone, Copy, Debug)]
pub struct Solved<'a> {
    pub file: &'a str,
    pub run: &'a Run,
    pub test: &'a Test,
    pub outcome: &'a Outcome,
}

impl Solved<'_> {
    /// Returns the engine of the test. If the test does not name its engine, as in older documents, returns the engine of the
    /// run.
    pub fn engine(&self) -> &str {
        match self.test.engine.as_str() {
            "" => &self.run.blas.engine,
            own => own,
        }
    }

    /// Returns the rate of the test in flop/s.
    pub fn rate(&self) -> f64 {
        self.outcome.gflops * 1e9
    }

    /// Returns a short label that distinguishes this test from other tests.
    pub fn label(&self) -> String {
        let p = &self.test.params;
        format!("{} #{}: N={} NB={} {}x{}", self.file, self.test.number, p.n, p.nb, p.p, p.q)
    }

    /// Returns whether the test was solved without a restart and without a loss.
    pub fn once(&self) -> bool {
        self.outcome.protection.is_none_or(|p| p.attempts == 1)
            && self.outcome.checksums.as_ref().is_none_or(|c| c.losses == 0)
    }

    /// Returns a lower bound of the flop/s during multiplication. It is computed from a mean time of the ranks, which with
    /// several threads includes other work than multiplications. None after a restart or a loss, because the times are then not
    /// those of the whole test.
    pub fn multiplying(&self) -> Option<f64> {
        let times = &self.outcome.times_mean;
        let seconds = match self.outcome.threads {
            0 | 1 => times.gemm,
            // Some threads multiply while the thread that measures the times exchanges rows or factors the next panel.
            _ => times.update + times.rfact,
        };
        let operations = multiplied(self.test.params.n as f64, self.test.params.nb as f64);
        (self.once() && seconds > 0.0 && operations > 0.0).then(|| operations / seconds)
    }

    pub fn result(&self) -> String {
        let p = &self.test.params;
        let checked = match (&self.outcome.residual, self.outcome.verdict) {
            (Some(r), Verdict::Passed) => format!("residual {:.3e}, PASSED", r.scaled),
            (Some(r), _) => format!("residual {:.3e}, FAILED", r.scaled),
            (None, _) => "not checked".to_owned(),
        };
        format!(
            "N={} NB={} grid {}x{}: {} s, {}; {checked}",
            p.n,
            p.nb,
            p.p,
            p.q,
            short(self.outcome.seconds),
            show_flops(self.rate())
        )
    }
}

/// Returns all tests that were solved, in the order of the files.
pub fn solved(material: &Material) -> Vec<Solved<'_>> {
    let mut all = Vec::new();
    for (file, run) in &material.runs {
        for test in &run.tests {
            if let Some(outcome) = &test.outcome {
                all.push(Solved { file, run, test, outcome });
            }
        }
    }
    all
}

/// Returns the fastest test that passed its check, whose rate is the Rmax of a submission. None if no test passed.
pub fn best<'a>(all: &[Solved<'a>]) -> Option<Solved<'a>> {
    let passed = all.iter().filter(|s| s.outcome.verdict == Verdict::Passed);
    passed.max_by(|a, b| a.outcome.gflops.total_cmp(&b.outcome.gflops)).copied()
}

/// Returns the parts of the time with their names, in seconds. Their sum is the total time.
pub fn parts(times: &Times) -> [(&'static str, f64); 8] {
    [
        ("multiplication", times.gemm),
        ("triangular solve", times.trsm),
        ("row swaps", times.laswp),
        ("panel factorisation", times.rfact),
        ("waiting for panels", times.bcast),
        ("back substitution", times.solve),
        ("saves", times.save),
        ("other", times.other),
    ]
}

/// Returns the distinct machines of all runs, each with the files that describe it. Machines that differ only in clock frequency
/// are one machine.
pub fn machines(material: &Material) -> Vec<(&[Kind], Vec<&str>)> {
    let alike = |a: &[Kind], b: &[Kind]| {
        a.len() == b.len()
            && a.iter()
                .zip(b)
                .all(|(a, b)| (&a.make, &a.hosts, a.ranks_max) == (&b.make, &b.hosts, b.ranks_max))
    };
    let mut told: Vec<(&[Kind], Vec<&str>)> = Vec::new();
    for (file, run) in &material.runs {
        match told.iter_mut().find(|(kinds, _)| alike(kinds, &run.machine.kinds)) {
            Some((_, files)) => files.push(file),
            None => told.push((&run.machine.kinds, vec![file])),
        }
    }
    told
}

/// Rates of a test over a step: a range of iterations that ends at `iteration`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub iteration: u64,
    /// Seconds since the timer started.
    pub seconds: f64,
    /// Gflop/s since the previous step.
    pub gflops: f64,
    pub gflops_so_far: f64,
}

/// Returns the rates of a test, in steps that are long enough to be visible in a drawing.
pub fn rates(timeline: &Timeline, params: &TestParams) -> Vec<Step> {
    let total = timeline.seconds.last().copied().unwrap_or(0.0);
    let (mut from, mut since) = (timeline.iteration.first().copied().unwrap_or(0), 0.0);
    let done = |k| flops_until(params.n, params.nb, k) / 1e9;
    let mut steps = Vec::new();
    let last = timeline.iteration.len().saturating_sub(1);
    for (i, (&k, &at)) in timeline.iteration.iter().zip(&timeline.seconds).enumerate() {
        let long = at - since >= total / 40.0;
        if at > since && k > from && (long || i == last) {
            steps.push(Step {
                iteration: k,
                seconds: at,
                gflops: (done(k) - done(from)) / (at - since),
                gflops_so_far: done(k) / at,
            });
            (from, since) = (k, at);
        }
    }
    steps
}

/// Fits the rate as a function of N to the passed tests with the number of processes and hosts of the best test. Also returns the
/// order N at which half of the best rate is reached. Returns an error if the tests have fewer than two sizes, or if the rate
/// does not grow with N.
pub fn half(all: &[Solved], best: &Solved) -> Result<(Fit, f64), String> {
    let alike = all.iter().filter(|s| {
        let (a, b) = (&s.test.params, &best.test.params);
        s.outcome.verdict == Verdict::Passed
            && a.p * a.q == b.p * b.q
            && s.run.mpi.hosts == best.run.mpi.hosts
            && a.n > 0
    });
    let samples: Vec<Sample> = alike
        .map(|s| Sample {
            n: s.test.params.n as f64,
            nb: s.test.params.nb as u64,
            p: s.test.params.p as u64,
            q: s.test.params.q as u64,
            threads: Some(s.outcome.threads as u64),
            seconds: s.test.params.flops() / s.rate(),
            rate: s.rate(),
        })
        .collect();
    let fit = fit(&best_of_each(&samples), None).map_err(|e| e.to_string())?;
    let wanted = best.rate() / 2.0;
    // R(N) = R_inf N / (N + N_half) = Rmax / 2, solved for N.
    let n = fit.model.n_half * wanted / (fit.model.r_inf - wanted);
    if n > 0.0 && n.is_finite() {
        Ok((fit, n))
    } else {
        Err("the rates do not grow with N in these runs: measure smaller problems too".into())
    }
}

/// Returns table rows: the name of a quantity, the expected value and the measured value.
pub fn predicted_and_measured(prediction: &Prediction, solved: &Solved) -> Vec<[String; 3]> {
    let outcome = solved.outcome;
    let protection = outcome.protection.unwrap_or_default();
    let in_place = outcome.checksums.as_ref();
    let in_place = in_place.map_or(0.0, |c| c.going_on_s + c.recompute_s + c.renew_s);
    let undisturbed =
        outcome.seconds - protection.lost_s - protection.down_s - protection.restore_s - in_place;
    let rate = solved.test.params.flops() / undisturbed.max(1e-9);
    let times = |what: &str, expected: f64, measured: f64| {
        [what.to_owned(), show_seconds(expected), show_seconds(measured)]
    };
    let mut rows = vec![
        times("time without failures", prediction.seconds_saved, undisturbed),
        ["rate over that time".into(), show_flops(prediction.rate_saved), show_flops(rate)],
        ["saves".into(), prediction.saves.to_string(), protection.saves.to_string()],
        times("time of the saves", prediction.saving, protection.save_s),
    ];
    let expected = prediction.seconds_expected;
    rows.extend(expected.map(|seconds| times("time with failures", seconds, outcome.seconds)));
    rows
}

/// Formats a number, such as a number of seconds, with four significant digits.
pub fn short(value: f64) -> String {
    let digits =
        if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).clamp(0, 6) };
    format!("{value:.*}", digits as usize)
}

#[cfg(test)]
pub(super) use tests::material;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::outcome::Checksums;
    use crate::review::sources::{plan_text, run_text};

    pub(in crate::review) fn material() -> Material {
        let mut material = Material::default();
        material.add("a.json", &run_text()).unwrap();
        material.add("plan.json", &plan_text()).unwrap();
        material
    }

    #[test]
    fn the_rate_is_told_in_steps_that_add_up() {
        let material = material();
        let all = solved(&material);
        let steps = rates(&all[0].outcome.timeline, &all[0].test.params);
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[0].iteration, steps[0].seconds), (30, 3.0));
        assert!((steps[0].gflops - steps[0].gflops_so_far).abs() < 1e-9);
        let all_of_it = steps[1].gflops_so_far * 5.25;
        assert!((all_of_it - flops_until(12000, 192, 63) / 1e9).abs() < 1e-6);
        assert_eq!(rates(&Timeline::default(), &all[0].test.params), []);
    }

    /// Slower variants, and runs with fewer threads, are left out of the fit.
    #[test]
    fn half_of_the_rate_follows_from_the_best_runs() {
        let mut run: serde_json::Value = serde_json::from_str(&run_text()).unwrap();
        let one = run["tests"][0].clone();
        let test = |n: f64, part: f64, threads: u64| {
            let mut test = one.clone();
            test["params"]["n"] = (n as u64).into();
            test["outcome"]["gflops"] = (part * 100.0 * n / (n + 1000.0)).into();
            test["outcome"]["threads"] = threads.into();
            test
        };
        let sizes = [1000.0, 2000.0, 4000.0, 8000.0];
        let all = |part, threads| sizes.map(|n| test(n, part, threads)).to_vec();
        let slow: Vec<_> = [0.3, 0.5, 0.6].iter().map(|part| test(8000.0, *part, 4)).collect();
        for tests in
            [all(1.0, 4), [all(1.0, 4), slow].concat(), [all(1.0, 4), all(0.4, 1)].concat()]
        {
            run["tests"] = tests.into();
            let mut material = Material::default();
            material.add("a.json", &run.to_string()).unwrap();
            let solved = solved(&material);
            let (_, n) = half(&solved, &best(&solved).unwrap()).unwrap();
            assert!((n - 800.0).abs() < 1.0, "{n}");
        }
    }

    #[test]
    fn planned_and_measured_values_stand_in_one_row() {
        let material = material();
        let all = solved(&material);
        let plan = material.planned(&all[0].test.params).unwrap();
        // The sample document has both kinds of protection.
        let mut outcome = all[0].outcome.clone();
        let checksums = outcome.checksums.take().unwrap();
        let rows = predicted_and_measured(plan, &Solved { outcome: &outcome, ..all[0] });
        assert_eq!(rows[0], ["time without failures", "5.0 s", "4.5 s"].map(String::from));
        assert_eq!(rows[2], ["saves", "8", "9"].map(String::from));
        assert_eq!(rows.len(), 4, "no failures were expected");
        // With checksums, the measured time includes the time of recoveries.
        outcome.protection = None;
        outcome.checksums =
            Some(Checksums { going_on_s: 0.25, recompute_s: 0.5, renew_s: 0.75, ..checksums });
        let rows = predicted_and_measured(plan, &Solved { outcome: &outcome, ..all[0] });
        assert_eq!(rows[0][2], show_seconds(outcome.seconds - 1.5));
    }

    #[test]
    fn the_rate_of_the_multiplications_is_none_that_nobody_reached() {
        let material = material();
        let sample = solved(&material)[0];
        let (mut test, mut outcome) = (sample.test.clone(), sample.outcome.clone());
        (outcome.protection, outcome.checksums) = (None, None);
        // With panels of a fifth of N, more than a quarter of all operations are not multiplication.
        (test.params.n, test.params.nb) = (1000, 200);
        let operations: f64 =
            [800.0, 600.0, 400.0, 200.0].map(|r| 2.0 * 200.0 * r * r).iter().sum();
        let rate = |threads, times: Times| {
            let outcome = Outcome { threads, times_mean: times, ..outcome.clone() };
            Solved { test: &test, outcome: &outcome, ..sample }.multiplying().unwrap()
        };
        let of = |gemm, rfact, update| Times { gemm, rfact, update, ..Times::default() };
        assert_eq!(rate(1, of(operations, 7.0, operations + 9.0)), 1.0);
        // Two threads multiply during `gemm`, and one during the panels, with one operation a second each.
        let (gemm, rfact) = (0.4 * operations, 0.2 * operations);
        assert!(rate(2, of(gemm, rfact, gemm)) <= 2.0);
    }

    #[test]
    fn parts_are_the_whole() {
        let material = material();
        let times = &solved(&material)[0].outcome.times_mean;
        let sum: f64 = parts(times).iter().map(|p| p.1).sum();
        assert!((sum - times.total).abs() < 0.3, "the example's own parts do not add up better");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(5.375), "5.375");
        assert_eq!(short(12345.6), "12346");
    }
}

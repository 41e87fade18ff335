//! Rate for any N from measured runs: reads results and fits the efficiency model.
//!
//! Results come from our own output, from the output of the reference HPL (both print the same W line), or from JSON. The model
//! is eq. 2 of *self-checkpoint* in rates: R(N) = R_inf N / (N + N_half), where a = peak / R_inf and b = a N_half.

use serde::Serialize;
use serde_json::Value;

use super::efficiency::Efficiency;
use super::error::{Result, finite, non_negative, positive, refused};

/// A measured run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub n: f64,
    pub nb: u64,
    pub p: u64,
    pub q: u64,
    /// Threads of each rank, if the result states them.
    pub threads: Option<u64>,
    pub seconds: f64,
    /// Flop/s.
    pub rate: f64,
}

impl Sample {
    /// A run of a single rank.
    pub fn of(n: f64, seconds: f64) -> Self {
        Self { n, nb: 0, p: 1, q: 1, threads: None, seconds, rate: flops(n) / seconds }
    }

    pub fn ranks(&self) -> u64 {
        self.p.saturating_mul(self.q)
    }

    /// Returns the sample with the seconds that follow from its rate. Returns None if the numbers cannot be those of a run. The
    /// time on a W line has two decimals; the rate has five digits and is more precise.
    fn if_sound(self) -> Option<Self> {
        let Self { n, p, q, threads, seconds, rate, .. } = self;
        let sound =
            n >= 1.0 && p >= 1 && q >= 1 && rate.is_finite() && rate > 0.0 && seconds >= 0.0;
        let threads = threads.filter(|threads| *threads > 0);
        sound.then(|| Self { threads, seconds: flops(n) / rate, ..self })
    }
}

/// Number of operations that HPL counts: N^2 (2N/3 + 3/2).
pub fn flops(n: f64) -> f64 {
    n * n * (2.0 * n / 3.0 + 1.5)
}

/// Rate of a machine as a function of N.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RateModel {
    /// Flop/s that the rate approaches for large N.
    pub r_inf: f64,
    /// Order at which the rate reaches half of `r_inf`.
    pub n_half: f64,
}

impl RateModel {
    pub fn new(r_inf: f64, n_half: f64) -> Result<Self> {
        positive("the asymptotic rate", r_inf)?;
        non_negative("the half-rate order", n_half)?;
        Ok(Self { r_inf, n_half })
    }

    /// Flop/s at order `n`.
    pub fn rate(&self, n: f64) -> Result<f64> {
        positive("the order N", n)?;
        finite("the rate", self.r_inf * (n / (n + self.n_half)))
    }

    /// Seconds for order `n`; zero at n = 0, so that the remaining time of a run can be computed up to its end.
    pub fn seconds(&self, n: f64) -> Result<f64> {
        non_negative("the order N", n)?;
        finite("the run time", (2.0 / 3.0 * n * n + 1.5 * n) * (n + self.n_half) / self.r_inf)
    }

    /// Returns the model in the form of the paper's efficiency, for a machine with `peak` flop/s.
    pub fn efficiency(&self, peak: f64) -> Result<Efficiency> {
        positive("the peak", peak)?;
        let a = peak / self.r_inf;
        Efficiency::new(a, a * self.n_half)
    }

    /// Carries the model over from `from` ranks to `to` ranks of the same kind. The asymptotic rate grows in proportion, the
    /// half-rate order with the square root (equal efficiency at equal local size).
    pub fn scaled(&self, from: u64, to: u64) -> Result<Self> {
        let ratio = positive("the number of ranks", to as f64)?
            / positive("the number of ranks", from as f64)?;
        Self::new(self.r_inf * ratio, self.n_half * ratio.sqrt())
    }
}

/// A fit and its quality.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    pub model: RateModel,
    /// Largest relative difference between a sample's time and the model's.
    pub worst: f64,
    pub samples: usize,
}

/// Least squares over the relative error of the time: minimises the sum of (1 - model time / measured time)^2, which is linear in
/// 1/R_inf and N_half/R_inf. With samples of a single N, `n_half` must be given.
pub fn fit(samples: &[Sample], n_half: Option<f64>) -> Result<Fit> {
    if samples.is_empty() {
        return refused("there is no measured run to fit: give at least one result line");
    }
    for s in samples {
        positive("the order N of a sample", s.n)?;
        positive("the rate of a sample", s.rate)?;
    }
    let first = samples[0].n;
    let several = samples.iter().any(|s| (s.n / first - 1.0).abs() > 1e-9);
    let model = if several {
        // Rows (R, R/N) x = 1 with x = (1/R_inf, N_half/R_inf); scaled so that the products neither overflow nor underflow.
        let r0 = samples.iter().map(|s| s.rate).fold(0.0, f64::max);
        let n0 = first;
        let sum = |term: fn(f64, f64) -> f64| -> f64 {
            samples.iter().map(|s| term(s.rate / r0, s.rate / r0 * n0 / s.n)).sum()
        };
        let (aa, ab, bb) = (sum(|u, _| u * u), sum(|u, v| u * v), sum(|_, v| v * v));
        let (a1, b1) = (sum(|u, _| u), sum(|_, v| v));
        let det = aa * bb - ab * ab;
        let (x, y) = ((a1 * bb - b1 * ab) / det, (aa * b1 - ab * a1) / det);
        if det.is_finite() && det > 0.0 && x > 0.0 && y >= 0.0 {
            RateModel::new(r0 / x, n0 * y / x)?
        } else if x.is_finite() && y < 0.0 {
            // Smaller problems ran faster, which noise can cause. The best model is then a constant rate, with N_half = 0.
            RateModel::new(r0 * aa / a1, 0.0)?
        } else {
            return refused(
                "the measured rates do not follow the model: they grow too fast with N; \
                 measure larger problems",
            );
        }
    } else {
        let Some(n_half) = n_half else {
            let why = "the fit needs at least two sizes";
            return refused(format!("all measured runs have N = {first}: {why}"));
        };
        non_negative("the half-rate order", n_half)?;
        let mean = samples.iter().map(|s| s.rate).sum::<f64>() / samples.len() as f64;
        RateModel::new(mean * (1.0 + n_half / first), n_half)?
    };
    let mut worst = 0.0_f64;
    for s in samples {
        worst = worst.max((s.rate / model.rate(s.n)? - 1.0).abs());
    }
    Ok(Fit { model, worst: finite("the residual of the fit", worst)?, samples: samples.len() })
}

/// Selects results for a fit. Only results on the largest number of ranks count, and of these only results with as many threads
/// as the fastest. Of the rest, the fastest result for each N is selected. Other work of a machine can only slow a run down, and
/// slower variants do not show the machine's rate.
pub fn best_of_each(all: &[Sample]) -> Vec<Sample> {
    let most = all.iter().map(Sample::ranks).max();
    let on_most = || all.iter().filter(|s| Some(s.ranks()) == most);
    let threads = on_most().max_by(|a, b| a.rate.total_cmp(&b.rate)).map(|s| s.threads);
    let mut best: Vec<Sample> = Vec::new();
    for sample in on_most().filter(|s| Some(s.threads) == threads) {
        match best.iter_mut().find(|b| b.n == sample.n) {
            Some(b) if b.rate < sample.rate => *b = *sample,
            Some(_) => {}
            None => best.push(*sample),
        }
    }
    best
}

/// Reads every result in `text` that is not marked as wrong: W lines of any HPL, or JSON (one document, or one document per
/// line).
pub fn read(text: &str) -> Vec<Sample> {
    results(text, false)
}

/// Returns the last result in `text`, even if it is marked as wrong: it still shows the size of the problem and the speed.
pub fn last(text: &str) -> Option<Sample> {
    results(text, true).pop()
}

fn results(text: &str, wrong_ones_too: bool) -> Vec<Sample> {
    let mut found = Vec::new();
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        collect(&value, Shape::default(), &mut found);
        return found;
    }
    // Whether the last result that was read is still in the list.
    let mut last = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with('{') {
            if let Ok(value) = serde_json::from_str::<Value>(line) {
                collect(&value, Shape::default(), &mut found);
            }
        } else if let Some(sample) = result_line(line) {
            found.push(sample);
            last = true;
        } else if line.starts_with("||Ax-b||")
            && line.ends_with("FAILED")
            && last
            && !wrong_ones_too
        {
            // The line of the verdict follows the result. There may be several such lines.
            found.pop();
            last = false;
        }
    }
    found
}

/// Parses a line such as `WR11C2R4  12000  192  1  2  5.58  2.0645e+02`: variant, N, NB, P, Q, seconds, Gflop/s. None if the
/// line is no result.
fn result_line(line: &str) -> Option<Sample> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [variant, n, nb, p, q, seconds, gflops] = words[..] else { return None };
    let known = variant.len() >= 7 && (variant.starts_with("WR") || variant.starts_with("WC"));
    let whole = |word: &str| word.parse::<u64>().ok();
    let number = |word: &str| word.parse::<f64>().ok();
    let (n, seconds, rate) = (whole(n)? as f64, number(seconds)?, number(gflops)? * 1e9);
    let sample =
        Sample { n, nb: whole(nb)?, p: whole(p)?, q: whole(q)?, threads: None, seconds, rate };
    sample.if_sound().filter(|_| known)
}

#[derive(Clone, Copy, Default)]
struct Shape {
    n: Option<f64>,
    nb: Option<u64>,
    p: Option<u64>,
    q: Option<u64>,
}

impl Shape {
    /// Returns the shape with each number that the object `value` states.
    fn with(self, value: &Value) -> Self {
        let number = |names: [&str; 2]| names.iter().find_map(|k| value.get(*k));
        let whole = |names| number(names).and_then(Value::as_u64);
        Self {
            n: number(["n", "N"]).and_then(Value::as_f64).or(self.n),
            nb: whole(["nb", "NB"]).or(self.nb),
            p: whole(["p", "P"]).or(self.p),
            q: whole(["q", "Q"]).or(self.q),
        }
    }
}

/// Seconds of saves and failures in a result, according to its JSON. A plan adds its own saves and failures, so these are
/// subtracted.
fn disturbed(outcome: &Value) -> f64 {
    let parts = [
        ("protection", &["save_s", "lost_s", "down_s", "restore_s"][..]),
        ("checksums", &["going_on_s", "recompute_s", "renew_s"]),
    ];
    let seconds = |(part, names): (&str, &[&str])| -> f64 {
        names.iter().filter_map(|name| outcome.get(part)?.get(name)?.as_f64()).sum()
    };
    parts.into_iter().map(seconds).sum()
}

/// Collects results: objects with `gflops` and `seconds`. The problem's shape is in the same object, in an object next to it
/// (`params` next to `outcome`), or in an enclosing object.
fn collect(value: &Value, mut shape: Shape, found: &mut Vec<Sample>) {
    match value {
        Value::Object(map) => {
            for child in map.values().filter(|child| child.get("gflops").is_none()) {
                shape = shape.with(child);
            }
            shape = shape.with(value);
            let number = |k: &str| map.get(k).and_then(Value::as_f64);
            if let (Some(gflops), Some(seconds), Some(n)) =
                (number("gflops"), number("seconds"), shape.n)
            {
                // The reported rate of a protected run includes the time of saves and failures.
                let undisturbed = seconds - disturbed(value);
                let (gflops, seconds) = if undisturbed < seconds {
                    (flops(n) / undisturbed / 1e9, undisturbed)
                } else {
                    (gflops, seconds)
                };
                let failed = map.get("verdict").and_then(Value::as_str) == Some("failed");
                let sample = Sample {
                    n,
                    nb: shape.nb.unwrap_or(0),
                    p: shape.p.unwrap_or(1),
                    q: shape.q.unwrap_or(1),
                    threads: map.get("threads").and_then(Value::as_u64),
                    seconds,
                    rate: gflops * 1e9,
                };
                found.extend(sample.if_sound().filter(|_| !failed));
            }
            for child in map.values() {
                collect(child, shape, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                collect(item, shape, found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured::{Row, TABLE_3};
    use super::*;
    use proptest::prelude::*;

    fn at(n: f64, rate: f64) -> Sample {
        Sample { n, nb: 192, p: 1, q: 2, threads: None, seconds: flops(n) / rate, rate }
    }

    const HPL: &str = "\
================================================================================
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4       12000   192     1     2               5.58             2.0645e+02
HPL_pdgesv() start time Fri Nov 20 08:00:00 2026

HPL_pdgesv() end time   Fri Nov 20 08:00:05 2026
--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   2.12345678e-03 ...... PASSED
WC00L2L1        2000    64     2     1               0.06             8.9000e+01
";

    #[test]
    fn reads_the_result_lines_of_any_hpl() {
        let samples = read(HPL);
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].n, samples[0].nb, samples[0].p, samples[0].q), (12000.0, 192, 1, 2));
        assert!((samples[0].rate - 206.45e9).abs() < 1.0);
        assert!((samples[0].seconds - 5.58).abs() < 0.01);
    }

    #[test]
    fn wrong_results_say_nothing_of_a_machine() {
        let failed = HPL.replace("PASSED", "FAILED");
        let sizes = |text: &str| read(text).iter().map(|s| s.n).collect::<Vec<_>>();
        assert_eq!(sizes(&failed), [2000.0]);
        let only = failed.split_once("WC00").unwrap().0;
        assert!(read(only).is_empty());
        assert_eq!(last(only).map(|sample| sample.n), Some(12000.0), "but there was one");
        // An older HPL checks three times.
        let thrice =
            failed.replace("FAILED\n", "PASSED\n||Ax-b||_1 ... FAILED\n||Ax-b||_2 ... FAILED\n");
        assert_eq!(sizes(&(HPL.to_owned() + &thrice)), [12000.0, 2000.0, 2000.0]);
        let json = r#"{"params":{"n":10,"p":1,"q":2},"outcome":{"seconds":1,"gflops":2,"verdict":"failed","threads":3}}"#;
        assert!(read(json).is_empty());
        assert_eq!(read(&json.replace("failed", "passed"))[0].threads, Some(3));
    }

    #[test]
    fn one_fit_is_of_one_kind_of_run() {
        let sample = |n: f64, p, threads, rate| Sample { p, threads, ..at(n, rate) };
        let all = [
            sample(1000.0, 1, None, 9e9),
            sample(1000.0, 2, None, 20e9),
            sample(2000.0, 2, None, 30e9),
            sample(1000.0, 2, None, 25e9),
            sample(1000.0, 2, Some(1), 2e9),
        ];
        assert_eq!(best_of_each(&all), [all[3], all[2]]);
        assert!(best_of_each(&[]).is_empty());
    }

    #[test]
    fn reads_json_in_several_shapes() {
        let with_params = r#"{"tests":[{"params":{"n":1000,"nb":64,"p":1,"q":2},"outcome":{"seconds":0.01,"gflops":66.8}},
                         {"params":{"n":2000,"nb":64,"p":1,"q":2},"outcome":{"seconds":0.06,"gflops":90.0}}]}"#;
        let flat = "{\"event\":\"start\"}\n{\"n\":1000,\"nb\":64,\"p\":1,\"q\":2,\"seconds\":0.01,\"gflops\":66.8}\n";
        for (text, count) in [(with_params, 2), (flat, 1)] {
            let samples = read(text);
            assert_eq!(samples.len(), count);
            assert_eq!((samples[0].n, samples[0].q), (1000.0, 2));
            assert!((samples[0].rate - 66.8e9).abs() < 1.0);
        }
        assert_eq!(read(with_params)[1].n, 2000.0);
    }

    /// A plan adds saves and failures itself; in the rate they would count twice.
    #[test]
    fn a_protected_run_counts_without_saves_and_failures() {
        let run = |protection: &str| {
            let outcome = format!(r#"{{"seconds":200,"gflops":400,"protection":{protection}}}"#);
            read(&format!(r#"{{"params":{{"n":4000,"nb":64,"p":1,"q":2}},"outcome":{outcome}}}"#))
        };
        let plain = run("null");
        assert!((plain[0].rate - 400e9).abs() < 1.0);
        let guarded = run(r#"{"save_s":10,"lost_s":0,"down_s":90,"restore_s":0}"#);
        assert_eq!(guarded.len(), 1);
        assert!((guarded[0].rate / flops(4000.0) * 100.0 - 1.0).abs() < 1e-12, "{guarded:?}");
        assert!((guarded[0].seconds - 100.0).abs() < 1e-9);
        assert_eq!(run(r#"{"save_s":10,"lost_s":100,"down_s":90,"restore_s":0}"#), []);
    }

    #[test]
    fn recovers_the_model_it_was_made_from() {
        let truth = RateModel::new(230e9, 1500.0).unwrap();
        let samples: Vec<_> =
            [2000.0, 5000.0, 16000.0].iter().map(|&n| at(n, truth.rate(n).unwrap())).collect();
        let found = fit(&samples, None).unwrap();
        assert!(
            (found.model.r_inf / 230e9 - 1.0).abs() < 1e-9
                && (found.model.n_half / 1500.0 - 1.0).abs() < 1e-9
        );
        assert!(found.worst < 1e-9);
        let e = found.model.efficiency(276e9).unwrap();
        assert!((e.at(5000.0).unwrap() - truth.rate(5000.0).unwrap() / 276e9).abs() < 1e-9);
    }

    /// The model fits three sizes of Table 3 of the paper, on one cluster without checkpoints, to half a per cent.
    #[test]
    fn fits_table_3_of_the_paper() {
        let [original, scr, skt] = [0, 4, 5].map(|i| &TABLE_3[i]);
        let samples = [original, scr, skt].map(|row| at(row.n, flops(row.n) / row.seconds));
        let found = fit(&samples, None).unwrap();
        assert!(found.worst < 0.005, "{}", found.worst);
        let rate = |row: &Row| found.model.rate(row.n).unwrap();
        for row in [scr, skt] {
            assert!((rate(row) / rate(original) - row.normalised).abs() < 0.006, "{}", row.name);
        }
    }

    #[test]
    fn one_size_needs_a_half_rate_order() {
        let one = [at(4000.0, 100e9), at(4000.0, 102e9)];
        assert!(fit(&one, None).unwrap_err().to_string().contains("two sizes"));
        let found = fit(&one, Some(1000.0)).unwrap();
        assert!((found.model.rate(4000.0).unwrap() / 101e9 - 1.0).abs() < 1e-12);
        assert!(fit(&[], None).is_err());
        // Smaller ran faster: constant.
        assert_eq!(fit(&[at(4000.0, 110e9), at(8000.0, 100e9)], None).unwrap().model.n_half, 0.0);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC{0,80}") { let _ = read(&text); }

        #[test]
        fn time_and_rate_agree(r in 1e6..1e18f64, half in 0.0..1e6f64, n in 1.0..1e8f64) {
            let m = RateModel::new(r, half).unwrap();
            prop_assert!((m.seconds(n).unwrap() * m.rate(n).unwrap() / flops(n) - 1.0).abs() < 1e-9);
            prop_assert!(m.rate(n * 2.0).unwrap() >= m.rate(n).unwrap());
        }

        #[test]
        fn fits_are_finite_or_refused(raw in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..6)) {
            let samples: Vec<_> = raw.iter().map(|&(n, r)| Sample { n, nb: 1, p: 1, q: 1, threads: None, seconds: 1.0, rate: r }).collect();
            if let Ok(f) = fit(&samples, Some(100.0)) {
                prop_assert!(f.model.r_inf.is_finite() && f.model.n_half.is_finite() && f.worst.is_finite());
            }
        }
    }
}

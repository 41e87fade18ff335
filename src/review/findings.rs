//! What follows from the material: the best result, where its time went, and what a TOP500 form asks for.

use super::sources::{Material, Prediction};
use crate::course::{Course, flops_until};
use crate::model::fit::{Fit, Sample, fit, flops};
use crate::outcome::{Outcome, Times, Verdict};
use crate::params::TestParams;
use crate::report::json::{Run, Test};
use crate::report::machine::Kind;
use crate::units::{show_bytes, show_flops, show_seconds};

/// What the user says beside the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stated {
    /// Theoretical peak in flop/s.
    pub rpeak: Option<f64>,
}

/// A test that was solved, and where it was found.
#[derive(Clone, Copy, Debug)]
pub struct Solved<'a> {
    pub file: &'a str,
    pub run: &'a Run,
    pub test: &'a Test,
    pub outcome: &'a Outcome,
}

impl Solved<'_> {
    pub fn params(&self) -> &TestParams {
        &self.test.params
    }

    /// Flop/s.
    pub fn rate(&self) -> f64 {
        self.outcome.gflops * 1e9
    }

    /// What tells this test from the others in a few words.
    pub fn label(&self) -> String {
        let p = self.params();
        format!("{} #{}: N={} NB={} {}x{}", self.file, self.test.number, p.n, p.nb, p.p, p.q)
    }

    /// Whether it was solved in one go, without a start or a loss in between.
    pub fn once(&self) -> bool {
        self.outcome.protection.is_none_or(|p| p.attempts == 1)
            && self.outcome.checksums.is_none_or(|c| c.losses == 0)
    }

    /// Flop/s while multiplying, from the mean over the ranks of the time spent so: what the processors were seen to reach.
    /// Not known of a test that was started again, whose times are those of its last start.
    pub fn multiplying(&self) -> Option<f64> {
        let once = self.once();
        let (n, gemm) = (self.params().n, self.outcome.times_mean.gemm);
        (once && gemm > 0.0 && n > 0).then(|| flops_until(n, n, 1) / gemm)
    }

    pub fn result(&self) -> String {
        let p = self.params();
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

/// All tests that were solved, in the order of the files.
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

/// The fastest test that passed its check: what a form calls Rmax.
pub fn best<'a>(all: &[Solved<'a>]) -> Option<Solved<'a>> {
    let passed = all.iter().filter(|s| s.outcome.verdict == Verdict::Passed);
    passed.max_by(|a, b| a.outcome.gflops.total_cmp(&b.outcome.gflops)).copied()
}

/// Parts of the time that add up to all of it, in words.
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

/// The machines of all runs, each with the files that tell of it. Clocks differ from run to run and make no difference.
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

/// A step of a test on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub iteration: u64,
    /// Since the timer started.
    pub seconds: f64,
    /// Since the step before.
    pub gflops: f64,
    pub gflops_so_far: f64,
}

/// The rate in steps long enough to be seen.
pub fn rates(course: &Course, params: &TestParams) -> Vec<Step> {
    let total = course.seconds.last().copied().unwrap_or(0.0);
    let (mut from, mut since) = (course.iteration.first().copied().unwrap_or(0), 0.0);
    let done = |k| flops_until(params.n, params.nb, k) / 1e9;
    let mut steps = Vec::new();
    let last = course.iteration.len().saturating_sub(1);
    for (i, (&k, &at)) in course.iteration.iter().zip(&course.seconds).enumerate() {
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

/// The rate as a function of N from all passed tests on as many processes and hosts as the best one had; with the order at
/// which half of the best rate is reached. Needs two sizes.
pub fn half(all: &[Solved], best: &Solved) -> Result<(Fit, f64), String> {
    let alike = all.iter().filter(|s| {
        let (a, b) = (s.params(), best.params());
        s.outcome.verdict == Verdict::Passed
            && a.p * a.q == b.p * b.q
            && s.run.mpi.hosts == best.run.mpi.hosts
            && a.n > 0
    });
    let samples: Vec<Sample> = alike
        .map(|s| Sample {
            n: s.params().n as f64,
            nb: s.params().nb as u64,
            p: s.params().p as u64,
            q: s.params().q as u64,
            seconds: flops(s.params().n as f64) / s.rate(),
            rate: s.rate(),
        })
        .collect();
    let fit = fit(&samples, None).map_err(|e| e.to_string())?;
    let wanted = best.rate() / 2.0;
    // R(N) = R_inf N / (N + N_half) = Rmax / 2, solved for N.
    let n = fit.model.n_half * wanted / (fit.model.r_inf - wanted);
    if n > 0.0 && n.is_finite() {
        Ok((fit, n))
    } else {
        Err("the rates do not grow with N in these runs: measure smaller problems too".into())
    }
}

/// Expected beside measured, in words.
pub fn beside(prediction: &Prediction, solved: &Solved) -> Vec<[String; 3]> {
    let outcome = solved.outcome;
    let protection = outcome.protection.unwrap_or_default();
    let undisturbed =
        outcome.seconds - protection.lost_s - protection.down_s - protection.restore_s;
    let mut rows = vec![
        [
            "time without failures".into(),
            show_seconds(prediction.seconds),
            show_seconds(undisturbed),
        ],
        [
            "rate over that time".into(),
            show_flops(prediction.rate),
            show_flops(solved.params().flops() / undisturbed.max(1e-9)),
        ],
        ["saves".into(), prediction.saves.to_string(), protection.saves.to_string()],
        [
            "time of the saves".into(),
            show_seconds(prediction.saving),
            show_seconds(protection.save_s),
        ],
    ];
    if let Some(expected) = prediction.seconds_expected {
        rows.push([
            "time with failures".into(),
            show_seconds(expected),
            show_seconds(outcome.seconds),
        ]);
    }
    rows
}

/// A line of a form: what is asked, the answer if it is known, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub asked: &'static str,
    /// None: not known.
    pub answer: Option<String>,
    pub source: String,
}

/// What a TOP500 form asks for, as far as it is known.
pub fn form(all: &[Solved], stated: &Stated) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |asked, answer: Option<String>, source: &str| {
        lines.push(Line { asked, answer, source: source.to_owned() });
    };
    let Some(best) = best(all) else {
        line("Rmax", None, "no test passed its check");
        return lines;
    };
    let (params, outcome, run) = (best.params(), best.outcome, best.run);
    line(
        "Rmax",
        Some(show_flops(best.rate())),
        &format!("test {} of {}", best.test.number, best.file),
    );
    line("Nmax", Some(params.n.to_string()), "order of the matrix of that test");
    match half(all, &best) {
        Ok((fit, n)) => line(
            "N1/2",
            Some(format!("{n:.0}")),
            &format!(
                "fitted: R(N) = R N / (N + Nh) through {} tests with R = {} and Nh = {:.0}; farthest off: {:.1} %",
                fit.samples,
                show_flops(fit.model.r_inf),
                fit.model.n_half,
                100.0 * fit.worst
            ),
        ),
        Err(why) => line("N1/2", None, &why),
    }
    line(
        "Time",
        Some(format!("{} s", short(outcome.seconds))),
        "wall time of factorisation and back substitution, failures included",
    );
    line("NB, grid", Some(format!("{}, {} x {}", params.nb, params.p, params.q)), "of that test");
    let peak = run.machine.peak_gflops().map(|g| g * 1e9);
    let multiplying = best.multiplying();
    line("Rpeak, stated", stated.rpeak.map(show_flops), "--rpeak");
    line(
        "Rpeak, derived",
        peak.map(show_flops),
        &match peak {
            Some(_) => {
                format!("cores x operations in a cycle x clock: {}", derivation(&run.machine.kinds))
            }
            None => "clock or vector units of a kind of nodes are not known".to_owned(),
        },
    );
    line(
        "Peak, measured",
        multiplying.map(show_flops),
        match multiplying {
            Some(_) => {
                "the rate of the multiplications alone, mean over the ranks: no more than a lower bound of Rpeak"
            }
            None => "the test was started again: its times are those of the last start",
        },
    );
    let against = stated.rpeak.map(|peak| (peak, "stated")).or(peak.map(|peak| (peak, "derived")));
    line(
        "Efficiency",
        against.map(|(peak, _)| format!("{:.1} %", 100.0 * best.rate() / peak)),
        &against.map_or("Rpeak is not known".into(), |(_, which)| {
            format!("Rmax over Rpeak as {which}")
        }),
    );
    let (watts, how) = power(outcome);
    line("Power", watts.map(|w| format!("{} W", short(w))), &how);
    line(
        "Green500",
        watts
            .filter(|w| *w > 0.0)
            .map(|w| format!("{} Gflop/s per watt", short(outcome.gflops / w))),
        "Rmax over the mean power",
    );
    let kinds = &run.machine.kinds;
    let sum =
        |of: fn(&Kind) -> u64| kinds.iter().map(|k| of(k) * k.hosts.len() as u64).sum::<u64>();
    let known = !kinds.is_empty();
    let from = if known { "as the nodes told when the run began" } else { "not in this document" };
    let told = |text: String| Some(text).filter(|t| known && !t.is_empty());
    line("Nodes", told(sum(|_| 1).to_string()), from);
    line("Cores", told(sum(|k| k.make.cores).to_string()), from);
    line("Processors", told(each(kinds, |k| k.make.processor.clone())), from);
    line("Memory", told(show_bytes(sum(|k| k.memory_bytes_max) as f64)), from);
    line(
        "Network",
        told(each(kinds, |k| k.make.network.join(" + "))),
        "adapters that are up and tell a rate",
    );
    line(
        "Operating system",
        told(each(kinds, |k| format!("{}, Linux {}", k.make.system, k.make.kernel))),
        from,
    );
    line("Compiler", told(run.program.compiler.clone()), "of this program");
    line(
        "Mathematical library",
        Some(format!("{}; multiplied by {}", run.blas.name, run.blas.engine)),
        "",
    );
    // What follows the name and version is how it was packaged.
    let mpi = run.mpi.library.split(',').next().unwrap_or_default();
    line("MPI", Some(mpi.to_owned()).filter(|name| !name.is_empty()), "");
    line("Accelerators", Some("none".into()), "this program computes on processors alone");
    line("Site, system, manufacturer, year", None, "yours to fill in");
    lines
}

/// The mean power of all nodes, if all were measured, and how.
fn power(outcome: &Outcome) -> (Option<f64>, String) {
    let Some(p) = &outcome.power else {
        return (None, "no node has a meter this program can read; see --power-command".into());
    };
    if p.nodes_measured < p.nodes {
        return (
            None,
            format!(
                "only {} of {} nodes were measured: {} W",
                p.nodes_measured,
                p.nodes,
                short(p.watts)
            ),
        );
    }
    let by = match p.source.as_str() {
        "rapl" => {
            "by the processors' own counters: processors and memory alone, while Green500 asks for whole nodes"
        }
        "hwmon" => "by the nodes' own meters",
        "command" => "by --power-command",
        _ => "by what each node has",
    };
    let how = format!(
        "mean of {} nodes over {} s, {} J; {by}",
        p.nodes,
        short(p.seconds),
        short(p.joules)
    );
    (Some(p.watts), how)
}

/// What distinct kinds of nodes say, each with their number where they differ.
fn each(kinds: &[Kind], of: impl Fn(&Kind) -> String) -> String {
    let mut told: Vec<(String, usize)> = Vec::new();
    for kind in kinds {
        let text = of(kind);
        match told.iter_mut().find(|(known, _)| *known == text) {
            Some((_, hosts)) => *hosts += kind.hosts.len(),
            None => told.push((text, kind.hosts.len())),
        }
    }
    match &told[..] {
        [(one, _)] => one.clone(),
        several => {
            let several = several.iter().filter(|(text, _)| !text.is_empty());
            several.map(|(text, hosts)| format!("{hosts} x {text}")).collect::<Vec<_>>().join("; ")
        }
    }
}

fn derivation(kinds: &[Kind]) -> String {
    let of = |kind: &Kind| {
        let (clock, which) = kind.clock_mhz().unwrap_or((0, "?"));
        let cores = kind.make.cores * kind.hosts.len() as u64;
        format!("{cores} x {} x {clock} MHz ({which})", kind.make.flops_per_cycle.unwrap_or(0))
    };
    kinds.iter().map(of).collect::<Vec<_>>().join(" + ")
}

/// A number of seconds or a like quantity, with four digits that count.
pub fn short(value: f64) -> String {
    let digits =
        if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).clamp(0, 6) };
    format!("{value:.*}", digits as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::sources::tests::{plan_text, run_text};

    fn material() -> Material {
        let mut material = Material::default();
        material.add("a.json", &run_text()).unwrap();
        material.add("plan.json", &plan_text()).unwrap();
        material
    }

    fn answers(material: &Material, stated: &Stated) -> Vec<(&'static str, Option<String>)> {
        form(&solved(material), stated).into_iter().map(|l| (l.asked, l.answer)).collect()
    }

    #[test]
    fn the_form_says_what_is_known_and_what_is_not() {
        let found = answers(&material(), &Stated { rpeak: Some(2.5e12) });
        let find = |asked| found.iter().find(|f| f.0 == asked).unwrap().1.clone();
        assert_eq!(find("Rmax").unwrap(), "214.38 Gflop/s");
        assert_eq!(find("Nmax").unwrap(), "12000");
        assert_eq!(find("Rpeak, stated").unwrap(), "2.50 Tflop/s");
        // 2 nodes of 16 cores, 32 operations, 2 GHz.
        assert_eq!(find("Rpeak, derived").unwrap(), "2.05 Tflop/s");
        assert_eq!(find("Efficiency").unwrap(), "8.6 %");
        assert_eq!(find("Cores").unwrap(), "32");
        assert_eq!(find("Memory").unwrap(), "256.00 GiB");
        assert_eq!(find("Power").unwrap(), "1000 W");
        assert_eq!(find("Green500").unwrap(), "0.2144 Gflop/s per watt");
        // The example's test was started twice.
        assert_eq!(find("Peak, measured"), None);
        // R(12000) = 214.375 and R(6000) = 170: Nh = 6000 (r - 1) / (1 - r/2) with r = 214.375 / 170.
        let (r, n) = (214.375 / 170.0, 6000.0);
        let nh = n * (r - 1.0) / (1.0 - r / 2.0);
        let rinf = 214.375 * (12000.0 + nh) / 12000.0;
        let half = nh * 214.375 / 2.0 / (rinf - 214.375 / 2.0);
        assert_eq!(find("N1/2").unwrap(), format!("{half:.0}"));
    }

    #[test]
    fn without_a_passed_test_there_is_no_number() {
        let mut material = material();
        for test in &mut material.runs[0].1.tests {
            if let Some(outcome) = &mut test.outcome {
                outcome.verdict = Verdict::Failed;
            }
        }
        assert_eq!(answers(&material, &Stated::default()), [("Rmax", None)]);
        material.runs[0].1.tests.clear();
        assert_eq!(answers(&material, &Stated::default()), [("Rmax", None)]);
    }

    #[test]
    fn one_size_gives_no_half_and_an_old_document_no_machine() {
        let mut material = material();
        material.runs[0].1.tests.truncate(1);
        material.runs[0].1.machine = Default::default();
        let outcome =
            |material: &mut Material| material.runs[0].1.tests[0].outcome.clone().unwrap();
        let mut partly = outcome(&mut material);
        partly.power.as_mut().unwrap().nodes_measured = 1;
        assert!(power(&partly).0.is_none() && power(&partly).1.contains("only 1 of 2"));
        material.runs[0].1.tests[0].outcome.as_mut().unwrap().power = None;
        let found = answers(&material, &Stated::default());
        for asked in [
            "Power",
            "Green500",
            "N1/2",
            "Cores",
            "Memory",
            "Efficiency",
            "Rpeak, derived",
            "Network",
        ] {
            assert_eq!(found.iter().find(|f| f.0 == asked).unwrap().1, None, "{asked}");
        }
    }

    #[test]
    fn the_rate_is_told_in_steps_that_add_up() {
        let material = material();
        let all = solved(&material);
        let steps = rates(&all[0].outcome.course, all[0].params());
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[0].iteration, steps[0].seconds), (30, 3.0));
        assert!((steps[0].gflops - steps[0].gflops_so_far).abs() < 1e-9);
        let all_of_it = steps[1].gflops_so_far * 5.25;
        assert!((all_of_it - flops_until(12000, 192, 63) / 1e9).abs() < 1e-6);
        assert_eq!(rates(&Course::default(), all[0].params()), []);
    }

    #[test]
    fn what_was_planned_stands_beside_what_came() {
        let material = material();
        let all = solved(&material);
        let plan = material.planned(12000, 192, 2, 3).unwrap();
        let rows = beside(plan, &all[0]);
        assert_eq!(rows[0], ["time without failures", "5.0 s", "4.5 s"].map(String::from));
        assert_eq!(rows[2], ["saves", "8", "9"].map(String::from));
        assert_eq!(rows.len(), 4, "no failures were expected");
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

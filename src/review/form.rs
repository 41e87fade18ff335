//! Answers of a TOP500 form that follow from finished runs, and the origin of each answer.

use super::findings::{Solved, best, half, short};
use crate::base::outcome::Outcome;
use crate::base::units::{show_bytes, show_flops};
use crate::report::json::Run;
use crate::report::machine::Kind;

/// A line of a form: the question, the answer if it is known, and the origin of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub asked: &'static str,
    /// Answer; None if it is unknown.
    pub answer: Option<String>,
    pub source: String,
}

fn line(asked: &'static str, answer: Option<String>, source: impl Into<String>) -> Line {
    Line { asked, answer, source: source.into() }
}

/// Returns the lines of a TOP500 form. `rpeak` is the theoretical peak that the user states, in flop/s.
pub fn form(all: &[Solved], rpeak: Option<f64>) -> Vec<Line> {
    match best(all) {
        None => vec![line("Rmax", None, "no test passed its check")],
        Some(best) => {
            let parts = [results(all, &best), rates(&best, rpeak), machine(best.run)];
            parts.into_iter().flatten().collect()
        }
    }
}

/// Returns the lines about Rmax and the test that reached it.
fn results(all: &[Solved], best: &Solved) -> Vec<Line> {
    let params = &best.test.params;
    let half = match half(all, best) {
        Ok((fit, n)) => line(
            "N1/2",
            Some(format!("{n:.0}")),
            format!(
                "fitted: R(N) = Rinf N / (N + Nh) through {} tests, with Rinf = {} and Nh = {:.0}; largest deviation: {:.1} %",
                fit.samples,
                show_flops(fit.model.r_inf),
                fit.model.n_half,
                100.0 * fit.worst
            ),
        ),
        Err(why) => line("N1/2", None, why),
    };
    let test = format!("test {} of {}", best.test.number, best.file);
    vec![
        line("Rmax", Some(show_flops(best.rate())), test),
        line("Nmax", Some(params.n.to_string()), "order of the matrix of this test"),
        half,
        line(
            "Time",
            Some(format!("{} s", short(best.outcome.seconds))),
            "wall time of factorisation and back substitution, including time lost by failures",
        ),
        line(
            "NB, grid",
            Some(format!("{}, {} x {}", params.nb, params.p, params.q)),
            "of that test",
        ),
    ]
}

/// Returns the lines about Rpeak, and about the best rate relative to Rpeak and to the power.
fn rates(best: &Solved, stated: Option<f64>) -> Vec<Line> {
    let machine = &best.run.machine;
    let measured = best.multiplying().unwrap_or(0.0).max(best.rate());
    // No machine computes faster than its peak.
    let credible = |peak: Option<f64>| peak.filter(|peak| *peak >= measured);
    let below =
        |peak: f64| format!("{} is below the measured {}", show_flops(peak), show_flops(measured));
    let derived = machine.peak_gflops().map(|g| g * 1e9);
    let formula =
        || format!("cores x operations in a cycle x clock: {}", derivation(&machine.kinds));
    let against = match stated {
        Some(_) => credible(stated).map(|peak| (peak, "stated")),
        None => credible(derived).map(|peak| (peak, "derived")),
    };
    let (watts, how) = power(best.outcome);
    let per_watt = watts.filter(|w| *w > 0.0).map(|w| best.outcome.gflops / w);
    vec![
        line(
            "Rpeak, stated",
            credible(stated).map(show_flops),
            match stated {
                Some(peak) if peak < measured => format!("--rpeak: {}: correct it", below(peak)),
                _ => "--rpeak".to_owned(),
            },
        ),
        line(
            "Rpeak, derived",
            credible(derived).map(show_flops),
            match derived {
                Some(peak) if peak < measured => format!(
                    "{}: {}, so the cores run at a higher clock than the system reports: state Rpeak with --rpeak",
                    formula(),
                    below(peak)
                ),
                Some(_) => formula(),
                None => "clock or vector units of some nodes are not known".to_owned(),
            },
        ),
        measured_peak(best),
        line(
            "Efficiency",
            against.map(|(peak, _)| format!("{:.1} %", 100.0 * best.rate() / peak)),
            against.map_or("Rpeak is not known".into(), |(_, which)| {
                format!("Rmax over Rpeak as {which}")
            }),
        ),
        line("Power", watts.map(|w| format!("{} W", short(w))), how),
        line(
            "Green500",
            per_watt.map(|rate| format!("{} Gflop/s per watt", short(rate))),
            "Rmax over the mean power",
        ),
    ]
}

/// Returns the line about the rate of the multiplications alone.
fn measured_peak(best: &Solved) -> Line {
    let multiplying = best.multiplying();
    let source = match multiplying {
        Some(_) => "rate of the multiplications alone, mean over the ranks: a lower bound of Rpeak",
        None if best.once() => {
            "there was almost no multiplication: the matrix is hardly larger than a block"
        }
        None => "the test was restarted: its times are those of the last attempt only",
    };
    line("Peak, measured", multiplying.map(show_flops), source)
}

/// Returns the lines about the nodes and the software.
fn machine(run: &Run) -> Vec<Line> {
    let kinds = &run.machine.kinds;
    let sum =
        |of: fn(&Kind) -> u64| kinds.iter().map(|k| of(k) * k.hosts.len() as u64).sum::<u64>();
    let known = !kinds.is_empty();
    let from = if known {
        "as the nodes reported at the start of the run"
    } else {
        "not in this document"
    };
    let answer = |text: String| Some(text).filter(|t| known && !t.is_empty());
    // The text after the comma describes how the library was packaged.
    let mpi = run.mpi.library.split(',').next().unwrap_or_default();
    vec![
        line("Nodes", answer(sum(|_| 1).to_string()), from),
        line("Cores", answer(sum(|k| k.make.cores).to_string()), from),
        line("Processors", answer(each(kinds, |k| k.make.processor.clone())), from),
        line("Memory", answer(show_bytes(sum(|k| k.memory_bytes_max) as f64)), from),
        line(
            "Network",
            answer(each(kinds, |k| k.make.network.join(" + "))),
            "adapters that are up and report a rate",
        ),
        line(
            "Operating system",
            answer(each(kinds, |k| format!("{}, Linux {}", k.make.system, k.make.kernel))),
            from,
        ),
        line("Compiler", answer(run.program.compiler.clone()), "of this program"),
        line(
            "Mathematical library",
            Some(format!("{}; multiplied by {}", run.blas.name, run.blas.engine)),
            "",
        ),
        line("MPI", Some(mpi.to_owned()).filter(|name| !name.is_empty()), ""),
        line(
            "Accelerators",
            answer(each(kinds, |k| k.make.device.clone().unwrap_or_else(|| "none".into()))),
            "",
        ),
        line("Site, system, manufacturer, year", None, "for you to fill in"),
    ]
}

/// Returns the mean power of all nodes in watts, and a text on its origin. The power is None unless all nodes were measured.
fn power(outcome: &Outcome) -> (Option<f64>, String) {
    let Some(p) = &outcome.power else {
        return (
            None,
            "no node has a power meter that this program can read; see --power-command".into(),
        );
    };
    if p.nodes_measured < p.nodes {
        return (
            None,
            format!(
                "only {} of {} nodes were measured: {} W together",
                p.nodes_measured,
                p.nodes,
                short(p.watts)
            ),
        );
    }
    let by = match p.source.as_str() {
        "rapl" => {
            "by counters of processors, which only cover processors and memory; Green500 requires whole nodes"
        }
        "nvml" => {
            "by counters of devices, which cover no other part; Green500 requires whole nodes"
        }
        "rapl+nvml" => {
            "by counters of processors, memory and devices; Green500 requires whole nodes"
        }
        "hwmon" => "by the nodes' own meters",
        "command" => "by --power-command",
        _ => "by meters of different kinds on different nodes",
    };
    let how = format!(
        "{} nodes together, mean over {} s, {} J; {by}",
        p.nodes,
        short(p.seconds),
        short(p.joules)
    );
    (Some(p.watts), how)
}

/// Returns the value of `of` for the kinds of nodes as text. If the values differ, each has its number of hosts.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::outcome::Verdict;
    use crate::review::findings::material;
    use crate::review::findings::solved;
    use crate::review::sources::Material;

    fn answers(material: &Material, stated: Option<f64>) -> Vec<(&'static str, Option<String>)> {
        form(&solved(material), stated).into_iter().map(|l| (l.asked, l.answer)).collect()
    }

    #[test]
    fn the_form_says_what_is_known_and_what_is_not() {
        let found = answers(&material(), Some(2.5e12));
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
        // The test of the example was restarted once.
        assert_eq!(find("Peak, measured"), None);
        // R(12000) = 214.375 and R(6000) = 170: Nh = 6000 (r - 1) / (1 - r/2) with r = 214.375 / 170.
        let (r, n) = (214.375 / 170.0, 6000.0);
        let nh = n * (r - 1.0) / (1.0 - r / 2.0);
        let rinf = 214.375 * (12000.0 + nh) / 12000.0;
        let half = nh * 214.375 / 2.0 / (rinf - 214.375 / 2.0);
        assert_eq!(find("N1/2").unwrap(), format!("{half:.0}"));
    }

    /// If cores run at a higher clock than the system reports, the rate can exceed the peak at the reported clock.
    #[test]
    fn no_peak_below_a_measured_rate_is_stated() {
        let mut material = material();
        for kind in &mut material.runs[0].1.machine.kinds {
            (kind.make.clock_base_mhz, kind.make.clock_max_mhz) = (None, None);
            kind.clock_seen_mhz_max = Some(100);
        }
        let lines = |stated| form(&solved(&material), stated);
        let find = |stated, asked| lines(stated).into_iter().find(|l| l.asked == asked).unwrap();
        let derived = find(None, "Rpeak, derived");
        assert_eq!(derived.answer, None, "{derived:?}");
        assert!(derived.source.contains("a higher clock than the system reports"), "{derived:?}");
        assert!(derived.source.contains("102.40 Gflop/s"), "{derived:?}");
        assert_eq!(find(None, "Efficiency").answer, None);
        assert_eq!(find(Some(2.5e12), "Efficiency").answer.unwrap(), "8.6 %");
        let stated = find(Some(1e11), "Rpeak, stated");
        assert_eq!(stated.answer, None);
        assert!(stated.source.contains("--rpeak"), "{stated:?}");
        assert_eq!(find(Some(1e11), "Efficiency").answer, None);
    }

    #[test]
    fn without_a_passed_test_there_is_no_number() {
        let mut material = material();
        for test in &mut material.runs[0].1.tests {
            if let Some(outcome) = &mut test.outcome {
                outcome.verdict = Verdict::Failed;
            }
        }
        assert_eq!(answers(&material, None), [("Rmax", None)]);
        material.runs[0].1.tests.clear();
        assert_eq!(answers(&material, None), [("Rmax", None)]);
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
        let found = answers(&material, None);
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
}

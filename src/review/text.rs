//! The report as text for a terminal.

use std::fmt::Write as _;

use super::findings::{self, Solved, parts, predicted_and_measured, short, solved};
use super::form::{self, Line};
use super::sources::Material;
use crate::base::units::{show_bytes, show_flops, show_seconds};
use crate::report::machine::Kind;
use crate::supervise::tell::timeline;

/// Largest number of listed tests of a file. If the file has more tests, only the fastest are listed.
const TESTS_MAX: usize = 40;

pub fn text(material: &Material, rpeak: Option<f64>) -> String {
    let all = solved(material);
    let mut out = String::new();
    for (file, run) in &material.runs {
        let counts = run.counts;
        let _ = writeln!(
            out,
            "{file}: {} of {} tests; {} passed, {} failed, {} unchecked, {} skipped{}",
            counts.total(),
            run.planned,
            counts.passed,
            counts.failed,
            counts.unchecked,
            counts.skipped,
            if run.complete { "" } else { "; THE RUN DID NOT END" }
        );
        for test in &run.tests {
            if let Some(why) = &test.skipped {
                let _ = writeln!(out, "  {}. skipped: {why}", test.number);
            }
        }
        let mut shown: Vec<&Solved> = all.iter().filter(|s| s.file == file).collect();
        if shown.len() > TESTS_MAX {
            let _ = writeln!(out, "  the {TESTS_MAX} fastest of {} tests:", shown.len());
            shown.sort_by(|a, b| b.outcome.gflops.total_cmp(&a.outcome.gflops));
            shown.truncate(TESTS_MAX);
        }
        for one in shown {
            let _ = writeln!(out, "  {}. {}", one.test.number, one.result());
        }
    }
    if let Some(best) = findings::best(&all).or(all.first().copied()) {
        test(&mut out, &best, material);
    }
    for (file, records) in &material.logs {
        let now_ms = records.last().map_or(0, |r| r.at_ms);
        let _ = writeln!(out, "\nSupervised run, {file}");
        let _ = match timeline::end(records) {
            Some((code, why)) => writeln!(out, "ended with status {code}: {why}"),
            None => writeln!(out, "THE LOG DOES NOT CONTAIN THE END OF THIS RUN"),
        };
        out.push_str(&timeline::report(records, &[], now_ms));
    }
    for (kinds, files) in findings::machines(material) {
        if kinds.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\nMachine of {}", files.join(", "));
        for kind in kinds {
            let _ = writeln!(out, "  {}", node(kind));
        }
    }
    if !material.runs.is_empty() {
        out.push_str("\nFields of a TOP500 form\n");
        form(&mut out, &form::form(&all, rpeak));
    }
    out
}

fn test(out: &mut String, one: &Solved, material: &Material) {
    let outcome = one.outcome;
    let _ = writeln!(out, "\nThe time of {}", one.label());
    let total = outcome.times_mean.total.max(1e-9);
    for (name, seconds) in parts(&outcome.times_mean) {
        if seconds > 0.0 {
            let _ = writeln!(
                out,
                "  {name:<20} {:>10} s  {:>5.1} %",
                short(seconds),
                100.0 * seconds / total
            );
        }
    }
    if let Some(p) = &outcome.protection {
        let _ = writeln!(
            out,
            "  protected: {} start(s){}, {} save(s) in {}; {} of work lost and repeated, {} between attempts, {} restoring",
            p.attempts.saturating_sub(p.in_place),
            match p.in_place {
                0 => String::new(),
                times => format!(", {times} in-place attempt(s)"),
            },
            p.saves,
            show_seconds(p.save_s),
            show_seconds(p.lost_s),
            show_seconds(p.down_s),
            show_seconds(p.restore_s)
        );
    }
    if let Some(c) = &outcome.checksums {
        let _ = writeln!(
            out,
            "  checksums: {} loss(es) recovered in place in {}, {} to recompute U, {} to rebuild checksums",
            c.losses,
            show_seconds(c.going_on_s),
            show_seconds(c.recompute_s),
            show_seconds(c.renew_s)
        );
    }
    write_rates(out, one);
    if let Some(plan) = material.planned(&one.test.params) {
        let _ = writeln!(out, "  {:<22} {:>16} {:>16}", "", "predicted", "measured");
        for [what, predicted, measured] in predicted_and_measured(plan, one) {
            let _ = writeln!(out, "  {what:<22} {predicted:>16} {measured:>16}");
        }
    }
}

/// Writes the rate at about ten iterations of a test.
fn write_rates(out: &mut String, one: &Solved) {
    let steps = findings::rates(&one.outcome.timeline, &one.test.params);
    let every = steps.len().div_ceil(10).max(1);
    for (i, step) in steps.iter().enumerate() {
        if (i + 1) % every == 0 || i + 1 == steps.len() {
            let _ = writeln!(
                out,
                "  iteration {:>6} after {:>9}: {} since the previous line, {} so far",
                step.iteration,
                show_seconds(step.seconds),
                show_flops(step.gflops * 1e9),
                show_flops(step.gflops_so_far * 1e9)
            );
        }
    }
}

/// Describes the nodes of a kind in one line.
pub fn node(kind: &Kind) -> String {
    let make = &kind.make;
    let mut text = format!(
        "{} node(s) ({}): {}, {} socket(s), {} cores, {} threads, {}",
        kind.hosts.len(),
        hosts(&kind.hosts),
        if make.processor.is_empty() { "processor not known" } else { &make.processor },
        make.sockets,
        make.cores,
        make.hardware_threads,
        show_bytes(kind.memory_bytes_max as f64)
    );
    if let Some((clock, which)) = kind.clock_mhz() {
        let _ = write!(text, ", {clock} MHz ({which})");
    }
    let device = make.device.as_deref().unwrap_or_default();
    for part in [&make.network.join(" + "), &make.system, &make.kernel, &make.blas, device] {
        if !part.is_empty() {
            let _ = write!(text, ", {part}");
        }
    }
    text
}

/// Lists the first hosts by name, and the number of further hosts.
pub fn hosts(all: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = all[..all.len().min(SHOWN)].join(" ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn form(out: &mut String, lines: &[Line]) {
    for line in lines {
        let answer = line.answer.as_deref().unwrap_or("not known");
        let source = match line.source.as_str() {
            "" => String::new(),
            source => format!("  ({source})"),
        };
        let _ = writeln!(out, "  {:<34} {answer}{source}", line.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::sources::{log_text, plan_text, run_text};

    #[test]
    fn the_text_has_everything_a_reader_asks_for() {
        let mut material = Material::default();
        material.add("a.json", &run_text()).unwrap();
        material.add("events.jsonl", &log_text()).unwrap();
        material.add("plan.json", &plan_text()).unwrap();
        let text = text(&material, None);
        for part in [
            "a.json: 3 of 3 tests; 2 passed, 0 failed, 0 unchecked, 1 skipped\n",
            "  3. skipped: no memory\n",
            "  1. N=12000 NB=192 grid 2x3: 5.375 s, 214.38 Gflop/s; residual 2.486e-3, PASSED\n",
            "The time of a.json #1: N=12000 NB=192 2x3\n",
            "  multiplication            4.500 s   83.7 %\n",
            "iteration     30 after     3.0 s: 330.",
            "predicted         measured\n",
            "Supervised run, events.jsonl\n",
            "node unresponsive",
            "2 node(s) (n1 n2): Example 9000",
            "  Rpeak, stated                      not known  (--rpeak)\n",
            "  Power                              1000 W",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_run_that_did_not_end_says_so_and_a_log_needs_no_run() {
        let mut material = Material::default();
        material
            .add("a.json", &run_text().replacen("\"complete\":true", "\"complete\":false", 1))
            .unwrap();
        assert!(text(&material, None).contains("THE RUN DID NOT END"));
        let mut log = Material::default();
        log.add("events.jsonl", &log_text()).unwrap();
        let alone = text(&log, None);
        assert!(alone.contains("node unresponsive") && !alone.contains("TOP500"), "{alone}");
    }

    #[test]
    fn many_hosts_are_not_all_named() {
        let all: Vec<String> = (0..100).map(|i| format!("n{i}")).collect();
        assert_eq!(hosts(&all), "n0 n1 n2 n3 n4 n5 n6 n7 and 92 more");
        assert_eq!(hosts(&all[..2]), "n0 n1");
    }
}

//! The figures of the papers, drawn again from their formulas, and the same figures for any machine. `skt-hpl model` shows them.
//!
//! Each builder takes the parameters of its formulas and returns data; [`preset`] uses the parameters of the papers. The note of
//! a preset names the curves that it leaves out, because the paper prints no numbers for them.

mod nonstop;
mod self_checkpoint;
mod unified;
mod who_encodes;

pub use unified::waste_panel;

use unified::{gain_figure, waste_figure};

use super::efficiency::{TOP10_JUNE_2017, with_fraction_at_least};
use super::encoding::{Code, Link, chain_best, localised, stable_storage, tree};
use super::error::{Result, positive, refused};
use super::fit::{RateModel, Sample, fit};
use super::helpers;
use super::interval;
use super::measured::{
    TABLE_3, TIANHE_2_DETECT_S, TIANHE_2_RECOVER_S, TIANHE_2_RESTART_S, TIANHE_2_SAVE_S,
};
use super::memory::{Method, Scope, available_fraction, scope_volume};
use super::platforms::Machine::{ExascaleFat, ExascaleSlim, KComputer, Titan};
use super::plot::{Axis, Figure, Panel, Series};
use super::reliability::LongRun;
use super::simulate::{End, Outcome, Summary};
use crate::base::units::HOUR_S;

/// Builder of a figure with the parameters of its paper.
type Builder = fn() -> Result<Figure>;

/// Every preset: its name, its builder and its content.
#[rustfmt::skip] // one row for each figure
const PRESETS: [(&str, Builder, &str); 29] = [
    ("self-4", table_3_figure,
        "efficiency of HPL over N and its fit (self-checkpoint, Fig. 4; your own runs: `skt-hpl model efficiency --results FILE`)"),
    ("self-5", top10_figure, "efficiency of ten large machines with all, half and a third of their memory (self-checkpoint, Fig. 5)"),
    ("self-10", || memory_figure(&[2, 3, 4, 8, 16], 1), "memory left to the application by method and group size (self-checkpoint, Fig. 10)"),
    ("self-11", short_mtbf_figure, "efficiency and reliability under short MTBF (self-checkpoint, Fig. 11)"),
    ("self-12", || reliability_figure(LongRun::figure_12(100.0 * HOUR_S)), "probability to finish a long run (self-checkpoint, Fig. 12)"),
    ("self-14", scope_figure, "volume of all checkpoints by scope (self-checkpoint, Fig. 14 and eqs. 17 to 20)"),
    ("self-16", self_checkpoint::figure_16, "efficiency with all memory and with the part that self-checkpoint leaves (self-checkpoint, Fig. 16)"),
    ("self-17", self_checkpoint::figure_17, "rate over the share of the memory that the matrix fills (self-checkpoint, Fig. 17)"),
    ("self-table-3", self_checkpoint::table_3, "rate and memory of ABFT, BLCR, SCR and self-checkpoint (self-checkpoint, Table 3)"),
    ("self-groups", self_checkpoint::group_figure, "gain and cost of larger groups (self-checkpoint, section 4.3)"),
    ("encoding", || encoding_figure(ASSUMED_LINK, 25e6, 4),
        "time to encode with tree, chain, one-dimensional and localised schemes (encoding, sections 3, 4)"),
    ("encoding-8", who_encodes::dedicated_figure,
        "encoding and recovery of four losses, and the cost of processes that only keep checksums (encoding, Fig. 8)"),
    ("helpers", || helpers_figure(&[8, 16, 32], 1.0, 10.0), "share of the machine lost with and without a helper core (helpers, section 5.1)"),
    ("helpers-4", who_encodes::helpers_compared, "encoding inline or by a helper, also for HPL (helpers, Figs. 4 to 6)"),
    ("unified-2", unified::table2, "groups, their save and read times, and growth of checkpoints (unified, Table 2)"),
    ("unified-3", unified::table3, "groups and growth of checkpoints of the 3D stencil (unified, Table 3)"),
    ("unified-8a", || waste_figure("Waste on current machines", [Titan, KComputer], None), "waste over MTBF, current machines (unified, Fig. 8a)"),
    ("unified-8b", || waste_figure("Waste at exascale, C = 1000 s", [ExascaleSlim, ExascaleFat], Some(1000.0)),
        "waste over MTBF, exascale machines, C = 1000 s (unified, Fig. 8b)"),
    ("unified-8c", || waste_figure("Waste at exascale, C = 100 s", [ExascaleSlim, ExascaleFat], Some(100.0)),
        "waste over MTBF, exascale machines, C = 100 s (unified, Fig. 8c)"),
    ("unified-9", unified::waste_3d_figure, "waste over MTBF, 3D stencil by grouping (unified, Fig. 9)"),
    ("unified-10", || gain_figure(Titan, None), "gain of hierarchical protocols by rho, lambda, alpha: Titan (unified, Fig. 10)"),
    ("unified-11", || gain_figure(KComputer, None), "gain of hierarchical protocols by rho, lambda, alpha: K computer (unified, Fig. 11)"),
    ("unified-12", || gain_figure(ExascaleSlim, Some(1000.0)),
        "gain of hierarchical protocols by rho, lambda, alpha: Exascale-Slim, C = 1000 s (unified, Fig. 12)"),
    ("unified-13", || gain_figure(ExascaleFat, Some(1000.0)),
        "gain of hierarchical protocols by rho, lambda, alpha: Exascale-Fat, C = 1000 s (unified, Fig. 13)"),
    ("unified-14", || gain_figure(ExascaleSlim, Some(100.0)),
        "gain of hierarchical protocols by rho, lambda, alpha: Exascale-Slim, C = 100 s (unified, Fig. 14)"),
    ("unified-15", || gain_figure(ExascaleFat, Some(100.0)),
        "gain of hierarchical protocols by rho, lambda, alpha: Exascale-Fat, C = 100 s (unified, Fig. 15)"),
    ("hpl", unified::hpl_figure,
        "waste of HPL on all four machines: coordinated saves to storage, hierarchical protocols, and self-checkpoint in memory"),
    ("nonstop", nonstop::nonstop_figure, "efficiency over MTBF and over Q: self-checkpoint with restarts and in place, and checksum columns"),
    ("replacement", nonstop::replacement_figure,
        "data rebuilt over the moment of a loss, and time over N, by ABFT recovery and hot replacement (hot-replacement, sections III, V)"),
];

/// Name and content of every preset.
pub fn presets() -> impl Iterator<Item = (&'static str, &'static str)> {
    PRESETS.iter().map(|(name, _, content)| (*name, *content))
}

/// Builds the figure `name` with the parameters of the papers.
pub fn preset(name: &str) -> Result<Figure> {
    if let Some((_, build, _)) = PRESETS.iter().find(|(preset, ..)| *preset == name) {
        return build();
    }
    let names: Vec<&str> = presets().map(|(name, _)| name).collect();
    refused(format!("there is no figure `{name}`; the figures are {}", names.join(", ")))
}

/// Link assumed where a paper states no speeds for its network or machine: 20 us, 120 MB/s, and arithmetic at 1 GB/s.
const ASSUMED_LINK: Link = Link { alpha: 2e-5, beta: 1.0 / 1.2e8, gamma: 1e-9 };

fn even(low: f64, high: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| low + (high - low) * i as f64 / (count - 1) as f64).collect()
}

fn spread(low: f64, high: f64, count: usize) -> Vec<f64> {
    even(low.ln(), high.ln(), count).into_iter().map(f64::exp).collect()
}

/// Returns the points `marks` with further points between them. There are `parts` steps, even in the logarithm, from each mark
/// to the next. If `parts` is twenty, the table of the figure contains only the marks.
fn through(marks: &[f64], parts: usize) -> Vec<f64> {
    let between = marks.windows(2).flat_map(|pair| {
        (0..parts).map(move |i| pair[0] * (pair[1] / pair[0]).powf(i as f64 / parts as f64))
    });
    between.chain(marks.last().copied()).collect()
}

fn curve(xs: &[f64], f: impl Fn(f64) -> Result<f64>) -> Result<Vec<(f64, f64)>> {
    xs.iter().map(|x| Ok((*x, f(*x)?))).collect()
}

fn line(name: impl Into<String>, xs: &[f64], f: impl Fn(f64) -> Result<f64>) -> Result<Series> {
    Ok(Series::line(name, curve(xs, f)?))
}

fn dashed(name: impl Into<String>, xs: &[f64], f: impl Fn(f64) -> Result<f64>) -> Result<Series> {
    Ok(Series::dashed(name, curve(xs, f)?))
}

/// Returns a bar for each element of `all`.
fn bars<T>(name: &str, all: &[T], value: impl Fn(&T) -> Result<f64>) -> Result<Series> {
    let points = all.iter().enumerate().map(|(i, one)| Ok((i as f64, value(one)?)));
    Ok(Series::line(name, points.collect::<Result<_>>()?))
}

/// Measured rates and the curve of `model`. With a `peak` (flop/s) the axis is the efficiency.
pub fn rate_figure(samples: &[Sample], model: RateModel, peak: Option<f64>) -> Result<Figure> {
    let largest = samples.iter().map(|s| s.n).fold(0.0, f64::max);
    if !(largest.is_finite() && largest > 0.0) {
        return refused("there is no measured run to show");
    }
    let (scale, label) = match peak {
        Some(p) => (100.0 / positive("the peak", p)?, "efficiency, % of peak"),
        None => (1e-9, "Gflop/s"),
    };
    let xs = even(largest / 100.0, largest * 1.25, 120);
    Ok(Figure {
        title: "Rate of HPL over the problem size".into(),
        panels: vec![Panel::new(
            format!("R = {:.1} Gflop/s N / (N + {:.0})", model.r_inf / 1e9, model.n_half),
            Axis::linear("N"),
            Axis::linear(label),
            vec![
                line("fitted", &xs, |n| Ok(model.rate(n)? * scale))?,
                Series::dots("measured", samples.iter().map(|s| (s.n, s.rate * scale)).collect()),
            ],
        )],
        note: "Model of eq. 2. Fitted by least squares over the relative error of the time.".into(),
    })
}

/// Rate of the original HPL over N, in the rows of Table 3 that ran without a save or checksums.
fn table_3_figure() -> Result<Figure> {
    let samples = [0, 5, 4].map(|i| Sample::of(TABLE_3[i].n, TABLE_3[i].seconds));
    rate_figure(&samples, fit(&samples, None)?.model, None)
}

fn top10_figure() -> Result<Figure> {
    let with = |name: &str, k: f64| {
        bars(name, &TOP10_JUNE_2017, |(_, rmax, rpeak)| {
            Ok(100.0 * with_fraction_at_least(rmax / rpeak, k)?)
        })
    };
    Ok(Figure {
        title: "Ten machines with less memory".into(),
        panels: vec![Panel {
            title: "TOP500, June 2017".into(),
            x: Axis::linear(""),
            y: Axis::linear("efficiency, % of peak").within(0.0, 100.0),
            series: vec![
                bars("full memory", &TOP10_JUNE_2017, |(_, rmax, rpeak)| Ok(100.0 * (rmax / rpeak)))?,
                with("half", 0.5)?,
                with("a third", 1.0 / 3.0)?,
            ],
            categories: TOP10_JUNE_2017.iter().map(|(n, _, _)| (*n).into()).collect(),
        }],
        note: "Full memory as reported; half and a third by the bound of eq. 5. From a third to a half gains 7.8 % \
               on average here; the paper says 11.96 %, which the bound does not give.".into(),
    })
}

/// Memory left by each method over the group size, in groups that survive `losses` losses.
pub fn memory_figure(sizes: &[u64], losses: u64) -> Result<Figure> {
    let left = |name: &str, method: Method| {
        bars(name, sizes, |g| Ok(100.0 * available_fraction(method, *g, losses)?))
    };
    Ok(Figure {
        title: "Memory left to the application".into(),
        panels: vec![Panel {
            title: format!(
                "groups that survive {losses} loss{}",
                if losses == 1 { "" } else { "es" }
            ),
            x: Axis::linear("group size G"),
            y: Axis::linear("% of memory").within(0.0, 60.0),
            series: vec![
                left("self", Method::SelfCheckpoint)?,
                left("double", Method::Double)?,
                left("single (not safe)", Method::Single)?,
            ],
            categories: sizes.iter().map(u64::to_string).collect(),
        }],
        note: "Eqs. 6 to 8, with parity of m/(G-m) of the matrix for m losses.".into(),
    })
}

fn short_mtbf_figure() -> Result<Figure> {
    let (save, detect, recover) = (TIANHE_2_SAVE_S, TIANHE_2_DETECT_S, TIANHE_2_RECOVER_S);
    let minutes = spread(5.0, 300.0, 80);
    let tau = |m: f64| interval::daly(save, m * 60.0);
    let printed = |m| interval::efficiency_eq10(tau(m)?, save, m * 60.0, detect, save);
    let down = detect + TIANHE_2_RESTART_S + recover;
    let exact = |m: f64| interval::share_left(save, down, m * 60.0);
    let run = |m: f64, hours: f64| -> Result<LongRun> {
        Ok(LongRun {
            total: 256_144,
            group: 16,
            mtbf_system: m * 60.0,
            save_s: save,
            recover_s: recover,
            interval_s: tau(m)?,
            run_s: hours * HOUR_S,
        })
    };
    let mut chance = Vec::new();
    for hours in [10.0, 100.0] {
        let single = |m| run(m, hours)?.success_single();
        chance.push(line(format!("self, {hours} h"), &minutes, |m| run(m, hours)?.success_self())?);
        chance.push(dashed(format!("single, {hours} h"), &minutes, single)?);
    }
    Ok(Figure {
        title: "256,144 nodes under short MTBF".into(),
        panels: vec![
            Panel::new("efficiency", Axis::log("MTBF of the system, minutes"), Axis::linear("share of the fault-free rate").within(0.0, 1.0), vec![
                    line("self, eq. 10", &minutes, printed)?,
                    line("self, repeated work too", &minutes, exact)?,
                    dashed("redundant at most", &minutes, |_| Ok(0.5))?,
                ]),
            Panel::new("probability to finish", Axis::log("MTBF of the system, minutes"), Axis::linear("probability").within(0.0, 1.0), chance),
        ],
        note: "Save 16 s, detection 63 s, restart 19 s, recovery 20 s (Fig. 15). Eq. 10 leaves out work that is done \
               twice; the second curve counts it, and the restart.".into(),
    })
}

/// Probability to finish over the length of the run.
pub fn reliability_figure(run: LongRun) -> Result<Figure> {
    let hours = even(0.0, run.run_s / HOUR_S, 100);
    let at = |h: f64| LongRun { run_s: h * HOUR_S, ..run };
    Ok(Figure {
        title: "Probability to finish a long run".into(),
        panels: vec![Panel::new(
            format!(
                "{} processes, groups of {}, a failure every {:.1} h",
                run.total,
                run.group,
                run.mtbf_system / HOUR_S
            ),
            Axis::linear("hours"),
            Axis::linear("probability").within(0.0, 1.05),
            vec![
                line("self-checkpoint", &hours, |h| at(h).success_self())?,
                line("single checkpoint", &hours, |h| at(h).success_single())?,
            ],
        )],
        note: "Eqs. 12 to 16.".into(),
    })
}

fn scope_figure() -> Result<Figure> {
    let ns = even(1e4, 1e6, 50);
    let time = even(0.0, 1.0, 60);
    let (mut volumes, mut sizes) = (Vec::new(), Vec::new());
    for scope in [Scope::Whole, Scope::Side, Scope::Corner] {
        let volume = |n: f64| Ok(scope_volume(scope, n / 1000.0)? * 8.0 * 1e6 / 1e12);
        volumes.push(line(scope.name(), &ns, volume)?);
        // With the share x of the rows left, the share 1 - x^3 of the time has passed.
        sizes.push(line(scope.name(), &time, |t| Ok(scope.share((1.0 - t).cbrt())))?);
    }
    let panels = vec![
        Panel::new(
            "all checkpoints, one each 1000 rows",
            Axis::linear("N"),
            Axis::linear("TB in all"),
            volumes,
        ),
        Panel::new(
            "one checkpoint, over the time of the run",
            Axis::linear("share of the time passed"),
            Axis::linear("share of the matrix").within(0.0, 1.05),
            sizes,
        ),
    ];
    Ok(Figure {
        title: "Content of a checkpoint".into(),
        panels,
        note: "Saves even in rows cost 3 : 1.5 : 1 (eq. 20). Saves even in time cost 5/3 : 5/4 : 1, since most of \
               the time passes while the corner is large.".into(),
    })
}

/// Encoding time over the number of processes.
pub fn encoding_figure(link: Link, bytes: f64, losses: u64) -> Result<Figure> {
    let processes: Vec<f64> = (2..=12).map(|power| 2f64.powi(power)).collect();
    let panel = |title: String, losses: u64, code: Code| -> Result<Panel> {
        Ok(Panel::new(
            title,
            Axis::log("processes"),
            Axis::log("seconds"),
            vec![
                line("stable storage", &processes, |p| stable_storage(p as u64, bytes, link))?,
                line("binary tree", &processes, |p| tree(p as u64, bytes, code, link))?,
                line("chain", &processes, |p| chain_best(p as u64, bytes, code, link))?,
                dashed("groups of 16", &processes, |_| chain_best(16, bytes, code, link))?,
                dashed("localised", &processes, |_| localised(losses, bytes, link))?,
            ],
        ))
    };
    Ok(Figure {
        title: "Time to encode a checkpoint".into(),
        panels: vec![
            panel("one loss".into(), 1, Code::Plain)?,
            panel(format!("{losses} losses"), losses, Code::Weighted { losses })?,
        ],
        note: format!("{:.1} MB a process; {}.", bytes / 1e6, link.told()),
    })
}

/// Overhead with and without helper cores over the interval.
pub fn helpers_figure(cores: &[u64], copy_s: f64, encode_s: f64) -> Result<Figure> {
    let minutes = spread(0.2, 60.0, 80);
    let inline = |m: f64| Ok(100.0 * helpers::overhead(encode_s, m * 60.0)?);
    let mut series = vec![dashed("inline", &minutes, inline)?];
    for c in cores {
        let lost = |m: f64| Ok(100.0 * helpers::overhead_with_helper(*c, copy_s, m * 60.0)?);
        series.push(line(format!("1 of {c} cores"), &minutes, lost)?);
    }
    Ok(Figure {
        title: "Helper cores, or encoding inline".into(),
        panels: vec![Panel::new(format!("copy {copy_s} s, encode {encode_s} s"), Axis::log("minutes between saves"), Axis::linear("% of the machine lost").within(0.0, 30.0), series)],
        note: "Helpers pay where their curve lies below the dashed one. The inequality in the paper adds a \
               fraction to percentages; here all its terms are percentages.".into(),
    })
}

/// Figure of simulated runs: the times at which they finish, and the parts of their time.
pub fn simulation_figure(outcomes: &[Outcome], summary: &Summary, limit: Option<f64>) -> Figure {
    let mut walls: Vec<f64> =
        outcomes.iter().filter(|o| o.end == End::Finished).map(|o| o.wall / HOUR_S).collect();
    walls.sort_by(f64::total_cmp);
    let n = outcomes.len().max(1) as f64;
    let step = walls.len().div_ceil(400).max(1);
    let mut finished: Vec<(f64, f64)> = walls
        .iter()
        .enumerate()
        .filter(|(i, _)| i % step == 0 || *i == walls.len() - 1)
        .map(|(i, w)| (*w, (i + 1) as f64 / n))
        .collect();
    if let Some(first) = walls.first() {
        finished.insert(0, (*first, 0.0));
    }
    let mut series = vec![Series::line("finished by then", finished)];
    if let Some(l) = limit {
        series.push(Series::dashed("limit", vec![(l / HOUR_S, 0.0), (l / HOUR_S, 1.0)]));
    }
    let hours = summary.breakdown.parts().map(|(name, seconds)| (name, seconds / HOUR_S));
    let [(_, useful), causes @ ..] = hours;
    Figure {
        title: format!("{} simulated runs", outcomes.len()),
        panels: vec![
            Panel::new(
                "when they finish",
                Axis::linear("hours"),
                Axis::linear("share of the runs").within(0.0, 1.05),
                series,
            ),
            Panel {
                title: "time on top of the useful work".into(),
                x: Axis::linear(""),
                y: Axis::linear("hours a run"),
                series: vec![Series::line(
                    format!("mean ({useful:.3} h useful)"),
                    causes.iter().enumerate().map(|(i, (_, v))| (i as f64, *v)).collect(),
                )],
                categories: causes.iter().map(|(name, _)| (*name).into()).collect(),
            },
        ],
        note: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_drawn_whole() {
        for (name, _) in presets() {
            let figure = preset(name).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(
                !figure.panels.is_empty() && figure.panels.iter().all(|p| !p.series.is_empty()),
                "{name}"
            );
            for panel in &figure.panels {
                for s in &panel.series {
                    assert!(s.points.len() >= 2, "{name} {}", s.name);
                    assert!(
                        s.points.iter().all(|p| p.0.is_finite() && p.1.is_finite()),
                        "{name} {}",
                        s.name
                    );
                }
            }
            assert!(figure.svg().len() > 2000 && figure.table().lines().count() > 4);
        }
        assert!(preset("self-99").unwrap_err().to_string().contains("unified-8a"));
    }

    #[test]
    fn figure_12_ends_where_the_paper_says() {
        let figure = preset("self-12").unwrap();
        let at_100 = |i: usize| figure.panels[0].series[i].points.last().unwrap().1;
        assert!(at_100(0) > 0.99);
        assert_eq!((at_100(1) * 100.0).round(), 61.0);
    }
}

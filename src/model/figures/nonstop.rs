//! Comparison of restarts and of ways to continue without a restart: share of the rate that is left, and cost of a loss
//! (*hot-replacement*).

use super::super::error::Result;
use super::super::measured::{
    TIANHE_2_DETECT_S, TIANHE_2_RECOVER_S, TIANHE_2_RESTART_S, TIANHE_2_SAVE_S,
};
use super::super::nonstop::{
    Columns, Failing, IN_PLACE_S, Renewing, Repair, Ways, rebuilt_by_recovery,
    recomputed_by_replacement,
};
use super::super::plot::{Axis, Figure, Panel, Series};
use super::{ASSUMED_LINK, dashed, even, line, spread, through};
use crate::base::units::HOUR_S;

fn one(q: u64) -> Columns {
    Columns { q, sums: 1 }
}

/// Figure of the share of the rate that failures leave of a run with two hours of work.
pub(super) fn nonstop_figure() -> Result<Figure> {
    // The times are those of self-checkpoint's Fig. 15; one second for recovery in place is an assumption.
    let ways = Ways {
        work: 2.0 * HOUR_S,
        save: TIANHE_2_SAVE_S,
        again: TIANHE_2_DETECT_S + TIANHE_2_RESTART_S,
        recover: TIANHE_2_RECOVER_S,
        in_place: IN_PLACE_S,
    };
    // Round numbers from five minutes to 200 hours.
    const MINUTES: [f64; 20] = [
        5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 360.0, 480.0,
        600.0, 1200.0, 2400.0, 6000.0, 9000.0, 12_000.0,
    ];
    let minutes = through(&MINUTES, 4);
    let mut panels = Vec::new();
    for processes in [1.0, 0.9, 0.5] {
        let at = |m: f64| Failing { mtbf: m * 60.0, processes };
        panels.push(Panel::new(
            format!("{:.0} % of the failures end only a process", 100.0 * processes),
            Axis::log("MTBF of the system, minutes"),
            Axis::linear("share of the fault-free rate").within(0.0, 1.0),
            vec![
                line("self, restarts", &minutes, |m| ways.by_restarts(m * 60.0))?,
                line("self, in place", &minutes, |m| ways.in_place(at(m)))?,
                line("checksums, Q = 31", &minutes, |m| {
                    ways.by_checksums(one(31), Renewing::NEVER, at(m))
                })?,
                dashed("checksums, Q = 127", &minutes, |m| {
                    ways.by_checksums(one(127), Renewing::NEVER, at(m))
                })?,
            ],
        ));
    }
    panels.push(over_columns(&ways)?);
    Ok(Figure {
        title: "Continuing without a restart: two hours of work".into(),
        panels,
        note: "Only time counts: self-checkpoint leaves 47 % of the memory to the matrix (G = 16), a checksum column Q/(Q+1). \
               Save 16 s, detection 63 s, restart 19 s, recovery 20 s (self-checkpoint, Fig. 15); continuing without a restart \
               1 s, an assumption.".into(),
    })
}

/// Panel of the share of the rate that failures leave with one checksum column, over the number of columns that compute.
fn over_columns(ways: &Ways) -> Result<Panel> {
    let columns = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
    let left = |hours: f64| {
        let failing = Failing { mtbf: hours * HOUR_S, processes: 1.0 };
        move |q: f64| ways.by_checksums(one(q as u64), Renewing::NEVER, failing)
    };
    Ok(Panel::new(
        "checksums, if all failures end only a process",
        Axis::log("process columns Q that compute"),
        Axis::linear("share of the fault-free rate").within(0.0, 1.0),
        vec![
            line("a failure in 100 h", &columns, left(100.0))?,
            line("in 10 h", &columns, left(10.0))?,
            line("in 1 h", &columns, left(1.0))?,
        ],
    ))
}

/// Figure that compares ABFT recovery with hot replacement, in the setting of the paper's third experiment.
pub(super) fn replacement_figure() -> Result<Figure> {
    let repair = |n: f64| Repair { n, p: 30, q: 29, link: ASSUMED_LINK };
    // Share of the rows factored after half of the time. The work left is proportional to the cube of the rows left.
    let half_way = 1.0 - (1.0_f64 - 0.5).cbrt();
    let rows = even(0.0, 1.0, 61);
    let over_time = |part: fn(f64) -> Result<f64>| -> Result<Vec<(f64, f64)>> {
        rows.iter().map(|x| Ok((1.0 - (1.0 - x).powi(3), part(*x)?))).collect()
    };
    let orders = spread(20_000.0, 1_000_000.0, 60);
    Ok(Figure {
        title: "A lost process: ABFT recovery and hot replacement".into(),
        panels: vec![
            Panel::new(
                "data rebuilt, over the moment of the loss",
                Axis::linear("share of the time passed"),
                Axis::linear("share of a process's matrix").within(0.0, 1.05),
                vec![
                    Series::line("ABFT recovery, all wait", over_time(rebuilt_by_recovery)?),
                    Series::line(
                        "hot replacement, at the end",
                        over_time(recomputed_by_replacement)?,
                    ),
                ],
            ),
            Panel::new(
                "seconds on 30 x (29 + 1) processes",
                Axis::log("N"),
                Axis::log("seconds"),
                vec![
                    line("ABFT recovery, half-way", &orders, |n| repair(n).recovery(half_way))?,
                    line("hot replacement, half-way", &orders, |n| {
                        repair(n).replacement(half_way)
                    })?,
                    dashed("x = T y alone", &orders, |n| repair(n).replacement(0.0))?,
                ],
            ),
        ],
        note: format!(
            "No checksum contains L, so L is not rebuilt. We assume {}: the paper names its networks, but not their speeds.",
            ASSUMED_LINK.told()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::preset;

    /// Compares the panels with figures of docs/PROTECTION.md, which a program in another language calculated. That program has
    /// the sums of `model/nonstop.rs`, which it compared with random runs, and the sums of `interval`. The columns are MTBF,
    /// panel (by the share of failures that end only a process), self-checkpoint by restarts, in place, and checksums with Q =
    /// 31 and 127.
    #[test]
    fn which_is_better_where() {
        let figure = preset("nonstop").unwrap();
        let at = |panel: usize, series: usize, minutes: f64| {
            let points = &figure.panels[panel].series[series].points;
            points.iter().find(|p| p.0 == minutes).unwrap().1
        };
        for (minutes, panel, told) in [
            (30.0, 0, [0.824, 0.862, 0.177, 0.186]),
            (120.0, 0, [0.922, 0.932, 0.788, 0.811]),
            (600.0, 0, [0.968, 0.970, 0.957, 0.980]),
            (6000.0, 0, [0.990, 0.991, 0.969, 0.992]),
            (600.0, 2, [0.968, 0.969, 0.916, 0.939]),
        ] {
            for (series, told) in told.into_iter().enumerate() {
                let ours = at(panel, series, minutes);
                assert!((ours - told).abs() <= 5e-4, "{minutes} min, {panel}, {series}: {ours}");
            }
        }
        // By hand at 100 h: 32/31 of two hours are 7432.258 s. Two runs of ten thousand are lost by a second loss, so almost
        // 0.96875 is left. Self-checkpoint: sqrt(2 * 16/360000) = 0.94 % for saves and work done again, and 102 s or 21 s in 100
        // h.
        assert!((0.968..0.96875).contains(&at(0, 2, 6000.0)));
        assert!((at(0, 0, 6000.0) - (1.0 - 0.00943 - 0.00028)).abs() < 2e-4);
        assert!((0.991..127.0 / 128.0).contains(&at(0, 3, 6000.0)));
        // 128 columns are faster than self-checkpoint in place from 6 to 143 hours; 32 never are. Nor are 128 if half of the
        // failures are of nodes.
        let minutes: Vec<f64> = figure.panels[0].series[0].points.iter().map(|p| p.0).collect();
        for &m in &minutes {
            let within = (5.9 * 60.0..143.0 * 60.0).contains(&m);
            assert_eq!(at(0, 3, m) > at(0, 1, m), within, "{m}");
            assert!(at(0, 2, m) < at(0, 1, m) && at(2, 3, m) < at(2, 1, m), "{m}");
            assert!((0..3).all(|panel| at(panel, 0, m) <= at(panel, 1, m)), "{m}");
        }
    }

    /// Half-way in time, the share 1 - 0.5^(1/3) = 0.2063 of the rows is factored. ABFT recovery then rebuilds 0.8150 of a
    /// process's matrix, and hot replacement 0.0213. At N = 1,000,000 recovery takes 28 + 14293.9 pieces of 512 KiB.
    /// Replacement takes 27 + 373.2 pieces, and a vector.
    #[test]
    fn the_cost_of_a_loss_half_way() {
        let figure = preset("replacement").unwrap();
        let at_end = |p: usize, i: usize| figure.panels[p].series[i].points.last().unwrap().1;
        assert_eq!((at_end(0, 0), at_end(0, 1)), (0.5, 0.5));
        let ratio = at_end(1, 0) / at_end(1, 1);
        assert!((ratio / 35.7375 - 1.0).abs() < 1e-5, "{ratio}");
    }
}

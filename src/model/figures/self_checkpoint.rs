//! Figures of *self-checkpoint*'s measurements (Figs. 16 and 17, Table 3) and of its choice of groups (section 4.3), from the
//! printed numbers in `model/measured.rs`. `skt-hpl model figure self-16`, `self-17`, `self-table-3` and `self-groups` show them.

use super::super::efficiency::with_fraction_at_least;
use super::super::encoding::{striped_reduce, striped_ring};
use super::super::error::Result;
use super::super::interval;
use super::super::measured::{
    Large, TABLE_3, TABLE_3_EVERY_S, TABLE_3_GROUP, TABLE_3_MEMORY_GB, TIANHE,
};
use super::super::memory::{Method, available_fraction};
use super::super::plot::{Axis, Figure, Panel, Series};
use super::super::reliability::LongRun;
use super::{bars, dashed, even, line, spread};
use crate::base::units::HOUR_S;

/// Fig. 16: efficiency with all memory and with the memory that self-checkpoint leaves, no saves.
pub(super) fn figure_16() -> Result<Figure> {
    let percent = |name: &str, rate: fn(&Large) -> f64| {
        bars(name, &TIANHE, |m| Ok(100.0 * rate(m) / m.peak()))
    };
    Ok(Figure {
        title: "HPL with all memory and with nearly half of the memory, without saves".into(),
        panels: vec![Panel {
            title: "efficiency".into(),
            x: Axis::linear(""),
            y: Axis::linear("% of peak").within(0.0, 100.0),
            series: vec![
                percent("original, all memory", |m| m.original)?,
                percent("SKT-HPL, 47 and 44 %", |m| m.protected)?,
            ],
            categories: TIANHE.iter().map(|m| m.name.into()).collect(),
        }],
        note: "Rates of section 7.4, divided by the peak of the nodes: 128 nodes of 140.64 Gflop/s (12 cores of 2.93 GHz; Table 2 \
               rounds the peak to 140), and 1024 nodes of 422 Gflop/s.".into(),
    })
}

/// Fig. 17: the rate over the memory that is used.
pub(super) fn figure_17() -> Result<Figure> {
    let shares = even(0.2, 1.0, 81);
    let mut series = Vec::new();
    for m in &TIANHE {
        let e1 = m.efficiency / 100.0;
        let least = |k| Ok(100.0 * (with_fraction_at_least(e1, k)? / e1));
        series.push(line(m.name, &shares, |k| Ok(100.0 * m.normalised_at(k)?))?);
        series.push(dashed(format!("{}, a = 1", m.name), &shares, least)?);
        series.push(Series::dots("measured", vec![(m.share()?, m.normalised), (1.0, 100.0)]));
    }
    Ok(Figure {
        title: "The rate on less memory".into(),
        panels: vec![Panel::new("eq. 5 through the measured runs", Axis::linear("share of the memory that the matrix fills"), Axis::linear("% of the rate with all memory").within(75.0, 102.0), series)],
        note: "The text of the paper gives two runs of each machine; its other runs are in a picture only. Dashed: the lower bound \
               of eq. 5. Groups of 8 leave 43.8 % of the memory with self-checkpoint, 30.4 % with two copies. This difference \
               is worth 2.5 % of the rate on Tianhe-2 and at most 4.2 % by the bound; the text says 5 %.".into(),
    })
}

/// Table 3: rate and memory of all methods.
pub(super) fn table_3() -> Result<Figure> {
    let original = TABLE_3[0].with_saves(TABLE_3_EVERY_S)?.1;
    let minutes = spread(1.0, 120.0, 80);
    let mut over_interval = Vec::new();
    for row in TABLE_3.iter().filter(|row| row.save.is_some()) {
        let rate = |m: f64| Ok(100.0 * row.rate_between(60.0 * m) / original);
        over_interval.push(line(row.name, &minutes, rate)?);
    }
    let by_method = TABLE_3.iter().enumerate().filter_map(|(i, row)| {
        let memory = row.memory_of_method().transpose()?;
        Some(memory.map(|memory| (i as f64, memory)))
    });
    let names: Vec<String> = TABLE_3.iter().map(|row| row.name.into()).collect();
    Ok(Figure {
        title: "Fault-tolerant HPL on 128 processes of 4 GB".into(),
        panels: vec![
            Panel {
                title: "rate with a save every ten minutes".into(),
                x: Axis::linear(""),
                y: Axis::linear("% of the original's rate").within(0.0, 105.0),
                series: vec![
                    bars("from N and times", &TABLE_3, |row| {
                        Ok(100.0 * row.with_saves(TABLE_3_EVERY_S)?.1 / original)
                    })?,
                    bars("as printed", &TABLE_3, |row| Ok(100.0 * row.normalised))?,
                ],
                categories: names.clone(),
            },
            Panel {
                title: "memory of a process for the matrix".into(),
                x: Axis::linear(""),
                y: Axis::linear("GB").within(0.0, 4.2),
                series: vec![
                    bars("from N", &TABLE_3, |row| Ok(row.memory_of_order()))?,
                    Series::line("eqs. 6 and 7", by_method.collect::<Result<_>>()?),
                    bars("as printed", &TABLE_3, |row| Ok(row.memory_gb))?,
                ],
                categories: names,
            },
            Panel::new(
                "rate between two saves",
                Axis::log("minutes between saves"),
                Axis::linear("% of the original's rate").within(0.0, 105.0),
                over_interval,
            ),
        ],
        note: format!(
            "Orders N and the times of runs and saves are from Table 3. A process has {TABLE_3_MEMORY_GB} GB, a group \
             {TABLE_3_GROUP} members. Eqs. 6 and 7 give no value for ABFT, whose memory depends on its grid. In the \
             paper, ABFT does not survive the loss of a node."
        ),
    })
}

/// Gain and cost of a larger group, section 4.3.
pub(super) fn group_figure() -> Result<Figure> {
    let sizes: Vec<f64> = (1..=8).map(|power| 2f64.powi(power)).collect();
    let share = |g: f64| available_fraction(Method::SelfCheckpoint, g as u64, 1);
    let run = LongRun::figure_12(100.0 * HOUR_S);
    let mut memory = vec![line("memory", &sizes, |g| Ok(100.0 * share(g)?))?];
    let (mut times, mut left) = (Vec::new(), Vec::new());
    for m in &TIANHE {
        let link = m.link_of_rank();
        let tree = |g: f64| striped_reduce(g as u64, 1, m.data_of_rank(g as u64)?, link);
        let ring = |g: f64| striped_ring(g as u64, 1, m.data_of_rank(g as u64)?, link);
        let bare = |g: f64| Ok(100.0 * m.normalised_at(share(g)?)?);
        let rate =
            |g: f64, save: f64| Ok(bare(g)? * interval::share_left(save, 0.0, run.mtbf_system)?);
        let names = ["rate", "MPI_Reduce", "ring"].map(|what| format!("{what}, {}", m.name));
        let [of_rate, of_tree, of_ring] = &names;
        memory.push(line(of_rate, &sizes, bare)?);
        times.push(line(of_tree, &sizes, tree)?);
        times.push(dashed(of_ring, &sizes, ring)?);
        left.push(line(of_tree, &sizes, |g| rate(g, tree(g)?))?);
        left.push(dashed(of_ring, &sizes, |g| rate(g, ring(g)?))?);
    }
    let second_loss = |g: f64| {
        let group = g as u64;
        Ok(1.0 - LongRun { group, ..run }.success_self()?)
    };
    let panel = |title: &str, y: Axis, series| {
        Panel::new(title, Axis::log("members of a group G"), y, series)
    };
    Ok(Figure {
        title: "The size of a group".into(),
        panels: vec![
            panel(
                "memory left (eq. 6), and the rate with this memory (eq. 5)",
                Axis::linear("%").within(0.0, 102.0),
                memory,
            ),
            panel("one encoding", Axis::linear("seconds"), times),
            panel(
                "a second loss in the group within 100 h",
                Axis::log("probability"),
                vec![line("1 - P_self (eqs. 12, 14, 16)", &sizes, second_loss)?],
            ),
            panel(
                "the rate with saves",
                Axis::linear("% of the rate with all memory").within(85.0, 98.0),
                left,
            ),
        ],
        note: "Memory and bandwidth of Table 2; the ranks of a node share its port. The paper prints neither latency nor the speed of \
               arithmetic, so neither is counted. MPI_Reduce: a binary tree, once a stripe (section 6.4); ring: this program's \
               encoding. Losses as in Fig. 12: a failure every 5 h, 160,000 processes. The last panel counts a save of one \
               encoding at the best interval, and the work that failures undo.".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(figure: &Figure, panel: usize, series: usize, x: f64) -> f64 {
        let points = &figure.panels[panel].series[series].points;
        points.iter().min_by(|a, b| (a.0 - x).abs().total_cmp(&(b.0 - x).abs())).unwrap().1
    }

    /// 15.21 of 18.00192 Tflop/s are 84.491 %, 351.60 of 432.128 are 81.365 %.
    #[test]
    fn figures_16_and_17_show_the_printed_runs() {
        let figure = figure_16().unwrap();
        for (machine, original, protected) in [(0.0, 86.38, 84.491), (1.0, 84.94, 81.365)] {
            assert!((at(&figure, 0, 0, machine) - original).abs() < 0.005);
            assert!((at(&figure, 0, 1, machine) - protected).abs() < 0.0006);
        }
        let figure = figure_17().unwrap();
        // sqrt(1/2)/(1 - (1 - sqrt(1/2)) a e1) with a e1 = 0.951388, 0.8638 (a = 1), 0.914136, 0.8494.
        for (series, by_hand) in [(0, 98.0262), (1, 94.6597), (3, 96.5655), (4, 94.1282)] {
            let ours = at(&figure, 0, series, 0.5);
            assert!((ours - by_hand).abs() < 0.001, "{series}: {ours}");
        }
        assert_eq!(at(&figure, 0, 5, 0.44), 95.79);
    }

    #[test]
    fn table_3_is_drawn_as_printed_and_as_it_follows() {
        let figure = table_3().unwrap();
        let redone = &figure.panels[0].series[0].points;
        let printed = [100.0, 78.61, 72.53, 87.45, 92.10, 94.49];
        assert_eq!(figure.panels[0].series[1].points.len(), printed.len());
        for (i, printed) in printed.iter().enumerate() {
            assert!((figure.panels[0].series[1].points[i].1 - printed).abs() < 1e-9);
            assert!((redone[i].1 - printed).abs() < 0.16, "{i}: {}", redone[i].1);
        }
        assert_eq!(figure.panels[1].series[1].points.len(), 5, "none of ABFT");
        // Self-checkpoint at ten minutes, by hand: 0.95237 * 600/606.21 = 94.26 %; SCR 0.92254 * 600/604.33 = 91.59 %.
        for (series, by_hand) in [(3, 94.26), (2, 91.59)] {
            let points = &figure.panels[2].series[series].points;
            let after = points.iter().position(|p| p.0 > 10.0).unwrap();
            let (low, high) = (points[after - 1].1, points[after].1);
            assert!(low - 0.005 < by_hand && by_hand < high + 0.005, "{low} {by_hand} {high}");
        }
    }

    /// By hand, in groups of 8 and 16: a rank of Tianhe-1A has 4 GB * 7/16 and 4 GB * 15/32 and a twelfth of 6.9 GB/s, so a ring
    /// takes 3.0435 s and 3.2609 s. A tree takes G log2(G)/(G - 1) times that, 24/7 and 64/15: 10.435 s and 13.913 s. On Tianhe-2
    /// a rank has 64/24 GB * 7/16 and 7.1/24 GB/s: 3.9437 s, and 13.521 s, compared with 16 s measured with the copy (Fig. 15).
    /// At the best interval 1 - tau/M of the time is left (from tau's own equation), with d = save/M about 1 - (sqrt(2d) - 2d/3):
    /// for 13.913 s in 18,000 s 0.96119, times 0.9781.
    #[test]
    fn groups_by_hand() {
        let figure = group_figure().unwrap();
        for (series, g, seconds) in [
            (0, 8.0, 10.4348),
            (0, 16.0, 13.9130),
            (1, 8.0, 3.0435),
            (1, 16.0, 3.2609),
            (2, 8.0, 13.5211),
            (3, 8.0, 3.9437),
        ] {
            let ours = at(&figure, 1, series, g);
            assert!((ours / seconds - 1.0).abs() < 2e-5, "{series}, {g}: {ours}");
        }
        // The paper's "47 percent" are close to 50, the limit for large groups.
        assert!((at(&figure, 0, 0, 16.0) - 46.875).abs() < 1e-9);
        // 20 s of recovery, 20 failures, a group that fails every 160,000/G * 5 h: 2.2222e-6 for 16, and in proportion.
        for (g, chance) in [(2.0, 2.7778e-7), (16.0, 2.2222e-6), (256.0, 3.5555e-5)] {
            assert!((at(&figure, 2, 0, g) / chance - 1.0).abs() < 1e-4);
        }
        assert!((at(&figure, 3, 0, 16.0) - 97.81 * 0.96119).abs() < 0.005);
        // With a tree, groups of 4 and 8 have the best rate; groups of 16 are within half a per cent of it. With a ring, larger
        // groups always have a better rate, but from 16 to 256 members it rises by 0.3 % at most.
        for (series, best) in [(0, 4.0), (2, 8.0)] {
            let points = &figure.panels[3].series[series].points;
            let most = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            assert_eq!(most.0, best);
            assert!(at(&figure, 3, series, 16.0) > most.1 - 0.5);
        }
        for series in [1, 3] {
            let ring = &figure.panels[3].series[series].points;
            assert!(ring.windows(2).all(|pair| pair[0].1 < pair[1].1));
            assert!(at(&figure, 3, series, 256.0) - at(&figure, 3, series, 16.0) < 0.3);
        }
    }
}

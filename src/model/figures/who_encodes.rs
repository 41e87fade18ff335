//! Figures of the cost of encoders: processes that only keep checksums (*encoding*, sections 4 and 5), and cores that only serve
//! helpers (*helpers*, Figs. 4 to 6). `skt-hpl model figure encoding-8` and `helpers-4` show them.

use super::super::encoding::{
    Code, chain_best, localised, lost, recovery_by_equations, recovery_by_sums, set_aside,
    striped_ring, tree,
};
use super::super::error::Result;
use super::super::helpers;
use super::super::measured::{TIANHE, TIANHE_2_COPY_S, TIANHE_2_SAVE_S};
use super::super::memory::{Method, available_fraction};
use super::super::plot::{Axis, Figure, Panel, Series};
use super::{ASSUMED_LINK as LINK, dashed, even, line, spread};

const BYTES: f64 = 25e6;
const LOSSES: u64 = 4;
const GROUP: u64 = 16;
/// Number of members of a localised group, k (k+1), and of the striped group in the comparison.
const STRIPES: u64 = LOSSES * (LOSSES + 1);
const EVERY_S: f64 = 600.0;
const CODE: Code = Code::Weighted { losses: LOSSES };

/// Fig. 8: 25 MB a process, four losses, 60 to 480 processes that compute; and the cost of four processes that only keep
/// checksums.
pub(super) fn dedicated_figure() -> Result<Figure> {
    let processes = processes();
    let equations = |p: f64| recovery_by_equations(p as u64, LOSSES, BYTES, LINK);
    let sums = |p: f64| recovery_by_sums(p as u64, LOSSES, BYTES, LINK);
    let times = vec![
        line("encoding, chain", &processes, chain)?,
        line("recovery, eqs. 4 and 5 as printed", &processes, equations)?,
        dashed("recovery, a sum for each lost", &processes, sums)?,
        dashed("encoding, binary tree", &processes, |p| tree(p as u64, BYTES, CODE, LINK))?,
    ];
    let kept = vec![
        line("four for all", &processes, |p| Ok(100.0 * set_aside(p as u64, LOSSES)?))?,
        line("four for each 16", &processes, |_| Ok(100.0 * set_aside(GROUP, LOSSES)?))?,
        line("localised, and stripes", &processes, |_| Ok(0.0))?,
    ];
    let panel = |title: &str, y: &str, series| {
        Panel::new(title, Axis::linear("processes that compute"), Axis::linear(y), series)
    };
    Ok(Figure {
        title: "Four losses: encoding, recovery, and processes that only keep checksums".into(),
        panels: vec![
            panel("one encoding, one recovery of four losses", "seconds", times),
            panel("processes that only keep checksums", "% of all processes", kept),
            panel(
                "total cost with an encoding every 10 minutes",
                "% of the machine",
                lost_in_all()?,
            ),
        ],
        note: format!(
            "As in Fig. 8: 25 MB a process, four processes for checksums, 60 to 480 that compute. The paper names its machine, but \
             not the machine's speed; we assume {}, and an encoding every 10 minutes. The paper gives no formula for recovery; we \
             derive both from eq. 4. In addition to its checkpoint, a process keeps a checksum of the checkpoint's size in the \
             localised scheme, of a quarter of this size in stripes.",
            LINK.told()
        ),
    })
}

/// Per cent of the machine that encodings and processes for checksums take together.
fn lost_in_all() -> Result<Vec<Series>> {
    let grouped = chain_best(GROUP, BYTES, CODE, LINK)?;
    let local = localised(LOSSES, BYTES, LINK)?;
    let striped = striped_ring(STRIPES, LOSSES, BYTES, LINK)?;
    let percent = |idle: f64, encode_s: f64| Ok(100.0 * lost(idle, encode_s, EVERY_S)?);
    let processes = processes();
    Ok(vec![
        line("four for all", &processes, |p| percent(set_aside(p as u64, LOSSES)?, chain(p)?))?,
        line("four for each 16", &processes, |_| percent(set_aside(GROUP, LOSSES)?, grouped))?,
        line("localised", &processes, |_| percent(0.0, local))?,
        dashed("stripes of 20", &processes, |_| percent(0.0, striped))?,
    ])
}

fn chain(processes: f64) -> Result<f64> {
    chain_best(processes as u64, BYTES, CODE, LINK)
}

/// Numbers of computing processes, the x axis of Fig. 8.
fn processes() -> Vec<f64> {
    even(60.0, 480.0, 22)
}

/// Figs. 4 to 6: cost of encoding inline and by a helper, if all cores compute and if one core is idle; and the rate of HPL with
/// each.
pub(super) fn helpers_compared() -> Result<Figure> {
    // Fig. 5: 9 % inline, under 2 % with a helper on an idle core.
    const COPY: f64 = 2.0 / 9.0;
    let encodings = spread(4.0, 100.0, 80);
    let stopping = |seconds: f64| move |x: f64| Ok(100.0 * helpers::overhead(seconds, x)?);
    let inline = dashed("inline", &encodings, stopping(1.0))?;
    let mut aside = vec![inline.clone()];
    for cores in [8, 16, 32] {
        let lost = |x| Ok(100.0 * helpers::overhead_with_helper(cores, COPY, x)?);
        aside.push(line(format!("1 of {cores} cores"), &encodings, lost)?);
    }
    let idle = vec![inline, line("an idle core", &encodings, stopping(COPY))?];
    let panel = |title: &str, series| {
        Panel::new(
            title,
            Axis::log("interval between saves, in encoding times"),
            Axis::linear("% of the machine lost").within(0.0, 26.0),
            series,
        )
    };
    let machine = &TIANHE[1];
    let rate = |method| machine.normalised_at(available_fraction(method, machine.group, 1)?);
    let (inline_rate, helper_rate) = (rate(Method::SelfCheckpoint)?, rate(Method::Double)?);
    let cores = machine.ranks_per_node;
    let helper = 1.0 / cores as f64;
    let seconds = spread(60.0, 3600.0, 80);
    Ok(Figure {
        title: "Encoding inline, or by a helper core".into(),
        panels: vec![
            panel("no core is idle (Fig. 4)", aside),
            panel("a core is idle (Figs. 5, 6)", idle),
            Panel::new(format!("HPL on {}, groups of {}", machine.name, machine.group), Axis::log("seconds between saves"), Axis::linear("% of the rate with all memory").within(70.0, 100.0), vec![
                    line("self-checkpoint, inline", &seconds, |t| {
                        Ok(100.0 * inline_rate * (1.0 - lost(0.0, TIANHE_2_SAVE_S, t)?))
                    })?,
                    line(format!("two copies, 1 of {cores} cores helps"), &seconds, |t| {
                        Ok(100.0 * helper_rate * (1.0 - lost(helper, TIANHE_2_COPY_S, t)?))
                    })?,
                ]),
        ],
        note: "The paper prints neither intervals nor sizes, so the unit of time is an encoding. A copy takes 2/9 of an encoding: the \
               most that Fig. 5 allows, with 9 % inline and under 2 % by a helper. HPL: a helper needs a copy that does not change, \
               so the matrix gets the memory that two copies leave. A save takes 16 s, 1 s of them to copy (self-checkpoint, \
               Fig. 15 and section 7.6); rates by eq. 5. A single core encodes more slowly than all cores; this is not counted.".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::interval;
    use super::*;

    fn ends(figure: &Figure, panel: usize, series: usize) -> (f64, f64) {
        let points = &figure.panels[panel].series[series].points;
        (points[0].1, points.last().unwrap().1)
    }

    /// The values by hand are those of the tests in `model/encoding.rs`. Stripes of 20 for four losses take 19 (alpha + 4/16 B)
    /// = 1.22746 s, with B = (beta + 2 gamma) * 25 MB.
    #[test]
    fn the_ends_of_figure_8() {
        let figure = dedicated_figure().unwrap();
        for (panel, series, by_hand) in [
            (0, 0, (1.17646, 1.46914)),
            (0, 1, (2.23766, 2.53272)),
            (0, 2, (1.17773, 1.46963)),
            (0, 3, (12.4010, 18.6014)),
            (1, 0, (6.25, 0.826446)),
            (1, 1, (20.0, 20.0)),
            (2, 0, (6.43346, 1.06869)),
            (2, 1, (20.1467, 20.1467)),
            (2, 2, (0.220743, 0.220743)),
            (2, 3, (0.204160, 0.204160)),
        ] {
            let ours = ends(&figure, panel, series);
            for (ours, by_hand) in [(ours.0, by_hand.0), (ours.1, by_hand.1)] {
                assert!((ours / by_hand - 1.0).abs() < 1e-5, "{panel}, {series}: {ours}");
            }
        }
        // The paper calls the times "very stable": with this link both grow by at most a quarter, recovery by an eighth.
        let (few, many) = ends(&figure, 0, 1);
        assert!((many / few - 1.1319).abs() < 1e-4);
        assert_eq!(ends(&figure, 1, 2), (0.0, 0.0));
    }

    /// If the interval is 100 times an encoding, a copy costs 2/9 %, and a core of 16 another 6.25 %. HPL with an interval of a
    /// minute, by hand: 0.9579 * 60/76 against 0.934773 * 23/24 * 60/61. The two are equal for an interval T with 0.9579 (T +
    /// 1) = 0.895825 (T + 16). This is 215.5 s, the interval that Daly gives for a failure every 27 minutes.
    #[test]
    fn figures_4_to_6_by_hand() {
        let figure = helpers_compared().unwrap();
        let close = |ours: f64, by_hand: f64| (ours - by_hand).abs() < 1e-4;
        assert!(close(ends(&figure, 0, 0).1, 1.0) && close(ends(&figure, 0, 0).0, 25.0));
        assert!(close(ends(&figure, 0, 2).1, 6.25 + 0.22222));
        assert!(close(ends(&figure, 1, 1).1, 0.22222));
        assert!(close(ends(&figure, 2, 0).0, 75.6237));
        assert!(close(ends(&figure, 2, 1).0, 88.1139));
        let [inline, helper] = [0, 1].map(|i| &figure.panels[2].series[i].points);
        for (inline, helper) in inline.iter().zip(helper) {
            assert_eq!(helper.1 > inline.1, inline.0 < 215.5, "{}", inline.0);
        }
        let daly = interval::daly(TIANHE_2_SAVE_S, 27.0 * 60.0).unwrap();
        assert!((daly / 215.5 - 1.0).abs() < 0.01, "{daly}");
    }
}

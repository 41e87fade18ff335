//! Figure of the search: the additional time of other shapes and of other choices.

use super::search::{Choice, Placed, Tuned};
use crate::model::plot::{Axis, Figure, Panel, Series};

/// Largest number of bars of shapes whose names do not overlap.
const SHAPES: usize = 8;
/// Largest number of bars of choices whose names do not overlap.
const CHOICES: usize = 6;

fn bars(title: String, label: &str, all: impl Iterator<Item = (String, f64)>) -> Panel {
    let (categories, ratios): (Vec<String>, Vec<f64>) = all.unzip();
    let percent = ratios.iter().enumerate().map(|(at, r)| (at as f64, 100.0 * (r - 1.0))).collect();
    Panel {
        title,
        x: Axis::linear(""),
        y: Axis::linear(label),
        series: vec![Series::line("time", percent)],
        categories,
    }
}

/// Returns the name and the value of the parameter that the choice changes, such as `NB 256`.
pub fn choice_words(choice: &Choice) -> String {
    let test = &choice.candidate.test;
    let value = match choice.what.as_str() {
        "NB" => test.nb.to_string(),
        "DEPTH" => test.depth.to_string(),
        "NBMIN" => test.nbmin.to_string(),
        "NDIV" => test.ndiv.to_string(),
        "BCAST" => format!("{:?}", test.bcast),
        "SWAP" => match test.swap {
            crate::base::params::Swap::Mix => format!("Mix {}", test.swap_threshold),
            other => format!("{other:?}"),
        },
        "PFACT" => format!("{:?}", test.pfact),
        "RFACT" => format!("{:?}", test.rfact),
        _ => format!("{:?}", test.mapping),
    };
    format!("{} {value}", choice.what)
}

/// Returns the choices sorted by their effect on the time, the largest first.
pub fn by_weight(choices: &[Choice]) -> Vec<&Choice> {
    let mut all: Vec<&Choice> = choices.iter().collect();
    all.sort_by(|a, b| (b.ratio - 1.0).abs().total_cmp(&(a.ratio - 1.0).abs()));
    all
}

pub fn svg(tuned: &Tuned) -> String {
    let shape = |one: &Placed| {
        let test = &one.candidate.test;
        (format!("{} {}x{}", test.nb, test.p, test.q), one.ratio)
    };
    let choice = |one: &&Choice| (choice_words(one), one.ratio);
    let best = &tuned.shape.test;
    let mut panels = vec![bars(
        format!("NB and P x Q; N = {}", best.n),
        "longer than the best shape, %",
        tuned.shapes.iter().map(shape).take(SHAPES),
    )];
    if !tuned.choices.is_empty() {
        panels.push(bars(
            format!("Single choices compared with NB {}, {} x {}", best.nb, best.p, best.q),
            "longer than this shape, %",
            by_weight(&tuned.choices).iter().map(choice).take(CHOICES),
        ));
    }
    let note = format!(
        "{} measurements of parts of runs in {:.0} s; a measurement scatters by {:.1} %.",
        tuned.measured,
        tuned.spent,
        100.0 * tuned.noise
    );
    Figure { title: "Choices that mattered".into(), panels, note }.svg()
}

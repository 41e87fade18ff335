//! Output of a search: a table during the measurements, and the result.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use super::kept::Measured;
use crate::base::params::TestParams;
use crate::base::units::{show_flops, show_seconds};
use crate::tune::picture::{by_weight, choice_words};
use crate::tune::search::{Stage, Tuned};
use crate::tune::space::words;

/// Maximum number of candidates that the table shows.
const SHOWN: usize = 10;

/// Table of candidates during the search. On a terminal the table is redrawn after each measurement. Elsewhere each measurement
/// is printed as a line.
pub struct Table {
    budget: f64,
    live: bool,
    /// Number of lines of the last drawing, which the next drawing overwrites.
    drawn: usize,
    stage: Option<(Stage, usize, usize)>,
    /// Candidates of this stage, each with its name, its best seconds, and its number of measurements.
    rows: Vec<(String, f64, usize)>,
    flops: f64,
}

impl Table {
    pub fn new(budget: f64) -> Self {
        let live = std::io::stderr().is_terminal();
        Self { budget, live, drawn: 0, stage: None, rows: Vec::new(), flops: 0.0 }
    }

    /// Begins a round of `count` candidates. A new stage begins with an empty table.
    pub fn begin(&mut self, stage: Stage, count: usize) {
        if self.stage.is_none_or(|(before, ..)| before != stage) {
            self.rows.clear();
        }
        self.stage = Some((stage, 0, count));
    }

    pub fn tell(&mut self, measured: &Measured, spent: f64) {
        let Measured { candidate, found, why, .. } = measured;
        let name = words(candidate);
        self.flops = candidate.test.flops();
        if let Some((_, done, _)) = &mut self.stage {
            *done += 1;
        }
        match (self.rows.iter_mut().find(|row| row.0 == name), found) {
            (Some(row), Some(found)) => {
                (row.1, row.2) = (row.1.min(found.seconds), row.2 + 1);
            }
            (None, Some(found)) => self.rows.push((name.clone(), found.seconds, 1)),
            _ => {}
        }
        self.rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        let said = match (found, why) {
            (Some(found), _) => show_flops(self.flops / found.seconds),
            (None, Some(why)) => format!("not measured: {why}"),
            (None, None) => "not measured".into(),
        };
        // The table itself does not show reasons.
        if !self.live || found.is_none() {
            self.say(&format!("{:>7}  {name}  {said}", show_seconds(spent)));
        }
        if self.live {
            self.draw(spent);
        }
    }

    /// Prints a line that stays on the terminal. The next drawing of the table is below this line.
    pub fn say(&mut self, line: &str) {
        let over = match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            drawn => format!("\r\x1b[{drawn}A\x1b[J"),
        };
        tell!("{over}skt-hpl tune: {line}");
    }

    fn draw(&mut self, spent: f64) {
        let mut text = String::new();
        if self.drawn > 0 {
            let _ = write!(text, "\r\x1b[{}A", self.drawn);
        }
        let Some((stage, done, of)) = self.stage else { return };
        let status = format!(
            "{stage}: {done} of {of} measured in this round; {} of {} spent",
            show_seconds(spent),
            show_seconds(self.budget)
        );
        let best = self.rows.first().map_or(1.0, |row| row.1);
        let row = |(name, seconds, times): &(String, f64, usize)| {
            format!(
                "  {:<56} {:>14} {:>+6.1} % {times:>3}x",
                name,
                show_flops(self.flops / seconds),
                100.0 * (seconds / best - 1.0)
            )
        };
        let mut lines = vec![status];
        lines.extend(self.rows.iter().take(SHOWN).map(row));
        // If the table is shorter than before, empty lines overwrite the end of the old table.
        lines.resize(lines.len().max(self.drawn), String::new());
        for line in &lines {
            let _ = writeln!(text, "\x1b[K{line}");
        }
        self.drawn = lines.len();
        // An error of the terminal must not end the search.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// Keeps the last drawing on the terminal: later output does not overwrite it.
    pub fn end(&mut self) {
        self.drawn = 0;
    }
}

fn percent(ratio: f64) -> String {
    format!("{:+.1} %", 100.0 * (ratio - 1.0))
}

/// Describes the result of a search as text. `wanted` is the order of the matrix to run.
pub fn report(tuned: &Tuned, wanted: usize, engine: &str) -> String {
    let mut t = String::new();
    let test: &TestParams = &tuned.best.test;
    let rate = test.flops() / tuned.seconds;
    let _ = writeln!(t, "The best candidate\n  {}; multiplies with {engine}", words(&tuned.best));
    let _ = writeln!(
        t,
        "  N = {}: {}, {} for the factorisation, give or take {:.1} % on this machine in its present state",
        test.n,
        show_flops(rate),
        show_seconds(tuned.seconds),
        100.0 * tuned.uncertainty
    );
    if wanted > test.n {
        let _ = writeln!(
            t,
            "  parts of a run with N = {} were timed: the parameters also suit N = {wanted}, where the rate is higher",
            test.n
        );
    }
    write_certainty(&mut t, tuned);
    let _ = writeln!(t, "\nThe finalists, each measured {} times", tuned.rounds);
    for one in &tuned.finalists {
        let _ = writeln!(t, "  {:<60} {:>8}", words(&one.candidate), percent(one.ratio));
    }
    let _ = writeln!(t, "\nShapes: ranks, grid and block size");
    for one in tuned.shapes.iter().take(SHOWN) {
        let _ = writeln!(t, "  {:<60} {:>8}", words(&one.candidate), percent(one.ratio));
    }
    if tuned.shapes.len() > SHOWN {
        let _ = writeln!(t, "  and {} more", tuned.shapes.len() - SHOWN);
    }
    if !tuned.choices.is_empty() {
        let _ = writeln!(t, "\nSingle choices compared with {}", words(&tuned.shape));
        for choice in by_weight(&tuned.choices) {
            let times =
                if choice.rounds == 1 { "once".into() } else { format!("{} times", choice.rounds) };
            let _ =
                writeln!(t, "  {:<20} {:>8}  {times}", choice_words(choice), percent(choice.ratio));
        }
    }
    t
}

/// Appends to `t` how certain the result is.
fn write_certainty(t: &mut String, tuned: &Tuned) {
    let _ = writeln!(
        t,
        "How certain the result is\n  {} measurements in {}; a measurement scatters by {:.1} %; {} of {} shapes and {} of {} \
         single choices were tried",
        tuned.measured,
        show_seconds(tuned.spent),
        100.0 * tuned.noise,
        tuned.shapes.len(),
        tuned.shapes_possible,
        tuned.choices.len(),
        tuned.choices_possible,
    );
    if let Some(off) = tuned.off {
        let _ = writeln!(
            t,
            "  a model computes a run's time from the times of its parts; where checked, the model was off by {:.1} % at most",
            100.0 * off.abs()
        );
    }
}

#[cfg(test)]
pub(super) use tests::{candidate, tuned};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::planner::usual;
    use crate::tune::search::{Choice, Placed};
    use crate::tune::space::{Candidate, Layout};

    pub(in crate::cli::tune) fn candidate(nb: usize) -> Candidate {
        let layout = Layout {
            ranks_per_node: 2,
            threads: 3,
            blas: None,
            device: crate::base::params::Device::None,
        };
        Candidate { layout, test: usual(12_000, nb, (1, 2)) }
    }

    pub(in crate::cli::tune) fn tuned() -> Tuned {
        let placed = |nb, ratio| Placed { candidate: candidate(nb), ratio };
        Tuned {
            best: candidate(256),
            seconds: 10.0,
            uncertainty: 0.004,
            off: Some(-0.012),
            shapes: vec![placed(256, 1.0), placed(128, 1.03)],
            shapes_possible: 18,
            shape: candidate(256),
            choices: vec![Choice {
                what: "NBMIN".into(),
                candidate: candidate(256),
                ratio: 1.002,
                rounds: 2,
            }],
            choices_possible: 20,
            finalists: vec![placed(256, 1.0)],
            rounds: 3,
            noise: 0.003,
            measured: 40,
            spent: 170.0,
        }
    }

    #[test]
    fn the_result_says_what_how_fast_and_how_sure() {
        let text = report(&tuned(), 50_000, "avx512-24x8");
        for part in [
            "NB 256  1 x 2  WR11C2R4",
            "3 threads a rank; multiplies with avx512-24x8",
            "give or take 0.4 %",
            "parts of a run with N = 12000 were timed",
            "2 of 18 shapes and 1 of 20 single choices",
            "off by 1.2 % at most",
            "+3.0 %",
            "NBMIN 4",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!report(&tuned(), 12_000, "blas").contains("were timed"));
        let svg = crate::tune::picture::svg(&tuned());
        assert!(svg.starts_with("<svg") && svg.contains("256 1x2") && svg.contains("NBMIN 4"));
    }
}

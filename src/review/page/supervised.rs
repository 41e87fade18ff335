//! Section of a supervised run: its faults, and the parts of the wall time.

use super::Page;
use super::html::{class_of_part, legend, numbers, table};
use crate::model::plot::escape;
use crate::review::charts::{Stretch, timeline as time_bar};
use crate::review::findings::short;
use crate::supervise::remember::events::Record;
use crate::supervise::tell::timeline::{self, FaultTimes, Part, end, faults, seconds, stretches};

impl Page {
    pub(super) fn supervised(&mut self, file: &str, records: &[Record]) {
        let end_ms = records.last().map_or(0, |r| r.at_ms);
        let start_ms = records.first().map_or(0, |r| r.at_ms);
        let at = |ms: u64| ms.saturating_sub(start_ms) as f64 / 1e3;
        self.put(format!("<h2>Supervised run, {}</h2>\n", escape(file)));
        let ended =
            end(records).map(|(code, why)| format!("Ended with status {code}: {}", escape(why)));
        let ended = ended.unwrap_or(
            "<span class=\"bad\">The log does not contain the end of this run.</span>".into(),
        );
        self.put(format!("<p>{ended}</p>\n"));
        let all = stretches(records, end_ms);
        let spent_s = |part: Part| seconds(&all, |other| other == part);
        let total_s = seconds(&all, |part| part != Part::Pause);
        let drawn: Vec<Stretch> = all
            .iter()
            .map(|s| Stretch {
                from: at(s.from_ms),
                to: at(s.to_ms),
                class: class_of_part(s.part).into(),
                title: s.part.words().1.into(),
            })
            .collect();
        self.put(time_bar("Where the wall time went", &drawn, at(end_ms)));
        let spent: Vec<Part> =
            Part::COUNTED.into_iter().filter(|part| spent_s(*part) > 0.0).collect();
        let entries: Vec<(String, &str)> =
            spent.iter().map(|part| (class_of_part(*part).to_owned(), part.words().1)).collect();
        self.put(legend(&entries));
        let rows = spent.iter().map(|part| {
            let seconds = spent_s(*part);
            let share = 100.0 * seconds / total_s.max(1e-9);
            [part.words().1.to_owned(), short(seconds), format!("{share:.1} %")]
        });
        self.put(numbers(&table(&["wall time", "#seconds", "#of all"], rows)));
        self.faults(&faults(records), &all, start_ms);
    }

    /// Writes the table of the faults. Times are seconds since the start of the run.
    fn faults(&mut self, found: &[FaultTimes], all: &[timeline::Stretch], start_ms: u64) {
        if found.is_empty() {
            self.put("<p>No faults.</p>\n");
            return;
        }
        let seconds = |from_ms: u64, to_ms: u64| short(to_ms.saturating_sub(from_ms) as f64 / 1e3);
        let rows = found.iter().map(|f| {
            let after = |ms: Option<u64>| ms.map_or("-".into(), |ms| seconds(f.failed_ms, ms));
            let cost: f64 = f.cost(all).iter().map(|c| c.1).sum();
            [
                f.fault.to_string(),
                f.kind.words(),
                f.node.clone().unwrap_or("-".into()),
                f.iteration.to_string(),
                seconds(start_ms, f.failed_ms),
                after(Some(f.noticed_ms)),
                after(f.restored_ms),
                after(f.caught_up_ms),
                short(cost),
            ]
        });
        let headings = [
            "#fault",
            "what",
            "where",
            "#iteration",
            "#failed at",
            "#noticed after",
            "#computing again after",
            "#caught up after",
            "#cost",
        ];
        self.put("<h3>Faults (seconds)</h3>\n");
        self.put(table(&headings, rows));
    }
}

//! Section of a single test: the rate over iterations and over time, the parts of the time, and the interruptions.

use super::Page;
use super::html::{class_of, legend, numbers, table};
use crate::base::timeline::{Timeline, What};
use crate::model::plot::{Axis, Panel, Series, escape};
use crate::review::charts::{Stretch, bar, timeline as time_bar};
use crate::review::findings::{self, Solved, Step, parts, predicted_and_measured, short};
use crate::review::sources::Material;

impl Page {
    pub(super) fn test(&mut self, one: &Solved, material: &Material) {
        let outcome = one.outcome;
        self.put(format!("<h2>{}</h2>\n", escape(&one.label())));
        self.put(format!("<p>{}</p>\n", escape(&one.result())));
        self.rates(one);
        self.parts(one);
        if outcome.protection.is_some() || !outcome.timeline.moments.is_empty() {
            self.interruptions(&outcome.timeline, outcome.seconds);
        }
        if let Some(plan) = material.planned(&one.test.params) {
            self.put("<h3>Predicted and measured</h3>\n");
            self.put(table(&["", "#predicted", "#measured"], predicted_and_measured(plan, one)));
        }
    }

    fn rates(&mut self, one: &Solved) {
        let steps = findings::rates(&one.outcome.timeline, &one.test.params);
        if steps.is_empty() {
            self.put("<p class=\"soft\">The document does not contain the rate over time.</p>\n");
            return;
        }
        let panel = |title: &str, label: &str, x: fn(&Step) -> f64| {
            let points = |y: fn(&Step) -> f64| steps.iter().map(|s| (x(s), y(s))).collect();
            let series = vec![
                Series::line("since the last step", points(|s| s.gflops)),
                Series::dashed("mean so far", points(|s| s.gflops_so_far)),
            ];
            Panel::new(title, Axis::linear(label), Axis::linear("Gflop/s"), series)
        };
        self.put("<h3>Rate</h3>\n<div class=\"plots\">\n");
        self.panel(&panel("Rate over iterations", "iteration", |s| s.iteration as f64));
        self.panel(&panel("Rate over time", "seconds", |s| s.seconds));
        self.put("</div>\n");
        let rows = steps.iter().map(|step| {
            let Step { iteration, seconds, gflops, gflops_so_far } = *step;
            [iteration.to_string(), short(seconds), short(gflops), short(gflops_so_far)]
        });
        let headings = ["#iteration", "#seconds", "#Gflop/s since the last step", "#mean so far"];
        self.put(numbers(&table(&headings, rows)));
    }

    fn parts(&mut self, one: &Solved) {
        self.put("<h3>Time by part</h3>\n");
        if !one.once() {
            self.put("<p class=\"soft\">These times are of the last attempt only. The timeline below shows earlier attempts.</p>\n");
        }
        let (mean, most) = (parts(&one.outcome.times_mean), parts(&one.outcome.times));
        let named: Vec<(String, &str, f64)> =
            mean.iter().enumerate().map(|(i, (name, s))| (format!("c{i}"), *name, *s)).collect();
        self.put(bar("Time by part, mean over the ranks", &named));
        let total = one.outcome.times_mean.total.max(1e-9);
        // Parts that are too small to be visible have no entry in the legend. The table contains them.
        let seen = named.iter().filter(|(_, _, s)| *s > total / 1000.0);
        let entries: Vec<(String, &str)> =
            seen.map(|(class, name, _)| (class.clone(), *name)).collect();
        self.put(legend(&entries));
        let both = mean.iter().zip(&most).map(|((name, mean), (_, most))| (*name, *mean, *most));
        let rows =
            both.filter(|(_, mean, most)| *mean > 0.0 || *most > 0.0).map(|(name, mean, most)| {
                let share = format!("{:.1} %", 100.0 * mean / total);
                [name.to_owned(), short(mean), share, short(most)]
            });
        let headings =
            ["part", "#seconds, mean over the ranks", "#of the time", "#the most of any rank"];
        self.put(numbers(&table(&headings, rows)));
    }

    fn interruptions(&mut self, timeline: &Timeline, seconds: f64) {
        self.put("<h3>Saves, failures and recoveries</h3>\n");
        if timeline.moments.is_empty() {
            self.put("<p>Nothing was saved, and nothing restored.</p>\n");
            return;
        }
        let mut all =
            vec![Stretch { from: 0.0, to: seconds, class: "c0".into(), title: "computing".into() }];
        all.extend(timeline.moments.iter().map(|m| Stretch {
            from: m.at_s,
            to: m.at_s + m.seconds,
            class: class_of(m.what).into(),
            title: format!("{} before iteration {}", m.what.word(), m.iteration),
        }));
        self.put(time_bar("Timeline", &all, seconds));
        let mut entries = vec![("c0".to_owned(), "computing")];
        for what in [What::Save, What::Lost, What::Down, What::Restore] {
            if timeline.moments.iter().any(|m| m.what == what) {
                entries.push((class_of(what).into(), what.word()));
            }
        }
        self.put(legend(&entries));
        if timeline.moments_left_out > 0 {
            self.put(format!(
                "<p class=\"soft\">{} more interruptions, mostly saves, were not recorded.</p>\n",
                timeline.moments_left_out
            ));
        }
        let rows = timeline.moments.iter().map(|m| {
            let what = m.what.word().to_owned();
            [what, m.iteration.to_string(), short(m.at_s), short(m.seconds)]
        });
        let headings = ["what", "#before iteration", "#after seconds", "#took seconds"];
        self.put(numbers(&table(&headings, rows)));
    }
}

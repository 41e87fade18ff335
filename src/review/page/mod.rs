//! The report as one HTML page: without scripts, without external files, with a light and a dark theme, and readable in a narrow
//! window.

mod html;
mod one_test;
mod supervised;

use html::{number, table, table_of_cells, words};

use crate::base::outcome::Verdict;
use crate::base::units::{show_bytes, show_flops, show_seconds};
use crate::model::plot::{Axis, Panel, Series, escape};
use crate::report::cformat::ctime;
use crate::report::json::Test;
use crate::review::findings::{self, Solved, parts, short, solved};
use crate::review::form::{self, Line};
use crate::review::sources::Material;
use crate::review::text;

const STYLE: &str = include_str!("page.css");

/// Largest number of tests that are all shown with their curves. If there are more tests, only the fastest test of each file is
/// shown with its curves.
const DETAILS_MAX: usize = 4;
/// Largest number of rows in the table of all tests.
const ROWS_MAX: usize = 500;
/// Largest number of bars in one drawing, so that they can be distinguished.
const BARS_MAX: usize = 12;

pub fn page(material: &Material, rpeak: Option<f64>, title: &str) -> String {
    let all = solved(material);
    let head = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(title)
    );
    let mut page = Page { out: head, drawings: 0 };
    page.head(material, &all);
    if !material.runs.is_empty() {
        page.form(&form::form(&all, rpeak));
        page.all_tests(material, &all);
    }
    if all.len() > 1 {
        page.compared(&all);
    }
    for one in details(&all) {
        page.test(&one, material);
    }
    for (file, records) in &material.logs {
        page.supervised(file, records);
    }
    page.machines(material);
    page.runs(material);
    page.out + "</body>\n</html>\n"
}

/// Returns the tests that have a section of their own on the page.
fn details<'a>(all: &[Solved<'a>]) -> Vec<Solved<'a>> {
    if all.len() <= DETAILS_MAX {
        return all.to_vec();
    }
    let mut shown: Vec<Solved> = Vec::new();
    for one in all {
        match shown.iter_mut().find(|known| known.file == one.file) {
            Some(known) if known.outcome.gflops < one.outcome.gflops => *known = *one,
            Some(_) => {}
            None => shown.push(*one),
        }
    }
    shown
}

struct Page {
    out: String,
    /// Number of drawings so far. Each drawing gets unique names from it.
    drawings: usize,
}

fn verdict(solved: &Solved) -> String {
    match (solved.outcome.verdict, &solved.outcome.residual) {
        (Verdict::Passed, Some(r)) => {
            format!("<span class=\"good\">PASSED</span> ({:.3e})", r.scaled)
        }
        (Verdict::Failed, Some(r)) => {
            format!("<span class=\"bad\">FAILED</span> ({:.3e})", r.scaled)
        }
        _ => "not checked".into(),
    }
}

impl Page {
    fn put(&mut self, text: impl AsRef<str>) {
        self.out.push_str(text.as_ref());
    }

    fn panel(&mut self, panel: &Panel) {
        self.drawings += 1;
        self.put(panel.inline(&format!("d{}", self.drawings)));
    }

    fn head(&mut self, material: &Material, all: &[Solved]) {
        for (file, run) in &material.runs {
            let name = escape(file);
            let (seen, planned) = (run.counts.total(), run.planned);
            if !run.complete {
                self.put(format!(
                    "<p class=\"bad\">{name}: the run is not complete; its document contains {seen} of {planned} tests.</p>\n"
                ));
            }
            if run.counts.failed > 0 {
                self.put(format!(
                    "<p class=\"bad\">{name}: {} test(s) FAILED their check.</p>\n",
                    run.counts.failed
                ));
            }
        }
        let Some(best) = findings::best(all) else {
            if !material.runs.is_empty() {
                self.put("<p class=\"bad\">No test passed its check: there is no result.</p>\n");
            }
            return;
        };
        let outcome = best.outcome;
        let residual =
            outcome.residual.map_or("not checked".into(), |r| format!("{:.3e}", r.scaled));
        let mut boxes = vec![
            (show_flops(best.rate()), "the fastest test that passed".to_owned()),
            (best.test.params.n.to_string(), "N".into()),
            (show_seconds(outcome.seconds), "wall time".into()),
            (residual, "scaled residual, PASSED".into()),
        ];
        if let Some(p) = outcome.protection {
            // The number includes stops on request.
            let times = p.attempts.saturating_sub(1).to_string();
            boxes.push((times, format!("interruption(s) survived; {} save(s)", p.saves)));
        }
        if let Some(c) = &outcome.checksums {
            boxes.push((c.losses.to_string(), "loss(es) of ranks survived by checksums".into()));
        }
        self.put("<div class=\"headline\">");
        for (value, what) in boxes {
            let (value, what) = (escape(&value), escape(&what));
            self.put(format!("<div><b>{value}</b><span>{what}</span></div>"));
        }
        self.put("</div>\n");
    }

    fn form(&mut self, lines: &[Line]) {
        let rows = lines.iter().map(|line| {
            let answer = match &line.answer {
                Some(answer) => format!("<td><b>{}</b></td>", escape(answer)),
                None => "<td class=\"soft\">not known</td>".into(),
            };
            let (asked, source) = (escape(line.asked), escape(&line.source));
            format!("<td class=\"k\">{asked}</td>{answer}<td class=\"soft\">{source}</td>")
        });
        let table = table_of_cells(&["asked for", "answer", "where it comes from"], rows);
        self.put(format!(
            "<section class=\"form\"><h2>Fields of a TOP500 form</h2>\n{table}</section>\n"
        ));
    }

    fn all_tests(&mut self, material: &Material, all: &[Solved]) {
        self.put("<h2>Tests</h2>\n");
        let first_cells = |file: &str, test: &Test| {
            let p = &test.params;
            let (test, grid) = (test.number.to_string(), format!("{} x {}", p.p, p.q));
            let numbers = [test, p.n.to_string(), p.nb.to_string(), grid];
            words(file) + &numbers.map(|text| number(&text)).concat()
        };
        let solved = all.iter().take(ROWS_MAX).map(|s| {
            let numbers = [s.outcome.seconds, s.outcome.gflops].map(|x| number(&short(x)));
            let first = first_cells(s.file, s.test);
            format!("{first}{}{}<td>{}</td>", words(s.engine()), numbers.concat(), verdict(s))
        });
        let tests =
            material.runs.iter().flat_map(|(file, run)| run.tests.iter().map(move |t| (file, t)));
        let skipped = tests.filter_map(|(file, test)| {
            let (first, why) = (first_cells(file, test), escape(test.skipped.as_ref()?));
            Some(format!("{first}<td colspan=\"4\">skipped: {why}</td>"))
        });
        let headings =
            ["file", "#test", "#N", "#NB", "#grid", "engine", "#seconds", "#Gflop/s", "residual"];
        self.put(table_of_cells(&headings, solved.chain(skipped)));
        if all.len() > ROWS_MAX {
            let left_out = all.len() - ROWS_MAX;
            self.put(format!(
                "<p class=\"soft\">{left_out} more tests are in the documents.</p>\n"
            ));
        }
    }

    /// Writes the comparison of the tests of all runs: rates, and parts of the time.
    fn compared(&mut self, all: &[Solved]) {
        self.put("<h2>Compared</h2>\n<div class=\"plots\">\n");
        self.rate_over_n(all);
        let mut fastest: Vec<&Solved> = all.iter().collect();
        fastest.sort_by(|a, b| b.outcome.gflops.total_cmp(&a.outcome.gflops));
        fastest.truncate(BARS_MAX);
        let names: Vec<String> = (1..=fastest.len()).map(|i| i.to_string()).collect();
        let bars = fastest.iter().enumerate().map(|(i, s)| (i as f64, s.outcome.gflops)).collect();
        let shown = if fastest.len() < all.len() { "The fastest tests" } else { "Tests" };
        self.panel(&Panel {
            title: format!("{shown}, by rate"),
            x: Axis::linear("place in the table below"),
            y: Axis::linear("Gflop/s"),
            series: vec![Series::line("rate", bars)],
            categories: names,
        });
        self.put("</div>\n");
        self.shares(&fastest);
    }

    /// Draws the rates over N, with the fitted curve. Draws nothing if all tests have the same N.
    fn rate_over_n(&mut self, all: &[Solved]) {
        let sizes = || all.iter().map(|s| s.test.params.n);
        let (Some(low), Some(high)) = (sizes().min(), sizes().max()) else { return };
        if low == high {
            return;
        }
        let mut series: Vec<Series> = Vec::new();
        for s in all {
            let point = (s.test.params.n as f64, s.outcome.gflops);
            match series.iter_mut().find(|known| known.name == s.file) {
                Some(known) => known.points.push(point),
                None => series.push(Series::dots(s.file, vec![point])),
            }
        }
        if let Some(Ok((fit, _))) = findings::best(all).map(|best| findings::half(all, &best)) {
            let at = |i: u32| {
                low as f64 * 0.8 + (high as f64 * 1.1 - low as f64 * 0.8) * f64::from(i) / 60.0
            };
            let points = (0..=60)
                .filter_map(|i| Some((at(i), fit.model.rate(at(i).max(1.0)).ok()? / 1e9)))
                .collect();
            series.push(Series::dashed("fit", points));
        }
        let (x, y) = (Axis::linear("N"), Axis::linear("Gflop/s"));
        self.panel(&Panel::new("Rate over N", x, y, series));
    }

    /// Writes a table of the rates of the tests, and of the parts of their time.
    fn shares(&mut self, fastest: &[&Solved]) {
        let mut headings = vec!["#place", "test", "#Gflop/s", "#of the best"];
        let kept: Vec<usize> = (0..8)
            .filter(|&i| fastest.iter().any(|s| parts(&s.outcome.times_mean)[i].1 > 0.0))
            .collect();
        let part_names: Vec<String> =
            parts(&Default::default()).iter().map(|p| format!("#{}", p.0)).collect();
        headings.extend(kept.iter().map(|&i| part_names[i].as_str()));
        let top = fastest.first().map_or(1.0, |s| s.outcome.gflops);
        let percent = |percent: f64| number(&format!("{percent:.1} %"));
        let rows = fastest.iter().enumerate().map(|(i, s)| {
            let total = s.outcome.times_mean.total.max(1e-9);
            let label = format!("<td class=\"k\">{}</td>", escape(&s.label()));
            let rate = number(&short(s.outcome.gflops)) + &percent(100.0 * s.outcome.gflops / top);
            let parts = parts(&s.outcome.times_mean);
            let shares: String =
                kept.iter().map(|&i| percent(100.0 * parts[i].1 / total)).collect();
            number(&(i + 1).to_string()) + &label + &rate + &shares
        });
        self.put("<p class=\"soft\">Shares of the time are means over the ranks.</p>\n");
        self.put(table_of_cells(&headings, rows));
    }

    fn machines(&mut self, material: &Material) {
        for (kinds, files) in findings::machines(material) {
            self.put(format!("<h2>Machine of {}</h2>\n", escape(&files.join(", "))));
            if kinds.is_empty() {
                self.put("<p class=\"soft\">Not in this document.</p>\n");
            }
            for kind in kinds {
                let make = &kind.make;
                let clock =
                    |mhz: Option<u64>| mhz.map_or("not known".into(), |mhz| format!("{mhz} MHz"));
                let or = |text: &str| {
                    if text.is_empty() { "not known".to_owned() } else { text.to_owned() }
                };
                let rows = [
                    ("nodes", format!("{}: {}", kind.hosts.len(), text::hosts(&kind.hosts))),
                    ("processor", or(&make.processor)),
                    (
                        "of a node",
                        format!(
                            "{} socket(s), {} cores, {} hardware threads, {} memory domain(s)",
                            make.sockets, make.cores, make.hardware_threads, make.numa_nodes
                        ),
                    ),
                    ("base clock", clock(make.clock_base_mhz)),
                    ("highest clock", clock(make.clock_max_mhz)),
                    (
                        "clocks seen at the start",
                        format!(
                            "{} to {}",
                            clock(kind.clock_seen_mhz_min),
                            clock(kind.clock_seen_mhz_max)
                        ),
                    ),
                    ("governor", or(make.governor.as_deref().unwrap_or_default())),
                    ("memory of a node", show_bytes(kind.memory_bytes_max as f64)),
                    ("network", or(&make.network.join(" + "))),
                    ("system", or(&make.system)),
                    ("kernel", or(&make.kernel)),
                    ("BLAS", or(&make.blas)),
                    ("ranks on a node", format!("{} to {}", kind.ranks_min, kind.ranks_max)),
                ];
                let rows = rows.map(|(what, value)| [what.to_owned(), value]);
                self.put(table(&["", ""], rows).replacen("<tr><th></th><th></th></tr>\n", "", 1));
            }
        }
    }

    fn runs(&mut self, material: &Material) {
        if material.runs.is_empty() {
            return;
        }
        self.put("<h2>Runs</h2>\n");
        for (file, run) in &material.runs {
            let command = run.command_line.join(" ");
            let built = [&run.program.compiler, &run.program.target, &run.program.profile];
            let built: Vec<&str> =
                built.into_iter().map(String::as_str).filter(|s| !s.is_empty()).collect();
            let built =
                if built.is_empty() { String::new() } else { format!(" ({})", built.join(", ")) };
            self.put(format!(
                "<p>{}: <code>{}</code><br><span class=\"soft\">{} {}{}, {}, {} rank(s) on {} host(s), {}, began {}</span></p>\n",
                escape(file),
                escape(&command),
                escape(&run.program.name),
                escape(&run.program.version),
                escape(&built),
                escape(&run.mpi.library),
                run.mpi.ranks,
                run.mpi.hosts,
                escape(&run.blas.name),
                escape(ctime(run.started_unix_s).trim_end())
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::sources::{log_text, plan_text, run_text};

    fn whole() -> String {
        let mut material = Material::default();
        material.add("a<b>.json", &run_text()).unwrap();
        material.add("events.jsonl", &log_text()).unwrap();
        material.add("plan.json", &plan_text()).unwrap();
        page(&material, None, "A & B")
    }

    /// Checks that every opened tag of the page is closed, in the right order.
    fn balanced(html: &str) {
        let mut open: Vec<&str> = Vec::new();
        for piece in html.split('<').skip(1) {
            let tag = piece.split('>').next().unwrap();
            let name = tag.split([' ', '/']).find(|w| !w.is_empty()).unwrap_or_default();
            if tag.starts_with('!') || tag.ends_with('/') || ["meta", "br"].contains(&name) {
                continue;
            }
            match tag.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "at <{piece}"),
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_page_is_sound_whole_and_needs_nothing_from_outside() {
        let html = whole();
        balanced(&html);
        for foreign in ["http:", "https:", "<script", "<link", "<img", "@import", "url(h", "src="] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(
            html.contains("<title>A &amp; B</title>")
                && html.contains("&lt;i&gt;12000")
                && !html.contains("<i>")
        );
        assert!(html.contains("prefers-color-scheme: dark") && html.contains("width=device-width"));
        for part in [
            "Fields of a TOP500 form",
            "214.38 Gflop/s",
            "not known",
            "PASSED",
            "Rate over iterations",
            "Time by part",
            "Saves, failures and recoveries",
            "Predicted and measured",
            "node unresponsive",
            "Example 9000",
            "skipped: no memory",
            "Rate over N",
        ] {
            assert!(html.contains(part), "{part}");
        }
    }

    #[test]
    fn names_in_drawings_are_there_once() {
        let html = whole();
        let ids: Vec<&str> =
            html.split(" id=\"").skip(1).map(|s| s.split('"').next().unwrap()).collect();
        let mut once = ids.clone();
        once.sort_unstable();
        once.dedup();
        assert!(ids.len() > 3 && once.len() == ids.len(), "{ids:?}");
        for id in html.split("url(#").skip(1).map(|s| s.split(')').next().unwrap()) {
            assert!(ids.contains(&id), "{id}");
        }
    }

    #[test]
    fn little_or_nothing_makes_a_page_too() {
        let mut material = Material::default();
        balanced(&page(&material, None, "empty"));
        material.add("l", &log_text()).unwrap();
        balanced(&page(&material, None, "a log"));
        let mut failed = Material::default();
        failed.add("a", &run_text()).unwrap();
        failed.runs[0].1.machine.kinds.clear();
        failed.runs[0].1.tests.truncate(1);
        let outcome = failed.runs[0].1.tests[0].outcome.as_mut().unwrap();
        (outcome.verdict, outcome.residual) = (Verdict::Failed, None);
        outcome.timeline = Default::default();
        outcome.times_mean = Default::default();
        let html = page(&failed, None, "failed");
        balanced(&html);
        assert!(html.contains("there is no result") && html.contains("Not in this document"));
    }
}

//! Sources of a report: files that other commands have written, distinguished by their content.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::base::params::TestParams;
use crate::model::memory::Shape;
use crate::report::json::{Run, SCHEMA_VERSION};
use crate::supervise::remember::events::Record;
use crate::supervise::remember::journal;

/// Expected values of a run from `skt-hpl plan --json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Prediction {
    pub shape: Shape,
    /// Predicted seconds of a run with saves and without failures.
    pub seconds_saved: f64,
    /// Predicted rate over `seconds_saved`, in flop/s.
    pub rate_saved: f64,
    pub saves: u64,
    /// Predicted seconds of all saves together.
    pub saving: f64,
    /// Expected seconds of a run with failures; None if the plan has none.
    pub seconds_expected: Option<f64>,
}

/// Content of all files of a report, each with the name of its file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Material {
    pub runs: Vec<(String, Run)>,
    pub logs: Vec<(String, Vec<Record>)>,
    pub plans: Vec<(String, Prediction)>,
}

impl Material {
    /// Adds the file `name` with the content `text`.
    ///
    /// # Errors
    /// The content is of an unknown kind; the message lists the known kinds.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), String> {
        let first = text.lines().next().unwrap_or_default();
        if journal::from_line(first).is_ok() {
            let (records, _) = journal::parse(text.as_bytes(), Path::new(name))?;
            self.logs.push((name.to_owned(), records));
            return Ok(());
        }
        // A pipe receives every state of a document. The last state in it is the newest.
        let mut newest = None;
        for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            match value {
                Ok(value) => newest = Some(value),
                Err(_) if newest.is_some() => break,
                Err(error) => return Err(unknown(name, &error.to_string())),
            }
        }
        let Some(value) = newest else { return Err(unknown(name, "it is empty")) };
        if let Some(version) = value.get("schema_version").and_then(Value::as_u64) {
            if version != u64::from(SCHEMA_VERSION) {
                return Err(format!(
                    "{name}: its schema_version is {version}, but this program reads {SCHEMA_VERSION}; use the \
                     version of skt-hpl that wrote the file"
                ));
            }
            let run = serde_json::from_value(value).map_err(|e| unknown(name, &e.to_string()))?;
            self.runs.push((name.to_owned(), run));
            return Ok(());
        }
        match value.get("plan").map(Prediction::deserialize) {
            Some(Ok(plan)) => {
                self.plans.push((name.to_owned(), plan));
                Ok(())
            }
            _ => Err(unknown(name, "it is JSON of another kind")),
        }
    }

    /// Returns the plan for the order, block size and grid of `test`; None if there is no such plan.
    pub fn planned(&self, test: &TestParams) -> Option<&Prediction> {
        let wanted = [test.n, test.nb, test.p, test.q].map(|size| size as u64);
        let fits = |Shape { n, nb, p, q, .. }: Shape| [n, nb, p, q] == wanted;
        self.plans.iter().map(|(_, plan)| plan).find(|plan| fits(plan.shape))
    }
}

fn unknown(name: &str, why: &str) -> String {
    format!(
        "{name}: no report can be made from this file ({why}). Give documents of `skt-hpl --json FILE`, event logs \
         (events.jsonl, or the --state folder of `skt-hpl run`), and plans of `skt-hpl plan --json`"
    )
}

#[cfg(test)]
pub(super) use tests::{log_text, plan_text, run_text};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::remember::events::samples;
    use crate::testkit::report as test_values;

    /// Returns the text of a document of a finished run with two sizes.
    pub(in crate::review) fn run_text() -> String {
        let mut run: Run = serde_json::from_value(serde_json::json!({
            "schema_version": 1,
            "program": {"name": "skt-hpl", "version": "0.1.0"},
            "command_line": ["skt-hpl", "-n", "<i>12000"],
            "started_unix_s": 1_795_161_000u64, "written_unix_s": 1_795_161_700u64, "complete": true,
            "mpi": {"library": "Open MPI v4.1.4", "ranks": 6, "hosts": 2},
            "blas": {"name": "BLIS 0.9.0", "kernel": "skx", "engine": "avx512-24x8"},
            "planned": 3, "counts": {"passed": 2, "failed": 0, "unchecked": 0, "skipped": 1},
            "tests": [],
        }))
        .unwrap();
        run.machine = test_values::machine();
        let test = |number, n, gflops| crate::report::json::Test {
            number,
            params: crate::base::params::TestParams { n, ..test_values::params() },
            engine: String::new(),
            outcome: Some(crate::base::outcome::Outcome { gflops, ..test_values::outcome() }),
            skipped: None,
        };
        run.tests = vec![test(1, 12000, 214.375), test(2, 6000, 170.0)];
        run.tests.push(crate::report::json::Test {
            outcome: None,
            skipped: Some("no memory".into()),
            ..test(3, 90000, 0.0)
        });
        serde_json::to_string(&run).unwrap()
    }

    pub(in crate::review) fn log_text() -> String {
        let record = |(i, event)| Record { seq: i as u64, at_ms: 1000 * i as u64, event };
        let lines = samples().into_iter().enumerate().map(record);
        lines.map(|record| journal::to_line(&record) + "\n").collect()
    }

    pub(in crate::review) fn plan_text() -> String {
        serde_json::json!({"plan": {
            "shape": {"n": 12000, "nb": 192, "p": 2, "q": 3, "depth": 1}, "seconds_saved": 5.0, "rate_saved": 230e9,
            "saves": 8, "saving": 0.2, "seconds_expected": null,
        }, "alternatives": []})
        .to_string()
    }

    #[test]
    fn files_are_told_apart_by_what_is_in_them() {
        let mut all = Material::default();
        all.add("a.json", &run_text()).unwrap();
        all.add("events.jsonl", &log_text()).unwrap();
        all.add("plan.json", &plan_text()).unwrap();
        assert_eq!((all.runs.len(), all.logs.len(), all.plans.len()), (1, 1, 1));
        assert_eq!(all.logs[0].1.len(), samples().len());
        let test = test_values::params();
        assert_eq!(all.planned(&test).unwrap().saves, 8);
        assert!(all.planned(&TestParams { p: test.q, q: test.p, ..test }).is_none());
        // A pipe receives every state, one after the other.
        all.add("pipe", &format!("{0}\n{0}", run_text())).unwrap();
        assert_eq!(all.runs[0].1, all.runs[1].1);
    }

    #[test]
    fn other_files_are_refused_with_the_wanted_kind() {
        let refusal = |text: &str| Material::default().add("x", text).unwrap_err();
        for text in
            ["", "WR11C2R4 ...", "{\"a\": 1}", "[1]", "{\"plan\": 3}", "{\"schema_version\": 1}"]
        {
            let why = refusal(text);
            assert!(why.starts_with("x: ") && why.contains("--json"), "{why}");
        }
        assert!(refusal("{\"schema_version\": 99}").contains("schema_version is 99"));
        // A log whose last line is cut off is read up to this line. Damage before the last line is reported.
        let mut log = Material::default();
        log.add("l", &log_text()[..log_text().len() - 9]).unwrap();
        assert_eq!(log.logs[0].1.len(), samples().len() - 1);
        let damaged = log_text().replacen("\"iteration\":8", "\"iteration\":9", 1);
        assert!(refusal(&damaged).contains("damaged"));
    }
}

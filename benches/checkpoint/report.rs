//! Report of a benchmark: tables printed as they are complete, a document for scripts at the end, and targets with verdicts.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
struct Table {
    title: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct Target {
    what: String,
    value: f64,
    least: Option<f64>,
    most: f64,
    met: bool,
}

#[derive(Serialize)]
struct Document {
    schema_version: u32,
    command_line: Vec<String>,
    cores: usize,
    mpi: String,
    targets: Vec<Target>,
    tables: Vec<Table>,
    /// Single samples, each under the name of its measurement.
    samples: Vec<(String, Value)>,
}

pub struct Report {
    document: Document,
    json: Option<PathBuf>,
}

impl Report {
    pub fn new(cores: usize, mpi: String, json: Option<PathBuf>) -> Self {
        println!("cores: {cores}\nMPI: {mpi}");
        Self {
            document: Document {
                schema_version: 1,
                command_line: std::env::args().collect(),
                cores,
                mpi,
                targets: Vec::new(),
                tables: Vec::new(),
                samples: Vec::new(),
            },
            json,
        }
    }

    pub fn at_most(&mut self, what: &str, value: f64, most: f64) {
        let met = value <= most;
        self.document.targets.push(Target { what: what.into(), value, least: None, most, met });
    }

    pub fn within(&mut self, what: &str, value: f64, least: f64, most: f64) {
        let met = (least..=most).contains(&value);
        let least = Some(least);
        self.document.targets.push(Target { what: what.into(), value, least, most, met });
    }

    pub fn keep(&mut self, what: &str, samples: impl Serialize) {
        let value = serde_json::to_value(samples).expect("plain values have a JSON form");
        self.document.samples.push((what.into(), value));
    }

    pub fn table(&mut self, title: &str, heads: &[&str], rows: Vec<Vec<String>>) {
        println!("\n{title}\n\n{}", markdown(heads, &rows));
        let heads = heads.iter().map(|h| h.to_string()).collect();
        self.document.tables.push(Table { title: title.into(), heads, rows });
    }

    /// Prints the targets, each with the measured value. Returns the number of missed targets.
    pub fn verdicts(&self) -> usize {
        let rows: Vec<Vec<String>> = self
            .document
            .targets
            .iter()
            .map(|t| {
                let range = match t.least {
                    Some(least) => format!("{least} to {}", t.most),
                    None => format!("at most {}", t.most),
                };
                let verdict = if t.met { "met" } else { "missed" };
                vec![t.what.clone(), format!("{:.3}", t.value), range, verdict.into()]
            })
            .collect();
        println!("\nTargets\n\n{}", markdown(&["what", "measured", "target", ""], &rows));
        self.document.targets.iter().filter(|target| !target.met).count()
    }

    pub fn write(&self) -> Result<(), String> {
        let Some(path) = &self.json else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(&self.document).map_err(|e| e.to_string())?;
        text.push('\n');
        std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
    }
}

fn markdown(heads: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let heads: Vec<String> = heads.iter().map(|h| h.to_string()).collect();
    let mut lines = vec![line(&heads), format!("|{}", "---|".repeat(heads.len()))];
    lines.extend(rows.iter().map(|row| line(row)));
    lines.join("\n")
}

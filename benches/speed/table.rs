//! The measurements as a JSON document and as a Markdown table.

use serde::Serialize;

use crate::cases::Case;
use crate::stats::{median, ratio, spread};

/// All samples of one quantity, in Gflop/s, in the order in which they were taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Samples {
    pub median: Option<f64>,
    /// (highest - lowest) / median of the samples.
    pub spread: Option<f64>,
    pub samples: Vec<f64>,
}

impl Samples {
    pub fn add(&mut self, rate: f64) {
        self.samples.push(rate);
        self.median = median(&self.samples);
        self.spread = spread(&self.samples);
    }
}

/// A case with all its measurements.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub case: Case,
    /// Number of busy cores, on which peak, DGEMM and engine were measured.
    pub cores: usize,
    /// Kernel with which `engine` was measured: the fastest at this NB.
    pub engine_name: &'static str,
    pub peak: Samples,
    pub dgemm: Samples,
    pub engine: Samples,
    pub skt_hpl: Samples,
    pub reference: Samples,
    pub plain: Samples,
    pub ratios: Ratios,
    /// Messages of the failed runs.
    pub failures: Vec<String>,
}

/// Quotients of the medians. None if a median is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    pub skt_hpl_to_peak: Option<f64>,
    pub skt_hpl_to_dgemm: Option<f64>,
    pub engine_to_dgemm: Option<f64>,
    pub skt_hpl_to_reference: Option<f64>,
    pub skt_hpl_to_plain: Option<f64>,
    pub reference_to_peak: Option<f64>,
    pub reference_to_dgemm: Option<f64>,
}

impl Measured {
    pub fn new(case: Case, cores: usize, engine_name: &'static str) -> Self {
        Self {
            case,
            cores,
            engine_name,
            peak: Samples::default(),
            dgemm: Samples::default(),
            engine: Samples::default(),
            skt_hpl: Samples::default(),
            reference: Samples::default(),
            plain: Samples::default(),
            ratios: Ratios::default(),
            failures: Vec::new(),
        }
    }

    /// Computes the ratios from the samples taken so far.
    pub fn relate(&mut self) {
        let (skt, reference) = (self.skt_hpl.median, self.reference.median);
        self.ratios = Ratios {
            skt_hpl_to_peak: ratio(skt, self.peak.median),
            skt_hpl_to_dgemm: ratio(skt, self.dgemm.median),
            engine_to_dgemm: ratio(self.engine.median, self.dgemm.median),
            skt_hpl_to_reference: ratio(skt, reference),
            skt_hpl_to_plain: ratio(skt, self.plain.median),
            reference_to_peak: ratio(reference, self.peak.median),
            reference_to_dgemm: ratio(reference, self.dgemm.median),
        };
    }
}

/// The machine and the programs that were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    /// Findings of the preflight: library, version and kernels of the BLAS.
    pub blas: String,
    pub mpi: String,
    /// Rows and columns of C in the measured multiplications.
    pub multiplication_side: usize,
    pub reference: Option<String>,
    pub plain: Option<String>,
}

/// The JSON document of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    pub schema_version: u32,
    pub command_line: Vec<String>,
    pub started_unix_s: u64,
    pub repeat: usize,
    pub machine: Machine,
    pub cases: Vec<Measured>,
}

fn rate(samples: &Samples) -> String {
    samples.median.map_or("-".into(), |rate| format!("{rate:.1}"))
}

fn percent(part: Option<f64>) -> String {
    part.map_or("-".into(), |part| format!("{:.1} %", 100.0 * part))
}

fn factor(factor: Option<f64>) -> String {
    factor.map_or("-".into(), |factor| format!("{factor:.3}"))
}

const HEAD: [&str; 15] = [
    "N",
    "NB",
    "P x Q",
    "threads",
    "peak",
    "DGEMM",
    "engine",
    "skt-hpl",
    "of peak",
    "of DGEMM",
    "reference",
    "skt-hpl / reference",
    "plain reference",
    "skt-hpl / plain",
    "spread",
];

/// Returns a Markdown table with a row for each case, and columns as wide as their content.
pub fn markdown(cases: &[Measured]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for m in cases {
        let programs = [&m.skt_hpl, &m.reference, &m.plain];
        let spread = programs.iter().filter_map(|s| s.spread).reduce(f64::max);
        rows.push([
            m.case.n.to_string(),
            m.case.nb.to_string(),
            format!("{}x{}", m.case.p, m.case.q),
            m.case.threads.to_string(),
            rate(&m.peak),
            rate(&m.dgemm),
            rate(&m.engine),
            rate(&m.skt_hpl),
            percent(m.ratios.skt_hpl_to_peak),
            percent(m.ratios.skt_hpl_to_dgemm),
            rate(&m.reference),
            factor(m.ratios.skt_hpl_to_reference),
            rate(&m.plain),
            factor(m.ratios.skt_hpl_to_plain),
            percent(spread),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..HEAD.len()).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            text += &format!("| {cell:>width$} ");
        }
        text += "|\n";
        if i == 0 {
            for width in &widths {
                text += &format!("|{}:", "-".repeat(width + 1));
            }
            text += "|\n";
        }
    }
    text
}

/// Returns the name of the processor with its family and model number, since the name alone is often not unique.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line =
            info.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
    };
    format!("{}, family {}, model {}", field("model name"), field("cpu family"), field("model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let mut m = Measured::new(Case { n: 12000, nb: 192, p: 1, q: 2, threads: 1 }, 2, "blas");
        for (samples, values) in [
            (&mut m.peak, [280.0, 270.0, 276.0]),
            (&mut m.dgemm, [250.0, 240.0, 248.0]),
            (&mut m.engine, [260.0, 260.4, 250.0]),
            (&mut m.skt_hpl, [230.0, 220.8, 225.0]),
            (&mut m.reference, [200.0, 206.0, 204.0]),
        ] {
            values.into_iter().for_each(|value| samples.add(value));
        }
        m.relate();
        m
    }

    #[test]
    fn ratios_are_those_of_medians() {
        let m = measured();
        assert_eq!(m.cores, 2);
        assert_eq!(m.ratios.skt_hpl_to_dgemm, Some(225.0 / 248.0));
        assert_eq!(m.ratios.skt_hpl_to_peak, Some(225.0 / 276.0));
        assert_eq!(m.ratios.skt_hpl_to_reference, Some(225.0 / 204.0));
        assert_eq!(m.ratios.skt_hpl_to_plain, None);
        assert_eq!(m.reference.samples, [200.0, 206.0, 204.0]);
    }

    #[test]
    fn the_table_is_markdown() {
        let text = markdown(&[measured()]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        assert_eq!(cells(lines[0]), HEAD);
        assert!(cells(lines[1]).iter().all(|cell| cell.starts_with('-') && cell.ends_with("-:")));
        assert_eq!(
            cells(lines[2]),
            [
                "12000", "192", "1x2", "1", "276.0", "248.0", "260.0", "225.0", "81.5 %", "90.7 %",
                "204.0", "1.103", "-", "-", "4.1 %",
            ]
        );
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    }

    #[test]
    fn missing_measurements_are_null_in_the_document() {
        let value = serde_json::to_value(measured()).unwrap();
        assert!(value["plain"]["median"].is_null());
        assert!(value["ratios"]["skt_hpl_to_plain"].is_null());
        assert_eq!(value["case"]["nb"], 192);
    }
}

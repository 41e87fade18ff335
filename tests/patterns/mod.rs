//! Patterns with which benchmark harnesses read HPL's output, and the values that they must find in our output.
//!
//! `harness_patterns.rs` applies them to text made of random values; tests under `tests/mpi` apply them to the text of real runs.

use regex::{Regex, RegexBuilder};
use skt_hpl::base::outcome::Verdict;

/// Patterns for lines that begin with W: the harness, its pattern, and the number of the capture group that contains the rate.
const W_LINE_PATTERNS: [(&str, &str, usize); 4] = [
    ("ReFrame's HPLBase", r"^\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+\d+\.\d+\s+(\d+\.\d+e\+\d+)$", 1),
    ("excalibur-tests", r"^W[R\|C]\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+\d[\d.]+\s+(\d[\d.eE+]+)", 1),
    (
        "Ramble and Benchpark",
        r".*\s+(?P<N>[0-9]+)\s+(?P<NB>[0-9]+)\s+(?P<P>[0-9]+)\s+(?P<Q>[0-9]+)\s+(?P<time>[0-9]+\.[0-9]+)\s+(?P<gflops>[0-9].*)\n",
        6,
    ),
    ("Open MPI's MTT", r"^(\S+)\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d+[\.\d]+)\s+(\S+)", 3),
];

/// Values that the patterns must find in the text of a run.
#[derive(Debug)]
pub struct Expected {
    /// Rate of each test that ran, in Gflop/s. Rates are at least 1, since the patterns accept no negative exponents.
    pub rates: Vec<f64>,
    pub verdicts: Vec<Verdict>,
    pub skipped: usize,
    /// True if the threshold of HPL.dat asks for a check of the solution.
    pub checked: bool,
}

/// Formats a rate as `%.4e` of C does. The code under test is not used.
pub fn rate(gflops: f64) -> String {
    let text = format!("{gflops:.4e}");
    let (digits, power) = text.split_once('e').unwrap();
    let power: i32 = power.parse().unwrap();
    format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
}

fn rates<'t>(pattern: &Regex, group: usize, text: &'t str) -> Vec<&'t str> {
    pattern.captures_iter(text).map(|found| found.get(group).unwrap().as_str()).collect()
}

pub fn every_pattern_holds(text: &str, run: &Expected) {
    let lines: Vec<&str> = text.lines().collect();
    let expected: Vec<_> = run.rates.iter().map(|gflops| rate(*gflops)).collect();

    let lines_with_ends: Vec<&str> = text.split_inclusive('\n').collect();
    for (who, pattern, group) in W_LINE_PATTERNS {
        let pattern = RegexBuilder::new(pattern).multi_line(true).build().unwrap();
        assert_eq!(rates(&pattern, group, text), expected, "{who}, whole text:\n{text}");
        let by_line: Vec<_> =
            lines_with_ends.iter().flat_map(|line| rates(&pattern, group, line)).collect();
        assert_eq!(by_line, expected, "{who}, by line:\n{text}");
    }

    let header = Regex::new("Time *Gflops").unwrap();
    let after: Vec<_> = (0..lines.len())
        .filter(|&i| header.is_match(lines[i]))
        .map(|i| lines[i + 2].split_whitespace().last().unwrap().to_owned())
        .collect();
    if run.checked {
        assert_eq!(after, expected, "grep -A 2:\n{text}");
    } else {
        // Without a check, all tests share one header, as in the reference HPL.
        assert_eq!(after[..], expected[..expected.len().min(1)], "{text}");
    }

    let verdicts: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("_oo/"))
        .map(|line| line.split_whitespace().nth(3).unwrap())
        .collect();
    let expected: Vec<_> = run
        .verdicts
        .iter()
        .filter_map(|verdict| match verdict {
            Verdict::Passed => Some("PASSED"),
            Verdict::Failed => Some("FAILED"),
            Verdict::Unchecked => None,
        })
        .collect();
    assert_eq!(verdicts, expected, "grep _oo/:\n{text}");

    let has = |pattern: &str| Regex::new(pattern).unwrap().is_match(text);
    assert!(has("End of Tests."));
    let skipped = run.skipped;
    assert!(has(&format!(r" {skipped} tests skipped because of illegal input values\.")));
    let failed = expected.iter().filter(|v| **v == "FAILED").count();
    let failed = format!(" {failed} tests completed and failed residual checks");
    assert_eq!(has(&failed), run.checked);
}

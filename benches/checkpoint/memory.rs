//! Computes the amount of persistent shared memory by the program's own formulas, and compares it with the table of the paper.

use std::collections::BTreeMap;

use skt_hpl::base::params::Mapping;
use skt_hpl::checkpoint::plan::{Buffers, Layout, Scheme};
use skt_hpl::checkpoint::protocol::Method;
use skt_hpl::shm::Part;
use skt_hpl::testkit::papers;

use super::XOR;

/// Memory parts that are counted: matrix, copies and parity.
const COUNTED: [Part; 6] = [Part::A, Part::B, Part::C, Part::D, Part::E, Part::F];

pub fn name(method: Method) -> &'static str {
    match method {
        Method::SelfCheckpoint => "self",
        Method::Double => "double",
        Method::Single => "single",
        Method::Disk => "disk",
    }
}

pub fn of_parts(parts: &BTreeMap<String, u64>) -> u64 {
    COUNTED.iter().filter_map(|part| parts.get(part.name())).sum()
}

/// Share of the matrix under self-checkpoint in groups of 16 according to the paper, in per cent.
const PAPER_SELF_16: &str = "47";

/// Returns the rows of a table. For each method and group size, a row has the share of the matrix in all persistent shared
/// memory, in per cent.
pub fn available() -> Vec<Vec<String>> {
    let layout = Layout { n: 40_000, nb: 192, p: 4, q: 4, mapping: Mapping::Row, dedicated: 0 };
    let mut rows = Vec::new();
    for method in Method::ALL {
        let scheme = Scheme { method, ..XOR };
        for group in [2, 3, 4, 8, 16] {
            let (mut matrix, mut all) = (0, 0);
            for first in (0..=16 - group).step_by(group) {
                let members: Vec<usize> = (first..first + group).collect();
                for &position in &members {
                    let ld = layout.shape(position).1.next_multiple_of(8);
                    let buffers = Buffers::new(&layout, &members, position, ld, &scheme, 1024);
                    matrix += buffers.data_words() * 8;
                    all += buffers.total_bytes();
                }
            }
            let paper = match (method, group) {
                (Method::SelfCheckpoint, 16) => PAPER_SELF_16,
                _ => "",
            };
            rows.push(vec![
                name(method).into(),
                group.to_string(),
                format!("{:.1} %", 100.0 * matrix as f64 / all as f64),
                format!("{:.1} %", 100.0 * papers::available(&scheme, group)),
                if paper.is_empty() { String::new() } else { format!("{paper} %") },
            ]);
        }
    }
    rows
}

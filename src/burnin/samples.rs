//! What is measured, as plain values: a sweep is one measurement of every node and of every pair of them.
//!
//! Rank 0 writes a line a sweep, and the command that started it reads them. Launchers may put words of their own
//! around what is printed, so lines are marked.

use serde::{Deserialize, Serialize};

/// One direction between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    pub from: usize,
    pub to: usize,
    /// Half of a round trip of a few bytes; the same in either direction.
    pub latency_s: f64,
    pub bytes_per_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// By node: operations a second of the multiplication.
    pub multiply: Vec<f64>,
    /// By node: bytes a second of copying in memory.
    pub memory: Vec<f64>,
    /// By node: what tells the same product from another. Empty in sweeps without links.
    pub products: Vec<u64>,
    pub passages: Vec<Passage>,
}

/// A node as its rank finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Here {
    /// What it calls itself.
    pub host: String,
    /// The same for nodes that are virtual and share one: the identity of the kernel's boot.
    pub machine: String,
    /// What multiplies on it.
    pub engine: String,
    /// Cores it multiplies and copies with.
    pub threads: usize,
    pub memory_free_bytes: u64,
}

/// What rank 0 says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// All ranks are there.
    Begun(Vec<Here>),
    /// A node has not come to the next turn for so long.
    WaitsFor {
        node: usize,
        seconds: u64,
    },
    Measured(Sweep),
}

const MARK: &str = "skt-hpl-burnin ";

pub fn line(said: &Said) -> String {
    format!("{MARK}{}\n", serde_json::to_string(said).expect("plain values have a JSON form"))
}

/// Hears what is said in output that comes in parts.
#[derive(Default)]
pub struct Listener {
    /// A last line that is not whole yet.
    line: Vec<u8>,
}

impl Listener {
    /// What has been said in lines that have come to their end with these bytes.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.line.extend_from_slice(bytes);
        // What was here before has no end of a line.
        let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else { return Vec::new() };
        let rest = self.line.split_off(self.line.len() - (bytes.len() - end - 1));
        let whole = std::mem::replace(&mut self.line, rest);
        String::from_utf8_lossy(&whole).lines().filter_map(read).collect()
    }
}

fn read(line: &str) -> Option<Said> {
    let at = line.find(MARK)?;
    let mut values = serde_json::Deserializer::from_str(&line[at + MARK.len()..]).into_iter();
    values.next()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_whatever_stands_around_it() {
        let sweep = Sweep {
            multiply: vec![1.5e10, 2e10],
            memory: vec![1e9, 2e9],
            products: vec![u64::MAX, 7],
            passages: vec![Passage { from: 0, to: 1, latency_s: 2e-5, bytes_per_s: 1e9 }],
        };
        let said = [
            Said::Begun(vec![Here { host: "n1".into(), threads: 2, ..Here::default() }]),
            Said::Measured(sweep),
            Said::WaitsFor { node: 1, seconds: 20 },
        ];
        let mut output = String::from("Welcome\n");
        for one in &said {
            output += &format!("[1,0]<stdout>:{}", line(one));
        }
        for part in [1, 7, 100, output.len()] {
            let mut listener = Listener::default();
            let parts = output.as_bytes().chunks(part);
            let heard: Vec<Said> = parts.flat_map(|bytes| listener.hear(bytes)).collect();
            assert_eq!(heard, said, "parts of {part}");
            assert!(listener.hear(b"").is_empty() && listener.line.is_empty());
        }
        // The last line is on its way.
        let mut listener = Listener::default();
        assert_eq!(listener.hear(&output.as_bytes()[..output.len() - 1]), said[..2]);
        assert_eq!(listener.hear(b"\n"), said[2..]);
    }
}

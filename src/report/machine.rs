//! Nodes of a run, as kinds of nodes, each with its hosts.
//!
//! Every node describes itself. A reduction joins the descriptions in pairs and brings them to rank 0, which writes them into the
//! JSON document. Some values always differ a little (free memory, current clock). Nodes that differ only in these values are one
//! kind, so ten thousand equal nodes are one entry with a list of names. The module is pure.

use serde::{Deserialize, Serialize};

/// Properties that are equal in all nodes of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Make {
    /// Name of the processor; empty if the system does not report it.
    pub processor: String,
    pub architecture: String,
    pub sockets: u64,
    /// Number of cores of the node. A core counts once, with all its hardware threads.
    pub cores: u64,
    pub hardware_threads: u64,
    pub numa_nodes: u64,
    /// Largest number of operations of a core in a cycle, from the width and number of its vector units; null if unknown.
    pub flops_per_cycle: Option<u64>,
    pub clock_base_mhz: Option<u64>,
    pub clock_max_mhz: Option<u64>,
    /// Frequency governor of the Linux kernel: `performance`, `powersave`, ...
    pub governor: Option<String>,
    /// Network adapters that are up, each with its rate.
    pub network: Vec<String>,
    /// Distribution of the operating system, with its version.
    pub system: String,
    /// Version of the Linux kernel.
    pub kernel: String,
    /// BLAS library, its version, and the kernel that it chose on this node.
    pub blas: String,
    /// Device whose memory has the matrix, and its libraries; null if the processor's memory has the matrix.
    #[serde(default)]
    pub device: Option<String>,
}

/// Nodes of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kind {
    #[serde(flatten)]
    pub make: Make,
    pub memory_bytes_min: u64,
    pub memory_bytes_max: u64,
    /// Lowest clock in MHz that the system reported for a core of these nodes at the start of the run. Null if the system
    /// reported no clock.
    pub clock_seen_mhz_min: Option<u64>,
    /// Highest clock in MHz that the system reported for a core of these nodes at the start of the run. Null if the system
    /// reported no clock.
    pub clock_seen_mhz_max: Option<u64>,
    /// Smallest number of ranks of the job on one of these nodes.
    pub ranks_min: u64,
    /// Largest number of ranks of the job on one of these nodes.
    pub ranks_max: u64,
    pub hosts: Vec<String>,
}

/// All nodes of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kinds: Vec<Kind>,
}

/// Reciprocal of the largest relative difference in memory between nodes of one kind. Firmware and kernel of equal nodes reserve
/// different amounts.
const ALIKE: u64 = 32;

impl Kind {
    fn is_like(&self, other: &Kind) -> bool {
        let low = self.memory_bytes_min.min(other.memory_bytes_min);
        let high = self.memory_bytes_max.max(other.memory_bytes_max);
        self.make == other.make && high - low <= low / ALIKE
    }

    fn join(&mut self, other: Kind) {
        let lowest = [self.clock_seen_mhz_min, other.clock_seen_mhz_min];
        let highest = [self.clock_seen_mhz_max, other.clock_seen_mhz_max];
        self.memory_bytes_min = self.memory_bytes_min.min(other.memory_bytes_min);
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.clock_seen_mhz_min = lowest.into_iter().flatten().min();
        self.clock_seen_mhz_max = highest.into_iter().flatten().max();
        self.ranks_min = self.ranks_min.min(other.ranks_min);
        self.ranks_max = self.ranks_max.max(other.ranks_max);
        self.hosts.extend(other.hosts);
    }

    /// Clock in MHz from which the peak is computed, with its name: the base clock, otherwise the highest clock, otherwise the
    /// clock at the start. None if no clock is known.
    pub fn clock_mhz(&self) -> Option<(u64, &'static str)> {
        let make = &self.make;
        let base = make.clock_base_mhz.map(|clock| (clock, "base clock"));
        let highest = make.clock_max_mhz.map(|clock| (clock, "highest clock"));
        base.or(highest).or(self.clock_seen_mhz_max.map(|clock| (clock, "clock seen")))
    }

    /// Peak of all nodes of this kind in 10^9 operations a second: cores, times operations in a cycle, times clock. None if a
    /// factor is not known, or if the nodes have devices.
    pub fn peak_gflops(&self) -> Option<f64> {
        if self.make.device.is_some() {
            return None;
        }
        let (clock, _) = self.clock_mhz()?;
        let node = self.make.cores * self.make.flops_per_cycle? * clock;
        Some((node * self.hosts.len() as u64) as f64 / 1e3)
    }
}

impl Machine {
    /// Adds the nodes of `other`, the machine of another part of the job.
    pub fn join(&mut self, other: Machine) {
        for kind in other.kinds {
            match self.kinds.iter_mut().find(|known| known.is_like(&kind)) {
                Some(known) => known.join(kind),
                None => self.kinds.push(kind),
            }
        }
    }

    /// Sorts the hosts by their numbers, and the kinds by their number of hosts, the largest first.
    pub fn sort(&mut self) {
        for kind in &mut self.kinds {
            kind.hosts.sort_by_cached_key(|name| natural(name));
        }
        self.kinds.sort_by_key(|kind| {
            (std::cmp::Reverse(kind.hosts.len()), kind.hosts.first().map(|name| natural(name)))
        });
    }

    /// Peak of all nodes in 10^9 operations a second; None if the peak of a kind is not known.
    pub fn peak_gflops(&self) -> Option<f64> {
        let peaks: Option<Vec<f64>> = self.kinds.iter().map(Kind::peak_gflops).collect();
        peaks.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
    }
}

/// Returns a sorting key that puts `n2` before `n10`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, next) = tail.split_at(end);
        parts.push((word.to_owned(), number.parse().unwrap_or(0)));
        rest = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(host: &str, processor: &str, memory: u64, clock: u64) -> Machine {
        Machine {
            kinds: vec![Kind {
                make: Make {
                    processor: processor.into(),
                    cores: 4,
                    flops_per_cycle: Some(16),
                    ..Make::default()
                },
                memory_bytes_min: memory,
                memory_bytes_max: memory,
                clock_seen_mhz_min: Some(clock),
                clock_seen_mhz_max: Some(clock),
                ranks_min: 2,
                ranks_max: 2,
                hosts: vec![host.into()],
            }],
        }
    }

    #[test]
    fn equal_nodes_are_one_kind_and_their_names_are_in_order() {
        let mut all = node("n10", "a", 64 << 30, 2000);
        all.join(node("n2", "a", (64 << 30) - 5_000_000, 2600));
        all.join(node("n1", "b", 64 << 30, 2000));
        all.join(node("n3", "a", 128 << 30, 2000));
        all.sort();
        let hosts: Vec<_> = all.kinds.iter().map(|kind| kind.hosts.join(" ")).collect();
        assert_eq!(hosts, ["n2 n10", "n1", "n3"]);
        let first = &all.kinds[0];
        assert_eq!((first.clock_seen_mhz_min, first.clock_seen_mhz_max), (Some(2000), Some(2600)));
        assert_eq!(first.memory_bytes_max, 64 << 30);
        assert_eq!(first.peak_gflops(), Some(2.0 * 4.0 * 16.0 * 2.6));
    }

    #[test]
    fn the_peak_of_unknown_nodes_is_not_known() {
        let mut all = node("a", "x", 1 << 30, 1000);
        assert_eq!(all.peak_gflops(), Some(64.0));
        let mut odd = node("b", "y", 1 << 30, 1000);
        odd.kinds[0].make.flops_per_cycle = None;
        all.join(odd);
        assert_eq!(all.peak_gflops(), None);
        assert_eq!(Machine::default().peak_gflops(), None);
    }

    proptest! {
        /// The nodes of a job may be joined in any order: every host is listed once, and the document is always the same.
        #[test]
        fn joining_in_any_order_comes_to_the_same(kinds in proptest::collection::vec(0u8..4, 1..30), cut in 0usize..30) {
            let nodes: Vec<Machine> = kinds.iter().enumerate().map(|(i, kind)| {
                node(&format!("n{i}"), &format!("p{kind}"), 1 << 34, 1000 + i as u64)
            }).collect();
            let fold = |nodes: &[Machine]| {
                let mut all = Machine::default();
                nodes.iter().for_each(|n| all.join(n.clone()));
                all
            };
            let mut straight = fold(&nodes);
            let (a, b) = nodes.split_at(cut % nodes.len());
            let mut halves = fold(b);
            halves.join(fold(a));
            straight.sort();
            halves.sort();
            prop_assert_eq!(&straight, &halves);
            prop_assert_eq!(straight.kinds.iter().map(|k| k.hosts.len()).sum::<usize>(), nodes.len());
        }
    }
}

//! Facts about this node that its kernel reports, for the description of the machine in the JSON document.
//!
//! All facts come from files under `/proc`, `/sys` and `/etc`. Tests can choose another root folder. A missing fact stays empty
//! or null, and never keeps a run from starting.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::base::cores::{self, Given};
use crate::base::host_name;
use crate::base::topology::Topology;
use crate::device::Device;
use crate::kernels::Library;
use crate::report::machine::{Kind, Make};
use crate::shm::room::meminfo_bytes;

/// Describes this node, on which `ranks` ranks of the job run.
pub fn here(ranks: usize, device: Option<&dyn Device>) -> Kind {
    static FACTS: OnceLock<Kind> = OnceLock::new();
    let library = Library::query();
    let mut kind = FACTS.get_or_init(|| under(Path::new("/"), cores::of_node())).clone();
    kind.make.blas = format!("{} {}, {} kernels", library.name, library.version, library.kernel);
    kind.make.device = device.map(|device| device.name().to_owned());
    kind.hosts = vec![host_name()];
    (kind.ranks_min, kind.ranks_max) = (ranks as u64, ranks as u64);
    kind
}

/// Describes the node whose files are below `root`. `share` is the part of the node that the job may use; `None` if the part is
/// unknown.
fn under(root: &Path, share: Option<Given>) -> Kind {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let word = |path: &str| read(path).map(|text| text.trim().to_owned()).filter(|w| !w.is_empty());
    let khz = |path: &str| Some(word(path)?.parse::<u64>().ok()? / 1000);
    let cpu0 = "sys/devices/system/cpu/cpu0/cpufreq";
    let info = read("proc/cpuinfo").unwrap_or_default();
    let processor = Processor::of(&info);
    let topology = Topology::under(root);
    let (sockets, cores, hardware_threads) = counts(&topology, share);
    let clocks = || processor.clocks_mhz.iter().copied();
    let memory =
        read("proc/meminfo").and_then(|text| meminfo_bytes(&text, "MemTotal")).unwrap_or(0);
    Kind {
        make: Make {
            processor: processor.name,
            architecture: std::env::consts::ARCH.to_owned(),
            sockets,
            cores,
            hardware_threads,
            numa_nodes: topology.memories() as u64,
            flops_per_cycle: processor.flops_per_cycle,
            clock_base_mhz: khz(&format!("{cpu0}/base_frequency")),
            clock_max_mhz: khz(&format!("{cpu0}/cpuinfo_max_freq")),
            governor: word(&format!("{cpu0}/scaling_governor")),
            network: network(root),
            system: read("etc/os-release").as_deref().and_then(pretty_name).unwrap_or_default(),
            kernel: word("proc/sys/kernel/osrelease").unwrap_or_default(),
            blas: String::new(),
            device: None,
        },
        memory_bytes_min: memory,
        memory_bytes_max: memory,
        clock_seen_mhz_min: clocks().min(),
        clock_seen_mhz_max: clocks().max(),
        ..Kind::default()
    }
}

/// Facts about the processor from `/proc/cpuinfo`.
#[derive(Debug, Default, PartialEq)]
pub struct Processor {
    pub name: String,
    pub flops_per_cycle: Option<u64>,
    pub clocks_mhz: Vec<u64>,
}

impl Processor {
    pub fn of(info: &str) -> Self {
        let fields = || info.lines().filter_map(|line| line.split_once(':'));
        let first = |key: &str| {
            fields().find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
        };
        let name = match (first("model name"), first("CPU implementer")) {
            ("", "") => String::new(),
            ("", implementer) => {
                format!("implementer {implementer}, part {}", first("CPU part"))
            }
            (name, _) => {
                format!("{name} (family {}, model {})", first("cpu family"), first("model"))
            }
        };
        let clocks = fields().filter(|(name, _)| name.trim() == "cpu MHz");
        let clocks = clocks.filter_map(|(_, value)| value.trim().parse::<f64>().ok());
        Self {
            name,
            flops_per_cycle: flops_per_cycle(
                first("vendor_id"),
                first("cpu family").parse().unwrap_or(0),
                first("model").parse().unwrap_or(0),
                first("flags"),
            ),
            clocks_mhz: clocks
                .filter(|c| (1.0..1e6).contains(c))
                .map(|c| c.round() as u64)
                .collect(),
        }
    }
}

/// Returns the double-precision operations of a core in a cycle, or `None` if the flags show no known vector unit. A core is
/// assumed to have two vector units for fused multiply-adds, as in server processors.
///
/// AMD's family 25 (Zen 3 and 4) has units of 256 bits, also for AVX-512. The first Zen, by AMD and by Hygon, has units of 128
/// bits. Some small Xeons have only one unit of 512 bits, which no flag shows. On such a Xeon, the true number is half of the
/// returned number.
fn flops_per_cycle(vendor: &str, family: u64, model: u64, flags: &str) -> Option<u64> {
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    let first_zen = matches!((vendor, family), ("AuthenticAMD", 23)) && model < 0x30
        || matches!((vendor, family), ("HygonGenuine", 24));
    if first_zen {
        Some(8)
    } else if has("avx512f") && !(vendor == "AuthenticAMD" && family <= 25) {
        Some(32)
    } else if has("avx2") && has("fma") {
        Some(16)
    } else if has("avx") {
        Some(8)
    } else if has("sse2") {
        Some(4)
    } else {
        None
    }
}

/// Returns the numbers of sockets, of whole cores and of hardware threads that the job may use.
fn counts(topology: &Topology, share: Option<Given>) -> (u64, u64, u64) {
    let Some(Given { processors, time }) = share else {
        return match topology.hardware_threads() {
            0 => (1, 1, 1),
            threads => (topology.sockets() as u64, topology.cores() as u64, threads as u64),
        };
    };
    let own = topology.among(&processors);
    // Processors that the topology does not list count as separate cores.
    let alone = processors.len() - own.hardware_threads();
    let (cores, threads) = (own.cores() + alone, processors.len());
    (own.sockets().max(1) as u64, cores.min(time) as u64, threads.min(time) as u64)
}

fn pretty_name(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// Returns the paths of the entries of a folder, sorted. Empty if the folder cannot be read.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Returns the rates of the network adapters that are up, as text. Each port of an InfiniBand adapter has an entry of its own.
/// An Ethernet adapter is listed only if it reports a speed.
fn network(root: &Path) -> Vec<String> {
    let word = |path: &Path| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let mut found = Vec::new();
    for device in entries(&root.join("sys/class/infiniband")) {
        for port in entries(&device.join("ports")) {
            let up = word(&port.join("state")).is_some_and(|state| state.contains("ACTIVE"));
            if let (true, Some(rate)) = (up, word(&port.join("rate"))) {
                let layer = word(&port.join("link_layer")).unwrap_or_default();
                found.push(format!("{layer} {rate}").trim().to_owned());
            }
        }
    }
    for device in entries(&root.join("sys/class/net")) {
        // A device made of software has no `device` entry.
        let real = device.join("device").exists();
        let up = word(&device.join("operstate")).as_deref() == Some("up");
        let speed = word(&device.join("speed")).and_then(|speed| speed.parse::<i64>().ok());
        if let (true, true, Some(speed @ 1..)) = (real, up, speed) {
            found.push(format!("Ethernet {speed} Mb/s"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::files::tree;
    use crate::testkit::machine::Machine;
    use std::collections::BTreeSet;

    #[test]
    fn a_node_is_told_by_its_files() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD \
                       EPYC\ncpu MHz\t\t: 2596.145\nflags\t: sse2 avx avx2 fma avx512f\n\nprocessor\t: 1\nvendor_id\t: \
                       AuthenticAMD\ncpu MHz\t\t: 2400.5\n";
        let dir = tree(&[
            ("proc/cpuinfo", cpuinfo),
            ("proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n"),
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
            ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
            ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
            ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "0\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3700000\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpufreq/x", ""),
            ("sys/devices/system/node/node0/x", ""),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
            ("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n"),
            ("sys/class/net/eno1/operstate", "up\n"),
            ("sys/class/net/eno1/speed", "10000\n"),
            ("sys/class/net/eno1/device/x", ""),
            ("sys/class/net/veth/operstate", "up\n"),
            ("sys/class/net/veth/speed", "10000\n"),
        ]);
        let share = Given { processors: BTreeSet::from([0, 1]), time: 2 };
        let kind = under(dir.path(), Some(share));
        let make = &kind.make;
        assert_eq!(make.processor, "AMD EPYC (family 25, model 17)");
        assert_eq!(
            (make.sockets, make.cores, make.hardware_threads, make.numa_nodes),
            (1, 1, 2, 1)
        );
        assert_eq!(make.flops_per_cycle, Some(16));
        assert_eq!((make.clock_base_mhz, make.clock_max_mhz), (None, Some(3700)));
        assert_eq!(make.governor.as_deref(), Some("performance"));
        assert_eq!(make.network, ["InfiniBand 200 Gb/sec (4X HDR)", "Ethernet 10000 Mb/s"]);
        assert_eq!(
            (make.system.as_str(), make.kernel.as_str()),
            ("Debian GNU/Linux 12 (bookworm)", "6.1.0")
        );
        assert_eq!(kind.memory_bytes_min, 16 << 30);
        assert_eq!((kind.clock_seen_mhz_min, kind.clock_seen_mhz_max), (Some(2401), Some(2596)));
    }

    #[test]
    fn a_system_that_says_nothing_is_no_reason_to_end() {
        let kind = under(tree(&[]).path(), cores::of_node());
        assert_eq!(kind.make.processor, "");
        assert_eq!((kind.memory_bytes_max, kind.clock_seen_mhz_max), (0, None));
        assert!(kind.make.cores >= 1);
    }

    #[test]
    fn of_a_node_counts_what_a_container_or_a_batch_job_is_given() {
        // Two sockets of four cores with two threads each.
        let part = Machine { sockets: 2, cores_a_cache: 4, threads_a_core: 2, ..Machine::PLAIN };
        let topology = part.topology();
        let given = |processors: &[usize], time| {
            let processors = processors.iter().copied().collect();
            counts(&topology, Some(Given { processors, time }))
        };
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(given(&all, 16), (2, 8, 16));
        assert_eq!(given(&[0, 1, 8, 9], 4), (1, 2, 4));
        assert_eq!(given(&[0, 1, 2], 3), (1, 3, 3));
        assert_eq!(given(&all, 6), (2, 6, 6));
        assert_eq!(given(&[100, 101], 2), (1, 2, 2));
        assert_eq!(counts(&topology, None), (2, 8, 16));
        assert_eq!(counts(&Topology::default(), None), (1, 1, 1));
    }

    #[test]
    fn operations_in_a_cycle_follow_the_units() {
        assert_eq!(flops_per_cycle("AuthenticAMD", 25, 1, "avx avx2 fma avx512f"), Some(16));
        assert_eq!(flops_per_cycle("AuthenticAMD", 23, 0x01, "avx avx2 fma"), Some(8));
        assert_eq!(flops_per_cycle("AuthenticAMD", 23, 0x31, "avx avx2 fma"), Some(16));
        assert_eq!(flops_per_cycle("HygonGenuine", 24, 1, "avx avx2 fma"), Some(8));
        assert_eq!(flops_per_cycle("AuthenticAMD", 26, 2, "avx avx2 fma avx512f"), Some(32));
        assert_eq!(flops_per_cycle("GenuineIntel", 6, 85, "avx avx2 fma avx512f"), Some(32));
        assert_eq!(flops_per_cycle("GenuineIntel", 6, 63, "avx avx2 fma"), Some(16));
        assert_eq!(flops_per_cycle("", 0, 0, ""), None, "no other architecture tells by flags");
    }
}

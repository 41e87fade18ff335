//! Topology of a machine's processors: sockets, NUMA nodes, caches, cores and their hardware threads, as the kernel reports it.
//!
//! All other code learns the topology from this module: `cores` counts and pins, `kernels` chooses block sizes by the caches, and
//! the description of a node contains the topology. The recommended number of ranks on a node follows from the topology
//! ([`Topology::layout`]). Tests read small copies of the kernel's files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Sockets, caches and cores that a processor belongs to; a processor is a hardware thread of a core. Sockets and NUMA nodes have
/// the system's numbers. A cache or core has the number of the first processor that shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub socket: usize,
    /// Number of the NUMA node.
    pub memory: usize,
    /// Number of the cache of the highest level.
    pub cache: usize,
    pub core: usize,
}

/// Topology of all or some processors of a machine. Processors have the system's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    places: BTreeMap<usize, Place>,
    /// Number of NUMA nodes, including those without processors.
    memories: usize,
}

/// Number of ranks on a node, and number of threads of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub ranks: usize,
    pub threads: usize,
}

impl Topology {
    /// Returns the topology of this machine's online processors. The files of the kernel are read once.
    pub fn here() -> &'static Self {
        static HERE: OnceLock<Topology> = OnceLock::new();
        HERE.get_or_init(|| Self::under(Path::new("/")))
    }

    /// Reads the topology from the files under `root`. If the files describe no processors, the topology is empty.
    pub fn under(root: &Path) -> Self {
        let mut memory_of = BTreeMap::new();
        let mut memories = 0;
        for (number, node) in numbered(&root.join("sys/devices/system/node"), "node") {
            memories += 1;
            let list = fs::read_to_string(node.join("cpulist")).unwrap_or_default();
            memory_of.extend(read_list(&list).into_iter().map(|cpu| (cpu, number)));
        }
        let mut places = BTreeMap::new();
        for (cpu, folder) in numbered(&root.join("sys/devices/system/cpu"), "cpu") {
            let read = |name: &str| fs::read_to_string(folder.join("topology").join(name)).ok();
            // A core that is offline has no topology.
            let Some(siblings) = read("thread_siblings_list") else { continue };
            let core = first(&siblings).unwrap_or(cpu);
            let socket = read("physical_package_id").and_then(|text| text.trim().parse().ok());
            let memory = memory_of.get(&cpu).copied();
            let (socket, memory) = (socket.unwrap_or(0), memory.unwrap_or(0));
            let cache = last_cache(&folder.join("cache")).unwrap_or(core);
            places.insert(cpu, Place { socket, memory, cache, core });
        }
        Self { places, memories }
    }

    /// Returns the topology of a machine with `cores` equal cores of one hardware thread each. The cores are divided evenly among
    /// `memories` NUMA nodes.
    pub fn even(cores: usize, memories: usize) -> Self {
        let memories = memories.max(1);
        let places = (0..cores)
            .map(|core| {
                let memory = core * memories / cores;
                let cache = (memory * cores).div_ceil(memories);
                (core, Place { socket: 0, memory, cache, core })
            })
            .collect();
        Self { places, memories }
    }

    /// Returns the topology without the processors that are not in `processors`.
    pub fn among(&self, processors: &BTreeSet<usize>) -> Self {
        let mut some = self.clone();
        some.places.retain(|cpu, _| processors.contains(cpu));
        some
    }

    /// Returns those of `processors` that the topology does not contain.
    pub fn lacking(&self, processors: &BTreeSet<usize>) -> BTreeSet<usize> {
        processors.iter().copied().filter(|cpu| !self.places.contains_key(cpu)).collect()
    }

    /// Returns all processors of every core that has one of `processors`.
    pub fn of_their_cores(&self, processors: &BTreeSet<usize>) -> BTreeSet<usize> {
        let some = self.among(processors);
        let cores: BTreeSet<usize> = some.places.values().map(|place| place.core).collect();
        let all = self.places.iter().filter(|(_, place)| cores.contains(&place.core));
        all.map(|(cpu, _)| *cpu).collect()
    }

    pub fn sockets(&self) -> usize {
        self.count(|place| place.socket)
    }

    /// Number of cores. A core counts once, however many hardware threads it has.
    pub fn cores(&self) -> usize {
        self.count(|place| place.core)
    }

    pub fn hardware_threads(&self) -> usize {
        self.places.len()
    }

    /// Number of NUMA nodes with at least one processor of this topology.
    pub fn own_memories(&self) -> usize {
        self.count(|place| place.memory)
    }

    /// Number of NUMA nodes that have some of `processors`. NUMA nodes without processors, such as memory behind CXL or of a
    /// graphics card, are not counted.
    pub fn memories_of(&self, processors: &BTreeSet<usize>) -> usize {
        self.among(processors).own_memories()
    }

    /// Number of NUMA nodes, including those without a processor.
    pub fn memories(&self) -> usize {
        self.memories
    }

    /// Returns all processors, sorted by socket, then by NUMA node, cache and core. So the processors of each part are adjacent.
    pub fn in_order(&self) -> Vec<usize> {
        let mut all: Vec<(Place, usize)> =
            self.places.iter().map(|(cpu, place)| (*place, *cpu)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, cpu)| cpu).collect()
    }

    /// Returns the first processor of each core, in the order of [`Topology::in_order`].
    pub fn one_a_core(&self) -> Vec<usize> {
        let mut taken = BTreeSet::new();
        let mut all = self.in_order();
        all.retain(|cpu| taken.insert(self.places[cpu].core));
        all
    }

    /// Returns the recommended number of ranks for these processors, with one thread per core.
    ///
    /// The first choice is one rank for each cache of the highest level, so that data shared by the rank's threads are in the
    /// cache once. If these caches have too few or unequal numbers of cores, the layout has one rank for each NUMA node. If NUMA
    /// nodes also have too few or unequal numbers of cores, the layout has one rank for each socket, and otherwise a single rank.
    pub fn layout(&self) -> Layout {
        /// Minimum number of cores of a rank. With smaller ranks, more data that threads could share are sent in messages.
        const WORTHWHILE: usize = 4;
        /// Function from a processor's place to the key of the part (cache, NUMA node or socket) that contains the processor.
        type Part = fn(&Place) -> (usize, usize);
        let parts: [Part; 3] = [|p| (p.memory, p.cache), |p| (p.memory, 0), |p| (p.socket, 0)];
        for part in parts {
            let mut cores: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
            for place in self.places.values() {
                cores.entry(part(place)).or_default().insert(place.core);
            }
            let sizes: BTreeSet<usize> = cores.values().map(BTreeSet::len).collect();
            if let (1, Some(&threads @ WORTHWHILE..)) = (sizes.len(), sizes.first()) {
                return Layout { ranks: cores.len(), threads };
            }
        }
        Layout { ranks: 1, threads: self.cores().max(1) }
    }

    /// Returns the NUMA node of a processor; `None` if the topology does not contain the processor.
    pub fn memory_of(&self, processor: usize) -> Option<usize> {
        Some(self.places.get(&processor)?.memory)
    }

    fn count(&self, what: impl Fn(&Place) -> usize) -> usize {
        self.places.values().map(what).collect::<BTreeSet<_>>().len()
    }
}

/// Bytes of the second-level cache that a core of this machine can use; `None` if the system does not report it.
pub fn second_level() -> Option<usize> {
    second_level_in(Path::new("/sys/devices/system/cpu/cpu0"))
}

/// Returns the size in bytes of the second-level cache, divided by the number of cores that share it. `cpu` is the kernel's
/// folder of a processor. Hardware threads of a core count as one, because only one of them is used. Returns `None` if the folder
/// does not describe the cache.
fn second_level_in(cpu: &Path) -> Option<usize> {
    let threads = fs::read_to_string(cpu.join("topology/thread_siblings_list"));
    let threads = threads.map_or(1, |list| read_list(&list).len()).max(1);
    let (_, cache) = caches(&cpu.join("cache")).into_iter().find(|(level, _)| *level == 2)?;
    let bytes = bytes(fs::read_to_string(cache.join("size")).ok()?.trim())?;
    let sharing = fs::read_to_string(cache.join("shared_cpu_list")).unwrap_or_default();
    Some(bytes / (read_list(&sharing).len() / threads).max(1))
}

/// Returns the first processor that shares the cache of the highest level; `None` if the kernel does not report it. `folder` is
/// the kernel's folder of a processor's caches.
fn last_cache(folder: &Path) -> Option<usize> {
    let (_, last) = caches(folder).into_iter().max_by_key(|(level, _)| *level)?;
    first(&fs::read_to_string(last.join("shared_cpu_list")).ok()?)
}

/// Returns the level and the folder of each data cache. `folder` is the kernel's folder of a processor's caches.
fn caches(folder: &Path) -> Vec<(usize, std::path::PathBuf)> {
    let all = numbered(folder, "index").into_iter().filter_map(|(_, path)| {
        let read = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
        let level = read("level").trim().parse().ok()?;
        (read("type").trim() != "Instruction").then_some((level, path))
    });
    all.collect()
}

/// Parses a size in bytes, such as `2048K` or `2M`; returns `None` if the text is not a size.
fn bytes(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix(['K', 'M']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) => (number, 1 << 20),
        None => (text, 1),
    };
    number.parse::<usize>().ok().filter(|&n| n > 0)?.checked_mul(unit)
}

/// Returns the number and the path of each entry of `folder` that is named by `word` and a number, sorted by number.
fn numbered(folder: &Path, word: &str) -> Vec<(usize, std::path::PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix(word)?;
            let plain = number.bytes().all(|byte| byte.is_ascii_digit());
            Some((plain.then(|| number.parse().ok())??, entry.path()))
        })
        .collect();
    found.sort();
    found
}

fn first(list: &str) -> Option<usize> {
    read_list(list).into_iter().min()
}

/// Returns the numbers in a list in the kernel's format: `0-3,8`. Parts that cannot be parsed are left out.
pub fn read_list(list: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(number(first)?..number(last)? + 1),
        None => number(part).map(|only| only..only + 1),
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::machine::Machine;

    /// Two processors of 28 cores each. Each processor is divided into four NUMA nodes of seven cores.
    fn xeon_with_snc4() -> Machine {
        let part = Machine { sockets: 2, memories_a_socket: 4, cores_a_cache: 7, ..Machine::PLAIN };
        Machine { threads_a_core: 2, scattered: true, ..part }
    }

    /// Two processors of 32 cores. Each has four NUMA nodes, and each NUMA node has two third-level caches of four cores.
    fn epyc_with_nps4() -> Machine {
        let part = Machine { sockets: 2, memories_a_socket: 4, cores_a_cache: 4, ..Machine::PLAIN };
        Machine { caches_a_memory: 2, threads_a_core: 2, ..part }
    }

    fn layout(topology: &Topology) -> (usize, usize) {
        let Layout { ranks, threads } = topology.layout();
        (ranks, threads)
    }

    #[test]
    fn known_machines_are_read_and_have_a_rank_for_each_cache_or_memory() {
        let xeon = xeon_with_snc4().topology();
        assert_eq!((xeon.sockets(), xeon.memories()), (2, 8));
        assert_eq!((xeon.cores(), xeon.hardware_threads()), (56, 112));
        assert_eq!(layout(&xeon), (8, 7));
        let epyc = epyc_with_nps4().topology();
        assert_eq!((epyc.sockets(), epyc.memories()), (2, 8));
        assert_eq!((epyc.cores(), epyc.hardware_threads()), (64, 128));
        assert_eq!(layout(&epyc), (16, 4));
        // Caches of two cores each are too small for a rank; NUMA nodes of four cores are not.
        let small = Machine { cores_a_cache: 2, ..epyc_with_nps4() };
        assert_eq!(layout(&small.topology()), (8, 4));
        // A single NUMA node and a single cache.
        let graviton = Machine { cores_a_cache: 64, ..Machine::PLAIN };
        assert_eq!(layout(&graviton.topology()), (1, 64));
        let two_virtual_cores = Machine { cores_a_cache: 2, ..Machine::PLAIN };
        assert_eq!(layout(&two_virtual_cores.topology()), (1, 2));
        // A machine that reports a socket for each processor, as some virtual machines do.
        let odd = Machine { sockets: 16, ..Machine::PLAIN };
        assert_eq!(layout(&odd.topology()), (1, 16));
        assert_eq!(layout(&Machine::PLAIN.topology()), (1, 1));
    }

    #[test]
    fn memory_without_processors_is_no_place_for_ranks() {
        let tree = xeon_with_snc4().tree();
        let node = tree.path().join("sys/devices/system/node/node8");
        fs::create_dir(&node).unwrap();
        fs::write(node.join("cpulist"), "\n").unwrap();
        let known = Topology::under(tree.path());
        assert_eq!((known.memories(), known.own_memories()), (9, 8));
        assert_eq!(known.memories_of(&(0..112).collect()), 8);
        assert_eq!(known.memories_of(&BTreeSet::from([0, 8, 56])), 1, "a container of the first");
        assert_eq!(layout(&known), (8, 7));
    }

    #[test]
    fn this_machine_is_read() {
        let here = Topology::here();
        let Layout { ranks, threads } = here.layout();
        assert!(here.hardware_threads() >= here.cores());
        assert!(here.cores() == 0 || (1..=here.cores()).contains(&(ranks * threads)));
        assert_eq!(here.in_order().len(), here.hardware_threads());
    }

    #[test]
    fn a_container_has_the_part_it_is_given() {
        let epyc = epyc_with_nps4().topology();
        let part = |list: &str| epyc.among(&read_list(list).into_iter().collect());
        // One hardware thread of each of eight cores, four in each of two caches, counts as eight cores.
        let halves = part("0-3,68-71");
        assert_eq!((halves.cores(), halves.hardware_threads()), (8, 8));
        assert_eq!(halves.layout(), Layout { ranks: 2, threads: 4 });
        assert_eq!(halves.one_a_core(), [0, 1, 2, 3, 68, 69, 70, 71]);
        // Four cores of one cache and two of the next have a single rank.
        assert_eq!(part("0-5").layout(), Layout { ranks: 1, threads: 6 });
        // Both hardware threads of core 1, and one of core 2.
        let three = part("1,2,65");
        assert_eq!((three.in_order(), three.one_a_core()), (vec![1, 65, 2], vec![1, 2]));
        assert_eq!(part("").layout(), Layout { ranks: 1, threads: 1 });
    }

    #[test]
    fn processors_that_are_not_there_are_told_from_those_that_are() {
        let lacking = |topology: &Topology, list: &str| {
            Vec::from_iter(topology.lacking(&read_list(list).into_iter().collect()))
        };
        let epyc = epyc_with_nps4().topology();
        assert_eq!(lacking(&epyc, "0-127"), [0usize; 0]);
        assert_eq!(lacking(&epyc, ""), [0usize; 0]);
        assert_eq!(lacking(&epyc, "900,3,127-129"), [128, 129, 900]);
        // A restricted topology contains only its own processors.
        let part = epyc.among(&BTreeSet::from([1, 65]));
        assert_eq!(lacking(&part, "0-2,65"), [0, 2]);
        assert_eq!(lacking(&Topology::default(), "0-1"), [0, 1]);
    }

    #[test]
    fn neighbours_stand_next_to_each_other_however_they_are_numbered() {
        let xeon = xeon_with_snc4().topology();
        let order = xeon.in_order();
        assert_eq!(order[..4], [0, 56, 8, 64]);
        assert_eq!(xeon.one_a_core()[..8], [0, 8, 16, 24, 32, 40, 48, 1]);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 112);
    }

    #[test]
    fn a_machine_that_is_only_described_has_equal_parts() {
        for (cores, memories, wanted) in
            [(24, 1, (1, 24)), (64, 8, (8, 8)), (24, 0, (1, 24)), (10, 4, (1, 10)), (8, 4, (1, 8))]
        {
            let Layout { ranks, threads } = Topology::even(cores, memories).layout();
            assert_eq!((ranks, threads), wanted, "{cores} cores, {memories} memories");
        }
        assert_eq!(Topology::even(64, 8).cores(), 64);
    }

    #[test]
    fn a_system_that_says_nothing_has_no_processors() {
        let nothing = Topology::under(tempfile::tempdir().unwrap().path());
        assert_eq!(nothing, Topology::default());
        assert_eq!(nothing.layout(), Layout { ranks: 1, threads: 1 });
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(read_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(read_list("5"), [5]);
        assert_eq!(read_list("\n"), [0usize; 0]);
        assert_eq!(read_list("x,2-y,7-4,3"), [3]);
        assert_eq!(read_list("0,64\n"), [0, 64]);
    }

    #[test]
    fn sizes_are_read() {
        for (text, want) in [
            ("2048K", Some(2 << 20)),
            ("1M", Some(1 << 20)),
            ("4096", Some(4096)),
            ("0K", None),
            ("", None),
            ("many", None),
        ] {
            assert_eq!(bytes(text), want, "{text}");
        }
    }

    #[test]
    fn a_shared_cache_is_divided_among_cores_but_not_among_a_cores_threads() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("cache/index1/level", "1\n");
        put("cache/index2/level", "2\n");
        put("cache/index2/type", "Unified\n");
        put("cache/index2/size", "4096K\n");
        put("cache/index2/shared_cpu_list", "0-3\n");
        put("topology/thread_siblings_list", "0-1\n");
        assert_eq!(second_level_in(folder.path()), Some(2 << 20));
        assert_eq!(second_level_in(&folder.path().join("nothing")), None);
    }
}

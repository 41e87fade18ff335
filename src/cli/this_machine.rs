//! Memory, cores and clock of this machine. `plan` uses these values if the user describes no other machine.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use crate::base::cores;
use crate::base::exit::Refusal;
use crate::base::threads::Pool;
use crate::base::topology::{Layout, Topology};
use crate::device::{self, DeviceFacts};
use crate::driver::node_facts::Processor;
use crate::model::planner::NamedRoom;
use crate::shm::copying::Copying;
use crate::shm::room;

/// Returns the bytes that a program can use without swapping, within the limit of a container. If the number is not known,
/// returns an error, whose message ends with `advice`.
pub fn memory(advice: &str) -> Result<f64, Refusal> {
    let unknown =
        || Refusal::environment(format!("the free memory of this machine is not known{advice}"));
    room::available_bytes().map(|b| b as f64).ok_or_else(unknown)
}

/// Returns the devices of this machine that `--device cuda` could use, at least one.
pub fn devices() -> Result<Vec<DeviceFacts>, Refusal> {
    let found = device::survey().map_err(Refusal::environment)?;
    if found.is_empty() {
        return Err(Refusal::environment("--device cuda: the driver finds no device"));
    }
    Ok(found)
}

/// Returns the free bytes for persistent shared memory, separately for POSIX and System V.
pub fn named_room() -> NamedRoom {
    let known = |bytes: Option<u64>| bytes.map(|b| b as f64);
    NamedRoom { posix: known(room::shm_bytes()), sysv: known(room::sysv_bytes()) }
}

/// Returns the number of ranks that suits the cores which this process may use, and the number of threads of each rank.
pub fn layout() -> Layout {
    layout_of(Topology::here(), cores::bound_to(), cores::count(), cores::are_whole())
}

/// Returns the number of ranks and threads for `cores` cores of `processors`. `whole` is true if the process may use the cores
/// all the time. A single rank gets all cores if `whole` is false, or if `known` lacks some processors, as in a container without
/// /sys.
fn layout_of(known: &Topology, processors: &BTreeSet<usize>, cores: usize, whole: bool) -> Layout {
    if whole && known.lacking(processors).is_empty() {
        known.among(processors).layout()
    } else {
        Layout { ranks: 1, threads: cores }
    }
}

/// Returns the bytes that `threads` cores together copy in memory in a second, or None if this cannot be measured. The rate is
/// the best of three rounds.
pub fn copy_bandwidth(threads: usize) -> Option<f64> {
    const EACH: usize = 8 << 20;
    /// Largest number of threads: more threads do not copy faster.
    const THREADS_MOST: usize = 64;
    // The planned machine may have more cores than this machine.
    let threads = threads.min(cores::count()).clamp(1, THREADS_MOST);
    let mut pool = Pool::try_new(threads).ok()?;
    let mut copying = Copying::new(EACH, &mut pool).ok()?;
    let mut best = 0.0_f64;
    for _ in 0..3 {
        let start = Instant::now();
        let bytes = copying.run(&mut pool);
        best = best.max(bytes as f64 / start.elapsed().as_secs_f64());
    }
    (best.is_finite() && best > 0.0).then_some(best)
}

/// Returns the flop/s of a core at the clock in /proc/cpuinfo; None if the file does not contain enough. The value is good enough
/// to choose sizes, but not to publish.
pub fn peak_per_core() -> Option<f64> {
    peak_of(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn peak_of(cpuinfo: &str) -> Option<f64> {
    let processor = Processor::of(cpuinfo);
    let mhz = *processor.clocks_mhz.iter().max()?;
    Some(processor.flops_per_cycle? as f64 * mhz as f64 * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the topology lacks some processors, as in a container without /sys, a single rank gets all cores.
    #[test]
    fn a_job_told_nothing_of_its_cores_has_all_of_them() {
        let sixteen: BTreeSet<usize> = (0..16).collect();
        let of = |known: &Topology, cores, whole| layout_of(known, &sixteen, cores, whole);
        let alone = |threads| Layout { ranks: 1, threads };
        assert_eq!(of(&Topology::default(), 16, true), alone(16));
        assert_eq!(of(&Topology::even(8, 1), 12, true), alone(12), "half of them are told of");
        let known = Topology::even(16, 2);
        assert_eq!(of(&known, 16, true), Layout { ranks: 2, threads: 8 });
        assert_eq!(of(&known, 3, false), alone(3));
    }

    #[test]
    fn the_peak_follows_clock_and_vectors() {
        let text = "processor : 0\ncpu MHz\t\t: 2000.000\nflags\t: fpu avx avx2 fma avx512f\n";
        assert_eq!(peak_of(text), Some(64e9));
        assert_eq!(peak_of("cpu MHz : 3000\nflags : fpu avx avx2 fma\n"), Some(48e9));
        assert_eq!(peak_of("flags : avx\n"), None);
        assert_eq!(peak_of(""), None);
    }

    #[test]
    fn this_machine_answers() {
        assert!(memory("").is_ok_and(|m| m > 0.0));
        // The rate is between a tenth of a GB/s and a hundred TB/s, so a wrong unit would show.
        assert!(copy_bandwidth(1).is_some_and(|b| (1e8..1e14).contains(&b)));
    }
}

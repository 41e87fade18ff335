//! Tests of those parts of `benches` that measure nothing. A benchmark with its own `main` has no test harness, so this program
//! compiles its modules again.

// Functions that only the `main` of a benchmark calls are unused here.
#![allow(dead_code)]

#[path = "../benches/speed/cases.rs"]
mod cases;
#[path = "../benches/speed/device.rs"]
mod device;
#[path = "../benches/speed/job.rs"]
mod job;
#[path = "../benches/speed/kernels.rs"]
mod kernels;
#[path = "../benches/speed/limit.rs"]
mod limit;
#[path = "../benches/speed/panel.rs"]
mod panel;
#[path = "../benches/speed/race.rs"]
mod race;
#[path = "../benches/speed/stats.rs"]
mod stats;
#[path = "../benches/speed/table.rs"]
mod table;
#[path = "../benches/speed/tile.rs"]
mod tile;
#[path = "../benches/nonstop/timeline.rs"]
mod timeline;
#[path = "../benches/speed/usual.rs"]
mod usual;

/// Benchmarks do not count hardware threads as cores. Hardware threads of a core share its arithmetic, so a benchmark would place
/// two ranks on one core.
#[test]
fn benchmarks_count_cores_and_not_hardware_threads() {
    let folders = std::fs::read_dir("benches").unwrap().flatten();
    let folders = folders.filter(|entry| entry.path().is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten());
    let counts = ["available_parallelism", "len(os.sched_getaffinity", "cpu_count"];
    let wrong = files.map(|file| file.path()).filter(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        counts.iter().any(|count| text.contains(count))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
}

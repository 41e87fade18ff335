//! The parts of `benches` that can be tested without measuring anything. A benchmark with a `main` of its own has no test
//! harness, so its modules are compiled here once more.

// What only the benchmark's `main` uses is unused here.
#![allow(dead_code)]

#[path = "../benches/speed/cases.rs"]
mod cases;
#[path = "../benches/nonstop/course.rs"]
mod course;
#[path = "../benches/speed/job.rs"]
mod job;
#[path = "../benches/speed/kernels.rs"]
mod kernels;
#[path = "../benches/speed/limit.rs"]
mod limit;
#[path = "../benches/speed/race.rs"]
mod race;
#[path = "../benches/speed/stats.rs"]
mod stats;
#[path = "../benches/speed/table.rs"]
mod table;
#[path = "../benches/speed/usual.rs"]
mod usual;

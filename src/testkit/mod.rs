//! Tools for tests and benchmarks: simulated agents and nodes, ranks as threads, the papers' formulas, and the model of hot
//! replacement. Also samples of machines, headers and files, refused system calls, and a full file system. No run needs them.

mod crash_points;
#[cfg(test)]
pub mod denied;
#[cfg(test)]
pub mod files;
#[cfg(test)]
mod forest;
#[cfg(test)]
pub mod groups;
#[cfg(test)]
pub mod machine;
#[cfg(test)]
pub mod memory;
pub mod papers;
#[cfg(test)]
pub mod pinning;
#[cfg(test)]
mod replacement;
#[cfg(test)]
pub mod report;
pub mod simulated_agents;
pub mod simulation;
#[cfg(test)]
pub mod small_tmpfs;
#[cfg(test)]
pub mod start;
#[cfg(test)]
pub mod stored;
pub mod thread_ranks;

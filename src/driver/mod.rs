//! Driver of the benchmark: everything that a rank does from the start of MPI to the report.
//!
//! [`benchmark::run`] reads the input with `config`, and runs each test with `lu`, under `protection` if the settings request
//! it. The results are printed with `report`.

pub mod agreement;
pub mod benchmark;
pub mod contest;
pub mod launcher_rank;
pub mod level2;
mod machine;
pub mod need;
pub mod node_facts;
mod nonstop;
pub mod pins;
mod power;
mod progress_line;
mod protection;
pub mod replacement;
mod results;
mod signs;
mod startup_watchdog;

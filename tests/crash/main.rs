//! Tests that kill real processes. Each test starts the program under `mpirun` with checkpoints, injects a fault, and removes
//! memory as the loss of a node would. The same command, started again, must give the bits of x of an undisturbed run and leave
//! nothing behind.
//!
//! | file | faults and losses |
//! |---|---|
//! | `points` | every crash point at every position, with memory kept or lost; recoveries too |
//! | `limits` | as many losses as are tolerated, and one more |
//! | `windows` | the windows in which the first implementation lost data, by number |
//! | `choices` | every method, scope, code, encoding, store, mapping and depth |
//! | `layouts` | parity layouts: as many losses as each tolerates, and one more; memory of another layout |
//! | `damage` | flipped, truncated, swapped, old and foreign memory; no room in /dev/shm |
//! | `jobs` | sweeps, job names, requests to stop, `status` and `clean` |
//! | `apart` | level two with one DIR per node: all memory and DIRs lost, a fault at every step, damage, nodes in another order |
//! | `aside` | saves whose parity helpers encode: each step of ranks and helpers, recoveries, level two, stops |
//! | `disk` | method disk: each step of saves and recoveries; storage damaged, emptied, full; all nodes failed at once |
//! | `device` | matrix in device memory: a fault at each step, recoveries, level two, starts without the device |
//! | `level2` | each step to storage and back, all memory lost; damaged, foreign and unfinished files; storage full or missing |
//! | `negative` | the program without one of its safeguards (builds with debug assertions): the tests must fail |
//! | `many` | more ranks than this machine has cores, in several groups |
//! | `soak` | random kills and losses from a printed seed; with level two, all nodes failed at once |
//!
//! Environment: see `extent`. With `SKT_TEST_WHOLE=1`, each fault has a run of its own instead of a place in a chain, for every
//! point, position and loss, and on a 2 x 3 grid too.

#[allow(dead_code)] // shared with the tests of the solver
#[path = "../mpi/dat.rs"]
mod dat;
#[allow(dead_code)] // shared with the tests that lose nodes
#[path = "../mpi/ease.rs"]
mod ease;
#[path = "../mpi/extent.rs"]
mod extent;
#[allow(dead_code)] // shared with the tests of the solver
#[path = "../mpi/job.rs"]
mod job;
#[path = "../mpi/left_out.rs"]
mod left_out;

mod apart;
mod aside;
mod choices;
mod damage;
mod device;
mod disk;
mod jobs;
mod layouts;
mod level2;
mod limits;
mod many;
#[cfg(debug_assertions)]
mod negative;
mod points;
mod scene;
mod soak;
mod storage;
mod windows;

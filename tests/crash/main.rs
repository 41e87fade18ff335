//! Real processes, killed on purpose. Each test starts the program under `mpirun` with checkpoints, injects a fault, and takes
//! memory away as the loss of a node would. It starts the same command again, and requires the very bits of x of an undisturbed
//! run, and nothing left behind.
//!
//! | file | faults and losses |
//! |---|---|
//! | `points` | every crash point at every position, memory kept or lost; recoveries too |
//! | `limits` | as many losses as are tolerated, and one more |
//! | `windows` | the windows the first implementation lost data in, by number |
//! | `choices` | every method, scope, code, encoding, store, mapping and depth |
//! | `layouts` | layouts of checksums: as many losses as each tolerates, one more; memory of another layout |
//! | `damage` | flipped, truncated, swapped, old and foreign memory; no room |
//! | `jobs` | sweeps, names, requests to stop, `status` and `clean` |
//! | `apart` | the second level where each node's DIR dies with it: all memory and storage of nodes lost, a fault at every step,
//! damage, nodes in another order |
//! | `aside` | saves whose checksums helpers make: each step of ranks and helpers, recoveries, storage as well, stops |
//! | `disk` | method disk: each step of its saves and of coming back, storage damaged, emptied, full; all nodes off at once |
//! | `level2` | each step to storage and back, all memory lost; damaged, foreign and unfinished files; storage full or missing |
//! | `negative` | the program with a safeguard left out (builds with debug assertions): the tests must notice |
//! | `many` | more ranks than this machine has cores, in several groups |
//! | `soak` | random kills and losses from a printed seed; with a second level, everything off at once |
//!
//! Environment: see `extent`. `SKT_TEST_WHOLE=1` injects a fault at every point, position and memory separately instead of in
//! chains, and on 2 x 3 as well.

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

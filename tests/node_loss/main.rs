//! Losing nodes for real: `skt-hpl run` on virtual clusters, plugs pulled by `scripts/vcluster`.
//!
//! Each test has a cluster of its own, which ends with the test process in any case. They need root and make network namespaces,
//! so a plain `cargo test` leaves them out; `scripts/test.sh` runs them where it can:
//!
//! ```text
//! cargo test --test node_loss -- --ignored --test-threads 4 --skip in_place:: --skip slurm::
//! ```
//!
//! The launcher is that of the MPI the program was built with, so the suite is run once for each: with Open MPI 5 `in_place`,
//! with any other `without_ulfm` in its stead.
//!
//! | file | losses, and when |
//! |---|---|
//! | `kinds` | one thing of each kind: the fault's kind, and the fate of its node |
//! | `branches` | an agent or a node that leads to others, and one at the tip, in a tree |
//! | `windows` | a node in the middle of generating, saving, recovering, recovering again, and at random |
//! | `together` | several nodes at once: as many as can be survived, and one more |
//! | `partition` | a node that is only cut off, and its old copy, which loses |
//! | `supervisor` | the supervisor or the launcher, with and without a node meanwhile |
//! | `outages` | nothing: the supervisor is cut off, stopped, or has a disk that is full or hangs; a sick node; a node while MPI
//! starts |
//! | `halting` | nothing: stopped on purpose in every possible way, and resumed |
//! | `in_place` | a process, whose place another takes inside the job; a node there, which ends the job |
//! | `without_ulfm` | nothing: other launchers refuse the runs of `in_place` |
//! | `level2` | the whole job, a whole group: the purpose of storage |
//! | `spares` | spares, fit and unfit; none left; in place of one that keeps checksums alone |
//! | `verdicts` | a program that fails by itself; bad input; the doctor's output |
//! | `slurm` | a node of an allocation, under srun and under mpirun |
//!
//! The supervised program is the benchmark itself (`lab::Lab::benchmark`), whose x must be that of an undisturbed run, bit for
//! bit. If only supervision is tested, it is `stand-in`, which counts and sleeps. Times are asserted only as bounds no busy
//! machine exceeds: the time to notice a loss is measured elsewhere. A fault in a certain window is placed there by `SKT_FAULT`:
//! a rank stops at a named point, all others wait for it, and then the plug is pulled.
//!
//! Environment: see `extent`. `SKT_TEST_WHOLE=1` loses every node that differs while a place is taken, and injects faults over
//! every slow wire (`in_place`), not one.

mod branches;
#[path = "../mpi/ease.rs"]
mod ease;
#[path = "../mpi/extent.rs"]
mod extent;
mod halting;
mod in_place;
#[path = "../mpi/inheriting.rs"]
mod inheriting;
mod kinds;
mod lab;
mod level2;
mod outages;
mod partition;
mod slurm;
mod spares;
#[path = "../mpi/stopped.rs"]
mod stopped;
mod supervisor;
mod together;
mod verdicts;
mod windows;
mod without_ulfm;

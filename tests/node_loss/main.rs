//! Tests that lose real nodes: `skt-hpl run` on virtual clusters, whose nodes `scripts/vcluster` switches off.
//!
//! Each test has a cluster of its own, which ends with the test process in any case. The tests need root and create network
//! namespaces, so a plain `cargo test` skips them. `scripts/test.sh` runs them if it can:
//!
//! ```text
//! cargo test --test node_loss -- --ignored --test-threads 4 --skip in_place:: --skip slurm::
//! ```
//!
//! The launcher is that of the MPI with which the program was built, so the suite is run once for each MPI. With Open MPI 5,
//! `in_place` is run; with any other MPI, `without_ulfm` is run instead.
//!
//! | file | losses, and when |
//! |---|---|
//! | `kinds` | one loss of each kind: the kind of the fault, and whether the node is kept |
//! | `branches` | in a tree of agents: an agent or a node that connects to others, and one that does not |
//! | `windows` | a node while the matrix is generated, during a save, a recovery or a second recovery, and at random |
//! | `together` | several nodes at once: as many as the run survives, and one more |
//! | `partition` | a node that is only cut off; its old memory is not used |
//! | `supervisor` | the supervisor or the launcher, with and without a node meanwhile |
//! | `outages` | no node: the supervisor is cut off, stopped, or has a disk that is full or hangs; a sick node; a node while MPI starts |
//! | `halting` | no node: the run is halted in every possible way, and resumed |
//! | `in_place` | a rank, which a spare rank replaces inside the job; a node, which ends the job |
//! | `without_ulfm` | nothing: other launchers refuse the runs of `in_place` |
//! | `level2` | the whole job, or a whole group: the run resumes from storage |
//! | `spares` | fit and unfit spares; no spare left; a replacement for a node that stores parity only |
//! | `verdicts` | a program that fails by itself; bad input; the output of `doctor` |
//! | `slurm` | a node of an allocation, under srun and under mpirun |
//!
//! The supervised program is the benchmark itself (`lab::Lab::benchmark`), whose x must be that of an undisturbed run, bit for
//! bit. If only supervision is tested, the program is `stand-in`, which counts and sleeps. Asserted times are bounds that no busy
//! machine exceeds; the time to notice a loss is measured elsewhere. `SKT_FAULT` puts a loss into a certain window: a rank stops
//! at a crash point, all other ranks wait for it, and the node is switched off.
//!
//! Environment: see `extent`. With `SKT_TEST_WHOLE=1`, `in_place` loses each kind of node during a recovery, and injects faults
//! over every slow network connection instead of one.

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

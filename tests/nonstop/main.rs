//! Ranks that die, and a job that continues without them: real processes, real SIGKILL, under an MPI that can do that (Open MPI
//! 5, `mpirun --with-ft ulfm`). These tests are left out unless `--ignored` asks for them, as the program may be built for
//! another MPI.
//!
//! | file | faults and losses |
//! |---|---|
//! | `peers` | `comm` alone: a rank that waits for a lost peer, in any call, gets out of it, and the remaining ranks continue |
//! | `points` | every crash point, memory kept and lost; every step of the recovery, again; x bit for bit that of an undisturbed
//! run |
//! | `limits` | several at once, ranks that stand by, none left to take a place: the job ends so that a restart resumes |
//! | `layouts` | checksums along the grid and localised ones, one loss after the other, at once, and one too many |
//! | `starting` | a rank that dies while MPI starts, which ends the job with a message |
//! | `level2` | each step to storage and back together with recovery in place; the checkpoint there afterwards is complete |
//! | `halves` | updates in halves: during an exchange, a panel, and while a waiting rank multiplies |
//! | `chance` | ranks killed from outside at random moments, from a printed seed |
//! | `checksums` | `--method abft`: every step of the solver; losses that checksums can replace, and refusals |
//! | `supervised` | a sweep of such tests under `skt-hpl run`: two losses, new checksums between them, and the output of `status`
//! |
//!
//! Environment: see `extent`. `SKT_TEST_WHOLE=1` injects a fault at every position.

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
#[allow(dead_code)] // shared with the tests of crash points
#[path = "../mpi/left_out.rs"]
mod left_out;
#[allow(dead_code)] // shared with the tests of crash points
#[path = "../crash/scene.rs"]
mod scene;
#[path = "../mpi/stopped.rs"]
mod stopped;

mod chance;
mod checksums;
mod halves;
mod layouts;
mod level2;
mod limits;
mod peers;
mod points;
mod starting;
mod supervised;

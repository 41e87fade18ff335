//! Tests of jobs that continue without a rank that has died: real processes, killed with SIGKILL. They need Open MPI 5 with
//! `mpirun --with-ft ulfm`. The program may be built for another MPI, so the tests run only if `--ignored` is given.
//!
//! | file | faults and losses |
//! |---|---|
//! | `peers` | `comm` alone: a rank that waits for a lost peer in any call leaves the call, and the remaining ranks continue |
//! | `points` | every crash point, with memory kept and lost; every step of a recovery; x has the bits of an undisturbed run |
//! | `limits` | several losses at once; lost spare ranks; no spare rank left: the job ends, and a restart resumes |
//! | `layouts` | parity layouts `grid` and `localised`: losses one after the other, at once, and one too many |
//! | `starting` | a rank that dies while MPI starts, which ends the job with a message |
//! | `level2` | each step to storage and back together with recovery in place; the checkpoint on storage is complete afterwards |
//! | `halves` | updates in halves: during an exchange, during a panel, and while a waiting rank multiplies |
//! | `device` | a matrix in device memory: a loss while operations are queued, during a save and a recovery |
//! | `chance` | ranks killed from outside at random moments, from a printed seed |
//! | `checksums` | `--method abft`: every step of the solver; losses that checksum columns replace, and refusals |
//! | `supervised` | a sweep with `--method abft` under `skt-hpl run`: two losses, rebuilt checksums, and the output of `status` |
//!
//! Environment: see `extent`. With `SKT_TEST_WHOLE=1`, faults are injected at every position.

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
mod device;
mod halves;
mod layouts;
mod level2;
mod limits;
mod peers;
mod points;
mod starting;
mod supervised;

//! Tests of the program under a real launcher. `mpirun` starts it, with more ranks than this machine may have cores, and the
//! tests read its output.
//!
//! | file | proof |
//! |---|---|
//! | `options` | every combination of the solver's options solves; which of them may change a bit of x |
//! | `halves` | the update in two halves is really used, and changes no bit of x |
//! | `device` | the matrix in device memory: the bits of a BLAS without a device |
//! | `cuda` | the calls of device `cuda`, and the handling of their errors, with stand-ins for NVIDIA's libraries |
//! | `sizes` | no N, NB or grid is too small or too odd |
//! | `contract` | the reference's matrix, to the printed digit; the other generator; memory; times |
//! | `oracle` | x element by element against LAPACK, and faults that only code can provoke |
//! | `output` | the reference's output and its order; exit codes; harness patterns |
//! | `report` | `skt-hpl report` on real documents, and its page in a browser if one is installed |
//! | `blas` | `--blas` with any BLAS; other files are refused |
//! | `contest` | each test has the engine that is fastest at its NB, the same on all ranks |
//! | `unequal` | ranks with different cores, engines and kernels; a rank that refuses |
//! | `faults` | a rank that dies or fails ends the whole job at once |
//! | `tune` | `skt-hpl tune` finds settings that run, resumes an interrupted search, and reports why it cannot |
//! | `pins` | each thread has a core of its own if there are enough; helpers are not pinned |
//! | `binding` | `skt-hpl run` binds ranks to the cores to which the launcher alone binds them |
//!
//! `SKT_TEST_MPIRUN` names the launcher if there are several. It must belong to the MPI with which the program was built.

#[path = "../patterns/mod.rs"]
mod patterns;

mod binding;
mod blas;
mod contest;
mod contract;
mod cuda;
mod dat;
mod device;
#[allow(dead_code)] // shared with the tests that lose nodes
mod ease;
mod extent;
mod faults;
mod halves;
mod inheriting;
#[allow(dead_code)] // shared with the tests of checkpoints
mod job;
mod left_out;
mod options;
mod oracle;
mod output;
mod pins;
mod report;
mod sizes;
mod tune;
mod unequal;

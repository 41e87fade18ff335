//! The program under a real launcher: `mpirun` starts it with more ranks than this machine may have cores, and the tests read its
//! output.
//!
//! | file | proof |
//! |---|---|
//! | `options` | every combination of algorithmic options solves; which of them may change a bit of x |
//! | `halves` | the update in two halves is really taken, and changes no bit of x |
//! | `device` | the matrix in device memory: the bits of a BLAS on the processor |
//! | `sizes` | no N, NB and grid are too small or too odd |
//! | `contract` | the reference's matrix, to the printed digit; the other generator; memory; times |
//! | `oracle` | x element by element against LAPACK, and the faults only code can provoke |
//! | `output` | the reference's output and its order; exit codes; harness patterns |
//! | `report` | `skt-hpl report` on real documents, and its page in a browser where there is one |
//! | `blas` | any BLAS named when the program starts; other files are refused |
//! | `contest` | each test has the engine that is the fastest at its NB, the same on all ranks |
//! | `unequal` | ranks with other cores, engines and kernels; a rank that refuses |
//! | `faults` | a rank that dies or fails ends the whole job at once |
//! | `tune` | `skt-hpl tune` finds settings that run, resumes an interrupted search, and reports why it cannot |
//! | `pins` | threads keep to cores of their own where each has one; helpers do not |
//! | `binding` | `skt-hpl run` gives ranks the cores the launcher alone gives them |
//!
//! `SKT_TEST_MPIRUN` names the launcher if there are several; it must be that of the MPI the program was built with.

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

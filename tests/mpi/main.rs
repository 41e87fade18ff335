//! The program under a real launcher: `mpirun` starts it with more ranks than this machine may have
//! cores, and what it wrote is read back.
//!
//! | file | what is proved |
//! |---|---|
//! | `options` | every combination of algorithmic options solves; which of them may change a bit of x |
//! | `sizes` | no N, NB and grid are too small or too odd |
//! | `contract` | the reference's matrix, to the printed digit; the other generator; memory; times |
//! | `oracle` | x element by element against LAPACK, and the faults only code can provoke |
//! | `output` | what the reference prints where, in its order; exit codes; harness patterns |
//! | `faults` | a rank that dies or fails ends the whole job at once |
//!
//! `SKT_TEST_MPIRUN` names the launcher where there are several; it must be that of the MPI the
//! program was built with.

#[path = "../patterns/mod.rs"]
mod patterns;

mod contract;
mod dat;
mod faults;
#[allow(dead_code)] // shared with the tests of checkpoints
mod job;
mod options;
mod oracle;
mod output;
mod sizes;

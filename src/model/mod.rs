//! Models of long runs on machines that fail: speed, memory, interval between saves, chance to finish. The commands `plan`,
//! `model` and `simulate` are thin layers on these models.
//!
//! The functions are pure: they take numbers and return numbers or an error. They open no file, start no process and call no MPI.
//! So tests compare every formula with the figures of its paper. Each function states its equation and its units;
//! `docs/dev/models.md` lists which printed figures follow from which inputs and which do not.
//!
//! Papers are cited by short names:
//! - *self-checkpoint*: Tang et al., IEEE TPDS 2018, "An Efficient In-Memory Checkpoint Method and its Practice on
//!   Fault-Tolerant HPL";
//! - *encoding*: Chen and Dongarra, HASE 2008, "A Scalable Checkpoint Encoding Algorithm for Diskless Checkpointing";
//! - *helpers*: Bautista Gomez et al., 2010, "Low-overhead checkpoint for large-scale GPU-accelerated systems";
//! - *unified*: Bosilca et al., INRIA RR-7950, 2012, "Unified Model for Assessing Checkpointing Protocols at
//!   Extreme-Scale";
//! - *hot-replacement*: the paper on a nonstop scheme for HPL, "ABFT hot-replacement", implemented in MPICH2 1.3.2.
//!
//! Units are seconds, bytes, flops and their quotients throughout, unless a name states another.

pub mod cores;
pub mod efficiency;
pub mod encoding;
pub mod figures;
pub mod fit;
pub mod helpers;
pub mod hpl_dat;
pub mod interval;
pub mod measured;
pub mod memory;
pub mod nonstop;
pub mod planner;
pub mod platforms;
pub mod plot;
pub mod profile;
pub mod protocols;
pub mod reliability;
pub mod simulate;

mod error;

pub use error::ModelError;

//! skt-hpl: High-Performance Linpack that survives the loss of nodes.
//!
//! Imports between folders run downward only, as the table in docs/ARCHITECTURE.md shows.

// The linker finds the BLAS through this crate. No code names the crate.
extern crate blas_src as _;

#[macro_use]
pub mod base;

pub mod comm;
pub mod grid;
pub mod kernels;
pub mod matrix;
pub mod parity;
pub mod shm;

pub mod device;

pub mod lu;

pub mod burnin;
pub mod checkpoint;
pub mod model;
pub mod report;
pub mod supervise;

pub mod review;
pub mod tune;

pub mod config;

pub mod driver;

pub mod testkit;

pub mod cli;

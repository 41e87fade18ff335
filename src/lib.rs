//! skt-hpl: High-Performance Linpack that survives the loss of nodes.
//!
//! The map of the house, from the cellar up. Imports run downward only.

// The BLAS is found by the linker through this crate; nothing calls it by name.
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

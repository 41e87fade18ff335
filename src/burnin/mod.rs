//! Search for nodes, or links between two nodes, that are slower than their peers, and for nodes that compute wrong.
//!
//! `skt-hpl burnin` starts one rank on each node. In repeated sweeps the ranks take turns to multiply, copy memory and send to
//! each other ([`probe`], [`rounds`]). [`verdict`] judges the measurements ([`samples`]) with the statistics of [`chance`], and
//! [`words`] describes the findings in sentences. All modules except `probe` are pure, so they are easy to test.

pub mod chance;
pub mod document;
mod on_device;
mod part;
pub mod probe;
pub mod rounds;
pub mod samples;
pub mod verdict;
pub mod words;

//! Search for a node, or a link between two, that is slower than its peers, or for a node that computes wrong.
//!
//! `skt-hpl burnin` starts one rank a node; the ranks [`probe`]: they multiply, copy memory and send to each other by turns
//! ([`rounds`]), again and again. [`verdict`] judges the measurements ([`samples`]) with the statistics of [`chance`], and
//! [`words`] describes the findings in sentences. All but `probe` is pure: a judgement is a few lines of test.

pub mod chance;
pub mod document;
pub mod probe;
pub mod rounds;
pub mod samples;
pub mod verdict;
pub mod words;

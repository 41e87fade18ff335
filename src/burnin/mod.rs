//! Which node, or which link between two, is slower than its peers, or computes wrong.
//!
//! `skt-hpl burnin` starts one rank a node; the ranks [`probe`]: they multiply, copy memory and send to each other
//! by turns ([`rounds`]), again and again. What comes of it ([`samples`]) is judged by [`verdict`], with the statistics of
//! [`chance`], and told in sentences by [`words`]. All but `probe` is pure: a judgement is a few lines of test.

pub mod chance;
pub mod document;
pub mod probe;
pub mod rounds;
pub mod samples;
pub mod verdict;
pub mod words;

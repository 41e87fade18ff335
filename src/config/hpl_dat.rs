//! Content of an HPL.dat as checked values, and the tests that these values describe.
//!
//! `dat_reader` makes an [`HplDat`], and settings may replace parts of it. The benchmark runs the tests in the order of
//! [`HplDat::tests`], so the lines of the output have the same order.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::diagnostic::Diagnostic;
use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap, TestParams};

/// Destination of the results (lines 3 and 4 of HPL.dat).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    Stdout,
    Stderr,
    /// A file, which is created, or emptied if it exists.
    File(PathBuf),
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Stdout => f.write_str("the standard output"),
            Output::Stderr => f.write_str("the standard error"),
            Output::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// Content of an HPL.dat, with its lists in the order of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HplDat {
    pub output: Output,
    pub ns: Vec<usize>,
    pub nbs: Vec<usize>,
    pub mapping: Mapping,
    /// Process grids, as pairs (P, Q).
    pub grids: Vec<(usize, usize)>,
    pub threshold: f64,
    pub pfacts: Vec<Fact>,
    pub nbmins: Vec<usize>,
    pub ndivs: Vec<usize>,
    pub rfacts: Vec<Fact>,
    pub bcasts: Vec<Bcast>,
    pub depths: Vec<usize>,
    pub swap: Swap,
    pub swap_threshold: usize,
    pub l1: Form,
    pub u: Form,
    pub equilibrate: bool,
    /// Alignment of work arrays, in doubles.
    pub align: usize,
}

impl Default for HplDat {
    /// Returns the values for lines that an HPL.dat lacks. Sizes and grids have no default, because a default would run tests
    /// that no user wanted.
    fn default() -> HplDat {
        HplDat {
            output: Output::Stdout,
            ns: Vec::new(),
            nbs: Vec::new(),
            mapping: Mapping::Row,
            grids: Vec::new(),
            threshold: 16.0,
            pfacts: vec![Fact::Right],
            nbmins: vec![4],
            ndivs: vec![2],
            rfacts: vec![Fact::Crout],
            bcasts: vec![Bcast::OneRingM],
            depths: vec![1],
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::Transposed,
            equilibrate: true,
            align: 8,
        }
    }
}

/// Largest number of tests in a run. At a millisecond each, a million tests take a quarter of an hour. The list of these tests
/// takes some 100 MB of each rank's memory.
const TESTS_MAX: u64 = 1_000_000;

impl HplDat {
    /// Returns the number of values of each loop over the tests, slowest loop first.
    fn loops(&self) -> [usize; 9] {
        [
            self.grids.len(),
            self.ns.len(),
            self.nbs.len(),
            self.depths.len(),
            self.bcasts.len(),
            self.rfacts.len(),
            self.pfacts.len(),
            self.nbmins.len(),
            self.ndivs.len(),
        ]
    }

    /// Returns the number of combinations of the values of `loops`: the product of the loops' lengths.
    fn combinations(loops: &[usize]) -> u64 {
        loops.iter().fold(1, |product, len| product.saturating_mul(*len as u64))
    }

    pub fn test_count(&self) -> u64 {
        Self::combinations(&self.loops())
    }

    /// Returns an error if there are more than a million tests, because every rank keeps a list of all tests. Otherwise returns
    /// `None`.
    pub fn too_many(&self) -> Option<Diagnostic> {
        let all = self.test_count();
        (all > TESTS_MAX).then(|| {
            Diagnostic::error(
                "settings",
                format!("there are {all} tests, but a run can have at most {TESTS_MAX}"),
            )
            .help("the number of tests is the product of the lists' lengths: shorten some lists")
        })
    }

    /// Iterates over the tests in the order of the reference HPL: grid, N, NB, DEPTH, BCAST, RFACT, PFACT, NBMIN, NDIV, the last
    /// varying fastest. Each test is made only when it is needed, because a file can describe 20^9 tests.
    pub fn tests(&self, rng: Rng, seed: u64) -> impl Iterator<Item = TestParams> + '_ {
        self.first_of_each(9, rng, seed)
    }

    /// Iterates over one test for each combination of grid, N, NB and lookahead. The memory need depends on nothing else.
    pub fn tests_by_memory(&self, rng: Rng, seed: u64) -> impl Iterator<Item = TestParams> + '_ {
        self.first_of_each(4, rng, seed)
    }

    /// Iterates over one test for each combination of grid, N and NB, with the deepest lookahead, which takes the most memory.
    pub fn largest_tests(&self, rng: Rng, seed: u64) -> impl Iterator<Item = TestParams> + '_ {
        let depth = self.depths.iter().copied().max().unwrap_or(0);
        self.first_of_each(3, rng, seed).map(move |test| TestParams { depth, ..test })
    }

    /// Iterates over the first test of each combination of the values of the `outer` slowest loops.
    fn first_of_each(
        &self,
        outer: usize,
        rng: Rng,
        seed: u64,
    ) -> impl Iterator<Item = TestParams> + '_ {
        let inner = Self::combinations(&self.loops()[outer..]);
        (0..self.test_count().checked_div(inner).unwrap_or(0))
            .map(move |k| self.test(k * inner, rng, seed))
    }

    /// Returns test number `k`. The digits of `k`, in the mixed base of the loops' lengths, are the indices in the loops' lists.
    fn test(&self, k: u64, rng: Rng, seed: u64) -> TestParams {
        let mut rest = k;
        let mut at = [0; 9];
        for (digit, len) in at.iter_mut().zip(self.loops()).rev() {
            *digit = (rest % len as u64) as usize;
            rest /= len as u64;
        }
        let [grid, n, nb, depth, bcast, rfact, pfact, nbmin, ndiv] = at;
        let (p, q) = self.grids[grid];
        TestParams {
            n: self.ns[n],
            nb: self.nbs[nb],
            p,
            q,
            mapping: self.mapping,
            depth: self.depths[depth],
            bcast: self.bcasts[bcast],
            rfact: self.rfacts[rfact],
            ndiv: self.ndivs[ndiv],
            pfact: self.pfacts[pfact],
            nbmin: self.nbmins[nbmin],
            swap: self.swap,
            swap_threshold: self.swap_threshold,
            l1: self.l1,
            u: self.u,
            equilibrate: self.equilibrate,
            align: self.align,
            threshold: self.threshold,
            rng,
            seed,
        }
    }

    /// Returns the number of ranks that the largest grid needs. If the number does not fit in this type, returns `usize::MAX`.
    pub fn ranks_needed(&self) -> usize {
        self.grids.iter().map(|(p, q)| p.saturating_mul(*q)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several() -> HplDat {
        HplDat {
            ns: vec![10, 20],
            nbs: vec![2, 3, 4],
            grids: vec![(1, 4), (2, 2)],
            pfacts: vec![Fact::Left, Fact::Crout, Fact::Right],
            nbmins: vec![2, 4],
            ndivs: vec![2, 3],
            rfacts: vec![Fact::Right, Fact::Left],
            bcasts: vec![Bcast::Long, Bcast::OneRing],
            depths: vec![0, 2],
            ..HplDat::default()
        }
    }

    /// Compares the iterator with nine nested loops.
    #[test]
    fn tests_come_in_the_references_order() {
        let dat = several();
        let mut expected = Vec::new();
        for &(p, q) in &dat.grids {
            for &n in &dat.ns {
                for &nb in &dat.nbs {
                    for &depth in &dat.depths {
                        for &bcast in &dat.bcasts {
                            for &rfact in &dat.rfacts {
                                for &pfact in &dat.pfacts {
                                    for &nbmin in &dat.nbmins {
                                        for &ndiv in &dat.ndivs {
                                            expected.push((
                                                (p, q, n, nb, depth),
                                                (bcast, rfact, pfact, nbmin, ndiv),
                                            ));
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        let got: Vec<_> = dat
            .tests(Rng::Xoshiro, 7)
            .map(|t| {
                assert_eq!((t.rng, t.seed), (Rng::Xoshiro, 7));
                ((t.p, t.q, t.n, t.nb, t.depth), (t.bcast, t.rfact, t.pfact, t.nbmin, t.ndiv))
            })
            .collect();
        assert_eq!(got, expected);
        assert_eq!(dat.test_count(), expected.len() as u64);
    }

    #[test]
    fn largest_tests_cover_every_shape_once() {
        let dat = several();
        let shapes: Vec<_> =
            dat.largest_tests(Rng::Hpl, 100).map(|t| (t.p, t.q, t.n, t.nb, t.depth)).collect();
        assert_eq!(shapes.len(), 2 * 2 * 3);
        assert!(shapes.iter().all(|s| s.4 == 2));
        let distinct: std::collections::HashSet<_> = shapes.iter().collect();
        assert_eq!(distinct.len(), shapes.len());
        let by_memory: std::collections::HashSet<_> =
            dat.tests_by_memory(Rng::Hpl, 100).map(|t| (t.p, t.q, t.n, t.nb, t.depth)).collect();
        assert_eq!(dat.tests_by_memory(Rng::Hpl, 100).count(), by_memory.len());
        let all = dat.tests(Rng::Hpl, 100).map(|t| (t.p, t.q, t.n, t.nb, t.depth));
        assert_eq!(by_memory, all.collect());
    }

    #[test]
    fn nothing_asked_for_is_no_test() {
        let dat = HplDat::default();
        assert_eq!(dat.test_count(), 0);
        assert_eq!(dat.tests(Rng::Hpl, 100).count(), 0);
        assert_eq!(dat.largest_tests(Rng::Hpl, 100).count(), 0);
        assert_eq!(dat.ranks_needed(), 0);
    }

    #[test]
    fn the_largest_file_is_counted_not_built() {
        let dat = HplDat {
            ns: vec![1; 20],
            nbs: vec![1; 20],
            grids: vec![(1, 1); 20],
            pfacts: vec![Fact::Left; 20],
            nbmins: vec![1; 20],
            ndivs: vec![2; 20],
            rfacts: vec![Fact::Left; 20],
            bcasts: vec![Bcast::Long; 20],
            depths: vec![0; 20],
            ..HplDat::default()
        };
        assert_eq!(dat.test_count(), 20u64.pow(9));
        assert_eq!(dat.tests(Rng::Hpl, 100).take(3).count(), 3);
        assert!(dat.too_many().unwrap().to_string().contains("512000000000 tests"));
        assert_eq!(several().too_many(), None);
    }
}

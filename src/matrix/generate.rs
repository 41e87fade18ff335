//! Generates elements of the N x (N+1) matrix [A|b] from their indices.
//!
//! The elements of both generators depend only on N and the seed, not on the grid or on NB. So the problem is the same for every
//! distribution. The computation of the residual generates A again, element by element.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

use super::lcg::{Lcg, element};
use crate::base::params::Rng;

/// Number of columns of a row that one stream of xoshiro fills.
const STREAM: usize = 64;

/// Number of rows whose sequences are computed together. Each step is a multiplication that depends on the previous step of the
/// same row, but not on other rows.
const ROWS: usize = 8;

/// Generator of parts of rows of [A|b].
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    rng: Rng,
    seed: u64,
    n: usize,
    /// Jump from an element to its right neighbour: N steps of the sequence.
    right: Lcg,
}

impl Generator {
    pub fn new(rng: Rng, seed: u64, n: usize) -> Self {
        Self { rng, seed, n, right: Lcg::jump(n as u64) }
    }

    /// Calls `put(row, column, value)` for the elements in the rows `rows`, at most 8, and in the columns `first..first + len`.
    /// In this call, `row` is an index of `rows`, and `column` is counted from `first`.
    #[inline(always)]
    pub fn block(
        &self,
        rows: &[usize],
        first: usize,
        len: usize,
        mut put: impl FnMut(usize, usize, f64),
    ) {
        debug_assert!(rows.len() <= ROWS);
        match self.rng {
            Rng::Hpl => {
                // Element (i, j) is member 1 + i + j N of the sequence. The seed is member 0.
                let mut x = [0u64; ROWS];
                let column = (first as u64).wrapping_mul(self.n as u64);
                for (x, &i) in x.iter_mut().zip(rows) {
                    *x = Lcg::jump(column.wrapping_add(i as u64 + 1)).apply(self.seed);
                }
                for j in 0..len {
                    for (r, x) in x.iter_mut().enumerate().take(rows.len()) {
                        put(r, j, element(*x));
                        *x = self.right.apply(*x);
                    }
                }
            }
            Rng::Xoshiro => {
                for (r, &i) in rows.iter().enumerate() {
                    let mut j = first;
                    while j < first + len {
                        let stream = j / STREAM;
                        let mut rng = self.stream(i, stream);
                        for _ in stream * STREAM..j {
                            rng.next_u64();
                        }
                        let end = ((stream + 1) * STREAM).min(first + len);
                        for j in j..end {
                            put(r, j - first, element(rng.next_u64()));
                        }
                        j = end;
                    }
                }
            }
        }
    }

    fn stream(&self, row: usize, stream: usize) -> Xoshiro256PlusPlus {
        // Each row and stream has its own input to splitmix64, which expands the seed.
        let place = (row as u64) << 32 ^ stream as u64;
        Xoshiro256PlusPlus::seed_from_u64(
            self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                ^ place.wrapping_mul(0xd1b5_4a32_d192_ed03),
        )
    }

    /// Returns element (`row`, `column`) of [A|b], for tests and spot checks.
    pub fn at(&self, row: usize, column: usize) -> f64 {
        let mut value = 0.0;
        self.block(&[row], column, 1, |_, _, v| value = v);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_agree_with_single_elements() {
        for rng in [Rng::Hpl, Rng::Xoshiro] {
            let generator = Generator::new(rng, 100, 150);
            for (first, len) in [(0, 151), (63, 2), (64, 70), (149, 2)] {
                let rows = [0, 1, 5, 149];
                generator.block(&rows, first, len, |r, j, v| {
                    assert_eq!(v, generator.at(rows[r], first + j), "{rng:?}");
                    assert!((-0.5..=0.5).contains(&v));
                });
            }
        }
    }

    #[test]
    fn the_sequence_runs_down_the_columns() {
        let generator = Generator::new(Rng::Hpl, 100, 7);
        let step = Lcg::jump(1);
        let mut x = 100;
        for j in 0..8 {
            for i in 0..7 {
                x = step.apply(x);
                assert_eq!(generator.at(i, j), element(x));
            }
        }
    }

    #[test]
    fn another_seed_is_another_matrix() {
        for rng in [Rng::Hpl, Rng::Xoshiro] {
            let (a, b) = (Generator::new(rng, 100, 50), Generator::new(rng, 101, 50));
            let same = (0..50).filter(|&i| a.at(i, 3) == b.at(i, 3)).count();
            assert_eq!(same, 0, "{rng:?}");
        }
    }

    /// No row or stream repeats the numbers of another row or stream.
    #[test]
    fn xoshiro_streams_differ() {
        let generator = Generator::new(Rng::Xoshiro, 1, 400);
        let mut seen = std::collections::HashSet::new();
        for i in 0..400 {
            for j in [0, 64, 128, 399] {
                assert!(seen.insert(generator.at(i, j).to_bits()));
            }
        }
    }
}

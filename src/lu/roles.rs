//! Roles of process columns in a test with checksum columns: pure functions.
//!
//! The checksums are E = A w, where w contains the weights. A checksum column is a process column past the grid. Its local
//! column l is the weighted sum of local column l of all process columns. In the first checksum column all weights are 1. Each
//! operation of the factorisation multiplies the matrix from the left. With the product M of all operations so far, the matrix
//! is M A. Each operation is applied to the checksums as well, so the checksums are the sums of M A. Below the diagonal of a
//! factored column the storage contains L, which counts as zero in the sums.
//!
//! If process column d is lost at boundary k, a checksum column takes its place: sums replace the block columns of d from k on.
//! The matrix is then A T in place of A, where T turns each replaced column into a weighted sum of columns of A. The
//! factorisation continues as if the matrix had been A T from the start. The solution y solves A T y = b, so x = T y. The block
//! columns of d before k were factored before the loss. The part of U in those columns is recomputed from the checksums and the
//! other process columns, just before back substitution reads it.
//!
//! The remaining checksum columns are still sums of M A. With other weights, the same columns are sums of M A T. So a further
//! loss, of the same process column or of another, is recovered in the same way.
//!
//! Checksum columns can be rebuilt at any boundary at which no panel is factored ahead. A rebuilt checksum column is a weighted
//! sum of the process columns in their state at that boundary. Its weights on the columns of A follow from the earlier
//! replacements.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::matrix::Shape;
use crate::parity::code::{LOSSES_MAX, real_weight};
use crate::parity::field::invert;

/// Maximum number of checksum columns at a time. With more checksum columns, the recovery of some sets of lost process columns
/// loses too many digits.
pub const SUMS_MAX: usize = 4;

/// Maximum number of checksum columns in a whole test, including rebuilt checksum columns.
///
/// Each checksum column has its own number, and weights exist for this many numbers. Each loss about doubles the residual: a much
/// larger number of losses would leave no correct digit.
pub const SUMS_EVER: usize = LOSSES_MAX;

/// Returns the weight of process column `col` in checksum column `by`, for a checksum column with which the test starts.
///
/// Recovery of one lost column divides by a weight; recovery of two lost columns divides by a difference of weights. So the
/// weights must be far from zero and from each other, for any number of columns. Multiples of the golden ratio modulo 1 are
/// farther apart than random numbers. With 256 columns, any two losses cost two and a half digits; with random weights, two
/// losses would cost five. From the third checksum column on, weights are random. With further multiples of the golden ratio, the
/// weights of three columns would lie on a line. Some sets of three lost columns could not be recovered from such weights.
pub fn weight(by: usize, col: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    match by {
        0 => 1.0,
        1 => 2.0 * (0.5 + GOLDEN * (col + 1) as f64).fract() - 1.0,
        _ => real_weight(by, col),
    }
}

/// Replacement of a process column by a checksum column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub col: usize,
    /// Number of the checksum column.
    pub by: usize,
    /// First block column of process column `col` that sums replace. Sums replace all later block columns, too.
    pub boundary: usize,
}

impl Exchange {
    /// Returns the first local column of the replaced process column that contains sums. Earlier local columns were factored
    /// before the loss.
    pub fn first_sum(&self, shape: &Shape) -> usize {
        shape.col_map.count_below((self.boundary * shape.nb).min(shape.n), self.col)
    }
}

/// Rebuilding of a checksum column during a test, from the current process columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// Number of the rebuilt checksum column.
    pub by: usize,
    /// Number of process columns that were replaced before the rebuilding.
    pub after: usize,
    /// True if the weights are the random weights of number `by`. Otherwise all weights are 1, which costs the fewest digits if
    /// no other checksum column exists.
    pub drawn: bool,
}

/// Replacements of process columns and rebuildings of checksum columns during a test, each in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    pub exchanges: Vec<Exchange>,
    /// Rebuildings of checksum columns. Includes rebuildings that were not completed, because no number of a checksum column is
    /// used twice.
    pub renewals: Vec<Renewal>,
}

impl Past {
    /// Returns the weights of the `q` process columns of A in each checksum column, indexed by the number of the checksum column.
    fn weights(&self, q: usize) -> Vec<Vec<f64>> {
        let numbers = self.exchanges.iter().map(|e| e.by);
        let numbers = numbers.chain(self.renewals.iter().map(|renewal| renewal.by));
        let end = numbers.max().map_or(0, |last| last + 1);
        let first = |by| (0..q).map(|col| weight(by, col)).collect();
        let mut all: Vec<Vec<f64>> = (0..end).map(first).collect();
        for renewal in &self.renewals {
            // For a replaced process column, the rebuilt sums contain the sums that replaced it.
            let before = &self.exchanges[..renewal.after];
            let mut sums: Vec<f64> = (0..q).map(|col| renewal.weight(col)).collect();
            last_of_each(before).for_each(|j| sums[before[j].col] = 0.0);
            for Exchange { col, by, .. } in last_of_each(before).map(|j| before[j]) {
                let of = renewal.weight(col);
                sums.iter_mut().zip(&all[by]).for_each(|(sum, share)| *sum += of * share);
            }
            all[renewal.by] = sums;
        }
        all
    }
}

impl Renewal {
    /// Returns the weight of process column `col` in the rebuilt checksum column. The weight applies to the values of the process
    /// column at the time of the rebuilding.
    fn weight(&self, col: usize) -> f64 {
        if self.drawn { real_weight(self.by, col) } else { 1.0 }
    }
}

/// Returns the indices in `made` of the last replacement of each process column.
fn last_of_each(made: &[Exchange]) -> impl Iterator<Item = usize> {
    let last = |&j: &usize| made[j + 1..].iter().all(|later| later.col != made[j].col);
    (0..made.len()).filter(last)
}

/// A set of replacements: bit j is set if the set contains replacement j of the order in which replacements were made.
pub type Which = u64;
const _: () = assert!(SUMS_EVER <= Which::BITS as usize);

/// Replacements of process columns so far, in order, and the consequences: which local columns contain sums, with which weights.
pub struct Exchanges<'a> {
    pub made: &'a [Exchange],
    /// Weights of all process columns of A in each checksum column, indexed by the number of the checksum column. Covers the
    /// numbers up to the largest number of a checksum column that replaced a process column or was rebuilt.
    weights: Vec<Vec<f64>>,
    /// For each replacement, the local columns of the replaced process column that contain sums.
    pub sums: Vec<Range<usize>>,
    /// Indices of the replacements whose checksum column is still in place. A checksum column that replaced a process column may
    /// itself have been lost since.
    pub there: Vec<usize>,
}

impl<'a> Exchanges<'a> {
    pub fn new(past: &'a Past, shape: &Shape) -> Self {
        let made = &past.exchanges;
        let end = |col| shape.col_map.count_below(shape.n, col);
        let sums = made.iter().map(|e| e.first_sum(shape)..end(e.col)).collect();
        let there = last_of_each(made).collect();
        Self { made, weights: past.weights(shape.grid.q), sums, there }
    }

    /// Returns the weight of column `col` of A in checksum column `by`.
    fn weight(&self, by: usize, col: usize) -> f64 {
        // `weights` may lack checksum columns with which the test started and that have replaced no process column.
        self.weights.get(by).map_or_else(|| weight(by, col), |of| of[col])
    }

    /// Returns the replacements whose process column contains sums in local column `l`.
    pub fn at(&self, l: usize) -> Which {
        let is = |j: usize| Which::from(self.sums[j].contains(&l)) << j;
        (0..self.made.len()).map(is).sum()
    }

    /// Returns the replacements whose process column lost an element of U at global row `row` and local column `l`. Elements that
    /// are already recomputed count as lost.
    pub fn lost_at(&self, shape: &Shape, row: usize, l: usize) -> Which {
        let is = |&&j: &&usize| l < self.sums[j].start && counts(shape, self.made[j].col, row, l);
        self.there.iter().filter(is).map(|j| 1 << j).sum()
    }

    /// Returns whether one of the replacements in `some` replaced process column `col`.
    pub fn has(&self, some: Which, col: usize) -> bool {
        (0..self.made.len()).any(|j| some >> j & 1 == 1 && self.made[j].col == col)
    }

    /// Returns the number of the checksum column whose sums process column `col` stores in some local column. `at` are the
    /// replacements that have sums in this local column ([`Self::at`]). Returns `None` if the process column stores its own
    /// elements in this local column.
    fn sums_of(&self, at: Which, col: usize) -> Option<usize> {
        let of = |j: &usize| at >> j & 1 == 1 && self.made[*j].col == col;
        (0..self.made.len()).rev().find(of).map(|j| self.made[j].by)
    }

    /// Converts the solution y of the factored system to the solution x = T y of the original system. `mine` is process column
    /// `col`'s part of y, and becomes its part of x. `theirs` are the parts of y of the replaced process columns.
    pub fn settle(&self, col: usize, mine: &mut [f64], theirs: &[(usize, Vec<f64>)]) {
        for (l, x) in mine.iter_mut().enumerate() {
            let at = self.at(l);
            if let Some(by) = self.sums_of(at, col) {
                *x *= self.weight(by, col);
            }
            for (other, y) in theirs.iter().filter(|(other, _)| *other != col) {
                if let (Some(by), Some(y)) = (self.sums_of(at, *other), y.get(l)) {
                    *x += self.weight(by, col) * y;
                }
            }
        }
    }

    /// Returns a function from a process column to its weight in checksum column `by`. The weights are for the current values of
    /// the process columns, in a local column in which the replacements `at` have sums.
    fn made_up(&self, at: Which, by: usize) -> impl Fn(usize) -> f64 {
        let replaced: Vec<(usize, usize)> = (0..self.made.len())
            .filter(|j| at >> j & 1 == 1)
            .filter_map(|j| {
                let sums = self.sums_of(at, self.made[j].col)?;
                (sums == self.made[j].by).then_some((self.made[j].col, sums))
            })
            .collect();
        // The checksum columns that replaced lost columns contain the shares of the lost columns. The remaining columns
        // contribute the rest.
        let inverse = inverse(replaced.len(), |i, j| self.weight(replaced[i].1, replaced[j].0));
        let share = |i: usize| -> f64 {
            (0..replaced.len()).map(|j| self.weight(by, replaced[j].0) * inverse[j][i]).sum()
        };
        let shares: Vec<f64> = (0..replaced.len()).map(share).collect();
        move |col| match replaced.iter().position(|&(replaced, _)| replaced == col) {
            Some(i) => shares[i],
            None => {
                let has = replaced.iter().zip(&shares);
                has.fold(self.weight(by, col), |rest, (&(_, sums), share)| {
                    rest - share * self.weight(sums, col)
                })
            }
        }
    }

    /// Returns the numbers of the checksum columns that replace the process columns `lost`, chosen from the checksum columns
    /// `there`. The recovery of an element multiplies rounding errors by factors that follow from the weights. So the choice
    /// whose largest factor is the smallest is returned.
    pub fn best(&self, there: &[usize], lost: &[usize]) -> Vec<usize> {
        let at = (0..self.made.len()).map(|j| 1 << j).sum();
        let made_up: Vec<Vec<f64>> = there
            .iter()
            .map(|&by| lost.iter().copied().map(self.made_up(at, by)).collect())
            .collect();
        let chosen = |which: usize| (0..there.len()).filter(move |i| which >> i & 1 == 1);
        let largest_factor = |which: usize| {
            let mut matrix: Vec<Vec<f64>> = chosen(which).map(|i| made_up[i].clone()).collect();
            if !invert(&mut matrix) {
                return f64::INFINITY;
            }
            matrix.concat().iter().fold(0.0f64, |most, factor| most.max(factor.abs()))
        };
        let choices =
            (0..1usize << there.len()).filter(|which| chosen(*which).count() == lost.len());
        let best = choices.min_by(|a, b| largest_factor(*a).total_cmp(&largest_factor(*b)));
        chosen(best.unwrap_or(0)).map(|i| there[i]).collect()
    }

    /// Returns the factor f(`col`) of process column `col` in the formula that recovers a lost element.
    ///
    /// Process column d lost the element, and replacement `which` replaced d. Process column c stores the value v(c) at the
    /// element's row and local column. The lost element is f(d) v(d) minus the sum of f(c) v(c) over all other process columns c.
    /// The sum leaves out values that do not count ([`counts`]), unless the value replaces a lost element.
    ///
    /// `at` are the replacements that have sums in the element's local column ([`Self::at`]). `wanted` are the replacements that
    /// lost an element at the same row and local column ([`Self::lost_at`]), including `which`.
    pub fn factor(&self, at: Which, wanted: Which, which: usize, col: usize) -> f64 {
        let all: Vec<usize> = (0..self.made.len()).filter(|j| wanted >> j & 1 == 1).collect();
        let sums: Vec<_> = all.iter().map(|&j| self.made_up(at, self.made[j].by)).collect();
        let inverse = inverse(all.len(), |i, j| sums[i](self.made[all[j]].col));
        let own =
            all.iter().position(|&j| j == which).expect("`wanted` contains replacement `which`");
        match all.iter().position(|&j| self.made[j].col == col) {
            Some(i) if i == own => inverse[own][own],
            Some(i) => -inverse[own][i],
            None => sums.iter().zip(&inverse[own]).map(|(sums, factor)| factor * sums(col)).sum(),
        }
    }

    /// Returns the factor g(`col`) of process column `col` in the sums of the rebuilt checksum column `by`.
    ///
    /// Process column c stores the value v(c) at some row and local column. The checksum at this row and local column is the sum
    /// of g(c) v(c) over all process columns c. The sum leaves out values that do not count ([`counts_at`]), unless the value
    /// replaces a lost element.
    ///
    /// `at` are the replacements that have sums in the local column ([`Self::at`]). `wanted` are the replacements that lost an
    /// element at the row and local column ([`Self::lost_at`]).
    pub fn adds(&self, at: Which, wanted: Which, by: usize, col: usize) -> f64 {
        let made_up = self.made_up(at, by);
        let lost = (0..self.made.len()).filter(|j| wanted >> j & 1 == 1);
        // A lost element is not stored. It follows from the values that are stored at its row and local column.
        let own = lost.clone().all(|j| self.made[j].col != col);
        let through = lost.map(|j| {
            let factor = self.factor(at, wanted, j, col);
            let of = self.made[j].col;
            made_up(of) * if of == col { factor } else { -factor }
        });
        through.sum::<f64>() + if own { made_up(col) } else { 0.0 }
    }
}

/// Returns the inverse of a small matrix of weights, given by a function of row and column. Panics if the matrix is singular.
fn inverse(size: usize, element: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
    let mut matrix: Vec<Vec<f64>> =
        (0..size).map(|i| (0..size).map(|j| element(i, j)).collect()).collect();
    assert!(invert(&mut matrix), "the weights of any lost columns form an invertible matrix");
    matrix
}

/// Returns whether an element of a factored column counts in the checksums: an element of U. Below the diagonal, the storage
/// contains L, which counts as zero. The column b does not count. The element is at global row `row` and local column `l` of
/// process column `col`.
pub fn counts(shape: &Shape, col: usize, row: usize, l: usize) -> bool {
    let column = shape.col_map.global(l, col);
    column < shape.n && row <= column
}

/// Returns whether an element counts in the checksums at `boundary`. Block columns before the boundary are factored, so only
/// their elements of U count ([`counts`]). In later block columns all elements count. The element is at global row `row` and
/// local column `l` of process column `col`.
pub fn counts_at(shape: &Shape, boundary: usize, col: usize, row: usize, l: usize) -> bool {
    let column = shape.col_map.global(l, col);
    column < shape.n && (row <= column || column >= boundary * shape.nb)
}

/// Returns the end of a run of local columns that begins at `l`. In global row `row` of each process column, either all elements
/// of the run count in the checksums ([`counts`]) or none does.
///
/// A run ends at the latest at the end of the local block that contains `l`. On all process columns together, the local blocks
/// with this number are consecutive block columns of the matrix. If one of these block columns contains the diagonal element of
/// `row`, or the end of the matrix, the run ends at the local column with the same offset in the local block.
pub fn alike_until(shape: &Shape, row: usize, l: usize) -> usize {
    let Shape { n, nb, grid, .. } = *shape;
    let round = l / nb;
    let within = |at: usize| (at / nb / grid.q == round).then(|| round * nb + at % nb);
    let ends = [within(row), within(n)].into_iter().flatten().filter(|&end| end > l);
    ends.fold((round + 1) * nb, usize::min)
}

/// Progress of a process column in a test. All ranks of a process column have the same progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// True if the process column's part of the matrix, or its checksums, are generated.
    pub generated: bool,
    /// Number of panels applied to all local columns.
    pub applied: usize,
    /// Number of panels factored, as far as the rank knows. A rank always knows the panels of its own process column.
    pub factored: usize,
    /// Number of local rows in which the lost part of U is already recomputed.
    pub recomputed: usize,
    /// Time at which the clock of the test first started, in seconds since the Unix epoch.
    pub began_unix_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Mapping;
    use crate::grid::ProcessGrid;

    /// A small matrix by rows.
    #[derive(Clone)]
    struct Dense(Vec<Vec<f64>>);

    /// Returns pseudorandom numbers between -1 and 1 from a seed.
    fn random(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    impl Dense {
        /// Does elimination step `c` in all columns for which `applies` returns true. The step's factors are computed from
        /// column `lead`, in which column `c` of the matrix is stored. Leaves NaN below the diagonal of column `lead`, where the
        /// factorisation leaves L.
        fn eliminate(&mut self, c: usize, lead: usize, applies: &dyn Fn(usize) -> bool) {
            let n = self.0.len();
            let rows = &mut self.0;
            let pivot = (c..n).max_by(|&i, &j| rows[i][lead].abs().total_cmp(&rows[j][lead].abs()));
            let (pivot, width) = (pivot.unwrap(), rows[0].len());
            let swap = |rows: &mut Vec<Vec<f64>>, j: usize| {
                let held = rows[c][j];
                rows[c][j] = rows[pivot][j];
                rows[pivot][j] = held;
            };
            swap(rows, lead);
            let factors: Vec<f64> = (c + 1..n).map(|i| rows[i][lead] / rows[c][lead]).collect();
            for j in (0..width).filter(|&j| j != lead && applies(j)) {
                swap(rows, j);
                for i in c + 1..n {
                    rows[i][j] -= factors[i - c - 1] * rows[c][j];
                }
            }
            for row in rows.iter_mut().skip(c + 1) {
                row[lead] = f64::NAN;
            }
        }
    }

    /// Returns element (i, l) of the rebuilt checksum column `by` at boundary k. `lies` returns the value of a process column at
    /// that row and local column.
    fn renewed(
        roles: &Exchanges,
        shape: &Shape,
        (k, i, l): (usize, usize, usize),
        by: usize,
        lies: &dyn Fn(usize) -> f64,
    ) -> f64 {
        let lost = roles.lost_at(shape, i, l);
        let adds = |col: usize| {
            let here = roles.has(lost, col) || counts_at(shape, k, col, i, l);
            here.then(|| roles.adds(roles.at(l), lost, by, col) * lies(col))
        };
        (0..shape.grid.q).filter_map(adds).sum()
    }

    /// Solves a system as [`play`] does, with no events but losses. `lost` are the lost process columns, each with the boundary
    /// of its loss.
    fn solve(
        size: (usize, usize, usize),
        sums: usize,
        lost: &[(usize, usize)],
        amid: usize,
        seed: u64,
    ) -> f64 {
        let lost: Vec<_> = lost.iter().map(|&(col, k)| (Happens::Lost(col), k)).collect();
        play(size, sums, &lost, amid, seed)
    }

    /// Event at a boundary.
    #[derive(Clone, Copy, Debug)]
    enum Happens {
        /// This process column is lost, and the first checksum column that is left takes its place.
        Lost(usize),
        /// The last of the checksum columns that are left is lost.
        SumsLost,
        /// A checksum column is rebuilt.
        Renewed,
        /// The checksum columns that are left are recomputed in the local columns that are not factored.
        Refreshed,
    }

    /// Solves a system with block columns distributed over `q` process columns, plus `sums` checksum columns.
    ///
    /// The events of `happens` occur in order, each at its boundary. If a column is lost after the last panel, U is already
    /// recomputed in `amid` rows at that time. Returns the largest error of x.
    fn play(
        (n, nb, q): (usize, usize, usize),
        sums: usize,
        happens: &[(Happens, usize)],
        amid: usize,
        seed: u64,
    ) -> f64 {
        let renewals = happens.iter().filter(|(what, _)| matches!(what, Happens::Renewed));
        let ever = sums + renewals.count();
        let grid = ProcessGrid { p: 1, q, mapping: Mapping::Row };
        let shape = |col: usize| Shape::of(n, nb, grid, 0, col);
        let mut next = random(seed);
        let x: Vec<f64> = (0..n).map(|_| next()).collect();
        let a: Vec<Vec<f64>> = (0..n).map(|_| (0..n).map(|_| next()).collect()).collect();
        let b = |row: &[f64]| row.iter().zip(&x).map(|(a, x)| a * x).sum::<f64>();
        let one = shape(q);
        let map = one.col_map;
        let wide = one.cols - 1;
        let last = n + ever * wide;
        // Columns of A, then the checksum columns, then b.
        let mut all = Dense(
            a.iter()
                .map(|row| {
                    let mut line = row.clone();
                    line.resize(last, 0.0);
                    for (j, value) in row.iter().enumerate() {
                        for by in 0..sums {
                            line[n + by * wide + map.local(j)] += weight(by, map.owner(j)) * value;
                        }
                    }
                    line.push(b(row));
                    line
                })
                .collect(),
        );
        let mut past = Past::default();
        let mut left: Vec<usize> = (0..sums).collect();
        // Returns the column of `all` that stores local column l of process column `col`.
        let lies =
            |made: &[Exchange], col: usize, l: usize| match made.iter().rfind(|e| e.col == col) {
                Some(e) => n + e.by * wide + l,
                None => map.global(l, col),
            };
        let place = |made: &[Exchange], j: usize| lies(made, map.owner(j), map.local(j));
        let mut recomputed = vec![0; ever];
        let recompute_u = |all: &mut Dense, past: &Past, recomputed: &mut [usize], until: usize| {
            let (roles, made) = (Exchanges::new(past, &one), &past.exchanges);
            for i in 0..until {
                for l in 0..wide {
                    let is_lost = |j: &usize| {
                        let e = &made[*j];
                        l < roles.sums[*j].start
                            && i >= recomputed[e.by]
                            && counts(&one, e.col, i, l)
                    };
                    let wanted: Vec<usize> = roles.there.iter().copied().filter(is_lost).collect();
                    let mask = wanted.iter().map(|j| 1 << j).sum();
                    let found: Vec<(usize, f64)> = wanted
                        .iter()
                        .map(|&which| {
                            let own = made[which].col;
                            let is_sums = |col| wanted.iter().any(|&j| made[j].col == col);
                            let has = |col: usize| all.0[i][lies(made, col, l)];
                            let factor = |col| roles.factor(roles.at(l), mask, which, col);
                            let others: f64 = (0..q)
                                .filter(|&col| {
                                    col != own && (is_sums(col) || counts(&one, col, i, l))
                                })
                                .map(|col| factor(col) * has(col))
                                .sum();
                            (own, factor(own) * has(own) - others)
                        })
                        .collect();
                    for (col, value) in found {
                        all.0[i][lies(made, col, l)] = value;
                    }
                }
            }
            made.iter().for_each(|e| recomputed[e.by] = recomputed[e.by].max(until));
        };
        for k in 0..=n.div_ceil(nb) {
            for &(what, boundary) in happens.iter().filter(|&&(_, boundary)| boundary == k) {
                match what {
                    Happens::Renewed => {
                        let by = sums + past.renewals.len();
                        let (after, drawn) = (past.exchanges.len(), !left.is_empty());
                        past.renewals.push(Renewal { by, after, drawn });
                        left.push(by);
                        let roles = Exchanges::new(&past, &one);
                        for (i, row) in all.0.iter_mut().enumerate() {
                            for l in 0..wide {
                                let lies = |col| row[lies(&past.exchanges, col, l)];
                                row[n + by * wide + l] =
                                    renewed(&roles, &one, (k, i, l), by, &lies);
                            }
                        }
                    }
                    Happens::Refreshed => {
                        let roles = Exchanges::new(&past, &one);
                        for (&by, row) in left.iter().flat_map(|by| (0..n).map(move |i| (by, i))) {
                            for l in one.col_from_block(k)..wide {
                                let lies = |col| all.0[row][lies(&past.exchanges, col, l)];
                                all.0[row][n + by * wide + l] =
                                    renewed(&roles, &one, (k, row, l), by, &lies);
                            }
                        }
                    }
                    Happens::SumsLost => {
                        let by = left.pop().expect("a checksum column is left");
                        let theirs = n + by * wide..n + (by + 1) * wide;
                        all.0.iter_mut().for_each(|row| row[theirs.clone()].fill(f64::NAN));
                    }
                    Happens::Lost(col) => {
                        if k == n.div_ceil(nb) {
                            recompute_u(&mut all, &past, &mut recomputed, amid);
                        }
                        for row in &mut all.0 {
                            for l in 0..map.count_below(n, col) {
                                row[lies(&past.exchanges, col, l)] = f64::NAN;
                            }
                        }
                        past.exchanges.push(Exchange { col, by: left.remove(0), boundary });
                    }
                }
            }
            for c in k * nb..((k + 1) * nb).min(n) {
                // As in the factorisation, column c is eliminated in all columns that are not factored. Checksum columns take
                // part from the local column of block k on.
                let lead = place(&past.exchanges, c);
                let held = past.exchanges.clone();
                let applies = move |j: usize| {
                    if j < n {
                        return j > c && held.iter().all(|e| e.col != map.owner(j));
                    }
                    let (by, l) = ((j - n) / wide, (j - n) % wide);
                    match held.iter().find(|e| e.by == by) {
                        _ if j == last => true,
                        // A checksum column that has replaced a process column.
                        Some(e) => l >= map.count_below(c + 1, e.col),
                        None => l >= one.col_from_block(k),
                    }
                };
                all.eliminate(c, lead, &applies);
            }
        }
        recompute_u(&mut all, &past, &mut recomputed, n);
        let made = &past.exchanges;
        let mut y = vec![0.0; n];
        for i in (0..n).rev() {
            let known: f64 = (i + 1..n).map(|j| all.0[i][place(made, j)] * y[j]).sum();
            y[i] = (all.0[i][last] - known) / all.0[i][place(made, i)];
        }
        let of = |col: usize| -> Vec<f64> {
            (0..map.count_below(n, col)).map(|l| y[map.global(l, col)]).collect()
        };
        let roles = Exchanges::new(&past, &one);
        let theirs: Vec<_> = roles.there.iter().map(|&j| (made[j].col, of(made[j].col))).collect();
        let mut worst = 0.0;
        for col in 0..q {
            let mut mine = of(col);
            roles.settle(col, &mut mine, &theirs);
            for (l, found) in mine.iter().enumerate() {
                let error = (found - x[map.global(l, col)]).abs();
                worst = if error > worst || error.is_nan() { error } else { worst };
            }
        }
        worst
    }

    /// Tests the replacement of every process column at every boundary, including the last boundary.
    #[test]
    fn whichever_column_is_replaced_whenever_the_solution_is_that_of_the_system() {
        for (n, nb, q) in [
            (1, 1, 1),
            (7, 2, 1),
            (8, 2, 2),
            (9, 2, 2),
            (10, 3, 2),
            (12, 2, 3),
            (13, 3, 3),
            (11, 4, 3),
            (10, 1, 4),
            (5, 8, 2),
        ] {
            for seed in 1..6 {
                assert!(solve((n, nb, q), 1, &[], 0, seed) < 1e-10);
                for col in 0..q {
                    for k in 0..=n.div_ceil(nb) {
                        let error = solve((n, nb, q), 1, &[(col, k)], 0, seed);
                        assert!(error < 1e-8, "N {n} NB {nb} Q {q}: column {col} at {k}: {error}");
                    }
                }
            }
        }
    }

    /// Tests the replacement of every pair of process columns at every pair of boundaries, including the same column twice. If
    /// the second loss is after the last panel, part of U is already recomputed.
    #[test]
    fn whichever_two_are_replaced_the_solution_is_that_of_the_system() {
        for (n, nb, q) in [
            (1, 1, 1),
            (7, 2, 1),
            (8, 2, 2),
            (9, 2, 2),
            (12, 2, 3),
            (13, 3, 3),
            (10, 1, 4),
            (5, 8, 2),
        ] {
            let blocks = usize::div_ceil(n, nb);
            for seed in 1..4 {
                for (one, first) in (0..q).flat_map(|col| (0..=blocks).map(move |k| (col, k))) {
                    for (two, second) in
                        (0..q).flat_map(|col| (first..=blocks).map(move |k| (col, k)))
                    {
                        let lost = [(one, first), (two, second)];
                        let amid: &[usize] = if second == blocks { &[0, n / 2, n] } else { &[0] };
                        for &amid in amid {
                            let error = solve((n, nb, q), 2, &lost, amid, seed);
                            assert!(error < 1e-7, "N {n} NB {nb} Q {q}: {lost:?}, {amid}: {error}");
                        }
                    }
                }
            }
        }
    }

    /// Tests the replacement of the maximum number of process columns, `SUMS_MAX`, at random boundaries.
    #[test]
    fn four_are_replaced_as_well() {
        let mut next = random(7);
        for (n, nb, q) in [(12, 1, 4), (20, 2, 5), (23, 3, 6), (9, 2, 2)] {
            for seed in 1..60 {
                let mut some = |most: usize| ((next() + 1.0) / 2.0 * most as f64) as usize;
                let mut boundaries: Vec<usize> =
                    (0..SUMS_MAX).map(|_| some(usize::div_ceil(n, nb) + 1)).collect();
                boundaries.sort_unstable();
                let lost: Vec<_> = boundaries.into_iter().map(|k| (some(q), k)).collect();
                let error = solve((n, nb, q), SUMS_MAX, &lost, some(n), seed);
                assert!(error < 1e-5, "N {n} NB {nb} Q {q}: {lost:?}: {error}");
            }
        }
    }

    /// Tests a sequence of losses and rebuildings. A process column is lost at any boundary, and a checksum column is rebuilt at
    /// the same or a later boundary. Then any process column is lost, possibly the replaced one; a checksum column is rebuilt
    /// again, and a third process column is lost.
    #[test]
    fn new_sums_are_as_good_as_the_first() {
        use Happens::{Lost, Renewed};
        for (n, nb, q) in [(8, 2, 2), (9, 2, 2), (13, 3, 3), (10, 1, 4), (7, 2, 1), (5, 8, 2)] {
            let blocks = usize::div_ceil(n, nb);
            let cols = || 0..q;
            for (one, first) in cols().flat_map(|col| (0..blocks).map(move |k| (col, k))) {
                for renewed in first..blocks {
                    for (two, second) in
                        cols().flat_map(|c| (renewed..=blocks).map(move |k| (c, k)))
                    {
                        let mut happens =
                            vec![(Lost(one), first), (Renewed, renewed), (Lost(two), second)];
                        let amid = n / 3;
                        let error = play((n, nb, q), 1, &happens, amid, 3);
                        assert!(error < 1e-7, "N {n} NB {nb} Q {q}: {happens:?}: {error}");
                        if second == blocks {
                            continue;
                        }
                        for (three, third) in
                            [(one, second), (two, blocks), ((one + 1) % q, blocks)]
                        {
                            happens.truncate(3);
                            happens.extend([(Renewed, second), (Lost(three), third)]);
                            let error = play((n, nb, q), 1, &happens, amid, 4);
                            assert!(error < 1e-6, "N {n} NB {nb} Q {q}: {happens:?}: {error}");
                        }
                    }
                }
            }
        }
    }

    /// Tests the rebuilding of a checksum column while another checksum column is left, and after other checksum columns are
    /// lost.
    #[test]
    fn new_sums_go_with_others() {
        use Happens::{Lost, Renewed, SumsLost};
        for (n, nb, q) in [(12, 1, 4), (20, 2, 5), (9, 2, 2)] {
            let (mut next, late) = (random(11), usize::div_ceil(n, nb) - 1);
            let mut some = |most: usize| ((next() + 1.0) / 2.0 * most as f64) as usize;
            for seed in 1..60 {
                let mut boundaries: Vec<usize> = (0..4).map(|_| some(late + 1)).collect();
                boundaries.sort_unstable();
                let mut cols = || Lost(some(q));
                let k = |i: usize| boundaries[i];
                let ways = [
                    [(cols(), k(0)), (Renewed, k(1)), (cols(), k(2)), (cols(), k(3))],
                    [(SumsLost, k(0)), (Renewed, k(1)), (cols(), k(2)), (cols(), late + 1)],
                    [(SumsLost, k(0)), (SumsLost, k(1)), (Renewed, k(1)), (cols(), k(2))],
                ];
                for happens in ways {
                    let error = play((n, nb, q), 2, &happens, n / 2, seed);
                    assert!(error < 1e-4, "N {n} NB {nb} Q {q}: {happens:?}: {error}");
                }
            }
        }
    }

    /// Tests the recomputation of checksums at every boundary, before and after losses. Some boundaries are at a block that is
    /// not in process column 0.
    #[test]
    fn sums_that_are_made_again_are_as_good() {
        use Happens::{Lost, Refreshed};
        for (n, nb, q) in [(8, 2, 2), (9, 2, 2), (13, 3, 3), (10, 1, 4), (7, 2, 1), (5, 8, 2)] {
            let blocks = usize::div_ceil(n, nb);
            for (one, first) in (0..q).flat_map(|col| (0..=blocks).map(move |k| (col, k))) {
                for again in 0..blocks {
                    for (two, second) in
                        (0..q).flat_map(|col| (first..=blocks).map(move |k| (col, k)))
                    {
                        // At the same boundary, the checksums are recomputed first or last.
                        for early in [false, true] {
                            let mut happens =
                                vec![(Lost(one), first), (Lost(two), second), (Refreshed, again)];
                            happens.sort_by_key(|&(what, k)| {
                                let sums = matches!(what, Refreshed);
                                (k, sums != early)
                            });
                            let error = play((n, nb, q), 3, &happens, n / 3, 5);
                            assert!(error < 1e-6, "N {n} NB {nb} Q {q}: {happens:?}: {error}");
                        }
                    }
                }
            }
        }
    }

    /// Tests a checksum column that is rebuilt after each loss. With all weights 1, each loss about doubles the residual,
    /// whichever process column is lost.
    #[test]
    fn losses_one_after_another_cost_little() {
        let (n, nb, q) = (60, 2, 6);
        for seed in 1..8 {
            let mut happens = Vec::new();
            for k in 0..8 {
                happens.extend([(Happens::Lost(k * 5 % q), 3 * k), (Happens::Renewed, 3 * k + 1)]);
            }
            let error = play((n, nb, q), 1, &happens, 0, seed);
            assert!(error < 1e-8, "{error:e}");
        }
    }

    /// Returns the largest magnitude in the matrix that recovers the lost columns `cols` from equally many checksum columns.
    /// `weight(i, col)` is the weight of column `col` in checksum column `i`.
    fn cost(weight: impl Fn(usize, usize) -> f64, cols: &[usize]) -> f64 {
        let solves = inverse(cols.len(), |i, j| weight(i, cols[j]));
        solves.concat().iter().fold(0.0f64, |most, element| most.max(element.abs()))
    }

    /// Checks figures of docs/dev/nonstop.md, for every number of process columns up to 1,024. Each step of the loop widens the
    /// grid by one process column, and tests the sets of lost columns that contain the new column. A determinant first excludes
    /// sets that cannot be the worst.
    #[test]
    fn the_worst_columns_to_lose_cost_so_much() {
        const Q: usize = 1024;
        let golden: Vec<f64> = (0..Q).map(|col| weight(1, col)).collect();
        let drawn: Vec<f64> = (0..Q).map(|col| weight(2, col)).collect();
        let (mut one, mut two, mut three) = (0.0f64, 0.0f64, 0.0f64);
        for c in 0..Q {
            one = one.max(cost(|_, col| weight(1, col), &[c]));
            for b in 0..c {
                // No element of the inverse exceeds the largest minor, which is at most 2, divided by the determinant.
                if (golden[c] - golden[b]).abs() * two < 2.0 {
                    two = two.max(cost(weight, &[b, c]));
                }
                let (run, rise) = (golden[c] - golden[b], drawn[c] - drawn[b]);
                for a in 0..b {
                    let area = run * (drawn[a] - drawn[b]) - rise * (golden[a] - golden[b]);
                    if area.abs() * three < 2.0 {
                        three = three.max(cost(weight, &[a, b, c]));
                    }
                }
            }
            let q = (c + 1) as f64;
            assert!(one < 1.12 * (q + 1.0) && two < 1.12 * (q + 1.0), "{q}: {one}, {two}");
            assert!(three < 3.0 * q.powi(3), "{q}: {three}");
            let told = match c + 1 {
                16 => [15.0, 15.0, 433.0],
                32 => [23.0, 23.0, 6443.0],
                256 => [261.0, 261.0, 8_471_627.0],
                1024 => [1103.0, 1103.0, 527_752_629.0],
                _ => continue,
            };
            assert_eq!([one, two, three].map(f64::round), told, "{q}");
        }
        // With random weights, the loss of two columns would cost more.
        let pairs = |q: usize| (0..q).flat_map(|b| (0..b).map(move |a| [a, b]));
        let of_drawn =
            |q| pairs(q).map(|pair| cost(real_weight, &pair)).fold(0.0, f64::max).round();
        assert_eq!([16, 256].map(of_drawn), [51.0, 83_595.0]);
    }

    /// Tests all sets of four lost columns for up to 96 process columns. More process columns would take too long.
    #[test]
    fn the_worst_four_columns_to_lose_cost_so_much() {
        let mut worst = 0.0f64;
        for d in 0..96 {
            for c in 0..d {
                for b in 0..c {
                    let weights = [b, c, d].map(|col| [1, 2, 3].map(|by| weight(by, col)));
                    for a in 0..b {
                        let less = [1, 2, 3].map(|by| weight(by, a));
                        let [x, y, z] = weights.map(|of| [0, 1, 2].map(|i| of[i] - less[i]));
                        let cross =
                            [1, 2, 0].map(|i| y[i] * z[(i + 1) % 3] - y[(i + 1) % 3] * z[i]);
                        let volume: f64 = (0..3).map(|i| x[i] * cross[i]).sum();
                        // No minor of three rows exceeds 6.
                        if volume.abs() * worst < 6.0 {
                            worst = worst.max(cost(weight, &[a, b, c, d]));
                        }
                    }
                }
            }
            let q = f64::from(d as u32 + 1);
            assert!(worst < 3.0 * q.powi(4), "{q}: {worst}");
        }
        assert_eq!(worst.round(), 5_825_476.0);
    }

    #[test]
    fn weights_of_all_numbers_differ() {
        let mut all: Vec<f64> =
            (1..SUMS_EVER).flat_map(|by| (0..1024).map(move |col| real_weight(by, col))).collect();
        let count = all.len();
        all.sort_by(f64::total_cmp);
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// Tests that the checksum column with the largest weight replaces a lost process column. An example of a small weight: the
    /// weight of process column 232 in checksum column 1 is 0.004.
    #[test]
    fn the_sums_with_the_largest_weights_take_a_lost_place() {
        let (q, cols) = (256, 0..256);
        let grid = ProcessGrid { p: 1, q, mapping: Mapping::Row };
        let shape = Shape::of(8 * q, 1, grid, 0, 0);
        let fresh = Past::default();
        let roles = Exchanges::new(&fresh, &shape);
        assert_eq!(roles.best(&[0, 1, 2, 3], &[232]), [0]);
        assert_eq!(roles.best(&[1, 2], &[232]), [2]);
        assert!(roles.best(&[1, 2], &[]).is_empty());
        assert_eq!(roles.best(&[0, 3], &[7, 9]), [0, 3]);
        for col in cols.clone() {
            let size = |by: &usize| weight(*by, col).abs();
            let largest = [1, 2, 3].into_iter().max_by(|a, b| size(a).total_cmp(&size(b)));
            assert_eq!(roles.best(&[1, 2, 3], &[col]), [largest.unwrap()]);
        }
        // After another process column has been replaced by sums, recovery divides by a difference of weights.
        let exchanges = vec![Exchange { col: 0, by: 0, boundary: 4 }];
        let past = Past { exchanges, renewals: Vec::new() };
        let roles = Exchanges::new(&past, &shape);
        for col in cols.skip(1) {
            let size = |by: &usize| (weight(*by, col) - weight(*by, 0)).abs();
            let largest = [1, 2, 3].into_iter().max_by(|a, b| size(a).total_cmp(&size(b)));
            assert_eq!(roles.best(&[1, 2, 3], &[col]), [largest.unwrap()]);
        }
    }

    #[test]
    fn what_is_alike_is_so_in_all_process_columns() {
        for (n, nb, q) in [(40, 4, 2), (41, 4, 3), (43, 4, 3), (30, 10, 4), (7, 8, 2), (64, 1, 5)] {
            let grid = ProcessGrid { p: 1, q, mapping: Mapping::Row };
            let shape = Shape::of(n, nb, grid, 0, 0);
            let rounds = n.div_ceil(nb).div_ceil(q);
            for row in 0..n {
                let (mut at, mut runs) = (0, 0);
                while at < rounds * nb {
                    let end = alike_until(&shape, row, at);
                    assert!(at < end && (at..end).all(|l| alike_until(&shape, row, l) == end));
                    for col in 0..q {
                        for boundary in 0..=n / nb {
                            let counts = |l: usize| {
                                let left = counts_at(&shape, boundary, col, row, l);
                                (counts(&shape, col, row, l), left)
                            };
                            assert!((at..end).all(|l| counts(l) == counts(at)), "{n} {row} {at}");
                        }
                    }
                    (at, runs) = (end, runs + 1);
                }
                // There is one run per block, and at most two more: at the diagonal and at the end of the matrix.
                assert!(at == rounds * nb && runs <= rounds + 2, "{n} {nb} {q} {row}: {runs}");
            }
        }
    }

    /// Tests that the divisors are not small in the recovery of one lost column and of two lost columns: weights, and differences
    /// of weights.
    #[test]
    fn weights_are_well_apart() {
        for q in [2, 8, 64, 256] {
            for (a, b) in (0..q).flat_map(|a| (0..a).map(move |b| (a, b))) {
                let apart = (weight(1, a) - weight(1, b)).abs();
                assert!(apart > 0.9 / q as f64, "{a} and {b} of {q}: {apart}");
            }
            assert!(
                (0..q).all(|col| weight(0, col) == 1.0 && weight(1, col).abs() > 0.8 / q as f64)
            );
        }
    }
}

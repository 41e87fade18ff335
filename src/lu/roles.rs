//! Which process column does what, where more than the grid has keep sums: pure.
//!
//! The sums are E = A w: in each local column the sum of that local column of all the others, each with a weight. The first
//! column of sums has them all 1. Everything the factorisation does is a multiplication from the left, M, so with every step
//! applied to them, too, they stay the sums of M A; what A keeps of L below a factored diagonal counts as the zeros that it
//! stands for.
//!
//! When sums take the place of process column d at boundary k, its block columns from k on are replaced by sums. That is A T in
//! place of A, where T adds to each replaced column those of the others that it is the sum of. The factorisation goes on with
//! that as if it had always been so, and what it solves is A T y = b: so x = T y. The block columns before k are factored. What
//! they have in U follows from the sums and what the others have, and is regained before it is needed, which is when the system
//! is solved.
//!
//! Other sums remain what they are, sums of M A. Where columns that they are made of have been replaced, they are sums of those
//! that are there instead, with other weights. So the next process column is replaced as the first one was, be it another or the
//! same again.
//!
//! New sums can be made at any boundary at which no panel is factored ahead: they are sums of what the process columns have by
//! then, and from there on sums like others. What they are of A's own columns follows from the exchanges before.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::matrix::Shape;
use crate::parity::code::{LOSSES_MAX, real_weight};
use crate::parity::field::invert;

/// Columns of sums there may be at a time: with more of them some weights lose too many digits.
pub const SUMS_MAX: usize = 4;

/// Columns of sums that a test may have in all, those that were made anew counted. Each has a number of its own, and weights were
/// drawn for so many numbers. Each loss about doubles the residual, so that many more would cost all digits.
pub const SUMS_EVER: usize = LOSSES_MAX;

/// With which weight process column `col` is in the sums number `by` that a test begins with.
///
/// Where a lost column follows from sums alone it is divided by a weight, where two do by differences of weights, and so on: so
/// weights must be well apart from zero and from each other, however many there are. Multiples of the golden ratio, modulo 1, are
/// farther apart than numbers drawn at random: with 256 columns any two that are lost cost two digits and a half, not five. Three
/// of them would lie on a line, so further weights are drawn.
pub fn weight(by: usize, col: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    match by {
        0 => 1.0,
        1 => 2.0 * (0.5 + GOLDEN * (col + 1) as f64).fract() - 1.0,
        _ => real_weight(by, col),
    }
}

/// Sums have taken the place of a process column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub col: usize,
    /// Which of the sums.
    pub by: usize,
    /// From this block column on those of that process column are sums.
    pub boundary: usize,
}

impl Exchange {
    /// The first local column of the process column that is a sum; those before it were factored.
    pub fn first_sum(&self, shape: &Shape) -> usize {
        shape.col_map.count_below((self.boundary * shape.nb).min(shape.n), self.col)
    }
}

/// Sums that are made in the course of a test, of what the process columns have by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The number of the new sums.
    pub by: usize,
    /// So many exchanges were made before.
    pub after: usize,
    /// With weights drawn for that number; else each column counts once, which is the best where there are no other sums, for
    /// these could come too close.
    pub drawn: bool,
}

/// What has become of the columns of a test, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    pub exchanges: Vec<Exchange>,
    /// Also of sums that were never finished: no number is given twice.
    pub renewals: Vec<Renewal>,
}

impl Past {
    /// With which weights the sums are made of `q` columns of A, by their number.
    fn weights(&self, q: usize) -> Vec<Vec<f64>> {
        let numbers = self.exchanges.iter().map(|e| e.by);
        let numbers = numbers.chain(self.renewals.iter().map(|renewal| renewal.by));
        let end = numbers.max().map_or(0, |last| last + 1);
        let first = |by| (0..q).map(|col| weight(by, col)).collect();
        let mut all: Vec<Vec<f64>> = (0..end).map(first).collect();
        for renewal in &self.renewals {
            // Of what lies in a replaced column the new sums have what that is the sum of.
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
    /// With which weight what lies in process column `col` by then is in the new sums.
    fn weight(&self, col: usize) -> f64 {
        if self.drawn { real_weight(self.by, col) } else { 1.0 }
    }
}

/// Of each process column that was replaced the last exchange.
fn last_of_each(made: &[Exchange]) -> impl Iterator<Item = usize> {
    let last = |&j: &usize| made[j + 1..].iter().all(|later| later.col != made[j].col);
    (0..made.len()).filter(last)
}

/// Some of the exchanges, by their order: bit j is the j-th.
pub type Which = u64;
const _: () = assert!(SUMS_EVER <= Which::BITS as usize);

/// All exchanges of roles so far, in order, and what local columns are since.
pub struct Exchanges<'a> {
    made: &'a [Exchange],
    /// Of the sums that there was a need for, and those before them, by their number.
    weights: Vec<Vec<f64>>,
    /// The local columns of each one's process column that sums came in place of.
    sums: Vec<Range<usize>>,
    /// Those whose sums are still there: who took a place may have been lost in it.
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

    /// With which weight column `col` of A is in the sums number `by`.
    fn weight(&self, by: usize, col: usize) -> f64 {
        // What has become of the columns says nothing of sums that a test began with and that nobody needed yet.
        self.weights.get(by).map_or_else(|| weight(by, col), |of| of[col])
    }

    /// The `j`-th.
    pub fn of(&self, j: usize) -> &'a Exchange {
        &self.made[j]
    }

    /// The first local column of the `j`-th one's process column that is a sum.
    pub fn first_sum(&self, j: usize) -> usize {
        self.sums[j].start
    }

    /// Those that local column `l` was replaced by.
    pub fn at(&self, l: usize) -> Which {
        let is = |j: usize| Which::from(self.sums[j].contains(&l)) << j;
        (0..self.made.len()).map(is).sum()
    }

    /// Those whose lost element lies there, in that row and local column, if none is regained.
    pub fn lost_at(&self, shape: &Shape, row: usize, l: usize) -> Which {
        let is = |&&j: &&usize| l < self.sums[j].start && counts(shape, self.made[j].col, row, l);
        self.there.iter().filter(is).map(|j| 1 << j).sum()
    }

    /// Whether one of these is of process column `col`.
    pub fn has(&self, some: Which, col: usize) -> bool {
        (0..self.made.len()).any(|j| some >> j & 1 == 1 && self.made[j].col == col)
    }

    /// Which sums process column `col` has in such a local column; None: its own.
    fn sums_of(&self, at: Which, col: usize) -> Option<usize> {
        let of = |j: &usize| at >> j & 1 == 1 && self.made[*j].col == col;
        (0..self.made.len()).rev().find(of).map(|j| self.made[j].by)
    }

    /// From the solution of what was factored to that of the system, x = T y: `mine` of this rank's process column, `theirs` of
    /// those that were replaced.
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

    /// With which weights the process columns, as they are by now, make up sums number `by` in such a local column.
    fn made_up(&self, at: Which, by: usize) -> impl Fn(usize) -> f64 {
        let replaced: Vec<(usize, usize)> = (0..self.made.len())
            .filter(|j| at >> j & 1 == 1)
            .filter_map(|j| {
                let sums = self.sums_of(at, self.made[j].col)?;
                (sums == self.made[j].by).then_some((self.made[j].col, sums))
            })
            .collect();
        // The sums that are there have the lost columns' shares; the others' are what that leaves.
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

    /// Chooses which of the sums that are `there` take the place of these `lost` process columns. A lost element is divided by a
    /// weight, or by a difference of weights, so the choice falls on those with which the largest factor is smallest.
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

    /// What is lost follows from what lies in its local row and column. `wanted`: all that are lost there; what lies with them
    /// are their sums. The element of the `which`-th is what lies with it, times the factor of its own process column, less what
    /// lies with each other one times the factor of that.
    pub fn factor(&self, at: Which, wanted: Which, which: usize, col: usize) -> f64 {
        let all: Vec<usize> = (0..self.made.len()).filter(|j| wanted >> j & 1 == 1).collect();
        let sums: Vec<_> = all.iter().map(|&j| self.made_up(at, self.made[j].by)).collect();
        let inverse = inverse(all.len(), |i, j| sums[i](self.made[all[j]].col));
        let own = all.iter().position(|&j| j == which).expect("it is among those wanted");
        match all.iter().position(|&j| self.made[j].col == col) {
            Some(i) if i == own => inverse[own][own],
            Some(i) => -inverse[own][i],
            None => sums.iter().zip(&inverse[own]).map(|(sums, factor)| factor * sums(col)).sum(),
        }
    }

    /// New sums number `by` follow from what lies in their local row and column, too: that of each process column, times this.
    /// `wanted`: those that are lost there, as above; what lies in other columns and does not count is left out.
    pub fn adds(&self, at: Which, wanted: Which, by: usize, col: usize) -> f64 {
        let made_up = self.made_up(at, by);
        let lost = (0..self.made.len()).filter(|j| wanted >> j & 1 == 1);
        // What is lost does not lie there itself, but in what does.
        let own = lost.clone().all(|j| self.made[j].col != col);
        let through = lost.map(|j| {
            let factor = self.factor(at, wanted, j, col);
            let of = self.made[j].col;
            made_up(of) * if of == col { factor } else { -factor }
        });
        through.sum::<f64>() + if own { made_up(col) } else { 0.0 }
    }
}

/// The inverse of a small matrix of weights.
fn inverse(size: usize, element: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
    let mut matrix: Vec<Vec<f64>> =
        (0..size).map(|i| (0..size).map(|j| element(i, j)).collect()).collect();
    assert!(invert(&mut matrix), "weights are such that any columns follow from as many sums");
    matrix
}

/// Whether element (row, local column `l`) of process column `col` is one of A that is left: what is below the diagonal of a
/// factored column is L's, and counts as nothing.
pub fn counts(shape: &Shape, col: usize, row: usize, l: usize) -> bool {
    let column = shape.col_map.global(l, col);
    column < shape.n && row <= column
}

/// The same at a boundary before which all columns are factored, and none after it: of those all is left.
pub fn counts_at(shape: &Shape, boundary: usize, col: usize, row: usize, l: usize) -> bool {
    let column = shape.col_map.global(l, col);
    column < shape.n && (row <= column || column >= boundary * shape.nb)
}

/// Up to where the local columns from `l` on are alike in this row: none of their elements counts, or all do, in this process
/// column and in any other. A round of the process columns is one block of each: what is alike ends with it, where one of them
/// has the diagonal, and where one has the end of the matrix.
pub fn alike_until(shape: &Shape, row: usize, l: usize) -> usize {
    let Shape { n, nb, grid, .. } = *shape;
    let round = l / nb;
    let within = |at: usize| (at / nb / grid.q == round).then(|| round * nb + at % nb);
    let ends = [within(row), within(n)].into_iter().flatten().filter(|&end| end > l);
    ends.fold((round + 1) * nb, usize::min)
}

/// How far a rank's process column has come. It says the same on all of its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The matrix, or the sums, are there.
    pub generated: bool,
    /// Panels that are applied to everything here.
    pub applied: usize,
    /// Panels before this one are factored, as far as this rank knows: its own always.
    pub factored: usize,
    /// Local rows in which the lost part of U is regained.
    pub regained: usize,
    /// When the clock first started.
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

    /// Numbers from a seed, between -1 and 1.
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
        /// Eliminates column `c` of what is left, looking at column `lead` for it, in all columns but those that are
        /// factored already; and leaves rubbish below their diagonal, as the factorisation does.
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

    /// An element of new sums number `by`, of what lies in its row and column.
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

    /// As [`play`] without new sums.
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

    /// What happens at a boundary.
    #[derive(Clone, Copy, Debug)]
    enum Happens {
        /// This process column is lost, and the first of the sums take its place.
        Lost(usize),
        /// The last of the sums are lost.
        SumsLost,
        /// New sums are made.
        Renewed,
        /// Those that are there are made again, from the columns on that are left.
        Refreshed,
    }

    /// Solves with block columns dealt out to `q` process columns and `sums` beside; those take the place of lost ones, of each
    /// at its boundary, in order. `amid`: rows of the lost part of U that are regained when a column is lost after everything is
    /// factored. The largest error of x.
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
        let shape = |col: usize| Shape::of(n, nb, grid, (0, col));
        let mut next = random(seed);
        let x: Vec<f64> = (0..n).map(|_| next()).collect();
        let a: Vec<Vec<f64>> = (0..n).map(|_| (0..n).map(|_| next()).collect()).collect();
        let b = |row: &[f64]| row.iter().zip(&x).map(|(a, x)| a * x).sum::<f64>();
        let one = shape(q);
        let map = one.col_map;
        let wide = one.cols - 1;
        let last = n + ever * wide;
        // Columns of A, then the sums', then b.
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
        // Where column l of a process column lies by now.
        let lies =
            |made: &[Exchange], col: usize, l: usize| match made.iter().rfind(|e| e.col == col) {
                Some(e) => n + e.by * wide + l,
                None => map.global(l, col),
            };
        let place = |made: &[Exchange], j: usize| lies(made, map.owner(j), map.local(j));
        let mut regained = vec![0; ever];
        let regain = |all: &mut Dense, past: &Past, regained: &mut [usize], until: usize| {
            let (roles, made) = (Exchanges::new(past, &one), &past.exchanges);
            for i in 0..until {
                for l in 0..wide {
                    let is_lost = |j: &usize| {
                        let e = &made[*j];
                        l < roles.first_sum(*j) && i >= regained[e.by] && counts(&one, e.col, i, l)
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
            made.iter().for_each(|e| regained[e.by] = regained[e.by].max(until));
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
                        let by = left.pop().expect("there are some");
                        let theirs = n + by * wide..n + (by + 1) * wide;
                        all.0.iter_mut().for_each(|row| row[theirs.clone()].fill(f64::NAN));
                    }
                    Happens::Lost(col) => {
                        if k == n.div_ceil(nb) {
                            regain(&mut all, &past, &mut regained, amid);
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
                // As the factorisation does it: columns that are not factored, the sums from where block k is part of them.
                let lead = place(&past.exchanges, c);
                let held = past.exchanges.clone();
                let applies = move |j: usize| {
                    if j < n {
                        return j > c && held.iter().all(|e| e.col != map.owner(j));
                    }
                    let (by, l) = ((j - n) / wide, (j - n) % wide);
                    match held.iter().find(|e| e.by == by) {
                        _ if j == last => true,
                        // Now columns like others.
                        Some(e) => l >= map.count_below(c + 1, e.col),
                        None => l >= one.col_from_block(k),
                    }
                };
                all.eliminate(c, lead, &applies);
            }
        }
        regain(&mut all, &past, &mut regained, n);
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

    /// Every process column, replaced at every boundary, the last one included.
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

    /// Every pair of process columns, at one boundary or one after another, also who has taken a place in that place;
    /// after everything is factored with part of U regained.
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

    /// As many as there may be sums, here and there.
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

    /// A column is lost at any boundary, new sums are made at that or a later one, and another one, or that in its place, is lost
    /// then; and once more.
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

    /// Beside sums that are left, and where those are lost themselves.
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

    /// Sums that are made again at any boundary, amid a round of the process columns too, before and after losses.
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
                        // At one boundary the sums come first or last.
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

    /// With each column counted once a residual about doubles with each loss, whichever columns they are.
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

    /// The largest element of the matrix that solves for lost columns by as many sums with these weights.
    fn cost(weight: impl Fn(usize, usize) -> f64, cols: &[usize]) -> f64 {
        let solves = inverse(cols.len(), |i, j| weight(i, cols[j]));
        solves.concat().iter().fold(0.0f64, |most, element| most.max(element.abs()))
    }

    /// Figures of docs/dev/nonstop.md, for every number of process columns up to 1,024. A grid that is one column wider adds the
    /// sets with that column. A determinant tells first which sets can be the worst.
    #[test]
    fn the_worst_columns_to_lose_cost_so_much() {
        const Q: usize = 1024;
        let golden: Vec<f64> = (0..Q).map(|col| weight(1, col)).collect();
        let drawn: Vec<f64> = (0..Q).map(|col| weight(2, col)).collect();
        let (mut one, mut two, mut three) = (0.0f64, 0.0f64, 0.0f64);
        for c in 0..Q {
            one = one.max(cost(|_, col| weight(1, col), &[c]));
            for b in 0..c {
                // No element of the inverse is more than the largest minor, which is 2 at most, by the determinant.
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
        // By weights that are drawn two would cost more.
        let pairs = |q: usize| (0..q).flat_map(|b| (0..b).map(move |a| [a, b]));
        let of_drawn =
            |q| pairs(q).map(|pair| cost(real_weight, &pair)).fold(0.0, f64::max).round();
        assert_eq!([16, 256].map(of_drawn), [51.0, 83_595.0]);
    }

    /// Sets of four are too many to look at all of them for more process columns than these.
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
                        // No minor of three rows is more than 6.
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

    /// Number 1's weight of process column 232 is 0.004.
    #[test]
    fn the_sums_with_the_largest_weights_take_a_lost_place() {
        let (q, cols) = (256, 0..256);
        let grid = ProcessGrid { p: 1, q, mapping: Mapping::Row };
        let shape = Shape::of(8 * q, 1, grid, (0, 0));
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
        // Once another column is sums, a difference of weights counts.
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
            let shape = Shape::of(n, nb, grid, (0, 0));
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
                // Blocks, but for the diagonal and the end of the matrix.
                assert!(at == rounds * nb && runs <= rounds + 2, "{n} {nb} {q} {row}: {runs}");
            }
        }
    }

    /// What a lost column is divided by, and what two lost ones are, is not small.
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

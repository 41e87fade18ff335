//! Which process column does what, where one more than the grid has keeps sums: pure.
//!
//! The sums are E = A e: in each local column the sum of that local column of all the others. Everything the factorisation does
//! is a multiplication from the left, M, so with every step applied to them, too, they stay the sum of M A; what A keeps of L below
//! a factored diagonal counts as the zeros that it stands for.
//!
//! When the sums take the place of process column d at boundary k, its block columns from k on are replaced by sums. That is
//! A T in place of A, where T adds to each replaced column those of the others that it is the sum of. The factorisation goes on with that as if
//! it had always been so, and what it solves is A T y = b: so x = T y. The block columns before k are factored. What they have in U
//! is the sum less what the others have, and is regained before it is needed, which is when the system is solved.

use serde::{Deserialize, Serialize};

use crate::matrix::Shape;

/// The sums have taken the place of a process column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub col: usize,
    /// From this block column on those of that process column are sums.
    pub boundary: usize,
}

impl Exchange {
    /// The first local column of the process column that is a sum; those before it were factored.
    pub fn first_sum(&self, shape: &Shape) -> usize {
        shape.col_map.count_below((self.boundary * shape.nb).min(shape.n), self.col)
    }

    /// From the solution of what was factored, `mine` of this rank's process column and `theirs` of the one replaced, to that
    /// of the system: x = T y.
    pub fn settle(&self, shape: &Shape, mine: &mut [f64], theirs: &[f64]) {
        if shape.col == self.col {
            return;
        }
        let first = self.first_sum(shape);
        let both = mine.len().min(theirs.len());
        for l in first..both {
            mine[l] += theirs[l];
        }
    }

    /// What element (row, local column `l`) of process column `col` adds to the sum, if it is a column of A: what is
    /// below the diagonal of a factored column is L's, and counts as nothing.
    pub fn counts(&self, shape: &Shape, col: usize, row: usize, l: usize) -> bool {
        let column = shape.col_map.global(l, col);
        col != self.col && column < shape.n && row <= column
    }
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
    use crate::grid::ProcessGrid;
    use crate::params::Mapping;

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

    /// Solves with block columns dealt out to `q` and sums beside; the sums take the place of `lost` at boundary `k`.
    /// The largest error of x.
    fn solve(n: usize, nb: usize, q: usize, lost: Option<(usize, usize)>, seed: u64) -> f64 {
        let grid = ProcessGrid { p: 1, q, mapping: Mapping::Row };
        let shape = |col: usize| Shape::of(n, nb, grid, (0, col));
        let mut next = random(seed);
        let x: Vec<f64> = (0..n).map(|_| next()).collect();
        let a: Vec<Vec<f64>> = (0..n).map(|_| (0..n).map(|_| next()).collect()).collect();
        let b = |row: &[f64]| row.iter().zip(&x).map(|(a, x)| a * x).sum::<f64>();
        let sums = shape(q);
        let wide = sums.cols - 1;
        // Columns of A, then the sums', then b.
        let mut all = Dense(
            a.iter()
                .map(|row| {
                    let mut line = row.clone();
                    line.resize(n + wide, 0.0);
                    for (j, value) in row.iter().enumerate() {
                        line[n + sums.col_map.local(j)] += value;
                    }
                    line.push(b(row));
                    line
                })
                .collect(),
        );
        let mut exchange: Option<Exchange> = None;
        // Where column j of the grid lies by now.
        let place = |exchange: &Option<Exchange>, j: usize| match exchange {
            Some(e) if sums.col_map.owner(j) == e.col => n + sums.col_map.local(j),
            _ => j,
        };
        for k in 0..=n.div_ceil(nb) {
            if let Some((col, boundary)) = lost
                && boundary == k
            {
                exchange = Some(Exchange { col, boundary });
                for row in &mut all.0 {
                    (0..n)
                        .filter(|&j| sums.col_map.owner(j) == col)
                        .for_each(|j| row[j] = f64::NAN);
                }
            }
            for c in k * nb..((k + 1) * nb).min(n) {
                let held = exchange;
                // As the factorisation does it: columns that are not factored, the sums from where block k is part of them.
                let lead = place(&held, c);
                let applies = move |j: usize| match held {
                    _ if j == n + wide => true,
                    Some(_) if j >= n => {
                        // Now columns like others.
                        let from =
                            shape(held.unwrap().col).col_map.count_below(c + 1, held.unwrap().col);
                        j - n >= from
                    }
                    None if j >= n => j - n >= sums.col_from_block(k),
                    _ => j > c && Some(sums.col_map.owner(j)) != held.map(|e| e.col),
                };
                all.eliminate(c, lead, &applies);
            }
        }
        if let Some(e) = exchange {
            let mine = shape(e.col);
            for l in 0..e.first_sum(&mine) {
                for i in 0..=mine.col_map.global(l, e.col) {
                    for col in (0..q).filter(|&col| e.counts(&mine, col, i, l)) {
                        let other = all.0[i][mine.col_map.global(l, col)];
                        all.0[i][n + l] -= other;
                    }
                }
            }
        }
        let mut y = vec![0.0; n];
        for i in (0..n).rev() {
            let known: f64 = (i + 1..n).map(|j| all.0[i][place(&exchange, j)] * y[j]).sum();
            y[i] = (all.0[i][n + wide] - known) / all.0[i][place(&exchange, i)];
        }
        if let Some(e) = exchange {
            let of = |y: &[f64], col: usize| -> Vec<f64> {
                let map = sums.col_map;
                (0..map.count_below(n, col)).map(|l| y[map.global(l, col)]).collect()
            };
            let theirs = of(&y, e.col);
            for col in 0..q {
                let mut mine = of(&y, col);
                e.settle(&shape(col), &mut mine, &theirs);
                mine.iter().enumerate().for_each(|(l, &v)| y[sums.col_map.global(l, col)] = v);
            }
        }
        y.iter()
            .zip(&x)
            .map(|(y, x)| (y - x).abs())
            .fold(0.0, |max, e| if e > max || e.is_nan() { e } else { max })
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
                assert!(solve(n, nb, q, None, seed) < 1e-10);
                for col in 0..q {
                    for k in 0..=n.div_ceil(nb) {
                        let error = solve(n, nb, q, Some((col, k)), seed);
                        assert!(error < 1e-8, "N {n} NB {nb} Q {q}: column {col} at {k}: {error}");
                    }
                }
            }
        }
    }
}

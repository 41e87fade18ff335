//! Estimates the time of the whole factorisation from a few stretches: ranges of iterations that are timed.
//!
//! With r = N - (k + 1) NB, iteration k updates r x r elements, factors a panel of r rows and sends this panel. So its time is a
//! r^2 + b r + c, and the time of the factorisation is the sum over all iterations. Two stretches determine a and b, three
//! stretches also c. The stretches are at the points of a Gauss quadrature, where an error of the model has the least effect.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Care of a measurement: it determines which part of a run is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Care {
    /// Two stretches of iterations, about a tenth of a run of fifty iterations.
    Rough,
    /// Three longer stretches of iterations, about a quarter of a run of fifty iterations.
    Fine,
}

/// Stretches of a rough measurement: centre as a fraction of the run, and number of iterations. Later iterations take less time,
/// so later stretches have more iterations.
const ROUGH: [(f64, usize); 2] = [(0.211_324_865, 1), (0.788_675_135, 5)];
/// Stretches of a fine measurement, in the form of [`ROUGH`].
const FINE: [(f64, usize); 3] = [(0.112_701_665, 2), (0.5, 4), (0.887_298_335, 6)];

/// Returns the stretches, ranges of iterations, to time in a factorisation of `blocks` iterations. If they would be most of the
/// factorisation, returns one stretch of all iterations.
pub fn stretches(blocks: usize, care: Care) -> Vec<Range<usize>> {
    let points: &[(f64, usize)] = match care {
        Care::Rough => &ROUGH,
        Care::Fine => &FINE,
    };
    let place = |&(centre, count): &(f64, usize)| {
        let first = (centre * blocks as f64 - count as f64 / 2.0).round().max(1.0) as usize;
        first..first + count
    };
    let placed: Vec<Range<usize>> = points.iter().map(place).collect();
    let iterations: usize = placed.iter().map(|range| range.len() + 1).sum();
    let apart = placed.windows(2).all(|two| two[0].end < two[1].start);
    let inside = placed.iter().all(|range| range.end < blocks);
    if apart && inside && 2 * iterations < blocks {
        placed
    } else {
        std::iter::once(0..blocks).collect()
    }
}

/// Returns the order of the trailing submatrix after iteration k, as a fraction of N.
fn left(n: usize, nb: usize, k: usize) -> f64 {
    n.saturating_sub((k + 1) * nb) as f64 / n as f64
}

/// Returns the sums of r^2, r and 1 over a range of iterations. r is the order of the trailing submatrix, as a fraction of N.
fn sums(n: usize, nb: usize, range: Range<usize>) -> [f64; 3] {
    range.fold([0.0; 3], |[square, plain, count], k| {
        let r = left(n, nb, k);
        [square + r * r, plain + r, count + 1.0]
    })
}

/// Returns the share of a whole factorisation's multiplication that a trial does. A trial does its stretches, and before each
/// stretch one iteration that is not timed.
pub fn part(n: usize, nb: usize, care: Care) -> f64 {
    let blocks = n.div_ceil(nb);
    let placed = stretches(blocks, care);
    let squares = |range: &Range<usize>| sums(n, nb, range.start.saturating_sub(1)..range.end)[0];
    placed.iter().map(squares).sum::<f64>() / all_squares(n, nb)
}

/// Returns the sum of r^2 over all iterations, where r is the order of the trailing submatrix as a fraction of N. A planned
/// matrix may have very many iterations, so the sum is in closed form. Counted from the last iteration, the trailing submatrix
/// has the rows of the last block, then NB more in each iteration.
fn all_squares(n: usize, nb: usize) -> f64 {
    let (n, nb, blocks) = (n as f64, nb as f64, n.div_ceil(nb) as f64);
    let (times, last) = (blocks - 1.0, n - (blocks - 1.0) * nb);
    let grown = nb * (times - 1.0) * (last + nb * (2.0 * times - 1.0) / 6.0);
    times * (last * last + grown) / (n * n)
}

/// Returns the estimated seconds of the whole factorisation, from the seconds of the stretches. None if no run could have these
/// seconds.
pub fn whole(n: usize, nb: usize, stretches: &[Range<usize>], seconds: &[f64]) -> Option<f64> {
    let blocks = n.div_ceil(nb);
    if seconds.len() != stretches.len() || seconds.iter().any(|s| !s.is_finite() || *s <= 0.0) {
        return None;
    }
    if let [only] = stretches {
        return (*only == (0..blocks)).then_some(seconds[0]);
    }
    let all = sums(n, nb, 0..blocks);
    let rows: Vec<[f64; 3]> = stretches.iter().map(|range| sums(n, nb, range.clone())).collect();
    let fitted = match (&rows[..], seconds) {
        ([x, y], [s, t]) => line(x, y, *s, *t, &all),
        ([x, y, z], [s, t, u]) => {
            let det = |c: [[f64; 3]; 3]| {
                let minor = |i: usize, j: usize| c[1][i] * c[2][j] - c[1][j] * c[2][i];
                c[0][0] * minor(1, 2) - c[0][1] * minor(0, 2) + c[0][2] * minor(0, 1)
            };
            let seconds = [s, t, u];
            let with = |column: Option<usize>| {
                let mut rows = [*x, *y, *z];
                if let Some(column) = column {
                    for (row, second) in rows.iter_mut().zip(seconds) {
                        row[column] = *second;
                    }
                }
                det(rows)
            };
            (0..3).map(|column| with(Some(column)) / with(None) * all[column]).sum()
        }
        _ => return None,
    };
    (fitted.is_finite() && fitted > 0.0).then_some(fitted)
}

/// Returns the estimated seconds of the iterations whose sums ([`sums`]) are `of`, by the model without a constant part. Two
/// stretches determine the model: their sums are `x` and `y`, their seconds `s` and `t`.
fn line(x: &[f64; 3], y: &[f64; 3], s: f64, t: f64, of: &[f64; 3]) -> f64 {
    let det = x[0] * y[1] - x[1] * y[0];
    let (a, b) = ((s * y[1] - t * x[1]) / det, (x[0] * t - y[0] * s) / det);
    a * of[0] + b * of[1]
}

/// Returns the relative error of the model on this machine. The model without a constant part predicts the time of the middle
/// stretch from the outer two. The prediction is compared with the measured time. None unless there are three stretches.
pub fn off(n: usize, nb: usize, stretches: &[Range<usize>], seconds: &[f64]) -> Option<f64> {
    let ([first, middle, last], [s, measured, u]) = (stretches, seconds) else { return None };
    let [x, m, z] = [first, middle, last].map(|range| sums(n, nb, range.clone()));
    let off = line(&x, &z, *s, *u, &m) / measured - 1.0;
    off.is_finite().then_some(off)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the seconds of the iterations `range`, by a model with the coefficients `c`.
    fn model(n: usize, nb: usize, c: [f64; 3], range: Range<usize>) -> f64 {
        sums(n, nb, range).iter().zip(c).map(|(sum, c)| sum * c).sum()
    }

    #[test]
    fn stretches_are_apart_and_inside_or_one_of_all() {
        for care in [Care::Rough, Care::Fine] {
            for blocks in 0..2000 {
                let placed = stretches(blocks, care);
                if let [only] = &placed[..] {
                    assert_eq!(*only, 0..blocks);
                    continue;
                }
                assert!(placed[0].start >= 1 && placed.last().unwrap().end < blocks);
                assert!(placed.windows(2).all(|two| two[0].end < two[1].start));
            }
            assert!(stretches(47, care).len() > 1, "fifty iterations are worth it");
            assert_eq!(stretches(8, care).len(), 1);
        }
    }

    #[test]
    fn a_trial_is_a_small_part_of_a_long_run() {
        for (n, nb) in [(12_000, 256), (12_001, 256), (12_287, 256), (5000, 100), (2000, 256)] {
            let one_by_one = sums(n, nb, 0..n.div_ceil(nb))[0];
            assert!((all_squares(n, nb) / one_by_one - 1.0).abs() < 1e-12, "{n} {nb}");
        }
        let rough = |blocks: usize| part(256 * blocks, 256, Care::Rough);
        assert!((0.09..0.11).contains(&rough(47)), "{}", rough(47));
        assert!((0.0055..0.0065).contains(&rough(780)), "{}", rough(780));
        assert!((part(256 * 8, 256, Care::Rough) - 1.0).abs() < 1e-12, "all of it is run");
        assert!(part(1 << 50, 1, Care::Fine) > 0.0);
    }

    #[test]
    fn nonsense_has_no_whole() {
        let (n, nb) = (12_000, 256);
        let placed = stretches(47, Care::Rough);
        for seconds in [&[1.0][..], &[1.0, f64::NAN], &[0.0, 1.0], &[1.0, 1.0, 1.0]] {
            assert_eq!(whole(n, nb, &placed, seconds), None);
        }
        assert_eq!(whole(n, nb, &stretches(8, Care::Rough), &[3.0]), None, "of another run");
        let short = stretches(8, Care::Rough);
        assert_eq!(whole(2000, 256, &short, &[3.0]), Some(3.0));
    }

    proptest! {
        /// The estimate is exact for a run that follows the model. If the model has a constant part, the estimate from two
        /// stretches is nearly exact.
        #[test]
        fn a_run_by_the_model_is_extended_to_its_whole(
            n in 3000usize..200_000, nb in 32usize..512, b in 0.0f64..0.5, c in 0.0f64..0.02,
        ) {
            let blocks = n.div_ceil(nb);
            let measured = |placed: &[Range<usize>], c: [f64; 3]| -> Vec<f64> {
                placed.iter().map(|range| model(n, nb, c, range.clone())).collect()
            };
            let (square, full) = ([1.0, b, 0.0], [1.0, b, c]);
            let rough = stretches(blocks, Care::Rough);
            let told = whole(n, nb, &rough, &measured(&rough, square)).unwrap();
            prop_assert!((told / model(n, nb, square, 0..blocks) - 1.0).abs() < 1e-6);
            let told = whole(n, nb, &rough, &measured(&rough, full)).unwrap();
            prop_assert!((told / model(n, nb, full, 0..blocks) - 1.0).abs() < 0.02);
            let fine = stretches(blocks, Care::Fine);
            let told = whole(n, nb, &fine, &measured(&fine, full)).unwrap();
            prop_assert!((told / model(n, nb, full, 0..blocks) - 1.0).abs() < 1e-6);
            if let Some(off) = off(n, nb, &fine, &measured(&fine, square)) {
                prop_assert!(off.abs() < 1e-6);
            }
        }
    }
}

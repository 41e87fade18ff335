//! Number fields of the weights: GF(256), whose arithmetic is exact, and the real numbers.
//!
//! `plan` solves for lost rows through this trait only, so `plan` is the same for every code.

use super::gf256;

/// Numbers of a field: they can be added, multiplied and divided.
pub trait Field: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Inverse of a nonzero number.
    fn inverse(self) -> Self;
    /// Quality of the number as a pivot: larger is better, and 0 means that it cannot be a pivot.
    fn size(self) -> f64;
}

/// Element of GF(256).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Byte(pub u8);

impl Field for Byte {
    const ZERO: Self = Byte(0);
    const ONE: Self = Byte(1);

    fn plus(self, other: Self) -> Self {
        Byte(self.0 ^ other.0)
    }

    fn minus(self, other: Self) -> Self {
        self.plus(other)
    }

    fn times(self, other: Self) -> Self {
        Byte(gf256::mul(self.0, other.0))
    }

    fn inverse(self) -> Self {
        Byte(gf256::inverse(self.0))
    }

    fn size(self) -> f64 {
        f64::from(u8::from(self.0 != 0))
    }
}

impl Field for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn minus(self, other: Self) -> Self {
        self - other
    }

    fn times(self, other: Self) -> Self {
        self * other
    }

    fn inverse(self) -> Self {
        1.0 / self
    }

    fn size(self) -> f64 {
        self.abs()
    }
}

/// Inverts a small square matrix in place. Returns false if the matrix is singular; the matrix is then overwritten with other
/// values.
pub fn invert<F: Field>(matrix: &mut [Vec<F>]) -> bool {
    let n = matrix.len();
    let unit = |i, j| if i == j { F::ONE } else { F::ZERO };
    let mut result: Vec<Vec<F>> = (0..n).map(|i| (0..n).map(|j| unit(i, j)).collect()).collect();
    for col in 0..n {
        let best =
            (col..n).max_by(|&a, &b| matrix[a][col].size().total_cmp(&matrix[b][col].size()));
        let Some(pivot) = best.filter(|&row| matrix[row][col] != F::ZERO) else {
            return false;
        };
        matrix.swap(col, pivot);
        result.swap(col, pivot);
        let scale = matrix[col][col].inverse();
        for j in 0..n {
            matrix[col][j] = matrix[col][j].times(scale);
            result[col][j] = result[col][j].times(scale);
        }
        for row in (0..n).filter(|&row| row != col) {
            let factor = matrix[row][col];
            for j in 0..n {
                matrix[row][j] = matrix[row][j].minus(factor.times(matrix[col][j]));
                result[row][j] = result[row][j].minus(factor.times(result[col][j]));
            }
        }
    }
    matrix.clone_from_slice(&result);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product<F: Field>(left: &[Vec<F>], right: &[Vec<F>]) -> Vec<Vec<F>> {
        let n = left.len();
        let cell = |i: usize, j: usize| {
            (0..n).fold(F::ZERO, |sum, k| sum.plus(left[i][k].times(right[k][j])))
        };
        (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect()
    }

    #[test]
    fn inverse_matrices_invert() {
        let bytes = [[1, 2, 3], [4, 5, 6], [7, 8, 10]].map(|row| row.map(Byte).to_vec());
        let mut inverse = bytes.clone();
        assert!(invert(&mut inverse));
        for (i, row) in product(&bytes, &inverse).iter().enumerate() {
            for (j, &cell) in row.iter().enumerate() {
                assert_eq!(cell, Byte(u8::from(i == j)));
            }
        }
        // A zero on the diagonal needs a pivot from a lower row.
        let reals = [vec![0.0, 2.0, 1.0], vec![4.0, 1.0, 0.5], vec![1.0, 1.0, 3.0]];
        let mut inverse = reals.clone();
        assert!(invert(&mut inverse));
        for (i, row) in product(&reals, &inverse).iter().enumerate() {
            for (j, &cell) in row.iter().enumerate() {
                assert!((cell - f64::from(u8::from(i == j))).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn a_singular_matrix_is_told() {
        assert!(!invert(&mut [vec![Byte(1), Byte(2)], vec![Byte(1), Byte(2)]]));
        assert!(!invert(&mut [vec![1.0, 2.0], vec![1.0, 2.0]]));
    }
}

//! One rank's part of [A|b].

use super::{Generator, Storage};
use crate::grid::{Cyclic, ProcessGrid};
use crate::params::{Mapping, TestParams};
use crate::threads::{Pool, Shareable};

/// The shape of the local part at grid position (`row`, `col`): pure arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub n: usize,
    pub nb: usize,
    pub grid: ProcessGrid,
    pub row: usize,
    pub col: usize,
    /// How rows, and the N+1 columns of [A|b], are dealt out.
    pub row_map: Cyclic,
    pub col_map: Cyclic,
    /// Local rows and columns.
    pub rows: usize,
    pub cols: usize,
    /// Doubles from one local row to the next.
    pub ld: usize,
}

impl Shape {
    pub fn new(params: &TestParams, (row, col): (usize, usize)) -> Self {
        let grid = ProcessGrid { p: params.p, q: params.q, mapping: params.mapping };
        let row_map = Cyclic::new(params.n, params.nb, params.p);
        let col_map = Cyclic::new(params.n + 1, params.nb, params.q);
        let cols = col_map.count(col);
        Self {
            n: params.n,
            nb: params.nb,
            grid,
            row,
            col,
            row_map,
            col_map,
            rows: row_map.count(row),
            cols,
            ld: leading_dimension(cols),
        }
    }

    /// Doubles the local part takes.
    pub fn len(&self) -> usize {
        self.rows * self.ld
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn mapping(&self) -> Mapping {
        self.grid.mapping
    }

    /// The first local row at or after block `k`.
    pub fn row_from_block(&self, k: usize) -> usize {
        self.row_map.count_below(k * self.nb, self.row)
    }

    /// The first local column at or after block `k`.
    pub fn col_from_block(&self, k: usize) -> usize {
        self.col_map.count_below(k * self.nb, self.col)
    }
}

/// Whole cache lines, but never a multiple of a page: rows would all meet in the same cache sets.
fn leading_dimension(cols: usize) -> usize {
    let ld = cols.next_multiple_of(8);
    if ld.is_multiple_of(512) && ld > 0 { ld + 8 } else { ld }
}

/// A rank's part of [A|b], row-major, in memory of whatever kind.
pub struct Local<S> {
    pub shape: Shape,
    storage: S,
}

impl<S: Storage> Local<S> {
    /// Takes `storage`, which must have room for the shape.
    pub fn new(shape: Shape, storage: S) -> Self {
        assert!(storage.len() >= shape.len(), "the storage has room for the local matrix");
        Self { shape, storage }
    }

    /// The first element. Local element (i, j) is at `i * ld + j`.
    pub fn pointer(&mut self) -> *mut f64 {
        self.storage.pointer()
    }

    pub fn storage(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Fills the part from the generator, whatever was in it.
    pub fn generate(&mut self, generator: &Generator, pool: &mut Pool) {
        let shape = self.shape;
        let base = Shareable::new(self.pointer());
        const ROWS: usize = 8;
        pool.run(shape.rows.div_ceil(ROWS), |task| {
            let first = task * ROWS;
            let count = ROWS.min(shape.rows - first);
            let mut rows = [0; ROWS];
            for (r, row) in rows.iter_mut().enumerate().take(count) {
                *row = shape.row_map.global(first + r, shape.row);
            }
            // SAFETY: each task writes rows of its own, all within the storage.
            unsafe {
                let base = base.get().add(first * shape.ld);
                let mut at = 0;
                while at < shape.cols {
                    let len = (shape.nb - at % shape.nb).min(shape.cols - at);
                    let global = shape.col_map.global(at, shape.col);
                    generator.block(&rows[..count], global, len, |r, j, v| {
                        *base.add(r * shape.ld + at + j) = v;
                    });
                    at += len;
                }
                for r in 0..count {
                    for j in shape.cols..shape.ld {
                        *base.add(r * shape.ld + j) = 0.0;
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::HugeBuffer;
    use super::*;
    use crate::params::*;

    pub fn params(n: usize, nb: usize, p: usize, q: usize) -> TestParams {
        TestParams {
            n,
            nb,
            p,
            q,
            mapping: Mapping::Row,
            depth: 1,
            bcast: Bcast::OneRingM,
            rfact: Fact::Crout,
            ndiv: 2,
            pfact: Fact::Right,
            nbmin: 4,
            swap: Swap::Mix,
            swap_threshold: 64,
            l1: Form::Transposed,
            u: Form::Transposed,
            equilibrate: true,
            align: 8,
            threshold: 16.0,
            rng: Rng::Hpl,
            seed: 100,
        }
    }

    /// The matrix is the same under every grid, block size and number of threads.
    #[test]
    fn every_grid_holds_the_same_matrix() {
        for rng in [Rng::Hpl, Rng::Xoshiro] {
            for n in [0usize, 1, 5, 33] {
                let generator = Generator::new(rng, 100, n);
                for (nb, p, q) in [(1, 1, 1), (4, 2, 3), (7, 3, 2), (5, 4, 1), (64, 2, 2)] {
                    let mut seen = 0;
                    for row in 0..p {
                        for col in 0..q {
                            let shape = Shape::new(&params(n, nb, p, q), (row, col));
                            let buffer = HugeBuffer::new(shape.len()).unwrap();
                            let mut local = Local::new(shape, buffer);
                            local.generate(&generator, &mut Pool::new(1 + row));
                            for i in 0..shape.rows {
                                for j in 0..shape.cols {
                                    let value = local.storage.as_slice()[i * shape.ld + j];
                                    let (gi, gj) = (
                                        shape.row_map.global(i, row),
                                        shape.col_map.global(j, col),
                                    );
                                    assert_eq!(value, generator.at(gi, gj));
                                    seen += 1;
                                }
                            }
                        }
                    }
                    assert_eq!(seen, n * (n + 1));
                }
            }
        }
    }

    #[test]
    fn rows_never_meet_in_the_same_cache_sets() {
        for cols in 0..5000 {
            let ld = leading_dimension(cols);
            assert!(ld >= cols && ld <= cols + 16 && ld.is_multiple_of(8));
            assert!(ld == 0 || !ld.is_multiple_of(512));
        }
    }
}

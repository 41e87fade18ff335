//! What every step of one test needs to know: parameters, place in the grid, whom to talk to.

use crate::blas::Engine;
use crate::comm::Comm;
use crate::grid::ProcessGrid;
use crate::matrix::Shape;
use crate::params::TestParams;

/// One test, seen from one rank of its grid.
pub struct Context<'a> {
    pub params: &'a TestParams,
    pub shape: Shape,
    pub engine: Engine,
    /// All ranks of the grid, by row-major grid position.
    pub grid: Comm,
    /// The ranks of this process row: a rank's number is its process column.
    pub row: Comm,
    /// The ranks of this process column: a rank's number is its process row.
    pub column: Comm,
}

impl<'a> Context<'a> {
    /// Splits `world` into the grid of `params`; `position` is this rank's place, if it has one.
    /// All ranks of `world` take part, those without a place get nothing.
    pub fn new(
        world: &Comm,
        params: &'a TestParams,
        engine: Engine,
        position: Option<(usize, usize)>,
    ) -> Option<Self> {
        let key = position.map_or(0, |(row, col)| row * params.q + col);
        let grid = world.split(position.map(|_| 0), key);
        let (grid, (row, col)) = grid.zip(position)?;
        let along_row = grid.split(Some(row), col).expect("every rank of the grid has a row");
        let along_column = grid.split(Some(col), row).expect("every rank of the grid has a column");
        Some(Self {
            params,
            shape: Shape::new(params, (row, col)),
            engine,
            grid,
            row: along_row,
            column: along_column,
        })
    }

    /// The place a launcher's rank has by the mapping.
    pub fn position_of(params: &TestParams, rank: usize) -> Option<(usize, usize)> {
        ProcessGrid { p: params.p, q: params.q, mapping: params.mapping }.coordinates(rank)
    }

    /// Columns of block column `k` that are factored: all `nb` but in the last.
    pub fn width(&self, k: usize) -> usize {
        (self.params.n - k * self.params.nb).min(self.params.nb)
    }
}

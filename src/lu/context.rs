//! What every step of one test needs to know: parameters, place in the grid, whom to talk to.

use super::halves;
use super::need::Lengths;
use super::roles::SUMS_EVER;
use crate::base::params::{Halves, TestParams};
use crate::comm::Comm;
use crate::grid::ProcessGrid;
use crate::kernels::Engine;
use crate::matrix::Shape;

/// In which order ranks send their messages. It is no matter of one rank's threads or wishes: all ranks of the grid must order
/// alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The most threads of any rank.
    pub threads: usize,
    pub halves: Halves,
}

impl Order {
    /// Whether messages are ordered so that ranks with threads multiply while they factor.
    pub fn overlap(&self) -> bool {
        self.threads > 1
    }
}

/// One test, seen from one rank of its grid.
pub struct Context<'a> {
    pub params: &'a TestParams,
    pub shape: Shape,
    pub engine: Engine,
    pub order: Order,
    /// All ranks of the grid, by row-major grid position, those that keep sums included.
    pub grid: Comm,
    /// The ranks of this process row that have columns of the matrix: a rank's number is its process column. Who keeps
    /// sums is alone, each.
    pub row: Comm,
    /// All ranks of this process row, those who keep sums last; where there are sums.
    wide: Option<Comm>,
    /// The ranks of this process column: a rank's number is its process row.
    pub column: Comm,
    /// The number that faults on purpose know this rank by.
    pub place: usize,
}

/// A place in the grid, or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub row: usize,
    /// From the grid's width on they stand for the columns that keep sums.
    pub col: usize,
    pub place: usize,
}

impl<'a> Context<'a> {
    /// Splits `world` into the grid of `params`; `position` is this rank's place, if it has one.
    /// All ranks of `world` take part, those without a place get nothing.
    pub fn new(
        world: &Comm,
        params: &'a TestParams,
        engine: Engine,
        order: Order,
        position: Option<(usize, usize)>,
    ) -> Option<Self> {
        let grid = ProcessGrid::of(params);
        let seat = position.map(|(row, col)| Seat { row, col, place: grid.rank(row, col) });
        Self::seated(world, params, engine, order, seat, 0)
    }

    /// As [`Context::new`]; with `sums` columns beyond those of the grid keep sums.
    pub fn seated(
        world: &Comm,
        params: &'a TestParams,
        engine: Engine,
        order: Order,
        seat: Option<Seat>,
        sums: usize,
    ) -> Option<Self> {
        let key = seat.map_or(0, |seat| seat.row * (params.q + SUMS_EVER) + seat.col);
        let grid = world.split(seat.map(|_| 0), key);
        let (grid, Seat { row, col, place }) = grid.zip(seat)?;
        let alone = params.p * (col + 1).saturating_sub(params.q);
        let along_row = grid.split(Some(row + alone), col).expect("every rank has a row");
        let wide = (sums > 0).then(|| grid.split(Some(row), col).expect("every rank has a row"));
        let along_column = grid.split(Some(col), row).expect("every rank of the grid has a column");
        Some(Self {
            params,
            shape: Shape::new(params, (row, col)),
            engine,
            order,
            grid,
            row: along_row,
            wide,
            column: along_column,
            place,
        })
    }

    /// Along whom panels travel.
    pub fn along(&self) -> &Comm {
        self.wide.as_ref().unwrap_or(&self.row)
    }

    /// Whether some keep sums.
    pub fn has_sums(&self) -> bool {
        self.wide.is_some()
    }

    /// The place a launcher's rank has by the mapping.
    pub fn position_of(params: &TestParams, rank: usize) -> Option<(usize, usize)> {
        ProcessGrid::of(params).coordinates(rank)
    }

    /// The local column at which those that panel `k` is applied to are cut in two, if they are.
    pub fn cut(&self, k: usize) -> Option<usize> {
        halves::cut(&self.shape, self.params.lookahead(), self.engine, self.order, k)
    }

    /// How long this rank's work arrays are with so many threads.
    pub fn lengths(&self, threads: usize) -> Lengths {
        let layout = (self.params.depth, self.params.align);
        Lengths::new(&self.shape, layout, threads, self.engine)
    }

    /// Columns of block column `k` that are factored: all `nb` but in the last.
    pub fn width(&self, k: usize) -> usize {
        (self.params.n - k * self.params.nb).min(self.params.nb)
    }
}

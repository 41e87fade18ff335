//! The data that every step of a test needs: parameters, grid position, communicators, and device.

use std::sync::Arc;

use super::roles::SUMS_EVER;
use crate::base::params::{SplitUpdate, TestParams};
use crate::comm::Comm;
use crate::device::Device;
use crate::grid::ProcessGrid;
use crate::kernels::Engine;
use crate::matrix::Shape;

/// The settings that determine the order of messages. All ranks of the grid must use the same order, so the values are the same
/// on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Number of threads of the rank with the most threads.
    pub threads: usize,
    pub split_update: SplitUpdate,
}

impl Order {
    /// Returns true if any rank has more than one thread. In this case, the order of messages is made for ranks that factor and
    /// multiply at the same time.
    pub fn overlap(&self) -> bool {
        self.threads > 1
    }
}

/// Data of one test on one rank of its grid.
pub struct Context<'a> {
    pub params: &'a TestParams,
    pub shape: Shape,
    pub engine: Engine,
    pub order: Order,
    /// Ranks of the grid in row-major order of their positions, including the ranks with checksum columns.
    pub grid: Comm,
    /// Ranks of this process row that have columns of the matrix. A rank's number is its process column. On a rank of a checksum
    /// column, the communicator contains only this rank.
    pub row: Comm,
    /// All ranks of this process row; the ranks of checksum columns are last. `None` if the test has no checksum columns.
    wide: Option<Comm>,
    /// Ranks of this process column. A rank's number is its process row.
    pub column: Comm,
    /// Number that identifies this rank for injected faults.
    pub place: usize,
    /// Device whose memory contains the local matrix. `None` if the local matrix is in the processor's memory. Either all ranks
    /// have a device or none.
    pub device: Option<Arc<dyn Device>>,
}

/// A position in the grid, or in a checksum column past the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridPlace {
    pub row: usize,
    /// Process column. Numbers from Q on are checksum columns.
    pub col: usize,
    pub place: usize,
}

impl<'a> Context<'a> {
    /// Makes the communicators of the grid of `params` from `world`. `position` is this rank's grid position, or `None` if the
    /// rank has no position.
    ///
    /// All ranks of `world` call this together. Ranks without a position get `None`.
    pub fn new(
        world: &Comm,
        params: &'a TestParams,
        engine: Engine,
        order: Order,
        position: Option<(usize, usize)>,
    ) -> Option<Self> {
        let grid = ProcessGrid::of(params);
        let grid_place =
            position.map(|(row, col)| GridPlace { row, col, place: grid.rank(row, col) });
        Self::placed(world, params, engine, order, grid_place, 0)
    }

    /// Makes a context as [`Context::new`] does, for a test with `sums` checksum columns past the grid. `grid_place` is this
    /// rank's position in the grid or in a checksum column, or `None` if the rank has no position.
    pub fn placed(
        world: &Comm,
        params: &'a TestParams,
        engine: Engine,
        order: Order,
        grid_place: Option<GridPlace>,
        sums: usize,
    ) -> Option<Self> {
        let key = grid_place
            .map_or(0, |grid_place| grid_place.row * (params.q + SUMS_EVER) + grid_place.col);
        let grid = world.split(grid_place.map(|_| 0), key);
        let (grid, GridPlace { row, col, place }) = grid.zip(grid_place)?;
        let alone = params.p * (col + 1).saturating_sub(params.q);
        let along_row = grid.split(Some(row + alone), col).expect("every rank has a row");
        let wide = (sums > 0).then(|| grid.split(Some(row), col).expect("every rank has a row"));
        let along_column = grid.split(Some(col), row).expect("every rank of the grid has a column");
        Some(Self {
            params,
            shape: Shape::new(params, row, col),
            engine,
            order,
            grid,
            row: along_row,
            wide,
            column: along_column,
            place,
            device: None,
        })
    }

    /// Returns true if ranks may factor and multiply at the same time: if any rank has more than one thread, or if ranks have
    /// devices. The order of messages depends on the result.
    pub fn overlaps(&self) -> bool {
        self.order.overlap() || self.device.is_some()
    }

    /// Returns the communicator along which panels are broadcast.
    pub fn along(&self) -> &Comm {
        self.wide.as_ref().unwrap_or(&self.row)
    }

    /// Returns whether the test has checksum columns.
    pub fn has_sums(&self) -> bool {
        self.wide.is_some()
    }

    /// Returns the grid position that the mapping assigns to rank `rank` of the launcher. Returns `None` if the rank has no
    /// position.
    pub fn position_of(params: &TestParams, rank: usize) -> Option<(usize, usize)> {
        ProcessGrid::of(params).coordinates(rank)
    }

    /// Number of columns in panel `k`: `nb`, or fewer in the last panel.
    pub fn width(&self, k: usize) -> usize {
        (self.params.n - k * self.params.nb).min(self.params.nb)
    }
}

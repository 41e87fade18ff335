//! The data that every step of one test needs: parameters, grid position, communicators, device.

use std::sync::Arc;

use super::roles::SUMS_EVER;
use crate::base::params::{SplitUpdate, TestParams};
use crate::comm::Comm;
use crate::device::Device;
use crate::grid::ProcessGrid;
use crate::kernels::Engine;
use crate::matrix::Shape;

/// The settings that determine the order of messages. All ranks of the grid must use the same order, so these values are agreed
/// on by all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Maximum number of threads over all ranks.
    pub threads: usize,
    pub split_update: SplitUpdate,
}

impl Order {
    /// Returns whether messages are ordered for ranks that factor and multiply at the same time.
    pub fn overlap(&self) -> bool {
        self.threads > 1
    }
}

/// Test, as seen by one rank of its grid.
pub struct Context<'a> {
    pub params: &'a TestParams,
    pub shape: Shape,
    pub engine: Engine,
    pub order: Order,
    /// Ranks of the grid in row-major order of their positions, including the ranks with checksum columns.
    pub grid: Comm,
    /// Ranks of this process row that have columns of the matrix; a rank's number is its process column. On a rank with checksum
    /// columns, the communicator contains that rank alone.
    pub row: Comm,
    /// Ranks of this process row, the ranks with checksum columns last. `None` if the test has no checksum columns.
    wide: Option<Comm>,
    /// Ranks of this process column; a rank's number is its process row.
    pub column: Comm,
    /// Number by which injected faults address this rank.
    pub place: usize,
    /// Device whose memory has the local matrix; `None` if that is in the processor's memory. Either all ranks have one or none.
    pub device: Option<Arc<dyn Device>>,
}

/// A position in the grid, or in a process column of checksums to the right of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridPlace {
    pub row: usize,
    /// Process column. Numbers from Q on stand for checksum columns.
    pub col: usize,
    pub place: usize,
}

impl<'a> Context<'a> {
    /// Splits `world` into the grid of `params`. `position` is this rank's grid position, if it has one.
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

    /// Splits `world` as [`Context::new`] does, for a test with `sums` process columns of checksums beyond the grid.
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

    /// Returns whether messages are ordered for ranks that factor and multiply at the same time: with threads, or with a device.
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

    /// Returns the grid position that the mapping gives to a rank of the launcher.
    pub fn position_of(params: &TestParams, rank: usize) -> Option<(usize, usize)> {
        ProcessGrid::of(params).coordinates(rank)
    }

    /// Number of columns in panel `k`: `nb`, or fewer in the last panel.
    pub fn width(&self, k: usize) -> usize {
        (self.params.n - k * self.params.nb).min(self.params.nb)
    }
}

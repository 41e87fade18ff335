//! A section: columns of the trailing submatrix that are updated together.

use std::ops::Range;

use super::context::Context;
use crate::base::threads::Shareable;
use crate::kernels::UpperBlock;

/// Columns of the local matrix that are updated with a panel, and the buffer for their part of U.
#[derive(Clone)]
pub struct Section {
    /// Address of the whole local matrix.
    pub a: Shareable<f64>,
    pub cols: Range<usize>,
    /// Upper block for U in the columns `cols`.
    pub upper: UpperBlock,
    /// Number of columns by which `Swap::Mix` chooses the algorithm of the row exchange. If an update is split in halves, the
    /// number covers both halves.
    pub wide: usize,
}

impl Section {
    /// Makes a section of the columns `cols` of `a`, the whole local matrix. The section is for an update with a panel of `width`
    /// columns. `u` is memory for U in the columns `cols`.
    pub fn new(
        context: &Context,
        width: usize,
        a: *mut f64,
        cols: Range<usize>,
        u: *mut f64,
    ) -> Self {
        let wide = cols.len();
        let upper = UpperBlock { engine: context.engine, k: width, cols: wide, data: u };
        Self { a: Shareable::new(a), cols, upper, wide }
    }
}

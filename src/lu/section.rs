//! A section: columns of the trailing submatrix that are exchanged, solved and multiplied together.

use std::ops::Range;

use super::context::Context;
use crate::base::threads::Shareable;
use crate::kernels::UpperBlock;

/// Columns of the local matrix that are updated with a panel, and the buffer for their rows of U.
#[derive(Clone)]
pub struct Section {
    /// The whole local matrix.
    pub a: Shareable<f64>,
    pub cols: Range<usize>,
    /// Upper block with as many columns as `cols`.
    pub upper: UpperBlock,
    /// Number of columns that decides the algorithm of the row exchange, if `Swap::Mix` leaves that to the number of columns.
    pub wide: usize,
}

impl Section {
    /// Makes a section of `a`, the whole local matrix. `u` is large enough for its columns and a panel of `width`.
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

//! Copies of a panel: from A to the panel's work array W, and from W to the packed block L.

use super::rows::Cuts;
use crate::base::threads::{PanelThreads, Shareable};
use crate::kernels::{Columns, Engine, Matrix, ask_for};

/// Packs L into `out`, in the layout of the engine's left operand. L is the first `width` columns of the panel's work array W, in
/// the rows from `first` on. Each panel thread packs its own rows.
pub(super) unsafe fn lay_lower(
    engine: Engine,
    panel_threads: &mut PanelThreads,
    cuts: Cuts,
    Columns { w, ld }: Columns,
    first: usize,
    width: usize,
    out: *mut f64,
) {
    let rows = cuts.end - first;
    let step = engine.row_step();
    let out = Shareable::new(out);
    // First row of a part, counted from `first` and rounded down to whole panels of the packed block.
    let start = |part: usize| match part {
        _ if part == cuts.parts => rows,
        _ => cuts.start(part).saturating_sub(first) / step * step,
    };
    panel_threads.run(cuts.parts, move |part| {
        let (start, end) = (start(part), start(part + 1));
        // SAFETY: each part has its own rows, and its own whole panels of the packed block.
        unsafe {
            let (from, to) = (w.get().add(first + start), out.get().add(start * width));
            engine.lay_lower(end - start, width, Matrix::new(from, ld), to);
        }
    });
}

/// Copies a row-major `rows x width` part of A to column-major W.
pub(super) unsafe fn transpose_in(
    a: *const f64,
    lda: usize,
    rows: usize,
    width: usize,
    w: *mut f64,
    ldw: usize,
) {
    const UNIT: usize = 8;
    /// Number of rows to prefetch ahead. The hardware prefetcher cannot predict the next row, because a panel has too few
    /// columns.
    const AHEAD: usize = UNIT;
    // SAFETY: ensured by the caller.
    unsafe {
        let mut i = 0;
        while i + UNIT <= rows {
            let from = a.add(i * lda);
            for j in 0..width {
                if j % UNIT == 0 {
                    for r in AHEAD..AHEAD + UNIT {
                        ask_for(from.wrapping_add(r * lda + j), 1);
                    }
                }
                let to = w.add(j * ldw + i);
                ask_for(to.wrapping_add(AHEAD), 1);
                for r in 0..UNIT {
                    *to.add(r) = *from.add(r * lda + j);
                }
            }
            i += UNIT;
        }
        for i in i..rows {
            for j in 0..width {
                *w.add(j * ldw + i) = *a.add(i * lda + j);
            }
        }
    }
}

//! Lengths of a rank's work arrays. `need` computes them; the steps of the solver allocate by them.

/// Lengths of a rank's work arrays, in doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Number of panels that exist at the same time, each with a message and a triangle.
    pub slots: usize,
    pub message: usize,
    pub triangle: usize,
    /// Copy of a message in device memory.
    pub copy: usize,
    /// Work array W, in which panels are factored.
    pub panel: usize,
    /// Number of packing buffers for the engine within a panel: one per thread.
    pub scratches: usize,
    pub scratch: usize,
    /// A message of the pivot search; there are two.
    pub candidate: usize,
    /// Results of the panel threads' pivot searches in their parts of W.
    pub found: usize,
    /// An array of rows in transit between process rows: for the columns of the next panel, and for the remaining columns. There
    /// are three arrays of each.
    pub swap_ahead: usize,
    pub swap_rest: usize,
    /// U for the columns of the next panel, and for the remaining columns, which may be split in halves.
    pub ahead: usize,
    pub rest: usize,
    /// Back substitution, x included, while the work arrays still exist.
    pub solve: usize,
    /// Check of x, x included, after the work arrays are freed.
    pub verify: usize,
}

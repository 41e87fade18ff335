//! Lengths of a rank's work arrays. `need` computes the lengths, and the solver allocates arrays of these lengths.

/// Lengths of a rank's work arrays, in doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Number of slots for panels. Each slot has a message and a triangle.
    pub slots: usize,
    pub message: usize,
    pub triangle: usize,
    /// Copy of a message in device memory; zero without a device.
    pub copy: usize,
    /// Work array W, in which panels are factored.
    pub panel: usize,
    /// Work array W in device memory; zero without a device.
    pub there: usize,
    /// Array through which a panel factorisation exchanges data with the device; zero without a device.
    pub staging: usize,
    /// Number of packing buffers for multiplications within a panel: one per thread.
    pub scratches: usize,
    pub scratch: usize,
    /// Message of the search for pivots. There are two such buffers.
    pub candidate: usize,
    /// Results of the panel threads' searches for a pivot.
    pub found: usize,
    /// Array of rows in transit between process rows, for the columns of the next panel. There are three such arrays.
    pub swap_ahead: usize,
    /// Array of rows in transit between process rows, for all columns other than the columns of the next panel. There are three
    /// such arrays.
    pub swap_rest: usize,
    /// Memory for U in the columns of the next panel.
    pub ahead: usize,
    /// Memory for U in all columns other than the columns of the next panel. An update of these columns may be split in halves.
    pub rest: usize,
    /// Arrays of back substitution, including x. The other work arrays still exist during back substitution.
    pub solve: usize,
    /// Arrays of the check of x, including x. The other work arrays are freed before the check.
    pub verify: usize,
}

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
    /// W in device memory, and room for the exchange with the device; zero without a device.
    pub there: usize,
    pub staging: usize,
    /// Number of packing buffers for multiplications within a panel: one per thread.
    pub scratches: usize,
    pub scratch: usize,
    /// Message of the search for pivots. There are two such buffers.
    pub candidate: usize,
    /// Results of the panel threads' searches for a pivot.
    pub found: usize,
    /// Array of rows in transit between process rows: for the columns of the next panel, and for the remaining columns. There are
    /// three arrays of each length.
    pub swap_ahead: usize,
    pub swap_rest: usize,
    /// U for the columns of the next panel, and for the remaining columns, which may be split in halves.
    pub ahead: usize,
    pub rest: usize,
    /// Arrays of back substitution, including x. The work arrays still exist at this time.
    pub solve: usize,
    /// Arrays of the check of x, including x. The work arrays are freed before.
    pub verify: usize,
}

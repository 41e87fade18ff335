//! Element types of messages, and operators of a reduction.

use mpi::ffi;

use super::library::Content;

/// Type of the elements of a message.
pub trait Wire: Copy + Default + 'static {
    fn datatype() -> ffi::MPI_Datatype;

    /// Combines two elements as a reduction with `op` does.
    fn combined(op: Reduce, one: Self, other: Self) -> Self;
}

/// Returns the content of a message of `count` elements.
pub(super) fn content<T: Wire>(count: usize) -> Content {
    Content { count, each: size_of::<T>(), datatype: T::datatype() }
}

impl Wire for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_DOUBLE }
    }

    fn combined(op: Reduce, one: Self, other: Self) -> Self {
        match op {
            Reduce::Sum => one + other,
            Reduce::Max => one.max(other),
            Reduce::Min => one.min(other),
            Reduce::Xor => unreachable!("MPI has no XOR of doubles"),
        }
    }
}

impl Wire for u64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_UINT64_T }
    }

    fn combined(op: Reduce, one: Self, other: Self) -> Self {
        op.of_integers(one, other)
    }
}

impl Wire for u8 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library.
        unsafe { ffi::RSMPI_UINT8_T }
    }

    fn combined(op: Reduce, one: Self, other: Self) -> Self {
        op.of_integers(one, other)
    }
}

/// Operators of a reduction.
///
/// `Max` and `Min` of `u64` are correct only below 2^63: MPICH 4.0 compares `u64` values as signed numbers.
#[derive(Clone, Copy, Debug)]
pub enum Reduce {
    Sum,
    Max,
    Min,
    Xor,
}

impl Reduce {
    fn of_integers<T>(self, one: T, other: T) -> T
    where
        T: Ord + std::ops::Add<Output = T> + std::ops::BitXor<Output = T>,
    {
        match self {
            Reduce::Sum => one + other,
            Reduce::Max => one.max(other),
            Reduce::Min => one.min(other),
            Reduce::Xor => one ^ other,
        }
    }

    pub(super) fn op(self) -> ffi::MPI_Op {
        // SAFETY: constants of the library.
        unsafe {
            match self {
                Reduce::Sum => ffi::RSMPI_SUM,
                Reduce::Max => ffi::RSMPI_MAX,
                Reduce::Min => ffi::RSMPI_MIN,
                Reduce::Xor => ffi::RSMPI_BXOR,
            }
        }
    }
}

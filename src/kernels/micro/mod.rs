//! Multiplication kernels: one for each instruction set and size of tile. [`super::packed`] calls a kernel through its
//! descriptor, a [`Kernel`].
//!
//! A tile has a *vector* side, whose elements are contiguous in C, and a *scalar* side, whose elements are a leading dimension
//! apart. For the trailing update, C is row-major, so the vector side runs along columns and belongs to U. Within a panel, C is
//! column-major, so the vector side runs along rows and belongs to L.
//!
//! Each element of C becomes `c - v[0] s[0] - v[1] s[1] - ...`, where each step is one fused multiply-add. The result does not
//! depend on the kernel, on the division into tiles, tasks or threads, or on the length of a chunk of k. So all kernels, on all
//! processors, give the same bits.

use std::fmt;

use super::operands::{Matrix, Size};

mod lanes;
mod portable;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Instruction set of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    Avx512,
    Avx2,
    Neon,
    Portable,
}

impl Isa {
    /// Returns whether this processor has this instruction set and fused multiply-add instructions. `Portable` needs only fused
    /// multiply-add instructions, which are tested on x86-64 and assumed on other architectures.
    pub fn runs_here(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            // Without the instruction, each fused multiply-add takes some hundred instructions.
            #[cfg(target_arch = "x86_64")]
            Isa::Portable => is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Portable => true,
            #[allow(unreachable_patterns)] // instruction sets of other processors
            _ => false,
        }
    }
}

/// Names of all kernels of all architectures, in order of preference. Ranks agree on a kernel by its number in this list, so
/// the list must be the same on all ranks.
pub const NAMES: &[(&str, Isa)] = &[
    ("avx512-24x8", Isa::Avx512),
    ("avx512-32x6", Isa::Avx512),
    ("avx512-16x14", Isa::Avx512),
    ("avx512-12x4", Isa::Avx512),
    ("avx512-8x6", Isa::Avx512),
    ("avx2-12x4", Isa::Avx2),
    ("avx2-8x6", Isa::Avx2),
    ("neon-8x6", Isa::Neon),
    ("neon-12x4", Isa::Neon),
    ("portable-4x4", Isa::Portable),
];

/// Multiplication kernel. Its functions require a processor with the kernel's instruction set, and valid ranges of memory.
pub struct Kernel {
    pub name: &'static str,
    pub isa: Isa,
    /// Number of elements on the vector side of a tile.
    pub vector: usize,
    /// Number of elements on the scalar side of a tile.
    pub scalar: usize,
    /// Subtracts a product from a whole tile of C.
    pub tile: Tile,
    /// Subtracts a product from the first elements of a tile's vector side.
    pub narrow: Narrow,
    /// Solves the diagonal tile of a triangular solve.
    pub triangle: Triangle,
    /// Multiplication within a panel.
    pub panel: InPanel,
}

/// Multiplication within a panel.
pub struct InPanel {
    /// Number of rows of a tile within a panel.
    pub rows: usize,
    /// Maximum number of columns of C that are computed at a time.
    pub cols: usize,
    /// `(size, a, b, c)`: computes C(m x n) -= A(m x k) B(k x n). C is column-major, and B(p, j) is at `b + p * n + j`.
    pub multiply: unsafe fn(Size, Slabs, *const f64, Matrix<*mut f64>),
}

/// Addresses that will be used after the current tile. A kernel may prefetch from these addresses. The addresses need not be
/// valid.
#[derive(Clone, Copy)]
pub struct Soon {
    /// Start of the next tile of C.
    pub tile: *const f64,
    /// Start of the part of V's next panel that the current tile should prefetch.
    pub vector: *const f64,
    /// Number of cache lines to prefetch from `vector` on.
    pub lines: usize,
}

/// `(k, v, s, c, ldc, soon)`: computes C(i, j) -= sum over p < k of V(p, i) S(p, j). V(p, i) is at `v + p * vector + i`, and S(p,
/// j) is at `s + p * scalar + j`. C(i, j) is at `c + j * ldc + i`.
pub type Tile = unsafe fn(usize, *const f64, *const f64, *mut f64, usize, Soon);

/// `(width, k, v, s, c, ldc)`: computes only the first `width` elements of the vector side of a [`Tile`], rounded up to whole
/// registers. For a small `width`, this takes less time than [`Tile`].
pub type Narrow = unsafe fn(usize, usize, *const f64, *const f64, *mut f64, usize);

/// `(n, l, u)`: solves with the unit lower triangle of order `n`, at most `scalar`, for `vector` columns. L(r, p) is at `l + p *
/// scalar + r`, and U(r, j) is at `u + r * vector + j`. L is read only below the diagonal.
pub type Triangle = unsafe fn(usize, *const f64, *mut f64);

/// The operand A of [`InPanel::multiply`], divided into slabs of [`InPanel::rows`] rows. A(i, p) is at `at + i / rows * slab + i
/// % rows + p * stride`. So A may be stored by columns or slab by slab.
#[derive(Clone, Copy)]
pub struct Slabs {
    pub at: *const f64,
    pub slab: usize,
    pub stride: usize,
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kernel {}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns the kernels that are compiled for this architecture, even if this processor cannot run them. Without a measurement,
/// the first kernel of an instruction set is chosen.
pub fn all() -> impl Iterator<Item = &'static Kernel> {
    #[cfg(target_arch = "x86_64")]
    let made = x86::KERNELS;
    #[cfg(target_arch = "aarch64")]
    let made = neon::KERNELS;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let made: &[Kernel] = &[];
    made.iter().chain(portable::KERNELS)
}

/// Number of elements that is a multiple of the vector side of every kernel on every processor.
pub const COMMON_UNIT: usize = 96;

/// Returns the kernels that this processor can run, in order of preference.
pub fn runnable() -> impl Iterator<Item = &'static Kernel> {
    all().filter(|kernel| kernel.isa.runs_here())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_unit_is_whole_vectors_of_any_kernel() {
        for kernel in all() {
            assert!(COMMON_UNIT.is_multiple_of(kernel.vector), "{}", kernel.name);
        }
    }

    #[test]
    fn every_kernel_made_here_is_among_the_names_in_their_order() {
        let mut left = NAMES.iter();
        for kernel in all() {
            assert!(left.any(|&name| name == (kernel.name, kernel.isa)), "{}", kernel.name);
        }
    }
}

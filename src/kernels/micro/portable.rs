//! Kernel for every processor, in plain Rust that the compiler may vectorise.
//!
//! If the processor has no fused multiply-add instruction, each fused multiply-add is computed in software. Software gives the
//! same bits, but is slow. So no engine uses this kernel on an x86-64 processor without the instruction ([`Isa::runs_here`]).

use super::lanes::{self, Lanes};
use super::{InPanel, Isa, Kernel, Slabs, Soon};
use crate::kernels::operands::{Matrix, Size};

pub const KERNELS: &[Kernel] = &[Kernel {
    name: "portable-4x4",
    isa: Isa::Portable,
    vector: 4,
    scalar: 4,
    tile,
    narrow,
    triangle,
    panel: InPanel { rows: 4, cols: 4, multiply: in_panel },
}];

struct Plain;

impl Lanes for Plain {
    type Register = [f64; 4];
    const LEN: usize = 4;
    #[inline(always)]
    unsafe fn load(from: *const f64) -> [f64; 4] {
        // SAFETY: ensured by the caller.
        unsafe { from.cast::<[f64; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f64, value: [f64; 4]) {
        // SAFETY: ensured by the caller.
        unsafe { to.cast::<[f64; 4]>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn splat(value: f64) -> [f64; 4] {
        [value; 4]
    }
    #[inline(always)]
    unsafe fn subtract_product(c: [f64; 4], a: [f64; 4], b: [f64; 4]) -> [f64; 4] {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
}

#[inline(always)]
unsafe fn tile_anywhere(k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize) {
    // SAFETY: ensured by the caller.
    unsafe {
        let (v, s, c) = (Matrix::new(v, 4), Matrix::new(s, 4), Matrix::new(c, ldc));
        lanes::multiply::<Plain, 1, 4>(k, v, s, c, None);
    }
}

/// Computes a tile with fused multiply-add instructions. Not every processor of the architecture has these instructions, and some
/// processors with these instructions (AMD's Piledriver) have no AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
unsafe fn tile_fused(k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize) {
    // SAFETY: ensured by the caller.
    unsafe { tile_anywhere(k, v, s, c, ldc) }
}

unsafe fn tile(k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize, _: Soon) {
    // SAFETY: ensured by the caller. The processor has the instructions for which the copy was compiled.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if Isa::Portable.runs_here() {
            return tile_fused(k, v, s, c, ldc);
        }
        tile_anywhere(k, v, s, c, ldc);
    }
}

/// Computes a whole tile, whatever the width is, because a tile is only one register wide.
unsafe fn narrow(_: usize, k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize) {
    // SAFETY: ensured by the caller.
    unsafe { tile(k, v, s, c, ldc, Soon { tile: c, vector: v, lines: 0 }) }
}

#[inline(always)]
unsafe fn triangle_anywhere(n: usize, l: *const f64, u: *mut f64) {
    // SAFETY: ensured by the caller.
    unsafe { lanes::triangle::<Plain, 1>(n, 4, l, u) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
unsafe fn triangle_fused(n: usize, l: *const f64, u: *mut f64) {
    // SAFETY: ensured by the caller.
    unsafe { triangle_anywhere(n, l, u) }
}

unsafe fn triangle(n: usize, l: *const f64, u: *mut f64) {
    // SAFETY: as for `tile`.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if Isa::Portable.runs_here() {
            return triangle_fused(n, l, u);
        }
        triangle_anywhere(n, l, u);
    }
}

lanes::in_panel_function!(
    #[inline(always)]
    in_panel_anywhere, Plain, 1, [1 2 3 4]);

#[cfg(target_arch = "x86_64")]
lanes::in_panel_function!(
    #[target_feature(enable = "fma")]
    in_panel_fused, Plain, 1, [1 2 3 4]);

unsafe fn in_panel(size: Size, a: Slabs, b: *const f64, c: Matrix<*mut f64>) {
    // SAFETY: as for `tile`.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if Isa::Portable.runs_here() {
            return in_panel_fused(size, a, b, c);
        }
        in_panel_anywhere(size, a, b, c);
    }
}

//! Kernel for every processor, in plain Rust that the compiler may vectorise.
//!
//! On x86-64 the kernel needs fused multiply-add instructions ([`Isa::runs_here`]), as in software each would take some hundred
//! instructions. Some processors with these instructions (AMD's Piledriver) have no AVX2.

use super::lanes::{self, Lanes};
use super::{InPanel, Isa, Kernel, Soon};
use crate::kernels::operands::Matrix;

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

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "fma"))]
unsafe fn tile(k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize, _: Soon) {
    // SAFETY: ensured by the caller.
    unsafe {
        let (v, s, c) = (Matrix::new(v, 4), Matrix::new(s, 4), Matrix::new(c, ldc));
        lanes::multiply::<Plain, 1, 4>(k, v, s, c, None);
    }
}

/// Computes a whole tile, whatever the width is, because a tile is only one register wide.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "fma"))]
unsafe fn narrow(_: usize, k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize) {
    // SAFETY: ensured by the caller.
    unsafe { tile(k, v, s, c, ldc, Soon { tile: c, vector: v, lines: 0 }) }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "fma"))]
unsafe fn triangle(n: usize, l: *const f64, u: *mut f64) {
    // SAFETY: ensured by the caller.
    unsafe { lanes::triangle::<Plain, 1>(n, 4, l, u) }
}

lanes::in_panel_function!(
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "fma"))]
    in_panel, Plain, 1, [1 2 3 4]);

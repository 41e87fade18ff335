//! Kernels for 64-bit ARM: two doubles per register, thirty-two registers.

use std::arch::aarch64::*;

use super::lanes::{self, Lanes};
use super::{Isa, Kernel, Soon};
use crate::kernels::operands::Matrix;

pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "neon-8x6",
        isa: Isa::Neon,
        vector: 8,
        scalar: 6,
        tile: tile_8x6,
        narrow: narrow_8x6,
        triangle: triangle_8x6,
        panel_rows: 12,
        panel_cols: 4,
        in_panel,
    },
    Kernel {
        name: "neon-12x4",
        isa: Isa::Neon,
        vector: 12,
        scalar: 4,
        tile: tile_12x4,
        narrow: narrow_12x4,
        triangle: triangle_12x4,
        panel_rows: 12,
        panel_cols: 4,
        in_panel,
    },
];

struct Neon;

impl Lanes for Neon {
    type Register = float64x2_t;
    const LEN: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const f64) -> float64x2_t {
        // SAFETY: ensured by the caller.
        unsafe { vld1q_f64(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f64, value: float64x2_t) {
        // SAFETY: ensured by the caller.
        unsafe { vst1q_f64(to, value) }
    }
    #[inline(always)]
    unsafe fn splat(value: f64) -> float64x2_t {
        // SAFETY: every such processor has the instruction.
        unsafe { vdupq_n_f64(value) }
    }
    #[inline(always)]
    unsafe fn subtract_product(c: float64x2_t, a: float64x2_t, b: float64x2_t) -> float64x2_t {
        // SAFETY: every such processor has the instruction.
        unsafe { vfmsq_f64(c, a, b) }
    }
}

macro_rules! kernel {
    ($tile:ident, $narrow:ident, $triangle:ident, $r:literal, $h:literal) => {
        unsafe fn $tile(k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize, _: Soon) {
            let (v, s, c) = (Matrix::new(v, 2 * $r), Matrix::new(s, $h), Matrix::new(c, ldc));
            // SAFETY: ensured by the caller.
            unsafe { lanes::multiply::<Neon, $r, $h>(k, v, s, c, None) }
        }

        unsafe fn $narrow(
            width: usize,
            k: usize,
            v: *const f64,
            s: *const f64,
            c: *mut f64,
            ldc: usize,
        ) {
            // SAFETY: ensured by the caller.
            unsafe { lanes::narrow::<Neon, $r, $h>(width, k, v, s, c, ldc) }
        }

        unsafe fn $triangle(n: usize, l: *const f64, u: *mut f64) {
            // SAFETY: ensured by the caller.
            unsafe { lanes::triangle::<Neon, $r>(n, $h, l, u) }
        }
    };
}

kernel!(tile_8x6, narrow_8x6, triangle_8x6, 4, 6);
kernel!(tile_12x4, narrow_12x4, triangle_12x4, 6, 4);

lanes::in_panel_function!(in_panel, Neon, 6, [1 2 3 4]);

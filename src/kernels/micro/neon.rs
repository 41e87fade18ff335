//! Kernels for 64-bit ARM, which has thirty-two registers of two doubles.

use std::arch::aarch64::*;

use super::lanes::{self, Lanes};
use super::{InPanel, Isa, Kernel, Soon};
use crate::kernels::operands::Matrix;

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
        // SAFETY: every 64-bit ARM processor has the instruction.
        unsafe { vdupq_n_f64(value) }
    }
    #[inline(always)]
    unsafe fn subtract_product(c: float64x2_t, a: float64x2_t, b: float64x2_t) -> float64x2_t {
        // SAFETY: every 64-bit ARM processor has the instruction.
        unsafe { vfmsq_f64(c, a, b) }
    }
}

const PANEL: InPanel = InPanel { rows: 12, cols: 4, multiply: in_panel };

macro_rules! kernel {
    ($name:literal, $r:literal, $h:literal) => {{
        unsafe fn tile(k: usize, v: *const f64, s: *const f64, c: *mut f64, ldc: usize, _: Soon) {
            let (v, s, c) = (Matrix::new(v, 2 * $r), Matrix::new(s, $h), Matrix::new(c, ldc));
            // SAFETY: ensured by the caller.
            unsafe { lanes::multiply::<Neon, $r, $h>(k, v, s, c, None) }
        }

        unsafe fn narrow(
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

        unsafe fn triangle(n: usize, l: *const f64, u: *mut f64) {
            // SAFETY: ensured by the caller.
            unsafe { lanes::triangle::<Neon, $r>(n, $h, l, u) }
        }

        let (isa, vector, scalar) = (Isa::Neon, 2 * $r, $h);
        Kernel { name: $name, isa, vector, scalar, tile, narrow, triangle, panel: PANEL }
    }};
}

pub const KERNELS: &[Kernel] = &[kernel!("neon-8x6", 4, 6), kernel!("neon-12x4", 6, 4)];

lanes::in_panel_function!(in_panel, Neon, 6, [1 2 3 4]);

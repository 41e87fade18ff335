//! The innermost loop of our own multiplication: a tile of 24 x 8 held in registers.
//!
//! The tile has a *vector* side of [`VECTOR`] elements that lie next to each other in C and a
//! *scalar* side of [`SCALAR`] elements a leading dimension apart. For the trailing update C is
//! row-major, so the vector side runs along columns and takes U; within a panel C is column-major,
//! so it runs along rows and takes L. One kernel serves both.
//!
//! Each element of C becomes `c - sum_p v[p] * s[p]`, the sum taken in the order of `p` with fused
//! multiply-adds, whatever part of a tile is at an edge. So the result does not depend on how a
//! matrix is cut into tiles, tasks or threads.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Elements on the vector side of a tile: three AVX-512 registers.
pub const VECTOR: usize = 24;
/// Elements on the scalar side of a tile.
pub const SCALAR: usize = 8;

/// Whether this processor can run the kernel.
pub fn supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// One tile: C(v, s) -= sum over p < k of V(p, v) * S(p, s).
///
/// V(p, v) is at `v + p * v_stride + v`, S(p, s) at `s + p * 8 + s`, C(v, s) at `c + s * ldc + v`.
/// Only the first `width` vector and `height` scalar elements of C are read and written; V must be
/// readable in all 24, unless `width` is short: then only those within `width`.
///
/// # Safety
/// The processor must be [`supported`] and the ranges above valid.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub unsafe fn tile(
    k: usize,
    (v, v_stride): (*const f64, usize),
    s: *const f64,
    (c, ldc): (*mut f64, usize),
    width: usize,
    height: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if width == VECTOR && height == SCALAR {
            tile_inner::<true>(k, v, v_stride, s, c, ldc, width, height);
        } else {
            tile_inner::<false>(k, v, v_stride, s, c, ldc, width, height);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn tile(
    _: usize,
    _: (*const f64, usize),
    _: *const f64,
    _: (*mut f64, usize),
    _: usize,
    _: usize,
) {
    unreachable!("the engine is never chosen where the kernel is not supported")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[allow(clippy::too_many_arguments)] // the price of a kernel that is inlined twice
#[inline]
unsafe fn tile_inner<const FULL: bool>(
    k: usize,
    v: *const f64,
    v_stride: usize,
    s: *const f64,
    c: *mut f64,
    ldc: usize,
    width: usize,
    height: usize,
) {
    let lanes = |r: usize| -> __mmask8 {
        let left = width.saturating_sub(8 * r).min(8);
        ((1u32 << left) - 1) as __mmask8
    };
    let masks = [lanes(0), lanes(1), lanes(2)];
    let mut sum = [[_mm512_setzero_pd(); 3]; SCALAR];
    let mut v = v;
    let mut s = s;
    let mut left = k;
    // SAFETY: V, S and C are within the ranges the caller vouches for; masked lanes are not read.
    unsafe {
        // C comes from memory while the products come from cache: ask for one of its rows at a
        // time, since asking for all at once would hold up the loads of the products.
        for row in 0..SCALAR {
            let line = c.add(row.min(height - 1) * ldc).cast::<i8>();
            _mm_prefetch::<_MM_HINT_ET0>(line);
            _mm_prefetch::<_MM_HINT_ET0>(line.wrapping_add(64));
            _mm_prefetch::<_MM_HINT_ET0>(line.wrapping_add(128));
            let steps = if row == SCALAR - 1 { left } else { k / SCALAR };
            left -= steps;
            for _ in 0..steps {
                let (a, b, d) = if FULL {
                    (_mm512_loadu_pd(v), _mm512_loadu_pd(v.add(8)), _mm512_loadu_pd(v.add(16)))
                } else {
                    (
                        _mm512_maskz_loadu_pd(masks[0], v),
                        _mm512_maskz_loadu_pd(masks[1], v.wrapping_add(8)),
                        _mm512_maskz_loadu_pd(masks[2], v.wrapping_add(16)),
                    )
                };
                for (r, sum) in sum.iter_mut().enumerate() {
                    let x = _mm512_set1_pd(*s.add(r));
                    sum[0] = _mm512_fmadd_pd(a, x, sum[0]);
                    sum[1] = _mm512_fmadd_pd(b, x, sum[1]);
                    sum[2] = _mm512_fmadd_pd(d, x, sum[2]);
                }
                v = v.wrapping_add(v_stride);
                s = s.add(SCALAR);
            }
        }
        if FULL {
            for (r, sum) in sum.iter().enumerate() {
                for (i, sum) in sum.iter().enumerate() {
                    let at = c.add(r * ldc + 8 * i);
                    _mm512_storeu_pd(at, _mm512_sub_pd(_mm512_loadu_pd(at), *sum));
                }
            }
        } else {
            for (r, sum) in sum.iter().enumerate().take(height) {
                for (i, sum) in sum.iter().enumerate() {
                    let at = c.wrapping_add(r * ldc + 8 * i);
                    let old = _mm512_maskz_loadu_pd(masks[i], at);
                    _mm512_mask_storeu_pd(at, masks[i], _mm512_sub_pd(old, *sum));
                }
            }
        }
    }
}

/// Solves the 8 x 8 unit lower triangle `l` for the 24 columns at `u`, row by row.
///
/// L(r, p) is at `l + p * 8 + r`, U(r, v) at `u + r * 24 + v`.
///
/// # Safety
/// The processor must be [`supported`] and the ranges above valid.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub unsafe fn solve_tile(l: *const f64, u: *mut f64) {
    // SAFETY: passed on from the caller.
    unsafe {
        for i in 0..3 {
            let mut rows = [_mm512_setzero_pd(); SCALAR];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_pd(u.add(r * VECTOR + 8 * i));
            }
            for p in 0..SCALAR {
                for r in p + 1..SCALAR {
                    let x = _mm512_set1_pd(*l.add(p * SCALAR + r));
                    rows[r] = _mm512_fnmadd_pd(rows[p], x, rows[r]);
                }
            }
            for (r, row) in rows.iter().enumerate() {
                _mm512_storeu_pd(u.add(r * VECTOR + 8 * i), *row);
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn solve_tile(_: *const f64, _: *mut f64) {
    unreachable!("the engine is never chosen where the kernel is not supported")
}

//! Code that the kernels have in common, generic over the width of registers.
//!
//! All functions are inlined into functions that are compiled for an instruction set. Compiled without that instruction set,
//! they would be slow.

use super::Slabs;
use crate::kernels::cache::ask_for;
use crate::kernels::operands::Matrix;

/// Operations on a register of several doubles, for one instruction set.
pub trait Lanes {
    type Register: Copy;
    /// Number of doubles in a register.
    const LEN: usize;
    /// # Safety
    /// The address is readable, and the processor has the instructions.
    unsafe fn load(from: *const f64) -> Self::Register;
    /// # Safety
    /// The address is writable, and the processor has the instructions.
    unsafe fn store(to: *mut f64, value: Self::Register);
    /// # Safety
    /// The processor has the instructions.
    unsafe fn splat(value: f64) -> Self::Register;
    /// Returns c - a b in each lane, rounded once.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn subtract_product(
        c: Self::Register,
        a: Self::Register,
        b: Self::Register,
    ) -> Self::Register;
}

/// Computes C(i, j) -= sum over p < k of V(p, i) S(p, j) for one tile of C. Index i runs along the vector side, which has R
/// registers. Index j runs along the scalar side, which has H elements. V and S are stored by rows.
///
/// `next` is the address of a later tile of C, whose elements are prefetched. The address need not be valid.
///
/// # Safety
/// The ranges are valid and the processor has the instructions.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // registers are indexed by number
pub unsafe fn multiply<L: Lanes, const R: usize, const H: usize>(
    k: usize,
    mut v: Matrix<*const f64>,
    mut s: Matrix<*const f64>,
    c: Matrix<*mut f64>,
    next: Option<*const f64>,
) {
    // SAFETY: ensured by the caller.
    unsafe {
        let mut sum = [[L::splat(0.0); R]; H];
        for h in 0..H {
            for r in 0..R {
                sum[h][r] = L::load(c.at.add(h * c.ld + r * L::LEN));
            }
        }
        for p in 0..k {
            let mut a = [L::splat(0.0); R];
            for r in 0..R {
                a[r] = L::load(v.at.add(r * L::LEN));
            }
            // Only one row is prefetched in each step, because a core has few buffers for lines in transit.
            if let Some(next) = next.filter(|_| p < H) {
                ask_for(next.wrapping_add(p * c.ld), R * L::LEN);
            }
            for h in 0..H {
                let b = L::splat(*s.at.add(h));
                for r in 0..R {
                    sum[h][r] = L::subtract_product(sum[h][r], a[r], b);
                }
            }
            v.at = v.at.wrapping_add(v.ld);
            s.at = s.at.wrapping_add(s.ld);
        }
        for h in 0..H {
            for r in 0..R {
                L::store(c.at.add(h * c.ld + r * L::LEN), sum[h][r]);
            }
        }
    }
}

/// Implements [`super::Kernel::narrow`] for tiles whose vector side has R registers and whose scalar side has H elements.
///
/// # Safety
/// The ranges are valid and the processor has the instructions.
#[inline(always)]
pub unsafe fn narrow<L: Lanes, const R: usize, const H: usize>(
    width: usize,
    k: usize,
    v: *const f64,
    s: *const f64,
    c: *mut f64,
    ldc: usize,
) {
    let (v, s, c) = (Matrix::new(v, R * L::LEN), Matrix::new(s, H), Matrix::new(c, ldc));
    // SAFETY: ensured by the caller. No more registers are used than a tile has.
    unsafe {
        match width.div_ceil(L::LEN).min(R) {
            1 => multiply::<L, 1, H>(k, v, s, c, None),
            2 => multiply::<L, 2, H>(k, v, s, c, None),
            3 => multiply::<L, 3, H>(k, v, s, c, None),
            _ => multiply::<L, R, H>(k, v, s, c, None),
        }
    }
}

/// Implements [`super::Kernel::triangle`] for tiles whose vector side has R registers.
///
/// # Safety
/// The ranges are valid and the processor has the instructions.
#[inline(always)]
pub unsafe fn triangle<L: Lanes, const R: usize>(
    n: usize,
    scalar: usize,
    l: *const f64,
    u: *mut f64,
) {
    let width = R * L::LEN;
    // SAFETY: ensured by the caller.
    unsafe {
        // The rows above a row are subtracted from it in their order.
        for row in 1..n {
            for r in 0..R {
                let to = u.add(row * width + r * L::LEN);
                let mut sum = L::load(to);
                for p in 0..row {
                    let above = L::load(u.add(p * width + r * L::LEN));
                    sum = L::subtract_product(sum, above, L::splat(*l.add(p * scalar + row)));
                }
                L::store(to, sum);
            }
        }
    }
}

/// Implements [`super::InPanel::multiply`] for `H` columns of C, with tiles of R registers by `H` columns.
///
/// # Safety
/// The ranges are valid and the processor has the instructions.
#[inline(always)]
pub unsafe fn in_panel<L: Lanes, const R: usize, const H: usize>(
    rows: usize,
    k: usize,
    a: Slabs,
    b: *const f64,
    c: Matrix<*mut f64>,
) {
    let tall = R * L::LEN;
    let whole = rows / tall;
    let (right, ld) = (Matrix::new(b, H), c.ld);
    // Slabs are packed only if A is large. In this case C comes from memory, too, and is prefetched.
    let is_packed = a.stride == tall;
    // SAFETY: ensured by the caller.
    unsafe {
        for i in 0..whole {
            let (part, c) = (a.at.add(i * a.slab), c.at.add(i * tall));
            let next = is_packed.then(|| c.wrapping_add(tall).cast_const());
            multiply::<L, R, H>(k, Matrix::new(part, a.stride), right, Matrix::new(c, ld), next);
        }
        // The last slab may have fewer rows.
        let (part, c) = (a.at.add(whole * a.slab), c.at.add(whole * tall));
        let mut i = 0;
        while i + L::LEN <= rows % tall {
            let (left, c) = (Matrix::new(part.add(i), a.stride), Matrix::new(c.add(i), ld));
            multiply::<L, 1, H>(k, left, right, c, None);
            i += L::LEN;
        }
        for i in i..rows % tall {
            for j in 0..H {
                let at = c.add(j * ld + i);
                let mut sum = *at;
                for p in 0..k {
                    sum = (-*part.add(p * a.stride + i)).mul_add(*b.add(p * H + j), sum);
                }
                *at = sum;
            }
        }
    }
}

/// Defines the function `$name`, which can be `InPanel::multiply` of a kernel, with tiles of `$r` registers. The list has the
/// possible numbers of columns of C. The attributes select the instruction set.
macro_rules! in_panel_function {
    ($(#[$attribute:meta])* $name:ident, $lanes:ty, $r:literal, [$($h:literal)*]) => {
        $(#[$attribute])*
        unsafe fn $name(
            size: $crate::kernels::operands::Size,
            a: $crate::kernels::micro::Slabs,
            b: *const f64,
            c: $crate::kernels::operands::Matrix<*mut f64>,
        ) {
            use $crate::kernels::micro::lanes::in_panel;
            // SAFETY: ensured by the caller.
            unsafe {
                match size.n {
                    $($h => in_panel::<$lanes, $r, $h>(size.m, size.k, a, b, c),)*
                    _ => unreachable!("more columns than this kernel takes at a time"),
                }
            }
        }
    };
}

pub(super) use in_panel_function;

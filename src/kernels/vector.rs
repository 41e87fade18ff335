//! Vector loops of the panel and of back substitution, compiled for the processor that runs them.
//!
//! Each loop is written once, and compiled once for each relevant instruction set. The processor determines which of these
//! copies runs, so results on the same machine always have the same rounding.

use super::micro::Isa;

/// Number of lanes in which sums and maxima are accumulated. All compiled copies of a loop have the same number of lanes, and
/// therefore the same order of operations.
pub const LANES: usize = 8;

/// Returns a b + c. If `FUSED` is true, the result is rounded once, by a fused multiply-add instruction. Otherwise the result is
/// rounded twice: without the instruction, rounding once would take a call of the C library for each element.
#[inline(always)]
fn plus_product<const FUSED: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

macro_rules! for_this_processor {
    ($(#[$doc:meta])* pub fn $name:ident<const FUSED: bool> ($($arg:ident : $ty:ty),*) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        pub fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::extra_unused_type_parameters)] // for loops without multiplication
            fn plain<const FUSED: bool>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,fma")]
                fn wide($($arg: $ty),*) $(-> $ret)? { plain::<true>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn middle($($arg: $ty),*) $(-> $ret)? { plain::<true>($($arg),*) }
                #[target_feature(enable = "fma")]
                fn fused($($arg: $ty),*) $(-> $ret)? { plain::<true>($($arg),*) }

                // SAFETY: in all three cases, the processor has the instructions that the copy was compiled for.
                if Isa::Avx512.runs_here() {
                    unsafe { wide($($arg),*) }
                } else if Isa::Avx2.runs_here() {
                    unsafe { middle($($arg),*) }
                } else if Isa::Portable.runs_here() {
                    unsafe { fused($($arg),*) }
                } else {
                    plain::<false>($($arg),*)
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            plain::<true>($($arg),*)
        }
    };
}

for_this_processor! {
    /// Returns the largest magnitude in `x` and its first index. Comparisons with NaN are false, so NaN is returned, with index
    /// 0, only if all elements are NaN.
    pub fn max_abs<const FUSED: bool> (x: &[f64]) -> (f64, usize) {
        let mut lanes = [-1.0f64; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for (m, v) in lanes.iter_mut().zip(chunk) {
                let v = v.abs();
                *m = if v > *m { v } else { *m };
            }
        }
        let mut max = -1.0f64;
        for v in lanes.into_iter().chain(rest.iter().map(|v| v.abs())) {
            if v > max {
                max = v;
            }
        }
        if max < 0.0 {
            return (x.first().map_or(-1.0, |v| v.abs()), 0);
        }
        let mut at = 0;
        'found: {
            for chunk in chunks {
                let mut hit = false;
                for v in chunk {
                    hit |= v.abs() == max;
                }
                if hit {
                    break;
                }
                at += LANES;
            }
            for v in &x[at..] {
                if v.abs() == max {
                    break 'found;
                }
                at += 1;
            }
        }
        (max, at)
    }
}

for_this_processor! {
    /// Computes x := x * factor.
    pub fn scale<const FUSED: bool> (x: &mut [f64], factor: f64) {
        for v in x {
            *v *= factor;
        }
    }
}

for_this_processor! {
    /// Computes y := y - a x.
    pub fn subtract_scaled<const FUSED: bool> (y: &mut [f64], a: f64, x: &[f64]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = plus_product::<FUSED>(-a, *x, *y);
        }
    }
}

for_this_processor! {
    /// Computes y := y - a0 x0 - a1 x1 - a2 x2 - a3 x3, in this order.
    pub fn subtract_four<const FUSED: bool> (y: &mut [f64], a: &[f64; 4], x: &[&[f64]; 4]) {
        let n = y.len();
        let (x0, x1, x2, x3) = (&x[0][..n], &x[1][..n], &x[2][..n], &x[3][..n]);
        for i in 0..n {
            let mut v = plus_product::<FUSED>(-a[0], x0[i], y[i]);
            v = plus_product::<FUSED>(-a[1], x1[i], v);
            v = plus_product::<FUSED>(-a[2], x2[i], v);
            y[i] = plus_product::<FUSED>(-a[3], x3[i], v);
        }
    }
}

for_this_processor! {
    /// Computes B := L^-1 B for a unit lower triangle L of order `n`, at most 8. The columns of B are `ld` elements apart. L(i,
    /// p) is `l[p][i]`. Elements of L on or above the diagonal have no effect.
    pub fn solve_few<const FUSED: bool> (n: usize, l: &[[f64; LANES]; LANES], b: &mut [f64], ld: usize) {
        for column in b.chunks_mut(ld) {
            let mut x = [0.0; LANES];
            x[..n].copy_from_slice(&column[..n]);
            for (p, l) in l.iter().enumerate() {
                let known = x[p];
                // All lanes do the same operations, so that one instruction computes several lanes.
                for (i, x) in x.iter_mut().enumerate() {
                    let less = plus_product::<FUSED>(-l[i], known, *x);
                    *x = if i > p { less } else { *x };
                }
            }
            column[..n].copy_from_slice(&x[..n]);
        }
    }
}

for_this_processor! {
    /// Returns the scalar product of `x` and `y`.
    pub fn dot<const FUSED: bool> (x: &[f64], y: &[f64]) -> f64 {
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &y[..n]);
        let mut lanes = [[0.0f64; LANES]; 4];
        let (xs, x_rest) = x.as_chunks::<{ 4 * LANES }>();
        let (ys, y_rest) = y.as_chunks::<{ 4 * LANES }>();
        for (x, y) in xs.iter().zip(ys) {
            for (r, lane) in lanes.iter_mut().enumerate() {
                for (i, sum) in lane.iter_mut().enumerate() {
                    *sum = plus_product::<FUSED>(x[r * LANES + i], y[r * LANES + i], *sum);
                }
            }
        }
        let mut sum = 0.0;
        for (x, y) in x_rest.iter().zip(y_rest) {
            sum = plus_product::<FUSED>(*x, *y, sum);
        }
        #[allow(clippy::needless_range_loop)] // the lanes are added pairwise by index
        for i in 0..LANES {
            sum += (lanes[0][i] + lanes[1][i]) + (lanes[2][i] + lanes[3][i]);
        }
        sum
    }
}

/// Smallest divisor with a safe reciprocal. The reciprocal of a smaller divisor overflows.
const SAFE_RECIPROCAL: f64 = f64::MIN_POSITIVE;

/// Computes x := x / divisor. Multiplies by the reciprocal if the reciprocal does not overflow. A zero divisor leaves `x`
/// unchanged.
pub fn divide(x: &mut [f64], divisor: f64) {
    if divisor.abs() >= SAFE_RECIPROCAL {
        scale(x, 1.0 / divisor);
    } else if divisor != 0.0 {
        for v in x {
            *v /= divisor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_largest_wins_at_every_length() {
        for n in 1..70usize {
            for at in 0..n {
                let mut x: Vec<f64> = (0..n).map(|i| ((i * 37) % 11) as f64 / 20.0).collect();
                x[at] = -9.0;
                if at + 3 < n {
                    x[at + 3] = 9.0;
                }
                assert_eq!(max_abs(&x), (9.0, at), "length {n}");
            }
        }
        assert_eq!(max_abs(&[]).1, 0);
        assert_eq!(max_abs(&[0.0, 0.0]), (0.0, 0));
        assert_eq!(max_abs(&[f64::NAN, 2.0, 3.0]), (3.0, 2));
        assert!(max_abs(&[f64::NAN, f64::NAN]).0.is_nan());
    }

    #[test]
    fn sums_and_differences() {
        for n in 0..100usize {
            let x: Vec<f64> = (0..n).map(|i| (i % 7) as f64 - 3.0).collect();
            let y: Vec<f64> = (0..n).map(|i| (i % 5) as f64 - 2.0).collect();
            let want: f64 = x.iter().zip(&y).map(|(x, y)| x * y).sum();
            assert_eq!(dot(&x, &y), want);
            let mut one = y.clone();
            for a in [1.0, -2.0, 3.0, 0.5] {
                subtract_scaled(&mut one, a, &x);
            }
            let mut four = y.clone();
            subtract_four(&mut four, &[1.0, -2.0, 3.0, 0.5], &[&x, &x, &x, &x]);
            assert_eq!(one, four);
        }
        let mut x = [1e-320, 2e-320];
        divide(&mut x, 1e-320);
        assert!((x[1] - 2.0).abs() < 1e-3, "a divisor without a reciprocal: {x:?}");
        let mut y = [3.0];
        divide(&mut y, 0.0);
        assert_eq!(y, [3.0]);
    }
}

//! The random numbers of the reference HPL, bit for bit.
//!
//! The numbers form a 64-bit linear congruential sequence x -> a x + c. Any member can be computed directly, because several
//! steps combine into one step of the same form.

const A: u64 = 6364136223846793005;
const C: u64 = 1;

/// A step of the sequence, or several steps combined: x -> mul x + add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lcg {
    pub mul: u64,
    pub add: u64,
}

impl Lcg {
    /// Returns `count` steps of the sequence, combined into one step.
    pub fn jump(mut count: u64) -> Self {
        let mut total = Lcg { mul: 1, add: 0 };
        let mut step = Lcg { mul: A, add: C };
        while count > 0 {
            if count & 1 == 1 {
                total = total.then(step);
            }
            step = step.then(step);
            count >>= 1;
        }
        total
    }

    fn then(self, next: Lcg) -> Lcg {
        Lcg {
            mul: next.mul.wrapping_mul(self.mul),
            add: next.mul.wrapping_mul(self.add).wrapping_add(next.add),
        }
    }

    #[inline(always)]
    pub fn apply(self, x: u64) -> u64 {
        self.mul.wrapping_mul(x).wrapping_add(self.add)
    }
}

/// Returns the matrix element for a member of the sequence, in [-0.5, 0.5].
#[inline(always)]
pub fn element(x: u64) -> f64 {
    const SCALE: f64 = 1.0 / 18446744073709551616.0;
    0.5 - x as f64 * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_members_are_the_references() {
        let mut x = 100;
        let step = Lcg::jump(1);
        x = step.apply(x);
        assert_eq!(x, 9224323878554545557);
        let first = element(x);
        assert_eq!(
            first.to_bits(),
            (-(0x1b0d8f532d8000u64 as f64) * 2f64.powi(-52 - 15)).to_bits()
        );
        for bits in [
            0x18959b2285d2a4u64 as f64,
            0x1c65502e86d5b5u64 as f64,
            -(0x1d783dcadd4726u64 as f64),
            -(0x1d69e29ce38e5cu64 as f64),
            0x161ea60d43670fu64 as f64,
        ] {
            x = step.apply(x);
            assert_eq!(element(x).to_bits(), (bits * 2f64.powi(-52 - 2)).to_bits());
        }
    }

    proptest! {
        #[test]
        fn jumps_add_up(a in 0u64..1 << 40, b in 0u64..1 << 40, x: u64) {
            prop_assert_eq!(
                Lcg::jump(a + b).apply(x),
                Lcg::jump(b).apply(Lcg::jump(a).apply(x))
            );
        }

        #[test]
        fn a_jump_is_that_many_steps(count in 0u64..300, x: u64) {
            let one = Lcg::jump(1);
            let walked = (0..count).fold(x, |x, _| one.apply(x));
            prop_assert_eq!(Lcg::jump(count).apply(x), walked);
        }
    }
}

//! Significance of a slow node or link.
//!
//! A node is judged by the number of repeats in which it was slow, whatever the distribution of the noise. If its usual pace is
//! within the limit, each repeat is slow with a chance of a half at most. So the chance of so many is a tail of the binomial
//! distribution. Over all the tests, the sum of these chances bounds the false alarms.

/// Chance that of `of` tosses of a fair coin at least `hits` are heads.
pub fn chance(hits: usize, of: usize) -> f64 {
    if of > 1000 {
        // The single terms are too small for a number. Hoeffding's inequality bounds the chance.
        let above = hits as f64 - of as f64 / 2.0;
        return if above > 0.0 { (-2.0 * above * above / of as f64).exp() } else { 1.0 };
    }
    // The sum begins at the far end, because small terms come first.
    let mut term = 0.5f64.powi(of as i32);
    let mut sum = 0.0;
    for left in 0..=of.saturating_sub(hits) {
        if hits > of {
            break;
        }
        sum += term;
        term *= (of - left) as f64 / (left + 1) as f64;
    }
    sum.min(1.0)
}

/// Number of repeats after which a node that is slow in all of them has a chance of `each` at most.
pub fn repeats_least(each: f64) -> usize {
    (1.0 / each).log2().ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_chance_is_the_tail_of_pascals_triangle() {
        assert_eq!(chance(0, 7), 1.0);
        assert_eq!(chance(3, 3), 0.125);
        assert_eq!(chance(2, 3), 0.5);
        assert_eq!(chance(4, 3), 0.0);
        // 1 + 21 + 210 of 2^21.
        assert!((chance(19, 21) - 232.0 / 2_097_152.0).abs() < 1e-12);
        assert_eq!(repeats_least(0.01 / 48.0), 13);
        // The bound is above the exact value, and still useful.
        assert!(chance(600, 1001) > chance(600, 1000) && chance(600, 1001) < 1e-8);
        assert_eq!(chance(500, 2000), 1.0);
    }

    proptest! {
        #[test]
        fn more_slow_repeats_are_less_likely(of in 1usize..200) {
            for hits in 0..of {
                prop_assert!(chance(hits, of) >= chance(hits + 1, of));
            }
        }

        #[test]
        fn enough_repeats_can_name_and_one_fewer_cannot(tests in 1usize..1_000_000) {
            let each = 0.01 / tests as f64;
            let least = repeats_least(each);
            prop_assert!(chance(least, least) <= each);
            prop_assert!(chance(least - 1, least - 1) > each);
        }
    }
}

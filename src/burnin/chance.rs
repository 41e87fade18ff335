//! Statistical significance of a slow node or link.
//!
//! The test counts the repeats in which a node was slow, so it does not depend on the distribution of the noise. If the node's
//! median speed is within the limit, each repeat is slow with a probability of at most a half. So the probability of a number of
//! slow repeats is at most a tail of the binomial distribution. The sum of these probabilities over all tests bounds the
//! probability of a false alarm.

/// Returns the probability that at least `hits` of `of` tosses of a fair coin are heads.
pub fn chance(hits: usize, of: usize) -> f64 {
    // The sum begins with the smallest terms, for precision. A pass has fewer than 200 sweeps, so no term underflows.
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

/// Returns the smallest number of repeats for which the probability that all are slow by chance is at most `each`.
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

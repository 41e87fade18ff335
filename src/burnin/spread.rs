//! Statistics that a few wild values do not move: middle, spread about it, and how surely something is slow.
//!
//! Whether a node is slow is decided by counting the repeats in which it was slow, whatever the distribution of the
//! noise: of one whose usual pace is within the limit, each repeat is slow with a chance of a half at most, so the chance of
//! so many is a tail of the binomial distribution. With as many tests as there are, their sum bounds the false alarms.

/// The middle value; of an even number the mean of the two in the middle. NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The median distance from the median, in units of the standard deviation that a normal distribution would have.
pub fn deviation(values: &[f64]) -> f64 {
    const OF_NORMAL: f64 = 1.4826;
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    OF_NORMAL * median(&distances)
}

/// The chance that of `of` tosses of a fair coin at least `hits` are heads.
pub fn chance(hits: usize, of: usize) -> f64 {
    if of > 1000 {
        // Too small for a number, one by one. Hoeffding's inequality says how likely it is at most.
        let above = hits as f64 - of as f64 / 2.0;
        return if above > 0.0 { (-2.0 * above * above / of as f64).exp() } else { 1.0 };
    }
    // From the far end on, as small terms come first.
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

/// How many repeats it takes until one that is slow in all of them can be named, with so many tests and so much of a
/// chance of a false alarm in all.
pub fn repeats_least(tests: usize, alarms: f64) -> usize {
    (tests.max(1) as f64 / alarms).log2().ceil() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn middles_and_deviations() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        // One wild value of five moves neither.
        assert_eq!(median(&[1.0, 2.0, 3.0, 4.0, 1e9]), 3.0);
        assert_eq!(deviation(&[1.0, 2.0, 3.0, 4.0, 1e9]), 1.4826);
        assert_eq!(deviation(&[5.0; 4]), 0.0);
    }

    #[test]
    fn the_chance_is_the_tail_of_pascals_triangle() {
        assert_eq!(chance(0, 7), 1.0);
        assert_eq!(chance(3, 3), 0.125);
        assert_eq!(chance(2, 3), 0.5);
        assert_eq!(chance(4, 3), 0.0);
        // 1 + 21 + 210 of 2^21.
        assert!((chance(19, 21) - 232.0 / 2_097_152.0).abs() < 1e-12);
        assert_eq!(repeats_least(48, 0.01), 13);
        // Where it is a bound it is above what it bounds, and of use all the same.
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
        fn a_minority_of_wild_values_moves_nothing_far(
            values in proptest::collection::vec(-1.0f64..1.0, 5..40), wild in -1e12f64..1e12
        ) {
            let mut spoiled = values.clone();
            for value in spoiled.iter_mut().take((values.len() - 1) / 2) {
                *value = wild;
            }
            prop_assert!(median(&spoiled).abs() <= 1.0);
            prop_assert!(deviation(&spoiled) <= 1.4826 * 2.0);
        }

        #[test]
        fn enough_repeats_can_name_and_one_fewer_cannot(tests in 1usize..1_000_000) {
            let (least, each) = (repeats_least(tests, 0.01), 0.01 / tests as f64);
            prop_assert!(chance(least, least) <= each);
            prop_assert!(chance(least - 1, least - 1) > each);
        }
    }
}

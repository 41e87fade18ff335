//! Median and spread of repeated measurements. A few outliers hardly change either.

/// Returns the median of `values`. For an even number of values, it is the mean of the two in the middle. Returns NaN if there
/// are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Ratio of the standard deviation of a normal distribution to its median absolute deviation.
pub const OF_NORMAL: f64 = 1.4826;

/// Returns the median absolute deviation of `values`, scaled to the standard deviation of a normal distribution.
pub fn deviation(values: &[f64]) -> f64 {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    OF_NORMAL * median(&distances)
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
        // One outlier in five values changes neither the median nor the deviation.
        assert_eq!(median(&[1.0, 2.0, 3.0, 4.0, 1e9]), 3.0);
        assert_eq!(deviation(&[1.0, 2.0, 3.0, 4.0, 1e9]), OF_NORMAL);
        assert_eq!(deviation(&[5.0; 4]), 0.0);
    }

    proptest! {
        #[test]
        fn a_minority_of_wild_values_moves_nothing_far(
            values in proptest::collection::vec(-1.0f64..1.0, 5..40), wild in -1e12f64..1e12
        ) {
            let mut spoiled = values.clone();
            for value in spoiled.iter_mut().take((values.len() - 1) / 2) {
                *value = wild;
            }
            prop_assert!(median(&spoiled).abs() <= 1.0);
            prop_assert!(deviation(&spoiled) <= OF_NORMAL * 2.0);
        }
    }
}

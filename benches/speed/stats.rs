//! Medians, spreads and ratios of repeated measurements. Pure arithmetic.

/// Returns the median, which is the mean of the middle two for an even number of samples. None without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| skt_hpl::base::statistics::median(samples))
}

/// Returns the difference between the highest and the lowest sample, divided by the median. None without samples.
pub fn spread(samples: &[f64]) -> Option<f64> {
    let median = median(samples)?;
    let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let high = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some((high - low) / median)
}

/// Returns `part / whole`. None if either is missing or `whole` is zero.
pub fn ratio(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    part.zip(whole).filter(|&(_, whole)| whole != 0.0).map(|(part, whole)| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_care_for_order_or_outliers() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 2.0]), Some(3.0));
        assert_eq!(median(&[1e9, 5.0, -7.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn the_spread_is_relative() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[7.0]), Some(0.0));
        assert_eq!(spread(&[90.0, 100.0, 110.0]), Some(0.2));
    }

    #[test]
    fn a_ratio_needs_both() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(Some(3.0), None), None);
        assert_eq!(ratio(None, Some(2.0)), None);
        assert_eq!(ratio(Some(3.0), Some(0.0)), None);
    }
}

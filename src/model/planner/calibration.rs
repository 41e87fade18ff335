//! Sizes of the problems whose rate is measured before a plan is made.

use super::super::error::{Result, at_least, positive};
use super::super::fit::RateModel;

/// Sizes of three problems for a short calibration, which together take about `seconds`. No size is larger than `most`. The sizes
/// are far enough apart to determine the half-rate order.
pub fn calibration_sizes(rate: &RateModel, nb: u64, most: u64, seconds: f64) -> Result<Vec<u64>> {
    positive("the time for the calibration", seconds)?;
    at_least("the block size NB", nb, 1, "at least 1")?;
    let total = |top: f64| -> Result<f64> {
        Ok(rate.seconds(top)? + rate.seconds(top * 0.6)? + rate.seconds(top * 0.35)?)
    };
    let (mut low, mut high) = (1.0, most as f64 + 1.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if total(middle)? <= seconds {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut sizes: Vec<u64> =
        [0.35, 0.6, 1.0].iter().map(|f| ((low * f) as u64 / nb * nb).max(nb)).collect();
    sizes.dedup();
    Ok(sizes)
}

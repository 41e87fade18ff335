//! Condition under which it pays to keep cores free that encode while the other cores compute (*helpers*, section 5.1).
//!
//! The printed inequality is 1/N_cpn + 100 t_cpy/T < 100 t_enc/T, with N_cpn cores a node, t_cpy seconds to copy and t_enc
//! seconds to encode, every T seconds. It adds a fraction to percentages; taken literally, one core of 16 would cost 0.06 %. The
//! text next to the inequality counts that core as 1/16, so all three terms are fractions here.

use super::error::{Result, at_least, finite, non_negative, positive};

/// Share of the machine lost with helpers: one of the `cores` cores of each node, and in each interval the copy to this core.
pub fn overhead_with_helper(cores: u64, copy_s: f64, interval_s: f64) -> Result<f64> {
    at_least("the number of cores per node", cores, 1, "at least 1")?;
    finite("the overhead", 1.0 / cores as f64 + overhead(copy_s, interval_s)?)
}

/// Share of the time lost if the computing processes stop for `stop_s` seconds at each save. They stop to encode, or only to copy
/// if an otherwise idle core of each node encodes (sections 5.2 and 5.3).
pub fn overhead(stop_s: f64, interval_s: f64) -> Result<f64> {
    non_negative("the time for which a save stops the ranks", stop_s)?;
    positive("the interval between saves", interval_s)?;
    finite("the overhead", stop_s / interval_s)
}

/// Returns whether helpers cost less than encoding inline, by the inequality of section 5.1.
pub fn helper_pays(cores: u64, copy_s: f64, encode_s: f64, interval_s: f64) -> Result<bool> {
    Ok(overhead_with_helper(cores, copy_s, interval_s)? < overhead(encode_s, interval_s)?)
}

/// Interval between saves below which helpers pay, seconds: cores (encode - copy); zero if they never pay.
pub fn break_even_interval(cores: u64, copy_s: f64, encode_s: f64) -> Result<f64> {
    at_least("the number of cores per node", cores, 1, "at least 1")?;
    non_negative("the copying time", copy_s)?;
    non_negative("the encoding time", encode_s)?;
    finite("the break-even interval", cores as f64 * (encode_s - copy_s).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// "a cluster with 16 cores per node loses 7 % of performance [...], 32 cores only around 3 %".
    #[test]
    fn the_printed_percentages() {
        let loss = |cores| overhead_with_helper(cores, 1.0, 200.0).unwrap();
        assert_eq!((loss(16) * 100.0).round(), 7.0);
        assert!((loss(32) - 0.035).abs() < 0.002);
    }

    /// Fig. 5: encoding inline cost 9 to 11 per cent, a helper on an idle core under 2. Then the copy takes under 2/9 of an
    /// encoding. If all cores compute, a helper would cost 1/16 + 2 % = 8.25 %, less than 9 %. It pays while the interval is
    /// shorter than 16 (1 - 2/9) = 12.4 encodings. Of the 7 % in Fig. 4 the core takes 6.25 % and the copy 0.75 %. A helper pays
    /// there if encoding takes more than 7 % of the interval, 9.3 copies.
    #[test]
    fn the_printed_percentages_follow_from_each_other() {
        let (encode, copy) = (9.0, 2.0);
        assert_eq!(overhead(encode, 100.0).unwrap(), 0.09);
        assert_eq!(overhead(copy, 100.0).unwrap(), 0.02);
        assert!((overhead_with_helper(16, copy, 100.0).unwrap() - 0.0825).abs() < 1e-12);
        assert!(helper_pays(16, copy, encode, 100.0).unwrap());
        let encodings = break_even_interval(16, copy, encode).unwrap() / encode;
        assert!((encodings - 12.4444).abs() < 1e-4);
        assert!(helper_pays(16, 0.75, 7.01, 100.0).unwrap());
        assert!(!helper_pays(16, 0.75, 6.99, 100.0).unwrap());
    }

    proptest! {
        #[test]
        fn pays_exactly_below_the_break_even(cores in 1u64..500, copy in 0.0..100.0f64, encode in 0.0..1e3f64, interval in 0.1..1e5f64) {
            let even = break_even_interval(cores, copy, encode).unwrap();
            prop_assume!((interval / even - 1.0).abs() > 1e-6);
            prop_assert_eq!(helper_pays(cores, copy, encode, interval).unwrap(), interval < even);
        }

        #[test]
        fn never_nan(cores in any::<u64>(), a in any::<f64>(), b in any::<f64>()) {
            for v in [overhead_with_helper(cores, a, b), overhead(a, b), break_even_interval(cores, a, b)].into_iter().flatten() {
                prop_assert!(v.is_finite());
            }
        }
    }
}

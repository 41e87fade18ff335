//! Bisection: finds the last number of a range for which a condition holds. If the condition fails for a number of the range, it
//! must fail for all later numbers, too.
//!
//! The models and the memory check search by bisection: for the largest problem that fits, or the last boundary before a time.

/// Returns the last number, from `low` up to but not including `high`, for which `holds` is true. The condition must be true for
/// all numbers up to the returned number, and false for all later numbers. The condition is taken as true for `low`; `holds` is
/// never called with `low` or `high`. Returns the first error of `holds`.
pub fn last_that_holds<E>(
    mut low: u64,
    mut high: u64,
    mut holds: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests every range of up to 40 numbers, with every possible result. The ends of the range are never passed to `holds`.
    #[test]
    fn the_last_is_found_and_the_ends_are_not_asked_about() {
        for low in 0..40u64 {
            for high in low + 1..=40 {
                for last in low..high {
                    let found = last_that_holds(low, high, |number| {
                        assert!(low < number && number < high);
                        Ok::<_, ()>(number <= last)
                    });
                    assert_eq!(found, Ok(last), "{low}..{high}");
                }
            }
        }
        assert_eq!(last_that_holds(7, 7, |_| Err("asked about nothing")), Ok(7));
        assert_eq!(
            last_that_holds(0, u64::MAX, |n| Ok::<_, ()>(n < u64::MAX - 1)),
            Ok(u64::MAX - 2)
        );
    }

    #[test]
    fn a_question_without_an_answer_ends_the_search() {
        assert_eq!(last_that_holds(0, 8, |_| Err("no answer")), Err("no answer"));
    }
}

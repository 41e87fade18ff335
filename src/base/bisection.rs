//! The last of a row of whole numbers for which something holds that does not hold again once it has stopped to hold.
//!
//! Models and the need for memory ask it: the largest problem that fits, the boundary before a moment.

/// The last number from `low` on and below `high` that `holds`, where all up to it do and none after it. It is taken for granted
/// that `low` does; `holds` is never asked about it, nor about `high`.
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

    /// Every row of up to 40 numbers, wherever the last one that holds lies; no end of the row is asked about.
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

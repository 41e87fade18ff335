//! Records of finished tests, in memory and on storage, and the choice of the records that belong to this run. Pure.
//!
//! A restart does not compute finished tests again. `inventory` selects from the records that it finds, and `solve` writes new
//! records.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::base::outcome::Outcome;
use crate::base::params::TestParams;

/// Record of a finished test, as it is kept in memory and on storage.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    /// Digest of the test. If the input file has changed since, its tests have other digests.
    pub(super) digest: u64,
    /// Id of the supervised run that computed the result; `None` without a supervisor.
    #[serde(default)]
    pub(super) run_id: Option<String>,
    pub(super) outcome: Outcome,
}

/// Returns a digest of everything that identifies a test. The upper half covers the parameters of the test, the lower half the
/// arithmetic on which the last bits of results depend.
pub fn digest(params: &TestParams, rounding: &str) -> u64 {
    let text = serde_json::to_string(params).expect("plain values have a JSON form");
    xxh3_64(text.as_bytes()) >> 32 << 32 | xxh3_64(rounding.as_bytes()) >> 32
}

/// Returns true if two digests belong to the same test, computed with different arithmetic.
pub(super) fn rounds_otherwise(one: u64, other: u64) -> bool {
    one >> 32 == other >> 32 && one != other
}

/// Returns the mark of the supervised run with the id `own`. The mark is the lower half of every run id of the supervised run. By
/// the mark, memory and files show to which supervised run they belong. The mark is below 2^62: ranks find the greatest id by MPI
/// (`checkpoint/world.rs`), which compares signed numbers.
fn mark(own: &str) -> u64 {
    xxh3_64(own.as_bytes()) >> 2
}

/// Returns the id of a new run. The upper half is the clock; the lower half is the mark of the supervised run `own`, if there
/// is one. Clocks differ, so the id is made greater than `latest`, the greatest id found.
pub(super) fn run_number(clock: u128, own: Option<&str>, latest: Option<u128>) -> u128 {
    let lower = own.map_or(clock as u64, mark);
    let number = |upper: u64| u128::from(upper) << 64 | u128::from(lower);
    let fresh = number((clock >> 64) as u64);
    match latest {
        Some(latest) if latest >= fresh => number(((latest >> 64) as u64).saturating_add(1)),
        _ => fresh,
    }
}

/// Returns true if the run with the id `run` belongs to the supervised run `own`, in any of its launches.
pub(super) fn is_of(run: u128, own: &str) -> bool {
    run as u64 == mark(own)
}

/// Returns true if `bytes` is the record of a result that the supervised run `own` computed.
pub(super) fn was_kept_by(bytes: &[u8], own: &str) -> bool {
    serde_json::from_slice::<Record>(bytes)
        .is_ok_and(|record| record.run_id.as_deref() == Some(own))
}

/// Finished test of this run, with its record.
pub(super) struct Finished {
    pub(super) number: u32,
    pub(super) record: Record,
    /// Text of the record as it was kept. The text is passed on unchanged, because equal texts identify equal results.
    pub(super) text: Vec<u8>,
}

/// Result of [`sort`]: the records of this run, and whether there are other or unreadable records.
#[derive(Default)]
pub(super) struct Kept {
    /// Records of this run, one record for each finished test.
    pub(super) finished: Vec<Finished>,
    /// True if there are records of other runs, or unreadable records.
    pub(super) stale: bool,
}

/// Selects the records of this run from `results`, each with the number of its test and its text. `tests` are the digests of this
/// run's tests, and `own` is its supervised run, if there is one. `in_progress` is true if there is an unfinished test to resume.
pub(super) fn sort<'r>(
    results: impl Iterator<Item = (u32, &'r Vec<u8>)>,
    tests: &[u64],
    own: Option<&str>,
    in_progress: bool,
) -> Kept {
    let mut kept = Kept::default();
    // A result of another supervised run does not count. The result may be on a node that was lost to that run. But if there is
    // an unfinished test to resume, the result belongs to the same work, and counts.
    let others = |record: &Record| {
        let both = own.is_some() && record.run_id.is_some();
        both && own != record.run_id.as_deref() && !in_progress
    };
    for (number, bytes) in results {
        match serde_json::from_slice::<Record>(bytes) {
            Ok(record) if others(&record) => kept.stale = true,
            Ok(record) if tests.get(number as usize) == Some(&record.digest) => {
                if kept.finished.iter().all(|known| known.number != number) {
                    kept.finished.push(Finished { number, record, text: bytes.clone() });
                }
            }
            _ => kept.stale = true,
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Rng;
    use crate::checkpoint::world::NOTHING;
    use crate::testkit::report::{outcome, params};

    fn record(digest: u64, run_id: Option<&str>) -> Vec<u8> {
        let record = Record { digest, run_id: run_id.map(str::to_owned), outcome: outcome() };
        serde_json::to_vec(&record).unwrap()
    }

    fn sorted(
        results: &[(u32, Vec<u8>)],
        tests: &[u64],
        own: Option<&str>,
        in_progress: bool,
    ) -> (Vec<u32>, bool) {
        let results = results.iter().map(|(number, bytes)| (*number, bytes));
        let Kept { finished, stale } = sort(results, tests, own, in_progress);
        (finished.into_iter().map(|test| test.number).collect(), stale)
    }

    /// Checks that the text of a record is passed on unchanged. Writing the record again could change the text: another build may
    /// write it differently, or a figure may be read with another last bit.
    #[test]
    fn a_result_is_handed_on_as_it_was_kept() {
        let mut text = record(10, None);
        text.extend(b" \n");
        let kept = sort([(0, &text)].into_iter(), &[10], None, false);
        assert!(kept.finished.iter().map(|test| &test.text).eq([&text]));
    }

    /// Figures are read exactly as they were written, to the last bit. So the document of a restarted run has the same figures
    /// of a finished test as the first start's document.
    #[test]
    fn figures_are_read_to_the_last_bit() {
        let mut seconds = 1.0f64 / 3.0;
        for _ in 0..1000 {
            seconds *= 1.0 + 1.0 / 7.0;
            let outcome = Outcome { seconds, ..outcome() };
            let text = serde_json::to_vec(&Record { digest: 1, run_id: None, outcome }).unwrap();
            let read: Record = serde_json::from_slice(&text).unwrap();
            assert_eq!(read.outcome.seconds, seconds);
        }
    }

    #[test]
    fn results_of_this_runs_tests_count_once() {
        let all = [(1, record(11, None)), (0, record(10, None)), (1, record(11, None))];
        assert_eq!(sorted(&all, &[10, 11, 12], None, false), (vec![1, 0], false));
        // Another test has the record's number, no test has the number, or the record is unreadable.
        assert_eq!(sorted(&all, &[10, 99], None, false), (vec![0], true));
        assert_eq!(sorted(&all, &[10], None, false), (vec![0], true));
        assert_eq!(sorted(&[(0, b"{".to_vec())], &[10], None, true), (vec![], true));
    }

    #[test]
    fn another_supervised_runs_results_count_only_where_a_test_is_gone_on_with() {
        for (own, theirs) in
            [(None, None), (None, Some("a")), (Some("a"), None), (Some("a"), Some("a"))]
        {
            let all = [(0, record(10, theirs))];
            for in_progress in [false, true] {
                assert_eq!(sorted(&all, &[10], own, in_progress), (vec![0], false));
            }
        }
        let all = [(0, record(10, Some("b")))];
        assert_eq!(sorted(&all, &[10], Some("a"), false), (vec![], true));
        assert_eq!(sorted(&all, &[10], Some("a"), true), (vec![0], false));
    }

    #[test]
    fn a_run_is_later_than_what_lies_there_and_says_whose_it_is() {
        let clock = 100 << 64 | 7;
        assert_eq!(run_number(clock, None, None), clock);
        assert_eq!(run_number(clock, None, Some(clock - 1)), clock);
        for latest in [clock, clock + 1, 200 << 64, 200 << 64 | u128::from(u64::MAX)] {
            for own in [None, Some("a")] {
                let number = run_number(clock, own, Some(latest));
                assert!(number > latest, "{number:x} after {latest:x}");
                assert_eq!(own.is_some(), is_of(number, "a"));
            }
        }
        assert!(is_of(run_number(clock, Some("a"), None), "a"));
        assert!(!is_of(run_number(clock, Some("b"), None), "a"));
        for own in 0..1000 {
            let number = run_number(clock, Some(&own.to_string()), None);
            assert!(number as u64 + 1 < NOTHING, "{number:x}");
        }
        assert!(was_kept_by(&record(10, Some("a")), "a"));
        for other in [record(10, None), record(10, Some("b")), b"{".to_vec()] {
            assert!(!was_kept_by(&other, "a"));
        }
    }

    #[test]
    fn a_digest_tells_choices_from_rounding() {
        let one = digest(&params(), "blis");
        let rounded = digest(&params(), "openblas");
        let other = digest(&TestParams { rng: Rng::Xoshiro, ..params() }, "blis");
        assert!(one == digest(&params(), "blis") && one != rounded && one != other);
        assert!(rounds_otherwise(one, rounded));
        assert!(!rounds_otherwise(one, one) && !rounds_otherwise(one, other));
    }
}

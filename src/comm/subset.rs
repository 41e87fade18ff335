//! Some ranks of a communicator as one of their own, which the library knows nothing of.
//!
//! Where a lost rank is survived no communicator is made by the library. Open MPI's notice of a lost process goes through all
//! communicators that this process belonged to, one that is just being made included, whose parts are not all there: that crashed
//! every rank that learned of a loss amid a split (5.0.11, `ompi_comm_set_rank_failed` in `ompi_comm_activate`). So messages of
//! such a set travel over the communicator it is taken from, by tags of their own.

use std::cell::RefCell;

use mpi::ffi;

use super::abort::die;
use super::communicator::On;

/// What one rank says where all of a communicator are split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// 0: part of none.
    pub colour: u64,
    pub key: u64,
    /// The first series that no set of this rank's has, nor any after it.
    pub free: u64,
}

/// The ranks of this one's colour, by their keys, and by their ranks where those are equal.
pub(super) fn members(asked: &[Asked], me: usize) -> Vec<usize> {
    let mut members: Vec<usize> =
        (0..asked.len()).filter(|&rank| asked[rank].colour == asked[me].colour).collect();
    members.sort_by_key(|&rank| asked[rank].key);
    members
}

/// The series of all sets that come of a split: no rank has another one of it. Sets of one split have no rank in common, so their
/// messages cannot be mixed up.
pub(super) fn series(asked: &[Asked]) -> u64 {
    asked.iter().map(|rank| rank.free).max().unwrap_or(1)
}

/// Tags of one series are below this.
const TAGS: i32 = 1 << 16;

/// The tag of a message of that series.
pub(super) fn tag(series: u64, tag: i32) -> i32 {
    debug_assert!((0..TAGS).contains(&tag));
    let first = i32::try_from(series).ok().and_then(|series| series.checked_mul(TAGS));
    let tag = first.and_then(|first| first.checked_add(tag));
    tag.unwrap_or_else(|| die(6, &format!("more than {} sets of ranks at a time", i32::MAX / TAGS)))
}

thread_local! {
    /// The sets that this rank is in.
    static LIVE: RefCell<Vec<On>> = const { RefCell::new(Vec::new()) };
}

/// The first series on `raw` that none of this rank's sets has, nor any after it.
pub(super) fn free(raw: ffi::MPI_Comm) -> u64 {
    LIVE.with_borrow(|live| {
        let series = live.iter().filter(|on| on.raw == raw).map(|on| on.series);
        series.max().unwrap_or(0) + 1
    })
}

pub(super) fn begin(on: On) {
    LIVE.with_borrow_mut(|live| live.push(on));
}

/// Nobody of the set sends any more what the others do not await: its series may be another's.
pub(super) fn end(on: On) {
    LIVE.with_borrow_mut(|live| live.retain(|other| *other != on));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(colour: u64, key: u64, free: u64) -> Asked {
        Asked { colour, key, free }
    }

    #[test]
    fn a_split_orders_by_key_and_then_by_rank() {
        let all = [asked(1, 7, 1), asked(2, 0, 1), asked(1, 3, 1), asked(1, 7, 1), asked(0, 0, 1)];
        assert_eq!(members(&all, 0), [2, 0, 3]);
        assert_eq!(members(&all, 3), [2, 0, 3]);
        assert_eq!(members(&all, 1), [1]);
    }

    #[test]
    fn nobody_has_two_sets_of_one_series() {
        // Whatever sets four ranks make and give up, one after the other.
        let mut random = 7u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        let mut held: [Vec<u64>; 4] = Default::default();
        for _ in 0..2000 {
            let who: Vec<usize> = (0..4).filter(|_| below(2) == 0).collect();
            let free = |held: &Vec<u64>| held.iter().max().map_or(1, |most| most + 1);
            let all: Vec<Asked> = who.iter().map(|&rank| asked(1, 0, free(&held[rank]))).collect();
            let new = series(&all);
            for &rank in &who {
                assert!(!held[rank].contains(&new));
                held[rank].push(new);
            }
            for rank in &mut held {
                while rank.len() as u64 > below(4) {
                    let which = below(rank.len() as u64) as usize;
                    rank.swap_remove(which);
                }
            }
        }
    }

    #[test]
    fn tags_of_two_series_never_meet() {
        assert_eq!(tag(0, 5), 5);
        assert!(tag(1, 0) > tag(0, TAGS - 1));
        assert!(tag(2, 0) > tag(1, TAGS - 1));
        assert_eq!(tag(32_767, TAGS - 1), i32::MAX);
    }
}

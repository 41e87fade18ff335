//! Communicators of subsets of ranks. The MPI library has no communicator of such a subset.
//!
//! If the loss of a rank is survived, the library makes no communicators. Open MPI reports a lost process on all communicators of
//! that process, including one that is being made and is incomplete. During a split, this report crashed every rank that learned
//! of a loss (5.0.11, `ompi_comm_set_rank_failed` in `ompi_comm_activate`). So the messages of a subset use the communicator from
//! which the subset is taken, with tags of their own.

use std::cell::RefCell;

use mpi::ffi;

use super::abort::die;
use super::library::On;

/// Values that each rank of a communicator contributes to a split of the communicator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Colour of the subset; 0 for none.
    pub colour: u64,
    pub key: u64,
    /// Smallest series number that is greater than the series numbers of all subsets of this rank.
    pub free: u64,
}

/// Returns the ranks with the colour of rank `me`, ordered by key, then by rank.
pub(super) fn members(asked: &[Asked], me: usize) -> Vec<usize> {
    let mut members: Vec<usize> =
        (0..asked.len()).filter(|&rank| asked[rank].colour == asked[me].colour).collect();
    members.sort_by_key(|&rank| asked[rank].key);
    members
}

/// Returns the series number that all subsets of a split get. The number distinguishes their messages from those of other
/// subsets, because no rank has another subset with this number. The subsets of one split have no rank in common, so their
/// messages cannot be confused.
pub(super) fn series(asked: &[Asked]) -> u64 {
    asked.iter().map(|rank| rank.free).max().unwrap_or(1)
}

/// Number of message tags that each series number has.
const TAGS: i32 = 1 << 16;

/// Returns the tag, in the library's communicator, of a message with tag `tag` in a subset with the series number `series`.
pub(super) fn tag(series: u64, tag: i32) -> i32 {
    debug_assert!((0..TAGS).contains(&tag));
    let first = i32::try_from(series).ok().and_then(|series| series.checked_mul(TAGS));
    let tag = first.and_then(|first| first.checked_add(tag));
    tag.unwrap_or_else(|| {
        let most = i32::MAX / TAGS;
        die(
            6,
            &format!(
                "more than {most} sets of ranks are in use, for which MPI's tags do not suffice"
            ),
        )
    })
}

thread_local! {
    /// Subsets that this rank is in.
    static LIVE: RefCell<Vec<On>> = const { RefCell::new(Vec::new()) };
}

/// Returns the smallest series number that is greater than those of all subsets of `raw` that this rank is in.
pub(super) fn free(raw: ffi::MPI_Comm) -> u64 {
    LIVE.with_borrow(|live| {
        let series = live.iter().filter(|on| on.raw == raw).map(|on| on.series);
        series.max().unwrap_or(0) + 1
    })
}

pub(super) fn begin(on: On) {
    LIVE.with_borrow_mut(|live| live.push(on));
}

/// Ends a subset. The ranks of the subset send no further messages, so its series number may be reused.
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
        // Four ranks make and end random subsets, one after the other.
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

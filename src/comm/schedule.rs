//! Six broadcasts of a panel, as plain lists of messages.
//!
//! [`schedule`] is a pure function, which returns for one rank the pieces to receive and to send, in order. A send must wait for
//! earlier receives of its parts. [`super::Broadcast`] carries the schedule out. The tests below verify all six broadcasts by a
//! simulation of the lists of all ranks together.
//!
//! Ranks are *virtual* here: 0 is the root, and the other ranks follow around the ring.

use std::ops::Range;

use crate::base::params::Bcast;

/// Message that a rank receives or sends in a broadcast. `piece` is a range of the parts into which the broadcast's data are
/// divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Recv {
        from: usize,
        piece: Range<usize>,
    },
    /// Send that must wait for all earlier receives of any part of `piece`.
    Send {
        to: usize,
        piece: Range<usize>,
    },
}

/// Number of parts into which a broadcast of kind `kind` among `size` ranks divides its data.
pub fn parts(kind: Bcast, size: usize) -> usize {
    match kind {
        Bcast::Long if size > 2 => size,
        Bcast::LongM if size > 3 => size - 1,
        _ => 1,
    }
}

/// Returns the messages that virtual rank `me` of `size` receives and sends in a broadcast of kind `kind`, in order. Virtual rank
/// 0 is the root.
pub fn schedule(kind: Bcast, size: usize, me: usize) -> Vec<Step> {
    assert!(me < size);
    if size == 1 {
        return Vec::new();
    }
    let whole = 0..parts(kind, size);
    let (mut steps, mut members) = (Vec::new(), (0..size).collect::<Vec<_>>());
    if matches!(kind, Bcast::OneRingM | Bcast::TwoRingM | Bcast::LongM) {
        // The rank that factors next gets its copy first and forwards nothing.
        steps = chain(&[0, 1], me, whole.clone());
        members.remove(1);
    }
    if members.contains(&me) {
        steps.extend(match kind {
            Bcast::OneRing | Bcast::OneRingM => chain(&members, me, whole),
            Bcast::TwoRing | Bcast::TwoRingM => two_chains(&members, me, whole),
            Bcast::Long | Bcast::LongM => spread_and_roll(&members, me, whole.len()),
        });
    }
    steps
}

/// Returns the steps of rank `me` in a chain, in which each member forwards the piece to the next member.
fn chain(members: &[usize], me: usize, piece: Range<usize>) -> Vec<Step> {
    let Some(at) = members.iter().position(|&m| m == me) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    if at > 0 {
        steps.push(Step::Recv { from: members[at - 1], piece: piece.clone() });
    }
    if at + 1 < members.len() {
        steps.push(Step::Send { to: members[at + 1], piece });
    }
    steps
}

/// Returns the steps of rank `me` in two chains. The root feeds both chains, and each chain has half of the other members.
fn two_chains(members: &[usize], me: usize, piece: Range<usize>) -> Vec<Step> {
    let half = 1 + (members.len() - 1).div_ceil(2);
    let first = &members[..half];
    let second: Vec<usize> =
        std::iter::once(members[0]).chain(members[half..].iter().copied()).collect();
    let mut steps = chain(first, me, piece.clone());
    steps.extend(chain(&second, me, piece));
    steps
}

/// Returns the steps of rank `me` in the long broadcast, spread and roll. First the parts are halved down a tree, until each
/// member has one part. Then all parts go around the ring.
fn spread_and_roll(members: &[usize], me: usize, parts: usize) -> Vec<Step> {
    let n = members.len();
    let Some(at) = members.iter().position(|&m| m == me) else {
        return Vec::new();
    };
    if n == 2 {
        return chain(members, me, 0..parts);
    }
    if n < 2 {
        return Vec::new();
    }
    debug_assert_eq!(parts, n);
    let mut steps = Vec::new();
    // Spread: member `lo` has the parts lo..hi, and sends the upper half to member `mid`.
    let (mut lo, mut hi) = (0, n);
    while hi - lo > 1 {
        let mid = lo + (hi - lo).div_ceil(2);
        if at == lo {
            steps.push(Step::Send { to: members[mid], piece: mid..hi });
        } else if at == mid {
            steps.push(Step::Recv { from: members[lo], piece: mid..hi });
        }
        if at < mid {
            hi = mid;
        } else {
            lo = mid;
        }
    }
    // Roll: in step s each member sends part (at - s) and receives part (at - s - 1). Parts that the receiver has from the spread
    // are left out. Receiving such a part again could overwrite data that the receiver is still sending.
    let next = (at + 1) % n;
    for s in 0..n - 1 {
        let out = (at + n - s) % n;
        let into = (at + 2 * n - s - 1) % n;
        if !held_after_spread(n, next).contains(&out) {
            steps.push(Step::Send { to: members[next], piece: out..out + 1 });
        }
        if !held_after_spread(n, at).contains(&into) {
            steps.push(Step::Recv { from: members[(at + n - 1) % n], piece: into..into + 1 });
        }
    }
    steps
}

/// Returns the parts that member `at` of `n` has after the spread, the first phase of the long broadcast. Parts that the member
/// has forwarded count, too.
fn held_after_spread(n: usize, at: usize) -> Range<usize> {
    let (mut lo, mut hi) = (0, n);
    while at != lo {
        let mid = lo + (hi - lo).div_ceil(2);
        if at < mid {
            hi = mid;
        } else {
            lo = mid;
        }
    }
    lo..hi
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    const KINDS: [Bcast; 6] = [
        Bcast::OneRing,
        Bcast::OneRingM,
        Bcast::TwoRing,
        Bcast::TwoRingM,
        Bcast::Long,
        Bcast::LongM,
    ];

    /// Simulates all ranks, each in the order of its list. Checks that the parts of each send have arrived at the sender before.
    fn play(kind: Bcast, size: usize) {
        let n = parts(kind, size);
        let lists: Vec<Vec<Step>> = (0..size).map(|me| schedule(kind, size, me)).collect();
        let mut at = vec![0; size];
        let mut has = vec![vec![false; n]; size];
        has[0] = vec![true; n];
        let mut wire: HashMap<(usize, usize), VecDeque<Range<usize>>> = HashMap::new();
        let mut received = vec![0; size];
        loop {
            let mut moved = false;
            for me in 0..size {
                while let Some(step) = lists[me].get(at[me]) {
                    match step {
                        Step::Send { to, piece } => {
                            assert!(
                                piece.clone().all(|p| has[me][p]),
                                "{kind:?} sends what it has"
                            );
                            wire.entry((me, *to)).or_default().push_back(piece.clone());
                        }
                        Step::Recv { from, piece } => {
                            let queue = wire.entry((*from, me)).or_default();
                            let Some(sent) = queue.pop_front() else { break };
                            assert_eq!(&sent, piece, "{kind:?} {size} pairs up");
                            assert!(piece.clone().all(|p| !has[me][p]), "nothing comes twice");
                            received[me] += piece.len();
                            piece.clone().for_each(|p| has[me][p] = true);
                        }
                    }
                    at[me] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        assert!((0..size).all(|me| at[me] == lists[me].len()), "{kind:?} {size} ends");
        assert!(wire.values().all(VecDeque::is_empty), "nothing is left on the wire");
        assert!(has.iter().flatten().all(|&h| h), "{kind:?} {size} reaches everybody");
        assert!(received[1..].iter().all(|&r| r == n));
    }

    #[test]
    fn every_broadcast_reaches_everybody() {
        for kind in KINDS {
            for size in 1..=17 {
                play(kind, size);
            }
        }
    }

    #[test]
    fn the_shapes_are_what_their_names_say() {
        let sends = |kind, size, me| {
            schedule(kind, size, me).iter().filter(|s| matches!(s, Step::Send { .. })).count()
        };
        assert_eq!(sends(Bcast::OneRing, 6, 0), 1);
        assert_eq!(sends(Bcast::OneRing, 6, 1), 1);
        assert_eq!(sends(Bcast::OneRingM, 6, 0), 2);
        assert_eq!(sends(Bcast::OneRingM, 6, 1), 0, "the next to factor passes nothing on");
        assert_eq!(sends(Bcast::TwoRing, 6, 0), 2);
        assert_eq!(sends(Bcast::TwoRingM, 6, 0), 3);
        assert_eq!(sends(Bcast::TwoRingM, 6, 1), 0);
        // In the long forms, no rank except the root sends much more than one message.
        for me in 1..8 {
            let volume: usize = schedule(Bcast::Long, 8, me)
                .iter()
                .map(|s| if let Step::Send { piece, .. } = s { piece.len() } else { 0 })
                .sum();
            assert!(volume <= 7 + 4);
        }
        assert_eq!(sends(Bcast::LongM, 8, 1), 0);
    }
}

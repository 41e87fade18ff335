//! Execution of a plan: rows are gathered from members, weighted, added and delivered.
//!
//! There are two ways to encode. `Reduce` calls MPI_Reduce once for each parity row of a stripe, as the paper on encoding in
//! docs/MODELS.md does. `Pipelined` sends segments around the ring of the group. Every member adds its row to a segment before it
//! passes the segment on. The sum of each stripe ends at one member. So a byte of data is sent once for each parity row, whatever
//! the size of the group.
//!
//! If a parity has several holders, each sum is then sent to every holder, from the member at which the sum ended. So each holder
//! receives its parity once. Rebuilding sends the same segments along a chain of members that ends at the lost member. Encoding
//! uses such a chain, too, if the layout keeps parity apart from all data.
//!
//! All members of a group call the same function with the same window.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::code::Code;
use super::comm::GroupComm;
use super::hands::{Hands, Lines, SEGMENT_WORDS};
use super::plan::{self, Combine};
use super::share::{Share, Window};
use super::stripes::{Role, Spread, Stripes};
use crate::shm::{Region, huge};

/// Method of encoding, and the thread that encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Calls MPI_Reduce once for each parity row of a stripe.
    Reduce,
    /// Sends segments around the ring of the group. Each member adds its rows to a segment before it passes the segment on.
    Pipelined,
    /// Like [`Self::Pipelined`], but a helper of each rank sends the segments from the copy of the matrix, while the ranks
    /// compute.
    Helper,
}

impl Encoding {
    pub fn by_helper(self) -> bool {
        self == Encoding::Helper
    }
}

/// Code and stripes of one group. All members have the same values.
#[derive(Clone, Copy, Debug)]
pub struct Coder {
    pub code: Code,
    pub stripes: Stripes,
}

/// Content of one message: a weighted sum of rows, in some successive cycles of stripes, restricted to the columns of the window.
struct Segment<'a> {
    combine: &'a Combine,
    lines: Lines,
    /// True if each member reports its own data rows to [`Hands::seen`] when it adds them.
    tells: bool,
}

impl Segment<'_> {
    /// Adds this member's weighted rows to `buffer`. If `replace` is true, these rows replace the contents of `buffer` instead.
    /// If `tells` is true, reports the data rows to `hands`.
    fn contribute(
        &self,
        share: &Share,
        me: usize,
        buffer: &mut [u64],
        replace: bool,
        hands: &mut Hands,
    ) {
        let (terms, lines) = (&self.combine.terms[me], self.lines);
        hands.add(share, lines, terms, buffer, replace);
        for &(within, _) in terms.iter().filter(|_| self.tells) {
            if matches!(within, Role::Data(_)) {
                hands.show(share, lines, within);
            }
        }
    }

    /// Returns the range of this member's parity words that receive the sum; this member must be the target. None if these words
    /// are not contiguous, or if the sum is not a parity row of this member.
    fn run_of_parity(&self, share: &Share) -> Option<Range<usize>> {
        let Lines { stripes, first, cycles, width } = self.lines;
        let close = cycles == 1 || stripes.parity_rows(1) == 1 && width == share.shape.pitch;
        match stripes.of_cycle(self.combine.row?, first) {
            Role::Parity(row) if close => {
                let start = share.parity_range(row, width).start;
                Some(start..start + cycles * width)
            }
            _ => None,
        }
    }
}

/// Message buffers: `going` is sent, `coming` is received, and `ahead` is prepared for the next round.
struct Scratch<'a> {
    going: &'a mut [u64],
    coming: &'a mut [u64],
    ahead: &'a mut [u64],
    /// Sums that ended at this member, one for each parity. They wait here until all parities of a batch are complete.
    ended: &'a mut [u64],
}

impl<'a> Scratch<'a> {
    /// Allocates memory for all buffers, in huge pages if the buffers are large enough. A transport that copies between processes
    /// looks up every page. For small buffers, clearing a huge page would take longer than these look-ups.
    fn room(words: usize, ended: usize) -> Region {
        let bytes = (3 + ended) * words * 8;
        let bytes = if bytes < huge::HUGE / 8 { bytes } else { bytes.next_multiple_of(huge::HUGE) };
        Region::anonymous(bytes).expect("cannot allocate memory for a few messages")
    }

    fn new(room: &'a mut Region, words: usize) -> Self {
        let (going, rest) = room.words_mut().split_at_mut(words);
        let (coming, rest) = rest.split_at_mut(words);
        let (ahead, ended) = rest.split_at_mut(words);
        Self { going, coming, ahead, ended }
    }
}

/// Chain of members along which segments travel. Each member adds its rows, and the last member receives the sums.
struct Chain<'a> {
    members: Vec<usize>,
    segments: Vec<Segment<'a>>,
}

impl Chain<'_> {
    /// Sends the segments along the chain; the last member receives the sums. Calls `between` after each step. At a member
    /// outside of the chain, returns at once.
    fn along<G: GroupComm + ?Sized>(
        &self,
        comm: &G,
        share: &mut Share,
        scratch: &mut Scratch,
        hands: &mut Hands,
        between: &mut impl FnMut(),
    ) {
        let (Chain { members: chain, segments }, me) = (self, comm.rank());
        let Some(place) = chain.iter().position(|&member| member == me) else {
            return;
        };
        let own = |segment: &Segment| {
            segment.combine.row.expect("the last member of a chain receives the sum")
        };
        let gives_parity = |segment: &Segment| matches!(own(segment), Role::Parity(_));
        let (first, last) = (place == 0, place + 1 == chain.len());
        // A member in the middle receives segment i while it sends segment i - 1. The first member fills segment i while it sends
        // segment i - 1. The last member delivers segment i - 1 while it receives segment i.
        let (mut ready, mut coming) = (&mut *scratch.going, &mut *scratch.coming);
        // True if segment i - 1 was received in place, that is, directly in this member's parity rows.
        let mut in_place = false;
        for i in 0..=segments.len() {
            let (before, now) = (i.checked_sub(1).map(|i| &segments[i]), segments.get(i));
            if first {
                let send = before.map(|s| (&ready[..s.lines.words()], chain[1]));
                comm.sendrecv_while(send, None, &mut || {
                    if let Some(now) = now {
                        now.contribute(share, me, &mut coming[..now.lines.words()], true, hands);
                    }
                });
            } else if last {
                // If segment i - 1 is parity, this member's work during the transfer needs `share.parity`. Segment i is then not
                // received in place.
                let range = now
                    .filter(|_| !before.is_some_and(&gives_parity))
                    .and_then(|s| s.run_of_parity(share));
                let parity = match range {
                    Some(_) => std::mem::take(&mut share.parity),
                    None => &mut [],
                };
                let into = match (&range, now) {
                    (Some(range), _) => Some(&mut parity[range.clone()]),
                    (None, now) => now.map(|s| &mut coming[..s.lines.words()]),
                };
                let recv = into.map(|into| (into, chain[place - 1]));
                comm.sendrecv_while(None, recv, &mut || {
                    let Some(before) = before else { return };
                    let (row, lines) = (own(before), before.lines);
                    if in_place {
                        hands.show(share, lines, row);
                    } else {
                        hands.deliver(share, lines, row, &ready[..lines.words()]);
                    }
                });
                in_place = range.is_some();
                if in_place {
                    share.parity = parity;
                }
            } else {
                let send = before.map(|s| (&ready[..s.lines.words()], chain[place + 1]));
                let recv = now.map(|s| (&mut coming[..s.lines.words()], chain[place - 1]));
                comm.sendrecv(send, recv);
                if let Some(now) = now {
                    now.contribute(share, me, &mut coming[..now.lines.words()], false, hands);
                }
            }
            std::mem::swap(&mut ready, &mut coming);
            between();
        }
    }
}

/// Unit of encoding: one parity of all stripes, in some successive cycles of stripes.
struct Round<'a> {
    parity: usize,
    /// Segments in the order of the targets, the members at which the sums end.
    segments: Vec<Segment<'a>>,
}

impl Round<'_> {
    /// Fills `buffer` with this member's rows of the segment that this member sends first.
    fn begin(&self, share: &Share, me: usize, buffer: &mut [u64], hands: &mut Hands) {
        let batch = &self.segments;
        let first = &batch[(me + batch.len() - 1) % batch.len()];
        first.contribute(share, me, &mut buffer[..first.lines.words()], true, hands);
    }

    /// Computes all segments of the round at the same time. In a group of n members, each sum arrives at its target after n - 1
    /// steps. `begin` has filled `going` before the call. While the last messages travel, this member prepares the round `next`.
    fn ring<G: GroupComm + ?Sized>(
        &self,
        comm: &G,
        share: &mut Share,
        next: Option<&Round>,
        scratch: &mut Scratch,
        hands: &mut Hands,
    ) {
        let (size, me) = (comm.size(), comm.rank());
        let (to, from) = ((me + 1) % size, (me + size - 1) % size);
        let segment = |target: usize| &self.segments[target % size];
        let words = segment(me).lines.words();
        for step in 0..size - 2 {
            let (going, coming) = (&scratch.going[..words], &mut scratch.coming[..words]);
            comm.sendrecv(Some((going, to)), Some((coming, from)));
            let passing = segment(me + 2 * size - 2 - step);
            passing.contribute(share, me, coming, false, hands);
            std::mem::swap(&mut scratch.going, &mut scratch.coming);
        }
        // The last message lacks at most this member's own row. If this member has no row in the sum, the message is the whole
        // sum. This sum is received in place if the parity rows are contiguous.
        let mine = segment(me);
        let in_place = mine.run_of_parity(share);
        let parity = std::mem::take(&mut share.parity);
        let into = match (&in_place, mine.combine.row) {
            (Some(range), _) => &mut parity[range.clone()],
            (None, Some(_)) => &mut scratch.coming[..words],
            (None, None) => &mut scratch.ended[self.parity * words..][..words],
        };
        comm.sendrecv_while(Some((&scratch.going[..words], to)), Some((into, from)), &mut || {
            if let Some(next) = next {
                next.begin(share, me, scratch.ahead, hands);
            }
        });
        share.parity = parity;
        match (mine.combine.row, in_place) {
            (Some(row), Some(_)) => hands.show(share, mine.lines, row),
            (Some(row), None) => {
                hands.deliver(share, mine.lines, row, &scratch.coming[..words]);
            }
            (None, _) => {
                let sum = &mut scratch.ended[self.parity * words..][..words];
                mine.contribute(share, me, sum, false, hands);
            }
        }
        std::mem::swap(&mut scratch.going, &mut scratch.ahead);
    }
}

impl Coder {
    /// Returns a coder for the same stripes that rebuilds every bit, for rows that are not real numbers.
    pub fn for_any_bits(self) -> Coder {
        Coder { code: self.code.for_any_bits(self.stripes.losses), ..self }
    }

    /// Number of words in the longest message.
    fn message_words(&self, window: Window) -> usize {
        self.batches(window).next().map_or(0, |lines| lines.words())
    }

    /// Returns the lines of each message, in order. Together they cover the window.
    fn batches(&self, window: Window) -> impl Iterator<Item = Lines> + use<> {
        let (stripes, width) = (self.stripes, window.width);
        let all = stripes.cycles(window.rows);
        let step = (SEGMENT_WORDS / width.max(1)).max(1);
        let batch = move |first| Lines { stripes, first, cycles: step.min(all - first), width };
        (0..all).step_by(step).map(batch)
    }

    /// Computes the parity rows of all members for the window.
    ///
    /// Calls `hands.seen` for each data row that was read and each parity row that was written, while the row is in the cache.
    /// The calls for a row cover each column once. Calls `between` after each batch of rows, for crash points and heartbeats.
    pub fn encode<G: GroupComm + ?Sized>(
        &self,
        comm: &G,
        how: Encoding,
        share: &mut Share,
        window: Window,
        mut hands: Hands,
        mut between: impl FnMut(),
    ) {
        if window.width == 0 || window.rows == 0 {
            return;
        }
        assert_eq!(comm.size(), self.stripes.size);
        let (me, losses) = (comm.rank(), self.stripes.losses);
        let passes_on = self.stripes.spread == Spread::Copied;
        // The buffers are allocated once. Buffers of this size for every batch would be mapped and faulted in each time.
        let words = self.message_words(window);
        let mut room = Scratch::room(words, if passes_on { losses } else { 0 });
        let mut scratch = Scratch::new(&mut room, words);
        let plans: Vec<Vec<Combine>> =
            (0..losses).map(|parity| plan::encode(self.code, self.stripes, parity)).collect();
        if how != Encoding::Reduce && self.stripes.spread == Spread::Apart {
            for (parity, plan) in plans.iter().enumerate() {
                let way = self.plan_chain(parity, plan, window);
                way.along(comm, share, &mut scratch, &mut hands, &mut between);
            }
            return;
        }
        let batches: Vec<Lines> = self.batches(window).collect();
        let (mut number, mut now) = (0, self.plan_round(0, &plans, &batches));
        if let Some(first) = now.as_ref().filter(|_| how != Encoding::Reduce) {
            first.begin(share, me, scratch.going, &mut hands);
        }
        while let Some(this) = now {
            let next = self.plan_round(number + 1, &plans, &batches);
            match how {
                Encoding::Pipelined | Encoding::Helper => {
                    this.ring(comm, share, next.as_ref(), &mut scratch, &mut hands);
                }
                Encoding::Reduce => self.reduce(comm, share, &this, &mut scratch, &mut hands),
            }
            if passes_on && this.parity + 1 == losses {
                self.pass_on(comm, share, &this.segments[me], &mut scratch, &mut hands);
            }
            between();
            (number, now) = (number + 1, next);
        }
    }

    /// Returns the chain that encodes parity `parity` under [`Spread::Apart`]. The chain has the members with data, then the
    /// holder of the parity, which has no data.
    fn plan_chain<'a>(&self, parity: usize, plan: &'a [Combine], window: Window) -> Chain<'a> {
        let [combine] = plan else {
            unreachable!("each parity that is apart from the data has a single holder")
        };
        let with_data = (0..self.stripes.size).filter(|&member| !self.stripes.holds_parity(member));
        let members = with_data.chain([combine.target]).collect();
        // The data rows are read again for each later parity, so only the first parity reports them.
        let segment = |lines| Segment { combine, lines, tells: parity == 0 };
        Chain { members, segments: self.batches(window).map(segment).collect() }
    }

    /// Returns the round with number `number`; None after the last round.
    fn plan_round<'a>(
        &self,
        number: usize,
        plans: &'a [Vec<Combine>],
        batches: &[Lines],
    ) -> Option<Round<'a>> {
        // With copies of parity, sums are passed on after the last parity of a batch. So all parities of a batch come before the
        // next batch.
        let (parity, batch) = if self.stripes.spread == Spread::Copied {
            (number % plans.len(), number / plans.len())
        } else {
            (number / batches.len(), number % batches.len())
        };
        let (plan, &lines) = (plans.get(parity)?, batches.get(batch)?);
        let segment = |combine| Segment { combine, lines, tells: parity == 0 };
        Some(Round { parity, segments: plan.iter().map(segment).collect() })
    }

    /// Sends every sum of a batch to the holders of its parity, from the member at which the sum ended.
    fn pass_on<G: GroupComm + ?Sized>(
        &self,
        comm: &G,
        share: &mut Share,
        mine: &Segment,
        scratch: &mut Scratch,
        hands: &mut Hands,
    ) {
        let (size, me, lines) = (comm.size(), comm.rank(), mine.lines);
        let words = lines.words();
        // In this layout the sum of stripe i ended at member i, so a member's number also names a stripe.
        let held = |member: usize, slot: usize| {
            let held = self.stripes.parity(member, slot);
            held.expect("with copies of parity, each member holds a parity row of every stripe")
        };
        for step in 0..size {
            let (to, from) = ((me + step) % size, (me + size - step) % size);
            let (parity, row) = held(to, me);
            let going = &scratch.ended[parity * words..][..words];
            let within = Role::Parity(held(me, from).1);
            if step == 0 {
                debug_assert_eq!(Role::Parity(row), within);
                hands.deliver(share, lines, within, going);
            } else {
                let coming = &mut scratch.coming[..words];
                comm.sendrecv(Some((going, to)), Some((coming, from)));
                hands.deliver(share, lines, within, coming);
            }
        }
    }

    /// Computes the same sums as [`Round::ring`], with one reduction for each segment.
    fn reduce<G: GroupComm + ?Sized>(
        &self,
        comm: &G,
        share: &mut Share,
        round: &Round,
        scratch: &mut Scratch,
        hands: &mut Hands,
    ) {
        let me = comm.rank();
        for segment in &round.segments {
            let words = segment.lines.words();
            let buffer = &mut scratch.going[..words];
            segment.contribute(share, me, buffer, true, hands);
            let root = segment.combine.target;
            if !self.code.exact() {
                // SAFETY: `f64` and `u64` have the same size and alignment, and any bits are a valid `f64`. `buffer` is borrowed
                // exclusively.
                let doubles = unsafe {
                    std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<f64>(), buffer.len())
                };
                comm.reduce_sum(doubles, root);
            } else {
                comm.reduce_xor(buffer, root);
            }
            match segment.combine.row {
                _ if me != root => {}
                Some(row) => hands.deliver(share, segment.lines, row, buffer),
                None => scratch.ended[round.parity * words..][..words].copy_from_slice(buffer),
            }
        }
    }

    /// Rebuilds all rows of the window at the lost members, data and parity. The survivors only read their rows. If more members
    /// are lost than the group survives, returns false and sends nothing; otherwise returns true.
    ///
    /// At a lost member, calls `hands.seen` once for each row that was written. At a survivor, calls `hands.seen` once per lost
    /// member for each data row that was read. The rows are in the cache at these calls.
    pub fn rebuild<G: GroupComm + ?Sized>(
        &self,
        comm: &G,
        share: &mut Share,
        window: Window,
        lost: &[usize],
        mut hands: Hands,
        mut between: impl FnMut(),
    ) -> bool {
        let Some(plan) = plan::rebuild(self.code, self.stripes, lost) else {
            return false;
        };
        if window.width == 0 || window.rows == 0 {
            return true;
        }
        let size = comm.size();
        let words = self.message_words(window);
        let mut room = Scratch::room(words, 0);
        let mut scratch = Scratch::new(&mut room, words);
        for &target in lost {
            // The chain has the survivors in ring order after the target, then the target itself.
            let mut chain: Vec<usize> = (1..size)
                .map(|i| (target + i) % size)
                .filter(|member| !lost.contains(member))
                .collect();
            chain.push(target);
            let segments = self
                .batches(window)
                .flat_map(|lines| {
                    let own = plan.iter().filter(|combine| combine.target == target);
                    own.map(move |combine| Segment { combine, lines, tells: true })
                })
                .collect();
            let way = Chain { members: chain, segments };
            way.along(comm, share, &mut scratch, &mut hands, &mut between);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::share::Shape;
    use super::*;
    use crate::base::threads::Pool;
    use crate::testkit::groups::subsets;
    use crate::testkit::thread_ranks::{Member, Post};
    use proptest::prelude::*;
    use std::sync::Arc;

    #[derive(Clone, PartialEq, Debug)]
    struct Own {
        data: Vec<u64>,
        rows: usize,
        cols: usize,
        ld: usize,
        parity: Vec<u64>,
        pitch: usize,
    }

    impl Own {
        fn share(&mut self) -> Share<'_> {
            let Own { rows, cols, ld, pitch, .. } = *self;
            let shape = Shape { rows, cols, ld, pitch };
            Share { data: &mut self.data, parity: &mut self.parity, shape }
        }
    }

    fn group(coder: Coder, shapes: &[(usize, usize)], seed: u64) -> Vec<Own> {
        let tall = shapes.iter().map(|s| s.0).max().unwrap();
        let wide = shapes.iter().map(|s| s.1).max().unwrap();
        let mut state = seed | 1;
        shapes
            .iter()
            .enumerate()
            .map(|(member, &(rows, cols))| {
                let ld = cols + 3;
                let held = if coder.stripes.holds_parity(member) { tall } else { 0 };
                let data = (0..rows * ld)
                    .map(|_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        // Bits of a double between -0.5 and 0.5, an ordinary value for every code.
                        (state as i64 as f64 / 2f64.powi(64)).to_bits()
                    })
                    .collect();
                Own {
                    data,
                    rows,
                    cols,
                    ld,
                    parity: vec![0; coder.stripes.parity_rows(held) * wide],
                    pitch: wide,
                }
            })
            .collect()
    }

    /// Runs `act` for each member, each in a separate thread. Rows are not reported.
    fn together(owns: &mut [Own], act: impl Fn(&Member, &mut Share, Hands) + Sync) {
        in_threads(1, owns, act);
    }

    fn in_threads(each: usize, owns: &mut [Own], act: impl Fn(&Member, &mut Share, Hands) + Sync) {
        let post = Arc::new(Post::default());
        let members: Vec<usize> = (0..owns.len()).collect();
        std::thread::scope(|scope| {
            for (rank, own) in owns.iter_mut().enumerate() {
                let comm = Member::new(post.clone(), members.clone(), rank);
                let act = &act;
                scope.spawn(move || {
                    Pool::new(each).together(|panel_threads| {
                        act(&comm, &mut own.share(), Hands { panel_threads, seen: None });
                    })
                });
            }
        });
    }

    fn whole(owns: &[Own]) -> Window {
        Window { rows: owns.iter().map(|o| o.rows).max().unwrap(), width: owns[0].pitch }
    }

    fn wipe(own: &mut Own) {
        // Padding between rows belongs to no row and must stay as it is.
        for row in 0..own.rows {
            own.data[row * own.ld..][..own.cols].fill(0xdead);
        }
        own.parity.fill(0xbeef);
    }

    fn close(a: &Own, b: &Own) -> bool {
        a.data
            .iter()
            .zip(&b.data)
            .chain(a.parity.iter().zip(&b.parity))
            .all(|(x, y)| (f64::from_bits(*x) - f64::from_bits(*y)).abs() < 1e-13)
    }

    #[test]
    fn both_ways_of_encoding_agree_and_any_loss_is_rebuilt() {
        let shapes = [(7, 5), (6, 5), (7, 4), (5, 3), (7, 5), (6, 4), (7, 5)];
        for (spread, size, code, losses) in [
            (Spread::Rotated, 5, Code::Xor, 1),
            (Spread::Rotated, 5, Code::Sum, 1),
            (Spread::Rotated, 5, Code::ReedSolomon, 1),
            (Spread::Rotated, 5, Code::ReedSolomon, 2),
            (Spread::Rotated, 5, Code::ReedSolomon, 3),
            (Spread::Rotated, 5, Code::ReedSolomon, 4),
            (Spread::Rotated, 5, Code::Weighted, 1),
            (Spread::Rotated, 5, Code::Weighted, 3),
            (Spread::Copied, 2, Code::Xor, 1),
            (Spread::Copied, 3, Code::Xor, 1),
            (Spread::Copied, 3, Code::Sum, 1),
            (Spread::Copied, 6, Code::ReedSolomon, 2),
            (Spread::Copied, 7, Code::ReedSolomon, 2),
            (Spread::Copied, 7, Code::Weighted, 2),
            (Spread::Apart, 2, Code::Xor, 1),
            (Spread::Apart, 5, Code::Xor, 1),
            (Spread::Apart, 5, Code::Sum, 1),
            (Spread::Apart, 4, Code::ReedSolomon, 2),
            (Spread::Apart, 7, Code::ReedSolomon, 3),
            (Spread::Apart, 6, Code::Weighted, 3),
        ] {
            let mut shapes = shapes[..size].to_vec();
            if spread == Spread::Apart {
                shapes[size - losses..].fill((0, 0));
            }
            let shapes = &shapes;
            let coder = Coder { code, stripes: Stripes::new(spread, size, losses) };
            let mut owns = group(coder, shapes, 99);
            let window = whole(&owns);
            let mut reduced = owns.clone();
            together(&mut owns, |comm, share, hands| {
                coder.encode(comm, Encoding::Pipelined, share, window, hands, || ())
            });
            together(&mut reduced, |comm, share, hands| {
                coder.encode(comm, Encoding::Reduce, share, window, hands, || ())
            });
            for (a, b) in owns.iter().zip(&reduced) {
                assert!(if code.exact() { a == b } else { close(a, b) });
            }
            for lost in subsets(shapes.len(), losses) {
                let mut damaged = owns.clone();
                lost.iter().for_each(|&x| wipe(&mut damaged[x]));
                together(&mut damaged, |comm, share, hands| {
                    assert!(coder.rebuild(comm, share, window, &lost, hands, || ()))
                });
                for (a, b) in owns.iter().zip(&damaged) {
                    assert!(if code.exact() { a == b } else { close(a, b) });
                }
            }
            let too_many: Vec<usize> = (0..=losses).collect();
            together(&mut owns, |comm, share, hands| {
                assert!(!coder.rebuild(comm, share, window, &too_many, hands, || ()))
            });
        }
    }

    /// With layout `Copied` and several cycles in a segment, all holders of a parity have the same words: the parity of all data.
    #[test]
    fn all_holders_of_a_parity_hold_the_same() {
        for (size, losses) in [(2, 1), (4, 1), (6, 2), (8, 2), (12, 3)] {
            let shapes = vec![(40, 3000); size];
            let stripes = Stripes::new(Spread::Copied, size, losses);
            let coder = Coder { code: Code::ReedSolomon, stripes };
            let mut owns = group(coder, &shapes, 3);
            let window = whole(&owns);
            let seen = std::sync::Mutex::new(vec![Vec::new(); size]);
            in_threads(3, &mut owns, |comm, share, hands| {
                let me = comm.rank();
                let see = |_: &Share, role: Role, columns: Range<usize>| {
                    seen.lock().unwrap()[me].push((role, columns.start, columns.end));
                };
                let hands = Hands { seen: Some(&see), ..hands };
                coder.encode(comm, Encoding::Pipelined, share, window, hands, || ());
            });
            for (member, own) in owns.iter().enumerate() {
                assert_eq!(own.parity, owns[member % losses].parity, "{size} {losses} {member}");
                assert!(member < losses || owns[member - 1].parity != own.parity || losses == 1);
            }
            for (row, words) in owns[0].parity.chunks(3000).enumerate().take(40) {
                let sum = |col: usize| {
                    let at = |own: &Own| own.data[(own.rows - 1 - row) * own.ld + col];
                    owns.iter().map(at).fold(0, |a, b| a ^ b)
                };
                assert!(words.iter().enumerate().all(|(col, &word)| word == sum(col)));
            }
            // Each column of each row is reported once.
            for (mut seen, own) in seen.into_inner().unwrap().into_iter().zip(&owns) {
                seen.sort_by_key(|&(role, start, _)| match role {
                    Role::Data(row) => (0, row, start),
                    Role::Parity(row) => (1, row, start),
                });
                let mut rows = 0;
                for told in seen.chunk_by(|(one, ..), (other, ..)| one == other) {
                    let ends = told.iter().map(|&(_, _, end)| end);
                    assert!(
                        told.iter()
                            .skip(1)
                            .map(|&(_, start, _)| start)
                            .eq(ends.take(told.len() - 1))
                    );
                    assert_eq!((told[0].1, told[told.len() - 1].2), (0, 3000));
                    rows += 1;
                }
                assert_eq!(rows, own.rows + own.parity.len() / own.pitch);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Encoding only the part that changed gives the same parity as encoding everything.
        #[test]
        fn encoding_a_corner_keeps_the_parity_of_everything(
            size in 2usize..6, losses in 1usize..4, seed: u64,
            rows in 1usize..20, cols in 1usize..12, cut_rows in 0usize..20, cut_cols in 0usize..12,
            ragged in proptest::collection::vec((0usize..3, 0usize..3), 9), pipelined: bool,
            which in 0..3,
        ) {
            let (spread, size, losses) = match which {
                0 if size < 4 => (Spread::Copied, size, 1),
                0 => (Spread::Copied, 2 + size, 2),
                1 => (Spread::Apart, size + losses, losses),
                _ => (Spread::Rotated, size, losses.min(size - 1)),
            };
            let coder = Coder { code: Code::ReedSolomon, stripes: Stripes::new(spread, size, losses) };
            let mut shapes: Vec<(usize, usize)> = (0..size)
                .map(|i| (rows + ragged[i].0, cols + ragged[i].1)).collect();
            if spread == Spread::Apart {
                shapes[size - losses..].fill((0, 0));
            }
            let how = if pipelined { Encoding::Pipelined } else { Encoding::Reduce };
            let mut owns = group(coder, &shapes, seed);
            let window = whole(&owns);
            together(&mut owns, |comm, share, hands| coder.encode(comm, how, share, window, hands, || ()));
            // The trailing part of every member changes. These parts differ in size, as local matrices do.
            let corner = Window { rows: cut_rows.min(window.rows), width: cut_cols.min(window.width) };
            for (i, own) in owns.iter_mut().enumerate() {
                let r0 = own.rows - corner.rows.saturating_sub(i % 2).min(own.rows);
                let c0 = own.cols - corner.width.saturating_sub(i % 3).min(own.cols);
                for row in r0..own.rows {
                    for col in c0..own.cols {
                        own.data[row * own.ld + col] ^= 0x5555;
                    }
                }
            }
            let mut again = owns.clone();
            together(&mut owns, |comm, share, hands| coder.encode(comm, how, share, corner, hands, || ()));
            together(&mut again, |comm, share, hands| coder.encode(comm, how, share, window, hands, || ()));
            prop_assert_eq!(owns, again);
        }
    }

    /// The result does not depend on the number of threads. The rows have all lengths, and fill more than one message.
    #[test]
    fn any_number_of_threads_makes_the_same_of_it() {
        let shapes = [(40, 9000), (39, 9000), (40, 8999), (40, 8000)];
        let wide = [(5, 70_000), (5, 69_000), (4, 70_000), (5, 70_000)];
        let narrow = [(9000, 20), (9000, 20), (8999, 17), (8000, 19)];
        for (code, spread, losses) in [
            (Code::Xor, Spread::Rotated, 1),
            (Code::ReedSolomon, Spread::Rotated, 2),
            (Code::Weighted, Spread::Copied, 1),
            (Code::Sum, Spread::Apart, 1),
        ] {
            let coder = Coder { code, stripes: Stripes::new(spread, 4, losses) };
            for shapes in [shapes, wide, narrow] {
                let mut shapes = shapes;
                if spread == Spread::Apart {
                    shapes[4 - losses..].fill((0, 0));
                }
                let mut owns = group(coder, &shapes, 5);
                let window = whole(&owns);
                assert!(coder.batches(window).count() > 1);
                let others =
                    [(2, Encoding::Pipelined), (5, Encoding::Pipelined), (5, Encoding::Reduce)];
                let mut others = others.map(|(threads, how)| (threads, how, owns.clone()));
                together(&mut owns, |comm, share, hands| {
                    coder.encode(comm, Encoding::Pipelined, share, window, hands, || ())
                });
                for (threads, how, other) in &mut others {
                    in_threads(*threads, other, |comm, share, hands| {
                        coder.encode(comm, *how, share, window, hands, || ())
                    });
                    let mut pairs = owns.iter().zip(&*other);
                    assert!(match code.exact() || *how == Encoding::Pipelined {
                        true => pairs.all(|(a, b)| a == b),
                        false => pairs.all(|(a, b)| close(a, b)),
                    });
                }
                let lost: Vec<usize> = (1..=losses).collect();
                let back = [1, 4].map(|threads| {
                    let mut damaged = owns.clone();
                    lost.iter().for_each(|&x| wipe(&mut damaged[x]));
                    in_threads(threads, &mut damaged, |comm, share, hands| {
                        assert!(coder.rebuild(comm, share, window, &lost, hands, || ()))
                    });
                    damaged
                });
                assert_eq!(back[0], back[1]);
                assert!(
                    owns.iter().zip(&back[0]).all(|(a, b)| a == b || !code.exact() && close(a, b))
                );
            }
        }
    }
}

//! Plans the exchange of rows between process rows: pure functions.
//!
//! Each process row stores some rows of the new U, its sources, and all process rows need all of U. The *root* is the process row
//! that owns the diagonal block. Displaced rows are rows that pivoting moves out of the diagonal block; the root sends them to
//! the other process rows. All process rows know the pivots, so each process row computes the whole plan, and no lengths are
//! sent.
//!
//! - [`binary`]: partners at distance 1, 2, 4, ... exchange all rows gathered so far. This takes few messages.
//! - [`long`]: the root sends the displaced rows down a tree (HPL's spread). Then the sources of each process row travel around
//!   the ring of process rows (HPL's roll). This takes more messages, but a process row receives each row of U only once. With
//!   equilibration, rows are first moved between process rows until all have equally many sources.
//! - [`shared`]: U is divided by columns into equal shares, one for each process row. Each process row gathers all rows of U in
//!   its share of the columns, and solves its share. Then the solved shares travel around the ring of process rows. No column of
//!   U is solved twice.

use std::collections::HashSet;

/// For one panel, the rows that each process row has and needs. Rows are indices into the lists of
/// [`RowMoves`](super::pivots::RowMoves).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Process row that owns the diagonal block.
    pub root: usize,
    /// For each process row, the rows of U whose sources the process row stores.
    pub sources: Vec<Vec<usize>>,
    /// For each process row, the displaced rows that the process row receives.
    pub displaced: Vec<Vec<usize>>,
}

/// Rows that are sent in one message: first rows of U, then displaced rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parcel {
    pub upper: Vec<usize>,
    pub displaced: Vec<usize>,
}

impl Parcel {
    pub fn len(&self) -> usize {
        self.upper.len() + self.displaced.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Round of a row exchange on one process row: messages that travel at the same time, or a solve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// Sends whole rows to at most one process row, and receives whole rows from at most one.
    Rows { send: Option<(usize, Parcel)>, recv: Option<(usize, Parcel)> },
    /// Exchanges rows of U with all other process rows. Each process row will solve one share of U's columns. This process row
    /// sends its rows of U to each receiver, in the columns of the receiver's share. This process row receives all other rows of
    /// U, in the columns of its own share.
    Gather,
    /// Solves U in this process row's share of the columns, without messages.
    Solve,
    /// Sends one solved share of U's columns and receives another. `send` is the process row that receives, and the process row
    /// that solved the sent share. `recv` is the process row that sends, and the process row that solved the received share.
    Pass { send: (usize, usize), recv: (usize, usize) },
}

/// Builder of the rounds of one process row from transfers between virtual ranks. A virtual rank is a process row counted from
/// the root, which has virtual rank 0.
struct Builder<'a> {
    holdings: &'a Holdings,
    me: usize,
    rounds: Vec<Round>,
}

impl Builder<'_> {
    fn size(&self) -> usize {
        self.holdings.sources.len()
    }

    fn real(&self, v: usize) -> usize {
        (v + self.holdings.root) % self.size()
    }

    /// Returns the virtual rank of this process row.
    fn virtual_me(&self) -> usize {
        (self.me + self.size() - self.holdings.root) % self.size()
    }

    /// Adds this process row's part of a round. `transfers` are all messages of the round: (from, to, parcel), with virtual
    /// ranks. A virtual rank sends at most one message and receives at most one. No round is added if this process row neither
    /// sends nor receives.
    fn round(&mut self, transfers: Vec<(usize, usize, Parcel)>) {
        let (mut send, mut recv) = (None, None);
        for (from, to, parcel) in transfers {
            if parcel.is_empty() {
                continue;
            }
            let (from, to) = (self.real(from), self.real(to));
            if from == self.me {
                send = Some((to, parcel));
            } else if to == self.me {
                recv = Some((from, parcel));
            }
        }
        if send.is_some() || recv.is_some() {
            self.rounds.push(Round::Rows { send, recv });
        }
    }

    /// Adds the rounds in which displaced rows travel from the root down a binary tree to their process rows. In each round, a
    /// process row has the displaced rows for a range of process rows. The process row sends the rows for the upper half of the
    /// range to the first process row of that half. The rounds end when each range is a single process row.
    fn spread(&mut self) {
        let size = self.size();
        let mut ranges = vec![(0, size)];
        while ranges.iter().any(|(lo, hi)| hi - lo > 1) {
            let mut transfers = Vec::new();
            let mut halves = Vec::new();
            for (lo, hi) in ranges {
                if hi - lo == 1 {
                    halves.push((lo, hi));
                    continue;
                }
                let mid = lo + (hi - lo).div_ceil(2);
                let of = |v: usize| self.holdings.displaced[self.real(v)].as_slice();
                let displaced = (mid..hi).map(of).collect::<Vec<_>>().concat();
                transfers.push((lo, mid, Parcel { upper: Vec::new(), displaced }));
                halves.extend([(lo, mid), (mid, hi)]);
            }
            self.round(transfers);
            ranges = halves;
        }
    }
}

/// Appends to `to` the rows of U that virtual rank `v` has in a binary exchange, after the rounds at all distances below
/// `distance`. `own` appends the rows that a virtual rank has before the first round.
fn gathered(own: &dyn Fn(usize, &mut Vec<usize>), v: usize, distance: usize, to: &mut Vec<usize>) {
    match distance / 2 {
        0 => own(v, to),
        half => {
            gathered(own, v, half, to);
            gathered(own, v ^ half, half, to);
        }
    }
}

/// Returns whether a [`binary`] row exchange takes less time than the exchange [`shared`]. The panel has width `nb`, the exchange
/// has `wide` columns, and the grid has `rows` process rows.
///
/// The number of rounds of [`shared`] grows with the number of process rows; that of [`binary`], with the logarithm of this
/// number. But after a binary exchange, each process row solves all columns of U, not only a share of the columns.
pub fn binary_pays(rows: usize, nb: usize, wide: usize) -> bool {
    /// Seconds that a round takes: latency, and the time until all ranks check for the message.
    const ROUND_S: f64 = 5e-6;
    /// Operations per second of the solve on one core.
    const SOLVE_RATE: f64 = 3e10;
    let spared_rounds = rows - 1 - rows.ilog2() as usize;
    let solved_again = (nb * nb * wide) as f64 * (1.0 - 1.0 / rows as f64);
    spared_rounds as f64 * ROUND_S > solved_again / SOLVE_RATE
}

/// Returns the rounds of process row `me` in a binary exchange. Partners at distance 1, 2, 4, ... exchange all rows of U that
/// they have gathered. The same messages carry the displaced rows.
pub fn binary(holdings: &Holdings, me: usize) -> Vec<Round> {
    let mut b = Builder { holdings, me, rounds: Vec::new() };
    let size = b.size();
    // Virtual ranks at or beyond the largest power of two are folded. Each sends its rows to a partner first, and receives all
    // rows from this partner last.
    let cube = 1 << size.ilog2();
    let sources = |v: usize| &holdings.sources[b.real(v)];
    let displaced: Vec<&Vec<usize>> = (0..size).map(|v| &holdings.displaced[b.real(v)]).collect();
    let folded = |v: usize| (v + cube < size).then_some(v + cube);
    let own = |v: usize, to: &mut Vec<usize>| {
        to.extend(sources(v));
        folded(v).iter().for_each(|&v| to.extend(sources(v)));
    };
    let has = |v: usize, distance: usize| {
        let mut rows = Vec::new();
        gathered(&own, v, distance, &mut rows);
        rows
    };
    let mine = b.virtual_me();

    let fold: Vec<_> = (cube..size)
        .map(|v| (v, v - cube, Parcel { upper: sources(v).clone(), displaced: Vec::new() }))
        .collect();
    let mut rounds = vec![fold];
    let mut distance = 1;
    while distance < cube && mine < cube {
        let parcel = |v: usize| {
            // A displaced row for virtual rank t moves from the root along the bits of t, lowest bit first. Rows for a folded
            // rank are sent to its partner.
            let for_others = (v + distance..cube).step_by(2 * distance);
            let displaced = if v < distance {
                let targets = for_others.clone().chain(for_others.filter_map(folded));
                targets.flat_map(|t| displaced[t]).copied().collect()
            } else {
                Vec::new()
            };
            Parcel { upper: has(v, distance), displaced }
        };
        let partner = mine ^ distance;
        rounds.push(vec![(mine, partner, parcel(mine)), (partner, mine, parcel(partner))]);
        distance *= 2;
    }
    let unfold = (cube..size)
        .filter(|v| *v == mine || *v == mine + cube)
        .map(|v| {
            let own: HashSet<usize> = sources(v).iter().copied().collect();
            let upper = has(v - cube, cube).into_iter().filter(|i| !own.contains(i)).collect();
            (v - cube, v, Parcel { upper, displaced: displaced[v].clone() })
        })
        .collect();
    rounds.push(unfold);
    rounds.into_iter().for_each(|round| b.round(round));
    b.rounds
}

/// Returns the rounds of process row `me` in a long exchange, HPL's spread and roll. Displaced rows travel down a tree, then each
/// process row's sources travel around the ring. If `equilibrate` is true, rows of U are first moved until all process rows have
/// equally many.
pub fn long(holdings: &Holdings, me: usize, equilibrate: bool) -> Vec<Round> {
    let mut b = Builder { holdings, me, rounds: Vec::new() };
    let size = b.size();
    let mut pieces: Vec<Vec<usize>> =
        (0..size).map(|v| holdings.sources[b.real(v)].clone()).collect();
    b.spread();

    if equilibrate {
        let total: usize = pieces.iter().map(Vec::len).sum();
        let fair = |v: usize| total / size + usize::from(v < total % size);
        // Each rank makes at most one transfer in a round. Rounds are repeated until all ranks have a fair share.
        while (0..size).any(|v| pieces[v].len() != fair(v)) {
            let mut transfers = Vec::new();
            let mut givers = (0..size).filter(|&v| pieces[v].len() > fair(v));
            let mut takers = (0..size).filter(|&v| pieces[v].len() < fair(v));
            while let (Some(from), Some(to)) = (givers.next(), takers.next()) {
                let count = (pieces[from].len() - fair(from)).min(fair(to) - pieces[to].len());
                transfers.push((from, to, count));
            }
            let mut round = Vec::new();
            for (from, to, count) in transfers {
                let at = pieces[from].len() - count;
                let rows = pieces[from].split_off(at);
                pieces[to].extend(&rows);
                round.push((from, to, Parcel { upper: rows, displaced: Vec::new() }));
            }
            b.round(round);
        }
    }

    // In step s of the roll, each rank passes on the piece of the rank s places before it.
    let mine = b.virtual_me();
    for s in 0..size - 1 {
        // Only this rank's transfers are built. With many process rows, building all transfers would take longer than sending.
        let pass_on = |v: usize| {
            let piece = pieces[(v + size - s) % size].clone();
            (v, (v + 1) % size, Parcel { upper: piece, displaced: Vec::new() })
        };
        b.round(vec![pass_on(mine), pass_on((mine + size - 1) % size)]);
    }
    b.rounds
}

/// Returns the rounds of process row `me` in an exchange in which process rows share the solve of U. Each process row gathers all
/// rows of U in its share of the columns. Displaced rows travel down a tree. Each process row solves its share, then the solved
/// shares travel around the ring.
pub fn shared(holdings: &Holdings, me: usize) -> Vec<Round> {
    let mut b = Builder { holdings, me, rounds: vec![Round::Gather] };
    let size = b.size();
    b.spread();
    b.rounds.push(Round::Solve);
    // In step s, each process row passes on the share of the process row s places before it.
    let before = |s: usize| (me + size - s) % size;
    for s in 0..size - 1 {
        let (send, recv) = (((me + 1) % size, before(s)), (before(1), before(s + 1)));
        b.rounds.push(Round::Pass { send, recv });
    }
    b.rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns `width` rows of U, dealt out in turn to `size` process rows, and displaced rows dealt out in the same way. The
    /// root is process row 0, which receives no displaced rows.
    fn even(size: usize, width: usize) -> Holdings {
        let of = |v: usize| (0..width).filter(|i| i % size == v).collect();
        let sources: Vec<Vec<usize>> = (0..size).map(of).collect();
        let mut displaced = sources.clone();
        displaced[0].clear();
        Holdings { root: 0, sources, displaced }
    }

    /// Returns two maxima over all process rows: of the number of rounds, and of the number of messages that a process row sends.
    fn most(holdings: &Holdings, plan: impl Fn(usize) -> Vec<Round>) -> (usize, usize) {
        let size = holdings.sources.len();
        let plans: Vec<Vec<Round>> = (0..size).map(plan).collect();
        let messages = |round: &Round| match round {
            Round::Rows { send, .. } => usize::from(send.is_some()),
            Round::Gather => size - 1,
            Round::Solve => 0,
            Round::Pass { .. } => 1,
        };
        let sent = |plan: &Vec<Round>| plan.iter().map(messages).sum();
        let rounds = plans.iter().map(Vec::len).max().unwrap();
        (rounds, plans.iter().map(sent).max().unwrap())
    }

    #[test]
    fn rounds_and_messages_grow_as_the_plans_say() {
        for size in [2usize, 3, 8, 31, 64, 100, 128] {
            let holdings = even(size, 256);
            let log = size.next_power_of_two().ilog2() as usize;
            let (rounds, sent) = most(&holdings, |me| binary(&holdings, me));
            assert!(rounds <= log + 1 && sent <= log + 1, "{size}: {rounds} {sent}");
            let (rounds, sent) = most(&holdings, |me| long(&holdings, me, true));
            assert!(rounds <= log + 2 + size && sent <= log + 2 + size, "{size}: {rounds} {sent}");
            let (rounds, sent) = most(&holdings, |me| shared(&holdings, me));
            assert!(rounds <= log + 1 + size, "{size}: {rounds}");
            assert!(sent <= 2 * (size - 1) + log, "{size}: {sent}");
        }
    }

    /// Tests that the binary exchange is chosen only for few columns and many process rows. An example of few columns is the
    /// columns of the next panel. With many process rows, the rounds take longer than the solve of so few columns.
    #[test]
    fn a_binary_exchange_pays_for_few_columns_of_many_process_rows() {
        assert!(!binary_pays(2, 128, 128) && !binary_pays(16, 192, 192));
        assert!(
            binary_pays(32, 128, 128) && binary_pays(64, 192, 192) && binary_pays(128, 256, 256)
        );
        for rows in 1..200 {
            assert!(!binary_pays(rows, 256, 8000), "wide columns are solved in shares");
        }
    }

    /// Returns the receiver and the rows that `round` sends. Returns `None` if the round sends no whole rows.
    fn sent(round: &Round) -> Option<&(usize, Parcel)> {
        match round {
            Round::Rows { send, .. } => send.as_ref(),
            _ => None,
        }
    }

    /// Simulates the plans of all process rows. Fails if a sender lacks a row that it sends, or if a process row lacks a row at
    /// the end. Returns the number of rows sent.
    fn play(holdings: &Holdings, plan: impl Fn(usize) -> Vec<Round>) -> usize {
        let size = holdings.sources.len();
        let total: usize = holdings.sources.iter().map(Vec::len).sum();
        let plans: Vec<Vec<Round>> = (0..size).map(plan).collect();
        let mut upper: Vec<HashSet<usize>> =
            holdings.sources.iter().map(|s| s.iter().copied().collect()).collect();
        let mut moved: Vec<HashSet<usize>> = vec![HashSet::new(); size];
        moved[holdings.root] = holdings.displaced.concat().into_iter().collect();
        let mut at = vec![0; size];
        // A round ends for a rank when its message has arrived. Sends do not wait.
        let mut wire: Vec<Vec<(usize, usize, Parcel)>> = vec![Vec::new(); size];
        let mut sent = vec![false; size];
        let mut volume = 0;
        loop {
            let mut progress = false;
            for me in 0..size {
                let Some(Round::Rows { send, recv }) = plans[me].get(at[me]) else { continue };
                if !sent[me] {
                    if let Some((to, parcel)) = send {
                        assert!(parcel.upper.iter().all(|i| upper[me].contains(i)));
                        assert!(parcel.displaced.iter().all(|i| moved[me].contains(i)));
                        wire[*to].push((me, at[me], parcel.clone()));
                        volume += parcel.len();
                    }
                    sent[me] = true;
                    progress = true;
                }
                if let Some((from, parcel)) = recv {
                    let Some(i) = wire[me].iter().position(|(f, _, _)| f == from) else { continue };
                    let (_, _, got) = wire[me].remove(i);
                    assert_eq!(&got, parcel, "sender and receiver compute the same rows");
                    upper[me].extend(&got.upper);
                    moved[me].extend(&got.displaced);
                }
                at[me] += 1;
                sent[me] = false;
                progress = true;
            }
            if !progress {
                break;
            }
        }
        for me in 0..size {
            assert_eq!(at[me], plans[me].len(), "process row {me} is not left waiting");
            assert_eq!(upper[me].len(), total, "process row {me} has all of U");
            assert!(holdings.displaced[me].iter().all(|i| moved[me].contains(i)));
        }
        assert!(wire.iter().all(Vec::is_empty));
        volume
    }

    proptest! {
        #[test]
        fn everybody_gets_everything(
            size in 2usize..12,
            root in 0usize..12,
            owners in prop::collection::vec(0usize..12, 1..20),
            targets in prop::collection::vec(0usize..12, 0..20),
        ) {
            let mut holdings = Holdings {
                root: root % size,
                sources: vec![Vec::new(); size],
                displaced: vec![Vec::new(); size],
            };
            for (i, owner) in owners.iter().enumerate() {
                holdings.sources[owner % size].push(i);
            }
            for (i, target) in targets.iter().enumerate() {
                holdings.displaced[target % size].push(i);
            }
            play(&holdings, |me| binary(&holdings, me));
            play(&holdings, |me| long(&holdings, me, false));
            play(&holdings, |me| long(&holdings, me, true));
        }
    }

    /// Tests the exchange `shared`. All process rows gather before displaced rows overwrite the sources of U. Displaced rows move
    /// as in the exchange `long`. Each process row solves once, then receives each other share once, from a process row that has
    /// the share.
    #[test]
    fn shares_are_gathered_solved_and_passed_on() {
        for (size, root) in (2..9).flat_map(|size| (0..size).map(move |root| (size, root))) {
            let rows = |v: usize| (0..v % 3).map(|i| 3 * v + i).collect::<Vec<_>>();
            let displaced = (0..size).map(|v| if v == root { vec![] } else { rows(v) }).collect();
            let sources = vec![vec![0]; size];
            let holdings = Holdings { root, sources, displaced };
            let plans: Vec<Vec<Round>> = (0..size).map(|me| shared(&holdings, me)).collect();
            let mut has: Vec<HashSet<usize>> = (0..size).map(|me| HashSet::from([me])).collect();
            for (me, plan) in plans.iter().enumerate() {
                assert_eq!(plan[0], Round::Gather);
                let solve = plan.iter().position(|round| *round == Round::Solve).unwrap();
                let spread = &plan[1..solve];
                assert!(spread.iter().all(|round| matches!(round, Round::Rows { .. })));
                assert_eq!(plan.len() - solve, size);
                let long = long(&holdings, me, false);
                assert_eq!(spread, &long[..spread.len()], "displaced rows go as by `long`");
            }
            for step in (1..size).rev() {
                let now = |me: usize| match plans[me][plans[me].len() - step] {
                    Round::Pass { send, recv } => (send, recv),
                    ref other => panic!("{other:?}"),
                };
                let before = has.clone();
                for (me, before) in before.iter().enumerate() {
                    let ((to, share), _) = now(me);
                    assert!(before.contains(&share), "nobody sends what it has not");
                    assert_eq!(now(to).1, (me, share), "it is what the other awaits");
                    assert!(has[to].insert(share), "nobody is sent anything twice");
                }
            }
            assert!(has.iter().all(|has| has.len() == size));
        }
    }

    proptest! {
        /// Tests that no message has more rows than the panel has columns, rows of U and displaced rows together. The reason: a
        /// process row receives one displaced row for each of its sources outside the diagonal block. The lengths of work arrays
        /// rely on this maximum.
        #[test]
        fn no_message_has_more_rows_than_the_panel_has_columns(
            size in 2usize..12,
            root in 0usize..12,
            owners in prop::collection::vec((0usize..12, any::<bool>()), 1..40),
        ) {
            let mut holdings = Holdings {
                root: root % size,
                sources: vec![Vec::new(); size],
                displaced: vec![Vec::new(); size],
            };
            let mut displaced = 0;
            for (i, (owner, inside)) in owners.iter().enumerate() {
                holdings.sources[owner % size].push(i);
                if owner % size != holdings.root || !inside {
                    holdings.displaced[owner % size].push(displaced);
                    displaced += 1;
                }
            }
            for me in 0..size {
                let plans = [
                    binary(&holdings, me),
                    long(&holdings, me, false),
                    long(&holdings, me, true),
                    shared(&holdings, me),
                ];
                for (_, parcel) in plans.iter().flatten().filter_map(sent) {
                    prop_assert!(parcel.len() <= owners.len(), "{parcel:?}");
                }
            }
        }
    }

    #[test]
    fn equilibration_evens_the_pieces_out() {
        let holdings = Holdings {
            root: 1,
            sources: vec![(0..10).collect(), vec![10], vec![], vec![11]],
            displaced: vec![Vec::new(); 4],
        };
        // The largest message, in rows. No row is displaced, so all messages belong to equilibration or to the roll.
        let largest = |equilibrate| {
            (0..4)
                .flat_map(|me| long(&holdings, me, equilibrate))
                .filter_map(|round| sent(&round).map(|(_, parcel)| parcel.len()))
                .max()
        };
        assert_eq!(largest(false), Some(10));
        assert_eq!(largest(true), Some(3));
    }
}

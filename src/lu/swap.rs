//! Exchanges the rows of a panel between process rows, in a range of columns.
//!
//! After the exchange, the upper block contains the pivoted rows of U in all process rows, and displaced rows are at their
//! destinations in A. The diagonal block's own rows in A still have their old content: the update writes U there after the solve.
//! If process rows share the solve ([`solves`]), U is already solved after the exchange.
//!
//! An exchange is begun, advanced between pieces of other work, and finished. Without other work to overlap, the exchange is
//! finished right after it is begun.

use super::clock::{Clock, Part};
use super::context::Context;
use super::cuts::{Strips, chunk_cols, offset, share_of};
use super::exchange::{self, Holdings, Round};
use super::panel::Panel;
use super::pivots::RowMoves;
use super::rows::{Array, Rows, by_all};
use super::section::Section;
use crate::base::faults::{Point, hit};
use crate::base::params::Swap;
use crate::base::threads::{Pool, Shareable};
use crate::comm::Pending;
use crate::device::{Device, Pinned};
use crate::kernels::{Matrix, TriangleBlock, UpperBlock, ask_for};
use crate::matrix::{Shape, Storage};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Row exchange between process rows, and its work arrays. A swapper does one exchange at a time. Two swappers may work at the
/// same time if their tags differ.
pub struct Swapper {
    /// Exchange in progress, or `None`. This field is declared before the arrays: fields are dropped in order, and the exchange's
    /// messages use the arrays.
    way: Option<Way>,
    tag: i32,
    /// Displaced rows that this process row only forwards.
    transit: Pinned,
    out: Pinned,
    into: Pinned,
    /// Time spent on solving since the last [`Swapper::finish`], not yet charged to the clock.
    solving: Duration,
}

/// An exchange in progress: the messages of one round, for one chunk of columns.
struct Way {
    /// Messages in transit of the current round. Declared before the fields whose data the messages use, because fields are
    /// dropped in order.
    pending: Pending,
    moves: Arc<RowMoves>,
    section: Section,
    /// Triangle with which U is solved. The triangle remains valid during the whole exchange.
    triangle: TriangleBlock,
    holdings: Holdings,
    rounds: Vec<Round>,
    /// First local column of the current chunk.
    first: usize,
    /// Number of columns of the current chunk.
    len: usize,
    /// Current round: its messages are in transit, or its columns are being solved. `None` before the chunk is begun.
    round: Option<usize>,
    /// Number of solved columns of this process row's share.
    solved: usize,
}

/// Result of [`Swapper::advance`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// There is no exchange, or its messages have not arrived yet.
    Nothing,
    /// The messages of a round have arrived. The next round, if any, is begun.
    Moved,
    /// Some columns were solved. More work may be possible at once.
    Solved,
}

impl Swapper {
    /// Allocates work arrays of `len` doubles each. `tag` is the MPI tag of all messages of the swapper.
    pub fn new(device: Option<&Arc<dyn Device>>, len: usize, tag: i32) -> io::Result<Self> {
        // This thread passes the arrays to MPI. It touches the arrays first, so that they lie in memory near its core.
        let array = || Pinned::touched(device, len, &mut Pool::new(1));
        let (transit, out, into) = (array()?, array()?, array()?);
        Ok(Self { way: None, tag, transit, out, into, solving: Duration::ZERO })
    }

    /// Bytes of the work arrays.
    pub fn bytes(&self) -> u64 {
        self.transit.bytes() + self.out.bytes() + self.into.bytes()
    }

    /// Returns whether an exchange has been begun and is not complete.
    pub fn is_active(&self) -> bool {
        self.way.is_some()
    }

    /// Drops the exchange in progress, after an attempt that failed.
    pub fn give_up(&mut self) {
        self.way = None;
        self.solving = Duration::ZERO;
    }

    /// Begins an exchange between process rows and sends the first messages. With a single process row, no exchange is begun:
    /// [`within`] does all of it instead.
    ///
    /// `panel` must have been opened with [`Panel::open`]. If `pool` is `None`, this thread copies rows alone.
    ///
    /// # Safety
    /// The pointers of `section` are valid, and no other thread touches its columns or its upper block until the exchange is
    /// complete. Until then, `panel` keeps its data.
    pub unsafe fn begin(
        &mut self,
        context: &Context,
        panel: &Panel,
        section: Section,
        pool: Option<&mut Pool>,
    ) {
        assert!(self.way.is_none(), "the previous exchange is complete");
        // SAFETY: ensured by the caller.
        unsafe { section.upper.clear_edges() };
        if section.cols.is_empty() || context.params.p == 1 {
            return;
        }
        let moves = panel.moves.as_ref().expect("the panel was opened before").clone();
        let triangle = panel.triangle(context);
        let shape = &context.shape;
        let me = shape.row;
        let root = shape.row_map.owner(panel.k * shape.nb);
        let mut holdings = Holdings {
            root,
            sources: vec![Vec::new(); context.params.p],
            displaced: vec![Vec::new(); context.params.p],
        };
        for (i, &row) in moves.sources.iter().enumerate() {
            holdings.sources[shape.row_map.owner(row)].push(i);
        }
        for (i, &(_, to)) in moves.displaced.iter().enumerate() {
            holdings.displaced[shape.row_map.owner(to)].push(i);
        }
        let rounds = if binary(context, section.wide) {
            exchange::binary(&holdings, me)
        } else if solves(context, section.wide) {
            exchange::shared(&holdings, me)
        } else {
            exchange::long(&holdings, me, context.params.equilibrate)
        };
        let first = section.cols.start;
        let len = chunk_cols(section.upper.k).min(section.cols.len());
        let pending = Pending::default();
        let (round, solved) = (None, 0);
        let mut way =
            Way { pending, moves, section, triangle, holdings, rounds, first, len, round, solved };
        // SAFETY: ensured by the caller, until the exchange is complete.
        if unsafe { self.next(context, &mut way, pool) } {
            self.way = Some(way);
        }
    }

    /// Continues the exchange in progress without waiting, in this thread alone: completes at most one round, or solves one strip
    /// of U.
    pub fn advance(&mut self, context: &Context) -> Advance {
        let Some(mut way) = self.way.take() else { return Advance::Nothing };
        let step = if !way.pending.test() {
            Advance::Nothing
        } else if *way.at_hand() == Round::Solve {
            Advance::Solved
        } else {
            Advance::Moved
        };
        // SAFETY: ensured by the caller of `begin`.
        if step == Advance::Nothing || unsafe { self.arrived(context, &mut way, None) } {
            self.way = Some(way);
        }
        step
    }

    /// Waits until the exchange in progress is complete. Returns at once if there is no exchange.
    pub fn finish(&mut self, context: &Context, pool: &mut Pool, clock: &mut Clock) {
        while let Some(mut way) = self.way.take() {
            let before = clock.enter(Part::SwapWait);
            way.pending.wait();
            clock.enter(before);
            // SAFETY: ensured by the caller of `begin`.
            if unsafe { self.arrived(context, &mut way, Some(&mut *pool)) } {
                self.way = Some(way);
            }
        }
        clock.hand_over(Part::Swap, Part::Triangle, std::mem::take(&mut self.solving));
    }

    /// Completes the current round, whose messages have arrived, and begins the next round. Returns false if the exchange is
    /// complete.
    unsafe fn arrived(
        &mut self,
        context: &Context,
        way: &mut Way,
        mut pool: Option<&mut Pool>,
    ) -> bool {
        // SAFETY: ensured by the caller.
        unsafe {
            if *way.at_hand() == Round::Solve {
                if !self.solve_on(context, way, pool.as_deref_mut()) {
                    return true;
                }
            } else {
                self.take_in(context, way, pool.as_deref_mut());
            }
            self.next(context, way, pool)
        }
    }

    /// Begins the next round, or the next chunk after the last round. Returns false if no chunk is left.
    unsafe fn next(
        &mut self,
        context: &Context,
        way: &mut Way,
        mut pool: Option<&mut Pool>,
    ) -> bool {
        loop {
            let round = match way.round {
                Some(round) => round + 1,
                None => {
                    // SAFETY: ensured by the caller.
                    unsafe { self.open_chunk(context, way, pool.as_deref_mut()) };
                    0
                }
            };
            if round < way.rounds.len() {
                way.round = Some(round);
                // SAFETY: ensured by the caller.
                unsafe { self.send_out(context, way, pool) };
                return true;
            }
            way.round = None;
            way.first += way.len;
            way.len = way.len.min(way.section.cols.end - way.first);
            if way.len == 0 {
                return false;
            }
        }
    }

    /// Copies the rows of a chunk that need no message. These are this process row's own rows of U, and displaced rows whose
    /// destination is in this process row.
    unsafe fn open_chunk(&mut self, context: &Context, way: &Way, mut pool: Option<&mut Pool>) {
        let Way { moves, holdings, len, .. } = way;
        let (map, me) = (context.shape.row_map, context.shape.row);
        let row = |global: usize| Array::Matrix.row(map.local(global));
        // If U is shared by columns, this process row needs only the columns of its own share.
        let shared = way.rounds.first() == Some(&Round::Gather);
        let own = if shared { way.share(context, me) } else { 0..*len };
        // Rows of U are stored in the upper block on arrival, and are forwarded from there. Displaced rows are copied from the
        // root's block into messages, and from messages to their places. Rows of U that were in these places have been copied
        // before.
        let mine = &holdings.sources[me];
        let rows = self.rows(context, way, own);
        // SAFETY: each row of U has one source, here and below, and no other thread writes the same row.
        unsafe {
            rows.copy(pool.as_deref_mut(), mine.len(), |j| {
                (row(moves.sources[mine[j]]), Array::Upper.row(mine[j]))
            });
        }
        if shared {
            // SAFETY: the array is large enough for this process row's rows of the other process rows' shares.
            unsafe { self.sort_by_shares(context, way, pool.as_deref_mut()) };
        }
        if me == holdings.root {
            let stay = &holdings.displaced[me];
            let rows = self.rows(context, way, 0..*len);
            // SAFETY: the rows are copied from the diagonal block, which is not written here, to distinct places. The sources of
            // U have been read before.
            unsafe {
                rows.copy(pool, stay.len(), |j| {
                    let (from, to) = moves.displaced[stay[j]];
                    (row(from), row(to))
                });
            }
        }
        hit(Point::SwapHalf, context.place);
    }

    /// Copies this process row's rows of U into the messages to the other process rows. Each message has the columns of its
    /// receiver's share.
    unsafe fn sort_by_shares(&mut self, context: &Context, way: &Way, pool: Option<&mut Pool>) {
        let me = context.shape.row;
        let (mine, moves) = (&way.holdings.sources[me], &way.moves);
        let shares = way.shares(context);
        let own = shares[me].len();
        let out = room_for(&mut self.out, mine.len() * (way.len - own));
        let (row, out) = (way.rows(context), Shareable::new(out));
        // SAFETY: each part of a row is copied to its own place. A share's place is behind the shares of all earlier process rows
        // except this one.
        by_all(pool, mine.len(), way.len, |j| unsafe {
            let from = row(moves.sources[mine[j]]).cast_const();
            for (to, share) in shares.iter().enumerate().filter(|&(to, _)| to != me) {
                let before = share.start - if to > me { own } else { 0 };
                let at = out.get().add(mine.len() * before + j * share.len());
                std::ptr::copy_nonoverlapping(from.add(share.start), at, share.len());
            }
        });
    }

    /// Starts to send and to receive the messages of the current round.
    unsafe fn send_out(&mut self, context: &Context, way: &mut Way, pool: Option<&mut Pool>) {
        // SAFETY: ensured by the caller.
        match *way.at_hand() {
            Round::Rows { .. } => unsafe { self.send_rows(context, way, pool) },
            Round::Gather => unsafe { self.gather(context, way) },
            Round::Solve => way.solved = 0,
            Round::Pass { send: (to, ours), recv: (from, theirs) } => {
                let block = |share| {
                    let cols = offset(way.share(context, share), way.u_first());
                    way.section.upper.whole_units(cols)
                };
                let ((out, out_len), (into, into_len)) = (block(ours), block(theirs));
                let (column, tag, pending) = (&context.column, self.tag, &mut way.pending);
                // SAFETY: the share to send is solved and only read from here on. No other thread uses the share to receive. U
                // outlives the messages.
                unsafe {
                    if into_len > 0 {
                        column.start_recv(into, into_len, from, tag, pending);
                    }
                    if out_len > 0 {
                        column.start_send(out.cast_const(), out_len, to, tag, pending);
                    }
                }
            }
        }
    }

    /// Solves the rest of this process row's share of U with all threads of `pool`. If `pool` is `None`, solves one strip in this
    /// thread. Returns whether the whole share is solved.
    unsafe fn solve_on(
        &mut self,
        context: &Context,
        way: &mut Way,
        pool: Option<&mut Pool>,
    ) -> bool {
        let start = Instant::now();
        let Way { triangle, section: Section { upper, .. }, .. } = &*way;
        let own = way.share(context, context.shape.row);
        let left = own.len() - way.solved;
        let piece = match pool {
            Some(_) => left,
            None => Strips::new(left, upper.column_unit(), 1).get(0).len(),
        };
        let first = way.u_first() + own.start + way.solved;
        // SAFETY: all rows of U have arrived in the columns of the own share, and no other thread touches these columns.
        unsafe { solve_strips(upper, triangle, first..first + piece, pool) };
        way.solved += piece;
        self.solving += start.elapsed();
        let all = piece == left;
        if all {
            hit(Point::SwapSolved, context.place);
        }
        all
    }

    /// Starts to send this process row's rows of U to all other process rows, to each receiver in the columns of its share.
    /// Starts to receive their rows of U in the columns of this process row's share.
    unsafe fn gather(&mut self, context: &Context, way: &mut Way) {
        let me = context.shape.row;
        let shares = way.shares(context);
        let (sources, own) = (&way.holdings.sources, shares[me].len());
        let theirs: usize = sources.iter().map(Vec::len).sum::<usize>() - sources[me].len();
        let (mut out, mut into) = (self.out.as_ptr(), room_for(&mut self.into, theirs * own));
        let (column, tag, pending) = (&context.column, self.tag, &mut way.pending);
        for other in (0..shares.len()).filter(|&other| other != me) {
            let come = sources[other].len() * own;
            let go = sources[me].len() * shares[other].len();
            // SAFETY: each message has its own part of an array. No thread touches the arrays before the messages have arrived.
            // The arrays are not dropped before the pending messages.
            unsafe {
                if come > 0 {
                    column.start_recv(into, come, other, tag, pending);
                }
                if go > 0 {
                    column.start_send(out, go, other, tag, pending);
                }
                (into, out) = (into.add(come), out.add(go));
            }
        }
    }

    /// Starts to send and to receive the rows of the current round, in all columns of the chunk.
    unsafe fn send_rows(&mut self, context: &Context, way: &mut Way, pool: Option<&mut Pool>) {
        let (cols, moves) = (way.len, &way.moves);
        let Round::Rows { send, recv } = &way.rounds[way.round.expect("a round is in progress")]
        else {
            return;
        };
        let map = context.shape.row_map;
        let is_root = context.shape.row == way.holdings.root;
        room_for(&mut self.transit, moves.displaced.len() * cols);
        if let Some((from, parcel)) = recv {
            let len = parcel.len() * cols;
            let into = room_for(&mut self.into, len);
            // SAFETY: no thread touches the array before the message has arrived. The array is not dropped before the pending
            // message.
            unsafe { context.column.start_recv(into, len, *from, self.tag, &mut way.pending) };
        }
        if let Some((to, parcel)) = send {
            let len = parcel.len() * cols;
            let out = room_for(&mut self.out, len);
            let upper = parcel.upper.len();
            let from = |j: usize| {
                if j < upper {
                    return Array::Upper.row(parcel.upper[j]);
                }
                let i = parcel.displaced[j - upper];
                if is_root {
                    Array::Matrix.row(map.local(moves.displaced[i].0))
                } else {
                    Array::Transit.row(i)
                }
            };
            let rows = self.rows(context, way, 0..cols);
            // SAFETY: each row of the message is written once, from rows that are only read.
            unsafe {
                rows.copy(pool, parcel.len(), |j| (from(j), Array::Out.row(j)));
                context.column.start_send(out, len, *to, self.tag, &mut way.pending);
            }
        }
    }

    /// Copies the rows that were received in the current round to their destinations.
    unsafe fn take_in(&mut self, context: &Context, way: &Way, pool: Option<&mut Pool>) {
        let (cols, moves) = (way.len, &way.moves);
        let parcel = match way.at_hand() {
            Round::Rows { recv: Some((_, parcel)), .. } => parcel,
            Round::Gather => {
                let me = context.shape.row;
                let own = way.share(context, me);
                let others = way.holdings.sources.iter().enumerate().filter(|&(v, _)| v != me);
                let theirs: Vec<usize> = others.flat_map(|(_, rows)| rows).copied().collect();
                let rows = self.rows(context, way, own);
                // SAFETY: each row is copied to its own place.
                unsafe {
                    rows.copy(pool, theirs.len(), |j| {
                        (Array::Into.row(j), Array::Upper.row(theirs[j]))
                    });
                }
                return;
            }
            // Solved shares are received directly in the upper block.
            _ => return,
        };
        let shape = &context.shape;
        room_for(&mut self.transit, moves.displaced.len() * cols);
        let upper = parcel.upper.len();
        let to = |j: usize| {
            if j < upper {
                return Array::Upper.row(parcel.upper[j]);
            }
            let i = parcel.displaced[j - upper];
            let to = moves.displaced[i].1;
            if shape.row_map.owner(to) == shape.row {
                Array::Matrix.row(shape.row_map.local(to))
            } else {
                Array::Transit.row(i)
            }
        };
        let rows = self.rows(context, way, 0..cols);
        // SAFETY: each row is copied to its own place.
        unsafe { rows.copy(pool, parcel.len(), |j| (Array::Into.row(j), to(j))) }
    }

    /// Returns the arrays of the exchange in progress, for the columns `cols` of the chunk.
    fn rows<'a>(&mut self, context: &'a Context, way: &Way, cols: Range<usize>) -> Rows<'a> {
        let first = Shareable::new(way.section.a.get().wrapping_add(way.first + cols.start));
        Rows {
            matrix: Matrix::new(first, context.shape.ld),
            upper: way.section.upper,
            cols: offset(cols, way.u_first()),
            out: Shareable::new(self.out.as_mut_ptr()),
            into: Shareable::new(self.into.as_mut_ptr()),
            transit: Shareable::new(self.transit.as_mut_ptr()),
            device: context.device.as_deref(),
        }
    }
}

/// Returns whether the rows of an update of `wide` columns are exchanged by binary exchange.
fn binary(context: &Context, wide: usize) -> bool {
    let params = context.params;
    match params.swap {
        Swap::BinaryExchange => true,
        Swap::Mix if wide <= params.swap_threshold => true,
        Swap::Long | Swap::Mix => exchange::binary_pays(params.p, params.nb, wide),
    }
}

/// Returns whether U is solved during the row exchange of an update of `wide` columns. In such an exchange, each process row
/// solves its share of the columns.
///
/// False with a single process row, and without equilibration. False with binary exchange, which gathers all of U on all process
/// rows. False with a BLAS, whose results depend on the division of columns.
pub fn solves(context: &Context, wide: usize) -> bool {
    let params = context.params;
    params.p > 1 && params.equilibrate && context.engine.cuts_freely() && !binary(context, wide)
}

/// Solves U in the columns `cols` with all threads of `pool`, or in this thread without a pool. `cols` begin at a multiple of U's
/// column unit.
///
/// # Safety
/// The blocks are valid, and no other thread touches the columns `cols` of U.
unsafe fn solve_strips(
    upper: &UpperBlock,
    triangle: &TriangleBlock,
    cols: Range<usize>,
    pool: Option<&mut Pool>,
) {
    let threads = pool.as_ref().map_or(1, |pool| pool.threads());
    let strips = Strips::new(cols.len(), upper.column_unit(), threads);
    // SAFETY: each task has its own columns.
    let solve = |i| unsafe { upper.solve(triangle, offset(strips.get(i), cols.start)) };
    match pool {
        Some(pool) => pool.run(strips.count, solve),
        None => (0..strips.count).for_each(solve),
    }
}

impl Way {
    /// Returns the current round.
    fn at_hand(&self) -> &Round {
        &self.rounds[self.round.expect("a round is in progress")]
    }

    /// Returns the columns of the chunk that process row `row` solves: its share.
    fn share(&self, context: &Context, row: usize) -> Range<usize> {
        share_of(self.len, self.section.upper.column_unit(), row, context.params.p)
    }

    /// Returns the shares of all process rows.
    fn shares(&self, context: &Context) -> Vec<Range<usize>> {
        (0..context.params.p).map(|row| self.share(context, row)).collect()
    }

    /// Returns the first column of the chunk, counted from the first column of the section.
    fn u_first(&self) -> usize {
        self.first - self.section.cols.start
    }

    /// Returns a function that maps the global number of a local row to the address of the chunk's part of this row in A.
    fn rows(&self, context: &Context) -> impl Fn(usize) -> *mut f64 + Sync + use<> {
        let (a, first, shape) = (self.section.a, self.first, context.shape);
        // SAFETY: the row is local, and the address is within the columns of the chunk.
        move |global| unsafe { a.get().add(shape.row_map.local(global) * shape.ld + first) }
    }
}

/// Returns the start of `array`, which must have room for `len` doubles.
fn room_for(array: &mut Pinned, len: usize) -> *mut f64 {
    assert!(len <= array.len(), "{len} doubles do not fit in an array of {}", array.len());
    array.as_mut_ptr()
}

/// Exchanges rows for a single process row, directly between A and the upper block. Only the columns `strip` are exchanged,
/// counted from the first column of `section`.
///
/// # Safety
/// The pointers of `section` are valid, and no other thread touches the strip in A or in the upper block.
pub unsafe fn within(shape: &Shape, moves: &RowMoves, section: &Section, strip: Range<usize>) {
    let Section { a, cols, upper, .. } = section;
    // SAFETY: all rows are local, and all columns are within the strip. The rows of U are read before displaced rows are written.
    // Displaced rows are read from the diagonal block's rows, which are not written here.
    unsafe {
        let at = |row: usize| {
            a.get().add(shape.row_map.local(row) * shape.ld + cols.start + strip.start)
        };
        // The hardware prefetcher cannot predict the next row, because a strip has too few columns.
        let ask = |row: usize| ask_for(at(row), strip.len());
        for (i, &source) in moves.sources.iter().enumerate() {
            if let Some(&next) = moves.sources.get(i + 1) {
                ask(next);
            }
            upper.put_row(i, strip.start, strip.len(), at(source));
        }
        for (i, &(from, to)) in moves.displaced.iter().enumerate() {
            if let Some(&(next, its)) = moves.displaced.get(i + 1) {
                ask(next);
                ask(its);
            }
            std::ptr::copy_nonoverlapping(at(from), at(to), strip.len());
        }
    }
}

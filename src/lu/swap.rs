//! Carries out the row exchange of a panel for a range of columns.
//!
//! Afterwards the upper block holds the pivoted rows of U in all process rows, and displaced rows
//! lie where they belong. The block's own rows in A still hold what they held: the update writes U
//! there once it is solved.

use super::context::Context;
use super::exchange::{self, Holdings, Round};
use super::need::Lengths;
use super::pivots::RowMoves;
use crate::blas::UpperBlock;
use crate::faults::{Point, hit};
use crate::params::Swap;
use crate::threads::{Pool, Shareable};
use std::ops::Range;

const TAG: i32 = 2;

/// Bytes that one array of rows under way may take: columns are exchanged in chunks of that size,
/// so that the memory for it does not grow with the matrix.
const CHUNK_BYTES: usize = 2 << 20;

/// Work arrays of the exchange between process rows.
pub struct Swapper {
    /// Displaced rows that are only passing through.
    transit: Vec<f64>,
    out: Vec<f64>,
    into: Vec<f64>,
}

impl Swapper {
    pub fn new(lengths: &Lengths) -> Self {
        let array = || Vec::with_capacity(lengths.swap);
        Self { transit: array(), out: array(), into: array() }
    }

    /// Bytes of the work arrays.
    pub fn bytes(&self) -> u64 {
        (self.transit.capacity() + self.out.capacity() + self.into.capacity()) as u64 * 8
    }

    /// Exchanges columns `cols` of `a` by `moves`. The upper block has as many columns.
    ///
    /// # Safety
    /// `a` is the whole local matrix; nobody else touches those columns; `u` is valid.
    #[allow(clippy::too_many_arguments)] // the step's natural inputs
    pub unsafe fn run(
        &mut self,
        context: &Context,
        moves: &RowMoves,
        k: usize,
        a: *mut f64,
        cols: Range<usize>,
        u: &UpperBlock,
        pool: &mut Pool,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            u.clear_edges();
            if context.params.p == 1 {
                within(context, moves, a, cols, u, pool);
            } else {
                self.across(context, moves, k, a, cols, u, pool);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // private continuation of `run`
    unsafe fn across(
        &mut self,
        context: &Context,
        moves: &RowMoves,
        k: usize,
        a: *mut f64,
        cols: Range<usize>,
        u: &UpperBlock,
        pool: &mut Pool,
    ) {
        let shape = &context.shape;
        let me = shape.row;
        let root = shape.row_map.owner(k * shape.nb);
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
        let binary = match context.params.swap {
            Swap::BinaryExchange => true,
            Swap::Long => false,
            Swap::Mix => cols.len() <= context.params.swap_threshold,
        };
        let rounds = if binary {
            exchange::binary(&holdings, me)
        } else {
            exchange::long(&holdings, me, context.params.equilibrate)
        };
        let step = chunk_cols(u.k);
        let mut at = cols.start;
        while at < cols.end {
            let len = step.min(cols.end - at);
            // SAFETY: passed on from the caller.
            unsafe {
                let u_first = at - cols.start;
                self.chunk(context, moves, &holdings, &rounds, a, (at, len), u, u_first, pool)
            };
            at += len;
        }
    }

    #[allow(clippy::too_many_arguments)] // private continuation of `across`
    unsafe fn chunk(
        &mut self,
        context: &Context,
        moves: &RowMoves,
        holdings: &Holdings,
        rounds: &[Round],
        a: *mut f64,
        (first, cols): (usize, usize),
        u: &UpperBlock,
        u_first: usize,
        pool: &mut Pool,
    ) {
        let shape = &context.shape;
        let me = shape.row;
        let u = *u;
        let a = Shareable::new(a);
        // SAFETY: rows of ours, in the chunk's columns.
        let row =
            |global: usize| unsafe { a.get().add(shape.row_map.local(global) * shape.ld + first) };
        // Row `i` of a message, to fill or to empty.
        let line = |message: Shareable<f64>, i: usize| {
            // SAFETY: messages are as long as their parcels.
            unsafe { message.get().add(i * cols) }
        };
        self.transit.resize(moves.displaced.len() * cols, 0.0);
        let transit = Shareable::new(self.transit.as_mut_ptr());
        // The upper block gathers the rows of U as they come, and is where they are passed on
        // from. Displaced rows go straight from the root's block into messages and from messages
        // to their places: those places hold nothing any more that U is still waiting for.
        let mine = &holdings.sources[me];
        // SAFETY: each row of U has one source, here and below, and nobody else writes to it.
        by_all(pool, mine.len(), cols, |j| unsafe {
            u.put_row(mine[j], u_first, cols, row(moves.sources[mine[j]]));
        });
        if me == holdings.root {
            let stay = &holdings.displaced[me];
            // SAFETY: they go from the block's rows, which nothing here writes, to places of their own.
            by_all(pool, stay.len(), cols, |j| unsafe {
                let (from, to) = moves.displaced[stay[j]];
                std::ptr::copy_nonoverlapping(row(from), row(to), cols);
            });
        }
        hit(Point::SwapHalf, context.place);
        for round in rounds {
            if let Some((_, parcel)) = &round.send {
                self.out.resize(parcel.len() * cols, 0.0);
                let out = Shareable::new(self.out.as_mut_ptr());
                let upper = parcel.upper.len();
                // SAFETY: each row of the message is filled once, from what is only read.
                by_all(pool, parcel.len(), cols, |j| unsafe {
                    let to = line(out, j);
                    if j < upper {
                        u.get_row(parcel.upper[j], u_first, cols, to);
                    } else {
                        let i = parcel.displaced[j - upper];
                        let from = match me == holdings.root {
                            true => row(moves.displaced[i].0),
                            false => line(transit, i),
                        };
                        std::ptr::copy_nonoverlapping(from.cast_const(), to, cols);
                    }
                });
            }
            if let Some((_, parcel)) = &round.recv {
                self.into.resize(parcel.len() * cols, 0.0);
            }
            context.column.exchange(
                round.send.as_ref().map(|(to, _)| (&self.out[..], *to)),
                round.recv.as_ref().map(|(from, _)| (&mut self.into[..], *from)),
                TAG,
            );
            if let Some((_, parcel)) = &round.recv {
                let into = Shareable::new(self.into.as_mut_ptr());
                let upper = parcel.upper.len();
                // SAFETY: each row goes to a place of its own.
                by_all(pool, parcel.len(), cols, |j| unsafe {
                    let from = line(into, j);
                    if j < upper {
                        u.put_row(parcel.upper[j], u_first, cols, from);
                    } else {
                        let i = parcel.displaced[j - upper];
                        let to = moves.displaced[i].1;
                        let to = match shape.row_map.owner(to) == me {
                            true => row(to),
                            false => line(transit, i),
                        };
                        std::ptr::copy_nonoverlapping(from.cast_const(), to, cols);
                    }
                });
            }
        }
    }
}

/// Copies `rows` rows of `cols` columns, shared out to the threads by what is worth waking one for.
fn by_all(pool: &mut Pool, rows: usize, cols: usize, copy: impl Fn(usize) + Sync) {
    /// Doubles that a thread copies in some ten microseconds.
    const WORTHWHILE: usize = 8 << 10;
    let at_once = (WORTHWHILE / cols.max(1)).max(rows.div_ceil(4 * pool.threads())).max(1);
    if pool.threads() == 1 || rows <= at_once {
        (0..rows).for_each(copy);
        return;
    }
    pool.run(rows.div_ceil(at_once), |task| {
        (task * at_once..((task + 1) * at_once).min(rows)).for_each(&copy);
    });
}

/// Doubles that an array of rows under way takes at most, with panels up to `width` wide: no message has more
/// rows than its panel has columns.
pub fn array_len(width: usize, cols: usize) -> usize {
    // A narrower panel has its rows exchanged in wider chunks, up to the same size.
    (CHUNK_BYTES / 8).max(width * chunk_cols(width)).min(width * cols)
}

/// Columns exchanged at a time under panels of width `nb`.
fn chunk_cols(nb: usize) -> usize {
    (CHUNK_BYTES / 8 / nb.max(1) / 48).max(1) * 48
}

/// The exchange where one process row has all rows: straight between A and the upper block.
unsafe fn within(
    context: &Context,
    moves: &RowMoves,
    a: *mut f64,
    cols: Range<usize>,
    u: &UpperBlock,
    pool: &mut Pool,
) {
    let shape = context.shape;
    let strips = Strips::new(cols.len(), u.column_unit().max(8), pool.threads());
    let a = Shareable::new(a);
    let u = *u;
    pool.run(strips.count, |task| {
        let strip = strips.get(task);
        // SAFETY: tasks have columns of their own. U is read out before displaced rows are
        // written, and those come from the block's rows, which nothing here writes.
        unsafe {
            let at = |row: usize| {
                a.get().add(shape.row_map.local(row) * shape.ld + cols.start + strip.start)
            };
            for (i, &source) in moves.sources.iter().enumerate() {
                u.put_row(i, strip.start, strip.len(), at(source));
            }
            for &(from, to) in &moves.displaced {
                std::ptr::copy_nonoverlapping(at(from), at(to), strip.len());
            }
        }
    });
}

/// Columns cut into strips for the threads.
#[derive(Clone, Copy)]
pub struct Strips {
    cols: usize,
    width: usize,
    pub count: usize,
}

impl Strips {
    pub fn new(cols: usize, unit: usize, threads: usize) -> Self {
        const WIDEST: usize = 240;
        let units = cols.div_ceil(unit);
        let widest = (WIDEST / unit).max(1);
        let width = if threads == 1 { widest } else { (units / (4 * threads)).clamp(1, widest) };
        Self { cols, width: width * unit, count: units.div_ceil(width) }
    }

    pub fn all(&self) -> Vec<Range<usize>> {
        (0..self.count).map(|i| self.get(i)).collect()
    }

    pub fn get(&self, i: usize) -> Range<usize> {
        i * self.width..((i + 1) * self.width).min(self.cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_all_columns_once() {
        for cols in 0..600 {
            for threads in 1..5 {
                let strips = Strips::new(cols, 24, threads);
                let mut next = 0;
                for i in 0..strips.count {
                    let strip = strips.get(i);
                    assert!(
                        strip.start == next && strip.start.is_multiple_of(24) && !strip.is_empty()
                    );
                    next = strip.end;
                }
                assert_eq!(next, cols);
            }
        }
    }
}

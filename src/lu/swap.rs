//! Carries out the row exchange of a panel for a range of columns.
//!
//! Afterwards the upper block holds the pivoted rows of U in all process rows, and displaced rows
//! lie where they belong. The block's own rows in A still hold what they held: the update writes U
//! there once it is solved.

use super::context::Context;
use super::exchange::{self, Holdings, Round};
use super::pivots::RowMoves;
use crate::blas::{UpperBlock, vector};
use crate::params::{Form, Swap};
use crate::threads::{Pool, Shareable};
use std::ops::Range;

const TAG: i32 = 2;

/// Bytes that one array of rows under way may take: columns are exchanged in chunks of that size,
/// so that the memory for it does not grow with the matrix.
const CHUNK_BYTES: usize = 2 << 20;

/// Work arrays of the exchange between process rows.
#[derive(Default)]
pub struct Swapper {
    /// Displaced rows that are only passing through.
    transit: Vec<f64>,
    out: Vec<f64>,
    into: Vec<f64>,
    /// A message in the other form.
    turned: Vec<f64>,
}

impl Swapper {
    /// Doubles the work arrays take at most.
    pub fn room(context: &Context) -> usize {
        if context.params.p == 1 {
            return 0;
        }
        4 * context.params.nb * chunk_cols(context.params.nb).min(context.shape.cols)
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
                self.across(context, moves, k, a, cols, u);
            }
        }
    }

    unsafe fn across(
        &mut self,
        context: &Context,
        moves: &RowMoves,
        k: usize,
        a: *mut f64,
        cols: Range<usize>,
        u: &UpperBlock,
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
                self.chunk(context, moves, &holdings, &rounds, a, (at, len), u, at - cols.start)
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
    ) {
        let shape = &context.shape;
        let me = shape.row;
        let turn = context.params.u == Form::Transposed;
        let row = |global: usize| {
            // SAFETY: a row of ours, in the chunk's columns.
            unsafe { a.add(shape.row_map.local(global) * shape.ld + first) }
        };
        // Row `i` of a message, to fill or to empty.
        let line = |message: &mut Vec<f64>, i: usize| message[i * cols..][..cols].as_mut_ptr();
        // The upper block gathers the rows of U as they come, and is where they are passed on
        // from. Displaced rows go straight from the root's block into messages and from messages
        // to their places: those places hold nothing any more that U is still waiting for.
        // SAFETY: rows of ours in this chunk, messages as long as their parcels, and an upper
        // block with these columns.
        unsafe {
            for &i in &holdings.sources[me] {
                u.put_row(i, u_first, cols, row(moves.sources[i]));
            }
            if me == holdings.root {
                for &i in &holdings.displaced[me] {
                    let (from, to) = moves.displaced[i];
                    std::ptr::copy_nonoverlapping(row(from), row(to), cols);
                }
            }
            for round in rounds {
                if let Some((_, parcel)) = &round.send {
                    self.out.resize(parcel.len() * cols, 0.0);
                    for (j, &i) in parcel.upper.iter().enumerate() {
                        u.get_row(i, u_first, cols, line(&mut self.out, j));
                    }
                    for (j, &i) in parcel.displaced.iter().enumerate() {
                        let from = if me == holdings.root {
                            row(moves.displaced[i].0).cast_const()
                        } else {
                            line(&mut self.transit, i).cast_const()
                        };
                        let to = line(&mut self.out, parcel.upper.len() + j);
                        std::ptr::copy_nonoverlapping(from, to, cols);
                    }
                    if turn {
                        self.turned.resize(self.out.len(), 0.0);
                        vector::transpose(&self.out, parcel.len(), cols, &mut self.turned);
                        std::mem::swap(&mut self.out, &mut self.turned);
                    }
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
                    if turn {
                        self.turned.resize(self.into.len(), 0.0);
                        vector::transpose(&self.into, cols, parcel.len(), &mut self.turned);
                        std::mem::swap(&mut self.into, &mut self.turned);
                    }
                    for (j, &i) in parcel.upper.iter().enumerate() {
                        u.put_row(i, u_first, cols, line(&mut self.into, j));
                    }
                    for (j, &i) in parcel.displaced.iter().enumerate() {
                        let from = line(&mut self.into, parcel.upper.len() + j);
                        let to = moves.displaced[i].1;
                        let to = if shape.row_map.owner(to) == me {
                            row(to)
                        } else {
                            self.transit.resize(moves.displaced.len() * cols, 0.0);
                            line(&mut self.transit, i)
                        };
                        std::ptr::copy_nonoverlapping(from, to, cols);
                    }
                }
            }
        }
    }
}

/// Columns exchanged at a time under panels of width `nb`: whole panels of the packed engine.
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
    let strips = Strips::new(cols.len(), u.column_unit(), pool.threads());
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
        const WIDEST: usize = 10;
        let units = cols.div_ceil(unit);
        let width = if threads == 1 { WIDEST } else { (units / (4 * threads)).clamp(1, WIDEST) };
        Self { cols, width: width * unit, count: units.div_ceil(width) }
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

//! Carries out the row exchange of a panel for a range of columns.
//!
//! Afterwards the upper block holds the pivoted rows of U in all process rows, and displaced rows
//! lie where they belong. The block's own rows in A still hold what they held: the update writes U
//! there once it is solved.

use super::context::Context;
use super::exchange::{self, Holdings, Round};
use super::pivots::RowMoves;
use crate::blas::UpperBlock;
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
    upper: Vec<f64>,
    displaced: Vec<f64>,
    out: Vec<f64>,
    into: Vec<f64>,
}

/// A table of rows in one of the two forms.
#[derive(Clone, Copy)]
struct Table {
    form: Form,
    rows: usize,
    cols: usize,
}

impl Table {
    /// Copies row `i` of this table out to, or in from, row `j` of `other`.
    fn copy_row(self, from: &[f64], i: usize, to: &mut [f64], other: Table, j: usize) {
        debug_assert_eq!(self.cols, other.cols);
        match self.form {
            Form::NotTransposed => to[j * self.cols..][..self.cols]
                .copy_from_slice(&from[i * self.cols..][..self.cols]),
            Form::Transposed => {
                for c in 0..self.cols {
                    to[c * other.rows + j] = from[c * self.rows + i];
                }
            }
        }
    }
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
        let form = context.params.u;
        let upper = Table { form, rows: moves.sources.len(), cols };
        let displaced = Table { form, rows: moves.displaced.len(), cols };
        self.upper.resize(upper.rows * cols, 0.0);
        self.displaced.resize(displaced.rows * cols, 0.0);
        let row = |global: usize| {
            // SAFETY: a row of ours, in the chunk's columns.
            unsafe { a.add(shape.row_map.local(global) * shape.ld + first) }
        };
        // SAFETY: rows of A are read here and written only below.
        unsafe {
            for &i in &holdings.sources[me] {
                load(row(moves.sources[i]), &mut self.upper, upper, i);
            }
            if me == holdings.root {
                for (i, &(from, _)) in moves.displaced.iter().enumerate() {
                    load(row(from), &mut self.displaced, displaced, i);
                }
            }
        }
        for round in rounds {
            if let Some((_, parcel)) = &round.send {
                let message = Table { form, rows: parcel.len(), cols };
                self.out.resize(message.rows * cols, 0.0);
                for (j, &i) in parcel.upper.iter().enumerate() {
                    upper.copy_row(&self.upper, i, &mut self.out, message, j);
                }
                for (j, &i) in parcel.displaced.iter().enumerate() {
                    let j = parcel.upper.len() + j;
                    displaced.copy_row(&self.displaced, i, &mut self.out, message, j);
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
                let message = Table { form, rows: parcel.len(), cols };
                for (j, &i) in parcel.upper.iter().enumerate() {
                    message.copy_row(&self.into, j, &mut self.upper, upper, i);
                }
                for (j, &i) in parcel.displaced.iter().enumerate() {
                    let j = parcel.upper.len() + j;
                    message.copy_row(&self.into, j, &mut self.displaced, displaced, i);
                }
            }
        }
        // SAFETY: rows of ours; the upper block has these columns.
        unsafe {
            for &i in &holdings.displaced[me] {
                store(&self.displaced, displaced, i, row(moves.displaced[i].1));
            }
            let mut line = Vec::new();
            for i in 0..upper.rows {
                match form {
                    Form::NotTransposed => {
                        u.put_row(i, u_first, cols, self.upper[i * cols..].as_ptr());
                    }
                    Form::Transposed => {
                        line.clear();
                        line.extend((0..cols).map(|c| self.upper[c * upper.rows + i]));
                        u.put_row(i, u_first, cols, line.as_ptr());
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

unsafe fn load(row: *const f64, table: &mut [f64], shape: Table, i: usize) {
    // SAFETY: the row has as many columns as the table.
    let row = unsafe { std::slice::from_raw_parts(row, shape.cols) };
    match shape.form {
        Form::NotTransposed => table[i * shape.cols..][..shape.cols].copy_from_slice(row),
        Form::Transposed => {
            for (c, v) in row.iter().enumerate() {
                table[c * shape.rows + i] = *v;
            }
        }
    }
}

unsafe fn store(table: &[f64], shape: Table, i: usize, row: *mut f64) {
    // SAFETY: the row has as many columns as the table.
    let row = unsafe { std::slice::from_raw_parts_mut(row, shape.cols) };
    match shape.form {
        Form::NotTransposed => row.copy_from_slice(&table[i * shape.cols..][..shape.cols]),
        Form::Transposed => {
            for (c, v) in row.iter_mut().enumerate() {
                *v = table[c * shape.rows + i];
            }
        }
    }
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

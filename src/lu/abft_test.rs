//! A test under `--method abft`: the part that a rank keeps when an attempt fails, and the continuation of the test in the next
//! attempt.
//!
//! A checksum column replaces each lost process column. This file changes the roles of ranks. A change of role copies only the
//! right-hand side b, because the sums remain where they are. The caller decides which process columns are lost and at which
//! boundary the test continues.

use std::io;

use super::arrays::{own_part, work_arrays};
use super::clock::Clock;
use super::context::Context;
use super::in_steps::{InSteps, Summing};
use super::observer::{Event, Milestone, Observer, Silent};
use super::operations::Operations;
use super::recompute_u::recompute_u;
use super::roles::{Exchanges, Past, Progress, weight};
use super::schedule::Run;
use super::solve::{Factored, back_substitute};
use super::test::{Timer, conclude, forget_resident_peak, generator};
use super::work::Work;
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::outcome::Outcome;
use crate::base::threads::Pool;
use crate::comm::set_phase;
use crate::matrix::{HugeBuffer, Local, Shape};

/// Part of one rank in a test under `--method abft`.
pub struct AbftTest {
    local: Local<HugeBuffer>,
    /// Work arrays. `None` after factorisation and back substitution, when the work arrays are freed.
    work: Option<Work>,
    pub progress: Progress,
}

/// State from which an attempt continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct From {
    /// Boundary at which the attempt continues: all panels before `boundary` are applied. A process column that has not yet
    /// applied the last of these panels applies this panel first.
    pub boundary: usize,
    /// True if panel `boundary` is already factored, and is in the memory of the process column that owns the panel.
    pub ready: bool,
    /// All replacements of process columns so far, and all rebuildings of checksum columns that were begun.
    pub past: Past,
    /// Numbers of the checksum columns to rebuild in this attempt. The ranks of these checksum columns have joined the test with
    /// [`AbftTest::joining`].
    pub renew: Vec<usize>,
}

impl AbftTest {
    /// Allocates this rank's part of the matrix or of the checksums, and its work arrays. All ranks of the grid call this
    /// together. If the allocation fails on any rank, all ranks get an error.
    pub fn new(context: &Context, pool: &mut Pool) -> io::Result<Self> {
        let local = own_part(context)?;
        forget_resident_peak();
        let work = work_arrays(context, pool)?;
        Ok(Self { local, work: Some(work), progress: Progress::default() })
    }

    /// Allocates this rank's part of a checksum column that will be rebuilt. Any earlier part of the test on this rank is given
    /// up. `began_unix_s` is the time at which the test began, in seconds since the Unix epoch. Does not communicate.
    pub fn joining(context: &Context, began_unix_s: f64, pool: &mut Pool) -> io::Result<Self> {
        let room = HugeBuffer::touched(context.shape.len(), pool)?;
        let local = Local::new(context.shape, room);
        forget_resident_peak();
        let work = Work::new(context, pool)?;
        let progress = Progress { began_unix_s, ..Progress::default() };
        Ok(Self { local, work: Some(work), progress })
    }

    /// Returns the shape of the local part and its elements, stored by rows.
    pub fn part(&mut self) -> (Shape, &[f64]) {
        (self.local.shape, self.local.storage().as_slice())
    }

    /// Bytes of the local part of the matrix or of the checksums.
    pub fn bytes(&self) -> u64 {
        self.local.shape.len() as u64 * 8
    }

    /// Returns whether the local part consists of checksums.
    pub fn holds_sums(&self) -> bool {
        self.local.shape.is_sums()
    }

    /// Solves the test from the state `from` of earlier attempts. If `from` is `None`, solves the test from the start.
    ///
    /// All ranks of the grid call this together. Returns the outcome and the seconds that the recomputation of U took. The
    /// outcome is complete only on ranks that have columns of the matrix.
    pub fn solve<O: Observer>(
        &mut self,
        context: &mut Context,
        from: Option<&From>,
        pool: &mut Pool,
        observer: &mut O,
    ) -> (Outcome, f64) {
        match from {
            None => self.generate(context, pool, observer),
            Some(from) => self.take_up(context, from, pool),
        }
        let a = self.local.pointer();
        let shape = self.local.shape;
        let none = Past::default();
        let (start, ready, past, new): (_, _, _, &[usize]) = match from {
            None => (0, false, &none, &[]),
            Some(from) => (from.boundary, from.ready, &from.past, &from.renew),
        };
        let exchanges = &Exchanges::new(past, &shape);
        let summing = Summing { exchanges, new };
        let earlier = Some(self.progress.began_unix_s).filter(|&began| began > 0.0);
        let mut timer = Timer::start(context, earlier);
        self.progress.began_unix_s = timer.began;
        observer.observe(Event::Began { unix_s: timer.began });
        let (work, progress) = (self.work.as_mut(), &mut self.progress);
        if let (true, Some(work)) = (start < context.params.blocks(), work) {
            let clock = &mut timer.clock;
            // SAFETY: the local matrix is borrowed mutably for the whole attempt.
            let operations = unsafe { Operations::new(context, a, work, clock) };
            let steps = InSteps::begin(context, progress, Some(summing));
            Run::new(operations, pool, observer, Some(steps)).all(start, ready);
        }
        set_phase("solving");
        observer.observe(Event::Reached(Milestone::Factored));
        let mut x = Vec::new();
        let mut recompute_s = 0.0;
        if !shape.is_sums() {
            let began = std::time::Instant::now();
            if !exchanges.there.is_empty() && !sabotaged(Sabotage::NoRecompute) {
                recompute_u(context, self.local.view_mut(), exchanges, &mut progress.recomputed);
                recompute_s = began.elapsed().as_secs_f64();
            }
            let a = Factored::Here(self.local.view());
            x = back_substitute(context, a, pool, &mut timer.clock);
            settle(context, exchanges, &mut x);
        }
        let outcome = conclude(context, timer, &mut self.work, x, pool, observer);
        (outcome, recompute_s)
    }

    fn generate<O: Observer>(&mut self, context: &Context, pool: &mut Pool, observer: &mut O) {
        set_phase("generating the matrix");
        observer.observe(Event::Reached(Milestone::Generating));
        let shape = &self.local.shape;
        match shape.sums() {
            None => self.local.generate(&generator(context), pool),
            Some(by) => {
                let weights: Vec<f64> = (0..shape.grid.q).map(|col| weight(by, col)).collect();
                self.local.generate_sums(&generator(context), &weights, pool);
            }
        }
        self.progress.generated = true;
        observer.observe(Event::Reached(Milestone::Generated));
    }

    /// Prepares this rank for an attempt that continues at a boundary. If this rank has not yet applied the last panel before the
    /// boundary, applies this panel. Then changes this rank's role to its role in the new attempt.
    fn take_up(&mut self, context: &mut Context, from: &From, pool: &mut Pool) {
        let a = self.local.pointer();
        let new = context.shape;
        // The last panel is applied in this rank's earlier role.
        context.shape = self.local.shape;
        if let Some(work) = &mut self.work {
            work.give_up_messages();
            if self.progress.generated && self.progress.applied < from.boundary {
                set_phase("catching up after a loss");
                debug_assert_eq!(self.progress.applied + 1, from.boundary);
                let clock = &mut Clock::start();
                // SAFETY: the local matrix is borrowed mutably.
                let operations = unsafe { Operations::new(context, a, work, clock) };
                catch_up(operations, &mut self.progress, pool);
            }
        }
        if self.local.shape.is_sums() && !new.is_sums() {
            self.become_column(new.col);
        }
        context.shape = self.local.shape;
        hit(Point::Exchanged, context.place);
    }

    /// Turns this rank's part of a checksum column into its part of process column `col`. Only elements of the column b are
    /// copied.
    fn become_column(&mut self, col: usize) {
        let old: Shape = self.local.shape;
        let new = old.as_column(col);
        if let (Some(from), Some(to)) = (old.rhs(), new.rhs()) {
            for mut row in self.local.view_mut().rows_mut() {
                row[to] = row[from];
            }
        }
        self.local.shape = new;
    }
}

/// Applies the one panel by which this process column is behind the other process columns. This panel has already arrived.
fn catch_up(operations: Operations, progress: &mut Progress, pool: &mut Pool) {
    let (k, context) = (progress.applied, operations.context);
    let ahead = context.params.depth > 0 && k + 1 < context.params.blocks();
    let (mut observer, steps) = (Silent, InSteps::begin(context, progress, None));
    let mut run = Run::new(operations, pool, &mut observer, Some(steps));
    run.iterate(k, ahead.then_some(k + 1), k + 1 + usize::from(ahead));
    run.end_steps();
}

/// Converts the solution of the factored system to the solution of the original system. All ranks that have columns of the matrix
/// call this together.
fn settle(context: &Context, exchanges: &Exchanges, x: &mut [f64]) {
    let shape = &context.shape;
    let replaced = exchanges.there.iter().map(|&which| {
        let col = exchanges.made[which].col;
        let mut y = vec![0.0; shape.col_map.count_below(shape.n, col)];
        if shape.col == col {
            y.copy_from_slice(x);
        }
        context.row.broadcast(&mut y, col);
        (col, y)
    });
    let replaced: Vec<(usize, Vec<f64>)> = replaced.collect();
    exchanges.settle(shape.col, x, &replaced);
}

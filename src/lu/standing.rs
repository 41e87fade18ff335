//! A test that outlives the attempts at it: what a rank keeps of it wherever an attempt is left, and how the next goes on.
//!
//! Where columns of sums are kept beside the matrix, a process column that is lost is replaced by one of them: this is where
//! roles are exchanged, which moves nothing but a column b. Who has been lost, and who goes on from where, is for the caller to
//! say.

use std::io;

use super::arrays::{own_part, work_arrays};
use super::context::Context;
use super::in_steps::{Summing, catch_up_in_steps, factorise_in_steps};
use super::observer::{Milestone, Observer};
use super::regain::regain;
use super::roles::{Exchanges, Past, Progress, weight};
use super::solve::back_substitute;
use super::test::{Timer, conclude, forget_resident_peak, generator};
use super::work::Work;
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::outcome::Outcome;
use crate::base::threads::Pool;
use crate::comm::set_phase;
use crate::matrix::{HugeBuffer, Local, Shape};

/// One rank's part of a test.
pub struct Standing {
    local: Local<HugeBuffer>,
    /// Gone once everything is factored and solved.
    work: Option<Work>,
    pub progress: Progress,
}

/// Where an attempt goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct From {
    /// All process columns have it behind them, or are one step behind it.
    pub boundary: usize,
    /// Whether its panel is factored: then the process column that it is of has it.
    pub ready: bool,
    /// The roles that have been exchanged, now or before, and the sums that were to be made.
    pub past: Past,
    /// The numbers of sums that are to be made now: those who are to keep them have come to the test since
    /// ([`Standing::joining`]).
    pub renew: Vec<usize>,
}

impl Standing {
    /// Room for this rank's part. All ranks of the grid together; an error on all of them says who has none.
    pub fn new(context: &Context, pool: &mut Pool) -> io::Result<Self> {
        let local = own_part(context)?;
        forget_resident_peak();
        let work = work_arrays(context, pool)?;
        Ok(Self { local, work: Some(work), progress: Progress::default() })
    }

    /// Room for new sums, at a rank that has had no part of the test, or gives up what it had. It does not ask the others.
    pub fn joining(context: &Context, began_unix_s: f64, pool: &mut Pool) -> io::Result<Self> {
        let room = HugeBuffer::touched(context.shape.len(), pool)?;
        let local = Local::new(context.shape, room);
        forget_resident_peak();
        let work = Work::new(context, pool)?;
        let progress = Progress { began_unix_s, ..Progress::default() };
        Ok(Self { local, work: Some(work), progress })
    }

    /// What lies here: its shape, and the elements by rows.
    pub fn part(&mut self) -> (Shape, &[f64]) {
        (self.local.shape, self.local.storage().as_slice())
    }

    /// Bytes of the matrix, or of the sums, here.
    pub fn bytes(&self) -> u64 {
        self.local.shape.len() as u64 * 8
    }

    /// Whether what lies here are sums.
    pub fn holds_sums(&self) -> bool {
        self.local.shape.is_sums()
    }

    /// Solves the test from the beginning, or from where earlier attempts have come. All ranks of the grid together;
    /// the outcome is whole where this rank has columns of the matrix. Beside it the seconds that regaining U took.
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
        let ((from, past), new): (_, &[usize]) = match from {
            None => (((0, false), &none), &[]),
            Some(from) => (((from.boundary, from.ready), &from.past), &from.renew),
        };
        let exchanges = &Exchanges::new(past, &shape);
        let summing = Summing { exchanges, new };
        let earlier = Some(self.progress.began_unix_s).filter(|&began| began > 0.0);
        let mut timer = Timer::start(context, earlier);
        self.progress.began_unix_s = timer.began;
        observer.began(timer.began);
        let (work, progress) = (self.work.as_mut(), &mut self.progress);
        if let (true, Some(work)) = (from.0 < context.params.blocks(), work) {
            // SAFETY: the local matrix is borrowed mutably for the whole attempt.
            unsafe {
                let clock = &mut timer.clock;
                factorise_in_steps(
                    context, a, from, summing, work, progress, pool, clock, observer,
                );
            }
        }
        set_phase("solving");
        observer.reached(Milestone::Factored);
        let mut x = Vec::new();
        let mut regain_s = 0.0;
        if !shape.is_sums() {
            let began = std::time::Instant::now();
            if !exchanges.there.is_empty() && !sabotaged(Sabotage::NoRegain) {
                regain(context, self.local.view_mut(), exchanges, &mut progress.regained);
                regain_s = began.elapsed().as_secs_f64();
            }
            x = back_substitute(context, self.local.view(), pool, &mut timer.clock);
            settle(context, exchanges, &mut x);
        }
        let outcome = conclude(context, timer, &mut self.work, x, pool, observer);
        (outcome, regain_s)
    }

    fn generate<O: Observer>(&mut self, context: &Context, pool: &mut Pool, observer: &mut O) {
        set_phase("generating the matrix");
        observer.reached(Milestone::Generating);
        let shape = &self.local.shape;
        match shape.sums() {
            None => self.local.generate(&generator(context), pool),
            Some(by) => {
                let weights: Vec<f64> = (0..shape.grid.q).map(|col| weight(by, col)).collect();
                self.local.generate_sums(&generator(context), &weights, pool);
            }
        }
        self.progress.generated = true;
        observer.reached(Milestone::Generated);
    }

    /// Comes to the boundary at which all go on, and takes the role that this rank has from there.
    fn take_up(&mut self, context: &mut Context, from: &From, pool: &mut Pool) {
        let a = self.local.pointer();
        let new = context.shape;
        // What is left to do of the last step is done in the role in which it was begun.
        context.shape = self.local.shape;
        if let Some(work) = &mut self.work {
            work.give_up_messages();
            if self.progress.generated && self.progress.applied < from.boundary {
                set_phase("catching up after a loss");
                debug_assert_eq!(self.progress.applied + 1, from.boundary);
                // SAFETY: the local matrix is borrowed mutably.
                unsafe { catch_up_in_steps(context, a, work, &mut self.progress, pool) };
            }
        }
        if self.local.shape.is_sums() && !new.is_sums() {
            self.become_column(new.col);
        }
        context.shape = self.local.shape;
        hit(Point::Exchanged, context.place);
    }

    /// The sums are process column `col` from here on.
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

/// From the solution of what was factored to that of the system. All ranks that have columns, together.
fn settle(context: &Context, exchanges: &Exchanges, x: &mut [f64]) {
    let shape = &context.shape;
    let replaced = exchanges.there.iter().map(|&which| {
        let col = exchanges.of(which).col;
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

//! The column of checksums takes the place of a process column that has lost a rank: `--method abft`.
//!
//! The acts are those of [`nonstop`](super::nonstop). What differs is what an act begins with: nothing is restored. By the last roll call each
//! rank knows how far every process column has come; [`cast`], a pure function of that, gives everybody its role and the boundary that all go on from, or says why
//! it cannot. docs/NONSTOP.md tells the whole protocol.

mod cast;
#[cfg(test)]
mod model;

use super::agreement::Ended;
use super::exit::Exit;
use super::nonstop::Story;
use super::{say, signs};
use crate::comm::Reduce;
use crate::course::{Recorder, What};
use crate::faults::{Point, hit};
use crate::input::Loaded;
use crate::lu::{
    Context, DEPTH_IN_STEPS, Exchange, Milestone, Observer, Seat, Standing, unix_seconds,
};
use crate::outcome::{Checksums, Outcome};
use crate::supervise::start::in_place::{self, ANEW, Notice};
use crate::threads::Pool;

pub use cast::{Cast, Status, cast};

/// What checksums need of the settings; the same on every rank of a sound job.
pub fn fits(loaded: &Loaded) -> Result<(), Ended> {
    let settings = &loaded.settings;
    let why = if settings.protection.is_some() {
        "--method abft saves nothing, so it cannot be had together with --checkpoint: leave one out"
    } else if settings.spare_ranks > 0 {
        "under --method abft nobody stands by: leave --spare-ranks out; it has Q+1 process columns instead of Q"
    } else if loaded.dat.depths.iter().any(|&depth| depth > DEPTH_IN_STEPS) {
        "--method abft goes with a lookahead of 0 or 1: set --depth 1 (line 25 of HPL.dat)"
    } else {
        return Ok(());
    };
    Err(Ended::new(Exit::BadInput, why))
}

/// What a rank keeps of a test from one act to the next.
pub struct Held {
    test: usize,
    seat: Seat,
    standing: Standing,
    exchange: Option<Exchange>,
    way: Recorder,
    told: Checksums,
}

impl Held {
    pub fn status(&self) -> Status {
        Status {
            test: self.test,
            row: self.seat.row,
            col: self.seat.col,
            place: self.seat.place,
            sums: self.standing.holds_sums(),
            progress: self.standing.progress,
            exchange: self.exchange,
        }
    }
}

/// Takes the role that this rank has from now on; to be called by all as soon as it is known, since who leaves later
/// must not tell an older one.
pub fn take_role(held: &mut Option<Held>, seat: Option<Seat>, cast: &Cast) {
    // Who stands idle keeps none; what is of another test makes room when this one begins.
    if let (Some(held), Some(seat), Some(from)) = (held.as_mut(), seat, cast.from) {
        (held.seat, held.exchange) = (seat, from.exchange);
    }
}

/// Solves test `number`. All ranks that have a role together.
pub fn solve(
    context: &mut Context,
    (number, cast): (usize, &Cast),
    pool: &mut Pool,
    watcher: &mut impl Observer,
    held: &mut Option<Held>,
    story: &mut Story,
) -> Result<Option<Outcome>, String> {
    if cast.from.is_none() {
        // What there is of another test, or of one that begins anew, makes room first.
        let losses = held.take().filter(|held| held.test == number).map_or(0, |h| h.told.losses);
        let standing = Standing::new(context, pool).map_err(|error| error.to_string())?;
        let mut bytes = [0, 0];
        bytes[usize::from(standing.holds_sums())] = standing.bytes();
        context.grid.all_reduce(&mut bytes, Reduce::Sum);
        let [matrix_bytes, checksum_bytes] = bytes;
        let told = Checksums { losses, matrix_bytes, checksum_bytes, ..Checksums::default() };
        let seat = Seat { row: context.shape.row, col: context.shape.col, place: context.place };
        let way = Recorder::default();
        *held = Some(Held { test: number, seat, standing, exchange: None, way, told });
    }
    let Held { standing, way, told, .. } = held.as_mut().expect("who has a role has a part");
    let exchange = cast.from.and_then(|from| from.exchange);
    told.replaced = exchange.map(|e| e.col as u64);
    told.boundary = exchange.map(|e| e.boundary as u64);
    let mut observer = Steps {
        number,
        blocks: context.params.blocks(),
        place: context.place,
        speaks: context.grid.rank() == 0,
        began_unix_s: 0.0,
        notice: &mut story.notice,
        cast,
        way,
        told,
        watcher,
    };
    let (outcome, regain_s) = standing.solve(context, cast.from, pool, &mut observer);
    told.regain_s = regain_s;
    let course = way.course(context.params.n, context.params.nb);
    Ok(Some(Outcome { checksums: Some(*told), course, ..outcome }))
}

/// Where it goes on from, in words.
fn words(number: usize, blocks: usize, cast: &Cast) -> String {
    let test = number + 1;
    let Some(from) = cast.from else {
        let without = if cast.sums { "" } else { " without checksums" };
        return format!("test {test} {ANEW}{without}, nothing was factored");
    };
    let how = match from.exchange {
        Some(e) if cast.exchanged => {
            format!("the checksums take the place of process column {}", e.col)
        }
        Some(_) => "whom it had was idle".to_owned(),
        None if cast.sums => "nobody lost had a part".to_owned(),
        None => "from here on there are no checksums".to_owned(),
    };
    format!("{how}; {}", in_place::from_boundary(test, from.boundary, blocks))
}

/// Notes the way of a test, strikes where faults are armed, and tells of a loss when all is ready to go on.
struct Steps<'a, O> {
    number: usize,
    blocks: usize,
    place: usize,
    speaks: bool,
    began_unix_s: f64,
    notice: &'a mut Option<Notice>,
    cast: &'a Cast,
    way: &'a mut Recorder,
    told: &'a mut Checksums,
    watcher: &'a mut O,
}

impl<O> Steps<'_, O> {
    fn elapsed(&self) -> f64 {
        (unix_seconds() - self.began_unix_s).max(0.0)
    }
}

impl<O: Observer> Observer for Steps<'_, O> {
    fn began(&mut self, unix_s: f64) {
        self.began_unix_s = unix_s;
        if let Some(notice) = self.notice.take() {
            let boundary = self.cast.from.map_or(0, |from| from.boundary);
            let since = (unix_seconds() - notice.noticed_unix_s).max(0.0);
            self.told.losses += 1;
            self.told.going_on_s += since;
            let at_s = (notice.noticed_unix_s - unix_s).max(0.0);
            self.way.interrupt(What::Restore, boundary, at_s, since);
            if self.speaks {
                let words = words(self.number, self.blocks, self.cast);
                say(notice.told(&words));
            }
        }
        self.watcher.began(unix_s);
    }

    fn reached(&mut self, milestone: Milestone) {
        let (point, _) = signs::words(milestone);
        hit(point, self.place);
        if milestone == Milestone::Factored {
            self.way.pass(self.blocks, self.blocks, self.elapsed());
        }
        self.watcher.reached(milestone);
    }

    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        self.way.pass(k, blocks, self.elapsed());
        hit(Point::Iteration, self.place);
        self.watcher.iteration(k, blocks, elapsed);
    }

    fn multiplied(&mut self, seconds: f64, flops: f64) {
        self.watcher.multiplied(seconds, flops);
    }

    fn solved(&mut self, x: &[f64]) {
        self.watcher.solved(x);
    }
}

//! Columns of checksums take the place of process columns that have lost ranks: `--method abft`.
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
use super::say;
use super::signs::{self, Signs};
use crate::comm::Reduce;
use crate::course::{Recorder, What};
use crate::faults::{Point, hit};
use crate::input::Loaded;
use crate::lu::{
    Context, DEPTH_IN_STEPS, Exchange, Milestone, Observer, Seat, Standing, unix_seconds,
};
use crate::outcome::{Checksums, Outcome, Replaced};
use crate::supervise::start::in_place::{self, ANEW, Notice};
use crate::threads::Pool;

pub use cast::{Cast, Status, cast, listed};

/// What checksums need of the settings; the same on every rank of a sound job.
pub fn fits(loaded: &Loaded) -> Result<(), Ended> {
    let settings = &loaded.settings;
    let why = if settings.protection.is_some() {
        "--method abft saves nothing, so it does not go together with --checkpoint: leave one out"
    } else if settings.spare_ranks > 0 {
        "under --method abft nobody stands by: leave --spare-ranks out; it has more process columns instead (--checksum-columns)"
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
    exchanges: Vec<Exchange>,
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
            columns: self.told.columns as usize,
            progress: self.standing.progress,
            exchanges: self.exchanges.clone(),
        }
    }
}

/// Takes the role that this rank has from now on; to be called by all as soon as it is known, since who leaves later
/// must not tell an older one.
pub fn take_role(held: &mut Option<Held>, seat: Option<Seat>, cast: &Cast) {
    // Who stands idle keeps none; what is of another test makes room when this one begins.
    if let (Some(held), Some(seat), Some(from)) = (held.as_mut(), seat, &cast.from) {
        (held.seat, held.exchanges) = (seat, from.exchanges.clone());
    }
}

/// Solves test `number`; `asked`: how many columns of checksums it is to have. All ranks that have a role together.
pub fn solve(
    context: &mut Context,
    (number, asked, cast): (usize, usize, &Cast),
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
        let columns = cast.sums as u64;
        let told =
            Checksums { losses, columns, matrix_bytes, checksum_bytes, ..Checksums::default() };
        let seat = Seat { row: context.shape.row, col: context.shape.col, place: context.place };
        let way = Recorder::default();
        *held = Some(Held { test: number, seat, standing, exchanges: Vec::new(), way, told });
    }
    let Held { standing, way, told, .. } = held.as_mut().expect("who has a role has a part");
    let mut shown = Signs::beneath(context, number, standing.holds_sums(), watcher);
    let replaced = |e: &Exchange| Replaced { column: e.col as u64, boundary: e.boundary as u64 };
    let exchanges = cast.from.as_ref().map_or(&[][..], |from| &from.exchanges);
    told.replaced = exchanges.iter().map(replaced).collect();
    let mut observer = Steps {
        number,
        blocks: context.params.blocks(),
        place: context.place,
        speaks: context.grid.rank() == 0,
        began_unix_s: 0.0,
        notice: &mut story.notice,
        columns: if cast.from.is_some() { told.columns as usize } else { asked },
        cast,
        way,
        told,
        watcher: &mut shown,
    };
    let (outcome, regain_s) = standing.solve(context, cast.from.as_ref(), pool, &mut observer);
    told.regain_s = regain_s;
    let course = way.course(context.params.n, context.params.nb);
    Ok(Some(Outcome { checksums: Some(told.clone()), course, ..outcome }))
}

/// Where it goes on from, in words. `columns`: as in [`Steps`].
fn words(number: usize, blocks: usize, cast: &Cast, columns: usize) -> String {
    let test = number + 1;
    let Some(from) = &cast.from else {
        let with = match cast.sums {
            0 => " without checksums".to_owned(),
            sums if sums < columns => format!(" with {}", so_many(sums)),
            _ => String::new(),
        };
        return format!("test {test} {ANEW}{with}, nothing was factored");
    };
    let how = match cast.exchanges() {
        [] if cast.sums + from.exchanges.len() < columns => match cast.sums {
            0 => "from here on there are no checksums".to_owned(),
            sums => format!("from here on there is {} left", so_many(sums)),
        },
        [] if from.exchanges.is_empty() => "nobody lost had a part".to_owned(),
        [] => "whom it had was idle".to_owned(),
        [one] => format!("the checksums take the place of process column {}", one.col),
        several => {
            let all = listed(several.iter().map(|e| e.col));
            format!("the checksums take the place of process columns {all}")
        }
    };
    format!("{how}; {}", in_place::from_boundary(test, from.boundary, blocks))
}

fn so_many(sums: usize) -> String {
    match sums {
        1 => "one column of checksums".to_owned(),
        sums => format!("{sums} columns of checksums"),
    }
}

/// Notes the way of a test, strikes where faults are armed, and tells of a loss when all is ready to go on.
struct Steps<'a, O> {
    number: usize,
    blocks: usize,
    place: usize,
    speaks: bool,
    began_unix_s: f64,
    notice: &'a mut Option<Notice>,
    /// Of checksums: what the test began with, or what one that begins is to have.
    columns: usize,
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
            let boundary = self.cast.from.as_ref().map_or(0, |from| from.boundary);
            let since = (unix_seconds() - notice.noticed_unix_s).max(0.0);
            self.told.losses += 1;
            self.told.going_on_s += since;
            let at_s = (notice.noticed_unix_s - unix_s).max(0.0);
            self.way.interrupt(What::Restore, boundary, at_s, since);
            if self.speaks {
                let words = words(self.number, self.blocks, self.cast, self.columns);
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

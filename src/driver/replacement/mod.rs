//! Replacement of process columns that have lost ranks by checksum columns: `--method abft`.
//!
//! The in-place attempts are those of [`nonstop`](super::nonstop), but nothing is restored at their beginning. After the roll
//! call each rank knows the progress of every process column. From this progress the pure module [`roles`] assigns a role to
//! each rank and the boundary at which all ranks resume, or explains why that is impossible. docs/dev/nonstop.md describes the
//! whole protocol.

pub mod roles;

use std::ops::Range;

use nix::sys::signal::{Signal, raise};

use super::agreement::shared_by;
use super::nonstop::RecoveryHistory;
use super::signs::{self, Signs};
use crate::base::faults::{Point, hit};
use crate::base::outcome::{Checksums, Outcome, Replaced};
use crate::base::params::TestParams;
use crate::base::terminal::say;
use crate::base::threads::Pool;
use crate::base::timeline::{Recorder, What};
use crate::comm::Reduce;
use crate::lu::{
    AbftTest, Context, Event, Exchange, GridPlace, Milestone, Observer, Past, SUMS_EVER,
    unix_seconds,
};
use crate::supervise::start::in_place::{self, FROM_SCRATCH, Notice};

pub use roles::{RoleAssignment, Status, assign_roles, listed};

/// State of a test that a rank keeps from one in-place attempt to the next.
pub struct Held {
    test: usize,
    grid_place: GridPlace,
    abft_test: AbftTest,
    past: Past,
    /// New checksums that are complete as far as this rank knows; `None` if there are none. Other ranks may not have completed
    /// theirs.
    renewed: Option<Renewed>,
    way: Recorder,
    told: Checksums,
}

/// New checksum columns of a test: their column numbers, their boundary, and the seconds that it took to make them.
struct Renewed {
    cols: Range<usize>,
    boundary: usize,
    seconds: f64,
}

impl Renewed {
    /// Records in `told` that these new checksums are complete on all ranks. Prints a message if `speaks` is true.
    fn take_in(self, told: &mut Checksums, number: usize, speaks: bool) {
        let Self { cols, boundary, seconds } = self;
        told.renewed_at.extend(vec![boundary as u64; cols.len()]);
        told.renew_s += seconds;
        if speaks {
            let (test, columns) = (number + 1, so_many(cols.len()));
            say(format_args!(
                "new checksums: test {test} has {columns} more from boundary {boundary} on, made in {seconds:.3} s"
            ));
        }
    }

    /// Returns true if the roles of the next attempt show that the new checksums are complete.
    fn stand(&self, roles: &RoleAssignment, q: usize) -> bool {
        let exchanges = roles.from.iter().flat_map(|from| &from.past.exchanges);
        let cols = roles.grid_places.iter().flatten().map(|grid_place| grid_place.col);
        cols.chain(exchanges.map(|e| q + e.by)).any(|col| self.cols.contains(&col))
    }
}

impl Held {
    pub fn is_of(&self, test: usize) -> bool {
        self.test == test
    }

    pub fn status(&self) -> Status {
        Status {
            test: self.test,
            row: self.grid_place.row,
            col: self.grid_place.col,
            place: self.grid_place.place,
            sums: self.abft_test.holds_sums(),
            columns: self.told.columns as usize,
            progress: self.abft_test.progress,
            past: self.past.clone(),
        }
    }
}

/// Gives this rank its new role. All ranks must call this function as soon as the role is known. If a rank leaves the attempt
/// later, it must not report an older role.
pub fn take_role(held: &mut Option<Held>, grid_place: Option<GridPlace>, roles: &RoleAssignment) {
    // Idle ranks have no role. If the test begins, state of another test is freed elsewhere.
    let (Some(grid_place), Some(from)) = (grid_place, &roles.from) else { return };
    if roles.new.contains(&grid_place.col) {
        // The rank has no state until it has allocated memory for new checksums.
        *held = None;
    } else if let Some(held) = held {
        (held.grid_place, held.past) = (grid_place, from.past.clone());
    }
}

/// Prepares ranks for new checksums: such ranks receive the facts about test `number` from the first rank of the grid, and
/// allocate memory. On other ranks, nothing changes. Collective call of all ranks with a role.
fn join(
    context: &Context,
    number: usize,
    roles: &RoleAssignment,
    pool: &mut Pool,
    held: &mut Option<Held>,
) {
    let (began_unix_s, told, way) = shared_by(&context.grid, 0, || {
        let held = held.as_ref().expect("rank 0 of the grid has a part of the test");
        (held.abft_test.progress.began_unix_s, held.told.clone(), held.way.clone())
    });
    if held.is_some() {
        return;
    }
    let abft_test = AbftTest::joining(context, began_unix_s, pool).unwrap_or_else(|error| {
        say(format_args!(
            "position {} has no memory for new checksums ({error}): its rank ends, and the other ranks continue",
            context.place
        ));
        // The rank ends like a lost rank. The other ranks can continue without its new checksums.
        let _ = raise(Signal::SIGKILL);
        unreachable!("nobody outlives that signal")
    });
    let grid_place =
        GridPlace { row: context.shape.row, col: context.shape.col, place: context.place };
    let past = roles.from.as_ref().map(|from| from.past.clone()).unwrap_or_default();
    *held = Some(Held { test: number, grid_place, abft_test, past, renewed: None, way, told });
}

/// Solves test `number` under `--method abft`, and returns the outcome. The error is the reason why memory could not be
/// allocated. Collective call of all ranks with a role.
pub fn solve(
    context: &mut Context,
    number: usize,
    roles: &RoleAssignment,
    pool: &mut Pool,
    watcher: &mut impl Observer,
    held: &mut Option<Held>,
    history: &mut RecoveryHistory,
) -> Result<Option<Outcome>, String> {
    if roles.from.is_none() {
        // State of another test is freed first, and state of this test before it begins from scratch.
        let losses = held.take().filter(|held| held.test == number).map_or(0, |h| h.told.losses);
        let abft_test = AbftTest::new(context, pool).map_err(|error| error.to_string())?;
        let mut bytes = [0, 0];
        bytes[usize::from(abft_test.holds_sums())] = abft_test.bytes();
        context.grid.all_reduce(&mut bytes, Reduce::Sum);
        let [matrix_bytes, checksum_bytes] = bytes;
        let columns = roles.sums as u64;
        let told =
            Checksums { losses, columns, matrix_bytes, checksum_bytes, ..Checksums::default() };
        let grid_place =
            GridPlace { row: context.shape.row, col: context.shape.col, place: context.place };
        let (past, way) = (Past::default(), Recorder::default());
        *held = Some(Held { test: number, grid_place, abft_test, past, renewed: None, way, told });
        // No rank generates its part before all ranks have state. Otherwise a rank that has no state yet could be taken for an
        // idle rank, and its column for a lost column.
        context.grid.barrier();
    }
    if !roles.new.is_empty() {
        join(context, number, roles, pool, held);
    }
    let Held { abft_test, renewed, way, told, .. } =
        held.as_mut().expect("a rank with a role has a part");
    let mut shown = Signs::show(context, number, Some(abft_test.holds_sums()), watcher);
    let replaced = |e: &Exchange| Replaced { column: e.col as u64, boundary: e.boundary as u64 };
    let exchanges = roles.from.as_ref().map_or(&[][..], |from| &from.past.exchanges);
    told.replaced = exchanges.iter().map(replaced).collect();
    let speaks = context.grid.rank() == 0;
    if let Some(new) = renewed.take_if(|new| new.stand(roles, context.params.q)) {
        new.take_in(told, number, speaks);
    }
    *renewed = None;
    let mut observer = Steps {
        number,
        params: context.params,
        place: context.place,
        speaks,
        began_unix_s: 0.0,
        notice: &mut history.notice,
        roles,
        renewed,
        way,
        told,
        watcher: &mut shown,
    };
    let (outcome, recompute_s) = abft_test.solve(context, roles.from.as_ref(), pool, &mut observer);
    told.recompute_s = recompute_s;
    let timeline = way.timeline(context.params.n, context.params.nb);
    Ok(Some(Outcome { checksums: Some(told.clone()), timeline, ..outcome }))
}

/// Describes the point at which test `number` resumes or begins.
fn words(number: usize, params: &TestParams, roles: &RoleAssignment) -> String {
    let (test, blocks, columns) = (number + 1, params.blocks(), roles.columns);
    let Some(from) = &roles.from else {
        let with = match roles.sums {
            0 => " without checksums".to_owned(),
            sums if sums < columns => format!(" with {}", so_many(sums)),
            _ => String::new(),
        };
        return format!("test {test} {FROM_SCRATCH}{with}, because nothing was factored");
    };
    let (left, exchanges) = (roles.sums - roles.new.len(), from.past.exchanges.len());
    let how = match roles.exchanges() {
        [] if left + exchanges < columns => match left {
            0 => "from here on there are no checksums".to_owned(),
            left => format!("from here on the run has only {}", so_many(left)),
        },
        [] if exchanges == 0 => "no lost rank had a part in the test".to_owned(),
        [] => "no further column of checksums takes a role".to_owned(),
        [one] => format!("the checksums take the place of process column {}", one.col),
        several => {
            let all = listed(several.iter().map(|e| e.col));
            format!("the checksums take the place of process columns {all}")
        }
    };
    let free = if roles.idle == 1 { "rank is" } else { "ranks are" };
    let new = match roles.new.len() {
        0 if left >= columns => String::new(),
        0 if from.boundary + usize::from(from.ready) >= blocks => {
            "; new checksums would come too late".to_owned()
        }
        0 if columns + from.past.renewals.len() == SUMS_EVER => {
            format!("; no new checksums: a test makes at most {SUMS_EVER} columns of checksums")
        }
        0 => format!(
            "; no new checksums, for which {} ranks are needed, and {} {free} free",
            params.p, roles.idle
        ),
        new => format!("; {} idle ranks make new checksums", new * params.p),
    };
    format!("{how}{new}; {}", in_place::from_boundary(test, from.boundary, blocks))
}

fn so_many(sums: usize) -> String {
    match sums {
        1 => "one column of checksums".to_owned(),
        sums => format!("{sums} columns of checksums"),
    }
}

/// Observer that records the timeline of a test and triggers injected faults. The observer also reports a loss once all ranks
/// are ready to continue.
struct Steps<'a, O> {
    number: usize,
    params: &'a TestParams,
    place: usize,
    speaks: bool,
    began_unix_s: f64,
    notice: &'a mut Option<Notice>,
    roles: &'a RoleAssignment,
    renewed: &'a mut Option<Renewed>,
    way: &'a mut Recorder,
    told: &'a mut Checksums,
    watcher: &'a mut O,
}

impl<O> Steps<'_, O> {
    fn elapsed(&self) -> f64 {
        (unix_seconds() - self.began_unix_s).max(0.0)
    }

    /// Records new checksums as complete. No rank reaches iteration `k` before new checksums of an earlier boundary are
    /// complete on all ranks.
    fn take_in_renewed(&mut self, k: usize) {
        if let Some(new) = self.renewed.take_if(|new| new.boundary < k) {
            new.take_in(self.told, self.number, self.speaks);
        }
    }

    /// Records the start of the test's clock, and the loss that this attempt recovers from.
    fn begin(&mut self, unix_s: f64) {
        self.began_unix_s = unix_s;
        let Some(notice) = self.notice.take() else { return };
        let boundary = self.roles.from.as_ref().map_or(0, |from| from.boundary);
        let since = (unix_seconds() - notice.noticed_unix_s).max(0.0);
        self.told.losses += 1;
        self.told.going_on_s += since;
        let at_s = (notice.noticed_unix_s - unix_s).max(0.0);
        self.way.interrupt(What::Restore, boundary, at_s, since);
        if self.speaks {
            say(notice.told(&words(self.number, self.params, self.roles)));
        }
    }
}

impl<O: Observer> Observer for Steps<'_, O> {
    fn observe(&mut self, event: Event) {
        match event {
            Event::Began { unix_s } => self.begin(unix_s),
            Event::Reached(milestone) => {
                let (point, _) = signs::words(milestone);
                hit(point, self.place);
                if milestone == Milestone::Factored {
                    let blocks = self.params.blocks();
                    self.take_in_renewed(blocks);
                    self.way.pass(blocks, blocks, self.elapsed());
                }
            }
            Event::Rebuilt { k, seconds } => {
                *self.renewed =
                    Some(Renewed { cols: self.roles.new.clone(), boundary: k, seconds });
            }
            Event::Iteration { k, blocks, .. } => {
                self.take_in_renewed(k);
                self.way.pass(k, blocks, self.elapsed());
                hit(Point::Iteration, self.place);
            }
            Event::Multiplied { .. } | Event::Solved(_) => {}
        }
        self.watcher.observe(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lu::{From, Renewal};
    use crate::model::planner::usual;

    #[test]
    fn numbers_that_are_used_up_are_why_no_checksums_are_made() {
        let renewed = |count: usize| {
            let renewal = |by| Renewal { by, after: 0, drawn: false };
            let renewals = (1..count).map(renewal).collect();
            let past = Past { exchanges: Vec::new(), renewals };
            let from = From { boundary: 2, ready: false, past, renew: Vec::new() };
            let roles = RoleAssignment {
                columns: 1,
                from: Some(from),
                idle: 4,
                ..RoleAssignment::default()
            };
            words(0, &usual(1000, 100, (2, 3)), &roles)
        };
        let told = renewed(SUMS_EVER);
        assert!(told.contains("no new checksums: a test makes at most 16 columns"), "{told}");
        assert!(!renewed(SUMS_EVER - 1).contains("at most"));
    }
}

//! Progress of a test without checkpoints, shown for `skt-hpl run`.
//!
//! A position with checkpoints publishes its progress in the header of its memory. Without checkpoints, and under `--method
//! abft`, no memory outlives the process, and a supervisor could not tell a hung rank from a waiting one. So only a header is
//! created, under the name of the supervised run. The header is removed when the test ends.

use crate::base::exit::Exit;
use crate::base::faults::{Point, hit};
use crate::comm::die;
use crate::lu::{Context, Event, Milestone, Observer};
use crate::shm::header::{
    Claim, Doing, HEAD_BYTES, Head, Header, Identity, Mark, NO_CODE, SUMS, WITHOUT_SUMS,
};
use crate::shm::{Hold, MemoryError, MemoryStore, Store};
use crate::supervise::start::job::Announcement;
use crate::supervise::start::launcher::own_run_id;

/// Returns the names of a milestone for injected faults and for the supervisor.
pub(super) fn words(milestone: Milestone) -> (Point, Doing) {
    match milestone {
        Milestone::Generating => (Point::GenerateBegin, Doing::Generating),
        Milestone::Generated => (Point::GenerateEnd, Doing::Generating),
        Milestone::Factored => (Point::SolveBegin, Doing::Solving),
        Milestone::Solved => (Point::VerifyBegin, Doing::Verifying),
    }
}

/// Observer that publishes this rank's progress, and passes all events to a second observer, `watcher`.
pub struct Signs<'w, O> {
    /// Header with the progress; `None` without a supervisor.
    shown: Option<(Hold, Head)>,
    /// Position for injected faults; `None` if this observer triggers no injected faults.
    injects_at: Option<usize>,
    watcher: &'w mut O,
}

impl<'w, O> Signs<'w, O> {
    /// Starts to publish the progress of test `number`, if there is a supervisor. For a test with checksum columns, `sums` is
    /// true if this rank's memory contains checksums. In this case the caller's observer triggers injected faults.
    ///
    /// Ends the run if the progress cannot be published, because a supervisor would take the rank for hung.
    pub fn show(context: &Context, number: usize, sums: Option<bool>, watcher: &'w mut O) -> Self {
        let code = match sums {
            None => NO_CODE,
            Some(true) => SUMS,
            Some(false) => WITHOUT_SUMS,
        };
        let shown = shown(context, number, code);
        let injects_at = (shown.is_some() && sums.is_none()).then_some(context.place);
        Self { shown, injects_at, watcher }
    }

    fn tick(&self, doing: Doing, iteration: u64) {
        if let Some((_, head)) = &self.shown {
            head.tick(doing, iteration);
        }
    }

    fn inject(&self, point: Point) {
        if let Some(position) = self.injects_at {
            hit(point, position);
        }
    }
}

/// Creates a header for this rank's position. `code` describes the contents of the memory. Returns `None` without a supervisor.
fn shown(context: &Context, number: usize, code: u8) -> Option<(Hold, Head)> {
    let run = own_run_id()?;
    match make(&run, context.place, &header(context, number, code)) {
        Ok(made) => Some(made),
        Err(why) => die(
            i32::from(Exit::NoSharedMemory.code()),
            &format!(
                "no shared memory in which this rank could show its progress to skt-hpl run: {why}\nskt-hpl: {}",
                Announcement::Refused { status: Exit::NoSharedMemory.code() }
            ),
        ),
    }
}

fn make(run: &str, position: usize, header: &Header) -> Result<(Hold, Head), MemoryError> {
    let memory_store = MemoryStore::new(Store::Posix, run)?;
    // An earlier attempt of this run may have left a header, if its process was killed.
    let mut hold = memory_store.hold(position as u32)?;
    let mut head = Head::new(hold.renew(HEAD_BYTES)?).expect("the memory has the length of a head");
    head.write(header);
    head.tick(Doing::Starting, 0);
    head.take_pulse();
    Ok((hold, head))
}

/// Returns a header without a checkpoint. Such a header only shows to which test and position the progress belongs.
fn header(context: &Context, number: usize, code: u8) -> Header {
    let (params, shape) = (context.params, &context.shape);
    Header {
        id: Identity {
            run: 0,
            test: number as u32,
            position: context.place as u32,
            n: params.n as u64,
            nb: params.nb as u64,
            p: params.p as u32,
            q: params.q as u32,
            mapping: params.mapping,
            rng: params.rng,
            seed: params.seed,
            params_digest: 0,
            rows: shape.rows as u64,
            cols: shape.cols as u64,
            ld: shape.ld as u64,
            group: shape.col as u32,
            members: Vec::new(),
            losses: 0,
            code,
            method: NO_CODE,
            scope: NO_CODE,
            layout: NO_CODE,
            state_bytes: 0,
        },
        claim: Claim::generating(1),
        base: Mark::default(),
        seal: Mark::default(),
    }
}

impl<O: Observer> Observer for Signs<'_, O> {
    fn observe(&mut self, event: Event) {
        match event {
            Event::Reached(milestone) => {
                let (point, doing) = words(milestone);
                self.tick(doing, 0);
                self.inject(point);
            }
            Event::Iteration { k, .. } => {
                self.tick(Doing::Computing, k as u64);
                self.inject(Point::Iteration);
            }
            Event::Multiplied { seconds, flops } => {
                if let Some((_, head)) = &self.shown {
                    head.worked((seconds * 1e6) as u64, flops as u64);
                }
            }
            Event::Began { .. } | Event::Rebuilt { .. } | Event::Solved(_) => {}
        }
        self.watcher.observe(event);
    }
}

impl<O> Drop for Signs<'_, O> {
    fn drop(&mut self) {
        if let Some((hold, _)) = &mut self.shown {
            hold.remove();
        }
    }
}

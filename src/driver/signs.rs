//! The progress of a test of which nothing is saved, shown all the same where `skt-hpl run` watches.
//!
//! A position that saves publishes it in the head of its memory. Without that, and under `--method abft`, no memory outlives the
//! process, and a hung rank would look like one that waits: so a head alone is made, under the name of the
//! supervised run, and removed when the test is over.

use crate::base::exit::Exit;
use crate::base::faults::{Point, hit};
use crate::checkpoint::protocol::Transitions;
use crate::comm::die;
use crate::lu::{Context, Milestone, Observer};
use crate::shm::header::{
    BESIDE_SUMS, Claim, Doing, HEAD_BYTES, Head, Header, Identity, Mark, NO_CODE, SUMS,
};
use crate::shm::{Depot, Hold, MemoryError, Store};
use crate::supervise::start::job::Refused;
use crate::supervise::start::launcher::own_run_id;

/// What a milestone is called by faults on purpose, and by those who watch.
pub(super) fn words(milestone: Milestone) -> (Point, Doing) {
    match milestone {
        Milestone::Generating => (Point::GenerateBegin, Doing::Generating),
        Milestone::Generated => (Point::GenerateEnd, Doing::Generating),
        Milestone::Factored => (Point::SolveBegin, Doing::Solving),
        Milestone::Solved => (Point::VerifyBegin, Doing::Verifying),
    }
}

/// An observer that shows how far this rank has come, and tells another one.
pub struct Signs<'w, O> {
    /// None where nobody watches.
    shown: Option<(Hold, Head)>,
    /// Where faults on purpose strike, if they do here.
    strikes: Option<usize>,
    watcher: &'w mut O,
}

impl<'w, O> Signs<'w, O> {
    /// Begins to show the progress of test `number`; gives the watcher back where nobody watches.
    ///
    /// Ends the run if it cannot be shown: a supervisor would take that for a rank that hangs.
    pub fn show(context: &Context, number: usize, watcher: &'w mut O) -> Result<Self, &'w mut O> {
        match shown(context, number, NO_CODE) {
            None => Err(watcher),
            shown => Ok(Self { shown, strikes: Some(context.place), watcher }),
        }
    }

    /// The same of a test that checksums protect, beneath an observer where faults strike; `sums`: whether what lies in this
    /// rank's memory are checksums.
    pub fn beneath(context: &Context, number: usize, sums: bool, watcher: &'w mut O) -> Self {
        let code = if sums { SUMS } else { BESIDE_SUMS };
        Self { shown: shown(context, number, code), strikes: None, watcher }
    }

    fn tick(&self, doing: Doing, iteration: u64) {
        if let Some((_, head)) = &self.shown {
            head.tick(doing, iteration);
        }
    }

    fn strike(&self, point: Point) {
        if let Some(position) = self.strikes {
            hit(point, position);
        }
    }
}

/// A head for this rank's position, which says in the place of a code what lies there; None where nobody watches.
fn shown(context: &Context, number: usize, code: u8) -> Option<(Hold, Head)> {
    let run = own_run_id()?;
    match make(&run, context.place, &header(context, number, code)) {
        Ok(made) => Some(made),
        Err(why) => die(
            i32::from(Exit::NoSharedMemory.code()),
            &format!(
                "no place to show progress to skt-hpl run: {why}\nskt-hpl: {}",
                Refused { status: Exit::NoSharedMemory.code() }
            ),
        ),
    }
}

fn make(run: &str, position: usize, header: &Header) -> Result<(Hold, Head), MemoryError> {
    let depot = Depot::new(Store::Posix, run)?;
    // An earlier incarnation of this run that was killed here has left its own.
    let mut hold = depot.hold(position as u32)?;
    let mut head = Head::new(hold.renew(HEAD_BYTES)?).expect("made with the length of a head");
    head.write(header);
    head.tick(Doing::Starting, 0);
    head.take_pulse();
    Ok((hold, head))
}

/// A header that holds nothing: it says whose progress this is.
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
    fn began(&mut self, unix_s: f64) {
        self.watcher.began(unix_s);
    }

    fn reached(&mut self, milestone: Milestone) {
        let (point, doing) = words(milestone);
        self.tick(doing, 0);
        self.strike(point);
        self.watcher.reached(milestone);
    }

    fn iteration(&mut self, k: usize, blocks: usize, elapsed: f64) {
        self.tick(Doing::Computing, k as u64);
        self.strike(Point::Iteration);
        self.watcher.iteration(k, blocks, elapsed);
    }

    fn multiplied(&mut self, seconds: f64, flops: f64) {
        if let Some((_, head)) = &self.shown {
            head.worked((seconds * 1e6) as u64, flops as u64);
        }
        self.watcher.multiplied(seconds, flops);
    }

    fn renewed(&mut self, k: usize, seconds: f64) {
        self.watcher.renewed(k, seconds);
    }

    fn solved(&mut self, x: &[f64]) {
        self.watcher.solved(x);
    }
}

impl<O> Drop for Signs<'_, O> {
    fn drop(&mut self) {
        if let Some((hold, _)) = &mut self.shown {
            hold.remove();
        }
    }
}

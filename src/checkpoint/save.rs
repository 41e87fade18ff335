//! Save of a checkpoint, in the order that the protocol requires.
//!
//! The solver calls [`Checkpointer::save`] at a boundary without pending work, on every rank. Between any two steps that a
//! failure could separate, there is a crash point.

use std::collections::BTreeSet;

use super::holding::{Holding, Renamed};
use super::lease::Lease;
use super::level2::{AT_ONCE, ENCODED, Level2, SAVE, STORE};
use super::on_device::OnDevice;
use super::plan::{Corner, Encoding, Layout, Scheme, Scope};
use super::protocol::Method;
use super::saved::{Coding, Reach, Since};
use super::unfinished::Unfinished;
use super::when::Scheduler;
use super::world::World;
use crate::base::clock::Instant;
use crate::base::faults::{Point, Sabotage, hit, sabotaged};
use crate::base::heartbeat;
use crate::base::threads::Pool;
use crate::parity::exchange::Coder;
use crate::parity::{GroupComm, Window, hands};
use crate::shm::Hold;
use crate::shm::header::{CheckpointId, Doing, Header, Mark, count_of};
use crate::shm::ledger::Entry;

/// Report of one save: its work and its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct SaveReport {
    pub checkpoint: u64,
    pub boundary: usize,
    pub seconds: f64,
    /// Seconds of encoding, including messages and the digests of changed data.
    pub encode_s: f64,
    /// Seconds of computing the root, the digest over all digests.
    pub digest_s: f64,
    /// Seconds of waiting until all ranks have sealed the checkpoint.
    pub barrier_s: f64,
    /// Seconds of copying the matrix. With method disk, seconds of writing to storage.
    pub copy_s: f64,
    /// Seconds of waiting for storage, if no helpers write. Otherwise zero.
    pub store_s: f64,
    /// Bytes of the matrix that this rank copied.
    pub bytes: usize,
}

/// Parts that the next checkpoint copies and encodes.
pub(super) struct SavePlan {
    pub(super) next: CheckpointId,
    pub(super) boundary: usize,
    /// Boundary of the data in the copy that this checkpoint overwrites; None if the copy is invalid.
    copy_boundary: Option<usize>,
    /// First row and column of this rank's matrix in which the overwritten copy differs from the matrix.
    corner: Corner,
    /// Numbers of rows and columns in which the overwritten copies of all members differ from their matrices.
    pub(super) window: Window,
    /// Data and parity that differ from the previous checkpoint.
    pub(super) since: Since,
}

/// State of one rank for the checkpoints of one test.
pub struct Checkpointer<W, G> {
    /// Last save, as long as helpers encode it. Declared first, so that the helper ends before its memory is dropped.
    pub(super) unfinished: Option<Unfinished>,
    pub(super) world: W,
    pub(super) group: G,
    pub(super) holding: Holding,
    /// Lock on the position.
    pub(super) hold: Hold,
    pub(super) header: Header,
    pub(super) layout: Layout,
    pub(super) scheme: Scheme,
    pub(super) coder: Coder,
    pub(super) encode: Encoding,
    pub(super) scheduler: Scheduler,
    pub(super) lease: Lease,
    /// Boundaries of the data in two buffers that saves overwrite in turn; None if the buffer is invalid. With method double, the
    /// buffers are the copies with their parity; with method self, the parity alone. Method disk has one buffer, with parity and
    /// digests.
    pub(super) copies: [Option<usize>; 2],
    /// Matrix in device memory. None if the matrix is in part A.
    pub(super) on_device: Option<OnDevice>,
    pub(super) started: Instant,
    /// Level two. None if the run has no storage or must not write there.
    pub(super) level2: Option<Level2>,
}

fn words(doubles: &mut [f64]) -> &mut [u64] {
    // SAFETY: u64 and f64 have one size and alignment; any bits are a valid u64, and any bits are a valid f64.
    unsafe { std::slice::from_raw_parts_mut(doubles.as_mut_ptr().cast(), doubles.len()) }
}

impl<W: World, G: GroupComm> Checkpointer<W, G> {
    pub fn position(&self) -> usize {
        self.header.id.position as usize
    }

    /// Positions of this rank's group, in member order.
    pub fn members(&self) -> Vec<usize> {
        self.header.id.members.iter().map(|&m| m as usize).collect()
    }

    /// Id of the run to which this memory belongs, and number of attempts of this run so far, the current one included.
    pub fn run(&self) -> (u128, u64) {
        (self.header.id.run, count_of(self.header.claim.joined))
    }

    /// Bytes of persistent shared memory of this position, including A.
    pub fn bytes(&self) -> usize {
        self.holding.buffers.total_bytes()
    }

    pub fn world(&self) -> &W {
        &self.world
    }

    /// Writes a heartbeat for agents to the header: the work of this rank, and its boundary. This takes only a few store
    /// instructions.
    pub fn tick(&self, doing: Doing, boundary: usize) {
        self.holding.head.tick(doing, boundary as u64);
    }

    /// Reports to agents the seconds for which this process has multiplied since the factorisation began, and its floating-point
    /// operations in this time.
    pub fn worked(&self, seconds: f64, flops: f64) {
        self.holding.head.worked((seconds * 1e6) as u64, flops as u64);
    }

    /// Returns true if a save must be made at `boundary`. Collective call with the same answer on every rank. The solver calls
    /// this before it factors panels across the boundary.
    ///
    /// `now` forces a save for a stop; only rank 0's value counts. While helpers encode or write the last checkpoint, a save is
    /// postponed, unless it is forced. At some boundaries a lease makes communication unnecessary.
    pub fn due(&mut self, boundary: usize, now: bool) -> bool {
        if self.lease.holds(boundary) {
            return false;
        }
        let since = match self.scheme.method {
            Method::Disk => self.stored_before(),
            _ => self.base_boundary().unwrap_or(0),
        };
        let bytes = self.layout.bytes(0, since, self.scheme.scope);
        let elapsed = self.started.elapsed().as_secs_f64();
        let save = now || self.scheduler.due(boundary, elapsed, bytes as f64);
        let mut mine = if save { SAVE } else { 0 } | if now { AT_ONCE } else { 0 };
        // Only if checkpoints are in memory, storage is written between saves and must be checked.
        if let Some(level2) = self.level2.as_mut().filter(|level2| level2.alone.is_none()) {
            mine |= level2.wishes(save, elapsed);
        }
        if let Some(unfinished) = &self.unfinished {
            // For a stop, the ranks will wait for their helpers.
            if now || unfinished.helper.is_over() {
                mine |= ENCODED;
            }
            // Only one checkpoint at a time goes to storage, and the unfinished one comes first.
            if unfinished.stores {
                mine &= !STORE;
            }
        }
        if mine == 0 && self.is_quiet() {
            let free = |pace_s| self.scheduler.free(boundary, elapsed, bytes as f64, pace_s);
            mine = self.lease.offer(boundary, elapsed, self.layout.q, free);
        }
        let told = self.world.first_says(mine);
        let told = self.lease.take(boundary, elapsed, told);
        if told & ENCODED != 0 {
            self.look_after_helpers(told & AT_ONCE != 0);
        }
        self.unfinished.is_none() && self.attend(told) && told & SAVE != 0
    }

    /// Returns true if a lease is possible: no helper needs checks at boundaries, and ranks stay in step without a broadcast.
    /// Dedicated ranks do not stay in step: without a broadcast they would count iterations as fast as they can.
    fn is_quiet(&self) -> bool {
        let writes = |level2: &Level2| level2.flight.is_some() || level2.manifest.is_some();
        let stores = self.level2.as_ref().is_some_and(writes);
        self.unfinished.is_none() && !stores && self.layout.dedicated == 0
    }

    /// Restores names of the memory that were removed, because a restart could not find the memory without its names. Called
    /// between iterations, and with `frozen` before a save. If a part is being written to storage, its name is restored after the
    /// write. Returns None if no name is missing.
    pub fn look_after_names(&mut self, frozen: bool) -> Option<Renamed> {
        let buffers = &self.holding.buffers;
        let reading = self.level2.as_ref().map(|level2| level2.reads(buffers)).unwrap_or_default();
        self.holding.look_after_names(&mut self.hold, frozen, &reading)
    }

    /// Boundary of the last checkpoint, if there is one.
    fn base_boundary(&self) -> Option<usize> {
        self.header.claim.base.map(|_| self.header.base.boundary as usize)
    }

    /// Returns the first changed row and column of the local matrix since `boundary`, and the window that covers the changed
    /// parts of the group. If `boundary` is None, both results cover the whole matrix.
    pub(super) fn reach(&self, boundary: Option<usize>) -> (Corner, Window) {
        let (at, scope) = match boundary {
            Some(boundary) => (boundary, self.scheme.scope),
            None => (0, Scope::Whole),
        };
        (
            self.layout.corner(self.position(), at, scope),
            self.layout.window(&self.members(), at, scope),
        )
    }

    /// Numbers of rows and columns of the parity that is encoded from a window.
    pub(super) fn parity_of(&self, window: Window) -> Reach {
        Reach { rows: self.coder.stripes.parity_rows(window.rows), width: window.width }
    }

    pub(super) fn publish(&mut self) {
        self.holding.head.write(&self.header);
    }

    /// Takes a checkpoint at `boundary`. `a` is the frozen local matrix, and `state` is other data needed to resume. Every rank
    /// calls this at the same boundary. All threads of its `pool` take part.
    ///
    /// # Panics
    /// If `state` is longer than `Config::state_bytes`, or `a` is not the matrix handed out at the start.
    pub fn save(
        &mut self,
        boundary: usize,
        a: &mut [f64],
        state: &[u8],
        pool: &mut Pool,
    ) -> SaveReport {
        let begin = Instant::now();
        let position = self.position();
        self.tick(Doing::Saving, boundary);
        hit(Point::SaveBegin, position);
        let a = &mut words(a)[..self.holding.buffers.workspace_words()];
        if self.scheme.method == Method::Disk {
            return self.save_on_disk(begin, boundary, a, state, pool);
        }
        let plan = self.plan_save(boundary);
        let number = plan.next.number;
        let bytes = self.layout.bytes_from(position, plan.corner);
        let mut report =
            SaveReport { checkpoint: number, boundary, bytes, ..SaveReport::default() };

        self.holding.saved().write_state(number, state);
        hit(Point::SaveState, position);

        let copied = Instant::now();
        self.prepare_copy(&plan, a, pool);
        report.copy_s += copied.elapsed().as_secs_f64();

        if self.encode.by_helper() {
            self.leave_to_helper(&plan);
            self.account(begin, plan.copy_boundary, &mut report);
            return report;
        }
        self.seal(&plan, a, pool, &mut report);

        let waiting = Instant::now();
        if !sabotaged(Sabotage::NoBarrier) {
            self.world.barrier();
        }
        report.barrier_s = waiting.elapsed().as_secs_f64();
        hit(Point::BarrierPassed, position);

        let copied = Instant::now();
        if self.scheme.method == Method::SelfCheckpoint {
            self.flush(number, a, plan.corner, pool);
        }
        report.copy_s += copied.elapsed().as_secs_f64();
        self.commit(boundary);
        report.store_s = self.begin_if_due();
        self.account(begin, plan.copy_boundary, &mut report);
        report
    }

    /// Determines the parts that the next checkpoint, at `boundary`, copies and encodes.
    fn plan_save(&self, boundary: usize) -> SavePlan {
        let next = self.header.claim.next_checkpoint();
        let base = self.header.claim.base.map(|b| b.number);
        let base_boundary = self.base_boundary();
        // Method double overwrites the copy of the checkpoint before the last.
        let copy_boundary = match self.scheme.method {
            Method::Double if !sabotaged(Sabotage::OldCopy) => {
                self.copies[(next.number % 2) as usize]
            }
            _ => base_boundary,
        };
        let (corner, window) = self.reach(copy_boundary);
        // Part that differs from the last checkpoint, whose digests are available. If the whole matrix is copied, its parity may
        // differ everywhere.
        let (new_corner, new_window) = self.reach(base_boundary);
        let parity = self.parity_of(if copy_boundary.is_some() { new_window } else { window });
        let since = Since { before: base, corner: new_corner, parity };
        SavePlan { next, boundary, copy_boundary, corner, window, since }
    }

    /// Copies the matrix before the encoding, with methods double and single. With method self, copies parity of the last
    /// checkpoint to the parity buffer of the next checkpoint instead.
    fn prepare_copy(&mut self, plan: &SavePlan, a: &[u64], pool: &mut Pool) {
        let number = plan.next.number;
        let place = (number % 2) as usize;
        match self.scheme.method {
            Method::SelfCheckpoint => {
                // The older parity lacks those rows and columns that only the last save encoded.
                let held = self.copies[place].take();
                let stale = self.reach(held).1;
                let (stale, coming) = (self.parity_of(stale), self.parity_of(plan.window));
                if !sabotaged(Sabotage::StaleParity) {
                    self.holding.saved().carry_checksum(number, stale, coming, pool);
                }
            }
            Method::Double => {
                self.copies[place] = None;
                self.flush(number, a, plan.corner, pool);
            }
            Method::Single => {
                self.header.claim = self.header.claim.overwriting();
                self.publish();
                self.flush(number, a, plan.corner, pool);
            }
            Method::Disk => unreachable!("it has saves of its own"),
        }
    }

    /// Copies the matrix, from `corner` to its end, to the copy of checkpoint `number`.
    fn flush(&mut self, number: u64, a: &[u64], corner: Corner, pool: &mut Pool) {
        let position = self.position();
        let half = || hit(Point::FlushHalf, position);
        let (buffers, saved) = (self.holding.buffers, self.holding.saved());
        match &self.on_device {
            Some(matrix) => matrix.copy_in(&buffers, corner, saved.copy(number), half),
            None => saved.copy_in(number, a, corner, pool, half),
        }
        hit(Point::FlushData, position);
    }

    /// Encodes the parity of the checkpoint and publishes it as sealed.
    fn seal(&mut self, plan: &SavePlan, a: &mut [u64], pool: &mut Pool, report: &mut SaveReport) {
        let position = self.position();
        let &SavePlan { next, boundary, window, since, .. } = plan;
        if sabotaged(Sabotage::SealsEarly) {
            self.header.claim = self.header.claim.sealed(self.scheme.method, next);
            self.publish();
        }
        let root = self.encode(next.number, since, a, window, pool, report);
        if !sabotaged(Sabotage::SealsEarly) {
            self.header.claim = self.header.claim.sealed(self.scheme.method, next);
        }
        self.header.seal = Mark { boundary: boundary as u64, root };
        self.publish();
        hit(Point::Sealed, position);
    }

    /// Puts the sealed checkpoint in force, with its parity.
    pub(super) fn commit(&mut self, boundary: usize) {
        let position = self.position();
        let sealed = self.header.claim.seal.expect("a checkpoint is sealed before it is committed");
        self.copies[(sealed.number % 2) as usize] = Some(boundary);
        hit(Point::FlushEnd, position);
        self.header.base = self.header.seal;
        self.header.claim = self.header.claim.committed();
        self.publish();
        hit(Point::Committed, position);
    }

    /// Records the time for which the ranks stopped, in `report` and for the schedule of saves. The schedule also gets the bytes
    /// that had changed since `copy_boundary`.
    pub(super) fn account(
        &mut self,
        begin: Instant,
        copy_boundary: Option<usize>,
        report: &mut SaveReport,
    ) {
        self.tick(Doing::Computing, report.boundary);
        report.seconds = begin.elapsed().as_secs_f64();
        let now = self.started.elapsed().as_secs_f64();
        let bytes = self.layout.bytes(0, copy_boundary.unwrap_or(0), self.scheme.scope);
        // The interval of saves in memory must not depend on the time for storage.
        let seconds = report.seconds - report.store_s;
        self.scheduler.saved(report.boundary, now, seconds, bytes as f64);
    }

    /// Encodes the parity of a checkpoint from the frozen matrix, if the scheme has parity. Also computes digests of the rows.
    /// Returns the digest over all digests.
    pub(super) fn encode(
        &mut self,
        number: u64,
        since: Since,
        a: &mut [u64],
        window: Window,
        pool: &mut Pool,
        report: &mut SaveReport,
    ) -> u64 {
        let position = self.position();
        let encoding = Instant::now();
        let coding = Coding { coder: self.coder, how: self.encode, window, since };
        let a = self.on_device.is_none().then_some(a);
        let (saved, group) = (self.holding.saved(), &self.group);
        if self.scheme.losses == 0 {
            let a = a.expect("only method disk has no parity, and its matrix is never on a device");
            saved.digest_data(number, a, since, pool);
        } else {
            pool.few(hands::MOST, |panel_threads| {
                saved.encode(group, coding, number, a, panel_threads, || {
                    heartbeat::beat();
                    hit(Point::EncodeBatch, position);
                })
            });
        }
        report.encode_s = encoding.elapsed().as_secs_f64();
        let digesting = Instant::now();
        let root = saved.seal(number);
        report.digest_s = digesting.elapsed().as_secs_f64();
        hit(Point::EncodeEnd, position);
        root
    }

    /// Keeps the result of a finished test in this position's memory, so that a restart does not run the test again. Returns
    /// false if the memory has no room.
    pub fn record(&mut self, test: u32, bytes: &[u8]) -> bool {
        let entry = Entry { run: self.header.id.run, test, bytes: bytes.to_vec() };
        if self.holding.done.append(&entry) {
            return true;
        }
        let extended = self.holding.extend_results(&self.hold, entry.room());
        extended.is_ok() && self.holding.done.append(&entry)
    }

    /// Numbers of this run's finished tests whose results are in this position's memory.
    pub fn results(&self) -> BTreeSet<u32> {
        let of_run = |entry: &Entry| entry.run == self.header.id.run;
        self.holding.done.entries().into_iter().filter(of_run).map(|entry| entry.test).collect()
    }

    /// Ends a test: removes its memory, but not the results of finished tests. Every rank calls this, after every rank has
    /// recorded the result.
    pub fn finish(mut self) {
        let position = self.position();
        self.await_helper();
        self.end_level2();
        self.world.barrier();
        hit(Point::CleanBegin, position);
        self.holding.head.blank();
        for part in crate::shm::Part::ALL {
            if part == crate::shm::Part::C {
                hit(Point::CleanHalf, position);
            }
            if !matches!(part, crate::shm::Part::Head | crate::shm::Part::Done) {
                self.hold.memory_store.unlink(position as u32, part);
            }
        }
        // The header is removed last: another process may create memory under these names, and its parts must not be removed.
        self.hold.remove();
        self.world.barrier();
    }
}

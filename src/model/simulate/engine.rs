//! Simulates a run from failure to failure.
//!
//! A run without failures is a sequence of segments (work, encode, flush) with known starts. A run that resumed at segment i
//! follows this sequence until the next failure. So each failure costs one binary search, however far away it is. The effect of a
//! failure depends on the method and the phase:
//!
//! | phase | self | double, disk | single | none | abft |
//! |---|---|---|---|---|---|
//! | work, encode | back to the last save | the same | work: the same; encode: fatal | start again | nothing, or start again |
//! | flush | forward to the new save | back | fatal | - | - |
//!
//! With R checksum columns (abft) the run survives losses of processes in R process columns. A loss in a further column, and
//! every lost node, starts the run from scratch. Free ranks may make new columns after a loss (`parts`). If a method with saves
//! recovers in place, the loss of a process costs this recovery instead of detection and restart, and needs a spare rank. A lost
//! process counts as a loss of its group, as if its memory were lost, because the spare may be on another node.
//!
//! Before the first save is safe, the matrix is generated again after a failure, and no group can lose too much. A failure during
//! detection, restart or recovery starts these again, and adds to the losses of its group. When the run computes again, all
//! groups are complete.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::failures::{Event, Failed, Source};
use super::parts::Parts;
use super::{End, Outcome, Placement, Scenario, System};
use crate::model::interval::Segment;
use crate::model::memory::Method;

/// Largest number of failures in a run. A run with more failures is given up, since it makes no progress.
const MOST_FAILURES: u64 = 5_000_000;

/// A scenario with its prefix sums, shared by all runs.
pub struct Plan<'a> {
    scenario: &'a Scenario,
    /// Time at which each segment starts in a run without failures, and the end of the last segment.
    starts: Vec<f64>,
    /// Work before each segment.
    work: Vec<f64>,
    limit: f64,
    groups: u64,
}

/// Nodes lost since all groups were last complete, by group.
type Losses = HashMap<u64, HashSet<u64>>;

/// Spare nodes, and nodes under repair.
struct Spares {
    /// Number of free spares; a negative number is the number still needed. None: unlimited.
    free: Option<i64>,
    repair: Option<f64>,
    /// Moments at which repaired nodes come back (ordered bits of a non-negative time).
    returning: BinaryHeap<Reverse<u64>>,
}

impl Spares {
    fn of(system: &System) -> Self {
        Self {
            free: system.spares.map(|s| s.min(i64::MAX as u64) as i64),
            repair: system.repair,
            returning: BinaryHeap::new(),
        }
    }

    fn take(&mut self, time: f64) {
        let Some(free) = &mut self.free else { return };
        *free -= 1;
        if let Some(r) = self.repair {
            // The bits of non-negative doubles have the same order as the doubles.
            self.returning.push(Reverse((time + r).to_bits()));
        }
    }

    /// Returns the moment, `now` or later, at which all lost nodes have been replaced; None if never.
    fn ready(&mut self, now: f64) -> Option<f64> {
        let Some(free) = &mut self.free else { return Some(now) };
        let mut at = now;
        while let Some(Reverse(bits)) = self.returning.peek().copied() {
            let back = f64::from_bits(bits);
            if back > now && *free >= 0 {
                break;
            }
            self.returning.pop();
            *free += 1;
            at = at.max(back);
        }
        (*free >= 0).then_some(at)
    }
}

impl<'a> Plan<'a> {
    pub fn new(scenario: &'a Scenario) -> Self {
        let segments = &scenario.schedule.segments;
        let mut starts = Vec::with_capacity(segments.len() + 1);
        let mut work = Vec::with_capacity(segments.len() + 1);
        let (mut t, mut w) = (0.0, 0.0);
        for s in segments {
            starts.push(t);
            work.push(w);
            t += s.work + s.encode + s.flush;
            w += s.work;
        }
        starts.push(t);
        work.push(w);
        let system = &scenario.system;
        Self {
            scenario,
            limit: scenario.limit.unwrap_or(100.0 * t),
            starts,
            work,
            groups: system.nodes.div_ceil(system.group.max(1)),
        }
    }

    fn end(&self) -> f64 {
        self.starts[self.starts.len() - 1]
    }

    /// Group of a node. The nodes are put in an order, which is divided into groups as even as possible. Successive nodes of the
    /// order are neighbours in the machine or, with `Spread`, in successive domains.
    fn group_of(&self, node: u64) -> u64 {
        let system = &self.scenario.system;
        let position = match (system.placement, system.domains) {
            (Placement::Spread, Some(d)) => {
                let count = system.nodes.div_ceil(d.size);
                // The order takes the first slot of all domains, then the second slot, and so on. The last domain may have fewer
                // slots, so later slots have one node fewer.
                let (domain, slot) = (node / d.size, node % d.size);
                let last = system.nodes - (count - 1) * d.size;
                slot * (count - 1) + slot.min(last) + domain
            }
            _ => node,
        };
        (u128::from(position) * u128::from(self.groups) / u128::from(system.nodes)) as u64
    }

    /// Simulates run number `index` with the master seed `seed`.
    pub fn run(&self, seed: u64, index: u64) -> Outcome {
        let scenario = self.scenario;
        let system = &scenario.system;
        let method = scenario.method;
        let mut source = Source::new(&scenario.failures, system.nodes, system.domains, seed, index);
        let mut out = Outcome::default();
        let mut spares = Spares::of(system);
        let mut waiting = system.going_on.spare_ranks.unwrap_or(u64::MAX);
        let begins = || Parts::new(system.nodes, &system.going_on);
        let mut parts = begins();
        // The segment from which the run resumes, and the moment at which the run would have started this segment.
        let (mut at, mut since) = (0usize, 0.0);
        loop {
            let finish = since + (self.end() - self.starts[at]);
            let failure = source.peek().map_or(f64::INFINITY, |e| e.time);
            let stop = failure.min(self.limit);
            if finish <= stop {
                self.keep(&mut out, at, self.starts.len() - 1);
                return Outcome { wall: finish, ..out };
            }
            // Position in the sequence of segments at the failure, or at the time limit.
            let line = self.starts[at] + (stop - since);
            let j = self.segment_at(line, at);
            let offset = (line - self.starts[j]).max(0.0);
            if method == Method::Abft && failure < self.limit {
                let borne =
                    parts.as_mut().and_then(|parts| self.bear(&mut out, &mut source, parts));
                if let Some(up) = borne {
                    // The run continues at the position before the loss.
                    since = up - line;
                    if up >= self.limit {
                        out.time.lost += line;
                        return Outcome { end: End::Late, wall: self.limit, ..out };
                    }
                    continue;
                }
                out.from_scratch += 1;
                parts = begins();
            }
            self.keep(&mut out, at, j);
            let resume = self.interrupt(&mut out, j, offset);
            if self.limit <= failure {
                return Outcome { end: End::Late, wall: self.limit, ..out };
            }
            let saving = offset >= scenario.schedule.segments[j].work;
            if method == Method::Single && saving && j > 0 {
                out.failures += 1;
                return Outcome { end: End::LostWhileSaving, wall: failure, ..out };
            }
            match self.bring_back(&mut out, &mut source, &mut spares, &mut waiting, resume > 0) {
                Ok(up) => since = up,
                Err((end, wall)) => return Outcome { end, wall, ..out },
            }
            at = resume;
        }
    }

    /// Counts the time of a segment up to an interruption, `offset` seconds after its start, as useful, saving or lost. Returns
    /// the segment to resume from.
    fn interrupt(&self, out: &mut Outcome, segment: usize, offset: f64) -> usize {
        let Segment { work, encode, .. } = self.scenario.schedule.segments[segment];
        if self.scenario.method == Method::SelfCheckpoint && offset >= work + encode {
            // The new state is sealed, so it is kept, and the restoration finishes the copy.
            out.time.useful += work;
            out.time.saving += offset - work;
            return segment + 1;
        }
        out.time.lost += offset;
        segment
    }

    /// Returns the segment, `from` or later, in which a run without failures is at the time `line`.
    fn segment_at(&self, line: f64, from: usize) -> usize {
        let last = self.starts.len() - 2;
        let after = self.starts[from..].partition_point(|s| *s <= line);
        (from + after.saturating_sub(1)).min(last)
    }

    /// Counts segments `from..to` as complete.
    fn keep(&self, out: &mut Outcome, from: usize, to: usize) {
        let useful = self.work[to] - self.work[from];
        out.time.useful += useful;
        out.time.saving += (self.starts[to] - self.starts[from]) - useful;
    }

    /// Handles the next failure of `source` in a run with checksums. Returns the moment at which all ranks continue, if the run
    /// survives this loss and every loss before that moment. Otherwise returns None; the failure that the run does not survive
    /// is then the next of `source`.
    fn bear(&self, out: &mut Outcome, source: &mut Source, parts: &mut Parts) -> Option<f64> {
        let going_on = &self.scenario.system.going_on;
        // The moment up to which time is counted, the moment at which all ranks continue, and the number of new columns at that
        // moment.
        let mut until: Option<(f64, f64, u64)> = None;
        loop {
            let event = source.peek();
            let next = event.as_ref().map_or(f64::INFINITY, |e| e.time).min(self.limit);
            if let Some((told, up, new)) = &mut until {
                out.time.restart += next.min(*up) - *told;
                *told = next;
                if next >= *up || self.limit <= next {
                    parts.renew(*new);
                    out.renewed += *new;
                    out.recoveries += 1;
                    out.in_place += 1;
                    return Some(*up);
                }
            }
            let event = event?;
            let node = self.process_of(&event)?;
            if out.failures >= MOST_FAILURES {
                return None;
            }
            let mattered = parts.lose(node)?;
            source.take();
            if mattered {
                out.failures += 1;
                let new = parts.begin_new();
                let lasts =
                    going_on.in_place.unwrap_or(0.0) + new as f64 * going_on.renew.unwrap_or(0.0);
                until = Some((event.time, event.time + lasts, new));
            } else if until.is_none() {
                return Some(event.time);
            }
        }
    }

    /// Returns the node of the process that a failure ends; None if the failure ends the whole node.
    fn process_of(&self, event: &Event) -> Option<u64> {
        match event.failed {
            Failed::Node(node) if event.kind < self.scenario.system.going_on.processes => {
                Some(node)
            }
            _ => None,
        }
    }

    /// Handles the next failure of `source`, and all further failures until the run computes again. Returns the moment at which
    /// the run computes again, or the end of the run.
    fn bring_back(
        &self,
        out: &mut Outcome,
        source: &mut Source,
        spares: &mut Spares,
        waiting: &mut u64,
        saved: bool,
    ) -> Result<f64, (End, f64)> {
        let going_on = &self.scenario.system.going_on;
        let all_waiting = going_on.spare_ranks.unwrap_or(u64::MAX);
        // A recovery that began as a restart stays a restart after further losses. Checksums do not help a run that starts from
        // scratch.
        let in_place = going_on.in_place.filter(|_| self.scenario.method.goes_on_in_place());
        let mut by_restart = in_place.is_none();
        // With saves on disk, or before the first save, the run survives any number of losses.
        let fragile = saved && self.scenario.method.in_memory();
        let mut losses = Losses::new();
        loop {
            let Some(event) = source.take() else {
                // Not reachable, since the caller has peeked at this event. Without an event the run continues.
                return Ok(out.wall);
            };
            out.failures += 1;
            let now = event.time;
            if self.process_of(&event).is_none() || *waiting == 0 {
                by_restart = true;
            } else if !by_restart && all_waiting < u64::MAX {
                *waiting -= 1;
            }
            if self.lose(&event, &mut losses, spares, fragile) {
                return Err((End::GroupLost, now));
            }
            if out.failures >= MOST_FAILURES {
                return Err((End::Late, now));
            }
            let [noticed, staffed, started] = match in_place {
                Some(time) if !by_restart => [now, now, now + time],
                _ => {
                    *waiting = all_waiting;
                    self.restart(out, spares, now)?
                }
            };
            let up = started + self.restoration(saved);
            let next = source.peek().map_or(f64::INFINITY, |e| e.time).min(self.limit);
            // Part of each stage before the next failure or the time limit.
            let spent = |from: f64, to: f64| (next.min(to) - from).max(0.0);
            out.time.detect += spent(now, noticed);
            out.time.wait += spent(noticed, staffed);
            out.time.restart += spent(staffed, started);
            out.time.recover += spent(started, up);
            if next >= up {
                out.recoveries += 1;
                out.in_place += u64::from(!by_restart);
                return Ok(up);
            }
            if self.limit <= next {
                return Err((End::Late, self.limit));
            }
        }
    }

    /// Adds a lost node to the losses. Returns whether its group has now lost more members than it survives.
    fn overwhelms(&self, losses: &mut Losses, node: u64) -> bool {
        let members = losses.entry(self.group_of(node)).or_default();
        // A node that is lost again, after its replacement, counts once.
        members.insert(node);
        members.len() as u64 > self.scenario.system.losses
    }

    /// Takes spares for the nodes that a failure ends. Returns whether a group has lost more members than it survives. Always
    /// false unless the run is `fragile`: it has saved a checkpoint in memory.
    fn lose(&self, event: &Event, losses: &mut Losses, spares: &mut Spares, fragile: bool) -> bool {
        let system = &self.scenario.system;
        match event.failed {
            Failed::Node(node) => {
                // A node that lost only a process needs no spare.
                if self.process_of(event).is_none() {
                    spares.take(event.time);
                }
                fragile && self.overwhelms(losses, node)
            }
            Failed::Domain(domain) => {
                let mut overwhelmed = false;
                let size = system.domains.map_or(1, |d| d.size);
                let first = domain.saturating_mul(size);
                for node in first..first.saturating_add(size).min(system.nodes) {
                    spares.take(event.time);
                    // One group with too many losses suffices, so the nodes left in a large domain are not checked.
                    if fragile && !overwhelmed {
                        overwhelmed = self.overwhelms(losses, node);
                    }
                }
                overwhelmed
            }
        }
    }

    /// Restarts after a failure at `now`. Returns the moments at which the failure is noticed, all lost nodes are replaced, and
    /// the job has started. Returns the end of the run as an error if there is no spare left, or if the time limit passes.
    fn restart(
        &self,
        out: &mut Outcome,
        spares: &mut Spares,
        now: f64,
    ) -> Result<[f64; 3], (End, f64)> {
        let noticed = now + self.scenario.system.detect;
        if let Some(staffed) = spares.ready(noticed) {
            return Ok([noticed, staffed, staffed + self.scenario.system.restart]);
        }
        // If the time limit passes before the failure is noticed, the run is late.
        let end = if noticed < self.limit { End::NoSpare } else { End::Late };
        let wall = noticed.min(self.limit);
        out.time.detect += wall - now;
        Err((end, wall))
    }

    /// Seconds to restore the checkpoint if there is one (`saved`), or to generate the matrix again.
    fn restoration(&self, saved: bool) -> f64 {
        let Scenario { method, system, .. } = self.scenario;
        if saved && method.saves() { system.recover } else { system.regenerate }
    }
}

#[cfg(test)]
mod tests {
    use super::super::failures::{Failures, Trace};
    use super::super::{Domains, GoingOn, System};
    use super::*;
    use crate::model::nonstop::Columns;
    use crate::model::profile::Schedule;

    fn system() -> System {
        System {
            nodes: 64,
            group: 8,
            losses: 1,
            placement: Placement::Neighbours,
            domains: None,
            spares: None,
            repair: None,
            detect: 3.0,
            restart: 4.0,
            recover: 5.0,
            regenerate: 6.0,
            going_on: GoingOn::NEVER,
        }
    }

    /// Simulates 100 s of work with a save every 25 s (3 s encode, 2 s flush), and failures exactly at `times`.
    fn run(method: Method, system: System, times: &[(f64, u64)], limit: Option<f64>) -> Outcome {
        // Events far before and far after `times` let the trace start exactly at the given origin.
        let far = 1e9;
        let mut events: Vec<(f64, u64)> = vec![(0.0, 63)];
        events.extend(times.iter().map(|(t, n)| (far + t, *n)));
        events.push((2e9, 63));
        let trace = Trace::new(events).unwrap().starting_at(far);
        let schedule = match method {
            m if !m.saves() => Schedule::periodic(100.0, 100.0, 0.0, 0.0).unwrap(),
            _ => Schedule::periodic(100.0, 25.0, 3.0, 2.0).unwrap(),
        };
        let scenario =
            Scenario { schedule, method, system, failures: Failures::Trace(trace), limit };
        scenario.check().unwrap();
        Plan::new(&scenario).run(0, 0)
    }

    fn adds_up(o: &Outcome) {
        let sum: f64 = o.time.parts().iter().map(|(_, seconds)| seconds).sum();
        assert!((sum - o.wall).abs() < 1e-9, "{o:?}");
    }

    #[test]
    fn undisturbed() {
        let o = run(Method::SelfCheckpoint, system(), &[], None);
        assert_eq!(
            (o.end, o.wall, o.time.useful, o.time.saving),
            (End::Finished, 115.0, 100.0, 15.0)
        );
    }

    #[test]
    fn a_loss_while_working_goes_back_to_the_last_save() {
        // Save 1 is safe at 28 s and complete at 30 s. The failure at 40 s loses ten seconds.
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1)], None);
        assert_eq!(o.time.lost, 10.0);
        assert_eq!(o.wall, 115.0 + 10.0 + 12.0);
        assert_eq!((o.time.detect, o.time.restart, o.time.recover), (3.0, 4.0, 5.0));
        adds_up(&o);
    }

    #[test]
    fn a_loss_before_the_first_save_generates_again() {
        let o = run(Method::SelfCheckpoint, system(), &[(20.0, 1)], None);
        assert_eq!((o.time.lost, o.time.recover, o.wall), (20.0, 6.0, 115.0 + 20.0 + 13.0));
    }

    #[test]
    fn phases_of_a_save_by_method() {
        // The second save encodes from 55 to 58 s, and flushes until 60 s.
        let o = run(Method::SelfCheckpoint, system(), &[(56.0, 1)], None);
        assert_eq!(o.time.lost, 26.0);
        let o = run(Method::SelfCheckpoint, system(), &[(59.0, 1)], None);
        assert_eq!((o.time.lost, o.wall), (0.0, 114.0 + 12.0), "one second of flush is spared");
        adds_up(&o);
        let o = run(Method::Double, system(), &[(59.0, 1)], None);
        assert_eq!(o.time.lost, 29.0);
        let o = run(Method::Single, system(), &[(59.0, 1)], None);
        assert_eq!((o.end, o.wall), (End::LostWhileSaving, 59.0));
        let o = run(Method::Single, system(), &[(54.0, 1)], None);
        assert_eq!(o.end, End::Finished);
        let o = run(Method::None, system(), &[(59.0, 1)], None);
        assert_eq!((o.time.lost, o.wall), (59.0, 100.0 + 59.0 + 13.0));
    }

    #[test]
    fn two_losses_in_a_group_are_one_too_many() {
        // Nodes 0..8 are group 0. The run is down from 40 to 52.
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1), (45.0, 2)], None);
        assert_eq!((o.end, o.wall), (End::GroupLost, 45.0));
        adds_up(&o);
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1), (45.0, 9)], None);
        assert_eq!((o.end, o.wall), (End::Finished, 115.0 + 10.0 + 5.0 + 12.0), "another group");
        adds_up(&o);
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1), (45.0, 1)], None);
        assert_eq!(o.end, End::Finished, "its own replacement");
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1), (53.0, 2)], None);
        assert_eq!(o.end, End::Finished, "whole again at 52");
        let two = System { losses: 2, ..system() };
        let o = run(Method::SelfCheckpoint, two, &[(40.0, 1), (45.0, 2)], None);
        assert_eq!(o.end, End::Finished);
        let o = run(Method::Disk, system(), &[(40.0, 1), (45.0, 2)], None);
        assert_eq!(o.end, End::Finished);
    }

    /// Four process columns, the last with the checksums; node n is in column n mod 4. A loss costs 2 s.
    #[test]
    fn checksums_bear_one_column() {
        let going_on = |processes| GoingOn {
            processes,
            in_place: Some(2.0),
            columns: Some(Columns { q: 3, sums: 1 }),
            ..GoingOn::NEVER
        };
        let system = System { going_on: going_on(1.0), ..system() };
        let run = |times: &[(f64, u64)], limit| run(Method::Abft, system.clone(), times, limit);
        let o = run(&[(40.0, 1)], None);
        assert_eq!((o.end, o.wall, o.time.lost, o.in_place), (End::Finished, 102.0, 0.0, 1));
        adds_up(&o);
        // The second loss is in the same column, which does not compute any more.
        let o = run(&[(40.0, 1), (70.0, 5)], None);
        assert_eq!((o.wall, o.in_place, o.from_scratch), (104.0, 2, 0));
        // The checksum column counts like the other columns. A loss in a second column is one too many.
        let o = run(&[(40.0, 3), (70.0, 7)], None);
        assert_eq!((o.wall, o.from_scratch), (104.0, 0));
        for second in [0, 2, 3] {
            let o = run(&[(40.0, 1), (70.0, second)], None);
            // 68 s of work are lost at 70 s, and the start from scratch takes 13 s.
            assert_eq!(
                (o.end, o.time.lost, o.wall, o.from_scratch),
                (End::Finished, 68.0, 183.0, 1)
            );
            adds_up(&o);
        }
        // The second loss comes during the recovery from the first.
        let o = run(&[(40.0, 1), (41.0, 2)], None);
        assert_eq!((o.time.lost, o.wall), (40.0, 154.0));
        adds_up(&o);
        let o = run(&[(40.0, 1), (41.0, 5)], None);
        assert_eq!((o.time.lost, o.wall, o.recoveries), (0.0, 103.0, 1));
        adds_up(&o);
        // After a start from scratch there are checksums again.
        let o = run(&[(40.0, 1), (70.0, 2), (100.0, 0)], None);
        assert_eq!((o.wall, o.in_place, o.from_scratch), (185.0, 2, 1));
        adds_up(&o);
        for limit in [41.0, 50.0, 101.0] {
            let o = run(&[(40.0, 1)], Some(limit));
            assert_eq!((o.end, o.wall), (End::Late, limit));
            adds_up(&o);
        }
        // The loss of a node is never survived.
        let nodes = System { going_on: going_on(0.0), ..system };
        let o = super::tests::run(Method::Abft, nodes, &[(40.0, 1)], None);
        assert_eq!((o.time.lost, o.wall, o.from_scratch), (40.0, 40.0 + 13.0 + 100.0, 1));
        adds_up(&o);
    }

    /// Four process columns, the last two with checksums; a loss costs 2 s.
    #[test]
    fn two_columns_of_checksums_bear_two() {
        let columns = Some(Columns { q: 2, sums: 2 });
        let going_on = GoingOn { processes: 1.0, in_place: Some(2.0), columns, ..GoingOn::NEVER };
        let system = System { going_on, ..system() };
        let run = |times: &[(f64, u64)]| run(Method::Abft, system.clone(), times, None);
        // Losses one after the other, with one in an idle column between them, and in the checksum columns themselves.
        for times in [[(40.0, 1), (50.0, 5), (70.0, 0)], [(40.0, 3), (50.0, 2), (70.0, 6)]] {
            let o = run(&times);
            assert_eq!((o.end, o.wall, o.time.lost, o.in_place), (End::Finished, 106.0, 0.0, 3));
            adds_up(&o);
        }
        // The second loss comes during the recovery from the first, so the recovery begins again at the second.
        let o = run(&[(40.0, 1), (41.0, 2)]);
        assert_eq!((o.wall, o.time.lost, o.recoveries), (103.0, 0.0, 1));
        adds_up(&o);
        // A third loss is one too many: 66 s of work are lost at 70 s, the start from scratch takes 13 s, and then there are two
        // columns again.
        let o = run(&[(40.0, 1), (60.0, 2), (70.0, 0), (100.0, 1), (110.0, 3)]);
        assert_eq!((o.time.lost, o.wall, o.from_scratch, o.in_place), (66.0, 187.0, 1, 4));
        adds_up(&o);
    }

    /// Fifteen rows of four process columns, the last with checksums, and four waiting ranks, nodes 60 to 63. A loss costs 2 s,
    /// and each new column 3 s more.
    #[test]
    fn new_checksums_bear_the_next_loss() {
        let with = |sums, spare_ranks| System {
            going_on: GoingOn {
                processes: 1.0,
                in_place: Some(2.0),
                columns: Some(Columns { q: 4 - sums, sums }),
                spare_ranks,
                renew: Some(3.0),
            },
            ..system()
        };
        let run = |system: System, times: &[(f64, u64)]| run(Method::Abft, system, times, None);
        let four = || with(1, Some(4));
        // 14 ranks are left of column 1 and four wait. The new column takes 15 of these, so three are free, and 17 after the next
        // loss.
        let o = run(four(), &[(40.0, 1), (70.0, 2)]);
        assert_eq!((o.wall, o.from_scratch, o.renewed, o.in_place), (110.0, 0, 2, 2));
        adds_up(&o);
        let each = [(10.0, 0), (30.0, 1), (50.0, 2), (70.0, 3)];
        let o = run(four(), &each);
        assert_eq!((o.wall, o.from_scratch, o.renewed), (120.0, 0, 4));
        // The last new column survives a fifth loss, of a rank that is in a new column itself. No column is left for a sixth: 110
        // s less 22 are lost.
        let o = run(four(), &[&each[..], &[(95.0, 5), (110.0, 60)]].concat());
        assert_eq!((o.time.lost, o.wall, o.from_scratch, o.renewed), (88.0, 223.0, 1, 4));
        adds_up(&o);
        // A second loss before the new columns are ready ends the try: 40 s are lost, and the run computes again after 13 s.
        let o = run(four(), &[(40.0, 1), (44.0, 2)]);
        assert_eq!(
            (o.time.lost, o.wall, o.from_scratch, o.renewed),
            (40.0, 44.0 + 13.0 + 100.0, 1, 0)
        );
        adds_up(&o);
        // The second lost rank is making a new column. The column is begun again, since there are enough ranks.
        let o = run(four(), &[(40.0, 1), (44.0, 5)]);
        assert_eq!((o.time.lost, o.wall, o.from_scratch, o.renewed), (0.0, 109.0, 0, 1));
        adds_up(&o);
        // No rank dies twice.
        let o = run(four(), &[(40.0, 1), (70.0, 1)]);
        assert_eq!((o.wall, o.failures), (105.0, 1));
        adds_up(&o);
        // If no rank waits, the 30 ranks left of two columns make a third column of 16. So do the 29 free ranks after the next
        // loss.
        let o = run(with(2, Some(0)), &[(40.0, 1), (60.0, 2), (80.0, 3)]);
        assert_eq!((o.wall, o.from_scratch, o.renewed), (112.0, 0, 2));
        adds_up(&o);
        // With a single checksum column and no waiting rank, no new column is made.
        let o = run(with(1, Some(0)), &[(40.0, 1), (70.0, 2)]);
        assert_eq!((o.from_scratch, o.renewed), (1, 0));
    }

    /// Recovery in place costs 2 s instead of detection and restart, 7 s; the restoration costs 5 s either way.
    #[test]
    fn in_place_while_there_are_spare_ranks() {
        let with = |processes, spare_ranks| System {
            going_on: GoingOn { processes, in_place: Some(2.0), spare_ranks, ..GoingOn::NEVER },
            ..system()
        };
        let run = |s, times: &[(f64, u64)]| run(Method::SelfCheckpoint, s, times, None);
        let o = run(with(1.0, None), &[(40.0, 1)]);
        assert_eq!((o.time.lost, o.wall, o.in_place), (10.0, 115.0 + 10.0 + 7.0, 1));
        adds_up(&o);
        let o = run(with(0.0, None), &[(40.0, 1)]);
        assert_eq!((o.wall, o.in_place), (115.0 + 10.0 + 12.0, 0));
        // The run computes again at 47 s. The failure at 70 s loses another 23 s.
        let two = [(40.0, 1), (70.0, 9)];
        let o = run(with(1.0, Some(2)), &two);
        assert_eq!((o.wall, o.in_place), (115.0 + 10.0 + 7.0 + 23.0 + 7.0, 2));
        let o = run(with(1.0, Some(1)), &two);
        assert_eq!((o.wall, o.in_place), (115.0 + 10.0 + 7.0 + 23.0 + 12.0, 1));
        adds_up(&o);
        // After a restart all spare ranks are available again. The run computes again at 82 s, so at 100 s it is 18 s into the
        // third segment.
        let o = run(with(1.0, Some(1)), &[(40.0, 1), (70.0, 9), (100.0, 17)]);
        assert_eq!((o.in_place, o.time.lost), (2, 10.0 + 23.0 + 18.0));
        // A second loss in the group before the restoration is complete is one too many.
        let o = run(with(1.0, None), &[(40.0, 1), (45.0, 2)]);
        assert_eq!((o.end, o.wall), (End::GroupLost, 45.0));
        // The loss of a process takes no spare node.
        let none = System { spares: Some(0), ..with(1.0, None) };
        assert_eq!(run(none, &two).end, End::Finished);
    }

    #[test]
    fn methods_that_cannot_continue_are_refused() {
        let said = |method, going_on| {
            let scenario = Scenario {
                schedule: Schedule::periodic(100.0, 100.0, 0.0, 0.0).unwrap(),
                method,
                system: System { going_on, ..system() },
                failures: Failures::Exponential { mtbf: 1e300 },
                limit: None,
            };
            scenario.check().unwrap_err().to_string()
        };
        let in_place = GoingOn { in_place: Some(1.0), ..GoingOn::NEVER };
        assert!(said(Method::Single, in_place).contains("no checkpoint to restore"));
        assert!(said(Method::Disk, in_place).contains("from memory"));
        assert!(said(Method::None, in_place).contains("no save"));
        assert!(said(Method::Abft, in_place).contains("--columns"));
        let with = |q, sums| GoingOn { columns: Some(Columns { q, sums }), ..in_place };
        let columns = with(3, 1);
        assert!(said(Method::SelfCheckpoint, columns).contains("no columns of checksums"));
        let waiting = GoingOn { spare_ranks: Some(1), ..columns };
        assert!(said(Method::Abft, waiting).contains("--renew-time"));
        let uneven = GoingOn { renew: Some(1.0), ..waiting };
        assert!(said(Method::Abft, uneven).contains("64 nodes with a rank each, less 1 spare"));
        let renews = GoingOn { renew: Some(1.0), ..in_place };
        assert!(said(Method::SelfCheckpoint, renews).contains("no checksums to rebuild"));
        assert!(said(Method::Abft, with(64, 1)).contains("Q+R"));
        assert!(said(Method::Abft, with(61, 4)).contains("Q+R"));
        assert!(said(Method::Abft, with(3, 5)).contains("at most 4"));
        assert!(said(Method::Abft, with(3, 0)).contains("at least 1"));
        let share = GoingOn { processes: 1.5, ..GoingOn::NEVER };
        assert!(said(Method::None, share).contains("between 0 and 1"));
    }

    #[test]
    fn spares_run_out_and_come_back() {
        let few = System { spares: Some(1), ..system() };
        let o = run(Method::SelfCheckpoint, few.clone(), &[(40.0, 1), (70.0, 20)], None);
        assert_eq!((o.end, o.wall), (End::NoSpare, 73.0));
        adds_up(&o);
        let repaired = System { repair: Some(50.0), ..few };
        let o = run(Method::SelfCheckpoint, repaired, &[(40.0, 1), (70.0, 20)], None);
        assert_eq!((o.end, o.time.wait), (End::Finished, 90.0 - 73.0));
        adds_up(&o);
    }

    #[test]
    fn a_deadline() {
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1)], Some(120.0));
        assert_eq!((o.end, o.wall), (End::Late, 120.0));
        adds_up(&o);
        let o = run(Method::SelfCheckpoint, system(), &[(40.0, 1)], Some(50.0));
        assert_eq!((o.end, o.wall), (End::Late, 50.0));
        adds_up(&o);
    }

    #[test]
    fn spread_groups_share_no_domain() {
        for (nodes, size, group) in [(64, 8, 8), (60, 8, 7), (61, 4, 16), (1000, 48, 16)] {
            let scenario = Scenario {
                schedule: Schedule::periodic(1.0, 1.0, 0.0, 0.0).unwrap(),
                method: Method::SelfCheckpoint,
                system: System {
                    nodes,
                    group,
                    placement: Placement::Spread,
                    domains: Some(Domains { size, mtbf: 1.0 }),
                    ..system()
                },
                failures: Failures::Exponential { mtbf: 1e300 },
                limit: None,
            };
            let plan = Plan::new(&scenario);
            let mut members = vec![Vec::new(); plan.groups as usize];
            for node in 0..nodes {
                members[plan.group_of(node) as usize].push(node / size);
            }
            for m in &mut members {
                assert!(!m.is_empty() && m.len() as u64 <= group);
                m.sort_unstable();
                // Where the last domain is short, successive nodes may be in the same domain only if groups are larger than the
                // number of domains.
                if group < nodes / size {
                    assert!(m.windows(2).all(|w| w[0] != w[1]), "{nodes} {size} {group} {m:?}");
                }
            }
        }
    }
}

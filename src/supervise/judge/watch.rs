//! Watchdog of an attempt. Distinguishes a healthy run from a broken run by the events that are passed in and their times. Pure.
//!
//! The supervisor passes every heartbeat, the launcher's end and each lost node to [`Watch`], and the time to [`Watch::tick`].
//! Each call returns verdicts. [`Watch`] combines the judges of other files: `ranks`, `hang`, `pace` and `trips`. `nodes`, which
//! outlives attempts, judges whether a node is lost.
//!
//! Times are milliseconds of any clock that only goes forward.

use super::ending::End;
use super::hang::Hang;
use super::nodes::Loss;
use super::pace::Pace;
use super::ranks::{Breakage, Ranks, Step};
use super::thresholds::Thresholds;
use super::trips::Trips;
use crate::supervise::remember::events::FaultKind;
use crate::supervise::talk::wire::Beat;

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The attempt has ended. This is the last verdict.
    Over(End),
    /// A rank hangs, and the other ranks can continue without it once its process `pid` is ended.
    Hung { node: usize, pid: u32, detail: String },
    /// A node has become much slower than the other nodes. Given once for each node and kind of slowness.
    Slow { node: usize, detail: String },
    /// An event of the run as a whole.
    Step(Step),
}

/// State of an attempt that is watched.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    thresholds: Thresholds,
    names: Vec<String>,
    pub ranks: Ranks,
    hang: Hang,
    pace: Pace,
    trips: Trips,
    started_ms: u64,
    ticked_ms: u64,
    over: bool,
    /// Whether the ranks have been asked to stop, so that their end is no fault.
    pub end_expected: bool,
    /// Whether every rank reports progress once MPI has started. The benchmark's ranks do; those of another program may not.
    pub progress_shows: bool,
    /// Whether the ranks continue without a rank that dies.
    pub goes_on: bool,
    /// Moment at which the supervisor began to end a hanging rank, and the breakage to report if the other ranks do not continue
    /// without it.
    ending: Option<(u64, Breakage)>,
    seen_processes: bool,
}

/// Time to wait for the exit status if all ranks have ended.
const END_GRACE_MS: u64 = 5000;

/// Number of iterations that the other ranks may take to report that they continue without a rank.
const ITERATIONS_TO_GO_ON: u64 = 3;

/// Time between two ticks after which the supervisor itself must have been suspended, or had no processor time.
const GAP_MS: u64 = 1000;

impl Watch {
    /// Begins to watch a job that was just launched. `names` are the names of all nodes, with ranks of the job or without.
    pub fn new(thresholds: Thresholds, names: &[String], now_ms: u64) -> Self {
        Self {
            thresholds,
            names: names.to_vec(),
            hang: Hang::new(thresholds),
            pace: Pace::new(thresholds.pace_factor, thresholds.pace_ms),
            started_ms: now_ms,
            ticked_ms: now_ms,
            ..Self::default()
        }
    }

    /// Notes that the ranks continue without a lost rank. If this was a hanging rank that was ended, returns the moment from
    /// which it hung.
    pub fn gone_on(&mut self, now_ms: u64) -> Option<u64> {
        let (_, breakage) = self.ending.take()?;
        self.ranks.forgive(now_ms.saturating_sub(breakage.failed_ms));
        Some(breakage.failed_ms)
    }

    /// Whether the launcher has started ranks, or any process if ranks do not report progress.
    pub fn has_seen_ranks(&self) -> bool {
        if self.progress_shows { !self.ranks.is_empty() } else { self.seen_processes }
    }

    /// Takes in a heartbeat of a node.
    pub fn beat(&mut self, now_ms: u64, node: usize, beat: &Beat) -> Vec<Verdict> {
        if self.over {
            return Vec::new();
        }
        self.seen_processes |= beat.processes > 0;
        self.hang.beat(now_ms, node, beat.stopped);
        let steps = self.ranks.beat(now_ms, node, &beat.ranks);
        let round_trip_ms = beat.round_trip_ms.map_or(0.0, f64::from);
        beat.ranks.iter().for_each(|rank| self.pace.see(now_ms, node, rank));
        let slow = self.trips.see(now_ms, node, round_trip_ms);
        let slow = slow.map(|detail| Verdict::Slow { node, detail });
        steps.into_iter().map(Verdict::Step).chain(slow).collect()
    }

    /// Notes that the launcher ended with status `code`, or vanished without a status (`None`).
    pub fn launcher_ends(&mut self, now_ms: u64, code: Option<i32>) -> Vec<Verdict> {
        if std::mem::replace(&mut self.over, true) {
            return Vec::new();
        }
        vec![Verdict::Over(self.exit(now_ms, code))]
    }

    /// Returns the end of an attempt whose launcher ended with status `code`.
    pub fn exit(&self, now_ms: u64, code: Option<i32>) -> End {
        let first = self.ranks.first_death();
        let failed_ms = first.map_or(self.ticked_ms.min(now_ms), |(at, _, _)| at);
        let (node, position) = first.map(|(_, node, position)| (node, position)).unzip();
        let detail = match code {
            Some(code) => format!("the launcher ended with status {code}"),
            None => "the launcher vanished without an exit status".to_string(),
        };
        let fault = self.ranks.breakage(FaultKind::LauncherGone, failed_ms, node, detail);
        End::Exit { code, fault: Breakage { position, ..fault } }
    }

    /// Notes that a node with ranks is lost.
    pub fn loses(&mut self, loss: Loss) -> Vec<Verdict> {
        if self.over {
            return Vec::new();
        }
        let Loss { node, kind, failed_ms, detail } = loss;
        self.broken(self.ranks.breakage(kind, failed_ms, Some(node), detail))
    }

    fn broken(&mut self, breakage: Breakage) -> Vec<Verdict> {
        self.over = true;
        vec![Verdict::Over(End::Broken(breakage))]
    }

    /// Judges missing progress on the nodes for which `heard` returns true: those that answer now. The supervisor calls it
    /// several times a second, except while no node answers.
    pub fn tick(&mut self, now_ms: u64, heard: impl Fn(usize) -> bool) -> Vec<Verdict> {
        if self.over {
            return Vec::new();
        }
        let gap_ms = now_ms.saturating_sub(self.ticked_ms);
        self.ticked_ms = now_ms;
        if gap_ms > GAP_MS {
            self.started_ms += gap_ms;
            self.ending.iter_mut().for_each(|(since_ms, _)| *since_ms += gap_ms);
            self.ranks.forgive(gap_ms);
            self.hang.forgive(gap_ms);
            self.pace.pause(now_ms);
            return Vec::new();
        }
        // If all ranks have ended at once, the benchmark has most likely ended by itself, and its exit status will follow.
        let all_gone = self.end_expected || self.ranks.all_through();
        let grace_ms = if all_gone { END_GRACE_MS } else { self.grace_ms() };
        if let Some(breakage) = self.ranks.dead(now_ms, grace_ms, &self.names) {
            return self.broken(breakage);
        }
        if let Some(breakage) = self.not_started(now_ms) {
            return self.broken(breakage);
        }
        if let Some((since_ms, breakage)) = &self.ending {
            if now_ms.saturating_sub(*since_ms) >= self.grace_ms() {
                return self.broken(breakage.clone());
            }
        } else if let Some(breakage) = self.hang.find(now_ms, &self.ranks, heard, &self.names) {
            return self.hung(now_ms, breakage);
        }
        let slow = self.pace.tick(now_ms).into_iter();
        slow.map(|(node, detail)| Verdict::Slow { node, detail }).collect()
    }

    /// Returns the time for which a rank may be dead before its death is a fault. If the other ranks can continue without it,
    /// they notice its loss at the latest at the end of an iteration. They may have to repeat an iteration before they report.
    fn grace_ms(&self) -> u64 {
        // The time of an iteration is unknown during the first iterations.
        let usual_ms = self.ranks.iteration_ms();
        let iterations_ms = if self.goes_on {
            usual_ms.map_or(self.thresholds.progress_timeout_ms, |ms| ITERATIONS_TO_GO_ON * ms)
        } else {
            0
        };
        self.thresholds.exit_grace_ms.max(iterations_ms)
    }

    /// Judges a hanging rank. If the other ranks can continue without it, only its process has to end.
    fn hung(&mut self, now_ms: u64, breakage: Breakage) -> Vec<Verdict> {
        let process = breakage.position.and_then(|position| self.ranks.process_of(position));
        match process.filter(|_| self.goes_on && !self.end_expected) {
            None => self.broken(breakage),
            Some((node, pid)) => {
                let detail = breakage.detail.clone();
                self.ending = Some((now_ms, breakage));
                vec![Verdict::Hung { node, pid, detail }]
            }
        }
    }

    fn not_started(&self, now_ms: u64) -> Option<Breakage> {
        let nobody = !self.seen_processes || (self.progress_shows && self.ranks.is_empty());
        let startup_timeout_ms = self.thresholds.startup_timeout_ms;
        if !nobody || now_ms.saturating_sub(self.started_ms) < startup_timeout_ms {
            return None;
        }
        let detail = if self.seen_processes {
            "processes of the run exist, but no rank has begun to work: MPI does not start"
        } else {
            "no process of the run has appeared on any node"
        };
        let detail = format!("{} s after the launch, {detail}", startup_timeout_ms / 1000);
        Some(self.ranks.breakage(FaultKind::LaunchFailed, self.started_ms, None, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::header::CheckpointId;
    use crate::supervise::talk::progress::{Doing, Progress};
    use proptest::prelude::*;

    /// Four nodes with one rank each. Ranks take a second for an iteration, and nodes send a heartbeat every half-second.
    struct Run {
        watch: Watch,
        now: u64,
        verdicts: Vec<(u64, Verdict)>,
        beating: [bool; 4],
        moving: bool,
        doing: Doing,
        /// Activity of each node, if it differs from that of the other nodes.
        own: [Option<Doing>; 4],
        states: [char; 4],
        stuck: [Option<u64>; 4],
        waiting: [bool; 4],
        saved: Option<(CheckpointId, u64)>,
    }

    fn beat(processes: usize, stopped: usize, ranks: Vec<Progress>) -> Beat {
        Beat { round_trip_ms: Some(1), processes, stopped, ranks, ..Beat::default() }
    }

    fn lost_node() -> Loss {
        let kind = FaultKind::NodeUnresponsive;
        Loss { node: 2, kind, failed_ms: 20_000, detail: "no heartbeat".to_string() }
    }

    impl Run {
        fn new() -> Self {
            let nodes: Vec<String> = (1..=4).map(|n| format!("n{n}")).collect();
            let watch = Watch::new(Thresholds::default(), &nodes, 0);
            Self {
                watch,
                now: 0,
                verdicts: Vec::new(),
                beating: [true; 4],
                moving: true,
                doing: Doing::Computing,
                own: [None; 4],
                states: ['R'; 4],
                stuck: [None; 4],
                waiting: [false; 4],
                saved: None,
            }
        }
        fn until(&mut self, end: u64) -> &mut Self {
            while self.now < end {
                self.now += 100;
                if self.now.is_multiple_of(500) {
                    for node in 0..4 {
                        self.beat(node);
                    }
                }
                let more = self.watch.tick(self.now, |_| true);
                self.note(more);
            }
            self
        }
        fn note(&mut self, more: Vec<Verdict>) {
            let now = self.now;
            self.verdicts.extend(more.into_iter().map(|v| (now, v)));
        }
        fn beat(&mut self, node: usize) {
            if !self.beating[node] {
                return;
            }
            let moved = if self.moving { self.now } else { 20_000 };
            let at = self.stuck[node].unwrap_or(moved);
            let seen = Progress {
                position: node as u32,
                pid: 100 + node as u32,
                beat: at / 250,
                iteration: at / 1000,
                doing: self.own[node].unwrap_or(self.doing),
                saved: self.saved,
                waits: if self.waiting[node] { self.now as u16 } else { 0 },
                state: self.states[node],
                ..Progress::default()
            };
            let beat = beat(1, usize::from(self.states[node] == 'T'), vec![seen]);
            let more = self.watch.beat(self.now, node, &beat);
            self.note(more);
        }
        fn loses(&mut self, loss: Loss) {
            let more = self.watch.loses(loss);
            self.note(more);
        }
        fn launcher_ends(&mut self, code: i32) {
            let more = self.watch.launcher_ends(self.now, Some(code));
            self.note(more);
        }
        /// Returns the moment of the launcher's end, its status, and the moment, node and position of the first death.
        fn exit(&self) -> (u64, Option<i32>, u64, Option<(usize, u32)>) {
            match self.verdicts.last() {
                Some((at, Verdict::Over(End::Exit { code, fault }))) => {
                    (*at, *code, fault.failed_ms, fault.node.zip(fault.position))
                }
                other => panic!("{other:?}"),
            }
        }
        fn breakage(&self) -> (u64, &Breakage) {
            let found: Vec<_> = self
                .verdicts
                .iter()
                .filter_map(|(at, v)| match v {
                    Verdict::Over(End::Broken(b)) => Some((*at, b)),
                    _ => None,
                })
                .collect();
            assert_eq!(found.len(), 1, "{:?}", self.verdicts);
            found[0]
        }
    }

    #[test]
    fn a_healthy_run_gives_no_cause_for_alarm() {
        let mut run = Run::new();
        run.until(100_000);
        assert_eq!(
            run.verdicts,
            [(500, Verdict::Step(Step::Computing { test: 0, iteration: 0 }))],
            "only that it computes"
        );
        assert_eq!(run.watch.ranks.front().1, 100);
        assert!(run.watch.ranks.iteration_ms().unwrap().abs_diff(1000) <= 500);
    }

    #[test]
    fn a_lost_node_breaks_the_run_where_the_others_have_come_to() {
        let mut run = Run::new();
        run.until(20_000).beating[2] = false;
        run.until(24_000).loses(lost_node());
        run.until(90_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.node), (FaultKind::NodeUnresponsive, Some(2)));
        assert_eq!((at, broken.failed_ms), (24_000, 20_000));
        assert_eq!(broken.iteration, 24, "others had continued meanwhile");
    }

    /// The progress of a node's ranks while it was unresponsive is unknown. Their lack of progress before that is forgotten.
    #[test]
    fn a_node_that_speaks_again_is_judged_from_then_on() {
        let mut run = Run::new();
        run.until(20_000).stuck[1] = Some(20_000);
        for now in (20_100..60_000).step_by(100) {
            run.now = now;
            for node in [0, 2, 3].into_iter().filter(|_| now % 500 == 0) {
                run.beat(node);
            }
            let more = run.watch.tick(now, |node| node != 1);
            run.note(more);
        }
        assert_eq!(run.verdicts.len(), 1, "{:?}", run.verdicts);
        run.watch.ranks.heard_again(run.now, 1);
        run.until(68_000);
        assert_eq!(run.verdicts.len(), 1, "{:?}", run.verdicts);
        run.until(80_000);
        assert_eq!(run.breakage().1.position, Some(1));
    }

    /// Nodes 1 to 3 wait for node 0, which was the last to reach this iteration.
    #[test]
    fn a_rank_that_hangs_is_ended_if_the_others_can_continue() {
        for goes_on in [false, true] {
            let mut run = Run::new();
            run.watch.goes_on = goes_on;
            run.watch.thresholds.exit_grace_ms = 15_000;
            run.until(20_000).waiting = [false, true, true, true];
            run.stuck = [Some(20_400), Some(20_000), Some(20_000), Some(20_000)];
            run.until(32_000);
            if !goes_on {
                assert_eq!(run.breakage().1.position, Some(0), "the rank that does not wait");
                continue;
            }
            let Some((at, Verdict::Hung { node: 0, pid: 100, .. })) = run.verdicts.last() else {
                panic!("{:?}", run.verdicts)
            };
            // A hanging rank that does not die, or without which the other ranks do not continue, breaks the run after a while.
            let at = *at;
            let mut vain = Run { watch: run.watch.clone(), verdicts: Vec::new(), ..run };
            vain.until(at + 20_000);
            assert_eq!(vain.breakage().1.kind, FaultKind::RankHung);
            assert!((at + 15_000..at + 15_200).contains(&vain.breakage().0));
        }
    }

    /// The next rank that hangs has its full time again.
    #[test]
    fn ranks_that_continue_have_time_again() {
        let mut run = Run::new();
        run.watch.goes_on = true;
        run.watch.thresholds.exit_grace_ms = 15_000;
        run.until(20_000).stuck = [Some(20_000); 4];
        run.until(35_000);
        let hung = |run: &Run| {
            run.verdicts.iter().filter(|(_, v)| matches!(v, Verdict::Hung { .. })).count()
        };
        assert_eq!(hung(&run), 1, "{:?}", run.verdicts);
        let now = run.now;
        assert_eq!(run.watch.gone_on(now), Some(20_000));
        assert_eq!(run.watch.gone_on(now), None);
        run.watch.ranks.set_back(now, 18);
        run.until(now + 5_000);
        assert_eq!(hung(&run), 1, "{:?}", run.verdicts);
        run.until(now + 20_000);
        assert_eq!(hung(&run), 2, "{:?}", run.verdicts);
    }

    /// The first iterations may take minutes, and their usual time is not known yet. Other ranks may notice a loss only at the
    /// end of an iteration.
    #[test]
    fn ranks_that_continue_have_more_time_in_the_first_iterations() {
        for goes_on in [true, false] {
            let mut run = Run::new();
            run.watch.goes_on = goes_on;
            run.watch.thresholds.exit_grace_ms = 15_000;
            run.until(2_000).stuck = [Some(2_000); 4];
            run.states[3] = 'X';
            run.until(100_000);
            let broken =
                run.verdicts.iter().any(|(_, v)| matches!(v, Verdict::Over(End::Broken(_))));
            assert_eq!(broken, !goes_on, "{:?}", run.verdicts);
            run.until(130_000);
            assert!(run.verdicts.iter().any(|(_, v)| matches!(v, Verdict::Over(End::Broken(_)))));
        }
    }

    /// An iteration takes a second and `exit_grace_ms` is 300 ms, so other ranks need more than that to notice a loss.
    #[test]
    fn ranks_that_continue_have_time_for_long_iterations() {
        for (goes_on, broken_after_ms) in [(true, 3_000), (false, 300)] {
            let mut run = Run::new();
            run.watch.goes_on = goes_on;
            run.until(20_000).states[3] = 'X';
            run.until(30_000);
            let (at, broken) = run.breakage();
            assert_eq!((broken.kind, broken.position), (FaultKind::RankDied, Some(3)));
            assert!((0..1000).contains(&(at as i64 - 20_000 - broken_after_ms)), "{goes_on}: {at}");
        }
    }

    #[test]
    fn a_dead_rank_waits_for_the_launchers_word_but_not_long() {
        let mut run = Run::new();
        run.until(20_000).states[3] = 'X';
        run.until(30_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.position), (FaultKind::RankDied, Some(3)));
        assert!(at - 20_500 <= 300);

        let mut run = Run::new();
        run.until(20_000).states[3] = 'X';
        run.until(20_600).launcher_ends(137);
        run.until(30_000);
        assert_eq!(run.exit(), (20_600, Some(137), 20_000, Some((3, 3))));
    }

    #[test]
    fn ranks_that_have_all_gone_are_given_time_to_say_why() {
        let mut run = Run::new();
        run.until(20_000).states = ['X'; 4];
        run.until(24_000).launcher_ends(4);
        assert_eq!(run.exit(), (24_000, Some(4), 20_000, Some((0, 0))));
    }

    #[test]
    fn a_rank_that_is_done_may_go() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Done;
        run.until(21_000).states = ['X'; 4];
        run.until(100_000);
        assert!(!run.verdicts.iter().any(|(_, v)| matches!(v, Verdict::Over(End::Broken(_)))));
    }

    #[test]
    fn ranks_that_are_through_but_do_not_end_are_a_hang_in_the_end() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Solving;
        run.until(21_000);
        // The memory of the ranks is removed, but their processes still exist.
        let progress_timeout_ms = Thresholds::default().progress_timeout_ms;
        for now in (21_500..23_000 + progress_timeout_ms).step_by(500) {
            run.now = now;
            for node in 0..4 {
                let more = run.watch.beat(now, node, &beat(1, 0, vec![]));
                run.note(more);
            }
            let more = run.watch.tick(now, |_| true);
            run.note(more);
        }
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.position), (FaultKind::RankHung, None));
        assert_eq!((broken.failed_ms, at), (21_500, 21_500 + progress_timeout_ms));
    }

    #[test]
    fn memory_left_by_an_earlier_attempt_is_not_a_death() {
        let mut run = Run::new();
        run.states = ['X'; 4];
        run.until(5000);
        assert_eq!(run.verdicts, []);
        run.states = ['R'; 4];
        run.until(30_000);
        assert_eq!(run.verdicts.len(), 1);
    }

    #[test]
    fn the_hung_rank_is_named_not_those_that_wait_for_it() {
        let mut run = Run::new();
        run.until(20_000);
        run.stuck[2] = Some(19_900);
        run.moving = false;
        run.until(60_000);
        let (at, broken) = run.breakage();
        assert_eq!((broken.kind, broken.position), (FaultKind::RankHung, Some(2)));
        assert!(at - 20_000 <= 11_000, "noticed after {} ms", at - 20_000);
        assert!(broken.detail.contains("n3"), "{}", broken.detail);
    }

    #[test]
    fn a_stopped_process_gives_the_culprit_away() {
        let mut run = Run::new();
        run.until(20_000).moving = false;
        run.states[1] = 'T';
        run.until(60_000);
        assert_eq!(run.breakage().1.position, Some(1));
    }

    /// A rank works for minutes in the same phase, and the others wait for it.
    #[test]
    fn nothing_hangs_while_somebody_gets_on() {
        for doing in [Doing::Starting, Doing::Generating, Doing::Saving, Doing::Recovering] {
            let mut run = Run::new();
            run.until(20_000).doing = doing;
            run.stuck = [Some(20_000), Some(20_000), None, Some(20_000)];
            run.until(400_000);
            assert_eq!(run.verdicts.len(), 1, "{doing:?}: {:?}", run.verdicts);
            run.stuck[2] = Some(400_000);
            run.until(900_000);
            assert_eq!(run.breakage().1.kind, FaultKind::RankHung);
        }
    }

    /// After a long wait for one rank that made progress, a hang of all ranks is noticed after the usual time.
    #[test]
    fn a_hang_after_a_long_wait_is_noticed_as_soon_as_any() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Saving;
        run.stuck = [Some(20_000), Some(20_000), None, Some(20_000)];
        run.until(320_000).stuck = [None; 4];
        run.until(321_000).moving = false;
        run.until(900_000);
        let (at, broken) = run.breakage();
        assert!(
            at <= 321_500 + Thresholds::default().progress_timeout_ms,
            "noticed at {at}: {broken:?}"
        );
    }

    /// The first rank that completed a save has waited for the last one. It does not hang.
    #[test]
    fn nobody_hangs_when_the_last_one_is_through_with_a_save() {
        let mut run = Run::new();
        run.until(20_000).own[2] = Some(Doing::Saving);
        run.stuck = [Some(20_000), Some(20_000), None, Some(20_000)];
        run.until(80_000).own[2] = None;
        run.until(82_000).stuck = [None; 4];
        run.until(100_000);
        assert_eq!(run.verdicts.len(), 1, "{:?}", run.verdicts);
    }

    #[test]
    fn saving_takes_its_time_and_is_told() {
        let mut run = Run::new();
        run.until(20_000).doing = Doing::Saving;
        run.moving = false;
        run.until(50_000);
        run.doing = Doing::Computing;
        run.moving = true;
        run.saved = Some((CheckpointId { number: 1, made: 1 }, 20));
        run.until(60_000);
        assert_eq!(
            run.verdicts[1..],
            [(50_500, Verdict::Step(Step::Saved { test: 0, iteration: 20 }))],
        );
    }

    #[test]
    fn a_supervisor_that_stood_still_blames_nobody() {
        let mut run = Run::new();
        run.until(20_000);
        run.now += 3_600_000;
        let more = run.watch.tick(run.now, |_| true);
        run.note(more);
        run.until(3_700_000);
        assert_eq!(run.verdicts.len(), 1, "{:?}", run.verdicts);
    }

    #[test]
    fn a_launch_without_ranks_has_failed() {
        let mut watch = Watch::new(Thresholds::default(), &["n1".to_string()], 0);
        let mut found = Vec::new();
        for now in (0..310_000).step_by(100) {
            watch.beat(now, 0, &beat(0, 0, vec![]));
            found.extend(watch.tick(now, |_| true));
        }
        assert!(
            matches!(&found[..], [Verdict::Over(End::Broken(b))] if b.kind == FaultKind::LaunchFailed)
        );
    }

    #[test]
    fn mpi_that_does_not_start_is_a_failed_launch() {
        for (shows, verdicts) in [(true, 1), (false, 0)] {
            let nodes = ["n1".to_string()];
            let mut watch = Watch::new(Thresholds::default(), &nodes, 0);
            watch.progress_shows = shows;
            let mut found = Vec::new();
            for now in (0..310_000).step_by(100) {
                watch.beat(now, 0, &beat(3, 0, vec![]));
                found.extend(watch.tick(now, |_| true));
            }
            assert_eq!(found.len(), verdicts, "of another program nobody knows: {found:?}");
            for verdict in found {
                assert!(
                    matches!(verdict, Verdict::Over(End::Broken(b)) if b.kind == FaultKind::LaunchFailed)
                );
            }
        }
    }

    /// The stopped process is a rank before MPI has started, or a process of the launcher.
    #[test]
    fn a_stopped_process_is_noticed_although_it_shows_no_progress() {
        let mut run = Run::new();
        run.beating[2] = false;
        for now in (100..30_000).step_by(100) {
            let more = run.watch.beat(run.now, 2, &beat(2, usize::from(now >= 5000), vec![]));
            run.note(more);
            run.until(now);
        }
        let (at, broken) = run.breakage();
        assert_eq!(
            (broken.kind, broken.node, broken.position),
            (FaultKind::RankHung, Some(2), None)
        );
        assert!(at - 5000 <= 10_000, "noticed after {} ms", at - 5000);
        assert!(broken.detail.contains("n3"), "{}", broken.detail);
    }

    proptest! {
        /// Jitter of heartbeats below the node timeout never breaks a run. A run is broken at most once, however much goes wrong.
        #[test]
        fn no_false_alarm_and_no_second_one(
            delays in proptest::collection::vec(100u64..3500, 50),
            end in 0usize..3,
        ) {
            let nodes = vec!["a".to_string(), "b".to_string()];
            let mut watch = Watch::new(Thresholds::default(), &nodes, 0);
            let mut now = 0;
            let mut broken = 0;
            let mut count = |more: Vec<Verdict>| {
                broken += more.iter().filter(|v| matches!(v, Verdict::Over(_))).count();
                broken
            };
            for (beat, delay) in delays.iter().enumerate() {
                for _ in 0..delay / 100 {
                    now += 100;
                    prop_assert_eq!(count(watch.tick(now, |_| true)), 0);
                }
                for node in 0..2 {
                    let progress = Progress {
                        position: node as u32, pid: 1, beat: beat as u64, iteration: beat as u64,
                        doing: Doing::Computing, ..Progress::default()
                    };
                    let ranks = vec![Progress { state: 'R', ..progress }];
                    prop_assert_eq!(count(watch.beat(now, node, &self::beat(1, 0, ranks))), 0);
                }
            }
            match end {
                0 => { count(watch.launcher_ends(now, None)); }
                1 => { count(watch.loses(lost_node())); }
                _ => {}
            }
            for _ in 0..600 {
                now += 100;
                count(watch.tick(now, |_| true));
            }
            prop_assert_eq!(count(watch.launcher_ends(now, Some(1))), 1);
        }
    }
}

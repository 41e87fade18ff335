//! Cost of each fault, from the records of a run. Pure.
//!
//! Every fault has six moments: failed, noticed, stopped, relaunched, restored, caught up. The wall time between them is the cost
//! of the fault. The rest of the wall time is the run's own. The supervisor prints both at the end; `skt-hpl status` shows the
//! faults meanwhile.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::supervise::remember::events::{Event, FaultKind, Record};
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::is_over;

/// A fault and its moments, in Unix milliseconds. A moment that has not come is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultTimes {
    pub fault: u32,
    pub kind: FaultKind,
    pub node: Option<String>,
    pub position: Option<u32>,
    /// Test of the input file, from zero.
    pub test: u32,
    pub iteration: u64,
    pub failed_ms: u64,
    pub noticed_ms: u64,
    pub stopped_ms: Option<u64>,
    pub relaunched_ms: Option<u64>,
    pub restored_ms: Option<u64>,
    /// Iteration at which the run resumed.
    pub restored_at: Option<u64>,
    pub caught_up_ms: Option<u64>,
    /// Moment at which all remaining ranks had agreed on the loss, if they continued without a restart.
    pub agreed_ms: Option<u64>,
}

/// Seconds of wall time by use. They add up to `total_s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WallTime {
    /// From the start until the ranks computed for the first time.
    pub start_s: f64,
    pub compute_s: f64,
    /// From a fault until it was noticed.
    pub detect_s: f64,
    pub stop_s: f64,
    /// Time for testing and choosing nodes, waiting for nodes, and delays between attempts.
    pub replace_s: f64,
    /// From the launch until the ranks compute again: start of MPI, restoring.
    pub restore_s: f64,
    /// Time for iterations that are computed again.
    pub repeat_s: f64,
    pub total_s: f64,
}

impl FaultTimes {
    /// Returns the fault that the record reports, or `None` if the record reports no fault.
    fn begun(record: &Record) -> Option<Self> {
        match &record.event {
            Event::Fault { fault, kind, node, position, test, iteration, failed_ms, .. } => {
                Some(Self {
                    fault: *fault,
                    kind: *kind,
                    node: node.clone(),
                    position: *position,
                    test: *test,
                    iteration: *iteration,
                    failed_ms: *failed_ms,
                    noticed_ms: record.at_ms,
                    ..Self::default()
                })
            }
            Event::GoneOn {
                fault,
                failed_ms,
                noticed_ms,
                agreed_ms,
                going_on_ms,
                lost,
                test,
                iteration,
                boundary,
                ..
            } => {
                // All losses of the record form one fault, which names the first loss with a position, else the first loss.
                let first = lost.iter().find(|gone| gone.position.is_some()).or(lost.first());
                let back = boundary.is_some_and(|boundary| boundary < *iteration);
                Some(Self {
                    fault: *fault,
                    kind: FaultKind::RankDied,
                    node: first.map(|gone| gone.node.clone()),
                    position: first.and_then(|gone| gone.position).map(|p| p as u32),
                    test: *test,
                    iteration: *iteration,
                    failed_ms: *failed_ms,
                    noticed_ms: *noticed_ms,
                    restored_ms: Some(*going_on_ms),
                    restored_at: *boundary,
                    caught_up_ms: (!back).then_some(*going_on_ms),
                    agreed_ms: Some(*agreed_ms),
                    ..Self::default()
                })
            }
            _ => None,
        }
    }

    /// Takes in a later record about the last fault. `placed` are the nodes with ranks.
    fn follow(&mut self, record: &Record, placed: &[Host]) {
        let at = record.at_ms;
        // After a loss that is recovered in place, the attempt is not stopped.
        let ended = !self.in_place();
        match &record.event {
            // The end of the launcher is often noticed before the loss of the node that caused it.
            Event::NodeLost { node, .. }
                if ended
                    && self.stopped_ms.is_none()
                    && placed.iter().any(|host| host.name == *node) =>
            {
                let kind = self.kind.with_a_lost_node();
                if kind != self.kind {
                    (self.kind, self.node, self.position) = (kind, Some(node.clone()), None);
                }
                self.node.get_or_insert_with(|| node.clone());
            }
            Event::Stopped { .. } if ended => _ = self.stopped_ms.get_or_insert(at),
            Event::Launched { .. } if ended => _ = self.relaunched_ms.get_or_insert(at),
            Event::Computing { test, iteration, .. } => {
                if self.restored_ms.is_none() {
                    self.restored_ms = Some(at);
                    self.restored_at = Some(*iteration);
                }
                // A supervisor that takes the job over records `Computing` again. It records no `CaughtUp` if the job has caught
                // up by then.
                if (*test, *iteration) >= (self.test, self.iteration) {
                    self.caught_up_ms.get_or_insert(at);
                }
            }
            // The ranks may have caught up and finished between two heartbeats.
            Event::Finished { code, .. }
                if is_over((*code).into()) && self.restored_ms.is_some() =>
            {
                self.caught_up_ms.get_or_insert(at);
            }
            Event::CaughtUp { .. } => _ = self.caught_up_ms.get_or_insert(at),
            _ => {}
        }
    }
}

/// Returns all faults in order.
pub fn faults(records: &[Record]) -> Vec<FaultTimes> {
    let mut all: Vec<FaultTimes> = Vec::new();
    let mut placed: &[Host] = &[];
    for record in records {
        if let Event::Launched { hosts, .. } = &record.event {
            placed = hosts;
        }
        if let Some(fault) = FaultTimes::begun(record) {
            all.push(fault);
        } else if let Some(last) = all.last_mut() {
            last.follow(record, placed);
        }
    }
    all
}

/// Returns the status and reason of the run's end, if it has ended and no supervisor has continued it since.
pub fn end(records: &[Record]) -> Option<(u8, &str)> {
    let last = records.iter().rev().find_map(|record| match &record.event {
        Event::Finished { code, why } => Some(Some((*code, why.as_str()))),
        Event::TookOver { .. } => Some(None),
        _ => None,
    });
    last.flatten()
}

/// Uses of wall time, in the order in which they follow a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Start,
    Compute,
    Detect,
    Stop,
    Replace,
    Restore,
    Repeat,
    /// Time between a halt and the next start. No supervisor ran, so the time is not counted.
    Pause,
}

impl Part {
    pub const COUNTED: [Part; 7] = [
        Part::Start,
        Part::Compute,
        Part::Detect,
        Part::Stop,
        Part::Replace,
        Part::Restore,
        Part::Repeat,
    ];

    /// Returns the letter that stands for this part in the bar of the timeline, and the word that names it in the text.
    pub fn words(self) -> (char, &'static str) {
        match self {
            Part::Start => ('s', "starting"),
            Part::Compute => ('=', "computing"),
            Part::Detect => ('d', "detecting"),
            Part::Stop => ('x', "stopping"),
            Part::Replace => ('n', "replacing"),
            Part::Restore => ('r', "restoring"),
            Part::Repeat => ('~', "repeating"),
            Part::Pause => (' ', "paused"),
        }
    }
}

/// A period of wall time that belongs to one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub part: Part,
    pub from_ms: u64,
    pub to_ms: u64,
}

/// Returns the periods of the run in time order, up to its end or to `now_ms`.
pub fn stretches(records: &[Record], now_ms: u64) -> Vec<Stretch> {
    let mut changes = find_changes(records);
    // A fault happens before it is noticed. Records between the two moments, such as an iteration of other ranks, belong to a run
    // that is already broken.
    for at in (1..changes.len()).rev() {
        changes[at - 1].0 = changes[at - 1].0.min(changes[at].0);
    }
    let last_ms = changes.last().map_or(0, |c| c.0);
    changes.push((now_ms.max(last_ms), Part::Pause));
    let stretch =
        |pair: &[(u64, Part)]| Stretch { part: pair[0].1, from_ms: pair[0].0, to_ms: pair[1].0 };
    changes.windows(2).map(stretch).collect()
}

/// Returns the moments at which another use of wall time begins, each with this use, in the records' order.
fn find_changes(records: &[Record]) -> Vec<(u64, Part)> {
    let mut changes: Vec<(u64, Part)> = Vec::new();
    let mut first_computing = true;
    let mut recovering = false;
    let mut aim = (0, 0);
    for record in records {
        let at = record.at_ms;
        match &record.event {
            Event::RunStarted { .. } => changes.push((at, Part::Start)),
            Event::Fault { failed_ms, test, iteration, .. } => {
                recovering = true;
                aim = aim.max((*test, *iteration));
                changes.push(((*failed_ms).min(at), Part::Detect));
                changes.push((at, Part::Stop));
            }
            // A supervisor that resumes an ended run may record a loss that happened before that end.
            Event::GoneOn { .. } if matches!(changes.last(), Some((_, Part::Pause))) => {}
            Event::GoneOn {
                failed_ms, noticed_ms, going_on_ms, test, iteration, boundary, ..
            } => {
                let back = boundary.is_some_and(|boundary| boundary < *iteration);
                aim = aim.max((*test, *iteration));
                changes.push(((*failed_ms).min(*noticed_ms), Part::Detect));
                changes.push((*noticed_ms, Part::Restore));
                let on = match (recovering, first_computing) {
                    (true, _) => Part::Restore,
                    (false, true) => Part::Start,
                    (false, false) if back => Part::Repeat,
                    (false, false) => Part::Compute,
                };
                changes.push((*going_on_ms, on));
            }
            Event::Stopped { .. } if recovering => changes.push((at, Part::Replace)),
            Event::Launched { .. } if recovering => changes.push((at, Part::Restore)),
            Event::Computing { test, iteration, .. } => {
                let repeat = !first_computing && (*test, *iteration) < aim;
                first_computing = false;
                recovering = false;
                changes.push((at, if repeat { Part::Repeat } else { Part::Compute }));
            }
            Event::CaughtUp { .. } => changes.push((at, Part::Compute)),
            Event::Finished { .. } => changes.push((at, Part::Pause)),
            Event::TookOver { adopted: false, .. } => {
                recovering = true;
                changes.push((at, Part::Stop));
            }
            _ => {}
        }
    }
    changes
}

/// Returns the total seconds of the periods whose part `counts`.
pub fn seconds(stretches: &[Stretch], counts: impl Fn(Part) -> bool) -> f64 {
    let counted = stretches.iter().filter(|stretch| counts(stretch.part));
    let all_ms: u64 = counted.map(|stretch| stretch.to_ms - stretch.from_ms).sum();
    all_ms as f64 / 1e3
}

/// Returns the parts of the wall time, up to the end of the run or to `now_ms`.
pub fn wall_time(records: &[Record], now_ms: u64) -> WallTime {
    let stretches = stretches(records, now_ms);
    let of = |part| seconds(&stretches, |other| other == part);
    WallTime {
        start_s: of(Part::Start),
        compute_s: of(Part::Compute),
        detect_s: of(Part::Detect),
        stop_s: of(Part::Stop),
        replace_s: of(Part::Replace),
        restore_s: of(Part::Restore),
        repeat_s: of(Part::Repeat),
        total_s: seconds(&stretches, |part| part != Part::Pause),
    }
}

/// Header of the table. [`FaultTimes::format_row`] formats its rows.
const FAULT_HEADER: &str = "fault  what              where        iteration  failed at   \
                            noticed  stopped relaunched restored caught up\n";

impl FaultTimes {
    /// Whether the remaining ranks continued by themselves.
    pub fn in_place(&self) -> bool {
        self.agreed_ms.is_some()
    }

    /// Returns the seconds from the fault to the moment `at_ms`, if that has come.
    fn after(&self, at_ms: Option<u64>) -> Option<f64> {
        at_ms.map(|at| at.saturating_sub(self.failed_ms) as f64 / 1e3)
    }

    /// Formats a row of the report's table. `started_ms` is the start of the run.
    fn format_row(&self, started_ms: u64) -> String {
        let place = match (&self.node, self.position) {
            (Some(node), Some(position)) => format!("{node} p{position}"),
            (Some(node), None) => node.clone(),
            (None, Some(position)) => format!("p{position}"),
            (None, None) => "-".to_string(),
        };
        let after = |at_ms: Option<u64>| {
            self.after(at_ms).map_or("-".to_string(), |seconds| format!("+{seconds:.1} s"))
        };
        format!(
            "{:>5}  {:<17} {place:<12} {:>9} {:>8.1} s  {:>8} {:>8} {:>10} {:>8} {:>9}\n",
            self.fault,
            self.kind.words(),
            self.iteration,
            self.failed_ms.saturating_sub(started_ms) as f64 / 1e3,
            after(Some(self.noticed_ms)),
            after(self.stopped_ms),
            after(self.relaunched_ms),
            after(self.restored_ms),
            after(self.caught_up_ms)
        )
    }

    /// Returns the cost of the fault for each part, until the run had caught up. `all` are the periods of the run; those without
    /// a supervisor are left out.
    pub fn cost(&self, all: &[Stretch]) -> Vec<(Part, f64)> {
        let moments = [
            (Part::Detect, Some(self.noticed_ms)),
            (Part::Stop, self.stopped_ms),
            (Part::Replace, self.relaunched_ms),
            (Part::Restore, self.restored_ms),
            (Part::Repeat, self.caught_up_ms),
        ];
        let mut before_ms = self.failed_ms;
        let mut parts = Vec::new();
        for (part, at_ms) in moments {
            let Some(at_ms) = at_ms else {
                if self.in_place() {
                    continue;
                }
                break;
            };
            let pauses = all.iter().filter(|stretch| stretch.part == Part::Pause);
            let paused_ms: u64 = pauses
                .map(|pause| pause.to_ms.min(at_ms).saturating_sub(pause.from_ms.max(before_ms)))
                .sum();
            let spent_ms = at_ms.saturating_sub(before_ms).saturating_sub(paused_ms);
            parts.push((part, spent_ms as f64 / 1e3));
            before_ms = before_ms.max(at_ms);
        }
        parts
    }
}

/// Number of columns of the bar.
const BAR: usize = 72;

/// Draws the wall time as a bar in time order. Each period takes columns in proportion to its time, but at least one, as far as
/// there are enough columns.
fn bar(stretches: &[Stretch]) -> String {
    let counted: Vec<(char, u64)> = stretches
        .iter()
        .filter(|s| s.part != Part::Pause && s.to_ms > s.from_ms)
        .map(|s| (s.part.words().0, s.to_ms - s.from_ms))
        .collect();
    let total: u64 = counted.iter().map(|c| c.1).sum();
    if total == 0 {
        return String::new();
    }
    let mut text = String::new();
    let (mut passed, mut columns) = (0u64, 0usize);
    for (at, (letter, ms)) in counted.iter().enumerate() {
        passed += ms;
        // Each later period keeps at least one column.
        let later = counted.len() - at - 1;
        let end = (passed as f64 / total as f64 * BAR as f64).round() as usize;
        let end = end.min(BAR.saturating_sub(later)).max(columns + 1).min(BAR);
        text.extend(std::iter::repeat_n(*letter, end.saturating_sub(columns)));
        columns = columns.max(end);
    }
    text
}

/// Extracts the results from HPL's output: each line that begins with W, and the verdict of its check.
pub fn results(output: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [variant, n, nb, p, q, seconds, gflops]
                if (variant.starts_with("WR") || variant.starts_with("WC"))
                    && fields[1..].iter().all(|field| field.parse::<f64>().is_ok()) =>
            {
                found.push(format!(
                    "{variant} N={n} NB={nb} grid {p}x{q}: {seconds} s, {gflops} Gflop/s"
                ));
            }
            [.., verdict @ ("PASSED" | "FAILED")] if line.starts_with("||Ax-b||") => {
                found.last_mut().into_iter().for_each(|last| *last += &format!(", {verdict}"));
            }
            _ => {}
        }
    }
    found
}

/// The report at the end of a run: results, faults, and the wall time of each part.
pub fn report(records: &[Record], results: &[String], now_ms: u64) -> String {
    let mut text = String::new();
    for result in results {
        let _ = writeln!(text, "result: {result}");
    }
    let all = faults(records);
    let stretches = stretches(records, now_ms);
    let started_ms = records.first().map_or(now_ms, |r| r.at_ms);
    if all.is_empty() {
        text.push_str("no faults\n");
    } else {
        text.push_str(FAULT_HEADER);
        all.iter().for_each(|f| text.push_str(&f.format_row(started_ms)));
        text.push_str(
            "       (failed: seconds after the run's start; the rest: after the fault)\n",
        );
        for f in &all {
            let cost = f.cost(&stretches);
            let parts: Vec<String> = cost
                .iter()
                .map(|(part, seconds)| format!("{} {seconds:.1}", part.words().1))
                .collect();
            let _ = writeln!(
                text,
                "fault {} cost {:.1} s{}: {}{}",
                f.fault,
                cost.iter().map(|c| c.1).sum::<f64>(),
                f.agreed_ms.map_or(String::new(), |at| format!(
                    " and was recovered in place (the ranks agreed after {:.1} s)",
                    f.after(Some(at)).unwrap_or_default()
                )),
                parts.join(" + "),
                if f.caught_up_ms.is_some() { "" } else { "; the run has not caught up" }
            );
        }
    }
    let total_s = seconds(&stretches, |part| part != Part::Pause);
    let _ = writeln!(text, "wall time {total_s:.1} s, of which");
    for part in Part::COUNTED {
        let seconds = seconds(&stretches, |other| other == part);
        let (letter, word) = part.words();
        if seconds > 0.0 {
            let share = 100.0 * seconds / total_s.max(1e-9);
            let _ = writeln!(text, "  {letter} {word:<10} {seconds:>9.1} s  {share:>5.1} %");
        }
    }
    let bar = bar(&stretches);
    if !bar.is_empty() {
        let _ = writeln!(text, "  [{bar}]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::remember::events::samples;
    use crate::supervise::start::in_place::Gone;
    use proptest::prelude::*;

    /// Returns the records of the sample run, one a second. Its fault happened at 3.5 s.
    fn records() -> Vec<Record> {
        samples()
            .into_iter()
            .enumerate()
            .map(|(seq, event)| Record {
                seq: seq as u64,
                at_ms: 1000 * seq as u64,
                event: match event {
                    Event::Fault {
                        fault,
                        attempt,
                        kind,
                        node,
                        position,
                        test,
                        iteration,
                        rank_iteration,
                        ranks_seen,
                        detail,
                        ..
                    } => Event::Fault {
                        failed_ms: 3500,
                        fault,
                        attempt,
                        kind,
                        node,
                        position,
                        test,
                        iteration,
                        rank_iteration,
                        ranks_seen,
                        detail,
                    },
                    other => other,
                },
            })
            .collect()
    }

    #[test]
    fn a_faults_moments() {
        let all = faults(&records());
        assert_eq!(all.len(), 1);
        let f = &all[0];
        assert_eq!((f.failed_ms, f.noticed_ms), (3500, 4000));
        assert_eq!(f.stopped_ms, Some(6000));
        assert_eq!(f.relaunched_ms, Some(8000));
        assert_eq!((f.restored_ms, f.restored_at), (Some(9000), Some(8)));
        assert_eq!(f.caught_up_ms, Some(10_000));
    }

    /// The launcher's end was noticed first. Then a spare and a node with ranks did not answer.
    #[test]
    fn a_node_that_is_lost_while_the_run_is_stopped_was_the_cause() {
        for (first, told) in [
            (FaultKind::LauncherGone, FaultKind::NodeGone),
            (FaultKind::RankDied, FaultKind::NodeGone),
            (FaultKind::RankHung, FaultKind::RankHung),
        ] {
            let mut records = records();
            if let Event::Fault { kind, node, .. } = &mut records[4].event {
                (*kind, *node) = (first, None);
            }
            let lost = |node: &str| Event::NodeLost { node: node.into(), why: "gone".into() };
            records.insert(5, Record { seq: 5, at_ms: 4500, event: lost("n3") });
            let [f] = &faults(&records)[..] else { panic!("one fault") };
            assert_eq!((f.kind, f.node.as_deref()), (told, Some("n2")));
        }
    }

    /// The run had reached iteration 10 of a test. The restart begins the next test.
    #[test]
    fn a_run_that_computes_in_the_next_test_has_caught_up() {
        let mut records = records();
        records.truncate(10);
        assert_eq!(faults(&records)[0].caught_up_ms, None);
        records[9].event = Event::Computing { attempt: 2, test: 1, iteration: 0 };
        assert_eq!(faults(&records)[0].caught_up_ms, Some(9000));
        assert_eq!(wall_time(&records, 20_000).repeat_s, 0.0);
    }

    /// If the job has caught up, a supervisor that takes it over records only that it computes. The ranks may have finished
    /// between two heartbeats.
    #[test]
    fn a_run_that_is_seen_further_or_at_the_end_has_caught_up() {
        let mut records = records();
        records.truncate(10);
        let why = String::new;
        for (event, has) in [
            (Event::Computing { attempt: 2, test: 0, iteration: 9 }, false),
            (Event::Computing { attempt: 2, test: 0, iteration: 10 }, true),
            (Event::Finished { code: 0, why: why() }, true),
            (Event::Finished { code: 3, why: why() }, true),
            (Event::Finished { code: 75, why: why() }, false),
        ] {
            let mut told = records.clone();
            told.push(Record { seq: 10, at_ms: 11_000, event });
            let [f] = &faults(&told)[..] else { panic!("one fault") };
            assert_eq!((f.restored_ms, f.caught_up_ms), (Some(9000), has.then_some(11_000)));
        }
        // A run that ended before the ranks computed again has not caught up.
        let finished = Event::Finished { code: 0, why: why() };
        records[9].event = finished;
        assert_eq!(faults(&records)[0].caught_up_ms, None);
    }

    #[test]
    fn the_parts_are_what_happened_and_add_up() {
        let wall = wall_time(&records(), 99_000);
        let expected = WallTime {
            start_s: 2.0,
            compute_s: 1.5 + 1.0,
            detect_s: 0.5,
            stop_s: 2.0,
            replace_s: 2.0,
            restore_s: 1.0,
            repeat_s: 1.0,
            total_s: 11.0,
        };
        assert_eq!(wall, expected);
        let result = results(OUTPUT);
        let text = report(&records(), &result, 99_000);
        for part in [
            "result: WR11C2R4 N=3000 NB=64 grid 2x2: 0.41 s, 4.3597e+01 Gflop/s, PASSED",
            "node unresponsive",
            "n2",
            "3.5 s",
            "+0.5 s",
            "+6.5 s",
            "fault 1 cost 6.5 s: detecting 0.5 + stopping 2.0 + replacing 2.0 + restoring 1.0 + repeating 1.0",
            "~ repeating",
            "11.0 s",
        ] {
            assert!(text.contains(part), "{text}lacks {part}");
        }
    }

    /// The run is given up at 6.5 s because no node is left, and started again at 106.5 s.
    #[test]
    fn the_time_in_which_nobody_was_there_is_no_fault_s_and_an_end_that_was_none_is_not_told() {
        let before = records();
        assert_eq!(end(&before), Some((0, "passed")));
        let whole: f64 = faults(&before)[0].cost(&stretches(&before, 0)).iter().map(|c| c.1).sum();
        let mut records = before.clone();
        let at = records.iter().position(|r| r.at_ms >= 7000).unwrap();
        for later in &mut records[at..] {
            later.at_ms += 100_000;
        }
        let finished = Event::Finished { code: 4, why: "no node is left".to_string() };
        let took_over =
            Event::TookOver { supervisor_host: "h".to_string(), supervisor_pid: 2, adopted: false };
        records.insert(at, Record { seq: 0, at_ms: 106_500, event: took_over });
        records.insert(at, Record { seq: 0, at_ms: 6500, event: finished });
        let all = stretches(&records, 0);
        let cost: f64 = faults(&records)[0].cost(&all).iter().map(|c| c.1).sum();
        assert!((cost - whole).abs() < 1e-9, "{cost} {whole}");
        assert_eq!(end(&records), Some((0, "passed")));
        assert_eq!(end(&records[..=at]), Some((4, "no node is left")));
        assert_eq!(end(&records[..at + 3]), None);
    }

    /// The ranks compute from 2 s on. One fails at 3.5 s, which is noticed at 4 s. The others continue at 5 s and have caught up
    /// at 6 s.
    #[test]
    fn a_loss_made_good_in_place_is_a_fault_without_a_restart() {
        let samples = samples();
        let gone_on = Event::GoneOn {
            fault: 1,
            attempt: 1,
            failed_ms: 3500,
            noticed_ms: 4000,
            agreed_ms: 4100,
            going_on_ms: 5000,
            lost: vec![
                Gone { rank: 4, node: "n3".to_string(), position: None },
                Gone { rank: 1, node: "n2".to_string(), position: Some(1) },
            ],
            test: 0,
            iteration: 10,
            boundary: Some(8),
            detail: String::new(),
        };
        let caught_up = Event::CaughtUp { attempt: 1, test: 0, iteration: 10 };
        let stopped = Event::Stopped { attempt: 1, ended: 0, unreachable: vec![] };
        let told = [
            (0, samples[0].clone()),
            (1000, samples[1].clone()),
            (2000, samples[2].clone()),
            (5200, gone_on),
            (6000, caught_up),
            (9000, stopped),
            (9000, samples[11].clone()),
        ];
        let records: Vec<Record> = told
            .into_iter()
            .enumerate()
            .map(|(seq, (at_ms, event))| Record { seq: seq as u64, at_ms, event })
            .collect();
        let all = faults(&records);
        let [f] = &all[..] else { panic!("{all:?}") };
        assert!(f.in_place());
        assert_eq!((f.node.as_deref(), f.position), (Some("n2"), Some(1)));
        assert_eq!((f.stopped_ms, f.relaunched_ms, f.restored_ms), (None, None, Some(5000)));
        assert_eq!(f.caught_up_ms, Some(6000));
        let cost = [(Part::Detect, 0.5), (Part::Restore, 1.0), (Part::Repeat, 1.0)];
        assert_eq!(f.cost(&stretches(&records, 99_000)), cost);
        let wall = wall_time(&records, 99_000);
        assert_eq!((wall.start_s, wall.compute_s, wall.total_s), (2.0, 4.5, 9.0));
        assert_eq!((wall.detect_s, wall.restore_s, wall.repeat_s), (0.5, 1.0, 1.0));
        let text = report(&records, &[], 99_000);
        let words = "fault 1 cost 2.5 s and was recovered in place (the ranks agreed after 0.6 s): detecting 0.5 + restoring 1.0";
        assert!(text.contains(words), "{text}");
        // A supervisor that resumes the run long after it was stopped records the loss. The time between does not count.
        let mut late = records;
        let gone_on = late.remove(3);
        late.truncate(3);
        late.push(Record { at_ms: 9000, seq: 3, event: samples[11].clone() });
        late.push(Record { at_ms: 80_000, ..gone_on });
        let wall = wall_time(&late, 99_000);
        assert_eq!((wall.start_s, wall.compute_s, wall.total_s), (2.0, 7.0, 9.0));
    }

    const OUTPUT: &str = "\
WR11C2R4        3000    64     2     2               0.41             4.3597e+01
HPL_pdgesv() start time Fri Nov 20 11:32:44 2026
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   1.92950928e-03 ...... PASSED
W3 is no result, nor is this line of seven a b
WC00L2L2        1000    64     1     1               0.04             4.3597e+00
";

    #[test]
    fn results_are_found_among_the_text() {
        let found = results(OUTPUT);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].starts_with("WC00L2L2 N=1000") && !found[1].contains("PASSED"));
    }

    #[test]
    fn each_short_part_has_a_column_in_the_bar() {
        let stretch = |part, from_ms, to_ms| Stretch { part, from_ms, to_ms };
        let text = bar(&[
            stretch(Part::Start, 0, 1000),
            stretch(Part::Compute, 1000, 100_000),
            stretch(Part::Detect, 100_000, 100_010),
            stretch(Part::Stop, 100_010, 100_010),
            stretch(Part::Restore, 100_010, 100_020),
            stretch(Part::Pause, 100_020, 900_000),
        ]);
        assert_eq!(text, format!("s{}dr", "=".repeat(BAR - 3)));
        assert_eq!(bar(&[]), "");
    }

    #[test]
    fn a_run_without_faults_only_starts_and_computes() {
        let mut records = records();
        records.truncate(4);
        let wall = wall_time(&records, 10_000);
        assert_eq!((wall.start_s, wall.compute_s, wall.total_s), (2.0, 8.0, 10.0));
        let text = report(&records, &[], 10_000);
        assert!(text.starts_with("no faults"));
        assert!(text.contains(&format!("[{}{}]", "s".repeat(14), "=".repeat(58))), "{text}");
    }

    proptest! {
        /// For any sequence of records at any times, no part is negative, and the parts add up to the total.
        #[test]
        fn parts_never_go_wrong(picks in proptest::collection::vec((0usize..12, 0u64..5000, 0u64..9000), 0..40)) {
            let mut at_ms = 0;
            let records: Vec<Record> = picks.into_iter().enumerate().map(|(seq, (which, step, back))| {
                at_ms += step;
                let mut event = samples()[which].clone();
                if let Event::Fault { failed_ms, .. } = &mut event {
                    *failed_ms = at_ms.saturating_sub(back);
                }
                Record { seq: seq as u64, at_ms, event }
            }).collect();
            let w = wall_time(&records, at_ms + 100);
            let parts = [w.start_s, w.compute_s, w.detect_s, w.stop_s, w.replace_s, w.restore_s, w.repeat_s];
            prop_assert!(parts.iter().all(|p| *p >= 0.0));
            prop_assert!((parts.iter().sum::<f64>() - w.total_s).abs() < 1e-6);
            faults(&records);
            report(&records, &[], at_ms);
            prop_assert!(bar(&stretches(&records, at_ms + 100)).chars().count() <= BAR);
        }
    }
}

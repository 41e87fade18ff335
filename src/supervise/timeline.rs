//! What each fault cost, from the records of a run. Pure.
//!
//! For every fault six moments are told apart: struck, noticed, stopped, relaunched, restored, caught
//! up. The wall time between them is what the fault cost, and the rest of the wall time is the run's own; the
//! supervisor prints both at the end, and `skt-hpl status` while it lasts.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::events::{Event, FaultKind, Record};

/// A fault and its moments, in Unix milliseconds; what has not happened (yet) is None.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultTimes {
    pub fault: u32,
    pub kind: FaultKind,
    pub node: Option<String>,
    pub position: Option<u32>,
    pub iteration: u64,
    pub struck_ms: u64,
    pub noticed_ms: u64,
    pub stopped_ms: Option<u64>,
    pub relaunched_ms: Option<u64>,
    pub restored_ms: Option<u64>,
    /// Iteration from which the run went on.
    pub restored_at: Option<u64>,
    pub caught_up_ms: Option<u64>,
}

/// Seconds of wall time by what they went into; they add up to `total_s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WallTime {
    /// From the start until the ranks computed for the first time.
    pub start_s: f64,
    pub compute_s: f64,
    /// Broken and not yet noticed.
    pub detect_s: f64,
    pub stop_s: f64,
    /// Testing and choosing nodes, waiting for one, delays between attempts.
    pub replace_s: f64,
    /// From the launch until the ranks compute again: start of MPI, restoring.
    pub restore_s: f64,
    /// Doing again what had been done before.
    pub repeat_s: f64,
    pub total_s: f64,
}

/// All faults in order.
pub fn faults(records: &[Record]) -> Vec<FaultTimes> {
    let mut all: Vec<FaultTimes> = Vec::new();
    for record in records {
        let at = record.at_ms;
        match &record.event {
            Event::Fault { fault, kind, node, position, iteration, struck_ms, .. } => {
                all.push(FaultTimes {
                    fault: *fault,
                    kind: *kind,
                    node: node.clone(),
                    position: *position,
                    iteration: *iteration,
                    struck_ms: *struck_ms,
                    noticed_ms: at,
                    stopped_ms: None,
                    relaunched_ms: None,
                    restored_ms: None,
                    restored_at: None,
                    caught_up_ms: None,
                })
            }
            Event::NodeLost { node, why } => {
                // The launcher's end is often the first sign of a node's; its cause turns up afterwards.
                if let Some(last) = all.last_mut()
                    && last.stopped_ms.is_none()
                    && last.node.is_none()
                {
                    last.node = Some(node.clone());
                    if why.contains("silent") || why.contains("answer") {
                        last.kind = FaultKind::NodeGone;
                    }
                }
            }
            Event::Stopped { .. } => {
                if let Some(last) = all.last_mut() {
                    last.stopped_ms.get_or_insert(at);
                }
            }
            Event::Launched { .. } => {
                if let Some(last) = all.last_mut() {
                    last.relaunched_ms.get_or_insert(at);
                }
            }
            Event::Computing { iteration, .. } => {
                if let Some(last) = all.last_mut()
                    && last.restored_ms.is_none()
                {
                    last.restored_ms = Some(at);
                    last.restored_at = Some(*iteration);
                    if *iteration >= last.iteration {
                        last.caught_up_ms = Some(at);
                    }
                }
            }
            Event::CaughtUp { .. } => {
                if let Some(last) = all.last_mut() {
                    last.caught_up_ms.get_or_insert(at);
                }
            }
            _ => {}
        }
    }
    all
}

/// Where the wall time went, up to `now_ms` or the end of the run.
pub fn wall_time(records: &[Record], now_ms: u64) -> WallTime {
    #[derive(Clone, Copy)]
    enum Part {
        Start,
        Compute,
        Detect,
        Stop,
        Replace,
        Restore,
        Repeat,
        Pause,
    }
    // Changes of state in time order: from this moment on, time goes into that part.
    let mut changes: Vec<(u64, Part)> = Vec::new();
    let mut first_computing = true;
    let mut recovering = false;
    let mut aim = 0;
    for record in records {
        let at = record.at_ms;
        match &record.event {
            Event::RunStarted { .. } => changes.push((at, Part::Start)),
            Event::Fault { struck_ms, iteration, .. } => {
                recovering = true;
                aim = aim.max(*iteration);
                changes.push(((*struck_ms).min(at), Part::Detect));
                changes.push((at, Part::Stop));
            }
            Event::Stopped { .. } if recovering => changes.push((at, Part::Replace)),
            Event::Launched { .. } if recovering => changes.push((at, Part::Restore)),
            Event::Computing { iteration, .. } => {
                let repeat = !first_computing && *iteration < aim;
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
    // A fault strikes before it is noticed: what was recorded in between (an iteration of the others,
    // say) happened to a run already broken.
    for at in (1..changes.len()).rev() {
        let later = changes[at].0;
        if changes[at - 1].0 > later {
            changes[at - 1].0 = later;
        }
    }
    let mut wall = WallTime::default();
    let mut ends: Vec<u64> = changes.iter().skip(1).map(|c| c.0).collect();
    ends.push(now_ms.max(changes.last().map_or(0, |c| c.0)));
    for ((from, part), to) in changes.iter().zip(ends) {
        let seconds = (to - from) as f64 / 1e3;
        let into = match part {
            Part::Start => &mut wall.start_s,
            Part::Compute => &mut wall.compute_s,
            Part::Detect => &mut wall.detect_s,
            Part::Stop => &mut wall.stop_s,
            Part::Replace => &mut wall.replace_s,
            Part::Restore => &mut wall.restore_s,
            Part::Repeat => &mut wall.repeat_s,
            // Between a halt and the next start nobody was there.
            Part::Pause => continue,
        };
        *into += seconds;
        wall.total_s += seconds;
    }
    wall
}

/// The report at the end of a run.
pub fn report(records: &[Record], now_ms: u64) -> String {
    let mut text = String::new();
    let all = faults(records);
    if all.is_empty() {
        text.push_str("no faults\n");
    } else {
        let _ = writeln!(
            text,
            "{:>5}  {:<14} {:<12} {:>9}  {:>8} {:>8} {:>10} {:>8} {:>9}",
            "fault",
            "what",
            "where",
            "iteration",
            "noticed",
            "stopped",
            "relaunched",
            "restored",
            "caught up"
        );
        for f in &all {
            let place = match (&f.node, f.position) {
                (Some(node), Some(position)) => format!("{node} p{position}"),
                (Some(node), None) => node.clone(),
                (None, Some(position)) => format!("p{position}"),
                (None, None) => "-".to_string(),
            };
            let after = |at: Option<u64>| {
                at.map_or("-".to_string(), |at| {
                    format!("{:.1} s", at.saturating_sub(f.struck_ms) as f64 / 1e3)
                })
            };
            let _ = writeln!(
                text,
                "{:>5}  {:<14} {:<12} {:>9}  {:>8} {:>8} {:>10} {:>8} {:>9}",
                f.fault,
                f.kind.words(),
                place,
                f.iteration,
                after(Some(f.noticed_ms)),
                after(f.stopped_ms),
                after(f.relaunched_ms),
                after(f.restored_ms),
                after(f.caught_up_ms)
            );
        }
        text.push_str("       (seconds after the fault struck)\n");
    }
    let wall = wall_time(records, now_ms);
    let share = |s: f64| 100.0 * s / wall.total_s.max(1e-9);
    let _ = writeln!(text, "wall time {:.1} s, of which", wall.total_s);
    for (name, seconds) in [
        ("starting", wall.start_s),
        ("computing", wall.compute_s),
        ("detecting", wall.detect_s),
        ("stopping", wall.stop_s),
        ("replacing", wall.replace_s),
        ("restoring", wall.restore_s),
        ("repeating", wall.repeat_s),
    ] {
        if seconds > 0.0 {
            let _ = writeln!(text, "  {name:<10} {seconds:>9.1} s  {:>5.1} %", share(seconds));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::events::tests::samples;
    use super::*;
    use proptest::prelude::*;

    /// The sample run at a record a second; its fault struck half-way between the second and third.
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
                        incarnation,
                        kind,
                        node,
                        position,
                        iteration,
                        detail,
                        ..
                    } => Event::Fault {
                        struck_ms: 3500,
                        fault,
                        incarnation,
                        kind,
                        node,
                        position,
                        iteration,
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
        assert_eq!((f.struck_ms, f.noticed_ms), (3500, 4000));
        assert_eq!(f.stopped_ms, Some(6000));
        assert_eq!(f.relaunched_ms, Some(8000));
        assert_eq!((f.restored_ms, f.restored_at), (Some(9000), Some(8)));
        assert_eq!(f.caught_up_ms, Some(10_000));
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
        let text = report(&records(), 99_000);
        for part in ["node silent", "n2", "0.5 s", "6.5 s", "repeating", "11.0 s"] {
            assert!(text.contains(part), "{text}lacks {part}");
        }
    }

    #[test]
    fn a_run_without_faults_only_starts_and_computes() {
        let mut records = records();
        records.truncate(4);
        let wall = wall_time(&records, 10_000);
        assert_eq!((wall.start_s, wall.compute_s, wall.total_s), (2.0, 8.0, 10.0));
        assert!(report(&records, 10_000).starts_with("no faults"));
    }

    proptest! {
        /// Any sequence of records at any times: no part is negative and the parts are the whole.
        #[test]
        fn parts_never_go_wrong(picks in proptest::collection::vec((0usize..12, 0u64..5000, 0u64..9000), 0..40)) {
            let mut at_ms = 0;
            let records: Vec<Record> = picks.into_iter().enumerate().map(|(seq, (which, step, back))| {
                at_ms += step;
                let mut event = samples()[which].clone();
                if let Event::Fault { struck_ms, .. } = &mut event {
                    *struck_ms = at_ms.saturating_sub(back);
                }
                Record { seq: seq as u64, at_ms, event }
            }).collect();
            let w = wall_time(&records, at_ms + 100);
            let parts = [w.start_s, w.compute_s, w.detect_s, w.stop_s, w.replace_s, w.restore_s, w.repeat_s];
            prop_assert!(parts.iter().all(|p| *p >= 0.0));
            prop_assert!((parts.iter().sum::<f64>() - w.total_s).abs() < 1e-6);
            faults(&records);
            report(&records, at_ms);
        }
    }
}

//! Meaning of the end of an attempt: the end of the run, a stop from which the run can resume, or a fault. Pure.
//!
//! The supervisor gathers the facts of the end and the announcements of the benchmark, asks [`verdict`], and acts on the answer.
//! If results were printed but did not reach the run's folder, because its disk is full, the run never counts as passed.

use super::ranks::Breakage;
use crate::supervise::start::job::Announced;

pub const STATUS_PASSED: u8 = 0;
pub const STATUS_LOSS: u8 = 4;
pub const STATUS_NO_ROOM: u8 = 5;
pub const STATUS_ENVIRONMENT: u8 = 6;
pub const STATUS_RESUMABLE: u8 = 75;

/// Whether an exit status of the program ends the run for good. The caller trusts the status only if the benchmark has announced
/// it on standard error ([`Facts::refused`]). Otherwise the status may be the number of a signal, which Hydra returns if all
/// ranks have died of that signal: SIGQUIT is 3, SIGILL 4, SIGTRAP 5.
///
/// Status 5, no room for memory, ends the run only in the first attempt. In later attempts it is a fault like any other: killed
/// processes may still be freeing memory. A node whose memory other programs have filled fails its next test.
fn is_final(code: i32, attempt: u32) -> bool {
    match code {
        3 | 4 => true,
        5 => attempt <= 1,
        _ => false,
    }
}

/// End of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The launcher ended. If this end was not expected, `fault` describes it and names the first rank that was seen to die.
    Exit {
        code: Option<i32>,
        fault: Breakage,
    },
    Broken(Breakage),
    /// Stopped on request.
    Halted {
        why: String,
    },
    /// The benchmark has reported all results, or its halt, but its processes have not ended.
    Lingering,
}

/// Consequence of the end of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// The run is over. `all_done`: all tests are done, so the run's files and memory are no longer needed.
    Over { code: u8, why: String, all_done: bool },
    /// The run can resume; its memory is kept.
    Resumable { why: String },
    /// The attempt has failed, and another attempt is needed. `code` is the launcher's status, or the status that the benchmark
    /// has announced.
    Fault { fault: Breakage, code: Option<i32> },
}

/// Facts that the supervisor knows when an attempt has ended.
#[derive(Clone, Debug)]
pub struct Facts {
    pub announced: Announced,
    /// Whether the program announces its end. The benchmark does; another program may not.
    pub announces: bool,
    /// Status with which the benchmark has announced that it refuses the run, if it has.
    pub refused: Option<u8>,
    /// Whether status 0 of the launcher means success. The launcher of Open MPI 5 may return 0 although a node was lost.
    pub zero_counts: bool,
    /// Reason why the run was asked to stop, if it was.
    pub halt: Option<String>,
    /// Path of the file with the benchmark's output.
    pub output: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// Describes a status with which the benchmark ends a run for good.
pub fn finished_words(code: u8) -> &'static str {
    match code {
        STATUS_PASSED => "the run is finished",
        3 => "a residual check FAILED",
        STATUS_LOSS => "more was lost than can be recovered; the run's shared memory is kept",
        STATUS_NO_ROOM => "shared memory cannot be allocated",
        STATUS_ENVIRONMENT => {
            "all tests are done, but a test was skipped or results could not be written; see the messages above"
        }
        _ => "the run is over",
    }
}

/// Describes any end except an exit of the launcher with the status `announced`. Returns `None` for such an exit.
fn interrupted(end: &End, announced: u8) -> Option<String> {
    match end {
        End::Exit { code: Some(code), .. } if *code == i32::from(announced) => None,
        End::Exit { fault, .. } | End::Broken(fault) => Some(fault.detail.clone()),
        End::Halted { why } => Some(why.clone()),
        End::Lingering => Some("the processes of the run did not end by themselves".to_string()),
    }
}

pub fn verdict(end: End, facts: &Facts) -> Next {
    if let Some(next) = judge_results(&end, facts) {
        return next;
    }
    let stopped = facts.halt.as_deref().unwrap_or("the benchmark stopped");
    let over =
        |code: u8| Next::Over { code, why: finished_words(code).to_string(), all_done: false };
    match end {
        End::Lingering => Next::Resumable {
            why: format!("{stopped}; the processes of the run did not end by themselves"),
        },
        _ if facts.announced == Announced::Halted => Next::Resumable { why: stopped.to_string() },
        End::Exit { code: Some(code), .. }
            if code == 0 && facts.zero_counts
                || is_final(code, facts.attempt)
                    && (!facts.announces || facts.refused.map(i32::from) == Some(code)) =>
        {
            over(code as u8)
        }
        End::Exit { code: Some(75), .. } => Next::Resumable { why: stopped.to_string() },
        End::Halted { why } => Next::Resumable { why },
        End::Exit { code, fault } => Next::Fault { fault, code },
        // If the benchmark has announced its end, a rank that was seen to end before the launcher is no fault of its own.
        End::Broken(fault) => {
            match facts.refused.filter(|_| fault.kind.is_of_a_rank()).map(i32::from) {
                Some(code) if is_final(code, facts.attempt) => over(code as u8),
                code => Next::Fault { fault, code },
            }
        }
    }
}

/// Returns the decision if the results have been reported, or if a full disk has cut them off. Returns `None` otherwise.
fn judge_results(end: &End, facts: &Facts) -> Option<Next> {
    let (status, what) = match (facts.announced, end) {
        // All results are reported already, so later failures do not matter.
        (Announced::All { status }, end) => {
            let why = finished_words(status);
            let why = match interrupted(end, status) {
                None => why.to_string(),
                Some(what) => format!("{why}; afterwards {what}"),
            };
            return Some(Next::Over { code: status, all_done: true, why });
        }
        // A full disk may have no room for the launcher's status either.
        (Announced::Part { status, here, printed }, End::Exit { code, .. })
            if code.is_none_or(|code| code == i32::from(status)) =>
        {
            (status, format!("only {here} of {printed} bytes are"))
        }
        // The end is announced in the last line of standard error, which a full disk cuts off too.
        (Announced::Nothing, End::Exit { code: Some(code @ (0 | 3)), fault })
            if facts.announces
                // A rank that has finished its work is not seen to die.
                && if *code == 0 { facts.zero_counts } else { fault.node.is_none() } =>
        {
            (*code as u8, "the last lines are not".to_string())
        }
        _ => return None,
    };
    let why = format!(
        "the benchmark ended with status {status}, but its results are incomplete: {what} in {}. Is the disk \
         full? Results of finished tests may also be in the file that --json names",
        facts.output
    );
    Some(Next::Over { code: STATUS_ENVIRONMENT, why, all_done: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::remember::events::FaultKind;

    fn fault(kind: FaultKind, node: Option<usize>, position: Option<u32>) -> Breakage {
        let detail = "no heartbeat".to_string();
        Breakage { kind, failed_ms: 5, node, position, test: 1, iteration: 40, detail }
    }
    fn exit(code: Option<i32>) -> End {
        End::Exit { code, fault: fault(FaultKind::LauncherGone, Some(2), Some(7)) }
    }
    fn facts(told: Announced) -> Facts {
        Facts {
            announced: told,
            announces: true,
            refused: None,
            zero_counts: true,
            halt: None,
            output: "state/out.1".to_string(),
            attempt: 1,
        }
    }
    fn broken() -> End {
        End::Broken(fault(FaultKind::NodeUnresponsive, Some(1), None))
    }

    #[test]
    fn a_full_report_is_the_end_whatever_comes_afterwards() {
        let told = Announced::All { status: 3 };
        match verdict(exit(Some(3)), &facts(told)) {
            Next::Over { code: 3, why, all_done: true } => assert!(!why.contains("afterwards")),
            other => panic!("{other:?}"),
        }
        for end in [exit(Some(137)), exit(None), broken(), End::Lingering] {
            match verdict(end, &facts(told)) {
                Next::Over { code: 3, why, all_done: true } => assert!(why.contains("afterwards")),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Status 5 means no room for memory. After all tests, status 6 means a skipped test or results that could not be written.
    #[test]
    fn a_status_is_told_as_what_it_means() {
        let said = |status: u8| match verdict(
            exit(Some(status.into())),
            &facts(Announced::All { status }),
        ) {
            Next::Over { code, why, all_done: true } if code == status => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(STATUS_PASSED), "the run is finished");
        assert!(said(STATUS_ENVIRONMENT).contains("a test was skipped or results could not be"));
        let refused = Facts { refused: Some(5), ..facts(Announced::Nothing) };
        match verdict(exit(Some(5)), &refused) {
            Next::Over { code: STATUS_NO_ROOM, why, .. } => assert!(why.contains("shared memory")),
            other => panic!("{other:?}"),
        }
    }

    /// On a full disk the results and the announcement of the end are both lost.
    #[test]
    fn results_that_are_not_there_are_never_called_passed() {
        let part = Announced::Part { status: 0, here: 10, printed: 90 };
        for (told, code) in [(part, Some(0)), (part, None), (Announced::Nothing, Some(0))] {
            match verdict(exit(code), &facts(told)) {
                Next::Over { code: STATUS_ENVIRONMENT, why, .. } => {
                    assert!(why.contains("incomplete") && why.contains("out.1"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
        // The status of a program that announces nothing counts.
        let other = Facts { announces: false, ..facts(Announced::Nothing) };
        assert!(matches!(verdict(exit(Some(0)), &other), Next::Over { code: 0, .. }));
    }

    #[test]
    fn the_benchmarks_own_statuses_are_final_and_the_rest_is_a_fault() {
        for code in [3, 4, 5] {
            let told = if code == 3 { Announced::All { status: 3 } } else { Announced::Nothing };
            let said = Facts { refused: Some(code as u8), ..facts(told) };
            let next = verdict(exit(Some(code)), &said);
            assert!(matches!(next, Next::Over { code: c, .. } if i32::from(c) == code));
            // Another program cannot announce its status, so the status alone counts.
            let other = Facts { announces: false, ..facts(Announced::Nothing) };
            let next = verdict(exit(Some(code)), &other);
            assert!(matches!(next, Next::Over { code: c, .. } if i32::from(c) == code));
        }
        for code in [Some(1), Some(137), None] {
            match verdict(exit(code), &facts(Announced::Nothing)) {
                Next::Fault { fault, code: c } => {
                    assert_eq!((c, fault.kind), (code, FaultKind::LauncherGone));
                    assert_eq!((fault.node, fault.position), (Some(2), Some(7)));
                    assert_eq!((fault.test, fault.iteration), (1, 40));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(verdict(broken(), &facts(Announced::Nothing)), Next::Fault { .. }));
        // Open MPI 5 ends with 0 when a node is lost.
        let hides = Facts { zero_counts: false, ..facts(Announced::Nothing) };
        assert!(matches!(verdict(exit(Some(0)), &hides), Next::Fault { code: Some(0), .. }));
    }

    /// If all ranks die of SIGQUIT, SIGILL or SIGTRAP, Hydra's exit status is the number of the signal. Without an announcement
    /// of the benchmark such a status is a fault.
    #[test]
    fn the_number_of_a_signal_is_no_word_of_the_benchmarks() {
        for code in [3, 4, 5] {
            for refused in [None, Some(1)] {
                let unannounced = Facts { refused, ..facts(Announced::Nothing) };
                match verdict(exit(Some(code)), &unannounced) {
                    Next::Fault { fault, code: c } => {
                        assert_eq!((c, fault.kind), (Some(code), FaultKind::LauncherGone));
                    }
                    other => panic!("{code}: {other:?}"),
                }
            }
        }
        // On a full disk the announcement of a failed residual check is lost, too. But then no rank was seen to die.
        let fault = fault(FaultKind::LauncherGone, None, None);
        let alive = End::Exit { code: Some(3), fault };
        let next = verdict(alive, &facts(Announced::Nothing));
        assert!(matches!(next, Next::Over { code: STATUS_ENVIRONMENT, .. }), "{next:?}");
    }

    #[test]
    fn no_room_is_an_end_at_the_first_start_and_a_fault_later() {
        assert!(is_final(5, 1) && !is_final(5, 2));
        for attempt in [1, 2, 7] {
            assert!([3, 4].iter().all(|&code| is_final(code, attempt)));
            assert!([0, 1, 2, 6, 75, 135, 137].iter().all(|&code| !is_final(code, attempt)));
        }
    }

    /// The next attempt uses the same node, whose memory may be free by then, or another node.
    #[test]
    fn no_room_in_a_recovery_is_a_fault() {
        let later = Facts { attempt: 2, refused: Some(5), ..facts(Announced::Nothing) };
        assert!(matches!(verdict(exit(Some(5)), &later), Next::Fault { code: Some(5), .. }));
    }

    /// The supervisor may see the end of a rank before the end of the launcher. An announced refusal counts in that case, too.
    #[test]
    fn a_refusal_is_one_in_any_order_of_ends() {
        let of = |kind| match broken() {
            End::Broken(breakage) => End::Broken(Breakage { kind, ..breakage }),
            other => other,
        };
        for kind in [FaultKind::RankDied, FaultKind::RankHung] {
            for (status, attempt) in [(1, 2), (2, 1), (5, 2), (6, 1)] {
                let said = Facts { attempt, refused: Some(status), ..facts(Announced::Nothing) };
                match verdict(of(kind), &said) {
                    Next::Fault { fault, code } => {
                        assert_eq!((fault.kind, code), (kind, Some(i32::from(status))));
                    }
                    other => panic!("{kind:?}, {status}: {other:?}"),
                }
            }
            for (status, attempt) in [(4, 2), (5, 1)] {
                let said = Facts { attempt, refused: Some(status), ..facts(Announced::Nothing) };
                let next = verdict(of(kind), &said);
                assert!(matches!(next, Next::Over { code, .. } if code == status), "{next:?}");
            }
            let next = verdict(of(kind), &facts(Announced::Nothing));
            assert!(matches!(next, Next::Fault { code: None, .. }), "{next:?}");
        }
        // A lost node is a fault of its own, even after a refusal.
        let said = Facts { refused: Some(4), ..facts(Announced::Nothing) };
        assert!(matches!(verdict(broken(), &said), Next::Fault { code: None, .. }));
    }

    #[test]
    fn a_stop_can_be_gone_on_from() {
        let asked = Facts { halt: Some("asked".to_string()), ..facts(Announced::Nothing) };
        assert_eq!(verdict(exit(Some(75)), &asked), Next::Resumable { why: "asked".to_string() });
        let why = "late".to_string();
        assert_eq!(verdict(End::Halted { why: why.clone() }, &asked), Next::Resumable { why });
        // After a job has announced its halt, its end is no fault.
        let told = Facts { announced: Announced::Halted, ..asked.clone() };
        for end in [exit(Some(1)), exit(None), exit(Some(0)), broken()] {
            assert_eq!(verdict(end, &told), Next::Resumable { why: "asked".to_string() });
        }
        match verdict(End::Lingering, &told) {
            Next::Resumable { why } => assert!(why.starts_with("asked; the processes"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

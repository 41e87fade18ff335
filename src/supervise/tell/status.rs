//! State of the run: the file that `skt-hpl status` reads, and the lines printed for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::timeline::{FaultTimes, WallTime};
use crate::base::clock::{self, Instant};
use crate::base::host_name;
use crate::supervise::remember::folder::{Folder, read_whole};
use crate::supervise::remember::journal::{Held, Journal};
use crate::supervise::talk::progress::{Role, words};

/// Activity of the run as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    #[default]
    Starting,
    Running,
    Recovering,
    Waiting,
    Halting,
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeRole {
    Working,
    Spare,
    Lost,
    Unfit,
    /// The node is being called, or has answered and waits for other nodes that are being called.
    Called,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub name: String,
    pub role: NodeRole,
    pub ranks: usize,
    /// Positions and roles of the node's ranks, if the run can continue in place after a loss. Empty otherwise.
    pub part: String,
    /// Reason for an abnormal state of the node. Empty if there is none.
    pub note: String,
}

/// Size of the problem, from which the share of the work and the rate are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub n: u64,
    pub nb: u64,
}

impl Problem {
    /// Returns the floating-point operations of the factorisation up to an iteration.
    pub fn flops_until(&self, iteration: u64) -> f64 {
        let n = self.n as f64;
        let left = (n - iteration as f64 * self.nb as f64).max(0.0);
        2.0 / 3.0 * (n.powi(3) - left.powi(3))
    }

    pub fn share(&self, iteration: u64) -> f64 {
        self.flops_until(iteration) / self.flops_until(self.n.div_ceil(self.nb.max(1))).max(1.0)
    }
}

/// Describes the `ranks` ranks of a node. Those of `positions` work, each in its role; `lost` ranks are lost. The other ranks
/// stand by, or are idle if lost positions stay `vacant`.
pub fn part(ranks: usize, positions: &[(u32, Role)], lost: usize, vacant: bool) -> String {
    let mut parts: BTreeMap<Role, Vec<String>> = BTreeMap::new();
    for (position, part) in positions {
        parts.entry(*part).or_default().push(position.to_string());
    }
    let told = |(part, all): (Role, Vec<String>)| {
        let word = if all.len() == 1 { "position" } else { "positions" };
        let positions = format!("{word} {}", all.join(" "));
        match part {
            Role::Own => positions,
            Role::Sums => format!("checksums at {positions}"),
            Role::InPlaceOf(column) => {
                format!("{positions} in the place of process column {column}")
            }
        }
    };
    let mut words: Vec<String> = parts.into_iter().map(told).collect();
    let rest = ranks.saturating_sub(positions.len() + lost);
    for (count, word) in [(rest, if vacant { "idle" } else { "standing by" }), (lost, "lost")] {
        if count > 0 {
            words.push(format!("{count} {word}"));
        }
    }
    words.join(", ")
}

/// Iteration and moment of the last save of the test, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LastSave {
    #[serde(rename = "last_save_iteration")]
    pub iteration: Option<u64>,
    #[serde(rename = "last_save_ms")]
    pub ms: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub run_id: String,
    pub activity: Activity,
    pub doing: String,
    pub attempt: u32,
    /// Number of the test in the input file, from zero.
    pub test: u32,
    /// Furthest iteration of the test that ranks have reached.
    pub iteration: u64,
    pub problem: Option<Problem>,
    /// Gflop/s since the ranks of this attempt began to compute; 0 if unknown.
    pub gflops: f64,
    pub left_s: Option<f64>,
    #[serde(flatten)]
    pub last_save: LastSave,
    pub nodes: Vec<NodeStatus>,
    pub faults: Vec<FaultTimes>,
    pub started_ms: u64,
    /// Time of writing, by the wall clock.
    pub updated_ms: u64,
    /// Time of writing, by the supervisor's own clock. All other moments of the status are by this clock.
    pub own_ms: u64,
    pub supervisor_host: String,
    pub supervisor_pid: u32,
    pub exit_code: Option<u8>,
    pub why: String,
    /// Parts of the wall time, once the run has ended.
    pub wall: Option<WallTime>,
}

/// Time within which a status written on another node must change. A supervisor writes one every second.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// Returns whether a supervisor is at work on the run of a folder. The lock of the journal shows this. A supervisor on another
/// host is also found by the status that it writes.
pub fn supervised(folder: &Folder) -> Held {
    match Journal::held(&folder.journal()) {
        Held::No if written_elsewhere(folder).is_some() => Held::Yes,
        held => held,
    }
}

/// Returns the name of another host on which a supervisor writes this folder's status at present. On some file systems a lock is
/// not visible on other nodes: Lustre with `localflock`, NFS with `nolock`, BeeGFS by default.
pub fn written_elsewhere(folder: &Folder) -> Option<String> {
    let read = || read_whole::<Status>(&folder.status());
    let here = host_name();
    let theirs = |status: &Status| status.exit_code.is_none() && here != status.supervisor_host;
    let first = read().filter(theirs)?;
    let began = Instant::now();
    while began.elapsed() < SEEN_WITHIN {
        clock::sleep(Duration::from_millis(100));
        // A status that is being replaced cannot be read.
        if let Some(now) = read().filter(|now| now.updated_ms != first.updated_ms) {
            return theirs(&now).then_some(now.supervisor_host);
        }
    }
    None
}

/// Largest share of the work between two progress lines.
const STEP: f64 = 0.05;
/// Shortest time between two progress lines, for short runs.
const GAP_MS: u64 = 5_000;

/// Moments at which progress lines are printed if standard error is no terminal. Pure.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Longest time without a line. With zero, no lines are printed.
    pub every_ms: u64,
    /// Moment of the last line, or of the beginning if there is none.
    pub said_ms: u64,
    /// Number of steps of the work that were done at the last line.
    pub said_step: u64,
}

impl Lines {
    /// Returns whether to print a line now. `share` is the share of the work that is done, if known.
    pub fn due(&mut self, now_ms: u64, share: Option<f64>) -> bool {
        if self.every_ms == 0 {
            return false;
        }
        let since_ms = now_ms.saturating_sub(self.said_ms);
        let step = share.map_or(self.said_step, |share| (share / STEP) as u64);
        let due = since_ms >= self.every_ms
            || step > self.said_step && since_ms >= GAP_MS.min(self.every_ms);
        if due {
            self.said_ms = now_ms;
        }
        // After a restart the share of the work is smaller, and its steps count again.
        if due || step < self.said_step {
            self.said_step = step;
        }
        due
    }
}

/// Formats a time in seconds, minutes or hours.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

impl Status {
    /// Returns the share of the work that is done, while ranks compute.
    pub fn share(&self) -> Option<f64> {
        match self.activity {
            Activity::Running | Activity::Halting => Some(self.problem?.share(self.iteration)),
            _ => None,
        }
    }

    fn count(&self, role: NodeRole) -> usize {
        self.nodes.iter().filter(|n| n.role == role).count()
    }

    /// Computes the rate and the time left. The attempt began to compute at iteration `from`, `seconds` ago.
    pub fn measure(&mut self, from: u64, seconds: f64) {
        (self.gflops, self.left_s) = (0.0, None);
        let Some(problem) = self.problem else { return };
        if self.iteration <= from || seconds <= 0.0 {
            return;
        }
        let done = problem.flops_until(self.iteration) - problem.flops_until(from);
        let all = problem.flops_until(problem.n.div_ceil(problem.nb.max(1)));
        let rate = done / seconds;
        if rate > 0.0 {
            self.gflops = rate / 1e9;
            self.left_s = Some((all - problem.flops_until(self.iteration)) / rate);
        }
    }

    /// Formats the progress line: percentage, rate, time left, last save, nodes.
    pub fn line(&self, now_ms: u64) -> String {
        let mut text = match (self.activity, self.problem) {
            (Activity::Running | Activity::Halting, Some(problem)) => {
                format!(
                    "{:5.1} % iteration {}",
                    100.0 * problem.share(self.iteration),
                    self.iteration
                )
            }
            (Activity::Running | Activity::Halting, None) => {
                format!("iteration {}", self.iteration)
            }
            (Activity::Starting, _) if !self.doing.is_empty() && self.doing != "starting" => {
                format!("starting, {}", self.doing)
            }
            (other, _) => words(other),
        };
        if self.activity == Activity::Halting {
            text.push_str(", halting");
        }
        if !self.doing.is_empty() && self.doing != "computing" && self.activity == Activity::Running
        {
            let _ = write!(text, ", {}", self.doing);
        }
        if self.gflops > 0.0 {
            let _ = write!(text, ", {:.1} Gflop/s", self.gflops);
        }
        if let Some(left) = self.left_s {
            let _ = write!(text, ", {} left", duration(left));
        }
        match (self.last_save.iteration, self.last_save.ms) {
            (Some(at), Some(when)) => {
                let ago = now_ms.saturating_sub(when) as f64 / 1e3;
                let _ = write!(text, ", saved at {at} ({} ago)", duration(ago));
            }
            _ => text.push_str(", nothing saved yet"),
        }
        let _ = write!(
            text,
            ", nodes {} working {} spare {} lost",
            self.count(NodeRole::Working),
            self.count(NodeRole::Spare),
            self.count(NodeRole::Lost) + self.count(NodeRole::Unfit)
        );
        let called = self.count(NodeRole::Called);
        if called > 0 {
            let _ = write!(text, " {called} being called");
        }
        if !self.faults.is_empty() {
            let _ = write!(text, ", {} fault(s)", self.faults.len());
        }
        text
    }

    /// Formats the whole state for `skt-hpl status`. `now_ms` is the time by the wall clock.
    pub fn page(&self, now_ms: u64, held: &Held) -> String {
        let age_ms = now_ms.saturating_sub(self.updated_ms);
        let now_ms = self.own_ms + age_ms;
        let mut text = format!(
            "run {} attempt {}, since {}\n{}\n{}\n",
            self.run_id,
            self.attempt,
            duration(now_ms.saturating_sub(self.started_ms) as f64 / 1e3),
            self.line(now_ms),
            self.describe_supervision(age_ms, held)
        );
        for node in &self.nodes {
            let role = words(node.role);
            let between = if node.part.is_empty() || node.note.is_empty() { "" } else { "; " };
            let _ = writeln!(
                text,
                "  {:<16} {role:<8} {:>3} rank(s)  {}{between}{}",
                node.name, node.ranks, node.part, node.note
            );
        }
        for f in &self.faults {
            let _ = writeln!(
                text,
                "  fault {}: {} {} at iteration {}, noticed after {:.1} s{}",
                f.fault,
                f.kind.words(),
                f.node.as_deref().unwrap_or(""),
                f.iteration,
                f.noticed_ms.saturating_sub(f.failed_ms) as f64 / 1e3,
                f.restored_ms.map_or(String::new(), |at| format!(
                    ", {} after {:.1} s",
                    if f.in_place() { "recovered in place" } else { "computing again" },
                    at.saturating_sub(f.failed_ms) as f64 / 1e3
                ))
            );
        }
        text
    }

    /// Describes the end of the run, or its supervisor.
    fn describe_supervision(&self, age_ms: u64, held: &Held) -> String {
        if let Some(code) = self.exit_code {
            return format!("ended with status {code}: {}", self.why);
        }
        let process = format!("process {} on {}", self.supervisor_pid, self.supervisor_host);
        match held {
            Held::Yes => format!("supervised by {process}"),
            Held::Unknown(why) => format!(
                "it is not known whether {process} still supervises the run ({why}); last sign of life {} ago",
                duration(age_ms as f64 / 1e3)
            ),
            Held::No => format!(
                "NOT supervised: {process} is gone; the same `skt-hpl run` command takes over"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::supervise::remember::folder::write_whole;

    #[test]
    fn share_and_rate_follow_from_the_corner() {
        let problem = Problem { n: 1000, nb: 100 };
        assert_eq!(problem.share(0), 0.0);
        assert_eq!(problem.share(10), 1.0);
        assert!((problem.share(5) - 0.875).abs() < 1e-12, "half the columns are 7/8 of the work");
        let mut status = Status { problem: Some(problem), iteration: 5, ..Status::default() };
        status.measure(0, 2.0);
        assert!((status.gflops - 0.875 * 2.0 / 3.0 / 2.0).abs() < 1e-9);
        assert!((status.left_s.unwrap() - 2.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn lines_come_at_steps_and_at_the_latest_after_a_while() {
        let said = |every_ms: u64, seconds: u64, share: &dyn Fn(u64) -> Option<f64>| -> Vec<u64> {
            let mut lines = Lines { every_ms, ..Lines::default() };
            (1..=seconds).filter(|s| lines.due(s * 1000, share(*s))).collect()
        };
        // A run of an hour: a line every minute, and one at each step of three minutes.
        let hour = said(60_000, 3600, &|s| Some(s as f64 / 3600.0));
        assert!((60..=80).contains(&hour.len()), "{hour:?}");
        // A run of ten minutes: a step takes half a minute.
        let ten = said(60_000, 600, &|s| Some(s as f64 / 600.0));
        assert_eq!(ten.len(), 20);
        // A run of half a minute: no more than one line every five seconds.
        let short = said(60_000, 30, &|s| Some(s as f64 / 30.0));
        assert!(short.windows(2).all(|w| w[1] - w[0] >= 5) && short.len() >= 5, "{short:?}");
        // If the share is unknown, lines follow the time alone. With zero there are no lines.
        assert_eq!(said(60_000, 180, &|_| None), [60, 120, 180]);
        assert_eq!(said(0, 600, &|s| Some(s as f64 / 600.0)), [0u64; 0]);
        // A restart reduces the share, and repeated steps are printed again.
        let back = said(600_000, 200, &|s| {
            Some(if s < 100 { 0.9 } else { 0.3 + (s - 100) as f64 / 200.0 })
        });
        assert!(back.iter().filter(|s| **s > 100).count() >= 5, "{back:?}");
    }

    #[test]
    fn a_nodes_part_is_positions_spares_and_lost_ranks() {
        let own = |position| (position, Role::Own);
        assert_eq!(part(1, &[own(3)], 0, false), "position 3");
        assert_eq!(part(4, &[own(1), own(3)], 1, false), "positions 1 3, 1 standing by, 1 lost");
        assert_eq!(part(1, &[], 0, false), "1 standing by");
        assert_eq!(part(1, &[], 1, false), "1 lost");
        let with_sums = [own(0), (2, Role::Sums), (3, Role::InPlaceOf(1)), own(4), (6, Role::Sums)];
        assert_eq!(
            part(7, &with_sums, 1, true),
            "positions 0 4, checksums at positions 2 6, position 3 in the place of process column 1, 1 idle, 1 lost"
        );
    }

    /// The lock of the journal is not visible on other nodes.
    #[test]
    fn a_supervisor_on_another_host_is_known_by_what_it_writes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        assert_eq!(supervised(&folder), Held::No);
        let write = |host: &str, updated_ms, exit_code| {
            let supervisor_host = host.to_owned();
            let status = Status { supervisor_host, updated_ms, exit_code, ..Status::default() };
            write_whole(&folder.status(), &status).unwrap();
        };
        let while_written = |host: &str, exit_code: Option<u8>| {
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for second in 0.. {
                        write(host, second, exit_code);
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(300));
                    }
                });
                while !folder.status().exists() {
                    std::thread::yield_now();
                }
                let found = (supervised(&folder), written_elsewhere(&folder));
                over.store(true, Ordering::Relaxed);
                found
            })
        };
        assert_eq!(while_written("far", None), (Held::Yes, Some("far".to_owned())));
        // A supervisor that has ended does not count, nor a status that is no longer written.
        assert_eq!(while_written("far", Some(0)), (Held::No, None));
        write("far", 7, None);
        assert_eq!(supervised(&folder), Held::No);
        // On this host only the lock counts.
        let here = nix::unistd::gethostname().unwrap().into_string().unwrap();
        assert_eq!(while_written(&here, None), (Held::No, None));
    }

    #[test]
    fn the_line_says_what_people_ask() {
        let node = |name: &str, role| NodeStatus {
            name: name.into(),
            role,
            ranks: 1,
            part: String::new(),
            note: String::new(),
        };
        let status = Status {
            activity: Activity::Running,
            problem: Some(Problem { n: 1000, nb: 100 }),
            iteration: 5,
            gflops: 12.5,
            left_s: Some(75.0),
            last_save: LastSave { iteration: Some(4), ms: Some(1000) },
            nodes: vec![
                node("a", NodeRole::Working),
                node("b", NodeRole::Spare),
                node("c", NodeRole::Lost),
            ],
            ..Status::default()
        };
        assert_eq!(
            status.line(4000),
            " 87.5 % iteration 5, 12.5 Gflop/s, 1 min 15 s left, saved at 4 (3 s ago), \
             nodes 1 working 1 spare 1 lost"
        );
        let called = ["a", "b"].map(|name| node(name, NodeRole::Called));
        let early = Status {
            doing: "calling nodes".into(),
            nodes: called.into_iter().chain([node("c", NodeRole::Unfit)]).collect(),
            ..Status::default()
        };
        let line = "starting, calling nodes, nothing saved yet, nodes 0 working 0 spare 1 lost 2 being called";
        assert_eq!(early.line(4000), line);
        assert!(status.page(4000, &Held::No).contains("NOT supervised"));
        let unknown = status.page(4000, &Held::Unknown("no locks".to_string()));
        assert!(
            unknown.contains("supervises the run (no locks); last sign of life 4 s ago"),
            "{unknown}"
        );
        assert!(!unknown.contains("NOT supervised"), "{unknown}");
    }
}

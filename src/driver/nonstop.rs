//! Recovery in place: the ranks that are left continue without a lost rank, in the same processes (`--nonstop`).
//!
//! A job consists of in-place attempts. Each attempt is like a whole job without `--nonstop`, from reading the nodes' memory to
//! the report of the last test. A loss ends the attempt on every rank (`comm::World::attempt`). The next attempt begins with
//! the ranks that are left. A spare rank takes the vacant position, and recovery continues as after a restart.
//!
//! A rank keeps its knowledge of earlier attempts in its [`RecoveryHistory`], the recovery history. A roll call at the
//! beginning of each attempt makes the histories of all ranks equal. docs/dev/nonstop.md describes the whole protocol.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::agreement::gathered;
use super::replacement::roles::Status;
use crate::base::clock::{self, Instant};
use crate::base::exit::{Exit, Refusal};
use crate::checkpoint::RankCandidate;
use crate::comm::{Comm, Lost, World};
use crate::config::Loaded;
use crate::config::settings::Protection;
use crate::lu::unix_seconds;
use crate::supervise::remember::events::ProcessId;
use crate::supervise::start::in_place::{Gone, Notice};
use crate::supervise::start::launcher::own_run_id;
use crate::supervise::talk::processes;

/// Checks that MPI allows recovery in place, if the settings request it. The result is the same on all ranks if all nodes have
/// the same MPI. Conflicts between settings are found when the settings are read.
pub fn fits(loaded: &Loaded, world: &World) -> Result<(), Refusal> {
    let settings = &loaded.settings;
    let able = |flag: &str| match world.obstacle() {
        None => Ok(()),
        Some(why) => Err(Refusal::environment(format!("{flag}: {why}"))),
    };
    match settings.protection {
        Protection::Checksums { .. } => able("--method abft"),
        _ if settings.goes_on() => able("--nonstop"),
        _ => Ok(()),
    }
}

/// Test on which a rank works, and the rank's position in this test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestPart {
    pub test: usize,
    pub position: Option<usize>,
    /// Positions of the rank's group in the test; empty until they are known.
    pub members: Vec<usize>,
}

/// Knowledge of one rank about the attempts so far. A roll call merges the knowledge of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Knowledge {
    pub part: TestPart,
    /// True once the run has begun. After its beginning the run resumes from its own memory, regardless of `--restart`.
    pub begun: bool,
    /// First test that began in this launch. Only this test can have checkpoints of an earlier launch.
    first: Option<usize>,
    /// True once a later test than `first` has begun.
    past_the_first: bool,
    /// Last test of which this rank has saved a checkpoint in this launch; `None` if there is none. Storage may still contain a
    /// checkpoint of this test after memory has lost it.
    pub saved: Option<usize>,
    /// True once the heading is printed.
    pub head: bool,
    /// Number of reported tests.
    pub told: usize,
    /// Exit status of the run; `None` until all results are reported.
    pub verdict: Option<Exit>,
    /// Number of tests with checksum columns whose results all ranks have.
    pub finished: usize,
    /// Ranks lost since the last roll call.
    gone: Vec<usize>,
    /// Time at which this rank noticed the last loss, by the clock of its node.
    noticed_unix_s: f64,
}

/// Recovery history: the knowledge of one rank about the attempts so far.
#[derive(Clone, Debug, Default)]
pub struct RecoveryHistory {
    pub known: Knowledge,
    /// Number of losses in this launch since the current test began.
    pub losses: u32,
    /// Number of losses in earlier launches since the current test began.
    pub losses_before: u32,
    /// True if ranks have been lost in this launch, in any test. Until a restart, ranks cannot read storage that belonged to a
    /// lost node alone (`--level2-scope node`).
    pub has_lost: bool,
    /// Facts about each rank that the launcher started, in the order of the launcher's rank numbers.
    members: Vec<Member>,
    /// Answers of the ranks at the last roll call.
    people: Vec<Answer>,
    /// Notice of the last loss, until it is printed.
    pub notice: Option<Notice>,
}

/// Answer of a rank at the roll call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    /// Rank number given by the launcher.
    launched: usize,
    node: usize,
    known: Knowledge,
    /// Lost ranks that no printed notice has named yet, as far as this rank knows.
    untold: Vec<usize>,
    /// State of a test with checksum columns; `None` if this rank has no such state.
    status: Option<Status>,
}

/// Facts about a rank that stay the same while its process lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    process: Process,
    host: String,
    domain: String,
}

/// Process of a rank, and the system in which its process id is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    id: ProcessId,
    /// System in which the process id is valid: boot id of the kernel, and PID namespace.
    of: (String, String),
}

impl Process {
    fn own() -> Self {
        let pid = std::process::id();
        let started = processes::look(pid).map_or(0, |(_, started)| started);
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            id: ProcessId { pid, started },
            of: (processes::kernel(), namespace.display().to_string()),
        }
    }

    /// Kills the process if it is on this node. All ranks have agreed that the rank of the process is lost, but the process may
    /// only be suspended. A process that continues must not change its position's memory, or keep the lock on that memory.
    fn end(&self) {
        let own = Self::own();
        if self.of == own.of && self.id != own.id && processes::is_alive(self.id) {
            processes::send(self.id.pid, Signal::SIGKILL);
            let until = Instant::now() + ENDS_WITHIN;
            while processes::is_alive(self.id) && Instant::now() < until {
                clock::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Time limit for a killed process to end. The process ends only after the system has freed its memory. If the position's memory
/// is still locked after this time, the rank that takes the memory reports an error.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Returns the last test that may have a checkpoint; `None` if no test has. `told` has each rank's part, and the last test that
/// the rank has saved. If all ranks that took part in the latest test are lost, no rank knows whether this test was saved, and it
/// counts as saved.
fn last_saved<'a>(told: impl Iterator<Item = (&'a TestPart, Option<usize>)>) -> Option<usize> {
    let told: Vec<_> = told.collect();
    let begun = told.iter().map(|(part, _)| part.test).max();
    let had_part = |part: &TestPart| Some(part.test) == begun && part.position.is_some();
    let known = told.iter().any(|(part, _)| had_part(part));
    told.iter().filter_map(|(_, saved)| *saved).max().max(begun.filter(|_| !known))
}

impl RecoveryHistory {
    /// Starts the recovery history of a job before the job's first attempt. All ranks exchange facts about themselves, in case a
    /// rank is lost before the first roll call. Collective call.
    pub fn begin(comm: &Comm, host: &str, domain: &str) -> Self {
        let (host, domain) = (host.to_owned(), domain.to_owned());
        let mine = Member { process: Process::own(), host, domain };
        Self { members: gathered(comm, &mine), ..Self::default() }
    }

    /// Records that an attempt ended with the loss of the ranks `gone`.
    pub fn note_loss(&mut self, lost: &Lost, gone: Vec<usize>) {
        self.known.noticed_unix_s = lost.noticed_unix_s;
        self.known.gone.extend(gone);
        self.losses += 1;
        self.has_lost = true;
    }

    /// Records that test `test` begins or continues.
    pub fn comes_to(&mut self, test: usize) {
        self.known.past_the_first |= *self.known.first.get_or_insert(test) != test;
        if self.known.part.test != test {
            self.known.part = TestPart { test, ..TestPart::default() };
            (self.losses, self.losses_before) = (0, 0);
        }
    }

    /// Returns true if the first test of this launch is over, and the last saved test is finished. In this case storage has no
    /// checkpoint that memory lacks. `finished` returns true if memory has the result of a test.
    pub fn is_between_tests(&self, finished: impl Fn(usize) -> bool) -> bool {
        (self.known.past_the_first || self.known.first.is_some_and(&finished))
            && self.known.saved.is_none_or(finished)
    }

    /// Merges the knowledge of all ranks, and gives the merged knowledge to each rank. Also kills processes of lost ranks that
    /// still run on this node. `node` is the first rank on this rank's node; `status` is this rank's state of a test with
    /// checksum columns. Collective call.
    pub fn call_roll(&mut self, world: &World, node: usize, status: Option<Status>) {
        let comm = world.comm();
        let untold_before = self.notice.iter().flat_map(|n| &n.lost).map(|gone| gone.rank);
        let mine = Answer {
            launched: world.launched()[comm.rank()],
            node,
            known: self.known.clone(),
            untold: untold_before.chain(self.known.gone.iter().copied()).collect(),
            status,
        };
        let answers = gathered(comm, &mine);
        self.known.begun = answers.iter().any(|a| a.known.begun);
        self.known.first = answers.iter().find_map(|a| a.known.first);
        self.known.past_the_first = answers.iter().any(|a| a.known.past_the_first);
        let saved = answers.iter().map(|a| (&a.known.part, a.known.saved));
        self.known.saved = if self.known.begun { last_saved(saved) } else { None };
        self.known.head = answers.iter().any(|a| a.known.head);
        self.known.told = answers.iter().map(|a| a.known.told).max().unwrap_or(0);
        self.known.verdict = answers.iter().find_map(|a| a.known.verdict);
        self.known.finished = answers.iter().map(|a| a.known.finished).min().unwrap_or(0);
        if !self.known.gone.is_empty() {
            let noticed =
                answers.iter().map(|a| a.known.noticed_unix_s).fold(f64::INFINITY, f64::min);
            let gone = std::mem::take(&mut self.known.gone);
            for &rank in &gone {
                self.members[rank].process.end();
            }
            let told: Vec<&[usize]> = answers.iter().map(|a| &a.untold[..]).collect();
            let untold = untold(&told);
            let before = self.notice.take();
            let known = before.filter(|n| n.lost.iter().any(|one| untold.contains(&one.rank)));
            let noticed = known.as_ref().map_or(noticed, |n| n.noticed_unix_s.min(noticed));
            let known = known.map(|n| n.lost).unwrap_or_default();
            let words = |&rank: &usize| match known.iter().find(|one| one.rank == rank) {
                Some(one) => one.clone(),
                None => self.obituary(rank),
            };
            let lost = untold.iter().map(words).collect();
            let agreed_s = (unix_seconds() - noticed).max(0.0);
            let takers = String::new();
            self.notice = Some(Notice { lost, noticed_unix_s: noticed, agreed_s, takers });
        }
        self.people = answers;
    }

    fn obituary(&self, launched: usize) -> Gone {
        let known = self.people.iter().find(|a| a.launched == launched);
        Gone {
            rank: launched,
            node: self.members[launched].host.clone(),
            position: known.and_then(|a| a.known.part.position),
        }
    }

    /// Records the position of each rank in a test, so that a report of a later loss can name the position.
    pub fn deal(&mut self, comm: &Comm, test: usize, taken: &[Option<usize>]) {
        let takers = self.takers(test, taken);
        if let Some(notice) = &mut self.notice {
            notice.takers = takers;
        }
        let position = taken[comm.rank()];
        if (self.known.part.test, self.known.part.position) != (test, position) {
            self.known.part = TestPart { test, position, members: Vec::new() };
        }
        for (person, &position) in self.people.iter_mut().zip(taken) {
            person.known.part = TestPart { test, position, members: Vec::new() };
        }
    }

    /// Returns the candidate ranks for a test, with the position and group of each, according to the last roll call.
    pub fn candidates(&self, test: usize) -> Vec<RankCandidate> {
        let candidate = |a: &Answer| {
            let part = Some(&a.known.part).filter(|part| part.test == test);
            RankCandidate {
                node: a.node,
                domain: self.members[a.launched].domain.clone(),
                kept: part.and_then(|part| part.position),
                members: part.map(|part| part.members.clone()).unwrap_or_default(),
            }
        };
        self.people.iter().map(candidate).collect()
    }

    /// Returns the state of a test on each rank, according to the last roll call; `None` for a rank without such a state.
    pub fn statuses(&self, test: usize) -> Vec<Option<Status>> {
        self.people.iter().map(|a| a.status.as_ref().and_then(|s| s.of(test))).collect()
    }

    /// Returns the refusal that ends this launch after a loss that checksum columns could not recover. No checkpoint exists. A
    /// supervisor starts the run from scratch.
    pub fn is_lost(&self, why: &str) -> Refusal {
        let then = match own_run_id() {
            Some(_) => "The next attempt begins from scratch",
            None => "Start the run again; it begins from scratch",
        };
        self.end(Exit::Unrecoverable, &format!("The run cannot continue: {why}. {then}"))
    }

    /// Describes the ranks that take over a position from another rank. The text is empty if there are none, or if the test
    /// begins.
    fn takers(&self, test: usize, taken: &[Option<usize>]) -> String {
        let of_this = |a: &Answer| a.known.part.position.filter(|_| a.known.part.test == test);
        if self.people.iter().all(|a| of_this(a).is_none()) {
            // At the beginning of a test all positions are new.
            return String::new();
        }
        let words = self.people.iter().zip(taken).filter_map(|(a, &taken)| {
            let position = taken.filter(|_| of_this(a) != taken)?;
            let host = &self.members[a.launched].host;
            Some(format!("; rank {} on {host} takes position {position}", a.launched))
        });
        words.collect::<Vec<_>>().concat()
    }

    /// Returns the refusal that ends this launch, because the error `ended` prevents recovery in place. If ranks were lost, and a
    /// restart may succeed, the refusal says that a restart can resume from memory. A supervisor then restarts the run, with new
    /// nodes and ranks.
    pub fn gives_up(&self, ended: Refusal) -> Refusal {
        let restartable = matches!(ended.exit, Exit::Unrecoverable | Exit::NoSharedMemory);
        if !self.has_lost || !restartable {
            return ended;
        }
        self.resumable(&ended.why)
    }

    /// Returns the refusal that ends this launch because too few ranks are left. A restart may succeed.
    pub fn too_few(&self, left: usize, needed: usize) -> Refusal {
        self.resumable(&format!("{left} ranks are left, and the grid needs {needed}"))
    }

    fn resumable(&self, why: &str) -> Refusal {
        let why = format!(
            "The run cannot be recovered in place: {why}\nThe memory is kept; the same command resumes from it"
        );
        self.end(Exit::Stopped, &why)
    }

    /// Returns the refusal that ends this launch, with the notice of the last loss. Without a supervisor, the exit status is
    /// `alone`. With a supervisor, it is [`Exit::Environment`].
    fn end(&self, alone: Exit, why: &str) -> Refusal {
        let exit = if own_run_id().is_some() { Exit::Environment } else { alone };
        let notice = self.notice.as_ref().map(|n| format!("{n}. ")).unwrap_or_default();
        Refusal::new(exit, format!("{notice}{why}"))
    }
}

/// Lists the lost ranks that are in every one of `lists`, the ranks' lists of unreported losses. A loss that could not be
/// reported before the next loss is reported together with the next loss. An idle rank's list may contain reported losses,
/// because an idle rank does not learn of reports.
fn untold(lists: &[&[usize]]) -> Vec<usize> {
    let is_in_all = |rank: &usize| lists.iter().all(|list| list.contains(rank));
    lists[0].iter().copied().filter(is_in_all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_nobody_told_is_told_with_the_next() {
        // Only one loss so far.
        assert_eq!(untold(&[&[4], &[4]]), [4]);
        // In the first case, no rank reported the first loss before the next one. In the other cases it was reported, but an
        // idle rank does not know that.
        assert_eq!(untold(&[&[4, 5], &[4, 5]]), [4, 5]);
        assert_eq!(untold(&[&[4, 5], &[5]]), [5]);
        assert_eq!(untold(&[&[5], &[4, 5]]), [5]);
    }

    #[test]
    fn only_what_a_restart_can_mend_ends_resumable() {
        // A loss before the first unfinished test of a sweep counts, too.
        let mut history =
            RecoveryHistory { losses: 1, has_lost: true, ..RecoveryHistory::default() };
        history.comes_to(2);
        for exit in Exit::ALL {
            let ended = history.gives_up(Refusal::new(exit, "why"));
            let restartable = matches!(exit, Exit::Unrecoverable | Exit::NoSharedMemory);
            assert_eq!(ended.exit, if restartable { Exit::Stopped } else { exit });
            let before = RecoveryHistory::default().gives_up(Refusal::new(exit, "why"));
            assert_eq!(before, Refusal::new(exit, "why"), "nobody was lost");
        }
    }

    #[test]
    fn a_part_is_of_one_test() {
        let mut history = RecoveryHistory { losses: 2, ..RecoveryHistory::default() };
        history.known.part.position = Some(3);
        history.comes_to(0);
        assert_eq!((history.losses, history.known.part.position), (2, Some(3)));
        assert!(!history.is_between_tests(|_| false) && history.is_between_tests(|test| test == 0));
        history.comes_to(1);
        assert_eq!((history.losses, history.known.part.position), (0, None));
        assert!(history.is_between_tests(|_| false));
        history.known.saved = Some(1);
        assert!(!history.is_between_tests(|test| test == 0) && history.is_between_tests(|_| true));
        // A rank that took part in the last test knows whether anything of it was saved.
        let part = |test, position| TestPart { test, position, members: Vec::new() };
        let (idle, taken) = (part(1, None), part(1, Some(2)));
        assert_eq!(last_saved([(&idle, None), (&taken, Some(0))].into_iter()), Some(0));
        assert_eq!(last_saved([(&idle, None), (&taken, Some(1))].into_iter()), Some(1));
        assert_eq!(last_saved([(&idle, None), (&part(0, Some(2)), Some(0))].into_iter()), Some(1));
        assert_eq!(last_saved(std::iter::empty()), None);
        assert!(!RecoveryHistory::default().is_between_tests(|_| true), "nothing was begun");
    }
}

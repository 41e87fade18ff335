//! An attempt of the run: its launch, the judgement of its end, and the decision about the next attempt.
//!
//! The restart loop calls [`Supervisor::launch`] and [`Supervisor::see_through`] in turn until a step ends the run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;

use super::watching::new_watch;
use super::{AttemptState, Supervisor, over};
use crate::base::clock::Instant;
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::judge::ending::{
    End, Facts, Next, STATUS_ENVIRONMENT, STATUS_LOSS, STATUS_RESUMABLE, finished_words, verdict,
};
use crate::supervise::judge::policy::{Attempt, next_attempt};
use crate::supervise::judge::ranks::Breakage;
use crate::supervise::remember::events::{Event, FaultKind};
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::{Announced, Job, LastWords, is_over};
use crate::supervise::start::launch::{Launch, LaunchPlan, launch};
use crate::supervise::start::room::room;
use crate::supervise::tell::status::Activity;

/// Exit statuses of the benchmark for unusable input or environment. A launcher that fails may end with the same status.
const DOUBTFUL: [i32; 3] = [1, 2, 6];

/// Exit statuses of the benchmark if there is no room for its memory.
const ROOM_REFUSED: [i32; 2] = [1, 5];

/// Number of refusals for lack of room, in a row, after which nodes must show that they have room. At the first refusal killed
/// processes may still have been freeing memory.
const REFUSALS_THAT_ASK: u32 = 2;

/// Pause before another try, if a launch has failed because of a full disk or another problem of this machine.
const START_PAUSE: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Returns the plan for a launch of the benchmark on these hosts, with its files in `dir`.
    pub(super) fn launch_plan<'p>(
        &'p self,
        hosts: &'p [Host],
        dir: &'p std::path::Path,
        attempt: u32,
    ) -> LaunchPlan<'p> {
        let settings = self.settings;
        let cores = |name: &str| {
            let node = &self.cluster.nodes[self.cluster.find(name)?];
            node.facts.as_ref().map(|(facts, _)| facts.cores)
        };
        LaunchPlan {
            tool: &settings.tool,
            room: room(hosts, &settings.hosts, cores),
            hosts,
            ranks: settings.ranks,
            run_id: &self.state.run_id,
            attempt,
            command: &settings.command,
            env: &self.env,
            extra: &settings.extra,
            shell: &settings.shell,
            dir,
            as_root: nix::unistd::geteuid().is_root(),
        }
    }

    /// Starts the next attempt. If the launcher cannot be started, the first attempt fails with an error. A later start is
    /// repeated, because the memory of earlier ranks would be lost otherwise. The wait for room on the disk has no limit; for any
    /// other failure the limit is the startup timeout. Returns `None` after a request to stop, or after the loss of one of the
    /// nodes.
    pub(super) fn launch(&mut self, hosts: &[Host]) -> anyhow::Result<Option<Job>> {
        let settings = self.settings;
        let attempt = self.state.attempts + 1;
        if let (None, Some(with)) = (&self.state.rounding, self.ranks.rounding.clone()) {
            self.note(Event::Rounding { with })?;
        }
        let dir = std::path::absolute(settings.folder.path())?;
        let made = launch(&self.launch_plan(hosts, &dir, attempt));
        let startup_timeout = Duration::from_millis(settings.thresholds.startup_timeout_ms);
        let dir = dir.display();
        let mut warned = false;
        let mut refused_since = None;
        let job = loop {
            let error = match self.start_job(&made, attempt)? {
                Ok(job) => break job,
                Err(error) => error,
            };
            if attempt == 1 {
                return Err(error).with_context(|| format!("cannot start {}", made.argv[0]));
            }
            let full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
            if !std::mem::replace(&mut warned, true) {
                let what = if full {
                    "waiting for room on the disk to start the next attempt"
                } else {
                    "the next attempt cannot be started; it is tried again"
                };
                self.print(&format!("{dir}: {error}; {what}"));
            }
            if full {
                refused_since = None;
            } else if refused_since.get_or_insert_with(Instant::now).elapsed() >= startup_timeout {
                let why = format!(
                    "the job could not be restarted for {} s: {dir}: {error}",
                    startup_timeout.as_secs()
                );
                return over(STATUS_RESUMABLE, why);
            }
            self.idle(START_PAUSE)?;
            if self.any_lost(hosts) || self.is_to_halt()?.is_some() {
                return Ok(None);
            }
        };
        self.note(Event::Launched { attempt, launcher: job.id, hosts: hosts.to_vec() })?;
        self.attempt = AttemptState::default();
        self.room.is_doubted = false;
        Ok(Some(job))
    }

    /// Starts a launcher. Writing its files, and its start, may have to wait for the folder's disk.
    pub(super) fn start_job(
        &mut self,
        launch: &Launch,
        attempt: u32,
    ) -> anyhow::Result<std::io::Result<Job>> {
        let (launch, folder) = (launch.clone(), self.settings.folder.clone());
        let io_thread = self.io_thread.clone();
        self.in_folder(move || Job::start(&launch, &folder, attempt, &io_thread))
    }

    /// Returns the facts from which an attempt's end is judged.
    pub(super) fn facts(&self, job: &Job, zero_counts: bool) -> Facts {
        Facts {
            announced: job.files.announced(),
            announces: self.settings.benchmark.progress_shows,
            refused: job.files.refused,
            zero_counts,
            halt: self.halt.as_ref().map(|h| h.why.clone()),
            output: self.settings.folder.output(self.state.attempts).display().to_string(),
            attempt: self.state.attempts,
        }
    }

    /// Watches an attempt to its end and acts on the end.
    pub(super) fn see_through(&mut self, mut job: Job) -> anyhow::Result<()> {
        self.status.attempt = self.state.attempts;
        self.display.echo.again();
        self.watch = new_watch(self.settings, &self.cluster);
        let end = self.watch(&mut job)?;
        self.hear_out(&mut job)?;
        job.forward(&mut self.display.echo);
        let zero_counts =
            !matches!(end, End::Exit { code: Some(0), .. }) || self.believes_zero()?;
        match verdict(end, &self.facts(&job, zero_counts)) {
            Next::Over { code, why, all_done } => {
                self.finish(&mut job, code, all_done)?;
                over(code, why)
            }
            Next::Resumable { why } => {
                self.stop(Some(&mut job), false)?;
                over(STATUS_RESUMABLE, why)
            }
            Next::Fault { mut fault, code } => {
                let rank_iteration = self.complete(&mut fault, &job)?;
                self.recover(&mut job, fault, rank_iteration, code)
            }
        }
    }

    /// Completes a fault with the ranks' last progress and the node that the launcher names. Returns the iteration that the dead
    /// rank had reached, if the fault has a position and the rank was in the same test.
    fn complete(&mut self, fault: &mut Breakage, job: &Job) -> anyhow::Result<Option<u64>> {
        if !matches!(fault.kind, FaultKind::RankDied | FaultKind::LauncherGone) {
            return Ok(None);
        }
        (fault.test, fault.iteration) = self.last_look((fault.test, fault.iteration))?;
        let LastWords { first_to_end, complaint, .. } = self.meanwhile(job.last_words())?;
        // The rank that ended first may have ended before its first heartbeat, so the launcher's message also shows that ranks
        // were started.
        self.attempt.ranks_seen |= first_to_end.is_some();
        let first = first_to_end.and_then(|name| self.cluster.find_by_own_name(&name));
        if first.is_some() && first != fault.node {
            (fault.node, fault.position) = (first, None);
        }
        if fault.kind == FaultKind::LauncherGone && !complaint.is_empty() {
            fault.detail = format!("{}: {complaint}", fault.detail);
        }
        let came_to = fault.position.and_then(|position| self.watch.ranks.seen_at(position));
        let own = came_to.filter(|(test, _)| *test == fault.test);
        Ok(own.map(|(_, iteration)| iteration))
    }

    /// Notes a fault, ends the rest of the job and decides about the next attempt. `code` is the launcher's status.
    fn recover(
        &mut self,
        job: &mut Job,
        fault: Breakage,
        rank_iteration: Option<u64>,
        code: Option<i32>,
    ) -> anyhow::Result<()> {
        let Breakage { kind, failed_ms, mut node, mut position, test, iteration, detail } = fault;
        // A refusal of the benchmark is no fault of a node, even if the launcher names a node.
        let refused = job.files.refused.map(i32::from).filter(|refused| code == Some(*refused));
        if refused.is_some() {
            (node, position) = (None, None);
            self.attempt.ranks_seen = true;
        }
        self.status.activity = Activity::Recovering;
        let computed = self.state.progress.computed;
        self.note(Event::Fault {
            fault: self.state.next_fault(),
            attempt: self.state.attempts,
            kind,
            failed_ms,
            node: node.map(|at| self.cluster.nodes[at].host.name.clone()),
            position,
            test,
            iteration,
            rank_iteration,
            ranks_seen: self.attempt.ranks_seen,
            detail: detail.clone(),
        })?;
        // A node whose connection ended is called once more while the run is being stopped.
        if matches!(kind, FaultKind::NodeUnresponsive | FaultKind::NodeRebooted)
            && let Some(at) = node
        {
            self.lose(at, &kind.words())?;
        }
        let lost_before = self.state.lost.len();
        self.stop(Some(job), false)?;
        // The benchmark may have completed all tests before its ranks were ended.
        self.look_once_more(job)?;
        let completed = match job.files.announced() {
            Announced::All { status } => Some(status),
            _ if self.settings.benchmark.progress_shows => None,
            // Another program announces nothing, but its launcher may have ended by itself.
            _ => {
                let zero_counts = self.believes_zero()?;
                self.recorded_end(zero_counts)?
            }
        };
        if let Some(status) = completed {
            self.note_recovered(job)?;
            self.finish(job, status, true)?;
            return over(status, format!("{}; afterwards {detail}", finished_words(status)));
        }
        if self.halt.is_some() {
            return over(STATUS_RESUMABLE, format!("halted, after a fault ({detail})"));
        }
        // If the benchmark refuses before anything was computed, and every node is well, it would refuse again. Another program
        // cannot report a refusal, so its status counts.
        let doubtful = code.filter(|code| DOUBTFUL.contains(code) && !computed);
        if let Some(code) = doubtful
            && (refused.is_some() || !self.settings.benchmark.progress_shows)
            && self.state.lost.len() == lost_before
        {
            return over(code as u8, detail);
        }
        // If nothing was computed, nothing is lost by ending the run. If the status is doubtful, or if no rank was seen, the
        // launcher cannot be used. If ranks began to work and died, the launcher is not the cause.
        let hopeless = doubtful.is_some() || !computed && !self.ranks.seen;
        self.prepare_next(refused, hopeless.then_some(detail))
    }

    /// Prepares the next attempt, or ends the run if faults repeat. `refused` is the status with which the benchmark refused to
    /// continue. `hopeless` is the last fault, if nothing has been computed and the launcher seems unusable.
    fn prepare_next(
        &mut self,
        refused: Option<i32>,
        hopeless: Option<String>,
    ) -> anyhow::Result<()> {
        let no_room = refused.is_some_and(|code| ROOM_REFUSED.contains(&code));
        self.room.refusals = if no_room { self.room.refusals + 1 } else { 0 };
        let replaceable = |node: &str| self.has_spare_for(node);
        let history = self.state.faults_that_count();
        let attempt = match next_attempt(history, self.settings.max_restarts, &replaceable) {
            // The history looks like the same fault several times, but the nodes have not been checked for room yet.
            Attempt::Stop { .. } if (1..=REFUSALS_THAT_ASK).contains(&self.room.refusals) => {
                Attempt::Relaunch { after_ms: 0 }
            }
            attempt => attempt,
        };
        match attempt {
            Attempt::Stop { why } => match (hopeless, refused) {
                (Some(detail), _) => over(
                    STATUS_ENVIRONMENT,
                    format!(
                        "several attempts failed before anything was computed; the last one: {detail}"
                    ),
                ),
                (None, Some(code)) => over(
                    STATUS_LOSS,
                    format!(
                        "the benchmark refuses to resume (status {code}): its message above gives the reason; once the cause is \
                         removed, the same command continues the run"
                    ),
                ),
                (None, None) => over(STATUS_LOSS, why),
            },
            Attempt::Without { node, why } => match self.cluster.find(&node) {
                Some(at) => self.lose(at, &why),
                None => Ok(()),
            },
            Attempt::Relaunch { after_ms } => {
                if after_ms > 0 {
                    self.note(Event::BackOff { delay_ms: after_ms })?;
                    let pause = Duration::from_millis(after_ms);
                    self.idle_unless(pause, |this| Ok(this.is_to_halt()?.is_some()))?;
                }
                self.room.is_doubted = self.room.refusals >= REFUSALS_THAT_ASK;
                Ok(())
            }
        }
    }

    /// Returns the nodes whose memory of this run is useless once the run's processes have ended. If the run is `over`, or if the
    /// memory only shows progress, these are all nodes that the run was on. Otherwise there are none.
    pub(super) fn to_clean(&self, over: bool) -> BTreeSet<String> {
        if over || self.settings.shows_only_progress() || sabotaged(Sabotage::CleansEarly) {
            self.state.ran_on.clone()
        } else {
            BTreeSet::new()
        }
    }

    /// Ends a run whose status is `code`. If the run is `over`, or if `code` means that all tests are done, none of its memory is
    /// needed any more.
    pub(super) fn finish(&mut self, job: &mut Job, code: u8, over: bool) -> anyhow::Result<()> {
        self.look_once_more(job)?;
        job.forward_rest(&mut self.display.echo);
        let over = over || is_over(i32::from(code));
        // Ranks remove their memory at the end of a run, except the memory of ranks that were replaced in place.
        let unreachable = self.stop(Some(job), over)?;
        let cleared = if over { self.clear_returned()? } else { BTreeSet::new() };
        let unseen = self.state.ran_on.intersection(&unreachable);
        let unseen: Vec<&String> = unseen.filter(|node| !cleared.contains(*node)).collect();
        if let Some(name) = &self.settings.job
            && !unseen.is_empty()
            && over
        {
            let command = |node: &str| {
                let facts =
                    self.cluster.find(node).and_then(|at| self.cluster.nodes[at].facts.as_ref());
                self.settings.clean_command(name, facts.map(|(facts, _)| facts.host.as_str()))
            };
            // If each node has its own storage, each node needs its own command.
            let mut commands: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for node in &unseen {
                commands.entry(command(node)).or_default().push(node);
            }
            let commands =
                commands.iter().map(|(command, on)| format!("on {}: {command}", on.join(", ")));
            let words = format!(
                "not reached: {}. These commands remove the files of this run there: {}",
                unseen.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(", "),
                commands.collect::<Vec<_>>().join("; ")
            );
            self.print(&words);
        }
        Ok(())
    }
}

//! The restart loop: keeps a run alive from its start to its result, whichever node fails and whenever it fails.
//!
//! `skt-hpl run` calls [`supervise`]. Every step is written to the journal before it is taken. So this process, too, may die at
//! any time: the same command takes the running job over, or recovers the run. All judgements are pure functions in `judge`. This
//! file has the sequence of the steps; the other files of this folder carry them out.

mod attempt;
mod choosing;
mod contact;
mod halting;
mod leftovers;
mod noting;
mod opening;
mod settings;
mod stopping;
mod telling;
mod trying;
mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use thiserror::Error;

pub use self::choosing::UNNAMED;
use self::contact::Contact;
use self::halting::{Halt, Requests};
pub use self::leftovers::ASKED_IN_VAIN;
use self::opening::Run;
pub use self::settings::{Benchmark, Settings};
use self::telling::Display;
use crate::base::clock::{Instant, steady_ms};
use crate::base::faults::{Sabotage, sabotaged};
use crate::supervise::judge::ending::{Next, STATUS_ENVIRONMENT, STATUS_RESUMABLE, verdict};
use crate::supervise::judge::fitness::Need;
use crate::supervise::judge::nodes::Nodes;
use crate::supervise::judge::watch::Watch;
use crate::supervise::remember::events::{Event, ProcessId, Record};
use crate::supervise::remember::io_thread::IoThread;
use crate::supervise::remember::journal::RunState;
use crate::supervise::remember::journal_writer::JournalWriter;
use crate::supervise::start::job::{Job, end_of};
use crate::supervise::talk::cluster::{Cluster, News};
use crate::supervise::talk::processes::is_alive;
use crate::supervise::tell::status::{Activity, Status};
use crate::supervise::tell::{say, say_on, timeline, voice};

/// Time limit for writing the last records and the last status.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// Time limit for the first heartbeat of every node after the first calls.
const FIRST_BEATS: Duration = Duration::from_millis(500);

/// Time limit for ending the processes left by an earlier job, if the run is stopped during the first calls.
const LEFT_TIMEOUT: Duration = Duration::from_secs(4);

struct Supervisor<'a> {
    settings: &'a Settings,
    /// Environment variables of every rank.
    env: Vec<(String, String)>,
    journal_writer: JournalWriter,
    /// Thread that reads and writes the files of the run's folder, except the journal and the status.
    io_thread: IoThread,
    /// News that came while the supervisor waited for the disk, except heartbeats.
    backlog: VecDeque<(usize, News)>,
    records: Vec<Record>,
    state: RunState,
    cluster: Cluster,
    nodes: Nodes,
    contact: Contact,
    own: ThisProcess,
    status: Status,
    display: Display,
    halt: Option<Halt>,
    requests: Requests,
    ranks: RanksKnown,
    /// Number of the last attempt when this supervisor began, or 0 if there was none.
    began_after: u32,
    attempt: AttemptState,
    watch: Watch,
    room: RoomDoubts,
}

/// This process and its machine.
struct ThisProcess {
    /// Digest of the program.
    binary: String,
    /// Boot identity of the machine.
    boot: String,
}

/// Facts about the ranks that stay valid after an attempt.
#[derive(Default)]
struct RanksKnown {
    /// Bytes of shared memory of a rank, given or measured in an attempt.
    bytes: Option<u64>,
    /// Whether a launcher of this run has started ranks.
    seen: bool,
    /// Positions of each node's ranks, by the node's name, as far as they are known. If a survivor is to take the ranks of a lost
    /// node, `policy` keeps members of one group apart.
    members: BTreeMap<String, BTreeSet<u32>>,
    /// Arithmetic of the run, once nodes have reported theirs.
    rounding: Option<String>,
}

/// State that is reset at each launch.
#[derive(Default)]
struct AttemptState {
    /// Whether the launcher has started ranks.
    ranks_seen: bool,
    computing_since: Option<(Instant, u64)>,
    /// Replacements reported since the launch.
    replaced: Vec<(String, String)>,
    /// Working nodes found slow, each with the reason.
    slow: BTreeMap<String, String>,
    /// Whether the launcher had ended before this supervisor took over. Losses of nodes before the takeover may be unknown.
    ended_unseen: bool,
}

/// State of the check whether the nodes have room for the run's memory.
#[derive(Default)]
struct RoomDoubts {
    /// Largest need of any working node.
    most: Option<Need>,
    /// Number of attempts in a row in which the benchmark refused to continue, possibly because memory was short.
    refusals: u32,
    /// Set after two such refusals in a row. Before the next launch working nodes must then show that they have room.
    is_doubted: bool,
}

/// The end of the run. Any step can return it as an error, which ends all calling steps.
#[derive(Debug, Error)]
#[error("status {code}: {why}")]
struct Over {
    code: u8,
    why: String,
}

/// Ends the run with status `code`, for the reason `why`.
fn over<T>(code: u8, why: impl Into<String>) -> anyhow::Result<T> {
    Err(Over { code, why: why.into() }.into())
}

/// Supervises a run to its end and returns the exit status.
pub fn supervise(settings: &Settings) -> anyhow::Result<u8> {
    let result = supervise_to_the_end(settings);
    voice::all_said();
    let Some(why) = voice::lost() else { return result };
    // A lost output does not change the end of a run that has failed for another reason.
    let ended_well = matches!(result, Ok(0));
    let status = ended_well.then(|| format!("; the exit status is {STATUS_ENVIRONMENT}"));
    say!(
        "skt-hpl run: part of the benchmark's output could not be written to standard output: {why}; the files out.* in {} \
         contain all of it{}",
        settings.folder.path().display(),
        status.unwrap_or_default()
    );
    voice::all_said();
    if ended_well { Ok(STATUS_ENVIRONMENT) } else { result }
}

fn supervise_to_the_end(settings: &Settings) -> anyhow::Result<u8> {
    let run = Run::open(settings)?;
    let resumed = run.resumed;
    let cluster = run.cluster(settings)?;
    let mut this = Supervisor::new(settings, run, cluster)?;
    if !resumed {
        this.note_start()?;
    }
    if this.state.from_scratch {
        // From here on the journal records that the old run was given up.
        let _ = std::fs::remove_file(settings.folder.given_up());
    }
    // From here on the status is written regularly. It shows a supervisor to other hosts, on which the journal's lock may not be
    // visible.
    this.write_status();
    let Err(ended) = this.run(resumed);
    this.finish_line();
    match ended.downcast::<Over>() {
        Ok(Over { code, why }) => this.report_end(code, &why),
        Err(error) => {
            // A running job is not ended: the same command takes it over.
            say!("skt-hpl run: {error:#}");
            this.journal_writer.settle(LAST_WRITES);
            Ok(STATUS_ENVIRONMENT)
        }
    }
}

impl Supervisor<'_> {
    /// Supervises the run from the first calls to its end.
    fn run(&mut self, resumed: bool) -> anyhow::Result<Infallible> {
        // A job that has ended needs no node any more.
        let runs =
            self.knows_job()? && self.recorded_end(!self.settings.tool.hides_losses())?.is_none();
        let failed = self.first_contact(runs)?;
        self.status.doing.clear();
        let Some(failed) = failed else { return self.halted_at_first(resumed) };
        let (mut left, mut adopted) = (None, false);
        if resumed {
            let known = self.knows_job()?;
            self.attempt.ended_unseen = !self.state.running.is_some_and(is_alive);
            // A node that is being called again after its connection ended counts as well.
            let is_well = |at: usize| self.nodes.knows(at) && !failed.contains_key(&at);
            let mut placed = self.state.placed.iter().map(|host| self.cluster.find(&host.name));
            let all_well =
                placed.all(|at| at.is_some_and(is_well)) && !sabotaged(Sabotage::NoAdoption);
            let launcher = self.state.running.filter(|_| known && all_well);
            adopted = launcher.is_some();
            left = self.left_job(launcher)?;
            self.note_takeover(adopted)?;
        }
        self.lose_all(failed)?;
        // A heartbeat reports the memory on a node, which the choice of nodes needs.
        self.await_beats(self.cluster.up(), FIRST_BEATS, |_, _| ())?;
        self.learn_rounding();
        self.print_findings();
        if let Some(job) = left.take_if(|_| adopted) {
            self.see_through(job)?;
        } else if resumed {
            self.end_left_job(left)?;
        }
        loop {
            self.settle_losses()?;
            let hosts = self.choose_nodes()?;
            if self.state.attempts == 0 && self.settings.trial {
                self.status.doing = "trying whether MPI starts".to_owned();
                let well = self.try_mpi(&hosts)?;
                self.status.doing.clear();
                if !well {
                    continue;
                }
            }
            if let Some(job) = self.launch(&hosts)? {
                self.see_through(job)?;
            }
        }
    }

    /// Returns whether the last attempt's launcher runs, or has written its status.
    fn knows_job(&mut self) -> anyhow::Result<bool> {
        let exit = self.settings.folder.exit(self.state.attempts);
        match self.state.running {
            Some(id) => self.in_folder(move || is_alive(id) || exit.exists()),
            None => Ok(false),
        }
    }

    /// Returns the last attempt's job, if there has been an attempt. `launcher` is given if the job is to be watched further.
    /// Otherwise losses that no supervisor has noted are noted here, because they happened before the takeover.
    fn left_job(&mut self, launcher: Option<ProcessId>) -> anyhow::Result<Option<Job>> {
        if self.state.attempts == 0 {
            return Ok(None);
        }
        let nobody = ProcessId { pid: 0, started: 0 };
        let (folder, attempt) = (&self.settings.folder, self.state.attempts);
        let mut job = Job::adopt(launcher.unwrap_or(nobody), folder, attempt, &self.io_thread);
        // A supervisor that noted a fault, or stopped the job, noted the losses before that.
        if launcher.is_none() && !self.state.history.stopping && self.state.running.is_some() {
            self.hear_out(&mut job)?;
        }
        Ok(Some(job))
    }

    /// Ends the rest of a job that is not watched further. Ends the run if the job had completed all tests.
    fn end_left_job(&mut self, left: Option<Job>) -> anyhow::Result<()> {
        if let Some(mut job) = left {
            let zero_counts = self.believes_zero()?;
            if let Some((code, why, all_done)) = self.completed(&mut job, zero_counts)? {
                self.finish(&mut job, code, all_done)?;
                return over(code, why);
            }
        }
        // No process of the old job may run when the new job starts.
        self.stop(None, false)?;
        self.leave_unnamed()
    }

    /// Returns status, reason and whether all tests are done, if the job has ended by itself while no supervisor ran.
    fn completed(
        &mut self,
        job: &mut Job,
        zero_counts: bool,
    ) -> anyhow::Result<Option<(u8, String, bool)>> {
        let Some(code) = self.recorded_end(zero_counts)? else { return Ok(None) };
        // The job may have ended after its files were last read.
        self.look_once_more(job)?;
        let end = self.watch.exit(steady_ms(), Some(code.into()));
        match verdict(end, &self.facts(job, true)) {
            Next::Over { code, why, all_done } => {
                // The job may have recovered in place after the last supervisor had noted a fault.
                self.note_recovered(job)?;
                Ok(Some((code, why, all_done)))
            }
            Next::Resumable { .. } | Next::Fault { .. } => Ok(None),
        }
    }

    fn note_takeover(&mut self, adopted: bool) -> anyhow::Result<()> {
        self.note(Event::TookOver {
            supervisor_host: self.status.supervisor_host.clone(),
            supervisor_pid: std::process::id(),
            adopted,
        })
    }

    /// Ends a run that was stopped on request during the first calls. Either no job that could save is known, or the job could
    /// not be reached within the time of a halt. Nodes that have not answered yet are not declared lost. On nodes that have
    /// answered, the rest of a job is ended.
    fn halted_at_first(&mut self, resumed: bool) -> anyhow::Result<Infallible> {
        let mut ended = None;
        if resumed {
            let left = self.left_job(None)?;
            self.note_takeover(false)?;
            if let Some(mut job) = left {
                ended = self.completed(&mut job, !self.settings.tool.hides_losses())?;
                job.forward_rest(&mut self.display.echo);
            }
            self.cluster.end_run(LEFT_TIMEOUT);
            self.end_here()?;
        }
        let halt = self.halt.as_ref().expect("a request has ended the first calls");
        match ended {
            Some((code, why, _)) => over(code, why),
            None => over(STATUS_RESUMABLE, halt.why.as_str()),
        }
    }

    /// Returns the status with which the last attempt has completed all tests, according to its files. Returns `None` if it has
    /// not. `zero_counts` tells whether status 0 of the launcher means success.
    fn recorded_end(&mut self, zero_counts: bool) -> anyhow::Result<Option<u8>> {
        let (folder, attempt) = (self.settings.folder.clone(), self.state.attempts);
        self.in_folder(move || end_of(&folder, attempt, zero_counts))
    }

    /// Notes and reports the run's end, and returns its status.
    fn report_end(&mut self, code: u8, why: &str) -> anyhow::Result<u8> {
        self.note(Event::Finished { code, why: why.to_owned() })?;
        self.status.activity = Activity::Finished;
        self.status.exit_code = Some(code);
        self.status.why = why.to_owned();
        let now = steady_ms();
        self.status.wall = Some(timeline::wall_time(&self.records, now));
        self.write_status();
        self.journal_writer.settle(LAST_WRITES);
        if let Some(why) = self.journal_writer.trouble() {
            say!("skt-hpl run: {why}: the end of the journal is not written");
        }
        let settings = self.settings;
        let printed = settings.folder.output(self.state.attempts);
        // A run that was stopped has no results to report.
        let results = if code == STATUS_RESUMABLE {
            Vec::new()
        } else {
            let output = self.in_folder(move || std::fs::read(printed).unwrap_or_default())?;
            timeline::results(&String::from_utf8_lossy(&output))
        };
        say_on!("{}", timeline::report(&self.records, &results, now));
        say!("skt-hpl run: status {code}: {why}");
        let again =
            if settings.discard { "the same command without --new" } else { "the same command" };
        if code == STATUS_RESUMABLE && !settings.benchmark.saves {
            say!("skt-hpl run: the run saves no checkpoints, so {again} begins from scratch");
        } else if code == STATUS_RESUMABLE {
            say!("skt-hpl run: memory is kept on the nodes; {again} continues the run");
            if let Some(dir) = &settings.benchmark.level2 {
                say!("skt-hpl run: started on other nodes, the run resumes from {}", dir.display());
            }
        } else if self.state.can_go_on() {
            say!(
                "skt-hpl run: the remaining memory is kept on the nodes; {again} continues the run, for instance when lost nodes \
                 answer again; --new gives the run up"
            );
        }
        Ok(code)
    }
}

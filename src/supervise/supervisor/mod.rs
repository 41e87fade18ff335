//! The restart loop: keeps a run alive from its start to its result, whatever node dies when.
//!
//! `skt-hpl run` calls [`supervise`]. Every step is written to the journal before it is taken, so that this
//! process, too, may die anywhere: the same command takes the running job over, or recovers it. All
//! judgement is elsewhere and pure (`judge`); here are the steps, and beside this file what they are made of.

mod choosing;
mod contact;
mod halting;
mod leftovers;
mod noting;
mod settings;
mod stopping;
mod telling;
mod trying;
mod watching;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use self::halting::{Halt, OldRequest, Requests};
pub use self::settings::Settings;
use self::telling::Written;
use self::trying::Tried;
use crate::supervise::judge::ending::{
    End, Facts, Next, STATUS_ENVIRONMENT, STATUS_LOSS, STATUS_RESUMABLE, verdict,
};
use crate::supervise::judge::fitness::Need;
use crate::supervise::judge::logins::Logins;
use crate::supervise::judge::members::Members;
use crate::supervise::judge::nodes::{Limits, Loss, Nodes};
use crate::supervise::judge::policy::{Attempt, next_attempt};
use crate::supervise::judge::ranks::Breakage;
use crate::supervise::remember::clerk::{Answer, Clerk};
use crate::supervise::remember::events::{Event, FaultKind, ProcessId, Record, steady_ms};
use crate::supervise::remember::journal::{Journal, RunState};
use crate::supervise::remember::scribe::Scribe;
use crate::supervise::signals::listen_to_signals;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::{Complaint, Job, end_of, is_over};
use crate::supervise::start::launcher::{LaunchPlan, launch};
use crate::supervise::start::room::room;
use crate::supervise::talk::agent::{binary_digest, boot};
use crate::supervise::talk::cluster::{Cluster, News};
use crate::supervise::talk::processes::end_run;
use crate::supervise::talk::progress::Role;
use crate::supervise::tell::echo::Echo;
use crate::supervise::tell::status::{self, Activity, Lines, Status};
use crate::supervise::tell::{say, say_on, timeline, voice};

/// Exit statuses of the benchmark, for input or means that will not do, that a failing launcher gives too.
const DOUBTFUL: [i32; 3] = [1, 2, 6];

/// Those of a benchmark that finds no room for its memory, in one way or another.
const ROOM_REFUSED: [i32; 2] = [1, 5];

/// So many such refusals running have nodes asked for room: the first time, what was killed may still have been letting its
/// memory go.
const REFUSALS_THAT_ASK: u32 = 2;

/// How long the last records and the last status may take to be written.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// How long to wait before nodes are asked again of which none has answered.
const OUTAGE_PAUSE: Duration = Duration::from_secs(3);

/// How long what a broken job has left may take to end where a run is stopped before it has begun.
const LEFT_PATIENCE: Duration = Duration::from_secs(4);

/// How often a launch is tried again for which a disk had no room, or that this machine refused.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Whether a write failed for want of room, which may come again.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// What has come of a launch.
enum Launched {
    Job(Box<Job>),
    /// Meanwhile somebody asked to stop, or one of its nodes was lost: choose again.
    No,
    End((u8, String)),
}

struct Supervisor<'a> {
    settings: &'a Settings,
    /// Variables that every rank sees.
    env: Vec<(String, String)>,
    scribe: Scribe,
    /// Touches the folder's other files.
    clerk: Clerk,
    /// Told that records cannot be written.
    unwritten: bool,
    /// News that came while a record was on its way to disk.
    backlog: VecDeque<(usize, News)>,
    records: Vec<Record>,
    state: RunState,
    cluster: Cluster,
    nodes: Nodes,
    logins: Logins,
    called_at_once: usize,
    /// Nodes are called for the first time.
    calls_first: bool,
    /// Which of them are called no more meanwhile, and why.
    given_up: BTreeMap<usize, String>,
    /// When it was last judged whether nodes are well.
    weighed: Instant,
    /// Nodes judged lost of which nothing has been made yet.
    losses: Vec<Loss>,
    /// Nodes that speak again after they were silent.
    heard_again: Vec<usize>,
    binary: String,
    /// This machine's own.
    boot: String,
    /// Beginning of the watchdog's time.
    zero: Instant,
    status: Status,
    written: Written,
    told: Option<Instant>,
    line_shown: bool,
    halt: Option<Halt>,
    requests: Requests,
    /// Learned from the first incarnation where not given.
    rank_bytes: Option<u64>,
    computing_since: Option<(Instant, u64)>,
    /// A launcher of this run has got as far as starting ranks.
    ranks_seen: bool,
    /// So has that of this incarnation.
    ranks_seen_now: bool,
    beaten: Instant,
    /// Replacements told since the last launch.
    replaced: Vec<(String, String)>,
    /// Working nodes found slow, and how.
    slow: BTreeMap<String, String>,
    lines: Lines,
    /// Of each node's ranks, where others stand by and it is known who does.
    positions: Option<BTreeMap<usize, Vec<(u32, Role)>>>,
    /// What all incarnations have printed.
    echo: Echo,
    /// The most that any working node needs.
    most: Option<Need>,
    /// Which positions the ranks of each node have.
    members: Members,
    /// What the run computes with, as far as nodes have told.
    rounding: Option<String>,
    /// The last incarnation before this supervisor began.
    began_after: u32,
    /// How many incarnations running have ended as the benchmark refused to go on, and may have found no room.
    room_refusals: u32,
    /// That was so twice running: working nodes are asked for room before the next launch.
    doubts_room: bool,
}

/// Runs to the end and returns the exit status.
pub fn supervise(settings: &Settings) -> anyhow::Result<u8> {
    let result = supervise_to_the_end(settings);
    voice::all_said();
    let Some(why) = voice::lost() else { return result };
    // The last word on a run that has ended otherwise is not this.
    let ended_well = matches!(result, Ok(0));
    say!(
        "skt-hpl run: not all that the benchmark has printed could be written to standard output: {why}; files out.* in {} \
         have it{}",
        settings.folder.path().display(),
        if ended_well {
            format!("; that ends with status {STATUS_ENVIRONMENT}")
        } else {
            String::new()
        }
    );
    voice::all_said();
    if ended_well { Ok(STATUS_ENVIRONMENT) } else { result }
}

fn supervise_to_the_end(settings: &Settings) -> anyhow::Result<u8> {
    settings.folder.prepare().map_err(|why| anyhow!(why))?;
    // Before the journal is opened, which cuts off what has come of a record that another host is writing: there may be no lock
    // of its to be seen from here.
    if let Some(host) = status::written_elsewhere(&settings.folder) {
        bail!(
            "{}: another supervisor is at work on this run, on {host}: it writes {} just now. End it with `skt-hpl halt` (--state \
             if it is not the default), see `skt-hpl status`, or choose another --state folder",
            settings.folder.path().display(),
            settings.folder.status().display()
        );
    }
    // Once the journal is locked, `skt-hpl halt` means this supervisor.
    let before = OldRequest::of(&settings.folder);
    let (mut journal, mut records) = Journal::open(&settings.folder.journal())?;
    before.remove(&settings.folder);
    listen_to_signals()?;
    let clerk = Clerk::new()?;
    let mut state = RunState::replay(&records);
    if settings.discard || !state.can_go_on() {
        if !records.is_empty() {
            let anew = settings.discard && !state.finished.is_some_and(|code| is_over(code.into()));
            // Before its files go: whoever is interrupted here finds them again.
            if anew {
                leftovers::give_up(settings, &state, &clerk).map_err(|why| anyhow!(why))?;
                let name = state.job.as_deref().unwrap_or_default();
                let marked = std::fs::write(settings.folder.given_up(), name);
                marked.context("cannot note that the old run is given up")?;
            }
            settings
                .folder
                .set_aside(&state.run_id)
                .context("cannot set the old run's files aside")?;
        }
        journal.clear()?;
        records.clear();
        state = RunState::default();
    }
    state.go_on();
    let resumed = !records.is_empty();
    if resumed && (state.command != settings.command || state.ranks != settings.ranks) {
        bail!(
            "{} holds an unfinished run of another command ({} ranks: {}); give that command to go on with it, \
             another --state folder, or --new to give it up",
            settings.folder.path().display(),
            state.ranks,
            state.command.join(" ")
        );
    }
    if !resumed {
        state.run_id = fresh_run_id();
        // This command's doing, or that of one that came no further. What runs of other names have left is not given up.
        state.anew = std::fs::read_to_string(settings.folder.given_up())
            .is_ok_and(|job| settings.job.as_ref() == Some(&job));
    }

    // A resumed run goes on where it was; nodes newly named are further spares, and so are those that it has come to by an
    // earlier command, which this one need not name.
    let (hosts, mut spares) = if resumed {
        (state.hosts.clone(), state.spares.clone())
    } else {
        (settings.hosts.clone(), settings.spares.clone())
    };
    if resumed {
        let names = hosts.iter().chain(&spares).map(|host| host.name.clone());
        let mut known: BTreeSet<String> = names.collect();
        let named = settings.hosts.iter().chain(&settings.spares).cloned();
        spares
            .extend(named.chain(state.had_ranks()).filter(|host| known.insert(host.name.clone())));
    }
    let mut cluster = Cluster::new(
        settings.shell.clone(),
        settings.agent.clone(),
        &hosts,
        &spares,
        &state.run_id,
        // Where nothing is protected, the benchmark's ranks show their progress under the run's own name.
        if settings.shows_only_progress() {
            Some(state.run_id.clone())
        } else {
            settings.job.clone()
        },
    );
    let silence_ms = settings.thresholds.silence_ms;
    cluster.manner(settings.fanout, settings.beat_ms, silence_ms).map_err(anyhow::Error::msg)?;
    cluster.lonely_after(settings.lonely_ms);
    for name in &state.lost {
        if let Some(node) = cluster.find(name) {
            cluster.lose(node, "lost earlier in this run");
        }
    }
    let thresholds = &settings.thresholds;
    let names: Vec<String> = cluster.nodes.iter().map(|n| n.host.name.clone()).collect();
    let limits = Limits { silence_ms: thresholds.silence_ms, redial_ms: thresholds.redial_ms };
    let me = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let mut this = Supervisor {
        status: Status {
            run_id: state.run_id.clone(),
            started_ms: state.started_ms,
            incarnation: state.incarnation,
            problem: settings.problem,
            doing: "calling nodes".to_owned(),
            supervisor_host: me.clone(),
            supervisor_pid: std::process::id(),
            ..Status::default()
        },
        rank_bytes: settings.rank_bytes,
        began_after: state.incarnation,
        settings,
        env: settings.variables(state.anew),
        scribe: Scribe::new(journal)?,
        clerk,
        unwritten: false,
        backlog: VecDeque::new(),
        records,
        state,
        cluster,
        nodes: Nodes::new(limits, names),
        logins: Logins::default(),
        called_at_once: 1,
        calls_first: true,
        given_up: BTreeMap::new(),
        weighed: Instant::now(),
        losses: Vec::new(),
        heard_again: Vec::new(),
        binary: binary_digest(),
        boot: boot(),
        zero: Instant::now(),
        written: Written::new(settings.folder.status()),
        told: None,
        line_shown: false,
        halt: None,
        requests: Requests::default(),
        computing_since: None,
        ranks_seen: false,
        ranks_seen_now: false,
        beaten: Instant::now(),
        replaced: Vec::new(),
        slow: BTreeMap::new(),
        lines: Lines::new(settings.progress_every.as_millis() as u64),
        positions: None,
        echo: Echo::default(),
        most: settings.needs.values().copied().reduce(Need::max),
        members: Members::default(),
        rounding: None,
        room_refusals: 0,
        doubts_room: false,
    };
    if !resumed {
        this.note(Event::RunStarted {
            run_id: this.state.run_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            command: settings.command.clone(),
            launcher: settings.tool.kind,
            ranks: settings.ranks,
            hosts: settings.hosts.clone(),
            spares: settings.spares.clone(),
            job: settings.job.clone(),
            anew: this.state.anew,
            supervisor_host: me,
            supervisor_pid: std::process::id(),
        })?;
        if let Some(why) = this.scribe.trouble() {
            bail!("{why}: the run is not started, since nothing of it could be remembered");
        }
        this.status.started_ms = this.state.started_ms;
    }
    if this.state.anew {
        // The journal says so.
        let _ = std::fs::remove_file(settings.folder.given_up());
    }
    // From here on it is kept up to date: whoever sees no lock would see no supervisor otherwise.
    this.write_status();
    let result = this.run(resumed);
    this.finish_line();
    let (code, why) = match result {
        Ok(end) => end,
        Err(error) => {
            // The job, if there is one, is left as it is: the same command takes it over.
            say!("skt-hpl run: {error:#}");
            this.scribe.settle(LAST_WRITES);
            return Ok(STATUS_ENVIRONMENT);
        }
    };
    this.note(Event::Finished { code, why: why.clone() })?;
    this.status.activity = Activity::Finished;
    this.status.exit_code = Some(code);
    this.status.why = why.clone();
    let now = steady_ms();
    this.status.wall = Some(timeline::wall_time(&this.records, now));
    this.write_status();
    this.scribe.settle(LAST_WRITES);
    if let Some(why) = this.scribe.trouble() {
        say!("skt-hpl run: {why}: the end of the journal is not written");
    }
    // What a job printed that was stopped is no result.
    let printed = settings.folder.output(this.state.incarnation);
    let results = match code {
        STATUS_RESUMABLE => Vec::new(),
        _ => {
            let output = this.in_folder(move || std::fs::read(printed).unwrap_or_default())?;
            timeline::results(&String::from_utf8_lossy(&output))
        }
    };
    say_on!("{}", timeline::report(&this.records, &results, now));
    say!("skt-hpl run: status {code}: {why}");
    let again =
        if settings.discard { "the same command without --new" } else { "the same command" };
    if code == STATUS_RESUMABLE {
        say!("skt-hpl run: memory is kept on the nodes; {again} goes on with the run");
        if let Some(dir) = &settings.level2 {
            say!("skt-hpl run: on other nodes it goes on from {}", dir.display());
        }
    } else if this.state.can_go_on() {
        say!(
            "skt-hpl run: what memory is left is kept on the nodes; {again} goes on with the run, for instance when lost nodes \
             answer again; --new gives it up"
        );
    }
    Ok(code)
}

fn fresh_run_id() -> String {
    let mut bytes = [0u8; 4];
    // Unique without it too, by time and pid, if there is no such device.
    if let Ok(mut file) = std::fs::File::open("/dev/urandom") {
        let _ = std::io::Read::read_exact(&mut file, &mut bytes);
    }
    let random = u32::from_le_bytes(bytes) ^ std::process::id();
    format!("{:011x}{random:08x}", steady_ms())
}

impl Supervisor<'_> {
    fn now_ms(&self) -> u64 {
        self.zero.elapsed().as_millis() as u64
    }

    /// From first contact to the end of the run.
    fn run(&mut self, resumed: bool) -> anyhow::Result<(u8, String)> {
        // One that has come to its end needs no node any more.
        let runs =
            self.knows_job()? && self.told_end(!self.settings.tool.hides_losses())?.is_none();
        let failed = self.first_contact(runs)?;
        self.calls_first = false;
        self.status.doing.clear();
        let Some(failed) = failed else { return self.halted_at_first(resumed) };
        let (mut left, mut adopted) = (None, false);
        if resumed {
            let known = self.knows_job()?;
            // One that is being called again since its connection ended is as good as any other.
            let well = |host: &Host| {
                let at = self.cluster.find(&host.name);
                at.is_some_and(|at| self.nodes.knows(at) && !failed.contains_key(&at))
            };
            let all_well = self.state.placed.iter().all(well);
            let launcher = self.state.running.filter(|_| known && all_well);
            adopted = launcher.is_some();
            left = self.left_job(launcher)?;
            self.note_takeover(adopted)?;
        }
        self.lose_all(failed)?;
        self.beat_once()?;
        self.learn_rounding();
        self.tell_findings();
        if let Some(job) = left.take_if(|_| adopted) {
            if let Some(end) = self.incarnation(job)? {
                return Ok(end);
            }
        } else if let Some(mut job) = left
            && let Some(code) = self.left_end()?
        {
            // It had come to its end, but nobody saw that, maybe since it was looked at before.
            self.look_once_more(&mut job)?;
            let end = End::Exit { code: Some(code.into()), struck_ms: 0, death: None };
            if let Next::Over { code, why, all_done } = verdict(end, &self.facts(&job, true)) {
                self.finish(&mut job, code, all_done)?;
                return Ok((code, why));
            }
            self.stop(None, false)?;
        } else if resumed {
            // Whatever is left of the old job must not meet the new one.
            self.stop(None, false)?;
        }
        if resumed && !adopted {
            self.leave_unnamed()?;
        }
        loop {
            self.settle_losses()?;
            let hosts = match self.choose_nodes()? {
                Ok(hosts) => hosts,
                Err(end) => return Ok(end),
            };
            if self.state.incarnation == 0 && self.settings.trial {
                self.status.doing = "trying whether MPI starts".to_owned();
                let tried = self.try_mpi(&hosts)?;
                self.status.doing.clear();
                match tried {
                    Tried::Well => {}
                    Tried::Unfit => continue,
                    Tried::End(end) => return Ok(end),
                }
            }
            let job = match self.launch(&hosts)? {
                Launched::Job(job) => *job,
                Launched::No => continue,
                Launched::End(end) => return Ok(end),
            };
            if let Some(end) = self.incarnation(job)? {
                return Ok(end);
            }
        }
    }

    /// Whether the last incarnation's launcher runs, or has left its status.
    fn knows_job(&mut self) -> anyhow::Result<bool> {
        let exit = self.settings.folder.exit(self.state.incarnation);
        match self.state.running {
            Some(id) => self.in_folder(move || Job::is_known(id, &exit)),
            None => Ok(false),
        }
    }

    /// The last incarnation's job, if there has been one, with its launcher where that goes on to be watched. Of any other it is
    /// told here what nobody saw: that went before the takeover.
    fn left_job(&mut self, launcher: Option<ProcessId>) -> anyhow::Result<Option<Job>> {
        if self.state.incarnation == 0 {
            return Ok(None);
        }
        let nobody = ProcessId { pid: 0, started: 0 };
        let (folder, incarnation) = (&self.settings.folder, self.state.incarnation);
        let mut job = Job::adopt(launcher.unwrap_or(nobody), folder, incarnation, &self.clerk);
        // Who has noted a fault, or has stopped the job, has looked before.
        if launcher.is_none() && !self.state.stopping && self.state.running.is_some() {
            self.hear_out(&mut job, &mut self.new_watch())?;
        }
        Ok(Some(job))
    }

    fn note_takeover(&mut self, adopted: bool) -> anyhow::Result<()> {
        self.note(Event::TookOver {
            supervisor_host: self.status.supervisor_host.clone(),
            supervisor_pid: std::process::id(),
            adopted,
        })
    }

    /// Stopped on request while nodes were only being called, and no job is known that could save, or it could not be reached for
    /// as long as a halt may take. Nobody is lost for not having answered yet; what a job has left is ended where somebody has.
    fn halted_at_first(&mut self, resumed: bool) -> anyhow::Result<(u8, String)> {
        if resumed {
            self.left_job(None)?;
            self.note_takeover(false)?;
            let run_id = self.state.run_id.clone();
            let here = Answer::beside(move || end_run(&run_id, None, LEFT_PATIENCE));
            self.cluster.end_run(LEFT_PATIENCE);
            self.meanwhile(here)?;
        }
        let why = self.halt.as_ref().map_or("stopped on request", |h| h.why.as_str());
        Ok((STATUS_RESUMABLE, why.to_string()))
    }

    /// The status with which the last incarnation had come to its end, if it had, while nobody saw that.
    fn left_end(&mut self) -> anyhow::Result<Option<u8>> {
        let zero_counts = self.believes_zero()?;
        self.told_end(zero_counts)
    }

    /// The same as far as the folder tells, where it is known whether a launcher's 0 says so.
    fn told_end(&mut self, zero_counts: bool) -> anyhow::Result<Option<u8>> {
        let (folder, incarnation) = (self.settings.folder.clone(), self.state.incarnation);
        self.in_folder(move || end_of(&folder, incarnation, zero_counts))
    }

    /// How the benchmark is started on these hosts, with files going to `dir`.
    fn launch_plan<'p>(
        &'p self,
        hosts: &'p [Host],
        dir: &'p std::path::Path,
        incarnation: u32,
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
            incarnation,
            command: &settings.command,
            env: &self.env,
            extra: &settings.extra,
            shell: &settings.shell,
            dir,
            as_root: nix::unistd::geteuid().is_root(),
        }
    }

    /// Starts the next incarnation. What the ranks of one before hold in memory is worth a wait: for room on the disk however
    /// long it takes, and for what else this machine refuses as long as a start may take.
    fn launch(&mut self, hosts: &[Host]) -> anyhow::Result<Launched> {
        let settings = self.settings;
        let incarnation = self.state.incarnation + 1;
        if let (None, Some(with)) = (&self.state.rounding, self.rounding.clone()) {
            self.note(Event::Rounding { with })?;
        }
        let dir = std::path::absolute(settings.folder.path())?;
        let made = launch(&self.launch_plan(hosts, &dir, incarnation));
        let patience = Duration::from_millis(settings.thresholds.start_ms);
        let mut told = false;
        let mut refused_since = None;
        let job = loop {
            let (launch, folder) = (made.clone(), settings.folder.clone());
            match self.in_folder(move || Job::start(&launch, &folder, incarnation))? {
                Ok(started) => break Job::new(started, &settings.folder, incarnation, &self.clerk),
                Err(error) if incarnation > 1 => {
                    let full = is_full(&error);
                    let dir = dir.display();
                    if !std::mem::replace(&mut told, true) {
                        let what = match full {
                            true => "waiting for room to start the next incarnation",
                            false => "the next incarnation cannot be started; it is tried again",
                        };
                        self.finish_line();
                        say!("skt-hpl run: {dir}: {error}; {what}");
                    }
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    if full {
                        refused_since = None;
                    } else if since.elapsed() >= patience {
                        let why = format!(
                            "the next incarnation could not be started for {} s: {dir}: {error}",
                            patience.as_secs()
                        );
                        return Ok(Launched::End((STATUS_RESUMABLE, why)));
                    }
                    self.idle(START_PAUSE)?;
                    let lost = |host: &Host| self.state.lost.contains(&host.name);
                    if hosts.iter().any(lost) || self.is_to_halt()?.is_some() {
                        return Ok(Launched::No);
                    }
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot start {}", made.argv[0]));
                }
            }
        };
        self.note(Event::Launched { incarnation, launcher: job.id(), hosts: hosts.to_vec() })?;
        self.replaced.clear();
        self.slow.clear();
        self.positions = None;
        self.doubts_room = false;
        Ok(Launched::Job(Box::new(job)))
    }

    /// What an incarnation's end is judged by.
    fn facts(&self, job: &Job, zero_counts: bool) -> Facts {
        Facts {
            told: job.told(),
            announces: self.settings.progress_shows,
            refused: job.refused(),
            zero_counts,
            halt: self.halt.as_ref().map(|h| h.why.clone()),
            output: self.settings.folder.output(self.state.incarnation).display().to_string(),
            test: self.status.test,
            iteration: self.status.iteration,
            incarnation: self.state.incarnation,
        }
    }

    /// Watches one incarnation to its end and cleans up after it. Some: the run has ended.
    fn incarnation(&mut self, mut job: Job) -> anyhow::Result<Option<(u8, String)>> {
        self.status.incarnation = self.state.incarnation;
        self.ranks_seen_now = false;
        self.echo.again();
        let mut watch = self.new_watch();
        let (end, fell) = self.watch(&mut job, &mut watch)?;
        self.hear_out(&mut job, &mut watch)?;
        job.forward(&mut self.echo);
        let zero_counts =
            !matches!(end, End::Exit { code: Some(0), .. }) || self.believes_zero()?;
        let (fault, code) = match verdict(end, &self.facts(&job, zero_counts)) {
            Next::Over { code, why, all_done } => {
                self.finish(&mut job, code, all_done)?;
                return Ok(Some((code, why)));
            }
            Next::Resumable { why } => {
                self.stop(Some(&mut job), false)?;
                return Ok(Some((STATUS_RESUMABLE, why)));
            }
            Next::Fault { fault, code } => (fault, code),
        };
        let Breakage {
            kind,
            struck_ms,
            mut node,
            mut position,
            mut test,
            mut iteration,
            mut detail,
        } = fault;
        let mut rank_iteration = None;
        if matches!(kind, FaultKind::RankDied | FaultKind::LauncherGone) {
            (test, iteration) = self.last_look((test, iteration))?;
            let Complaint { first_to_end, words } = self.meanwhile(job.complaint())?;
            // It ended the others, and may have been quicker than a heartbeat.
            self.ranks_seen_now |= first_to_end.is_some();
            let first = first_to_end.and_then(|name| self.cluster.find_told(&name));
            if first.is_some() && first != node {
                (node, position) = (first, None);
            }
            let own = fell.filter(|(own_test, _)| position.is_some() && *own_test == test);
            rank_iteration = own.map(|(_, iteration)| iteration);
            if kind == FaultKind::LauncherGone && !words.is_empty() {
                detail = format!("{detail}: {words}");
            }
        }
        // What the benchmark itself has refused is no node's fault, whichever the launcher names.
        let refused = job.refused().map(i32::from).filter(|refused| code == Some(*refused));
        if refused.is_some() {
            (node, position) = (None, None);
            self.ranks_seen_now = true;
        }
        self.status.activity = Activity::Recovering;
        let struck_ms = steady_ms().saturating_sub(self.now_ms().saturating_sub(struck_ms));
        let name = node.map(|n| self.cluster.nodes[n].host.name.clone());
        let computed = self.state.computed;
        self.note(Event::Fault {
            fault: self.state.next_fault(),
            incarnation: self.state.incarnation,
            kind,
            struck_ms,
            node: name.clone(),
            position,
            test,
            iteration,
            rank_iteration,
            ranks_seen: self.ranks_seen_now,
            detail: detail.clone(),
        })?;
        // A node whose connection ended gets a second chance while the run is being stopped.
        if matches!(kind, FaultKind::NodeSilent | FaultKind::NodeRebooted)
            && let Some(at) = name.as_deref().and_then(|n| self.cluster.find(n))
        {
            self.lose(at, kind.words())?;
        }
        let lost_before = self.state.lost.len();
        self.stop(Some(&mut job), false)?;
        if self.halt.is_some() {
            return Ok(Some((STATUS_RESUMABLE, format!("halted, after a fault ({detail})"))));
        }
        // What the benchmark has refused before anything was computed, with every node well, it would refuse again. Another
        // program cannot say so: its status is believed.
        let doubtful = code.filter(|code| DOUBTFUL.contains(code) && !computed);
        if let Some(code) = doubtful
            && (refused.is_some() || !self.settings.progress_shows)
            && self.state.lost.len() == lost_before
        {
            return Ok(Some((code as u8, detail)));
        }
        self.room_refusals = if refused.is_some_and(|code| ROOM_REFUSED.contains(&code)) {
            self.room_refusals + 1
        } else {
            0
        };
        let replaceable = |node: &str| self.has_spare_for(node);
        let history = self.state.faults_that_count();
        let attempt = match next_attempt(history, &self.settings.patience, &replaceable) {
            // It looks like one fault that comes again, but nobody has been asked for room yet.
            Attempt::Stop { .. } if (1..=REFUSALS_THAT_ASK).contains(&self.room_refusals) => {
                Attempt::Relaunch { after_ms: 0 }
            }
            attempt => attempt,
        };
        match attempt {
            // Nothing is lost where nothing was computed: the launcher cannot be used. Ranks that began to work and died are
            // not its fault.
            Attempt::Stop { .. } if doubtful.is_some() || !computed && !self.ranks_seen => {
                let why = format!("nothing was computed, again and again; the last time {detail}");
                Ok(Some((STATUS_ENVIRONMENT, why)))
            }
            Attempt::Stop { .. } if let Some(code) = refused => {
                let why = format!(
                    "the benchmark refuses to go on (status {code}): what it says above tells why, and once that is put right the \
                     same command goes on"
                );
                Ok(Some((STATUS_LOSS, why)))
            }
            Attempt::Stop { why } => Ok(Some((STATUS_LOSS, why))),
            Attempt::Without { node, why } => {
                if let Some(at) = self.cluster.find(&node) {
                    self.lose(at, &why)?;
                }
                Ok(None)
            }
            Attempt::Relaunch { after_ms } => {
                if after_ms > 0 {
                    self.note(Event::BackOff { delay_ms: after_ms })?;
                    self.idle_unless_halted(Duration::from_millis(after_ms))?;
                }
                self.doubts_room = self.room_refusals >= REFUSALS_THAT_ASK;
                Ok(None)
            }
        }
    }

    /// Nodes whose memory of this run is of no use once its processes have ended: all it ran on if the run is
    /// `over`, or if that memory only shows progress.
    fn to_clean(&self, over: bool) -> BTreeSet<String> {
        if over || self.settings.shows_only_progress() {
            self.state.ran_on.clone()
        } else {
            BTreeSet::new()
        }
    }

    /// Ends a run whose end is told. Where it is `over`, or `code` says so, nothing of it is needed any more.
    fn finish(&mut self, job: &mut Job, code: u8, over: bool) -> anyhow::Result<()> {
        self.look_once_more(job)?;
        job.forward_rest(&mut self.echo);
        let over = over || is_over(i32::from(code));
        // Ranks remove the memory of a run that is over; not what those have left whose places others took in the job.
        let unreachable = self.stop(Some(job), over)?;
        let cleared = if over { self.clear_returned()? } else { BTreeSet::new() };
        let unseen: Vec<&String> = self
            .state
            .ran_on
            .intersection(&unreachable)
            .filter(|n| !cleared.contains(*n))
            .collect();
        if let Some(name) = &self.settings.job
            && !unseen.is_empty()
            && over
        {
            let command = |node: &str| {
                let facts =
                    self.cluster.find(node).and_then(|at| self.cluster.nodes[at].facts.as_ref());
                self.settings.clean_command(name, facts.map(|(facts, _)| facts.host.as_str()))
            };
            // Where each node has storage of its own, each has a command of its own.
            let mut commands: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for node in &unseen {
                commands.entry(command(node)).or_default().push(node);
            }
            let commands =
                commands.iter().map(|(command, on)| format!("on {}: {command}", on.join(", ")));
            let words = format!(
                "not reached: {}. What this run has left there, if anything, is removed by these commands: {}",
                unseen.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(", "),
                commands.collect::<Vec<_>>().join("; ")
            );
            self.finish_line();
            say!("skt-hpl run: {words}");
        }
        Ok(())
    }
}

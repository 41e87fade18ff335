//! The restart loop: keeps a run alive from its start to its result, whatever node dies when.
//!
//! `skt-hpl run` calls [`supervise`]. Every step is written to the journal before it is taken, so that this
//! process, too, may die anywhere: the same command takes the running job over, or recovers it. All
//! judgement is elsewhere and pure (`watch`, `policy`, `preflight`); here are the steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::agent::binary_digest;
use super::cluster::{Cluster, FIRST_CALL, News};
use super::echo::Echo;
use super::events::{Event, FaultKind, ProcessId, Record, unix_ms};
use super::folder::{Folder, HaltRequest, read_whole, write_whole};
use super::hosts::Host;
use super::job::{Job, end_of, is_over};
use super::journal::{Journal, RunState};
use super::launcher::{LaunchPlan, Launcher, launch};
use super::policy::{Attempt, Fitness, Patience, Placement, Situation, next_attempt, place};
use super::preflight::{Expected, Finding, Need};
use super::progress::words;
use super::shell::RemoteShell;
use super::status::{Activity, Lines, NodeRole, NodeStatus, Problem, Status};
use super::timeline;
use super::trial::{Place, Trial, Trouble};
use super::watch::{Breakage, RankSeen, Seen, Thresholds, Verdict, Watch};

/// Everything `skt-hpl run` was told.
#[derive(Clone, Debug)]
pub struct Settings {
    pub hosts: Vec<Host>,
    pub spares: Vec<Host>,
    pub ranks: usize,
    pub launcher: Launcher,
    pub launcher_program: PathBuf,
    pub pmi: String,
    pub shell: RemoteShell,
    /// Arguments of the user's for the launcher.
    pub extra: Vec<String>,
    /// The benchmark and its flags.
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// What starts an agent on a node.
    pub agent: Vec<String>,
    pub folder: Folder,
    /// Whose memory to look at. Where None: that of the run's own name if the ranks show their progress, else
    /// all of this user's.
    pub job: Option<String>,
    /// Whether every rank shows its progress: the benchmark's own do.
    pub progress_shows: bool,
    pub thresholds: Thresholds,
    pub beat_ms: u64,
    pub patience: Patience,
    pub may_double: bool,
    /// How long to wait for a repaired node; None: not at all.
    pub wait: Option<Duration>,
    /// When to save and stop (Unix milliseconds).
    pub stop_at_ms: Option<u64>,
    /// How long a halt may take before the job is ended the hard way.
    pub halt_patience: Duration,
    pub rank_bytes: Option<u64>,
    /// What the ranks take of each working node, by name, where the supervisor knows the benchmark.
    pub needs: BTreeMap<String, Need>,
    /// Start MPI on trial before the first launch.
    pub trial: bool,
    pub problem: Option<Problem>,
    /// How often to tell the progress where no terminal shows it; zero: never.
    pub progress_every: Duration,
    /// Begin anew although an unfinished run lies in the folder.
    pub discard: bool,
}

impl Settings {
    /// Nothing is saved: the only named memory is what the ranks show their progress in.
    fn shows_only_progress(&self) -> bool {
        self.job.is_none() && self.progress_shows
    }
}

pub const STATUS_PASSED: u8 = 0;
pub const STATUS_LOSS: u8 = 4;
pub const STATUS_ENVIRONMENT: u8 = 6;
pub const STATUS_RESUMABLE: u8 = 75;

/// Exit statuses that only the benchmark gives, never a launcher by itself.
const FINAL: [i32; 3] = [3, 4, 5];
/// Exit statuses of the benchmark that a failing launcher gives too.
const DOUBTFUL: [i32; 3] = [1, 2, 6];

/// How often the launcher's end and output are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(80);

/// How often a signal asked to stop: once to save and stop, twice to stop at once.
static ASKED_TO_STOP: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_signal(_: i32) {
    ASKED_TO_STOP.fetch_add(1, Ordering::Relaxed);
}

fn listen_to_signals() -> nix::Result<()> {
    let action =
        SigAction::new(SigHandler::Handler(note_signal), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler does nothing but add to an atomic.
        unsafe { sigaction(signal, &action)? };
    }
    Ok(())
}

/// How an incarnation ended.
enum End {
    /// The launcher ended; whether that ends the run is still to be judged.
    Exit {
        code: Option<i32>,
        struck_ms: u64,
    },
    Broken(Breakage),
    /// Stopped on request.
    Halted {
        why: String,
    },
    /// All is done and told, but the processes stay.
    Lingering,
}

impl End {
    /// Why it was not the end, with status `told`, that the benchmark had announced.
    fn interrupted(&self, told: u8) -> Option<String> {
        match self {
            End::Exit { code: Some(code), .. } if *code == i32::from(told) => None,
            End::Exit { code, .. } => Some(launcher_words(*code)),
            End::Broken(breakage) => Some(breakage.detail.clone()),
            End::Halted { why } => Some(why.clone()),
            End::Lingering => Some("its processes did not end by themselves".to_string()),
        }
    }
}

fn launcher_words(code: Option<i32>) -> String {
    match code {
        Some(code) => format!("the launcher ended with status {code}"),
        None => "the launcher is gone without a trace".to_string(),
    }
}

/// What a status says with which the benchmark ends a run for good.
fn finished_words(code: u8) -> &'static str {
    match code {
        STATUS_PASSED => "the run is finished",
        3 => "a residual check FAILED",
        STATUS_LOSS => "more was lost than can be recovered; the memory is kept",
        _ => "shared memory cannot be had",
    }
}

/// How a trial start of MPI went.
enum Tried {
    Well,
    /// A node was found unfit: choose again.
    Unfit,
    End((u8, String)),
}

struct Halt {
    why: String,
    after_checkpoint: bool,
    since: Instant,
    /// When the nodes were last told.
    told: Instant,
}

/// Nodes are told again: ranks that were still starting could not listen.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Before a run is given up for want of nodes, lost ones have so long to say that they are back.
const LAST_CALL: Duration = Duration::from_secs(6);

/// How long a run that has told all its results may take to end its processes: MPI libraries have been seen to
/// hang there for ever.
const LINGER: Duration = Duration::from_secs(20);

/// How long the last word of the nodes on how far the ranks had come is waited for.
const LAST_LOOK: Duration = Duration::from_millis(250);

struct Supervisor<'a> {
    settings: &'a Settings,
    journal: Journal,
    records: Vec<Record>,
    state: RunState,
    cluster: Cluster,
    binary: String,
    /// Beginning of the watchdog's time.
    zero: Instant,
    status: Status,
    told: Option<Instant>,
    line_shown: bool,
    halt: Option<Halt>,
    /// Learned from the first incarnation where not given.
    rank_bytes: Option<u64>,
    computing_since: Option<(Instant, u64)>,
    beaten: Instant,
    /// Replacements told since the last launch.
    replaced: Vec<(String, String)>,
    /// Working nodes found slow, and how.
    slow: BTreeMap<String, String>,
    lines: Lines,
    /// What all incarnations have printed.
    echo: Echo,
}

/// Runs to the end and returns the exit status.
pub fn supervise(settings: &Settings) -> anyhow::Result<u8> {
    std::fs::create_dir_all(settings.folder.path())
        .with_context(|| format!("cannot make the folder {}", settings.folder.path().display()))?;
    let (mut journal, mut records) = Journal::open(&settings.folder.journal())?;
    listen_to_signals()?;
    let mut state = RunState::replay(&records);
    if settings.discard || state.finished.is_some_and(|code| code != STATUS_RESUMABLE) {
        if !records.is_empty() {
            settings
                .folder
                .set_aside(&state.run_id)
                .context("cannot set the old run's files aside")?;
        }
        drop(journal);
        std::fs::write(settings.folder.journal(), "")?;
        (journal, records) = Journal::open(&settings.folder.journal())?;
        state = RunState::default();
    }
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
    }
    let _ = std::fs::remove_file(settings.folder.halt());

    // A resumed run goes on where it was; nodes newly named are further spares.
    let (hosts, mut spares) = match resumed {
        true => (state.hosts.clone(), state.spares.clone()),
        false => (settings.hosts.clone(), settings.spares.clone()),
    };
    if resumed {
        for host in settings.hosts.iter().chain(&settings.spares) {
            if !hosts.iter().chain(&spares).any(|h| h.name == host.name) {
                spares.push(host.clone());
            }
        }
    }
    let mut cluster = Cluster::new(
        settings.shell.clone(),
        settings.agent.clone(),
        &hosts,
        &spares,
        &state.run_id,
        // Where nothing is protected, the benchmark's ranks show their progress under the run's own name.
        match settings.shows_only_progress() {
            true => Some(state.run_id.clone()),
            false => settings.job.clone(),
        },
    );
    for name in &state.lost {
        if let Some(node) = cluster.find(name) {
            cluster.lose(node, "lost earlier in this run");
        }
    }
    let me = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let mut this = Supervisor {
        status: Status {
            run_id: state.run_id.clone(),
            started_ms: state.started_ms,
            problem: settings.problem,
            supervisor_host: me.clone(),
            supervisor_pid: std::process::id(),
            ..Status::default()
        },
        rank_bytes: settings.rank_bytes,
        settings,
        journal,
        records,
        state,
        cluster,
        binary: binary_digest(),
        zero: Instant::now(),
        told: None,
        line_shown: false,
        halt: None,
        computing_since: None,
        beaten: Instant::now(),
        replaced: Vec::new(),
        slow: BTreeMap::new(),
        lines: Lines::new(settings.progress_every.as_millis() as u64),
        echo: Echo::default(),
    };
    if !resumed {
        this.note(Event::RunStarted {
            run_id: this.state.run_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            command: settings.command.clone(),
            launcher: settings.launcher,
            ranks: settings.ranks,
            hosts: settings.hosts.clone(),
            spares: settings.spares.clone(),
            supervisor_host: me,
            supervisor_pid: std::process::id(),
        })?;
        this.status.started_ms = this.state.started_ms;
    }
    let result = this.run(resumed);
    this.finish_line();
    let (code, why) = match result {
        Ok(end) => end,
        Err(error) => {
            // The job, if there is one, is left as it is: the same command takes it over.
            eprintln!("skt-hpl run: {error:#}");
            return Ok(STATUS_ENVIRONMENT);
        }
    };
    this.note(Event::Finished { code, why: why.clone() })?;
    this.status.activity = Activity::Finished;
    this.status.exit_code = Some(code);
    this.status.why = why.clone();
    let now = unix_ms();
    this.status.wall = Some(timeline::wall_time(&this.records, now));
    this.write_status();
    // What a job printed that was stopped is no result.
    let output = std::fs::read(settings.folder.output(this.state.incarnation)).unwrap_or_default();
    let results = match code {
        STATUS_RESUMABLE => Vec::new(),
        _ => timeline::results(&String::from_utf8_lossy(&output)),
    };
    eprint!("{}", timeline::report(&this.records, &results, now));
    eprintln!("skt-hpl run: status {code}: {why}");
    if code == STATUS_RESUMABLE {
        eprintln!(
            "skt-hpl run: memory is kept on the nodes; the same command goes on with the run"
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
    format!("{:011x}{random:08x}", unix_ms())
}

impl Supervisor<'_> {
    fn note(&mut self, event: Event) -> anyhow::Result<()> {
        self.say(&event);
        let record = self.journal.append(event)?;
        self.state.apply(&record);
        self.records.push(record);
        Ok(())
    }

    /// Events people want to see at once.
    fn say(&mut self, event: &Event) {
        let text = match event {
            Event::Launched { incarnation, hosts, .. } => {
                let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
                format!("incarnation {incarnation} on {}", names.join(" "))
            }
            Event::Computing { incarnation, iteration } if *incarnation > 1 => {
                format!("computing again, at iteration {iteration}")
            }
            Event::CaughtUp { iteration, .. } => format!("caught up at iteration {iteration}"),
            Event::Fault { fault, kind, detail, .. } => {
                format!("FAULT {fault}: {}: {detail}", kind.words())
            }
            Event::NodeLost { node, why } => format!("node {node} is lost: {why}"),
            Event::NodeReturned { node, same_boot, ended } => format!(
                "node {node} answers again; it was {}; {ended} left-over process(es) ended there",
                if *same_boot { "cut off" } else { "restarted" }
            ),
            Event::Stopped { ended, .. } => format!("stopped, {ended} process(es) ended"),
            Event::Replaced { node, by } => format!("{by} takes the ranks of {node}"),
            Event::SlowNode { node, detail } => format!("node {node} is slow: {detail}"),
            Event::AgentRestarted { node } => {
                format!("agent on {node} restarted; its ranks are well")
            }
            Event::Waiting { missing } => format!("waiting for {missing} node(s) to come back"),
            Event::BackOff { delay_ms } => {
                format!("next attempt in {:.0} s", *delay_ms as f64 / 1e3)
            }
            Event::HaltRequested { why, .. } => format!("halt: {why}"),
            Event::TookOver { adopted: true, .. } => "took the running job over".to_string(),
            Event::TookOver { adopted: false, .. } => {
                "going on with an interrupted run".to_string()
            }
            _ => return,
        };
        self.finish_line();
        eprintln!("skt-hpl run: {text}");
    }

    fn now_ms(&self) -> u64 {
        self.zero.elapsed().as_millis() as u64
    }

    /// What a node is measured by. A working node that has its memory already is not asked for room again.
    fn expected(&self, name: &str) -> Expected<'_> {
        let needs = &self.settings.needs;
        let most = needs.values().copied().reduce(Need::max);
        let placed = self.state.placed.iter().any(|h| h.name == name);
        let need = match needs.get(name).copied() {
            Some(own) if placed && self.state.incarnation == 0 => Some(own),
            _ if placed => most.map(|need| Need { named_bytes: 0, own_bytes: 0, ..need }),
            _ => most,
        };
        Expected {
            version: env!("CARGO_PKG_VERSION"),
            binary: &self.binary,
            unix_ms: unix_ms(),
            need,
            held_bytes: 0,
        }
    }

    /// From first contact to the end of the run.
    fn run(&mut self, resumed: bool) -> anyhow::Result<(u8, String)> {
        let failed = self.cluster.call_all(FIRST_CALL);
        let mut adopted = None;
        if resumed {
            let known = self.state.running.is_some_and(|id| {
                Job::is_known(id, &self.settings.folder.exit(self.state.incarnation))
            });
            let all_up = self
                .state
                .placed
                .iter()
                .all(|h| self.cluster.find(&h.name).is_some_and(|at| self.cluster.is_up(at)));
            adopted = self.state.running.filter(|_| known && all_up);
            self.note(Event::TookOver {
                supervisor_host: self.status.supervisor_host.clone(),
                supervisor_pid: std::process::id(),
                adopted: adopted.is_some(),
            })?;
        }
        for (node, why) in failed {
            self.lose(node, &why)?;
        }
        self.beat_once();
        self.tell_findings();
        if let Some(id) = adopted {
            let incarnation = self.state.incarnation;
            let job = Job::adopt(id, &self.settings.folder, incarnation);
            if let Some(end) = self.incarnation(job)? {
                return Ok(end);
            }
        } else if resumed
            && self.state.incarnation > 0
            && let Some(code) = end_of(&self.settings.folder, self.state.incarnation)
        {
            // It had come to its end, but nobody saw that.
            let nobody = ProcessId { pid: 0, started: 0 };
            let mut job = Job::adopt(nobody, &self.settings.folder, self.state.incarnation);
            self.finish(&mut job, code, true)?;
            return Ok((code, finished_words(code).to_string()));
        } else if resumed {
            // Whatever is left of the old job must not meet the new one.
            self.stop(None, false)?;
        }
        loop {
            let hosts = match self.choose_nodes()? {
                Ok(hosts) => hosts,
                Err(end) => return Ok(end),
            };
            if self.state.incarnation == 0 && self.settings.trial {
                match self.try_mpi(&hosts)? {
                    Tried::Well => {}
                    Tried::Unfit => continue,
                    Tried::End(end) => return Ok(end),
                }
            }
            let job = self.launch(&hosts)?;
            if let Some(end) = self.incarnation(job)? {
                return Ok(end);
            }
        }
    }

    /// One heartbeat of every node, so that memory is known before nodes are chosen.
    fn beat_once(&mut self) {
        self.cluster.beat_all();
        let until = Instant::now() + Duration::from_millis(500);
        let mut missing: Vec<usize> =
            (0..self.cluster.nodes.len()).filter(|n| self.cluster.is_up(*n)).collect();
        while !missing.is_empty() && Instant::now() < until {
            if let Some((node, News::Beat { .. })) = self.cluster.hear(Duration::from_millis(50)) {
                missing.retain(|n| *n != node);
            }
        }
    }

    fn tell_findings(&mut self) {
        for at in 0..self.cluster.nodes.len() {
            let name = &self.cluster.nodes[at].host.name;
            for finding in self.cluster.findings(at, &self.expected(name)) {
                match finding {
                    Finding::Problem(text) => {
                        eprintln!("skt-hpl run: {name} cannot be used: {text}")
                    }
                    Finding::Warning(text) => eprintln!("skt-hpl run: {name}: {text}"),
                }
            }
        }
    }

    fn lose(&mut self, node: usize, why: &str) -> anyhow::Result<()> {
        let name = self.cluster.nodes[node].host.name.clone();
        self.cluster.lose(node, why);
        self.note(Event::NodeLost { node: name, why: why.to_string() })
    }

    /// The nodes of the next incarnation; waits for one if that is wanted. Or the end of the run.
    #[allow(clippy::type_complexity)] // A decision and its alternative; a name would hide neither.
    fn choose_nodes(&mut self) -> anyhow::Result<Result<Vec<Host>, (u8, String)>> {
        let mut waiting_since: Option<Instant> = None;
        let mut called = false;
        loop {
            let placement = {
                let fitness =
                    |name: &str| -> Fitness { self.cluster.fitness(name, &self.expected(name)) };
                let spares: Vec<Host> = self
                    .cluster
                    .nodes
                    .iter()
                    .map(|n| n.host.clone())
                    .filter(|h| !self.state.placed.iter().any(|p| p.name == h.name))
                    .collect();
                place(&Situation {
                    placed: &self.state.placed,
                    spares: &spares,
                    fitness: &fitness,
                    ranks: self.settings.ranks,
                    rank_bytes: self.rank_bytes,
                    // Before the first launch nothing is lost: the nodes asked for, or a spare.
                    may_double: self.settings.may_double && self.state.incarnation > 0,
                    may_wait: self.settings.wait.is_some(),
                })
            };
            match placement {
                Placement::Go { hosts, replaced } => {
                    for (node, by) in replaced {
                        if let Some(at) = self.cluster.find(&by) {
                            self.cluster.nodes[at].lost = None;
                            self.cluster.nodes[at].spare = false;
                        }
                        let pair = (node.clone(), by.clone());
                        if !self.replaced.contains(&pair) {
                            self.replaced.push(pair);
                            self.note(Event::Replaced { node, by })?;
                        }
                    }
                    return Ok(Ok(hosts));
                }
                Placement::GiveUp { .. } if !called && self.cluster.call_lost_now() => {
                    // One of them may have been repaired since it was last called.
                    called = true;
                    let until = Instant::now() + LAST_CALL;
                    while self.cluster.awaits_lost() && Instant::now() < until {
                        self.idle(Duration::from_millis(100))?;
                    }
                }
                Placement::GiveUp { why } => {
                    return Ok(Err(match self.state.incarnation {
                        0 => (STATUS_ENVIRONMENT, self.unfit_words()),
                        _ => (STATUS_RESUMABLE, why),
                    }));
                }
                Placement::Wait { missing } => {
                    if waiting_since.is_none() {
                        self.note(Event::Waiting { missing })?;
                    }
                    let since = *waiting_since.get_or_insert_with(Instant::now);
                    let limit = self.settings.wait.unwrap_or_default();
                    if since.elapsed() >= limit {
                        let why = format!("{missing} node(s) missing for {} s", limit.as_secs());
                        return Ok(Err((STATUS_RESUMABLE, why)));
                    }
                    self.status.activity = Activity::Waiting;
                    self.idle(Duration::from_millis(200))?;
                    if let Some(halt) = self.asked_to_halt()? {
                        return Ok(Err((STATUS_RESUMABLE, halt)));
                    }
                }
            }
        }
    }

    /// Why the run cannot begin: which nodes will not do, and what to do about it.
    fn unfit_words(&self) -> String {
        let mut words = Vec::new();
        for node in &self.cluster.nodes {
            let name = &node.host.name;
            let spare =
                if self.state.placed.iter().any(|h| h.name == *name) { "" } else { "spare " };
            match self.cluster.fitness(name, &self.expected(name)) {
                Fitness::Fit { .. } => {}
                Fitness::Unfit(why) => words.push(format!("{spare}{name}: {why}")),
                Fitness::Lost { .. } => {
                    let why = node.lost.as_deref().unwrap_or_default();
                    words.push(format!("{spare}{name}: {why}"));
                }
            }
        }
        format!(
            "not started, for lack of fit nodes: {}. Mend them, take them off the list, or give spares",
            words.join("; ")
        )
    }

    /// Starts MPI on trial over the chosen nodes and the spares, and finds out whose fault it is if it does not.
    fn try_mpi(&mut self, hosts: &[Host]) -> anyhow::Result<Tried> {
        let mut left = self.settings.ranks;
        let mut working: Vec<Host> = hosts.to_vec();
        for host in &mut working {
            host.slots = host.slots.min(left);
            left -= host.slots;
        }
        working.retain(|h| h.slots > 0);
        let slots = working.iter().map(|h| h.slots).max().unwrap_or(1);
        loop {
            let spares: Vec<Host> = self
                .cluster
                .nodes
                .iter()
                .map(|n| &n.host.name)
                .filter(|name| !hosts.iter().any(|h| h.name == **name))
                .filter(|name| {
                    matches!(self.cluster.fitness(name, &self.expected(name)), Fitness::Fit { .. })
                })
                .map(|name| Host::new(name, slots))
                .collect();
            let all = [&working[..], &spares[..]].concat();
            let Some(result) = self.trial(&all)? else { return self.halted() };
            let trouble = match result {
                Ok(()) => return Ok(Tried::Well),
                Err(trouble) => trouble,
            };
            let mut culprits: Vec<(String, String)> = trouble
                .nodes
                .iter()
                .map(|n| (all[*n].name.clone(), trouble.what.clone()))
                .collect();
            // If the trouble names nobody, parts of the whole are tried.
            if culprits.is_empty() && !spares.is_empty() {
                match self.trial(&working)? {
                    None => return self.halted(),
                    Some(Err(_)) => {}
                    Some(Ok(())) => {
                        for spare in &spares {
                            match self.trial(&[working[0].clone(), spare.clone()])? {
                                None => return self.halted(),
                                Some(Ok(())) => {}
                                Some(Err(own)) => culprits.push((spare.name.clone(), own.what)),
                            }
                        }
                        if culprits.is_empty() {
                            let what = &trouble.what;
                            culprits.extend(spares.iter().map(|s| (s.name.clone(), what.clone())));
                        }
                    }
                }
            }
            if culprits.is_empty() && working.len() > 1 {
                for host in &working {
                    match self.trial(std::slice::from_ref(host))? {
                        None => return self.halted(),
                        Some(Ok(())) => {}
                        Some(Err(own)) => culprits.push((host.name.clone(), own.what)),
                    }
                }
            }
            // If no node starts MPI even by itself, it is not the nodes.
            if culprits.is_empty() || culprits.len() >= working.len().max(2) {
                let why = format!(
                    "not started: MPI does not start on these nodes: {}. `skt-hpl doctor` tries again; \
                     --no-trial leaves this check out",
                    trouble.what
                );
                return Ok(Tried::End((STATUS_ENVIRONMENT, why)));
            }
            for (name, what) in &culprits {
                eprintln!("skt-hpl run: {name} cannot be used: MPI does not start there: {what}");
                if let Some(at) = self.cluster.find(name) {
                    self.cluster.nodes[at].unfit =
                        Some(format!("MPI does not start there: {what}"));
                }
            }
            if hosts.iter().any(|h| culprits.iter().any(|(name, _)| *name == h.name)) {
                return Ok(Tried::Unfit);
            }
        }
    }

    fn halted(&self) -> anyhow::Result<Tried> {
        let why = self.halt.as_ref().map_or("stopped on request", |h| h.why.as_str());
        Ok(Tried::End((STATUS_RESUMABLE, why.to_string())))
    }

    /// One trial start, every slot of the hosts taken. None: somebody asked to stop meanwhile.
    fn trial(&mut self, hosts: &[Host]) -> anyhow::Result<Option<Result<(), Trouble>>> {
        let settings = self.settings;
        let mut places = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            let node = self.cluster.find(&host.name).map(|n| &self.cluster.nodes[n]);
            match node.and_then(|n| n.facts.as_ref()) {
                Some((facts, _)) => places.push(Place::of(facts)),
                None => {
                    let what = "its agent has not answered".to_string();
                    return Ok(Some(Err(Trouble { nodes: vec![at], what })));
                }
            }
        }
        let dir = std::path::absolute(settings.folder.path())?;
        let ranks = hosts.iter().map(|h| h.slots).sum();
        let plan = LaunchPlan { ranks, command: &[], ..self.launch_plan(hosts, &dir, 0) };
        let patience = Duration::from_millis(settings.thresholds.start_ms);
        let own = &settings.agent[0];
        let mut trial = Trial::start(&plan, own, &settings.folder, &places, patience)
            .with_context(|| format!("cannot start {}", settings.launcher_program.display()))?;
        let result = loop {
            if let Some(result) = trial.poll() {
                break Some(result.map(|_| ()));
            }
            self.idle(Duration::from_millis(20))?;
            if self.asked_to_halt()?.is_some() {
                trial.abandon();
                break None;
            }
        };
        if !matches!(result, Some(Ok(()))) {
            // Nothing of it may be there when the next one starts.
            let silence = Duration::from_millis(settings.thresholds.silence_ms);
            for (node, why) in self.cluster.end_run(silence, &BTreeSet::new()).1 {
                self.lose(node, &why)?;
            }
        }
        Ok(result)
    }

    /// Passes time between incarnations: heartbeats, lost nodes, the status.
    fn idle(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.housekeeping()?;
            if let Some((node, news)) = self.cluster.hear(Duration::from_millis(50)) {
                self.mind_others(node, &news)?;
            }
        }
        Ok(())
    }

    /// What is due from time to time whatever else goes on.
    fn housekeeping(&mut self) -> anyhow::Result<()> {
        if self.beaten.elapsed() >= Duration::from_millis(self.settings.beat_ms) {
            self.beaten = Instant::now();
            self.cluster.beat_all();
            self.cluster.call_lost();
        }
        if self.told.is_none_or(|t| t.elapsed() >= Duration::from_secs(1)) {
            self.told = Some(Instant::now());
            self.refresh_status();
            self.write_status();
            self.show_line();
        }
        Ok(())
    }

    /// News from nodes that do not run ranks now: spares, and lost nodes that are back.
    fn mind_others(&mut self, node: usize, news: &News) -> anyhow::Result<()> {
        let lost = self.cluster.nodes[node].lost.is_some();
        match news {
            News::Up(_) if lost => {
                let clean = self.to_clean(false);
                self.cluster.end_leftovers(node, &clean);
            }
            News::Ended { ended, .. } if lost && !self.cluster.nodes[node].returned => {
                self.cluster.nodes[node].returned = true;
                let state = &self.cluster.nodes[node];
                let event = Event::NodeReturned {
                    node: state.host.name.clone(),
                    same_boot: state.beat.held_positions > 0 || *ended > 0,
                    ended: *ended,
                };
                self.note(event)?;
            }
            News::Closed(_) if lost => self.cluster.nodes[node].returned = false,
            News::Closed(_) if self.cluster.nodes[node].spare => {
                // A spare is tried once more by the next heartbeat's silence; until then it is unfit.
                self.lose(node, "the connection to this spare ended")?;
            }
            _ => {}
        }
        Ok(())
    }

    /// How the benchmark is started on these hosts, with files going to `dir`.
    fn launch_plan<'p>(
        &'p self,
        hosts: &'p [Host],
        dir: &'p std::path::Path,
        incarnation: u32,
    ) -> LaunchPlan<'p> {
        let settings = self.settings;
        LaunchPlan {
            launcher: settings.launcher,
            program: &settings.launcher_program,
            hosts,
            ranks: settings.ranks,
            run_id: &self.state.run_id,
            incarnation,
            command: &settings.command,
            env: &settings.env,
            extra: &settings.extra,
            shell: &settings.shell,
            dir,
            as_root: nix::unistd::geteuid().is_root(),
            pmi: &settings.pmi,
        }
    }

    fn launch(&mut self, hosts: &[Host]) -> anyhow::Result<Job> {
        let settings = self.settings;
        let incarnation = self.state.incarnation + 1;
        let dir = std::path::absolute(settings.folder.path())?;
        let made = launch(&self.launch_plan(hosts, &dir, incarnation));
        let job = Job::start(&made, &settings.folder, incarnation)
            .with_context(|| format!("cannot start {}", made.argv[0]))?;
        self.note(Event::Launched { incarnation, launcher: job.id(), hosts: hosts.to_vec() })?;
        self.replaced.clear();
        self.slow.clear();
        Ok(job)
    }

    /// Watches one incarnation to its end and cleans up after it. Some: the run has ended.
    fn incarnation(&mut self, mut job: Job) -> anyhow::Result<Option<(u8, String)>> {
        self.status.incarnation = self.state.incarnation;
        self.echo.again();
        let end = self.watch(&mut job)?;
        job.forward(&mut self.echo);
        if let Some(code) = job.done() {
            // All is told already. If only the end of it failed, there may be memory left that nobody removed.
            let afterwards = end.interrupted(code);
            self.finish(&mut job, code, afterwards.is_some())?;
            let why = finished_words(code);
            return Ok(Some(match afterwards {
                None => (code, why.to_string()),
                Some(what) => (code, format!("{why}; afterwards {what}")),
            }));
        }
        let (kind, struck_ms, node, position, iteration, mut detail, code) = match end {
            End::Exit { code: Some(code), .. } if code == 0 || FINAL.contains(&code) => {
                self.finish(&mut job, code as u8, false)?;
                return Ok(Some((code as u8, finished_words(code as u8).to_string())));
            }
            End::Exit { code: Some(75), .. } => {
                self.stop(Some(&mut job), false)?;
                let why = self.halt.as_ref().map_or("the benchmark stopped", |h| h.why.as_str());
                return Ok(Some((STATUS_RESUMABLE, why.to_string())));
            }
            End::Halted { why } => {
                self.stop(Some(&mut job), false)?;
                return Ok(Some((STATUS_RESUMABLE, why)));
            }
            End::Lingering => unreachable!("only where all is done, which was judged above"),
            End::Exit { code, struck_ms } => {
                let iteration = self.last_look(self.status.iteration);
                let what = launcher_words(code);
                (FaultKind::LauncherGone, struck_ms, None, None, iteration, what, code)
            }
            End::Broken(mut b) => {
                if b.kind == FaultKind::RankDied {
                    b.iteration = self.last_look(b.iteration);
                }
                (b.kind, b.struck_ms, b.node, b.position, b.iteration, b.detail, None)
            }
        };
        self.status.activity = Activity::Recovering;
        let words = job.last_words();
        if kind == FaultKind::LauncherGone && !words.is_empty() {
            detail = format!("{detail}: {words}");
        }
        let struck_ms = unix_ms().saturating_sub(self.now_ms().saturating_sub(struck_ms));
        let name = node.map(|n| self.state.placed[n].name.clone());
        let computed = self.computing_since.is_some() || self.state.furthest > 0;
        self.note(Event::Fault {
            fault: self.state.faults.len() as u32 + 1,
            incarnation: self.state.incarnation,
            kind,
            struck_ms,
            node: name.clone(),
            position,
            iteration,
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
        // A status that means bad input, with every node well and nothing ever computed: that it is.
        if let Some(code) = code.filter(|c| DOUBTFUL.contains(c))
            && !computed
            && self.state.lost.len() == lost_before
        {
            return Ok(Some((code as u8, detail)));
        }
        match next_attempt(&self.state.faults, &self.settings.patience) {
            Attempt::Stop { why } => Ok(Some((STATUS_LOSS, why))),
            Attempt::Relaunch { after_ms } => {
                if after_ms > 0 {
                    self.note(Event::BackOff { delay_ms: after_ms })?;
                    self.idle(Duration::from_millis(after_ms))?;
                }
                Ok(None)
            }
        }
    }

    /// Nodes whose memory of this run is of no use once its processes have ended: all it ran on if the run is
    /// `over`, or if that memory only shows progress.
    fn to_clean(&self, over: bool) -> BTreeSet<String> {
        match over || self.settings.shows_only_progress() {
            true => self.state.ran_on.clone(),
            false => BTreeSet::new(),
        }
    }

    /// Ends a run whose results are told: nothing of it is needed any more.
    fn finish(&mut self, job: &mut Job, code: u8, clean: bool) -> anyhow::Result<()> {
        job.forward_rest(&mut self.echo);
        self.stop(Some(job), clean)?;
        let unseen: Vec<&str> =
            self.state.ran_on.intersection(&self.state.lost).map(String::as_str).collect();
        if let Some(name) = &self.settings.job
            && !unseen.is_empty()
            && is_over(i32::from(code))
        {
            let words = format!(
                "lost: {}. If memory of this run has outlived that, remove it there: skt-hpl clean --job {name}",
                unseen.join(", ")
            );
            self.finish_line();
            eprintln!("skt-hpl run: {words}");
        }
        Ok(())
    }

    /// How far the ranks had come when one of them ended: what it left in its memory, not what the last
    /// heartbeat happened to see. A bug shows by striking at the same iteration again.
    fn last_look(&mut self, known: u64) -> u64 {
        self.cluster.beat_all();
        let mut missing: Vec<usize> =
            (0..self.cluster.nodes.len()).filter(|n| self.cluster.is_up(*n)).collect();
        let until = Instant::now() + LAST_LOOK;
        let mut latest = (0, known);
        while !missing.is_empty() && Instant::now() < until {
            if let Some((node, News::Beat { beat, .. })) =
                self.cluster.hear(Duration::from_millis(20))
            {
                missing.retain(|n| *n != node);
                let seen = beat.ranks.iter().map(|r| (r.progress.test, r.progress.iteration));
                latest = seen.fold(latest, Ord::max);
            }
        }
        latest.1
    }

    /// Ends what is left of the job everywhere, and finds out which nodes do not answer.
    /// With `clean`, the nodes it ran on remove what memory it has left.
    fn stop(&mut self, job: Option<&mut Job>, clean: bool) -> anyhow::Result<()> {
        // Memory that only shows progress says nothing about what a rank takes.
        if !self.settings.shows_only_progress()
            && let Some(bytes) = self.cluster.rank_bytes()
        {
            self.rank_bytes = Some(self.rank_bytes.map_or(bytes, |known| known.max(bytes)));
        }
        let run_id = self.state.run_id.clone();
        let here = match job {
            Some(job) => job.end(&run_id),
            None => super::processes::end_run(&run_id, None, Duration::from_secs(3)).0,
        };
        let silence = Duration::from_millis(self.settings.thresholds.silence_ms);
        let clean = self.to_clean(clean);
        let (there, failed) = self.cluster.end_run(silence, &clean);
        let mut unreachable: Vec<String> = self.state.lost.iter().cloned().collect();
        for (node, why) in failed {
            unreachable.push(self.cluster.nodes[node].host.name.clone());
            self.lose(node, &why)?;
        }
        self.note(Event::Stopped {
            incarnation: self.state.incarnation,
            ended: here + there,
            unreachable,
        })
    }

    /// Watches the job until it ends, breaks or is halted.
    fn watch(&mut self, job: &mut Job) -> anyhow::Result<End> {
        let placed: Vec<usize> = self
            .state
            .placed
            .iter()
            .map(|h| self.cluster.find(&h.name).ok_or_else(|| anyhow!("no node {}", h.name)))
            .collect::<Result<_, _>>()?;
        let names: Vec<String> = self.state.placed.iter().map(|h| h.name.clone()).collect();
        let mut watch = Watch::new(self.settings.thresholds, &names, self.now_ms())
            .progress_shows(self.settings.progress_shows);
        for (at, node) in placed.iter().enumerate() {
            match &self.cluster.nodes[*node].facts {
                Some((facts, _)) if self.cluster.is_up(*node) => {
                    let boot = facts.boot.clone();
                    watch.see(self.now_ms(), Seen::AgentUp { node: at, boot });
                }
                _ => {
                    self.cluster.call(*node);
                    watch.see(self.now_ms(), Seen::Closed { node: at });
                }
            }
        }
        self.status.activity = match self.state.faults.is_empty() {
            true => Activity::Starting,
            false => Activity::Recovering,
        };
        self.computing_since = None;
        let aim = self.state.faults.iter().map(|f| f.iteration).max().unwrap_or(0);
        let mut caught_up = self.state.faults.is_empty();
        let mut looked = Instant::now();
        let mut done_since = None;
        loop {
            self.housekeeping()?;
            let mut verdicts = Vec::new();
            if let Some((node, news)) =
                self.cluster.hear(LOOK_EVERY.saturating_sub(looked.elapsed()))
            {
                let now = self.now_ms();
                match placed.iter().position(|p| *p == node) {
                    None => self.mind_others(node, &news)?,
                    Some(at) => match news {
                        News::Up(facts) => {
                            verdicts.extend(
                                watch.see(now, Seen::AgentUp { node: at, boot: facts.boot }),
                            );
                        }
                        News::Closed(_) => {
                            verdicts.extend(watch.see(now, Seen::Closed { node: at }));
                            // A call that failed while there is still time: once more.
                            if verdicts.is_empty() {
                                self.cluster.call(node);
                            }
                        }
                        News::Beat { beat, round_trip_ms } => {
                            self.learn_problem(&beat.ranks);
                            verdicts.extend(watch.see(
                                now,
                                Seen::Beat {
                                    node: at,
                                    round_trip_ms,
                                    processes: beat.processes,
                                    stopped: beat.stopped,
                                    ranks: beat.ranks,
                                },
                            ));
                        }
                        News::Ended { .. } | News::Halting { .. } => {}
                    },
                }
            }
            let now = self.now_ms();
            // Every agent's word wakes us; files need not be looked at as often.
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                if job.forward(&mut self.echo) {
                    self.line_shown = false;
                }
                // Of another program's way to its end nobody knows.
                if self.settings.progress_shows && watch.all_through() {
                    done_since = done_since.or_else(|| job.done().map(|_| Instant::now()));
                }
                if done_since.is_some_and(|since| since.elapsed() > LINGER) {
                    return Ok(End::Lingering);
                }
                if let Some(code) = job.poll() {
                    verdicts.extend(watch.see(now, Seen::LauncherEnded { code }));
                }
            }
            verdicts.extend(watch.tick(now));
            self.status.iteration = watch.iteration();
            self.status.doing = words(watch.doing()).to_string();
            for verdict in verdicts {
                let incarnation = self.state.incarnation;
                match verdict {
                    Verdict::Redial { node } => self.cluster.call(placed[node]),
                    Verdict::AgentRestarted { node } => {
                        self.note(Event::AgentRestarted { node: names[node].clone() })?
                    }
                    Verdict::Slow { node, detail } => {
                        self.slow.insert(names[node].clone(), detail.clone());
                        self.note(Event::SlowNode { node: names[node].clone(), detail })?
                    }
                    Verdict::Computing { iteration } => {
                        self.status.activity = Activity::Running;
                        self.computing_since = Some((Instant::now(), iteration));
                        caught_up |= iteration >= aim;
                        self.note(Event::Computing { incarnation, iteration })?;
                    }
                    Verdict::Saved { iteration } => {
                        self.status.last_save_iteration = Some(iteration);
                        self.status.last_save_ms = Some(unix_ms());
                        self.note(Event::Saved { incarnation, iteration })?;
                    }
                    Verdict::Ended { code, struck_ms } => return Ok(End::Exit { code, struck_ms }),
                    Verdict::Broken(breakage) => return Ok(End::Broken(breakage)),
                }
            }
            if !caught_up && self.computing_since.is_some() && watch.iteration() >= aim {
                caught_up = true;
                let incarnation = self.state.incarnation;
                self.note(Event::CaughtUp { incarnation, iteration: watch.iteration() })?;
            }
            if let Some(why) = self.halting()? {
                return Ok(End::Halted { why });
            }
            if self.halt.is_some() {
                watch.expect_end();
            }
        }
    }

    fn learn_problem(&mut self, ranks: &[RankSeen]) {
        if let Some(rank) = ranks.iter().find(|r| r.progress.n > 0 && r.progress.nb > 0) {
            self.status.problem = Some(Problem { n: rank.progress.n, nb: rank.progress.nb });
        }
    }

    /// Whether somebody wants the run to stop now: a reason.
    fn asked_to_halt(&mut self) -> anyhow::Result<Option<String>> {
        if self.halt.is_some() {
            return Ok(None);
        }
        let now = unix_ms();
        let request = read_whole::<HaltRequest>(&self.settings.folder.halt())
            .filter(|request| request.at_ms.is_none_or(|at| now >= at));
        let (why, after_checkpoint) = if ASKED_TO_STOP.load(Ordering::Relaxed) > 0 {
            ("a signal".to_string(), false)
        } else if let Some(request) = request {
            let _ = std::fs::remove_file(self.settings.folder.halt());
            ("skt-hpl halt".to_string(), request.after_checkpoint)
        } else if self.settings.stop_at_ms.is_some_and(|at| now >= at) {
            ("the time limit".to_string(), false)
        } else {
            return Ok(None);
        };
        let why = format!("stopped on request by {why}");
        self.note(Event::HaltRequested { after_checkpoint, why: why.clone() })?;
        let now = Instant::now();
        self.halt = Some(Halt { why: why.clone(), after_checkpoint, since: now, told: now });
        Ok(Some(why))
    }

    /// Carries a wish to stop out. Some: patience is at an end.
    fn halting(&mut self) -> anyhow::Result<Option<String>> {
        if self.asked_to_halt()?.is_some() {
            self.status.activity = Activity::Halting;
            let now = !self.halt.as_ref().is_some_and(|h| h.after_checkpoint);
            self.cluster.halt_all(now);
        }
        let Some(halt) = &mut self.halt else { return Ok(None) };
        if halt.told.elapsed() >= TELL_AGAIN {
            halt.told = Instant::now();
            self.cluster.halt_all(!halt.after_checkpoint);
        }
        if ASKED_TO_STOP.load(Ordering::Relaxed) > 1 {
            return Ok(Some("stopped at once on request; the last save counts".to_string()));
        }
        let late = halt.since.elapsed() > self.settings.halt_patience;
        Ok(late.then(|| format!("{}, without a new save: the ranks did not react", halt.why)))
    }

    fn refresh_status(&mut self) {
        let placed = &self.state.placed;
        let ranks_of = |name: &str| placed.iter().find(|h| h.name == name).map(|h| h.slots);
        let nodes = self
            .cluster
            .nodes
            .iter()
            .map(|node| {
                let name = &node.host.name;
                let (role, note) = match self.cluster.fitness(name, &self.expected(name)) {
                    Fitness::Lost { returned } => {
                        let why = node.lost.clone().unwrap_or_default();
                        let back = if returned.is_some() { ", answers again" } else { "" };
                        (NodeRole::Lost, format!("{why}{back}"))
                    }
                    Fitness::Unfit(why) => (NodeRole::Unfit, why),
                    Fitness::Fit { .. } if ranks_of(name).is_some() => {
                        let slow = self.slow.get(name).map(|why| format!("slow: {why}"));
                        (NodeRole::Working, slow.unwrap_or_default())
                    }
                    Fitness::Fit { .. } => (NodeRole::Spare, String::new()),
                };
                let ranks = if role == NodeRole::Working { ranks_of(name).unwrap_or(0) } else { 0 };
                NodeStatus { name: name.clone(), role, ranks, note }
            })
            .collect();
        self.status.nodes = nodes;
        self.status.faults = timeline::faults(&self.records);
        self.status.updated_ms = unix_ms();
        match self.computing_since {
            Some((since, from)) => self.status.measure(from, since.elapsed().as_secs_f64()),
            None => self.status.measure(0, 0.0),
        }
    }

    fn write_status(&mut self) {
        self.refresh_status();
        // A full disk must not end the run; the journal will tell if it matters.
        let _ = write_whole(&self.settings.folder.status(), &self.status);
    }

    fn show_line(&mut self) {
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            if self.lines.due(self.now_ms(), self.status.share()) {
                eprintln!("skt-hpl run: {}", self.status.line(unix_ms()).trim_start());
            }
            return;
        }
        eprint!("\r\x1b[K{}", self.status.line(unix_ms()));
        self.line_shown = true;
    }

    /// Makes room for a whole line where the progress line may stand.
    fn finish_line(&mut self) {
        if std::mem::take(&mut self.line_shown) {
            eprint!("\r\x1b[K");
        }
    }
}

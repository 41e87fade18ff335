//! `skt-hpl run`: the benchmark under supervision, from its start to its result.
//!
//! Makes `supervise::Settings` from the flags, the files and the batch system's environment. The first word that is no flag of
//! this subcommand, and all words after it, go to the benchmark unchanged.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};
use std::time::Duration;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Command, FromArgMatches};

use super::node_flags::{NodeFlags, Nodes};
use super::stored_checkpoints;
use super::template::{from_any_folder, own_program};
use crate::base::clock::steady_ms;
use crate::base::exit::Refusal;
use crate::base::params::Device;
use crate::base::timed_command::ask;
use crate::base::units::{duration, whole_bytes};
use crate::checkpoint::storage::DirScope;
use crate::config::Loaded;
use crate::config::flags::BenchFlags;
use crate::config::processors::List;
use crate::config::settings::Restart;
use crate::config::sources::nearest;
use crate::driver::need::{self, Needs};
use crate::kernels::Library;
use crate::kernels::arithmetic::Rules;
use crate::supervise::judge::ending::{STATUS_LOSS, STATUS_RESUMABLE};
use crate::supervise::judge::policy::MAX_RESTARTS;
use crate::supervise::judge::thresholds::Thresholds;
use crate::supervise::remember::folder::{self, Folder};
use crate::supervise::remember::journal::{self, RunState};
use crate::supervise::start::hosts::{Allocation, BatchSystem, Host};
use crate::supervise::start::launcher::Tool;
use crate::supervise::start::room::maps;
use crate::supervise::supervisor::{Benchmark, Settings, supervise};
use crate::supervise::talk::agent::Asked;
use crate::supervise::talk::shell::{library_path, quote, quote_all, variables};
use crate::supervise::talk::wire::{HEARTBEAT_MS, ORPHAN_TIMEOUT_MS};
use crate::supervise::tell::status::Problem;

/// Flags of the supervisor.
#[derive(Clone, Debug, Args)]
#[command(trailing_var_arg = true)]
pub struct RunFlags {
    #[command(flatten)]
    pub nodes: NodeFlags,

    /// Folder of this run, for the journal, the status and the output
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT, help_heading = "Run")]
    pub state: PathBuf,

    /// Interval of progress lines if no terminal shows the progress; 0 for none.
    ///
    /// A line also appears at every 5 % of the run.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s", help_heading = "Run")]
    pub progress_every: Duration,

    /// Give up an unfinished run in the folder of --state, and begin a new one.
    ///
    /// The supervisor ends the old run's processes and removes its memory, on every node that the supervisor can reach.
    #[arg(long, help_heading = "Run")]
    pub new: bool,

    /// Number of ranks [default: the largest grid of the tests, its ranks for checksums, and --spare-ranks]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub ranks: Option<usize>,

    /// Program that the ranks run [default: this one]
    #[arg(long, value_name = "PATH", help_heading = "Run")]
    pub program: Option<PathBuf>,

    /// Variable for the ranks, NAME or NAME=VALUE; may be given several times
    #[arg(long, value_name = "VAR", help_heading = "Run")]
    pub export: Vec<String>,

    /// Name of the ranks' memory [default: the benchmark's --job; with --program, all memory of this user]
    #[arg(long, value_name = "NAME", hide_short_help = true, help_heading = "Run")]
    pub memory_name: Option<String>,

    /// Shared memory that a rank needs, such as 2G [default: computed from the test].
    ///
    /// A spare node must have this much free for each rank that it takes.
    #[arg(long, value_name = "SIZE", value_parser = whole_bytes, hide_short_help = true, help_heading = "Run")]
    pub rank_memory: Option<u64>,

    /// Skip the trial start of MPI before the first launch.
    ///
    /// With --program there is no trial start.
    #[arg(long, help_heading = "Run")]
    pub no_trial: bool,

    /// Save and stop after this time, such as 90m or 3600s.
    ///
    /// In a Slurm job the run also stops when the time left of the job is --stop-early.
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Run")]
    pub time_limit: Option<Duration>,

    /// Time before the end of a Slurm job at which the run saves and stops
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "120s", help_heading = "Run")]
    pub stop_early: Duration,

    /// Longest time for saving and stopping.
    ///
    /// After this time the supervisor ends the ranks. The time that `halt --after-checkpoint` waits for a checkpoint does not
    /// count.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "300s", help_heading = "Run")]
    pub stop_timeout: Duration,

    /// Wait this long for a repaired node if no node is left [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Recovery")]
    pub wait: Option<Duration>,

    /// Never put further ranks on a surviving node
    #[arg(long, help_heading = "Recovery")]
    pub no_doubling: bool,

    /// Give up after N faults in a row without progress between two of them
    #[arg(long, value_name = "N", default_value_t = MAX_RESTARTS,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Recovery")]
    pub max_restarts: u32,

    /// Flags of the benchmark, after all flags of this command itself
    #[arg(value_name = "BENCHMARK FLAGS", allow_hyphen_values = true)]
    pub bench: Vec<OsString>,

    // This field is the last, because its heading would also apply to fields after it.
    #[command(flatten)]
    pub detection: DetectionFlags,
}

/// Flags of heartbeats, and of nodes and ranks that are lost, hang or are slow.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Detection")]
pub struct DetectionFlags {
    /// Time between heartbeats, from 50 ms to 10 s
    #[arg(long, value_name = "TIME", value_parser = beat, default_value = flag_time(HEARTBEAT_MS))]
    pub heartbeat: Duration,

    /// Time without a heartbeat after which a node is lost
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = flag_time(Thresholds::default().node_timeout_ms))]
    pub node_timeout: Duration,

    /// Time without a message of the run after which a node ends its ranks.
    ///
    /// The node ends its ranks only if these ranks also made no progress for this time.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = flag_time(ORPHAN_TIMEOUT_MS),
          hide_short_help = true)]
    pub orphan_timeout: Duration,

    /// Factor X: a rank hangs if an iteration takes X times its usual time
    #[arg(long, value_name = "X", default_value_t = Thresholds::default().hang_factor, hide_short_help = true)]
    pub hang_factor: f64,

    /// Shortest time without progress after which a rank counts as hanging.
    ///
    /// Under --nonstop and --method abft this time is at least 15 s.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = flag_time(Thresholds::default().hang_min_ms))]
    pub hang_min: Duration,

    /// Longest time without progress outside of iterations: generating, saving, solving
    #[arg(long, value_name = "TIME", value_parser = duration,
          default_value = flag_time(Thresholds::default().progress_timeout_ms))]
    pub progress_timeout: Duration,

    /// Time after a launch in which the first rank must show progress
    #[arg(long, value_name = "TIME", value_parser = duration,
          default_value = flag_time(Thresholds::default().startup_timeout_ms))]
    pub startup_timeout: Duration,

    /// Factor X: a node is slow if its ranks take X times as long as ranks of other nodes for the same work.
    ///
    /// The supervisor names slow nodes.
    #[arg(long, value_name = "X", default_value_t = Thresholds::default().pace_factor, value_parser = more_than_one,
          hide_short_help = true)]
    pub slow_factor: f64,

    /// Time for which a node must be slow before the supervisor names it
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = flag_time(Thresholds::default().pace_ms),
          hide_short_help = true)]
    pub slow_after: Duration,
}

/// Returns a time in milliseconds as the user would write it in a flag, such as `4s` or `500ms`.
fn flag_time(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

/// Parses a time between heartbeats, from 50 ms to 10 s. Shorter times would keep the nodes busy. With longer times a loss would
/// be unnoticed for long.
fn beat(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if (Duration::from_millis(50)..=Duration::from_secs(10)).contains(&time) => Ok(time),
        _ => Err("a time from 50ms to 10s is needed".to_owned()),
    }
}

/// Parses a factor above 1: a factor of 1 or less would make every node slow.
fn more_than_one(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 1.0 => Ok(value),
        _ => Err("a number above 1 is needed".to_owned()),
    }
}

/// If the run continues after a loss, puts the launcher's options for this in front of the user's arguments `extra`, which
/// override these options. Returns an error if the launcher cannot let a job continue without a lost rank.
pub(super) fn words_to_go_on(
    tool: &Tool,
    extra: &mut Vec<String>,
    settings: Option<&crate::config::settings::Settings>,
) -> Result<(), Refusal> {
    let Some(settings) = settings.filter(|settings| settings.goes_on()) else { return Ok(()) };
    let Some(words) = tool.goes_on() else {
        return Err(Refusal::environment(format!(
            "{} needs a launcher that lets a job continue without a lost rank: Open MPI 5's mpirun \
             (scripts/setup.sh --with-openmpi5); the launcher here is {}",
            if settings.sums() > 0 { "--method abft" } else { "--nonstop" },
            tool.program.display()
        )));
    };
    extra.splice(0..0, words.iter().map(|word| word.to_string()));
    Ok(())
}

/// Facts for the supervisor from the benchmark's own flags and files.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) loaded: Loaded,
    /// Number of ranks of the largest grid, plus the spare ranks.
    pub(super) ranks: usize,
    /// Order and block size of all tests; None if the tests differ in order, block size or grid.
    problem: Option<Problem>,
    /// Name of the ranks' memory; None if the run saves nothing.
    pub(super) job: Option<String>,
}

/// Returns the refusal of benchmark flags that were given to the command `own`. For an unknown flag, the refusal suggests the
/// most similar flag of `own` and the benchmark.
fn usage(error: clap::Error, own: &Command, bench: &Command) -> Refusal {
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(name)) => name.to_string(),
        _ => return Refusal::usage(error),
    };
    let mut why = format!("unexpected argument '{unknown}' found");
    let command = own.get_name();
    if let Some(long) = unknown.strip_prefix("--") {
        let longs = |command: &Command| -> Vec<String> {
            command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
        };
        let (of_own, of_bench) = (longs(own), longs(bench));
        if long == "help" || of_own.iter().any(|name| name == long) {
            why += &format!(
                "\n\n  --{long} is a flag of `{command}` itself: write it before the first flag of the benchmark"
            );
        } else if let Some(near) = nearest(long, of_own.iter().chain(&of_bench)) {
            let own = of_own.contains(near).then(|| format!("`{command}`"));
            let whose = own.unwrap_or_else(|| "the benchmark".to_owned());
            why += &format!("\n\n  tip: {whose} has a similar flag: '--{near}'");
        }
    }
    Refusal::usage(own.clone().error(ErrorKind::UnknownArgument, why))
}

/// Parses the benchmark's flags that were given to the command `own`.
pub(super) fn bench_flags(arguments: &[OsString], own: &Command) -> Result<BenchFlags, Refusal> {
    // `own` has the only help flag, and reads its flags before the benchmark's.
    let command = Command::new("skt-hpl").no_binary_name(true).disable_help_flag(true);
    let command = BenchFlags::augment_args(command);
    let matches = command.clone().try_get_matches_from(arguments);
    let matches = matches.map_err(|error| usage(error, own, &command))?;
    BenchFlags::from_arg_matches(&matches).map_err(|error| usage(error, own, &command))
}

/// Returns the definition of the command `skt-hpl run`.
pub(super) fn own_command() -> Command {
    RunFlags::augment_args(Command::new("skt-hpl run"))
}

/// Returns the plan of a run whose benchmark flags are given to the command `own`.
pub(super) fn plan(arguments: &[OsString], own: &Command) -> Result<Plan, Refusal> {
    let flags = bench_flags(arguments, own)?;
    flags.input().told().iter().for_each(crate::base::terminal::say);
    let loaded = flags.input().load().map_err(Refusal::bad_input)?;
    let tests: Vec<_> = loaded.largest_tests().collect();
    let ranks = tests.iter().map(|t| loaded.settings.ranks(t.p, t.q)).max().unwrap_or(1)
        + loaded.settings.spare_ranks();
    let problem = match &tests[..] {
        [one] => Some(Problem { n: one.n as u64, nb: one.nb as u64 }),
        _ => None,
    };
    let job = loaded.settings.saves().map(|p| p.job.clone());
    Ok(Plan { loaded, ranks, problem, job })
}

/// Returns the facts that agents are to find out about their nodes for this run.
pub(super) fn asked(loaded: &Loaded) -> Asked {
    let settings = &loaded.settings;
    let blas = settings.blas.as_deref().map(from_any_folder);
    let protection = settings.saves();
    let storage = protection.and_then(stored_checkpoints::asked);
    let helper_cores = protection.and_then(|p| p.helper_cores.as_ref()).map(List::to_string);
    Asked { blas, storage, helper_cores, devices: settings.device == Device::Cuda }
}

/// Returns the command that starts an agent on a node. `own` is the path of this program.
pub(super) fn agent_words(own: &str, asked: &Asked) -> Vec<String> {
    [own.to_owned(), "agent".to_owned()].into_iter().chain(asked.words()).collect()
}

/// Returns the rules that decide whether all nodes compute the same bits. None if the run saves no checkpoints, and so need not
/// give identical bits.
pub(super) fn rounding_rules(loaded: &Loaded, exported: &[String]) -> Option<Rules> {
    loaded.settings.saves()?;
    let settings = &loaded.settings;
    let variables = match settings.blas {
        Some(_) => Library::VARIABLES.to_vec(),
        None => vec![Library::query().variable],
    };
    let mut exported = exported.iter().filter_map(|item| item.split('=').next());
    let told = exported.any(|name| variables.contains(&name));
    let (engine, preflight) = (settings.engine, settings.preflight);
    Some(Rules { engine, preflight, told, named: settings.blas.is_some() })
}

pub(super) fn enough_slots(ranks: usize, slots: usize, nodes: usize) -> Result<(), Refusal> {
    if ranks <= slots {
        return Ok(());
    }
    Err(Refusal::usage(format!(
        "{ranks} ranks are needed, but the {nodes} node(s) have {slots} slots: write for example `n1 slots=4` in the host file"
    )))
}

/// Timeout for Slurm's answer on the end of a job: Slurm's controller may be busy or down.
const SLURM_ANSWERS: Duration = Duration::from_secs(20);

/// Returns the moment at which the Slurm job ends, in Unix milliseconds; None if the job has no limit or Slurm does not answer.
fn slurm_end_ms(job: &str) -> Option<u64> {
    if let Some(end_s) =
        std::env::var("SLURM_JOB_END_TIME").ok().and_then(|t| t.parse::<u64>().ok())
    {
        return Some(end_s * 1000);
    }
    let mut squeue = Process::new("squeue");
    match time_left(squeue.args(["-h", "-j", job, "-o", "%L"]), SLURM_ANSWERS) {
        Ok(left_s) => left_s.map(|left_s| steady_ms() + left_s * 1000),
        Err(why) => {
            tell!(
                "skt-hpl run: squeue does not say when job {job} ends ({why}), so the run cannot save and stop before \
                 the job ends; set --time-limit TIME"
            );
            None
        }
    }
}

/// Returns the time left of a Slurm job in seconds, as `squeue` prints it. If `squeue` prints several times, returns the
/// smallest. None if the job has no limit.
fn time_left(squeue: &mut Process, answers: Duration) -> Result<Option<u64>, String> {
    let (status, text) = ask(squeue, answers).map_err(|error| error.to_string())?;
    if status.success() {
        Ok(text.lines().filter_map(|line| slurm_time(line.trim())).min())
    } else {
        Err(status.to_string())
    }
}

/// Parses `1-02:03:04`, `02:03:04`, `03:04` as seconds; words such as UNLIMITED give None.
fn slurm_time(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<u64>().ok()?, rest),
        None => (0, text),
    };
    let mut seconds = 0;
    for field in rest.split(':') {
        seconds = seconds * 60 + field.parse::<u64>().ok()?;
    }
    Some(days * 86_400 + seconds)
}

/// Refuses a folder of --state whose path the launcher cannot use.
pub(super) fn usable(tool: &Tool, state: &Path) -> Result<(), Refusal> {
    let state = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
    if tool.can_use(&state) {
        return Ok(());
    }
    let why = format!(
        "the path of --state, {}, has a space or a colon in it: Open MPI's mpirun reaches nodes by a file in this folder, \
         and splits the file's path at these characters. Give --state a path without spaces and colons",
        state.display()
    );
    Err(Refusal::usage(why))
}

fn settings(flags: &RunFlags) -> Result<Settings, Refusal> {
    let own_command = own_command();
    if flags.program.is_none() {
        // These words may contain a misspelt flag of this command. Such a flag is reported before its later effects.
        bench_flags(&flags.bench, &own_command)?;
    }
    let mut nodes = flags.nodes.some_nodes(flags.detection.node_timeout)?;
    let (tool, mut extra) = flags.nodes.launcher()?;
    let own = own_program()?;
    let planned =
        if flags.program.is_none() { Some(plan(&flags.bench, &own_command)?) } else { None };
    let loaded = planned.as_ref().map(|p| &p.loaded);
    planned.iter().for_each(warn_unprotected);
    words_to_go_on(&tool, &mut extra, loaded.map(|l| &l.settings))?;
    let ranks = flags.ranks.or(planned.as_ref().map(|p| p.ranks));
    let ranks = fit_ranks(ranks, &mut nodes, &extra)?;
    let folder = Folder::new(&flags.state);
    let began = began_as(&folder).filter(|_| !flags.new);
    let mut asked = loaded.map(asked).unwrap_or_default();
    let mut benchmark = Benchmark::default();
    let mut rank_bytes = flags.rank_memory;
    if let Some(planned) = &planned {
        let needs = needs(&planned.loaded, flags, &nodes.hosts, ranks, began.is_some())?;
        rank_bytes = rank_bytes.or(needs.rank_bytes);
        benchmark = known_benchmark(planned, needs, &nodes.hosts, &asked, &flags.export);
    }
    let command = command(flags.program.as_ref().unwrap_or(&own), &flags.bench)?;
    let mut env = environment(&flags.export)?;
    usable(&tool, &flags.state)?;
    let trial = !flags.no_trial && planned.is_some();
    let mut job = planned.and_then(|p| p.job);
    // The ranks do not get the batch system's variables, from which the default name is made. So they get the name itself.
    if let Some(name) = &mut job
        && !env.iter().any(|(n, _)| n == "SKT_JOB")
    {
        keep_name(name, began, &mut asked);
        env.push(("SKT_JOB".to_owned(), name.clone()));
    }
    Ok(Settings {
        stop_at_ms: stop_at_ms(flags, nodes.allocation.as_ref()),
        hosts: nodes.hosts,
        spares: nodes.spares,
        ranks,
        tool,
        shell: nodes.shell,
        extra,
        command,
        env,
        agent: agent_words(&own.to_string_lossy(), &asked),
        folder,
        job: flags.memory_name.clone().or(job),
        thresholds: thresholds(&flags.detection, benchmark.in_place),
        benchmark,
        beat_ms: ms(flags.detection.heartbeat),
        orphan_timeout_ms: ms(flags.detection.orphan_timeout),
        fanout: flags.nodes.fanout as usize,
        max_restarts: flags.max_restarts,
        may_double: !flags.no_doubling,
        wait: flags.wait,
        stop_timeout: flags.stop_timeout,
        rank_bytes,
        trial,
        progress_every: flags.progress_every,
        discard: flags.new,
    })
}

/// Prints a warning if the run saves no checkpoints: after a fault its test starts from scratch.
fn warn_unprotected(plan: &Plan) {
    if plan.job.is_some() {
        return;
    }
    let fault = if plan.loaded.settings.sums() > 0 {
        "a fault that checksums cannot recover, such as the loss of a node,"
    } else {
        "any fault"
    };
    tell!(
        "skt-hpl run: nothing will be saved, so after {fault} the test starts from scratch; see --checkpoint"
    );
}

/// Returns `ranks`, and moves nodes without a rank to the spares, unless the user sets the launcher's mapping. Returns an error
/// if `ranks` is None, or if the nodes have fewer slots.
fn fit_ranks(ranks: Option<usize>, nodes: &mut Nodes, extra: &[String]) -> Result<usize, Refusal> {
    let Some(ranks) = ranks else {
        let why =
            "--program needs --ranks: skt-hpl does not know how many ranks another program needs";
        return Err(Refusal::usage(why));
    };
    let slots = nodes.hosts.iter().map(|h| h.slots).sum();
    enough_slots(ranks, slots, nodes.hosts.len())?;
    if !maps(extra)
        && let Some(words) = nodes.stand_by(ranks)
    {
        tell!("skt-hpl run: {words}");
    }
    Ok(ranks)
}

/// Changes the name of the memory to `began`, its name at the first start of a resumed run. The default name differs in another
/// batch job. Changes nothing if `began` is None.
fn keep_name(name: &mut String, began: Option<String>, asked: &mut Asked) {
    let Some(began) = began.filter(|began| began != name) else { return };
    tell!(
        "skt-hpl run: the run resumes with the memory of its first start, which has the name {began} (--job)"
    );
    if let Some(dir) = &mut asked.storage {
        dir.job.clone_from(&began);
    }
    *name = began;
}

/// Returns the memory and storage that the run needs on each host. `began` is true if the folder of --state has an unfinished
/// run, which is resumed.
fn needs(
    loaded: &Loaded,
    flags: &RunFlags,
    hosts: &[Host],
    ranks: usize,
    began: bool,
) -> Result<Needs, Refusal> {
    let protection = loaded.settings.saves();
    let resumes = !flags.new && protection.is_some_and(|p| began || need::may_go_on(p));
    let needs = need::of_hosts(loaded, hosts, ranks, resumes).map_err(Refusal::bad_input)?;
    for words in needs.other_groups_words().into_iter().chain(needs.left_out_words()) {
        tell!("skt-hpl run: warning: {words}");
    }
    Ok(needs)
}

/// Returns the facts about the benchmark that the supervisor needs and that the benchmark's own settings contain.
fn known_benchmark(
    planned: &Plan,
    needs: Needs,
    hosts: &[Host],
    asked: &Asked,
    exported: &[String],
) -> Benchmark {
    let Plan { loaded, problem, .. } = planned;
    let protection = loaded.settings.saves();
    // Checkpoints on a node's own storage are of no use to other nodes.
    let level2 = protection.and_then(|p| p.level2.as_ref()).filter(|l| l.scope == DirScope::Shared);
    Benchmark {
        progress_shows: true,
        in_place: loaded.settings.goes_on(),
        stays_vacant: loaded.settings.sums() > 0,
        needs: hosts.iter().map(|h| h.name.clone()).zip(needs.hosts).collect(),
        groups: needs.groups,
        rounding: rounding_rules(loaded, exported),
        problem: *problem,
        saves: protection.is_some(),
        level2: level2.map(|l| l.dir.clone()),
        own_level2: asked.storage.as_ref().filter(|dir| dir.own).map(|dir| dir.path.clone()),
        restarts_never: protection.is_some_and(|p| p.restart == Restart::Never),
    }
}

/// Returns the command line of the ranks: `program` and the words after it. Returns an error if a word is not valid UTF-8.
fn command(program: &Path, words: &[OsString]) -> Result<Vec<String>, Refusal> {
    let text = |word: &OsString| match word.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Refusal::usage(format!("{word:?} is not valid UTF-8"))),
    };
    std::iter::once(Ok(program.to_string_lossy().into_owned()))
        .chain(words.iter().map(text))
        .collect()
}

/// Returns the variables for the ranks: the variables of `--export`, the settings of the benchmark, and the library path. Returns
/// an error if `--export` names a variable that is not set.
fn environment(export: &[String]) -> Result<Vec<(String, String)>, Refusal> {
    let mut env = Vec::new();
    for item in export {
        let (name, value) = match item.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match std::env::var(item) {
                Ok(value) => (item.as_str(), value),
                Err(_) => {
                    let why = format!("--export {item}: the variable {item} is not set");
                    return Err(Refusal::usage(why));
                }
            },
        };
        env.push((name.to_owned(), value));
    }
    // Settings of the benchmark may be given as variables; every launcher must pass these variables on.
    let own = ["SKT_RUN_ID", "SKT_ATTEMPT"];
    let set =
        variables().filter(|(name, _)| name.starts_with("SKT_") && !own.contains(&name.as_str()));
    for (name, value) in set.chain(library_path()) {
        if !env.iter().any(|(n, _)| *n == name) {
            env.push((name, value));
        }
    }
    Ok(env)
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

/// Returns the moment at which the run is to stop, in Unix milliseconds. This is the earlier of two moments: the end of
/// --time-limit, and --stop-early before the end of the Slurm job. None if there is no limit.
fn stop_at_ms(flags: &RunFlags, allocation: Option<&Allocation>) -> Option<u64> {
    let slurm = allocation.filter(|a| a.system == BatchSystem::Slurm);
    let job_end = slurm
        .and_then(|a| slurm_end_ms(&a.job))
        .map(|end| end.saturating_sub(ms(flags.stop_early)));
    let own_end = flags.time_limit.map(|limit| steady_ms() + ms(limit));
    [job_end, own_end].into_iter().flatten().min()
}

/// Returns the limits after which nodes and ranks count as lost, hanging or slow. `in_place` is true if the job continues in its
/// processes after a loss.
fn thresholds(flags: &DetectionFlags, in_place: bool) -> Thresholds {
    let limits = Thresholds {
        node_timeout_ms: ms(flags.node_timeout),
        hang_factor: flags.hang_factor,
        hang_min_ms: ms(flags.hang_min),
        stopped_ms: ms(flags.hang_min),
        progress_timeout_ms: ms(flags.progress_timeout),
        startup_timeout_ms: ms(flags.startup_timeout),
        pace_factor: flags.slow_factor,
        pace_ms: ms(flags.slow_after),
        ..Thresholds::default()
    };
    if in_place { limits.in_place() } else { limits }
}

/// Refuses limits so short that healthy nodes and ranks would be taken for lost.
fn long_enough(flags: &DetectionFlags, beat_ms: u64) -> Result<(), Refusal> {
    let heard = [
        ("node-timeout", flags.node_timeout, "a late answer looks like a loss"),
        ("hang-min", flags.hang_min, "a rank seems to hang before its first heartbeat arrives"),
        (
            "progress-timeout",
            flags.progress_timeout,
            "a rank seems to hang before its first heartbeat arrives",
        ),
        ("startup-timeout", flags.startup_timeout, "no rank can show progress in time"),
    ];
    for (flag, time, or) in heard {
        if time < Duration::from_millis(2 * beat_ms) {
            let why = format!("--{flag} must be at least twice --heartbeat; otherwise {or}");
            return Err(Refusal::usage(why));
        }
    }
    if flags.orphan_timeout <= flags.node_timeout {
        let why = "--orphan-timeout must be longer than --node-timeout; otherwise a node ends its ranks before the node counts as lost";
        return Err(Refusal::usage(why));
    }
    Ok(())
}

/// Returns the name of the memory of an unfinished run in `folder`; None if there is no such run, or it has no memory.
fn began_as(folder: &Folder) -> Option<String> {
    let path = folder.journal();
    let (records, _) = journal::parse(&std::fs::read(&path).ok()?, &path).ok()?;
    let state = RunState::replay(&records);
    if state.can_go_on() { state.job } else { None }
}

/// Returns the shell command that resumes a run: the command of this process without --new, which would give the run up.
fn again(words: impl Iterator<Item = OsString>) -> String {
    let words = words.map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.filter(|word| word != "--new").collect();
    let folder = std::env::current_dir().unwrap_or_default();
    format!("cd {} && {}", quote(&folder.to_string_lossy()), quote_all(&words))
}

pub fn run(flags: &RunFlags) -> ExitCode {
    run_supervised(flags).unwrap_or_else(|refusal| super::refuse("run", refusal))
}

fn run_supervised(flags: &RunFlags) -> Result<ExitCode, Refusal> {
    let settings = settings(flags)?;
    long_enough(&flags.detection, settings.beat_ms)?;
    let code = supervise(&settings).map_err(|error| Refusal::environment(format!("{error:#}")))?;
    let given_up = code == STATUS_LOSS && settings.job.is_some();
    if code == STATUS_RESUMABLE || given_up {
        let name = settings.job.as_ref().map_or_else(String::new, |job| {
            format!(" (mpirun and skt-hpl clean find the run's memory with --job {job})")
        });
        let nodes = match settings.benchmark.level2 {
            Some(_) => "with these nodes or any others",
            None => "with these nodes",
        };
        tell!(
            "skt-hpl run: to resume, now or in another batch job {nodes}{name}:\n  {}",
            again(std::env::args_os())
        );
    }
    Ok(ExitCode::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::exit::Exit;
    use crate::supervise::remember::events::Event;
    use crate::supervise::remember::journal::Journal;
    use crate::supervise::start::launcher::Launcher;
    use clap::Parser;

    #[test]
    fn the_command_that_goes_on_gives_nothing_up() {
        let words = ["/opt/my bin/skt-hpl", "run", "--new", "--state", "s", "-n", "9"];
        let told = again(words.map(OsString::from).into_iter());
        let wanted = "&& '/opt/my bin/skt-hpl' run --state s -n 9";
        assert!(told.starts_with("cd ") && told.ends_with(wanted), "{told}");
    }

    #[derive(Debug, Parser)]
    struct Probe {
        #[command(flatten)]
        run: RunFlags,
    }

    #[test]
    fn own_flags_first_then_the_benchmarks() {
        let words = [
            "x",
            "--hosts",
            "h",
            "--node-timeout",
            "2s",
            "-n",
            "8000",
            "--nb",
            "64",
            "--node-timeout",
            "x",
        ];
        let flags = Probe::try_parse_from(words).unwrap().run;
        assert_eq!(flags.detection.node_timeout, Duration::from_secs(2));
        assert_eq!(
            flags.bench,
            ["-n", "8000", "--nb", "64", "--node-timeout", "x"].map(OsString::from)
        );
    }

    #[test]
    fn an_own_flag_among_the_benchmarks_is_told_its_place() {
        let why = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            plan(&words, &own_command()).unwrap_err().why
        };
        let own = why(&["-n", "200", "--state", "folder"]);
        assert!(own.contains("--state is a flag of `skt-hpl run` itself"), "{own}");
        assert!(!why(&["-n", "200", "--stat", "folder"]).contains("itself"));
    }

    #[test]
    fn heartbeats_are_neither_too_many_nor_too_few() {
        let time = |text: &str| Probe::try_parse_from(["x", "--heartbeat", text]);
        for good in ["50ms", "500ms", "10s"] {
            let flags = time(good).unwrap().run;
            assert_eq!(flags.detection.heartbeat, duration(good).unwrap());
        }
        for bad in ["0", "49ms", "10001ms", "1min"] {
            let why = time(bad).unwrap_err().to_string();
            assert!(why.contains("from 50ms to 10s is needed"), "{bad}: {why}");
        }
    }

    #[test]
    fn factors_make_a_difference() {
        assert_eq!(more_than_one("1.5"), Ok(1.5));
        for bad in ["1", "0.5", "NaN", "inf", ""] {
            assert!(more_than_one(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_that_spoil_every_run_are_refused() {
        let told = |words: &[&str]| {
            let words = ["x", "--hosts", "h"].iter().chain(words);
            let flags = Probe::try_parse_from(words).unwrap().run;
            long_enough(&flags.detection, 500).map_err(|Refusal { exit, why }| {
                assert_eq!(exit, Exit::Usage);
                why
            })
        };
        for good in [
            &[][..],
            &["--node-timeout", "1s"],
            &["--node-timeout", "6s", "--orphan-timeout", "8s"],
            &["--hang-min", "1s", "--progress-timeout", "1s", "--startup-timeout", "1s"],
        ] {
            assert_eq!(told(good), Ok(()), "{good:?}");
        }
        for (flag, short) in [
            ("--node-timeout", "900ms"),
            ("--hang-min", "0"),
            ("--progress-timeout", "0"),
            ("--progress-timeout", "900ms"),
            ("--startup-timeout", "0s"),
            ("--orphan-timeout", "0"),
            ("--orphan-timeout", "3s"),
            ("--orphan-timeout", "4s"),
        ] {
            let why = told(&[flag, short]).unwrap_err();
            assert!(why.starts_with(flag), "{flag} {short}: {why}");
        }
    }

    #[test]
    fn a_run_that_can_go_on_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path());
        assert_eq!(began_as(&folder), None, "nothing is there");
        let (mut journal, _) = Journal::open(&folder.journal()).unwrap();
        journal
            .append(Event::RunStarted {
                run_id: "r".to_owned(),
                version: "0".to_owned(),
                command: vec!["x".to_owned()],
                launcher: Launcher::Openmpi,
                ranks: 1,
                hosts: vec![Host::new("n1", 1)],
                spares: Vec::new(),
                job: Some("77_2".to_owned()),
                from_scratch: false,
                supervisor_host: "h".to_owned(),
                supervisor_pid: 1,
            })
            .unwrap();
        let name = Some("77_2".to_owned());
        assert_eq!(began_as(&folder), name, "its supervisor died");
        let mut end = |code| {
            journal.append(Event::Finished { code, why: String::new() }).unwrap();
            began_as(&folder)
        };
        assert_eq!(end(STATUS_RESUMABLE), name);
        assert_eq!(end(4), name, "what is left in memory is kept");
        assert_eq!(end(0), None, "it is over");
    }

    /// Five nodes with one slot each are given for four ranks, and one spare node. The fifth node becomes a spare.
    #[test]
    fn a_host_that_no_rank_falls_on_is_a_spare() {
        let dir = tempfile::tempdir().unwrap();
        let list = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.into_os_string().into_string().unwrap()
        };
        let (hosts, spares) = (list("hosts", "n1\nn2\nn3\nn4\nn5\n"), list("spares", "s1\n"));
        let settled = |more: &[&str]| {
            let words = ["x", "--hosts", &hosts, "--spares", &spares].into_iter();
            let bench = ["-n", "1000", "--nb", "32", "-p", "2", "-q", "2"];
            let words = words.chain(more.iter().copied()).chain(bench);
            match settings(&Probe::try_parse_from(words).unwrap().run) {
                Ok(settings) => settings,
                Err(Refusal { why, .. }) => panic!("{why}"),
            }
        };
        let names = |hosts: &[Host]| {
            hosts.iter().map(|host| host.name.as_str()).collect::<Vec<&str>>().join(" ")
        };
        let four = settled(&[]);
        assert_eq!(
            (names(&four.hosts), names(&four.spares)),
            ("n1 n2 n3 n4".into(), "s1 n5".into())
        );
        assert_eq!(four.benchmark.needs.len(), 4);
        // If the user sets the mapping, all nodes may get ranks, so no node becomes a spare.
        let mapped = settled(&["--launcher-args", "--map-by node"]);
        assert_eq!(
            (names(&mapped.hosts), names(&mapped.spares)),
            ("n1 n2 n3 n4 n5".into(), "s1".into())
        );
    }

    #[test]
    fn slurms_times() {
        assert_eq!(slurm_time("1-02:03:04"), Some(93_784));
        assert_eq!(slurm_time("03:04"), Some(184));
        assert_eq!(slurm_time("UNLIMITED"), None);
    }

    #[test]
    fn slurm_is_asked_for_the_time_left_and_not_waited_for() {
        let asked = |words: &str, answers: u64| {
            let mut shell = Process::new("/bin/sh");
            time_left(shell.args(["-c", words]), Duration::from_millis(answers))
        };
        assert_eq!(asked("echo 10:00", 20_000), Ok(Some(600)));
        assert_eq!(asked("echo UNLIMITED", 20_000), Ok(None));
        assert!(asked("echo 10:00; exit 1", 20_000).unwrap_err().contains('1'));
        assert_eq!(asked("exec sleep 60", 100), Err("timed out".to_owned()));
        assert!(time_left(&mut Process::new("/no/such/squeue"), SLURM_ANSWERS).is_err());
    }

    #[test]
    fn the_grid_tells_the_ranks() {
        let words = ["-n", "1000", "--nb", "32", "-p", "2", "-q", "3"].map(OsString::from);
        let dir = std::env::current_dir().unwrap();
        assert!(dir.join("Cargo.toml").exists());
        match plan(&words, &own_command()) {
            Ok(plan) => {
                assert_eq!(plan.ranks, 6);
                assert_eq!(plan.problem, Some(Problem { n: 1000, nb: 32 }));
                assert_eq!(plan.job, None);
            }
            Err(Refusal { why, .. }) => panic!("{why}"),
        }
    }
}

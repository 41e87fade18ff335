//! `skt-hpl doctor`: prints whether these nodes can run the benchmark, and which node has which problem.
//!
//! Without `--hosts`, the doctor checks this node alone. With `--hosts`, the doctor checks of each node that it can be reached,
//! has the same program, enough memory and the right time. The doctor also checks that MPI starts over all nodes. If flags of the
//! benchmark are given, the memory need is that of their run. `skt-hpl run` makes the same checks before its first launch.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::node_flags::{NodeFlags, Nodes};
use super::run::{self, Plan};
use super::stored_checkpoints;
use super::template::own_program;
use crate::base::clock::{self, unix_ms};
use crate::base::exit::{Exit, Refusal};
use crate::base::units::some_time;
use crate::checkpoint::plan::Helpers;
use crate::config::memory_need::human;
use crate::config::settings::Settings;
use crate::driver::need::{self, Needs};
use crate::kernels::arithmetic::Rules;
use crate::supervise::judge::fitness::{Expected, Finding, Need, judge};
use crate::supervise::remember::folder::Folder;
use crate::supervise::remember::io_thread::IoThread;
use crate::supervise::signals::{asked_by_signal, listen_to_signals};
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::Job;
use crate::supervise::start::launch::LaunchPlan;
use crate::supervise::start::launcher::Tool;
use crate::supervise::start::room::{maps, room};
use crate::supervise::start::trial::{self, Place, Trouble, WORTH_ANOTHER};
use crate::supervise::talk::agent::{binary_digest, facts, storage};
use crate::supervise::talk::cluster::{Cluster, FIRST_CALL, News};
use crate::supervise::talk::shell::{RemoteShell, library_path};
use crate::supervise::talk::wire::Attend;

/// Time without a message after which an agent ends. The time of two trials of MPI is added.
const LEFT_ALONE: Duration = Duration::from_secs(120);

/// Time to wait for the first heartbeat of each node.
const FIRST_BEAT: Duration = Duration::from_millis(2000);

const INTERRUPTED: &str = "interrupted by a signal: whether MPI starts is not known";

#[derive(Clone, Debug, Args)]
#[command(trailing_var_arg = true)]
pub struct DoctorFlags {
    #[command(flatten)]
    pub nodes: NodeFlags,

    /// Do not start MPI over the nodes
    #[arg(long)]
    pub no_mpi: bool,

    /// Longest time in which MPI must start over all nodes
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "60s")]
    pub mpi_timeout: Duration,

    /// Flags of the benchmark: the doctor then checks that the nodes have the memory and storage of that run
    #[arg(value_name = "BENCHMARK FLAGS", allow_hyphen_values = true)]
    pub bench: Vec<OsString>,
}

pub fn run(flags: &DoctorFlags) -> ExitCode {
    match examine(flags) {
        Ok(0) => crate::base::terminal::print(b"no problem found\n"),
        Ok(problems) => {
            show!("{problems} problem(s) found");
            Exit::Environment.into()
        }
        Err(refusal) => super::refuse("doctor", refusal),
    }
}

fn told(name: &str, findings: &[Finding]) -> usize {
    for finding in findings {
        match finding {
            Finding::Problem(text) => show!("{name}: PROBLEM: {text}"),
            Finding::Warning(text) => show!("{name}: warning: {text}"),
        }
    }
    findings.iter().filter(|f| matches!(f, Finding::Problem(_))).count()
}

/// Returns the memory and storage that the run needs on these hosts. `tell` is true if each host reports on its own storage:
/// then a problem with the storage of this node is no error.
fn needs(plan: &Plan, hosts: &[Host], tell: bool) -> Result<Needs, Refusal> {
    // Without a list of nodes, this node has all ranks.
    let slots: usize = hosts.iter().map(|h| h.slots).sum();
    run::enough_slots(plan.ranks, slots, hosts.len())?;
    let goes_on = plan.loaded.settings.saves().is_some_and(need::may_go_on);
    let needs =
        need::of_hosts(&plan.loaded, hosts, plan.ranks, goes_on).map_err(Refusal::bad_input)?;
    for words in needs.other_groups_words().into_iter().chain(needs.left_out_words()) {
        show!("warning: {words}");
    }
    if let Some(protection) = plan.loaded.settings.saves()
        && let Some(level2) = &protection.level2
    {
        let dir = level2.dir.display();
        let waits = protection.helpers == Helpers::Off;
        let looked = run::asked(&plan.loaded).storage.map(|dir| {
            // Storage that does not answer would block this process for ever, so another process accesses the storage first.
            storage(&dir)?;
            stored_checkpoints::examine(level2, &protection.job, needs.checkpoint_bytes(), waits)
        });
        match looked {
            None => show!(
                "{dir}: not checked, because its path depends on the domains of ranks (--domains); a checkpoint takes {} on the \
                 node that has the largest part",
                human(u128::from(needs.checkpoint_bytes()))
            ),
            Some(Ok(told)) => show!("{dir}: {told}"),
            Some(Err(_)) if tell => {}
            Some(Err(why)) => return Err(Refusal::environment(why)),
        }
    }
    Ok(needs)
}

/// Checks all nodes, prints the findings, and returns the number of problems.
pub(super) fn examine(flags: &DoctorFlags) -> Result<usize, Refusal> {
    let own = own_program()?.to_string_lossy().into_owned();
    let own_command = DoctorFlags::augment_args(clap::Command::new("skt-hpl doctor"));
    let plan = || run::plan(&flags.bench, &own_command);
    let planned = if flags.bench.is_empty() { None } else { Some(plan()?) };
    let asked = planned.as_ref().map(|plan| run::asked(&plan.loaded)).unwrap_or_default();
    let Some(mut nodes) = flags.nodes.nodes(Duration::ZERO)? else {
        return this_node(flags, planned.as_ref(), &own);
    };
    // The same nodes become spares as in the run.
    if let Some(plan) = &planned
        && !flags.nodes.launcher().is_ok_and(|(_, extra)| maps(&extra))
        && let Some(words) = nodes.stand_by(plan.ranks)
    {
        show!("{words}");
    }
    let needs = match &planned {
        Some(plan) => needs(plan, &nodes.hosts, asked.storage.is_some())?.hosts,
        None => Vec::new(),
    };
    let rules = planned.as_ref().and_then(|plan| run::rounding_rules(&plan.loaded, &[]));
    let run_id = format!("doctor-{}-{}", std::process::id(), unix_ms());
    let agent = run::agent_words(&own, &asked);
    // Memory that this run has already counts for it. Memory of other runs does not.
    let job = planned.as_ref().and_then(|plan| plan.job.clone()).unwrap_or_else(|| run_id.clone());
    let attend = Attend {
        fanout: flags.nodes.fanout as usize,
        // Agents receive no messages while MPI starts, and must not end its processes as orphaned.
        orphan_timeout_ms: (2 * flags.mpi_timeout + LEFT_ALONE).as_millis() as u64,
        ..Attend::new(nodes.shell.clone(), agent, &run_id, Some(job))
    };
    let mut cluster =
        Cluster::new(attend, &nodes.hosts, &nodes.spares).map_err(Refusal::environment)?;
    let mut problems = 0;
    for (at, why) in cluster.call_all(FIRST_CALL) {
        show!("{}: PROBLEM: {why}", cluster.nodes[at].host.name);
        problems += 1;
    }
    hear_of_all(&mut cluster);
    problems += report_nodes(&cluster, nodes.hosts.len(), &needs, rules);
    if problems > 0 {
        return Ok(problems);
    }
    let known = cluster.nodes.iter().filter_map(|node| node.facts.as_ref());
    let places = known.map(|(facts, _)| Place::of(facts));
    let ranks = planned.as_ref().map(|plan| plan.ranks);
    let pairs = trial_hosts(&nodes, ranks).into_iter().zip(places);
    let pairs: Vec<(Host, Place)> = pairs.filter(|(host, _)| host.slots > 0).collect();
    let cores = |name: &str| {
        let node = &cluster.nodes[cluster.find(name)?];
        node.facts.as_ref().map(|(facts, _)| facts.cores)
    };
    let settings = planned.as_ref().map(|plan| &plan.loaded.settings);
    let tried = start_mpi(flags, settings, &nodes.shell, &pairs, cores, &own, &run_id);
    if !matches!(tried, Ok(0)) {
        // The agents end processes that hang on their nodes.
        cluster.end_run(Duration::from_secs(8));
    }
    Ok(problems + tried?)
}

/// Prints the facts and the findings of all nodes. The first `working` nodes have ranks; the other nodes are spares. Returns the
/// number of problems.
fn report_nodes(cluster: &Cluster, working: usize, needs: &[Need], rules: Option<Rules>) -> usize {
    let binary = binary_digest();
    let most = needs.iter().copied().reduce(Need::max);
    let working = cluster.nodes.iter().take(working);
    let arithmetic = working.filter_map(|n| n.facts.as_ref()).map(|(facts, _)| &facts.arithmetic);
    let run = rules.and_then(|rules| rules.rounding(arithmetic));
    let rounding = rules.zip(run.as_deref());
    let mut problems = 0;
    for (at, node) in cluster.nodes.iter().enumerate() {
        let name = &node.host.name;
        if let Some((facts, _)) = &node.facts {
            show!("{name}: {}", facts.line());
        }
        let need = needs.get(at).copied().or(most);
        let expected = Expected { binary: &binary, need, rounding };
        problems += told(name, &cluster.findings(at, &expected));
    }
    problems
}

/// Returns the hosts of a trial start: with the `ranks` of the run if these are known, or else with one rank on each node. Each
/// spare gets as many ranks as the node with the most ranks.
fn trial_hosts(nodes: &Nodes, ranks: Option<usize>) -> Vec<Host> {
    let mut hosts: Vec<Host> = match ranks {
        Some(_) => nodes.hosts.clone(),
        None => nodes.hosts.iter().map(|h| Host::new(&h.name, 1)).collect(),
    };
    let mut left = ranks.unwrap_or(hosts.len());
    for host in &mut hosts {
        host.slots = host.slots.min(left);
        left -= host.slots;
    }
    let slots = hosts.iter().map(|h| h.slots).max().unwrap_or(1);
    hosts.extend(nodes.spares.iter().map(|h| Host::new(&h.name, slots)));
    hosts
}

/// Waits for the first heartbeat of each node, which reports the memory of the run on that node and the free memory.
fn hear_of_all(cluster: &mut Cluster) {
    cluster.beat_all();
    let mut missing = cluster.up();
    let until = Instant::now() + FIRST_BEAT;
    while !missing.is_empty() && Instant::now() < until {
        if let Some((node, News::Beat(_) | News::Closed(_))) =
            cluster.hear(Duration::from_millis(50))
        {
            missing.remove(&node);
        }
    }
}

fn this_node(flags: &DoctorFlags, planned: Option<&Plan>, own: &str) -> Result<usize, Refusal> {
    if let Some(flag) = flags.nodes.speaks_of_nodes() {
        let why = format!(
            "{flag} needs --hosts FILE, or a Slurm, PBS or LSF allocation: without a list of nodes, the doctor checks this node \
             alone"
        );
        return Err(Refusal::usage(why));
    }
    let mut asked = planned.map(|plan| run::asked(&plan.loaded)).unwrap_or_default();
    // `needs` itself checks the ranks' storage.
    asked.storage = None;
    let facts = facts(&asked);
    show!("{}: {}", facts.host, facts.line());
    let mut ranks = 1;
    let mut need = None;
    let mut problems = 0;
    let settings = planned.map(|plan| &plan.loaded.settings);
    if let Some(plan) = planned {
        ranks = plan.ranks;
        match needs(plan, &[Host::new(&facts.host, ranks)], false) {
            Ok(needs) => need = needs.hosts.first().copied(),
            Err(Refusal { why, .. }) => {
                show!("{}: PROBLEM: {why}", facts.host);
                problems += 1;
            }
        }
    }
    let protection = settings.and_then(Settings::saves);
    let held_bytes = protection.map_or(0, need::held_bytes);
    let binary = binary_digest();
    let expected = Expected { binary: &binary, need, rounding: None };
    problems += told(&facts.host, &judge(&facts, unix_ms(), held_bytes, &expected));
    // On this node the launcher starts processes without the remote shell, so the choice of the shell does not matter.
    let host = Host::new("localhost", ranks);
    let pair = [(host, Place::of(&facts))];
    let shell = RemoteShell::parse(None).map_err(Refusal::usage)?;
    let run_id = format!("doctor-{}-{}", std::process::id(), unix_ms());
    let tried = start_mpi(flags, settings, &shell, &pair, |_| Some(facts.cores), own, &run_id)?;
    Ok(problems + tried)
}

/// Starts MPI over the nodes as a run with these settings does, unless --no-mpi is given. Prints the result, and returns the
/// number of problems. An interrupted start leaves no processes or files behind.
fn start_mpi(
    flags: &DoctorFlags,
    settings: Option<&Settings>,
    shell: &RemoteShell,
    nodes: &[(Host, Place)],
    cores: impl Fn(&str) -> Option<usize>,
    own: &str,
    run_id: &str,
) -> Result<usize, Refusal> {
    let launcher = flags.nodes.launcher().and_then(|(tool, mut extra)| {
        run::words_to_go_on(&tool, &mut extra, settings)?;
        Ok((tool, extra))
    });
    let (tool, extra) = match launcher {
        Ok(found) => found,
        Err(Refusal { why, .. }) => {
            show!("launcher: PROBLEM: {why}");
            return Ok(1);
        }
    };
    show!("launcher: {}", tool.program.display());
    if flags.no_mpi {
        return Ok(0);
    }
    listen_to_signals().map_err(Refusal::environment)?;
    let dir = private_folder(&tool, run_id)?;
    let hosts: Vec<Host> = nodes.iter().map(|(host, _)| host.clone()).collect();
    let found_by = library_path();
    let plan = LaunchPlan {
        tool: &tool,
        room: room(&hosts, &hosts, cores),
        hosts: &hosts,
        ranks: hosts.iter().map(|h| h.slots).sum(),
        run_id,
        attempt: trial::NUMBER,
        command: &[],
        env: found_by.as_slice(),
        extra: &extra,
        shell,
        dir: &dir,
        as_root: nix::unistd::geteuid().is_root(),
    };
    let io_thread = IoThread::new("I/O").map_err(Refusal::environment)?;
    let since = Instant::now();
    let mut result = try_mpi(&plan, own, nodes, flags.mpi_timeout, &io_thread);
    if let Ok(Err(trouble)) = &result
        && since.elapsed() < WORTH_ANOTHER
        && !asked_by_signal()
    {
        show!("MPI: did not start, a second try follows: {}", trouble.what);
        result = try_mpi(&plan, own, nodes, flags.mpi_timeout, &io_thread);
    }
    let _ = std::fs::remove_dir_all(&dir);
    if asked_by_signal() {
        return Err(Refusal::environment(INTERRUPTED));
    }
    Ok(report_trial(result, &hosts, &tool))
}

/// Prints the result of a trial start over these hosts. Returns the number of problems.
fn report_trial(tried: Tried, hosts: &[Host], tool: &Tool) -> usize {
    match tried {
        Ok(Ok(words)) => {
            show!("MPI: {words}");
            return 0;
        }
        Ok(Err(Trouble { nodes: culprits, what })) => {
            let names: Vec<&str> = culprits.iter().map(|n| hosts[*n].name.as_str()).collect();
            let place = if names.is_empty() { "MPI".into() } else { names.join(" ") };
            show!("{place}: PROBLEM: MPI does not start: {what}");
        }
        Err(error) => show!("launcher: PROBLEM: cannot start {}: {error}", tool.program.display()),
    }
    1
}

/// Makes a folder for the launcher's files, whose path the launcher can use.
fn private_folder(tool: &Tool, run_id: &str) -> Result<PathBuf, Refusal> {
    // Open MPI's daemons open the script by the same path on their nodes. A node may have its own /tmp, which comes second here.
    let name = format!("skt-hpl-{run_id}");
    let folders = [std::env::current_dir().ok(), Some(std::env::temp_dir())];
    let mut folders = folders.into_iter().flatten().map(|folder| folder.join(&name));
    // Scripts in the folder are executed, so no other user may write in it.
    let mut private = DirBuilder::new();
    private.mode(0o700);
    folders.find(|dir| tool.can_use(dir) && private.create(dir).is_ok()).ok_or_else(|| {
        let why = "cannot make a folder for the launcher's files, neither in the working directory nor in the folder for \
                   temporary files; with Open MPI the path of the folder must not contain spaces or colons";
        Refusal::environment(why)
    })
}

/// Result of a trial start of MPI: a text that describes the processes, or the reason why MPI did not start. The outer error
/// means that the launcher did not start.
type Tried = std::io::Result<Result<String, Trouble>>;

/// Starts MPI for a trial, and ends it. Returns a text that describes the started processes, or the error.
fn try_mpi(
    plan: &LaunchPlan,
    own: &str,
    nodes: &[(Host, Place)],
    timeout: Duration,
    io_thread: &IoThread,
) -> Tried {
    let folder = Folder::new(plan.dir);
    let mut job = Job::start(&trial::launch_of(plan, own), &folder, trial::NUMBER, io_thread)?;
    let since = clock::Instant::now();
    let end = loop {
        let end = trial::end_of(&mut job, since, timeout);
        if end.is_some() || asked_by_signal() {
            break end;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let took = since.elapsed();
    job.end(plan.run_id).wait();
    let Some(end) = end else {
        return Ok(Err(Trouble { nodes: Vec::new(), what: INTERRUPTED.into() }));
    };
    let words = job.last_words().wait().unwrap_or_default();
    let named = nodes.iter().map(|(host, place)| (host.name.clone(), place.clone()));
    let named: Vec<(String, Place)> = named.collect();
    let judged = trial::judge(&words, &end, &named, plan.ranks);
    let (ranks, nodes) = (plan.ranks, nodes.len());
    Ok(judged
        .map(|()| format!("{ranks} rank(s) on {nodes} node(s) in {:.1} s", took.as_secs_f64())))
}

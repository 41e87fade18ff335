//! Benchmark on all ranks: from the start of MPI to the report of the last test.
//!
//! Rank 0 reads the input, broadcasts it, and writes the results. If an error ends a run early, one rank reports the error, and
//! all ranks end with the same status.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::agreement::{self, Agreed, Common, Proposal, gathered, reduced, shared_by, stand_by};
use super::contest;
use super::launcher_rank;
use super::machine;
use super::need;
use super::nonstop::{self, RecoveryHistory};
use super::pins::{self, Loose, Pins};
use super::power::{self, Measured, Meter};
use super::progress_line::{self, ProgressLine};
use super::protection::{self, Prerequisites, ProtectionSession};
use super::replacement::{self, Held, RoleAssignment};
use super::results::{About, Counted, Reports};
use super::signs::Signs;
use super::startup_watchdog;
use crate::base::clock::{self, Instant};
use crate::base::cores;
use crate::base::exit::{Exit, Refusal};
use crate::base::faults::{self, Point, hit};
use crate::base::host_name;
use crate::base::outcome::{Outcome, Power};
use crate::base::params::{self, MemoryCheck, TestParams};
use crate::base::terminal::say;
use crate::base::threads::Pool;
use crate::base::timeline::Recorder;
use crate::base::topology::Topology;
use crate::checkpoint::groups::Groups;
use crate::checkpoint::layout::ParityLayout;
use crate::checkpoint::plan::Layout;
use crate::comm::{Comm, Reduce, World, set_phase};
use crate::config::Loaded;
use crate::config::flags::BenchFlags;
use crate::config::memory_need::{OnNode, Room, TooLarge, enough_ranks, fits};
use crate::config::settings;
use crate::device::near::Ranks;
use crate::device::{self, Device, Energy};
use crate::kernels::{self, Library, preflight, set_library_threads};
use crate::lu::{Context, Event, Milestone, Observer, Start, own_part, part_on, solve_test};
use crate::report::machine::Machine;
use crate::report::text;
use crate::shm::{self, Store};
use crate::supervise::start::job::Announcement;
use crate::supervise::start::launcher::own_run_id;

/// State of this process after the start of MPI.
struct Launched {
    world: World,
    /// Error in `SKT_FAULT`, found before MPI starts. If a rank has this error, all ranks refuse the run later.
    armed: Result<(), String>,
    /// Error in loading the --blas library before MPI starts. If a rank has this error, all ranks refuse the run later.
    library: Result<(), String>,
    /// Value of --blas for this rank.
    blas: Option<String>,
    /// Variables in which the user sets a number of threads. The variables are read before any library is loaded.
    thread_variables: [(&'static str, String); pins::THREAD_VARIABLES.len()],
}

/// Does everything that must precede the start of MPI, and starts MPI. The error is the exit status of a rank that cannot
/// start.
fn launch(flags: &BenchFlags) -> Result<Launched, Exit> {
    // Errors in the settings are reported later, by rank 0 alone.
    let settings = flags.input().overrides().unwrap_or_default();
    if own_run_id().is_some() && settings.saves() {
        // MPI starts only when the last rank has started. A stop request that arrives earlier must not kill this rank.
        protection::obey_signals();
    }
    let thread_variables =
        pins::THREAD_VARIABLES.map(|name| (name, std::env::var(name).unwrap_or_default()));
    if settings.goes_on()
        && let Some(why) = World::refusal()
    {
        return Err(refuse_to_start(&why));
    }
    let startup_watchdog = if settings.goes_on() { startup_watchdog::watch() } else { None };
    let armed = faults::arm_from_environment();
    let library = settings.blas.as_deref().map_or(Ok(()), kernels::load);
    let finding = preflight::run(settings.preflight.unwrap_or(true));
    // The program has threads of its own. Threads of the library would compete with these.
    set_library_threads(1);
    let world = if settings.helpers_talk() {
        World::with_helpers()
    } else {
        World::init(settings.goes_on())
    };
    if let Some(startup_watchdog) = startup_watchdog {
        startup_watchdog.end();
    }
    hit(Point::Started, world.comm().rank());
    if world.comm().rank() == 0 && launcher_rank::speaks_for_all() {
        say(finding);
    }
    Ok(Launched { world, armed, library, blas: settings.blas, thread_variables })
}

/// Reads the input on rank 0 and sends it to all ranks. The error is the exit status of a refused run.
fn read_input(world: &World, flags: &BenchFlags) -> Result<Loaded, Exit> {
    let comm = world.comm();
    set_phase("reading the input");
    // The origin of the settings is printed before any refusal. Under a supervisor nothing is printed: the supervisor has
    // printed the origin, and sets variables of its own for its ranks.
    if comm.rank() == 0 && own_run_id().is_none() {
        flags.input().told().iter().for_each(say);
    }
    let loaded = shared_by(comm, 0, || flags.input().load().map_err(|e| e.to_string()))
        .map_err(|why| refuse(world, Refusal::bad_input(why), true))?;
    if comm.rank() == 0 {
        for warning in &loaded.warnings {
            tell!("{warning}\n");
        }
    }
    enough_ranks(&loaded.dat, &loaded.settings, comm.size())
        .map_err(|why| refuse(world, Refusal::bad_input(why), true))?;
    Ok(loaded)
}

/// Number of threads of this rank, and the processors of these threads.
struct Threads {
    count: usize,
    pins: Result<Pins, Loose>,
    /// Warning about cores that no rank uses; `None` if there is nothing to report.
    idle: Option<String>,
}

impl Threads {
    /// Chooses the number of threads and their processors. `computes` is true if this rank computes when the run begins. `turn`
    /// is true if this rank may compute later. Collective call.
    fn choose(comm: &Comm, node: &Comm, loaded: &Loaded, computes: bool, turn: bool) -> Self {
        let settings = &loaded.settings;
        let (threads, bound) = match settings.threads {
            Some(threads) => (threads, None),
            None => {
                let bound = pins::Bound::on(comm, node, computes);
                (bound.usual_threads(), Some(bound))
            }
        };
        let count = threads_of_all(comm, threads, computes, turn);
        // No message about unused cores is needed if the user sets the number of threads or the helpers' cores.
        let sets_aside = settings.saves().is_some_and(|p| p.helper_cores.is_some());
        let idle = bound.filter(|_| !sets_aside).and_then(|bound| bound.left_idle(comm));
        let pins = pins::decide(comm, count, computes, settings.pin);
        Self { count, pins, idle }
    }
}

/// Runs the benchmark with the settings of flags and files. Returns the exit status of this process.
pub fn run(flags: &BenchFlags) -> Exit {
    run_or_refuse(flags).unwrap_or_else(|exit| exit)
}

/// Runs the benchmark. The error is the exit status of a run that was refused before its first test.
fn run_or_refuse(flags: &BenchFlags) -> Result<Exit, Exit> {
    let mut launched = launch(flags)?;
    let loaded = read_input(&launched.world, flags)?;
    set_phase("looking at the nodes");
    let comm = launched.world.comm();
    let node = comm.split_by_node();
    let settings = &loaded.settings;
    let protection = settings.saves();
    let helper_cores = protection.and_then(|p| p.helper_cores.as_ref());
    let aside = helper_cores.map_or(Ok(()), |named| pins::set_aside(comm, named));
    let computes = comm.rank() < computing(&loaded);
    let turn = protection.is_some() || settings.goes_on();
    let threads = Threads::choose(comm, &node, &loaded, computes, turn);
    let seed = settings.seed ^ comm.rank() as u64;
    let device = device::open(settings.device, &ranks_of(&node), seed);
    let name = device.as_ref().ok().and_then(Option::as_ref).map(|device| device.name());
    let mut proposal = propose(&launched, &loaded, &threads, computes || turn, name);
    proposal.needs(aside);
    let device = proposal.needs(device.map_err(Refusal::environment)).flatten();
    let prerequisites =
        protection.and_then(|p| proposal.needs(Prerequisites::prepare(p, comm.rank())));
    let room = room(comm, &node, &loaded, threads.count, prerequisites.as_ref());
    let unfit = proposal.needs(room.map_err(Refusal::bad_input));
    let unfit = unfit.unwrap_or_default();
    let pool = proposal.needs(pins::pool(threads.count, &threads.pins));
    // One thread is enough if the pool cannot be started, because the run is then refused.
    let mut pool = pool.unwrap_or_else(|| Pool::new(1));
    let agreed = agreement::agree(comm, proposal, settings.engine, protection.is_some());
    let chosen = agreed.and_then(|agreed| {
        choose_engines(comm, &node, agreed, &loaded, device.as_deref(), &mut pool)
    });
    let (common, lines) = chosen.map_err(|refusal| refuse(&launched.world, refusal, true))?;
    if comm.rank() == 0 {
        print_set_up(
            &loaded,
            &common,
            &lines,
            &threads,
            &launched.thread_variables,
            device.as_deref(),
        );
    }
    let hosts = reduced(comm, u64::from(node.rank() == 0), Reduce::Sum) as usize;
    let tests: Vec<u64> =
        loaded.tests().map(|params| protection::digest(&params, &common.rounding)).collect();
    drop(node);
    let history = if settings.goes_on() {
        begin_history(comm, prerequisites.as_ref())
    } else {
        RecoveryHistory::default()
    };
    let run = Run { loaded, common, hosts, tests, unfit, prerequisites };
    let mut kept = Kept::new(pool, device, history);
    Ok(attempts(&mut launched.world, &run, &mut kept))
}

/// Runs in-place attempts until one of them ends without a loss, and returns the exit status. Runs only one attempt if the run
/// does not survive losses.
fn attempts(world: &mut World, run: &Run, kept: &mut Kept) -> Exit {
    if !run.loaded.settings.goes_on() {
        return act(world, run, kept);
    }
    loop {
        match world.attempt(|world| act(world, run, kept)) {
            Ok(exit) => return exit,
            Err(lost) => kept.history.note_loss(&lost, world.close_ranks()),
        }
        faults::next_attempt();
    }
}

/// Returns this rank's proposal, with its refusal if MPI or a library does not fit the settings.
fn propose(
    launched: &Launched,
    loaded: &Loaded,
    threads: &Threads,
    computes: bool,
    device: Option<&str>,
) -> Proposal {
    let (world, settings, run_id) = (&launched.world, &loaded.settings, own_run_id());
    let (rank, pinned) = (world.comm().rank(), pins::are_kept(&threads.pins));
    let run_id = run_id.as_deref();
    let mut proposal =
        Proposal::new(rank, settings.engine, computes, threads.count, pinned, run_id, device);
    proposal.needs(launched.armed.clone().map_err(Refusal::bad_input));
    proposal.needs(launched.library.clone().map_err(Refusal::environment));
    proposal.needs(same_library(launched.blas.as_deref(), settings.blas.as_deref()));
    proposal.needs(nonstop::fits(loaded, world));
    proposal.needs(helpers_fit(loaded, world));
    proposal
}

/// Chooses the engine of each test. Also returns lines that describe the choice. Collective call.
fn choose_engines(
    comm: &Comm,
    node: &Comm,
    agreed: Agreed,
    loaded: &Loaded,
    device: Option<&dyn Device>,
    pool: &mut Pool,
) -> Result<(Common, Vec<String>), Refusal> {
    let protected = loaded.settings.saves().is_some();
    let turns = protected || loaded.settings.goes_on();
    let tests: Vec<TestParams> = loaded.tests().collect();
    let asked = contest::Asked { tests: &tests, computes: comm.rank() < computing(loaded), turns };
    let (engines, lines) = contest::decide(comm, node, asked, &agreed.engines, pool);
    let common = agreement::settle(comm, agreed, engines, &tests, device.map(Device::name));
    suits(&common, protected)?;
    Ok((common, lines))
}

/// Prints engines, threads and helpers of the run, unless the launcher gave this process another rank number than 0. Warns if the
/// ranks do not compute identical last bits.
fn print_set_up(
    loaded: &Loaded,
    common: &Common,
    engines: &[String],
    threads: &Threads,
    thread_variables: &[(&str, String)],
    device: Option<&dyn Device>,
) {
    if launcher_rank::speaks_for_all() {
        engines.iter().for_each(say);
        threads.idle.iter().for_each(say);
        let (fewest, most) = common.threads;
        say(pins::told(fewest, most, common.pinned, &threads.pins));
        if loaded.settings.threads.is_none()
            && let Some(line) = pins::unheeded(thread_variables, threads.count)
        {
            say(line);
        }
        if let Some(line) = loaded.settings.saves().and_then(pins::helpers_told) {
            say(line);
        }
        if let Some(device) = device {
            say(format_args!("device of rank 0: {}", device.name()));
        }
    }
    if let Some(differs) = &common.differs {
        say(format_args!("warning: {}", unlike(common, differs)));
    }
}

/// Starts the recovery history of a job that survives losses. This rank's failure domain is taken from `prerequisites`. In an
/// unprotected run, the host is the failure domain.
fn begin_history(comm: &Comm, prerequisites: Option<&Prerequisites>) -> RecoveryHistory {
    let host = host_name();
    let domain = prerequisites.map_or(&host, |prerequisites| &prerequisites.domain);
    RecoveryHistory::begin(comm, &host, domain)
}

/// Finds the NUMA node to which each rank of a node is bound, so that each rank can choose a device near its memory. Collective
/// call.
pub fn ranks_of(node: &Comm) -> Ranks {
    const UNKNOWN: u64 = u64::MAX;
    let topology = Topology::here();
    let memories = cores::bound_to().iter().map(|&cpu| topology.memory_of(cpu));
    let memories: BTreeSet<Option<usize>> = memories.collect();
    let own = match memories.into_iter().collect::<Vec<_>>()[..] {
        [Some(memory)] => memory as u64,
        _ => UNKNOWN,
    };
    let all = node.all_gather(&[own]);
    let memories = all.into_iter().map(|memory| (memory != UNKNOWN).then_some(memory as usize));
    Ranks { memories: memories.collect(), own: node.rank() }
}

/// Returns the number of threads of this rank. `threads` is the number that the rank would choose without regard to other ranks.
/// Collective call.
///
/// A rank that does not compute gets at most as many threads as the computing ranks have. Otherwise the order of messages would
/// suit a number of threads that no computing rank has. A rank that never computes (`turn` is false) gets one thread.
fn threads_of_all(comm: &Comm, threads: usize, computes: bool, turn: bool) -> usize {
    let most = reduced(comm, if computes { threads as u64 } else { 1 }, Reduce::Max);
    if computes || turn { threads.min(most as usize) } else { 1 }
}

/// Checks that this rank and rank 0 were both started with --blas, or both without it. Each rank reads its own setting, because a
/// rank loads the library before ranks can communicate. The paths may differ between nodes.
fn same_library(mine: Option<&str>, first: Option<&str>) -> Result<(), Refusal> {
    let what = match (mine, first) {
        (None, Some(first)) => {
            format!("it was started without --blas, and rank 0 with --blas {first}")
        }
        (Some(mine), None) => {
            format!("it was started with --blas {mine}, and rank 0 without --blas")
        }
        _ => return Ok(()),
    };
    let why = format!(
        "{what}. Give --blas on the command line, or in a file that all nodes have: a launcher does not hand variables to \
         every node"
    );
    Err(Refusal::environment(why))
}

/// Ends all ranks together, and returns their exit status. Rank 0 prints the reason. With `for_good`, rank 0 also reports to a
/// supervisor that a restart would be refused, too.
fn refuse(world: &World, Refusal { exit, why }: Refusal, for_good: bool) -> Exit {
    if world.comm().rank() == 0 {
        say(why);
        // A requested stop does not count as a refusal.
        let refused = match exit {
            Exit::BadInput | Exit::Usage | Exit::Environment => for_good,
            Exit::Unrecoverable | Exit::NoSharedMemory => true,
            _ => false,
        };
        if refused && own_run_id().is_some() {
            say(Announcement::Refused { status: exit.code() });
        }
    }
    // Launchers end a job at the first rank that fails, so rank 0 must print first.
    world.comm().barrier();
    if exit == Exit::Stopped {
        // All ranks have stopped using storage by now. The supervisor acts on this message.
        if world.comm().rank() == 0 && own_run_id().is_some() {
            say(Announcement::Halted);
        }
        world.comm().barrier();
    }
    exit
}

/// Ends this rank before MPI has started. The node's first rank prints the reason. The other ranks wait a second before they end,
/// because launchers end a job at the first rank that fails.
fn refuse_to_start(why: &str) -> Exit {
    if launcher_rank::speaks_for_node() {
        say(why);
        if own_run_id().is_some() {
            say(Announcement::Refused { status: Exit::Environment.code() });
        }
    } else {
        clock::sleep(Duration::from_secs(1));
    }
    Exit::Environment
}

/// Returns the number of ranks that compute in the test with the most computing ranks. When a run begins, the ranks below this
/// number compute. If memory of an earlier start assigns other positions, the only harm is that a rank may lose its pins.
fn computing(loaded: &Loaded) -> usize {
    let settings = &loaded.settings;
    let of = |&(p, q): &(usize, usize)| settings.ranks(p, q) - settings.dedicated(p, q);
    loaded.dat.grids.iter().map(of).max().unwrap_or(0)
}

/// Compares the memory that a test needs with the free memory of this node, for one test of each N, NB, grid and lookahead. Only
/// the node's first rank compares. On the node's other ranks, every test counts as fitting.
fn lacking(
    comm: &Comm,
    node: &Comm,
    loaded: &Loaded,
    threads: usize,
    domains: &[String],
) -> Vec<(TestParams, Option<TooLarge>)> {
    let settings = &loaded.settings;
    let protection = settings.saves();
    let ranks = node.all_gather(&[comm.rank() as u64]);
    let ranks: Vec<usize> = ranks.into_iter().map(|rank| rank as usize).collect();
    // Memory left by an earlier start of this run is not free, but the run uses it again.
    let held = protection.filter(|_| node.rank() == 0).map_or(0, need::held_bytes);
    // If memory is left, the run resumes with the groups that saved it. A new division of the ranks would not count.
    let goes_on = reduced(comm, held, Reduce::Max) > 0;
    if node.rank() > 0 {
        return loaded.tests_by_memory().map(|test| (test, None)).collect();
    }
    let or_all = |free: Option<u64>| free.map_or(u128::MAX, u128::from);
    let memory = or_all(shm::room::available_bytes());
    let room = match protection.map(|p| p.store) {
        Some(Store::HugeTlbfs) => {
            let free = or_all(shm::hugetlbfs::huge_free_bytes());
            Room { memory, huge_pages: Some(free.saturating_add(held.into())) }
        }
        _ => Room { memory: memory.saturating_add(held.into()), huge_pages: None },
    };
    let on = |test: &TestParams| {
        // The last ranks of a test are its dedicated checksum ranks, as in the node check of `skt-hpl run`.
        let all = settings.ranks(test.p, test.q);
        let dedicated = all.saturating_sub(settings.dedicated(test.p, test.q))..all;
        let keepers = ranks.iter().filter(|rank| dedicated.contains(rank)).count();
        let groups = |p| if goes_on { None } else { new_groups(p, test, domains) };
        OnNode {
            ranks: node.size(),
            keepers,
            named: protection.map(|p| need::named_bytes(test, p, groups(p), &ranks)),
            checksums: settings.sums(),
            means: settings.means(threads),
        }
    };
    loaded
        .tests_by_memory()
        .map(|test| {
            let lacks = fits([test.clone()], on, room).err();
            (test, lacks)
        })
        .collect()
}

/// Returns the groups of a new test, or `None` if its ranks cannot be divided into groups. Positions are assigned in the order of
/// ranks, which is the order of `domains`. If the requested groups are impossible, a run that may resume from storage uses other
/// groups.
fn new_groups(p: &settings::Saves, test: &TestParams, domains: &[String]) -> Option<Groups> {
    let layout = Layout::of(test).kept_by(&p.scheme, p.group);
    let domains = domains.get(..layout.positions())?;
    let divide =
        if need::may_go_on(p) { ParityLayout::groups_at_any_rate } else { ParityLayout::groups };
    divide(p.scheme.layout, &layout, domains, p.group, p.scheme.losses).ok()
}

/// Tests that are skipped for lack of memory, with the reasons. All ranks have the same list.
#[derive(Debug, Default)]
struct Unfit(Vec<([usize; 5], String)>);

impl Unfit {
    fn of(params: &TestParams) -> [usize; 5] {
        [params.n, params.nb, params.p, params.q, params.depth]
    }

    /// Collects the tests of `lacking` that do not fit, with the reasons. `tellers` has, for each test, 0 if the test fits. If
    /// the test does not fit, the entry is 1 plus the rank that gives the reason. Collective call.
    fn gather(comm: &Comm, lacking: &[(TestParams, Option<TooLarge>)], tellers: &[u64]) -> Self {
        let here = host_name();
        let all: BTreeSet<u64> = tellers.iter().copied().filter(|teller| *teller > 0).collect();
        let mut unfit = Self::default();
        for teller in all {
            unfit.0.extend(shared_by(comm, teller as usize - 1, || {
                let of_it = lacking.iter().zip(tellers).filter(|(_, other)| **other == teller);
                let words = of_it.filter_map(|((test, lacks), _)| {
                    let why = format!("on {here} it {}", lacks.as_ref()?.numbers());
                    Some((Self::of(test), why))
                });
                words.collect::<Vec<_>>()
            }));
        }
        unfit
    }

    /// Prints the number of tests that need too much memory, and the test with the largest N among them. `runs` is true if these
    /// tests are run nevertheless.
    fn say(&self, loaded: &Loaded, runs: bool) {
        let largest = self.0.iter().max_by_key(|([n, ..], _)| *n);
        let Some(([n, nb, p, q, depth], why)) = largest else { return };
        let all = loaded.tests().count();
        let few = loaded.tests().filter(|test| self.why(test).is_some()).count();
        let what = if runs {
            "run nevertheless (--memory-check warn)"
        } else {
            "skipped (--memory-check off runs them nevertheless)"
        };
        say(format_args!(
            "{few} of {all} tests need more memory than a node has free, and are {what}. The largest: \
             N={n} NB={nb} P={p} Q={q} DEPTH={depth}: {why}"
        ));
    }

    /// Returns the reason why the test with these `params` is skipped, or `None` if the test is not skipped.
    fn why(&self, params: &TestParams) -> Option<&str> {
        let of = Self::of(params);
        self.0.iter().find(|(unfit, _)| *unfit == of).map(|(_, why)| why.as_str())
    }
}

/// Finds the tests that do not fit into memory. Collective call.
///
/// If the run must end, the result is an error on the ranks whose node has too little memory. The run must end if no test would
/// be left, or if the run is protected or survives losses. Free memory differs at each start, so a restart could otherwise skip
/// an unfinished test.
fn room(
    comm: &Comm,
    node: &Comm,
    loaded: &Loaded,
    threads: usize,
    prerequisites: Option<&Prerequisites>,
) -> Result<Unfit, String> {
    let settings = &loaded.settings;
    if settings.memory_check == MemoryCheck::Off {
        return Ok(Unfit::default());
    }
    // The domain of a rank whose preparation failed does not matter: the rank is refused soon.
    let domains = settings.saves().map_or(Vec::new(), |_| {
        let own = prerequisites.map_or(String::new(), |prerequisites| prerequisites.domain.clone());
        gathered(comm, &own)
    });
    let lacking = lacking(comm, node, loaded, threads, &domains);
    // If several ranks lack memory for a test, the last of these ranks reports it.
    let own = comm.rank() as u64 + 1;
    let mut tellers: Vec<u64> =
        lacking.iter().map(|(_, lacks)| if lacks.is_some() { own } else { 0 }).collect();
    comm.all_reduce(&mut tellers, Reduce::Max);
    let all_or_nothing = settings.saves().is_some() || settings.goes_on();
    if settings.memory_check == MemoryCheck::On && (all_or_nothing || !tellers.contains(&0)) {
        let worst = lacking.into_iter().filter_map(|(_, lacks)| lacks);
        let worst = worst.max_by_key(|lacks| lacks.needed_bytes);
        let despite = "; --memory-check off runs it nevertheless";
        return worst.map_or(Ok(Unfit::default()), |lacks| Err(format!("{lacks}{despite}")));
    }
    let unfit = Unfit::gather(comm, &lacking, &tellers);
    let runs = settings.memory_check == MemoryCheck::Warn;
    if comm.rank() == 0 {
        unfit.say(loaded, runs);
    }
    Ok(if runs { Unfit::default() } else { unfit })
}

/// Checks, if the settings require it, that this MPI lets a helper and its rank communicate at the same time. The result is the
/// same on all ranks if all nodes have the same MPI.
fn helpers_fit(loaded: &Loaded, world: &World) -> Result<(), Refusal> {
    let talk = loaded.settings.saves().is_some_and(|p| p.encode.by_helper());
    if !talk || world.lets_helpers_talk() {
        return Ok(());
    }
    Err(Refusal::environment(format!(
        "--encode helper: helpers cannot call this MPI library while their ranks do ({}). Use an MPI library that grants \
         MPI_THREAD_MULTIPLE, or give --encode pipelined",
        World::library()
    )))
}

/// Refuses a protected run if ranks round differently. After a restart, other ranks may compute the same part, and the last bits
/// would differ.
fn suits(common: &Common, protected: bool) -> Result<(), Refusal> {
    match &common.differs {
        Some(differs) if protected => Err(Refusal::environment(unlike(common, differs))),
        _ => Ok(()),
    }
}

fn unlike(common: &Common, differs: &str) -> String {
    let how = match Library::query().variable {
        "" => String::new(),
        variable => format!(" ({variable})"),
    };
    format!(
        "the ranks would not round alike, so the last bits of a result depend on the division of work among ranks. \
         Rank 0 has {}; {differs}. Give all nodes the same library and kernels{how}, or leave that node out. Otherwise \
         a run with --checkpoint is refused",
        common.rounding
    )
}

/// Facts that stay the same during the whole run.
struct Run {
    loaded: Loaded,
    common: Common,
    hosts: usize,
    /// Digests of the tests, in the order of the tests.
    tests: Vec<u64>,
    unfit: Unfit,
    /// Prerequisites for protection; `None` in an unprotected run.
    prerequisites: Option<Prerequisites>,
}

/// State that this rank keeps from one in-place attempt to the next.
struct Kept {
    pool: Pool,
    device: Option<Arc<dyn Device>>,
    /// Outputs of the run; `None` until this rank has begun to report.
    reports: Option<Reports>,
    /// Exit status of the run; `None` until this rank has reported it.
    ended: Option<Exit>,
    history: RecoveryHistory,
    /// Number of bytes that progress lines have added to standard output.
    progress_bytes: u64,
    /// State of the current test, if the test has checksum columns.
    held: Option<Held>,
    /// Results of the tests with checksum columns that have ended.
    finished: Vec<Result<Outcome, String>>,
}

impl Kept {
    fn new(pool: Pool, device: Option<Arc<dyn Device>>, history: RecoveryHistory) -> Self {
        Self {
            pool,
            device,
            reports: None,
            ended: None,
            history,
            progress_bytes: 0,
            held: None,
            finished: Vec::new(),
        }
    }
}

/// Runs one in-place attempt, from the roll call to the end of the last test.
fn act(world: &World, run: &Run, kept: &mut Kept) -> Exit {
    let comm = world.comm();
    let settings = &run.loaded.settings;
    let node = comm.split_by_node();
    if settings.goes_on() {
        hit(Point::RollCall, world.launched()[comm.rank()]);
        let leader = shared_by(&node, 0, || comm.rank());
        let status = kept.held.as_ref().map(Held::status);
        kept.history.call_roll(world, leader, status);
        kept.finished.truncate(kept.history.known.finished);
    }
    let protected = settings.saves().zip(run.prerequisites.as_ref());
    let session = protected.map(|(settings, prerequisites)| {
        let (tests, rounding, history) = (&run.tests, &run.common.rounding, &kept.history);
        ProtectionSession::new(comm, &node, settings, prerequisites, tests, rounding, history)
    });
    let session = match session.transpose() {
        Ok(session) => session,
        // All tests are reported. Only the memory of the run was still to be removed.
        Err(ended) if kept.history.known.verdict.is_some() => {
            if comm.rank() == 0 {
                say(not_removed(&ended.why));
            }
            None
        }
        // The refusal is not for good after a loss: a restart may succeed.
        Err(ended) => {
            return refuse(world, kept.history.gives_up(ended), !kept.history.has_lost);
        }
    };
    Job { world, node, run, kept, session }.run()
}

fn not_removed(why: &str) -> String {
    format!("memory of the finished run could not be removed: {why}")
}

/// All tests of one in-place attempt.
struct Job<'a> {
    world: &'a World,
    run: &'a Run,
    kept: &'a mut Kept,
    node: Comm,
    session: Option<ProtectionSession<'a>>,
}

impl Job<'_> {
    fn run(mut self) -> Exit {
        let comm = self.world.comm();
        let saves = self.session.is_some();
        let exit = match self.kept.history.known.verdict {
            Some(exit) => exit,
            None => match self.tests() {
                Ok(exit) => exit,
                Err(ended) => {
                    let ended = if saves { self.kept.history.gives_up(ended) } else { ended };
                    let for_good = !self.kept.history.has_lost;
                    return refuse(self.world, ended, for_good);
                }
            },
        };
        // From here on, a loss does not make the run compute again.
        self.kept.history.known.verdict = Some(exit);
        if let Some(notice) = self.kept.history.notice.take()
            && comm.rank() == 0
        {
            say(notice.told("all tests are done"));
        }
        hit(Point::Told, self.world.launched()[comm.rank()]);
        if let Some(session) = &self.session {
            set_phase("removing the memory of the run");
            if let Err(ended) = session.clean(&self.node)
                && comm.rank() == 0
            {
                say(not_removed(&ended.why));
            }
        }
        set_phase("finishing");
        exit
    }

    /// Solves and reports every test that has not been solved and reported yet. Returns the exit status of the run on all
    /// ranks.
    fn tests(&mut self) -> Result<Exit, Refusal> {
        let comm = self.world.comm();
        let loaded = &self.run.loaded;
        self.open_reports()?;
        if let Some(session) = &self.session {
            let fit = |params: &TestParams| self.run.unfit.why(params).is_none();
            session.clear_ground(&self.node, loaded.tests().filter(fit))?;
        }
        self.kept.history.known.begun = true;
        let mut ahead = match self.out_of_turn() {
            Some((number, params)) => Some((number, self.outcome(number, &params)?)),
            None => None,
        };
        for (number, params) in loaded.tests().enumerate() {
            let outcome = match ahead.take_if(|(ahead, _)| *ahead == number) {
                Some((_, outcome)) => outcome,
                None => self.outcome(number, &params)?,
            };
            let told = self.kept.history.known.told;
            if let Some(reports) = self.kept.reports.as_mut().filter(|r| r.tests == number) {
                let timing = loaded.settings.timing;
                match &outcome {
                    Ok(None) => {}
                    Ok(Some(outcome)) => reports.take_in(&params, Ok(outcome), timing, told),
                    Err(why) => reports.take_in(&params, Err(why), timing, told),
                }
                self.kept.history.known.told = told.max(reports.tests);
            }
            if loaded.settings.goes_on() {
                // Any rank may have to continue the reports after a loss, so all ranks must know which tests are reported.
                comm.broadcast(&mut [0u8], 0);
                self.kept.history.known.told = told.max(number + 1);
            }
        }
        set_phase("telling the end");
        Ok(shared_by(comm, 0, || self.end_reports()))
    }

    /// Ends the reports on rank 0, and returns the exit status of the run.
    fn end_reports(&mut self) -> Exit {
        let reports = self.kept.reports.as_mut().expect("rank 0 has begun to report");
        // The status is determined once: a loss can repeat this call if other ranks were lost before they received the status.
        let exit = *self.kept.ended.get_or_insert_with(|| {
            let written = reports.end();
            let counts = reports.counts();
            // A wrong solution outweighs a skipped test or an unwritten output.
            match (counts.failed, counts.skipped, written) {
                (0, 0, true) => Exit::Passed,
                (0, ..) => Exit::Environment,
                _ => Exit::ResidualFailed,
            }
        });
        if own_run_id().is_some() {
            // From here on, nothing changes the results.
            let printed = self.kept.progress_bytes + reports.printed(&self.run.loaded.dat);
            say(Announcement::Done { status: exit.code(), printed });
        }
        exit
    }

    /// Finds an unfinished test of the last launch that must run before its turn, because an earlier test has lost its result. If
    /// the earlier test ran first, it would overwrite the memory of the unfinished test. Returns `None` if the tests can run in
    /// order. The result is the same on all ranks.
    fn out_of_turn(&self) -> Option<(usize, TestParams)> {
        let session = self.session.as_ref()?;
        let number = session.under_way()?;
        let tests: Vec<TestParams> = self.run.loaded.tests().take(number + 1).collect();
        let (params, before) = tests.split_last().filter(|(_, before)| before.len() == number)?;
        // A test with N = 0 is not saved, and takes no memory.
        let open = |test: &usize| before[*test].n > 0 && session.finished(*test).is_none();
        let lacking: Vec<String> =
            (0..number).filter(open).map(|test| (test + 1).to_string()).collect();
        if lacking.is_empty() {
            return None;
        }
        if self.world.comm().rank() == 0 {
            let (tests, they) = match lacking.len() {
                1 => ("test", "has lost its result and is run again"),
                _ => ("tests", "have lost their results and are run again"),
            };
            let lacking = lacking.join(", ");
            say(format_args!(
                "{tests} {lacking} {they} after test {}, which is unfinished",
                number + 1
            ));
        }
        Some((number, params.clone()))
    }

    /// Returns the outcome of a test. Solves the test if it has no result yet.
    fn outcome(&mut self, number: usize, params: &TestParams) -> Solved {
        set_phase("preparing a test");
        if let Some(why) = self.run.unfit.why(params) {
            return Ok(Err(why.to_owned()));
        }
        let saved = self.session.as_ref().and_then(|g| g.finished(number)).cloned().map(Ok);
        match saved.or_else(|| self.kept.finished.get(number).cloned()) {
            Some(finished) => Ok(finished.map(Some)),
            None => {
                // The losses in the recovery history belong to this test, not to finished tests before it.
                self.kept.history.comes_to(number);
                self.solve(number, params)
            }
        }
    }

    /// Assigns a position in the test to each rank that is left. Also returns this rank's position if the position is outside of
    /// the grid, and otherwise `None`.
    fn roles(
        &mut self,
        number: usize,
        params: &TestParams,
    ) -> Result<(RoleAssignment, Option<usize>), Refusal> {
        let comm = self.world.comm();
        let history = &mut self.kept.history;
        let positions = params.p * params.q;
        // A test with N = 0 needs no protection.
        if self.run.loaded.settings.sums() > 0 && params.n > 0 {
            let columns = self.run.loaded.settings.sums();
            let roles = replacement::assign_roles(params, columns, &history.statuses(number));
            let roles = roles.map_err(|why| history.is_lost(&why))?;
            let taken: Vec<_> =
                roles.grid_places.iter().map(|grid_place| grid_place.map(|s| s.place)).collect();
            history.deal(comm, number, &taken);
            replacement::take_role(&mut self.kept.held, roles.grid_places[comm.rank()], &roles);
            return Ok((roles, None));
        }
        let Some(session) = self.session.as_ref().filter(|_| params.n > 0) else {
            return match comm.size() {
                left if left < positions => Err(history.too_few(left, positions)),
                left => {
                    let taken = (0..left).map(|r| (r < positions).then_some(r));
                    Ok((RoleAssignment::plain(params, taken), None))
                }
            };
        };
        let candidates = history.candidates(number);
        let Some(taken) = session.place(number, params, &candidates) else {
            return Err(history.too_few(comm.size(), positions));
        };
        if !candidates.is_empty() {
            history.deal(comm, number, &taken);
        }
        let dedicated = taken[comm.rank()].filter(|&position| position >= positions);
        Ok((RoleAssignment::plain(params, taken.into_iter()), dedicated))
    }

    /// Solves one test. All ranks return the same result, except that only rank 0 gets the outcome.
    fn solve(&mut self, number: usize, params: &TestParams) -> Solved {
        // A library may have started threads at its first use, for example to send messages.
        cores::let_heirs_go();
        let comm = self.world.comm();
        let (roles, dedicated) = self.roles(number, params)?;
        let settings = &self.run.loaded.settings;
        let session = self.session.as_ref().filter(|_| params.n > 0);
        let position = roles.grid_places[comm.rank()];
        let idle = position.is_none();
        // An idle rank drops its state of this test, and must not offer the state after the next loss. The other ranks generate
        // new parts only after a collective call below, which this rank reaches later.
        self.kept.held.take_if(|held| idle && held.is_of(number));
        let engine = self.run.common.engines.of(params);
        let order = self.run.common.order(settings.split_update);
        let mut context = Context::placed(comm, params, engine, order, position, roles.sums);
        if let Some(context) = &mut context {
            context.device = self.kept.device.clone();
        }
        // A rank without the result of the previous test could still have needed its state. By now all ranks have that result.
        self.kept.held.take_if(|_| idle);
        let place = position.map(|grid_place| grid_place.place).or(dedicated);
        let everybody = session.and_then(|session| session.with_dedicated(params, place));
        let mut watcher = self.watcher(params, place.is_some());
        let pool = &mut self.kept.pool;
        let verdict = match (&mut context, session) {
            (None, Some(session)) if dedicated.is_some() => {
                let everybody =
                    everybody.expect("a rank with a position outside the grid is one of them");
                session.keep(params, number, everybody, pool, &mut watcher).map(|()| Ok(None))
            }
            (None, _) => Ok(Ok(None)),
            (Some(context), None) if settings.sums() > 0 && params.n > 0 => {
                let (held, history) = (&mut self.kept.held, &mut self.kept.history);
                Ok(replacement::solve(context, number, &roles, pool, &mut watcher, held, history))
            }
            (Some(context), None) => Ok(solve_plainly(context, number, pool, &mut watcher)),
            (Some(context), Some(session)) => session
                .solve(context, number, everybody, pool, &mut watcher, &mut self.kept.history)
                .map(|outcome| Ok(Some(outcome))),
        };
        self.kept.progress_bytes += watcher.out.bytes;
        // All ranks of the grid have the verdict. The rank at the first position sends it to rank 0, which reports, and to
        // ranks without a position.
        let teller = roles.first_rank();
        stand_by(comm, teller, |rank| roles.grid_places[rank].is_none());
        if let Some(session) = session {
            session.follow(teller);
            // A failed test counts as ended, too. The run then ends, and nothing uses this information.
            session.has_ended(number);
        }
        // All ranks arrive here, even if the test could not end, so the call is collective in any case.
        let (measured, command) = (watcher.measured.as_ref(), settings.power_command.as_deref());
        let power = power::sum(comm, measured, self.run.hosts, command);
        hit(Point::Verdict, self.world.launched()[comm.rank()]);
        self.share_verdict(number, verdict, teller, power)
    }

    /// Sends the result of a test from rank `teller` to all ranks, and returns it. Only rank 0 gets the outcome, to which `power`
    /// is added. Collective call.
    fn share_verdict(
        &mut self,
        number: usize,
        mine: Solved,
        teller: usize,
        power: Option<Power>,
    ) -> Solved {
        let comm = self.world.comm();
        let verdict = shared_by(comm, teller, || mine);
        if self.run.loaded.settings.sums() > 0 {
            // The next test begins only when all ranks have this verdict.
            let ended = match &verdict {
                Ok(Ok(outcome)) => {
                    let outcome = outcome.clone().expect("the teller has it");
                    Ok(Outcome { power: power.clone(), ..outcome })
                }
                Ok(Err(why)) | Err(Refusal { why, .. }) => Err(why.clone()),
            };
            self.kept.history.notice = None;
            self.kept.finished.truncate(number);
            self.kept.finished.push(ended);
            self.kept.history.known.finished = self.kept.finished.len();
        }
        let told = verdict?.map(|outcome| outcome.filter(|_| comm.rank() == 0));
        Ok(told.map(|outcome| outcome.map(|outcome| Outcome { power, ..outcome })))
    }

    /// Creates the observer of a test. On each node, the first rank that takes part measures the node's power. Collective call.
    fn watcher(&self, params: &TestParams, takes_part: bool) -> Watcher {
        let (comm, settings) = (self.world.comm(), &self.run.loaded.settings);
        let taking_part = if takes_part { self.node.rank() } else { self.node.size() };
        let first_here = reduced(&self.node, taking_part as u64, Reduce::Min) as usize;
        let measures = takes_part && first_here == self.node.rank();
        let command = settings.power_command.as_deref();
        let energy = || (settings.device == params::Device::Cuda).then(Energy::open).flatten();
        let tells = settings.terminal_progress && comm.rank() == 0 && own_run_id().is_none();
        Watcher {
            power: if measures { power::Source::here(command, energy) } else { None },
            meter: None,
            measured: None,
            progress_line: (tells && progress_line::watched()).then(ProgressLine::default),
            progress: settings.progress && comm.rank() == 0,
            n: params.n,
            nb: params.nb,
            last: 0.0,
            out: Counted { inner: io::stdout(), bytes: 0, mute: false },
            began: Instant::now(),
            way: Recorder::default(),
        }
    }

    /// Opens the outputs and writes the heading on rank 0. The other ranks learn only whether rank 0 succeeded.
    fn open_reports(&mut self) -> Result<(), Refusal> {
        let comm = self.world.comm();
        // All ranks have rank 0's settings, so either all ranks take part or none.
        let machine = match self.run.loaded.settings.json {
            Some(_) => machine::gather(comm, &self.node, self.kept.device.as_deref()),
            None => Machine::default(),
        };
        shared_by(comm, 0, || -> Result<(), Refusal> {
            if self.kept.reports.is_none() {
                let Run { loaded, common, hosts, .. } = self.run;
                let about = About { loaded, common, ranks: comm.size(), hosts: *hosts, machine };
                self.kept.reports = Some(Reports::begin(about, self.kept.history.known.head)?);
            }
            Ok(())
        })?;
        // Any rank may have to continue the reports after a loss, so all ranks must know that the reports have begun.
        self.kept.history.known.head = true;
        Ok(())
    }
}

/// Outcome of a test; `None` on a rank that does not have the outcome. The inner error is the reason why the test was skipped.
/// The outer error ends the run.
type Solved = Result<Result<Option<Outcome>, String>, Refusal>;

/// Solves test `number` in private memory, or in the memory of the device.
fn solve_plainly(
    context: &Context,
    number: usize,
    pool: &mut Pool,
    watcher: &mut Watcher,
) -> Result<Option<Outcome>, String> {
    let mut signs = Signs::show(context, number, None, watcher);
    let solved = match &context.device {
        Some(device) => part_on(device, context)
            .and_then(|mut local| solve_test(context, &mut local, Start::Fresh, pool, &mut signs)),
        None => own_part(context)
            .and_then(|mut local| solve_test(context, &mut local, Start::Fresh, pool, &mut signs)),
    };
    let solved = solved.map_err(|error| error.to_string());
    drop(signs);
    let timeline = watcher.way.timeline(context.params.n, context.params.nb);
    solved.map(|outcome| outcome.map(|outcome| Outcome { timeline, ..outcome }))
}

/// Observer that prints the progress at most once a second, and records the timeline of a test.
struct Watcher {
    progress: bool,
    n: usize,
    nb: usize,
    last: f64,
    out: Counted<io::Stdout>,
    began: Instant,
    way: Recorder,
    /// Source of power measurements, if this rank measures its node.
    power: Option<power::Source>,
    meter: Option<Meter>,
    measured: Option<Measured>,
    progress_line: Option<ProgressLine>,
}

impl Observer for Watcher {
    fn observe(&mut self, event: Event) {
        match event {
            Event::Began { .. } => {
                self.began = Instant::now();
                self.meter = self.power.clone().and_then(Meter::begin);
            }
            Event::Reached(Milestone::Factored) => {
                let blocks = self.n.div_ceil(self.nb);
                self.way.pass(blocks, blocks, self.began.elapsed().as_secs_f64());
                if let Some(progress_line) = &mut self.progress_line {
                    progress_line.end();
                }
            }
            Event::Reached(Milestone::Solved) => {
                self.measured = self.meter.take().and_then(Meter::end);
            }
            Event::Iteration { k, blocks, elapsed } => self.pass(k, blocks, elapsed),
            _ => {}
        }
    }
}

impl Watcher {
    /// Records iteration `k`, and prints the progress.
    fn pass(&mut self, k: usize, blocks: usize, elapsed: f64) {
        self.way.pass(k, blocks, elapsed);
        if let Some(progress_line) = &mut self.progress_line {
            progress_line.at(self.n, self.nb, k, blocks, elapsed);
        }
        if self.progress && k > 0 && elapsed - self.last >= 1.0 {
            self.last = elapsed;
            // A progress line that cannot be written does not end the run.
            let line = text::progress(self.n, k * self.nb, elapsed);
            let _ = self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush());
        }
    }
}

//! The benchmark on all ranks: from MPI's start to the last test's report.
//!
//! Rank 0 reads and writes; the others learn what to do from it. Whatever ends a run early is told
//! once and ends all ranks with the same status.

use std::fs::File;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::bench::{self, BenchFlags};
use super::exit::Exit;
use super::launcher_rank;
use super::protection::{self, Ended, Guardian};
use super::say;
use super::signs::Signs;
use crate::blas::{Engine, Library, preflight, set_library_threads};
use crate::comm::{Comm, Reduce, World, die, set_phase};
use crate::faults::{self, Point, hit};
use crate::input::hpl_dat::{HplDat, Output};
use crate::input::memory_need::{enough_ranks, fits, human};
use crate::input::{Loaded, node_memory};
use crate::lu::{Context, Observer, Start, solve_test};
use crate::matrix::{HugeBuffer, Local, Shape};
use crate::memory::Depot;
use crate::outcome::{Outcome, Times};
use crate::params::TestParams;
use crate::report::json::{Blas, JsonLog, Mpi};
use crate::report::text::{self, Echo, TextReport};
use crate::supervise::job::Done;
use crate::supervise::launcher::own_run_id;
use crate::threads::Pool;

/// Runs the benchmark as the flags and files say.
pub fn run(flags: &BenchFlags) -> Exit {
    // Faults in the settings are told further down, by rank 0 alone.
    let settings = bench::load_overrides(flags).map(|(set, _)| set).unwrap_or_default();
    if let Err(why) = faults::arm_from_environment() {
        say(why);
        return Exit::BadInput;
    }
    let finding = preflight::run(settings.preflight.unwrap_or(true));
    // Threads are ours: the library's own would get in each other's way.
    set_library_threads(1);
    let world = World::init();
    if world.comm().rank() == 0 && launcher_rank::speaks_for_all() {
        say(finding);
    }
    set_phase("reading the input");
    let loaded = match share(world.comm(), || bench::load(flags).map_err(|e| e.to_string())) {
        Ok(loaded) => loaded,
        Err(why) => return refuse(&world, Exit::BadInput, &why),
    };
    if world.comm().rank() == 0 {
        for warning in &loaded.warnings {
            eprintln!("{warning}\n");
        }
    }
    if let Err(why) = enough_ranks(&loaded.dat, world.comm().size()) {
        return refuse(&world, Exit::BadInput, &why.to_string());
    }
    set_phase("looking at the nodes");
    let node = world.comm().split_by_node();
    if let Err(why) = room_everywhere(world.comm(), &node, &loaded) {
        return refuse(&world, Exit::BadInput, &why.to_string());
    }
    let engine = match Engine::select(loaded.settings.engine) {
        Ok(engine) => engine,
        Err(why) => return refuse(&world, Exit::BadInput, &why.to_string()),
    };
    let threads = loaded.settings.threads.unwrap_or_else(|| threads_of(&node));
    let hosts = hosts(world.comm(), &node);
    let tests: Vec<u64> =
        loaded.tests().map(|params| protection::digest(&params, engine.name())).collect();
    let guardian = match &loaded.settings.protection {
        None => None,
        Some(settings) => match Guardian::new(world.comm(), &node, settings, &tests) {
            Ok(guardian) => Some(guardian),
            Err(ended) => return refuse(&world, ended.exit, &ended.why),
        },
    };
    let pool = Pool::new(threads);
    Job {
        world: &world,
        node,
        loaded: &loaded,
        engine,
        pool,
        hosts,
        guardian,
        tests,
        progress_bytes: 0,
    }
    .run()
}

/// What rank 0 gets from `make`, at all ranks.
fn share(comm: &Comm, make: impl FnOnce() -> Result<Loaded, String>) -> Result<Loaded, String> {
    let mut bytes = Vec::new();
    if comm.rank() == 0 {
        bytes = serde_json::to_vec(&make()).expect("plain values have a JSON form");
    }
    comm.broadcast_bytes(&mut bytes, 0);
    serde_json::from_slice(&bytes).expect("what rank 0 wrote can be read")
}

/// Ends all ranks in order, rank 0 saying why.
fn refuse(world: &World, exit: Exit, why: &str) -> Exit {
    if world.comm().rank() == 0 {
        say(why);
    }
    // Launchers end a job at the first rank that fails: let rank 0 speak first.
    world.comm().barrier();
    exit
}

/// Whether every node has the memory its ranks will need; the reason of the first that has not.
fn room_everywhere(comm: &Comm, node: &Comm, loaded: &Loaded) -> Result<(), String> {
    let verdict = if node.rank() == 0 {
        let available = node_memory::available_bytes().map_or(u128::MAX, u128::from);
        let protection = loaded.settings.protection.as_ref();
        let copies = protection.map_or(1.0, |p| 1.0 / p.available_at_best());
        // What an earlier start of this run left is not free, but needs not be taken again.
        let held = protection.and_then(|p| Depot::new(p.store, &p.job).ok());
        let held = held.map_or(0, |depot| depot.list().iter().map(|part| part.bytes).sum());
        let available = available.saturating_add(u128::from(held));
        fits(loaded.largest_tests(), copies, node.size(), available).map_err(|why| {
            let host = nix::unistd::gethostname().unwrap_or_default();
            format!("on {}: {why}", host.to_string_lossy())
        })
    } else {
        Ok(())
    };
    let nobody = comm.size() as u64;
    let mut first = [if verdict.is_err() { comm.rank() as u64 } else { nobody }];
    comm.all_reduce(&mut first, Reduce::Min);
    if first[0] == nobody {
        return Ok(());
    }
    let mut why = verdict.err().unwrap_or_default().into_bytes();
    comm.broadcast_bytes(&mut why, first[0] as usize);
    Err(String::from_utf8_lossy(&why).into_owned())
}

/// The cores this rank is bound to, divided among the ranks of the node bound to the same ones.
fn threads_of(node: &Comm) -> usize {
    let mut mask = vec![0u8; CpuSet::count().div_ceil(8)];
    let mut cores = 0;
    if let Ok(set) = sched_getaffinity(Pid::from_raw(0)) {
        for cpu in 0..CpuSet::count() {
            if set.is_set(cpu).unwrap_or(false) {
                mask[cpu / 8] |= 1 << (cpu % 8);
                cores += 1;
            }
        }
    }
    let all = node.all_gather(&mask);
    let sharing = all.chunks_exact(mask.len()).filter(|other| *other == mask).count();
    (cores / sharing.max(1)).max(1)
}

/// On how many nodes the job runs.
fn hosts(comm: &Comm, node: &Comm) -> usize {
    let mut leaders = [u64::from(node.rank() == 0)];
    comm.all_reduce(&mut leaders, Reduce::Sum);
    leaders[0] as usize
}

/// All tests of one run.
struct Job<'a> {
    world: &'a World,
    loaded: &'a Loaded,
    engine: Engine,
    pool: Pool,
    hosts: usize,
    node: Comm,
    guardian: Option<Guardian<'a>>,
    /// Digests of the tests, in order.
    tests: Vec<u64>,
    /// What lines of progress have taken on standard output.
    progress_bytes: u64,
}

/// What rank 0 writes to.
struct Reports {
    out: Counted<Box<dyn Write>>,
    /// What `out` goes to, if that is a file.
    file: Option<File>,
    text: TextReport,
    json: Option<JsonLog>,
}

impl Job<'_> {
    fn run(mut self) -> Exit {
        let comm = self.world.comm();
        let mut reports = match self.open_reports() {
            Ok(reports) => reports,
            Err(why) => return refuse(self.world, Exit::BadInput, &why),
        };
        for (number, params) in self.loaded.tests().enumerate() {
            set_phase("preparing a test");
            let outcome = match self.guardian.as_ref().and_then(|g| g.finished(number)) {
                Some(outcome) => Ok(Some(outcome.clone())),
                None => match self.solve(number, &params) {
                    Err(Trouble::Ended(ended)) => {
                        return refuse(self.world, ended.exit, &ended.why);
                    }
                    Err(Trouble::Skipped(why)) => Err(why),
                    Ok(outcome) => Ok(outcome),
                },
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(outcome)) => tell(&mut reports, |r| {
                    if self.loaded.settings.timing {
                        tell_times(&outcome.times_mean);
                    }
                    tell_protection(&outcome);
                    r.text.finished(&mut r.out, &params, &outcome)?;
                    r.json.as_mut().map_or(Ok(()), |json| json.finished(&params, &outcome))
                }),
                Err(why) => tell(&mut reports, |r| {
                    r.text.skipped(&mut r.out, &params, &why)?;
                    r.json.as_mut().map_or(Ok(()), |json| json.skipped(&params, &why))
                }),
            }
        }
        set_phase("telling the end");
        let exit = |[failed]: [u64; 1]| match failed {
            0 => Exit::Passed,
            _ => Exit::ResidualFailed,
        };
        let mut failed = [0u64];
        if let Some(r) = &mut reports {
            if let Err(error) = r.end() {
                cannot_write(&error);
            }
            failed[0] = r.text.counts().failed as u64;
            if own_run_id().is_some() {
                // Whatever happens from here on costs nothing any more.
                let to_stdout = self.loaded.dat.output == Output::Stdout;
                let printed = self.progress_bytes + if to_stdout { r.out.bytes } else { 0 };
                say(Done { status: exit(failed).code(), printed });
            }
        }
        comm.broadcast(&mut failed, 0);
        hit(Point::Told, comm.rank());
        if let Some(guardian) = &self.guardian {
            set_phase("removing the memory of the run");
            if let Err(ended) = guardian.clean(&self.node)
                && comm.rank() == 0
            {
                say(format_args!("memory of the finished run could not be removed: {}", ended.why));
            }
        }
        set_phase("finishing");
        exit(failed)
    }

    /// Solves one test. All ranks return alike, but only rank 0 gets the outcome.
    fn solve(&mut self, number: usize, params: &TestParams) -> Result<Option<Outcome>, Trouble> {
        let comm = self.world.comm();
        // Without blocks there is nothing to protect.
        let guardian = self.guardian.as_ref().filter(|_| params.n > 0);
        let position = match guardian {
            Some(guardian) => guardian.place(number, params),
            None => Context::position_of(params, comm.rank()),
        };
        let context = Context::new(comm, params, self.engine, position);
        let mut watcher = Watcher {
            progress: self.loaded.settings.progress && comm.rank() == 0,
            n: params.n,
            nb: params.nb,
            last: 0.0,
            out: Counted { inner: io::stdout(), bytes: 0 },
        };
        let verdict = match (&context, guardian) {
            (None, _) => Ok(None),
            (Some(context), None) => {
                let pool = &mut self.pool;
                match Signs::show(context, number, &mut watcher) {
                    Ok(mut signs) => solve_plainly(context, pool, &mut signs),
                    Err(watcher) => solve_plainly(context, pool, watcher),
                }
                .map_err(Trouble::Skipped)
            }
            (Some(context), Some(guardian)) => {
                let digest = self.tests[number];
                guardian
                    .solve(context, number, digest, &mut self.pool, &mut watcher)
                    .map(Some)
                    .map_err(Trouble::Ended)
            }
        };
        self.progress_bytes += watcher.out.bytes;
        // All ranks of a grid know its verdict; the one at position 0 tells those without a place,
        // and rank 0, which reports.
        let first = position == Some((0, 0));
        let mut teller = [(if first { comm.rank() } else { comm.size() }) as u64];
        comm.all_reduce(&mut teller, Reduce::Min);
        let mut bytes = Vec::new();
        if first {
            bytes = serde_json::to_vec(&verdict).expect("plain values have a JSON form");
        }
        comm.broadcast_bytes(&mut bytes, teller[0] as usize);
        let verdict: Result<Option<Outcome>, Trouble> =
            serde_json::from_slice(&bytes).expect("what one rank wrote another can read");
        verdict.map(|outcome| outcome.filter(|_| comm.rank() == 0))
    }

    /// Rank 0 opens what the results go to and writes the head; the others only learn whether that
    /// went well.
    fn open_reports(&self) -> Result<Option<Reports>, String> {
        let comm = self.world.comm();
        let mut opened = Ok(None);
        if comm.rank() == 0 {
            opened = self.begin_reports().map(Some);
        }
        let mut why = opened.as_ref().err().cloned().unwrap_or_default().into_bytes();
        comm.broadcast_bytes(&mut why, 0);
        if why.is_empty() { opened } else { Err(String::from_utf8_lossy(&why).into_owned()) }
    }

    fn begin_reports(&self) -> Result<Reports, String> {
        let (dat, settings) = (&self.loaded.dat, &self.loaded.settings);
        let mut file = None;
        let out: Box<dyn Write> = match &dat.output {
            Output::Stdout => Box::new(io::stdout()),
            Output::Stderr => Box::new(io::stderr()),
            Output::File(path) => {
                let cannot = |e| format!("cannot write to {}: {e}", path.display());
                let made = File::create(path).map_err(cannot)?;
                file = Some(made.try_clone().map_err(cannot)?);
                Box::new(made)
            }
        };
        let mut out = Counted { inner: out, bytes: 0 };
        let text = TextReport::new(dat.threshold, settings.timing);
        let json = match &settings.json {
            None => None,
            Some(path) => {
                let library = Library::query();
                let log = JsonLog::create(
                    path,
                    std::env::args().collect(),
                    Mpi {
                        library: World::library(),
                        ranks: self.world.comm().size(),
                        hosts: self.hosts,
                    },
                    Blas {
                        name: format!("{} {}", library.name, library.version),
                        kernel: library.kernel,
                        engine: self.engine.name().into(),
                    },
                    dat.test_count() as usize,
                );
                Some(log.map_err(|e| e.to_string())?)
            }
        };
        text.begin(&mut out, &echo(dat)).map_err(|e| format!("cannot write: {e}"))?;
        Ok(Reports { out, file, text, json })
    }
}

impl Reports {
    /// All is told, and on disk where it goes to files.
    fn end(&mut self) -> io::Result<()> {
        self.text.end(&mut self.out)?;
        if let Some(file) = &self.file {
            file.sync_all()?;
        }
        match self.json.take() {
            Some(json) => json.complete().map(|_| ()),
            None => Ok(()),
        }
    }
}

/// Knows how much was written.
struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Why there is no outcome.
#[derive(Debug, Serialize, Deserialize)]
enum Trouble {
    /// Of this test alone.
    Skipped(String),
    /// Of the whole run.
    Ended(Ended),
}

/// Solves one test in private memory.
fn solve_plainly(
    context: &Context,
    pool: &mut Pool,
    watcher: &mut impl Observer,
) -> Result<Option<Outcome>, String> {
    let shape: Shape = context.shape;
    let room = HugeBuffer::new(shape.len());
    let mut lacking = [u64::from(room.is_err())];
    context.grid.all_reduce(&mut lacking, Reduce::Sum);
    let buffer = match room {
        Ok(buffer) if lacking[0] == 0 => buffer,
        _ => {
            let bytes = shape.len() as u64 * 8;
            return Err(format!(
                "{} rank(s) could not get {bytes} bytes for their part of the matrix",
                lacking[0]
            ));
        }
    };
    let mut local = Local::new(shape, buffer);
    match solve_test(context, &mut local, Start::Fresh, pool, watcher) {
        Ok(outcome) => Ok(outcome),
        Err(error) => die(6, &format!("no memory for the work arrays: {error}")),
    }
}

/// The parts of the time that add up, beside the results.
fn tell_times(t: &Times) {
    say(format_args!(
        "by part, mean over the ranks: panel {:.3} + broadcast {:.3} + swap {:.3} + triangle {:.3} + \
         multiply {:.3} + solve {:.3} + save {:.3} + other {:.3} = {:.3} s",
        t.rfact, t.bcast, t.laswp, t.trsm, t.gemm, t.solve, t.save, t.other, t.total
    ));
}

/// Where the time of a protected test went, beside the results.
fn tell_protection(outcome: &Outcome) {
    let Some(p) = &outcome.protection else { return };
    let rest = outcome.seconds - p.save_s - p.lost_s - p.down_s - p.restore_s;
    say(format_args!(
        "{:.2} s in {} attempt(s): {rest:.2} computing, {:.2} in {} save(s), {:.2} lost \
         since a save, {:.2} down, {:.2} restarting and restoring; {} of named memory at most a \
         rank, groups of {} or more",
        outcome.seconds,
        p.attempts,
        p.save_s,
        p.saves,
        p.lost_s,
        p.down_s,
        p.restore_s,
        human(u128::from(p.memory_bytes_max)),
        p.group_min
    ));
}

fn echo(dat: &HplDat) -> Echo<'_> {
    Echo {
        ns: &dat.ns,
        nbs: &dat.nbs,
        mapping: dat.mapping,
        grids: &dat.grids,
        pfacts: &dat.pfacts,
        nbmins: &dat.nbmins,
        ndivs: &dat.ndivs,
        rfacts: &dat.rfacts,
        bcasts: &dat.bcasts,
        depths: &dat.depths,
        swap: dat.swap,
        swap_threshold: dat.swap_threshold,
        l1: dat.l1,
        u: dat.u,
        equilibrate: dat.equilibrate,
        align: dat.align,
        threshold: dat.threshold,
    }
}

fn tell(reports: &mut Option<Reports>, write: impl FnOnce(&mut Reports) -> io::Result<()>) {
    if let Some(error) = reports.as_mut().and_then(|r| write(r).err()) {
        cannot_write(&error);
    }
}

/// Results that cannot be written are lost: say so and end, rather than compute on for nothing.
fn cannot_write(error: &io::Error) -> ! {
    die(i32::from(Exit::Environment.code()), &format!("the results cannot be written: {error}"))
}

/// Tells the progress, at most about once a second.
struct Watcher {
    progress: bool,
    n: usize,
    nb: usize,
    last: f64,
    out: Counted<io::Stdout>,
}

impl Observer for Watcher {
    fn iteration(&mut self, k: usize, _blocks: usize, elapsed: f64) {
        if self.progress && k > 0 && elapsed - self.last >= 1.0 {
            self.last = elapsed;
            // A progress line that cannot be written is not worth ending the run for.
            let _ = text::progress(&mut self.out, self.n, k * self.nb, elapsed);
        }
    }
}

//! `cargo bench --bench nonstop -- --help`: the time until a run continues without a rank that died, and the cost of being able
//! to. benches/NOTEBOOK.md explains each figure, and names those with a target.
//!
//! All times come from the program itself: from the journal of the supervisor, and from the JSON document.

// Cargo also compiles a benchmark as a test, although it has its own `main`. Its `cfg(test)` parts are unused then;
// tests/bench_parts.rs runs them.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod flags;
mod job;
#[allow(dead_code)] // shared with the benchmark of supervision, which uses more of it
#[path = "../supervision/lab.rs"]
mod lab;
#[path = "../speed/limit.rs"]
mod limit;
mod moments;
#[path = "../checkpoint/report.rs"]
mod report;
#[allow(dead_code)]
#[path = "../supervision/run.rs"]
mod run;
#[allow(dead_code)]
#[path = "../speed/stats.rs"]
mod stats;
mod timeline;
#[path = "../speed/usual.rs"]
mod usual;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use skt_hpl::base::cores;
use skt_hpl::base::exit::Refusal;
use skt_hpl::base::faults::Point;
use skt_hpl::base::outcome::{Checksums, Outcome};
use skt_hpl::cli::node_flags::NodeFlags;
use skt_hpl::comm::World;
use skt_hpl::supervise::start::hosts::Host;

use flags::{Flags, Section};
use job::{Job, Machine};
use lab::{Lab, WORKING, hosts};
use moments::{Way, kill_ranks};
use report::Report;
use run::Stage;
use stats::{median, spread};

/// Number of process rows of the grid of all runs.
const P: usize = 2;
/// Number of process columns of the grid of all runs, without checksum columns.
const Q: usize = 2;
/// Number of checksum columns.
const R: usize = 1;

fn main() -> ExitCode {
    match measure(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("nonstop: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(flags: &Flags) -> Result<(), String> {
    let nodes = NodeFlags { launcher_program: flags.mpirun.clone(), ..NodeFlags::default() };
    let (tool, _) = nodes.launcher().map_err(|Refusal { why, .. }| why)?;
    if tool.goes_on().is_none() {
        let library = World::library();
        return Err(format!("this needs Open MPI 5, and is built for {library}"));
    }
    let program = flags.usual.program()?;
    let cores = cores::count();
    let mut report = Report::new(cores, World::library(), flags.usual.json.clone());
    let machine = Machine { tool, program };
    if flags.wants(Section::InPlace) || flags.wants(Section::Hot) {
        moments_of_a_loss(flags, &machine, &mut report)?;
    }
    type Part = fn(&Flags, &Machine, &mut Report) -> Result<(), String>;
    let parts: [(Section, Part); 3] =
        [(Section::Cost, cost), (Section::Loss, loss), (Section::Residual, residuals)];
    for (section, part) in parts {
        if flags.wants(section) {
            report.write()?;
            part(flags, &machine, &mut report)?;
        }
    }
    report.verdicts();
    report.write()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

fn moments_of_a_loss(flags: &Flags, machine: &Machine, report: &mut Report) -> Result<(), String> {
    // Nodes share this folder, but each has a /tmp of its own.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
    let lab = Lab::up(&flags.shm)?;
    let Flags { n, nb, checkpoint, .. } = flags;
    let problem = format!("-n {n} --nb {nb} -p {P} -q {Q}");
    let stage = |hosts, spares, how: &str| Stage {
        lab: &lab,
        hosts,
        spares,
        benchmark: words(&format!("{problem} {how}")),
        tool: machine.tool.clone(),
        program: machine.program.clone(),
        folder: folder.path(),
    };
    if flags.wants(Section::InPlace) {
        // The spare rank is on the fifth node.
        let how = format!("--checkpoint {checkpoint} --nonstop --spare-ranks 1");
        let stage = stage(hosts(1..=WORKING + 1), Vec::new(), &how);
        let way = Way { name: "in place", same_bits: true, going_on_s_max: 1.5 };
        kill_ranks(&stage, flags.repeat, &way, report)?;
        report.write()?;
    }
    if flags.wants(Section::Hot) {
        // Six ranks on four nodes.
        let two = |n: usize| Host::new(format!("n{n}"), 2);
        let all = [vec![two(1), two(2)], hosts(3..=WORKING)].concat();
        let stage = stage(all, hosts(WORKING + 1..=WORKING + 1), "--method abft");
        let way = Way { name: "hot replacement", same_bits: false, going_on_s_max: 1.0 };
        kill_ranks(&stage, flags.repeat, &way, report)?;
    }
    Ok(())
}

/// Returns the job of an unprotected run.
fn plain(flags: &Flags) -> Job {
    let Flags { n, nb, .. } = flags;
    let words = words(&format!("-n {n} --nb {nb} -p {P} -q {Q}"));
    Job { ranks: P * Q, goes_on: false, words, fault: None }
}

/// Returns `job` with checksum columns (`--method abft`).
fn with_checksums(mut job: Job) -> Job {
    job.ranks += P * R;
    job.goes_on = true;
    job.words.extend(words("--method abft"));
    job
}

/// Runs both jobs `repeat` times in turn, after one more pair that warms the machine up. Returns the pairs of outcomes.
fn in_turn(
    machine: &Machine,
    repeat: usize,
    one: &Job,
    other: &Job,
) -> Result<Vec<[Outcome; 2]>, String> {
    let mut pairs = Vec::new();
    for turn in 0..=repeat {
        // The order alternates, so that a machine that becomes slower or faster favours neither.
        let pair = match turn % 2 {
            0 => {
                let first = machine.run(one)?;
                [first, machine.run(other)?]
            }
            _ => {
                let second = machine.run(other)?;
                [machine.run(one)?, second]
            }
        };
        if turn > 0 {
            pairs.push(pair.map(|came| came.outcome));
        }
    }
    Ok(pairs)
}

fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

fn checksums(outcome: &Outcome) -> Result<&Checksums, String> {
    outcome.checksums.as_ref().ok_or("a run with checksums tells nothing of them".into())
}

fn cost(flags: &Flags, machine: &Machine, report: &mut Report) -> Result<(), String> {
    let work = (Q + R) as f64 / Q as f64;
    let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
    // Each rank is a failure domain, although all ranks are on one node.
    let domains = folder.path().join("domains");
    let lines: String = (0..=P * Q).map(|rank| format!("rank:{rank} d{rank}\n")).collect();
    std::fs::write(&domains, lines).map_err(|e| format!("{}: {e}", domains.display()))?;
    let saving = |mut job: Job, more: &str| {
        let (checkpoint, name) = (flags.checkpoint, format!("bench-{}", std::process::id()));
        job.words.extend(words(&format!("--checkpoint {checkpoint} --job {name}{more}")));
        job.words.extend(["--domains".to_owned(), domains.display().to_string()]);
        job
    };
    let standing_by = Job { ranks: P * Q + 1, goes_on: true, ..plain(flags) };
    let rows = [
        (
            "--method abft / unprotected, by the work",
            plain(flags),
            with_checksums(plain(flags)),
            work,
            1.03,
        ),
        (
            "--nonstop / without, self-checkpoint",
            saving(plain(flags), ""),
            saving(standing_by, " --nonstop --spare-ranks 1"),
            1.0,
            1.005,
        ),
    ];
    let mut table = Vec::new();
    for (name, without, with, work, most) in rows {
        let pairs = in_turn(machine, flags.repeat, &without, &with)?;
        let column = |at: usize| pairs.iter().map(|pair| pair[at].seconds).collect::<Vec<_>>();
        let ratios: Vec<f64> = pairs.iter().map(|[a, b]| b.seconds / a.seconds / work).collect();
        report.at_most(&format!("{name}, median of pairs"), middle(&ratios), most);
        table.push(vec![
            name.to_string(),
            format!("{:.3}", middle(&column(0))),
            format!("{:.3}", middle(&column(1))),
            format!("{work}"),
            format!("{:.4}", middle(&ratios)),
            format!("{:.3}", spread(&ratios).unwrap_or(f64::NAN)),
        ]);
        report.keep(name, [column(0), column(1)]);
        if with.words.iter().any(|word| word == "abft") {
            memory(checksums(&pairs[0][1])?, report);
        }
    }
    let heads = ["", "without, s", "with, s", "work", "with / without / work", "spread"];
    let title = format!("Where nothing happens: {} pairs of runs, medians", flags.repeat);
    report.table(&title, &heads, table);
    Ok(())
}

/// Reports the share of the matrix in the memory of a run with checksum columns. The expected share is Q / (Q + R), for Q process
/// columns of the matrix and R checksum columns.
fn memory(told: &Checksums, report: &mut Report) {
    let (matrix, sums) = (told.matrix_bytes as f64, told.checksum_bytes as f64);
    let whole = Q as f64 / (Q + R) as f64;
    let name = "--method abft: memory for the matrix, compared with an unprotected run's";
    report.within(name, matrix / (matrix + sums), whole * 0.98, 1.0);
}

/// Cost of one loss. Times are in seconds.
#[derive(serde::Serialize)]
struct Cost {
    boundary: u64,
    iteration_s: f64,
    /// Expected time: that of a run with checksum columns, less the share of the lost process column from `boundary` on.
    expected_s: f64,
    /// Expected time if the rest of the run, from `boundary` on, takes as long as in an unprotected run.
    bare_s: f64,
    took_s: f64,
    going_on_s: f64,
    recompute_s: f64,
}

impl Cost {
    /// Returns the time that the run took longer than `expected_s`, in iterations.
    fn iterations(&self, expected_s: f64) -> f64 {
        (self.took_s - expected_s) / self.iteration_s
    }
}

/// Reports the cost of a loss beyond the necessary work: the measured time less the expected time.
///
/// Before the boundary of the loss, the expected time is that of a run with checksum columns. One of Q + R process columns is
/// lost, so after the boundary it is Q / (Q + R) of the rest. So the cost of checksum columns without a loss is not counted here;
/// [`cost`] reports it. A further column of the table counts it too: there the rest is that of an unprotected run.
///
/// Up to one boundary before the loss, the expected time is that of the failed run itself. The loss costs nothing there, and two
/// runs differ by more than the cost.
fn loss(flags: &Flags, machine: &Machine, report: &mut Report) -> Result<(), String> {
    let blocks = flags.n.div_ceil(flags.nb);
    let mut all = Vec::new();
    for turn in 0..=flags.repeat {
        let at = blocks * (1 + turn % 3) / 4;
        // The lost rank is in each of the first two process columns in turn.
        let fault = Some(format!("1@iteration:{}:{at}:kill", turn % Q));
        let failed = Job { fault, ..with_checksums(plain(flags)) };
        let [unprotected, protected, failed] =
            [plain(flags), with_checksums(plain(flags)), failed].map(|job| machine.run(&job));
        let (unprotected, protected) = (unprotected?.outcome, protected?.outcome);
        let failed = failed?;
        let told = checksums(&failed.outcome)?;
        let [replaced] = told.replaced[..] else {
            return Err(format!("a loss at iteration {at} was not recovered by checksums"));
        };
        let boundary = replaced.boundary;
        let whole = boundary.saturating_sub(1);
        let before = timeline::passed(&failed.outcome.timeline, whole)?
            + timeline::passed(&protected.timeline, boundary)?
            - timeline::passed(&protected.timeline, whole)?;
        let rest = |run: &Outcome| {
            Ok::<f64, String>(run.seconds - timeline::passed(&run.timeline, boundary)?)
        };
        let after = rest(&protected)? * Q as f64 / (Q + R) as f64;
        let cost = Cost {
            boundary,
            iteration_s: timeline::passed(&protected.timeline, boundary + 1)?
                - timeline::passed(&protected.timeline, boundary)?,
            expected_s: before + after,
            bare_s: before + rest(&unprotected)?,
            took_s: failed.outcome.seconds,
            going_on_s: told.going_on_s,
            recompute_s: told.recompute_s,
        };
        // The first turn warms the machine up.
        if turn > 0 {
            all.push(cost);
        }
    }
    let iterations: Vec<f64> = all.iter().map(|cost| cost.iterations(cost.expected_s)).collect();
    report.at_most("a loss recovered by checksums, iterations, median", middle(&iterations), 2.0);
    let bare: Vec<f64> = all.iter().map(|cost| cost.iterations(cost.bare_s)).collect();
    let row = |cost: &Cost| {
        let seconds = [cost.expected_s, cost.took_s, cost.going_on_s, cost.recompute_s];
        let seconds = seconds.map(|v| format!("{v:.3}"));
        let iteration = format!("{:.4}", cost.iteration_s);
        let mut row = vec![cost.boundary.to_string(), iteration];
        row.extend(seconds);
        row.extend([cost.expected_s, cost.bare_s].map(|s| format!("{:.1}", cost.iterations(s))));
        row
    };
    let heads = [
        "boundary",
        "an iteration",
        "expected",
        "took",
        "from notice to computing",
        "recomputing U",
        "cost, iterations",
        "with an unprotected rest",
    ];
    let title = format!(
        "A loss recovered by checksums, seconds; with an unprotected rest {:.2} iterations in the median",
        middle(&bare)
    );
    report.table(&title, &heads, all.iter().map(row).collect());
    report.keep("loss", &all);
    Ok(())
}

/// Number of blocks of the small problem.
const BLOCKS: usize = 50;
/// Number of losses measured with each matrix. The growth of the residual is similar for all losses of one matrix.
const OF_ONE_MATRIX: usize = 10;

fn residuals(flags: &Flags, machine: &Machine, report: &mut Report) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let seed = flags.seed.unwrap_or(now);
    println!("--seed {seed}");
    // A seed gives the same random numbers on every machine.
    let mut random = Xoshiro256StarStar::seed_from_u64(seed);
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    let small = Flags { n: flags.small, nb: (flags.small / BLOCKS).max(1), ..flags.clone() };
    let residual = |outcome: &Outcome| {
        outcome.residual.as_ref().map(|residual| residual.scaled).ok_or("no residual".to_string())
    };
    let points: Vec<Point> = Point::ALL
        .iter()
        .copied()
        .filter(|point| point.is_solvers() || *point == Point::Iteration)
        .collect();
    let (mut ratios, mut samples) = (Vec::new(), Vec::new());
    let (mut job, mut undisturbed) = (with_checksums(plain(&small)), Vec::new());
    while ratios.len() < flags.losses {
        if ratios.len() == undisturbed.len() * OF_ONE_MATRIX {
            job = with_checksums(plain(&small));
            job.words.extend(words(&format!("--seed {}", 1 + below(1 << 30))));
            undisturbed.push(residual(&machine.run(&job)?.outcome)?);
        }
        let point = points[below(points.len())].name();
        let position = below(P * (Q + R));
        let fault = format!("1@{point}:{position}:{}:kill", 1 + below(BLOCKS));
        let came = machine.run(&Job { fault: Some(fault.clone()), ..job.clone() })?;
        // Not every rank reaches every point so often.
        if came.injected {
            ratios.push(residual(&came.outcome)? / undisturbed[undisturbed.len() - 1]);
            samples.push((fault, job.words.join(" "), ratios[ratios.len() - 1]));
        }
    }
    let worst = ratios.iter().copied().fold(f64::NAN, f64::max);
    report.at_most("residual after a loss / without, at worst", worst, 4.0);
    let row = vec![
        ratios.len().to_string(),
        undisturbed.len().to_string(),
        format!("{:.3e}", middle(&undisturbed)),
        format!("{:.2}", middle(&ratios)),
        format!("{worst:.2}"),
    ];
    let heads = ["losses", "matrices", "residual without", "median of the ratios", "worst"];
    report.table(&format!("Losses at random, N = {}", flags.small), &heads, vec![row]);
    report.keep("residuals", &samples);
    Ok(())
}

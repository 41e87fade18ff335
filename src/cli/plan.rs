//! `skt-hpl plan`: what to run on a machine, and what to expect of it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::exit::{Exit, Refusal};
use super::json_flag;
use super::launchers::{typed, typed_for_run, usual_words};
use super::template;
use super::this_machine;
use crate::checkpoint::layout::ChecksumLayout;
use crate::cores;
use crate::input::settings;
use crate::model::fit::{Fit, Sample, fit, read};
use crate::model::hpl_dat::hpl_dat;
use crate::model::memory::{Method, Scope};
use crate::model::nonstop::Columns;
use crate::model::planner::{
    self, Advice, Comparison, Helpers, Inputs, Measured, Mtbf, Plan, Storing, calibration_sizes,
    columns_of_checksums, node_hours, test_params,
};
use crate::supervise::start::launcher::{Launcher, WITH_ULFM};
use crate::topology::{Layout, Topology};
use crate::units::{
    bytes, bytes_per_second, seconds, seconds_or_none, show_bytes, show_flops, show_seconds,
};

const MACHINE: &str = "The machine (what is not given is taken from this one, or guessed and said)";
const FAILURES: &str = "Failures and deadlines";
const RUN: &str = "The run (what is not given is chosen)";
const OUTPUT: &str = "Measuring and writing";

/// Durations are written `90s`, `30min`, `5h`, `3d`, `5y`; memory `64GiB`, `64GB`; bandwidths `12.5GB/s`, `100Gbit/s`.
#[derive(Debug, Args)]
pub struct PlanFlags {
    /// Number of nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = MACHINE)]
    nodes: u64,

    /// Ranks on each node [default: one for each last-level cache of four cores or more, else for each NUMA node]
    #[arg(long, value_name = "COUNT", help_heading = MACHINE)]
    ranks_per_node: Option<u64>,

    /// NUMA nodes of each node, with as many cores each [default: 1 where --cores is given]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=4096), help_heading = MACHINE)]
    numa: Option<u64>,

    /// Cores of each node, hardware threads of one counted once
    #[arg(long, value_name = "COUNT", help_heading = MACHINE)]
    cores: Option<u64>,

    /// Memory of each node
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = MACHINE)]
    memory: Option<f64>,

    /// Part of it to leave to the system [default: 5 %, at least 512 MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = MACHINE)]
    reserve: Option<f64>,

    /// Peak of a core in Gflop/s
    #[arg(long, value_name = "GFLOPS", help_heading = MACHINE)]
    peak_per_core: Option<f64>,

    /// Bandwidth of the network out of a node
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second, help_heading = MACHINE)]
    network: Option<f64>,

    /// Latency of a message
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = MACHINE)]
    latency: Option<f64>,

    /// Bandwidth of copying within a node's memory, all cores together
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second, help_heading = MACHINE)]
    copy: Option<f64>,

    /// Bandwidth of the file system, all nodes together (for --method disk and --level2)
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second, help_heading = MACHINE)]
    disk: Option<f64>,

    /// Mean time between failures of the whole system
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "mtbf_node", help_heading = FAILURES)]
    mtbf: Option<f64>,

    /// Mean time between failures of one node
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = FAILURES)]
    mtbf_node: Option<f64>,

    /// Time until a dead node is noticed
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = FAILURES)]
    detect: Option<f64>,

    /// Time to replace it and to start again
    #[arg(long = "restart-time", value_name = "TIME", value_parser = seconds, help_heading = FAILURES)]
    restart: Option<f64>,

    /// Share of the failures that end a process and leave its node, 0 to 1: only these are survived without a restart
    /// [default: 0, every failure is a node's]
    #[arg(long, value_name = "SHARE", help_heading = FAILURES)]
    process_share: Option<f64>,

    /// Time to go on without a restart after such a failure, the restore not counted
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, help_heading = FAILURES)]
    in_place: Option<f64>,

    /// Spare nodes [default: enough]
    #[arg(long = "spare-nodes", value_name = "COUNT", help_heading = FAILURES)]
    spares: Option<u64>,

    /// Wall time the run may take
    #[arg(long = "time-limit", value_name = "TIME", value_parser = seconds, help_heading = FAILURES)]
    limit: Option<f64>,

    /// Order of the matrix [default: the largest that fits memory and limit]
    #[arg(short, long, value_name = "N", help_heading = RUN)]
    n: Option<u64>,

    /// Block size
    #[arg(long, value_name = "NB", help_heading = RUN)]
    nb: Option<u64>,

    /// Process rows, with -q
    #[arg(short, long, value_name = "P", requires = "q", help_heading = RUN)]
    p: Option<u64>,

    /// Process columns, with -p; of method abft without those for checksums
    #[arg(short, long, value_name = "Q", requires = "p", help_heading = RUN)]
    q: Option<u64>,

    /// Panels of lookahead
    #[arg(long, value_name = "DEPTH", default_value_t = 1, help_heading = RUN)]
    depth: u64,

    /// self, double, single, abft, disk or none [default: self, on one node none]
    #[arg(long, value_name = "METHOD", help_heading = RUN)]
    method: Option<Method>,

    /// What a save holds: whole, side or corner
    #[arg(long, value_name = "SCOPE", default_value = "corner", help_heading = RUN)]
    scope: Scope,

    /// Nodes that protect each other [default: about 16]
    #[arg(long, value_name = "COUNT", help_heading = RUN)]
    group: Option<u64>,

    /// Losses each group survives
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = RUN)]
    losses: u64,

    /// Where checksums lie: striped, grid, localised or dedicated (the run's --layout); the last has ranks of their own for them,
    /// which --ranks-per-node counts and --group does not
    #[arg(long, value_name = "LAYOUT", default_value = "striped", value_parser = settings::layout(), help_heading = RUN)]
    checksum_layout: ChecksumLayout,

    /// Who makes the checksums: the ranks, passing segments round the group, or helpers while the ranks go on (method double)
    #[arg(long, value_name = "NAME", default_value = "pipelined", value_parser = ["pipelined", "helper"], help_heading = RUN)]
    encode: String,

    /// Process columns that keep checksums, up to 4, of method abft and of what others are compared with [default: 1]
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=Columns::SUMS_MAX), help_heading = RUN)]
    checksum_columns: Option<u64>,

    /// Ranks that wait to make new checksums, of method abft and of what others are compared with [default: 0]
    #[arg(long, value_name = "K", help_heading = RUN)]
    spare_ranks: Option<u64>,

    /// Name the run's memory is kept under
    #[arg(long, value_name = "NAME", help_heading = RUN)]
    job: Option<String>,

    /// Where checkpoints on storage go, a folder that all nodes share: those of method disk, or a second level of the others'
    #[arg(long, value_name = "DIR", help_heading = RUN)]
    level2: Option<PathBuf>,

    /// Time between two checkpoints in memory that go there as well [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "level2", help_heading = RUN)]
    level2_every: Option<f64>,

    /// Take the rate from results of earlier runs: output of any HPL, or JSON
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    results: Vec<PathBuf>,

    /// Ranks of those runs [default: P x Q of the results]
    #[arg(long, value_name = "COUNT", requires = "results", help_heading = OUTPUT)]
    results_ranks: Option<u64>,

    /// Measure the rate first, in about this long
    #[arg(long, value_name = "TIME", value_parser = seconds, num_args = 0..=1, default_missing_value = "30s",
          conflicts_with = "results", help_heading = OUTPUT)]
    calibrate: Option<f64>,

    /// How to start the measurement; {ranks} stands for their number, {per_node} for those of a node [default: mpirun, with as
    /// many ranks on each node, not bound]
    #[arg(long, value_name = "WORDS", help_heading = OUTPUT)]
    launch_command: Option<String>,

    /// Program to measure [default: this one]
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    program: Option<PathBuf>,

    /// Write HPL.dat and skt.toml into this directory
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".", help_heading = OUTPUT)]
    write: Option<PathBuf>,

    /// Overwrite them if they are there
    #[arg(long, requires = "write", help_heading = OUTPUT)]
    force: bool,

    /// Print only how many ranks suit the cores of a node, and how many threads each
    #[arg(long, conflicts_with_all = ["calibrate", "results", "write", "json"], help_heading = OUTPUT)]
    layout: bool,

    /// JSON, into FILE; without one on stdout instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = OUTPUT)]
    json: Option<Option<PathBuf>>,

    /// Runs to simulate for the chance to finish; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 1000, help_heading = OUTPUT)]
    runs: usize,

    /// Seed of the simulation
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = OUTPUT)]
    seed: u64,
}

pub fn run(flags: &PlanFlags) -> ExitCode {
    match answer(flags) {
        Ok(text) => super::print(text.as_bytes()),
        Err(Refusal(exit, text)) => {
            eprintln!("skt-hpl plan: {text}");
            exit.into()
        }
    }
}

fn answer(flags: &PlanFlags) -> Result<String, Refusal> {
    if flags.layout {
        let Layout { ranks, threads } = layout(flags);
        let s = |n| if n == 1 { "" } else { "s" };
        return Ok(format!(
            "{ranks} rank{} a node, {threads} thread{} a rank\n",
            s(ranks),
            s(threads)
        ));
    }
    let mut warnings = Vec::new();
    let mut inputs = inputs(flags, &mut warnings)?;
    let mut fitted = None;
    if !flags.results.is_empty() {
        let samples = samples_of(&flags.results)?;
        let ranks = flags
            .results_ranks
            .unwrap_or_else(|| samples.iter().map(|s| s.p * s.q).max().unwrap_or(1));
        fitted = Some((fit(&samples, guessed_half(&inputs))?, ranks, samples));
    } else if let Some(time) = flags.calibrate {
        let samples = calibrate(flags, &inputs, time)?;
        if inputs.copy.is_none() {
            inputs.copy = this_machine::copy_bandwidth(inputs.cores as usize);
            if let Some(copy) = inputs.copy {
                warnings.push(format!("copying runs at {:.1} GB/s: measured here", copy / 1e9));
            }
        }
        let ranks = inputs.nodes * inputs.ranks_per_node;
        fitted = Some((fit(&samples, guessed_half(&inputs))?, ranks, samples));
    }
    if let Some((fit, ranks, _)) = &fitted {
        inputs.measured = Some(Measured { fit: *fit, ranks: *ranks });
    }
    let mut advice = planner::plan(&inputs)?;
    warnings.append(&mut advice.warnings);
    advice.warnings = warnings;
    let mut text = json_flag::answer(&flags.json, &advice, || {
        let measured = fitted.as_ref().map(|(f, _, s)| (f, s.as_slice()));
        describe(&inputs, &advice, measured)
    })?;
    if let Some(dir) = &flags.write {
        write_files(dir, &inputs, &advice, flags.force)?;
        if !json_flag::instead(&flags.json) {
            let _ = writeln!(
                text,
                "\nWritten: {} and {}\n{}",
                dir.join("HPL.dat").display(),
                dir.join("skt.toml").display(),
                start(&inputs, &advice.plan)
            );
        }
    }
    Ok(text)
}

/// How many ranks suit a node, and how many threads each.
fn layout(flags: &PlanFlags) -> Layout {
    let own = match (flags.cores, flags.numa) {
        (None, None) => this_machine::layout(),
        (cores, numa) => {
            // More than there are of anything, but not more than fit here.
            let cores = cores.map_or_else(cores::count, |cores| cores.clamp(1, 1 << 16) as usize);
            Topology::even(cores, numa.unwrap_or(1) as usize).layout()
        }
    };
    match flags.ranks_per_node.unwrap_or(0) as usize {
        0 => own,
        ranks => Layout { ranks, threads: (own.ranks * own.threads / ranks).max(1) },
    }
}

/// What the flags tell, completed by this machine.
fn inputs(flags: &PlanFlags, warnings: &mut Vec<String>) -> Result<Inputs, Refusal> {
    let cores = flags.cores.unwrap_or_else(|| {
        let cores = cores::count() as u64;
        warnings.push(format!("{cores} cores a node: taken from this machine (--cores)"));
        cores
    });
    let ranks_per_node = flags.ranks_per_node.unwrap_or_else(|| {
        let ranks = layout(flags).ranks as u64;
        if ranks > 1 {
            warnings.push(format!(
                "{ranks} ranks a node: one for each part of it with caches or memory of its own (--ranks-per-node)"
            ));
        }
        ranks
    });
    let memory = match flags.memory {
        Some(m) => m,
        None => {
            let memory = this_machine::memory().ok_or_else(|| {
                Refusal(
                    Exit::Environment,
                    "this machine does not tell its memory; say it with --memory".into(),
                )
            })?;
            warnings.push(format!(
                "{} of memory a node: what is free on this machine now (--memory)",
                show_bytes(memory)
            ));
            memory
        }
    };
    let peak = flags.peak_per_core.map(|g| g * 1e9).or_else(|| {
        // Only of use when the nodes are like this one.
        (flags.cores.is_none()).then(this_machine::peak_per_core).flatten()
    });
    Ok(Inputs {
        nodes: flags.nodes,
        ranks_per_node,
        cores,
        memory,
        reserve: flags.reserve,
        peak_per_core: peak,
        network: flags.network,
        latency: flags.latency,
        copy: flags.copy,
        disk: flags.disk,
        mtbf: flags.mtbf.map(Mtbf::System).or(flags.mtbf_node.map(Mtbf::Node)),
        detect: flags.detect,
        restart: flags.restart,
        process_share: flags.process_share,
        in_place: flags.in_place,
        spares: flags.spares,
        limit: flags.limit,
        n: flags.n,
        nb: flags.nb,
        grid: flags.p.zip(flags.q),
        depth: flags.depth,
        method: flags.method,
        scope: flags.scope,
        group: flags.group,
        losses: flags.losses,
        layout: flags.checksum_layout,
        helpers: flags.encode == "helper",
        checksum_columns: flags.checksum_columns,
        spare_ranks: flags.spare_ranks,
        measured: None,
        job: flags.job.clone(),
        level2: flags.level2.clone(),
        level2_every: flags.level2_every,
        simulate: flags.runs,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        seed: flags.seed,
    })
}

/// The half-rate order to assume when only one size was measured.
fn guessed_half(inputs: &Inputs) -> Option<f64> {
    let quick = Inputs { simulate: 0, limit: None, n: None, ..inputs.clone() };
    planner::plan(&quick).ok().map(|a| a.plan.rate.n_half)
}

fn samples_of(files: &[PathBuf]) -> Result<Vec<Sample>, Refusal> {
    let mut samples = Vec::new();
    for file in files {
        let bytes = std::fs::read(file)
            .map_err(|e| Refusal(Exit::BadInput, format!("cannot read {}: {e}", file.display())))?;
        let found = read(&String::from_utf8_lossy(&bytes));
        if found.is_empty() {
            return Err(Refusal(
                Exit::BadInput,
                format!(
                    "{} holds no result: neither lines such as `WR11C2R4 12000 192 1 2 5.58 2.0645e+02` nor \
                     JSON with seconds and gflops",
                    file.display()
                ),
            ));
        }
        samples.extend(found);
    }
    Ok(samples)
}

/// Three short runs of the benchmark itself.
fn calibrate(flags: &PlanFlags, inputs: &Inputs, time: f64) -> Result<Vec<Sample>, Refusal> {
    let environment = |text: String| Refusal(Exit::Environment, text);
    // The plan without any measurement says what fits and, roughly, how fast this may be.
    let rough =
        planner::plan(&Inputs { simulate: 0, limit: None, n: None, ..inputs.clone() })?.plan;
    let nb = inputs.nb.unwrap_or(192.min(rough.shape.nb));
    let sizes = calibration_sizes(&rough.rate, nb, rough.shape.n, time / REPEATS as f64)?;
    let sizes: Vec<usize> = sizes.into_iter().map(|n| n as usize).collect();
    let sizes = sizes.repeat(REPEATS);
    let mut test = test_params(&rough);
    test.nb = nb as usize;
    test.threshold = -1.0;
    let dir = own_folder().map_err(environment)?;
    let result = calibrate_in(flags, inputs, &dir, &hpl_dat(&test, &sizes, "calibration"));
    // Nothing else is in it; if it cannot be removed the measurement is good all the same.
    let _ = std::fs::remove_dir_all(&dir);
    let samples = best_of_each(result?);
    if samples.is_empty() {
        return Err(environment(
            "the calibration printed no result; run it by hand to see why".into(),
        ));
    }
    Ok(samples)
}

/// A folder for the measurement: here, which ranks on other nodes see as well; for temporary files where nothing can be made
/// here.
fn own_folder() -> Result<PathBuf, String> {
    let name = format!("skt-hpl-calibrate-{}", std::process::id());
    let here = std::env::current_dir().map_err(|e| e.to_string())?.join(&name);
    if std::fs::create_dir(&here).is_ok() {
        return Ok(here);
    }
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    Ok(dir)
}

/// How often each size is measured. Whatever else the machine does can only slow a run down, and one
/// slow run of the smallest size would tilt the fit; so the fastest of each counts.
const REPEATS: usize = 3;

fn best_of_each(samples: Vec<Sample>) -> Vec<Sample> {
    let mut best: Vec<Sample> = Vec::new();
    for sample in samples {
        match best.iter_mut().find(|b| b.n == sample.n) {
            Some(b) if b.rate < sample.rate => *b = sample,
            Some(_) => {}
            None => best.push(sample),
        }
    }
    best
}

fn calibrate_in(
    flags: &PlanFlags,
    inputs: &Inputs,
    dir: &Path,
    dat: &str,
) -> Result<Vec<Sample>, Refusal> {
    let environment = |text: String| Refusal(Exit::Environment, text);
    let file = dir.join("HPL.dat");
    std::fs::write(&file, dat)
        .map_err(|e| environment(format!("cannot write {}: {e}", file.display())))?;
    let program = flags.program.clone().map_or_else(template::own_program, Ok)?;
    let ranks = inputs.nodes * inputs.ranks_per_node;
    let launcher =
        flags.launch_command.clone().unwrap_or_else(|| usual_words(inputs.nodes as usize));
    let words = template::words(&launcher, ranks as usize, inputs.ranks_per_node as usize);
    let threads = (inputs.cores / inputs.ranks_per_node).max(1).to_string();
    eprintln!("skt-hpl plan: measuring for about {}", show_seconds(flags.calibrate.unwrap_or(0.0)));
    let mut command = template::command(&words, &program)?;
    command.arg("--dat").arg(&file).args(["--threads", &threads]).current_dir(dir);
    let output = command.output().map_err(|error| template::cannot_start(&command, &error))?;
    if !output.status.success() {
        let said = template::last_lines(&String::from_utf8_lossy(&output.stderr));
        return Err(environment(format!("the calibration failed ({}):\n{said}", output.status)));
    }
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

fn write_files(dir: &Path, inputs: &Inputs, advice: &Advice, force: bool) -> Result<(), Refusal> {
    if advice.plan.method == Method::Disk && inputs.level2.is_none() {
        return Err(Refusal(
            Exit::BadInput,
            "nothing says where the checkpoints of --method disk are to go: give --level2 DIR, a folder that all nodes share"
                .into(),
        ));
    }
    let files = [("HPL.dat", &advice.hpl_dat), ("skt.toml", &advice.skt_toml)];
    if !force {
        for (name, _) in files {
            let path = dir.join(name);
            if path.exists() {
                return Err(Refusal(
                    Exit::BadInput,
                    format!("{} is there already; --force overwrites it", path.display()),
                ));
            }
        }
    }
    std::fs::create_dir_all(dir)
        .map_err(|e| Refusal(Exit::Environment, format!("cannot make {}: {e}", dir.display())))?;
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|e| {
            Refusal(Exit::Environment, format!("cannot write {}: {e}", path.display()))
        })?;
    }
    Ok(())
}

/// The command that starts what was written.
fn start(inputs: &Inputs, plan: &Plan) -> String {
    let ranks = plan.ranks;
    let each = inputs.ranks_per_node;
    let typed = |kind| typed(kind, inputs.nodes as usize, ranks as usize, each as usize);
    let plain = format!("  mpirun {} skt-hpl", typed(None));
    match plan.method {
        Method::None => format!("Start it there with\n{plain}"),
        Method::Abft => format!(
            "Start it there, with Open MPI 5 and {} ranks more than the grid has, with\n  mpirun {} {} skt-hpl",
            plan.shape.p * plan.checksum_columns + plan.spare_ranks,
            WITH_ULFM.join(" "),
            typed(Some(Launcher::Openmpi))
        ),
        _ => format!(
            "Start it there with\n  skt-hpl run --hosts HOSTS --spares SPARES{}    (a line a node: `name slots={each}`)\nor, to start it \
             again by hand after a loss,\n{plain}",
            typed_for_run()
        ),
    }
}

fn percent(x: f64) -> String {
    if x < 1.0 && x > 0.999 {
        // 99.9996 % must not read as 100: as many digits as there are nines, cut off, not rounded.
        let nines = (-(1.0 - x).log10()).floor().clamp(3.0, 9.0);
        let scale = 10f64.powf(nines - 1.0);
        format!("{:.*} %", nines as usize - 1, (100.0 * x * scale).floor() / scale)
    } else {
        format!("{:.1} %", 100.0 * x)
    }
}

fn protection(plan: &Plan) -> String {
    match plan.method {
        Method::None => "none".into(),
        Method::Abft => format!(
            "{} of {} ranks with checksums, which bear{} the loss of {}{}",
            Columns::told(plan.checksum_columns),
            plan.shape.p,
            if plan.checksum_columns == 1 { "s" } else { "" },
            Columns::borne(plan.checksum_columns),
            match plan.spare_ranks {
                0 => String::new(),
                1 => "; a rank waits to make new ones".to_owned(),
                waiting => format!("; {waiting} ranks wait to make new ones"),
            }
        ),
        Method::Disk => {
            format!("{} of the matrix to disk, nothing in memory beside it", plan.scope.name())
        }
        m => format!(
            "{}-checkpoint of the {}, {}groups of {} that survive {} loss{} each",
            m.name(),
            plan.scope.name(),
            match plan.layout {
                ChecksumLayout::Striped => String::new(),
                ChecksumLayout::Grid => "rows or columns of the grid as ".into(),
                ChecksumLayout::Localised => "localised checksums, ".into(),
                ChecksumLayout::Dedicated => {
                    let computing = plan.shape.p * plan.shape.q;
                    format!("checksums on ranks behind the {computing} that compute, with those ")
                }
            },
            plan.group,
            plan.losses,
            if plan.losses == 1 { "" } else { "es" }
        ),
    }
}

/// Share of all nodes' memory that is the matrix's.
fn matrix_share(plan: &Plan, ranks_per_node: u64) -> f64 {
    let computing = match plan.layout {
        ChecksumLayout::Dedicated => (plan.shape.p * plan.shape.q) as f64 / plan.ranks as f64,
        _ => 1.0,
    };
    computing * plan.rank.matrix * ranks_per_node as f64 / plan.node_budget
}

/// What helpers do of a save, and whether a core should be kept free for them.
fn by_helpers(helpers: &Helpers, cores: u64) -> String {
    let even = show_seconds(helpers.break_even);
    format!(
        "encode the matrix in {} beside the computation, which stops for {} to copy it; a core kept free for them in each node \
         (--helper-cores), of {cores}, pays {}",
        show_seconds(helpers.encode),
        show_seconds(helpers.copy),
        match helpers.core_pays {
            Some(true) => format!("here, and wherever saves are less than {even} apart"),
            Some(false) => format!("where saves are less than {even} apart, so not here"),
            None => format!("where saves are less than {even} apart"),
        }
    )
}

/// What bringing checkpoints to storage takes, by who does it, and whether a core should be kept free for it.
fn on_storage(storing: &Storing, cores: u64) -> Vec<String> {
    let even = show_seconds(storing.break_even);
    vec![
        format!(
            "{} every {}, written in {}",
            show_bytes(storing.bytes),
            show_seconds(storing.every),
            show_seconds(storing.write)
        ),
        format!(
            "by threads beside the ranks: {} of the cores' time at most, nothing where one is idle",
            percent(storing.beside)
        ),
        format!(
            "by processes beside them (--helpers process): {} at most; where no core is idle an epoch takes longer instead",
            percent(storing.yielding)
        ),
        format!(
            "by ranks that wait (--helpers off): {} of the time in between",
            percent(storing.waiting)
        ),
        format!(
            "on a core of each node kept free (--helper-cores), of {cores}: {}; {}",
            percent(storing.kept_free),
            match storing.core_pays {
                Some(true) =>
                    format!("against ranks that wait it pays here, and up to every {even}"),
                Some(false) =>
                    format!("against ranks that wait it pays up to every {even}, so not here"),
                None => "this run ends before the first".to_owned(),
            }
        ),
    ]
}

/// Which way to go on is better here, and what that hangs on.
fn without_restart(c: &Comparison) -> String {
    let mut t = format!(
        "\nWithout a restart ({:.0} % of the failures end a process and leave its node)\n",
        100.0 * c.process_share
    );
    let checksums = columns_of_checksums(c.checksum_columns);
    let ways = [
        ("self-checkpoint, restarts", c.restart),
        ("self-checkpoint, in place", c.in_place),
        (checksums.as_str(), c.abft),
    ];
    for (what, rate) in ways {
        let told = rate.map_or("never, or not possible".into(), show_flops);
        let _ = writeln!(t, "  {what:<28} {told:>16} expected");
    }
    // In place is never slower; where it gains nothing a restart is the simpler way.
    let gains = |a: Option<f64>, b: Option<f64>| a.unwrap_or(0.0) > 1.001 * b.unwrap_or(0.0);
    if [c.restart, c.in_place, c.abft] == [None; 3] {
        return t;
    }
    let best = if gains(c.abft, c.in_place) {
        "Checksums are"
    } else if gains(c.in_place, c.restart) {
        "Self-checkpoint in place is"
    } else {
        "Self-checkpoint with restarts: going on in place gains less than 0.1 %, so it is"
    };
    let _ = writeln!(t, "  {best} better here.");
    let _ = match c.abft_from {
        Some(0.0) => {
            writeln!(t, "  Checksums are faster at these sizes even if every failure takes a node.")
        }
        Some(share) => writeln!(
            t,
            "  Checksums are faster where {:.0} % of the failures or more are of processes alone, at these sizes.",
            100.0 * share
        ),
        None => writeln!(
            t,
            "  Checksums are not faster at these sizes even if all failures are of processes alone."
        ),
    };
    t
}

fn describe(inputs: &Inputs, advice: &Advice, measured: Option<(&Fit, &[Sample])>) -> String {
    let plan = &advice.plan;
    let mut t = String::new();
    let s = |n: u64| if n == 1 { "" } else { "s" };
    let _ = writeln!(
        t,
        "{} node{} with {} and {} core{} each; {} rank{} a node, {} thread{} a rank",
        inputs.nodes,
        s(inputs.nodes),
        show_bytes(inputs.memory),
        inputs.cores,
        s(inputs.cores),
        inputs.ranks_per_node,
        s(inputs.ranks_per_node),
        plan.threads_per_rank,
        s(plan.threads_per_rank),
    );
    if let Some((fit, samples)) = measured {
        let _ = writeln!(t, "\nMeasured");
        for sample in samples {
            let _ = writeln!(
                t,
                "  N {:>9}  {:>10}  {}",
                sample.n,
                show_seconds(sample.seconds),
                show_flops(sample.rate)
            );
        }
        let _ = writeln!(
            t,
            "  fitted: {} for large N, half of it at N = {:.0}; off by {:.1} % at most",
            show_flops(fit.model.r_inf),
            fit.model.n_half,
            100.0 * fit.worst
        );
    }
    let _ = writeln!(t, "\nThe plan");
    let mut row = |name: &str, text: String| {
        let _ = writeln!(t, "  {name:<12} {text}");
    };
    let shape = plan.shape;
    row("problem", format!("N = {}, NB = {}", shape.n, shape.nb));
    row("grid", format!("{} x {}, row-major, lookahead {}", shape.p, shape.q, shape.depth));
    row("protection", protection(plan));
    let share = |part: f64| show_bytes(part * inputs.ranks_per_node as f64);
    row(
        "memory",
        format!(
            "{} a node of {} that may be taken",
            show_bytes(plan.node_memory),
            show_bytes(plan.node_budget)
        ),
    );
    for (name, part) in [
        ("matrix", plan.rank.matrix),
        ("copies", plan.rank.checkpoint),
        ("checksums", plan.rank.checksums),
        ("work", plan.rank.work),
        ("processes", plan.rank.base),
    ] {
        if part > 0.0 {
            row("", format!("{name:<10} {:>12}", share(part)));
        }
    }
    if let (Some((first, last)), Some((cost, cheapest))) = (plan.interval, plan.save_cost) {
        row(
            "saves",
            format!(
                "{}, every {} at first, {} at last; each {}, {} at last; {} in all ({})",
                plan.saves,
                show_seconds(first),
                show_seconds(last),
                show_seconds(cost),
                show_seconds(cheapest),
                show_seconds(plan.saving),
                percent(plan.saving / plan.seconds_saved)
            ),
        );
    } else if plan.method.saves() {
        row("saves", "none: the run is shorter than the optimal interval".into());
    }
    if let Some(helpers) = &plan.helpers {
        row("helpers", by_helpers(helpers, inputs.cores));
    }
    if let Some(storing) = &plan.storing {
        for (line, text) in on_storage(storing, inputs.cores).into_iter().enumerate() {
            row(if line == 0 { "on storage" } else { "" }, text);
        }
    }
    row(
        "time",
        format!(
            "{} without saves and failures, {}",
            show_seconds(plan.seconds_bare),
            show_flops(plan.rate_bare)
        ),
    );
    if plan.saves > 0 {
        row(
            "",
            format!(
                "{} with saves, {}",
                show_seconds(plan.seconds_saved),
                show_flops(plan.rate_saved)
            ),
        );
    }
    match (plan.seconds_expected, plan.rate_expected) {
        (Some(time), Some(rate)) => {
            row("", format!("{} expected with failures, {}", show_seconds(time), show_flops(rate)))
        }
        _ => row("", "practically never with failures".into()),
    }
    row(
        "failures",
        format!(
            "one every {}{}",
            show_seconds(plan.mtbf_system),
            plan.failures.map_or(String::new(), |f| format!(", {f:.3} expected during the run"))
        ),
    );
    if let Some(seconds) = plan.renewal {
        row(
            "",
            format!(
                "new checksums are made in {} each, where ranks are left for them",
                show_seconds(seconds)
            ),
        );
    }
    let chance = match plan.method {
        Method::Abft => "that the run need not begin anew",
        _ => "that no failure is fatal",
    };
    row("chance", format!("{} {chance}", percent(plan.survives)));
    if let Some(sim) = &advice.simulated {
        let quantile = |q: f64| {
            sim.quantiles
                .iter()
                .find(|(x, _)| *x == q)
                .map_or("-".into(), |(_, v)| show_seconds(*v))
        };
        row(
            "",
            format!(
                "of {} simulated runs {} finish{}; half within {}, 95 % within {}",
                sim.runs,
                percent(sim.finished.value),
                if inputs.limit.is_some() { " in time" } else { "" },
                quantile(0.5),
                quantile(0.95)
            ),
        );
    }
    row("cost", format!("{:.1} node hours", node_hours(plan, inputs.nodes)));

    let _ = writeln!(t, "\nAlternatives");
    let _ = writeln!(
        t,
        "  {:<24} {:>9} {:>8} {:>16} {:>16} {:>10} {:>9}",
        "", "N", "matrix", "without faults", "expected", "time", "survives"
    );
    let line = |t: &mut String, what: &str, p: &Plan| {
        let _ = writeln!(
            t,
            "  {:<24} {:>9} {:>8} {:>16} {:>16} {:>10} {:>9}",
            what,
            p.shape.n,
            percent(matrix_share(p, inputs.ranks_per_node)),
            show_flops(p.rate_bare),
            p.rate_expected.map_or("never".into(), show_flops),
            p.seconds_expected.map_or("never".into(), show_seconds),
            percent(p.survives),
        );
    };
    line(&mut t, "this plan", plan);
    for other in &advice.alternatives {
        match &other.plan {
            Ok(p) => line(&mut t, &other.what, p),
            Err(e) => {
                let _ = writeln!(t, "  {:<24} not possible: {e}", other.what);
            }
        }
        let _ = writeln!(t, "      {}", other.why);
    }
    if let Some(comparison) = &advice.without_restart {
        t += &without_restart(comparison);
    }
    if !advice.warnings.is_empty() {
        let _ = writeln!(t, "\nWarnings");
        for w in &advice.warnings {
            let _ = writeln!(t, "  - {w}");
        }
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_certainty_is_not_certainty() {
        assert_eq!(percent(0.5), "50.0 %");
        assert_eq!(percent(1.0), "100.0 %");
        assert!(percent(0.999_999_6).starts_with("99.9999"));
        assert!(percent(0.999_5).starts_with("99.9"));
        assert!(percent(1.0 - 1e-16).starts_with("99.99"));
    }
}

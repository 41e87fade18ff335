//! `skt-hpl simulate`: simulates thousands of whole runs under failures, in seconds.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;

use super::json_flag;
use crate::base::bounded_read;
use crate::base::exit::Refusal;
use crate::base::units::{seconds, seconds_or_none, show_seconds};
use crate::checkpoint::groups::GROUP_DEFAULT;
use crate::config::settings::other_than_stdout;
use crate::model::ModelError;
use crate::model::figures::simulation_figure;
use crate::model::fit::RateModel;
use crate::model::memory::{Method, Scope};
use crate::model::nonstop::{Columns, IN_PLACE_S};
use crate::model::profile::{Every, Run, SaveCost, Schedule};
use crate::model::simulate::stats::Breakdown;
use crate::model::simulate::{
    Age, Domains, Failures, GoingOn, Placement, Scenario, Summary, System, Trace, simulate,
    summarise,
};

const WORK: &str = "The run: HPL of order N, or other work with saves at even intervals";
const PROTECTION: &str = "Protection";
const FAILURES: &str = "Failures";
const REPAIR: &str = "Repair";
const OUTPUT: &str = "Output";

/// Durations are written `90s`, `30min`, `5h`, `3d`, `5y`. `skt-hpl plan` prints suitable values for a machine.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("problem").required(true).args(["n", "work"]))]
pub struct SimulateFlags {
    #[command(flatten)]
    work: WorkFlags,

    #[command(flatten)]
    protection: ProtectionFlags,

    #[command(flatten)]
    failures: FailureFlags,

    #[command(flatten)]
    repair: RepairFlags,

    #[command(flatten)]
    output: OutputFlags,
}

/// Flags of the work.
#[derive(Debug, Args)]
#[command(next_help_heading = WORK)]
struct WorkFlags {
    /// Order of the matrix
    #[arg(short, long, value_name = "N", requires = "rate")]
    n: Option<u64>,

    /// Block size; saves are at block boundaries
    #[arg(long, value_name = "NB", default_value_t = 192, conflicts_with = "work")]
    nb: u64,

    /// Tflop/s for large N, of all ranks without checksum columns
    #[arg(long, value_name = "TFLOPS", conflicts_with = "work")]
    rate: Option<f64>,

    /// Order of the matrix at which the run reaches half of this rate
    #[arg(long, value_name = "N", default_value_t = 0.0, conflicts_with = "work")]
    n_half: f64,

    /// Time of the work without checksum columns, instead of N
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    work: Option<f64>,
}

/// Flags of saves, groups and checksums.
#[derive(Debug, Args)]
#[command(next_help_heading = PROTECTION)]
struct ProtectionFlags {
    /// Checkpoint method: self, double, single, abft, disk or none
    #[arg(long, value_name = "METHOD", default_value = "self")]
    method: Method,

    /// Process columns that compute, for --method abft, without the checksum columns.
    ///
    /// A node then counts as one rank.
    #[arg(long, value_name = "Q", required_if_eq("method", "abft"))]
    columns: Option<u64>,

    /// Process columns that hold checksums, 1 to 4: as many process columns may be lost [default: 1]
    #[arg(long, value_name = "R", requires = "columns", value_parser = clap::value_parser!(u64).range(1..=Columns::SUMS_MAX))]
    checksum_columns: Option<u64>,

    /// Part of the matrix that a save covers: whole, side or corner [default: corner]
    #[arg(long, value_name = "SCOPE", conflicts_with = "work", hide_short_help = true)]
    scope: Option<Scope>,

    /// Time between saves [default: the optimum for this MTBF and cost]
    #[arg(long = "checkpoint", value_name = "TIME", value_parser = seconds)]
    every: Option<f64>,

    /// Time to encode the whole matrix, or with method disk to write it [default: 15s]
    #[arg(long = "encode-time", value_name = "TIME", value_parser = seconds)]
    encode: Option<f64>,

    /// Time to copy the matrix after the encoding; `0` for no copy [default: 1s]
    #[arg(long = "flush-time", value_name = "TIME", value_parser = seconds_or_none)]
    flush: Option<f64>,

    #[arg(long, value_name = "COUNT",
          help = format!("Number of nodes in a group, which protect each other [default: {GROUP_DEFAULT}]"))]
    group: Option<u64>,

    /// Losses that each group survives [default: 1]
    #[arg(long, value_name = "COUNT")]
    losses: Option<u64>,

    /// Put the members of a group into different domains
    #[arg(long, requires = "domain_size")]
    spread: bool,
}

/// Flags of failures.
#[derive(Debug, Args)]
#[command(next_help_heading = FAILURES)]
struct FailureFlags {
    /// Number of nodes
    #[arg(long, value_name = "COUNT")]
    nodes: u64,

    /// Mean time between failures of the whole system
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with_all = ["mtbf_node", "trace"])]
    mtbf: Option<f64>,

    /// Mean time between failures of a node
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "trace",
          required_unless_present_any = ["mtbf", "trace"])]
    mtbf_node: Option<f64>,

    /// Shape of Weibull lifetimes [default: exponential lifetimes].
    ///
    /// Below 1, new nodes fail more often. 0.7 is typical.
    #[arg(long, value_name = "SHAPE", conflicts_with = "trace")]
    weibull: Option<f64>,

    /// Age of the nodes, for --weibull: `mixed`, `new` or a time
    #[arg(long, value_name = "AGE", default_value = "mixed", value_parser = age, requires = "weibull")]
    age: Age,

    /// Recorded failures: lines of SECONDS NODE.
    ///
    /// Each run starts at a random point of the record.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Nodes of a domain that also fails as a whole: rack, switch, power unit
    #[arg(long, value_name = "COUNT", requires = "domain_mtbf")]
    domain_size: Option<u64>,

    /// Mean time between failures of one domain
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "domain_size")]
    domain_mtbf: Option<f64>,

    /// Share of the failures that end a process and leave its node, 0 to 1.
    ///
    /// The run survives only these failures without a restart.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    process_share: f64,
}

/// Flags of the time after a failure.
#[derive(Debug, Args)]
#[command(next_help_heading = REPAIR)]
struct RepairFlags {
    /// Time to continue without a restart after the loss of a process, in addition to --recover [default: restart; for abft 1s]
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none)]
    in_place: Option<f64>,

    /// Ranks that stand by.
    ///
    /// With --in-place, spare ranks replace lost ranks [default: as many as needed]. With --renew-time, spare ranks rebuild
    /// checksums [default: 0].
    #[arg(long, value_name = "K")]
    spare_ranks: Option<u64>,

    /// Time to rebuild a checksum column, for --method abft [default: no column is rebuilt].
    ///
    /// After a loss, as many ranks as a column has rebuild the column: spare ranks, or ranks of lost columns.
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none)]
    renew_time: Option<f64>,

    /// Spare nodes [default: as many as needed]
    #[arg(long = "spare-nodes", value_name = "COUNT")]
    spares: Option<u64>,

    /// Time until a failed node is a spare again [default: never]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    repair: Option<f64>,

    /// Time until a failure is noticed
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, default_value = "60s")]
    detect: f64,

    /// Time to replace nodes and to restart
    #[arg(long = "restart-time", value_name = "TIME", value_parser = seconds_or_none, default_value = "20s")]
    restart: f64,

    /// Time to rebuild the lost members of a group [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none)]
    recover: Option<f64>,

    /// Time to generate the matrix again
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, default_value = "10s")]
    regenerate: f64,

    /// Wall time after which the run is given up
    #[arg(long = "time-limit", value_name = "TIME", value_parser = seconds)]
    limit: Option<f64>,
}

/// Flags of the simulation and its results.
#[derive(Debug, Args)]
#[command(next_help_heading = OUTPUT)]
struct OutputFlags {
    /// Number of simulated runs
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    runs: usize,

    /// Seed of the random failures
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Threads of the simulation [default: all cores].
    ///
    /// The results do not depend on the number of threads.
    #[arg(long, value_name = "COUNT")]
    simulation_threads: Option<usize>,

    /// Write JSON to FILE; without FILE, or with `-`, print JSON in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,

    /// Draw the end times of the runs, and the parts of these times, into FILE
    #[arg(long, value_name = "FILE", value_parser = other_than_stdout)]
    svg: Option<PathBuf>,
}

fn age(text: &str) -> Result<Age, String> {
    match text {
        "mixed" => Ok(Age::Stationary),
        "new" => Ok(Age::Same(0.0)),
        _ => seconds(text).map(Age::Same),
    }
}

pub fn run(flags: &SimulateFlags) -> ExitCode {
    super::print_or_refuse("simulate", answer(flags))
}

fn answer(flags: &SimulateFlags) -> Result<String, Refusal> {
    let OutputFlags { runs, seed, simulation_threads, json, svg } = &flags.output;
    let trace = &flags.failures.trace;
    json_flag::ready(json, trace)?;
    json_flag::ready_to_draw(svg.as_ref(), json, trace)?;
    let scenario = scenario(flags)?;
    let threads = simulation_threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let outcomes = simulate(&scenario, *runs, *seed, threads)?;
    let summary = summarise(&outcomes);
    if let Some(file) = svg {
        json_flag::write(file, &simulation_figure(&outcomes, &summary, scenario.limit).svg())?;
    }
    let document = json!({
        "undisturbed_s": scenario.schedule.undisturbed(),
        "work_s": scenario.schedule.work(),
        "saves": scenario.schedule.saves(),
        "seed": seed,
        "system": scenario.system,
        "summary": summary,
    });
    json_flag::answer(json, &document, || describe(&scenario, &summary))
}

/// Returns the first flag of saves or groups that has no effect under the flags' method; None if there is no such flag.
fn idle(flags: &SimulateFlags) -> Option<&'static str> {
    let protection = &flags.protection;
    let of_saves = [
        ("--checkpoint", protection.every.is_some()),
        ("--scope", protection.scope.is_some()),
        ("--encode-time", protection.encode.is_some()),
        ("--flush-time", protection.flush.is_some()),
        ("--recover", flags.repair.recover.is_some()),
    ];
    let of_groups = [
        ("--group", protection.group.is_some()),
        ("--losses", protection.losses.is_some()),
        ("--spread", protection.spread),
    ];
    let saves = of_saves.iter().filter(|_| !protection.method.saves());
    let groups = of_groups.iter().filter(|_| !protection.method.in_memory());
    saves.chain(groups).find(|(_, given)| *given).map(|(flag, _)| *flag)
}

fn scenario(flags: &SimulateFlags) -> Result<Scenario, Refusal> {
    let protection = &flags.protection;
    let method = protection.method;
    if let Some(flag) = idle(flags) {
        let lacks = if method.saves() { "groups" } else { "saves" };
        let why = format!("method {} has no {lacks}: leave {flag} out", method.name());
        return Err(Refusal::bad_input(why));
    }
    let cost = SaveCost {
        encode: protection.encode.unwrap_or(15.0),
        flush: protection.flush.unwrap_or(1.0),
        fixed: 0.0,
        recover: flags.repair.recover.unwrap_or(20.0),
        scope: protection.scope.unwrap_or(Scope::Corner),
    };
    let failures = flags.failures.of_nodes()?;
    let every = match protection.every {
        _ if !method.saves() => Every::Never,
        Some(s) => Every::Seconds(s),
        None => Every::Auto { mtbf: 1.0 / flags.failures.rate(&failures) },
    };
    let sums = protection.checksum_columns.unwrap_or(1);
    let columns = protection.columns.map(|q| Columns { q, sums });
    let schedule = flags.work.schedule(&cost, every, columns)?;
    let system = system(flags, columns, cost.recover);
    Ok(Scenario { schedule, method, system, failures, limit: flags.repair.limit })
}

impl FailureFlags {
    /// Returns the failures of the nodes: those of the file of --trace, or random ones.
    fn of_nodes(&self) -> Result<Failures, Refusal> {
        if let Some(file) = &self.trace {
            let text = bounded_read::text(file)
                .map_err(|e| Refusal::bad_input(format!("cannot read {}: {e}", file.display())))?;
            return Ok(Failures::Trace(Trace::parse(&text)?));
        }
        // The parser ensures that --mtbf or --mtbf-node is given.
        let mtbf = self.mtbf_node.unwrap_or_else(|| self.mtbf.unwrap_or(0.0) * self.nodes as f64);
        Ok(match self.weibull {
            Some(shape) => Failures::Weibull { mtbf, shape, age: self.age },
            None => Failures::Exponential { mtbf },
        })
    }

    fn domains(&self) -> Option<Domains> {
        self.domain_size.zip(self.domain_mtbf).map(|(size, mtbf)| Domains { size, mtbf })
    }

    /// Returns the expected number of failures of the whole system per second: failures of nodes plus failures of domains.
    fn rate(&self, of_nodes: &Failures) -> f64 {
        let mtbf = match of_nodes {
            Failures::Trace(trace) => trace.mtbf(),
            Failures::Exponential { mtbf } | Failures::Weibull { mtbf, .. } => {
                mtbf / self.nodes.max(1) as f64
            }
        };
        let of_domains = |d: Domains| self.nodes.div_ceil(d.size.max(1)) as f64 / d.mtbf;
        1.0 / mtbf + self.domains().map_or(0.0, of_domains)
    }
}

impl WorkFlags {
    /// Returns the work and the saves of the run. The ranks of checksum columns do no work of the grid, so the work takes longer
    /// if there are such columns.
    fn schedule(
        &self,
        cost: &SaveCost,
        every: Every,
        columns: Option<Columns>,
    ) -> Result<Schedule, ModelError> {
        let factor = columns.map_or(Ok(1.0), Columns::factor)?;
        if let Some(n) = self.n {
            // The parser requires --rate together with -n.
            let mut rate = RateModel::new(self.rate.unwrap_or(0.0) * 1e12, self.n_half)?;
            if let Some(columns) = columns {
                rate = rate.scaled(columns.all(), columns.q)?;
            }
            return Schedule::of(&Run::new(n, self.nb, rate)?, cost, every);
        }
        let work = self.work.unwrap_or(0.0) * factor;
        let (encode, flush) = (cost.encode, cost.flush);
        let interval = match every {
            Every::Seconds(s) => s,
            Every::Auto { mtbf } => crate::model::interval::optimal(encode + flush, mtbf)?,
            _ => work,
        };
        Schedule::periodic(work, interval, encode, flush)
    }
}

/// Returns the nodes, groups and times of repair that the flags describe. `recover` is the time of a recovery in seconds.
fn system(flags: &SimulateFlags, columns: Option<Columns>, recover: f64) -> System {
    let SimulateFlags { protection, failures, repair, .. } = flags;
    let in_place = match protection.method {
        Method::Abft => Some(repair.in_place.unwrap_or(IN_PLACE_S)),
        _ => repair.in_place,
    };
    System {
        nodes: failures.nodes,
        group: protection.group.unwrap_or(GROUP_DEFAULT as u64),
        losses: protection.losses.unwrap_or(1),
        placement: if protection.spread { Placement::Spread } else { Placement::Neighbours },
        domains: failures.domains(),
        spares: repair.spares,
        repair: repair.repair,
        detect: repair.detect,
        restart: repair.restart,
        recover,
        regenerate: repair.regenerate,
        going_on: GoingOn {
            processes: failures.process_share,
            in_place,
            spare_ranks: repair.spare_ranks,
            columns,
            renew: repair.renew_time,
        },
    }
}

fn percent(x: f64) -> String {
    format!("{:.2} %", 100.0 * x)
}

fn describe(scenario: &Scenario, s: &Summary) -> String {
    let mut t = String::new();
    let schedule = &scenario.schedule;
    let _ = writeln!(
        t,
        "{} runs, each of {} work and {} saves ({} without failures), on {} nodes, method {}",
        s.runs,
        show_seconds(schedule.work()),
        schedule.saves(),
        show_seconds(schedule.undisturbed()),
        scenario.system.nodes,
        scenario.method.name()
    );
    let [finished, low, high] = [s.finished.value, s.finished.low, s.finished.high].map(percent);
    let _ = writeln!(t, "\nfinish     {finished} (95 % interval {low} to {high})");
    for (count, why) in [
        (s.late, "too late"),
        (s.group_lost, "more losses in a group than the group survives"),
        (s.lost_while_saving, "a loss during a save"),
        (s.no_spare, "no spare node left"),
    ] {
        if count > 0 {
            let _ = writeln!(t, "           {} {why}", percent(count as f64 / s.runs as f64));
        }
    }
    if let (Some(wall), Some(waste)) = (s.wall, s.waste) {
        let _ = writeln!(
            t,
            "wall time  {} on average (+- {}), {:.3} times the work; waste {} (+- {})",
            show_seconds(wall.value),
            show_seconds(wall.confidence),
            wall.value / schedule.work(),
            percent(waste.value),
            percent(waste.confidence)
        );
        for (q, v) in &s.quantiles {
            let _ = writeln!(t, "           {:>3.0} % within {}", 100.0 * q, show_seconds(*v));
        }
    }
    let _ =
        writeln!(t, "failures   {:.2} per run (+- {:.2})", s.failures.value, s.failures.confidence);
    for (count, what) in [
        (s.in_place, "per run were recovered without a restart"),
        (s.renewed, "checksum columns per run were rebuilt"),
        (s.from_scratch, "per run ended in a start from scratch"),
    ] {
        if count > 0.0 {
            let _ = writeln!(t, "           {count:.2} {what}");
        }
    }
    write_times(&mut t, &s.breakdown);
    t
}

/// Appends to `t` the parts of the time of all simulated runs.
fn write_times(t: &mut String, b: &Breakdown) {
    let all: f64 = b.parts().iter().map(|(_, seconds)| seconds).sum();
    let _ = writeln!(t, "\nthe time of all runs");
    for (name, v) in b.parts() {
        let share = percent(if all > 0.0 { v / all } else { 0.0 });
        let _ = writeln!(t, "  {name:<9}{:>12}  {share:>8}", show_seconds(v));
    }
}

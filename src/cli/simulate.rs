//! `skt-hpl simulate`: thousands of whole runs under failures, in seconds.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;

use super::json_flag;
use crate::base::bounded_read;
use crate::base::exit::Refusal;
use crate::base::units::{seconds, seconds_or_none, show_seconds};
use crate::config::settings::beside_stdout;
use crate::model::ModelError;
use crate::model::figures::simulation_figure;
use crate::model::fit::RateModel;
use crate::model::memory::{Method, Scope};
use crate::model::nonstop::{Columns, IN_PLACE_S};
use crate::model::profile::{Every, Run, SaveCost, Schedule};
use crate::model::simulate::{
    Age, Domains, Failures, GoingOn, Placement, Scenario, Summary, System, Trace, simulate,
    summarise,
};

const WORK: &str = "The run: HPL of order N, or any work saved at even intervals";
const PROTECTION: &str = "Protection";
const FAILURES: &str = "Failures";
const REPAIR: &str = "Repair";
const OUTPUT: &str = "Output";

/// Durations are written `90s`, `30min`, `5h`, `3d`, `5y`. `skt-hpl plan` tells suitable values for a machine.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("problem").required(true).args(["n", "work"]))]
pub struct SimulateFlags {
    /// Order of the matrix
    #[arg(short, long, value_name = "N", requires = "rate", help_heading = WORK)]
    n: Option<u64>,

    /// Block size: saves lie on its boundaries
    #[arg(long, value_name = "NB", default_value_t = 192, conflicts_with = "work", help_heading = WORK)]
    nb: u64,

    /// Tflop/s for large N, of all ranks without checksums
    #[arg(long, value_name = "TFLOPS", conflicts_with = "work", help_heading = WORK)]
    rate: Option<f64>,

    /// Order at which half of it is reached
    #[arg(long, value_name = "N", default_value_t = 0.0, conflicts_with = "work", help_heading = WORK)]
    n_half: f64,

    /// Time of the work without checksums, instead of N
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = WORK)]
    work: Option<f64>,

    /// self, double, single, abft, disk or none
    #[arg(long, value_name = "METHOD", default_value = "self", help_heading = PROTECTION)]
    method: Method,

    /// Process columns that compute, for --method abft, beside those that keep checksums; nodes are then counted as one rank each
    #[arg(long, value_name = "Q", required_if_eq("method", "abft"), help_heading = PROTECTION)]
    columns: Option<u64>,

    /// Process columns that keep checksums, up to 4: so many may be lost [default: 1]
    #[arg(long, value_name = "R", requires = "columns", value_parser = clap::value_parser!(u64).range(1..=Columns::SUMS_MAX),
          help_heading = PROTECTION)]
    checksum_columns: Option<u64>,

    /// What a save of HPL holds: whole, side or corner [default: corner]
    #[arg(long, value_name = "SCOPE", conflicts_with = "work", help_heading = PROTECTION)]
    scope: Option<Scope>,

    /// Time between saves [default: the optimal one for this MTBF and cost]
    #[arg(long = "checkpoint", value_name = "TIME", value_parser = seconds, help_heading = PROTECTION)]
    every: Option<f64>,

    /// Time to encode the whole matrix (or to write it) [default: 15s]
    #[arg(long = "encode-time", value_name = "TIME", value_parser = seconds, help_heading = PROTECTION)]
    encode: Option<f64>,

    /// Time to copy it afterwards; `0` for none [default: 1s]
    #[arg(long = "flush-time", value_name = "TIME", value_parser = seconds_or_none, help_heading = PROTECTION)]
    flush: Option<f64>,

    /// Nodes that protect each other [default: 16]
    #[arg(long, value_name = "COUNT", help_heading = PROTECTION)]
    group: Option<u64>,

    /// Losses each group survives [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = PROTECTION)]
    losses: Option<u64>,

    /// Put the members of a group into different domains
    #[arg(long, requires = "domain_size", help_heading = PROTECTION)]
    spread: bool,

    /// Nodes
    #[arg(long, value_name = "COUNT", help_heading = FAILURES)]
    nodes: u64,

    /// Mean time between failures of the whole system
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with_all = ["mtbf_node", "trace"], help_heading = FAILURES)]
    mtbf: Option<f64>,

    /// Mean time between failures of a node
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "trace",
          required_unless_present_any = ["mtbf", "trace"], help_heading = FAILURES)]
    mtbf_node: Option<f64>,

    /// Shape of Weibull lifetimes: below 1 the young fail more, 0.7 is typical [default: exponential]
    #[arg(long, value_name = "SHAPE", conflicts_with = "trace", help_heading = FAILURES)]
    weibull: Option<f64>,

    /// Age of the nodes, for --weibull: `mixed`, `new` or a time
    #[arg(long, value_name = "AGE", default_value = "mixed", value_parser = age, requires = "weibull", help_heading = FAILURES)]
    age: Age,

    /// Recorded failures: lines of SECONDS NODE; each run starts at a random point
    #[arg(long, value_name = "FILE", help_heading = FAILURES)]
    trace: Option<PathBuf>,

    /// Nodes in a domain that also fails as a whole: rack, switch, power unit
    #[arg(long, value_name = "COUNT", requires = "domain_mtbf", help_heading = FAILURES)]
    domain_size: Option<u64>,

    /// Mean time between failures of one domain
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "domain_size", help_heading = FAILURES)]
    domain_mtbf: Option<f64>,

    /// Share of the failures that end a process and leave its node, 0 to 1: only these are survived without a restart
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, help_heading = FAILURES)]
    process_share: f64,

    /// Time to go on without a restart after such a failure, --recover not counted [default: a restart; for abft 1s]
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, help_heading = REPAIR)]
    in_place: Option<f64>,

    /// Ranks that wait: to take the places of lost ones, for --in-place [default: enough], or to make new checksums, for
    /// --renew-time [default: 0]
    #[arg(long, value_name = "K", help_heading = REPAIR)]
    spare_ranks: Option<u64>,

    /// Time to make a column of checksums anew, for --method abft: as many ranks as a column has do that after a loss, of those
    /// that wait or are left of lost columns [default: none is made]
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, help_heading = REPAIR)]
    renew_time: Option<f64>,

    /// Spare nodes [default: enough]
    #[arg(long = "spare-nodes", value_name = "COUNT", help_heading = REPAIR)]
    spares: Option<u64>,

    /// Time until a failed node is a spare again [default: never]
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = REPAIR)]
    repair: Option<f64>,

    /// Time until a failure is noticed
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, default_value = "60s", help_heading = REPAIR)]
    detect: f64,

    /// Time to replace nodes and start again
    #[arg(long = "restart-time", value_name = "TIME", value_parser = seconds_or_none, default_value = "20s", help_heading = REPAIR)]
    restart: f64,

    /// Time to rebuild what was lost [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, help_heading = REPAIR)]
    recover: Option<f64>,

    /// Time to generate the matrix again
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, default_value = "10s", help_heading = REPAIR)]
    regenerate: f64,

    /// Wall time after which a run is given up
    #[arg(long = "time-limit", value_name = "TIME", value_parser = seconds, help_heading = REPAIR)]
    limit: Option<f64>,

    /// Runs
    #[arg(long, value_name = "COUNT", default_value_t = 1000, help_heading = OUTPUT)]
    runs: usize,

    /// Seed of the random failures
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = OUTPUT)]
    seed: u64,

    /// Threads [default: all cores]; the results do not depend on it
    #[arg(long, value_name = "COUNT", help_heading = OUTPUT)]
    threads: Option<usize>,

    /// JSON, into FILE; without one, or with `-`, on stdout instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, help_heading = OUTPUT)]
    json: Option<Option<PathBuf>>,

    /// Draw when runs finish and what their time went into
    #[arg(long, value_name = "FILE", value_parser = beside_stdout, help_heading = OUTPUT)]
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
    json_flag::ready(&flags.json, &flags.trace)?;
    json_flag::ready_to_draw(flags.svg.as_ref(), &flags.json, &flags.trace)?;
    let scenario = scenario(flags)?;
    let threads = flags
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let outcomes = simulate(&scenario, flags.runs, flags.seed, threads)?;
    let summary = summarise(&outcomes)?;
    if let Some(file) = &flags.svg {
        json_flag::draw(file, &simulation_figure(&outcomes, scenario.limit).svg())?;
    }
    let document = json!({
        "undisturbed_s": scenario.schedule.undisturbed(),
        "work_s": scenario.schedule.work(),
        "saves": scenario.schedule.saves(),
        "seed": flags.seed,
        "system": scenario.system,
        "summary": summary,
    });
    json_flag::answer(&flags.json, &document, || describe(&scenario, &summary))
}

/// Finds a flag of saves or groups that does nothing under this method.
fn idle(flags: &SimulateFlags) -> Option<&'static str> {
    let of_saves = [
        ("--checkpoint", flags.every.is_some()),
        ("--scope", flags.scope.is_some()),
        ("--encode-time", flags.encode.is_some()),
        ("--flush-time", flags.flush.is_some()),
        ("--recover", flags.recover.is_some()),
    ];
    let of_groups = [
        ("--group", flags.group.is_some()),
        ("--losses", flags.losses.is_some()),
        ("--spread", flags.spread),
    ];
    let saves = of_saves.iter().filter(|_| !flags.method.saves());
    let groups = of_groups.iter().filter(|_| !flags.method.in_memory());
    saves.chain(groups).find(|(_, given)| *given).map(|(flag, _)| *flag)
}

fn scenario(flags: &SimulateFlags) -> Result<Scenario, ModelError> {
    if let Some(flag) = idle(flags) {
        let lacks = if flags.method.saves() { "groups" } else { "saves" };
        let why = format!("method {} has no {lacks}: leave {flag} out", flags.method.name());
        return Err(ModelError::Data(why));
    }
    let scope = flags.scope.unwrap_or(Scope::Corner);
    let (encode, flush) = (flags.encode.unwrap_or(15.0), flags.flush.unwrap_or(1.0));
    let (recover, group) = (flags.recover.unwrap_or(20.0), flags.group.unwrap_or(16));
    let failures = match &flags.trace {
        Some(file) => {
            let text = bounded_read::text(file)
                .map_err(|e| ModelError::Data(format!("cannot read {}: {e}", file.display())))?;
            Failures::Trace(Trace::parse(&text)?)
        }
        None => {
            // The parser ensures that one of the two is given.
            let mtbf =
                flags.mtbf_node.unwrap_or_else(|| flags.mtbf.unwrap_or(0.0) * flags.nodes as f64);
            match flags.weibull {
                Some(shape) => Failures::Weibull { mtbf, shape, age: flags.age },
                None => Failures::Exponential { mtbf },
            }
        }
    };
    let system_mtbf = match &failures {
        Failures::Trace(trace) => trace.mtbf(),
        Failures::Exponential { mtbf } | Failures::Weibull { mtbf, .. } => {
            mtbf / flags.nodes.max(1) as f64
        }
        Failures::Never => f64::MAX,
    };
    let domains =
        flags.domain_size.zip(flags.domain_mtbf).map(|(size, mtbf)| Domains { size, mtbf });
    // Domains add their failures to those of the nodes.
    let rate = 1.0 / system_mtbf
        + domains.map_or(0.0, |d| flags.nodes.div_ceil(d.size.max(1)) as f64 / d.mtbf);
    let every = match (flags.method, flags.every) {
        (m, _) if !m.saves() => Every::Never,
        (_, Some(s)) => Every::Seconds(s),
        (_, None) => Every::Auto { mtbf: 1.0 / rate },
    };
    // The ranks that keep checksums do not share the others' work.
    let columns = flags.columns.map(|q| Columns { q, sums: flags.checksum_columns.unwrap_or(1) });
    let factor = columns.map_or(Ok(1.0), Columns::factor)?;
    let schedule = match (flags.n, flags.work) {
        (Some(n), _) => {
            // The parser asks for --rate together with -n.
            let mut rate = RateModel::new(flags.rate.unwrap_or(0.0) * 1e12, flags.n_half)?;
            if let Some(columns) = columns {
                rate = rate.scaled(columns.all(), columns.q)?;
            }
            let cost = SaveCost { encode, flush, fixed: 0.0, recover, scope };
            Schedule::of(&Run::new(n, flags.nb, rate)?, &cost, every)?
        }
        (None, work) => {
            let work = work.unwrap_or(0.0) * factor;
            let interval = match every {
                Every::Seconds(s) => s,
                Every::Auto { mtbf } => crate::model::interval::optimal(encode + flush, mtbf)?,
                _ => work,
            };
            Schedule::periodic(work, interval, encode, flush)?
        }
    };
    Ok(Scenario {
        schedule,
        method: flags.method,
        system: System {
            nodes: flags.nodes,
            group,
            losses: flags.losses.unwrap_or(1),
            placement: if flags.spread { Placement::Spread } else { Placement::Neighbours },
            domains,
            spares: flags.spares,
            repair: flags.repair,
            detect: flags.detect,
            restart: flags.restart,
            recover,
            regenerate: flags.regenerate,
            going_on: GoingOn {
                processes: flags.process_share,
                in_place: match flags.method {
                    Method::Abft => Some(flags.in_place.unwrap_or(IN_PLACE_S)),
                    _ => flags.in_place,
                },
                spare_ranks: flags.spare_ranks,
                columns,
                renew: flags.renew_time,
            },
        },
        failures,
        limit: flags.limit,
    })
}

fn describe(scenario: &Scenario, s: &Summary) -> String {
    let mut t = String::new();
    let schedule = &scenario.schedule;
    let _ = writeln!(
        t,
        "{} runs of {} work and {} saves ({} undisturbed) on {} nodes, method {}",
        s.runs,
        show_seconds(schedule.work()),
        schedule.saves(),
        show_seconds(schedule.undisturbed()),
        scenario.system.nodes,
        scenario.method.name()
    );
    let percent = |x: f64| format!("{:.2} %", 100.0 * x);
    let _ = writeln!(
        t,
        "\nfinish     {} (95 % interval {} to {})",
        percent(s.finished.value),
        percent(s.finished.low),
        percent(s.finished.high)
    );
    for (count, why) in [
        (s.late, "too late"),
        (s.group_lost, "more losses in a group than it survives"),
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
        writeln!(t, "failures   {:.2} a run (+- {:.2})", s.failures.value, s.failures.confidence);
    if s.in_place > 0.0 {
        let _ =
            writeln!(t, "           {:.2} a run were gone on from without a restart", s.in_place);
    }
    if s.renewed > 0.0 {
        let _ =
            writeln!(t, "           {:.2} columns of checksums a run were made anew", s.renewed);
    }
    if s.anew > 0.0 {
        let _ = writeln!(t, "           {:.2} a run were not borne: the run began anew", s.anew);
    }
    let b = s.breakdown;
    let all = b.useful + b.saving + b.lost + b.detect + b.wait + b.restart + b.recover;
    let _ = writeln!(t, "\nthe time of all runs");
    for (name, v) in [
        ("useful", b.useful),
        ("saving", b.saving),
        ("lost", b.lost),
        ("detect", b.detect),
        ("wait", b.wait),
        ("restart", b.restart),
        ("recover", b.recover),
    ] {
        let _ = writeln!(
            t,
            "  {name:<9}{:>12}  {:>8}",
            show_seconds(v),
            percent(if all > 0.0 { v / all } else { 0.0 })
        );
    }
    t
}

//! `skt-hpl model`: prints or plots the formulas, for the machines of the papers or the user's machine.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::json_flag;
use crate::base::bounded_read;
use crate::base::exit::Refusal;
use crate::base::units::{
    HOUR_S, YEAR_S, bytes, bytes_per_second, seconds, seconds_or_none, show_bytes, show_flops,
    show_seconds,
};
use crate::config::settings::other_than_stdout;
use crate::model::ModelError;
use crate::model::cores::{self, Paces};
use crate::model::encoding::{self, Code, Link};
use crate::model::figures;
use crate::model::fit::{Fit, best_of_each, fit, read};
use crate::model::helpers;
use crate::model::interval;
use crate::model::memory::{Method, available_fraction, memory_factor};
use crate::model::nonstop::{Columns, Failing, Renewing, Replacement, Ways};
use crate::model::platforms::{
    Application, Defaults, Edition, Machine, Platform, growth, protocol,
};
use crate::model::plot::{Axis, Figure, Panel, Series};
use crate::model::protocols::Validity;
use crate::model::reliability::LongRun;

/// Durations are written `90s`, `30min`, `5h`, `5y`; memory `25MB`, `64GiB`; bandwidths `12.5GB/s`, `100Gbit/s`.
#[derive(Debug, Args)]
pub struct ModelFlags {
    #[command(subcommand)]
    topic: Topic,

    /// Draw the result into FILE, as a figure in SVG
    #[arg(long, value_name = "FILE", value_parser = other_than_stdout, global = true)]
    svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Topic {
    /// Print a figure or table of the papers, computed again
    Figure {
        /// Name of the figure; without a name, all names are listed
        name: Option<String>,
    },
    /// Rate over N, fitted to measured runs (self-checkpoint, eqs. 2 to 5)
    Efficiency {
        /// Results: output of any HPL, or JSON
        #[arg(long, value_name = "FILE", required = true)]
        results: Vec<PathBuf>,
        /// Sizes for which to print the rate
        #[arg(short, long, value_delimiter = ',', value_name = "N,..")]
        n: Vec<u64>,
        /// Peak of the machine in Gflop/s, to print the efficiency
        #[arg(long, value_name = "GFLOPS")]
        peak: Option<f64>,
    },
    /// Memory left to the application (self-checkpoint, eqs. 6 to 8)
    Memory {
        /// Members of a group
        #[arg(long, value_delimiter = ',', default_value = "2,3,4,8,16,32", value_name = "G,..")]
        group: Vec<u64>,
        /// Losses that each group survives
        #[arg(long, value_name = "COUNT", default_value_t = 1)]
        losses: u64,
    },
    /// Best interval between saves, and the cost of failures (self-checkpoint, eqs. 9 and 10)
    Interval {
        /// Cost of a save
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        save: f64,
        /// Mean time between failures of the system
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        mtbf: f64,
        /// Time until a failure is noticed
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "60s")]
        detect: f64,
        /// Time of restart and recovery
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "40s")]
        recover: f64,
    },
    /// Probability to finish (self-checkpoint, eqs. 11 to 16)
    Reliability {
        /// Number of processes
        #[arg(long, value_name = "COUNT", default_value_t = 160_000)]
        total: u64,
        /// Members of a group
        #[arg(long, value_name = "COUNT", default_value_t = 16)]
        group: u64,
        /// Mean time between failures of the system
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "5h")]
        mtbf: f64,
        /// Cost of a save
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "20s")]
        save: f64,
        /// Cost of a recovery
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "20s")]
        recover: f64,
        /// Time between saves
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "13.6min")]
        interval: f64,
        /// Length of the run
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "100h")]
        run: f64,
    },
    /// Time to encode a checkpoint by each scheme (encoding, sections 2 to 4)
    Encoding {
        /// Processes that encode together
        #[arg(long, value_name = "COUNT", default_value_t = 16)]
        processes: u64,
        /// Checkpoint of one process
        #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "25MB")]
        size: f64,
        /// Losses that each group survives
        #[arg(long, value_name = "COUNT", default_value_t = 1)]
        losses: u64,
        /// Latency of a message
        #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "20us")]
        latency: f64,
        /// Bandwidth of the network out of a process
        #[arg(long, value_name = "RATE", value_parser = bytes_per_second, default_value = "120MB/s")]
        network: f64,
        /// Bytes that a process adds or xors in a second
        #[arg(long, value_name = "RATE", value_parser = bytes_per_second, default_value = "1GB/s")]
        arithmetic: f64,
    },
    /// Whether helper cores save time (helpers, section 5.1)
    Helpers {
        /// Cores of a node
        #[arg(long, value_name = "COUNT,..", value_delimiter = ',', default_value = "8,16,32")]
        cores: Vec<u64>,
        /// Time to hand a checkpoint to the helper
        #[arg(long = "copy-time", value_name = "TIME", value_parser = seconds)]
        copy: f64,
        /// Time to encode a checkpoint inline
        #[arg(long = "encode-time", value_name = "TIME", value_parser = seconds)]
        encode: f64,
        /// Time between saves
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        interval: f64,
    },
    /// Rate of one rank with many cores, computed from the parts of runs with few cores
    Cores {
        /// JSON documents of one rank: two sizes with one thread, and two with more threads, all with DEPTH 0.
        ///
        /// Documents with DEPTH 1 are compared with the model.
        #[arg(long, value_name = "FILE", required = true)]
        results: Vec<PathBuf>,
        /// Cores of the rank, one thread each
        #[arg(long, value_delimiter = ',', default_value = "16,64,128", value_name = "COUNT,..")]
        cores: Vec<u64>,
        /// Sizes for which to print the rate
        #[arg(
            short,
            long,
            value_delimiter = ',',
            default_value = "40000,80000,160000",
            value_name = "N,.."
        )]
        n: Vec<u64>,
        /// Number of cores that can copy at once at full speed [default: 8 in one row, all cores in the next]
        #[arg(long, value_name = "COUNT")]
        memory_cores: Option<u64>,
    },
    /// Compare self-checkpoint, by restarts and in place, with checksum columns (hot-replacement, section III)
    Nonstop(NonstopFlags),
    /// Waste of coordinated and hierarchical protocols (unified, eqs. 1 to 18)
    Waste(WasteFlags),
}

#[derive(Debug, Args)]
struct NonstopFlags {
    /// Mean time between failures of the system
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    mtbf: f64,
    /// Share of the failures that end a process and leave its node, 0 to 1
    #[arg(long, value_name = "SHARE")]
    process_share: f64,
    /// Process columns that compute, without the checksum columns
    #[arg(long, value_delimiter = ',', default_value = "7,31,127", value_name = "Q,..")]
    columns: Vec<u64>,
    /// Process columns that hold checksums, 1 to 4: as many process columns may be lost
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "R,..",
          value_parser = clap::value_parser!(u64).range(1..=Columns::SUMS_MAX))]
    checksum_columns: Vec<u64>,
    /// Process rows [default: no checksums are rebuilt].
    ///
    /// The number of rows decides how many ranks of a lost column can rebuild checksums.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Ranks that stand by to rebuild checksums
    #[arg(long, value_name = "K", requires = "rows", default_value_t = 0)]
    spare_ranks: u64,
    /// Time to rebuild a checksum column [default: the cost of a save]
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, requires = "rows")]
    renew_time: Option<f64>,
    /// Time of the work on all ranks, without checksum columns
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "2h")]
    work: f64,
    /// Cost of a save
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "16s")]
    save: f64,
    /// Time until a failure is noticed
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "63s")]
    detect: f64,
    /// Time of a restart
    #[arg(long = "restart-time", value_name = "TIME", value_parser = seconds, default_value = "19s")]
    restart: f64,
    /// Cost of a recovery
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "20s")]
    recover: f64,
    /// Time to continue without a restart, in addition to --recover
    #[arg(long, value_name = "TIME", value_parser = seconds_or_none, default_value = "1s")]
    in_place: f64,
    /// Members of a group, for the memory that self-checkpoint leaves
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    group: u64,
}

#[derive(Debug, Args)]
struct WasteFlags {
    /// Machine, as in the paper "Unified Model for Assessing Checkpointing Protocols" (RR-7950)
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Machine::Titan)]
    machine: Machine,
    /// Use the inputs printed in Table 1, and not the inputs that give Table 2
    #[arg(long)]
    printed: bool,
    /// Mean time between failures of one processor
    #[arg(long = "mtbf-processor", value_name = "TIME", value_parser = seconds, default_value = "25y")]
    mtbf: f64,
    /// Time to write all memory [default: the machine's]
    #[arg(long = "checkpoint-time", value_name = "TIME", value_parser = seconds)]
    checkpoint: Option<f64>,
    /// Time until a failed processor is replaced
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "60s")]
    downtime: f64,
    /// Speed of the computation while a checkpoint is written: 0 stopped, 1 undisturbed
    #[arg(long, value_name = "X", default_value_t = 0.3)]
    alpha: f64,
    /// Speed of the computation while messages are logged: 1 undisturbed
    #[arg(long, value_name = "X", default_value_t = 0.98)]
    lambda: f64,
    /// Factor by which work is faster when it is repeated with logged messages
    #[arg(long, value_name = "X", default_value_t = 1.5)]
    rho: f64,
    /// Keep the period T <= mu_p/10, for which the formulas are proved
    #[arg(long)]
    first_order: bool,
}

pub fn run(flags: &ModelFlags) -> ExitCode {
    super::print_or_refuse("model", model(flags))
}

fn model(flags: &ModelFlags) -> Result<String, Refusal> {
    let read: &[PathBuf] = match &flags.topic {
        Topic::Efficiency { results, .. } | Topic::Cores { results, .. } => results,
        _ => &[],
    };
    json_flag::ready_to_draw(flags.svg.as_ref(), &None, read)?;
    let (mut text, figure) = answer(&flags.topic)?;
    if let Some(file) = &flags.svg {
        let why = "this topic has no figure to draw; `skt-hpl model figure` lists the figures";
        let figure = figure.ok_or_else(|| Refusal::usage(why))?;
        json_flag::write(file, &figure.svg())?;
        let _ = writeln!(text, "\nDrawn: {}", file.display());
    }
    Ok(text)
}

type Answer = (String, Option<Figure>);

fn answer(topic: &Topic) -> Result<Answer, Refusal> {
    match topic {
        Topic::Figure { name: None } => {
            let mut text = String::new();
            for (name, what) in figures::presets() {
                let _ = writeln!(text, "{name:<12} {what}");
            }
            Ok((text, None))
        }
        Topic::Figure { name: Some(name) } => {
            let figure = figures::preset(name)?;
            Ok((figure.table(), Some(figure)))
        }
        Topic::Efficiency { results, n, peak } => efficiency(results, n, *peak),
        Topic::Memory { group, losses } => memory(group, *losses),
        Topic::Interval { save, mtbf, detect, recover } => {
            intervals(*save, *mtbf, *detect, *recover)
        }
        Topic::Reliability { total, group, mtbf, save, recover, interval, run } => {
            reliability(LongRun {
                total: *total,
                group: *group,
                mtbf_system: *mtbf,
                save_s: *save,
                recover_s: *recover,
                interval_s: *interval,
                run_s: *run,
            })
        }
        Topic::Encoding { processes, size, losses, latency, network, arithmetic } => {
            let link = Link { alpha: *latency, beta: 1.0 / network, gamma: 1.0 / arithmetic };
            encodings(*processes, *size, *losses, link)
        }
        Topic::Helpers { cores, copy, encode, interval } => {
            helper_cores(cores, *copy, *encode, *interval)
        }
        Topic::Cores { results, cores, n, memory_cores } => {
            many_cores(results, cores, n, *memory_cores)
        }
        Topic::Nonstop(flags) => without_restart(flags),
        Topic::Waste(flags) => waste(flags),
    }
}

/// Reads all results in the files. If a file has no results, returns an error with the file's name and the text `lacking`.
pub(super) fn read_all<T>(
    files: &[PathBuf],
    read: fn(&str) -> Vec<T>,
    lacking: &str,
) -> Result<Vec<T>, Refusal> {
    let mut all = Vec::new();
    for file in files {
        let name = file.display();
        let bytes = bounded_read::bytes(file)
            .map_err(|e| Refusal::bad_input(format!("cannot read {name}: {e}")))?;
        let found = read(&String::from_utf8_lossy(&bytes));
        if found.is_empty() {
            return Err(Refusal::bad_input(format!("{name} {lacking}")));
        }
        all.extend(found);
    }
    Ok(all)
}

/// Describes the fit of the rate over N.
pub(super) fn fit_words(fit: &Fit) -> String {
    format!(
        "{} for large N, half of this rate at N = {:.0}; the fit is off by {:.1} % at most",
        show_flops(fit.model.r_inf),
        fit.model.n_half,
        100.0 * fit.worst
    )
}

fn many_cores(
    results: &[PathBuf],
    cores: &[u64],
    sizes: &[u64],
    memory_cores: Option<u64>,
) -> Result<Answer, Refusal> {
    let lacking = "contains no JSON result of an unprotected test on one rank";
    let runs = read_all(results, cores::read, lacking)?;
    let paces = Paces::fit(&runs)?;
    let mut text = format!(
        "NB = {}: a core multiplies at {}\n\n        N  threads  DEPTH      measured, s      expected, s\n",
        paces.nb,
        show_flops(paces.rate)
    );
    for run in runs.iter().filter(|run| run.nb == paces.nb) {
        let expected = paces.expected(run.n, run.threads as u64, run.depth, f64::INFINITY)?;
        let _ = writeln!(
            text,
            "{:>9} {:>8} {:>6} {:>16.3} {:>16.3}",
            run.n, run.threads, run.depth, run.total, expected.seconds
        );
    }
    let memories = memory_cores.map_or(vec![8.0, f64::INFINITY], |cores| vec![cores as f64]);
    text += "\nA model, not a measurement: one rank, DEPTH 1, each core as fast as the measured cores. Parts in % of the time.\n\
             memory for: number of cores that can copy at once at full speed\n\
             of DGEMM: rate of the run, as a share of the rate of the multiplication alone\n\
             \n        N  threads  memory for  of DGEMM  multiply  panels   swaps  triangles  last tasks   solve   other\n";
    for (&n, &threads) in sizes.iter().flat_map(|n| cores.iter().map(move |cores| (n, cores))) {
        for &served in &memories {
            let n = n as f64;
            let e = paces.expected(n, threads, 1, served)?;
            let part = |seconds: f64| 100.0 * seconds / e.seconds;
            let memory = if served.is_finite() { served.to_string() } else { "all".into() };
            let _ = writeln!(
                text,
                "{n:>9} {threads:>8} {memory:>11} {:>9.3} {:>9.1} {:>7.1} {:>7.1} {:>10.1} {:>11.1} {:>7.1} {:>7.1}",
                e.of_multiplication(n, threads as f64, paces.rate),
                part(e.multiplication),
                part(e.panels),
                part(e.swaps),
                part(e.triangles),
                part(e.last_tasks),
                part(e.solve),
                part(e.other),
            );
        }
    }
    Ok((text, None))
}

fn efficiency(results: &[PathBuf], sizes: &[u64], peak: Option<f64>) -> Result<Answer, Refusal> {
    let samples = read_all(results, read, "contains no result")?;
    let found = samples.len();
    let samples = best_of_each(&samples);
    let fit = fit(&samples, None)?;
    let peak = peak.map(|g| g * 1e9);
    let mut head = String::new();
    if samples.len() < found {
        let _ = writeln!(
            head,
            "Of {found} results, the fit uses for each N the fastest result among those with the most ranks.\n"
        );
    }
    let mut text = head + "        N       seconds          measured            fitted\n";
    for s in &samples {
        let _ = writeln!(
            text,
            "{:>9} {:>13.2} {:>17} {:>17}",
            s.n,
            s.seconds,
            show_flops(s.rate),
            show_flops(fit.model.rate(s.n)?)
        );
    }
    let _ = writeln!(text, "\n{}", fit_words(&fit));
    if let Some(p) = peak {
        let e = fit.model.efficiency(p)?;
        let _ = writeln!(text, "E(N) = N / ({:.4} N + {:.1})", e.a, e.b);
        for k in [1.0 / 3.0, 0.5] {
            let largest = samples.iter().map(|s| s.n).fold(0.0, f64::max);
            let (full, part) = (e.at(largest)?, e.at(largest * f64::sqrt(k))?);
            let _ = writeln!(
                text,
                "a run in {:.0} % of the memory of the largest run reaches {:.1} % of peak; the largest run reaches {:.1} %",
                100.0 * k,
                100.0 * part,
                100.0 * full
            );
        }
    }
    for n in sizes {
        let n = *n as f64;
        let _ = writeln!(
            text,
            "N = {n}: {}, {}",
            show_flops(fit.model.rate(n)?),
            show_seconds(fit.model.seconds(n)?)
        );
    }
    let figure = figures::rate_figure(&samples, fit.model, peak)?;
    Ok((text, Some(figure)))
}

fn memory(groups: &[u64], losses: u64) -> Result<Answer, Refusal> {
    let mut text = String::from(
        "group       self     double     single   memory taken for each byte of data, self\n",
    );
    for g in groups {
        let share = |m| available_fraction(m, *g, losses).map(|f| format!("{:.1} %", 100.0 * f));
        let _ = writeln!(
            text,
            "{g:>5} {:>10} {:>10} {:>10}   {:.3}",
            share(Method::SelfCheckpoint)?,
            share(Method::Double)?,
            share(Method::Single)?,
            memory_factor(Method::SelfCheckpoint, *g, losses)?
        );
    }
    Ok((text, Some(figures::memory_figure(groups, losses)?)))
}

fn intervals(save: f64, mtbf: f64, detect: f64, recover: f64) -> Result<Answer, Refusal> {
    let overhead = |tau: f64| {
        let segment = interval::Segment { work: tau, encode: save, flush: 0.0 };
        Ok::<f64, ModelError>(interval::segment_time(segment, detect + recover, mtbf)? / tau - 1.0)
    };
    let mut text = String::new();
    let best = interval::optimal(save, mtbf)?;
    for (name, tau) in [
        ("Young", interval::young(save, mtbf)?),
        ("Daly, eq. 9", interval::daly(save, mtbf)?),
        ("exact optimum", best),
    ] {
        // Daly's series may give zero work if a save takes as long as the time between failures.
        let cost = if tau > 0.0 {
            format!("{:.3} % more time than without saves and failures", 100.0 * overhead(tau)?)
        } else {
            "no work at all between saves".into()
        };
        let _ =
            writeln!(text, "{name:<14} {:>10} of work between saves, {cost}", show_seconds(tau));
    }
    let _ = writeln!(
        text,
        "efficiency at the exact optimum: {:.2} % by eq. 10, which leaves out repeated work; {:.2} % exactly",
        100.0 * interval::efficiency_eq10(best, save, mtbf, detect, recover)?,
        100.0 / (1.0 + overhead(best)?)
    );
    let mut points = Vec::new();
    for i in 0..=100 {
        let tau = best * 10f64.powf(f64::from(i - 50) / 50.0);
        if let Ok(o) = overhead(tau) {
            points.push((tau / 60.0, 100.0 * o));
        }
    }
    let figure = Figure {
        title: "Overhead as a function of the interval between saves".into(),
        panels: vec![Panel::new(
            format!("a save {}, MTBF {}", show_seconds(save), show_seconds(mtbf)),
            Axis::log("minutes of work between saves"),
            Axis::linear("% more time than without saves and failures"),
            vec![
                Series::line("expected overhead", points),
                Series::dots("optimum", vec![(best / 60.0, 100.0 * overhead(best)?)]),
            ],
        )],
        note: "Exact if the times between failures are exponentially distributed.".into(),
    };
    Ok((text, Some(figure)))
}

fn reliability(run: LongRun) -> Result<Answer, Refusal> {
    let text = format!(
        "a run of {} on {} processes in groups of {}, a failure every {}\n\
         self-checkpoint    finishes with probability {:.6} (eq. 16)\n\
         single checkpoint  finishes with probability {:.6} (eq. 15)\n",
        show_seconds(run.run_s),
        run.total,
        run.group,
        show_seconds(run.mtbf_system),
        run.success_self()?,
        run.success_single()?
    );
    Ok((text, Some(figures::reliability_figure(run)?)))
}

fn encodings(p: u64, size: f64, losses: u64, link: Link) -> Result<Answer, Refusal> {
    let code = if losses == 1 { Code::Plain } else { Code::Weighted { losses } };
    let mut text = format!(
        "{} a process, {p} processes, {losses} loss{}\n",
        show_bytes(size),
        if losses == 1 { "" } else { "es" }
    );
    let mut row = |name: &str, time: Result<f64, ModelError>, more: String| {
        let _ = match time {
            Ok(t) => writeln!(text, "{name:<28} {:>10}{more}", show_seconds(t)),
            Err(e) => writeln!(text, "{name:<28} {:>10}  {e}", "-"),
        };
    };
    row("stable storage", encoding::stable_storage(p, size, link), String::new());
    row("binary tree", encoding::tree(p, size, code, link), String::new());
    let segment = encoding::optimal_segment(p, size, code, link)?;
    row(
        "chain, best segment",
        encoding::chain_best(p, size, code, link),
        format!("  in segments of {}", show_bytes(segment)),
    );
    let least = losses.saturating_mul(losses.saturating_add(1));
    let groups = |g: u64| format!("  in groups of {g}");
    row("one-dimensional, chain", encoding::chain_best(16, size, code, link), groups(16));
    row("one-dimensional, tree", encoding::tree(16, size, code, link), groups(16));
    row("localised, chain", encoding::localised(losses, size, link), groups(least));
    row("localised, tree", encoding::localised_tree(losses, size, link), groups(least));
    row(
        "ours, localised, ring",
        encoding::localised_ring(least, losses, size, link),
        groups(least),
    );
    row(
        "ours, localised, MPI_Reduce",
        encoding::localised_reduce(least, losses, size, link),
        groups(least),
    );
    let apart = losses.saturating_add(16);
    let sizes = || format!("  in groups of 16, and {losses} for the parity");
    row("ours, dedicated, chain", encoding::dedicated_chain(apart, losses, size, link), sizes());
    row(
        "ours, dedicated, MPI_Reduce",
        encoding::dedicated_reduce(apart, losses, size, link),
        sizes(),
    );
    row("stripes around a ring", encoding::striped_ring(p, losses, size, link), String::new());
    row("stripes by MPI_Reduce", encoding::striped_reduce(p, losses, size, link), String::new());
    Ok((text, Some(figures::encoding_figure(link, size, losses)?)))
}

fn helper_cores(cores: &[u64], copy: f64, encode: f64, every: f64) -> Result<Answer, Refusal> {
    let mut text =
        format!("encoding inline costs {:.2} %\n", 100.0 * helpers::overhead(encode, every)?);
    for c in cores {
        let _ = writeln!(
            text,
            "1 of {c:>4} cores costs {:>6.2} %: {} as a helper; break-even at a save every {}",
            100.0 * helpers::overhead_with_helper(*c, copy, every)?,
            if helpers::helper_pays(*c, copy, encode, every)? { "pays" } else { "does not pay" },
            show_seconds(helpers::break_even_interval(*c, copy, encode)?)
        );
    }
    Ok((text, Some(figures::helpers_figure(cores, copy, encode)?)))
}

fn without_restart(flags: &NonstopFlags) -> Result<Answer, Refusal> {
    let failing = Failing { mtbf: flags.mtbf, processes: flags.process_share };
    let again = flags.detect + flags.restart;
    let ways = Ways {
        work: flags.work,
        save: flags.save,
        again,
        recover: flags.recover,
        in_place: flags.in_place,
    };
    let mut text = String::from(
        "way                        memory for the matrix    work   share of the rate    not restarted\n",
    );
    let mut row = |way: String, memory: f64, work: f64, rate: f64, through: Option<f64>| {
        let through = through.map_or(String::new(), |p| format!("{:.2} %", 100.0 * p));
        let line =
            format!("{way:<26} {:>19.1} % {work:>7.4} {rate:>19.5} {through:>16}", 100.0 * memory);
        let _ = writeln!(text, "{}", line.trim_end());
    };
    let own = available_fraction(Method::SelfCheckpoint, flags.group, 1)?;
    row("self, restarts".into(), own, 1.0, ways.by_restarts(flags.mtbf)?, None);
    row("self, in place".into(), own, 1.0, ways.in_place(failing)?, None);
    let each = flags.renew_time.unwrap_or(flags.save);
    let made = |rows| Renewing { rows, waiting: flags.spare_ranks, each };
    let renewing = flags.rows.map_or(Renewing::NEVER, made);
    for &sums in &flags.checksum_columns {
        for &q in &flags.columns {
            let columns = Columns { q, sums };
            let factor = columns.factor()?;
            let work = flags.work * factor;
            let (replace, from_scratch) = (flags.in_place, again);
            let run = Replacement { columns, work, replace, from_scratch, renewing };
            let through = run.finishes(failing)?;
            let rate = ways.by_checksums(columns, renewing, failing)?;
            let way = format!("checksums, Q = {q}, R = {sums}");
            row(way, 1.0 / factor, factor, rate, Some(through));
        }
    }
    Ok((text, None))
}

fn waste(flags: &WasteFlags) -> Result<Answer, Refusal> {
    let machine = flags.machine;
    let edition = if flags.printed { Edition::Printed } else { Edition::Recovered };
    let platform = Platform::of(machine, edition).with_checkpoint(flags.checkpoint);
    let defaults = Defaults {
        rho: flags.rho,
        lambda: flags.lambda,
        alpha: flags.alpha,
        downtime: flags.downtime,
    };
    let validity = if flags.first_order { Validity::FirstOrder } else { Validity::Unbounded };
    let mu_p = flags.mtbf / platform.processors as f64;
    let mut text = format!(
        "{}: {} processors of {}, a failure every {}\n\n{:<16}{:<18}{:>8}{:>12}{:>12}{:>10}\n",
        machine.name(),
        platform.processors,
        show_bytes(platform.memory),
        show_seconds(mu_p),
        "application",
        "grouping",
        "groups",
        "growth, 1/s",
        "period",
        "waste"
    );
    let mut panels = Vec::new();
    for app in Application::ALL {
        for grouping in app.groupings() {
            let p = protocol(app, *grouping, &platform, defaults)?;
            let best = p.optimum(mu_p, validity)?;
            let _ = writeln!(
                text,
                "{:<16}{:<18}{:>8}{:>12.4e}{:>12}{:>9.1} %",
                app.name(),
                grouping.name(),
                p.groups,
                growth(app, *grouping, &platform)?,
                best.period.map_or("none".into(), show_seconds),
                100.0 * best.waste
            );
        }
        let title = app.name().into();
        panels.push(figures::waste_panel(title, app, &platform, defaults, validity)?);
    }
    let note = if flags.first_order {
        "Periods are at most mu_p/10 (eq. 14)."
    } else {
        "Periods may exceed mu_p/10: the paper's thresholds imply this."
    };
    let title = format!("Waste on {}", machine.name());
    let figure = Figure { title, panels, note: note.into() };
    let _ = writeln!(
        text,
        "\n{} hours between failures of the machine, {:.1} years between failures of a processor",
        (mu_p / HOUR_S * 100.0).round() / 100.0,
        flags.mtbf / YEAR_S
    );
    Ok((text, Some(figure)))
}

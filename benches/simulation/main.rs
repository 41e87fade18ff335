//! Whole runs from seeds, with faults: as many as there is time for, or one again.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use skt_hpl::base::cores;
use skt_hpl::testkit::simulation::Stage;
use skt_hpl::testkit::simulation::campaign::Campaign;
use skt_hpl::testkit::simulation::supervisor::Office;

/// Simulates protected runs: their ranks take turns in an order drawn from a seed, and faults strike them
#[derive(Parser)]
#[command(name = "simulation")]
struct Flags {
    /// How long seeds are run
    #[arg(long, value_name = "S", default_value_t = 10)]
    seconds: u64,
    /// The first seed, when many are run
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Runs this seed alone
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Of that seed's faults only these, by number; or none
    #[arg(long, value_name = "LIST", requires = "seed")]
    faults: Option<String>,
    /// Writes that run to FILE, event by event
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// Simulates supervised runs
    #[arg(long)]
    supervisor: bool,
    /// What `cargo bench` passes on
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.supervisor {
        let mut office = Office::new();
        let began = Instant::now();
        let mut ran = 0;
        let (first, last) = match flags.seed {
            Some(seed) => (seed, seed + 1),
            None => (flags.from, u64::MAX),
        };
        let mut failed = 0;
        for seed in first..last {
            if began.elapsed().as_secs() >= flags.seconds {
                break;
            }
            ran += 1;
            match office.run(seed) {
                Ok(report) if flags.seed.is_some() => println!("{report:?}"),
                Ok(_) => {}
                Err(failure) => {
                    failed += 1;
                    let small = office.smallest(seed);
                    if flags.seed.is_some() {
                        println!("{}", office.run_with(seed, &small).unwrap_err());
                    } else {
                        println!(
                            "seed {seed} {small:?}: {}",
                            failure.what.lines().next().unwrap_or("")
                        );
                    }
                }
            }
        }
        println!(
            "{ran} runs, {failed} failed, {:.1} a second",
            ran as f64 / began.elapsed().as_secs_f64()
        );
        return ExitCode::SUCCESS;
    }
    let failed = match flags.seed {
        Some(seed) => !again(&flags, seed),
        None => many(&flags) > 0,
    };
    ExitCode::from(u8::from(failed))
}

/// Whether a seed's run ends as it must.
fn again(flags: &Flags, seed: u64) -> bool {
    let trace = flags.trace.as_ref().map(|path| File::create(path).expect("the trace"));
    let mut stage = Stage::new(trace);
    let numbers: Option<Vec<usize>> =
        flags.faults.as_ref().map(|list| list.split(',').flat_map(str::parse).collect());
    let ran = match numbers {
        Some(faults) => stage.run_with(seed, &faults),
        None => stage.run(seed),
    };
    match &ran {
        Ok(report) => {
            println!("{} launches, {} faults struck", report.launches, report.struck.len())
        }
        Err(failure) => println!("FAILED: {failure}"),
    }
    ran.is_ok()
}

fn many(flags: &Flags) -> usize {
    let workers = cores::count() as u64;
    let time = Duration::from_secs(flags.seconds);
    let began = Instant::now();
    let tally = Campaign { first: flags.from, seeds: None, time, workers }.run();
    let seconds = began.elapsed().as_secs_f64();
    print!("{tally}");
    println!(
        "seeds from {}, {workers} at a time: {:.1} runs a second, {:.0} steps a second",
        flags.from,
        tally.runs as f64 / seconds,
        tally.steps as f64 / seconds
    );
    tally.failed.len()
}

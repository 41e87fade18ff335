//! Simulates whole runs with faults, from seeds: as many as the time allows, or one seed again.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use skt_hpl::base::cores;
use skt_hpl::testkit::simulation::campaign::{Campaign, Kind};
use skt_hpl::testkit::simulation::ranks::Stage;
use skt_hpl::testkit::simulation::supervisor::Office;
use skt_hpl::testkit::simulation::{Failure, Report, Simulation};

/// Simulates protected runs from seeds, with faults
#[derive(Parser)]
#[command(name = "simulation")]
struct Flags {
    /// Simulates a run's ranks, or its supervisor and nodes, or one after the other
    #[arg(long, value_enum, default_value_t = What::Ranks)]
    what: What,
    /// How long seeds are run, of each kind
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
    /// Writes the events of that seed's run to FILE
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
    /// Supervises that seed's run on this many nodes
    #[arg(long, value_name = "N", requires = "seed")]
    nodes: Option<usize>,
    /// Flag that `cargo bench` passes on
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    Ranks,
    Supervisor,
    All,
}

impl What {
    fn kinds(self) -> &'static [Kind] {
        match self {
            What::Ranks => &[Kind::Ranks],
            What::Supervisor => &[Kind::Supervisor],
            What::All => &[Kind::Ranks, Kind::Supervisor],
        }
    }
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let mut failed = false;
    for kind in flags.what.kinds() {
        failed |= match flags.seed {
            Some(seed) => !again(&flags, *kind, seed),
            None => many(&flags, *kind) > 0,
        };
    }
    ExitCode::from(u8::from(failed))
}

/// Simulates the run of one seed again, and prints its faults and its end. Returns true if the run ends as it must.
fn again(flags: &Flags, kind: Kind, seed: u64) -> bool {
    let trace = flags.trace.as_ref().map(|path| File::create(path).expect("the trace"));
    let began = Instant::now();
    let ran = match kind {
        Kind::Ranks => one(&mut Stage::new(trace), flags, seed),
        Kind::Supervisor => {
            let mut office = Office::new(trace);
            match flags.nodes {
                None => one(&mut office, flags, seed),
                Some(nodes) => office.run_on(seed, nodes),
            }
        }
    };
    match &ran {
        Ok(Report { launches, steps, injected }) => {
            for (fault, came_to) in injected {
                println!("{fault:<50} {came_to}");
            }
            let seconds = began.elapsed().as_secs_f64();
            println!(
                "{launches} launches, {steps} steps, {} faults, {seconds:.2} s",
                injected.len()
            );
        }
        Err(failure) => println!("FAILED: {failure}"),
    }
    ran.is_ok()
}

fn one(stage: &mut impl Simulation, flags: &Flags, seed: u64) -> Result<Report, Failure> {
    match &flags.faults {
        Some(list) => {
            let faults: Vec<usize> = list.split(',').flat_map(str::parse).collect();
            stage.run_with(seed, &faults)
        }
        None => stage.run(seed),
    }
}

fn many(flags: &Flags, kind: Kind) -> usize {
    let workers = cores::count() as u64;
    let time = Duration::from_secs(flags.seconds);
    let began = Instant::now();
    let tally = Campaign { kind, first: flags.from, seeds: None, time, workers }.run();
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

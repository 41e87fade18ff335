//! Program that `skt-hpl tune` starts on all ranks. The program times parts of one factorisation after the other, and reports
//! each result at once.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::base::exit::{Exit, Refusal};
use crate::base::params::{Device, Engine, Pinning, SplitUpdate, TestParams};
use crate::base::terminal::{put, say};
use crate::base::threads::Pool;
use crate::comm::{Comm, World, set_phase};
use crate::device;
use crate::driver::agreement::{self, Proposal};
use crate::driver::benchmark::ranks_of;
use crate::driver::contest;
use crate::driver::pins;
use crate::kernels::{self, preflight, set_library_threads};
use crate::lu::{Context, time_stretches};

/// Times stretches of factorisations, for `skt-hpl tune`
#[derive(Debug, Args)]
pub struct TrialsFlags {
    /// Trials to time, as JSON
    file: PathBuf,

    /// Threads of a rank
    #[arg(long, value_name = "COUNT")]
    threads: usize,

    /// BLAS in place of the linked one
    #[arg(long, value_name = "LIBRARY")]
    blas: Option<String>,

    /// Device of each rank
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Device::None)]
    device: Device,
}

/// Factorisation of which some parts are timed. Each element of `stretches` is a range of iterations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub test: TestParams,
    pub stretches: Vec<Range<usize>>,
}

/// Report of rank 0 to `skt-hpl tune`, in a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// All ranks have started, and this engine multiplies in the trials that follow.
    Engine(String),
    /// Seconds of each range of iterations in the trial's `stretches`.
    Seconds(Vec<f64>),
    Failed(String),
}

pub fn run(flags: &TrialsFlags) -> ExitCode {
    let chosen = flags.blas.as_deref().map_or(Ok(()), kernels::load);
    preflight::run(true);
    // This program makes its own threads. Threads of the library would compete with these.
    set_library_threads(1);
    let world = World::init(false);
    let comm = world.comm();
    match all(comm, flags, chosen) {
        Ok(()) => Exit::Passed.into(),
        Err(ended) => {
            if comm.rank() == 0 {
                say(&ended.why);
            }
            comm.barrier();
            ended.exit.into()
        }
    }
}

/// Reads the trials on rank 0 and sends them to all ranks.
fn read(comm: &Comm, flags: &TrialsFlags) -> Result<Vec<Trial>, Refusal> {
    let read = || -> Result<Vec<Trial>, String> {
        let text = std::fs::read(&flags.file).map_err(|error| error.to_string())?;
        serde_json::from_slice(&text).map_err(|error| error.to_string())
    };
    let named = || read().map_err(|why| format!("{}: {why}", flags.file.display()));
    agreement::shared_by(comm, 0, named).map_err(Refusal::bad_input)
}

fn all(comm: &Comm, flags: &TrialsFlags, chosen: Result<(), String>) -> Result<(), Refusal> {
    set_phase("reading what to time");
    let trials = read(comm, flags)?;
    set_phase("looking at the nodes");
    let node = comm.split_by_node();
    // Threads are pinned as in the run whose parts are timed.
    let pins = pins::decide(comm, flags.threads, true, Pinning::Auto);
    let device = device::open(flags.device, &ranks_of(&node), comm.rank() as u64);
    let name = device.as_ref().ok().and_then(Option::as_ref).map(|device| device.name());
    // A device needs operands in the layouts of this engine.
    let engine = if flags.device == Device::None { Engine::Auto } else { Engine::Blas };
    let (rank, threads) = (comm.rank(), flags.threads);
    let mut proposal = Proposal::new(rank, engine, true, threads, pins.is_ok(), None, name);
    let device = proposal.needs(device.map_err(Refusal::environment)).flatten();
    proposal.needs(chosen.map_err(Refusal::environment));
    let pool = proposal.needs(pins::pool(flags.threads, &pins));
    // Without a pool the ranks refuse the work together, and until then a pool of one thread is enough.
    let mut pool = pool.unwrap_or_else(|| Pool::new(1));
    let agreed = agreement::agree(comm, proposal, engine, false)?;
    let tests: Vec<TestParams> = trials.iter().map(|trial| trial.test.clone()).collect();
    let asked = contest::Asked { tests: &tests, computes: true, turns: false };
    let (engines, _) = contest::decide(comm, &node, asked, &agreed.engines, &mut pool);
    let common = agreement::settle(comm, agreed, engines, &tests, None);
    set_phase("timing parts of a factorisation");
    let mut told = None;
    for Trial { test, stretches } in &trials {
        let position = Context::position_of(test, comm.rank());
        let order = common.order(SplitUpdate::Auto);
        let engine = common.engines.of(test);
        if told.replace(engine) != Some(engine) {
            tell(comm, &Told::Engine(engine.name().to_owned()));
        }
        let context = Context::new(comm, test, engine, order, position);
        let timed = context.map(|mut context| {
            context.device.clone_from(&device);
            time_stretches(&context, stretches, &mut pool)
        });
        // Rank 0 has a position in every grid.
        match timed {
            Some(Ok(seconds)) => tell(comm, &Told::Seconds(seconds)),
            Some(Err(why)) => tell(comm, &Told::Failed(why.to_string())),
            None => {}
        }
        comm.barrier();
    }
    set_phase("finishing");
    Ok(())
}

fn tell(comm: &Comm, told: &Told) {
    if comm.rank() == 0 {
        let line = serde_json::to_string(told).expect("plain values have a JSON form");
        // If the reader has ended, an error here does not matter: the job is ended soon.
        let _ = put(format!("{line}\n").as_bytes());
    }
}

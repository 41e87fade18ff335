//! `skt-hpl agent` (hidden): the process that the supervisor starts on every node.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use nix::sys::resource::{Resource, setrlimit};
use serde::Serialize;

use super::burnin;
use super::stored_checkpoints;
use crate::base::exit::Exit;
use crate::burnin::probe::Extent;
use crate::comm::{Reduce, World};
use crate::device;
use crate::driver::agreement::reduced;
use crate::kernels::preflight;
use crate::supervise::start::trial::{self, Place, Said};
use crate::supervise::talk::agent::{self, Asked, Dir};
use crate::supervise::talk::processes;

#[derive(Clone, Debug, Args)]
pub struct AgentFlags {
    /// Instead of serving, start MPI, compute a sum over all ranks and end
    #[arg(long)]
    pub trial: bool,

    /// Instead of serving, take part in the measurements of a burn-in: sweeps, rounds, threads, milliseconds
    #[arg(long)]
    pub measure: Option<Extent>,

    /// Report the BLAS that the run's ranks will load
    #[arg(long, value_name = "LIBRARY")]
    pub blas: Option<String>,

    /// Instead of serving, load this BLAS, report it and end; without a name, the linked one
    #[arg(long, value_name = "LIBRARY")]
    pub look_at_blas: Option<String>,

    /// Report the free space in the folder of the run's second level of checkpoints
    #[arg(long, value_name = "DIR", requires = "job")]
    pub level2: Option<PathBuf>,

    /// Name of the run's memory and checkpoints
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,

    /// Also report the content of this folder, which belongs to this node alone
    #[arg(long, requires = "job")]
    pub own: bool,

    /// Report whether the run's helpers can have these processors for themselves
    #[arg(long, value_name = "LIST")]
    pub helper_cores: Option<String>,

    /// Report the devices that the run's ranks can compute on
    #[arg(long)]
    pub devices: bool,

    /// Instead of serving, report this node's devices, and end
    #[arg(long)]
    pub look_at_devices: bool,

    /// Instead of serving, report this node's free space in DIR, and end
    #[arg(long, value_name = "DIR", requires = "job")]
    pub look_at_level2: Option<PathBuf>,

    /// Id of this agent's run, with which a later agent finds this one
    #[arg(long, requires = "node")]
    pub run: Option<String>,

    /// Name of this node in the run
    #[arg(long, requires = "run")]
    pub node: Option<String>,
}

pub fn run(flags: &AgentFlags) -> ExitCode {
    if flags.trial {
        return trial_start();
    }
    if let Some(extent) = &flags.measure {
        return burnin::rank(extent);
    }
    if let Some(name) = &flags.look_at_blas {
        // Some libraries end the process that loads them. The caller expects that, and a core file would be useless.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
        return answer(&preflight::look(name));
    }
    if flags.look_at_devices {
        return answer(&device::survey());
    }
    let job = flags.job.clone().unwrap_or_default();
    if let Some(dir) = &flags.look_at_level2 {
        return answer(&stored_checkpoints::room(dir, &job, flags.own));
    }
    // An agent that is started again during a run must answer at once. Storage may hang, and ranks use the devices, so the agent
    // checks neither.
    let amid = flags.run.as_deref().is_some_and(|run| !processes::of_run(run).is_empty());
    let storage = flags.level2.clone().filter(|_| !amid);
    let storage = storage.map(|path| Dir { path, job, own: flags.own });
    let (blas, helper_cores) = (flags.blas.clone(), flags.helper_cores.clone());
    match agent::run(&Asked { blas, storage, helper_cores, devices: flags.devices && !amid }) {
        Ok(()) => ExitCode::SUCCESS,
        // The supervisor has ended, so the error cannot be reported.
        Err(_) => Exit::Environment.into(),
    }
}

/// Prints the answer of an agent that does not serve, as JSON. The answer has a line of its own, even if a library has printed
/// something.
fn answer(found: &impl Serialize) -> ExitCode {
    let found = serde_json::to_string(found).expect("plain values have a JSON form");
    show!("\n{found}");
    ExitCode::SUCCESS
}

/// Starts MPI for a trial, as a rank of the trial's job. The rank prints its node and the /dev/shm that it sees, and prints them
/// again after a sum over all ranks.
fn trial_start() -> ExitCode {
    let facts = agent::facts(&Asked::default());
    // Output to a pipe is buffered, so the line is flushed at once: a process that later hangs in MPI must have reported.
    crate::base::terminal::print(trial::line(&Said::Started(Place::of(&facts))).as_bytes());
    let world = World::init(false);
    let comm = world.comm();
    let sum = reduced(comm, 1, Reduce::Sum) as usize;
    if sum != comm.size() {
        tell!("MPI gives wrong results: the sum of 1 over {} ranks is {sum}", comm.size());
        return Exit::Environment.into();
    }
    let joined = Said::Joined { size: sum, place: Place::of(&facts) };
    crate::base::terminal::print(trial::line(&joined).as_bytes());
    // No rank ends before all ranks have received the sum: a launcher may end all ranks when the first one ends.
    comm.barrier();
    ExitCode::SUCCESS
}

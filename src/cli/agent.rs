//! `skt-hpl agent` (hidden): what the supervisor starts on every node.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::exit::Exit;
use crate::supervise::agent;
use crate::supervise::trial::{self, Place, Said};

#[derive(Clone, Debug, Args)]
pub struct AgentFlags {
    /// Instead of serving, start MPI, sum something up over all ranks and end
    #[arg(long)]
    pub trial: bool,
}

pub fn run(flags: &AgentFlags) -> ExitCode {
    if flags.trial {
        return trial_start();
    }
    match agent::run() {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody is left to tell: the supervisor has gone.
        Err(_) => Exit::Environment.into(),
    }
}

/// Each process says where it is and which /dev/shm it sees, and once more when MPI has carried something.
fn trial_start() -> ExitCode {
    use mpi::collective::SystemOperation;
    use mpi::traits::{Communicator, CommunicatorCollectives};
    let facts = agent::facts();
    print!("{}", trial::line(&Said::Started(Place::of(&facts))));
    // Pipes hold text back; a process that hangs in MPI must have spoken before.
    let _ = std::io::stdout().flush();
    let Some(universe) = mpi::initialize() else {
        eprintln!("MPI does not start");
        return Exit::Environment.into();
    };
    let world = universe.world();
    let (one, mut sum) = (1i32, 0i32);
    world.all_reduce_into(&one, &mut sum, SystemOperation::sum());
    if sum != world.size() {
        eprintln!("MPI adds {} ones up to {sum}", world.size());
        return Exit::Environment.into();
    }
    print!("{}", trial::line(&Said::Joined { size: sum as usize, place: Place::of(&facts) }));
    let _ = std::io::stdout().flush();
    // Nobody ends before all have heard the sum: launchers end the rest with the first.
    world.barrier();
    ExitCode::SUCCESS
}

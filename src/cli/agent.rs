//! `skt-hpl agent` (hidden): what the supervisor starts on every node.

use std::process::ExitCode;

use clap::Args;

use super::exit::Exit;
use crate::supervise::agent;

#[derive(Clone, Debug, Args)]
pub struct AgentFlags {
    /// Instead of serving, start MPI, sum something up over all ranks and end
    #[arg(long)]
    pub mpi_check: bool,
}

pub fn run(flags: &AgentFlags) -> ExitCode {
    if flags.mpi_check {
        return mpi_check();
    }
    match agent::run() {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody is left to tell: the supervisor has gone.
        Err(_) => Exit::Environment.into(),
    }
}

/// Each rank says where it is and which /dev/shm it sees, if MPI carries anything at all.
fn mpi_check() -> ExitCode {
    use mpi::collective::SystemOperation;
    use mpi::traits::{Communicator, CommunicatorCollectives};
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
    let facts = agent::facts();
    println!("skt-hpl-mpi-check {} {} {}", facts.host, facts.boot, facts.shm_device);
    ExitCode::SUCCESS
}

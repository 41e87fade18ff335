//! Launch of a simulated job: starts its processes, and gives them turns until all have ended.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};

use super::arena::{Arena, Fault, Life, Manner, Next, PARENT, RankState};
use super::rank::Rank;
use crate::base::{faults, simulated};
use crate::comm::library;
use crate::config::flags::BenchFlags;
use crate::driver::benchmark;

/// Way in which a launch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The job ended with the status that a launcher would return.
    Status(i32),
    /// No rank could run any more, so the job hangs. The value has the phase of each rank.
    Hang(Vec<String>),
    /// A rank ended in a forbidden way, or did not give its turn back.
    Broken(String),
}

pub struct Launch {
    pub ended: Ended,
    /// Faults that were injected in this launch, with the phase in which each was injected.
    pub injected: Vec<Fault>,
    pub steps: u64,
    /// Positions that committed a checkpoint in this launch, one bit each.
    pub committed: u64,
    /// True if any position generated its part of the matrix.
    pub generated: bool,
    /// True if any position began to remove its memory.
    pub cleans: bool,
    /// True if the results were printed.
    pub is_told: bool,
}

/// Description of the job to launch.
pub struct Job<'a> {
    pub ranks: usize,
    pub words: &'a [String],
    pub folder: &'a Path,
    pub seed: u64,
    pub manner: Manner,
    pub faults: &'a [Fault],
    pub trace: Option<&'a File>,
}

/// Time after which a turn without calls counts as stuck. No proper turn takes so long.
const STUCK_AFTER: Duration = Duration::from_secs(20);
const LOOK_EVERY_MS: i64 = 100;

/// Runs a job to its end. Its ranks are processes that take turns.
pub fn launch(arena: &mut Arena, job: &Job) -> Launch {
    let trace = job.trace.map_or(-1, AsRawFd::as_raw_fd);
    arena.begin(job.ranks, job.seed, job.manner, trace);
    job.faults.iter().zip(&mut arena.faults).for_each(|(fault, place)| *place = Some(*fault));
    for rank in 0..job.ranks {
        // SAFETY: this process has one thread, so its child may call any function.
        match unsafe { libc::fork() } {
            0 => run(std::ptr::from_mut(arena), rank, job),
            -1 => panic!("no process for a rank: {}", std::io::Error::last_os_error()),
            pid => (arena.ranks[rank].pid, arena.ranks[rank].life) = (pid, Life::Running),
        }
    }
    let broken = attend(arena);
    if arena.hangs && std::env::var_os("SKT_SIMULATION_STACKS").is_some() {
        print_stacks(arena);
    }
    end_all(arena);
    let phase = |rank: usize| {
        let state = &arena.ranks[rank];
        format!("rank {rank} ({:?}): {}", state.life, state.phase.unwrap_or("starting"))
    };
    let ended = match (broken, arena.misuse) {
        (Some(how), _) => Ended::Broken(how),
        (None, Some(how)) => Ended::Broken(how.to_owned()),
        (None, None) if arena.hangs => Ended::Hang((0..job.ranks).map(phase).collect()),
        (None, None) => Ended::Status(status(arena)),
    };
    Launch {
        ended,
        injected: arena.faults.iter().flatten().filter(|fault| fault.injected).copied().collect(),
        steps: arena.steps,
        committed: arena.committed,
        generated: arena.generated,
        cleans: arena.cleans,
        is_told: arena.is_told,
    }
}

/// Returns the exit status of the job, as a launcher would return it.
fn status(arena: &Arena) -> i32 {
    let ranks = &arena.ranks[..arena.count];
    let survived = arena.manner.survives
        && ranks.iter().any(|rank| (rank.life, rank.exit) == (Life::Exited, 0));
    if arena.status != 0 {
        arena.status
    } else if survived || ranks.iter().all(|rank| rank.life == Life::Exited) {
        0
    } else {
        137
    }
}

/// Gives turns to the ranks until all have ended. Returns a violation if a rank ended in a forbidden way or kept its turn;
/// otherwise None.
fn attend(arena: &mut Arena) -> Option<String> {
    loop {
        match arena.choose() {
            Next::Over => return None,
            Next::Hang if arena.ends => return None,
            Next::Hang => {
                arena.hangs = true;
                return None;
            }
            Next::Rank(next) => arena.give_turn(next),
        }
        let mut waited = 0;
        let mut calls = 0;
        while !arena.await_turn(PARENT, Some(LOOK_EVERY_MS)) {
            let now = arena.ranks.iter().map(|rank| rank.calls).sum();
            waited = if calls == now { waited + LOOK_EVERY_MS } else { 0 };
            calls = now;
            if let Some(how) = unexpected(arena) {
                return Some(how);
            }
            if waited > STUCK_AFTER.as_millis() as i64 {
                return Some("a rank does not come back from its turn".to_owned());
            }
        }
        reap(arena);
    }
}

/// Waits until the kernel has released the resources of killed processes. Does not wait for processes that still run.
fn reap(arena: &mut Arena) {
    for rank in 0..arena.count {
        let state = arena.ranks[rank];
        if state.pid > 0 && state.life == Life::Dead {
            wait(state.pid, 0);
            arena.ranks[rank].pid = 0;
            // Without ULFM the launcher ends a job that has lost a rank.
            arena.ends |= !arena.manner.survives;
        }
        // Other ranks have killed a stopped rank.
        if state.pid > 0 && state.life == Life::Stopped && wait(state.pid, libc::WNOHANG).is_some()
        {
            (arena.ranks[rank].pid, arena.ranks[rank].life) = (0, Life::Dead);
        }
    }
}

/// Returns a description of a process that has ended unexpectedly; None if there is no such process.
fn unexpected(arena: &mut Arena) -> Option<String> {
    for rank in 0..arena.count {
        let state = arena.ranks[rank];
        if state.pid > 0 && state.life == Life::Running {
            let ended = wait(state.pid, libc::WNOHANG);
            if let Some(status) = ended {
                arena.ranks[rank].pid = 0;
                return Some(format!(
                    "rank {rank}, while {}, ended with wait status {status:#x}",
                    state.phase.unwrap_or("starting")
                ));
            }
        }
    }
    None
}

fn wait(pid: i32, how: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a child of this process.
    (unsafe { libc::waitpid(pid, &mut status, how) } == pid).then_some(status)
}

/// Prints the stack of each rank of a job that hangs, to help find the reason.
fn print_stacks(arena: &Arena) {
    for rank in arena.ranks[..arena.count].iter().filter(|rank| rank.pid > 0) {
        let pid = rank.pid.to_string();
        let words = ["-batch", "-p", &pid, "-ex", "backtrace"];
        let _ = std::process::Command::new("gdb").args(words).status();
    }
}

fn end_all(arena: &mut Arena) {
    let left = arena.ranks[..arena.count].iter_mut().filter(|rank| rank.pid > 0);
    let left: Vec<&mut RankState> = left.collect();
    for rank in &left {
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(rank.pid, libc::SIGKILL) };
    }
    for rank in left {
        wait(rank.pid, 0);
        rank.pid = 0;
    }
}

/// Runs the program as a rank of the job.
fn run(arena: *mut Arena, me: usize, job: &Job) -> ! {
    for (name, descriptor) in [("out", 1), ("err", 2)] {
        let file = OpenOptions::new().create(true).append(true).open(job.folder.join(name));
        let file = file.expect("a folder of our own");
        // SAFETY: descriptors of this process.
        unsafe { libc::dup2(file.as_raw_fd(), descriptor) };
    }
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("RUST_BACKTRACE", "0") };
    std::env::set_current_dir(job.folder).expect("a folder of our own");
    // SAFETY: the memory exists until this process has ended, and the parent's reference is in another process.
    let rank = Rank::begin(unsafe { &mut *arena }, me);
    simulated::begin(rank);
    library::simulate(rank);
    faults::arm_simulation();
    let command = BenchFlags::augment_args(Command::new("skt-hpl").no_binary_name(true));
    let matches = command.try_get_matches_from(job.words).unwrap_or_else(|why| {
        tell!("{why}\n");
        rank.exit(2)
    });
    let flags = BenchFlags::from_arg_matches(&matches).expect("flags that clap has read");
    let exit = std::panic::catch_unwind(|| benchmark::run(&flags));
    rank.exit(exit.map_or(101, |exit| i32::from(exit.code())))
}

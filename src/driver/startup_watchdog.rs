//! Start-up watchdog. If a rank dies while MPI starts, the other ranks of its node report the loss and end the job.
//!
//! A launcher that lets a job continue without a rank (Open MPI 5 with `--with-ft ulfm`) does nothing if a rank dies while MPI
//! starts. Inside MPI_Init no other rank notices the loss, and all ranks wait for ever. But the launcher ends the job if one of
//! the ranks exits with an error status. So `benchmark` runs this watchdog, but only while MPI starts. The start may take any
//! time, as long as no rank disappears.
//!
//! In a healthy start no rank disappears. Before a rank exits, even to refuse its input, it communicates with all ranks, which is
//! possible only after MPI_Init. Only a rank that this process has seen can count as lost: a process with the same parent and
//! job, and another rank number.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::base::exit::Exit;
use crate::base::host_name;
use crate::base::repeated::Repeated;
use crate::base::terminal::say;
use crate::supervise::remember::events::ProcessId;
use crate::supervise::start::launcher::own_run_id;
use crate::supervise::talk::processes::{environ, is_alive, look, variable};

/// Environment variable in which the launcher gives the name of the job.
const JOB: &str = "PMIX_NAMESPACE";
/// Environment variable in which the launcher gives the rank number of this process in the job.
const RANK: &str = "PMIX_RANK";

/// Duration of the beginning of a start, in which ranks appear and may disappear.
const SOON: Duration = Duration::from_secs(2);
/// Time between two checks during the first [`SOON`]. With many ranks on the node it is longer, up to [`LOOK`], because a rank
/// checks all of them.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Time between two checks after the first [`SOON`].
const LOOK: Duration = Duration::from_millis(200);

/// Time after which any rank of the node reports the loss, if the node's lowest rank has not ended the job.
const NEXT_SPEAKS: Duration = Duration::from_secs(2);

/// Name of the watchdog's thread. Tests search for this name.
const NAME: &str = "siblings";

/// Other ranks of this node that this rank has seen so far, by rank number.
struct Seen {
    parent: u32,
    job: OsString,
    rank: usize,
    ranks: BTreeMap<usize, ProcessId>,
}

/// Starts the watchdog, which the caller ends when MPI has started. Returns `None` if the environment lacks `PMIX_NAMESPACE` or a
/// number in `PMIX_RANK`, or if the thread cannot be started.
pub fn watch() -> Option<Repeated> {
    let (job, rank) = (std::env::var_os(JOB)?, std::env::var(RANK).ok()?.parse().ok()?);
    let parent = std::os::unix::process::parent_id();
    let mut seen = Seen { parent, job, rank, ranks: BTreeMap::new() };
    let began = Instant::now();
    let look = move |over: &AtomicBool| {
        seen.look();
        if let Some((rank, id)) = seen.gone() {
            seen.end_job(rank, id, over);
        }
        let often = LOOK_SOON * (1 + seen.ranks.len() as u32 / 4);
        if began.elapsed() < SOON { often.min(LOOK) } else { LOOK }
    };
    Repeated::start(NAME, look).ok()
}

impl Seen {
    /// Records ranks of this node that have appeared since the last call.
    fn look(&mut self) {
        for pid in children(self.parent) {
            if pid == std::process::id() || self.ranks.values().any(|id| id.pid == pid) {
                continue;
            }
            // The start time is read first. If the process id is reused afterwards, a later check finds another start time.
            let Some((_, started)) = look(pid) else { continue };
            let Some(environ) = environ(pid) else { continue };
            if let Some(rank) = rank_of(&environ, self.job.as_encoded_bytes())
                && rank != self.rank
            {
                self.ranks.entry(rank).or_insert(ProcessId { pid, started });
            }
        }
    }

    /// Returns a rank that was seen and no longer exists, or `None`.
    fn gone(&self) -> Option<(usize, ProcessId)> {
        self.ranks.iter().map(|(rank, id)| (*rank, *id)).find(|(_, id)| !is_alive(*id))
    }

    /// Prints the loss of rank `rank` and ends this process, so that the launcher ends the job. Does nothing if MPI has started
    /// since (`over`).
    fn end_job(&self, rank: usize, id: ProcessId, over: &AtomicBool) {
        if self.ranks.iter().any(|(rank, id)| *rank < self.rank && is_alive(*id)) {
            std::thread::park_timeout(NEXT_SPEAKS);
        }
        if over.load(Ordering::Acquire) {
            return;
        }
        say(format_args!(
            "rank {rank} on {} (process {}) has ended while MPI was starting. No work is lost, but a job can continue without a \
             rank only after all ranks have started. Start the job again. If this happens again, find out on that node what \
             ended the process (dmesg shows whether memory ran out)",
            host_name(),
            id.pid
        ));
        let code = match own_run_id() {
            // For the supervisor this is a failure that a restart may repair, not a bad input.
            Some(_) => 128 + libc::SIGKILL,
            None => Exit::Environment.code().into(),
        };
        // SAFETY: ends the process, and nothing of it is used any more. Exit handlers of libraries are skipped, because MPI
        // cannot finish now.
        unsafe { libc::_exit(code) }
    }
}

/// Lists the processes that process `parent` has started and that have not ended.
fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let parse = |list: String| -> Vec<u32> {
        list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(parse).collect()
}

/// Returns the rank number of a process with this environment, or `None` if the process is no rank of job `job`.
fn rank_of(environ: &[u8], job: &[u8]) -> Option<usize> {
    if variable(environ, JOB)? != job {
        return None;
    }
    std::str::from_utf8(variable(environ, RANK)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn started(job: &str, rank: &str) -> Child {
        Command::new("sleep").arg("60").env(JOB, job).env(RANK, rank).spawn().unwrap()
    }

    #[test]
    fn only_a_rank_of_this_job_that_was_there_can_be_gone() {
        let job = format!("siblings-{}", std::process::id());
        let mut seen = Seen {
            parent: std::process::id(),
            job: job.clone().into(),
            rank: 0,
            ranks: BTreeMap::new(),
        };
        seen.look();
        assert!(seen.ranks.is_empty());
        let others = [started(&job, "0"), started("another", "1"), started(&job, "none")];
        let mut sibling = started(&job, "3");
        let until = Instant::now() + Duration::from_secs(20);
        while seen.ranks.is_empty() && Instant::now() < until {
            seen.look();
        }
        let id = seen.ranks[&3];
        assert_eq!((seen.ranks.len(), id.pid), (1, sibling.id()));
        for mut other in others {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        seen.look();
        assert_eq!(seen.gone(), None);
        sibling.kill().unwrap();
        // The rank may be a zombie that its parent has not reaped yet.
        while seen.gone().is_none() && Instant::now() < until {}
        assert_eq!(seen.gone(), Some((3, id)));
        sibling.wait().unwrap();
        assert_eq!(seen.gone(), Some((3, id)));
    }
}

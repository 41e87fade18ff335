//! A rank that dies while MPI starts: those that the launcher has started on the same node say so and end the job.
//!
//! A launcher that lets a job go on without a rank (Open MPI 5 under `--with-ft ulfm`) leaves it at that, and inside MPI_Init
//! nobody else notices: all wait for the dead one for ever. But when one of them ends with a status, the launcher ends the job.
//! So `benchmark` has this watch while MPI starts, and only then: how long that takes does not matter, only that nobody goes.
//!
//! Nobody goes from a healthy start: whatever a rank does before it ends, be it to refuse its input, it does together
//! with all others, so not before they are through MPI_Init. A rank is held to be gone only if it was seen before: a process that
//! this one's parent has started under another number of the same job.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::exit::Exit;
use crate::base::new_thread;
use crate::base::terminal::say;
use crate::supervise::remember::events::ProcessId;
use crate::supervise::start::launcher::own_run_id;
use crate::supervise::talk::processes::{environ, is_alive, look, variable};

/// What the launcher calls the job, and a rank of it.
const JOB: &str = "PMIX_NAMESPACE";
const RANK: &str = "PMIX_RANK";

/// At first all are about to show up, and soon one may be gone again; after that nobody is in a hurry. Many look less often, for
/// each looks at each.
const SOON: Duration = Duration::from_secs(2);
const LOOK_SOON: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(200);

/// One of those that are left speaks for all; the others only if it has not come to that.
const NEXT_SPEAKS: Duration = Duration::from_secs(2);

/// The thread that watches; tests look for it.
const NAME: &str = "siblings";

/// Watches until it is told that MPI has started.
pub struct Siblings {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What there is to know of the siblings: who was seen, by rank.
struct Seen {
    parent: u32,
    job: OsString,
    rank: usize,
    ranks: BTreeMap<usize, ProcessId>,
}

impl Siblings {
    /// None where the launcher gives its processes no names.
    pub fn watch() -> Option<Self> {
        let (job, rank) = (std::env::var_os(JOB)?, std::env::var(RANK).ok()?.parse().ok()?);
        let parent = std::os::unix::process::parent_id();
        let mut seen = Seen { parent, job, rank, ranks: BTreeMap::new() };
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = new_thread::start(NAME, move || {
            let began = Instant::now();
            while !told.load(Ordering::Acquire) {
                seen.look();
                if let Some((rank, id)) = seen.gone() {
                    seen.end_job(rank, id, &told);
                }
                let often = LOOK_SOON * (1 + seen.ranks.len() as u32 / 4);
                let soon = began.elapsed() < SOON;
                std::thread::park_timeout(if soon { often.min(LOOK) } else { LOOK });
            }
        });
        Some(Self { over, thread: thread.ok()? })
    }

    /// MPI has started.
    pub fn end(self) {
        self.over.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

impl Seen {
    /// Takes in who has shown up.
    fn look(&mut self) {
        for pid in children(self.parent) {
            if pid == std::process::id() || self.ranks.values().any(|id| id.pid == pid) {
                continue;
            }
            // First when it started, then what it is: a number that is given to another process meanwhile shows later.
            let Some((_, started)) = look(pid) else { continue };
            let Some(environ) = environ(pid) else { continue };
            if let Some(rank) = rank_of(&environ, self.job.as_encoded_bytes())
                && rank != self.rank
            {
                self.ranks.entry(rank).or_insert(ProcessId { pid, started });
            }
        }
    }

    /// One that was there and is no more.
    fn gone(&self) -> Option<(usize, ProcessId)> {
        self.ranks.iter().map(|(rank, id)| (*rank, *id)).find(|(_, id)| !is_alive(*id))
    }

    /// Says why and ends this process, and with it the job, unless it is `over` with the start of MPI.
    fn end_job(&self, rank: usize, id: ProcessId, over: &AtomicBool) {
        if self.ranks.iter().any(|(rank, id)| *rank < self.rank && is_alive(*id)) {
            std::thread::park_timeout(NEXT_SPEAKS);
        }
        if over.load(Ordering::Acquire) {
            return;
        }
        let node = nix::unistd::gethostname().unwrap_or_default();
        say(format_args!(
            "rank {rank} on {} (process {}) has ended while MPI was starting. Nothing is lost, but a job goes on without a rank \
             only once all have started: start it again. If that happens again, look there for what ended the process (dmesg tells \
             whether it was for want of memory)",
            node.to_string_lossy(),
            id.pid
        ));
        let code = match own_run_id() {
            // For the supervisor this is a fault like any other, and none of the input's.
            Some(_) => 128 + libc::SIGKILL,
            None => Exit::Environment.code().into(),
        };
        // SAFETY: ends the process, and nothing of it is used any more. What a library has to do at the end, MPI cannot do now.
        unsafe { libc::_exit(code) }
    }
}

/// Processes that a process has started and that have not ended.
fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let parse = |list: String| -> Vec<u32> {
        list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(parse).collect()
}

/// The rank that a process with this environment is of a job, if it is one.
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
        // Nobody needs to have waited for it.
        while seen.gone().is_none() && Instant::now() < until {}
        assert_eq!(seen.gone(), Some((3, id)));
        sibling.wait().unwrap();
        assert_eq!(seen.gone(), Some((3, id)));
    }
}

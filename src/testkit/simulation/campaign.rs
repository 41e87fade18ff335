//! Campaigns: many seeds are simulated on all cores. Injected faults, their phases and their results are counted.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

use super::ranks::Stage;
use super::supervisor::Office;
use super::{Failure, Report, Simulation};
use crate::base::cores;
#[cfg(debug_assertions)]
use crate::base::faults::{self, Sabotage};

/// The part of the program that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ranks,
    Supervisor,
}

impl Kind {
    /// Returns the argument for this kind in the command that repeats a run.
    fn flag(self) -> &'static str {
        match self {
            Kind::Ranks => "",
            Kind::Supervisor => " --what supervisor",
        }
    }
}

/// Seeds to run, and limits of the campaign.
pub struct Campaign {
    pub kind: Kind,
    pub first: u64,
    /// Number of seeds; if None, seeds are run until the time is over.
    pub seeds: Option<u64>,
    pub time: Duration,
    /// Number of processes that run seeds in parallel.
    pub workers: u64,
}

/// Result of a campaign: counts of runs, faults and failures.
#[derive(Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub launches: u64,
    pub steps: u64,
    /// Number of faults, by (kind and phase, result of the launch).
    pub injected: BTreeMap<(String, String), u64>,
    pub failed: Vec<u64>,
    /// Seed whose run a worker has begun and not ended.
    begun: Option<u64>,
}

/// Processor time after which a run counts as endless. No proper run takes a tenth of it.
const ENDLESS_S: i64 = 20;

impl Campaign {
    /// Runs all seeds, and prints each failure at once. The calling process must have a single thread.
    pub fn run(&self) -> Tally {
        let began = Instant::now();
        let work = |worker, told| match self.kind {
            Kind::Ranks => self.work::<Stage>(worker, began, told),
            Kind::Supervisor => self.work::<Office>(worker, began, told),
        };
        let pipes: Vec<File> =
            (0..self.workers).map(|worker| apart(|told| work(worker, told))).collect();
        let mut tally = Tally::default();
        // A worker whose pipe is full would wait.
        let read = |mut pipe: File| {
            let mut text = String::new();
            pipe.read_to_string(&mut text).expect("a pipe of our own");
            text
        };
        let texts: Vec<String> = std::thread::scope(|scope| {
            let readers: Vec<_> =
                pipes.into_iter().map(|pipe| scope.spawn(move || read(pipe))).collect();
            readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
        });
        for text in texts {
            text.lines().for_each(|line| tally.add(line));
            if let Some(seed) = tally.begun.take() {
                show!(
                    "FAILED: the process that simulated seed {seed} died, or ran for {ENDLESS_S} s\n{}\n",
                    self.repeat(seed)
                );
                tally.fails(seed);
            }
        }
        let mut status = 0;
        // SAFETY: children of this process.
        while unsafe { libc::wait(&mut status) } > 0 {
            assert!(status == 0 || !tally.failed.is_empty(), "a worker has died");
        }
        tally
    }

    fn work<S: Simulation>(&self, worker: u64, began: Instant, mut told: File) {
        // The ranks of a worker take turns, so they wake each other fastest on a single core.
        cores::pin(worker as usize);
        let mut stage = S::begin();
        let last = self.seeds.map_or(u64::MAX, |seeds| self.first.saturating_add(seeds));
        let mut family = self.first + worker * S::FAMILY;
        while family < last {
            for seed in family..last.min(family + S::FAMILY) {
                if began.elapsed() >= self.time {
                    return;
                }
                tell(&mut told, &format!("begins {seed}\n"));
                end_after(ENDLESS_S);
                let line = match stage.run(seed) {
                    Ok(report) => lines(&report),
                    Err(failure) => {
                        self.print(&mut stage, seed, &failure);
                        format!("failed {seed}\n")
                    }
                };
                tell(&mut told, &line);
            }
            family += self.workers * S::FAMILY;
        }
    }

    fn print(&self, stage: &mut impl Simulation, seed: u64, failure: &Failure) {
        show!("FAILED: {failure}");
        end_after(ENDLESS_S);
        let faults: Vec<String> = stage.smallest(seed).iter().map(usize::to_string).collect();
        show!(
            "{} --faults {}\n",
            self.repeat(seed),
            if faults.is_empty() { "none".to_owned() } else { faults.join(",") }
        );
    }

    /// Returns the command that repeats the run of a seed.
    fn repeat(&self, seed: u64) -> String {
        format!("repeat: cargo bench --bench simulation --{} --seed {seed}", self.kind.flag())
    }
}

fn tell(told: &mut File, line: &str) {
    told.write_all(line.as_bytes()).expect("the parent reads");
}

/// Lets a signal end this process once it has used `seconds` more of processor time.
fn end_after(seconds: i64) {
    let once = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let limit =
        libc::itimerval { it_interval: once, it_value: libc::timeval { tv_sec: seconds, ..once } };
    // SAFETY: the call reads a timer of this function.
    let set = unsafe { libc::setitimer(libc::ITIMER_PROF, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "no timer: {}", std::io::Error::last_os_error());
}

fn lines(report: &Report) -> String {
    let mut text = format!("run {} {}\n", report.launches, report.steps);
    for (fault, ended) in &report.injected {
        let _ = writeln!(text, "injected\t{fault}\t{ended}");
    }
    text
}

impl Tally {
    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('\t').collect();
        let words: Vec<&str> = line.split(' ').collect();
        match (words[0], &fields[..]) {
            ("begins", _) => self.begun = Some(words[1].parse().expect("a worker's number")),
            ("run", _) => {
                self.ends_a_run();
                self.launches += words[1].parse::<u64>().expect("a worker's number");
                self.steps += words[2].parse::<u64>().expect("a worker's number");
            }
            ("failed", _) => {
                self.fails(words[1].parse().expect("a worker's number"));
            }
            (_, ["injected", what, came_to]) => {
                *self.injected.entry(((*what).to_owned(), (*came_to).to_owned())).or_default() += 1;
            }
            _ => unreachable!("a worker's line: {line}"),
        }
    }

    fn ends_a_run(&mut self) {
        self.runs += 1;
        self.begun = None;
    }

    fn fails(&mut self, seed: u64) {
        self.ends_a_run();
        self.failed.push(seed);
    }

    pub fn faults(&self) -> u64 {
        self.injected.values().sum()
    }
}

/// Formats a table with one line for each kind of fault, phase and result.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for ((what, came_to), count) in &self.injected {
            writeln!(f, "{count:>8}  {what:<50} {came_to}")?;
        }
        writeln!(
            f,
            "{} runs, {} launches, {} schedule steps, {} faults injected, {} failed",
            self.runs,
            self.launches,
            self.steps,
            self.faults(),
            self.failed.len()
        )
    }
}

/// Disables a safeguard, and runs seeds from `first` on until a seed fails. Returns the number of this seed and its failure.
/// Returns None if no seed fails within `time`.
#[cfg(debug_assertions)]
pub fn first_failure(
    kind: Kind,
    sabotage: Sabotage,
    first: u64,
    time: Duration,
) -> Option<(u64, String)> {
    fn seek<S: Simulation>(first: u64, time: Duration) -> Option<(u64, Failure)> {
        let (mut stage, began) = (S::begin(), Instant::now());
        let mut seeds = (first..).take_while(|_| began.elapsed() < time);
        seeds.find_map(|seed| Some((seed, stage.run(seed).err()?)))
    }
    let mut found = apart(|mut told| {
        faults::sabotage_thread(Some(sabotage));
        let failure = match kind {
            Kind::Ranks => seek::<Stage>(first, time),
            Kind::Supervisor => seek::<Office>(first, time),
        };
        if let Some((seed, failure)) = failure {
            write!(told, "{seed} {}", failure.what).expect("the parent reads");
        }
    });
    let mut text = String::new();
    found.read_to_string(&mut text).expect("a pipe of our own");
    let (seed, what) = text.split_once(' ')?;
    Some((seed.parse().expect("a seed"), what.to_owned()))
}

/// Does `work` in a separate process, and returns the pipe from which its output can be read. The calling process must have a
/// single thread.
pub fn apart(work: impl FnOnce(File)) -> File {
    let (read, write) = pipe();
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(write)));
            // SAFETY: ends this process without its exit handlers, which belong to the parent.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        -1 => panic!("no process for a worker: {}", std::io::Error::last_os_error()),
        _ => read,
    }
}

fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which have no other owner.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "no pipe");
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

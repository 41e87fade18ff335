//! Many seeds, on all cores: what was struck, where, and what it came to.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

use super::{Failure, Report, Stage};
use crate::base::cores;

/// Which seeds to run, and how.
pub struct Campaign {
    pub first: u64,
    /// As many as there is time for, or this many.
    pub seeds: Option<u64>,
    pub time: Duration,
    /// Processes that run seeds side by side.
    pub workers: u64,
}

/// What a campaign came to.
#[derive(Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub launches: u64,
    pub steps: u64,
    /// Faults by kind and phase, and by what the launch came to.
    pub struck: BTreeMap<(String, String), u64>,
    pub failed: Vec<u64>,
}

impl Campaign {
    /// Runs all of it; failures are printed as they come. The calling process must have one thread.
    pub fn run(&self) -> Tally {
        let began = Instant::now();
        let mut pipes = Vec::new();
        for worker in 0..self.workers {
            let (read, write) = pipe();
            // SAFETY: this process has one thread.
            match unsafe { libc::fork() } {
                0 => {
                    self.work(worker, began, write);
                    // SAFETY: ends the worker, whose parent does what is left to do.
                    unsafe { libc::_exit(0) };
                }
                -1 => panic!("no process for a worker: {}", std::io::Error::last_os_error()),
                _ => pipes.push(read),
            }
        }
        let mut tally = Tally::default();
        for mut pipe in pipes {
            let mut text = String::new();
            pipe.read_to_string(&mut text).expect("a pipe of our own");
            text.lines().for_each(|line| tally.add(line));
        }
        // SAFETY: children of this process.
        while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
        tally
    }

    fn work(&self, worker: u64, began: Instant, mut told: File) {
        // Its ranks take turns: on one core they wake each other soonest.
        cores::pin(worker as usize);
        let mut stage = Stage::new(None);
        let last = self.seeds.map_or(u64::MAX, |seeds| self.first.saturating_add(seeds));
        // Seeds of one problem go to one worker, which knows its solution.
        let mut family = self.first + worker * super::scenario::FAMILY;
        while family < last {
            for seed in family..last.min(family + super::scenario::FAMILY) {
                if began.elapsed() >= self.time {
                    return;
                }
                let line = match stage.run(seed) {
                    Ok(report) => lines(&report),
                    Err(failure) => {
                        print_failure(&mut stage, seed, &failure);
                        format!("failed {seed}\n")
                    }
                };
                told.write_all(line.as_bytes()).expect("the parent reads");
            }
            family += self.workers * super::scenario::FAMILY;
        }
    }
}

fn lines(report: &Report) -> String {
    let mut text = format!("run {} {}\n", report.launches, report.steps);
    for (fault, ended) in &report.struck {
        let phase = fault.phase.unwrap_or("starting");
        let _ = writeln!(text, "struck\t{:?} while {phase}\t{ended}", fault.strike);
    }
    text
}

fn print_failure(stage: &mut Stage, seed: u64, failure: &Failure) {
    let faults: Vec<String> = stage.smallest(seed).iter().map(usize::to_string).collect();
    show!(
        "FAILED: {failure}\nrepeat: cargo bench --bench simulation -- --seed {seed} --faults {}\n",
        if faults.is_empty() { "none".to_owned() } else { faults.join(",") }
    );
}

impl Tally {
    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.split('\t').collect();
        let words: Vec<&str> = line.split(' ').collect();
        match (words[0], &fields[..]) {
            ("run", _) => {
                self.runs += 1;
                self.launches += words[1].parse::<u64>().expect("a worker's number");
                self.steps += words[2].parse::<u64>().expect("a worker's number");
            }
            ("failed", _) => {
                self.runs += 1;
                self.failed.push(words[1].parse().expect("a worker's number"));
            }
            (_, ["struck", what, came_to]) => {
                *self.struck.entry(((*what).to_owned(), (*came_to).to_owned())).or_default() += 1;
            }
            _ => unreachable!("a worker's line: {line}"),
        }
    }

    pub fn faults(&self) -> u64 {
        self.struck.values().sum()
    }
}

/// A table: one line a kind of fault, phase and end.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for ((what, came_to), count) in &self.struck {
            writeln!(f, "{count:>8}  {what:<50} {came_to}")?;
        }
        writeln!(
            f,
            "{} runs, {} launches, {} schedule steps, {} faults struck, {} failed",
            self.runs,
            self.launches,
            self.steps,
            self.faults(),
            self.failed.len()
        )
    }
}

fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which nobody else has.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "no pipe");
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

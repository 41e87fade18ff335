//! Tests of pinned threads: each thread has its own core if there are enough, and otherwise none is pinned. No bit of a result
//! depends on it.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use skt_hpl::base::cores;
use skt_hpl::base::topology::read_list;
use skt_hpl::report::json::Threads;

use crate::binding::own_cores;
use crate::dat::Dat;
use crate::job::{Job, PROGRAM, RankProcess};
use crate::left_out::left_out;

fn job(ranks: usize, n: usize, pin: &str) -> Job {
    let dat = Dat { ns: vec![n], nbs: vec![64], grids: vec![(1, ranks)], ..Dat::default() };
    Job::of(PROGRAM.into(), ranks).dat(&dat).args(&["--json", "run.json", "--pin", pin])
}

/// Returns the report of threads of a run, from its JSON document and from its text, and the digest of x.
fn told(job: Job) -> (Threads, String, String) {
    let ran = job.run().expect_code(0);
    let run = ran.json();
    let line = ran.err.lines().find(|line| line.starts_with("skt-hpl: threads: "));
    let line = line.unwrap_or_else(|| panic!("{}", ran.told())).to_owned();
    let outcome = run.tests[0].outcome.as_ref().unwrap_or_else(|| panic!("{}", ran.told()));
    (run.threads, line, outcome.x_digest.clone())
}

/// Returns the number of whole cores on which this process may run. Returns None, and notes that the test is left out, if the
/// process does not have all their time.
#[track_caller]
fn cores() -> Option<usize> {
    if !cores::are_whole() {
        left_out("threads are pinned only where all time of the cores is theirs");
        return None;
    }
    Some(own_cores())
}

/// Returns an N whose test takes some seconds on `cores` cores, long enough to examine the threads.
fn lasting(cores: usize) -> usize {
    // A core computes at most about 50 Gflop/s.
    (4800.0 * (cores as f64).cbrt()) as usize
}

#[test]
fn threads_are_pinned_where_each_has_a_core_and_the_result_is_the_same() {
    let Some(cores) = cores() else { return };
    let (threads, line, pinned) = told(job(1, 300, "auto"));
    assert_eq!((threads.most, threads.pinned.as_str()), (cores, "all"), "{line}");
    assert!(line.ends_with(" a rank, each pinned to a core of its own"), "{line}");
    let (threads, line, loose) = told(job(1, 300, "off"));
    assert_eq!((threads.most, threads.pinned.as_str()), (cores, "none"), "{line}");
    assert!(line.ends_with("not pinned: --pin off"), "{line}");
    assert_eq!(pinned, loose);
    // More threads than the machine has hardware threads.
    let many = cores::bound_to().len() + 1;
    let (threads, line, loose) = told(job(1, 300, "auto").args(&["--threads", &many.to_string()]));
    assert_eq!(threads, Threads { fewest: many, most: many, pinned: "none".into() }, "{line}");
    assert_eq!(pinned, loose);
}

/// OpenMP's variables for binding do not restrict a rank. GNU's OpenMP, which BLIS loads, binds the starting process to one
/// processor if such a variable is set.
#[test]
fn variables_of_openmp_confine_no_rank() {
    let Some(cores) = cores() else { return };
    let first = cores::bound_to().first().unwrap().to_string();
    for (name, value) in
        [("OMP_PROC_BIND", "true"), ("OMP_PLACES", "cores"), ("GOMP_CPU_AFFINITY", first.as_str())]
    {
        let (threads, line, _) = told(job(1, 300, "auto").env(name, value));
        assert_eq!((threads.most, threads.pinned.as_str()), (cores, "all"), "{name}: {line}");
    }
    // A binding by the launcher or a batch system stays in force.
    let bound = ["taskset", "-c", &first];
    let (threads, line, _) = told(job(1, 300, "auto").under(&bound).env("OMP_PROC_BIND", "true"));
    assert_eq!(threads.most, 1, "{line}");
}

/// OpenMP's variables for binding do not move the threads of the pool: each stays at its own core. GNU's OpenMP by itself moves
/// each thread that calls it to the first of its places (in the sense of `OMP_PLACES`).
#[test]
fn variables_of_openmp_move_no_thread_of_the_pool() {
    let Some(cores) = cores() else { return };
    if cores < 2 {
        return left_out("one core: there is no other place to be moved to");
    }
    for (pin, each) in [("auto", 1), ("off", cores::bound_to().len())] {
        let job = job(1, lasting(cores), pin).args(&[
            "--engine",
            "blas",
            "--threads",
            &cores.to_string(),
        ]);
        let mut running = job.env("OMP_PROC_BIND", "true").start();
        let until = Instant::now() + Duration::from_secs(60);
        // The workers need time for several multiplications.
        running.await_out("T/V");
        std::thread::sleep(Duration::from_millis(500));
        loop {
            assert!(!running.over() && Instant::now() < until, "{}", running.told());
            let all: Vec<_> = running.ranks().iter().flat_map(threads).collect();
            let pool = all.iter().filter(|(name, _)| name.starts_with("skt-hpl worker"));
            let at: Vec<_> = pool.map(|(_, at)| at.clone()).collect();
            if at.len() + 1 < cores {
                continue;
            }
            let main = all.iter().find(|(name, _)| name == "main").map(|(_, at)| at.clone());
            let apart: BTreeSet<_> = at.iter().chain(&main).collect();
            assert!(at.iter().all(|at| at.len() == each), "{pin}: {all:?}");
            assert_eq!(apart.len(), if each == 1 { cores } else { 1 }, "{pin}: {all:?}");
            break;
        }
        running.end().expect_code(0);
    }
}

/// Returns the name of each thread of a rank, and the processors on which it may run.
fn threads(rank: &RankProcess) -> Vec<(String, BTreeSet<usize>)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", rank.pid)).into_iter().flatten().flatten();
    let read = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let main = task.file_name().to_str()? == rank.pid.to_string();
        let name = if main { "main" } else { name.trim() };
        Some((name.to_owned(), read_list(list).into_iter().collect()))
    };
    tasks.filter_map(read).collect()
}

/// A rank without a grid position sleeps while the other computes, and starts no threads. The cores belong to the computing rank.
#[test]
fn a_rank_without_a_part_sleeps_and_has_no_threads() {
    let dat = Dat { ns: vec![4000], nbs: vec![64], grids: vec![(1, 1)], ..Dat::default() };
    // This job waits as real runs do; other tests make waiting cheap.
    let job = Job::of(PROGRAM.into(), 2).dat(&dat).args(&["--json", "run.json"]);
    let job = job.env("LD_PRELOAD", "").env("OMPI_MCA_mpi_yield_when_idle", "0");
    let mut running = job.start();
    running.await_out("T/V");
    let ranks = running.ranks();
    let idle = ranks.iter().find(|rank| rank.rank == 1).expect("there are two");
    let before = used(idle);
    let mut seen = Duration::ZERO;
    let began = Instant::now();
    while !running.over() {
        let all = threads(idle);
        assert!(all.iter().all(|(name, _)| !name.starts_with("skt-hpl worker")), "{all:?}");
        // The last measurement may contain the end of the run, in which the idle rank takes part.
        if let (Some(before), Some(now)) = (before, used(idle)) {
            seen = seen.max(now - before);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = began.elapsed();
    let ran = running.end().expect_code(0);
    assert!(
        before.is_some() && seen < took / 4 + Duration::from_millis(100),
        "{seen:?} of {took:?}"
    );
    assert_eq!(ran.json().threads.fewest, 1, "{}", ran.told());
}

/// Returns the processor time that the rank's process has used; None if the process has ended.
fn used(rank: &RankProcess) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", rank.pid)).ok()?;
    let after_name: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks: u64 =
        after_name.get(11)?.parse::<u64>().ok()? + after_name.get(12)?.parse::<u64>().ok()?;
    let second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    Some(Duration::from_millis(ticks * 1000 / second as u64))
}

/// Two ranks of a node that the launcher does not bind divide the cores between them. Threads outside their pools, and threads of
/// the library, may run on any core.
#[test]
fn ranks_on_one_node_have_cores_of_their_own_and_helpers_have_all() {
    let Some(cores) = cores() else { return };
    if cores < 2 {
        return left_out("one core: two ranks have none of their own");
    }
    let each = (cores / 2).to_string();
    let job = job(2, lasting(cores), "auto").args(&["--threads", &each]);
    let job = job.args(&["--power-command", "echo 100"]);
    let mut running = job.start();
    let until = Instant::now() + Duration::from_secs(60);
    let mut seen = Vec::new();
    loop {
        assert!(!running.over() && Instant::now() < until, "{seen:?}\n{}", running.told());
        let all: Vec<_> = running.ranks().iter().map(threads).collect();
        // The thread of the power meter exists while a test is solved.
        let meter = |threads: &[(String, _)]| threads.iter().any(|(name, _)| name == "power");
        if all.len() < 2 || !all.iter().any(|rank| meter(rank)) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let ours = |name: &str| name == "main" || name.starts_with("skt-hpl worker");
        let (pool, others): (Vec<_>, Vec<_>) =
            all.concat().into_iter().partition(|(name, _)| ours(name));
        let taken: BTreeSet<usize> = pool.iter().flat_map(|(_, at)| at.iter().copied()).collect();
        let pinned = pool.iter().all(|(_, at)| at.len() == 1);
        let apart = (pool.len(), taken.len()) == (cores / 2 * 2, cores / 2 * 2);
        if pinned && apart && others.iter().all(|(_, at)| at == cores::bound_to()) {
            break;
        }
        // A new thread has the name and the cores of its creator for a moment.
        seen = all;
        std::thread::sleep(Duration::from_millis(5));
    }
    running.end().expect_code(0);
}

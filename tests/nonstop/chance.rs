//! Tests that kill ranks from outside at random moments.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::extent;
use crate::job::Ran;
use crate::scene::Scene;

/// Random number generator (xorshift) with a seed.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Kills one or two working ranks at random moments of a run of about a second. Returns true if the run reported a loss and
/// recovered in place.
fn run(random: &mut Random) -> bool {
    let (p, q) = [(2, 2), (1, 4), (2, 3)][random.below(3) as usize];
    let depth = random.below(3).to_string();
    let halves = ["auto", "always"][random.below(2) as usize];
    let solver = ["-n", "1201", "--nb", "16", "--depth", &depth, "--split-update", halves];
    let scene = Scene::of(p, q, &solver).protect(&["--checkpoint", "4"]).nonstop(2);
    let mut running = scene.job().start();
    let began = Instant::now();
    while running.ranks().len() < scene.ranks && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let ranks = running.ranks();
    // A loss before the run has begun would end the job.
    while scene.held().len() < p * q && !running.over() {
        std::thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..1 + random.below(2) {
        std::thread::sleep(Duration::from_millis(random.below(900)));
        let victim = &ranks[random.below(ranks.len() as u64) as usize];
        if !running.over() {
            println!("rank {} after {:?}", victim.rank, began.elapsed());
            let _ = kill(victim.pid, Signal::SIGKILL);
        }
    }
    let ran = running.end();
    // The launcher may report the status of a process that was killed after the end of the tests.
    if ran.code != Some(0) && ran.out.contains("End of Tests") {
        return false;
    }
    lost(&scene.expect_finished(ran))
}

/// Returns true if the run reported a lost rank.
pub fn lost(ran: &Ran) -> bool {
    ran.err.contains("is lost: noticed")
}

/// Calls `play` with random numbers, `SKT_TEST_SOAK` times or else `turns` times, and prints the seed of each call. By default,
/// further calls follow until one has returned true: on a fast machine, the run may end before its loss.
pub fn dice(turns: u64, mut play: impl FnMut(&mut Random) -> bool) {
    let (seed, asked) = (extent::seed(), extent::soak());
    let (mut turn, mut hit) = (0, false);
    while turn < asked.unwrap_or(turns) || (asked.is_none() && !hit) {
        assert!(asked.is_some() || turn < turns * 10, "none of {turn} runs had a loss");
        println!("SKT_TEST_SEED={}", seed + turn);
        hit |= play(&mut Random((seed + turn) | 1));
        turn += 1;
    }
}

#[test]
#[ignore = "needs Open MPI 5"]
fn ranks_that_die_whenever_are_survived() {
    dice(6, run);
}

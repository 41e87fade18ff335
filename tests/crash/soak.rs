//! Tests with random kills and losses within the tolerated number: every run ends with the right result.
//!
//! The tests print their seed. `SKT_TEST_SEED` repeats it; `SKT_TEST_SOAK` sets the number of runs.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use skt_hpl::base::faults::Point;

use crate::extent;
use crate::scene::{SMALL, Scene, folder_in, lose_all};
use crate::storage::Storage;

struct Dice(Xoshiro256StarStar);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}

/// Returns the crash points at which a random fault may be injected. `again` is true if an earlier start may have left a
/// checkpoint. `lost` is true if a position's memory is lost. `stored` is true if the run has level two.
fn points(again: bool, lost: bool, stored: bool) -> Vec<Point> {
    let of_storage = crate::points::of_level2();
    let of = |point: &Point| match point.name() {
        _ if of_storage.contains(point) => stored,
        _ if point.is_solvers() || point.is_helpers() || point.is_of_start() => false,
        name if name.starts_with("rebuil") => lost,
        "agree-begin" | "agreed" => true,
        name if name.starts_with("generate") => !again,
        _ => again || !Point::between(Point::Pinned, Point::Resumed).contains(point),
    };
    Point::ALL.iter().copied().filter(of).collect()
}

fn expect_nothing_left(storage: Option<&Storage>, scene: &Scene) {
    for node in 0..scene.ranks {
        let folder = storage.map(|storage| folder_in(&storage.dir(node), scene));
        assert!(folder.is_none_or(|folder| !folder.exists()), "of node {node}");
    }
}

/// Runs a random job with up to four random faults, then once without faults. If `stored` is set, the run has level two, and
/// sometimes all nodes fail at once. Returns the history of the run as text, and the number of starts.
fn run(dice: &mut Dice, stored: bool) -> (String, usize) {
    let (p, q) = dice.one_of(&[(2, 2), (2, 2), (2, 3)]);
    let mut protect = vec!["--checkpoint", dice.one_of(&["1", "2", "5"])];
    let helped = ["--method", "double", "--encode", "helper"];
    protect.extend(dice.one_of(&[&[][..], &["--method", "double"], &["--scope", "side"], &helped]));
    let other = match protect.contains(&"helper") {
        true => &[][..],
        false => &["--encode", "reduce"],
    };
    protect.extend(dice.one_of(&[&[][..], other, &["--parity-code", "reed-solomon"]]));
    let losses = match (p * q, dice.below(2)) {
        (6, 0) => 2,
        _ => 1,
    };
    if losses == 2 {
        protect.extend(["--losses", "2", "--parity-code", "reed-solomon"]);
        protect.dedup();
    } else {
        protect.extend(dice.one_of(&[&[][..], &["--group", "2"]]));
    }
    // If a flag occurs twice, the first occurrence is removed.
    let twice = protect.iter().filter(|arg| **arg == "--parity-code").count() > 1;
    if twice {
        let at = protect.iter().position(|arg| *arg == "--parity-code").unwrap();
        protect.drain(at..at + 2);
    }
    let depth = dice.one_of(&["0", "1", "2"]);
    let problem = dice.one_of(&[SMALL, &["-n", "901", "--nb", "10"]]);
    let storage = stored.then(|| Storage::within("/dev/shm", dice.below(2) == 0, p * q));
    let named = storage.as_ref().map(Storage::named);
    if let (Some(storage), Some(named)) = (&storage, &named) {
        let helpers = match protect.contains(&"helper") {
            true => "threads",
            false => dice.one_of(&["threads", "off"]),
        };
        protect.extend(["--level2", named, "--level2-scope", storage.scope()]);
        protect.extend(["--level2-every", dice.one_of(&["1", "2"]), "--helpers", helpers]);
    }
    let scene = Scene::of(p, q, problem).solver(&["--depth", depth]).protect(&protect);
    let mut history = format!("N {} {p} x {q} depth {depth} {}: ", problem[1], protect.join(" "));
    let mut starts = 1;
    let mut lost = false;
    // Positions that may be lost. They stay the same during the run, so that no group ever loses more members than it survives.
    let mut victims: Vec<usize> = Vec::new();
    for _ in 0..1 + dice.below(4) {
        starts += 1;
        let ended = if dice.below(4) == 0 {
            let wait = 200 + dice.below(600) as u64;
            let mut running = scene.job().start();
            std::thread::sleep(Duration::from_millis(wait));
            let ranks = running.ranks();
            let who = dice.below(2 * ranks.len().max(1));
            let whom = if who < ranks.len() { format!("rank {who}") } else { "all".into() };
            history += &format!("{whom} killed after {wait} ms");
            // Kills a single rank, or all ranks.
            for (i, rank) in ranks.iter().enumerate() {
                if (who == i || who >= ranks.len()) && !running.over() {
                    let _ = kill(rank.pid, Signal::SIGKILL);
                }
            }
            running.end()
        } else {
            let point = dice.one_of(&points(starts > 2, lost, stored));
            let hits = if Point::between(Point::Iteration, Point::Committed).contains(&point) {
                25
            } else {
                1
            };
            let (position, hit) = (dice.below(p * q), 1 + dice.below(hits));
            let fault = format!("{}:{position}:{hit}:kill", point.name());
            history += &fault;
            scene.may_inject(&fault)
        };
        if ended.code == Some(0) {
            history += " (ended) ";
            println!("{history}");
            scene.expect_finished(ended);
            expect_nothing_left(storage.as_ref(), &scene);
            return (history, starts - 1);
        }
        // The fault ended the run. The run did not refuse to start, and gave no wrong result.
        assert!(!matches!(ended.code, Some(2..=6)), "{history}: {}", ended.told());
        let worries = ["panicked", "is kept", "cannot be allocated"];
        assert!(
            !worries.iter().any(|word| ended.err.contains(word)),
            "{history}: {}",
            ended.told()
        );
        if victims.is_empty() {
            for group in scene.groups() {
                let mut group = group.clone();
                for _ in 0..losses {
                    if !group.is_empty() {
                        victims.push(group.remove(dice.below(group.len())));
                    }
                }
            }
        }
        lost = false;
        // All nodes fail at once: no memory is left.
        let outage = storage.as_ref().filter(|_| dice.below(2) == 0);
        if let Some(storage) = outage {
            history += " all off";
            lose_all(&scene);
            for &victim in &victims {
                if storage.scope() == "node" && dice.below(2) == 0 {
                    history += &format!(", {victim} with its storage");
                    storage.renew(victim);
                }
            }
            history += "; ";
            continue;
        }
        for &victim in &victims {
            if dice.below(2) == 0 {
                history += &format!(" lost {victim}");
                scene.lose(victim);
                lost = true;
            }
        }
        history += "; ";
    }
    println!("{history}");
    scene.finish();
    expect_nothing_left(storage.as_ref(), &scene);
    (history, starts)
}

/// Runs `SKT_TEST_SOAK` random jobs, or `by_default` if the variable is not set.
fn soak(by_default: u64, stored: bool) {
    let seed = extent::seed();
    let runs = extent::soak().unwrap_or(by_default);
    println!("SKT_TEST_SEED={seed} SKT_TEST_SOAK={runs}");
    let mut starts = 0;
    for i in 0..runs {
        // Each run has a seed of its own, so that a single run can be repeated.
        println!("run {i}: SKT_TEST_SEED={} SKT_TEST_SOAK=1", seed + i);
        let mut dice = Dice(Xoshiro256StarStar::seed_from_u64(seed + i));
        starts += run(&mut dice, stored).1;
    }
    println!("{runs} runs, {starts} starts, seed {seed}");
}

#[test]
fn random_kills_and_losses_from_a_seed() {
    soak(20, false);
}

#[test]
fn random_outages_of_everything_from_a_seed() {
    soak(10, true);
}

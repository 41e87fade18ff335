//! Tests of `comm` alone. The test program starts itself as several ranks, some of which die.

use std::process::Command;
use std::time::Duration;

use skt_hpl::base::params::Bcast;
use skt_hpl::comm::{Broadcast, Comm, Reduce, Steps, World};

use crate::ease::{preload, relax};
use crate::job::{Job, Ran};
use skt_hpl::supervise::start::launcher::WITH_ULFM;

const WORK: &str = "TEST_RANKS_WORK";

/// Number of values in a long message. MPI sends such a message only after its receiver is ready.
const LONG: usize = 3 << 20;

fn job(count: usize, work: &str) -> Job {
    Job::of(std::env::current_exe().unwrap(), count)
        .launcher(WITH_ULFM)
        .args(&["peers::member", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(WORK, work)
}

fn ranks(count: usize, work: &str) -> Ran {
    job(count, work).run()
}

/// Names of the communication steps of [`step`] that the ranks run while one of them dies.
const STEPS: &[&str] = &[
    "reduce",
    "barrier",
    "gather",
    "split",
    "ring",
    "rows",
    "send",
    "broadcast",
    "idle",
    "panels",
];

/// Runs one round of the communication step `name`.
fn step(comm: &Comm, name: &str) {
    let (me, size) = (comm.rank(), comm.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    match name {
        "reduce" => comm.all_reduce(&mut vec![1u64; 1000], Reduce::Sum),
        "barrier" => comm.barrier(),
        "gather" => drop(comm.all_gather_bytes(&vec![7; 100 * me])),
        "split" => drop(comm.split(Some(me % 2), me)),
        "broadcast" => comm.broadcast(&mut vec![0.5f64; LONG], 1),
        // Each rank sends a long message to a neighbour and receives one from the other neighbour. One may be lost, while the
        // other waits for a third rank.
        "ring" => {
            let (out, mut into) = (vec![me as f64; LONG], vec![0.0; LONG]);
            comm.exchange(Some((&out[..], next)), Some((&mut into[..], before)), 3);
            assert!(into.iter().all(|&v| v == before as f64));
        }
        "send" => {
            let mut data = vec![me as f64; LONG];
            if me > 0 {
                comm.recv(&mut data, before, 4);
            }
            if next > 0 {
                comm.send(&data, next, 4);
            }
        }
        // Communicators of which not all ranks are members.
        "rows" => {
            let row = comm.split(Some(me / 2), me).unwrap();
            for _ in 0..20 {
                row.all_reduce(&mut [1.0f64], Reduce::Sum);
            }
            comm.barrier();
        }
        // A rank waits without sending or receiving data.
        "idle" => {
            let last = size - 1;
            if me == last {
                comm.await_word(0, 6, Comm::PAUSE);
                comm.recv::<u64>(&mut [], 0, 6);
            } else if me == 0 {
                std::thread::sleep(Duration::from_millis(20));
                comm.send::<u64>(&[], last, 6);
            }
        }
        // Several broadcasts are in progress at a time, as in the solver, and not yet waited for.
        "panels" => {
            let mut buffers: Vec<Vec<f64>> = (0..3).map(|_| vec![1.0; LONG / 3]).collect();
            let mut under_way: Vec<Broadcast> = Vec::new();
            for (i, buffer) in buffers.iter_mut().enumerate() {
                let (data, len) = (buffer.as_mut_ptr(), buffer.len());
                // SAFETY: the buffers outlive the broadcasts, declared after them.
                under_way.push(unsafe {
                    Broadcast::start(comm, Bcast::OneRing, data, len, i % size, 10 + i as i32)
                });
            }
            comm.all_reduce(&mut [1u64], Reduce::Sum);
            for mut broadcast in under_way {
                broadcast.finish(comm);
            }
        }
        // The ranks of a group vote on their first step, while one of them waits for a slow rank outside the group.
        "vote" => {
            let row = comm.split(Some(me / 2), me).unwrap();
            if me == 1 {
                comm.recv::<u64>(&mut [], 2, 7);
            } else if me == 2 {
                std::thread::sleep(Duration::from_millis(50));
                comm.send::<u64>(&[], 1, 7);
            }
            let steps = Steps::begin(&row);
            drop(steps.step());
        }
        other => panic!("no step {other}"),
    }
}

/// Time for which a slow rank is stopped, in microseconds.
const STANDS_STILL: u64 = 300_000;

/// Sends this process the signal `signal` after a number of microseconds. A signal after 0 microseconds is sent before the
/// function returns.
fn after(microseconds: u64, signal: &str) {
    let kill = format!("kill {signal} {}", std::process::id());
    let line = format!("sleep {}; {kill}", microseconds as f64 * 1e-6);
    let mut shell = Command::new("sh").arg("-c").arg(line).spawn().unwrap();
    let ended = std::thread::spawn(move || shell.wait());
    if microseconds == 0 {
        let _ = ended.join();
    }
}

/// Work of the ranks that the other tests start. A variable describes it: `STEP VICTIM ROUND[/MICROSECONDS [SLOW/MICROSECONDS]]`,
/// several parts joined by `+`. In each part, all ranks run the communication step STEP in rounds until they notice a loss. Rank
/// VICTIM of the remaining ranks is killed in round ROUND, MICROSECONDS after the round begins, or at once. In the same round
/// rank SLOW, if named, is stopped for a while, beginning so many microseconds after the round begins.
#[test]
#[ignore = "what the ranks of the other tests run"]
fn member() {
    let work = std::env::var(WORK).expect("started by one of the other tests");
    let mut world = World::init(true);
    assert_eq!(world.obstacle(), None);
    let me = world.comm().rank();
    if let Some(attempts) = work.strip_prefix("agree ") {
        for attempt in 0..attempts.parse().unwrap() {
            assert_eq!(world.attempt(|_| ()), Ok(()), "attempt {attempt}: nobody was lost");
        }
        println!("all {attempts} agreed");
        return;
    }
    if work == "asleep" {
        return asleep(world);
    }
    if work == "refused" {
        return refused(world);
    }
    if work == "slow" {
        return slow(world);
    }
    let mut gone = Vec::new();
    for part in work.split('+') {
        let words: Vec<&str> = part.split(' ').collect();
        let victim: usize = words[1].parse().unwrap();
        let (round, later) = words[2].split_once('/').unwrap_or((words[2], "0"));
        let (round, later): (usize, u64) = (round.parse().unwrap(), later.parse().unwrap());
        let slow = words.get(3).and_then(|word| word.split_once('/'));
        let slow =
            slow.map(|(who, later)| (who.parse::<usize>().unwrap(), later.parse::<u64>().unwrap()));
        // The kill signal comes from another process and may be late, so the rounds have no end.
        let rounds = if later > 0 { usize::MAX } else { 100 };
        let ended = world.attempt(|world| {
            for i in 0..rounds {
                if i == round && me == victim {
                    after(later, "-KILL");
                }
                if let Some((_, later)) = slow.filter(|(who, _)| i == round && me == *who) {
                    after(later + STANDS_STILL, "-CONT");
                    after(later, "-STOP");
                }
                step(world.comm(), words[0]);
            }
        });
        assert!(ended.is_err(), "{part}: nobody noticed");
        gone.extend(world.close_ranks());
        let done = world.attempt(|world| {
            let mut sum = [1u64];
            world.comm().all_reduce(&mut sum, Reduce::Sum);
            step(world.comm(), words[0]);
            sum[0] as usize
        });
        assert_eq!(done, Ok(world.comm().size()), "{part}");
    }
    let left: Vec<usize> = world.launched().to_vec();
    if world.comm().rank() == 0 {
        println!("left {left:?} gone {gone:?}");
    }
}

/// Stops rank 2 for 16 s, so that the others take it for lost even on a busy machine. The others work for longer, and rank 2
/// continues meanwhile.
fn asleep(mut world: World) {
    let work = |world: &World| {
        for round in 0..110 {
            if round == 3 && world.launched().get(2) == Some(&2) && world.comm().rank() == 2 {
                after(16_000_000, "-CONT");
                after(0, "-STOP");
            }
            std::thread::sleep(Duration::from_millis(200));
            world.comm().barrier();
        }
    };
    assert!(world.attempt(work).is_err(), "nobody noticed");
    let gone = world.close_ranks();
    assert_eq!(world.attempt(work), Ok(()));
    if world.comm().rank() == 0 {
        println!("left {:?} gone {gone:?}", world.launched());
    }
}

/// Kills rank 0 before it sends anything. The other ranks are within a step (`Steps`), which they complete although rank 0 is
/// lost. They begin half of the broadcasts before the death of rank 0 and half after it. Asserts that no broadcast counts as
/// arrived.
fn refused(mut world: World) {
    const ALL: [Bcast; 6] = [
        Bcast::OneRing,
        Bcast::OneRingM,
        Bcast::TwoRing,
        Bcast::TwoRingM,
        Bcast::Long,
        Bcast::LongM,
    ];
    let begin = |row: &Comm, buffers: &mut [Vec<f64>], tag: i32| -> Vec<Broadcast> {
        let begin = |(i, buffer): (usize, &mut Vec<f64>)| {
            let (data, len) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: the buffers outlive the broadcasts, declared after them.
            unsafe { Broadcast::start(row, ALL[i], data, len, 0, tag + i as i32) }
        };
        buffers.iter_mut().enumerate().map(begin).collect()
    };
    let ended = world.attempt(|world| {
        let row = world.comm();
        let me = row.rank();
        let column = row.split(Some(me), 0).unwrap();
        let steps = Steps::begin(&column);
        let mut buffers = vec![vec![0.5f64; LONG / 6]; 2 * ALL.len()];
        let (early, late) = buffers.split_at_mut(ALL.len());
        let mut broadcasts = if me > 0 { begin(row, early, 10) } else { Vec::new() };
        row.barrier();
        let step = steps.step();
        if me == 0 {
            after(0, "-KILL");
        }
        let look = |broadcasts: &mut [Broadcast], milliseconds: u64| {
            for _ in 0..milliseconds {
                for (i, broadcast) in broadcasts.iter_mut().enumerate() {
                    broadcast.poll(row);
                    let kind = ALL[i % ALL.len()];
                    assert!(!broadcast.arrived(), "{kind:?}, {i}: nobody has sent anything");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // This is long enough for the ranks to notice the loss.
        look(&mut broadcasts, 2000);
        broadcasts.extend(begin(row, late, 20));
        look(&mut broadcasts, 500);
        drop(step);
        broadcasts[me].wait_arrived(row);
        panic!("nothing is to be waited for");
    });
    assert!(ended.is_err(), "nobody noticed");
    let gone = world.close_ranks();
    if world.comm().rank() == 0 {
        println!("left {:?} gone {gone:?}", world.launched());
    }
}

/// Kills rank 3 while rank 2 sends to rank 4 over a slow network. Rank 4 gives its receive up and uses the buffer for other data;
/// the message must not overwrite them.
fn slow(mut world: World) {
    let (out, mut into) = (vec![0.5f64; LONG], vec![0.0; LONG]);
    let ended = world.attempt(|world| {
        let comm = world.comm();
        comm.barrier();
        match comm.rank() {
            2 => comm.send(&out, 4, 8),
            4 => comm.recv(&mut into, 2, 8),
            3 => after(500_000, "-KILL"),
            _ => {}
        }
        comm.recv(&mut [0u64], 3, 9);
    });
    assert!(ended.is_err(), "nobody noticed");
    into.fill(7.0);
    std::thread::sleep(Duration::from_secs(8));
    let others = into.iter().filter(|&&v| v != 7.0).count();
    assert_eq!(others, 0, "what was given up came to a buffer in use");
    let gone = world.close_ranks();
    if world.comm().rank() == 0 {
        println!("left {:?} gone {gone:?}", world.launched());
    }
}

fn expect(work: &str, ranks_left: &str) {
    let ran = ranks(5, work);
    assert!(ran.out.contains(ranks_left), "{work}: {}", ran.told());
}

#[test]
#[ignore = "needs Open MPI 5"]
fn a_rank_that_waits_for_a_lost_peer_leaves_and_continues() {
    for step in STEPS {
        for (victim, left) in [(0, "left [1, 2, 3, 4] gone [0]"), (2, "left [0, 1, 3, 4] gone [2]")]
        {
            expect(&format!("{step} {victim} 3"), left);
        }
    }
}

/// Returns the value of `LD_PRELOAD` that loads a library built from `source` before the MPI library.
pub fn before_mpi(source: &str) -> String {
    format!("{} {}", relax().display(), preload(source).display())
}

/// Makes a job of five ranks that load a library built from `source` before the MPI library.
fn with(source: &str, work: &str) -> Job {
    job(5, work).env("LD_PRELOAD", &before_mpi(source))
}

/// Makes a job of five ranks that check the threads of all calls of the MPI library (`turns.c`).
fn watched(work: &str) -> Job {
    with("tests/nonstop/turns.c", work)
}

/// The computing thread and the heartbeat thread of a rank never call the MPI library at the same time. Otherwise Open MPI mixes
/// up messages (`src/comm/turn.rs`).
#[test]
#[ignore = "needs Open MPI 5"]
fn two_threads_are_never_in_the_library_at_a_time() {
    for (work, left) in [("agree 20", "all 20 agreed"), ("rows 2 3", "left [0, 1, 3, 4] gone [2]")]
    {
        let ran = watched(work).run();
        assert!(ran.out.contains(left), "{work}: {}", ran.told());
        assert!(!ran.err.contains("two threads"), "{work}: {}", ran.told());
    }
}

/// If the MPI library returns a mixed-up result of an agreement, the result is not used and the job ends.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_garbled_answer_ends_the_job() {
    let ran = watched("agree 20").env("GARBLE", "1").run();
    assert_ne!(ran.code, Some(0), "{}", ran.told());
    let words = "the MPI library has garbled what the ranks agreed on";
    assert!(ran.err.contains(words), "{}", ran.told());
}

/// A rank whose machine was suspended finds that the other ranks have continued without it. The MPI library ends this rank; the
/// others are not disturbed.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_rank_taken_for_lost_ends_alone_when_it_wakes() {
    expect("asleep", "left [0, 1, 3, 4] gone [2]");
}

#[test]
#[ignore = "needs Open MPI 5"]
fn one_loss_after_the_other() {
    expect("ring 1 2+panels 4 0+reduce 0 5", "left [2, 3] gone [1, 4, 0]");
}

/// A message that never comes within a step does not count as arrived and is not passed on. The library may refuse to receive it
/// or let it wait.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_message_that_never_comes_has_not_arrived() {
    let ran = with("tests/nonstop/refuse.c", "refused").run();
    assert!(ran.err.contains("refused to receive"), "{}", ran.told());
    assert!(ran.out.contains("left [1, 2, 3, 4] gone [0]"), "{}", ran.told());
}

/// After a receive is given up, its buffer is not reused before the message has ended, however slow the network is.
#[test]
#[ignore = "needs Open MPI 5"]
fn messages_given_up_reach_no_buffer_in_use() {
    let network = "ip link set lo up && tc qdisc add dev lo root tbf rate 40mbit burst 128k latency 200ms && exec \"$@\"";
    let job = job(5, "slow").under(&["unshare", "-rn", "sh", "-c", network, "sh"]);
    let job = job.env("OMPI_MCA_btl", "tcp,self").env("OMPI_MCA_btl_tcp_if_include", "lo");
    // Heartbeats may be late.
    let ran = job.env("OMPI_MCA_mpi_ft_detector_timeout", "60").run();
    assert!(ran.out.contains("left [0, 1, 2, 4] gone [3]"), "{}", ran.told());
}

/// A vote does not wait for a rank that has left before its first vote.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_vote_ends_where_one_of_the_voters_has_left() {
    expect("vote 2 3/25000", "left [0, 1, 3, 4] gone [2]");
}

/// The remaining ranks continue after more losses than the 8 for which communicators are made at the start.
#[test]
#[ignore = "needs Open MPI 5"]
fn many_losses_one_after_the_other() {
    let parts: Vec<String> = (1..=10).map(|victim| format!("rows {victim} 1")).collect();
    let ran = ranks(12, &parts.join("+"));
    let left = "left [0, 11] gone [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    assert!(ran.out.contains(left), "{}", ran.told());
}

/// Two losses are found in a job with 34 ranks. One agreement of MPI has fewer bits than that, so the ranks need several to find
/// the lost ranks.
#[test]
#[ignore = "needs Open MPI 5"]
fn two_losses_of_many_ranks() {
    let ran = ranks(34, "barrier 2 3+barrier 33 3");
    assert!(ran.out.contains("left [0, 1, 3, 4, "), "{}", ran.told());
    assert!(ran.out.contains(", 31, 32] gone [2, 33]"), "{}", ran.told());
}

/// The ranks survive a loss during a split of a communicator. Open MPI crashes if a process is lost while MPI creates a
/// communicator, so `split` must not let MPI create one.
#[test]
#[ignore = "needs Open MPI 5"]
fn a_loss_amid_a_split_crashes_nobody() {
    for turn in 0..12 {
        // One rank is late for part of the split, and another rank dies meanwhile.
        let work = format!("split 2 3/100000 4/{}", 1 + 37 * turn);
        expect(&work, "left [0, 1, 3, 4] gone [2]");
    }
}

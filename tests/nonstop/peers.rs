//! Communication alone: this test program starts itself as the ranks, which lose some of their number.

use skt_hpl::comm::{Broadcast, Comm, Reduce, World};
use skt_hpl::params::Bcast;

use crate::job::{Job, Ran};
use skt_hpl::supervise::start::launcher::WITH_ULFM;

const WORK: &str = "TEST_RANKS_WORK";

/// Long enough that no message is sent before its receiver is ready.
const LONG: usize = 3 << 20;

fn ranks(count: usize, work: &str) -> Ran {
    Job::of(std::env::current_exe().unwrap(), count)
        .launcher(WITH_ULFM)
        .args(&["peers::member", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(WORK, work)
        .run()
}

/// What all are busy with when some die, by name.
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

/// One round of that.
fn step(comm: &Comm, name: &str) {
    let (me, size) = (comm.rank(), comm.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    match name {
        "reduce" => comm.all_reduce(&mut vec![1u64; 1000], Reduce::Sum),
        "barrier" => comm.barrier(),
        "gather" => drop(comm.all_gather_bytes(&vec![7; 100 * me])),
        "split" => drop(comm.split(Some(me % 2), me)),
        "broadcast" => comm.broadcast(&mut vec![0.5f64; LONG], 1),
        // Long messages to a neighbour, of which one may be gone and the other wait for somebody else.
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
        // Communicators that not all ranks are in.
        "rows" => {
            let row = comm.split(Some(me / 2), me).unwrap();
            for _ in 0..20 {
                row.all_reduce(&mut [1.0f64], Reduce::Sum);
            }
            comm.barrier();
        }
        // Somebody waits, who sends and receives nothing.
        "idle" => {
            let last = size - 1;
            if me == last {
                comm.await_word(0, 6);
                comm.recv::<u64>(&mut [], 0, 6);
            } else if me == 0 {
                std::thread::sleep(std::time::Duration::from_millis(20));
                comm.send::<u64>(&[], last, 6);
            }
        }
        // Several broadcasts at a time, as the solver has them, begun and not waited for.
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
        other => panic!("no step {other}"),
    }
}

/// `STEP VICTIM ROUND`, several with `+` between them: one after the other, each strikes those that are left by then.
#[test]
#[ignore = "what the ranks of the other tests run"]
fn member() {
    let work = std::env::var(WORK).expect("started by one of the other tests");
    let mut world = World::init(true);
    assert_eq!(world.obstacle(), None);
    let me = world.comm().rank();
    let mut gone = Vec::new();
    for part in work.split('+') {
        let words: Vec<&str> = part.split(' ').collect();
        let (victim, round): (usize, usize) =
            (words[1].parse().unwrap(), words[2].parse().unwrap());
        let ended = world.attempt(|world| {
            for i in 0..100 {
                if i == round && me == victim {
                    // SAFETY: a signal to this very process.
                    unsafe { libc::raise(libc::SIGKILL) };
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

fn expect(work: &str, ranks_left: &str) {
    let ran = ranks(5, work);
    assert!(ran.out.contains(ranks_left), "{work}: {}", ran.told());
}

#[test]
#[ignore = "needs Open MPI 5"]
fn whoever_waits_for_a_lost_peer_gets_out_of_it_and_goes_on() {
    for step in STEPS {
        for (victim, left) in [(0, "left [1, 2, 3, 4] gone [0]"), (2, "left [0, 1, 3, 4] gone [2]")]
        {
            expect(&format!("{step} {victim} 3"), left);
        }
    }
}

#[test]
#[ignore = "needs Open MPI 5"]
fn one_loss_after_the_other() {
    expect("ring 1 2+panels 4 0+reduce 0 5", "left [2, 3] gone [1, 4, 0]");
}

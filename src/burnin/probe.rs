//! Work of the ranks of a burn-in, one rank on each node, or for each device. The ranks measure in turns, and report to rank 0.
//!
//! A rank that waits for its turn sleeps, so that virtual nodes of one machine do not disturb each other by waiting. Between
//! turns all ranks synchronise by messages to rank 0. Rank 0 prints the ranks that it waits for, so a node that hangs is named.
//! While rank 0 is inside MPI, a separate thread measures how long it waits.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use xxhash_rust::xxh3::Xxh3;

use super::on_device::DeviceProbe;
use super::part::{Part, numbers, per_second};
use super::rounds::{self, machines, turns};
use super::samples::{Absent, Here, Passage, Said, Sweep, absent};
use super::verdict::WHOLE_EVERY;
use crate::base::params;
use crate::base::repeated::Repeated;
use crate::base::threads::Pool;
use crate::comm::{Comm, die, die_in_turn};
use crate::device::near::Ranks;
use crate::kernels::{Engine, Multiplication, Squares, one_library_thread_each};
use crate::shm::copying::Copying;

const MEET: i32 = 91;
const TELL: i32 = 92;
const WORD: i32 = 93;
const BLOCK: i32 = 94;

/// Width of the panels in a multiplication.
const NB: usize = 192;

/// Number of words of a message in the measurement of bandwidth. The message has 1 MiB, more than a library sends in one piece.
const BLOCK_WORDS: usize = 1 << 17;

/// Largest number of blocks in a measurement of bandwidth.
const BLOCKS_MOST: f64 = 1024.0;

/// Number of words that a thread copies: far more than its share of the caches. A thread allocates twice this number, or fewer if
/// memory is short.
const COPY_WORDS: usize = 4 << 20;

/// Time that rank 0 waits before it prints which ranks it waits for.
const TELL_AFTER: Duration = Duration::from_secs(15);

/// Number and duration of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub sweeps: usize,
    /// Number of tournament rounds in each sweep with links. A number larger than that of all rounds means all rounds.
    pub rounds: usize,
    /// Number of cores with which a node multiplies and copies; 0 means all cores.
    pub threads: usize,
    /// Duration of each measurement.
    pub slot: Duration,
    /// Device that each rank measures in place of its node.
    pub device: params::Device,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sweeps, rounds, threads, slot, device } = self;
        write!(f, "{sweeps},{rounds},{threads},{},{}", slot.as_millis(), device.name())
    }
}

/// Parses the output of `Display`, by which one process of this program passes the extent to another.
impl FromStr for Extent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (numbers, device) = text.rsplit_once(',').unwrap_or_default();
        let numbers: Vec<usize> = numbers.split(',').filter_map(|word| word.parse().ok()).collect();
        match (&numbers[..], params::Device::from_str(device, false)) {
            (&[sweeps, rounds, threads, slot_ms], Ok(device)) => {
                let slot = Duration::from_millis(slot_ms as u64);
                Ok(Self { sweeps, rounds, threads, slot, device })
            }
            _ => Err("needed are sweeps, rounds, threads, milliseconds and a device".to_owned()),
        }
    }
}

/// The rank or pair that rank 0 waits for inside MPI, and the start of the wait. A separate thread prints a long wait. It wakes
/// only for a moment in each second, so that it does not disturb the measurements.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Option<Wait>>>);

struct Wait {
    of: Absent,
    since: Instant,
    /// Duration of the wait when it was last printed; None if it was never printed.
    told: Option<Duration>,
}

impl Watch {
    /// Starts the thread that prints long waits. If the system gives no more threads, long waits are not printed.
    fn start(say: fn(&Said)) -> Self {
        let watch = Self::default();
        let looks = watch.clone();
        let _ = Repeated::start("watch", move |_| {
            if let Some(wait) = looks.look().as_mut() {
                let took = wait.since.elapsed();
                if took > wait.told.unwrap_or_default() + TELL_AFTER {
                    wait.told = Some(took);
                    say(&Said::WaitsFor { absent: vec![wait.of], seconds: took.as_secs() });
                }
            }
            Duration::from_secs(1)
        });
        watch
    }

    fn look(&self) -> MutexGuard<'_, Option<Wait>> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    /// Does `work`, during which rank 0 waits for `of`: a rank or a pair.
    fn over<T>(&self, of: Absent, say: fn(&Said), work: impl FnOnce() -> T) -> T {
        *self.look() = Some(Wait { of, since: Instant::now(), told: None });
        let done = work();
        if self.look().take().is_some_and(|wait| wait.told.is_some()) {
            say(&Said::AllCame);
        }
        done
    }
}

/// Measures on all ranks together. `here` describes this node without its engine. Rank 0 passes its reports to `say`.
pub fn run(comm: &Comm, extent: &Extent, here: Here, say: fn(&Said)) {
    let (me, nodes) = (comm.rank(), comm.size());
    let mut part = open(comm, extent.device, here.threads);
    let here = Here { engine: part.engine().to_owned(), ..here };
    let told = serde_json::to_vec(&here).expect("plain values have a JSON form");
    let read =
        |text: Vec<u8>| serde_json::from_slice(&text).expect("what a rank wrote can be read");
    let everybody: Vec<Here> = comm.all_gather_bytes(&told).into_iter().map(read).collect();
    let spoilt = crate::base::faults::spoils_product(&here.host);
    let marks: Vec<String> = everybody.iter().map(|here| here.machine.clone()).collect();
    let machine = machines(&marks);
    if me == 0 {
        say(&Said::Begun(everybody));
    }
    let all: Vec<usize> = (0..nodes).collect();
    let alone = turns(&all, |node| vec![node], &machine);
    let games = rounds::rounds(nodes);
    let watch = if me == 0 { Watch::start(say) } else { Watch::default() };
    // Pairs that measured their links in the last turn.
    let mut playing: Vec<(usize, usize)> = Vec::new();
    for number in 0..extent.sweeps {
        let mut own = Sweep::default();
        let whole = number.is_multiple_of(WHOLE_EVERY);
        for turn in &alone {
            meet(comm, &std::mem::take(&mut playing), say);
            if turn.contains(&me) {
                let (rate, product) = part.multiply(extent.slot, whole);
                own.multiply.push(rate);
                if whole {
                    own.memory.push(part.copy(extent.slot));
                    own.products.push(product ^ u64::from(spoilt));
                }
            }
        }
        let rounds = if whole { extent.rounds.min(games) } else { 0 };
        for game in 0..rounds {
            let pairs = rounds::pairs(nodes, (number / WHOLE_EVERY * rounds + game) % games);
            for turn in turns(&pairs, |(one, other)| vec![one, other], &machine) {
                meet(comm, &playing, say);
                for &(one, other) in &turn {
                    if me == one {
                        let measure = || lead(comm, other, extent.slot);
                        own.passages.extend(watch.over(Absent::Pair(one, other), say, measure));
                    } else if me == other {
                        follow(comm, one, extent.slot);
                    }
                }
                playing = turn;
            }
        }
        meet(comm, &std::mem::take(&mut playing), say);
        if let Some(sweep) = tell(comm, own, &watch, say) {
            say(&Said::Measured(sweep));
        }
    }
    meet(comm, &[], say);
}

/// Barrier: returns when all ranks have called this function. `pairs` measured their links before the call. Waiting ranks sleep.
fn meet(comm: &Comm, pairs: &[(usize, usize)], say: fn(&Said)) {
    let mut word = [0u64];
    if comm.rank() > 0 {
        comm.send(&word, 0, MEET);
        comm.await_word(0, MEET, Comm::PAUSE);
        comm.recv(&mut word, 0, MEET);
        return;
    }
    let mut missing: Vec<usize> = (1..comm.size()).collect();
    let (began, mut told) = (Instant::now(), Duration::ZERO);
    loop {
        missing.retain(|&rank| {
            let here = comm.has_word(rank, MEET);
            if here {
                comm.recv(&mut word, rank, MEET);
            }
            !here
        });
        if missing.is_empty() {
            break;
        }
        if began.elapsed() > told + TELL_AFTER {
            told = began.elapsed();
            say(&Said::WaitsFor { absent: absent(&missing, pairs), seconds: told.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if !told.is_zero() {
        say(&Said::AllCame);
    }
    for rank in 1..comm.size() {
        comm.send(&word, rank, MEET);
    }
}

/// Collects the measurements of all ranks on rank 0; returns None on all other ranks. `own` has the measurements of this rank: of
/// its node, and of the links in which it has the lower rank.
fn tell(comm: &Comm, own: Sweep, watch: &Watch, say: fn(&Said)) -> Option<Sweep> {
    if comm.rank() > 0 {
        let bytes = postcard::to_allocvec(&own).expect("plain values have a binary form");
        comm.send(&[bytes.len() as u64], 0, TELL);
        comm.send(&bytes, 0, TELL);
        return None;
    }
    let mut sweep = own;
    for rank in 1..comm.size() {
        let bytes = watch.over(Absent::Node(rank), say, || {
            let mut len = [0u64];
            comm.recv(&mut len, rank, TELL);
            let mut bytes = vec![0u8; len[0] as usize];
            comm.recv(&mut bytes, rank, TELL);
            bytes
        });
        let theirs: Sweep = postcard::from_bytes(&bytes).expect("ranks are one program");
        sweep.multiply.extend(theirs.multiply);
        sweep.memory.extend(theirs.memory);
        sweep.products.extend(theirs.products);
        sweep.passages.extend(theirs.passages);
    }
    Some(sweep)
}

/// Opens the device of this rank, or starts the threads. If that is not possible, ends the job. Collective call.
fn open(comm: &Comm, device: params::Device, threads: usize) -> Box<dyn Part> {
    let node = comm.split_by_node();
    // The ranks of a node take its devices in order.
    let ranks = Ranks { memories: vec![None; node.size()], own: node.rank() };
    match DeviceProbe::open(device, &ranks) {
        Ok(Some(device)) => Box::new(device),
        Ok(None) => Box::new(Node::new(threads)),
        Err(why) => die_in_turn(6, &why),
    }
}

/// Engine and threads with which a rank measures its node. Each measurement allocates its memory again, so the median does not
/// depend on one allocation. The physical addresses of the pages change the rate of multiplication by some per cent, and the
/// rate of copying by a tenth.
struct Node {
    engine: Engine,
    pool: Pool,
}

impl Node {
    /// Starts the threads. If the system gives no more threads, ends the job.
    fn new(threads: usize) -> Self {
        // An engine of this program is preferred: all engines of this program compute the same bits.
        let ours = Engine::possible(params::Engine::Auto).into_iter().find(|e| e.cuts_freely());
        let mut pool = Pool::try_new(threads).unwrap_or_else(|why| die(6, &why.to_string()));
        one_library_thread_each(&mut pool);
        Self { engine: ours.unwrap_or(Engine::Blas), pool }
    }
}

impl Part for Node {
    fn engine(&self) -> &str {
        self.engine.name()
    }

    fn multiply(&mut self, slot: Duration, wanted: bool) -> (f64, u64) {
        let mut number = numbers();
        let mut multiplication = Multiplication::new(
            &[self.engine],
            NB,
            Squares { down: 1, across: 1 },
            1,
            &mut self.pool,
            || (number(), number()),
        )
        .unwrap_or_else(|why| die(6, &why.to_string()));
        // The first run warms up caches and clocks, and is not timed.
        multiplication.run(self.engine, &mut self.pool);
        let mut digest = Xxh3::new();
        if wanted {
            for value in multiplication.product() {
                digest.update(&value.to_bits().to_le_bytes());
            }
        }
        let rate = per_second(slot, || {
            multiplication.run(self.engine, &mut self.pool);
            multiplication.flops()
        });
        (rate, digest.digest())
    }

    fn copy(&mut self, slot: Duration) -> f64 {
        let mut copying =
            Copying::new(COPY_WORDS, &mut self.pool).unwrap_or_else(|why| die(6, &why.to_string()));
        per_second(slot, || copying.run(&mut self.pool) as f64)
    }
}

/// Measures a link as the lower rank of a pair: latency, and bandwidth in both directions.
fn lead(comm: &Comm, peer: usize, slot: Duration) -> [Passage; 2] {
    let latency_s = ping(comm, peer, slot / 4);
    let (me, there) = (comm.rank(), stream(comm, peer, slot / 2));
    let mut bits = [0u64];
    absorb(comm, peer);
    comm.recv(&mut bits, peer, WORD);
    let passage = |from, to, bytes_per_s| Passage { from, to, latency_s, bytes_per_s };
    [passage(me, peer, there), passage(peer, me, f64::from_bits(bits[0]))]
}

/// Takes part in the measurement of a link as the higher rank of a pair.
fn follow(comm: &Comm, peer: usize, slot: Duration) {
    let mut word = [0u64];
    loop {
        comm.recv(&mut word, peer, WORD);
        if word[0] == 0 {
            break;
        }
        comm.send(&word, peer, WORD);
    }
    absorb(comm, peer);
    let back = stream(comm, peer, slot / 2);
    comm.send(&[back.to_bits()], peer, WORD);
}

/// Returns half of the median round trip time of a word, in seconds.
fn ping(comm: &Comm, peer: usize, slot: Duration) -> f64 {
    const WARM: usize = 10;
    const MOST: usize = 1000;
    let mut times = Vec::new();
    let mut word = [1u64];
    let began = Instant::now();
    while times.len() < WARM + MOST && (times.len() < WARM + 5 || began.elapsed() < slot) {
        let sent = Instant::now();
        comm.send(&word, peer, WORD);
        comm.recv(&mut word, peer, WORD);
        times.push(sent.elapsed().as_secs_f64());
    }
    comm.send(&[0u64], peer, WORD);
    crate::base::statistics::median(&times[WARM..]) / 2.0
}

/// Sends blocks to a peer that receives them with [`absorb`]. Returns the bytes per second, measured until the last block is
/// received.
fn stream(comm: &Comm, peer: usize, slot: Duration) -> f64 {
    let block = vec![1u64; BLOCK_WORDS];
    let send = |blocks: u64| -> f64 {
        comm.send(&[blocks], peer, WORD);
        let began = Instant::now();
        for _ in 0..blocks {
            comm.send(&block, peer, BLOCK);
        }
        comm.recv(&mut [0u64], peer, WORD);
        began.elapsed().as_secs_f64() / blocks as f64
    };
    // A few blocks come first, to find the number of blocks that fills the slot.
    let mut each_s = send(2);
    let fit = (slot.as_secs_f64() / each_s).min(BLOCKS_MOST) as u64;
    if fit > 2 {
        each_s = send(fit);
    }
    comm.send(&[0u64], peer, WORD);
    (BLOCK_WORDS * 8) as f64 / each_s
}

fn absorb(comm: &Comm, peer: usize) {
    let mut block = vec![0u64; BLOCK_WORDS];
    let mut blocks = [0u64];
    loop {
        comm.recv(&mut blocks, peer, WORD);
        if blocks[0] == 0 {
            return;
        }
        for _ in 0..blocks[0] {
            comm.recv(&mut block, peer, BLOCK);
        }
        comm.send(&[1u64], peer, WORD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_arrives_as_it_was_sent() {
        let slot = Duration::from_millis(80);
        let device = params::Device::Cuda;
        let extent = Extent { sweeps: 21, rounds: 3, threads: 0, slot, device };
        assert_eq!(extent.to_string().parse(), Ok(extent));
        for bad in ["21,3,x,80,none", "21,3,0,80", "21,3,0,80,gpu", ""] {
            assert!(bad.parse::<Extent>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_measures_itself_and_comes_to_the_same_product_with_any_threads() {
        let (mut one, mut two) = (Node::new(1), Node::new(2));
        let slot = Duration::from_millis(1);
        let (rate, product) = one.multiply(slot, true);
        assert!(rate > 0.0 && two.copy(slot) > 0.0);
        assert_eq!(two.multiply(slot, true).1, product);
        assert_ne!(two.multiply(slot, false).1, product, "nothing was looked at");
    }
}

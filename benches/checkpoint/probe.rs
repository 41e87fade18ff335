//! Work of one rank in the small MPI program of this benchmark. It measures saves and restores by the program's own code, and in
//! turn the same bytes copied once and sent once.
//!
//! The benchmark starts itself under the launcher with `--probe SPEC`, and rank 0 prints one line of JSON. There is no solver:
//! the matrix is noise, and only the work of saves on memory is timed.

#[path = "storage.rs"]
pub mod storage;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use skt_hpl::base::params::{Mapping, Rng};
use skt_hpl::base::threads::Pool;
use skt_hpl::checkpoint::mpi::{Group, Positions};
use skt_hpl::checkpoint::new_run;
use skt_hpl::checkpoint::plan::{Encoding, Layout, Scheme};
use skt_hpl::checkpoint::storage::DirScope;
use skt_hpl::checkpoint::when::Interval;
use skt_hpl::checkpoint::{Checkpointer, Config, Origin, SaveReport, Started, Test};
use skt_hpl::comm::{Comm, Reduce, World};
use skt_hpl::shm::{MemoryStore, Part, Region, Store};

/// Number of 64-bit words in one message of the comparison, as many as in a message of the encoder.
const MESSAGE_WORDS: usize = 32 * 1024;
const TAG: i32 = 77;

/// Measurement to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    /// Number of threads of each rank. The threads are not pinned.
    pub threads: usize,
    /// Number of ranks in a group; None for the default of the parity layout.
    pub group: Option<usize>,
    pub scheme: Scheme,
    pub encode: Encoding,
    pub work: Work,
    /// Prefix of the job names, so that two benchmarks at the same time have different jobs.
    pub job: String,
    /// DIR of level two, for [`Work::Stores`]. With one DIR per rank, these are subfolders.
    pub storage: Option<PathBuf>,
    pub dir_scope: DirScope,
}

impl Spec {
    pub fn layout(&self) -> Layout {
        let Spec { n, nb, p, q, .. } = *self;
        let grid = Layout { n, nb, p, q, mapping: Mapping::Row, dedicated: 0 };
        grid.kept_by(&self.scheme, self.group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// `rounds` saves of the whole matrix. Between the saves, the same bytes are copied, and sent.
    Saves { rounds: usize },
    /// `rounds` saves, each followed by the restore of a lost member.
    Restores { rounds: usize },
    /// `rounds` saves, each written to storage and read back. With one DIR per rank, each is also read after the loss of one DIR.
    Stores { rounds: usize },
    /// One save at every `step`-th boundary, as in a run.
    Run { step: usize },
}

/// Times of one round, in seconds. Each is that of the slowest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub save_s: f64,
    pub encode_s: f64,
    pub digest_s: f64,
    pub barrier_s: f64,
    pub flush_s: f64,
    /// Time to copy the saved part of the matrix once, row by row, to the kind of memory that contains the checkpoint copy (part
    /// B).
    pub copy_s: f64,
    /// Time to send the saved part of the matrix to the next member and receive one from the previous member.
    pub send_s: f64,
    /// Time for which helpers still work after a save, while the ranks only wait for them.
    pub left_s: f64,
    pub restore_s: f64,
    /// Time to create as much memory as a lost member needs, under another name. This part of a restore depends on the system
    /// alone.
    pub fresh_s: f64,
    /// Time of a save to storage, including the manifest.
    pub store_s: f64,
    /// Time in which dd writes the same bytes.
    pub dd_write_s: f64,
    /// Time in which dd reads the files once.
    pub dd_read_s: f64,
    /// Time to resume from storage after one rank's DIR is lost.
    pub bereft_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Bytes of the largest local matrix, including padding.
    pub matrix_bytes: u64,
    /// Bytes of the local matrices of all ranks together, including padding.
    pub matrices_bytes: u64,
    /// Persistent shared memory of all positions in bytes, by part, as the system reports it.
    pub parts: BTreeMap<String, u64>,
    /// Duration of the first save of a test in seconds. Only this save touches the pages of the checkpoint for the first time.
    pub first_save_s: f64,
    pub rounds: Vec<Round>,
    /// Bytes of the matrix that all ranks copied in all saves of a run.
    pub saved_bytes: u64,
    /// Seconds of each save of a run, in order.
    pub series_s: Vec<f64>,
    /// Bytes of a checkpoint on storage.
    pub stored_bytes: u64,
}

/// Makes the measurement. All ranks call this together; rank 0 prints the result.
pub fn run(spec: &Spec) -> Result<(), String> {
    let world = match spec.encode.by_helper() {
        true => World::with_helpers(),
        false => World::init(false),
    };
    if spec.encode.by_helper() && !world.lets_helpers_talk() {
        return Err("this MPI library does not let helpers call it".into());
    }
    let comm = world.comm();
    let found = Probe::new(spec, comm)?.measure()?;
    if comm.rank() == 0 {
        println!("{}", serde_json::to_string(&found).map_err(|e| e.to_string())?);
    }
    Ok(())
}

struct Probe<'a> {
    spec: &'a Spec,
    pool: RefCell<Pool>,
    comm: &'a Comm,
    memory_store: MemoryStore,
    layout: Layout,
    ld: usize,
    run: u128,
}

type Protected = Started<Positions, Group>;

impl<'a> Probe<'a> {
    fn new(spec: &'a Spec, comm: &'a Comm) -> Result<Self, String> {
        let layout = spec.layout();
        let memory_store = MemoryStore::new(Store::Posix, &spec.job).map_err(|e| e.to_string())?;
        let ld = layout.shape(comm.rank()).1.next_multiple_of(8);
        let pool = RefCell::new(Pool::new(spec.threads));
        Ok(Self { spec, pool, comm, memory_store, layout, ld, run: new_run() })
    }

    fn start(&self) -> Result<Protected, String> {
        let rank = self.comm.rank();
        let config = Config {
            memory_store: self.memory_store.clone(),
            scheme: self.spec.scheme,
            group: self.spec.group,
            encode: self.spec.encode,
            interval: Interval::Iterations(1),
            must_resume: false,
            goes_on: false,
            state_bytes: 1024,
            ld: self.ld,
            run: self.run,
            // Each rank counts as a node.
            storage: self.level2()?,
            domain: format!("node {rank}"),
            node: format!("node {rank}"),
            leader: rank,
            device: None,
        };
        let test = Test { index: 0, layout: self.layout, rng: Rng::Hpl, seed: 1, params_digest: 0 };
        let everybody = self.comm.split(Some(0), rank).expect("everybody is in the world");
        let (world, pool) = (Positions::new(everybody), &mut *self.pool.borrow_mut());
        Checkpointer::start(config, test, world, pool, |world, number, place, _| {
            Group::split(world, number, place)
        })
        .map_err(|e| e.to_string())
    }

    /// Returns the largest value of `seconds` over all ranks.
    fn slowest(&self, seconds: f64) -> f64 {
        let mut seconds = [seconds];
        self.comm.all_reduce(&mut seconds, Reduce::Max);
        seconds[0]
    }

    fn total(&self, bytes: u64) -> u64 {
        let mut bytes = [bytes];
        self.comm.all_reduce(&mut bytes, Reduce::Sum);
        bytes[0]
    }

    fn timed(&self, act: impl FnOnce()) -> f64 {
        self.comm.barrier();
        let begin = Instant::now();
        act();
        self.slowest(begin.elapsed().as_secs_f64())
    }

    fn measure(&self) -> Result<Found, String> {
        let (rows, _) = self.layout.shape(self.comm.rank());
        let bytes = rows * self.ld * 8;
        let mut started = self.start()?;
        if started.origin != Origin::Fresh {
            return Err(format!("there is memory of a job {:?} already", self.spec.job));
        }
        // Noise of the same magnitude as a generated matrix.
        let mut state = 0x9e37_79b9_7f4a_7c15 ^ self.comm.rank() as u64;
        for x in started.a.as_slice_f64_mut() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *x = state as i64 as f64 / 2f64.powi(64);
        }
        let mut found = Found {
            matrix_bytes: self.slowest(bytes as f64) as u64,
            matrices_bytes: self.total(bytes as u64),
            ..Found::default()
        };
        for part in Part::ALL {
            let held = self.memory_store.list();
            let mine =
                held.iter().find(|h| h.part == part && h.position as usize == self.comm.rank());
            let bytes = self.total(mine.map_or(0, |h| h.bytes));
            if bytes > 0 {
                found.parts.insert(part.name().to_owned(), bytes);
            }
        }
        let started = match self.spec.work {
            Work::Saves { rounds } => {
                self.saves(&mut started, &mut found, rounds)?;
                started
            }
            Work::Restores { rounds } => {
                found.first_save_s = self.save(&mut started, 0).save_s;
                self.restores(started, &mut found, rounds)?
            }
            Work::Stores { rounds } => self.stores(started, &mut found, rounds)?,
            Work::Run { step } => {
                for boundary in (0..self.layout.blocks()).step_by(step) {
                    let (report, round) = self.save_reported(&mut started, boundary);
                    found.saved_bytes += self.total(report.bytes as u64);
                    found.series_s.push(round.save_s);
                }
                started
            }
        };
        started.checkpointer.finish();
        if self.memory_store.unlink(self.comm.rank() as u32, Part::Done) {
            Ok(found)
        } else {
            Err("the memory of results was gone before its time".into())
        }
    }

    fn save(&self, started: &mut Protected, boundary: usize) -> Round {
        self.save_reported(started, boundary).1
    }

    fn save_reported(&self, started: &mut Protected, boundary: usize) -> (SaveReport, Round) {
        let a = started.a.as_slice_f64_mut();
        let mut report = SaveReport::default();
        let pool = &mut *self.pool.borrow_mut();
        let save_s = self.timed(|| {
            report = started.checkpointer.save(boundary, a, b"state of the probe", pool);
        });
        let left_s = self.timed(|| started.checkpointer.finish_save());
        let round = Round {
            save_s,
            left_s,
            encode_s: self.slowest(report.encode_s),
            digest_s: self.slowest(report.digest_s),
            barrier_s: self.slowest(report.barrier_s),
            flush_s: self.slowest(report.copy_s),
            ..Round::default()
        };
        (report, round)
    }

    fn saves(
        &self,
        started: &mut Protected,
        found: &mut Found,
        rounds: usize,
    ) -> Result<(), String> {
        let members = started.checkpointer.members();
        let me = members.iter().position(|&m| m == self.comm.rank()).expect("in its own group");
        let next = members[(me + 1) % members.len()];
        let before = members[(me + members.len() - 1) % members.len()];
        let (rows, cols) = self.layout.shape(self.comm.rank());
        // Each rank sends as much as the rank with the largest matrix, so that every message has a partner.
        let words = found.matrix_bytes as usize / 8;
        // Memory of the same kind as B, under another name.
        let other = MemoryStore::new(Store::Posix, &format!("{}-other", self.spec.job)).and_then(
            |memory_store| {
                Ok((
                    memory_store.create(self.comm.rank() as u32, Part::B, words * 8)?,
                    memory_store,
                ))
            },
        );
        let (mut copy, memory_store): (Region, MemoryStore) = other.map_err(|e| e.to_string())?;
        // The name is removed; the memory exists as long as it is mapped.
        memory_store.unlink(self.comm.rank() as u32, Part::B);
        let copy = copy.words_mut();
        copy.fill(1);
        found.first_save_s = self.save(started, 0).save_s;
        let spare = vec![1; if rows == 0 { words } else { 0 }];
        // The first round warms the machine up.
        for round in 0..=rounds {
            let mut this = self.save(started, 0);
            let a = started.a.words();
            this.copy_s = self.timed(|| {
                for row in 0..rows {
                    let range = row * self.ld..row * self.ld + cols;
                    copy[range.clone()].copy_from_slice(&a[range]);
                }
            });
            // A rank without a part of the matrix sends as much as the others.
            let a = if rows == 0 { &spare[..] } else { a };
            this.send_s = self.timed(|| {
                for start in (0..words).step_by(MESSAGE_WORDS) {
                    let end = (start + MESSAGE_WORDS).min(words);
                    // A rank with a smaller matrix sends the end of its matrix again.
                    let late = end.min(a.len());
                    let out = &a[late - (end - start)..late];
                    self.comm.exchange(
                        Some((out, next)),
                        Some((&mut copy[start..end], before)),
                        TAG,
                    );
                }
            });
            if round > 0 {
                found.rounds.push(this);
            }
        }
        Ok(())
    }

    fn restores(
        &self,
        mut started: Protected,
        found: &mut Found,
        rounds: usize,
    ) -> Result<Protected, String> {
        for round in 0..=rounds {
            let mut this = self.save(&mut started, 0);
            let lost = round % self.comm.size();
            let before = started.a.words().first().copied();
            drop(started);
            if self.comm.rank() == lost {
                self.memory_store.unlink_position(lost as u32);
            }
            self.comm.barrier();
            let mut again = None;
            this.restore_s = self.timed(|| again = Some(self.start()));
            started = again.expect("timed() calls it")?;
            match &started.origin {
                Origin::Restored(r) if r.rebuilt == [lost] => {}
                other => {
                    return Err(format!("position {lost} was lost, but came back as {other:?}"));
                }
            }
            if self.spec.scheme.code.exact() && started.a.words().first().copied() != before {
                return Err(format!("position {lost} was not rebuilt as it was"));
            }
            this.fresh_s = self.fresh(lost)?;
            if round > 0 {
                found.rounds.push(this);
            }
        }
        Ok(started)
    }

    /// Creates and drops as much persistent shared memory as `position` has. Returns the duration in seconds.
    fn fresh(&self, position: usize) -> Result<f64, String> {
        self.fresh_where(|other| other == position)
    }

    /// Creates and drops as much persistent shared memory as each position has, on all ranks at once. Returns the duration in
    /// seconds.
    fn fresh_everywhere(&self) -> Result<f64, String> {
        self.fresh_where(|_| true)
    }

    fn fresh_where(&self, wanted: impl Fn(usize) -> bool) -> Result<f64, String> {
        let position = self.comm.rank();
        let other = MemoryStore::new(Store::Posix, &format!("{}-other", self.spec.job))
            .map_err(|e| e.to_string())?;
        let mine = wanted(position);
        let held = self.memory_store.list();
        let parts = held.iter().filter(|h| {
            mine && h.position as usize == position && !matches!(h.part, Part::Head | Part::Done)
        });
        let mut made = Vec::new();
        let seconds = self.timed(|| {
            for part in parts {
                let region = other.create(position as u32, part.part, part.bytes as usize);
                other.unlink(position as u32, part.part);
                made.push(region);
            }
        });
        made.into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        Ok(seconds)
    }
}

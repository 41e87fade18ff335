//! Work of one rank in the small MPI program of this benchmark: saves and restores by the
//! program's own code, and in turn the same bytes copied once and sent on once.
//!
//! The benchmark starts itself under the launcher with `--probe SPEC`; rank 0 prints one line of JSON.
//! There is no solver here: the matrix is noise, and what is timed is what a save does to memory.

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

/// Words in one message of the reference: as many as in one of the encoder's.
const MESSAGE_WORDS: usize = 32 * 1024;
const TAG: i32 = 77;

/// Measurement to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    /// Of each rank, pinned to none.
    pub threads: usize,
    /// None: as the layout has them.
    pub group: Option<usize>,
    pub scheme: Scheme,
    pub encode: Encoding,
    pub work: Work,
    /// Job names begin with this: two benchmarks at once do not meet.
    pub job: String,
    /// The folder of the second level, for [`Work::Stores`]; or in it one of each rank's own.
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
    /// Saves of everything, each between the same bytes copied and the same bytes sent.
    Saves { rounds: usize },
    /// The same number of saves, and restores of one lost member.
    Restores { rounds: usize },
    /// The same number of saves that go to storage, and come back from there; where each rank has a folder of its own, also
    /// without one of them.
    Stores { rounds: usize },
    /// One save at every `step`-th boundary, as in a run.
    Run { step: usize },
}

/// One turn. Seconds, each the slowest rank's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub save_s: f64,
    pub encode_s: f64,
    pub digest_s: f64,
    pub barrier_s: f64,
    pub flush_s: f64,
    /// The rectangle copied once, row by row, to memory of the kind B is made of.
    pub copy_s: f64,
    /// The rectangle sent to the next member and received from the one before.
    pub send_s: f64,
    /// Time for which helpers work on after a save, while the ranks only wait for them.
    pub left_s: f64,
    pub restore_s: f64,
    /// Fresh memory of the size the lost member needs, made under another name: a part of restoring
    /// that is the system's alone.
    pub fresh_s: f64,
    /// A save to storage, manifest included; the same bytes by dd; the files read once by dd.
    pub store_s: f64,
    pub dd_write_s: f64,
    pub dd_read_s: f64,
    /// Coming back from storage without one rank's folder.
    pub bereft_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Bytes of the largest local matrix, padding included.
    pub matrix_bytes: u64,
    /// The same of all ranks together.
    pub matrices_bytes: u64,
    /// Named memory of all positions by part, as the system tells it.
    pub parts: BTreeMap<String, u64>,
    /// The first save of a test, before any other memory was touched.
    pub first_save_s: f64,
    pub rounds: Vec<Round>,
    /// Bytes of the matrix that all ranks copied, over all saves of a run.
    pub saved_bytes: u64,
    /// Seconds of each save of a run.
    pub series_s: Vec<f64>,
    /// Bytes of a checkpoint on storage.
    pub stored_bytes: u64,
}

/// Runs on every rank.
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
            // Every rank stands for a node.
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

    /// The slowest rank's.
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
        // Like the generator of a test: noise, of the size random matrices have.
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
        // Everybody sends as much as the largest has: so all messages have a partner.
        let words = found.matrix_bytes as usize / 8;
        // Memory of B's kind, under a name of its own.
        let other = MemoryStore::new(Store::Posix, &format!("{}-other", self.spec.job)).and_then(
            |memory_store| {
                Ok((
                    memory_store.create(self.comm.rank() as u32, Part::B, words * 8)?,
                    memory_store,
                ))
            },
        );
        let (mut copy, memory_store): (Region, MemoryStore) = other.map_err(|e| e.to_string())?;
        // The name is not needed any more; the memory stays while it is mapped.
        memory_store.unlink(self.comm.rank() as u32, Part::B);
        let copy = copy.words_mut();
        copy.fill(1);
        found.first_save_s = self.save(started, 0).save_s;
        let spare = vec![1; if rows == 0 { words } else { 0 }];
        // One turn to warm up.
        for round in 0..=rounds {
            let mut this = self.save(started, 0);
            let a = started.a.words();
            this.copy_s = self.timed(|| {
                for row in 0..rows {
                    let range = row * self.ld..row * self.ld + cols;
                    copy[range.clone()].copy_from_slice(&a[range]);
                }
            });
            // A rank without a matrix sends as much as the others.
            let a = if rows == 0 { &spare[..] } else { a };
            this.send_s = self.timed(|| {
                for start in (0..words).step_by(MESSAGE_WORDS) {
                    let end = (start + MESSAGE_WORDS).min(words);
                    // A rank with less sends the last of what it has again.
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

    /// Makes, and throws away, as much named memory as the position has; seconds.
    fn fresh(&self, position: usize) -> Result<f64, String> {
        self.fresh_where(|other| other == position)
    }

    /// The same at all positions at once.
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

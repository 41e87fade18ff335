//! Measures writing a checkpoint to storage and reading it back. In turn with this, dd writes and reads the same bytes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skt_hpl::checkpoint::Origin;
use skt_hpl::checkpoint::level2::Storage;
use skt_hpl::checkpoint::new_run;
use skt_hpl::checkpoint::plan::Helpers;
use skt_hpl::checkpoint::storage::choice::Inventory;
use skt_hpl::checkpoint::storage::writing::Flow;
use skt_hpl::checkpoint::storage::{About, CheckpointDir, DirScope};
use skt_hpl::checkpoint::when::Interval;
use skt_hpl::shm::Part;

use super::{Found, Probe, Protected};

impl Probe<'_> {
    /// Returns the checkpoint directory of this rank, in the shared DIR or in a DIR of its own. None without level two.
    fn checkpoint_dir(&self) -> Option<CheckpointDir> {
        let dir = self.spec.storage.as_ref()?;
        let rank = self.comm.rank();
        Some(match self.spec.dir_scope {
            DirScope::Shared => CheckpointDir::new(dir, &self.spec.job),
            DirScope::Node => {
                CheckpointDir::new(&dir.join(format!("{}.{rank}", self.spec.job)), &self.spec.job)
            }
        })
    }

    /// Returns the settings of level two for a start of the protection; None without level two.
    pub(super) fn level2(&self) -> Result<Option<Storage>, String> {
        let Some(checkpoint_dir) = self.checkpoint_dir() else { return Ok(None) };
        let rank = self.comm.rank();
        let dir_scope = self.spec.dir_scope;
        if dir_scope == DirScope::Node {
            std::fs::create_dir_all(checkpoint_dir.dir()).map_err(|e| e.to_string())?;
        }
        if rank == 0 || dir_scope == DirScope::Node {
            checkpoint_dir.prepare("bench")?;
        }
        self.comm.barrier();
        let inventory = self.inventory(&checkpoint_dir)?;
        Ok(Some(Storage {
            dir_scope,
            dir_id: if dir_scope == DirScope::Node { rank as u64 } else { 0 },
            every: Interval::Seconds(1e9),
            helpers: Helpers::Threads,
            arithmetic: "none: the matrix is noise".into(),
            stored: inventory.for_test(0, 0),
            whole: inventory.whole.clone(),
            results: None,
            fresh_run: new_run().max(inventory.latest_run().unwrap_or(0) + 1),
            in_place: false,
            read_only: false,
            damaged: inventory.damaged,
            checkpoint_dir,
        }))
    }

    /// Returns the inventory of checkpoints on storage. It is the same on every rank.
    fn inventory(&self, checkpoint_dir: &CheckpointDir) -> Result<Inventory, String> {
        let mine = checkpoint_dir.survey()?;
        if self.spec.dir_scope == DirScope::Shared {
            return Ok(mine);
        }
        let bytes = serde_json::to_vec(&mine).map_err(|e| e.to_string())?;
        let all = self.comm.all_gather_bytes(&bytes);
        let told = |(rank, bytes): (usize, &Vec<u8>)| {
            Ok((rank.to_string(), serde_json::from_slice(bytes).map_err(|e| e.to_string())?))
        };
        let stocks: Result<Vec<_>, String> = all.iter().enumerate().map(told).collect();
        Ok(Inventory::merged(stocks?, None))
    }

    /// Measures saves that are written to storage and, after all memory is removed, read from there. Stores the times in `found`.
    pub(super) fn stores(
        &self,
        mut started: Protected,
        found: &mut Found,
        rounds: usize,
    ) -> Result<Protected, String> {
        let rank = self.comm.rank();
        let dir = self.spec.storage.as_deref().ok_or("a folder is needed")?;
        for round in 0..=rounds {
            // At the first boundary, a save contains the whole matrix.
            let mut this = self.save(&mut started, 0);
            this.store_s = self.timed(|| {
                started.checkpointer.store_now();
            });
            let (mine, bytes) = self.file()?;
            found.stored_bytes = self.total(bytes);
            // dd writes the same bytes from the same kind of memory, one dd for each rank, as each rank has a helper.
            let memory_store = &self.memory_store;
            let copy = dir.join(format!("dd.{rank}"));
            let mut copied = Ok(());
            let parts: &[Part] = match self.spec.dir_scope {
                DirScope::Shared => &[Part::B],
                DirScope::Node => &[Part::B, Part::C],
            };
            this.dd_write_s = self.timed(|| {
                copied = parts.iter().try_for_each(|part| {
                    let source =
                        PathBuf::from("/dev/shm").join(memory_store.name(rank as u32, *part));
                    dd(&source, &copy, &["oflag=direct", "conv=fsync"])
                });
            });
            let _ = std::fs::remove_file(&copy);
            copied?;

            (started, this.restore_s) = self.comes_back(started)?;
            let null = Path::new("/dev/null");
            let mut read = Ok(());
            this.dd_read_s = self.timed(|| read = dd(&mine, null, &["iflag=direct"]));
            read?;
            if self.spec.dir_scope == DirScope::Node {
                if rank == round % self.comm.size() {
                    let own = self.checkpoint_dir().expect("there is a folder");
                    std::fs::remove_dir_all(own.dir()).map_err(|e| e.to_string())?;
                }
                (started, this.bereft_s) = self.comes_back(started)?;
            }
            this.fresh_s = self.fresh_everywhere()?;
            if round > 0 {
                found.rounds.push(this);
            }
        }
        self.comm.barrier();
        let checkpoint_dir = self.checkpoint_dir().expect("there is a folder");
        if rank == 0 || self.spec.dir_scope == DirScope::Node {
            checkpoint_dir.clean(&Flow::default())?;
        }
        if self.spec.dir_scope == DirScope::Node {
            std::fs::remove_dir(checkpoint_dir.dir()).map_err(|e| e.to_string())?;
        }
        Ok(started)
    }

    /// Removes all memory and starts again, which must resume from storage. Returns the protected matrix of the new start, and
    /// the duration of the start in seconds.
    fn comes_back(&self, started: Protected) -> Result<(Protected, f64), String> {
        let rank = self.comm.rank();
        let before = started.a.words().first().copied();
        drop(started);
        self.memory_store.unlink_position(rank as u32);
        self.comm.barrier();
        let mut again = None;
        let seconds = self.timed(|| again = Some(self.start()));
        let started = again.expect("timed() calls it")?;
        match &started.origin {
            Origin::Restored(r) if r.fetched.is_some() => {}
            other => return Err(format!("it came back from elsewhere: {other:?}")),
        }
        if started.a.words().first().copied() != before {
            return Err(format!("position {rank} did not come back as it was"));
        }
        Ok((started, seconds))
    }

    /// Returns the path of this position's file in the complete checkpoint, and its size in bytes.
    fn file(&self) -> Result<(PathBuf, u64), String> {
        let checkpoint_dir = self.checkpoint_dir().expect("there is a folder");
        let inventory = self.inventory(&checkpoint_dir)?;
        let about = inventory.for_test(0, 0).into_iter().next().ok_or("nothing got to storage")?;
        let position = self.comm.rank() as u32;
        let manifest = checkpoint_dir.manifest(about.key())?.ok_or("the manifest is gone")?;
        let file = manifest.files.iter().find(|file| file.position == position);
        let file = file.ok_or("the manifest does not list this position's file")?;
        Ok((checkpoint_dir.position(about.key(), position), file.bytes))
    }
}

pub fn dd(from: &Path, to: &Path, how: &[&str]) -> Result<(), String> {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    command.args(["bs=8M", "status=none"]).args(how).stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

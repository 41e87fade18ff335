//! The second level: a checkpoint to storage and back, and beside each, in turn, what the device itself takes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skt_hpl::checkpoint::Origin;
use skt_hpl::checkpoint::level2::Storage;
use skt_hpl::checkpoint::restore::new_run;
use skt_hpl::checkpoint::when::Interval;
use skt_hpl::memory::Part;
use skt_hpl::storage::{Shelf, Sight};

use super::{Found, Probe, Protected};

impl Probe<'_> {
    fn shelf(&self) -> Option<Shelf> {
        self.spec.storage.as_ref().map(|dir| Shelf::new(dir, &self.spec.job))
    }

    /// What a start is told of the second level.
    pub(super) fn level2(&self) -> Result<Option<Storage>, String> {
        let Some(shelf) = self.shelf() else { return Ok(None) };
        if self.comm.rank() == 0 {
            shelf.prepare("bench")?;
        }
        self.comm.barrier();
        let stock = shelf.survey()?;
        Ok(Some(Storage {
            sight: Sight::Shared,
            seat: 0,
            every: Interval::Seconds(1e9),
            arithmetic: "none: the matrix is noise".into(),
            stored: stock.for_test(0, 0),
            fresh_run: new_run().max(stock.latest_run().unwrap_or(0) + 1),
            in_place: false,
            damaged: stock.damaged,
            shelf,
        }))
    }

    /// Saves that go to storage and, all memory gone, come back from there.
    pub(super) fn stores(
        &self,
        mut started: Protected,
        found: &mut Found,
        rounds: usize,
    ) -> Result<Protected, String> {
        let rank = self.comm.rank();
        let dir = self.spec.storage.as_deref().ok_or("a folder is needed")?;
        for round in 0..=rounds {
            // At the first boundary: what is saved is all of it.
            let mut this = self.save(&mut started, 0);
            this.store_s = self.timed(|| {
                started.checkpointer.store_now();
            });
            let files = self.files()?;
            found.stored_bytes = files.iter().map(|(_, bytes)| bytes).sum();
            // The same bytes, of the same kind of memory, by dd: one for each rank, as the helpers are.
            let depot = &self.depot;
            let source = PathBuf::from("/dev/shm").join(depot.name(rank as u32, Part::B));
            let copy = dir.join(format!("dd.{rank}"));
            let mut copied = Ok(());
            this.dd_write_s =
                self.timed(|| copied = dd(&source, &copy, &["oflag=direct", "conv=fsync"]));
            let _ = std::fs::remove_file(&copy);
            copied?;

            let before = started.a.words().first().copied();
            drop(started);
            self.depot.unlink_position(rank as u32);
            self.comm.barrier();
            let mut again = None;
            this.restore_s = self.timed(|| again = Some(self.start()));
            started = again.expect("timed() calls it")?;
            match &started.origin {
                Origin::Restored(r) if r.fetched => {}
                other => return Err(format!("it came back from elsewhere: {other:?}")),
            }
            if started.a.words().first().copied() != before {
                return Err(format!("position {rank} did not come back as it was"));
            }
            let (mine, _) = &files[rank];
            let null = Path::new("/dev/null");
            let mut read = Ok(());
            this.dd_read_s = self.timed(|| read = dd(mine, null, &["iflag=direct"]));
            read?;
            this.fresh_s = self.fresh_everywhere()?;
            if round > 0 {
                found.rounds.push(this);
            }
        }
        self.comm.barrier();
        if rank == 0 {
            self.shelf().expect("there is a folder").clean()?;
        }
        Ok(started)
    }

    /// Files of the epoch that is whole, by position, with their bytes.
    fn files(&self) -> Result<Vec<(PathBuf, u64)>, String> {
        let shelf = self.shelf().expect("there is a folder");
        let stock = shelf.survey()?;
        let about = stock.for_test(0, 0).into_iter().next().ok_or("nothing got to storage")?;
        let manifest = shelf.manifest(about.key())?.ok_or("the manifest is gone")?;
        let file =
            |f: &skt_hpl::storage::record::File| (shelf.position(about.key(), f.position), f.bytes);
        Ok(manifest.files.iter().map(file).collect())
    }
}

fn dd(from: &Path, to: &Path, how: &[&str]) -> Result<(), String> {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    command.args(["bs=8M", "status=none"]).args(how).stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

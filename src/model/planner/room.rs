//! Store of a planned run's persistent shared memory, and the room for it on a node.
//!
//! The size of the file system /dev/shm limits what it can hold, however much memory is free. By default it is half of the
//! memory, and in many containers 64 MiB. System V shared memory is not limited by default. So a plan uses /dev/shm while it has
//! room, and System V memory otherwise. A plan without room in either is refused. `evaluate` checks the room before it chooses N,
//! and `plan` warns.

use super::super::error::Result;
use super::choice::Choice;
use super::evaluate::Plan;
use super::inputs::NamedRoom;
use super::machine::Machine;
use crate::base::units::show_bytes;
use crate::shm::Store;

/// Bytes that MPI may take in /dev/shm for each rank: Open MPI 4 takes 4 MiB for messages to ranks on the node, and little else.
const MPI_BYTES: f64 = 16.0 * 1_048_576.0;

impl Machine<'_> {
    /// Bytes of persistent shared memory that the ranks of a node take at order `n`.
    pub(super) fn named(&self, n: u64, choice: &Choice) -> Result<f64> {
        if !choice.method.saves() {
            return Ok(0.0);
        }
        Ok(self.rank(n, choice)?.named() * self.inputs.ranks_per_node as f64)
    }

    /// Bytes of /dev/shm that the files of MPI leave to the ranks of a node.
    fn posix_room(&self) -> Option<f64> {
        let mpi = MPI_BYTES * self.inputs.ranks_per_node as f64;
        self.inputs.named.posix.map(|room| (room - mpi).max(0.0))
    }

    /// Whether a store has room for `named` bytes.
    pub(super) fn has_place(&self, named: f64) -> bool {
        let NamedRoom { sysv, .. } = self.inputs.named;
        [self.posix_room(), sysv].into_iter().any(|room| room.is_none_or(|room| named <= room))
    }

    /// Returns the store with room for `named` bytes; /dev/shm if both have room.
    pub(super) fn store(&self, named: f64) -> Store {
        match self.posix_room() {
            Some(room) if named > room && self.has_place(named) => Store::SysV,
            _ => Store::Posix,
        }
    }

    /// Text for an error about too little room: the room, and the ways to enlarge it.
    pub(super) fn more_room(&self) -> String {
        let NamedRoom { posix, sysv } = self.inputs.named;
        let room = |bytes: Option<f64>| show_bytes(bytes.unwrap_or(0.0));
        format!(
            "/dev/shm has room for {}, and System V shared memory for {} (kernel.shmmax, kernel.shmall): enlarge /dev/shm (mount -o \
             remount,size=95% /dev/shm; in a container, --shm-size), or remove old shared memory, which `skt-hpl status` lists",
            room(posix),
            room(sysv)
        )
    }

    /// Returns a warning if the persistent shared memory of a plan limits N or needs a different store.
    pub(super) fn warning_of_room(&self, plan: &Plan, choice: &Choice) -> Result<Option<String>> {
        let named = self.named(plan.shape.n, choice)?;
        let Some(shm) = self.inputs.named.posix else {
            return Ok((named > 0.5 * self.inputs.memory).then(|| {
                format!(
                    "{} of shared memory is more than half of a node's memory, the usual limit of /dev/shm: raise the limit \
                     (mount -o remount,size=95% /dev/shm), or state its size (--shm)",
                    show_bytes(named)
                )
            }));
        };
        let larger = plan.shape.n + 2 * plan.shape.nb;
        if self.inputs.n.is_none()
            && self.fits_memory(larger, choice)?
            && !self.has_place(self.named(larger, choice)?)
        {
            return Ok(Some(format!(
                "a node has free memory for a larger N, but {}",
                self.more_room()
            )));
        }
        Ok((plan.store == Store::SysV).then(|| {
            format!(
                "/dev/shm has no room for {} of shared memory a node, only for {}: the plan's skt.toml selects System V shared memory \
                 (store = \"sysv\"), which /dev/shm does not limit",
                show_bytes(named),
                show_bytes(shm)
            )
        }))
    }
}

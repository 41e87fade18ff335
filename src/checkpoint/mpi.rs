//! Implementation of `World` and `GroupComm` over MPI, for ranks that save checkpoints.

use std::borrow::Borrow;

use super::World;
use crate::comm::{Comm, Reduce};
use crate::parity::GroupComm;

const TAG: i32 = 8;
/// Tag of messages to dedicated positions, which sleep until a message arrives.
const WORD: i32 = 9;

/// All positions of a test: a communicator whose ranks are ordered by position.
pub struct Positions {
    all: Comm,
    /// Number of positions that compute, and on these positions their communicator. None if all positions compute.
    working: Option<(usize, Option<Comm>)>,
}

impl Positions {
    pub fn new(all: Comm) -> Self {
        Self { all, working: None }
    }

    /// Makes a world whose first `working` positions compute. These positions forward rank 0's broadcasts to the other positions,
    /// which sleep until a message arrives.
    pub fn waited_on(all: Comm, working: usize) -> Self {
        let colour = (all.rank() < working).then_some(0);
        let among = all.split(colour, all.rank());
        Self { all, working: Some((working, among)) }
    }
}

impl World for Positions {
    fn attend(&self) {
        self.all.attend();
    }

    fn rank(&self) -> usize {
        self.all.rank()
    }

    fn size(&self) -> usize {
        self.all.size()
    }

    fn barrier(&self) {
        self.all.barrier();
    }

    fn allgather(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        self.all.all_gather_bytes(mine)
    }

    fn first_says(&self, value: u64) -> u64 {
        let mut value = [value];
        let me = self.all.rank();
        match &self.working {
            None => self.all.broadcast(&mut value, 0),
            Some((working, Some(among))) => {
                among.broadcast(&mut value, 0);
                for waiting in (working + me..self.all.size()).step_by(*working) {
                    self.all.send(&value, waiting, WORD);
                }
            }
            Some((working, None)) => {
                let from = (me - working) % working;
                self.all.await_word(from, WORD, Comm::PAUSE);
                self.all.recv(&mut value, from, WORD);
            }
        }
        value[0]
    }

    fn least(&self, mine: &[u64]) -> Vec<u64> {
        let mut least = mine.to_vec();
        self.all.all_reduce(&mut least, Reduce::Min);
        least
    }

    fn tell(&self, bytes: &[u8], teller: usize) -> Vec<u8> {
        let mut told = bytes.to_vec();
        self.all.broadcast_bytes(&mut told, teller);
        told
    }

    fn send(&self, words: &[u64], to: usize) {
        self.all.send(words, to, TAG);
    }

    fn receive(&self, words: &mut [u64], from: usize) {
        self.all.recv(words, from, TAG);
    }
}

/// Communication of one group, with ranks in member order. A helper has a `Group` of its own, with the same communicator used
/// from the helper's thread.
pub struct Group<C = Comm>(C);

impl Group {
    /// Creates the communicator of group `number`, in which this rank has the index `place`. Collective call of all positions.
    pub fn split(world: &Positions, number: usize, place: usize) -> Self {
        Self(world.all.split(Some(number), place).expect("every position is in a group"))
    }
}

impl<C: Borrow<Comm>> Group<C> {
    fn comm(&self) -> &Comm {
        self.0.borrow()
    }
}

impl<C: Borrow<Comm>> GroupComm for Group<C> {
    fn rank(&self) -> usize {
        self.comm().rank()
    }

    fn size(&self) -> usize {
        self.comm().size()
    }

    fn sendrecv_while(
        &self,
        send: Option<(&[u64], usize)>,
        recv: Option<(&mut [u64], usize)>,
        work: &mut dyn FnMut(),
    ) {
        self.comm().exchange_while(send, recv, TAG, work);
    }

    fn reduce_xor(&self, buffer: &mut [u64], root: usize) {
        reduce(self.comm(), buffer, root, Reduce::Xor);
    }

    fn reduce_sum(&self, buffer: &mut [f64], root: usize) {
        reduce(self.comm(), buffer, root, Reduce::Sum);
    }

    fn for_helper(&self) -> Option<Box<dyn GroupComm + Send>> {
        Some(Box::new(Group(self.comm().elsewhere()?)))
    }
}

fn reduce<T: crate::comm::Wire>(comm: &Comm, buffer: &mut [T], root: usize, op: Reduce) {
    let mut result = Vec::new();
    if comm.rank() == root {
        result.resize(buffer.len(), T::default());
    }
    comm.reduce(buffer, &mut result, root, op);
    if comm.rank() == root {
        buffer.copy_from_slice(&result);
    }
}

//! Collectives made of single messages, for runs that survive a lost rank.
//!
//! A collective of the library that fails abandons its messages while their buffers are still in use. A later error then ends the
//! process (seen with Open MPI 5.0.11). So within an attempt, the library only transmits single messages. This program waits for
//! each message until it ends, successfully or not. The number of rounds of a collective grows with the logarithm of the number
//! of ranks. A gather needs more: each rank first sends one message to rank 0.

use super::communicator::Comm;
use super::wire::{Reduce, Wire};

/// Tag of the messages of all collectives, and of no other messages. MPI delivers the messages between two ranks in order, so
/// successive collectives are not confused.
const TAG: i32 = 32_000;

/// Waits until all ranks of `comm` have called this function.
pub(super) fn barrier(comm: &Comm) {
    let (me, size) = (comm.rank(), comm.size());
    let mut step = 1;
    while step < size {
        let (to, from) = ((me + step) % size, (me + size - step) % size);
        comm.exchange(Some((&[0u8][..], to)), Some((&mut [0u8][..], from)), TAG);
        step *= 2;
    }
}

/// Returns the parent and the children of rank `me` in a tree with root `root`. The child with the largest subtree is first.
fn tree(me: usize, size: usize, root: usize) -> (Option<usize>, Vec<usize>) {
    let place = (me + size - root) % size;
    let rank = |place: usize| (place + root) % size;
    let own = match place {
        0 => size.next_power_of_two(),
        place => place & place.wrapping_neg(),
    };
    let parent = (place > 0).then(|| rank(place - own));
    let steps = std::iter::successors(Some(own / 2), |step| Some(step / 2)).take_while(|&s| s > 0);
    (parent, steps.map(|step| place + step).filter(|&p| p < size).map(rank).collect())
}

pub(super) fn broadcast<T: Wire>(comm: &Comm, data: &mut [T], root: usize) {
    let (parent, children) = tree(comm.rank(), comm.size(), root);
    if let Some(parent) = parent {
        comm.recv(data, parent, TAG);
    }
    for child in children {
        comm.send(data, child, TAG);
    }
}

pub(super) fn reduce<T: Wire>(comm: &Comm, data: &[T], result: &mut [T], root: usize, op: Reduce) {
    let mut sum = data.to_vec();
    towards(comm, &mut sum, root, op);
    if comm.rank() == root {
        result.copy_from_slice(&sum);
    }
}

/// Combines values of all ranks element by element. All ranks get the same bits, because the order of the operations depends on
/// the tree alone.
pub(super) fn all_reduce<T: Wire>(comm: &Comm, data: &mut [T], op: Reduce) {
    towards(comm, data, 0, op);
    broadcast(comm, data, 0);
}

fn towards<T: Wire>(comm: &Comm, sum: &mut [T], root: usize, op: Reduce) {
    let (parent, children) = tree(comm.rank(), comm.size(), root);
    let mut theirs = vec![T::default(); sum.len()];
    for child in children.into_iter().rev() {
        comm.recv(&mut theirs, child, TAG);
        for (mine, &other) in sum.iter_mut().zip(&theirs) {
            *mine = T::combined(op, *mine, other);
        }
    }
    if let Some(parent) = parent {
        comm.send(sum, parent, TAG);
    }
}

/// Gathers the `data` of all ranks in `all`, on all ranks. `place` returns the index in `all` at which the data of a rank begin.
/// The data of a rank end where the data of the next rank begin.
pub(super) fn gather<T: Wire>(
    comm: &Comm,
    data: &[T],
    all: &mut [T],
    place: impl Fn(usize) -> usize,
) {
    let (me, size) = (comm.rank(), comm.size());
    if me > 0 {
        comm.send(data, 0, TAG);
    } else {
        all[..data.len()].copy_from_slice(data);
        for rank in 1..size {
            let end = if rank + 1 < size { place(rank + 1) } else { all.len() };
            comm.recv(&mut all[place(rank)..end], rank, TAG);
        }
    }
    if !all.is_empty() {
        broadcast(comm, all, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_parent_that_knows_it_and_the_root_has_none() {
        for size in 1..40 {
            for root in [0, size / 2, size - 1] {
                let mut reached = vec![0; size];
                for me in 0..size {
                    let (parent, children) = tree(me, size, root);
                    assert_eq!(parent.is_none(), me == root);
                    if let Some(parent) = parent {
                        assert!(tree(parent, size, root).1.contains(&me), "{size} {root} {me}");
                    }
                    children.into_iter().for_each(|child| reached[child] += 1);
                }
                reached[root] += 1;
                assert_eq!(reached, vec![1; size], "{size} {root}");
            }
        }
    }
}

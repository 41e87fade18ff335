//! Collectives of a communicator, by the library's own calls or by single messages ([`by_messages`]).

use mpi::ffi;

use super::abort::die;
use super::check::check;
use super::communicator::{Comm, chunks_mut, parts};
use super::wire::{Reduce, Wire};
use super::{by_messages, library, loss, subset, turn};

impl Comm {
    /// Returns whether collectives must use single messages. They must if the library has no communicator of these ranks, if the
    /// loss of a rank is survived, or in a simulation.
    fn by_messages(&self) -> bool {
        self.members.is_some() || loss::unwinds() || library::simulated().is_some()
    }

    /// Splits this communicator into one for each `colour`, whose ranks are ordered by `key`. A rank without a colour gets
    /// `None`.
    pub fn split(&self, colour: Option<usize>, key: usize) -> Option<Comm> {
        if self.by_messages() {
            return self.split_by_messages(colour, key);
        }
        // SAFETY: all ranks of the communicator call this together; the result is checked.
        unsafe {
            let mut raw = ffi::RSMPI_COMM_NULL;
            let colour = colour.map_or(ffi::RSMPI_UNDEFINED, |c| c as i32);
            let rc = turn::with(|| ffi::MPI_Comm_split(self.on.raw, colour, key as i32, &mut raw));
            check(rc, "splitting a communicator");
            (colour != ffi::RSMPI_UNDEFINED).then(|| Self::wrap(raw, true))
        }
    }

    fn split_by_messages(&self, colour: Option<usize>, key: usize) -> Option<Comm> {
        let free = subset::free(self.on.raw);
        let mine = [colour.map_or(0, |colour| colour as u64 + 1), key as u64, free];
        let all = self.all_gather(&mine);
        let asked: Vec<subset::Asked> = all
            .chunks_exact(mine.len())
            .map(|words| subset::Asked { colour: words[0], key: words[1], free: words[2] })
            .collect();
        let series = subset::series(&asked);
        let members = subset::members(&asked, self.rank()).into_iter().map(|rank| self.peer(rank));
        let made = colour.and_then(|_| self.among(members.collect(), series))?;
        subset::begin(made.on);
        Some(made)
    }

    /// Returns a communicator of the ranks of this communicator that share memory with this rank.
    pub fn split_by_node(&self) -> Comm {
        if self.by_messages() {
            let node = loss::own_node();
            return self.split(Some(node), self.rank()).expect("every rank has a node");
        }
        // SAFETY: all ranks of the communicator call this together; the result is checked.
        unsafe {
            let mut raw = ffi::RSMPI_COMM_NULL;
            let rc = turn::with(|| {
                ffi::MPI_Comm_split_type(
                    self.on.raw,
                    ffi::RSMPI_COMM_TYPE_SHARED,
                    self.rank() as i32,
                    ffi::RSMPI_INFO_NULL,
                    &mut raw,
                )
            });
            check(rc, "finding the ranks of this node");
            Self::wrap(raw, true)
        }
    }

    /// Copies `data` of `root` to all ranks.
    pub fn broadcast<T: Wire>(&self, data: &mut [T], root: usize) {
        // All ranks pass the same length, so all of them return here. Open MPI refuses the address of an empty slice.
        if data.is_empty() {
            return;
        }
        if self.by_messages() {
            return by_messages::broadcast(self, data, root);
        }
        for part in chunks_mut(data) {
            // SAFETY: the slice is valid and exclusively ours for the given length.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Bcast(
                    part.as_mut_ptr().cast(),
                    part.len() as i32,
                    T::datatype(),
                    root as i32,
                    self.on.raw,
                )
            });
            check(rc, "broadcasting");
        }
    }

    /// Copies bytes of `root` to all ranks, as [`Comm::broadcast`] does. Only `root` needs to know the number of bytes.
    pub fn broadcast_bytes(&self, data: &mut Vec<u8>, root: usize) {
        let mut len = [data.len() as u64];
        self.broadcast(&mut len, root);
        data.resize(len[0] as usize, 0);
        self.broadcast(data, root);
    }

    /// Combines `data` of all ranks element by element. All ranks get the result.
    pub fn all_reduce<T: Wire>(&self, data: &mut [T], op: Reduce) {
        if self.size() == 1 || data.is_empty() {
            return;
        }
        if self.by_messages() {
            return by_messages::all_reduce(self, data, op);
        }
        for part in chunks_mut(data) {
            let own = part.to_vec();
            // SAFETY: two separate buffers of the same length.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Allreduce(
                    own.as_ptr().cast(),
                    part.as_mut_ptr().cast(),
                    part.len() as i32,
                    T::datatype(),
                    op.op(),
                    self.on.raw,
                )
            });
            check(rc, "combining values of all ranks");
        }
    }

    /// Combines `data` of all ranks element by element into `result` on rank `root`. Other ranks may pass an empty `result`.
    pub fn reduce<T: Wire>(&self, data: &[T], result: &mut [T], root: usize, op: Reduce) {
        assert!(self.rank() != root || result.len() == data.len());
        if self.by_messages() {
            return by_messages::reduce(self, data, result, root, op);
        }
        for part in parts(data.len()) {
            let into = if self.rank() == root {
                result[part.clone()].as_mut_ptr()
            } else {
                std::ptr::null_mut()
            };
            // SAFETY: both ranges were just checked. Ranks other than the root pass no result.
            let rc = turn::with(|| unsafe {
                ffi::MPI_Reduce(
                    data[part.clone()].as_ptr().cast(),
                    into.cast(),
                    part.len() as i32,
                    T::datatype(),
                    op.op(),
                    root as i32,
                    self.on.raw,
                )
            });
            check(rc, "combining values of all ranks at the root");
        }
    }

    /// Returns the `data` of all ranks on all ranks, in the order of the ranks. The length of `data` is the same on all ranks.
    pub fn all_gather<T: Wire>(&self, data: &[T]) -> Vec<T> {
        self.all_gather_counts(data, &vec![data.len(); self.size()])
    }

    /// Returns `counts[rank]` elements of each rank on all ranks, in the order of the ranks.
    fn all_gather_counts<T: Wire>(&self, data: &[T], counts: &[usize]) -> Vec<T> {
        let total: usize = counts.iter().sum();
        if total > i32::MAX as usize {
            die(6, &format!("all ranks together gather {total} values, more than MPI can count"));
        }
        let mut all = vec![T::default(); total];
        let places =
            counts.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + *count)));
        let places: Vec<usize> = places.collect();
        if self.by_messages() {
            by_messages::gather(self, data, &mut all, |rank| places[rank]);
            return all;
        }
        let [counts, places] =
            [counts, &places].map(|all| all.iter().map(|&n| n as i32).collect::<Vec<i32>>());
        // SAFETY: counts and places are those of `all`, and the count of each rank is the number of elements that the rank sends.
        let rc = turn::with(|| unsafe {
            ffi::MPI_Allgatherv(
                data.as_ptr().cast(),
                data.len() as i32,
                T::datatype(),
                all.as_mut_ptr().cast(),
                counts.as_ptr(),
                places.as_ptr(),
                T::datatype(),
                self.on.raw,
            )
        });
        check(rc, "gathering values of all ranks");
        all
    }

    /// Returns the bytes of all ranks on all ranks, in the order of the ranks. The lengths may differ. Each rank's bytes are
    /// padded to whole words, not to the greatest length, because one rank may have much data and the other ranks none.
    pub fn all_gather_bytes(&self, mine: &[u8]) -> Vec<Vec<u8>> {
        let words = |bytes: u64| (bytes as usize).div_ceil(WORD);
        let lengths = self.all_gather(&[mine.len() as u64]);
        let counts: Vec<usize> = lengths.iter().map(|&length| words(length)).collect();
        let mut padded = mine.to_vec();
        padded.resize(words(mine.len() as u64) * WORD, 0);
        let own: Vec<u64> = padded
            .chunks_exact(WORD)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let all = self.all_gather_counts(&own, &counts);
        let mut rest = &all[..];
        let pieces = lengths.iter().zip(counts).map(|(&length, count)| {
            let piece = rest.split_off(..count).expect("all words have come");
            let mut bytes: Vec<u8> = piece.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.truncate(length as usize);
            bytes
        });
        pieces.collect()
    }

    /// Waits until all ranks of the communicator have called this function.
    pub fn barrier(&self) {
        if self.by_messages() {
            return by_messages::barrier(self);
        }
        // SAFETY: a valid communicator.
        check(turn::with(|| unsafe { ffi::MPI_Barrier(self.on.raw) }), "waiting for all ranks");
    }
}

/// Number of bytes in a word. Bytes are sent as whole words.
const WORD: usize = 8;

//! A sample header, and a wait for the lock of a position's memory.

use std::time::{Duration, Instant};

use crate::base::params::{Mapping, Rng};
use crate::shm::MemoryStore;
use crate::shm::header::{CheckpointId, Claim, Header, Identity, Mark, Phase, Stage};

/// Returns a header in which every field has a value.
pub fn sample() -> Header {
    Header {
        id: Identity {
            run: 0x0123_4567_89ab_cdef_1111_2222_3333_4444,
            test: 2,
            position: 5,
            n: 1000,
            nb: 64,
            p: 2,
            q: 3,
            mapping: Mapping::Column,
            rng: Rng::Xoshiro,
            seed: 42,
            params_digest: 77,
            rows: 500,
            cols: 340,
            ld: 344,
            group: 1,
            members: vec![1, 3, 5],
            losses: 1,
            code: 2,
            method: 1,
            scope: 0,
            layout: 2,
            state_bytes: 4096,
        },
        claim: Claim {
            joined: 3,
            phase: Phase::Recovering(CheckpointId { number: 8, made: 2 }),
            stage: Stage::Saved,
            base: Some(CheckpointId { number: 8, made: 2 }),
            seal: Some(CheckpointId { number: 9, made: 2 }),
        },
        base: Mark { boundary: 80, root: 1 },
        seal: Mark { boundary: 90, root: 2 },
    }
}

/// Waits until the lock of a position's memory is free. A process that another test starts inherits the lock until it calls exec.
pub fn until_free(memory_store: &MemoryStore, position: u32) {
    let since = Instant::now();
    while memory_store.in_use(position) {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "the lock of position {position} is still held"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

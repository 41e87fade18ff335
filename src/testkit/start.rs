//! Example of a test that starts, its protection, and the headers of its memory.

use crate::base::params::{Mapping, Rng};
use crate::checkpoint::identity::identity;
use crate::checkpoint::layout::ParityLayout;
use crate::checkpoint::plan::{Encoding, Layout, Scheme, Scope};
use crate::checkpoint::protocol::Method;
use crate::checkpoint::when::Interval;
use crate::checkpoint::{Config, Test};
use crate::parity::Code;
use crate::shm::header::{Claim, Header, Mark};
use crate::shm::{MemoryStore, Store};

/// Returns a test on a grid of 2 x 2, and its protection without storage.
pub fn asked() -> (Test, Config) {
    let layout = Layout { n: 100, nb: 10, p: 2, q: 2, mapping: Mapping::Row, dedicated: 0 };
    let test = Test { index: 3, layout, rng: Rng::Hpl, seed: 5, params_digest: 7 };
    let scheme = Scheme {
        method: Method::SelfCheckpoint,
        scope: Scope::Corner,
        code: Code::Xor,
        losses: 1,
        layout: ParityLayout::Striped,
        on_device: false,
    };
    let config = Config {
        memory_store: MemoryStore::new(Store::Posix, "identity").unwrap(),
        scheme,
        group: Some(2),
        encode: Encoding::Pipelined,
        interval: Interval::Iterations(1),
        must_resume: false,
        goes_on: false,
        state_bytes: 64,
        ld: 56,
        run: 1,
        domain: String::new(),
        node: String::new(),
        leader: 0,
        storage: None,
        device: None,
    };
    (test, config)
}

/// Returns a header of the test from [`asked`], for memory without a checkpoint.
pub fn header(run: u128, position: usize, group: (usize, &[usize])) -> Header {
    let (test, config) = asked();
    Header {
        id: identity(&test, &config, run, position, group.0, group.1),
        claim: Claim::generating(1),
        base: Mark::default(),
        seal: Mark::default(),
    }
}

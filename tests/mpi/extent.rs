//! Variables by which a developer or `scripts/test.sh` sets the number of faults in tests, and their order.
//!
//! | variable | meaning |
//! |---|---|
//! | `SKT_TEST_WHOLE=1` | every case by itself, at every position |
//! | `SKT_TEST_SEED=N` | the seed of random faults; `scripts/test.sh` takes it from the commit |
//! | `SKT_TEST_SOAK=N` | the number of runs with random faults |

/// Whether every case has a run of its own instead of a part of the cases, or several in one chain.
#[allow(dead_code)] // some test programs have no such cases
pub fn whole() -> bool {
    number("SKT_TEST_WHOLE") == Some(1)
}

/// The seed of random faults: the same one unless a variable sets another.
#[allow(dead_code)]
pub fn seed() -> u64 {
    number("SKT_TEST_SEED").unwrap_or(1)
}

/// The number of runs with random faults, if a variable sets it.
#[allow(dead_code)]
pub fn soak() -> Option<u64> {
    number("SKT_TEST_SOAK")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

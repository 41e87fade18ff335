//! Environment variables by which a developer or `scripts/test.sh` sets the number and order of faults in tests.
//!
//! | variable | meaning |
//! |---|---|
//! | `SKT_TEST_WHOLE=1` | every case has a run of its own, at every position |
//! | `SKT_TEST_SEED=N` | the seed of random faults; `scripts/test.sh` takes it from the commit |
//! | `SKT_TEST_SOAK=N` | the number of runs with random faults |

/// Returns true if `SKT_TEST_WHOLE=1` is set: every case then has a run of its own. Otherwise tests run some of the cases, or
/// several in one chain.
#[allow(dead_code)] // some test programs have no such cases
pub fn whole() -> bool {
    number("SKT_TEST_WHOLE") == Some(1)
}

/// Returns the seed of random faults: `SKT_TEST_SEED`, or else 1.
#[allow(dead_code)]
pub fn seed() -> u64 {
    number("SKT_TEST_SEED").unwrap_or(1)
}

/// Returns the number of runs with random faults; None if `SKT_TEST_SOAK` is not set.
#[allow(dead_code)]
pub fn soak() -> Option<u64> {
    number("SKT_TEST_SOAK")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

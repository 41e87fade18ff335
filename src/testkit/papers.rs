//! The papers' formulas for memory. Tests and benchmarks compare the memory of the program with these formulas.

use crate::checkpoint::plan::Scheme;
use crate::checkpoint::protocol::Method;
use crate::parity::Spread;

/// Words of parity per word of data, in a group of `size` that survives `losses`.
pub fn parity_share(spread: Spread, size: usize, losses: usize) -> f64 {
    match spread {
        _ if losses == 0 => 0.0,
        Spread::Rotated | Spread::Apart => losses as f64 / (size - losses) as f64,
        Spread::Copied => 1.0,
    }
}

/// Share of the memory that is left for the matrix, with groups of `size` including dedicated positions. These are the paper's
/// equations 6 to 8, for any number of losses and layout.
pub fn available(scheme: &Scheme, size: usize) -> f64 {
    let parity = parity_share(scheme.layout.spread(), size, scheme.losses);
    let (copies, checksums) = match scheme.method {
        Method::SelfCheckpoint => (2.0, 2.0),
        Method::Double => (3.0, 2.0),
        Method::Single => (2.0, 1.0),
        Method::Disk => (1.0, 1.0),
    };
    1.0 / (copies + checksums * parity)
}

//! The papers' formulas for memory. Tests and benchmarks compare the memory of the program with these formulas.

use crate::checkpoint::plan::Scheme;
use crate::checkpoint::protocol::Method;
use crate::parity::Spread;

/// Returns the words of parity per word of data, in a group of `size` members that survives `losses` losses.
pub fn parity_share(spread: Spread, size: usize, losses: usize) -> f64 {
    match spread {
        _ if losses == 0 => 0.0,
        Spread::Rotated | Spread::Apart => losses as f64 / (size - losses) as f64,
        Spread::Copied => 1.0,
    }
}

/// Returns the share of the memory that is left for the matrix. Groups have `size` members, including dedicated positions. The
/// formulas are equations 6 to 8 of the paper, for any number of losses and any layout.
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

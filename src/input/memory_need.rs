//! What the tests need of a node: memory and ranks. Pure arithmetic.
//!
//! The benchmark asks [`fits`] before anything is allocated, with the figure `node_memory` read. A
//! problem that is too large by a few per cent would otherwise be found out by the kernel's
//! out-of-memory killer in the middle of the run.

use crate::params::TestParams;

use super::hpl_dat::HplDat;

/// What a process takes besides its arrays: the program, MPI's buffers, the BLAS's.
pub const PROCESS_BYTES: u128 = 64 << 20;

const DOUBLE_BYTES: u128 = 8;

/// Rows (or columns) of `n` that fall on the first of `nprocs` processes in blocks of `nb`: the
/// most that fall on any.
fn numroc_max(n: u128, nb: u128, nprocs: u128) -> u128 {
    let blocks = n / nb;
    let whole = (blocks / nprocs) * nb;
    match blocks % nprocs {
        0 => whole + n % nb,
        _ => whole + nb,
    }
}

fn wide(size: usize) -> u128 {
    size as u128
}

/// Bytes of `panels` panels (`rows` long each) and one U (`cols` wide) beside a matrix part.
fn bytes(area: u128, rows: u128, cols: u128, nb: u128, panels: u128) -> u128 {
    let work = panels
        .saturating_mul(rows)
        .saturating_add(cols)
        .saturating_mul(nb);
    area.saturating_add(work).saturating_mul(DOUBLE_BYTES)
}

/// Bytes the largest rank of a test needs: its part of [A|b], DEPTH + 2 panels, one U, the process.
pub fn rank_bytes(test: &TestParams) -> u128 {
    let rows = numroc_max(wide(test.n), wide(test.nb), wide(test.p));
    let cols = numroc_max(wide(test.n) + 1, wide(test.nb), wide(test.q));
    let area = rows.saturating_mul(cols);
    bytes(area, rows, cols, wide(test.nb), wide(test.depth) + 2).saturating_add(PROCESS_BYTES)
}

/// Bytes all ranks of a test need together.
pub fn grid_bytes(test: &TestParams) -> u128 {
    let (n, p, q) = (wide(test.n), wide(test.p), wide(test.q));
    let (rows, cols) = (n.saturating_mul(q), (n + 1).saturating_mul(p));
    let area = n.saturating_mul(n + 1);
    bytes(area, rows, cols, wide(test.nb), wide(test.depth) + 2)
        .saturating_add(p.saturating_mul(q).saturating_mul(PROCESS_BYTES))
}

/// The most a test can need on a node with `ranks_on_node` ranks, wherever in the grid they stand;
/// ranks without a place in the grid count as bare processes.
pub fn node_bytes(test: &TestParams, ranks_on_node: usize) -> u128 {
    let ranks = wide(ranks_on_node);
    let working = ranks.min(wide(test.p).saturating_mul(wide(test.q)));
    rank_bytes(test)
        .saturating_mul(working)
        .min(grid_bytes(test))
        .saturating_add((ranks - working).saturating_mul(PROCESS_BYTES))
}

/// A test that does not fit, with both numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    pub ranks_on_node: usize,
    pub needed_bytes: u128,
    pub available_bytes: u128,
    /// The largest N that fits with all else alike; `None` where not even N = 0 does.
    pub largest_n: Option<usize>,
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooLarge { n, nb, p, q, .. } = self;
        write!(
            f,
            "the problem is too large for this node: N={n} with NB={nb} on a {p} x {q} grid needs {} \
             on this node ({} rank{}), which has {} available; ",
            human(self.needed_bytes),
            self.ranks_on_node,
            if self.ranks_on_node == 1 { "" } else { "s" },
            human(self.available_bytes),
        )?;
        match self.largest_n {
            Some(largest) if largest > 0 => {
                write!(f, "the largest N that fits is {largest}")?;
                let even = largest - largest % nb;
                if even > 0 && even != largest {
                    write!(f, " ({even} as a multiple of NB)")?;
                }
                Ok(())
            }
            _ => f.write_str("no N fits: use fewer ranks on this node"),
        }
    }
}

impl std::error::Error for TooLarge {}

/// Whether every test fits a node that holds `ranks_on_node` ranks and has `available_bytes` left.
/// Of those that do not, the one that needs most is told.
pub fn fits(
    tests: impl IntoIterator<Item = TestParams>,
    ranks_on_node: usize,
    available_bytes: u128,
) -> Result<(), TooLarge> {
    let worst = tests
        .into_iter()
        .map(|test| (node_bytes(&test, ranks_on_node), test))
        .max_by_key(|(bytes, _)| *bytes);
    match worst {
        Some((needed_bytes, test)) if needed_bytes > available_bytes => Err(TooLarge {
            n: test.n,
            nb: test.nb,
            p: test.p,
            q: test.q,
            ranks_on_node,
            needed_bytes,
            available_bytes,
            largest_n: largest_n(&test, ranks_on_node, available_bytes),
        }),
        _ => Ok(()),
    }
}

/// The largest N with which `test` fits, by bisection: the need never falls as N grows.
pub fn largest_n(test: &TestParams, ranks_on_node: usize, available_bytes: u128) -> Option<usize> {
    let fits =
        |n: usize| node_bytes(&TestParams { n, ..test.clone() }, ranks_on_node) <= available_bytes;
    if !fits(0) {
        return None;
    }
    // Invariant: `low` fits, `high` does not.
    let (mut low, mut high) = (0, 1);
    while fits(high) {
        low = high;
        high = high.checked_mul(2)?;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// More ranks are asked for than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewRanks {
    pub p: usize,
    pub q: usize,
    pub needed: usize,
    pub have: usize,
}

impl std::fmt::Display for TooFewRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooFewRanks { p, q, needed, have } = self;
        write!(
            f,
            "Need at least {needed} processes for these tests: the largest grid is {p} x {q}, and \
             there {} only {have}; start more (mpirun -n {needed}) or ask for a smaller grid",
            if *have == 1 { "is" } else { "are" }
        )
    }
}

impl std::error::Error for TooFewRanks {}

/// Whether `ranks` are enough for every grid.
pub fn enough_ranks(dat: &HplDat, ranks: usize) -> Result<(), TooFewRanks> {
    let needed = dat.ranks_needed();
    match dat
        .grids
        .iter()
        .find(|(p, q)| p.saturating_mul(*q) == needed)
    {
        Some(&(p, q)) if needed > ranks => Err(TooFewRanks {
            p,
            q,
            needed,
            have: ranks,
        }),
        _ => Ok(()),
    }
}

/// A size in words: GiB with two digits, smaller ones in MiB.
pub fn human(bytes: u128) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    let bytes = bytes as f64;
    if bytes >= GIB {
        format!("{:.2} GiB", bytes / GIB)
    } else {
        format!("{:.1} MiB", bytes / GIB * 1024.0)
    }
}

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
/// most that fall on any. (`grid`'s numroc for process 0; here in 128 bits, as the sizes judged are
/// those nobody has yet refused.)
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
    let work = panels.saturating_mul(rows).saturating_add(cols).saturating_mul(nb);
    area.saturating_add(work).saturating_mul(DOUBLE_BYTES)
}

/// Bytes the largest rank of a test needs: its part of [A|b], DEPTH + 2 panels, one U, the process.
pub fn rank_bytes(test: &TestParams) -> u128 {
    let rows = numroc_max(wide(test.n), wide(test.nb), wide(test.p));
    let cols = numroc_max(wide(test.n) + 1, wide(test.nb), wide(test.q));
    let area = rows.saturating_mul(cols);
    bytes(area, rows, cols, wide(test.nb), wide(test.depth) + 2).saturating_add(PROCESS_BYTES)
}

/// Bytes the largest rank of a test needs beside its part of [A|b].
pub fn beside_bytes(test: &TestParams) -> u128 {
    let rows = numroc_max(wide(test.n), wide(test.nb), wide(test.p));
    let cols = numroc_max(wide(test.n) + 1, wide(test.nb), wide(test.q));
    bytes(0, rows, cols, wide(test.nb), wide(test.depth) + 2).saturating_add(PROCESS_BYTES)
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
/// ranks without a place in the grid count as bare processes. Protection keeps `copies` times the
/// matrix, itself included: 1 without any.
pub fn node_bytes(test: &TestParams, copies: f64, ranks_on_node: usize) -> u128 {
    let ranks = wide(ranks_on_node);
    let working = ranks.min(wide(test.p).saturating_mul(wide(test.q)));
    rank_bytes(test)
        .saturating_mul(working)
        .min(grid_bytes(test))
        .saturating_add((ranks - working).saturating_mul(PROCESS_BYTES))
        .saturating_add(copies_bytes(test, copies, working))
}

/// Bytes of what is kept beside the matrix by `working` ranks, none of which may be the smallest.
fn copies_bytes(test: &TestParams, copies: f64, working: u128) -> u128 {
    let rows = numroc_max(wide(test.n), wide(test.nb), wide(test.p));
    let cols = numroc_max(wide(test.n) + 1, wide(test.nb), wide(test.q));
    let all = wide(test.n).saturating_mul(wide(test.n) + 1);
    let area = rows.saturating_mul(cols).saturating_mul(working).min(all);
    (area.saturating_mul(DOUBLE_BYTES) as f64 * (copies - 1.0).max(0.0)) as u128
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
    copies: f64,
    ranks_on_node: usize,
    available_bytes: u128,
) -> Result<(), TooLarge> {
    let worst = tests
        .into_iter()
        .map(|test| (node_bytes(&test, copies, ranks_on_node), test))
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
            largest_n: largest_n(&test, copies, ranks_on_node, available_bytes),
        }),
        _ => Ok(()),
    }
}

/// The largest N with which `test` fits, by bisection: the need never falls as N grows.
pub fn largest_n(
    test: &TestParams,
    copies: f64,
    ranks_on_node: usize,
    available_bytes: u128,
) -> Option<usize> {
    let fits = |n: usize| {
        node_bytes(&TestParams { n, ..test.clone() }, copies, ranks_on_node) <= available_bytes
    };
    if !fits(0) {
        return None;
    }
    // Invariant: `low` fits, `high` does not.
    let (mut low, mut high) = (0, 1);
    while fits(high) {
        low = high;
        high = match high.checked_mul(2) {
            Some(twice) => twice,
            None => return Some(high),
        };
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
    match dat.grids.iter().find(|(p, q)| p.saturating_mul(*q) == needed) {
        Some(&(p, q)) if needed > ranks => Err(TooFewRanks { p, q, needed, have: ranks }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::hpl_dat::HplDat;
    use crate::params::Rng;
    use proptest::prelude::*;

    const GIB: u128 = 1 << 30;

    fn test(n: usize, nb: usize, p: usize, q: usize, depth: usize) -> TestParams {
        let dat = HplDat {
            ns: vec![n],
            nbs: vec![nb],
            grids: vec![(p, q)],
            depths: vec![depth],
            ..HplDat::default()
        };
        dat.tests(Rng::Hpl, 100).next().unwrap()
    }

    /// How many of `n` indices each of `nprocs` owns, dealt out one at a time.
    fn dealt(n: usize, nb: usize, nprocs: usize) -> Vec<usize> {
        let mut counts = vec![0; nprocs];
        for i in 0..n {
            counts[(i / nb) % nprocs] += 1;
        }
        counts
    }

    fn need_dealt(t: &TestParams, rows: usize, cols: usize) -> u128 {
        (8 * (rows * cols + (t.depth + 2) * rows * t.nb + cols * t.nb)) as u128 + PROCESS_BYTES
    }

    proptest! {
        #[test]
        fn needs_are_those_of_the_ranks_dealt_out(
            n in 0usize..200, nb in 1usize..40, p in 1usize..6, q in 1usize..6, depth in 0usize..4,
        ) {
            let t = test(n, nb, p, q, depth);
            let mut all = Vec::new();
            for &rows in &dealt(n, nb, p) {
                for &cols in &dealt(n + 1, nb, q) {
                    all.push(need_dealt(&t, rows, cols));
                }
            }
            prop_assert_eq!(rank_bytes(&t), *all.iter().max().unwrap());
            let area = dealt(n, nb, p)[0] * dealt(n + 1, nb, q)[0];
            prop_assert_eq!(beside_bytes(&t) + 8 * area as u128, rank_bytes(&t));
            prop_assert_eq!(grid_bytes(&t), all.iter().sum::<u128>());
            // No choice of ranks needs more than what is said of the node.
            all.sort_unstable_by(|a, b| b.cmp(a));
            for ranks in 0..=p * q + 2 {
                let idle = ranks.saturating_sub(p * q) as u128 * PROCESS_BYTES;
                let worst = all.iter().take(ranks).sum::<u128>() + idle;
                prop_assert!(worst <= node_bytes(&t, 1.0, ranks));
            }
            prop_assert_eq!(node_bytes(&t, 1.0, p * q), grid_bytes(&t));
        }

        #[test]
        fn the_largest_n_fits_and_the_next_does_not(
            n in 0usize..1_000_000, nb in 1usize..400, p in 1usize..9, q in 1usize..9,
            ranks in 1usize..64, gib in 0u128..100,
        ) {
            let t = test(n, nb, p, q, 1);
            let available = gib * GIB;
            let with = |n| TestParams { n, ..t.clone() };
            match largest_n(&t, 2.5, ranks, available) {
                Some(largest) => {
                    prop_assert!(fits([with(largest)], 2.5, ranks, available).is_ok());
                    prop_assert!(fits([with(largest + 1)], 2.5, ranks, available).is_err());
                }
                None => prop_assert!(fits([with(0)], 2.5, ranks, available).is_err()),
            }
        }
    }

    #[test]
    fn a_refusal_tells_both_numbers() {
        let small = test(1000, 128, 1, 1, 1);
        let large = test(100_000, 128, 1, 1, 1);
        let refusal = fits([small.clone(), large, small.clone()], 1.0, 1, 16 * GIB).unwrap_err();
        assert_eq!((refusal.n, refusal.nb), (100_000, 128));
        let text = refusal.to_string();
        assert!(
            text.contains("N=100000 with NB=128 on a 1 x 1 grid needs 74.95 GiB on this node"),
            "{text}"
        );
        assert!(text.contains("(1 rank), which has 16.00 GiB available"), "{text}");
        let largest = refusal.largest_n.unwrap();
        assert!(
            text.contains(&format!(
                "the largest N that fits is {largest} ({} as a multiple",
                largest / 128 * 128
            )),
            "{text}"
        );
        assert_eq!(fits([small], 1.0, 1, 16 * GIB), Ok(()));
        assert_eq!(fits([], 1.0, 1, 0), Ok(()));
    }

    #[test]
    fn absurd_sizes_are_refused_not_overflown() {
        for n in [usize::MAX, usize::MAX - 1, 1 << 62] {
            let t = test(n, usize::MAX, usize::MAX, usize::MAX, usize::MAX);
            assert!(fits([t], 1.0, usize::MAX, GIB).is_err());
            let t = test(n, 1, 1, 1, 0);
            assert!(fits([t], 1.0, 1, GIB).unwrap_err().largest_n.is_some());
        }
        assert!(
            fits([test(0, 1, 1, 1, 0)], 1.0, 4, GIB / 8)
                .unwrap_err()
                .to_string()
                .contains("no N fits")
        );
    }

    #[test]
    fn ranks_are_counted_in_the_references_words() {
        let dat = HplDat { grids: vec![(1, 4), (2, 3), (1, 1)], ..HplDat::default() };
        assert_eq!(enough_ranks(&dat, 6), Ok(()));
        let text = enough_ranks(&dat, 5).unwrap_err().to_string();
        assert!(text.starts_with("Need at least 6 processes for these tests"), "{text}");
        assert!(text.contains("2 x 3"), "{text}");
        assert_eq!(enough_ranks(&HplDat::default(), 0), Ok(()));
    }

    #[test]
    fn sizes_in_words() {
        assert_eq!(human(3 * GIB / 2), "1.50 GiB");
        assert_eq!(human(64 << 20), "64.0 MiB");
    }
}

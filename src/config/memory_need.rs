//! Need of the tests on a node: memory and ranks. Pure arithmetic.
//!
//! The benchmark asks [`fits`] before anything is allocated, with the figure that `shm::room` read. Otherwise the kernel's
//! out-of-memory killer would find a problem that is a few per cent too large, in the middle of the run.

use std::convert::Infallible;

use crate::base::bisection::last_that_holds;
use crate::base::params::{Device, TestParams};
pub use crate::lu::need::Means;
use crate::lu::need::Problem;

use super::hpl_dat::HplDat;
use super::settings::Settings;

/// Memory of a process apart from its arrays: the program, and the buffers of MPI and of the BLAS.
///
/// With Open MPI 4.1 the most resident memory of any rank (VmHWM) was 25.3 MiB. These were runs of N = 400 on one node, with 1, 4
/// and 8 ranks, by our own kernels, BLIS's and OpenBLAS's. A bare process of MPICH 4 took 4 to 7 MiB more than one of Open MPI,
/// with 4 and 16 ranks. Ranks of a node share program and libraries: counted once (PSS), each of 8 took 6 to 7 MiB. The rest is
/// room for the buffers of networks, which a single node does not show.
pub const PROCESS_BYTES: u128 = 40 << 20;

/// Bytes that the largest rank of a test needs: its part of [A|b], the solver's work arrays, the process.
pub fn rank_bytes(test: &TestParams, means: Means) -> u128 {
    Problem::of(test, means).largest_rank().total().saturating_add(PROCESS_BYTES)
}

/// Bytes that the largest rank of a protected test needs in addition to its persistent memory, which has its part of [A|b] unless
/// a device has it.
pub fn private_bytes(test: &TestParams, means: Means) -> u128 {
    let need = Problem::of(test, means).largest_rank();
    let own = if means.device == Device::Host { need.matrix } else { 0 };
    need.beside.saturating_add(own).saturating_add(PROCESS_BYTES)
}

/// Bytes that all ranks of a test need together.
pub fn grid_bytes(test: &TestParams, means: Means) -> u128 {
    let ranks = wide(test.p).saturating_mul(wide(test.q));
    Problem::of(test, means).all_ranks().total().saturating_add(ranks.saturating_mul(PROCESS_BYTES))
}

fn wide(size: usize) -> u128 {
    size as u128
}

/// Ranks of a node in a test, and the data that they keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnNode {
    pub ranks: usize,
    /// Number of ranks among these that keep only checksums of saves.
    pub keepers: usize,
    /// Bytes of persistent shared memory, the matrix included; None without protection.
    pub named: Option<u128>,
    /// Number of process columns in addition to the grid's that keep checksums.
    pub checksums: usize,
    pub means: Means,
}

/// Bytes that ranks of a node take: memory that outlives them, and memory of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub named: u128,
    pub own: u128,
}

impl Bytes {
    pub fn total(self) -> u128 {
        self.named.saturating_add(self.own)
    }
}

/// Memory that a node has for its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub memory: u128,
    /// Bytes in the pool of huge pages, if persistent shared memory is taken from there. They are set aside already, and are no
    /// part of `memory`.
    pub huge_pages: Option<u128>,
}

impl Room {
    /// Returns the memory of which there is too little, if any: bytes needed, bytes free, and whether huge pages are meant. The
    /// supervisor judges a node beforehand by the same rule (`supervise/judge/fitness.rs`).
    fn short_of(self, need: Bytes) -> Option<(u128, u128, bool)> {
        match self.huge_pages {
            Some(free) if need.named > free => Some((need.named, free, true)),
            Some(_) => (need.own > self.memory).then_some((need.own, self.memory, false)),
            None => (need.total() > self.memory).then_some((need.total(), self.memory, false)),
        }
    }
}

/// Largest need of a test on a node, for any places of its ranks in the grid. Ranks without a place in the grid, or with
/// checksums alone, count as bare processes in addition to what is in persistent shared memory.
pub fn node_need(test: &TestParams, on: OnNode) -> Bytes {
    let ranks = wide(on.ranks);
    let columns = wide(test.q).saturating_add(wide(on.checksums));
    let working = ranks.saturating_sub(wide(on.keepers)).min(wide(test.p).saturating_mul(columns));
    let problem = Problem::of(test, on.means);
    let (mut one, mut all) = (problem.largest_rank(), problem.all_ranks());
    if on.checksums > 0 {
        let sums = problem.rank(0, test.q);
        for (bytes, one, all) in [
            (sums.matrix, &mut one.matrix, &mut all.matrix),
            (sums.beside, &mut one.beside, &mut all.beside),
        ] {
            *one = bytes.max(*one);
            *all = all.saturating_add(
                bytes.saturating_mul(wide(test.p).saturating_mul(wide(on.checksums))),
            );
        }
    }
    // The ranks of the node may all be of the largest size.
    let most = |one: u128, all: u128| one.saturating_mul(working).min(all);
    let processes = ranks.saturating_mul(PROCESS_BYTES);
    let own = match on.named {
        None => most(one.total(), all.total()),
        Some(_) => most(one.beside, all.beside),
    };
    Bytes { named: on.named.unwrap_or(0), own: own.saturating_add(processes) }
}

/// Error: a test does not fit; with both numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    pub ranks_on_node: usize,
    pub needed_bytes: u128,
    pub available_bytes: u128,
    /// Whether huge pages are meant.
    pub of_huge_pages: bool,
    /// Largest N that fits with the other parameters unchanged; `None` if even N = 0 does not fit.
    pub largest_n: Option<usize>,
}

impl TooLarge {
    /// Message with the need and the memory there is, for use after the test has been named.
    pub fn numbers(&self) -> String {
        let (of_what, advice) = if self.of_huge_pages {
            let advice = "; or enlarge the pool of huge pages (/proc/sys/vm/nr_hugepages)";
            (" of huge pages", advice)
        } else {
            ("", "")
        };
        let most = match self.largest_n {
            Some(largest) if largest > 0 => match largest - largest % self.nb {
                even if even > 0 && even != largest => {
                    format!("the largest N that fits is {largest} ({even} as a multiple of NB)")
                }
                _ => format!("the largest N that fits is {largest}"),
            },
            _ => "no N fits: use fewer ranks on this node".to_owned(),
        };
        format!(
            "needs {}{of_what} on this node ({} rank{}), which has {} available; {most}{advice}",
            human(self.needed_bytes),
            self.ranks_on_node,
            if self.ranks_on_node == 1 { "" } else { "s" },
            human(self.available_bytes),
        )
    }
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooLarge { n, nb, p, q, .. } = self;
        write!(
            f,
            "the problem is too large for this node: N={n} with NB={nb} on a {p} x {q} grid {}",
            self.numbers()
        )
    }
}

impl std::error::Error for TooLarge {}

/// Checks that every test fits a node with that room, if its ranks have the parts that `on` describes. Returns the test with the
/// largest need of those that do not fit.
pub fn fits(
    tests: impl IntoIterator<Item = TestParams>,
    on: impl Fn(&TestParams) -> OnNode,
    room: Room,
) -> Result<(), TooLarge> {
    let short = |test: TestParams| room.short_of(node_need(&test, on(&test))).zip(Some(test));
    let worst = tests.into_iter().filter_map(short).max_by_key(|((bytes, ..), _)| *bytes);
    match worst {
        Some(((needed_bytes, available_bytes, of_huge_pages), test)) => Err(TooLarge {
            n: test.n,
            nb: test.nb,
            p: test.p,
            q: test.q,
            ranks_on_node: on(&test).ranks,
            needed_bytes,
            available_bytes,
            of_huge_pages,
            largest_n: largest_n(&test, &on, room),
        }),
        None => Ok(()),
    }
}

/// Largest N with which `test` fits, by bisection: the need never falls as N grows.
pub fn largest_n(
    test: &TestParams,
    on: impl Fn(&TestParams) -> OnNode,
    room: Room,
) -> Option<usize> {
    let fits = |n: usize| {
        let test = TestParams { n, ..test.clone() };
        room.short_of(node_need(&test, on(&test))).is_none()
    };
    if !fits(0) {
        return None;
    }
    let (mut fitting, mut too_large) = (0, 1);
    while fits(too_large) {
        fitting = too_large;
        too_large = match too_large.checked_mul(2) {
            Some(twice) => twice,
            None => return Some(fitting),
        };
    }
    let Ok(n) = last_that_holds(fitting as u64, too_large as u64, |n| {
        Ok::<_, Infallible>(fits(n as usize))
    });
    Some(n as usize)
}

/// Error: the run asks for more ranks than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewRanks {
    pub p: usize,
    pub q: usize,
    pub needed: usize,
    /// Number of spares among these.
    pub spares: usize,
    /// Number of ranks among these that keep checksums: under --method abft, or of saves.
    pub checksums: usize,
    pub dedicated: usize,
    pub have: usize,
}

impl std::fmt::Display for TooFewRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooFewRanks { p, q, needed, spares, checksums, dedicated, have } = self;
        let others: String = [
            (checksums, "more keep checksums (--method abft)"),
            (dedicated, "more keep checksums (--parity-layout dedicated)"),
            (spares, "stand by (--spare-ranks)"),
        ]
        .into_iter()
        .filter(|(ranks, _)| **ranks > 0)
        .map(|(ranks, do_what)| format!(", {ranks} {do_what}"))
        .collect();
        write!(
            f,
            "Need at least {needed} processes for these tests: the largest grid is {p} x {q}{others}, and \
             there {} only {have}; start more (mpirun -n {needed}) or ask for a smaller grid",
            if *have == 1 { "is" } else { "are" }
        )
    }
}

impl std::error::Error for TooFewRanks {}

/// Checks that `have` ranks are enough for every grid plus the ranks that `settings` ask for.
pub fn enough_ranks(dat: &HplDat, settings: &Settings, have: usize) -> Result<(), TooFewRanks> {
    let ranks = |&(p, q): &(usize, usize)| settings.ranks(p, q);
    let Some(&(p, q)) = dat.grids.iter().rev().max_by_key(|grid| ranks(grid)) else {
        return Ok(());
    };
    let (spares, checksums) = (settings.spare_ranks(), p.saturating_mul(settings.sums()));
    let dedicated = settings.dedicated(p, q);
    let needed = ranks(&(p, q)).saturating_add(spares);
    if needed > have {
        Err(TooFewRanks { p, q, needed, spares, checksums, dedicated, have })
    } else {
        Ok(())
    }
}

/// A size in words: GiB with two digits, MiB for smaller sizes.
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
    use crate::base::params::{Engine, Rng};
    use crate::config::hpl_dat::HplDat;
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

    const MEANS: Means = Means { engine: Engine::Auto, threads: 2, device: Device::None };
    const PLAIN: OnNode = OnNode { ranks: 1, keepers: 0, named: None, checksums: 0, means: MEANS };

    /// Bytes of the matrix on all ranks.
    fn matrix(test: &TestParams) -> u128 {
        Problem::of(test, MEANS).all_ranks().matrix
    }

    fn room(memory: u128) -> Room {
        Room { memory, huge_pages: None }
    }

    proptest! {
        #[test]
        fn no_choice_of_ranks_needs_more_than_is_said_of_the_node(
            n in 0usize..200, nb in 1usize..40, p in 1usize..6, q in 1usize..6, depth in 0usize..4,
        ) {
            let t = test(n, nb, p, q, depth);
            let problem = Problem::of(&t, MEANS);
            let mut all: Vec<u128> = (0..p * q)
                .map(|at| problem.rank(at / q, at % q).total() + PROCESS_BYTES)
                .collect();
            prop_assert_eq!(rank_bytes(&t, MEANS), *all.iter().max().unwrap());
            prop_assert_eq!(grid_bytes(&t, MEANS), all.iter().sum::<u128>());
            all.sort_unstable_by(|a, b| b.cmp(a));
            for ranks in 0..=p * q + 2 {
                let idle = ranks.saturating_sub(p * q) as u128 * PROCESS_BYTES;
                let worst = all.iter().take(ranks).sum::<u128>() + idle;
                let on = OnNode { ranks, ..PLAIN };
                prop_assert!(worst <= node_need(&t, on).total());
                prop_assert_eq!(node_need(&t, on).named, 0);
            }
            let on = OnNode { ranks: p * q, ..PLAIN };
            prop_assert_eq!(node_need(&t, on).total(), grid_bytes(&t, MEANS));
            let protected = node_need(&t, OnNode { named: Some(matrix(&t)), ..on });
            prop_assert_eq!(protected.total(), grid_bytes(&t, MEANS));
        }

        #[test]
        fn the_largest_n_fits_and_the_next_does_not(
            n in 0usize..1_000_000, nb in 1usize..400, p in 1usize..9, q in 1usize..9,
            ranks in 1usize..64, gib in 0u128..100, huge in proptest::option::of(0u128..100),
        ) {
            let t = test(n, nb, p, q, 1);
            let room = Room { memory: gib * GIB, huge_pages: huge.map(|huge| huge * GIB) };
            let with = |n| TestParams { n, ..t.clone() };
            let on = |test: &TestParams| {
                OnNode { ranks, named: Some(5 * matrix(test) / 2), ..PLAIN }
            };
            match largest_n(&t, on, room) {
                Some(largest) => {
                    prop_assert!(fits([with(largest)], on, room).is_ok());
                    prop_assert!(fits([with(largest + 1)], on, room).is_err());
                }
                None => prop_assert!(fits([with(0)], on, room).is_err()),
            }
        }
    }

    #[test]
    fn a_refusal_tells_both_numbers() {
        let small = test(1000, 128, 1, 1, 1);
        let large = test(100_000, 128, 1, 1, 1);
        let refusal =
            fits([small.clone(), large, small.clone()], |_| PLAIN, room(16 * GIB)).unwrap_err();
        assert_eq!((refusal.n, refusal.nb), (100_000, 128));
        let text = refusal.to_string();
        // The kernels that may be chosen on other processors have work arrays of other sizes.
        let needed = if cfg!(target_arch = "x86_64") { "74.95" } else { "74.94" };
        let needed =
            format!("N=100000 with NB=128 on a 1 x 1 grid needs {needed} GiB on this node");
        assert!(text.contains(&needed), "{text}");
        assert!(text.contains("(1 rank), which has 16.00 GiB available"), "{text}");
        let largest = refusal.largest_n.unwrap();
        assert!(
            text.contains(&format!(
                "the largest N that fits is {largest} ({} as a multiple",
                largest / 128 * 128
            )),
            "{text}"
        );
        assert_eq!(fits([small], |_| PLAIN, room(16 * GIB)), Ok(()));
        assert_eq!(fits([], |_| PLAIN, room(0)), Ok(()));
    }

    /// The pool of huge pages is no part of the memory that the system calls available, and nothing else comes from it.
    #[test]
    fn huge_pages_hold_what_is_named_and_nothing_else() {
        let t = test(40_000, 128, 1, 1, 1);
        let on = |test: &TestParams| OnNode { named: Some(2 * matrix(test)), ..PLAIN };
        let need = node_need(&t, on(&t));
        assert!(need.named > 23 * GIB && need.own < GIB, "{need:?}");
        let room = |memory, huge_pages| Room { memory, huge_pages: Some(huge_pages) };
        assert_eq!(fits([t.clone()], on, room(need.own, need.named)), Ok(()));
        let why = fits([t.clone()], on, room(100 * GIB, need.named - 1)).unwrap_err();
        let text = why.to_string();
        assert!(
            text.contains("GiB of huge pages on this node") && text.contains("nr_huge"),
            "{text}"
        );
        assert_eq!(why.available_bytes, need.named - 1);
        assert!(why.largest_n.unwrap() > 39_000);
        let why = fits([t.clone()], on, room(need.own - 1, 100 * GIB)).unwrap_err();
        assert_eq!((why.needed_bytes, why.of_huge_pages), (need.own, false));
        assert_eq!(fits([t], |_| PLAIN, Room { memory: 13 * GIB, huge_pages: None }), Ok(()));
    }

    /// Ranks that keep checksums alone have neither work arrays nor a matrix.
    #[test]
    fn ranks_for_checksums_take_these_alone() {
        let t = test(40_000, 256, 2, 2, 1);
        let on = OnNode { keepers: 1, named: Some(GIB), ..PLAIN };
        assert_eq!(node_need(&t, on), Bytes { named: GIB, own: PROCESS_BYTES });
        let (one, two) = (OnNode { keepers: 0, ..on }, OnNode { ranks: 2, ..on });
        let (one, two) = (node_need(&t, one), node_need(&t, two));
        assert_eq!(two.own, one.own + PROCESS_BYTES);
    }

    #[test]
    fn absurd_sizes_are_refused_not_overflown() {
        for n in [usize::MAX, usize::MAX - 1, 1 << 62] {
            let t = test(n, usize::MAX, usize::MAX, usize::MAX, usize::MAX);
            let on = OnNode { ranks: usize::MAX, ..PLAIN };
            assert!(fits([t], |_| on, room(GIB)).is_err());
            let t = test(n, 1, 1, 1, 0);
            assert!(fits([t], |_| PLAIN, room(GIB)).unwrap_err().largest_n.is_some());
        }
        let on = OnNode { ranks: 4, ..PLAIN };
        assert!(
            fits([test(0, 1, 1, 1, 0)], |_| on, room(GIB / 8))
                .unwrap_err()
                .to_string()
                .contains("no N fits")
        );
    }

    #[test]
    fn ranks_are_counted_in_the_references_words() {
        let dat = HplDat { grids: vec![(1, 4), (2, 3), (1, 1)], ..HplDat::default() };
        let settings = Settings::default();
        assert_eq!(enough_ranks(&dat, &settings, 6), Ok(()));
        let text = enough_ranks(&dat, &settings, 5).unwrap_err().to_string();
        assert!(text.starts_with("Need at least 6 processes for these tests"), "{text}");
        assert!(text.contains("2 x 3"), "{text}");
        assert_eq!(enough_ranks(&HplDat::default(), &settings, 0), Ok(()));
    }

    #[test]
    fn sizes_in_words() {
        assert_eq!(human(3 * GIB / 2), "1.50 GiB");
        assert_eq!(human(64 << 20), "64.0 MiB");
    }
}

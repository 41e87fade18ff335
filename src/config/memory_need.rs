//! Memory that tests need on a node, and the number of ranks that they need. Pure arithmetic.
//!
//! Before the benchmark allocates memory, it calls [`fits`] with the free memory that `shm::room` read. Without this check, the
//! kernel's out-of-memory killer would end a slightly too large run in its middle.

use std::convert::Infallible;

use crate::base::bisection::last_that_holds;
use crate::base::params::{Device, TestParams};
use crate::base::units::counted;
pub use crate::lu::need::Means;
use crate::lu::need::Problem;

use super::hpl_dat::HplDat;
use super::settings::Settings;

/// Memory of a process without its arrays, in bytes: the program, and the buffers of MPI and of the BLAS.
///
/// With Open MPI 4.1 the largest resident memory of a rank (VmHWM) was 25.3 MiB, in runs of N = 400 on one node. The runs had 1,
/// 4 and 8 ranks, and used our own kernels, BLIS and OpenBLAS. With 4 and 16 ranks, a bare process of MPICH 4 took 4 to 7 MiB
/// more than a process of Open MPI. Ranks of a node share the program and its libraries. If this shared memory is counted once
/// (PSS), each of 8 ranks took 6 to 7 MiB. The rest of the 40 MiB is for network buffers, which a run on one node does not have.
pub const PROCESS_BYTES: u128 = 40 << 20;

/// Bytes that the largest rank of a test needs: its part of [A|b], the solver's work arrays, and the memory of its process.
pub fn rank_bytes(test: &TestParams, means: Means) -> u128 {
    Problem::of(test, means).largest_rank().total().saturating_add(PROCESS_BYTES)
}

/// Bytes that the largest rank of a protected test needs in addition to its persistent shared memory. The rank's part of [A|b]
/// counts only with the device `host`, which keeps this part in private memory.
pub fn private_bytes(test: &TestParams, means: Means) -> u128 {
    let need = Problem::of(test, means).largest_rank();
    let own = if means.device == Device::Host { need.matrix } else { 0 };
    need.beside.saturating_add(own).saturating_add(PROCESS_BYTES)
}

/// Bytes of device memory that the largest rank of a test needs: its part of [A|b], and the solver's arrays on the device. Zero
/// without a device that has memory of its own.
pub fn device_bytes(test: &TestParams, means: Means) -> u128 {
    Problem::of(test, means).on_device()
}

/// Bytes that all ranks of a test need together.
pub fn grid_bytes(test: &TestParams, means: Means) -> u128 {
    let ranks = wide(test.p).saturating_mul(wide(test.q));
    Problem::of(test, means).all_ranks().total().saturating_add(ranks.saturating_mul(PROCESS_BYTES))
}

fn wide(size: usize) -> u128 {
    size as u128
}

/// Ranks of a node in a test, and the data that these ranks keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnNode {
    pub ranks: usize,
    /// Number of dedicated ranks among `ranks`, which hold only parity.
    pub keepers: usize,
    /// Bytes of persistent shared memory, the matrix included; None without protection.
    pub named: Option<u128>,
    /// Number of process columns that hold checksums, in addition to the columns of the grid.
    pub checksums: usize,
    pub means: Means,
}

/// Bytes that the ranks of a node take: persistent shared memory (`named`), and memory of the processes (`own`).
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
    /// Bytes in the pool of huge pages, if persistent shared memory is taken from this pool. The pool is no part of `memory`.
    pub huge_pages: Option<u128>,
}

impl Room {
    /// Returns `None` if there is enough memory for `need`. Otherwise returns the bytes needed, the bytes free, and true if both
    /// are bytes of huge pages. The supervisor judges a node by the same rule (`supervise/judge/fitness.rs`) before a run.
    fn short_of(self, need: Bytes) -> Option<(u128, u128, bool)> {
        match self.huge_pages {
            Some(free) if need.named > free => Some((need.named, free, true)),
            Some(_) => (need.own > self.memory).then_some((need.own, self.memory, false)),
            None => (need.total() > self.memory).then_some((need.total(), self.memory, false)),
        }
    }
}

/// Returns the largest memory need of a test on a node, for any grid positions of the node's ranks. Spare ranks and dedicated
/// ranks count as processes without work arrays. The persistent shared memory of dedicated ranks is in `on.named`.
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

/// Error: a test does not fit on a node. The error has the bytes needed and the bytes available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    pub ranks_on_node: usize,
    pub needed_bytes: u128,
    pub available_bytes: u128,
    /// True if both numbers of bytes are about huge pages, and false if they are about other memory.
    pub of_huge_pages: bool,
    /// Largest N that fits with the other parameters unchanged; `None` if even N = 0 does not fit.
    pub largest_n: Option<usize>,
}

impl TooLarge {
    /// Returns the second part of a message: the bytes needed, the bytes available, and advice. The first part of the message
    /// names the test.
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
            "needs {}{of_what} on this node ({}), which has {} available; {most}{advice}",
            human(self.needed_bytes),
            counted(self.ranks_on_node, "rank"),
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

/// Checks that every test fits on a node that has the memory `room` and, in that test, the ranks `on(test)`. Otherwise returns an
/// error for the test with the largest need of all tests that do not fit.
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

/// Returns the largest N with which `test` fits on a node with the memory `room`, or `None` if no N fits. Bisection is correct,
/// because the need never falls as N grows.
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

/// Error: the tests need more ranks than the job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewRanks {
    pub p: usize,
    pub q: usize,
    pub needed: usize,
    /// Number of spare ranks among `needed`.
    pub spares: usize,
    /// Number of ranks among `needed` that hold checksums, under --method abft.
    pub checksums: usize,
    /// Number of ranks among `needed` that hold only parity.
    pub dedicated: usize,
    pub have: usize,
}

impl std::fmt::Display for TooFewRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooFewRanks { p, q, needed, spares, checksums, dedicated, have } = self;
        let others: String = [
            (checksums, "to hold checksums (--method abft)"),
            (dedicated, "to hold parity (--parity-layout dedicated)"),
            (spares, "to stand by (--spare-ranks)"),
        ]
        .into_iter()
        .filter(|(ranks, _)| **ranks > 0)
        .map(|(ranks, do_what)| format!(", plus {ranks} {do_what}"))
        .collect();
        write!(
            f,
            "Need at least {needed} processes for these tests: the largest grid is {p} x {q}{others}, and \
             there {} only {have}; start more (mpirun -n {needed}) or set a smaller grid",
            if *have == 1 { "is" } else { "are" }
        )
    }
}

impl std::error::Error for TooFewRanks {}

/// Checks that `have` ranks are enough for every grid, and for the additional ranks that `settings` require.
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

/// Returns a size as text: in GiB with two decimals, or in MiB with one decimal for less than a GiB.
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
        // Kernels for other processors have work arrays of other sizes.
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

    /// The pool of huge pages is no part of the memory that the system calls available. Only persistent shared memory uses it.
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

    /// Dedicated ranks, which hold only parity, have neither work arrays nor a matrix.
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

//! Agreement of all ranks on common facts, before any step depends on these facts.
//!
//! Nodes differ in cores, in processors, in the kernels that their BLAS picks, and in what they lack. A rank puts into its
//! [`Proposal`] every finding on which other ranks rely. One reduction of a few numbers turns all proposals into one [`Agreed`]
//! or one refusal, the same on every rank. `contest` chooses among the engines that remain, and [`settle`] makes this choice
//! valid for the whole run.
//!
//! `benchmark` calls [`agree`] once, before the first test. `protection` calls [`unanimous`] wherever a later step can fail on
//! a single rank. Only this module decides on engines and on the order of messages, so all ranks make the same choices.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::base::exit::{Exit, Refusal};
use crate::base::faults;
use crate::base::host_name;
use crate::base::params::{self, TestParams};
use crate::comm::{Comm, Reduce, die_in_turn};
use crate::kernels::Engine;
use crate::kernels::arithmetic::entrants;
use crate::lu::Order;

/// Maximum number of engines from which a run can choose.
const CANDIDATES: usize = 12;

/// Upper bound of the numbers that ranks reduce: MPI compares numbers as signed 64-bit integers.
const TOP: u64 = (1 << 63) - 1;

/// Facts about one rank. The facts about all ranks decide whether the run begins, and which engines compete.
#[derive(Clone, Debug)]
pub struct Proposal {
    rank: usize,
    threads: usize,
    /// True if each thread is bound to processors of its own.
    pinned: bool,
    /// For each possible engine, in order of preference: a digest of everything on which the last bits of the engine's results
    /// depend, or 0 if this rank cannot run the engine. `None` for a rank that never computes, because such a rank accepts any
    /// engine.
    rounding: Option<[u64; CANDIDATES]>,
    /// Digest of the program version, and of the id of the supervised run that started this rank.
    launch: u64,
    refusal: Option<Refusal>,
}

/// Proposal of a rank as numbers, for a reduction. The reduction takes the minimum of each number over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Vote([u64; HEAD + 2 * CANDIDATES]);

/// Number of entries in a vote that come before the entries for the engines.
const HEAD: usize = 7;

/// Facts about all ranks, derived from the reduced votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    /// First rank that refuses the run; `None` if no rank refuses.
    refuser: Option<usize>,
    /// True if all ranks run the same program version in the same supervised run.
    one_launch: bool,
    /// Two sets of engines, with one bit for each engine. First, the engines that all ranks can run. Second, the engines with
    /// which all ranks also compute identical last bits.
    engines: (u16, u16),
    threads: (usize, usize),
    pinned: Extent,
}

/// Agreement of all ranks before the engine is chosen: the engines that compete, threads and pinning.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// Engines that compete, in order of preference.
    pub engines: Vec<Engine>,
    alike: bool,
    /// True if this rank may compute at some time.
    computes: bool,
    threads: (usize, usize),
    pinned: Extent,
}

/// Engine of each test, according to the width of its panels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engines {
    first: Engine,
    /// Panel widths, in columns, at which the engine is not `first`, each with its engine.
    widths: Vec<(usize, Engine)>,
}

impl Engines {
    /// Makes a choice: `widths` has the engines of some panel widths, and `first` is the engine for all other widths.
    pub fn new(first: Engine, widths: Vec<(usize, Engine)>) -> Self {
        Self { first, widths }
    }

    /// Returns the width of a test's panels, in columns.
    pub fn width(test: &TestParams) -> usize {
        test.nb.min(test.n).max(1)
    }

    pub fn of(&self, test: &TestParams) -> Engine {
        let width = Self::width(test);
        self.widths.iter().find(|(own, _)| *own == width).map_or(self.first, |(_, engine)| *engine)
    }

    /// Lists the engines of all `tests` in one line, each engine once. `name` gives the text for an engine.
    pub fn told(
        &self,
        tests: impl Iterator<Item = TestParams>,
        name: fn(Engine) -> String,
    ) -> String {
        let mut names: Vec<String> = Vec::new();
        for test in tests {
            let name = name(self.of(&test));
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    }
}

/// Facts on which all ranks have agreed, including the engine of each test.
#[derive(Clone, Debug)]
pub struct Common {
    pub engines: Engines,
    /// Description of the arithmetic on which the last bits of results depend. If the arithmetic differs between ranks, the
    /// description is rank 0's.
    pub rounding: String,
    /// First rank whose last bits differ from rank 0's, with the arithmetic of that rank. `None` if all ranks compute identical
    /// last bits.
    pub differs: Option<String>,
    /// Least and greatest number of threads of a rank.
    pub threads: (usize, usize),
    /// Extent to which threads are bound to processors of their own.
    pub pinned: Extent,
}

impl Common {
    /// Returns the order of messages for all ranks. The order is chosen for the rank with the most threads, because such a rank
    /// may multiply while its main thread factors.
    pub fn order(&self, split_update: params::SplitUpdate) -> Order {
        Order { threads: self.threads.1, split_update }
    }
}

/// Extent to which the threads of all ranks are pinned. An idle rank counts as pinned if its node also has computing ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    All,
    Some,
    None,
}

impl Extent {
    pub fn name(self) -> &'static str {
        match self {
            Extent::All => "all",
            Extent::Some => "some",
            Extent::None => "none",
        }
    }
}

/// Returns a digest below [`TOP`] that is never 0.
fn digest(text: &str) -> u64 {
    xxh3_64(text.as_bytes()) >> 1 | 1
}

impl Vote {
    fn verdict(&self) -> Verdict {
        let [refuser, fewest, most, launch_low, launch_high, pinned, loose, rounding @ ..] = self.0;
        let alike = |pair: &[u64]| pair[0] == TOP - pair[1];
        let bits = |keep: &dyn Fn(&[u64]) -> bool| {
            let bit = |(i, pair)| u16::from(keep(pair)) << i;
            rounding.chunks_exact(2).enumerate().map(bit).sum()
        };
        Verdict {
            refuser: (refuser < TOP).then_some(refuser as usize),
            one_launch: alike(&[launch_low, launch_high]),
            engines: (bits(&|pair| pair[0] > 0), bits(&|pair| pair[0] > 0 && alike(pair))),
            threads: (fewest as usize, (TOP - most) as usize),
            pinned: match (pinned, loose) {
                (1, _) => Extent::All,
                (_, 1) => Extent::None,
                _ => Extent::Some,
            },
        }
    }
}

impl Verdict {
    /// Returns the engines that compete, and whether all ranks compute identical last bits with each competing engine.
    /// [`entrants`] selects from the engines that all ranks can run. If some of the selected engines give identical last bits on
    /// all ranks, the other selected engines do not compete.
    fn competing(&self, choice: params::Engine, protected: bool) -> (Vec<&'static str>, bool) {
        let (everywhere, alike) = self.engines;
        let names = Engine::candidates(choice);
        let of = |bits: u16, name: &str| {
            names.iter().position(|n| *n == name).is_some_and(|i| bits >> i & 1 == 1)
        };
        let runnable = names.iter().copied().filter(|name| of(everywhere, name)).collect();
        let mut competing = entrants(choice, protected, runnable);
        let any_alike = competing.iter().any(|name| of(alike, name));
        if any_alike {
            competing.retain(|name| of(alike, name));
        }
        (competing, any_alike)
    }
}

impl Proposal {
    /// Makes this rank's proposal for a run with `--engine` set to `choice`. `computes` is true if the rank may compute at some
    /// time. `run_id` is the id of the supervised run, and `device` is the device that computes, if there is one.
    pub fn new(
        rank: usize,
        choice: params::Engine,
        computes: bool,
        threads: usize,
        pinned: bool,
        run_id: Option<&str>,
        device: Option<&str>,
    ) -> Self {
        let digest_here = |name: &str| {
            let engine = Engine::named(name).filter(|_| !faults::lacks(name));
            engine.map_or(0, |engine| digest(&arithmetic(engine.identity(), device)))
        };
        let rounding = computes.then(|| {
            let mut rounding = [0; CANDIDATES];
            let names = Engine::candidates(choice);
            rounding.iter_mut().zip(names).for_each(|(place, name)| *place = digest_here(name));
            rounding
        });
        let launch = format!("{} {}", env!("CARGO_PKG_VERSION"), run_id.unwrap_or_default());
        let launch = digest(&launch);
        let mut this = Self { rank, threads, pinned, rounding, launch, refusal: None };
        if rounding.is_some_and(|rounding| rounding.iter().all(|&digest| digest == 0)) {
            this.needs::<()>(Err(Refusal::bad_input(Engine::refusal(choice))));
        }
        this
    }

    /// Returns the value of `result`. An error becomes this rank's refusal, unless the rank already has one.
    pub fn needs<T>(&mut self, result: Result<T, Refusal>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(ended) => {
                self.refusal.get_or_insert(ended);
                None
            }
        }
    }

    fn vote(&self) -> Vote {
        let mut vote = [TOP; HEAD + 2 * CANDIDATES];
        if self.refusal.is_some() {
            vote[0] = self.rank as u64;
        }
        vote[1] = self.threads as u64;
        vote[2] = TOP - self.threads as u64;
        vote[3] = self.launch;
        vote[4] = TOP - self.launch;
        // With two numbers, the minimum distinguishes all, none and some of the ranks.
        vote[5] = u64::from(self.pinned);
        vote[6] = u64::from(!self.pinned);
        // If this rank accepts any engine, its numbers stay at the maximum and do not affect the minimum.
        let votes = self.rounding.iter().flatten();
        for (pair, digest) in vote[HEAD..].chunks_exact_mut(2).zip(votes) {
            pair.copy_from_slice(&[*digest, TOP - digest]);
        }
        Vote(vote)
    }
}

/// Returns the agreement of all ranks, or the refusal of the first rank that refuses. Collective call.
///
/// # Errors
/// A rank refuses, or a rank has another program version or supervised run than rank 0, or no engine of `choice` runs on all
/// ranks.
pub fn agree(
    comm: &Comm,
    proposal: Proposal,
    choice: params::Engine,
    protected: bool,
) -> Result<Agreed, Refusal> {
    let Vote(mut all) = proposal.vote();
    comm.all_reduce(&mut all, Reduce::Min);
    let verdict = Vote(all).verdict();
    if let Some(refuser) = verdict.refuser {
        return Err(told_by(comm, refuser, proposal.refusal));
    }
    if !verdict.one_launch {
        let odd = first_unlike_rank_0(comm, Some(proposal.launch));
        let why = "this rank has another version of skt-hpl than rank 0, or another supervised run \
                   (SKT_RUN_ID). Start all ranks from the same program with one command";
        return Err(told_by(comm, odd, Some(Refusal::environment(why))));
    }
    let (names, alike) = verdict.competing(choice, protected);
    let made = Engine::made(choice);
    let engine = |name: &&str| made.iter().copied().find(|engine| engine.name() == *name);
    let engines: Vec<Engine> = names.iter().filter_map(engine).collect();
    assert_eq!(engines.len(), names.len(), "all ranks are one program");
    if engines.is_empty() {
        // Each rank can run an engine of `choice`, but no engine of `choice` runs on all ranks.
        let why =
            "no engine that --engine allows runs on all ranks; --engine auto chooses one that does";
        return Err(told_by(comm, 0, Some(Refusal::bad_input(why))));
    }
    let Verdict { threads, pinned, .. } = verdict;
    Ok(Agreed { engines, alike, computes: proposal.rounding.is_some(), threads, pinned })
}

/// Completes the agreement with the chosen `engines`. All ranks pass the same choice from `agreed.engines`. Collective call. In a
/// protected run, the engines of all tests give identical last bits, because `entrants` admits either the program's own engines
/// or the BLAS.
pub fn settle(
    comm: &Comm,
    agreed: Agreed,
    engines: Engines,
    tests: &[TestParams],
    device: Option<&str>,
) -> Common {
    let identity = arithmetic(engines.told(tests.iter().cloned(), Engine::identity), device);
    let rounding = shared_by(comm, 0, || identity.clone());
    let differs = (!agreed.alike).then(|| {
        let odd = first_unlike_rank_0(comm, agreed.computes.then(|| digest(&identity)));
        told_by(comm, odd, Some(Refusal::environment(identity))).why
    });
    let Agreed { threads, pinned, .. } = agreed;
    Common { engines, rounding, differs, threads, pinned }
}

/// Describes everything on which the last bits of results depend: the engine, and the device that computes, if there is one.
fn arithmetic(engine: String, device: Option<&str>) -> String {
    device.map_or(engine.clone(), |device| format!("{engine} and {device}"))
}

/// Returns `result` if all ranks succeed. Otherwise returns the failure of the first rank that failed, on all ranks. Collective
/// call.
pub fn unanimous<T>(comm: &Comm, result: Result<T, Refusal>) -> Result<T, Refusal> {
    let own = if result.is_err() { comm.rank() as u64 } else { TOP };
    match reduced(comm, own, Reduce::Min) {
        TOP => result,
        refuser => Err(told_by(comm, refuser as usize, result.err())),
    }
}

/// Broadcasts the refusal of rank `teller`. The message of the broadcast refusal begins with the number and node of rank
/// `teller`.
fn told_by(comm: &Comm, teller: usize, mine: Option<Refusal>) -> Refusal {
    shared_by(comm, teller, || {
        let Refusal { exit, why } = mine.expect("the verdict names the rank that speaks");
        Refusal::new(exit, format!("rank {teller} on {}: {why}", host_name()))
    })
}

/// Calls `make` on rank `rank`, and returns the value on all ranks. Collective call.
pub fn shared_by<T>(comm: &Comm, rank: usize, make: impl FnOnce() -> T) -> T
where
    T: Serialize + DeserializeOwned,
{
    let mut bytes = Vec::new();
    if comm.rank() == rank {
        bytes = serde_json::to_vec(&make()).expect("plain values have a JSON form");
    }
    comm.broadcast_bytes(&mut bytes, rank);
    serde_json::from_slice(&bytes).expect("JSON of one rank is readable for another rank")
}

/// Returns the values of all ranks, in the order of ranks, on all ranks. Collective call. Ends the job if the value of a rank
/// cannot be read.
///
/// If a rank is lost before the first attempt, Open MPI 5.0.11 may still report success, and the value of the lost rank is then
/// empty.
pub fn gathered<T: Serialize + DeserializeOwned>(comm: &Comm, mine: &T) -> Vec<T> {
    let bytes = serde_json::to_vec(mine).expect("plain values have a JSON form");
    let parse = |(rank, told): (usize, &Vec<u8>)| {
        serde_json::from_slice(told).unwrap_or_else(|_| {
            let why = format!("rank {rank} is lost: it sent no data. Start the run again");
            die_in_turn(Exit::Environment.code().into(), &why)
        })
    };
    comm.all_gather_bytes(&bytes).iter().enumerate().map(parse).collect()
}

/// Reduces the numbers of all ranks to one number by `op`, and returns it on all ranks. Collective call.
pub fn reduced(comm: &Comm, number: u64, op: Reduce) -> u64 {
    let mut all = [number];
    comm.all_reduce(&mut all, op);
    all[0]
}

/// Puts the ranks selected by `idle` to sleep until rank `waker` calls this function, or until a rank is lost. Rank `waker` must
/// not be idle. Collective call.
pub fn stand_by(comm: &Comm, waker: usize, idle: impl Fn(usize) -> bool) {
    const TAG: i32 = 40;
    // An idle rank need not notice the end of the work at once, but it must notice a loss soon.
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    if idle(comm.rank()) {
        comm.await_word(waker, TAG, LOOK_EVERY);
        comm.recv::<u8>(&mut [], waker, TAG);
    } else if comm.rank() == waker {
        (0..comm.size()).filter(|&rank| idle(rank)).for_each(|rank| {
            comm.send::<u8>(&[], rank, TAG);
        });
    }
}

/// Returns the first rank whose value differs from rank 0's. Ranks without a value are ignored. Rank 0 must have a value, and the
/// value of some rank must differ. Collective call.
fn first_unlike_rank_0(comm: &Comm, mine: Option<u64>) -> usize {
    let first = shared_by(comm, 0, || mine);
    let unlike = mine.is_some() && mine != first;
    reduced(comm, if unlike { comm.rank() as u64 } else { TOP }, Reduce::Min) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Vote {
        /// Combines two votes as the reduction does.
        fn with(mut self, other: Vote) -> Vote {
            for (mine, other) in self.0.iter_mut().zip(other.0) {
                *mine = (*mine).min(other);
            }
            self
        }
    }

    fn proposal(rank: usize, threads: usize, first: [u64; 2], launch: u64) -> Proposal {
        let mut rounding = [0; CANDIDATES];
        rounding[..2].copy_from_slice(&first);
        let rounding = Some(rounding);
        Proposal { rank, threads, pinned: threads == 2, rounding, launch, refusal: None }
    }

    fn all(proposals: &[Proposal]) -> Verdict {
        proposals.iter().map(Proposal::vote).reduce(Vote::with).unwrap().verdict()
    }

    /// Compares the verdict with its definition, for up to three ranks with few values each.
    #[test]
    fn the_verdict_is_what_is_meant_for_every_small_run() {
        let kinds: Vec<Proposal> = (0..2 * 9 * 2 * 2)
            .map(|i| {
                let (threads, rest) = (1 + i % 2, i / 2);
                let (a, b, rest) = (rest % 3, rest / 3 % 3, rest / 9);
                let mut kind = proposal(0, threads, [a as u64, b as u64], 1 + rest as u64 % 2);
                if rest / 2 == 1 {
                    kind.refusal = Some(Refusal::bad_input("no"));
                }
                kind
            })
            .collect();
        let mut ranks = Vec::new();
        for size in 1..=3u32 {
            for case in 0..kinds.len().pow(size) {
                ranks.clear();
                for rank in 0..size {
                    let kind = case / kinds.len().pow(rank) % kinds.len();
                    ranks.push(Proposal { rank: rank as usize, ..kinds[kind].clone() });
                }
                let verdict = all(&ranks);
                let refuser = ranks.iter().position(|r| r.refusal.is_some());
                assert_eq!(verdict.refuser, refuser, "{ranks:?}");
                assert_eq!(verdict.one_launch, ranks.iter().all(|r| r.launch == ranks[0].launch));
                let digests = |rank: &Proposal| rank.rounding.unwrap();
                let runs = |i: usize| ranks.iter().all(|r| digests(r)[i] > 0);
                let alike = |i: usize| {
                    ranks.iter().all(|r| r.rounding.unwrap()[i] == digests(&ranks[0])[i])
                };
                let bits = |keep: &dyn Fn(usize) -> bool| {
                    (0..CANDIDATES).map(|i| u16::from(keep(i)) << i).sum::<u16>()
                };
                let wanted = (bits(&runs), bits(&|i| runs(i) && alike(i)));
                assert_eq!(verdict.engines, wanted, "{ranks:?}");
                let threads = ranks.iter().map(|r| r.threads);
                let wanted = (threads.clone().min().unwrap(), threads.max().unwrap());
                assert_eq!(verdict.threads, wanted);
                // Ranks with two threads are pinned.
                let extent = match wanted {
                    (2, _) => Extent::All,
                    (_, 1) => Extent::None,
                    _ => Extent::Some,
                };
                assert_eq!(verdict.pinned, extent);
            }
        }
    }

    proptest! {
        /// A reduction may combine ranks in any order, in a tree of any shape.
        #[test]
        fn no_order_of_the_ranks_changes_the_verdict(
            kinds in proptest::collection::vec((1usize..200, 0u64..TOP, 0u64..TOP, 1u64..TOP, any::<bool>()), 1..40),
            seed: u64,
        ) {
            let mut votes: Vec<Vote> = kinds.iter().enumerate().map(|(rank, k)| {
                let mut one = proposal(rank, k.0, [k.1, k.2], k.3);
                if k.4 {
                    one.needs::<()>(Err(Refusal::bad_input("no")));
                }
                one.vote()
            }).collect();
            prop_assert!(votes.iter().all(|v| v.0.iter().all(|&n| n <= TOP)));
            let one_by_one = votes.iter().copied().reduce(Vote::with).unwrap();
            let mut state = seed | 1;
            while votes.len() > 1 {
                state ^= state << 13; state ^= state >> 7; state ^= state << 17;
                let a = votes.swap_remove(state as usize % votes.len());
                let at = (state >> 32) as usize % votes.len();
                votes[at] = votes[at].with(a);
            }
            prop_assert_eq!(votes[0], one_by_one);
        }
    }

    /// A rank that is outside of the grid in every test has no influence on the choice.
    #[test]
    fn a_rank_that_never_computes_has_no_say_in_the_engine() {
        let idle = |rank| Proposal { rounding: None, ..proposal(rank, 1, [0, 0], 1) };
        for digests in [[5, 7], [5, 0], [0, 7]] {
            for other in [[5, 7], [6, 7], [0, 7]] {
                let two = [proposal(0, 1, digests, 1), proposal(1, 1, other, 1)];
                let with = [two[0].clone(), two[1].clone(), idle(2), idle(3)];
                assert_eq!(all(&with), all(&two));
            }
        }
        let new = |computes| Proposal::new(1, params::Engine::Auto, computes, 1, false, None, None);
        assert!(new(false).rounding.is_none() && new(true).rounding.is_some());
    }

    #[test]
    fn of_several_wants_the_first_is_told() {
        let mut one = proposal(3, 1, [1, 1], 1);
        assert_eq!(one.needs(Ok(7)), Some(7));
        assert_eq!(one.needs::<()>(Err(Refusal::new(Exit::NoSharedMemory, "first"))), None);
        assert_eq!(one.needs::<()>(Err(Refusal::bad_input("second"))), None);
        assert_eq!(one.refusal, Some(Refusal::new(Exit::NoSharedMemory, "first")));
    }

    /// Checks that the ranks find differences in rounding exactly if the supervisor finds an unsuitable node. The supervisor
    /// judges nodes before any rank exists.
    #[test]
    fn the_ranks_decide_like_the_check_of_nodes_before() {
        use crate::kernels::arithmetic::{Arithmetic, Rules};
        use params::Engine::{Auto, Blas, Packed, Portable};
        let kinds = [
            &["avx512-24x8", "avx2-12x4", "portable-4x4", "blas"][..],
            &["avx2-12x4", "portable-4x4", "blas"],
        ];
        let kinds = kinds.into_iter().chain([&["portable-4x4", "blas"][..], &["blas"]]);
        let kinds: Vec<Arithmetic> = kinds
            .flat_map(|engines| ["zen", "skx"].map(|kernel| (engines, kernel)))
            .map(|(engines, kernel)| Arithmetic {
                engines: engines.iter().map(|name| name.to_string()).collect(),
                library: "BLIS 1.0".into(),
                picked: kernel.into(),
                preflight: kernel.into(),
                named: None,
            })
            .collect();
        let proposal = |rank: usize, node: &Arithmetic, choice| {
            let mut rounding = [0; CANDIDATES];
            for (place, name) in rounding.iter_mut().zip(Engine::candidates(choice)) {
                let fused = node.engines.len() > 1;
                let of_blas = Engine::identity_of_blas(&node.picked, fused);
                let identity = if name == "blas" { &of_blas } else { Engine::OWN };
                let able = node.engines.iter().any(|own| own == name);
                *place = if able { digest(identity) } else { 0 };
            }
            Proposal { rounding: Some(rounding), ..proposal(rank, 1, [0, 0], 1) }
        };
        let pairs = kinds.iter().flat_map(|one| kinds.iter().map(move |other| [one, other]));
        for nodes in pairs {
            for choice in [Auto, Packed, Portable, Blas] {
                let rules = Rules { engine: choice, preflight: true, told: false, named: false };
                let run = rules.rounding(nodes);
                let suit = |run: &String| nodes.iter().all(|node| rules.suits(node, run).is_ok());
                let ranks: Vec<_> = (0..2).map(|r| proposal(r, nodes[r], choice)).collect();
                let (names, alike) = all(&ranks).competing(choice, true);
                let case = format!("{nodes:?} {choice:?} {run:?} {names:?}");
                assert_eq!(run.is_some(), !names.is_empty(), "{case}");
                assert_eq!(run.as_ref().is_some_and(suit), alike, "{case}");
                let of_ours = run.is_some_and(|run| run == Engine::OWN);
                assert_eq!(of_ours, names.iter().any(|name| *name != "blas"), "{case}");
                // Without protection, a node without fast kernels does not slow the other nodes down.
                let (names, _) = all(&ranks).competing(choice, false);
                assert!(choice != Auto || !names.contains(&"portable-4x4"), "{case} {names:?}");
            }
        }
    }

    #[test]
    fn each_width_has_its_engine() {
        let test = |n, nb| TestParams { n, nb, ..crate::testkit::report::params() };
        let first = Engine::runnable()[0];
        let engines = Engines::new(first, vec![(64, Engine::Blas)]);
        let all = [test(500, 32), test(500, 64), test(64, 200), test(500, 200)];
        let of = all.each_ref().map(|test| engines.of(test));
        assert_eq!(of, [first, Engine::Blas, Engine::Blas, first]);
        let names = engines.told(all.into_iter(), |engine| engine.name().to_owned());
        assert_eq!(names, format!("{}, blas", first.name()));
        assert_eq!(Engines::width(&test(0, 8)), 1);
    }

    #[test]
    fn every_choice_names_engines_that_exist_and_fits_the_vote() {
        use clap::ValueEnum;
        for choice in params::Engine::value_variants() {
            let names = Engine::candidates(*choice);
            assert!((1..=CANDIDATES).contains(&names.len()));
        }
        for engine in Engine::runnable() {
            assert!(Engine::candidates(params::Engine::Auto).contains(&engine.name()));
        }
    }
}

//! Candidates that may be tried on a machine, and the order in which they are tried.

use serde::{Deserialize, Serialize};

use crate::base::params::{Bcast, Device, Fact, Mapping, Swap, TestParams};
use crate::base::units::counted;
use crate::model::planner::usual;

/// Parameters with which a job starts: layout of ranks and threads on the nodes, and the BLAS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    pub ranks_per_node: usize,
    pub threads: usize,
    /// BLAS that replaces the linked BLAS; None for the linked BLAS.
    pub blas: Option<String>,
    /// Device of each rank.
    #[serde(default)]
    pub device: Device,
}

/// A candidate: all parameters with which the problem can be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    pub layout: Layout,
    pub test: TestParams,
}

/// Domain of the search: the values that it may choose from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Domain {
    pub n: usize,
    pub nodes: usize,
    pub cores: usize,
    /// Numbers of ranks per node, the most promising first, as in all lists of the domain.
    pub ranks_per_node: Vec<usize>,
    pub nbs: Vec<usize>,
    /// True if block sizes other than `nbs` may be tried.
    pub nb_is_free: bool,
    /// Grids that the user allows; empty if all grids are allowed.
    pub grids: Vec<(usize, usize)>,
    pub blas: Vec<Option<String>>,
    #[serde(default)]
    pub device: Device,
}

/// Block sizes that usually give good rates, the most promising first.
pub const USUAL_NBS: [usize; 6] = [256, 192, 384, 128, 320, 512];

/// Block sizes that usually give good rates on devices, the most promising first.
pub const DEVICE_NBS: [usize; 5] = [512, 384, 768, 256, 1024];

/// Returns the grids P x Q of `ranks` ranks that are worth a try. Grids with P <= Q come in order, the most square first. Only
/// the most square grid with more rows than columns is included, as the third at the latest.
pub fn grids(ranks: usize) -> Vec<(usize, usize)> {
    const MOST: usize = 4;
    let mut flat: Vec<(usize, usize)> =
        (1..=ranks.isqrt()).filter(|p| ranks.is_multiple_of(*p)).map(|p| (p, ranks / p)).collect();
    flat.reverse();
    flat.truncate(MOST);
    let tall = flat.iter().find(|(p, q)| p < q).map(|&(p, q)| (q, p));
    let at = 2.min(flat.len());
    if let Some(tall) = tall {
        flat.insert(at, tall);
    }
    flat
}

/// Returns those of the `numbers` of ranks that divide the cores of a node evenly, without duplicates.
pub fn layouts(cores: usize, numbers: &[usize]) -> Vec<usize> {
    let mut all = Vec::new();
    for &ranks in numbers {
        if ranks > 0 && cores.is_multiple_of(ranks) && !all.contains(&ranks) {
            all.push(ranks);
        }
    }
    all
}

impl Domain {
    /// Returns all combinations of layouts, grids and block sizes, the most promising first.
    pub fn first(&self) -> Vec<Candidate> {
        let mut ranked = Vec::new();
        for (b, blas) in self.blas.iter().enumerate() {
            for (r, &ranks_per_node) in self.ranks_per_node.iter().enumerate() {
                let threads = (self.cores / ranks_per_node).max(1);
                let (blas, device) = (blas.clone(), self.device);
                let layout = Layout { ranks_per_node, threads, blas, device };
                let ranks = self.nodes * ranks_per_node;
                let asked = self.grids.iter().copied().filter(|(p, q)| p * q == ranks);
                let grids = if self.grids.is_empty() { grids(ranks) } else { asked.collect() };
                for (g, grid) in grids.into_iter().enumerate() {
                    for (s, &nb) in self.nbs.iter().enumerate() {
                        let test = usual(self.n, nb, grid);
                        ranked.push((b + r + g + s, Candidate { layout: layout.clone(), test }));
                    }
                }
            }
        }
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns variations of `best` with one choice changed, each with the name of the choice. Choices that matter most on most
    /// machines come first.
    pub fn variations(&self, best: &Candidate) -> Vec<(&'static str, Candidate)> {
        let mut all = Vec::new();
        let mut with = |what: &'static str, change: &dyn Fn(&mut TestParams)| {
            let mut test = best.test.clone();
            change(&mut test);
            if test != best.test {
                all.push((what, Candidate { layout: best.layout.clone(), test }));
            }
        };
        if self.nb_is_free {
            for step in [-32isize, 32, -64, 64] {
                if let Some(nb) = best.test.nb.checked_add_signed(step).filter(|nb| *nb >= 32) {
                    with("NB", &|test| test.nb = nb);
                }
            }
        }
        for depth in [0, 1, 2] {
            with("DEPTH", &|test| test.depth = depth);
        }
        for nbmin in [8, 16, 2, 4] {
            with("NBMIN", &|test| test.nbmin = nbmin);
        }
        if best.test.q > 1 {
            use Bcast::{Long, LongM, OneRing, OneRingM, TwoRing, TwoRingM};
            for bcast in [OneRing, TwoRingM, LongM, OneRingM, TwoRing, Long] {
                with("BCAST", &|test| test.bcast = bcast);
            }
        }
        if best.test.p > 1 {
            with("SWAP", &|test| test.swap = Swap::Long);
            with("SWAP", &|test| test.swap = Swap::BinaryExchange);
            with("SWAP", &|test| test.swap = Swap::Mix);
            for columns in [32, 128, 256] {
                with("SWAP", &|test| (test.swap, test.swap_threshold) = (Swap::Mix, columns));
            }
        }
        for fact in [Fact::Left, Fact::Crout, Fact::Right] {
            with("PFACT", &|test| test.pfact = fact);
            with("RFACT", &|test| test.rfact = fact);
        }
        for ndiv in [3, 4, 2] {
            with("NDIV", &|test| test.ndiv = ndiv);
        }
        if self.nodes > 1 && best.layout.ranks_per_node > 1 {
            with("PMAP", &|test| test.mapping = Mapping::Column);
        }
        all
    }

    /// Returns `base` with all `choices` made: each choice has its value from its candidate.
    pub fn combined(base: &Candidate, choices: &[(&'static str, Candidate)]) -> Candidate {
        let mut test = base.test.clone();
        for (what, Candidate { test: other, .. }) in choices {
            match *what {
                "NB" => test.nb = other.nb,
                "DEPTH" => test.depth = other.depth,
                "NBMIN" => test.nbmin = other.nbmin,
                "BCAST" => test.bcast = other.bcast,
                "SWAP" => {
                    (test.swap, test.swap_threshold) = (other.swap, other.swap_threshold);
                }
                "PFACT" => test.pfact = other.pfact,
                "RFACT" => test.rfact = other.rfact,
                "NDIV" => test.ndiv = other.ndiv,
                _ => test.mapping = other.mapping,
            }
        }
        Candidate { layout: base.layout.clone(), test }
    }
}

/// Describes a candidate in one line: block size, grid, variant as HPL writes it, threads of a rank, and BLAS if one is given.
pub fn words(candidate: &Candidate) -> String {
    let Candidate { layout, test } = candidate;
    let blas = layout.blas.as_ref().map(|blas| format!(", {blas}")).unwrap_or_default();
    format!(
        "NB {:>3}  {} x {}  {}  {} a rank{blas}",
        test.nb,
        test.p,
        test.q,
        crate::report::text::variant(test),
        counted(layout.threads, "thread"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Domain {
        /// Returns a domain with all choices for N = 12000 on a node of `cores` cores.
        pub fn of_cores(cores: usize) -> Self {
            Self {
                n: 12_000,
                nodes: 1,
                cores,
                ranks_per_node: layouts(cores, &[1, 2, cores]),
                nbs: USUAL_NBS.to_vec(),
                nb_is_free: true,
                grids: Vec::new(),
                blas: vec![None],
                device: Device::None,
            }
        }
    }

    #[test]
    fn near_grids_come_first() {
        assert_eq!(grids(1), [(1, 1)]);
        assert_eq!(grids(2), [(1, 2), (2, 1)]);
        assert_eq!(grids(4), [(2, 2), (1, 4), (4, 1)]);
        assert_eq!(grids(7), [(1, 7), (7, 1)]);
        assert_eq!(grids(64), [(8, 8), (4, 16), (16, 4), (2, 32), (1, 64)]);
        for ranks in 1..500 {
            assert!(grids(ranks).iter().all(|(p, q)| p * q == ranks));
        }
    }

    #[test]
    fn ranks_divide_the_cores() {
        assert_eq!(layouts(2, &[1, 1, 1, 2, 2]), [1, 2]);
        assert_eq!(layouts(64, &[16, 8, 1, 32, 64]), [16, 8, 1, 32, 64]);
        assert_eq!(layouts(6, &[4, 0, 1, 8, 6]), [1, 6]);
        assert_eq!(layouts(1, &[1, 1, 1, 2, 1]), [1]);
    }

    #[test]
    fn all_combinations_are_there_once_and_likely_ones_first() {
        let all = Domain::of_cores(2).first();
        assert_eq!(all.len(), 6 * 3);
        let first = &all[0];
        assert_eq!(
            (first.test.nb, first.test.p, first.test.q, first.layout.threads),
            (256, 1, 1, 2)
        );
        for (i, one) in all.iter().enumerate() {
            assert!(!all[..i].contains(one));
            assert_eq!(one.layout.ranks_per_node, one.test.p * one.test.q);
        }
        let asked = Domain { grids: vec![(2, 1)], nbs: vec![100], ..Domain::of_cores(2) };
        let all = asked.first();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].test.nb, all[0].test.p, all[0].layout.threads), (100, 2, 1));
    }

    #[test]
    fn a_variation_differs_in_what_it_says_and_only_where_that_matters() {
        let domain = Domain::of_cores(2);
        let best = domain.first().into_iter().find(|c| c.test.p == 1 && c.test.q == 2).unwrap();
        let all = domain.variations(&best);
        assert!(all.iter().any(|(what, _)| *what == "BCAST"));
        assert!(all.iter().all(|(what, _)| *what != "SWAP" && *what != "PMAP"));
        for (i, (what, one)) in all.iter().enumerate() {
            assert_ne!(*one, best);
            assert!(all[..i].iter().all(|(_, other)| other != one), "{what}");
            let back = Domain::combined(&best, std::slice::from_ref(&(*what, one.clone())));
            assert_eq!(back, *one, "{what}");
        }
        let fixed = Domain { nb_is_free: false, ..domain };
        assert!(fixed.variations(&best).iter().all(|(what, _)| *what != "NB"));
    }
}

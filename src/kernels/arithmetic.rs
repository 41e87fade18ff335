//! Properties of a node that determine the last bits of a result, found before any rank runs on the node. Pure, except for
//! [`Arithmetic::here`].
//!
//! A protected run is a run that survives the loss of nodes. It promises the same bits, on whichever node the ranks of a lost
//! node continue. The ranks themselves refuse memory that was computed with another arithmetic, but ranks start only after their
//! node has been chosen. So agents report the arithmetic of their node. `supervise::judge::fitness` refuses a node that would
//! round differently ([`Rules::suits`]).
//!
//! All kernels of this program give the same bits. While a run is computed with these kernels, nodes with other instruction
//! sets are acceptable.

use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::library::Library;
use super::preflight::Named;
use crate::base::faults;
use crate::base::params;

/// Arithmetic that is available on one node: its engines and its BLAS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arithmetic {
    /// Engines that the node can run, by name.
    pub engines: Vec<String>,
    /// Name and version of the linked BLAS.
    pub library: String,
    /// Kernels that the linked BLAS selects by itself.
    pub picked: String,
    /// Kernels that the linked BLAS uses after the preflight.
    pub preflight: String,
    /// BLAS that `--blas` names on this node, or the reason why this BLAS cannot be used. `None` without `--blas`.
    #[serde(default)]
    pub named: Option<Result<Named, String>>,
}

/// Settings of a run that decide which properties of a node matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub engine: params::Engine,
    pub preflight: bool,
    /// True if an environment variable of the ranks sets the kernels that their BLAS uses.
    pub told: bool,
    /// True if `--blas` gives the ranks another BLAS than the linked one. Each node's agent describes this BLAS in
    /// [`Arithmetic::named`].
    pub named: bool,
}

impl Arithmetic {
    /// Returns this node's arithmetic.
    pub fn here() -> Self {
        let names = Engine::runnable().into_iter().map(Engine::name);
        let Named { library, picked, preflight } = Named::of(&Library::query(), "");
        let engines = names.filter(|name| !faults::lacks(name)).map(str::to_owned).collect();
        Self { engines, library, picked, preflight, named: None }
    }
}

/// Returns the engines among which a run with `--engine` set to `choice` chooses. `everywhere` are the engines that `choice`
/// allows and that run on all nodes.
///
/// A protected run without a chosen engine uses this program's own kernels if possible. These kernels give the same bits on all
/// nodes, so a restart may use another of these kernels.
pub fn entrants(choice: params::Engine, protected: bool, mut everywhere: Vec<&str>) -> Vec<&str> {
    let portable = |name: &str| name.starts_with("portable");
    let own = everywhere.iter().any(|name| *name != "blas" && !portable(name));
    if choice == params::Engine::Auto && protected && own {
        everywhere.retain(|name| *name != "blas");
    }
    // The portable kernel competes only if there is no other engine.
    if everywhere.len() > 1 {
        everywhere.retain(|name| !portable(name));
    }
    everywhere
}

impl Rules {
    /// Describes the arithmetic of a protected run on `nodes`. If the nodes differ, returns the arithmetic that suits the most
    /// nodes. Returns `None` if no engine runs on all nodes.
    pub fn rounding<'a>(&self, nodes: impl IntoIterator<Item = &'a Arithmetic>) -> Option<String> {
        // Thousands of nodes have only a few different arithmetics, so each of these is examined once.
        let mut kinds: Vec<(&Arithmetic, usize)> = Vec::new();
        for node in nodes {
            match kinds.iter_mut().find(|(kind, _)| *kind == node) {
                Some((_, count)) => *count += 1,
                None => kinds.push((node, 1)),
            }
        }
        let suited = |words: &String| -> usize {
            let suits = kinds.iter().filter(|(kind, _)| self.suits(kind, words).is_ok());
            suits.map(|(_, count)| count).sum()
        };
        let nodes: Vec<&Arithmetic> = kinds.iter().map(|(kind, _)| *kind).collect();
        // If several arithmetics suit the same number of nodes, the first one is returned.
        let all = nodes.iter().rev().filter_map(|first| self.of_all(first, &nodes));
        all.max_by_key(suited)
    }

    /// Describes the arithmetic of a protected run with an engine that runs on all `nodes`. If this engine is the BLAS, describes
    /// the BLAS of the node `first`. Returns `None` if no engine runs on all nodes.
    fn of_all(&self, first: &Arithmetic, nodes: &[&Arithmetic]) -> Option<String> {
        let everywhere = Engine::candidates(self.engine)
            .into_iter()
            .filter(|name| nodes.iter().all(|node| node.engines.iter().any(|own| own == name)))
            .collect();
        match entrants(self.engine, true, everywhere)[..] {
            [] => None,
            ["blas"] => Some(self.of_blas(first)),
            _ => Some(Engine::OWN.to_owned()),
        }
    }

    fn of_blas(&self, node: &Arithmetic) -> String {
        let (library, picked, preflight) = match (self.named, &node.named) {
            (false, _) => (&node.library, &node.picked, &node.preflight),
            (true, Some(Ok(named))) => (&named.library, &named.picked, &named.preflight),
            (true, _) => return "the BLAS of --blas".to_owned(),
        };
        let kernel = match (self.told, self.preflight) {
            (true, _) => "the kernels that its variable sets",
            (false, true) => preflight,
            (false, false) => picked,
        };
        // A processor with fused multiply-add instructions runs our own kernels, too.
        let fused = node.engines.iter().any(|name| name != "blas");
        Engine::identity_of_blas(&format!("{library} {kernel}"), fused)
    }

    /// Checks whether a node can take part in a run with arithmetic `run`. The error is the reason why the node cannot take part.
    pub fn suits(&self, node: &Arithmetic, run: &str) -> Result<(), String> {
        let has =
            if run == Engine::OWN { self.of_all(node, &[node]) } else { Some(self.of_blas(node)) };
        match has {
            Some(has) if has == run => Ok(()),
            has => Err(format!(
                "the results of this node would differ in their last bits: this node computes with {}, the run with {run}. \
                 Use a node with the same processor and BLAS as the other nodes",
                has.as_deref().unwrap_or("none of the requested engines")
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Engine as Choice;

    const BOTH: [&str; 2] = ["portable-4x4", "blas"];

    fn node(engines: &[&str], kernel: &str) -> Arithmetic {
        Arithmetic {
            engines: engines.iter().map(|name| (*name).to_owned()).collect(),
            library: "BLIS 0.9.0".into(),
            picked: kernel.into(),
            preflight: kernel.into(),
            named: None,
        }
    }

    fn rules(engine: Choice) -> Rules {
        Rules { engine, preflight: true, told: false, named: false }
    }

    #[test]
    fn a_node_with_fewer_instructions_will_do_while_the_engine_is_ours() {
        let new = node(&["avx512-24x8", "avx2-12x4", "portable-4x4", "blas"], "skx");
        let old = node(&["avx2-12x4", "portable-4x4", "blas"], "haswell");
        for choice in [Choice::Auto, Choice::Packed, Choice::Avx2] {
            let rules = rules(choice);
            let run = rules.rounding([&new, &new]).unwrap();
            assert_eq!(run, Engine::OWN);
            assert_eq!(rules.suits(&old, &run), Ok(()), "{choice:?}");
        }
    }

    #[test]
    fn a_node_without_our_kernels_is_refused_and_both_sides_named() {
        let new = node(&["avx2-12x4", "portable-4x4", "blas"], "haswell");
        let old = node(&["portable-4x4", "blas"], "generic");
        let rules = rules(Choice::Auto);
        let why = rules.suits(&old, &rules.rounding([&new]).unwrap()).unwrap_err();
        assert!(
            why.contains("computes with blas BLIS 0.9.0 generic, the run with packed"),
            "{why}"
        );
        // If both nodes are present from the start, the run would use the BLAS, whose kernels differ between the nodes.
        let run = rules.rounding([&new, &old]).unwrap();
        assert_eq!(run, "blas BLIS 0.9.0 haswell");
        assert!(rules.suits(&new, &run).is_ok() && rules.suits(&old, &run).is_err());
    }

    #[test]
    fn what_was_asked_for_must_run_there() {
        let new = node(&["avx512-24x8", "avx2-12x4", "blas"], "skx");
        let old = node(&["avx2-12x4", "blas"], "skx");
        let rules = rules(Choice::Avx512);
        let why = rules.suits(&old, &rules.rounding([&new]).unwrap()).unwrap_err();
        assert!(why.contains("none of the requested engines"), "{why}");
        assert_eq!(rules.rounding([&new, &old]), None);
        assert_eq!(rules.rounding([]), None);
    }

    #[test]
    fn of_the_blas_the_kernels_count_that_ranks_will_have() {
        let one = Arithmetic { picked: "generic".into(), ..node(&BOTH, "skx") };
        let other = node(&BOTH, "skx");
        let blas = rules(Choice::Blas);
        let unlike = |rules: Rules| rules.suits(&other, &rules.rounding([&one]).unwrap()).is_err();
        assert!(!unlike(blas), "the preflight gives both the same");
        assert!(unlike(Rules { preflight: false, ..blas }));
        assert!(!unlike(Rules { preflight: false, told: true, ..blas }));
        // The node that differs is refused, even if it is the first node.
        assert_eq!(blas.rounding([&node(&BOTH, "zen3"), &one, &other]), blas.rounding([&other]));
        let newer = Arithmetic { library: "BLIS 1.0".into(), ..other.clone() };
        assert!(blas.suits(&newer, &blas.rounding([&other]).unwrap()).is_err());
        let named = Rules { named: true, ..blas };
        assert!(named.suits(&newer, &named.rounding([&other]).unwrap()).is_ok(), "ranks will say");
        let with = |library: &str| {
            let (picked, preflight) = ("avx2".to_owned(), "avx2".to_owned());
            let named = Named { library: library.into(), picked, preflight };
            Arithmetic { named: Some(Ok(named)), ..other.clone() }
        };
        let run = named.rounding([&with("MKL 2025"), &with("MKL 2024"), &with("MKL 2025")]);
        assert_eq!(run.as_deref(), Some("blas MKL 2025 avx2"));
        assert!(named.suits(&with("MKL 2024"), "blas MKL 2025 avx2").is_err());
    }

    /// Tests two nodes with the same BLAS and the same kernels. Only one processor has fused multiply-add instructions, so the
    /// loops of the panel round differently.
    #[test]
    fn a_node_that_rounds_a_multiplication_and_an_addition_apart_is_another() {
        let (new, old) = (node(&BOTH, "generic"), node(&["blas"], "generic"));
        for rules in [rules(Choice::Blas), Rules { told: true, ..rules(Choice::Blas) }] {
            for (one, other) in [(&new, &old), (&old, &new)] {
                let run = rules.rounding([one]).unwrap();
                assert_eq!(rules.suits(one, &run), Ok(()));
                assert!(rules.suits(other, &run).is_err(), "{run}");
            }
        }
    }

    /// Tests that the preflight and the environment variable for kernels act on the BLAS of `--blas` as on the linked BLAS.
    #[test]
    fn of_a_named_blas_the_kernels_count_that_ranks_will_have() {
        let with = |kernel: &str, after: &str| {
            let named = Named {
                library: "OpenBLAS 0.3.21".into(),
                picked: kernel.into(),
                preflight: after.into(),
            };
            Arithmetic { named: Some(Ok(named)), ..node(&BOTH, "skx") }
        };
        let (one, other) = (with("zen", "skylakex"), with("skylakex", "skylakex"));
        let rules = |preflight, told| Rules { engine: Choice::Blas, preflight, told, named: true };
        for (preflight, told, alike) in
            [(true, false, true), (false, false, false), (false, true, true), (true, true, true)]
        {
            let rules = rules(preflight, told);
            let run = rules.rounding([&one]).unwrap();
            assert_eq!(rules.suits(&other, &run).is_ok(), alike, "{preflight} {told} {run}");
        }
        let newer = with("zen", "zen");
        let run = rules(true, false).rounding([&one]).unwrap();
        assert!(rules(true, false).suits(&newer, &run).is_err());
    }

    #[test]
    fn this_machine_suits_itself() {
        let here = Arithmetic::here();
        for choice in [Choice::Auto, Choice::Packed, Choice::Blas] {
            let rules = rules(choice);
            let Some(run) = rules.rounding([&here]) else {
                assert!(
                    choice == Choice::Packed && here.engines == ["blas"],
                    "{choice:?} {here:?}"
                );
                continue;
            };
            assert_eq!(rules.suits(&here, &run), Ok(()));
        }
    }

    #[test]
    fn a_protected_run_keeps_to_kernels_that_round_alike() {
        use Choice::{Auto, Blas, Packed, Portable};
        for (choice, protected, everywhere, want) in [
            (Auto, false, vec!["a", "blas", "portable"], vec!["a", "blas"]),
            (Auto, true, vec!["a", "b", "blas", "portable"], vec!["a", "b"]),
            (Auto, true, vec!["blas", "portable"], vec!["blas"]),
            (Packed, true, vec!["a", "portable"], vec!["a"]),
            (Packed, false, vec!["portable"], vec!["portable"]),
            (Portable, false, vec!["portable"], vec!["portable"]),
            (Blas, true, vec!["blas"], vec!["blas"]),
        ] {
            assert_eq!(entrants(choice, protected, everywhere), want, "{choice:?} {protected}");
        }
    }
}

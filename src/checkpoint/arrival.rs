//! What a launch finds on its nodes: which run is in progress, which tests are finished, whose
//! memory lies where.
//!
//! Called once by every rank when it starts, before it knows its grid position; all ranks get the
//! same answer. A sweep that was interrupted in its third test learns here that two are done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::holding::survey;
use super::placement::{Found, assign};
use super::world::World;
use crate::memory::ledger::{Entry, Ledger};
use crate::memory::{Depot, Part};

#[derive(Serialize, Deserialize)]
struct Told {
    node: String,
    /// With the test each position's memory belongs to.
    found: Vec<(Found, u32)>,
    results: Vec<Entry>,
}

/// The same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The run in progress, None if there is none.
    pub run: Option<u128>,
    /// The test whose memory was found.
    pub test: Option<u32>,
    /// Results of that run's finished tests, by number, as they were recorded.
    pub finished: BTreeMap<u32, Vec<u8>>,
    /// Each rank's node, as the number of the first rank there.
    pub nodes: Vec<usize>,
    found: Vec<Vec<Found>>,
}

/// Results of finished tests that lie on this node.
pub fn results(depot: &Depot) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    for held in depot.list().into_iter().filter(|h| h.part == Part::Done) {
        let Ok(region) = depot.peek(held.position, Part::Done) else {
            continue;
        };
        for entry in Ledger::new(region).entries() {
            if !all.contains(&entry) {
                all.push(entry);
            }
        }
    }
    all
}

impl Arrival {
    /// `world` has all launched ranks in launch order; `node` names this rank's node.
    pub fn gather(world: &impl World, depot: &Depot, node: &str) -> Self {
        let told = Told {
            node: node.into(),
            found: survey(depot)
                .into_iter()
                .map(|(found, header)| (found, header.id.test))
                .collect(),
            results: results(depot),
        };
        let mine = serde_json::to_vec(&told).expect("plain values");
        let told: Vec<Told> = world
            .allgather(&mine)
            .iter()
            .map(|bytes| serde_json::from_slice(bytes).expect("ranks of one run are one program"))
            .collect();
        let nodes = told
            .iter()
            .map(|t| told.iter().position(|o| o.node == t.node).expect("itself at least"))
            .collect();
        let runs_in_memory = told.iter().flat_map(|t| &t.found).map(|(f, _)| f.run);
        let runs_finished = told.iter().flat_map(|t| &t.results).map(|e| e.run);
        let run = runs_in_memory.chain(runs_finished).max();
        let test = told
            .iter()
            .flat_map(|t| &t.found)
            .filter(|(f, _)| Some(f.run) == run)
            .map(|(_, test)| *test)
            .max();
        let finished = told
            .iter()
            .flat_map(|t| &t.results)
            .filter(|e| Some(e.run) == run)
            .map(|e| (e.test, e.bytes.clone()))
            .collect();
        Self {
            run,
            test,
            finished,
            nodes,
            // Memory of other tests and runs draws nobody anywhere.
            found: told
                .into_iter()
                .map(|t| {
                    t.found
                        .into_iter()
                        .filter(|(f, of)| Some(f.run) == run && Some(*of) == test)
                        .map(|(f, _)| f)
                        .collect()
                })
                .collect(),
        }
    }

    /// The position of each rank for a test: by its memory if it is the test that was found, by rank
    /// otherwise. None for ranks that are left over.
    pub fn place(&self, test: u32, positions: usize) -> Vec<Option<usize>> {
        if self.test == Some(test) {
            assign(positions, &self.nodes, &self.found)
        } else {
            assign(positions, &self.nodes, &vec![Vec::new(); self.nodes.len()])
        }
    }
}

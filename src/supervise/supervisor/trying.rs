//! Trial starts of MPI before the first launch, and whose fault it is if one fails.
//!
//! The restart loop asks once the nodes are chosen. A node that is lost during a trial ends it: MPI would wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;

use super::Supervisor;
use crate::base::clock::Instant;
use crate::supervise::judge::ending::{STATUS_ENVIRONMENT, STATUS_RESUMABLE};
use crate::supervise::judge::policy::Fitness;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::Job;
use crate::supervise::start::launcher::LaunchPlan;
use crate::supervise::start::search::Search;
use crate::supervise::start::trial::{NUMBER, Place, Trial, Trouble, WORTH_ANOTHER, launch_of};
use crate::supervise::tell::say;

/// How a trial start of MPI went.
pub(super) enum Tried {
    Well,
    /// A node was found unfit: choose again.
    Unfit,
    End((u8, String)),
}

/// What a trial says of a node that was lost during it.
const LOST_MEANWHILE: &str = "it was lost meanwhile";

impl Supervisor<'_> {
    /// Starts MPI on trial over the chosen nodes and the spares, and finds out whose fault it is if it does not.
    ///
    /// A node that is blamed for an accident would be missing for the whole run, so there is a second chance first.
    pub(super) fn try_mpi(&mut self, hosts: &[Host]) -> anyhow::Result<Tried> {
        let mut left = self.settings.ranks;
        let mut working: Vec<Host> = hosts.to_vec();
        for host in &mut working {
            host.slots = host.slots.min(left);
            left -= host.slots;
        }
        working.retain(|h| h.slots > 0);
        let slots = working.iter().map(|h| h.slots).max().unwrap_or(1);
        let mut second_chance = true;
        loop {
            // Whoever was lost during a trial has said enough: choose again, or try without that spare.
            if self.any_lost(hosts) {
                return Ok(Tried::Unfit);
            }
            let spares: Vec<Host> = self
                .cluster
                .nodes
                .iter()
                .map(|n| &n.host.name)
                .filter(|name| !hosts.iter().any(|h| h.name == **name))
                .filter(|name| {
                    matches!(self.cluster.fitness(name, &self.expected(name)), Fitness::Fit { .. })
                })
                .map(|name| Host::new(name, slots))
                .collect();
            let all = [&working[..], &spares[..]].concat();
            let since = Instant::now();
            let Some(result) = self.trial(&all)? else { return self.halted() };
            let trouble = match result {
                Ok(()) => return Ok(Tried::Well),
                Err(trouble) => trouble,
            };
            if self.any_lost(&all) {
                continue;
            }
            if second_chance && since.elapsed() < WORTH_ANOTHER {
                second_chance = false;
                say!(
                    "skt-hpl run: MPI did not start on trial, it is tried again: {}",
                    trouble.what
                );
                continue;
            }
            let Some(culprits) = self.whose_fault(&working, &spares, &trouble)? else {
                return self.halted();
            };
            // Without a node that all have in common nobody's trial went well.
            if self.any_lost(&all) {
                continue;
            }
            // If no node starts MPI even by itself, it is not the nodes.
            if culprits.is_empty() || culprits.len() >= working.len().max(2) {
                let why = format!(
                    "not started: MPI does not start on these nodes: {}. `skt-hpl doctor` tries again; \
                     --no-trial leaves this check out",
                    trouble.what
                );
                return Ok(Tried::End((STATUS_ENVIRONMENT, why)));
            }
            for (name, what) in &culprits {
                say!("skt-hpl run: {name} cannot be used: MPI does not start there: {what}");
                if let Some(at) = self.cluster.find(name) {
                    self.cluster.nodes[at].unfit =
                        Some(format!("MPI does not start there: {what}"));
                }
            }
            if hosts.iter().any(|h| culprits.iter().any(|(name, _)| *name == h.name)) {
                return Ok(Tried::Unfit);
            }
        }
    }

    fn any_lost(&self, hosts: &[Host]) -> bool {
        hosts.iter().any(|host| self.state.lost.contains(&host.name))
    }

    /// Who is at fault for the `trouble` that a trial of all these had, and what each has done. None: somebody asked to stop
    /// meanwhile.
    fn whose_fault(
        &mut self,
        working: &[Host],
        spares: &[Host],
        trouble: &Trouble,
    ) -> anyhow::Result<Option<Vec<(String, String)>>> {
        let all = [working, spares].concat();
        if !trouble.nodes.is_empty() {
            let named = trouble.nodes.iter().map(|n| (all[*n].name.clone(), trouble.what.clone()));
            return Ok(Some(named.collect()));
        }
        // If the trouble names nobody, parts of the whole are tried, each half the size of the last.
        if !spares.is_empty() {
            let Some(without_spares) = self.trial(working)? else { return Ok(None) };
            if self.any_lost(working) {
                return Ok(Some(Vec::new()));
            }
            if without_spares.is_ok() {
                let suspects = (working.len()..all.len()).collect();
                let found = self.find_culprits(&all, Search::among(suspects, Some(0)), trouble)?;
                // None of them spoils it alone.
                let each =
                    || spares.iter().map(|s| (s.name.clone(), trouble.what.clone())).collect();
                return Ok(found.map(|found| if found.is_empty() { each() } else { found }));
            }
        }
        if working.len() == 1 {
            return Ok(Some(Vec::new()));
        }
        let search = Search::among((0..working.len()).collect(), None);
        self.find_culprits(working, search, trouble)
    }

    /// Which of the hosts spoil a trial that had this `trouble`, and how. None: somebody asked to stop meanwhile.
    fn find_culprits(
        &mut self,
        hosts: &[Host],
        mut search: Search,
        trouble: &Trouble,
    ) -> anyhow::Result<Option<Vec<(String, String)>>> {
        // What went wrong with the fewest nodes says most of each.
        let mut said: BTreeMap<usize, (usize, String)> = BTreeMap::new();
        while let Some(set) = search.next_set() {
            let part: Vec<Host> = set.iter().map(|n| hosts[*n].clone()).collect();
            let Some(result) = self.trial(&part)? else { return Ok(None) };
            // Its loss ends the trials, and says nothing of those that were tried with it.
            if self.any_lost(&part) {
                return Ok(Some(Vec::new()));
            }
            search.went(result.is_ok());
            if let Err(trouble) = result {
                for node in &set {
                    if said.get(node).is_none_or(|(size, _)| *size >= set.len()) {
                        said.insert(*node, (set.len(), trouble.what.clone()));
                    }
                }
            }
        }
        // Who is left when all others are well has not been tried again.
        let words = |n: usize| said.get(&n).map_or(&trouble.what, |(_, what)| what).clone();
        let named = search.culprits().into_iter().map(|n| (hosts[n].name.clone(), words(n)));
        Ok(Some(named.collect()))
    }

    pub(super) fn halted(&self) -> anyhow::Result<Tried> {
        let why = self.halt.as_ref().map_or("stopped on request", |h| h.why.as_str());
        Ok(Tried::End((STATUS_RESUMABLE, why.to_string())))
    }

    /// One trial start, every slot of the hosts taken. None: somebody asked to stop meanwhile.
    pub(super) fn trial(&mut self, hosts: &[Host]) -> anyhow::Result<Option<Result<(), Trouble>>> {
        let settings = self.settings;
        let mut places = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            let node = self.cluster.find(&host.name).map(|n| &self.cluster.nodes[n]);
            match node.and_then(|n| n.facts.as_ref()) {
                Some((facts, _)) => places.push(Place::of(facts)),
                None => {
                    let what = "its agent has not answered".to_string();
                    return Ok(Some(Err(Trouble { nodes: vec![at], what })));
                }
            }
        }
        let dir = std::path::absolute(settings.folder.path())?;
        let ranks = hosts.iter().map(|h| h.slots).sum();
        let plan = LaunchPlan { ranks, command: &[], ..self.launch_plan(hosts, &dir, 0) };
        let patience = Duration::from_millis(settings.thresholds.start_ms);
        let own = &settings.agent[0];
        let (launch, folder) = (launch_of(&plan, own), settings.folder.clone());
        let started = self.in_folder(move || Job::start(&launch, &folder, NUMBER))?;
        let started =
            started.with_context(|| format!("cannot start {}", settings.tool.program.display()))?;
        let job = Job::new(started, &settings.folder, NUMBER, &self.clerk);
        let mut trial = Trial::new(job, &self.state.run_id, hosts, ranks, &places, patience);
        let result = loop {
            if let Some(result) = trial.poll() {
                break Some(result.map(|_| ()));
            }
            self.idle(Duration::from_millis(20))?;
            if self.is_to_halt()?.is_some() {
                self.meanwhile(trial.abandon())?;
                break None;
            }
            // It would wait for that node's ranks until its patience is at an end.
            let lost = |host: &Host| self.state.lost.contains(&host.name);
            if let Some(at) = hosts.iter().position(lost) {
                self.meanwhile(trial.abandon())?;
                break Some(Err(Trouble { nodes: vec![at], what: LOST_MEANWHILE.to_string() }));
            }
        };
        if !matches!(result, Some(Ok(()))) {
            // Nothing of it may be there when the next one starts.
            let failed = self.end_everywhere(&BTreeSet::new(), None)?.1;
            // Nobody is lost only because nobody can be reached from here.
            if !self.nodes.is_alone() {
                self.lose_all(failed)?;
            }
        }
        Ok(result)
    }
}

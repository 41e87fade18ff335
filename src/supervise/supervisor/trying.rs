//! Trial starts of MPI before the first launch, and the search for the nodes that make a trial fail.
//!
//! The restart loop calls [`Supervisor::try_mpi`] once the nodes are chosen. The loss of a node ends a trial, because MPI would
//! wait for that node.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;

use super::{Supervisor, over};
use crate::base::clock::Instant;
use crate::supervise::judge::ending::{STATUS_ENVIRONMENT, STATUS_RESUMABLE};
use crate::supervise::start::hosts::Host;
use crate::supervise::start::launch::LaunchPlan;
use crate::supervise::start::search::Search;
use crate::supervise::start::trial::{
    NUMBER, Place, Trouble, WORTH_ANOTHER, end_of, judge, launch_of,
};
use crate::supervise::tell::say;

impl Supervisor<'_> {
    /// Starts MPI on trial on the chosen nodes and the spares. If MPI does not start, finds the nodes at fault. Returns false
    /// if a chosen node was found unfit or was lost, so that nodes must be chosen again.
    ///
    /// A trial that fails early is repeated until two trials name the same node, or a repetition names none. Otherwise a node
    /// blamed for an accident would be missing for the whole run.
    pub(super) fn try_mpi(&mut self, hosts: &[Host]) -> anyhow::Result<bool> {
        let mut left = self.settings.ranks;
        let mut working: Vec<Host> = hosts.to_vec();
        for host in &mut working {
            host.slots = host.slots.min(left);
            left -= host.slots;
        }
        working.retain(|h| h.slots > 0);
        let slots = working.iter().map(|h| h.slots).max().unwrap_or(1);
        // Nodes that the trials have named, if a trial failed early.
        let mut suspects: Option<BTreeSet<String>> = None;
        loop {
            // If a chosen node was lost during a trial, choose again. If a spare was lost, the next trial leaves it out.
            if self.any_lost(hosts) {
                return Ok(false);
            }
            let spares = self.find_spares(hosts, slots);
            let all = [&working[..], &spares[..]].concat();
            let since = Instant::now();
            let Err(mut trouble) = self.trial(&all)? else { return Ok(true) };
            if self.any_lost(&all) {
                continue;
            }
            let named: BTreeSet<String> =
                trouble.nodes.iter().map(|n| all[*n].name.clone()).collect();
            // Each repetition adds a name, so the number of trials is limited.
            let accident = match &suspects {
                None => true,
                Some(suspects) => !named.is_empty() && named.is_disjoint(suspects),
            };
            if accident && since.elapsed() < WORTH_ANOTHER {
                suspects.get_or_insert_default().extend(named);
                let what = trouble.what;
                say!(
                    "skt-hpl run: MPI did not start in a trial, and the trial is repeated: {what}"
                );
                continue;
            }
            let is_suspect =
                |n: &usize| suspects.as_ref().is_some_and(|names| names.contains(&all[*n].name));
            if trouble.nodes.iter().any(is_suspect) {
                trouble.nodes.retain(is_suspect);
            }
            let culprits = self.whose_fault(&working, &spares, &trouble)?;
            // If a node was lost during the search, its result is not used.
            if self.any_lost(&all) {
                continue;
            }
            // If MPI starts on no node, the nodes are not at fault. If the trouble names its nodes, they may include spares.
            let tried = if trouble.nodes.is_empty() { working.len() } else { all.len() };
            if culprits.is_empty() || culprits.len() >= tried.max(2) {
                let why = format!(
                    "not started: MPI does not start on these nodes: {}. `skt-hpl doctor` tries again; \
                     --no-trial leaves this check out",
                    trouble.what
                );
                return over(STATUS_ENVIRONMENT, why);
            }
            for (name, what) in &culprits {
                say!("skt-hpl run: {name} cannot be used: MPI does not start there: {what}");
                if let Some(at) = self.cluster.find(name) {
                    self.cluster.nodes[at].unfit =
                        Some(format!("MPI does not start there: {what}"));
                }
            }
            if hosts.iter().any(|h| culprits.iter().any(|(name, _)| *name == h.name)) {
                return Ok(false);
            }
        }
    }

    /// Returns the fit nodes that are not among `hosts`, each with `slots` slots.
    fn find_spares(&self, hosts: &[Host], slots: usize) -> Vec<Host> {
        let names = self.cluster.nodes.iter().map(|n| &n.host.name);
        let others = names.filter(|name| !hosts.iter().any(|h| h.name == **name));
        others.filter(|name| self.is_fit(name)).map(|name| Host::new(name, slots)).collect()
    }

    fn any_lost(&self, hosts: &[Host]) -> bool {
        hosts.iter().any(|host| self.state.lost.contains(&host.name))
    }

    /// Returns the nodes at fault for the `trouble` of a trial on all nodes of `working` and `spares`, each with its failure.
    fn whose_fault(
        &mut self,
        working: &[Host],
        spares: &[Host],
        trouble: &Trouble,
    ) -> anyhow::Result<Vec<(String, String)>> {
        let all = [working, spares].concat();
        if !trouble.nodes.is_empty() {
            let named = trouble.nodes.iter().map(|n| (all[*n].name.clone(), trouble.what.clone()));
            return Ok(named.collect());
        }
        // If the trouble names no node, smaller and smaller sets of the nodes are tried.
        if !spares.is_empty() {
            let without_spares = self.trial(working)?;
            if self.any_lost(working) {
                return Ok(Vec::new());
            }
            if without_spares.is_ok() {
                let suspects = working.len()..all.len();
                let found = self.find_culprits(&all, suspects, Some(0), trouble)?;
                // If no spare is found to fail alone, all spares are blamed.
                let each =
                    || spares.iter().map(|s| (s.name.clone(), trouble.what.clone())).collect();
                return Ok(if found.is_empty() { each() } else { found });
            }
        }
        if working.len() == 1 {
            return Ok(Vec::new());
        }
        self.find_culprits(working, 0..working.len(), None, trouble)
    }

    /// Returns the hosts that make a trial fail with this `trouble`, each with its failure. The host `good` is known to be well.
    fn find_culprits(
        &mut self,
        hosts: &[Host],
        suspects: Range<usize>,
        good: Option<usize>,
        trouble: &Trouble,
    ) -> anyhow::Result<Vec<(String, String)>> {
        // Of several failed trials with a node, the error of the one with the fewest nodes is kept.
        let mut said: BTreeMap<usize, (usize, String)> = BTreeMap::new();
        let suspects: Vec<usize> = suspects.collect();
        let found = Search::culprits(&suspects, good, |set| {
            let part: Vec<Host> = set.iter().map(|n| hosts[*n].clone()).collect();
            let result = self.trial(&part).map_err(Some)?;
            // The loss of a node ends the search, because the trial shows nothing about the other nodes.
            if self.any_lost(&part) {
                return Err(None);
            }
            if let Err(trouble) = &result {
                for node in set {
                    if said.get(node).is_none_or(|(size, _)| *size >= set.len()) {
                        said.insert(*node, (set.len(), trouble.what.clone()));
                    }
                }
            }
            Ok(result.is_ok())
        });
        let culprits = match found {
            Ok(culprits) => culprits,
            Err(None) => Vec::new(),
            Err(Some(error)) => return Err(error),
        };
        // A culprit found by elimination may not have been in a failed trial of its own.
        let words = |n: usize| said.get(&n).map_or(&trouble.what, |(_, what)| what).clone();
        Ok(culprits.into_iter().map(|n| (hosts[n].name.clone(), words(n))).collect())
    }

    /// Makes one trial with a rank on every slot of the hosts.
    fn trial(&mut self, hosts: &[Host]) -> anyhow::Result<Result<(), Trouble>> {
        let settings = self.settings;
        let mut nodes = Vec::new();
        for (at, host) in hosts.iter().enumerate() {
            let node = self.cluster.find(&host.name).map(|n| &self.cluster.nodes[n]);
            let Some((facts, _)) = node.and_then(|n| n.facts.as_ref()) else {
                let what = "its agent has not answered".to_string();
                return Ok(Err(Trouble { nodes: vec![at], what }));
            };
            nodes.push((host.name.clone(), Place::of(facts)));
        }
        let dir = std::path::absolute(settings.folder.path())?;
        let ranks = hosts.iter().map(|h| h.slots).sum();
        let plan = LaunchPlan { ranks, command: &[], ..self.launch_plan(hosts, &dir, 0) };
        let startup_timeout = Duration::from_millis(settings.thresholds.startup_timeout_ms);
        let launch = launch_of(&plan, &settings.agent[0]);
        let started = self.start_job(&launch, NUMBER)?;
        let mut job =
            started.with_context(|| format!("cannot start {}", settings.tool.program.display()))?;
        let since = Instant::now();
        let end = loop {
            if let Some(end) = end_of(&mut job, since, startup_timeout) {
                break Ok(end);
            }
            self.idle(Duration::from_millis(20))?;
            // The trial would wait for the ranks of a lost node until its own timeout.
            let lost = |host: &Host| self.state.lost.contains(&host.name);
            let lost = hosts.iter().position(lost);
            if lost.is_some() || self.is_to_halt()?.is_some() {
                let what = "it was lost meanwhile".to_string();
                break Err(Trouble { nodes: Vec::from_iter(lost), what });
            }
        };
        // The trial's processes on this machine must end before anything else of the run is started.
        self.meanwhile(job.end(&self.state.run_id))?;
        let result = match end {
            Ok(end) => {
                let words = self.meanwhile(job.last_words())?;
                judge(&words, &end, &nodes, ranks)
            }
            Err(trouble) => Err(trouble),
        };
        if result.is_err() {
            // No process of this trial may be left when the next trial starts.
            let asked = self.cluster.those(|node| node.lost.is_none());
            let halted = |this: &Self| this.nodes.is_alone() && this.halt.is_some();
            let failed = self.end_on(&asked, &BTreeSet::new(), halted)?.1;
            // If no node can be reached, this machine is cut off, and no node is declared lost.
            if !self.nodes.is_alone() {
                self.lose_all(failed)?;
            }
            if let Some(why) = self.is_to_halt()? {
                return over(STATUS_RESUMABLE, why);
            }
        }
        Ok(result)
    }
}

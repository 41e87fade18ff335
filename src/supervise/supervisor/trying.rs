//! Trial starts of MPI before the first launch, and the search for the nodes that make a trial fail.
//!
//! The restart loop calls [`Supervisor::try_mpi`] once the nodes are chosen. The loss of a node ends a trial, because MPI would
//! wait for that node.

use std::collections::BTreeSet;
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
            let culprits = self.whose_fault(&all, working.len(), &trouble)?;
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
            let what = format!("MPI does not start there: {}", trouble.what);
            for at in &culprits {
                let name = &all[*at].name;
                say!("skt-hpl run: {name} cannot be used: {what}");
                if let Some(node) = self.cluster.find(name) {
                    self.cluster.nodes[node].unfit = Some(what.clone());
                }
            }
            if culprits.iter().any(|at| *at < working.len()) {
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

    /// Returns whether a node of `hosts` is lost.
    pub(super) fn any_lost(&self, hosts: &[Host]) -> bool {
        hosts.iter().any(|host| self.state.lost.contains(&host.name))
    }

    /// Returns the nodes at fault for the `trouble` of a trial on `all` nodes. The first `working` of these are to compute, the
    /// others are spares.
    fn whose_fault(
        &mut self,
        all: &[Host],
        working: usize,
        trouble: &Trouble,
    ) -> anyhow::Result<Vec<usize>> {
        if !trouble.nodes.is_empty() {
            return Ok(trouble.nodes.clone());
        }
        // If the trouble names no node, smaller and smaller sets of the nodes are tried.
        if working < all.len() && self.trial(&all[..working])?.is_ok() {
            let spares = working..all.len();
            let found = self.find_culprits(all, spares.clone(), Some(0))?;
            // If no spare is found to fail alone, all spares are blamed.
            return Ok(if found.is_empty() { spares.collect() } else { found });
        }
        if working == 1 {
            return Ok(Vec::new());
        }
        self.find_culprits(all, 0..working, None)
    }

    /// Returns the `suspects` among `hosts` that make a trial fail. The host `good` is known to be well.
    fn find_culprits(
        &mut self,
        hosts: &[Host],
        suspects: Range<usize>,
        good: Option<usize>,
    ) -> anyhow::Result<Vec<usize>> {
        let suspects: Vec<usize> = suspects.collect();
        let found = Search::culprits(&suspects, good, |set| {
            let part: Vec<Host> = set.iter().map(|n| hosts[*n].clone()).collect();
            let result = self.trial(&part).map_err(Some)?;
            // The loss of a node ends the search, because the trial shows nothing about the other nodes.
            if self.any_lost(&part) { Err(None) } else { Ok(result.is_ok()) }
        });
        match found {
            Ok(culprits) => Ok(culprits),
            Err(None) => Ok(Vec::new()),
            Err(Some(error)) => Err(error),
        }
    }

    /// Makes one trial with a rank on every slot of the hosts.
    fn trial(&mut self, hosts: &[Host]) -> anyhow::Result<Result<(), Trouble>> {
        let settings = self.settings;
        let place = |host: &Host| {
            let (facts, _) = self.cluster.nodes[self.cluster.find(&host.name)?].facts.as_ref()?;
            Some((host.name.clone(), Place::of(facts)))
        };
        let nodes: Option<Vec<_>> = hosts.iter().map(place).collect();
        let nodes = nodes.context("a node of the trial has not answered")?;
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
            if self.any_lost(hosts) || self.is_to_halt()?.is_some() {
                let what = "a node was lost meanwhile".to_string();
                break Err(Trouble { nodes: Vec::new(), what });
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

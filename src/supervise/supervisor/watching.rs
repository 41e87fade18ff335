//! Watching one incarnation: brings what is heard, and the launcher's end, before the judges and does what they say.
//!
//! The restart loop calls [`Supervisor::watch`] once a launch; how it ended goes to `judge::ending`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::Supervisor;
use crate::supervise::judge::ending::End;
use crate::supervise::judge::ranks::RankSeen;
use crate::supervise::judge::watch::{Seen, Verdict, Watch};
use crate::supervise::remember::events::{Event, FaultKind, steady_ms};
use crate::supervise::start::job::{Job, Told as Announced};
use crate::supervise::talk::cluster::News;
use crate::supervise::talk::progress::words;
use crate::supervise::talk::wire::Which;
use crate::supervise::tell::say;
use crate::supervise::tell::status::{Activity, Problem};

/// How often the launcher's end and output are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(80);

/// How soon it is asked for what there was to see.
const LOOK_SOON: Duration = Duration::from_millis(5);

/// How often what has not happened is judged.
const TICK_EVERY: Duration = Duration::from_millis(40);

/// How often it is looked which positions the ranks of all nodes have, where that changes: the status, which tells them, is
/// written no more often.
const PLACES_EVERY: Duration = Duration::from_secs(1);

/// How long a run that has told all its results, or that it has halted, may take to end its processes: MPI libraries have been
/// seen to hang there for ever.
const LINGER: Duration = Duration::from_secs(20);

/// How long the last word of the nodes on how far the ranks had come is waited for.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// How far the rank of a position has been seen to come.
fn came_to(watch: &Watch, position: Option<u32>) -> Option<(u32, u64)> {
    let (_, front) = watch.ranks().seen_at(position?)?;
    Some(front)
}

impl Supervisor<'_> {
    /// A watch that has seen nothing yet.
    pub(super) fn new_watch(&self) -> Watch {
        let names: Vec<String> = self.cluster.nodes.iter().map(|n| n.host.name.clone()).collect();
        Watch::new(self.settings.thresholds, &names, self.now_ms())
            .progress_shows(self.settings.progress_shows)
            .goes_on(self.settings.in_place)
    }

    /// Watches the job until it ends, breaks or is halted: how it did, and the test and iteration of the rank that was seen to
    /// die first, if one was.
    pub(super) fn watch(
        &mut self,
        job: &mut Job,
        watch: &mut Watch,
    ) -> anyhow::Result<(End, Option<(u32, u64)>)> {
        let placed: BTreeSet<usize> = self
            .state
            .placed
            .iter()
            .map(|h| self.cluster.find(&h.name).ok_or_else(|| anyhow!("no node {}", h.name)))
            .collect::<Result<_, _>>()?;
        self.status.activity = match self.state.faults.is_empty() {
            _ if self.halt.is_some() => Activity::Halting,
            true => Activity::Starting,
            false => Activity::Recovering,
        };
        self.computing_since = None;
        let mut caught_up = self.state.aim.is_none();
        let mut aim = self.state.aim.unwrap_or_default();
        let mut looked = Instant::now();
        let mut looking = None;
        let mut done_since = None;
        let mut ticked = Instant::now();
        let mut places = None;
        let mut proved: BTreeMap<usize, (u32, u64)> = BTreeMap::new();
        loop {
            self.housekeeping()?;
            let mut verdicts = Vec::new();
            let patience = LOOK_EVERY.saturating_sub(looked.elapsed());
            let soon = looking.is_some_and(|since: Instant| since.elapsed() < LOOK_EVERY);
            let news = self.hear(if soon { patience.min(LOOK_SOON) } else { patience })?;
            let now = self.now_ms();
            for node in std::mem::take(&mut self.heard_again) {
                verdicts.extend(watch.see(now, Seen::HeardAgain { node }));
            }
            let mut broken = false;
            for loss in std::mem::take(&mut self.losses) {
                if !placed.contains(&loss.node) {
                    self.lose(loss.node, &loss.detail)?;
                } else if !broken {
                    broken = true;
                    verdicts.extend(watch.see(now, Seen::NodeLost(loss)));
                } else if loss.kind != FaultKind::NodeGone {
                    // One ends the incarnation, the others are declared lost when it is stopped. Those whose connection
                    // ended have a second chance then.
                    self.losses.push(loss);
                }
            }
            match news {
                Some((node, News::Beat { beat, round_trip_ms })) if placed.contains(&node) => {
                    self.see_members(node, &beat.ranks);
                    self.learn_problem(&beat.ranks);
                    verdicts.extend(watch.see(
                        now,
                        Seen::Beat {
                            node,
                            round_trip_ms,
                            processes: beat.processes,
                            stopped: beat.stopped,
                            ranks: beat.ranks,
                        },
                    ));
                }
                _ => {}
            }
            let now = self.now_ms();
            // Every agent's word wakes us; files need not be looked at as often.
            let looks = looked.elapsed() >= LOOK_EVERY;
            if looks {
                looked = Instant::now();
                job.look();
                looking = looking.or(Some(looked));
            }
            if looking.is_some() && job.has_looked() {
                looking = None;
                if job.forward(&mut self.echo) {
                    self.line_shown = false;
                }
                if let Some(reached) = self.gone_on(job, watch)? {
                    (aim, caught_up) = (aim.max(reached), false);
                }
                // Of another program's way to its end nobody knows. Where nobody can be reached, nobody can say that its ranks
                // are done, and the launcher would wait with them.
                let over = match job.told() {
                    Announced::All { .. } => {
                        self.settings.progress_shows
                            && (watch.all_through() || self.nodes.is_alone())
                    }
                    told => told == Announced::Halted,
                };
                done_since = over.then(|| done_since.unwrap_or_else(Instant::now));
                if done_since.is_some_and(|since| since.elapsed() > LINGER) {
                    return Ok((End::Lingering, None));
                }
                if let Some(code) = job.poll() {
                    verdicts.extend(watch.see(now, Seen::LauncherEnded { code }));
                }
            }
            // News come by the thousand; time passes in tens of milliseconds.
            let due = ticked.elapsed() >= TICK_EVERY;
            if due {
                ticked = Instant::now();
                self.status.doing = words(watch.doing()).to_string();
                if self.settings.in_place
                    && !watch.ranks().is_empty()
                    && places.is_none_or(|at: Instant| at.elapsed() >= PLACES_EVERY)
                {
                    places = Some(ticked);
                    self.positions = Some(watch.ranks().positions(self.settings.stays_vacant));
                }
            }
            self.begin_test(watch);
            self.status.iteration = watch.iteration();
            if let Some(bonds) = self.settings.bonds.as_ref().filter(|_| due) {
                let silent: Vec<usize> = self.nodes.in_trouble().collect();
                for node in silent {
                    if watch.ranks().front() > *proved.get(&node).unwrap_or(&(0, 0))
                        && bonds.prove(watch.ranks(), node)
                    {
                        proved.insert(node, watch.ranks().front());
                        self.nodes.lives(node, now);
                    }
                }
            }
            // While nobody can be heard, nothing that is not seen is held against anybody.
            if due && !self.nodes.is_alone() {
                verdicts.extend(watch.tick(now, |node| !self.nodes.is_in_trouble(node)));
            }
            self.ranks_seen_now |= watch.has_seen_ranks();
            self.ranks_seen |= self.ranks_seen_now;
            for verdict in verdicts {
                let incarnation = self.state.incarnation;
                match verdict {
                    Verdict::Slow { node, detail } => {
                        let node = self.cluster.nodes[node].host.name.clone();
                        self.slow.insert(node.clone(), detail.clone());
                        self.note(Event::SlowNode { node, detail })?
                    }
                    Verdict::Computing { test, iteration } => {
                        if self.halt.is_none() {
                            self.status.activity = Activity::Running;
                        }
                        self.computing_since = Some((Instant::now(), iteration));
                        caught_up |= (test, iteration) >= aim;
                        self.note(Event::Computing { incarnation, test, iteration })?;
                    }
                    Verdict::Saved { test, iteration } => {
                        self.status.last_save_iteration = Some(iteration);
                        self.status.last_save_ms = Some(steady_ms());
                        self.note(Event::Saved { incarnation, test, iteration })?;
                    }
                    Verdict::Ended { code, struck_ms, death } => {
                        let fell = came_to(watch, death.map(|(_, position)| position));
                        return Ok((End::Exit { code, struck_ms, death }, fell));
                    }
                    Verdict::Hung { node, pid, detail } => {
                        self.finish_line();
                        say!(
                            "skt-hpl run: {detail}; its process is ended, so that the others go on"
                        );
                        let below = incarnation + 1;
                        self.cluster.tell_end_rank(node, Which::Process(pid), below);
                    }
                    Verdict::Broken(breakage) => {
                        let fell = came_to(watch, breakage.position);
                        return Ok((End::Broken(breakage), fell));
                    }
                }
            }
            let front @ (test, iteration) = watch.ranks().front();
            if !caught_up && self.computing_since.is_some() && front >= aim {
                caught_up = true;
                let incarnation = self.state.incarnation;
                self.note(Event::CaughtUp { incarnation, test, iteration })?;
            }
            if looks && let Some(why) = self.halting()? {
                return Ok((End::Halted { why }, None));
            }
            if self.halt.is_some() {
                watch.expect_end();
            }
        }
    }

    /// Takes in all that a job has told by now, losses that were made good in place while nobody watched among it.
    pub(super) fn hear_out(&mut self, job: &mut Job, watch: &mut Watch) -> anyhow::Result<()> {
        self.look_once_more(job)?;
        self.gone_on(job, watch)?;
        Ok(())
    }

    /// Notes the losses that the ranks have made good in place since it was last asked, as far as the launcher's files tell.
    /// Some: they were set back, and how far they had come.
    fn gone_on(&mut self, job: &Job, watch: &mut Watch) -> anyhow::Result<Option<(u32, u64)>> {
        let mut reached = None;
        // Who takes a run over reads all from the beginning.
        while let Some((it, read_ms)) = job.gone_on().get(self.state.gone_on_last).cloned() {
            let now = self.now_ms();
            let own = |at_ms: u64| steady_ms().saturating_sub(now.saturating_sub(at_ms));
            let hung_ms = watch.gone_on(now).map(own);
            let positions = it.lost.iter().filter_map(|gone| gone.position);
            let lived = positions.filter_map(|p| watch.ranks().last_lived_ms(p as u32)).map(own);
            let well_ms = lived.chain(hung_ms).min();
            // One that was only stopped would stay, and the launcher would wait for it for ever.
            for gone in &it.lost {
                if let Some(node) = self.cluster.find_told(&gone.node) {
                    let below = self.state.incarnation + 1;
                    self.cluster.tell_end_rank(node, Which::Launched(gone.rank), below);
                }
            }
            if self.settings.stays_vacant {
                let lost = it.lost.iter().filter_map(|gone| gone.position);
                lost.for_each(|position| watch.excuse(position as u32));
            }
            let noticed_ms = it.noticed_ms(well_ms, read_ms);
            // They may have come further since the last heartbeat.
            let (test, iteration) =
                if watch.ranks().is_empty() { self.state.furthest } else { watch.ranks().front() };
            let iteration = iteration.max(it.boundary.unwrap_or(0));
            self.note(Event::GoneOn {
                fault: self.state.next_fault(),
                incarnation: self.state.incarnation,
                struck_ms: well_ms.unwrap_or(noticed_ms).min(noticed_ms),
                noticed_ms,
                agreed_ms: noticed_ms + it.agreed_ms,
                going_on_ms: noticed_ms + it.since_ms,
                lost: it.lost,
                test,
                iteration,
                boundary: it.boundary,
                detail: it.words,
            })?;
            if let Some(boundary) = it.boundary {
                watch.set_back(now, boundary);
                self.computing_since = self.computing_since.map(|_| (Instant::now(), boundary));
                if boundary < iteration {
                    reached = Some((test, iteration));
                }
            }
        }
        Ok(reached)
    }

    /// In another test iterations begin anew, and nothing is saved yet: what was measured and saved before is not of it.
    fn begin_test(&mut self, watch: &Watch) {
        let (test, iteration) = watch.ranks().front();
        if std::mem::replace(&mut self.status.test, test) < test {
            self.computing_since = self.computing_since.map(|_| (Instant::now(), iteration));
            if self.state.last_saved.is_none_or(|(saved, _)| saved < test) {
                (self.status.last_save_iteration, self.status.last_save_ms) = (None, None);
            }
        }
    }

    pub(super) fn learn_problem(&mut self, ranks: &[RankSeen]) {
        if let Some(rank) = ranks.iter().find(|r| r.progress.n > 0 && r.progress.nb > 0) {
            self.status.problem = Some(Problem { n: rank.progress.n, nb: rank.progress.nb });
        }
    }

    /// How far the ranks had come when one of them ended: what it left in its memory, not what the last
    /// heartbeat happened to see.
    pub(super) fn last_look(&mut self, known: (u32, u64)) -> anyhow::Result<(u32, u64)> {
        self.cluster.beat_all();
        let mut missing: BTreeSet<usize> =
            (0..self.cluster.nodes.len()).filter(|n| self.cluster.is_up(*n)).collect();
        let until = Instant::now() + LAST_LOOK;
        let mut latest = known;
        while !missing.is_empty() && Instant::now() < until {
            if let Some((node, News::Beat { beat, .. })) = self.hear(Duration::from_millis(20))? {
                missing.remove(&node);
                self.ranks_seen |= !beat.ranks.is_empty();
                // Dead ones may be of an incarnation before.
                self.ranks_seen_now |= beat.ranks.iter().any(RankSeen::lives);
                let seen = beat.ranks.iter().map(|r| (r.progress.test, r.progress.iteration));
                latest = seen.fold(latest, Ord::max);
            }
        }
        Ok(latest)
    }
}

//! Watching of one attempt: passes news and the launcher's end to the judges, and acts on their verdicts.
//!
//! The restart loop calls [`Supervisor::watch`] once for each launch, and passes the end that it returns to `judge::ending`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::anyhow;

use super::{Settings, Supervisor};
use crate::base::clock::{Instant, steady_ms};
use crate::supervise::judge::ending::End;
use crate::supervise::judge::ranks::Step;
use crate::supervise::judge::watch::{Verdict, Watch};
use crate::supervise::remember::events::Event;
use crate::supervise::start::job::{Announced, Job};
use crate::supervise::talk::cluster::{Cluster, News};
use crate::supervise::talk::progress::{Progress, words};
use crate::supervise::talk::wire::Which;
use crate::supervise::tell::status::{Activity, LastSave, Problem};

/// Interval at which the launcher's files are read, for its end and its output.
const LOOK_EVERY: Duration = Duration::from_millis(80);

/// Interval at which the supervisor checks whether the I/O thread has read the files.
const LOOK_SOON: Duration = Duration::from_millis(5);

/// Time for which the launcher's files may be unread before missing progress is not judged any more.
const UNREAD: Duration = Duration::from_secs(1);

/// Interval at which missing progress is judged.
const TICK_EVERY: Duration = Duration::from_millis(40);

/// Time in which the processes must end after the benchmark has reported all results, or its halt. MPI libraries have hung for
/// ever at that point.
const LINGER: Duration = Duration::from_secs(20);

/// Time limit for the nodes' last report of the ranks' progress after a fault.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// Test and iteration that a rank has reached.
type Front = (u32, u64);

/// Timing of one attempt's watch.
struct Timing {
    /// Nodes with ranks.
    placed: BTreeSet<usize>,
    /// Time at which the supervisor last asked for the launcher's files.
    looked: Instant,
    /// Time since which the I/O thread has been reading the files, if it still reads.
    looking: Option<Instant>,
    /// Whether the user was told that this takes long.
    slow_disk_told: bool,
    /// Time from which the benchmark has had nothing left to do.
    done_since: Option<Instant>,
    ticked: Instant,
}

impl Timing {
    /// Returns the longest time to wait for news.
    fn timeout(&self) -> Duration {
        let left = LOOK_EVERY.saturating_sub(self.looked.elapsed());
        let soon = self.looking.is_some_and(|since| since.elapsed() < LOOK_EVERY);
        if soon { left.min(LOOK_SOON) } else { left }
    }
}

/// Returns a watch for a new attempt.
pub(super) fn new_watch(settings: &Settings, cluster: &Cluster) -> Watch {
    let mut watch = Watch::new(settings.thresholds, &cluster.names(), steady_ms());
    watch.progress_shows = settings.benchmark.progress_shows;
    watch.goes_on = settings.benchmark.in_place;
    watch
}

impl Supervisor<'_> {
    /// Watches the job until it ends, breaks or is halted.
    pub(super) fn watch(&mut self, job: &mut Job) -> anyhow::Result<End> {
        let mut timing = self.begin_timing()?;
        loop {
            self.show_progress();
            let news = self.hear(timing.timeout())?;
            let mut verdicts = self.see_nodes(&mut timing)?;
            if let Some((node, News::Beat(beat))) = news
                && timing.placed.contains(&node)
            {
                self.see_members(node, &beat.ranks);
                self.learn_problem(&beat.ranks);
                verdicts.extend(self.watch.beat(steady_ms(), node, &beat));
            }
            // Every message of an agent wakes this loop. Files need not be read as often.
            let looks = timing.looked.elapsed() >= LOOK_EVERY;
            if looks {
                timing.looked = Instant::now();
                job.look();
                timing.looking = timing.looking.or(Some(timing.looked));
            }
            if timing.looking.is_some() && job.has_looked() {
                self.read_files(job, &mut timing)?;
                if timing.done_since.is_some_and(|since| since.elapsed() > LINGER) {
                    return Ok(End::Lingering);
                }
                if let Some(code) = job.poll() {
                    verdicts.extend(self.watch.launcher_ends(steady_ms(), code));
                }
            }
            self.begin_test();
            self.status.iteration = self.watch.ranks.front().1;
            // There may be thousands of news between two ticks.
            if timing.ticked.elapsed() >= TICK_EVERY {
                verdicts.extend(self.tick(&mut timing));
            }
            self.attempt.ranks_seen |= self.watch.has_seen_ranks();
            self.ranks.seen |= self.attempt.ranks_seen;
            for verdict in verdicts {
                if let Some(end) = self.act_on(verdict)? {
                    return Ok(end);
                }
            }
            self.note_caught_up()?;
            if looks && let Some(why) = self.halting()? {
                return Ok(End::Halted { why });
            }
            self.watch.end_expected = self.halt.is_some();
        }
    }

    /// Returns the timing of an attempt that begins now, and shows its activity.
    fn begin_timing(&mut self) -> anyhow::Result<Timing> {
        let placed = self.state.placed.iter();
        let placed = placed
            .map(|h| self.cluster.find(&h.name).ok_or_else(|| anyhow!("no node {}", h.name)))
            .collect::<Result<_, _>>()?;
        self.status.activity = if self.halt.is_some() {
            Activity::Halting
        } else if self.state.history.faults.is_empty() {
            Activity::Starting
        } else {
            Activity::Recovering
        };
        let now = Instant::now();
        Ok(Timing {
            placed,
            looked: now,
            looking: None,
            slow_disk_told: false,
            done_since: None,
            ticked: now,
        })
    }

    /// Notes once that the run has reached its earlier furthest point again.
    fn note_caught_up(&mut self) -> anyhow::Result<()> {
        let (test, iteration) = self.watch.ranks.front();
        let aim = self.state.progress.aim.filter(|_| self.attempt.computing_since.is_some());
        match aim {
            Some(aim) if (test, iteration) >= aim => {
                self.note(Event::CaughtUp { attempt: self.state.attempts, test, iteration })
            }
            _ => Ok(()),
        }
    }

    /// Tells the watch which nodes answer again and which are lost.
    fn see_nodes(&mut self, timing: &mut Timing) -> anyhow::Result<Vec<Verdict>> {
        let now = steady_ms();
        let mut verdicts = Vec::new();
        for node in std::mem::take(&mut self.contact.heard_again) {
            self.watch.ranks.heard_again(now, node);
        }
        // While the launcher's files are being read, the next step waits, and a node that was judged lost may answer again.
        if let Some(since) = timing.looking {
            if !self.contact.losses.is_empty() {
                self.print_slow_disk(since, &mut timing.slow_disk_told);
            }
            return Ok(verdicts);
        }
        let mut broken = false;
        for loss in std::mem::take(&mut self.contact.losses) {
            if !timing.placed.contains(&loss.node) {
                self.lose(loss.node, &loss.detail)?;
            } else if !broken {
                broken = true;
                verdicts.extend(self.watch.loses(loss));
            } else {
                // A single loss ends the attempt. The other nodes are declared lost when the attempt is stopped.
                self.contact.losses.push(loss);
            }
        }
        Ok(verdicts)
    }

    /// Takes in the launcher's files after the I/O thread has read them.
    fn read_files(&mut self, job: &mut Job, timing: &mut Timing) -> anyhow::Result<()> {
        (timing.looking, timing.slow_disk_told) = (None, false);
        if job.forward(&mut self.display.echo) {
            self.display.line_shown = false;
        }
        self.note_recovered(job)?;
        // For another program it is unknown when its ranks are done. If no node can be reached, no node can report that its ranks
        // are done, so the time to end begins at once.
        let done = match job.files.announced() {
            Announced::All { .. } => {
                self.settings.benchmark.progress_shows
                    && (self.watch.ranks.all_through() || self.nodes.is_alone())
            }
            announced => announced == Announced::Halted,
        };
        timing.done_since = done.then(|| timing.done_since.unwrap_or_else(Instant::now));
        Ok(())
    }

    /// Judges missing progress.
    fn tick(&mut self, timing: &mut Timing) -> Vec<Verdict> {
        timing.ticked = Instant::now();
        let Self { watch, nodes, .. } = self;
        self.status.doing = words(watch.ranks.doing());
        // While no node answers, no node is blamed for missing progress. While the launcher's files cannot be read, the ranks may
        // have recovered in place without the supervisor's knowledge.
        let unread = timing.looking.is_some_and(|since| since.elapsed() > UNREAD);
        if nodes.is_alone() || unread {
            return Vec::new();
        }
        watch.tick(steady_ms(), |node| !nodes.is_in_trouble(node))
    }

    /// Acts on a verdict. Returns the end if the attempt has ended.
    fn act_on(&mut self, verdict: Verdict) -> anyhow::Result<Option<End>> {
        let attempt = self.state.attempts;
        match verdict {
            Verdict::Over(end) => return Ok(Some(end)),
            Verdict::Hung { node, pid, detail } => {
                self.print(&format!(
                    "{detail}; the process of this position is ended, so that the other ranks continue"
                ));
                self.cluster.ask_end_rank(node, Which::Process(pid), attempt + 1);
            }
            Verdict::Slow { node, detail } => {
                let node = self.cluster.nodes[node].host.name.clone();
                self.attempt.slow.insert(node.clone(), detail.clone());
                self.note(Event::SlowNode { node, detail })?;
            }
            Verdict::Step(Step::Computing { test, iteration }) => {
                if self.halt.is_none() {
                    self.status.activity = Activity::Running;
                }
                self.attempt.computing_since = Some((Instant::now(), iteration));
                self.note(Event::Computing { attempt, test, iteration })?;
            }
            Verdict::Step(Step::Saved { test, iteration }) => {
                self.status.last_save =
                    LastSave { iteration: Some(iteration), ms: Some(steady_ms()) };
                self.note(Event::Saved { attempt, test, iteration })?;
            }
        }
        Ok(None)
    }

    /// Takes in everything that a job has reported by now, including losses that it recovered in place while no supervisor
    /// watched.
    pub(super) fn hear_out(&mut self, job: &mut Job) -> anyhow::Result<()> {
        self.look_once_more(job)?;
        self.note_recovered(job)
    }

    /// Notes the losses that the ranks have recovered in place since the last call, as the launcher's files report.
    pub(super) fn note_recovered(&mut self, job: &Job) -> anyhow::Result<()> {
        // A supervisor that takes a run over reads all losses of the attempt, and skips those that are already noted.
        while let Some((it, read_ms)) =
            job.files.gone_on.get(self.state.history.gone_on_last).cloned()
        {
            let now = steady_ms();
            let hung_ms = self.watch.gone_on(now);
            let positions = it.lost.iter().filter_map(|gone| Some(gone.position? as u32));
            let lived = positions.clone().filter_map(|p| self.watch.ranks.last_lived_ms(p));
            let well_ms = lived.chain(hung_ms).min();
            // A lost rank whose process was only stopped would never end, and the launcher would wait for it for ever.
            for gone in &it.lost {
                if let Some(node) = self.cluster.find_by_own_name(&gone.node) {
                    let below = self.state.attempts + 1;
                    self.cluster.ask_end_rank(node, Which::Launched(gone.rank), below);
                }
            }
            if self.settings.benchmark.stays_vacant {
                positions.for_each(|position| self.watch.ranks.excuse(position));
            }
            let noticed_ms = it.noticed_ms(well_ms, read_ms);
            // The ranks may have reached a later boundary than the last heartbeat shows.
            let (test, iteration) = if self.watch.ranks.is_empty() {
                self.state.progress.furthest
            } else {
                self.watch.ranks.front()
            };
            let iteration = iteration.max(it.boundary.unwrap_or(0));
            self.note(Event::GoneOn {
                fault: self.state.next_fault(),
                attempt: self.state.attempts,
                failed_ms: well_ms.unwrap_or(noticed_ms).min(noticed_ms),
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
                self.watch.ranks.set_back(now, boundary);
                self.attempt.computing_since =
                    self.attempt.computing_since.map(|_| (Instant::now(), boundary));
            }
        }
        Ok(())
    }

    /// Begins to measure the rate again at the start of a test, because its iterations begin at 0. Forgets the last save if it
    /// was in an earlier test.
    fn begin_test(&mut self) {
        let (test, iteration) = self.watch.ranks.front();
        if std::mem::replace(&mut self.status.test, test) < test {
            self.attempt.computing_since =
                self.attempt.computing_since.map(|_| (Instant::now(), iteration));
            if self.state.progress.last_saved.is_none_or(|(saved, _)| saved < test) {
                self.status.last_save = LastSave::default();
            }
        }
    }

    pub(super) fn learn_problem(&mut self, ranks: &[Progress]) {
        if let Some(rank) = ranks.iter().find(|r| r.n > 0 && r.nb > 0) {
            self.status.problem = Some(Problem { n: rank.n, nb: rank.nb });
        }
    }

    /// Returns the furthest point that ranks have reached when a rank has ended, according to the memory of all ranks. This point
    /// may be further than the last heartbeat shows.
    pub(super) fn last_look(&mut self, known: Front) -> anyhow::Result<Front> {
        let mut latest = known;
        self.await_beats(self.cluster.up(), LAST_LOOK, |this, beat| {
            this.ranks.seen |= !beat.ranks.is_empty();
            // Dead ranks may belong to an earlier attempt.
            this.attempt.ranks_seen |= beat.ranks.iter().any(Progress::lives);
            let seen = beat.ranks.iter().map(|r| (r.test, r.iteration));
            latest = seen.fold(latest, Ord::max);
        })?;
        Ok(latest)
    }
}

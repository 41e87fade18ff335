//! Opening of a run's folder: an unfinished run is resumed, and a finished run is set aside for a new run.
//!
//! `supervise` calls [`Run::open`] once. From then on the journal is locked, so that no second supervisor works on the run.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use anyhow::{Context as _, anyhow, bail};

use super::contact::Contact;
use super::halting::Requests;
use super::telling::Display;
use super::watching::new_watch;
use super::{AttemptState, RanksKnown, RoomDoubts, Settings, Supervisor, ThisProcess};
use crate::base::clock::steady_ms;
use crate::base::host_name;
use crate::supervise::judge::fitness::Need;
use crate::supervise::judge::nodes::Nodes;
use crate::supervise::remember::events::{Event, Record};
use crate::supervise::remember::io_thread::IoThread;
use crate::supervise::remember::journal::{Journal, RunState};
use crate::supervise::remember::journal_writer::JournalWriter;
use crate::supervise::signals::listen_to_signals;
use crate::supervise::start::hosts::Host;
use crate::supervise::start::job::is_over;
use crate::supervise::talk::agent::{binary_digest, boot};
use crate::supervise::talk::cluster::Cluster;
use crate::supervise::tell::status::{self, Lines, Status};

/// The run of a folder, as read from its journal.
pub(super) struct Run {
    pub(super) journal_writer: JournalWriter,
    pub(super) records: Vec<Record>,
    pub(super) state: RunState,
    pub(super) io_thread: IoThread,
    /// Whether the folder has an unfinished run, which is resumed.
    pub(super) resumed: bool,
}

impl Run {
    /// Opens the unfinished run in the folder of `settings`, or a new run.
    pub(super) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let folder = &settings.folder;
        folder.prepare().map_err(|why| anyhow!(why))?;
        // Opening the journal would cut off a record that a supervisor on another host is writing, if that host's lock is not
        // visible here.
        if let Some(host) = status::written_elsewhere(folder) {
            bail!(
                "{}: another supervisor is at work on this run, on {host}: it is writing {}. See `skt-hpl status`, end the run \
                 with `skt-hpl halt` (with --state if the folder is not the default), or choose another --state folder",
                folder.path().display(),
                folder.status().display()
            );
        }
        let (journal, records) = Journal::open(&folder.journal())?;
        // A request of `skt-hpl halt` was for an earlier supervisor. Before the lock, it could be for one that still works.
        let _ = std::fs::remove_file(folder.halt());
        listen_to_signals()?;
        let io_thread = IoThread::new("I/O")?;
        let journal_writer = JournalWriter::new(journal)?;
        let state = RunState::replay(&records);
        let resumed = !records.is_empty();
        let mut run = Self { journal_writer, records, state, io_thread, resumed };
        if settings.discard || !run.state.can_go_on() {
            if resumed {
                run = run.set_aside(settings)?;
            }
            run.journal_writer.clear()?;
            run.records.clear();
            (run.state, run.resumed) = (RunState::default(), false);
        }
        let Self { state, resumed, .. } = &mut run;
        state.go_on();
        if *resumed && (state.command != settings.command || state.ranks != settings.ranks) {
            bail!(
                "{} holds an unfinished run of another command ({} ranks: {}); give that command to resume it, \
                 another --state folder, or --new to give it up",
                folder.path().display(),
                state.ranks,
                state.command.join(" ")
            );
        }
        if !*resumed {
            state.run_id = fresh_run_id();
            // The old run was given up by this command, or by an earlier command that was interrupted. The file names the job
            // whose memory was given up, which must be the job of this command.
            state.from_scratch = std::fs::read_to_string(folder.given_up())
                .is_ok_and(|job| settings.job.as_ref() == Some(&job));
        }
        Ok(run)
    }

    /// Sets aside the files of the folder's run. A run that `--new` gives up is first ended on its nodes.
    fn set_aside(mut self, settings: &Settings) -> anyhow::Result<Self> {
        // The run is given up before its files are moved. After an interruption the same command thus finds the files again.
        if settings.discard && !self.state.finished.is_some_and(|code| is_over(code.into())) {
            let ran_on = self.state.ran_on.iter().map(|name| Host::new(name, 1));
            let nodes: Vec<Host> = ran_on.collect();
            // If the run has no job name, its ranks have memory under the run's id, only to show their progress.
            let job = self.state.job.clone().unwrap_or_else(|| self.state.run_id.clone());
            let attend = settings.attend(&self.state.run_id, Some(job.clone()));
            let cluster = Cluster::new(attend, &nodes, &[]).map_err(anyhow::Error::msg)?;
            self = Supervisor::new(settings, self, cluster)?.give_up(&job)?;
            let name = self.state.job.as_deref().unwrap_or_default();
            let marked = std::fs::write(settings.folder.given_up(), name);
            marked.context("cannot note that the old run is given up")?;
        }
        let aside = settings.folder.set_aside(&self.state.run_id);
        aside.context("cannot set the old run's files aside")?;
        Ok(self)
    }

    /// Returns the nodes of the run. No node is called yet.
    pub(super) fn cluster(&self, settings: &Settings) -> anyhow::Result<Cluster> {
        // A resumed run continues on its own nodes. Further nodes that this command names become spares. So do nodes of earlier
        // attempts that this command does not name.
        let hosts = if self.resumed { &self.state.hosts } else { &settings.hosts };
        let mut spares = self.state.spares.clone();
        let names = hosts.iter().chain(&spares).map(|host| host.name.clone());
        let mut known: BTreeSet<String> = names.collect();
        let named = settings.hosts.iter().chain(&settings.spares).cloned();
        let further = named.chain(self.state.had_ranks());
        spares.extend(further.filter(|host| known.insert(host.name.clone())));
        // If the run has no job name, its ranks have memory under the run's id, only to show their progress.
        let own = settings.shows_only_progress().then(|| self.state.run_id.clone());
        let job = own.or_else(|| settings.job.clone());
        let attend = settings.attend(&self.state.run_id, job);
        let mut cluster = Cluster::new(attend, hosts, &spares).map_err(anyhow::Error::msg)?;
        for name in &self.state.lost {
            if let Some(node) = cluster.find(name) {
                cluster.lose(node, "lost earlier in this run");
            }
        }
        Ok(cluster)
    }
}

fn fresh_run_id() -> String {
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    format!("{:011x}{random:08x}", steady_ms())
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(settings: &'a Settings, run: Run, cluster: Cluster) -> anyhow::Result<Self> {
        let Run { journal_writer, records, state, io_thread, .. } = run;
        let every_ms = settings.progress_every.as_millis() as u64;
        let most = settings.benchmark.needs.values().copied().reduce(Need::max);
        Ok(Supervisor {
            status: Status {
                run_id: state.run_id.clone(),
                started_ms: state.started_ms,
                attempt: state.attempts,
                problem: settings.benchmark.problem,
                doing: "calling nodes".to_owned(),
                supervisor_host: host_name(),
                supervisor_pid: std::process::id(),
                ..Status::default()
            },
            began_after: state.attempts,
            settings,
            env: settings.variables(state.from_scratch),
            journal_writer,
            io_thread,
            backlog: VecDeque::new(),
            records,
            state,
            nodes: Nodes::new(&settings.thresholds, cluster.names()),
            watch: new_watch(settings, &cluster),
            cluster,
            contact: Contact::default(),
            own: ThisProcess { binary: binary_digest(), boot: boot() },
            display: Display {
                lines: Lines { every_ms, said_ms: steady_ms(), ..Lines::default() },
                ..Display::default()
            },
            halt: None,
            requests: Requests::default(),
            ranks: RanksKnown { bytes: settings.rank_bytes, ..RanksKnown::default() },
            attempt: AttemptState::default(),
            room: RoomDoubts { most, ..RoomDoubts::default() },
        })
    }

    /// Notes the start of a new run. If the record cannot be written, returns an error, and nothing is started.
    pub(super) fn note_start(&mut self) -> anyhow::Result<()> {
        let settings = self.settings;
        self.note(Event::RunStarted {
            run_id: self.state.run_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            command: settings.command.clone(),
            launcher: settings.tool.kind,
            ranks: settings.ranks,
            hosts: settings.hosts.clone(),
            spares: settings.spares.clone(),
            job: settings.job.clone(),
            from_scratch: self.state.from_scratch,
            supervisor_host: self.status.supervisor_host.clone(),
            supervisor_pid: std::process::id(),
        })?;
        if let Some(why) = self.journal_writer.trouble() {
            bail!("{why}: the run is not started, because its journal cannot be written");
        }
        self.status.started_ms = self.state.started_ms;
        Ok(())
    }
}

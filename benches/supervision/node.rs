//! Measures what a real agent uses on a node with many ranks while they compute.
//!
//! Ranks are this benchmark in another role ([`rank`]). They create persistent shared memory like a protected position, and show
//! progress in it. They have as many mappings as an MPI process that shares memory with all its neighbours. They compute nothing,
//! so that the agent has the machine for itself. The agent is asked for heartbeats at the supervisor's interval, by the real
//! messages.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use skt_hpl::base::params::{Mapping, Rng};
use skt_hpl::shm::header::{Claim, Doing, HEAD_BYTES, Head, Header, Identity, Mark, NO_CODE};
use skt_hpl::shm::{MemoryStore, Part, Store};
use skt_hpl::supervise::start::launcher::{ATTEMPT_VAR, RUN_ID_VAR};
use skt_hpl::supervise::talk::shell::RemoteShell;
use skt_hpl::supervise::talk::wire::{Attend, Beat, FromAgent, ToAgent, from_line, to_line};

use crate::lab::{Kept, used};
use crate::report::Report;

/// Default interval at which the supervisor asks for heartbeats.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Time for which the agent is measured. The agent looks through all processes several times in this time.
const WATCHED: Duration = Duration::from_secs(32);
/// Timeout until all ranks appear in a heartbeat.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of mappings of an MPI process that are not shared with other processes, as counted with Open MPI 4.1.4.
const MAPPINGS: usize = 350;
/// Memory parts of a position with method self, without the header.
const PARTS: [Part; 6] = [Part::A, Part::B, Part::C, Part::D, Part::S, Part::Done];
/// Interval between the heartbeats of a rank.
const STEP: Duration = Duration::from_millis(300);
/// Number of heartbeats of a rank in an iteration.
const STEPS_AN_ITERATION: u64 = 7;

/// Runs the role of a rank. The arguments are the job name, the position, and the number of ranks.
pub fn rank(job: &str, position: &str, ranks: &str) -> std::io::Result<()> {
    let number = |text: &str| text.parse::<u32>().map_err(std::io::Error::other);
    let (position, ranks) = (number(position)?, number(ranks)?);
    // If the benchmark is killed, its ranks end too.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    let memory_store = MemoryStore::new(Store::Posix, job).map_err(std::io::Error::other)?;
    let make =
        |part, bytes| memory_store.create(position, part, bytes).map_err(std::io::Error::other);
    let _parts: Vec<_> = PARTS.iter().map(|part| make(*part, 4096)).collect::<Result<_, _>>()?;
    let mut hold = memory_store.hold(position).map_err(std::io::Error::other)?;
    let head = hold.renew(HEAD_BYTES).map_err(std::io::Error::other)?;
    let mut head = Head::new(head).map_err(std::io::Error::other)?;
    head.write(&header(position));
    let lines = std::fs::read_to_string("/proc/self/maps")?.lines().count();
    let look = |_| memory_store.peek(position, Part::S).map_err(std::io::Error::other);
    let _mapped: Vec<_> = (lines..MAPPINGS + ranks as usize).map(look).collect::<Result<_, _>>()?;
    for step in 0u64.. {
        let iteration = step / STEPS_AN_ITERATION;
        head.tick(Doing::Computing, iteration);
        head.worked(iteration * 1_500_000, iteration * 1_000_000_000);
        std::thread::sleep(STEP);
    }
    Ok(())
}

fn header(position: u32) -> Header {
    Header {
        id: Identity {
            run: 1,
            test: 0,
            position,
            n: 1_000_000,
            nb: 384,
            p: 1,
            q: 1,
            mapping: Mapping::Row,
            rng: Rng::Hpl,
            seed: 1,
            params_digest: 0,
            rows: 1,
            cols: 1,
            ld: 1,
            group: 0,
            members: (0..8).collect(),
            losses: 1,
            code: 0,
            method: NO_CODE,
            scope: NO_CODE,
            layout: NO_CODE,
            state_bytes: 0,
        },
        claim: Claim::generating(1),
        base: Mark::default(),
        seal: Mark::default(),
    }
}

/// Result for one number of ranks.
#[derive(Default, serde::Serialize)]
struct Row {
    ranks: u32,
    share: f64,
    megabytes: f64,
    /// Bytes that the agent sends in a second.
    bytes_a_s: f64,
}

/// The ranks' persistent shared memory, which outlives them. Dropping the value removes it.
struct Lying(MemoryStore);

impl Drop for Lying {
    fn drop(&mut self) {
        if let Err(why) = self.0.clean() {
            eprintln!("supervision: {why}");
        }
    }
}

/// A running agent that the benchmark asks for heartbeats.
struct Asked {
    agent: Kept,
    /// Number of bytes that the agent has sent, and number of ranks in its last heartbeat.
    said: Arc<(AtomicU64, AtomicU64)>,
    seq: u64,
}

impl Asked {
    fn up(program: &Path, run: &str, job: &str) -> Result<Self, String> {
        let say = |e: std::io::Error| format!("{}: {e}", program.display());
        let mut command = Command::new(program);
        command.args(["agent", "--run", run, "--node", "n1"]);
        let mut child: Child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(say)?;
        let reading = child.stdout.take().expect("it is a pipe");
        let said = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let counted = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(reading).lines().map_while(Result::ok) {
                counted.0.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
                let ranks = match from_line::<FromAgent>(&line) {
                    Some(FromAgent::Beat(Beat { ranks, .. })) => ranks.len() as u64,
                    _ => continue,
                };
                counted.1.store(ranks, Ordering::Relaxed);
            }
        });
        let mut asked = Self { agent: Kept(child), said, seq: 0 };
        asked.say(&ToAgent::Attend(Attend {
            run_id: run.to_owned(),
            job: Some(job.to_owned()),
            node: "n1".to_owned(),
            orphan_timeout_ms: 60_000,
            beat_ms: BEAT_EVERY.as_millis() as u64,
            node_timeout_ms: 4000,
            fanout: 32,
            login_ms: None,
            shell: RemoteShell::parse(None)?,
            dir: None,
            agent: Vec::new(),
        }))?;
        Ok(asked)
    }

    fn say(&mut self, message: &ToAgent) -> Result<(), String> {
        let input = self.agent.0.stdin.as_mut().expect("it is a pipe");
        let text = to_line(message);
        input.write_all(text.as_bytes()).map_err(|e| format!("the agent hears nothing: {e}"))
    }

    /// Asks the agent for heartbeats until `enough` returns true.
    fn ask_until(&mut self, mut enough: impl FnMut(&Self) -> bool) -> Result<(), String> {
        while !enough(self) {
            self.seq += 1;
            let seq = self.seq;
            self.say(&ToAgent::Beat { seq })?;
            std::thread::sleep(BEAT_EVERY);
        }
        Ok(())
    }
}

fn number(program: &Path, ranks: u32) -> Result<Row, String> {
    let run = format!("bench-{}-{ranks}", std::process::id());
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let _lying = Lying(MemoryStore::new(Store::Posix, &run).map_err(|e| e.to_string())?);
    let start = |position: u32| -> Result<Kept, String> {
        let mut command = Command::new(&own);
        command.arg("--rank").arg(&run).args([position.to_string(), ranks.to_string()]);
        command.env(RUN_ID_VAR, &run).env(ATTEMPT_VAR, "1").stdin(Stdio::null());
        command.spawn().map(Kept).map_err(|e| format!("cannot start a rank: {e}"))
    };
    let _ranks: Vec<Kept> = (0..ranks).map(start).collect::<Result<_, _>>()?;
    let mut asked = Asked::up(program, &run, &run)?;
    let until = Instant::now() + TIMEOUT;
    let shown = |asked: &Asked| asked.said.1.load(Ordering::Relaxed) >= u64::from(ranks);
    asked.ask_until(|asked| shown(asked) || Instant::now() > until)?;
    if !shown(&asked) {
        return Err(format!("not all of {ranks} ranks have shown up"));
    }
    // The agent checks more often at the start; these checks end before this time.
    let settled = Instant::now() + WATCHED / 2;
    asked.ask_until(|_| Instant::now() > settled)?;
    let pid = asked.agent.0.id() as i32;
    let gone = "the agent is gone";
    let (before, said, since) =
        (used(pid).ok_or(gone)?, asked.said.0.load(Ordering::Relaxed), Instant::now());
    asked.ask_until(|_| since.elapsed() >= WATCHED)?;
    let (after, seconds) = (used(pid).ok_or(gone)?, since.elapsed().as_secs_f64());
    Ok(Row {
        ranks,
        share: (after.cpu_s - before.cpu_s) / seconds,
        megabytes: after.resident_bytes as f64 / 1e6,
        bytes_a_s: (asked.said.0.load(Ordering::Relaxed) - said) as f64 / seconds,
    })
}

pub fn measure(program: &Path, counts: &[u32], report: &mut Report) -> Result<(), String> {
    let mut rows = Vec::new();
    for ranks in counts {
        rows.push(number(program, *ranks)?);
    }
    let heads = ["ranks", "agent: % of a core", "MB", "kB/s said"];
    let cells = rows.iter().map(|row| {
        vec![
            row.ranks.to_string(),
            format!("{:.3}", row.share * 100.0),
            format!("{:.1}", row.megabytes),
            format!("{:.1}", row.bytes_a_s / 1e3),
        ]
    });
    report.table("A node of many ranks: its agent while they compute", &heads, cells.collect());
    report.keep("node", &rows);
    report.write()
}

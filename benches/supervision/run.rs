//! A run of the benchmark on the virtual cluster, with or without supervision, and the figures from its journal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use skt_hpl::base::clock::unix_ms;
use skt_hpl::report::json::Run as Document;
use skt_hpl::supervise::remember::events::{Event, Record};
use skt_hpl::supervise::remember::journal;
use skt_hpl::supervise::start::hosts::Host;
use skt_hpl::supervise::start::launch::{LaunchPlan, launch};
use skt_hpl::supervise::start::launcher::{Launcher, Tool};
use skt_hpl::supervise::start::room::Room;
use skt_hpl::supervise::talk::shell::RemoteShell;
use skt_hpl::supervise::tell::timeline::{FaultTimes, faults};

use crate::lab::Lab;

/// Timeout of a run.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Settings that all runs share.
pub struct Stage<'a> {
    pub lab: &'a Lab,
    /// Nodes that work from the beginning, with the number of ranks of each.
    pub hosts: Vec<Host>,
    /// Spare nodes.
    pub spares: Vec<Host>,
    /// Arguments of the benchmark in addition to those of every run.
    pub benchmark: Vec<String>,
    pub tool: Tool,
    pub program: PathBuf,
    pub folder: &'a Path,
}

/// A started run.
pub struct Run {
    pub child: Child,
    folder: PathBuf,
}

/// Result of a run: seconds of the test, digest of x, and wall time of the whole run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Came {
    pub seconds: f64,
    pub x: String,
    pub wall_s: f64,
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|w| w.to_string()).collect()
}

impl Stage<'_> {
    /// Returns the arguments of the launcher. Virtual nodes have one network, and share the cores of this machine.
    fn launcher_arguments(&self) -> Vec<String> {
        let network = &self.lab.network;
        match self.tool.kind {
            Launcher::Openmpi => {
                let (runtime, its) = match self.tool.major {
                    Some(5..) => ("--prtemca", "prte_if_include"),
                    _ => ("--mca", "oob_tcp_if_include"),
                };
                words(&[
                    "--mca",
                    "btl",
                    "self,tcp",
                    "--mca",
                    "btl_tcp_if_include",
                    network,
                    runtime,
                    its,
                    network,
                    "--mca",
                    "mpi_yield_when_idle",
                    "1",
                    "--bind-to",
                    "none",
                ])
            }
            Launcher::Mpich | Launcher::Srun => Vec::new(),
        }
    }

    fn benchmark(&self) -> Vec<String> {
        let always = words(&["--threads", "1", "--job", "supervision", "--json", "result.json"]);
        [self.benchmark.clone(), always].concat()
    }

    fn prepare(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(folder)
    }

    fn spawn(&self, mut command: Command, folder: PathBuf) -> Result<Run, String> {
        let file = |name: &str| fs::File::create(folder.join(name)).map_err(|e| e.to_string());
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SKT_")) {
                command.env_remove(name);
            }
        }
        let child = command
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("err")?)
            .spawn()
            .map_err(|e| format!("cannot start {command:?}: {e}"))?;
        Ok(Run { child, folder })
    }

    /// Starts the benchmark under `skt-hpl run`.
    pub fn supervised(&self, name: &str) -> Result<Run, String> {
        let folder = self.prepare(name)?;
        let mut command = Command::new(&self.program);
        command.args(["run", "--state", "state"]);
        for (list, hosts) in [("hosts", &self.hosts), ("spares", &self.spares)] {
            if !hosts.is_empty() {
                let text: String =
                    hosts.iter().map(|h| format!("{} slots={}\n", h.name, h.slots)).collect();
                fs::write(folder.join(list), text).map_err(|e| e.to_string())?;
                command.arg(format!("--{list}")).arg(list);
            }
        }
        command.arg("--rsh").arg(format!("ssh -F {}", self.lab.ssh));
        command.arg("--launcher-program").arg(&self.tool.program);
        command.arg(format!("--launcher-args={}", self.launcher_arguments().join(" ")));
        command.args(self.benchmark());
        self.spawn(command, folder)
    }

    /// Starts the benchmark by the command that the supervisor would use, without a supervisor.
    pub fn bare(&self, name: &str) -> Result<Run, String> {
        let folder = self.prepare(name)?;
        let shell = RemoteShell::parse(Some(&format!("ssh -F {}", self.lab.ssh)))?;
        let program = self.program.to_string_lossy().into_owned();
        let benchmark = [vec![program], self.benchmark()].concat();
        let made = launch(&LaunchPlan {
            tool: &self.tool,
            room: Room::Enough,
            hosts: &self.hosts,
            ranks: self.hosts.iter().map(|host| host.slots).sum(),
            run_id: &format!("bare-{}-{name}", std::process::id()),
            attempt: 1,
            command: &benchmark,
            env: &[],
            extra: &self.launcher_arguments(),
            shell: &shell,
            dir: &folder,
            as_root: true,
        });
        for (path, text, executable) in &made.files {
            use std::os::unix::fs::PermissionsExt;
            let mode = if *executable { 0o755 } else { 0o644 };
            fs::write(path, text)
                .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let mut command = Command::new("env");
        command.args(made.set.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(&made.argv);
        self.spawn(command, folder)
    }
}

impl Run {
    pub fn records(&self) -> Vec<Record> {
        let path = self.folder.join("state/events.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| journal::from_line(line).ok()).collect()
    }

    pub fn faults(&self) -> Vec<FaultTimes> {
        faults(&self.records())
    }

    /// Waits until the journal has `count` records for which `is` returns true. An Err reports that the run has ended before, or
    /// hangs.
    pub fn wait_for(&mut self, count: usize, is: impl Fn(&Event) -> bool) -> Result<(), String> {
        let until = Instant::now() + TIMEOUT;
        while self.records().iter().filter(|r| is(&r.event)).count() < count {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the run ended too early ({status}): {}", self.errors()));
            }
            if Instant::now() > until {
                let _ = self.child.kill();
                return Err(format!("the run hangs: {}", self.errors()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the seconds of an iteration between the last two saves in the journal. None if the journal has fewer than two.
    pub fn iteration_s(&self) -> Option<f64> {
        let saves: Vec<(u64, u64)> = self
            .records()
            .iter()
            .filter_map(|r| match r.event {
                Event::Computing { iteration, .. } | Event::Saved { iteration, .. } => {
                    Some((r.at_ms, iteration))
                }
                _ => None,
            })
            .collect();
        let [.., (from_ms, from), (to_ms, to)] = saves[..] else { return None };
        (to > from).then(|| (to_ms - from_ms) as f64 / 1e3 / (to - from) as f64)
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.join("err")).unwrap_or_default()
    }

    /// Waits for the end of the run, and calls `meanwhile` ten times a second. Returns the result.
    pub fn end(mut self, mut meanwhile: impl FnMut(&Run)) -> Result<Came, String> {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if began.elapsed() < TIMEOUT => {}
                Ok(None) => {
                    let _ = self.child.kill();
                    return Err(format!("the run hangs: {}", self.errors()));
                }
                Err(error) => return Err(error.to_string()),
            }
            meanwhile(&self);
            std::thread::sleep(Duration::from_millis(100));
        };
        if !status.success() {
            return Err(format!("the run failed ({status}): {}", self.errors()));
        }
        let path = self.folder.join("result.json");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let document: Document = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let outcome = document.tests.into_iter().next().and_then(|t| t.outcome);
        let outcome = outcome.ok_or("no result in the run's JSON")?;
        Ok(Came {
            seconds: outcome.seconds,
            x: outcome.x_digest.to_string(),
            wall_s: began.elapsed().as_secs_f64(),
        })
    }
}

/// Returns the present time by the clock of the journal, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    unix_ms()
}

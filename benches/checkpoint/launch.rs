//! Starts the probe and whole runs under the launcher, and reads their output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use skt_hpl::report::json::Run;

use crate::cases::Case;
use crate::job::{Mpi, launch_arguments};
use crate::limit;
use crate::probe::{Found, Spec};

#[derive(Clone)]
pub struct Launcher {
    pub program: PathBuf,
    pub mpi: Mpi,
    pub cores: usize,
    /// Processors of the started programs. If empty, they may use all processors of the benchmark.
    pub within: BTreeSet<usize>,
    pub skt_hpl: PathBuf,
}

/// Figures of a whole run of the benchmark. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Whole {
    pub seconds: f64,
    pub save_s: f64,
    pub saves: u64,
    /// Number of checkpoints that were completed on storage.
    pub stored: u64,
    /// Number of saves in memory that were delayed because storage was still being written.
    pub put_off: u64,
    /// Bytes that the run wrote to storage.
    pub stored_bytes: u64,
    /// Sum of the times from the commit of each checkpoint to its manifest. With method disk, each time counts from its start.
    pub write_s: f64,
}

impl Launcher {
    fn command(&self, (p, q): (usize, usize), threads: usize, program: &Path) -> Command {
        let case = Case { n: 0, nb: 0, p, q, threads };
        let mut command = Command::new(&self.program);
        command.args(launch_arguments(self.mpi, &case, self.cores)).arg(program);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SKT_")) {
                command.env_remove(name);
            }
        }
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .stdin(Stdio::null());
        command
    }

    pub fn probe(&self, spec: &Spec) -> Result<Found, String> {
        let me = std::env::current_exe().map_err(|e| format!("where am I: {e}"))?;
        let text = serde_json::to_string(spec).map_err(|e| e.to_string())?;
        let layout = spec.layout();
        // Ranks that store parity only have the highest numbers.
        let (p, q) = if layout.dedicated > 0 { (1, layout.positions()) } else { (spec.p, spec.q) };
        let mut command = self.command((p, q), spec.threads, &me);
        command.args(["--probe", &text]);
        let output = self.run(command)?;
        serde_json::from_str(output.trim())
            .map_err(|e| format!("the probe said something else than it should ({e}): {output}"))
    }

    /// Runs skt-hpl on one problem, which must pass its check. An Err gives the reason of a failure.
    pub fn whole(&self, n: usize, nb: usize, checkpoint: &str, job: &str) -> Result<Whole, String> {
        self.whole_with((n, nb), checkpoint, job, &[])
    }

    /// Runs skt-hpl on one problem with further flags, as [`Launcher::whole`] does.
    pub fn whole_with(
        &self,
        (n, nb): (usize, usize),
        checkpoint: &str,
        job: &str,
        flags: &[&str],
    ) -> Result<Whole, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        let (domains, json) = (folder.path().join("domains"), folder.path().join("run.json"));
        std::fs::write(&domains, "rank:0 one\nrank:1 two\n").map_err(|e| e.to_string())?;
        let mut command = self.command((1, 2), 1, &self.skt_hpl);
        command.current_dir(folder.path()).args(["-p", "1", "-q", "2", "--threads", "1"]);
        command.args(["-n", &n.to_string(), "--nb", &nb.to_string()]);
        command.arg("--checkpoint").arg(checkpoint).arg("--job").arg(job);
        command.arg("--restart").arg("never").args(flags);
        command.arg("--domains").arg(&domains).arg("--json").arg(&json);
        let said = self.run(command)?;
        if !said.contains("PASSED") {
            return Err(format!("the solution was not accepted: {said}"));
        }
        let text = std::fs::read_to_string(&json).map_err(|e| e.to_string())?;
        whole(&text).ok_or_else(|| format!("no result in the run's JSON: {text}"))
    }

    fn run(&self, mut command: Command) -> Result<String, String> {
        let output = limited(&mut command, &self.within)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command:?} ended with {}: {errors}", output.status))
    }
}

/// Returns the figures of the only test in a JSON document. None if the document is not valid or its test did not run.
fn whole(text: &str) -> Option<Whole> {
    let document: Run = serde_json::from_str(text).ok()?;
    let outcome = document.tests.into_iter().next()?.outcome?;
    let protection = outcome.protection.unwrap_or_default();
    let level2 = protection.level2.unwrap_or_default();
    Some(Whole {
        seconds: outcome.seconds,
        save_s: protection.save_s,
        saves: protection.saves,
        stored: level2.checkpoints,
        put_off: level2.put_off,
        stored_bytes: level2.bytes,
        write_s: level2.write_s,
    })
}

/// Runs a command on the processors `within`, or on all processors if `within` is empty. Returns the output of the command. The
/// calling thread moves to these processors meanwhile, and the command inherits them.
fn limited(command: &mut Command, within: &BTreeSet<usize>) -> Result<Output, String> {
    let refused = |error: nix::Error| format!("no run on some processors alone: {error}");
    let this = Pid::from_raw(0);
    let before = sched_getaffinity(this).map_err(refused)?;
    if !within.is_empty() {
        let mut set = CpuSet::new();
        within.iter().try_for_each(|&processor| set.set(processor)).map_err(refused)?;
        sched_setaffinity(this, &set).map_err(refused)?;
    }
    let output = limit::output(command, None);
    sched_setaffinity(this, &before).map_err(refused)?;
    output
}

//! A run of the benchmark under the launcher on this machine, and the figures from its JSON document.

use std::path::PathBuf;
use std::process::Command;

use skt_hpl::base::outcome::{Outcome, Verdict};
use skt_hpl::report::json::Run as Document;
use skt_hpl::supervise::start::launcher::{Tool, WITH_ULFM};

use crate::limit;

/// Launcher and program of all runs.
pub struct Machine {
    pub tool: Tool,
    pub program: PathBuf,
}

/// A run to be started.
#[derive(Clone, Debug)]
pub struct Job {
    pub ranks: usize,
    /// True if the launcher must continue the job without a lost rank.
    pub goes_on: bool,
    /// Arguments of skt-hpl.
    pub words: Vec<String>,
    /// Fault to inject; the format is described in docs/dev/protocol.md.
    pub fault: Option<String>,
}

/// Result of a run.
pub struct Came {
    pub outcome: Outcome,
    /// True if the fault was injected.
    pub injected: bool,
}

/// Timeout of a run, in seconds. When ranks are killed at random, a run that exceeds it hangs.
const RUN_S_MAX: u64 = 900;

impl Machine {
    pub fn run(&self, job: &Job) -> Result<Came, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        let (json, log) = (folder.path().join("run.json"), folder.path().join("faults"));
        let mut command = Command::new(&self.tool.program);
        if job.goes_on {
            command.args(WITH_ULFM);
        }
        command.args(["-n", &job.ranks.to_string(), "--bind-to", "none", "--oversubscribe"]);
        // Otherwise waiting ranks would use the processor time that other ranks need.
        command.args(["--mca", "mpi_yield_when_idle", "1"]).arg(&self.program);
        command.args(&job.words).args(["--threads", "1"]).arg("--json").arg(&json);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SKT_")) {
                command.env_remove(name);
            }
        }
        if let Some(fault) = &job.fault {
            command.env("SKT_FAULT", fault).env("SKT_FAULT_LOG", &log);
        }
        command
            .current_dir(folder.path())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            // A killed launcher leaves a folder named after its process id. A later launcher with the same id would not start.
            .env("PRTE_MCA_prte_tmpdir_base", folder.path());
        let done = limit::output(&command, Some(RUN_S_MAX))?;
        let said = String::from_utf8_lossy(&done.stderr);
        let failed = |why: &str| format!("{command:?}: {why} ({}): {said}", done.status);
        let text = std::fs::read_to_string(&json).map_err(|_| failed("no result"))?;
        let document: Document = serde_json::from_str(&text).map_err(|e| failed(&e.to_string()))?;
        let outcome = document.tests.into_iter().next().and_then(|test| test.outcome);
        let outcome = outcome.ok_or_else(|| failed("no result in its JSON"))?;
        if outcome.verdict != Verdict::Passed {
            return Err(failed("the solution is wrong"));
        }
        let injected = std::fs::read_to_string(&log).is_ok_and(|log| !log.is_empty());
        Ok(Came { outcome, injected })
    }
}

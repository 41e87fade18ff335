//! MPI launchers: Open MPI's mpirun (4 and 5), MPICH's mpiexec (Hydra), Slurm's srun. Describes their programs and versions, and
//! the environment variables that they set for a process.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Name of the environment variable by which every process of a run is recognised.
pub const RUN_ID_VAR: &str = "SKT_RUN_ID";
/// Returns the id of the supervised run that this process belongs to, if any.
pub fn own_run_id() -> Option<String> {
    std::env::var(RUN_ID_VAR).ok()
}

/// Name of the environment variable that counts the launches of a run, from 1.
pub const ATTEMPT_VAR: &str = "SKT_ATTEMPT";

/// Returns the number of the attempt that this process belongs to, or 1 without a supervisor.
pub fn own_attempt() -> u32 {
    std::env::var(ATTEMPT_VAR).ok().and_then(|number| number.parse().ok()).unwrap_or(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Launcher {
    /// Open MPI's mpirun
    Openmpi,
    /// MPICH's mpiexec (Hydra)
    Mpich,
    /// Slurm's srun, with the PMI the MPI library wants
    Srun,
}

impl Launcher {
    /// Returns the programs to look for in PATH, the most specific name first.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Launcher::Openmpi => &["mpirun.openmpi", "orterun", "mpirun"],
            Launcher::Mpich => &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
            Launcher::Srun => &["srun"],
        }
    }

    /// Returns the launcher that belongs to an MPI library, by the library's version text.
    pub fn of_library(version: &str) -> Option<Self> {
        let version = version.to_ascii_lowercase();
        if version.contains("open mpi") {
            Some(Launcher::Openmpi)
        } else if ["mpich", "intel", "mvapich"].iter().any(|n| version.contains(n)) {
            Some(Launcher::Mpich)
        } else {
            None
        }
    }
}

/// Variable by which Open MPI's launcher gives a process its rank. The launcher's own processes do not have it.
pub const OPEN_MPI_RANK_VAR: &str = "OMPI_COMM_WORLD_RANK";

/// Variables by which launchers give a process its rank: those of Open MPI, of Hydra and PMI-2, of PMIx, and of Slurm.
pub const RANK_VARS: [&str; 4] = [OPEN_MPI_RANK_VAR, "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];

/// Variable that selects how Slurm's PMIx plugin collects the data of all nodes: over a tree, or around a ring.
pub const PMIX_FENCE_VAR: &str = "SLURM_PMIX_FENCE";

/// Options by which the launcher of Open MPI 5 lets a job continue without a rank. The ranks themselves configure how they detect
/// lost ranks.
pub const WITH_ULFM: &[&str] = &["--with-ft", "ulfm"];

/// A launcher as it was found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    pub kind: Launcher,
    pub program: PathBuf,
    /// Major version, if known.
    pub major: Option<u32>,
    /// Installation folder of the launcher, if it has its own. The launcher's daemons are started from there on every node.
    pub prefix: Option<PathBuf>,
    /// Value of srun's `--mpi`, if the user gave none.
    pub pmi: &'static str,
    /// Whether the user's environment sets how Slurm's PMIx plugin collects the data of all nodes.
    pub fence_is_chosen: bool,
    /// Number of cores that the Slurm job requested for each rank. srun does not apply this number by itself.
    pub cpus_per_rank: Option<usize>,
}

impl Tool {
    /// Whether the launcher is that of Open MPI 5, whose runtime PRRTE has its own options.
    pub(super) fn is_prrte(&self) -> bool {
        self.kind == Launcher::Openmpi && self.major.is_some_and(|major| major >= 5)
    }

    /// Whether the launcher can start the remote shell's script from this folder. Open MPI splits the path of the script at
    /// spaces and, because it may be a list of paths, at colons.
    pub fn can_use(&self, folder: &Path) -> bool {
        let parts = |c: char| c.is_whitespace() || c == ':';
        self.kind != Launcher::Openmpi || !folder.to_string_lossy().contains(parts)
    }

    /// Returns the options by which a job continues without a lost rank, or `None` if it cannot.
    pub fn goes_on(&self) -> Option<&'static [&'static str]> {
        self.is_prrte().then_some(WITH_ULFM)
    }

    /// Whether the launcher's status may be 0 although a node was lost. This happens with PRRTE after it has printed "will
    /// terminate the job".
    pub fn hides_losses(&self) -> bool {
        self.is_prrte()
    }
}

/// Returns the major version from a launcher's output for `--version`: 5 for `mpirun (Open MPI) 5.0.11`.
pub fn major_version(text: &str) -> Option<u32> {
    let number = |word: &str| {
        let word = word.strip_prefix('v').unwrap_or(word);
        let (major, rest) = word.split_once('.')?;
        rest.starts_with(|c: char| c.is_ascii_digit()).then(|| major.parse().ok())?
    };
    text.split_whitespace().find_map(|word| number(word.trim_end_matches(',')))
}

#[cfg(test)]
pub(super) use tests::{tool, tools};

#[cfg(test)]
mod tests {
    use super::*;

    pub(in crate::supervise::start) fn tool(kind: Launcher, major: u32) -> Tool {
        Tool {
            kind,
            program: PathBuf::from("/bin/launch"),
            major: Some(major),
            prefix: None,
            pmi: "pmi2",
            fence_is_chosen: false,
            cpus_per_rank: None,
        }
    }

    /// Returns every launcher, and each version of it that behaves differently.
    pub(in crate::supervise::start) fn tools() -> [Tool; 4] {
        [
            tool(Launcher::Openmpi, 4),
            tool(Launcher::Openmpi, 5),
            tool(Launcher::Mpich, 4),
            tool(Launcher::Srun, 22),
        ]
    }

    #[test]
    fn only_open_mpi_5_goes_on_without_a_rank() {
        let can: Vec<bool> = tools().iter().map(|tool| tool.goes_on().is_some()).collect();
        assert_eq!(can, [false, true, false, false]);
    }

    #[test]
    fn open_mpi_alone_minds_a_space_or_a_colon_in_a_path() {
        let can = |at: &str| tools().map(|tool| tool.can_use(Path::new(at)));
        for apart in ["/home/me/a run", "/home/me/10:30"] {
            assert_eq!(can(apart), [false, false, true, true], "{apart}");
        }
        assert_eq!(can("/home/me/a-run"), [true; 4]);
    }

    #[test]
    fn versions_are_read() {
        for (text, major) in [
            ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/", Some(5)),
            ("mpirun.openmpi (OpenRTE) 4.1.4\n", Some(4)),
            ("Open MPI v5.0.11, package: Open MPI x", Some(5)),
            ("HYDRA build details:\n    Version:            4.0.2\n", Some(4)),
            ("slurm-wlm 22.05.8", Some(22)),
            ("usage: mine [-n N]", None),
            ("", None),
        ] {
            assert_eq!(major_version(text), major, "{text}");
        }
    }

    #[test]
    fn libraries_know_their_launcher() {
        assert_eq!(
            Launcher::of_library("Open MPI v4.1.4, package: Debian"),
            Some(Launcher::Openmpi)
        );
        assert_eq!(Launcher::of_library("MPICH Version:\t4.0.2"), Some(Launcher::Mpich));
        assert_eq!(Launcher::of_library("Something"), None);
    }
}

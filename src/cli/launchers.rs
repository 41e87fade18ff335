//! Choice of the launcher that starts the ranks: the launcher of the MPI library to which this program is linked.
//!
//! `run` and `doctor` get a [`Tool`] from here, which also has the launcher's version. A machine may have several launchers. The
//! launcher installed with the linked library comes first, then launchers in PATH that have the library's version.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::template;
use crate::base::exit::Refusal;
use crate::base::timed_command::ask;
use crate::comm::World;
use crate::supervise::start::launcher::{Launcher, PMIX_FENCE_VAR, Tool, major_version};

/// Returns the value of srun's option `--mpi` that suits the MPI library `library`.
fn pmi(library: &str) -> &'static str {
    match Launcher::of_library(library) {
        Some(Launcher::Openmpi) => "pmix",
        _ => "pmi2",
    }
}

pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Returns the folder in which MPI is installed, from the path of the linked library: `DIR` of `DIR/lib/libmpi.so.40`. `maps` is
/// the content of /proc/self/maps.
fn prefix_of_library(maps: &str) -> Option<PathBuf> {
    let loaded = maps.lines().find_map(|line| {
        let path = Path::new(line.split_whitespace().nth(5)?);
        let name = path.file_name()?.to_str()?;
        (name.starts_with("libmpi.so") || name.starts_with("libmpich.so")).then_some(path)
    })?;
    Some(loaded.parent()?.parent()?.to_path_buf())
}

/// Timeout for a launcher that is asked for its version: its files may lie on a slow disk.
const ANSWERS: Duration = Duration::from_secs(20);

/// Returns the version that a launcher prints. None if the launcher prints no version, or does not answer in time.
fn version_of(program: &Path, answers: Duration) -> Option<u32> {
    let (_, text) = ask(Command::new(program).arg("--version"), answers).ok()?;
    major_version(&text)
}

/// Returns the first program of the version `wanted`, or else the first of all programs, with its version. None if there is no
/// program. `version` asks a program for its version.
fn choose(
    found: Vec<PathBuf>,
    wanted: Option<u32>,
    version: impl Fn(&Path) -> Option<u32>,
) -> Option<(PathBuf, Option<u32>)> {
    let mut first = None;
    for program in found {
        let major = version(&program);
        if wanted.is_none() || major == wanted {
            return Some((program, major));
        }
        first = first.or(Some((program, major)));
    }
    first
}

/// Returns the folder in which a launcher is installed, if the launcher's daemons would not be found without it; otherwise None.
fn own_prefix(program: &Path) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(program.parent()?).ok()?;
    let prefix = folder.parent().filter(|_| folder.ends_with("bin"))?;
    let known = ["/", "/usr", "/usr/local"].iter().any(|p| prefix == Path::new(p));
    (!known && ["prted", "orted"].iter().any(|d| folder.join(d).is_file()))
        .then(|| prefix.to_path_buf())
}

/// Returns the major version that a launcher must have. For Open MPI's launcher this is the version of the linked library. None
/// if any version will do.
fn wanted(kind: Launcher, library: &str) -> Option<u32> {
    let own = Launcher::of_library(library) == Some(kind);
    major_version(library).filter(|_| own && kind == Launcher::Openmpi)
}

/// Returns the program of a launcher, and the version if the program prints one. The program installed with the linked library
/// comes first, then the first program in PATH that has the library's version.
fn program_of(kind: Launcher, library: &str) -> Option<(PathBuf, Option<u32>)> {
    let own = Launcher::of_library(library) == Some(kind);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_library = prefix_of_library(&maps)
        .filter(|_| own)
        .into_iter()
        .flat_map(|dir| kind.programs().iter().map(move |name| dir.join("bin").join(name)));
    let in_path = kind.programs().iter().filter_map(|name| in_path(name));
    let found = of_library.filter(|path| path.is_file()).chain(in_path).collect();
    choose(found, wanted(kind, library), |program| version_of(program, ANSWERS))
}

/// Returns the launch command for a job on `nodes` nodes if the user gave none: the launcher of this program's MPI, with the same
/// number of ranks on each node. By default the launcher would fill one node after the other.
pub(super) fn usual_words(nodes: usize) -> String {
    let library = World::library();
    let kind = Launcher::of_library(&library);
    let program = kind
        .and_then(|kind| program_of(kind, &library))
        .and_then(|(program, _)| program.into_os_string().into_string().ok())
        .filter(|program| !program.contains(char::is_whitespace));
    format!("{} {}", program.as_deref().unwrap_or("mpirun"), words_after(kind, nodes))
}

/// Returns the words after the launcher's name in a launch command for `nodes` nodes. The launcher binds no rank: the ranks of a
/// node divide its cores themselves.
fn words_after(kind: Option<Launcher>, nodes: usize) -> String {
    let spread = match kind {
        _ if nodes <= 1 => "",
        Some(Launcher::Mpich) => " -ppn {per_node}",
        _ => " --map-by ppr:{per_node}:node",
    };
    format!("-np {{ranks}}{spread} --bind-to none")
}

/// Returns the words after the launcher's name that a user types to start `ranks` ranks on `nodes` nodes. Without `kind`, the
/// launcher is that of this program's MPI.
pub(super) fn typed(kind: Option<Launcher>, nodes: usize, ranks: usize, per_node: usize) -> String {
    let kind = kind.or_else(|| Launcher::of_library(&World::library()));
    template::words(&words_after(kind, nodes), ranks, per_node, 1).join(" ")
}

/// Returns the flags of `skt-hpl run` with which the launcher binds no rank. The ranks then get the same cores as with the words
/// of [`typed`].
pub(super) fn typed_for_run() -> &'static str {
    match Launcher::of_library(&World::library()) {
        // MPICH binds nothing by default.
        Some(Launcher::Mpich) => "",
        _ => " --launcher-args \"--bind-to none\"",
    }
}

/// Returns the launcher of kind `kind`, whose program is at `path`. Without a kind, the launcher is that of this program's MPI.
/// Without a path, the function searches for the program.
pub(super) fn tool(kind: Option<Launcher>, path: Option<&Path>) -> Result<Tool, Refusal> {
    let library = World::library();
    let Some(kind) = kind.or_else(|| Launcher::of_library(&library)) else {
        return Err(Refusal::environment(format!(
            "no launcher is known for the MPI library '{library}'; name one with --launcher"
        )));
    };
    let (program, major) = match path {
        Some(path) => (path.to_owned(), version_of(path, ANSWERS)),
        None => program_of(kind, &library).ok_or_else(|| {
            Refusal::environment(format!(
                "none of the launchers {} is in PATH; install a launcher, or name its program with --launcher-program",
                kind.programs().join(", ")
            ))
        })?,
    };
    let cpus = std::env::var("SLURM_CPUS_PER_TASK").ok().and_then(|text| text.parse().ok());
    Ok(Tool {
        kind,
        prefix: own_prefix(&program).filter(|_| kind == Launcher::Openmpi),
        program,
        major: major.or(wanted(kind, &library)),
        pmi: pmi(&library),
        fence_is_chosen: std::env::var_os(PMIX_FENCE_VAR).is_some(),
        cpus_per_rank: cpus,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::talk::processes::script;

    #[test]
    fn the_library_says_its_name() {
        assert!(Launcher::of_library(&World::library()).is_some(), "{}", World::library());
    }

    #[test]
    fn ranks_are_spread_over_nodes_where_there_are_several() {
        let (one, two) = (usual_words(1), usual_words(2));
        assert!(!one.contains("per_node") && one.ends_with(" -np {ranks} --bind-to none"), "{one}");
        assert!(two.contains("{per_node}") && two.starts_with(one.split(' ').next().unwrap()));
        let typed = |kind, nodes| typed(Some(kind), nodes, 8, 2);
        assert_eq!(typed(Launcher::Mpich, 4), "-np 8 -ppn 2 --bind-to none");
        assert_eq!(typed(Launcher::Openmpi, 4), "-np 8 --map-by ppr:2:node --bind-to none");
        assert_eq!(typed(Launcher::Openmpi, 1), "-np 8 --bind-to none");
    }

    #[test]
    fn the_prefix_is_where_the_library_was_loaded_from() {
        let maps = "7f0 r--p 0 fe:00 12   /usr/lib/x86_64-linux-gnu/libc.so.6\n\
                    7f1 r-xp 0 fe:00 13   /opt/openmpi5/lib/libmpi.so.40.40.8\n";
        assert_eq!(prefix_of_library(maps), Some(PathBuf::from("/opt/openmpi5")));
        assert_eq!(prefix_of_library("7f0 r--p 0 00:00 0 \n"), None);
    }

    /// At some sites the launcher is a script that may wait long for a licence or a disk.
    #[test]
    fn a_launcher_that_does_not_answer_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let launcher = |name: &str, words: &str| {
            let path = dir.path().join(name);
            script(&path, words);
            path
        };
        let tells = launcher("tells", "echo 'mpirun (Open MPI) 5.0.6'");
        assert_eq!(version_of(&tells, Duration::from_secs(20)), Some(5));
        let hangs = launcher("hangs", "exec sleep 60");
        let began = std::time::Instant::now();
        assert_eq!(version_of(&hangs, Duration::from_millis(100)), None);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_launcher_of_the_librarys_version_is_taken() {
        let found = || ["/usr/bin/mpirun.openmpi", "/opt/5/bin/mpirun"].map(PathBuf::from).to_vec();
        let version = |path: &Path| Some(if path.starts_with("/opt/5") { 5 } else { 4 });
        let choice = |wanted| choose(found(), wanted, version).unwrap().0;
        assert_eq!(choice(Some(5)), Path::new("/opt/5/bin/mpirun"));
        assert_eq!(choice(Some(4)), Path::new("/usr/bin/mpirun.openmpi"));
        assert_eq!(choice(None), Path::new("/usr/bin/mpirun.openmpi"));
        // If no program has the version, the trial start reports this later, with the program's name.
        assert_eq!(choice(Some(6)), Path::new("/usr/bin/mpirun.openmpi"));
        assert_eq!(choose(Vec::new(), Some(5), version), None);
    }

    #[test]
    fn a_launcher_in_a_folder_of_its_own_names_it_to_its_daemons() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("mpirun"), "").unwrap();
        assert_eq!(own_prefix(&bin.join("mpirun")), None, "no daemon is there");
        std::fs::write(bin.join("prted"), "").unwrap();
        let real = std::fs::canonicalize(dir.path()).unwrap();
        assert_eq!(own_prefix(&bin.join("mpirun")), Some(real));
        assert_eq!(own_prefix(Path::new("/usr/bin/env")), None);
    }
}

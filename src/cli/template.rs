//! Jobs that a command starts by itself, with a launch command of the user such as `mpirun -np {ranks}`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::base::exit::Refusal;
use crate::base::params::TestParams;
use crate::config::sources::variables_of_own_runs;
use crate::model::hpl_dat;
use crate::supervise::start::launcher::Launcher;
use crate::supervise::start::room::has_option;

/// Returns the path with which this program can be started again.
pub fn own_program() -> Result<PathBuf, Refusal> {
    std::env::current_exe()
        .map_err(|e| Refusal::environment(format!("cannot find the path of this program: {e}")))
}

/// Makes a path absolute. A name without a folder is not changed, because programs search other folders for such a name.
pub fn from_any_folder(name: &str) -> String {
    match std::path::absolute(name) {
        Ok(whole) if name.contains('/') => whole.to_string_lossy().into_owned(),
        _ => name.to_owned(),
    }
}

/// Returns the words of the launch command `launcher`. The numbers of all ranks, of the ranks of a node, and of the threads of a
/// rank replace the placeholders.
pub fn words(launcher: &str, ranks: usize, per_node: usize, threads: usize) -> Vec<String> {
    let numbers = [("{ranks}", ranks), ("{per_node}", per_node), ("{threads}", threads)];
    let fill = |word: &str| {
        numbers
            .iter()
            .fold(word.to_owned(), |word, (place, number)| word.replace(place, &number.to_string()))
    };
    launcher.split_whitespace().map(fill).collect()
}

/// Adds `--allow-run-as-root` to a launch command if it starts Open MPI's launcher, which otherwise refuses root. Commands of
/// other launchers are not changed. Used for a script that root will start.
pub fn for_root(mut words: Vec<String>) -> Vec<String> {
    const FLAG: &str = "--allow-run-as-root";
    let name = words.first().and_then(|first| Path::new(first).file_name()?.to_str());
    let known =
        Launcher::Openmpi.programs().iter().chain(&["mpiexec", "mpiexec.openmpi", "prterun"]);
    if known.into_iter().any(|known| name == Some(*known)) && !words.iter().any(|word| word == FLAG)
    {
        words.insert(1, FLAG.into());
    }
    words
}

/// Returns true if the launch command `words` starts srun.
fn is_srun(words: &[String]) -> bool {
    // Another word may stand before srun, such as `env NAME=value`.
    let mut commands = words.iter().take_while(|word| !word.starts_with('-'));
    commands.any(|word| Path::new(word).file_name() == Some("srun".as_ref()))
}

/// Hint with which Slurm gives a whole core for each requested CPU. Without this hint, Slurm counts hardware threads as CPUs, and
/// a rank gets only half as many cores as it has threads.
const WHOLE_CORES: &str = "nomultithread";

/// Returns the hint to Slurm that the CPUs of [`cores_of_ranks`] are cores. None if the launch command starts srun with an option
/// about hardware threads: srun accepts no hint together with such an option.
pub fn hint(words: &[String]) -> Option<&'static str> {
    let own = ["hint", "threads-per-core", "ntasks-per-core", "B", "extra-node-info"];
    let says = is_srun(words) && own.iter().any(|name| has_option(words, name));
    (!says).then_some(WHOLE_CORES)
}

/// Returns the variables with which srun gives each rank a core for each of its threads. Without these variables, srun gives a
/// rank a single core within a job. The version of srun decides which of the first two variables it reads. For other launchers
/// the result is empty. Other launchers start a daemon on each node with srun. With these variables all ranks of the node would
/// get only the cores of one rank.
pub fn cores_of_ranks(words: &[String], threads: usize) -> Vec<(&'static str, String)> {
    if !is_srun(words) {
        return Vec::new();
    }
    let count =
        ["SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK"].map(|name| (name, threads.to_string()));
    let hint = hint(words).map(|hint| ("SLURM_HINT", hint.to_owned()));
    count.into_iter().chain(hint).collect()
}

/// Variable with the resources that a Slurm job requests for each task. The variable must not contradict [`cores_of_ranks`].
pub const WISH_OF_THE_JOB: &str = "SLURM_TRES_PER_TASK";

/// Returns the command that starts `program` with the launch command `words`, with `threads` threads a rank. The caller adds the
/// program's arguments. Returns an error if `words` is empty.
pub fn command(words: &[String], program: &Path, threads: usize) -> Result<Command, Refusal> {
    let Some((first, rest)) = words.split_first() else {
        return Err(Refusal::usage("--launch-command is empty"));
    };
    let mut command = Command::new(first);
    command.args(rest).arg(program).stdin(Stdio::null());
    // Open MPI refuses root without these variables, which other launchers ignore.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let cores = cores_of_ranks(words, threads);
    if !cores.is_empty() {
        command.envs(cores).env_remove(WISH_OF_THE_JOB);
    }
    Ok(command)
}

/// Empty file that every node has.
const NOTHING: &str = "/dev/null";

/// Adds flags to the command of a benchmark, which then runs `test` at each of the sizes `ns`. The benchmark reads no `HPL.dat`
/// and no `skt.toml` of the working directory. Variables for a single run are removed: they could change the sizes, or make the
/// benchmark overwrite earlier results. Variables for the machine, such as the engine, stay. The test is given in flags, because
/// the ranks may not see the working directory.
pub fn run_this(command: &mut Command, test: &TestParams, ns: &[usize]) {
    command.args(["--dat", NOTHING, "--config", NOTHING]).args(hpl_dat::flags(test, ns));
    for variable in variables_of_own_runs() {
        command.env_remove(variable);
    }
}

/// Returns the error that the launcher itself could not be started.
pub fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    let first = command.get_program().to_string_lossy();
    format!("cannot start `{first}`: {error}; name another with --launch-command")
}

/// Returns the last six lines of `said` that are not blank. `said` is the standard error output of a job.
pub fn last_lines(said: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Parser;

    use super::*;
    use crate::base::exit::Exit;
    use crate::base::params::{Bcast, Fact, Form, Mapping, Rng, Swap};
    use crate::config::flags::BenchFlags;

    #[test]
    fn a_test_of_ours_is_read_as_it_is_said() {
        #[derive(clap::Parser)]
        struct Probe {
            #[command(flatten)]
            bench: BenchFlags,
        }
        let test = TestParams {
            n: 100,
            nb: 8,
            p: 2,
            q: 3,
            mapping: Mapping::Column,
            depth: 2,
            bcast: Bcast::LongM,
            rfact: Fact::Left,
            ndiv: 3,
            pfact: Fact::Crout,
            nbmin: 5,
            swap: Swap::BinaryExchange,
            swap_threshold: 7,
            l1: Form::NotTransposed,
            u: Form::NotTransposed,
            equilibrate: false,
            align: 16,
            threshold: -1.0,
            rng: Rng::Xoshiro,
            seed: 9,
        };
        let mut command = Command::new("skt-hpl");
        run_this(&mut command, &test, &[100, 200, 100]);
        let words = std::iter::once(OsStr::new("skt-hpl")).chain(command.get_args());
        let flags = Probe::try_parse_from(words).unwrap().bench;
        let (rng, seed) = (flags.overrides.rng.unwrap(), flags.overrides.seed.unwrap());
        let loaded = flags.input().load().unwrap();
        let read: Vec<TestParams> = loaded.dat.tests(rng, seed).collect();
        let wanted = [100, 200, 100].map(|n| TestParams { n, ..test.clone() });
        assert_eq!(read, wanted);
    }

    #[test]
    fn launchers_get_their_numbers() {
        let words = words("srun -n {ranks} --ntasks-per-node={per_node} -c {threads}", 8, 2, 12);
        assert_eq!(words, ["srun", "-n", "8", "--ntasks-per-node=2", "-c", "12"]);
    }

    #[test]
    fn srun_alone_is_told_of_cores() {
        let told = |launcher: &str| {
            let made = command(&words(launcher, 2, 2, 3), Path::new("x"), 3).unwrap();
            let set = made.get_envs().filter(|(name, _)| {
                let name = name.to_string_lossy();
                name.starts_with("SLURM_") || name.starts_with("SRUN_")
            });
            let text = |(name, value): (&OsStr, Option<&OsStr>)| {
                format!("{}={}", name.display(), value.unwrap_or_default().display())
            };
            set.map(text).collect::<Vec<_>>().join(" ")
        };
        let own = "SLURM_CPUS_PER_TASK=3 SLURM_TRES_PER_TASK= SRUN_CPUS_PER_TASK=3";
        let all = "SLURM_CPUS_PER_TASK=3 SLURM_HINT=nomultithread SLURM_TRES_PER_TASK= SRUN_CPUS_PER_TASK=3";
        assert_eq!(told("srun -n {ranks}"), all);
        assert_eq!(told("/opt/slurm/bin/srun"), all);
        assert_eq!(told("env UCX_TLS=rc srun -n {ranks}"), all);
        assert_eq!(told("mpirun -np {ranks}"), "");
        // Slurm accepts no hint together with these options.
        for said in
            ["--hint=multithread", "--threads-per-core 1", "--ntasks-per-core=1", "-B 1:8:2"]
        {
            assert_eq!(told(&format!("srun {said} -n {{ranks}}")), own, "{said}");
        }
    }

    #[test]
    fn open_mpi_is_told_of_root() {
        let told = |launcher: &str| for_root(words(launcher, 2, 2, 1)).join(" ");
        assert_eq!(told("mpirun -np {ranks}"), "mpirun --allow-run-as-root -np 2");
        assert_eq!(
            told("/opt/o/bin/mpirun.openmpi -np 2"),
            "/opt/o/bin/mpirun.openmpi --allow-run-as-root -np 2"
        );
        for other in ["srun -n 2", "mpirun --allow-run-as-root -np 2", ""] {
            assert_eq!(told(other), other);
        }
    }

    #[test]
    fn a_launcher_that_is_none_is_refused() {
        let Err(Refusal { exit, why }) = command(&words(" ", 1, 1, 1), Path::new("x"), 1) else {
            panic!("nothing was refused");
        };
        assert_eq!((exit, why.as_str()), (Exit::Usage, "--launch-command is empty"));
        let mut none =
            command(&words("/no/such/launcher -n {ranks}", 1, 1, 1), Path::new("x"), 1).unwrap();
        let error = none.spawn().unwrap_err();
        let why = cannot_start(&none, &error);
        assert!(why.contains("/no/such/launcher") && why.contains("--launch-command"), "{why}");
    }

    #[test]
    fn of_what_was_said_the_last_lines_are_told() {
        assert_eq!(last_lines("1\n2\n\n3\n4\n5\n6\n7\n"), "2\n3\n4\n5\n6\n7");
        assert_eq!(last_lines("\n"), "");
    }
}

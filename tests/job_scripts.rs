//! Tests of the job scripts in `hpl-configs`: in the environment of its batch system, each script starts the command that its
//! header describes.
//!
//! No batch system is installed for these tests. They set its variables, and replace its commands by scripts that behave as the
//! manuals describe. `node_loss` also runs Slurm's script under a real Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "mpi/left_out.rs"]
mod left_out;

use left_out::left_out;

fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hpl-configs").join(name)
}

/// Returns the command that runs job script `name` in the environment of its batch system, for a job of four nodes with one rank
/// each.
fn job(name: &str, dir: &Path) -> Command {
    let mut command = Command::new("bash");
    for (variable, _) in std::env::vars_os() {
        let variable = variable.to_string_lossy();
        if ["SKT_", "SLURM_", "PBS_", "LSB_"].iter().any(|p| variable.starts_with(p)) {
            command.env_remove(&*variable);
        }
    }
    command.arg(shipped(name)).current_dir(dir);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::split_paths(&paths);
    command
        .env("PATH", std::env::join_paths([dir.to_path_buf()].into_iter().chain(paths)).unwrap());
    match name {
        "job.slurm" | "burnin.slurm" => {
            command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "n[1-4]");
            command.env("SLURM_TASKS_PER_NODE", "1(x4)");
        }
        "job.pbs" => {
            let nodes = dir.join("nodes");
            fs::write(&nodes, "n1\nn2\nn3\nn4\n").unwrap();
            command.env("PBS_NODEFILE", nodes).env("PBS_JOBID", "7.server");
            command.env("PBS_O_WORKDIR", dir);
        }
        "job.lsf" => {
            command.env("LSB_MCPU_HOSTS", "n1 1 n2 1 n3 1 n4 1").env("LSB_JOBID", "7");
            command.env("LS_SUBCWD", dir);
        }
        _ => {
            let text =
                "#!/bin/sh\n[ \"$*\" = 'hostlist --expand local' ] || exit 9\necho n1 n2 n3 n4\n";
            script(dir, "flux", text);
        }
    }
    command
}

const SCRIPTS: [&str; 4] = ["job.slurm", "job.pbs", "job.lsf", "job.flux"];

fn told(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn each_script_hands_its_arguments_on() {
    for name in SCRIPTS {
        let dir = tempfile::tempdir().unwrap();
        let stand_in = script(dir.path(), "program", "#!/bin/sh\nfor w; do echo \"<$w>\"; done\n");
        let mut job = job(name, dir.path());
        job.env("HPL_PROGRAM", &stand_in).env("SPARE_NODES", "2");
        match name {
            "job.pbs" | "job.lsf" => job.env("ARGUMENTS", "-n 1000 --checkpoint auto"),
            _ => job.args(["-n", "1000", "--checkpoint", "auto"]),
        };
        let out = told(&job.output().unwrap());
        assert!(out.starts_with("<run>\n"), "{name}: {out}");
        assert!(out.contains("<--spare-nodes>\n<2>\n"), "{name}: {out}");
        assert!(out.contains("<--launcher-args>\n<--bind-to none>\n"), "{name}: {out}");
        assert!(out.ends_with("<-n>\n<1000>\n<--checkpoint>\n<auto>\n"), "{name}: {out}");
        let out = told(&job.env("LAUNCHER_ARGS", "").output().unwrap());
        assert!(out.contains("<--launcher-args>\n<>\n"), "{name}: {out}");
        job.env_remove("LAUNCHER_ARGS");
        // If the user sets a binding or another launcher, the script adds no binding of its own.
        for more in
            ["--launcher-args --bind-to=core", "--launcher srun -n 1", "--launcher=srun -n 1"]
        {
            let mut job = self::job(name, dir.path());
            job.env("HPL_PROGRAM", &stand_in);
            match name {
                "job.pbs" | "job.lsf" => job.env("ARGUMENTS", more),
                _ => job.args(more.split(' ')),
            };
            let out = told(&job.output().unwrap());
            assert!(!out.contains("--bind-to none"), "{name}: {more}: {out}");
        }
    }
}

#[test]
fn the_burn_in_script_takes_an_hour_unless_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let stand_in = script(dir.path(), "program", "#!/bin/sh\necho \"$*\"\n");
    let printed = |words: &[&str]| {
        let mut job = job("burnin.slurm", dir.path());
        told(&job.env("HPL_PROGRAM", &stand_in).args(words).output().unwrap())
    };
    assert_eq!(printed(&[]), "burnin --json burnin-7.json --time 1h\n");
    assert_eq!(printed(&["--time=2h"]), "burnin --json burnin-7.json --time=2h\n");
    let words = ["--no-hpl", "--time", "2h"];
    assert_eq!(printed(&words), "burnin --json burnin-7.json --no-hpl --time 2h\n");
}

/// Returns the folder of ReFrame: `REFRAME_DIR`, or else the folder of `scripts/setup.sh --with-reframe`. None if ReFrame is not
/// installed there.
fn reframe() -> Option<PathBuf> {
    let folder = std::env::var_os("REFRAME_DIR").map(PathBuf::from);
    let home =
        || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share/skt-hpl/reframe"));
    folder.or_else(home).filter(|folder| folder.join("bin/reframe").exists())
}

#[test]
fn the_reframe_check_passes_and_reports_a_rate() {
    let Some(reframe) = reframe() else {
        return left_out("ReFrame is not installed (scripts/setup.sh --with-reframe)");
    };
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("site.py");
    let text = "site_configuration = {
        'systems': [{'name': 'here', 'hostnames': ['.*'], 'partitions': [
            {'name': 'all', 'scheduler': 'local', 'launcher': 'mpirun', 'environs': ['default']}]}],
        'environments': [{'name': 'default'}],
    }\n";
    fs::write(&site, text).unwrap();
    let mpirun = std::env::var("SKT_TEST_MPIRUN").unwrap_or_else(|_| "mpirun".into());
    script(dir.path(), "mpirun", &format!("#!/bin/sh\nexec {mpirun} \"$@\"\n"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths: Vec<PathBuf> =
        [dir.path().to_path_buf()].into_iter().chain(std::env::split_paths(&paths)).collect();
    let program = format!("program={}", env!("CARGO_BIN_EXE_skt-hpl"));
    let mut command = Command::new("python3");
    command.arg(reframe.join("bin/reframe")).arg("-C").arg(&site);
    command.arg("-c").arg(shipped("reframe.py")).arg("--prefix").arg(dir.path().join("out"));
    command.args(["--report-file", "report.json", "-r", "--performance-report"]);
    for setting in [&program, "n=500", "nb=64", "q=2"] {
        command.args(["-S", setting]);
    }
    command.env("PYTHONPATH", &reframe).env("PATH", std::env::join_paths(paths).unwrap());
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let out = command.current_dir(dir.path()).output().unwrap();
    let printed = told(&out);
    assert!(out.status.success(), "{printed}");
    assert!(printed.contains("Ran 1/1 test case(s) from 1 check(s) (0 failure(s)"), "{printed}");
    assert!(printed.contains("Gflop/s"), "{printed}");
}

/// The Flux script finds `flux-rsh` in the folder of an installation or of a clone. The current folder need not contain it:
/// `scripts/install.sh --prefix DIR` installs elsewhere.
#[test]
fn the_flux_script_finds_its_remote_shell_where_the_program_is() {
    let asked = |dir: &Path, program: &str, set: Option<&str>| {
        let mut job = job("job.flux", dir);
        if let Some(set) = set {
            job.env("FLUX_RSH", set);
        }
        let out = told(&job.env("HPL_PROGRAM", program).output().unwrap());
        let words: Vec<&str> = out.lines().collect();
        let at =
            words.iter().position(|word| *word == "<--rsh>").unwrap_or_else(|| panic!("{out}"));
        words[at + 1].trim_matches(['<', '>']).to_owned()
    };
    let echo = "#!/bin/sh\nfor w; do echo \"<$w>\"; done\n";
    let at = |dir: &Path, folder: &str, name: &str| {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder).unwrap();
        script(&folder, name, echo)
    };
    let real = |path: &str| fs::canonicalize(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (work, prefix) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let installed = at(prefix.path(), "bin", "skt-hpl");
    let shell = at(prefix.path(), "share/skt-hpl/hpl-configs", "flux-rsh");
    let shell = fs::canonicalize(shell).unwrap();
    assert_eq!(real(&asked(work.path(), installed.to_str().unwrap(), None)), shell);
    // The installed program, called by a link in PATH.
    std::os::unix::fs::symlink(&installed, work.path().join("hpl-here")).unwrap();
    assert_eq!(real(&asked(work.path(), "hpl-here", None)), shell);
    // A program that is built in a clone, and a job that is submitted in another folder.
    let built = at(prefix.path(), "clone/target/release", "skt-hpl");
    let of_clone = at(prefix.path(), "clone/hpl-configs", "flux-rsh");
    let of_clone = fs::canonicalize(of_clone).unwrap();
    assert_eq!(real(&asked(work.path(), built.to_str().unwrap(), None)), of_clone);
    // `./hpl-configs/flux-rsh` takes precedence over an installed one, and `FLUX_RSH` over both.
    at(work.path(), "hpl-configs", "flux-rsh");
    assert_eq!(asked(work.path(), "hpl-here", None), "./hpl-configs/flux-rsh");
    assert_eq!(asked(work.path(), "hpl-here", Some("own -x")), "own -x");
}

/// The program accepts every flag of each script and finds the nodes of the job. It stops only because there is no HPL.dat.
#[test]
fn the_program_understands_each_script() {
    for name in SCRIPTS {
        let dir = tempfile::tempdir().unwrap();
        let mut job = job(name, dir.path());
        job.env("HPL_PROGRAM", env!("CARGO_BIN_EXE_skt-hpl")).env("SPARE_NODES", "4");
        let out = job.output().unwrap();
        assert!(told(&out).contains("there are only 4 nodes"), "{name}: {}", told(&out));
        job.env("SPARE_NODES", "1");
        let out = job.output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{name}: {}", told(&out));
        assert!(told(&out).contains("HPL.dat"), "{name}: {}", told(&out));
    }
}

/// `flux-rsh` runs a command on a node and passes its input on. According to the manual, `flux exec` takes the number of a node,
/// and `flux overlay lookup` returns this number.
#[test]
fn flux_rsh_runs_a_command_on_a_node_and_hands_its_input_on() {
    let dir = tempfile::tempdir().unwrap();
    let flux = "#!/bin/sh\n\
        case $1 in\n\
        overlay) [ \"$2 $3\" = 'lookup n3' ] && echo 2 ;;\n\
        exec) shift; [ \"$1\" = --rank=2 ] || exit 68; shift; exec \"$@\" ;;\n\
        esac\n";
    script(dir.path(), "flux", flux);
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let input = dir.path().join("input");
    fs::write(&input, "a question\n").unwrap();
    let mut command = Command::new(shipped("flux-rsh"));
    command.env("PATH", path).stdin(fs::File::open(input).unwrap());
    let out = command.args(["n3", "printf '<%s>' 'a b'; cat"]).output().unwrap();
    assert_eq!(told(&out), "<a b>a question\n");
}

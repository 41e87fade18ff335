//! A run of an HPL program under the launcher: its input file, its command, its result.
//!
//! skt-hpl and the reference get the same input file and the same placement. Pure functions are separate from those that start
//! processes, so that they can be tested.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use skt_hpl::base::params::{Device, Engine};
use skt_hpl::kernels::preflight::kernel_for;
use skt_hpl::kernels::processor::Level;

use crate::cases::Case;
use crate::limit;

/// MPI to which the launcher belongs. The flags of the two launchers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    /// Returns the MPI, recognised by the version text of its library.
    pub fn of_library(text: &str) -> Self {
        if text.contains("Open MPI") { Mpi::Open } else { Mpi::Mpich }
    }

    /// Returns Debian's name of the launcher, which is installed in addition to the plain name.
    pub fn launcher(self) -> &'static str {
        match self {
            Mpi::Open => "mpirun.openmpi",
            Mpi::Mpich => "mpirun.mpich",
        }
    }
}

/// Returns the arguments of the launcher in front of the program. It starts as many ranks as the grid has. Each rank is bound to
/// cores of its own if there are enough; otherwise ranks are not bound.
pub fn launch_arguments(mpi: Mpi, case: &Case, cores: usize) -> Vec<String> {
    let ranks = case.ranks();
    let fits = ranks * case.threads <= cores;
    let mut arguments = vec!["-n".to_owned(), ranks.to_string()];
    let mut add = |more: &[&str]| arguments.extend(more.iter().map(|s| s.to_string()));
    match mpi {
        Mpi::Open if !fits => {
            add(&["--bind-to", "none", "--oversubscribe"]);
            // Otherwise waiting ranks would use the processor time that other ranks need.
            add(&["--mca", "mpi_yield_when_idle", "1"]);
        }
        Mpi::Open if ranks == 1 => add(&["--bind-to", "none"]),
        Mpi::Open if case.threads == 1 => add(&["--bind-to", "core"]),
        Mpi::Open => {
            add(&["--map-by", &format!("slot:PE={}", case.threads), "--bind-to", "core"]);
        }
        Mpi::Mpich if !fits || ranks == 1 => add(&["-bind-to", "none"]),
        Mpi::Mpich => add(&["-bind-to", &format!("core:{}", case.threads)]),
    }
    arguments
}

/// Returns the HPL.dat of a case, with usual settings for a good rate. All programs get the same file.
pub fn hpl_dat(case: &Case) -> String {
    let solves = case.solves_a_run();
    let ns = vec![case.n.to_string(); solves].join(" ");
    let Case { nb, p, q, .. } = case;
    format!(
        "HPLinpack benchmark input file
written by the benchmark of speed
HPL.out      output file name (if any)
6            device out (6=stdout,7=stderr,file)
{solves}            # of problems sizes (N)
{ns}         Ns
1            # of NBs
{nb}         NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
{p}          Ps
{q}          Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
"
    )
}

/// Returns the rates in the output of an HPL program, in Gflop/s.
///
/// # Errors
/// If the output does not contain exactly the expected number of solutions of this case, all of which passed the check.
pub fn rates(output: &str, case: &Case) -> Result<Vec<f64>, String> {
    let mut rates = Vec::new();
    let mut passed = 0;
    for line in output.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if line.starts_with('W') && words.len() == 7 {
            let numbers: Option<Vec<usize>> = words[1..5].iter().map(|w| w.parse().ok()).collect();
            let Some(numbers) = numbers else { continue };
            if numbers != [case.n, case.nb, case.p, case.q] {
                return Err(format!("solved another problem than it was asked to: {line}"));
            }
            let rate = words[6].parse().map_err(|_| format!("no rate in this line: {line}"))?;
            rates.push(rate);
        } else if line.starts_with("||Ax-b||_oo/") && line.trim_end().ends_with("PASSED") {
            passed += 1;
        }
    }
    let solves = case.solves_a_run();
    if rates.len() != solves || passed != solves {
        return Err(format!(
            "{solves} solutions asked for, {} rates found, {passed} checks PASSED",
            rates.len()
        ));
    }
    Ok(rates)
}

/// Variables that select the kernels of a BLAS: name of the library, name of the variable.
const KERNEL_VARIABLES: [(&str, &str); 2] =
    [("BLIS", "BLIS_ARCH_TYPE"), ("OpenBLAS", "OPENBLAS_CORETYPE")];
/// Variables that set the number of threads of a BLAS.
const THREAD_VARIABLES: [&str; 3] = ["BLIS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"];

/// Variable that names the kernels for the OpenBLAS of the plain reference, to measure the effect of wrong kernels.
pub const PLAIN_KERNEL: &str = "XHPL_PLAIN_KERNEL";

/// Program to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    SktHpl,
    /// The reference, with the kernels that suit the processor.
    Reference,
    /// The reference, with the kernels that its BLAS chooses by itself.
    Plain,
}

/// Returns the variables that affect speed and are set for `who`. All other variables for which [`is_hidden`] returns true are
/// removed.
///
/// `level` is the instruction set of the processor. `linked` is the kernel variable of the BLAS to which this benchmark and
/// skt-hpl are linked, and its value at the start. The value applies to both programs.
pub fn environment(
    who: Who,
    case: &Case,
    level: Level,
    linked: (&str, Option<&str>),
) -> BTreeMap<&'static str, String> {
    let mut set = BTreeMap::new();
    for (library, variable) in KERNEL_VARIABLES {
        let started_with = linked.1.filter(|_| variable == linked.0);
        let kernel = match who {
            Who::Plain => None,
            // skt-hpl selects the kernels itself if no variable does, so it gets no help.
            Who::SktHpl => started_with,
            // Libraries recognise processors up to AVX2 by themselves. BLIS 0.9 accepts any name as that of its AVX-512 kernels,
            // which would then crash the program.
            Who::Reference if level < Level::Avx512 => started_with,
            Who::Reference => started_with.or_else(|| kernel_for(library, level)),
        };
        if let Some(kernel) = kernel {
            set.insert(variable, kernel.to_owned());
        }
    }
    for variable in THREAD_VARIABLES {
        set.insert(variable, case.threads.to_string());
    }
    // Needed in containers and on small machines.
    set.insert("OMPI_ALLOW_RUN_AS_ROOT", "1".into());
    set.insert("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".into());
    set
}

/// Returns true if the measured programs must not see the variable. Such variables are settings of skt-hpl, the variable that
/// marks a trial of the preflight, and variables that tune a BLAS. Only HPL.dat may determine the run. A variable from a user's
/// profile must not count as the library's own choice.
fn is_hidden(name: &str) -> bool {
    ["SKT_", "BLIS_", "OPENBLAS_", "GOTO_", "OMP_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Launcher, machine and settings with which programs are started.
pub struct Launcher {
    pub program: PathBuf,
    pub mpi: Mpi,
    pub cores: usize,
    pub level: Level,
    /// Kernel variable of the BLAS in this program, and its value.
    pub linked: (&'static str, Option<String>),
    /// Engine of skt-hpl.
    pub engine: Engine,
    /// Device of skt-hpl; None to compute on processors.
    pub device: Option<Device>,
}

impl Launcher {
    pub fn command(&self, who: Who, program: &Path, case: &Case) -> Command {
        let mut command = Command::new(&self.program);
        command.args(launch_arguments(self.mpi, case, self.cores)).arg(program);
        if who == Who::SktHpl {
            command.args(["--dat", "HPL.dat", "--threads", &case.threads.to_string()]);
            let engine = self.engine.to_possible_value().map(|value| value.get_name().to_owned());
            command.arg("--engine").arg(engine.expect("every engine has a name"));
            if let Some(device) = self.device.and_then(|device| device.to_possible_value()) {
                command.arg("--device").arg(device.get_name());
            }
        }
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_hidden) {
                command.env_remove(name);
            }
        }
        let (variable, kernel) = &self.linked;
        command.envs(environment(who, case, self.level, (variable, kernel.as_deref())));
        if who == Who::Plain
            && let Some(kernel) = std::env::var_os(PLAIN_KERNEL)
        {
            command.env("OPENBLAS_CORETYPE", kernel);
        }
        command
    }

    /// Runs a case once, and returns the rates of its solutions in Gflop/s.
    ///
    /// # Errors
    /// If the program cannot be started or fails, or if its output is not as expected.
    pub fn run(&self, who: Who, program: &Path, case: &Case) -> Result<Vec<f64>, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        std::fs::write(folder.path().join("HPL.dat"), hpl_dat(case))
            .map_err(|e| format!("cannot write {}: {e}", folder.path().display()))?;
        let mut command = self.command(who, program, case);
        let output = limit::output(command.current_dir(folder.path()), None)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let told = || {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("{command:?}\n{}\n{}", tail(&text), tail(&errors))
        };
        if !output.status.success() {
            return Err(format!("ended with {}: {}", output.status, told()));
        }
        rates(&text, case).map_err(|why| format!("{why}: {}", told()))
    }
}

/// Returns the last 12 lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Returns the full path of a program, so that it can be started in another folder.
pub fn found(path: &Path) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use skt_hpl::config;

    use super::*;

    const CASE: Case = Case { n: 12000, nb: 192, p: 1, q: 2, threads: 1 };

    const OUTPUT: &str = "\
T/V                N    NB     P     Q               Time                 Gflops
--------------------------------------------------------------------------------
WR11C2R4       12000   192     1     2               5.58             2.0656e+02
HPL_pdgesv() start time Fri Nov 20 08:00:00 2026

--------------------------------------------------------------------------------
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   2.46211040e-03 ...... PASSED
";

    #[test]
    fn rates_are_read_only_where_all_was_solved_and_checked() {
        assert_eq!(rates(OUTPUT, &CASE), Ok(vec![206.56]));
        let failed = OUTPUT.replace("PASSED", "FAILED");
        assert!(rates(&failed, &CASE).unwrap_err().contains("0 checks PASSED"));
        let other = rates(OUTPUT, &Case { q: 1, ..CASE });
        assert!(other.unwrap_err().contains("another problem"));
        assert!(rates("", &CASE).unwrap_err().contains("0 rates"));
        let small = Case { n: 1000, ..CASE };
        let text = OUTPUT.replace("12000", " 1000");
        assert!(rates(&text, &small).is_err(), "one of several");
        let all = rates(&text.repeat(small.solves_a_run()), &small).unwrap();
        assert_eq!(all, vec![206.56; small.solves_a_run()]);
        // Other lines that begin with W are not results.
        assert!(rates("Wait for all 1 2 3 4", &CASE).is_err());
    }

    #[test]
    fn the_input_file_asks_for_the_case() {
        for case in [CASE, Case { n: 1000, p: 2, q: 3, ..CASE }] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("HPL.dat");
            std::fs::write(&path, hpl_dat(&case)).unwrap();
            let flags = config::settings::Overrides { dat: Some(path), ..Default::default() };
            let input = config::Input { env: vec![], ..config::Input::here(None, flags) };
            let loaded = input.load().expect("a sound file");
            let tests: Vec<_> = loaded.tests().collect();
            assert_eq!(tests.len(), case.solves_a_run());
            for test in tests {
                assert_eq!((test.n, test.nb, test.p, test.q), (case.n, case.nb, case.p, case.q));
            }
        }
    }

    #[test]
    fn placing() {
        let line = |mpi, p, q, threads, cores| {
            launch_arguments(mpi, &Case { p, q, threads, ..CASE }, cores).join(" ")
        };
        assert_eq!(line(Mpi::Open, 1, 1, 2, 2), "-n 1 --bind-to none");
        assert_eq!(line(Mpi::Open, 1, 2, 1, 2), "-n 2 --bind-to core");
        assert_eq!(line(Mpi::Open, 1, 2, 4, 8), "-n 2 --map-by slot:PE=4 --bind-to core");
        assert_eq!(
            line(Mpi::Open, 2, 3, 1, 2),
            "-n 6 --bind-to none --oversubscribe --mca mpi_yield_when_idle 1"
        );
        assert_eq!(line(Mpi::Mpich, 1, 1, 2, 2), "-n 1 -bind-to none");
        assert_eq!(line(Mpi::Mpich, 1, 2, 1, 2), "-n 2 -bind-to core:1");
        assert_eq!(line(Mpi::Mpich, 2, 2, 1, 2), "-n 4 -bind-to none");
        assert_eq!(Mpi::of_library("Open MPI v4.1.4, package: Debian"), Mpi::Open);
        assert_eq!(Mpi::of_library("MPICH Version: 4.0.2"), Mpi::Mpich);
    }

    #[test]
    fn the_reference_gets_the_kernels_and_nobody_else() {
        let case = Case { threads: 2, ..CASE };
        let of = |who| environment(who, &case, Level::Avx512, ("BLIS_ARCH_TYPE", None));
        let reference = of(Who::Reference);
        assert_eq!(reference["BLIS_ARCH_TYPE"], "skx");
        assert_eq!(reference["OPENBLAS_CORETYPE"], "SKYLAKEX");
        for who in [Who::SktHpl, Who::Plain] {
            assert!(KERNEL_VARIABLES.iter().all(|(_, name)| !of(who).contains_key(name)));
        }
        for who in [Who::SktHpl, Who::Plain, Who::Reference] {
            assert!(THREAD_VARIABLES.iter().all(|name| of(who)[name] == "2"));
        }
        for level in [Level::Baseline, Level::Avx2] {
            let old = environment(Who::Reference, &case, level, ("BLIS_ARCH_TYPE", None));
            assert!(KERNEL_VARIABLES.iter().all(|(_, name)| !old.contains_key(name)));
        }
    }

    #[test]
    fn kernels_the_linked_library_was_started_with_count_for_both() {
        let linked = ("BLIS_ARCH_TYPE", Some("zen3"));
        let of = |who| environment(who, &CASE, Level::Avx512, linked);
        for who in [Who::SktHpl, Who::Reference] {
            assert_eq!(of(who)["BLIS_ARCH_TYPE"], "zen3");
        }
        assert_eq!(of(Who::Reference)["OPENBLAS_CORETYPE"], "SKYLAKEX");
        assert!(!of(Who::Plain).contains_key("BLIS_ARCH_TYPE"));
    }

    #[test]
    fn only_what_tunes_is_hidden() {
        for name in ["SKT_NB", "SKT_INTERNAL_PREFLIGHT", "OPENBLAS_L2_SIZE", "OMP_PROC_BIND"] {
            assert!(is_hidden(name), "{name}");
        }
        assert!(!is_hidden("PATH") && !is_hidden("OMPI_MCA_btl") && !is_hidden("LD_LIBRARY_PATH"));
    }

    #[test]
    fn the_tail_is_the_end() {
        let text: Vec<_> = (0..40).map(|i| i.to_string()).collect();
        assert!(tail(&text.join("\n")).starts_with("28\n"));
        assert_eq!(tail("one"), "one");
    }
}

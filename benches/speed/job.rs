//! One run of an HPL program under the launcher: its input file, its command, its result.
//!
//! Both programs get the same file and the same placing. What is pure is apart from what starts
//! processes, so that it can be tested without any.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use skt_hpl::blas::preflight::{Level, kernel_for};

use crate::cases::Case;

/// Which MPI the launcher belongs to: their flags differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    /// From what the library says of itself.
    pub fn of_library(text: &str) -> Self {
        if text.contains("Open MPI") { Mpi::Open } else { Mpi::Mpich }
    }

    /// Debian's name of the launcher, which is there beside the plain one.
    pub fn launcher(self) -> &'static str {
        match self {
            Mpi::Open => "mpirun.openmpi",
            Mpi::Mpich => "mpirun.mpich",
        }
    }
}

/// The launcher's arguments before the program: as many ranks as the grid has, each on cores of
/// its own where there are enough, on any otherwise.
pub fn launch_arguments(mpi: Mpi, case: &Case, cores: usize) -> Vec<String> {
    let ranks = case.ranks();
    let fits = ranks * case.threads <= cores;
    let mut arguments = vec!["-n".to_owned(), ranks.to_string()];
    let mut add = |more: &[&str]| arguments.extend(more.iter().map(|s| s.to_string()));
    match mpi {
        Mpi::Open if !fits => {
            add(&["--bind-to", "none", "--oversubscribe"]);
            // Waiting ranks would otherwise burn the time that the others need.
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

/// The input file: usual choices for a good rate, the same for all programs.
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

/// The rates in an HPL program's output.
///
/// # Errors
/// Where not exactly `solves` solutions of the case were found and checked.
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

/// What decides about the speed of a BLAS, in the environment of a program.
const KERNEL_VARIABLES: [(&str, &str); 2] =
    [("BLIS", "BLIS_ARCH_TYPE"), ("OpenBLAS", "OPENBLAS_CORETYPE")];
const THREAD_VARIABLES: [&str; 3] = ["BLIS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"];

/// Who is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    SktHpl,
    /// The reference with the right kernels.
    Reference,
    /// The reference with those its BLAS picks by itself.
    Plain,
}

/// Changes to the environment for `who`: set to a value, or removed. `level` is what the processor
/// can do; `given` is the environment, whose choice of a kernel counts if it makes one.
pub fn environment(
    who: Who,
    case: &Case,
    level: Level,
    given: impl Fn(&str) -> Option<String>,
) -> BTreeMap<&'static str, Option<String>> {
    let mut changes = BTreeMap::new();
    for (library, variable) in KERNEL_VARIABLES {
        let best = || kernel_for(library, level).map(str::to_owned);
        let value = match who {
            Who::Plain => None,
            // It looks for the kernels itself: no help.
            Who::SktHpl => given(variable),
            Who::Reference => given(variable).or_else(best),
        };
        changes.insert(variable, value);
    }
    for variable in THREAD_VARIABLES {
        changes.insert(variable, Some(case.threads.to_string()));
    }
    // Containers and small machines.
    changes.insert("OMPI_ALLOW_RUN_AS_ROOT", Some("1".into()));
    changes.insert("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", Some("1".into()));
    changes
}

/// Where and how programs are started.
pub struct Launcher {
    pub program: PathBuf,
    pub mpi: Mpi,
    pub cores: usize,
    pub level: Level,
}

impl Launcher {
    pub fn command(&self, who: Who, program: &Path, case: &Case) -> Command {
        let mut command = Command::new(&self.program);
        command.args(launch_arguments(self.mpi, case, self.cores)).arg(program);
        if who == Who::SktHpl {
            command.args(["--dat", "HPL.dat", "--threads", &case.threads.to_string()]);
        }
        for (name, value) in environment(who, case, self.level, |name| std::env::var(name).ok()) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // Only HPL.dat decides: neither our own preflight's mark nor anybody's settings.
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
            command.env_remove(name);
        }
        command
    }

    /// Runs the case once and returns the rates of its solutions.
    ///
    /// # Errors
    /// Where the program cannot be started, fails, or does not print what it should.
    pub fn run(&self, who: Who, program: &Path, case: &Case) -> Result<Vec<f64>, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        std::fs::write(folder.path().join("HPL.dat"), hpl_dat(case))
            .map_err(|e| format!("cannot write {}: {e}", folder.path().display()))?;
        let mut command = self.command(who, program, case);
        let output = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("cannot start {}: {e}", self.program.display()))?;
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

fn is_setting(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("SKT_"))
}

/// The last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

#[cfg(test)]
mod tests {
    use skt_hpl::input;

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
        // Words that begin with W are no results.
        assert!(rates("Wait for all 1 2 3 4", &CASE).is_err());
    }

    #[test]
    fn the_input_file_asks_for_the_case() {
        for case in [CASE, Case { n: 1000, p: 2, q: 3, ..CASE }] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("HPL.dat");
            std::fs::write(&path, hpl_dat(&case)).unwrap();
            let overrides = input::settings::Overrides { dat: Some(path), ..Default::default() };
            let loaded = input::load(&overrides, None, vec![]).expect("a sound file");
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
        let nothing = |_: &str| None;
        let of = |who| environment(who, &case, Level::Avx512, nothing);
        let reference = of(Who::Reference);
        assert_eq!(reference["BLIS_ARCH_TYPE"].as_deref(), Some("skx"));
        assert_eq!(reference["OPENBLAS_CORETYPE"].as_deref(), Some("SKYLAKEX"));
        for who in [Who::SktHpl, Who::Plain] {
            assert_eq!(of(who)["BLIS_ARCH_TYPE"], None);
            assert_eq!(of(who)["OPENBLAS_CORETYPE"], None);
        }
        for who in [Who::SktHpl, Who::Plain, Who::Reference] {
            for variable in THREAD_VARIABLES {
                assert_eq!(of(who)[variable].as_deref(), Some("2"));
            }
        }
        // Somebody's choice of a kernel counts; a processor without any needs none.
        let chosen = |name: &str| (name == "BLIS_ARCH_TYPE").then(|| "zen3".to_owned());
        for who in [Who::SktHpl, Who::Reference] {
            let changes = environment(who, &case, Level::Avx512, chosen);
            assert_eq!(changes["BLIS_ARCH_TYPE"].as_deref(), Some("zen3"));
        }
        assert_eq!(environment(Who::Plain, &case, Level::Avx512, chosen)["BLIS_ARCH_TYPE"], None);
        let old = environment(Who::Reference, &case, Level::Baseline, nothing);
        assert_eq!(old["OPENBLAS_CORETYPE"], None);
    }

    #[test]
    fn only_our_own_variables_are_hidden() {
        assert!(is_setting(&"SKT_NB".into()) && is_setting(&"SKT_INTERNAL_PREFLIGHT".into()));
        assert!(!is_setting(&"PATH".into()) && !is_setting(&"OMPI_MCA_btl".into()));
    }

    #[test]
    fn the_tail_is_the_end() {
        let text: Vec<_> = (0..40).map(|i| i.to_string()).collect();
        assert!(tail(&text.join("\n")).starts_with("28\n"));
        assert_eq!(tail("one"), "one");
    }
}

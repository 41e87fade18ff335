//! Problems to be measured: the command line, and the list of cases that it describes.

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;
use skt_hpl::base::params::{Device, Engine};

use crate::usual::Usual;

/// Measures skt-hpl against what this machine can do, and against the reference
///
/// For each case, one after the other and as often as --repeat says: the peak of fused
/// multiply-adds, the linked BLAS's DGEMM, the program's own multiplication, skt-hpl, and the
/// references named by the environment. Prints medians and ratios as a Markdown table. The MPI
/// launcher and skt-hpl's binary are those that belong to this build, unless told otherwise.
#[derive(Clone, Debug, Parser)]
#[command(name = "speed", max_term_width = 100, after_help = ENVIRONMENT)]
pub struct Flags {
    /// Sizes of the problem
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "8000",
          value_parser = positive)]
    pub n: Vec<usize>,

    /// Block sizes; DGEMM multiplies with k = NB
    #[arg(long, value_name = "NB", value_delimiter = ',', default_value = "192",
          value_parser = positive)]
    pub nb: Vec<usize>,

    /// Process rows; the first P belongs to the first Q
    #[arg(short, value_name = "P", value_delimiter = ',', default_value = "1",
          value_parser = positive)]
    pub p: Vec<usize>,

    /// Process columns
    #[arg(short, value_name = "Q", value_delimiter = ',', default_value = "1",
          value_parser = positive)]
    pub q: Vec<usize>,

    /// Threads of a rank; 0 divides the cores among the ranks
    #[arg(short, long, value_name = "T", value_delimiter = ',', default_value = "0")]
    pub threads: Vec<usize>,

    /// The cases of benches/NOTEBOOK.md instead of -n, -p, -q and --threads
    #[arg(long, conflicts_with_all = ["n", "p", "q", "threads"])]
    pub standard: bool,

    /// Look for the best of every library and program over all cases, and compare these
    #[arg(long, conflicts_with = "standard")]
    pub race: bool,

    /// Factor single panels of N rows and NB columns on one rank, and multiplications of their shape
    #[arg(long, conflicts_with_all = ["standard", "race", "p", "q"])]
    pub panel: bool,

    /// Multiply with parts of the work left out: operands in the first cache, C in the cache, huge pages
    #[arg(long, conflicts_with_all = ["standard", "race", "panel", "n", "p", "q", "threads"])]
    pub tile: bool,

    /// Measure a device: copies, DGEMM, panels of N rows, and whole runs
    #[arg(long, value_name = "NAME", ignore_case = true,
          conflicts_with_all = ["standard", "race", "panel", "tile", "p", "q"])]
    pub device: Option<Device>,

    /// Engine of skt-hpl, as its flag of this name says
    #[arg(long, value_name = "NAME", default_value = "auto", ignore_case = true)]
    pub engine: Engine,

    /// How often each is measured
    #[arg(long, value_name = "TIMES", default_value = "3", value_parser = positive)]
    pub repeat: usize,

    #[command(flatten)]
    pub usual: Usual,

    /// The launcher, if not the one of the MPI library this is linked with
    #[arg(long, value_name = "PROGRAM", env = "MPIRUN")]
    pub mpirun: Option<PathBuf>,

    /// Only say what would be run
    #[arg(long)]
    pub dry_run: bool,
}

const ENVIRONMENT: &str = "Environment:
  XHPL        a reference binary: run with the same HPL.dat, the same kernels of its BLAS, the same
              threads, linked with the same MPI library
  XHPL_PLAIN  another: run with the kernels its BLAS picks by itself, all else the same
  XHPL_PLAIN_KERNEL  ... or, if that is OpenBLAS, with these (Haswell, say)
With --race:
  XHPL_name   a reference binary each, by whatever name
  PEER_BLAS   libraries whose DGEMM is measured with the linked one: name:path,name:path";

fn positive(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(error) => Err(format!("{error}")),
    }
}

/// One problem on one grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    pub n: usize,
    pub nb: usize,
    pub p: usize,
    pub q: usize,
    /// Number of threads of each rank.
    pub threads: usize,
}

impl Case {
    pub fn ranks(&self) -> usize {
        self.p * self.q
    }

    /// Returns the number of busy cores, at most `cores`.
    pub fn cores_used(&self, cores: usize) -> usize {
        (self.ranks() * self.threads).min(cores)
    }

    /// Returns how often the problem is repeated in one HPL.dat. A single run of a few milliseconds is too short to measure.
    pub fn solves_a_run(&self) -> usize {
        match self.n {
            0..3000 => 7,
            3000..5000 => 3,
            _ => 1,
        }
    }
}

impl Flags {
    /// Returns all cases to be measured. Grids are the outermost loop, so that the table is easy to read.
    ///
    /// # Errors
    /// If the lists of P and Q differ in length.
    pub fn cases(&self, cores: usize) -> Result<Vec<Case>, String> {
        if self.standard {
            return Ok(self.nb.iter().flat_map(|&nb| standard(nb, cores)).collect());
        }
        if self.p.len() != self.q.len() {
            return Err(format!(
                "{} values of P and {} of Q: they belong together in pairs, as in HPL.dat",
                self.p.len(),
                self.q.len()
            ));
        }
        let mut cases = Vec::new();
        for (&p, &q) in self.p.iter().zip(&self.q) {
            for &threads in &self.threads {
                let threads = if threads == 0 { (cores / (p * q)).max(1) } else { threads };
                for &n in &self.n {
                    cases.extend(self.nb.iter().map(|&nb| Case { n, nb, p, q, threads }));
                }
            }
        }
        Ok(cases)
    }
}

/// Returns the cases of `--standard`: the whole machine in one rank; one rank per core on flat and tall grids; more ranks than
/// cores; problems too small to be fast.
fn standard(nb: usize, cores: usize) -> Vec<Case> {
    let flat = |n| Case { n, nb, p: 1, q: cores, threads: 1 };
    let whole = |n| Case { n, nb, p: 1, q: 1, threads: cores };
    let small = |q| Case { n: 6000, nb, p: cores, q, threads: 1 };
    let mut cases = vec![
        whole(16000),
        flat(12000),
        Case { n: 12000, nb, p: cores, q: 1, threads: 1 },
        small(2),
        small(3),
        whole(1000),
        whole(2000),
        flat(1000),
        flat(2000),
    ];
    let mut seen = Vec::new();
    cases.retain(|case| {
        let new = !seen.contains(case);
        seen.push(*case);
        new
    });
    cases
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn flags(line: &str) -> Flags {
        Flags::try_parse_from(line.split_whitespace()).unwrap()
    }

    fn short(case: &Case) -> String {
        format!("{} {} {}x{} t{}", case.n, case.nb, case.p, case.q, case.threads)
    }

    #[test]
    fn the_definition_is_sound() {
        Flags::command().debug_assert();
    }

    #[test]
    fn lists_unfold_and_grids_are_pairs() {
        let cases = flags("speed -n 100,200 --nb 8,16 -p 1,2 -q 4,3 --threads 1 --bench");
        let cases: Vec<_> = cases.cases(2).unwrap().iter().map(short).collect();
        assert_eq!(
            cases,
            [
                "100 8 1x4 t1",
                "100 16 1x4 t1",
                "200 8 1x4 t1",
                "200 16 1x4 t1",
                "100 8 2x3 t1",
                "100 16 2x3 t1",
                "200 8 2x3 t1",
                "200 16 2x3 t1",
            ]
        );
        assert!(flags("speed -p 1,2 -q 1").cases(2).unwrap_err().contains("pairs"));
    }

    #[test]
    fn no_threads_means_all_cores() {
        let of = |line, cores: usize| flags(line).cases(cores).unwrap()[0].threads;
        assert_eq!(of("speed", 8), 8);
        assert_eq!(of("speed -p 1 -q 2", 8), 4);
        assert_eq!(of("speed -p 2 -q 3", 2), 1);
        assert_eq!(of("speed -p 2 -q 3 --threads 5", 2), 5);
    }

    #[test]
    fn zero_is_no_size() {
        for line in ["speed -n 0", "speed --nb 0", "speed --repeat 0", "speed -p 0", "speed -n x"] {
            assert!(Flags::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }

    #[test]
    fn the_standard_cases_on_two_cores() {
        let flags = flags("speed --standard --nb 224");
        let cases: Vec<_> = flags.cases(2).unwrap().iter().map(short).collect();
        assert_eq!(
            cases,
            [
                "16000 224 1x1 t2",
                "12000 224 1x2 t1",
                "12000 224 2x1 t1",
                "6000 224 2x2 t1",
                "6000 224 2x3 t1",
                "1000 224 1x1 t2",
                "2000 224 1x1 t2",
                "1000 224 1x2 t1",
                "2000 224 1x2 t1",
            ]
        );
        let one = flags.cases(1).unwrap();
        assert_eq!(one.iter().filter(|case| case.n == 1000).count(), 1, "no case twice");
        assert!(Flags::try_parse_from(["speed", "--standard", "-n", "5"]).is_err());
    }

    #[test]
    fn cores_used_and_solves() {
        let case = Case { n: 1000, nb: 8, p: 2, q: 3, threads: 1 };
        assert_eq!((case.ranks(), case.cores_used(2), case.cores_used(64)), (6, 2, 6));
        assert!(case.solves_a_run() > Case { n: 8000, ..case }.solves_a_run());
    }
}

//! Every setting of the benchmark, defined once.
//!
//! The fields of [`Overrides`] are the flags of the command line, the keys of `skt.toml` (`swap-threshold`) and the environment
//! variables (`SKT_SWAP_THRESHOLD`). Each field has one parser and one help text. `flags` adds the fields to the program's flags;
//! `sources` fills the fields from the file and the environment. A new field is therefore a flag, a key and a variable at once.
//!
//! A field that belongs to a line of HPL.dat replaces that line's values ([`Overrides::apply`]). All other fields become
//! [`Settings`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{BoolishValueParser, TypedValueParser};
use serde::{Deserialize, Serialize};

use super::diagnostic::Diagnostic;
use super::hpl_dat::{HplDat, Output};
use super::job_name::{LENGTH_MAX, job_name};
use super::processors::List;
use crate::base::output_target;
use crate::base::params::{
    Bcast, Device, Engine, Fact, Form, Mapping, MemoryCheck, Pinning, Rng, SIZE_MOST, SplitUpdate,
    Swap,
};
use crate::base::threads::THREADS_MAX;
use crate::base::units::seconds;
use crate::checkpoint::groups::GROUP_DEFAULT;
use crate::checkpoint::layout::ParityLayout;
use crate::checkpoint::level2::EVERY_DEFAULT_S;
use crate::checkpoint::plan::{Encoding, Helpers, Scheme, Scope};
use crate::checkpoint::protocol::Method;
use crate::checkpoint::storage::DirScope;
use crate::checkpoint::when::Interval;
use crate::lu::SUMS_MAX;
use crate::lu::need::Means;
use crate::parity::Code;
use crate::shm::Store;

/// Seed of the matrix in the reference HPL.
pub const SEED_DEFAULT: u64 = Rng::HPL_SEED;

/// Default name of the file of tests.
pub const DAT_DEFAULT: &str = "HPL.dat";

/// Default name of the file of settings, which is read if it exists.
pub const CONFIG_DEFAULT: &str = "skt.toml";

const INPUT: &str = "Input and output";
const PROBLEM: &str =
    "Problem (flags that replace lines of HPL.dat; lists have commas between values)";
const ALGORITHM: &str =
    "Algorithm (flags that replace lines of HPL.dat; lists have commas between values)";
const RUN: &str = "How to run";
const PROTECT: &str = "Surviving the loss of nodes";

/// Parses a size of at least `LEAST`.
fn size<const LEAST: usize>(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(size) if size >= LEAST => Ok(size),
        _ => Err(format!("a whole number >= {LEAST} is needed")),
    }
}

/// Parses a count from 1 to `MOST`.
fn count<const MOST: usize>(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(format!("a whole number from 1 to {MOST} is needed")),
    }
}

fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("a file name cannot be empty".to_owned());
    }
    Ok(PathBuf::from(text))
}

/// Parses the name of an output file. Refuses a name of stdout, such as `-`, because another text goes to stdout.
pub fn other_than_stdout(text: &str) -> Result<PathBuf, String> {
    let file = path(text)?;
    // The file would overwrite the destination of stdout.
    if text == "-" || output_target::is_open_as(&file, std::io::stdout()) == Some(true) {
        let why =
            "the text goes to stdout, so name another file here (./- is a file with the name -)";
        return Err(why.to_owned());
    }
    Ok(file)
}

fn output(text: &str) -> Result<Output, String> {
    match text {
        "-" | "stdout" => Ok(Output::Stdout),
        "stderr" => Ok(Output::Stderr),
        _ => path(text).map(Output::File),
    }
}

/// Interval between two saves, or no saves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Saving {
    Off,
    Every(Interval),
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Saving::Off => f.write_str("off"),
            Saving::Every(interval) => interval.fmt(f),
        }
    }
}

fn saving(text: &str) -> Result<Saving, String> {
    match text {
        "off" | "no" | "false" => Ok(Saving::Off),
        _ => text.parse().map(Saving::Every).map_err(|_| {
            "a number of iterations, a time such as 30s or 5m, auto, or off is needed".to_owned()
        }),
    }
}

/// Parses the interval between two checkpoints on storage: a number of saves, or a time.
pub(super) fn level2_every(text: &str) -> Result<Interval, String> {
    match text.parse() {
        Ok(every @ (Interval::Iterations(_) | Interval::Seconds(_))) => Ok(every),
        _ => Err("a number of saves, or a time such as 30m or 2h, is needed".to_owned()),
    }
}

/// Parses a name that can be part of a file name.
fn job(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if text.is_empty() || text.len() > LENGTH_MAX || !text.chars().all(fits) {
        return Err("a name of at most 64 letters, digits, `-` and `_` is needed".to_owned());
    }
    Ok(text.to_owned())
}

/// Defines a parser that accepts only certain words, and returns the value that belongs to the word.
macro_rules! words {
    ($vis:vis $name:ident: $type:ty { $($word:literal => $value:expr),+ $(,)? }) => {
        $vis fn $name() -> impl clap::builder::TypedValueParser<Value = $type> {
            clap::builder::PossibleValuesParser::new([$($word),+]).map(|word: String| {
                match word.as_str() {
                    $($word => $value,)+
                    _ => unreachable!("clap accepts only the words above"),
                }
            })
        }
    };
}

/// Protection of a run against the loss of ranks: checkpoints or checksum columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarding {
    /// Checkpoints, made by the given method.
    Saves(Method),
    /// Additional process columns that hold checksums of the process columns of the grid (`--method abft`).
    Checksums,
}

words!(method: Guarding {
    "self" => Guarding::Saves(Method::SelfCheckpoint), "double" => Guarding::Saves(Method::Double),
    "single" => Guarding::Saves(Method::Single), "disk" => Guarding::Saves(Method::Disk),
    "abft" => Guarding::Checksums,
});
words!(scope: Scope {
    "corner" => Scope::Corner, "side" => Scope::Side, "whole" => Scope::Whole,
});
words!(parity_code: Code {
    "xor" => Code::Xor, "sum" => Code::Sum, "reed-solomon" => Code::ReedSolomon,
    "weighted" => Code::Weighted,
});
words!(pub parity_layout: ParityLayout {
    "striped" => ParityLayout::Striped, "grid" => ParityLayout::Grid,
    "localised" => ParityLayout::Localised, "dedicated" => ParityLayout::Dedicated,
});
words!(level2_scope: DirScope { "shared" => DirScope::Shared, "node" => DirScope::Node });
words!(encode: Encoding {
    "reduce" => Encoding::Reduce, "pipelined" => Encoding::Pipelined, "helper" => Encoding::Helper,
});
words!(helpers: Helpers {
    "threads" => Helpers::Threads, "off" => Helpers::Off,
});
words!(store: Store {
    "posix" => Store::Posix, "sysv" => Store::SysV, "hugetlbfs" => Store::HugeTlbfs,
});
words!(restart: Restart {
    "auto" => Restart::Auto, "never" => Restart::Never, "require" => Restart::Require,
});

/// Treatment of the persistent shared memory that an earlier start of the same run left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// Resumes from the memory of an earlier start if it exists.
    #[default]
    Auto,
    /// Removes the memory of an earlier start, and begins from scratch.
    Never,
    /// Resumes from the memory of an earlier start, or fails if there is none.
    Require,
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", u64::MAX))
}

fn finite(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("a finite number such as 16.0 is needed".to_owned()),
    }
}

/// Settings of one source: command line, environment or file. If the source does not give a setting, the setting is `None`.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
pub struct Overrides {
    /// Read the tests from FILE [default: HPL.dat]
    #[arg(long, value_name = "FILE", value_parser = path, help_heading = INPUT)]
    pub dat: Option<PathBuf>,

    /// Write the results to FILE, or to a stream: `stdout` (also `-`) or `stderr` (lines 3 and 4)
    #[arg(long, value_name = "FILE", value_parser = output, help_heading = INPUT)]
    pub output: Option<Output>,

    /// Write all measurements of each test to FILE as JSON, in addition to the text
    #[arg(long, value_name = "FILE", value_parser = other_than_stdout, help_heading = INPUT)]
    pub json: Option<PathBuf>,

    /// Print the progress of the factorisation in lines.
    ///
    /// By default a terminal shows the progress in one line that changes. `--progress=false` prints none.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = INPUT)]
    pub progress: Option<bool>,

    /// After each test, print the times of its parts (panels, broadcast, update ...) [default: no]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = INPUT)]
    pub timing: Option<bool>,

    /// Problem sizes (lines 5 and 6)
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', value_parser = size::<0>, help_heading = PROBLEM)]
    pub n: Option<Vec<usize>>,

    /// Block sizes (lines 7 and 8)
    #[arg(long, value_name = "NB,..", value_delimiter = ',', value_parser = count::<SIZE_MOST>, help_heading = PROBLEM)]
    pub nb: Option<Vec<usize>>,

    /// Process rows of each grid, in pairs with -q (lines 10 and 11)
    #[arg(short, long, value_name = "P,..", value_delimiter = ',', value_parser = size::<1>, help_heading = PROBLEM)]
    pub p: Option<Vec<usize>>,

    /// Process columns of each grid, in pairs with -p (lines 10 and 12)
    #[arg(short, long, value_name = "Q,..", value_delimiter = ',', value_parser = size::<1>, help_heading = PROBLEM)]
    pub q: Option<Vec<usize>>,

    /// Order of the ranks in the grid (line 9)
    #[arg(long, value_name = "ORDER", ignore_case = true, help_heading = PROBLEM)]
    pub pmap: Option<Mapping>,

    /// Largest scaled residual that passes; zero or less skips the check (line 13)
    #[arg(long, value_name = "REAL", allow_hyphen_values = true, value_parser = finite, help_heading = PROBLEM)]
    pub threshold: Option<f64>,

    /// Random number generator of the matrix [default: hpl]
    #[arg(long, value_name = "NAME", ignore_case = true, hide_short_help = true, help_heading = PROBLEM)]
    pub rng: Option<Rng>,

    /// Seed of the random numbers [default: 100, as in the reference HPL]
    #[arg(long, value_name = "NUMBER", value_parser = number, help_heading = PROBLEM)]
    pub seed: Option<u64>,

    /// Panel factorisations (lines 14 and 15)
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', ignore_case = true, help_heading = ALGORITHM)]
    pub pfact: Option<Vec<Fact>>,

    /// Columns at which the recursion in a panel stops (lines 16 and 17)
    #[arg(long, value_name = "COLS,..", value_delimiter = ',', value_parser = count::<SIZE_MOST>, help_heading = ALGORITHM)]
    pub nbmin: Option<Vec<usize>>,

    /// Parts into which each recursion divides a panel (lines 18 and 19)
    #[arg(long, value_name = "PARTS,..", value_delimiter = ',', value_parser = size::<2>, help_heading = ALGORITHM)]
    pub ndiv: Option<Vec<usize>>,

    /// Recursive panel factorisations (lines 20 and 21)
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', ignore_case = true, help_heading = ALGORITHM)]
    pub rfact: Option<Vec<Fact>>,

    /// Panel broadcasts (lines 22 and 23)
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', ignore_case = true, help_heading = ALGORITHM)]
    pub bcast: Option<Vec<Bcast>>,

    /// Lookahead depths (lines 24 and 25)
    #[arg(long, value_name = "DEPTH,..", value_delimiter = ',', value_parser = size::<0>, help_heading = ALGORITHM)]
    pub depth: Option<Vec<usize>>,

    /// Algorithm of the row exchange (line 26)
    #[arg(long, value_name = "NAME", ignore_case = true, help_heading = ALGORITHM)]
    pub swap: Option<Swap>,

    /// Most columns for which `--swap mix` uses the binary exchange (line 27)
    #[arg(long, value_name = "COLS", value_parser = size::<0>, help_heading = ALGORITHM)]
    pub swap_threshold: Option<usize>,

    /// Storage of the panel's triangle L1 (line 28)
    #[arg(long, value_name = "FORM", ignore_case = true, hide_short_help = true, help_heading = ALGORITHM)]
    pub l1: Option<Form>,

    /// Storage of the row panel U (line 29)
    #[arg(long, value_name = "FORM", ignore_case = true, hide_short_help = true, help_heading = ALGORITHM)]
    pub u: Option<Form>,

    /// Equilibration in the exchange `long`: process rows solve for even shares of U (line 30)
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          hide_short_help = true, help_heading = ALGORITHM)]
    pub equil: Option<bool>,

    /// Alignment of work arrays, in doubles (line 31)
    #[arg(long, value_name = "DOUBLES", value_parser = count::<SIZE_MOST>, hide_short_help = true, help_heading = ALGORITHM)]
    pub align: Option<usize>,

    /// Threads of each rank [default: one for each core of the rank].
    ///
    /// Hardware threads of one core count once. Ranks that are bound to the same cores share these cores.
    #[arg(long, value_name = "COUNT", value_parser = count::<THREADS_MAX>, help_heading = RUN)]
    pub threads: Option<usize>,

    /// Keep each thread on a core of its own [default: auto]
    #[arg(long, value_name = "WHEN", ignore_case = true, help_heading = RUN)]
    pub pin: Option<Pinning>,

    /// Compare the memory need of each test with the free memory of its nodes [default: on]
    #[arg(long, value_name = "WHEN", ignore_case = true, help_heading = RUN)]
    pub memory_check: Option<MemoryCheck>,

    /// Code that multiplies in the trailing update [default: auto]
    #[arg(long, value_name = "NAME", ignore_case = true, help_heading = RUN)]
    pub engine: Option<Engine>,

    /// Accelerator that keeps the matrix in its memory and updates the matrix there [default: none]
    #[arg(long, value_name = "NAME", ignore_case = true, hide_short_help = true, help_heading = RUN)]
    pub device: Option<Device>,

    /// Split the trailing update in two halves, to exchange rows during the multiplication [default: auto].
    ///
    /// The rows of one half travel between process rows while the other half is multiplied. The results are the same to the last
    /// bit.
    #[arg(long, value_name = "WHEN", ignore_case = true, hide_short_help = true, help_heading = RUN)]
    pub split_update: Option<SplitUpdate>,

    /// Use this BLAS in place of the linked one: a file, or a name that the loader finds.
    ///
    /// Examples are libmkl_rt.so.3 and /opt/aocl/lib/libblis.so.
    #[arg(long, value_name = "LIBRARY", help_heading = RUN)]
    pub blas: Option<String>,

    /// Command that prints the watts of its node.
    ///
    /// Each node runs the command once a second during the solve. By default a node reads its own meter, or else the counters of
    /// its processors and devices.
    #[arg(long, value_name = "COMMAND", help_heading = RUN)]
    pub power_command: Option<String>,

    /// Check the kernel that the BLAS chose, and correct a slow choice [default: yes]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = RUN)]
    pub preflight: Option<bool>,

    /// Interval of the checkpoints: K iterations, a time such as 30s or 5m, or `auto` [default: off].
    ///
    /// `auto` computes the best interval from --mtbf and the time of a save.
    #[arg(long, value_name = "K|TIME|auto|off", value_parser = saving, help_heading = PROTECT)]
    pub checkpoint: Option<Saving>,

    /// Mean time between failures of the whole system, for `--checkpoint auto` [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = PROTECT)]
    pub mtbf: Option<f64>,

    /// Checkpoint method [default: self].
    ///
    /// `self`: one copy in memory; the matrix itself serves as the second. `double`: two copies in memory. `single`: one copy,
    /// which each save overwrites, so that a loss during a save ends the run. `disk`: no copy in memory. Each save goes to the
    /// DIR of --level2, and all ranks wait for it. `abft`: no checkpoints. Additional process columns hold checksums
    /// (--checksum-columns), which replace a process column that loses a rank. This method needs Open MPI 5 and `mpirun --with-ft
    /// ulfm`.
    #[arg(long, value_name = "NAME", value_parser = method(), help_heading = PROTECT)]
    pub method: Option<Guarding>,

    /// Part of the matrix that a save covers [default: corner].
    ///
    /// `corner`: the rows and columns that can have changed. `side`: these columns in full height. `whole`: everything.
    #[arg(long, value_name = "NAME", value_parser = scope(), hide_short_help = true, help_heading = PROTECT)]
    pub scope: Option<Scope>,

    /// Arithmetic of the parity [default: xor; reed-solomon for more than one loss]
    #[arg(long, value_name = "NAME", value_parser = parity_code(), hide_short_help = true, help_heading = PROTECT)]
    pub parity_code: Option<Code>,

    /// Losses that each group survives [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = size::<1>, help_heading = PROTECT)]
    pub losses: Option<usize>,

    #[arg(long, value_name = "COUNT", value_parser = size::<2>, help_heading = PROTECT,
          help = format!("Number of positions in a group, which protect each other [default: up to {GROUP_DEFAULT}]"),
          long_help = format!("Number of positions in a group, which protect each other [default: up to {GROUP_DEFAULT}].\n\n\
                               With `--parity-layout localised` the default is K (K+1) for K losses. With `dedicated`, ranks \
                               that hold only parity do not count."))]
    pub group: Option<usize>,

    /// Distribution of the parity over the members of a group [default: striped].
    ///
    /// `striped`: the members take turns in holding parity. `grid`: as `striped`, and the groups are rows or columns of the
    /// process grid. `localised`: each parity lies whole on more members than may be lost. This takes as much memory as the
    /// matrix. `dedicated`: the last ranks of the job hold the parity, and do not compute. Each group has one such rank for each
    /// loss, on other nodes than the group's members.
    #[arg(long, value_name = "NAME", value_parser = parity_layout(), help_heading = PROTECT)]
    pub parity_layout: Option<ParityLayout>,

    /// Way to compute the parity [default: pipelined].
    ///
    /// `reduce`: by MPI_Reduce. `pipelined`: segments travel round the group. `helper`: as pipelined, by a helper of each rank
    /// while the rank computes. This needs --method double. A save then stops the ranks only for the copy.
    #[arg(long, value_name = "NAME", value_parser = encode(), hide_short_help = true, help_heading = PROTECT)]
    pub encode: Option<Encoding>,

    /// Kind of the persistent shared memory [default: posix]
    #[arg(long, value_name = "NAME", value_parser = store(), hide_short_help = true, help_heading = PROTECT)]
    pub store: Option<Store>,

    /// Name of this run's memory and checkpoints.
    ///
    /// In another batch job, a run resumes if it has the same name. The default is the number of the batch job, with the element
    /// of an array. Outside of a batch job the default is `default`.
    #[arg(long, value_name = "NAME", value_parser = job, help_heading = PROTECT)]
    pub job: Option<String>,

    /// Treatment of memory from an earlier start [default: auto].
    ///
    /// `auto` resumes from this memory if it exists. `never` removes it. `require` refuses to run without it. All launches of a
    /// run under `skt-hpl run` are one start: `never` keeps the checkpoints of that run itself.
    #[arg(long, value_name = "NAME", value_parser = restart(), help_heading = PROTECT)]
    pub restart: Option<Restart>,

    /// Also keep checkpoints in DIR, on a file system that all nodes share.
    ///
    /// If all memory is lost, the run resumes from DIR, on any nodes and also in another job. `{domain}` in DIR stands for the
    /// name of the failure domain.
    #[arg(long, value_name = "DIR", value_parser = path, help_heading = PROTECT)]
    pub level2: Option<PathBuf>,

    /// Write every K-th save to DIR, or the first save after this time (30m, 2h) [default: 1h]
    #[arg(long, value_name = "K|TIME", value_parser = level2_every, help_heading = PROTECT)]
    pub level2_every: Option<Interval>,

    /// Whether all nodes see the same DIR [default: shared].
    ///
    /// `shared`: all nodes see one folder. `node`: each node has a folder of its own, which is lost with the node. The parity of
    /// each group then lies next to the data, and restores at most as many lost nodes of the group as --losses says.
    #[arg(long, value_name = "NAME", value_parser = level2_scope(), hide_short_help = true, help_heading = PROTECT)]
    pub level2_scope: Option<DirScope>,

    /// Way to write checkpoints to storage [default: threads].
    ///
    /// `threads`: a thread of each rank writes while the rank computes. `off`: all ranks wait at each save that goes to storage.
    /// This suits nodes on which a helper would slow the ranks down more than this wait.
    #[arg(long, value_name = "NAME", value_parser = helpers(), hide_short_help = true, help_heading = PROTECT)]
    pub helpers: Option<Helpers>,

    /// Processors of each node for the helpers alone, by the system's numbers: 7,15 or 60-63.
    ///
    /// Nothing else of this run uses the cores of these processors. By default a helper runs on any processor that its rank may
    /// use.
    #[arg(long, value_name = "LIST", value_parser = List::from_str, hide_short_help = true, help_heading = PROTECT)]
    pub helper_cores: Option<List>,

    /// File of failure domains: lines `host domain` or `rank:R domain` [default: each node is one]
    #[arg(long, value_name = "FILE", value_parser = path, help_heading = PROTECT)]
    pub domains: Option<PathBuf>,

    /// Replace a failed rank by a spare rank, without a restart [default: no].
    ///
    /// All ranks then continue from the last checkpoint. This needs --checkpoint, and Open MPI 5 under `mpirun --with-ft ulfm`.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = PROTECT)]
    pub nonstop: Option<bool>,

    /// Ranks that stand by, in addition to those of the grid [default: 0].
    ///
    /// The spare ranks are the last ranks of the job. Under --nonstop a spare rank replaces a failed rank; under --method abft
    /// spare ranks rebuild checksums.
    #[arg(long, value_name = "K", value_parser = size::<0>, help_heading = PROTECT)]
    pub spare_ranks: Option<usize>,

    /// Process columns that hold checksums under --method abft, 1 to 4 [default: 1].
    ///
    /// The run then has P x (Q+R) ranks, and survives the loss of R process columns.
    #[arg(long, value_name = "R", value_parser = count::<SUMS_MAX>, help_heading = PROTECT)]
    pub checksum_columns: Option<usize>,
}

impl Overrides {
    /// Replaces values of HPL.dat by these settings. Returns an error if the lists of P and Q differ in length, or if settings
    /// exclude each other.
    pub fn apply(&self, dat: &mut HplDat) -> Result<(), Diagnostic> {
        /// Sets `target` to a value if there is one.
        fn set<T: Clone>(target: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                target.clone_from(value);
            }
        }
        set(&mut dat.output, &self.output);
        set(&mut dat.ns, &self.n);
        set(&mut dat.nbs, &self.nb);
        set(&mut dat.mapping, &self.pmap);
        set(&mut dat.threshold, &self.threshold);
        set(&mut dat.pfacts, &self.pfact);
        set(&mut dat.nbmins, &self.nbmin);
        set(&mut dat.ndivs, &self.ndiv);
        set(&mut dat.rfacts, &self.rfact);
        set(&mut dat.bcasts, &self.bcast);
        set(&mut dat.depths, &self.depth);
        set(&mut dat.swap, &self.swap);
        set(&mut dat.swap_threshold, &self.swap_threshold);
        set(&mut dat.l1, &self.l1);
        set(&mut dat.u, &self.u);
        set(&mut dat.equilibrate, &self.equil);
        set(&mut dat.align, &self.align);
        let (mut ps, mut qs): (Vec<usize>, Vec<usize>) = dat.grids.iter().copied().unzip();
        set(&mut ps, &self.p);
        set(&mut qs, &self.q);
        if ps.len() != qs.len() {
            let from = |given: bool| if given { "settings" } else { "HPL.dat" };
            let what = "each grid takes a value of P and a value of Q, but the lists of P and Q differ in length";
            return Err(Diagnostic::error("settings", what)
                .read(format!(
                    "P = {} ({}), Q = {} ({})",
                    join(&ps),
                    from(self.p.is_some()),
                    join(&qs),
                    from(self.q.is_some())
                ))
                .allowed("as many values of P as of Q")
                .help(
                    "give both lists, for example `-p 1,2 -q 4,2` for the grids 1 x 4 and 2 x 2",
                ));
        }
        dat.grids = ps.into_iter().zip(qs).collect();
        self.go_together(&dat.depths)
    }

    /// Returns true if the run computes parity. Method disk computes none if all nodes share DIR, because all nodes can read all
    /// checkpoints.
    pub(super) fn has_parity(&self) -> bool {
        self.method != Some(Guarding::Saves(Method::Disk))
            || self.level2_scope == Some(DirScope::Node)
    }
}

/// Returns true if the settings that the help lists under `heading` describe how runs use a machine, such as the engine. Settings
/// under other headings belong to a single run: its problem, its output, its protection.
pub(super) fn is_of_the_machine(heading: Option<&str>) -> bool {
    heading == Some(RUN)
}

/// Returns true if the setting `key` replaces a line of HPL.dat: see [`Overrides::apply`].
pub fn replaces_a_line(key: &str) -> bool {
    const LINES: &str = "output n nb p q pmap threshold pfact nbmin ndiv rfact bcast depth swap swap-threshold l1 u equil align";
    LINES.split(' ').any(|line| line == key)
}

fn join(values: &[usize]) -> String {
    let words: Vec<String> = values.iter().map(usize::to_string).collect();
    words.join(",")
}

/// All settings that belong to no line of HPL.dat, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub dat: PathBuf,
    pub json: Option<PathBuf>,
    pub progress: bool,
    pub timing: bool,
    pub rng: Rng,
    pub seed: u64,
    /// Number of threads of each rank; `None`: one thread for each core of the rank.
    pub threads: Option<usize>,
    pub pin: Pinning,
    pub memory_check: MemoryCheck,
    pub engine: Engine,
    pub device: Device,
    pub split_update: SplitUpdate,
    /// BLAS library that replaces the linked one (`--blas`); `None`: the linked BLAS.
    pub blas: Option<String>,
    pub preflight: bool,
    /// Command that prints a node's power, in place of the node's own meters.
    pub power_command: Option<String>,
    /// True if a progress line may be shown on a terminal, because no setting turns the progress on or off.
    pub terminal_progress: bool,
    pub protection: Protection,
}

impl Settings {
    /// Returns the settings of the checkpoints, or `None` if the run makes no checkpoints.
    pub fn saves(&self) -> Option<&Saves> {
        match &self.protection {
            Protection::Saves(saves) => Some(saves),
            _ => None,
        }
    }

    /// Returns the number of process columns that hold checksums; 0 except under `--method abft`.
    pub fn sums(&self) -> usize {
        match self.protection {
            Protection::Checksums { columns, .. } => columns,
            _ => 0,
        }
    }

    /// Returns the settings that determine the memory need of ranks with `threads` threads each.
    pub fn means(&self, threads: usize) -> Means {
        Means { engine: self.engine, threads, device: self.device }
    }

    /// Returns the number of spare ranks. Returns `None` if the job cannot continue in its processes after the loss of a process.
    fn standing_by(&self) -> Option<usize> {
        match &self.protection {
            Protection::None => None,
            Protection::Saves(saves) => saves.nonstop,
            Protection::Checksums { spare_ranks, .. } => Some(*spare_ranks),
        }
    }

    /// Returns true if the job continues in its processes after the loss of a process.
    pub fn goes_on(&self) -> bool {
        self.standing_by().is_some()
    }

    pub fn spare_ranks(&self) -> usize {
        self.standing_by().unwrap_or(0)
    }

    /// Returns the number of ranks that take part in a test on a P x Q grid. Ranks of checksum columns and dedicated ranks count;
    /// spare ranks do not.
    pub fn ranks(&self, p: usize, q: usize) -> usize {
        let grid = p.saturating_mul(q.saturating_add(self.sums()));
        grid.saturating_add(self.dedicated(p, q))
    }

    /// Returns the number of dedicated ranks of a test on a P x Q grid. Dedicated ranks hold only parity.
    pub fn dedicated(&self, p: usize, q: usize) -> usize {
        self.saves().map_or(0, |Saves { scheme, group, .. }| {
            scheme.layout.dedicated(p.saturating_mul(q), *group, scheme.losses)
        })
    }
}

impl Overrides {
    /// Returns true if helpers send messages by MPI. In this case MPI must be started for calls from several threads.
    pub fn helpers_talk(&self) -> bool {
        self.saves() && self.encode == Some(Encoding::Helper)
    }

    /// Returns true if the matrix is in the memory of a device.
    pub(super) fn has_device(&self) -> bool {
        self.device.is_some_and(|device| device != Device::None)
    }

    /// Returns the engine of the run. With a device, the engine is `blas`, because a device needs operands in the layouts of this
    /// engine.
    fn engine(&self) -> Engine {
        if self.has_device() { Engine::Blas } else { self.engine.unwrap_or_default() }
    }

    /// Returns true if the run makes checkpoints.
    pub fn saves(&self) -> bool {
        !matches!(self.checkpoint, None | Some(Saving::Off))
    }

    /// Returns true if the job continues in its processes after the loss of a process. In this case MPI must be started so that
    /// it survives the loss.
    pub fn goes_on(&self) -> bool {
        self.nonstop == Some(true) || self.method == Some(Guarding::Checksums)
    }
}

/// Protection of a run against the loss of ranks, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Protection {
    None,
    Saves(Saves),
    /// Additional process columns that hold checksums.
    Checksums {
        columns: usize,
        /// Ranks that stand by, to rebuild checksum columns after a loss.
        spare_ranks: usize,
    },
}

/// Settings of a run's checkpoints, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saves {
    /// Number of spare ranks under --nonstop; `None`: a lost rank needs a restart.
    pub nonstop: Option<usize>,
    pub interval: Interval,
    pub scheme: Scheme,
    /// Number of positions in a group; `None`: the default number.
    pub group: Option<usize>,
    pub encode: Encoding,
    pub helpers: Helpers,
    /// Processors of each node that are reserved for helpers; `None`: helpers have no processors of their own.
    pub helper_cores: Option<List>,
    pub store: Store,
    pub job: String,
    pub restart: Restart,
    pub domains: Option<PathBuf>,
    /// Second level of checkpoints, on storage; `None`: memory alone.
    pub level2: Option<Level2>,
}

/// Settings of the second level of checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level2 {
    pub dir: PathBuf,
    /// Interval between two checkpoints on storage, in saves or in seconds.
    pub every: Interval,
    pub scope: DirScope,
}

/// Mean time between failures, in seconds, that `--checkpoint auto` assumes without --mtbf: a day, which is usual on large
/// systems.
const MTBF_DEFAULT_S: f64 = 86400.0;

impl Saves {
    /// Returns true if checkpoints in memory are also written to storage. Returns false for method disk, whose checkpoints are on
    /// storage alone.
    pub fn has_second_level(&self) -> bool {
        self.level2.is_some() && self.scheme.method != Method::Disk
    }

    fn from(set: &Overrides) -> Option<Saves> {
        let Saving::Every(mut interval) = set.checkpoint? else { return None };
        if let Interval::Auto { mtbf_s } = &mut interval {
            *mtbf_s = set.mtbf.unwrap_or(MTBF_DEFAULT_S);
        }
        // Without parity each position is a group by itself. Such a group need not survive a loss: all nodes can read the saves.
        let (losses, group) =
            if set.has_parity() { (set.losses.unwrap_or(1), set.group) } else { (0, Some(1)) };
        Some(Saves {
            nonstop: (set.nonstop == Some(true)).then_some(set.spare_ranks.unwrap_or(0)),
            interval,
            scheme: Scheme {
                method: match set.method {
                    Some(Guarding::Saves(method)) => method,
                    _ => Method::SelfCheckpoint,
                },
                scope: set.scope.unwrap_or(Scope::Corner),
                code: set.parity_code.unwrap_or(if losses <= 1 {
                    Code::Xor
                } else {
                    Code::ReedSolomon
                }),
                losses,
                layout: set.parity_layout.unwrap_or_default(),
                on_device: set.has_device(),
            },
            group,
            encode: set.encode.unwrap_or(Encoding::Pipelined),
            helpers: set.helpers.unwrap_or_default(),
            helper_cores: set.helper_cores.clone(),
            store: set.store.unwrap_or(Store::Posix),
            job: set.job.clone().unwrap_or_else(|| job_name(|name| std::env::var(name).ok())),
            restart: set.restart.unwrap_or_default(),
            domains: set.domains.clone(),
            level2: set.level2.clone().map(|dir| Level2 {
                dir,
                every: set.level2_every.unwrap_or(Interval::Seconds(EVERY_DEFAULT_S)),
                scope: set.level2_scope.unwrap_or_default(),
            }),
        })
    }
}

impl From<&Overrides> for Settings {
    fn from(set: &Overrides) -> Settings {
        Settings {
            dat: set.dat.clone().unwrap_or_else(|| DAT_DEFAULT.into()),
            json: set.json.clone(),
            progress: set.progress.unwrap_or(false),
            timing: set.timing.unwrap_or(false),
            rng: set.rng.unwrap_or(Rng::Hpl),
            seed: set.seed.unwrap_or(SEED_DEFAULT),
            threads: set.threads,
            pin: set.pin.unwrap_or_default(),
            memory_check: set.memory_check.unwrap_or_default(),
            engine: set.engine(),
            device: set.device.unwrap_or_default(),
            split_update: set.split_update.unwrap_or_default(),
            blas: set.blas.clone(),
            preflight: set.preflight.unwrap_or(true),
            power_command: set.power_command.clone(),
            terminal_progress: set.progress.is_none(),
            protection: if set.method == Some(Guarding::Checksums) {
                Protection::Checksums {
                    columns: set.checksum_columns.unwrap_or(1),
                    spare_ranks: set.spare_ranks.unwrap_or(0),
                }
            } else {
                Saves::from(set).map_or(Protection::None, Protection::Saves)
            },
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::from(&Overrides::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dat() -> HplDat {
        HplDat { ns: vec![1], nbs: vec![1], grids: vec![(1, 4), (2, 2)], ..HplDat::default() }
    }

    #[test]
    fn values_that_are_not_set_stay() {
        let mut changed = dat();
        Overrides::default().apply(&mut changed).unwrap();
        assert_eq!(changed, dat());
    }

    /// [`replaces_a_line`] lists exactly the settings whose `--help` names a line.
    #[test]
    fn settings_that_replace_a_line_say_so() {
        let command = Overrides::augment_args(clap::Command::new("settings"));
        for arg in command.get_arguments() {
            let (key, help) = (arg.get_long().unwrap(), arg.get_help().unwrap().to_string());
            assert_eq!(replaces_a_line(key), help.contains("(line"), "{key}: {help}");
        }
    }

    /// Every line of HPL.dat can be replaced, and each line by its own setting.
    #[test]
    fn every_line_can_be_replaced() {
        let all = Overrides {
            output: Some(Output::Stderr),
            n: Some(vec![10, 20]),
            nb: Some(vec![3]),
            p: Some(vec![5]),
            q: Some(vec![7]),
            pmap: Some(Mapping::Column),
            threshold: Some(-1.0),
            pfact: Some(vec![Fact::Left]),
            nbmin: Some(vec![9]),
            ndiv: Some(vec![8]),
            rfact: Some(vec![Fact::Right, Fact::Left]),
            bcast: Some(vec![Bcast::Long]),
            depth: Some(vec![0]),
            swap: Some(Swap::Long),
            swap_threshold: Some(12),
            l1: Some(Form::NotTransposed),
            u: Some(Form::NotTransposed),
            equil: Some(false),
            align: Some(16),
            ..Overrides::default()
        };
        let mut changed = dat();
        all.apply(&mut changed).unwrap();
        let expected = HplDat {
            output: Output::Stderr,
            ns: vec![10, 20],
            nbs: vec![3],
            mapping: Mapping::Column,
            grids: vec![(5, 7)],
            threshold: -1.0,
            pfacts: vec![Fact::Left],
            nbmins: vec![9],
            ndivs: vec![8],
            rfacts: vec![Fact::Right, Fact::Left],
            bcasts: vec![Bcast::Long],
            depths: vec![0],
            swap: Swap::Long,
            swap_threshold: 12,
            l1: Form::NotTransposed,
            u: Form::NotTransposed,
            equilibrate: false,
            align: 16,
        };
        assert_eq!(changed, expected);
    }

    #[test]
    fn grids_are_pairs() {
        let with = |p: Option<Vec<usize>>, q: Option<Vec<usize>>| {
            let mut changed = dat();
            let set = Overrides { p, q, ..Overrides::default() };
            set.apply(&mut changed).map(|()| changed.grids)
        };
        assert_eq!(with(Some(vec![3, 5]), None).unwrap(), [(3, 4), (5, 2)]);
        assert_eq!(with(None, Some(vec![3, 5])).unwrap(), [(1, 3), (2, 5)]);
        assert_eq!(with(Some(vec![3]), Some(vec![5])).unwrap(), [(3, 5)]);
        let faults = with(Some(vec![3]), None).unwrap_err();
        assert_eq!(faults.read.as_deref().unwrap(), "P = 3 (settings), Q = 4,2 (HPL.dat)");
        assert!(with(Some(vec![1, 2, 3]), Some(vec![1, 2])).is_err());
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let settings = Settings::default();
        assert_eq!(settings.dat, PathBuf::from("HPL.dat"));
        assert_eq!((settings.rng, settings.seed), (Rng::Hpl, 100));
        assert_eq!((settings.progress, settings.timing), (false, false));
        assert!(settings.preflight);
        assert_eq!(settings.engine, Engine::Auto);
        assert_eq!(settings.threads, None);
    }
}

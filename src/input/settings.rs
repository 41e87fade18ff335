//! Every setting of the benchmark, defined once.
//!
//! [`Overrides`] is the one list: its fields are the flags of the command line, the keys of
//! `skt.toml` (`swap-threshold`) and the environment variables (`SKT_SWAP_THRESHOLD`), with one
//! parser and one help text. `cli` puts it among the program's flags, `sources` fills it from the
//! file and the environment. A new field here is therefore known everywhere at once.
//!
//! Fields that stand for a line of HPL.dat replace that line's values ([`Overrides::apply`]); the
//! rest become [`Settings`].

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, Diagnostics};
use super::hpl_dat::{HplDat, Output};
use crate::params::{Bcast, Engine, Fact, Form, Mapping, Rng, Swap};

/// The seed of the reference's matrix.
pub const SEED_DEFAULT: u64 = 100;

/// Where HPL.dat is looked for.
pub const DAT_DEFAULT: &str = "HPL.dat";

/// The file of settings that is read if it is there.
pub const CONFIG_DEFAULT: &str = "skt.toml";

const INPUT: &str = "Input and output";
const PROBLEM: &str = "Problem (replace lines of HPL.dat; lists with commas)";
const ALGORITHM: &str = "Algorithm (replace lines of HPL.dat; lists with commas)";
const RUN: &str = "How to run";

/// A size of at least `LEAST`.
fn size<const LEAST: usize>(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(size) if size >= LEAST => Ok(size),
        _ => Err(format!("a whole number >= {LEAST} is needed")),
    }
}

fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("a file name cannot be empty".to_owned());
    }
    Ok(PathBuf::from(text))
}

fn output(text: &str) -> Result<Output, String> {
    match text {
        "-" | "stdout" => Ok(Output::Stdout),
        "stderr" => Ok(Output::Stderr),
        _ => path(text).map(Output::File),
    }
}

fn finite(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("a finite number such as 16.0 is needed".to_owned()),
    }
}

/// Some of the settings: what one source (command line, environment, file) has to say.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
pub struct Overrides {
    /// Read the tests from FILE [default: HPL.dat]
    #[arg(long, value_name = "FILE", value_parser = path, help_heading = INPUT)]
    pub dat: Option<PathBuf>,

    /// Write the results to FILE; `-` or `stdout`, `stderr` are the streams (lines 3 and 4)
    #[arg(long, value_name = "FILE", value_parser = output, help_heading = INPUT)]
    pub output: Option<Output>,

    /// Also write everything about each test to FILE as JSON
    #[arg(long, value_name = "FILE", value_parser = path, help_heading = INPUT)]
    pub json: Option<PathBuf>,

    /// Tell the progress of the factorisation [default: no]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = INPUT)]
    pub progress: Option<bool>,

    /// Print the time each part took [default: no]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = INPUT)]
    pub timing: Option<bool>,

    /// Problem sizes (lines 5 and 6)
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', value_parser = size::<0>, help_heading = PROBLEM)]
    pub n: Option<Vec<usize>>,

    /// Block sizes (lines 7 and 8)
    #[arg(long, value_name = "NB,..", value_delimiter = ',', value_parser = size::<1>, help_heading = PROBLEM)]
    pub nb: Option<Vec<usize>>,

    /// Process rows of each grid, in pairs with -q (lines 10 and 11)
    #[arg(short, long, value_name = "P,..", value_delimiter = ',', value_parser = size::<1>, help_heading = PROBLEM)]
    pub p: Option<Vec<usize>>,

    /// Process columns of each grid, in pairs with -p (lines 10 and 12)
    #[arg(short, long, value_name = "Q,..", value_delimiter = ',', value_parser = size::<1>, help_heading = PROBLEM)]
    pub q: Option<Vec<usize>>,

    /// How ranks are laid over the grid (line 9)
    #[arg(long, value_name = "ORDER", ignore_case = true, help_heading = PROBLEM)]
    pub pmap: Option<Mapping>,

    /// Largest scaled residual that passes; zero or less skips the check (line 13)
    #[arg(long, value_name = "REAL", allow_hyphen_values = true, value_parser = finite, help_heading = PROBLEM)]
    pub threshold: Option<f64>,

    /// Random numbers of the matrix [default: hpl]
    #[arg(long, value_name = "NAME", ignore_case = true, help_heading = PROBLEM)]
    pub rng: Option<Rng>,

    /// Seed of the random numbers [default: 100, the reference's]
    #[arg(long, value_name = "NUMBER", help_heading = PROBLEM)]
    pub seed: Option<u64>,

    /// Panel factorisations (lines 14 and 15)
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', ignore_case = true, help_heading = ALGORITHM)]
    pub pfact: Option<Vec<Fact>>,

    /// Columns at which the panel's recursion stops (lines 16 and 17)
    #[arg(long, value_name = "COLS,..", value_delimiter = ',', value_parser = size::<1>, help_heading = ALGORITHM)]
    pub nbmin: Option<Vec<usize>>,

    /// Parts a panel is divided into at each recursion (lines 18 and 19)
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

    /// Row swapping (line 26)
    #[arg(long, value_name = "NAME", ignore_case = true, help_heading = ALGORITHM)]
    pub swap: Option<Swap>,

    /// Columns up to which `--swap mix` takes the binary exchange (line 27)
    #[arg(long, value_name = "COLS", value_parser = size::<0>, help_heading = ALGORITHM)]
    pub swap_threshold: Option<usize>,

    /// How the panel's triangle L1 is stored (line 28)
    #[arg(long, value_name = "FORM", ignore_case = true, help_heading = ALGORITHM)]
    pub l1: Option<Form>,

    /// How the row panel U is stored (line 29)
    #[arg(long, value_name = "FORM", ignore_case = true, help_heading = ALGORITHM)]
    pub u: Option<Form>,

    /// Equilibration while swapping with `long` (line 30)
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(), help_heading = ALGORITHM)]
    pub equil: Option<bool>,

    /// Alignment of work arrays, in doubles (line 31)
    #[arg(long, value_name = "DOUBLES", value_parser = size::<1>, help_heading = ALGORITHM)]
    pub align: Option<usize>,

    /// Threads of each rank [default: the cores it is bound to]
    #[arg(long, value_name = "COUNT", value_parser = size::<1>, help_heading = RUN)]
    pub threads: Option<usize>,

    /// Which multiplication does the trailing update [default: auto]
    #[arg(long, value_name = "NAME", ignore_case = true, help_heading = RUN)]
    pub engine: Option<Engine>,

    /// Look at the BLAS's choice of kernel first and mend it [default: yes]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = RUN)]
    pub preflight: Option<bool>,
}

impl Overrides {
    /// Replaces what the file says by what is set here.
    pub fn apply(&self, dat: &mut HplDat) -> Result<(), Diagnostics> {
        /// `target` takes a value if there is one.
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
            return Err(Diagnostics::from(
                Diagnostic::error(
                    "settings",
                    "P and Q make the grids in pairs, and their numbers differ",
                )
                .read(format!(
                    "P = {} ({}), Q = {} ({})",
                    join(&ps),
                    from(self.p.is_some()),
                    join(&qs),
                    from(self.q.is_some())
                ))
                .allowed("as many values of P as of Q")
                .help("give both lists, for example `-p 1,2 -q 4,2` for the grids 1 x 4 and 2 x 2"),
            ));
        }
        dat.grids = ps.into_iter().zip(qs).collect();
        Ok(())
    }
}

fn join(values: &[usize]) -> String {
    let words: Vec<String> = values.iter().map(usize::to_string).collect();
    words.join(",")
}

/// What is asked for beyond the lines of HPL.dat, every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub dat: PathBuf,
    pub json: Option<PathBuf>,
    pub progress: bool,
    pub timing: bool,
    pub rng: Rng,
    pub seed: u64,
    /// `None`: as many as the cores the rank is bound to.
    pub threads: Option<usize>,
    pub engine: Engine,
    pub preflight: bool,
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
            engine: set.engine.unwrap_or_default(),
            preflight: set.preflight.unwrap_or(true),
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
    fn what_is_not_set_stays() {
        let mut changed = dat();
        Overrides::default().apply(&mut changed).unwrap();
        assert_eq!(changed, dat());
    }

    /// Every line of the file can be replaced, and each by its own setting.
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
        assert_eq!(faults.0[0].read.as_deref().unwrap(), "P = 3 (settings), Q = 4,2 (HPL.dat)");
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

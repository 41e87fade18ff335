//! The `--json` document: all data of a run for scripts, with the schema of `docs/JSON.md`.
//!
//! The driver on rank 0 makes one [`JsonLog`] a run. Each new state of the document is written to a new file, which then replaces
//! the old file. So a reader always finds a complete document. A run that is killed leaves a document with every finished test,
//! in which `complete` is false.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Counts;
use super::machine::Machine;
use crate::base::outcome::Outcome;
use crate::base::output_target::{self, OutputTarget};
use crate::base::params::TestParams;

/// Version of the schema. It increases when a key changes its meaning or is removed, but not when keys are added.
pub const SCHEMA_VERSION: u32 = 1;

/// The JSON document of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub schema_version: u32,
    pub program: Program,
    pub command_line: Vec<String>,
    pub started_unix_s: u64,
    /// Time at which this state of the document was written.
    pub written_unix_s: u64,
    /// True once the last test has ended. If the run is killed, it stays false.
    pub complete: bool,
    pub mpi: Mpi,
    pub blas: Blas,
    /// Threads of the ranks; empty if an older version wrote the document.
    #[serde(default)]
    pub threads: Threads,
    /// Nodes that the run uses; empty if an older version wrote the document.
    #[serde(default)]
    pub machine: Machine,
    /// Number of all tests of the run, including those not yet run.
    pub planned: usize,
    pub counts: Counts,
    pub tests: Vec<Test>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    pub version: String,
    /// Compiler that built the program, with its version.
    #[serde(default)]
    pub compiler: String,
    /// Target of the build: processor and system.
    #[serde(default)]
    pub target: String,
    /// Profile of the build, such as `release`.
    #[serde(default)]
    pub profile: String,
}

impl Run {
    /// Returns the document of a run that starts now. The caller adds the data that are known before the first test.
    pub fn begin() -> Self {
        let now = unix_s();
        Self {
            schema_version: SCHEMA_VERSION,
            program: Program {
                name: env!("CARGO_PKG_NAME").to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                compiler: env!("HPL_BUILT_BY").to_owned(),
                target: env!("HPL_BUILT_FOR").to_owned(),
                profile: env!("HPL_BUILT_AS").to_owned(),
            },
            started_unix_s: now,
            written_unix_s: now,
            ..Self::default()
        }
    }
}

/// MPI library, ranks and hosts of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mpi {
    /// First line of the text by which the MPI library describes itself: its name and version.
    pub library: String,
    pub ranks: usize,
    pub hosts: usize,
}

/// BLAS library of the run, and the engines that multiply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blas {
    pub name: String,
    /// Kernel that the BLAS library chose, by the library's own name.
    pub kernel: String,
    /// Engine of the trailing update: the name of a kernel of this program, or `blas`. If tests have different engines, the names
    /// of all of them.
    pub engine: String,
}

/// Threads of the ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threads {
    /// Smallest number of threads of a rank.
    pub fewest: usize,
    /// Largest number of threads of a rank.
    pub most: usize,
    /// Ranks whose threads are pinned to processors: `all`, `some` or `none`.
    pub pinned: String,
}

/// A test, run or skipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// Number of the test in the order of tests, from 1.
    pub number: usize,
    pub params: TestParams,
    /// Engine of the test, as in [`Blas::engine`]; empty in older documents.
    #[serde(default)]
    pub engine: String,
    /// Result of the test; absent if the test was skipped.
    pub outcome: Option<Outcome>,
    /// Reason why the test was skipped; absent if the test was run.
    pub skipped: Option<String>,
}

/// JSON document of a run in progress, and its file.
#[derive(Debug)]
pub struct JsonLog {
    path: PathBuf,
    place: OutputTarget,
    run: Run,
}

impl JsonLog {
    /// Checks that a document can be written to `path`, and leaves the file as it is.
    ///
    /// # Errors
    /// The path cannot be written; the message names the file.
    pub fn can_be_at(path: &Path) -> io::Result<()> {
        output_target::is_open_to_us(path).map_err(|error| cannot(path, &error))
    }

    /// Writes the first document, which has no tests yet.
    ///
    /// # Errors
    /// The file cannot be written; the message names it.
    pub fn create(path: impl AsRef<Path>, run: Run) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let place = OutputTarget::of(&path).map_err(|error| cannot(&path, &error))?;
        let mut log = Self { path, place, run };
        log.write()?;
        Ok(log)
    }

    /// Adds a test to the document and writes the document. `outcome` is the result, or the reason why the test was skipped.
    ///
    /// # Errors
    /// The file cannot be written. The document keeps the test and writes it together with the next test.
    pub fn take_in(
        &mut self,
        params: &TestParams,
        engine: &str,
        outcome: Result<&Outcome, &str>,
    ) -> io::Result<()> {
        match outcome {
            Ok(outcome) => self.run.counts.add(outcome.verdict),
            Err(_) => self.run.counts.skipped += 1,
        }
        self.run.tests.push(Test {
            number: self.run.tests.len() + 1,
            params: params.clone(),
            engine: engine.to_owned(),
            outcome: outcome.ok().cloned(),
            skipped: outcome.err().map(str::to_owned),
        });
        self.write()
    }

    /// Marks the run as complete, writes the document and returns it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn complete(mut self) -> io::Result<Run> {
        self.run.complete = true;
        self.write()?;
        Ok(self.run)
    }

    fn write(&mut self) -> io::Result<()> {
        self.run.written_unix_s = unix_s();
        let mut text = serde_json::to_vec_pretty(&self.run)?;
        text.push(b'\n');
        // Only the last state is forced to the disk. The system keeps the earlier states even if the process is killed.
        self.place.put(&text, self.run.complete).map_err(|error| cannot(&self.path, &error))
    }
}

fn cannot(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write the JSON file {}: {error}", path.display()))
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::fd::AsRawFd;

    use serde_json::Value;

    use super::*;
    use crate::base::outcome::{Residual, Verdict};
    use crate::testkit::report::{machine, outcome, params, residual};

    fn log(path: &Path) -> JsonLog {
        JsonLog::create(
            path,
            Run {
                command_line: vec!["skt-hpl".into(), "--json".into(), "run.json".into()],
                mpi: Mpi { library: "Open MPI v4.1.4".into(), ranks: 6, hosts: 2 },
                blas: Blas {
                    name: "BLIS 0.9.0".into(),
                    kernel: "skx".into(),
                    engine: "packed".into(),
                },
                threads: Threads { fewest: 2, most: 2, pinned: "all".into() },
                machine: machine(),
                planned: 3,
                ..Run::begin()
            },
        )
        .unwrap()
    }

    fn read(path: &Path) -> Run {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn the_file_grows_test_by_test() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let mut log = log(&path);
        assert!(read(&path).tests.is_empty());

        log.take_in(&params(), "packed", Ok(&outcome())).unwrap();
        let first = read(&path);
        assert!(!first.complete);
        assert_eq!(first, log.run);

        log.take_in(&params(), "packed", Err("no memory")).unwrap();
        let mut failed = outcome();
        failed.verdict = Verdict::Failed;
        log.take_in(&params(), "packed", Ok(&failed)).unwrap();
        let run = log.complete().unwrap();
        assert_eq!(read(&path), run);
        assert!(run.complete);
        assert_eq!(run.counts, Counts { passed: 1, failed: 1, unchecked: 0, skipped: 1 });
        let numbers: Vec<_> = run.tests.iter().map(|test| test.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing but the document is left: {left:?}");
    }

    #[test]
    fn numbers_that_are_none_become_null_and_come_back_as_nan() {
        let mut strange = outcome();
        strange.gflops = f64::INFINITY;
        strange.residual = Some(Residual { scaled: f64::NAN, x_inf: f64::INFINITY, ..residual() });
        let text = serde_json::to_string(&strange).unwrap();
        assert!(text.contains(r#""scaled":null"#), "{text}");
        let back: Outcome = serde_json::from_str(&text).unwrap();
        assert!(back.gflops.is_nan());
        let back = back.residual.unwrap();
        assert!(back.scaled.is_nan() && back.x_inf.is_nan());
        assert_eq!(back.b_inf, residual().b_inf);
    }

    #[test]
    fn a_pipe_gets_every_state_one_after_the_other() {
        let (reader, writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let last = log(Path::new(&path)).complete().unwrap();
        drop(writer);
        let states: Vec<Run> = serde_json::Deserializer::from_reader(reader)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(states.len(), 2);
        assert!(!states[0].complete);
        assert_eq!(states[1], last);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_an_error_at_once() {
        let error = JsonLog::create("/no/such/folder/run.json", Run::begin()).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder/run.json"));
    }

    /// Collects a path such as `a.b[].c` for every value that is neither an object nor a list.
    fn leaves(at: &str, value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let dot = if at.is_empty() { "" } else { "." };
                    leaves(&format!("{at}{dot}{key}"), value, into);
                }
            }
            Value::Array(list) => {
                for value in list {
                    leaves(&format!("{at}[]"), value, into);
                }
            }
            _ => {
                into.insert(at.to_owned());
            }
        }
    }

    #[test]
    fn the_documented_keys_are_the_produced_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let mut log = log(&path);
        log.take_in(&params(), "packed", Ok(&outcome())).unwrap();
        log.complete().unwrap();
        let mut produced = BTreeSet::new();
        let value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        leaves("", &value, &mut produced);

        let page = include_str!("../../docs/JSON.md");
        let documented: BTreeSet<String> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|rest| rest.split_once('`'))
            .map(|(key, _)| key.to_owned())
            .collect();
        assert_eq!(documented, produced);
    }
}

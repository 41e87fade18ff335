//! Jobs that time parts of runs for a search. Every result is written to the folder of the search as soon as it arrives.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use super::kept::{KEPT, Kept, Measured};
use super::table::Table;
use super::trials::{Told, Trial};
use super::written::device_flag;
use crate::base::output_target;
use crate::cli::running_job::{Next, RunningJob, TIMEOUT};
use crate::cli::template;
use crate::tune::estimate::{self, Care};
use crate::tune::search::{Found, Lab, Stage};
use crate::tune::space::{Candidate, Layout};

const TRIALS: &str = "trials.json";
/// Names of the files that a search keeps in its folder.
pub const FILES: [&str; 2] = [KEPT, TRIALS];

/// Jobs that time parts of runs for a search, and the results of these jobs.
pub struct Jobs {
    pub kept: Kept,
    file: PathBuf,
    program: PathBuf,
    /// File with the trials of the running job.
    pub trials: PathBuf,
    pub table: Table,
    /// Number of kept measurements of each candidate that were returned to the search again, without a new measurement.
    retold: HashMap<String, usize>,
    spent: f64,
    /// Time without output after which a job is given up. Twenty times the duration of the job's longest measurement is added.
    timeout: Duration,
}

/// Trials of a single job: their common layout, and the index of each trial's candidate in the round.
struct Batch<'a> {
    layout: &'a Layout,
    places: Vec<usize>,
}

/// Job that ended before it had reported all measurements.
struct Cut {
    /// Number of measurements that the job has reported.
    told: usize,
    /// True if the job had begun to measure; false if it was still starting.
    began: bool,
    /// True if the search ended the job, because the job printed nothing for too long.
    ended: bool,
    why: String,
    engine: String,
    /// Seconds since the last report of the job.
    spent: f64,
}

impl Jobs {
    pub fn new(kept: Kept, dir: &Path, program: PathBuf, table: Table) -> Self {
        let (file, trials) = (dir.join(KEPT), dir.join(TRIALS));
        let (retold, spent, timeout) = (HashMap::new(), 0.0, TIMEOUT);
        Self { kept, file, program, trials, table, retold, spent, timeout }
    }

    pub fn save(&self) -> Result<(), String> {
        let text = serde_json::to_vec(&self.kept).expect("plain values have a JSON form");
        output_target::put(&self.file, &text)
            .map_err(|error| format!("cannot write {}: {error}", self.file.display()))
    }

    /// Returns the engine of the last measurement of `candidate`, or an empty text.
    pub fn engine_of(&self, candidate: &Candidate) -> String {
        let last = self.kept.measured.iter().rev().find(|m| m.candidate == *candidate);
        last.map(|m| m.engine.clone()).unwrap_or_default()
    }

    /// Returns the next kept measurement of `candidate` with this care that was not yet returned to the search. None if there is
    /// no further one.
    fn recall(&mut self, candidate: &Candidate, care: Care) -> Option<Measured> {
        let key = serde_json::to_string(&(candidate, care)).expect("plain values");
        let told = self.retold.entry(key).or_default();
        let same = |m: &&Measured| m.candidate == *candidate && m.care == care;
        let found = self.kept.measured.iter().filter(same).nth(*told).cloned();
        *told += 1;
        found
    }

    /// Writes `trials` to a file, and returns the command of the job that times these trials.
    fn command(&self, layout: &Layout, trials: &[Trial]) -> Result<Command, String> {
        let text = serde_json::to_vec(trials).expect("plain values have a JSON form");
        fs::write(&self.trials, text)
            .map_err(|error| format!("cannot write {}: {error}", self.trials.display()))?;
        let Layout { ranks_per_node: each, threads, blas, device } = layout;
        let ranks = self.kept.domain.nodes * each;
        let words = template::words(&self.kept.launcher, ranks, *each, *threads);
        let mut command =
            template::command(&words, &self.program, *threads).map_err(|refusal| refusal.why)?;
        command.arg("trials").arg(&self.trials);
        command.args(["--threads", &threads.to_string()]);
        if let Some(blas) = blas {
            command.args(["--blas", blas]);
        }
        command.args(device_flag(*device));
        Ok(command)
    }

    /// Measures all candidates of `batch`, and stores the results in `found`. If a job ends early, another job measures the rest.
    fn batch(
        &mut self,
        round: &[&Candidate],
        batch: &Batch,
        care: Care,
        found: &mut [Option<Found>],
    ) -> Result<(), String> {
        let mut places = &batch.places[..];
        while let Some(cut) = self.job(round, batch.layout, places, care, found)? {
            if self.kept.measured.iter().all(|m| m.found.is_none()) {
                return Err(format!("the first job could not be run: {}", cut.why));
            }
            places = &places[cut.told..];
            match places.split_first() {
                // The loss of the job counts as a failure of the candidate that was being measured. Another job measures the
                // rest.
                Some((&first, rest)) if cut.began => {
                    self.keep(Measured {
                        candidate: round[first].clone(),
                        care,
                        found: None,
                        spent: cut.spent,
                        engine: cut.engine,
                        why: Some(format!("the job was lost: {}", cut.why)),
                        job_ended: true,
                    })?;
                    places = rest;
                }
                _ => self.spent += cut.spent,
            }
            if places.is_empty() {
                break;
            }
            if cut.ended || !cut.began {
                self.table.say(&format!(
                    "{} more candidates were not measured, because their job was lost: {}",
                    places.len(),
                    cut.why
                ));
                break;
            }
        }
        Ok(())
    }

    /// Starts a single job for the candidates of `round` with the indices `places`. Each measurement is stored in `found`, and
    /// kept, as soon as it arrives. Returns None if all measurements have arrived.
    fn job(
        &mut self,
        round: &[&Candidate],
        layout: &Layout,
        places: &[usize],
        care: Care,
        found: &mut [Option<Found>],
    ) -> Result<Option<Cut>, String> {
        let trials: Vec<Trial> = places.iter().map(|&place| trial(round[place], care)).collect();
        let mut command = self.command(layout, &trials)?;
        let mut job = RunningJob::start(&mut command)?;
        let mut since = Instant::now();
        let (mut engine, mut began) = (String::new(), false);
        let mut timeout = self.timeout;
        let (mut told, mut late) = (0, false);
        while told < places.len() {
            let line = match job.next(timeout)? {
                Next::Line(line) => line,
                Next::End => break,
                Next::Timeout => {
                    late = true;
                    break;
                }
            };
            let seconds = match serde_json::from_str::<Told>(&line) {
                Ok(Told::Engine(name)) => {
                    (engine, began) = (name, true);
                    continue;
                }
                Ok(Told::Seconds(seconds)) => Ok(seconds),
                Ok(Told::Failed(why)) => Err(why),
                // A line that is no report comes from the launcher.
                Err(_) => continue,
            };
            timeout = timeout.max(self.timeout + 20 * since.elapsed());
            let estimated = seconds.and_then(|seconds| estimate_whole(&trials[told], &seconds));
            let (one, why) = (estimated.as_ref().ok().copied(), estimated.err());
            found[places[told]] = one;
            let (candidate, engine) = (round[places[told]].clone(), engine.clone());
            let spent = std::mem::replace(&mut since, Instant::now()).elapsed().as_secs_f64();
            told += 1;
            let job_ended = false;
            self.keep(Measured { candidate, care, found: one, spent, engine, why, job_ended })?;
        }
        let status = if late { None } else { job.ended(timeout)? };
        if told == places.len() {
            if status.is_none() {
                self.spent += since.elapsed().as_secs_f64();
                self.table.say(&format!(
                    "a job reported all measurements, but did not end within {} s; tune has ended it",
                    timeout.as_secs()
                ));
            }
            return Ok(None);
        }
        let why = describe_end(status, timeout, job);
        let spent = since.elapsed().as_secs_f64();
        Ok(Some(Cut { told, began, ended: status.is_none(), why, engine, spent }))
    }

    fn keep(&mut self, measured: Measured) -> Result<(), String> {
        self.spent += measured.spent;
        self.table.tell(&measured, self.spent);
        self.kept.measured.push(measured);
        self.save()
    }
}

fn trial(candidate: &Candidate, care: Care) -> Trial {
    let test = candidate.test.clone();
    let stretches = estimate::stretches(test.blocks(), care);
    Trial { test, stretches }
}

/// Estimates the time of a whole test from the seconds of its parts.
fn estimate_whole(trial: &Trial, seconds: &[f64]) -> Result<Found, String> {
    let Trial { test, stretches } = trial;
    let whole = estimate::whole(test.n, test.nb, stretches, seconds).ok_or_else(|| {
        format!("the measured times, in seconds, do not give the time of a whole run: {seconds:?}")
    })?;
    Ok(Found { seconds: whole, off: estimate::off(test.n, test.nb, stretches, seconds) })
}

/// Describes the end of a job that did not report all measurements.
fn describe_end(status: Option<ExitStatus>, timeout: Duration, job: RunningJob) -> String {
    let why = match status {
        Some(status) => format!("the job ended with {status}"),
        None => format!("the job printed nothing for {} s", timeout.as_secs()),
    };
    let said = template::last_lines(&job.troubles());
    if said.is_empty() { why } else { format!("{why}\n{said}") }
}

impl Lab for Jobs {
    fn measure(
        &mut self,
        stage: Stage,
        round: &[&Candidate],
        care: Care,
    ) -> Result<Vec<Option<Found>>, String> {
        self.table.begin(stage, round.len());
        let mut found = vec![None; round.len()];
        let mut batches: Vec<Batch> = Vec::new();
        for (place, &candidate) in round.iter().enumerate() {
            if let Some(measured) = self.recall(candidate, care) {
                found[place] = measured.found;
                self.spent += measured.spent;
                self.table.tell(&measured, self.spent);
                continue;
            }
            let layout = &candidate.layout;
            match batches.iter_mut().find(|batch| batch.layout == layout) {
                Some(batch) => batch.places.push(place),
                None => batches.push(Batch { layout, places: vec![place] }),
            }
        }
        for batch in &batches {
            self.batch(round, batch, care, &mut found)?;
        }
        Ok(found)
    }

    fn spent(&self) -> f64 {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::space::Domain;

    /// Jobs that a shell script starts in place of a launcher. The script gets the program's arguments, `trials FILE ...`.
    struct Fake {
        dir: tempfile::TempDir,
        jobs: Jobs,
        all: Vec<Candidate>,
    }

    impl Fake {
        fn new(script: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("launcher");
            fs::write(&path, script).unwrap();
            let kept = Kept {
                domain: Domain::of_cores(2),
                launcher: format!("sh {}", path.display()),
                n: 12_000,
                measured: Vec::new(),
                tuned: None,
            };
            let all = kept.domain.first().into_iter();
            let all = all.filter(|c| c.layout.ranks_per_node == 1).take(4).collect();
            let mut jobs = Jobs::new(kept, dir.path(), "true".into(), Table::new(1.0));
            jobs.timeout = Duration::from_secs(2);
            Self { dir, jobs, all }
        }

        /// Measures all candidates. Returns for each candidate whether it has a result.
        fn measure(&mut self) -> Result<Vec<bool>, String> {
            let round: Vec<&Candidate> = self.all.iter().collect();
            let found = self.jobs.measure(Stage::Shape, &round, Care::Rough)?;
            Ok(found.iter().map(Option::is_some).collect())
        }

        /// Returns for each kept measurement whether it has a result, and whether the job ended during the measurement.
        fn kept(&self) -> Vec<(bool, bool)> {
            let all = self.jobs.kept.measured.iter();
            all.map(|m| (m.found.is_some(), m.job_ended)).collect()
        }

        fn lives(&self) -> bool {
            let pid = fs::read_to_string(self.dir.path().join("pid")).unwrap();
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        }
    }

    const ENGINE: &str = "echo '{\"engine\":\"blas\"}'\n";
    const ONE: &str = "echo '{\"seconds\":[0.1,0.2]}'\n";

    #[test]
    fn the_candidate_running_when_a_job_died_is_to_blame_and_the_others_are_measured() {
        // The second trial kills the first job; the second job succeeds.
        let mut fake = Fake::new(&format!(
            "dir=$(dirname $0)\n{ENGINE}{ONE}if [ ! -e $dir/again ]; then : > $dir/again; exit 1; fi\n{ONE}"
        ));
        assert_eq!(fake.measure().unwrap(), [true, false, true, true]);
        assert_eq!(fake.kept(), [(true, false), (false, true), (true, false), (true, false)]);
        let why = fake.jobs.kept.measured[1].why.as_deref().unwrap();
        assert!(why.contains("exit status: 1"), "{why}");
    }

    #[test]
    fn a_candidate_that_never_ran_is_not_kept() {
        let mut fake = Fake::new(&format!(
            "dir=$(dirname $0)\n[ ! -e $dir/again ] || exit 1\n: > $dir/again\n{ENGINE}{ONE}exit 1"
        ));
        assert_eq!(fake.measure().unwrap(), [true, false, false, false]);
        assert_eq!(fake.kept(), [(true, false), (false, true)]);
        let mut never = Fake::new("echo no slots >&2; exit 1");
        let why = never.measure().unwrap_err();
        assert!(
            why.contains("the first job could not be run") && why.contains("no slots"),
            "{why}"
        );
    }

    #[test]
    fn all_answers_of_a_job_are_kept() {
        let failed = "echo '{\"failed\":\"no memory\"}'\n";
        let mut fake =
            Fake::new(&format!("{ENGINE}{ONE}{failed}echo '{{\"seconds\":[0,1]}}'\n{ONE}"));
        assert_eq!(fake.measure().unwrap(), [true, false, false, true]);
        assert_eq!(fake.kept(), [(true, false), (false, false), (false, false), (true, false)]);
        assert_eq!(fake.jobs.kept.measured[1].why.as_deref(), Some("no memory"));
    }

    #[test]
    fn a_silent_job_is_ended_and_so_is_one_that_has_told_all() {
        let pid = "echo $$ > $(dirname $0)/pid\n";
        let mut silent = Fake::new(&format!("{pid}{ENGINE}{ONE}sleep 300; :"));
        assert_eq!(silent.measure().unwrap(), [true, false, false, false]);
        assert_eq!(silent.kept(), [(true, false), (false, true)]);
        assert!(!silent.lives());
        let mut endless = Fake::new(&format!("{pid}{ENGINE}{ONE}{ONE}{ONE}{ONE}sleep 300; :"));
        assert_eq!(endless.measure().unwrap(), [true; 4]);
        assert!(!endless.lives());
        assert!(endless.jobs.spent() >= 2.0, "that counts");
    }

    #[test]
    fn a_search_that_gives_up_leaves_no_job() {
        let pid = "echo $$ > $(dirname $0)/pid\n";
        let mut fake = Fake::new(&format!("{pid}{ENGINE}{ONE}sleep 300; :"));
        fake.jobs.file = fake.dir.path().join("gone").join(KEPT);
        let why = fake.measure().unwrap_err();
        assert!(why.contains("cannot write"), "{why}");
        assert!(!fake.lives());
    }
}

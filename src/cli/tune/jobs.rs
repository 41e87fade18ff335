//! The jobs that measure: each times parts of some runs, and what it says is kept at once.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::table::Table;
use super::trials::{Told, Trial};
use crate::cli::exit::Refusal;
use crate::cli::template;
use crate::tune::estimate::{self, Care};
use crate::tune::search::{Found, Lab, Stage, Tuned};
use crate::tune::space::{Candidate, Domain, Layout};

/// The file in which measurements are kept.
pub const KEPT: &str = "tune.json";

/// What is kept of a search, as it goes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub domain: Domain,
    pub launcher: String,
    /// The order of the matrix that was asked for; parts of a smaller one may be timed.
    pub n: usize,
    pub measured: Vec<Measured>,
    pub tuned: Option<Tuned>,
}

/// One measurement, and the seconds it took with all that belongs to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub candidate: Candidate,
    pub care: Care,
    pub found: Option<Found>,
    pub spent: f64,
    pub engine: String,
    /// Why nothing was found.
    pub why: Option<String>,
}

/// The jobs that measure.
pub struct Jobs {
    pub kept: Kept,
    file: PathBuf,
    program: PathBuf,
    /// What the job under way is to time.
    pub trials: PathBuf,
    pub table: Table,
    /// How many of the kept measurements of each have been told again.
    retold: HashMap<String, usize>,
    spent: f64,
}

/// What one job is to time, and where in the round each belongs.
struct Batch<'a> {
    layout: &'a Layout,
    places: Vec<usize>,
}

impl Jobs {
    pub fn new(kept: Kept, dir: &Path, program: PathBuf, table: Table) -> Self {
        let (file, trials) = (dir.join(KEPT), dir.join("trials.json"));
        Self { kept, file, program, trials, table, retold: HashMap::new(), spent: 0.0 }
    }

    pub fn save(&self) -> Result<(), String> {
        let text = serde_json::to_vec(&self.kept).expect("plain values have a JSON form");
        let aside = self.file.with_extension("json.aside");
        fs::write(&aside, text)
            .and_then(|()| fs::rename(&aside, &self.file))
            .map_err(|error| format!("cannot write {}: {error}", self.file.display()))
    }

    /// What multiplied when `candidate` was measured last.
    pub fn engine_of(&self, candidate: &Candidate) -> String {
        let last = self.kept.measured.iter().rev().find(|m| m.candidate == *candidate);
        last.map(|m| m.engine.clone()).unwrap_or_default()
    }

    /// A kept measurement that this search has not been told yet.
    fn recall(&mut self, candidate: &Candidate, care: Care) -> Option<Measured> {
        let key = serde_json::to_string(&(candidate, care)).expect("plain values");
        let told = self.retold.entry(key).or_default();
        let same = |m: &&Measured| m.candidate == *candidate && m.care == care;
        let found = self.kept.measured.iter().filter(same).nth(*told).cloned();
        *told += 1;
        found
    }

    /// Starts one job for all of `batch`. Each measurement is kept as soon as it is there.
    fn job(
        &mut self,
        round: &[&Candidate],
        batch: &Batch,
        care: Care,
        found: &mut [Option<Found>],
    ) -> Result<(), String> {
        let domain = &self.kept.domain;
        let trial = |&place: &usize| {
            let test = round[place].test.clone();
            let stretches = estimate::stretches(test.blocks(), care);
            Trial { test, stretches }
        };
        let trials: Vec<Trial> = batch.places.iter().map(trial).collect();
        let text = serde_json::to_vec(&trials).expect("plain values have a JSON form");
        fs::write(&self.trials, text)
            .map_err(|error| format!("cannot write {}: {error}", self.trials.display()))?;
        let each = batch.layout.ranks_per_node;
        let words =
            template::words(&self.kept.launcher, domain.nodes * each, each, batch.layout.threads);
        let refused = |Refusal(_, why)| why;
        let mut command =
            template::command(&words, &self.program, batch.layout.threads).map_err(refused)?;
        command.arg("trials").arg(&self.trials);
        command.args(["--threads", &batch.layout.threads.to_string()]);
        if let Some(blas) = &batch.layout.blas {
            command.args(["--blas", blas]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|error| refused(template::cannot_start(&command, &error)))?;
        let lines = lines_of(&mut child);
        let errors = errors_of(&mut child);
        let mut since = Instant::now();
        let mut engine = String::new();
        let mut longest = Duration::ZERO;
        let mut trouble = None;
        for &place in &batch.places {
            let told = loop {
                // A job that says nothing for so long will not any more.
                let patience = Duration::from_secs(120) + 20 * longest;
                match lines.recv_timeout(patience) {
                    Ok(line) => match serde_json::from_str::<Told>(&line) {
                        Ok(Told::Engine(name)) => engine = name,
                        Ok(told) => break Some(told),
                        // Launchers say things, too.
                        Err(_) => {}
                    },
                    Err(RecvTimeoutError::Timeout) => {
                        trouble = Some(format!("it said nothing for {} s", patience.as_secs()));
                        break None;
                    }
                    Err(RecvTimeoutError::Disconnected) => break None,
                }
            };
            let Some(told) = told else { break };
            longest = longest.max(since.elapsed());
            let (seconds, why) = match told {
                Told::Seconds(seconds) => (Some(seconds), None),
                Told::Failed(why) => (None, Some(why)),
                Told::Engine(_) => unreachable!("handled above"),
            };
            let test = &round[place].test;
            let placed = estimate::stretches(test.blocks(), care);
            let one = seconds.and_then(|seconds| {
                let whole = estimate::whole(test.n, test.nb, &placed, &seconds)?;
                let off = estimate::off(test.n, test.nb, &placed, &seconds);
                Some(Found { seconds: whole, off })
            });
            found[place] = one;
            let spent = since.elapsed().as_secs_f64();
            since = Instant::now();
            self.keep(round[place], care, one, spent, &engine, why)?;
        }
        let given_up = trouble.is_some();
        if given_up {
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| format!("`{}`: {error}", words[0]))?;
        let left: Vec<usize> = batch
            .places
            .iter()
            .copied()
            .filter(|&place| !self.retold_all(round[place], care))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let said = errors.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let said = template::last_lines(&said);
        let why = trouble.unwrap_or_else(|| format!("it ended with {status}"));
        if self.kept.measured.iter().all(|m| m.found.is_none()) {
            return Err(format!("the first job could not be run: {why}\n{said}"));
        }
        // The first of these is to blame, or nobody knows who: none is asked again.
        let spent = since.elapsed().as_secs_f64();
        for (at, place) in left.into_iter().enumerate() {
            let why = format!("{why}: {said}");
            self.keep(
                round[place],
                care,
                None,
                if at == 0 { spent } else { 0.0 },
                &engine,
                Some(why),
            )?;
        }
        Ok(())
    }

    /// Whether all that was asked of `candidate` has been answered.
    fn retold_all(&self, candidate: &Candidate, care: Care) -> bool {
        let key = serde_json::to_string(&(candidate, care)).expect("plain values");
        let same = |m: &&Measured| m.candidate == *candidate && m.care == care;
        self.kept.measured.iter().filter(same).count()
            >= self.retold.get(&key).copied().unwrap_or(0)
    }

    fn keep(
        &mut self,
        candidate: &Candidate,
        care: Care,
        found: Option<Found>,
        spent: f64,
        engine: &str,
        why: Option<String>,
    ) -> Result<(), String> {
        let (candidate, engine) = (candidate.clone(), engine.to_owned());
        self.spent += spent;
        self.table.tell(&candidate, found, self.spent);
        self.kept.measured.push(Measured { candidate, care, found, spent, engine, why });
        self.save()
    }
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
                self.table.tell(candidate, measured.found, self.spent);
                continue;
            }
            let layout = &candidate.layout;
            match batches.iter_mut().find(|batch| batch.layout == layout) {
                Some(batch) => batch.places.push(place),
                None => batches.push(Batch { layout, places: vec![place] }),
            }
        }
        for batch in &batches {
            self.job(round, batch, care, &mut found)?;
        }
        Ok(found)
    }

    fn spent(&self) -> f64 {
        self.spent
    }
}

/// A job's lines, as they come; the end of the channel is the end of its output.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let out = child.stdout.take().expect("it was asked for");
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// What a job says of its troubles, once it has ended.
fn errors_of(child: &mut Child) -> Receiver<String> {
    let (send, said) = channel();
    let mut errors = child.stderr.take().expect("it was asked for");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.read_to_end(&mut bytes);
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    said
}

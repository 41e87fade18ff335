//! `skt-hpl tune`: starts jobs that time parts of runs, searches among what they say, and writes what it found.
//!
//! Everything measured is kept in DIR/tune.json. The search itself has no memory: it is told again what was
//! measured before, comes to the same point, and goes on from there. So it can be interrupted at any time.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::exit::Exit;
use super::node_facts;
use super::this_machine;
use super::trials::{Told, Trial};
use super::tune_table::{Table, launch_text, report, words_of_launcher};
use crate::cores;
use crate::model::hpl_dat::hpl_dat;
use crate::tune::estimate::{self, Care};
use crate::tune::picture;
use crate::tune::search::{Found, Lab, Stage, Tuned, search};
use crate::tune::space::{Candidate, Domain, Layout, USUAL_NBS, layouts};
use crate::units::{seconds, show_seconds};

/// Durations are written `90s`, `20min`, `2h`.
#[derive(Debug, Args)]
pub struct TuneFlags {
    /// Order of the matrix [default: what fills four fifths of the free memory]
    #[arg(short, long, value_name = "N", help_heading = "The problem")]
    n: Option<usize>,

    /// Number of nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "The problem")]
    nodes: usize,

    /// Cores of each node [default: those of this machine]
    #[arg(long, value_name = "COUNT", help_heading = "The problem")]
    cores: Option<usize>,

    /// Time to spend
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "20min", help_heading = "The search")]
    budget: f64,

    /// Try these block sizes and no others
    #[arg(long, value_name = "NB", value_delimiter = ',', help_heading = "The search")]
    nb: Vec<usize>,

    /// Try these process rows and no others, each with the -q at its place
    #[arg(
        short,
        long,
        value_name = "P",
        value_delimiter = ',',
        requires = "q",
        help_heading = "The search"
    )]
    p: Vec<usize>,

    /// Try these process columns and no others
    #[arg(
        short,
        long,
        value_name = "Q",
        value_delimiter = ',',
        requires = "p",
        help_heading = "The search"
    )]
    q: Vec<usize>,

    /// Try so many ranks a node and no others [default: one a NUMA node, one, one a core]
    #[arg(long, value_name = "COUNT", value_delimiter = ',', help_heading = "The search")]
    ranks_per_node: Vec<usize>,

    /// Try these BLAS libraries, too, beside the linked one
    #[arg(long, value_name = "LIBRARY", value_delimiter = ',', help_heading = "The search")]
    blas: Vec<String>,

    /// How to start a job; {ranks} stands for the number of ranks, {per_node} for those of a node
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "mpirun -np {ranks} --bind-to none",
        help_heading = "The search"
    )]
    launcher: String,

    /// Program to measure [default: this one]
    #[arg(long, value_name = "FILE", help_heading = "The search")]
    program: Option<PathBuf>,

    /// Keep what is measured in DIR, go on from it, and write the result there: HPL.dat, skt.toml, launch.sh, job.slurm,
    /// tune.svg
    #[arg(long, value_name = "DIR", help_heading = "What comes of it")]
    write: Option<PathBuf>,

    /// Forget what DIR holds of an earlier search
    #[arg(long, requires = "write", help_heading = "What comes of it")]
    new: bool,

    /// Print the result as JSON
    #[arg(long, help_heading = "What comes of it")]
    json: bool,
}

/// Why there is no result, with the exit code that says so.
struct Fault(Exit, String);

pub fn run(flags: &TuneFlags) -> ExitCode {
    match tune(flags) {
        Ok(text) => super::print(text.as_bytes()),
        Err(Fault(exit, text)) => {
            eprintln!("skt-hpl tune: {text}");
            exit.into()
        }
    }
}

/// What is kept of a search, as it goes.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    domain: Domain,
    launcher: String,
    /// The order of the matrix that was asked for; parts of a smaller one may be timed.
    n: usize,
    measured: Vec<Measured>,
    tuned: Option<Tuned>,
}

/// One measurement, and the seconds it took with all that belongs to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    candidate: Candidate,
    care: Care,
    found: Option<Found>,
    spent: f64,
    engine: String,
    /// Why nothing was found.
    why: Option<String>,
}

fn tune(flags: &TuneFlags) -> Result<String, Fault> {
    let domain = domain(flags)?;
    let wanted = wanted(flags)?;
    let program = match &flags.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(|e| {
            Fault(Exit::Environment, format!("cannot tell which program this is: {e}"))
        })?,
    };
    // Where nothing is to stay, a folder of its own.
    let own = std::env::temp_dir().join(format!("skt-hpl-tune-{}", std::process::id()));
    let result = (|| {
        let dir = flags.write.as_deref().unwrap_or(&own);
        fs::create_dir_all(dir)
            .map_err(|e| Fault(Exit::Environment, format!("cannot make {}: {e}", dir.display())))?;
        let kept = begin(flags, dir, domain, wanted)?;
        let table = Table::new(flags.budget);
        let mut jobs = Jobs::new(kept, dir, program.clone(), table);
        if wanted > jobs.kept.domain.n {
            eprintln!(
                "skt-hpl tune: N = {} stands in for N = {wanted}: what {} allows to try",
                jobs.kept.domain.n,
                show_seconds(flags.budget)
            );
        }
        let domain = jobs.kept.domain.clone();
        let tuned = search(&domain, flags.budget, &mut jobs);
        jobs.table.end();
        let _ = fs::remove_file(&jobs.trials);
        let tuned = tuned.map_err(|why| Fault(Exit::Environment, why))?;
        jobs.kept.tuned = Some(tuned.clone());
        jobs.save().map_err(|why| Fault(Exit::Environment, why))?;
        let engine = jobs.engine_of(&tuned.best);
        let json = || {
            serde_json::to_string_pretty(&tuned)
                .map(|text| text + "\n")
                .map_err(|e| Fault(Exit::Environment, format!("cannot write JSON: {e}")))
        };
        let mut text = if flags.json { json()? } else { report(&tuned, wanted, &engine) };
        if flags.write.is_some() {
            let names = write(dir, &tuned, wanted, &flags.launcher, &program, domain.nodes)?;
            if !flags.json {
                text += &format!("\nWritten to {}: {}\n", dir.display(), names.join(", "));
            }
        } else if !flags.json {
            text += &format!(
                "\nStart it with\n  {}\nand this HPL.dat (--write DIR writes all of it):\n\n{}",
                launch_text(&flags.launcher, &tuned.best, domain.nodes, &program),
                dat(&tuned, wanted)
            );
        }
        Ok(text)
    })();
    if flags.write.is_none() {
        let _ = fs::remove_dir_all(&own);
    }
    result
}

/// The order of the matrix whose parameters are looked for.
fn wanted(flags: &TuneFlags) -> Result<usize, Fault> {
    if let Some(n) = flags.n {
        return match n {
            0 => Err(Fault(Exit::Usage, "-n 0 has nothing to tune".into())),
            n => Ok(n),
        };
    }
    let memory = this_machine::memory().ok_or_else(|| {
        Fault(Exit::Environment, "this machine does not tell its memory; say -n".into())
    })?;
    Ok((0.8 * memory * flags.nodes as f64 / 8.0).sqrt() as usize)
}

/// What there is to choose from, by the flags and this machine.
fn domain(flags: &TuneFlags) -> Result<Domain, Fault> {
    let usage = |text: &str| Fault(Exit::Usage, text.into());
    let cores = flags.cores.unwrap_or_else(cores::count);
    let positive = |numbers: &[usize]| numbers.iter().all(|&number| number > 0);
    let numbers = [&flags.nb, &flags.p, &flags.q, &flags.ranks_per_node];
    if cores == 0 || flags.nodes == 0 || !numbers.iter().all(|numbers| positive(numbers)) {
        return Err(usage("numbers of cores, nodes, ranks, rows, columns and NB are 1 or more"));
    }
    if flags.p.len() != flags.q.len() {
        return Err(usage("-p and -q are as many: they belong together in pairs, as in HPL.dat"));
    }
    let grids: Vec<(usize, usize)> = flags.p.iter().copied().zip(flags.q.iter().copied()).collect();
    let memories = node_facts::here(1).make.numa_nodes.max(1) as usize;
    let mut ranks_per_node = match flags.ranks_per_node.is_empty() {
        true => layouts(cores, memories),
        false => flags.ranks_per_node.clone(),
    };
    if flags.ranks_per_node.is_empty() {
        // Grids that were asked for say how many ranks there are.
        for ranks in grids.iter().map(|(p, q)| p * q) {
            let each = ranks / flags.nodes;
            if ranks.is_multiple_of(flags.nodes) && !ranks_per_node.contains(&each) {
                ranks_per_node.push(each);
            }
        }
    }
    let (n, nbs) = (trial_size(wanted(flags)?, flags, cores), flags.nb.clone());
    let free = nbs.is_empty();
    let mut blas: Vec<Option<String>> = vec![None];
    blas.extend(flags.blas.iter().cloned().map(Some));
    Ok(Domain {
        n,
        nodes: flags.nodes,
        cores,
        ranks_per_node,
        nbs: if free { USUAL_NBS.to_vec() } else { nbs },
        nb_is_free: free,
        grids,
        blas,
    })
}

/// The order of the matrix whose parts are timed: the wanted one, or less if too few trials of that fit the budget.
fn trial_size(wanted: usize, flags: &TuneFlags, cores: usize) -> usize {
    /// Trials that a search should have time for, and the part of a run that a trial runs.
    const TRIALS: f64 = 60.0;
    const PART: f64 = 0.12;
    /// What a job takes to start, a trial's share of it.
    const START_S: f64 = 0.3;
    let peak = this_machine::peak_per_core().unwrap_or(3e10);
    let rate = 0.7 * peak * (cores * flags.nodes) as f64;
    let generating = 2e8 * (cores * flags.nodes) as f64;
    let seconds = |n: f64| PART * 2.0 / 3.0 * n.powi(3) / rate + n * n / generating + START_S;
    let mut n = wanted as f64;
    while n > 2000.0 && seconds(n) * TRIALS > flags.budget.max(1.0) {
        n *= 0.95;
    }
    if n < wanted as f64 { (n / 1000.0).ceil() as usize * 1000 } else { wanted }
}

/// A search that goes on, or a new one.
fn begin(flags: &TuneFlags, dir: &Path, domain: Domain, n: usize) -> Result<Kept, Fault> {
    let file = dir.join(KEPT);
    let fresh =
        Kept { domain, launcher: flags.launcher.clone(), n, measured: Vec::new(), tuned: None };
    if flags.new {
        return Ok(fresh);
    }
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(fresh),
        Err(error) => {
            return Err(Fault(
                Exit::Environment,
                format!("cannot read {}: {error}", file.display()),
            ));
        }
    };
    let told = |what: &str| {
        Fault(
            Exit::BadInput,
            format!(
                "{} {what}; --new begins anew, another --write leaves it alone",
                file.display()
            ),
        )
    };
    let kept: Kept =
        serde_json::from_slice(&text).map_err(|error| told(&format!("cannot be read: {error}")))?;
    let same = Kept { measured: Vec::new(), tuned: None, ..fresh };
    if (&kept.domain, &kept.launcher, kept.n) != (&same.domain, &same.launcher, same.n) {
        return Err(told("is of a search among other things"));
    }
    if !kept.measured.is_empty() {
        let spent: f64 = kept.measured.iter().map(|m| m.spent).sum();
        eprintln!(
            "skt-hpl tune: going on: {} measurements of {} are in {}",
            kept.measured.len(),
            show_seconds(spent),
            file.display()
        );
    }
    Ok(Kept { tuned: None, ..kept })
}

const KEPT: &str = "tune.json";

/// The jobs that measure.
struct Jobs {
    kept: Kept,
    file: PathBuf,
    program: PathBuf,
    trials: PathBuf,
    table: Table,
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
    fn new(kept: Kept, dir: &Path, program: PathBuf, table: Table) -> Self {
        let (file, trials) = (dir.join(KEPT), dir.join("trials.json"));
        Self { kept, file, program, trials, table, retold: HashMap::new(), spent: 0.0 }
    }

    fn save(&self) -> Result<(), String> {
        let text = serde_json::to_vec(&self.kept).expect("plain values have a JSON form");
        let aside = self.file.with_extension("json.aside");
        fs::write(&aside, text)
            .and_then(|()| fs::rename(&aside, &self.file))
            .map_err(|error| format!("cannot write {}: {error}", self.file.display()))
    }

    /// What multiplied when `candidate` was measured last.
    fn engine_of(&self, candidate: &Candidate) -> String {
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
        let words = words_of_launcher(&self.kept.launcher, batch.layout, domain.nodes);
        let (first, rest) = words.split_first().ok_or("--launcher is empty")?;
        let mut command = Command::new(first);
        command.args(rest).arg(&self.program).arg("trials").arg(&self.trials);
        command.args(["--threads", &batch.layout.threads.to_string()]);
        if let Some(blas) = &batch.layout.blas {
            command.args(["--blas", blas]);
        }
        // Open MPI refuses root without these; others ignore them.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            format!("cannot start `{first}`: {error}; say another with --launcher")
        })?;
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
        let status = child.wait().map_err(|error| format!("`{first}`: {error}"))?;
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
        let said = last_lines(&said);
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

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

fn dat(tuned: &Tuned, n: usize) -> String {
    hpl_dat(&tuned.best.test, &[n], "found by skt-hpl tune")
}

/// Writes everything that starts the best run, and the picture. The names of the files.
fn write(
    dir: &Path,
    tuned: &Tuned,
    n: usize,
    launcher: &str,
    program: &Path,
    nodes: usize,
) -> Result<Vec<&'static str>, Fault> {
    let Layout { ranks_per_node, threads, blas } = &tuned.best.layout;
    let mut settings = format!("# Found by skt-hpl tune.\nthreads = {threads}\n");
    if let Some(blas) = blas {
        settings += &format!("blas = {}\n", toml::Value::String(blas.clone()));
    }
    let launch = launch_text(launcher, &tuned.best, nodes, program);
    let script = format!(
        "#!/bin/sh\n# Starts the run that skt-hpl tune found, in this folder.\ncd \"$(dirname \"$0\")\" || exit 1\nexec {launch} \"$@\"\n"
    );
    let job = format!(
        "#!/bin/bash\n#SBATCH --job-name=hpl\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={ranks_per_node}\n\
         #SBATCH --cpus-per-task={threads}\n#SBATCH --exclusive\n#SBATCH --time=UNLIMITED\n\
         # Modules that the launcher needs go here.\ncd \"$SLURM_SUBMIT_DIR\" || exit 1\nexec {launch}\n"
    );
    let files = [
        ("HPL.dat", dat(tuned, n)),
        ("skt.toml", settings),
        ("launch.sh", script),
        ("job.slurm", job),
        ("tune.svg", picture::svg(tuned)),
    ];
    let mut names = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|e| {
            Fault(Exit::Environment, format!("cannot write {}: {e}", path.display()))
        })?;
        names.push(name);
    }
    names.push(KEPT);
    use std::os::unix::fs::PermissionsExt;
    // A script that cannot be made executable can still be started by name.
    let _ = fs::set_permissions(dir.join("launch.sh"), fs::Permissions::from_mode(0o755));
    Ok(names)
}

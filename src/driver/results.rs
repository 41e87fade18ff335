//! Output of rank 0: the results as HPL's text and as JSON, and messages about them.
//!
//! A write error does not end the run. The error is reported once, further results go to standard error, and the exit status
//! shows the error.
//!
//! If ranks may be lost, another rank may have to continue the reports. The other rank processes the earlier tests again from the
//! results in memory, but prints nothing twice.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::agreement::{Common, Engines};
use super::replacement::listed;
use crate::base::closed;
use crate::base::exit::{Exit, Refusal};
use crate::base::outcome::{Outcome, Times};
use crate::base::output_target;
use crate::base::params::TestParams;
use crate::base::terminal::say;
use crate::comm::World;
use crate::config::Loaded;
use crate::config::hpl_dat::{HplDat, Output};
use crate::config::memory_need::human;
use crate::kernels::Library;
use crate::report::Counts;
use crate::report::json::{self, Blas, JsonLog, Mpi, Threads};
use crate::report::machine::Machine;
use crate::report::text::TextReport;

/// Facts about the run for the heading and the JSON document.
pub struct About<'a> {
    pub loaded: &'a Loaded,
    pub common: &'a Common,
    pub ranks: usize,
    pub hosts: usize,
    pub machine: Machine,
}

/// Outputs of rank 0: the text of the results, and the JSON document.
pub struct Reports {
    out: Counted<Box<dyn Write>>,
    /// File to which `out` writes; `None` if the output is a stream, or if the file could not be created.
    file: Option<File>,
    /// Setting that says where `out` writes: a file or a standard stream.
    output: Output,
    text: TextReport,
    /// Text of all results so far. If the output file turns out to be incomplete at the end, this text goes to standard error.
    results: String,
    /// True if the text can no longer be written to its target.
    text_lost: bool,
    /// True if an attempt to write the JSON document has failed. The first such failure prints a message.
    document_late: bool,
    /// True if the JSON document could not be created, and the run continues without it.
    document_lost: bool,
    json: Option<JsonLog>,
    engines: Engines,
    /// Number of tests processed. Tests are processed in order.
    pub tests: usize,
}

/// Returns the refusal for an output that cannot be opened, because its path is bad or its file system is full.
fn cannot(error: &io::Error, why: String) -> Refusal {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let full = matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull);
    Refusal::new(if full { Exit::Environment } else { Exit::BadInput }, why)
}

/// Refuses the path `document` for the JSON document if the results or the messages go to the file of this path.
fn is_apart(document: &Path, output: &Output) -> Result<(), Refusal> {
    let is = |open: Option<bool>| open == Some(true);
    let what = if *output == Output::Stdout && is(output_target::is_open_as(document, io::stdout()))
    {
        "the results go to"
    } else if is(output_target::is_open_as(document, io::stderr())) {
        "messages go to"
    } else {
        return Ok(());
    };
    let document = document.display();
    let why =
        format!("--json {document} would replace the file that {what}: give --json another file");
    Err(Refusal::bad_input(why))
}

/// Turns the refusal of an output into a message if the run continues without the output (`goes_on`). Otherwise returns the
/// refusal as the error.
fn unless_it_goes_on<T>(
    made: Result<T, Refusal>,
    goes_on: bool,
) -> Result<Result<T, String>, Refusal> {
    match made {
        Err(ended) if goes_on => Ok(Err(ended.why)),
        other => other.map(Ok),
    }
}

/// Returns true if the output is a stream, so that printed output outlives the rank that printed it.
fn is_stream(output: &Output) -> bool {
    !matches!(output, Output::File(_))
}

fn why(output: &Output, error: &io::Error) -> String {
    match output {
        Output::Stdout => closed::why(error),
        _ => error.to_string(),
    }
}

/// Target of the text of the results.
struct TextOutput {
    out: Box<dyn Write>,
    /// File to which `out` writes; `None` if the output is a stream, or if the file could not be created.
    file: Option<File>,
    /// Error of an output file that could not be created, if the run continues without the file.
    lost: Option<io::Error>,
}

impl TextOutput {
    /// Opens the target of the text. `already` is true if another rank has written the heading. In this case a file that cannot
    /// be created causes no refusal.
    fn open(output: &Output, already: bool) -> Result<Self, Refusal> {
        let stream = |out| Self { out, file: None, lost: None };
        let path = match output {
            Output::Stdout => return Ok(stream(Box::new(whole(io::stdout())))),
            Output::Stderr => return Ok(stream(Box::new(whole(io::stderr())))),
            Output::File(path) => path,
        };
        match File::create(path).and_then(|f| Ok((f.try_clone()?, f))) {
            Ok((other, made)) => Ok(Self { out: Box::new(made), file: Some(other), lost: None }),
            Err(error) if already => {
                Ok(Self { out: Box::new(io::sink()), file: None, lost: Some(error) })
            }
            Err(e) => Err(cannot(&e, format!("cannot write to {}: {e}", path.display()))),
        }
    }
}

/// Returns the beginning of the JSON document. `engine` names the engines of the run.
fn document_about(about: &About, engine: &str) -> json::Run {
    let library = Library::query();
    let Common { threads, pinned, .. } = about.common;
    json::Run {
        command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        mpi: Mpi { library: World::library(), ranks: about.ranks, hosts: about.hosts },
        blas: Blas {
            name: format!("{} {}", library.name, library.version),
            kernel: library.kernel,
            engine: engine.to_owned(),
        },
        threads: Threads { fewest: threads.0, most: threads.1, pinned: pinned.name().into() },
        machine: about.machine.clone(),
        planned: about.loaded.dat.test_count() as usize,
        ..json::Run::begin()
    }
}

fn name_of(output: &Output) -> String {
    match output {
        Output::Stdout => "standard output".to_owned(),
        Output::Stderr => "standard error".to_owned(),
        Output::File(path) => path.display().to_string(),
    }
}

fn say_of_no_document(why: &str) {
    say(format_args!(
        "{why}. This rank reports in place of a lost rank, so there is no document of the run. The run will end with \
         status {}",
        Exit::Environment.code()
    ));
}

impl Reports {
    /// Opens the outputs and writes the heading. `already` is true if another rank has written the heading. In this case a stream
    /// gets only new output, and a file is written again from the beginning. A write error then does not end the run, because the
    /// path may exist only on the other rank's node.
    pub fn begin(about: About, already: bool) -> Result<Self, Refusal> {
        let (dat, settings) = (&about.loaded.dat, &about.loaded.settings);
        // Everything is checked before any file is emptied: a run that is refused must keep the results of an earlier run.
        let mut document_lost = None;
        if let Some(path) = &settings.json {
            let fits = is_apart(path, &dat.output)
                .and_then(|()| JsonLog::can_be_at(path).map_err(|e| cannot(&e, e.to_string())));
            document_lost = unless_it_goes_on(fits, already)?.err();
        }
        let TextOutput { out, file, lost } = TextOutput::open(&dat.output, already)?;
        let out = Counted { inner: out, bytes: 0, mute: already && is_stream(&dat.output) };
        let text = TextReport::new(dat.threshold, settings.timing);
        let engine = about.common.engines.told(about.loaded.tests(), |engine| engine.name().into());
        let mut json = None;
        if let (Some(path), None) = (&settings.json, &document_lost) {
            let log = JsonLog::create(path, document_about(&about, &engine));
            let log = log.map_err(|e| cannot(&e, e.to_string()));
            match unless_it_goes_on(log, already)? {
                Ok(log) => json = Some(log),
                Err(why) => document_lost = Some(why),
            }
        }
        // The heading is written in one piece, so that a reader gets all of it or nothing.
        let head = text.begin(dat, settings.rng, settings.seed, &engine);
        let mut this = Self {
            out,
            file,
            output: dat.output.clone(),
            text,
            results: String::new(),
            text_lost: false,
            document_late: false,
            document_lost: document_lost.is_some(),
            json,
            engines: about.common.engines.clone(),
            tests: 0,
        };
        if let Some(why) = document_lost {
            say_of_no_document(&why);
        }
        if let Some(error) = lost {
            this.say_of_text(&error);
        }
        if already {
            this.tell(&head);
            return Ok(this);
        }
        let written = this.out.write_all(head.as_bytes()).and_then(|()| this.out.flush());
        written.map_err(|e| {
            let why = why(&dat.output, &e);
            cannot(&e, format!("the results cannot be written to {}: {why}", name_of(&dat.output)))
        })?;
        Ok(this)
    }

    /// Processes the next test. Prints the result of the test unless another rank has printed it: `already` is the number of
    /// printed tests.
    pub fn take_in(
        &mut self,
        params: &TestParams,
        outcome: Result<&Outcome, &str>,
        timing: bool,
        already: usize,
    ) {
        let told = self.tests < already;
        let engine = self.engines.of(params).name();
        self.out.mute = told && is_stream(&self.output);
        let text = match outcome {
            Ok(outcome) => {
                if !told {
                    if timing {
                        tell_times(&outcome.times_mean);
                    }
                    tell_protection(outcome);
                    tell_checksums(outcome);
                }
                self.text.finished(params, outcome)
            }
            Err(why) => self.text.skipped(params, why),
        };
        let document =
            self.json.as_mut().map_or(Ok(()), |json| json.take_in(params, engine, outcome));
        self.tell(&text);
        self.results += &text;
        if let Err(error) = document {
            self.say_of_document(&error);
        }
        self.tests += 1;
        self.out.mute = false;
    }

    pub fn counts(&self) -> Counts {
        self.text.counts
    }

    /// Returns the number of bytes written to standard output, muted bytes included; 0 if the results go elsewhere.
    pub fn printed(&self, dat: &HplDat) -> u64 {
        if dat.output == Output::Stdout { self.out.bytes } else { 0 }
    }

    /// Ends the outputs, and waits until their files are on disk. Returns true if everything was written.
    pub fn end(&mut self) -> bool {
        self.out.mute = false;
        let text = self.text.end();
        self.tell(&text);
        if let (Some(file), false) = (&self.file, self.text_lost)
            && let Err(error) = on_disk(file)
        {
            self.say_of_text(&error);
            let _ = io::stderr().write_all((self.results.clone() + &text).as_bytes());
        }
        let mut whole = !self.text_lost && !self.document_lost;
        // The document includes all tests. After an error, the document may lack some of these tests until now.
        if let Some(Err(error)) = self.json.take().map(JsonLog::complete) {
            self.say_of_document(&error);
            whole = false;
        }
        whole
    }

    /// Writes a part of the text to its target. If the target can no longer be written, the text goes to standard error.
    fn tell(&mut self, text: &str) {
        if !self.text_lost {
            let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
            let Err(error) = written else { return };
            self.say_of_text(&error);
        }
        if !self.out.mute {
            // If standard error fails, too, there is no reader left.
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    fn say_of_text(&mut self, error: &io::Error) {
        self.text_lost = true;
        say(format_args!(
            "the results cannot be written to {}: {}. Further results go to standard error. The run will \
             end with status {}",
            name_of(&self.output),
            why(&self.output, error),
            Exit::Environment.code()
        ));
    }

    fn say_of_document(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.document_late, true) {
            say(format_args!(
                "{error}. The document is written again after each test. If writing still fails at the end, the run ends \
                 with status {}",
                Exit::Environment.code()
            ));
        }
    }
}

/// Waits until the content of a file is on disk. A pipe or /dev/null needs no wait.
fn on_disk(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Writer that counts bytes. While it is muted, it counts bytes without writing them.
pub struct Counted<W> {
    pub inner: W,
    pub bytes: u64,
    pub mute: bool,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = if self.mute { bytes.len() } else { self.inner.write(bytes)? };
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Buffers a stream, so that the heading and each result are written in one piece. If a rank dies while it prints, its successor
/// prints the whole piece again. Until then, no reader may see a part of the piece.
fn whole<W: Write>(stream: W) -> BufWriter<W> {
    BufWriter::with_capacity(1 << 16, stream)
}

/// Prints the times of a test's parts on standard error. The sum of the parts is the total time.
fn tell_times(t: &Times) {
    say(format_args!(
        "by part, mean over the ranks: panel {:.3} + broadcast {:.3} + swap {:.3} + triangle {:.3} + \
         multiply {:.3} + solve {:.3} + save {:.3} + other {:.3} = {:.3} s",
        t.rfact, t.bcast, t.laswp, t.trsm, t.gemm, t.solve, t.save, t.other, t.total
    ));
}

/// Prints the account of a protected test on standard error: attempts, saves, lost time and memory.
fn tell_protection(outcome: &Outcome) {
    let Some(p) = &outcome.protection else { return };
    let rest = outcome.seconds - p.save_s - p.lost_s - p.down_s - p.restore_s;
    say(format_args!(
        "{:.2} s in {} attempt(s){}: {rest:.2} s computing, {:.2} s in {} save(s), {:.2} s lost \
         since a save, {:.2} s down, {:.2} s restarting and restoring; at most {} of shared memory in a \
         rank{}",
        outcome.seconds,
        p.attempts,
        in_place(p.in_place),
        p.save_s,
        p.saves,
        p.lost_s,
        p.down_s,
        p.restore_s,
        human(u128::from(p.memory_bytes_max)),
        match p.group_min {
            1 => String::new(),
            members => format!(", groups of {members} or more"),
        }
    ));
    let Some(level2) = &p.level2 else { return };
    let from = match level2.fetched {
        0 => String::new(),
        times => format!("; the run resumed from storage {times} time(s)"),
    };
    let how = if level2.alone {
        ", while the ranks waited".to_owned()
    } else if level2.waited {
        format!(", for which the ranks waited {:.2} s", level2.wait_s)
    } else {
        format!(
            " during the computation; {} save(s) in memory delayed by {:.2} s in total; {:.2} s waiting for \
             storage at stops of the run",
            level2.put_off, level2.put_off_s, level2.wait_s
        )
    };
    say(format_args!(
        "on storage{}: {} checkpoint(s), {}, written in {:.2} s{how}{from}",
        if level2.alone { ", which has all checkpoints" } else { "" },
        level2.checkpoints,
        human(u128::from(level2.bytes)),
        level2.write_s
    ));
}

/// Prints, on standard error, the memory of checksum columns in a test, and the time of recoveries with checksums.
fn tell_checksums(outcome: &Outcome) {
    let Some(c) = &outcome.checksums else { return };
    let (matrix, sums) = (u128::from(c.matrix_bytes), u128::from(c.checksum_bytes));
    let share = 100.0 * matrix as f64 / (matrix + sums).max(1) as f64;
    let losses = match c.losses {
        0 => "no rank was lost".to_owned(),
        losses => {
            let whose = listed(c.replaced.iter().map(|replaced| replaced.column));
            let whose = match c.replaced.len() {
                0 => String::new(),
                1 => format!("the checksums took the place of process column {whose}, "),
                _ => format!("the checksums took the place of process columns {whose}, "),
            };
            let renewed = match c.renewed_at.len() {
                0 => String::new(),
                count => format!(", {:.3} s making {count} column(s) of new checksums", c.renew_s),
            };
            format!(
                "{losses} loss(es) recovered in place: {whose}{:.3} s from notice to computing, {:.3} s recomputing U{renewed}",
                c.going_on_s, c.recompute_s
            )
        }
    };
    say(format_args!(
        "{} of matrix and {} of checksums: {share:.1} % of that memory for the matrix; {losses}",
        human(matrix),
        human(sums)
    ));
}

fn in_place(times: u32) -> String {
    match times {
        0 => String::new(),
        times => format!(", {times} of them in place after the loss of a rank"),
    }
}

//! `cargo bench --bench speed -- --help`: the speed of skt-hpl on this machine, compared with the peak and, if available, with
//! the reference. benches/NOTEBOOK.md explains each figure.
//!
//! All quantities are measured in turn, and the turn is repeated. A machine that becomes slower or faster meanwhile affects all
//! of them.

// Cargo also compiles a benchmark as a test, although it has its own `main`. Its `cfg(test)` parts are unused then;
// tests/bench_parts.rs runs them.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod cases;
mod device;
mod job;
mod kernels;
mod limit;
mod panel;
mod race;
mod stats;
mod table;
mod tile;
mod usual;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use skt_hpl::base::cores;
use skt_hpl::comm::World;
use skt_hpl::kernels::Library;
use skt_hpl::kernels::preflight;
use skt_hpl::kernels::processor::Level;
use skt_hpl::shm::room;

use cases::{Case, Flags};
use job::{Launcher, Mpi, Who};
use kernels::Multiplication;
use table::{Document, Machine, Measured};

fn main() -> ExitCode {
    // The preflight must come before any thread, since it may execute this program again with the library's variable set. It must
    // also come before the arguments are read. To try kernels of the library, it may start this program with its own arguments.
    let blas = preflight::run(true);
    let flags = Flags::parse();
    match measure(&flags, blas) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("speed: {failures} runs failed, see above");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("speed: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The HPL programs to be measured: kind and path of each.
struct Programs(Vec<(Who, PathBuf)>);

impl Programs {
    fn find(flags: &Flags) -> Result<Self, String> {
        let mut programs = vec![(Who::SktHpl, flags.usual.skt_hpl.clone())];
        for (who, variable) in [(Who::Reference, "XHPL"), (Who::Plain, "XHPL_PLAIN")] {
            if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
                programs.push((who, PathBuf::from(path)));
            }
        }
        for (_, path) in &mut programs {
            *path = job::found(path)?;
        }
        Ok(Self(programs))
    }

    fn name(&self, who: Who) -> Option<String> {
        let (_, path) = self.0.iter().find(|(w, _)| *w == who)?;
        Some(path.display().to_string())
    }
}

/// Measures all cases. Returns the number of failed runs.
fn measure(flags: &Flags, blas: String) -> Result<usize, String> {
    let cores = cores::count();
    let cases = flags.cases(cores)?;
    if flags.panel {
        return panel::run(flags, &cases).map(|()| 0);
    }
    if flags.tile {
        return tile::run(flags).map(|()| 0);
    }
    let programs = Programs::find(flags)?;
    let mpi_library = World::library();
    let mpi = Mpi::of_library(&mpi_library);
    let variable = Library::query().variable;
    let launcher = Launcher {
        program: flags.mpirun.clone().unwrap_or_else(|| mpi.launcher().into()),
        mpi,
        cores,
        level: Level::detect(),
        linked: (variable, std::env::var(variable).ok()),
        engine: flags.engine,
        device: flags.device,
    };
    if let Some(kind) = flags.device {
        return device::run(kind, flags, &cases, &launcher, &programs.0[0].1).map(|()| 0);
    }
    if flags.race {
        return race::run(flags, &launcher, &cases, &blas);
    }
    if flags.dry_run {
        for case in &cases {
            for (who, path) in &programs.0 {
                println!("{:?}", launcher.command(*who, path, case));
            }
        }
        return Ok(0);
    }
    let side = kernels::side(room::available_bytes());
    let mut document = Document {
        schema_version: 1,
        command_line: std::env::args().collect(),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        repeat: flags.repeat,
        machine: Machine {
            processor: table::processor(),
            cores,
            blas,
            mpi: mpi_library,
            multiplication_side: side,
            reference: programs.name(Who::Reference),
            plain: programs.name(Who::Plain),
        },
        cases: Vec::new(),
    };
    println!("{}", introduction(&document));
    for case in cases {
        let measured = measure_case(flags.repeat, case, &launcher, &programs, side)?;
        document.cases.push(measured);
        if let Some(path) = &flags.usual.json {
            // The file is written after each case, so that an interruption loses only the current case.
            let mut text = serde_json::to_string_pretty(&document).map_err(|e| e.to_string())?;
            text.push('\n');
            std::fs::write(path, text)
                .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
    }
    println!("\n{}", table::markdown(&document.cases));
    Ok(document.cases.iter().map(|case| case.failures.len()).sum())
}

fn measure_case(
    repeat: usize,
    case: Case,
    launcher: &Launcher,
    programs: &Programs,
    side: usize,
) -> Result<Measured, String> {
    let threads = case.cores_used(launcher.cores);
    let engine = kernels::fastest(launcher.engine, case.nb, threads)?;
    let mut measured = Measured::new(case, threads, engine.name());
    for round in 1..=repeat {
        measured.peak.add(kernels::peak(threads, launcher.level));
        {
            // The memory is freed before the programs run, which need it.
            let mut multiplication = Multiplication::new(side, case.nb, engine)
                .map_err(|e| format!("no memory for a multiplication: {e}"))?;
            measured.dgemm.add(multiplication.library(threads));
            measured.engine.add(multiplication.engine(engine, threads));
        }
        for (who, path) in &programs.0 {
            let samples = match who {
                Who::SktHpl => &mut measured.skt_hpl,
                Who::Reference => &mut measured.reference,
                Who::Plain => &mut measured.plain,
            };
            match launcher.run(*who, path, &case) {
                // If a run has several solutions, the median counts.
                Ok(rates) => stats::median(&rates).into_iter().for_each(|rate| samples.add(rate)),
                Err(why) => {
                    eprintln!("speed: {who:?} at N = {}: {why}", case.n);
                    measured.failures.push(format!("{who:?}: {why}"));
                }
            }
        }
        let last = |samples: &table::Samples| match samples.samples.last() {
            Some(rate) => format!("{rate:.1}"),
            None => "-".into(),
        };
        eprintln!(
            "N {} NB {} {}x{} threads {}, {round} of {repeat}: peak {}, DGEMM {}, {} {}, \
             skt-hpl {}, reference {}, plain {}",
            case.n,
            case.nb,
            case.p,
            case.q,
            case.threads,
            last(&measured.peak),
            last(&measured.dgemm),
            measured.engine_name,
            last(&measured.engine),
            last(&measured.skt_hpl),
            last(&measured.reference),
            last(&measured.plain),
        );
    }
    measured.relate();
    Ok(measured)
}

fn introduction(document: &Document) -> String {
    let machine = &document.machine;
    let or_none = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".into());
    format!(
        "processor: {}, {} cores\nBLAS: {}\nMPI: {}\nmultiplications: m = n = {}, k = NB\n\
         reference (XHPL): {}\nplain reference (XHPL_PLAIN): {}\nmedians of {}, in Gflop/s",
        machine.processor,
        machine.cores,
        machine.blas,
        machine.mpi,
        machine.multiplication_side,
        or_none(&machine.reference),
        or_none(&machine.plain),
        document.repeat,
    )
}

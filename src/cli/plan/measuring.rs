//! Rates that a plan begins from: those of earlier runs, read from their results, or of some short ones that are started here.

use std::path::{Path, PathBuf};

use super::flags::PlanFlags;
use crate::cli::exit::{Exit, Refusal};
use crate::cli::launchers::usual_words;
use crate::cli::template;
use crate::model::fit::{Sample, best_of_each, read};
use crate::model::hpl_dat::hpl_dat;
use crate::model::planner::{self, Inputs, calibration_sizes, test_params};
use crate::units::show_seconds;
use crate::whole;

/// The half-rate order to assume when only one size was measured.
pub(super) fn guessed_half(inputs: &Inputs) -> Option<f64> {
    let quick = Inputs { simulate: 0, limit: None, n: None, ..inputs.clone() };
    planner::plan(&quick).ok().map(|a| a.plan.rate.n_half)
}

pub(super) fn samples_of(files: &[PathBuf]) -> Result<Vec<Sample>, Refusal> {
    let mut samples = Vec::new();
    for file in files {
        let bytes = whole::bytes(file)
            .map_err(|e| Refusal(Exit::BadInput, format!("cannot read {}: {e}", file.display())))?;
        let found = read(&String::from_utf8_lossy(&bytes));
        if found.is_empty() {
            return Err(Refusal(
                Exit::BadInput,
                format!(
                    "{} holds no result, or failed ones alone: neither lines such as `WR11C2R4 12000 192 1 2 5.58 2.0645e+02` nor \
                     JSON with seconds and gflops",
                    file.display()
                ),
            ));
        }
        samples.extend(found);
    }
    Ok(samples)
}

/// Three short runs of the benchmark itself.
pub(super) fn calibrate(
    flags: &PlanFlags,
    inputs: &Inputs,
    time: f64,
) -> Result<Vec<Sample>, Refusal> {
    let environment = |text: String| Refusal(Exit::Environment, text);
    // The plan without any measurement says what fits and, roughly, how fast this may be.
    let rough =
        planner::plan(&Inputs { simulate: 0, limit: None, n: None, ..inputs.clone() })?.plan;
    let nb = inputs.nb.unwrap_or(192.min(rough.shape.nb));
    let sizes = calibration_sizes(&rough.rate, nb, rough.shape.n, time / REPEATS as f64)?;
    let sizes: Vec<usize> = sizes.into_iter().map(|n| n as usize).collect();
    let sizes = sizes.repeat(REPEATS);
    let mut test = test_params(&rough);
    test.nb = nb as usize;
    test.threshold = -1.0;
    let dir = own_folder().map_err(environment)?;
    let result = calibrate_in(flags, inputs, &dir, &hpl_dat(&test, &sizes, "calibration"));
    // Nothing else is in it; if it cannot be removed the measurement is good all the same.
    let _ = std::fs::remove_dir_all(&dir);
    let samples = best_of_each(&result?);
    if samples.is_empty() {
        return Err(environment(
            "the calibration printed no result; run it by hand to see why".into(),
        ));
    }
    Ok(samples)
}

/// A folder for the measurement: here, which ranks on other nodes see as well; for temporary files where nothing can be made
/// here.
fn own_folder() -> Result<PathBuf, String> {
    let name = format!("skt-hpl-calibrate-{}", std::process::id());
    let here = std::env::current_dir().map_err(|e| e.to_string())?.join(&name);
    if std::fs::create_dir(&here).is_ok() {
        return Ok(here);
    }
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    Ok(dir)
}

/// How often each size is measured: one slow run of the smallest would tilt the fit, so the fastest of each counts.
const REPEATS: usize = 3;

fn calibrate_in(
    flags: &PlanFlags,
    inputs: &Inputs,
    dir: &Path,
    dat: &str,
) -> Result<Vec<Sample>, Refusal> {
    let environment = |text: String| Refusal(Exit::Environment, text);
    let file = dir.join("HPL.dat");
    std::fs::write(&file, dat)
        .map_err(|e| environment(format!("cannot write {}: {e}", file.display())))?;
    let program = flags.program.clone().map_or_else(template::own_program, Ok)?;
    let ranks = inputs.nodes * inputs.ranks_per_node;
    let launcher =
        flags.launch_command.clone().unwrap_or_else(|| usual_words(inputs.nodes as usize));
    let threads = inputs.threads_per_rank();
    let each = inputs.ranks_per_node as usize;
    let words = template::words(&launcher, ranks as usize, each, threads as usize);
    tell!("skt-hpl plan: measuring for about {}", show_seconds(flags.calibrate.unwrap_or(0.0)));
    let mut command = template::command(&words, &program, threads as usize)?;
    command.arg("--dat").arg(&file).args(["--threads", &threads.to_string()]).current_dir(dir);
    let output = command.output().map_err(|error| template::cannot_start(&command, &error))?;
    if !output.status.success() {
        let said = template::last_lines(&String::from_utf8_lossy(&output.stderr));
        return Err(environment(format!("the calibration failed ({}):\n{said}", output.status)));
    }
    Ok(read(&String::from_utf8_lossy(&output.stdout)))
}

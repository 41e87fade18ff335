//! Rates from which a plan begins. They are read from results of earlier runs, or measured in short runs that are started here.

use std::path::PathBuf;
use std::time::Duration;

use super::flags::OutputFlags;
use crate::base::exit::Refusal;
use crate::base::params::TestParams;
use crate::base::units::show_seconds;
use crate::cli::launchers::usual_words;
use crate::cli::model::read_all;
use crate::cli::running_job::{Next, RunningJob, TIMEOUT};
use crate::cli::template;
use crate::model::fit::{Sample, best_of_each, read};
use crate::model::planner::{self, Inputs, calibration_sizes, test_params};
use crate::supervise::signals::{asked_by_signal, listen_no_more, listen_to_signals};

/// Returns the order at which half of the full rate is assumed, if only one size was measured on `ranks` ranks of `threads`
/// threads. The order is the guess for the planned machine, scaled to the measured ranks. The plan scales the fit back, by
/// [`RateModel::scaled`](crate::model::fit::RateModel::scaled). None if no plan can be made.
pub(super) fn guessed_half(inputs: &Inputs, ranks: u64, threads: u64) -> Option<f64> {
    let quick = Inputs { simulate: 0, limit: None, n: None, ..inputs.clone() };
    let planned = planner::plan(&quick).ok()?.plan;
    // The threads of a rank do not matter if a device computes.
    let each = inputs.devices.map_or(inputs.threads_per_rank(), |_| threads);
    let all = inputs.nodes * inputs.ranks_per_node * each;
    planned.rate.scaled(all, ranks.saturating_mul(threads)).ok().map(|rate| rate.n_half)
}

pub(super) fn samples_of(files: &[PathBuf]) -> Result<Vec<Sample>, Refusal> {
    let lacking = "contains no result that passed: neither lines such as `WR11C2R4 12000 192 1 2 5.58 2.0645e+02` nor JSON with \
                   seconds and gflops";
    read_all(files, read, lacking)
}

/// Measures the rate of the benchmark itself, in short runs that take about `time` seconds in all.
pub(super) fn calibrate(
    output: &OutputFlags,
    inputs: &Inputs,
    time: f64,
) -> Result<Vec<Sample>, Refusal> {
    // A plan without measurements gives the sizes that fit and, roughly, the rate.
    let rough =
        planner::plan(&Inputs { simulate: 0, limit: None, n: None, ..inputs.clone() })?.plan;
    let nb = rough.shape.nb;
    let sizes = calibration_sizes(&rough.rate, nb, rough.shape.n, time / REPEATS as f64)?;
    let sizes: Vec<usize> = sizes.into_iter().map(|n| n as usize).collect();
    let sizes = sizes.repeat(REPEATS);
    let mut test = test_params(&rough);
    test.nb = nb as usize;
    test.threshold = -1.0;
    // While the job runs, a signal must end the job. After the job, signals have their usual effect.
    listen_to_signals().map_err(Refusal::environment)?;
    let result = runs(output, inputs, time, &test, &sizes);
    listen_no_more().map_err(Refusal::environment)?;
    if asked_by_signal() {
        return Err(Refusal::environment("interrupted by a signal; the calibration was ended"));
    }
    let samples = best_of_each(&result?);
    if samples.is_empty() {
        return Err(Refusal::environment(
            "the job of the calibration printed no result; start skt-hpl by hand with the same launcher to see why",
        ));
    }
    Ok(samples)
}

/// Number of measurements of each size. Only the fastest measurement counts: one slow run of the smallest size would spoil the
/// fit.
const REPEATS: usize = 3;

/// Runs a test at several sizes, in one job of about `time` seconds, and returns the results.
fn runs(
    output: &OutputFlags,
    inputs: &Inputs,
    time: f64,
    test: &TestParams,
    sizes: &[usize],
) -> Result<Vec<Sample>, Refusal> {
    let program = output.program.clone().map_or_else(template::own_program, Ok)?;
    let ranks = inputs.nodes * inputs.ranks_per_node;
    let launcher =
        output.launch_command.clone().unwrap_or_else(|| usual_words(inputs.nodes as usize));
    let threads = inputs.threads_per_rank();
    let each = inputs.ranks_per_node as usize;
    let words = template::words(&launcher, ranks as usize, each, threads as usize);
    tell!("skt-hpl plan: measuring for about {}", show_seconds(time));
    let mut command = template::command(&words, &program, threads as usize)?;
    template::run_this(&mut command, test, sizes);
    command.args(["--threads", &threads.to_string()]);
    if inputs.devices.is_some() {
        command.args(["--device", "cuda"]);
    }
    let mut job = RunningJob::start(&mut command).map_err(Refusal::environment)?;
    let failed = |how: String, job: RunningJob| {
        let said = template::last_lines(&job.troubles());
        Err(Refusal::environment(format!("the calibration failed ({how}):\n{said}")))
    };
    // The timeout is at least twenty times the expected time of all runs.
    let timeout = TIMEOUT + Duration::try_from_secs_f64(20.0 * time).unwrap_or(TIMEOUT);
    let unheard = || format!("the job printed nothing for {} s and was ended", timeout.as_secs());
    let mut said = String::new();
    loop {
        match job.next(timeout).map_err(Refusal::environment)? {
            Next::Line(line) => said = said + &line + "\n",
            Next::End => break,
            Next::Timeout => return failed(unheard(), job),
        }
    }
    match job.ended(timeout).map_err(Refusal::environment)? {
        Some(status) if status.success() => Ok(read(&said)),
        Some(status) => failed(status.to_string(), job),
        None => failed(unheard(), job),
    }
}

//! `skt-hpl plan`: plans a run for a machine, and prints the expected times.
//!
//! The planner itself is `model::planner`, which is pure. This folder has the planner's inputs (`flags`), measured rates
//! (`measuring`), and the plan as text (`text`) and as files (`written`).

mod flags;
mod measuring;
mod text;
mod written;

use std::fmt::Write as _;
use std::process::ExitCode;

pub use self::flags::PlanFlags;
use self::flags::{OutputFlags, copy_bandwidth, inputs, layout};
use self::measuring::{calibrate, guessed_half, samples_of};
use self::text::describe;
use self::written::{start, write_files};
use super::{json_flag, this_machine};
use crate::base::exit::Refusal;
use crate::base::topology::Layout;
use crate::base::units::counted;
use crate::model::fit::{Sample, best_of_each, fit};
use crate::model::planner::{self, Inputs, Measured};

pub fn run(flags: &PlanFlags) -> ExitCode {
    super::print_or_refuse("plan", answer(flags))
}

fn answer(flags: &PlanFlags) -> Result<String, Refusal> {
    let output = &flags.output;
    if output.show_ranks {
        let Layout { ranks, threads } = layout(&flags.machine);
        let (ranks, threads) = (counted(ranks, "rank"), counted(threads, "thread"));
        return Ok(format!("{ranks} a node, {threads} a rank\n"));
    }
    if output.free_memory {
        let free = this_machine::memory("")?;
        return Ok(format!("{:.0} KiB\n", (free / 1024.0).floor()));
    }
    json_flag::ready(&output.json, &output.results)?;
    let mut warnings = Vec::new();
    let mut inputs = inputs(flags, &mut warnings)?;
    let samples = if !output.results.is_empty() {
        read_results(output, &mut inputs, &mut warnings)?
    } else if let Some(time) = output.calibrate {
        let samples = calibrate(output, &inputs, time)?;
        if inputs.copy.is_none() {
            inputs.copy = copy_bandwidth(&flags.machine, inputs.cores);
            if let Some(copy) = inputs.copy {
                warnings.push(format!("copying runs at {:.1} GB/s: measured here", copy / 1e9));
            }
        }
        // Dedicated ranks, which hold only parity, contributed nothing to the rate, so they do not count.
        let (ranks, threads) = (samples[0].ranks(), inputs.threads_per_rank());
        let fit = fit(&samples, guessed_half(&inputs, ranks, threads))?;
        inputs.measured = Some(Measured { fit, ranks, threads });
        samples
    } else {
        Vec::new()
    };
    let mut advice = planner::plan(&inputs)?;
    warnings.append(&mut advice.warnings);
    advice.warnings = warnings;
    let mut text = json_flag::answer(&output.json, &advice, || {
        let measured = inputs.measured.as_ref().map(|m| (&m.fit, samples.as_slice()));
        describe(&inputs, &advice, measured)
    })?;
    if let Some(dir) = &output.write {
        write_files(dir, &inputs, &advice, output.force)?;
        if !json_flag::instead(&output.json) {
            let _ = writeln!(
                text,
                "\nWritten: {} and {}\n{}",
                dir.join("HPL.dat").display(),
                dir.join("skt.toml").display(),
                start(&inputs, &advice.plan)
            );
        }
    }
    Ok(text)
}

/// Fits the rate to results of earlier runs, and stores the fit in `inputs`. Returns the results that the fit uses.
fn read_results(
    output: &OutputFlags,
    inputs: &mut Inputs,
    warnings: &mut Vec<String>,
) -> Result<Vec<Sample>, Refusal> {
    let all = samples_of(&output.results)?;
    let samples = best_of_each(&all);
    if samples.len() < all.len() {
        warnings.push(format!(
            "of {} results only {} are used: for each N, the fastest result among those with the most ranks",
            all.len(),
            samples.len()
        ));
    }
    let planned = inputs.threads_per_rank();
    let threads = output.results_threads.or(samples[0].threads).unwrap_or_else(|| {
        if planned > 1 {
            warnings.push(format!(
                "the results do not contain the number of threads of a rank: {planned} are assumed, as in the plan; \
                 --results-threads sets another number"
            ));
        }
        planned
    });
    let ranks = output.results_ranks.unwrap_or_else(|| samples[0].ranks());
    let fit = fit(&samples, guessed_half(inputs, ranks, threads))?;
    inputs.measured = Some(Measured { fit, ranks, threads });
    Ok(samples)
}

//! `skt-hpl plan`: a run for a machine, and the times to expect.
//!
//! The planning itself is in `model::planner`, which is pure. Here are its inputs (`flags`), the rate that it may begin from
//! (`measuring`), and its answer in words (`text`) and as files (`written`).

mod flags;
mod measuring;
mod text;
mod written;

use std::fmt::Write as _;
use std::process::ExitCode;

pub use self::flags::PlanFlags;
use self::flags::{copy_bandwidth, inputs, layout};
use self::measuring::{calibrate, guessed_half, samples_of};
use self::text::describe;
use self::written::{start, write_files};
use super::{json_flag, this_machine};
use crate::base::exit::Refusal;
use crate::base::topology::Layout;
use crate::model::fit::{best_of_each, fit};
use crate::model::planner::{self, Measured};

pub fn run(flags: &PlanFlags) -> ExitCode {
    super::print_or_refuse("plan", answer(flags))
}

fn answer(flags: &PlanFlags) -> Result<String, Refusal> {
    if flags.layout {
        let Layout { ranks, threads } = layout(flags);
        let s = |n| if n == 1 { "" } else { "s" };
        return Ok(format!(
            "{ranks} rank{} a node, {threads} thread{} a rank\n",
            s(ranks),
            s(threads)
        ));
    }
    if flags.free_memory {
        let free = this_machine::memory().ok_or_else(|| {
            Refusal(super::Exit::Environment, "this machine does not tell its memory".into())
        })?;
        return Ok(format!("{:.0} KiB\n", (free / 1024.0).floor()));
    }
    json_flag::ready(&flags.json, &flags.results)?;
    let mut warnings = Vec::new();
    let mut inputs = inputs(flags, &mut warnings)?;
    let planned = inputs.threads_per_rank();
    let mut fitted = None;
    if !flags.results.is_empty() {
        let all = samples_of(&flags.results)?;
        let samples = best_of_each(&all);
        if samples.len() < all.len() {
            warnings.push(format!(
                "of {} results only {} are used: those on most ranks, of each N the fastest",
                all.len(),
                samples.len()
            ));
        }
        let threads = flags.results_threads.or(samples[0].threads).unwrap_or_else(|| {
            if planned > 1 {
                warnings.push(format!(
                    "the results do not tell how many threads a rank had: {planned}, as planned, are counted with \
                     (--results-threads)"
                ));
            }
            planned
        });
        let ranks = flags.results_ranks.unwrap_or_else(|| samples[0].ranks());
        let half = guessed_half(&inputs, ranks, threads);
        fitted = Some((fit(&samples, half)?, (ranks, threads), samples));
    } else if let Some(time) = flags.calibrate {
        let samples = calibrate(flags, &inputs, time)?;
        if inputs.copy.is_none() {
            inputs.copy = copy_bandwidth(flags, inputs.cores);
            if let Some(copy) = inputs.copy {
                warnings.push(format!("copying runs at {:.1} GB/s: measured here", copy / 1e9));
            }
        }
        // Ranks that keep checksums alone had no part in the rate.
        let on = (samples[0].ranks(), planned);
        fitted = Some((fit(&samples, guessed_half(&inputs, on.0, on.1))?, on, samples));
    }
    if let Some((fit, (ranks, threads), _)) = &fitted {
        inputs.measured = Some(Measured { fit: *fit, ranks: *ranks, threads: *threads });
    }
    let mut advice = planner::plan(&inputs)?;
    warnings.append(&mut advice.warnings);
    advice.warnings = warnings;
    let mut text = json_flag::answer(&flags.json, &advice, || {
        let measured = fitted.as_ref().map(|(f, _, s)| (f, s.as_slice()));
        describe(&inputs, &advice, measured)
    })?;
    if let Some(dir) = &flags.write {
        write_files(dir, &inputs, &advice, flags.force)?;
        if !json_flag::instead(&flags.json) {
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

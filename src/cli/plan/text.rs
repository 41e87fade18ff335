//! A plan as text: the measured rates, the plan itself, the alternatives, and the warnings.

use std::fmt::Write as _;

use crate::base::units::{counted, show_bytes, show_flops, show_seconds};
use crate::checkpoint::layout::ParityLayout;
use crate::cli::model::fit_words;
use crate::model::fit::{Fit, Sample};
use crate::model::memory::Method;
use crate::model::nonstop::Columns;
use crate::model::planner::{
    Advice, Comparison, Helpers, Inputs, Plan, Storing, columns_of_checksums, node_hours,
};

fn percent(x: f64) -> String {
    if x < 1.0 && x > 0.999 {
        // 99.9996 % must not become 100 %. The text has a digit for each nine, and is cut off, not rounded.
        let nines = (-(1.0 - x).log10()).floor().clamp(3.0, 9.0);
        let scale = 10f64.powf(nines - 1.0);
        format!("{:.*} %", nines as usize - 1, (100.0 * x * scale).floor() / scale)
    } else {
        format!("{:.1} %", 100.0 * x)
    }
}

fn protection(plan: &Plan) -> String {
    match plan.protection.method {
        Method::None => "none".into(),
        Method::Abft => format!(
            "{} of {} ranks with checksums, which survive{} the loss of {}{}",
            Columns::told(plan.protection.checksum_columns),
            plan.shape.p,
            if plan.protection.checksum_columns == 1 { "s" } else { "" },
            Columns::borne(plan.protection.checksum_columns),
            match plan.protection.spare_ranks {
                0 => String::new(),
                1 => "; a spare rank waits to rebuild checksums".to_owned(),
                waiting => format!("; {waiting} spare ranks wait to rebuild checksums"),
            }
        ),
        Method::Disk => {
            format!(
                "saves the {} of the matrix to disk, nothing to memory",
                plan.protection.scope.name()
            )
        }
        m => format!(
            "{}-checkpoint of the {}, {}groups of {} that survive {} loss{} each",
            m.name(),
            plan.protection.scope.name(),
            match plan.protection.parity_layout {
                ParityLayout::Striped => String::new(),
                ParityLayout::Grid => "rows or columns of the grid as ".into(),
                ParityLayout::Localised => "localised parity, ".into(),
                ParityLayout::Dedicated => {
                    let computing = plan.shape.p * plan.shape.q;
                    format!(
                        "parity on the ranks after the {computing} that compute; counting these ranks, "
                    )
                }
            },
            plan.protection.group,
            plan.protection.losses,
            if plan.protection.losses == 1 { "" } else { "es" }
        ),
    }
}

/// Returns the share of the memory of all nodes, or of all devices, that the matrix takes.
fn matrix_share(plan: &Plan, ranks_per_node: u64) -> f64 {
    let computing = match plan.protection.parity_layout {
        ParityLayout::Dedicated => (plan.shape.p * plan.shape.q) as f64 / plan.ranks as f64,
        _ => 1.0,
    };
    let room = plan.device_budget.unwrap_or(plan.node_budget / ranks_per_node as f64);
    computing * plan.rank.matrix / room
}

/// Describes the work of helpers in a save, and whether a core should be kept free for the helpers.
fn by_helpers(helpers: &Helpers, cores: u64) -> String {
    let even = show_seconds(helpers.break_even);
    format!(
        "encode the matrix in {} during the computation; the computation stops for {} to copy the matrix; keeping one of the {cores} \
         cores of each node free for helpers (--helper-cores) shortens the run {}",
        show_seconds(helpers.encode),
        show_seconds(helpers.copy),
        match helpers.core_pays {
            Some(true) => format!("here, and wherever saves are less than {even} apart"),
            Some(false) => format!("where saves are less than {even} apart, so not here"),
            None => format!("where saves are less than {even} apart"),
        }
    )
}

/// Describes the cost of writing checkpoints to storage, for each kind of writer, and whether a core should be kept free.
fn on_storage(storing: &Storing, cores: u64) -> Vec<String> {
    let even = show_seconds(storing.break_even);
    vec![
        format!(
            "{} every {}, written in {}",
            show_bytes(storing.bytes),
            show_seconds(storing.every),
            show_seconds(storing.write)
        ),
        format!(
            "cost if further threads write: at most {} of the cores' time; none if a core is idle",
            percent(storing.threads)
        ),
        format!(
            "cost if ranks wait (--helpers off): {} of the time between these checkpoints",
            percent(storing.waiting)
        ),
        format!(
            "cost if one of the {cores} cores of each node is kept free (--helper-cores): {}; {}",
            percent(storing.kept_free),
            match storing.core_pays {
                Some(true) => format!("less than if ranks wait, as at all intervals up to {even}"),
                Some(false) =>
                    format!("less than if ranks wait only at intervals up to {even}, so not here"),
                None => "this run ends before the first checkpoint on storage".to_owned(),
            }
        ),
    ]
}

/// Describes the rates of a run with restarts, with recovery in place and with checksum columns. Names the share of process
/// failures from which on a run with checksum columns is the fastest.
fn without_restart(c: &Comparison) -> String {
    let mut t = format!(
        "\nWithout a restart ({:.0} % of the failures end a process and leave its node)\n",
        100.0 * c.process_share
    );
    let checksums = columns_of_checksums(c.checksum_columns);
    let ways = [
        ("self-checkpoint, restarts", c.restart),
        ("self-checkpoint, in place", c.in_place),
        (checksums.as_str(), c.abft),
    ];
    for (what, rate) in ways {
        let told = rate.map_or("never, or not possible".into(), show_flops);
        let _ = writeln!(t, "  {what:<28} {told:>16} expected");
    }
    // Recovery in place is never slower than a restart. If recovery in place gains nothing, a restart is simpler.
    let gains = |a: Option<f64>, b: Option<f64>| a.unwrap_or(0.0) > 1.001 * b.unwrap_or(0.0);
    if [c.restart, c.in_place, c.abft] == [None; 3] {
        return t;
    }
    let best = if gains(c.abft, c.in_place) {
        "Checksums are"
    } else if gains(c.in_place, c.restart) {
        "Self-checkpoint in place is"
    } else {
        "Recovery in place gains less than 0.1 %, so self-checkpoint with restarts is"
    };
    let _ = writeln!(t, "  {best} better here.");
    let _ = match c.abft_from {
        Some(0.0) => {
            writeln!(
                t,
                "  Checksums are faster at these sizes even if all failures are failures of whole nodes."
            )
        }
        Some(share) => writeln!(
            t,
            "  Checksums are faster at these sizes if at least {:.0} % of the failures end a process and leave its node.",
            100.0 * share
        ),
        None => writeln!(
            t,
            "  Checksums are not faster at these sizes even if all failures end a process and leave its node."
        ),
    };
    t
}

/// Rows of the plan's table, each with a name and a text. The name is empty if the row belongs to the row above.
type Rows = Vec<(&'static str, String)>;

/// Describes the whole plan. `measured` has the fit of the measured rates, and the measured runs; None if nothing was measured.
pub(super) fn describe(
    inputs: &Inputs,
    advice: &Advice,
    measured: Option<(&Fit, &[Sample])>,
) -> String {
    let plan = &advice.plan;
    let mut t = format!(
        "{} with {} and {} each; {} a node, {} a rank\n",
        counted(inputs.nodes as usize, "node"),
        show_bytes(inputs.memory),
        counted(inputs.cores as usize, "core"),
        counted(inputs.ranks_per_node as usize, "rank"),
        counted(plan.threads_per_rank as usize, "thread"),
    );
    if let Some((fit, samples)) = measured {
        t += &measurements(fit, samples);
    }
    t += "\nThe plan\n";
    let shape = plan.shape;
    let mut rows = vec![
        ("problem", format!("N = {}, NB = {}", shape.n, shape.nb)),
        ("grid", format!("{} x {}, row-major, lookahead {}", shape.p, shape.q, shape.depth)),
        ("protection", protection(plan)),
    ];
    rows.extend(memory(plan, inputs.ranks_per_node));
    rows.extend(saves(plan, inputs.cores));
    rows.extend(times(plan));
    rows.extend(failures(inputs, advice));
    rows.push(("cost", format!("{:.1} node hours", node_hours(plan, inputs.nodes))));
    for (name, text) in rows {
        let _ = writeln!(t, "  {name:<12} {text}");
    }
    t += &alternatives(inputs, advice);
    if let Some(comparison) = &advice.without_restart {
        t += &without_restart(comparison);
    }
    if !advice.warnings.is_empty() {
        t += "\nWarnings\n";
        for w in &advice.warnings {
            let _ = writeln!(t, "  - {w}");
        }
    }
    t
}

fn measurements(fit: &Fit, samples: &[Sample]) -> String {
    let mut t = String::from("\nMeasured\n");
    for sample in samples {
        let (seconds, rate) = (show_seconds(sample.seconds), show_flops(sample.rate));
        let _ = writeln!(t, "  N {:>9}  {seconds:>10}  {rate}", sample.n);
    }
    t + &format!("  fitted: {}\n", fit_words(fit))
}

/// Returns rows on the memory that the run takes on a node, and its parts.
fn memory(plan: &Plan, ranks_per_node: u64) -> Rows {
    let (taken, budget) = (show_bytes(plan.node_memory), show_bytes(plan.node_budget));
    let mut rows = vec![("memory", format!("{taken} a node, of {budget} that the run may take"))];
    let mut matrix = plan.rank.matrix;
    if let (Some(bytes), Some(room)) = (plan.rank.on_device, plan.device_budget) {
        let [bytes, room, of] = [bytes, room, matrix].map(show_bytes);
        let text =
            format!("{bytes} a device, of {room} that the run may take; {of} are the matrix's");
        rows.insert(0, ("devices", text));
        matrix = 0.0;
    }
    for (name, part) in [
        ("matrix", matrix),
        ("copies", plan.rank.checkpoint),
        ("checksums", plan.rank.checksums),
        ("work", plan.rank.work),
        ("processes", plan.rank.base),
    ] {
        if part > 0.0 {
            let share = show_bytes(part * ranks_per_node as f64);
            rows.push(("", format!("{name:<10} {share:>12}")));
        }
    }
    rows
}

/// Returns rows on saves in memory, the work of helpers, and checkpoints on storage.
fn saves(plan: &Plan, cores: u64) -> Rows {
    let mut rows = Vec::new();
    if let (Some((first, last)), Some((cost, cheapest))) =
        (plan.saving.interval, plan.saving.save_cost)
    {
        let text = format!(
            "{}, one every {} at first and {} at last; a save takes {} at first and {} at last; {} for all saves ({} of the run)",
            plan.saving.saves,
            show_seconds(first),
            show_seconds(last),
            show_seconds(cost),
            show_seconds(cheapest),
            show_seconds(plan.saving.saving),
            percent(plan.saving.saving / plan.pace.seconds_saved)
        );
        rows.push(("saves", text));
    } else if plan.protection.method.saves() {
        rows.push(("saves", "none: the run is shorter than the optimal interval".into()));
    }
    rows.extend(plan.saving.helpers.iter().map(|helpers| ("helpers", by_helpers(helpers, cores))));
    if let Some(storing) = &plan.saving.storing {
        let names = ["on storage"].into_iter().chain(std::iter::repeat(""));
        rows.extend(names.zip(on_storage(storing, cores)));
    }
    rows
}

/// Returns rows on the times without failures, with saves, and with the expected failures.
fn times(plan: &Plan) -> Rows {
    let both = |seconds, rate| (show_seconds(seconds), show_flops(rate));
    let (bare, rate) = both(plan.pace.seconds_bare, plan.pace.rate_bare);
    let mut rows = vec![("time", format!("{bare} without saves and failures, {rate}"))];
    if plan.saving.saves > 0 {
        let (saved, rate) = both(plan.pace.seconds_saved, plan.pace.rate_saved);
        rows.push(("", format!("{saved} with saves, {rate}")));
    }
    let expected = plan.pace.seconds_expected.zip(plan.pace.rate_expected);
    let expected = expected.map(|(seconds, rate)| both(seconds, rate));
    rows.push((
        "",
        expected.map_or("with failures the run practically never ends".into(), |(time, rate)| {
            format!("{time} expected with failures, {rate}")
        }),
    ));
    rows
}

/// Returns rows on the expected failures, and on the chance that the run finishes in spite of failures.
fn failures(inputs: &Inputs, advice: &Advice) -> Rows {
    let plan = &advice.plan;
    let during =
        plan.failures.map_or(String::new(), |f| format!(", {f:.3} expected during the run"));
    let mut rows =
        vec![("failures", format!("one every {}{during}", show_seconds(plan.mtbf_system)))];
    if let Some(seconds) = plan.protection.renewal {
        let time = show_seconds(seconds);
        rows.push((
            "",
            format!("checksum columns are rebuilt in {time} each, if ranks are left for this work"),
        ));
    }
    let chance = match plan.protection.method {
        Method::Abft => "that the run need not begin from scratch",
        _ => "that no failure is fatal",
    };
    rows.push(("chance", format!("{} {chance}", percent(plan.survives))));
    if let Some(sim) = &advice.simulated {
        let quantile = |q: f64| {
            let found = sim.quantiles.iter().find(|(x, _)| *x == q);
            found.map_or("-".into(), |(_, v)| show_seconds(*v))
        };
        let text = format!(
            "of {} simulated runs {} finish{}; of the runs that finish, half need at most {} and 95 % at most {}",
            sim.runs,
            percent(sim.finished.value),
            if inputs.limit.is_some() { " in time" } else { "" },
            quantile(0.5),
            quantile(0.95)
        );
        rows.push(("", text));
    }
    rows
}

/// Returns the table of the plan and its alternatives.
fn alternatives(inputs: &Inputs, advice: &Advice) -> String {
    let line = |what: &str, [n, matrix, rate, expected, time, survives]: [String; 6]| {
        format!(
            "  {what:<24} {n:>9} {matrix:>8} {rate:>16} {expected:>16} {time:>10} {survives:>9}\n"
        )
    };
    let of = |what: &str, p: &Plan| {
        let columns = [
            p.shape.n.to_string(),
            percent(matrix_share(p, inputs.ranks_per_node)),
            show_flops(p.pace.rate_bare),
            p.pace.rate_expected.map_or("never".into(), show_flops),
            p.pace.seconds_expected.map_or("never".into(), show_seconds),
            percent(p.survives),
        ];
        line(what, columns)
    };
    let heads = ["N", "matrix", "without faults", "expected", "time", "survives"];
    let mut t = String::from("\nAlternatives\n");
    t += &line("", heads.map(str::to_owned));
    t += &of("this plan", &advice.plan);
    for other in &advice.alternatives {
        match &other.plan {
            Ok(plan) => t += &of(&other.what, plan),
            Err(e) => {
                let _ = writeln!(t, "  {:<24} not possible: {e}", other.what);
            }
        }
        let _ = writeln!(t, "      {}", other.why);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_certainty_is_not_certainty() {
        assert_eq!(percent(0.5), "50.0 %");
        assert_eq!(percent(1.0), "100.0 %");
        assert!(percent(0.999_999_6).starts_with("99.9999"));
        assert!(percent(0.999_5).starts_with("99.9"));
        assert!(percent(1.0 - 1e-16).starts_with("99.99"));
    }
}

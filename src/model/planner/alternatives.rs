//! Alternatives to the plan, and the comparison of ways to continue after a loss.

use serde::Serialize;

use super::super::error::Result;
use super::super::fit::flops;
use super::super::memory::{Method, Scope};
use super::super::nonstop::Columns;
use super::choice::{Choice, groups_of, squarest_grid, squarest_with_checksums};
use super::evaluate::Plan;
use super::machine::Machine;
use crate::checkpoint::layout::ParityLayout;

/// Another way to run, with its plan or the reason why it is impossible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    pub what: String,
    pub why: String,
    pub plan: std::result::Result<Plan, String>,
}

/// Comparison of self-checkpoint with restarts, self-checkpoint with recovery in place, and checksum columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Share of failures that end a process but not its node.
    pub process_share: f64,
    /// Expected flop/s with restarts; None if the run practically never ends or is impossible.
    pub restart: Option<f64>,
    /// Expected flop/s with recovery in place; None as for `restart`.
    pub in_place: Option<f64>,
    /// Expected flop/s with checksum columns; None as for `restart`.
    pub abft: Option<f64>,
    /// Number of columns of checksums in the comparison.
    pub checksum_columns: u64,
    /// Smallest share of process failures at which method abft is expected to be faster than self-checkpoint in place, with the
    /// orders N of these plans. None if abft is slower even when all failures are of processes.
    pub abft_from: Option<f64>,
}

/// A choice to compare with the plan.
struct Idea {
    what: String,
    why: &'static str,
    choice: Choice,
}

fn idea(what: impl Into<String>, why: &'static str, choice: Choice) -> Idea {
    Idea { what: what.into(), why, choice }
}

/// Returns the other ways to run, each evaluated. Ways that would run exactly as the plan are left out.
pub(super) fn alternatives(machine: &Machine, taken: &Choice) -> Vec<Alternative> {
    // An alternative equals the plan, on a grid of all ranks, except in the choice that it names.
    let chosen = &Choice { helpers: false, ..without_checksum_ranks(machine, taken) };
    let with = |method| Choice { method, ..*chosen };
    let mut ideas = Vec::new();
    if machine.has_groups(chosen) {
        ideas.extend(in_memory(machine, chosen, taken.helpers));
    }
    ideas.extend(with_checksum_columns(machine, chosen, taken));
    if machine.inputs.disk.is_some() {
        let why = "all memory for the matrix; survives the loss of all nodes; slow saves";
        ideas.push(idea("to disk", why, with(Method::Disk)));
    }
    let why = "all memory for the matrix; after any failure the run starts from scratch";
    ideas.push(idea("unprotected", why, with(Method::None)));
    ideas.extend(flatter(machine, &Choice { helpers: taken.helpers, ..*chosen }));
    ideas.retain(|idea| machine.allows(idea.choice.method) && !idea.choice.runs_as(taken));
    let evaluated = |Idea { what, why, choice }| Alternative {
        what,
        why: why.to_owned(),
        plan: machine.evaluate(&choice).map_err(|e| e.to_string()),
    };
    ideas.into_iter().map(evaluated).collect()
}

/// Returns choices with checkpoints in memory: other methods, groups and scopes. `helpers` is true if helpers encode in the
/// plan.
fn in_memory(machine: &Machine, chosen: &Choice, helpers: bool) -> Vec<Idea> {
    let with = |method| Choice { method, ..*chosen };
    let mut ideas = vec![idea(
        "self-checkpoint",
        "survives a loss at any time, with one copy",
        with(Method::SelfCheckpoint),
    )];
    if chosen.layout == ParityLayout::Striped {
        ideas.extend(other_groups(machine, chosen));
    } else if let Some(choice) = in_stripes(machine, chosen, machine.inputs.group) {
        ideas.push(idea(
            "self, striped checksums",
            "groups of any nodes; every member keeps a part of the checksums, which takes the least memory",
            choice,
        ));
    }
    ideas.extend([
        idea(
            "double checkpoint",
            if machine.device.is_some() {
                "a save stops the ranks for copy and parity"
            } else {
                "as safe as self-checkpoint, but with two copies: a third of the memory is left"
            },
            with(Method::Double),
        ),
        idea(
            "double, helpers encode",
            "--encode helper: a save stops the ranks only for the copy",
            Choice { helpers: true, ..with(Method::Double) },
        ),
        idea(
            "single checkpoint",
            "leaves a little more memory, but a loss during a save is fatal",
            with(Method::Single),
        ),
    ]);
    if chosen.method.in_memory() {
        ideas.push(idea(
            "whole matrix saved",
            "shows the gain of saving only the trailing submatrix",
            Choice { scope: Scope::Whole, helpers, ..*chosen },
        ));
    }
    ideas.push(idea(
        "self, in place",
        "--nonstop: spare ranks take the places of processes that die, without a restart",
        Choice { in_place: true, ..with(Method::SelfCheckpoint) },
    ));
    ideas
}

/// Self-checkpoint in smaller and larger groups, and in groups that survive one more loss.
fn other_groups(machine: &Machine, chosen: &Choice) -> Vec<Idea> {
    let mut ideas = Vec::new();
    for (wanted, why) in [
        (8, "smaller groups: fewer double losses, but less memory for the matrix"),
        (32, "larger groups: a little more memory for the matrix, but more double losses"),
    ] {
        if machine.units().count >= wanted
            && let Some(choice) = in_stripes(machine, chosen, Some(wanted))
        {
            ideas.push(idea(format!("self, groups of {}", choice.groups.smallest), why, choice));
        }
    }
    let losses = chosen.losses + 1;
    if chosen.groups.smallest > 2 * losses {
        ideas.push(idea(
            format!("self, {losses} losses"),
            "survives one more loss in each group, but takes more parity and arithmetic",
            Choice { losses, method: Method::SelfCheckpoint, ..*chosen },
        ));
    }
    ideas
}

/// Returns self-checkpoint with striped checksums in groups of `wanted`. None if these groups cannot survive the losses of
/// `chosen`.
fn in_stripes(machine: &Machine, chosen: &Choice, wanted: Option<u64>) -> Option<Choice> {
    let (layout, method) = (ParityLayout::Striped, Method::SelfCheckpoint);
    let choice = regrouped(machine, Choice { layout, method, ..*chosen }, wanted).ok()?;
    (choice.groups.smallest > chosen.losses).then_some(choice)
}

/// Method abft with the number of checksum columns in the inputs or in the plan. If the plan has checksum columns, also with one
/// column more.
fn with_checksum_columns(machine: &Machine, chosen: &Choice, taken: &Choice) -> Vec<Idea> {
    let abft = "--method abft: survives the loss of one process column for each checksum column, and saves nothing; after the \
                loss of a node the run starts from scratch";
    let more = (taken.method == Method::Abft && taken.sums < Columns::SUMS_MAX).then_some((
        taken.sums + 1,
        "--checksum-columns: one more process column may be lost than in the plan",
    ));
    let ideas = [(chosen.sums, abft)].into_iter().chain(more).filter_map(|(sums, why)| {
        let grid = squarest_with_checksums(ranks_that_compute(machine, chosen), sums).ok()?;
        let choice = Choice { method: Method::Abft, grid, sums, ..*chosen };
        Some(idea(columns_of_checksums(sums), why, choice))
    });
    ideas.collect()
}

/// Returns the choice `chosen` on a grid that is half as high and twice as wide. None if the number of process rows is odd.
fn flatter(machine: &Machine, chosen: &Choice) -> Option<Idea> {
    let (p, q) = chosen.grid;
    if p < 2 || p % 2 != 0 {
        return None;
    }
    let grid = (p / 2, q * 2);
    let choice = regrouped(machine, Choice { grid, ..*chosen }, machine.inputs.group).ok()?;
    Some(idea(
        format!("grid {} x {}", grid.0, grid.1),
        "flatter: cheaper pivoting on slow networks (the rate model does not distinguish grids)",
        choice,
    ))
}

/// Returns the choice with new groups of `wanted` members, made for its grid and layout.
fn regrouped(machine: &Machine, choice: Choice, wanted: Option<u64>) -> Result<Choice> {
    let groups = groups_of(choice.layout, choice.grid, machine.units(), wanted, choice.losses)?;
    Ok(Choice { groups, ..choice })
}

/// Describes a number of columns in words.
pub fn columns_of_checksums(sums: u64) -> String {
    if sums == 1 { "column of checksums".into() } else { format!("{sums} columns of checksums") }
}

/// Number of ranks that have a part of the matrix or checksums; the other ranks wait to make new checksums.
fn ranks_that_compute(machine: &Machine, chosen: &Choice) -> u64 {
    machine.ranks.saturating_sub(chosen.waiting)
}

/// Returns the choice on a grid of all ranks. If `chosen` has ranks for checksums, the grid is without these ranks.
fn without_checksum_ranks(machine: &Machine, chosen: &Choice) -> Choice {
    let grid = squarest_grid(machine.ranks);
    if chosen.layout == ParityLayout::Dedicated {
        let layout = ParityLayout::Striped;
        let choice = Choice { grid, layout, ..*chosen };
        return regrouped(machine, choice, machine.inputs.group).unwrap_or(choice);
    }
    match chosen.method {
        Method::Abft => Choice { grid, ..*chosen },
        _ => *chosen,
    }
}

/// Compares the ways to continue at the share of process failures in the inputs, and finds the share from which method abft would
/// be faster.
pub(super) fn compare(machine: &Machine, chosen: &Choice) -> Comparison {
    let restart = Choice {
        method: Method::SelfCheckpoint,
        in_place: false,
        helpers: false,
        ..without_checksum_ranks(machine, chosen)
    };
    let in_place = Choice { in_place: true, ..restart };
    let checksums = squarest_with_checksums(ranks_that_compute(machine, chosen), chosen.sums)
        .map(|grid| Choice { method: Method::Abft, grid, ..restart })
        .ok();
    let sized = |choice: Choice| machine.evaluate(&choice).ok().map(|p| (choice, p.shape.n));
    let (restart, in_place) = (sized(restart), sized(in_place));
    let checksums = checksums.and_then(sized);
    // The order N is the same for every share: the memory does not depend on it.
    let rate = |processes: f64, sized: Option<(Choice, u64)>| -> Option<f64> {
        let (choice, n) = sized?;
        let seconds = Machine { processes, ..*machine }.expected(n, &choice).ok()??;
        Some(flops(n as f64) / seconds)
    };
    let faster = |percent: u32| {
        let share = f64::from(percent) / 100.0;
        rate(share, checksums).unwrap_or(0.0) > rate(share, in_place).unwrap_or(0.0)
    };
    let abft_from = faster(100).then(|| {
        let (mut low, mut high) = (0_u32, 100);
        while low < high {
            let middle = low.midpoint(high);
            if faster(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        f64::from(high) / 100.0
    });
    let share = machine.processes;
    Comparison {
        process_share: share,
        restart: rate(share, restart),
        in_place: rate(share, in_place),
        abft: rate(share, checksums),
        checksum_columns: chosen.sums,
        abft_from,
    }
}

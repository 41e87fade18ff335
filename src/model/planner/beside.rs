//! What could be done instead of the plan, and which way to go on after a loss is better.

use serde::Serialize;

use super::super::error::Result;
use super::super::fit::flops;
use super::super::memory::{Method, Scope};
use super::super::nonstop::Columns;
use super::choice::{Choice, groups_of, squarest_grid, squarest_with_checksums};
use super::evaluate::Plan;
use super::machine::Machine;
use crate::checkpoint::layout::ChecksumLayout;

/// Another way to run, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    pub what: String,
    pub why: String,
    pub plan: std::result::Result<Plan, String>,
}

/// Self-checkpoint by restarts and in place, and columns of checksums, beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Share of failures that end a process and leave its node.
    pub process_share: f64,
    /// Expected flop/s; None where that practically never ends or is impossible.
    pub restart: Option<f64>,
    pub in_place: Option<f64>,
    pub abft: Option<f64>,
    /// How many columns of checksums that is with.
    pub checksum_columns: u64,
    /// The least share from which checksums are expected to be faster than self-checkpoint in place, at the sizes
    /// of these plans; None: not even if all failures were of processes.
    pub abft_from: Option<f64>,
}

pub(super) fn alternatives(machine: &Machine, taken: &Choice, units: u64) -> Vec<Alternative> {
    // What is not said of an alternative is as chosen, on a grid of all ranks.
    let chosen = &Choice { helpers: false, ..beside_checksums(machine, taken, units) };
    let mut list: Vec<(String, &str, Choice)> = Vec::new();
    let mut add = |what: String, why, choice: Choice| {
        let same = choice.method == taken.method
            && choice.scope == taken.scope
            && choice.grid == taken.grid
            && choice.in_place == taken.in_place
            && choice.helpers == taken.helpers
            && (!choice.method.in_memory()
                || (choice.groups.smallest == taken.groups.smallest
                    && choice.losses == taken.losses
                    && choice.layout == taken.layout))
            && (choice.method != Method::Abft || choice.sums == taken.sums);
        if !same {
            list.push((what, why, choice));
        }
    };
    let protectable = units > chosen.losses && machine.inputs.nodes > 1;
    if protectable {
        let with = |method| Choice { method, ..*chosen };
        add(
            "self-checkpoint".into(),
            "survives a loss at any time, with one copy",
            with(Method::SelfCheckpoint),
        );
        let striped = chosen.layout == ChecksumLayout::Striped;
        let in_stripes = |wanted| {
            let layout = ChecksumLayout::Striped;
            let choice = Choice { method: Method::SelfCheckpoint, layout, ..*chosen };
            let choice = regrouped(machine, choice, units, wanted).ok()?;
            (choice.groups.smallest > chosen.losses).then_some(choice)
        };
        for (wanted, why) in [
            (8, "smaller groups: fewer double losses, less memory"),
            (32, "larger groups: a little more memory, more double losses"),
        ]
        .into_iter()
        .filter(|_| striped)
        {
            if units >= wanted
                && let Some(choice) = in_stripes(Some(wanted))
            {
                add(format!("self, groups of {}", choice.groups.smallest), why, choice);
            }
        }
        if !striped && let Some(choice) = in_stripes(machine.inputs.group) {
            add(
                "self, striped checksums".into(),
                "groups of any nodes, checksums in turn with all of them: the least memory",
                choice,
            );
        }
        if striped && chosen.groups.smallest > 2 * (chosen.losses + 1) {
            add(
                format!("self, {} losses", chosen.losses + 1),
                "survives one more loss in each group, for parity and arithmetic",
                Choice { method: Method::SelfCheckpoint, losses: chosen.losses + 1, ..*chosen },
            );
        }
        add(
            "double checkpoint".into(),
            "as safe, but two copies: a third of the memory",
            with(Method::Double),
        );
        add(
            "double, helpers encode".into(),
            "--encode helper: a save stops the ranks for the copy alone",
            Choice { helpers: true, ..with(Method::Double) },
        );
        add(
            "single checkpoint".into(),
            "a little more memory, but a loss during a save is fatal",
            with(Method::Single),
        );
        if chosen.method.in_memory() {
            add(
                "whole matrix saved".into(),
                "what saving only the corner is worth",
                Choice { scope: Scope::Whole, helpers: taken.helpers, ..*chosen },
            );
        }
    }
    if protectable {
        add(
            "self, in place".into(),
            "--nonstop: spare ranks take the places of processes that die, without a restart",
            Choice { method: Method::SelfCheckpoint, in_place: true, ..*chosen },
        );
    }
    let more = (taken.method == Method::Abft && taken.sums < Columns::SUMS_MAX)
        .then_some((taken.sums + 1, "--checksum-columns: one process column more may be lost"));
    let abft = "--method abft: bears the loss of as many process columns, saves nothing; a node lost begins the run anew";
    for (sums, why) in [(chosen.sums, abft)].into_iter().chain(more) {
        if let Ok(grid) = squarest_with_checksums(beside_waiting(machine, chosen), sums) {
            let choice = Choice { method: Method::Abft, grid, sums, ..*chosen };
            add(columns_of_checksums(sums), why, choice);
        }
    }
    if machine.inputs.disk.is_some() {
        add(
            "to disk".into(),
            "all memory, survives everything, slow saves",
            Choice { method: Method::Disk, ..*chosen },
        );
    }
    add(
        "unprotected".into(),
        "all memory; any failure starts the run again",
        Choice { method: Method::None, ..*chosen },
    );
    let (p, q) = chosen.grid;
    let flatter = Choice { grid: (p / 2, q * 2), helpers: taken.helpers, ..*chosen };
    let flatter = if p % 2 == 0 && p > 1 {
        regrouped(machine, flatter, units, machine.inputs.group).ok()
    } else {
        None
    };
    if let Some(flatter) = flatter {
        add(
            format!("grid {} x {}", p / 2, q * 2),
            "flatter: cheaper pivoting on slow networks (the rate model does not tell grids apart)",
            flatter,
        );
    }
    list.into_iter()
        .map(|(what, why, choice)| Alternative {
            what,
            why: why.into(),
            plan: machine.evaluate(&choice).map_err(|e| e.to_string()),
        })
        .collect()
}

/// The choice with the groups of its grid and layout, of `wanted` members.
fn regrouped(machine: &Machine, choice: Choice, units: u64, wanted: Option<u64>) -> Result<Choice> {
    let nodes = (units, machine.ranks / units);
    let groups = groups_of(choice.layout, choice.grid, nodes, wanted, choice.losses)?;
    Ok(Choice { groups, ..choice })
}

/// So many, in words.
pub fn columns_of_checksums(sums: u64) -> String {
    if sums == 1 { "column of checksums".into() } else { format!("{sums} columns of checksums") }
}

/// The ranks that have a part where some wait to make new checksums.
fn beside_waiting(machine: &Machine, chosen: &Choice) -> u64 {
    machine.ranks.saturating_sub(chosen.waiting)
}

/// The choice on a grid of all ranks: that of the ranks without checksums, where `chosen` has some.
fn beside_checksums(machine: &Machine, chosen: &Choice, units: u64) -> Choice {
    let grid = squarest_grid(machine.ranks);
    if chosen.layout == ChecksumLayout::Dedicated {
        let layout = ChecksumLayout::Striped;
        let choice = Choice { grid, layout, ..*chosen };
        return regrouped(machine, choice, units, machine.inputs.group).unwrap_or(choice);
    }
    match chosen.method {
        Method::Abft => Choice { grid, ..*chosen },
        _ => *chosen,
    }
}

/// The ways to go on beside each other, at the inputs' share of processes, and from which share checksums would be faster.
pub(super) fn compare(machine: &Machine, chosen: &Choice, units: u64) -> Comparison {
    let restart = Choice {
        method: Method::SelfCheckpoint,
        in_place: false,
        helpers: false,
        ..beside_checksums(machine, chosen, units)
    };
    let in_place = Choice { in_place: true, ..restart };
    let checksums = squarest_with_checksums(beside_waiting(machine, chosen), chosen.sums)
        .map(|grid| Choice { method: Method::Abft, grid, ..restart })
        .ok();
    let sized = |choice: Choice| machine.evaluate(&choice).ok().map(|p| (choice, p.shape.n));
    let (restart, in_place) = (sized(restart), sized(in_place));
    let checksums = checksums.and_then(sized);
    // An order that fits is kept for every share: only so many failures more or less are asked for.
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

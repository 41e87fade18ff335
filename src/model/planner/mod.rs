//! Plans a run for a machine and a time limit: N, NB, grid, protection, interval, and the expected times.
//!
//! The planner only combines the other models; each decision is one function here, with its reason. Inputs that are not given are
//! guessed. A warning names every guess, so that no guess is taken for a measurement.
//!
//! `inputs` has the given figures, and `machine` adds every guess. `choice` makes the choices, `costs` computes their costs, and
//! `room` chooses the store of persistent shared memory. `evaluate` works out the whole plan, and `alternatives` compares other
//! choices. `warnings` has the warnings, `written` writes the files, and `calibration` chooses the sizes of a calibration.

mod alternatives;
mod calibration;
mod choice;
mod costs;
mod evaluate;
mod inputs;
mod machine;
mod room;
mod warnings;
mod written;

use serde::Serialize;

use super::error::{Result, refused};
use super::hpl_dat::hpl_dat;
use super::memory::Method;
use super::simulate::Summary;
use crate::base::units::show_bytes;
use crate::checkpoint::layout::ParityLayout;
use crate::shm::header::GROUP_MAX;

pub use alternatives::{Alternative, Comparison, columns_of_checksums};
pub use calibration::calibration_sizes;
pub use choice::{
    Groups, Units, groups_of, squarest_grid, squarest_with_checksums, squarest_with_dedicated,
};
pub use evaluate::{Helpers, Plan, Storing, node_hours};
pub use inputs::{Devices, Inputs, Measured, Mtbf, NamedRoom};
pub use machine::DEVICE_PEAK;
pub use written::{skt_toml, test_params, usual};

use alternatives::{alternatives, compare};
use choice::Choice;
use machine::Machine;
use warnings::{warnings_of_choice, warnings_of_plan};

/// Plan, comparisons and warnings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    pub plan: Plan,
    pub alternatives: Vec<Alternative>,
    /// Comparison of ways to continue after a loss, if nodes can protect each other.
    pub without_restart: Option<Comparison>,
    pub warnings: Vec<String>,
    /// Chance to finish, and times of finishing, from simulated runs.
    pub simulated: Option<Summary>,
    /// Text of the files HPL.dat and skt.toml.
    pub hpl_dat: String,
    pub skt_toml: String,
}

/// Plans a run.
pub fn plan(inputs: &Inputs) -> Result<Advice> {
    let mut warnings = Vec::new();
    let machine = Machine::new(inputs, &mut warnings)?;
    let choice = choose(&machine)?;
    warnings.extend(warnings_of_choice(&machine, &choice));
    let plan = machine.evaluate(&choice)?;
    warnings.extend(warnings_of_plan(&machine, &choice, &plan));
    warnings.extend(machine.warning_of_room(&plan, &choice)?);
    let simulated = if inputs.simulate > 0 { machine.simulate(&plan, &choice)? } else { None };
    let test = test_params(&plan);
    let title = format!("planned for {} nodes of {}", inputs.nodes, show_bytes(inputs.memory));
    Ok(Advice {
        hpl_dat: hpl_dat(&test, &[test.n], &title),
        skt_toml: skt_toml(&plan, inputs),
        alternatives: alternatives(&machine, &choice),
        without_restart: (machine.has_groups(&choice) && machine.device.is_none())
            .then(|| compare(&machine, &choice)),
        plan,
        warnings,
        simulated,
    })
}

/// Chooses method, grid and groups, as far as the inputs do not state them.
fn choose(machine: &Machine) -> Result<Choice> {
    let inputs = machine.inputs;
    let alone = inputs.nodes == 1;
    let method = inputs.method.unwrap_or(match inputs.devices {
        _ if alone => Method::None,
        Some(_) => Method::Double,
        None => Method::SelfCheckpoint,
    });
    if !machine.allows(method) {
        return refused(
            "a matrix in device memory can be saved by method double alone: give --method double or --method none, or leave \
             --device out",
        );
    }
    let layout = if method.in_memory() { inputs.layout } else { ParityLayout::Striped };
    let grid = choose_grid(machine, method, layout)?;
    if inputs.helpers && method != Method::Double {
        return refused(
            "helpers need a copy of the matrix in addition to the last checkpoint (--encode helper), and only method double has \
             this copy: give --method double, or leave --encode out",
        );
    }
    if inputs.helpers && layout == ParityLayout::Dedicated {
        return refused(
            "helpers encode while ranks compute, and dedicated checksums are made by ranks that do nothing else: leave \
             --encode or --parity-layout out",
        );
    }
    Ok(Choice {
        method,
        scope: inputs.scope,
        groups: choose_groups(machine, method, layout, grid)?,
        losses: inputs.losses,
        layout,
        helpers: inputs.helpers,
        grid,
        sums: inputs.sums(),
        waiting: inputs.waiting(),
        in_place: false,
    })
}

/// Returns the grid of the inputs, or the most square grid. Refuses a grid that does not use all ranks of the machine.
fn choose_grid(machine: &Machine, method: Method, layout: ParityLayout) -> Result<(u64, u64)> {
    let inputs = machine.inputs;
    let dedicated = layout == ParityLayout::Dedicated;
    let checksums = method == Method::Abft;
    let (sums, waiting) = if checksums { (inputs.sums(), inputs.waiting()) } else { (0, 0) };
    let working = machine.ranks.saturating_sub(waiting);
    let (p, q) = match inputs.grid {
        Some(grid) => grid,
        None if dedicated => squarest_with_dedicated(machine.units(), inputs.group, inputs.losses)?,
        None => squarest_with_checksums(working, sums)?,
    };
    let taken = q.checked_add(sums).and_then(|columns| columns.checked_mul(p));
    // `groups_of` counts the ranks that only keep checksums.
    if taken == Some(working) || dedicated && taken.is_some_and(|t| (1..working).contains(&t)) {
        return Ok((p, q));
    }
    let columns = match sums {
        0 => String::new(),
        1 => " with one more process column for checksums".into(),
        sums => format!(" with {sums} more process columns for checksums"),
    };
    let spares = match waiting {
        0 => String::new(),
        1 => " and 1 spare rank".into(),
        waiting => format!(" and {waiting} spare ranks"),
    };
    refused(format!(
        "a {p} x {q} grid{columns}{spares} does not take all {} ranks ({} nodes with {} ranks each)",
        machine.ranks, inputs.nodes, inputs.ranks_per_node
    ))
}

/// Returns the groups of a grid. Refuses groups that cannot survive the losses of the inputs.
fn choose_groups(
    machine: &Machine,
    method: Method,
    layout: ParityLayout,
    grid: (u64, u64),
) -> Result<Groups> {
    let Inputs { group, losses, .. } = *machine.inputs;
    let units = machine.units();
    if let Some(g) = group.filter(|g| *g > units.count) {
        let most = units.count;
        return refused(format!(
            "a group of {g} needs {g} nodes, but there are {most}: set --group {most} or less"
        ));
    }
    let least = layout.spread().members_least(losses as usize) as u64;
    // Dedicated groups have further members that keep the checksums.
    let small = |g: &u64| *g < least && layout != ParityLayout::Dedicated;
    if let Some(g) = group.filter(|g| method.in_memory() && small(g)) {
        return refused(format!(
            "a group of {g} with {} checksums cannot survive the loss of {losses} members; it needs at least {least} members",
            layout.name()
        ));
    }
    let groups = groups_of(layout, grid, units, group, losses)?;
    let Groups { smallest, largest, .. } = groups;
    if method.in_memory() && smallest <= losses {
        return refused(format!(
            "groups of {smallest} cannot survive the loss of {losses} members; use more nodes, a smaller --losses or --method disk"
        ));
    }
    if method.in_memory() && largest > GROUP_MAX as u64 {
        return refused(format!(
            "a group has at most {GROUP_MAX} members, but {largest} are wanted"
        ));
    }
    Ok(groups)
}

//! From a machine and a deadline to a run: N, NB, grid, protection, interval, and what to expect of it.
//!
//! The planner only combines the other models; each decision is one function here, with its reason. Inputs
//! nobody gave are guessed, and every guess is told as a warning: a plan that hides its guesses would be
//! believed.
//!
//! `inputs` what was told, `machine` with every guess made, `choice` what may be chosen, `costs` what that costs, `room` where
//! named memory lies, `evaluate` the whole of it worked out, `beside` the other choices; `written` the files, `calibration` what
//! is measured before.

mod beside;
mod calibration;
mod choice;
mod costs;
mod evaluate;
mod inputs;
mod machine;
mod room;
mod written;

use serde::Serialize;

use super::ModelError;
use super::error::Result;
use super::hpl_dat::hpl_dat;
use super::memory::Method;
use super::nonstop::Columns;
use super::simulate::Summary;
use crate::base::units::{show_bytes, show_seconds};
use crate::checkpoint::layout::ChecksumLayout;
use crate::shm::header::GROUP_MAX;

pub use beside::{Alternative, Comparison, columns_of_checksums};
pub use calibration::calibration_sizes;
pub use choice::{
    Groups, groups_of, squarest_grid, squarest_with_checksums, squarest_with_dedicated,
};
pub use evaluate::{Helpers, Plan, Storing, node_hours};
pub use inputs::{Inputs, Measured, Mtbf, NamedRoom};
pub use written::{skt_toml, test_params, usual};

use beside::{alternatives, compare};
use choice::{Choice, less_flat, squarest};
use machine::Machine;

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    pub plan: Plan,
    pub alternatives: Vec<Alternative>,
    /// Where nodes can protect each other.
    pub without_restart: Option<Comparison>,
    pub warnings: Vec<String>,
    /// The chance to finish, and when, from simulated runs.
    pub simulated: Option<Summary>,
    /// Text of the two files.
    pub hpl_dat: String,
    pub skt_toml: String,
}

/// Plans a run.
pub fn plan(inputs: &Inputs) -> Result<Advice> {
    let mut warnings = Vec::new();
    let machine = Machine::new(inputs, &mut warnings)?;
    let checksums = inputs.method == Some(Method::Abft);
    // Who protects whom: nodes, or on a single one its ranks, for want of anything better.
    let units = if inputs.nodes > 1 { inputs.nodes } else { machine.ranks };
    let ranks_per_unit = machine.ranks / units;
    let method = inputs.method.unwrap_or(if inputs.nodes > 1 {
        Method::SelfCheckpoint
    } else {
        Method::None
    });
    let dedicated = method.in_memory() && inputs.layout == ChecksumLayout::Dedicated;
    let sums = inputs.checksum_columns.unwrap_or(1);
    let waiting = inputs.spare_ranks.unwrap_or(0);
    let beside = if checksums { sums } else { 0 };
    let working = machine.ranks.saturating_sub(if checksums { waiting } else { 0 });
    let grid = match inputs.grid {
        Some(grid) => grid,
        None if dedicated => {
            squarest_with_dedicated((units, ranks_per_unit), inputs.group, inputs.losses)?
        }
        None => squarest(working, beside)?,
    };
    let columns = grid.1.checked_add(beside);
    let taken = columns.and_then(|c| c.checked_mul(grid.0));
    // Those that keep checksums alone are counted with the groups.
    if taken != Some(working) && !(dedicated && taken.is_some_and(|t| (1..working).contains(&t))) {
        return Err(ModelError::DoesNotFit(format!(
            "a {} x {} grid{}{} does not take the {} ranks there are ({} nodes with {} each)",
            grid.0,
            grid.1,
            match (checksums, sums) {
                (false, _) => String::new(),
                (true, 1) => " with a process column more for checksums".into(),
                (true, sums) => format!(" with {sums} process columns more for checksums"),
            },
            match waiting {
                waiting if checksums && waiting > 0 => {
                    format!(" and {waiting} that wait{}", if waiting == 1 { "s" } else { "" })
                }
                _ => String::new(),
            },
            machine.ranks,
            inputs.nodes,
            inputs.ranks_per_node
        )));
    }
    let flat = inputs.grid.is_none() && grid.1 > 4 * grid.0 && machine.ranks > 4;
    let (computing, who) =
        if dedicated { (grid.0 * grid.1, " that compute") } else { (working, "") };
    if let Some((fewer, better)) = flat.then(|| less_flat(computing, beside)).flatten() {
        let told = |(p, q): (u64, u64)| match beside {
            0 => format!("{p} x {q}"),
            sums => format!("{p} x ({q}+{sums})"),
        };
        let more = if working < machine.ranks {
            format!(", and {waiting} that wait,")
        } else {
            String::new()
        };
        warnings.push(format!(
            "{computing} ranks{who} only make a flat grid of {}; {fewer} ranks ({}){more} may well be faster",
            told(grid),
            told(better)
        ));
    }
    if inputs.cores < inputs.ranks_per_node {
        warnings.push(format!(
            "{} ranks on {} cores of a node take turns: expect far less than the plan says",
            inputs.ranks_per_node, inputs.cores
        ));
    }

    if inputs.nodes == 1 {
        warnings.push(if method.in_memory() {
            "on one node memory checkpoints survive the crash of a process, not of the node; the solver then \
             wants a --domains file that names a domain for each rank"
                .into()
        } else if checksums {
            "on one node checksums survive the crash of a process, not of the node".into()
        } else if method == Method::Disk {
            "checkpoints on a disk of this node survive what it survives".into()
        } else {
            "one node cannot be protected by others: nothing is saved".to_string()
        });
    }
    if inputs.job.is_some() && !method.saves() {
        warnings.push("--job has no effect: without saves nothing is kept under a name".into());
    }
    if inputs.level2.is_some() && !method.saves() {
        warnings.push("--level2 has no effect: without saves nothing goes there".into());
    } else if inputs.level2.is_some() && method.in_memory() {
        warnings.push(
            "what goes to --level2 is written beside the computation: its time is not counted"
                .into(),
        );
        if inputs.disk.is_none() {
            warnings.push(
                "how long that takes, and whether a core kept free for it pays, follows from the bandwidth of the file system (--disk)"
                    .into(),
            );
        }
    }
    if inputs.level2_every.is_some() && !(inputs.level2.is_some() && method.in_memory()) {
        warnings.push(
            "--level2-every has no effect: it says how often a checkpoint in memory goes to --level2"
                .into(),
        );
    }
    if !method.in_memory() && inputs.layout != ChecksumLayout::Striped {
        warnings.push(
            "--checksum-layout has no effect: without checkpoints in memory there are no groups"
                .into(),
        );
    }
    if method == Method::Disk && (inputs.group.is_some() || inputs.losses != 1) {
        warnings.push(
            "--group and --losses have no effect: what all nodes can read needs no parity, and any of them may be lost"
                .into(),
        );
    }
    if inputs.helpers && method != Method::Double {
        return Err(ModelError::DoesNotFit(
            "helpers encode a copy of the matrix beside the last checkpoint (--encode helper), and only method double has one: give \
             --method double, or leave --encode out"
                .into(),
        ));
    }
    if dedicated && inputs.helpers {
        return Err(ModelError::DoesNotFit(
            "helpers encode beside ranks that compute, and dedicated checksums are made by ranks that do nothing else: leave \
             --encode or --checksum-layout out"
                .into(),
        ));
    }
    if let Some(g) = inputs.group.filter(|g| *g > units) {
        return Err(ModelError::DoesNotFit(format!(
            "a group of {g} needs {g} nodes, and there are {units}; at most --group {units}"
        )));
    }
    let layout = if method.in_memory() { inputs.layout } else { ChecksumLayout::Striped };
    let least = layout.spread().members_least(inputs.losses as usize) as u64;
    // Groups of dedicated ones have those who keep the checksums besides.
    let small = |g: &u64| *g < least && layout != ChecksumLayout::Dedicated;
    if let Some(g) = inputs.group.filter(|g| method.in_memory() && small(g)) {
        return Err(ModelError::DoesNotFit(format!(
            "a group of {g} with {} checksums cannot survive {} losses; it needs at least {least} members",
            layout.name(),
            inputs.losses
        )));
    }
    let groups = groups_of(layout, grid, (units, ranks_per_unit), inputs.group, inputs.losses)?;
    let Groups { smallest, largest, .. } = groups;
    if method.in_memory() && smallest <= inputs.losses {
        return Err(ModelError::DoesNotFit(format!(
            "groups of {smallest} cannot survive {} losses; use more nodes, fewer --losses or --method disk",
            inputs.losses
        )));
    }
    if method.in_memory() && largest > GROUP_MAX as u64 {
        return Err(ModelError::DoesNotFit(format!(
            "a group has at most {GROUP_MAX} members, {largest} were asked for"
        )));
    }
    if method.in_memory() && largest != smallest {
        warnings.push(format!(
            "groups have {smallest} or {largest} members; memory is counted for the smaller ones"
        ));
    }
    let chosen = Choice {
        method,
        scope: inputs.scope,
        groups,
        losses: inputs.losses,
        layout,
        helpers: inputs.helpers,
        grid,
        sums,
        waiting,
        in_place: false,
    };
    if checksums {
        warnings.push(
            "checksums need Open MPI 5 under mpirun --with-ft ulfm, and bear the loss of processes, not of nodes; that no process \
             begins an iteration before all can costs some overlap, which is not counted"
                .into(),
        );
        if inputs.process_share.is_none() {
            warnings.push(
                "every failure is taken for one of a node, which checksums do not bear: say which share ends a process only \
                 (--process-share)"
                    .into(),
            );
        }
    }
    let plan = machine.evaluate(&chosen)?;
    if plan.seconds_expected.is_none() {
        warnings.push(format!(
            "with a failure every {} this run practically never ends",
            show_seconds(machine.mtbf_system)
        ));
    }
    // Without protection, and with checkpoints on disk, no group loses too much: such a run ends, or it practically never does.
    if plan.survives < 0.95 && !matches!(method, Method::None | Method::Disk) {
        warnings.push(format!(
            "the run {} with probability {:.1} %: {}",
            if checksums { "has to begin anew" } else { "is lost" },
            100.0 * (1.0 - plan.survives),
            if checksums {
                let borne = Columns::borne(sums);
                format!(
                    "checksums bear the loss of {borne}, of more where new ones can be made between (--spare-ranks), and no node; \
                     nothing is saved beside them"
                )
            } else if method == Method::Single {
                "a single checkpoint is lost when a node fails during a save".into()
            } else {
                "more than the group survives may fail during one recovery; use --losses 2 or smaller groups".into()
            }
        ));
    }
    if plan.rank.base > plan.rank.matrix {
        warnings.push(
            "a rank's matrix is smaller than what a process takes anyway: use fewer ranks per node"
                .into(),
        );
    }
    warnings.extend(machine.told_of_room(&plan, &chosen)?);
    let simulated = if inputs.simulate > 0 { machine.simulate(&plan, &chosen)? } else { None };
    let alternatives = alternatives(&machine, &chosen, units);
    let without_restart =
        (units > chosen.losses && inputs.nodes > 1).then(|| compare(&machine, &chosen, units));
    let test = test_params(&plan);
    Ok(Advice {
        hpl_dat: hpl_dat(
            &test,
            &[test.n],
            &format!("planned for {} nodes of {}", inputs.nodes, show_bytes(inputs.memory)),
        ),
        skt_toml: skt_toml(
            &plan,
            inputs.job.as_deref(),
            inputs.level2.as_deref().map(|dir| (dir, inputs.level2_every)),
        ),
        plan,
        alternatives,
        without_restart,
        warnings,
        simulated,
    })
}

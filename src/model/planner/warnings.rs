//! Warnings of a plan: inputs without effect, and risks that its figures alone do not show.
//!
//! `plan` calls these functions after the choice of method, grid and groups, and after the evaluation. Warnings about guesses are
//! in `machine`, warnings about persistent shared memory in `room`.

use super::super::memory::Method;
use super::super::nonstop::Columns;
use super::choice::{Choice, Groups, less_flat};
use super::evaluate::Plan;
use super::inputs::Inputs;
use super::machine::Machine;
use crate::base::units::show_seconds;
use crate::checkpoint::layout::ParityLayout;

/// Warnings that follow from the choice alone.
pub(super) fn warnings_of_choice(machine: &Machine, choice: &Choice) -> Vec<String> {
    let inputs = machine.inputs;
    let mut warnings = Vec::from_iter(flat_grid(machine, choice));
    if inputs.cores < inputs.ranks_per_node {
        warnings.push(format!(
            "{} ranks share the {} cores of a node: expect a far lower rate than planned",
            inputs.ranks_per_node, inputs.cores
        ));
    }
    if inputs.nodes == 1 {
        warnings.push(on_one_node(choice.method).into());
    }
    warnings.extend(about_flags(inputs, choice.method));
    let Groups { smallest, largest, .. } = choice.groups;
    if choice.method.in_memory() && largest != smallest {
        warnings.push(format!(
            "groups have {smallest} or {largest} members; the plan counts the memory for groups of {smallest}, which need more"
        ));
    }
    if choice.method == Method::Abft {
        warnings.push(
            "checksums need Open MPI 5 under mpirun --with-ft ulfm, and survive the loss of processes, not of nodes. With \
             checksums all processes begin each iteration together; the plan does not count the overlap that is lost"
                .into(),
        );
        if inputs.process_share.is_none() {
            warnings.push(
                "the plan counts every failure as the loss of a node, which checksums do not survive: state the share of failures \
                 that end only a process (--process-share)"
                    .into(),
            );
        }
    }
    warnings
}

/// Returns a warning if the number of ranks allows only a flat grid.
fn flat_grid(machine: &Machine, choice: &Choice) -> Option<String> {
    let (p, q) = choice.grid;
    if machine.inputs.grid.is_some() || q <= 4 * p || machine.ranks <= 4 {
        return None;
    }
    let sums = choice.columns();
    let ranks = p * (q + sums);
    let (fewer, better) = less_flat(ranks, sums)?;
    let shown = |(p, q): (u64, u64)| match sums {
        0 => format!("{p} x {q}"),
        sums => format!("{p} x ({q}+{sums})"),
    };
    let which = if choice.layout == ParityLayout::Dedicated { " that compute" } else { "" };
    let more = match choice.spare_ranks() {
        0 => String::new(),
        waiting => format!(", and {waiting} spare,"),
    };
    Some(format!(
        "{ranks} ranks{which} allow only a flat grid of {}; {fewer} ranks ({}){more} may be faster",
        shown((p, q)),
        shown(better)
    ))
}

/// Describes the protection that a method gives on a single node.
fn on_one_node(method: Method) -> &'static str {
    match method {
        Method::Abft => "on one node, checksums survive the loss of a process, but not of the node",
        Method::Disk => "checkpoints on a disk of this node are lost with the disk",
        Method::None => "a single node has no other node to protect it: nothing is saved",
        Method::SelfCheckpoint | Method::Double | Method::Single => {
            "on one node, checkpoints in memory survive the loss of a process, but not of the node; the solver needs \
             a --domains file that names a domain for each rank"
        }
    }
}

/// Warnings of flags that have no effect with a method, or whose cost the plan does not count.
fn about_flags(inputs: &Inputs, method: Method) -> impl Iterator<Item = String> {
    let (saves, in_memory) = (method.saves(), method.in_memory());
    let level2 = inputs.level2.is_some();
    let warnings = [
        (
            inputs.job.is_some() && !saves,
            "--job has no effect: a run without saves keeps nothing under a job name",
        ),
        (level2 && !saves, "--level2 has no effect: the method saves no checkpoints"),
        (
            level2 && in_memory,
            "checkpoints go to --level2 during the computation: the plan does not count the time of writing",
        ),
        (
            level2 && in_memory && inputs.disk.is_none(),
            "give the bandwidth of the file system (--disk) to see the time of writing to --level2, and whether a free core for helpers pays",
        ),
        (
            inputs.level2_every.is_some() && !(level2 && in_memory),
            "--level2-every has no effect: only with --level2 and a method that saves in memory do checkpoints go there at this interval",
        ),
        (
            inputs.layout != ParityLayout::Striped && !in_memory,
            "--parity-layout has no effect: without checkpoints in memory there are no groups",
        ),
        (
            method == Method::Disk && (inputs.group.is_some() || inputs.losses != 1),
            "--group and --losses have no effect: files that all nodes can read need no parity, and any node may be lost",
        ),
    ];
    warnings.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.into())
}

/// Warnings of likely problems in the plan's run.
pub(super) fn warnings_of_plan(machine: &Machine, choice: &Choice, plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    if plan.pace.seconds_expected.is_none() {
        warnings.push(format!(
            "with a failure every {} this run practically never ends",
            show_seconds(machine.mtbf_system)
        ));
    }
    let (outcome, why) = match choice.method {
        Method::Abft => {
            let borne = Columns::borne(choice.sums);
            let why = format!(
                "checksums survive the loss of {borne}, and of more if spare ranks rebuild checksums between the losses \
                 (--spare-ranks), but not the loss of a node; nothing is saved"
            );
            ("has to start from scratch", why)
        }
        Method::Single => {
            ("is lost", "a single checkpoint is lost when a node fails during a save".into())
        }
        _ => (
            "is lost",
            "a group may lose more members during one recovery than it survives; use --losses 2 or smaller groups".into(),
        ),
    };
    // Without protection, and with checkpoints on disk, no group can lose too many members: such a run ends, or practically never
    // ends.
    if plan.survives < 0.95 && !matches!(choice.method, Method::None | Method::Disk) {
        let chance = 100.0 * (1.0 - plan.survives);
        warnings.push(format!("the run {outcome} with probability {chance:.1} %: {why}"));
    }
    if plan.rank.base > plan.rank.matrix {
        warnings.push(
            "a rank's part of the matrix is smaller than the memory of an empty process: use fewer ranks per node"
                .into(),
        );
    }
    warnings
}

//! Choices of a plan: method, groups, grid and block size. One function makes each choice and states the reason.

use std::convert::Infallible;

use super::super::error::{Result, refused};
use super::super::memory::{Method, Scope};
use super::super::nonstop::Columns;
use crate::base::bisection::last_that_holds;
use crate::checkpoint::groups::{GROUP_DEFAULT, alike, count_of_even};
use crate::checkpoint::layout::ParityLayout;

/// Group size that a plan aims at: the default of a run.
const GROUP_WANTED: u64 = GROUP_DEFAULT as u64;

/// Choices that distinguish one way to run from another.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) method: Method,
    pub(super) scope: Scope,
    pub(super) groups: Groups,
    pub(super) losses: u64,
    /// Layout of checksums.
    pub(super) layout: ParityLayout,
    /// Whether helpers encode.
    pub(super) helpers: bool,
    /// Grid of the ranks that compute.
    pub(super) grid: (u64, u64),
    /// Number of process columns that keep checksums in addition to the grid, for method abft.
    pub(super) sums: u64,
    /// Number of further ranks that wait to make new checksums.
    pub(super) waiting: u64,
    /// Whether a spare rank takes the place of a rank that is lost without its node.
    pub(super) in_place: bool,
}

impl Choice {
    /// Largest number of losses that the run survives: members of a group, or process columns.
    pub(super) fn borne(&self) -> u64 {
        if self.method == Method::Abft { self.sums } else { self.losses }
    }

    /// Number of process columns that the method has for checksums.
    pub(super) fn columns(&self) -> u64 {
        if self.method == Method::Abft { self.sums } else { 0 }
    }

    /// Number of ranks that the method keeps waiting.
    pub(super) fn spare_ranks(&self) -> u64 {
        if self.method == Method::Abft { self.waiting } else { 0 }
    }

    /// Returns whether a run would be the same under the choice `other`.
    pub(super) fn runs_as(&self, other: &Self) -> bool {
        let groups = |choice: &Self| (choice.groups.smallest, choice.losses, choice.layout);
        self.method == other.method
            && self.scope == other.scope
            && self.grid == other.grid
            && self.in_place == other.in_place
            && self.helpers == other.helpers
            && (!self.method.in_memory() || groups(self) == groups(other))
            && self.columns() == other.columns()
    }
}

/// Returns the most square grid with P <= Q. Of all grids, a square grid sends the fewest bytes, and HPL is faster with fewer
/// rows than columns.
pub fn squarest_grid(ranks: u64) -> (u64, u64) {
    let p = (1..=ranks.isqrt()).rev().find(|p| ranks.is_multiple_of(*p)).unwrap_or(1);
    (p, ranks / p)
}

/// Returns the most square grid with P <= Q + 1 that, together with `sums` checksum columns, uses all ranks. Each row of the grid
/// has `sums` ranks for checksums, so a grid with few rows leaves more memory for the matrix.
pub fn squarest_with_checksums(ranks: u64, sums: u64) -> Result<(u64, u64)> {
    let fits = |p: &u64| ranks.is_multiple_of(*p) && p.saturating_add(sums) <= ranks / p + 1;
    let p = (1..=ranks.isqrt()).rev().find(fits).unwrap_or(1);
    let columns = ranks / p;
    if columns <= sums {
        return refused(format!(
            "{} of checksums (method abft) need{} {} ranks at least, {sums} of them for the checksums; there {} {ranks}",
            Columns::told(sums),
            if sums == 1 { "s" } else { "" },
            sums.saturating_add(1),
            if ranks == 1 { "is" } else { "are" },
        ));
    }
    Ok((p, columns - sums))
}

/// Returns the largest number of ranks below `ranks` whose grid, with `sums` checksum columns, is at most twice as wide as high.
/// Also returns that grid without its checksum columns.
pub(super) fn less_flat(ranks: u64, sums: u64) -> Option<(u64, (u64, u64))> {
    let grids = (1..ranks)
        .rev()
        .filter_map(|fewer| Some((fewer, squarest_with_checksums(fewer, sums).ok()?)));
    grids.into_iter().find(|(_, (p, q))| *q <= 2 * p)
}

/// Units that protect each other (nodes, or the ranks of a single node), and the number of ranks in each unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    pub count: u64,
    pub ranks: u64,
}

/// Number of groups of `working` ranks, `ranks_per_node` of which are on each node, if further ranks keep the checksums.
fn groups_apart(working: u64, ranks_per_node: u64, wanted: Option<u64>) -> u64 {
    // No group has two ranks of a node.
    let nodes = working.div_ceil(ranks_per_node);
    working.div_ceil(wanted.unwrap_or(GROUP_WANTED).clamp(1, nodes.max(1)))
}

/// Returns the most square grid of the ranks that compute, if other ranks only keep checksums. As many whole nodes compute as
/// leave enough ranks for the checksums.
pub fn squarest_with_dedicated(
    units: Units,
    wanted: Option<u64>,
    losses: u64,
) -> Result<(u64, u64)> {
    let Units { count: nodes, ranks: ranks_per_node } = units;
    let Ok(computing) = last_that_holds(0, nodes, |computing| {
        let working = computing * ranks_per_node;
        let dedicated = groups_apart(working, ranks_per_node, wanted).saturating_mul(losses);
        Ok::<_, Infallible>(working.saturating_add(dedicated) <= nodes * ranks_per_node)
    });
    if computing < 2 {
        return refused(format!(
            "{nodes} nodes are too few for checksums on dedicated ranks: at least two nodes compute, and {losses} losses need \
             {losses} further nodes"
        ));
    }
    Ok(squarest_grid(computing * ranks_per_node))
}

/// Groups that the solver makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    /// Members of the smallest group, which has the largest checksums.
    pub smallest: u64,
    /// Members of the largest group, which fails most often.
    pub largest: u64,
    /// Size to ask the solver for (`--group`), so that it makes these groups.
    pub asked: u64,
}

/// Returns the groups that `layout` makes of the ranks of `units`, in the order of the ranks. Groups have at most `wanted`
/// members if possible.
pub fn groups_of(
    layout: ParityLayout,
    grid: (u64, u64),
    units: Units,
    wanted: Option<u64>,
    losses: u64,
) -> Result<Groups> {
    let sizes = |wanted| sizes_of(layout, grid, units, wanted, losses);
    let (smallest, largest) = sizes(wanted)?;
    // Ranks that only keep checksums are members of groups, but `--group` does not count them.
    let size = match layout {
        ParityLayout::Dedicated => largest.saturating_sub(losses).max(2),
        _ => largest,
    };
    // If pairs are wanted of 9 ranks, there are 4 groups, one of them with 3 members. `--group 3` would make 3 groups.
    let least = layout.spread().members_least(losses as usize) as u64;
    let same = sizes(Some(size)).is_ok_and(|again| again == (smallest, largest));
    let asked = if same { size } else { wanted.unwrap_or(least) };
    Ok(Groups { smallest, largest, asked })
}

/// Divides all ranks into groups as even as possible, without two ranks of a unit in one group. Returns the smallest and the
/// largest size. Groups have at most `wanted` members, if every group then still has at least `least`. If `same` is true, the
/// number of groups is a multiple of the ranks of a unit, if the groups then still have `least` members.
fn even(units: Units, wanted: u64, least: u64, same: bool) -> (u64, u64) {
    let (nodes, each, least) = (units.count as usize, units.ranks.max(1) as usize, least as usize);
    let members = units.count.saturating_mul(units.ranks.max(1));
    let mut groups = count_of_even(members as usize, wanted as usize, least, each);
    if same {
        groups = alike(groups, nodes, each, least);
    }
    let groups = groups as u64;
    (members / groups, members.div_ceil(groups))
}

/// Members of the smallest and of the largest group; dedicated groups include the ranks that keep the checksums.
fn sizes_of(
    layout: ParityLayout,
    grid: (u64, u64),
    units: Units,
    wanted: Option<u64>,
    losses: u64,
) -> Result<(u64, u64)> {
    let (p, q) = grid;
    let Units { count, ranks: ranks_per_node } = units;
    let least = layout.spread().members_least(losses as usize) as u64;
    match layout {
        ParityLayout::Striped => Ok(even(units, wanted.unwrap_or(GROUP_WANTED), least, false)),
        ParityLayout::Localised if count < least => refused(format!(
            "localised checksums for {losses} losses need groups of {least} nodes, and there are {count}"
        )),
        // Smaller groups of this layout take no more memory.
        ParityLayout::Localised => Ok(even(units, wanted.unwrap_or(least), least, true)),
        ParityLayout::Dedicated => {
            let working = p.saturating_mul(q);
            let groups = groups_apart(working, ranks_per_node, wanted).max(1);
            let dedicated = groups.saturating_mul(losses);
            let ranks = count.saturating_mul(ranks_per_node);
            if working.saturating_add(dedicated) > ranks {
                return refused(format!(
                    "a {p} x {q} grid and {dedicated} ranks for its checksums need {} ranks, and there are {ranks}",
                    working.saturating_add(dedicated)
                ));
            }
            let largest = working.div_ceil(groups);
            if largest < 2 && groups > 1 {
                return refused(format!(
                    "the {p} x {q} grid is on one node, so each of its ranks would be a group by itself: take a grid over more nodes"
                ));
            }
            Ok((working / groups + losses, largest + losses))
        }
        ParityLayout::Grid => {
            // Ranks of a node are next to each other in a row of the grid.
            let wanted = wanted.unwrap_or(GROUP_WANTED);
            let of = |count| even(Units { count, ranks: 1 }, wanted, least, false);
            let columns = (p >= least && q >= ranks_per_node).then(|| of(p));
            let rows = (q >= least && ranks_per_node == 1).then(|| of(q));
            match (columns, rows) {
                (Some(columns), Some(rows)) if rows.0 > columns.0 => Ok(rows),
                (Some(groups), _) | (_, Some(groups)) => Ok(groups),
                (None, None) => refused(format!(
                    "neither rows nor columns of a {p} x {q} grid with {ranks_per_node} ranks a node can be groups that survive \
                     {losses} losses: a group needs {least} members on different nodes; take another grid, fewer ranks a node, or \
                     --parity-layout striped"
                )),
            }
        }
    }
}

/// Returns the largest block size, of those that perform well, with which each process still has a dozen blocks in each
/// direction. Devices perform well only with wide blocks.
pub(super) fn block_size(n: u64, grid: (u64, u64), on_devices: bool) -> u64 {
    let side = n / grid.0.max(grid.1);
    let wide = on_devices.then_some(512);
    wide.into_iter().chain([192, 128, 96, 64, 32, 16]).find(|nb| side >= 12 * nb).unwrap_or(8)
}

//! Parity layouts: division of positions into groups, and placement of parity within each group.
//!
//! Three layouts are from the paper on encoding in docs/MODELS.md (sections 4.1 to 4.3), and one is new. A layout consists of a
//! method to divide positions into groups, and a [`Spread`], which places the parity within a group. All other code is common to
//! the layouts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::distribution::Layout;
use super::groups::{
    GROUP_DEFAULT, GroupError, Groups, check_size, count_of_even, dealt, divide, even_runs,
};
use crate::parity::Spread;
use crate::shm::header::GROUP_MAX;

/// Parity layout that the user chooses (`--parity-layout`). The discriminant is the layout's number in headers and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParityLayout {
    /// Groups over any failure domains. The members take turns in storing parity.
    #[default]
    Striped = 0,
    /// Groups that are rows or columns of the process grid. The members take turns in storing parity.
    Grid = 1,
    /// Groups of m(m+1) members for m losses. Each member stores one of the m parities completely.
    Localised = 2,
    /// Groups over any failure domains, each with m dedicated positions for m losses. A dedicated position stores one parity, and
    /// has no part of the matrix.
    Dedicated = 3,
}

impl ParityLayout {
    pub const ALL: [ParityLayout; 4] = [
        ParityLayout::Striped,
        ParityLayout::Grid,
        ParityLayout::Localised,
        ParityLayout::Dedicated,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ParityLayout::Striped => "striped",
            ParityLayout::Grid => "grid",
            ParityLayout::Localised => "localised",
            ParityLayout::Dedicated => "dedicated",
        }
    }

    /// Description of the layout after the word "parity" in a status line.
    pub fn words(self) -> &'static str {
        match self {
            ParityLayout::Striped => "striped",
            ParityLayout::Grid => "along the grid",
            ParityLayout::Localised => "localised",
            ParityLayout::Dedicated => "on ranks of their own",
        }
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| *layout as u8 == byte)
    }

    pub fn spread(self) -> Spread {
        match self {
            ParityLayout::Striped | ParityLayout::Grid => Spread::Rotated,
            ParityLayout::Localised => Spread::Copied,
            ParityLayout::Dedicated => Spread::Apart,
        }
    }

    /// Number of dedicated positions outside of the grid, for groups of at most `size` grid positions, or of the default size.
    /// The number depends only on the user's settings, so that the launcher of the ranks can compute it.
    pub fn dedicated(self, positions: usize, size: Option<usize>, losses: usize) -> usize {
        match self {
            ParityLayout::Dedicated => {
                positions.div_ceil(size.unwrap_or(GROUP_DEFAULT).max(1)).saturating_mul(losses)
            }
            _ => 0,
        }
    }

    /// Maximum number of losses that a group can survive. It is limited by the maximum group size.
    pub fn losses_max(self) -> usize {
        let fits = |losses: &usize| self.spread().members_least(*losses) <= GROUP_MAX;
        (1..GROUP_MAX).take_while(fits).last().unwrap_or(0)
    }

    /// Divides the positions of a problem into groups. `domains[i]` names the failure domain of position i. `size` is the
    /// requested group size, or None for the layout's default. Every group survives the loss of `losses` domains.
    pub fn groups(
        self,
        layout: &Layout,
        domains: &[String],
        size: Option<usize>,
        losses: usize,
    ) -> Result<Groups, GroupError> {
        match self {
            ParityLayout::Grid if losses > 0 => lines(layout, domains, size, losses),
            ParityLayout::Dedicated => with_dedicated(layout, domains, losses),
            _ => divide(domains, size, losses, self.spread()),
        }
    }

    /// Divides the positions of a resumed run into groups, even if there are fewer failure domains than the groups need. If the
    /// requested groups are impossible, tries the default group size. If that is impossible, too, treats each position as a
    /// failure domain of its own. A real failure domain may then have more members of a group than the group can lose
    /// ([`crowded`](super::groups::crowded)).
    pub fn groups_at_any_rate(
        self,
        layout: &Layout,
        domains: &[String],
        size: Option<usize>,
        losses: usize,
    ) -> Result<Groups, GroupError> {
        let as_asked = self.groups(layout, domains, size, losses);
        if as_asked.is_ok() {
            return as_asked;
        }
        let apart: Vec<String> = (0..domains.len()).map(|position| position.to_string()).collect();
        let others = self.groups(layout, domains, None, losses);
        others.or_else(|_| self.groups(layout, &apart, size, losses)).or(as_asked)
    }
}

/// Makes groups of the rows or of the columns of the grid. If both are possible, uses rows only if their smallest group is larger
/// than the smallest group of the columns. A row or column with more members than a group is cut into runs of neighbours.
fn lines(
    layout: &Layout,
    domains: &[String],
    size: Option<usize>,
    losses: usize,
) -> Result<Groups, GroupError> {
    let least = Spread::Rotated.members_least(losses);
    check_size(size, losses, least)?;
    let wanted = size.unwrap_or(GROUP_DEFAULT).max(least);
    let mut of_rows = vec![Vec::new(); layout.p];
    let mut of_columns = vec![Vec::new(); layout.q];
    for position in 0..layout.positions() {
        let (row, column) = layout.place(position);
        of_rows[row].push(position);
        of_columns[column].push(position);
    }
    let [columns, rows] = [("columns", of_columns), ("rows", of_rows)].map(|(name, lines)| {
        // Each row or column is cut into runs of neighbours of equal size. A run has at most `wanted` members, unless some run
        // would then have fewer than `least` members.
        let runs = |line: &Vec<_>| even_runs(line, count_of_even(line.len(), wanted, least, 1));
        let groups: Groups = lines.iter().flat_map(runs).collect();
        match trouble(&groups, domains, least) {
            None => Ok(groups),
            Some(why) => Err(format!("the {name} cannot be groups: {why}")),
        }
    });
    let smallest = |groups: &Groups| groups.iter().map(Vec::len).min().unwrap_or(0);
    match (columns, rows) {
        (Ok(columns), Ok(rows)) if smallest(&rows) > smallest(&columns) => Ok(rows),
        (Ok(groups), _) | (_, Ok(groups)) => Ok(groups),
        (Err(columns), Err(rows)) => {
            Err(GroupError::NoLines { p: layout.p, q: layout.q, losses, columns, rows })
        }
    }
}

/// Divides the grid's positions into as many groups as the layout has dedicated positions for. Then adds `losses` dedicated
/// positions to each group, on domains that have no member of the group.
///
/// Tries groups of neighbours first. If the dedicated positions do not fit into groups of neighbours, deals the grid's positions
/// to the groups in turn.
fn with_dedicated(
    layout: &Layout,
    domains: &[String],
    losses: usize,
) -> Result<Groups, GroupError> {
    let working = layout.positions() - layout.dedicated;
    let (of_grid, rest) = domains.split_at(working);
    let count = (rest.len() / losses.max(1)).max(1);
    let size = of_grid.len().div_ceil(count);
    if size + losses > GROUP_MAX {
        return Err(GroupError::TooMany(size + losses));
    }
    let by_turns = dealt(of_grid, count)?;
    let mut in_domain: BTreeMap<&str, usize> = BTreeMap::new();
    domains.iter().for_each(|domain| *in_domain.entry(domain).or_default() += 1);
    let no_room = |at: usize| {
        let (name, here) = (domains[at].clone(), in_domain[domains[at].as_str()]);
        GroupError::NoRoomApart { position: at, name, here, count }
    };
    if let Some(at) = (working..domains.len()).find(|&at| in_domain[domains[at].as_str()] > count) {
        return Err(no_room(at));
    }
    // The division into neighbours may give another number of groups; it is then not used.
    let near = divide(of_grid, Some(size), 0, Spread::Rotated).ok();
    let near = near.filter(|groups| groups.len() == count);
    near.and_then(|near| joined(near, domains, working, losses))
        .or_else(|| joined(by_turns, domains, working, losses))
        .ok_or_else(|| no_room(working))
}

/// Adds at most `losses` dedicated positions to each of `groups`, which divide the first `working` positions. Returns None if a
/// dedicated position fits into no group.
fn joined(mut groups: Groups, domains: &[String], working: usize, losses: usize) -> Option<Groups> {
    // Positions that fit into few groups are placed first.
    let fits = |group: &[usize], domain: &String| group.iter().all(|&m| domains[m] != *domain);
    let mut open: Vec<usize> = (working..domains.len()).collect();
    open.sort_by_key(|&at| groups.iter().filter(|group| fits(group, &domains[at])).count());
    let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
    for at in open {
        let free = |&number: &usize| {
            groups[number].len() < sizes[number] + losses && fits(&groups[number], &domains[at])
        };
        // Dedicated positions of one domain go to different groups.
        let number = (0..groups.len()).filter(free).min_by_key(|&n| groups[n].len() - sizes[n])?;
        groups[number].push(at);
    }
    groups.iter_mut().zip(&sizes).for_each(|(group, &size)| group[size..].sort_unstable());
    Some(groups)
}

/// Returns the reason why a group cannot survive the losses: it has fewer than `least` members, or two members in one failure
/// domain. Returns None if all groups can.
fn trouble(groups: &Groups, domains: &[String], least: usize) -> Option<String> {
    for group in groups {
        if group.len() < least {
            let have = group.len();
            let s = if have == 1 { "" } else { "s" };
            return Some(format!("a group would have {have} position{s}, but {least} are needed"));
        }
        let mut first = BTreeMap::new();
        for &position in group {
            if let Some(before) = first.insert(&domains[position], position) {
                return Some(format!(
                    "positions {before} and {position} of one group are both in failure domain {:?}",
                    domains[position]
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::groups::crowded;
    use super::*;
    use crate::base::params::Mapping;
    use proptest::prelude::*;

    fn layout(p: usize, q: usize, mapping: Mapping) -> Layout {
        Layout { n: 100, nb: 10, p, q, mapping, dedicated: 0 }
    }

    fn names(of: impl Iterator<Item = usize>) -> Vec<String> {
        of.map(|d| format!("n{d}")).collect()
    }

    fn grid(p: usize, q: usize, domains: &[String], size: Option<usize>, losses: usize) -> Groups {
        ParityLayout::Grid.groups(&layout(p, q, Mapping::Row), domains, size, losses).unwrap()
    }

    #[test]
    fn the_longer_lines_whose_members_are_apart_are_the_groups() {
        let apart = names(0..8);
        assert_eq!(grid(2, 4, &apart, None, 1), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        let square = names(0..4);
        assert_eq!(grid(2, 2, &square, None, 1), [[0, 2], [1, 3]]);
        // With two ranks on each node, neighbours in a row share a node.
        let pairs = names((0..8).map(|rank| rank / 2));
        assert_eq!(grid(2, 4, &pairs, None, 1), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        // A line of 40 is cut into runs of at most 16, or of the requested size.
        let long = names(0..80);
        let sizes = |size, losses| -> Vec<usize> {
            grid(2, 40, &long, size, losses).iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(None, 1), [14, 13, 13, 14, 13, 13]);
        assert_eq!(sizes(Some(10), 4), [10; 8]);
        assert_eq!(sizes(Some(3), 2), [4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3].repeat(2));
        assert_eq!(sizes(None, 16), [20; 4]);
    }

    #[test]
    fn a_run_that_goes_on_is_divided_at_any_rate() {
        let (striped, all) = (ParityLayout::Striped, [[0, 1, 2, 3]].map(Vec::from).to_vec());
        let divided = |domains: [usize; 4], size, losses| {
            let (layout, domains) = (layout(2, 2, Mapping::Row), names(domains.into_iter()));
            let groups = striped.groups_at_any_rate(&layout, &domains, size, losses).unwrap();
            let as_asked = striped.groups(&layout, &domains, size, losses);
            (groups.clone(), as_asked == Ok(groups))
        };
        assert_eq!(divided([0, 1, 2, 3], Some(4), 1), (all.clone(), true));
        // These groups are smaller, and each still survives the loss of a node.
        let pairs = [[0, 2], [1, 3]].map(Vec::from).to_vec();
        assert_eq!(divided([0, 0, 1, 1], Some(4), 1), (pairs, false));
        // No group size survives the loss of a node.
        assert_eq!(divided([0; 4], Some(4), 1), (all.clone(), false));
        assert_eq!(divided([0, 0, 1, 1], None, 2), (all, false));
    }

    #[test]
    fn a_grid_without_lines_that_will_do_is_refused_with_both_reasons() {
        let ask = |p, q, domains: &[String], size, losses| {
            let layout = layout(p, q, Mapping::Row);
            ParityLayout::Grid.groups(&layout, domains, size, losses).unwrap_err().to_string()
        };
        let why = ask(2, 4, &names((0..8).map(|rank| rank % 2)), None, 1);
        for word in ["columns", "rows", "positions 0 and 2", "\"n0\"", "--parity-layout striped"] {
            assert!(why.contains(word), "{word}: {why}");
        }
        let why = ask(2, 4, &names((0..8).map(|rank| rank / 2)), None, 2);
        assert!(why.contains("a group would have 2 positions, but 3 are needed"), "{why}");
        assert!(ask(2, 4, &names(0..8), Some(2), 3).contains("at least 4 members"));
        assert!(ask(2, 4, &names(0..8), Some(500), 1).contains("at most 240"));
    }

    #[test]
    fn localised_groups_have_a_copy_of_each_checksum_more_than_may_be_lost() {
        let groups = |count: usize, size, losses| {
            let domains = names(0..count);
            let layout = layout(1, count, Mapping::Row);
            ParityLayout::Localised.groups(&layout, &domains, size, losses)
        };
        let sizes = |count, size, losses| -> Vec<usize> {
            groups(count, size, losses).unwrap().iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(12, None, 2), [6, 6]);
        assert_eq!(sizes(17, None, 2), [9, 8]);
        assert_eq!(sizes(6, None, 1), [2, 2, 2]);
        assert_eq!(sizes(12, Some(12), 2), [12]);
        let why = groups(5, None, 2).unwrap_err().to_string();
        assert!(why.contains("at least 6 failure domains") && why.contains("--losses 1"), "{why}");
        let why = groups(12, Some(4), 2).unwrap_err().to_string();
        assert!(why.contains("at least 6 members"), "{why}");
        assert_eq!(ParityLayout::Localised.losses_max(), 15);
        assert_eq!(ParityLayout::Striped.losses_max(), GROUP_MAX - 1);
        // 15 losses need groups of 240 members, which is the maximum.
        assert!(matches!(groups(241, None, 15), Err(GroupError::TooMany(241))));
    }

    proptest! {
        #[test]
        fn every_position_is_in_one_group_of_different_domains(
            p in 1usize..6, q in 1usize..12, each in 1usize..4, losses in 1usize..4,
            size in proptest::option::of(2usize..20), column: bool, which in 0usize..4,
        ) {
            let mapping = if column { Mapping::Column } else { Mapping::Row };
            let asked = ParityLayout::ALL[which];
            let dedicated = asked.dedicated(p * q, size, losses);
            let layout = |p, q, mapping| Layout { dedicated, ..layout(p, q, mapping) };
            let positions = p * q + dedicated;
            let domains = names((0..positions).map(|rank| rank / each));
            if let Ok(groups) = asked.groups(&layout(p, q, mapping), &domains, size, losses) {
                let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
                all.sort_unstable();
                prop_assert!(all.iter().copied().eq(0..positions));
                if asked == ParityLayout::Dedicated {
                    for group in &groups {
                        let apart = group.iter().filter(|&&member| member >= p * q).count();
                        prop_assert_eq!(apart, losses);
                        prop_assert!(group[..group.len() - losses].iter().all(|&m| m < p * q));
                        prop_assert!(size.is_none_or(|size| group.len() <= size + losses));
                    }
                }
                prop_assert_eq!(crowded(&groups, &domains, 1), []);
                let least = asked.spread().members_least(losses);
                prop_assert!(groups.iter().all(|group| (least..=GROUP_MAX).contains(&group.len())));
                if asked == ParityLayout::Grid {
                    let places = |group: &Vec<usize>| -> Vec<(usize, usize)> {
                        group.iter().map(|&m| layout(p, q, mapping).place(m)).collect()
                    };
                    for places in groups.iter().map(places) {
                        let one_row = places.iter().all(|place| place.0 == places[0].0);
                        let one_column = places.iter().all(|place| place.1 == places[0].1);
                        prop_assert!(one_row || one_column);
                    }
                }
            }
        }
    }

    #[test]
    fn layouts_have_bytes() {
        for layout in ParityLayout::ALL {
            assert_eq!(ParityLayout::from_byte(layout as u8), Some(layout));
        }
        assert_eq!(ParityLayout::from_byte(9), None);
    }

    proptest! {
        /// Tries dedicated positions on nodes of the grid, on nodes of their own, or on both, in any order.
        #[test]
        fn dedicated_positions_are_placed_apart_or_refused(
            raw in proptest::collection::vec(0usize..5, 1..9), rest in proptest::collection::vec(0usize..5, 6),
            size in 2usize..5, losses in 1usize..3,
        ) {
            let working = raw.len();
            let dedicated = ParityLayout::Dedicated.dedicated(working, Some(size), losses);
            let count = dedicated / losses;
            let all: Vec<usize> = raw.into_iter().chain(rest.into_iter().cycle().take(dedicated)).collect();
            let layout = Layout { dedicated, ..layout(1, working, Mapping::Row) };
            let domains = names(all.iter().copied());
            let found = ParityLayout::Dedicated.groups(&layout, &domains, Some(size), losses);
            let on_their_own = (0..dedicated).all(|at| {
                let (own, others) = (all[working + at], all[..working + at].iter());
                !others.clone().any(|&domain| domain == own)
            });
            let busiest = (0..5).map(|domain| all.iter().filter(|&&of| of == domain).count()).max();
            prop_assert!(found.is_ok() || !on_their_own || busiest > Some(count), "{:?}", found);
            if let Ok(groups) = found {
                prop_assert_eq!(crowded(&groups, &domains, 1), []);
                for group in groups {
                    let apart = group.iter().filter(|&&member| member >= working).count();
                    prop_assert_eq!(apart, losses);
                    prop_assert!(group.len() <= size + losses);
                    prop_assert!(group[..group.len() - losses].iter().all(|&member| member < working));
                }
            }
        }
    }

    /// Dedicated positions 4 and 5 do not fit into groups of neighbours.
    #[test]
    fn where_neighbours_leave_no_place_other_groups_are_made() {
        let layout = Layout { dedicated: 2, ..layout(2, 2, Mapping::Row) };
        let domains = names([0, 1, 2, 3, 0, 1].into_iter());
        let near = divide(&domains[..4], Some(2), 0, Spread::Rotated).unwrap();
        assert_eq!(near, [[0, 1], [2, 3]]);
        assert_eq!(joined(near, &domains, 4, 1), None);
        let groups = ParityLayout::Dedicated.groups(&layout, &domains, Some(2), 1).unwrap();
        assert_eq!(crowded(&groups, &domains, 1), []);
    }

    #[test]
    fn dedicated_positions_are_on_nodes_that_their_group_has_nobody_on() {
        let groups = |(p, q): (usize, usize), domains: &[String], size, losses| {
            let dedicated = ParityLayout::Dedicated.dedicated(p * q, size, losses);
            let layout = Layout { dedicated, ..layout(p, q, Mapping::Row) };
            assert_eq!(domains.len(), p * q + dedicated);
            ParityLayout::Dedicated.groups(&layout, domains, size, losses)
        };
        assert_eq!(groups((2, 2), &names(0..5), None, 1).unwrap(), [[0, 1, 2, 3, 4]]);
        assert_eq!(groups((2, 2), &names(0..6), None, 2).unwrap(), [[0, 1, 2, 3, 4, 5]]);
        // Two ranks are on each of nine nodes. The ranks of the ninth node have the parity.
        let pairs = names((0..18).map(|rank| rank / 2));
        let [even, odd] = &groups((4, 4), &pairs, Some(8), 1).unwrap()[..] else { panic!() };
        assert_eq!(*even, [0, 2, 4, 6, 8, 10, 12, 14, 16]);
        assert_eq!(*odd, [1, 3, 5, 7, 9, 11, 13, 15, 17]);
        // The dedicated positions are on nodes of the grid. Each dedicated position is in the group that has no other member on
        // its node.
        let mixed = names([0, 0, 1, 1, 2, 3, 2, 3].into_iter());
        assert!(groups((2, 3), &mixed, Some(3), 1).is_ok());
        let why = |grid, domains: &[String], size, losses| {
            groups(grid, domains, size, losses).unwrap_err().to_string()
        };
        let same = why((2, 2), &names([0, 1, 2, 3, 3].into_iter()), None, 1);
        assert!(same.contains("position 4") && same.contains("\"n3\""), "{same}");
        let both = why((2, 2), &names([0, 1, 2, 3, 4, 4].into_iter()), None, 2);
        assert!(both.contains("\"n4\""), "{both}");
        let few = why((4, 4), &names((0..17).map(|rank| rank / 2)), None, 1);
        assert!(few.contains("--group 8"), "{few}");
        // The advice is possible: it never asks for groups of a single member.
        let crowded = why((1, 7), &names([0, 0, 0, 0, 0, 1, 2, 3].into_iter()), None, 1);
        assert!(crowded.contains("fewer ranks on a node"), "{crowded}");
        let large = why((1, 240), &names(0..241), Some(240), 1);
        assert!(large.contains("at most 240"), "{large}");
    }
}

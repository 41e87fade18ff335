//! Which member of a group holds what of which stripe: pure arithmetic.
//!
//! A member's data is a stack of rows, counted from the *bottom* of its local matrix: what changes
//! late in a factorisation lies there, for every member, however sizes differ. So however far the corner has
//! shrunk, memory and traffic are the same for all.
//!
//! `Spread::Rotated`: G - m rows of each member make a cycle of G stripes. In stripe t the members t, t+1, .., t+m-1
//! (mod G) hold parity, the others one row of data each. So each member holds m parity rows for each G - m rows of data.
//!
//! `Spread::Copied`: G rows of each member make a cycle of G stripes. In every stripe each member holds a row of data and, of
//! the parity whose number is its own modulo m, a row beside it. So each member holds as much parity as data, and in a group
//! of m(m+1) each parity is there m+1 times: whichever m members are lost, one copy of each is left.
//!
//! `Spread::Apart`: the last m members of a group have no data, and hold one parity each; the others hold none. A cycle is one
//! stripe, with a row of each.

use serde::{Deserialize, Serialize};

/// How the parity of a group lies over its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Each member holds its share of all parities.
    Rotated,
    /// Each member holds one parity whole.
    Copied,
    /// So does each of the last members, which have no data, and only those.
    Apart,
}

impl Spread {
    /// Members that a group must have to survive so many losses.
    pub fn members_least(self, losses: usize) -> usize {
        match self {
            Spread::Rotated | Spread::Apart => losses + 1,
            Spread::Copied => losses * (losses + 1),
        }
    }

    /// Words of parity beside each word of data, in a group as a whole.
    pub fn parity_share(self, size: usize, losses: usize) -> f64 {
        match self {
            _ if losses == 0 => 0.0,
            Spread::Rotated | Spread::Apart => losses as f64 / (size - losses) as f64,
            Spread::Copied => 1.0,
        }
    }
}

/// The stripes of a group of `size` members that survives `losses` lost ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    pub size: usize,
    pub losses: usize,
    pub spread: Spread,
}

/// One of a member's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The row of data with this number.
    Data(usize),
    /// The row of parity with this number.
    Parity(usize),
}

impl Stripes {
    /// Without losses there is no parity.
    ///
    /// # Panics
    /// If the group is too small to survive the losses: settings are checked before a run.
    pub fn new(spread: Spread, size: usize, losses: usize) -> Self {
        assert!(size >= spread.members_least(losses), "{losses} losses in a group of {size}");
        Self { size, losses, spread }
    }

    /// Stripes of one cycle.
    pub fn slots(&self) -> usize {
        match self.spread {
            Spread::Rotated | Spread::Copied => self.size,
            Spread::Apart => 1,
        }
    }

    /// Members that have data, if they are not all: the first so many.
    fn with_data(&self) -> usize {
        self.size - self.losses
    }

    /// Data rows of one member that has data in one cycle.
    pub fn rows_per_cycle(&self) -> usize {
        match self.spread {
            Spread::Rotated => self.size - self.losses,
            Spread::Copied => self.size,
            Spread::Apart => 1,
        }
    }

    /// Parity rows of one member that holds parity in one cycle.
    fn parity_per_cycle(&self) -> usize {
        match self.spread {
            Spread::Rotated => self.losses,
            _ if self.losses == 0 => 0,
            Spread::Copied => self.size,
            Spread::Apart => 1,
        }
    }

    /// Whether a member holds any parity.
    pub fn holds_parity(&self, member: usize) -> bool {
        self.spread != Spread::Apart || member >= self.with_data()
    }

    /// Cycles that cover `rows` data rows.
    pub fn cycles(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows_per_cycle())
    }

    /// Parity rows that a member which holds parity has for `rows` data rows of the tallest member.
    pub fn parity_rows(&self, rows: usize) -> usize {
        self.cycles(rows) * self.parity_per_cycle()
    }

    /// Members that hold parity row `parity` of stripe `slot` of each cycle.
    pub fn holders(&self, slot: usize, parity: usize) -> impl Iterator<Item = usize> {
        let (first, step) = match self.spread {
            Spread::Rotated => ((slot + parity) % self.size, self.size),
            Spread::Copied => (parity, self.losses),
            Spread::Apart => (self.with_data() + parity, self.size),
        };
        (first..self.size).step_by(step)
    }

    /// The stripe of parity `parity` of which `member` is the end of the sum: each member of one, or, where parity is apart, its
    /// holder alone.
    pub fn slot_ended(&self, member: usize, parity: usize) -> Option<usize> {
        match self.spread {
            Spread::Rotated => Some((member + self.size - parity) % self.size),
            Spread::Copied => Some(member),
            Spread::Apart => (member == self.with_data() + parity).then_some(0),
        }
    }

    /// The row of data that a member has in a stripe, by its number within the cycle.
    pub fn data(&self, member: usize, slot: usize) -> Option<usize> {
        match self.spread {
            Spread::Rotated => {
                let behind = (slot + self.size - member - 1) % self.size;
                (behind < self.rows_per_cycle()).then_some(behind)
            }
            Spread::Copied => Some(slot),
            Spread::Apart => (member < self.with_data()).then_some(0),
        }
    }

    /// The row of parity that a member has in a stripe: which parity it is, and its number within the cycle.
    pub fn parity(&self, member: usize, slot: usize) -> Option<(usize, usize)> {
        match self.spread {
            Spread::Rotated => {
                let parity = (member + self.size - slot) % self.size;
                (parity < self.losses).then_some((parity, parity))
            }
            Spread::Copied => (self.losses > 0).then(|| (member % self.losses, slot)),
            Spread::Apart => Some((member.checked_sub(self.with_data())?, 0)),
        }
    }

    /// The row of a cycle that has this number within it.
    pub fn of_cycle(&self, within: Role, cycle: usize) -> Role {
        match within {
            Role::Data(row) => Role::Data(cycle * self.rows_per_cycle() + row),
            Role::Parity(row) => Role::Parity(cycle * self.parity_per_cycle() + row),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Groups of up to `most` members, and what they can survive.
    pub(crate) fn all(most: usize) -> impl Iterator<Item = Stripes> {
        [Spread::Rotated, Spread::Copied, Spread::Apart].into_iter().flat_map(move |spread| {
            (2..=most).flat_map(move |size| {
                let fit = (1..size.min(5)).filter(move |&m| spread.members_least(m) <= size);
                fit.map(move |losses| Stripes::new(spread, size, losses))
            })
        })
    }

    #[test]
    fn every_row_is_in_one_stripe_and_every_stripe_has_its_parity() {
        for stripes in all(13) {
            let Stripes { size, losses, spread } = stripes;
            for slot in 0..stripes.slots() {
                for member in 0..size {
                    let holds = |p: usize| stripes.holders(slot, p).any(|holder| holder == member);
                    let held: Vec<usize> = (0..losses).filter(|&p| holds(p)).collect();
                    match stripes.parity(member, slot) {
                        Some((parity, _)) => assert_eq!(held, [parity]),
                        None => assert!(held.is_empty()),
                    }
                    let both = spread == Spread::Copied;
                    assert_eq!(stripes.data(member, slot).is_some(), both || held.is_empty());
                }
                for parity in 0..losses {
                    let copies = stripes.holders(slot, parity).count();
                    match spread {
                        Spread::Rotated | Spread::Apart => assert_eq!(copies, 1),
                        Spread::Copied => assert!(copies > losses, "{stripes:?}"),
                    }
                }
            }
            for parity in 0..losses {
                let end = |member| Some((member, stripes.slot_ended(member, parity)?));
                let ended: Vec<(usize, usize)> = (0..size).filter_map(end).collect();
                if spread != Spread::Copied {
                    for &(member, slot) in &ended {
                        assert!(stripes.holders(slot, parity).eq([member]));
                    }
                }
                let mut slots: Vec<usize> = ended.into_iter().map(|(_, slot)| slot).collect();
                slots.sort_unstable();
                assert!(slots.into_iter().eq(0..stripes.slots()));
            }
            for member in 0..size {
                let (mut data, mut parity) = (Vec::new(), Vec::new());
                for cycle in 0..3 {
                    for slot in 0..stripes.slots() {
                        let within = stripes.data(member, slot).map(Role::Data);
                        let beside = stripes.parity(member, slot).map(|(_, row)| Role::Parity(row));
                        for within in within.into_iter().chain(beside) {
                            match stripes.of_cycle(within, cycle) {
                                Role::Data(row) => data.push(row),
                                Role::Parity(row) => parity.push(row),
                            }
                        }
                    }
                }
                data.sort_unstable();
                parity.sort_unstable();
                let apart = spread == Spread::Apart;
                assert_eq!(stripes.holds_parity(member), !parity.is_empty());
                assert_eq!(data.is_empty(), apart && stripes.holds_parity(member));
                if !data.is_empty() {
                    assert!(data.into_iter().eq(0..3 * stripes.rows_per_cycle()));
                }
                if !parity.is_empty() {
                    let rows = stripes.parity_rows(3 * stripes.rows_per_cycle());
                    assert!(parity.into_iter().eq(0..rows));
                }
            }
        }
    }

    #[test]
    fn parity_takes_its_share_and_hardly_more() {
        let rotated = [(2, 1), (16, 1), (16, 2), (7, 3)].map(|group| (Spread::Rotated, group));
        let copied = [(2, 1), (6, 2), (7, 2), (20, 4)].map(|group| (Spread::Copied, group));
        let apart = [(2, 1), (17, 1), (18, 2), (7, 3)].map(|group| (Spread::Apart, group));
        for (spread, (size, losses)) in rotated.into_iter().chain(copied).chain(apart) {
            let stripes = Stripes::new(spread, size, losses);
            let rows = 5000;
            let all = (0..size).filter(|&member| stripes.holds_parity(member)).count();
            let data = if spread == Spread::Apart { size - losses } else { size };
            let ideal = rows as f64 * spread.parity_share(size, losses);
            let real = stripes.parity_rows(rows) as f64 * all as f64 / data as f64;
            assert!(real >= ideal && real < ideal * 1.01 + losses as f64, "{stripes:?}");
        }
    }
}

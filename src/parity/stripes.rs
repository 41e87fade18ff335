//! Assignment of data and parity of each stripe to the members of a group, as pure arithmetic.
//!
//! Data rows are counted from the *bottom* of a member's local matrix. The part that still changes late in a factorisation lies
//! there, for every member and any size. So members need equal memory and traffic, however far the trailing submatrix has shrunk.
//!
//! Below, G is the number of members of a group, and m is the number of losses that the group survives.
//!
//! `Spread::Rotated`: G - m data rows of each member make a cycle of G stripes. In stripe t, members t, t+1, .., t+m-1 (mod G)
//! hold one parity row each, and the other members one data row each. So each member holds m parity rows for each G - m data
//! rows.
//!
//! `Spread::Copied`: G data rows of each member make a cycle of G stripes. In every stripe, each member holds a data row and a
//! row of one parity. The number of this parity is the member's number modulo m. So each member holds as much parity as data. In
//! a group of m(m+1) members, each parity has m+1 copies: whichever m members are lost, one copy of each parity is left.
//!
//! `Spread::Apart`: the last m members of a group have no data, and hold one parity each. The other members hold data only. A
//! cycle is one stripe, with one row of each member.

use serde::{Deserialize, Serialize};

/// Parity layout of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Each member holds a part of every parity.
    Rotated,
    /// Each member holds one parity completely.
    Copied,
    /// Each of the last members holds one parity completely and no data; the other members hold data only.
    Apart,
}

impl Spread {
    /// Minimum number of members of a group that survives this number of losses.
    pub fn members_least(self, losses: usize) -> usize {
        match self {
            Spread::Rotated | Spread::Apart => losses + 1,
            Spread::Copied => losses * (losses + 1),
        }
    }
}

/// Stripes of a group of `size` members that survives the loss of any `losses` members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    pub size: usize,
    pub losses: usize,
    pub spread: Spread,
}

/// A row of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Data row with this number, counted from the bottom of the matrix.
    Data(usize),
    /// Parity row with this number.
    Parity(usize),
}

impl Stripes {
    /// Describes the stripes of a group. If `losses` is 0, the group has no parity.
    ///
    /// # Panics
    /// If the group is too small to survive this number of losses. Settings are checked before a run.
    pub fn new(spread: Spread, size: usize, losses: usize) -> Self {
        assert!(
            size >= spread.members_least(losses),
            "a group of {size} cannot survive {losses} losses"
        );
        Self { size, losses, spread }
    }

    /// Number of stripes in one cycle. The assignment of stripes to members repeats after a cycle.
    pub fn slots(&self) -> usize {
        match self.spread {
            Spread::Rotated | Spread::Copied => self.size,
            Spread::Apart => 1,
        }
    }

    /// Number of members with data under [`Spread::Apart`]. These members come before the members with parity.
    fn with_data(&self) -> usize {
        self.size - self.losses
    }

    /// Number of data rows in one cycle, for a member with data.
    pub fn rows_per_cycle(&self) -> usize {
        match self.spread {
            Spread::Rotated => self.size - self.losses,
            Spread::Copied => self.size,
            Spread::Apart => 1,
        }
    }

    /// Number of parity rows in one cycle, for a member with parity.
    fn parity_per_cycle(&self) -> usize {
        match self.spread {
            Spread::Rotated => self.losses,
            _ if self.losses == 0 => 0,
            Spread::Copied => self.size,
            Spread::Apart => 1,
        }
    }

    /// Returns whether the member holds any parity.
    pub fn holds_parity(&self, member: usize) -> bool {
        self.spread != Spread::Apart || member >= self.with_data()
    }

    /// Number of cycles of stripes that cover `rows` data rows.
    pub fn cycles(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows_per_cycle())
    }

    /// Number of parity rows of a member with parity. `rows` is the largest number of data rows of any member.
    pub fn parity_rows(&self, rows: usize) -> usize {
        self.cycles(rows) * self.parity_per_cycle()
    }

    /// Lists the members that hold parity row `parity` of stripe `slot` of each cycle.
    pub fn holders(&self, slot: usize, parity: usize) -> impl Iterator<Item = usize> {
        let (first, step) = match self.spread {
            Spread::Rotated => ((slot + parity) % self.size, self.size),
            Spread::Copied => (parity, self.losses),
            Spread::Apart => (self.with_data() + parity, self.size),
        };
        (first..self.size).step_by(step)
    }

    /// Returns the stripe whose sum for parity `parity` ends at `member`. None under [`Spread::Apart`] if `member` does not hold
    /// this parity.
    pub fn slot_ended(&self, member: usize, parity: usize) -> Option<usize> {
        match self.spread {
            Spread::Rotated => Some((member + self.size - parity) % self.size),
            Spread::Copied => Some(member),
            Spread::Apart => (member == self.with_data() + parity).then_some(0),
        }
    }

    /// Returns the number, within the cycle, of a member's data row in a stripe. None if the member has no data row in this
    /// stripe.
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

    /// Returns the parity row of a member in a stripe: the number of the parity, and the number of the row within the cycle. None
    /// if the member has no parity row in this stripe.
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

    /// Converts the number of a row within cycle `cycle` to the number of the row at the member.
    pub fn of_cycle(&self, within: Role, cycle: usize) -> Role {
        match within {
            Role::Data(row) => Role::Data(cycle * self.rows_per_cycle() + row),
            Role::Parity(row) => Role::Parity(cycle * self.parity_per_cycle() + row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::groups::all;
    use crate::testkit::papers::parity_share;

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
                        let of_parity =
                            stripes.parity(member, slot).map(|(_, row)| Role::Parity(row));
                        for within in within.into_iter().chain(of_parity) {
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
            let ideal = rows as f64 * parity_share(spread, size, losses);
            let real = stripes.parity_rows(rows) as f64 * all as f64 / data as f64;
            assert!(real >= ideal && real < ideal * 1.01 + losses as f64, "{stripes:?}");
        }
    }
}

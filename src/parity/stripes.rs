//! Which member of a group holds what of which stripe: pure arithmetic.
//!
//! A member's data is a stack of rows, counted from the *bottom* of its local matrix: what changes
//! late in a factorisation lies there, for every member, however sizes differ. G - m rows of each
//! member make a cycle of G stripes. In stripe t the members t, t+1, .., t+m-1 (mod G) hold parity,
//! the others one row of data each. So each member holds m parity rows for each G - m rows of data, and
//! however far the corner has shrunk, memory and traffic are the same for all.

/// The rotation for a group of `size` members that survives `losses` lost ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    pub size: usize,
    pub losses: usize,
}

/// What a member holds in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The row with this number within the cycle's G - m.
    Data(usize),
    /// The parity row with this number.
    Parity(usize),
}

impl Stripes {
    /// Without losses there is no parity.
    ///
    /// # Panics
    /// Unless losses < size: settings are checked before a run.
    pub fn new(size: usize, losses: usize) -> Self {
        assert!(losses < size, "{losses} losses in a group of {size}");
        Self { size, losses }
    }

    /// Data rows of one member in one cycle.
    pub fn rows_per_cycle(&self) -> usize {
        self.size - self.losses
    }

    /// Cycles that cover `rows` data rows.
    pub fn cycles(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows_per_cycle())
    }

    /// Parity rows a member holds for `rows` data rows of the tallest member.
    pub fn parity_rows(&self, rows: usize) -> usize {
        self.cycles(rows) * self.losses
    }

    /// Member holding parity row `parity` of stripe `slot` of each cycle.
    pub fn holder(&self, slot: usize, parity: usize) -> usize {
        (slot + parity) % self.size
    }

    /// The stripe whose parity row `parity` is held by `member`.
    pub fn slot_held(&self, member: usize, parity: usize) -> usize {
        (member + self.size - parity) % self.size
    }

    pub fn role(&self, member: usize, slot: usize) -> Role {
        let behind = (slot + self.size - member - 1) % self.size;
        if behind < self.rows_per_cycle() {
            Role::Data(behind)
        } else {
            Role::Parity((member + self.size - slot) % self.size)
        }
    }

    /// Where a member's part of stripe `slot` of cycle `cycle` is: as data or as parity, which row.
    pub fn row(&self, member: usize, slot: usize, cycle: usize) -> Role {
        match self.role(member, slot) {
            Role::Data(d) => Role::Data(cycle * self.rows_per_cycle() + d),
            Role::Parity(p) => Role::Parity(cycle * self.losses + p),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_stripe_and_every_stripe_has_its_parity() {
        for size in 2..12 {
            for losses in 1..size.min(5) {
                let stripes = Stripes::new(size, losses);
                for slot in 0..size {
                    let holders: Vec<usize> =
                        (0..losses).map(|p| stripes.holder(slot, p)).collect();
                    for member in 0..size {
                        match stripes.role(member, slot) {
                            Role::Parity(p) => {
                                assert_eq!(holders[p], member);
                                assert_eq!(stripes.slot_held(member, p), slot);
                            }
                            Role::Data(_) => assert!(!holders.contains(&member)),
                        }
                    }
                }
                for member in 0..size {
                    let mut data = Vec::new();
                    let mut parity = Vec::new();
                    for cycle in 0..3 {
                        for slot in 0..size {
                            match stripes.row(member, slot, cycle) {
                                Role::Data(row) => data.push(row),
                                Role::Parity(row) => parity.push(row),
                            }
                        }
                    }
                    data.sort();
                    parity.sort();
                    assert!(data.iter().copied().eq(0..3 * (size - losses)));
                    assert!(parity.iter().copied().eq(0..3 * losses));
                }
            }
        }
    }

    #[test]
    fn parity_takes_its_share_and_hardly_more() {
        for (size, losses) in [(2, 1), (16, 1), (16, 2), (7, 3)] {
            let stripes = Stripes::new(size, losses);
            let rows = 5000;
            let ideal = rows as f64 * losses as f64 / (size - losses) as f64;
            let real = stripes.parity_rows(rows) as f64;
            assert!(real >= ideal && real < ideal * 1.01 + losses as f64);
        }
    }
}

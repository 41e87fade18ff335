//! Plans of encoding and rebuilding. A plan lists, as plain data, the weighted sum of rows that gives each row.
//!
//! Plans of both kinds are lists of [`Combine`], so the same functions execute both. A test can check a plan without sending
//! data.

use super::code::{Code, Weight, byte_weight, real_weight};
use super::field::{Field, invert};
use super::stripes::{Role, Stripes};

/// Weighted sum of members' rows, with the same weights in every cycle of stripes. The sum is a row of a stripe and ends at
/// member `target`.
#[derive(Clone, Debug, PartialEq)]
pub struct Combine {
    pub target: usize,
    /// Row of the target, within the cycle of stripes, that receives the sum. None if the target passes the sum on to several
    /// holders.
    pub row: Option<Role>,
    /// Rows of each member in the sum, with the weights of these rows. Row numbers count within the cycle of stripes.
    pub terms: Vec<Terms>,
}

/// Contribution of one member to a weighted sum: at most one data row and one parity row of a stripe, with their weights.
pub type Terms = Vec<(Role, Weight)>;

/// Lists the weighted sums that make parity `parity` of all stripes, in the order of their targets. Each member is the target of
/// exactly one sum. Under `Spread::Apart`, the holder of `parity` is the only target.
pub fn encode(code: Code, stripes: Stripes, parity: usize) -> Vec<Combine> {
    match code {
        Code::Xor | Code::ReedSolomon => Weights { stripes, of: byte_weight }.encode(parity),
        Code::Sum | Code::Weighted => Weights { stripes, of: real_weight }.encode(parity),
    }
}

/// Lists the weighted sums of survivors' rows that rebuild all rows of the lost members, data and parity. None if more members
/// are lost than the group survives.
pub fn rebuild(code: Code, stripes: Stripes, lost: &[usize]) -> Option<Vec<Combine>> {
    match code {
        Code::Xor | Code::ReedSolomon => Weights { stripes, of: byte_weight }.rebuild(lost),
        Code::Sum | Code::Weighted => Weights { stripes, of: real_weight }.rebuild(lost),
    }
}

/// Weights of a code in a group. The function `of(parity, member)` returns the weight of member `member`'s data in parity row
/// `parity`.
struct Weights<W> {
    stripes: Stripes,
    of: W,
}

/// Weights in a stripe: of the data row and of the parity row of each member.
#[derive(Clone)]
struct OfStripe<F> {
    data: Vec<F>,
    parity: Vec<F>,
}

impl<F: Field + Into<Weight>, W: Fn(usize, usize) -> F> Weights<W> {
    fn encode(&self, parity: usize) -> Vec<Combine> {
        let stripes = self.stripes;
        (0..stripes.size)
            .filter_map(|target| {
                let slot = stripes.slot_ended(target, parity)?;
                // If a parity has several holders, the member at which the sum ends sends the sum to the holders later.
                let alone = stripes.holders(slot, parity).eq([target]);
                let row = stripes.parity(target, slot).filter(|_| alone);
                let row = row.map(|(_, row)| Role::Parity(row));
                Some(self.combine(target, slot, row, self.of_parity(slot, parity)))
            })
            .collect()
    }

    fn rebuild(&self, lost: &[usize]) -> Option<Vec<Combine>> {
        let stripes = self.stripes;
        if lost.len() > stripes.losses {
            return None;
        }
        let mut plan = Vec::new();
        for slot in 0..stripes.slots() {
            let data: Vec<usize> =
                lost.iter().copied().filter(|&x| stripes.data(x, slot).is_some()).collect();
            let rows = self.of_lost_data(lost, &data, slot)?;
            for (&target, weights) in data.iter().zip(&rows) {
                let row = stripes.data(target, slot).map(Role::Data);
                plan.push(self.combine(target, slot, row, weights.clone()));
            }
            for &target in lost {
                let Some((parity, row)) = stripes.parity(target, slot) else { continue };
                let weights = self.of_lost_parity(lost, slot, parity, data.iter().zip(&rows));
                plan.push(self.combine(target, slot, Some(Role::Parity(row)), weights));
            }
        }
        Some(plan)
    }

    fn zeros(&self) -> Vec<F> {
        vec![F::ZERO; self.stripes.size]
    }

    fn of_parity(&self, slot: usize, parity: usize) -> OfStripe<F> {
        let weight = |member| match self.stripes.data(member, slot) {
            Some(_) => (self.of)(parity, member),
            None => F::ZERO,
        };
        OfStripe { data: (0..self.stripes.size).map(weight).collect(), parity: self.zeros() }
    }

    /// Returns a surviving holder of a parity of a stripe; None if all holders of this parity are lost.
    fn left(&self, lost: &[usize], slot: usize, parity: usize) -> Option<usize> {
        self.stripes.holders(slot, parity).find(|holder| !lost.contains(holder))
    }

    /// Returns the weights with which rows of survivors add up to a lost data row of the stripe, for each member of `data`.
    /// `data` lists the lost members that have a data row in the stripe. None if too few parities survive.
    fn of_lost_data(
        &self,
        lost: &[usize],
        data: &[usize],
        slot: usize,
    ) -> Option<Vec<OfStripe<F>>> {
        let stripes = self.stripes;
        // One equation for each unknown, each from a surviving parity: the number of the parity and its holder.
        let equations: Vec<(usize, usize)> = (0..stripes.losses)
            .filter_map(|parity| Some((parity, self.left(lost, slot, parity)?)))
            .take(data.len())
            .collect();
        if equations.len() < data.len() {
            return None;
        }
        let equation = |&(p, _): &(usize, usize)| data.iter().map(|&x| (self.of)(p, x)).collect();
        let mut solve: Vec<Vec<F>> = equations.iter().map(equation).collect();
        if !invert(&mut solve) {
            return None;
        }
        // Subtracts the survivors' data from each equation.
        let row = |solved: &Vec<F>| {
            let mut weights = OfStripe { data: self.zeros(), parity: self.zeros() };
            for (&factor, &(parity, holder)) in solved.iter().zip(&equations) {
                weights.parity[holder] = factor;
                for member in (0..stripes.size).filter(|member| !lost.contains(member)) {
                    if stripes.data(member, slot).is_some() {
                        let gone = factor.times((self.of)(parity, member));
                        weights.data[member] = weights.data[member].minus(gone);
                    }
                }
            }
            weights
        };
        Some(solve.iter().map(row).collect())
    }

    /// Returns weights that give a lost parity row. If a holder of this parity survives, the weights copy the row of that holder.
    /// Otherwise the parity is computed from the data rows. `rows` has the weights of those data rows that are lost.
    fn of_lost_parity<'a>(
        &self,
        lost: &[usize],
        slot: usize,
        parity: usize,
        rows: impl Iterator<Item = (&'a usize, &'a OfStripe<F>)>,
    ) -> OfStripe<F>
    where
        F: 'a,
    {
        if let Some(holder) = self.left(lost, slot, parity) {
            let mut copy = OfStripe { data: self.zeros(), parity: self.zeros() };
            copy.parity[holder] = F::ONE;
            return copy;
        }
        let mut weights = self.of_parity(slot, parity);
        for (&member, row) in rows {
            let factor = std::mem::replace(&mut weights.data[member], F::ZERO);
            for (all, new) in [(&mut weights.data, &row.data), (&mut weights.parity, &row.parity)] {
                for (w, &d) in all.iter_mut().zip(new) {
                    *w = w.plus(factor.times(d));
                }
            }
        }
        weights
    }

    fn combine(
        &self,
        target: usize,
        slot: usize,
        row: Option<Role>,
        weights: OfStripe<F>,
    ) -> Combine {
        let stripes = self.stripes;
        let all = weights.data.into_iter().zip(weights.parity).enumerate();
        let terms = all.map(|(member, (of_data, of_parity))| {
            let data = stripes.data(member, slot).map(|row| (Role::Data(row), of_data.into()));
            let parity = stripes.parity(member, slot);
            let parity = parity.map(|(_, row)| (Role::Parity(row), of_parity.into()));
            let takes_part = |(_, weight): &(Role, Weight)| !weight.is_zero();
            data.into_iter().chain(parity).filter(takes_part).collect()
        });
        Combine { target, row, terms: terms.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stripes::Spread;
    use super::*;
    use crate::testkit::groups::{all, subsets};

    const LOST_BY_ROUNDING: f64 = 1e-8;

    /// Rows of a member in one cycle of stripes, with one word in each row.
    #[derive(Clone, PartialEq, Debug)]
    struct Rows {
        data: Vec<u64>,
        parity: Vec<u64>,
    }

    impl Rows {
        fn at(&mut self, role: Role) -> &mut u64 {
            match role {
                Role::Data(row) => &mut self.data[row],
                Role::Parity(row) => &mut self.parity[row],
            }
        }
    }

    fn sum(rows: &mut [Rows], c: &Combine) -> u64 {
        let mut sum = [0u64];
        for (member, terms) in rows.iter_mut().zip(&c.terms) {
            for &(role, weight) in terms {
                weight.add(&[*member.at(role)], &mut sum);
            }
        }
        sum[0]
    }

    /// Encodes one cycle of stripes with one word in each row. Then loses every possible set of members, rebuilds and compares.
    fn survives_every_loss(code: Code, stripes: Stripes) {
        let Stripes { size, losses, .. } = stripes;
        let value = |member: usize, row: usize| -> u64 {
            let x = (member * 31 + row * 7 + 1) as u64;
            match code {
                Code::Sum | Code::Weighted => (x as f64).to_bits(),
                _ => x.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            }
        };
        let (per_cycle, parity_rows) = (stripes.rows_per_cycle(), stripes.parity_rows(1));
        // Under `Spread::Apart`, a member with parity has no data.
        let data = |member| match stripes.data(member, 0) {
            None if stripes.spread == Spread::Apart => 0,
            _ => per_cycle,
        };
        let parity = |member| if stripes.holds_parity(member) { parity_rows } else { 0 };
        let mut rows: Vec<Rows> = (0..size)
            .map(|member| Rows {
                data: (0..data(member)).map(|row| value(member, row)).collect(),
                parity: vec![0; parity(member)],
            })
            .collect();
        for parity in 0..losses {
            for c in encode(code, stripes, parity) {
                let word = sum(&mut rows, &c);
                let slot = stripes.slot_ended(c.target, parity).unwrap();
                for holder in stripes.holders(slot, parity) {
                    let (number, row) = stripes.parity(holder, slot).unwrap();
                    assert_eq!(number, parity);
                    rows[holder].parity[row] = word;
                }
                let own = stripes.parity(c.target, slot).map(|(_, row)| Role::Parity(row));
                assert_eq!(c.row, own.filter(|_| stripes.spread != Spread::Copied));
            }
        }
        for lost in subsets(size, losses) {
            let mut damaged = rows.clone();
            for &member in &lost {
                damaged[member].data.fill(f64::NAN.to_bits());
                damaged[member].parity.fill(f64::NAN.to_bits());
            }
            for c in rebuild(code, stripes, &lost).unwrap() {
                assert!(lost.iter().all(|&x| c.terms[x].is_empty()));
                let word = sum(&mut damaged, &c);
                *damaged[c.target].at(c.row.unwrap()) = word;
            }
            let what = format!("{code:?} {stripes:?} lost {lost:?}");
            // Sums of small whole numbers are exact.
            if code != Code::Weighted {
                assert_eq!(damaged, rows, "{what}");
                continue;
            }
            let words = |rows: &[Rows]| -> Vec<u64> {
                rows.iter().flat_map(|r| r.data.iter().chain(&r.parity)).copied().collect()
            };
            for (got, want) in words(&damaged).into_iter().zip(words(&rows)) {
                let (got, want) = (f64::from_bits(got), f64::from_bits(want));
                // The numbers are at most a thousand.
                assert!((got - want).abs() < LOST_BY_ROUNDING, "{what}: {got} for {want}");
            }
        }
        assert_eq!(rebuild(code, stripes, &(0..=losses).collect::<Vec<_>>()), None);
    }

    /// Checks the number of lost digits in docs/dev/protocol.md: the greatest factor by which rebuilding multiplies an error in
    /// the survivors' rows.
    #[test]
    fn weights_lose_four_digits_at_most_in_groups_of_up_to_16() {
        for size in 2..=16 {
            let losses = Code::Weighted.losses_max().min(size - 1);
            let stripes = Stripes::new(Spread::Rotated, size, losses);
            for lost in subsets(size, losses).iter().filter(|lost| lost.len() == losses) {
                for c in rebuild(Code::Weighted, stripes, lost).unwrap() {
                    let growth: f64 = c
                        .terms
                        .iter()
                        .flatten()
                        .map(|(_, w)| match w {
                            Weight::Real(w) => w.abs(),
                            Weight::Byte(_) => panic!("{w:?}"),
                        })
                        .sum();
                    assert!(growth < 1e4, "G={size} lost {lost:?}: {growth}");
                }
            }
        }
    }

    #[test]
    fn any_losses_up_to_the_limit_are_rebuilt_whatever_members_they_hit() {
        for stripes in all(13) {
            for code in Code::ALL {
                let small = stripes.size < 10 || stripes.spread == Spread::Copied;
                if small && stripes.losses <= code.losses_max() {
                    survives_every_loss(code, stripes);
                }
            }
        }
        for (size, losses) in [(9, 8), (9, 5), (12, 6), (16, 4), (64, 2)] {
            let stripes = Stripes::new(Spread::Rotated, size, losses);
            survives_every_loss(Code::ReedSolomon, stripes);
        }
        survives_every_loss(Code::ReedSolomon, Stripes::new(Spread::Copied, 20, 4));
        for (size, losses) in [(9, 4), (12, 6), (20, 4), (64, 2)] {
            survives_every_loss(Code::ReedSolomon, Stripes::new(Spread::Apart, size, losses));
        }
    }
}

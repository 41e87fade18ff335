//! Which weighted sum of whose rows gives which row: encoding and rebuilding as plain data.
//!
//! Both are lists of [`Combine`], so one executor serves both, and a test can check a plan without
//! moving a byte.

use super::code::{Code, Weight, byte_weight, real_weight};
use super::field::{Field, invert};
use super::stripes::{Role, Stripes};

/// In every cycle, `target`'s row of stripe `slot` is the sum of `weights[i]` times member i's row.
#[derive(Clone, Debug, PartialEq)]
pub struct Combine {
    pub target: usize,
    pub slot: usize,
    pub weights: Vec<Weight>,
}

/// The combinations that make parity row `parity` of all stripes, indexed by the member that holds
/// them: each member is the target of exactly one.
pub fn encode(code: Code, stripes: Stripes, parity: usize) -> Vec<Combine> {
    match code {
        Code::Xor | Code::ReedSolomon => Weights { stripes, of: byte_weight }.encode(parity),
        Code::Sum | Code::Weighted => Weights { stripes, of: real_weight }.encode(parity),
    }
}

/// The combinations that give the lost members all their rows back, data and parity, from rows
/// of survivors only. None if more are lost than the group survives.
pub fn rebuild(code: Code, stripes: Stripes, lost: &[usize]) -> Option<Vec<Combine>> {
    match code {
        Code::Xor | Code::ReedSolomon => Weights { stripes, of: byte_weight }.rebuild(lost),
        Code::Sum | Code::Weighted => Weights { stripes, of: real_weight }.rebuild(lost),
    }
}

/// A code over a group: the weight of a member's data in a parity row.
struct Weights<W> {
    stripes: Stripes,
    of: W,
}

impl<F: Field + Into<Weight>, W: Fn(usize, usize) -> F> Weights<W> {
    fn encode(&self, parity: usize) -> Vec<Combine> {
        let stripes = self.stripes;
        (0..stripes.size)
            .map(|target| {
                let slot = stripes.slot_held(target, parity);
                combine(target, slot, self.of_parity(slot, parity))
            })
            .collect()
    }

    fn rebuild(&self, lost: &[usize]) -> Option<Vec<Combine>> {
        if lost.len() > self.stripes.losses {
            return None;
        }
        let mut plan = Vec::new();
        for &target in lost {
            for slot in 0..self.stripes.size {
                plan.push(combine(target, slot, self.of_lost(lost, target, slot)?));
            }
        }
        Some(plan)
    }

    fn of_parity(&self, slot: usize, parity: usize) -> Vec<F> {
        (0..self.stripes.size)
            .map(|member| match self.stripes.role(member, slot) {
                Role::Data(_) => (self.of)(parity, member),
                Role::Parity(_) => F::ZERO,
            })
            .collect()
    }

    fn of_lost(&self, lost: &[usize], target: usize, slot: usize) -> Option<Vec<F>> {
        let stripes = self.stripes;
        let is_lost = |member: usize| lost.contains(&member);
        let is_data = |member: &usize| matches!(stripes.role(*member, slot), Role::Data(_));
        let lost_data: Vec<usize> = lost.iter().copied().filter(is_data).collect();
        // As many equations as there are unknowns, from parity rows that survived.
        let equations: Vec<usize> = (0..stripes.losses)
            .filter(|&p| !is_lost(stripes.holder(slot, p)))
            .take(lost_data.len())
            .collect();
        if equations.len() < lost_data.len() {
            return None;
        }
        let equation = |&p: &usize| lost_data.iter().map(|&x| (self.of)(p, x)).collect();
        let mut solve: Vec<Vec<F>> = equations.iter().map(equation).collect();
        if !invert(&mut solve) {
            return None;
        }
        // Row of the lost data member number `unknown`, as weights over survivors: what is left of each
        // equation when the survivors' data are taken away.
        let data_row = |unknown: usize| -> Vec<F> {
            (0..stripes.size)
                .map(|member| {
                    if is_lost(member) {
                        return F::ZERO;
                    }
                    match stripes.role(member, slot) {
                        Role::Parity(p) => equations
                            .iter()
                            .position(|&e| e == p)
                            .map_or(F::ZERO, |e| solve[unknown][e]),
                        Role::Data(_) => {
                            equations.iter().enumerate().fold(F::ZERO, |left, (e, &p)| {
                                left.minus(solve[unknown][e].times((self.of)(p, member)))
                            })
                        }
                    }
                })
                .collect()
        };
        match stripes.role(target, slot) {
            Role::Data(_) => Some(data_row(lost_data.iter().position(|&x| x == target)?)),
            Role::Parity(parity) => {
                let mut weights = self.of_parity(slot, parity);
                for (unknown, &member) in lost_data.iter().enumerate() {
                    let factor = std::mem::replace(&mut weights[member], F::ZERO);
                    for (w, d) in weights.iter_mut().zip(data_row(unknown)) {
                        *w = w.plus(factor.times(d));
                    }
                }
                Some(weights)
            }
        }
    }
}

fn combine<F: Into<Weight>>(target: usize, slot: usize, weights: Vec<F>) -> Combine {
    Combine { target, slot, weights: weights.into_iter().map(Into::into).collect() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All sets of at most `most` numbers below `size`.
    pub(crate) fn subsets(size: usize, most: usize) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for x in 0..size {
            let with: Vec<Vec<usize>> = all
                .iter()
                .filter(|s| s.len() < most)
                .map(|s| s.iter().copied().chain([x]).collect())
                .collect();
            all.extend(with);
        }
        all
    }

    const LOST_BY_ROUNDING: f64 = 1e-8;

    /// One stripe cycle, a word a row: encode, lose every possible set, rebuild, compare.
    fn survives_every_loss(code: Code, size: usize, losses: usize) {
        let stripes = Stripes::new(size, losses);
        let value = |member: usize, row: usize| -> u64 {
            let x = (member * 31 + row * 7 + 1) as u64;
            match code {
                Code::Sum | Code::Weighted => (x as f64).to_bits(),
                _ => x.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            }
        };
        let mut rows: Vec<Vec<u64>> = (0..size)
            .map(|member| {
                (0..size)
                    .map(|slot| match stripes.role(member, slot) {
                        Role::Data(d) => value(member, d),
                        Role::Parity(_) => 0,
                    })
                    .collect()
            })
            .collect();
        let combine = |rows: &[Vec<u64>], c: &Combine| {
            let mut sum = [0u64];
            for (member, &weight) in c.weights.iter().enumerate() {
                weight.add(&rows[member][c.slot..][..1], &mut sum);
            }
            sum[0]
        };
        for parity in 0..losses {
            for c in encode(code, stripes, parity) {
                rows[c.target][c.slot] = combine(&rows, &c);
            }
        }
        for lost in subsets(size, losses) {
            let mut damaged = rows.clone();
            for &member in &lost {
                damaged[member].fill(f64::NAN.to_bits());
            }
            for c in rebuild(code, stripes, &lost).unwrap() {
                assert!(lost.iter().all(|&x| c.weights[x].is_zero()));
                damaged[c.target][c.slot] = combine(&damaged, &c);
            }
            let what = format!("{code:?} G={size} m={losses} lost {lost:?}");
            // Sums of small whole numbers are exact.
            if code != Code::Weighted {
                assert_eq!(damaged, rows, "{what}");
                continue;
            }
            for (got, want) in damaged.iter().flatten().zip(rows.iter().flatten()) {
                let (got, want) = (f64::from_bits(*got), f64::from_bits(*want));
                // Numbers of up to a thousand.
                assert!((got - want).abs() < LOST_BY_ROUNDING, "{what}: {got} for {want}");
            }
        }
        assert_eq!(rebuild(code, stripes, &(0..=losses).collect::<Vec<_>>()), None);
    }

    /// What docs/CHECKPOINT.md says of digits: an error of the survivors' rows comes back so many times larger at most.
    #[test]
    fn weights_lose_four_digits_at_most_in_groups_of_up_to_16() {
        for size in 2..=16 {
            let losses = Code::Weighted.losses_max().min(size - 1);
            for lost in subsets(size, losses).iter().filter(|lost| lost.len() == losses) {
                for c in rebuild(Code::Weighted, Stripes::new(size, losses), lost).unwrap() {
                    let growth: f64 = c
                        .weights
                        .iter()
                        .map(|w| match w {
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
        for size in 2..10 {
            survives_every_loss(Code::Xor, size, 1);
            survives_every_loss(Code::Sum, size, 1);
            for losses in 1..size {
                survives_every_loss(Code::ReedSolomon, size, losses);
            }
            for losses in 1..size.min(Code::Weighted.losses_max() + 1) {
                survives_every_loss(Code::Weighted, size, losses);
            }
        }
        survives_every_loss(Code::ReedSolomon, 12, 6);
        survives_every_loss(Code::ReedSolomon, 16, 4);
        survives_every_loss(Code::ReedSolomon, 64, 2);
    }
}

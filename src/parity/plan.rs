//! Which weighted sum of whose rows gives which row: encoding and rebuilding as plain data.
//!
//! Both are lists of [`Combine`], so one executor serves both, and a test can check a plan without
//! moving a byte.

use super::code::{Code, MINUS, PLUS, Weight};
use super::gf256;
use super::stripes::{Role, Stripes};

/// In every cycle, `target`'s row of stripe `slot` is the sum of `weights[i]` times member i's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combine {
    pub target: usize,
    pub slot: usize,
    pub weights: Vec<Weight>,
}

/// The combinations that make parity row `parity` of all stripes, indexed by the member that holds
/// them: each member is the target of exactly one.
pub fn encode(code: Code, stripes: Stripes, parity: usize) -> Vec<Combine> {
    (0..stripes.size)
        .map(|target| {
            let slot = stripes.slot_held(target, parity);
            Combine { target, slot, weights: parity_weights(code, stripes, slot, parity) }
        })
        .collect()
}

fn parity_weights(code: Code, stripes: Stripes, slot: usize, parity: usize) -> Vec<Weight> {
    (0..stripes.size)
        .map(|member| match stripes.role(member, slot) {
            Role::Data(_) => code.weight(parity, member),
            Role::Parity(_) => 0,
        })
        .collect()
}

/// The combinations that give the lost members all their rows back, data and parity, from rows
/// of survivors only. None if more are lost than the group survives.
pub fn rebuild(code: Code, stripes: Stripes, lost: &[usize]) -> Option<Vec<Combine>> {
    if lost.len() > stripes.losses {
        return None;
    }
    let mut plan = Vec::new();
    for &target in lost {
        for slot in 0..stripes.size {
            plan.push(Combine {
                target,
                slot,
                weights: lost_weights(code, stripes, lost, target, slot)?,
            });
        }
    }
    Some(plan)
}

fn lost_weights(
    code: Code,
    stripes: Stripes,
    lost: &[usize],
    target: usize,
    slot: usize,
) -> Option<Vec<Weight>> {
    if code == Code::Sum {
        // One parity row, one loss: parity minus the others, or the sum of all data again.
        let is_parity = stripes.role(target, slot) == Role::Parity(0);
        return Some(
            (0..stripes.size)
                .map(|member| match stripes.role(member, slot) {
                    _ if member == target => 0,
                    Role::Parity(_) => PLUS,
                    Role::Data(_) if is_parity => PLUS,
                    Role::Data(_) => MINUS,
                })
                .collect(),
        );
    }
    let is_lost = |member: usize| lost.contains(&member);
    let lost_data: Vec<usize> =
        lost.iter().copied().filter(|&x| matches!(stripes.role(x, slot), Role::Data(_))).collect();
    // As many equations as there are unknowns, from parity rows that survived.
    let equations: Vec<usize> = (0..stripes.losses)
        .filter(|&p| !is_lost(stripes.holder(slot, p)))
        .take(lost_data.len())
        .collect();
    if equations.len() < lost_data.len() {
        return None;
    }
    let mut solve: Vec<Vec<u8>> =
        equations.iter().map(|&p| lost_data.iter().map(|&x| code.weight(p, x)).collect()).collect();
    if !gf256::invert(&mut solve) {
        return None;
    }
    // Row of the lost data member number `unknown`, as weights over survivors.
    let data_row = |unknown: usize| -> Vec<Weight> {
        (0..stripes.size)
            .map(|member| {
                if is_lost(member) {
                    return 0;
                }
                match stripes.role(member, slot) {
                    Role::Parity(p) => {
                        equations.iter().position(|&e| e == p).map_or(0, |e| solve[unknown][e])
                    }
                    Role::Data(_) => equations.iter().enumerate().fold(0, |sum, (e, &p)| {
                        sum ^ gf256::mul(solve[unknown][e], code.weight(p, member))
                    }),
                }
            })
            .collect()
    };
    match stripes.role(target, slot) {
        Role::Data(_) => Some(data_row(lost_data.iter().position(|&x| x == target)?)),
        Role::Parity(parity) => {
            let mut weights = parity_weights(code, stripes, slot, parity);
            for (unknown, &member) in lost_data.iter().enumerate() {
                let factor = std::mem::take(&mut weights[member]);
                for (w, d) in weights.iter_mut().zip(data_row(unknown)) {
                    *w ^= gf256::mul(factor, d);
                }
            }
            Some(weights)
        }
    }
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

    /// One stripe cycle, a word a row: encode, lose every possible set, rebuild, compare.
    fn survives_every_loss(code: Code, size: usize, losses: usize) {
        let stripes = Stripes::new(size, losses);
        let value = |member: usize, row: usize| -> u64 {
            let x = (member * 31 + row * 7 + 1) as u64;
            match code {
                Code::Sum => (x as f64).to_bits(),
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
                code.add(weight, &rows[member][c.slot..][..1], &mut sum);
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
                assert!(lost.iter().all(|&x| c.weights[x] == 0));
                damaged[c.target][c.slot] = combine(&damaged, &c);
            }
            assert_eq!(damaged, rows, "{code:?} G={size} m={losses} lost {lost:?}");
        }
        assert_eq!(rebuild(code, stripes, &(0..=losses).collect::<Vec<_>>()), None);
    }

    #[test]
    fn any_losses_up_to_the_limit_are_rebuilt_whatever_members_they_hit() {
        for size in 2..10 {
            survives_every_loss(Code::Xor, size, 1);
            survives_every_loss(Code::Sum, size, 1);
            for losses in 1..size.min(5) {
                survives_every_loss(Code::ReedSolomon, size, losses);
            }
        }
        survives_every_loss(Code::ReedSolomon, 16, 4);
        survives_every_loss(Code::ReedSolomon, 64, 2);
    }
}

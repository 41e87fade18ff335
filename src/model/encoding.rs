//! Time to encode a checkpoint over a group (*encoding*, sections 2.2, 3.3 and 4).
//!
//! The time of a binary tree grows with log p; the time of a chain through which the data flow in segments is (almost) the same
//! for any p. So our solver uses rings and chains by default. For them the planner uses [`striped_ring`], [`dedicated_chain`] and
//! [`localised_ring`].

use super::error::{Result, at_least, at_most, finite, fraction, non_negative, positive};

/// A network and the arithmetic at its ends. A message of x bytes takes `alpha + beta x` seconds; adding x bytes to others takes
/// `gamma x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Latency of a message, seconds.
    pub alpha: f64,
    /// Seconds to send one byte.
    pub beta: f64,
    /// Seconds to add or xor one byte.
    pub gamma: f64,
}

impl Link {
    /// Describes the link in words, for the note of a figure.
    pub fn told(&self) -> String {
        format!(
            "latency {:.1} us, bandwidth {:.0} MB/s, arithmetic {:.0} MB/s",
            self.alpha * 1e6,
            1e-6 / self.beta,
            1e-6 / self.gamma.max(1e-18)
        )
    }

    fn check(&self) -> Result<()> {
        non_negative("the latency alpha", self.alpha)?;
        positive("the time per byte beta", self.beta)?;
        non_negative("the arithmetic per byte gamma", self.gamma)?;
        Ok(())
    }

    /// Returns the number of sums of a code, and the seconds in which a byte of a checkpoint is sent and added to one sum.
    fn prices(&self, bytes: f64, code: Code) -> Result<(f64, f64)> {
        positive("the checkpoint size", bytes)?;
        self.check()?;
        let (sums, arithmetic) = code.sums_and_arithmetic()?;
        Ok((sums, self.beta + arithmetic * self.gamma))
    }
}

/// Arithmetic of the checksums: a plain sum (one loss), or one weighted sum for each loss that the group survives. A weighted sum
/// multiplies before it adds, which doubles the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Plain,
    Weighted { losses: u64 },
}

impl Code {
    /// Code of a group that survives `losses` losses.
    fn bearing(losses: u64) -> Code {
        if losses == 1 { Code::Plain } else { Code::Weighted { losses } }
    }

    fn sums_and_arithmetic(self) -> Result<(f64, f64)> {
        match self {
            Code::Plain => Ok((1.0, 1.0)),
            Code::Weighted { losses } => {
                at_least("the number of losses", losses, 1, "at least 1")?;
                Ok((losses as f64, 2.0))
            }
        }
    }
}

/// Seconds to write `p` checkpoints of m = `bytes` to stable storage one after the other, section 2.2: p (beta m + alpha).
pub fn stable_storage(p: u64, bytes: f64, link: Link) -> Result<f64> {
    at_least("the number of processes", p, 1, "at least 1")?;
    positive("the checkpoint size", bytes)?;
    link.check()?;
    finite("the writing time", p as f64 * (link.beta * bytes + link.alpha))
}

/// Logarithm of `processes` to base 2, rounded up; `processes` is at least 1. (The next power of two may exceed a `u64`.)
fn levels(processes: u64) -> f64 {
    f64::from(u64::BITS - (processes - 1).leading_zeros())
}

/// Seconds to encode m = `bytes` with a binary tree, section 2.2 and eq. 6: k * 2 ceil(log2 p) ((beta + gamma) m + alpha) for
/// the k sums of the code. Weighted sums have twice the gamma.
pub fn tree(p: u64, bytes: f64, code: Code, link: Link) -> Result<f64> {
    at_least("the number of processes", p, 2, "at least 2")?;
    let (k, per_byte) = link.prices(bytes, code)?;
    finite("the encoding time", k * 2.0 * levels(p) * (per_byte * bytes + link.alpha))
}

/// Bytes of the segment with which the chain is fastest for m = `bytes`, section 3.3: sqrt(m alpha / ((p - 2)(beta + gamma))),
/// at most the whole checkpoint.
pub fn optimal_segment(p: u64, bytes: f64, code: Code, link: Link) -> Result<f64> {
    at_least("the number of processes", p, 2, "at least 2")?;
    let (_, per_byte) = link.prices(bytes, code)?;
    if p == 2 {
        return Ok(bytes);
    }
    let s = (bytes * link.alpha / ((p - 2) as f64 * per_byte)).sqrt();
    // Without latency the optimum is zero; a segment has at least one byte.
    finite("the segment", s.clamp(1.0_f64.min(bytes), bytes))
}

/// Seconds to encode m = `bytes` with a chain of `p` processes in segments of s = `segment` bytes, section 3.3: k (p - 2 +
/// m/s)(alpha + (beta + gamma) s) for the k sums of the code.
pub fn chain(p: u64, bytes: f64, segment: f64, code: Code, link: Link) -> Result<f64> {
    at_least("the number of processes", p, 2, "at least 2")?;
    positive("the segment", segment)?;
    let (k, per_byte) = link.prices(bytes, code)?;
    let segments = (bytes / segment).max(1.0);
    let segment = segment.min(bytes);
    finite("the encoding time", k * ((p - 2) as f64 + segments) * (link.alpha + per_byte * segment))
}

/// Seconds to encode with a chain and its best segment, eqs. 2 and 7. By eq. 8 this is also the time of the scheme in one
/// dimension: all groups encode at once, so the time does not depend on the number of groups.
pub fn chain_best(p: u64, bytes: f64, code: Code, link: Link) -> Result<f64> {
    let s = optimal_segment(p, bytes, code, link)?;
    chain(p, bytes, s, code, link)
}

/// Seconds of the localised scheme, eq. 9, for k = `losses`: groups of k(k+1) processes, none of which only keeps checksums.
/// Each of the k checksums is sent in segments along a chain of the k + 1 processes that keep it.
pub fn localised(losses: u64, bytes: f64, link: Link) -> Result<f64> {
    at_least("the number of losses", losses, 1, "at least 1")?;
    at_most("the number of losses", losses as f64, 1_048_576.0, "at most a million")?;
    let code = Code::Weighted { losses };
    let encode = chain_best(losses * (losses + 1), bytes, code, link)?;
    let copying = Link { gamma: 0.0, ..link };
    let broadcast = chain_best(losses + 1, bytes, Code::Plain, copying)?;
    finite("the encoding time", encode + broadcast)
}

/// Share of the processes that compute nothing, if `losses` processes only keep the checksums of `members` computing processes
/// (sections 2.1 and 4.1; for each group, section 4.2).
pub fn set_aside(members: u64, losses: u64) -> Result<f64> {
    at_least("the number of computing processes", members, 1, "at least 1")?;
    Ok(losses as f64 / (members as f64 + losses as f64))
}

/// Share of a machine that is lost if the share `idle` is set aside, and the rest stops for `encode_s` seconds every `interval_s`
/// seconds of work.
pub fn lost(idle: f64, encode_s: f64, interval_s: f64) -> Result<f64> {
    fraction("the share set aside", idle)?;
    non_negative("the encoding time", encode_s)?;
    positive("the interval between saves", interval_s)?;
    finite("the share lost", 1.0 - (1.0 - idle) * (interval_s / (interval_s + encode_s)))
}

/// Time to rebuild `lost` of `p` computing processes, by eqs. 4 and 5; the paper gives no formula for this time. Each right
/// side of eq. 4 is a weighted sum over the survivors that ends at its checksum process: a chain of p - lost + 1 processes. The
/// sum then goes to all replacements, like a broadcast in section 4.3. Each replacement multiplies the sums, as they arrive, by
/// its own row of the inverse of A_r, the matrix of these equations.
pub fn recovery_by_equations(p: u64, lost: u64, bytes: f64, link: Link) -> Result<f64> {
    let survivors = survivors(p, lost)?;
    let right_sides = chain_best(survivors + 1, bytes, Code::Weighted { losses: lost }, link)?;
    let adding = Link { gamma: 2.0 * link.gamma, ..link };
    let spread = lost as f64 * chain_best(lost + 1, bytes, Code::Plain, adding)?;
    finite("the recovery time", right_sides + spread)
}

/// Time to rebuild `lost` of `p` computing processes, if the weights already contain the inverse of A_r, the matrix of eq. 4.
/// The data of a lost process are then one weighted sum of survivors and checksums. The sum goes along a chain of p + 1
/// processes that ends at the replacement. An encoding takes equally long.
pub fn recovery_by_sums(p: u64, lost: u64, bytes: f64, link: Link) -> Result<f64> {
    survivors(p, lost)?;
    chain_best(p.saturating_add(1), bytes, Code::Weighted { losses: lost }, link)
}

fn survivors(p: u64, lost: u64) -> Result<u64> {
    at_least("the number of lost processes", lost, 1, "at least 1")?;
    let least = lost.saturating_add(1);
    at_least("the number of computing processes", p, least, "larger than the number lost")?;
    Ok(p - lost)
}

/// Code of a group of `group` members that survives the loss of `losses` members.
fn group_code(group: u64, losses: u64) -> Result<Code> {
    at_least("the number of losses", losses, 1, "at least 1")?;
    let least = losses.saturating_add(1);
    at_least("the group size", group, least, "larger than the number of losses")?;
    Ok(Code::bearing(losses))
}

/// Time to encode striped parity around a ring: each of `group` ranks with `bytes` of data sends partial checksums to the next
/// rank, so that all links are in use all the time.
///
/// A stripe of G = `group` chunks has m = `losses` parity chunks and G - m data chunks. A chunk has bytes/(G - m) bytes. In
/// each of G - 1 steps a rank sends m partial checksums of one chunk: (G - 1)(alpha + m (beta + gamma) bytes / (G - m)).
pub fn striped_ring(group: u64, losses: u64, bytes: f64, link: Link) -> Result<f64> {
    let (m, per_byte) = link.prices(bytes, group_code(group, losses)?)?;
    let g = group as f64;
    finite("the encoding time", (g - 1.0) * (link.alpha + m * per_byte * bytes / (g - m)))
}

/// Time of the paper's own method for striped parity: one MPI_Reduce for each of the G stripes, as a binary tree over one chunk.
pub fn striped_reduce(group: u64, losses: u64, bytes: f64, link: Link) -> Result<f64> {
    let (m, per_byte) = link.prices(bytes, group_code(group, losses)?)?;
    let g = group as f64;
    let chunk = bytes / (g - m);
    finite("the encoding time", g * m * levels(group) * (link.alpha + per_byte * chunk))
}

/// Time to encode checksums on dedicated ranks as our solver does: `group` members, of which the last `losses` have no data. The
/// solver makes one sum after the other along the chain of the members with data. Each sum ends at its own dedicated rank. The
/// time is eq. 7 with segments of 256 KiB.
pub fn dedicated_chain(group: u64, losses: u64, bytes: f64, link: Link) -> Result<f64> {
    let code = group_code(group, losses)?;
    chain(group - losses + 1, bytes, DEDICATED_SEGMENT, code, link)
}

/// Time to encode checksums on dedicated ranks with MPI_Reduce, as a binary tree over all members for each sum and segment.
pub fn dedicated_reduce(group: u64, losses: u64, bytes: f64, link: Link) -> Result<f64> {
    let (k, per_byte) = link.prices(bytes, group_code(group, losses)?)?;
    let messages = (bytes / DEDICATED_SEGMENT).max(1.0);
    finite("the encoding time", k * levels(group) * (link.alpha * messages + per_byte * bytes))
}

/// Bytes of each message that the solver sends for dedicated checksums.
const DEDICATED_SEGMENT: f64 = 262_144.0;

/// Time to encode localised checksums as our solver does. Each of the k = `losses` checksums is summed in pieces around a ring
/// of G = `group` ranks, in G - 1 steps, with all links in use. Each rank then has one of the G pieces of each checksum, and
/// sends every other member the piece that this member keeps: (G-1) (k (alpha + (beta + gamma) bytes/G) + alpha + beta
/// bytes/G).
pub fn localised_ring(group: u64, losses: u64, bytes: f64, link: Link) -> Result<f64> {
    let (g, k, sum, passing) = localised_group(group, losses, bytes, link)?;
    finite("the encoding time", (g - 1.0) * (k * sum + passing))
}

/// Time to encode localised checksums if each piece is summed by a binary tree. There are G k reductions, for k = `losses`
/// checksums of G = `group` pieces. Then every member sends the pieces.
pub fn localised_reduce(group: u64, losses: u64, bytes: f64, link: Link) -> Result<f64> {
    let (g, k, sum, passing) = localised_group(group, losses, bytes, link)?;
    finite("the encoding time", g * k * levels(group) * sum + (g - 1.0) * passing)
}

/// Returns `group` and the number of checksums, the time to send a piece and add to it, and the time to send a piece alone.
fn localised_group(
    group: u64,
    losses: u64,
    bytes: f64,
    link: Link,
) -> Result<(f64, f64, f64, f64)> {
    at_least("the number of losses", losses, 1, "at least 1")?;
    let least = losses.saturating_mul(losses.saturating_add(1));
    at_least("the group size", group, least, "k (k+1) for k losses at least")?;
    positive("the checkpoint size", bytes)?;
    link.check()?;
    let (k, arithmetic) = Code::bearing(losses).sums_and_arithmetic()?;
    let g = group as f64;
    let piece = bytes / g;
    let passing = link.alpha + link.beta * piece;
    Ok((g, k, passing + arithmetic * link.gamma * piece, passing))
}

/// Time of the paper's localised scheme with binary trees in both parts, for k = `losses`; the paper prints no formula for it.
/// The encoding is as in eq. 6 over k(k+1) processes. Each checksum then goes to the k + 1 processes that keep it, in ceil(log2
/// (k+1)) rounds.
pub fn localised_tree(losses: u64, bytes: f64, link: Link) -> Result<f64> {
    at_least("the number of losses", losses, 1, "at least 1")?;
    let holders = losses.saturating_add(1);
    let code = Code::Weighted { losses };
    let encode = tree(losses.saturating_mul(holders), bytes, code, link)?;
    finite("the encoding time", encode + levels(holders) * (link.alpha + link.beta * bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: Link = Link { alpha: 2e-5, beta: 1.0 / 1.2e8, gamma: 1.0 / 1.0e9 };
    const M: f64 = 25e6;

    #[test]
    fn the_best_segment_gives_eq_2() {
        let p = 64u64;
        let (a, b) = (LINK.alpha, LINK.beta + LINK.gamma);
        let hops = (p - 2) as f64;
        let eq2 = hops * a + b * M + 2.0 * (hops * a * b * M).sqrt();
        let ours = chain_best(p, M, Code::Plain, LINK).unwrap();
        assert!((ours / eq2 - 1.0).abs() < 1e-12, "{ours} {eq2}");
    }

    /// Fig. 8: m = 25 MB a process, four losses, p = 60 to 480 processes. The paper prints no link. With `LINK` and B = (beta +
    /// 2 gamma) m = 0.258333 s, eqs. 2 and 7 give, by hand: chain 4 (sqrt(B) + sqrt((p - 2) alpha))^2, tree 4 * 2 ceil(log2 p)
    /// (B + alpha).
    #[test]
    fn figure_8_by_hand() {
        let code = Code::Weighted { losses: 4 };
        for (p, by_chain, by_tree) in [(60, 1.17646, 12.4010), (480, 1.46913, 18.6014)] {
            let (chain, tree) =
                (chain_best(p, M, code, LINK).unwrap(), tree(p, M, code, LINK).unwrap());
            assert!((chain / by_chain - 1.0).abs() < 1e-5, "{p}: {chain}");
            assert!((tree / by_tree - 1.0).abs() < 1e-5, "{p}: {tree}");
        }
    }

    /// With `LINK`, the chain that the paper calls "very stable" takes 25 % more time for 480 processes than for 60. The tree
    /// takes half as much again. With a latency of alpha = 0.797 us the chain takes 5 % more. For this alpha, (1 + sqrt(478
    /// alpha/B)) / (1 + sqrt(58 alpha/B)) is the root of 1.05, with B = 0.258333 s.
    #[test]
    fn figure_8_is_flat_only_where_the_latency_is_small() {
        let code = Code::Weighted { losses: 4 };
        let growth = |alpha| {
            let link = Link { alpha, ..LINK };
            chain_best(480, M, code, link).unwrap() / chain_best(60, M, code, link).unwrap()
        };
        assert!((growth(2e-5) - 1.2488).abs() < 1e-4, "{}", growth(2e-5));
        assert!((growth(0.797e-6) - 1.05).abs() < 1e-4, "{}", growth(0.797e-6));
        // Without latency the paper gives k (beta + 2 gamma) m for any p. A segment has at least one byte, so p - 2 more bytes
        // pass.
        let none = Link { alpha: 0.0, ..LINK };
        let limit = 1.033333 * (1.0 + 478.0 / M);
        assert!((chain_best(480, M, code, none).unwrap() / limit - 1.0).abs() < 1e-6);
    }

    /// Recovery of four of 60 and of four of 480 processes, by hand, with B = (beta + 2 gamma) m = 0.258333 s. The right sides
    /// take 4 (sqrt(B) + sqrt(55 alpha))^2 = 1.172591 s; with 475 in place of 55, 1.467650 s. Sending each to four replacements
    /// takes 4 (sqrt(B) + sqrt(3 alpha))^2 = 1.065069 s. As sums, chains of 61 and 481 processes take 1.177729 s and 1.469635
    /// s. Without latency the two ways take 8 B = 2.0667 s and 4 B, for any number of processes.
    #[test]
    fn recovery_of_figure_8_by_hand() {
        for (p, equations, sums) in [(60, 2.237660, 1.177729), (480, 2.532719, 1.469635)] {
            let ours = recovery_by_equations(p, 4, M, LINK).unwrap();
            assert!((ours / equations - 1.0).abs() < 1e-6, "{p}: {ours}");
            let ours = recovery_by_sums(p, 4, M, LINK).unwrap();
            assert!((ours / sums - 1.0).abs() < 1e-6, "{p}: {ours}");
        }
        let none = Link { alpha: 0.0, ..LINK };
        let limit = recovery_by_equations(480, 4, M, none).unwrap();
        assert!((limit / 2.066667 - 1.0).abs() < 2e-5, "{limit}");
        assert!(
            recovery_by_sums(4, 4, M, LINK).is_err()
                && recovery_by_equations(9, 0, M, LINK).is_err()
        );
    }

    /// Share of the four processes of Fig. 8 that only keep checksums: 4/64 and 4/484 next to 60 and 480 that compute, 4/20 in
    /// groups of 16. With an encoding every 600 s, 1 - 60/64 * 600/601.17646 of the machine is lost in all, and so on.
    #[test]
    fn the_cost_of_dedicated_processes() {
        let code = Code::Weighted { losses: 4 };
        for (p, aside, all) in [(60, 0.0625, 0.0643346), (480, 0.00826446, 0.0106869)] {
            let idle = set_aside(p, 4).unwrap();
            assert!((idle / aside - 1.0).abs() < 1e-6);
            let ours = lost(idle, chain_best(p, M, code, LINK).unwrap(), 600.0).unwrap();
            assert!((ours / all - 1.0).abs() < 1e-5, "{p}: {ours}");
        }
        assert_eq!(set_aside(16, 4).unwrap(), 0.2);
        // Localised: a chain of 20 in 1.111923 s and a broadcast of 25 MB to five, (sqrt(beta m) + sqrt(3 alpha))^2 = 0.215464 s.
        let local = localised(4, M, LINK).unwrap();
        assert!((local / 1.327387 - 1.0).abs() < 1e-6, "{local}");
        assert!((lost(0.0, local, 600.0).unwrap() / 0.00220743 - 1.0).abs() < 1e-5);
    }

    #[test]
    fn one_dimension_does_not_depend_on_the_machine_and_localised_costs_one_more() {
        let k = 2;
        let flat = chain_best(k * (k + 1), M, Code::Weighted { losses: k }, LINK).unwrap();
        let local = localised(k, M, LINK).unwrap();
        assert!(local > flat && local < flat * (k as f64 + 1.2) / k as f64);
    }

    /// Localised checksums of m = 25 MB a process, by hand. With beta m = 0.208333 s, B = beta m + gamma m = 0.233333 s for one
    /// loss, and 0.258333 s for two. Groups of two take (alpha + B/2) + (alpha + beta m/2) = 0.220873 s. Groups of six with two
    /// losses take 5 (2 (alpha + B/6) + alpha + beta m/6) = 0.604467 s. By trees of three levels they take 36 (alpha + B/6) + 5
    /// (alpha + beta m/6) = 1.724431 s.
    #[test]
    fn localised_as_the_solver_makes_it_by_hand() {
        let close =
            |ours: f64, by_hand: f64| assert!((ours / by_hand - 1.0).abs() < 1e-5, "{ours}");
        close(localised_ring(2, 1, M, LINK).unwrap(), 0.220873);
        close(localised_ring(6, 2, M, LINK).unwrap(), 0.604467);
        close(localised_reduce(6, 2, M, LINK).unwrap(), 1.724431);
        // The paper's: a tree of 6, 2 * 2 * 3 (B + alpha) = 3.10024 s, and two rounds of beta m + alpha, 0.416707 s.
        close(localised_tree(2, M, LINK).unwrap(), 3.516947);
        // Without latency and arithmetic k + 1 times the data, less what a rank has already: eq. 9's limit.
        let bare = Link { alpha: 0.0, gamma: 0.0, ..LINK };
        let most = 3.0 * bare.beta * M;
        close(localised_ring(600, 2, M, bare).unwrap(), most * 599.0 / 600.0);
        assert!(localised_ring(5, 2, M, LINK).is_err() && localised_reduce(2, 0, M, LINK).is_err());
    }

    /// Dedicated checksums of 25 MB a process in 95.367432 segments, by hand. A chain of 16 members with data and one for a
    /// checksum takes (15 + 95.367432) * (20 us + 262144 * 9.333333e-9 s) = 0.272241 s. Two losses take twice that, with
    /// 10.333333e-9 s. Trees of five levels take 95.367432 * 20 us + 25e6 * 9.333333e-9 s a level.
    #[test]
    fn dedicated_as_the_solver_makes_it_by_hand() {
        let close =
            |ours: f64, by_hand: f64| assert!((ours / by_hand - 1.0).abs() < 1e-5, "{ours}");
        close(dedicated_chain(17, 1, M, LINK).unwrap(), 0.272241);
        close(dedicated_chain(18, 2, M, LINK).unwrap(), 0.602346);
        close(dedicated_reduce(17, 1, M, LINK).unwrap(), 1.176203);
        close(dedicated_reduce(18, 2, M, LINK).unwrap(), 2.602407);
        // The best segment is a little shorter.
        let best = chain_best(17, M, Code::Plain, LINK).unwrap();
        assert!((1.0..1.1).contains(&(dedicated_chain(17, 1, M, LINK).unwrap() / best)));
        assert!(
            dedicated_chain(2, 2, M, LINK).is_err() && dedicated_reduce(1, 0, M, LINK).is_err()
        );
    }

    /// The table in docs/dev/models.md: 25 MB a process, over processes and losses. The values were computed from the formulas by
    /// another program. Columns: tree and chain over all processes, tree and chain in groups of 16, localised tree and chain;
    /// then ours: stripes of 16 by trees and around the ring, localised by trees and around the ring.
    #[test]
    fn layouts_over_processes_and_losses() {
        let localised_for = |k: u64| -> [f64; 4] {
            match k {
                1 => [0.7251, 0.4667, 0.3376, 0.2209],
                2 => [3.5169, 0.7474, 1.7244, 0.6045],
                _ => [10.9592, 1.3274, 5.3730, 1.1815],
            }
        };
        for (k, p, rest) in [
            (1, 8, [1.4001, 0.2440, 1.4001, 0.2440, 0.8005, 0.2335]),
            (1, 16, [1.8668, 0.2498, 1.8668, 0.2498, 0.9968, 0.2336]),
            (1, 64, [2.8002, 0.2686, 1.8668, 0.2498, 0.9968, 0.2336]),
            (1, 480, [4.2004, 0.3374, 1.8668, 0.2498, 0.9968, 0.2336]),
            (2, 8, [3.1002, 0.5392, 3.1002, 0.5392, 2.0676, 0.6029]),
            (2, 16, [4.1337, 0.5512, 4.1337, 0.5512, 2.3645, 0.5539]),
            (2, 64, [6.2005, 0.5907, 4.1337, 0.5512, 2.3645, 0.5539]),
            (2, 480, [9.3007, 0.7346, 4.1337, 0.5512, 2.3645, 0.5539]),
            (4, 8, [6.2005, 1.0784, 6.2005, 1.0784, 6.2019, 1.8085]),
            (4, 16, [8.2673, 1.1025, 8.2673, 1.1025, 5.5162, 1.2920]),
            (4, 64, [12.4010, 1.1815, 8.2673, 1.1025, 5.5162, 1.2920]),
            (4, 480, [18.6014, 1.4691, 8.2673, 1.1025, 5.5162, 1.2920]),
        ] {
            let code = if k == 1 { Code::Plain } else { Code::Weighted { losses: k } };
            let g = p.min(16);
            let ours = [
                tree(p, M, code, LINK),
                chain_best(p, M, code, LINK),
                tree(g, M, code, LINK),
                chain_best(g, M, code, LINK),
                striped_reduce(g, k, M, LINK),
                striped_ring(g, k, M, LINK),
            ];
            let group = k * (k + 1);
            let local = [
                localised_tree(k, M, LINK),
                localised(k, M, LINK),
                localised_reduce(group, k, M, LINK),
                localised_ring(group, k, M, LINK),
            ];
            let all = ours.into_iter().zip(rest);
            for (ours, by_hand) in all.chain(local.into_iter().zip(localised_for(k))) {
                let ours = ours.unwrap();
                assert!((ours - by_hand).abs() < 6e-5, "{k} {p}: {ours} {by_hand}");
            }
        }
    }

    #[test]
    fn the_ring_does_not_grow_with_the_group() {
        let ring = |g| striped_ring(g, 1, 1e9, LINK).unwrap();
        assert!((ring(64) / ring(8) - 1.0).abs() < 0.01);
        assert!(striped_reduce(64, 1, 1e9, LINK).unwrap() > 4.0 * ring(64));
    }

    #[test]
    fn a_tree_of_any_size_has_levels() {
        for (processes, told) in
            [(1, 0.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 3.0), (1 << 63, 63.0), (u64::MAX, 64.0)]
        {
            assert_eq!(levels(processes), told, "{processes}");
        }
        assert!(tree(u64::MAX, M, Code::Plain, LINK).is_ok());
    }

    proptest! {
        #[test]
        fn no_other_segment_is_faster(p in 3u64..2000, bytes in 1e3..1e10f64, factor in 0.05..20.0f64) {
            let s = optimal_segment(p, bytes, Code::Plain, LINK).unwrap();
            let best = chain(p, bytes, s, Code::Plain, LINK).unwrap();
            let other = chain(p, bytes, (s * factor).clamp(1.0, bytes), Code::Plain, LINK).unwrap();
            prop_assert!(best <= other * (1.0 + 1e-9));
        }

        #[test]
        fn more_data_takes_longer(p in 2u64..500, bytes in 1.0..1e9f64, k in 1u64..5) {
            let code = Code::Weighted { losses: k };
            prop_assert!(tree(p, bytes * 2.0, code, LINK).unwrap() > tree(p, bytes, code, LINK).unwrap());
            prop_assert!(chain_best(p, bytes * 2.0, code, LINK).unwrap() > chain_best(p, bytes, code, LINK).unwrap());
        }

        #[test]
        fn never_nan(p in any::<u64>(), b in any::<f64>(), s in any::<f64>(), k in any::<u64>(),
                     alpha in any::<f64>(), beta in any::<f64>(), gamma in any::<f64>()) {
            let link = Link { alpha, beta, gamma };
            let p = p % (1 << 40);
            let code = Code::Weighted { losses: k };
            for v in [tree(p, b, code, link), chain(p, b, s, code, link), chain_best(p, b, code, link),
                      localised(k, b, link), striped_ring(p, k, b, link), striped_reduce(p, k, b, link),
                      stable_storage(p, b, link), recovery_by_equations(p, k, b, link), recovery_by_sums(p, k, b, link),
                      set_aside(p, k), lost(alpha, b, s)].into_iter().flatten() {
                prop_assert!(v.is_finite());
            }
        }
    }
}

//! Protocol of saving and recovery, as pure functions of claims. A claim is the part of a position's header that states the
//! attempt, the committed checkpoint and the sealed checkpoint.
//!
//! A save of the matrix A, whose copy is B: stop changing A; encode the parity of A into the parity buffer that the last
//! checkpoint does not use; write `sealed`; wait for all positions at a barrier; copy A to B; write `committed`; change A again.
//! A position overwrites B only after all positions have sealed the new checkpoint. So there is always one checkpoint that every
//! survivor contains completely.
//!
//! A recovery: [`decide`] names a checkpoint, the target, from all headers. Every survivor writes the decision (`pinned`) before
//! it changes anything. After a barrier, a position that has sealed the target copies A to B. A position that has sealed a later
//! checkpoint withdraws that seal. Both write `settled`. After a second barrier, A is invalid. Lost positions are rebuilt and
//! write `settled`. All headers are compared again. B is copied to A, all positions write `resumed`, and a barrier ends the
//! recovery.
//!
//! If a recovery is interrupted, the next recovery finds the `pinned` headers and has the same target. A position that cannot
//! supply the target, such as an old copy that has returned, counts as lost, even if its header is plausible by itself.
//!
//! `save`, `start` and `restore` write exactly these claims. `tests/protocol_model` explores all interleavings of the same
//! functions.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::shm::header::{CheckpointId, Claim, Phase, Stage, count_of};

/// Method of keeping copies (`--method`), named as in the papers in docs/MODELS.md. The discriminant is the method's number in
/// headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Keeps one copy. The matrix itself serves as the second copy while the first is overwritten.
    SelfCheckpoint = 0,
    /// Keeps two full copies. Saves overwrite the copies in turn.
    Double = 1,
    /// Keeps one copy. If ranks are lost while a save overwrites the copies, the run may be unable to resume from memory.
    Single = 2,
    /// Keeps no copy in memory. Each save writes the matrix to storage.
    Disk = 3,
}

impl Method {
    pub const ALL: [Method; 4] =
        [Method::SelfCheckpoint, Method::Double, Method::Single, Method::Disk];

    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|method| *method as u8 == byte)
    }
}

/// Steps of a position's claim. Each function returns the claim that the position publishes in its header for this step.
impl Claim {
    /// Returns the claim of a start from scratch in attempt `joined`. Earlier contents of the memory are invalid.
    pub fn generating(joined: u64) -> Self {
        Claim { joined, phase: Phase::Running, stage: Stage::Generating, base: None, seal: None }
    }

    /// Returns the claim of new, empty memory in attempt `joined`. The memory will be rebuilt to checkpoint `target`.
    pub fn vacant(joined: u64, target: CheckpointId) -> Self {
        let claim = Claim { stage: Stage::Vacant, ..Claim::generating(joined) };
        claim.pinned(joined, target)
    }

    /// Returns the claim of method single before a save overwrites its only copy.
    pub fn overwriting(self) -> Self {
        // Before the first commit there is no checkpoint to lose, and a start from scratch is still possible.
        let stage = match self.base {
            Some(_) => Stage::Overwriting,
            None => self.stage,
        };
        Claim { stage, base: None, ..self }
    }

    /// Returns the claim that `checkpoint` is sealed: its data and its parity are complete. The data is in A with method self,
    /// and in a copy with any other method.
    pub fn sealed(self, method: Method, checkpoint: CheckpointId) -> Self {
        let base = match method {
            Method::Single => None,
            _ => self.base,
        };
        Claim { stage: Stage::Saved, base, seal: Some(checkpoint), ..self }
    }

    /// Returns the claim that the sealed checkpoint is in force. Published after the barrier at which all positions have sealed
    /// it.
    pub fn committed(self) -> Self {
        Claim { stage: Stage::Saved, base: self.seal, seal: None, ..self }
    }

    /// Returns the claim that all ranks have agreed on the recovery to checkpoint `target`, in attempt `joined`. Published before
    /// any memory changes.
    pub fn pinned(self, joined: u64, target: CheckpointId) -> Self {
        Claim { joined, phase: Phase::Recovering(target), ..self }
    }

    /// Returns the claim that checkpoint `target` is in force, and that no other checkpoint is sealed. A recovery publishes this
    /// claim for memory that survived and for memory that was rebuilt. With method disk, the claim records that `target` is
    /// complete on storage.
    pub fn settled(self, target: CheckpointId) -> Self {
        Claim { stage: Stage::Saved, base: Some(target), seal: None, ..self }
    }

    /// Returns the claim that a recovery has ended: `target` is in force at all positions, and A is restored from it.
    pub fn resumed(self) -> Self {
        Claim { phase: Phase::Running, ..self }
    }

    /// Returns the number and the attempt of the checkpoint that the next save will seal.
    pub fn next_checkpoint(&self) -> CheckpointId {
        CheckpointId { number: self.base.map_or(0, |b| b.number) + 1, made: self.joined }
    }

    /// Returns true if this position has committed or sealed `checkpoint`.
    pub fn supplies(&self, checkpoint: CheckpointId) -> bool {
        self.base == Some(checkpoint) || self.seal == Some(checkpoint)
    }
}

/// Recovery to checkpoint `target`, on which all ranks agree; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    pub target: CheckpointId,
    /// Positions that have sealed but not committed the target. These positions first complete its copy and commit it.
    pub finish: Vec<usize>,
    /// Positions to be rebuilt.
    pub lost: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No checkpoint was ever committed: the matrix is generated.
    Fresh,
    /// The run resumes from memory.
    Restore(Recovery),
    /// The run resumes from storage. Memory is created again and filled from files, and a save makes its first checkpoint.
    /// Earlier contents of memory are not used.
    Fetch,
    Refuse(Refusal),
}

/// Reason why a run cannot resume. The memory stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error(
        "{} of the {size} members of group {group} are lost (positions {lost:?}), \
         but a group survives {losses} loss(es)", lost.len()
    )]
    TooManyLost { group: usize, size: usize, losses: usize, lost: Vec<usize> },
    #[error(
        "a failure came while position {0} overwrote its checkpoint, and method single keeps no \
         second one; methods self and double survive such a failure"
    )]
    Overwritten(usize),
    #[error("the headers in memory are contradictory: {0}")]
    Inconsistent(String),
    #[error(
        "method disk keeps all its checkpoints on storage, where checkpoint {0} was complete, but storage has none now"
    )]
    OnStorage(u64),
    #[error(
        "memory has checkpoints of this run, but none of them can be used: they are damaged, or were made with another --store \
         or by another version of this program"
    )]
    NoneUsable,
}

/// Method and groups of a run, on which the decision how to start depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub method: Method,
    /// Number of lost members that each group survives.
    pub losses: usize,
    /// Positions of each group, in member order.
    pub groups: Vec<Vec<usize>>,
}

/// Returns true if the fields of a claim agree with each other, so that a rank can have written the claim.
pub fn coherent(claim: &Claim) -> bool {
    let holds = match claim.stage {
        Stage::Vacant => {
            claim.base.is_none() && claim.seal.is_none() && claim.phase != Phase::Running
        }
        Stage::Generating => {
            claim.base.is_none() && claim.seal.is_none() && claim.phase == Phase::Running
        }
        Stage::Overwriting => claim.base.is_none() && claim.seal.is_none(),
        Stage::Saved => claim.base.is_some() || claim.seal.is_some(),
    };
    let ordered = match (claim.base, claim.seal) {
        (Some(base), Some(seal)) => base.number + 1 == seal.number && base.made <= seal.made,
        _ => true,
    };
    let past = claim.base.into_iter().chain(claim.seal).all(|id| id.made <= claim.joined);
    holds && ordered && past
}

/// Facts from a position's header about `joined`, the last attempt in which the position took part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub joined: u64,
    /// True if the claim proves that all positions had committed a checkpoint. A start that reads such a claim does not begin
    /// from scratch. All positions commit the first checkpoint before any position commits the second checkpoint.
    pub past_the_first: bool,
    /// True if the attempt has made a checkpoint. All positions had then joined the attempt.
    pub made: bool,
}

impl Trace {
    pub fn of(claim: &Claim) -> Self {
        let Claim { joined, phase, base, seal, .. } = *claim;
        // With method single, one position can have a seal on the second checkpoint while all others have gone back to the first.
        let past_the_first = base.is_some_and(|id| id.number > 1)
            || seal.is_some_and(|id| id.number > 2)
            || matches!(phase, Phase::Recovering(to) if to.number > 1);
        let made = base.into_iter().chain(seal).any(|id| id.made == joined);
        Self { joined, past_the_first, made }
    }
}

/// Returns the number of the attempt from whose memory the run resumes. An attempt's number consists of the count of attempts so
/// far and the start time. `told` has the facts from the headers of all positions. Returns None if there are no headers.
///
/// An attempt is preferred if it knows of a checkpoint that all positions had committed. An attempt that began from scratch
/// without finding this checkpoint comes later in the order. Next, the attempt with the greater count is preferred. Two attempts
/// with the same count did not find each other's memory. Among them, an attempt that has made a checkpoint is preferred, then an
/// attempt with more positions, then an attempt that started later by the clock. The clock may be wrong.
pub fn leading(told: impl IntoIterator<Item = Trace>) -> Option<u64> {
    let mut all: BTreeMap<u64, (bool, u64, bool, usize)> = BTreeMap::new();
    for trace in told {
        let (past_the_first, count, made, positions) = all.entry(trace.joined).or_default();
        *past_the_first |= trace.past_the_first;
        *count = count_of(trace.joined);
        *made |= trace.made;
        *positions += 1;
    }
    all.into_iter().max_by_key(|(joined, of_it)| (*of_it, *joined)).map(|(joined, _)| joined)
}

/// Order of those attempts of a run that left memory. If two nodes have memory of the same position, the memory of the later
/// attempt is used.
pub struct Order {
    leading: Option<u64>,
    past_the_first: BTreeSet<u64>,
}

impl Order {
    pub fn of(told: impl Iterator<Item = Trace> + Clone) -> Self {
        let past = told.clone().filter(|trace| trace.past_the_first);
        Self { past_the_first: past.map(|trace| trace.joined).collect(), leading: leading(told) }
    }

    /// Returns a key that is greater for a later attempt. An attempt that knows of a checkpoint committed at all positions has
    /// the greater key, then an attempt with the greater count of attempts so far. If both are equal, the leading attempt
    /// ([`leading`]) has the greater key, then the attempt with the later start time.
    pub fn rank(&self, joined: u64) -> (bool, u64, bool, u64) {
        let leads = Some(joined) == self.leading;
        (self.past_the_first.contains(&joined), count_of(joined), leads, joined)
    }
}

/// Returns true if memory with this claim must be kept, because a checkpoint was committed. A start from scratch would lose the
/// checkpoint.
pub fn worth_keeping(claim: &Claim) -> bool {
    claim.base.is_some() || claim.seal.is_some_and(|seal| seal.number > 1)
}

/// Decides how the run starts, from the claim of each position. None is memory without a valid header. A claim that no rank can
/// have written counts as None.
pub fn decide(setup: &Setup, claims: &[Option<Claim>]) -> Decision {
    let believed: Vec<Option<Claim>> = claims.iter().map(|c| c.filter(coherent)).collect();
    let claims = &believed[..];
    if setup.method == Method::Disk {
        return decide_disk(claims);
    }
    let Some(joined) = leading(claims.iter().flatten().map(Trace::of)) else {
        return Decision::Fresh;
    };
    let leaders: Vec<(usize, Claim)> = claims
        .iter()
        .enumerate()
        .filter_map(|(position, c)| c.filter(|c| c.joined == joined).map(|c| (position, c)))
        .collect();
    match pinned_target(&leaders) {
        Err(contradiction) => return contradiction,
        Ok(Some(target)) => return recovery(setup, claims, target, |c| c.supplies(target)),
        Ok(None) => {}
    }

    // Without an earlier recovery, all survivors took part in the leading attempt. An older claim belongs to an old copy.
    let current = |c: &Claim| c.joined == joined;
    if let Some(&(idle, _)) = leaders.iter().find(|(_, c)| c.stage == Stage::Generating) {
        return match leaders.iter().find(|(_, c)| c.base.is_some()) {
            None => Decision::Fresh,
            Some(&(other, _)) => inconsistent(
                idle,
                other,
                "the first position never completed a checkpoint, the second position did",
            ),
        };
    }
    if setup.method == Method::Single {
        return decide_single(setup, claims, &leaders, current);
    }
    // Each position has a latest checkpoint. The earliest of these latest checkpoints is complete at all positions.
    let latest = |c: &Claim| c.seal.or(c.base);
    let Some((first, target)) = leaders
        .iter()
        .filter_map(|(position, c)| latest(c).map(|id| (*position, id)))
        .min_by_key(|(_, id)| *id)
    else {
        return nameless(leaders[0].0);
    };
    if let Some((other, _)) = leaders.iter().find(|(_, claim)| !claim.supplies(target)) {
        let why = format!(
            "the second position does not have checkpoint {}, which the first has",
            target.number
        );
        return inconsistent(first, *other, &why);
    }
    match recovery(setup, claims, target, |c| current(c) && c.supplies(target)) {
        // Some positions may not have begun to generate when others had sealed the first checkpoint. A refusal protects committed
        // checkpoints. Before the first commit, a start from scratch loses nothing.
        Decision::Refuse(_) if leaders.iter().all(|(_, c)| c.base.is_none()) => Decision::Fresh,
        decision => decision,
    }
}

/// Decides like [`decide`], if there is also a checkpoint on storage, taken at boundary `stored`. Memory is preferred, unless its
/// checkpoint is older than the checkpoint on storage, or memory cannot be used. `boundary` returns the boundary of a checkpoint
/// in memory, or None if it is unknown; memory is then preferred.
///
/// Resuming from storage is correct for any claims. A checkpoint on storage does not change, and all positions have committed it.
/// The memory that is filled from storage belongs to a run with a new id, so it is never mixed with older memory.
pub fn decide_with(
    setup: &Setup,
    claims: &[Option<Claim>],
    boundary: impl Fn(CheckpointId) -> Option<u64>,
    stored: Option<u64>,
) -> Decision {
    let decision = decide(setup, claims);
    let Some(stored) = stored else { return decision };
    match &decision {
        Decision::Restore(recovery) => match boundary(recovery.target) {
            Some(held) if held < stored => Decision::Fetch,
            _ => decision,
        },
        Decision::Fresh | Decision::Refuse(_) | Decision::Fetch => Decision::Fetch,
    }
}

/// Decides like [`decide_with`], for an in-place attempt. If the memory of the remaining ranks is insufficient, refuses, and does
/// not use storage. A restart may still resume from memory, because it can also use the memory on the nodes of the lost ranks.
pub fn decide_in_place(
    setup: &Setup,
    claims: &[Option<Claim>],
    boundary: impl Fn(CheckpointId) -> Option<u64>,
    stored: Option<u64>,
) -> Decision {
    match decide(setup, claims) {
        refused @ Decision::Refuse(_) => refused,
        _ => decide_with(setup, claims, boundary, stored),
    }
}

/// Decides for method disk, if storage has no checkpoint. The run never resumes from memory, because the matrix has changed since
/// the last save. If a claim names a checkpoint, refuses; otherwise the run starts from scratch.
fn decide_disk(claims: &[Option<Claim>]) -> Decision {
    match claims.iter().flatten().filter_map(|claim| claim.base).max() {
        None => Decision::Fresh,
        Some(last) => Decision::Refuse(Refusal::OnStorage(last.number)),
    }
}

/// Returns the target of an interrupted recovery; None if no recovery was interrupted. The next recovery must have the same
/// target, because memory may have changed already. If headers name different targets, the error is the decision to refuse.
fn pinned_target(leaders: &[(usize, Claim)]) -> Result<Option<CheckpointId>, Decision> {
    let pin = |(position, claim): &(usize, Claim)| match claim.phase {
        Phase::Recovering(target) => Some((*position, target)),
        Phase::Running => None,
    };
    let pins: Vec<(usize, CheckpointId)> = leaders.iter().filter_map(pin).collect();
    match pins.windows(2).find(|pair| pair[0].1 != pair[1].1) {
        Some(pair) => Err(inconsistent(
            pair[0].0,
            pair[1].0,
            "their headers name recoveries to different checkpoints",
        )),
        None => Ok(pins.first().map(|(_, target)| *target)),
    }
}

/// Decides for method single. Uses the latest checkpoint for which every group can rebuild the members that do not have it.
fn decide_single(
    setup: &Setup,
    claims: &[Option<Claim>],
    leaders: &[(usize, Claim)],
    current: impl Fn(&Claim) -> bool,
) -> Decision {
    let mut checkpoints: Vec<CheckpointId> =
        leaders.iter().filter_map(|(_, c)| c.seal.or(c.base)).collect();
    checkpoints.sort_unstable_by(|a, b| b.cmp(a));
    checkpoints.dedup();
    let mut refused = None;
    for target in checkpoints {
        match recovery(setup, claims, target, |c| current(c) && c.supplies(target)) {
            Decision::Refuse(why) => refused = refused.or(Some(why)),
            decision => return decision,
        }
    }
    if leaders.iter().all(|(_, c)| c.seal.is_some_and(|s| s.number == 1)) {
        return Decision::Fresh;
    }
    match leaders.iter().find(|(_, c)| c.stage == Stage::Overwriting) {
        Some(&(position, _)) => Decision::Refuse(Refusal::Overwritten(position)),
        None => match refused {
            Some(why) => Decision::Refuse(why),
            None => nameless(leaders[0].0),
        },
    }
}

/// Refuses memory, because the headers of two positions contradict each other. The text `why` calls these positions the first and
/// the second.
fn inconsistent(first: usize, second: usize, why: &str) -> Decision {
    let why = format!("positions {first} and {second}: {why}");
    Decision::Refuse(Refusal::Inconsistent(why))
}

fn nameless(position: usize) -> Decision {
    Decision::Refuse(Refusal::Inconsistent(format!(
        "the header of position {position} names no checkpoint"
    )))
}

fn recovery(
    setup: &Setup,
    claims: &[Option<Claim>],
    target: CheckpointId,
    whole: impl Fn(&Claim) -> bool,
) -> Decision {
    let has = |position: usize| claims[position].as_ref().is_some_and(&whole);
    let mut all_lost = Vec::new();
    for (group, members) in setup.groups.iter().enumerate() {
        let lost: Vec<usize> = members.iter().copied().filter(|&p| !has(p)).collect();
        if lost.len() > setup.losses {
            return Decision::Refuse(Refusal::TooManyLost {
                group,
                size: members.len(),
                losses: setup.losses,
                lost,
            });
        }
        all_lost.extend(lost);
    }
    all_lost.sort_unstable();
    let finish: Vec<usize> = (0..claims.len())
        .filter(|&p| has(p) && claims[p].is_some_and(|c| c.base != Some(target)))
        .collect();
    Decision::Restore(Recovery { target, finish, lost: all_lost })
}

/// Checks a position's own claim after the recovery: the target is in force, and no checkpoint is sealed. The caller also checks
/// that all positions have joined the same attempt.
pub fn is_settled(claim: &Claim, target: CheckpointId) -> bool {
    claim.base == Some(target) && claim.seal.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::header::attempt_number;

    fn id(number: u64, made: u64) -> CheckpointId {
        CheckpointId { number, made: no(made) }
    }

    /// Returns the number of an attempt with this count and start time 0.
    fn no(count: u64) -> u64 {
        attempt_number(count, 0)
    }

    fn held(joined: u64, base: Option<CheckpointId>, seal: Option<CheckpointId>) -> Option<Claim> {
        Some(Claim { joined: no(joined), phase: Phase::Running, stage: Stage::Saved, base, seal })
    }

    fn setup(method: Method, groups: &[&[usize]]) -> Setup {
        Setup { method, losses: 1, groups: groups.iter().map(|g| g.to_vec()).collect() }
    }

    /// With method disk, the run never resumes from memory. If a rank knows of a checkpoint but storage has none, the run is
    /// refused; it does not begin from scratch.
    #[test]
    fn method_disk_goes_on_from_storage_alone() {
        let setup = setup(Method::Disk, &[&[0], &[1]]);
        let fresh = Some(Claim::generating(no(1)));
        let stored = |number| Some(Claim::generating(no(2)).settled(id(number, 2)));
        let all = [None, fresh, stored(1), stored(2)];
        for one in all {
            for other in all {
                let claims = [one, other];
                for at in [3, 90] {
                    let decision = decide_with(&setup, &claims, |_| Some(40), Some(at));
                    assert_eq!(decision, Decision::Fetch, "{claims:?}");
                }
                let told = claims.iter().flatten().filter_map(|c| c.base).max();
                let alone = decide_with(&setup, &claims, |_| Some(40), None);
                match told {
                    None => assert_eq!(alone, Decision::Fresh),
                    Some(last) => {
                        assert_eq!(alone, Decision::Refuse(Refusal::OnStorage(last.number)));
                    }
                }
            }
        }
    }

    fn two() -> Setup {
        setup(Method::SelfCheckpoint, &[&[0, 1], &[2, 3]])
    }

    fn restore(target: CheckpointId, lost: &[usize]) -> Decision {
        Decision::Restore(Recovery { target, finish: vec![], lost: lost.to_vec() })
    }

    /// Returns true if the decision is a recovery in which some survivors first commit a sealed checkpoint.
    fn finishes(decision: Decision) -> bool {
        matches!(decision, Decision::Restore(recovery) if !recovery.finish.is_empty())
    }

    #[test]
    fn the_cases_of_the_design() {
        let (one, next, third) = (id(1, 1), id(2, 1), id(3, 1));
        let committed = |e| held(1, Some(e), None);
        let sealed = |e, s| held(1, Some(e), Some(s));
        // No memory, or no checkpoint committed yet.
        assert_eq!(decide(&two(), &[None; 4]), Decision::Fresh);
        let generating = Some(Claim::generating(no(1)));
        assert_eq!(
            decide(&two(), &[generating, held(1, None, Some(one)), None, None]),
            Decision::Fresh
        );
        // A loss during the computation.
        let c = committed(one);
        assert_eq!(decide(&two(), &[c, None, c, c]), restore(one, &[1]));
        // Some have sealed the new checkpoint, others have not: the old checkpoint is used, and seals become invalid.
        let s = sealed(one, next);
        assert_eq!(decide(&two(), &[c, s, s, s]), restore(one, &[]));
        // All survivors have sealed the new checkpoint: it is used.
        assert_eq!(
            decide(&two(), &[None, s, s, s]),
            Decision::Restore(Recovery { target: next, finish: vec![1, 2, 3], lost: vec![0] })
        );
        // One position is copying A to B, one has committed, one has already sealed the next checkpoint.
        assert_eq!(
            decide(&two(), &[s, committed(next), sealed(next, third), None]),
            Decision::Restore(Recovery { target: next, finish: vec![0], lost: vec![3] })
        );
        // Two losses in one group.
        assert!(matches!(
            decide(&two(), &[c, c, None, None]),
            Decision::Refuse(Refusal::TooManyLost { group: 1, .. })
        ));
        // One loss in each group.
        assert_eq!(decide(&two(), &[None, c, None, c]), restore(one, &[0, 2]));
        // The first checkpoint is sealed by all and committed by none.
        let f = held(1, None, Some(one));
        assert!(finishes(decide(&two(), &[f, f, None, f])));
    }

    /// In an attempt that failed, only one rank recorded its recovery. The next attempt did not find that rank, and has another
    /// number.
    #[test]
    fn a_way_back_that_nobody_saw_is_an_old_copy() {
        let group = setup(Method::SelfCheckpoint, &[&[0, 1, 2, 3]]);
        let back = |joined, to| {
            let claim = held(joined, Some(to), None).unwrap();
            Some(Claim { phase: Phase::Recovering(to), ..claim })
        };
        let (then, now, next) = (id(4, 1), id(9, 3), id(10, 3));
        let unseen = back(2, then);
        let gone_on = held(3, Some(now), None);
        assert_eq!(decide(&group, &[gone_on, gone_on, gone_on, unseen]), restore(now, &[3]));
        // In a recovery to another checkpoint, the single rank's target does not matter.
        let elsewhere = back(3, id(5, 1));
        assert_eq!(
            decide(&group, &[elsewhere, elsewhere, elsewhere, unseen]),
            restore(id(5, 1), &[3])
        );
        // A checkpoint that the other positions are about to overwrite is not used.
        let sealed = held(3, Some(now), Some(next));
        let forward = Recovery { target: next, finish: vec![0, 1, 2], lost: vec![3] };
        assert_eq!(
            decide(&group, &[sealed, sealed, sealed, back(2, now)]),
            Decision::Restore(forward)
        );
        // If another position is lost, or two ranks recorded this recovery, two positions count as lost.
        for claims in [[gone_on, gone_on, None, unseen], [gone_on, gone_on, unseen, unseen]] {
            let decision = decide(&group, &claims);
            assert!(
                matches!(decision, Decision::Refuse(Refusal::TooManyLost { .. })),
                "{decision:?}"
            );
        }
        // If a rank recovers to the checkpoint from which the other ranks resumed, in the same attempt, it does not count as
        // lost.
        let late = back(3, now);
        assert_eq!(decide(&group, &[gone_on, gone_on, late, late]), restore(now, &[]));
    }

    /// The clock of the node with the first start's header is ahead of all others.
    #[test]
    fn a_fast_clock_makes_no_start_the_last_one() {
        let group = setup(Method::SelfCheckpoint, &[&[0, 1, 2, 3]]);
        let (first, second) = (attempt_number(2, 9000), attempt_number(2, 1000));
        let of = |joined: u64, claim: Claim| Some(Claim { joined, ..claim });
        let (then, now) = (id(4, 1), CheckpointId { number: 5, made: second });
        let old = held(1, Some(then), None).unwrap();
        let back = old.pinned(first, then);
        let gone_on = of(second, held(1, Some(now), None).unwrap());
        let generating = Some(Claim::generating(first));
        for unseen in [Some(back), generating] {
            assert_eq!(decide(&group, &[gone_on, gone_on, gone_on, unseen]), restore(now, &[3]));
            // All positions had joined an attempt that has made a checkpoint.
            let one = decide(&group, &[gone_on, unseen, None, None]);
            assert!(matches!(one, Decision::Refuse(Refusal::TooManyLost { .. })), "{one:?}");
        }
        // Before an attempt has made a checkpoint, the larger number of positions counts.
        let elsewhere = Some(old.pinned(second, then).settled(id(3, 1)));
        let decision = decide(&group, &[elsewhere, elsewhere, elsewhere, Some(back)]);
        assert!(!matches!(decision, Decision::Fresh), "{decision:?}");
        let one = |joined| Trace { joined, ..Trace::default() };
        let made = |joined| Trace { made: true, ..one(joined) };
        let past = |joined| Trace { past_the_first: true, ..one(joined) };
        assert_eq!(leading([one(first), one(second), one(second)]), Some(second));
        assert_eq!(leading([made(first), one(second), one(second)]), Some(first));
        assert_eq!(leading([one(first), one(second)]), Some(first));
        assert_eq!(leading([one(no(3)), made(first), made(first)]), Some(no(3)));
        assert_eq!(leading([one(no(9)), one(no(9)), past(first)]), Some(first));
        assert_eq!(leading([past(no(9)), past(first), past(first)]), Some(no(9)));
        assert_eq!(leading([]), None);
    }

    /// The run began from scratch several times, on nodes that did not have its last checkpoint. Then the other nodes returned.
    #[test]
    fn a_blind_start_from_scratch_does_not_outrank_a_checkpoint_of_all() {
        let (first, ninth) = (id(1, 2), id(9, 2));
        let main = held(2, Some(ninth), None);
        let fresh = Some(Claim::generating(no(4)));
        let group = setup(Method::SelfCheckpoint, &[&[0, 1, 2, 3]]);
        assert_eq!(decide(&group, &[fresh, main, main, main]), restore(ninth, &[0]));
        assert!(matches!(decide(&group, &[fresh, fresh, main, main]), Decision::Refuse(_)));
        // After a start from scratch, a position that has sealed its first checkpoint does not outrank the checkpoint of all
        // either.
        let sealed = held(4, None, Some(id(1, 4)));
        assert_eq!(decide(&group, &[sealed, main, main, main]), restore(ninth, &[0]));
        // A later attempt that recovers to the checkpoint of all outranks the starts from scratch, even at the beginning of the
        // recovery.
        let back = main.map(|c| c.pinned(no(3), ninth));
        let vacant = Some(Claim::vacant(no(3), ninth));
        assert_eq!(decide(&group, &[vacant, back, main, main]), restore(ninth, &[0]));
        // With method single, the others went back to the checkpoint before the one that a lost position was writing.
        let single = setup(Method::Single, &[&[0, 1, 2]]);
        let first_of_all = held(1, Some(id(1, 1)), None);
        let back = first_of_all.map(|c| c.pinned(no(2), id(1, 1)));
        let overwriting = first_of_all.map(Claim::overwriting);
        let sealed = overwriting.map(|c| c.sealed(Method::Single, id(2, 1)));
        for away in [overwriting, sealed] {
            assert_eq!(decide(&single, &[back, back, away]), restore(id(1, 1), &[2]));
        }
        // A position kept the checkpoint while all others overwrote it.
        let now = held(2, Some(id(2, 1)), None).map(Claim::overwriting);
        let now = now.map(|c| c.sealed(Method::Single, id(3, 2)));
        let behind = held(1, Some(id(2, 1)), None);
        assert!(matches!(
            decide(&single, &[now, now, behind]),
            Decision::Restore(Recovery { target, finish, .. })
                if target == id(3, 2) && !finish.is_empty()
        ));
        // The first checkpoint may not have been committed by all, so a start from scratch may have been right.
        let early = held(2, Some(first), None);
        assert_eq!(decide(&group, &[fresh, fresh, fresh, early]), Decision::Fresh);
    }

    #[test]
    fn an_old_copy_loses() {
        let (one, next) = (id(1, 1), id(2, 2));
        let new = held(2, Some(one), Some(next));
        let old = held(1, Some(one), None);
        assert_eq!(
            decide(&two(), &[new, new, new, old]),
            Decision::Restore(Recovery { target: next, finish: vec![0, 1, 2], lost: vec![3] })
        );
        // During a recovery, an old copy is used only if it has exactly the pinned checkpoint.
        let pinned = |c: Option<Claim>, t| c.map(|c| c.pinned(no(2), t));
        let s = held(1, Some(one), Some(id(2, 1)));
        assert_eq!(decide(&two(), &[pinned(s, one), s, pinned(s, one), old]), restore(one, &[]));
        match decide(&two(), &[pinned(s, id(2, 1)), s, s, old]) {
            Decision::Restore(r) => {
                assert_eq!((r.target, r.lost), (id(2, 1), vec![3]));
                assert!(!r.finish.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn method_single_refuses_what_it_cannot_survive() {
        let setup = setup(Method::Single, &[&[0, 1, 2]]);
        let (one, next) = (id(1, 1), id(2, 1));
        let c = held(1, Some(one), None);
        let o = c.map(|c| c.overwriting());
        let s = o.map(|c| c.sealed(Method::Single, next));
        assert_eq!(decide(&setup, &[c, c, None]), restore(one, &[2]));
        assert_eq!(decide(&setup, &[c, o, c]), restore(one, &[1]));
        assert!(matches!(decide(&setup, &[o, o, c]), Decision::Refuse(Refusal::Overwritten(0))));
        assert!(matches!(decide(&setup, &[o, None, c]), Decision::Refuse(_)));
        match decide(&setup, &[s, s, None]) {
            Decision::Restore(r) => assert_eq!((r.target, r.finish), (next, vec![0, 1])),
            other => panic!("{other:?}"),
        }
    }

    /// Checks the decision for every combination of claims with a few checkpoints and attempts. The members of a group of two
    /// have any claims. The members of a group of three have only claims that a rank can have written.
    #[test]
    fn the_whole_input_space_of_a_small_group() {
        let ids = [id(1, 1), id(2, 1), id(2, 2)];
        let some: Vec<Option<CheckpointId>> = [None].into_iter().chain(ids.map(Some)).collect();
        let mut claims: Vec<Option<Claim>> = vec![None];
        // Two attempts with the same count did not find each other.
        for joined in [no(1), no(2), attempt_number(2, 7)] {
            for phase in [Phase::Running].into_iter().chain(ids.map(Phase::Recovering)) {
                for stage in [Stage::Vacant, Stage::Generating, Stage::Saved, Stage::Overwriting] {
                    for &base in &some {
                        for &seal in &some {
                            claims.push(Some(Claim { joined, phase, stage, base, seal }));
                        }
                    }
                }
            }
        }
        // A header can state any claim. Even claims that no run can reach must lead to a safe decision.
        assert_eq!(claims.len(), 769);
        let one_group = setup(Method::SelfCheckpoint, &[&[0, 1]]);
        let single = setup(Method::Single, &[&[0, 1]]);
        for &a in &claims {
            for &b in &claims {
                check(&one_group, &[a, b]);
                check(&single, &[a, b]);
            }
        }
        // Three members: only the claims that are not rejected at once.
        let fewer: Vec<Option<Claim>> =
            claims.iter().copied().filter(|c| c.is_none_or(|c| coherent(&c))).collect();
        let three = setup(Method::SelfCheckpoint, &[&[0, 1, 2]]);
        for &a in &fewer {
            for &b in &fewer {
                for &c in &fewer {
                    check(&three, &[a, b, c]);
                }
            }
        }
    }

    fn check(setup: &Setup, claims: &[Option<Claim>]) {
        let decision = decide(setup, claims);
        let claims: &[Option<Claim>] =
            &claims.iter().map(|c| c.filter(coherent)).collect::<Vec<_>>();
        let joined = leading(claims.iter().flatten().map(Trace::of));
        let leader = |c: &Claim| Some(c.joined) == joined;
        let pins: Vec<CheckpointId> = claims
            .iter()
            .flatten()
            .filter(|c| leader(c))
            .filter_map(|c| match c.phase {
                Phase::Recovering(target) => Some(target),
                Phase::Running => None,
            })
            .collect();
        match &decision {
            Decision::Fresh => {
                // A committed checkpoint of the leading attempt is never discarded.
                assert!(pins.is_empty(), "{claims:?}");
                assert!(claims.iter().flatten().filter(|c| leader(c)).all(|c| c.base.is_none()));
            }
            Decision::Restore(r) => {
                for (position, claim) in claims.iter().enumerate() {
                    if r.lost.contains(&position) {
                        continue;
                    }
                    let claim = claim.expect("a position without memory is lost");
                    assert!(claim.supplies(r.target), "{claims:?} {r:?}");
                    assert!(leader(&claim) || !pins.is_empty(), "{claims:?}");
                    let finish = claim.base != Some(r.target);
                    assert_eq!(finish, r.finish.contains(&position));
                    // A position that has passed a barrier has no older checkpoint, so a recovery must not go back further.
                    if pins.is_empty() && setup.method != Method::Single {
                        assert!(claim.base.is_none_or(|b| b <= r.target), "{claims:?}");
                    }
                }
                assert!(pins.iter().all(|&p| p == r.target));
                for group in &setup.groups {
                    assert!(group.iter().filter(|p| r.lost.contains(p)).count() <= setup.losses);
                }
            }
            Decision::Refuse(_) => assert!(must_refuse(setup, claims, &pins), "{claims:?}"),
            Decision::Fetch => panic!("no checkpoint on storage was given"),
        }
    }

    /// Returns true if the decision must be to refuse: too few positions have the checkpoint to resume from, or the positions of
    /// the last attempt do not agree on one.
    fn must_refuse(setup: &Setup, claims: &[Option<Claim>], pins: &[CheckpointId]) -> bool {
        let joined = leading(claims.iter().flatten().map(Trace::of));
        let leads = |c: &Claim| Some(c.joined) == joined;
        let leaders = || claims.iter().flatten().filter(|c| leads(c));
        let bears = |whole: &dyn Fn(&Claim) -> bool| {
            let lacks = |p: &&usize| !claims[**p].as_ref().is_some_and(whole);
            setup.groups.iter().all(|group| group.iter().filter(lacks).count() <= setup.losses)
        };
        match pins {
            // A pinned checkpoint is complete at each position that names it, in any attempt.
            [first, rest @ ..] => {
                rest.iter().any(|pin| pin != first) || !bears(&|c| c.supplies(*first))
            }
            [] => {
                let latest = leaders().filter_map(|c| c.seal.or(c.base));
                let common = match setup.method {
                    Method::Single => latest.max(),
                    _ => latest.min(),
                };
                let all = |id: CheckpointId| {
                    setup.method == Method::Single || leaders().all(|c| c.supplies(id))
                };
                let has =
                    common.is_some_and(|id| all(id) && bears(&|c| leads(c) && c.supplies(id)));
                !has || leaders().any(|c| c.stage == Stage::Generating)
            }
        }
    }

    /// Memory is used if its checkpoint is as recent as the checkpoint on storage. Storage is used if memory is unavailable or
    /// older.
    #[test]
    fn storage_is_for_what_memory_cannot_give() {
        let (five, six) = (id(5, 1), id(6, 1));
        let whole = [held(1, Some(five), None); 4];
        let at = |id: CheckpointId| Some(10 * id.number);
        for (stored, fetch) in
            [(None, false), (Some(49), false), (Some(50), false), (Some(51), true)]
        {
            let decision = decide_with(&two(), &whole, at, stored);
            assert_eq!(decision == Decision::Fetch, fetch, "{stored:?}");
            assert!(fetch || decision == restore(five, &[]));
        }
        // A sealed checkpoint is completed before the run resumes, so it counts.
        let sealed = [held(1, Some(five), Some(six)); 4];
        assert!(finishes(decide_with(&two(), &sealed, at, Some(60))));
        assert_eq!(decide_with(&two(), &sealed, at, Some(61)), Decision::Fetch);
        // Too many lost, no memory, no checkpoint yet, contradictory memory.
        let lost = [None, None, whole[0], whole[0]];
        let generating = [Some(Claim::generating(no(1))); 4];
        let torn = [held(1, Some(five), None), held(1, Some(id(9, 1)), None), None, None];
        for claims in [lost, [None; 4], generating, torn] {
            assert_eq!(decide_with(&two(), &claims, at, Some(1)), Decision::Fetch, "{claims:?}");
            assert_eq!(decide_with(&two(), &claims, at, None), decide(&two(), &claims));
            // In place, storage is used only if memory has had no checkpoint.
            let alone = decide(&two(), &claims);
            let wanted = if alone == Decision::Fresh { Decision::Fetch } else { alone };
            assert_eq!(decide_in_place(&two(), &claims, at, Some(1)), wanted, "{claims:?}");
        }
        assert_eq!(decide_in_place(&two(), &whole, at, Some(51)), Decision::Fetch);
        // If the boundary of the checkpoint in memory is unknown, memory is used.
        assert_eq!(decide_with(&two(), &whole, |_| None, Some(99)), restore(five, &[]));
    }
}

//! Headers of all positions at a start, the same on every rank, and the conclusions from them. Pure.
//!
//! `start` gathers a [`Fact`] from each rank. All facts together determine the run, its groups, and the action to take, so all
//! ranks reach the same conclusions. If memory turns out to be damaged, `start` discards the memory ([`Known::discard`]) and
//! decides again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::groups::Groups;
use super::identity::belongs;
use super::layout::ParityLayout;
use super::plan::{Layout, Scheme};
use super::protocol::{
    Decision, Method, Refusal, Setup, Trace, decide_in_place, decide_with, leading, worth_keeping,
};
use super::terms::{Config, StartError, Test};
use crate::shm::header::{CheckpointId, Claim, Header, next_attempt};

/// Facts that each rank sends to all others at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fact {
    pub run: u128,
    /// Current time by the rank's clock.
    pub unix_ms: u64,
    pub domain: String,
    pub node: String,
    /// First rank on this rank's node. The number distinguishes nodes with the same name.
    pub leader: u64,
    pub trouble: String,
    /// True if a header exists that cannot be read but may be valid: it has another version, is damaged, or is on a bad page of
    /// memory.
    pub unread: bool,
    pub header: Option<Header>,
}

/// Facts about every position.
#[derive(Debug)]
pub(super) struct Known {
    facts: Vec<Fact>,
    /// Usable header of each position, of this run and this test. None if the header is missing, invalid or discarded.
    headers: Vec<Option<Header>>,
    /// True if each position has either no header, without any error, or a header that may be valid but cannot be read
    /// ([`Fact::unread`]). Memory may then contain checkpoints.
    mute: bool,
}

impl Known {
    /// Collects the facts. All ranks use the run in rank 0's fact. Memory of any other run is not used. Returns an error if
    /// memory of the run belongs to a test with other settings.
    pub(super) fn new(
        mut facts: Vec<Fact>,
        test: &Test,
        config: &Config,
    ) -> Result<Self, StartError> {
        let run = facts[0].run;
        let says_nothing = |f: &Fact| f.header.is_none() && (f.unread || f.trouble.is_empty());
        let mute = facts.iter().all(says_nothing);
        // Memory of another test of this run was left by an interrupted clean-up, or is on a node that was away during the
        // clean-up. Neither its header nor its digest concerns this test, although the header may name a checkpoint of the same
        // number.
        let other_test = |h: &Header| h.id.run == run && h.id.test != test.index;
        for fact in &mut facts {
            fact.header.take_if(|header| other_test(header));
        }
        let headers: Vec<Option<Header>> =
            facts.iter().map(|f| f.header.clone().filter(|h| h.id.run == run)).collect();
        // If any other field differs, memory belongs to another run that was started with the same job name.
        match headers.iter().flatten().find(|h| !belongs(h, test, config)) {
            Some(other) => Err(another(other, config)),
            None => Ok(Self { facts, headers, mute }),
        }
    }

    pub(super) fn run(&self) -> u128 {
        self.facts[0].run
    }

    /// Returns true if memory at any position has a usable header of this test.
    pub(super) fn tells(&self) -> bool {
        self.headers.iter().any(Option::is_some)
    }

    /// Header of a position. None if it is invalid, missing or discarded.
    pub(super) fn header(&self, position: usize) -> Option<&Header> {
        self.headers[position].as_ref()
    }

    pub(super) fn domains(&self) -> Vec<String> {
        self.facts.iter().map(|fact| fact.domain.clone()).collect()
    }

    /// Positions whose ranks are on the same node as this position, including the position itself, in order.
    pub(super) fn neighbours(&self, position: usize) -> Vec<usize> {
        let node = |at: usize| self.facts[at].leader;
        (0..self.facts.len()).filter(|&at| node(at) == node(position)).collect()
    }

    /// Last attempt in which memory of this test took part. Zero if there is none.
    pub(super) fn joined(&self) -> u64 {
        self.headers.iter().flatten().map(|h| h.claim.joined).max().unwrap_or(0)
    }

    /// Attempt from whose memory the run resumes. None if no memory belongs to this test.
    pub(super) fn leading(&self) -> Option<u64> {
        leading(self.headers.iter().flatten().map(|h| Trace::of(&h.claim)))
    }

    /// Number of the attempt that is starting; the same on all ranks. Contains the latest time of all ranks' clocks.
    pub(super) fn joins(&self) -> u64 {
        let now = self.facts.iter().map(|fact| fact.unix_ms).max();
        next_attempt(self.joined(), now.unwrap_or(0))
    }

    /// Forms groups for a start that does not keep the groups in memory. Returns an error if the requested groups are impossible.
    /// If the run has resumed before, or has results, too few failure domains are accepted. Otherwise a run could be refused
    /// after hours of work, or at its next test.
    pub(super) fn new_groups(&self, test: &Test, config: &Config) -> Result<Groups, StartError> {
        let Scheme { layout, losses, .. } = config.scheme;
        let divide =
            if config.goes_on { ParityLayout::groups_at_any_rate } else { ParityLayout::groups };
        Ok(divide(layout, &test.layout, &self.domains(), config.group, losses)?)
    }

    /// Returns the groups that the headers in memory name. If no memory belongs to this test, or with method disk, forms new
    /// groups. If headers contradict each other, discards all memory if storage has a checkpoint, and returns an error otherwise.
    pub(super) fn groups(&mut self, test: &Test, config: &Config) -> Result<Groups, StartError> {
        // With method disk, memory has no checkpoints, and its groups do not matter.
        if !self.tells() || config.scheme.method == Method::Disk {
            return self.new_groups(test, config);
        }
        self.discard_divided_otherwise();
        match told_groups(&self.headers, test.layout.positions()) {
            // No header names a group of dedicated positions only: the saved run had fewer groups.
            Some(groups) if groups.iter().any(|group| keep_nothing(group, &test.layout)) => {
                Err(StartError::Other {
                    job: config.memory_store.job().into(),
                    what: "that run has fewer ranks for checksums than this one, so its --group is another"
                        .into(),
                })
            }
            Some(groups) => Ok(groups),
            None if config.storage.as_ref().is_some_and(|s| !s.stored.is_empty()) => {
                // If headers contradict each other and storage has a checkpoint, all memory is discarded.
                self.headers.iter_mut().for_each(|h| *h = None);
                self.new_groups(test, config)
            }
            None => {
                let why = "they name different groups".into();
                Err(self.refused(Refusal::Inconsistent(why), config))
            }
        }
    }

    /// Discards memory of earlier attempts that had other groups than the leading attempt, from whose memory the run resumes. The
    /// leading attempt did not need the discarded memory.
    fn discard_divided_otherwise(&mut self) {
        let last = self.leading();
        let of_last = self.headers.iter().flatten().filter(|h| Some(h.claim.joined) == last);
        let mut told: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut group_of: BTreeMap<u32, u32> = BTreeMap::new();
        for header in of_last {
            let id = &header.id;
            group_of.extend(id.members.iter().map(|&member| (member, id.group)));
            told.insert(id.group, id.members.clone());
        }
        let agrees = |header: &Header| {
            let id = &header.id;
            let as_told = told.get(&id.group).is_none_or(|members| *members == id.members);
            as_told && id.members.iter().all(|m| group_of.get(m).is_none_or(|&g| g == id.group))
        };
        for (header, fact) in self.headers.iter_mut().zip(&mut self.facts) {
            if header.take_if(|h| Some(h.claim.joined) != last && !agrees(h)).is_some() {
                fact.trouble =
                    "the memory here is of an earlier start, which had other groups".into();
                // Without the header, the discarded memory does not count as a lost checkpoint.
                fact.header = None;
            }
        }
    }

    /// Number of a position's group, according to the headers. None if no header names the position.
    pub(super) fn number_of_group(&self, position: usize) -> Option<usize> {
        let mut headers = self.headers.iter().flatten();
        headers
            .find(|h| h.id.members.contains(&(position as u32)))
            .map(|header| header.id.group as usize)
    }

    /// Decides how the test starts. `in_place` is true in an in-place attempt. `stored` is the run and the boundary of the best
    /// checkpoint on storage; None if there is none.
    pub(super) fn decide(
        &self,
        setup: &Setup,
        in_place: bool,
        stored: Option<(u128, u64)>,
    ) -> Decision {
        let claims: Vec<Option<Claim>> =
            self.headers.iter().map(|h| h.as_ref().map(|h| h.claim)).collect();
        let boundary = |target| self.boundary_of(target);
        let with = |stored| {
            if in_place {
                decide_in_place(setup, &claims, boundary, stored)
            } else {
                decide_with(setup, &claims, boundary, stored)
            }
        };
        let decision = match (with(stored.map(|(_, boundary)| boundary)), stored) {
            // The run in memory started from scratch, or from checkpoints of earlier runs that were found. A later checkpoint of
            // an earlier run must come from a node that was away when the run in memory started. It is used only if memory cannot
            // be used.
            (Decision::Fetch, Some((run, _))) if run < self.run() => match with(None) {
                restored @ Decision::Restore(_) => restored,
                _ => Decision::Fetch,
            },
            (decision, _) => decision,
        };
        match decision {
            // If a checkpoint may exist but cannot be used, the program must not decide to start from scratch.
            Decision::Fresh if self.has_discarded_a_checkpoint() || self.may_have_one(setup) => {
                Decision::Refuse(Refusal::NoneUsable)
            }
            decision => decision,
        }
    }

    fn has_discarded_a_checkpoint(&self) -> bool {
        let mut all = self.facts.iter().zip(&self.headers);
        all.any(|(fact, header)| {
            let said = fact.header.as_ref().filter(|said| said.id.run == self.run());
            header.is_none() && said.is_some_and(|said| worth_keeping(&said.claim))
        })
    }

    /// Returns true if memory may contain a checkpoint although no header can be read, for example because the program was
    /// upgraded. In every group, the positions with unreadable headers must be enough to rebuild the other members.
    fn may_have_one(&self, setup: &Setup) -> bool {
        let unread =
            |members: &Vec<usize>| members.iter().filter(|p| self.facts[**p].unread).count();
        self.mute
            && setup.groups.iter().all(|g| unread(g) > 0 && unread(g) + setup.losses >= g.len())
    }

    /// Discards the memory of positions with a problem. `troubles` has an error text for each position, empty if there is no
    /// problem.
    pub(super) fn discard(&mut self, troubles: Vec<String>) {
        for ((header, fact), trouble) in self.headers.iter_mut().zip(&mut self.facts).zip(troubles)
        {
            if !trouble.is_empty() {
                *header = None;
                fact.trouble = trouble;
            }
        }
    }

    /// Boundary of a checkpoint, from the first header that names the checkpoint. None if no header names it. All headers that
    /// name a checkpoint have the same boundary.
    pub(super) fn boundary_of(&self, checkpoint: CheckpointId) -> Option<u64> {
        let mut headers = self.headers.iter().flatten();
        headers.find_map(|header| header.mark_of(checkpoint)).map(|mark| mark.boundary)
    }

    /// Digest of a checkpoint in a position's header, even if the memory of the position could not be used. None if the header
    /// does not name the checkpoint.
    pub(super) fn root_once_held(&self, position: usize, checkpoint: CheckpointId) -> Option<u64> {
        let said = self.facts[position].header.as_ref().filter(|h| h.id.run == self.run());
        said.and_then(|header| header.mark_of(checkpoint)).map(|mark| mark.root)
    }

    /// Position and error text of all memory that exists but could not be used.
    pub(super) fn unusable(&self) -> Vec<(usize, String)> {
        let troubled = self.facts.iter().enumerate().filter(|(_, fact)| !fact.trouble.is_empty());
        troubled.map(|(position, fact)| (position, fact.trouble.clone())).collect()
    }

    pub(super) fn refused(&self, refusal: Refusal, config: &Config) -> StartError {
        StartError::Refused {
            refusal,
            survey: self.survey(),
            job: config.memory_store.job().into(),
        }
    }

    /// Describes the memory of each position in a line of its own, for the error of a refused start.
    pub(super) fn survey(&self) -> String {
        let mut text = String::new();
        for (position, (fact, header)) in self.facts.iter().zip(&self.headers).enumerate() {
            let holds = match header {
                None if fact.trouble.is_empty() => "no memory of this run".to_owned(),
                None => fact.trouble.clone(),
                Some(h) => match (h.claim.base, h.claim.seal) {
                    (Some(b), Some(s)) => {
                        format!(
                            "checkpoint {}, committed, and checkpoint {}, sealed",
                            b.number, s.number
                        )
                    }
                    (Some(b), None) => format!("checkpoint {}", b.number),
                    (None, Some(s)) => format!("checkpoint {}, sealed", s.number),
                    (None, None) => "memory without a complete checkpoint".to_owned(),
                },
            };
            text.push_str(&format!("  position {position} on {}: {holds}\n", fact.node));
        }
        text
    }
}

/// Error for memory of this job that belongs to another test.
fn another(other: &Header, config: &Config) -> StartError {
    let id = &other.id;
    let settings = match ParityLayout::from_byte(id.layout) {
        Some(layout) if layout != config.scheme.layout => format!(
            "with --parity-layout {}, but this run has --parity-layout {}",
            layout.name(),
            config.scheme.layout.name()
        ),
        _ => "with settings that differ from those of this run".into(),
    };
    StartError::Other {
        job: config.memory_store.job().into(),
        what: format!(
            "test {}, N = {}, NB = {}, grid {} x {}, {settings}",
            id.test + 1,
            id.n,
            id.nb,
            id.p,
            id.q
        ),
    }
}

/// Groups according to the remaining headers. Positions that no header names form one more group, whose members are all lost.
/// None if headers contradict each other.
fn told_groups(headers: &[Option<Header>], positions: usize) -> Option<Groups> {
    let mut told: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for header in headers.iter().flatten() {
        let members: Vec<usize> = header.id.members.iter().map(|&m| m as usize).collect();
        if told.entry(header.id.group).or_insert_with(|| members.clone()) != &members {
            return None;
        }
    }
    let mut seen = vec![false; positions];
    for &member in told.values().flatten() {
        if std::mem::replace(&mut seen[member], true) {
            return None;
        }
    }
    let mut groups: Groups = told.into_values().collect();
    let rest: Vec<usize> = (0..positions).filter(|&p| !seen[p]).collect();
    if !rest.is_empty() {
        groups.push(rest);
    }
    Some(groups)
}

/// Returns true if all members of a group are dedicated, so that none has a part of the matrix.
fn keep_nothing(group: &[usize], layout: &Layout) -> bool {
    group.iter().all(|&member| member >= layout.working())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::header::Mark;
    use crate::testkit::start::{asked, header};
    use proptest::prelude::*;

    const RUN: u128 = 42;

    fn fact(position: usize, header: Option<Header>) -> Fact {
        Fact {
            run: RUN,
            unix_ms: 1000 + position as u64,
            domain: format!("domain{position}"),
            node: format!("node{position}"),
            leader: position as u64,
            trouble: String::new(),
            unread: false,
            header,
        }
    }

    /// Facts of four positions in groups of two, with memory where `there` is set.
    fn facts(there: [bool; 4]) -> Vec<Fact> {
        let of = |position: usize| {
            let first = position / 2 * 2;
            header(RUN, position, (position / 2, &[first, first + 1]))
        };
        (0..4).map(|p| fact(p, there[p].then(|| of(p)))).collect()
    }

    fn known(facts: Vec<Fact>) -> Known {
        let (test, config) = asked();
        Known::new(facts, &test, &config).unwrap()
    }

    /// All four positions contain checkpoint 1, taken at boundary 30.
    fn saved() -> Vec<Fact> {
        let mut facts = facts([true; 4]);
        for (position, fact) in facts.iter_mut().enumerate() {
            let header = fact.header.as_mut().unwrap();
            let checkpoint = header.claim.next_checkpoint();
            header.claim = header.claim.sealed(Method::SelfCheckpoint, checkpoint).committed();
            header.base = Mark { boundary: 30, root: position as u64 };
        }
        facts
    }

    fn setup(groups: Groups) -> Setup {
        Setup { method: Method::SelfCheckpoint, losses: 1, groups }
    }

    #[test]
    fn memory_of_another_run_is_a_strangers() {
        let mut all = facts([true; 4]);
        all[2].header.as_mut().unwrap().id.run = RUN + 1;
        let known = known(all);
        assert_eq!((known.run(), known.tells(), known.joined()), (RUN, true, 1));
        assert!(known.header(1).is_some() && known.header(2).is_none());
        // All ranks use rank 0's run, whatever other ranks have found.
        let mut all = facts([true; 4]);
        all[0].run = RUN + 1;
        let known = self::known(all);
        assert!(!known.tells());
        assert_eq!(known.joined(), 0);
    }

    /// A node was away when the run restarted with other groups.
    #[test]
    fn memory_of_an_earlier_start_with_other_groups_is_as_good_as_lost() {
        let (test, config) = asked();
        for (members, group) in [([1, 3], 1), ([0, 3], 1), ([2, 3], 0), ([2, 3], 7)] {
            let mut all = saved();
            for fact in &mut all[..3] {
                let header = fact.header.as_mut().unwrap();
                header.claim.joined = next_attempt(header.claim.joined, 5);
            }
            let old = &mut all[3].header.as_mut().unwrap().id;
            (old.members, old.group) = (members.to_vec(), group);
            let mut known = Known::new(all, &test, &config).unwrap();
            let groups = known.groups(&test, &config).unwrap();
            assert_eq!(groups, [[0, 1], [2, 3]], "{members:?} {group}");
            let decision = known.decide(&setup(groups), false, None);
            assert!(
                matches!(&decision, Decision::Restore(recovery) if recovery.lost == [3]),
                "{members:?} {group}: {decision:?}"
            );
            assert!(known.unusable()[0].1.contains("other groups"), "{:?}", known.unusable());
        }
        // Headers of one attempt contradict each other, so neither can be discarded as the earlier one.
        let mut all = saved();
        all[3].header.as_mut().unwrap().id.members = vec![1, 3];
        let mut known = Known::new(all, &test, &config).unwrap();
        assert!(known.groups(&test, &config).is_err());
    }

    #[test]
    fn memory_of_another_test_of_the_run_is_as_good_as_lost() {
        let (test, config) = asked();
        for index in [test.index - 1, test.index + 1] {
            let mut all = saved();
            all[1].header.as_mut().unwrap().id.test = index;
            let known = Known::new(all, &test, &config).unwrap();
            assert!(known.header(1).is_none() && known.header(0).is_some());
            let pairs = setup(vec![vec![0, 1], vec![2, 3]]);
            let Decision::Restore(recovery) = known.decide(&pairs, false, None) else {
                panic!("one of each group is lost at most");
            };
            assert_eq!(recovery.lost, [1]);
            // That memory has another checkpoint with the same number.
            assert_eq!(known.root_once_held(1, recovery.target), None);
            let mut all = saved();
            all.iter_mut().flat_map(|fact| &mut fact.header).for_each(|h| h.id.test = index);
            assert!(!Known::new(all, &test, &config).unwrap().tells());
        }
    }

    #[test]
    fn memory_of_something_else_under_this_name_is_refused() {
        let (test, config) = asked();
        let mut all = facts([true; 4]);
        all[1].header.as_mut().unwrap().id.n += 1;
        let why = Known::new(all, &test, &config).unwrap_err().to_string();
        assert!(why.contains("N = 101, NB = 10, grid 2 x 2, with settings that differ"), "{why}");
        let mut all = facts([true; 4]);
        all[3].header.as_mut().unwrap().id.layout = ParityLayout::Grid as u8;
        let why = Known::new(all, &test, &config).unwrap_err().to_string();
        assert!(
            why.contains("with --parity-layout grid, but this run has --parity-layout striped"),
            "{why}"
        );
    }

    #[test]
    fn checkpoints_of_which_none_can_be_used_are_not_forgotten() {
        let (test, config) = asked();
        let pairs = || setup(vec![vec![0, 1], vec![2, 3]]);
        let damaged = || vec!["it is damaged".to_owned(); 4];
        let mut all = known(saved());
        all.discard(damaged());
        assert_eq!(all.decide(&pairs(), false, None), Decision::Refuse(Refusal::NoneUsable));
        assert_eq!(all.decide(&pairs(), true, None), Decision::Refuse(Refusal::NoneUsable));
        let error = all.refused(Refusal::NoneUsable, &config).to_string();
        assert_eq!(error.matches("it is damaged").count(), 4, "{error}");
        // A checkpoint on storage is used instead.
        assert_eq!(all.decide(&pairs(), false, Some((RUN, 7))), Decision::Fetch);
        // One header remains after all others are lost.
        let mut one = saved();
        one.iter_mut().skip(1).for_each(|fact| fact.header = None);
        let mut one = known(one);
        assert!(matches!(one.decide(&pairs(), false, None), Decision::Refuse(_)));
        one.discard(damaged());
        assert_eq!(one.decide(&pairs(), false, None), Decision::Refuse(Refusal::NoneUsable));
        // Before the first commit, or without memory, the run starts from scratch.
        let mut sealed = facts([true; 4]);
        for header in sealed.iter_mut().flat_map(|fact| &mut fact.header) {
            let checkpoint = header.claim.next_checkpoint();
            header.claim = header.claim.sealed(Method::SelfCheckpoint, checkpoint);
        }
        let mut sealed = known(sealed);
        sealed.discard(damaged());
        assert_eq!(sealed.decide(&pairs(), false, None), Decision::Fresh);
        // Memory of another test was no longer needed.
        let mut other = saved();
        other.iter_mut().flat_map(|fact| &mut fact.header).for_each(|h| h.id.test += 1);
        let other = Known::new(other, &test, &config).unwrap();
        assert_eq!(other.decide(&pairs(), false, None), Decision::Fresh);
    }

    /// After an upgrade of the program, or if so many headers are damaged that none can be read, the memory must be kept.
    #[test]
    fn headers_that_nobody_can_read_are_not_taken_for_nothing() {
        let pairs = setup(vec![vec![0, 1], vec![2, 3]]);
        let unread = |mut fact: Fact| {
            (fact.header, fact.unread, fact.trouble) = (None, true, "a header, but".to_owned());
            fact
        };
        let decided = |facts: Vec<Fact>| known(facts).decide(&pairs, false, None);
        let refused = Decision::Refuse(Refusal::NoneUsable);
        let all: Vec<Fact> = saved().into_iter().map(unread).collect();
        assert_eq!(decided(all.clone()), refused);
        let without = |positions: &[usize]| {
            let mut some = all.clone();
            positions.iter().for_each(|p| some[*p] = fact(*p, None));
            some
        };
        // If each group has lost as many members as it survives, the start is refused. If a group has lost more, the run starts
        // from scratch.
        assert_eq!(decided(without(&[1, 2])), refused);
        assert_eq!(decided(without(&[0, 1])), Decision::Fresh);
        assert_eq!(decided(facts([false; 4])), Decision::Fresh);
        // A header that was never written proves that no checkpoint was committed.
        let mut blank = all.clone();
        (blank[3].unread, blank[3].trouble) = (false, "a header, but it was never written".into());
        assert_eq!(decided(blank), Decision::Fresh);
        // A checkpoint on storage is used, and a readable header is trusted.
        assert_eq!(known(all).decide(&pairs, false, Some((RUN, 7))), Decision::Fetch);
        let mut one = facts([true; 4]);
        one[2] = unread(one[2].clone());
        assert_eq!(decided(one), Decision::Fresh);
    }

    #[test]
    fn groups_stay_as_they_were_saved() {
        let (test, config) = asked();
        let pairs = vec![vec![0, 1], vec![2, 3]];
        assert_eq!(known(facts([false; 4])).groups(&test, &config).unwrap(), pairs, "new");
        // These groups differ from those for a start from scratch. A group without a header is formed from the remaining
        // positions.
        let crossed = |position: usize| match position % 2 {
            0 => header(RUN, position, (7, &[0, 2])),
            _ => header(RUN, position, (5, &[3, 1])),
        };
        let all: Vec<Fact> = (0..4).map(|p| fact(p, Some(crossed(p)))).collect();
        let mut whole = known(all.clone());
        assert_eq!(whole.groups(&test, &config).unwrap(), [[3, 1], [0, 2]]);
        assert_eq!((whole.number_of_group(2), whole.number_of_group(1)), (Some(7), Some(5)));
        assert_eq!(whole.new_groups(&test, &config).unwrap(), pairs);
        let mut half = all;
        (half[1].header, half[3].header) = (None, None);
        let mut half = known(half);
        assert_eq!(half.groups(&test, &config).unwrap(), [[0, 2], [1, 3]]);
        assert_eq!(half.number_of_group(3), None);
    }

    #[test]
    fn groups_that_contradict_each_other_are_refused_with_their_positions() {
        let (test, config) = asked();
        let mut all = saved();
        all[1].header.as_mut().unwrap().id.members = vec![1, 2];
        let error = known(all).groups(&test, &config).unwrap_err();
        let StartError::Refused { refusal: Refusal::Inconsistent(..), survey, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(survey.lines().count(), 4);
        assert!(survey.contains("  position 2 on node2: checkpoint 1\n"), "{survey}");
    }

    #[test]
    fn a_run_with_more_ranks_for_checksums_than_the_saved_one_is_another() {
        let (mut test, config) = asked();
        test.layout.dedicated = 1;
        let mut all = facts([true; 4]);
        all.push(fact(4, None));
        let error = Known::new(all, &test, &config).unwrap().groups(&test, &config).unwrap_err();
        assert!(error.to_string().contains("its --group is another"), "{error}");
    }

    #[test]
    fn damaged_memory_is_discarded_and_decided_again() {
        let mut known = known(saved());
        let setup = setup(vec![vec![0, 1], vec![2, 3]]);
        let Decision::Restore(recovery) = known.decide(&setup, false, None) else { panic!() };
        assert!(recovery.lost.is_empty());
        known.discard(["", "flipped", "", ""].map(str::to_owned).to_vec());
        let Decision::Restore(recovery) = known.decide(&setup, false, None) else { panic!() };
        assert_eq!(recovery.lost, [1]);
        assert_eq!(known.unusable(), [(1, "flipped".to_owned())]);
        assert!(known.survey().contains("  position 1 on node1: flipped\n"));
        // The digest in its header is kept, because the rebuilt data must match it.
        assert_eq!(known.root_once_held(1, recovery.target), Some(1));
        assert_eq!(known.boundary_of(recovery.target), Some(30));
        known.discard(["too", "", "", ""].map(str::to_owned).to_vec());
        let decision = known.decide(&setup, false, None);
        assert!(matches!(decision, Decision::Refuse(Refusal::TooManyLost { .. })));
        // A checkpoint on storage is used instead of memory, but not during recovery in place.
        assert_eq!(known.decide(&setup, false, Some((RUN, 10))), Decision::Fetch);
        assert_eq!(known.decide(&setup, true, Some((RUN, 10))), decision);
    }

    /// A checkpoint on storage is used if it is later than the checkpoint in memory.
    #[test]
    fn the_further_checkpoint_is_taken() {
        let (known, setup) = (known(saved()), setup(vec![vec![0, 1], vec![2, 3]]));
        for (stored, fetches) in [(None, false), (Some(30), false), (Some(31), true)] {
            let stored = stored.map(|boundary| (RUN, boundary));
            assert_eq!(known.decide(&setup, false, stored) == Decision::Fetch, fetches);
        }
    }

    /// A later checkpoint of an earlier run is used only if memory cannot be used.
    #[test]
    fn a_checkpoint_of_an_earlier_run_does_not_outrank_memory() {
        let (mut known, setup) = (known(saved()), setup(vec![vec![0, 1], vec![2, 3]]));
        let decided =
            |known: &Known, run, in_place| known.decide(&setup, in_place, Some((run, 31)));
        for in_place in [false, true] {
            let restored = decided(&known, RUN - 1, in_place);
            assert!(matches!(restored, Decision::Restore(_)), "{restored:?}");
            assert_eq!(decided(&known, RUN + 1, in_place), Decision::Fetch);
        }
        known.discard(vec!["damaged".to_owned(); 4]);
        assert_eq!(decided(&known, RUN - 1, false), Decision::Fetch);
    }

    /// All nodes are named `localhost`.
    #[test]
    fn nodes_of_one_name_are_not_one_node() {
        let mut known = known(saved());
        for (position, fact) in known.facts.iter_mut().enumerate() {
            (fact.node, fact.leader) = ("localhost".into(), position as u64 / 2 * 2);
        }
        assert_eq!(known.neighbours(2), [2, 3]);
        assert_eq!(known.neighbours(1), [0, 1]);
    }

    proptest! {
        #[test]
        fn a_fact_arrives_as_it_was_sent(
            run: u128,
            unix_ms: u64,
            domain in ".*",
            node in ".*",
            leader: u64,
            trouble in ".*",
            unread: bool,
            there: bool,
        ) {
            let header = there.then(|| header(run, 1, (0, &[0, 1])));
            let fact = Fact { run, unix_ms, domain, node, leader, trouble, unread, header };
            let bytes = postcard::to_allocvec(&fact).unwrap();
            prop_assert_eq!(postcard::from_bytes(&bytes), Ok(fact));
            for short in 0..bytes.len() {
                prop_assert!(postcard::from_bytes::<Fact>(&bytes[..short]).is_err());
            }
        }

        /// For any remaining headers of any groups: every position is in one group, and a group with a header is unchanged. The
        /// positions that no header names form one more group.
        #[test]
        fn groups_are_told_by_any_of_their_members(
            deal in proptest::collection::vec(0usize..4, 1..12),
            left in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let positions = deal.len();
            let group = |number: usize| -> Vec<usize> {
                (0..positions).filter(|&p| deal[p] == number).collect()
            };
            let header = |p: usize| header(RUN, p, (deal[p], &group(deal[p])));
            let headers: Vec<Option<Header>> =
                (0..positions).map(|p| left[p].then(|| header(p))).collect();
            let told = told_groups(&headers, positions).unwrap();
            let mut all: Vec<usize> = told.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, Vec::from_iter(0..positions));
            let survives = |number: &usize| group(*number).iter().any(|&p| left[p]);
            let surviving: Groups = (0..4).filter(survives).map(group).collect();
            prop_assert_eq!(&told[..surviving.len()], &surviving[..]);
            prop_assert!(told.len() <= surviving.len() + 1);
        }
    }
}

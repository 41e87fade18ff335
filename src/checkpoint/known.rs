//! What all positions' memory says at a start, as every rank has heard it, and what follows from that alone. Pure.
//!
//! `start` gathers a [`Fact`] of each rank and asks here whose memory it is, which groups it tells of and what is to be done;
//! as all ranks have heard the same, all get the same answer. What turns out to be damaged is struck out, and it asks again.

use std::collections::BTreeMap;

use super::groups::Groups;
use super::identity::belongs;
use super::layout::ChecksumLayout;
use super::plan::{Layout, Scheme};
use super::protocol::{
    Decision, Method, Recovery, Refusal, Setup, Trace, decide_in_place, decide_with, leading,
    worth_keeping,
};
use super::taking::mark_of;
use super::terms::{Config, StartError, Test};
use crate::shm::header::{Claim, EpochId, Header, Mark, next_incarnation};

/// What each rank tells the others at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub run: u128,
    /// The moment by its clock.
    pub unix_ms: u64,
    pub domain: String,
    pub node: String,
    /// The first rank on it, which tells apart nodes of one name.
    pub leader: u64,
    pub trouble: String,
    /// There is a header that may once have been right: of another version, damaged, or beside a bad page.
    pub unread: bool,
    pub header: Option<Header>,
}

impl Fact {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.run.to_le_bytes().to_vec();
        out.extend_from_slice(&self.unix_ms.to_le_bytes());
        out.extend_from_slice(&self.leader.to_le_bytes());
        out.push(u8::from(self.unread));
        let header = self.header.as_ref().map(Header::to_bytes).unwrap_or_default();
        for piece in
            [self.domain.as_bytes(), self.node.as_bytes(), self.trouble.as_bytes(), &header]
        {
            out.extend_from_slice(&(piece.len() as u64).to_le_bytes());
            out.extend_from_slice(piece);
        }
        out
    }

    pub(super) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let run = u128::from_le_bytes(*bytes.split_off(..16)?.first_chunk()?);
        let unix_ms = u64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?);
        let leader = u64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?);
        let unread = bytes.split_off(..1)? == [1];
        let mut piece = || {
            let length = u64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?) as usize;
            bytes.split_off(..length)
        };
        let mut text = || Some(String::from_utf8_lossy(piece()?).into_owned());
        let (domain, node, trouble) = (text()?, text()?, text()?);
        let header = Header::from_bytes(piece()?).ok();
        Some(Self { run, unix_ms, domain, node, leader, trouble, unread, header })
    }
}

/// What is known of every position.
#[derive(Debug)]
pub(super) struct Known {
    facts: Vec<Fact>,
    /// Of memory of this run and this test that can be believed.
    headers: Vec<Option<Header>>,
    /// Nobody has a header that can be read, nor one that says that nothing was written.
    mute: bool,
}

impl Known {
    /// Which run is in progress was decided when it was looked for; memory of any other is a stranger's.
    pub(super) fn new(
        mut facts: Vec<Fact>,
        test: &Test,
        config: &Config,
    ) -> Result<Self, StartError> {
        let run = facts[0].run;
        let says_nothing = |f: &Fact| f.header.is_none() && (f.unread || f.trouble.is_empty());
        let mute = facts.iter().all(says_nothing);
        // Of another test of this run is what its clean-up has left, or what a node has that was away while the sweep went on.
        // It says nothing of this one, nor does its digest, though it may name an epoch of the same number.
        let other_test = |h: &Header| h.id.run == run && h.id.test != test.index;
        for fact in &mut facts {
            fact.header.take_if(|header| other_test(header));
        }
        let headers: Vec<Option<Header>> =
            facts.iter().map(|f| f.header.clone().filter(|h| h.id.run == run)).collect();
        // Any other difference means that something else was started under this name.
        match headers.iter().flatten().find(|h| !belongs(h, test, config)) {
            Some(other) => Err(another(other, config)),
            None => Ok(Self { facts, headers, mute }),
        }
    }

    pub(super) fn run(&self) -> u128 {
        self.facts[0].run
    }

    /// Whether any memory tells of this test.
    pub(super) fn tells(&self) -> bool {
        self.headers.iter().any(Option::is_some)
    }

    /// What a position's memory says, if that can be believed.
    pub(super) fn header(&self, position: usize) -> Option<&Header> {
        self.headers[position].as_ref()
    }

    pub(super) fn domains(&self) -> Vec<String> {
        self.facts.iter().map(|fact| fact.domain.clone()).collect()
    }

    /// The positions whose ranks are on this one's node, itself among them, in order.
    pub(super) fn neighbours(&self, position: usize) -> Vec<usize> {
        let node = |at: usize| self.facts[at].leader;
        (0..self.facts.len()).filter(|&at| node(at) == node(position)).collect()
    }

    /// The last incarnation that any memory took part in; 0 if there is none.
    pub(super) fn joined(&self) -> u64 {
        self.headers.iter().flatten().map(|h| h.claim.joined).max().unwrap_or(0)
    }

    /// The incarnation that memory goes on from.
    pub(super) fn leading(&self) -> Option<u64> {
        leading(self.headers.iter().flatten().map(|h| Trace::of(&h.claim)))
    }

    /// The number of this incarnation, the same on all ranks: by the clock that is furthest.
    pub(super) fn joins(&self) -> u64 {
        let now = self.facts.iter().map(|fact| fact.unix_ms).max();
        next_incarnation(self.joined(), now.unwrap_or(0))
    }

    /// The groups into which a fresh start divides the positions. A run that has gone on does so on fewer failure domains than
    /// the groups want, as it does from memory: in hour nine it is not refused for it, nor at its next test.
    pub(super) fn groups_anew(&self, test: &Test, config: &Config) -> Result<Groups, StartError> {
        let Scheme { layout, losses, .. } = config.scheme;
        let divide = match config.goes_on {
            true => ChecksumLayout::groups_at_any_rate,
            false => ChecksumLayout::groups,
        };
        Ok(divide(layout, &test.layout, &self.domains(), config.group, losses)?)
    }

    /// The groups in which memory was saved; where it tells of none, as they would be anew.
    pub(super) fn groups(&mut self, test: &Test, config: &Config) -> Result<Groups, StartError> {
        // Memory that holds no checkpoint says nothing of groups that anybody needs.
        if !self.tells() || config.scheme.method == Method::Disk {
            return self.groups_anew(test, config);
        }
        self.strike_out_divided_otherwise();
        match told_groups(&self.headers, test.layout.positions()) {
            // Nobody tells of them: the run had fewer.
            Some(groups) if groups.iter().any(|group| keep_nothing(group, &test.layout)) => {
                Err(StartError::Other {
                    job: config.depot.job().into(),
                    what: "with fewer ranks for checksums, so another --group".into(),
                })
            }
            Some(groups) => Ok(groups),
            None if config.storage.as_ref().is_some_and(|s| !s.stored.is_empty()) => {
                // Memory that contradicts itself is not needed.
                self.headers.iter_mut().for_each(|h| *h = None);
                self.groups_anew(test, config)
            }
            None => {
                let why = "they tell of different groups".into();
                Err(self.refused(Refusal::Inconsistent(0, 0, why), config))
            }
        }
    }

    /// Strikes out memory of earlier incarnations that tells of other groups than the last one's: nobody has needed it since.
    fn strike_out_divided_otherwise(&mut self) {
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
                fact.trouble = "is of an earlier start, which had other groups".into();
                // It is no checkpoint that anybody would miss.
                fact.header = None;
            }
        }
    }

    /// The number that the headers of a position's group have.
    pub(super) fn number_of_group(&self, position: usize) -> Option<usize> {
        let mut headers = self.headers.iter().flatten();
        headers
            .find(|h| h.id.members.contains(&(position as u32)))
            .map(|header| header.id.group as usize)
    }

    /// What to do, where the best epoch on storage is of this run and was taken at this boundary.
    pub(super) fn decide(
        &self,
        setup: &Setup,
        in_place: bool,
        stored: Option<(u128, u64)>,
    ) -> Decision {
        let claims: Vec<Option<Claim>> =
            self.headers.iter().map(|h| h.as_ref().map(|h| h.claim)).collect();
        let boundary = |target| self.boundary_of(target);
        let with = |stored| match in_place {
            true => decide_in_place(setup, &claims, boundary, stored),
            false => decide_with(setup, &claims, boundary, stored),
        };
        let decision = match (with(stored.map(|(_, boundary)| boundary)), stored) {
            // What memory tells of began with whatever earlier runs had, or anew: an epoch of one of those that has got further
            // was brought by a node that was away.
            (Decision::Fetch, Some((run, _))) if run < self.run() => match with(None) {
                restored @ (Decision::Restore(_) | Decision::FinishAndRestore(_)) => restored,
                _ => Decision::Fetch,
            },
            (decision, _) => decision,
        };
        match decision {
            // Where nothing that was worth keeping can be used, to begin anew is not for a program to decide.
            Decision::Fresh if self.has_struck_out_a_checkpoint() || self.may_have_one(setup) => {
                Decision::Refuse(Refusal::NoneUsable)
            }
            decision => decision,
        }
    }

    fn has_struck_out_a_checkpoint(&self) -> bool {
        let mut all = self.facts.iter().zip(&self.headers);
        all.any(|(fact, header)| {
            let said = fact.header.as_ref().filter(|said| said.id.run == self.run());
            header.is_none() && said.is_some_and(|said| worth_keeping(&said.claim))
        })
    }

    /// Whether there may be a checkpoint although no header can be read, as after the program was replaced by one that lays
    /// memory out otherwise: so many headers are there that their positions would be enough.
    fn may_have_one(&self, setup: &Setup) -> bool {
        let unread =
            |members: &Vec<usize>| members.iter().filter(|p| self.facts[**p].unread).count();
        self.mute
            && setup.groups.iter().all(|g| unread(g) > 0 && unread(g) + setup.losses >= g.len())
    }

    /// Strikes out memory of which its position says what is wrong; nothing is wrong where that is empty.
    pub(super) fn strike_out(&mut self, troubles: Vec<Vec<u8>>) {
        for ((header, fact), trouble) in self.headers.iter_mut().zip(&mut self.facts).zip(troubles)
        {
            if !trouble.is_empty() {
                *header = None;
                fact.trouble = String::from_utf8_lossy(&trouble).into_owned();
            }
        }
    }

    /// Where an epoch was taken, by any header that has it.
    fn boundary_of(&self, target: EpochId) -> Option<u64> {
        let recovery = Recovery { target, finish: Vec::new(), lost: Vec::new() };
        let mut headers = self.headers.iter().flatten();
        headers.find_map(|header| mark_of(header, &recovery)).map(|mark| mark.boundary)
    }

    /// The recovery's epoch, as any accepted header has it: all name the same boundary.
    pub(super) fn mark(&self, recovery: &Recovery) -> Mark {
        let headers = self.headers.iter().enumerate();
        headers
            .filter(|(position, _)| recovery.lost.binary_search(position).is_err())
            .find_map(|(_, h)| mark_of(h.as_ref()?, recovery))
            .expect("a target has a supplier")
    }

    /// The root of what a position says it held of the recovery's epoch, even if that could not be used.
    pub(super) fn root_once_held(&self, position: usize, recovery: &Recovery) -> Option<u64> {
        let said = self.facts[position].header.as_ref().filter(|h| h.id.run == self.run());
        said.and_then(|header| mark_of(header, recovery)).map(|mark| mark.root)
    }

    /// What was wrong with memory that was there but could not be used, by position.
    pub(super) fn unusable(&self) -> Vec<(usize, String)> {
        let troubled = self.facts.iter().enumerate().filter(|(_, fact)| !fact.trouble.is_empty());
        troubled.map(|(position, fact)| (position, fact.trouble.clone())).collect()
    }

    pub(super) fn refused(&self, refusal: Refusal, config: &Config) -> StartError {
        StartError::Refused { refusal, survey: self.survey(), job: config.depot.job().into() }
    }

    /// Who has what, for a refusal.
    pub(super) fn survey(&self) -> String {
        let mut text = String::new();
        for (position, (fact, header)) in self.facts.iter().zip(&self.headers).enumerate() {
            let holds = match header {
                None if fact.trouble.is_empty() => "no memory of this run".to_owned(),
                None => fact.trouble.clone(),
                Some(h) => match (h.claim.base, h.claim.seal) {
                    (Some(b), Some(s)) => format!("epoch {} and, sealed, {}", b.epoch, s.epoch),
                    (Some(b), None) => format!("epoch {}", b.epoch),
                    (None, Some(s)) => format!("epoch {}, sealed", s.epoch),
                    (None, None) => "memory without a whole epoch".to_owned(),
                },
            };
            text.push_str(&format!("  position {position} on {}: {holds}\n", fact.node));
        }
        text
    }
}

/// Memory of this run, but not of this test.
fn another(other: &Header, config: &Config) -> StartError {
    let id = &other.id;
    let settings = match ChecksumLayout::from_byte(id.layout) {
        Some(layout) if layout != config.scheme.layout => format!(
            "with --layout {}, and this one asks for {}",
            layout.name(),
            config.scheme.layout.name()
        ),
        _ => "or other settings of the same problem".into(),
    };
    StartError::Other {
        job: config.depot.job().into(),
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

/// Groups as the surviving headers tell them; positions nobody tells of form one more group, which
/// then has lost all its members. None if headers contradict each other.
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

/// Whether nobody of a group has a part of the matrix.
fn keep_nothing(group: &[usize], layout: &Layout) -> bool {
    group.iter().all(|&member| member >= layout.working())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::identity::tests::{asked, header};
    use crate::checkpoint::protocol::Transitions;
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

    /// Of four positions in groups of two, with memory where `there` is.
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

    /// All four hold epoch 1 of boundary 30 in their checkpoint.
    fn saved() -> Vec<Fact> {
        let mut facts = facts([true; 4]);
        for (position, fact) in facts.iter_mut().enumerate() {
            let header = fact.header.as_mut().unwrap();
            let epoch = header.claim.next_epoch();
            header.claim = header.claim.sealed(Method::SelfCheckpoint, epoch).committed();
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
        // Rank 0's word counts, whatever the others thought was in progress.
        let mut all = facts([true; 4]);
        all[0].run = RUN + 1;
        let known = self::known(all);
        assert!(!known.tells());
        assert_eq!(known.joined(), 0);
    }

    /// A node that was away when the run began anew within itself, with groups divided otherwise.
    #[test]
    fn memory_of_an_earlier_start_with_other_groups_is_as_good_as_lost() {
        let (test, config) = asked();
        for (members, group) in [([1, 3], 1), ([0, 3], 1), ([2, 3], 0), ([2, 3], 7)] {
            let mut all = saved();
            for fact in &mut all[..3] {
                let header = fact.header.as_mut().unwrap();
                header.claim.joined = next_incarnation(header.claim.joined, 5);
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
        // Of one incarnation, none is the later one.
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
            // It has an epoch of that number, too, but that is not what was lost.
            assert_eq!(known.root_once_held(1, &recovery), None);
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
        assert!(why.contains("N = 101, NB = 10, grid 2 x 2, or other settings"), "{why}");
        let mut all = facts([true; 4]);
        all[3].header.as_mut().unwrap().id.layout = ChecksumLayout::Grid.to_byte();
        let why = Known::new(all, &test, &config).unwrap_err().to_string();
        assert!(why.contains("with --layout grid, and this one asks for striped"), "{why}");
    }

    #[test]
    fn checkpoints_of_which_none_can_be_used_are_not_forgotten() {
        let (test, config) = asked();
        let pairs = || setup(vec![vec![0, 1], vec![2, 3]]);
        let damaged = || vec![b"it is damaged".to_vec(); 4];
        let mut all = known(saved());
        all.strike_out(damaged());
        assert_eq!(all.decide(&pairs(), false, None), Decision::Refuse(Refusal::NoneUsable));
        assert_eq!(all.decide(&pairs(), true, None), Decision::Refuse(Refusal::NoneUsable));
        let error = all.refused(Refusal::NoneUsable, &config).to_string();
        assert_eq!(error.matches("it is damaged").count(), 4, "{error}");
        // What lies on storage is as good.
        assert_eq!(all.decide(&pairs(), false, Some((RUN, 7))), Decision::Fetch);
        // One that is left over when all others are lost.
        let mut one = saved();
        one.iter_mut().skip(1).for_each(|fact| fact.header = None);
        let mut one = known(one);
        assert!(matches!(one.decide(&pairs(), false, None), Decision::Refuse(_)));
        one.strike_out(damaged());
        assert_eq!(one.decide(&pairs(), false, None), Decision::Refuse(Refusal::NoneUsable));
        // Before the first commit, or with nothing at all, generating again is as good.
        let mut sealed = facts([true; 4]);
        for header in sealed.iter_mut().flat_map(|fact| &mut fact.header) {
            let epoch = header.claim.next_epoch();
            header.claim = header.claim.sealed(Method::SelfCheckpoint, epoch);
        }
        let mut sealed = known(sealed);
        sealed.strike_out(damaged());
        assert_eq!(sealed.decide(&pairs(), false, None), Decision::Fresh);
        // Of another test it was no longer of use.
        let mut other = saved();
        other.iter_mut().flat_map(|fact| &mut fact.header).for_each(|h| h.id.test += 1);
        let other = Known::new(other, &test, &config).unwrap();
        assert_eq!(other.decide(&pairs(), false, None), Decision::Fresh);
    }

    /// After another version of the program, or as many bad headers: what lies there stays.
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
        // As many are gone as each group bears, and one more.
        assert_eq!(decided(without(&[1, 2])), refused);
        assert_eq!(decided(without(&[0, 1])), Decision::Fresh);
        assert_eq!(decided(facts([false; 4])), Decision::Fresh);
        // One that was never written says that nobody has committed anything.
        let mut blank = all.clone();
        (blank[3].unread, blank[3].trouble) = (false, "a header, but it was never written".into());
        assert_eq!(decided(blank), Decision::Fresh);
        // What storage has is taken, and a header that can be read is believed.
        assert_eq!(known(all).decide(&pairs, false, Some((RUN, 7))), Decision::Fetch);
        let mut one = facts([true; 4]);
        one[2] = unread(one[2].clone());
        assert_eq!(decided(one), Decision::Fresh);
    }

    #[test]
    fn groups_stay_as_they_were_saved() {
        let (test, config) = asked();
        let pairs = vec![vec![0, 1], vec![2, 3]];
        assert_eq!(known(facts([false; 4])).groups(&test, &config).unwrap(), pairs, "anew");
        // Crossed, unlike how they would be anew; a group without any survivor is the rest.
        let crossed = |position: usize| match position % 2 {
            0 => header(RUN, position, (7, &[0, 2])),
            _ => header(RUN, position, (5, &[3, 1])),
        };
        let all: Vec<Fact> = (0..4).map(|p| fact(p, Some(crossed(p)))).collect();
        let mut whole = known(all.clone());
        assert_eq!(whole.groups(&test, &config).unwrap(), [[3, 1], [0, 2]]);
        assert_eq!((whole.number_of_group(2), whole.number_of_group(1)), (Some(7), Some(5)));
        assert_eq!(whole.groups_anew(&test, &config).unwrap(), pairs);
        let mut half = all;
        (half[1].header, half[3].header) = (None, None);
        let mut half = known(half);
        assert_eq!(half.groups(&test, &config).unwrap(), [[0, 2], [1, 3]]);
        assert_eq!(half.number_of_group(3), None);
    }

    #[test]
    fn groups_that_contradict_each_other_are_refused_with_who_holds_what() {
        let (test, config) = asked();
        let mut all = saved();
        all[1].header.as_mut().unwrap().id.members = vec![1, 2];
        let error = known(all).groups(&test, &config).unwrap_err();
        let StartError::Refused { refusal: Refusal::Inconsistent(..), survey, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(survey.lines().count(), 4);
        assert!(survey.contains("  position 2 on node2: epoch 1\n"), "{survey}");
    }

    #[test]
    fn a_run_with_more_ranks_for_checksums_than_the_saved_one_is_another() {
        let (mut test, config) = asked();
        test.layout.dedicated = 1;
        let mut all = facts([true; 4]);
        all.push(fact(4, None));
        let error = Known::new(all, &test, &config).unwrap().groups(&test, &config).unwrap_err();
        assert!(error.to_string().contains("another --group"), "{error}");
    }

    #[test]
    fn what_is_damaged_is_struck_out_and_decided_anew() {
        let mut known = known(saved());
        let setup = setup(vec![vec![0, 1], vec![2, 3]]);
        let Decision::Restore(recovery) = known.decide(&setup, false, None) else { panic!() };
        assert!(recovery.lost.is_empty());
        known.strike_out(vec![vec![], b"flipped".to_vec(), vec![], vec![]]);
        let Decision::Restore(recovery) = known.decide(&setup, false, None) else { panic!() };
        assert_eq!(recovery.lost, [1]);
        assert_eq!(known.unusable(), [(1, "flipped".to_owned())]);
        assert!(known.survey().contains("  position 1 on node1: flipped\n"));
        // What it says it held is remembered, for what is rebuilt must be that.
        assert_eq!(known.root_once_held(1, &recovery), Some(1));
        assert_eq!(known.mark(&recovery), Mark { boundary: 30, root: 0 });
        known.strike_out(vec![b"too".to_vec(), vec![], vec![], vec![]]);
        let decision = known.decide(&setup, false, None);
        assert!(matches!(decision, Decision::Refuse(Refusal::TooManyLost { .. })));
        // Storage stands in for memory, but not in a launch that goes on in place.
        assert_eq!(known.decide(&setup, false, Some((RUN, 10))), Decision::Fetch);
        assert_eq!(known.decide(&setup, true, Some((RUN, 10))), decision);
    }

    /// An epoch on storage is gone to where it is further than the one in memory.
    #[test]
    fn the_further_epoch_is_taken() {
        let (known, setup) = (known(saved()), setup(vec![vec![0, 1], vec![2, 3]]));
        for (stored, fetches) in [(None, false), (Some(30), false), (Some(31), true)] {
            let stored = stored.map(|boundary| (RUN, boundary));
            assert_eq!(known.decide(&setup, false, stored) == Decision::Fetch, fetches);
        }
    }

    /// Of an earlier run it may be further: it is gone to only where memory is of no use.
    #[test]
    fn an_epoch_of_an_earlier_run_does_not_outrank_memory() {
        let (mut known, setup) = (known(saved()), setup(vec![vec![0, 1], vec![2, 3]]));
        let decided =
            |known: &Known, run, in_place| known.decide(&setup, in_place, Some((run, 31)));
        for in_place in [false, true] {
            let restored = decided(&known, RUN - 1, in_place);
            assert!(matches!(restored, Decision::Restore(_)), "{restored:?}");
            assert_eq!(decided(&known, RUN + 1, in_place), Decision::Fetch);
        }
        known.strike_out(vec![b"damaged".to_vec(); 4]);
        assert_eq!(decided(&known, RUN - 1, false), Decision::Fetch);
    }

    /// All nodes call themselves `localhost`.
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
            let bytes = fact.to_bytes();
            prop_assert_eq!(Fact::from_bytes(&bytes), Some(fact));
            for short in 0..bytes.len() {
                prop_assert!(Fact::from_bytes(&bytes[..short]).is_none());
            }
        }

        /// Whichever headers are left of whichever groups: everybody is in one group, those of survivors are as they were, and
        /// the rest are those nobody tells of.
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

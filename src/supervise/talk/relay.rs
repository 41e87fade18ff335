//! Message handling of an agent between its parent and its children. Pure except for its [`Hands`].
//!
//! `agent` runs a [`Relay`] on a real node; the benchmark of many nodes runs thousands in one process. The relay acts on its node
//! through [`Hands`]. News from nodes below is combined into one message to the parent. Heartbeats, and repeated reports that a
//! node is quiet, are sent with the next answer to the parent. All other news is sent at once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::branch::{Branch, Heard, Lines, Told};
use super::wire::{Attend, Beat, FromAgent, ORPHAN_TIMEOUT_MS, ToAgent, Which, from_line, to_line};

/// Actions on the agent's own node.
pub trait Hands {
    fn attend(&mut self, attend: &Attend);
    fn beat(&mut self, seq: Option<u64>) -> Beat;
    /// Begins to end the run's processes. [`Relay::ended`] is called when they have ended.
    fn end(&mut self, id: u64, clean: bool);
    /// Ends a rank, if the rank is of an attempt before attempt `below`.
    fn end_rank(&mut self, which: Which, below: u32);
    fn halt(&mut self, now: bool);
    /// Called if no message has come for `unheard`, which is at least half of `limit`. Returns true if the agent must end,
    /// because the node is cut off and the run's processes on it have been ended.
    fn orphaned(&mut self, unheard: Duration, limit: Duration) -> bool;
}

#[derive(Default)]
pub struct Relay {
    branch: Option<Branch>,
    orphan_timeout_ms: u64,
    /// Time of the parent's last message.
    heard_ms: u64,
    /// News from nodes below that has not been sent yet.
    pending: Vec<Told>,
    /// Index of each node's last message in `pending`.
    last: BTreeMap<u32, usize>,
    urgent: bool,
    /// Time of the last message with news from nodes below.
    flushed_ms: u64,
    /// Last report on this node to the parent, if it was a heartbeat.
    said: Option<Beat>,
    /// Messages to the parent, which the caller sends.
    pub up: Vec<String>,
}

/// Least time between two messages to the parent if their only news from nodes below is the progress of ranks.
const SLIGHT_MS: u64 = 1000;

/// Number of times that an agent checks the ranks within the orphan timeout.
pub const LOOKS: u32 = 20;

impl Relay {
    pub fn new(now_ms: u64) -> Self {
        Self {
            orphan_timeout_ms: ORPHAN_TIMEOUT_MS,
            heard_ms: now_ms,
            flushed_ms: now_ms,
            ..Self::default()
        }
    }

    /// Returns the number of children.
    pub fn load(&self) -> usize {
        self.branch.as_ref().map_or(0, Branch::load)
    }

    /// Returns the time since the parent's last message, and the orphan timeout.
    pub fn unheard(&self, now_ms: u64) -> (Duration, Duration) {
        let unheard_ms = now_ms.saturating_sub(self.heard_ms);
        (Duration::from_millis(unheard_ms), Duration::from_millis(self.orphan_timeout_ms))
    }

    /// Handles a message from the parent.
    pub fn from_above(
        &mut self,
        text: &str,
        now_ms: u64,
        hands: &mut impl Hands,
        lines: &mut dyn Lines,
    ) {
        self.heard_ms = now_ms;
        if let Some(branch) = &mut self.branch {
            branch.paused = false;
        }
        let Some(message) = from_line::<ToAgent>(text) else { return };
        match message {
            ToAgent::Attend(attend) => {
                hands.attend(&attend);
                self.orphan_timeout_ms = attend.orphan_timeout_ms;
                self.said = None;
                self.branch = Some(Branch::new(attend));
            }
            ToAgent::Beat { seq } => {
                let beat = hands.beat(Some(seq));
                match self.said.as_mut().and_then(|said| Some((beat.moved_since(said)?, said))) {
                    Some((moved, said)) => {
                        said.moves(&moved);
                        self.up.push(to_line(&FromAgent::Moved(moved)));
                    }
                    None => self.beats(beat),
                }
                let is_slight = |(_, word): &Told| matches!(word, FromAgent::Moved(_));
                if now_ms.saturating_sub(self.flushed_ms) >= SLIGHT_MS
                    || !self.pending.iter().all(is_slight)
                {
                    self.flush(now_ms);
                }
            }
            ToAgent::End { id, clean } => hands.end(id, clean),
            ToAgent::EndRank { which, below } => hands.end_rank(which, below),
            ToAgent::Halt { now } => hands.halt(now),
            ToAgent::Call { nodes } => {
                if let Some(branch) = &mut self.branch {
                    branch.call(&nodes, now_ms, lines);
                }
            }
            ToAgent::Leave { nodes } => {
                if let Some(branch) = &mut self.branch {
                    branch.leave(&nodes, now_ms, lines);
                }
                // Earlier news of these nodes no longer matters.
                self.pending.retain(|(node, _)| !nodes.contains(node));
                self.last.clear();
            }
            ToAgent::Pass { to, message } => {
                if let Some(branch) = &mut self.branch {
                    branch.tell(&to, &message, lines);
                }
            }
        }
    }

    /// Sends a full heartbeat, with or without a request.
    pub fn beats(&mut self, beat: Beat) {
        self.said = Some(beat.clone());
        self.up.push(to_line(&FromAgent::Beat(beat)));
    }

    /// Handles a message from a child, on the connection `line`.
    pub fn from_below(&mut self, line: u64, heard: Heard, now_ms: u64, lines: &mut dyn Lines) {
        if let Some(branch) = &mut self.branch {
            let told = branch.hear(line, heard, now_ms, lines);
            self.note(told);
        }
    }

    fn note(&mut self, told: Vec<Told>) {
        let node_timeout_ms =
            self.branch.as_ref().map_or(0, |branch| branch.attend.node_timeout_ms);
        for (node, word) in told {
            self.urgent |= match &word {
                // A heartbeat without a request reports the end of a rank.
                FromAgent::Beat(beat) => beat.seq.is_none(),
                FromAgent::Moved(_) => false,
                FromAgent::Quiet { age_ms } => *age_ms >= node_timeout_ms,
                _ => true,
            };
            // News of the same kind replaces earlier news of the node.
            let before = self.last.get(&node).and_then(|at| self.pending.get_mut(*at));
            match (before, &word) {
                (Some((_, FromAgent::Beat(beat))), FromAgent::Moved(moved)) => beat.moves(moved),
                (Some((_, FromAgent::Moved(before))), FromAgent::Moved(moved)) => {
                    before.and_then(moved.clone());
                }
                (Some((_, before @ FromAgent::Beat(_))), FromAgent::Beat(_))
                | (Some((_, before @ FromAgent::Quiet { .. })), FromAgent::Quiet { .. }) => {
                    *before = word;
                }
                _ => {
                    self.last.insert(node, self.pending.len());
                    self.pending.push((node, word));
                }
            }
        }
    }

    /// Reports to the parent that [`Hands::end`] has ended `ended` processes.
    pub fn ended(&mut self, id: u64, ended: usize, hands: &mut impl Hands) {
        self.said = None;
        self.up.push(to_line(&FromAgent::Ended { id, ended, beat: hands.beat(None) }));
    }

    /// Does the work that is due at this time. Returns false if this agent must end.
    pub fn tick(&mut self, now_ms: u64, hands: &mut impl Hands, lines: &mut dyn Lines) -> bool {
        let (unheard, limit) = self.unheard(now_ms);
        let unheard_ms = unheard.as_millis() as u64;
        if unheard >= limit / 2 && hands.orphaned(unheard, limit) {
            return false;
        }
        if let Some(branch) = self.branch.as_mut().filter(|branch| !branch.is_empty()) {
            // After half the node timeout without a message, the parent gives these nodes to another child. So this agent stops
            // calling nodes a little earlier.
            branch.paused = unheard_ms >= branch.attend.node_timeout_ms * 3 / 8;
            branch.ask(now_ms, lines);
            let told = branch.tick(now_ms, lines);
            self.note(told);
        }
        if self.urgent {
            self.flush(now_ms);
        }
        true
    }

    /// Returns the time without messages after which `tick` is due.
    pub fn timeout_ms(&self) -> u64 {
        if self.branch.as_ref().is_none_or(Branch::is_empty) {
            self.orphan_timeout_ms / u64::from(LOOKS)
        } else {
            TICK_MS
        }
    }

    fn flush(&mut self, now_ms: u64) {
        self.urgent = false;
        self.flushed_ms = now_ms;
        self.last.clear();
        if !self.pending.is_empty() {
            let told = std::mem::take(&mut self.pending);
            self.up.push(to_line(&FromAgent::Below { told }));
        }
    }
}

/// Interval of ticks for an agent with children.
const TICK_MS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::super::shell::RemoteShell;
    use super::super::wire::{Charge, Facts};
    use super::*;
    use crate::supervise::talk::progress::{Doing, Progress};

    /// Connections to children: the number of the last one opened, and the texts sent.
    #[derive(Default)]
    struct Ways(u64, Vec<String>);

    impl Lines for Ways {
        fn open(&mut self, line: u64, _: &str, _: &[String], _: &Attend) {
            self.0 = line;
        }
        fn send(&mut self, _: u64, text: &str) {
            self.1.push(text.to_owned());
        }
        fn close(&mut self, _: u64) {}
        fn complaint(&self, _: u64) -> String {
            String::new()
        }
    }

    struct Node(Vec<Progress>);

    impl Hands for Node {
        fn attend(&mut self, _: &Attend) {}
        fn beat(&mut self, seq: Option<u64>) -> Beat {
            Beat { seq, ranks: self.0.clone(), ..Beat::default() }
        }
        fn end(&mut self, _: u64, _: bool) {}
        fn end_rank(&mut self, _: Which, _: u32) {}
        fn halt(&mut self, _: bool) {}
        fn orphaned(&mut self, _: Duration, _: Duration) -> bool {
            false
        }
    }

    fn attend() -> ToAgent {
        ToAgent::Attend(Attend {
            run_id: "r".to_owned(),
            job: None,
            node: "n1".to_owned(),
            orphan_timeout_ms: 60_000,
            beat_ms: 500,
            node_timeout_ms: 4000,
            fanout: 2,
            login_ms: None,
            shell: RemoteShell::parse(None).unwrap(),
            dir: None,
            agent: Vec::new(),
        })
    }

    /// The parent knows the ranks' progress once the ranks have paused for a while, although most heartbeats are sent in short
    /// form. This holds for any behaviour of the ranks, and for any interval of requests.
    #[test]
    fn ranks_that_move_are_known_above_although_the_rest_is_not_sent_again() {
        let (mut leaf, mut middle) = (Relay::new(0), Relay::new(0));
        let (mut ways, mut nobody) = (Ways::default(), Ways::default());
        let mut own = Node(Vec::new());
        let rank = |position, pid| {
            let progress =
                Progress { position, pid, doing: Doing::Computing, ..Progress::default() };
            Progress { state: 'R', ..progress }
        };
        let mut node = Node((0..20).map(|position| rank(position, 5)).collect());
        let call =
            ToAgent::Call { nodes: vec![Charge { node: 7, name: "n7".to_owned(), again: false }] };
        for message in [attend(), call] {
            middle.from_above(&to_line(&message), 0, &mut own, &mut ways);
        }
        leaf.up.push(to_line(&FromAgent::Hello(Box::<Facts>::default())));
        let (mut known, mut full, mut slight) = (Beat::default(), 0, 0);
        let mut dice = 1u64;
        let mut random = move |below: u64| {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (dice >> 33) % below
        };
        for now_ms in (100..400_000).step_by(100) {
            let rests = now_ms % 10_000 > 7_000;
            if !rests && random(4) == 0 {
                for rank in &mut node.0 {
                    rank.beat += random(2);
                    rank.iteration += u64::from(random(8) == 0);
                    rank.state = if random(5) == 0 { 'S' } else { rank.state };
                }
            }
            // Sometimes another value changes: a rank stops, another process replaces it, or a rank disappears.
            if !rests && random(300) == 0 {
                let at = random(node.0.len() as u64) as usize;
                match random(4) {
                    0 => node.0[at].state = 'T',
                    1 => node.0[at] = rank(node.0[at].position, 6 + now_ms as u32),
                    2 if node.0.len() > 5 => drop(node.0.remove(at)),
                    _ => node.0[at].doing = Doing::Saving,
                }
            }
            // Sometimes the agent is asked to halt, or has ended processes.
            if random(30) == 0 {
                let halt = to_line(&ToAgent::Halt { now: false });
                leaf.from_above(&halt, now_ms, &mut node, &mut nobody);
            }
            if random(300) == 0 {
                leaf.ended(now_ms, 0, &mut node);
            }
            middle.tick(now_ms, &mut own, &mut ways);
            for text in std::mem::take(&mut ways.1) {
                leaf.from_above(&text, now_ms, &mut node, &mut nobody);
            }
            for text in leaf.up.drain(..) {
                middle.from_below(ways.0, Heard::Text(text), now_ms, &mut ways);
            }
            if rests && now_ms % 500 == 0 || random(15) == 0 {
                let beat = to_line(&ToAgent::Beat { seq: now_ms });
                middle.from_above(&beat, now_ms, &mut own, &mut ways);
            }
            for text in middle.up.drain(..) {
                let Some(FromAgent::Below { told }) = from_line(&text) else { continue };
                for (_, word) in told {
                    match word {
                        FromAgent::Beat(beat) => (known, full) = (beat, full + 1),
                        FromAgent::Ended { beat, .. } => known = beat,
                        FromAgent::Moved(moved) => {
                            known.moves(&moved);
                            slight += 1;
                        }
                        _ => {}
                    }
                }
            }
            if now_ms % 10_000 == 9_900 {
                assert_eq!(known.ranks, node.0, "{now_ms}");
            }
        }
        assert!(slight > 2 * full, "{slight} {full}");
    }
}

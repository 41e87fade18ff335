//! An agent between the one above and those below: what it does with every message. Pure but for its hands.
//!
//! `agent` runs one on a real node; the benchmark of many nodes runs thousands in one process. What is to be done on
//! the node itself goes through [`Hands`]. News from below travel upward in one line: beats, and that somebody is still
//! quiet, with the next answer to the one above, all else at once. Where nothing is below, this is an agent as plain as can be.

use std::collections::BTreeMap;
use std::time::Duration;

use super::branch::{Branch, Heard, Lines, Told};
use super::wire::{Attend, Beat, FromAgent, ToAgent, Which, from_line, to_line};

/// What an agent does on its own node.
pub trait Hands {
    fn attend(&mut self, attend: &Attend);
    fn beat(&mut self, seq: Option<u64>) -> Beat;
    /// Begins to end the run's processes; [`Relay::ended`] is called when that is done.
    fn end(&mut self, id: u64, below: Option<u32>, clean: bool);
    /// Ends one rank of incarnations below `below`.
    fn end_rank(&mut self, which: Which, below: u32);
    fn halt(&mut self, now: bool) -> usize;
    /// Nobody has spoken for so long, which is half of the limit at least. True: it has been too long, the node is cut
    /// off, and the run's processes here are ended.
    fn lonely(&mut self, silent: Duration, limit: Duration) -> bool;
}

pub struct Relay {
    branch: Option<Branch>,
    lonely_ms: u64,
    /// When the one above last spoke.
    heard_ms: u64,
    /// When the ranks were last looked at because it did not.
    looked_ms: u64,
    /// News from below that have not been told yet.
    pending: Vec<Told>,
    /// Where the last of a node stands in them.
    last: BTreeMap<u32, usize>,
    urgent: bool,
}

/// Lines to children count from here; the agent's own has number 0.
const FIRST_LINE: u64 = 1;

/// So often the ranks are looked at in the time after which an agent is lonely.
pub const LOOKS: u32 = 20;

impl Relay {
    pub fn new(now_ms: u64) -> Self {
        Self {
            branch: None,
            lonely_ms: 60_000,
            heard_ms: now_ms,
            looked_ms: now_ms,
            pending: Vec::new(),
            last: BTreeMap::new(),
            urgent: false,
        }
    }

    /// How many children it has.
    pub fn load(&self) -> usize {
        self.branch.as_ref().map_or(0, Branch::load)
    }

    /// How long the one above has not spoken, and how long is too long.
    pub fn silence(&self, now_ms: u64) -> (Duration, Duration) {
        let silent_ms = now_ms.saturating_sub(self.heard_ms);
        (Duration::from_millis(silent_ms), Duration::from_millis(self.lonely_ms))
    }

    /// A line from above; what is to be answered goes to `up`.
    pub fn from_above(
        &mut self,
        text: &str,
        now_ms: u64,
        hands: &mut impl Hands,
        lines: &mut impl Lines,
        up: &mut Vec<String>,
    ) {
        self.heard_ms = now_ms;
        if let Some(branch) = &mut self.branch {
            branch.pause(false);
        }
        let Some(message) = from_line::<ToAgent>(text) else { return };
        match message {
            ToAgent::Attend(attend) => {
                hands.attend(&attend);
                self.lonely_ms = attend.lonely_ms;
                self.branch = Some(Branch::new(attend, FIRST_LINE, false));
            }
            ToAgent::Beat { seq } => {
                up.push(to_line(&FromAgent::Beat(hands.beat(Some(seq)))));
                self.flush(up);
            }
            ToAgent::End { id, below, clean } => hands.end(id, below, clean),
            ToAgent::EndRank { which, below } => hands.end_rank(which, below),
            ToAgent::Halt { now } => {
                up.push(to_line(&FromAgent::Halting { told: hands.halt(now) }));
            }
            ToAgent::Call { nodes } => {
                if let Some(branch) = &mut self.branch {
                    branch.call(&nodes, now_ms, lines);
                }
            }
            ToAgent::Leave { nodes } => {
                if let Some(branch) = &mut self.branch {
                    branch.leave(&nodes, now_ms, lines);
                }
                // What they said before is nobody's business any more.
                self.pending.retain(|(node, _)| !nodes.contains(node));
                self.last.clear();
            }
            ToAgent::Pass { to, message } => {
                if let Some(branch) = &mut self.branch {
                    branch.tell(to.as_deref(), &message, lines);
                }
            }
        }
    }

    /// Something from a child's line.
    pub fn from_below(&mut self, line: u64, heard: Heard, now_ms: u64, lines: &mut impl Lines) {
        if let Some(branch) = &mut self.branch {
            let told = branch.hear(line, heard, now_ms, lines);
            self.note(told);
        }
    }

    fn note(&mut self, told: Vec<Told>) {
        let silence_ms = self.branch.as_ref().map_or(0, |branch| branch.attend().silence_ms);
        for (node, word) in told {
            self.urgent |= match &word {
                // A rank's end is told by a beat nobody has asked for.
                FromAgent::Beat(beat) => beat.seq.is_none(),
                FromAgent::Moved(_) => false,
                FromAgent::Quiet { age_ms } => *age_ms >= silence_ms,
                _ => true,
            };
            // What is said once more takes the place of what was said before.
            let before = self.last.get(&node).and_then(|at| self.pending.get_mut(*at));
            match (before, &word) {
                (Some((_, FromAgent::Beat(beat))), FromAgent::Moved(moved)) => beat.moves(moved),
                (Some((_, before @ FromAgent::Moved(_))), FromAgent::Moved(_))
                | (Some((_, before @ FromAgent::Beat(_))), FromAgent::Beat(_))
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

    /// What the hands have ended.
    pub fn ended(
        &mut self,
        id: u64,
        ended: usize,
        left: usize,
        hands: &mut impl Hands,
        up: &mut Vec<String>,
    ) {
        up.push(to_line(&FromAgent::Ended { id, ended, left, beat: hands.beat(None) }));
    }

    /// What is due by the clock; false where this agent's time is over.
    pub fn tick(
        &mut self,
        now_ms: u64,
        hands: &mut impl Hands,
        lines: &mut impl Lines,
        up: &mut Vec<String>,
    ) -> bool {
        let (silent, limit) = self.silence(now_ms);
        let silent_ms = silent.as_millis() as u64;
        let asks = silent >= limit || silent >= limit / 2 && self.looks_again(now_ms);
        if asks && hands.lonely(silent, limit) {
            return false;
        }
        if let Some(branch) = self.branch.as_mut().filter(|branch| !branch.is_empty()) {
            // Half of the silence is when the one above gives these nodes to somebody else.
            branch.pause(silent_ms >= branch.attend().silence_ms * 3 / 8);
            branch.ask(now_ms, lines);
            let told = branch.tick(now_ms, lines);
            self.note(told);
        }
        if self.urgent {
            self.flush(up);
        }
        true
    }

    /// While nobody speaks the ranks are looked at now and then.
    fn looks_again(&mut self, now_ms: u64) -> bool {
        let due = now_ms.saturating_sub(self.looked_ms) >= self.lonely_ms / u64::from(LOOKS);
        if due {
            self.looked_ms = now_ms;
        }
        due
    }

    /// How long nothing may come before `tick` is due.
    pub fn patience_ms(&self, now_ms: u64) -> u64 {
        match self.branch.as_ref().is_none_or(Branch::is_empty) {
            true => (self.heard_ms + self.lonely_ms / 2)
                .saturating_sub(now_ms)
                .max(self.lonely_ms / u64::from(LOOKS)),
            false => TICK_MS,
        }
    }

    fn flush(&mut self, up: &mut Vec<String>) {
        self.urgent = false;
        self.last.clear();
        if !self.pending.is_empty() {
            up.push(to_line(&FromAgent::Below { told: std::mem::take(&mut self.pending) }));
        }
    }
}

/// Who has children looks at the clock so often.
const TICK_MS: u64 = 100;

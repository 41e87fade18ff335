//! The part of the tree below somebody: which child leads to which node, who is silent, who is bypassed. Pure.
//!
//! The supervisor's `cluster` has one, and so has every agent that was put in charge of nodes: the same code at every
//! level. A [`Branch`] asks its children for a beat every beat period, passes messages on to the child that leads to
//! their node, and turns what children say into news of nodes. It owns no connection and no clock: lines are opened,
//! written and closed through [`Lines`], and every call says what time it is. So a tree of a thousand nodes
//! that loses half of them is a test without a process.
//!
//! A child that is silent for half the time after which its node counts as lost is bypassed: the nodes below it are
//! placed anew. Whoever has not heard its own parent for almost as long calls nobody, so that two never fight over
//! a node.
//!
//! That a node is silent is said again and again by whoever calls for it, with how long it has been so there, and only
//! what is said counts above. So where those that called for a node are lost, one after the other, its silence ends
//! with each of them and begins anew with the next. Of a node that has just lost the one who called for it that is said
//! at once, though nobody may have room to call for it yet: whoever counts who can be heard must not take it for well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::tree::{Step, place};
use super::wire::{Attend, Beat, Charge, FromAgent, ToAgent, from_line, to_line};

/// Connections to children, by a number the branch gives them.
pub trait Lines {
    fn open(&mut self, line: u64, node: &str, words: &[String], attend: &Attend);
    /// What cannot be written shows by the line's end.
    fn send(&mut self, line: u64, text: &str);
    fn close(&mut self, line: u64);
    /// What the other end has complained of.
    fn complaint(&self, line: u64) -> String;
}

/// What came over a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Text(String),
    /// It ended: the last words on its error stream.
    Closed(String),
}

struct Link {
    line: u64,
    opened_ms: u64,
    greeted_ms: Option<u64>,
    heard_ms: u64,
    /// Whether the agent there was well before this line was opened: then silence counts from its opening.
    again: bool,
    /// When it was last said to be quiet, if it is.
    quiet_ms: Option<u64>,
    bypassed: bool,
    /// Nodes it is in charge of, at any depth.
    below: BTreeSet<u32>,
    asked: VecDeque<(u64, u64)>,
    /// The last beat it has said, with what has moved since.
    said: Option<Beat>,
    /// What has been told of it, and when that was.
    told: Option<(Beat, u64)>,
}

impl Link {
    fn is_well(&self) -> bool {
        self.greeted_ms.is_some() && self.quiet_ms.is_none() && !self.bypassed
    }

    /// What of a beat is to be told now: news in full, what moves all the time in few bytes and now and then.
    fn worth_telling(&mut self, beat: Beat, now_ms: u64) -> Option<FromAgent> {
        if let Some((last, at_ms)) = &mut self.told
            && now_ms.saturating_sub(*at_ms) < SLIGHT_MS
            && beat.is_like(last)
        {
            return None;
        }
        let last = self.told.take().map(|(last, _)| last);
        let word = match last.as_ref().and_then(|last| beat.moved_since(last)) {
            Some(moved) => FromAgent::Moved(moved),
            None => FromAgent::Beat(beat.clone()),
        };
        // What differs a little stays as it was told.
        let told = match (&word, last) {
            (FromAgent::Moved(moved), Some(mut last)) => {
                last.moves(moved);
                last
            }
            _ => beat,
        };
        self.told = Some((told, now_ms));
        Some(word)
    }

    /// A beat of its own, as it is now: what is to be told of it. Where `all` are, in full.
    fn beats(&mut self, mut beat: Beat, now_ms: u64, all: bool, node: u32) -> Option<Told> {
        beat.round_trip_ms = self.answers(beat.seq, now_ms);
        self.said = Some(beat.clone());
        let word = if all { Some(FromAgent::Beat(beat)) } else { self.worth_telling(beat, now_ms) };
        word.map(|word| (node, word))
    }

    /// Its answer to a question, with how long that took.
    fn answers(&mut self, seq: Option<u64>, now_ms: u64) -> Option<u32> {
        let mut round_trip_ms = None;
        while let Some((asked, at_ms)) = self.asked.front().copied() {
            if seq.is_none_or(|seq| seq < asked) {
                break;
            }
            self.asked.pop_front();
            if seq == Some(asked) {
                round_trip_ms = Some(now_ms.saturating_sub(at_ms) as u32);
            }
        }
        round_trip_ms
    }

    /// How long it has been silent. One that has answered all it was asked is not, however seldom that was: it may be we
    /// who are late.
    fn silent_ms(&self, now_ms: u64, beat_ms: u64) -> u64 {
        let asked_ms = match (self.greeted_ms, self.asked.front()) {
            (Some(_), oldest) => oldest.map_or(now_ms, |(_, at_ms)| *at_ms).saturating_sub(beat_ms),
            (None, _) => 0,
        };
        now_ms.saturating_sub(self.heard_ms.max(asked_ms))
    }
}

/// How often agents are asked for a beat, at most so often may one be missed before it counts as quiet.
const MISSED: u64 = 2;

/// So many times the fan-out may be open at once, with those that are bypassed.
pub const MOST_TIMES: usize = 3;

/// So many questions without an answer are remembered of each child.
const MOST_ASKED: usize = 100;

/// Of beats in which nothing has changed but how far the ranks are, one is told in this time.
const SLIGHT_MS: u64 = 1000;

pub struct Branch {
    attend: Attend,
    names: BTreeMap<u32, String>,
    /// Which of the nodes have been up.
    been_up: BTreeSet<u32>,
    links: BTreeMap<u32, Link>,
    lines: BTreeMap<u64, u32>,
    /// The child that leads to a node below it.
    route: BTreeMap<u32, u32>,
    /// Nodes nobody has room for yet.
    unplaced: BTreeSet<u32>,
    /// When those were called from here that have not answered since.
    tried: BTreeMap<u32, u64>,
    next_line: u64,
    seq: u64,
    asked_ms: Option<u64>,
    ticked_ms: Option<u64>,
    /// The quickest greeting of a child is the measure of what a login takes here.
    quickest_ms: Option<u64>,
    /// Every beat is told, also those that say little.
    all_beats: bool,
    paused: bool,
}

/// A node and what is new of it.
pub type Told = (u32, FromAgent);

/// Of a node whom nobody hears from now on, until its agent says hello to whoever calls for it next. Nothing is known of how it
/// is, so its silence begins here.
fn unheard(node: u32) -> Told {
    (node, FromAgent::Quiet { age_ms: 0 })
}

impl Branch {
    /// `first_line` is the first number to give to a line. The supervisor wants `all_beats` of its own children.
    pub fn new(attend: Attend, first_line: u64, all_beats: bool) -> Self {
        Self {
            names: BTreeMap::new(),
            been_up: BTreeSet::new(),
            links: BTreeMap::new(),
            lines: BTreeMap::new(),
            route: BTreeMap::new(),
            unplaced: BTreeSet::new(),
            tried: BTreeMap::new(),
            next_line: first_line,
            seq: 0,
            asked_ms: None,
            ticked_ms: None,
            quickest_ms: attend.login_ms,
            attend,
            all_beats,
            paused: false,
        }
    }

    /// Calls nobody for a while, nor gives nodes to anybody: whoever is above may have done so already.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// The next `ask` does, whenever the last one did.
    pub fn ask_soon(&mut self) {
        self.asked_ms = None;
    }

    pub fn attend(&self) -> &Attend {
        &self.attend
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// How many lines are open.
    pub fn load(&self) -> usize {
        self.links.len()
    }

    /// Takes nodes into charge and reaches them; connections there may be are made anew.
    pub fn call(&mut self, nodes: &[Charge], now_ms: u64, lines: &mut dyn Lines) {
        let wanted: Vec<u32> = nodes.iter().map(|c| c.node).collect();
        let mut orphans = self.forget(&wanted, lines);
        for charge in nodes {
            self.names.insert(charge.node, charge.name.clone());
            if charge.again {
                self.been_up.insert(charge.node)
            } else {
                self.been_up.remove(&charge.node)
            };
        }
        orphans.retain(|node| !wanted.contains(node));
        orphans.extend(wanted);
        self.reach(&orphans, now_ms, lines);
    }

    /// Nodes that are nobody's any more; what was below them is reached another way.
    pub fn leave(&mut self, nodes: &[u32], now_ms: u64, lines: &mut dyn Lines) {
        let mut orphans = self.forget(nodes, lines);
        for node in nodes {
            self.names.remove(node);
            self.tried.remove(node);
        }
        orphans.retain(|node| self.names.contains_key(node));
        self.reach(&orphans, now_ms, lines);
    }

    /// Ends the ways to nodes; returns the nodes that lived below them.
    fn forget(&mut self, nodes: &[u32], lines: &mut dyn Lines) -> Vec<u32> {
        let mut orphans = Vec::new();
        let mut leaving: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for node in nodes {
            self.unplaced.remove(node);
            if let Some(child) = self.route.remove(node)
                && let Some(link) = self.links.get_mut(&child)
            {
                link.below.remove(node);
                leaving.entry(link.line).or_default().push(*node);
            }
            if let Some(link) = self.links.remove(node) {
                self.lines.remove(&link.line);
                lines.close(link.line);
                for below in &link.below {
                    self.route.remove(below);
                }
                orphans.extend(link.below);
            }
        }
        for (line, nodes) in leaving {
            lines.send(line, &to_line(&ToAgent::Leave { nodes }));
        }
        orphans
    }

    fn charges(&self, nodes: &[u32]) -> Vec<Charge> {
        let charge = |node: &u32| Charge {
            node: *node,
            name: self.names.get(node).cloned().unwrap_or_default(),
            again: self.been_up.contains(node),
        };
        nodes.iter().map(charge).collect()
    }

    fn reach(&mut self, nodes: &[u32], now_ms: u64, lines: &mut dyn Lines) {
        if nodes.is_empty() || self.paused {
            self.unplaced.extend(nodes);
            return;
        }
        // Those that are bypassed stay open until their nodes are lost, or heard again.
        let busy = self.links.values().filter(|l| !l.bypassed).count();
        let fanout = self.attend.fanout;
        let room = (MOST_TIMES * fanout).saturating_sub(self.links.len());
        let free = fanout.saturating_sub(busy).min(room);
        // Those with the least to do first: nodes often come one by one.
        let mut children: Vec<(usize, u32)> = self
            .links
            .iter()
            .filter(|(_, link)| link.is_well())
            .map(|(node, link)| (link.below.len(), *node))
            .collect();
        children.sort_unstable();
        let children: Vec<u32> = children.into_iter().map(|(_, node)| node).collect();
        let steps = place(nodes, free, &children, &self.tried);
        if steps.is_empty() {
            self.unplaced.extend(nodes);
        }
        for step in steps {
            match step {
                Step::Call { head, below } => self.open(head, below, now_ms, lines),
                Step::Give { child, nodes } => self.give(child, &nodes, lines),
            }
        }
    }

    fn give(&mut self, child: u32, nodes: &[u32], lines: &mut dyn Lines) {
        let message = ToAgent::Call { nodes: self.charges(nodes) };
        let Some(link) = self.links.get_mut(&child) else { return };
        lines.send(link.line, &to_line(&message));
        link.below.extend(nodes);
        self.route.extend(nodes.iter().map(|node| (*node, child)));
    }

    fn open(&mut self, head: u32, below: Vec<u32>, now_ms: u64, lines: &mut dyn Lines) {
        let line = self.next_line;
        self.next_line += 1;
        let name = self.names.get(&head).cloned().unwrap_or_default();
        let (node, login_ms) = (name.clone(), self.quickest_ms);
        let attend = Attend { node, login_ms, ..self.attend.clone() };
        // The agent's own command line names run and node: so a successor knows its predecessor.
        let mut words = self.attend.agent.clone();
        words.extend(["--run", &attend.run_id, "--node", &name].map(String::from));
        lines.open(line, &name, &words, &attend);
        self.tried.insert(head, now_ms);
        self.lines.insert(line, head);
        self.links.insert(
            head,
            Link {
                line,
                opened_ms: now_ms,
                greeted_ms: None,
                heard_ms: now_ms,
                again: self.been_up.contains(&head),
                quiet_ms: None,
                bypassed: false,
                below: BTreeSet::new(),
                asked: VecDeque::new(),
                said: None,
                told: None,
            },
        );
        lines.send(line, &to_line(&ToAgent::Attend(attend)));
        if !below.is_empty() {
            self.give(head, &below, lines);
        }
    }

    /// Says something to nodes, by whatever way leads there; to all where none are named.
    pub fn tell(&mut self, to: Option<&[u32]>, message: &ToAgent, lines: &mut dyn Lines) {
        let Some(to) = to else {
            for link in self.links.values() {
                lines.send(link.line, &to_line(message));
                if !link.below.is_empty() {
                    let all = ToAgent::Pass { to: None, message: Box::new(message.clone()) };
                    lines.send(link.line, &to_line(&all));
                }
            }
            return;
        };
        let mut passed: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for node in to {
            if let Some(link) = self.links.get(node) {
                lines.send(link.line, &to_line(message));
            } else if let Some(child) = self.route.get(node) {
                passed.entry(*child).or_default().push(*node);
            }
        }
        for (child, nodes) in passed {
            if let Some(link) = self.links.get(&child) {
                let pass = ToAgent::Pass { to: Some(nodes), message: Box::new(message.clone()) };
                lines.send(link.line, &to_line(&pass));
            }
        }
    }

    /// What came over a line; the news in it.
    pub fn hear(
        &mut self,
        line: u64,
        heard: Heard,
        now_ms: u64,
        lines: &mut dyn Lines,
    ) -> Vec<Told> {
        let Some(&child) = self.lines.get(&line) else { return Vec::new() };
        match heard {
            Heard::Closed(why) => {
                // A last word still counts for the nodes below: they are reached another way.
                let orphans = self.forget(&[child], lines);
                self.names.remove(&child);
                self.reach(&orphans, now_ms, lines);
                let mut told = vec![(child, FromAgent::Closed { why })];
                told.extend(orphans.into_iter().map(unheard));
                told
            }
            Heard::Text(text) => match from_line::<FromAgent>(&text) {
                Some(message) => self.said(child, message, now_ms, lines),
                None => Vec::new(),
            },
        }
    }

    fn said(
        &mut self,
        child: u32,
        message: FromAgent,
        now_ms: u64,
        lines: &mut dyn Lines,
    ) -> Vec<Told> {
        let all_beats = self.all_beats;
        let Some(link) = self.links.get_mut(&child) else { return Vec::new() };
        let mut told = Vec::new();
        link.heard_ms = now_ms;
        if link.quiet_ms.take().is_some() {
            told.push((child, FromAgent::Heard));
        }
        match message {
            FromAgent::Hello(facts) => {
                link.greeted_ms.get_or_insert(now_ms);
                let took_ms = now_ms.saturating_sub(link.opened_ms);
                self.quickest_ms = Some(self.quickest_ms.map_or(took_ms, |ms| ms.min(took_ms)));
                self.been_up.insert(child);
                self.tried.remove(&child);
                told.push((child, FromAgent::Hello(facts)));
                let waiting: Vec<u32> = std::mem::take(&mut self.unplaced).into_iter().collect();
                self.reach(&waiting, now_ms, lines);
            }
            FromAgent::Beat(beat) => told.extend(link.beats(beat, now_ms, all_beats, child)),
            FromAgent::Moved(moved) => {
                if let Some(mut beat) = link.said.take() {
                    beat.moves(&moved);
                    told.extend(link.beats(beat, now_ms, all_beats, child));
                }
            }
            FromAgent::Below { told: news } => {
                for (node, word) in news {
                    // Of a node that has been given to somebody else, others speak.
                    if self.route.get(&node) != Some(&child) {
                        continue;
                    }
                    match &word {
                        FromAgent::Hello(_) => {
                            self.been_up.insert(node);
                            self.tried.remove(&node);
                        }
                        FromAgent::Closed { .. } => {
                            self.forget(&[node], lines);
                            self.names.remove(&node);
                        }
                        _ => {}
                    }
                    told.push((node, word));
                }
            }
            // Of itself nobody says these.
            FromAgent::Closed { .. } | FromAgent::Quiet { .. } | FromAgent::Heard => {}
            own @ FromAgent::Ended { .. } => {
                // With what it has ended it has told a beat; the next one is whole.
                (link.said, link.told) = (None, None);
                told.push((child, own));
            }
            own @ FromAgent::Halting { .. } => told.push((child, own)),
        }
        told
    }

    /// Asks for beats when it is time to; to be called several times a second.
    pub fn ask(&mut self, now_ms: u64, lines: &mut dyn Lines) {
        if self.asked_ms.is_some_and(|at| now_ms.saturating_sub(at) < self.attend.beat_ms) {
            return;
        }
        self.asked_ms = Some(now_ms);
        self.seq += 1;
        let line_text = to_line(&ToAgent::Beat { seq: self.seq });
        for link in self.links.values_mut().filter(|l| l.greeted_ms.is_some()) {
            link.asked.push_back((self.seq, now_ms));
            if link.asked.len() > MOST_ASKED {
                // Not the oldest: since that one it has been silent.
                link.asked.remove(1);
            }
            lines.send(link.line, &line_text);
        }
    }

    /// Looks for silence, several times a second. Everything that had come up to this moment must have been heard.
    pub fn tick(&mut self, now_ms: u64, lines: &mut dyn Lines) -> Vec<Told> {
        let gap_ms = now_ms.saturating_sub(self.ticked_ms.replace(now_ms).unwrap_or(now_ms));
        if gap_ms > 1000 {
            // It was us who stood still: what children have said meanwhile is still to be read.
            for link in self.links.values_mut() {
                link.heard_ms += gap_ms;
                link.opened_ms += gap_ms;
            }
            return Vec::new();
        }
        let mut told = Vec::new();
        let mut orphans = Vec::new();
        let Attend { beat_ms, silence_ms, .. } = self.attend;
        for (node, link) in &mut self.links {
            let silent_ms = link.silent_ms(now_ms, beat_ms);
            let greeted = link.greeted_ms.is_some();
            // A call that is made again is told of at once: for one whose connection ended it is soon too long.
            let hurried = !greeted && link.again;
            let is_quiet = hurried || silent_ms >= MISSED * beat_ms;
            let again = link.quiet_ms.is_none_or(|at_ms| {
                let begins =
                    |limit_ms| (limit_ms..limit_ms + (now_ms - at_ms)).contains(&silent_ms);
                hurried || now_ms - at_ms >= beat_ms || begins(silence_ms)
            });
            if is_quiet && again {
                link.quiet_ms = Some(now_ms);
                told.push((*node, FromAgent::Quiet { age_ms: silent_ms }));
            }
            let late = self
                .quickest_ms
                .is_some_and(|ms| now_ms.saturating_sub(link.opened_ms) >= 1000 + 3 * ms);
            let bypass = if greeted { silent_ms >= silence_ms / 2 } else { late };
            if bypass && !link.bypassed {
                link.bypassed = true;
                let below: Vec<u32> = std::mem::take(&mut link.below).into_iter().collect();
                for node in &below {
                    self.route.remove(node);
                }
                if !below.is_empty() {
                    lines.send(link.line, &to_line(&ToAgent::Leave { nodes: below.clone() }));
                }
                orphans.extend(below);
            }
            // Back again: it may take nodes once more.
            link.bypassed &= bypass;
        }
        told.extend(orphans.iter().copied().map(unheard));
        orphans.extend(std::mem::take(&mut self.unplaced));
        self.reach(&orphans, now_ms, lines);
        told
    }

    /// What a node's line, if it is one of ours, has complained of.
    pub fn complaint(&self, node: u32, lines: &dyn Lines) -> String {
        self.links.get(&node).map_or(String::new(), |link| lines.complaint(link.line))
    }
}

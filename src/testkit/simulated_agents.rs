//! Agents in memory: simulates logins, messages and losses of any number of agents, with the real messages and the real `Relay`.
//!
//! No run needs this module. The tests of `forest` simulate a minute of a tree in a moment, on virtual time and with the same
//! result each time. The benchmark of supervision simulates thousands of agents in real time, under the real supervisor. The
//! caller is the root of the tree: it opens, writes and closes connections ([`SimulatedAgents`] implements [`Lines`]), sets the
//! time, and receives the answers. A node that is off neither receives nor sends.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::supervise::talk::branch::{Heard, Lines};
use crate::supervise::talk::relay::{Hands, Relay};
use crate::supervise::talk::wire::{Attend, Facts, FromAgent, to_line};

/// Interface of the simulated nodes.
pub trait Nodes {
    type Hands: Hands;
    /// Returns the facts of a node when an agent starts there.
    fn facts(&mut self, node: &str, now_ms: u64) -> Facts;
    fn hands(&mut self, node: &str) -> &mut Self::Hands;
    /// Returns the requests to end the run that have been carried out since the last call.
    fn ended(hands: &mut Self::Hands) -> Vec<u64>;
}

/// Durations of actions, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub login_ms: u64,
    /// Time after which a remote shell that reaches no node reports that.
    pub refused_ms: u64,
    /// Shortest and longest time from sending to receiving a message.
    pub travel_ms: (u64, u64),
    pub seed: u64,
}

/// Name that stands for the caller in [`SimulatedAgents::hold`], which otherwise takes the name of a node.
pub const OUTSIDE: &str = "";

/// Upper end of a connection: a number of the caller, or an agent and the number of its connection to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Above {
    Outside(u64),
    Agent(usize, u64),
}

/// A connection, and the agent at its lower end after the login.
#[derive(Default)]
struct Way {
    agent: Option<usize>,
    /// Texts written before the login was done.
    early: Vec<String>,
}

struct Agent {
    node: String,
    above: Above,
    relay: Relay,
    alive: bool,
    /// Time of the next tick of the agent.
    tick_ms: u64,
    /// Time at which the last message to the parent arrives. A later message arrives no earlier.
    last_up_ms: u64,
    /// Time at which the last message from the parent arrives.
    last_down_ms: u64,
}

enum Event {
    Login {
        above: Above,
        node: String,
    },
    Refused {
        above: Above,
    },
    Down {
        to: usize,
        text: String,
    },
    Up {
        from: usize,
        text: String,
    },
    /// The input has closed.
    Gone {
        to: usize,
    },
    /// The output has closed.
    Closed {
        from: usize,
    },
    Tick {
        who: usize,
    },
}

enum Ask {
    Open(u64, String),
    Send(u64, String),
    Close(u64),
}

#[derive(Default)]
struct Asked(Vec<Ask>);

impl Lines for Asked {
    fn open(&mut self, line: u64, node: &str, _: &[String], _: &Attend) {
        self.0.push(Ask::Open(line, node.to_string()));
    }
    fn send(&mut self, line: u64, text: &str) {
        self.0.push(Ask::Send(line, text.to_string()));
    }
    fn close(&mut self, line: u64) {
        self.0.push(Ask::Close(line));
    }
    fn complaint(&self, _: u64) -> String {
        String::new()
    }
}

pub struct SimulatedAgents<N> {
    pub nodes: N,
    manner: Manner,
    now_ms: u64,
    agents: HashMap<usize, Agent>,
    /// The agent on each node.
    living: HashMap<String, usize>,
    ways: BTreeMap<Above, Way>,
    next: usize,
    due: BTreeMap<(u64, u64), Event>,
    order: u64,
    off: HashSet<String>,
    /// Time until which messages to and from a node, or the caller, are delayed.
    held: HashMap<String, u64>,
    heard: Vec<(u64, Heard)>,
    dice: u64,
    most_lines: usize,
}

impl<N: Nodes> Lines for SimulatedAgents<N> {
    fn open(&mut self, line: u64, node: &str, _: &[String], _: &Attend) {
        self.call(line, node);
    }
    fn send(&mut self, line: u64, text: &str) {
        self.write(Above::Outside(line), text.to_string());
    }
    fn close(&mut self, line: u64) {
        self.hang_up(Above::Outside(line));
    }
    fn complaint(&self, _: u64) -> String {
        String::new()
    }
}

impl<N: Nodes> SimulatedAgents<N> {
    pub fn new(nodes: N, manner: Manner) -> Self {
        Self {
            nodes,
            manner,
            now_ms: 0,
            agents: HashMap::new(),
            living: HashMap::new(),
            ways: BTreeMap::new(),
            next: 0,
            due: BTreeMap::new(),
            order: 0,
            off: HashSet::new(),
            held: HashMap::new(),
            heard: Vec::new(),
            dice: manner.seed,
            most_lines: 0,
        }
    }

    /// Opens a line to a node, which starts an agent there.
    pub fn call(&mut self, line: u64, node: &str) {
        self.login(Above::Outside(line), node.to_string());
    }

    /// Returns the time of the next event.
    pub fn next_ms(&self) -> Option<u64> {
        self.due.keys().next().map(|(at_ms, _)| *at_ms)
    }

    /// Simulates all events that are due, and returns the messages that have arrived on the connections of the caller.
    pub fn play(&mut self, now_ms: u64) -> Vec<(u64, Heard)> {
        self.now_ms = now_ms;
        while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= now_ms) {
            let event = entry.remove();
            match (self.held_until(&event), event) {
                (None, event) => self.happen(event),
                // A remote shell does not wait for ever.
                (Some(until_ms), Event::Login { above, .. })
                    if until_ms > now_ms + self.manner.refused_ms =>
                {
                    self.after(self.manner.refused_ms, Event::Refused { above });
                }
                (Some(until_ms), event) => self.at(until_ms, event),
            }
        }
        std::mem::take(&mut self.heard)
    }

    /// Switches nodes off suddenly, or cuts them off.
    pub fn switch_off<'a>(&mut self, nodes: impl IntoIterator<Item = &'a str>) {
        self.off.extend(nodes.into_iter().map(String::from));
    }

    /// Makes nodes reachable again that were cut off. Their state has not changed.
    pub fn switch_on<'a>(&mut self, nodes: impl IntoIterator<Item = &'a str>) {
        for node in nodes {
            self.off.remove(node);
        }
    }

    /// Delays all messages to and from a node, or the caller, until `until_ms`, as if the network were cut.
    pub fn hold(&mut self, node: &str, until_ms: u64) {
        let held = self.held.entry(node.to_owned()).or_default();
        *held = until_ms.max(*held);
    }

    /// Returns the time until which an event is delayed; None if it is not delayed.
    fn held_until(&self, event: &Event) -> Option<u64> {
        let until = |name: &str| self.held.get(name).copied().unwrap_or(0);
        let end = |above: &Above| match above {
            Above::Outside(_) => until(OUTSIDE),
            Above::Agent(who, _) => self.agents.get(who).map_or(0, |agent| until(&agent.node)),
        };
        let until_ms = match event {
            Event::Login { above, node } => until(node).max(end(above)),
            Event::Down { to: who, .. }
            | Event::Up { from: who, .. }
            | Event::Gone { to: who }
            | Event::Closed { from: who } => {
                let agent = self.agents.get(who)?;
                until(&agent.node).max(end(&agent.above))
            }
            Event::Refused { .. } | Event::Tick { .. } => 0,
        };
        (until_ms > self.now_ms).then_some(until_ms)
    }

    /// Ends the agent on a node, and its connections.
    pub fn end_agent(&mut self, node: &str) {
        if let Some(who) = self.living.get(node).copied() {
            self.end(who);
        }
    }

    /// Returns the nodes that are not off and have an agent, each with the number of the agent's connections to children.
    pub fn agents(&self) -> impl Iterator<Item = (&str, usize)> {
        let here = |a: &&Agent| a.alive && !self.off.contains(&a.node);
        self.agents.values().filter(here).map(|a| (a.node.as_str(), a.relay.load()))
    }

    /// Returns the number of agents that have been started, and the largest number of connections of an agent.
    pub fn history(&self) -> (usize, usize) {
        (self.next, self.most_lines)
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now_ms + ms, event);
    }

    fn at(&mut self, at_ms: u64, event: Event) {
        self.order += 1;
        self.due.insert((at_ms, self.order), event);
    }

    fn travel_ms(&mut self) -> u64 {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (least, most) = self.manner.travel_ms;
        least + (self.dice >> 33) % (most - least + 1)
    }

    fn is_off(&self, who: usize) -> bool {
        self.agents.get(&who).is_none_or(|a| self.off.contains(&a.node))
    }

    fn login(&mut self, above: Above, node: String) {
        self.ways.insert(above, Way::default());
        self.after(self.manner.login_ms, Event::Login { above, node });
    }

    fn write(&mut self, above: Above, text: String) {
        match self.ways.get_mut(&above) {
            Some(Way { agent: Some(to), .. }) => {
                let to = *to;
                self.down(to, text);
            }
            Some(way) => way.early.push(text),
            None => {}
        }
    }

    fn hang_up(&mut self, above: Above) {
        if let Some(Way { agent: Some(to), .. }) = self.ways.remove(&above) {
            let ms = self.travel_ms();
            self.after(ms, Event::Gone { to });
        }
    }

    fn down(&mut self, to: usize, text: String) {
        let at_ms = self.now_ms + self.travel_ms();
        let Some(agent) = self.agents.get_mut(&to) else { return };
        agent.last_down_ms = agent.last_down_ms.max(at_ms);
        let at_ms = agent.last_down_ms;
        self.at(at_ms, Event::Down { to, text });
    }

    fn up(&mut self, from: usize, event: Event) {
        let at_ms = self.now_ms + self.travel_ms();
        let Some(agent) = self.agents.get_mut(&from) else { return };
        agent.last_up_ms = agent.last_up_ms.max(at_ms);
        let at_ms = agent.last_up_ms;
        self.at(at_ms, event);
    }

    fn end(&mut self, who: usize) {
        let Some(agent) = self.agents.get_mut(&who).filter(|a| a.alive) else { return };
        agent.alive = false;
        let node = agent.node.clone();
        if self.living.get(&node) == Some(&who) {
            self.living.remove(&node);
        }
        let lines = Above::Agent(who, 0)..=Above::Agent(who, u64::MAX);
        let lines: Vec<Above> = self.ways.range(lines).map(|(above, _)| *above).collect();
        let is_off = self.off.contains(&node);
        for line in lines {
            match is_off {
                true => drop(self.ways.remove(&line)),
                false => self.hang_up(line),
            }
        }
        if !is_off {
            self.up(who, Event::Closed { from: who });
        }
    }

    /// Returns whether the upper end of a connection still exists and is not off.
    fn waits(&self, above: Above) -> bool {
        let is_off = matches!(above, Above::Agent(who, _) if self.is_off(who));
        !is_off && self.ways.contains_key(&above)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Login { above, node } => {
                if !self.waits(above) {
                    return;
                }
                if self.off.contains(&node) {
                    return self.after(self.manner.refused_ms, Event::Refused { above });
                }
                self.begin(above, node);
            }
            Event::Refused { above } => {
                if self.waits(above) {
                    self.hears(above, Heard::Closed("Connection timed out".to_string()));
                }
            }
            Event::Down { to, text } => {
                if self.is_off(to) {
                    return;
                }
                let now_ms = self.now_ms;
                self.with(to, |relay, hands, asked| {
                    relay.from_above(&text, now_ms, hands, asked);
                    for id in N::ended(hands) {
                        relay.ended(id, 1, hands);
                    }
                    true
                });
            }
            Event::Up { from, text } => self.says(from, Heard::Text(text)),
            Event::Closed { from } => {
                self.says(from, Heard::Closed(String::new()));
                // No message follows a closed connection.
                self.agents.remove(&from);
            }
            Event::Gone { to } => {
                if !self.is_off(to) {
                    self.end(to);
                }
            }
            Event::Tick { who } => {
                let now_ms = self.now_ms;
                let due = self.agents.get_mut(&who).is_some_and(|a| {
                    let due = a.tick_ms <= now_ms;
                    a.tick_ms = if due { u64::MAX } else { a.tick_ms };
                    due
                });
                if due && !self.is_off(who) {
                    self.with(who, |relay, hands, asked| relay.tick(now_ms, hands, asked));
                }
            }
        }
    }

    fn begin(&mut self, above: Above, node: String) {
        // A new agent ends the old agent of its node.
        self.end_agent(&node);
        let who = self.next;
        self.next += 1;
        let facts = self.nodes.facts(&node, self.now_ms);
        let agent = Agent {
            node: node.clone(),
            above,
            relay: Relay::new(self.now_ms),
            alive: true,
            tick_ms: u64::MAX,
            last_up_ms: 0,
            last_down_ms: 0,
        };
        self.agents.insert(who, agent);
        self.living.insert(node, who);
        let early = self.ways.get_mut(&above).map(|way| {
            way.agent = Some(who);
            std::mem::take(&mut way.early)
        });
        let text = to_line(&FromAgent::Hello(Box::new(facts)));
        self.up(who, Event::Up { from: who, text });
        early.unwrap_or_default().into_iter().for_each(|text| self.down(who, text));
    }

    /// Delivers an agent's message to its parent, unless one of the two is off or their connection is closed.
    fn says(&mut self, from: usize, heard: Heard) {
        let Some(agent) = self.agents.get(&from) else { return };
        let above = agent.above;
        let mine = self.ways.get(&above).is_some_and(|way| way.agent == Some(from));
        if mine && !self.is_off(from) && self.waits(above) {
            self.hears(above, heard);
        }
    }

    fn hears(&mut self, above: Above, heard: Heard) {
        if matches!(heard, Heard::Closed(_)) {
            self.ways.remove(&above);
        }
        // A text is one line.
        let heard = match heard {
            Heard::Text(text) => Heard::Text(text.trim_end().to_string()),
            closed => closed,
        };
        match above {
            Above::Outside(line) => self.heard.push((line, heard)),
            Above::Agent(who, line) => {
                let now_ms = self.now_ms;
                self.with(who, |relay, _, asked| {
                    relay.from_below(line, heard, now_ms, asked);
                    true
                });
            }
        }
    }

    /// Lets agent `who` do `what`, and carries out its requests. If `what` returns false, the agent ends.
    fn with(
        &mut self,
        who: usize,
        what: impl FnOnce(&mut Relay, &mut N::Hands, &mut Asked) -> bool,
    ) {
        let Some(agent) = self.agents.get_mut(&who).filter(|a| a.alive) else { return };
        let mut asked = Asked::default();
        let goes_on = what(&mut agent.relay, self.nodes.hands(&agent.node), &mut asked);
        let up = std::mem::take(&mut agent.relay.up);
        // The next tick sends urgent messages of children to the parent.
        let tick_ms = self.now_ms + agent.relay.timeout_ms();
        self.most_lines = self.most_lines.max(agent.relay.load());
        if tick_ms < agent.tick_ms {
            agent.tick_ms = tick_ms;
            self.at(tick_ms, Event::Tick { who });
        }
        for ask in asked.0 {
            match ask {
                Ask::Open(line, node) => self.login(Above::Agent(who, line), node),
                Ask::Send(line, text) => self.write(Above::Agent(who, line), text),
                Ask::Close(line) => self.hang_up(Above::Agent(who, line)),
            }
        }
        for text in up {
            self.up(who, Event::Up { from: who, text });
        }
        if !goes_on {
            self.end(who);
        }
    }
}

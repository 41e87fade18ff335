//! Scenario of a seed: a problem, its protection, and the faults of each launch.

use super::arena::{Effect, Fault, MILLISECOND, Manner, Place, SECOND};
use crate::base::faults::Point;
use crate::shm::Part;
use crate::testkit::simulation::dice::Dice;

/// Number of seeds that share a problem. The run without faults is run once for all of these seeds.
pub const FAMILY: u64 = 64;

/// Kind of protection of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every loss ends the launch, and the next launch resumes.
    Restart,
    /// Spare ranks take the positions of lost ranks, without a new launch (`--nonstop`).
    InPlace,
    /// A checksum column replaces a process column that loses a rank.
    Abft,
}

/// Damage to a position's memory between two launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The memory is lost, as with its node.
    Lost,
    /// All bits of one byte are inverted. The value has the part of the memory, and the offset of the byte.
    Flipped(Part, usize),
    /// The memory has the content that it had at the end of the previous launch.
    Old,
}

/// Damage to the memory of all positions between two launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    pub damaged: Vec<(usize, Damage)>,
    /// True if all memory is lost.
    pub all: bool,
}

/// A launch of a run, with its faults.
#[derive(Clone, Debug)]
pub struct Act {
    pub faults: Vec<Fault>,
    /// Damage to memory after the launch. It is applied if faults have ended the launch.
    pub outage: Outage,
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub kind: Kind,
    pub grid: (usize, usize),
    /// Number of ranks outside the grid.
    pub extra: usize,
    pub solver: Vec<String>,
    pub protection: Vec<String>,
    pub domains: usize,
    pub manner: Manner,
    pub acts: Vec<Act>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the problem of the seed's family: its arguments, and its grid.
fn problem(seed: u64) -> (Vec<String>, (usize, usize)) {
    let mut dice = Dice::new(seed / FAMILY);
    let (p, q) = dice.one_of(&[(2, 2), (2, 2), (2, 3), (3, 2), (1, 4), (4, 1), (2, 4), (1, 3)]);
    let nb = dice.one_of(&[2, 3, 4, 8]);
    let n = nb * (4 + dice.below(10)) + dice.below(nb);
    let bcast = dice.one_of(&["1ring", "1ringM", "2ring", "2ringM", "blong", "blongM"]);
    let fact = dice.one_of(&["left", "crout", "right"]);
    let swap = dice.one_of(&["binary-exchange", "long", "mix"]);
    let form = dice.one_of(&["transposed", "not-transposed"]);
    let halves = dice.one_of(&["auto", "always", "never"]);
    let depth = dice.below(3);
    let text = format!(
        "-n {n} --nb {nb} -p {p} -q {q} --depth {depth} --bcast {bcast} --pfact {fact} --rfact {fact} --swap {swap} --u {form} \
         --split-update {halves} --engine portable"
    );
    (words(&text), (p as usize, q as usize))
}

impl Scenario {
    pub fn of(seed: u64) -> Self {
        let (mut solver, (p, q)) = problem(seed);
        let mut dice = Dice::new(seed ^ 0xa5a5_0000_0000_0000);
        // Checksum columns work with a lookahead of 0 or 1.
        let deep = solver.windows(2).any(|words| words == ["--depth", "2"]);
        let kinds = [Kind::Restart, Kind::Restart, Kind::InPlace, Kind::Abft];
        let kind = dice.one_of(if deep { &kinds[..3] } else { &kinds });
        let positions = p * q;
        let losses = if positions > 4 && dice.one_in(3) { 2 } else { 1 };
        let stored = kind != Kind::Abft && dice.one_in(3);
        let method = if kind == Kind::InPlace { &["self", "double"][..] } else { METHODS };
        let spares = 1 + dice.below(2) as usize;
        let (extra, mut text) = match kind {
            Kind::Restart => (dice.below(2) as usize * dice.below(2) as usize, String::new()),
            Kind::InPlace => (spares, format!("--nonstop --spare-ranks {spares}")),
            Kind::Abft => (p, "--method abft".to_owned()),
        };
        if kind != Kind::Abft {
            text += &protection(&mut dice, method, losses, positions);
        }
        if stored && !text.contains("--level2") {
            let every = 1 + dice.below(2);
            let helpers = dice.one_of(&["threads", "off"]);
            let dir = dice
                .one_of(&["stored --level2-scope shared", "stored/{domain} --level2-scope node"]);
            text += &format!(" --level2 {dir} --level2-every {every} --helpers {helpers}");
        }
        // Parity on node-local storage needs an exact code.
        let protects = kind != Kind::Abft && !["disk", "node"].iter().any(|it| text.contains(it));
        if seed % 5 == 4 && losses == 1 && protects && !text.contains("--parity-code") {
            text += " --parity-code sum";
        }
        if seed % 11 == 5 && kind == Kind::Restart {
            text = text.replace("--method self", "--method single");
        }
        if seed % 13 == 3 && text.contains("--method double") {
            text += " --device host";
            solver
                .iter_mut()
                .filter(|word| *word == "portable")
                .for_each(|word| *word = "blas".into());
        }
        let victims: Vec<usize> =
            (0..losses).map(|_| dice.below(positions as u64) as usize).collect();
        let count = 1 + dice.below(4);
        let ranks = positions + extra;
        let mut acts: Vec<Act> =
            (0..count).map(|n| act(&mut dice, kind, n > 0, ranks, &victims, stored)).collect();
        if seed % 7 == 3 && text.contains("--level2") {
            let act = dice.below(count) as usize;
            acts[act].faults.push(storage_fault(&mut dice, ranks));
        }
        let manner = Manner {
            survives: kind != Kind::Restart,
            eager_bytes: dice.one_of(&[0, 64, 512, 1 << 30]),
            turn_every: dice.one_of(&[2, 8, 32]),
            notice_within: dice.one_of(&[MILLISECOND, 50 * MILLISECOND, SECOND]),
        };
        let domains = if kind == Kind::Abft { 0 } else { ranks };
        let protection = words(&text);
        let grid = (p, q);
        Self { seed, kind, grid, extra, solver, protection, domains, manner, acts }
    }

    pub fn ranks(&self) -> usize {
        self.positions() + self.extra
    }

    pub fn positions(&self) -> usize {
        self.grid.0 * self.grid.1
    }

    /// Returns whether the next launch resumes from memory.
    pub fn keeps_memory(&self) -> bool {
        self.kind == Kind::Restart && !self.protection.iter().any(|word| word == "disk")
    }

    /// Returns whether a recovered run may differ from a run without faults in the rounding of its solution.
    pub fn rounds(&self) -> bool {
        self.kind == Kind::Abft || self.protection.iter().any(|word| word == "sum")
    }

    /// Returns whether memory has a single checkpoint, which a save overwrites.
    pub fn is_single(&self) -> bool {
        self.protection.iter().any(|word| word == "single")
    }

    /// Returns the faults of all launches, in order.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.acts.iter().flat_map(|act| &act.faults)
    }

    /// Returns a copy of the scenario with only the faults whose numbers are in `kept`.
    pub fn with_faults(&self, kept: &[usize]) -> Self {
        let mut made = self.clone();
        let mut number = 0;
        for act in &mut made.acts {
            act.faults.retain(|_| {
                number += 1;
                kept.contains(&(number - 1))
            });
        }
        made
    }
}

const METHODS: &[&str] = &["self", "self", "double", "disk"];

fn protection(dice: &mut Dice, methods: &[&str], losses: usize, positions: usize) -> String {
    let every = dice.one_of(&["1", "1", "2", "5"]);
    let method = dice.one_of(methods);
    let mut text = format!(" --checkpoint {every} --method {method}");
    if method == "disk" {
        return text.replace("--method disk", "--method disk --level2 stored");
    }
    if dice.one_in(4) {
        text += " --scope side";
    }
    match losses {
        2 => text += " --losses 2 --parity-code reed-solomon",
        _ if dice.one_in(3) => text += " --parity-code reed-solomon",
        _ if dice.one_in(3) => text += " --encode reduce",
        _ => {}
    }
    if losses == 1 && positions >= 4 && dice.one_in(3) {
        text += " --group 2";
    }
    text
}

/// Draws a crash point. Usually it is a point that a launch of this kind reaches.
fn point(dice: &mut Dice, kind: Kind, again: bool) -> Point {
    let (first, last) = match (kind, dice.below(4)) {
        (_, 0) => (Point::ALL[0], Point::Told),
        (Kind::Abft, _) => (Point::Iteration, Point::RecomputeHalf),
        (_, 1) if again || kind == Kind::InPlace => (Point::AgreeBegin, Point::Resumed),
        (_, 2) => (Point::StreamBegin, Point::Pruned),
        (_, _) => (Point::SaveBegin, Point::Committed),
    };
    dice.one_of(Point::between(first, last))
}

/// Draws a fault of a rank's storage. It affects one operation, some operations, or all operations from a random one on.
fn storage_fault(dice: &mut Dice, ranks: usize) -> Fault {
    let effect = dice.one_of(&[Effect::Full, Effect::Breaks]);
    let rank = dice.below(ranks as u64) as u32;
    let (first, count) = (1 + dice.below(40), dice.one_of(&[1, 1, 5, 1 << 40]));
    let place = Place::Storage { rank, first, count };
    Fault { place, effect, seen: 0, injected: false, phase: None }
}

/// Draws a launch. `again` is true for all launches except the first.
fn act(
    dice: &mut Dice,
    kind: Kind,
    again: bool,
    ranks: usize,
    victims: &[usize],
    stored: bool,
) -> Act {
    let mut faults = Vec::new();
    for _ in 0..1 + dice.below(2) {
        let effect = match kind {
            Kind::Restart => Effect::Kill,
            _ => dice.one_of(&[Effect::Kill, Effect::Kill, Effect::Stop]),
        };
        let place = if dice.one_in(2) {
            // Most ranks make some thousand calls, some hundred of them before the run begins.
            let most = dice.one_of(&[100, 1000, 4000, 4000, 4000]);
            Place::Call { rank: dice.below(ranks as u64) as u32, number: 1 + dice.below(most) }
        } else {
            let point = point(dice, kind, again);
            let position = dice.below(ranks as u64) as u32;
            Place::Point { point, position, hit: 1 + dice.below(4) * dice.below(4) }
        };
        faults.push(Fault { place, effect, seen: 0, injected: false, phase: None });
    }
    let all = stored && dice.one_in(4);
    let mut damaged = Vec::new();
    for &victim in victims {
        match dice.below(6) {
            0 => damaged.push((victim, Damage::Lost)),
            1 => damaged.push((victim, Damage::Old)),
            2 => {
                let part = dice.one_of(&Part::ALL);
                damaged.push((victim, Damage::Flipped(part, dice.below(256) as usize)));
            }
            _ => {}
        }
    }
    Act { faults, outage: Outage { damaged, all }, seed: dice.below(u64::MAX) }
}

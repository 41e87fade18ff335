//! Findings of a burn-in, as JSON document and as text. docs/BURNIN.md describes every key. The module is pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::samples::{Here, Passage, Sweep};
use super::verdict::{ALARMS, Count, Judged, Place, Slow, Tolerance, What, Wrong, sweeps_least};
use super::words;
use crate::base::statistics::median;

/// Largest number of nodes for which the text contains the table of nodes. The JSON document always contains all nodes.
const ROWS_MOST: usize = 64;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Document {
    pub schema_version: u32,
    pub program: Program,
    pub started_unix_s: u64,
    pub seconds: f64,
    pub tolerance: Tolerance,
    /// Upper bound of the probability of a false alarm in a burn-in.
    pub false_alarms: f64,
    /// Number of sweeps of each pass.
    pub sweeps: Vec<usize>,
    /// Smallest number of sweeps with which a slow node or link can be named.
    pub sweeps_least: usize,
    pub nodes: Vec<NodeFigures>,
    pub links: Vec<LinkFigures>,
    /// True if devices were compared, and no links.
    pub of_devices: bool,
    pub hpl: Vec<HplRun>,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Program {
    pub name: &'static str,
    pub version: &'static str,
}

/// A figure of a node or link: its median, and the comparison with its peers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median over the last pass. Rates are per second; latency is in seconds.
    pub median: f64,
    #[serde(flatten)]
    pub count: Count,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeFigures {
    pub node: String,
    #[serde(flatten)]
    pub here: Here,
    pub multiply: Option<Figure>,
    pub memory: Option<Figure>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LinkFigures {
    pub from: String,
    pub to: String,
    pub bandwidth: Option<Figure>,
    pub latency: Option<Figure>,
}

/// A run of HPL under supervision.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HplRun {
    pub n: u64,
    pub seconds: f64,
    pub gflops: f64,
    /// Exit status of `skt-hpl run`; null if a signal ended it.
    pub status: Option<i32>,
    /// Nodes that the supervisor found slow, each with the details.
    pub slow: Vec<(String, String)>,
    /// Faults that the supervisor found: the node, if known, and the details.
    pub faults: Vec<(Option<String>, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Slow,
    Wrong,
    HplSlow,
    HplFault,
    HplFailed,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub kind: Kind,
    /// Nodes that the finding names: one, two for a link, none if the node is unknown.
    pub nodes: Vec<String>,
    /// Kind of the slow measurement; none if the finding is not about speed.
    pub what: Option<What>,
    pub sentence: String,
    pub advice: String,
}

impl Finding {
    /// Returns a finding that is not about speed.
    fn new(kind: Kind, nodes: Vec<String>, sentence: String, advice: &str) -> Self {
        Self { kind, nodes, what: None, sentence, advice: advice.to_owned() }
    }
}

/// Returns the figures of all nodes, compared with their peers.
pub fn nodes(
    names: &[String],
    here: &[Here],
    sweeps: &[Sweep],
    judged: &Judged,
) -> Vec<NodeFigures> {
    let figure = |what: What, node: usize, rates: fn(&Sweep) -> &Vec<f64>| {
        let seen: Vec<f64> = sweeps.iter().filter_map(|s| rates(s).get(node)).copied().collect();
        let count = *judged.counts.get(&(what, node, node))?;
        Some(Figure { median: median(&seen), count })
    };
    (0..names.len())
        .map(|node| NodeFigures {
            node: names[node].clone(),
            here: here.get(node).cloned().unwrap_or_default(),
            multiply: figure(What::Multiply, node, |s| &s.multiply),
            memory: figure(What::Memory, node, |s| &s.memory),
        })
        .collect()
}

/// Returns the figures of both directions of all links, compared with their peers.
pub fn links(names: &[String], sweeps: &[Sweep], judged: &Judged) -> Vec<LinkFigures> {
    // One loop goes through all passages, since a thousand nodes have a million directions and millions of measurements.
    let mut ways: BTreeMap<(usize, usize), Vec<&Passage>> = BTreeMap::new();
    for passage in sweeps.iter().flat_map(|s| &s.passages) {
        ways.entry((passage.from, passage.to)).or_default().push(passage);
    }
    ways.into_iter()
        .map(|((from, to), seen)| {
            let figure = |what: What, value: fn(&Passage) -> f64| {
                let count = *judged.counts.get(&(what, from, to))?;
                let values: Vec<f64> = seen.iter().map(|passage| value(passage)).collect();
                Some(Figure { median: median(&values), count })
            };
            LinkFigures {
                from: names[from].clone(),
                to: names[to].clone(),
                bandwidth: figure(What::Bandwidth, |p| p.bytes_per_s),
                latency: figure(What::Latency, |p| p.latency_s),
            }
        })
        .collect()
}

/// Returns the findings of the comparison of nodes: wrong products, slow nodes and slow links.
pub fn findings(
    names: &[String],
    slow: &[Slow],
    wrong: &[Wrong],
    torn: &[Vec<usize>],
) -> Vec<Finding> {
    let named = |nodes: &[usize]| nodes.iter().map(|node| names[*node].clone()).collect();
    let of_torn = torn.iter().map(|nodes| {
        let advice = if nodes.len() > 1 { words::TORN_ADVICE } else { words::WRONG_ADVICE };
        Finding::new(Kind::Wrong, named(nodes), words::torn(nodes, names), advice)
    });
    let of_wrong = wrong.iter().map(|wrong| {
        let sentence = words::wrong(wrong, names);
        Finding::new(Kind::Wrong, named(&[wrong.node]), sentence, words::WRONG_ADVICE)
    });
    let of_slow = slow.iter().map(|slow| Finding {
        kind: Kind::Slow,
        nodes: match slow.place {
            Place::Node(node) | Place::Port(node) => named(&[node]),
            Place::Link(from, to) => named(&[from, to]),
        },
        what: Some(slow.what),
        sentence: words::sentence(slow, names),
        advice: words::advice(slow, names),
    });
    of_wrong.chain(of_torn).chain(of_slow).collect()
}

/// Returns a summary line of all HPL runs. The size and the rate in this line cover only runs with a result.
fn hpl_line(runs: &[HplRun]) -> String {
    let rates: Vec<f64> = runs.iter().map(|run| run.gflops).filter(|rate| *rate > 0.0).collect();
    let passed = runs.iter().filter(|run| run.status == Some(0)).count();
    let of_n = runs.iter().find(|run| run.n > 0).map(|run| format!(" of N = {}", run.n));
    let rate = if rates.is_empty() {
        "no rate".to_owned()
    } else {
        format!("{:.1} Gflop/s", median(&rates))
    };
    let of_n = of_n.unwrap_or_default();
    format!("HPL: {} run(s){of_n}, {passed} passed, {rate}", runs.len())
}

/// Returns the findings of the HPL runs. `compared` has the findings of the comparison of nodes ([`findings`]).
pub fn hpl_findings(runs: &[HplRun], compared: &[Finding]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, run) in runs.iter().enumerate().map(|(at, run)| (at + 1, run)) {
        for (node, detail) in &run.slow {
            let sentence = format!("{node} slowed HPL run {number} down: {detail}");
            let advice = "look on this node for a lower clock and for other processes";
            found.push(Finding::new(Kind::HplSlow, vec![node.clone()], sentence, advice));
        }
        for (node, detail) in &run.faults {
            let place = node.as_ref().map_or_else(String::new, |node| format!("{node}: "));
            let sentence = format!("HPL run {number} had a fault: {place}{detail}");
            let advice = "look in the logs of this node at the time of the fault";
            let nodes = node.iter().cloned().collect();
            found.push(Finding::new(Kind::HplFault, nodes, sentence, advice));
        }
        if run.status == Some(3) {
            found.push(wrong_solution(number, compared));
        } else if run.status != Some(0) && run.faults.is_empty() {
            let status =
                run.status.map_or("a signal".to_owned(), |status| format!("status {status}"));
            let sentence = format!("HPL run {number} ended with {status} and without a result");
            let advice = "read its output in the folder of the burn-in";
            found.push(Finding::new(Kind::HplFault, Vec::new(), sentence, advice));
        }
    }
    found
}

/// Returns the finding of an HPL run with a wrong solution. The finding names the nodes whose own products were wrong.
fn wrong_solution(number: usize, compared: &[Finding]) -> Finding {
    let of_products = || compared.iter().filter(|finding| finding.kind == Kind::Wrong);
    // A finding with one node means that this node computes wrong. A finding with several means that at least one of them does.
    let sure = of_products().filter(|finding| finding.nodes.len() == 1);
    let wrong: Vec<String> = sure.flat_map(|finding| finding.nodes.clone()).collect();
    let torn = of_products().find(|finding| finding.nodes.len() > 1);
    let (who, advice) = match (&wrong[..], torn) {
        ([], Some(torn)) => (
            format!(
                "at least one of {} had bad data: their matrix products in the burn-in differ, too",
                torn.nodes.join(" and ")
            ),
            words::TORN_ADVICE,
        ),
        ([], None) => (
            "it is not known which node had bad data: matrix products of the burn-in were right on every node"
                .to_owned(),
            "repeat the burn-in on each half of the nodes, and divide a half that fails again, until the failing node is found",
        ),
        (nodes, _) => (
            format!("{} had bad data: matrix products of the burn-in were wrong there, too", nodes.join(" and ")),
            words::WRONG_ADVICE,
        ),
    };
    let sentence = format!("HPL run {number} computed a wrong solution (residual FAILED); {who}");
    Finding::new(Kind::HplFailed, wrong, sentence, advice)
}

impl Document {
    pub fn new(tolerance: Tolerance, nodes: usize, started_unix_s: u64) -> Self {
        Self {
            schema_version: 1,
            program: Program { name: "skt-hpl", version: env!("CARGO_PKG_VERSION") },
            started_unix_s,
            tolerance,
            false_alarms: ALARMS,
            sweeps_least: sweeps_least(nodes),
            ..Self::default()
        }
    }

    /// Returns the smallest number of measurements that any link has in one direction. Returns 0 if a link has no figure.
    fn links_measured(&self) -> usize {
        let nodes = self.nodes.len();
        if self.links.len() < nodes * nodes.saturating_sub(1) {
            return 0;
        }
        let figures = self.links.iter().flat_map(|link| [&link.bandwidth, &link.latency]);
        figures.flatten().map(|figure| figure.count.of).min().unwrap_or(usize::MAX)
    }

    /// Returns the findings as text: the figures, then the conclusions.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.nodes.len() <= ROWS_MOST {
            self.write_nodes(&mut text);
        }
        if !self.hpl.is_empty() {
            let _ = writeln!(text, "\n{}", hpl_line(&self.hpl));
        }
        let _ = writeln!(text);
        for finding in &self.findings {
            let _ = writeln!(
                text,
                "FOUND: {}.\n       What to do: {}.",
                finding.sentence, finding.advice
            );
        }
        self.write_conclusion(&mut text);
        text
    }

    /// Writes the table of the nodes.
    fn write_nodes(&self, text: &mut String) {
        let share = |figure: &Option<Figure>, unit: f64| match figure {
            Some(f) => format!("{:>10.1} {:>6.1} %", f.median / unit, f.count.share * 100.0),
            None => format!("{:>10} {:>8}", "-", "-"),
        };
        let _ = writeln!(
            text,
            "\n{:<16} {:>19} {:>19}   {:<24}",
            "node", "Gflop/s   of peers", "copy GB/s of peers", "slowest link"
        );
        for node in &self.nodes {
            let link = self.slowest_link(&node.node);
            let (multiply, memory) = (share(&node.multiply, 1e9), share(&node.memory, 1e9));
            let _ = writeln!(text, "{:<16} {multiply} {memory}   {link}", node.node);
        }
    }

    /// Describes the slowest link of a node; empty if none of its links has a figure.
    fn slowest_link(&self, node: &str) -> String {
        let of_node = self.links.iter().filter(|l| l.from == node || l.to == node);
        let slowest = of_node
            .filter_map(|l| Some((l, l.bandwidth.as_ref()?)))
            .min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median));
        let Some((link, figure)) = slowest else { return String::new() };
        let (way, peer) = if link.from == node { ("to", &link.to) } else { ("from", &link.from) };
        let latency = link.latency.as_ref().map_or(f64::NAN, |l| l.median * 1e6);
        format!("{:.2} GB/s, {latency:.1} us {way} {peer}", figure.median / 1e9)
    }

    /// Writes whether the measurements suffice to name a slow node or link, and whether nothing was found.
    fn write_conclusion(&self, text: &mut String) {
        let measured = self.sweeps.first().copied().unwrap_or(0);
        let of_links = if self.of_devices { usize::MAX } else { self.links_measured() };
        let least = self.sweeps_least;
        if measured < least {
            let _ = writeln!(
                text,
                "only {measured} sweeps were measured; at least {least} are needed to name a slow node or link: give more --time"
            );
        } else if of_links < least {
            let nodes = if self.findings.is_empty() {
                "no node is slower than its peers beyond the tolerance, but "
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "{nodes}not every link could be judged: some links were measured {of_links} times in a pass, and at least \
                 {least} measurements are needed to name a slow link: give more --time"
            );
        } else if self.findings.is_empty() {
            let what = if self.of_devices { "no device is" } else { "no node and no link is" };
            let _ = writeln!(
                text,
                "nothing was found: {what} slower than its peers beyond the tolerance"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burnin::verdict::judge;
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    fn hpl(status: Option<i32>) -> HplRun {
        HplRun { n: 1000, seconds: 1.0, gflops: 50.0, status, ..HplRun::default() }
    }

    #[test]
    fn runs_without_a_result_have_no_rate() {
        let none = HplRun { status: Some(6), ..HplRun::default() };
        assert_eq!(hpl_line(std::slice::from_ref(&none)), "HPL: 1 run(s), 0 passed, no rate");
        let both = "HPL: 2 run(s) of N = 1000, 0 passed, 50.0 Gflop/s";
        assert_eq!(hpl_line(&[none, hpl(Some(3))]), both);
    }

    #[test]
    fn findings_of_hpl_are_reported_with_the_node_if_it_is_known() {
        let mut slow = hpl(Some(0));
        slow.slow.push(("n3".into(), "twice the others' time".into()));
        let mut failed = hpl(Some(0));
        failed.faults.push((Some("n2".into()), "node unresponsive".into()));
        let runs = [hpl(Some(0)), slow, failed, hpl(Some(3)), hpl(Some(6)), hpl(None)];
        let found = hpl_findings(&runs, &[]);
        let told: Vec<(Kind, &str)> = found.iter().map(|f| (f.kind, f.sentence.as_str())).collect();
        assert_eq!(
            told,
            [
                (Kind::HplSlow, "n3 slowed HPL run 2 down: twice the others' time"),
                (Kind::HplFault, "HPL run 3 had a fault: n2: node unresponsive"),
                (
                    Kind::HplFailed,
                    "HPL run 4 computed a wrong solution (residual FAILED); it is not known which node had bad data: matrix \
                     products of the burn-in were right on every node"
                ),
                (Kind::HplFault, "HPL run 5 ended with status 6 and without a result"),
                (Kind::HplFault, "HPL run 6 ended with a signal and without a result"),
            ]
        );
        let names = ["n6", "n7", "n8"].map(String::from);
        let wrong = Wrong { node: 1, times: 1, of: 9 };
        let known = hpl_findings(&[hpl(Some(3))], &findings(&names, &[], &[wrong], &[]));
        assert_eq!(known[0].nodes, ["n7"]);
        assert!(known[0].sentence.contains("n7 had bad data"), "{known:?}");
        let torn = findings(&names, &[], &[], &[vec![0, 2]]);
        assert_eq!(
            (torn[0].kind, &torn[0].nodes[..]),
            (Kind::Wrong, &["n6", "n8"].map(String::from)[..])
        );
        let known = hpl_findings(&[hpl(Some(3))], &torn);
        assert!(known[0].sentence.contains("one of n6 and n8 had bad data"), "{known:?}");
    }

    /// docs/BURNIN.md describes every key of the document.
    #[test]
    fn the_page_describes_every_key() {
        fn keys(value: &serde_json::Value, at: &str, found: &mut BTreeSet<String>) {
            match value {
                serde_json::Value::Object(fields) => {
                    for (key, value) in fields {
                        let dot = if at.is_empty() { "" } else { "." };
                        keys(value, &format!("{at}{dot}{key}"), found);
                    }
                }
                serde_json::Value::Array(items) => {
                    items.iter().for_each(|item| keys(item, &format!("{at}[]"), found));
                }
                _ => {
                    found.insert(at.to_owned());
                }
            }
        }
        let names = ["n1", "n2"].map(String::from);
        let passages = [(0, 1), (1, 0)].map(|(from, to)| Passage {
            from,
            to,
            latency_s: 1e-6,
            bytes_per_s: if from == 0 { 1e9 } else { 1e8 },
        });
        let sweep = Sweep {
            multiply: vec![1e9, 5e8],
            memory: vec![1e9, 1e9],
            products: vec![1, 1],
            passages: passages.to_vec(),
        };
        let sweeps = vec![sweep; 40];
        let judged = judge(2, &sweeps, &["a", "a"].map(String::from), &Tolerance::default());
        let mut document = Document::new(Tolerance::default(), 2, 0);
        document.sweeps = vec![40];
        document.nodes = nodes(&names, &[Here::default(), Here::default()], &sweeps, &judged);
        document.links = links(&names, &sweeps, &judged);
        document.hpl = vec![hpl(Some(0))];
        document.findings = findings(&names, &judged.slow, &judged.wrong, &judged.torn);
        assert_eq!(document.findings.len(), 2, "{:?}", document.findings);
        let mut found = BTreeSet::new();
        keys(&serde_json::to_value(&document).unwrap(), "", &mut found);
        let page = include_str!("../../docs/BURNIN.md");
        // All figures have the same keys, which are described once.
        let figure = ["multiply", "memory", "bandwidth", "latency"];
        for key in found {
            let (above, last) = key.rsplit_once('.').unwrap_or(("", &key));
            let of_figure = figure.iter().any(|f| above.ends_with(&format!("[].{f}")));
            let told = if of_figure { last } else { key.as_str() };
            assert!(page.contains(&format!("`{told}`")), "{key} is not described");
        }
        let text = document.text();
        assert!(text.contains("FOUND: n2 multiplies at 50.0 %"), "{text}");
        assert!(text.contains("FOUND: the link from n2 to n1 has 10.0 %"), "{text}");
    }

    fn names(nodes: usize) -> Vec<String> {
        (1..=nodes).map(|node| format!("n{node}")).collect()
    }

    /// Returns the document of equal nodes. Each link was measured `times` times. The direction from the first to the second node
    /// was measured `first` times.
    fn measured(nodes: usize, times: usize, first: usize) -> Document {
        let sweeps: Vec<Sweep> = (0..times)
            .map(|number| {
                let ways = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
                let met = ways.filter(|(from, to)| from != to);
                let met = met.filter(|way| *way != (0, 1) || number < first);
                let passage = |(from, to)| Passage { from, to, latency_s: 1e-6, bytes_per_s: 1e9 };
                Sweep {
                    multiply: vec![1e9; nodes],
                    memory: vec![1e9; nodes],
                    products: vec![1; nodes],
                    passages: met.map(passage).collect(),
                }
            })
            .collect();
        let engines = vec!["a".to_owned(); nodes];
        let judged = judge(nodes, &sweeps, &engines, &Tolerance::default());
        let here = vec![Here::default(); nodes];
        let mut document = Document::new(Tolerance::default(), nodes, 0);
        document.sweeps = vec![3 * times];
        document.nodes = super::nodes(&names(nodes), &here, &sweeps, &judged);
        document.links = links(&names(nodes), &sweeps, &judged);
        document
    }

    #[test]
    fn links_that_were_measured_too_seldom_are_no_clean_bill() {
        let least = sweeps_least(4);
        for (times, first, said) in [
            (least, least, None),
            (least, least - 1, Some(least - 1)),
            (least, 0, Some(0)),
            (least - 1, least - 1, Some(least - 1)),
        ] {
            let document = measured(4, times, first);
            let text = document.text();
            let clean = text.contains("no node and no link is slower");
            assert_eq!(clean, said.is_none(), "{times}, {first}: {text}");
            if let Some(said) = said {
                let words = format!("some links were measured {said} times in a pass");
                assert!(text.contains(&words) && text.contains("give more --time"), "{text}");
            }
        }
    }

    /// Tests that the figures of all links of 300 nodes are computed in less than 20 seconds. The number of links grows with the
    /// square of the number of nodes, and the computing time must not grow faster.
    #[test]
    fn a_million_measurements_of_links_become_a_table_in_little_time() {
        let nodes = 300;
        let sweeps: Vec<Sweep> = (0..12)
            .map(|number| {
                let ways = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
                let bytes_per_s = 1e9 + f64::from(number);
                let passage = |(from, to)| Passage { from, to, latency_s: 1e-6, bytes_per_s };
                let passages = ways.filter(|(from, to)| from != to).map(passage).collect();
                Sweep { passages, ..Sweep::default() }
            })
            .collect();
        let count = Count { share: 1.0, limit: 0.95, slow: 0, of: 12, chance: 1.0 };
        let ways = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let counts = ways.map(|(from, to)| ((What::Bandwidth, from, to), count)).collect();
        let judged = Judged { counts, ..Judged::default() };
        let began = Instant::now();
        let table = links(&names(nodes), &sweeps, &judged);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(table.len(), nodes * (nodes - 1));
        let figure = table[7].bandwidth.as_ref().unwrap();
        assert_eq!((figure.median, figure.count.of), (1e9 + 5.5, 12));
        assert_eq!(table[7].latency, None, "nothing was compared");
    }

    #[test]
    fn too_few_sweeps_are_no_clean_bill() {
        let mut document = Document::new(Tolerance::default(), 4, 0);
        document.sweeps = vec![document.sweeps_least - 1];
        assert!(document.text().contains("give more --time"), "{}", document.text());
        document.sweeps = vec![document.sweeps_least];
        assert!(document.text().contains("nothing was found"), "{}", document.text());
    }
}

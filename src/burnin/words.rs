//! Findings as sentences: the slow part, its speed, the certainty and the advice. The module is pure.

use super::samples::Absent;
use super::verdict::{Place, Slow, What, Wrong};

/// Largest number of absent nodes that are named. If more are absent, a single node is unlikely to be the cause.
const ABSENT_MOST: usize = 4;

/// Formats `share`, a fraction of the peers' speed, in per cent.
fn share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Describes a node, its network or a link by the names of the nodes.
pub fn place(place: Place, names: &[String]) -> String {
    match place {
        Place::Node(node) => names[node].clone(),
        Place::Port(node) => format!("the network of {}", names[node]),
        Place::Link(from, to) => format!("the link from {} to {}", names[from], names[to]),
    }
}

/// Lists the absent nodes by name, as the subject of a sentence.
pub fn absent(absent: &[Absent], names: &[String]) -> String {
    let who = |one: &Absent| match *one {
        Absent::Node(node) => names[node].clone(),
        Absent::Pair(one, other) => {
            format!("{} or {}, which were measuring their link,", names[one], names[other])
        }
    };
    let mut all: Vec<String> = absent.iter().take(ABSENT_MOST).map(who).collect();
    let more = absent.len() - all.len();
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all.join(" and ")
}

/// Describes how slow a node or link is, and in how many measurements it is slow.
pub fn sentence(slow: &Slow, names: &[String]) -> String {
    let at = place(slow.place, names);
    let count = &slow.count;
    let with =
        if matches!(slow.place, Place::Port(_)) { " (to and from all of its peers)" } else { "" };
    let pace = share(count.share);
    let what = match slow.what {
        What::Multiply => format!("{at} multiplies at {pace} of its peers' rate"),
        What::Memory => format!("{at} copies memory at {pace} of its peers' rate"),
        What::Bandwidth => {
            format!("{at} has {pace} of the others' bandwidth{with}")
        }
        What::Latency => format!(
            "{at} takes {:.1} times as long as others for a short message{with}",
            1.0 / count.share
        ),
    };
    format!(
        "{what}: below the limit of {} in {} of {} measurements, and confirmed by another pass",
        share(count.limit),
        count.slow,
        count.of
    )
}

/// Returns advice on the likely cause of a slow node or link.
pub fn advice(slow: &Slow, names: &[String]) -> String {
    match (slow.what, slow.place) {
        (What::Multiply, _) => {
            "look there for a lower clock (temperature, power limit, governor), for other processes, and for cores that are \
             switched off"
        }
        (What::Memory, _) => {
            "look there for a missing or slow memory module, for different firmware settings (NUMA, interleaving), for other \
             processes, and for a device with a slower link than others"
        }
        (_, Place::Port(_)) => {
            "change this node's cable, look at the error counters and the negotiated speed of its adapter and of its port at the \
             switch"
        }
        (_, Place::Link(from, to)) => {
            return format!(
                "{} and {} are as fast as other nodes on their other links, so look at the network between them: links between \
                 switches, routing, other traffic",
                names[from], names[to]
            );
        }
        (_, Place::Node(_)) => "look at the network of this node",
    }
    .to_owned()
}

/// Describes a node whose product differs from the product of most nodes.
pub fn wrong(wrong: &Wrong, names: &[String]) -> String {
    format!(
        "{} computes wrong: its product of the same matrices differs from that of other nodes in {} of {} measurements",
        names[wrong.node], wrong.times, wrong.of
    )
}

/// Describes nodes whose products differ without a majority.
pub fn torn(nodes: &[usize], names: &[String]) -> String {
    match nodes {
        [one] => format!(
            "{} computes wrong: its product of the same matrices differs between measurements",
            names[*one]
        ),
        _ => format!(
            "{} compute different products of the same matrices; it is not known which of them compute wrong",
            nodes.iter().map(|node| names[*node].as_str()).collect::<Vec<_>>().join(" and ")
        ),
    }
}

/// Advice for nodes whose products differ without a majority.
pub const TORN_ADVICE: &str = "burn in each of the named nodes together with two nodes known to be well; until then do not \
     use the named nodes";

/// Advice for a node that computes wrong.
pub const WRONG_ADVICE: &str = "take it out of service, and test its memory and its processor";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burnin::verdict::Count;

    fn slow(what: What, place: Place) -> Slow {
        Slow {
            what,
            place,
            count: Count { share: 0.948, limit: 0.98, slow: 20, of: 21, chance: 1e-5 },
        }
    }

    #[test]
    fn every_finding_names_its_place_and_says_what_to_do() {
        let names = ["n1", "n2", "n3"].map(String::from);
        let told = |what, place| sentence(&slow(what, place), &names);
        assert_eq!(
            told(What::Multiply, Place::Node(2)),
            "n3 multiplies at 94.8 % of its peers' rate: below the limit of 98.0 % in 20 of 21 measurements, and \
             confirmed by another pass"
        );
        for (what, place, parts) in [
            (What::Memory, Place::Node(0), vec!["n1 copies memory at 94.8 %"]),
            (What::Bandwidth, Place::Port(1), vec!["the network of n2 has", "all of its peers"]),
            (What::Bandwidth, Place::Link(0, 2), vec!["the link from n1 to n3 has"]),
            (What::Latency, Place::Port(1), vec!["network of n2 takes 1.1 times as long"]),
            (What::Latency, Place::Link(2, 0), vec!["from n3 to n1 takes"]),
        ] {
            let text = told(what, place);
            for part in parts {
                assert!(text.contains(part), "{text}");
            }
            assert!(advice(&slow(what, place), &names).contains("look"));
        }
        assert!(advice(&slow(What::Latency, Place::Link(2, 0)), &names).starts_with("n3 and n1"));
        let told = |all: &[Absent]| absent(all, &["n1", "n2", "n3"].map(String::from));
        assert_eq!(told(&[Absent::Pair(0, 2)]), "n1 or n3, which were measuring their link,");
        assert_eq!(told(&[Absent::Node(1), Absent::Node(2)]), "n2 and n3");
        assert_eq!(told(&[Absent::Node(1); 7]), "n2 and n2 and n2 and n2 and 3 more");
        assert!(wrong(&Wrong { node: 1, times: 2, of: 42 }, &names).contains("2 of 42"));
    }
}

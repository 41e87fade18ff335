//! A trial start of MPI: the same launcher, nodes and arguments as for the run, but a tiny program.
//!
//! `skt-hpl run` makes a trial before its first launch, `skt-hpl doctor` at any time. Each process reports its node before MPI
//! starts, and again after a sum over all ranks, so that a failure can be located. A node that the launcher cannot reach does not
//! report at all. Ranks that cannot reach each other report once. A batch system can give a job a private /dev/shm, other than
//! that of the agent. Checkpoints there would be lost with every job step, so the trial checks this, too.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::job::{Job, LastWords};
use super::launch::{Launch, LaunchPlan, launch};
use crate::base::clock::Instant;
use crate::supervise::talk::wire::Facts;

/// Node of a process of the trial, and the device of its /dev/shm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub host: String,
    pub boot: String,
    pub shm_device: u64,
}

impl Place {
    pub fn of(facts: &Facts) -> Self {
        Self { host: facts.host.clone(), boot: facts.boot.clone(), shm_device: facts.shm.device }
    }

    fn key(&self) -> (&str, &str) {
        (&self.host, &self.boot)
    }
}

/// Report of a process of the trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// The launcher has started the process; MPI has not started yet.
    Started(Place),
    /// The rank has completed a sum over all ranks. `size` is the number of ranks in MPI_COMM_WORLD.
    Joined { size: usize, place: Place },
}

/// Prefix of a report. Launchers may add other text to the output.
const MARK: &str = "skt-hpl-trial ";

pub fn line(said: &Said) -> String {
    format!("{MARK}{}\n", serde_json::to_string(said).expect("plain values have a JSON form"))
}

fn read(output: &str) -> Vec<Said> {
    let of_line = |line: &str| {
        let at = line.find(MARK)?;
        let mut values = serde_json::Deserializer::from_str(&line[at + MARK.len()..]).into_iter();
        values.next()?.ok()
    };
    output.lines().filter_map(of_line).collect()
}

/// Failure of a trial, and the nodes that caused it. `nodes` is empty if they are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub nodes: Vec<usize>,
    pub what: String,
}

/// End of a trial's launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Exit(Option<i32>),
    /// The launcher was ended because it still ran after this time.
    Late(Duration),
}

impl End {
    /// Describes the end, with the launcher's complaint if there is any.
    fn describe(&self, complaint: &str) -> String {
        let how = match self {
            End::Exit(Some(code)) => format!("the launcher ended with status {code}"),
            End::Exit(None) => "the launcher vanished".to_owned(),
            End::Late(timeout) => {
                format!("the launcher had not ended after {} s", timeout.as_secs())
            }
        };
        if complaint.is_empty() { how } else { format!("{how} ({complaint})") }
    }
}

/// Judges a trial by the output of its launcher. `nodes` are the hosts of the trial, each as its agent reports it. Pure.
pub fn judge(
    words: &LastWords,
    end: &End,
    nodes: &[(String, Place)],
    ranks: usize,
) -> Result<(), Trouble> {
    // Many thousand ranks may report, so nodes are looked up in a map. The first of several equal nodes counts.
    let known: HashMap<(&str, &str), usize> =
        nodes.iter().enumerate().rev().map(|(n, (_, place))| (place.key(), n)).collect();
    let at = |place: &Place| known.get(&place.key()).copied();
    let (mut started, mut joined) = (Vec::new(), Vec::new());
    for report in read(&words.output) {
        match report {
            Said::Started(place) => started.extend(at(&place).map(|n| (n, place.shm_device))),
            Said::Joined { size, place } => joined.push((at(&place), size)),
        }
    }
    // A private /dev/shm is reported first, because it does not depend on MPI.
    let private = started.iter().filter(|(n, device)| nodes[*n].1.shm_device != *device);
    let private: Vec<usize> = private.map(|(n, _)| *n).collect();
    if let Some((first, _)) = private.first().map(|n| &nodes[*n]) {
        let what = format!(
            "a job's processes on {first} see another /dev/shm than the agent there: a private one, as \
             Slurm's job_container/tmpfs makes. Checkpoints would vanish with the job step; remove /dev/shm \
             from Dirs= in job_container.conf"
        );
        return Err(Trouble { nodes: private, what });
    }
    if let Some((_, size)) = joined.iter().find(|(_, size)| *size != ranks) {
        let what = format!(
            "{ranks} ranks were started, but MPI counts {size}: the launcher is not the one \
             of the MPI library that this program is linked to; choose another (--launcher, --launcher-program)"
        );
        return Err(Trouble { nodes: Vec::new(), what });
    }
    if *end == End::Exit(Some(0)) && joined.len() == ranks {
        return Ok(());
    }
    let how = end.describe(&words.complaint);
    let lacking = find_lacking(nodes, started.iter().map(|(n, _)| *n));
    if !lacking.is_empty() {
        // If no node reported, the launcher itself may be at fault.
        let all = lacking.len() == nodes.len();
        let which = if all { "any node".into() } else { join_names(nodes, &lacking) };
        let what = format!("the launcher started nothing on {which}: {how}");
        return Err(Trouble { nodes: if all { Vec::new() } else { lacking }, what });
    }
    let alone = find_lacking(nodes, joined.iter().filter_map(|(n, _)| *n));
    if alone.is_empty() {
        return Err(Trouble {
            nodes: Vec::new(),
            what: format!("MPI works on all nodes, but {how}"),
        });
    }
    let what = format!(
        "processes start on all nodes, but MPI connects no ranks on {}: {how}. Name the network \
         that all nodes share to MPI (Open MPI: --launcher-args '-mca btl_tcp_if_include NET -mca \
         oob_tcp_if_include NET'), and look for firewalls between them",
        join_names(nodes, &alone)
    );
    Err(Trouble { nodes: Vec::new(), what })
}

/// Returns the nodes that are not among `heard`, the nodes of the reports.
fn find_lacking(nodes: &[(String, Place)], heard: impl Iterator<Item = usize>) -> Vec<usize> {
    let heard: BTreeSet<usize> = heard.collect();
    (0..nodes.len()).filter(|n| !heard.contains(n)).collect()
}

fn join_names(nodes: &[(String, Place)], which: &[usize]) -> String {
    let names: Vec<&str> = which.iter().map(|n| nodes[*n].0.as_str()).collect();
    names.join(" ")
}

/// A trial that fails within this time is repeated before a node is blamed. MPI may fail to start by accident, because a daemon
/// is not ready or a port is in use.
pub const WORTH_ANOTHER: Duration = Duration::from_secs(30);

/// Number in the names of a trial's files. The names differ from those of an attempt, because attempts count from 1.
pub const NUMBER: u32 = 0;

/// Returns the launch of a trial. `plan` gives everything except the command, which is that of the program `own`.
pub fn launch_of(plan: &LaunchPlan, own: &str) -> Launch {
    let command = [own, "agent", "--trial"].map(String::from);
    launch(&LaunchPlan { attempt: NUMBER, command: &command, ..plan.clone() })
}

/// Returns the end of the trial that runs as `job` since `since`, once it has ended or is late.
pub fn end_of(job: &mut Job, since: Instant, timeout: Duration) -> Option<End> {
    job.look();
    let late = since.elapsed() >= timeout;
    if !job.has_looked() && !late {
        return None;
    }
    match job.poll() {
        Some(code) => Some(End::Exit(code)),
        None => late.then_some(End::Late(timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(output: &str, complaint: &str) -> LastWords {
        let (output, complaint) = (output.to_owned(), complaint.to_owned());
        LastWords { output, complaint, first_to_end: None }
    }

    fn place(name: &str) -> Place {
        Place { host: name.into(), boot: format!("boot of {name}"), shm_device: 7 }
    }
    fn nodes() -> Vec<(String, Place)> {
        ["n1", "n2", "n3"].map(|n| (n.to_string(), place(n))).to_vec()
    }
    fn started(name: &str) -> String {
        line(&Said::Started(place(name)))
    }
    fn joined(name: &str, size: usize) -> String {
        line(&Said::Joined { size, place: place(name) })
    }
    const GOOD: End = End::Exit(Some(0));

    fn trouble(output: &str, end: &End) -> Trouble {
        judge(&said(output, "words"), end, &nodes(), 3).unwrap_err()
    }

    #[test]
    fn a_good_trial_passes_whatever_the_launcher_prints_around_it() {
        let all = ["n1", "n2", "n3"];
        let mut output = String::from("Welcome\n");
        for name in all {
            output += &format!("[1,0]<stdout>:{}", started(name));
        }
        for name in all {
            output += &joined(name, 3);
        }
        assert_eq!(judge(&said(&output, "a warning"), &GOOD, &nodes(), 3), Ok(()));
        assert!(trouble(&output, &End::Exit(Some(1))).what.contains("status 1 (words)"));
    }

    #[test]
    fn a_node_nothing_was_started_on_is_named() {
        let output = started("n1") + &started("n3");
        let found = trouble(&output, &End::Exit(Some(213)));
        assert_eq!(found.nodes, [1]);
        assert!(found.what.contains("nothing on n2") && found.what.contains("213"), "{found:?}");
        // If no node reports, the launcher itself may be at fault.
        let found = trouble("", &End::Exit(Some(1)));
        assert!(found.nodes.is_empty());
        assert!(found.what.contains("any node"), "{found:?}");
    }

    #[test]
    fn ranks_that_do_not_come_together_point_at_the_network() {
        let output = started("n1") + &started("n2") + &started("n3") + &joined("n1", 3);
        let found = trouble(&output, &End::Late(Duration::from_secs(60)));
        assert!(found.nodes.is_empty());
        assert!(found.what.contains("MPI connects no ranks on n2 n3"), "{found:?}");
        assert!(found.what.contains("after 60 s"), "{found:?}");
    }

    #[test]
    fn a_launcher_of_another_library_is_recognised() {
        let output: String =
            ["n1", "n2", "n3"].iter().map(|n| started(n) + &joined(n, 1)).collect();
        let found = trouble(&output, &GOOD);
        assert!(found.what.contains("--launcher"), "{found:?}");
    }

    #[test]
    fn a_private_shared_memory_is_told_before_all_else() {
        let mut other = place("n2");
        other.shm_device = 8;
        let output = started("n1") + &line(&Said::Started(other));
        let found = trouble(&output, &End::Exit(Some(1)));
        assert_eq!(found.nodes, [1]);
        assert!(found.what.contains("private"), "{found:?}");
    }

    /// A machine with two names counts under the first. A process on another machine, or on a node before its reboot, counts for
    /// no node.
    #[test]
    fn of_nodes_that_are_alike_the_first_is_heard_and_strangers_speak_for_nobody() {
        let alike = ["n1", "n2", "n1"].map(|n| (format!("name of {n}"), place(n)));
        let judge =
            |output: &str| judge(&said(output, ""), &End::Exit(Some(1)), &alike, 3).unwrap_err();
        let found = judge(&(started("n1") + &started("n1") + &started("n2")));
        assert_eq!(found.nodes, [2], "{found:?}");
        let mut before = place("n2");
        before.boot = "boot before".into();
        let said = started("n1") + &started("stranger") + &line(&Said::Started(before));
        assert_eq!(judge(&said).nodes, [1, 2]);
        // Their shared memory is not compared with that of an agent.
        let mut stranger = place("stranger");
        stranger.shm_device = 8;
        assert_eq!(judge(&(said + &line(&Said::Started(stranger)))).nodes, [1, 2]);
    }

    #[test]
    fn of_many_nodes_with_many_ranks_each_those_without_ranks_are_named() {
        const NODES: usize = 2000;
        const EACH: usize = 64;
        let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
        let nodes: Vec<(String, Place)> = names.iter().map(|n| (n.clone(), place(n))).collect();
        let speaks = names.iter().enumerate().filter(|(n, _)| n % 500 != 499);
        let output: String = speaks.map(|(_, name)| started(name).repeat(EACH)).collect();
        let found =
            judge(&said(&output, ""), &End::Exit(Some(1)), &nodes, NODES * EACH).unwrap_err();
        assert_eq!(found.nodes, [499, 999, 1499, 1999]);
        assert!(found.what.contains("nothing on n499 n999 n1499 n1999:"), "{found:?}");
    }
}

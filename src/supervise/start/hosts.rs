//! Lists of nodes: from host files and from the environment of batch systems.
//!
//! `skt-hpl run` and `skt-hpl doctor` call [`read_host_file`] or [`from_allocation`]. All other code uses nodes as [`Host`]s. The
//! order of a list is kept: launchers place ranks in this order, and the last nodes of an allocation become the spares.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A node and its number of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    pub slots: usize,
}

impl Host {
    pub fn new(name: impl Into<String>, slots: usize) -> Self {
        Self { name: name.into(), slots }
    }
}

/// Returns, for each slot, the index of its host. Ranks fill the slots in this order.
pub fn slots(hosts: &[Host]) -> impl Iterator<Item = usize> {
    hosts.iter().enumerate().flat_map(|(at, host)| std::iter::repeat_n(at, host.slots))
}

/// Returns the number of hosts that have ranks if `ranks` ranks fill the slots in order.
pub fn filled(hosts: &[Host], ranks: usize) -> usize {
    slots(hosts).take(ranks).last().map_or(0, |last| last + 1)
}

/// Batch system that gave an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchSystem {
    Slurm,
    Pbs,
    Lsf,
}

impl fmt::Display for BatchSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchSystem::Slurm => "Slurm",
            BatchSystem::Pbs => "PBS",
            BatchSystem::Lsf => "LSF",
        })
    }
}

/// Nodes that a batch system has given to this job, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub system: BatchSystem,
    pub job: String,
    pub hosts: Vec<Host>,
}

/// Reads a host file in any of the common forms, one node a line, `#` comments allowed: `n1`, `n1 slots=4 max_slots=4` (Open
/// MPI), `n1:4` (Hydra). The slots of a node on several lines are added up (PBS).
pub fn read_host_file(text: &str, origin: &str) -> Result<Vec<Host>, String> {
    let mut list = Merged::default();
    for (at, raw) in text.lines().enumerate() {
        let line = raw.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let fail = |what: String| format!("{origin}, line {}: {what}", at + 1);
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let (name, mut slots) = match first.rsplit_once(':') {
            // An IPv6 address has several colons and no slot count.
            Some((name, count)) if !name.contains(':') => {
                (name, Some(number(count).map_err(&fail)?))
            }
            _ => (first, None),
        };
        check_name(name).map_err(&fail)?;
        for word in words {
            match word.split_once('=') {
                Some(("slots" | "cpu" | "count", value)) => {
                    if slots.is_some() {
                        return Err(fail(format!("'{line}' gives the number of slots twice")));
                    }
                    slots = Some(number(value).map_err(&fail)?);
                }
                // Limits of oversubscription, network interfaces and core bindings do not matter here.
                Some(("max_slots" | "max-slots" | "ifname" | "binding", _)) => {}
                Some(("username", user)) => {
                    return Err(fail(format!(
                        "'{word}' gives a login name, but the remote shell needs this name: remove '{word}' and give --rsh \
                         'ssh -l {user}', or set the name in ssh's own configuration"
                    )));
                }
                _ => {
                    return Err(fail(format!(
                        "'{word}' is not understood; write 'n1', 'n1 slots=4' or 'n1:4'"
                    )));
                }
            }
        }
        list.add(name, slots.unwrap_or(1));
    }
    list.finish(origin)
}

/// Reads the nodes from the batch system's environment. Returns `None` outside of an allocation.
///
/// `var` reads an environment variable. `read` reads a file, such as the one that `PBS_NODEFILE` names.
pub fn from_allocation(
    var: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<Option<Allocation>, String> {
    let allocation = |system, job: &str, hosts| {
        Ok(Some(Allocation { system, job: var(job).unwrap_or_default(), hosts }))
    };
    if let Some(list) = var("SLURM_JOB_NODELIST").or_else(|| var("SLURM_NODELIST")) {
        let names = expand_slurm(&list).map_err(|what| format!("SLURM_JOB_NODELIST: {what}"))?;
        let tasks = match var("SLURM_TASKS_PER_NODE") {
            Some(text) => {
                let tasks =
                    expand_counts(&text).map_err(|what| format!("SLURM_TASKS_PER_NODE: {what}"))?;
                if tasks.len() != names.len() {
                    return Err(format!(
                        "SLURM_TASKS_PER_NODE: '{text}' is for {} nodes, but SLURM_JOB_NODELIST names {}",
                        tasks.len(),
                        names.len()
                    ));
                }
                tasks
            }
            None => vec![1; names.len()],
        };
        let hosts = names.into_iter().zip(tasks).map(|(name, slots)| Host { name, slots });
        return allocation(BatchSystem::Slurm, "SLURM_JOB_ID", hosts.collect());
    }
    if let Some(path) = var("PBS_NODEFILE") {
        let text = read(&path).map_err(|e| format!("PBS_NODEFILE: {path}: {e}"))?;
        return allocation(BatchSystem::Pbs, "PBS_JOBID", read_host_file(&text, &path)?);
    }
    const LSF: &str = "LSB_MCPU_HOSTS";
    if let Some(list) = var(LSF) {
        let words: Vec<&str> = list.split_whitespace().collect();
        if !words.len().is_multiple_of(2) {
            return Err(format!("{LSF}: '{list}' should be pairs of a host and a number"));
        }
        let mut merged = Merged::default();
        for pair in words.chunks(2) {
            let fail = |what: String| format!("{LSF}: {what}");
            check_name(pair[0]).map_err(fail)?;
            merged.add(pair[0], number(pair[1]).map_err(fail)?);
        }
        return allocation(BatchSystem::Lsf, "LSB_JOBID", merged.finish(LSF)?);
    }
    Ok(None)
}

/// Expands Slurm's list of node names: `n[01-03,5],login` -> n01 n02 n03 n5 login, in the list's order. Several brackets in a
/// name give all combinations.
pub fn expand_slurm(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for item in split_outside_brackets(list) {
        expand_item(item, &mut names)?;
    }
    Ok(names)
}

/// Expands Slurm's list of counts: `4(x2),1` -> 4 4 1.
pub fn expand_counts(text: &str) -> Result<Vec<usize>, String> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (count, times) = match part.split_once('(') {
            Some((count, rest)) => {
                let times = rest
                    .strip_prefix('x')
                    .and_then(|r| r.strip_suffix(')'))
                    .ok_or_else(|| format!("'{part}' is not of the form 4(x2)"))?;
                (count, number(times)?)
            }
            None => (part, 1),
        };
        let count = number(count)?;
        if times > NODES_MAX {
            return Err(format!("'{part}' repeats too often"));
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Ok(counts)
}

/// Largest number of nodes, more than any machine has. Without this limit a typing error could fill the memory.
const NODES_MAX: usize = 1_000_000;

fn split_outside_brackets(list: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    let ends = move |c: char| {
        inside = c == '[' || inside && c != ']';
        c == ',' && !inside
    };
    list.split(ends).map(str::trim)
}

fn expand_item(item: &str, names: &mut Vec<String>) -> Result<(), String> {
    let Some((head, rest)) = item.split_once('[') else {
        check_name(item)?;
        names.push(item.to_string());
        return Ok(());
    };
    let (ranges, tail) =
        rest.split_once(']').ok_or_else(|| format!("'{item}': '[' without ']'"))?;
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number_or_zero(low)?, number_or_zero(high)?);
        if last < first {
            return Err(format!("'{range}' ends below its start"));
        }
        if last - first >= NODES_MAX || names.len() >= NODES_MAX {
            return Err(format!("'{item}' names too many nodes"));
        }
        for n in first..=last {
            // Leading zeros are part of the name: n[08-10] is n08 n09 n10.
            expand_item(&format!("{head}{n:0width$}{tail}", width = low.len()), names)?;
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n > 0 && n <= NODES_MAX => Ok(n),
        _ => Err(format!("'{text}' is not a number of slots (1 or more)")),
    }
}

fn number_or_zero(text: &str) -> Result<usize, String> {
    let is_number = text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| format!("'{text}' is not a node number"))
}

/// Checks a host name, which is used in command lines of remote shells. Characters with a meaning for shells are refused, and so
/// is a leading dash, which would be taken for an option.
fn check_name(name: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(fine) {
        return Err(format!("'{name}' is not a host name"));
    }
    Ok(())
}

/// A list of hosts in which each node is at the place where it was first named, with the sum of its slots.
#[derive(Default)]
struct Merged {
    hosts: Vec<Host>,
    place: BTreeMap<String, usize>,
}

impl Merged {
    fn add(&mut self, name: &str, slots: usize) {
        match self.place.get(name) {
            Some(&at) => self.hosts[at].slots += slots,
            None => {
                self.place.insert(name.to_string(), self.hosts.len());
                self.hosts.push(Host::new(name, slots));
            }
        }
    }

    fn finish(self, origin: &str) -> Result<Vec<Host>, String> {
        if self.hosts.is_empty() {
            return Err(format!("{origin} names no node"));
        }
        Ok(self.hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(hosts: &[Host]) -> Vec<(&str, usize)> {
        hosts.iter().map(|h| (h.name.as_str(), h.slots)).collect()
    }

    #[test]
    fn ranks_fill_hosts_in_the_order_of_the_list() {
        let hosts = |slots: &[usize]| -> Vec<Host> {
            slots
                .iter()
                .enumerate()
                .map(|(at, slots)| Host::new(format!("n{at}"), *slots))
                .collect()
        };
        for (slots, ranks, count) in [
            (&[1, 1, 1, 1, 1][..], 4, 4),
            (&[1, 1, 1, 1], 4, 4),
            (&[4, 4, 4], 5, 2),
            (&[2, 2, 1], 4, 2),
            (&[1, 1], 3, 2),
        ] {
            assert_eq!(filled(&hosts(slots), ranks), count, "{slots:?} {ranks}");
        }
    }

    #[test]
    fn host_files_of_all_launchers() {
        let text = "# nodes\nn1 slots=4 max_slots=4\nn2:2\n\nn3  # plain\nn4\nn4\nfe80::1\n";
        assert_eq!(
            names(&read_host_file(text, "h").unwrap()),
            [("n1", 4), ("n2", 2), ("n3", 1), ("n4", 2), ("fe80::1", 1)]
        );
    }

    #[test]
    fn another_user_is_for_the_remote_shell_to_know() {
        let why = read_host_file("n1 username=me slots=2\n", "f").unwrap_err();
        assert!(why.contains("line 1") && why.contains("--rsh 'ssh -l me'"), "{why}");
    }

    #[test]
    fn faults_in_host_files_are_located() {
        for (text, line, part) in [
            ("n1\nn2 slots=0\n", 2, "'0'"),
            ("n1 slot=2", 1, "'slot=2'"),
            ("n1:x", 1, "'x'"),
            ("n1:2 slots=2", 1, "twice"),
            ("\n\n-oProxyCommand=evil", 3, "not a host name"),
            ("n1;reboot", 1, "not a host name"),
        ] {
            let why = read_host_file(text, "f").unwrap_err();
            assert!(why.starts_with(&format!("f, line {line}: ")), "{text:?}: {why}");
            assert!(why.contains(part), "{why:?} does not speak of {part}");
        }
        assert!(read_host_file("# nothing\n", "f").is_err());
    }

    #[test]
    fn slurm_lists() {
        assert_eq!(expand_slurm("n[01-03,5]").unwrap(), ["n01", "n02", "n03", "n5"]);
        assert_eq!(expand_slurm("a,b[9-10],c").unwrap(), ["a", "b9", "b10", "c"]);
        assert_eq!(
            expand_slurm("r[1-2]n[1-2]-ib").unwrap(),
            ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]
        );
        for bad in ["", "n[", "n]", "n[3-1]", "n[a]", "n[1-]", "n[[1]]", "a,,b", "n[1-999999999]"] {
            assert!(expand_slurm(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn task_counts() {
        assert_eq!(expand_counts("4(x2),1").unwrap(), [4, 4, 1]);
        for bad in ["", "4(2)", "4(x2", "0", "4(x0)", "4(x99999999)"] {
            assert!(expand_counts(bad).is_err(), "{bad:?} was taken");
        }
    }

    fn env<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string())
    }
    fn no_file(_: &str) -> std::io::Result<String> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    #[test]
    fn allocations() {
        assert_eq!(from_allocation(env(&[]), no_file), Ok(None));
        let slurm = from_allocation(
            env(&[
                ("SLURM_JOB_NODELIST", "n[01-03,5]"),
                ("SLURM_TASKS_PER_NODE", "4(x2),1,2"),
                ("SLURM_JOB_ID", "77"),
            ]),
            no_file,
        )
        .unwrap()
        .unwrap();
        assert_eq!((slurm.system, slurm.job.as_str()), (BatchSystem::Slurm, "77"));
        assert_eq!(names(&slurm.hosts), [("n01", 4), ("n02", 4), ("n03", 1), ("n5", 2)]);
        let lsf =
            from_allocation(env(&[("LSB_MCPU_HOSTS", "h1 4 h2 4")]), no_file).unwrap().unwrap();
        assert_eq!(names(&lsf.hosts), [("h1", 4), ("h2", 4)]);
        let pbs = from_allocation(env(&[("PBS_NODEFILE", "/nodes")]), |path| {
            assert_eq!(path, "/nodes");
            Ok("a\na\nb\na\n".to_string())
        })
        .unwrap()
        .unwrap();
        assert_eq!(names(&pbs.hosts), [("a", 3), ("b", 1)]);
        let odd = env(&[("LSB_MCPU_HOSTS", "h1 4 h2")]);
        assert!(from_allocation(odd, no_file).is_err());
        let short = env(&[("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "3")]);
        assert!(from_allocation(short, no_file).is_err());
    }

    proptest! {
        #[test]
        fn a_slurm_range_names_each_node_once_in_order(first in 0usize..2000, more in 0usize..50, width in 1usize..6) {
            let list = format!("node[{first:0width$}-{}]", first + more);
            let got = expand_slurm(&list).unwrap();
            prop_assert_eq!(got.len(), more + 1);
            for (i, name) in got.iter().enumerate() {
                prop_assert_eq!(name, &format!("node{:0w$}", first + i, w = width.max(1)));
            }
        }

        #[test]
        fn no_text_makes_the_readers_panic(text in "\\PC{0,40}") {
            let _ = expand_slurm(&text);
            let _ = expand_counts(&text);
            let _ = read_host_file(&text, "f");
        }
    }
}

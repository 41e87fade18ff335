//! Judgement of whether each rank can have its own core, and removal of the user's launcher options that do not fit.
//!
//! `supervisor` and `skt-hpl doctor` call [`room`] before they make a launch plan, and `launch` acts on the result. A supervised
//! run binds ranks as the launcher alone would. Binding is turned off only if it would fail: when a survivor has the ranks of a
//! lost node, or when a launcher refuses more ranks than cores.

use super::hosts::Host;
use super::launcher::Launcher;

/// Comparison of the ranks of the fullest node with its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Every rank can have its own core, or the number of cores is unknown.
    Enough,
    /// A node has more ranks than cores, because the user wants it so.
    Short,
    /// A node has more ranks than the user gave it, because it has the ranks of a lost node.
    Doubled,
}

/// Compares ranks and cores. `listed` are the nodes that the user gave, without spares. `cores` returns the number of cores of a
/// node. A spare may have as many ranks as the largest listed node.
pub fn room(hosts: &[Host], listed: &[Host], cores: impl Fn(&str) -> Option<usize>) -> Room {
    let most = listed.iter().map(|l| l.slots).max();
    let doubled = |host: &Host| {
        let meant = listed.iter().find(|l| l.name == host.name).map(|l| l.slots).or(most);
        meant.is_some_and(|slots| host.slots > slots)
    };
    if hosts.iter().any(doubled) {
        Room::Doubled
    } else if hosts.iter().any(|h| cores(&h.name).is_some_and(|cores| h.slots > cores)) {
        Room::Short
    } else {
        Room::Enough
    }
}

/// Whether an option of a launcher is among `words`, as `--name X`, `-name X` or `--name=X`, or as `-c4` for a letter.
pub fn has_option(words: &[String], name: &str) -> bool {
    words.iter().any(|word| is_option(word, name).is_some())
}

/// Options of all launchers that may place ranks in another order than that of the hosts.
const MAPPING: &str = "map-by rank-by npernode npersocket pernode bynode N ppn rr rf rankfile hostfile machinefile f host \
                       hosts H distribution m ntasks-per-node nodes nodelist w relative r";

/// Whether the user's arguments for a launcher may place ranks in another order than that of the hosts.
pub fn maps(words: &[String]) -> bool {
    // An example is `--mca rmaps_base_mapping_policy node`.
    let by_parameter = |word: &String| word.starts_with("rmaps");
    words.iter().any(by_parameter) || MAPPING.split(' ').any(|name| has_option(words, name))
}

/// Returns true if `word` is the option with its value, false if `word` is the option alone, or `None` if `word` is not the
/// option.
fn is_option(word: &str, name: &str) -> Option<bool> {
    let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    let rest = bare.strip_prefix(name)?;
    match rest.chars().next() {
        None => Some(false),
        Some('=') => Some(true),
        Some(c) if name.len() == 1 && !word.starts_with("--") && c.is_ascii_digit() => Some(true),
        Some(_) => None,
    }
}

/// Returns the options of a launcher that decide the cores of a rank: first those with a value, then those without.
fn placing(launcher: Launcher) -> [&'static str; 2] {
    match launcher {
        Launcher::Openmpi => [
            "bind-to map-by rank-by npernode N cpus-per-proc cpus-per-rank cpu-set cpu-list",
            "bind-to-core bind-to-socket nooversubscribe",
        ],
        Launcher::Mpich => ["bind-to map-by ppn", ""],
        Launcher::Srun => ["c cpus-per-task cpu-bind ntasks-per-node ntasks-per-core", "exact"],
    }
}

/// Returns the user's arguments without the options that decide the cores of a rank.
pub fn without_placement(launcher: Launcher, words: &[String]) -> Vec<String> {
    let [valued, bare] =
        placing(launcher).map(|names| names.split_whitespace().collect::<Vec<_>>());
    let among = |names: &[&str], word: &str| names.iter().find_map(|name| is_option(word, name));
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match among(&valued, word) {
            Some(true) => {}
            Some(false) => _ = words.next(),
            None if among(&bare, word).is_some() => {}
            None => kept.push(word.clone()),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn a_node_is_short_doubled_or_neither() {
        let listed = [Host::new("n1", 2), Host::new("n2", 2), Host::new("n3", 2)];
        let four = |_: &str| Some(4);
        assert_eq!(room(&listed, &listed, four), Room::Enough);
        assert_eq!(room(&listed, &listed, |_| None), Room::Enough);
        let one = |name: &str| Some(if name == "n2" { 1 } else { 4 });
        assert_eq!(room(&listed, &listed, one), Room::Short);
        let left = [Host::new("n1", 4), Host::new("n2", 2)];
        assert_eq!(room(&left, &listed, four), Room::Doubled);
        // A spare has as many ranks as the node that it replaces.
        let replaced = [Host::new("n1", 2), Host::new("n9", 2)];
        assert_eq!(room(&replaced, &listed, four), Room::Enough);
        let crowded = [Host::new("n1", 2), Host::new("n9", 4)];
        assert_eq!(room(&crowded, &listed, four), Room::Doubled);
    }

    #[test]
    fn options_are_found_in_every_form() {
        for (text, name, there) in [
            ("--bind-to core", "bind-to", true),
            ("-bind-to core", "bind-to", true),
            ("--cpu-bind=cores", "cpu-bind", true),
            ("--bind-to-core", "bind-to", false),
            ("bind-to", "bind-to", false),
            ("-c 4", "c", true),
            ("-c4", "c", true),
            ("--constraint=x", "c", false),
            ("-comment", "c", false),
            ("--mpi pmix", "mpi", true),
            ("--mpi=pmix", "mpi", true),
        ] {
            assert_eq!(has_option(&words(text), name), there, "{text} {name}");
        }
    }

    #[test]
    fn a_launcher_that_places_ranks_otherwise_is_noticed() {
        for (text, there) in [
            ("", false),
            ("--bind-to none -mca btl self,tcp -x A", false),
            ("--mca orte_leave_session_attached 1 --oversubscribe", false),
            ("--cpu-bind=cores --mpi=pmix -c 4", false),
            ("--map-by node", true),
            ("--mca rmaps_base_mapping_policy node", true),
            ("-N 2", true),
            ("-N2", true),
            ("-ppn 1", true),
            ("--distribution=cyclic", true),
        ] {
            assert_eq!(maps(&words(text)), there, "{text}");
        }
    }

    #[test]
    fn words_about_cores_go_and_others_stay() {
        for (launcher, given, left) in [
            (
                Launcher::Openmpi,
                "-mca btl self,tcp --map-by slot:PE=4 --bind-to core -x A -npernode 2 --bind-to-core --tag-output",
                "-mca btl self,tcp -x A --tag-output",
            ),
            (Launcher::Mpich, "-bind-to core:2 -iface eth0", "-iface eth0"),
            (
                Launcher::Srun,
                "-c 4 --cpu-bind=cores --mpi=pmix --exact --partition=p -c4",
                "--mpi=pmix --partition=p",
            ),
        ] {
            assert_eq!(without_placement(launcher, &words(given)), words(left), "{launcher:?}");
        }
    }
}
